//! Changes that change nothing are not published: no stamp, no record, nothing for other nodes.

use std::sync::atomic::Ordering;
use std::time::Duration;

use proptest::prelude::*;

use super::harness::*;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, Op, Time};
use crate::stamp::Stamp;

const PATHS: [&str; 5] = ["a", "b", "d", "d/e", "d/f"];

#[derive(Debug, Clone, Copy)]
enum Step {
    Write(usize, u64),
    MakeDir(usize),
    Remove(usize),
    Chmod(usize, u32),
    SetTime(usize, i64),
    /// Sends waiting changes, so that the next steps meet what other nodes know.
    Push,
}

fn any_step() -> impl Strategy<Value = Step> {
    let at = 0..PATHS.len();
    prop_oneof![
        4 => (at.clone(), 0..4_u64).prop_map(|(at, seed)| Step::Write(at, seed)),
        2 => at.clone().prop_map(Step::MakeDir),
        2 => at.clone().prop_map(Step::Remove),
        2 => (at.clone(), 0..0o1000_u32).prop_map(|(at, mode)| Step::Chmod(at, mode)),
        1 => (at, 0..5_i64).prop_map(|(at, secs)| Step::SetTime(at, secs)),
        1 => Just(Step::Push),
    ]
}

/// Returns an operation that gives a path its present attributes, changed by `edit`.
fn attrs_of(node: &Node, at: &str, edit: impl FnOnce(&mut Attrs)) -> Option<(TreePath, Op)> {
    let at = path(at);
    node.engine.ledger().read(|fold| {
        let register = fold.visible(&at)?;
        let entry = register.entry?;
        let moved = fold.moved(&at).filter(|_| entry.is_directory());
        let mut attrs = entry.attrs;
        attrs.mtime = moved.unwrap_or(attrs.mtime);
        edit(&mut attrs);
        Some((at.clone(), Op::Attrs { of: register.stamp, attrs }))
    })
}

async fn play(node: &mut Node, step: Step) {
    let ops = match step {
        Step::Write(at, seed) => Some((path(PATHS[at]), Op::Put(node.store(&content(seed, 40))))),
        Step::MakeDir(at) => {
            Some((path(PATHS[at]), Op::Put(Entry::directory(0o755, 0, 0, Time::default()))))
        }
        Step::Remove(at) => Some((path(PATHS[at]), Op::Remove)),
        Step::Chmod(at, mode) => attrs_of(node, PATHS[at], |attrs| attrs.mode = mode),
        Step::SetTime(at, secs) => {
            attrs_of(node, PATHS[at], |attrs| attrs.mtime = Time { secs, nanos: 7 })
        }
        Step::Push => {
            node.push().await;
            None
        }
    };
    if let Some(op) = ops {
        node.engine.ledger().publish(vec![op]).unwrap();
    }
}

/// Returns operations that change nothing, with the stamps that they must return.
fn idle_ops(node: &Node) -> (Vec<(TreePath, Op)>, Vec<Stamp>) {
    let mut idle = vec![((path("never"), Op::Remove), Stamp::default())];
    for at in PATHS {
        let Some((at, Op::Attrs { of, attrs })) = attrs_of(node, at, |_| ()) else { continue };
        let register = node.engine.ledger().read(|fold| fold.register(&at)).unwrap();
        let put = Entry { attrs: attrs.clone(), ..register.entry.clone().unwrap() };
        idle.push(((at.clone(), Op::Attrs { of, attrs }), register.last_stamp()));
        idle.push(((at, Op::Put(put)), register.stamp));
    }
    idle.into_iter().unzip()
}

