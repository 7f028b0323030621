//! The works of one program on one directory, as system calls.
//!
//! Owns what is timed. Must never time what a program would not do: paths are prepared beforehand,
//! and `before` warms up a work.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::bodies::{Bodies, KIND_BIT, SIZE_MAX};
use crate::clock::timed;
use crate::options::Counts;
use crate::unit::{self, Together};

pub(crate) const KIB: usize = 1024;
/// The flags with which a program creates a file in place.
const MAKE: OFlags = OFlags::WRONLY.union(OFlags::CREATE).union(OFlags::TRUNC);

/// The target and the round of a work.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    /// The directory of the target.
    pub(crate) dir: &'a Path,
    /// The number of the round; if names must be new, no name is used in two rounds.
    pub(crate) round: usize,
    /// The number of the target: no two write the same bytes.
    pub(crate) target: usize,
    /// The contents of files.
    pub(crate) bodies: &'a Bodies,
    /// The amounts of everything.
    pub(crate) counts: &'a Counts,
}

impl Site<'_> {
    pub(crate) fn at(&self, name: &str) -> Result<CString> {
        path(self.dir.join(name))
    }

    fn names(&self, count: usize, name: impl Fn(usize) -> String) -> Result<Vec<CString>> {
        (0..count).map(|n| self.at(&name(n))).collect()
    }

    /// Returns a number that no other body of this run has.
    pub(crate) fn seq(&self, size: usize, n: usize) -> u64 {
        let place = ((self.target * 1000 + self.round) * 10_000 + n) as u64;
        (place << KIND_BIT) | u64::from(size.trailing_zeros())
    }
}

fn path(path: PathBuf) -> Result<CString> {
    Ok(CString::new(path.into_os_string().into_vec())?)
}

