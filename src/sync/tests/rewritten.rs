//! A few names that are rewritten for a long time: what a node holds depends on what is alive, and
//! not on what was.
//!
//! `HEARTHFS_TEST_REWRITES=1000000` rewrites so often.

use std::time::Duration;

use super::harness::*;
use crate::sync::LOG_GRACE;

const NAMES: u64 = 100;
/// How often all names are rewritten before a commit has them.
const TIMES: u64 = 5;
const SIZE: usize = 300;
/// How often the names are rewritten in an ordinary run.
const REWRITES: u64 = 30_000;
/// The interval of the commits, and of the purges of a running node.
const COMMIT_EVERY: Duration = Duration::from_mins(1);
const PURGE_EVERY: u64 = 15;
/// The index keeps what moved last in a database of its own. Its file grows to almost this size within
/// some 100,000 rewrites, and not further.
const INDEX_BYTES: u64 = 6 << 20;
/// The journal keeps what is done until its segment is full.
const JOURNAL_BYTES: u64 = 9 << 20;
/// A checkpoint is due after 256 commits, and the commits in it are deleted after the grace time.
const COMMITS_MAX: usize = 2 * 256;

fn rewrites() -> u64 {
    let wanted = std::env::var("HEARTHFS_TEST_REWRITES").ok();
    wanted.map_or(REWRITES, |wanted| wanted.parse().expect("HEARTHFS_TEST_REWRITES is a number"))
}

/// What a node holds, in its memory and on its disk.
#[derive(Debug, Clone, Copy)]
struct Held {
    registers: usize,
    located: usize,
    /// Contents for which memory is taken.
    room: usize,
    blobs: u64,
    blob_files: u64,
    commits: usize,
    index_bytes: u64,
    journal_bytes: u64,
}

impl Held {
    fn of(node: &Node) -> Self {
        let ledger = node.engine.ledger();
        let (blobs, commits) = (ledger.blobs().usage().blobs, ledger.log(|log| log.len()));
        let [index_bytes, journal_bytes] =
            ["index", "journal"].map(|name| dir_bytes(&node.dir().join(name)));
        let folders = std::fs::read_dir(node.dir().join("blobs")).unwrap();
        let files = |folder: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_dir(folder.unwrap().path()).map_or(0, Iterator::count) as u64
        };
        let blob_files = folders.map(files).sum();
        ledger.read(|fold| Self {
            registers: fold.registers().count(),
            located: fold.locations().count(),
            room: fold.contents_capacity(),
            blobs,
            blob_files,
            commits,
            index_bytes,
            journal_bytes,
        })
    }

    /// Compares with what a node holds that has written or read the names once.
    #[track_caller]
    fn expect_like(&self, once: &Self, when: &str) {
        assert_eq!(self.registers, once.registers, "{when}: {self:?}");
        assert!(self.located <= 2 * once.located, "{when}: {self:?}");
        assert!(self.room <= once.room + 4096, "{when}: {self:?}");
        assert!(self.blobs <= 2 * once.blobs, "{when}: {self:?}");
        assert!(self.blob_files <= 2 * once.blob_files, "{when}: {self:?}");
        assert!(self.commits <= once.commits + COMMITS_MAX, "{when}: {self:?}");
        let index = (self.index_bytes, once.index_bytes);
        assert!(index.0 <= 2 * index.1 + INDEX_BYTES, "{when}, index: {self:?}, once: {once:?}");
        assert!(self.journal_bytes <= once.journal_bytes + JOURNAL_BYTES, "{when}: {self:?}");
    }
}

/// Does what the tasks of running nodes do each second, and now and then.
async fn live(world: &World, writer: &mut Node, follower: &Node, minute: u64) {
    world.clock.advance(COMMIT_EVERY);
    let checkpointer = writer.engine.checkpointer().unwrap();
    checkpointer.write_if_due().await;
    checkpointer.tidy_up().await;
    writer.push().await;
    for node in [&*writer, follower] {
        assert!(node.pull().await);
        node.engine.ledger().save().unwrap();
        if minute.is_multiple_of(PURGE_EVERY) {
            node.purge();
        }
    }
}

/// Lives until the grace time of everything is over.
async fn rest(world: &World, writer: &mut Node, follower: &Node) {
    for minute in 0..2 * LOG_GRACE.as_secs() / COMMIT_EVERY.as_secs() {
        live(world, writer, follower, minute).await;
    }
}

