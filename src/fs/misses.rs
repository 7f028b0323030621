//! The recent misses, for a user that asks for the reason of one.
//!
//! Owns how many are remembered. Must never cost a miss more than the comparison with one name.
//! Must never grow with the number of lookups.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

use crate::name::TreePath;
use crate::namespace::Reason;

/// The most misses that are remembered.
const MISSES_MAX: usize = 1024;
/// The most of these for one user other than root when the memory is full (P14).
const OF_ONE_USER_MAX: usize = MISSES_MAX / 4 * 3;
/// The longest path that is remembered, in bytes.
const PATH_BYTES_MAX: usize = 1024;

/// One name that was looked up and is not there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Miss {
    pub(super) path: TreePath,
    pub(super) uid: u32,
    pub(super) reason: Reason,
    /// When it was last looked up, by the monotonic clock.
    pub(super) at: Duration,
    /// How many times in a row it was looked up.
    pub(super) times: u64,
}

/// The last misses.
#[derive(Debug, Default)]
pub(super) struct RecentMisses(Mutex<Ring>);

#[derive(Debug, Default)]
struct Ring {
    misses: VecDeque<Miss>,
    /// How many misses each user has.
    of_users: HashMap<u32, usize>,
}

impl Ring {
    /// Adds a miss in the place of another one if all are taken. A user that has its full share loses
    /// its own oldest miss.
    fn add(&mut self, miss: Miss) {
        let gone = if self.misses.len() < MISSES_MAX { None } else { self.drop_for(miss.uid) };
        if gone != Some(miss.uid) {
            *self.of_users.entry(miss.uid).or_default() += 1;
            if let Some(uid) = gone
                && let Some(left) = self.of_users.get_mut(&uid)
            {
                *left -= 1;
                if *left == 0 {
                    self.of_users.remove(&uid);
                }
            }
        }
        self.misses.push_back(miss);
    }

    /// Drops the miss that makes room for one of a user; returns which user had it.
    fn drop_for(&mut self, uid: u32) -> Option<u32> {
        let own = uid != 0 && self.of_users.get(&uid).is_some_and(|has| *has >= OF_ONE_USER_MAX);
        // A user that has its full share has at least one miss.
        let at = if own { self.misses.iter().position(|miss| miss.uid == uid)? } else { 0 };
        self.misses.remove(at).map(|miss| miss.uid)
    }
}

impl RecentMisses {
    /// Remembers a miss; the oldest ones are dropped. Very long paths are left out, because to show
    /// a miss the rights of each directory on the way are checked.
    pub(super) fn note(&self, path: TreePath, uid: u32, reason: Reason, at: Duration) {
        if path.as_bytes().len() > PATH_BYTES_MAX {
            return;
        }
        let mut ring = self.0.lock();
        // Repeated lookups of one name are one miss.
        if let Some(last) = ring.misses.back_mut()
            && (last.uid, last.reason) == (uid, reason)
            && last.path == path
        {
            (last.at, last.times) = (at, last.times + 1);
            return;
        }
        ring.add(Miss { path, uid, reason, at, times: 1 });
    }

    /// Returns all misses that `wanted` accepts, the last one first.
    pub(super) fn those(&self, wanted: impl Fn(&Miss) -> bool) -> Vec<Miss> {
        let ring = self.0.lock();
        ring.misses.iter().rev().filter(|miss| wanted(miss)).cloned().collect()
    }

    /// Returns the last miss that `wanted` accepts.
    pub(super) fn last(&self, wanted: impl Fn(&Miss) -> bool) -> Option<Miss> {
        let ring = self.0.lock();
        ring.misses.iter().rev().find(|miss| wanted(miss)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(name: &str) -> TreePath {
        TreePath::root().join(name.as_bytes()).unwrap()
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_last_misses_come_first_and_repetitions_are_one() {
        let misses = RecentMisses::default();
        misses.note(path("a"), 1, Reason::Never, at(1));
        misses.note(path("b"), 2, Reason::Removed, at(2));
        misses.note(path("b"), 2, Reason::Removed, at(3));
        misses.note(path("b"), 1, Reason::Removed, at(4));
        let all = misses.those(|_| true);
        let told: Vec<_> = all.iter().map(|miss| (miss.uid, miss.at, miss.times)).collect();
        assert_eq!(told, [(1, at(4), 1), (2, at(3), 2), (1, at(1), 1)]);
        assert_eq!(misses.those(|miss| miss.uid == 2).len(), 1);
        assert_eq!(misses.last(|miss| miss.path == path("a")).expect("a miss").at, at(1));
        assert_eq!(misses.last(|miss| miss.path == path("c")), None);
    }

    /// P14: a user with many misses leaves a quarter of the memory to the others.
    #[test]
    fn one_user_does_not_push_out_the_others() {
        let misses = RecentMisses::default();
        for number in 0..MISSES_MAX / 4 {
            misses.note(path(&format!("of-others-{number}")), 2, Reason::Never, at(1));
        }
        for number in 0..3 * MISSES_MAX {
            misses.note(path(&number.to_string()), 1, Reason::Never, at(2));
        }
        assert_eq!(misses.those(|miss| miss.uid == 2).len(), MISSES_MAX / 4);
        assert_eq!(misses.those(|miss| miss.uid == 1).len(), OF_ONE_USER_MAX);
        let last = misses.last(|_| true).expect("a miss");
        assert_eq!(last.path, path(&(3 * MISSES_MAX - 1).to_string()));
        for number in 0..MISSES_MAX {
            misses.note(path(&number.to_string()), 0, Reason::Never, at(3));
        }
        assert_eq!(misses.0.lock().of_users, HashMap::from([(0, MISSES_MAX)]));
    }

    /// P13: however many lookups miss, only a few of them are remembered.
    #[test]
    fn memory_is_bounded() {
        let misses = RecentMisses::default();
        for number in 0..3 * MISSES_MAX {
            misses.note(path(&number.to_string()), 1, Reason::Never, at(1));
        }
        assert_eq!(misses.those(|_| true).len(), MISSES_MAX);
        assert_eq!(misses.0.lock().of_users, HashMap::from([(1, MISSES_MAX)]));
        let deep = (0..5).fold(TreePath::root(), |dir, _| dir.join(&[b'x'; 250]).unwrap());
        misses.note(deep.clone(), 1, Reason::Never, at(2));
        assert_eq!(misses.last(|miss| miss.path == deep), None);
    }
}
