//! The beginning of generations: `O_CREAT`, and writing to what is published.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hearthfs_mount::{Answer, Backing, Caller, Created, Errno, Ino, OpenFlags, Opened, Reply};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::beginning::{BEGIN_TRIES_MAX, Beginning, Stand};
use super::filesystem::Filesystem;
use super::generation::{Generation, Mark, Published, Stage, UNTOUCHED, set_mtime};
use super::inode::{GenId, Inode, Mode, Node, Source, Spot};
use super::lookup::{Lead, same_content};
use super::open::Wish;
use super::state::State;
use super::who::Who;
use super::writing::{Writing, attach_writer};
use crate::digest::Digest;
use crate::error::Kind;
use crate::local::StagedPath;
use crate::name::check_name;
use crate::namespace::{Attrs, Entry};

/// What was found under a name has changed while a generation was prepared. Never reaches a program: the
/// beginning is tried again.
pub(super) const MOVED: Errno = Errno::EAGAIN;

/// A generation that has begun, with an open handle.
pub(super) struct Begun {
    pub(super) ino: Ino,
    pub(super) opened: Opened,
}

impl Filesystem {
    /// Reports whether a new writer may start: the disk and the backlog have room.
    pub(super) fn has_room(&self) -> bool {
        self.0.rooms.ledger.has_room() && self.0.rooms.blobs.make_room(0)
    }

    /// Waits for room, within the deadline.
    async fn wait_for_room(&self) -> Reply<()> {
        if self.has_room() {
            return Ok(());
        }
        let deadline = self.0.rules.deadline;
        let begun = self.0.rooms.clock.mono();
        while self.0.rooms.clock.mono().saturating_sub(begun) < deadline {
            if self.has_room() {
                return Ok(());
            }
            crate::clock::sleep(ROOM_POLL).await;
        }
        Err(Errno::ENOSPC)
    }

