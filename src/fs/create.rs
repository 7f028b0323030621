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

use super::filesystem::Filesystem;
use super::generation::{Generation, Mark, Published, Stage, UNTOUCHED, set_mtime};
use super::inode::{GenId, Inode, Mode, Node, Source, Spot};
use super::lookup::{Lead, same_content};
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
/// How often a beginning is tried again.
const BEGIN_TRIES_MAX: u32 = 16;

/// A generation that is asked for.
#[derive(Clone)]
pub(super) struct Beginning {
    pub(super) spot: Spot,
    /// What the name leads to now.
    pub(super) base: Option<Entry>,
    pub(super) who: Who,
    pub(super) flags: OpenFlags,
    /// The inode that the kernel wants to open; `None` when it takes whichever it is given.
    pub(super) requested: Option<Ino>,
    /// Attributes of a new file.
    pub(super) attrs: Option<Attrs>,
}

/// A generation that has begun, with an open handle.
pub(super) struct Begun {
    pub(super) ino: Ino,
    pub(super) opened: Opened,
}

impl Beginning {
    /// Returns the content that has to be copied first.
    fn copy(&self) -> Option<(Digest, u64)> {
        if self.flags.truncate {
            return None;
        }
        self.base.as_ref()?.content().filter(|(_, size)| *size > 0)
    }

    pub(super) fn copies(&self) -> bool {
        self.copy().is_some()
    }
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
        let spot: Spot = (parent, name.into());
        let attrs = match self.attrs_for_new(parent, caller, mode) {
            Ok(attrs) => attrs,
            Err(errno) => return Err(errno).into(),
        };
        if !flags.write {
            return self.create_to_read(caller, spot, attrs, flags);
        }
        let base = match self.base_of(&spot, flags) {
            Ok(base) => base,
            Err(errno) => return Err(errno).into(),
        };
        let asked = Beginning { spot, base, who, flags, requested: None, attrs: Some(attrs) };
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

