//! P11 over ten lifetimes, in virtual time: a cluster whose nodes restart, are absent, are replaced
//! and have wrong clocks, over a store that deletes by age.
//!
//! These are checked after every step, by the store's own clock:
//!
//! - *Nothing expired is served*: the store still has the object behind every entry that any node shows, so it
//!   has not deleted that object by age. What a node shows is what was written last.
//! - *Nothing in use expires*: a file that is opened on some node at least every quarter of the age is there, on
//!   every node.
//! - *The bucket stays within twice the live bytes*. A content is live if a program has written or opened it within
//!   the last age. Each counts once, with the bytes that an entry takes elsewhere: [`ENTRY_BYTES`]. A store that
//!   knows nothing but ages must keep this much. All bytes of the bucket are compared with them: all copies of all
//!   contents, the log, and the checkpoints, which only age removes here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Write as _;
use std::time::Duration;

use super::harness::*;
use crate::digest::Digest;
use crate::namespace::{Location, Site};
use crate::remote::keys;

const AGE: Duration = Duration::from_hours(30 * 24);
const STEPS_PER_AGE: u32 = 40;
const LIFETIMES: u32 = 10;
const NODES: usize = 4;
/// What an entry of these tests takes in commits and in the four checkpoints of an age, together
/// with its content in the index of a pack and in a frame.
const ENTRY_BYTES: u64 = 512;
/// The number of files that are used all the time.
const IN_USE: u64 = 24;

/// A file: its content, and until when a program keeps using it.
#[derive(Clone, Copy)]
struct File {
    digest: Digest,
    used_until: u32,
    opened: u32,
}

/// A node, with its cache directory.
enum Place {
    Up(Box<Node>),
    Away { root: tempfile::TempDir, until: u32 },
}

struct Cluster {
    world: World,
    places: Vec<Option<Place>>,
    files: BTreeMap<String, Option<File>>,
    /// The size of every content, and when it was last written or opened.
    contents: HashMap<Digest, (u64, u32)>,
    random: u64,
    step: u32,
    made: u64,
    worst: f64,
    /// Files that are written in each step, and used for a few days at most.
    new_per_step: u64,
}

impl Cluster {
    fn below(&mut self, limit: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % limit
    }

    fn skew_ms(&mut self) -> i64 {
        (self.below(48) as i64 - 24) * 3_600_000
    }

    fn size(&mut self) -> usize {
        match self.below(30) {
            0..=9 => 200 + self.below(3000) as usize,
            10..=28 => 5_000 + self.below(20_000) as usize,
            _ => 1_060_000,
        }
    }

    /// Picks a running node.
    fn any(&mut self) -> usize {
        loop {
            let at = self.below(NODES as u64) as usize;
            if matches!(self.places[at], Some(Place::Up(_))) {
                return at;
            }
        }
    }

    fn up(&mut self, at: usize) -> &mut Node {
        match self.places[at].as_mut() {
            Some(Place::Up(node)) => node,
            _ => panic!("node {at} is not up"),
        }
    }

    async fn open_on(&mut self, at: usize, name: &str) {
        let step = self.step;
        let Some(Some(file)) = self.files.get_mut(name) else { return };
        file.opened = step;
        let expected = file.digest;
        self.contents.entry(expected).and_modify(|(_, used)| *used = step);
        // Reading compares the bytes with their digest.
        let bytes = self.up(at).open(name).await;
        let bytes = bytes.unwrap_or_else(|| panic!("{name} is in use, and a miss in step {step}"));
        assert_eq!(Digest::of(&bytes), expected, "{name} is an older version in step {step}");
    }

    async fn write_on(&mut self, at: usize, name: String, used_until: u32) {
        let (seed, size, step) = (self.made, self.size(), self.step);
        self.made += 1;
        let node = self.up(at);
        assert!(node.pull().await);
        let bytes = content(seed, size);
        node.send(&name, &bytes).await;
        let digest = Digest::of(&bytes);
        self.contents.insert(digest, (bytes.len() as u64, step));
        self.files.insert(name, Some(File { digest, used_until, opened: step }));
    }

