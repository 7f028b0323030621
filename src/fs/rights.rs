//! The rights of a directory, checked a second time.
//!
//! The kernel checks the mode of a directory before it sends a request. The inode of a directory
//! stands for its path. If another node closes the directory to others, or replaces it, a request
//! in flight was checked against the old directory and acts on the new one. Owns that second check.
//! Must never repeat it for long after another node's change: only the kernel knows capabilities,
//! and the groups of callers that cannot be seen. The cost is that a caller that relies on
//! CAP_DAC_OVERRIDE, or on such a group, may get EACCES for a while after a change.
//!
//! Keeps P14 isolation.

use std::time::Duration;

use hearthfs_mount::{Caller, Ino, Reply};

use super::filesystem::Filesystem;
use super::inode::{AccessRights, InodeKind};
use super::state::State;
use super::wish::{Wish, wants};

/// How much longer than the deadline a request may be in flight between the kernel's check and the
/// daemon's.
const REQUEST_SLACK: Duration = Duration::from_secs(5);

/// The permission that a lookup needs.
pub(super) const MAY_SEARCH: u32 = 1;
/// The permission that a change of the names in a directory needs.
pub(super) const MAY_CHANGE_NAMES: u32 = 3;
/// The permission that a listing needs.
pub(super) const MAY_LIST: u32 = 4;

/// The sticky bit of a directory's mode.
const STICKY: u32 = 0o1000;

/// Reports whether a directory lets a caller remove a name of a file of `owner`, as far as the
/// sticky bit decides.
pub(super) fn may_take(caller: &Caller, mode: u32, dir_owner: u32, owner: u32) -> bool {
    mode & STICKY == 0 || [0, owner, dir_owner].contains(&caller.uid)
}

impl Filesystem {
    /// Ends the retry of a thread that is about to be refused. The kernel asks for the attributes
    /// of the inode that a thread was led to, and checks the mode. It does not report a refusal,
    /// and the next call of the thread is a different one.
    pub(super) fn note_refusal(&self, caller: &Caller, ino: Ino) {
        let retry = {
            let mut state = self.0.state.lock();
            let Some(flags) = state.retries.led_to(caller.tid, ino) else { return };
            let Ok((attr, _)) = self.attr_of(&state, ino) else { return };
            let rights = (attr.uid, attr.gid, u32::from(attr.perm));
            if self.mode_permits(caller, rights, wants(flags)).is_ok() {
                return;
            }
            state.retries.take(caller.tid)
        };
        self.give_up_seat(retry);
    }

    /// Checks an open once more where the kernel uses rights that the file does not have any more.
    /// They were changed through another inode of the same file or on another node, and what the
    /// kernel remembers by inode is not taken back. `there` has the rights that the namespace has
    /// for the inode.
    pub(super) fn may_open(
        &self,
        state: &State,
        ino: Ino,
        wish: &Wish,
        there: Option<AccessRights>,
    ) -> Reply<()> {
        let Some(inode) = state.names.inode(ino) else { return Ok(()) };
        let now = match &inode.node {
            InodeKind::Directory | InodeKind::Stale(_) => return Ok(()),
            InodeKind::Entry(published) | InodeKind::Reserved(published) => {
                there.unwrap_or_else(|| AccessRights::of(&published.entry.attrs))
            }
            InodeKind::Gone(entry) => AccessRights::of(&entry.attrs),
            InodeKind::Live(id) => match state.lives.get(*id) {
                Some(live) => AccessRights::of(&live.attrs),
                None => return Ok(()),
            },
        };
        // An inode without lookups is just being made, and its mode does not bind its maker.
        if inode.lookups == 0 || inode.told == Some(now) {
            return Ok(());
        }
        self.mode_permits(&wish.caller, now.parts(), wish.wants())
    }

    /// Checks a directory's permission bits once more if another node has changed them a moment
    /// ago.
    pub(super) fn may_use(&self, state: &State, caller: &Caller, dir: Ino, want: u32) -> Reply<()> {
        let changed = state.names.inode(dir).and_then(|inode| inode.changed_elsewhere);
        let is_recent = |at: Duration| {
            let longest = self.0.rules.deadline + REQUEST_SLACK;
            self.0.rooms.clock.mono().saturating_sub(at) <= longest
        };
        let changed = changed.max(state.changed_elsewhere).is_some_and(is_recent);
        // A change that has arrived and is not noted yet may affect any directory.
        if !changed && !self.0.rooms.ledger.is_telling() {
            return Ok(());
        }
        let (attr, _) = self.attr_of(state, dir)?;
        self.mode_permits(caller, (attr.uid, attr.gid, u32::from(attr.perm)), want)
    }
}
