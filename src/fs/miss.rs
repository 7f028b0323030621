//! Misses: one log line each, at level `debug`, with the name and the reason.
//!
//! Owns the reasons. Must never cost anything while the level `debug` is off: a compile cache misses all day.

use hearthfs_mount::Ino;
use tracing::Level;

use super::filesystem::Filesystem;
use super::lookup::seen_in;
use crate::digest::Digest;
use crate::error::Error;
use crate::name::TreePath;

impl Filesystem {
    /// Says that a name was asked for and is not there. Must be called without the lock of the state.
    pub(super) fn say_miss(&self, path: &TreePath) {
        if !tracing::enabled!(Level::DEBUG) {
            return;
        }
        let rooms = &self.0.rooms;
        let ledger = &rooms.ledger;
        let reason = ledger.read(|fold| match seen_in(fold, path) {
            None if fold.register(path).is_some() => "it was removed",
            None => "no node has it",
            Some(seen) if ledger.hidden(&seen.entry) => "its bytes are lost",
            Some(seen) => {
                let changed_ms = seen.stamp.map(|_| seen.changed_ms);
                match ledger.living_left(fold, path, &seen.entry, changed_ms) {
                    None => "it is past its age",
                    Some(_) => "it is not for this caller",
                }
            }
        });
        // What another node has may be missing here.
        let stale = !rooms.freshness.ready();
        tracing::debug!(name = %path, reason, stale, "miss");
    }

    /// Says that the bytes of an entry could not be had; `ino` is the inode that was to be opened, if there is one.
    pub(super) fn say_unfetched(&self, ino: Option<Ino>, digest: &Digest, error: &Error) {
        if !tracing::enabled!(Level::DEBUG) {
            return;
        }
        let path = ino.and_then(|ino| {
            let state = self.0.state.lock();
            let inode = state.names.inode(ino)?;
            let spot = inode.places.first().or(inode.last.as_ref())?.clone();
            state.names.path_of(&spot)
        });
        let name = path.map(|path| path.to_string()).unwrap_or_default();
        tracing::debug!(name, %digest, reason = error.chain(), "miss");
    }
}
