//! The handle over a store in memory, with faults.

use std::io::{Read as _, Write as _};

use super::*;
use crate::clock;
use crate::digest::Digest;
use crate::remote::fault::{FaultPlan, Faults, InjectedAnswer, MemoryStore};
use crate::remote::format::Format;
use crate::remote::format::StoreId;
use crate::remote::keys;
use crate::remote::log::LOG_ITEMS_MAX;
use crate::stamp::Stamp;

const SHORT: Duration = Duration::from_millis(300);

fn options() -> RemoteOptions {
    RemoteOptions { deadline: SHORT, ..RemoteOptions::default() }
}

fn fresh() -> (MemoryStore, Arc<Faults>, Remote) {
    let (store, faults) = (MemoryStore::new(), Faults::none());
    let remote = store.remote(&faults, &options(), Clock::system(), NodeId(1));
    (store, faults, remote)
}

fn name(ms: u64) -> String {
    keys::commit_name(&Stamp { ms, counter: 0, node: NodeId(1) })
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let done = runtime.block_on(work);
    runtime.shutdown_timeout(Duration::from_secs(5));
    done
}

fn noise(seed: u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut bytes);
    bytes
}

fn file_of(raw: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(raw).expect("written");
    file
}

async fn fetch(remote: &Remote, digest: &Digest, size: u64) -> Result<Vec<u8>> {
    let mut file = tempfile::tempfile().expect("a file");
    remote.get_blob(digest, size, file.try_clone().expect("a handle")).await?;
    let mut raw = Vec::new();
    file.read_to_end(&mut raw).expect("readable");
    Ok(raw)
}

#[test]
fn the_format_is_made_once_and_kept() {
    run(async {
        let (store, faults, remote) = fresh();
        remote.check().await.expect("an empty store");
        let first = store.read("hearthfs.json").await.expect("made");
        store
            .remote(&faults, &options(), Clock::manual(5), NodeId(2))
            .check()
            .await
            .expect("the same store");
        assert_eq!(store.read("hearthfs.json").await.expect("kept"), first);
        assert_eq!(store.keys().await, ["head", "hearthfs.json"], "the probes are removed");
    });
}

#[test]
fn nothing_is_written_to_a_store_of_another_format() {
    run(async {
        let (store, _, remote) = fresh();
        store.overwrite("hearthfs.json", b"{\"format\":9}".to_vec()).await;
        for _ in 0..2 {
            let error = remote.put_commit(&name(1), Bytes::from_static(b"x")).await;
            assert_eq!(error.expect_err("refused").kind(), Kind::Invalid);
        }
        assert_eq!(remote.list_log(None).await.expect_err("refused").kind(), Kind::Invalid);
        assert_eq!(remote.requests().gets, 1, "the refusal is remembered");
        assert_eq!(store.keys().await, ["hearthfs.json"]);
        let error = remote.check().await.expect_err("refused");
        assert!(error.to_string().contains("format 9"), "{error}");
    });
}

#[test]
fn a_store_that_comes_up_late_is_used() {
    run(async {
        let (_, faults, remote) = fresh();
        faults.set(FaultPlan { errors_percent: 100, ..FaultPlan::default() });
        assert_eq!(remote.check().await.expect_err("down").kind(), Kind::Unavailable);
        assert_eq!(remote.list_log(None).await.expect_err("down").kind(), Kind::Unavailable);
        assert!(matches!(remote.health(), Health::Down { .. }));
        faults.set(FaultPlan::default());
        remote.put_commit(&name(1), Bytes::from_static(b"x")).await.expect("up again");
        assert_eq!(remote.health(), Health::Up);
        assert_eq!(remote.list_log(None).await.expect("listed").len(), 1);
    });
}

#[test]
fn a_store_that_hangs_costs_one_deadline_and_not_one_per_lookup() {
    run(async {
        let (_, faults, remote) = fresh();
        remote.check().await.expect("an empty store");
        faults.set(FaultPlan { answer: InjectedAnswer::Never, ..FaultPlan::default() });
        let clock = Clock::system();
        let start = clock.mono();
        for round in 0..50 {
            let error = remote.list_log(None).await.expect_err("no answer");
            let first = if round == 0 { Kind::TimedOut } else { Kind::Unavailable };
            assert_eq!(error.kind(), first);
        }
        let took = clock.mono().saturating_sub(start);
        assert!(took >= SHORT && took < SHORT * 3, "{took:?}");
        faults.set(FaultPlan::default());
        clock::sleep(Duration::from_millis(600)).await;
        remote.list_log(None).await.expect("a probe finds it alive");
    });
}

