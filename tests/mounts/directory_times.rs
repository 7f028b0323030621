//! Times that programs give to directories: kept on both nodes until the content changes.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

use crate::harness::command::{need, run};
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes, sleep_ms};

/// Directories of the tree that is copied.
const DIRECTORIES: usize = 192;
/// `RENAME_EXCHANGE` of `renameat2(2)`.
const EXCHANGE: u32 = 2;

/// Seconds and nanoseconds of every file and directory below one, by its path.
type Times = BTreeMap<PathBuf, (i64, i64)>;

fn times_of(root: &Path) -> Times {
    let mut found = Times::new();
    let mut rest = vec![root.to_owned()];
    while let Some(path) = rest.pop() {
        let about = std::fs::symlink_metadata(&path).must("stat");
        let below = path.strip_prefix(root).must("a path below the root").to_owned();
        found.insert(below, (about.mtime(), about.mtime_nsec()));
        if about.is_dir() {
            let entries = std::fs::read_dir(&path).must("list");
            rest.extend(entries.map(|entry| entry.must("an entry").path()));
        }
    }
    found
}

/// Returns the times that differ from the original.
fn wrong(have: &Times, want: &Times) -> Vec<String> {
    let differs = |(path, time): &(&PathBuf, &(i64, i64))| have.get(*path) != Some(time);
    let told = |(path, time): (&PathBuf, &(i64, i64))| {
        format!("{}: {:?} instead of {time:?}", path.display(), have.get(path))
    };
    want.iter().filter(differs).map(told).collect()
}

/// Makes a tree whose directories have times of their own, long ago and with nanoseconds.
fn make_tree(root: &Path) {
    let mut directories = vec![root.to_owned()];
    std::fs::create_dir(root).must("mkdir");
    for n in 1..DIRECTORIES {
        let path = directories[n / 4].join(format!("d{n}"));
        std::fs::create_dir(&path).must("mkdir");
        std::fs::write(path.join("file"), n.to_string()).must("write");
        directories.push(path);
    }
    // Innermost first: a change in a directory moves its time.
    for (n, path) in directories.iter().enumerate().rev() {
        let at = UNIX_EPOCH + Duration::new(1_600_000_000 + n as u64, 123_456_000 + n as u32);
        let dir = std::fs::File::open(path).must("open a directory");
        dir.set_times(std::fs::FileTimes::new().set_modified(at).set_accessed(at)).must("utimes");
    }
}

/// Copies the tree to both nodes through one of them and compares.
fn copied(io: Io, copy: impl FnOnce(&Path, &Path)) {
    let cluster = Cluster::two(io);
    let tree = cluster.site.path().join("tree");
    make_tree(&tree);
    let want = times_of(&tree);
    let (here, there) = (cluster.a.at("copy"), cluster.b.at("copy"));
    copy(&tree, &here);
    assert_eq!(wrong(&times_of(&here), &want), [""; 0], "right after");
    cluster.a.drain();
    eventually(10_000, "the other node has the times", || {
        if !there.exists() {
            return Err("nothing is there".to_owned());
        }
        let wrong = wrong(&times_of(&there), &want);
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
    });
    sleep_ms(2_000);
    for root in [&here, &there] {
        assert_eq!(wrong(&times_of(root), &want), [""; 0], "{} after a while", root.display());
    }
}

fn succeed(command: &mut Command) {
    run(command, 60_000).good();
}

fn directory_times_of_rsync(io: Io) {
    if need("directory_times_of_rsync", "rsync") {
        copied(io, |from, to| {
            let mut from = from.as_os_str().to_owned();
            from.push("/");
            succeed(Command::new("rsync").arg("-a").arg(&from).arg(to));
        });
    }
}
in_both_modes!(directory_times_of_rsync);

fn directory_times_of_cp(io: Io) {
    copied(io, |from, to| succeed(Command::new("cp").arg("-a").arg(from).arg(to)));
}
in_both_modes!(directory_times_of_cp);

fn directory_times_of_tar(io: Io) {
    copied(io, |from, to| {
        let archive = from.with_extension("tar");
        let mut tar = Command::new("tar");
        // Only this format has nanoseconds.
        tar.args(["--format=posix", "-cf"]).arg(&archive);
        succeed(tar.arg("-C").arg(from).arg("."));
        std::fs::create_dir(to).must("mkdir");
        succeed(Command::new("tar").arg("-xpf").arg(&archive).arg("-C").arg(to));
    });
}
in_both_modes!(directory_times_of_tar);

/// New content in a directory moves a time that was given before, on both nodes; a `chmod` does not.
fn directory_times_move_with_later_content(io: Io) {
    let cluster = Cluster::two(io);
    let (mut process, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let (here, there) = (cluster.a.at("dir"), cluster.b.at("dir"));
    process.mkdir(&here).must("mkdir");
    process.put(&here.join("first"), b"1").must("put");
    let given = (1_234_567_890, 987_654_321);
    process.utimes(&here, given.0, given.1).must("utimes");
    let time = |process: &mut SyscallProcess, at: &Path| {
        process.stat(at).map(|about| (about.mtime_s, about.mtime_ns)).map_err(|e| e.to_string())
    };
    cluster.a.drain();
    let mut shows = |want: &dyn Fn((i64, i64)) -> bool, what: &str| {
        for at in [&here, &there] {
            eventually(5_000, what, || match time(&mut other, at) {
                Ok(found) if want(found) => Ok(()),
                found => Err(format!("{}: {found:?}", at.display())),
            });
        }
    };
    shows(&|found| found == given, "the time that was given");
    process.chmod(&here, 0o700).must("chmod");
    cluster.a.drain();
    shows(&|found| found == given, "the same after a chmod");
    process.put(&there.join("second"), b"2").must("put on the other node");
    cluster.b.drain();
    shows(&|found| found.0 > given.0, "a time that moved");
    process.utimes(&there, given.0, given.1).must("utimes on the other node");
    cluster.b.drain();
    shows(&|found| found == given, "the time that was given again");
    process.unlink(&here.join("first")).must("unlink");
    cluster.a.drain();
    shows(&|found| found.0 > given.0, "a time that moved once more");
}
in_both_modes!(directory_times_move_with_later_content);

/// A rename moves the directories above it, and nothing below.
fn directory_times_of_a_renamed_tree(io: Io) {
    let cluster = Cluster::two(io);
    let tree = cluster.site.path().join("tree");
    make_tree(&tree);
    let want = times_of(&tree);
    let (first, second) = (cluster.a.at("first"), cluster.a.at("second"));
    run(Command::new("cp").arg("-a").arg(&tree).arg(&first), 60_000).good();
    std::fs::create_dir(&second).must("mkdir");
    std::fs::write(second.join("other"), "x").must("write");
    let of_second = times_of(&second);
    std::fs::rename(&first, cluster.a.at("third")).must("rename");
    let mut process = SyscallProcess::new();
    let exchanged = process.rename_with(&cluster.a.at("third"), &second, EXCHANGE);
    exchanged.must("exchange");
    cluster.a.drain();
    for node in [&cluster.a, &cluster.b] {
        eventually(10_000, "the times arrive", || {
            let third = node.at("third");
            if !third.exists() {
                return Err("nothing is there".to_owned());
            }
            let mut wrong_ones = wrong(&times_of(&node.at("second")), &want);
            wrong_ones.extend(wrong(&times_of(&third), &of_second));
            if wrong_ones.is_empty() { Ok(()) } else { Err(wrong_ones.join("\n")) }
        });
    }
}
in_both_modes!(directory_times_of_a_renamed_tree);
