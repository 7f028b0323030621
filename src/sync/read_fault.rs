//! Faults of reads: why a commit, a bundle or a checkpoint cannot be read.
//!
//! Owns this classification for follower, rebuild, bundler and `gc`. What to do about a fault is the
//! decision of each of them. Must never call an object gone or damaged because the store does not
//! answer.

use std::time::Duration;

use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::ErrorClass;

/// How often an object is read if it does not arrive whole.
const READ_TRIES: u32 = 3;
/// The pause between these attempts.
const READ_WAIT: Duration = Duration::from_millis(50);

/// Why an object of the log cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadFault {
    /// It is not in the store, or not any more.
    Gone,
    /// Its bytes are not those that were written.
    Damaged,
    /// It has a format that this version does not know.
    Newer,
    /// The store does not return it to this node.
    Refused,
    /// The store throttles, or does not answer.
    Passing,
    /// The fault is on this node.
    Ours,
}

impl ReadFault {
    /// Returns why a read has failed.
    pub(super) fn of(error: &Error) -> Self {
        match (error.kind(), ErrorClass::of(error.kind())) {
            (Kind::NotFound, _) => Self::Gone,
            (Kind::Invalid, _) => Self::Newer,
            (_, ErrorClass::Proof) => Self::Damaged,
            (_, ErrorClass::Refused) => Self::Refused,
            (_, ErrorClass::Passing) => Self::Passing,
            (_, ErrorClass::Ours) => Self::Ours,
        }
    }
}

/// Reads an object, and once more if it is damaged: it may have been a bad read.
pub(super) async fn read_again<T, F>(read: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    for _ in 1..READ_TRIES {
        match read().await {
            Err(error) if ReadFault::of(&error) == ReadFault::Damaged => {
                clock::sleep(READ_WAIT).await;
            }
            done => return done,
        }
    }
    read().await
}
