//! Short programs, most of them found by random ones.

use hearthfs_mount::{FlockKind, OpenAccess, OpenFlags};

use super::calls::{Call, Text};
use super::node::{READ, node, runtime};
use super::world::World;

const WRITE: OpenFlags = OpenFlags { access: OpenAccess::Write, ..READ };

fn text(of: &str) -> Text {
    Text(of.as_bytes().to_vec())
}

/// Makes the calls of some programs, and compares the outcome with the model, in both I/O modes.
fn check(calls: impl Fn(&mut World<'_>)) {
    for passthrough in [false, true] {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let mut world = World::new(&runtime, node(&dir), passthrough);
        calls(&mut world);
        world.compare();
    }
}

#[test]
fn a_descriptor_that_is_opened_again_joins_the_writer_of_another_name_of_its_file() {
    check(|world| {
        world.call(0, &Call::Open { path: "b", fd: 1, flags: READ, mode: Some(0o666) });
        world.call(0, &Call::Link { from: "b", to: "d" });
        world.call(0, &Call::Open { path: "d", fd: 2, flags: WRITE, mode: None });
        world.call(1, &Call::Open { path: "b", fd: 3, flags: READ, mode: None });
        world.call(1, &Call::Reopen { fd: 3, new: 4, flags: WRITE });
        world.call(1, &Call::Write { fd: 4, at: 0, text: text("joined") });
        world.call(1, &Call::Close { fd: 4 });
        // The other writer has not closed the file.
        world.call(2, &Call::Open { path: "b", fd: 5, flags: READ, mode: None });
        world.call(2, &Call::Read { fd: 5 });
        world.call(0, &Call::Close { fd: 2 });
    });
}

#[test]
fn a_mode_changed_while_another_node_removes_the_file_is_that_of_what_is_written() {
    check(|world| {
        world.call(0, &Call::Open { path: "a", fd: 1, flags: WRITE, mode: Some(0o666) });
        world.call(0, &Call::Close { fd: 1 });
        world.expect("a", Some((text("other"), World::rights_of(3, 0o466))), 0);
        world.call(1, &Call::Open { path: "a", fd: 2, flags: WRITE, mode: None });
        world.call(1, &Call::Write { fd: 2, at: 0, text: text("written") });
        world.call(2, &Call::Open { path: "a", fd: 3, flags: READ, mode: None });
        world.call(2, &Call::Close { fd: 3 });
        world.expect("a", None, 1);
        world.call(3, &Call::ChangeMode { path: "a", mode: 0o666 });
        world.call(1, &Call::Close { fd: 2 });
    });
}

#[test]
fn locks_stay_with_their_files_when_one_is_renamed_over_the_other() {
    check(|world| {
        let lock = |world: &mut World<'_>, program, fd| {
            world.call(program, &Call::Lock { fd, kind: FlockKind::Exclusive })
        };
        world.call(3, &Call::Open { path: "b", fd: 1, flags: READ, mode: Some(0o666) });
        assert!(lock(world, 3, 1));
        world.call(2, &Call::Open { path: "a", fd: 2, flags: WRITE, mode: Some(0o666) });
        assert!(lock(world, 2, 2));
        world.call(0, &Call::Rename { from: "a", to: "b" });
        assert!(world.call(3, &Call::Lock { fd: 1, kind: FlockKind::Unlock }));
        assert!(lock(world, 3, 1), "the replaced file");
        world.call(1, &Call::Open { path: "b", fd: 3, flags: WRITE, mode: None });
        assert!(!lock(world, 1, 3), "the file that has the name now");
    });
}
