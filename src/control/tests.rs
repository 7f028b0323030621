//! Tests both ends of the control socket together, with a controllable node.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::clock::sleep;
use crate::config::{Surroundings, around_runtime_dir};
use crate::error::{Error, Kind, Result};

#[derive(Default)]
struct Fake {
    mount_point: String,
    left: AtomicU64,
    busy: AtomicBool,
    ended: AtomicBool,
    slow: AtomicBool,
}

#[async_trait]
impl Node for Fake {
    fn status(&self) -> Status {
        let daemon = DaemonReport { pid: 7, ..DaemonReport::default() };
        Status { mount_point: self.mount_point.clone(), daemon, ..Status::default() }
    }

    fn profiles(&self) -> serde_json::Value {
        serde_json::json!([{ "name": "mine" }])
    }

    fn busy(&self) -> BusyReport {
        let entry = BusyEntry { path: "jax/x".to_owned(), opens: 3 };
        BusyReport { clients: Vec::new(), entries: vec![entry] }
    }

    async fn explain(&self, path: &str) -> Result<serde_json::Value> {
        Ok(serde_json::json!({ "reason": "never", "of_hex": path }))
    }

    fn misses(&self, uid: Option<u32>, client: Option<&str>) -> serde_json::Value {
        serde_json::json!({ "misses": [], "more": uid.unwrap_or(0), "client": client })
    }

    async fn warm(&self, paths: &[String], told: &Mutex<WarmReport>) -> Result<()> {
        for _ in paths {
            if self.busy.load(Ordering::SeqCst) {
                return Err(Error::new(Kind::Unavailable, "the store is down"));
            }
            sleep(Duration::from_millis(300)).await;
            told.lock().fetched += 1;
        }
        Ok(())
    }

    fn opens(&self, number: u64, last: bool) -> Result<OpensReport> {
        if self.busy.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Busy, "too many"));
        }
        Ok(OpensReport { paths: vec!["6a6178".to_owned()], lost: number, more: !last })
    }

    fn progress(&self) -> DrainProgress {
        let backlog = Backlog { records: self.left.load(Ordering::SeqCst), ..Backlog::default() };
        DrainProgress { backlog, trouble: None }
    }

    async fn drain(&self, limit: Duration) -> DrainReport {
        if limit < Duration::from_secs(1) {
            return DrainReport {
                complete: false,
                left: self.progress().backlog,
                ..DrainReport::default()
            };
        }
        while self.left.load(Ordering::SeqCst) > 0 {
            sleep(Duration::from_millis(300)).await;
            self.left.fetch_sub(1, Ordering::SeqCst);
        }
        DrainReport { complete: true, ..DrainReport::default() }
    }

    async fn shutdown(&self, limit: Option<Duration>) -> Result<DrainReport> {
        if self.busy.load(Ordering::SeqCst) {
            return Err(Error::new(Kind::Busy, "files are open"));
        }
        if self.slow.load(Ordering::SeqCst) {
            sleep(Duration::from_millis(600)).await;
        }
        self.ended.store(true, Ordering::SeqCst);
        Ok(DrainReport { complete: limit != Some(Duration::ZERO), ..DrainReport::default() })
    }
}

struct Bench {
    runtime: Runtime,
    dir: tempfile::TempDir,
    node: Arc<Fake>,
    around: Surroundings,
}

const POINT: &str = "/mnt/fake";

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        let around = around_runtime_dir(&dir.path().join("run"));
        let node = Arc::new(Fake { mount_point: POINT.to_owned(), ..Fake::default() });
        let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build();
        Self { runtime: runtime.expect("runtime"), dir, node, around }
    }

    fn place(&self) -> Place {
        Place::new(&runtime_dir(&self.around), Path::new(POINT))
    }

    fn start(&self) -> Server {
        self.try_start().expect("started")
    }

    fn try_start(&self) -> Result<Server> {
        let node: Arc<dyn Node> = Arc::clone(&self.node) as _;
        Server::start(self.runtime.handle(), self.place(), node)
    }

    fn find(&self) -> Result<(Client, Status)> {
        self.runtime.block_on(find(&self.around, Path::new(POINT), None))
    }

    /// Sends raw bytes and returns the answer until the daemon hangs up.
    fn raw(&self, bytes: &[u8]) -> String {
        let mut stream =
            std::os::unix::net::UnixStream::connect(self.place().socket()).expect("connected");
        stream.write_all(bytes).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("text");
        answer
    }
}

