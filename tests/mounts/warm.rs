//! `hearthfs warm`, `hearthfs run --record`, and the prefetch at a start.

use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::copies::put;
use crate::harness::command::{Said, wait};
use crate::harness::store::Trouble;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, body, eventually, in_both_modes,
};

const SIZE: usize = 40_000;
const LIMIT_MS: u64 = 30_000;

fn content(n: u64) -> String {
    let mut dice = body::Dice::new(n + 1);
    std::iter::repeat_with(|| format!("{:016x}", dice.next())).take(SIZE / 16).collect()
}

/// Writes files below directories on a node, and waits until the other knows them.
fn written(a: &Node, b: &Node, names: &[&str]) {
    for (n, name) in names.iter().enumerate() {
        put(&a.at(name), &content(n as u64), 0o644);
    }
    a.drain();
    let mut process = SyscallProcess::new();
    for name in names {
        eventually(LIMIT_MS, "the other node lists it", || {
            process.lstat(&b.at(name)).map_err(|error| format!("{name}: {error}"))
        });
    }
}

/// Reports whether the bytes of a name are on the node.
fn is_local(node: &Node, name: &str) -> bool {
    let at = node.at(name);
    let said = node.command(&["stat", "--json", &at.to_string_lossy()]).good();
    let told: Value = serde_json::from_str(&said).must("JSON");
    told["bytes"] == "local"
}

fn warm(node: &Node, words: &[&str]) -> Said {
    let mount = node.mount.to_string_lossy().into_owned();
    let words: Vec<&str> = ["warm", &mount].iter().chain(words).copied().collect();
    node.command(&words)
}

fn figures(said: &Said) -> Value {
    serde_json::from_str(&said.out).must(format_args!("JSON of {said:?}"))
}

fn commands_warm_fetches_what_is_named(io: Io) {
    let cluster = Cluster::two(io);
    let (a, b) = (&cluster.a, &cluster.b);
    let names = ["jax/one", "jax/two", "kernels/k/x.cubin", "kernels/k/x.text", "mine/a b*\\c"];
    written(a, b, &names);
    assert!(names.iter().all(|name| !is_local(b, name)));

    let said = warm(b, &["jax", "kernels/**/*.cubin", "--json"]);
    assert_eq!(said.code(), 0, "{said:?}");
    let told = figures(&said);
    // Other content of the same pack is fetched too, but not counted.
    assert_eq!(
        (&told["files"], &told["fetched"], &told["here"]),
        (&3.into(), &3.into(), &0.into())
    );
    assert_eq!(told["fetched_bytes"], 3 * SIZE);
    for name in ["jax/one", "jax/two", "kernels/k/x.cubin"] {
        assert!(is_local(b, name), "{name}");
    }
    let said = warm(b, &["--all"]);
    assert_eq!((said.code(), said.out.lines().count()), (0, 1), "{said:?}");
    assert!(names.iter().all(|name| is_local(b, name)), "{said:?}");
    let told = figures(&warm(b, &["--all", "--json"]));
    assert_eq!(
        (&told["files"], &told["here"], &told["fetched"]),
        (&5.into(), &5.into(), &0.into())
    );
    // A directory below the mount works, and so does the node that has written it.
    let below = a.at("jax");
    let said = a.command(&["warm", &below.to_string_lossy(), "o*", "--json"]);
    assert_eq!(figures(&said)["here"], 1, "{said:?}");
    for (n, name) in names.iter().enumerate() {
        assert_eq!(std::fs::read_to_string(b.at(name)).must(name), content(n as u64), "{name}");
    }
}
in_both_modes!(commands_warm_fetches_what_is_named);

