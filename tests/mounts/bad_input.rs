//! Bad input: refused before anything is changed, with the key, the value and the remedy; and the
//! names, sizes and full disks that a cache must handle.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::body::{self, Id};
use crate::harness::command::{Said, need, run};
use crate::harness::node::{Site, is_mounted};
use crate::harness::time::wall;
use crate::harness::tree::{self, Tree};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes,
    is_root, skipped,
};
use crate::stores::Unable;

const REFUSED: i32 = 2;
pub(crate) const LIMIT_MS: u64 = 40_000;

fn text(path: &Path) -> String {
    path.to_str().must("a path that is text").to_owned()
}

/// A site with a good mount point and a good path for the cache directory.
pub(crate) struct Desk {
    pub(crate) site: Site,
    pub(crate) mount: String,
    pub(crate) cache: String,
}

impl Desk {
    pub(crate) fn new() -> Self {
        let site = Site::new();
        let mount = text(&site.dir("m"));
        let cache = text(&site.path().join("cache"));
        Self { site, mount, cache }
    }

    fn mount(&self, words: &[&str]) -> Said {
        let mut command = self.site.hearthfs();
        command.args(["mount", &self.mount, "--cache-dir", &self.cache]).args(words);
        run(&mut command, LIMIT_MS)
    }

    /// Returns what is on the disk, apart from the runtime directory.
    fn disk(&self) -> Tree {
        let mut all = tree::read(self.site.path()).must("read the site");
        all.retain(|path, _| !path.starts_with("run"));
        all
    }

    /// Runs what must be refused: exit code 2, a message with these words and a hint, and nothing
    /// changed on the disk.
    #[track_caller]
    pub(crate) fn refuses(&self, what: impl FnOnce(&Self) -> Said, names: &[&str]) {
        let before = self.disk();
        let said = what(self);
        assert_eq!(said.code(), REFUSED, "{said:?}");
        assert!(said.out.is_empty(), "{said:?}");
        assert!(said.err.contains("error: "), "no `error:` line: {}", said.err);
        for name in names {
            assert!(said.err.contains(name), "the message does not name {name}:\n{}", said.err);
        }
        let lines = said.err.lines().filter(|line| !line.trim().is_empty()).count();
        assert!(lines <= 6, "a refusal is a few lines:\n{}", said.err);
        assert_eq!(tree::difference(&before, &self.disk()), "", "the disk was changed");
        assert!(!is_mounted(self.mount.as_ref()), "it is mounted");
    }
}

#[test]
fn bad_input_urls() {
    let desk = Desk::new();
    for url in [
        "ftp://host/x",
        "nonsense",
        "s3://",
        "s3:///prefix",
        "file://",
        "file:relative",
        "file://host/dir",
        "s3://UPPER_case!/x",
        "http://bucket",
        "s3://bucket/../up",
        "gs://UPPER/x",
        "gs://",
        "az://account",
        "az://account.blob.core.windows.net/container",
        "az://account/UPPER",
    ] {
        desk.refuses(|desk| desk.mount(&["--remote", url]), &[url]);
    }
    desk.refuses(
        |desk| desk.mount(&["--remote", "file:///no/such/parent/dir"]),
        &["/no/such/parent"],
    );
}

