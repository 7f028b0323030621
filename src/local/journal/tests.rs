use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use proptest::prelude::*;

use super::*;
use crate::name::TreePath;
use crate::namespace::{Entry, Op, Time};
use crate::stamp::{NodeId, Stamp};
use crate::task;

/// Makes a change that `n` distinguishes from all others.
fn change(n: u64) -> Change {
    let name = format!("entry-{n}-{}", "x".repeat((n % 50) as usize));
    Change {
        path: TreePath::root().join(name.as_bytes()).unwrap(),
        stamp: Stamp { ms: n, counter: 0, node: NodeId(1) },
        op: if n.is_multiple_of(5) {
            Op::Remove
        } else {
            Op::Put(Entry::directory(0o755, 1, 2, Time::from_ms(n)))
        },
    }
}

fn numbers(records: &[Record]) -> Vec<u64> {
    records.iter().flat_map(|record| &record.changes).map(|change| change.stamp.ms).collect()
}

struct Fixture {
    root: tempfile::TempDir,
    /// Kept over several openings of the journal: each opening of the directory syncs the disk.
    dir: std::cell::RefCell<Option<CacheDir>>,
}

impl Fixture {
    fn new() -> Self {
        // In memory if possible: no test here concerns the disk, and syncing it is slow.
        let memory = Path::new("/dev/shm");
        let root = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        Self { root: root.unwrap(), dir: None.into() }
    }

    fn open(&self) -> (CacheDir, Journal, Vec<Record>) {
        let mut held = self.dir.borrow_mut();
        let dir = held.get_or_insert_with(|| CacheDir::open(self.root.path()).unwrap()).clone();
        let (journal, records) = Journal::open_sized(&dir, 2000).unwrap();
        (dir, journal, records)
    }

    fn path(&self) -> PathBuf {
        self.root.path().join("v1/journal")
    }

    /// Returns the segments, oldest first.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path()).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<_> = entries
            .filter(|path| path.extension().is_some_and(|e| e == "log" || e == "snap"))
            .collect();
        files.sort();
        files
    }
}

fn flip(path: &Path, bit: usize) {
    let mut bytes = fs::read(path).unwrap();
    let bit = bit % (bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path, bytes).unwrap();
}

#[test]
fn p4_local_durable_what_was_appended_is_replayed_in_order() {
    let fixture = Fixture::new();
    {
        let (_dir, journal, records) = fixture.open();
        assert!(records.is_empty());
        for n in 0..100 {
            assert_eq!(journal.append(&[change(2 * n), change(2 * n + 1)]).unwrap(), Seq(n + 1));
        }
        assert_eq!(journal.backlog().0, 100);
        journal.sync().unwrap();
    }
    let (_dir, journal, records) = fixture.open();
    assert!(fixture.files().len() > 3, "segments are bounded");
    assert_eq!(numbers(&records), (0..200).collect::<Vec<_>>());
    assert_eq!(records.len(), 100, "groups stay together");
    assert_eq!(journal.backlog().0, 100);
    assert_eq!(journal.append(&[change(200)]).unwrap(), Seq(101));
}

#[test]
fn acknowledged_records_go_with_their_segments() {
    let fixture = Fixture::new();
    let (dir, journal, _) = fixture.open();
    for n in 0..100 {
        journal.append(&[change(n)]).unwrap();
    }
    let before = fixture.files().len();
    journal.ack(Seq(60)).unwrap();
    assert!(fixture.files().len() < before);
    assert_eq!(journal.backlog().0, 40);
    journal.ack(Seq(50)).unwrap();
    assert_eq!(journal.backlog().0, 40, "an older acknowledgement changes nothing");
    drop((dir, journal));
    let (dir, journal, records) = fixture.open();
    assert_eq!(numbers(&records), (60..100).collect::<Vec<_>>());
    journal.ack(Seq(1_000_000)).unwrap();
    assert_eq!(journal.backlog(), (0, 0));
    drop((dir, journal));
    let (_dir, journal, records) = fixture.open();
    assert!(records.is_empty());
    assert!(journal.append(&[change(7)]).unwrap() > Seq(100), "numbers only grow");
}

