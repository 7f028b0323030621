//! The daemon as the control socket sees it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use hearthfs_mount::Session;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{OwnedMutexGuard, watch};

use super::build::{Rooms, abilities_of, add_counts};
use super::fleet::{follower_of, health_of, log_place, reasons_of};
use super::notify::Manager;
use super::rules::{self, RulesLook};
use crate::clock::{sleep, within};
use crate::config::{ByteSize, Settings};
use crate::control::{
    Backlog, BusyClient, BusyEntry, BusyReport, DaemonReport, DrainProgress, DrainReport,
    HealthReport, IoReport, LifeReport, LocalUsage, Node, OpensReport, Phase, SetAsideReport,
    SharingReport, SlowedReport, Status, StoreReport, UnsentReport, WarmReport,
};
use crate::error::{Error, Kind, Result};
use crate::fs::{Asker, RecordedOpens};
use crate::name::TreePath;
use crate::namespace::{path_of_hex, path_to_hex};
use crate::remote::Remote;
use crate::sync::{SetAside, Warmed};
use crate::task;

/// How long an unmount waits for our own look at the mount.
const LOOK_DEADLINE: Duration = Duration::from_secs(5);
/// How long the serving threads may take to notice an unmount.
const UNMOUNT_DEADLINE: Duration = Duration::from_secs(5);

/// How long a `warm` waits for the state of the store.
const FRESH_DEADLINE: Duration = Duration::from_secs(30);
/// How often the progress of a `warm` is updated.
const WARM_TOLD_EVERY: Duration = Duration::from_millis(100);
/// How often the service manager receives the progress of the last drain.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long each probe during a drain may take to show that a store counted as down is back, and
/// the pause between probes.
const PROBE_LIMIT: Duration = Duration::from_secs(1);
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// How much longer than the drain an end may take before the manager may consider it stuck: unmounting,
/// and saving all state.
const END_GRACE: Duration = Duration::from_secs(30);

/// The settings that a running mount takes over, besides those of the log.
pub const TAKEN_OVER: [&str; 2] = ["local.cache_size", "writeback.drain_deadline"];

/// A mount that is being served.
#[derive(Debug)]
pub(super) struct MountedNode {
    settings: Settings,
    rooms: Rooms,
    mount_point: PathBuf,
    manager: Arc<Manager>,
    /// Set after the mount.
    session: OnceLock<Arc<Session>>,
    /// The destination of log lines, if it has a name.
    log: Option<String>,
    started_ms: u64,
    started: Duration,
    phase: AtomicU8,
    /// Held while the mount is ended, so that only one task does it.
    ending: tokio::sync::Mutex<Option<DrainReport>>,
    ended: watch::Sender<bool>,
    /// Held while a process of ours looks at the mount: until it ends, it uses the mount like any
    /// other process.
    looking: Arc<tokio::sync::Mutex<()>>,
    /// The state of the bucket's rules, once they were checked.
    rules: OnceLock<RulesLook>,
    /// Why a running drain makes no progress.
    stuck: Mutex<Option<String>>,
    /// The limit of the last drain. It can change while mounted.
    drain_deadline: Mutex<Duration>,
}

impl MountedNode {
    pub(super) fn new(
        settings: Settings,
        rooms: Rooms,
        mount_point: PathBuf,
        manager: Arc<Manager>,
    ) -> Self {
        let (started_ms, started) = (rooms.clock.wall_ms(), rooms.clock.mono());
        let starting = AtomicU8::new(Phase::Starting as u8);
        let ended = watch::Sender::new(false);
        let drain_deadline = Mutex::new(settings.writeback.drain_deadline);
        Self {
            settings,
            rooms,
            mount_point,
            manager,
            session: OnceLock::new(),
            log: log_place(),
            started_ms,
            started,
            phase: starting,
            ending: tokio::sync::Mutex::new(None),
            ended,
            looking: Arc::default(),
            rules: OnceLock::new(),
            stuck: Mutex::new(None),
            drain_deadline,
        }
    }