#[test]
fn bulk_work_does_not_keep_programs_waiting() {
    run(async {
        let (_, faults, remote) = fresh();
        remote.check().await.expect("an empty store");
        let quiet = remote.background();
        faults.set(FaultPlan { answer: InjectedAnswer::Never, ..FaultPlan::default() });
        let name = name(1);
        let hanging: Vec<_> = (0..40).map(|_| Box::pin(quiet.get_commit(&name))).collect();
        let all = futures::future::join_all(hanging);
        let ask = async {
            clock::sleep(Duration::from_millis(50)).await;
            faults.set(FaultPlan::default());
            remote.list_log(None).await
        };
        let (listed, _) = futures::join!(clock::within(SHORT, ask), clock::within(SHORT, all));
        listed.expect("in time").expect("listed through the reserve");
    });
}

/// A store may list in any order; parts of a list are right all the same.
#[test]
fn lists_in_any_order_and_with_repetitions_are_brought_into_order() {
    run(async {
        let (store, faults, remote) = fresh();
        remote.check().await.expect("an empty store");
        let count = LOG_ITEMS_MAX as u64 * 2 + 100;
        for ms in 0..count {
            store.overwrite(&format!("log/{}", name(ms)), vec![]).await;
        }
        for plan in ["", "disordered=1"] {
            faults.set(FaultPlan::parse(plan).expect("a plan"));
            let (mut names, mut after) = (Vec::new(), None);
            loop {
                let part = remote.list_log(after.as_deref()).await.expect("listed");
                names.extend(part.iter().map(|item| item.name.clone()));
                after = names.last().cloned();
                if part.len() < LOG_ITEMS_MAX {
                    break;
                }
            }
            assert!(names == (0..count).map(name).collect::<Vec<_>>(), "`{plan}`");
        }
    });
}

#[test]
fn lists_are_sorted_complete_and_start_after_the_name() {
    run(async {
        let (store, faults, remote) = fresh();
        for ms in (0..1100u64).rev() {
            remote.put_commit(&name(ms), Bytes::from_static(b"x")).await.expect("written");
        }
        store.overwrite("log/stranger.txt", vec![]).await;
        let all = remote.list_log(None).await.expect("listed");
        let names: Vec<_> = all.iter().map(|item| item.name.clone()).collect();
        assert_eq!(names, (0..1100).map(name).collect::<Vec<_>>());
        assert!(all.iter().all(|item| item.size == 1 && item.stored_ms > 0));
        let some = remote.list_log(Some(&name(1090))).await.expect("listed");
        assert_eq!(some.len(), 9);
        assert_eq!(some[0].name, name(1091));
        faults.set(FaultPlan { stale_list: Duration::from_millis(100), ..FaultPlan::default() });
        remote.put_commit(&name(5000), Bytes::from_static(b"x")).await.expect("written");
        assert_eq!(remote.list_log(Some(&name(1099))).await.expect("listed"), []);
        clock::sleep(Duration::from_millis(120)).await;
        assert_eq!(remote.list_log(Some(&name(1099))).await.expect("listed").len(), 1);
    });
}

#[test]
fn a_read_that_ends_early_is_an_error() {
    run(async {
        let (_, faults, remote) = fresh();
        let raw = noise(1, 100_000);
        let digest = Digest::of(&raw);
        remote.put_commit(&name(1), raw.clone().into()).await.expect("written");
        remote.put_blob(&digest, file_of(&raw), raw.len() as u64).await.expect("uploaded");
        faults.set(FaultPlan { truncated_percent: 100, ..FaultPlan::default() });
        assert_eq!(remote.get_commit(&name(1)).await.expect_err("cut").kind(), Kind::Unavailable);
        let quiet = remote.background();
        let error = fetch(&quiet, &digest, raw.len() as u64).await.expect_err("cut");
        assert_eq!(error.kind(), Kind::Unavailable);
    });
}

#[test]
fn a_lost_reply_is_done_and_can_be_done_again() {
    run(async {
        let (_, faults, remote) = fresh();
        remote.check().await.expect("an empty store");
        faults.set(FaultPlan { lost_replies_percent: 100, ..FaultPlan::default() });
        let bytes = Bytes::from_static(b"commit");
        let error = remote.put_commit(&name(1), bytes.clone()).await.expect_err("lost");
        assert_eq!(error.kind(), Kind::Unavailable);
        let raw = noise(2, 20 << 20);
        let digest = Digest::of(&raw);
        remote
            .put_blob(&digest, file_of(&raw), raw.len() as u64)
            .await
            .expect("the object is found in the store");
        faults.set(FaultPlan::default());
        remote.put_commit(&name(1), bytes.clone()).await.expect("written again");
        assert_eq!(remote.get_commit(&name(1)).await.expect("readable"), bytes);
        assert_eq!(fetch(&remote, &digest, raw.len() as u64).await.expect("readable"), raw);
    });
}

