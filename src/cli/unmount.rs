//! `hearthfs unmount`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::failure::{Failure, Outcome};
use super::output::{ProgressLine, count, left, note};
use super::point::{self, State};
use super::wait;
use crate::config::{self, Flags, Surroundings, parse_duration};
use crate::control::{Client, DrainReport, FS_NAME, Mounted, Mounts};
use crate::daemon;
use crate::error::Kind;

/// How long the daemon may take to end after it has unmounted.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Options of `hearthfs unmount`.
#[derive(Args, Clone, Debug)]
pub(super) struct Unmount {
    /// The mount point [default: mount.directory of the configuration]
    dir: Option<PathBuf>,

    /// Do not wait for uploads; what is not yet remote is kept for the next mount
    #[arg(long, conflicts_with = "timeout")]
    now: bool,

    /// The longest time to wait for uploads [default: writeback.drain_deadline of the mount]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    timeout: Option<Duration>,

    /// Only remove the mount of a dead daemon; leave a live mount alone
    #[arg(long, conflicts_with_all = ["now", "timeout"])]
    stale: bool,

    /// The configuration file that names the mount point [env: HEARTHFS_CONFIG]
    #[arg(long, value_name = "FILE", conflicts_with = "dir")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(command: &Unmount) -> Outcome<()> {
    let around = Surroundings::of_process();
    let point = point(&around, command)?;
    if command.stale {
        return wait(unmount_stale(&around, &point));
    }
    let mounts = Mounts::read()?;
    let Some(mounted) = mounts.at(&point).filter(|mounted| mounted.is_ours()) else {
        return Err(not_mounted(&point));
    };
    let limit = if command.now { Some(Duration::ZERO) } else { command.timeout };
    let report = wait(async {
        match point::inspect(&around, &point).await? {
            State::Live(found) => shut_down(found.0, &point, limit).await.map(Some),
            State::Free => Err(not_mounted(&point)),
            State::Foreign => Err(foreign(&around, &point)),
            State::Stale { .. } => point::clear_stale(&around, &point).await.map(|()| None),
        }
    })?;
    let Some(report) = report else {
        return of_dead(&around, command, mounted);
    };
    if report.complete || report.left.is_empty() {
        return Ok(());
    }
    let message = left(&report.left);
    if command.now {
        note(&format!("{message}; kept for the next mount"));
        return Ok(());
    }
    let mut failure = Failure::failed(format!("unmounted, but {message}"));
    if let Some(trouble) = report.trouble {
        failure.messages.push(trouble);
    }
    Err(failure.hint("they are kept in the cache directory; mount again to continue"))
}

fn point(around: &Surroundings, command: &Unmount) -> Outcome<PathBuf> {
    if let Some(dir) = &command.dir {
        return Ok(point::absolute(around, dir));
    }
    let flags = Flags { file: command.config.clone(), values: Vec::new() };
    point::settle(around, None, &flags).map(|(point, _)| point)
}

/// Says what a dead daemon has not sent, after its mount was removed.
fn of_dead(around: &Surroundings, command: &Unmount, mounted: &Mounted) -> Outcome<()> {
    const REMOVED: &str = "its daemon was dead; its mount is removed";
    let point = &mounted.point;
    if mounted.source == FS_NAME {
        note(&format!("{REMOVED}; it had no store"));
        return Ok(());
    }
    let flags = Flags { file: command.config.clone(), values: Vec::new() };
    let cache = config::load(&flags, around, Some(point)).ok().map(|l| l.settings.local.cache_dir);
    let pending = cache.and_then(|cache| Some((daemon::count_pending(&cache, point)?, cache)));
    let shown = point.display();
    let (what, remedy) = match pending {
        Some((0, _)) => {
            note(&format!("{REMOVED}; everything was in the store"));
            return Ok(());
        }
        Some((left, cache)) => (
            format!("{} may not be in the store yet", count(left, "change", "changes")),
            format!("kept in {}: `hearthfs mount {shown}` sends them", cache.display()),
        ),
        None => (
            "it is not known whether all changes are in the store".to_owned(),
            format!(
                "kept in its cache directory: `hearthfs mount {shown}` with the same settings sends them"
            ),
        ),
    };
    if command.now {
        note(&format!("{REMOVED}; {what}; {remedy}"));
        return Ok(());
    }
    Err(Failure::failed(format!("unmounted, but its daemon was dead: {what}"))
        .hint(format!("they are {remedy}")))
}

