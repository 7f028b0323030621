//! Misses as they happen: each is remembered for a while and logged in one line at level `debug`.
//!
//! Owns the reasons that are known at that moment. Must never ask the store, because a compile
//! cache misses all day.

use hearthfs_mount::{Caller, Errno, Ino};
use tracing::Level;

use super::filesystem::Filesystem;
use super::seen::{Absent, seen_in};
use crate::digest::Digest;
use crate::error::{Error, Kind};
use crate::name::TreePath;
use crate::namespace::{Reason, is_edition};

/// Returns the text of a reason for the log.
fn said(reason: Reason) -> &'static str {
    match reason {
        Reason::Removed => "it was removed",
        Reason::Never | Reason::Unsure => "no node has it",
        Reason::Damaged | Reason::Evicted => "its bytes are lost",
        Reason::Expired => "it is past its age",
        _ => "this caller cannot have it",
    }
}

impl Filesystem {
    /// Notes that a name was looked up and does not exist. Must be called without the lock of the
    /// state.
    pub(super) fn note_miss(&self, caller: &Caller, path: TreePath, absent: Absent) {
        if is_edition(&path) {
            return;
        }
        self.note_asked(caller, &path);
        let rooms = &self.0.rooms;
        let reason = if absent.is_known { self.absence(&path) } else { Reason::Never };
        // Another node may have an entry that is missing here.
        let stale = reason == Reason::Never && !rooms.freshness.ready();
        if tracing::enabled!(Level::DEBUG) {
            tracing::debug!(name = %path, reason = said(reason), stale, "miss");
        }
        let reason = if stale { Reason::Unsure } else { reason };
        self.0.observed.misses.note(path, caller.uid, reason, rooms.clock.mono());
    }

    /// Returns why a name does not exist, as far as this node knows.
    fn absence(&self, path: &TreePath) -> Reason {
        let ledger = &self.0.rooms.ledger;
        let mut lost = None;
        let reason = ledger.read(|fold| {
            if !fold.knows(path) {
                return Reason::Never;
            }
            let Some(seen) = seen_in(fold, path) else {
                let removed = fold.register(path).is_some_and(|register| register.entry.is_none());
                return if removed { Reason::Removed } else { Reason::NoDirectory };
            };
            let changed_ms = seen.stamp.map(|_| seen.changed_ms);
            let content = seen.entry.content();
            match content.filter(|_| ledger.hidden(&seen.entry)) {
                Some((digest, _)) => {
                    lost = Some(digest);
                    Reason::Evicted
                }
                None if ledger.living_left(fold, path, &seen.entry, changed_ms).is_none() => {
                    Reason::Expired
                }
                None => Reason::Unknown,
            }
        });
        lost.map_or(reason, |digest| self.loss(&digest))
    }

    /// Returns why the bytes of a content are neither here nor at any known place. Must be called
    /// without the lock of the namespace.
    pub(super) fn loss(&self, digest: &Digest) -> Reason {
        if self.0.rules.shared && self.0.rooms.ledger.is_damaged(digest) {
            Reason::Damaged
        } else {
            Reason::Evicted
        }
    }

    /// Notes that the first file of a unit could not be opened because others of the unit are
    /// missing.
    pub(super) fn note_open_miss(&self, ino: Ino, caller: &Caller, errno: Errno) {
        if errno == Errno::ENOENT
            && let Some(path) = self.path_for_miss(ino)
        {
            self.0.observed.misses.note(
                path,
                caller.uid,
                Reason::Incomplete,
                self.0.rooms.clock.mono(),
            );
        }
    }

    /// Notes that the bytes of an entry are not available; `asked` is the inode of the open and its
    /// caller, if there is one.
    pub(super) fn note_unfetched(
        &self,
        asked: Option<(Ino, &Caller)>,
        digest: &Digest,
        error: &Error,
    ) {
        let path = asked.and_then(|(ino, _)| self.path_for_miss(ino));
        if tracing::enabled!(Level::DEBUG) {
            let name = path.as_ref().map(ToString::to_string).unwrap_or_default();
            tracing::debug!(name, %digest, reason = error.chain(), "miss");
        }
        let (Some(path), Some((_, caller))) = (path, asked) else { return };
        let reason = match error.kind() {
            Kind::NoSpace => Reason::NoRoom,
            Kind::NotFound | Kind::Corrupt => Reason::Damaged,
            _ => Reason::StoreDown,
        };
        self.0.observed.misses.note(path, caller.uid, reason, self.0.rooms.clock.mono());
    }

    fn path_for_miss(&self, ino: Ino) -> Option<TreePath> {
        let state = self.0.state.lock();
        let inode = state.names.inode(ino)?;
        let spot = inode.places.first().or(inode.last.as_ref())?.clone();
        state.names.path_of(&spot).filter(|path| !is_edition(path))
    }
}
