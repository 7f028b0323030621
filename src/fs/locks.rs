//! The locks of `flock(2)`: one table for each name.
//!
//! Owns who holds and who waits for the lock of a name, and which open file belongs to which name. Versions
//! come and go under a name, each with an inode of its own; the table stays. It goes where the name goes, and
//! an unlink parts the two: who has the file open keeps the table, and the next file with the name starts
//! another. Must never do I/O, read a clock, or know of another node.
//!
//! The rules are those of Linux. A lock belongs to an open file, however many descriptors and processes share
//! it. A change of kind lets the old lock go first, and may then have to wait, or fail, without it. A lock is
//! given where it conflicts with none that is held, also past those that wait; when one ends, those that wait
//! get theirs in the order in which they came.

use std::collections::{HashMap, VecDeque};

use hearthfs_mount::{Errno, FlockKind, Handle, Ino, Reply};
use tokio::sync::oneshot;

use super::inode::Spot;

/// The most locks that are held or waited for, of all names.
const LOCKS_MAX: usize = 65_536;
/// The most requests that wait: each looks now and then whether its caller has a signal.
const WAITING_MAX: usize = 1024;
/// How many of them may be one user's, so that nobody can keep all others from waiting.
const WAITING_OF_USER_MAX: usize = 512;

/// Number of a table.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct TableId(u64);

/// What becomes of a request for a lock.
#[derive(Debug)]
pub(super) enum Asked {
    /// It is done.
    Done,
    /// Somebody is in the way.
    Waits(Waits),
}

/// A place in the queue. Whoever waits hears of the lock; whoever does not any more says so by
/// [`Locks::give_up`].
#[derive(Debug)]
pub(super) struct Waits {
    pub(super) ticket: Ticket,
    pub(super) given: oneshot::Receiver<()>,
}

/// Names a request that waits.
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

/// The lock of one name.
#[derive(Debug, Default)]
struct Table {
    /// The names that lead here: one, several of a file with hard links, or none after an unlink.
    names: Vec<Spot>,
    /// Open files that belong here.
    members: usize,
    /// Who holds it, and whether alone.
    held: HashMap<Handle, bool>,
    /// Who waits for it, the first first.
    waiting: VecDeque<Waiter>,
}

impl Table {
    fn admits(&self, handle: Handle, exclusive: bool) -> bool {
        let others = self.held.len() - usize::from(self.held.contains_key(&handle));
        // Whoever holds it alone is the only one.
        let alone = self.held.iter().next().is_some_and(|(_, alone)| *alone);
        others == 0 || !(exclusive || alone)
    }
}

/// How many requests wait.
#[derive(Debug, Default)]
struct Waiting {
    all: usize,
    of_user: HashMap<u32, usize>,
}

impl Waiting {
    /// Counts one more, if there is room.
    fn begin(&mut self, user: u32) -> bool {
        let of_user = self.of_user.get(&user).copied().unwrap_or(0);
        let room = self.all < WAITING_MAX && of_user < WAITING_OF_USER_MAX;
        if room {
            self.all += 1;
            self.of_user.insert(user, of_user + 1);
        }
        room
    }

    fn end(&mut self, user: u32) {
        self.all -= 1;
        if let Some(count) = self.of_user.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&user);
            }
        }
    }
}

/// An open file.
#[derive(Clone, Copy, Debug)]
struct Member {
    table: TableId,
    ino: Ino,
}

/// The locks of all names.
#[derive(Debug, Default)]
pub(super) struct Locks {
    tables: HashMap<TableId, Table>,
    names: HashMap<Spot, TableId>,
    members: HashMap<Handle, Member>,
    /// The table of each inode that is open, and how often it is: a file without a name can be opened
    /// again, through `/proc/self/fd`.
    inodes: HashMap<Ino, (TableId, usize)>,
    held: usize,
    waiting: Waiting,
    last: u64,
}

