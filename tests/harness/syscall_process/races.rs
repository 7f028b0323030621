//! One process that rewrites a file, and others that read it in a loop.

use std::path::PathBuf;

use rustix::fs::OFlags;
use rustix::io::Errno;

use super::{SyscallProcess, hex};
use crate::harness::Must as _;

/// What the writer and the readers of one file share.
#[derive(Debug, Clone)]
pub(crate) struct Race {
    /// The file.
    pub(crate) path: PathBuf,
    /// A file outside the mount with the number of the last closed version.
    pub(crate) shared: PathBuf,
    /// How the writer opens; without `O_TRUNC` all versions have one length.
    pub(crate) flags: OFlags,
    /// The file is written here first and renamed to `path`, if set.
    pub(crate) temporary: Option<PathBuf>,
    /// The number of reading processes.
    pub(crate) readers: u64,
}

/// The counts of one reader.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) reads: u64,
    /// Reads that were not one whole version.
    pub(crate) torn: u64,
    /// Reads of a version older than the last one that was closed before the read began.
    pub(crate) stale: u64,
    /// Opens that found no file.
    pub(crate) missing: u64,
    /// Other errors.
    pub(crate) failed: u64,
    /// The last error.
    pub(crate) errno: u64,
}

impl SyscallProcess {
    /// Writes versions for `ms`, or until all readers are done; returns the number of the last closed one.
    pub(crate) fn rewrite(&mut self, race: &Race, ms: u64) -> Result<u64, Errno> {
        self.rewrite_for(race, ms, race.readers)
    }

    /// Writes one version, before there are readers.
    pub(crate) fn rewrite_once(&mut self, race: &Race) -> Result<(), Errno> {
        self.rewrite_for(race, 0, 0).map(|_| ())
    }

    fn rewrite_for(&mut self, race: &Race, ms: u64, readers: u64) -> Result<u64, Errno> {
        let (path, shared, flags) = (hex(&race.path), hex(&race.shared), race.flags.bits());
        let temporary = race.temporary.as_deref().map_or_else(|| "-".to_owned(), hex);
        self.limit_ms(ms + 20_000);
        let made =
            self.call(&format!("rewrite {path} {flags} {shared} {ms} {readers} {temporary}"));
        made.map(|made| made as u64)
    }

    /// Reads until the writer has ended, at most `reads` times and for at most `ms`.
    pub(crate) fn reread(&mut self, race: &Race, reads: u64, ms: u64) -> Seen {
        let same = u8::from(!race.flags.contains(OFlags::TRUNC));
        self.limit_ms(ms + 20_000);
        let request = format!("reread {} {} {same} {reads}", hex(&race.path), hex(&race.shared));
        let answer = self.ask(&request, &[]).must("read in a loop");
        let text = String::from_utf8_lossy(&answer.bytes).into_owned();
        let words: Vec<u64> = text.split(' ').map(|word| word.parse().must(&text)).collect();
        let [reads, torn, stale, missing, failed, errno] = words[..] else {
            panic!("not a reader's report: {text:?}");
        };
        Seen { reads, torn, stale, missing, failed, errno }
    }
}
