//! The rights of a directory, looked at once more.
//!
//! The kernel checks the mode of a directory before it sends a request. A directory's inode is that of its path: when
//! another node closes it, or puts another in its place, a request that is on its way is about what is there now, and was
//! checked against what was there. Owns that second check. Must never make it long after another node's change: the kernel
//! knows capabilities, and the groups of callers that cannot be seen, and we do not. The cost is that such a caller, with
//! CAP_DAC_OVERRIDE or by a supplementary group, may get EACCES for a while after a change.
//!
//! Keeps P14 isolation.

use std::time::Duration;

use hearthfs_mount::{Caller, Ino, Reply};

use super::filesystem::Filesystem;
use super::inode::{AccessRights, InodeKind};
use super::state::State;
use super::wish::{Wish, wants};

/// How much longer than the deadline a request may be on its way from the kernel's check to ours.
const REQUEST_SLACK: Duration = Duration::from_secs(5);

/// What a look-up needs.
pub(super) const MAY_SEARCH: u32 = 1;
/// What a change of the names in a directory needs.
pub(super) const MAY_CHANGE_NAMES: u32 = 3;
/// What a listing needs.
pub(super) const MAY_LIST: u32 = 4;

/// The sticky bit of a directory's mode.
const STICKY: u32 = 0o1000;

/// Reports whether the sticky bit of a directory, if it has it, lets a caller take away a name of a file of `owner`.
pub(super) fn may_take(caller: &Caller, mode: u32, dir_owner: u32, owner: u32) -> bool {
    mode & STICKY == 0 || [0, owner, dir_owner].contains(&caller.uid)
}

impl Filesystem {
    /// Ends the retry of a thread that is about to be refused. The kernel asks for the attributes of what a thread was
    /// led to, checks the mode, and reports no refusal: the next call of the thread is another one.
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

    /// Checks an open once more where the kernel goes by rights that the file does not have any more: they were changed by
    /// another inode of the same file or on another node, and what the kernel remembers by inode is not taken back. `there`:
    /// those that the namespace has for the inode.
    pub(super) fn may_open(
        &self,
        state: &State,
        ino: Ino,
        wish: &Wish,
        there: Option<AccessRights>,
    ) -> Reply<()> {
        let Some(inode) = state.names.inode(ino) else { return Ok(()) };
        let now = match &inode.node {
            InodeKind::Directory => return Ok(()),
            InodeKind::Entry(published) | InodeKind::Reserved(published) => {
                there.unwrap_or_else(|| AccessRights::of(&published.entry.attrs))
            }
            InodeKind::Gone(entry) => AccessRights::of(&entry.attrs),
            InodeKind::Live(id) => match state.lives.get(*id) {
                Some(live) => AccessRights::of(&live.attrs),
                None => return Ok(()),
            },
        };
        // What the kernel does not know yet is being made: its mode does not bind its maker.
        if inode.lookups == 0 || inode.told == Some(now) {
            return Ok(());
        }
        self.mode_permits(&wish.caller, now.parts(), wish.wants())
    }

    /// Checks a directory's permission bits once more if another node has changed it a moment ago.
    pub(super) fn may_use(&self, state: &State, caller: &Caller, dir: Ino, want: u32) -> Reply<()> {
        let changed = state.names.inode(dir).and_then(|inode| inode.changed_elsewhere);
        let changed = changed.max(state.changed_elsewhere);
        let now = self.0.rooms.clock.mono();
        let longest = self.0.rules.deadline + REQUEST_SLACK;
        // What has moved and was not noted yet may be any directory.
        let may_be_any = self.0.rooms.ledger.is_telling();
        if !may_be_any && changed.is_none_or(|at| now.saturating_sub(at) > longest) {
            return Ok(());
        }
        let (attr, _) = self.attr_of(state, dir)?;
        self.mode_permits(caller, (attr.uid, attr.gid, u32::from(attr.perm)), want)
    }
}
