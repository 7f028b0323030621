//! Incomplete files stay on their node, and hold back nothing that other nodes put.

use super::checkpoints::{checkpoint, items, registers, remove_log};
use super::harness::*;
use crate::digest::Digest;
use crate::namespace::{Attrs, Check, Op};
use crate::sync::LOG_GRACE;

const ENTRY: &str = "jax/jit_f-0-cache";

/// Publishes content that has failed the check of its name.
fn write_torn(node: &Node, at: &str, bytes: &[u8], check: Check) {
    node.engine.ledger().note_torn(Digest::of(bytes), check);
    node.write(at, bytes);
}

fn set_mode(node: &Node, at: &str, mode: u32) {
    let ledger = node.engine.ledger();
    let of = ledger.read(|fold| fold.register(&path(at)).expect("the entry exists").stamp);
    let attrs = Attrs { mode, ..node.entry(at).expect("the entry exists").attrs };
    ledger.publish(vec![(path(at), Op::Attrs { of, attrs })]).unwrap();
}

async fn read(node: &Node, at: &str) -> Option<Vec<u8>> {
    assert!(node.pull().await);
    node.read(at).await
}

#[test]
fn what_is_not_complete_stays_on_its_node() {
    run(async {
        for known in [false, true] {
            let world = World::new();
            let (mut a, b) = (world.node(), world.node());
            a.write("first", b"opens the store");
            if known {
                a.write(ENTRY, b"good");
            }
            a.push().await;
            let others = known.then(|| b"good".to_vec());
            let before = a.remote().requests();
            write_torn(&a, ENTRY, b"half", Check::Zstd);
            set_mode(&a, ENTRY, 0o755);
            a.push().await;
            let after = a.remote().requests();
            assert_eq!((after.puts, after.bytes_up), (before.puts, before.bytes_up));
            assert_eq!(a.engine.ledger().pending().records, 0, "nothing waits for the store");
            assert_eq!(a.read(ENTRY).await, Some(b"half".to_vec()), "the node keeps it");
            assert_eq!(a.engine.ledger().incomplete(), 1);
            assert_eq!(read(&b, ENTRY).await, others);
            // Under a name without a check it is a file like any other.
            a.write("plain", b"half");
            // The next version is complete.
            a.write(ENTRY, b"whole");
            set_mode(&a, ENTRY, 0o700);
            a.push().await;
            assert_eq!(read(&b, ENTRY).await, Some(b"whole".to_vec()));
            assert_eq!(b.read("plain").await, Some(b"half".to_vec()));
            assert_eq!(a.entry(ENTRY), b.entry(ENTRY));
            assert_eq!(a.engine.ledger().incomplete(), 0);
            assert_eq!(a.engine.ledger().blobs().usage().unsaved_bytes, 0, "no content is held");
        }
    });
}

#[test]
fn an_empty_file_is_complete_in_no_format() {
    run(async {
        let world = World::new();
        let (mut a, b) = (world.node(), world.node());
        a.write("triton-dejavu/x/cache.json", b"");
        a.send("empty", b"").await;
        assert_eq!(read(&b, "empty").await, Some(Vec::new()));
        assert!(b.entry("triton-dejavu/x/cache.json").is_none());
        assert_eq!(a.engine.ledger().incomplete(), 1);
    });
}

/// While the earlier version is in flight, and while it is not.
#[test]
fn an_incomplete_file_can_be_removed_and_replaced_at_any_moment() {
    run(async {
        for (pushed, gone) in [(false, false), (false, true), (true, false), (true, true)] {
            let world = World::new();
            let (mut a, b) = (world.node(), world.node());
            a.write(ENTRY, b"good");
            if pushed {
                a.push().await;
            } else {
                a.upload().await;
            }
            write_torn(&a, ENTRY, b"half", Check::Zstd);
            a.push().await;
            assert_eq!(read(&b, ENTRY).await, Some(b"good".to_vec()), "pushed: {pushed}");
            assert_eq!(a.read(ENTRY).await, Some(b"half".to_vec()));
            if gone {
                a.remove(ENTRY);
            } else {
                a.write(ENTRY, b"whole");
            }
            a.push().await;
            let want = (!gone).then(|| b"whole".to_vec());
            assert_eq!(read(&b, ENTRY).await, want, "pushed: {pushed}");
            // What other nodes never knew is removed without a trace.
            write_torn(&a, "jax/jit_g-0-cache", b"half", Check::Zstd);
            a.push().await;
            let before = a.remote().requests().puts;
            a.remove("jax/jit_g-0-cache");
            a.push().await;
            assert_eq!(a.remote().requests().puts, before);
            assert!(a.registers().iter().all(|(at, _)| *at != path("jax/jit_g-0-cache")));
        }
    });
}

