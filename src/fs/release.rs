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
use std::time::Duration;

use hearthfs_mount::{Answer, Handle, Reply};
use tokio::sync::watch;

use super::filesystem::{Filesystem, LINGER_MAX};
use super::inode::{LiveId, Source};
use super::kept::Kept;
use super::live::{Last, Live, Mark, PublishedVersion, copy_bytes};
use super::publish::INLINE_BYTES_MAX;
use super::state::{State, close_files};
use super::writing_handle::WritingHandle;
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Kind};
use crate::local::{NotAdopted, StagedPath, State as Keep, hash_file};

/// How long a version stays in staging after the disk has refused to make it a blob, until the next
/// attempt.
const PUT_OFF_FOR: Duration = Duration::from_secs(1);

/// What the release of a handle leads to.
enum Release {
    /// Nothing.
    Nothing,
    /// The file waits for its end: see `ending`.
    Leave,
    /// The file ends now.
    End(Last),
}

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
        let release = {
            let mut state = self.0.state.lock();
            let release = plan_release(&mut state, handle);
            close_files(state);
            release
        };
        self.0.recent.trim();
        let last = match release {
            Release::Nothing => return Ok(()).into(),
            Release::Leave => {
                self.0.ended.notify_one();
                return Ok(()).into();
            }
            Release::End(last) => last,
        };
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

    /// Ends a live file that no handle writes any more, on the calling thread. Does nothing if a
    /// writer is on its way.
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
        let live = state.lives.get_mut(id).filter(|_| idle)?;
        let last = last_of(id, live, true);
        begin_end(live);
        Some(last)
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
        // The error is logged, and there will be another attempt.
        self.end(id).ok();
        done
    }

    /// Makes a live file that no process can write any more a blob and an entry. Does nothing if a
    /// writer is on its way.
    pub(super) fn end(&self, id: LiveId) -> Result<(), Error> {
        let settled = match self.settle(id) {
            Err(error) if !is_loss(&error) => {
                self.put_off(id, &error);
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(error = error.chain(), "the bytes of a closed file are lost");
                true
            }
            Ok(settled) => settled,
        };
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
                return Ok(());
            }
            Some(live) => {
                live.settled();
                state.end_live(id);
            }
            None => {}
        }
        close_files(state);
        Ok(())
    }

    /// Leaves a version in staging because the disk refuses to make it a blob now. Its bytes are
    /// intact, so [`Filesystem::look_after`] tries again.
    fn put_off(&self, id: LiveId, error: &Error) {
        let next = self.0.rooms.clock.mono() + PUT_OFF_FOR;
        let mut state = self.0.state.lock();
        if let Some(live) = state.lives.get_mut(id) {
            if let Some(version) = live.version_mut()
                && version.put_off_until.replace(next).is_none()
            {
                tracing::warn!(
                    digest = %version.digest,
                    error = error.chain(),
                    "a closed file stays in staging for now"
                );
            }
            live.settled();
        }
        close_files(state);
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
            // A file that lost its name before it was released is not an entry.
            let is_entry = |version: &PublishedVersion| bound || version.released;
            let version = live.version_mut().filter(|version| is_entry(version));
            let Some(version) = version.filter(|version| version.mark.size > 0) else {
                return Ok(true);
            };
            let doubted = version.closed_again || mapped;
            let (digest, size) = (version.digest, version.mark.size);
            let kept = version.kept.take();
            let is_blob = live.staged.is_none();
            let staged = live.staged.take_if(|_| !mapped);
            live.settling.begin();
            let bytes = PublishedBytes { digest, size, kept, source, synced };
            if is_blob {
                drop(state);
                return self.note_blob(&bytes).map(|()| true);
            }
            (bytes, staged, doubted)
        };
        let mut staged = staged;
        let made = self.make_blob(&bytes, &mut staged, doubted);
        if made.is_err() {
            self.put_back(id, bytes.kept, staged);
        }
        made.map(|()| true)
    }

    /// Makes published bytes a blob. Uses the staging file itself, if that is given. `doubted` means
    /// that others may have written to it since.
    fn make_blob(
        &self,
        bytes: &PublishedBytes,
        staged: &mut Option<StagedPath>,
        doubted: bool,
    ) -> Result<(), Error> {
        let (blobs, file) = (&self.0.rooms.blobs, bytes.source.backing.file());
        let whole = || hash_file(file, bytes.size).map_err(|e| Error::io("read a closed file", e));
        let changed = doubted && whole()? != bytes.digest;
        match staged.take_if(|_| !changed) {
            Some(path) => {
                let adopted = blobs.adopt(path, file, bytes.digest, bytes.size, self.keep());
                adopted.map_err(|not| {
                    *staged = Some(not.staged);
                    not.error
                })?;
            }
            None => return self.adopt_copy(bytes),
        }
        self.note_blob(bytes)
    }

    /// Notes that published bytes are a blob now. Makes it survive a power loss if it has to.
    fn note_blob(&self, bytes: &PublishedBytes) -> Result<(), Error> {
        if self.0.rules.shared {
            self.0.rooms.ledger.note_blob(&bytes.digest);
        }
        if bytes.synced { self.0.rooms.blobs.sync(&bytes.digest) } else { Ok(()) }
    }

    /// Gives a live file back what was taken from it to make a blob.
    fn put_back(&self, id: LiveId, kept: Option<Kept>, staged: Option<StagedPath>) {
        let mut state = self.0.state.lock();
        let Some(live) = state.lives.get_mut(id) else { return };
        live.staged = staged.or(live.staged.take());
        if let Some(version) = live.version_mut() {
            version.kept = kept;
        }
    }

    /// Preserves the published bytes of a live file as a blob while the file goes on. Its name
    /// leads other processes to the blob. Blocks; does nothing if there is nothing to preserve.
    ///
    /// Fails if the disk refuses that. The version stays in staging then, and no writer may go on.
    pub(super) fn preserve(&self, id: LiveId) -> Result<(), Error> {
        let is_over = {
            let state = self.0.state.lock();
            state.is_idle(id) && state.lives.get(id).is_some_and(|live| live.version().is_some())
        };
        // An earlier attempt to end it was put off.
        if is_over && let Some(last) = self.plan_end(id) {
            if last.late {
                self.publish(id, None, false).ok();
            }
            return self.end(id);
        }
        let Some(lock) = self.0.state.lock().lives.get(id).map(|live| live.settling.lock()) else {
            return Ok(());
        };
        let _one_at_a_time = lock.lock();
        let bytes = {
            let mut state = self.0.state.lock();
            // Without its staging file it is a blob already, and about to end.
            let live = state.lives.get_mut(id).filter(|live| live.staged.is_some());
            let Some(live) = live else { return Ok(()) };
            let (source, synced) = (Arc::clone(&live.source), live.synced);
            let Some(version) = live.version_mut() else { return Ok(()) };
            let (digest, size) = (version.digest, version.mark.size);
            PublishedBytes { digest, size, kept: version.kept.take(), source, synced }
        };
        match if bytes.size == 0 { Ok(()) } else { self.adopt_copy(&bytes) } {
            Err(error) if !is_loss(&error) => {
                self.put_back(id, bytes.kept, None);
                self.put_off(id, &error);
                return Err(error);
            }
            Err(error) => tracing::warn!(
                digest = %bytes.digest,
                error = error.chain(),
                "a version is lost: its writer changed the file after closing it"
            ),
            Ok(()) => {}
        }
        let spot = {
            let mut state = self.0.state.lock();
            let Some(live) = state.lives.get_mut(id) else { return Ok(()) };
            let (ino, spot) = (live.ino, live.place().cloned());
            live.part();
            state.names.unbind_all(ino);
            spot
        };
        // Until the kernel looks again, an open through the inode that it remembers is led to the
        // version. Only `stat` may show what the writer does meanwhile.
        self.doubt(spot);
        Ok(())
    }

    /// Waits a moment for the release of a published file. After that, preserves its published
    /// bytes, as [`Filesystem::preserve`].
    pub(super) async fn settle_or_keep(
        &self,
        id: LiveId,
        moved: &mut watch::Receiver<()>,
    ) -> Result<(), Error> {
        // Only processes that have closed the file will release it soon.
        let soon = self.0.state.lock().lives.get(id).is_some_and(Live::is_ending);
        if soon && clock::within(LINGER_MAX, moved.changed()).await.is_some() {
            // RELEASE may have left it.
            let rests = self.0.state.lock().rests(id);
            if !rests {
                return Ok(());
            }
        }
        let this = self.clone();
        crate::task::blocking(move || this.preserve(id)).await
    }

    /// Makes blobs of the versions that are still in staging, because the mount has ended. What the
    /// disk refuses stays in staging for the next start. Blocks.
    pub fn settle_published(&self) {
        let all: Vec<LiveId> = {
            let state = self.0.state.lock();
            let published = state.lives.iter().filter(|(_, live)| live.version().is_some());
            published.map(|(id, _)| id).collect()
        };
        for id in all {
            // The error is logged already.
            self.preserve(id).ok();
        }
    }

    /// Makes a copy of the published bytes a blob.
    fn adopt_copy(&self, bytes: &PublishedBytes) -> Result<(), Error> {
        let (copy, staged) = self.0.rooms.staging.create()?;
        let failed = |e: io::Error| Error::io("copy a closed file", e);
        match &bytes.kept {
            Some(kept) => copy.write_all_at(kept, 0).map_err(failed)?,
            None => {
                let copied = copy_bytes(bytes.source.backing.file(), &copy, bytes.size);
                copied.or_else(|e| if is_short(&e) { Ok(()) } else { Err(failed(e)) })?;
                if hash_file(&copy, bytes.size).map_err(failed)? != bytes.digest {
                    return Err(Error::new(Kind::Corrupt, "the file has changed since"));
                }
            }
        }
        let blobs = &self.0.rooms.blobs;
        blobs
            .adopt(staged, &copy, bytes.digest, bytes.size, self.keep())
            .map_err(NotAdopted::into_error)?;
        self.note_blob(bytes)
    }

    /// Returns whether a new blob has to stay until the remote has it.
    fn keep(&self) -> Keep {
        if self.0.rules.shared { Keep::Unsaved } else { Keep::Saved }
    }
}

