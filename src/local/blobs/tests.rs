use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::AtomicUsize;

use super::*;
use crate::local::shelf::StagedPath;
use crate::local::staging::Staging;
use crate::task;

mod keep;

struct Fixture {
    root: tempfile::TempDir,
    limit: u64,
}

/// One incarnation of a node: what is opened together and closed together.
struct Run {
    blobs: Blobs,
    staging: Staging,
    dir: CacheDir,
}

impl Fixture {
    fn new(limit: u64) -> Self {
        Self { root: tempfile::tempdir().unwrap(), limit }
    }

    fn open(&self) -> Run {
        self.open_knowing(&[])
    }

    fn open_knowing(&self, known: &[(Digest, Seal)]) -> Run {
        let dir = CacheDir::open(self.root.path()).unwrap();
        let staging = Staging::open(&dir).unwrap();
        let options = Options { evict_unsaved: false, clock: Clock::system() };
        let known = known.iter().map(|(digest, seal)| (*digest, Used { seal: *seal, used: 0 }));
        let blobs = Blobs::open(&dir, Limits::of(self.limit), known, options).unwrap();
        Run { blobs, staging, dir }
    }
}

impl Run {
    fn stage(&self, content: &[u8]) -> (File, StagedPath) {
        let (mut file, staged) = self.staging.create().unwrap();
        file.write_all(content).unwrap();
        (file, staged)
    }

    fn put(&self, content: &[u8], state: State) -> Digest {
        let (file, staged) = self.stage(content);
        let digest = Digest::of(content);
        self.blobs.adopt(staged, &file, digest, content.len() as u64, state).unwrap();
        digest
    }

    fn read(&self, content: &[u8]) -> Option<Vec<u8>> {
        let open = self.blobs.open_blob(&Digest::of(content), content.len() as u64).unwrap()?;
        Some(read_all(&open.file))
    }

    fn path(&self, digest: &Digest) -> PathBuf {
        self.blobs.path_of(digest)
    }

    /// Waits until the folder has been listed.
    fn listed(&self) {
        while !self.blobs.0.listed.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

fn read_all(mut file: &File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

/// Changes bytes of a file and restores its times, as a bad disk would.
fn rot(path: &std::path::Path) {
    let before = fs::metadata(path).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 0).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
}

#[test]
fn an_adopted_blob_is_read_back_and_known_the_second_time() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    let (file, staged) = run.stage(b"content");
    let digest = Digest::of(b"content");
    assert!(!run.blobs.contains(&digest));
    let adopted = run.blobs.adopt(staged, &file, digest, 7, State::Unsaved).unwrap();
    assert_eq!(adopted, Adopted::New);
    run.blobs.sync(&digest).unwrap();
    let (file, staged) = run.stage(b"content");
    let again = staged.path().to_owned();
    assert_eq!(run.blobs.adopt(staged, &file, digest, 7, State::Saved).unwrap(), Adopted::Known);
    assert!(!again.exists());
    assert_eq!(run.read(b"content").as_deref(), Some(&b"content"[..]));
    assert!(run.blobs.open_blob(&digest, 8).unwrap().is_none(), "the size differs");
    assert_eq!(run.read(b"content").as_deref(), Some(&b"content"[..]), "a wrong size does no harm");
    let usage = run.blobs.usage();
    assert_eq!((usage.blobs, usage.bytes, usage.unsaved_bytes), (1, 4096, 4096));
    assert!(run.blobs.mark_saved(&digest));
    assert_eq!(run.blobs.usage().unsaved_bytes, 0);
    assert_eq!(run.blobs.news().sealed.len(), 1);
}

#[test]
fn a_suspect_blob_is_read_before_it_is_served() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    let digest = run.put(b"content", State::Saved);
    run.blobs.suspect(&digest);
    assert_eq!(
        run.read(b"content").as_deref(),
        Some(&b"content"[..]),
        "the suspect blob is intact"
    );
    rot(&run.path(&digest));
    // As if the disk had changed it by itself.
    let seal = seal_at(&run.path(&digest)).unwrap().unwrap();
    run.blobs.0.table.lock().tier.change(&digest, |held| held.blob.seal = seal);
    assert!(
        run.read(b"content").is_some_and(|bytes| bytes != b"content"),
        "a valid seal hides the damage"
    );
    run.blobs.suspect(&digest);
    assert_eq!(run.read(b"content"), None);
    assert!(!run.blobs.contains(&digest));
}

