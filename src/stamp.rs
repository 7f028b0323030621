//! Stamps: the hybrid logical clock that orders every change of every node.
//!
//! Owns the total order. Must never read a clock itself: callers pass the time.

use std::fmt;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// How far ahead of our own clock a remote stamp may push us. A node whose clock is further ahead
/// must not drag the clocks of the whole cluster along.
pub const MAX_AHEAD_MS: u64 = 24 * 60 * 60 * 1000;

/// The identity of one cache directory, random, made when the directory is made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A point in the total order of changes: milliseconds, then counter, then node.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, Default, Debug,
)]
pub struct Stamp {
    /// Milliseconds since the Unix epoch, as corrected by the store's time.
    pub ms: u64,
    /// Distinguishes stamps of one millisecond.
    pub counter: u32,
    /// The node that made the stamp; distinguishes stamps of two nodes.
    pub node: NodeId,
}

impl Stamp {
    /// Returns the text form that sorts as the stamps do: milliseconds, counter, node, in hexadecimal.
    pub fn sortable(&self) -> String {
        format!("{:012x}{:08x}-{}", self.ms, self.counter, self.node)
    }

    /// Parses what `sortable` wrote; `None` for anything else.
    pub fn parse_sortable(text: &str) -> Option<Self> {
        let (time, node) = text.split_once('-')?;
        if time.len() != 20 || node.len() != 16 || !text.is_ascii() {
            return None;
        }
        Some(Self {
            ms: u64::from_str_radix(&time[..12], 16).ok()?,
            counter: u32::from_str_radix(&time[12..], 16).ok()?,
            node: NodeId(u64::from_str_radix(node, 16).ok()?),
        })
    }
}

/// Makes this node's stamps; each is greater than all that it made or observed before.
#[derive(Debug)]
pub struct StampClock {
    node: NodeId,
    last: Mutex<(u64, u32)>,
}

impl StampClock {
    /// Starts a clock for `node` that has made no stamp yet.
    pub fn new(node: NodeId) -> Self {
        Self { node, last: Mutex::new((0, 0)) }
    }

    /// Returns the node for which stamps are made.
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Makes the next stamp at `now_ms`.
    pub fn next(&self, now_ms: u64) -> Stamp {
        let mut last = self.last.lock();
        *last = if now_ms > last.0 {
            (now_ms, 0)
        } else if last.1 == u32::MAX {
            (last.0 + 1, 0)
        } else {
            (last.0, last.1 + 1)
        };
        Stamp { ms: last.0, counter: last.1, node: self.node }
    }

    /// Reports whether the last stamp was made while our clock was far ahead of `now_ms`.
    pub fn is_far_ahead(&self, now_ms: u64) -> bool {
        self.last.lock().0 > now_ms.saturating_add(MAX_AHEAD_MS)
    }

    /// Forgets the stamps made while our clock was far ahead of `now_ms`. Later stamps come after
    /// `latest`, but not after the forgotten ones.
    pub fn come_back(&self, now_ms: u64, latest: Option<Stamp>) {
        let mut last = self.last.lock();
        if last.0 > now_ms.saturating_add(MAX_AHEAD_MS) {
            *last = latest.map_or((0, 0), |stamp| (stamp.ms, stamp.counter));
        }
    }

    /// Takes a stamp of another node into account, so that ours come after what we have seen.
    ///
    /// Ignores a stamp more than [`MAX_AHEAD_MS`] ahead of `now_ms`; returns false then.
    pub fn observe(&self, seen: Stamp, now_ms: u64) -> bool {
        if seen.ms > now_ms.saturating_add(MAX_AHEAD_MS) {
            return false;
        }
        let mut last = self.last.lock();
        *last = (*last).max((seen.ms, seen.counter));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_only_grow() {
        let clock = StampClock::new(NodeId(7));
        let a = clock.next(1000);
        let b = clock.next(1000);
        let c = clock.next(900);
        assert!(a < b && b < c);
        assert!(clock.observe(Stamp { ms: 5000, counter: 3, node: NodeId(9) }, 1000));
        assert!(clock.next(1000) > Stamp { ms: 5000, counter: 3, node: NodeId(0) });
    }

    #[test]
    fn a_clock_far_ahead_is_not_followed() {
        let clock = StampClock::new(NodeId(7));
        let wild = Stamp { ms: 1000 + MAX_AHEAD_MS + 1, counter: 0, node: NodeId(9) };
        assert!(!clock.observe(wild, 1000));
        assert_eq!(clock.next(1000).ms, 1000);
    }

    #[test]
    fn a_clock_that_was_far_ahead_comes_back() {
        let clock = StampClock::new(NodeId(7));
        let latest = Stamp { ms: 2000, counter: 4, node: NodeId(9) };
        clock.next(1000);
        clock.come_back(1000, None);
        assert_eq!(
            (clock.next(1000).ms, clock.next(1000).counter),
            (1000, 2),
            "the clock was not ahead"
        );
        clock.next(MAX_AHEAD_MS * 3);
        assert!(clock.next(1000).ms > MAX_AHEAD_MS);
        clock.come_back(1000, Some(latest));
        let next = clock.next(1000);
        assert!(next > latest && next.ms == 2000);
    }

    #[test]
    fn sortable_text_sorts_as_stamps_do() {
        let make = |ms, counter, node| Stamp { ms, counter, node: NodeId(node) };
        let mut stamps = vec![
            make(1 << 40, 0, 3),
            make(5, 9, 1),
            make(5, 10, 1),
            make(5, 10, 0),
            make(255, 0, 9),
        ];
        let mut texts: Vec<_> = stamps.iter().map(Stamp::sortable).collect();
        stamps.sort();
        texts.sort();
        let back: Vec<_> = texts.iter().filter_map(|t| Stamp::parse_sortable(t)).collect();
        assert_eq!(back, stamps);
        assert_eq!(Stamp::parse_sortable("nonsense"), None);
    }
}
