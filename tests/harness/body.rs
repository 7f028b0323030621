//! Bodies that can be checked for completeness.
//!
//! Owns the test files' contents: a header with writer, sequence number, length and seed, then
//! bytes derived from the seed, and a digest of all of it. A reader can tell one whole body from a
//! torn, mixed, short or forged one without knowing its writer.

use std::fmt;

const MAGIC: &[u8; 4] = b"HTB1";
const DIGEST_AT: usize = 32;

/// The shortest body: its header.
pub(crate) const LEN_MIN: usize = 64;

/// The writer of a body, and its sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Id {
    /// The writer's number.
    pub(crate) writer: u32,
    /// The writer's own count.
    pub(crate) seq: u64,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "body {} of writer {}", self.seq, self.writer)
    }
}

/// A small generator; a test's choices derive from one printed seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Starts from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed ^ 0x6a09_e667_f3bc_c909)
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// Returns a length from [`LEN_MIN`] to `max`, small ones as often as large ones.
    pub(crate) fn len(&mut self, max: usize) -> usize {
        let bits = u64::from((max / LEN_MIN).max(2).ilog2()) + 1;
        let top = (LEN_MIN << self.below(bits)).saturating_mul(2);
        let len = LEN_MIN as u64 + self.below(top as u64);
        usize::try_from(len).unwrap_or(max).min(max)
    }
}

/// Makes one body of `len` bytes.
pub(crate) fn make(id: Id, len: usize) -> Vec<u8> {
    assert!(len >= LEN_MIN, "a body has at least {LEN_MIN} bytes");
    let seed = (u64::from(id.writer) << 40) ^ id.seq;
    let mut bytes = vec![0; len];
    bytes[..4].copy_from_slice(MAGIC);
    bytes[4..8].copy_from_slice(&id.writer.to_le_bytes());
    bytes[8..16].copy_from_slice(&id.seq.to_le_bytes());
    bytes[16..24].copy_from_slice(&(len as u64).to_le_bytes());
    bytes[24..32].copy_from_slice(&seed.to_le_bytes());
    let mut dice = Dice::new(seed);
    for piece in bytes[LEN_MIN..].chunks_mut(8) {
        let word = dice.next().to_le_bytes();
        piece.copy_from_slice(&word[..piece.len()]);
    }
    let digest = digest(&bytes);
    bytes[DIGEST_AT..LEN_MIN].copy_from_slice(&digest);
    bytes
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&bytes[..DIGEST_AT]).update(&bytes[LEN_MIN..]);
    hasher.finalize().into()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

/// Returns the identity of a whole body, or why the bytes are not exactly one.
pub(crate) fn check(bytes: &[u8]) -> Result<Id, String> {
    if bytes.len() < LEN_MIN {
        return Err(format!("torn: only {} bytes", bytes.len()));
    }
    if &bytes[..4] != MAGIC {
        return Err(format!("forged: begins with {:02x?}", &bytes[..8]));
    }
    let id = Id { writer: number(&bytes[4..8]) as u32, seq: number(&bytes[8..16]) };
    let len = number(&bytes[16..24]);
    if len != bytes.len() as u64 {
        return Err(format!("torn: {id} has {len} bytes, read {}", bytes.len()));
    }
    if digest(bytes) == bytes[DIGEST_AT..LEN_MIN] {
        return Ok(id);
    }
    let right = make(id, bytes.len());
    let first = right.iter().zip(bytes).position(|(a, b)| a != b).unwrap_or_default();
    Err(format!("mixed: {id} of {len} bytes is wrong from byte {first}"))
}

#[test]
fn a_body_tells_whole_from_torn() {
    for len in [LEN_MIN, LEN_MIN + 1, 4096, 100_000] {
        let id = Id { writer: 7, seq: 9 };
        let whole = make(id, len);
        assert_eq!(check(&whole), Ok(id));
        assert!(check(&whole[..len - 1]).is_err(), "short by one byte of {len}");
        let mut longer = whole.clone();
        longer.push(0);
        assert!(check(&longer).is_err(), "long by one byte");
        for at in [0, 5, 17, 25, 40, len - 1] {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(check(&flipped).is_err(), "bit flipped at {at} of {len}");
        }
    }
    let mut mixed = make(Id { writer: 1, seq: 1 }, 8192);
    mixed[4096..].copy_from_slice(&make(Id { writer: 2, seq: 1 }, 8192)[4096..]);
    assert!(check(&mixed).is_err(), "two writers' halves");
}