    pub(super) fn create_file(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Answer<Created> {
        self.0.rooms.freshness.note_activity();
        let name = name.as_bytes();
        if let Err(error) = check_name(name) {
            return Err(super::errno::of_path(error)).into();
        }
        if self.0.rules.read_only {
            return Err(Errno::EROFS).into();
        }
        let who = self.0.callers.who(caller);
        self.0.state.lock().detours.end(caller.tid);
        let spot: Spot = (parent, name.into());
        let attrs = match self.attrs_for_new(parent, caller, mode) {
            Ok(attrs) => attrs,
            Err(errno) => return Err(errno).into(),
        };
        if !flags.write {
            return self.create_to_read(who, spot, attrs, flags);
        }
        let base = match self.base_of(&spot, flags) {
            Ok(base) => base,
            Err(errno) => return Err(errno).into(),
        };
        let asked = Beginning { base, attrs: Some(attrs), ..Beginning::of(spot, who, flags, None) };
        if self.has_room() && !asked.copies() {
            match self.created(asked.clone()) {
                Err(MOVED) => {}
                created => return created.into(),
            }
        }
        let this = self.clone();
        Answer::later(async move {
            let spot = asked.spot.clone();
            let begun = this.begin_when_possible(asked).await?;
            this.tell_created(&spot, begun)
        })
    }

    fn created(&self, asked: Beginning) -> Reply<Created> {
        let spot = asked.spot.clone();
        let begun = self.begin_now(asked)?;
        self.tell_created(&spot, begun)
    }

    fn tell_created(&self, spot: &Spot, begun: Begun) -> Reply<Created> {
        let mut state = self.0.state.lock();
        let found = self.found(&mut state, Lead::lasting(begun.ino), Some(spot))?;
        Ok(Created { found, opened: begun.opened })
    }

    /// Creates with `O_RDONLY`: nobody will write it, so the empty file is published at once. The kernel does
    /// not look again for who creates, so that is done here.
    fn create_to_read(
        &self,
        who: Who,
        spot: Spot,
        attrs: Attrs,
        flags: OpenFlags,
    ) -> Answer<Created> {
        let first = self.try_create_to_read(who, &spot, attrs.clone(), flags);
        let mut tried = match first {
            Answer::Now(reply) if !matches!(reply, Err(Errno::ESTALE)) => return reply.into(),
            first => first,
        };
        let this = self.clone();
        Answer::later(async move {
            for _ in 0..BEGIN_TRIES_MAX {
                let reply = match tried {
                    Answer::Now(reply) => reply,
                    Answer::Later(work) => work.await,
                };
                if !matches!(reply, Err(Errno::ESTALE)) {
                    return reply;
                }
                tried = this.try_create_to_read(who, &spot, attrs.clone(), flags);
            }
            Err(Errno::ENOENT)
        })
    }

    fn try_create_to_read(
        &self,
        who: Who,
        spot: &Spot,
        attrs: Attrs,
        flags: OpenFlags,
    ) -> Answer<Created> {
        let kind = crate::namespace::Kind::File { digest: Digest::empty(), size: 0 };
        let lead = {
            let mut state = self.0.state.lock();
            match self.put_new(&mut state, spot, Entry { kind, attrs, link: None }) {
                Ok(ino) => Ok(Lead::lasting(ino)),
                Err(Errno::EEXIST) if !flags.exclusive => Self::path_to_find(&state, spot)
                    .map(|path| self.find(&mut state, spot, &path, Some(who)))
                    .and_then(|led| led.map(|(lead, _)| lead).ok_or(Errno::ESTALE)),
                Err(errno) => Err(errno),
            }
        };
        let lead = match lead {
            Ok(lead) => lead,
            Err(errno) => return Err(errno).into(),
        };
        let wish = Wish { who, flags: OpenFlags { exclusive: false, ..flags }, last: false };
        let opened = self.open_to_read(lead.ino, wish, self.0.rules.open_wait);
        let (this, spot) = (self.clone(), spot.clone());
        let tell = move |opened: Reply<Opened>| {
            let opened = opened?;
            let found = this.found(&mut this.0.state.lock(), lead, Some(&spot))?;
            Ok(Created { found, opened })
        };
        match opened {
            Answer::Now(reply) => tell(reply).into(),
            Answer::Later(work) => Answer::later(async move { tell(work.await) }),
        }
    }

    /// Returns the attributes of something new in a directory. A directory with the set-group-id bit
    /// hands its group down.
    pub(super) fn attrs_for_new(&self, parent: Ino, caller: &Caller, mode: u32) -> Reply<Attrs> {
        let state = self.0.state.lock();
        let (dir, _) = self.attr_of(&state, parent)?;
        if dir.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let gid = if dir.perm & 0o2000 == 0 { caller.gid } else { dir.gid };
        let now = self.now();
        Ok(Attrs {
            mode: mode & 0o7777,
            uid: caller.uid,
            gid,
            mtime: now,
            atime: now,
            xattrs: None,
        })
    }

    /// Returns what a name that is to be created leads to already.
    fn base_of(&self, spot: &Spot, flags: OpenFlags) -> Reply<Option<Entry>> {
        let state = self.0.state.lock();
        let path = state.path_of(spot).ok_or_else(|| state.why_no_path(spot))?;
        let seen = self.seen(&path);
        let there = seen.is_some() || state.private_generations(spot).next().is_some();
        match seen {
            _ if there && flags.exclusive => Err(Errno::EEXIST),
            Some(seen) if seen.entry.is_directory() => Err(Errno::EISDIR),
            Some(seen) if seen.entry.content().is_none() => Err(Errno::EEXIST),
            seen => Ok(seen.map(|seen| seen.entry)),
        }
    }

    /// Waits for room, makes the base local and copies it, then begins.
    pub(super) async fn begin_when_possible(&self, mut asked: Beginning) -> Reply<Begun> {
        self.wait_for_room().await?;
        loop {
            self.wait_for_publish(&asked).await?;
            match self.begin_copy(asked.clone()).await {
                Err(MOVED) if asked.tries > 0 => asked.tries -= 1,
                begun => return begun,
            }
            let path = self.0.state.lock().path_of(&asked.spot).ok_or(Errno::ENOENT)?;
            asked.base = self.seen(&path).map(|seen| seen.entry);
        }
    }

    /// Waits until what a beginning would share is published.
    async fn wait_for_publish(&self, asked: &Beginning) -> Reply<()> {
        if asked.orphan {
            return Ok(());
        }
        let plan = {
            let state = self.0.state.lock();
            self.plan_write_at(&state, asked.spot.clone(), asked.who, asked.flags)
        };
        if let Ok(Writing::Wait(mut moved)) = plan {
            let came = self.wait_for(&mut moved, self.0.rules.deadline).await;
            came.ok_or(Errno::ETIMEDOUT)?;
        }
        Ok(())
    }

    async fn begin_copy(&self, asked: Beginning) -> Reply<Begun> {
        let Some((digest, size)) = asked.copy() else { return self.begin_now(asked) };
        let blob = self.obtain(digest, size).await?;
        let this = self.clone();
        crate::task::blocking(move || {
            let (file, staged) = this.stage()?;
            copy_bytes(&blob.file, &file, size)?;
            set_mtime(&file, UNTOUCHED)?;
            this.begin_with(asked, file, staged)
        })
        .await
    }

    fn stage(&self) -> Reply<(File, StagedPath)> {
        self.0.rooms.staging.create().map_err(|error| match error.kind() {
            Kind::NoSpace => Errno::ENOSPC,
            _ => super::errno::promised(&error),
        })
    }

    /// Begins with an empty staging file.
    pub(super) fn begin_now(&self, asked: Beginning) -> Reply<Begun> {
        let (file, staged) = self.stage()?;
        self.begin_with(asked, file, staged)
    }

    /// Begins a generation on a staging file, unless one to join has come meanwhile.
    fn begin_with(&self, asked: Beginning, file: File, staged: StagedPath) -> Reply<Begun> {
        if self.0.closing.load(Ordering::Relaxed) {
            return Err(Errno::EROFS);
        }
        let clean = Mark::of(&file)?;
        let mut state = self.0.state.lock();
        if asked.orphan {
            return self.insert(&mut state, asked, file, staged, clean);
        }
        let (who, flags, requested) = (asked.who, asked.flags, asked.requested);
        if state.path_of(&asked.spot).is_none() && !asked.last {
            return Err(state.why_no_path(&asked.spot));
        }
        let asked = match self.plan_write_at(&state, asked.spot.clone(), who, flags) {
            // The kernel does not look again for who creates a file.
            Err(Errno::ESTALE) if asked.creates() => return Err(Errno::EEXIST),
            Err(Errno::ESTALE) if asked.last => Beginning { orphan: true, ..asked },
            Err(errno) => return Err(errno),
            // `begin_when_possible` waits for it.
            Ok(Writing::Wait(_) | Writing::Orphan(_)) => return Err(MOVED),
            Ok(Writing::Join(_)) if requested.is_none() && flags.exclusive => {
                return Err(Errno::EEXIST);
            }
            Ok(Writing::Join(id)) => {
                let home = state.generations.get(&id).ok_or(Errno::ESTALE)?.home();
                let ino = requested.unwrap_or(home);
                let opened =
                    self.join(&mut state, ino, id, Wish { who, flags, last: asked.last })?;
                return Ok(Begun { ino, opened });
            }
            Ok(Writing::Begin { base: now, spot }) => {
                let moved = match (&asked.base, &now) {
                    (Some(one), Some(two)) => !same_content(one, two),
                    (None, None) => false,
                    _ => true,
                };
                if moved && now.is_some() && flags.exclusive && requested.is_none() {
                    return Err(Errno::EEXIST);
                }
                let gone =
                    moved && now.is_none() && state.private_generations(&spot).next().is_none();
                if gone && requested.is_some() {
                    // Whether to make it again, only the program knows.
                    if !asked.last {
                        return Err(Errno::ESTALE);
                    }
                    Beginning { orphan: true, ..asked }
                } else if moved && !flags.truncate && asked.tries > 0 {
                    return Err(MOVED);
                } else {
                    Beginning { base: now, ..asked }
                }
            }
        };
        self.insert(&mut state, asked, file, staged, clean)
    }

    fn insert(
        &self,
        state: &mut State,
        asked: Beginning,
        file: File,
        staged: StagedPath,
        clean: Mark,
    ) -> Reply<Begun> {
        if asked.leads_elsewhere(state) {
            return Err(Errno::ESTALE);
        }
        let (stand, creates) = (asked.stand(state), asked.creates());
        let Beginning { spot, base, who, flags, attrs, orphan, .. } = asked;
        let empty_base = base.as_ref().and_then(Entry::content).is_some_and(|(_, size)| size == 0);
        let id = state.fresh_generation();
        let (ino, guest_on) = match stand {
            Stand::Fresh => (state.fresh_ino(), None),
            Stand::Promised(ino) | Stand::InPlace(ino) => (ino, None),
            Stand::Guest(on) => (state.fresh_ino(), Some(on)),
        };
        let mut generation = Generation {
            ino,
            place: (!orphan).then(|| spot.clone()),
            source: Arc::new(Source { backing: Arc::new(Backing::new(file)), _pin: None }),
            staged: Some(staged),
            stage: Stage::Private,
            members: HashSet::from([who]),
            invited: HashSet::new(),
            guest_on,
            guest: guest_on.is_some(),
            closed_once: false,
            writers: 0,
            fresh: (base.is_none() && creates) || (flags.truncate && !empty_base),
            empties: flags.truncate && base.is_some() && !empty_base,
            clean,
            attrs: base.as_ref().map(|entry| entry.attrs.clone()).or(attrs).unwrap_or_default(),
            attrs_moved: false,
            link: base.as_ref().and_then(|entry| entry.link).filter(|_| !orphan),
            synced: false,
            published: None,
            hold: None,
            settling: false,
            publishing: Arc::new(Mutex::new(())),
            moved: watch::Sender::new(Stage::Private),
        };
        // An empty file that is emptied again is the file that it was: lock files are opened so all the time.
        if flags.truncate && !empty_base {
            generation.attrs.mtime = self.now();
        }
        if let Stand::InPlace(_) = stand {
            let entry = base.expect("an empty base was found above");
            let digest = Digest::empty();
            generation.published = Some(Published { entry, changed_ms: 0, digest, mark: clean });
            generation.stage = Stage::Published;
            if let Some(inode) = state.inodes.get_mut(&ino) {
                inode.node = Node::Generation(id);
                inode.mode.get_or_insert(Mode::Direct);
                inode.source = None;
            }
        } else {
            let inode = state.inodes.entry(ino);
            let inode = inode.or_insert_with(|| Inode::new(Node::Generation(id), None));
            inode.node = Node::Generation(id);
            if orphan {
                inode.last = Some(spot.clone());
            } else {
                inode.places.push(spot.clone());
                state.slots.entry(spot.clone()).or_default().generations.push(id);
            }
            if base.is_none()
                && !orphan
                && let Some(dir) = state.directory_path(spot.0)
            {
                self.0.rooms.ledger.touch_directory(&dir);
            }
        }
        if let Some(group) = generation.link {
            state.linked.entry(group).or_default().push(id);
        }
        state.generations.insert(id, generation);
        self.0.begun.notify_one();
        let on = guest_on.unwrap_or(ino);
        Ok(Begun { ino: on, opened: attach_writer(self, state, on, id, who, flags) })
    }

    /// Begins a generation without a handle, for an operation that publishes it itself.
    pub(super) async fn begin_detached(
        &self,
        ino: Ino,
        who: Who,
        flags: OpenFlags,
    ) -> Reply<GenId> {
        let spot = {
            let state = self.0.state.lock();
            state.place_to_write(state.owner(ino)).ok_or(Errno::ESTALE)?
        };
        let path = self.0.state.lock().path_of(&spot).ok_or(Errno::ESTALE)?;
        let base = self.seen(&path).map(|seen| seen.entry).ok_or(Errno::ESTALE)?;
        let asked = Beginning { base: Some(base), ..Beginning::of(spot, who, flags, None) };
        let begun = self.begin_when_possible(asked).await?;
        let mut state = self.0.state.lock();
        let Some(file) = state.files.remove(&begun.opened.handle) else {
            return Err(Errno::ESTALE);
        };
        if let Some(inode) = state.inodes.get_mut(&file.ino) {
            inode.opens -= 1;
        }
        state.settle_inode(file.ino);
        let id = file.generation.ok_or(Errno::ESTALE)?;
        let writes = state.files.values().any(|f| f.generation == Some(id) && f.who == who);
        if let Some(generation) = state.generations.get_mut(&id) {
            generation.writers -= 1;
            if generation.writers > 0 && !writes {
                // Others write it. Who has nothing open takes no part, but for the look that is to follow.
                generation.members.remove(&who);
                generation.invited.insert(who);
            }
        }
        Ok(id)
    }
}

/// How often a writer that waits for room looks again.
const ROOM_POLL: std::time::Duration = std::time::Duration::from_millis(20);

/// Copies the first `size` bytes of one file to another.
pub(super) fn copy_bytes(from: &File, to: &File, size: u64) -> std::io::Result<()> {
    let mut at = 0;
    while at < size {
        let (mut read_at, mut write_at) = (at, at);
        let want = usize::try_from(size - at).unwrap_or(usize::MAX);
        let done =
            rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), want)?;
        if done == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        at += done as u64;
    }
    Ok(())
}
