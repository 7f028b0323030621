//! Versions: which hearthfs versions the other nodes run.
//!
//! Owns the commit extension with the version, and the count, which is for people. Must never take
//! part in a decision: the format of a commit defines its meaning.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::namespace::Commit;
use crate::stamp::NodeId;

/// The tag of the extension: the version of the program as text.
pub(super) const TAG: u16 = 2;
/// A longer version is ignored.
const VERSION_BYTES_MAX: usize = 32;
/// The most nodes that are remembered; beyond that, the node whose last commit is the oldest is
/// forgotten.
const NODES_MAX: usize = 10_000;
/// A node that has written nothing for this long does not count.
const HEARD_FOR_MS: u64 = 24 * 3_600_000;
/// How many versions are counted separately, those of most nodes; the others count together.
const VERSIONS_TOLD_MAX: usize = 16;
/// The name under which nodes count that do not report a version, and nodes of further versions.
const UNKNOWN: &str = "unknown";
const OTHER: &str = "other";

/// The nodes of the commits that were applied, with their versions.
#[derive(Debug, Default)]
pub(super) struct Versions(Mutex<HashMap<NodeId, Heard>>);

#[derive(Debug)]
struct Heard {
    version: Arc<str>,
    /// The time of its latest commit.
    ms: u64,
}

/// Returns the version of this program, for its commits.
pub(super) fn own() -> Vec<u8> {
    env!("CARGO_PKG_VERSION").as_bytes().to_vec()
}

/// Returns the version that wrote a commit, if the commit has one in the form of a version.
fn of(commit: &Commit) -> Option<&str> {
    let text = std::str::from_utf8(commit.extensions.get(&TAG)?).ok()?;
    let is_one = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+');
    let good = !text.is_empty() && text.len() <= VERSION_BYTES_MAX && text.chars().all(is_one);
    good.then_some(text)
}

impl Versions {
    /// Notes a commit of another node.
    pub(super) fn note(&self, commit: &Commit) {
        let (node, ms, version) = (commit.node, commit.stamp.ms, of(commit).unwrap_or(UNKNOWN));
        let mut nodes = self.0.lock();
        if let Some(heard) = nodes.get_mut(&node) {
            // Commits of one node arrive in their order, except late ones.
            if ms >= heard.ms {
                heard.ms = ms;
                if *heard.version != *version {
                    heard.version = Arc::from(version);
                }
            }
            return;
        }
        if nodes.len() >= NODES_MAX
            && let Some(oldest) =
                nodes.iter().min_by_key(|(_, heard)| heard.ms).map(|(node, _)| *node)
        {
            nodes.remove(&oldest);
        }
        nodes.insert(node, Heard { version: Arc::from(version), ms });
    }

    /// Counts the nodes that have written within a day before `now_ms`, by their versions.
    pub(super) fn count(&self, now_ms: u64) -> BTreeMap<String, u64> {
        let mut by_version: HashMap<Arc<str>, u64> = HashMap::new();
        for heard in
            self.0.lock().values().filter(|heard| heard.ms.saturating_add(HEARD_FOR_MS) > now_ms)
        {
            *by_version.entry(Arc::clone(&heard.version)).or_default() += 1;
        }
        let mut all: Vec<(Arc<str>, u64)> = by_version.into_iter().collect();
        all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        let mut told = BTreeMap::new();
        for (place, (version, nodes)) in all.into_iter().enumerate() {
            let name = if place < VERSIONS_TOLD_MAX { &*version } else { OTHER };
            *told.entry(name.to_owned()).or_default() += nodes;
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::Stamp;

    const DAY: u64 = HEARD_FOR_MS;

    fn commit(node: u64, ms: u64, version: Option<&[u8]>) -> Commit {
        let stamp = Stamp { ms, counter: 0, node: NodeId(node) };
        let extensions = version.map(|version| (TAG, version.to_vec())).into_iter().collect();
        let (packs, blobs, changes) = (Vec::new(), Vec::new(), Vec::new());
        let (incarnation, sequence) = (1, 0);
        Commit { stamp, node: stamp.node, incarnation, sequence, packs, blobs, changes, extensions }
    }

    fn told(versions: &Versions, now_ms: u64) -> Vec<(String, u64)> {
        versions.count(now_ms).into_iter().collect()
    }

    #[test]
    fn nodes_are_counted_by_their_latest_version() {
        let versions = Versions::default();
        versions.note(&commit(1, DAY, Some(b"0.1.0")));
        versions.note(&commit(2, DAY, Some(b"0.1.0")));
        versions.note(&commit(2, DAY + 5, Some(b"0.2.0-rc.1")));
        versions.note(&commit(2, DAY + 1, Some(b"0.1.0")));
        for (node, bad) in [None, Some(&b""[..]), Some(b"\xff"), Some(b"1 <b>"), Some(&[b'1'; 33])]
            .into_iter()
            .enumerate()
        {
            versions.note(&commit(10 + node as u64, DAY, bad));
        }
        let all = [("0.1.0", 1), ("0.2.0-rc.1", 1), ("unknown", 5)];
        assert_eq!(told(&versions, DAY + 9), all.map(|(name, nodes)| (name.to_owned(), nodes)));
        assert_eq!(
            told(&versions, 2 * DAY),
            [("0.2.0-rc.1".to_owned(), 1)],
            "the other nodes are silent"
        );
    }

    #[test]
    fn there_are_bounds() {
        let versions = Versions::default();
        for node in 0..NODES_MAX as u64 + 50 {
            let version = format!("{}.0", node % 40);
            versions.note(&commit(node, DAY + node, Some(version.as_bytes())));
        }
        assert_eq!(versions.0.lock().len(), NODES_MAX);
        assert!(!versions.0.lock().contains_key(&NodeId(49)));
        let told = versions.count(DAY);
        assert_eq!((told.len(), told.values().sum::<u64>()), (17, NODES_MAX as u64));
        assert_eq!(told["other"], 24 * 250);
    }
}
