//! Profiles: what the names of a client's files say about them, and what follows from that.

use std::path::Path;

use rustix::fs::OFlags;

use crate::harness::syscall_process::IN_PLACE;
use crate::harness::{Cluster, Io, Must as _, Node, SyscallProcess, eventually, in_both_modes};

/// Waits until a name has these bytes on a node.
fn has(node: &Node, name: &str, want: &[u8]) {
    eventually(10_000, format_args!("{name} has other bytes"), || {
        let read = SyscallProcess::new().get(&node.at(name)).map_err(|errno| errno.to_string())?;
        if read == want { Ok(()) } else { Err(String::from_utf8_lossy(&read).into_owned()) }
    });
}

/// Two nodes write one name in place. A begins its file before B's arrives, and closes it
/// afterwards. Returns what both have then.
fn in_place(cluster: &Cluster, name: &str) -> Vec<u8> {
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let path = cluster.a.at(name);
    let fd = one.open(&path, IN_PLACE, 0o644).must("A begins");
    one.write(fd, b"A's version").must("A writes");
    other.put(&cluster.b.at(name), b"B's version").must("B writes and closes");
    cluster.b.drain();
    has(&cluster.a, name, b"B's version");
    one.close(fd).must("A's close");
    cluster.a.drain();
    let here = SyscallProcess::new().get(&path).must("read on A");
    has(&cluster.b, name, &here);
    here
}

/// The same by a rename.
fn renamed(cluster: &Cluster, name: &str) -> Vec<u8> {
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let (path, temporary) = (cluster.a.at(name), cluster.a.at(name).with_extension("mine"));
    one.put(&temporary, b"A's version").must("A writes");
    other.put(&cluster.b.at(name), b"B's version").must("B writes");
    cluster.b.drain();
    has(&cluster.a, name, b"B's version");
    one.rename(&temporary, &path).must("A renames");
    assert_eq!(
        SyscallProcess::new().get(&temporary),
        Err(rustix::io::Errno::NOENT),
        "the old name"
    );
    let here = one.get(&path).must("read by A");
    assert_eq!(SyscallProcess::new().get(&path).must("read by another on A"), here);
    cluster.a.drain();
    has(&cluster.b, name, &here);
    here
}

fn directories(cluster: &Cluster) {
    for dir in ["jax", "plain"] {
        SyscallProcess::new().mkdir(&cluster.a.at(dir)).must("mkdir");
    }
    cluster.a.drain();
    for dir in ["jax", "plain"] {
        eventually(10_000, "the directories", || {
            let there = Path::is_dir(&cluster.b.at(dir));
            if there { Ok(()) } else { Err("missing".to_owned()) }
        });
    }
}

/// The first version of a client's entry stays; elsewhere the last close wins.
fn profiles_write_once_in_place(io: Io) {
    let cluster = Cluster::two(io);
    directories(&cluster);
    let published = |node: &Node| node.status()["counters"]["published"].as_u64().must("a count");
    assert_eq!(in_place(&cluster, "plain/jit_f-0-cache"), b"A's version");
    let before = published(&cluster.a);
    assert_eq!(in_place(&cluster, "jax/jit_f-0-cache"), b"B's version");
    assert_eq!(published(&cluster.a), before, "A publishes nothing");
    // A write that begins after it arrived replaces it: the writer has seen it.
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("jax/jit_f-0-cache"), b"repaired").must("put");
    process.put(&cluster.a.at("jax/jit_f-0-cache"), b"and again").must("put");
    cluster.a.drain();
    has(&cluster.b, "jax/jit_f-0-cache", b"and again");
    // So does a write that begins after a removal.
    process.unlink(&cluster.a.at("jax/jit_f-0-cache")).must("unlink");
    process.put(&cluster.a.at("jax/jit_f-0-cache"), b"new").must("put");
    cluster.a.drain();
    has(&cluster.b, "jax/jit_f-0-cache", b"new");
}
in_both_modes!(profiles_write_once_in_place);

