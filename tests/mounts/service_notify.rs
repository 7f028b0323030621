//! The daemon under a service manager: its messages, and when they stop.

use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::harness::body::{self, Id};
use crate::harness::node::{Site, is_mounted};
use crate::harness::store::Trouble;
use crate::harness::{
    Io, Must as _, Node, Options, Store, SyscallProcess, eventually, is_root, now, skipped,
};

/// The watchdog's interval in these tests; short, and long enough for a busy machine.
const WATCHDOG_MS: u64 = 6_000;

/// The manager's end of the notify socket.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(site: &Site) -> Self {
        let path = site.path().join("notify");
        let socket = UnixDatagram::bind(&path).must("bind the notify socket");
        Self { socket, path }
    }

    fn options(&self, io: Io) -> Options {
        Options::new(io)
            .variable("NOTIFY_SOCKET", self.path.to_str().must("text"))
            .variable("WATCHDOG_USEC", &(WATCHDOG_MS * 1000).to_string())
    }

    /// Returns the next message, if one comes within the limit.
    fn hear(&self, limit_ms: u64) -> Option<String> {
        self.socket.set_read_timeout(Some(Duration::from_millis(limit_ms))).must("set a limit");
        let mut bytes = [0; 4096];
        let length = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes[..length]).into_owned())
    }

    /// Returns the messages that have arrived.
    fn heard(&self) -> Vec<String> {
        std::iter::from_fn(|| self.hear(1)).collect()
    }

    /// Waits for a message with this text, and returns it.
    fn wait_for(&self, text: &str, limit_ms: u64) -> String {
        let start = now();
        let mut all = Vec::new();
        while start.elapsed() < Duration::from_millis(limit_ms) {
            let Some(message) = self.hear(500) else { continue };
            if message.contains(text) {
                return message;
            }
            all.push(message);
        }
        panic!("no `{text}` within {limit_ms} ms; received {all:?}");
    }
}

#[test]
fn service_notify_from_ready_to_stopping() {
    let site = Site::new();
    let store = Store::dir(&site);
    let manager = Manager::new(&site);
    let mut node = Node::start(&site, "a", Some(&store), manager.options(Io::best()));
    let ready = manager.wait_for("READY=1", 20_000);
    assert!(ready.contains("STATUS=serving"), "{ready}");
    assert!(is_mounted(&node.mount), "ready before it is mounted");
    SyscallProcess::new().put(&node.at("f"), b"content").must("put");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1", 3 * WATCHDOG_MS);
    }
    manager.heard();
    node.stop();
    let last = manager.heard();
    let stopping = last.iter().position(|message| message.contains("STOPPING=1"));
    let stopping = stopping.must(format_args!("STOPPING in {last:?}"));
    assert!(last[stopping].contains("EXTEND_TIMEOUT_USEC="), "{last:?}");
    assert!(last.iter().any(|message| message.contains("STATUS=drained; all is remote")));
}

#[test]
fn service_notify_only_after_the_mount_answers() {
    let site = Site::new();
    let manager = Manager::new(&site);
    // A store that does not answer must not keep the mount from being ready either.
    let store = Store::s3(&site);
    store.trouble(Trouble::Hang);
    let mut node = Node::start(&site, "a", Some(&store), manager.options(Io::best()));
    let mut heard = Vec::new();
    while !heard.iter().any(|message: &String| message.contains("READY=1")) {
        heard.push(manager.hear(30_000).must(format_args!("READY after {heard:?}")));
        let says_ready = heard.last().is_some_and(|message| message.contains("READY=1"));
        assert!(!says_ready || is_mounted(&node.mount), "{heard:?}");
    }
    assert!(std::fs::metadata(&node.mount).is_ok());
    // It is also no reason for a restart.
    for _ in 0..4 {
        manager.wait_for("WATCHDOG=1", 3 * WATCHDOG_MS);
    }
    store.heal();
    node.stop();
}

