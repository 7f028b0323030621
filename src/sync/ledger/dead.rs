//! Dead contents: blobs on this node to which no path refers, here or in what other nodes know.
//!
//! Owns which of them are discarded. A version that was replaced before any other node could see it
//! goes after a minute: it is in no commit, so nothing can refer to it. Others go with the grace
//! time of the location. Must never discard a content that a path shows, that waits for the store,
//! or that is known to be in the store.
//!
//! Keeps P13 bounded.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Ledger, Ordered, PurgeMark};
use crate::digest::Digest;
use crate::namespace::Fold;
use crate::sync::times::LOG_GRACE;

/// How long a content waits that no other node can know. A blob may exist shortly before something
/// refers to it, as the small contents of a commit do that arrives, and this is much longer.
const NEVER_SENT_WAIT: Duration = Duration::from_mins(1);
/// The last use of a blob is known to the second, so a blob is examined this much later. Otherwise it
/// would seem to have been used too recently, and would stay until a purge.
const USED_STEP: Duration = Duration::from_secs(2);
/// The most of these contents that wait. A purge discards the others later.
const NEVER_SENT_MAX: usize = 100_000;

/// Contents that were never sent, and that no path had when their records were done.
#[derive(Debug, Default)]
pub(super) struct Dead {
    /// Each with the monotonic time at which it was added.
    waiting: VecDeque<(Digest, Duration)>,
}

impl Dead {
    /// Adds a content that no path has, and that was not sent.
    pub(super) fn note(&mut self, digest: Digest, now: Duration) {
        if self.waiting.len() < NEVER_SENT_MAX {
            self.waiting.push_back((digest, now));
        }
    }

    /// Takes the contents that have waited long enough.
    fn take(&mut self, now: Duration) -> Vec<Digest> {
        let waits =
            |(_, at): &(Digest, Duration)| now.saturating_sub(*at) <= NEVER_SENT_WAIT + USED_STEP;
        let ready = self.waiting.iter().position(waits).unwrap_or(self.waiting.len());
        let taken = self.waiting.drain(..ready).map(|(digest, _)| digest).collect();
        if self.waiting.len() < self.waiting.capacity() / 4 {
            self.waiting.shrink_to(self.waiting.len() * 2);
        }
        taken
    }
}

impl Ledger {
    /// Discards contents that were replaced before any other node could see them.
    pub(super) fn discard_never_sent(&self) {
        let ready = self.0.order.lock().dead.take(self.0.clock.mono());
        self.discard(ready, NEVER_SENT_WAIT);
    }

    /// Discards dead contents in one folder of blobs. Returns where to continue; `None` at the end.
    pub(super) fn purge_blobs(&self, folder: u8) -> Option<PurgeMark> {
        let blobs = &self.0.disk.blobs;
        // What the log has and this node does not know may refer to anything. And as long as there
        // are fewer blobs than contents in use, a search is not worth its time.
        if self.is_partial() || blobs.usage().blobs <= self.read(Fold::contents_in_use) {
            blobs.shrink();
            return None;
        }
        match blobs.in_folder(folder) {
            Ok(found) => self.discard(found, LOG_GRACE),
            Err(error) => tracing::debug!(error = %error.chain(), "no dead contents are discarded"),
        }
        if let Some(next) = folder.checked_add(1) {
            return Some(PurgeMark::Blobs(next));
        }
        blobs.shrink();
        None
    }

    /// Discards those of these contents that are dead and that were not used for some time.
    fn discard(&self, mut contents: Vec<Digest>, unused: Duration) {
        if contents.is_empty() {
            return;
        }
        {
            let order = self.0.order.lock();
            let fold = self.0.fold.read();
            contents.retain(|digest| self.is_dead(&order, &fold, digest));
        }
        // A file that gets one of them from now on has adopted it anew.
        let gone = contents.iter().filter(|digest| self.0.disk.blobs.discard(digest, unused));
        let count = gone.count();
        if count > 0 {
            tracing::debug!(count, "discarded contents that no file has");
        }
    }

    fn is_dead(&self, order: &Ordered, fold: &Fold, digest: &Digest) -> bool {
        !fold.uses(digest)
            && fold.stored_ms(digest).is_none()
            && !order.outbox.uses(digest)
            && !order.own.holds(digest)
            && !self.0.reliance.is_unsent(digest)
    }
}