/// Rewrites the names, and returns what they have at the end.
async fn rewrite(world: &World, writer: &mut Node, follower: &Node, rounds: u64) -> u64 {
    let mut seed = 0;
    for round in 0..rounds {
        for _ in 0..TIMES {
            for n in 0..NAMES {
                seed += 1;
                writer.write(&format!("d/{n}"), &content(seed, SIZE));
            }
        }
        writer.push().await;
        live(world, writer, follower, round).await;
    }
    seed
}

async fn checkpoint_bytes(world: &World, node: &Node) -> usize {
    let name = super::checkpoints::checkpoint(node).await;
    world.store.read(&format!("checkpoints/{name}")).await.unwrap().len()
}

#[test]
fn p13_bounded_names_that_are_rewritten_again_and_again() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        rewrite(&world, &mut a, &b, 1).await;
        rest(&world, &mut a, &b).await;
        let once = [Held::of(&a), Held::of(&b)];
        let checkpoint = checkpoint_bytes(&world, &a).await;

        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        let last = rewrite(&world, &mut a, &b, rewrites() / (NAMES * TIMES)).await;
        rest(&world, &mut a, &b).await;
        Held::of(&a).expect_like(&once[0], "the writer");
        Held::of(&b).expect_like(&once[1], "the follower");
        let bytes = checkpoint_bytes(&world, &a).await;
        assert!(bytes <= 2 * checkpoint, "{bytes} bytes in a checkpoint, once {checkpoint}");

        let (a, b) = (world.node_at(a.crash()), world.node_at(b.crash()));
        for (node, once) in [(&a, &once[0]), (&b, &once[1])] {
            assert!(node.pull().await);
            node.engine.ledger().save().unwrap();
            Held::of(node).expect_like(once, "after a restart");
            for n in 0..NAMES {
                let want = content(last - NAMES + n + 1, SIZE);
                assert!(node.read(&format!("d/{n}")).await == Some(want), "d/{n}");
            }
        }
        let fresh = world.caught_up().await;
        assert_eq!(Held::of(&fresh).registers, once[1].registers);
        assert_eq!(Held::of(&fresh).located, once[1].located);
    });
}

/// Without a store the same holds: the journal has everything.
#[test]
fn p13_bounded_names_that_are_rewritten_on_a_node_alone() {
    run(async {
        let world = World::new();
        let alone = || {
            let root = tempfile::tempdir().unwrap();
            let engine = world.engine(root.path(), None);
            Node::alone(root, engine)
        };
        let rewrite = |node: &Node, times: u64| {
            for round in 0..times {
                for n in 0..NAMES {
                    node.write(&format!("d/{n}"), &content(round * NAMES + n + 1, SIZE));
                }
                world.clock.advance(COMMIT_EVERY);
                node.engine.ledger().save().unwrap();
                if round.is_multiple_of(PURGE_EVERY) {
                    node.purge();
                }
            }
            world.clock.advance(2 * LOG_GRACE);
            node.purge();
            node.engine.ledger().save().unwrap();
            Held::of(node)
        };
        let once = rewrite(&alone(), 1);
        let node = alone();
        let times = rewrites() / NAMES;
        let held = rewrite(&node, times);
        assert_eq!((held.blobs, held.blob_files), (NAMES, NAMES));
        assert!(held.index_bytes <= 2 * once.index_bytes + INDEX_BYTES, "{held:?}");
        for n in 0..NAMES {
            let want = content((times - 1) * NAMES + n + 1, SIZE);
            assert!(node.read(&format!("d/{n}")).await == Some(want), "d/{n}");
        }
    });
}

/// A version that was replaced within the second in which it was made, and before it was sent.
#[test]
fn p13_bounded_what_was_never_sent_goes_after_a_minute() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        world.clock.advance(Duration::from_millis(100));
        for n in 0..20 {
            a.write("f", &content(n, SIZE));
        }
        a.push().await;
        let save = || {
            a.engine.ledger().save().unwrap();
            Held::of(&a).blob_files
        };
        world.clock.advance(Duration::from_secs(30));
        assert_eq!(save(), 20);
        // The last use is known to the second: at this moment it seems to be less than a minute ago.
        world.clock.advance(Duration::from_millis(30_050));
        save();
        world.clock.advance(Duration::from_secs(3));
        assert_eq!(save(), 1);
        assert_eq!(a.read("f").await, Some(content(19, SIZE)));
    });
}
