//! Handles: how they are made, and how their I/O travels.
//!
//! Owns the choice of the I/O mode of an inode. Must never give out a handle that can write to the
//! file of a blob. Must never give two modes to one inode.

use std::sync::Arc;

use hearthfs_mount::{Errno, Ino, Io, Opened, Reply};

use super::filesystem::Filesystem;
use super::handles::{Bytes, OpenFile};
use super::inode::{LiveId, Mode, Source};
use super::open::OpenStep;
use super::state::{State, may_stand_aside};
use super::wish::Wish;
use super::writing_handle::{WriteWay, WritingHandle};

impl Filesystem {
    /// Makes a handle that cannot write, on the file of its inode.
    pub(super) fn attach_reader(
        &self,
        state: &mut State,
        ino: Ino,
        wish: &Wish,
        source: Arc<Source>,
    ) -> Opened {
        state.count_open(ino);
        let default = if self.passes_through() { Mode::Passthrough } else { Mode::Cached };
        let io = match settle_mode(state, ino, &source, default) {
            Mode::Passthrough => Io::Passthrough(Arc::clone(&source.backing)),
            // The kernel keeps one size per inode. It counts there what a handle that stands aside
            // writes, and sets the size to 0 when it finishes an open with `O_TRUNC`. A reader
            // through the page cache could therefore get too few bytes.
            Mode::Cached if wish.flags.direct || state.is_shaken(ino, wish.who) => Io::Direct,
            Mode::Cached => cached(state, ino),
            Mode::Direct => Io::Direct,
        };
        let handle = self.add_file(state, reader(ino, wish, Bytes::Source(source)));
        Opened { handle, io, no_flush: true }
    }

    /// Makes a handle that reads these bytes, even if the other handles of the inode read different
    /// ones.
    pub(super) fn attach_bytes(
        &self,
        state: &mut State,
        ino: Ino,
        wish: &Wish,
        bytes: Bytes,
    ) -> Opened {
        let io = beside(state, ino);
        let handle = self.add_file(state, reader(ino, wish, bytes));
        Opened { handle, io, no_flush: true }
    }

    /// Makes a writing handle on the live file of the inode.
    pub(super) fn join(
        &self,
        state: &mut State,
        ino: Ino,
        id: LiveId,
        wish: &Wish,
    ) -> Reply<Opened> {
        let live = state.lives.get_mut(id).ok_or(Errno::ESTALE)?;
        // The file is emptied after the lock is released and before the caller is answered.
        if wish.flags.truncate && live.file().metadata()?.len() > 0 {
            live.baseline.freshen();
        }
        if wish.caller.uid != 0 {
            self.drop_privileges(&wish.caller, &mut live.attrs);
        }
        Ok(self.attach_writer(state, ino, id, wish))
    }

    /// Empties the file that a handle has just joined.
    pub(super) fn empty(&self, opened: Opened) -> Reply<Opened> {
        let bytes = {
            let mut state = self.0.state.lock();
            let file = state.handles.file(opened.handle);
            let changed = file.and_then(|file| Some((file.live()?, file.ino)));
            let bytes = file.map(|file| file.bytes.clone());
            if let Some((id, through)) = changed {
                state.note_change(id, through);
            }
            bytes
        };
        // An empty file is left alone: truncating it would move its time, which counts as a change.
        let empty = |file: &std::fs::File| match file.metadata()?.len() {
            0 => Ok(()),
            _ => file.set_len(0),
        };
        let emptied = bytes.as_ref().and_then(Bytes::file).map_or(Ok(()), empty);
        match emptied {
            Ok(()) => Ok(opened),
            Err(error) => {
                drop(self.release_file(opened.handle));
                Err(error.into())
            }
        }
    }

