//! The journal: changes of this node that the remote does not have yet, in the order of their closes.
//!
//! Owns `journal/`, on which P4 and P5 rest. Must never lose a record that `append` acknowledged,
//! and never yield one that was not written.
//!
//! A record is one atomic group of changes. Records lie in *segments*, files named by the sequence
//! number of their first record: `<16 hex>.log`, or `.snap` for a *snapshot*, which replaces
//! everything with smaller numbers. Numbers only grow; a run never appends to a segment of an
//! earlier one. `ack` holds the number up to which everything is uploaded, `key` what the sums of records
//! depend on.
//!
//! Keeps P4 local-durable and P5 in-order.

mod ack;
mod compact;
mod key;
mod record;
mod replay;
mod segment;

use std::collections::VecDeque;
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::ack::AckFile;
use self::key::{SumKey, SumKeyFile};
use self::segment::Segment;
use super::dir::{CacheDir, sync_dir};
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::namespace::{Change, Check};

/// A segment of this size gets no further records.
const SEGMENT_BYTES: u64 = 8 << 20;
/// An active segment below this size stays in use even if all of it is acknowledged.
const REUSE_BYTES: u64 = 1 << 20;
/// The largest record, in bytes; a rename of a directory with some hundred thousand entries fits.
const RECORD_MAX_BYTES: usize = 128 << 20;

/// The number of a record; later records have greater ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize)]
pub struct Seq(pub u64);

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One atomic group of changes, as it was appended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Its number.
    pub seq: Seq,
    /// The changes, in order.
    pub changes: Vec<Change>,
    /// What is noted with it.
    pub note: Note,
}

/// A note about a record, so that the next start makes the same decision: what of it stays on this node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Note {
    /// Incomplete contents that it puts.
    pub torn: Vec<Torn>,
    /// The mount was private: the whole record stays on this node.
    pub private: bool,
}

/// An incomplete content, with the check that it failed.
pub type Torn = (Digest, Check);

/// The journal of one cache directory.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    ack: AckFile,
    key: SumKey,
    state: Mutex<State>,
    /// A segment of this size gets no further records.
    segment_bytes: u64,
    /// Held during a compaction, so that only one runs at a time.
    compacting: Mutex<()>,
    /// Held during a sync.
    syncing: Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// All segments that hold records, oldest first; the last may be the active one.
    segments: VecDeque<Segment>,
    /// Where the next record goes; `None` if it needs a new segment.
    active: Option<Active>,
    next: u64,
    acked: u64,
    /// Segments with records that are not durable yet.
    unsynced: Vec<Arc<File>>,
    /// Whether a name in the folder is not durable yet.
    dir_unsynced: bool,
}

#[derive(Debug)]
struct Active {
    file: Arc<File>,
    end: u64,
}

impl Journal {
    /// Opens the journal and returns the pending records, in order.
    ///
    /// Damaged records are left out, and their segment is kept in `journal/damaged`.
    ///
    /// # Errors
    ///
    /// `Invalid` for a journal of a newer format; an error of the disk when a segment cannot be read or made.
    pub fn open(dir: &CacheDir) -> Result<(Self, Vec<Record>)> {
        Self::open_sized(dir, SEGMENT_BYTES)
    }

    fn open_sized(dir: &CacheDir, segment_bytes: u64) -> Result<(Self, Vec<Record>)> {
        let path = dir.path().join("journal");
        let ack = AckFile::open(&path).map_err(|e| failed("open the journal", &path, e))?;
        let acked = ack.value();
        let file =
            SumKeyFile::read(&path).map_err(|e| failed("read the key of the journal", &path, e))?;
        let key = file.key();
        let replayed = replay::replay(&path, acked, &key)?;
        // Only now: a journal of a newer format may have another kind of key.
        file.keep(&path).map_err(|e| failed("write the key of the journal", &path, e))?;
        let next = replayed.last.max(acked) + 1;
        let state = State {
            segments: replayed.segments,
            active: None,
            next,
            acked,
            unsynced: Vec::new(),
            dir_unsynced: false,
        };
        let (compacting, syncing) = (Mutex::new(()), Mutex::new(()));
        let journal =
            Self { path, ack, key, state: Mutex::new(state), segment_bytes, compacting, syncing };
        Ok((journal, replayed.records))
    }

    /// Appends one atomic group of changes.
    ///
    /// Once this has returned, the record survives SIGKILL; after [`Journal::sync`] also a power
    /// loss.
    ///
    /// # Errors
    ///
    /// `NoSpace` on a full disk, `Invalid` for a record above the limit. Nothing was appended then, and the journal
    /// stays usable.
    pub fn append(&self, changes: &[Change]) -> Result<Seq> {
        self.append_with(changes, &Note::default())
    }

