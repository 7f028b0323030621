//! Publish: the moment a generation becomes the entry on this node.
//!
//! It happens in FLUSH of the last writing handle, before `close` returns. What can interleave: other
//! handles of the generation closing at the same time (one publishes, under the generation's own lock),
//! a rename or unlink (the place is read again under the state's lock before anything is announced), a
//! descriptor that was duplicated and goes on writing (the mark tells, and the blob is withdrawn).

use std::fs::File;
use std::io;
use std::sync::Arc;

use hearthfs_mount::{Answer, Caller, Errno, Handle, Ino, Reply};

use super::create::copy_bytes;
use super::filesystem::Filesystem;
use super::generation::{Generation, Mark, Published, Stage};
use super::inode::{GenId, Node, Source, Spot};
use super::state::{State, close_files};
use super::who::Who;
use crate::digest::Digest;
use crate::error::{Error, Kind};
use crate::local::{Adopted, Sealed, StagedPath, State as Keep, hash_file};
use crate::name::TreePath;
use crate::namespace::{Entry, Kind as EntryKind, Op, Time};

/// Files up to this size are digested by the thread that serves the `close`; larger ones move to a
/// thread of their own, so that other requests go on.
const INLINE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// How often a file that was written through a mapping after its close is published again.
const SEAL_TRIES_MAX: u32 = 3;
/// How often a file that changes while it is digested is digested again.
const DIGEST_TRIES_MAX: u32 = 4;

/// What a flush comes to.
enum Flush {
    /// Nothing to do.
    Nothing,
    /// A killed writer's file is gone; the kernel may still believe in its name.
    Lost(Option<Spot>),
    /// This generation is to be published; `held`: it is empty and was never written; `seen`: how it looked.
    Publish { id: GenId, held: bool, seen: Option<Mark>, durable: bool },
}

impl Filesystem {
    pub(super) fn flush_file(&self, caller: &Caller, handle: Handle) -> Answer<()> {
        let dying = self.0.callers.is_dying(caller);
        let who = self.0.callers.who(caller);
        let plan = {
            let mut state = self.0.state.lock();
            self.plan_flush(&mut state, handle, who, dying)
        };
        match plan {
            Err(errno) => Err(errno).into(),
            Ok(Flush::Nothing) => Ok(()).into(),
            Ok(Flush::Lost(name)) => {
                self.invalidate(name);
                Ok(()).into()
            }
            Ok(Flush::Publish { id, held, seen, durable: false })
                if seen.is_none_or(|seen| seen.size <= INLINE_BYTES_MAX) =>
            {
                self.publish(id, held, seen).into()
            }
            Ok(Flush::Publish { id, held, seen, .. }) => {
                let this = self.clone();
                Answer::later(crate::task::blocking(move || this.publish(id, held, seen)))
            }
        }
    }

    fn plan_flush(&self, state: &mut State, handle: Handle, who: Who, dying: bool) -> Reply<Flush> {
        let file = state.files.get_mut(&handle).ok_or(Errno::EBADF)?;
        let Some(id) = file.generation.filter(|_| file.write) else { return Ok(Flush::Nothing) };
        let opener = file.who == who || file.who == Who::Unseen || who == Who::Unseen;
        if dying {
            // The kernel closes what a killed program had open. If the program opened it, that is no
            // close, and nothing of it is published; an inherited descriptor says nothing either way.
            if opener {
                file.closed = true;
                return Ok(self.plan_death(state, id));
            }
            return Ok(Flush::Nothing);
        }
        file.flushed = true;
        file.closed |= opener;
        if !file.closed {
            // A child gave back what it inherited; the opener still has it.
            return Ok(Flush::Nothing);
        }
        let open_elsewhere = state.is_open_for_writing(id);
        let Some(generation) = state.generations.get_mut(&id) else { return Ok(Flush::Nothing) };
        generation.closed_once = true;
        if open_elsewhere || generation.stage == Stage::Dropped || generation.place.is_none() {
            return Ok(Flush::Nothing);
        }
        Ok(flush_of(id, generation))
    }