#[test]
fn commands_warm_says_what_it_cannot_do() {
    let cluster = Cluster::two(Io::best());
    let (a, b) = (&cluster.a, &cluster.b);
    written(a, b, &["jax/one", "jax/two"]);
    let refused = |said: &Said, code: i32, text: &str| {
        assert!(said.code() == code && said.err.contains(text), "{code}, {text}: {said:?}");
    };
    refused(&warm(b, &[]), 2, "nothing to fetch is named");
    refused(&warm(b, &["/etc"]), 2, "relative to DIR");
    refused(&warm(b, &["--all", "jax"]), 2, "cannot be used with");
    refused(&warm(b, &["nothing-*"]), 1, "nothing matches nothing-*");
    refused(&warm(b, &["absent"]), 1, "absent");
    let site = cluster.site.path();
    let elsewhere = b.command(&["warm", &site.to_string_lossy(), "--all"]);
    refused(&elsewhere, 3, "not");

    let list = site.join("list");
    let with_list = |text: &str| {
        std::fs::write(&list, text).must("write the list");
        warm(b, &["--list", &list.to_string_lossy()])
    };
    refused(&warm(b, &["--list", "/no/such/list"]), 2, "/no/such/list");
    refused(&with_list("/absolute\n"), 2, "line 1");
    refused(&with_list("jax/one\na\\\n"), 2, "line 2");
    // Existing files are still fetched.
    let said = with_list("jax/two\nabsent\njax\n\n");
    refused(&said, 1, "2 names are not there");
    assert!(said.err.contains("absent") && said.err.contains("it is not a file"), "{said:?}");
    assert!(is_local(b, "jax/two"));
}

/// Without access to the store the command says so at once, and a node without a store has nothing to fetch.
#[test]
fn commands_warm_needs_the_store() {
    let options = Options::new(Io::best()).deadline("2s");
    let cluster = Cluster::with(Store::s3, &options);
    written(&cluster.a, &cluster.b, &["jax/one"]);
    cluster.store.fail();
    // The first requests notice the outage.
    eventually(LIMIT_MS, "the outage is reported", || {
        let said = warm(&cluster.b, &["--all"]);
        let is_told = said.err.contains("the store") && said.code() == 1;
        if is_told { Ok(()) } else { Err(format!("{said:?}")) }
    });
    cluster.store.heal();
    eventually(LIMIT_MS, "the store is used again", || {
        let said = warm(&cluster.b, &["--all"]);
        if said.code() == 0 { Ok(()) } else { Err(format!("{said:?}")) }
    });
    assert!(is_local(&cluster.b, "jax/one"));
    let site = &cluster.site;
    let alone = Node::start(site, "alone", None, Options::new(Io::best()));
    let said = warm(&alone, &["--all"]);
    assert!(said.code() == 0 && said.err.contains("no remote"), "{said:?}");
}

/// What does not fit stays in the store, and nothing is evicted for it.
#[test]
fn commands_warm_fetches_as_much_as_there_is_room_for() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    let files = 24;
    for n in 0..files {
        let bytes = content(n).repeat(25);
        put(&a.at(format!("big/{n:02}")), &bytes, 0o644);
    }
    a.drain();
    let options = Options::new(Io::best()).cache_size("16MiB");
    let small = Node::start(&cluster.site, "small", Some(&cluster.store), options);
    let said = warm(&small, &["--all", "--json"]);
    let told = figures(&said);
    assert_eq!(said.code(), 0, "all that fits is fetched: {said:?}");
    let count = |name: &str| told[name].as_u64().must(name);
    assert_eq!(count("files"), files);
    assert!(count("fetched") > 5 && count("without_room") > 5, "{told}");
    assert!(said.err.contains("there is no room for"), "{said:?}");
    assert_eq!(small.status()["counters"]["evicted"], 0);
    let said = warm(&small, &["big"]);
    assert!(said.code() == 1 && said.err.contains("local.cache_size"), "{said:?}");
}

