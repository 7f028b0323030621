//! A fake mount: it appears in the kernel's table as one of ours, answers stat, has no files, and
//! has a control socket. With it the commands can be tested without the daemon.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use hearthfs::clock::{Clock, sleep};
use hearthfs::config::{Surroundings, resolve};
use hearthfs::control::{
    Backlog, BusyReport, DaemonReport, DrainProgress, DrainReport, LifeReport, Node, OpensReport,
    Place, Server, Status, StoreReport, UnsentReport, WarmReport, runtime_dir,
};
use hearthfs::error::{Error, Result};
use hearthfs::metrics::Metrics;
use hearthfs::task;
use parking_lot::Mutex;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use tokio::sync::Notify;

const ENOENT: i32 = 2;
const EROFS: i32 = 30;
const ENOSYS: i32 = 38;

/// Mounts at `point` until it is shut down over the control socket or by a signal.
pub(crate) fn serve(
    point: &Path,
    remote: Option<String>,
    ready: impl FnOnce(),
) -> Result<DrainReport> {
    let point = resolve(point);
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let device = device.map_err(|error| Error::io("open /dev/fuse", error))?;
    let options = format!("fd={},rootmode=40000,user_id=0,group_id=0\0", device.as_raw_fd());
    let options =
        std::ffi::CStr::from_bytes_with_nul(options.as_bytes()).expect("one zero at the end");
    mount("hearthfs", &point, "fuse.hearthfs", MountFlags::NOSUID | MountFlags::NODEV, options)
        .map_err(|error| Error::io("mount", error.into()))?;
    task::thread("fake fuse", move || answer_all(device)).expect("a thread");

    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let node = Arc::new(Fake {
        point: point.clone(),
        remote,
        started_ms: Clock::system().wall_ms(),
        metrics: Metrics::new(),
        left: AtomicU64::new(2),
        asked: AtomicU64::new(0),
        gone: AtomicBool::new(false),
        end: Notify::new(),
    });
    let place = Place::new(&runtime_dir(&Surroundings::of_process()), &point);
    let server = Server::start(runtime.handle(), place, Arc::clone(&node) as Arc<dyn Node>)?;
    ready();
    runtime.block_on(async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut term = signal(SignalKind::terminate()).expect("a handler");
        let mut int = signal(SignalKind::interrupt()).expect("a handler");
        tokio::select! {
            () = node.end.notified() => {}
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        let report = node.shutdown(None).await;
        server.close().await;
        report
    })
}

struct Fake {
    point: PathBuf,
    remote: Option<String>,
    started_ms: u64,
    metrics: Metrics,
    left: AtomicU64,
    asked: AtomicU64,
    gone: AtomicBool,
    end: Notify,
}

impl Fake {
    fn backlog(&self) -> Backlog {
        Backlog { records: self.left.load(Ordering::SeqCst), bytes: 4096, oldest_ms: 10 }
    }
}

#[async_trait]
impl Node for Fake {
    fn profiles(&self) -> serde_json::Value {
        serde_json::json!([])
    }

    fn status(&self) -> Status {
        // Every request increases the counts, so that the summary of a `run` has something to show.
        self.metrics.hits.add(3);
        self.metrics.published_bytes.add(1024);
        self.asked.fetch_add(1, Ordering::SeqCst);
        Status {
            daemon: DaemonReport {
                version: "fake".to_owned(),
                pid: std::process::id(),
                ..DaemonReport::default()
            },
            mount_point: self.point.to_string_lossy().into_owned(),
            store: StoreReport { address: self.remote.clone(), ..StoreReport::default() },
            cache_dir: "/fake/cache".to_owned(),
            life: LifeReport { started_ms: self.started_ms, ..LifeReport::default() },
            unsent: UnsentReport { backlog: self.backlog(), ..UnsentReport::default() },
            counters: self.metrics.snapshot(),
            ..Status::default()
        }
    }

    fn busy(&self) -> BusyReport {
        BusyReport::default()
    }

    async fn explain(&self, _: &str) -> Result<serde_json::Value> {
        Ok(serde_json::json!({ "reason": "never" }))
    }

    fn misses(&self, _: Option<u32>, _: Option<&str>) -> serde_json::Value {
        serde_json::json!({ "misses": [], "more": 0 })
    }

    async fn warm(&self, paths: &[String], told: &Mutex<WarmReport>) -> Result<()> {
        told.lock().fetched = paths.len() as u64;
        Ok(())
    }

    fn opens(&self, _: u64, _: bool) -> Result<OpensReport> {
        Ok(OpensReport::default())
    }

    fn progress(&self) -> DrainProgress {
        DrainProgress { backlog: self.backlog(), trouble: None }
    }

    async fn drain(&self, limit: Duration) -> DrainReport {
        if limit < Duration::from_millis(100) {
            return DrainReport { complete: false, left: self.backlog(), ..DrainReport::default() };
        }
        sleep(Duration::from_millis(50)).await;
        self.left.store(0, Ordering::SeqCst);
        DrainReport { complete: true, ..DrainReport::default() }
    }

    async fn shutdown(&self, limit: Option<Duration>) -> Result<DrainReport> {
        let report = self.drain(limit.unwrap_or(Duration::from_secs(1))).await;
        if !self.gone.load(Ordering::SeqCst) {
            unmount(&self.point, UnmountFlags::empty())
                .map_err(|error| Error::io("unmount", error.into()))?;
            self.gone.store(true, Ordering::SeqCst);
        }
        self.end.notify_one();
        Ok(report)
    }
}

fn answer_all(mut device: File) {
    let mut request = vec![0; 256 * 1024];
    while let Ok(length @ 40..) = device.read(&mut request) {
        let number =
            |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().expect("four bytes"));
        let unique = &request[8..16];
        let (error, body) = match number(4) {
            // FORGET, INTERRUPT, BATCH_FORGET need no answer.
            2 | 36 | 42 => continue,
            26 => (0, init()),
            3 => (0, root()),
            1 => (ENOENT, Vec::new()),
            9 => (EROFS, Vec::new()),
            _ => (ENOSYS, Vec::new()),
        };
        let mut reply = Vec::with_capacity(length);
        reply.extend(u32::to_ne_bytes(16 + body.len() as u32));
        reply.extend(i32::to_ne_bytes(-error));
        reply.extend(unique);
        reply.extend(body);
        if device.write_all(&reply).is_err() {
            return;
        }
    }
}

/// Protocol 7.31 and no ability at all.
fn init() -> Vec<u8> {
    let mut body: Vec<u8> =
        [7, 31, 0, 0, 0, 4096, 1].iter().flat_map(|n: &u32| n.to_ne_bytes()).collect();
    body.resize(64, 0);
    body
}

/// The attributes of the root, a directory.
fn root() -> Vec<u8> {
    let mut body = vec![0; 16];
    body.extend([1_u64, 0, 0, 0, 0, 0].iter().flat_map(|n| n.to_ne_bytes()));
    body.extend(
        [0, 0, 0, 0o40_755, 2, 0, 0, 0, 4096, 0].iter().flat_map(|n: &u32| n.to_ne_bytes()),
    );
    body
}
