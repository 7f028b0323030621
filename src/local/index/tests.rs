use super::*;
use crate::digest::Digest;
use crate::local::seal::Seal;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, EntryKind, Location, Register, Site};
use crate::stamp::{NodeId, Stamp};

fn path(n: u64) -> TreePath {
    let dir = TreePath::root().join(format!("module-{}", n / 100).as_bytes()).unwrap();
    dir.join(format!("jit_train_step-{n:032x}-cache").as_bytes()).unwrap()
}

fn register(n: u64, round: u64) -> Register {
    let digest = Digest::of(&n.to_le_bytes());
    let attrs = Attrs { mode: 0o644, uid: 1000, gid: 1000, ..Attrs::default() };
    let entry = Entry { kind: EntryKind::File { digest, size: n }, attrs, link: None };
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
        let mut batch = FactBatch::new();
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

fn registers(loaded: &LoadedIndex) -> Vec<(TreePath, Register)> {
    loaded.fold.registers().collect()
}

/// Fills the index again with entries `0..to`, as the owner of the facts does.
fn refill(index: &Index, to: u64, round: u64) {
    let generation = index.generation();
    let mut digests: Vec<(Digest, u64)> =
        (0..to).map(|n| (Digest::of(&n.to_le_bytes()), n)).collect();
    digests.sort();
    let mut paths: Vec<(TreePath, u64)> = (0..to).map(|n| (path(n), n)).collect();
    paths.sort();
    for some in digests.chunks(1000) {
        let mut batch = FactBatch::new();
        for (digest, n) in some {
            batch.location(digest, &location(*n));
        }
        index.fill(generation, batch);
    }
    let mut batch = FactBatch::new();
    batch.seen("filled");
    index.fill(generation, batch);
    for some in paths.chunks(1000) {
        let mut batch = FactBatch::new();
        for (path, n) in some {
            batch.register(path, &register(*n, round));
        }
        index.fill(generation, batch);
    }
    for some in digests.chunks(1000) {
        let mut batch = FactBatch::new();
        for (digest, n) in some {
            batch.seal(digest, used(*n));
        }
        index.fill(generation, batch);
    }
    index.refilled(generation);
}

/// Returns the file of the base.
fn base_of(dir: &CacheDir) -> Option<PathBuf> {
    let all = fs::read_dir(dir.path().join("index")).unwrap().map(|entry| entry.unwrap().path());
    let mut bases = all.filter(|path| path.file_name().unwrap().to_string_lossy().contains("base"));
    let base = bases.next();
    assert_eq!(bases.next(), None, "one base at most");
    base
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
        assert!(registers(&index.load()).is_empty());
        fill(&index, 0, 2500, 1);
        let mut batch = FactBatch::new();
        batch.forget_register(&path(7));
        batch.forget_location(&Digest::of(&7_u64.to_le_bytes()));
        batch.forget_seal(&Digest::of(&8_u64.to_le_bytes()));
        batch.forget_seen("commit-0-1");
        index.save(batch);
        index.flush();
    }
    let index = Index::open(&dir);
    let loaded = index.load();
    assert_eq!(registers(&loaded).len(), 2499);
    assert_eq!(loaded.fold.register(&path(2499)), Some(register(2499, 1)));
    assert_eq!(loaded.fold.locations().count(), 2499);
    assert_eq!(loaded.fold.location(&Digest::of(&9_u64.to_le_bytes())), Some(location(9)));
    assert_eq!(loaded.seals.len(), 2499);
    assert_eq!(loaded.seals[0].1, used(2499), "least recently used first");
    let seen: Vec<String> = loaded.seen.into_iter().collect();
    assert_eq!(seen, ["commit-1000-1", "commit-2000-1"]);
    let meta: Vec<_> = loaded.meta.into_iter().collect();
    assert_eq!(meta, [("watermark".to_owned(), 2000_u64.to_le_bytes().to_vec())]);
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
        assert!(registers(&loaded).len() <= 10);
        fill(&index, 0, 10, 2);
        index.flush();
        drop(index);
        assert_eq!(registers(&Index::open(&dir).load()).len(), 10, "after spoiling {spoil}");
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
        assert_eq!((registers(&loaded).len(), loaded.seals.len()), (10, 0));
    }
}

/// The promise of the index itself: it may be lost at any time, at the cost of time alone.
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
        assert!(index.generation() > before, "round {round}: the owner is notified");
        if round == 0 {
            continue;
        }
        break;
    }
    // Started again, but not filled: a restart must not mistake a part for the whole.
    fill(&index, 0, 10, 9);
    drop(index);
    let index = Index::open(&dir);
    let loaded = index.load();
    let found = registers(&loaded).len();
    assert!(found == 0 && loaded.seen.is_empty(), "{found}");
    fill(&index, 0, 10, 9);
    drop(index);
    assert_eq!(registers(&Index::open(&dir).load()).len(), 10);
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
    assert_eq!(registers(&loaded).len(), 100);
}

/// P13: rewriting the same facts does not let the index grow without bound.
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

