//! The nodes of a simulation, the bucket that they share, and their time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::node::{FoundName, SimulatedNode};
use super::oracle::Oracle;
use crate::clock::{self, Clock};
use crate::error::{Error, Result};
use crate::name::TreePath;
use crate::remote::fault::{FaultPlan, Faults, SimulatedBucket, Terms};
use crate::sync::EngineSettings;
use crate::task;

/// When a simulation begins, in milliseconds since the Unix epoch; any time will do.
const BEGIN_MS: u64 = 1_760_000_000_000;
/// The bytes of a content, of a pack and of the line's rate are divided by this. So a content of 5
/// KB stands for one of 50 KB and takes the same time, while a thousand nodes fit into the memory
/// of one machine.
const SCALE: u64 = 10;
/// Bytes of a content. It is stored in a pack, not in a commit, and compresses to a quarter.
pub(super) const CONTENT_BYTES: usize = 5000;
/// Most clocks are wrong by up to this.
const SKEW_MS: u64 = 2000;
/// One clock in [`BAD_CLOCKS`] is wrong by up to this.
const BAD_SKEW_MS: u64 = 120_000;
const BAD_CLOCKS: usize = 20;
/// How often to check whether other nodes show a close.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The size of a simulation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// The number of nodes.
    pub nodes: usize,
    /// The number of entries that the fleet shares.
    pub entries: usize,
    /// How long an endless scenario is watched.
    pub span: Duration,
    /// The rates of the bucket are divided by this, at least 1: a small fleet can then exceed the
    /// rates of its store.
    pub scarcity: u32,
    /// The seed of all randomness.
    pub seed: u64,
    /// Where the cache directories are created; `None` is the directory for temporary files.
    pub dir: Option<PathBuf>,
}

/// The running nodes, and what they share; cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Fleet(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    bucket: SimulatedBucket,
    clock: Clock,
    oracle: Oracle,
    settings: EngineSettings,
    base: tempfile::TempDir,
}

impl Fleet {
    /// Makes a fleet without nodes.
    pub(super) fn new(plan: &Plan) -> Result<Self> {
        let clock = Clock::of_runtime(BEGIN_MS);
        let terms = Terms::default();
        let terms = Terms {
            line_bytes_per_s: terms.line_bytes_per_s / SCALE,
            writes_per_s: terms.writes_per_s / plan.scarcity.max(1),
            reads_per_s: terms.reads_per_s / plan.scarcity.max(1),
            ..terms
        };
        let bucket = SimulatedBucket::new(clock.clone(), terms);
        let settings = EngineSettings { prefetch: 256 << 20, ..EngineSettings::default() };
        let (prefetch, pack_bytes) = (settings.prefetch / SCALE, settings.pack_bytes / SCALE);
        let settings = EngineSettings { pack_bytes, prefetch, ..settings };
        let dir = plan.dir.clone().unwrap_or_else(std::env::temp_dir);
        let base = tempfile::Builder::new().prefix("hfs-fleet-").tempdir_in(&dir);
        let base = base.map_err(|e| Error::io(format!("make a folder in {}", dir.display()), e))?;
        let oracle = Oracle::new(bucket.clone());
        Ok(Self(Arc::new(Inner { bucket, clock, oracle, settings, base })))
    }

    pub(super) fn bucket(&self) -> &SimulatedBucket {
        &self.0.bucket
    }

    pub(super) fn oracle(&self) -> &Oracle {
        &self.0.oracle
    }

    /// Returns the bucket's time, in milliseconds since the Unix epoch.
    pub(super) fn now_ms(&self) -> u64 {
        self.0.clock.wall_ms()
    }

    /// Starts a node on the cache directory with this number.
    pub(super) async fn start_one(&self, number: usize) -> Result<Arc<SimulatedNode>> {
        let worst_ms = if number % BAD_CLOCKS == BAD_CLOCKS - 1 { BAD_SKEW_MS } else { SKEW_MS };
        let skew_ms = pick(2 * worst_ms) as i64 - worst_ms as i64;
        let root = self.0.base.path().join(format!("n{number}"));
        let (clock, settings) = (self.0.clock.skewed(skew_ms), self.0.settings);
        let node =
            SimulatedNode::start(&root, &self.0.bucket, clock, settings, Faults::none()).await?;
        Ok(Arc::new(node))
    }