/// Removes a dead mount, if there is one, unless the service manager is about to mount there again.
/// Until then programs should get an error rather than the empty directory below, into which they
/// would write files that are never seen again.
async fn unmount_stale(around: &Surroundings, point: &Path) -> Outcome<()> {
    if !Mounts::read()?.at(point).is_some_and(Mounted::is_ours) {
        return Ok(());
    }
    if restart_follows(around) {
        note("the mount stays for the restart");
        return Ok(());
    }
    point::clear_stale(around, point).await?;
    let left = Mounts::read()?.at(point).is_some_and(Mounted::is_ours);
    if left && around.uid != 0 && point::is_closed(point) {
        // Only its user and root can tell whether it is dead.
        return Err(foreign(around, point));
    }
    Ok(())
}

/// Reports whether the service manager restarts the unit, according to the daemon's end in the
/// environment of `ExecStopPost=`.
fn restart_follows(around: &Surroundings) -> bool {
    let result = around.variable("SERVICE_RESULT").and_then(|result| result.to_str());
    let refused = around.variable("EXIT_STATUS").is_some_and(|status| status == "2");
    match result {
        Some("signal" | "core-dump" | "watchdog" | "oom-kill") => true,
        Some("exit-code") => !refused,
        _ => false,
    }
}

/// Returns the failure that nothing of ours is mounted there.
pub(super) fn not_mounted(point: &Path) -> Failure {
    Failure::not_mounted(format!("{} is not a hearthfs mount", point.display()))
        .hint("`hearthfs status` lists the mounts")
}

/// Returns the failure that the mount belongs to another user.
pub(super) fn foreign(around: &Surroundings, point: &Path) -> Failure {
    let failure = Failure::refused(format!("{} is the mount of another user", point.display()));
    failure.hint(if around.uid == 0 {
        "its control socket is not where root looks: ask as that user, or with the HEARTHFS_RUNTIME_DIR of its daemon"
    } else {
        "ask as that user or as root"
    })
}

/// Makes the daemon drain, unmount and end, and waits for its end.
pub(super) async fn shut_down(
    mut client: Client,
    point: &Path,
    limit: Option<Duration>,
) -> Outcome<DrainReport> {
    let mut progress = ProgressLine::new();
    let asked = client.shutdown(limit, |news| progress.show(news)).await;
    drop(progress);
    let report = match asked {
        Ok(report) => report,
        Err(error) if error.kind() == Kind::Busy => {
            let shown = point.display();
            return Err(Failure::failed(format!("{shown} is in use: {}", error.chain()))
                .hint(format!("`fuser -vm {shown}` shows which processes use it")));
        }
        // The daemon may have ended before its answer arrived; the table of mounts shows that.
        Err(error) if error.kind() == Kind::Closed => DrainReport {
            complete: false,
            trouble: Some("the daemon ended without an answer".to_owned()),
            ..DrainReport::default()
        },
        Err(error) => return Err(error.into()),
    };
    let gone = client.wait_gone(END_LIMIT).await;
    if Mounts::read()?.at(point).is_some_and(Mounted::is_ours) {
        return Err(Failure::failed(format!("{} is still mounted", point.display())));
    }
    if !gone {
        note(&format!("warning: the daemon is still running {END_LIMIT:?} after it unmounted"));
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::around;

    #[test]
    fn a_dead_mount_stays_only_for_a_restart() {
        let follows = |variables: &[(&str, &str)]| restart_follows(&around(0, variables));
        assert!(follows(&[("SERVICE_RESULT", "signal"), ("EXIT_STATUS", "KILL")]));
        assert!(follows(&[("SERVICE_RESULT", "watchdog")]));
        assert!(follows(&[("SERVICE_RESULT", "exit-code"), ("EXIT_STATUS", "1")]));
        assert!(!follows(&[("SERVICE_RESULT", "exit-code"), ("EXIT_STATUS", "2")]));
        assert!(!follows(&[("SERVICE_RESULT", "success"), ("EXIT_STATUS", "0")]));
        assert!(!follows(&[("SERVICE_RESULT", "timeout")]));
        assert!(!follows(&[]), "called by hand");
        // The unit and this code must agree.
        let unit = include_str!("../../systemd/hearthfs@.service");
        for line in ["\nRestart=on-failure\n", "\nRestartPreventExitStatus=2\n"] {
            assert!(unit.contains(line), "{line}");
        }
    }
}