/// One kind of work, with the goals that the design sets.
#[derive(Debug)]
pub(crate) struct Work {
    /// Its row.
    pub(crate) name: &'static str,
    /// The goal for the time relative to the floor; `None` without a goal.
    pub(crate) ratio_max: Option<f64>,
    /// The most round trips that the caller waits for, per operation.
    pub(crate) trips_max: Option<f64>,
    /// Runs before each turn, untimed and uncounted.
    before: fn(&Site<'_>) -> Result<()>,
    /// One turn: one sample per operation.
    turn: fn(&Site<'_>) -> Result<Vec<Duration>>,
    /// Operations per sample.
    pub(crate) per_sample: fn(&Counts) -> usize,
    /// The number of rounds after which its names are used up; later rounds skip it.
    pub(crate) rounds_max: fn(&Counts) -> usize,
}

impl Work {
    /// Prepares a turn.
    pub(crate) fn before(&self, site: &Site<'_>) -> Result<()> {
        (self.before)(site)
    }

    /// Does one turn.
    pub(crate) fn turn(&self, site: &Site<'_>) -> Result<Vec<Duration>> {
        (self.turn)(site)
    }
}

const PLAIN: Work = Work {
    name: "",
    ratio_max: None,
    trips_max: None,
    before: |_| Ok(()),
    turn: |_| Ok(Vec::new()),
    per_sample: |_| 1,
    rounds_max: |_| usize::MAX,
};

/// All works, in the order of their rows.
pub(crate) const WORKS: &[Work] = &[
    Work {
        name: "stat, known name",
        ratio_max: Some(1.0),
        trips_max: Some(0.0),
        before: |site| stat_all(site, "small", true).map(drop),
        turn: |site| stat_all(site, "small", true),
        ..PLAIN
    },
    Work {
        name: "stat, known missing",
        ratio_max: Some(1.0),
        trips_max: Some(0.0),
        before: |site| stat_all(site, "none", false).map(drop),
        turn: |site| stat_all(site, "none", false),
        ..PLAIN
    },
    Work {
        name: "stat, unknown present",
        ratio_max: Some(1.1),
        trips_max: Some(1.0),
        before: |site| touch_dir(site, "unknown"),
        turn: |site| stat_all(site, &format!("unknown/{}", site.round), true),
        rounds_max: |counts| counts.rounds_all(),
        ..PLAIN
    },
    Work {
        name: "stat, unknown missing",
        ratio_max: Some(1.1),
        trips_max: Some(1.0),
        before: |site| touch_dir(site, "small"),
        turn: |site| stat_all(site, &format!("small/absent-{}", site.round), false),
        ..PLAIN
    },
    Work {
        before: |site| read_all(site, 8 * KIB).map(drop),
        ..read_work("open+read+close 8 KiB", 1.15, |site| read_all(site, 8 * KIB))
    },
    Work {
        before: |site| read_all(site, 256 * KIB).map(drop),
        ..read_work("open+read+close 256 KiB", 1.1, |site| read_all(site, 256 * KIB))
    },
    Work {
        before: |site| read_all(site, 4096 * KIB).map(drop),
        ..read_work("open+read+close 4 MiB", 1.05, |site| read_all(site, 4096 * KIB))
    },
    Work {
        name: "the same 8 KiB, unknown name",
        before: |site| touch_dir(site, "fresh"),
        turn: read_fresh,
        rounds_max: |counts| counts.rounds_all(),
        ..PLAIN
    },
    write_work("create+write+close 8 KiB", 1.5, |site| write_all(site, 8 * KIB)),
    write_work("create+write+close 256 KiB", 1.3, |site| write_all(site, 256 * KIB)),
    write_work("create+write+close 4 MiB", 1.1, |site| write_all(site, 4096 * KIB)),
    Work {
        name: "temporary+rename 8 KiB",
        ratio_max: Some(1.5),
        trips_max: Some(8.0),
        before: |site| touch_dir(site, "renamed"),
        turn: rename_all,
        ..PLAIN
    },
    Work {
        name: "list+stat, names unknown",
        ratio_max: Some(1.1),
        before: |site| touch_dir(site, "list"),
        turn: |site| list(site, site.round),
        per_sample: |counts| counts.listed,
        rounds_max: |counts| counts.lists,
        ..PLAIN
    },
    Work {
        name: "list+stat, names known",
        ratio_max: Some(1.1),
        before: |site| list(site, 0).map(drop),
        turn: |site| list(site, 0),
        per_sample: |counts| counts.listed,
        ..PLAIN
    },
    Work {
        name: "eight files, read",
        before: |site| unit::read_all(site, Together::No).map(drop),
        turn: |site| unit::read_all(site, Together::No),
        ..PLAIN
    },
    Work {
        name: "unit of eight files, read",
        before: |site| unit::read_all(site, Together::Unit).map(drop),
        turn: |site| unit::read_all(site, Together::Unit),
        ..PLAIN
    },
    Work {
        name: "eight files, written",
        before: |site| unit::before_write(site, Together::No),
        turn: |site| unit::write_all(site, Together::No),
        ..PLAIN
    },
    Work {
        name: "unit of eight files, written",
        before: |site| unit::before_write(site, Together::Unit),
        turn: |site| unit::write_all(site, Together::Unit),
        ..PLAIN
    },
];

const fn read_work(
    name: &'static str,
    ratio: f64,
    turn: fn(&Site<'_>) -> Result<Vec<Duration>>,
) -> Work {
    // Warmed up by the work itself: names and pages are cached afterwards. Other works make the
    // kernel ask again.
    Work { name, ratio_max: Some(ratio), trips_max: Some(1.0), turn, ..PLAIN }
}

const fn write_work(
    name: &'static str,
    ratio: f64,
    turn: fn(&Site<'_>) -> Result<Vec<Duration>>,
) -> Work {
    let before = |site: &Site<'_>| touch_dir(site, "made");
    Work { name, ratio_max: Some(ratio), trips_max: Some(5.0), before, turn, ..PLAIN }
}

/// Makes all files and directories that exist before the first round.
pub(crate) fn populate(site: &Site<'_>) -> Result<()> {
    let counts = site.counts;
    for name in ["small", "unknown", "fresh", "list", "made", "renamed", "none"] {
        std::fs::create_dir_all(site.dir.join(name))?;
    }
    let mut buffer = Vec::new();
    let mut make = |name: String, n: usize, size: usize| -> Result<()> {
        site.bodies.fill(site.seq(size, n) | 1 << 60, size, &mut buffer);
        std::fs::write(site.dir.join(&name), &buffer).with_context(|| name)
    };
    for n in 0..counts.stats {
        make(format!("small/{n}"), n, 64)?;
    }
    for size in [8 * KIB, 256 * KIB, 4096 * KIB] {
        for n in 0..counts.files(size) {
            make(format!("read-{size}-{n}"), n, size)?;
        }
    }
    for round in 0..counts.rounds_all() {
        std::fs::create_dir(site.dir.join(format!("unknown/{round}")))?;
        for n in 0..counts.stats {
            make(format!("unknown/{round}/{n}"), round * counts.stats + n, 128)?;
        }
        for n in 0..counts.files(8 * KIB) {
            make(format!("fresh/{round}-{n}"), (1 << 20) + round * 1000 + n, 8 * KIB)?;
        }
    }
    for list in 0..counts.lists {
        std::fs::create_dir(site.dir.join(format!("list/{list}")))?;
        for n in 0..counts.listed {
            make(format!("list/{list}/jit_step-{n:08}-cache"), list * counts.listed + n, 32)?;
        }
    }
    unit::populate(site)
}

/// Makes the kernel cache a directory, and the directory of this round in it, if there is one.
pub(crate) fn touch_dir(site: &Site<'_>, name: &str) -> Result<()> {
    rustix::fs::stat(site.at(name)?)?;
    match rustix::fs::stat(site.at(&format!("{name}/{}", site.round))?) {
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn stat_all(site: &Site<'_>, dir: &str, present: bool) -> Result<Vec<Duration>> {
    let separator = if dir.contains("absent") { '-' } else { '/' };
    let paths = site.names(site.counts.stats, |n| format!("{dir}{separator}{n}"))?;
    let mut samples = Vec::with_capacity(paths.len());
    for path in &paths {
        let (took, found) = timed(|| rustix::fs::stat(path));
        match found {
            Ok(_) if present => {}
            Err(Errno::NOENT) if !present => {}
            other => bail!("stat of {}: {other:?}", path.to_string_lossy()),
        }
        samples.push(took);
    }
    Ok(samples)
}

pub(crate) fn read_one(path: &CString, buffer: &mut [u8], size: usize) -> Result<Duration> {
    let (took, got) = timed(|| {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut got = 0;
        while got < size {
            match rustix::io::read(&file, &mut buffer[got..])? {
                0 => break,
                n => got += n,
            }
        }
        Ok::<_, Errno>(got)
    });
    let got = got.with_context(|| format!("read {}", path.to_string_lossy()))?;
    if got != size {
        bail!("{got} of {size} bytes of {}", path.to_string_lossy());
    }
    Ok(took)
}

fn read_all(site: &Site<'_>, size: usize) -> Result<Vec<Duration>> {
    let mut buffer = vec![0; size + 1];
    let count = site.counts.files(size);
    let paths = site.names(count, |n| format!("read-{size}-{n}"))?;
    let mut samples = Vec::new();
    for (n, path) in paths.iter().enumerate() {
        samples.push(read_one(path, &mut buffer, size)?);
        // Checks that the reads equal the writes, on every target and in every round.
        let whole = site.bodies.make(seq_at_start(site, size, n), size);
        if buffer[..size] != whole {
            bail!("other bytes in {}", path.to_string_lossy());
        }
    }
    Ok(samples)
}

/// Returns the number of a body that [`populate`] wrote, with round 0.
fn seq_at_start(site: &Site<'_>, size: usize, n: usize) -> u64 {
    let start = Site { round: 0, ..*site };
    start.seq(size, n) | 1 << 60
}

fn read_fresh(site: &Site<'_>) -> Result<Vec<Duration>> {
    let size = 8 * KIB;
    let mut buffer = vec![0; size + 1];
    let count = site.counts.files(size);
    let paths = site.names(count, |n| format!("fresh/{}-{n}", site.round))?;
    paths.iter().map(|path| read_one(path, &mut buffer, size)).collect()
}

pub(crate) fn write_one(path: &CString, body: &[u8]) -> Result<(), Errno> {
    let file = rustix::fs::open(path, MAKE | OFlags::CLOEXEC, Mode::from_raw_mode(0o644))?;
    let mut written = 0;
    while written < body.len() {
        written += rustix::io::write(&file, &body[written..])?;
    }
    // `close` reports nothing here; if a daemon lost the bytes, the reader notices.
    drop(file);
    Ok(())
}

fn write_all(site: &Site<'_>, size: usize) -> Result<Vec<Duration>> {
    let mut body = Vec::with_capacity(SIZE_MAX);
    let count = site.counts.files(size);
    let paths = site.names(count, |n| format!("made/{size}-{}-{n}", site.round))?;
    let mut samples = Vec::new();
    for (n, path) in paths.iter().enumerate() {
        site.bodies.fill(site.seq(size, n), size, &mut body);
        let (took, done) = timed(|| write_one(path, &body));
        done.with_context(|| format!("write {}", path.to_string_lossy()))?;
        samples.push(took);
    }
    Ok(samples)
}

fn rename_all(site: &Site<'_>) -> Result<Vec<Duration>> {
    let size = 8 * KIB;
    let mut body = Vec::with_capacity(size);
    let mut samples = Vec::new();
    for n in 0..site.counts.files(size) {
        let tmp = site.at(&format!("renamed/{}-{n}.tmp.{n}", site.round))?;
        let name = site.at(&format!("renamed/{}-{n}", site.round))?;
        site.bodies.fill(site.seq(size, n) | 1 << 61, size, &mut body);
        let (took, done) = timed(|| {
            write_one(&tmp, &body)?;
            rustix::fs::rename(&tmp, &name)
        });
        done.with_context(|| format!("rename to {}", name.to_string_lossy()))?;
        samples.push(took);
    }
    Ok(samples)
}

/// Lists one directory and stats its names, as `os.scandir` and `ls -l` do.
fn list(site: &Site<'_>, number: usize) -> Result<Vec<Duration>> {
    let path = site.at(&format!("list/{number}"))?;
    let (took, listed) = timed(|| -> Result<usize, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&path, flags, Mode::empty())?;
        let mut listed = 0;
        for entry in Dir::read_from(&dir)? {
            let entry = entry?;
            if !entry.file_name().to_bytes().starts_with(b".") {
                rustix::fs::statat(&dir, entry.file_name(), rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
                listed += 1;
            }
        }
        Ok(listed)
    });
    let listed = listed.with_context(|| format!("list {}", path.to_string_lossy()))?;
    if listed != site.counts.listed {
        bail!("{listed} names in {} instead of {}", path.to_string_lossy(), site.counts.listed);
    }
    Ok(vec![took])
}
