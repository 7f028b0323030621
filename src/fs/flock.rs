//! `flock`: a caller's request for a lock, and how it waits.
//!
//! Owns the waiting. Must never hold the state's lock while it waits, nor let a caller wait that has to die.

use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, FlockKind, Handle, Reply};

use super::filesystem::Filesystem;
use super::locks::{Asked, Waits};
use super::state::State;
use crate::clock;

/// How often a waiting request checks whether its caller has a signal to handle.
const SIGNAL_POLL: Duration = Duration::from_millis(50);
/// How long a request that does not wait is kept before it is refused. `close` returns before the kernel's
/// word of it is handled, so the lock may be that of a file which is closed already.
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

    /// Waits for a lock until it comes or its caller has a signal to handle. A caller that cannot be seen
    /// waits without that.
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
}

impl State {
    /// Has an open file share the lock of the name that it was opened by.
    pub(super) fn share_lock(&mut self, handle: Handle) {
        let Some(file) = self.handles.file(handle) else { return };
        let inode = self.names.inode(file.ino);
        // A handle may stand on an inode that is not its file's, and a version that was replaced has no name.
        let written = file.live.and_then(|id| self.lives.get(id));
        let places = inode.map_or(&[][..], |inode| &inode.places);
        let own = written.and_then(|live| live.place());
        let names = own.into_iter().chain(places);
        let last = inode.and_then(|inode| inode.last.as_ref());
        let former = last.filter(|spot| self.names.knows(spot));
        let former = former.filter(|_| names.clone().next().is_none());
        self.locks.open(handle, file.ino, names, former);
    }
}
