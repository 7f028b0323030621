//! `hearthfs mount`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::doctor::{self, Asking};
use super::failure::{Exit, Failure, Outcome};
use super::logging::{self, Logging};
use super::options::SettingFlags;
use super::output::{left, note};
use super::point::{self, State};
use super::{background, dirs, fuse, wait};
use crate::config::{Effective, Flags, Loaded, Settings, Surroundings};
use crate::control::{self, Phase, Status};
use crate::daemon;
use crate::error::{Error, Kind};

/// How much longer than its last drain a daemon may take to end.
const END_GRACE: Duration = Duration::from_secs(10);

/// Options of `hearthfs mount`.
#[derive(Args, Clone, Debug)]
pub(super) struct MountCommand {
    /// The mount point: an empty directory [default: mount.directory of the configuration]
    dir: Option<PathBuf>,

    /// Return once the mount is ready, and leave the daemon running
    #[arg(long)]
    background: bool,

    #[command(flatten)]
    options: SettingFlags,

    /// Says that this process was started by `--background`
    #[arg(long, hide = true, conflicts_with = "background")]
    detached: bool,
}

/// Runs the command.
pub(super) fn run(command: &MountCommand) -> Outcome<()> {
    let around = Surroundings::of_process();
    if command.detached {
        background::take_name();
        let result = serve(&around, command);
        return result.inspect_err(background::say_failure);
    }
    if !command.background {
        return serve(&around, command);
    }
    let (point, loaded) = wait(prepare(&around, command.dir.as_deref(), &command.options.flags()))?;
    for warning in &loaded.warnings {
        note(&format!("warning: {warning}"));
    }
    let log = wait(background::launch(&around, &point, &command.options.flags()))?;
    note(&format!("mounted at {}; the log is {}", point.display(), log.display()));
    if let Ok((_, status)) = wait(async { Ok(control::find(&around, &point, None).await) })? {
        say_store(&status);
        if status.sharing.outage().is_some() {
            // The child has the same environment, so this check applies to it.
            wait(async { Ok(doctor::tell_store(&loaded.settings, Asking::Reading).await) })?;
        }
    }
    Ok(())
}

/// Prints what the log of a mount that has just started in the background says about the store:
/// that it was made, or cannot be used.
pub(super) fn say_store(status: &Status) {
    let url = status.store.address.as_deref().unwrap_or_default();
    if status.store.is_new {
        note(&format!("there was no store at {url}: a new one is made"));
    }
    if let Some(why) = status.sharing.outage() {
        let why = why.last_error.as_deref().unwrap_or("it does not answer");
        note(&format!("warning: {url} cannot be used now: {why}"));
    }
}

/// Checks everything that can be checked before anything is changed.
pub(super) async fn prepare(
    around: &Surroundings,
    dir: Option<&Path>,
    flags: &Flags,
) -> Outcome<(PathBuf, Loaded)> {
    let (point, loaded) = point::settle(around, dir, flags)?;
    let state = point::inspect(around, &point).await?;
    let shown = point.display();
    match state {
        State::Free => await_end(around, &point, loaded.settings.writeback.drain_deadline).await?,
        State::Stale { .. } => {}
        State::Live(found) => {
            let pid = found.1.daemon.pid;
            let message =
                format!("{shown} is mounted already, by the daemon with process id {pid}");
            return Err(Failure::refused(message).hint(format!(
                "`hearthfs status {shown}` shows it, `hearthfs unmount {shown}` ends it"
            )));
        }
        State::Foreign => {
            return Err(Failure::refused(format!("{shown} is mounted already, by another user")));
        }
    }
    check_before_mount(around, &loaded.settings, &point)?;
    if matches!(state, State::Stale { is_replaced: false }) {
        clear(around, &point).await?;
    }
    Ok((point, loaded))
}

/// Waits for an earlier daemon of this mount point: a process that unmounts with `umount` cannot
/// tell when its last drain is over.
async fn await_end(around: &Surroundings, point: &Path, limit: Duration) -> Outcome<()> {
    let Ok((client, status)) = control::find(around, point, Some(around.uid)).await else {
        return Ok(());
    };
    let shown = point.display();
    if status.life.phase == Phase::Starting {
        return Err(Failure::refused(format!(
            "{shown} is being mounted just now by another process"
        )));
    }
    note(&format!("waiting for the daemon unmounted at {shown}; {}", left(&status.unsent.backlog)));
    if client.wait_gone(limit + END_GRACE).await {
        return Ok(());
    }
    let pid = status.daemon.pid;
    Err(Failure::refused(format!("the daemon unmounted at {shown} has not ended"))
        .hint(format!("open files keep it running; its process id is {pid}")))
}

