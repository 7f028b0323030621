//! Compaction: replaces the log by its live changes, for a node whose journal is the only copy.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;

use super::key::SumKey;
use super::record;
use super::segment::{self, Form, HEADER_BYTES, Segment};
use super::{Journal, Note, failed};
use crate::error::{Error, Kind, Result};
use crate::local::dir::sync_dir;
use crate::namespace::Change;

/// The log may hold this many times the live changes before it is worth compacting ...
const WORTH_FACTOR: u64 = 4;
/// ... and this many changes besides.
const WORTH_FLOOR: u64 = 10_000;
/// Changes in one record of a snapshot.
const SNAPSHOT_GROUP: usize = 256;
/// Numbers reserved for the records of a snapshot; more than any snapshot has.
const SNAPSHOT_NUMBERS: u64 = 1 << 32;

impl Journal {
    /// Reports whether the log is much longer than the `live_count` changes that still matter.
    pub fn wants_compaction(&self, live_count: u64) -> bool {
        let state = self.state.lock();
        let changes: u64 = state.segments.iter().map(Segment::changes).sum();
        changes > live_count.saturating_mul(WORTH_FACTOR).saturating_add(WORTH_FLOOR)
    }

    /// Replaces everything appended so far by the changes that `live` yields.
    ///
    /// `live` is called once, after the replaced records are fixed, and must reflect every record
    /// that was appended before. To ensure this, call [`Journal::append`] and apply its changes under
    /// one lock, and let `live` take that lock. Concurrent appends are kept. The replaced records and
    /// the snapshot are both whole at every instant, so a crash leaves one or the other.
    ///
    /// # Errors
    ///
    /// An error of the disk. The journal then holds the replaced records or the snapshot, whole.
    pub fn compact<I: IntoIterator<Item = (Change, bool)>>(
        &self,
        live: impl FnOnce() -> I,
    ) -> Result<()> {
        let _one = self.compacting.lock();
        let first = {
            let mut state = self.state.lock();
            // Later appends go to segments that the snapshot does not replace.
            state.active = None;
            state.segments.retain(|segment| !segment.is_empty());
            let first = state.next;
            state.next += SNAPSHOT_NUMBERS;
            first
        };
        let path = segment::path_of(&self.path, first, Form::Snapshot);
        let next = path.with_extension("tmp");
        let written =
            write_snapshot(&next, first, live().into_iter(), &self.key).and_then(|segment| {
                fs::rename(&next, &path)?;
                Ok(segment)
            });
        let mut snapshot = match written {
            Ok(segment) => segment,
            Err(e) => {
                drop(fs::remove_file(&next));
                return Err(failed("compact the journal", &self.path, e));
            }
        };
        snapshot.set_path(path);
        sync_dir(&self.path).map_err(|e| failed("compact the journal", &self.path, e))?;
        let mut replaced = Vec::new();
        {
            let mut state = self.state.lock();
            while state.segments.front().is_some_and(|old| old.first() < first) {
                let Some(old) = state.segments.pop_front() else { break };
                replaced.push(old.path().to_owned());
            }
            if !snapshot.is_empty() {
                state.segments.push_front(snapshot);
            }
        }
        Self::remove(&replaced)
    }
}

fn write_snapshot(
    path: &std::path::Path,
    first: u64,
    live: impl Iterator<Item = (Change, bool)>,
    key: &SumKey,
) -> io::Result<Segment> {
    let file = segment::create_file(path, segment::VERSION)?;
    let mut segment = Segment::new(path.to_owned(), first);
    let mut end = HEADER_BYTES;
    let mut seq = first;
    let mut live = live.peekable();
    while let Some((_, private)) = live.peek() {
        let private = *private;
        let mut group = Vec::new();
        while group.len() < SNAPSHOT_GROUP
            && let Some((change, _)) = live.next_if(|(_, other)| *other == private)
        {
            group.push(change);
        }
        let mut bytes = record::encode(&group, &Note { torn: Vec::new(), private })
            .map_err(|e| io::Error::other(Error::with(Kind::Internal, "encode a snapshot", e)))?;
        record::finish(&mut bytes, seq, key);
        file.write_all_at(&bytes, end)?;
        segment.add(seq, bytes.len() as u64, group.len() as u64);
        end += bytes.len() as u64;
        seq += 1;
    }
    file.sync_all()?;
    Ok(segment)
}
