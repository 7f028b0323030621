use super::*;
use crate::digest::Digest;
use crate::local::seal::Seal;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, Kind, Location, Register, Site};
use crate::stamp::{NodeId, Stamp};

fn path(n: u64) -> TreePath {
    let dir = TreePath::root().join(format!("module-{}", n / 100).as_bytes()).unwrap();
    dir.join(format!("jit_train_step-{n:032x}-cache").as_bytes()).unwrap()
}

fn register(n: u64, round: u64) -> Register {
    let digest = Digest::of(&n.to_le_bytes());
    let attrs = Attrs { mode: 0o644, uid: 1000, gid: 1000, ..Attrs::default() };
    let entry = Entry { kind: Kind::File { digest, size: n }, attrs, link: None };
    let stamp = Stamp { ms: 1_790_000_000_000 + round, counter: 0, node: NodeId(77) };
    Register { stamp, attr_stamp: None, entry: Some(entry) }
}

fn used(n: u64) -> Used {
    let seal = Seal { size: n, mtime_ns: 1_790_000_000_000_000_000, ctime_ns: 5, ino: n };
    Used { seal, used: 1_790_000_000 - n as u32 }
}

fn location(n: u64) -> Location {
    let pack = std::sync::Arc::from("0123456789ab00000000-0123456789abcdef");
    Location { site: Site::Pack { pack, offset: n, length: 9 }, size: n, stored_ms: 1 }
}

/// Saves entries `from..to` of a round, as a follower would.
fn fill(index: &Index, from: u64, to: u64, round: u64) {
    for chunk in (from..to).step_by(1000) {
        let mut batch = Batch::new();
        for n in chunk..(chunk + 1000).min(to) {
            let digest = Digest::of(&n.to_le_bytes());
            batch.register(&path(n), &register(n, round));
            batch.location(&digest, &location(n));
            batch.seal(&digest, used(n));
        }
        batch.seen(&format!("commit-{chunk}-{round}"));
        batch.meta("watermark", &chunk.to_le_bytes());
        index.save(batch);
    }
}

fn dir_bytes(path: &Path) -> u64 {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap());
    entries
        .map(|entry| {
            let found = entry.metadata().unwrap();
            if found.is_dir() { dir_bytes(&entry.path()) } else { found.len() }
        })
        .sum()
}

#[test]
fn what_was_saved_is_loaded_by_the_next_start() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    {
        let index = Index::open(&dir);
        assert!(index.load().registers.is_empty());
        fill(&index, 0, 2500, 1);
        let mut batch = Batch::new();
        batch.forget_register(&path(7));
        batch.forget_location(&Digest::of(&7_u64.to_le_bytes()));
        batch.forget_seal(&Digest::of(&8_u64.to_le_bytes()));
        batch.forget_seen("commit-0-1");
        index.save(batch);
        index.flush();
    }
    let index = Index::open(&dir);
    let loaded = index.load();
    assert_eq!(loaded.registers.len(), 2499);
    assert!(loaded.registers.is_sorted_by_key(|(path, _)| path));
    assert!(loaded.registers.contains(&(path(2499), register(2499, 1))));
    assert_eq!(loaded.locations.len(), 2499);
    assert!(loaded.locations.contains(&(Digest::of(&9_u64.to_le_bytes()), location(9))));
    assert_eq!(loaded.seals.len(), 2499);
    assert_eq!(loaded.seals[0].1, used(2499), "least recently used first");
    assert_eq!(loaded.seen, ["commit-1000-1", "commit-2000-1"]);
    assert_eq!(loaded.meta, [("watermark".to_owned(), 2000_u64.to_le_bytes().to_vec())]);
    assert_eq!(index.generation(), 0);
}

#[test]
fn an_index_that_is_not_one_is_moved_aside() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    {
        let index = Index::open(&dir);
        fill(&index, 0, 10, 1);
    }
    for spoil in 0..3 {
        let db = dir.path().join("index/db");
        match spoil {
            0 => fs::write(&db, vec![0x5a; 100_000]).unwrap(),
            1 => fs::write(dir.path().join("index/conf"), b"nonsense").unwrap(),
            _ => {
                fs::remove_dir_all(dir.path().join("index")).unwrap();
                fs::write(dir.path().join("index"), b"a file").unwrap();
            }
        }
        let index = Index::open(&dir);
        let loaded = index.load();
        assert!(loaded.registers.len() <= 10);
        fill(&index, 0, 10, 2);
        index.flush();
        drop(index);
        assert_eq!(Index::open(&dir).load().registers.len(), 10, "after spoiling {spoil}");
    }
    assert!(dir.path().join("index.broken").exists());
}

#[test]
fn seals_of_another_era_are_forgotten() {
    let root = tempfile::tempdir().unwrap();
    {
        let dir = CacheDir::open(root.path()).unwrap();
        let index = Index::open(&dir);
        fill(&index, 0, 10, 1);
        index.flush();
    }
    fs::write(root.path().join("v1/state"), "another-boot running 0\n").unwrap();
    for _ in 0..2 {
        let dir = CacheDir::open(root.path()).unwrap();
        let loaded = Index::open(&dir).load();
        assert_eq!((loaded.registers.len(), loaded.seals.len()), (10, 0));
    }
}

/// The promise of the index itself: it may go at any time, and all that it costs is time.
#[test]
fn p9_self_healing_the_index_is_deleted_under_load() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    let index = Index::open(&dir);
    fill(&index, 0, 20_000, 1);
    index.flush();
    for round in 0..3 {
        let before = index.generation();
        fill(&index, 0, 3000, 2 + round);
        fs::remove_dir_all(dir.path().join("index")).unwrap();
        fill(&index, 3000, 20_000, 2 + round);
        index.flush();
        if index.generation() == before {
            index.flush();
        }
        assert!(index.generation() > before, "round {round}: the owner is told");
        if round == 0 {
            continue;
        }
        break;
    }
    // Begun again, but not filled: a restart must not take a part for the whole.
    fill(&index, 0, 10, 9);
    drop(index);
    let index = Index::open(&dir);
    let loaded = index.load();
    assert!(loaded.registers.is_empty() && loaded.seen.is_empty(), "{}", loaded.registers.len());
    fill(&index, 0, 10, 9);
    drop(index);
    assert_eq!(Index::open(&dir).load().registers.len(), 10);
}

#[test]
fn an_index_that_was_filled_again_counts() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    let index = Index::open(&dir);
    fill(&index, 0, 100, 1);
    index.flush();
    fs::remove_dir_all(dir.path().join("index")).unwrap();
    fill(&index, 0, 1, 1);
    index.flush();
    let generation = index.generation();
    assert_eq!(generation, 1);
    fill(&index, 0, 100, 2);
    index.refilled(generation - 1);
    index.refilled(generation);
    index.flush();
    drop(index);
    let loaded = Index::open(&dir).load();
    assert_eq!(loaded.registers.len(), 100);
}

/// P13: rewriting the same facts does not grow the index without end.
#[test]
fn p13_bounded_rewriting_does_not_grow_the_index() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    let index = Index::open(&dir);
    let mut sizes = Vec::new();
    for round in 0..10 {
        fill(&index, 0, 5000, round);
        index.flush();
        sizes.push(dir_bytes(&dir.path().join("index")));
    }
    assert!(sizes[9] < sizes[1] * 4 + (16 << 20), "{sizes:?}");
}