#[test]
fn status_over_the_socket() {
    let bench = Bench::new();
    let server = bench.start();
    let mode =
        std::fs::metadata(bench.place().socket()).expect("the socket exists").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let (mut client, status) = bench.find().expect("found");
    assert_eq!((status.daemon.pid, status.mount_point.as_str()), (7, POINT));
    let again =
        bench.runtime.block_on(client.status()).expect("a second request on one connection");
    assert_eq!(again, status);
    let (all, troubles) = bench.runtime.block_on(list(&bench.around));
    assert_eq!((all.len(), troubles.len()), (1, 0));
    let clock = crate::clock::Clock::system();
    let began = clock.mono();
    bench.runtime.block_on(server.close());
    let took = clock.mono().saturating_sub(began);
    assert!(took < Duration::from_secs(1), "an idle client does not delay the end");
    assert!(!bench.place().socket().exists());
    assert!(bench.runtime.block_on(client.status()).is_err());
    assert_eq!(bench.find().expect_err("no daemon").kind(), Kind::NotFound);
}

/// A daemon that does not know the request refuses it like any invalid one.
#[test]
fn the_busiest_are_reported_and_an_older_daemon_refuses() {
    let bench = Bench::new();
    let _server = bench.start();
    let (mut client, _) = bench.find().expect("found");
    let busy = bench.runtime.block_on(client.busy()).expect("answered").expect("a report");
    assert_eq!((busy.entries[0].path.as_str(), busy.entries[0].opens), ("jax/x", 3));
    let refused = bench.raw(b"{\"op\":\"a question of later\"}\n");
    let refused: Response = serde_json::from_str(&refused).expect("understood");
    assert!(matches!(refused, Response::Error(failure) if failure.is(Kind::Invalid)));
    let newer = r#"{"clients":[{"name":"jax","hits":1,"colour":"red"}],"entries":[],"more":{}}"#;
    let read: BusyReport = serde_json::from_str(newer).expect("fields may be added");
    assert_eq!((read.clients[0].hits, read.clients[0].misses), (1, 0));
}

/// A client receives the progress; many paths go in one request.
#[test]
fn warming_is_reported_over_the_socket() {
    let bench = Bench::new();
    let _server = bench.start();
    let (mut client, _) = bench.find().expect("found");
    let (mut seen, paths) = (Vec::new(), vec!["6a6178".to_owned(); 3]);
    let report = bench.runtime.block_on(client.warm(paths, |news| seen.push(news.fetched)));
    assert_eq!(report.expect("done").fetched, 3);
    assert!(seen.len() >= 2 && seen.is_sorted(), "{seen:?}");
    let path = "61".repeat(4096);
    let many = vec![path.clone(); WARM_PATHS_BYTES_MAX / (path.len() + 3)];
    bench.node.busy.store(true, Ordering::SeqCst);
    let refused = bench.runtime.block_on(client.warm(many, |_| ())).expect_err("refused");
    assert_eq!(refused.kind(), Kind::Unavailable);
    assert!(refused.chain().contains("the store is down"), "{}", refused.chain());
    let refused = bench.runtime.block_on(client.opens(7, false)).expect_err("refused");
    assert_eq!(refused.kind(), Kind::Busy);
    bench.node.busy.store(false, Ordering::SeqCst);
    let opened = bench.runtime.block_on(client.opens(7, true)).expect("answered");
    assert_eq!((opened.paths, opened.lost, opened.more), (vec!["6a6178".to_owned()], 7, false));
}

/// A path of the kernel's maximal length can be requested; a refusal by an older daemon is no failure.
#[test]
fn misses_are_explained_over_the_socket() {
    let bench = Bench::new();
    let _server = bench.start();
    let (mut client, _) = bench.find().expect("found");
    let path = "61".repeat(4096);
    let told = bench.runtime.block_on(client.explain(path.clone())).expect("answered");
    assert_eq!(told.expect("an explanation")["of_hex"], path);
    let told = bench.runtime.block_on(client.misses(Some(7), Some("jax".into())));
    let told = told.expect("answered").expect("a report");
    assert_eq!((&told["more"], &told["client"]), (&7.into(), &"jax".into()));
    for bad in ["{\"op\":\"explain\"}", "{\"op\":\"misses\",\"uid\":-1}"] {
        let refused: Response =
            serde_json::from_str(&bench.raw(format!("{bad}\n").as_bytes())).expect("understood");
        assert!(matches!(refused, Response::Error(failure) if failure.is(Kind::Invalid)), "{bad}");
    }
}