    /// Lets nodes restart, leave and return.
    async fn trouble(&mut self) {
        for at in 0..NODES {
            let ups = self.places.iter().flatten().filter(|p| matches!(p, Place::Up(_))).count();
            let (chance, rest) = (self.below(100), self.below(u64::from(STEPS_PER_AGE) / 3) as u32);
            let (skew, place) = (self.skew_ms(), self.places[at].take().expect("a place"));
            let next = match place {
                Place::Away { root, until } if until <= self.step => {
                    Place::Up(Box::new(self.world.node_skewed(root, skew).await))
                }
                Place::Up(node) if chance < 3 => {
                    // Killed, some seconds after it has saved its state.
                    node.engine.ledger().save().unwrap();
                    Place::Up(Box::new(self.world.node_skewed(node.crash(), skew).await))
                }
                Place::Up(_) if chance == 3 => {
                    // Its machine is replaced by a new one.
                    let root = tempfile::tempdir().unwrap();
                    let node = self.world.node_skewed(root, skew).await;
                    assert!(node.pull().await);
                    Place::Up(Box::new(node))
                }
                Place::Up(node) if chance < 6 && ups > 2 => {
                    node.engine.stop().await;
                    Place::Away { root: node.crash(), until: self.step + rest }
                }
                other => other,
            };
            self.places[at] = Some(next);
        }
    }

    async fn use_files(&mut self) {
        let names: Vec<String> = self.files.keys().cloned().collect();
        for name in names {
            let Some(Some(file)) = self.files.get(&name).copied() else { continue };
            if self.step >= file.used_until {
                continue;
            }
            let overdue = self.step - file.opened >= STEPS_PER_AGE / 5;
            if overdue || self.below(8) == 0 {
                let at = self.any();
                self.open_on(at, &name).await;
            }
        }
    }

    async fn change_files(&mut self) {
        for _ in 0..self.new_per_step {
            let (at, days) = (self.any(), self.below(20) as u32);
            let name = format!("new/{}", self.made);
            self.write_on(at, name, self.step + days).await;
        }
        let names: Vec<String> =
            self.files.keys().filter(|name| name.starts_with("new/")).cloned().collect();
        if names.is_empty() {
            return;
        }
        let name = names[self.below(names.len() as u64) as usize].clone();
        let at = self.any();
        match self.below(20) {
            0 => self.write_on(at, name, self.step).await,
            1 => {
                let node = self.up(at);
                assert!(node.pull().await);
                if node.entry(&name).is_some() {
                    node.remove(&name);
                    node.push().await;
                    self.files.insert(name, None);
                }
            }
            _ => {}
        }
    }

    async fn advance(&mut self) {
        self.world.clock.advance(AGE / STEPS_PER_AGE);
        self.step += 1;
        self.trouble().await;
        for place in self.places.iter().flatten() {
            if let Place::Up(node) = place {
                assert!(node.pull().await);
            }
        }
        self.use_files().await;
        self.change_files().await;
        // Renewals that are due wait a little, so that one node is first.
        self.world.clock.advance(Duration::from_hours(1));
        for place in self.places.iter_mut().flatten() {
            if let Place::Up(node) = place {
                assert!(node.pull().await);
                node.keep_house().await;
                node.engine.checkpointer().unwrap().write_if_due().await;
            }
        }
        self.world.store.expire(AGE).await;
        for place in self.places.iter().flatten() {
            if let Place::Up(node) = place {
                assert!(node.pull().await);
            }
        }
        self.check().await;
    }

