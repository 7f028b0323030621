use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::super::validate::REQUIRED_TAGS_FROM;
use super::*;
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::{Attrs, BlobPlace, Entry, EntryKind, Op, Time};
use crate::remote::keys;

fn path(names: &[Vec<u8>]) -> TreePath {
    names.iter().fold(TreePath::root(), |dir, name| dir.join(name).expect("a good name"))
}

fn any_stamp() -> impl Strategy<Value = Stamp> {
    (any::<u32>(), any::<u32>(), any::<u64>()).prop_map(|(ms, counter, node)| Stamp {
        ms: u64::from(ms),
        counter,
        node: NodeId(node),
    })
}

fn any_path() -> impl Strategy<Value = TreePath> {
    let byte = (1u8..=255).prop_filter("a slash", |byte| *byte != b'/');
    let name = vec(byte, 1..20).prop_filter("a dot", |name| name != b"." && name != b"..");
    vec(name, 1..5).prop_map(|names| path(&names))
}

fn any_attrs() -> impl Strategy<Value = Attrs> {
    let time = (any::<i64>(), 0u32..1_000_000_000).prop_map(|(secs, nanos)| Time { secs, nanos });
    let bytes = || vec(any::<u8>(), 0..12).prop_map(Vec::into_boxed_slice);
    let xattrs = proptest::option::of(btree_map(bytes(), bytes(), 0..3).prop_map(Box::new));
    let took = prop_oneof![Just(0), any::<u32>()];
    (0u32..=0o7777, any::<u32>(), any::<u32>(), time.clone(), time, xattrs, took).prop_map(
        |(mode, uid, gid, mtime, atime, xattrs, took_ms)| {
            let xattrs = xattrs.filter(|all| took_ms == 0 || !all.is_empty());
            Attrs { mode, uid, gid, mtime, atime, xattrs, took_ms }
        },
    )
}

fn any_op() -> impl Strategy<Value = Op> {
    let kind = prop_oneof![
        (any::<[u8; 32]>(), any::<u64>())
            .prop_map(|(d, size)| EntryKind::File { digest: Digest::from_bytes(d), size }),
        Just(EntryKind::Directory),
        vec(1u8..=255, 1..30).prop_map(|target| EntryKind::Symlink { target: target.into() }),
        any::<u32>().prop_map(|rdev| EntryKind::Special { format: 0o020_000, rdev }),
    ];
    let put = (kind, any_attrs(), proptest::option::of(any_stamp()))
        .prop_map(|(kind, attrs, link)| Op::Put(Entry { kind, attrs, link }));
    let attrs = (any_stamp(), any_attrs()).prop_map(|(of, attrs)| Op::Attrs { of, attrs });
    prop_oneof![put, Just(Op::Remove), attrs]
}

fn any_blob() -> impl Strategy<Value = BlobAt> {
    let inline = vec(any::<u8>(), 0..40)
        .prop_map(|raw| (Digest::of(&raw), raw.len() as u64, BlobPlace::Inline(raw)));
    let digest = any::<[u8; 32]>().prop_map(Digest::from_bytes);
    let packed = (digest, 0..FRAME_MAX, 0u64..1 << 25, 1u32..1 << 20).prop_map(
        |(digest, size, offset, length)| {
            (digest, size, BlobPlace::Pack { pack: 0, offset, length })
        },
    );
    let digest = any::<[u8; 32]>().prop_map(Digest::from_bytes);
    let object = (digest, any::<u64>()).prop_map(|(d, size)| (d, size, BlobPlace::Object));
    (prop_oneof![inline, packed, object], any::<u64>())
        .prop_map(|((digest, size, place), stored_ms)| BlobAt { digest, size, place, stored_ms })
}

const FRAME_MAX: u64 = frame::FRAME_RAW_BYTES_MAX;

fn any_commit() -> impl Strategy<Value = Commit> {
    let changes = vec(
        (any_path(), any_stamp(), any_op()).prop_map(|(path, stamp, op)| Change {
            path,
            stamp,
            op,
        }),
        0..6,
    );
    let extensions = btree_map(0..REQUIRED_TAGS_FROM, vec(any::<u8>(), 0..10), 0..3);
    let counts = (any::<u64>(), any::<u64>());
    (any_stamp(), counts, vec(any_blob(), 0..6), changes, extensions).prop_map(
        |(stamp, (incarnation, sequence), blobs, changes, extensions)| Commit {
            stamp,
            node: stamp.node,
            incarnation,
            sequence,
            packs: vec![keys::pack_name(&stamp)],
            blobs,
            changes,
            extensions,
        },
    )
}

