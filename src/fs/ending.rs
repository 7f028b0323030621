//! Closed files that wait for their end: no handle writes them any more, and they are not blobs yet.
//!
//! Owns the list of them. A RELEASE leaves its file here, because ending it at once would delay the
//! next request of the program that has just closed it; a moment later all that wait are ended
//! together. Whatever needs one of them earlier ends it itself. Must never hold a file whose
//! published bytes may still change.
//!
//! Keeps P13 bounded.

use std::time::Duration;

use super::filesystem::Filesystem;
use super::inode::LiveId;
use super::live::Live;
use super::state::State;
use crate::clock;

/// How long closed files wait. A program that creates files one after the other closes some dozens
/// of them in this time.
const END_AFTER: Duration = Duration::from_millis(5);
/// The most files that a RELEASE leaves. Each has a descriptor and a file in staging. A RELEASE that
/// finds more ends its file itself.
const LEFT_MAX: usize = 64;

impl State {
    /// Leaves a file that no handle writes any more to [`Filesystem::end_in_background`]. Returns
    /// false if too many wait, if its published bytes may still change, or if its blob has to
    /// survive a power loss.
    pub(super) fn leave(&mut self, id: LiveId) -> bool {
        if self.ending.len() >= LEFT_MAX || !self.rests(id) {
            return false;
        }
        let Some(live) = self.lives.get_mut(id).filter(|live| !live.synced) else { return false };
        if let Some(version) = live.version_mut() {
            version.kept = None;
            version.released = true;
        }
        self.ending.push(id);
        true
    }

    /// Reports whether only the end of a live file is left: all have closed and released it, and
    /// nothing can change its published bytes.
    fn rests(&self, id: LiveId) -> bool {
        self.is_idle(id) && self.lives.get(id).is_some_and(Live::is_at_rest)
    }
}

impl Filesystem {
    /// Ends a live file soon. The caller may have to answer others first.
    pub(super) fn finish_soon(&self, id: LiveId) {
        self.0.state.lock().ending.push(id);
        self.0.ended.notify_one();
    }

    /// Ends a closed file now if it only waits for that. Returns whether it did.
    pub(super) fn finish_left(&self, id: LiveId) -> bool {
        let rests = self.0.state.lock().rests(id);
        if rests {
            self.finish_here(id);
        }
        rests
    }

    /// Ends all files that wait. Returns whether there were any. Blocks.
    pub(super) fn finish_all_left(&self) -> bool {
        let all = std::mem::take(&mut self.0.state.lock().ending);
        for id in &all {
            self.finish_here(*id);
            // Where all processors are busy, a thread that answers a program goes first.
            std::thread::yield_now();
        }
        !all.is_empty()
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
