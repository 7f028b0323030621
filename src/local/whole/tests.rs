//! Whole content passes, and torn content fails wherever its format lets one see it.

use std::io::Write as _;

use proptest::prelude::*;

use super::*;

fn passes(bytes: &[u8], check: Check) -> bool {
    is_whole(bytes, bytes.len() as u64, check).expect("memory does not fail")
}

/// Asserts that content passes and that none of its proper prefixes does.
fn assert_every_cut(bytes: &[u8], check: Check) {
    assert!(passes(bytes, check), "{check:?} of {} bytes", bytes.len());
    for cut in 0..bytes.len() {
        assert!(!passes(&bytes[..cut], check), "{cut} of {} bytes pass {check:?}", bytes.len());
    }
}

/// Returns bytes of which some repeat, so that all kinds of blocks occur.
fn mixed(seed: u64, size: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut bytes = Vec::new();
    while bytes.len() < size {
        let run = (next() % 200_000) as usize;
        match next() % 3 {
            0 => bytes.extend(std::iter::repeat_n(next() as u8, run)),
            1 => bytes.extend((0..run).map(|_| next() as u8)),
            _ => bytes.extend(b"jit_program ".iter().cycle().take(run)),
        }
    }
    bytes.truncate(size);
    bytes
}

fn compressed(bytes: &[u8], level: i32, checksum: bool, with_size: bool) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), level).unwrap();
    encoder.include_checksum(checksum).unwrap();
    if with_size {
        encoder.set_pledged_src_size(Some(bytes.len() as u64)).unwrap();
    }
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn zstd_frames(
        seed in 1_u64..u64::MAX,
        size in 0_usize..600_000,
        level in 1..6,
        checksum in any::<bool>(),
        with_size in any::<bool>(),
        cuts in prop::collection::vec(0.0..1.0_f64, 40),
    ) {
        let mut frames = compressed(&mixed(seed, size), level, checksum, with_size);
        prop_assert!(passes(&frames, Check::Zstd));
        let one = frames.len();
        frames.extend_from_slice(&[0x5a, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3]);
        let two = frames.len();
        frames.extend(compressed(&mixed(seed + 2, size / 7), level, !checksum, !with_size));
        prop_assert!(passes(&frames, Check::Zstd));
        let near = [0, 1, 2, 3, 4, 5, one - 1, one + 5, two - 1, two + 9, frames.len() - 1];
        let far = cuts.iter().map(|part| (frames.len() as f64 * part) as usize);
        for cut in far.chain(near) {
            // A cut between two frames leaves whole content, and a skippable frame is recognised
            // only by its whole number.
            let seen = cut != one && cut != two && !(one..one + 4).contains(&cut);
            prop_assert_eq!(passes(&frames[..cut], Check::Zstd), !seen, "{} of {:?}", cut, (one, two));
        }
    }

    #[test]
    fn json_values(value in any_json(), pretty in any::<bool>()) {
        let text = if pretty {
            serde_json::to_vec_pretty(&value).unwrap()
        } else {
            serde_json::to_vec(&value).unwrap()
        };
        prop_assert!(passes(&text, Check::Json));
        for cut in 0..text.len() {
            prop_assert!(!passes(&text[..cut], Check::Json), "{cut} of {}", text.len());
        }
    }

    #[test]
    fn zip_archives(
        files in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..5),
        comment in "[a-z]{0,40}",
        wide in any::<bool>(),
        nested in any::<bool>(),
    ) {
        let inner = archive(&files, "", false);
        let more: Vec<Vec<u8>> = files.iter().cloned().chain(nested.then_some(inner)).collect();
        let all = archive(&more, &comment, wide);
        prop_assert!(passes(&all, Check::Zip));
        for cut in 0..all.len() {
            prop_assert!(!passes(&all[..cut], Check::Zip), "{cut} of {}", all.len());
        }
    }

    /// Any bytes get an answer, and a damaged header cannot demand memory.
    #[test]
    fn any_bytes(
        head in 0_usize..5,
        mut bytes in prop::collection::vec(any::<u8>(), 0..400),
        size in any::<u64>(),
    ) {
        let heads: [&[u8]; 5] = [b"", b"\x28\xb5\x2f\xfd", b"\x7fELF\x02\x01", b"\x7fELF\x01\x02", b"{"];
        bytes.splice(0..0, heads[head].iter().copied());
        for check in [Check::Zstd, Check::Elf, Check::Zip, Check::Json] {
            passes(&bytes, check);
            // A file that is cut while it is checked ends early.
            let size = bytes.len() as u64 + size % 1000;
            is_whole(&bytes[..], size, check).expect("memory does not fail");
        }
    }
}

