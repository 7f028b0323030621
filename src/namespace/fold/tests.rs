use proptest::prelude::*;

use super::*;
use crate::name::path;
use crate::namespace::EntryKind;
use crate::stamp::NodeId;

mod model;

fn stamp(ms: u64, node: u64) -> Stamp {
    Stamp { ms, counter: 0, node: NodeId(node) }
}

fn file(content: &str) -> Entry {
    Entry {
        kind: EntryKind::File {
            digest: Digest::of(content.as_bytes()),
            size: content.len() as u64,
        },
        attrs: Attrs::default(),
        link: None,
    }
}

fn put(at: &str, ms: u64, content: &str) -> Change {
    Change { path: path(at), stamp: stamp(ms, 0), op: Op::Put(file(content)) }
}

fn mkdir(at: &str, ms: u64) -> Change {
    let entry = Entry::directory(0o755, 0, 0, Time::default());
    Change { path: path(at), stamp: stamp(ms, 0), op: Op::Put(entry) }
}

fn names(fold: &Fold, dir: &TreePath) -> Vec<String> {
    fold.children(dir).iter().map(|c| String::from_utf8_lossy(&c.name).into_owned()).collect()
}

fn folded(changes: &[Change]) -> Fold {
    let mut fold = Fold::new();
    for change in changes {
        fold.apply(change, Time::default());
    }
    fold
}

#[test]
fn children_skip_what_lies_deeper() {
    let fold = folded(&[
        mkdir("a", 1),
        put("a/x", 2, "1"),
        put("a/y/z", 3, "2"),
        put("a!", 4, "3"),
        put("b", 5, "4"),
        Change { path: path("gone"), stamp: stamp(9, 0), op: Op::Remove },
        put("gone/inside", 6, "5"),
    ]);
    assert_eq!(names(&fold, &TreePath::root()), ["a", "a!", "b", "gone"]);
    assert_eq!(names(&fold, &path("a")), ["x", "y"]);
    assert_eq!(names(&fold, &path("a/y")), ["z"]);
    assert!(fold.is_directory(&path("a/y")));
    assert!(fold.is_directory(&path("gone")));
    assert_eq!(fold.entry(&path("gone")), None);
}

#[test]
fn a_file_hides_what_lies_below_it() {
    let fold = folded(&[put("d/x", 1, "1"), put("d", 2, "file")]);
    assert!(fold.entry(&path("d")).is_some());
    assert_eq!(fold.entry(&path("d/x")), None);
    assert!(!fold.is_directory(&path("d")));
}

#[test]
fn attributes_never_bring_old_content_back() {
    let attrs = Attrs { mode: 0o700, ..Attrs::default() };
    let late = Change {
        path: path("f"),
        stamp: stamp(10, 1),
        op: Op::Attrs { of: stamp(1, 0), attrs: attrs.clone() },
    };
    let fold = folded(&[put("f", 1, "old"), put("f", 5, "new"), late.clone()]);
    assert_eq!(fold.entry(&path("f")), Some(file("new")));
    let fold = folded(&[late, put("f", 1, "old")]);
    assert_eq!(fold.entry(&path("f")).map(|e| e.attrs), Some(attrs));
}

#[test]
fn link_groups_follow_their_names() {
    let linked = |at: &str, ms| {
        let entry = Entry { link: Some(stamp(1, 0)), ..file("x") };
        Change { path: path(at), stamp: stamp(ms, 0), op: Op::Put(entry) }
    };
    let mut fold = folded(&[linked("a", 1), linked("b", 2)]);
    assert_eq!(fold.links(stamp(1, 0)).count(), 2);
    fold.apply(&put("a", 3, "other"), Time::default());
    assert_eq!(fold.links(stamp(1, 0)).collect::<Vec<_>>(), [&path("b")]);
}

#[test]
fn a_reset_leaves_no_trace() {
    let mut fold = folded(&[put("a", 1, "x"), put("b", 2, "x")]);
    let before = fold.register(&path("c"));
    fold.apply(&put("c", 3, "y"), Time::default());
    assert!(fold.uses(&Digest::of(b"y")));
    fold.reset(&path("c"), before);
    assert!(!fold.knows(&path("c")) && !fold.uses(&Digest::of(b"y")));
    assert_eq!(fold.len(), 2);
    fold.reset(&path("a"), None);
    assert!(fold.uses(&Digest::of(b"x")), "another file points to it");
    assert_eq!(fold.len(), 1);
}

#[test]
fn bytes_are_those_of_what_is_there() {
    let xattrs = |bytes: usize| -> crate::namespace::Xattrs {
        (bytes > 0).then(|| {
            let value: Box<[u8]> = vec![7; bytes - 6].into();
            Box::new([(Box::from(&b"user.x"[..]), value)].into_iter().collect())
        })
    };
    let with = |at: &str, ms: u64, bytes: usize| {
        let mut change = put(at, ms, "x");
        if let Op::Put(entry) = &mut change.op {
            entry.attrs.xattrs = xattrs(bytes);
        }
        change
    };
    let attrs = |at: &str, of: u64, ms: u64, bytes: usize| Change {
        path: path(at),
        stamp: stamp(ms, 0),
        op: Op::Attrs {
            of: stamp(of, 0),
            attrs: Attrs { xattrs: xattrs(bytes), ..Attrs::default() },
        },
    };
    let mut fold = Fold::new();
    for (change, bytes) in [
        (with("a", 1, 100), 100),
        (with("b", 2, 50), 150),
        (attrs("a", 1, 3, 300), 350),
        (attrs("a", 1, 4, 0), 50),
        (with("b", 5, 60), 60),
        (with("b", 5, 60), 60),
        (Change { path: path("b"), stamp: stamp(6, 0), op: Op::Remove }, 0),
        (with("c", 7, 4_000), 4_000),
    ] {
        fold.apply(&change, Time::default());
        assert_eq!(fold.xattr_bytes(), bytes, "{change:?}");
    }
    let mut builder = crate::namespace::Builder::new();
    let mut again = Fold::new();
    for (path, register) in fold.registers() {
        again.restore(&path, &register);
        builder.restore(&path, register);
    }
    let built = builder.finish();
    for same in [&again, &built] {
        assert_eq!((same.bytes(), same.xattr_bytes()), (fold.bytes(), fold.xattr_bytes()));
    }
    for at in ["a", "b", "c"] {
        fold.forget(&path(at));
    }
    assert_eq!((fold.bytes(), fold.xattr_bytes()), (0, 0));
}

