//! Checks that a published file is complete, where the profile of its name asks for that.
//!
//! Owns two answers: where the bytes of a version are, and which check its name asks for. The check
//! reads the bytes, so it runs before the turn to publish, with no lock held. The ledger keeps
//! incomplete content on this node. This module must never hold anything back itself.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::filesystem::Filesystem;
use super::inode::{DirEntryKey, LiveId, Source};
use super::state::State;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::local::{hash_file, is_whole};
use crate::namespace::{Check, Entry};

/// What was checked before something is put under a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Examined {
    /// The name asks for no check.
    Unasked,
    /// This content was checked; `None` where there was no file.
    Content(Option<(Digest, u64)>),
}

impl Examined {
    /// Reports whether no content other than this has to be checked.
    pub(super) fn is_of(self, content: Option<(Digest, u64)>) -> bool {
        matches!(self, Self::Unasked) || self == Self::Content(content)
    }
}

impl Filesystem {
    /// Returns the check that a name asks for. Without other nodes there is none, because nothing
    /// leaves this node.
    pub(super) fn check_at(&self, state: &State, spot: &DirEntryKey) -> Option<Check> {
        self.0.rooms.ledger.remote()?;
        let path = Self::known_path(state, spot)?;
        self.0.rules.profiles.classify(&path).check
    }

    /// Returns the check that a live file's name asks for.
    pub(super) fn check_of_live(&self, id: LiveId) -> Option<Check> {
        let state = self.0.state.lock();
        self.check_at(&state, state.lives.get(id)?.place()?)
    }

    /// Reports these bytes to the ledger if they are incomplete.
    pub(super) fn examine_bytes(&self, bytes: &[u8], digest: Digest, check: Check) -> Result<()> {
        let whole = is_whole(bytes, bytes.len() as u64, check);
        if !whole.map_err(cannot_look)? {
            self.0.rooms.ledger.note_torn(digest, check);
        }
        Ok(())
    }

    /// Reports the content of a file to the ledger if it is incomplete. The file may hold other
    /// bytes by now: its writer may have gone on, or a blob may be damaged. The verdict is about
    /// the content, wherever it is, so content that fails is digested first.
    pub(super) fn examine_file(
        &self,
        file: &File,
        (digest, size): (Digest, u64),
        check: Check,
    ) -> Result<()> {
        let whole = is_whole(file, size, check).map_err(cannot_look)?;
        if !whole && (size == 0 || hash_file(file, size).map_err(cannot_look)? == digest) {
            self.0.rooms.ledger.note_torn(digest, check);
        }
        Ok(())
    }

    /// Reports what a name leads to, if it is incomplete by the check that another name asks for.
    pub(super) fn examine_for(&self, from: &DirEntryKey, to: &DirEntryKey) -> Result<Examined> {
        let (check, content, source) = {
            let state = self.0.state.lock();
            let Some(check) = self.check_at(&state, to) else { return Ok(Examined::Unasked) };
            let path = state.names.path_of(from);
            let entry = path.and_then(|path| self.seen(&path)).map(|seen| seen.entry);
            let Some(content) = entry.as_ref().and_then(Entry::content) else {
                return Ok(Examined::Content(None));
            };
            (check, content, unreleased(&state, from, content.0))
        };
        if let Some(source) = source {
            self.examine_file(source.backing.file(), content, check)?;
        } else if let Some(blob) = self.0.rooms.blobs.open_briefly(&content.0, content.1)? {
            self.examine_file(&blob.file, content, check)?;
        }
        // Content that is only in the store has left this node already.
        Ok(Examined::Content(Some(content)))
    }
}

fn cannot_look(error: io::Error) -> Error {
    Error::io("check whether a file is complete", error)
}

/// Returns the file of a published version that is not a blob yet.
fn unreleased(state: &State, spot: &DirEntryKey, digest: Digest) -> Option<Arc<Source>> {
    let lives = state.names.lives(spot).iter().filter_map(|id| state.lives.get(*id));
    let mut published = lives.filter(|live| live.version().is_some_and(|v| v.digest == digest));
    published.next().map(|live| Arc::clone(&live.source))
}
