//! P11 expiry: entries past their age are never served, used ones are renewed before.
//!
//! The nodes use ages of some seconds over a shared directory, whose file times are the store's time.

use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::harness::node::Site;
use crate::harness::syscall_process::CREATE_NEW;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, now,
    sleep_ms, tree,
};

/// How long entries live in these tests.
const AGE: Duration = Duration::from_secs(12);
/// The same, in the form of the configuration.
const AGE_TEXT: &str = "12s";
/// Until then nothing may expire: the age less its margin, and less the error of the clock readings.
const SURE: Duration = Duration::from_secs(10);

/// Contents of each size class: in a commit, in a pack, an object of its own.
const SIZES: [(&str, usize); 3] = [("tiny", 300), ("small", 9_000), ("large", 1_500_000)];

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + at / 251) as u8).collect()
}

fn options(io: Io) -> Options {
    Options::new(io).expiry(AGE_TEXT)
}

fn kind_of(path: &Path) -> Result<(), ErrorKind> {
    std::fs::symlink_metadata(path).map(drop).map_err(|error| error.kind())
}

/// Waits until a path is a miss, and fails if that happens too soon or too late. `begun` is before
/// the bytes were stored, `stored` after.
#[track_caller]
fn await_expiry(path: &Path, begun: Instant, stored: Instant) {
    loop {
        let asked = now();
        match kind_of(path) {
            Ok(()) => {
                let age = asked.duration_since(stored);
                assert!(age < AGE, "{} is served at an age of {age:?}", path.display());
            }
            Err(ErrorKind::NotFound) => {
                let age = now().duration_since(begun);
                assert!(age >= SURE, "{} is a miss at an age of {age:?}", path.display());
                return;
            }
            Err(kind) => panic!("{}: {kind}", path.display()),
        }
        sleep_ms(5);
    }
}

fn p11_expiry_is_a_miss_on_every_node(io: Io) {
    let cluster = Cluster::with(Store::dir, &options(io).without_renewal());
    let mut process = SyscallProcess::new();
    let (a, b) = (&cluster.a, &cluster.b);
    let begun = now();
    process.mkdir(&a.at("dir")).must("mkdir");
    for (name, len) in SIZES {
        process.put(&a.at("dir").join(name), &bytes(len)).must("put");
    }
    cluster.settle();
    let stored = now();
    for (name, len) in SIZES {
        let path = b.at("dir").join(name);
        let read = eventually(5_000, name, || std::fs::read(&path).map_err(|e| e.to_string()));
        assert!(read == bytes(len), "both nodes have its bytes");
    }
    // The kernel is asked all the time, and must not cache a name for too long.
    for node in [a, b] {
        for (name, _) in SIZES {
            await_expiry(&node.at("dir").join(name), begun, stored);
        }
    }
    for node in [a, b] {
        // The directory is gone with its content: it was made at the same time.
        eventually(3_000, "the directory expires", || match kind_of(&node.at("dir")) {
            Err(ErrorKind::NotFound) => Ok(()),
            other => Err(format!("{other:?}")),
        });
        assert!(tree::texts(&node.mount).is_empty());
        let opened = process.open(&node.at("dir/small"), OFlags::RDONLY, 0);
        assert_eq!(opened, Err(Errno::NOENT));
        assert_eq!(process.unlink(&node.at("dir/small")), Err(Errno::NOENT));
        assert_eq!(process.rename(&node.at("dir/small"), &node.at("x")), Err(Errno::NOENT));
        assert_eq!(process.rmdir(&node.at("dir")), Err(Errno::NOENT));
    }
    // An expired name does not exist, so it can be made.
    std::fs::create_dir_all(a.at("dir")).must("mkdir -p");
    assert!(tree::texts(&a.at("dir")).is_empty(), "a new directory is empty");
    let fd = process.open(&a.at("dir/small"), CREATE_NEW, 0o644).must("O_EXCL");
    process.write(fd, b"made anew").must("write");
    process.close(fd).must("close");
    process.put(&a.at("dir/tiny"), &bytes(300)).must("the same bytes again");
    cluster.settle();
    for (name, expected) in [("small", b"made anew".to_vec()), ("tiny", bytes(300))] {
        for node in [a, b] {
            let path = node.at("dir").join(name);
            eventually(5_000, "it arrives", || match std::fs::read(&path) {
                Ok(read) if read == expected => Ok(()),
                other => Err(format!("{:?}", other.map(|read| read.len()))),
            });
        }
    }
    assert_eq!(tree::texts(&b.at("dir")), ["small", "tiny"]);
}
in_both_modes!(p11_expiry_is_a_miss_on_every_node);