#[test]
fn p9_self_healing_one_damaged_record_costs_one_record() {
    let fixture = Fixture::new();
    {
        let (_dir, journal, _) = fixture.open();
        for n in 0..50 {
            journal.append(&[change(n)]).unwrap();
        }
    }
    let victim = fixture.files()[1].clone();
    flip(&victim, (fs::metadata(&victim).unwrap().len() * 4) as usize);
    let (dir, journal, records) = fixture.open();
    let kept = numbers(&records);
    assert_eq!(kept.len(), 49);
    assert!(kept.is_sorted());
    let aside = fixture.path().join("damaged").join(victim.file_name().unwrap());
    assert!(aside.exists(), "the damaged segment is kept aside");
    drop((dir, journal));
    let (_dir, _journal, again) = fixture.open();
    assert_eq!(numbers(&again), kept, "the repair holds");
    let damaged = fs::read_dir(fixture.path().join("damaged")).unwrap().count();
    assert_eq!(damaged, 1, "a repaired segment stays repaired");
}

/// Returns a change whose value is a record that a program has made, which does not know the key of
/// the journal.
fn carrier(n: u64, seq: u64, padding: usize) -> Change {
    let mut forged = record::encode(&[change(666)], &Note::default()).unwrap();
    record::finish(&mut forged, seq, &SumKey::Public);
    let mut other = record::encode(&[change(667)], &Note::default()).unwrap();
    record::finish(&mut other, seq, &SumKey::Secret([7; blake3::KEY_LEN]));
    forged.extend(other);
    forged.extend(vec![b'A'; padding]);
    let mut entry = Entry::directory(0, 0, 0, Time::default());
    entry.kind = crate::namespace::EntryKind::Symlink { target: forged.into() };
    Change { op: Op::Put(entry), ..change(n) }
}

/// A name may look like a record; no damage to the real record exposes it, wherever it is.
#[test]
fn p1_whole_or_nothing_a_forged_record_in_a_name_is_not_replayed() {
    for byte in 0..=record::HEAD_BYTES {
        let fixture = Fixture::new();
        {
            let (_dir, journal, _) = fixture.open();
            journal.append(&[carrier(1, 2, 0)]).unwrap();
            journal.append(&[change(3)]).unwrap();
        }
        flip(&fixture.files()[0], (segment::HEADER_BYTES as usize + byte) * 8);
        let (_dir, _journal, records) = fixture.open();
        assert_eq!(numbers(&records), [3], "byte {byte}");
    }
}

/// A record that is cut off is the last one of its segment: what is left of its payload is not searched.
#[test]
fn p1_whole_or_nothing_a_forged_record_in_a_torn_one_is_not_replayed() {
    let fixture = Fixture::new();
    {
        let (_dir, journal, _) = fixture.open();
        journal.append(&[change(1)]).unwrap();
        journal.append(&[carrier(2, 1 << 40, 300)]).unwrap();
    }
    let file = fixture.files()[0].clone();
    let size = fs::metadata(&file).unwrap().len();
    File::options().write(true).open(&file).unwrap().set_len(size - 200).unwrap();
    let (_dir, _journal, records) = fixture.open();
    assert_eq!(numbers(&records), [1]);
}

/// Without its key no record of the journal counts, also not one that needs none.
#[test]
fn p1_whole_or_nothing_a_journal_without_its_key_yields_nothing() {
    let fixture = Fixture::new();
    {
        let (_dir, journal, _) = fixture.open();
        journal.append(&[carrier(1, 2, 0)]).unwrap();
    }
    let file = fixture.files()[0].clone();
    fs::remove_file(fixture.path().join("key")).unwrap();
    {
        let (_dir, journal, records) = fixture.open();
        assert!(records.is_empty());
        journal.append(&[change(5)]).unwrap();
    }
    assert!(fixture.path().join("damaged").join(file.file_name().unwrap()).exists());
    let (_dir, _journal, records) = fixture.open();
    assert_eq!(numbers(&records), [5], "there is another key");
}

#[test]
fn p9_self_healing_a_damaged_header_costs_no_record() {
    for at in 0..segment::HEADER_BYTES as usize {
        let fixture = Fixture::new();
        {
            let (_dir, journal, _) = fixture.open();
            journal.append(&[change(1)]).unwrap();
        }
        let file = fixture.files()[0].clone();
        let good = fs::read(&file).unwrap();
        flip(&file, at * 8);
        {
            let (_dir, _journal, records) = fixture.open();
            assert_eq!(numbers(&records), [1], "byte {at}");
        }
        assert_eq!(fs::read(&file).unwrap(), good, "the header is whole again");
    }
}

