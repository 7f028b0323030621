//! Limits: full tiers, full disks, and users that want too much. Few descriptors: `few_descriptors`.
//!
//! Owns what a program sees when a resource runs out: writers are slowed, readers miss, no existing
//! name is reported as missing, and the daemon does not grow.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Dice, Id};
use crate::harness::command::run;
use crate::harness::node::Site;
use crate::harness::store::Trouble;
use crate::harness::syscall_process::{CREATE_NEW, SCRATCH};
use crate::harness::time::thread;
use crate::harness::{
    Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, is_root, now,
    skipped, tree,
};
use crate::spoilt::blob_of;

const LIMIT_MS: u64 = 40_000;
/// The longest duration of a refusal without a wait.
const AT_ONCE_MS: u128 = 2_000;

pub(crate) fn content(writer: u32, seq: u64, len: usize) -> Vec<u8> {
    body::make(Id { writer, seq }, len)
}

/// Runs several writers as fast as possible; none may get an error.
fn burst(node: &Node, writers: u32, files: u64, len: usize) {
    let mount = Arc::new(node.mount.clone());
    let work = move |writer: u32, mount: &Path| {
        let mut process = SyscallProcess::new();
        process.limit_ms(90_000);
        for k in 0..files {
            let name = mount.join(format!("w{writer}-{k}"));
            process.put(&name, &content(writer, k, len)).must(format_args!("file {k} of {writer}"));
        }
    };
    let all: Vec<_> = (0..writers)
        .map(|writer| {
            let mount = Arc::clone(&mount);
            thread(move || work(writer, &mount))
        })
        .collect();
    for one in all {
        one.join().must("a writer");
    }
    node.drain();
    let mut process = SyscallProcess::new();
    for writer in 0..writers {
        for k in 0..files {
            let read = process.get(&node.at(format!("w{writer}-{k}")));
            assert!(read == Ok(content(writer, k, len)), "file {k} of {writer} afterwards");
        }
    }
}

/// Six times the tier's size, as fast as the disk allows, with a store that keeps up.
fn limits_slow_writers_of_a_burst(io: Io) {
    let site = Site::new();
    let store = Store::dir(&site);
    let options = Options::new(io).cache_size("64MiB");
    let node = Node::start(&site, "m", Some(&store), options);
    burst(&node, 4, 25, 4 << 20);
    let status = node.status();
    assert_eq!(status["counters"]["refused"].as_u64(), Some(0));
    let told = node.log().lines().filter(|line| line.contains("writers are slowed")).count();
    assert!(told <= 3, "{told} lines for one episode:\n{}", node.log());
    let held = tree::disk_use(&node.cache) >> 20;
    assert!(held <= 64 + 12, "{held} MiB on disk");
}
in_both_modes!(limits_slow_writers_of_a_burst);

fn limits_slow_writers_of_a_slow_store(io: Io) {
    let site = Site::new();
    let store = Store::s3(&site);
    let options = Options::new(io).cache_size("16MiB");
    let node = Node::start(&site, "m", Some(&store), options);
    store.trouble(Trouble::Slow(100));
    burst(&node, 3, 20, 1 << 20);
    assert!(node.status()["counters"]["slowed"].as_u64() > Some(0), "no writer was slowed");
}
in_both_modes!(limits_slow_writers_of_a_slow_store);

/// Four ordinary programs on a small tier.
fn limits_slow_writers_among_readers(io: Io) {
    let site = Site::new();
    let store = Store::dir(&site);
    let node = Node::start(&site, "m", Some(&store), Options::new(io).cache_size("16MiB"));
    let mount = Arc::new(node.mount.clone());
    let program = |writer: u32, mount: &Path| {
        let (mut process, mut dice) = (SyscallProcess::new(), Dice::new(u64::from(writer)));
        process.limit_ms(90_000);
        let mut written = Vec::new();
        for k in 0..500 {
            if written.is_empty() || dice.below(10) < 3 {
                let len = 200 + dice.below(200_000) as usize;
                let name = mount.join(format!("p{writer}-{k}"));
                process.put(&name, &content(writer, k, len)).must(format_args!("write {k}"));
                written.push((name, k, len));
            } else {
                let (name, k, len) = &written[dice.below(written.len() as u64) as usize];
                // While uploads make room, an evicted entry may be a miss at its deadline.
                let read = eventually(60_000, format_args!("read {k} of {writer}"), || {
                    process.get(name).map_err(|errno| {
                        assert_eq!(errno, Errno::NOENT, "read {k} of {writer}");
                        errno.to_string()
                    })
                });
                assert!(read == content(writer, *k, *len), "file {k} of {writer}");
            }
        }
    };
    let all: Vec<_> = (0..4)
        .map(|writer| {
            let mount = Arc::clone(&mount);
            thread(move || program(writer, &mount))
        })
        .collect();
    for one in all {
        one.join().must("a program");
    }
    assert_eq!(node.status()["counters"]["refused"].as_u64(), Some(0));
}
in_both_modes!(limits_slow_writers_among_readers);

