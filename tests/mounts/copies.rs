//! Shared parts of the tests of `hearthfs import` and `hearthfs export`.

use std::collections::BTreeMap;
use std::fs::{File, FileTimes};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use serde_json::Value;

use crate::harness::command::Said;
use crate::harness::{Must as _, Node, SyscallProcess, tree};

pub(crate) const LIMIT_MS: u64 = 120_000;
/// The longest time until a remote change is visible on another node, also on a busy machine.
pub(crate) const SEEN_MS: u64 = 30_000;
/// When the files of the tests were made, in seconds since the Unix epoch.
pub(crate) const MADE_S: u64 = 1_600_000_000;

/// Writes a file with a mode and a time of its own.
pub(crate) fn put(path: &Path, text: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().must("a parent")).must("mkdir");
    std::fs::write(path, text).must("write");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).must("chmod");
    set_time(path, text.len() as u64);
}

pub(crate) fn set_time(path: &Path, later_s: u64) {
    let time = UNIX_EPOCH + Duration::new(MADE_S + later_s, 123_456_789);
    let times = FileTimes::new().set_modified(time).set_accessed(time);
    File::open(path).must("open").set_times(times).must("set the times");
}

/// Makes a symbolic link with a time of its own.
pub(crate) fn link(target: &str, at: &Path) {
    symlink(target, at).must("symlink");
    let time = Timespec { tv_sec: MADE_S as i64, tv_nsec: 5 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).must("set the times of a link");
}

/// Makes a Triton kernel's directory of three files. The list of them must be JSON; otherwise it
/// would stay on its node.
pub(crate) fn kernel(dir: &Path, text: &str) {
    for name in ["__grp__k.json", "k.ttir", "k.json"] {
        put(&dir.join(name), &format!("\"{text} {name}\""), 0o644);
    }
}

/// Makes a function of numba with `data` data files.
pub(crate) fn function(dir: &Path, name: &str, data: u32, text: &str) {
    put(&dir.join(format!("{name}.py311.nbi")), &format!("{text} of {data}"), 0o644);
    for number in 1..=data {
        put(&dir.join(format!("{name}.py311.{number}.nbc")), &format!("{text} {number}"), 0o644);
    }
}

/// Makes the cache directories of several clients, as they look on a disk where programs have been killed.
pub(crate) fn clients(dir: &Path) {
    for number in 0..20 {
        put(
            &dir.join(format!("jax/jit_f-{number:064x}-cache")),
            &format!("program {number}"),
            0o644,
        );
    }
    put(&dir.join("jax/jit_f-00-atime"), "12345678", 0o644);
    for number in 0..5 {
        kernel(&dir.join(format!("triton/KEY{number}")), &format!("kernel {number}"));
    }
    function(&dir.join("numba/src_1"), "m.f-1", 3, "f");
    function(&dir.join("numba/src_1"), "m.g-9", 1, "g");
    put(&dir.join("mine/program"), "#!/bin/sh\n", 0o755);
    put(&dir.join("mine/secret"), "secret", 0o600);
    put(&dir.join("mine/Cargo.lock"), "an ordinary file", 0o444);
    put(&dir.join("mine/big"), &"0123456789abcdef".repeat(200_000), 0o644);
    put(&dir.join("mine/empty"), "", 0o640);
    link("program", &dir.join("mine/link"));
    std::fs::create_dir(dir.join("mine/nothing")).must("mkdir");
    for name in ["mine/nothing", "mine"] {
        set_time(&dir.join(name), 77);
    }
}