/// A segment of version 1 has no key. It is read, also if it is damaged; later records have one.
#[test]
fn p4_local_durable_a_journal_of_version_1_is_replayed() {
    let fixture = Fixture::new();
    drop(fixture.open());
    let mut segment = b"hearthJ\n\x01\0\0\0".to_vec();
    let sum = blake3::hash(&segment);
    segment.extend_from_slice(&sum.as_bytes()[..4]);
    for n in 1..=3 {
        let mut record = record::encode(&[change(n)], &Note::default()).unwrap();
        record::finish(&mut record, n, &SumKey::Public);
        segment.extend(record);
    }
    let path = segment::path_of(&fixture.path(), 1, segment::Form::Log);
    fs::write(&path, &segment).unwrap();
    {
        let (_dir, journal, records) = fixture.open();
        assert_eq!(numbers(&records), [1, 2, 3]);
        assert_eq!(journal.append(&[change(4)]).unwrap(), Seq(4));
    }
    assert_eq!(fs::read(&path).unwrap(), segment, "left as it was");
    flip(&path, (16 + record::HEAD_BYTES + 2) * 8);
    for _ in 0..2 {
        let (_dir, _journal, records) = fixture.open();
        assert_eq!(numbers(&records), [2, 3, 4]);
    }
}

#[test]
fn a_newer_journal_is_refused_and_left_alone() {
    let fixture = Fixture::new();
    {
        let (_dir, journal, _) = fixture.open();
        journal.append(&[change(1)]).unwrap();
    }
    let path = fixture.files()[0].clone();
    let good = fs::read(&path).unwrap();
    let mut newer = good.clone();
    newer[8] = segment::VERSION as u8 + 1;
    let sum = blake3::hash(&newer[..12]);
    newer[12..16].copy_from_slice(&sum.as_bytes()[..4]);
    let mut newer_record = good[..segment::HEADER_BYTES as usize].to_vec();
    let mut record = record::encode(&[change(1)], &Note::default()).unwrap();
    record[record::HEAD_BYTES] = record::VERSION + 1;
    record::finish(&mut record, 1, &SumKeyFile::read(&fixture.path()).unwrap().key());
    newer_record.extend(record);
    for bytes in [newer.clone(), newer_record] {
        fs::write(&path, &bytes).unwrap();
        let dir = fixture.dir.borrow().clone().unwrap();
        let error = Journal::open(&dir).unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("newer"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }
    fs::write(&path, newer).unwrap();
    let key = fixture.path().join("key");
    fs::write(&key, b"another kind").unwrap();
    let dir = fixture.dir.borrow().clone().unwrap();
    Journal::open(&dir).unwrap_err();
    assert_eq!(fs::read(&key).unwrap(), b"another kind", "a newer format may have one");
}

#[test]
fn a_full_disk_costs_only_the_record_that_did_not_fit() {
    let fixture = Fixture::new();
    let (dir, journal, _) = fixture.open();
    journal.append(&[change(1)]).unwrap();
    let real = {
        let mut state = journal.state.lock();
        let active = state.active.as_mut().unwrap();
        let full = File::options().write(true).open("/dev/full").unwrap();
        std::mem::replace(&mut active.file, Arc::new(full))
    };
    let error = journal.append(&[change(2)]).unwrap_err();
    assert_eq!(error.kind(), Kind::NoSpace);
    drop(real);
    journal.append(&[change(3)]).unwrap();
    drop((dir, journal));
    let (_dir, _journal, records) = fixture.open();
    assert_eq!(numbers(&records), [1, 3]);
}

/// The changes of a snapshot, none of them private.
fn shared(changes: Vec<Change>) -> Vec<(Change, bool)> {
    changes.into_iter().map(|change| (change, false)).collect()
}

#[test]
fn compaction_keeps_what_lives_and_what_comes_meanwhile() {
    let fixture = Fixture::new();
    let (dir, journal, _) = fixture.open();
    for n in 0..12_000 {
        journal.append(&[change(n % 10)]).unwrap();
    }
    assert!(journal.wants_compaction(10));
    assert!(!journal.wants_compaction(10_000));
    let old: Vec<_> = fixture.files().iter().map(|p| (p.clone(), fs::read(p).unwrap())).collect();
    let live = || {
        journal.append(&[change(500)]).unwrap();
        (0..1000).map(change).collect::<Vec<_>>()
    };
    journal.compact(|| shared(live())).unwrap();
    journal.append(&[change(501)]).unwrap();
    assert!(!journal.wants_compaction(1000));
    let expected: Vec<_> = (0..1000).chain([500, 501]).collect();
    drop((dir, journal));
    // As if the machine had stopped between the rename and the removal of the old segments.
    for (path, bytes) in &old {
        fs::write(path, bytes).unwrap();
    }
    fs::write(fixture.path().join("00000000000fffff.tmp"), b"half a snapshot").unwrap();
    let (dir, journal, records) = fixture.open();
    assert_eq!(numbers(&records), expected);
    assert!(old.iter().all(|(path, _)| !path.exists()));
    assert!(!fixture.path().join("00000000000fffff.tmp").exists());
    journal.compact(|| shared(vec![change(7)])).unwrap();
    journal.compact(Vec::new).unwrap();
    assert_eq!(journal.backlog(), (0, 0));
    let last = journal.append(&[change(8)]).unwrap();
    drop((dir, journal));
    let (_dir, journal, records) = fixture.open();
    assert_eq!(numbers(&records), [8]);
    assert!(journal.last() >= last);
}

#[derive(Debug, Clone)]
enum Step {
    Append(usize),
    Ack(u64),
    Reopen,
    Truncate(u64),
    Flip(usize, usize),
    Compact,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1_usize..20).prop_map(Step::Append),
        2 => (0_u64..100).prop_map(Step::Ack),
        2 => Just(Step::Reopen),
        1 => (1_u64..300).prop_map(Step::Truncate),
        1 => (any::<usize>(), any::<usize>()).prop_map(|(file, bit)| Step::Flip(file, bit)),
        1 => Just(Step::Compact),
    ]
}