/// There is no wait for a store that is known to be down.
fn limits_full_without_a_store_is_an_error_at_once(io: Io) {
    let site = Site::new();
    let store = Store::dir(&site);
    let options = Options::new(io).cache_size("16MiB").deadline("1s");
    let node = Node::start(&site, "m", Some(&store), options);
    store.fail();
    let mut process = SyscallProcess::new();
    process.put(&node.at("first"), &content(0, 0, 4096)).must("put");
    eventually(20_000, "the store is known to be down", || {
        let health = node.status()["health"].clone();
        let down = health["up"].as_bool() == Some(false);
        let known = health["since_ms"].as_u64() > Some(1_000);
        if down && known { Ok(()) } else { Err(health.to_string()) }
    });
    let mut refused = 0;
    for k in 0..20 {
        let begun = now();
        match process.put(&node.at(format!("f{k}")), &content(1, k, 2 << 20)) {
            Ok(()) => {}
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC);
                let waited = begun.elapsed().as_millis();
                assert!(waited < AT_ONCE_MS, "{waited} ms until the refusal");
                refused += 1;
            }
        }
    }
    assert!(refused > 5, "40 MiB fitted into 16");
    let status = node.status();
    assert!(status["slowed"]["why"].as_str().is_some_and(|why| why.contains("down")), "{status}");
    let mount = node.mount.to_string_lossy();
    let shown = node.command(&["status", &mount]).good();
    assert!(shown.contains("SLOWED"), "{shown}");
    store.heal();
    eventually(20_000, "there is room again", || {
        process.put(&node.at("later"), &content(2, 0, 1 << 20)).map_err(|errno| errno.to_string())
    });
    node.drain();
}
in_both_modes!(limits_full_without_a_store_is_an_error_at_once);

/// If a store answers but accepts nothing, a writer waits once, for the configured time.
#[test]
fn limits_full_wait_ends() {
    let site = Site::new();
    let store = Store::s3(&site);
    // Without name lookups at a store that does not answer.
    let options = Options::new(Io::best()).cache_size("16MiB").full_wait("3s").freshness("1h");
    let node = Node::start(&site, "m", Some(&store), options);
    store.trouble(Trouble::Slow(60_000));
    let mut process = SyscallProcess::new();
    let mut waits = Vec::new();
    for k in 0..16 {
        let begun = now();
        if process.put(&node.at(format!("f{k}")), &content(1, k, 2 << 20)) == Err(Errno::NOSPC) {
            waits.push(begun.elapsed().as_millis());
        }
    }
    assert!(waits.len() > 3, "32 MiB fitted into 16");
    assert!(waits[0] < 6_000, "{waits:?}");
    assert!(waits[1..].iter().all(|wait| *wait < AT_ONCE_MS), "{waits:?}");
    store.heal();
}

/// A full tier ends the gathering of a batch early.
#[test]
fn limits_full_tier_ends_the_gathering() {
    let site = Site::new();
    let store = Store::dir(&site);
    let options = Options::new(Io::best()).cache_size("16MiB").delay("60s");
    let node = Node::start(&site, "m", Some(&store), options);
    let (mut process, begun) = (SyscallProcess::new(), now());
    for k in 0..24 {
        process.put(&node.at(format!("f{k}")), &content(1, k, 2 << 20)).must("put");
    }
    let took = begun.elapsed().as_secs();
    assert!(took < 30, "48 MiB took {took} s");
}

