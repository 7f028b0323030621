//! Paths of one node stay there, and the shared files that they are renamed to are sent.

use std::time::Duration;

use super::checkpoints::{checkpoint, items, registers, remove_log};
use super::harness::*;
use crate::digest::Digest;
use crate::error::Kind;
use crate::namespace::{EntryKind as FileKind, Op, Profiles, ProfilesDraft};

/// Profiles that know no client, as on a node with another configuration.
fn no_profiles() -> Profiles {
    ProfilesDraft::default().finish().expect("an empty draft is valid")
}

const STATS: &str = "ccache/4/stats";
const TEMPORARY: &str = "ccache/tmp/cpp_stdout.x.i";
const RESULT: &str = "ccache/4/b/c8hd21nvu6rt8kdlj2v5m6e0ri0p7k4R";

/// As ccache does with a new result: writes it under a temporary name, and renames it.
fn rename(node: &Node, from: &str, to: &str) {
    let entry = node.entry(from).expect("the entry exists");
    node.publish(vec![(path(from), Op::Remove), (path(to), Op::Put(entry))]);
}

/// A file may become a blob only after its name has gone, or while its change waits for the store.
#[test]
fn a_blob_that_nothing_needs_when_it_is_noted_may_be_evicted() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let ledger = a.engine.ledger().clone();
        let unsaved = || ledger.blobs().usage().unsaved_bytes;
        let note = |bytes: &[u8]| {
            store_in(&ledger, bytes);
            ledger.note_blob(&Digest::of(bytes));
        };
        let put = |at: &str, bytes: &[u8]| {
            let entry = file(Digest::of(bytes), bytes.len() as u64);
            ledger.publish(vec![(path(at), Op::Put(entry))]).unwrap();
        };
        let [removed, own, waits] = [1, 2, 3].map(|seed| content(seed, 5000));
        put(TEMPORARY, &removed);
        a.remove(TEMPORARY);
        a.push().await;
        store_in(&ledger, &removed);
        assert!(unsaved() > 0);
        note(&removed);
        assert_eq!(unsaved(), 0);
        put(STATS, &own);
        note(&own);
        let without_the_last = unsaved();
        assert!(without_the_last > 0, "no other node has it");
        put(RESULT, &waits);
        note(&waits);
        assert!(unsaved() > without_the_last, "it is not in the store yet");
        a.push().await;
        assert_eq!(unsaved(), without_the_last);
    });
}

#[test]
fn what_belongs_to_a_node_stays_there() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.send("first", b"opens the store").await;
        let before = a.remote().requests();
        a.write(STATS, b"one call");
        a.write(TEMPORARY, &content(1, 50_000));
        a.send(STATS, b"two calls").await;
        let after = a.remote().requests();
        assert_eq!((after.puts, after.bytes_up), (before.puts, before.bytes_up));
        assert_eq!(a.engine.ledger().pending().records, 0, "nothing waits for the store");
        assert_eq!(a.read(STATS).await, Some(b"two calls".to_vec()));

        rename(&a, TEMPORARY, RESULT);
        a.push().await;
        assert!(b.pull().await);
        assert_eq!(
            b.read(RESULT).await,
            Some(content(1, 50_000)),
            "the result is sent with its content"
        );
        assert!(b.entry(STATS).is_none() && b.entry(TEMPORARY).is_none());
        assert!(b.registers().iter().all(|(at, _)| *at != path(TEMPORARY) && *at != path(STATS)));

        // The reverse: other nodes receive its removal.
        rename(&a, RESULT, TEMPORARY);
        a.push().await;
        assert!(b.pull().await);
        assert!(b.entry(RESULT).is_none());
        assert_eq!(a.read(TEMPORARY).await, Some(content(1, 50_000)));
        a.remove(TEMPORARY);
        assert!(a.entry(TEMPORARY).is_none());
        assert!(a.registers().iter().all(|(at, _)| *at != path(TEMPORARY)), "no tombstone");
    });
}

#[test]
fn p4_local_durable_also_what_belongs_to_a_node() {
    run(async {
        for saved in [false, true] {
            let world = World::new();
            let mut a = world.node();
            a.write("first", b"one");
            a.write(STATS, b"two calls");
            a.write(TEMPORARY, b"gone");
            a.remove(TEMPORARY);
            a.push().await;
            if saved {
                a.engine.ledger().save().unwrap();
            }
            let before = a.registers();
            let mut a = world.node_at(a.crash());
            assert_eq!(a.registers(), before, "saved: {saved}");
            assert_eq!(
                a.engine.ledger().pending().records == 0,
                saved,
                "the journal keeps only unsaved records"
            );
            let puts = a.remote().requests().puts;
            a.push().await;
            a.engine.ledger().save().unwrap();
            assert!(saved || a.remote().requests().puts > puts, "shared entries are sent again");
            // It is the only copy, so it is not evicted to make room for fetched content.
            assert_eq!(a.read(STATS).await, Some(b"two calls".to_vec()));
            assert!(a.engine.ledger().blobs().usage().unsaved_bytes > 0, "saved: {saved}");
            let a = world.node_at(a.crash());
            assert_eq!(a.registers(), before, "saved: {saved}, once more");
            assert!(a.engine.ledger().blobs().usage().unsaved_bytes > 0, "saved: {saved}");
            a.write(STATS, b"");
            assert_eq!(
                a.engine.ledger().blobs().usage().unsaved_bytes,
                0,
                "the content may be evicted"
            );
        }
    });
}