#[test]
fn p11_expiry_spares_what_is_used() {
    let cluster = Cluster::with(Store::dir, &options(Io::best()));
    let mut process = SyscallProcess::new();
    for (name, len) in SIZES {
        process.put(&cluster.a.at(name), &bytes(len)).must("put");
    }
    let begun = now();
    process.put(&cluster.a.at("unused"), b"no program opens it").must("put");
    cluster.settle();
    let stored = now();
    eventually(5_000, "all files arrive", || {
        let names = tree::texts(&cluster.b.mount);
        if names.len() == 4 { Ok(()) } else { Err(format!("{names:?}")) }
    });
    let mut expired = false;
    while now().duration_since(begun) < 3 * AGE + Duration::from_secs(2) {
        // Opened on one node from time to time; present on both all the time.
        for (name, len) in SIZES {
            let read = std::fs::read(cluster.b.at(name)).must(format_args!("read {name}"));
            assert!(read == bytes(len), "{name}");
            std::fs::metadata(cluster.a.at(name)).must(format_args!("stat {name}"));
        }
        if !expired && now().duration_since(begun) > AGE {
            await_expiry(&cluster.a.at("unused"), begun, stored);
            await_expiry(&cluster.b.at("unused"), begun, stored);
            expired = true;
        }
        sleep_ms(700);
    }
    // A node that was not there reads it too.
    for (name, len) in SIZES {
        let read = std::fs::read(cluster.a.at(name)).must("read on the other node");
        assert!(read == bytes(len), "{name}");
    }
}

/// Readers of a unit open its entry point each time, but not each of its members.
#[test]
fn p11_expiry_spares_all_members_of_a_unit_that_is_used() {
    const KEY: &str = "triton/KEY";
    const ENTRY: &str = "__grp__kernel.json";
    let cluster = Cluster::with(Store::dir, &options(Io::best()));
    let mut process = SyscallProcess::new();
    std::fs::create_dir_all(cluster.a.at(KEY)).must("mkdir -p");
    let key = |node: &Node| node.at(KEY);
    let begun = now();
    for (name, len) in SIZES {
        process.put(&key(&cluster.a).join(name), &bytes(len)).must("put");
    }
    process.put(&key(&cluster.a).join(ENTRY), b"{}").must("put the marker");
    cluster.settle();
    eventually(5_000, "the unit arrives", || match std::fs::read(key(&cluster.b).join(ENTRY)) {
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    });
    while now().duration_since(begun) < 2 * AGE {
        let read = std::fs::read(key(&cluster.b).join(ENTRY)).must("read the entry point");
        assert_eq!(read, b"{}");
        sleep_ms(700);
    }
    for node in [&cluster.a, &cluster.b] {
        for (name, len) in SIZES {
            let read = std::fs::read(key(node).join(name)).must(format_args!("read {name}"));
            assert!(read == bytes(len), "{name}");
        }
    }
}

#[test]
fn p11_expiry_is_strict_without_renewal() {
    let cluster = Cluster::with(Store::dir, &options(Io::best()).without_renewal());
    let begun = now();
    SyscallProcess::new().put(&cluster.a.at("file"), &bytes(9_000)).must("put");
    cluster.settle();
    let stored = now();
    loop {
        let asked = now();
        match std::fs::read(cluster.a.at("file")) {
            Ok(read) => {
                assert!(read == bytes(9_000) && asked.duration_since(stored) < AGE);
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::NotFound);
                assert!(now().duration_since(begun) >= SURE);
                break;
            }
        }
        sleep_ms(50);
    }
    await_expiry(&cluster.b.at("file"), begun, stored);
}

