//! What programs do on simulated nodes.

use std::sync::Arc;
use std::time::Duration;

use super::fleet::{Fleet, about, all, content, name, pick, run};
use super::node::SimulatedNode;
use crate::clock;
use crate::stamp::Stamp;

/// How many programs of one build run at once.
const AT_ONCE: usize = 4;
/// The approximate time of one compilation.
const COMPILATION: Duration = Duration::from_secs(2);
/// How many entries a publisher overwrites repeatedly.
const OWN_NAMES: usize = 20;
/// The approximate time between two closes of a publisher.
const CLOSE_EVERY: Duration = Duration::from_millis(200);
/// One in this many of its closes is watched for on other nodes.
const WATCH_EVERY: u64 = 20;

/// The directory of entries that all nodes share.
pub(super) const SHARED: &str = "shared";

/// Opens the entries `0..entries` on a node, and writes those that are missing, as a build does
/// with several programs.
pub(super) async fn build(fleet: &Fleet, node: &Arc<SimulatedNode>, entries: usize) {
    let programs = (0..AT_ONCE).map(|first| {
        let (fleet, node) = (fleet.clone(), node.clone());
        run(async move {
            for number in (first..entries).step_by(AT_ONCE) {
                let path = name(SHARED, number);
                if fleet.open(&node, &path).await.is_none() {
                    clock::sleep(about(COMPILATION)).await;
                    close(&node, number, number as u64);
                    fleet.oracle().note_compiled();
                }
            }
        })
    });
    all(programs.collect()).await;
}

/// Writes the shared entry with a number.
pub(super) fn close(node: &SimulatedNode, number: usize, seed: u64) -> Stamp {
    node.close(&name(SHARED, number), &content(seed)).expect("the disk has room")
}

/// Looks up a name that does not exist, about every second.
pub(super) async fn ask(fleet: Fleet, node: Arc<SimulatedNode>) {
    let missing = name("missing", 0);
    loop {
        clock::sleep(about(Duration::from_secs(1))).await;
        fleet.look_up(&node, &missing).await;
    }
}

/// Writes five files a second, repeatedly under the same names. Some are watched for on the nodes
/// in `watching`.
pub(super) async fn publish(
    fleet: Fleet,
    node: Arc<SimulatedNode>,
    number: usize,
    watching: Vec<usize>,
) {
    let dir = own_dir(number);
    for n in 0_u64.. {
        clock::sleep(about(CLOSE_EVERY)).await;
        let path = name(&dir, n as usize % OWN_NAMES);
        // The kernel looks up a name before it creates or replaces it.
        fleet.look_up(&node, &path).await;
        let seed = (number as u64) << 32 | n;
        let stamp = node.close(&path, &content(seed)).expect("the disk has room");
        if n % WATCH_EVERY == WATCH_EVERY / 2 {
            fleet.oracle().watch(path, stamp, fleet.now_ms(), watching.clone());
        }
    }
}

fn own_dir(number: usize) -> String {
    format!("p{number}")
}

/// Looks up a name of some publisher about every second, and opens every tenth.
pub(super) async fn read(fleet: Fleet, node: Arc<SimulatedNode>, publishers: usize) {
    for n in 0_u64.. {
        clock::sleep(about(Duration::from_secs(1))).await;
        let dir = own_dir(pick(publishers as u64) as usize);
        let path = name(&dir, pick(OWN_NAMES as u64) as usize);
        if n % 10 == 0 {
            fleet.open(&node, &path).await;
        } else {
            fleet.look_up(&node, &path).await;
        }
    }
}

/// The size of a person's builds, and how often they happen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Builds {
    /// The approximate time from one build to the next.
    pub(super) every: Duration,
    /// How many names one build looks up, half a second apart.
    pub(super) names: u64,
    /// One in this many of these names belongs to a changed file, which must be compiled.
    pub(super) new_one_in: u64,
}

/// Builds from time to time until `until_ms`. A lookup is judged only if the node can reach the
/// store.
pub(super) async fn work(
    fleet: Fleet,
    node: Arc<SimulatedNode>,
    entries: usize,
    builds: Builds,
    (until_ms, is_judged): (u64, bool),
) {
    while fleet.now_ms() < until_ms {
        clock::sleep(about(builds.every)).await;
        for _ in 0..builds.names {
            clock::sleep(about(Duration::from_millis(500))).await;
            let path = name(SHARED, pick(entries as u64) as usize);
            let found = if is_judged {
                fleet.open(&node, &path).await
            } else {
                let found = node.look_up(&path).await;
                match found {
                    Some(found) if node.open(&found).await => Some(found),
                    _ => None,
                }
            };
            if found.is_none() || pick(builds.new_one_in) == 0 {
                clock::sleep(about(COMPILATION)).await;
                node.close(&path, &content(pick(u64::MAX))).expect("the disk has room");
                fleet.oracle().note_compiled();
            }
        }
    }
}