#[test]
fn bad_input_configuration() {
    let desk = Desk::new();
    let file = desk.site.path().join("c.toml");
    for (toml, names) in [
        ("[local]\ncache_siz = \"1GiB\"\n", &["cache_siz", "cache_size"][..]),
        ("[lokal]\ncache_size = \"1GiB\"\n", &["lokal"]),
        ("cache_size = \"1GiB\"\n", &["cache_size"]),
        ("[local]\ncache_size = \"12 parsecs\"\n", &["cache_size", "12 parsecs"]),
        ("[local]\ncache_size = \"-5GiB\"\n", &["cache_size", "-5GiB"]),
        ("[local]\ncache_size = \"1KiB\"\n", &["cache_size", "1KiB", "16"]),
        ("[local]\ncache_size = \"99999999999999999999GiB\"\n", &["cache_size"]),
        ("[local]\ncache_size = []\n", &["cache_size"]),
        ("[remote]\ndeadline = \"soon\"\n", &["deadline", "soon"]),
        ("[remote]\ndeadline = \"5 lightyears\"\n", &["deadline", "5 lightyears"]),
        ("[remote]\nurl = \"gopher://x\"\n", &["url", "gopher://x"]),
        ("[mount]\nio = \"fast\"\n", &["io", "fast", "passthrough"]),
        ("[mount]\nwrites = \"perhaps\"\n", &["mount.writes", "perhaps", "private"]),
        ("[log]\nlevel = \"loud\"\n", &["level", "loud"]),
        ("[mount\n", &["c.toml"]),
        ("[mount]\nio = \"auto\"\nio = \"auto\"\n", &["c.toml:3", "duplicate"]),
    ] {
        std::fs::write(&file, toml).must("write");
        let config = text(&file);
        desk.refuses(|desk| desk.mount(&["--config", &config]), names);
        let checked =
            run(desk.site.hearthfs().args(["config", "check", "--config", &config]), LIMIT_MS);
        assert_eq!(checked.code(), REFUSED, "config check of {toml:?}: {checked:?}");
    }
    desk.refuses(|desk| desk.mount(&["--config", "/no/such/file.toml"]), &["/no/such/file.toml"]);
    desk.refuses(|desk| desk.mount(&["--cache-size", "7 apples"]), &["7 apples"]);
    let mut command = desk.site.hearthfs();
    command.args(["mount", &desk.mount, "--cache-dir", &desk.cache]);
    command.env("HEARTHFS_DEADLINE", "never");
    desk.refuses(|_| run(&mut command, LIMIT_MS), &["HEARTHFS_DEADLINE", "never"]);
}

#[test]
fn bad_input_mount_points() {
    let mut desk = Desk::new();
    let missing = text(&desk.site.path().join("missing"));
    let file = text(&desk.site.path().join("file"));
    std::fs::write(&file, b"x").must("write");
    let full = desk.site.dir("full");
    std::fs::write(full.join("something"), b"x").must("write");
    let good = std::mem::take(&mut desk.mount);
    for (point, word) in [(missing, "exist"), (file, "directory"), (text(&full), "empty")] {
        desk.mount = point.clone();
        desk.refuses(|desk| desk.mount(&[]), &[&point, word]);
    }
    assert!(full.join("something").exists(), "the directory in the way is kept");
    desk.mount = good;
}

#[test]
fn bad_input_mount_points_in_use_and_stale() {
    let site = Site::new();
    let mut node = Node::start(&site, "m", None, Options::new(Io::best()));
    std::fs::write(node.at("kept"), b"x").must("write");
    let (mount, other) = (text(&node.mount), text(&site.path().join("other.cache")));
    let said = run(site.hearthfs().args(["mount", &mount, "--cache-dir", &other]), LIMIT_MS);
    assert_eq!(said.code(), REFUSED, "{said:?}");
    assert!(said.err.contains(&mount), "{said:?}");
    assert!(!Path::new(&other).exists(), "a cache directory was made for a refused mount");
    assert_eq!(std::fs::read(node.at("kept")).must("the first mount goes on"), b"x");

    // A cache directory has one daemon; the second refuses and names the first.
    let (second, cache) = (text(&site.dir("second")), text(&node.cache));
    let said = run(site.hearthfs().args(["mount", &second, "--cache-dir", &cache]), LIMIT_MS);
    assert_eq!(said.code(), REFUSED, "{said:?}");
    let pid = node.pid().as_raw_nonzero().to_string();
    let names_it = said.err.contains(&pid) || said.err.contains(&mount);
    assert!(said.err.contains(&cache) && names_it, "{said:?}");
    assert_eq!(std::fs::read(node.at("kept")).must("the first mount goes on"), b"x");

    // What a crash left is removed by the next start of the same daemon, and by `unmount`.
    node.kill_only();
    assert!(is_mounted(&node.mount), "a dead mount is left behind");
    node.up();
    assert_eq!(std::fs::read(node.at("kept")).must("after the crash"), b"x");
    node.kill_only();
    assert_eq!(node.command(&["status", &mount]).code(), 3);
    node.command(&["unmount", &mount]).good();
    assert!(!is_mounted(&node.mount), "unmount takes a dead mount away");
    node.up();
    assert_eq!(std::fs::read(node.at("kept")).must("after the crash"), b"x");
}