/// A small disk of its own for one test.
fn small_disk(name: &str, site: &Site, size: &str) -> Option<std::path::PathBuf> {
    if !is_root() {
        skipped(name, "a small disk of its own needs root");
        return None;
    }
    let disk = site.dir("disk");
    let mut mount = Command::new("mount");
    let size = format!("size={size}");
    mount.args(["-t", "tmpfs", "-o", &size, "none"]).arg(&disk);
    let mounted = run(&mut mount, LIMIT_MS);
    if !mounted.status.success() {
        skipped(name, mounted.err.trim());
        return None;
    }
    Some(disk)
}

/// An entry of another node for which the disk has no room is a miss, and is not downloaded repeatedly.
fn limits_a_full_disk_is_a_miss_for_readers(io: Io) {
    let site = Site::new();
    let name = format!("limits_a_full_disk_is_a_miss_for_readers::{}", io.word());
    // Not every tmpfs supports passthrough; a miss is handled the same way without it.
    let Some(disk) = small_disk(&name, &site, "48m") else { return };
    let store = Store::s3(&site);
    let a = Node::start(&site, "a", Some(&store), Options::new(io));
    let mut process = SyscallProcess::new();
    process.put(&a.at("large"), &content(1, 1, 3_000_000)).must("put");
    process.put(&a.at("packed"), &content(1, 2, 200_000)).must("put");
    a.drain();
    let b = Node::start_in(&site, "b", Some(&store), Options::new(io), &disk.join("cache"));
    let room = rustix::fs::statvfs(&disk).must("statvfs");
    let fill = (room.f_bavail * room.f_frsize).saturating_sub(2 << 20);
    let hog = disk.join("hog");
    std::fs::write(&hog, vec![1; fill as usize]).must("fill the disk");
    eventually(6_000, "node B lists the names", || {
        process.stat(&b.at("large")).map_err(|errno| errno.to_string())
    });
    let fetched = || b.status()["counters"]["fetched_bytes"].as_u64().unwrap_or(0);
    let before = fetched();
    for name in ["large", "packed"] {
        for _ in 0..20 {
            assert_eq!(process.get(&b.at(name)), Err(Errno::NOENT), "{name} on a full disk");
        }
    }
    let more = fetched() - before;
    assert!(more < 100_000, "{more} bytes were fetched that cannot be kept");
    let status = b.status();
    assert!(status["counters"]["without_room"].as_u64() >= Some(2), "{status}");
    assert_eq!(status["local"]["disk_full"], true, "{status}");
    let mount = b.mount.to_string_lossy();
    let text = b.command(&["status", &mount]).good();
    assert!(text.contains("no room") && text.contains("disk      FULL: "), "{text}");
    let large = b.at("large").to_string_lossy().into_owned();
    let why = b.command(&["explain", "--json", &large]).good();
    assert!(why.contains("\"reason\": \"no_room\""), "{why}");
    let said = b.command(&["run", "--mount", &mount, "--", "true"]);
    assert!(said.err.contains("is full ("), "{said:?}");
    assert!(said.err.contains(&format!("the log of the daemon is {}", b.log_path())), "{said:?}");
    std::fs::remove_file(&hog).must("make room");
    eventually(10_000, "the disk has room again", || {
        let local = b.status()["local"].clone();
        if local["disk_full"] == false { Ok(()) } else { Err(local.to_string()) }
    });
    for (name, body) in [("large", content(1, 1, 3_000_000)), ("packed", content(1, 2, 200_000))] {
        eventually(10_000, format_args!("{name} when there is room"), || {
            let read = process.get(&b.at(name)).map_err(|errno| errno.to_string())?;
            if read == body { Ok(()) } else { Err("other bytes".to_owned()) }
        });
    }
    drop((a, b));
    run(Command::new("umount").arg(&disk), LIMIT_MS).good();
}
in_both_modes!(limits_a_full_disk_is_a_miss_for_readers);

fn memory(node: &Node) -> u64 {
    let path = format!("/proc/{}/status", node.pid().as_raw_nonzero());
    let text = std::fs::read_to_string(path).must("read a process's status");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).must("VmRSS");
    let kib: u64 = line.split_whitespace().nth(1).must(line).parse().must(line);
    kib << 10
}

