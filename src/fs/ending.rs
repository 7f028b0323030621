//! Closed files that wait for their end: no handle writes them any more, and they are not blobs yet.
//!
//! Owns the list of them. A RELEASE leaves its file here, because ending it at once would delay the
//! next request of the program that has just closed it; a moment later all that wait are ended
//! together. Whatever needs one of them earlier ends it itself. Must never hold a file whose
//! published bytes may still change, or that takes long to end.
//!
//! Keeps P13 bounded.

use std::time::Duration;

use super::filesystem::Filesystem;
use super::inode::LiveId;
use super::live::Live;
use super::state::State;
use crate::clock;
use crate::digest::Digest;

/// How long closed files wait. A program that creates files one after the other closes some dozens
/// of them in this time.
const END_AFTER: Duration = Duration::from_millis(5);
/// The most files that wait. Each has a descriptor and a file in staging. A RELEASE that finds so
/// many ends its file itself.
const LEFT_MAX: usize = 64;

impl State {
    /// Leaves a file that no handle writes any more to [`Filesystem::end_in_background`]. Returns
    /// false if too many wait, if its published bytes may still change, or if its blob has to
    /// survive a power loss.
    pub(super) fn leave(&mut self, id: LiveId) -> bool {
        if self.left.len() >= LEFT_MAX || !self.rests(id) {
            return false;
        }
        let Some(live) = self.lives.get_mut(id).filter(|live| !live.synced) else { return false };
        if let Some(version) = live.version_mut() {
            version.kept = None;
            version.released = true;
        }
        // Those that wait for the release can go on.
        live.wake();
        self.left.push_back(id);
        true
    }

    /// Reports whether only the end of a live file is left: all have closed and released it, and
    /// nothing can change its published bytes.
    pub(super) fn rests(&self, id: LiveId) -> bool {
        let is_at_rest = self.lives.get(id).is_some_and(Live::is_at_rest);
        is_at_rest && self.is_idle(id)
    }
}

impl Filesystem {
    /// Ends a closed file now if it only waits for that. Returns whether the file has ended.
    pub(super) fn finish_left(&self, id: LiveId) -> bool {
        let rests = self.0.state.lock().rests(id);
        if rests {
            // The error is logged, and there will be another attempt.
            self.end(id).ok();
        }
        self.0.state.lock().lives.get(id).is_none()
    }

    /// Ends a closed file with this content now. Returns whether one has ended.
    pub(super) fn finish_lodged(&self, digest: &Digest) -> bool {
        if !self.0.rooms.blobs.is_lodged(digest) {
            return false;
        }
        let id = {
            let state = self.0.state.lock();
            let mut all = state.lives.iter();
            all.find(|(_, live)| {
                live.version().is_some_and(|version| version.released && version.digest == *digest)
            })
            .map(|(id, _)| id)
        };
        id.is_some_and(|id| self.finish_left(id))
    }

    /// Ends the files that wait now. Returns whether there were any. Blocks.
    pub(super) fn finish_all_left(&self) -> bool {
        let all = self.0.state.lock().left.len();
        for _ in 0..all {
            // One at a time, so that several threads can share the work.
            let Some(id) = self.0.state.lock().left.pop_front() else { break };
            self.finish_left(id);
            // Where all processors are busy, a thread that answers a program goes first.
            std::thread::yield_now();
        }
        all > 0
    }

    /// Closes what is kept open although no program needs it now, because no descriptor is left:
    /// files that wait for their end, and files that may be opened again. Returns whether there
    /// were any. Blocks.
    pub(crate) fn close_unneeded(&self) -> bool {
        let ended = self.finish_all_left();
        self.0.recent.clear() || ended
    }

    /// Ends the files that wait, for ever.
    pub(super) async fn end_in_background(&self) {
        loop {
            self.0.ended.notified().await;
            clock::sleep(END_AFTER).await;
            let this = self.clone();
            crate::task::blocking(move || this.finish_all_left()).await;
        }
    }
}
