//! What programs do on simulated nodes.

use std::sync::Arc;
use std::time::Duration;

use super::fleet::{Fleet, about, all, content, name, pick, run};
use super::node::SimulatedNode;
use crate::clock;
use crate::stamp::Stamp;

/// Programs of one build that run at once.
const AT_ONCE: usize = 4;
/// What one compilation takes, about.
const COMPILATION: Duration = Duration::from_secs(2);
/// Entries that a publisher writes over and over.
const OWN_NAMES: usize = 20;
/// A publisher closes a file this often, about.
const CLOSE_EVERY: Duration = Duration::from_millis(200);
/// So many of its closes come before one that is looked for on other nodes.
const WATCH_EVERY: u64 = 20;

/// The folder of entries that all nodes share.
pub(super) const SHARED: &str = "shared";

/// Opens entries `0..entries` on a node, and makes those that are not there, as a build does with several programs.
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

/// Writes the shared entry of a number.
pub(super) fn close(node: &SimulatedNode, number: usize, seed: u64) -> Stamp {
    node.close(&name(SHARED, number), &content(seed)).expect("the disk has room")
}

/// Asks for a name that is not there about every second.
pub(super) async fn ask(fleet: Fleet, node: Arc<SimulatedNode>) {
    let missing = name("missing", 0);
    loop {
        clock::sleep(about(Duration::from_secs(1))).await;
        fleet.look_up(&node, &missing).await;
    }
}

/// Writes five files a second, over and over the same names. Some are looked for on the nodes at `watching`.
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

/// Asks for a name of some publisher about every second, and opens every tenth.
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

/// How large the builds of a person are, and how often they come.
#[derive(Debug, Clone, Copy)]
pub(super) struct Builds {
    /// The time from one to the next, about.
    pub(super) every: Duration,
    /// Names that one asks for, half a second apart.
    pub(super) names: u64,
    /// Of these, one in so many is of a file that was changed, and has to be made.
    pub(super) new_one_in: u64,
}

/// Builds now and then until `until_ms`. Only what a node asks for while it can reach the store is judged.
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
