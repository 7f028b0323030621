//! The primitives of a frame: numbers, byte strings, and the values that items of one frame share.
//!
//! Owns encoding a value as a difference from the one before, or as the index of an equal one. All
//! state starts afresh with each frame, so that no table grows with the checkpoint.

use std::collections::HashMap;
use std::hash::Hash;

use super::FRAME_BYTES_MAX;

/// Replaces repeated values by their index.
#[derive(Debug)]
pub(super) struct Repeated<T>(HashMap<T, u64>);

impl<T: Hash + Eq> Repeated<T> {
    pub(super) fn new() -> Self {
        Self(HashMap::new())
    }

    /// Returns the index of a value that was written before. Otherwise records it, and the caller writes it.
    pub(super) fn number(&mut self, value: T) -> Option<u64> {
        let next = self.0.len() as u64;
        let number = *self.0.entry(value).or_insert(next);
        (number != next).then_some(number)
    }
}

/// Appends to the items of a frame.
#[derive(Debug, Default)]
pub(super) struct Out(pub(super) Vec<u8>);

impl Out {
    pub(super) fn byte(&mut self, byte: u8) {
        self.0.push(byte);
    }

    /// Writes a number, seven bits per byte, lowest first.
    pub(super) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    /// Writes a difference with its sign in the lowest bit; it may wrap.
    pub(super) fn difference(&mut self, value: u64, from: u64) {
        let by = value.wrapping_sub(from) as i64;
        self.number(((by << 1) ^ (by >> 63)) as u64);
    }

    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Writes the length and then the bytes.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }
}

/// Reads the items of a frame. `None` means that no writer makes such a frame.
#[derive(Debug)]
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    pub(super) fn number(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    pub(super) fn small(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok()
    }

    pub(super) fn difference(&mut self, from: u64) -> Option<u64> {
        let folded = self.number()?;
        let by = (folded >> 1) as i64 ^ -((folded & 1) as i64);
        Some(from.wrapping_add(by as u64))
    }

    pub(super) fn raw(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.raw(N)?.try_into().ok()
    }

    pub(super) fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = self.number()?;
        if count > FRAME_BYTES_MAX as u64 {
            return None;
        }
        self.raw(count as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back() {
        let values = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX];
        let mut out = Out::default();
        for value in values {
            out.number(value);
            out.difference(value, 200);
            out.difference(3, value);
        }
        let mut all = In(&out.0);
        for value in values {
            assert_eq!(all.number(), Some(value));
            assert_eq!(all.difference(200), Some(value));
            assert_eq!(all.difference(value), Some(3));
        }
        assert!(all.is_empty() && all.number().is_none());
        assert_eq!(In(&[0xff; 9]).number(), None, "the number has no end");
        assert_eq!(In(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]).number(), None);
        assert_eq!(In(&[5, 1]).bytes(), None, "five bytes are missing");
    }
}
