use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn build(blobs: &[Vec<u8>]) -> Vec<u8> {
    let mut builder = PackBuilder::new();
    for raw in blobs {
        builder.add(&Digest::of(raw), raw).expect("it fits");
    }
    let foretold = builder.bytes();
    let bytes = builder.finish();
    assert_eq!(bytes.len() as u64, foretold);
    bytes
}

fn sample() -> Vec<Vec<u8>> {
    vec![b"one".to_vec(), Vec::new(), b"three ".repeat(50)]
}

#[test]
fn the_bytes_of_a_pack_are_pinned() {
    let text: String = include_str!("pinned.pack.hex").split_whitespace().collect();
    let stored: Vec<u8> = text
        .as_bytes()
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).expect("digits"))
        .map(|pair| u8::from_str_radix(pair, 16).expect("digits"))
        .collect();
    let pack = PackReader::open(&stored).expect("an old pack is still read");
    let found: Vec<_> = pack.members().iter().map(|m| pack.read(m).expect("whole")).collect();
    assert_eq!(found, sample());
    let again = build(&sample());
    assert_eq!(again[..HEAD_BYTES], stored[..HEAD_BYTES]);
}

#[test]
fn the_place_that_add_tells_is_where_the_frame_lies() {
    let mut builder = PackBuilder::new();
    assert!(builder.is_empty());
    let raw = b"content".repeat(100);
    let digest = Digest::of(&raw);
    let place = builder.add(&digest, &raw).expect("it fits");
    assert_eq!(builder.add(&digest, &raw), Some(place), "added twice");
    assert_eq!(builder.len(), 1);
    let bytes = builder.finish();
    let frame = &bytes[place.0 as usize..][..place.1 as usize];
    assert_eq!(decode_frame(frame, &digest, raw.len() as u64).expect("whole"), raw);
    let pack = PackReader::open(&bytes).expect("whole");
    let member = pack.members()[0];
    assert_eq!((member.offset, member.length, member.digest), (place.0, place.1, digest));
}

#[test]
fn what_does_not_fit_is_not_added() {
    let mut builder = PackBuilder::new();
    let large = vec![0; FRAME_RAW_BYTES_MAX as usize + 1];
    assert_eq!(builder.add(&Digest::of(&large), &large), None);
    // Noise does not compress, so the pack fills up.
    let mut noise = vec![0; FRAME_RAW_BYTES_MAX as usize];
    let mut added = 0;
    for round in 0u64..8 {
        blake3::Hasher::new().update(&round.to_le_bytes()).finalize_xof().fill(&mut noise);
        added += usize::from(builder.add(&Digest::of(&noise), &noise).is_some());
    }
    assert_eq!(added, 3);
    assert!(builder.finish().len() as u64 <= PACK_BYTES_MAX);
}

#[test]
fn a_frame_is_only_the_blob_that_was_asked_for() {
    let raw = b"content".to_vec();
    let frame = zstd::bulk::compress(&raw, 3).expect("compresses");
    let digest = Digest::of(&raw);
    let bomb = zstd::bulk::compress(&vec![0; 1 << 24], 3).expect("compresses");
    for (what, frame, digest, size) in [
        ("another digest", &frame, Digest::of(b"x"), 7),
        ("smaller", &frame, digest, 6),
        ("larger", &frame, digest, 8),
        ("impossibly large", &frame, digest, u64::MAX),
        ("a bomb", &bomb, digest, 7),
        ("nothing", &Vec::new(), digest, 7),
    ] {
        let error = decode_frame(frame, &digest, size).expect_err(what);
        assert_eq!(error.kind(), Kind::Corrupt, "{what}");
    }
}

#[test]
fn a_newer_pack_is_distinguished_from_damage() {
    let mut bytes = build(&[]);
    bytes[MAGIC.len()] = 2;
    assert_eq!(PackReader::open(&bytes).expect_err("damage").kind(), Kind::Corrupt);
    let (head, index) = (bytes[..HEAD_BYTES].to_vec(), [0; 4]);
    let at = bytes.len() - END.len() - 32;
    bytes[at..at + 32].copy_from_slice(&checksum(&head, &index));
    let error = PackReader::open(&bytes).expect_err("newer");
    assert_eq!(error.kind(), Kind::Invalid);
}

/// Reads all of a pack; the result must be some of the blobs, unaltered.
fn read_all(bytes: &[u8], blobs: &[Vec<u8>]) -> bool {
    let Ok(pack) = PackReader::open(bytes) else { return false };
    let mut whole = true;
    for member in pack.members() {
        match pack.read(member) {
            Ok(raw) => assert!(blobs.contains(&raw), "other content"),
            Err(error) => {
                assert_eq!(error.kind(), Kind::Corrupt);
                whole = false;
            }
        }
    }
    whole
}

#[test]
fn every_flipped_bit_and_every_truncation_costs_at_most_the_blobs_it_hits() {
    let blobs = sample();
    let good = build(&blobs);
    assert!(read_all(&good, &blobs));
    for at in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        read_all(&bytes, &blobs);
    }
    for length in 0..good.len() {
        assert!(!read_all(&good[..length], &blobs), "cut at {length}");
    }
}

#[test]
fn damage_to_one_frame_leaves_the_others() {
    let blobs = sample();
    let mut bytes = build(&blobs);
    bytes[HEAD_BYTES] ^= 0xff;
    let pack = PackReader::open(&bytes).expect("the index is whole");
    let read: Vec<_> = pack.members().iter().map(|member| pack.read(member).ok()).collect();
    assert_eq!(read, [None, Some(blobs[1].clone()), Some(blobs[2].clone())]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn packs_survive_the_round_trip(blobs in vec(vec(any::<u8>(), 0..400), 0..20)) {
        let bytes = build(&blobs);
        let pack = PackReader::open(&bytes).expect("whole");
        let mut left = blobs.clone();
        left.sort();
        left.dedup();
        prop_assert_eq!(pack.members().len(), left.len());
        for member in pack.members() {
            let raw = pack.read(member).expect("whole");
            prop_assert!(left.binary_search(&raw).is_ok());
        }
    }

    #[test]
    fn damage_gives_no_other_content(
        blobs in vec(vec(any::<u8>(), 0..200), 1..6),
        at in any::<proptest::sample::Index>(),
        to in any::<u8>(),
    ) {
        let mut bytes = build(&blobs);
        let at = at.index(bytes.len());
        bytes[at] = to;
        read_all(&bytes, &blobs);
    }

    #[test]
    fn noise_is_refused(noise in vec(any::<u8>(), 0..300), index in any::<u32>()) {
        prop_assert!(PackReader::open(&noise).is_err());
        prop_assert!(decode_frame(&noise, &Digest::of(b"x"), 1).is_err());
        // The ends and the checksum are right, whatever the index says.
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&noise);
        let count = index % 9;
        bytes.extend_from_slice(&count.to_le_bytes());
        let members = count as usize * MEMBER_BYTES + 4;
        if bytes.len() >= HEAD_BYTES + members {
            let sum = checksum(&bytes[..HEAD_BYTES], &bytes[bytes.len() - members..]);
            bytes.extend_from_slice(&sum);
            bytes.extend_from_slice(END);
            if let Ok(pack) = PackReader::open(&bytes) {
                for member in pack.members() {
                    drop(pack.read(member));
                }
            }
        }
    }
}
