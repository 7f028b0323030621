//! Serves one mount, from the first check to the mark of a clean stop.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{MountOptions, Session, Wakes, process};
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use super::build::{self, Rooms};
use super::client_dirs;
use super::look::{Look, LookResult};
use super::monitored::MonitoredNode;
use super::node::MountedNode;
use super::notify::Manager;
use super::sight::Sight;
use super::watch::watch;
use crate::clock;
use crate::config::{AllowOther, IoMode, Settings, Writes};
use crate::control::{self, DrainReport, Server};
use crate::error::{Error, Kind, Result};
use crate::local::raise_limit;
use crate::monitor::{Monitor, Monitored};
use crate::task;

/// Threads for background work: uploads, fetches, following. Requests of programs have threads of their own.
const WORKER_THREADS: usize = 2;
/// The most threads for blocking work: digests, copies, files.
const BLOCKING_THREADS_MAX: usize = 16;
/// The default number of threads for the kernel's requests is the number of processors, within
/// these bounds. Some threads wait for the disk, so a few more are useful; beyond the maximum they
/// would only wait for each other.
const REQUEST_THREADS_MIN: usize = 4;
const REQUEST_THREADS_MAX: usize = 16;
/// How long the first look through the mount may take.
const READY_DEADLINE: Duration = Duration::from_secs(10);
/// How often changed figures by client are saved, which limits how much of them a crash can lose.
const KEEP_FIGURES_EVERY: Duration = Duration::from_secs(10);
/// How long background tasks may take to notice the end.
const END_GRACE: Duration = Duration::from_secs(2);

/// How a mount ended.
#[derive(Debug)]
pub struct ExitReport {
    /// The result of the last drain.
    pub drain: DrainReport,
}

/// Mounts and serves until a signal, the control socket or an unmount ends it. `ready` is called
/// after a look through the mount has worked, and `reload` at each SIGHUP after that. The mount
/// takes over those of the returned settings that may change while mounted.
///
/// # Errors
///
/// If anything was refused before it was changed, the kind is `Invalid`, `Busy`, `Denied` or `NotFound`.
pub fn serve(
    settings: &Settings,
    mount_point: &Path,
    ready: impl FnOnce(),
    reload: impl Fn() -> Option<Settings>,
) -> Result<ExitReport> {
    // Each file that a program has open uses a descriptor here.
    let open_files_max = raise_limit();
    tracing::debug!(open_files_max, "starting");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKER_THREADS)
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_name("hearthfs-work")
        .enable_all()
        .build()
        .map_err(|error| Error::io("start the runtime", error))?;
    let done = serve_on(&runtime, settings, mount_point, ready, reload);
    runtime.shutdown_timeout(END_GRACE);
    done
}

fn serve_on(
    runtime: &Runtime,
    settings: &Settings,
    mount_point: &Path,
    ready: impl FnOnce(),
    reload: impl Fn() -> Option<Settings>,
) -> Result<ExitReport> {
    // Before the mount is visible: a process that sees a mount may send its daemon a signal at once.
    let signals = {
        let _inside = runtime.enter();
        Signals::listen()?
    };
    let around = crate::config::Surroundings::of_process();
    let manager = Arc::new(Manager::find(&around));
    manager.status("starting");
    let rooms = build::rooms(runtime.handle(), settings, mount_point)?;
    let node = Arc::new(MountedNode::new(settings.clone(), rooms, mount_point.to_owned(), manager));
    // Before the mount appears, so that a program that finds the mount finds its daemon.
    let place = control::Place::new(&control::runtime_dir(&around), mount_point);
    let server =
        Server::start(runtime.handle(), place, Arc::clone(&node) as Arc<dyn control::Node>)?;
    let sight = Arc::new(Sight::new(&node));
    let monitored: Arc<dyn Monitored> = Arc::new(MonitoredNode::new(&node, &sight));
    let monitor = Monitor::start(runtime.handle(), &settings.metrics, &monitored)?;
    let session = mount(runtime, settings, mount_point, node.rooms())?;
    node.rooms().fs.set_notices(Arc::new(session.notifier()));
    node.set_session(Arc::clone(&session));
    let sweeping = {
        let fs = node.rooms().fs.clone();
        task::spawn(runtime.handle(), "sweep", fs.look_after())
    };
    let keeping = task::spawn(runtime.handle(), "figures", keep_figures(Arc::clone(&node)));
    look_through(runtime, &node, session.mount_point())?;
    tracing::info!(mount_point = %mount_point.display(), "mounted");
    node.look_at_rules(runtime.handle());
    let point = session.mount_point();
    let making = client_dirs::make(runtime.handle(), &node, settings, point, others_may(settings));
    node.manager().ready(&node.summary());
    ready();
    let watching = task::spawn(runtime.handle(), "watch", watch(Arc::clone(&node), sight));
    let reload = || {
        if let Some(settings) = reload() {
            node.take_over(runtime.handle(), &settings);
        }
    };
    let drain = runtime.block_on(run(&node, &session, signals, reload));
    watching.abort();
    making.inspect(JoinHandle::abort);
    sweeping.abort();
    keeping.abort();
    drop(monitor);
    runtime.block_on(server.close());
    node.rooms().fs.settle_editions();
    node.rooms().fs.settle_published();
    runtime.block_on(node.rooms().engine.stop());
    node.finish();
    tracing::info!(left = drain.left.records, "unmounted");
    Ok(ExitReport { drain })
}