fn any_change() -> impl Strategy<Value = Change> {
    let at = prop::sample::select(vec!["a", "b", "a/c", "a/d", "a/c/e"]);
    (at, 0u64..12, 0u64..3, 0u8..4, 0u64..12).prop_map(|(at, ms, node, what, of)| {
        let op = match what {
            0 => Op::Remove,
            1 => Op::Attrs {
                of: stamp(of, node),
                attrs: Attrs { mode: ms as u32, uid: node as u32, ..Attrs::default() },
            },
            2 => Op::Put(Entry::directory(0o755, 0, 0, Time::default())),
            // One stamp is one change, so the content depends only on the stamp.
            _ => Op::Put(file(&format!("{ms}-{node}-{at}"))),
        };
        // A stamp identifies one change of the whole cluster, so the kind of change is part of it.
        let stamp = Stamp { ms, counter: u32::from(what), node: NodeId(node) };
        Change { path: path(at), stamp, op }
    })
}

proptest! {
    #[test]
    fn same_set_same_result(
        changes in prop::collection::vec(any_change(), 0..40),
        seed in any::<u64>(),
    ) {
        // One stamp per path identifies one change, so contradicting changes are dropped.
        let mut seen = std::collections::HashSet::new();
        let changes: Vec<_> = changes
            .into_iter()
            .filter(|c| seen.insert((c.path.clone(), c.stamp)))
            .collect();
        let mut shuffled = changes.clone();
        let mut state = seed | 1;
        for i in (1..shuffled.len()).rev() {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            shuffled.swap(i, (state >> 33) as usize % (i + 1));
        }
        shuffled.extend(changes.iter().take(5).cloned());
        let (one, two) = (folded(&changes), folded(&shuffled));
        prop_assert!(one.registers().eq(two.registers()));
        prop_assert_eq!(one.len(), two.len());
    }
}

/// Sets the mtime of a directory that was made at 1.
fn set_time(at: &str, ms: u64, secs: i64) -> Change {
    let attrs = Attrs { mode: 0o755, mtime: Time { secs, nanos: 5 }, ..Attrs::default() };
    Change { path: path(at), stamp: stamp(ms, 0), op: Op::Attrs { of: stamp(1, 0), attrs } }
}

/// Returns when the directory `d` moved, if it shows that, after changes that arrive at 100, 101, ...
fn moved_after(changes: &[Change]) -> Option<i64> {
    let mut fold = Fold::new();
    for (change, secs) in changes.iter().zip(100..) {
        fold.apply(change, Time { secs, nanos: 0 });
    }
    fold.moved(&path("d")).map(|moved| moved.secs)
}

#[test]
fn a_directory_shows_the_time_it_was_given_until_its_content_changes() {
    let (made, file, more) = (mkdir("d", 1), put("d/f", 2, "x"), put("d/g", 4, "x"));
    let given = set_time("d", 3, 7);
    assert_eq!(moved_after(&[made.clone(), file.clone()]), Some(101));
    assert_eq!(moved_after(&[made.clone(), file.clone(), given.clone()]), None);
    assert_eq!(moved_after(&[made.clone(), file.clone(), given.clone(), more.clone()]), Some(103));
    // The given time has a later stamp than the content: stamps count, not the order of arrival.
    assert_eq!(moved_after(&[made.clone(), file.clone(), more.clone(), given.clone()]), Some(102));
    assert_eq!(moved_after(&[made.clone(), more, set_time("d", 5, 8)]), None);
    // Content that arrives after a younger time was shown still moves the directory, once.
    assert_eq!(moved_after(&[made.clone(), given.clone(), file.clone()]), Some(102));
    assert_eq!(moved_after(&[made.clone(), given.clone(), file.clone(), given.clone()]), Some(102));
    assert_eq!(moved_after(&[made.clone(), given.clone(), file.clone(), file.clone()]), Some(102));
    assert_eq!(moved_after(&[made, given, file, set_time("d", 4, 9)]), None);
    // An implied directory shows when its content arrived.
    assert_eq!(moved_after(&[put("d/f", 2, "x")]), Some(100));
    assert_eq!(moved_after(&[put("d/f", 2, "x"), mkdir("d", 3)]), None);
}

#[test]
fn a_name_that_no_other_node_knows_moves_its_directory() {
    let mut fold = folded(&[mkdir("d", 1), put("d/f", 2, "x"), set_time("d", 3, 7)]);
    assert_eq!(fold.moved(&path("d")), None);
    let at = Time { secs: 50, nanos: 1 };
    fold.touch_directory(&path("d"), stamp(4, 0), at);
    assert_eq!(fold.moved(&path("d")), Some(at));
    fold.apply(&set_time("d", 5, 7), Time::default());
    assert_eq!(fold.moved(&path("d")), None);
}