impl Locks {
    /// Takes in an open file, which stands on `ino` and goes by these names, if it has any. `former` is a
    /// name under which another version has taken its place.
    pub(super) fn open<'a>(
        &mut self,
        handle: Handle,
        ino: Ino,
        names: impl Iterator<Item = &'a Spot> + Clone,
        former: Option<&'a Spot>,
    ) {
        let named = names.clone().find_map(|name| self.names.get(name).copied());
        let known = named.or_else(|| self.inodes.get(&ino).map(|(table, _)| *table));
        let former = former.filter(|_| known.is_none());
        let known = known.or_else(|| self.names.get(former?).copied());
        let id = known.unwrap_or_else(|| TableId(self.next()));
        let table = self.tables.entry(id).or_default();
        table.members += 1;
        for name in names.chain(former) {
            // A name that has a table keeps it: others may hold its lock.
            self.names.entry(name.clone()).or_insert_with(|| {
                table.names.push(name.clone());
                id
            });
        }
        let known = self.inodes.entry(ino).or_insert((id, 0));
        *known = (id, known.1 + 1);
        self.members.insert(handle, Member { table: id, ino });
    }

    /// Ends an open file, with its lock and whatever it waits for.
    pub(super) fn close(&mut self, handle: Handle) {
        let Some(Member { table: id, ino }) = self.members.remove(&handle) else { return };
        if let Some((_, opens)) = self.inodes.get_mut(&ino) {
            *opens -= 1;
            if *opens == 0 {
                self.inodes.remove(&ino);
            }
        }
        let Some(table) = self.tables.get_mut(&id) else { return };
        table.members -= 1;
        let waiting = &mut self.waiting;
        table.waiting.retain(|waiter| {
            let stays = waiter.ticket.handle != handle;
            if !stays {
                waiting.end(waiter.user);
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

    /// Does what `flock` asks of an open file, or has it wait. `EAGAIN`: somebody is in the way, and there is
    /// no room for one more that waits.
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
        if table.held.get(&handle) == Some(&exclusive) {
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
        if self.held + self.waiting.all >= LOCKS_MAX {
            return Err(Errno::ENOLCK);
        }
        let number = self.next();
        let table = self.tables.get_mut(&id).ok_or(Errno::EBADF)?;
        if table.admits(handle, exclusive) {
            table.held.insert(handle, exclusive);
            self.held += 1;
            return Ok(Asked::Done);
        }
        if !self.waiting.begin(user) {
            return Err(Errno::EAGAIN);
        }
        let (give, given) = oneshot::channel();
        let ticket = Ticket { handle, number };
        table.waiting.push_back(Waiter { ticket, user, exclusive, give });
        Ok(Asked::Waits(Waits { ticket, given }))
    }

    /// Takes back a request that waits. Returns whether the lock has come meanwhile, and stays.
    pub(super) fn give_up(&mut self, ticket: Ticket) -> bool {
        let member = self.members.get(&ticket.handle);
        let Some(table) = member.and_then(|member| self.tables.get_mut(&member.table)) else {
            return false;
        };
        let Some(at) = table.waiting.iter().position(|waiter| waiter.ticket == ticket) else {
            return true;
        };
        if let Some(waiter) = table.waiting.remove(at) {
            self.waiting.end(waiter.user);
        }
        false
    }

    /// A file gets a further name.
    pub(super) fn link(&mut self, old: &Spot, new: &Spot) {
        self.unlink(new);
        if let Some(id) = self.names.get(old).copied() {
            self.lead(id, new);
        }
    }

    /// A name becomes another; what had that one loses it.
    pub(super) fn rename(&mut self, from: &Spot, to: &Spot) {
        if from == to {
            return;
        }
        self.link(from, to);
        self.unlink(from);
    }

    /// Two names change places.
    pub(super) fn exchange(&mut self, one: &Spot, other: &Spot) {
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
    fn lead(&mut self, id: TableId, name: &Spot) {
        if let Some(table) = self.tables.get_mut(&id) {
            table.names.push(name.clone());
            self.names.insert(name.clone(), id);
        }
    }

    /// A name leads nowhere any more.
    pub(super) fn unlink(&mut self, name: &Spot) {
        if let Some(table) = self.names.remove(name).and_then(|id| self.tables.get_mut(&id)) {
            table.names.retain(|other| other != name);
        }
    }

    /// Ends the lock of an open file, without serving those that wait. Returns whether there was one.
    fn let_go(&mut self, id: TableId, handle: Handle) -> bool {
        let table = self.tables.get_mut(&id);
        let had = table.is_some_and(|table| table.held.remove(&handle).is_some());
        self.held -= usize::from(had);
        had
    }

    /// Gives the lock to those that wait for it, as far as it goes.
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
            self.waiting.end(waiter.user);
            // Nobody listens once the daemon stops.
            if waiter.give.send(()).is_err() {
                continue;
            }
            if table.held.insert(handle, exclusive).is_none() {
                self.held += 1;
            }
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Handle = Handle(1);
    const B: Handle = Handle(2);
    const C: Handle = Handle(3);
    const D: Handle = Handle(4);
    const USER: u32 = 1000;

    fn spot(name: &str) -> Spot {
        (Ino::ROOT, name.as_bytes().into())
    }

    /// Opens a file by one name, each time on another inode, as versions are.
    fn open(locks: &mut Locks, handle: Handle, name: &str) {
        locks.open(handle, Ino(100 + handle.0), [spot(name)].iter(), None);
    }

    /// All four on one name.
    fn four() -> Locks {
        let mut locks = Locks::default();
        for handle in [A, B, C, D] {
            open(&mut locks, handle, "n");
        }
        locks
    }

    fn done(locks: &mut Locks, handle: Handle, kind: FlockKind) {
        let asked = locks.ask(handle, USER, kind).expect("asked");
        assert!(matches!(asked, Asked::Done), "{handle:?} {kind:?}");
    }

    fn waits(locks: &mut Locks, handle: Handle, kind: FlockKind) -> Waits {
        match locks.ask(handle, USER, kind).expect("asked") {
            Asked::Waits(waits) => waits,
            Asked::Done => panic!("{handle:?} {kind:?} need not wait"),
        }
    }

    /// Nothing is left once nobody has anything open.
    fn end(mut locks: Locks) {
        for handle in [A, B, C, D] {
            locks.close(handle);
        }
        let sizes = [
            locks.tables.len(),
            locks.names.len(),
            locks.members.len(),
            locks.inodes.len(),
            locks.held,
            locks.waiting.all,
            locks.waiting.of_user.len(),
        ];
        assert_eq!(sizes, [0; 7]);
    }

    use FlockKind::{Exclusive, Shared, Unlock};

    #[test]
    fn what_excludes_what() {
        let table = [
            (None, Shared, true),
            (None, Exclusive, true),
            (Some(Shared), Shared, true),
            (Some(Shared), Exclusive, false),
            (Some(Exclusive), Shared, false),
            (Some(Exclusive), Exclusive, false),
        ];
        for (held, asked, given) in table {
            let mut locks = four();
            if let Some(held) = held {
                done(&mut locks, A, held);
                done(&mut locks, A, held);
            }
            let got = matches!(locks.ask(B, USER, asked), Ok(Asked::Done));
            assert_eq!(got, given, "{held:?} {asked:?}");
            end(locks);
        }
    }

    #[test]
    fn those_that_wait_are_served_in_their_order() {
        let mut locks = four();
        done(&mut locks, A, Exclusive);
        let mut second = waits(&mut locks, B, Exclusive);
        let mut third = waits(&mut locks, C, Exclusive);
        done(&mut locks, A, Unlock);
        assert!(second.given.try_recv().is_ok() && third.given.try_recv().is_err());
        let mut last = waits(&mut locks, A, Shared);
        locks.close(B);
        assert!(third.given.try_recv().is_ok() && last.given.try_recv().is_err());
        done(&mut locks, C, Unlock);
        assert!(last.given.try_recv().is_ok());
        end(locks);
    }

    #[test]
    fn who_shares_passes_who_wants_it_alone() {
        let mut locks = four();
        done(&mut locks, A, Shared);
        let mut alone = waits(&mut locks, B, Exclusive);
        done(&mut locks, C, Shared);
        done(&mut locks, A, Unlock);
        assert!(alone.given.try_recv().is_err());
        done(&mut locks, C, Unlock);
        assert!(alone.given.try_recv().is_ok());
        end(locks);
    }

    #[test]
    fn all_that_share_are_served_together() {
        let mut locks = four();
        done(&mut locks, A, Exclusive);
        let mut one = waits(&mut locks, B, Shared);
        let mut alone = waits(&mut locks, C, Exclusive);
        let mut other = waits(&mut locks, D, Shared);
        done(&mut locks, A, Unlock);
        assert!(one.given.try_recv().is_ok() && other.given.try_recv().is_ok());
        assert!(alone.given.try_recv().is_err());
        end(locks);
    }

    #[test]
    fn a_change_lets_the_old_lock_go_first() {
        let mut locks = four();
        done(&mut locks, A, Exclusive);
        let mut other = waits(&mut locks, B, Shared);
        done(&mut locks, A, Shared);
        assert!(other.given.try_recv().is_ok(), "both share");
        // Who may not wait has lost the lock that he had.
        let refused = waits(&mut locks, A, Exclusive);
        assert!(!locks.give_up(refused.ticket));
        done(&mut locks, B, Exclusive);
        // Alone, the change comes before those that wait.
        let mut queued = waits(&mut locks, C, Exclusive);
        done(&mut locks, B, Shared);
        done(&mut locks, B, Exclusive);
        assert!(queued.given.try_recv().is_err());
        end(locks);
    }

    #[test]
    fn giving_up_tells_whether_the_lock_has_come() {
        let mut locks = four();
        done(&mut locks, A, Exclusive);
        let second = waits(&mut locks, B, Exclusive);
        let third = waits(&mut locks, C, Exclusive);
        assert!(!locks.give_up(second.ticket));
        done(&mut locks, A, Unlock);
        assert!(locks.give_up(third.ticket), "it came");
        assert!(matches!(locks.ask(A, USER, Shared), Ok(Asked::Waits(_))), "and stays");
        end(locks);
    }

    #[test]
    fn nobody_listens_any_more() {
        let mut locks = four();
        done(&mut locks, A, Exclusive);
        drop(waits(&mut locks, B, Exclusive));
        let mut third = waits(&mut locks, C, Exclusive);
        locks.close(A);
        assert!(third.given.try_recv().is_ok());
        end(locks);
    }

    /// Which of the other files a lock of A's keeps out, after something has happened to the names.
    #[test]
    fn tables_go_with_names() {
        type Act = fn(&mut Locks);
        let table: [(&str, Act, [bool; 3]); 10] = [
            ("nothing", |_| (), [true, false, false]),
            ("rename", |l| l.rename(&spot("n"), &spot("x")), [true, false, true]),
            ("rename over", |l| l.rename(&spot("m"), &spot("n")), [true, false, false]),
            ("rename over another", |l| l.rename(&spot("n"), &spot("m")), [true, false, false]),
            ("rename to itself", |l| l.rename(&spot("n"), &spot("n")), [true, false, false]),
            ("unlink", |l| l.unlink(&spot("n")), [true, false, false]),
            (
                "unlink and rename back",
                |l| {
                    l.rename(&spot("n"), &spot("y"));
                    l.unlink(&spot("y"));
                },
                [true, false, false],
            ),
            ("exchange", |l| l.exchange(&spot("n"), &spot("x")), [true, false, true]),
            ("link", |l| l.link(&spot("n"), &spot("x")), [true, false, true]),
            (
                "link, and the first name goes",
                |l| {
                    l.link(&spot("n"), &spot("x"));
                    l.unlink(&spot("n"));
                },
                [true, false, true],
            ),
        ];
        for (what, act, kept_out) in table {
            let mut locks = Locks::default();
            for (handle, name) in [(A, "n"), (B, "n"), (C, "m")] {
                open(&mut locks, handle, name);
            }
            done(&mut locks, A, Exclusive);
            act(&mut locks);
            open(&mut locks, D, "x");
            let mut is_kept_out =
                |handle| matches!(locks.ask(handle, USER, Shared), Ok(Asked::Waits(_)));
            assert_eq!([B, C, D].map(&mut is_kept_out), kept_out, "{what}");
            end(locks);
        }
    }

    #[test]
    fn the_next_file_with_a_name_starts_a_table() {
        let mut locks = Locks::default();
        open(&mut locks, A, "n");
        done(&mut locks, A, Exclusive);
        locks.unlink(&spot("n"));
        open(&mut locks, B, "n");
        done(&mut locks, B, Exclusive);
        // The one that went is opened again by its inode, also when its name leads elsewhere by now.
        locks.open(C, Ino(100 + A.0), [].iter(), Some(&spot("n")));
        drop(waits(&mut locks, C, Shared));
        locks.close(A);
        assert!(locks.tables.len() == 2);
        end(locks);
    }

    #[test]
    fn a_version_that_was_replaced_shares_the_lock_of_its_name() {
        let mut locks = Locks::default();
        locks.open(A, Ino(7), [].iter(), Some(&spot("n")));
        done(&mut locks, A, Shared);
        open(&mut locks, B, "n");
        drop(waits(&mut locks, B, Exclusive));
        end(locks);
    }

    #[test]
    fn names_of_one_file_share_a_table() {
        let mut locks = Locks::default();
        let both = [spot("n"), spot("m")];
        open(&mut locks, A, "m");
        locks.open(B, Ino(8), both.iter(), None);
        open(&mut locks, C, "n");
        done(&mut locks, A, Exclusive);
        drop(waits(&mut locks, B, Shared));
        drop(waits(&mut locks, C, Shared));
        end(locks);
    }

    #[test]
    fn numbers_are_bounded() {
        let mut locks = four();
        done(&mut locks, A, Exclusive);
        let waiting: Vec<Waits> =
            (0..WAITING_OF_USER_MAX).map(|_| waits(&mut locks, B, Exclusive)).collect();
        assert_eq!(locks.ask(C, USER, Shared).expect_err("enough for one"), Errno::EAGAIN);
        for number in WAITING_OF_USER_MAX as u32..WAITING_MAX as u32 {
            assert!(
                matches!(locks.ask(C, USER + 1 + number, Exclusive), Ok(Asked::Waits(_))),
                "{number}"
            );
        }
        assert_eq!(locks.ask(C, 7, Shared).expect_err("full"), Errno::EAGAIN);
        drop(waiting);
        end(locks);
        let mut locks = Locks::default();
        for number in 0..LOCKS_MAX as u64 {
            open(&mut locks, Handle(10 + number), &number.to_string());
            done(&mut locks, Handle(10 + number), Shared);
        }
        open(&mut locks, A, "n");
        assert_eq!(locks.ask(A, USER, Shared).expect_err("too many"), Errno::ENOLCK);
        done(&mut locks, A, Unlock);
        assert_eq!(locks.ask(B, USER, Unlock).expect_err("not open"), Errno::EBADF);
    }
}
