//! Replay: reads at the start what earlier runs left, and repairs it.
//!
//! Reads everything before it changes anything, so that a journal of a newer format is refused unchanged.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::key::SumKey;
use super::record::{self, Payload, SegmentFind};
use super::segment::{self, Form, HEADER_BYTES, Segment};
use super::{Record, Seq, failed};
use crate::error::{Error, Kind, Result};
use crate::local::dir::sync_dir;

/// The most damaged segments kept aside; a new one replaces the oldest.
const DAMAGED_KEPT: usize = 8;

/// What earlier runs left.
#[derive(Debug)]
pub(super) struct Replayed {
    pub(super) segments: VecDeque<Segment>,
    /// The pending records, in order.
    pub(super) records: Vec<Record>,
    /// The greatest number that was ever used, as far as known.
    pub(super) last: u64,
}

/// What one segment holds.
struct Scan {
    path: PathBuf,
    first: u64,
    /// Its version; the present one if the header is damaged.
    version: u32,
    /// Good records: number, range in the file, content.
    records: Vec<(u64, std::ops::Range<usize>, Payload)>,
    /// Positions before the last good record with something other than a record, or with a record
    /// whose content is wrong.
    damaged: u64,
    /// The end of the good part, if unacknowledged bytes follow.
    torn_at: Option<u64>,
}

/// Reads all segments in `dir`, whose sums have this key.
pub(super) fn replay(dir: &Path, acked: u64, key: &SumKey) -> Result<Replayed> {
    let mut names = list(dir).map_err(|e| failed("list the journal", dir, e))?;
    names.sort_unstable_by_key(|(first, _)| *first);
    let snapshot = names.iter().rposition(|(_, form)| *form == Form::Snapshot).unwrap_or(0);
    let superseded: Vec<_> = names.drain(..snapshot).collect();
    let mut scans = Vec::new();
    for (first, form) in names {
        scans.push(scan(segment::path_of(dir, first, form), first, key)?);
    }
    tidy(dir, &superseded).map_err(|e| failed("tidy the journal", dir, e))?;
    let mut replayed = Replayed { segments: VecDeque::new(), records: Vec::new(), last: 0 };
    let mut damaged = 0;
    for scan in scans {
        damaged += scan.damaged;
        take(dir, scan, acked, &mut replayed);
    }
    if damaged > 0 {
        tracing::warn!(
            damaged,
            kept = replayed.records.len(),
            "the journal was damaged; the segments are kept in journal/damaged"
        );
    }
    Ok(replayed)
}

fn list(dir: &Path) -> io::Result<Vec<(u64, Form)>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        names.extend(entry?.file_name().to_str().and_then(segment::parse_name));
    }
    Ok(names)
}