fn as_map(records: Vec<Record>) -> BTreeMap<u64, Vec<Change>> {
    records.into_iter().map(|record| (record.seq.0, record.changes)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// P4, P5, P9: against a map of what was appended and not acknowledged.
    #[test]
    fn journal_against_a_model(steps in proptest::collection::vec(step(), 1..40)) {
        let fixture = Fixture::new();
        let (mut dir, mut journal, _) = fixture.open();
        let mut model: BTreeMap<u64, Vec<Change>> = BTreeMap::new();
        let mut n = 0;
        for step in steps {
            match step {
                Step::Append(count) => {
                    let changes: Vec<_> = (n..n + count as u64).map(change).collect();
                    n += count as u64;
                    let seq = journal.append(&changes).unwrap();
                    prop_assert!(model.keys().all(|known| *known < seq.0));
                    model.insert(seq.0, changes);
                }
                Step::Ack(percent) => {
                    let at = model.len() * percent as usize / 100;
                    let Some(upto) = model.keys().nth(at).copied() else { continue };
                    journal.ack(Seq(upto)).unwrap();
                    model.retain(|seq, _| *seq > upto);
                    // If a record was damaged, the backlog may be too high; it is zero only if
                    // nothing is pending.
                    prop_assert!(journal.backlog().0 >= model.len() as u64);
                    prop_assert_eq!(journal.backlog().0 == 0, model.is_empty());
                }
                Step::Compact => {
                    let live: Vec<_> = model.values().flatten().cloned().collect();
                    journal.compact(|| shared(live.clone())).unwrap();
                    drop((dir, journal));
                    let (d, j, records) = fixture.open();
                    (dir, journal) = (d, j);
                    let back: Vec<_> = records.iter().flat_map(|r| r.changes.clone()).collect();
                    prop_assert_eq!(back, live);
                    model = as_map(records);
                }
                Step::Reopen => {
                    drop((dir, journal));
                    let (d, j, records) = fixture.open();
                    (dir, journal) = (d, j);
                    prop_assert_eq!(as_map(records), model.clone());
                }
                Step::Truncate(bytes) => {
                    drop((dir, journal));
                    if let Some(path) = fixture.files().last() {
                        let length = fs::metadata(path).unwrap().len();
                        let file = File::options().write(true).open(path).unwrap();
                        file.set_len(length.saturating_sub(bytes)).unwrap();
                    }
                    let (d, j, records) = fixture.open();
                    (dir, journal) = (d, j);
                    let found = as_map(records);
                    let expected: BTreeMap<_, _> =
                        model.clone().into_iter().take(found.len()).collect();
                    prop_assert_eq!(&found, &expected, "a torn tail costs the last records only");
                    model = found;
                }
                Step::Flip(file, bit) => {
                    drop((dir, journal));
                    let files = fixture.files();
                    if !files.is_empty() {
                        flip(&files[file % files.len()], bit);
                    }
                    let (d, j, records) = fixture.open();
                    (dir, journal) = (d, j);
                    let found = as_map(records);
                    prop_assert!(found.len() + 1 >= model.len(), "more than one record lost");
                    for (seq, changes) in &found {
                        prop_assert_eq!(model.get(seq), Some(changes), "a wrong record");
                    }
                    model = found;
                }
            }
        }
    }
}

const CHILD: &str = "HEARTHFS_TEST_JOURNAL_CHILD";

/// Appends for ever, and prints each acknowledged number; does nothing unless its parent started it.
#[test]
fn crash_child() {
    let Some(root) = std::env::var_os(CHILD) else { return };
    let dir = CacheDir::open(Path::new(&root)).unwrap();
    let (journal, _) = Journal::open_sized(&dir, 20_000).unwrap();
    let mut out = std::io::stdout().lock();
    for n in 0.. {
        let next = journal.last().0 + 1;
        let changes: Vec<_> = (0..=n % 4).map(|k| change(next * 10 + k)).collect();
        let seq = journal.append(&changes).unwrap();
        assert_eq!(seq.0, next);
        writeln!(out, "appended {seq}").unwrap();
        if task::random_u64().is_multiple_of(50) {
            let upto = Seq(seq.0 - task::random_u64() % 40.min(seq.0));
            writeln!(out, "acknowledging {upto}").unwrap();
            journal.ack(upto).unwrap();
        }
    }
}

#[test]
fn p4_local_durable_sigkill_loses_nothing_that_was_acknowledged() {
    let fixture = Fixture::new();
    let mut appended = std::collections::BTreeSet::new();
    let mut acked = 0;
    let mut last = 0;
    for _ in 0..25 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "local::journal::tests::crash_child",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(CHILD, fixture.root.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut take = 1 + task::random_u64() % 400;
        while take > 0 {
            let line = lines.next().expect("the child goes on until it is killed").unwrap();
            take -= u64::from(note(&line, &mut appended, &mut acked));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            note(&line.unwrap(), &mut appended, &mut acked);
        }
        let (dir, journal, records) = fixture.open();
        let found = as_map(records);
        for seq in appended.range(acked + 1..) {
            let changes = found.get(seq).expect("an acknowledged append was lost");
            for (k, found) in changes.iter().enumerate() {
                assert_eq!(*found, change(seq * 10 + k as u64));
            }
        }
        last = last.max(appended.last().copied().unwrap_or(0));
        appended = found.keys().copied().collect();
        drop((dir, journal));
        fixture.dir.take();
    }
    // What is left may be nothing: the last child may have acknowledged all that it appended.
    assert!(last >= 25, "each child appends at least once");
}

/// Reads one line of the child; false for a line of the test harness. The last may be cut short.
fn note(line: &str, appended: &mut std::collections::BTreeSet<u64>, acked: &mut u64) -> bool {
    let Some((what, number)) = line.rsplit_once(' ') else { return false };
    let Ok(number) = number.parse::<u64>() else { return false };
    if what.ends_with("appended") {
        appended.insert(number);
        return true;
    }
    if what.ends_with("acknowledging") {
        *acked = number.max(*acked);
    }
    false
}

#[test]
fn what_stays_on_this_node_is_noted_with_its_record() {
    let fixture = Fixture::new();
    let (dir, journal, _) = fixture.open();
    let torn = [(Digest::of(b"half"), Check::Elf), (Digest::empty(), Check::Json)];
    let torn = Note { torn: torn.to_vec(), private: false };
    let private = Note { torn: Vec::new(), private: true };
    journal.append_with(&[change(1), change(2)], &torn).unwrap();
    journal.append(&[change(3)]).unwrap();
    journal.append_with(&[change(4)], &private).unwrap();
    drop((dir, journal));
    let (_dir, _journal, records) = fixture.open();
    let notes: Vec<Note> = records.iter().map(|record| record.note.clone()).collect();
    assert_eq!(notes, [torn, Note::default(), private]);
    assert_eq!(records[0].changes, [change(1), change(2)]);
}
