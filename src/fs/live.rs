//! Live files: files that a process on this node can still write.
//!
//! A live file has its bytes in staging and an inode of its own. A close publishes it. It stays
//! live until its last writable handle is released, or a moment longer; only then its bytes become
//! a blob. Owns the table of live files and their counters. Must never look a name up. Must never
//! touch the disk except to examine its own file: with passthrough the daemon sees no write, so only
//! the file itself shows what was written.

mod baseline;
mod lineage;
mod mapped;
mod settling;
mod writers;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use self::mapped::MappedWrites;
use self::settling::Settling;
use self::writers::LiveWriters;
use super::inode::{DirEntryKey, LiveId, Published, Source};
use super::kept::Kept;
use super::seen::Seen;
use super::who::Who;
use crate::digest::Digest;
use crate::hashing::{FastMap, FastSet};
use crate::local::{Lodged, StagedPath};
use crate::namespace::{Attrs, Entry, EntryKind, Time};
use crate::stamp::Stamp;
use crate::sync::{HOLD_MAX, HoldToken};
use hearthfs_mount::{Caller, Ino, Reply};

pub(super) use self::baseline::{Baseline, BeginsAs};
pub(super) use self::lineage::Lineage;

/// The unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// What a staging file looked like at some moment. Equal marks mean that nothing was written in
/// between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Mark {
    pub(super) size: u64,
    mtime: (i64, i64),
}

impl Mark {
    pub(super) fn of(file: &File) -> io::Result<Self> {
        Self::and_disk_bytes(file).map(|(mark, _)| mark)
    }

    /// Returns the mark of an empty file that was made in staging, and that nothing has touched.
    pub(super) fn of_new(staged: &StagedPath) -> Self {
        Self { size: 0, mtime: staged.made() }
    }

    /// Returns the mark, and how many bytes the file takes on the disk.
    pub(super) fn and_disk_bytes(file: &File) -> io::Result<(Self, u64)> {
        let meta = file.metadata()?;
        let mark = Self { size: meta.len(), mtime: (meta.mtime(), meta.mtime_nsec()) };
        Ok((mark, meta.blocks().saturating_mul(BLOCK_BYTES)))
    }

    /// Returns the mark of the same moment with another size.
    pub(super) fn with_size(self, size: u64) -> Self {
        Self { size, ..self }
    }

    /// Returns a mark of this size that no file has.
    pub(super) fn of_no_file(self) -> Self {
        Self { mtime: (0, -1), ..self }
    }

    pub(super) fn mtime(&self) -> Time {
        Time { secs: self.mtime.0, nanos: self.mtime.1 as u32 }
    }
}

/// The version of a live file that a close has published. Its bytes are those of the staging file
/// as long as that file looks like `mark`.
#[derive(Debug)]
pub(super) struct PublishedVersion {
    pub(super) published: Published,
    pub(super) digest: Digest,
    pub(super) mark: Mark,
    /// The bytes, if the version is small. The writer may overwrite its file before they are a
    /// blob.
    pub(super) kept: Option<Kept>,
    /// When it was published, by the monotonic clock.
    pub(super) since: Duration,
    /// Until when it stays in staging, because the disk has refused to make it a blob.
    pub(super) put_off_until: Option<Duration>,
    /// Another descriptor was closed after the one that published.
    pub(super) closed_again: bool,
    /// The last handle was released, and only the end of the live file is left. It stays an entry
    /// even if it loses its name before that.
    pub(super) released: bool,
    /// The version is empty and was never written, perhaps because only a duplicate of the
    /// descriptor was closed. It is not announced to other nodes yet.
    pub(super) hold: Option<HoldToken>,
    /// Makes the content count as present while it is in staging.
    pub(super) _lodged: Lodged,
}

/// A file that was written and must be given the modification time `mtime`.
#[derive(Debug)]
#[must_use]
pub(super) struct MtimeToSet {
    source: Arc<Source>,
    mtime: Time,
}