#[test]
fn bad_input_cache_directories() {
    let mut desk = Desk::new();
    let file = text(&desk.site.path().join("file"));
    std::fs::write(&file, b"x").must("write");
    let inside = format!("{}/cache", desk.mount);
    let newer = desk.site.dir("newer");
    std::fs::create_dir(newer.join("v99")).must("make a newer format's directory");
    let foreign = desk.site.dir("foreign");
    std::fs::write(foreign.join("thesis.tex"), b"years of work").must("write");
    for (cache, word) in [
        (file, "directory"),
        (inside, "mount"),
        (text(&newer), "v99"),
        ("/proc/hearthfs".to_owned(), "/proc"),
        (format!("{}/foreign/thesis.tex/cache", text(desk.site.path())), "thesis.tex"),
    ] {
        desk.cache = cache.clone();
        desk.refuses(|desk| desk.mount(&[]), &[&cache, word]);
    }
}

#[test]
fn bad_input_cache_directory_without_room_or_permission() {
    const NAME: &str = "bad_input_cache_directory_without_room_or_permission";
    if !is_root() {
        skipped(NAME, "mounting a tmpfs needs root");
        return;
    }
    let mut desk = Desk::new();
    let tiny = desk.site.dir("tiny");
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=256k", "none"]).arg(&tiny);
    let mounted = run(&mut mount, LIMIT_MS);
    if !mounted.status.success() {
        skipped(NAME, mounted.err.trim());
        return;
    }
    desk.cache = text(&tiny.join("cache"));
    let cache = desk.cache.clone();
    desk.refuses(|desk| desk.mount(&[]), &[&cache]);
    run(Command::new("mount").args(["-o", "remount,ro"]).arg(&tiny), LIMIT_MS).good();
    desk.refuses(|desk| desk.mount(&[]), &[&cache]);
}

#[test]
fn bad_input_remotes_of_another_format() {
    let desk = Desk::new();
    let store = Store::dir(&desk.site);
    let mut node = Node::start(&desk.site, "first", Some(&store), Options::new(Io::best()));
    std::fs::write(node.at("entry"), b"x").must("write");
    node.stop();
    let head = store.objects().join("hearthfs.json");
    let good = std::fs::read_to_string(&head).must("the store's head object");
    let at = good.find(|c: char| c.is_ascii_digit()).must("a format number");
    let end = at + good[at..].find(|c: char| !c.is_ascii_digit()).unwrap_or(good.len() - at);
    let newer = format!("{}{}{}", &good[..at], "99", &good[end..]);
    for (content, word) in [(newer.as_str(), "99"), ("{\"recipes\": []}", ""), ("not JSON", "")] {
        std::fs::write(&head, content).must("write");
        let url = store.url();
        desk.refuses(|desk| desk.mount(&["--remote", &url]), &[&url, word]);
    }
    std::fs::write(&head, good).must("write");
    node.up();
    assert_eq!(std::fs::read(node.at("entry")).must("read"), b"x");
}

