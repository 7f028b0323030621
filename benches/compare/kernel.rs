//! Round trips as the kernel counts them.
//!
//! Owns a tracing instance of its own. A daemon's counters may miss requests that are answered
//! before they are counted, so the kernel's counts are used if they are available (root, tracefs).

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
const EVENT: &str = "events/fuse/fuse_request_send";
/// Room for the requests of one turn, per processor.
const BUFFER_KIB: u64 = 8192;

/// A way to count the requests of one mount.
#[derive(Debug)]
pub(crate) struct Tap {
    instance: PathBuf,
}

impl Tap {
    /// Makes a tracing instance.
    pub(crate) fn new() -> Result<Self> {
        let instance = Path::new(INSTANCES).join(format!("hearthfs-bench-{}", std::process::id()));
        std::fs::create_dir(&instance).context("tracefs cannot be used")?;
        let tap = Self { instance };
        if !tap.instance.join(EVENT).is_dir() {
            bail!("this kernel has no trace point for FUSE");
        }
        tap.write("buffer_size_kb", &BUFFER_KIB.to_string())?;
        Ok(tap)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.instance.join(file);
        std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))
    }

    /// Counts the requests to the mount at `dir` while `work` is done, by operation.
    pub(crate) fn count<T>(
        &self,
        dir: &Path,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, BTreeMap<String, u64>)> {
        // The trace identifies a connection by its device number.
        let device = std::fs::metadata(dir)?.dev();
        self.write(&format!("{EVENT}/filter"), &format!("connection == {device}"))?;
        self.write("trace", "")?;
        self.write(&format!("{EVENT}/enable"), "1")?;
        let done = work();
        self.write(&format!("{EVENT}/enable"), "0")?;
        let trace = std::fs::read_to_string(self.instance.join("trace"))?;
        let mut counts = BTreeMap::new();
        for line in trace.lines() {
            let name = line.rsplit_once("(FUSE_").and_then(|(_, rest)| rest.split_once(')'));
            if let Some((name, _)) = name {
                *counts.entry(name.to_lowercase()).or_default() += 1;
            }
        }
        Ok((done?, counts))
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir(&self.instance) {
            crate::say(format_args!("{}: {error}", self.instance.display()));
        }
    }
}
