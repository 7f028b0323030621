//! `hearthfs import` and `hearthfs export`.

use std::collections::BTreeMap;
use std::fs::{File, FileTimes};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, mknodat, utimensat};
use serde_json::Value;

use crate::harness::command::{Said, run, wait};
use crate::harness::node::dress;
use crate::harness::{
    Cluster, Hand, Io, Must as _, Node, Options, Store, eventually, in_both_modes, sleep_ms, tree,
};
use crate::users;

const LIMIT_MS: u64 = 120_000;
/// Until what is remote is seen on another node, also on a busy machine.
const SEEN_MS: u64 = 30_000;
/// When the files of the tests were made, in seconds since the Unix epoch.
const MADE_S: u64 = 1_600_000_000;

/// Writes a file with a mode and a time of its own.
fn put(path: &Path, text: &str, mode: u32) {
    std::fs::create_dir_all(path.parent().must("a parent")).must("mkdir");
    std::fs::write(path, text).must("write");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).must("chmod");
    set_time(path, text.len() as u64);
}

fn set_time(path: &Path, later_s: u64) {
    let time = UNIX_EPOCH + Duration::new(MADE_S + later_s, 123_456_789);
    let times = FileTimes::new().set_modified(time).set_accessed(time);
    File::open(path).must("open").set_times(times).must("set the times");
}

/// Makes a symbolic link with a time of its own.
fn link(target: &str, at: &Path) {
    symlink(target, at).must("symlink");
    let time = Timespec { tv_sec: MADE_S as i64, tv_nsec: 5 };
    let times = Timestamps { last_access: time, last_modification: time };
    utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).must("set the times of a link");
}

/// Makes a Triton kernel's directory of three files.
fn kernel(dir: &Path, text: &str) {
    for name in ["__grp__k.json", "k.cubin", "k.json"] {
        put(&dir.join(name), &format!("{text} {name}"), 0o644);
    }
}

/// Makes a function of numba with `data` data files.
fn function(dir: &Path, name: &str, data: u32, text: &str) {
    put(&dir.join(format!("{name}.py311.nbi")), &format!("{text} of {data}"), 0o644);
    for number in 1..=data {
        put(&dir.join(format!("{name}.py311.{number}.nbc")), &format!("{text} {number}"), 0o644);
    }
}