/// Extended attributes are kept in memory, so their sum is limited.
fn limits_attributes_do_not_grow_the_daemon(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let mut process = SyscallProcess::new();
    let (begun, large) = (memory(&node), vec![1; 60_000]);
    for k in 0..1_000 {
        let path = node.at(format!("f{k}"));
        process.put(&path, b"").must("put");
        assert_eq!(process.setxattr(&path, "user.large", &large, 0), Err(Errno::NOSPC));
        assert_eq!(process.setxattr(&path, "user.more", &[1; 4_090], 0), Err(Errno::NOSPC));
        process.setxattr(&path, "user.small", b"value", 0).must("a small one");
        process.removexattr(&path, "user.small").must("remove it");
    }
    let mut taken = 0;
    let refused = (0..6_000).find(|k| {
        let path = node.at(format!("g{k}"));
        process.put(&path, b"").must("put");
        match process.setxattr(&path, "user.most", &[1; 4_000], 0) {
            Ok(()) => taken += 4_009,
            Err(errno) => assert_eq!(errno, Errno::NOSPC),
        }
        taken + 4_009 > 16 << 20
    });
    let refused = refused.must("a reachable sum") + 1;
    let path = node.at(format!("g{refused}"));
    process.put(&path, b"").must("put");
    assert_eq!(process.setxattr(&path, "user.most", &[1; 4_000], 0), Err(Errno::NOSPC));
    process.unlink(&node.at("g0")).must("unlink");
    process.setxattr(&path, "user.most", &[1; 4_000], 0).must("there is room again");
    let grown = memory(&node).saturating_sub(begun) >> 20;
    assert!(grown < 120, "the daemon has grown by {grown} MiB");
}
in_both_modes!(limits_attributes_do_not_grow_the_daemon);

/// Damages a file of the cache directory.
type Spoil = fn(&Path);

/// Files of the cache directory that are damaged while the daemon runs: misses, with one warning each.
fn limits_blobs_that_are_spoilt(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let mut process = SyscallProcess::new();
    let spoil: [(&str, Spoil); 3] = [
        ("cut", |path| {
            let file = std::fs::OpenOptions::new().write(true).open(path).must("open");
            file.set_len(10).must("cut");
        }),
        ("replaced", |path| {
            let other = path.with_extension("other");
            std::fs::write(&other, content(9, 9, 5_000)).must("write another");
            std::fs::rename(&other, path).must("put it in place");
        }),
        ("deleted", |path| std::fs::remove_file(path).must("remove")),
    ];
    for (k, (name, _)) in spoil.iter().enumerate() {
        process.put(&node.at(name), &content(1, k as u64, 5_000)).must("put");
    }
    for (k, (name, spoil)) in spoil.iter().enumerate() {
        let bytes = content(1, k as u64, 5_000);
        let digest = blake3::hash(&bytes).to_hex().to_string();
        spoil(&blob_of(&node, &bytes));
        let warned =
            || node.log().lines().filter(|l| l.contains(" WARN ") && l.contains(&digest)).count();
        for _ in 0..5 {
            assert_eq!(process.get(&node.at(name)), Err(Errno::NOENT), "{name}");
        }
        assert_eq!(warned(), 1, "{name}:\n{}", node.log());
        process.put(&node.at(name), &content(2, k as u64, 5_000)).must("write it again");
        assert!(process.get(&node.at(name)) == Ok(content(2, k as u64, 5_000)), "{name} again");
    }
}
in_both_modes!(limits_blobs_that_are_spoilt);

/// A cache directory that others can change is refused, with key, value and remedy.
#[test]
fn limits_cache_directories_of_others() {
    use std::os::unix::fs::PermissionsExt as _;
    const NAME: &str = "limits_cache_directories_of_others";
    let desk = crate::bad_input::Desk::new();
    let (base, mount) = (desk.site.dir("base"), desk.mount.clone());
    let try_it = |cache: &Path, words: &[&str]| {
        let text = cache.to_str().must("text").to_owned();
        let names: Vec<&str> = ["cache", &text].into_iter().chain(words.iter().copied()).collect();
        let start = |_: &crate::bad_input::Desk| {
            run(desk.site.hearthfs().args(["mount", &mount, "--cache-dir", &text]), LIMIT_MS)
        };
        desk.refuses(start, &names);
    };
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).must("chmod");
    };
    let cache = desk.site.dir("base/cache");
    for mode in [0o777, 0o775, 0o757, 0o1777] {
        chmod(&cache, mode);
        try_it(&cache, &["local.cache_dir", "written by others", "chmod go-w"]);
    }
    chmod(&cache, 0o755);
    chmod(&base, 0o777);
    try_it(&cache, &["base", "written by others"]);
    try_it(&base.join("new"), &["base", "written by others"]);
    chmod(&base, 0o755);
    if !is_root() {
        skipped(NAME, "giving directories to others needs root");
        return;
    }
    let give = |path: &Path| std::os::unix::fs::lchown(path, Some(4_711), None).must("chown");
    give(&cache);
    try_it(&cache, &["user 4711"]);
    let mine = desk.site.dir("mine");
    let link = base.join("link");
    std::os::unix::fs::symlink(&mine, &link).must("symlink");
    give(&link);
    try_it(&link, &["user 4711"]);
    try_it(&link.join("below"), &["user 4711"]);
    // The default for a user without a home, when another user was there first.
    give(&base);
    try_it(&base.join("new"), &["user 4711"]);
}