/// A commit with one of everything; its bytes are pinned.
fn sample() -> Commit {
    let stamp = Stamp { ms: 1_700_000_000_000, counter: 1, node: NodeId(0xfeed) };
    let time = Time { secs: -5, nanos: 7 };
    let attrs = Attrs { mode: 0o644, uid: 1, gid: 2, mtime: time, atime: time, ..Attrs::default() };
    let file = |raw: &[u8]| EntryKind::File { digest: Digest::of(raw), size: raw.len() as u64 };
    let put = |name: &[u8], kind, link| Change {
        path: path(&[b"dir".to_vec(), name.to_vec()]),
        stamp,
        op: Op::Put(Entry { kind, attrs: attrs.clone(), link }),
    };
    let blob = |raw: &[u8], place| BlobAt {
        digest: Digest::of(raw),
        size: raw.len() as u64,
        place,
        stored_ms: stamp.ms,
    };
    let target = b"../x".to_vec().into_boxed_slice();
    Commit {
        stamp,
        node: stamp.node,
        incarnation: 3,
        sequence: 4,
        packs: vec![keys::pack_name(&stamp)],
        blobs: vec![
            blob(b"tiny", BlobPlace::Inline(b"tiny".to_vec())),
            blob(b"small", BlobPlace::Pack { pack: 0, offset: 10, length: 14 }),
            blob(b"large", BlobPlace::Object),
        ],
        changes: vec![
            put(b"a\xff\n", file(b"tiny"), None),
            put(b"b", file(b"small"), Some(stamp)),
            put(b"c", EntryKind::Symlink { target }, None),
            put(b"d", EntryKind::Directory, None),
            put(b"e", EntryKind::Special { format: 0o010_000, rdev: 0 }, None),
            Change { path: path(&[b"f".to_vec()]), stamp, op: Op::Remove },
            Change { path: path(&[]), stamp, op: Op::Attrs { of: stamp, attrs } },
        ],
        extensions: [(7, vec![1, 2])].into(),
    }
}

#[test]
fn the_bytes_of_a_commit_are_pinned() {
    let commit = sample();
    let raw = postcard::to_stdvec(&commit).expect("encodes");
    assert_eq!(Digest::of(&raw).to_string(), PINNED_RAW, "the encoding of a commit has changed");
    let stored = unhex(include_str!("pinned.commit.hex"));
    assert_eq!(decode_commit(&stored).expect("an old commit is still read"), commit);
    let again = encode_commit(&commit).expect("encodes");
    assert_eq!(again[..HEAD_BYTES], stored[..HEAD_BYTES]);
}

const PINNED_RAW: &str = "00845d35842af42b12eb7848924f00b33300fd3b94c0f82cba5f91cd9b7a66e9";

fn unhex(text: &str) -> Vec<u8> {
    let text: String = text.split_whitespace().collect();
    text.as_bytes()
        .chunks(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("hexadecimal digits");
            u8::from_str_radix(pair, 16).expect("hexadecimal digits")
        })
        .collect()
}

/// Wraps raw bytes as a commit with a right checksum, as a malicious writer would.
fn wrap(raw: &[u8], version: u16, size: u32) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.extend_from_slice(&zstd::bulk::compress(raw, 1).expect("compresses"));
    bytes.extend_from_slice(blake3::hash(&bytes).as_bytes());
    bytes
}

fn raw_of(commit: &Commit) -> Vec<u8> {
    postcard::to_stdvec(commit).expect("encodes")
}

#[test]
fn newer_formats_are_distinguished_from_damage() {
    let raw = raw_of(&sample());
    let size = raw.len() as u32;
    assert!(decode_commit(&wrap(&raw, VERSION, size)).is_ok());
    let newer = decode_commit(&wrap(&raw, VERSION + 1, size)).expect_err("newer");
    assert_eq!(newer.kind(), Kind::Invalid);
    assert!(newer.to_string().contains("newer format"), "{newer}");
    let mut tagged = sample();
    tagged.extensions.insert(REQUIRED_TAGS_FROM, vec![]);
    let raw = raw_of(&tagged);
    let newer = decode_commit(&wrap(&raw, VERSION, raw.len() as u32)).expect_err("newer");
    assert_eq!(newer.kind(), Kind::Invalid);
    assert!(newer.to_string().contains("newer format"), "{newer}");
    assert!(encode_commit(&tagged).is_err());
}

#[test]
fn limits_hold_against_a_right_checksum() {
    let raw = raw_of(&sample());
    let size = raw.len() as u32;
    let longer: Vec<u8> = raw.iter().copied().chain([0]).collect();
    let bomb = vec![0; COMMIT_RAW_BYTES_MAX + 1];
    for (what, bytes) in [
        ("something follows", wrap(&longer, VERSION, size + 1)),
        ("a size too small", wrap(&raw, VERSION, size - 1)),
        ("a size too large", wrap(&raw, VERSION, size + 1)),
        ("a bomb", wrap(&bomb, VERSION, bomb.len() as u32)),
        ("a bomb that lies", wrap(&bomb, VERSION, 100)),
        ("nothing", wrap(&[], VERSION, 0)),
    ] {
        assert_eq!(decode_commit(&bytes).expect_err(what).kind(), Kind::Corrupt, "{what}");
    }
}

