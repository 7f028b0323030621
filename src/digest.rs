//! Content digests: BLAKE3-256 of the raw bytes of a blob.
//!
//! Owns the one definition of how content is named. Must never depend on where content is stored.

mod pieces;

pub use self::pieces::{PIECE_BYTES, PieceDigest};

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The name of a blob: BLAKE3-256 of its raw, uncompressed bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Digest([u8; 32]);

/// BLAKE3-256 of zero bytes. A constant, because it is compared very often.
const EMPTY: Digest = Digest([
    0xaf, 0x13, 0x49, 0xb9, 0xf5, 0xf9, 0xa1, 0xa6, 0xa0, 0x40, 0x4d, 0xea, 0x36, 0xdc, 0xc9, 0x49,
    0x9b, 0xcb, 0x25, 0xc9, 0xad, 0xc1, 0x12, 0xb7, 0xcc, 0x9a, 0x93, 0xca, 0xe4, 0x1f, 0x32, 0x62,
]);

impl Digest {
    /// Digests a whole buffer.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// Returns the digest of zero bytes, which needs no blob anywhere.
    pub const fn empty() -> Self {
        EMPTY
    }

    /// Reports whether this is the digest of zero bytes.
    #[inline]
    pub fn is_empty_content(&self) -> bool {
        *self == Self::empty()
    }

    /// Returns the raw 32 bytes.
    #[inline]
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Wraps raw bytes that were read from a format.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Returns the two hexadecimal digits that name the folder of this blob.
    pub fn shard(&self) -> String {
        format!("{:02x}", self.0[0])
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in &self.0[..6] {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// The text is not 64 lowercase hexadecimal digits.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a digest: 64 hexadecimal digits expected")]
pub struct ParseDigestError(String);

impl FromStr for Digest {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        blake3::Hash::from_hex(text)
            .map(|hash| Self(*hash.as_bytes()))
            .map_err(|_| ParseDigestError(text.to_owned()))
    }
}

/// Digests content that arrives in pieces.
#[derive(Debug, Default)]
pub struct Hasher(blake3::Hasher);

impl Hasher {
    /// Starts a digest of nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the next piece.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Returns the digest of all pieces so far.
    pub fn finish(&self) -> Digest {
        Digest(*self.0.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A digest is a format: it names blobs in buckets that outlive this build.
    #[test]
    fn digest_is_pinned() {
        assert_eq!(
            Digest::of(b"hearthfs").to_string(),
            blake3::hash(b"hearthfs").to_hex().to_string()
        );
        assert_eq!(Digest::empty(), Digest::of(&[]));
        assert_eq!(
            Digest::empty().to_string(),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
        );
    }

    #[test]
    fn text_round_trip() {
        let digest = Digest::of(b"x");
        assert_eq!(digest.to_string().parse::<Digest>().expect("valid"), digest);
        assert!("zz".parse::<Digest>().is_err());
    }
}