#[test]
fn the_empty_digest_needs_no_file() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    let empty = Digest::empty();
    assert!(run.blobs.contains(&empty));
    assert_eq!(run.put(b"", State::Unsaved), empty);
    assert_eq!(run.blobs.usage().blobs, 0);
    assert_eq!(run.read(b"").as_deref(), Some(&b""[..]));
    fs::write(run.dir.path().join("empty"), b"no longer").unwrap();
    assert_eq!(run.read(b"").as_deref(), Some(&b""[..]));
    assert!(run.blobs.open_blob(&empty, 1).unwrap().is_none());
    assert!(run.blobs.pin(&empty).is_some() && run.blobs.mark_saved(&empty));
}

#[test]
fn p9_self_healing_a_damaged_blob_is_a_miss_until_rewritten() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    let digest = run.put(b"good bytes", State::Saved);
    rot(&run.path(&digest));
    assert_eq!(run.read(b"good bytes"), None);
    assert!(!run.path(&digest).exists());
    assert!(!run.blobs.contains(&digest));
    assert_eq!(run.blobs.usage().damaged, 1);
    assert!(run.blobs.news().gone.contains(&digest));
    run.put(b"good bytes", State::Saved);
    assert_eq!(run.read(b"good bytes").as_deref(), Some(&b"good bytes"[..]));
    // Truncated, a folder, a link: all are misses and all are repaired.
    for spoil in 0..3 {
        let path = run.path(&digest);
        fs::remove_file(&path).unwrap();
        match spoil {
            0 => fs::write(&path, b"good").unwrap(),
            1 => fs::create_dir(&path).unwrap(),
            _ => std::os::unix::fs::symlink("/etc/passwd", &path).unwrap(),
        }
        assert_eq!(run.read(b"good bytes"), None);
        run.put(b"good bytes", State::Saved);
        assert_eq!(run.read(b"good bytes").as_deref(), Some(&b"good bytes"[..]));
    }
}

#[test]
fn p9_self_healing_a_writer_replaces_a_damaged_blob_that_was_not_read() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    let digest = run.put(b"good bytes", State::Saved);
    rot(&run.path(&digest));
    let (file, staged) = run.stage(b"good bytes");
    let adopted = run.blobs.adopt(staged, &file, digest, 10, State::Saved).unwrap();
    assert_eq!(adopted, Adopted::New);
    assert_eq!(run.read(b"good bytes").as_deref(), Some(&b"good bytes"[..]));
}

#[test]
fn a_blob_removed_by_another_program_is_a_miss() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    let digest = run.put(b"x", State::Unsaved);
    fs::remove_dir_all(run.path(&digest).parent().unwrap()).unwrap();
    assert_eq!(run.read(b"x"), None);
    assert!(!run.blobs.contains(&digest));
    assert_eq!(run.blobs.usage().bytes, 0);
    run.put(b"x", State::Unsaved);
    assert_eq!(run.read(b"x").as_deref(), Some(&b"x"[..]), "the folder is created again");
}

#[test]
fn the_last_use_outlives_a_restart() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    let digest = run.put(b"x", State::Saved);
    let now_s = Clock::system().wall_ms() / 1000;
    let used = run.blobs.last_used(&digest).unwrap();
    assert!(now_s.abs_diff(used) < 600, "{used} at {now_s}");
    assert_eq!(run.blobs.last_used(&Digest::of(b"y")), None);
    let told = run.blobs.news().sealed;
    drop(run);
    let known = told.into_iter().map(|(digest, known)| (digest, Used { used: 77, ..known }));
    let dir = CacheDir::open(fixture.root.path()).unwrap();
    let options = Options { evict_unsaved: false, clock: Clock::system() };
    let blobs = Blobs::open(&dir, Limits::of(1 << 30), known, options).unwrap();
    assert_eq!(blobs.last_used(&digest), Some(77));
}

#[test]
fn a_restart_trusts_unbroken_seals_and_reads_the_rest() {
    let fixture = Fixture::new(1 << 30);
    let (sealed, rotten, lost, forgotten);
    let known: Vec<(Digest, Seal)>;
    {
        let run = fixture.open();
        sealed = run.put(b"sealed", State::Saved);
        rotten = run.put(b"rotten", State::Saved);
        lost = run.put(b"lost", State::Saved);
        let told = run.blobs.news().sealed;
        known = told.into_iter().map(|(digest, used)| (digest, used.seal)).collect();
        forgotten = run.put(b"forgotten", State::Saved);
        rot(&run.path(&rotten));
        fs::remove_file(run.path(&lost)).unwrap();
    }
    let run = fixture.open_knowing(&known);
    assert!(run.blobs.contains(&sealed) && run.blobs.contains(&forgotten));
    assert!(run.blobs.mark_unsaved(&forgotten));
    assert_eq!(run.read(b"sealed").as_deref(), Some(&b"sealed"[..]));
    assert_eq!(run.read(b"forgotten").as_deref(), Some(&b"forgotten"[..]));
    assert_eq!(run.read(b"rotten"), None);
    run.listed();
    assert!(!run.blobs.contains(&lost));
    assert_eq!(run.blobs.usage().blobs, 2);
    assert_eq!(run.blobs.usage().unsaved_bytes, 4096);
    drop(run);
    let run = fixture.open();
    assert_eq!(run.blobs.usage().blobs, 2, "without an index the folder is read");
    assert_eq!(run.read(b"forgotten").as_deref(), Some(&b"forgotten"[..]));
}

