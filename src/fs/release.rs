//! Release: the end of a live file, and preserving its published bytes while it goes on.
//!
//! Owns the step by which bytes become a blob. When no handle can write any more, the staging file
//! is renamed. While a handle can still write, a copy becomes the blob, and the file stays with its
//! writer.
//!
//! Keeps P3 stable-open.

use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use hearthfs_mount::{Answer, Handle, Reply};

use super::filesystem::Filesystem;
use super::inode::{LiveId, Source};
use super::kept::Kept;
use super::live::{Last, Mark, copy_bytes};
use super::publish::INLINE_BYTES_MAX;
use super::state::{State, close_files};
use crate::digest::Digest;
use crate::error::{Error, Kind};
use crate::local::{State as Keep, hash_file};

/// The published bytes of a live file.
struct PublishedBytes {
    digest: Digest,
    size: u64,
    kept: Option<Kept>,
    source: Arc<Source>,
    /// They must survive a power loss.
    synced: bool,
}

impl Filesystem {
    pub(super) fn release_file(&self, handle: Handle) -> Answer<()> {
        let last = {
            let mut state = self.0.state.lock();
            let last = Self::plan_release(&mut state, handle);
            close_files(state);
            last
        };
        self.0.recent.trim();
        let Some(last) = last else { return Ok(()).into() };
        if last.late || last.bytes > INLINE_BYTES_MAX {
            let this = self.clone();
            return Answer::later(async move {
                if last.late {
                    this.wait_to_publish(last.id, last.bytes).await.ok();
                }
                crate::task::blocking(move || this.finish(&last)).await
            });
        }
        self.finish(&last).into()
    }

    fn plan_release(state: &mut State, handle: Handle) -> Option<Last> {
        let file = state.remove_file(handle)?;
        let last = file.writing.and_then(|writing| {
            let id = writing.live();
            let live = state.lives.get_mut(id)?;
            live.writers.release(writing.is_closed());
            let idle = state.is_idle(id);
            let live = state.lives.get_mut(id).filter(|_| idle)?;
            Some(last_of(id, live, writing.is_covered()))
        });
        state.uncount_open(file.ino);
        last
    }

    /// Ends a live file whose expected thread never came. A large file is left to
    /// [`Filesystem::look_after`], because the caller may have to answer others.
    pub(super) fn finish_soon(&self, id: LiveId) {
        let Some(last) = self.plan_end(id) else { return };
        if last.bytes <= INLINE_BYTES_MAX {
            return self.finish_quietly(&last);
        }
        self.0.state.lock().ending.push(last);
        self.0.begun.notify_one();
    }

    /// Does the same as [`Filesystem::finish_soon`] on the calling thread, whatever the size.
    pub(super) fn finish_here(&self, id: LiveId) {
        if let Some(last) = self.plan_end(id) {
            self.finish_quietly(&last);
        }
    }

    /// Ends the large files that [`Filesystem::finish_soon`] has left.
    pub(super) async fn finish_ending(&self) {
        let ending = std::mem::take(&mut self.0.state.lock().ending);
        for last in ending {
            let this = self.clone();
            crate::task::blocking(move || this.finish_quietly(&last)).await;
        }
    }

    fn plan_end(&self, id: LiveId) -> Option<Last> {
        let mut state = self.0.state.lock();
        let idle = state.is_idle(id);
        state.lives.get_mut(id).filter(|_| idle).map(|live| last_of(id, live, true))
    }

    fn finish_quietly(&self, last: &Last) {
        if let Err(errno) = self.finish(last) {
            tracing::debug!(?errno, "a file ended with an error after its close");
        }
    }

    /// Ends a live file whose last writing handle is released.
    fn finish(&self, last: &Last) -> Reply<()> {
        let id = last.id;
        let done = if last.late { self.publish(id, None, false) } else { Ok(()) };
        if last.torn {
            let name = self.lose(&mut self.0.state.lock(), id);
            self.doubt(name);
            return done;
        }
        let settled = self.settle(id).unwrap_or_else(|error| {
            tracing::warn!(error = error.chain(), "the bytes of a closed file are lost");
            true
        });
        let mut state = self.0.state.lock();
        let idle = state.is_idle(id);
        match state.lives.get_mut(id) {
            Some(live) if !settled || !idle => {
                live.settled();
                close_files(state);
                // The thread that was expected has given up meanwhile.
                if idle {
                    self.finish_here(id);
                }
                return done;
            }
            Some(live) => {
                live.settled();
                state.end_live(id);
            }
            None => {}
        }
        close_files(state);
        done
    }

