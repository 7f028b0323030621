use super::*;
use crate::clock::Clock;
use crate::remote::RemoteOptions;
use crate::remote::fault::{Faults, MemoryStore};
use crate::stamp::NodeId;

const NOW_MS: u64 = 1_760_000_000_000;

fn stamp(ms: u64) -> Stamp {
    Stamp { ms, counter: 3, node: NodeId(9) }
}

fn commit(ms: u64, bytes: usize) -> (Stamp, Option<Bytes>) {
    (stamp(ms), Some(Bytes::from(vec![ms as u8; bytes])))
}

fn first(commits: impl IntoIterator<Item = (Stamp, Option<Bytes>)>) -> LogHead {
    LogHead::after(None, commits, NOW_MS)
}

/// Appends the right checksum to a changed head.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - SUM_BYTES);
    let sum = blake3::hash(&bytes);
    bytes.extend_from_slice(sum.as_bytes());
    bytes
}

#[test]
fn what_was_encoded_is_decoded() {
    let one = first([commit(NOW_MS, 100), (stamp(NOW_MS + 1), None)]);
    for head in
        [first([]), one.clone(), LogHead::after(Some(&one), [commit(NOW_MS + 2, 7)], NOW_MS)]
    {
        assert_eq!(LogHead::decode(&head.encode().unwrap()).unwrap(), head);
    }
}

#[test]
fn bad_input_heads_are_refused() {
    let good = first([commit(NOW_MS, 40), commit(NOW_MS + 1, 40)]).encode().unwrap();
    for size in 0..good.len() {
        let error = LogHead::decode(&good[..size]).expect_err("cut");
        assert_eq!(error.kind(), Kind::Corrupt, "{size}");
    }
    for at in 0..good.len() {
        let mut flipped = good.to_vec();
        flipped[at] ^= 1;
        assert!(LogHead::decode(&flipped).is_err(), "{at}");
    }
    let mut newer = good.to_vec();
    newer[8] = 2;
    assert_eq!(LogHead::decode(&sealed(newer)).expect_err("newer").kind(), Kind::Invalid);
    let mut longer = good.to_vec();
    longer.push(0);
    assert_eq!(LogHead::decode(&sealed(longer)).expect_err("trailing bytes").kind(), Kind::Corrupt);
    let huge = vec![0; HEAD_BYTES_MAX as usize + 1];
    assert_eq!(LogHead::decode(&huge).expect_err("huge").kind(), Kind::Corrupt);
    let whole = first([commit(NOW_MS, 4)]);
    let out_of_order =
        [HeadCommit { number: 2, ..whole.commits[0].clone() }, whole.commits[0].clone()];
    for bad in [
        LogHead { from: 0, ..whole.clone() },
        LogHead { from: 2, ..whole.clone() },
        LogHead { number: u64::MAX, ..whole.clone() },
        LogHead { from: 9, commits: Vec::new(), ..whole.clone() },
        LogHead { number: 2, commits: out_of_order.to_vec(), ..whole.clone() },
        LogHead { commits: vec![HeadCommit { number: 7, ..whole.commits[0].clone() }], ..whole },
    ] {
        let bytes = bad.encode().unwrap();
        assert_eq!(LogHead::decode(&bytes).expect_err("wrong").kind(), Kind::Corrupt, "{bad:?}");
    }
}

#[test]
fn a_head_tells_what_was_announced_after_an_earlier_one() {
    let one = first([commit(NOW_MS, 4)]);
    let two = LogHead::after(Some(&one), [commit(NOW_MS + 5, 4), commit(NOW_MS + 1, 4)], NOW_MS);
    let three = LogHead::after(Some(&two), [commit(NOW_MS + 5, 4), commit(NOW_MS + 9, 4)], NOW_MS);
    let since = |head: &LogHead| three.since(head).map(<[HeadCommit]>::len);
    let four = LogHead::after(Some(&three), [commit(NOW_MS + 10, 4)], NOW_MS);
    assert_eq!([&one, &two, &three, &four].map(since), [Some(3), Some(1), Some(0), None]);
    assert_eq!(since(&LogHead { epoch: one.epoch + 1, ..one.clone() }), None, "another epoch");
}

#[test]
fn a_head_knows_no_head_from_which_it_does_not_descend() {
    let base = first([commit(NOW_MS, 4)]);
    let more = |last: &LogHead, ms| LogHead::after(Some(last), [commit(NOW_MS + ms, 4)], NOW_MS);
    let lost = more(&more(&base, 1), 2);
    // The bucket was restored to `base`.
    let (mut restored, mut last) = (more(&base, 3), 3);
    for _ in 0..4 {
        assert!(restored.since(&lost).is_none(), "{}", restored.number);
        assert_eq!(restored.since(&base).map(<[HeadCommit]>::len), Some(last - 2));
        last += 1;
        restored = more(&restored, last as u64);
    }
    // What neither names any more tells nothing.
    let shed =
        |head: &LogHead| LogHead { from: head.number + 1, commits: Vec::new(), ..head.clone() };
    assert!(shed(&lost).since(&lost).is_some());
}

