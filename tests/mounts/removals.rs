//! `hearthfs rm`.

use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::copies::{SEEN_MS, put};
use crate::harness::command::{need, run};
use crate::harness::node::dress;
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, SyscallProcess, eventually, in_both_modes, tree,
};
use crate::inside::{LIMIT_MS, asked, good};

/// `rm` prints the amount, asks, and removes from all nodes; targets of links stay.
fn commands_rm_removes_from_all_nodes(io: Io) {
    let cluster = Cluster::two(io);
    let (a, b, site) = (&cluster.a, &cluster.b, &cluster.site);
    for name in ["jax/1-cache", "jax/2-cache", "jax/deep/er/3-cache", "keep/4-cache"] {
        put(&a.at(name), name, 0o644);
    }
    put(&site.dir("outside").join("precious"), "precious", 0o644);
    symlink(site.path().join("outside"), a.at("jax/out")).must("symlink");
    symlink("../keep", a.at("jax/in")).must("symlink");
    a.drain();
    eventually(SEEN_MS, "node B has it", || {
        std::fs::metadata(b.at("keep/4-cache")).map_err(|e| e.to_string())
    });
    let before = tree::texts(&a.mount);

    let said = asked(a, &["rm", "--dry-run"], &[&a.at("jax")]);
    assert_eq!(good(&said), "would remove 5 files and 3 directories (41 B)\n");
    let said = asked(a, &["rm"], &[&a.at("jax")]);
    assert_eq!(said.code(), 2, "{said:?}");
    for part in ["remove 5 files and 3 directories (41 B) below ", "from all nodes?", "--yes"] {
        assert!(said.err.contains(part) && said.out.is_empty(), "{part}: {said:?}");
    }
    for root in [&a.mount, &a.at(".")] {
        let said = asked(a, &["rm", "--yes"], &[root]);
        assert_eq!(said.code(), 2, "{said:?}");
        assert!(said.err.contains("it is the mount itself"), "{said:?}");
    }
    assert_eq!(tree::texts(&a.mount), before, "nothing was removed");

    // On the node that has not written it, and first for one name.
    let said = asked(b, &["rm", "--yes"], &[&b.at("jax/*-cache")]);
    assert_eq!(good(&said), "removed 2 files (22 B)\n");
    let said = asked(b, &["rm", "--yes", "--json"], &[&b.at("jax")]);
    let report: Value = serde_json::from_str(&said.out).must("parse");
    let counted = ["files", "directories", "bytes", "failed"].map(|key| report[key].as_u64());
    assert_eq!(counted, [3, 3, 19, 0].map(Some), "{report}");
    b.drain();
    eventually(SEEN_MS, "node A shows the removal", || match tree::texts(&a.mount) {
        names if names == ["keep"] => Ok(()),
        names => Err(format!("{names:?}")),
    });
    assert_eq!(std::fs::read(a.at("keep/4-cache")).must("read"), b"keep/4-cache");
    assert_eq!(tree::texts(&site.dir("outside")), ["precious"]);
    let said = asked(a, &["rm", "--yes"], &[&a.at("jax/*")]);
    assert!(said.status.success() && said.err.contains("nothing matches"), "{said:?}");
    let said = asked(a, &["rm", "--yes"], &[&a.at("jax")]);
    assert_eq!(said.code(), 1, "{said:?}");
}
in_both_modes!(commands_rm_removes_from_all_nodes);

/// On a mount that keeps writes on its node, `rm` removes only from this node, and says so.
#[test]
fn commands_rm_on_a_private_mount() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    put(&a.at("file"), "content", 0o644);
    a.drain();
    let private = Node::start(
        &cluster.site,
        "private",
        Some(&cluster.store),
        Options::new(Io::best()).private(),
    );
    eventually(SEEN_MS, "it arrives", || {
        std::fs::metadata(private.at("file")).map_err(|error| error.to_string())
    });
    let said = asked(&private, &["rm"], &[&private.at("file")]);
    assert!(said.code() == 2 && said.err.contains("from this node only?"), "{said:?}");
    let said = asked(&private, &["rm", "--yes", "--json"], &[&private.at("file")]);
    assert_eq!(serde_json::from_str::<Value>(&good(&said)).must("parse")["all_nodes"], false);
    assert!(!private.at("file").exists());
    private.drain();
    assert!(a.at("file").exists(), "other nodes still have it");
    let said = asked(a, &["rm", "--dry-run", "--json"], &[&a.at("file")]);
    assert_eq!(serde_json::from_str::<Value>(&good(&said)).must("parse")["all_nodes"], true);
}