#[test]
fn drain_reports_progress_and_limit() {
    let bench = Bench::new();
    let _server = bench.start();
    bench.node.left.store(3, Ordering::SeqCst);
    let (mut client, _) = bench.find().expect("found");
    let mut seen = Vec::new();
    let limit = Duration::from_mins(1);
    let report = bench.runtime.block_on(client.drain(limit, |b| seen.push(b.backlog.records)));
    assert!(report.expect("drained").complete);
    assert!(seen.len() >= 2 && seen.is_sorted_by(|a, b| a >= b), "{seen:?}");
    bench.node.left.store(3, Ordering::SeqCst);
    let report = bench.runtime.block_on(client.drain(Duration::ZERO, |_| ())).expect("answered");
    assert_eq!((report.complete, report.left.records), (false, 3));
}

#[test]
fn shutdown_is_refused_or_done() {
    let bench = Bench::new();
    let _server = bench.start();
    let (mut client, _) = bench.find().expect("found");
    bench.node.busy.store(true, Ordering::SeqCst);
    let error = bench.runtime.block_on(client.shutdown(None, |_| ())).expect_err("busy");
    assert_eq!(error.kind(), Kind::Busy);
    bench.node.busy.store(false, Ordering::SeqCst);
    let report = bench.runtime.block_on(client.shutdown(Some(Duration::ZERO), |_| ()));
    assert!(!report.expect("done").complete);
    assert!(bench.node.ended.load(Ordering::SeqCst));
}

#[test]
fn shutdown_goes_on_when_the_client_goes_away() {
    let bench = Bench::new();
    let _server = bench.start();
    bench.node.slow.store(true, Ordering::SeqCst);
    let mut stream =
        std::os::unix::net::UnixStream::connect(bench.place().socket()).expect("connected");
    stream.write_all(b"{\"op\":\"shutdown\",\"timeout_ms\":null}\n").expect("sent");
    drop(stream);
    let ended = || bench.node.ended.load(Ordering::SeqCst);
    bench.runtime.block_on(async {
        for _ in 0..100 {
            if !ended() {
                sleep(Duration::from_millis(50)).await;
            }
        }
    });
    assert!(ended());
}

#[test]
fn nonsense_is_refused() {
    let bench = Bench::new();
    let _server = bench.start();
    for (bytes, word) in [
        (&b"hello\n"[..], "not a request"),
        (b"{\"op\":\"fly\"}\n", "not a request"),
        (b"{\"op\":\"drain\"}\n", "not a request"),
        (b"{\"op\":\"drain\",\"timeout_ms\":1,\"extra\":1}\n", "not a request"),
        (b"{\"op\":\"status\"", "cut off"),
        (&vec![b' '; 5000], "too long"),
        (b"\xff\xfe\n", "not a request"),
    ] {
        let answer = bench.raw(bytes);
        assert!(answer.contains(word), "{answer}");
    }
    let answer = bench.raw(b"nonsense\n{\"op\":\"status\"}\n");
    assert_eq!(answer.lines().count(), 2, "the connection survives one bad line: {answer}");
    assert!(bench.find().is_ok(), "the server survives all bad lines");
}

#[test]
fn idle_clients_do_not_keep_others_out() {
    let bench = Bench::new();
    let _server = bench.start();
    let connect =
        || std::os::unix::net::UnixStream::connect(bench.place().socket()).expect("connected");
    let idle: Vec<_> = (0..40).map(|_| connect()).collect();
    // All connections are taken until the idle ones are cut off, which happens before a client gives up.
    assert!(bench.find().is_ok());
    drop(idle);
}

#[test]
fn sockets_of_the_dead_are_replaced_and_of_the_living_are_not() {
    let bench = Bench::new();
    let server = bench.start();
    assert_eq!(bench.try_start().expect_err("a server runs").kind(), Kind::Busy);
    assert!(bench.find().is_ok(), "the first server still answers");
    // What a killed daemon leaves: a socket that no process listens on, and no lock.
    bench.runtime.block_on(server.close());
    drop(std::os::unix::net::UnixListener::bind(bench.place().socket()).expect("bind"));
    assert!(bench.place().socket().exists());
    assert_eq!(bench.find().expect_err("no daemon").kind(), Kind::NotFound);
    assert!(!bench.place().socket().exists(), "the dead socket is removed");
    drop(std::os::unix::net::UnixListener::bind(bench.place().socket()).expect("bind"));
    let _server = bench.start();
    assert!(bench.find().is_ok());
}