/// Removes what a crash during compaction or repair left behind.
fn tidy(dir: &Path, superseded: &[(u64, Form)]) -> io::Result<()> {
    for (first, form) in superseded {
        fs::remove_file(segment::path_of(dir, *first, *form))?;
    }
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "tmp") {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Reads one segment.
fn scan(path: PathBuf, first: u64, key: &SumKey) -> Result<Scan> {
    let bytes = fs::read(&path).map_err(|e| failed("read the journal", &path, e))?;
    let found = segment::version_of(&bytes);
    let version = found.unwrap_or(segment::VERSION);
    let mut scan = Scan { path, first, version, records: Vec::new(), damaged: 0, torn_at: None };
    if version > segment::VERSION {
        return Err(newer(&scan.path, version));
    }
    let key = if version == 1 { &SumKey::Public } else { key };
    scan.damaged += u64::from(found.is_none() && bytes.len() > HEADER_BYTES as usize);
    let mut at = (HEADER_BYTES as usize).min(bytes.len());
    let mut last = first - 1;
    while at < bytes.len() {
        let rest = &bytes[at..];
        match record::look(rest, key) {
            SegmentFind::Good { seq, payload, length } if seq > last => {
                match record::decode(payload) {
                    Ok(Ok(held)) => scan.records.push((seq, at..at + length, held)),
                    Ok(Err(_)) => scan.damaged += 1,
                    Err(version) => return Err(newer(&scan.path, u32::from(version))),
                }
                last = seq;
                at += length;
            }
            SegmentFind::Good { length, .. } | SegmentFind::Damaged { length } => {
                scan.damaged += 1;
                at += length;
            }
            // Its payload is what is left, and is not searched for records.
            SegmentFind::Short => {
                scan.torn_at = Some(at as u64);
                break;
            }
            SegmentFind::Nothing => {
                if let Some(distance) = next_record(rest, key) {
                    scan.damaged += 1;
                    at += distance;
                } else {
                    scan.damaged += u64::from(rest.iter().any(|b| *b != 0));
                    scan.torn_at = Some(at as u64);
                    break;
                }
            }
        }
    }
    Ok(scan)
}

/// Finds the next whole record in bytes that do not begin with one.
fn next_record(bytes: &[u8], key: &SumKey) -> Option<usize> {
    let mut at = 0;
    loop {
        at += record::next_marker(&bytes[at..])?;
        let found = record::look(&bytes[at..], key);
        if matches!(found, SegmentFind::Good { .. } | SegmentFind::Damaged { .. }) {
            return Some(at);
        }
    }
}

fn newer(path: &Path, version: u32) -> Error {
    let op = format!(
        "the journal {} has format {version}, this build knows none newer than {}; run the newer \
         hearthfs, or choose another cache directory",
        path.display(),
        segment::VERSION
    );
    Error::new(Kind::Invalid, op)
}

/// Repairs a segment if necessary, and takes over its pending records.
fn take(dir: &Path, scan: Scan, acked: u64, into: &mut Replayed) {
    let last = scan.records.last().map_or(scan.first - 1, |(seq, ..)| *seq);
    into.last = into.last.max(last);
    let done = last <= acked || scan.records.is_empty();
    if let Err(e) = repair(dir, &scan, done) {
        // Its records were read, and the next start reads it the same way again.
        tracing::warn!(path = %scan.path.display(), error = %e, "the journal cannot be repaired");
    }
    if done {
        return;
    }
    let mut segment = Segment::new(scan.path, scan.first);
    for (seq, place, (changes, note)) in scan.records {
        segment.add(seq, place.len() as u64, changes.len() as u64);
        if seq > acked {
            into.records.push(Record { seq: Seq(seq), changes, note });
        }
    }
    into.segments.push_back(segment);
}

/// Repairs the file of a segment.
fn repair(dir: &Path, scan: &Scan, done: bool) -> io::Result<()> {
    if scan.damaged > 0 {
        set_aside(dir, scan)?;
    }
    if done {
        return fs::remove_file(&scan.path);
    }
    if scan.damaged > 0 {
        return rewrite(dir, scan);
    }
    match scan.torn_at {
        Some(end) => File::options().write(true).open(&scan.path)?.set_len(end),
        None => Ok(()),
    }
}

/// Keeps a copy of a damaged segment for later inspection.
fn set_aside(dir: &Path, scan: &Scan) -> io::Result<()> {
    let aside = dir.join("damaged");
    fs::create_dir_all(&aside)?;
    let mut kept = Vec::new();
    for entry in fs::read_dir(&aside)? {
        kept.push(entry?.path());
    }
    kept.sort_unstable();
    for path in kept.iter().take((kept.len() + 1).saturating_sub(DAMAGED_KEPT)) {
        fs::remove_file(path)?;
    }
    let name = scan.path.file_name().unwrap_or_default();
    let target = aside.join(name);
    match fs::hard_link(&scan.path, &target) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(_) => fs::copy(&scan.path, &target).map(drop),
        Ok(()) => Ok(()),
    }
}

/// Replaces a damaged segment by one with its good records. The damaged one stays in place until
/// the rename, so after a crash the next start repairs it again.
fn rewrite(dir: &Path, scan: &Scan) -> io::Result<()> {
    let bytes = fs::read(&scan.path)?;
    let next = scan.path.with_extension("tmp");
    let file = segment::create_file(&next, scan.version)?;
    let mut end = HEADER_BYTES;
    for (_, place, _) in &scan.records {
        let record = bytes.get(place.clone()).ok_or(io::ErrorKind::UnexpectedEof)?;
        file.write_all_at(record, end)?;
        end += record.len() as u64;
    }
    file.sync_all()?;
    fs::rename(&next, &scan.path)?;
    sync_dir(dir)
}
