//! How long entries live, as declared by the store and configured on this node.
//!
//! Owns what the format object declares and the age that applies where the two differ. Must never
//! lengthen a life for a reader: it would serve what others delete. Must never shorten one for a
//! deleter unless it was told to: others still serve the object.

use std::time::Duration;

use parking_lot::Mutex;

use super::keys;
use crate::config::{RemoteUrl, format_age};

/// What a store declares about how long its entries live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Declared {
    /// Nothing that we know: it has not been asked yet, or an older version made it.
    #[default]
    Unknown,
    /// For so long after their bytes were stored; `None` is for ever.
    Age(Option<Duration>),
}

impl Declared {
    /// Returns the age that applies to a node that is configured with `own` (`None` is for ever):
    /// the shorter of both.
    pub fn effective(self, own: Option<Duration>) -> Option<Duration> {
        match (self, own) {
            (Self::Age(Some(declared)), Some(own)) => Some(declared.min(own)),
            (Self::Age(Some(declared)), None) => Some(declared),
            (Self::Age(None) | Self::Unknown, own) => own,
        }
    }

    /// Returns for how long a node that is configured with `own` has to keep its records. It may
    /// show entries for a shorter time, but other nodes follow the declared age.
    pub fn kept(self, own: Option<Duration>) -> Option<Duration> {
        match self {
            Self::Age(declared) => declared,
            Self::Unknown => own,
        }
    }

    /// Returns the age after which objects are deleted for all nodes: what the store declares. `own`
    /// applies if the store declares nothing, and if the caller was told (`told`) to use a shorter one.
    pub fn deleting(self, own: Option<Duration>, told: bool) -> Option<Duration> {
        match self {
            Self::Age(declared) if !told || !is_shorter(own, declared) => declared,
            _ => own,
        }
    }

    /// Describes a difference between this node's `own` age and that of the store at `url`: what
    /// follows from it, and what to do. `None` if they agree or the store declares nothing.
    pub fn disagreement(self, own: Option<Duration>, url: &RemoteUrl) -> Option<String> {
        let Self::Age(declared) = self else { return None };
        (declared != own).then(|| {
            let (theirs, ours) = (format_age(declared), format_age(own));
            let counts = format_age(self.effective(own));
            format!(
                "{url} declares an expiry of {theirs} in its {}, and this node is configured with \
                 {ours}: {counts}, the shorter, applies here; set expiry.age = \"{theirs}\", or \
                 declare the other with `hearthfs lifecycle apply {url} --expiry {ours}`",
                keys::FORMAT
            )
        })
    }
}

/// Reports whether the one age is shorter than the other, where `None` is for ever.
pub fn is_shorter(one: Option<Duration>, other: Option<Duration>) -> bool {
    one.is_some_and(|one| other.is_none_or(|other| one < other))
}

/// The result of declaring an expiry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declaration {
    /// The store declared the same already.
    Same,
    /// There was no store; now there is one.
    Made,
    /// The store declared this before.
    Changed(Declared),
}

/// What the store and the node say about the expiry, as far as known.
#[derive(Debug)]
pub(super) struct Agreement {
    own: Option<Duration>,
    declared: Mutex<Declared>,
    /// What an earlier run learned; used until this run has asked.
    assumed: Mutex<Declared>,
}

impl Agreement {
    pub(super) fn new(own: Option<Duration>) -> Self {
        Self { own, declared: Mutex::default(), assumed: Mutex::default() }
    }

    pub(super) fn own(&self) -> Option<Duration> {
        self.own
    }

    pub(super) fn declared(&self) -> Declared {
        *self.declared.lock()
    }

    pub(super) fn assume(&self, declared: Declared) {
        *self.assumed.lock() = declared;
    }

    /// Returns what is declared, as far as this run or an earlier one knows.
    pub(super) fn known(&self) -> Declared {
        match self.declared() {
            Declared::Unknown => *self.assumed.lock(),
            declared @ Declared::Age(_) => declared,
        }
    }

    pub(super) fn effective(&self) -> Option<Duration> {
        self.known().effective(self.own)
    }

    pub(super) fn kept(&self) -> Option<Duration> {
        self.known().kept(self.own)
    }

