//! Publish: the moment a live file becomes the entry on this node.
//!
//! It happens in FLUSH of the last writing handle, before `close` returns. The bytes stay in
//! staging until the file ends, after the release of the last handle (see `release`). These can
//! interleave with it: other handles of the file that close at the same time (one of them publishes,
//! under the file's own lock); a rename or unlink (each takes a turn of the ledger, and so does a
//! publish); writes through a duplicated descriptor (the mark shows them).
//!
//! Keeps P1 whole-or-nothing, P2 killed-writer, P4 local-durable and P14 isolation.

use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, Handle, Reply};

use super::digested::{Digested, digest_of};
use super::filesystem::Filesystem;
use super::inode::{DirEntryKey, LiveId, Published, Source};
use super::live::{Live, Mark, PublishedVersion, Stage};
use super::seen::Seen;
use super::state::State;
use super::units::PublishedBy;
use super::who::Who;
use crate::error::{Error, Kind};
use crate::local::Lodged;
use crate::name::TreePath;
use crate::namespace::{Check, Entry, EntryKind, Op, Time};
use crate::sync::Demand;

/// Files up to this size are digested by the thread that serves the `close`. Larger files get a
/// thread of their own, so that other requests go on.
pub(super) const INLINE_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// The permission bit that lets a caller write.
const MAY_WRITE: u32 = 2;
/// How many times to examine a closed file whose name moves meanwhile.
const RENAMES_MAX: u32 = 64;

/// What a flush has to do.
enum Flush {
    /// Nothing to do.
    Nothing,
    /// A killed writer's file is gone. The kernel may still remember its name.
    Lost(Option<DirEntryKey>),
    /// What a killed writer wrote is gone. The version that it had closed before is kept.
    Kept(LiveId),
    /// This file is to be published. `held` means that it is empty and was never written; `seen` is
    /// how it looked.
    Publish { id: LiveId, held: bool, seen: Option<Mark>, durable: bool },
}

/// A closed file that is ready to be announced.
struct Closed {
    digested: Digested,
    lodged: Lodged,
    /// It is empty and was never written.
    held: bool,
    /// The check that it has passed or failed.
    checked: Option<Check>,
}

/// The result of an announcement.
enum Announced {
    /// It is over. The value says whether something was published.
    Done(bool),
    /// The file was renamed, and its new name asks for another check.
    Renamed(Closed),
}

impl Filesystem {
    pub(super) fn flush_file(&self, caller: &Caller, handle: Handle) -> Answer<()> {
        let began = self.0.rooms.clock.mono();
        let dying = self.0.callers.is_dying(caller);
        let who = self.0.callers.who(caller);
        let plan = {
            let mut state = self.0.state.lock();
            let plan = self.plan_flush(&mut state, handle, who, dying);
            if let Ok(Flush::Publish { id, .. }) = plan
                && let Some(live) = state.lives.get_mut(id)
            {
                live.writers.begin_close();
            }
            plan
        };
        let caller = *caller;
        match plan {
            Err(errno) => Err(errno).into(),
            Ok(Flush::Nothing) => Ok(()).into(),
            Ok(Flush::Lost(name)) => {
                self.doubt(name);
                Ok(()).into()
            }
            Ok(Flush::Kept(id)) => {
                let this = self.clone();
                Answer::later(crate::task::blocking(move || {
                    // What the killed writer wrote is lost in any case, and its file with it.
                    this.preserve(id).ok();
                    let name = this.lose(&mut this.0.state.lock(), id);
                    this.doubt(name);
                    Ok(())
                }))
            }
            Ok(Flush::Publish { id, held, seen, durable: false })
                if seen.is_none_or(|seen| seen.size <= INLINE_BYTES_MAX)
                    && self.has_room_for(bytes_of(seen)) =>
            {
                let done = self.publish(id, Some((&caller, who)), held);
                self.end_close(id);
                self.note_close(began);
                done.into()
            }
            Ok(Flush::Publish { id, held, seen, .. }) => {
                let this = self.clone();
                Answer::later(async move {
                    let waited = this.wait_to_publish(id, bytes_of(seen)).await;
                    let closing = this.clone();
                    let publish = move || closing.publish(id, Some((&caller, who)), held);
                    let done = match waited {
                        Ok(()) => crate::task::blocking(publish).await,
                        Err(errno) => Err(errno),
                    };
                    this.end_close(id);
                    this.note_close(began);
                    done
                })
            }
        }
    }

