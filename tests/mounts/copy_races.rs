//! `hearthfs import` and `hearthfs export` while others change what they read and write.

use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::copies::{Over, SEEN_MS, command, counts, kernel, put, report, usable};
use crate::harness::{
    Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes, sleep_ms, tree,
};

/// Large enough that a test can stop a copy while it writes a file of this size.
const LARGE_BYTES: u64 = 96 << 20;

/// A copy that a test stops and continues. It is killed if the test fails before its end.
struct Copy(Option<Child>);

impl Copy {
    fn start(program: &mut Command) -> Self {
        let program = program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(program.spawn().must("start a copy")))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().must("the copy was started")
    }

    fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().must("the copy was started"))
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).must("send a signal");
    }

    /// Stops the copy as soon as `when` holds. `when` still holds then.
    fn stop_when(&mut self, when: impl Fn(&Self) -> bool) {
        while !when(self) {
            let ended = self.child().try_wait().must("poll the child");
            assert!(ended.is_none(), "the copy ended too early");
            std::thread::yield_now();
        }
        self.signal(Signal::STOP);
        let path = format!("/proc/{}/status", self.pid());
        let stopped = || std::fs::read_to_string(&path).must("read").contains("State:\tT");
        while !stopped() {
            sleep_ms(1);
        }
        assert!(when(self), "the copy was stopped too late");
    }

    /// Reports whether it has a file open whose path satisfies `wanted`.
    fn has_open(&self, wanted: impl Fn(&Path) -> bool) -> bool {
        let Ok(all) = std::fs::read_dir(format!("/proc/{}/fd", self.pid())) else { return false };
        all.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|path| wanted(&path)))
    }

    fn finish(mut self) -> Output {
        self.signal(Signal::CONT);
        self.0.take().must("the copy was started").wait_with_output().must("its end")
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

fn said(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).must(format_args!("parse {output:?}"))
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Makes a large file of zeros after a first line.
fn large(path: &Path, text: &str) {
    put(path, text, 0o644);
    File::options().write(true).open(path).must("open").set_len(LARGE_BYTES).must("enlarge");
}

fn first_line(path: &Path) -> String {
    let bytes = std::fs::read(path).must(format_args!("read {}", path.display()));
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// Exchanges a directory and a link again and again while `work` runs.
fn while_swapped(dir: &Path, link: &Path, mut work: impl FnMut(u32)) {
    let (over, swaps) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                renameat_with(CWD, dir, CWD, link, RenameFlags::EXCHANGE).must("exchange");
                swaps.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _at_end = Over(&over);
        let mut run = 0;
        while run < 20 || swaps.load(Ordering::Relaxed) < 1000 {
            work(run);
            run += 1;
        }
    });
}

/// While a directory of SRC is repeatedly exchanged for a link, nothing behind the link is read.
#[test]
fn commands_import_reads_nothing_outside_of_its_tree() {
    let cluster = Cluster::two(Io::best());
    let (source, outside) = (cluster.site.dir("source"), cluster.site.dir("outside"));
    for number in 0..100 {
        put(&source.join(format!("dir/deep/{number}")), "inside", 0o644);
        put(&outside.join(format!("deep/{number}")), "secret", 0o644);
    }
    let link = cluster.site.path().join("link");
    symlink(&outside, &link).must("symlink");
    while_swapped(&source.join("dir"), &link, |run| {
        let to = cluster.a.at(format!("run{run}"));
        command(&cluster.a, &["import"], &[&source, &to], &[]);
        for path in tree::files_below(&to) {
            assert_eq!(std::fs::read(&path).must("read"), b"inside", "{}", path.display());
        }
    });
}

/// While a directory of DEST is repeatedly exchanged for a link, nothing is written behind the link.
#[test]
fn commands_export_writes_nothing_outside_of_its_tree() {
    let cluster = Cluster::two(Io::best());
    let (source, outside) = (cluster.site.dir("source"), cluster.site.dir("outside"));
    for number in 0..100 {
        put(&source.join(format!("dir/{number}")), "content", 0o644);
    }
    command(&cluster.a, &["import"], &[&source, &cluster.a.mount], &[]);
    let (dest, link) = (cluster.site.dir("dest"), cluster.site.path().join("link"));
    std::fs::create_dir(dest.join("dir")).must("mkdir");
    symlink(&outside, &link).must("symlink");
    while_swapped(&dest.join("dir"), &link, |_| {
        command(&cluster.a, &["export"], &[&cluster.a.mount, &dest], &["--overwrite"]);
        assert_eq!(tree::texts(&outside), Vec::<String>::new());
        for number in 0..100 {
            for dir in [dest.join("dir"), link.clone()] {
                std::fs::remove_file(dir.join(number.to_string())).ok();
            }
        }
    });
}

