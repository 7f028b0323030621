//! The directories of clients in the root of a mount that several users share.
//!
//! Owns when they are made, and both ends of the process that makes them. They are made at the mount, and
//! again when they have passed their age or the node has moved to another store; one that was removed stays
//! removed until the next mount. Must never change an existing directory, and never fail a mount: without its
//! directory, a client is not pointed at the mount.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FsWord, Mode, OFlags, fstatfs, mkdirat, open, openat};
use rustix::io::Errno;
use rustix::process::umask;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::node::MountedNode;
use super::outsider::Outsider;
use crate::clock::{self, within};
use crate::config::{AllowOther, ClientDirs, Settings, Writes};
use crate::control::{Mounted, Mounts};
use crate::name::TreePath;
use crate::namespace::{Entry, Fold};
use crate::sync::Ledger;
use crate::task;

/// The command by which this program makes directories in the root of a mount.
pub const MAKE_DIRS: &str = "make-dirs-in";

/// Every user can make entries, and none can remove those of another.
const SHARED_MODE: u32 = 0o1777;
/// How long a start waits for the directories, so that a later service finds them. A slow store
/// does not delay the mount further.
const WAIT: Duration = Duration::from_secs(3);
/// How often to check, without a request to the store, whether they have to be made again.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The `statfs` type of any FUSE filesystem.
const FUSE_MAGIC: FsWord = 0x6573_5546;

/// Returns the mode of the directories to make; `None` if the mount makes none. `managed` is set if
/// a service manager started the daemon.
fn mode(settings: &Settings, others: bool, managed: bool) -> Option<u32> {
    if settings.mount.writes == Writes::None {
        return None;
    }
    match settings.mount.client_dirs {
        ClientDirs::None => None,
        ClientDirs::Mode(mode) => Some(mode),
        // `hearthfs run` as root also makes a mount that others may use, but not for them.
        ClientDirs::Auto => {
            let meant = managed || settings.mount.allow_other == AllowOther::Yes;
            (others && meant).then_some(SHARED_MODE)
        }
    }
}

/// Returns the directories of the clients, each once.
fn names(settings: &Settings) -> Vec<String> {
    let all = settings.profiles.all().iter().map(|profile| profile.dir.clone());
    let mut names: Vec<String> = all.filter(|dir| !dir.is_empty()).collect();
    names.sort();
    names.dedup();
    names
}

/// Makes the missing directories after the store has been checked; waits for them only briefly. Makes them
/// again if they get lost, until the task is aborted. `others` is set if other users may use the mount.
pub(super) fn make(
    runtime: &Handle,
    node: &Arc<MountedNode>,
    settings: &Settings,
    point: &Path,
    others: bool,
) -> Option<JoinHandle<()>> {
    let mode = mode(settings, others, node.manager().is_there())?;
    let names = names(settings);
    let (node, point) = (Arc::clone(node), point.to_owned());
    let (done, first) = oneshot::channel();
    let making = task::spawn(runtime, "client directories", async move {
        let remote = node.rooms().remote.as_ref();
        if let Some(remote) = remote {
            // Before the check, directories of other nodes are unknown, and would be made again.
            remote.checked().await;
        }
        let mut all_good = make_once(&point, mode, &names).await;
        // The mount may no longer wait.
        done.send(()).ok();
        // Without a remote nothing passes its age. After a failure, the next mount tries again.
        while remote.is_some() && all_good {
            clock::sleep(LOOK_EVERY).await;
            if is_any_lost(node.rooms().engine.ledger(), &names) {
                all_good = make_once(&point, mode, &names).await;
            }
        }
    });
    runtime.block_on(within(WAIT, first));
    Some(making)
}

/// Makes the missing directories; returns whether all are there.
async fn make_once(point: &Path, mode: u32, names: &[String]) -> bool {
    let mut words = vec![format!("{mode:o}")];
    words.extend(names.iter().cloned());
    // This process does not exclude looks at the mount: a slow store may delay it beyond the
    // watchdog's limit.
    match Outsider::start(MAKE_DIRS, point, &words, true, ()) {
        Ok(mut making) => {
            let ended = making.ended().await;
            say(point, mode, ended.map(|output| output.stderr))
        }
        Err(error) => {
            tracing::warn!(error = error.chain(), "cannot make the directories of clients");
            false
        }
    }
}