    fn end_close(&self, id: LiveId) {
        if let Some(live) = self.0.state.lock().lives.get_mut(id) {
            live.writers.end_close();
        }
    }

    fn note_close(&self, began: Duration) {
        let now = self.0.rooms.clock.mono();
        self.0.rooms.metrics.times.close.observe(now.saturating_sub(began));
    }

    /// Reports whether a closed file can be published at once.
    fn has_room_for(&self, bytes: u64) -> bool {
        bytes == 0 || self.0.rooms.ledger.room().is_open(Demand::Close(bytes))
    }

    /// Waits until a closed file can be published, with no lock held. Drops the file if it cannot
    /// be published.
    pub(super) async fn wait_to_publish(&self, id: LiveId, bytes: u64) -> Reply<()> {
        if bytes == 0 {
            return Ok(());
        }
        let waited = self.0.rooms.ledger.room().wait(Demand::Close(bytes)).await;
        waited.map_err(|error| self.give_up_file(id, &error))
    }

    /// Drops a closed file that cannot be published. Returns the error for its closer.
    fn give_up_file(&self, id: LiveId, error: &Error) -> Errno {
        // A full disk or backlog logs that itself, once. A program can try as often as it likes.
        if error.kind() == Kind::NoSpace {
            tracing::debug!(error = error.chain(), "a closed file could not be published");
        } else {
            tracing::warn!(error = error.chain(), "a closed file could not be published");
        }
        let name = {
            let mut state = self.0.state.lock();
            // Others still have it open, and their close tries again.
            let others = state.lives.get(id).is_some_and(|live| live.writers.has_open());
            if others { None } else { self.lose(&mut state, id) }
        };
        self.doubt(name);
        super::errno::promised(error)
    }

    fn plan_flush(&self, state: &mut State, handle: Handle, who: Who, dying: bool) -> Reply<Flush> {
        let file = state.handles.file_mut(handle).ok_or(Errno::EBADF)?;
        let opener = file.who == who || file.who == Who::Unseen || who == Who::Unseen;
        let Some(writing) = &mut file.writing else { return Ok(Flush::Nothing) };
        let id = writing.live();
        let closes = writing.note_close(opener, dying);
        if dying && !opener {
            if let Some(version) = state.lives.get_mut(id).and_then(Live::version_mut) {
                version.closed_again = true;
            }
            return Ok(Flush::Nothing);
        }
        let (closed, may_have_written) = (writing.is_closed(), writing.may_have_written());
        let Some(live) = state.lives.get_mut(id) else { return Ok(Flush::Nothing) };
        if closes {
            live.writers.close();
        }
        if let Some(version) = live.version_mut() {
            version.closed_again = true;
        }
        if dying {
            // The kernel closes what a killed program had open. That does not count as a close, and
            // nothing of it is published.
            return Ok(self.plan_death(state, id, handle, may_have_written));
        }
        if !closed {
            // A child has closed a descriptor that it inherited. The opener still has the file
            // open.
            return Ok(Flush::Nothing);
        }
        let source = &live.source;
        live.writers.note_close(|| Mark::of(source.backing.file()).ok());
        if live.writers.has_open() || live.is_dropped() || live.place().is_none() {
            return Ok(Flush::Nothing);
        }
        Ok(flush_of(id, live))
    }