/// A unit of SRC that is replaced while it is imported is imported in one version.
fn commands_import_takes_one_version(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    let dir = source.join("triton/KEY");
    let write = |text: &str| {
        for name in ["k.json", "k.ptx", "__grp__k.json"] {
            put(&dir.join("new"), text, 0o644);
            std::fs::rename(dir.join("new"), dir.join(name)).must("rename");
        }
        large(&dir.join("new"), text);
        std::fs::rename(dir.join("new"), dir.join("k.ttir")).must("rename");
    };
    write("version 1");
    let mut copy =
        Copy::start(cluster.site.hearthfs().args(["import", "--json"]).arg(&source).arg(&mount));
    let member = mount.join("triton/KEY/k.ttir");
    copy.stop_when(|copy| copy.has_open(|path| path == member));
    write("version 2");
    let output = copy.finish();
    counts(&said(&output), &[("files", 4), ("units", 1), ("failed", 0)]);
    for name in ["k.json", "k.ptx", "__grp__k.json", "k.ttir"] {
        assert_eq!(first_line(&mount.join("triton/KEY").join(name)), "version 2", "{name}");
    }
}
in_both_modes!(commands_import_takes_one_version);

/// If another program publishes a unit while it is imported, that version stays, and the report says so.
fn commands_import_reports_a_lost_race(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    kernel(&source.join("triton/KEY"), "ours");
    large(&source.join("triton/KEY/k.ptx"), "ours");
    let mut copy =
        Copy::start(cluster.site.hearthfs().args(["import", "--json"]).arg(&source).arg(&mount));
    let ptx = mount.join("triton/KEY/k.ptx");
    copy.stop_when(|copy| copy.has_open(|path| path == ptx));
    let mut process = SyscallProcess::new();
    for name in ["k.json", "k.ttir", "__grp__k.json"] {
        process.put(&mount.join("triton/KEY").join(name), b"theirs").must(name);
    }
    let output = copy.finish();
    assert_eq!(output.status.code(), Some(0), "{}", errors(&output));
    assert_eq!(SyscallProcess::new().get(&mount.join("triton/KEY/k.json")).must("read"), b"theirs");
    counts(&said(&output), &[("files", 0), ("units", 0), ("kept", 4), ("failed", 0)]);
}
in_both_modes!(commands_import_reports_a_lost_race);

/// If a source fails in the middle of a file, what `--overwrite` would have replaced stays.
#[test]
fn commands_import_keeps_what_it_cannot_replace() {
    let cluster = Cluster::two(Io::best());
    // The size of these files is 0 although they have content, so no copy of them is complete.
    let source = Path::new("/proc/sys/fs/inotify");
    let name = "max_user_watches";
    let there = cluster.a.at(name);
    SyscallProcess::new().put(&there, b"theirs").must("put");
    let said =
        command(&cluster.a, &["import", "--json"], &[source, &cluster.a.mount], &["--overwrite"]);
    assert_eq!(said.code(), 1, "{said:?}");
    counts(&report(&said), &[("files", 0), ("failed", 3)]);
    assert_eq!(SyscallProcess::new().get(&there).must("the file stays"), b"theirs");
    assert_eq!(tree::texts(&cluster.a.mount), [name]);
    let unit = cluster.a.at("triton/KEY");
    std::fs::create_dir_all(&unit).must("mkdir");
    let mut process = SyscallProcess::new();
    for name in [name, "__grp__k.json"] {
        process.put(&unit.join(name), b"theirs").must("put");
    }
    command(&cluster.a, &["import"], &[source, &unit], &["--overwrite"]);
    let mut process = SyscallProcess::new();
    for name in ["__grp__k.json", name] {
        assert_eq!(process.get(&unit.join(name)).must("the file stays"), b"theirs", "{name}");
    }
}