/// Makes the cache directories of several clients, as they look on a disk where programs have been killed.
fn clients(dir: &Path) {
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

/// What stays where it is.
fn leftovers(dir: &Path) {
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

/// Everything below a directory with its modes and times, but the times of directories.
fn with_times(dir: &Path) -> BTreeMap<PathBuf, String> {
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
fn same(left: &BTreeMap<PathBuf, String>, right: &BTreeMap<PathBuf, String>) {
    for path in left.keys().chain(right.keys()) {
        assert_eq!(left.get(path), right.get(path), "{}", path.display());
    }
}

fn command(node: &Node, words: &[&str], paths: &[&Path], more: &[&str]) -> Said {
    let paths: Vec<_> = paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
    let mut all = words.to_vec();
    all.extend(paths.iter().map(String::as_str));
    all.extend(more);
    node.command(&all)
}

fn report(said: &Said) -> Value {
    serde_json::from_str(&said.out).must(format_args!("parse {said:?}"))
}

#[track_caller]
fn counts(report: &Value, wanted: &[(&str, u64)]) {
    for (key, count) in wanted {
        assert_eq!(report[key], *count, "{key} in {report:#}");
    }
}

/// Caches of several clients that are imported on one node are on the other, whole and with their times; what belongs to
/// nobody else stays where it was; and what is exported is what was imported.
fn commands_import_and_export_whole_trees(io: Io) {
    let cluster = Cluster::two(io);
    let (source, plain) = (cluster.site.dir("source"), cluster.site.dir("plain"));
    for dir in [&source, &plain] {
        clients(dir);
    }
    leftovers(&source);
    let mount = cluster.a.mount.clone();
    let import =
        |more: &[&str]| command(&cluster.a, &["import", "--json"], &[&source, &mount], more);
    let dry = report(&import(&["--dry-run"]));
    assert_eq!(tree::texts(&mount), Vec::<String>::new(), "nothing was written");
    let said = import(&["--drain=60s"]);
    assert!(said.status.success(), "{said:?}");
    let first = report(&said);
    for key in ["files", "bytes", "units", "left_out", "warnings"] {
        assert_eq!(dry[key], first[key], "{key}");
    }
    counts(&first, &[("files", 48), ("units", 7), ("same", 0), ("kept", 0), ("failed", 0)]);
    let left =
        [("temporary", 2), ("node_local", 2), ("lock", 1), ("special", 1), ("incomplete", 2)];
    counts(&first["left_out"], &left);
    let warned: Vec<&Value> =
        first["warnings"].as_array().must("a list").iter().map(|one| &one["client"]).collect();
    assert_eq!(warned.len(), 3, "{warned:?}");
    let link = format!("ln -s {} {}", mount.join("jax").display(), source.join("jax").display());
    assert!(said.err.contains(&link), "{}", said.err);

    let wanted = with_times(&plain);
    let mut here = with_times(&mount);
    for dir in ["triton/KEY9", "ccache", "ccache/0"] {
        assert!(here.remove(Path::new(dir)).is_some(), "an empty directory is kept: {dir}");
    }
    same(&here, &wanted);
    eventually(SEEN_MS, "the other node has all of it", || {
        let found = with_times(&cluster.b.mount).len();
        if found == wanted.len() + 3 { Ok(()) } else { Err(format!("{found} names")) }
    });
    let there = with_times(&cluster.b.mount);
    for (path, text) in &wanted {
        assert_eq!(there.get(path), Some(text), "{}", path.display());
    }
    let made = cluster.a.at("mine").metadata().must("stat");
    assert_eq!(made.mtime() as u64, MADE_S + 77, "the time of a directory");
    counts(&report(&import(&[])), &[("files", 0), ("same", 48), ("kept", 0), ("failed", 0)]);

    let dest = cluster.site.path().join("exported/here");
    let export = |more: &[&Path]| {
        let mut paths = vec![&*cluster.b.mount];
        paths.extend(more);
        paths.push(&dest);
        command(&cluster.b, &["export", "--json"], &paths, &[])
    };
    let some = report(&export(&[Path::new("mine"), Path::new("**/*.cubin")]));
    counts(&some, &[("files", 11), ("failed", 0)]);
    assert_eq!(tree::texts(&dest), ["mine", "triton"]);
    assert_eq!(tree::texts(&dest.join("triton/KEY1")), ["k.cubin"]);
    let all = report(&export(&[]));
    // A unit of which a part is there is written whole.
    counts(&all, &[("files", 42), ("same", 6), ("kept", 0), ("failed", 0)]);
    let mut exported = with_times(&dest);
    for dir in ["triton/KEY9", "ccache", "ccache/0"] {
        exported.remove(Path::new(dir));
    }
    same(&exported, &wanted);
}
in_both_modes!(commands_import_and_export_whole_trees);

/// What is there stays, and units stay as a whole, unless the user says otherwise; then they are replaced as a whole.
fn commands_import_keeps_what_is_there(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    let mut hand = Hand::new();
    hand.mkdir(&mount.join("triton")).must("mkdir");
    hand.mkdir(&mount.join("triton/KEY0")).must("mkdir");
    hand.mkdir(&mount.join("numba")).must("mkdir");
    for name in ["k.json", "k.cubin", "old.ptx", "__grp__k.json"] {
        hand.put(&mount.join("triton/KEY0").join(name), b"theirs").must("put");
    }
    for name in ["m.f-1.py311.nbi", "m.f-1.py311.1.nbc", "m.f-1.py311.2.nbc"] {
        hand.put(&mount.join("numba").join(name), b"theirs").must("put");
    }
    hand.put(&mount.join("plain"), b"theirs").must("put");
    kernel(&source.join("triton/KEY0"), "ours");
    kernel(&source.join("triton/KEY1"), "ours");
    function(&source.join("numba"), "m.f-1", 3, "ours");
    put(&source.join("plain"), "ours", 0o644);
    let import =
        |more: &[&str]| command(&cluster.a, &["import", "--json"], &[&source, &mount], more);
    let kept = report(&import(&[]));
    counts(&kept, &[("files", 3), ("units", 1), ("kept", 8), ("failed", 0)]);
    for name in ["plain", "triton/KEY0/k.json", "numba/m.f-1.py311.1.nbc"] {
        assert_eq!(Hand::new().get(&mount.join(name)).must("read"), b"theirs", "{name}");
    }
    assert!(!mount.join("numba/m.f-1.py311.3.nbc").exists(), "no mixture");
    let replaced = report(&import(&["--overwrite", "--drain"]));
    counts(&replaced, &[("files", 8), ("units", 2), ("same", 3), ("kept", 0), ("failed", 0)]);
    let wanted = with_times(&source);
    for node in [&cluster.a, &cluster.b] {
        eventually(SEEN_MS, "what was replaced is seen", || {
            let there = with_times(&node.mount);
            let differs = |(path, text): &(&PathBuf, &String)| there.get(*path) != Some(*text);
            wanted.iter().find(differs).map_or(Ok(()), |differs| Err(format!("{differs:?}")))
        });
    }
}
in_both_modes!(commands_import_keeps_what_is_there);

/// Tells other threads that it is over, also when a check has failed.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

const KERNELS: u32 = 150;
const FUNCTIONS: u32 = 60;

fn many(dir: &Path) {
    for number in 0..KERNELS {
        kernel(&dir.join(format!("triton/KEY{number}")), &format!("kernel {number}"));
    }
    for number in 0..FUNCTIONS {
        function(&dir.join("numba/src_1"), &format!("m.f{number}-1"), 3, &format!("f {number}"));
    }
}

/// Counts the units that a fresh process can use on a node, and fails if one is not whole.
fn usable(node: &Node, source: &Path) -> u32 {
    let mut found = 0;
    let mut hand = Hand::new();
    let mut check = |entry: PathBuf, others: Vec<PathBuf>| {
        if hand.get(&node.at(&entry)).is_err() {
            return;
        }
        found += 1;
        for name in others.iter().chain([&entry]) {
            let bytes = hand.get(&node.at(name)).must(format_args!("read {}", name.display()));
            let wanted = std::fs::read(source.join(name)).must("read the source");
            assert!(bytes == wanted, "{} on {}", name.display(), node.mount.display());
        }
    };
    for number in 0..KERNELS {
        let dir = PathBuf::from(format!("triton/KEY{number}"));
        check(dir.join("__grp__k.json"), vec![dir.join("k.json"), dir.join("k.cubin")]);
    }
    for number in 0..FUNCTIONS {
        let name = |end: &str| PathBuf::from(format!("numba/src_1/m.f{number}-1.py311.{end}"));
        check(name("nbi"), vec![name("1.nbc"), name("2.nbc"), name("3.nbc")]);
    }
    found
}

/// An import that is killed leaves whole units only, on all nodes, and the next one goes on.
fn commands_import_that_is_killed(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    many(&source);
    let mut killed = 0;
    for published in [1, 20, 60, 100] {
        let mut import = cluster.site.hearthfs();
        import.arg("import").arg(&source).arg(&mount).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = import.spawn().must("start an import");
        // Until so many units are there, or it is over.
        let there = || {
            let kernels = (0..KERNELS)
                .filter(|number| mount.join(format!("triton/KEY{number}/__grp__k.json")).exists());
            kernels.count() >= published
        };
        while !there() && child.try_wait().must("look after it").is_none() {
            sleep_ms(1);
        }
        child.kill().must("kill it");
        let status = wait(&mut child, LIMIT_MS).must("it is dead");
        killed += u32::from(status.signal().is_some());
        usable(&cluster.a, &source);
        cluster.a.drain();
        usable(&cluster.b, &source);
    }
    assert!(killed > 0, "no import was killed before its end");
    let said = command(&cluster.a, &["import", "--json"], &[&source, &mount], &["--drain"]);
    counts(&report(&said), &[("kept", 0), ("failed", 0)]);
    assert_eq!(usable(&cluster.a, &source), KERNELS + FUNCTIONS);
    eventually(SEEN_MS, "the other node has all units", || {
        let found = usable(&cluster.b, &source);
        if found == KERNELS + FUNCTIONS { Ok(()) } else { Err(format!("{found} units")) }
    });
}
in_both_modes!(commands_import_that_is_killed);

/// No process on any node ever sees a part of a unit that is being imported.
fn commands_import_shows_whole_units(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    many(&source);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for node in [&cluster.a, &cluster.b] {
            let (over, source) = (&over, &source);
            threads.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    usable(node, source);
                }
            });
        }
        let at_end = Over(&over);
        let said = command(&cluster.a, &["import", "--json"], &[&source, &mount], &["--drain"]);
        drop(at_end);
        let units = u64::from(KERNELS + FUNCTIONS);
        counts(&report(&said), &[("units", units), ("kept", 0), ("failed", 0)]);
    });
    for node in [&cluster.a, &cluster.b] {
        eventually(SEEN_MS, "all units are seen", || {
            let found = usable(node, &source);
            if found == KERNELS + FUNCTIONS { Ok(()) } else { Err(format!("{found} units")) }
        });
    }
}
in_both_modes!(commands_import_shows_whole_units);