#[test]
fn p4_local_durable_also_what_is_not_complete() {
    run(async {
        for (pushed, saved) in [(false, false), (true, false), (false, true), (true, true)] {
            let world = World::new();
            let (mut a, b) = (world.node(), world.node());
            a.write(ENTRY, b"good");
            if pushed {
                a.push().await;
            }
            write_torn(&a, ENTRY, b"half", Check::Zstd);
            set_mode(&a, ENTRY, 0o755);
            if pushed {
                a.push().await;
            }
            if saved {
                a.engine.ledger().save().unwrap();
            }
            let before = a.registers();
            for round in 0..2 {
                a = world.node_at(a.crash());
                assert_eq!(a.registers(), before, "{pushed}, {saved}, {round}");
                assert_eq!(a.engine.ledger().incomplete(), 1, "{pushed}, {saved}, {round}");
                assert!(a.engine.ledger().blobs().usage().unsaved_bytes > 0);
                a.push().await;
                a.engine.ledger().save().unwrap();
                assert_eq!(a.read(ENTRY).await, Some(b"half".to_vec()));
                assert_eq!(read(&b, ENTRY).await, Some(b"good".to_vec()), "{pushed}, {saved}");
            }
            // A checkpoint has what other nodes know, also after that.
            let name = checkpoint(&a).await;
            let kept = registers(&items(&world, &name).await);
            let entry = kept[&path(ENTRY)].entry.clone().expect("the good entry");
            assert_eq!(entry.content(), b.entry(ENTRY).and_then(|entry| entry.content()));
            a.send(ENTRY, b"whole").await;
            assert_eq!(read(&b, ENTRY).await, Some(b"whole".to_vec()));
        }
    });
}

/// The journal may still have a version that was replaced by another node's.
#[test]
fn p4_local_durable_of_what_others_have_replaced() {
    run(async {
        let world = World::new();
        let (a, mut b) = (world.node(), world.node());
        b.write(ENTRY, b"of b");
        write_torn(&a, ENTRY, b"half", Check::Zstd);
        write_torn(&a, ENTRY, b"half of more", Check::Zstd);
        set_mode(&a, ENTRY, 0o755);
        b.push().await;
        assert_eq!(read(&a, ENTRY).await, Some(b"of b".to_vec()));
        a.engine.ledger().save().unwrap();
        let mut a = world.node_at(a.crash());
        assert!(a.engine.ledger().pending().records > 0, "the journal keeps it");
        assert_eq!(a.registers(), b.registers());
        a.send(ENTRY, b"whole").await;
        assert_eq!(read(&b, ENTRY).await, Some(b"whole".to_vec()));
        a.engine.ledger().save().unwrap();
        let a = world.node_at(a.crash());
        assert_eq!(a.registers(), b.registers());
    });
}

/// Whichever was published first: other nodes have only their own.
#[test]
fn p7_one_winner_is_never_what_is_not_complete() {
    run(async {
        for saved in [false, true] {
            let world = World::new();
            let (mut a, mut b) = (world.node(), world.node());
            b.write(ENTRY, b"of b");
            write_torn(&a, ENTRY, b"half", Check::Zstd);
            a.push().await;
            b.push().await;
            if saved {
                a.engine.ledger().save().unwrap();
                a = world.node_at(a.crash());
            }
            assert_eq!(read(&a, ENTRY).await, Some(b"of b".to_vec()), "the torn version is older");
            assert_eq!((a.entry(ENTRY), a.engine.ledger().incomplete()), (b.entry(ENTRY), 0));
            write_torn(&a, ENTRY, b"half", Check::Zstd);
            // Attributes of the present entry do not bring it back.
            set_mode(&b, ENTRY, 0o600);
            b.push().await;
            assert_eq!(read(&a, ENTRY).await, Some(b"half".to_vec()));
            b.remove(ENTRY);
            b.push().await;
            assert_eq!(read(&a, ENTRY).await, None, "others have removed the name");
            a.engine.ledger().save().unwrap();
            let a = world.node_at(a.crash());
            assert_eq!((a.read(ENTRY).await, a.engine.ledger().incomplete()), (None, 0));
        }
    });
}