/// An import with `--overwrite` that is killed leaves the old file, and no other name on any node.
fn commands_import_that_is_killed_keeps_the_old_file(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    large(&source.join("file"), "ours");
    SyscallProcess::new().put(&mount.join("file"), b"theirs").must("put");
    cluster.a.drain();
    let mut copy = Copy::start(
        cluster.site.hearthfs().args(["import", "--overwrite"]).arg(&source).arg(&mount),
    );
    let temporary = |path: &Path| path.to_string_lossy().contains("/.hearthfs-import.");
    copy.stop_when(|copy| copy.has_open(temporary));
    assert_eq!(SyscallProcess::new().get(&mount.join("file")).must("read"), b"theirs");
    eventually(SEEN_MS, "the other node has the file", || {
        let names = tree::texts(&cluster.b.mount);
        if names == ["file"] { Ok(()) } else { Err(format!("{names:?}")) }
    });
    copy.signal(Signal::KILL);
    assert_eq!(copy.finish().status.signal(), Some(Signal::KILL.as_raw()));
    cluster.a.drain();
    for node in [&cluster.a, &cluster.b] {
        eventually(SEEN_MS, "only the file is there", || {
            let names = tree::texts(&node.mount);
            if names == ["file"] { Ok(()) } else { Err(format!("{names:?}")) }
        });
        assert_eq!(SyscallProcess::new().get(&node.at("file")).must("read"), b"theirs");
    }
}
in_both_modes!(commands_import_that_is_killed_keeps_the_old_file);

/// Imported files are drained even if another file has failed.
#[test]
fn commands_import_drains_what_it_took() {
    let cluster = Cluster::two(Io::best());
    let source = Path::new("/proc/sys/fs/inotify");
    SyscallProcess::new().put(&cluster.a.at("file"), b"pending").must("put");
    cluster.store.fail();
    SyscallProcess::new().put(&cluster.a.at("other"), b"pending").must("put");
    let said = command(&cluster.a, &["import"], &[source, &cluster.a.mount], &["--drain=1s"]);
    cluster.store.heal();
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.err.contains("3 files and directories could not be imported"), "{}", said.err);
    assert!(said.err.contains("not yet remote"), "{}", said.err);
}

/// A file that appears while an export writes another one of its name stays, unless `--overwrite`
/// is given. Nothing else is left of the export, and until its end only its user can enter the
/// directories that it makes.
#[test]
fn commands_export_keeps_files_that_appear_meanwhile() {
    let cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    large(&source.join("dir/large"), "ours");
    std::fs::set_permissions(source.join("dir"), std::fs::Permissions::from_mode(0o755))
        .must("chmod");
    command(&cluster.a, &["import"], &[&source, &mount], &[]);
    let file = |path: &Path| std::fs::write(path, "theirs").must("write");
    let dir = |path: &Path| std::fs::create_dir(path).must("mkdir");
    for (number, come) in [file as fn(&Path), dir].into_iter().enumerate() {
        let dest = cluster.site.path().join(format!("dest{number}"));
        let mut copy =
            Copy::start(cluster.site.hearthfs().args(["export", "--json"]).arg(&mount).arg(&dest));
        let below = dest.join("dir");
        copy.stop_when(|copy| copy.has_open(|path| path.starts_with(&below) && path.is_file()));
        let mode = |path: &Path| path.metadata().must("stat").permissions().mode() & 0o777;
        assert_eq!(mode(&below), 0o700, "a directory that is being filled");
        come(&below.join("large"));
        let output = copy.finish();
        assert_eq!(tree::texts(&below), ["large"], "{output:?}");
        assert_eq!(mode(&below), 0o755);
        counts(&said(&output), &[("files", 0), ("kept", 1), ("failed", 0)]);
    }
    let there = cluster.site.path().join("dest0/dir/large");
    assert_eq!(std::fs::read(there).must("read"), b"theirs");
}