    /// Decides what follows from the death of a writer. What it wrote is lost. If it wrote nothing,
    /// the other processes that have the file open go on, and a closed version stays. If another
    /// process has written to the same file, the file belongs to that process as well, and goes on.
    fn plan_death(
        &self,
        state: &mut State,
        id: LiveId,
        handle: Handle,
        may_have_written: bool,
    ) -> Flush {
        let dead = state.handles.file(handle).map(|file| file.who);
        let Some(live) = state.lives.get(id) else { return Flush::Nothing };
        if live.settling.is_on() || live.is_dropped() {
            return Flush::Nothing;
        }
        // Emptying a version that had content is a write too, although it leaves no bytes.
        let now = Mark::of(live.file()).ok();
        let empties = live.baseline.empties() && live.version().is_none();
        let wrote = !live.writers.is_as_closed(now) && (live.wrote() || empties);
        let others = state.handles.writers(id).any(|(file, writing)| {
            Some(file.who) != dead && !writing.is_closed() && writing.counts_as_writer()
        });
        let may_have_written = may_have_written || live.mapped.may_have_written();
        if wrote && may_have_written && !others {
            if live.version().is_some() {
                return Flush::Kept(id);
            }
            return Flush::Lost(self.lose(state, id));
        }
        if live.writers.has_open() || live.version().is_some() || live.place().is_none() {
            return Flush::Nothing;
        }
        match (live.writers.has_closed(), live.baseline.is_fresh()) {
            (true, _) => flush_of(id, live),
            (false, true) => Flush::Lost(self.lose(state, id)),
            // Attributes may have been set on it while its name has another version by now. No
            // close has published them.
            (false, false) => Flush::Nothing,
        }
    }

    /// Drops a file that will never be an entry, and counts it.
    pub(super) fn lose(&self, state: &mut State, id: LiveId) -> Option<DirEntryKey> {
        self.0.rooms.metrics.dropped_generations.add(1);
        let name = state.drop_live(id)?;
        if let Some(dir) = state.names.directory_path(name.0) {
            self.0.rooms.ledger.touch_directory(&dir);
        }
        Some(name)
    }

    /// Publishes a live file: digest, journal, namespace. Blocks; idempotent. `closer` is
    /// the caller that waits for it, and its process. Does nothing if the file was opened for
    /// writing meanwhile, because that open will have the last close.
    pub(super) fn publish(
        &self,
        id: LiveId,
        closer: Option<(&Caller, Who)>,
        held: bool,
    ) -> Reply<()> {
        let Some(lock) = self.0.state.lock().lives.get(id).map(|live| live.settling.lock()) else {
            return Ok(());
        };
        let publishing = lock.lock();
        let (source, synced, mark) = {
            let mut state = self.0.state.lock();
            let Some(live) = state.lives.get_mut(id) else { return Ok(()) };
            // Another close may have published since the file was examined, while this one waited.
            let now = Mark::of(live.file())?;
            let idle = live.writers.has_open() || live.is_dropped() || live.place().is_none();
            if idle || !live.is_pending(Some(now)) {
                live.settled();
                return Ok(());
            }
            live.settling.begin();
            (Arc::clone(&live.source), live.synced, now)
        };
        // Checked before all of it is read: a sparse file may have any size.
        let done = if mark.size == 0 || self.0.rooms.ledger.room().admits(mark.size) {
            self.digest_and_announce(id, closer, held, mark, &source, synced)
        } else {
            let op = "no room for a closed file below the limit of the cache";
            Err(Error::new(Kind::NoSpace, op))
        };
        let done = done.map_err(|error| self.give_up_file(id, &error));
        let place = self.0.state.lock().lives.get_mut(id).and_then(|live| {
            live.settled();
            live.place().cloned()
        });
        self.0.begun.notify_one();
        drop(publishing);
        done?;
        let promised = |error: Error| super::errno::promised(&error);
        let Some(place) = place else { return Ok(()) };
        let completed =
            self.note_published(&place, closer.map(|(caller, _)| caller), PublishedBy::Close)?;
        if completed && synced {
            self.0.rooms.ledger.sync().map_err(promised)?;
        }
        Ok(())
    }

