//! Open: which bytes a handle reads and writes.
//!
//! A reader gets the published version; where there is none yet it waits for it, within a limit; writers are
//! the matter of `writing`. A new version is always another inode than the one the kernel looked up, and
//! `ESTALE` is how the kernel is led there, once: it looks the name up again and opens what it then finds
//! (see `detour`).

use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Answer, Backing, Caller, Errno, Ino, Io, OpenFlags, Opened, Reply};

use super::filesystem::Filesystem;
use super::generation::Stage;
use super::handle::{Bytes, OpenFile};
use super::inode::{GenId, Mode, Node, Source};
use super::state::{State, close_files};
use super::who::Who;
use crate::clock;
use crate::digest::Digest;
use crate::error::Kind;
use crate::local::OpenBlob;
use crate::namespace::Entry;

/// How an inode is to be opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wish {
    pub(super) who: Who,
    pub(super) flags: OpenFlags,
    /// Whoever it is was sent back once already, and must not be again.
    pub(super) last: bool,
}

/// What an open for reading comes to.
enum Reading {
    /// It is open.
    Done(Opened),
    /// The blob has to be opened first.
    Blob(Digest, u64),
    /// Nothing is published yet.
    Wait(tokio::sync::watch::Receiver<Stage>),
}

impl Filesystem {
    pub(super) fn open_file(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Answer<Opened> {
        self.0.rooms.freshness.note_activity();
        let who = self.0.callers.who(caller);
        if flags.write || flags.truncate {
            if self.0.rules.read_only {
                return Err(Errno::EROFS).into();
            }
            let wait = self.0.rules.deadline;
            let to_write = |last| self.open_to_write(ino, Wish { who, flags, last }, wait);
            return self.with_detour(caller, Some(flags), to_write);
        }
        let wait = self.0.rules.open_wait;
        let to_read = |last| self.open_to_read(ino, Wish { who, flags, last }, wait);
        self.with_detour(caller, None, to_read)
    }

    pub(super) fn open_to_read(&self, ino: Ino, wish: Wish, wait: Duration) -> Answer<Opened> {
        let Wish { who, flags, .. } = wish;
        let reading = {
            let mut state = self.0.state.lock();
            self.plan_read(&mut state, ino, wish)
        };
        match reading {
            Err(errno) => Err(errno).into(),
            Ok(Reading::Done(opened)) => Ok(opened).into(),
            Ok(Reading::Blob(digest, size)) => self.open_blob(ino, who, flags, digest, size),
            Ok(Reading::Wait(mut moved)) => {
                let this = self.clone();
                Answer::later(async move {
                    let left = this.wait_for(&mut moved, wait).await.ok_or(Errno::ENOENT)?;
                    match this.open_to_read(ino, wish, left) {
                        Answer::Now(reply) => reply,
                        Answer::Later(work) => work.await,
                    }
                })
            }
        }
    }

    /// Waits until a generation moves on; returns how much of `wait` is left then, if it did in time.
    pub(super) async fn wait_for(
        &self,
        moved: &mut tokio::sync::watch::Receiver<Stage>,
        wait: Duration,
    ) -> Option<Duration> {
        let begun = self.0.rooms.clock.mono();
        clock::within(wait, moved.changed()).await?.ok();
        Some(wait.saturating_sub(self.0.rooms.clock.mono().saturating_sub(begun)))
    }

    /// Decides what an open for reading comes to. Counts the open when it is `Done` or `Blob`.
    fn plan_read(&self, state: &mut State, ino: Ino, wish: Wish) -> Reply<Reading> {
        let Wish { who, flags, last } = wish;
        if let Some(source) = state.guest_source(ino, who) {
            return Ok(Reading::Done(Self::attach_bytes(state, ino, who, Bytes::Source(source))));
        }
        if state.is_lost(ino) {
            return self.plan_read_of_heir(state, ino, who);
        }
        let inode = state.inodes.get(&ino).ok_or(Errno::ESTALE)?;
        match &inode.node {
            Node::Directory => Err(Errno::EISDIR),
            Node::Gone(_) | Node::Promised(_) => Err(Errno::ESTALE),
            Node::Version { entry, changed_ms } => {
                let (digest, size) = entry.content().ok_or(Errno::ENXIO)?;
                let own = state.own_linked(entry, who).and_then(|id| state.generations.get(&id));
                if let Some(generation) = own {
                    // It writes the file by another name, and the kernel remembers this one from before.
                    let source = Arc::clone(&generation.source);
                    return if last {
                        let bytes = Bytes::Source(source);
                        Ok(Reading::Done(Self::attach_bytes(state, ino, who, bytes)))
                    } else {
                        Err(Errno::ESTALE)
                    };
                }
                self.use_content(entry, *changed_ms)?;
                self.0.rooms.metrics.hits.add(1);
                if let Some(source) = inode.source.clone() {
                    return Ok(Reading::Done(self.attach(state, ino, who, flags, source, None)));
                }
                if size == 0 {
                    return Ok(Reading::Done(Self::attach_bytes(state, ino, who, Bytes::Empty)));
                }
                count_open(state, ino);
                Ok(Reading::Blob(digest, size))
            }
            Node::Generation(id) => {
                let id = *id;
                let generation = state.generations.get(&id).ok_or(Errno::ESTALE)?;
                let source = Arc::clone(&generation.source);
                if who != Who::Unseen && generation.members.contains(&who) {
                    return Ok(Reading::Done(self.attach(
                        state,
                        ino,
                        who,
                        flags,
                        source,
                        Some(id),
                    )));
                }
                match generation.stage {
                    Stage::Dropped => Err(Errno::ESTALE),
                    Stage::Published
                        if generation.published.as_ref().is_some_and(|p| p.mark.size == 0) =>
                    {
                        // Empty for whoever did not write it, even while a writer fills it again.
                        Ok(Reading::Done(Self::attach_bytes(state, ino, who, Bytes::Empty)))
                    }
                    Stage::Published => {
                        if let Some(published) = &generation.published {
                            self.use_content(&published.entry, published.changed_ms)?;
                        }
                        self.0.rooms.metrics.hits.add(1);
                        Ok(Reading::Done(self.attach(state, ino, who, flags, source, None)))
                    }
                    Stage::Private | Stage::Held => {
                        let spot = generation.place.clone().ok_or(Errno::ESTALE)?;
                        let moved = generation.moved.subscribe();
                        let held = generation.stage == Stage::Held;
                        let path = state.path_of(&spot).ok_or(Errno::ESTALE)?;
                        if !held && !last && self.seen(&path).is_some() {
                            // There is a published version: the kernel shall look again and find it.
                            return Err(Errno::ESTALE);
                        }
                        Ok(Reading::Wait(moved))
                    }
                }
            }
        }
    }

    /// Decides the same for the inode of a file that will never be an entry, where guests may stand.
    fn plan_read_of_heir(&self, state: &mut State, ino: Ino, who: Who) -> Reply<Reading> {
        let heir = state.heir(ino).and_then(|id| state.generations.get(&id));
        let heir = heir.filter(|heir| heir.stage == Stage::Private).ok_or(Errno::ESTALE)?;
        if heir.members.contains(&who) {
            let source = Arc::clone(&heir.source);
            return Ok(Reading::Done(Self::attach_bytes(state, ino, who, Bytes::Source(source))));
        }
        let path = heir.place.as_ref().and_then(|spot| state.path_of(spot));
        if self.seen(&path.ok_or(Errno::ESTALE)?).is_some() {
            return Err(Errno::ESTALE);
        }
        Ok(Reading::Wait(heir.moved.subscribe()))
    }

    /// Notes that a version is used. Makes the kernel look again for one that is past its age: it will find
    /// nothing, and what shall be made there can be made.
    pub(super) fn use_content(&self, entry: &Entry, changed_ms: u64) -> Reply<()> {
        self.0.rooms.ledger.content_left(entry, changed_ms).ok_or(Errno::ESTALE)?;
        if let Some((digest, size)) = entry.content() {
            self.0.rooms.renewer.note_use(&digest, size);
        }
        Ok(())
    }

    /// Opens a version whose blob has to be found first. The open is counted already.
    fn open_blob(
        &self,
        ino: Ino,
        who: Who,
        flags: OpenFlags,
        digest: Digest,
        size: u64,
    ) -> Answer<Opened> {
        match self.0.rooms.blobs.open_blob(&digest, size) {
            Ok(Some(blob)) => return Ok(self.opened_blob(ino, who, flags, blob)).into(),
            Ok(None) => {}
            Err(error) => {
                // Whoever opens too many files must not fill the log as well.
                if error.kind() == Kind::Exhausted {
                    tracing::debug!(%digest, error = error.chain(), "cannot open a blob");
                } else {
                    tracing::warn!(%digest, error = error.chain(), "cannot open a blob");
                }
                self.uncount_open(ino);
                return Err(super::errno::of_open(error.kind())).into();
            }
        }
        let this = self.clone();
        Answer::later(async move {
            match this.obtain(digest, size).await {
                Ok(blob) => Ok(this.opened_blob(ino, who, flags, blob)),
                Err(errno) => {
                    this.uncount_open(ino);
                    Err(errno)
                }
            }
        })
    }

    /// Makes a blob local, within the deadline, and opens it. Whatever goes wrong is a miss.
    pub(super) async fn obtain(&self, digest: Digest, size: u64) -> Reply<OpenBlob> {
        let rooms = &self.0.rooms;
        if let Ok(Some(blob)) = rooms.blobs.open_blob(&digest, size) {
            return Ok(blob);
        }
        match clock::within(self.0.rules.deadline, rooms.fetcher.fetch(digest, size)).await {
            Some(Ok(())) => match rooms.blobs.open_blob(&digest, size) {
                Ok(Some(blob)) => {
                    rooms.metrics.fetched.add(1);
                    Ok(blob)
                }
                Ok(None) => Err(Errno::ENOENT),
                Err(error) => Err(super::errno::of_open(error.kind())),
            },
            Some(Err(error)) => {
                tracing::debug!(%digest, error = error.chain(), "a blob could not be fetched");
                rooms.metrics.misses.add(1);
                rooms.metrics.fetch_failures.add(1);
                Err(super::errno::of_open(error.kind()))
            }
            None => {
                rooms.metrics.fetch_failures.add(1);
                rooms.metrics.misses.add(1);
                Err(Errno::ENOENT)
            }
        }
    }

    /// Gives a counted open its blob; another open may have brought one meanwhile, and the kernel wants
    /// all of an inode's handles on one file.
    fn opened_blob(&self, ino: Ino, who: Who, flags: OpenFlags, blob: OpenBlob) -> Opened {
        let mut state = self.0.state.lock();
        let OpenBlob { file, pin, .. } = blob;
        let source = match state.inodes.get_mut(&ino) {
            Some(inode) => {
                inode.opens -= 1;
                inode.source.clone()
            }
            None => None,
        };
        let source = source.unwrap_or_else(|| {
            Arc::new(Source { backing: Arc::new(Backing::new(file)), _pin: Some(pin) })
        });
        self.attach(&mut state, ino, who, flags, source, None)
    }

    /// Makes a handle that cannot write, on the file of its inode.
    fn attach(
        &self,
        state: &mut State,
        ino: Ino,
        who: Who,
        flags: OpenFlags,
        source: Arc<Source>,
        generation: Option<GenId>,
    ) -> Opened {
        count_open(state, ino);
        let mode = self.settle_mode(state, ino, &source);
        // Whoever reads what it writes itself sees its own doing. Who cannot be seen empties the very inode
        // that others read.
        let shaken = mode == Mode::Cached
            && generation.is_none()
            && (who == Who::Unseen || state.is_shaken(ino));
        let io = if shaken { Io::Direct } else { io_of(mode, &source, flags) };
        let handle = state.fresh_handle();
        let file = OpenFile {
            ino,
            who,
            write: false,
            to_the_end: false,
            bytes: Bytes::Source(source),
            generation,
            closed: false,
            flushed: false,
        };
        state.files.insert(handle, file);
        Opened { handle, io, no_flush: true }
    }

    /// Makes a handle that reads these bytes, whatever the other handles of the inode read.
    fn attach_bytes(state: &mut State, ino: Ino, who: Who, bytes: Bytes) -> Opened {
        let io = beside(state, ino);
        let handle = state.fresh_handle();
        let file = OpenFile {
            ino,
            who,
            write: false,
            to_the_end: false,
            bytes,
            generation: None,
            closed: false,
            flushed: false,
        };
        state.files.insert(handle, file);
        Opened { handle, io, no_flush: true }
    }

    /// Decides how the handles of an inode do their I/O, if no open one has.
    pub(super) fn settle_mode(&self, state: &mut State, ino: Ino, source: &Arc<Source>) -> Mode {
        let default = self.default_mode();
        let Some(inode) = state.inodes.get_mut(&ino) else { return Mode::Direct };
        let mode = *inode.mode.get_or_insert(default);
        inode.source.get_or_insert_with(|| Arc::clone(source));
        mode
    }

    fn uncount_open(&self, ino: Ino) {
        let mut state = self.0.state.lock();
        if let Some(inode) = state.inodes.get_mut(&ino) {
            inode.opens -= 1;
        }
        state.settle_inode(ino);
        close_files(state);
    }
}

/// Counts an open of an inode.
pub(super) fn count_open(state: &mut State, ino: Ino) {
    if let Some(inode) = state.inodes.get_mut(&ino) {
        inode.opens += 1;
    }
}

/// Counts an open whose calls all come to us, whatever the other handles of the inode do.
pub(super) fn beside(state: &mut State, ino: Ino) -> Io {
    count_open(state, ino);
    let Some(inode) = state.inodes.get_mut(&ino) else { return Io::Direct };
    match (*inode.mode.get_or_insert(Mode::Direct), &inode.source) {
        (Mode::Passthrough, Some(source)) => Io::Beside(Arc::clone(&source.backing)),
        _ => Io::Direct,
    }
}

/// Returns how the I/O of one handle travels.
pub(super) fn io_of(mode: Mode, source: &Arc<Source>, flags: OpenFlags) -> Io {
    match mode {
        Mode::Passthrough => Io::Passthrough(Arc::clone(&source.backing)),
        Mode::Cached if flags.direct => Io::Direct,
        Mode::Cached => Io::Cached { keep: true },
        Mode::Direct => Io::Direct,
    }
}

impl State {
    /// Returns the bytes that a process has written as a guest on an inode.
    fn guest_source(&self, ino: Ino, who: Who) -> Option<Arc<Source>> {
        let spot = self.inodes.get(&self.owner(ino))?.place()?;
        self.private_generations(spot)
            .filter_map(|id| self.generations.get(&id))
            .filter(|g| g.guest_on == Some(ino) && g.members.contains(&who) && who != Who::Unseen)
            .filter(|g| g.wrote())
            .last()
            .map(|generation| Arc::clone(&generation.source))
    }

    /// Reports whether the kernel's idea of an inode's size may be wrong for a while: it counts by the
    /// inode what guests write there, and the emptying by an open that it has not finished yet. Who
    /// reads through the page cache could then be given too little, or zeros at the end.
    fn is_shaken(&self, ino: Ino) -> bool {
        if self.detours.lead_to(ino) {
            return true;
        }
        let Some(inode) = self.inodes.get(&ino) else { return false };
        let own = match inode.node {
            Node::Generation(id) => Some(id),
            _ => None,
        };
        let strange = |file: &OpenFile| file.generation != own || !file.flushed;
        inode.opens > 1 && self.files.values().any(|f| f.ino == ino && f.write && strange(f))
    }

    /// Lets go of an inode's file when nothing has it open, and of the inode when nothing needs it.
    pub(super) fn settle_inode(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino)
            && inode.opens == 0
        {
            inode.mode = None;
            if let Some(source) = inode.source.take() {
                self.let_go(source);
            }
        }
        self.sweep_inode(ino);
    }
}