impl MtimeToSet {
    /// Sets the time. This uses the disk, so the state must not be locked meanwhile. The caller has
    /// the turn, so nothing of the file is published in between.
    pub(super) fn carry_out(self) -> io::Result<()> {
        set_mtime(self.source.backing.file(), self.mtime)
    }
}

/// The stage of a live file.
#[derive(Debug)]
pub(super) enum Stage {
    /// Only its writers see its bytes. An earlier version may have been published.
    Writing,
    /// Its bytes are those of an entry.
    Published(Box<PublishedVersion>),
    /// A writer was killed, or the disk was full. It will never be an entry.
    Dropped,
}

/// A file that can still be written.
#[derive(Debug)]
pub(super) struct Live {
    /// The inode by which the kernel knows it.
    pub(super) ino: Ino,
    /// Where it will be published; `None` after an unlink or a replacement.
    place: Option<DirEntryKey>,
    pub(super) source: Arc<Source>,
    /// The name of its file in staging.
    pub(super) staged: Option<StagedPath>,
    pub(super) stage: Stage,
    pub(super) writers: LiveWriters,
    /// What it was before its writers wrote anything to it.
    pub(super) baseline: Baseline,
    /// The versions before it.
    pub(super) lineage: Lineage,
    /// Attributes. `mtime` is valid as long as nothing was written.
    pub(super) attrs: Attrs,
    /// Attributes were changed, so it is published even if nothing is written.
    pub(super) attrs_moved: bool,
    /// The hard links that will get the new content, too.
    pub(super) link: Option<Stamp>,
    /// `fsync` was called, so the publish has to be durable as well.
    pub(super) synced: bool,
    pub(super) mapped: MappedWrites,
    pub(super) settling: Settling,
}

/// What the release of the last writing handle leaves to do.
#[derive(Debug)]
pub(super) struct Last {
    pub(super) id: LiveId,
    /// The size of its file.
    pub(super) bytes: u64,
    /// Its bytes will never be an entry.
    pub(super) ends: bool,
    /// Bytes were written after the last publish, by a process that has closed a descriptor.
    pub(super) late: bool,
    /// Bytes were written and no descriptor was ever closed.
    pub(super) torn: bool,
}

/// The beginning of a live file.
pub(super) struct Start {
    pub(super) ino: Ino,
    pub(super) source: Arc<Source>,
    pub(super) staged: StagedPath,
    pub(super) who: Who,
    pub(super) caller: Caller,
    pub(super) baseline: Baseline,
    pub(super) lineage: Lineage,
    pub(super) attrs: Attrs,
    pub(super) link: Option<Stamp>,
}

impl Live {
    pub(super) fn new(start: Start) -> Self {
        Self {
            ino: start.ino,
            place: None,
            source: start.source,
            staged: Some(start.staged),
            stage: Stage::Writing,
            writers: LiveWriters::new(start.who, start.caller),
            baseline: start.baseline,
            lineage: start.lineage,
            attrs: start.attrs,
            attrs_moved: false,
            link: start.link,
            synced: false,
            mapped: MappedWrites::default(),
            settling: Settling::new(),
        }
    }

    /// Returns where it will be published.
    pub(super) fn place(&self) -> Option<&DirEntryKey> {
        self.place.as_ref()
    }

    /// Returns the file that holds its bytes.
    pub(super) fn file(&self) -> &File {
        self.source.backing.file()
    }

    /// Returns its published version, while its bytes are those of that version.
    pub(super) fn version(&self) -> Option<&PublishedVersion> {
        if let Stage::Published(version) = &self.stage { Some(version) } else { None }
    }

    pub(super) fn version_mut(&mut self) -> Option<&mut PublishedVersion> {
        if let Stage::Published(version) = &mut self.stage { Some(version) } else { None }
    }

    pub(super) fn is_dropped(&self) -> bool {
        matches!(self.stage, Stage::Dropped)
    }

