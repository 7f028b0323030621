//! What the file system notes of opens and publishes: for the figures by client, for `top` and for
//! recordings.
//!
//! Owns when something counts. Must never keep counts of its own: `worth`, `busy` and `opens` do.

use std::time::Duration;

use hearthfs_mount::Caller;

use super::filesystem::Filesystem;
use super::seen::Seen;
use super::who::Who;
use super::worth::Made;
use crate::digest::Digest;
use crate::metrics::Figures;
use crate::name::TreePath;
use crate::namespace::{Class, Counted, Entry, FileKind, Role, is_edition};

/// Returns the key of the unit that an entry belongs to, or of the entry itself if it belongs to
/// none.
fn key_of<'p>(class: &Class<'p>, path: &'p TreePath) -> &'p [u8] {
    match class.kind {
        FileKind::Unit(part) => part.key.prefix,
        _ => path.as_bytes(),
    }
}

/// Reports whether programs read an index before the entry.
fn has_index(class: &Class<'_>) -> bool {
    matches!(class.kind, FileKind::Unit(part) if !part.is_entry)
}

impl Filesystem {
    /// Returns the figures of this node, with those of earlier runs.
    pub fn figures(&self) -> Figures {
        self.0.worth.read()
    }

    /// Saves the figures for the next run. Blocks.
    pub fn keep_figures(&self) {
        self.0.worth.forget_ended();
        self.0.rooms.figures.keep(self.figures());
    }

    /// Leaves the process of a caller out of the figures. The caller must still wait for its
    /// answer.
    pub(super) fn leave_out(&self, caller: &Caller) {
        let who = self.0.callers.who(caller);
        if let (Who::Process(process), Some(watched)) = (who, self.0.callers.watch(who)) {
            self.0.worth.leave_out(process, watched);
        }
    }

    /// Notes a failed lookup. Must be called without the lock of the state.
    pub(super) fn note_asked(&self, caller: &Caller, path: &TreePath) {
        let class = self.0.rules.profiles.classify(path);
        if class.counted.is_some() {
            let who = self.0.callers.who(caller);
            self.0.worth.asked(who, key_of(&class, path), self.0.rooms.clock.mono());
        }
    }

    /// Notes that a reader opens a member of a unit. Returns the client that counts it.
    pub(super) fn note_reading(
        &self,
        who: Who,
        class: &Class<'_>,
        path: &TreePath,
    ) -> Option<usize> {
        let Counted { client, role } = class.counted?;
        match role {
            Role::Above => return None,
            Role::Index => {
                self.0.worth.asked(who, key_of(class, path), self.0.rooms.clock.mono());
                return None;
            }
            Role::Entry if has_index(class) => {
                self.0.worth.took(who, key_of(class, path), Duration::ZERO);
            }
            Role::Entry => {}
        }
        (!self.0.worth.is_left_out(who)).then_some(client)
    }

    /// Counts an entry that was opened. `blob` is the blob that was opened for it, unless that was
    /// open already.
    pub(super) fn note_served(&self, client: Option<usize>, blob: Option<&Digest>, took_ms: u32) {
        if let Some(client) = client {
            let fetched = blob.is_some_and(|digest| self.0.rooms.blobs.take_fetched(digest));
            self.0.worth.served(client, fetched, took_ms);
        }
    }

    /// Returns what the publish of a content under a name means for the figures; `seen` is what the
    /// name has until then. Sets how long the content took.
    pub(super) fn made_at(
        &self,
        who: impl FnOnce() -> Who,
        path: &TreePath,
        seen: Option<&Entry>,
        entry: &mut Entry,
    ) -> Option<Made> {
        let (digest, size) = entry.content()?;
        if let Some(seen) = seen
            && seen.content() == Some((digest, size))
        {
            entry.attrs.took_ms = seen.attrs.took_ms;
            return None;
        }
        entry.attrs.took_ms = 0;
        if size == 0 || is_edition(path) {
            return None;
        }
        let class = self.0.rules.profiles.classify(path);
        let Counted { client, role: Role::Entry } = class.counted? else { return None };
        let (who, now) = (who(), self.0.rooms.clock.mono());
        if self.0.worth.is_left_out(who) {
            return None;
        }
        entry.attrs.took_ms = self.0.worth.took(who, key_of(&class, path), now);
        Some(Made { client, took_ms: entry.attrs.took_ms })
    }

    /// Counts entries that were published.
    pub(super) fn note_made(&self, all: impl IntoIterator<Item = Made>) {
        for made in all {
            self.0.worth.compiled(made.client);
        }
    }

    /// Like [`Filesystem::made_at`], for a content that moves. A content that was an entry before
    /// is not new.
    pub(super) fn made_by_move(
        &self,
        caller: &Caller,
        from: &TreePath,
        to: &TreePath,
        seen: Option<&Seen>,
        entry: &mut Entry,
    ) -> Option<Made> {
        let was = self.0.rules.profiles.classify(from).counted;
        if was.is_some_and(|counted| counted.role == Role::Entry) {
            return None;
        }
        let seen = seen.map(|seen| &seen.entry);
        self.made_at(|| self.0.callers.who(caller), to, seen, entry)
    }

    /// Notes that an entry was opened, for `top` and for recordings. `path` is called only if one of them is on.
    pub(super) fn note_open(&self, path: impl FnOnce() -> Option<TreePath>) {
        let now = || self.0.rooms.clock.mono();
        let (is_watched, is_recorded) =
            (self.0.observed.busy.is_watched(now), self.0.observed.opens.is_on());
        if !is_watched && !is_recorded {
            return;
        }
        let Some(path) = path() else { return };
        if is_recorded {
            self.0.observed.opens.note(&path, now());
        }
        if is_watched {
            self.0.observed.busy.hit(&self.0.rules.profiles, path);
        }
    }
}
