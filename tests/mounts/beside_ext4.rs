//! Random programs of system calls on two mounts and on the disk's own file system: on one node
//! each call has the same result.
//!
//! Two processes take turns. Each closes what it has open for writing before the other's turn,
//! because until then others do not see it (P1). What one has open for reading stays as it was
//! (P3). There the results would differ on purpose. `HEARTHFS_TEST_SEEDS=N` runs N programs. A
//! failing program is shortened as far as possible, and printed call by call.

use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::Dice;
use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE, Stat};
use crate::harness::{
    Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes, tree, wanted,
};

const SEEDS: u64 = 30;
const ACTS: u64 = 150;
/// The most runs of a failing program to shorten it.
const SHRINKS_MAX: usize = 400;
/// How long an uploaded change may take to be visible on another node, also on a busy machine.
const SEEN_MS: u64 = 30_000;
/// Directories and files share their names, so that a call often meets an unexpected kind.
const PATHS: [&str; 10] = ["a", "b", "c", "d", "d/a", "d/b", "d/e", "d/e/a", "f", "f/a"];
const NAMES: [&str; 2] = ["user.one", "user.two"];
/// Times that a program sets are before this, those that a file system gives are after.
const EARLY_S: i64 = 1_000_000_000;

/// One step of a process: all its calls come one after another.
#[derive(Clone, Debug)]
enum Act {
    Put(usize, u64),
    PutNew(usize, u64),
    Append(usize, u64),
    /// Opens for reading and writing, writes, reads, truncates, stats, and closes.
    Update(usize, u64, u64, u64),
    Get(usize),
    /// Opens, removes the name, and reads and stats through the descriptor.
    GetRemoved(usize),
    /// Makes a file, renames it while it is open, writes more, and closes.
    RenameOpen(usize, usize, u64),
    Unlink(usize),
    Rename(usize, usize, u32),
    Link(usize, usize),
    Symlink(usize, usize),
    Readlink(usize),
    Mkdir(usize),
    Rmdir(usize),
    Chmod(usize, u32),
    Truncate(usize, u64),
    Utimes(usize, i64),
    SetXattr(usize, usize, u32),
    GetXattr(usize, usize),
    RemoveXattr(usize, usize),
    Lstat(usize),
    Stat(usize),
    List(usize),
}

/// A step, and which of the two processes takes it.
type Step = (usize, Act);

fn step(dice: &mut Dice) -> Step {
    let which = dice.below(2) as usize;
    let mut path = || dice.below(PATHS.len() as u64) as usize;
    let (one, other) = (path(), path());
    let (len, at, flag) = (dice.below(9000), dice.below(12_000), dice.below(3) as u32);
    let name = dice.below(2) as usize;
    let act = match dice.below(32) {
        0..=3 => Act::Put(one, len),
        4 => Act::PutNew(one, len),
        5 => Act::Append(one, len),
        6..=7 => Act::Update(one, at, len, dice.below(20_000)),
        8..=9 => Act::Get(one),
        10 => Act::GetRemoved(one),
        11 => Act::RenameOpen(one, other, len),
        12..=13 => Act::Unlink(one),
        14..=16 => Act::Rename(one, other, flag),
        17 => Act::Link(one, other),
        18 => Act::Symlink(one, other),
        19 => Act::Readlink(one),
        20..=22 => Act::Mkdir(one),
        23 => Act::Rmdir(one),
        24 => Act::Chmod(one, [0o600, 0o644, 0o755, 0o444][dice.below(4) as usize]),
        25 => Act::Truncate(one, at),
        26 => Act::Utimes(one, dice.below(EARLY_S as u64) as i64),
        27 => Act::SetXattr(one, name, flag),
        28 => match flag {
            0 => Act::RemoveXattr(one, name),
            _ => Act::GetXattr(one, name),
        },
        29 => Act::Lstat(one),
        30 => Act::Stat(one),
        _ => Act::List(one),
    };
    (which, act)
}

fn bytes(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|at| (seed.wrapping_mul(31).wrapping_add(at * 7) >> 3) as u8).collect()
}

/// The results of calls, in words.
struct Told(String);