    /// Sets the session of the mount.
    pub(super) fn set_session(&self, session: Arc<Session>) {
        if self.session.set(session).is_ok() {
            self.phase.store(Phase::Serving as u8, Ordering::Relaxed);
        }
    }

    /// Returns the resolved mount point; `None` before the mount.
    pub(super) fn mounted_at(&self) -> Option<&Path> {
        self.session.get().map(|session| session.mount_point())
    }

    /// Takes over the settings that may change while mounted: the keys in [`TAKEN_OVER`].
    pub(super) fn take_over(&self, runtime: &Handle, settings: &Settings) {
        *self.drain_deadline.lock() = settings.writeback.drain_deadline;
        let (blobs, bytes) = (self.rooms.blobs.clone(), settings.local.cache_size.0);
        if blobs.usage().limit != bytes {
            let shrunk = task::blocking(move || blobs.set_limit(bytes));
            drop(task::spawn(runtime, "limit", shrunk));
        }
    }

    /// Checks the rules of the bucket, once, in the background.
    pub(super) fn look_at_rules(&self, runtime: &Handle) {
        let remote = self.rooms.remote.as_ref();
        self.rules.get_or_init(|| rules::look(runtime, &self.settings, remote));
    }

    /// Returns the guard that a look at the mount must hold, once no other look is in progress and
    /// the mount is not being removed.
    pub(super) async fn may_look(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.looking).lock_owned().await
    }

    pub(super) fn rooms(&self) -> &Rooms {
        &self.rooms
    }

    pub(super) fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Describes the state in one line.
    pub(super) fn summary(&self) -> String {
        let backlog = self.backlog();
        if self.settings.remote.url.is_none() {
            return "serving; kept on this node".to_owned();
        }
        let mut text = format!("serving; {}", left(&backlog));
        if self.health().is_some_and(|health| !health.up) {
            text.push_str("; the remote cannot be reached");
        }
        text
    }

    /// Ends the mount after a signal; files in use stay readable for their users.
    pub(super) async fn end_by_signal(&self) -> DrainReport {
        self.end(None, true).await.unwrap_or_default()
    }

    /// Drains after another program has unmounted.
    pub(super) async fn end_after_unmount(&self) -> DrainReport {
        let mut ending = self.ending.lock().await;
        if let Some(report) = ending.as_ref() {
            return report.clone();
        }
        self.phase.store(Phase::Ending as u8, Ordering::Relaxed);
        let limit = *self.drain_deadline.lock();
        let report = self.last_drain(limit, true).await;
        *ending = Some(report.clone());
        report
    }

    /// Waits until the control socket has ended the mount.
    pub(super) async fn ended(&self) {
        let mut ended = self.ended.subscribe();
        // An error would mean that the sender is gone, but we own it.
        ended.wait_for(|ended| *ended).await.map(drop).ok();
    }

    async fn end(&self, limit: Option<Duration>, lazy: bool) -> Result<DrainReport> {
        let Some(session) = self.session.get() else {
            return Err(Error::new(Kind::Busy, "it is being mounted just now; try again"));
        };
        let mut ending = self.ending.lock().await;
        if let Some(report) = ending.as_ref() {
            return Ok(report.clone());
        }
        self.phase.store(Phase::Ending as u8, Ordering::Relaxed);
        self.rooms.fs.close_to_writers();
        let limit = limit.unwrap_or_else(|| *self.drain_deadline.lock());
        let report = self.last_drain(limit, lazy).await;
        let _no_look = if lazy { None } else { within(LOOK_DEADLINE, self.may_look()).await };
        if let Err(error) = session.unmount(lazy) {
            self.rooms.fs.open_to_writers();
            self.phase.store(Phase::Serving as u8, Ordering::Relaxed);
            let kind = if error.kind() == std::io::ErrorKind::ResourceBusy {
                Kind::Busy
            } else {
                Kind::Internal
            };
            return Err(Error::with(kind, "the mount is in use and stays", error));
        }
        within(UNMOUNT_DEADLINE, session.ended()).await;
        *ending = Some(report.clone());
        self.ended.send_replace(true);
        Ok(report)
    }

    /// Drains before the end and reports progress to the service manager. `certain`: the mount will
    /// end in any case. If it may stay, the manager must not be told to wait for its end.
    async fn last_drain(&self, limit: Duration, certain: bool) -> DrainReport {
        let tell = || {
            let mut status = format!("draining; {}", left(&self.backlog()));
            status.extend(self.stuck.lock().as_ref().map(|why| format!("; {why}")));
            if certain {
                self.manager.stopping(&status, TELL_EVERY + END_GRACE);
            } else {
                self.manager.status(&status);
            }
        };
        let mut drain = std::pin::pin!(self.drain_for(limit));
        let report = loop {
            tell();
            tokio::select! {
                biased;
                report = &mut drain => break report,
                () = sleep(TELL_EVERY) => {}
            }
        };
        self.manager.status(&format!("drained; {}", left(&report.left)));
        if !report.complete && !report.left.is_empty() {
            let why = report.trouble.as_deref().unwrap_or("the time ran out");
            tracing::warn!(why, "{}; it is kept for the next mount", left(&report.left));
        }
        report
    }

    fn backlog(&self) -> Backlog {
        let pending = self.rooms.engine.ledger().pending();
        Backlog { records: pending.records, bytes: pending.bytes, oldest_ms: pending.oldest_ms }
    }

    async fn drain_for(&self, limit: Duration) -> DrainReport {
        let begun = self.rooms.clock.mono();
        *self.stuck.lock() = None;
        let fs = self.rooms.fs.clone();
        task::blocking(move || fs.tend()).await;
        let complete = {
            let mut watching = std::pin::pin!(self.watch_store());
            let mut drain = std::pin::pin!(self.rooms.engine.drain(limit, |_| {}));
            tokio::select! {
                biased;
                report = &mut drain => report.complete,
                () = &mut watching => drain.await.complete,
            }
        };
        let left = if complete { Backlog::default() } else { self.backlog() };
        let elapsed = self.rooms.clock.mono().saturating_sub(begun);
        let trouble = self.health().filter(|health| !health.up).and_then(|h| h.last_error);
        DrainReport { complete, left, elapsed_ms: elapsed.as_millis() as u64, trouble }
    }

    /// Waits until the visible state is that of the store.
    async fn up_to_date(&self) -> Result<()> {
        let known = self.rooms.engine.follower().wait_fresh(FRESH_DEADLINE).await;
        let health = self.health().filter(|health| !health.up);
        match health {
            Some(health) => {
                let why = health.last_error.unwrap_or_else(|| "it does not answer".to_owned());
                Err(Error::new(Kind::Unavailable, format!("the store cannot be used now: {why}")))
            }
            None if known => Ok(()),
            None => Err(Error::new(Kind::Unavailable, "the store does not answer in time")),
        }
    }

    /// During a drain, probes whether a store that counts as down still is: the state known when
    /// the drain began may be stale.
    async fn watch_store(&self) {
        let Some(remote) = &self.rooms.remote else { return };
        loop {
            let down = self.health().is_some_and(|health| !health.up);
            let stuck = if down { remote.probe(PROBE_LIMIT).await } else { None };
            *self.stuck.lock() = stuck;
            sleep(PROBE_EVERY).await;
        }
    }

    fn health(&self) -> Option<HealthReport> {
        let Rooms { remote, clock, .. } = &self.rooms;
        remote.as_ref().map(|remote| health_of(remote, clock, self.started))
    }

    fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            phase if phase == Phase::Ending as u8 => Phase::Ending,
            phase if phase == Phase::Starting as u8 => Phase::Starting,
            _ => Phase::Serving,
        }
    }

    fn unsent(&self) -> UnsentReport {
        let ledger = self.rooms.engine.ledger();
        UnsentReport {
            backlog: self.backlog(),
            reasons: reasons_of(self.rooms.engine.unsent()),
            slowed: ledger.room().slowed().map(|slowed| SlowedReport {
                writers: slowed.writers,
                since_ms: slowed.since.as_millis() as u64,
                why: slowed.why,
            }),
            set_aside: set_aside(&ledger.aside()),
            incomplete: ledger.incomplete(),
        }
    }

    /// Saves the index, and marks a clean stop.
    pub(super) fn finish(&self) {
        self.rooms.finish();
    }
}

