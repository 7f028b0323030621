//! The temporary world: one shared directory, and nodes with a mount and a cache directory each.
//!
//! Must never delete anything while something is mounted in it.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::clock::Clock;
use tempfile::TempDir;

use super::process::{DemoProcess, Stop, output, pause, succeed};
use super::{PART_OF_DEMO, say};
use crate::cli::failure::{Failure, Outcome};

/// How long a mount may take until it answers.
const READY_WITHIN: Duration = Duration::from_secs(30);
/// How long an orderly end of a mount may take.
const UNMOUNT_WITHIN: Duration = Duration::from_secs(90);
/// How long a question to a daemon may take.
const ASK_WITHIN: Duration = Duration::from_secs(20);
/// How many of the last lines of a log are shown when something failed.
const LOG_LINES_SHOWN: usize = 20;
/// The configuration file.
const CONFIG: &str = "hearthfs.toml";
/// Node B looks as soon as node A has uploaded. With the usual freshness it may answer for a second
/// from what it has seen before.
const CONFIG_TEXT: &str = "[remote]\nfreshness = \"0s\"\n";
/// Variables of the caller that would change the result.
const FOREIGN: &[&str] =
    &["AWS_", "CCACHE_", "GO", "HEARTHFS_", "JAX_", "OLYMPUS_", "PYTHON", "RUST_LOG", "XLA_"];

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Finds a program the way a shell does.
pub(super) fn find_program(name: &str) -> Option<PathBuf> {
    let paths = std::env::var_os("PATH")?;
    std::env::split_paths(&paths).map(|dir| dir.join(name)).find(|path| {
        path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    })
}

/// Refuses a machine on which nothing can be mounted, and says what is missing.
pub(super) fn check_machine() -> Outcome<()> {
    let missing = |what: &str| Err(Failure::refused(what.to_owned()));
    let device = File::options().read(true).write(true).open("/dev/fuse");
    if let Err(error) = device {
        return missing(&format!(
            "/dev/fuse cannot be opened ({error}); load the kernel module `fuse`, and in a container pass \
             the device in (docker: --device /dev/fuse --cap-add SYS_ADMIN)"
        ));
    }
    if !is_root() && find_program("fusermount3").is_none() {
        return missing(
            "a user other than root needs `fusermount3` to mount; install the package `fuse3`, or run \
             this as root",
        );
    }
    Ok(())
}

/// A directory with all files of the demonstration.
#[derive(Debug)]
pub(super) struct World {
    dir: Option<TempDir>,
    keep: bool,
    hearthfs: PathBuf,
}

impl World {
    pub(super) fn make(keep: bool) -> Outcome<Self> {
        let failed = |what: &str, error| Failure::failed(format!("cannot {what}: {error}"));
        // Short: the paths of sockets are limited.
        let dir = tempfile::Builder::new()
            .prefix("hearthfs-demo-")
            .tempdir()
            .map_err(|error| failed("make a temporary directory", error))?;
        for name in ["shared", "run", "work"] {
            std::fs::create_dir(dir.path().join(name))
                .map_err(|error| failed("make a directory", error))?;
        }
        std::fs::write(dir.path().join(CONFIG), CONFIG_TEXT)
            .map_err(|error| failed("write the configuration", error))?;
        let hearthfs = std::env::current_exe();
        let hearthfs = hearthfs.map_err(|error| failed("find this program", error))?;
        Ok(Self { dir: Some(dir), keep, hearthfs })
    }

    pub(super) fn path(&self) -> &Path {
        self.dir.as_ref().map(TempDir::path).expect("taken by drop only")
    }

    /// Returns the configuration of the demonstration, so that this machine's own is not read.
    fn config(&self) -> PathBuf {
        self.path().join(CONFIG)
    }

    pub(super) fn shared(&self) -> PathBuf {
        self.path().join("shared")
    }

    /// Returns a directory for what the compilers write besides the cache.
    pub(super) fn work(&self) -> PathBuf {
        self.path().join("work")
    }

