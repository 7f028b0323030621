//! The digest of a content from digests of its pieces, which can be made in any order and by several
//! threads.
//!
//! BLAKE3 is a tree: each piece but the last is a whole subtree of it. Owns the size of the pieces.

use blake3::hazmat::{self, ChainingValue, HasherExt as _, Mode};

use super::Digest;

/// The bytes of a piece; the last one may have fewer. It must be a power of two and at least 1024.
pub const PIECE_BYTES: usize = 128 << 10;

/// The digest of one piece. It names nothing by itself.
#[derive(Clone, Copy, Debug)]
pub struct PieceDigest(ChainingValue);

impl PieceDigest {
    /// Digests piece `number` of a content, counted from 0. `bytes` are not empty, and no more than
    /// [`PIECE_BYTES`].
    pub fn of(number: u64, bytes: &[u8]) -> Self {
        debug_assert!((1..=PIECE_BYTES).contains(&bytes.len()), "{} bytes", bytes.len());
        let mut hasher = blake3::Hasher::new();
        hasher.set_input_offset(number * PIECE_BYTES as u64);
        Self(hasher.update(bytes).finalize_non_root())
    }
}

impl Digest {
    /// Returns the digest of a content of `size` bytes from those of all its pieces, in their order;
    /// `None` unless there are as many as such a content has, and at least two.
    pub fn of_pieces(size: u64, pieces: &[PieceDigest]) -> Option<Self> {
        if pieces.len() < 2 || size.div_ceil(PIECE_BYTES as u64) != pieces.len() as u64 {
            return None;
        }
        let (left, right) = halves(size, pieces);
        let root = hazmat::merge_subtrees_root(&left, &right, Mode::Hash);
        Some(Self(*root.as_bytes()))
    }
}

/// Returns the two subtrees below the top of a subtree of `size` bytes.
fn halves(size: u64, pieces: &[PieceDigest]) -> (ChainingValue, ChainingValue) {
    let left_size = hazmat::left_subtree_len(size);
    // The left part of a tree of two pieces or more is a number of whole ones.
    let (left, right) = pieces.split_at((left_size / PIECE_BYTES as u64) as usize);
    (subtree(left_size, left), subtree(size - left_size, right))
}

fn subtree(size: u64, pieces: &[PieceDigest]) -> ChainingValue {
    if let [PieceDigest(only)] = pieces {
        return *only;
    }
    let (left, right) = halves(size, pieces);
    hazmat::merge_subtrees_non_root(&left, &right, Mode::Hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_digest_of_the_whole() {
        let bytes: Vec<u8> =
            (0..9 * PIECE_BYTES as u32).map(|n| (n.wrapping_mul(7919) >> 3) as u8).collect();
        let piece = PIECE_BYTES;
        let sizes =
            (1..=9).flat_map(|n| [n * piece - 1025, n * piece - 1, n * piece, n * piece - 1024]);
        let more = (1..9).flat_map(|n| [n * piece + 1, n * piece + 1024, n * piece + 1500]);
        for size in sizes.chain(more) {
            let content = &bytes[..size];
            let pieces = content.chunks(piece).enumerate();
            let pieces: Vec<_> =
                pieces.map(|(n, bytes)| PieceDigest::of(n as u64, bytes)).collect();
            let expected = (pieces.len() > 1).then(|| Digest::of(content));
            assert_eq!(Digest::of_pieces(size as u64, &pieces), expected, "{size}");
        }
    }

    #[test]
    fn pieces_of_another_size_make_no_digest() {
        let pieces: Vec<_> = (0..3).map(|n| PieceDigest::of(n, &vec![1; PIECE_BYTES])).collect();
        let size = 3 * PIECE_BYTES as u64;
        assert!(Digest::of_pieces(size, &pieces).is_some());
        assert!(
            Digest::of_pieces(size + 1, &pieces).is_none()
                && Digest::of_pieces(size, &pieces[1..]).is_none()
        );
        assert!(
            Digest::of_pieces(1, &pieces[..1]).is_none() && Digest::of_pieces(0, &[]).is_none()
        );
    }
}
