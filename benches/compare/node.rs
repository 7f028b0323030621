//! One hearthfs daemon with its mount.
//!
//! Owns the process, its cache directory and its log. Must never leave a mount behind.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::clock::{self, now, sleep_ms};
use crate::stores::{ACCESS_KEY, BUCKET, S3Server, SECRET_KEY};

/// How long a mount may take to answer.
const READY_MAX: Duration = Duration::from_mins(2);
/// How long a regular end may take.
const STOP_MAX: Duration = Duration::from_mins(2);
/// How long the control socket may appear after the mount.
const SOCKET_MAX: Duration = Duration::from_secs(10);
/// How many lines of a log are shown when a daemon fails.
const LOG_LINES_SHOWN: usize = 20;

/// How to start a daemon.
#[derive(Debug, Clone, Default)]
pub(crate) struct Options {
    /// The store of all nodes; `None` is a local cache only.
    pub(crate) remote: Option<String>,
    /// `passthrough` or `ordinary`.
    pub(crate) io: &'static str,
    /// For one user and without extended attributes.
    pub(crate) lean: bool,
    /// Further environment: the store's credentials.
    pub(crate) env: Vec<(String, String)>,
    /// Further settings, as `--set` takes them.
    pub(crate) settings: Vec<String>,
    /// Another program than that of this checkout.
    pub(crate) program: Option<PathBuf>,
}

impl Options {
    /// Says which program it is, and with which settings.
    pub(crate) fn difference(&self) -> String {
        let program = self.program.as_ref().map(|path| path.display().to_string());
        let settings = self.settings.iter().map(|setting| format!("--set {setting}"));
        program.into_iter().chain(settings).collect::<Vec<_>>().join(" ")
    }
}

/// A daemon.
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    base: PathBuf,
    options: Options,
    child: Option<Child>,
    /// The position in the log at which its present run begins.
    log_from: usize,
    /// The time from the start of the process to the first stat that the mount answered.
    pub(crate) ready_after: Duration,
}

/// Reports whether something other than the disk above answers at `mount`.
pub(crate) fn answers(mount: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev()).ok();
    let here = device(mount);
    here.is_some() && here != mount.parent().and_then(device)
}

/// Removes any mount at `mount` from the tree.
pub(crate) fn unmount(mount: &Path) {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mounted = |line: &str| line.split(' ').nth(4) == mount.to_str();
    if !table.lines().any(mounted) {
        return;
    }
    let done = Command::new("umount").arg("-l").arg(mount).status();
    if !done.is_ok_and(|status| status.success()) {
        drop(Command::new("fusermount3").arg("-uz").arg(mount).status());
    }
}

/// Waits until `child` has ended; kills it after `limit`.
pub(crate) fn end(child: &mut Child, limit: Duration) -> Result<std::process::ExitStatus> {
    let start = now();
    let pid = Pid::from_child(child);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if now().saturating_sub(start) > limit {
            child.kill()?;
            break child.wait()?;
        }
        sleep_ms(1);
    };
    clock::unwatch(pid);
    Ok(status)
}

impl Node {
    /// Starts a node over the bucket of a server.
    pub(crate) fn over(base: &Path, name: &str, server: &S3Server) -> Result<Self> {
        let env = [
            ("AWS_ACCESS_KEY_ID", ACCESS_KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET_KEY.to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("HEARTHFS_ENDPOINT", server.endpoint()),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value)).to_vec();
        let remote = Some(format!("s3://{BUCKET}/bench"));
        Self::start(base, name, Options { remote, io: "auto", env, ..Options::default() })
    }

    /// Describes a node below `base` and starts it.
    pub(crate) fn start(base: &Path, name: &str, options: Options) -> Result<Self> {
        let base = base.to_owned();
        let mut node = Self {
            name: name.to_owned(),
            base,
            options,
            child: None,
            log_from: 0,
            ready_after: Duration::ZERO,
        };
        node.up()?;
        Ok(node)
    }

    /// Returns its mount point.
    pub(crate) fn mount(&self) -> PathBuf {
        self.base.join(&self.name)
    }

    /// Returns its cache directory.
    pub(crate) fn cache(&self) -> PathBuf {
        self.base.join(format!("{}.cache", self.name))
    }

    fn log(&self) -> PathBuf {
        self.base.join(format!("{}.log", self.name))
    }

