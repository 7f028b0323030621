//! A private mount serves what all nodes share, and keeps what programs write on its node.

use rustix::fs::OFlags;
use serde_json::Value;

use crate::clients::{self, LIMIT_MS, command, json, python_with};
use crate::harness::command::{need, run};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes,
    is_root, skipped, tree,
};
use crate::stores::Unable;

/// How long an uploaded change may take to be visible on another node, also on a busy machine.
const SEEN_MS: u64 = 30_000;

/// Starts two nodes, the second a private one.
fn cluster(io: Io) -> Cluster {
    let mut cluster = Cluster::with(Store::s3, &Options::new(io));
    // The store is made by a node that may write to it.
    SyscallProcess::new().put(&cluster.a.at("first"), b"x").must("put");
    cluster.a.drain();
    cluster.b.stop();
    cluster.b.set_options(Options::new(io).private());
    cluster.b.up();
    cluster
}

fn objects(cluster: &Cluster) -> usize {
    cluster.store.objects_in("").len()
}

fn has(node: &Node, at: &str, bytes: &[u8]) {
    eventually(SEEN_MS, at, || match SyscallProcess::new().get(&node.at(at)) {
        Ok(found) if found == bytes => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

fn private_mounts_keep_what_is_written(io: Io) {
    let mut cluster = cluster(io);
    let (a, mut process) = (&cluster.a, SyscallProcess::new());
    process.mkdir(&a.at("d")).must("mkdir");
    for at in ["kept", "replaced", "removed", "d/moved", "mode"] {
        process.put(&a.at(at), at.as_bytes()).must("put");
    }
    a.drain();
    has(&cluster.b, "mode", b"mode");
    let shared = tree::read(&a.mount).must("read");
    let before = objects(&cluster);
    let b = &cluster.b;
    assert_eq!((&b.status()["private"], &b.status()["read_only"]), (&true.into(), &false.into()));
    process.put(&b.at("new"), b"of b").must("put");
    process.put(&b.at("temporary"), b"of b, too").must("put");
    process.rename(&b.at("temporary"), &b.at("replaced")).must("rename");
    process.unlink(&b.at("removed")).must("unlink");
    process.rename(&b.at("d/moved"), &b.at("moved")).must("rename");
    process.rmdir(&b.at("d")).must("rmdir");
    process.chmod(&b.at("mode"), 0o600).must("chmod");
    let fd = process.open(&b.at("kept"), OFlags::WRONLY | OFlags::APPEND, 0).must("open");
    process.write(fd, b" and more").must("write");
    process.close(fd).must("close");
    b.drain();
    let own = tree::read(&b.mount).must("read");
    let names: Vec<String> = own.keys().map(|at| at.to_string_lossy().into_owned()).collect();
    assert_eq!(names, ["first", "kept", "mode", "moved", "new", "replaced"]);
    assert_eq!(process.get(&b.at("kept")).must("read"), b"kept and more");
    assert_eq!(process.get(&b.at("moved")).must("read"), b"d/moved");
    assert_eq!(b.status()["backlog"]["records"], 0);
    for kill in [false, true] {
        if kill {
            cluster.b.kill_only();
        } else {
            cluster.b.stop();
        }
        cluster.b.up();
        let again = tree::read(&cluster.b.mount).must("read");
        assert!(again == own, "killed: {kill}: {}", tree::difference(&again, &own));
    }
    let there = tree::read(&cluster.a.mount).must("read");
    assert!(there == shared, "{}", tree::difference(&there, &shared));
    assert_eq!(objects(&cluster), before, "a private mount writes nothing into the store");
    // A later publish replaces what was written here.
    process.put(&cluster.a.at("replaced"), b"of a, later").must("put");
    cluster.a.drain();
    has(&cluster.b, "replaced", b"of a, later");
    has(&cluster.b, "new", b"of b");
}
in_both_modes!(private_mounts_keep_what_is_written);

/// Read-only credentials are enough for a private and for a read-only mount, which need no other rights.
fn private_mounts_need_no_right_to_write(io: Io) {
    let mut cluster = Cluster::with(Store::s3, &Options::new(io));
    SyscallProcess::new().put(&cluster.a.at("first"), b"x").must("put");
    cluster.a.drain();
    cluster.a.stop();
    cluster.b.stop();
    cluster.store.unable(Unable::Write);
    for options in [Options::new(io).private(), Options::new(io).read_only()] {
        std::fs::remove_dir_all(&cluster.b.cache).must("remove a cache directory");
        cluster.b.set_options(options);
        cluster.b.up();
        has(&cluster.b, "first", b"x");
        let written = SyscallProcess::new().put(&cluster.b.at("new"), b"of b");
        let status = cluster.b.status();
        assert_eq!(written.is_ok(), status["private"] == true, "{written:?}");
        cluster.b.drain();
        assert_eq!(status["health"]["up"], true, "{status:#}");
        cluster.b.stop();
        assert_eq!(cluster.store.refused_writes(), 0);
    }
}
in_both_modes!(private_mounts_need_no_right_to_write);

/// If the tier is too small for what is written, the least recently used entries are evicted; no
/// program gets an error.
fn private_mounts_evict_what_is_used_least(io: Io) {
    let mut cluster = cluster(io);
    cluster.b.stop();
    cluster.b.set_options(Options::new(io).private().cache_size("16MiB"));
    cluster.b.up();
    let (mut process, body) = (SyscallProcess::new(), vec![7_u8; 1 << 20]);
    for n in 0..48_u8 {
        let mut body = body.clone();
        body[0] = n;
        process.put(&cluster.b.at(format!("f{n}")), &body).must("put");
    }
    let there = (0..48).filter(|n| process.get(&cluster.b.at(format!("f{n}"))).is_ok()).count();
    assert!((1..=16).contains(&there), "{there} of 48 files of 1 MiB in 16 MiB");
    assert!(process.get(&cluster.b.at("f47")).is_ok(), "the last one");
    assert_eq!(process.get(&cluster.b.at("first")).must("a hit"), b"x");
}
in_both_modes!(private_mounts_evict_what_is_used_least);

/// Pending changes of an earlier mount are not left behind.
#[test]
fn private_mounts_refuse_a_backlog() {
    let mut cluster = Cluster::with(Store::s3, &Options::new(Io::best()));
    SyscallProcess::new().put(&cluster.b.at("first"), b"x").must("put");
    cluster.b.drain();
    cluster.store.fail();
    SyscallProcess::new().put(&cluster.b.at("f"), b"x").must("put");
    cluster.b.kill_only();
    cluster.store.heal();
    cluster.b.set_options(Options::new(Io::best()).private());
    let said = cluster.b.refused();
    assert!(said.contains("mount.writes = \"shared\""), "{said}");
    cluster.b.set_options(Options::new(Io::best()));
    cluster.b.up();
    cluster.b.drain();
    cluster.b.stop();
    cluster.b.set_options(Options::new(Io::best()).private());
    cluster.b.up();
    assert_eq!(SyscallProcess::new().get(&cluster.b.at("f")).must("a hit"), b"x");
}

/// A mount that shares writes is not used if they must stay here.
#[test]
fn private_mounts_are_not_taken_for_shared_ones() {
    let cluster = Cluster::two(Io::best());
    let mount = cluster.a.mount.to_string_lossy().into_owned();
    for (writes, refused) in [("private", true), ("none", true), ("shared", false)] {
        let words = ["run", "--mount", &mount, "--writes", writes, "--", "true"];
        let said = run(cluster.site.hearthfs().args(words), LIMIT_MS);
        assert_eq!(said.code(), if refused { 2 } else { 0 }, "{said:?}");
        assert_eq!(said.err.contains("mount.writes shared, not"), refused, "{said:?}");
    }
}

/// A login on a shared mount does not make a private run share its writes.
#[test]
fn private_runs_do_not_write_to_the_mount_of_the_login() {
    let cluster = Cluster::two(Io::best());
    let (own, plain) = (cluster.site.dir("own"), cluster.site.dir("plain"));
    let link = cluster.site.path().join("link");
    std::os::unix::fs::symlink(cluster.a.at("go-build"), &link).must("link to the shared mount");
    let script = "mkdir -p $JAX_COMPILATION_CACHE_DIR; echo mine >$JAX_COMPILATION_CACHE_DIR/entry; \
                  echo $JAX_COMPILATION_CACHE_DIR $OLYMPUS_COMPILATION_CACHE_DIR $GOCACHE $TRITON_CACHE_DIR";
    let mut command = cluster.site.hearthfs();
    command.args(["run", "--writes", "private", "--remote", &cluster.store.url(), "--mount"]);
    command.arg(&own).arg("--cache-dir").arg(cluster.site.path().join("own.cache"));
    command.args(["--", "sh", "-c", script]);
    for name in ["JAX_COMPILATION_CACHE_DIR", "OLYMPUS_COMPILATION_CACHE_DIR"] {
        command.env(name, cluster.a.at("jax"));
    }
    command.env("GOCACHE", &link).env("TRITON_CACHE_DIR", &plain);
    let said = run(&mut command, LIMIT_MS);
    assert_eq!(said.code(), 0, "{said:?}");
    let (own, plain) = (own.display(), plain.display());
    assert_eq!(said.out.trim(), format!("{own}/jax {own}/jax {own}/go-build {plain}"), "{said:?}");
    let notes: Vec<&str> = said.err.lines().filter(|line| line.contains("note: ")).collect();
    assert!(notes.len() == 1 && notes[0].ends_with(": TRITON_CACHE_DIR"), "{said:?}");
    cluster.settle();
    for node in [&cluster.a, &cluster.b] {
        assert!(!node.at("jax").exists(), "the run wrote to the shared mount");
    }
}

/// A client's report of one run: how much it has compiled, and its results.
type Said = (u64, Value);

/// A client on a private node finds again what it has compiled there, also after a crash, and no
/// other node does. It also finds shared entries.
fn client_on_a_private_node(io: Io, work: &dyn Fn(&Cluster, &Node) -> Said) {
    let mut cluster = cluster(io);
    let before = objects(&cluster);
    let (cold, results) = work(&cluster, &cluster.b);
    assert!(cold > 0, "nothing was compiled");
    let warm = (0, results.clone());
    assert_eq!(work(&cluster, &cluster.b), warm, "its own entries");
    cluster.b.kill_only();
    cluster.b.up();
    assert_eq!(work(&cluster, &cluster.b), warm, "after a crash");
    assert_eq!(objects(&cluster), before, "nothing is written to the store");
    assert_eq!(
        work(&cluster, &cluster.a),
        (cold, results),
        "the other node has none of its entries"
    );
    // Waits until the shared entries have replaced those here: a client looks at their times.
    SyscallProcess::new().put(&cluster.a.at("last"), b"x").must("put");
    cluster.a.drain();
    has(&cluster.b, "last", b"x");
    assert_eq!(work(&cluster, &cluster.b), warm, "with the entries of the other node");
    cluster.b.stop();
    std::fs::remove_dir_all(&cluster.b.cache).must("remove a cache directory");
    cluster.b.up();
    assert_eq!(work(&cluster, &cluster.b), warm, "with only the entries of the other node");
}

fn clients_jax_on_a_private_mount(io: Io) {
    let Some(python) =
        python_with(&format!("clients_jax_on_a_private_mount::{}", io.word()), "jax")
    else {
        return;
    };
    client_on_a_private_node(io, &|cluster, node| {
        let mut command = clients::jax(cluster, &python, node, "jax", &["1", "0"]);
        let said = json(run(&mut command, LIMIT_MS));
        (said["misses"].as_u64().must("a count"), said["results"].clone())
    });
}
in_both_modes!(clients_jax_on_a_private_mount);

fn clients_numba_on_a_private_mount(io: Io) {
    let Some(python) =
        python_with(&format!("clients_numba_on_a_private_mount::{}", io.word()), "numba")
    else {
        return;
    };
    client_on_a_private_node(io, &|cluster, node| {
        let mut command = command(cluster, &python, "numba_program.py", &[]);
        let said = json(run(command.env("NUMBA_CACHE_DIR", node.at("numba")), LIMIT_MS));
        (said["misses"].as_u64().must("a count"), said["results"].clone())
    });
}
in_both_modes!(clients_numba_on_a_private_mount);

fn clients_triton_on_a_private_mount(io: Io) {
    let test = format!("clients_triton_on_a_private_mount::{}", io.word());
    let Some(python) = python_with(&test, "triton") else { return };
    if !is_root() || !need(&test, "unshare") {
        skipped(&test, "a mount namespace needs root");
        return;
    }
    client_on_a_private_node(io, &|cluster, node| {
        std::fs::create_dir_all(node.at("triton")).must("mkdir");
        let (mut command, mount) = clients::at_one_path(cluster, node, &python);
        command.arg(clients::script("triton_kernel.py"));
        let said = json(run(command.env("TRITON_CACHE_DIR", mount.join("triton")), LIMIT_MS));
        let new = said["new"].as_array().must("a list").len() as u64;
        (new, said["cubin"].clone())
    });
}
in_both_modes!(clients_triton_on_a_private_mount);