    /// Records what the store declares; returns a warning once for each new value that needs one.
    pub(super) fn learn(&self, declared: Declared, url: &RemoteUrl) -> Option<String> {
        let before = std::mem::replace(&mut *self.declared.lock(), declared);
        // From now on this run knows, even if the store declares nothing.
        self.assume(Declared::Unknown);
        if before == declared { None } else { declared.disagreement(self.own, url) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    #[test]
    fn the_shorter_age_counts_and_never_is_the_longest() {
        let (short, long) = (Some(7 * DAY), Some(30 * DAY));
        for (declared, own, counts) in [
            (Declared::Unknown, short, short),
            (Declared::Unknown, None, None),
            (Declared::Age(None), short, short),
            (Declared::Age(None), None, None),
            (Declared::Age(short), None, short),
            (Declared::Age(short), long, short),
            (Declared::Age(long), short, short),
            (Declared::Age(long), long, long),
        ] {
            assert_eq!(declared.effective(own), counts, "{declared:?} {own:?}");
        }
        for (declared, own, kept) in [
            (Declared::Unknown, short, short),
            (Declared::Age(None), short, None),
            (Declared::Age(long), short, long),
            (Declared::Age(short), long, short),
        ] {
            assert_eq!(declared.kept(own), kept, "{declared:?} {own:?}");
        }
    }

    #[test]
    fn the_expiry_of_an_earlier_run_counts_until_this_one_asks() {
        let url: RemoteUrl = "s3://bkt/p".parse().expect("a good address");
        let agreement = Agreement::new(Some(30 * DAY));
        agreement.assume(Declared::Age(Some(7 * DAY)));
        assert_eq!(agreement.effective(), Some(7 * DAY));
        assert_eq!(agreement.declared(), Declared::Unknown);
        assert!(
            agreement.learn(Declared::Age(Some(7 * DAY)), &url).is_some(),
            "the difference is still reported"
        );
        assert_eq!(agreement.learn(Declared::Age(Some(30 * DAY)), &url), None);
        assert_eq!(agreement.effective(), Some(30 * DAY));
    }

    #[test]
    fn a_store_without_a_declaration_overrides_that_of_an_earlier_run() {
        let url: RemoteUrl = "s3://bkt/p".parse().expect("a good address");
        let agreement = Agreement::new(Some(30 * DAY));
        agreement.assume(Declared::Age(Some(7 * DAY)));
        assert_eq!(agreement.learn(Declared::Unknown, &url), None);
        assert_eq!(agreement.known(), Declared::Unknown);
        assert_eq!((agreement.effective(), agreement.kept()), (Some(30 * DAY), Some(30 * DAY)));
    }

    #[test]
    fn deletion_uses_the_declared_age() {
        let (short, long) = (Some(7 * DAY), Some(90 * DAY));
        for (declared, own, untold, told) in [
            (Declared::Unknown, short, short, short),
            (Declared::Unknown, None, None, None),
            (Declared::Age(long), short, long, short),
            (Declared::Age(None), short, None, short),
            (Declared::Age(short), long, short, short),
            (Declared::Age(short), None, short, short),
            (Declared::Age(short), short, short, short),
            (Declared::Age(None), None, None, None),
        ] {
            assert_eq!(declared.deleting(own, false), untold, "{declared:?} {own:?}");
            assert_eq!(declared.deleting(own, true), told, "{declared:?} {own:?}");
        }
    }

    #[test]
    fn a_difference_is_said_once_with_both_values() {
        let url: RemoteUrl = "s3://bkt/p".parse().expect("a good address");
        let agreement = Agreement::new(Some(30 * DAY));
        assert_eq!(agreement.learn(Declared::Unknown, &url), None);
        let said = agreement.learn(Declared::Age(Some(7 * DAY)), &url).expect("the ages differ");
        for part in ["s3://bkt/p", "expiry of 7d", "with 30d", "7d, the shorter", "lifecycle apply"]
        {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
        assert_eq!(agreement.learn(Declared::Age(Some(7 * DAY)), &url), None);
        assert_eq!(agreement.effective(), Some(7 * DAY));
        assert_eq!(agreement.learn(Declared::Age(Some(30 * DAY)), &url), None);
        let said = agreement.learn(Declared::Age(None), &url).expect("the ages differ");
        assert!(said.contains("expiry of never") && said.contains("30d, the shorter"), "{said}");
    }
}
