//! Tests of `decide_open` over the whole table of inputs.

use super::*;

const TRUTH: [bool; 2] = [false, true];

fn asked_all() -> impl Iterator<Item = OpenRequest> {
    [How::Read, How::Write, How::Empty].into_iter().flat_map(|how| {
        (0..8_u8).map(move |bits| OpenRequest {
            how,
            last: bits & 1 > 0,
            unseen: bits & 2 > 0,
            walked: bits & 1 > 0 && bits & 4 > 0,
        })
    })
}

fn names_all() -> impl Iterator<Item = NameHas> {
    (0..16_u8).map(|bits| NameHas {
        own: bits & 1 > 0,
        joinable: bits & 2 > 0,
        entry: bits & 4 > 0,
        current: bits & 8 > 0,
    })
}

fn lives_all() -> impl Iterator<Item = LiveIs> {
    let stages = [StageIs::Writing, StageIs::Held, StageIs::Published, StageIs::Dropped];
    let writers = [WritersAre::Gone, WritersAre::Closed, WritersAre::Open];
    let both = stages.into_iter().flat_map(move |stage| writers.map(|writers| (stage, writers)));
    both.flat_map(|(stage, writers)| {
        (0..8_u8).map(move |bits| LiveIs {
            stage,
            member: bits & 1 > 0,
            named: bits & 2 > 0,
            writers,
            settling: bits & 4 > 0,
        })
    })
}

fn everything() -> impl Iterator<Item = Is> {
    let mut all = vec![Is::Directory, Is::Other, Is::Reserved];
    all.extend(TRUTH.map(|open| Is::Gone { open }));
    for bound in TRUTH {
        all.extend(TRUTH.map(|readable| Is::Entry { bound, readable }));
    }
    all.into_iter().chain(lives_all().map(Is::Live))
}

/// Calls `check` with every combination of inputs.
fn each(mut check: impl FnMut(OpenRequest, Is, NameHas, OpenPlan)) {
    for asked in asked_all() {
        for is in everything() {
            for name in names_all() {
                check(asked, is, name, decide_open(asked, is, name));
            }
        }
    }
}

#[test]
fn no_caller_gets_look_again_twice() {
    each(|asked, is, name, plan| {
        assert!(!(asked.last && plan == OpenPlan::LookAgain), "{asked:?} {is:?} {name:?}");
    });
}

#[test]
fn readers_read_and_writers_write() {
    each(|asked, is, name, plan| {
        let reads = matches!(plan, OpenPlan::Read | OpenPlan::ReadLive | OpenPlan::ReadCurrent);
        let writes = matches!(
            plan,
            OpenPlan::Join | OpenPlan::JoinAside | OpenPlan::Begin | OpenPlan::Aside { .. }
        );
        let strange = if asked.writes() { reads } else { writes };
        assert!(!strange, "{asked:?} {is:?} {name:?}");
    });
}

#[test]
fn p1_whole_or_nothing_only_members_read_what_has_a_name_and_is_not_closed() {
    each(|asked, is, name, plan| {
        if plan == OpenPlan::ReadLive {
            let Is::Live(live) = is else { panic!("{asked:?} {is:?} {name:?}") };
            let own = live.member || (!live.named && asked.last);
            assert!(own, "{asked:?} {is:?} {name:?}");
        }
    });
}

#[test]
fn no_writer_shares_bytes_that_are_being_digested_or_are_an_entrys() {
    each(|asked, is, name, plan| {
        if plan == OpenPlan::Join {
            let Is::Live(live) = is else { panic!("{asked:?} {is:?} {name:?}") };
            let still = !live.settling && live.stage == StageIs::Writing;
            assert!(still, "{asked:?} {is:?} {name:?}");
        }
    });
}

#[test]
fn two_processes_that_empty_a_file_never_share_bytes() {
    each(|asked, is, name, plan| {
        if asked.empties() && matches!(plan, OpenPlan::Join | OpenPlan::JoinAside) {
            let Is::Live(live) = is else { panic!("{asked:?} {is:?} {name:?}") };
            assert!(live.member || !live.named, "{asked:?} {is:?} {name:?}");
        }
    });
}