/// What cannot be read is named and keeps nothing else from being imported; its unit is left out whole.
#[test]
fn commands_import_names_what_it_cannot_read() {
    let io = Io::best();
    if !users::can_be_others("commands_import_names_what_it_cannot_read", io) {
        return;
    }
    let cluster = Cluster::two(io);
    users::let_in(cluster.site.path(), 0o755);
    let source = cluster.site.dir("source");
    kernel(&source.join("triton/KEY0"), "readable");
    kernel(&source.join("triton/KEY1"), "not readable");
    put(&source.join("triton/KEY1/k.cubin"), "secret", 0o600);
    put(&source.join("mine/secret"), "secret", 0o600);
    put(&source.join("mine/open"), "open", 0o644);
    put(&source.join("mine/closed/file"), "open", 0o644);
    users::let_in(&source.join("mine/closed"), 0o700);
    let to = cluster.a.at("open");
    std::fs::create_dir(&to).must("mkdir");
    users::let_in(&to, 0o777);
    // The program itself may lie where others cannot go.
    let program = cluster.site.path().join("hearthfs");
    std::fs::copy(env!("CARGO_BIN_EXE_hearthfs"), &program).must("copy the program");
    users::let_in(&program, 0o755);
    let mut import = std::process::Command::new(&program);
    dress(&mut import, cluster.site.path());
    import.uid(users::A.uid).gid(users::A.gid).current_dir("/");
    let profiles = cluster.site.path().join("profiles.toml");
    std::fs::write(&profiles, "[profiles.triton]\nalso = [\"open/triton\"]\n").must("write");
    import.args(["import", "--json", "--config"]).arg(&profiles).arg(&source).arg(&to);
    let said = run(&mut import, LIMIT_MS);
    assert_eq!(said.code(), 1, "{said:?}");
    let report = report(&said);
    counts(&report, &[("files", 4), ("units", 1), ("failed", 3)]);
    for name in ["mine/secret", "triton/KEY1/k.cubin", "mine/closed"] {
        let line = format!("failed: {}", source.join(name).display());
        assert!(said.err.contains(&line) && said.err.contains("Permission denied"), "{}", said.err);
    }
    assert!(said.err.contains("3 files and directories could not be imported"), "{}", said.err);
    assert_eq!(tree::texts(&to.join("triton/KEY1")), Vec::<String>::new());
    assert_eq!(tree::texts(&to.join("triton/KEY0")).len(), 3);
    assert_eq!(tree::texts(&to.join("mine")), ["open"]);
}

