//! `flock`: a caller's request for a lock, and how it waits.
//!
//! Owns the waiting. Must never hold the state's lock while it waits. Must never keep a caller
//! waiting that has to die.

use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, FlockKind, Handle, Reply};

use super::filesystem::Filesystem;
use super::handles::OpenFile;
use super::inode::{DirEntryKey, InodeKind};
use super::live::Lives;
use super::locks::{Asked, Waits};
use super::names::Names;
use super::state::State;
use crate::clock;

/// How often a waiting request checks whether its caller has a signal to handle.
const SIGNAL_POLL: Duration = Duration::from_millis(50);
/// How long a request that may not wait is kept before it is refused. `close` returns before the
/// daemon handles its RELEASE, so the lock may belong to a file that is closed already.
const REFUSAL_GRACE: Duration = Duration::from_millis(20);

impl Filesystem {
    pub(super) fn flock_file(
        &self,
        caller: &Caller,
        handle: Handle,
        kind: FlockKind,
        wait: bool,
    ) -> Answer<()> {
        let asked = self.0.state.lock().locks.ask(handle, caller.uid, kind);
        let waits = match asked {
            Ok(Asked::Done) => return Ok(()).into(),
            Ok(Asked::Waits(waits)) => waits,
            Err(Errno::EAGAIN) if wait => return Err(Errno::ENOLCK).into(),
            Err(errno) => return Err(errno).into(),
        };
        let (this, tid) = (self.clone(), caller.tid);
        Answer::later(async move {
            if wait { this.wait_for_lock(waits, tid).await } else { this.refuse_lock(waits).await }
        })
    }

    /// Waits for a lock until the caller gets it or has a signal to handle. The signals of a caller
    /// that cannot be seen are not checked.
    async fn wait_for_lock(&self, mut waits: Waits, tid: u32) -> Reply<()> {
        loop {
            match clock::within(SIGNAL_POLL, &mut waits.given).await {
                Some(Ok(())) => return Ok(()),
                // The open file is gone.
                Some(Err(_)) => return Err(Errno::EBADF),
                None if self.0.rooms.tasks.is_interrupted(tid) => break,
                None => {}
            }
        }
        let came = self.0.state.lock().locks.give_up(waits.ticket);
        if came { Ok(()) } else { Err(Errno::EINTR) }
    }

    async fn refuse_lock(&self, mut waits: Waits) -> Reply<()> {
        match clock::within(REFUSAL_GRACE, &mut waits.given).await {
            Some(given) => given.map_err(|_| Errno::EBADF),
            None if self.0.state.lock().locks.give_up(waits.ticket) => Ok(()),
            None => Err(Errno::EAGAIN),
        }
    }

    /// Adds an open file, which shares the lock of its name.
    pub(super) fn add_file(&self, state: &mut State, file: OpenFile) -> Handle {
        let further = self.further_names_of(state, &file);
        state.add_file(file, &further)
    }

    /// Returns all names of a file with hard links, where the kernel knows their directories. The
    /// file has one lock, whichever of its names another process opens, even a name that no process
    /// has looked up yet.
    fn further_names_of(&self, state: &State, file: &OpenFile) -> Vec<DirEntryKey> {
        if !state.is_linked(file) {
            return Vec::new();
        }
        self.0.rooms.ledger.read(|fold| {
            let names = names_of(&state.names, &state.lives, file);
            let names = names.filter_map(|spot| state.names.path_of(spot));
            let groups = names.filter_map(|name| fold.visible(&name)?.entry?.link);
            let all = groups.flat_map(|group| fold.links(group));
            all.filter_map(|name| state.names.spot_of(name)).collect()
        })
    }
}

impl State {
    /// Reports whether an open file has hard links.
    fn is_linked(&self, file: &OpenFile) -> bool {
        let of_live = |id| self.lives.get(id).is_some_and(|live| live.link.is_some());
        file.live().is_some_and(of_live)
            || self.names.inode(file.ino).is_some_and(|inode| match &inode.node {
                InodeKind::Entry(published) => published.entry.link.is_some(),
                InodeKind::Live(id) => of_live(*id),
                _ => false,
            })
    }

    /// Makes an open file share the lock of the name that it was opened by.
    pub(super) fn share_lock(&mut self, handle: Handle, further: &[DirEntryKey]) {
        let Some(file) = self.handles.file(handle) else { return };
        let names = names_of(&self.names, &self.lives, file);
        let last = self.names.inode(file.ino).and_then(|inode| inode.last.as_ref());
        let former = last.filter(|spot| self.names.knows(spot));
        let former = former.filter(|_| names.clone().next().is_none());
        self.locks.open(handle, file.ino, names.chain(further), former);
    }
}

/// Yields the names of an open file. The file may be open on the inode of another file, and a
/// version that was replaced has no names.
fn names_of<'a>(
    names: &'a Names,
    lives: &'a Lives,
    file: &'a OpenFile,
) -> impl Iterator<Item = &'a DirEntryKey> + Clone {
    let written = file.live().and_then(|id| lives.get(id));
    let places = names.inode(file.ino).map_or(&[][..], |inode| &inode.places);
    written.and_then(|live| live.place()).into_iter().chain(places)
}