/// The command does not inherit the limit that the daemon raises for itself.
#[test]
fn limits_of_a_command_are_its_own() {
    let site = Site::new();
    let (mount, cache) = (site.dir("m"), site.path().join("cache"));
    let mut command = Command::new("sh");
    crate::harness::node::dress(&mut command, site.path());
    let script =
        "ulimit -Sn 300; exec \"$0\" run --mount \"$1\" --cache-dir \"$2\" -- sh -c 'ulimit -Sn'";
    command.args(["-c", script, env!("CARGO_BIN_EXE_hearthfs")]).arg(&mount).arg(&cache);
    assert_eq!(run(&mut command, LIMIT_MS).good().trim(), "300");
}

/// A sparse file that is larger than the tier is refused at once at its close, and others do not wait for it.
fn limits_a_file_of_holes_is_refused_at_once(io: Io) {
    const HUGE: u64 = 8 << 40;
    let site = Site::alone();
    let store = Store::dir(&site);
    let node = Node::start(&site, "m", Some(&store), Options::new(io).alone());
    let (old, mut other) = (content(1, 0, 50_000), SyscallProcess::new());
    for name in ["old", "beside"] {
        other.put(&node.at(name), &old).must("put");
    }
    for (name, flags) in [("new", CREATE_NEW), ("readable", SCRATCH), ("old", OFlags::RDWR)] {
        for written in [false, true] {
            let when = format!("{name}, written {written}");
            let mut process = SyscallProcess::new();
            let fd = process.open(&node.at(name), flags, 0o644).must("open");
            process.ftruncate(fd, HUGE).must("grow");
            if written {
                process.pwrite(fd, HUGE - 5, b"end..").must("write at the end");
            }
            let closing = thread(move || {
                let begun = now();
                (process.close(fd), begun.elapsed().as_millis())
            });
            let begun = now();
            assert_eq!(other.get(&node.at("beside")), Ok(old.clone()), "{when}");
            other.put(&node.at(format!("more {when}")), &old).must("put beside it");
            let ms = begun.elapsed().as_millis();
            assert!(ms < AT_ONCE_MS, "{when}: others waited {ms} ms");
            let (closed, ms) = closing.join().must("close");
            assert_eq!(closed, Err(Errno::NOSPC), "{when}");
            assert!(ms < AT_ONCE_MS, "{when}: refused after {ms} ms");
            let expected = if name == "old" { Ok(old.clone()) } else { Err(Errno::NOENT) };
            assert_eq!(other.get(&node.at(name)), expected, "{when}, afterwards");
        }
    }
    node.drain();
    let held = tree::disk_use(&node.cache) >> 20;
    assert!(held <= 16, "{held} MiB on disk");
}
in_both_modes!(limits_a_file_of_holes_is_refused_at_once);

/// `truncate` of a name to more than the tier holds is also refused at once.
fn limits_a_name_grown_beyond_the_tier_is_refused_at_once(io: Io) {
    let (site, old, mut process) = (Site::alone(), content(1, 0, 50_000), SyscallProcess::new());
    let node = Node::start(&site, "m", None, Options::new(io).alone());
    process.put(&node.at("old"), &old).must("put");
    let begun = now();
    assert_eq!(process.truncate(&node.at("old"), 8 << 40), Err(Errno::NOSPC));
    let ms = begun.elapsed().as_millis();
    assert!(ms < AT_ONCE_MS, "refused after {ms} ms");
    assert_eq!(process.get(&node.at("old")), Ok(old));
}
in_both_modes!(limits_a_name_grown_beyond_the_tier_is_refused_at_once);