/// After a power loss the times of a file may belong to bytes that never reached the disk.
#[test]
fn p9_self_healing_in_doubt_every_blob_is_read_before_it_is_served() {
    let fixture = Fixture::new(1 << 30);
    let digest;
    {
        let run = fixture.open();
        digest = run.put(b"written", State::Saved);
        rot(&run.path(&digest));
    }
    let seal = seal_at(&fixture.root.path().join(format!("v1/blobs/{}/{digest}", digest.shard())));
    let known = [(digest, seal.unwrap().unwrap())];
    let state = fixture.root.path().join("v1/state");
    fs::write(&state, "another-boot running 0\n").unwrap();
    let run = fixture.open_knowing(&known);
    assert!(run.dir.doubt());
    assert_eq!(run.read(b"written"), None);
}

#[test]
fn p3_stable_open_an_evicted_blob_stays_readable_while_it_is_open() {
    let fixture = Fixture::new(10 * 4096);
    let run = fixture.open();
    let content = vec![7; 4096];
    run.put(&content, State::Saved);
    let open = run.blobs.open_blob(&Digest::of(&content), 4096).unwrap().unwrap();
    for n in 0..30 {
        run.put(&vec![n + 50; 4096], State::Saved);
    }
    assert!(run.blobs.contains(&Digest::of(&content)), "a pinned blob stays");
    assert_eq!(run.blobs.usage().pinned_bytes, 4096);
    let OpenBlob { file, pin, .. } = open;
    drop(pin);
    for n in 0..30 {
        run.put(&vec![n + 100; 4096], State::Saved);
    }
    assert!(!run.blobs.contains(&Digest::of(&content)));
    assert_eq!(read_all(&file), content);
}

#[test]
fn p13_bounded_the_tier_stays_under_its_limit_and_keeps_what_is_used() {
    let fixture = Fixture::new(100 * 4096);
    let run = fixture.open();
    let unsaved = run.put(b"unsaved", State::Unsaved);
    for n in 0..1000_u32 {
        run.put(&n.to_le_bytes(), State::Saved);
        assert!(run.read(&0_u32.to_le_bytes()).is_some(), "a blob in use stays");
        assert!(run.blobs.usage().bytes <= 100 * 4096);
    }
    assert!(run.blobs.contains(&unsaved));
    let usage = run.blobs.usage();
    assert!(usage.bytes >= 80 * 4096, "{usage:?}");
    assert_eq!(usage.evictions + usage.blobs, 1001);
    let files: usize = fs::read_dir(&run.blobs.0.path)
        .unwrap()
        .map(|shard| fs::read_dir(shard.unwrap().path()).unwrap().count())
        .sum();
    assert_eq!(files as u64, usage.blobs);
    assert_eq!(run.blobs.news().gone.len() as u64, usage.evictions);
}

#[test]
fn p13_bounded_unsaved_blobs_leave_no_room_for_new_data() {
    let fixture = Fixture::new(10 * 4096);
    let run = fixture.open();
    assert!(run.blobs.make_room(10 * 4096));
    assert!(!run.blobs.make_room(11 * 4096));
    let digests: Vec<_> = (0..10_u8).map(|n| run.put(&[n], State::Unsaved)).collect();
    assert!(!run.blobs.make_room(1));
    run.blobs.mark_saved(&digests[3]);
    assert!(run.blobs.make_room(4096));
    assert!(!run.blobs.contains(&digests[3]));
    let (_file, staged) = run.stage(b"");
    staged.note_bytes(4096);
    assert!(!run.blobs.make_room(1), "staged bytes count");
    drop(staged);
    assert!(run.blobs.make_room(1));
}

#[test]
fn a_lodged_digest_counts_as_present_and_is_not_served() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    run.listed();
    let digest = Digest::of(b"staged");
    let (one, two) = (run.blobs.lodge(digest), run.blobs.lodge(digest));
    drop(one);
    assert!(run.blobs.contains(&digest));
    assert!(run.blobs.open_blob(&digest, 6).unwrap().is_none());
    drop(two);
    assert!(!run.blobs.contains(&digest));
}