#[test]
fn service_watchdog_ends_with_the_mounts_answers() {
    if !is_root() {
        skipped("service_watchdog_ends_with_the_mounts_answers", "stopping threads needs root");
        return;
    }
    let site = Site::new();
    let manager = Manager::new(&site);
    let store = Store::dir(&site);
    let mut node = Node::start(&site, "a", Some(&store), manager.options(Io::best()));
    node.expect_error("out of order");
    manager.wait_for("WATCHDOG=1", 3 * WATCHDOG_MS);
    // The rest of the daemon continues, but no thread reads the kernel's requests.
    let mut process = SyscallProcess::new();
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.pid().as_raw_nonzero()));
    let mut frozen = 0;
    for task in tasks.must("list the daemon's threads") {
        let task = task.must("a thread").path();
        let name = std::fs::read_to_string(task.join("comm")).unwrap_or_default();
        if name.starts_with("fuser-") || name.starts_with("hearthfs-fuse") {
            let number =
                task.file_name().and_then(|name| name.to_str()).and_then(|n| n.parse().ok());
            process.freeze(number.must("a number")).must("freeze a thread");
            frozen += 1;
        }
    }
    assert!(frozen > 1, "no request threads were found");
    manager.wait_for("STATUS=out of order: the mount does not answer", 3 * WATCHDOG_MS);
    manager.heard();
    let start = now();
    while start.elapsed() < Duration::from_millis(WATCHDOG_MS) {
        let message = manager.hear(1_000).unwrap_or_default();
        assert!(!message.contains("WATCHDOG=1"), "a watchdog message from a frozen daemon");
    }
    // The manager's next step: it must be able to end the daemon, although the daemon looks at its own mount.
    kill_process(node.pid(), Signal::KILL).must("kill");
    // The tracing process keeps its stopped threads from ending as long as it lives.
    drop(process);
    node.await_end(10_000);
    node.up();
    manager.wait_for("READY=1", 20_000);
    assert!(std::fs::read_dir(&node.mount).is_ok());
}

#[test]
fn service_stop_says_what_is_left_within_its_deadline() {
    const DRAIN_MS: u64 = 3_000;
    let site = Site::new();
    let manager = Manager::new(&site);
    let store = Store::s3(&site);
    let options = manager.options(Io::best()).drain_deadline("3s").deadline("1s");
    let mut node = Node::start(&site, "a", Some(&store), options);
    node.drain();
    store.trouble(Trouble::Hang);
    let bytes = body::make(Id { writer: 1, seq: 1 }, 300_000);
    SyscallProcess::new().put(&node.at("left"), &bytes).must("put");
    manager.heard();
    let start = now();
    let status = node.terminate();
    let took = start.elapsed();
    assert!(status.success(), "{status}");
    assert!(took < Duration::from_millis(DRAIN_MS + 12_000), "the store delays the end: {took:?}");
    assert!(!is_mounted(&node.mount));
    assert!(node.log().contains("not yet remote"), "{}", node.log());
    let last = manager.heard();
    let extended = last.iter().filter(|message| message.contains("EXTEND_TIMEOUT_USEC=")).count();
    assert!(extended >= 2, "{last:?}");
    assert!(last.iter().any(|m| m.contains("STATUS=draining; ") && m.contains("not yet remote")));
    assert!(last.iter().any(|m| m.contains("STATUS=drained; ") && m.contains("not yet remote")));
    store.heal();
    node.up();
    node.drain();
    let other = Node::start(&site, "b", Some(&store), Options::new(Io::best()));
    eventually(20_000, "the pending files are on another node", || {
        match std::fs::read(other.at("left")) {
            Ok(there) if there == bytes => Ok(()),
            there => Err(format!("{:?}", there.map(|bytes| bytes.len()))),
        }
    });
}

#[test]
fn service_variables_do_not_reach_commands() {
    let site = Site::new();
    let manager = Manager::new(&site);
    let mut command = site.hearthfs();
    command.env("NOTIFY_SOCKET", &manager.path).env("WATCHDOG_USEC", "1000000");
    command.arg("run").arg("--mount").arg(site.dir("m"));
    command.arg("--cache-dir").arg(site.path().join("cache"));
    command.args(["--", "env"]);
    let out = crate::harness::command::run(&mut command, 60_000).good();
    assert!(out.contains("HEARTHFS_MOUNT="), "{out}");
    assert!(!out.contains("NOTIFY_SOCKET") && !out.contains("WATCHDOG"), "{out}");
    assert_eq!(manager.heard(), [] as [String; 0], "the mount is no service");
}