#[test]
fn p4_local_durable_of_what_belongs_to_a_node_through_a_long_outage() {
    run(async {
        let day = Duration::from_hours(24);
        let world = World::aging(30 * day);
        let mut a = world.node();
        a.send("first", b"one").await;
        assert!(a.pull().await);
        a.write(TEMPORARY, &content(1, 9_000));
        world.clock.advance(31 * day);
        a.write(STATS, &content(2, 9_000));
        a.push().await;
        for met in [false, true] {
            a.engine.ledger().save().unwrap();
            a = world.node_at(a.crash());
            assert!(!met || a.pull().await);
            assert!(a.entry("first").is_none() && a.entry(TEMPORARY).is_none(), "past the age");
            assert!(a.read(STATS).await == Some(content(2, 9_000)), "met the store: {met}");
        }
    });
}

#[test]
fn what_belongs_to_a_node_is_in_no_checkpoint_and_survives_one() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        a.write("shared", &content(3, 100_000));
        a.send(STATS, b"of a").await;
        let name = checkpoint(&a).await;
        let kept = registers(&items(&world, &name).await);
        assert!(kept.contains_key(&path("shared")) && !kept.contains_key(&path(STATS)));
        // Now the next node has only the checkpoint.
        remove_log(&world, |_| true).await;
        let b = world.node();
        b.write(STATS, b"of b");
        assert!(b.pull().await);
        assert_eq!(b.read("shared").await, Some(content(3, 100_000)));
        assert_eq!(b.read(STATS).await, Some(b"of b".to_vec()), "the node keeps its own entry");
    });
}

/// If only a path of this node has a content, this node must not rely on an old copy in the store:
/// no program uses that copy, so it may be deleted soon.
#[test]
fn a_content_of_this_node_alone_is_uploaded_when_it_is_shared() {
    run(async {
        let world = World::new();
        let mut a = world.node();
        let bytes = content(7, 2_000_000);
        a.send("old", &bytes).await;
        a.remove("old");
        a.push().await;
        world.clock.advance(std::time::Duration::from_mins(11));
        assert!(a.pull().await);
        let before = a.remote().requests().bytes_up;
        a.send(TEMPORARY, &bytes).await;
        assert_eq!(a.remote().requests().bytes_up, before);
        rename(&a, TEMPORARY, RESULT);
        a.push().await;
        assert!(a.remote().requests().bytes_up > before + 1_000_000, "the bytes are sent again");
    });
}

#[test]
fn p13_bounded_what_belongs_to_a_node() {
    run(async {
        let world = World::new();
        let a = world.node();
        // Half of the tier (4 GiB) is the limit; no node has the bytes, which is not checked here.
        let mut entry = file_of(1);
        entry.kind = FileKind::File { digest: Digest::of(b"x"), size: 3 << 30 };
        let put = |at: &str| vec![(path(at), Op::Put(entry.clone()))];
        let error = a.engine.ledger().publish(put(TEMPORARY)).expect_err("too much");
        assert_eq!(error.kind(), Kind::NoSpace);
        assert!(error.chain().contains("stay on this node"), "{}", error.chain());
        a.engine.ledger().publish(put("shared")).expect("shared content has another limit");
        // A rename takes no more room than before.
        entry.kind = FileKind::File { digest: Digest::of(b"y"), size: 3 << 29 };
        let put = |at: &str| (path(at), Op::Put(entry.clone()));
        a.engine.ledger().publish(vec![put(TEMPORARY)]).expect("less than half of the limit");
        let moved = vec![put("ccache/tmp/other"), (path(TEMPORARY), Op::Remove)];
        a.engine.ledger().publish(moved).expect("a rename");
        assert!(a.engine.ledger().publish(vec![put(TEMPORARY)]).is_err(), "one more is too much");
        a.write(STATS, b"small");
    });
}

/// A node whose configuration does not know ccache sends what this one keeps to itself.
#[test]
fn what_others_send_of_such_names_is_not_taken() {
    run(async {
        let world = World::new();
        let other = World { profiles: no_profiles(), ..world.clone() };
        let (a, mut b) = (world.node(), other.node());
        a.write(STATS, b"of a");
        b.write("shared", b"one");
        b.send(STATS, b"of b").await;
        assert!(a.pull().await);
        assert_eq!(a.read("shared").await, Some(b"one".to_vec()));
        assert_eq!(a.read(STATS).await, Some(b"of a".to_vec()));
    });
}