/// A store that lacks a required ability is refused. A mount that finds this out later, because the
/// store was unreachable at its start, goes on without the store.
#[test]
fn bad_input_a_store_that_is_unable() {
    let (desk, aside) = (Desk::new(), Site::new());
    let store = Store::s3(&aside);
    // The store already has our format, so that it gets as far as the trial.
    drop(Node::start(&aside, "first", Some(&store), Options::new(Io::best())));
    store.unable(Unable::Overwrite);
    let url = store.url();
    let mount = |desk: &Desk| {
        let mut command = desk.site.hearthfs();
        command.args(["mount", &desk.mount, "--cache-dir", &desk.cache, "--remote", &url]);
        run(command.envs(store.env()), LIMIT_MS)
    };
    desk.refuses(mount, &[&url, "cannot be used", "use another server"]);
    store.fail();
    let late = Node::start(&aside, "late", Some(&store), Options::new(Io::best()).deadline("1s"));
    store.heal();
    let status = eventually(30_000, "the daemon refuses the store", || {
        let status = late.status();
        let why = status["health"]["last_error"].as_str().unwrap_or_default();
        if why.contains("cannot be used") { Ok(status) } else { Err(format!("{status}")) }
    });
    assert_eq!(status["health"]["up"].as_bool(), Some(false));
    SyscallProcess::new().put(&late.at("f"), b"x").must("put");
    assert_eq!(std::fs::read(late.at("f")).must("read"), b"x");
    let told = late.log().lines().filter(|line| line.contains("cannot be used")).count();
    assert!((1..=2).contains(&told), "{}", late.log());
}

/// A missing bucket. The server in this process makes each bucket that is requested.
#[test]
fn bad_input_a_missing_bucket() {
    let store = match Store::moto() {
        Ok(store) => store,
        Err(reason) => return skipped("bad_input_a_missing_bucket", reason),
    };
    let desk = Desk::new();
    let url = "s3://no-such-bucket/x";
    let mount = |desk: &Desk| {
        let mut command = desk.site.hearthfs();
        command.args(["mount", &desk.mount, "--cache-dir", &desk.cache, "--remote", url]);
        run(command.envs(store.env()), LIMIT_MS)
    };
    desk.refuses(mount, &[url]);
}

/// The mount accepts every name that a disk accepts, and refuses the others in the same way.
fn bad_input_names(io: Io) {
    let cluster = Cluster::two(io);
    let mut process = SyscallProcess::new();
    let odd: Vec<Vec<u8>> = vec![
        vec![b'n'; 255],
        b"line\nbreak".to_vec(),
        b"\xff\xfe not utf-8 \x80".to_vec(),
        b" ".to_vec(),
        b"-".to_vec(),
        b"...".to_vec(),
        b"a%2Fb".to_vec(),
        b"back\\slash".to_vec(),
        b"tab\tand\x01control\x7f".to_vec(),
        "e\u{301} and \u{e9}".as_bytes().to_vec(),
        b"CACHEDIR.TAG".to_vec(),
        b"LOCK".to_vec(),
        b"hearthfs.json".to_vec(),
        b".fuse_hidden0001".to_vec(),
        vec![0xc3; 255],
    ];
    for name in &odd {
        let path = cluster.a.at(OsStr::from_bytes(name));
        process.put(&path, name).must(format_args!("put {name:?}"));
        let mut dir = name.clone();
        dir.truncate(250);
        dir.extend(b".d");
        let dir = cluster.a.at(OsStr::from_bytes(&dir));
        process.mkdir(&dir).must("mkdir");
        process.put(&dir.join(OsStr::from_bytes(name)), name).must("put");
    }
    let long = cluster.a.at(OsStr::from_bytes(&[b'n'; 256]));
    assert_eq!(process.put(&long, b"x"), Err(Errno::NAMETOOLONG));
    assert_eq!(process.stat(&long), Err(Errno::NAMETOOLONG));
    assert_eq!(process.mkdir(&long), Err(Errno::NAMETOOLONG));
    cluster.a.drain();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert_eq!(all.len(), odd.len() * 3);
    for name in &odd {
        let read = std::fs::read(cluster.b.at(OsStr::from_bytes(name))).must("read on node B");
        assert_eq!(&read, name);
    }
}
in_both_modes!(bad_input_names);

