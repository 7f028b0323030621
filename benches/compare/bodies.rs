//! The contents of the files.
//!
//! Every second file is incompressible, the others are text-like and compress about four to one. No
//! two are equal, so deduplication saves nothing.

/// The largest body.
pub(crate) const SIZE_MAX: usize = 4 << 20;
/// How far into the stock the start of a body may lie.
const SPREAD: usize = 1 << 20;
/// The bit of a body's number that selects its kind.
pub(crate) const KIND_BIT: u32 = 8;
/// The length of the body's number at its start.
const STAMP_BYTES: usize = 16;

/// A generator whose numbers derive from its seed.
#[derive(Debug, Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// Starts from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// The stock from which bodies are cut.
#[derive(Debug)]
pub(crate) struct Bodies {
    random: Vec<u8>,
    text: Vec<u8>,
}

impl Bodies {
    /// Makes the stock; always the same.
    pub(crate) fn new() -> Self {
        let total = SIZE_MAX + SPREAD;
        let mut dice = Dice::new(7);
        let random = (0..total / 8).flat_map(|_| dice.next().to_le_bytes()).collect();
        let mut text = Vec::with_capacity(total + 64);
        while text.len() < total {
            let n = dice.next();
            let op = ["ld.global", "st.shared", "fma.rn.f32", "mov.b32", "bra.uni"][n as usize % 5];
            let line = format!(
                "    {op}  %r{}, [%rd{}+{}];\n",
                n >> 8 & 255,
                n >> 16 & 31,
                n >> 24 & 1023
            );
            text.extend_from_slice(line.as_bytes());
        }
        text.truncate(total);
        Self { random, text }
    }

    /// Writes body number `seq` of `size` bytes into `buffer`.
    pub(crate) fn fill(&self, seq: u64, size: usize, buffer: &mut Vec<u8>) {
        let stock = if (seq >> KIND_BIT).is_multiple_of(2) { &self.random } else { &self.text };
        let at = Dice::new(seq).next() as usize % SPREAD;
        buffer.clear();
        buffer.extend_from_slice(&stock[at..at + size]);
        let stamp = [seq.to_le_bytes(), Dice::new(!seq).next().to_le_bytes()].concat();
        let len = STAMP_BYTES.min(size);
        buffer[..len].copy_from_slice(&stamp[..len]);
    }

    /// Returns body number `seq` of `size` bytes.
    pub(crate) fn make(&self, seq: u64, size: usize) -> Vec<u8> {
        let mut buffer = Vec::new();
        self.fill(seq, size, &mut buffer);
        buffer
    }
}
