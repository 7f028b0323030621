//! Bytes of blobs: from this node if it has them, else from the store.
//!
//! Owns the way from a digest to an open file. Must never wait for the store in a call that returns
//! at once.

use std::sync::Arc;

use hearthfs_mount::{Caller, Errno, Ino, Opened, Reply};

use super::filesystem::Filesystem;
use super::handles::Bytes;
use super::inode::Source;
use super::state::close_files;
use super::wish::Wish;
use crate::digest::Digest;
use crate::error::{Kind, Result};
use crate::local::OpenBlob;

impl Filesystem {
    /// Opens a blob that this node has; `None` if it has none.
    pub(super) fn open_here(&self, digest: Digest, size: u64) -> Result<Option<Arc<Source>>> {
        let blobs = &self.0.rooms.blobs;
        if let Some(source) = self.0.recent.find(blobs, &digest, size) {
            return Ok(Some(source));
        }
        let open = match blobs.open_blob(&digest, size) {
            Err(error) if error.kind() == Kind::Exhausted && self.close_unneeded() => {
                blobs.open_blob(&digest, size)
            }
            open => open,
        };
        Ok(open?.map(|OpenBlob { file, pin }| {
            self.0.rooms.fetcher.note_used(digest, size);
            let source = Source::new(file, Some(pin));
            self.0.recent.keep(digest, size, &source);
            source
        }))
    }

    /// Makes a blob local and opens it. The deadline starts anew with each byte that arrives. Any
    /// failure is a miss.
    ///
    /// `asked` is the inode to be opened and its caller, for the report of a miss.
    pub(super) async fn obtain(
        &self,
        asked: Option<(Ino, &Caller)>,
        digest: Digest,
        size: u64,
    ) -> Reply<Arc<Source>> {
        if let Ok(Some(source)) = self.open_here(digest, size) {
            return Ok(source);
        }
        if self.finish_lodged(&digest)
            && let Ok(Some(source)) = self.open_here(digest, size)
        {
            return Ok(source);
        }
        let rooms = &self.0.rooms;
        let began = rooms.clock.mono();
        let fetched = rooms.fetcher.fetch_within(digest, size, self.0.rules.deadline).await;
        rooms.metrics.times.fetch.observe(rooms.clock.mono().saturating_sub(began));
        match fetched {
            Ok(()) => match self.open_here(digest, size) {
                Ok(Some(source)) => {
                    rooms.metrics.fetched.add(1);
                    Ok(source)
                }
                Ok(None) => Err(Errno::ENOENT),
                Err(error) => Err(super::errno::of_open(error.kind())),
            },
            Err(error) => {
                self.note_unfetched(asked, &digest, &error);
                rooms.metrics.misses.add(1);
                rooms.metrics.fetch_failures.add(1);
                Err(super::errno::of_open(error.kind()))
            }
        }
    }

    /// Gives a counted open its blob. Another open may have brought a file of it meanwhile, and the
    /// kernel needs all handles of an inode on one file.
    pub(super) fn opened_blob(
        &self,
        ino: Ino,
        wish: &Wish,
        source: Arc<Source>,
        aside: bool,
    ) -> Opened {
        let mut state = self.0.state.lock();
        if aside {
            state.uncount_open(ino);
            return self.attach_bytes(&mut state, ino, wish, Bytes::Source(source));
        }
        let shared = state.names.inode_mut(ino).and_then(|inode| {
            inode.opens -= 1;
            inode.source.clone()
        });
        self.attach_reader(&mut state, ino, wish, shared.unwrap_or(source))
    }

    pub(super) fn uncount_open(&self, ino: Ino) {
        let mut state = self.0.state.lock();
        state.uncount_open(ino);
        close_files(state);
    }
}