/// Returns the contents that the store refuses for good, if there are any.
fn set_aside(aside: &SetAside) -> Option<SetAsideReport> {
    let SetAside { contents, bytes, why } = aside.clone();
    (contents > 0).then_some(SetAsideReport { contents, bytes, why })
}

fn warm_report(warmed: &Warmed, missing: u64) -> WarmReport {
    WarmReport {
        here: warmed.here.0,
        here_bytes: warmed.here.1,
        fetched: warmed.fetched.0,
        fetched_bytes: warmed.fetched.1,
        without_room: warmed.without_room.0,
        without_room_bytes: warmed.without_room.1,
        failed: warmed.failed.0,
        missing,
        trouble: warmed.trouble.clone(),
    }
}

/// Describes what is not yet uploaded.
fn left(backlog: &Backlog) -> String {
    match backlog.records {
        0 => "all is remote".to_owned(),
        1 => format!("1 change ({}) not yet remote", ByteSize(backlog.bytes).human()),
        many => format!("{many} changes ({}) not yet remote", ByteSize(backlog.bytes).human()),
    }
}

#[async_trait]
impl Node for MountedNode {
    fn profiles(&self) -> serde_json::Value {
        // Texts, lists and tables with text keys always have a JSON form.
        serde_json::to_value(self.settings.profiles.all()).unwrap_or_default()
    }

