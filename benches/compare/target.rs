//! The targets of the comparison: a directory of the disk, the floor, and hearthfs in several ways.
//!
//! Owns their differences: how each is mounted, counted, and allowed to settle.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::Pid;

use crate::clock;
use crate::kernel::Tap;
use crate::node::{self, Node, Options};

/// Operations without a waiting caller.
const ASIDE: [&str; 5] = ["release", "releasedir", "forget", "batch_forget", "interrupt"];
const FLOOR_END_MAX: Duration = Duration::from_secs(10);

/// One target.
#[derive(Debug)]
pub(crate) struct Target {
    /// Its column.
    pub(crate) name: &'static str,
    /// The directory in which programs work.
    pub(crate) dir: PathBuf,
    served: Served,
}

#[derive(Debug)]
enum Served {
    Disk,
    Floor(Floor),
    Node(Node),
}

impl Target {
    /// A directory of the disk itself.
    pub(crate) fn disk(base: &Path) -> Result<Self> {
        let dir = base.join("disk");
        std::fs::create_dir_all(&dir)?;
        Ok(Self { name: "ext4", dir, served: Served::Disk })
    }

    /// The floor.
    pub(crate) fn floor(name: &'static str, base: &Path, passthrough: bool) -> Result<Self> {
        let floor = Floor::start(&base.join(name.replace(", ", "-")), passthrough)?;
        Ok(Self { name, dir: floor.mount.clone(), served: Served::Floor(floor) })
    }

    /// A hearthfs node.
    pub(crate) fn node(
        name: &'static str,
        base: &Path,
        id: &str,
        options: Options,
    ) -> Result<Self> {
        let node = Node::start(base, id, options)?;
        Ok(Self { name, dir: node.mount(), served: Served::Node(node) })
    }

    /// Mounts it again with its content: the kernel then has none of its names cached.
    pub(crate) fn remount(&mut self) -> Result<()> {
        match &mut self.served {
            Served::Disk => Ok(()),
            Served::Floor(floor) => floor.restart(),
            Served::Node(node) => {
                node.stop()?;
                node.up()
            }
        }
    }

    /// Waits until the background work of an operation is done, so that it does not fall into the
    /// next target's turn.
    pub(crate) fn settle(&self) -> Result<()> {
        match &self.served {
            Served::Node(node) if node.has_remote() => node.drain(),
            _ => Ok(()),
        }
    }

    /// Returns how many round trips callers waited for during `work`, by operation, as counted by
    /// the kernel, or else by the target itself. Empty if neither counts.
    pub(crate) fn count<T>(
        &mut self,
        tap: Option<&Tap>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Option<BTreeMap<String, u64>>)> {
        let (done, mut trips) = match (tap, &self.served) {
            (_, Served::Disk) => return Ok((work()?, None)),
            (Some(tap), _) => tap.count(&self.dir, work)?,
            (None, _) => {
                let before = self.trips()?;
                let done = work()?;
                let mut after = self.trips()?;
                for (name, count) in &mut after {
                    *count = count.saturating_sub(*before.get(name).unwrap_or(&0));
                }
                (done, after)
            }
        };
        trips.retain(|name, _| !ASIDE.contains(&name.as_str()));
        Ok((done, Some(trips)))
    }

    fn trips(&mut self) -> Result<BTreeMap<String, u64>> {
        match &mut self.served {
            Served::Disk => Ok(BTreeMap::new()),
            Served::Floor(floor) => floor.counters(),
            Served::Node(node) => node.operations(),
        }
    }

    /// Returns whether it uses passthrough, according to its own status.
    pub(crate) fn io(&self) -> Result<String> {
        let Served::Node(node) = &self.served else { return Ok(String::new()) };
        let status = node.status()?;
        let word = |at: &str| status.pointer(at).and_then(serde_json::Value::as_str);
        let mode = word("/io/mode").unwrap_or("unknown").to_owned();
        Ok(word("/io/reason").map_or_else(|| mode.clone(), |why| format!("{mode} ({why})")))
    }
}

/// The floor, in a process of its own like hearthfs.
#[derive(Debug)]
struct Floor {
    mount: PathBuf,
    backing: PathBuf,
    passthrough: bool,
    served: Option<(Child, ChildStdin, BufReader<ChildStdout>)>,
}

impl Floor {
    fn start(base: &Path, passthrough: bool) -> Result<Self> {
        let (mount, backing) = (base.join("mount"), base.join("backing"));
        let mut floor = Self { mount, backing, passthrough, served: None };
        std::fs::create_dir_all(&floor.mount)?;
        std::fs::create_dir_all(&floor.backing)?;
        floor.restart()?;
        Ok(floor)
    }

    fn restart(&mut self) -> Result<()> {
        self.end()?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--serve-floor").arg(&self.mount).arg(&self.backing);
        if !self.passthrough {
            command.arg("--ordinary");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("start the floor")?;
        clock::watch(Pid::from_child(&child));
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        self.served = Some((child, stdin, stdout));
        // The first answer shows that it is mounted.
        self.counters()?;
        if !node::answers(&self.mount) {
            bail!("the floor is not mounted");
        }
        Ok(())
    }

    fn counters(&mut self) -> Result<BTreeMap<String, u64>> {
        let (_, stdin, stdout) = self.served.as_mut().context("the floor is not running")?;
        stdin.write_all(b"count\n")?;
        stdin.flush()?;
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        let requests =
            line.trim().parse().with_context(|| format!("the floor answered {line:?}"))?;
        Ok(BTreeMap::from([("all".to_owned(), requests)]))
    }

    fn end(&mut self) -> Result<()> {
        let Some((mut child, stdin, _)) = self.served.take() else { return Ok(()) };
        drop(stdin);
        node::end(&mut child, FLOOR_END_MAX)?;
        node::unmount(&self.mount);
        Ok(())
    }
}

impl Drop for Floor {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            crate::say(format_args!("floor: {error:#}"));
        }
        node::unmount(&self.mount);
    }
}