    /// Makes a handle on an inode that writes another live file of its name.
    pub(super) fn join_aside(
        &self,
        state: &mut State,
        ino: Ino,
        id: LiveId,
        wish: &Wish,
    ) -> OpenStep {
        match state.lives.get(id) {
            // A writer that joined now would change what is being digested, or is about to be a blob.
            Some(live) if live.settling.is_on() => {
                return OpenStep::Wait(live.settling.subscribe());
            }
            Some(live) if live.version().is_some() => {
                return OpenStep::Settle(id, live.settling.subscribe());
            }
            _ => {}
        }
        let allowed = may_stand_aside(state, ino, wish.flags);
        OpenStep::Done(allowed.and_then(|()| self.join(state, ino, id, wish)))
    }

    /// Makes a writing handle on a live file. The caller has checked that the open may write it.
    pub(super) fn attach_writer(
        &self,
        state: &mut State,
        ino: Ino,
        id: LiveId,
        wish: &Wish,
    ) -> Opened {
        let Wish { who, flags, .. } = *wish;
        let live = state.lives.get_mut(id).expect("the caller found it under the same lock");
        live.writers.join(who, wish.caller);
        let source = Arc::clone(&live.source);
        let own_inode = live.ino == ino;
        // A handle that may be mapped for writing goes through the daemon. A mapping of the file
        // itself would outlive the handle, and the daemon would not see that.
        let passes = self.passes_through() && !flags.reads();
        let io = if own_inode {
            state.count_open(ino);
            let default = if passes { Mode::Passthrough } else { Mode::Cached };
            match settle_mode(state, ino, &source, default) {
                Mode::Passthrough if flags.reads() => Io::Beside(Arc::clone(&source.backing)),
                Mode::Passthrough => Io::Passthrough(Arc::clone(&source.backing)),
                Mode::Cached if flags.direct || flags.append => Io::Direct,
                Mode::Cached => cached(state, ino),
                Mode::Direct => Io::Direct,
            }
        } else {
            beside(state, ino)
        };
        if own_inode
            && matches!(io, Io::Beside(_))
            && let Some(live) = state.lives.get_mut(id)
        {
            live.mapped.note_direct();
        }
        let way = match io {
            Io::Passthrough(_) => WriteWay::Passed,
            _ if own_inode => WriteWay::Daemon,
            _ => WriteWay::Aside,
        };
        let writing = Some(WritingHandle::new(id, way, flags.append));
        let (user, bytes) = (wish.caller.uid, Bytes::Source(source));
        let handle = self.add_file(state, OpenFile { ino, who, user, bytes, writing });
        Opened { handle, io, no_flush: false }
    }
}

fn reader(ino: Ino, wish: &Wish, bytes: Bytes) -> OpenFile {
    OpenFile { ino, who: wish.who, user: wish.caller.uid, bytes, writing: None }
}

/// Makes the I/O of a handle that uses the page cache of its inode.
fn cached(state: &State, ino: Ino) -> Io {
    let stale = state.names.inode(ino).is_some_and(|inode| inode.has_stale_pages);
    Io::Cached { keep: !stale }
}

/// Decides how the handles of an inode do their I/O, if none of them is open yet.
fn settle_mode(state: &mut State, ino: Ino, source: &Arc<Source>, default: Mode) -> Mode {
    let Some(inode) = state.names.inode_mut(ino) else { return Mode::Direct };
    let mode = *inode.mode.get_or_insert(default);
    inode.source.get_or_insert_with(|| Arc::clone(source));
    mode
}

/// Counts an open whose calls all come to the daemon, even if the other handles of the inode are
/// passed through.
pub(super) fn beside(state: &mut State, ino: Ino) -> Io {
    state.count_open(ino);
    let Some(inode) = state.names.inode_mut(ino) else { return Io::Direct };
    match (*inode.mode.get_or_insert(Mode::Direct), &inode.source) {
        (Mode::Passthrough, Some(source)) => Io::Beside(Arc::clone(&source.backing)),
        _ => Io::Direct,
    }
}
