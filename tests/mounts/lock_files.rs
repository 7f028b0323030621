//! Lock files: names whose existence excludes other processes, and which are removed with the
//! process that made them.

use std::path::Path;

use rustix::io::Errno;
use rustix::process::Signal;

use crate::harness::syscall_process::CREATE_NEW;
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes};
use crate::users::{A, World, let_in};

/// Locks of Neuron and of PyTorch's extensions, which all nodes see, ...
const MODULE: &str = "neuron/neuronxcc-2/MODULE_1+2";
const CLUSTER: [&str; 2] =
    ["neuron/neuronxcc-2/MODULE_1+2/model.hlo_module.pb.lock", "torch_extensions/py311/name/lock"];
/// ... one of ccache, which stays on its node, ...
const NODE: &str = "ccache/0/stats.lock";
/// ... and files with such names elsewhere.
const ORDINARY: [&str; 2] = ["Cargo.lock", "name/lock"];

fn cluster(io: Io) -> Cluster {
    let cluster = Cluster::two(io);
    let dirs = [MODULE, "torch_extensions/py311/name", "ccache/0", "name"];
    for dir in dirs {
        std::fs::create_dir_all(cluster.a.at(dir)).must("mkdir -p");
    }
    cluster.a.drain();
    for dir in dirs {
        let there = || if cluster.b.at(dir).is_dir() { Ok(()) } else { Err("not yet") };
        eventually(10_000, dir, || there().map_err(str::to_owned));
    }
    cluster
}

fn await_there(path: &Path, wanted: bool) {
    eventually(10_000, path.display(), || match std::fs::symlink_metadata(path).is_ok() {
        there if there == wanted => Ok(()),
        there => Err(format!("it exists: {there}")),
    });
}

fn lock_files_exclude_on_all_nodes_until_their_process_ends(io: Io) {
    let cluster = cluster(io);
    for (name, signal) in CLUSTER.into_iter().flat_map(|n| [(n, true), (n, false)]) {
        let (mut maker, mut other) = (SyscallProcess::new(), SyscallProcess::new());
        // It stays open, like that of PyTorch.
        maker.open(&cluster.a.at(name), CREATE_NEW, 0o444).must("make the lock");
        assert_eq!(other.open(&cluster.a.at(name), CREATE_NEW, 0o644), Err(Errno::EXIST), "{name}");
        await_there(&cluster.b.at(name), true);
        assert_eq!(other.open(&cluster.b.at(name), CREATE_NEW, 0o644), Err(Errno::EXIST), "{name}");
        if signal {
            maker.kill(Signal::KILL);
        } else {
            maker.leave("exit", 0);
        }
        await_there(&cluster.a.at(name), false);
        await_there(&cluster.b.at(name), false);
        let fd = other.open(&cluster.b.at(name), CREATE_NEW, 0o644).must("the next makes it");
        other.close(fd).must("close");
        other.unlink(&cluster.b.at(name)).must("remove it");
        cluster.b.drain();
        await_there(&cluster.a.at(name), false);
    }
}
in_both_modes!(lock_files_exclude_on_all_nodes_until_their_process_ends);

fn lock_files_of_one_node_and_files_that_look_like_locks(io: Io) {
    let cluster = cluster(io);
    let a = &cluster.a;
    let mut maker = SyscallProcess::new();
    maker.symlink(Path::new("host-1-2-3"), &a.at(NODE)).must("symlink");
    for name in ORDINARY {
        let fd = maker.open(&a.at(name), CREATE_NEW, 0o644).must("create");
        maker.close(fd).must("close");
    }
    maker.kill(Signal::KILL);
    await_there(&a.at(NODE), false);
    cluster.a.drain();
    for name in ORDINARY {
        await_there(&cluster.b.at(name), true);
        assert!(a.at(name).exists(), "{name} is an ordinary file");
    }
    assert!(!cluster.b.at(NODE).exists());
}
in_both_modes!(lock_files_of_one_node_and_files_that_look_like_locks);