fn profiles_write_once_by_rename(io: Io) {
    let cluster = Cluster::two(io);
    directories(&cluster);
    assert_eq!(renamed(&cluster, "plain/jit_f-0-cache"), b"A's version");
    assert_eq!(renamed(&cluster, "jax/jit_f-0-cache"), b"B's version");
    let mut process = SyscallProcess::new();
    let later = cluster.a.at("jax/later");
    process.put(&later, b"repaired").must("put");
    process.rename(&later, &cluster.a.at("jax/jit_f-0-cache")).must("rename");
    assert_eq!(process.get(&cluster.a.at("jax/jit_f-0-cache")).must("read"), b"repaired");
    cluster.a.drain();
    has(&cluster.b, "jax/jit_f-0-cache", b"repaired");
}
in_both_modes!(profiles_write_once_by_rename);

/// Whole content of each format that a profile checks, under a name with that check, and how many
/// of its bytes are a torn prefix.
fn formats() -> Vec<(&'static str, Vec<u8>, usize)> {
    let program = std::fs::read("/bin/true").must("read a program");
    let end = program.len();
    let text = br#"{"signature": "add", "cache": {"a": "BLOCK: 128"}}"#.to_vec();
    let compiled: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    let compiled = zstd::encode_all(&compiled[..], 1).must("compress");
    // A writer that vanishes after its second megabyte, as was observed with JAX.
    let cut = compiled.len() - 100_000;
    assert!(cut > 1 << 20, "larger than the part kept in memory");
    vec![
        ("jax/jit_f-0-cache", compiled, cut),
        ("inductor/ab/kernel.so", program.clone(), end - 1),
        ("torch_extensions/py311_cpu/mine/mine.so", program, 5000),
        ("triton-dejavu/k/default/cache.json", text, 30),
    ]
}

/// An incomplete file exists on its node, and on no other.
fn profiles_keep_torn_files(io: Io) {
    let mut cluster = Cluster::two(io);
    let mut process = SyscallProcess::new();
    for (name, whole, cut) in formats() {
        let path = cluster.a.at(name);
        let dir = path.parent().must("a directory");
        std::fs::create_dir_all(dir).must("mkdir");
        process.put(&path, &whole[..cut]).must("put");
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755))
            .must("chmod");
        // One that is renamed to such a name.
        let renamed = dir.join("temporary");
        process.put(&renamed, &whole[..cut]).must("put");
        process
            .rename(&renamed, &path.with_file_name(format!("renamed-{}", file_name(&path))))
            .must("rename");
        assert!(process.get(&path).must("read on its node") == whole[..cut]);
    }
    let kept = |node: &Node| node.status()["incomplete"].as_u64().must("a count");
    // The name that dejavu requires allows no second file.
    assert_eq!(kept(&cluster.a), 7);
    cluster.a.drain();
    process.put(&cluster.a.at("after"), b"what came after them").must("put");
    cluster.a.drain();
    has(&cluster.b, "after", b"what came after them");
    for (name, ..) in formats() {
        assert_eq!(
            SyscallProcess::new().get(&cluster.b.at(name)),
            Err(rustix::io::Errno::NOENT),
            "{name}"
        );
    }
    // They survive a restart.
    cluster.a.stop();
    cluster.a.up();
    let mut process = SyscallProcess::new();
    assert_eq!((kept(&cluster.a), kept(&cluster.b)), (7, 0));
    for (name, whole, cut) in formats() {
        assert!(process.get(&cluster.a.at(name)).must("read again") == whole[..cut]);
        process.put(&cluster.a.at(name), &whole).must("the next writer");
    }
    cluster.a.drain();
    for (name, whole, _) in formats() {
        has(&cluster.b, name, &whole);
    }
    let log = cluster.a.log();
    for (name, ..) in formats() {
        let said = log.lines().filter(|line| line.contains("is not complete"));
        assert_eq!(said.filter(|line| line.contains(&format!("={name} "))).count(), 1, "{log}");
    }
}
in_both_modes!(profiles_keep_torn_files);

fn file_name(path: &Path) -> String {
    path.file_name().must("a name").to_string_lossy().into_owned()
}