/// Checks this machine and the directories that the mount at `point` needs.
pub(super) fn check_before_mount(
    around: &Surroundings,
    settings: &Settings,
    point: &Path,
) -> Outcome<()> {
    fuse::check(around, settings.mount.allow_other)?;
    dirs::check_writes(settings)?;
    dirs::check(settings, point)
}

/// Removes a stale mount, and checks the directory that it hid.
pub(super) async fn clear(around: &Surroundings, point: &Path) -> Outcome<()> {
    point::clear_stale(around, point).await?;
    note(&format!("removed the mount that a dead daemon left at {}", point.display()));
    match point::inspect(around, point).await? {
        State::Free => Ok(()),
        _ => Err(Failure::refused(format!(
            "{} was mounted by another process meanwhile",
            point.display()
        ))),
    }
}

fn serve(around: &Surroundings, command: &MountCommand) -> Outcome<()> {
    let (point, loaded) = wait(prepare(around, command.dir.as_deref(), &command.options.flags()))?;
    let logging = logging::start(&loaded.settings.log);
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    let ready = std::cell::Cell::new(false);
    let detached = command.detached;
    let become_ready = || {
        ready.set(true);
        if detached {
            background::detach();
            background::say_ready();
        }
    };
    let reload = || reload(around, command, &loaded, &logging);
    let report = daemon::serve(&loaded.settings, &point, become_ready, reload);
    match report {
        Ok(report) => {
            if !report.drain.complete && !report.drain.left.is_empty() {
                note(&format!("unmounted; {}, kept for the next mount", left(&report.drain.left)));
            }
            Ok(())
        }
        Err(error) if ready.get() => Err(Failure::new(Exit::Failed, error.chain())),
        Err(error) if error.kind() == Kind::Busy => Err(name_other(around, &point, &error)),
        Err(error) => Err(Failure::at_start(&error)),
    }
}

/// Reopens the log, and reads the configuration again. Takes over the settings that can change, and
/// logs which other changes need a new mount. Returns `None` if nothing can be taken over.
fn reload(
    around: &Surroundings,
    command: &MountCommand,
    loaded: &Loaded,
    logging: &Logging,
) -> Option<Settings> {
    if let Err(error) = logging.reopen() {
        tracing::warn!(%error, "cannot reopen the log; logging continues in the old file");
    }
    let now = match point::settle(around, command.dir.as_deref(), &command.options.flags()) {
        Ok((_, now)) => now,
        Err(failure) => {
            tracing::warn!(
                why = failure.messages.join(": "),
                "the configuration is not taken over"
            );
            return None;
        }
    };
    logging.set_level(&now.settings.log.level);
    let level = now.settings.log.level.as_str();
    let before = |key: &str| loaded.effective.iter().find(|entry| entry.key == key);
    let is_other =
        |entry: &&Effective| before(entry.key).is_none_or(|was| was.value != entry.value);
    // Settings of `run` do not belong to a mount.
    let changed = now.effective.iter().filter(is_other).map(|entry| entry.key);
    let (taken, kept): (Vec<&str>, Vec<&str>) = changed
        .filter(|key| !key.starts_with("run."))
        .partition(|key| *key == "log.level" || daemon::TAKEN_OVER.contains(key));
    let (taken, keys) = (taken.join(", "), kept.join(", "));
    if kept.is_empty() {
        tracing::info!(level, taken, "SIGHUP: the log is reopened");
    } else {
        tracing::warn!(
            level,
            taken,
            keys,
            "SIGHUP: the log is reopened; restart to apply these keys"
        );
    }
    Some(now.settings)
}

/// Describes which daemon was first, if its control socket can be found.
fn name_other(around: &Surroundings, point: &Path, error: &Error) -> Failure {
    let failure = Failure::at_start(error);
    let found = wait(async { Ok(control::find(around, point, None).await) });
    match found {
        Ok(Ok((_, status))) if status.daemon.pid != std::process::id() => {
            failure.hint(format!("the process id of the other daemon is {}", status.daemon.pid))
        }
        _ => failure,
    }
}