    /// Decides what the death of a writer comes to. What it wrote is lost; if it wrote nothing, whoever else
    /// has the file open goes on, and what somebody closed before stands.
    fn plan_death(&self, state: &mut State, id: GenId) -> Flush {
        let open_elsewhere = state.is_open_for_writing(id);
        let Some(generation) = state.generations.get(&id) else { return Flush::Nothing };
        // Emptying a version that had content is writing too, though it leaves no bytes.
        let empty_handed = !generation.wrote()
            || (generation.published.is_some() && !generation.unpublished_bytes());
        let nothing_new = generation.published.is_some() || generation.closed_once;
        if empty_handed && (open_elsewhere || nothing_new || !generation.fresh) {
            return if open_elsewhere || generation.published.is_some() || generation.place.is_none()
            {
                Flush::Nothing
            } else {
                flush_of(id, generation)
            };
        }
        Flush::Lost(self.lose(state, id))
    }

    /// Drops what will never be an entry, and says so.
    fn lose(&self, state: &mut State, id: GenId) -> Option<Spot> {
        self.0.rooms.metrics.dropped_generations.add(1);
        let name = state.drop_generation(id)?;
        if let Some(dir) = state.directory_path(name.0) {
            self.0.rooms.ledger.touch_directory(&dir);
        }
        Some(name)
    }

    /// Publishes a generation: digest, blob, journal, namespace. Blocks; idempotent. `seen` is how its file
    /// looked a moment ago, if somebody has looked. Nothing happens if somebody has opened it for writing
    /// meanwhile: then his close is the last.
    pub(super) fn publish(&self, id: GenId, held: bool, seen: Option<Mark>) -> Reply<()> {
        let lock = match self.0.state.lock().generations.get(&id) {
            Some(generation) => Arc::clone(&generation.publishing),
            None => return Ok(()),
        };
        let _one_at_a_time = lock.lock();
        let (source, staged, prior, synced) = {
            let mut state = self.0.state.lock();
            let joined = state.is_open_for_writing(id);
            let Some(generation) = state.generations.get_mut(&id) else { return Ok(()) };
            let known = match &generation.published {
                Some(published) => published.mark == Mark::of(generation.file())?,
                None => false,
            };
            if joined
                || (known && !generation.attrs_moved)
                || generation.stage == Stage::Dropped
                || generation.place.is_none()
            {
                return Ok(());
            }
            let prior = generation.published.as_ref().map(|published| published.digest);
            generation.settling = true;
            (Arc::clone(&generation.source), generation.staged.take(), prior, generation.synced)
        };
        let done = self.store(&source, staged, prior, seen).and_then(|stored| {
            let digest = stored.digest;
            let durable = if synced { self.0.rooms.blobs.sync(&digest) } else { Ok(()) };
            let announced = durable.and_then(|()| self.announce(id, stored, held));
            if !matches!(announced, Ok(true)) {
                self.take_back(&digest, &source);
            }
            if announced? && synced {
                self.0.rooms.ledger.sync()?;
            }
            Ok(())
        });
        done.map_err(|error| {
            tracing::warn!(error = error.chain(), "a closed file could not be published");
            let name = self.lose(&mut self.0.state.lock(), id);
            self.invalidate(name);
            super::errno::promised(&error)
        })?;
        if let Some(generation) = self.0.state.lock().generations.get_mut(&id) {
            generation.settled();
        }
        Ok(())
    }