    /// Reports whether none of its versions is an entry now.
    pub(super) fn is_private(&self) -> bool {
        matches!(self.stage, Stage::Writing)
    }

    /// Reports whether its published version is not announced to other nodes yet.
    pub(super) fn is_held(&self, now: Duration) -> bool {
        self.version().is_some_and(|version| {
            version.hold.is_some() && now.saturating_sub(version.since) < HOLD_MAX
        })
    }

    /// Returns what its file looked like at the last publish, or at its beginning.
    pub(super) fn mark(&self) -> Mark {
        self.version().map_or(self.baseline.mark(), |version| version.mark)
    }

    /// Reports whether bytes were written that no close has published.
    pub(super) fn wrote(&self) -> bool {
        self.has_written(Mark::of(self.file()).ok())
    }

    /// Reports whether bytes were written that no close has published, if its file looks like
    /// `now`. With `None`, for a file that cannot be examined, they count as written.
    pub(super) fn has_written(&self, now: Option<Mark>) -> bool {
        now != Some(self.mark())
    }

    /// Reports whether a close would publish it, if its file looks like `now`. With `None`, for a
    /// file that cannot be examined, it would.
    pub(super) fn is_pending(&self, now: Option<Mark>) -> bool {
        let fresh = self.baseline.is_fresh() && self.version().is_none();
        fresh || self.attrs_moved || self.has_written(now)
    }

    /// Measures what its file takes on the disk. Returns whether it has grown.
    pub(super) fn measure(&self) -> bool {
        Mark::and_disk_bytes(self.file()).is_ok_and(|(_, bytes)| self.note_disk_bytes(bytes))
    }

    /// Stores a size on the disk that was just measured. Returns whether it has grown.
    pub(super) fn note_disk_bytes(&self, bytes: u64) -> bool {
        self.staged.as_ref().is_some_and(|staged| staged.note_bytes(bytes))
    }