impl Told {
    fn add<T: std::fmt::Debug>(&mut self, result: Result<T, Errno>) -> Option<T> {
        let text = match &result {
            Ok(value) => format!("{value:?}"),
            Err(errno) => format!("{errno:?}"),
        };
        // Long contents are compared by their digest.
        let text = match text.len() {
            0..200 => text,
            len => format!("{len} characters {}", &blake3::hash(text.as_bytes()).to_hex()[..12]),
        };
        self.0.push_str(&text);
        self.0.push(' ');
        result.ok()
    }

    /// Adds the parts of `stat` that must be equal on both file systems. The size of a directory
    /// and the time of a recent write may differ.
    fn stat(&mut self, result: Result<Stat, Errno>) {
        self.add(result.map(|stat| {
            let is_dir = stat.mode & 0o170_000 == 0o040_000;
            let time = (stat.mtime_s < EARLY_S).then_some((stat.mtime_s, stat.mtime_ns));
            let size = (!is_dir).then_some(stat.size);
            (stat.mode, stat.nlink, (stat.uid, stat.gid), size, time.filter(|_| !is_dir))
        }));
    }
}

/// Takes a step that opens a file. Each call is made only if the one before it succeeded.
fn take_open(
    process: &mut SyscallProcess,
    told: &mut Told,
    number: u64,
    at: &[PathBuf],
    act: &Act,
) {
    let read = |process: &mut SyscallProcess, told: &mut Told, fd| {
        told.add(process.read(fd, 0, 40_000));
        told.stat(process.fstat(fd));
    };
    let opened = |process: &mut SyscallProcess, told: &mut Told, path: usize, flags| {
        let fd = process.open(&at[path], flags, 0o640);
        // The number of a descriptor is irrelevant.
        told.add(fd.map(drop));
        fd.ok()
    };
    match act {
        Act::PutNew(path, len) | Act::Append(path, len) => {
            let append = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
            let flags = if matches!(act, Act::Append(..)) { append } else { CREATE_NEW };
            let Some(fd) = opened(process, told, *path, flags) else { return };
            told.add(process.write(fd, &bytes(number, *len)));
            told.add(process.close(fd));
        }
        Act::Update(path, offset, len, cut) => {
            let Some(fd) = opened(process, told, *path, OFlags::RDWR) else { return };
            told.add(process.pwrite(fd, *offset, &bytes(number, *len)));
            read(process, told, fd);
            told.add(process.ftruncate(fd, *cut));
            read(process, told, fd);
            told.add(process.close(fd));
        }
        Act::GetRemoved(path) => {
            let Some(fd) = opened(process, told, *path, OFlags::RDONLY) else { return };
            told.add(process.unlink(&at[*path]));
            read(process, told, fd);
            told.add(process.close(fd));
        }
        Act::RenameOpen(from, to, len) => {
            let Some(fd) = opened(process, told, *from, IN_PLACE) else { return };
            told.add(process.write(fd, &bytes(number, *len)));
            told.add(process.rename(&at[*from], &at[*to]));
            told.add(process.write(fd, &bytes(number + 1, *len)));
            told.add(process.close(fd));
            told.add(process.get(&at[*to]));
        }
        _ => {}
    }
}

/// Takes one step in a directory, and returns the results of its calls.
fn take(process: &mut SyscallProcess, base: &Path, number: u64, act: &Act) -> String {
    let at: Vec<PathBuf> = PATHS.iter().map(|path| base.join(path)).collect();
    let mut told = Told(String::new());
    match act {
        Act::PutNew(..)
        | Act::Append(..)
        | Act::Update(..)
        | Act::GetRemoved(_)
        | Act::RenameOpen(..) => take_open(process, &mut told, number, &at, act),
        Act::Put(path, len) => drop(told.add(process.put(&at[*path], &bytes(number, *len)))),
        Act::Get(path) => drop(told.add(process.get(&at[*path]))),
        Act::Unlink(path) => drop(told.add(process.unlink(&at[*path]))),
        Act::Rename(from, to, flags) => {
            told.add(process.rename_with(&at[*from], &at[*to], *flags));
        }
        Act::Link(from, to) => drop(told.add(process.link(&at[*from], &at[*to]))),
        Act::Symlink(target, path) => {
            let target = at[*target].file_name().must("a name").to_owned();
            told.add(process.symlink(Path::new(&target), &at[*path]));
        }
        Act::Readlink(path) => drop(told.add(process.readlink(&at[*path]))),
        Act::Mkdir(path) => drop(told.add(process.mkdir(&at[*path]))),
        Act::Rmdir(path) => drop(told.add(process.rmdir(&at[*path]))),
        Act::Chmod(path, mode) => drop(told.add(process.chmod(&at[*path], *mode))),
        Act::Truncate(path, len) => drop(told.add(process.truncate(&at[*path], *len))),
        Act::Utimes(path, s) => drop(told.add(process.utimes(&at[*path], *s, 5))),
        Act::SetXattr(path, name, flags) => {
            told.add(process.setxattr(&at[*path], NAMES[*name], &bytes(number, 20), *flags));
        }
        Act::GetXattr(path, name) => drop(told.add(process.getxattr(&at[*path], NAMES[*name]))),
        Act::RemoveXattr(path, name) => {
            told.add(process.removexattr(&at[*path], NAMES[*name]));
        }
        Act::Lstat(path) => told.stat(process.lstat(&at[*path])),
        Act::Stat(path) => told.stat(process.stat(&at[*path])),
        Act::List(path) => {
            let mut names = process.list(&at[*path]);
            if let Ok(names) = &mut names {
                names.sort();
            }
            told.add(names);
        }
    }
    told.0
}