/// Reports whether one of the directories does not exist any more, and nobody has removed it.
fn is_any_lost(ledger: &Ledger, names: &[String]) -> bool {
    let lost = |fold: &Fold, path: &TreePath| match fold.register(path) {
        None => !fold.has_descendants(path),
        Some(register) => {
            let changed_ms = Some(register.changed_ms());
            let is_over =
                |entry: &Entry| ledger.living_left(fold, path, entry, changed_ms).is_none();
            register.entry.as_ref().is_some_and(is_over)
        }
    };
    let path_of = |name: &String| {
        let mut names = name.split('/').filter(|name| !name.is_empty());
        names.try_fold(TreePath::root(), |dir, name| dir.join(name.as_bytes()).ok())
    };
    ledger.read(|fold| names.iter().filter_map(path_of).any(|path| lost(fold, &path)))
}

/// Logs what could not be made, with a remedy. Returns whether that is nothing.
fn say(point: &Path, mode: u32, said: Option<Vec<u8>>) -> bool {
    let said = said.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let problem = said.unwrap_or_else(|| "no answer".to_owned());
    let problem = problem.trim().replace('\n', "; ");
    if problem.is_empty() {
        return true;
    }
    tracing::warn!(
        "could not make all directories of clients in {}: {problem}; make them with `install -d -m {mode:04o}`, or \
         set mount.client_dirs = \"none\"",
        point.display()
    );
    false
}

/// Makes directories in the root of the mount at `point`, and returns what could not be made. Runs
/// in a separate process.
pub fn make_dirs(point: &Path, mode: u32, names: &[String]) -> Vec<String> {
    let failed =
        |path: &Path, error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = match open(point, flags, Mode::empty()) {
        Ok(root) => root,
        Err(error) => return vec![failed(point, &error)],
    };
    // The descriptor always refers to the same directory, so if the mount goes away, nothing is
    // made in the directory below it.
    let is_fuse = fstatfs(&root).is_ok_and(|found| found.f_type == FUSE_MAGIC);
    let is_ours = Mounts::read().is_ok_and(|all| all.at(point).is_some_and(Mounted::is_ours));
    if !is_fuse || !is_ours {
        return vec![failed(point, &"it is no longer mounted")];
    }
    umask(Mode::empty());
    let mut problems = Vec::new();
    for name in names {
        let made = make_dir(&root, Path::new(name), mode);
        problems.extend(made.err().map(|error| failed(&point.join(name), &error)));
    }
    problems
}

/// Makes one directory and its missing parents. Follows no link: another user may have put one
/// there, and it may lead out of the mount.
fn make_dir(root: &OwnedFd, path: &Path, mode: u32) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut above: Option<OwnedFd> = None;
    for name in path {
        let dir = above.as_ref().unwrap_or(root);
        match mkdirat(dir, name, Mode::from_raw_mode(mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
        above = Some(openat(dir, name, flags, Mode::empty())?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_made_for_others_only() {
        use AllowOther::{Auto, Yes};
        use ClientDirs as Dirs;
        for (dirs, allow_other, others, managed, made) in [
            (Dirs::Auto, Auto, true, true, Some(0o1777)),
            (Dirs::Auto, Auto, true, false, None),
            (Dirs::Auto, Yes, true, false, Some(0o1777)),
            (Dirs::Auto, Auto, false, true, None),
            (Dirs::None, Yes, true, true, None),
            (Dirs::Mode(0o700), AllowOther::No, false, false, Some(0o700)),
        ] {
            let mut settings = Settings::default();
            settings.mount.client_dirs = dirs;
            settings.mount.allow_other = allow_other;
            let case = (dirs, allow_other, others, managed);
            assert_eq!(mode(&settings, others, managed), made, "{case:?}");
            settings.mount.writes = Writes::None;
            assert_eq!(mode(&settings, others, managed), None, "{case:?}, read-only");
        }
    }

    #[test]
    fn nothing_is_made_where_nothing_is_mounted() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let problems = make_dirs(dir.path(), 0o1777, &["jax".to_owned()]);
        assert!(problems[0].contains("no longer mounted"), "{problems:?}");
        assert!(!dir.path().join("jax").exists());
    }
}
