//! Commands and daemons of different versions: each understands the part of the other that it knows.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::copies::put;
use crate::harness::time::thread;
use crate::harness::{Cluster, Io, Must as _, Node};

/// The fields of the first daemon with a socket.
const FIRST: [&str; 16] = [
    "version",
    "pid",
    "uid",
    "mount_point",
    "remote",
    "cache_dir",
    "started_ms",
    "uptime_ms",
    "phase",
    "io",
    "read_only",
    "pid_namespace",
    "entries",
    "health",
    "local",
    "backlog",
];

/// Returns the socket of the only daemon of a runtime directory.
fn socket(node: &Node) -> PathBuf {
    let dir = node.mount.parent().must("a site").join("run");
    let all = std::fs::read_dir(dir).must("list the runtime directory");
    let mut paths = all.map(|entry| entry.must("an entry").path());
    let is_socket = |path: &PathBuf| path.extension().is_some_and(|end| end == "sock");
    let of_node = |path: &PathBuf| {
        let status = said(path, "{\"op\":\"status\"}");
        status["status"]["mount_point"].as_str() == node.mount.to_str()
    };
    paths.find(|path| is_socket(path) && of_node(path)).must("a socket")
}

/// Sends one line and returns the last line of the answer.
fn said(socket: &PathBuf, line: &str) -> Value {
    let mut stream = UnixStream::connect(socket).must("connect");
    writeln!(stream, "{line}").must("ask");
    stream.shutdown(std::net::Shutdown::Write).must("half close");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).must("an answer");
    let last = answer.lines().last().must("a line");
    serde_json::from_str(last).must(format_args!("JSON: {last}"))
}

/// Answers a line, with access to the node's own daemon.
type Answer = fn(&str, &dyn Fn(&str) -> Value) -> Value;

/// Replaces a node's own daemon; requests that `answer` does not handle are passed on to it.
fn stand_in(node: &Node, answer: Answer) {
    let at = socket(node);
    let behind = at.with_extension("behind");
    std::fs::rename(&at, &behind).must("move the socket away");
    let listener = UnixListener::bind(&at).must("listen");
    drop(thread(move || {
        for stream in listener.incoming() {
            let mut stream = stream.must("a connection");
            let lines = BufReader::new(stream.try_clone().must("a reader")).lines();
            for line in lines.map_while(Result::ok) {
                let told = answer(&line, &|line| said(&behind, line));
                if writeln!(stream, "{told}").is_err() {
                    break;
                }
            }
        }
    }));
}

fn op_of(line: &str) -> String {
    let request: Value = serde_json::from_str(line).must("JSON");
    request["op"].as_str().must("an op").to_owned()
}

/// The request of the first version, byte for byte, and what it read of the answers.
#[test]
fn bad_input_an_old_status_asks_a_new_daemon() {
    let cluster = Cluster::two(Io::best());
    let at = socket(&cluster.a);
    let status = said(&at, "{\"op\":\"status\"}");
    let status = &status["status"];
    for key in FIRST {
        assert!(status.get(key).is_some(), "{key}: {status:#}");
    }
    for (key, is_it) in [
        ("pid", status["pid"].is_u64()),
        ("mount_point", status["mount_point"].is_string()),
        ("phase", status["phase"] == "serving"),
        ("io", status["io"]["mode"].is_string()),
        ("health", status["health"]["up"] == true),
        ("local", status["local"]["bytes"].is_u64() && status["local"]["limit_bytes"].is_u64()),
        ("backlog", status["backlog"]["records"].is_u64()),
        ("counters", status["counters"]["hits"].is_u64()),
    ] {
        assert!(is_it, "{key}: {status:#}");
    }
    put(&cluster.a.at("file"), "text", 0o644);
    let drained = said(&at, "{\"op\":\"drain\",\"timeout_ms\":60000}");
    assert_eq!(drained["drained"]["complete"], true, "{drained:#}");
    let refused = said(&at, "{\"op\":\"a question of later\"}");
    assert_eq!(refused["error"]["kind"], "Invalid", "{refused:#}");
}

/// An older daemon reports less, and refuses unknown requests.
#[test]
fn bad_input_a_new_status_asks_an_old_daemon() {
    let cluster = Cluster::two(Io::best());
    let (a, mount) = (&cluster.a, cluster.a.mount.to_str().must("text"));
    put(&a.at("file"), "text", 0o644);
    stand_in(a, |line, ask| match op_of(line).as_str() {
        "status" => {
            let all = ask(line);
            let mut old = serde_json::Map::new();
            for key in FIRST {
                old.insert(key.to_owned(), all["status"][key].clone());
            }
            old.insert("version".to_owned(), json!("0.0.1"));
            old.insert("counters".to_owned(), json!({ "hits": 7, "misses": 1 }));
            json!({ "status": old })
        }
        "drain" => ask(line),
        other => {
            json!({ "error": { "kind": "Invalid", "message": format!("unknown variant `{other}`") } })
        }
    });
    let table = a.command(&["status", mount]).good();
    for part in
        ["version 0.0.1, ", "backlog ", "7 hits, 1 miss", "worth     0 entries served locally"]
    {
        assert!(table.contains(part), "`{part}` is not in:\n{table}");
    }
    let all = a.command(&["status"]).good();
    assert!(all.contains("version 0.0.1"), "{all}");
    let status = a.status();
    assert_eq!((&status["version"], &status["counters"]["hits"]), (&"0.0.1".into(), &7.into()));
    a.command(&["drain", mount]).good();
    let page = a.command(&["top", mount]).good();
    assert!(page.contains("the daemon has an older version"), "{page}");
    for words in [
        &["explain", "--last", mount][..],
        &["warm", "--all", mount],
        &["run", "--mount", mount, "--", "true"],
    ] {
        let said = a.command(words);
        assert!(matches!(said.code(), 0..=2), "{words:?}: {said:?}");
        if said.code() != 0 {
            assert!(said.err.contains("version"), "{words:?}: {said:?}");
        }
    }
    let found = a.command(&["doctor", mount]);
    assert!((found.out + &found.err).contains("0.0.1"), "doctor names both versions");
}

/// A newer daemon reports fields that this version does not know.
#[test]
fn bad_input_a_status_asks_a_newer_daemon() {
    let cluster = Cluster::two(Io::best());
    let (a, mount) = (&cluster.a, cluster.a.mount.to_str().must("text"));
    stand_in(a, |line, ask| {
        let mut told = ask(line);
        if let Some(status) = told.get_mut("status") {
            status["version"] = json!("9.0.0");
            status["phase"] = json!("pondering");
            status["mood"] = json!({ "good": true });
            status["health"]["colour"] = json!("green");
            status["counters"]["daydreams"] = json!(3);
        }
        told
    });
    let table = a.command(&["status", mount]).good();
    assert!(table.contains("version 9.0.0"), "{table}");
    assert!(table.contains("does not know"), "{table}");
    assert_eq!(a.status()["version"], "9.0.0");
    let page = a.command(&["top", mount]).good();
    assert!(page.contains("\nremote    up\n"), "{page}");
    let found = a.command(&["doctor", mount]);
    assert!((found.out + &found.err).contains("9.0.0"), "doctor names both versions");
    a.command(&["drain", mount]).good();
}