#[test]
fn a_daemon_of_another_mount_is_not_trusted() {
    let mut bench = Bench::new();
    bench.node = Arc::new(Fake { mount_point: "/mnt/other".to_owned(), ..Fake::default() });
    let _server = bench.start();
    assert_eq!(bench.find().expect_err("another mount point").kind(), Kind::Corrupt);
}

#[test]
fn the_runtime_directory_must_be_private() {
    let bench = Bench::new();
    let dir = bench.dir.path().join("run");
    std::fs::create_dir(&dir).expect("mkdir");
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).expect("chmod");
    assert_eq!(bench.try_start().expect_err("open to all").kind(), Kind::Denied);
}

#[test]
fn waiting_for_an_end_that_does_not_come_is_bounded() {
    let bench = Bench::new();
    let _server = bench.start();
    let (client, _) = bench.find().expect("found");
    let gone = bench.runtime.block_on(client.wait_gone(Duration::from_millis(100)));
    assert!(!gone);
}

/// The text that scripts and commands of other versions read: a status with each field, and one with none.
const STATUSES: &str = include_str!("tests/status.json");

#[test]
fn the_text_of_a_status_is_stable() {
    let read: Vec<Status> = serde_json::from_str(STATUSES).expect("understood");
    assert_eq!(serde_json::to_string_pretty(&read).expect("written") + "\n", STATUSES);
    assert_eq!(read[1], Status::default());
    let response = Response::Status(Box::new(read[0].clone()));
    let text = serde_json::to_string(&response).expect("written");
    let line = serde_json::to_string(&read[0]).expect("written");
    assert_eq!(text, format!("{{\"status\":{line}}}"));
    assert_eq!(serde_json::from_str::<Response>(&text).expect("understood"), response);
}

/// What an older daemon does not send has its default, and what a newer one adds is passed over.
#[test]
fn a_status_of_another_version_is_understood() {
    let [full, empty]: [serde_json::Value; 2] = serde_json::from_str(STATUSES).expect("JSON");
    let read = |value: &serde_json::Value| serde_json::from_str::<Status>(&value.to_string());
    let told = |status: Status| serde_json::to_value(status).expect("written");
    for (word, default) in empty.as_object().expect("an object") {
        let (mut older, mut wanted) = (full.clone(), full.clone());
        older.as_object_mut().expect("an object").remove(word);
        wanted[word] = default.clone();
        assert_eq!(told(read(&older).expect(word)), wanted, "without {word}");
        let mut only = serde_json::json!({});
        only[word] = full[word].clone();
        let mut wanted = empty.clone();
        wanted[word] = full[word].clone();
        assert_eq!(told(read(&only).expect(word)), wanted, "only {word}");
    }
    let mut newer = full.clone();
    newer["new_field"] = serde_json::json!({ "version": 1 });
    newer["health"]["new_field"] = 1.into();
    assert_eq!(told(read(&newer).expect("fields may be added")), full);
    newer["phase"] = "asleep".into();
    assert_eq!(read(&newer).expect("a phase may be added").life.phase, Phase::Unknown);
    let private = read(&serde_json::json!({ "private": true })).expect("understood");
    assert_eq!(told(private)["private"], true);
    for (word, wrong) in [("pid", "7"), ("read_only", "no"), ("health", "good"), ("phase", "")] {
        let mut spoilt = full.clone();
        spoilt[word] = wrong.into();
        assert_eq!(read(&spoilt).is_ok(), word == "phase", "{word}");
    }
}

/// A daemon and a command of different versions understand each other.
#[test]
fn progress_is_read_with_and_without_a_reason() {
    let old = r#"{"progress":{"records":2,"bytes":3,"oldest_ms":4}}"#;
    let backlog = Backlog { records: 2, bytes: 3, oldest_ms: 4 };
    let read: Response = serde_json::from_str(old).expect("understood");
    assert_eq!(read, Response::Progress(DrainProgress { backlog, trouble: None }));
    let new = DrainProgress { backlog, trouble: Some("403".to_owned()) };
    let text = serde_json::to_string(&Response::Progress(new.clone())).expect("written");
    for part in ["\"records\":2", "\"trouble\":\"403\""] {
        assert!(text.contains(part), "{text}");
    }
    let read: Response = serde_json::from_str(&text).expect("understood");
    assert_eq!(read, Response::Progress(new));
}