/// A file that was closed in the middle, through a duplicate, and is complete at the end, as a
/// linker's output may be.
fn profiles_let_files_through_that_are_completed(io: Io) {
    let cluster = Cluster::two(io);
    let whole = std::fs::read("/bin/true").must("read a program");
    let path = cluster.a.at("inductor/ab/kernel.so");
    std::fs::create_dir_all(path.parent().must("a directory")).must("mkdir");
    let mut process = SyscallProcess::new();
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC;
    let fd = process.open(&path, flags, 0o644).must("begin");
    process.pwrite(fd, 64, &whole[64..4096]).must("write the middle");
    let duplicate = process.dup(fd).must("dup");
    process.close(duplicate).must("close");
    assert!(
        SyscallProcess::new().get(&path).must("read") == [&[0; 64][..], &whole[64..4096]].concat()
    );
    process.put(&cluster.a.at("after"), b"1").must("put");
    cluster.a.drain();
    has(&cluster.b, "after", b"1");
    assert_eq!(
        SyscallProcess::new().get(&cluster.b.at("inductor/ab/kernel.so")),
        Err(rustix::io::Errno::NOENT)
    );
    process.pwrite(fd, 4096, &whole[4096..]).must("write the end");
    process.pwrite(fd, 0, &whole[..64]).must("write the header");
    process.close(fd).must("close");
    assert!(SyscallProcess::new().get(&path).must("read") == whole);
    cluster.a.drain();
    has(&cluster.b, "inductor/ab/kernel.so", &whole);
    assert_eq!(cluster.a.status()["incomplete"], 0);
}
in_both_modes!(profiles_let_files_through_that_are_completed);

/// An incomplete entry is no first version, and no obstacle to that of another node. A check of a
/// file that its writer has changed since does not apply to content that others publish (P14).
fn p14_isolation_of_checked_content(io: Io) {
    let cluster = Cluster::two(io);
    let program = std::fs::read("/bin/true").must("read a program");
    std::fs::create_dir_all(cluster.a.at("inductor/ab")).must("mkdir -p");
    let (mut other, mut victim) = (SyscallProcess::new(), SyscallProcess::new());
    let temporary = cluster.a.at("plain");
    let fd = other.open(&temporary, IN_PLACE, 0o644).must("open");
    other.write(fd, &program).must("write");
    let duplicate = other.dup(fd).must("dup");
    other.close(duplicate).must("close, which publishes");
    other.pwrite(fd, 0, &[0; 64]).must("overwrite its head");
    other.rename(&temporary, &cluster.a.at("inductor/ab/torn.so")).must("rename");
    victim.put(&cluster.a.at("inductor/ab/whole.so"), &program).must("put");
    cluster.a.drain();
    has(&cluster.b, "inductor/ab/whole.so", &program);
    assert_eq!(cluster.a.status()["incomplete"], 0);
    other.close(fd).must("close");
}
in_both_modes!(p14_isolation_of_checked_content);