    /// Moves on to another stage and wakes those that wait for that.
    pub(super) fn set_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.settled();
    }

    /// Lets others share its bytes again, and wakes those that wait for that.
    pub(super) fn settled(&mut self) {
        self.settling.end();
    }

    /// Wakes those that wait for it.
    pub(super) fn wake(&self) {
        self.settling.wake();
    }

    /// Makes it go on as if it had begun from its published version, which is preserved now.
    pub(super) fn part(&mut self) {
        if let Stage::Published(version) = std::mem::replace(&mut self.stage, Stage::Writing) {
            self.baseline = Baseline::new(BeginsAs::Copy, version.mark, Some(version.published));
        }
        self.settled();
    }

    /// Reports whether it affects what its name has now: it has a writer, or it is the same file. A
    /// file that was closed and replaced does not, even before its RELEASE has arrived.
    pub(super) fn concerns(&self, seen: Option<&Seen>) -> bool {
        self.writers.has_open() || self.is_current(seen)
    }

    /// Reports whether its name still has the same file with the bytes that it has published last,
    /// or began from.
    pub(super) fn is_current(&self, seen: Option<&Seen>) -> bool {
        self.is_next_of(seen) && !self.is_replaced(seen)
    }

    /// Reports whether its name has other bytes than those that it has published last, or began
    /// from. They may also have come by another name of the file: that put keeps the group of hard
    /// links.
    fn is_replaced(&self, seen: Option<&Seen>) -> bool {
        let there = seen.map(|seen| &seen.entry.kind);
        self.lineage.left().is_some_and(|left| there != Some(left))
    }

    /// Reports whether its name still has the same file: the version that it began from or has
    /// published.
    pub(super) fn is_next_of(&self, seen: Option<&Seen>) -> bool {
        match seen {
            Some(seen) if self.link.is_some() => seen.entry.link == self.link,
            Some(seen) => seen.stamp == self.lineage.follows(),
            None => self.lineage.follows().is_none(),
        }
    }

    /// Reports whether its name exists because of it where nothing is published: it has a writer,
    /// or no version of it was ever published. After all have closed it, the name goes with the
    /// published version.
    pub(super) fn makes_a_name(&self) -> bool {
        let begins = self.writers.has_open() || self.lineage.follows().is_none();
        !self.is_dropped() && (begins || self.settling.is_on())
    }

    /// Reports whether it is the next version of a put, for a file with these hard links. Each name
    /// of such a file has a put of its own.
    pub(super) fn continues(&self, put: Option<Stamp>, link: Option<Stamp>) -> bool {
        if link.is_some() {
            self.link == link
        } else {
            put.is_some() && self.lineage.follows() == put
        }
    }

    /// Reports whether a process is one of its writers.
    pub(super) fn has_member(&self, who: Who) -> bool {
        who != Who::Unseen && self.writers.has_member(who)
    }

    /// Reports whether nothing can change its published bytes any more, if no handle writes it.
    pub(super) fn is_at_rest(&self) -> bool {
        let unchanged =
            |version: &PublishedVersion| !version.closed_again && version.put_off_until.is_none();
        self.version().is_some_and(unchanged) && !self.mapped.is_direct()
    }

    /// Reports whether all have closed it, and its end is still on its way.
    pub(super) fn is_ending(&self) -> bool {
        let waits = self.writers.has_handles() || self.settling.is_on();
        waits && !self.writers.has_open()
    }

    /// Returns size and mtime as `stat` reports them.
    pub(super) fn size_and_mtime(&self) -> io::Result<(u64, Time)> {
        let now = Mark::of(self.file())?;
        Ok((now.size, if now == self.mark() { self.attrs.mtime } else { now.mtime() }))
    }

    /// Returns it as an entry with this size and mtime, and without its content.
    pub(super) fn as_entry(&self, (size, mtime): (u64, Time)) -> Entry {
        let mut attrs = self.attrs.clone();
        attrs.mtime = mtime;
        if attrs.atime == Time::default() {
            attrs.atime = mtime;
        }
        Entry { kind: EntryKind::File { digest: Digest::empty(), size }, attrs, link: self.link }
    }

    /// Returns it as an entry with its present size and mtime.
    pub(super) fn entry_now(&self) -> Entry {
        self.as_entry(self.size_and_mtime().unwrap_or((0, self.attrs.mtime)))
    }

    /// Changes its attributes. Returns whether anything has changed, and what has to be done to its
    /// file.
    pub(super) fn edit_attrs(
        &mut self,
        edit: &impl Fn(&mut Attrs) -> Reply<()>,
    ) -> Reply<(bool, Option<MtimeToSet>)> {
        let now = Mark::of(self.file()).ok();
        let wrote = self.has_written(now);
        let mut before = self.attrs.clone();
        // Whatever was set before, the last write has moved the time. Programs set it back.
        if let Some(now) = now.filter(|_| wrote) {
            before.mtime = now.mtime();
        }
        let mut after = before.clone();
        edit(&mut after)?;
        let (touches, changed) = (wrote && after.mtime != before.mtime, after != before);
        self.attrs = after;
        if !touches {
            return Ok((changed, None));
        }
        // The file may get the time, and so the mark, that it had before it was written.
        let mark = self.mark().of_no_file();
        match self.version_mut() {
            Some(version) => version.mark = mark,
            None => self.baseline.set_mark(mark),
        }
        let (source, mtime) = (Arc::clone(&self.source), self.attrs.mtime);
        Ok((changed, Some(MtimeToSet { source, mtime })))
    }
}

/// All live files of this node.
#[derive(Debug, Default)]
pub(super) struct Lives {
    all: FastMap<LiveId, Live>,
    /// The live files that have a name, by the directory of the name.
    by_dir: FastMap<Ino, FastSet<LiveId>>,
    /// The live files with hard links, by group, oldest first.
    by_group: FastMap<Stamp, Vec<LiveId>>,
    next: u64,
}