    /// Removes variables from a command's environment that would change the result.
    pub(super) fn dress(&self, command: &mut Command) {
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if FOREIGN.iter().any(|foreign| text.starts_with(foreign)) {
                command.env_remove(&name);
            }
        }
        command.env("XDG_RUNTIME_DIR", self.path().join("run"));
    }

    fn hearthfs(&self) -> Command {
        let mut command = Command::new(&self.hearthfs);
        self.dress(&mut command);
        command.env(PART_OF_DEMO, "1");
        command
    }

    /// Mounts a node, and waits until it answers.
    pub(super) fn mount<'a>(&'a self, name: &'static str, stop: &Stop) -> Outcome<DemoNode<'a>> {
        let failed = |error| Failure::failed(format!("cannot prepare {name}: {error}"));
        let point = self.path().join(name);
        std::fs::create_dir(&point).map_err(failed)?;
        let log = self.path().join(format!("{name}.log"));
        let to_log = File::create(&log).map_err(failed)?;
        let mut command = self.hearthfs();
        command
            .arg("mount")
            .arg(&point)
            .arg("--remote")
            .arg(format!("file://{}", self.shared().display()))
            .arg("--cache-dir")
            .arg(self.path().join(format!("{name}.cache")))
            .arg("--config")
            .arg(self.config())
            .stdout(Stdio::null())
            .stderr(to_log);
        let daemon = Some(DemoProcess::start(&mut command)?);
        let mut node = DemoNode { world: self, name, point, log, daemon };
        node.wait_until_ready(stop).inspect_err(|_| node.show_log())?;
        say(format_args!("{name}: mounted at {}", node.point.display()));
        Ok(node)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let Some(dir) = self.dir.take() else { return };
        if self.keep || !mounts_below(dir.path()).is_empty() {
            say(format_args!("kept: {}", dir.keep().display()));
        }
    }
}

/// One node: a daemon with a mount and a cache directory.
#[derive(Debug)]
pub(super) struct DemoNode<'a> {
    world: &'a World,
    pub(super) name: &'static str,
    /// Where it is mounted.
    pub(super) point: PathBuf,
    log: PathBuf,
    daemon: Option<DemoProcess>,
}

impl DemoNode<'_> {
    fn wait_until_ready(&mut self, stop: &Stop) -> Outcome<()> {
        let clock = Clock::system();
        loop {
            stop.check()?;
            let daemon = self.daemon.as_mut().expect("taken by unmount only");
            if let Some(status) = daemon.ended() {
                return Err(Failure::failed(format!("{}: the mount ended: {status}", self.name)));
            }
            if mounts_below(&self.point).contains(&self.point) && self.ask(stop).is_ok() {
                return Ok(());
            }
            if clock.mono() > READY_WITHIN {
                return Err(Failure::failed(format!("{}: the mount does not answer", self.name)));
            }
            pause();
        }
    }

    fn ask(&self, stop: &Stop) -> Outcome<String> {
        let mut command = self.world.hearthfs();
        command.arg("status").arg(&self.point).arg("--json");
        succeed(&mut command, ASK_WITHIN, stop).map(|(out, _)| out)
    }

    /// Returns the daemon's status.
    pub(super) fn status(&self, stop: &Stop) -> Outcome<serde_json::Value> {
        let text = self.ask(stop)?;
        serde_json::from_str(&text)
            .map_err(|error| Failure::failed(format!("status --json: {error}\n{text}")))
    }

    /// Returns a command that runs another on this node, with the variables of all clients set.
    pub(super) fn run(&self, words: &[&std::ffi::OsStr]) -> Command {
        let mut command = self.world.hearthfs();
        command.arg("run").arg("--mount").arg(&self.point);
        command.arg("--config").arg(self.world.config()).arg("--").args(words);
        command
    }

    /// Ends the daemon in the regular way.
    pub(super) fn unmount(mut self, stop: &Stop) -> Outcome<()> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        daemon.ask_to_end();
        let status = daemon.wait(UNMOUNT_WITHIN, stop)?;
        if !status.success() {
            self.show_log();
            return Err(Failure::failed(format!("{}: the mount ended with {status}", self.name)));
        }
        Ok(())
    }

    fn show_log(&self) {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        for line in &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..] {
            say(format_args!("{}: {line}", self.name));
        }
    }
}

impl Drop for DemoNode<'_> {
    fn drop(&mut self) {
        drop(self.daemon.take());
        for point in mounts_below(&self.point) {
            unmount_by_force(&point);
        }
    }
}

/// Returns the mount points at and below a directory, innermost first, without accessing them.
fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|path| PathBuf::from(path.replace("\\040", " ")))
        .filter(|path| path.starts_with(dir))
        .collect();
    found.sort();
    found.reverse();
    found
}

/// Removes a mount that its daemon did not remove.
fn unmount_by_force(point: &Path) {
    let mut command = if is_root() {
        let mut command = Command::new("umount");
        command.arg("-l");
        command
    } else {
        let mut command = Command::new("fusermount3");
        command.arg("-uz");
        command
    };
    command.arg(point);
    // It has to be tried even when a signal has requested the end.
    let done = output(&mut command, ASK_WITHIN, &Stop::never());
    if !done.is_ok_and(|output| output.status.success()) {
        say(format_args!("could not unmount {}", point.display()));
    }
}