/// The file systems to compare: a directory of the disk, and one of a mount.
struct Sides<'a> {
    disk: PathBuf,
    cluster: &'a Cluster,
    processes: [SyscallProcess; 2],
    programs: u64,
}

impl Sides<'_> {
    /// Runs a program in new directories. Returns the first step whose calls have another result on
    /// the mount, or how the trees differ.
    fn differ(&mut self, steps: &[Step]) -> Option<String> {
        self.programs += 1;
        let name = format!("p{}", self.programs);
        let (disk, mount) = (self.disk.join(&name), self.cluster.a.at(&name));
        for base in [&disk, &mount] {
            std::fs::create_dir(base).must("mkdir");
        }
        for (number, (which, act)) in steps.iter().enumerate() {
            let process = &mut self.processes[*which];
            let [wanted, told] =
                [&disk, &mount].map(|base| take(process, base, number as u64, act));
            if wanted != told {
                return Some(format!("step {number}: {wanted}on the disk, {told}on the mount"));
            }
        }
        let read = |base: &Path| tree::read(base).must("read a tree");
        let difference = tree::difference(&read(&disk), &read(&mount));
        (!difference.is_empty()).then_some(difference)
    }

    /// Removes the steps without which a failing program still fails, and returns the rest as text.
    fn shrink(&mut self, mut steps: Vec<Step>, mut why: String) -> String {
        let mut runs = 0;
        let mut at = steps.len();
        while at > 0 && runs < SHRINKS_MAX {
            at -= 1;
            let mut fewer = steps.clone();
            fewer.remove(at);
            runs += 1;
            if let Some(now) = self.differ(&fewer) {
                (steps, why) = (fewer, now);
                at = at.min(steps.len());
            }
        }
        let lines = steps.iter().map(|(which, act)| format!("  process {which}: {act:?}\n"));
        format!("{}{why}", lines.collect::<String>())
    }
}

fn beside_ext4_each_call_has_the_same_result(io: Io) {
    let seeds = wanted("HEARTHFS_TEST_SEEDS", SEEDS);
    let cluster = Cluster::two(io);
    let disk = cluster.site.dir("disk");
    let processes = std::array::from_fn(|_| SyscallProcess::new());
    let mut sides = Sides { disk, cluster: &cluster, processes, programs: 0 };
    for seed in 0..seeds {
        let mut dice = Dice::new(seed * 2 + u64::from(io == Io::Ordinary));
        let steps: Vec<Step> = (0..ACTS).map(|_| step(&mut dice)).collect();
        if let Some(why) = sides.differ(&steps) {
            panic!("seed {seed}:\n{}", sides.shrink(steps, why));
        }
    }
    // The other node shows the same.
    let disk = sides.disk.clone();
    drop(sides);
    cluster.settle();
    let wanted = tree::read(&disk).must("read a tree");
    eventually(SEEN_MS, "the other node has the same", || {
        let there = tree::read(&cluster.b.mount).map_err(|error| error.to_string())?;
        let difference = tree::difference(&wanted, &there);
        if difference.is_empty() { Ok(()) } else { Err(difference) }
    });
}
in_both_modes!(beside_ext4_each_call_has_the_same_result);
