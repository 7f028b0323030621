//! What is at a mount point, before anything is done with it.
//!
//! Owns the checks of a mount point, and the removal of what a dead daemon left there. Must never
//! wait for a mount that does not answer.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rustix::fs::Access;

use super::failure::{Failure, Outcome};
use super::stale::{self, is_of_other, look_as_owner};
use crate::config::{self, Flags, Loaded, Surroundings, resolve};
use crate::control::{self, Client, Mounted, Mounts, Status};
use crate::daemon::LookResult;
use crate::error::Kind;
use crate::task::{self, AnyValue};

/// How long a mount may take to answer one stat.
const STAT_LIMIT: Duration = Duration::from_secs(5);
/// The most mounts of dead daemons that are removed from one place.
const PILE_MAX: usize = 16;
/// How long a mount may take to answer one request.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// What is at a mount point.
#[derive(Debug)]
pub(super) enum State {
    /// An empty directory.
    Free,
    /// One of our mounts, with a running daemon.
    Live(Box<(Client, Status)>),
    /// One of our mounts that belongs to another user.
    Foreign,
    /// What a dead daemon left.
    Stale {
        /// A new mount of this user replaces it in one step.
        is_replaced: bool,
    },
}

/// Returns the absolute, resolved form of a mount point as typed.
pub(super) fn absolute(around: &Surroundings, dir: &Path) -> PathBuf {
    resolve(&around.absolute(dir))
}

/// Returns the mount point of an argument or else of the configuration, and the settings for it.
pub(super) fn settle(
    around: &Surroundings,
    dir: Option<&Path>,
    flags: &Flags,
) -> Outcome<(PathBuf, Loaded)> {
    let named = dir.map(|dir| absolute(around, dir));
    let loaded = config::load(flags, around, named.as_deref())?;
    match loaded.settings.mount.directory.clone() {
        Some(point) => Ok((point, loaded)),
        None => Err(Failure::refused("no mount point is named")
            .hint("name one as DIR, or set mount.directory in the configuration")),
    }
}

/// Determines what is at `point` (resolved); refuses places on which nothing can be mounted.
pub(super) async fn inspect(around: &Surroundings, point: &Path) -> Outcome<State> {
    match Mounts::read()?.at(point) {
        None => check_directory(around, point).map(|()| State::Free),
        Some(mounted) if mounted.is_ours() => ours(around, mounted).await,
        // It must not be accessed: that would wait for the very mount that is about to be made.
        Some(other) if other.fs_type == "autofs" => Ok(State::Free),
        Some(other) => Err(Failure::refused(format!(
            "{} is a mount point already: {} of type {}",
            point.display(),
            other.source,
            other.fs_type
        ))
        .hint("choose an empty directory")),
    }
}

async fn ours(around: &Surroundings, mounted: &Mounted) -> Outcome<State> {
    let point = &mounted.point;
    let error = match control::find(around, point, mounted.owner).await {
        Ok(found) => return Ok(State::Live(Box::new(found))),
        Err(error) => error,
    };
    match (error.kind(), look(around, mounted).await) {
        (_, Some(Err(error))) if is_dead(&error) => {
            // Root's own mount replaces it.
            Ok(State::Stale { is_replaced: around.uid == 0 && mounted.owner == Some(0) })
        }
        (Kind::NotFound | Kind::Denied, Some(_)) if mounted.owner != Some(around.uid) => {
            Ok(State::Foreign)
        }
        (Kind::NotFound, Some(_)) => Err(Failure::failed(format!(
            "{} is mounted, but the control socket of its daemon is not where it should be",
            point.display()
        ))
        .hint("perhaps it was mounted with another HEARTHFS_RUNTIME_DIR or XDG_RUNTIME_DIR")
        .hint("SIGTERM also ends a daemon: it drains, unmounts and exits")),
        (_, Some(_)) => Err(Failure::from(error)),
        (_, None) => Err(Failure::failed(format!(
            "{} is mounted, but does not answer: {}",
            point.display(),
            error.chain()
        ))
        .hint(format!(
            "end its daemon (SIGKILL loses no closed file), then `hearthfs unmount {}`",
            point.display()
        ))),
    }
}

/// Looks at a mount; `None` if it does not answer in time.
async fn look(around: &Surroundings, mounted: &Mounted) -> Option<std::io::Result<()>> {
    if is_of_other(around, mounted) {
        match look_as_owner(mounted).await? {
            LookResult::Alive | LookResult::Gone => return Some(Ok(())),
            LookResult::Dead => return Some(Err(rustix::io::Errno::NOTCONN.into())),
            LookResult::Failed => {}
        }
    }
    stat_within(&mounted.point, STAT_LIMIT)
}

/// The kernel's error for a mount whose daemon is gone.
fn is_dead(error: &std::io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::NOTCONN | rustix::io::Errno::CONNABORTED))
}