fn bad_input_depth(io: Io) {
    let mut cluster = Cluster::two(io);
    let mut process = SyscallProcess::new();
    let mut below = PathBuf::new();
    for level in 0..100 {
        below.push(format!("level-{level}"));
        process.mkdir(&cluster.a.mount.join(&below)).must(format_args!("level {level}"));
    }
    process.put(&cluster.a.mount.join(&below).join("leaf"), b"deep").must("put");
    cluster.a.drain();
    eventually(6_000, "the leaf on node B", || {
        let read = std::fs::read(cluster.b.mount.join(&below).join("leaf"));
        read.map_err(|error| error.to_string())
    });
    process.rename(&cluster.a.at("level-0"), &cluster.a.at("moved")).must("rename it all");
    let moved = PathBuf::from("moved").join(below.strip_prefix("level-0").must("below"));
    assert_eq!(std::fs::read(cluster.a.mount.join(&moved).join("leaf")).must("read"), b"deep");
    cluster.a.kill_only();
    cluster.a.up();
    assert_eq!(std::fs::read(cluster.a.mount.join(&moved).join("leaf")).must("read"), b"deep");
    cluster.a.drain();
    let there = tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
    assert_eq!(there.len(), 101);
    let removed = std::fs::remove_dir_all(cluster.b.at("moved"));
    removed.must("remove it all, on the other node");
    cluster.b.drain();
    assert!(tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000).is_empty());
}
in_both_modes!(bad_input_depth);

/// Empty files, and one of 5 GiB that is nearly all hole.
#[test]
fn bad_input_sizes() {
    const HUGE: u64 = 5 << 30;
    if std::env::var_os("HEARTHFS_TEST_LONG").is_none() {
        skipped("bad_input_sizes", "5 GiB take a minute; HEARTHFS_TEST_LONG=1 runs it");
        return;
    }
    let cluster = Cluster::with(Store::dir, &Options::new(Io::best()).cache_size("20GiB"));
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("empty"), b"").must("put");
    let disk = rustix::fs::statvfs(cluster.site.path()).must("statvfs");
    // The upload is compressed; a fetched file may be written in full.
    if disk.f_bavail * disk.f_frsize < 3 * HUGE {
        skipped("bad_input_sizes", "less than 15 GiB of room for a file of 5 GiB on two nodes");
        return;
    }
    let path = cluster.a.at("huge");
    let start = wall();
    let mut slow = SyscallProcess::new();
    slow.limit_ms(150_000);
    let fd = slow.open(&path, OFlags::RDWR | OFlags::CREATE, 0o644).must("open");
    slow.ftruncate(fd, HUGE).must("grow");
    slow.pwrite(fd, HUGE - 5, b"end..").must("write at the end");
    slow.pwrite(fd, 3 << 30, b"middle").must("write in the middle");
    slow.close(fd).must("close");
    assert_eq!(process.stat(&path).must("stat").size, HUGE);
    let check = |process: &mut SyscallProcess, path: &Path| {
        let fd = process.open(path, OFlags::RDONLY, 0).must("open");
        assert_eq!(process.read(fd, HUGE - 5, 10).must("read"), b"end..");
        assert_eq!(process.read(fd, (3 << 30) - 1, 8).must("read"), b"\0middle\0");
        assert_eq!(process.read(fd, 0, 3).must("read"), [0; 3]);
        process.close(fd).must("close");
    };
    check(&mut slow, &path);
    crate::harness::say(format_args!("5 GiB closed after {:?}", wall().saturating_sub(start)));
    eventually(120_000, "5 GiB are remote", || {
        let dir = text(&cluster.a.mount);
        let said = cluster.a.command(&["drain", &dir, "--timeout", "20s"]);
        if said.status.success() { Ok(()) } else { Err(said.err) }
    });
    eventually(10_000, "node B knows it", || match std::fs::metadata(cluster.b.at("huge")) {
        Ok(stat) if stat.len() == HUGE => Ok(()),
        other => Err(format!("{other:?}")),
    });
    // The first opens may miss at their deadline while the content is fetched.
    eventually(120_000, "node B fetches it", || {
        std::fs::File::open(cluster.b.at("huge")).map(drop).map_err(|error| error.to_string())
    });
    check(&mut slow, &cluster.b.at("huge"));
    assert_eq!(std::fs::read(cluster.b.at("empty")).must("read"), b"");
}

