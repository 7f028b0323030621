//! Mounting, unmounting, dying, and facts about callers, on real mounts.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a failed `unwrap` or `expect` fails the test"
)]

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::shelf::{Manners, Shelf, Way};
use common::{Mounted, say_skipped, skipped};
use hearthfs_mount::process::{Signal, send_signal};
use hearthfs_mount::{
    Ino, MountOptions, Notices as _, Session, Wakes, clear_stale, is_stale, mounts,
};

/// The environment variable that turns this test binary into a server of a mount.
const SERVE_AT: &str = "HEARTHFS_TEST_SERVE_AT";

fn options(point: &Path, store: &Path) -> MountOptions {
    MountOptions {
        mount_point: point.to_owned(),
        fs_name: "test".to_owned(),
        read_only: false,
        allow_other: false,
        user_xattrs: true,
        wakes: Wakes::Quick,
        threads: 2,
        want_flock: false,
        probe_file: Some(tempfile::tempfile_in(store).unwrap()),
    }
}

/// Not a test: the process that `serve` starts.
#[test]
fn served_by_another_process() {
    let Some(dir) = std::env::var_os(SERVE_AT) else { return };
    let dir = Path::new(&dir);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let store = dir.join("store");
    let shelf = Shelf::new(&store, Manners::new(Way::Passthrough));
    let options = options(&dir.join("mnt"), &store);
    let session = Session::mount(shelf, options, runtime.handle().clone()).unwrap();
    let refusal = session.abilities().passthrough_refusal;
    fs::write(dir.join("ready"), refusal.unwrap_or("passthrough")).unwrap();
    common::within(Duration::from_mins(1), "stopping", || dir.join("stop").exists());
    common::unmount(&session);
    session.wait().unwrap();
}

fn serve(user: u32) -> (Child, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    for name in ["mnt", "store"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        chown(dir.path().join(name), Some(user), Some(user)).unwrap();
    }
    chown(dir.path(), Some(user), Some(user)).unwrap();
    // Other users may not be able to access the build directory.
    let program = dir.path().join("program");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let mut command = Command::new(program);
    command
        .args(["served_by_another_process", "--exact", "--nocapture"])
        .uid(user)
        .gid(user)
        .env(SERVE_AT, dir.path())
        .stdout(Stdio::null());
    let mut child = None;
    common::within(Duration::from_secs(10), "a start", || match command.spawn() {
        Ok(started) => {
            child = Some(started);
            true
        }
        // Another test forked while the copy was being written, and its child has not executed its program yet.
        Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => false,
        Err(error) => panic!("{error}"),
    });
    let child = child.unwrap();
    common::within(Duration::from_secs(10), "serving", || dir.path().join("ready").exists());
    (child, dir)
}

#[test]
fn a_mount_shows_what_it_is() {
    if skipped("a_mount_shows_what_it_is") {
        return;
    }
    let m = Mounted::new(Manners::new(Way::Passthrough));
    let entry = mounts::mounted_at(m.session.mount_point()).unwrap().unwrap();
    assert_eq!(entry.fs_type, "fuse.hearthfs");
    assert_eq!(entry.source, "shelf,with \\comma");
    assert!(entry.is_hearthfs() && !is_stale(m.session.mount_point()).unwrap());
    assert!(!clear_stale(m.session.mount_point()).unwrap());
    assert_eq!(mounts::mounted_at(&m.dir.path().join("store")).unwrap(), None);
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains("shelf")).unwrap();
    assert!(line.contains("nosuid,nodev,noatime"), "{line}");
}