    /// Digests the file and makes it a blob.
    fn store(
        &self,
        source: &Arc<Source>,
        staged: Option<StagedPath>,
        prior: Option<Digest>,
        seen: Option<Mark>,
    ) -> Result<Stored, Error> {
        let file = source.backing.file();
        let mut staged = match (staged, prior) {
            (Some(staged), _) => Some(staged),
            // It was published before and written again: the blob is taken back before it is read as one.
            (None, Some(digest)) => self.0.rooms.blobs.withdraw(&digest, file)?,
            (None, None) => None,
        };
        let (digest, mark) =
            digest_of(file, seen).map_err(|e| Error::io("digest a closed file", e))?;
        if mark.size == 0 {
            return Ok(Stored { digest, mark, staged });
        }
        let copy;
        let (path, bytes) = match staged.take() {
            Some(staged) => (staged, file),
            None => {
                // Its bytes were known under another file's name; this one's name is gone.
                let (fresh, path) = self.0.rooms.staging.create()?;
                copy_bytes(file, &fresh, mark.size)
                    .map_err(|e| Error::io("copy a closed file", e))?;
                copy = fresh;
                (path, &copy)
            }
        };
        let blobs = &self.0.rooms.blobs;
        path.note_bytes(mark.size);
        if !blobs.make_room(0) {
            return Err(Error::new(
                Kind::NoSpace,
                "no room for a closed file below the limit of the cache",
            ));
        }
        let keep = if self.0.rules.shared { Keep::Unsaved } else { Keep::Saved };
        let adopted = blobs.adopt_unsealed(path, bytes, digest, mark.size, keep)?;
        if matches!(adopted, Adopted::Known) {
            self.0.rooms.metrics.deduplicated.add(1);
        }
        Ok(Stored { digest, mark, staged: None })
    }

    /// Takes a blob back that no entry came to name. Its writer may still change it, so it would stand in
    /// the way of eviction for as long as we run.
    fn take_back(&self, digest: &Digest, source: &Source) {
        match self.0.rooms.blobs.withdraw(digest, source.backing.file()) {
            // The name goes with it; whoever has the file open goes on reading it.
            Ok(staged) => drop(staged),
            Err(error) => tracing::debug!(%digest, error = error.chain(), "a blob stays unnamed"),
        }
    }

    /// Makes the stored bytes the entry: journal, namespace, and the inode that everybody finds. Returns
    /// false when there is no name for it any more.
    fn announce(&self, id: GenId, stored: Stored, held: bool) -> Result<bool, Error> {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let Some(generation) = state.generations.get(&id) else { return Ok(false) };
        // Perhaps it was unlinked while it was digested: then nobody will ever ask for these bytes.
        let Some((spot, path)) = place_of(state, generation) else { return Ok(false) };
        let mut attrs = generation.attrs.clone();
        if stored.mark != generation.clean {
            attrs.mtime = stored.mark.mtime();
        }
        if attrs.atime == Time::default() {
            attrs.atime = attrs.mtime;
        }
        let entry = Entry {
            kind: EntryKind::File { digest: stored.digest, size: stored.mark.size },
            attrs,
            link: generation.link,
        };
        let names = self.names_with(&path, &entry);
        let ops: Vec<(TreePath, Op)> =
            names.iter().map(|name| (name.clone(), Op::Put(entry.clone()))).collect();
        let ledger = &self.0.rooms.ledger;
        let standing =
            ledger.read(|fold| fold.register(&path)).map(|register| register.last_stamp());
        let (stamps, hold) = if held {
            let (stamps, token) = ledger.publish_held(ops)?;
            (stamps, Some(token))
        } else {
            (ledger.publish(ops)?, None)
        };
        let changed_ms = stamps.first().map_or(0, |stamp| stamp.ms);
        let generation = state.generations.get_mut(&id).expect("found above, under the same lock");
        generation.staged = stored.staged;
        generation.attrs = entry.attrs.clone();
        generation.attrs_moved = false;
        generation.hold = hold;
        let (digest, mark) = (stored.digest, stored.mark);
        let ino = generation.ino;
        generation.published = Some(Published { entry: entry.clone(), changed_ms, digest, mark });
        generation.set_stage(if held { Stage::Held } else { Stage::Published });
        let metrics = &self.0.rooms.metrics;
        if stamps.first() != standing.as_ref() {
            metrics.published.add(1);
            metrics.published_bytes.add(mark.size);
        }
        let moved = settle_names(state, id, ino, &spot, &names, &entry);
        let as_guest = state.generations.get(&id).is_some_and(|g| g.guest_on.is_some());
        drop(guard);
        if as_guest || names.len() > 1 {
            // The kernel was never led to the inode of a guest, nor to this one by the further names of the
            // file, so it must look before the close returns.
            self.expire_names();
        }
        self.invalidate(moved);
        Ok(true)
    }