/// No process finds members of a unit without its entry point.
#[test]
fn commands_rm_takes_entry_points_first() {
    const MEMBERS: usize = 600;
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    // The names of the members sort before that of the entry point.
    let mut process = SyscallProcess::new();
    process.mkdir(&a.at("triton")).must("mkdir");
    process.mkdir(&a.at("triton/KEY")).must("mkdir");
    for number in 0..MEMBERS {
        process.put(&a.at(format!("triton/KEY/0{number}.ttir")), b"member").must("put");
    }
    process.put(&a.at("triton/KEY/__grp__k.json"), b"{}").must("put");
    let entry = a.at("triton/KEY/__grp__k.json");
    eventually(SEEN_MS, "the unit arrives", || {
        std::fs::metadata(&entry).map_err(|e| e.to_string())
    });
    let member = a.at("triton/KEY/00.ttir");
    let (torn, ended) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let looker = {
        let (torn, ended, entry) = (torn.clone(), ended.clone(), entry.clone());
        thread(move || {
            let mut looks = 0_u64;
            while !ended.load(Ordering::SeqCst) {
                looks += 1;
                // In this order: the member was missing before the entry point was looked up.
                if std::fs::symlink_metadata(&member).is_err()
                    && std::fs::symlink_metadata(&entry).is_ok()
                {
                    torn.store(true, Ordering::SeqCst);
                }
            }
            looks
        })
    };
    let said = asked(a, &["rm", "--yes", "--json"], &[&a.at("triton/KEY")]);
    ended.store(true, Ordering::SeqCst);
    let looks = looker.join().must("look");
    let report: Value = serde_json::from_str(&good(&said)).must("parse");
    assert_eq!(report["files"], MEMBERS as u64 + 1, "{report}");
    assert_eq!((&report["entry_points"], &report["failed"]), (&1.into(), &0.into()), "{report}");
    assert!(looks > 10, "{looks} looks");
    assert!(!torn.load(Ordering::SeqCst), "members were missing while the entry point was there");
    assert_eq!(tree::texts(&a.mount), ["triton"]);
}

/// What is mounted below the mount is not entered.
#[test]
fn commands_rm_stays_on_the_mount() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    if !crate::harness::is_root() {
        return crate::harness::skipped("commands_rm_stays_on_the_mount", "only root can mount");
    }
    put(&a.at("dir/file"), "content", 0o644);
    std::fs::create_dir(a.at("dir/other")).must("mkdir");
    let other = a.at("dir/other");
    let mounted = run(Command::new("mount").args(["-t", "tmpfs", "tmpfs"]).arg(&other), LIMIT_MS);
    assert!(mounted.status.success(), "{mounted:?}");
    std::fs::write(other.join("precious"), "precious").must("write");
    let said = asked(a, &["rm", "--yes"], &[&a.at("dir")]);
    let kept = std::fs::read(other.join("precious"));
    run(Command::new("umount").arg(&other), LIMIT_MS).good();
    assert_eq!(kept.must("read"), b"precious");
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.err.contains("another file system is mounted there"), "{said:?}");
    assert_eq!(tree::texts(&a.at("dir")), ["other"]);
}

/// On a terminal `rm` asks, and only a yes is a yes.
#[test]
fn commands_rm_asks_on_a_terminal() {
    if !need("commands_rm_asks_on_a_terminal", "script") {
        return;
    }
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    put(&a.at("file"), "content", 0o644);
    for (answer, code, there) in [("n", 2, true), ("", 2, true), ("y", 0, false)] {
        let words = format!("'{}' rm '{}'", env!("CARGO_BIN_EXE_hearthfs"), a.at("file").display());
        let mut script = Command::new("script");
        dress(&mut script, cluster.site.path());
        script.args(["--quiet", "--return", "--command", &words, "/dev/null"]);
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = script.spawn().must("start script");
        let mut input = child.stdin.take().must("its input");
        std::io::Write::write_all(&mut input, format!("{answer}\n").as_bytes()).must("answer");
        crate::harness::command::wait(&mut child, LIMIT_MS).must("the end of script");
        drop(input);
        let ended = child.wait_with_output().must("its output");
        let out = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(ended.status.code(), Some(code), "{answer:?}: {out}");
        assert!(out.contains("remove 1 file (7 B) below ") && out.contains("[y/N]"), "{out}");
        assert_eq!(a.at("file").exists(), there, "{answer:?}: {out}");
    }
}
