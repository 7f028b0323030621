//! Units: the eight files of one kernel as Triton writes and reads them, compared with eight independent files.
//!
//! Owns the names of both. Must make the same calls in the same order for both, so that the
//! difference is the cost of a unit.

use std::ffi::CString;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::fs::Mode;
use rustix::io::Errno;

use crate::clock::timed;
use crate::work::{KIB, Site, read_one, touch_dir, write_one};

/// Units of one turn.
const UNITS: usize = 12;
/// Size of each file but the list.
const SIZE: usize = 8 * KIB;
/// The distance between the numbers of units of different kinds, so that no two files are equal.
const APART: usize = 100;
/// The files in the order in which they are written; the last is the list that names the others.
const MEMBERS: [&str; 8] = [
    "kernel.ttir",
    "kernel.ttgir",
    "kernel.llir",
    "kernel.ptx",
    "kernel.source",
    "kernel.asm",
    "kernel.metadata",
    "__grp__kernel.json",
];

/// Whether the files form a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Together {
    /// They are in Triton's directory.
    Unit,
    /// They are in a directory of no client.
    No,
}

impl Together {
    fn dir(self) -> &'static str {
        match self {
            Self::Unit => "triton",
            Self::No => "eight",
        }
    }
}

/// Makes the directories, and the files that are read.
pub(crate) fn populate(site: &Site<'_>) -> Result<()> {
    for together in [Together::Unit, Together::No] {
        std::fs::create_dir_all(site.dir.join(together.dir()))?;
        for n in 0..UNITS {
            let dir = format!("{}/read-{n}", together.dir());
            std::fs::create_dir(site.dir.join(&dir))?;
            write(&steps(site, &dir, n + (together as usize + 2) * APART)?).with_context(|| dir)?;
        }
    }
    Ok(())
}

/// Makes the directories of one turn.
pub(crate) fn before_write(site: &Site<'_>, together: Together) -> Result<()> {
    for n in 0..UNITS {
        let dir = format!("{}/{}-{n}", together.dir(), site.round);
        std::fs::create_dir(site.dir.join(&dir))?;
        touch_dir(site, &dir)?;
    }
    Ok(())
}

/// Reads the list and then the files that it names; one sample is all eight.
pub(crate) fn read_all(site: &Site<'_>, together: Together) -> Result<Vec<Duration>> {
    let mut buffer = vec![0; SIZE + 1];
    let read_unit = |n: usize| -> Result<Duration> {
        let dir = format!("{}/read-{n}", together.dir());
        let mut all = Duration::ZERO;
        for (name, size) in MEMBERS.iter().rev().map(|name| (name, size_of(name))) {
            all += read_one(&site.at(&format!("{dir}/{name}"))?, &mut buffer, size)?;
        }
        Ok(all)
    };
    (0..UNITS).map(read_unit).collect()
}

/// Writes the files, each in a temporary directory of its own that is removed after the rename; one
/// sample is all eight.
pub(crate) fn write_all(site: &Site<'_>, together: Together) -> Result<Vec<Duration>> {
    let write_unit = |n: usize| -> Result<Duration> {
        let dir = format!("{}/{}-{n}", together.dir(), site.round);
        let steps = steps(site, &dir, n + together as usize * APART)?;
        let (took, done) = timed(|| write(&steps));
        done.with_context(|| dir)?;
        Ok(took)
    };
    (0..UNITS).map(write_unit).collect()
}

/// One file to write: its temporary directory, its name there, its final name, and its bytes.
struct Step {
    dir: CString,
    temporary: CString,
    last: CString,
    body: Vec<u8>,
}

fn size_of(name: &str) -> usize {
    if name == MEMBERS[MEMBERS.len() - 1] { list(0).len() } else { SIZE }
}

/// Returns the list of a unit's files: JSON of the same size each time.
fn list(seq: u64) -> Vec<u8> {
    format!("{{\"child_paths\": {{\"kernel\": \"{seq:020}\"}}}}").into_bytes()
}

fn steps(site: &Site<'_>, dir: &str, n: usize) -> Result<Vec<Step>> {
    let step = |(k, name): (usize, &&str)| -> Result<Step> {
        let seq = site.seq(SIZE, n * MEMBERS.len() + k) | 1 << 62;
        let mut body = Vec::new();
        if size_of(name) == SIZE {
            site.bodies.fill(seq, SIZE, &mut body);
        } else {
            body = list(seq);
        }
        let temporary = format!("{dir}/tmp.pid_{n}_{k}");
        Ok(Step {
            dir: site.at(&temporary)?,
            temporary: site.at(&format!("{temporary}/{name}"))?,
            last: site.at(&format!("{dir}/{name}"))?,
            body,
        })
    };
    MEMBERS.iter().enumerate().map(step).collect()
}

fn write(steps: &[Step]) -> Result<(), Errno> {
    for step in steps {
        rustix::fs::mkdir(&step.dir, Mode::from_raw_mode(0o755))?;
        write_one(&step.temporary, &step.body)?;
        rustix::fs::rename(&step.temporary, &step.last)?;
        rustix::fs::rmdir(&step.dir)?;
    }
    Ok(())
}