    /// Returns every name that gets the content: the path, and the hard links of the file.
    pub(super) fn names_with(&self, path: &TreePath, entry: &Entry) -> Vec<TreePath> {
        let mut names = vec![path.clone()];
        if let Some(group) = entry.link {
            self.0.rooms.ledger.read(|fold| {
                names.extend(fold.links(group).filter(|name| *name != path).cloned());
            });
        }
        names
    }

    pub(super) fn release_file(&self, handle: Handle) -> Answer<()> {
        let last = {
            let mut state = self.0.state.lock();
            let last = Self::plan_release(&mut state, handle);
            close_files(state);
            match last {
                Some(last) => last,
                None => return Ok(()).into(),
            }
        };
        if last.late || last.bytes > INLINE_BYTES_MAX {
            let this = self.clone();
            return Answer::later(crate::task::blocking(move || this.finish(&last)));
        }
        self.finish(&last).into()
    }

    fn plan_release(state: &mut State, handle: Handle) -> Option<Last> {
        let file = state.files.remove(&handle)?;
        if let Some(inode) = state.inodes.get_mut(&file.ino) {
            inode.opens -= 1;
        }
        let last = file.generation.filter(|_| file.write).and_then(|id| {
            let generation = state.generations.get_mut(&id)?;
            generation.writers -= 1;
            if generation.writers > 0 {
                return None;
            }
            let seen = Mark::of(generation.file()).ok();
            let late = generation.place.is_some()
                && generation.stage != Stage::Dropped
                && generation.unpublished_as(seen)
                && (file.flushed || file.closed);
            // Who opens it for writing now begins from what that publish is about to make of it.
            generation.settling |= late;
            // Written, and torn down without any close that we could see: not a close.
            let torn = !generation.leaves_no_trace()
                && generation.published.is_none()
                && !file.flushed
                && (generation.fresh || generation.wrote());
            Some(Last { id, late, torn, bytes: seen.map_or(0, |seen| seen.size) })
        });
        state.settle_inode(file.ino);
        last
    }

    /// Ends a generation whose last writing handle is gone for good.
    fn finish(&self, last: &Last) -> Reply<()> {
        let Last { id, late, torn, .. } = *last;
        let mut done = if late { self.publish(id, false, None) } else { Ok(()) };
        for _ in 0..SEAL_TRIES_MAX {
            let Some((digest, source)) = self.settle(id, torn) else { return done };
            match self.0.rooms.blobs.seal(&digest, source.backing.file()) {
                Ok(Sealed::Kept) => break,
                // Written through a mapping that outlived the descriptor: new bytes, new digest.
                Ok(Sealed::Changed) => {
                    if let Some(generation) = self.0.state.lock().generations.get_mut(&id) {
                        generation.attrs_moved = true;
                    }
                    done = self.publish(id, false, None);
                }
                Err(error) => {
                    tracing::warn!(%digest, error = error.chain(), "a blob could not be sealed");
                    break;
                }
            }
        }
        let mut state = self.0.state.lock();
        match state.generations.get_mut(&id) {
            Some(generation) if generation.writers > 0 => generation.settled(),
            Some(_) => state.end_generation(id),
            None => {}
        }
        close_files(state);
        done
    }