#[test]
fn a_stale_mount_is_cleared() {
    if skipped("a_stale_mount_is_cleared") {
        return;
    }
    let (mut child, dir) = serve(0);
    let point = dir.path().join("mnt");
    fs::write(point.join("f"), "from the other side").unwrap();
    let mut open = File::open(point.join("f")).unwrap();
    send_signal(child.id(), Signal::Kill).unwrap();
    child.wait().unwrap();
    assert_eq!(fs::metadata(&point).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    // Passed-through reads continue.
    let mut body = String::new();
    let mut bytes = [0; 64];
    let count = open.read(&mut bytes).unwrap();
    body.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    assert_eq!(body, "from the other side");

    let entry = mounts::mounted_at(&point).unwrap().unwrap();
    assert!(entry.is_hearthfs() && is_stale(&point).unwrap());
    assert!(clear_stale(&point).unwrap());
    assert_eq!(mounts::mounted_at(&point).unwrap(), None);
    assert!(!clear_stale(&point).unwrap());
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);
}

#[test]
fn a_user_mounts_through_the_helper() {
    const USER: u32 = 1000;
    let name = "a_user_mounts_through_the_helper";
    if skipped(name) {
        return;
    }
    let open_to_all = fs::metadata("/dev/fuse").unwrap().permissions().mode() & 0o006 == 0o006;
    if !open_to_all || Command::new("fusermount3").arg("-V").output().is_err() {
        return say_skipped(name, "/dev/fuse is for root only, or no fusermount3");
    }
    let (mut child, dir) = serve(USER);
    assert_eq!(fs::read(dir.path().join("ready")).unwrap(), b"it needs CAP_SYS_ADMIN");
    let point = dir.path().join("mnt");
    let entry = mounts::mounted_at(&point).unwrap().unwrap();
    assert!(entry.is_hearthfs());
    assert_eq!(entry.source, "test");
    let as_user = |script: &str| {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", script]).current_dir(dir.path()).uid(USER).gid(USER);
        shell.output().unwrap()
    };
    assert_eq!(as_user("echo body > mnt/f && cat mnt/f").stdout, b"body\n");
    assert_eq!(as_user("chmod 400 mnt/f && echo more > mnt/f").status.code(), Some(2));
    fs::write(dir.path().join("stop"), "").unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(mounts::mounted_at(&point).unwrap(), None);
}

#[test]
fn unmounting_while_busy() {
    if skipped("unmounting_while_busy") {
        return;
    }
    let m = Mounted::new(Manners::new(Way::Direct));
    fs::write(m.path("f"), "in use").unwrap();
    let mut file = File::open(m.path("f")).unwrap();
    let busy = m.session.unmount(false).unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(libc::EBUSY));
    m.session.unmount(true).unwrap();
    assert_eq!(mounts::mounted_at(m.session.mount_point()).unwrap(), None);
    // Its users keep their open files.
    let mut body = String::new();
    file.read_to_string(&mut body).unwrap();
    assert_eq!(body, "in use");
    assert!(!m.session.has_ended());
    drop(file);
    m.session.wait().unwrap();
    assert!(m.session.has_ended());
    // A second unmount is no error, and leaves alone what is mounted there now.
    m.session.unmount(false).unwrap();
}

#[test]
fn an_abort_frees_waiting_callers() {
    if skipped("an_abort_frees_waiting_callers") {
        return;
    }
    let manners = Manners { slow_read: Some(Duration::from_hours(1)), ..Manners::new(Way::Direct) };
    let m = Mounted::new(manners);
    fs::write(m.path("f"), "never").unwrap();
    let path = m.path("f");
    let reader = std::thread::scope(|scope| {
        let reader = scope.spawn(|| File::open(&path).unwrap().read(&mut [0; 8]));
        common::nap(Duration::from_millis(100));
        m.session.abort().unwrap();
        reader.join().unwrap()
    });
    assert_eq!(reader.unwrap_err().raw_os_error(), Some(libc::ECONNABORTED));
    m.session.wait().unwrap();
    assert_eq!(mounts::mounted_at(m.session.mount_point()).unwrap(), None);
}

