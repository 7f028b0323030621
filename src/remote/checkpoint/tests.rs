use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use super::*;
use crate::name::path;
use crate::namespace::{Entry, EntryKind, Site, Time};
use crate::remote::keys;

const HEAD: CheckpointHead = CheckpointHead {
    stamp: Stamp { ms: 1_760_000_000_000, counter: 7, node: NodeId(3) },
    age_ms: Some(30 * 24 * 3_600_000),
};

fn encode(head: &CheckpointHead, items: &[CheckpointItem]) -> Vec<u8> {
    let mut writer = CheckpointWriter::new(Vec::new(), head).expect("memory accepts all writes");
    for item in items {
        put(&mut writer, item).expect("the item is valid");
    }
    let (bytes, counts, size) = writer.finish().expect("memory accepts all writes");
    assert_eq!((counts.total(), size), (items.len() as u64, bytes.len() as u64));
    bytes
}

fn put(writer: &mut CheckpointWriter<Vec<u8>>, item: &CheckpointItem) -> Result<()> {
    match item {
        CheckpointItem::Commit(stamp) => writer.commit(stamp),
        CheckpointItem::Chain(chain) => writer.chain(chain),
        CheckpointItem::Register(path, register, location) => {
            writer.register(path, register, location.as_ref())
        }
        CheckpointItem::Early(early) => writer.early(early),
        CheckpointItem::Location(digest, location) => writer.location(digest, location),
    }
}

fn decode(bytes: &[u8]) -> Result<(CheckpointHead, Vec<CheckpointItem>)> {
    decode_within(bytes, LIMITS)
}

fn decode_within(
    bytes: &[u8],
    limits: CheckpointLimits,
) -> Result<(CheckpointHead, Vec<CheckpointItem>)> {
    let mut reader = CheckpointReader::with_limits(bytes, limits)?;
    let mut items = Vec::new();
    while let Some(item) = reader.next()? {
        items.push(item);
    }
    Ok((*reader.head(), items))
}

fn stamp(ms: u64) -> Stamp {
    Stamp { ms, counter: ms as u32 % 5, node: NodeId(ms % 3) }
}

fn any_stamp() -> impl Strategy<Value = Stamp> {
    (0_u64..1 << 48, any::<u32>(), 0_u64..4).prop_map(|(ms, counter, node)| Stamp {
        ms,
        counter,
        node: NodeId(node << 60 | 5),
    })
}

fn any_time() -> impl Strategy<Value = Time> {
    (any::<i64>(), 0_u32..1_000_000_000).prop_map(|(secs, nanos)| Time { secs, nanos })
}

fn any_attrs() -> impl Strategy<Value = Attrs> {
    let xattrs = btree_map(vec(any::<u8>(), 0..9), vec(any::<u8>(), 0..40), 0..4);
    let took = prop_oneof![Just(0), any::<u32>()];
    (0_u32..0o10000, any::<u32>(), 0_u32..4, any_time(), any_time(), any::<bool>(), xattrs, took)
        .prop_map(|(mode, uid, gid, mtime, other, same, xattrs, took_ms)| {
            let all: BTreeMap<Box<[u8]>, Box<[u8]>> =
                xattrs.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
            let xattrs = (!all.is_empty()).then(|| Box::new(all));
            let atime = if same { mtime } else { other };
            Attrs { mode, uid, gid, mtime, atime, xattrs, took_ms }
        })
}

fn any_location() -> impl Strategy<Value = Location> {
    let site = prop_oneof![
        Just(Site::Object),
        (0_u64..6, 0_u64..1 << 20, 1_u32..1 << 20).prop_map(|(pack, offset, length)| {
            Site::Pack { pack: Arc::from(keys::pack_name(&stamp(pack))), offset, length }
        }),
        any_stamp().prop_map(|name| Site::Inline { commit: keys::commit_name(&name).into() }),
    ];
    (site, 0_u64..60_000, any::<u64>()).prop_map(|(site, size, stored_ms)| Location {
        site,
        size,
        stored_ms,
    })
}