#[test]
fn a_base_and_what_came_after_it_are_one() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    let index = Index::open(&dir);
    fill(&index, 0, 10, 1);
    index.renew();
    index.flush();
    assert_eq!(index.generation(), 1);
    let mut batch = FactBatch::new();
    batch.register(&path(3), &register(3, 2));
    index.save(batch);
    refill(&index, 5000, 3);
    let mut batch = FactBatch::new();
    batch.register(&path(4), &register(4, 4));
    batch.forget_register(&path(5));
    batch.forget_location(&Digest::of(&6_u64.to_le_bytes()));
    batch.forget_seal(&Digest::of(&7_u64.to_le_bytes()));
    batch.register(&path(9000), &register(9000, 4));
    index.save(batch);
    index.flush();
    // The second time everything is in the base.
    for merged in [false, true] {
        let loaded = index.load();
        assert!(base_of(&dir).is_some());
        assert_eq!(registers(&loaded).len(), 5000, "merged: {merged}");
        assert_eq!(loaded.fold.register(&path(3)), Some(register(3, 3)));
        assert_eq!(loaded.fold.register(&path(4)), Some(register(4, 4)));
        assert_eq!(loaded.fold.register(&path(5)), None);
        assert_eq!(loaded.fold.register(&path(9000)), Some(register(9000, 4)));
        assert_eq!(loaded.fold.locations().count(), 4999);
        assert_eq!(loaded.seals.len(), 4999);
        assert!(loaded.seen.contains("filled"));
        if !merged {
            let base = base_of(&dir);
            for round in 0..WORTH_FLOOR / 1000 {
                let mut batch = FactBatch::new();
                let all = (0..2000_u64).map(|n| format!("{round}-{n}"));
                all.for_each(|name| batch.seen(&name));
                index.save(batch);
            }
            index.flush();
            assert_ne!(base_of(&dir), base, "a new base was written");
        }
    }
}

#[test]
fn an_unfinished_filling_is_ignored() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    {
        let index = Index::open(&dir);
        fill(&index, 0, 10, 1);
        index.renew();
        index.flush();
        let mut batch = FactBatch::new();
        batch.register(&path(100), &register(100, 2));
        index.fill(index.generation(), batch);
        index.flush();
        assert!(base_of(&dir).is_some(), "the base is being written");
        // A batch of an earlier generation is ignored.
        let mut batch = FactBatch::new();
        batch.register(&path(0), &register(0, 2));
        index.fill(0, batch);
    }
    let index = Index::open(&dir);
    let loaded = index.load();
    assert_eq!(registers(&loaded).len(), 10);
    assert_eq!(base_of(&dir), None);
    assert_eq!(index.generation(), 0);
}

/// However the base is damaged, the index starts again and reports it; it never returns half of its facts.
#[test]
fn p9_self_healing_a_damaged_base_is_begun_again() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    for spoil in 0..7_u64 {
        {
            let index = Index::open(&dir);
            index.load();
            index.renew();
            index.flush();
            refill(&index, 3000, spoil);
            index.flush();
            assert_eq!(registers(&index.load()).len(), 3000);
        }
        let base = base_of(&dir).unwrap();
        let mut bytes = fs::read(&base).unwrap();
        let last = bytes.len() - 1;
        match spoil {
            0 => bytes[4] ^= 1,
            1 => bytes[9] += 1,
            2 => bytes[60] ^= 0x80,
            3 => bytes[last / 2] ^= 1,
            4 => bytes[last] ^= 1,
            5 => bytes.truncate(last / 2),
            _ => bytes.clear(),
        }
        fs::write(&base, bytes).unwrap();
        let index = Index::open(&dir);
        let before = index.generation();
        let loaded = index.load();
        assert!(registers(&loaded).is_empty() && loaded.seen.is_empty(), "spoiled: {spoil}");
        assert!(loaded.seals.is_empty() && loaded.fold.locations().count() == 0);
        assert!(index.generation() > before, "spoiled: {spoil}: the owner is notified");
    }
}

#[test]
fn p9_self_healing_the_base_is_deleted_under_load() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    let index = Index::open(&dir);
    index.renew();
    index.flush();
    refill(&index, 3000, 1);
    index.flush();
    fs::remove_file(base_of(&dir).unwrap()).unwrap();
    let before = index.generation();
    fill(&index, 0, 100, 2);
    index.flush();
    assert!(index.generation() > before, "the owner is notified");
    refill(&index, 3000, 3);
    index.flush();
    drop(index);
    let loaded = Index::open(&dir).load();
    assert_eq!(registers(&loaded).len(), 3000);
    assert_eq!(loaded.fold.register(&path(1)), Some(register(1, 3)));
}

/// Its sum is right, and no build of this version has written it.
#[test]
fn p9_self_healing_a_fact_that_cannot_be_decoded_begins_the_index_again() {
    let bad: [(Vec<u8>, &[u8]); 5] = [
        (key(facts::REGISTER, path(1).as_bytes()), b"\xff"),
        (key(facts::REGISTER, b"a/../b"), b""),
        (key(facts::LOCATION, b"short"), b""),
        (key(facts::SEAL, Digest::of(b"x").as_bytes()), b""),
        (key(facts::META, b"\xff"), b""),
    ];
    for (at, value) in bad {
        let root = tempfile::tempdir().unwrap();
        let dir = CacheDir::open(root.path()).unwrap();
        let index = Index::open(&dir);
        fill(&index, 0, 3000, 1);
        index.save(FactBatch(vec![(at.clone(), Some(value.to_vec()))]));
        index.flush();
        let before = index.generation();
        let loaded = index.load();
        assert!(registers(&loaded).is_empty() && loaded.seen.is_empty(), "{at:?}");
        assert!(loaded.seals.is_empty() && loaded.fold.locations().count() == 0, "{at:?}");
        assert!(index.generation() > before, "{at:?}: the owner is notified");
        fill(&index, 0, 100, 2);
        index.flush();
        assert_eq!(registers(&index.load()).len(), 100, "{at:?}");
    }
}
