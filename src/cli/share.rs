//! Shares one mount between several `run`s.
//!
//! Owns the decision which of them is the last. Must never unmount what no `run` has mounted.
//!
//! Two locks lie beside the control socket: `setup` is held exclusively while a mount is being made
//! or removed; `users` is held in shared mode by all that use it. Both are released when their
//! holder ends, however it ends. The file `owner` names the daemon that a `run` started.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::failure::{Failure, Outcome};
use crate::clock::{sleep, within};
use crate::config::Surroundings;
use crate::control::{Place, Status, prepare, runtime_dir};

/// How long one `run` waits for others to mount or unmount.
const SETUP_LIMIT: Duration = Duration::from_mins(3);
const SETUP_POLL: Duration = Duration::from_millis(20);

/// The use of a mount by one `run`.
#[derive(Debug)]
pub(super) struct Share {
    place: Place,
    users: File,
}

/// The right to mount or unmount, held by one `run` at a time.
#[derive(Debug)]
pub(super) struct Setup(File);

impl Share {
    /// Announces the use of the mount at `point`, and acquires the right to make it.
    pub(super) async fn enter(around: &Surroundings, point: &Path) -> Outcome<(Self, Setup)> {
        let dir = runtime_dir(around);
        prepare(&dir, around.uid).map_err(|error| Failure::at_start(&error))?;
        let place = Place::new(&dir, point);
        let setup = Setup::take(&place).await?;
        let users = open(&place, "users")?;
        // Under the setup lock no process holds it exclusively.
        flock(&users, FlockOperation::LockShared).map_err(failed)?;
        Ok((Self { place, users }, setup))
    }

    /// Records that a `run` started this daemon.
    pub(super) fn own(&self, status: &Status) -> Outcome<()> {
        std::fs::write(self.place.file("owner"), identity(status))
            .map_err(|error| Failure::failed(format!("remember the mount: {error}")))
    }

    /// Ends the use. Returns the right to unmount if this was the last use of the mount described
    /// by `status` and a `run` made it.
    pub(super) async fn leave(self, status: &Status) -> Outcome<Option<Setup>> {
        let setup = Setup::take(&self.place).await?;
        let alone = match flock(&self.users, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => true,
            Err(Errno::WOULDBLOCK) => false,
            Err(error) => return Err(failed(error)),
        };
        let owner = std::fs::read_to_string(self.place.file("owner")).unwrap_or_default();
        if !alone || owner != identity(status) {
            return Ok(None);
        }
        Ok(Some(setup))
    }
}

/// Distinguishes one daemon from every other of the same mount point.
fn identity(status: &Status) -> String {
    format!("{} {}\n", status.daemon.pid, status.life.started_ms)
}

impl Setup {
    async fn take(place: &Place) -> Outcome<Self> {
        let file = open(place, "setup")?;
        let taken = within(SETUP_LIMIT, async {
            loop {
                match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                    Ok(()) => return Ok(()),
                    Err(Errno::WOULDBLOCK | Errno::INTR) => sleep(SETUP_POLL).await,
                    Err(error) => return Err(failed(error)),
                }
            }
        });
        match taken.await {
            Some(Ok(())) => Ok(Self(file)),
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::failed(format!(
                "another `hearthfs run` has been mounting or unmounting for {SETUP_LIMIT:?}"
            ))),
        }
    }

    /// Releases the right.
    pub(super) fn done(self) {
        drop(self.0);
    }
}

fn open(place: &Place, extension: &str) -> Outcome<File> {
    let path = place.file(extension);
    File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(|error| Failure::refused(format!("open {}: {error}", path.display())))
}

fn failed(error: Errno) -> Failure {
    Failure::failed(format!("lock the mount against other runs: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::around_runtime_dir;

    fn block<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("runtime").block_on(work)
    }

    fn run(started_ms: u64) -> Status {
        let mut status = Status::default();
        (status.daemon.pid, status.life.started_ms) = (7, started_ms);
        status
    }

    #[test]
    fn only_the_last_user_of_a_mount_unmounts() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let around = around_runtime_dir(&dir.path().join("run"));
        let point = Path::new("/mnt/x");
        let status = run(1000);
        let enter = || block(Share::enter(&around, point)).expect("entered");
        let (first, setup) = enter();
        first.own(&status).expect("owned");
        setup.done();
        let (second, setup) = enter();
        let waits =
            async { within(Duration::from_millis(100), Share::enter(&around, point)).await };
        assert!(block(waits).is_none(), "one process mounts at a time");
        setup.done();
        assert!(
            block(first.leave(&status)).expect("left").is_none(),
            "another process uses the mount"
        );
        let (third, setup) = enter();
        setup.done();
        drop(third); // As if it had been killed.
        let last = block(second.leave(&status)).expect("left");
        assert!(last.is_some(), "the last process unmounts");
        drop(last);

        let (stranger, setup) = enter();
        setup.done();
        let service = run(2000);
        let left = block(stranger.leave(&service)).expect("left");
        assert!(left.is_none(), "another process mounted this one meanwhile");
    }
}