/// Asks the file system at a path for its size; `None` if that takes longer than `limit`.
pub(super) fn stat_within(path: &Path, limit: Duration) -> Option<std::io::Result<()>> {
    let path = path.to_owned();
    // Not `stat`: the kernel may answer that from its cache, even after the daemon is gone.
    let ask = move || rustix::fs::statvfs(&path).map(drop).map_err(std::io::Error::from);
    within(limit, ask).map(|asked| asked.and_then(|answer| answer))
}

/// Reports whether the kernel keeps this user from a mount.
pub(super) fn is_closed(point: &Path) -> bool {
    let path = point.to_owned();
    let asked = within(STAT_LIMIT, move || rustix::fs::stat(&path));
    matches!(asked, Some(Ok(Err(rustix::io::Errno::ACCESS))))
}

/// Returns what `ask` returns about `dir`, unless that takes too long.
pub(super) fn answer<T: Send + 'static>(
    dir: &Path,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Outcome<T> {
    match within(ANSWER_LIMIT, ask) {
        Some(Ok(answer)) => Ok(answer),
        Some(Err(error)) => Err(Failure::failed(format!("start a thread: {error}"))),
        None => Err(Failure::failed(format!(
            "{} does not answer within {ANSWER_LIMIT:?}",
            dir.display()
        ))
        .hint("`hearthfs status` shows what its daemon is doing")),
    }
}

/// Returns what `ask` returns; `None` if that takes longer than `limit`. A thread that hangs is
/// left behind, because nothing can end it. The error means that no thread could be started.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<std::io::Result<T>> {
    let asked = any_within(limit, Box::new(move || Box::new(ask())))?;
    Some(asked.map(|value| *value.downcast().expect("the value is what `ask` returned")))
}

/// Does [`within`]'s work; compiled once, and not for each type.
fn any_within(
    limit: Duration,
    ask: Box<dyn FnOnce() -> AnyValue + Send>,
) -> Option<std::io::Result<AnyValue>> {
    let (tell, told) = mpsc::sync_channel(1);
    let started = task::thread("ask", move || {
        // The receiver is gone only if the limit has passed.
        tell.send(ask()).ok();
    });
    match started {
        Ok(_) => told.recv_timeout(limit).ok().map(Ok),
        Err(error) => Some(Err(error)),
    }
}

fn check_directory(around: &Surroundings, point: &Path) -> Outcome<()> {
    let shown = point.display();
    if point.parent().is_none() {
        return Err(Failure::refused("the root directory cannot be the mount point"));
    }
    let about = match std::fs::symlink_metadata(point) {
        Ok(about) => about,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let missing = Failure::refused(format!("the mount point {shown} does not exist"));
            return Err(missing.hint(format!("mkdir -p {shown}")));
        }
        Err(error) => return Err(Failure::refused(format!("the mount point {shown}: {error}"))),
    };
    if !about.is_dir() {
        return Err(Failure::refused(format!("the mount point {shown} is not a directory")));
    }
    match std::fs::read_dir(point).map(|mut entries| entries.next().is_some()) {
        Ok(false) => {}
        Ok(true) => {
            return Err(Failure::refused(format!("the mount point {shown} is not empty"))
                .hint("choose an empty directory: the mount would hide the files in it"));
        }
        Err(error) => return Err(Failure::refused(format!("the mount point {shown}: {error}"))),
    }
    if around.uid != 0 && rustix::fs::access(point, Access::WRITE_OK).is_err() {
        return Err(Failure::refused(format!("you cannot write to the mount point {shown}")));
    }
    Ok(())
}

/// Removes what dead daemons left at `point`. Something may have been mounted there just now; only
/// dead mounts are removed.
pub(super) async fn clear_stale(around: &Surroundings, point: &Path) -> Outcome<()> {
    let failed = |error: std::io::Error| {
        Failure::failed(format!("cannot remove the stale mount at {}: {error}", point.display()))
    };
    for _ in 0..PILE_MAX {
        hearthfs_mount::clear_stale(point).map_err(failed)?;
        if !stale::remove(around, point).await.map_err(failed)? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(point: &Path) -> String {
        let around = Surroundings::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let state = runtime.expect("runtime").block_on(inspect(&around, point));
        let failure = state.expect_err("refused");
        assert_eq!(failure.exit, super::super::failure::Exit::Refused);
        failure.text()
    }

    #[test]
    fn what_cannot_be_a_mount_point() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let base = dir.path().canonicalize().expect("exists");
        std::fs::create_dir(base.join("full")).expect("mkdir");
        std::fs::write(base.join("full/file"), "x").expect("write");
        let missing = refusal(&base.join("missing"));
        assert!(missing.contains("does not exist") && missing.contains("mkdir -p"), "{missing}");
        assert!(refusal(&base.join("full/file")).contains("not a directory"));
        assert!(refusal(&base.join("full")).contains("not empty"));
        assert!(refusal(Path::new("/proc")).contains("mount point already: proc"));
        assert!(check_directory(&Surroundings::default(), Path::new("/")).is_err());
        std::fs::create_dir(base.join("empty")).expect("mkdir");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let around = Surroundings::default();
        let state = runtime.expect("runtime").block_on(inspect(&around, &base.join("empty")));
        assert!(matches!(state, Ok(State::Free)));
    }
}