/// Runs a test with a node whose cache directory is on a small disk of its own, made with these options.
fn on_a_small_disk(name: &str, io: Io, words: &[&str], test: fn(&mut Node, &Store, &Path)) {
    let name = format!("{name}::{}", io.word());
    if !is_root() {
        skipped(&name, "a small disk of its own needs root");
        return;
    }
    if !need(&name, "mkfs.ext4") {
        return;
    }
    let site = Site::new();
    let (image, disk) = (site.path().join("disk.img"), site.dir("disk"));
    std::fs::File::create(&image).and_then(|file| file.set_len(96 << 20)).must("make an image");
    let make = &mut Command::new("mkfs.ext4");
    run(make.args(["-q", "-m", "0"]).args(words).arg(&image), LIMIT_MS).good();
    let mounted = run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&disk), LIMIT_MS);
    if !mounted.status.success() {
        skipped(&name, format_args!("no loop device: {}", mounted.err.trim()));
        return;
    }
    let store = Store::dir(&site);
    let mut node = Node::start_in(&site, "m", Some(&store), Options::new(io), &disk.join("cache"));
    test(&mut node, &store, &disk);
    node.stop();
    drop(node);
    run(Command::new("umount").arg(&disk), LIMIT_MS).good();
}

/// A full disk: writers get ENOSPC, nothing published is lost, and writing works again when there is room.
fn bad_input_full_disk(io: Io) {
    on_a_small_disk("bad_input_full_disk", io, &[], fill_a_disk);
}
in_both_modes!(bad_input_full_disk);

/// A disk that can hold few files: older ones that the store has make room, as on a disk that is full.
fn bad_input_a_disk_for_few_files(io: Io) {
    let test = |node: &mut Node, _: &Store, disk: &Path| {
        let files = rustix::fs::statvfs(disk).must("statvfs").f_files;
        let mut process = SyscallProcess::new();
        for k in 0..files * 2 {
            process.put(&node.at(format!("f{k}")), &k.to_le_bytes()).must("put");
        }
        let last = files * 2 - 1;
        assert_eq!(process.get(&node.at(format!("f{last}"))), Ok(last.to_le_bytes().to_vec()));
        assert_eq!(process.get(&node.at("f0")), Ok(0_u64.to_le_bytes().to_vec()));
    };
    on_a_small_disk("bad_input_a_disk_for_few_files", io, &["-N", "1024"], test);
}
in_both_modes!(bad_input_a_disk_for_few_files);