    /// Makes the published bytes of a live file a blob. Uses the staging file itself if no process
    /// can write to that. Returns false if a writer is on its way.
    fn settle(&self, id: LiveId) -> Result<bool, Error> {
        let lock = self.0.state.lock().lives.get(id).map(|live| live.settling.lock());
        let Some(lock) = lock else { return Ok(true) };
        let _one_at_a_time = lock.lock();
        let (bytes, staged, doubted) = {
            let mut state = self.0.state.lock();
            let idle = state.is_idle(id);
            let Some(live) = state.lives.get(id).filter(|_| idle) else { return Ok(false) };
            let bound = state.names.is_bound(live.ino);
            let Some(live) = state.lives.get_mut(id) else { return Ok(true) };
            let synced = live.synced;
            let (mapped, source) = (live.mapped.is_direct(), Arc::clone(&live.source));
            // A file that lost its name is not published.
            let Some(version) = live.version_mut().filter(|version| bound && version.mark.size > 0)
            else {
                return Ok(true);
            };
            let doubted = version.closed_again || mapped;
            let (digest, size) = (version.digest, version.mark.size);
            let kept = version.kept.take();
            let staged = live.staged.take_if(|_| !mapped);
            live.settling.begin();
            (PublishedBytes { digest, size, kept, source, synced }, staged, doubted)
        };
        let file = bytes.source.backing.file();
        // The descriptor that published was not the last one to be closed, so others may have
        // written since.
        let whole = || hash_file(file, bytes.size).map_err(|e| Error::io("read a closed file", e));
        let changed = doubted && whole()? != bytes.digest;
        match staged.filter(|_| !changed) {
            Some(staged) => {
                let keep = self.keep();
                self.0.rooms.blobs.adopt(staged, file, bytes.digest, bytes.size, keep)?;
            }
            None => self.adopt_copy(&bytes)?,
        }
        if bytes.synced {
            self.0.rooms.blobs.sync(&bytes.digest)?;
        }
        Ok(true)
    }

    /// Preserves the published bytes of a live file as a blob while the file goes on. Its name
    /// leads other processes to the blob. Blocks; does nothing if there is nothing to preserve.
    pub(super) fn preserve(&self, id: LiveId) {
        let Some(lock) = self.0.state.lock().lives.get(id).map(|live| live.settling.lock()) else {
            return;
        };
        let _one_at_a_time = lock.lock();
        let bytes = {
            let mut state = self.0.state.lock();
            // Without its staging file it is a blob already, and about to end.
            let live = state.lives.get_mut(id).filter(|live| live.staged.is_some());
            let Some(live) = live else { return };
            let (source, synced) = (Arc::clone(&live.source), live.synced);
            let Some(version) = live.version_mut() else { return };
            let (digest, size) = (version.digest, version.mark.size);
            PublishedBytes { digest, size, kept: version.kept.take(), source, synced }
        };
        let kept = if bytes.size == 0 { Ok(()) } else { self.adopt_copy(&bytes) };
        if let Err(error) = kept {
            tracing::warn!(
                digest = %bytes.digest,
                error = error.chain(),
                "a version is lost: its writer changed the file after closing it"
            );
        }
        let spot = {
            let mut state = self.0.state.lock();
            let Some(live) = state.lives.get_mut(id) else { return };
            let (ino, spot) = (live.ino, live.place().cloned());
            live.part();
            state.names.unbind_all(ino);
            spot
        };
        // Until the kernel looks again, an open through the inode that it remembers is led to the
        // version. Only `stat` may show what the writer does meanwhile.
        self.doubt(spot);
    }

    /// Makes a copy of the published bytes a blob.
    fn adopt_copy(&self, bytes: &PublishedBytes) -> Result<(), Error> {
        let (copy, staged) = self.0.rooms.staging.create()?;
        let failed = |e: io::Error| Error::io("copy a closed file", e);
        match &bytes.kept {
            Some(kept) => copy.write_all_at(kept, 0).map_err(failed)?,
            None => {
                copy_bytes(bytes.source.backing.file(), &copy, bytes.size).map_err(failed)?;
                if hash_file(&copy, bytes.size).map_err(failed)? != bytes.digest {
                    return Err(Error::new(Kind::Corrupt, "the file has changed since"));
                }
            }
        }
        let blobs = &self.0.rooms.blobs;
        blobs.adopt(staged, &copy, bytes.digest, bytes.size, self.keep())?;
        if bytes.synced { blobs.sync(&bytes.digest) } else { Ok(()) }
    }

    /// Returns whether a new blob has to stay until the remote has it.
    fn keep(&self) -> Keep {
        if self.0.rules.shared { Keep::Unsaved } else { Keep::Saved }
    }
}

fn last_of(id: LiveId, live: &mut super::live::Live, closed: bool) -> Last {
    let seen = Mark::of(live.file()).ok();
    let ends = live.is_dropped() || live.place().is_none();
    let written = live.has_written(seen);
    let wrote = written && seen.is_none_or(|seen| seen.size > 0 || live.version().is_some());
    let late = !ends && closed && wrote;
    // It was written to and released without a close that the daemon could see. That does not count
    // as a close.
    let unseen = !closed && !live.writers.has_closed();
    let torn = !ends && unseen && live.version().is_none() && (live.baseline.is_fresh() || written);
    // An open for writing that comes now begins from the blob or version that the file is about to
    // become.
    if ends {
        live.settling.end_quietly();
    } else {
        live.settling.begin();
    }
    if let Some(version) = live.version_mut() {
        version.hold = None;
    }
    Last { id, bytes: seen.map_or(0, |seen| seen.size), late, torn }
}