/// Saves the figures by client periodically, so that a crash loses little of them.
async fn keep_figures(node: Arc<MountedNode>) {
    loop {
        clock::sleep(KEEP_FIGURES_EVERY).await;
        let fs = node.rooms().fs.clone();
        task::blocking(move || fs.keep_figures()).await;
    }
}

fn mount(
    runtime: &Runtime,
    settings: &Settings,
    mount_point: &Path,
    rooms: &Rooms,
) -> Result<Arc<Session>> {
    let refused = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::PermissionDenied => Kind::Denied,
            std::io::ErrorKind::ResourceBusy => Kind::Busy,
            _ => Kind::Invalid,
        };
        Error::with(kind, format!("mount at {}", mount_point.display()), error)
    };
    let wanted = settings.mount.io != IoMode::Ordinary && rooms.tasks.refusal().is_none();
    let options = MountOptions {
        mount_point: mount_point.to_owned(),
        fs_name: settings.remote.url.as_ref().map_or("hearthfs".to_owned(), ToString::to_string),
        read_only: settings.mount.writes == Writes::None,
        allow_other: others_may(settings),
        user_xattrs: settings.mount.xattrs,
        wakes: if settings.mount.quick_wake { Wakes::Quick } else { Wakes::Unchanged },
        threads: request_threads(settings.mount.threads, processors()),
        want_flock: true,
        probe_file: wanted.then(|| rooms.probe_file()).transpose()?,
    };
    let session = Session::mount(Arc::new(rooms.fs.clone()), options, runtime.handle().clone())
        .map_err(refused)?;
    if settings.mount.io == IoMode::Passthrough
        && let Some(reason) = session.abilities().passthrough_refusal
    {
        return Err(Error::new(
            Kind::Invalid,
            format!(
                "mount.io = \"passthrough\" is impossible: {reason}; \"auto\" falls back to ordinary I/O"
            ),
        ));
    }
    Ok(Arc::new(session))
}

/// Reports whether users other than the one who mounts may use the mount.
fn others_may(settings: &Settings) -> bool {
    match settings.mount.allow_other {
        AllowOther::Auto => rustix::process::geteuid().is_root(),
        AllowOther::Yes => true,
        AllowOther::No => false,
    }
}

/// Returns how many processors this process may use.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Returns how many threads take the kernel's requests.
fn request_threads(asked: Option<usize>, processors: usize) -> usize {
    asked.unwrap_or(processors.clamp(REQUEST_THREADS_MIN, REQUEST_THREADS_MAX))
}

/// Looks through the kernel, so that a mount that does not answer is detected within a deadline.
fn look_through(runtime: &Runtime, node: &MountedNode, mount_point: &Path) -> Result<()> {
    let seen = runtime.block_on(async {
        let mut look = Look::start(mount_point, node.may_look().await)?;
        Ok(clock::within(READY_DEADLINE, look.seen()).await)
    })?;
    match seen {
        Some(LookResult::Alive) => Ok(()),
        Some(LookResult::Dead | LookResult::Failed) => {
            Err(Error::new(Kind::Internal, "the new mount answers with an error"))
        }
        Some(LookResult::Gone) => Err(Error::new(Kind::Internal, "the new mount is already gone")),
        None => Err(Error::new(Kind::TimedOut, "the new mount does not answer")),
    }
}

/// The signals that a mount handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// `None` if it is ignored.
    hangup: Option<Signal>,
}

/// What a signal requests.
enum Asks {
    End,
    Reload,
}

impl Signals {
    fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).map_err(|error| Error::io("listen for signals", error));
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: if process::is_ignored(process::Signal::Hangup) {
                None
            } else {
                Some(listen(SignalKind::hangup())?)
            },
        })
    }

    /// Waits for the next signal and returns its request.
    async fn next(&mut self) -> Asks {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.terminate.recv() => Asks::End,
            _ = self.interrupt.recv() => Asks::End,
            _ = hangup => Asks::Reload,
        }
    }

    /// Waits for a signal that ends the mount.
    async fn end(&mut self, reload: impl Fn()) {
        while matches!(self.next().await, Asks::Reload) {
            reload();
        }
    }
}

/// Waits for whatever ends the mount, and ends it.
async fn run(
    node: &Arc<MountedNode>,
    session: &Session,
    mut signals: Signals,
    reload: impl Fn(),
) -> DrainReport {
    tokio::select! {
        () = signals.end(reload) => node.end_by_signal().await,
        () = node.ended() => node.end_by_signal().await,
        () = session.ended() => node.end_after_unmount().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_the_processors_unless_a_number_is_set() {
        for (asked, processors, threads) in [
            (None, 1, REQUEST_THREADS_MIN),
            (None, 4, 4),
            (None, 8, 8),
            (None, 12, 12),
            (None, 192, REQUEST_THREADS_MAX),
            (Some(1), 8, 1),
            (Some(64), 8, 64),
        ] {
            assert_eq!(request_threads(asked, processors), threads, "{asked:?}, {processors}");
        }
    }
}
