//! Records: the encoding of one atomic group of changes in a segment.
//!
//! ```text
//! 0   4  marker, by which the next record is found again after damage
//! 4   4  bytes of payload, little-endian
//! 8   8  number, little-endian
//! 16  4  first bytes of BLAKE3 over the sixteen before, with the key of the journal
//! 20 16  first bytes of BLAKE3 over number and payload, with this key
//! 36  .. payload: one version byte, then the changes in postcard
//! ```
//!
//! Version 2 has the list of incomplete contents before the changes; version 1 has no such list.
//! Version 3 is a record of a private mount, without the list.
//!
//! The head has a sum of its own, so that a damaged payload is skipped by its length. After a damaged head, the
//! rest of the segment is searched for records. A file's name or attribute may hold any bytes, also those of a
//! record; but a program does not know the key. The sums of a segment of version 1 have no key.

use super::Note;
use super::key::SumKey;
use crate::namespace::Change;

/// The bytes before the payload.
pub(super) const HEAD_BYTES: usize = 36;
/// The encoding of changes alone.
const PLAIN: u8 = 1;
/// The encoding of changes with incomplete contents.
const TORN: u8 = 2;
/// The encoding of changes of a private mount; the newest that this build reads.
pub(super) const VERSION: u8 = 3;
const MARKER: [u8; 4] = [0xf1, 0x9e, 0xa7, 0x4a];

/// Encodes a record without its number.
pub(super) fn encode(changes: &[Change], note: &Note) -> Result<Vec<u8>, postcard::Error> {
    let mut bytes = vec![0; HEAD_BYTES];
    if note.private {
        bytes.push(VERSION);
    } else if note.torn.is_empty() {
        bytes.push(PLAIN);
    } else {
        bytes.push(TORN);
        bytes = postcard::to_extend(&note.torn, bytes)?;
    }
    postcard::to_extend(changes, bytes)
}

/// Completes an encoded record with its number and sums.
pub(super) fn finish(bytes: &mut [u8], seq: u64, key: &SumKey) {
    let (head, payload) = bytes.split_at_mut(HEAD_BYTES);
    head[..4].copy_from_slice(&MARKER);
    head[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    head[8..16].copy_from_slice(&seq.to_le_bytes());
    let sum = head_sum(key, &head[..16]);
    head[16..20].copy_from_slice(&sum);
    head[20..].copy_from_slice(&payload_sum(key, seq, payload));
}

fn head_sum(key: &SumKey, head: &[u8]) -> [u8; 4] {
    let sum = key.hasher().update(head).finalize();
    sum.as_bytes()[..4].try_into().expect("four bytes")
}

fn payload_sum(key: &SumKey, seq: u64, payload: &[u8]) -> [u8; 16] {
    let sum = key.hasher().update(&seq.to_le_bytes()).update(payload).finalize();
    sum.as_bytes()[..16].try_into().expect("sixteen bytes")
}

/// What is at a position in a segment.
#[derive(Debug)]
pub(super) enum SegmentFind<'a> {
    /// A whole record.
    Good {
        /// Its number.
        seq: u64,
        /// The encoded changes with their version byte.
        payload: &'a [u8],
        /// Bytes of the record.
        length: usize,
    },
    /// A record with a damaged payload.
    Damaged {
        /// Bytes of the record.
        length: usize,
    },
    /// The beginning of a record that continues beyond the end.
    Short,
    /// No record.
    Nothing,
}

/// Classifies the beginning of `bytes` in a segment whose sums have this key.
pub(super) fn look<'a>(bytes: &'a [u8], key: &SumKey) -> SegmentFind<'a> {
    let Some(head) = bytes.get(..HEAD_BYTES) else {
        let marked = bytes.len() >= 4 && bytes[..4] == MARKER;
        return if marked || MARKER.starts_with(bytes) {
            SegmentFind::Short
        } else {
            SegmentFind::Nothing
        };
    };
    if head[..4] != MARKER || head[16..20] != head_sum(key, &head[..16]) {
        return SegmentFind::Nothing;
    }
    let length = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
    let seq = u64::from_le_bytes(head[8..16].try_into().expect("eight bytes"));
    let length = HEAD_BYTES + length;
    let Some(payload) = bytes.get(HEAD_BYTES..length) else { return SegmentFind::Short };
    if head[20..] != payload_sum(key, seq, payload) || payload.is_empty() {
        return SegmentFind::Damaged { length };
    }
    SegmentFind::Good { seq, payload, length }
}

/// Returns the distance to the next position that begins like a record, excluding the first byte.
pub(super) fn next_marker(bytes: &[u8]) -> Option<usize> {
    bytes.get(1..)?.windows(4).position(|window| window == MARKER).map(|at| at + 1)
}

/// The content of a payload.
pub(super) type Payload = (Vec<Change>, Note);

/// Decodes a payload. The outer error is the version of a newer format.
pub(super) fn decode(payload: &[u8]) -> Result<Result<Payload, postcard::Error>, u8> {
    match payload {
        [version @ (PLAIN | VERSION), changes @ ..] => {
            let note = Note { torn: Vec::new(), private: *version == VERSION };
            Ok(postcard::from_bytes(changes).map(|all| (all, note)))
        }
        [TORN, rest @ ..] => Ok(postcard::take_from_bytes(rest).and_then(|(torn, changes)| {
            let note = Note { torn, private: false };
            postcard::from_bytes(changes).map(|changes| (changes, note))
        })),
        [version, ..] if *version > VERSION => Err(*version),
        _ => Ok(Err(postcard::Error::DeserializeBadEncoding)),
    }
}
