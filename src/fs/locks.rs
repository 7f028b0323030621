//! The locks of `flock(2)`: one table for each name.
//!
//! Owns the holders and the waiters of the lock of each name, and which open file belongs to which
//! name. Versions come and go under a name, each with an inode of its own, and the table stays. It
//! moves with the name. An unlink separates the two: a process that has the file open keeps the
//! table, and the next file with the name starts another. Must never do I/O, read a clock, or know
//! of another node.
//!
//! The rules are those of Linux. A lock belongs to an open file, however many descriptors and
//! processes share that. A change of the kind of lock releases the old lock first, and may then
//! have to wait, or fail, without it. A lock is granted if it conflicts with no lock that is held,
//! even if earlier requests wait. When a lock ends, the waiting requests get theirs in the order in
//! which they came.

use std::collections::VecDeque;

use hearthfs_mount::{Errno, FlockKind, Handle, Ino, Reply};
use tokio::sync::oneshot;

use super::inode::DirEntryKey;
use super::shares::Shares;
use crate::hashing::FastMap;

/// The most locks that are held or waited for, over all names.
const LOCKS_MAX: u64 = 65_536;
/// The most requests that wait. Each of them regularly checks whether its caller has a signal.
const WAITING_MAX: u64 = 1024;

/// The number of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct TableId(u64);

/// The outcome of a request for a lock.
#[derive(Debug)]
pub(super) enum Asked {
    /// The request is done.
    Done,
    /// Another holder is in the way.
    Waits(Waits),
}

/// A place in the queue. A request that waits gets a message with the lock. A request that stops
/// waiting must call [`Locks::give_up`].
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) ticket: Ticket,
    pub(super) given: oneshot::Receiver<()>,
}

/// Identifies a request that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ticket {
    handle: Handle,
    number: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    user: u32,
    exclusive: bool,
    give: oneshot::Sender<()>,
}

/// A lock that is held.
#[derive(Clone, Copy, Debug)]
struct GrantedLock {
    exclusive: bool,
    user: u32,
}

/// The lock of one name.
#[derive(Debug, Default)]
struct NameLock {
    /// The names that lead here: one, several for a file with hard links, or none after an unlink.
    names: Vec<DirEntryKey>,
    /// The number of open files that belong here.
    members: usize,
    /// The open files that hold it.
    held: FastMap<Handle, GrantedLock>,
    /// The requests that wait for it, in their order.
    waiting: VecDeque<Waiter>,
}

impl NameLock {
    fn admits(&self, handle: Handle, exclusive: bool) -> bool {
        let others = self.held.len() - usize::from(self.held.contains_key(&handle));
        // If one holder is exclusive, it is the only holder.
        let alone = self.held.iter().next().is_some_and(|(_, hold)| hold.exclusive);
        others == 0 || !(exclusive || alone)
    }
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct LockHolder {
    table: TableId,
    ino: Ino,
}

/// The locks of all names.
#[derive(Debug)]
pub(super) struct Locks {
    tables: FastMap<TableId, NameLock>,
    names: FastMap<DirEntryKey, TableId>,
    members: FastMap<Handle, LockHolder>,
    /// The table of each inode that is open, and how often the inode is open. A file without a name
    /// can be opened again through `/proc/self/fd`.
    inodes: FastMap<Ino, (TableId, usize)>,
    /// Locks that are held or waited for.
    shares: Shares,
    /// Locks that are waited for.
    waiting: Shares,
    last: u64,
}

impl Default for Locks {
    fn default() -> Self {
        Self {
            tables: FastMap::default(),
            names: FastMap::default(),
            members: FastMap::default(),
            inodes: FastMap::default(),
            shares: Shares::new(LOCKS_MAX),
            waiting: Shares::new(WAITING_MAX),
            last: 0,
        }
    }
}

impl Locks {
    /// Adds an open file on `ino` with these names, if it has any. `former` is a name under which
    /// another version has replaced this one.
    pub(super) fn open<'a>(
        &mut self,
        handle: Handle,
        ino: Ino,
        names: impl Iterator<Item = &'a DirEntryKey> + Clone,
        former: Option<&'a DirEntryKey>,
    ) {
        let named = names.clone().find_map(|name| self.names.get(name).copied());
        let known = named.or_else(|| self.inodes.get(&ino).map(|(table, _)| *table));
        let former = former.filter(|_| known.is_none());
        let known = known.or_else(|| self.names.get(former?).copied());
        let id = known.unwrap_or_else(|| TableId(self.next()));
        let table = self.tables.entry(id).or_default();
        table.members += 1;
        for name in names.chain(former) {
            // A name that has a table keeps it, because others may hold its lock.
            self.names.entry(name.clone()).or_insert_with(|| {
                table.names.push(name.clone());
                id
            });
        }
        let known = self.inodes.entry(ino).or_insert((id, 0));
        *known = (id, known.1 + 1);
        self.members.insert(handle, LockHolder { table: id, ino });
    }

    /// Ends an open file, together with its lock and its waiting requests.
    pub(super) fn close(&mut self, handle: Handle) {
        let Some(LockHolder { table: id, ino }) = self.members.remove(&handle) else { return };
        if let Some((_, opens)) = self.inodes.get_mut(&ino) {
            *opens -= 1;
            if *opens == 0 {
                self.inodes.remove(&ino);
            }
        }
        let Some(table) = self.tables.get_mut(&id) else { return };
        table.members -= 1;
        let (waiting, shares) = (&mut self.waiting, &mut self.shares);
        table.waiting.retain(|waiter| {
            let stays = waiter.ticket.handle != handle;
            if !stays {
                waiting.give_back(waiter.user, 1);
                shares.give_back(waiter.user, 1);
            }
            stays
        });
        let last = table.members == 0;
        if self.let_go(id, handle) {
            self.serve(id);
        }
        if last && let Some(table) = self.tables.remove(&id) {
            for name in table.names {
                self.names.remove(&name);
            }
        }
    }