    /// As [`Journal::append`], with a note.
    ///
    /// # Errors
    ///
    /// As [`Journal::append`].
    pub fn append_with(&self, changes: &[Change], note: &Note) -> Result<Seq> {
        let mut bytes = record::encode(changes, note)
            .map_err(|e| Error::with(Kind::Internal, "encode a record of the journal", e))?;
        if bytes.len() > RECORD_MAX_BYTES {
            let op = format!("a record of {} bytes, at most {RECORD_MAX_BYTES}", bytes.len());
            return Err(Error::new(Kind::Invalid, op));
        }
        let mut state = self.state.lock();
        let seq = state.next;
        record::finish(&mut bytes, seq, &self.key);
        if state.active.is_none() {
            self.begin_segment(&mut state)
                .map_err(|e| failed("begin a segment of the journal", &self.path, e))?;
        }
        let active = state.active.as_mut().expect("a segment was begun if there was none");
        // At a fixed offset, so that the next record overwrites what a failed write left behind.
        if let Err(e) = active.file.write_all_at(&bytes, active.end) {
            let end = active.end;
            if active.file.set_len(end).is_err() {
                // The next start cuts off torn bytes at the end of a segment.
                state.active = None;
            }
            return Err(failed("append to the journal", &self.path, e));
        }
        active.end += bytes.len() as u64;
        let full = active.end >= self.segment_bytes;
        state.next += 1;
        let segment = state.segments.back_mut().expect("the active segment is the last");
        segment.add(seq, bytes.len() as u64, changes.len() as u64);
        if full {
            state.active = None;
        }
        Ok(Seq(seq))
    }

    /// Makes everything that was appended before this call survive a power loss.
    ///
    /// # Errors
    ///
    /// An error of the disk; the next call retries what is not durable yet.
    pub fn sync(&self) -> Result<()> {
        // One at a time: a caller that finds nothing to do must not return before the other sync is done.
        let _one = self.syncing.lock();
        let (files, dir) = {
            let mut state = self.state.lock();
            let mut files = std::mem::take(&mut state.unsynced);
            if let Some(active) = &state.active
                && !files.iter().any(|file| Arc::ptr_eq(file, &active.file))
            {
                files.push(Arc::clone(&active.file));
            }
            (files, std::mem::take(&mut state.dir_unsynced))
        };
        let result = files.iter().try_for_each(|file| file.sync_data());
        let result = match (result, dir) {
            (Ok(()), true) => sync_dir(&self.path),
            (result, _) => result,
        };
        result.map_err(|e| {
            // The next call must retry what this one could not make durable.
            let mut state = self.state.lock();
            state.unsynced.extend(files);
            state.dir_unsynced |= dir;
            failed("sync the journal", &self.path, e)
        })
    }

    /// Records that everything up to `upto` is uploaded, and drops what is no longer needed.
    ///
    /// Acknowledged records may reappear after a crash, which is harmless.
    ///
    /// # Errors
    ///
    /// An error of the disk when the acknowledgement cannot be written, or a segment cannot be removed.
    pub fn ack(&self, upto: Seq) -> Result<()> {
        let mut state = self.state.lock();
        let upto = upto.0.min(state.next - 1);
        if upto <= state.acked {
            return Ok(());
        }
        self.ack.store(upto).map_err(|e| failed("acknowledge in the journal", &self.path, e))?;
        state.acked = upto;
        let mut done = Vec::new();
        // A small active segment stays in use: a new file for each batch costs more.
        let reused = usize::from(state.active.as_ref().is_some_and(|a| a.end < REUSE_BYTES));
        while state.segments.len() > reused
            && state.segments.front().is_some_and(|segment| segment.last() <= upto)
        {
            let Some(segment) = state.segments.pop_front() else { break };
            done.push(segment.path().to_owned());
        }
        if state.segments.is_empty() {
            // The active segment is acknowledged too; the next record starts another.
            state.active = None;
            state.unsynced.clear();
        }
        drop(state);
        Self::remove(&done)
    }

    /// Returns the number of pending records, and their bytes on disk.
    ///
    /// If a segment is acknowledged in part, its bytes are an estimate. So are its records if some
    /// were damaged. An estimate is too high rather than too low.
    pub fn backlog(&self) -> (u64, u64) {
        let state = self.state.lock();
        let parts = state.segments.iter().map(|segment| segment.after(state.acked));
        parts.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
    }

    /// Returns the number of the last record that is acknowledged.
    pub fn acked(&self) -> Seq {
        Seq(self.state.lock().acked)
    }

    /// Returns the number of the last record that was appended, by this or an earlier run.
    pub fn last(&self) -> Seq {
        Seq(self.state.lock().next - 1)
    }

    fn begin_segment(&self, state: &mut State) -> io::Result<()> {
        let (segment, file) = segment::create(&self.path, state.next)?;
        let file = Arc::new(file);
        // Bounded: a run of segments without a sync is given to the kernel to write.
        if state.unsynced.len() >= UNSYNCED_SEGMENTS {
            state.unsynced[0].sync_data()?;
            state.unsynced.remove(0);
        }
        state.unsynced.push(Arc::clone(&file));
        state.dir_unsynced = true;
        state.active = Some(Active { file, end: segment::HEADER_BYTES });
        // A segment without a record, because the write failed, is replaced by this one of the same name.
        state.segments.retain(|old| !old.is_empty());
        state.segments.push_back(segment);
        Ok(())
    }

    fn remove(paths: &[PathBuf]) -> Result<()> {
        for path in paths {
            match fs::remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(failed("drop a segment of the journal", path, e));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Unsynced segments of this run; the oldest is synced before another is started.
const UNSYNCED_SEGMENTS: usize = 16;

fn failed(what: &str, path: &Path, error: io::Error) -> Error {
    Error::io(format!("{what} ({})", path.display()), error)
}

#[cfg(test)]
mod tests;