/// A second import of the same user waits for the end of the first.
#[test]
fn commands_imports_take_turns() {
    let cluster = Cluster::two(Io::best());
    let (one, other) = (cluster.site.dir("one"), cluster.site.dir("other"));
    let mount = cluster.a.mount.clone();
    large(&one.join("large"), "one");
    crate::copies::many(&other);
    let import = |source: &PathBuf| {
        let mut program = cluster.site.hearthfs();
        program.args(["import", "--json"]).arg(source).arg(&mount);
        Copy::start(&mut program)
    };
    let mut first = import(&one);
    first.stop_when(|copy| copy.has_open(|path| path == mount.join("large")));
    let mut second = import(&other);
    let mut line = String::new();
    let err = second.child().stderr.take().must("its stderr");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(err), &mut line).must("read");
    assert!(line.contains("another import"), "{line}");
    assert_eq!(tree::texts(&mount), ["large"], "the second import has not begun");
    assert_eq!(first.finish().status.code(), Some(0));
    let output = second.finish();
    let units = u64::from(crate::copies::KERNELS + crate::copies::FUNCTIONS);
    counts(&said(&output), &[("units", units), ("kept", 0), ("failed", 0)]);
    usable(&cluster.a, &other);
}

/// If a mount does not answer, neither command hangs, also when it is given a path below the mount.
#[test]
fn commands_import_and_export_do_not_hang() {
    let cluster = Cluster::two(Io::best());
    let source = cluster.site.dir("source");
    put(&source.join("file"), "content", 0o644);
    let (below, dest) = (cluster.a.at("not/looked/up"), cluster.site.path().join("dest"));
    kill_process(cluster.a.pid(), Signal::STOP).must("stop the daemon");
    let import = command(&cluster.a, &["import"], &[&source, &below], &[]);
    let export = command(&cluster.a, &["export"], &[&below, &dest], &[]);
    kill_process(cluster.a.pid(), Signal::CONT).must("continue the daemon");
    for said in [import, export] {
        assert_eq!(said.code(), 1, "{said:?}");
        assert!(said.err.contains("does not answer within"), "{}", said.err);
    }
    assert!(!dest.exists());
}

/// While root imports a directory of another user, that user puts a third one's directory in its
/// place, which stays unchanged.
#[test]
fn commands_import_gives_no_other_directory_away() {
    let cluster = Cluster::two(Io::best());
    let source = cluster.site.dir("source");
    large(&source.join("dir/large"), "theirs");
    let give = |path: &Path, user: u32, mode: u32| {
        std::os::unix::fs::chown(path, Some(user), Some(user)).must("chown");
        std::fs::set_permissions(path, Permissions::from_mode(mode)).must("chmod");
    };
    give(&source.join("dir"), 1001, 0o755);
    let [dir, away, victim] = ["dir", "away", "victim"].map(|name| cluster.a.at(name));
    put(&victim.join("secret"), "secret", 0o644);
    give(&victim, 1002, 0o700);
    let mut import = cluster.site.hearthfs();
    import.args(["import", "--json"]).args([&source, &cluster.a.mount]);
    let mut import = Copy::start(&mut import);
    import.stop_when(|copy| copy.has_open(|path| path == dir.join("large")));
    let owner = |path: &Path| {
        let about = path.metadata().must("stat");
        (about.uid(), about.mode() & 0o7777)
    };
    assert_eq!(owner(&dir), (1001, 0o755), "others can use it from the start");
    std::fs::rename(&dir, &away).must("move the new directory away");
    std::fs::rename(&victim, &dir).must("put another one in its place");
    let output = import.finish();
    assert_eq!(output.status.code(), Some(1), "{}", errors(&output));
    let failures = &said(&output)["failures"];
    assert!(failures.to_string().contains("replaced or changed the directory"), "{failures}");
    assert_eq!(owner(&dir), (1002, 0o700));
    assert_eq!(first_line(&away.join("large")), "theirs");
}

/// A file that the cache cannot hold fails, and the others are imported.
#[test]
fn commands_import_goes_on_after_a_file_that_is_too_large() {
    let cluster = Cluster::two(Io::best());
    let source = cluster.site.dir("source");
    put(&source.join("a"), "", 0o644);
    File::options()
        .write(true)
        .open(source.join("a"))
        .must("open")
        .set_len(1 << 42)
        .must("enlarge");
    for name in ["b", "c"] {
        put(&source.join(name), name, 0o644);
    }
    for more in [&["--json"][..], &["--json", "--overwrite"]] {
        let said = command(&cluster.a, &["import"], &[&source, &cluster.a.mount], more);
        assert_eq!(said.code(), 1, "{said:?}");
        counts(&report(&said), &[("failed", 1)]);
        assert!(said.err.contains("local.cache_size"), "{}", said.err);
        assert_eq!(tree::texts(&cluster.a.mount), ["b", "c"]);
    }
}