    fn digest_and_announce(
        &self,
        id: LiveId,
        closer: Option<(&Caller, Who)>,
        held: bool,
        mark: Mark,
        source: &Source,
        synced: bool,
    ) -> Result<(), Error> {
        let file = source.backing.file();
        let digested = digest_of(file, mark, &self.0.spare)
            .map_err(|e| Error::io("digest a closed file", e))?;
        if let Some(live) = self.0.state.lock().lives.get(id) {
            live.note_disk_bytes(digested.disk_bytes);
        }
        if synced {
            file.sync_all().map_err(|e| Error::io("sync a closed file", e))?;
        }
        let lodged = self.0.rooms.blobs.lodge(digested.digest);
        let mut closed = Closed { digested, lodged, held, checked: None };
        for _ in 0..RENAMES_MAX {
            closed.checked = self.check_of_live(id);
            if let Some(check) = closed.checked {
                let content = (closed.digested.digest, closed.digested.mark.size);
                match &closed.digested.kept {
                    Some(kept) => self.examine_bytes(kept, content.0, check)?,
                    None => self.examine_file(file, content, check)?,
                }
            }
            match self.announce(id, closer, closed)? {
                Announced::Renamed(again) => closed = again,
                Announced::Done(announced) => {
                    if announced && synced {
                        self.0.rooms.ledger.sync()?;
                    }
                    return Ok(());
                }
            }
        }
        Err(Error::new(Kind::Busy, "a closed file is renamed again and again"))
    }

    /// Makes the digested bytes the entry: journal, namespace, and the inode that all processes
    /// find. Does nothing if there is nothing to announce: the file has no name any more, the
    /// writer may not replace what its name has got meanwhile, or bytes and attributes are the same
    /// as before.
    fn announce(
        &self,
        id: LiveId,
        closer: Option<(&Caller, Who)>,
        closed: Closed,
    ) -> Result<Announced, Error> {
        let ledger = &self.0.rooms.ledger;
        let (caller, who) = closer.unzip();
        let turn = ledger.begin();
        let (spot, entry, names, reappears, made) = {
            let mut state = self.0.state.lock();
            let Some(live) = state.lives.get(id).filter(|live| !live.is_dropped()) else {
                return Ok(Announced::Done(false));
            };
            // It may have been unlinked during the digest. These bytes will never be used then.
            let Some((spot, path)) = place_of(&state, live) else {
                return Ok(Announced::Done(false));
            };
            if self.check_at(&state, &spot) != closed.checked {
                return Ok(Announced::Renamed(closed));
            }
            let mut entry = entry_of(live, &closed.digested);
            let seen = self.seen(&path);
            let there = seen.as_ref().map(|seen| &seen.entry);
            let made = self.made_at(|| who.unwrap_or(Who::Unseen), &path, there, &mut entry);
            if !self.may_replace(live, &path, seen.as_ref(), caller) {
                // The live file goes on without a name.
                state.unplace_live(id);
                return Ok(Announced::Done(false));
            }
            // The kernel may remember that the name does not exist.
            let reappears = seen.is_none() && live.lineage.replaces().is_some();
            let names = self.names_with(&path, &entry);
            (spot, entry, names, reappears, made)
        };
        let Closed { digested, lodged, held, .. } = closed;
        let put = |name: &TreePath| (name.clone(), Op::Put(entry.clone()));
        let mut written = turn.write(names.iter().map(put).collect())?;
        let hold = held.then(|| written.hold());
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let stands = written.is_nothing();
        let stamps = written.apply();
        if stands {
            if let Some(live) = state.lives.get_mut(id).filter(|live| !live.is_dropped()) {
                let same = |version: &&mut PublishedVersion| version.digest == digested.digest;
                match live.version_mut().filter(same) {
                    // The bytes that an earlier close has published were written again. They are
                    // not a blob yet.
                    Some(version) => version.mark = digested.mark,
                    None => {
                        live.part();
                        live.baseline.set_mark(digested.mark);
                        live.lineage.leave(entry.kind);
                    }
                }
                live.attrs = entry.attrs;
            }
            return Ok(Announced::Done(false));
        }
        self.note_made(made);
        let stamp = stamps.first().copied();
        let changed_ms = stamp.map_or(0, |stamp| stamp.ms);
        let published = Published { entry: entry.clone(), stamp, changed_ms };
        let live = state.lives.get_mut(id);
        let Some(live) = live.filter(|live| !live.is_dropped()) else {
            return Ok(Announced::Done(true));
        };
        live.attrs = entry.attrs.clone();
        live.attrs_moved = false;
        live.lineage.publish(stamp, entry.kind.clone());
        if let Some(put) = stamp {
            self.0.beginnings.note_begun(put, live.lineage.begun());
        }
        let ino = live.ino;
        let size = digested.mark.size;
        live.set_stage(Stage::Published(Box::new(PublishedVersion {
            published,
            digest: digested.digest,
            mark: digested.mark,
            kept: digested.kept,
            since: self.0.rooms.clock.mono(),
            put_off_until: None,
            closed_again: false,
            released: false,
            hold,
            _lodged: lodged,
        })));
        let metrics = &self.0.rooms.metrics;
        metrics.published.add(1);
        metrics.published_bytes.add(size);
        let unknown = state.names.inode(ino).is_none_or(|inode| inode.lookups == 0);
        let old = state.names.bound(&spot).filter(|old| *old != ino);
        let replaces = old.and_then(|old| state.names.inode(old)).is_some_and(|i| i.lookups > 0);
        let further = bind_all(state, ino, &spot, &names, &entry);
        drop(guard);
        if replaces || unknown || reappears || !further.is_empty() {
            // The kernel never learned of this inode under these names, or it knew another inode
            // before the new version was begun. It must look again before the close returns.
            self.doubt(further.into_iter().chain([spot]));
        }
        Ok(Announced::Done(true))
    }