#[test]
fn a_blob_that_is_not_its_digest_never_appears() {
    run(async {
        let (store, _, remote) = fresh();
        for size in [10, 30 << 20] {
            let raw = noise(3, size);
            let other = Digest::of(b"other");
            for (digest, said) in
                [(other, size), (Digest::of(&raw), size - 1), (Digest::of(&raw), size + 1)]
            {
                let error = remote.put_blob(&digest, file_of(&raw), said as u64).await;
                assert_eq!(error.expect_err("refused").kind(), Kind::Corrupt);
            }
        }
        assert_eq!(store.keys().await, ["head", "hearthfs.json"]);
        assert_eq!(remote.health(), Health::Up);
    });
}

#[test]
fn forbidden_writes_are_no_outage_for_readers() {
    run(async {
        let (_, faults, remote) = fresh();
        remote.check().await.expect("an empty store");
        faults.set(FaultPlan { answer: InjectedAnswer::Forbidden, ..FaultPlan::default() });
        let denied = remote.put_commit(&name(1), Bytes::from_static(b"x")).await;
        assert_eq!(denied.expect_err("403").kind(), Kind::Denied);
        assert_eq!(remote.health(), Health::Up);
        // If no request at all succeeds for a whole deadline, it is an outage.
        assert_eq!(remote.list_log(None).await.expect_err("403").kind(), Kind::Denied);
        assert_eq!(remote.health(), Health::Up);
        clock::sleep(SHORT).await;
        assert_eq!(remote.list_log(None).await.expect_err("403").kind(), Kind::Denied);
        assert!(matches!(remote.health(), Health::Down { .. }));
    });
}

#[test]
fn read_only_writes_nothing() {
    run(async {
        let (store, faults, _) = fresh();
        let made = || store.remote(&faults, &options(), Clock::system(), NodeId(2)).read_only();
        let error = made().check().await.expect_err("no store yet");
        assert_eq!(error.kind(), Kind::NotFound);
        assert_eq!(store.keys().await, [""; 0]);
        store.overwrite("hearthfs.json", Format::new(StoreId(1), 1, None).encode()).await;
        let remote = made();
        remote.check().await.expect("a store");
        let denied = remote.put_commit(&name(1), Bytes::from_static(b"x")).await;
        assert_eq!(denied.expect_err("read-only").kind(), Kind::Denied);
        assert_eq!(remote.requests().puts, 0);
    });
}

#[test]
fn the_first_mount_declares_the_expiry_and_the_shorter_counts() {
    run(async {
        let (store, faults, _) = fresh();
        let day = Duration::from_hours(24);
        let open = |node, expiry| {
            let options = RemoteOptions { expiry, ..options() };
            store.remote(&faults, &options, Clock::system(), NodeId(node))
        };
        let month = open(1, Some(30 * day));
        assert_eq!(month.declared_expiry(), Declared::Unknown);
        assert_eq!(
            month.effective_expiry(),
            Some(30 * day),
            "the configured age until the store's is known"
        );
        month.check().await.expect("made");
        assert_eq!(month.declared_expiry(), Declared::Age(Some(30 * day)));
        for (node, own, counts) in [(2, Some(7 * day), 7 * day), (3, Some(60 * day), 30 * day)] {
            let other = open(node, own);
            other.check().await.expect("a store");
            assert_eq!(other.declared_expiry(), Declared::Age(Some(30 * day)));
            assert_eq!(other.effective_expiry(), Some(counts), "{node}");
        }
        let forever = open(4, None);
        forever.check().await.expect("a store");
        assert_eq!(forever.effective_expiry(), Some(30 * day));
        let old = br#"{"format":1,"created_ms":5,"expiry":null,"trusted_keys":[]}"#;
        store.overwrite("hearthfs.json", old.to_vec()).await;
        let forever = open(5, None);
        forever.check().await.expect("a store of an older version");
        assert_eq!(forever.declared_expiry(), Declared::Unknown);
        assert_eq!(forever.effective_expiry(), None);
    });
}

/// Images of machines have the same name and cache path, and so the same probe object.
#[test]
fn another_node_of_the_same_name_is_no_fault_of_the_store() {
    run(async {
        let (store, faults, _) = fresh();
        let remote = store.stranger(&faults, &options(), Clock::system(), NodeId(1));
        // The latency lets the other node come between any two requests.
        faults.set(FaultPlan { latency: Duration::from_millis(5), ..FaultPlan::default() });
        let there = Arc::new(AtomicBool::new(true));
        let other = crate::task::spawn(&tokio::runtime::Handle::current(), "other", {
            let (store, there) = (store.clone(), there.clone());
            async move {
                let key = format!("probes/{}", NodeId(1));
                while there.load(Ordering::Relaxed) {
                    store.overwrite(&key, b"hearthfs probe of the other one   \n".to_vec()).await;
                }
            }
        });
        let checked = remote.check().await;
        there.store(false, Ordering::Relaxed);
        other.await.expect("it ends");
        checked.expect("usable");
        assert_eq!(remote.unfit(), None);
    });
}