    fn status(&self) -> Status {
        let abilities = self.session.get().map(|session| session.as_ref().abilities());
        let usage = self.rooms.blobs.usage();
        let mut counters = self.rooms.metrics.snapshot();
        let ledger = self.rooms.engine.ledger();
        let remote = self.rooms.remote.as_ref();
        add_counts(&mut counters, remote, &self.rooms.blobs, ledger.traffic());
        (counters.slowed, counters.refused) = ledger.room().counts();
        counters.without_room = self.rooms.engine.fetcher().without_room();
        counters.invalidated = self.session.get().map_or(0, |session| session.notifier().sent());
        let passthrough = abilities.is_some_and(|abilities| abilities.passthrough);
        let mode = if passthrough { "passthrough" } else { "ordinary" };
        Status {
            daemon: DaemonReport {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                uid: rustix::process::geteuid().as_raw(),
            },
            mount_point: self.mount_point.to_string_lossy().into_owned(),
            store: StoreReport {
                address: self.settings.remote.url.as_ref().map(ToString::to_string),
                identity: remote.and_then(Remote::known).map(|(id, _)| id.to_string()),
                is_new: remote.is_some_and(Remote::has_made),
            },
            cache_dir: self.settings.local.cache_dir.to_string_lossy().into_owned(),
            log: self.log.clone(),
            life: LifeReport {
                started_ms: self.started_ms,
                uptime_ms: self.rooms.clock.mono().saturating_sub(self.started).as_millis() as u64,
                phase: self.phase(),
            },
            io: IoReport {
                mode: mode.to_owned(),
                reason: abilities.and_then(|a| a.passthrough_refusal).map(ToOwned::to_owned),
                locks_by_inode: abilities.and_then(|a| a.flock_refusal).map(ToOwned::to_owned),
                slow_wake: abilities.and_then(|a| a.wake_refusal).map(ToOwned::to_owned),
            },
            writes: self.settings.mount.writes,
            pid_namespace: self.rooms.tasks.refusal().map(ToOwned::to_owned),
            entries: self.rooms.engine.ledger().read(crate::namespace::Fold::len) as u64,
            sharing: SharingReport {
                health: self.health(),
                follower: self.rooms.engine.follower().following().map(follower_of),
                versions: self.rooms.engine.follower().versions(),
                rules: self.rules.get().and_then(|found| found.get().cloned()),
                abilities: remote.map(abilities_of).unwrap_or_default(),
            },
            local: LocalUsage {
                bytes: usage.bytes,
                unsaved_bytes: usage.unsaved_bytes,
                blobs: usage.blobs,
                limit_bytes: usage.limit,
                disk_free_bytes: self.rooms.blobs.disk_free(),
                disk_full: self.rooms.blobs.is_disk_full(),
            },
            unsent: self.unsent(),
            counters,
            clients: self.rooms.fs.figures(),
        }
    }