    /// Reports whether a writer may replace what its name has now. It may if that is nothing, the
    /// version that it began from or was renamed over, or a file that it could write to if it
    /// opened that now. The last case does not apply where the first version stays.
    fn may_replace(
        &self,
        live: &Live,
        path: &TreePath,
        seen: Option<&Seen>,
        caller: Option<&Caller>,
    ) -> bool {
        let Some(seen) = seen else { return true };
        // An implied directory has no stamp, and neither has the base of a file that began from
        // nothing.
        if seen.entry.is_directory() {
            return false;
        }
        if seen.stamp == live.lineage.replaces() {
            return true;
        }
        if seen.entry.content().is_none() || self.keeps_first(path, seen) {
            return false;
        }
        // The number of its thread may belong to another thread by now.
        let writer = Caller { tid: 0, ..live.writers.last() };
        self.permits(caller.unwrap_or(&writer), &seen.entry.attrs, MAY_WRITE).is_ok()
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
}

fn bytes_of(seen: Option<Mark>) -> u64 {
    seen.map_or(0, |seen| seen.size)
}

fn flush_of(id: LiveId, live: &Live) -> Flush {
    // The file is examined only once: each `fstat` is a system call in every close.
    let seen = Mark::of(live.file()).ok();
    if !live.is_pending(seen) {
        return Flush::Nothing;
    }
    let empty = seen.is_some_and(|seen| seen.size == 0);
    let unwritten = seen == Some(live.baseline.mark()) && live.version().is_none();
    let held = empty && unwritten && !live.baseline.empties();
    Flush::Publish { id, held, seen, durable: live.synced }
}

fn place_of(state: &State, live: &Live) -> Option<(DirEntryKey, TreePath)> {
    let spot = live.place()?.clone();
    let path = state.names.path_of(&spot)?;
    Some((spot, path))
}

fn entry_of(live: &Live, digested: &Digested) -> Entry {
    let mut attrs = live.attrs.clone();
    if digested.mark != live.mark() {
        attrs.mtime = digested.mark.mtime();
    }
    if attrs.atime == Time::default() {
        attrs.atime = attrs.mtime;
    }
    Entry {
        kind: EntryKind::File { digest: digested.digest, size: digested.mark.size },
        attrs,
        link: live.link,
    }
}

/// Makes the names lead to the new version. Returns the names other than `spot` that the kernel may
/// remember otherwise.
fn bind_all(
    state: &mut State,
    ino: hearthfs_mount::Ino,
    spot: &DirEntryKey,
    names: &[TreePath],
    entry: &Entry,
) -> Vec<DirEntryKey> {
    state.names.bind(spot, ino);
    let further: Vec<DirEntryKey> =
        names.iter().skip(1).filter_map(|name| state.names.spot_of(name)).collect();
    for other in &further {
        state.names.bind(other, ino);
    }
    state.names.set_group(entry.link, ino);
    further
}