#[test]
fn commands_import_and_export_refuse_what_cannot_be() {
    let cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    put(&source.join("file"), "content", 0o644);
    let not_there = source.join("missing");
    let above = cluster.site.path();
    for (words, paths, code, says) in [
        ("import", [&*source, &*source.join("dir")], 3, "is not a hearthfs mount"),
        ("import", [&*not_there, &*mount], 2, "No such file"),
        ("import", [&*source.join("file"), &*mount], 2, "is not a directory"),
        ("import", [&*mount, &*mount.join("below")], 2, "one lies in the other"),
        ("import", [above, &*mount], 2, "one lies in the other"),
        ("import", [above, &*mount.join("below")], 2, "one lies in the other"),
        ("export", [&*source, &*cluster.site.path().join("dest")], 3, "is not a hearthfs mount"),
        ("export", [&*mount, &*mount.join("dest")], 2, "one lies in the other"),
        ("export", [&*not_there, &*source], 3, "is not a hearthfs mount"),
    ] {
        let said = command(&cluster.a, &[words], &paths, &[]);
        assert_eq!(said.code(), code, "{words} {paths:?}: {said:?}");
        assert!(
            said.err.contains(says) && said.err.contains("hint: "),
            "{words} {paths:?}: {said:?}"
        );
    }
    let dest = cluster.site.path().join("dest");
    let said = command(&cluster.a, &["export"], &[&mount, Path::new("a/**/b"), &dest], &[]);
    assert_eq!(said.code(), 2, "{said:?}");
    assert!(said.err.contains("a/**/b") && said.err.contains("beginning or end"), "{said:?}");
    assert!(!dest.exists() && tree::texts(&mount).is_empty());
}