#[test]
fn a_head_stays_small_and_names_its_first_complete_number() {
    let many = (0..HEAD_COMMITS_MAX as u64).map(|n| commit(NOW_MS + n, 10));
    let full = first(many);
    assert_eq!((full.commits.len(), full.from), (HEAD_COMMITS_MAX, 1));
    let more = LogHead::after(Some(&full), [commit(NOW_MS + 999, 10)], NOW_MS);
    assert_eq!(
        (more.commits.len(), more.from, more.number),
        (1, 2, 2),
        "commits announced together leave together"
    );
    assert!(more.since(&full).is_some());
    let too_many = first((0..=HEAD_COMMITS_MAX as u64).map(|n| commit(NOW_MS + n, 10)));
    assert_eq!((too_many.commits.len(), too_many.from), (0, 2), "the head only shows a change");
    let before = LogHead { number: 0, from: 1, commits: Vec::new(), ..too_many.clone() };
    assert!(too_many.since(&before).is_none());

    let large = first((0..40).map(|n| commit(NOW_MS + n, 4 << 10)));
    let inline =
        |head: &LogHead| head.commits.iter().map(|c| c.bytes.is_some()).collect::<Vec<_>>();
    assert_eq!(inline(&large).iter().filter(|is| **is).count(), 24);
    assert!(inline(&large)[16..].iter().all(|is| *is), "the newest are inline");
    assert!(large.encode().unwrap().len() as u64 <= HEAD_BYTES_MAX);
    assert_eq!(inline(&first([commit(NOW_MS, INLINE_COMMIT_BYTES_MAX + 1)])), [false]);
    assert_eq!(
        inline(&first([commit(NOW_MS - INLINE_FOR_MS - 1, 10)])),
        [false],
        "an old commit is not inline"
    );
    let old = first([commit(NOW_MS - NAMED_FOR_MS - 1, 10), commit(NOW_MS, 10)]);
    assert_eq!((old.commits.len(), old.from), (0, 2), "commits announced together leave together");
    let ahead = first([commit(NOW_MS + NAMED_FOR_MS * 9, 10), commit(NOW_MS, 10)]);
    assert_eq!(ahead.commits.len(), 2);
}

#[test]
fn commits_pushed_out_of_a_head_count_as_announced() {
    let (one, two, three) = (commit(NOW_MS, 4), commit(NOW_MS + 1, 4), commit(NOW_MS + 2, 4));
    let of = |node, ms| Stamp { node: NodeId(node), ms, ..one.0 };
    let head = first([two.clone()]);
    assert!(!head.lacks(&two.0) && !head.lacks(&one.0), "this commit is not newer");
    assert!(head.lacks(&three.0));
    assert!(head.lacks(&of(99, NOW_MS)), "the head does not name the node");
    let pushed = LogHead { from: 2, number: 2, ..head.clone() };
    assert!(pushed.lacks(&three.0));
    assert!(!pushed.lacks(&of(99, NOW_MS + 9)), "it may have named an earlier one of the node");
}

#[tokio::test]
async fn a_head_replaces_only_the_one_from_which_it_was_made() {
    let store = MemoryStore::with_clock(Clock::manual(NOW_MS));
    let options = RemoteOptions::default();
    let remote =
        |node| store.remote(&Faults::none(), &options, Clock::manual(NOW_MS), NodeId(node));
    let (a, b) = (remote(1), remote(2));
    let Ok(HeadRead::Other(made, version)) = a.get_head(None).await else { panic!("not made") };
    assert!(made.commits.is_empty(), "the store was made with a head");
    assert!(matches!(a.put_stale_head().await, Ok(HeadPut::Conflict)));
    let same = a.get_head(Some(&version)).await;
    assert!(matches!(same, Ok(HeadRead::Same)), "the trial changes nothing");
    let one = LogHead::after(Some(&made), [commit(NOW_MS, 4)], NOW_MS);
    let Ok(HeadPut::Done(version)) = a.put_head(&one, Some(&version)).await else {
        panic!("not replaced")
    };
    assert!(matches!(b.put_head(&first([]), None).await, Ok(HeadPut::Conflict)), "made twice");
    let two = LogHead::after(Some(&one), [commit(NOW_MS + 1, 4)], NOW_MS);
    assert!(matches!(b.put_head(&two, Some(&version)).await, Ok(HeadPut::Done(_))));
    assert!(matches!(a.put_head(&two, Some(&version)).await, Ok(HeadPut::Conflict)), "stale");
    let Ok(HeadRead::Other(head, version)) = a.get_head(Some(&version)).await else {
        panic!("not read")
    };
    assert_eq!(*head, two);
    assert!(matches!(a.get_head(Some(&version)).await, Ok(HeadRead::Same)));
}