#[test]
fn an_unmount_from_outside_ends_the_session() {
    if skipped("an_unmount_from_outside_ends_the_session") {
        return;
    }
    let m = Mounted::new(Manners::new(Way::Passthrough));
    assert!(!m.session.has_ended());
    let done = Command::new("umount").arg(m.session.mount_point()).status().unwrap();
    assert!(done.success());
    m.runtime.block_on(m.session.ended());
    m.session.wait().unwrap();
    // Another mount at the same place is not ours to remove.
    let other = Shelf::new(&m.dir.path().join("store"), Manners::new(Way::Passthrough));
    let options = options(m.session.mount_point(), &m.dir.path().join("store"));
    let other = Session::mount(other, options, m.runtime.handle().clone()).unwrap();
    m.session.unmount(true).unwrap();
    assert!(mounts::mounted_at(other.mount_point()).unwrap().is_some());
    common::unmount(&other);
    other.wait().unwrap();
}

#[test]
fn mount_points_that_will_not_do() {
    if skipped("mount_points_that_will_not_do") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for (name, wanted) in [("missing", libc::ENOENT), ("file", libc::ENOTDIR)] {
        let shelf = Shelf::new(dir.path(), Manners::new(Way::Direct));
        let options = options(&dir.path().join(name), dir.path());
        let error = Session::mount(shelf, options, runtime.handle().clone()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(wanted), "{name}");
    }
}

#[test]
fn passthrough_is_refused_with_a_reason() {
    if skipped("passthrough_is_refused_with_a_reason") {
        return;
    }
    let off = Mounted::with(Manners::new(Way::Direct), |options| options.probe_file = None);
    assert_eq!(off.session.abilities().passthrough_refusal, Some("switched off"));

    // A cache directory that is itself on a mount of ours is stacked too deep. Handles with
    // passthrough still work, with ordinary I/O.
    let below = Mounted::new(Manners::new(Way::Passthrough));
    fs::write(below.path("probe"), "").unwrap();
    let store = below.path("store");
    fs::create_dir(&store).unwrap();
    let point = below.dir.path().join("above");
    fs::create_dir(&point).unwrap();
    let shelf = Shelf::new(&store, Manners::new(Way::Passthrough));
    let above = Session::mount(
        Arc::clone(&shelf) as _,
        options(&point, &store),
        below.runtime.handle().clone(),
    )
    .unwrap();
    let refusal = above.abilities().passthrough_refusal.unwrap();
    assert!(refusal.contains("stacked"), "{refusal}");
    fs::write(point.join("f"), "ordinary").unwrap();
    assert_eq!(fs::read(point.join("f")).unwrap(), b"ordinary");
    assert!(shelf.take_trace().iter().any(|op| op == "write"));
    common::unmount(&above);
    above.wait().unwrap();
}

#[test]
fn locks_of_flock_come_here_if_asked_for() {
    if skipped("locks_of_flock_come_here_if_asked_for") {
        return;
    }
    for wanted in [true, false] {
        let m =
            Mounted::with(Manners::new(Way::Passthrough), |options| options.want_flock = wanted);
        let refusal = (!wanted).then_some("switched off");
        assert_eq!(m.session.abilities().flock_refusal, refusal);
        let holder = File::create(m.path("f")).unwrap();
        let other = File::create(m.path("f")).unwrap();
        m.shelf.take_trace();
        holder.lock().unwrap();
        assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
        holder.unlock().unwrap();
        other.try_lock_shared().unwrap();
        let mut seen = m.shelf.take_trace();
        seen.retain(|op| op.starts_with("flock"));
        let all = [
            "flock Exclusive true",
            "flock Exclusive false",
            "flock Unlock true",
            "flock Shared false",
        ];
        assert_eq!(seen, if wanted { &all[..] } else { &[] });
        drop(other);
        // No call waits for the RELEASE that ends the lock.
        common::within(Duration::from_secs(5), "the end of a lock", || holder.try_lock().is_ok());
    }
}

#[test]
fn changes_from_elsewhere_are_pushed() {
    if skipped("changes_from_elsewhere_are_pushed") {
        return;
    }
    let m = Mounted::new(Manners::new(Way::Passthrough));
    let inval = m.session.notifier();
    let push = |name: &str| {
        let before = inval.sent();
        inval.inval_entry(Ino::ROOT, name.as_ref());
        common::within(Duration::from_secs(5), "invalidation", || inval.sent() > before);
    };
    assert!(!m.path("f").exists());
    m.shelf.create_behind("f");
    assert!(!m.path("f").exists(), "the kernel caches the miss");
    push("f");
    assert!(m.path("f").exists());
    let open = File::open(m.path("f")).unwrap();
    m.shelf.remove_behind("f");
    assert!(m.path("f").exists(), "the kernel caches the entry");
    push("f");
    assert!(!m.path("f").exists());
    drop(open);
    push("never looked up");
    assert_eq!(inval.dropped(), 0);
}