    /// Settles what became of a generation without writers; returns the blob that can be sealed now.
    fn settle(&self, id: GenId, torn: bool) -> Option<(Digest, Arc<Source>)> {
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let generation = state.generations.get_mut(&id)?;
        if generation.writers > 0 {
            return None;
        }
        if torn {
            let name = self.lose(state, id);
            drop(guard);
            self.invalidate(name);
            return None;
        }
        if generation.stage == Stage::Held {
            generation.hold = None;
            generation.set_stage(Stage::Published);
        }
        let Some(digest) = generation.published.as_ref().map(|published| published.digest) else {
            // Opened and never written: the entry stays what it was.
            let name = state.drop_generation(id);
            close_files(guard);
            self.invalidate(name);
            return None;
        };
        if digest.is_empty_content() {
            state.end_generation(id);
            close_files(guard);
            return None;
        }
        Some((digest, Arc::clone(&generation.source)))
    }
}

/// A generation that lost its last writing handle.
struct Last {
    id: GenId,
    /// Bytes were written after the last publish.
    late: bool,
    /// Bytes were written and no descriptor was ever closed.
    torn: bool,
    /// Its size.
    bytes: u64,
}

/// Bytes that are stored and not yet announced.
struct Stored {
    digest: Digest,
    mark: Mark,
    /// The staging file's name, where the content is empty and needs no blob.
    staged: Option<StagedPath>,
}

impl State {
    /// Reports whether somebody has a generation open for writing and has not closed it.
    pub(super) fn is_open_for_writing(&self, id: GenId) -> bool {
        self.files.values().any(|file| file.generation == Some(id) && file.write && !file.closed)
    }
}

fn flush_of(id: GenId, generation: &Generation) -> Flush {
    if generation.leaves_no_trace() {
        return Flush::Nothing;
    }
    // One look at the file: each costs a system call on the way of every close.
    let seen = Mark::of(generation.file()).ok();
    let wrote = seen != Some(generation.clean);
    let pending = match &generation.published {
        None => generation.fresh || wrote || generation.attrs_moved,
        Some(published) => seen != Some(published.mark) || generation.attrs_moved,
    };
    if !pending {
        return Flush::Nothing;
    }
    let empty = seen.is_some_and(|seen| seen.size == 0);
    let held = !wrote && empty && generation.published.is_none();
    Flush::Publish { id, held, seen, durable: generation.synced }
}

fn place_of(state: &State, generation: &Generation) -> Option<(Spot, TreePath)> {
    let spot = generation.place.clone()?;
    let path = state.path_of(&spot)?;
    (generation.stage != Stage::Dropped).then_some((spot, path))
}

/// Makes the names lead to the new version. Returns names that the kernel may know otherwise.
fn settle_names(
    state: &mut State,
    id: GenId,
    ino: Ino,
    spot: &Spot,
    names: &[TreePath],
    entry: &Entry,
) -> Vec<Spot> {
    if let Some(slot) = state.slots.get_mut(spot) {
        slot.generations.retain(|other| *other != id);
    }
    state.displace(spot, ino);
    state.bind(spot, ino);
    let mut moved = Vec::new();
    for other in names.iter().skip(1).filter_map(|name| state.spot_of(name)).collect::<Vec<_>>() {
        state.displace(&other, ino);
        state.bind(&other, ino);
        moved.push(other);
    }
    if let Some(group) = entry.link {
        state.groups.insert(group, ino);
    }
    debug_assert!(state.inodes.get(&ino).is_none_or(|i| !matches!(i.node, Node::Directory)));
    moved
}

/// Digests a whole file, again if it has moved since `seen` or moves meanwhile.
fn digest_of(file: &File, seen: Option<Mark>) -> io::Result<(Digest, Mark)> {
    let mut before = match seen {
        Some(seen) => seen,
        None => Mark::of(file)?,
    };
    let mut tries = 0;
    loop {
        let digest = hash_file(file, before.size)?;
        let after = Mark::of(file)?;
        tries += 1;
        if before == after || tries == DIGEST_TRIES_MAX {
            return Ok((digest, after));
        }
        before = after;
    }
}