fn any_register() -> impl Strategy<Value = (Register, Option<Location>)> {
    let kind = prop_oneof![
        Just(None),
        any::<[u8; 32]>().prop_map(|digest| {
            Some(EntryKind::File { digest: Digest::from_bytes(digest), size: 9 })
        }),
        Just(Some(EntryKind::Directory)),
        vec(1_u8.., 1..50).prop_map(|t| Some(EntryKind::Symlink { target: t.into() })),
        any::<u32>().prop_map(|rdev| Some(EntryKind::Special { format: 0o020_000, rdev })),
    ];
    let stamps = (any_stamp(), prop::option::of(any_stamp()), prop::option::of(any_stamp()));
    (kind, stamps, any_attrs(), prop::option::of(any_location())).prop_map(
        |(kind, (stamp, attr, link), attrs, location)| {
            let entry = kind.map(|kind| Entry { kind, attrs, link });
            let attr_stamp = attr.filter(|_| entry.is_some());
            let is_file = entry.as_ref().is_some_and(|entry| entry.content().is_some());
            (Register { stamp, attr_stamp, entry }, location.filter(|_| is_file))
        },
    )
}

fn any_path() -> impl Strategy<Value = TreePath> {
    let name = prop_oneof![Just(b"a".to_vec()), Just(b"ab".to_vec()), vec(1_u8..47, 3..20)];
    vec(name, 1..6).prop_map(|names| {
        names.iter().fold(TreePath::root(), |dir, name| dir.join(name).unwrap_or(dir))
    })
}

