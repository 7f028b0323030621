//! The directories of clients that the daemon of a shared mount makes in its root.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::Value;

use crate::harness::node::Site;
use crate::harness::{Io, Must as _, Node, Options, Store, eventually, tree};

const SHARED: u32 = 0o1777;

fn mode(node: &Node, name: &str) -> u32 {
    let meta = std::fs::metadata(node.at(name)).must(format_args!("stat {name}"));
    assert!(meta.is_dir(), "{name} is no directory");
    meta.permissions().mode() & 0o7777
}

fn names(node: &Node) -> Vec<String> {
    let entries = std::fs::read_dir(&node.mount).must("list the root");
    let names = entries.map(|entry| entry.must("list the root").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.must("a name of text")).collect();
    names.sort();
    names
}

/// Returns the directories of all clients, as the program names them.
fn wanted(node: &Node) -> Vec<String> {
    let said: Value =
        serde_json::from_str(&node.command(&["profiles", "--json"]).good()).must("JSON");
    let list = said.as_array().or_else(|| said["profiles"].as_array()).must("a list of profiles");
    let dirs = list.iter().filter_map(|profile| profile["dir"].as_str());
    let mut dirs: Vec<String> = dirs.filter(|dir| !dir.is_empty()).map(str::to_owned).collect();
    dirs.sort();
    dirs.dedup();
    assert!(dirs.len() > 10, "{dirs:?}");
    dirs
}

fn await_dirs(node: &Node) {
    let wanted = wanted(node);
    eventually(20_000, "the directories of clients exist", || {
        let there = names(node);
        if wanted.iter().all(|dir| there.contains(dir)) {
            Ok(())
        } else {
            Err(format!("{there:?}"))
        }
    });
}

fn commits(node: &Node) -> u64 {
    node.status()["counters"]["commits_written"].as_u64().must("a count")
}

#[test]
fn client_dirs_are_made_once_and_then_left_alone() {
    let site = Site::new();
    let store = Store::dir(&site);
    let options = Options::new(Io::best()).client_dirs("1777");
    let mut a = Node::start(&site, "a", Some(&store), options.clone());
    await_dirs(&a);
    assert_eq!(names(&a), wanted(&a), "nothing else is made");
    for name in names(&a) {
        assert_eq!(mode(&a, &name), SHARED, "{name}");
    }
    std::fs::set_permissions(a.at("ccache"), std::fs::Permissions::from_mode(0o700)).must("chmod");
    a.drain();
    // Another node finds them, and so does the same one after a restart.
    let mut b = Node::start(&site, "b", Some(&store), options.clone());
    await_dirs(&b);
    a.stop();
    a.up();
    await_dirs(&a);
    b.drain();
    a.drain();
    // A later change also arrives later: by then, everything that either node would have made is there.
    for (from, to) in [(&a, &b), (&b, &a)] {
        let mark = format!("mark-of-{}", from.mount.file_name().must("a name").to_string_lossy());
        let before = commits(from);
        std::fs::write(from.at(&mark), b"mark").must("write a mark");
        from.drain();
        assert_eq!(
            (before, commits(from)),
            (0, 1),
            "a start that finds all directories is no commit"
        );
        eventually(10_000, "a mark arrives", || {
            std::fs::metadata(to.at(&mark)).map_err(|e| e.to_string())
        });
        assert_eq!((mode(from, "ccache"), mode(to, "ccache")), (0o700, 0o700));
    }
    a.stop();
    b.stop();
}

#[test]
fn client_dirs_are_made_again_after_their_age() {
    let site = Site::new();
    let store = Store::dir(&site);
    let options = Options::new(Io::best()).client_dirs("1777").expiry("12s");
    let mut a = Node::start(&site, "a", Some(&store), options);
    await_dirs(&a);
    eventually(60_000, "the directory passes its age", || {
        match std::fs::metadata(a.at("ccache")) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    eventually(60_000, "the directory is made again", || {
        std::fs::metadata(a.at("ccache")).map(drop).map_err(|error| error.to_string())
    });
    await_dirs(&a);
    assert_eq!(mode(&a, "ccache"), SHARED);
    a.stop();
}

#[test]
fn client_dirs_of_two_nodes_at_once_merge() {
    let site = Site::new();
    let store = Store::dir(&site);
    let options = Options::new(Io::best()).client_dirs("0770");
    let mut a = Node::start(&site, "a", Some(&store), Options::new(Io::best()));
    let mut b = Node::start(&site, "b", Some(&store), Options::new(Io::best()));
    for node in [&mut a, &mut b] {
        node.stop();
        node.set_options(options.clone());
    }
    a.spawn();
    b.spawn();
    a.await_ready();
    b.await_ready();
    await_dirs(&a);
    await_dirs(&b);
    std::fs::write(a.at("jax/of-a"), b"a").must("write");
    std::fs::write(b.at("jax/of-b"), b"b").must("write");
    a.drain();
    b.drain();
    tree::converge(&a.mount, &b.mount, 20_000);
    for name in wanted(&a) {
        assert_eq!((mode(&a, &name), mode(&b, &name)), (0o770, 0o770), "{name}");
    }
    assert!(a.at("jax/of-b").exists() && b.at("jax/of-a").exists());
}

#[test]
fn client_dirs_that_cannot_be_made_are_said_once_and_fail_nothing() {
    let site = Site::new();
    let store = Store::dir(&site);
    let mut node = Node::start(&site, "a", Some(&store), Options::new(Io::best()));
    assert!(names(&node).is_empty(), "a mount for one user gets no directories");
    std::fs::write(node.at("jax"), b"a file").must("write");
    node.stop();
    node.set_options(Options::new(Io::best()).client_dirs("1777"));
    node.up();
    eventually(20_000, "a directory that cannot be made is reported", || {
        let log = node.log();
        let line = log.lines().find(|line| line.contains("client_dirs")).map(str::to_owned);
        line.ok_or(log)
    });
    let log = node.log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("client_dirs")).collect();
    let jax = node.at("jax").display().to_string();
    assert!(
        matches!(lines[..], [line] if line.contains(&jax) && line.contains("install -d -m 1777")),
        "{log}"
    );
    assert_eq!(std::fs::read(node.at("jax")).must("read"), b"a file");
    assert_eq!((mode(&node, "ccache"), mode(&node, "vllm")), (SHARED, SHARED));
    node.stop();
    // Readers make no directories, and get no warning.
    let mut reader =
        Node::start(&site, "r", None, Options::new(Io::best()).client_dirs("1777").read_only());
    assert!(names(&reader).is_empty());
    reader.stop();
    assert!(!reader.log().contains("client_dirs"), "{}", reader.log());
}