impl Lives {
    pub(super) fn get(&self, id: LiveId) -> Option<&Live> {
        self.all.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: LiveId) -> Option<&mut Live> {
        self.all.get_mut(&id)
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (LiveId, &Live)> {
        self.all.iter().map(|(id, live)| (*id, live))
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Live> {
        self.all.values_mut()
    }

    /// Adds a live file without a name.
    pub(super) fn add(&mut self, live: Live) -> LiveId {
        self.next += 1;
        let id = LiveId(self.next);
        if let Some(group) = live.link {
            self.by_group.entry(group).or_default().push(id);
        }
        self.all.insert(id, live);
        id
    }

    /// Removes a live file from the table, together with its name.
    pub(super) fn remove(&mut self, id: LiveId) -> Option<Live> {
        self.set_place(id, None);
        self.set_link(id, None);
        self.all.remove(&id)
    }

    /// Gives a live file another name, or none.
    pub(super) fn set_place(&mut self, id: LiveId, place: Option<DirEntryKey>) {
        let Some(live) = self.all.get_mut(&id) else { return };
        if let Some((dir, _)) = &live.place
            && let Some(ids) = self.by_dir.get_mut(dir)
        {
            ids.remove(&id);
            if ids.is_empty() {
                self.by_dir.remove(dir);
            }
        }
        if let Some((dir, _)) = &place {
            self.by_dir.entry(*dir).or_default().insert(id);
        }
        live.place = place;
    }

    /// Puts a live file into a group of hard links, or into none.
    pub(super) fn set_link(&mut self, id: LiveId, link: Option<Stamp>) {
        let Some(live) = self.all.get_mut(&id) else { return };
        if let Some(group) = live.link
            && let Some(ids) = self.by_group.get_mut(&group)
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_group.remove(&group);
            }
        }
        if let Some(group) = link {
            self.by_group.entry(group).or_default().push(id);
        }
        live.link = link;
    }

    /// Yields the live files whose names are in a directory.
    pub(super) fn in_directory(&self, dir: Ino) -> impl Iterator<Item = &Live> {
        self.by_dir.get(&dir).into_iter().flatten().filter_map(|id| self.all.get(id))
    }

    /// Returns the live files of a group of hard links, oldest first.
    pub(super) fn of_group(&self, group: Option<Stamp>) -> &[LiveId] {
        group.and_then(|group| self.by_group.get(&group)).map_or(&[], Vec::as_slice)
    }

    /// Reports whether any live file has hard links.
    pub(super) fn has_groups(&self) -> bool {
        !self.by_group.is_empty()
    }
}

/// The modification time of a copy that was not written to. No clock gives this time, so any write
/// shows, however soon it follows.
pub(super) const UNTOUCHED: Time = Time { secs: 1, nanos: 1 };

/// Sets a file's modification time.
pub(super) fn set_mtime(file: &File, mtime: Time) -> io::Result<()> {
    let at = if mtime.secs >= 0 {
        UNIX_EPOCH + Duration::new(mtime.secs as u64, mtime.nanos)
    } else {
        UNIX_EPOCH - Duration::from_secs(mtime.secs.unsigned_abs())
            + Duration::from_nanos(u64::from(mtime.nanos))
    };
    let at: SystemTime = at;
    file.set_times(std::fs::FileTimes::new().set_modified(at))
}

/// Copies the first `size` bytes of one file to another.
pub(super) fn copy_bytes(from: &File, to: &File, size: u64) -> io::Result<()> {
    let mut at = 0;
    while at < size {
        let (mut read_at, mut write_at) = (at, at);
        let want = usize::try_from(size - at).unwrap_or(usize::MAX);
        let done =
            rustix::fs::copy_file_range(from, Some(&mut read_at), to, Some(&mut write_at), want)?;
        if done == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += done as u64;
    }
    Ok(())
}
