//! Limits that no user can use up alone.
//!
//! Owns the counts of one kind of thing that the daemon holds for its callers, in total and per
//! user. Must never let a user other than root take the last quarter: an unprivileged user must not
//! be able to keep others from working.
//!
//! Keeps P13 bounded and P14 isolation.

use crate::hashing::FastMap;

/// How much of one kind of thing may be held, and how much is held.
#[derive(Debug)]
pub(super) struct Shares {
    max: u64,
    all: u64,
    of_user: FastMap<u32, u64>,
}

impl Shares {
    /// Allows `max` in total, and three quarters of that to each user other than root.
    pub(super) fn new(max: u64) -> Self {
        Self { max, all: 0, of_user: FastMap::default() }
    }

    /// Counts `count` more for a user, if that is allowed, and returns whether it is.
    #[must_use]
    pub(super) fn take(&mut self, user: u32, count: u64) -> bool {
        let has = self.of_user.get(&user).copied().unwrap_or(0);
        let allowed = self.all + count <= self.max && has + count <= self.max_of(user);
        if allowed && count > 0 {
            self.all += count;
            self.of_user.insert(user, has + count);
        }
        allowed
    }

    fn max_of(&self, user: u32) -> u64 {
        if user == 0 { self.max } else { self.max / 4 * 3 }
    }

    /// Reports whether a user may have one more.
    pub(super) fn has_room(&self, user: u32) -> bool {
        let has = self.of_user.get(&user).copied().unwrap_or(0);
        self.all < self.max && has < self.max_of(user)
    }

    /// Counts `count` more for a user, even beyond the limits, for things that were allowed before
    /// they were made.
    pub(super) fn add(&mut self, user: u32, count: u64) {
        self.all += count;
        *self.of_user.entry(user).or_default() += count;
    }

    /// Counts `count` less for a user.
    pub(super) fn give_back(&mut self, user: u32, count: u64) {
        self.all = self.all.saturating_sub(count);
        if let Some(has) = self.of_user.get_mut(&user) {
            *has = has.saturating_sub(count);
            if *has == 0 {
                self.of_user.remove(&user);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.all == 0 && self.of_user.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_user_leaves_a_quarter_to_the_others() {
        let mut shares = Shares::new(8);
        assert!((0..6).all(|_| shares.take(1, 1)));
        assert!(!shares.take(1, 1) && !shares.has_room(1));
        assert!(shares.has_room(2) && shares.take(2, 2));
        assert!(!shares.take(3, 1) && !shares.has_room(3), "all shares are taken");
        shares.give_back(2, 1);
        assert!(!shares.take(1, 1), "the others keep their quarter");
        assert!(shares.take(3, 1));
        for (user, count) in [(1, 6), (2, 1), (3, 1)] {
            shares.give_back(user, count);
        }
        assert!(shares.is_empty());
    }

    #[test]
    fn root_may_have_all() {
        let mut shares = Shares::new(8);
        assert!(shares.take(0, 8) && !shares.has_room(0) && !shares.take(1, 1));
    }

    #[test]
    fn what_is_refused_is_not_counted() {
        let mut shares = Shares::new(8);
        assert!(!shares.take(1, 7));
        assert!(shares.is_empty());
        shares.add(1, 7);
        assert!(!shares.has_room(1), "`add` counts beyond the limit");
    }
}