/// Invalidations in a directory whose requests wait for us must not block any caller.
#[test]
fn invalidations_never_block() {
    if skipped("invalidations_never_block") {
        return;
    }
    let m = Mounted::new(Manners::new(Way::Passthrough));
    let inval = m.session.notifier();
    let start = common::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..500 {
                fs::write(m.path(format!("f{}", i % 7)), "x").unwrap();
                drop(fs::remove_file(m.path(format!("f{}", (i + 3) % 7))));
            }
        });
        for i in 0..40_000 {
            inval.inval_entry(Ino::ROOT, format!("f{}", i % 7).as_ref());
        }
        assert!(start.elapsed() < Duration::from_secs(5));
    });
    let settled = || inval.sent() + inval.dropped() == 40_000;
    common::within(Duration::from_secs(20), "settling", settled);
}

/// Returns what FLUSH saw of the process that ran `script`.
fn closer(m: &Mounted, script: &str) -> (u32, Vec<(Option<u32>, bool)>) {
    m.shelf.closers.lock().unwrap().clear();
    let mut child = Command::new("python3")
        .args(["-c", script])
        .current_dir(m.dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    match line.trim() {
        "kill" => send_signal(child.id(), Signal::Kill).unwrap(),
        "term" => send_signal(child.id(), Signal::Terminate).unwrap(),
        _ => {}
    }
    child.wait().unwrap();
    let seen = || !m.shelf.closers.lock().unwrap().is_empty();
    common::within(Duration::from_secs(5), "flush", seen);
    (child.id(), m.shelf.closers.lock().unwrap().clone())
}

/// Opens a file and writes to it.
const OPEN: &str = "import os, sys, time, threading, signal
fd = os.open('mnt/f', os.O_WRONLY | os.O_CREAT)
os.write(fd, b'x')
";
/// Further threads that exist when the process ends.
const THREADS: &str = "for _ in range(8):
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
";

#[test]
fn killed_and_exiting_closers_are_distinguished() {
    if skipped("killed_and_exiting_closers_are_distinguished") {
        return;
    }
    if Command::new("python3").arg("-V").output().is_err() {
        return say_skipped("killed_and_exiting_closers_are_distinguished", "no python3");
    }
    let wait = |how: &str| format!("print('{how}', flush=True)\ntime.sleep(100)\n");
    let table = [
        ("close", "os.close(fd)\nprint('', flush=True)\n".to_owned(), false),
        ("exit", "print('', flush=True)\nsys.exit(0)\n".to_owned(), false),
        ("exit 1", "print('', flush=True)\nsys.exit(1)\n".to_owned(), false),
        ("_exit", "print('', flush=True)\nos._exit(3)\n".to_owned(), false),
        ("_exit 15", "print('', flush=True)\nos._exit(15)\n".to_owned(), false),
        ("SIGKILL", wait("kill"), true),
        ("SIGTERM", wait("term"), true),
        (
            "SIGSEGV",
            "print('', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)\n".to_owned(),
            true,
        ),
        ("SIGABRT", "print('', flush=True)\nos.abort()\n".to_owned(), true),
    ];
    let m = Mounted::new(Manners::new(Way::Passthrough));
    for (what, end, dying) in &table {
        for threads in ["", THREADS] {
            for _ in 0..if threads.is_empty() { 1 } else { 4 } {
                let (process, seen) = closer(&m, &format!("{OPEN}{threads}{end}"));
                assert_eq!(seen, [(Some(process), *dying)], "{what} {}", threads.len());
            }
        }
    }
    // A thread other than the first closes the file.
    let script = format!(
        "{OPEN}t = threading.Thread(target=os.close, args=(fd,))\nt.start()\nt.join()\nprint('', flush=True)\n"
    );
    let (process, seen) = closer(&m, &script);
    assert_eq!(seen, [(Some(process), false)]);
}

/// A program that starts another closes its close-on-exec files inside `execve`. Reading the wrong
/// file of `/proc` then makes both wait for each other.
#[test]
fn a_close_by_execve_is_a_close() {
    if skipped("a_close_by_execve_is_a_close") {
        return;
    }
    for way in [Way::Passthrough, Way::Cached, Way::Direct] {
        let m = Mounted::new(Manners::new(way));
        let start = common::now();
        for round in 0..20 {
            let mut file = File::create(m.path(format!("f{round}"))).unwrap();
            file.write_all(b"body").unwrap();
            assert!(Command::new("/bin/true").status().unwrap().success());
            // Through a shell that is also replaced.
            let mut shell = Command::new("/bin/sh");
            shell.args(["-c", "exec /bin/echo more"]).stdout(file);
            assert!(shell.status().unwrap().success());
        }
        assert!(start.elapsed() < Duration::from_secs(10), "{way:?}");
        let seen = m.shelf.closers.lock().unwrap().clone();
        assert!(
            seen.len() >= 40 && seen.iter().all(|(process, dying)| process.is_some() && !dying)
        );
    }
}

/// A process of another user can close a file that was passed to it, like any other.
#[test]
fn a_stranger_may_close_what_it_was_handed() {
    if skipped("a_stranger_may_close_what_it_was_handed") {
        return;
    }
    let m = Mounted::with(Manners::new(Way::Passthrough), |options| options.allow_other = false);
    let file = File::create(m.path("f")).unwrap();
    let done = Command::new("/bin/sh")
        .args(["-c", "echo body"])
        .current_dir("/")
        .stdout(file)
        .uid(1000)
        .gid(1000)
        .status()
        .unwrap();
    assert!(done.success());
    assert_eq!(fs::read(m.path("f")).unwrap(), b"body\n");
    let closers = m.shelf.closers.lock().unwrap().clone();
    assert!(closers.iter().any(|(process, _)| *process != Some(std::process::id())), "{closers:?}");
    let refused = Command::new("/bin/ls").arg(m.path("")).uid(1000).gid(1000).output().unwrap();
    assert!(!refused.status.success());
}

/// The longest wake that the kernel accepts now, in microseconds: the least that any process asks for.
fn longest_wake_us() -> i32 {
    let device = fs::read("/dev/cpu_dma_latency").unwrap();
    i32::from_ne_bytes(device[..4].try_into().unwrap())
}

#[test]
fn processors_wake_quickly_only_while_the_mount_is_used() {
    if skipped("processors_wake_quickly_only_while_the_mount_is_used") {
        return;
    }
    let off = Mounted::with(Manners::new(Way::Cached), |options| options.wakes = Wakes::Unchanged);
    assert_eq!(off.session.abilities().wake_refusal, Some("switched off"));
    let m = Mounted::new(Manners::new(Way::Cached));
    if let Some(refusal) = m.session.abilities().wake_refusal {
        let driver = fs::read_to_string("/sys/devices/system/cpu/cpuidle/current_driver");
        let can_ask = driver.is_ok_and(|driver| driver.trim() != "none")
            && Path::new("/dev/cpu_dma_latency").exists()
            && hearthfs_mount::process::effective_user() == 0;
        assert!(!can_ask, "{refusal}");
        return;
    }
    let is_quick = |n| {
        assert!(fs::metadata(m.path(format!("missing-{n}"))).is_err());
        longest_wake_us() <= 2
    };
    assert!((0..100_000).any(is_quick), "not asked for while in use");
    // Other tests of this program may be using their mounts.
    let began = tokio::time::Instant::now();
    while longest_wake_us() <= 2 {
        assert!(began.elapsed() < Duration::from_mins(1), "asked for without any use");
        std::thread::yield_now();
    }
}