#[test]
fn what_its_name_has_left_is_never_published_again() {
    each(|asked, is, name, plan| {
        let unbound = match is {
            Is::Entry { bound, .. } => !bound,
            Is::Gone { .. } => true,
            Is::Live(live) => !live.named,
            _ => false,
        };
        let public = matches!(plan, OpenPlan::JoinAside | OpenPlan::Aside { named: true });
        assert!(!(unbound && public), "{asked:?} {is:?} {name:?}");
    });
}

#[test]
fn a_writer_that_can_be_led_never_writes_through_anothers_inode() {
    each(|asked, is, name, plan| {
        // A reserved inode belongs to no process, and its thread has looked again already.
        let aside =
            matches!(plan, OpenPlan::JoinAside | OpenPlan::Aside { .. }) && is != Is::Reserved;
        assert!(!aside || asked.last || asked.unseen, "{asked:?} {is:?} {name:?}");
    });
}

#[test]
fn an_old_version_is_not_read_through_a_name_that_has_moved_on() {
    each(|asked, is, name, plan| {
        if !asked.writes() && !asked.last && matches!(is, Is::Entry { bound: false, .. }) {
            assert_eq!(plan, OpenPlan::LookAgain, "{asked:?} {name:?}");
        }
    });
}

#[test]
fn lost_bytes_are_never_read() {
    each(|asked, is, name, plan| {
        if matches!(is, Is::Entry { readable: false, .. }) && !asked.writes() {
            let gone = matches!(
                plan,
                OpenPlan::LookAgain | OpenPlan::ReadCurrent | OpenPlan::Fail(Errno::ENOENT)
            );
            assert!(gone, "{asked:?} {is:?} {name:?}: {plan:?}");
        }
    });
}

/// The common cases, one by one.
#[test]
fn every_day() {
    let read = OpenRequest { how: How::Read, last: false, walked: false, unseen: false };
    let write = OpenRequest { how: How::Write, ..read };
    let empty = OpenRequest { how: How::Empty, ..write };
    let again = |asked| OpenRequest { last: true, ..asked };
    let entry = Is::Entry { bound: true, readable: true };
    let none = NameHas::default();
    let writing = LiveIs {
        stage: StageIs::Writing,
        member: false,
        named: true,
        writers: WritersAre::Open,
        settling: false,
    };
    let own = LiveIs { member: true, ..writing };
    let closed = LiveIs { stage: StageIs::Published, writers: WritersAre::Closed, ..writing };
    let table = [
        (read, entry, none, OpenPlan::Read),
        (write, entry, none, OpenPlan::LookAgain),
        (empty, entry, none, OpenPlan::LookAgain),
        (again(write), Is::Reserved, none, OpenPlan::Begin),
        (again(write), entry, none, OpenPlan::Aside { named: true }),
        (again(write), entry, NameHas { joinable: true, ..none }, OpenPlan::JoinAside),
        (read, Is::Live(writing), none, OpenPlan::Wait),
        (read, Is::Live(writing), NameHas { entry: true, ..none }, OpenPlan::LookAgain),
        (read, Is::Live(own), none, OpenPlan::ReadLive),
        (write, Is::Live(writing), none, OpenPlan::Join),
        (empty, Is::Live(writing), none, OpenPlan::LookAgain),
        (empty, Is::Live(own), none, OpenPlan::Join),
        (read, Is::Live(closed), none, OpenPlan::Settle),
        (write, Is::Live(closed), none, OpenPlan::Settle),
        (empty, Is::Live(closed), none, OpenPlan::LookAgain),
        (empty, Is::Live(LiveIs { member: true, ..closed }), none, OpenPlan::LookAgain),
        (read, Is::Directory, none, OpenPlan::Fail(Errno::EISDIR)),
        (read, Is::Other, none, OpenPlan::Fail(Errno::ENXIO)),
    ];
    for (asked, is, name, plan) in table {
        assert_eq!(decide_open(asked, is, name), plan, "{asked:?} {is:?} {name:?}");
    }
}

/// A reader that cannot be seen may have found the name before it was removed, and has no
/// descriptor of the file.
#[test]
fn a_reader_that_cannot_be_seen_reads_nothing_of_an_unpublished_file_without_a_name() {
    let asked = OpenRequest { how: How::Read, last: true, walked: false, unseen: true };
    let live = LiveIs {
        stage: StageIs::Writing,
        member: false,
        named: false,
        writers: WritersAre::Open,
        settling: false,
    };
    let plan = |asked| decide_open(asked, Is::Live(live), NameHas::default());
    assert_eq!(plan(asked), OpenPlan::Fail(Errno::ENOENT));
    assert_eq!(
        plan(OpenRequest { unseen: false, ..asked }),
        OpenPlan::ReadLive,
        "the caller has it open"
    );
}