#[test]
fn p1_whole_or_nothing_a_staging_file_that_was_exchanged_is_no_blob() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    run.listed();
    let (file, staged) = run.stage(b"right");
    fs::remove_file(staged.path()).unwrap();
    fs::write(staged.path(), b"wrong").unwrap();
    let digest = Digest::of(b"right");
    assert!(run.blobs.adopt(staged, &file, digest, 5, State::Saved).is_err());
    assert_eq!(run.read(b"right"), None);
}

/// P3, P9, P13 with threads: every read returns the right bytes, and the accounts match the disk at the end.
#[test]
fn threads_never_read_wrong_bytes() {
    let fixture = Fixture::new(40 * 4096);
    let run = Arc::new(fixture.open());
    let hits = Arc::new(AtomicUsize::new(0));
    let work = |run: &Run, hits: &AtomicUsize| {
        for _ in 0..1500 {
            let n = task::random_u64() % 80;
            let content = format!("content {n}").into_bytes();
            match task::random_u64() % 8 {
                0..3 => drop(run.put(&content, State::Saved)),
                3 => drop(fs::remove_file(run.path(&Digest::of(&content)))),
                4 => drop(run.blobs.lodge(Digest::of(&content))),
                5 => drop(run.blobs.make_room(4096 * 10)),
                _ => {
                    if let Some(open) =
                        run.blobs.open_blob(&Digest::of(&content), content.len() as u64).unwrap()
                    {
                        assert_eq!(read_all(&open.file), content);
                        hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        }
    };
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let (run, hits) = (Arc::clone(&run), Arc::clone(&hits));
            task::thread("worker", move || work(&run, &hits)).unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(hits.load(Ordering::Relaxed) > 100);
    assert_eq!(run.blobs.usage().pinned_bytes, 0);
    assert_eq!(fs::read_dir(run.dir.path().join("staging")).unwrap().count(), 0);
    for n in 0..80 {
        let content = format!("content {n}").into_bytes();
        let there = run.read(&content).is_some();
        assert_eq!(there, run.path(&Digest::of(&content)).exists());
    }
}

#[test]
fn p3_stable_open_of_a_blob_whose_writers_come_and_go() {
    let fixture = Fixture::new(1 << 30);
    let run = fixture.open();
    run.put(b"same", State::Saved);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for _ in 0..2000 {
                run.put(b"same", State::Saved);
            }
        });
        while !writer.is_finished() {
            assert_eq!(run.read(b"same").as_deref(), Some(&b"same"[..]));
        }
    });
}

#[test]
fn a_smaller_limit_evicts_at_once_and_a_larger_one_gives_room() {
    let fixture = Fixture::new(100 << 12);
    let run = fixture.open();
    let content = |number: u32| number.to_le_bytes().repeat(1024);
    for number in 0..80 {
        run.put(&content(number), State::Saved);
    }
    let unsaved = run.put(&content(1000), State::Unsaved);
    assert!(!run.blobs.could_hold(200 << 12));
    run.blobs.set_limit(40 << 12);
    let usage = run.blobs.usage();
    assert_eq!((usage.limit, usage.bytes), (40 << 12, 36 << 12), "evicted to the low mark");
    assert!(run.blobs.contains(&unsaved), "an unsaved blob stays");
    assert!(run.blobs.contains(&Digest::of(&content(79))) && run.read(&content(0)).is_none());
    run.blobs.set_limit(300 << 12);
    assert!(run.blobs.has_room(200 << 12) && run.blobs.could_hold(200 << 12));
    assert_eq!(run.blobs.usage().bytes, 36 << 12);
}

/// Threads that reserve room never take more than there is.
#[test]
fn threads_that_reserve_room_evict_nothing() {
    const BLOCKS: u64 = 64;
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 4;
    fn fill(run: &Run, label: &str) {
        for n in 0..BLOCKS {
            let content = format!("{label} {n}").into_bytes();
            let (file, staged) = run.stage(&content);
            let (digest, size) = (Digest::of(&content), content.len() as u64);
            if run.blobs.reserve(staged.bytes(), size, |blobs| blobs.has_room(size)) {
                run.blobs.adopt(staged, &file, digest, size, State::Saved).unwrap();
            }
        }
    }
    for round in 0..ROUNDS {
        let fixture = Fixture::new(BLOCKS * 4096);
        let run = Arc::new(fixture.open());
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let run = Arc::clone(&run);
                task::thread("worker", move || fill(&run, &format!("{round} {thread}"))).unwrap()
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let usage = run.blobs.usage();
        assert_eq!(usage.evictions, 0, "{usage:?}");
        assert!(usage.blobs > BLOCKS - THREADS && usage.bytes <= BLOCKS * 4096, "{usage:?}");
    }
}