/// An export writes nothing through a link that lies in its way, and without `--overwrite` no member into a unit that is there.
#[test]
fn commands_export_changes_nothing_that_it_should_not() {
    let cluster = Cluster::two(Io::best());
    let (tree, dest) = (cluster.site.dir("tree"), cluster.site.dir("dest"));
    let outside = cluster.site.dir("outside");
    put(&tree.join("dir/file"), "content", 0o644);
    kernel(&tree.join("triton/KEY"), "new");
    let said = command(&cluster.a, &["import"], &[&tree, &cluster.a.mount], &[]);
    assert_eq!(said.code(), 0, "{said:?}");
    std::os::unix::fs::symlink(&outside, dest.join("dir")).must("a link");
    kernel(&dest.join("triton/KEY"), "of an older version");
    let before = tree::texts(&dest.join("triton"));
    let said = command(&cluster.a, &["export"], &[&cluster.a.mount, &dest], &[]);
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.err.contains("no directory"), "{said:?}");
    assert!(tree::texts(&outside).is_empty(), "a link was followed");
    for globs in [&["triton/KEY/*.cubin"][..], &[]] {
        let globs = globs.iter().map(Path::new);
        let paths: Vec<&Path> =
            std::iter::once(&*cluster.a.mount).chain(globs).chain([&*dest]).collect();
        let said = command(&cluster.a, &["export"], &paths, &[]);
        assert!(said.out.contains("kept"), "{said:?}");
        assert_eq!(tree::texts(&dest.join("triton")), before, "what differs is kept");
    }
    let paths = [&*cluster.a.mount, Path::new("triton"), &*dest];
    let said = command(&cluster.a, &["export"], &paths, &["--overwrite"]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert_eq!(tree::texts(&dest.join("triton")), tree::texts(&tree.join("triton")));
}

/// What a node does not have while the store is away is counted and named; the rest is exported.
#[test]
fn commands_export_names_what_is_not_there() {
    let options = Options::new(Io::best()).deadline("2s");
    let cluster = Cluster::with(Store::dir, &options);
    let dest = cluster.site.path().join("dest");
    let mut hand = Hand::new();
    let text = "far away ".repeat(10_000);
    hand.put(&cluster.a.at("far"), text.as_bytes()).must("put");
    cluster.a.drain();
    eventually(SEEN_MS, "the name is seen", || {
        hand.stat(&cluster.b.at("far")).map(|_| ()).map_err(|errno| errno.to_string())
    });
    hand.put(&cluster.b.at("near"), b"here").must("put");
    cluster.store.fail();
    let said = command(&cluster.b, &["export", "--json"], &[&cluster.b.mount, &dest], &[]);
    cluster.store.heal();
    assert_eq!(said.code(), 1, "{said:?}");
    counts(&report(&said), &[("files", 1), ("failed", 1)]);
    assert!(said.err.contains("far: open it: No such file"), "{}", said.err);
    assert_eq!(tree::texts(&dest), ["near"]);
    // Until the node has noticed that the store is back.
    eventually(SEEN_MS, "the rest is exported", || {
        let said = command(&cluster.b, &["export", "--json"], &[&cluster.b.mount, &dest], &[]);
        if said.status.success() { Ok(()) } else { Err(said.err) }
    });
    assert_eq!(std::fs::read(dest.join("far")).must("read"), text.as_bytes());
}