fn any_items() -> impl Strategy<Value = Vec<CheckpointItem>> {
    let chain = (0_u64..9, any::<u64>(), any::<u64>(), 0_u64..1 << 48).prop_map(
        |(node, incarnation, next, ms)| CheckpointChain {
            node: NodeId(node),
            incarnation,
            next,
            ms,
        },
    );
    let early = (any_path(), any_stamp(), any_stamp(), any_attrs())
        .prop_map(|(path, of, stamp, attrs)| CheckpointEarly { path, of, stamp, attrs });
    let content = (any::<[u8; 32]>().prop_map(Digest::from_bytes), any_location());
    let registers =
        btree_map(any_path().prop_filter("not the root", |p| !p.is_root()), any_register(), 0..40);
    (
        btree_set(any_stamp(), 0..20),
        vec(chain, 0..4),
        registers,
        vec(early, 0..4),
        vec(content, 0..9),
    )
        .prop_map(|(commits, chains, registers, early, contents)| {
            let commits = commits.into_iter().map(CheckpointItem::Commit);
            let chains = chains.into_iter().map(CheckpointItem::Chain);
            let registers = registers
                .into_iter()
                .map(|(path, (register, at))| CheckpointItem::Register(path, register, at));
            let early = early.into_iter().map(CheckpointItem::Early);
            let contents = contents.into_iter().map(|(d, l)| CheckpointItem::Location(d, l));
            commits.chain(chains).chain(registers).chain(early).chain(contents).collect()
        })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_read(items in any_items(), age in any::<u32>(), never: bool) {
        let head = CheckpointHead { age_ms: (!never).then_some(u64::from(age)), ..HEAD };
        let bytes = encode(&head, &items);
        prop_assert_eq!(decode(&bytes).expect("a whole checkpoint"), (head, items));
    }

    #[test]
    fn every_change_of_a_byte_is_noticed(items in any_items(), at: prop::sample::Index, bits in 1_u8..) {
        let mut bytes = encode(&HEAD, &items);
        let at = at.index(bytes.len());
        bytes[at] ^= bits;
        let error = decode(&bytes).expect_err("a byte differs");
        prop_assert_eq!(error.kind(), Kind::Corrupt, "{}", error);
    }

    #[test]
    fn every_truncation_and_every_addition_is_noticed(items in any_items(), at: prop::sample::Index, more in 0_u8..) {
        let mut bytes = encode(&HEAD, &items);
        let left = at.index(bytes.len());
        prop_assert_eq!(decode(&bytes[..left]).expect_err("cut off").kind(), Kind::Corrupt);
        bytes.push(more);
        prop_assert_eq!(decode(&bytes).expect_err("longer").kind(), Kind::Corrupt);
    }

    #[test]
    fn no_frame_that_sums_up_panics(items in vec(any::<u8>(), 1..300), section in 0_u8..9) {
        // A user who can write below the prefix can compute sums too.
        let empty = CheckpointWriter::new(Vec::new(), &HEAD).expect("memory");
        let mut bytes = empty.finish().expect("memory").0;
        let end = bytes.len() - last_frame(&bytes);
        bytes.truncate(end);
        let sum = last_sum(&bytes);
        let packed = zstd::bulk::compress(&items, 1).expect("memory");
        let mut head = vec![section];
        head.extend_from_slice(&(items.len() as u32).to_le_bytes());
        head.extend_from_slice(&(packed.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&frame_sum(&sum, &head, &packed));
        bytes.extend_from_slice(&packed);
        prop_assert_eq!(decode(&bytes).expect_err("no end").kind(), Kind::Corrupt);
    }
}

/// Returns the bytes of each frame.
fn frames(bytes: &[u8]) -> Vec<usize> {
    let (mut at, mut all) = (HEAD_BYTES, Vec::new());
    while at < bytes.len() {
        let size =
            u32::from_le_bytes(bytes[at + 5..at + 9].try_into().expect("four bytes")) as usize;
        all.push(FRAME_HEAD_BYTES + SUM_BYTES + size);
        at += all.last().expect("just pushed");
    }
    all
}

fn last_frame(bytes: &[u8]) -> usize {
    *frames(bytes).last().expect("a frame")
}

fn last_sum(bytes: &[u8]) -> [u8; SUM_BYTES] {
    let at = bytes.len() - last_frame(bytes) + FRAME_HEAD_BYTES;
    bytes[at..at + SUM_BYTES].try_into().expect("the length of a sum")
}

fn many(count: u64) -> Vec<CheckpointItem> {
    let commits = (0..count / 50).map(|n| CheckpointItem::Commit(stamp(n)));
    let registers = (0..count).map(|n| {
        let digest = Digest::of(&n.to_le_bytes());
        let mtime =
            Time { secs: 1_760_000_000 + n as i64 / 9, nanos: (n * 7919 % 1_000_000) as u32 };
        let attrs =
            Attrs { mode: 0o644, uid: 1000, gid: 100, mtime, atime: mtime, ..Attrs::default() };
        let kind = EntryKind::File { digest, size: 8000 + n % 100 };
        let register = Register {
            stamp: stamp(1_760_000_000_000 + n),
            attr_stamp: None,
            entry: Some(Entry { kind, attrs, link: None }),
        };
        let pack = Arc::from(keys::pack_name(&stamp(n / 1000)));
        let site = Site::Pack { pack, offset: n % 1000 * 4000, length: 4000 };
        let location = Location { site, size: 8000 + n % 100, stored_ms: 1_760_000_000_000 };
        CheckpointItem::Register(
            path(&format!("dir{:03}/entry-{n:08}", n / 5000)),
            register,
            Some(location),
        )
    });
    commits.chain(registers).collect()
}

#[test]
fn many_items_make_many_frames_and_few_bytes() {
    let items = many(30_000);
    let bytes = encode(&HEAD, &items);
    assert!(frames(&bytes).len() > 5, "{} frames", frames(&bytes).len());
    // The digest takes 32 bytes, and half of the rest are the nanoseconds.
    assert!(bytes.len() < 30_000 * 56, "{} bytes each", bytes.len() / 30_000);
    assert_eq!(decode(&bytes).expect("whole").1, items);
    // Frames that are missing, or in the wrong order.
    let sizes = frames(&bytes);
    let start: usize = HEAD_BYTES + sizes[..2].iter().sum::<usize>();
    let without = [&bytes[..start], &bytes[start + sizes[2]..]].concat();
    assert_eq!(decode(&without).expect_err("a frame is missing").kind(), Kind::Corrupt);
    let (one, two) = bytes[start..start + sizes[2] + sizes[3]].split_at(sizes[2]);
    let swapped = [&bytes[..start], two, one, &bytes[start + sizes[2] + sizes[3]..]].concat();
    assert_eq!(decode(&swapped).expect_err("two frames are swapped").kind(), Kind::Corrupt);
}

#[test]
fn a_newer_version_is_distinguished_from_damage() {
    let mut bytes = encode(&HEAD, &many(3));
    bytes[8] = 2;
    assert_eq!(decode(&bytes).expect_err("damaged").kind(), Kind::Corrupt);
    let sum = head_sum(&bytes[..10]);
    bytes[10..26].copy_from_slice(&sum);
    let error = decode(&bytes).expect_err("newer");
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(error.to_string().contains("newer format 2"), "{error}");
    assert_eq!(decode(b"").expect_err("empty").kind(), Kind::Corrupt);
    assert_eq!(decode(&[b'x'; 200]).expect_err("foreign").kind(), Kind::Corrupt);
}

#[test]
fn what_is_too_large_is_refused_by_writer_and_reader() {
    let items = many(20_000);
    let bytes = encode(&HEAD, &items);
    for limits in [
        CheckpointLimits { items: 20_000, ..LIMITS },
        CheckpointLimits { raw_bytes: 600_000, ..LIMITS },
    ] {
        let error = decode_within(&bytes, limits).expect_err("too much");
        assert_eq!(error.kind(), Kind::Invalid);
        assert!(error.to_string().contains("the most"), "{error}");
        let mut writer = CheckpointWriter::with_limits(Vec::new(), &HEAD, limits).expect("memory");
        let wrote = items.iter().try_for_each(|item| put(&mut writer, item));
        assert_eq!(wrote.expect_err("too much").kind(), Kind::Invalid);
    }
    decode_within(&bytes, CheckpointLimits { items: 20_400, ..LIMITS }).expect("exactly the limit");
}

#[test]
fn a_frame_that_says_it_is_huge_costs_nothing() {
    let bytes = encode(&HEAD, &[]);
    for at in [HEAD_BYTES + 1, HEAD_BYTES + 5] {
        let mut huge = bytes.clone();
        huge[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
        let error = decode(&huge).expect_err("huge");
        assert!(error.to_string().contains("impossible size"), "{error}");
    }
}

#[test]
fn what_no_reader_would_accept_is_not_written() {
    let writer = || CheckpointWriter::new(Vec::new(), &HEAD).expect("memory");
    let put = Register { stamp: stamp(1), attr_stamp: None, entry: None };
    let location = |site| Location { site, size: 1, stored_ms: 1 };
    let file = many(1).pop().expect("an item");
    let CheckpointItem::Register(at, register, _) = file else { panic!("not a register") };
    let bad = [
        Site::Pack { pack: Arc::from("../x"), offset: 0, length: 1 },
        Site::Pack { pack: Arc::from(keys::pack_name(&stamp(1))), offset: u64::MAX, length: 9 },
        Site::Inline { commit: Arc::from("x.commit") },
    ];
    for site in bad {
        let error = writer().register(&at, &register, Some(&location(site.clone())));
        assert!(error.is_err(), "{site:?}");
        assert!(writer().location(&Digest::of(b"x"), &location(site)).is_err());
    }
    assert!(
        writer().register(&TreePath::root(), &put, None).is_err(),
        "the root cannot be removed"
    );
    let mut some = writer();
    some.register(&path("b"), &put, None).expect("good");
    assert!(some.register(&path("a"), &put, None).is_err(), "out of order");
    assert!(some.commit(&stamp(1)).is_err(), "a section that has ended");
    let mut some = writer();
    some.commit(&stamp(9)).expect("good");
    assert!(some.commit(&stamp(9)).is_err(), "the same commit twice");
}

/// A format outlives the build that wrote it: this one is read for ever.
#[test]
fn the_bytes_are_pinned() {
    let text: String = include_str!("pinned.ckpt.hex").split_whitespace().collect();
    let stored: Vec<u8> = (0..text.len() / 2)
        .map(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).expect("digits"))
        .collect();
    assert_eq!(decode(&stored).expect("an old checkpoint is still read"), (HEAD, pinned()));
    assert_eq!(encode(&HEAD, &pinned())[..HEAD_BYTES], stored[..HEAD_BYTES]);
}

fn pinned() -> Vec<CheckpointItem> {
    let attrs = Attrs { mode: 0o755, uid: 1, gid: 2, ..Attrs::default() };
    let xattrs = BTreeMap::from([(b"user.a".to_vec().into(), b"value".to_vec().into())]);
    let other = Attrs {
        mtime: Time { secs: -5, nanos: 6 },
        atime: Time { secs: 7, nanos: 8 },
        xattrs: Some(Box::new(xattrs)),
        took_ms: 0,
        ..attrs.clone()
    };
    let register = |ms, kind: Option<EntryKind>, attrs: &Attrs, link| Register {
        stamp: stamp(ms),
        attr_stamp: kind.as_ref().and(link),
        entry: kind.map(|kind| Entry { kind, attrs: attrs.clone(), link }),
    };
    let pack: Arc<str> = keys::pack_name(&stamp(50)).into();
    let inline = Site::Inline { commit: keys::commit_name(&stamp(51)).into() };
    let at = |site| Some(Location { site, size: 9, stored_ms: 1000 });
    let packed = |offset| at(Site::Pack { pack: pack.clone(), offset, length: 5 });
    let file = |text: &[u8]| Some(EntryKind::File { digest: Digest::of(text), size: 9 });
    let link = || Some(EntryKind::Symlink { target: b"../x".as_slice().into() });
    let special = || Some(EntryKind::Special { format: 0o020_000, rdev: 259 });
    let chain = CheckpointChain { node: NodeId(1), incarnation: 77, next: 12, ms: 99 };
    let early =
        CheckpointEarly { path: path("e/f"), of: stamp(5), stamp: stamp(6), attrs: other.clone() };
    let registers = [
        ("d", register(1, Some(EntryKind::Directory), &attrs, None), None),
        ("d/f1", register(2, file(b"1"), &attrs, None), packed(10)),
        ("d/f2", register(3, file(b"2"), &other, Some(stamp(4))), packed(15)),
        ("d/f3", register(3, file(b"3"), &attrs, None), at(inline)),
        ("d/f4", register(3, file(b"4"), &attrs, None), at(Site::Object)),
        ("d/f5", register(3, file(b"5"), &attrs, None), None),
        ("d/gone", register(8, None, &attrs, None), None),
        ("link", register(9, link(), &attrs, None), None),
        ("special", register(9, special(), &attrs, None), None),
    ];
    let mut items = vec![CheckpointItem::Commit(stamp(3)), CheckpointItem::Commit(stamp(4))];
    items.push(CheckpointItem::Chain(chain));
    items
        .extend(registers.map(|(at, what, place)| CheckpointItem::Register(path(at), what, place)));
    items.push(CheckpointItem::Early(early));
    items.extend(packed(20).map(|place| CheckpointItem::Location(Digest::of(b"6"), place)));
    items
}