fn run_records_a_list_for_warm(io: Io) {
    let cluster = Cluster::two(io);
    let (a, b) = (&cluster.a, &cluster.b);
    let odd = "jax/o\nd d\u{202e}*";
    written(a, b, &["jax/one", "jax/two", "mine/three", odd]);
    let list = cluster.site.path().join("job.list");
    let (mount, file) = (a.mount.to_string_lossy(), list.to_string_lossy());
    let script = format!("cat jax/two jax/one jax/two '{odd}' >/dev/null; ls jax; exit 7");
    let run = |tail: &[&str]| {
        let words = ["run", "--mount", &mount, "--record", &file, "--"];
        let words: Vec<&str> = words.iter().chain(tail).copied().collect();
        a.command(&words)
    };
    let said = run(&["sh", "-c", &format!("cd '{mount}' && {script}")]);
    assert_eq!(said.code(), 7, "the status of the command: {said:?}");
    let text = std::fs::read_to_string(&list).must("the list");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        ["jax/two", "jax/one", "jax/o\\nd d\\u{202e}*"],
        "in the order of the first opens"
    );
    assert!(said.err.contains("3 files opened"), "{said:?}");

    let said = warm(b, &["--list", &file, "--json"]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert_eq!(figures(&said)["fetched"], 3);
    assert!(is_local(b, "jax/one") && is_local(b, "jax/two"));
    // The next job's list replaces it, and a missing command leaves no list.
    assert_eq!(run(&["true"]).code(), 0);
    assert_eq!(std::fs::read_to_string(&list).must("the list"), "");
    std::fs::remove_file(&list).must("remove");
    assert_eq!(run(&["/no/such/command"]).code(), 127);
    assert!(!list.exists());
    let left: Vec<_> = std::fs::read_dir(cluster.site.path())
        .must("list the site")
        .filter(|file| {
            let name = file.as_ref().must("a name").file_name();
            name.to_string_lossy().starts_with(".hearthfs-record")
        })
        .collect();
    assert!(left.is_empty(), "{left:?}");
}
in_both_modes!(run_records_a_list_for_warm);

/// Before anything is mounted or run.
#[test]
fn run_refuses_a_list_that_cannot_be_written() {
    let cluster = Cluster::two(Io::best());
    let mount = cluster.a.mount.to_string_lossy();
    for file in ["/no/such/dir/list", "/proc/list", "/"] {
        let said =
            cluster.a.command(&["run", "--mount", &mount, "--record", file, "--", "echo", "ran"]);
        assert!(said.code() == 2 && said.err.contains("--record"), "{file}: {said:?}");
        assert_eq!(said.out, "", "{file}");
    }
}

/// A node that was just mounted fetches what others have stored, unless it is full.
#[test]
fn a_start_fetches_what_the_store_got_last() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    for n in 0..8 {
        put(&a.at(format!("jax/{n}")), &content(n), 0o644);
    }
    a.drain();
    let mut options = Options::new(Io::best());
    options.env.push(("HEARTHFS_PREFETCH".to_owned(), "64MiB".to_owned()));
    let fresh = Node::start(&cluster.site, "fresh", Some(&cluster.store), options);
    eventually(LIMIT_MS, "all files are local", || {
        let blobs = fresh.status()["local"]["blobs"].as_u64().unwrap_or(0);
        if blobs >= 8 { Ok(()) } else { Err(format!("{blobs} blobs")) }
    });
    let status = fresh.status();
    assert_eq!(status["counters"]["fetched"], 0, "no program has asked for any");
    assert!((0..8).all(|n| is_local(&fresh, &format!("jax/{n}"))));
}

/// Ctrl-C ends the command, and also the daemon's work for it.
#[test]
fn commands_warm_ends_with_its_process() {
    let options = Options::new(Io::best()).deadline("60s");
    let cluster = Cluster::with(Store::s3, &options);
    written(&cluster.a, &cluster.b, &["jax/one"]);
    cluster.store.trouble(Trouble::Hang);
    // If a shell runs the tests in the background, they ignore this signal, and what they start inherits that.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", env!("CARGO_BIN_EXE_hearthfs"), "warm"]);
    crate::harness::node::dress(&mut command, cluster.site.path());
    command.args([&cluster.b.mount, Path::new("--all")]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().must("warm");
    crate::harness::sleep_ms(500);
    assert!(child.try_wait().must("look").is_none(), "the command waits for the store");
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).must("Ctrl-C");
    let ended = wait(&mut child, 5_000).must("it ends at once");
    assert!(!ended.success());
    cluster.store.heal();
    eventually(LIMIT_MS, "the store is used again", || {
        let said = warm(&cluster.b, &["--all"]);
        if said.code() == 0 { Ok(()) } else { Err(format!("{said:?}")) }
    });
}