#[test]
fn names_from_outside_cannot_leave_the_layout() {
    run(async {
        let (_, _, remote) = fresh();
        for bad in ["../hearthfs.json", "", "a/b", "x.pack"] {
            assert_eq!(remote.get_pack(bad).await.expect_err(bad).kind(), Kind::Invalid);
            assert_eq!(remote.get_commit(bad).await.expect_err(bad).kind(), Kind::Invalid);
        }
        let pack = keys::pack_name(&Stamp::default());
        for (offset, length) in [(0, 0), (u64::MAX, 1), (0, u64::MAX)] {
            let error = remote.get_pack_range(&pack, offset, length).await.expect_err("refused");
            assert_eq!(error.kind(), Kind::Invalid);
        }
    });
}

#[test]
fn an_upload_that_is_given_up_leaves_its_place_to_others() {
    run(async {
        let (store, faults, remote) = fresh();
        remote.check().await.expect("an empty store");
        let raw = noise(4, 20 << 20);
        let digest = Digest::of(&raw);
        faults.set(FaultPlan { latency: Duration::from_millis(50), ..FaultPlan::default() });
        for _ in 0..8 {
            let put = remote.put_blob(&digest, file_of(&raw), raw.len() as u64);
            assert!(clock::within(Duration::from_millis(60), put).await.is_none());
        }
        faults.set(FaultPlan::default());
        assert_eq!(store.keys().await, ["head", "hearthfs.json"]);
        remote.put_blob(&digest, file_of(&raw), raw.len() as u64).await.expect("a free permit");
        assert!(store.keys().await.iter().any(|key| key.starts_with("blobs/")));
    });
}

#[test]
fn the_stores_time_is_learned() {
    run(async {
        let store = MemoryStore::new();
        let hour_behind = Clock::system().wall_ms() - 3_600_000;
        let clock = Clock::manual(hour_behind);
        let remote = store.remote(&Faults::none(), &options(), clock, NodeId(1));
        assert_eq!(remote.now_ms(), hour_behind);
        remote.check().await.expect("an empty store");
        let off = remote.now_ms().abs_diff(Clock::system().wall_ms());
        assert!(off < 2_000, "{off}");
    });
}

#[test]
fn plans_are_read_from_text() {
    let plan = FaultPlan::parse("latency_ms=20 errors=10,hang=1 status=413 only=packs/a\n")
        .expect("known settings");
    assert_eq!(
        plan,
        FaultPlan {
            latency: Duration::from_millis(20),
            errors_percent: 10,
            answer: InjectedAnswer::Never,
            status: 413,
            only: "packs/a".to_owned(),
            ..FaultPlan::default()
        }
    );
    assert!(FaultPlan::parse("latncy=1").expect_err("unknown").to_string().contains("latncy"));
}

#[test]
fn faults_of_a_program_under_test_follow_their_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("faults");
    let faults = Faults::from_setting(&format!("@{}", path.display())).expect("a setting");
    assert_eq!(faults.plan(), FaultPlan::default(), "no file yet");
    std::fs::write(&path, "forbidden=1").expect("written");
    assert_eq!(faults.plan().answer, InjectedAnswer::Forbidden);
    std::fs::remove_file(&path).expect("removed");
    assert_eq!(faults.plan(), FaultPlan::default());
    let fixed = Faults::from_setting("hang=1").expect("a setting");
    assert_eq!(fixed.plan().answer, InjectedAnswer::Never);
    assert!(Faults::from_setting("hang=x").is_err());
}

/// Each list of a shared directory reads the whole folder.
#[test]
fn a_directory_is_listed_in_larger_parts() {
    run(async {
        let dir = tempfile::tempdir().expect("a directory");
        let url = format!("file://{}", dir.path().display()).parse().expect("an address");
        let remote = Remote::open(&url, &options(), Clock::system(), NodeId(1)).expect("opened");
        remote.check().await.expect("made");
        let count = LOG_ITEMS_MAX as u64 + 1000;
        std::fs::create_dir_all(dir.path().join("log")).expect("made");
        for ms in 0..count {
            let name = keys::commit_name(&Stamp { ms: 1 << 40 | ms, counter: 0, node: NodeId(1) });
            std::fs::write(dir.path().join("log").join(name), b"x").expect("written");
        }
        assert_eq!(remote.list_log(None).await.expect("listed").len() as u64, count);
    });
}