/// The rare cases in which names move during an open, one by one.
#[test]
fn rare_days() {
    let read = OpenRequest { how: How::Read, last: false, walked: false, unseen: false };
    let write = OpenRequest { how: How::Write, ..read };
    let empty = OpenRequest { how: How::Empty, ..write };
    let unseen = OpenRequest { unseen: true, ..write };
    let again = |asked| OpenRequest { last: true, ..asked };
    let walked = |asked| OpenRequest { walked: true, ..again(asked) };
    let entry = |bound, readable| Is::Entry { bound, readable };
    let gone = |open| Is::Gone { open };
    let none = NameHas::default();
    let (own, joinable) = (NameHas { own: true, ..none }, NameHas { joinable: true, ..none });
    let current = NameHas { current: true, ..none };
    let writing = LiveIs {
        stage: StageIs::Writing,
        member: false,
        named: true,
        writers: WritersAre::Open,
        settling: false,
    };
    let nameless = LiveIs { named: false, ..writing };
    let dropped = LiveIs { stage: StageIs::Dropped, ..nameless };
    let held = LiveIs { stage: StageIs::Held, writers: WritersAre::Closed, ..writing };
    let own_of = |live: LiveIs| Is::Live(LiveIs { member: true, ..live });
    let missing = OpenPlan::Fail(Errno::ENOENT);
    let nowhere = OpenPlan::Aside { named: false };
    let table = [
        (again(write), Is::Reserved, joinable, OpenPlan::JoinAside),
        (again(empty), Is::Reserved, joinable, OpenPlan::Begin),
        (walked(read), Is::Reserved, current, OpenPlan::ReadCurrent),
        (walked(read), Is::Reserved, none, missing),
        (write, gone(true), none, OpenPlan::LookAgain),
        (again(write), gone(true), none, nowhere),
        (again(write), gone(false), none, missing),
        (again(empty), gone(false), none, nowhere),
        (again(read), gone(true), current, OpenPlan::Read),
        (walked(read), gone(true), current, OpenPlan::ReadCurrent),
        (walked(read), gone(true), none, missing),
        (read, entry(true, true), own, OpenPlan::LookAgain),
        (again(read), entry(true, true), own, OpenPlan::Read),
        (again(read), entry(false, true), none, OpenPlan::Read),
        (walked(read), entry(true, false), current, OpenPlan::ReadCurrent),
        (write, entry(true, false), none, OpenPlan::LookAgain),
        (again(write), entry(true, false), none, missing),
        (again(write), entry(true, false), own, OpenPlan::Aside { named: true }),
        (again(write), entry(true, false), joinable, OpenPlan::JoinAside),
        (again(write), entry(false, true), joinable, nowhere),
        (unseen, entry(true, true), none, OpenPlan::Aside { named: true }),
        (unseen, entry(false, true), none, OpenPlan::LookAgain),
        (unseen, Is::Live(writing), none, OpenPlan::Aside { named: true }),
        (unseen, Is::Live(LiveIs { writers: WritersAre::Gone, ..writing }), none, OpenPlan::Join),
        (read, own_of(dropped), none, OpenPlan::ReadLive),
        (again(read), Is::Live(dropped), none, missing),
        (walked(read), Is::Live(dropped), current, OpenPlan::ReadCurrent),
        (again(write), Is::Live(dropped), none, nowhere),
        (write, Is::Live(nameless), none, OpenPlan::LookAgain),
        (again(write), Is::Live(nameless), none, OpenPlan::Join),
        (write, own_of(nameless), none, OpenPlan::Join),
        (read, Is::Live(held), none, OpenPlan::Wait),
        (write, Is::Live(held), none, OpenPlan::Settle),
        (write, Is::Live(LiveIs { settling: true, ..writing }), none, OpenPlan::Wait),
    ];
    for (asked, is, name, plan) in table {
        assert_eq!(decide_open(asked, is, name), plan, "{asked:?} {is:?} {name:?}");
    }
}
