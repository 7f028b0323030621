//! Asks a program for its version.
//!
//! Owns the limits of such a run. Must never run a program that a user other than root or the
//! caller could have put there, and never leave one running.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::clock::{sleep, within};
use crate::config::Surroundings;

/// How long a program may take to print its version.
const RUN_LIMIT: Duration = Duration::from_secs(5);
/// How often to check whether it has ended.
const POLL: Duration = Duration::from_millis(10);
/// The longest output that is read.
const SAID_BYTES_MAX: usize = 4096;

/// Finds a program in the directories of PATH; ignores relative ones.
pub(super) fn find(around: &Surroundings, name: &str) -> Option<PathBuf> {
    let path = around.variable("PATH")?;
    let dirs = std::env::split_paths(path).filter(|dir| dir.is_absolute());
    dirs.map(|dir| dir.join(name)).find(|file| {
        std::fs::metadata(file).is_ok_and(|about| about.is_file() && about.mode() & 0o111 != 0)
    })
}

/// Reports whether only root and this user could have put a program there.
pub(super) fn is_trusted(program: &Path, uid: u32) -> bool {
    let Ok(real) = program.canonicalize() else { return false };
    real.ancestors().all(|place| {
        std::fs::metadata(place).is_ok_and(|about| {
            let ours = about.uid() == 0 || about.uid() == uid;
            ours && (about.mode() & 0o002 == 0 || about.mode() & 0o1000 != 0)
        })
    })
}

/// Runs a program and returns its output, or why there is none.
pub(super) async fn said(program: &Path, args: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
    // In a directory where no other user can put files: some programs read files around them.
    command.args(args).current_dir("/").process_group(0);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = ProbedProgram(command.spawn().map_err(|error| error.to_string())?);
    let status = within(RUN_LIMIT, async {
        loop {
            match child.0.try_wait() {
                Ok(None) => sleep(POLL).await,
                ended => return ended,
            }
        }
    })
    .await;
    match status {
        None => Err(format!("no answer within {RUN_LIMIT:?}")),
        Some(Ok(Some(status))) if status.success() => {
            child.read().map_err(|error| error.to_string())
        }
        Some(Ok(status)) => {
            Err(status.map_or_else(|| "it has not ended".to_owned(), |status| status.to_string()))
        }
        Some(Err(error)) => Err(error.to_string()),
    }
}

/// A running program; dropping it kills the program and its descendants.
struct ProbedProgram(Child);

impl ProbedProgram {
    /// Reads the output so far. Descendants of the program may keep the pipe open.
    fn read(&mut self) -> std::io::Result<String> {
        let Some(out) = self.0.stdout.as_mut() else { return Ok(String::new()) };
        rustix::fs::fcntl_setfl(&*out, OFlags::NONBLOCK)?;
        let mut text = vec![0; SAID_BYTES_MAX];
        let mut filled = 0;
        while filled < text.len() {
            match out.read(&mut text[filled..]) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(String::from_utf8_lossy(&text[..filled]).into_owned())
    }
}

impl Drop for ProbedProgram {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            // Not reaped yet, so the id is still that of its group.
            kill_process_group(Pid::from_child(&self.0), Signal::KILL).ok();
            self.0.wait().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::clock::Clock;

    fn script(dir: &Path, name: &str, text: &str) -> PathBuf {
        let path = dir.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    }

    #[tokio::test]
    async fn a_program_says_its_version_in_time() {
        let sh = Path::new("/bin/sh");
        assert_eq!(said(sh, &["-c", "echo 1.2; pwd"]).await.as_deref(), Ok("1.2\n/\n"));
        assert!(said(sh, &["-c", "exit 3"]).await.expect_err("failed").contains('3'));
        assert!(said(Path::new("/nonexistent"), &[]).await.is_err());
        let much = said(sh, &["-c", "head -c 8000 /dev/zero | tr '\\0' x"]).await;
        assert_eq!(much.map(|text| text.len()), Ok(SAID_BYTES_MAX));
        let clock = Clock::system();
        let begun = clock.mono();
        let hangs = said(sh, &["-c", "sleep 60 & echo here; wait"]).await;
        assert!(hangs.expect_err("hung").contains("no answer"));
        assert!(clock.mono().saturating_sub(begun) < RUN_LIMIT * 2);
    }

    #[test]
    fn programs_are_found_where_they_can_be_trusted() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let uid = rustix::process::geteuid().as_raw();
        let path = script(dir.path(), "tool", "echo 1");
        std::fs::write(dir.path().join("data"), "x").expect("write");
        let mut around = Surroundings::default();
        around.variables.insert("PATH".into(), format!(".::{}", dir.path().display()).into());
        assert_eq!(find(&around, "tool"), Some(path.clone()));
        assert_eq!(find(&around, "data"), None, "the file is not executable");
        assert!(is_trusted(&path, uid));
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).expect("chmod");
        assert!(!is_trusted(&path, uid), "any user could replace it");
    }
}