fn p11_expiry_leaves_what_is_open(io: Io) {
    let site = Site::new();
    let store = Store::dir(&site);
    let a = Node::start(&site, "a", Some(&store), options(io).without_renewal());
    let mut process = SyscallProcess::new();
    let begun = now();
    for name in ["file", "edited"] {
        process.put(&a.at(name), &bytes(70_000)).must("put");
    }
    a.drain();
    let stored = now();
    let fd = process.open(&a.at("file"), OFlags::RDONLY, 0).must("open");
    let map = process.map(fd, 70_000, false, false).must("map");
    let writer = process.open(&a.at("edited"), OFlags::RDWR, 0).must("open to write");
    await_expiry(&a.at("file"), begun, stored);
    assert!(process.read(fd, 0, 80_000).must("read") == bytes(70_000));
    assert!(process.map_read(map, 0, 70_000) == bytes(70_000));
    assert_eq!(process.fstat(fd).must("fstat").size, 70_000);
    // A file that a process has open for writing exists for it, and becomes a new version with an
    // age of its own.
    assert!(process.read(writer, 0, 80_000).must("read") == bytes(70_000));
    process.pwrite(writer, 0, b"again").must("write");
    process.close(writer).must("close");
    let mut expected = bytes(70_000);
    expected[..5].copy_from_slice(b"again");
    assert!(std::fs::read(a.at("edited")).must("read") == expected);
    a.drain();
    assert!(std::fs::read(a.at("edited")).must("read") == expected);
    assert!(process.read(fd, 0, 80_000).must("read") == bytes(70_000));
}
in_both_modes!(p11_expiry_leaves_what_is_open);

