//! What a live file was before its writers wrote to it.

use super::Mark;
use crate::fs::inode::Published;

/// How a live file begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::fs) enum BeginsAs {
    /// With the bytes of the version before it, or with none. It is published only if something is
    /// written.
    Copy,
    /// Made by `O_CREAT` or `O_TRUNC`: it is published even if nothing is written.
    New,
    /// The same, and it has emptied a version that had content.
    Emptied,
}

/// What a live file was before its writers wrote anything to it.
#[derive(Debug)]
pub(in crate::fs) struct Baseline {
    begins: BeginsAs,
    mark: Mark,
    /// The version whose bytes it has, as long as nothing is written.
    same_as: Option<Published>,
}

impl Baseline {
    pub(in crate::fs) fn new(begins: BeginsAs, mark: Mark, same_as: Option<Published>) -> Self {
        Self { begins, mark, same_as }
    }

    /// Returns what its file looked like.
    pub(in crate::fs) fn mark(&self) -> Mark {
        self.mark
    }

    /// Sets what its file looks like without bytes that no close has published.
    pub(in crate::fs) fn set_mark(&mut self, mark: Mark) {
        self.mark = mark;
    }

    /// Reports whether it is published even if nothing is written.
    pub(in crate::fs) fn is_fresh(&self) -> bool {
        self.begins != BeginsAs::Copy
    }

    /// Makes it one that is published even if nothing is written.
    pub(in crate::fs) fn freshen(&mut self) {
        if self.begins == BeginsAs::Copy {
            self.begins = BeginsAs::New;
        }
    }

    /// Reports whether it replaces a version that had content, and began empty.
    pub(in crate::fs) fn empties(&self) -> bool {
        self.begins == BeginsAs::Emptied
    }

    /// Returns the version whose bytes it has, as long as nothing is written.
    pub(in crate::fs) fn same_as(&self) -> Option<&Published> {
        self.same_as.as_ref()
    }

    /// Takes that version, when the live file ends.
    pub(in crate::fs) fn take_same_as(&mut self) -> Option<Published> {
        self.same_as.take()
    }
}