    async fn check(&mut self) {
        let stored: HashSet<String> = self.world.store.keys().await.into_iter().collect();
        for place in self.places.iter().flatten() {
            let Place::Up(node) = place else { continue };
            for (name, file) in &self.files {
                let used = file.is_some_and(|file| file.used_until > self.step);
                let Some(entry) = node.entry(name) else {
                    assert!(!used, "{name} is in use, and a miss in step {}", self.step);
                    continue;
                };
                let (digest, _) = entry.content().unwrap();
                let file = file.unwrap_or_else(|| panic!("{name} was removed"));
                assert_eq!(digest, file.digest, "{name} is an older version");
                let location = node.engine.ledger().location(&digest).unwrap();
                let key = key_of(&digest, &location);
                assert!(stored.contains(&key), "{name} is shown without {key}, step {}", self.step);
            }
        }
        let step = self.step;
        self.contents.retain(|_, (_, used)| step - *used <= STEPS_PER_AGE);
        let live: u64 = self.contents.values().map(|(size, _)| size + ENTRY_BYTES).sum();
        if step > STEPS_PER_AGE {
            let ratio = self.world.store.bytes("").await as f64 / live as f64;
            assert!(ratio <= 2.0, "{ratio} times the live bytes in step {step}");
            self.worst = self.worst.max(ratio);
        }
    }
}

fn key_of(digest: &Digest, location: &Location) -> String {
    match &location.site {
        Site::Pack { pack, .. } => format!("packs/{pack}"),
        Site::Object => format!("blobs/{}/{digest}", &digest.to_string()[..2]),
        Site::Inline { commit } => {
            assert!(keys::commit_stamp(commit).is_some());
            format!("log/{commit}")
        }
    }
}

fn live_ten_lives(seed: u64, new_per_step: u64) {
    run(async {
        let mut cluster = Cluster {
            world: World::aging(AGE),
            places: Vec::new(),
            files: BTreeMap::new(),
            contents: HashMap::new(),
            random: seed | 1 << 40,
            step: 0,
            made: seed << 32,
            worst: 0.0,
            new_per_step,
        };
        for _ in 0..NODES {
            let skew = cluster.skew_ms();
            let node = cluster.world.node_skewed(tempfile::tempdir().unwrap(), skew).await;
            cluster.places.push(Some(Place::Up(Box::new(node))));
        }
        for n in 0..IN_USE {
            let at = cluster.any();
            cluster.write_on(at, format!("used/{n}"), u32::MAX).await;
        }
        for _ in 0..STEPS_PER_AGE * LIFETIMES {
            cluster.advance().await;
        }
        let (worst, left) = (cluster.worst, cluster.up_registers());
        // Written past the runner's capture, for runs of many seeds.
        let said = format!("seed {seed}, {new_per_step} new: {worst:.3} times the live bytes\n");
        drop(std::io::stderr().write_all(said.as_bytes()));
        // Neither nodes nor bucket remember what is long past its age.
        assert!(left < 2 * (IN_USE + new_per_step * u64::from(STEPS_PER_AGE)) as usize);
    });
}

impl Cluster {
    fn up_registers(&mut self) -> usize {
        let at = self.any();
        self.up(at).registers().len()
    }
}

/// The seeds of further worlds: `HEARTHFS_TEST_SEEDS` is their number. An ordinary run has one of
/// each kind.
fn further() -> std::ops::Range<u64> {
    let wanted = std::env::var("HEARTHFS_TEST_SEEDS").ok();
    100..100 + wanted.map_or(0, |wanted| wanted.parse().expect("HEARTHFS_TEST_SEEDS is a number"))
}

#[test]
fn p11_ten_lifetimes() {
    live_ten_lives(7, 2);
    further().for_each(|seed| live_ten_lives(seed, 1 + seed % 3));
}

/// Every content is renewed repeatedly: the most that old copies can take.
#[test]
fn p11_ten_lifetimes_of_what_is_always_used() {
    live_ten_lives(8, 0);
    further().for_each(|seed| live_ten_lives(seed, 0));
}