/// Makes files that an import leaves out.
pub(crate) fn leftovers(dir: &Path) {
    put(&dir.join("jax/.lockfile"), "", 0o644);
    put(&dir.join("triton/KEY0/tmp.pid_1_x/k.ptx"), "being written", 0o644);
    put(&dir.join("triton/KEY9/k.json"), "its compiler was killed", 0o644);
    put(&dir.join("numba/src_1/m.f-1.py311.nbi.tmp.0123456789abcdef"), "being written", 0o644);
    put(&dir.join("numba/src_1/m.h-3.py311.nbi"), "without its data", 0o644);
    std::fs::create_dir_all(dir.join("ccache/0")).must("mkdir");
    symlink("host-1-2-3", dir.join("ccache/0/stats.lock")).must("symlink");
    put(&dir.join("ccache/0/stats"), "0", 0o644);
    let mode = Mode::from_raw_mode(0o644);
    mknodat(CWD, dir.join("mine/fifo"), FileType::Fifo, mode, 0).must("make a FIFO");
    set_time(&dir.join("mine"), 77);
}

/// Returns everything below a directory with its modes and times, except the times of directories.
pub(crate) fn with_times(dir: &Path) -> BTreeMap<PathBuf, String> {
    let tree = tree::read(dir).must("read a tree");
    let said = |path: &Path, thing: &tree::Thing| {
        let about = dir.join(path).symlink_metadata().must("stat");
        let time = format!(" {}.{}", about.mtime(), about.mtime_nsec());
        let time = if about.is_dir() { String::new() } else { time };
        format!("{thing:?}{time}")
    };
    tree.iter().map(|(path, thing)| (path.clone(), said(path, thing))).collect()
}

#[track_caller]
pub(crate) fn same(left: &BTreeMap<PathBuf, String>, right: &BTreeMap<PathBuf, String>) {
    for path in left.keys().chain(right.keys()) {
        assert_eq!(left.get(path), right.get(path), "{}", path.display());
    }
}

pub(crate) fn command(node: &Node, words: &[&str], paths: &[&Path], more: &[&str]) -> Said {
    let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let mut all = words.to_vec();
    all.extend(paths.iter().map(String::as_str));
    all.extend(more);
    node.command(&all)
}

pub(crate) fn report(said: &Said) -> Value {
    serde_json::from_str(&said.out).must(format_args!("parse {said:?}"))
}

#[track_caller]
pub(crate) fn counts(report: &Value, wanted: &[(&str, u64)]) {
    for (key, count) in wanted {
        assert_eq!(report[key], *count, "{key} in {report:#}");
    }
}
/// Stops other threads at the end of a test, also when a check has failed.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(crate) const KERNELS: u32 = 150;
pub(crate) const FUNCTIONS: u32 = 60;

pub(crate) fn many(dir: &Path) {
    for number in 0..KERNELS {
        kernel(&dir.join(format!("triton/KEY{number}")), &format!("kernel {number}"));
    }
    for number in 0..FUNCTIONS {
        function(&dir.join("numba/src_1"), &format!("m.f{number}-1"), 3, &format!("f {number}"));
    }
}

/// Counts the units that a fresh process can use on a node, and fails if one is not whole.
pub(crate) fn usable(node: &Node, source: &Path) -> u32 {
    let mut found = 0;
    let mut process = SyscallProcess::new();
    let mut check = |entry: PathBuf, others: Vec<PathBuf>| {
        if process.get(&node.at(&entry)).is_err() {
            return;
        }
        found += 1;
        for name in others.iter().chain([&entry]) {
            let bytes = process.get(&node.at(name)).must(format_args!("read {}", name.display()));
            let wanted = std::fs::read(source.join(name)).must("read the source");
            assert!(bytes == wanted, "{} on {}", name.display(), node.mount.display());
        }
    };
    for number in 0..KERNELS {
        let dir = PathBuf::from(format!("triton/KEY{number}"));
        check(dir.join("__grp__k.json"), vec![dir.join("k.json"), dir.join("k.ttir")]);
    }
    for number in 0..FUNCTIONS {
        let name = |end: &str| PathBuf::from(format!("numba/src_1/m.f{number}-1.py311.{end}"));
        check(name("nbi"), vec![name("1.nbc"), name("2.nbc"), name("3.nbc")]);
    }
    found
}
