//! Writes to a live file through mappings.

use std::time::Duration;

/// What is known of the mappings of a live file.
#[derive(Debug, Default)]
pub(in crate::fs) struct MappedWrites {
    /// When something was last stored through a mapping, by the monotonic clock.
    stored: Option<Duration>,
    /// A handle that can be mapped for writing has the file itself. A mapping may outlive the
    /// handle, so the file never becomes a blob; a copy does.
    direct: bool,
}

impl MappedWrites {
    /// Notes that something was stored through a mapping, which the daemon sees.
    pub(in crate::fs) fn note_store(&mut self, now: Duration) {
        self.stored = Some(now);
    }

    /// Notes that a handle that can be mapped for writing has the file itself.
    pub(in crate::fs) fn note_direct(&mut self) {
        self.direct = true;
    }

    /// Returns when something was last stored that the daemon saw.
    pub(in crate::fs) fn stored(&self) -> Option<Duration> {
        self.stored
    }

    /// Reports whether a mapping may change the file itself, even after the last release.
    pub(in crate::fs) fn is_direct(&self) -> bool {
        self.direct
    }

    /// Reports whether something may have been written through a mapping.
    pub(in crate::fs) fn may_have_written(&self) -> bool {
        self.stored.is_some() || self.direct
    }
}