fn profiles_torn_files_give_way(io: Io) {
    let cluster = Cluster::two(io);
    directories(&cluster);
    let name = "jax/jit_f-0-cache";
    let (a, b) = (cluster.a.at(name), cluster.b.at(name));
    let whole = |text: &str| zstd::encode_all(text.as_bytes(), 1).must("compress");
    let (mut one, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    let fd = one.open(&a, IN_PLACE, 0o644).must("begin");
    one.write(fd, &whole("begun before")).must("write");
    other.put(&a, &whole("torn")[..9]).must("put");
    // It was begun first, and what came since is no version that could stay.
    one.close(fd).must("close");
    assert_eq!(SyscallProcess::new().get(&a).must("read"), whole("begun before"));
    cluster.a.drain();
    has(&cluster.b, name, &whole("begun before"));
    other.put(&a, &whole("torn")[..9]).must("put");
    other.put(&b, &whole("of b")).must("put");
    cluster.b.drain();
    has(&cluster.a, name, &whole("of b"));
    cluster.a.drain();
    assert_eq!(cluster.a.status()["incomplete"], 0);
}
in_both_modes!(profiles_torn_files_give_way);

/// A kernel with one incomplete file is whole on its node, and missing on all others.
fn profiles_keep_units_with_torn_files(io: Io) {
    let cluster = Cluster::two(io);
    let program = std::fs::read("/bin/true").must("read a program");
    let compile = |node: &Node, cubin: &[u8]| {
        let mut process = SyscallProcess::new();
        std::fs::create_dir_all(node.at("triton/KEY/tmp.pid_1_a")).must("mkdir");
        for (name, bytes) in [("k.cubin", cubin), ("k.json", b"{}"), ("__grp__k.json", b"{}")] {
            let temporary = node.at("triton/KEY/tmp.pid_1_a").join(name);
            process.put(&temporary, bytes).must("put");
            process.rename(&temporary, &node.at("triton/KEY").join(name)).must("rename");
        }
        process.rmdir(&node.at("triton/KEY/tmp.pid_1_a")).must("rmdir");
    };
    compile(&cluster.a, &program[..3000]);
    let names = ["k.cubin", "k.json", "__grp__k.json"];
    let there = |node: &Node| {
        let mut process = SyscallProcess::new();
        let at = |name: &&str| process.get(&node.at("triton/KEY").join(name)).ok();
        names.iter().filter_map(at).map(|bytes| bytes.len()).collect::<Vec<_>>()
    };
    assert_eq!(there(&cluster.a), [3000, 2, 2], "for every process of its node");
    SyscallProcess::new().put(&cluster.a.at("after"), b"1").must("put");
    cluster.a.drain();
    has(&cluster.b, "after", b"1");
    assert_eq!(there(&cluster.b), Vec::<usize>::new());
    compile(&cluster.b, &program);
    cluster.b.drain();
    eventually(10_000, "the whole unit takes its place", || {
        let (a, b) = (there(&cluster.a), there(&cluster.b));
        if a == b { Ok(()) } else { Err(format!("{a:?}, {b:?}")) }
    });
    assert_eq!(there(&cluster.a), [program.len(), 2, 2]);
    assert_eq!(cluster.a.status()["incomplete"], 0);
}
in_both_modes!(profiles_keep_units_with_torn_files);

/// A file that a client rewrites on each hit makes no commit, and is uploaded with the next one.
fn profiles_gather_uses(io: Io) {
    let mut cluster = Cluster::two(io);
    let (cache, atime) = ("jax/jit_f-0-cache", "jax/jit_f-0-atime");
    let commits =
        |node: &Node| node.status()["counters"]["commits_written"].as_u64().must("a count");
    // Waits until a marker file is uploaded, without a drain, which would send the rest.
    let marked = |node: &Node, name: &str| {
        let before = commits(node);
        SyscallProcess::new().put(&node.at(name), name.as_bytes()).must("put");
        eventually(10_000, "it is remote", || {
            let nothing_waits = node.status()["backlog"]["records"] == 0;
            let sent = nothing_waits && commits(node) > before;
            if sent { Ok(()) } else { Err("not yet".to_owned()) }
        });
        commits(node)
    };
    let mut process = SyscallProcess::new();
    process.mkdir(&cluster.a.at("jax")).must("mkdir");
    process
        .put(&cluster.a.at(cache), &zstd::encode_all(&b"code"[..], 1).must("compress"))
        .must("put");
    process.put(&cluster.a.at(atime), b"00000000").must("put");
    let before = marked(&cluster.a, "one");
    has(&cluster.b, atime, b"00000000");
    for number in 1..=100 {
        let text = format!("{number:08}");
        process.put(&cluster.a.at(atime), text.as_bytes()).must("a hit");
        assert_eq!(
            SyscallProcess::new().get(&cluster.a.at(atime)).must("at once"),
            text.as_bytes()
        );
    }
    eventually(10_000, "nothing is pending", || {
        match cluster.a.status()["backlog"]["records"].as_u64() {
            Some(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(commits(&cluster.a), before, "a hit is no commit");
    assert_eq!(SyscallProcess::new().get(&cluster.b.at(atime)).must("read"), b"00000000");
    // What was closed survives the daemon, and is uploaded with the next commit.
    cluster.a.kill_only();
    cluster.a.up();
    assert_eq!(SyscallProcess::new().get(&cluster.a.at(atime)).must("read"), b"00000100");
    marked(&cluster.a, "two");
    has(&cluster.b, atime, b"00000100");
    // A drain sends the rest.
    SyscallProcess::new().put(&cluster.a.at(atime), b"00000101").must("a hit");
    let before = commits(&cluster.a);
    cluster.a.drain();
    has(&cluster.b, atime, b"00000101");
    assert_eq!(commits(&cluster.a), before + 1);
    // Under another name it is an ordinary file.
    for number in 0..2 {
        SyscallProcess::new().put(&cluster.a.at("plain-atime"), &[number; 8]).must("put");
        cluster.a.drain();
        has(&cluster.b, "plain-atime", &[number; 8]);
    }
}
in_both_modes!(profiles_gather_uses);

/// The file that older versions of Triton lock beside a kernel does not belong to the kernel, and
/// stays on its node.
fn profiles_keep_tritons_lock(io: Io) {
    let mut cluster = Cluster::two(io);
    let mut process = SyscallProcess::new();
    std::fs::create_dir_all(cluster.a.at("triton/KEY")).must("mkdir");
    let lock = |node: &Node| node.at("triton/KEY/lock");
    process.put(&lock(&cluster.a), b"").must("put");
    process.put(&cluster.a.at("triton/KEY/k.json"), b"{}").must("put");
    process.put(&cluster.a.at("triton/KEY/__grp__k.json"), b"{}").must("put");
    cluster.a.drain();
    has(&cluster.b, "triton/KEY/__grp__k.json", b"{}");
    let mut names: Vec<_> = std::fs::read_dir(cluster.b.at("triton/KEY"))
        .must("list")
        .map(|entry| entry.must("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, ["__grp__k.json", "k.json"]);
    assert_eq!(SyscallProcess::new().get(&lock(&cluster.b)), Err(rustix::io::Errno::NOENT));
    cluster.a.kill_only();
    cluster.a.up();
    assert_eq!(SyscallProcess::new().get(&lock(&cluster.a)), Ok(Vec::new()), "the node keeps it");
}
in_both_modes!(profiles_keep_tritons_lock);

/// Names that only look like a client's are ordinary files outside its directory: on all nodes,
/// also when the process that made them is gone.
fn profiles_leave_names_elsewhere_alone(io: Io) {
    const NAMES: [&str; 12] = [
        "Cargo.lock",
        "stats",
        "LOCK",
        "lock",
        "x.nbi",
        "x.1.nbc",
        "model.done",
        "__grp__k.json",
        "jit_f-cache",
        "jit_f-atime",
        "a.so",
        "CACHEDIR.TAG",
    ];
    const DIRS: [&str; 4] = ["src", "src/tmp", "src/tmp.pid_1_x", "src/triton"];
    let cluster = Cluster::two(io);
    let mut maker = SyscallProcess::new();
    for dir in DIRS {
        maker.mkdir(&cluster.a.at(dir)).must("mkdir");
    }
    let all = || DIRS.into_iter().flat_map(|dir| NAMES.map(|name| format!("{dir}/{name}")));
    for name in all().chain(NAMES.map(str::to_owned)) {
        maker.put(&cluster.a.at(&name), name.as_bytes()).must("put");
    }
    maker.kill(rustix::process::Signal::KILL);
    cluster.a.drain();
    for name in all().chain(NAMES.map(str::to_owned)) {
        has(&cluster.b, &name, name.as_bytes());
        assert_eq!(SyscallProcess::new().get(&cluster.a.at(&name)), Ok(name.into_bytes()));
    }
    assert_eq!(cluster.a.status()["incomplete"], 0);
}
in_both_modes!(profiles_leave_names_elsewhere_alone);