/// Reports whether the bytes of a version are gone: its writer has changed them, or something has
/// removed the file. After any other error they are intact.
fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), Kind::Corrupt | Kind::NotFound)
}

/// Reports whether a file ends before the bytes that were to be read.
fn is_short(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::UnexpectedEof
}

fn plan_release(state: &mut State, handle: Handle) -> Release {
    let Some(file) = state.remove_file(handle) else { return Release::Nothing };
    let release = match file.writing {
        Some(writing) => plan_last_release(state, &writing),
        None => Release::Nothing,
    };
    state.uncount_open(file.ino);
    release
}

fn plan_last_release(state: &mut State, writing: &WritingHandle) -> Release {
    let id = writing.live();
    let Some(live) = state.lives.get_mut(id) else { return Release::Nothing };
    live.writers.release(writing.is_closed());
    let idle = state.is_idle(id);
    let Some(live) = state.lives.get_mut(id).filter(|_| idle) else { return Release::Nothing };
    let last = last_of(id, live, writing.is_covered());
    if !last.ends && !last.late && !last.torn && state.leave(id) {
        return Release::Leave;
    }
    if let Some(live) = state.lives.get_mut(id) {
        begin_end(live);
    }
    Release::End(last)
}

/// Keeps writers away from a live file that is about to end. An open for writing that comes now
/// begins from the blob or version that the file becomes.
fn begin_end(live: &mut Live) {
    if ends_unused(live) {
        live.settling.end_quietly();
    } else {
        live.settling.begin();
    }
}

/// Reports whether the bytes of a live file will never be an entry.
fn ends_unused(live: &Live) -> bool {
    live.is_dropped() || live.place().is_none()
}

fn last_of(id: LiveId, live: &mut Live, closed: bool) -> Last {
    let seen = Mark::of(live.file()).ok();
    let ends = ends_unused(live);
    let written = live.has_written(seen);
    let wrote = written && seen.is_none_or(|seen| seen.size > 0 || live.version().is_some());
    let late = !ends && closed && wrote;
    // It was written to and released without a close that the daemon could see. That does not count
    // as a close.
    let unseen = !closed && !live.writers.has_closed();
    let torn = !ends && unseen && live.version().is_none() && (live.baseline.is_fresh() || written);
    if let Some(version) = live.version_mut() {
        version.hold = None;
    }
    Last { id, bytes: seen.map_or(0, |seen| seen.size), ends, late, torn }
}
