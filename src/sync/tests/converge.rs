//! P7: whatever the nodes do, in any order, they end with the same namespace.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::announced::WIDE;
use super::harness::*;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, Fold, Op, Register, Time};
use crate::stamp::Stamp;

const PATHS: [&str; 6] = ["a", "b", "d", "d/x", "d/y", "e/f"];

/// One step of one node.
#[derive(Debug, Clone)]
enum Step {
    Write { at: usize, seed: u64 },
    Remove { at: usize },
    Rename { from: usize, to: usize },
    Mkdir { at: usize },
    Chmod { at: usize, mode: u32 },
    Upload,
    Commit,
    Push,
    Pull,
    Save,
    Crash { lose_index: bool },
    Tick { ms: u64 },
}

fn any_step() -> impl Strategy<Value = (usize, Step)> {
    let at = 0..PATHS.len();
    let step = prop_oneof![
        6 => (at.clone(), 0..40_u64).prop_map(|(at, seed)| Step::Write { at, seed }),
        4 => at.clone().prop_map(|at| Step::Remove { at }),
        3 => (at.clone(), at.clone()).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => at.clone().prop_map(|at| Step::Mkdir { at }),
        2 => (at, 0..8_u32).prop_map(|(at, mode)| Step::Chmod { at, mode }),
        3 => Just(Step::Upload),
        3 => Just(Step::Commit),
        3 => Just(Step::Push),
        5 => Just(Step::Pull),
        2 => Just(Step::Save),
        2 => any::<bool>().prop_map(|lose_index| Step::Crash { lose_index }),
        2 => (1..3000_u64).prop_map(|ms| Step::Tick { ms }),
    ];
    (0..3_usize, step)
}

/// Sizes for inline blobs, packs, and sometimes separate objects.
fn body(seed: u64) -> Vec<u8> {
    let size = match seed % 8 {
        0..=3 => 20,
        4..=6 => 6000,
        _ => 1_050_000 + seed as usize,
    };
    content(seed, size)
}

/// What all nodes have published, by path.
#[derive(Default)]
struct Model(BTreeMap<TreePath, Vec<(Stamp, Option<Entry>)>>);

impl Model {
    fn note(&mut self, at: &TreePath, stamp: Stamp, entry: Option<Entry>) {
        self.0.entry(at.clone()).or_default().push((stamp, entry));
    }

    /// Checks what a node shows: the last put wins. After a last remove there is nothing, or a put
    /// of another node that the remover had not received.
    fn check(&self, found: &BTreeMap<TreePath, (Stamp, Entry)>) {
        for (at, all) in &self.0 {
            let (stamp, last) = all.iter().max_by_key(|(stamp, _)| *stamp).unwrap();
            match (last, found.get(at)) {
                (Some(entry), Some((shown, shown_entry))) => {
                    // An earlier put may be shown in its place if it was the same.
                    assert!(shown <= stamp, "{at}");
                    assert_eq!(&shown_entry.kind, &entry.kind, "{at}");
                }
                (Some(_), None) => panic!("{at} is lost"),
                (None, Some((shown, _))) => {
                    assert!(shown < stamp && shown.node != stamp.node, "{at} came back");
                }
                (None, None) => {}
            }
        }
        assert!(found.keys().all(|at| self.0.contains_key(at)));
    }
}

fn do_step(node: &Node, model: &mut Model, step: &Step) {
    let ledger = node.engine.ledger();
    let entry = |at: &TreePath| ledger.read(|fold| fold.register(at));
    match *step {
        Step::Write { at, seed } => {
            let (at, entry) = (path(PATHS[at]), node.store(&body(seed)));
            let stamp = node.publish(vec![(at.clone(), Op::Put(entry.clone()))]);
            model.note(&at, stamp, Some(entry));
        }
        Step::Remove { at } => {
            let at = path(PATHS[at]);
            if entry(&at).is_some_and(|register| register.entry.is_some()) {
                let stamp = node.publish(vec![(at.clone(), Op::Remove)]);
                model.note(&at, stamp, None);
            }
        }
        Step::Rename { from, to } => {
            let (from, to) = (path(PATHS[from]), path(PATHS[to]));
            let moved = entry(&from).and_then(|register| register.entry);
            if let Some(entry) = moved.filter(|entry| from != to && !entry.is_directory()) {
                let ops = vec![(to.clone(), Op::Put(entry.clone())), (from.clone(), Op::Remove)];
                let stamps = ledger.publish(ops).unwrap();
                model.note(&to, stamps[0], Some(entry));
                model.note(&from, stamps[1], None);
            }
        }
        Step::Mkdir { at } => {
            let at = path(PATHS[at]);
            let entry = Entry::directory(0o755, 0, 0, Time::default());
            let stamp = node.publish(vec![(at.clone(), Op::Put(entry.clone()))]);
            model.note(&at, stamp, Some(entry));
        }
        Step::Chmod { at, mode } => {
            let at = path(PATHS[at]);
            let live = entry(&at).filter(|register| register.entry.is_some());
            if let Some(Register { stamp: of, .. }) = live {
                let attrs = Attrs { mode, ..Attrs::default() };
                node.publish(vec![(at, Op::Attrs { of, attrs })]);
            }
        }
        _ => unreachable!("no program does this"),
    }
}