/// An export that is killed leaves whole files and whole units only, and the next one goes on.
#[test]
fn commands_export_that_is_killed() {
    let cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    let dest = cluster.site.dir("dest");
    many(&source);
    let said = command(&cluster.a, &["import"], &[&source, &mount], &[]);
    assert!(said.status.success(), "{said:?}");
    let mut killed = 0;
    for published in [1, 30, 90] {
        let mut export = cluster.site.hearthfs();
        export.arg("export").arg(&mount).arg(&dest).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = export.spawn().must("start an export");
        let there = || tree::files_below(&dest).len() >= published;
        while !there() && child.try_wait().must("look after it").is_none() {
            sleep_ms(1);
        }
        child.kill().must("kill it");
        killed += u32::from(wait(&mut child, LIMIT_MS).must("it is dead").signal().is_some());
        let wanted = tree::read(&source).must("read");
        let mut found = tree::read(&dest).must("read");
        found.retain(|path, _| !path.to_string_lossy().contains("/.hearthfs-export."));
        for (path, thing) in &found {
            assert_eq!(wanted.get(path), Some(thing), "{}", path.display());
        }
        for path in found.keys().filter(|path| path.ends_with("__grp__k.json")) {
            assert!(found.contains_key(&path.with_file_name("k.cubin")), "{}", path.display());
        }
        for path in found.keys().filter(|path| path.extension().is_some_and(|end| end == "nbi")) {
            for number in 1..=3 {
                let data = path.with_extension(format!("{number}.nbc"));
                assert!(found.contains_key(&data), "{}", path.display());
            }
        }
    }
    assert!(killed > 0, "no export was killed before its end");
    let said = command(&cluster.a, &["export", "--json"], &[&mount, &dest], &[]);
    counts(&report(&said), &[("kept", 0), ("failed", 0)]);
    let mut found = with_times(&dest);
    found.retain(|path, _| !path.to_string_lossy().contains("/.hearthfs-export."));
    same(&found, &with_times(&source));
}

/// A unit that is replaced all the time is exported in one version.
fn commands_export_writes_one_version(io: Io) {
    let cluster = Cluster::two(io);
    let dir = cluster.a.at("triton/KEY");
    std::fs::create_dir_all(&dir).must("mkdir");
    let write = |version: u32| {
        let mut hand = Hand::new();
        for name in ["k.json", "k.cubin", "__grp__k.json"] {
            let text = format!("version {version}").repeat(2000);
            hand.put(&dir.join(name), text.as_bytes()).must(name);
        }
    };
    write(0);
    let (over, versions) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                write(versions.fetch_add(1, Ordering::Relaxed) + 1);
            }
        });
        let _at_end = Over(&over);
        let mut number = 0;
        while number < 8 || versions.load(Ordering::Relaxed) < 20 {
            number += 1;
            let dest = cluster.site.path().join(format!("dest{number}"));
            let said = command(&cluster.a, &["export", "--json"], &[&cluster.a.mount, &dest], &[]);
            counts(&report(&said), &[("files", 3), ("units", 1), ("failed", 0)]);
            let read = |name| std::fs::read(dest.join("triton/KEY").join(name)).must("read");
            let entry = read("__grp__k.json");
            for name in ["k.json", "k.cubin"] {
                assert!(read(name) == entry, "{name} is of another version");
            }
        }
    });
}
in_both_modes!(commands_export_writes_one_version);

/// An import ends when its mount does, and does not make a failure of each file that is left.
#[test]
fn commands_import_ends_with_its_mount() {
    let mut cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    many(&source);
    let mut import = cluster.site.hearthfs();
    import.args(["import", "--json"]).arg(&source).arg(&mount);
    let mut child = import.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().must("start");
    while !mount.join("numba").exists() && !mount.join("triton").exists() {
        assert!(child.try_wait().must("look after it").is_none(), "it is over");
        sleep_ms(1);
    }
    cluster.a.kill_only();
    let output = child.wait_with_output().must("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the mount is gone: mount it again"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).must("JSON");
    assert!(report["failed"].as_u64().must("a count") <= 8, "{report:#}");
    cluster.a.up();
    usable(&cluster.a, &source);
    let said = command(&cluster.a, &["import", "--json"], &[&source, &mount], &[]);
    counts(&self::report(&said), &[("kept", 0), ("failed", 0)]);
    assert_eq!(usable(&cluster.a, &source), KERNELS + FUNCTIONS);
}