    fn command(&self) -> Command {
        let own = || PathBuf::from(env!("CARGO_BIN_EXE_hearthfs"));
        let mut command = Command::new(self.options.program.clone().unwrap_or_else(own));
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("HEARTHFS_") || text.starts_with("AWS_") {
                command.env_remove(&name);
            }
        }
        let run = self.base.join("run");
        command.env("XDG_RUNTIME_DIR", run).envs(self.options.env.iter().cloned());
        // The machine's own configuration must not affect the figures.
        command.env("XDG_CONFIG_HOME", self.base.join("none")).stdin(Stdio::null());
        command
    }

    /// Starts it on its directories, and waits until a stat through the mount answers.
    pub(crate) fn up(&mut self) -> Result<()> {
        let mount = self.mount();
        std::fs::create_dir_all(&mount)?;
        std::fs::create_dir_all(self.base.join("run"))?;
        self.log_from = self.log_text().len();
        let log = || OpenOptions::new().create(true).append(true).open(self.log());
        let mut command = self.command();
        command.arg("mount").arg(&mount).arg("--cache-dir").arg(self.cache());
        if let Some(remote) = &self.options.remote {
            command.arg("--remote").arg(remote);
        }
        for setting in &self.options.settings {
            command.arg("--set").arg(setting);
        }
        if self.options.lean {
            command.env("HEARTHFS_ALLOW_OTHER", "false").env("HEARTHFS_XATTRS", "false");
        }
        command.env("HEARTHFS_IO", self.options.io).stdout(log()?).stderr(log()?);
        let start = now();
        let mut child = command.spawn().context("start hearthfs")?;
        clock::watch(Pid::from_child(&child));
        while !answers(&mount) {
            if let Some(status) = child.try_wait()? {
                clock::unwatch(Pid::from_child(&child));
                bail!("node {} ended at its start with {status}\n{}", self.name, self.log_tail());
            }
            if now().saturating_sub(start) > READY_MAX {
                child.kill()?;
                bail!("node {} does not answer\n{}", self.name, self.log_tail());
            }
            sleep_ms(1);
        }
        self.ready_after = now().saturating_sub(start);
        self.child = Some(child);
        Ok(())
    }

    /// Ends it in the regular way.
    pub(crate) fn stop(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        kill_process(Pid::from_child(&child), Signal::TERM)?;
        let status = end(&mut child, STOP_MAX)?;
        unmount(&self.mount());
        if !status.success() {
            bail!("node {} ended with {status}\n{}", self.name, self.log_tail());
        }
        Ok(())
    }

    /// Kills it at once and removes its dead mount.
    pub(crate) fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        child.kill()?;
        end(&mut child, STOP_MAX)?;
        unmount(&self.mount());
        Ok(())
    }

    /// Reports whether it has a remote.
    pub(crate) fn has_remote(&self) -> bool {
        self.options.remote.is_some()
    }

    /// Returns its process id.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Returns the `status --json`. A mount answers a moment before its control socket does.
    pub(crate) fn status(&self) -> Result<Value> {
        let begun = now();
        loop {
            let said = self.command().arg("status").arg(self.mount()).arg("--json").output()?;
            if said.status.success() {
                return Ok(serde_json::from_slice(&said.stdout)?);
            }
            if now().saturating_sub(begun) > SOCKET_MAX {
                bail!("status of {}: {}", self.name, String::from_utf8_lossy(&said.stderr));
            }
            sleep_ms(5);
        }
    }

    /// Returns the round trips so far, by operation.
    pub(crate) fn operations(&self) -> Result<BTreeMap<String, u64>> {
        let status = self.status()?;
        let operations = status.pointer("/counters/operations").context("no operation counters")?;
        Ok(serde_json::from_value(operations.clone())?)
    }

    /// Waits until everything published is uploaded.
    pub(crate) fn drain(&self) -> Result<()> {
        let mount = self.mount();
        let said = self.command().arg("drain").arg(mount).args(["--timeout", "120s"]).output()?;
        if !said.status.success() {
            bail!("drain of {}: {}", self.name, String::from_utf8_lossy(&said.stderr));
        }
        Ok(())
    }

    /// Returns the present and the peak memory use, in KiB.
    pub(crate) fn memory_kib(&self) -> Result<(u64, u64)> {
        let pid = self.pid().context("not running")?;
        let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).context("no VmRSS")
        };
        Ok((field("VmRSS:")?, field("VmHWM:")?))
    }

    /// Reports whether this run has loaded a checkpoint.
    pub(crate) fn read_checkpoint(&self) -> bool {
        self.log_text()[self.log_from..].contains("started from a checkpoint")
    }

    fn log_text(&self) -> String {
        std::fs::read_to_string(self.log()).unwrap_or_default()
    }

    /// Returns the last lines of its log.
    pub(crate) fn log_tail(&self) -> String {
        let text = self.log_text();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            crate::say(format_args!("node {}: {error:#}", self.name));
        }
        unmount(&self.mount());
    }
}