#[test]
fn a_claimed_count_is_not_trusted() {
    let mut raw = raw_of(&Commit { packs: vec![], blobs: vec![], ..sample() });
    let none = raw_of(&Commit {
        packs: vec![],
        blobs: vec![],
        changes: vec![],
        extensions: BTreeMap::new(),
        ..sample()
    });
    // The last four bytes of the empty one are the counts of packs, blobs, changes, extensions.
    raw.truncate(none.len() - 2);
    raw.extend_from_slice(&[0xff, 0xff, 0xff, 0xff, 0x0f]);
    let error = decode_commit(&wrap(&raw, VERSION, raw.len() as u32)).expect_err("no changes");
    assert_eq!(error.kind(), Kind::Corrupt);
}

#[test]
fn what_readers_rely_on_is_checked_when_written_and_when_read() {
    type Spoil = fn(&mut Commit);
    let cases: [(&str, Spoil); 13] = [
        ("another node", |c| c.node = NodeId(1)),
        ("impossible name", |c| c.packs[0] = "../../x.pack".into()),
        ("not named", |c| c.packs.clear()),
        ("outside its pack", |c| {
            c.blobs[1].place = BlobPlace::Pack { pack: 0, offset: u64::MAX, length: 1 };
        }),
        ("outside its pack", |c| {
            c.blobs[1].place = BlobPlace::Pack { pack: 0, offset: 5, length: 0 };
        }),
        ("too large for a pack", |c| c.blobs[1].size = FRAME_MAX + 1),
        ("another size", |c| c.blobs[0].size += 1),
        ("not match its digest", |c| c.blobs[0].digest = Digest::of(b"other")),
        ("root is removed", |c| c.changes[5].path = TreePath::root()),
        ("root is replaced", |c| c.changes[0].path = TreePath::root()),
        ("impossible target", |c| {
            let Op::Put(entry) = &mut c.changes[2].op else { unreachable!() };
            entry.kind = EntryKind::Symlink { target: Box::new([]) };
        }),
        ("impossible permissions", |c| {
            let Op::Put(entry) = &mut c.changes[2].op else { unreachable!() };
            entry.attrs.mode = 0o100_644;
        }),
        ("impossible time", |c| {
            let Op::Attrs { attrs, .. } = &mut c.changes[6].op else { unreachable!() };
            attrs.mtime.nanos = 1_000_000_000;
        }),
    ];
    for (says, spoil) in cases {
        let mut commit = sample();
        spoil(&mut commit);
        let raw = raw_of(&commit);
        for error in [
            encode_commit(&commit).expect_err(says),
            decode_commit(&wrap(&raw, VERSION, raw.len() as u32)).expect_err(says),
        ] {
            assert!(error.to_string().contains(says), "{says}: {error}");
        }
    }
}

#[test]
fn every_flipped_bit_and_every_truncation_is_noticed() {
    let good = encode_commit(&sample()).expect("encodes");
    for at in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        assert_eq!(decode_commit(&bytes).expect_err("a flipped bit").kind(), Kind::Corrupt);
    }
    for length in 0..good.len() {
        assert_eq!(decode_commit(&good[..length]).expect_err("cut").kind(), Kind::Corrupt);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn commits_survive_the_round_trip(commit in any_commit()) {
        let bytes = encode_commit(&commit).expect("encodes");
        prop_assert_eq!(decode_commit(&bytes).expect("decodes"), commit);
    }

    #[test]
    fn damage_under_a_right_checksum_never_panics(
        commit in any_commit(),
        at in any::<proptest::sample::Index>(),
        to in any::<u8>(),
        cut in any::<proptest::sample::Index>(),
    ) {
        let mut raw = raw_of(&commit);
        let at = at.index(raw.len());
        raw[at] = to;
        // What decodes obeys the rules, so that it can be encoded again.
        if let Ok(decoded) = decode_commit(&wrap(&raw, VERSION, raw.len() as u32)) {
            encode_commit(&decoded).expect("a decoded commit encodes");
        }
        raw.truncate(cut.index(raw.len()));
        drop(decode_commit(&wrap(&raw, VERSION, raw.len() as u32)));
    }

    #[test]
    fn noise_is_refused(noise in vec(any::<u8>(), 0..300)) {
        prop_assert!(decode_commit(&noise).is_err());
        drop(decode_commit(&wrap(&noise, VERSION, noise.len() as u32)));
        let mut framed = MAGIC.to_vec();
        framed.extend_from_slice(&noise);
        framed.extend_from_slice(blake3::hash(&framed).as_bytes());
        prop_assert!(decode_commit(&framed).is_err());
    }
}