#[test]
fn p6_units_stay_whole_where_a_member_is_not() {
    run(async {
        let world = World::new();
        let (mut a, mut b) = (world.node(), world.node());
        let put = |node: &Node, name: &str, bytes: &[u8]| {
            (path(&format!("triton/KEY/{name}")), Op::Put(node.store(bytes)))
        };
        let kernel = |node: &Node, by: &str| {
            let of = |name: &str| put(node, name, format!("{name} of {by}").as_bytes());
            vec![of("k.cubin"), of("k.json"), of("__grp__k.json")]
        };
        let names = ["k.cubin", "k.json", "__grp__k.json"];
        let versions = async |node: &Node| {
            let mut all = Vec::new();
            for name in names {
                let bytes = read(node, &format!("triton/KEY/{name}")).await;
                all.push(bytes.map(|bytes| String::from_utf8(bytes).unwrap()));
            }
            all
        };
        let of = |by: &str| names.map(|name| Some(format!("{name} of {by}"))).to_vec();
        b.publish(kernel(&b, "b"));
        b.push().await;
        assert_eq!(versions(&a).await, of("b"));
        a.engine.ledger().note_torn(Digest::of(b"k.cubin of a"), Check::Elf);
        a.publish(kernel(&a, "a"));
        a.push().await;
        assert_eq!((versions(&a).await, versions(&b).await), (of("a"), of("b")));
        assert_eq!(a.engine.ledger().incomplete(), 1, "one file is not complete");
        a.engine.ledger().save().unwrap();
        let mut a = world.node_at(a.crash());
        assert_eq!(versions(&a).await, of("a"));
        // A version of another node replaces all of it, even if that has fewer members.
        b.publish(vec![put(&b, "__grp__k.json", b"__grp__k.json of c")]);
        b.push().await;
        let mut want = of("b");
        want[2] = Some("__grp__k.json of c".to_owned());
        assert_eq!((versions(&a).await, versions(&b).await), (want.clone(), want));
        assert_eq!(a.engine.ledger().incomplete(), 0);
        // A complete unit of this node is sent as usual, although one of its members was in an
        // incomplete one.
        a.publish(kernel(&a, "a"));
        a.engine.ledger().note_torn(Digest::of(b"k.cubin of a"), Check::Elf);
        a.publish(kernel(&a, "a")[1..].to_vec());
        a.push().await;
        assert_eq!(versions(&b).await[1..], of("a")[1..]);
    });
}

/// A node that was absent adopts a checkpoint.
#[test]
fn an_incomplete_file_survives_a_checkpoint_unless_others_have_put_something_since() {
    run(async {
        for replaced in [false, true] {
            let world = World::new();
            let (mut a, mut b) = (world.node(), world.node());
            a.send(ENTRY, b"good").await;
            assert!(b.pull().await);
            write_torn(&a, ENTRY, b"half", Check::Zstd);
            write_torn(&a, "jax/jit_g-0-cache", b"half", Check::Zstd);
            a.push().await;
            assert!(a.pull().await);
            a.engine.ledger().save().unwrap();
            let root = a.crash();
            world.clock.advance(LOG_GRACE);
            // Larger than a content that is inline in the log.
            let (other, theirs) = (content(1, 100_000), content(2, 100_000));
            b.write("other", &other);
            if replaced {
                b.write(ENTRY, &theirs);
            }
            b.push().await;
            world.clock.advance(std::time::Duration::from_secs(5));
            checkpoint(&b).await;
            remove_log(&world, |_| true).await;
            let a = world.node_at(root);
            assert_eq!(read(&a, "other").await, Some(other), "the node has caught up");
            let want = if replaced { theirs } else { b"half".to_vec() };
            assert_eq!(a.read(ENTRY).await, Some(want));
            assert_eq!(a.read("jax/jit_g-0-cache").await, Some(b"half".to_vec()));
            assert_eq!(a.engine.ledger().incomplete(), if replaced { 1 } else { 2 });
            let name = checkpoint(&a).await;
            let kept = registers(&items(&world, &name).await);
            assert!(!kept.contains_key(&path("jax/jit_g-0-cache")));
            let content = kept[&path(ENTRY)].entry.clone().and_then(|entry| entry.content());
            assert_eq!(content, b.entry(ENTRY).and_then(|entry| entry.content()));
        }
    });
}

#[test]
fn p11_expiry_of_what_is_not_complete() {
    run(async {
        let age = std::time::Duration::from_hours(24);
        let world = World::aging(age);
        let mut a = world.node();
        a.send("other", b"opens the store").await;
        write_torn(&a, ENTRY, b"half", Check::Zstd);
        a.push().await;
        assert_eq!(a.engine.ledger().incomplete(), 1);
        world.clock.advance(age * 2);
        assert!(a.pull().await);
        assert!(a.entry(ENTRY).is_none());
        a.keep_house().await;
        assert!(a.registers().iter().all(|(at, _)| *at != path(ENTRY)));
        assert_eq!(a.engine.ledger().incomplete(), 0);
        assert_eq!(a.engine.ledger().blobs().usage().unsaved_bytes, 0);
    });
}