fn fill_a_disk(node: &mut Node, store: &Store, disk: &Path) {
    let content = |k: u64| body::make(Id { writer: 1, seq: k }, 3_000_000);
    let mut process = SyscallProcess::new();
    store.fail();
    for k in 0..5 {
        process.put(&node.at(format!("f{k}")), &content(k)).must("put");
    }
    // Another program fills the disk almost completely.
    let room = rustix::fs::statvfs(disk).must("statvfs");
    let fill = (room.f_bavail * room.f_frsize).saturating_sub(4 << 20);
    let hog = disk.join("hog");
    std::fs::write(&hog, vec![1; fill as usize]).must("fill the disk");
    let mut refused = 0;
    for k in 5..12 {
        match process.put(&node.at(format!("f{k}")), &content(k)) {
            Ok(()) => assert!(process.get(&node.at(format!("f{k}"))) == Ok(content(k))),
            Err(errno) => {
                assert_eq!(errno, Errno::NOSPC);
                refused += 1;
            }
        }
    }
    assert!(refused > 0, "a full disk refused no write");
    node.expect_error("No space");
    node.expect_error("NoSpace");
    for k in 0..5 {
        assert!(process.get(&node.at(format!("f{k}"))) == Ok(content(k)), "f{k} on a full disk");
    }
    node.kill_only();
    // At a start, a file in the place of a shared directory is refused.
    store.heal();
    node.up();
    for k in 0..5 {
        assert!(
            process.get(&node.at(format!("f{k}"))) == Ok(content(k)),
            "f{k} on a full disk again"
        );
    }
    node.kill_only();
    std::fs::remove_file(&hog).must("make room");
    node.up();
    for k in 0..5 {
        assert!(process.get(&node.at(format!("f{k}"))) == Ok(content(k)), "f{k} after a restart");
    }
    process.put(&node.at("later"), &content(99)).must("put when there is room");
    node.drain();
}

/// The cache directory of an earlier version, whose daemon was killed while files were open. It was made with the commit
/// before 8bb2f3c, in passthrough mode: `d/f0` to `d/f7`, a file that was renamed, a symbolic and a hard link, a file that was
/// replaced, one that was removed, one that was closed and stayed open by a duplicate, and two that were never closed.
fn bad_input_cache_directory_of_an_earlier_version(io: Io) {
    let site = Site::new();
    let cache = site.dir("cache");
    std::fs::set_permissions(&cache, std::fs::Permissions::from_mode(0o700)).must("chmod");
    let archive =
        concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/cache-of-a-killed-node.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "-xzf", archive, "-C"]).arg(&cache);
    run(&mut tar, 10_000).good();
    for round in ["first", "second"] {
        let node = Node::start_in(&site, "m", None, Options::new(io), &cache);
        let mut process = SyscallProcess::new();
        let mut expect = |name: &str, want: &[u8]| {
            let read = process.get(&node.at(format!("d/{name}"))).must(name);
            assert!(read == want, "{name}, {round} start: {} bytes", read.len());
        };
        for k in 0..8 {
            expect(&format!("f{k}"), format!("entry {k} ").repeat(200 * (k + 1)).as_bytes());
        }
        expect("renamed", "renamed ".repeat(1000).as_bytes());
        expect("large", b"large 16 bytes..".repeat(100 * 1024).as_slice());
        expect("old", b"second version");
        expect("still-open", b"closed once");
        expect("link", "entry 1 ".repeat(400).as_bytes());
        expect("hard", "entry 2 ".repeat(600).as_bytes());
        assert_eq!(process.getxattr(&node.at("d/f3"), "user.k"), Ok(b"v".to_vec()), "{round}");
        assert_eq!(std::fs::metadata(node.at("d/f2")).must("stat").nlink(), 2, "{round}");
        for name in ["gone", "never-closed", "tmp"] {
            assert_eq!(
                process.get(&node.at(format!("d/{name}"))),
                Err(Errno::NOENT),
                "{name}, {round}"
            );
        }
        process.put(&node.at(format!("d/new-{round}")), b"new").must("write");
        let staged = || {
            let all = std::fs::read_dir(cache.join("v1/staging")).must("list");
            // A file may become a blob meanwhile.
            let all = all.filter_map(|entry| entry.must("list").metadata().ok());
            all.filter(|about| about.is_file() && about.len() > 0).count()
        };
        eventually(10_000, "no staged bytes that are no blob", || match staged() {
            0 => Ok(()),
            files => Err(format!("{files} files")),
        });
    }
}
in_both_modes!(bad_input_cache_directory_of_an_earlier_version);