    /// Carries out a `flock` request of an open file, or makes it wait. Returns `EAGAIN` if another
    /// holder is in the way and the queue is full.
    pub(super) fn ask(&mut self, handle: Handle, user: u32, kind: FlockKind) -> Reply<Asked> {
        let id = self.members.get(&handle).ok_or(Errno::EBADF)?.table;
        let exclusive = match kind {
            FlockKind::Unlock => {
                if self.let_go(id, handle) {
                    self.serve(id);
                }
                return Ok(Asked::Done);
            }
            FlockKind::Shared => false,
            FlockKind::Exclusive => true,
        };
        let table = self.tables.get(&id).ok_or(Errno::EBADF)?;
        if table.held.get(&handle).is_some_and(|hold| hold.exclusive == exclusive) {
            return Ok(Asked::Done);
        }
        let had = self.let_go(id, handle);
        let asked = self.take_or_wait(id, handle, user, exclusive);
        if had {
            self.serve(id);
        }
        asked
    }

    fn take_or_wait(
        &mut self,
        id: TableId,
        handle: Handle,
        user: u32,
        exclusive: bool,
    ) -> Reply<Asked> {
        let number = self.next();
        let table = self.tables.get_mut(&id).ok_or(Errno::EBADF)?;
        if !self.shares.take(user, 1) {
            return Err(Errno::ENOLCK);
        }
        if table.admits(handle, exclusive) {
            table.held.insert(handle, GrantedLock { exclusive, user });
            return Ok(Asked::Done);
        }
        if !self.waiting.take(user, 1) {
            self.shares.give_back(user, 1);
            return Err(Errno::EAGAIN);
        }
        let (give, given) = oneshot::channel();
        let ticket = Ticket { handle, number };
        table.waiting.push_back(Waiter { ticket, user, exclusive, give });
        Ok(Asked::Waits(Waits { ticket, given }))
    }

    /// Withdraws a request that waits. Returns whether the lock was granted meanwhile; such a lock
    /// stays.
    pub(super) fn give_up(&mut self, ticket: Ticket) -> bool {
        let member = self.members.get(&ticket.handle);
        let Some(table) = member.and_then(|member| self.tables.get_mut(&member.table)) else {
            return false;
        };
        let Some(at) = table.waiting.iter().position(|waiter| waiter.ticket == ticket) else {
            return true;
        };
        if let Some(waiter) = table.waiting.remove(at) {
            self.waiting.give_back(waiter.user, 1);
            self.shares.give_back(waiter.user, 1);
        }
        false
    }

    /// Records that a file gets another name.
    pub(super) fn link(&mut self, old: &DirEntryKey, new: &DirEntryKey) {
        self.unlink(new);
        if let Some(id) = self.names.get(old).copied() {
            self.lead(id, new);
        }
    }

    /// Records that a name becomes another. The file that had the new name loses it.
    pub(super) fn rename(&mut self, from: &DirEntryKey, to: &DirEntryKey) {
        if from == to {
            return;
        }
        self.link(from, to);
        self.unlink(from);
    }

    /// Records that two names change places.
    pub(super) fn exchange(&mut self, one: &DirEntryKey, other: &DirEntryKey) {
        let ids = (self.names.get(one).copied(), self.names.get(other).copied());
        self.unlink(one);
        self.unlink(other);
        if let Some(id) = ids.0 {
            self.lead(id, other);
        }
        if let Some(id) = ids.1.filter(|_| one != other) {
            self.lead(id, one);
        }
    }

    /// Makes a name that leads nowhere lead to a table.
    fn lead(&mut self, id: TableId, name: &DirEntryKey) {
        if let Some(table) = self.tables.get_mut(&id) {
            table.names.push(name.clone());
            self.names.insert(name.clone(), id);
        }
    }

    /// Records that a name leads nowhere any more.
    pub(super) fn unlink(&mut self, name: &DirEntryKey) {
        if let Some(table) = self.names.remove(name).and_then(|id| self.tables.get_mut(&id)) {
            table.names.retain(|other| other != name);
        }
    }

    /// Releases the lock of an open file, without granting it to those that wait. Returns whether
    /// there was one.
    fn let_go(&mut self, id: TableId, handle: Handle) -> bool {
        let hold = self.tables.get_mut(&id).and_then(|table| table.held.remove(&handle));
        if let Some(hold) = hold {
            self.shares.give_back(hold.user, 1);
        }
        hold.is_some()
    }

    /// Grants the lock to those that wait for it, as far as possible.
    fn serve(&mut self, id: TableId) {
        let Some(table) = self.tables.get_mut(&id) else { return };
        let mut at = 0;
        while let Some(waiter) = table.waiting.get(at) {
            let (handle, exclusive) = (waiter.ticket.handle, waiter.exclusive);
            if !table.admits(handle, exclusive) {
                at += 1;
                continue;
            }
            let Some(waiter) = table.waiting.remove(at) else { return };
            let user = waiter.user;
            self.waiting.give_back(user, 1);
            // The receiver is gone after the daemon has stopped.
            if waiter.give.send(()).is_err() {
                self.shares.give_back(user, 1);
                continue;
            }
            // Another thread may have made a request through the same open file.
            if let Some(hold) = table.held.insert(handle, GrantedLock { exclusive, user }) {
                self.shares.give_back(hold.user, 1);
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

#[cfg(test)]
mod tests;