    fn busy(&self) -> BusyReport {
        let counts = self.rooms.fs.watch_busy();
        let client = |(name, (hits, misses))| BusyClient { name, hits, misses };
        let entry = |(path, opens): (TreePath, u64)| BusyEntry { path: path.to_string(), opens };
        BusyReport {
            clients: counts.clients.into_iter().map(client).collect(),
            entries: counts.entries.into_iter().map(entry).collect(),
        }
    }

    async fn explain(&self, path: &str) -> Result<serde_json::Value> {
        let path = path_of_hex(path).ok_or_else(|| {
            Error::new(Kind::NotFound, "this is not a path that a mount can have")
        })?;
        let explained = self.rooms.fs.explain(Asker::Trusted, path).await;
        Ok(serde_json::to_value(explained).unwrap_or_default())
    }

    fn misses(&self, uid: Option<u32>, client: Option<&str>) -> serde_json::Value {
        let misses = self.rooms.fs.misses(Asker::Trusted, uid, client);
        // Texts and numbers always have a JSON form.
        serde_json::to_value(misses).unwrap_or_default()
    }

    async fn warm(&self, paths: &[String], told: &Mutex<WarmReport>) -> Result<()> {
        let (fetcher, ledger) = (self.rooms.engine.fetcher(), self.rooms.engine.ledger());
        if paths.is_empty() {
            // The request only asks whether the visible state is that of the store.
            return self.up_to_date().await;
        }
        let content = |path: &String| {
            let path = path_of_hex(path)?;
            ledger.read(|fold| {
                let register = fold.visible(&path)?;
                let changed_ms = Some(register.changed_ms());
                let entry = register.entry?;
                ledger.shown(fold, &path, &entry, changed_ms)?;
                entry.content()
            })
        };
        let wanted: Vec<_> = paths.iter().filter_map(content).collect();
        let missing = (paths.len() - wanted.len()) as u64;
        let warmed = Mutex::new(Warmed::default());
        let report = || warm_report(&warmed.lock(), missing);
        let mut work = std::pin::pin!(fetcher.warm(wanted, &warmed));
        loop {
            tokio::select! {
                biased;
                done = &mut work => {
                    *told.lock() = report();
                    return done;
                }
                () = sleep(WARM_TOLD_EVERY) => *told.lock() = report(),
            }
        }
    }

    fn opens(&self, number: u64, last: bool) -> Result<OpensReport> {
        let opened = self.rooms.fs.opened(number, last);
        let RecordedOpens { paths, lost, more } = opened
            .ok_or_else(|| Error::new(Kind::Busy, "too many recordings of opens are under way"))?;
        Ok(OpensReport { paths: paths.iter().map(path_to_hex).collect(), lost, more })
    }

    fn progress(&self) -> DrainProgress {
        DrainProgress { backlog: self.backlog(), trouble: self.stuck.lock().clone() }
    }

    async fn drain(&self, limit: Duration) -> DrainReport {
        self.drain_for(limit).await
    }

    async fn shutdown(&self, limit: Option<Duration>) -> Result<DrainReport> {
        self.end(limit, false).await
    }
}