fn any_json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<bool>().prop_map(Into::into),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_filter("finite", |n| n.is_finite()).prop_map(Into::into),
        ".{0,20}".prop_map(Into::into),
    ];
    let inner = leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..6).prop_map(Into::into),
            prop::collection::vec((".{0,8}", inner), 0..6)
                .prop_map(|all| serde_json::Value::Object(all.into_iter().collect())),
        ]
    });
    // The top level must mark its own end: a prefix of a number is a number.
    prop::collection::vec(inner, 0..6).prop_map(Into::into)
}

/// Makes a zip archive of stored files, as Python's `zipfile` and PyTorch do.
fn archive(files: &[Vec<u8>], comment: &str, wide: bool) -> Vec<u8> {
    let (mut all, mut directory) = (Vec::new(), Vec::new());
    for (number, content) in files.iter().enumerate() {
        let (name, size) = (format!("file{number}"), (content.len() as u32).to_le_bytes());
        let (at, name_bytes) =
            ((all.len() as u32).to_le_bytes(), (name.len() as u16).to_le_bytes());
        all.extend_from_slice(b"PK\x03\x04\x14\0\0\0\0\0\0\0\0\0\0\0\0\0");
        all.extend([&size[..], &size, &name_bytes, &[0; 2], name.as_bytes(), content].concat());
        directory.extend_from_slice(b"PK\x01\x02\x14\0\x14\0\0\0\0\0\0\0\0\0\0\0\0\0");
        directory.extend([&size[..], &size, &name_bytes, &[0; 12], &at, name.as_bytes()].concat());
    }
    let (count, at) = (files.len() as u16, all.len());
    all.extend_from_slice(&directory);
    if wide {
        let wide_at = all.len() as u64;
        all.extend_from_slice(b"PK\x06\x06\x2c\0\0\0\0\0\0\0\x2d\0\x2d\0\0\0\0\0\0\0\0\0");
        let counts = [u64::from(count), u64::from(count), directory.len() as u64, at as u64];
        all.extend(counts.iter().flat_map(|number| number.to_le_bytes()));
        all.extend([&b"PK\x06\x07\0\0\0\0"[..], &wide_at.to_le_bytes(), &[1, 0, 0, 0]].concat());
    }
    let (size, at) = if wide { (u32::MAX, u32::MAX) } else { (directory.len() as u32, at as u32) };
    let count = count.to_le_bytes();
    all.extend([&b"PK\x05\x06\0\0\0\0"[..], &count, &count].concat());
    all.extend([size.to_le_bytes(), at.to_le_bytes()].concat());
    all.extend([&(comment.len() as u16).to_le_bytes()[..], comment.as_bytes()].concat());
    all
}

#[test]
fn programs_of_this_machine_are_whole_elf() {
    let program = std::fs::read("/bin/true").expect("/bin/true is readable");
    // The table of sections is at its end, so every cut is noticed.
    assert_every_cut(&program, Check::Elf);
    let file = File::open("/bin/true").unwrap();
    assert!(is_whole(&file, program.len() as u64, Check::Elf).unwrap());
    let mut headless = program;
    headless[..64].fill(0);
    assert!(!passes(&headless, Check::Elf), "the linker has not written the header");
    assert!(!passes(b"#!/bin/sh\n", Check::Elf));
}