    /// Creates with `O_RDONLY`: nobody will write it, so the empty file is published at once.
    fn create_to_read(
        &self,
        caller: &Caller,
        spot: Spot,
        attrs: Attrs,
        flags: OpenFlags,
    ) -> Answer<Created> {
        let entry = Entry {
            kind: crate::namespace::Kind::File { digest: Digest::empty(), size: 0 },
            attrs,
            link: None,
        };
        let made = self.put_new(&spot, entry);
        let lead = match made {
            Ok(ino) => Lead::lasting(ino),
            Err(Errno::EEXIST) if !flags.exclusive => {
                let mut state = self.0.state.lock();
                let who = self.0.callers.who(caller);
                let led = Self::path_to_find(&state, &spot)
                    .map(|path| self.find(&mut state, &spot, &path, Some(who)));
                match led {
                    Ok(Some((lead, _))) => lead,
                    Ok(None) => return Err(Errno::ENOENT).into(),
                    Err(errno) => return Err(errno).into(),
                }
            }
            Err(errno) => return Err(errno).into(),
        };
        let opened = self.open_file(caller, lead.ino, OpenFlags { exclusive: false, ..flags });
        let this = self.clone();
        let tell = move |opened: Reply<Opened>| {
            let mut state = this.0.state.lock();
            let found = this.found(&mut state, lead, Some(&spot))?;
            Ok(Created { found, opened: opened? })
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
        for _ in 0..BEGIN_TRIES_MAX {
            self.wait_for_publish(&asked).await?;
            match self.begin_copy(asked.clone()).await {
                Err(MOVED) => {}
                begun => return begun,
            }
            let path = self.0.state.lock().path_of(&asked.spot).ok_or(Errno::ENOENT)?;
            asked.base = self.seen(&path).map(|seen| seen.entry);
            if asked.base.as_ref().is_some_and(|entry| entry.content().is_none()) {
                return Err(Errno::ESTALE);
            }
        }
        Err(Errno::ESTALE)
    }

    /// Waits until what a beginning would share is published.
    async fn wait_for_publish(&self, asked: &Beginning) -> Reply<()> {
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
        let Beginning { spot, base, who, flags, requested, attrs } = asked;
        if state.path_of(&spot).is_none() {
            return Err(state.why_no_path(&spot));
        }
        let base = match self.plan_write_at(&state, spot.clone(), who, flags)? {
            // `begin_when_possible` waits for it.
            Writing::Wait(_) => return Err(MOVED),
            Writing::Join(_) if requested.is_none() && flags.exclusive => {
                return Err(Errno::EEXIST);
            }
            Writing::Join(id) => {
                let ino = state.generations.get(&id).ok_or(Errno::ESTALE)?.home();
                let opened = self.join(&mut state, requested.unwrap_or(ino), id, who, flags)?;
                return Ok(Begun { ino, opened });
            }
            Writing::Begin { base: now, .. } => {
                let moved = match (&base, &now) {
                    (Some(one), Some(two)) => !same_content(one, two),
                    (None, None) => false,
                    _ => true,
                };
                if moved && now.is_some() && flags.exclusive && requested.is_none() {
                    return Err(Errno::EEXIST);
                }
                if moved && !flags.truncate {
                    return Err(MOVED);
                }
                now
            }
        };
        self.insert(
            &mut state,
            Beginning { spot, base, who, flags, requested, attrs },
            file,
            staged,
            clean,
        )
    }

    fn insert(
        &self,
        state: &mut State,
        asked: Beginning,
        file: File,
        staged: StagedPath,
        clean: Mark,
    ) -> Reply<Begun> {
        let Beginning { spot, base, who, flags, requested, attrs } = asked;
        let empty_base = base.as_ref().and_then(Entry::content).is_some_and(|(_, size)| size == 0);
        let bound = state.slots.get(&spot).and_then(|slot| slot.published);
        // A lock file is opened for writing by many and written by none: all must get one inode.
        let in_place = bound.filter(|ino| empty_base && is_empty_version(state, *ino));
        let guest_on = host(state, &spot, who, flags, requested).filter(|_| in_place.is_none());
        let id = state.fresh_generation();
        let ino = in_place.unwrap_or_else(|| state.fresh_ino());
        let mut generation = Generation {
            ino,
            place: Some(spot.clone()),
            source: Arc::new(Source { backing: Arc::new(Backing::new(file)), _pin: None }),
            staged: Some(staged),
            stage: Stage::Private,
            members: HashSet::from([who]),
            invited: HashSet::new(),
            guest_on,
            guest: guest_on.is_some(),
            closed_once: false,
            writers: 0,
            fresh: base.is_none() || (flags.truncate && !empty_base),
            empties: flags.truncate && base.is_some() && !empty_base,
            clean,
            attrs: base.as_ref().map(|entry| entry.attrs.clone()).or(attrs).unwrap_or_default(),
            attrs_moved: false,
            link: base.as_ref().and_then(|entry| entry.link),
            synced: false,
            published: None,
            hold: None,
            settling: false,
            begun: self.0.rooms.clock.mono(),
            publishing: Arc::new(Mutex::new(())),
            moved: watch::Sender::new(Stage::Private),
        };
        if flags.truncate {
            generation.attrs.mtime = self.now();
        }
        if in_place.is_some() {
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
            state.inodes.insert(ino, Inode::new(Node::Generation(id), Some(spot.clone())));
            state.slots.entry(spot.clone()).or_default().generations.push(id);
            if base.is_none()
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
        if requested.is_some_and(|wanted| wanted != on) {
            return Err(Errno::ESTALE);
        }
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
        let asked = Beginning { spot, base: Some(base), who, flags, requested: None, attrs: None };
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

/// Reports whether an inode is a published file without content that a generation may take over.
fn is_empty_version(state: &State, ino: Ino) -> bool {
    state.inodes.get(&ino).is_some_and(|inode| {
        matches!(&inode.node, Node::Version { entry, .. }
            if entry.content().is_some_and(|(_, size)| size == 0))
            && inode.mode != Some(Mode::Passthrough)
    })
}

/// Returns the inode on which a new generation's handle shall stand although it is another's: for a caller
/// of whom nothing is known, the one that it asked for; for one that empties what another has open and has
/// not written, the inode of that.
fn host(
    state: &State,
    spot: &Spot,
    who: Who,
    flags: OpenFlags,
    requested: Option<Ino>,
) -> Option<Ino> {
    if who == Who::Unseen && requested.is_some() {
        return requested;
    }
    let bound = state.slots.get(spot).and_then(|slot| slot.published);
    let wanted = |ino: &Ino| requested.is_none_or(|wanted| wanted == *ino);
    // An empty file whose open handles are passed through cannot be taken over, only shared.
    let passed = bound.filter(|ino| {
        state.inodes.get(ino).is_some_and(|inode| {
            matches!(&inode.node, Node::Version { entry, .. }
                if entry.content().is_some_and(|(_, size)| size == 0))
                && inode.mode == Some(Mode::Passthrough)
        })
    });
    if passed.is_some() || !flags.truncate {
        return passed.filter(wanted);
    }
    let in_place = bound.and_then(|ino| match state.inodes.get(&ino).map(|inode| &inode.node) {
        Some(Node::Generation(id)) => Some(*id),
        _ => None,
    });
    let open = state.private_generations(spot).chain(in_place);
    let ino = open
        .filter_map(|id| state.generations.get(&id))
        .filter(|generation| {
            let empty = generation.published.as_ref().is_none_or(|p| p.mark.size == 0);
            !generation.guest
                && (generation.writers > 0 || generation.published.is_some())
                && empty
                && !generation.unpublished_bytes()
        })
        .map(Generation::home)
        .last()?;
    Some(ino).filter(wanted)
}

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
