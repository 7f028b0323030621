//! Parts of the units of a directory that has too many for one listing.
//!
//! Owns the assignment of units to parts. It depends only on the names of a unit, so each listing
//! gives the same result.

/// Identifies a unit: its rule, the length of its directory's path, and the prefix of its names.
pub(super) type UnitId = (u16, u32, Box<[u8]>);

/// A part of the units of a directory: those whose digest ends in these bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct UnitShare {
    pub(super) bits: u32,
    end: u64,
}

impl UnitShare {
    /// More common bits never occur in the digests of two units.
    pub(super) const BITS_MAX: u32 = 63;

    pub(super) fn has(self, id: &UnitId) -> bool {
        let mut hash = blake3::Hasher::new();
        hash.update(&id.0.to_le_bytes()).update(&id.1.to_le_bytes()).update(&id.2);
        let mut first = [0; 8];
        first.copy_from_slice(&hash.finalize().as_bytes()[..8]);
        let mask = (1_u64 << self.bits) - 1;
        u64::from_le_bytes(first) & mask == self.end
    }

    /// Splits it into two halves.
    pub(super) fn halves(self) -> (Self, Self) {
        let bits = self.bits + 1;
        (Self { bits, ..self }, Self { bits, end: self.end | 1 << self.bits })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_unit_is_of_one_half() {
        let whole = UnitShare::default();
        let (one, other) = whole.halves();
        let (third, fourth) = other.halves();
        let mut counts = [0; 3];
        for number in 0_u32..300 {
            let id: UnitId = (7, 3, format!("dir{number}").into_bytes().into());
            assert!(whole.has(&id));
            let has = [one, third, fourth].map(|share| usize::from(share.has(&id)));
            assert_eq!(has.iter().sum::<usize>(), 1);
            (0..3).for_each(|at| counts[at] += has[at]);
        }
        assert!(counts[0] > 100 && counts[1] > 40 && counts[2] > 40, "{counts:?}");
    }
}