/// All state that a publish could change.
fn all_of(node: &Node) -> impl PartialEq + std::fmt::Debug + use<> {
    let ledger = node.engine.ledger();
    let moved: Vec<Option<Time>> =
        PATHS.iter().map(|at| ledger.read(|fold| fold.moved(&path(at)))).collect();
    let traffic = ledger.traffic();
    let counts = [&traffic.uploaded, &traffic.commits_written, &traffic.commits_applied];
    let counts = counts.map(|count| count.load(Ordering::Relaxed));
    (node.registers(), moved, ledger.last(), ledger.pending(), counts, ledger.applied())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_changes_nothing_leaves_everything_as_it_is(
        steps in prop::collection::vec(any_step(), 0..24),
    ) {
        run(async {
            let world = World::new();
            let mut node = world.node();
            for step in steps {
                play(&mut node, step).await;
                world.clock.advance(Duration::from_millis(3));
                let before = all_of(&node);
                let (ops, stamps) = idle_ops(&node);
                for (op, stamp) in ops.iter().zip(&stamps) {
                    let (one, held) = (vec![op.clone()], vec![op.clone()]);
                    assert_eq!(node.engine.ledger().publish(one).unwrap(), [*stamp]);
                    let (held, token) = node.engine.ledger().publish_held(held).unwrap();
                    assert_eq!(held, [*stamp]);
                    drop(token);
                }
                assert_eq!(node.engine.ledger().publish(ops).unwrap(), stamps);
                assert_eq!(all_of(&node), before);
            }
            let commits = node.engine.ledger().traffic().commits_written.load(Ordering::Relaxed);
            node.push().await;
            let (ops, _) = idle_ops(&node);
            node.engine.ledger().publish(ops).unwrap();
            let sent = node.engine.ledger().traffic().commits_written.load(Ordering::Relaxed);
            node.push().await;
            let last = node.engine.ledger().traffic().commits_written.load(Ordering::Relaxed);
            assert!(commits <= sent && sent == last, "{commits} {sent} {last}");
        });
    }
}

#[test]
fn beside_a_change_unchanged_operations_are_published_too() {
    run(async {
        let world = World::new();
        let a = world.node();
        a.write("f", b"x");
        let stood = a.write("g", b"y");
        let (g, same) = attrs_of(&a, "g", |_| ()).unwrap();
        world.clock.advance(Duration::from_secs(1));
        a.publish(vec![(path("f"), Op::Remove), (g.clone(), same)]);
        let register = a.engine.ledger().read(|fold| fold.register(&g)).unwrap();
        assert!(register.stamp == stood && register.changed_ms() > stood.ms, "the ctime moves");
    });
}

#[test]
fn what_grows_old_is_published_again_although_it_is_the_same() {
    run(async {
        let world = World::aging(Duration::from_hours(20));
        let mut a = world.node();
        a.remote().check().await.unwrap();
        let (empty, full) = (a.write("empty", b""), a.write("full", b"x"));
        a.push().await;
        assert_eq!((a.write("empty", b""), a.write("full", b"x")), (empty, full));
        world.clock.advance(Duration::from_hours(11));
        assert!(a.write("empty", b"") > empty && a.write("full", b"x") > full);
    });
}

#[test]
fn lost_bytes_come_back_when_they_are_written_again() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let first = a.write("f", b"bytes");
        a.push().await;
        let (digest, _) = a.entry("f").unwrap().content().unwrap();
        let place = a.engine.ledger().location(&digest).unwrap();
        a.engine.ledger().mark_bad(&digest, &place);
        assert!(a.write("f", b"bytes") > first, "the bytes are sent again");
        a.push().await;
        assert!(b.pull().await);
        assert_eq!(b.read("f").await, Some(b"bytes".to_vec()));
    });
}

#[test]
fn a_blob_that_was_written_again_can_be_evicted() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let bytes = content(1, 5000);
        a.send("f", &bytes).await;
        let unsaved = || a.engine.ledger().blobs().usage().unsaved_bytes;
        assert_eq!(unsaved(), 0);
        a.write("f", &bytes);
        assert_eq!(unsaved(), 0, "no program waits for it");
    });
}