#[test]
fn p11_expiry_keeps_a_directory_that_is_in_use() {
    let cluster = Cluster::with(Store::dir, &options(Io::best()));
    let (a, b) = (&cluster.a, &cluster.b);
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o750).create(a.at("used/deep")).must("mkdir -p");
    std::fs::set_permissions(a.at("used"), PermissionsExt::from_mode(0o2770)).must("chmod");
    let owner =
        if crate::harness::is_root() { 12_345 } else { rustix::process::geteuid().as_raw() };
    std::os::unix::fs::chown(a.at("used"), Some(owner), None).must("chown");
    std::fs::create_dir(a.at("idle")).must("mkdir");
    let mut process = SyscallProcess::new();
    process.put(&a.at("used/deep/file"), &bytes(9_000)).must("put");
    process.symlink(Path::new("file"), &a.at("used/deep/link")).must("symlink");
    process.put(&a.at("used/deep/lock"), b"").must("an empty file");
    cluster.settle();
    let begun = now();
    eventually(5_000, "it arrives", || {
        std::fs::read(b.at("used/deep/link")).map(drop).map_err(|error| error.to_string())
    });
    while now().duration_since(begun) < 2 * AGE {
        let read = std::fs::read(b.at("used/deep/link")).must("read by the link");
        assert!(read == bytes(9_000));
        sleep_ms(700);
    }
    for node in [a, b] {
        let meta = std::fs::metadata(node.at("used")).must("stat");
        assert_eq!((meta.mode() & 0o7777, meta.uid()), (0o2770, owner));
        assert_eq!(std::fs::metadata(node.at("used/deep")).must("stat").mode() & 0o777, 0o750);
        assert_eq!(tree::texts(&node.at("used/deep")), ["file", "link", "lock"]);
        assert_eq!(
            kind_of(&node.at("idle")),
            Err(ErrorKind::NotFound),
            "the empty directory has expired"
        );
    }
    // When no program uses it any more, all of it expires.
    for node in [a, b] {
        eventually(AGE.as_millis() as u64 + 10_000, "it expires", || {
            match kind_of(&node.at("used")) {
                Err(ErrorKind::NotFound) => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        assert!(tree::texts(&node.mount).is_empty());
    }
}

#[test]
fn p11_expiry_goes_by_the_stores_clock() {
    let site = Site::new();
    let store = Store::dir(&site);
    // Nodes whose clocks are hours off, in both directions, and a store whose clock is an hour off.
    let clocks = |ahead_s: &str, faults: &str| {
        options(Io::best())
            .without_renewal()
            .variable("HEARTHFS_TEST_CLOCK_AHEAD_S", ahead_s)
            .variable("HEARTHFS_TEST_FAULTS", faults)
    };
    let mut a = Node::start(&site, "a", Some(&store), clocks("18000", "ahead_s=3600"));
    let b = Node::start(&site, "b", Some(&store), clocks("-18000", "ahead_s=3600"));
    for node in [&a, &b] {
        assert!(node.log().contains("the remote's clock differs from ours"), "{}", node.log());
    }
    for from_a in [true, false] {
        let (from, to) = if from_a { (&a, &b) } else { (&b, &a) };
        let name = if from_a { "from_a" } else { "from_b" };
        let begun = now();
        SyscallProcess::new().put(&from.at(name), &bytes(9_000)).must("put");
        from.drain();
        let stored = now();
        eventually(5_000, "it is visible", || {
            std::fs::read(to.at(name)).map(drop).map_err(|error| error.to_string())
        });
        await_expiry(&to.at(name), begun, stored);
        await_expiry(&from.at(name), begun, stored);
    }
    // What was learned about the store's clock is known while the store is down.
    let begun = now();
    SyscallProcess::new().put(&a.at("late"), &bytes(9_000)).must("put");
    a.drain();
    let stored = now();
    a.stop();
    a.set_options(clocks("18000", "resets=100"));
    a.up();
    assert!(a.log().contains("the remote cannot be reached yet"), "{}", a.log());
    assert!(std::fs::read(a.at("late")).must("read without the store") == bytes(9_000));
    await_expiry(&a.at("late"), begun, stored);
}

#[test]
fn p11_expiry_while_a_node_is_away() {
    let site = Site::new();
    let store = Store::dir(&site);
    let mut a = Node::start(&site, "a", Some(&store), options(Io::best()));
    let b = Node::start(&site, "b", Some(&store), options(Io::best()));
    let mut process = SyscallProcess::new();
    for name in ["old", "removed", "replaced", "mine", "kept"] {
        process.put(&a.at(name), format!("first version of {name}").as_bytes()).must("put");
    }
    a.drain();
    eventually(5_000, "all files arrive", || {
        let names = tree::texts(&b.mount);
        if names.len() == 5 { Ok(()) } else { Err(format!("{names:?}")) }
    });
    // The node goes away with a backlog.
    store.fail();
    process.put(&a.at("backlog"), &bytes(9_000)).must("put");
    process.put(&a.at("mine"), b"second version of mine, in the journal").must("put");
    process.put(&a.at("replaced"), b"what a made of it").must("put");
    a.kill_only();
    store.heal();
    sleep_ms(100);
    process.unlink(&b.at("removed")).must("unlink");
    process.put(&b.at("replaced"), b"second version of replaced").must("put");
    b.drain();
    let gone = now();
    while now().duration_since(gone) < AGE + AGE / 2 {
        process.put(&b.at("replaced"), b"second version of replaced").must("put");
        std::fs::read(b.at("kept")).must("read a file kept by use");
        sleep_ms(700);
    }
    b.drain();
    a.up();
    for name in ["old", "removed"] {
        assert_eq!(kind_of(&a.at(name)), Err(ErrorKind::NotFound), "{name} is long past its age");
    }
    let tree = tree::converge(&a.mount, &b.mount, 20_000);
    assert_eq!(tree::texts(&a.mount), ["backlog", "kept", "mine", "replaced"], "{tree:?}");
    for node in [&a, &b] {
        let kept = std::fs::read(node.at("kept")).must("read");
        assert_eq!(kept, b"first version of kept");
        assert!(std::fs::read(node.at("backlog")).must("read") == bytes(9_000));
        let mine = std::fs::read(node.at("mine")).must("read");
        assert_eq!(mine, b"second version of mine, in the journal");
        let replaced = std::fs::read(node.at("replaced")).must("read");
        assert_eq!(replaced, b"second version of replaced", "the later change won");
    }
}