    /// Starts nodes with the numbers from `first` on, each at a random time within `spread`.
    pub(super) async fn start(
        &self,
        first: usize,
        count: usize,
        spread: Duration,
    ) -> Result<Vec<Arc<SimulatedNode>>> {
        let mut starting = FuturesUnordered::new();
        for number in first..first + count {
            let wait = spread.mul_f64(pick(1000) as f64 / 1000.0);
            starting.push(async move {
                clock::sleep(wait).await;
                (number, self.start_one(number).await)
            });
        }
        let mut nodes = Vec::new();
        while let Some((number, node)) = starting.next().await {
            nodes.push((number, node?));
        }
        nodes.sort_by_key(|(number, _)| *number);
        Ok(nodes.into_iter().map(|(_, node)| node).collect())
    }

    /// Looks a name up on a node and opens the entry; the oracle judges the result.
    pub(super) async fn open(&self, node: &SimulatedNode, path: &TreePath) -> Option<FoundName> {
        let began_ms = self.now_ms();
        let found = node.look_up(path).await;
        let opened = match &found {
            Some(found) => node.open(found).await,
            None => false,
        };
        self.0.oracle.judge(path, began_ms, found.as_ref(), opened);
        found.filter(|_| opened)
    }

    /// Looks a name up on a node without opening the entry; the oracle judges the result.
    pub(super) async fn look_up(&self, node: &SimulatedNode, path: &TreePath) -> Option<FoundName> {
        let began_ms = self.now_ms();
        let found = node.look_up(path).await;
        self.0.oracle.judge(path, began_ms, found.as_ref(), true);
        found
    }

    /// Waits until no node has anything to upload, for at most `limit`; returns whether that
    /// happened.
    pub(super) async fn settle(&self, nodes: &[Arc<SimulatedNode>], limit: Duration) -> bool {
        let until_ms = self.now_ms() + limit.as_millis() as u64;
        while nodes.iter().any(|node| node.backlog() > 0) {
            if self.now_ms() >= until_ms {
                return false;
            }
            clock::sleep(Duration::from_millis(100)).await;
        }
        true
    }

    /// Starts checking on these nodes for the closes that the oracle watches.
    pub(super) fn observe(&self, nodes: Vec<Arc<SimulatedNode>>) -> JoinHandle<()> {
        let fleet = self.clone();
        run(async move {
            loop {
                clock::sleep(LOOK_EVERY).await;
                fleet.oracle().look(&nodes, fleet.now_ms());
            }
        })
    }
}

/// Starts what one program or several do.
pub(super) fn run<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    task::spawn(&Handle::current(), "program", work)
}

/// Waits for programs to end.
pub(super) async fn all(programs: Vec<JoinHandle<()>>) {
    for program in programs {
        if let Err(error) = program.await
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}

/// Stops nodes as SIGKILL does.
pub(super) async fn kill(nodes: &[Arc<SimulatedNode>]) {
    for node in nodes {
        node.engine.kill().await;
    }
}

/// Makes this part of a node's requests fail, in percent.
pub(super) fn fail(node: &SimulatedNode, errors_percent: u32) {
    node.faults.set(FaultPlan { errors_percent, ..FaultPlan::default() });
}

/// Disconnects a node from the network, or connects it again.
pub(super) fn cut_off(node: &SimulatedNode, is_off: bool) {
    let resets_percent = if is_off { 100 } else { 0 };
    node.faults.set(FaultPlan { resets_percent, ..FaultPlan::default() });
}

/// Returns a random number below `most`; 0 if `most` is 0.
pub(super) fn pick(most: u64) -> u64 {
    task::random_u64().checked_rem(most).unwrap_or(0)
}

/// Returns a random time between half of `middle` and one and a half times `middle`.
pub(super) fn about(middle: Duration) -> Duration {
    middle / 2 + middle.mul_f64(pick(1000) as f64 / 1000.0)
}

/// Returns the name of a cache entry, below two directories, as clients create them.
pub(super) fn name(dir: &str, number: usize) -> TreePath {
    let file = format!("{:08x}", (number as u32).wrapping_mul(0x9e37_79b1));
    [dir, &file[..2], &file].iter().fold(TreePath::root(), |path, part| {
        path.join(part.as_bytes()).expect("it is a short name")
    })
}

/// Returns the content of a cache entry; it compresses to a quarter.
pub(super) fn content(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; CONTENT_BYTES];
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for chunk in bytes[..CONTENT_BYTES / 4].chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
    bytes
}