/// Only the version that the ended process has made is removed.
#[test]
fn lock_files_that_others_have_made_since_stay() {
    let cluster = cluster(Io::best());
    let path = cluster.a.at(CLUSTER[0]);
    let (mut first, mut second) = (SyscallProcess::new(), SyscallProcess::new());
    first.put(&path, b"").must("the first makes it");
    first.unlink(&path).must("the first removes it");
    second.put(&path, b"2").must("the second makes it");
    first.kill(Signal::KILL);
    // When this one is gone, the daemon has checked the locks.
    let mut third = SyscallProcess::new();
    third.put(&cluster.a.at(CLUSTER[1]), b"").must("another lock");
    third.kill(Signal::KILL);
    await_there(&cluster.a.at(CLUSTER[1]), false);
    assert_eq!(second.get(&path), Ok(b"2".to_vec()));
    // Its maker may rewrite it.
    second.put(&path, b"2 again").must("rewrite");
    second.kill(Signal::KILL);
    await_there(&path, false);
}

/// A directory is no lock file, whatever its name is.
#[test]
fn lock_files_are_no_directories() {
    let cluster = cluster(Io::best());
    let dir = cluster.a.at("torch_extensions/py311/other/lock");
    std::fs::create_dir_all(cluster.a.at("torch_extensions/py311/other/before")).must("mkdir");
    let (mut maker, mut other) = (SyscallProcess::new(), SyscallProcess::new());
    maker.rename(&cluster.a.at("torch_extensions/py311/other/before"), &dir).must("rename");
    other.put(&cluster.a.at(CLUSTER[1]), b"").must("a lock");
    maker.kill(Signal::KILL);
    // The daemon checks locks in order of their names, so this one comes last.
    other.kill(Signal::KILL);
    await_there(&cluster.a.at(CLUSTER[1]), false);
    assert!(dir.is_dir());
    cluster.a.drain();
    await_there(&cluster.b.at("torch_extensions/py311/other/lock"), true);
}

/// A restarted daemon recognises the processes.
#[test]
fn lock_files_outlive_a_daemon_with_their_process_only() {
    let mut cluster = cluster(Io::best());
    let [one, other] = CLUSTER.map(|name| cluster.a.at(name));
    let (mut lives, mut ends) = (SyscallProcess::new(), SyscallProcess::new());
    lives.put(&one, b"").must("put");
    ends.put(&other, b"").must("put");
    cluster.a.kill_only();
    ends.kill(Signal::KILL);
    cluster.a.up();
    await_there(&other, false);
    assert!(one.exists(), "the process of the lock lives");
    lives.kill(Signal::KILL);
    await_there(&one, false);
    cluster.a.drain();
    await_there(&cluster.b.at(CLUSTER[0]), false);
}

/// The end of a process removes only what the process itself might have removed (P14).
fn p14_isolation_of_lock_files(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_lock_files") else { return };
    let dir = world.cluster.a.at(MODULE);
    std::fs::create_dir_all(&dir).must("mkdir -p");
    for above in [dir.parent().and_then(Path::parent).must("above"), dir.parent().must("above")] {
        let_in(above, 0o755);
    }
    world.root.chown(&dir, Some(A.uid), Some(A.gid)).must("chown");
    let_in(&dir, 0o755);
    let path = world.cluster.a.at(CLUSTER[0]);
    world.a.put(&path, b"a").must("A makes its lock");
    world.root.chmod(&path, 0o666).must("chmod");
    world.b.put(&path, b"b").must("B writes it");
    world.b.kill(Signal::KILL);
    let mut other = SyscallProcess::new();
    let marker = dir.join("another.lock");
    other.put(&marker, b"").must("another lock");
    other.kill(Signal::KILL);
    await_there(&marker, false);
    assert_eq!(world.root.get(&path), Ok(b"b".to_vec()), "B may not remove it");
    world.a.kill(Signal::KILL);
    await_there(&path, false);
}
in_both_modes!(p14_isolation_of_lock_files);