async fn turn(
    world: &World,
    nodes: &mut [Option<Node>],
    model: &mut Model,
    who: usize,
    step: &Step,
) {
    let node = nodes[who].as_mut().unwrap();
    match step {
        Step::Upload => node.upload().await,
        Step::Commit => node.commit().await,
        Step::Push => {
            node.commit().await;
            node.push().await;
        }
        Step::Pull => drop(node.pull().await),
        Step::Save => node.engine.ledger().save().unwrap(),
        Step::Tick { ms } => world.clock.advance(std::time::Duration::from_millis(*ms)),
        Step::Crash { lose_index } => {
            let root = nodes[who].take().unwrap().crash();
            if *lose_index {
                std::fs::remove_dir_all(root.path().join("v1/index")).unwrap();
            }
            nodes[who] = Some(world.node_at(root));
        }
        step => do_step(node, model, step),
    }
}

/// Folds all commits of the log.
async fn fold_of_log(world: &World) -> Fold {
    let mut fold = Fold::new();
    for key in world.log().await {
        for change in &world.commit(&key).await.changes {
            fold.apply(change, Time::default());
        }
    }
    fold
}

async fn play(steps: Vec<(usize, Step)>, trouble: &str) {
    let world = World::new();
    let mut model = Model::default();
    let mut nodes: Vec<_> = (0..3).map(|_| Some(world.node())).collect();
    for (who, step) in &steps {
        nodes[*who].as_ref().unwrap().fail(trouble);
        turn(&world, &mut nodes, &mut model, *who, step).await;
    }
    let mut nodes: Vec<Node> = nodes.into_iter().flatten().collect();
    for node in &mut nodes {
        node.fail("");
        node.commit().await;
        node.push().await;
    }
    if !trouble.is_empty() {
        // A run that was killed before it could announce its last commit: a wide list finds that.
        world.clock.advance(WIDE);
    }
    let log = fold_of_log(&world).await;
    let expected: Vec<_> = log.registers().map(|(p, r)| (p.clone(), r.clone())).collect();
    for node in &nodes {
        assert!(node.pull().await);
        assert_eq!(node.registers(), expected, "the namespace is the fold of the log");
        let live = expected.iter().filter_map(|(at, register)| {
            Some((at.clone(), (register.stamp, register.entry.clone()?)))
        });
        let live: BTreeMap<_, _> = live.collect();
        model.check(&live);
        for (at, (_, entry)) in &live {
            if let Some((digest, size)) = entry.content() {
                let read = node.read_blob(digest, size).await;
                assert!(read.is_some(), "{at} cannot be read");
            }
        }
        assert_eq!(
            node.engine.ledger().blobs().usage().unsaved_bytes,
            0,
            "everything can be evicted"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn p7_one_winner(steps in prop::collection::vec(any_step(), 1..60)) {
        run(play(steps, ""));
    }

    #[test]
    fn p7_one_winner_with_a_store_in_trouble(steps in prop::collection::vec(any_step(), 1..40)) {
        run(play(steps, "errors=15 lost=15 truncated=10"));
    }
}

#[test]
fn a_run_that_forgot_its_names_makes_new_ones() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.write("f", &body(0));
        a.upload().await;
        a.write("f", &body(1));
        a.commit().await;
        // In the same millisecond, and without a trace of the commit.
        let mut a = world.node_at(a.crash());
        b.pull().await;
        a.push().await;
        b.pull().await;
        assert!(b.read("f").await == Some(body(1)));
        assert_eq!(a.registers(), b.registers());
    });
}

#[test]
fn a_content_that_others_stored_first_need_not_be_kept() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        b.write("f", &body(36));
        b.write("f", &body(0));
        a.send("g", &body(36)).await;
        b.pull().await;
        b.push().await;
        assert_eq!(b.engine.ledger().blobs().usage().unsaved_bytes, 0);
    });
}

#[test]
fn a_file_that_others_wrote_is_removed_for_them_too() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        // B writes and removes a file that A has written, and receives A's change only just before.
        a.send("f", b"of a").await;
        b.write("f", b"of b");
        b.pull().await;
        b.remove("f");
        let b2 = {
            b.engine.ledger().save().unwrap();
            world.node_at(b.crash())
        };
        b = b2;
        b.push().await;
        a.pull().await;
        assert!(a.entry("f").is_none() && b.entry("f").is_none());
        assert_eq!(a.registers(), b.registers());
    });
}
