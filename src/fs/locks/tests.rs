//! Tests of the locks of names.

use super::*;

const A: Handle = Handle(1);
const B: Handle = Handle(2);
const C: Handle = Handle(3);
const D: Handle = Handle(4);
const USER: u32 = 1000;

fn spot(name: &str) -> DirEntryKey {
    (Ino::ROOT, name.as_bytes().into())
}

/// Opens a file by one name, each time on another inode, because each version has its own.
fn open(locks: &mut Locks, handle: Handle, name: &str) {
    locks.open(handle, Ino(100 + handle.0), [spot(name)].iter(), None);
}

/// Makes a table with all four files open on one name.
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
        Asked::Done => panic!("{handle:?} {kind:?} does not wait"),
    }
}

/// Checks that nothing is left after all files are closed.
fn end(mut locks: Locks) {
    for handle in [A, B, C, D] {
        locks.close(handle);
    }
    let sizes = [locks.tables.len(), locks.names.len(), locks.members.len(), locks.inodes.len()];
    assert_eq!(sizes, [0; 4]);
    assert!(locks.shares.is_empty() && locks.waiting.is_empty());
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
fn shared_requests_pass_a_waiting_exclusive_one() {
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
    assert!(other.given.try_recv().is_ok(), "both hold a shared lock");
    // An open file whose request is refused has lost its old lock, too.
    let refused = waits(&mut locks, A, Exclusive);
    assert!(!locks.give_up(refused.ticket));
    done(&mut locks, B, Exclusive);
    // With no other holder, the change comes before the requests that wait.
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
    assert!(locks.give_up(third.ticket), "the lock was granted");
    assert!(matches!(locks.ask(A, USER, Shared), Ok(Asked::Waits(_))), "the lock stays held");
    end(locks);
}

#[test]
fn a_waiter_that_is_gone_gets_no_lock() {
    let mut locks = four();
    done(&mut locks, A, Exclusive);
    drop(waits(&mut locks, B, Exclusive));
    let mut third = waits(&mut locks, C, Exclusive);
    locks.close(A);
    assert!(third.given.try_recv().is_ok());
    end(locks);
}

/// Checks which of the other files a lock of A excludes after the names have changed.
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
    // The file that has lost its name is opened again by its inode, although its name leads
    // elsewhere by now.
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
    let of_one = WAITING_MAX / 4 * 3;
    let waiting: Vec<Waits> = (0..of_one).map(|_| waits(&mut locks, B, Exclusive)).collect();
    assert_eq!(locks.ask(C, USER, Shared).expect_err("one user's share is used"), Errno::EAGAIN);
    for number in of_one as u32..WAITING_MAX as u32 {
        assert!(
            matches!(locks.ask(C, USER + 1 + number, Exclusive), Ok(Asked::Waits(_))),
            "{number}"
        );
    }
    assert_eq!(locks.ask(C, 7, Shared).expect_err("full"), Errno::EAGAIN);
    drop(waiting);
    end(locks);
    let mut locks = Locks::default();
    let of_one = LOCKS_MAX / 4 * 3;
    for number in 0..of_one {
        open(&mut locks, Handle(10 + number), &number.to_string());
        done(&mut locks, Handle(10 + number), Shared);
    }
    open(&mut locks, A, "n");
    assert_eq!(locks.ask(A, USER, Shared).expect_err("too many locks"), Errno::ENOLCK);
    assert!(
        matches!(locks.ask(A, USER + 1, Shared), Ok(Asked::Done)),
        "another user has its own limit"
    );
    done(&mut locks, A, Unlock);
    assert_eq!(locks.ask(B, USER, Unlock).expect_err("not open"), Errno::EBADF);
}

#[test]
fn two_threads_that_ask_by_one_file_hold_one_lock() {
    let mut locks = four();
    done(&mut locks, A, Exclusive);
    let both = [waits(&mut locks, B, Exclusive), waits(&mut locks, B, Exclusive)];
    done(&mut locks, A, Unlock);
    for mut one in both {
        one.given.try_recv().unwrap();
    }
    end(locks);
}