/// Files of other compilers: 32 bits, big endian, and more sections than the header can count.
#[test]
fn other_elf_files() {
    let number = |value: u64, bytes: usize, big: bool| {
        let digits = value.to_le_bytes()[..bytes].to_vec();
        if big { digits.into_iter().rev().collect() } else { digits }
    };
    for (wide, big, many) in [(false, false, false), (false, true, false), (true, true, true)] {
        let (word, header, entry) = if wide { (8, 64, 64) } else { (4, 52, 40) };
        let at = header as u64 + 10;
        let mut all = b"\x7fELF".to_vec();
        all.extend([if wide { 2 } else { 1 }, if big { 2 } else { 1 }, 1]);
        all.resize(16 + 8, 0);
        for (value, bytes) in [(0, word), (0, word), (at, word), (0, 4), (header as u64, 2)] {
            all.extend::<Vec<u8>>(number(value, bytes, big));
        }
        let count = if many { 0 } else { 3 };
        for value in [0, 0, entry, count, 0] {
            all.extend::<Vec<u8>>(number(value, 2, big));
        }
        assert_eq!(all.len(), header);
        all.resize(at as usize, 7);
        // One unused, one without bytes in the file, and one of ten bytes.
        let sections = [(0, 0, if many { 3 } else { 0 }), (8, 1 << 30, 1 << 30), (1, header, 10)];
        for (kind, place, size) in sections {
            let from = all.len();
            all.extend::<Vec<u8>>(number(0, 4, big));
            all.extend::<Vec<u8>>(number(kind, 4, big));
            all.resize(from + if wide { 24 } else { 16 }, 0);
            all.extend::<Vec<u8>>(number(place as u64, word, big));
            all.extend::<Vec<u8>>(number(size as u64, word, big));
            all.resize(from + entry as usize, 0);
        }
        assert_every_cut(&all, Check::Elf);
    }
}

#[test]
fn content_that_does_not_begin_as_zstd_passes() {
    assert!(passes(b"\x78\x9c another compression", Check::Zstd));
    assert!(passes(b"\x78", Check::Zstd));
    assert!(!passes(b"\x28\xb5", Check::Zstd), "only the start of a frame");
    let mut damaged = compressed(b"something", 3, true, true);
    damaged[4 + 1 + 1] |= 0x06;
    assert!(!passes(&damaged, Check::Zstd), "an invalid block type");
    // What follows a whole frame and is not a frame is ignored.
    let mut followed = compressed(b"something", 3, true, true);
    followed.extend_from_slice(b"and more");
    assert!(passes(&followed, Check::Zstd));
}

#[test]
fn p13_bounded_blocks_of_zstd() {
    let mut many = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58];
    many.extend([0, 0, 0].repeat(ZSTD_BLOCKS_MAX as usize - 1));
    assert!(!passes(&many, Check::Zstd), "the last block is missing");
    many.extend([0, 0, 0].repeat(2));
    assert!(passes(&many, Check::Zstd), "the check stops counting there");
}

#[test]
fn json_that_python_writes() {
    for whole in [&br#"{"a": NaN, "b": [Infinity, -Infinity]}"#[..], b" {} \n", b"[1, 2]\n", b"12"]
    {
        assert!(passes(whole, Check::Json), "{}", String::from_utf8_lossy(whole));
    }
    for torn in [&br#"{"a": NaN, "b": [Inf"#[..], b"{\"a\": \0\0}", b"{} {}", b"\0\0\0", b" "] {
        assert!(!passes(torn, Check::Json), "{}", String::from_utf8_lossy(torn));
    }
    let deep = [b"[".repeat(100_000), b"]".repeat(100_000)].concat();
    assert!(passes(&deep, Check::Json), "deep nesting is valid");
}

/// JSON that is too large to be parsed is judged by its ends.
#[test]
fn p13_bounded_json() {
    let mut large = b"  {\"a\": [0".to_vec();
    large.extend(b", 1".repeat(JSON_BYTES_MAX as usize / 3));
    assert!(large.len() as u64 > JSON_BYTES_MAX);
    assert!(!passes(&large, Check::Json));
    large.extend_from_slice(b"]}\n");
    assert!(passes(&large, Check::Json));
}
