//! Completeness: a cheap check whether content is complete, based on the length in its own format.
//!
//! Owns the knowledge of the formats. Must never decompress, never read more than a bounded part of a large
//! file, and never report complete content as torn: content that it cannot judge counts as complete.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use serde::de::IgnoredAny;

use crate::namespace::Check;

/// JSON up to this size is parsed; of larger content, only the first and the last byte are checked.
const JSON_BYTES_MAX: u64 = 8 << 20;
/// The most blank bytes skipped at either end of JSON that is not parsed.
const JSON_BLANK_MAX: usize = 4096;
/// The most blocks skipped in zstd content; content with more counts as complete.
const ZSTD_BLOCKS_MAX: u32 = 65_536;
/// The most bytes of a table of an ELF file that are read. Further entries are assumed to be right.
const ELF_TABLE_BYTES_MAX: u64 = 1 << 20;
/// The longest comment at the end of a zip archive, in bytes.
const ZIP_COMMENT_BYTES_MAX: u64 = 0xffff;

/// Something that has bytes at offsets.
pub trait Content {
    /// Reads some bytes at an offset; 0 at the end.
    fn read_some(&self, into: &mut [u8], at: u64) -> io::Result<usize>;
}

impl Content for File {
    fn read_some(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        self.read_at(into, at)
    }
}

impl Content for [u8] {
    fn read_some(&self, into: &mut [u8], at: u64) -> io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.get(at..)).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }
}

/// Reports whether content of `size` bytes passes a check. Empty content passes none.
///
/// # Errors
///
/// When the content cannot be read.
pub fn is_whole(content: &(impl Content + ?Sized), size: u64, check: Check) -> io::Result<bool> {
    if size == 0 {
        return Ok(false);
    }
    let bytes = WholeBytes { content, size };
    let whole = match check {
        Check::Zstd => zstd(&bytes),
        Check::Elf => elf(&bytes),
        Check::Zip => zip(&bytes),
        Check::Json => json(&bytes),
    };
    match whole {
        Ok(whole) => Ok(whole),
        Err(Failed::Ends) => Ok(false),
        Err(Failed::Disk(error)) => Err(error),
    }
}

/// Why a format could not be followed.
enum Failed {
    /// An offset or length leads beyond the end.
    Ends,
    Disk(io::Error),
}

struct WholeBytes<'a, C: ?Sized> {
    content: &'a C,
    size: u64,
}

impl<C: Content + ?Sized> WholeBytes<'_, C> {
    fn fill(&self, into: &mut [u8], at: u64) -> Result<(), Failed> {
        let mut filled = 0;
        while filled < into.len() {
            match self.content.read_some(&mut into[filled..], at.saturating_add(filled as u64)) {
                Ok(0) => return Err(Failed::Ends),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Failed::Disk(error)),
            }
        }
        Ok(())
    }

    fn array<const N: usize>(&self, at: u64) -> Result<[u8; N], Failed> {
        let mut into = [0; N];
        self.fill(&mut into, at)?;
        Ok(into)
    }

    fn range(&self, at: u64, bytes: u64) -> Result<Vec<u8>, Failed> {
        let mut into = vec![0; bytes as usize];
        self.fill(&mut into, at)?;
        Ok(into)
    }

    /// Reports whether a range lies inside the content.
    fn holds(&self, at: u64, bytes: u64) -> bool {
        at.checked_add(bytes).is_some_and(|end| end <= self.size)
    }
}

const ZSTD_FRAME: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// Checks consecutive frames, each up to its end by the sizes of its blocks. Content with another beginning
/// is not zstd: without the package `zstandard`, JAX uses another format, which does not contain its length.
fn zstd(bytes: &WholeBytes<'_, impl Content + ?Sized>) -> Result<bool, Failed> {
    let (mut at, mut left) = (0, ZSTD_BLOCKS_MAX);
    while at < bytes.size {
        let head = bytes.range(at, 4.min(bytes.size - at))?;
        if head.len() < 4 {
            return Ok(!ZSTD_FRAME.starts_with(&head));
        }
        if head[1..] == [0x2a, 0x4d, 0x18] && head[0] & 0xf0 == 0x50 {
            at = at + 8 + u64::from(u32::from_le_bytes(bytes.array(at + 4)?));
        } else if head == ZSTD_FRAME {
            let Some(end) = zstd_frame(bytes, at + 4, &mut left)? else { return Ok(left == 0) };
            at = end;
        } else {
            return Ok(true);
        }
    }
    Ok(at == bytes.size)
}

/// Returns the end of the frame whose header is at `at`; `None` if it is no frame, or has too many blocks.
fn zstd_frame(
    bytes: &WholeBytes<'_, impl Content + ?Sized>,
    at: u64,
    left: &mut u32,
) -> Result<Option<u64>, Failed> {
    let [descriptor] = bytes.array(at)?;
    let single = descriptor & 0x20 != 0;
    let window = u64::from(!single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content_size = match descriptor >> 6 {
        0 => u64::from(single),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    let mut at = at + 1 + window + dictionary + content_size;
    loop {
        if *left == 0 {
            return Ok(None);
        }
        *left -= 1;
        let [a, b, c] = bytes.array(at)?;
        let header = u32::from_le_bytes([a, b, c, 0]);
        at += 3 + match (header >> 1) & 3 {
            0 | 2 => u64::from(header >> 3),
            1 => 1,
            _ => return Ok(None),
        };
        if header & 1 == 1 {
            return Ok(Some(at + if descriptor & 4 == 0 { 0 } else { 4 }));
        }
    }
}

/// Checks that the tables of the header, and the segments and sections in them, lie inside the
/// content. Linkers write the header last.
fn elf(bytes: &WholeBytes<'_, impl Content + ?Sized>) -> Result<bool, Failed> {
    let ident: [u8; 16] = bytes.array(0)?;
    if ident[..4] != *b"\x7fELF" {
        return Ok(false);
    }
    let (wide, big) = (ident[4] == 2, ident[5] == 2);
    let number = |field: &[u8]| {
        let digits = field.iter();
        let join = |sum: u64, digit: &u8| sum << 8 | u64::from(*digit);
        if big { digits.fold(0, join) } else { digits.rev().fold(0, join) }
    };
    let header = bytes.range(0, if wide { 64 } else { 52 })?;
    let field = |wide_at: usize, narrow_at: usize, wide_bytes: usize, narrow_bytes: usize| {
        let (at, count) = if wide { (wide_at, wide_bytes) } else { (narrow_at, narrow_bytes) };
        number(&header[at..at + count])
    };
    let (segments_at, sections_at) = (field(32, 28, 8, 4), field(40, 32, 8, 4));
    let (segment_bytes, segments) = (field(54, 42, 2, 2), field(56, 44, 2, 2));
    let (section_bytes, mut sections) = (field(58, 46, 2, 2), field(60, 48, 2, 2));
    // The positions of offset and size in an entry: of a segment, and of a section with its kind.
    let segment: [usize; 2] = if wide { [8, 32] } else { [4, 16] };
    let section: [usize; 2] = if wide { [24, 32] } else { [16, 20] };
    let word = if wide { 8 } else { 4 };
    let place = |entry: &[u8], [at, size]: [usize; 2]| {
        let part = |at: usize| entry.get(at..at + word).map(number);
        part(at).zip(part(size))
    };
    if sections == 0 && sections_at != 0 {
        // If there are too many sections for the header, the first entry holds their number.
        let first = bytes.range(sections_at, section_bytes)?;
        sections = place(&first, section).map_or(0, |(_, count)| count);
    }
    let inside =
        |entry: &[u8], fields| place(entry, fields).is_some_and(|(at, size)| bytes.holds(at, size));
    let is_segment = |entry: &[u8]| inside(entry, segment);
    let is_section = |entry: &[u8]| {
        // Unused entries, and those without bytes in the file, have no range in it.
        let kind = entry.get(4..8).map(number);
        matches!(kind, Some(0 | 8)) || inside(entry, section)
    };
    Ok(elf_table(bytes, (segments_at, segment_bytes, segments), is_segment)?
        && elf_table(bytes, (sections_at, section_bytes, sections), is_section)?)
}

/// Reports whether a table, and the ranges of its entries, lie inside the content.
fn elf_table(
    bytes: &WholeBytes<'_, impl Content + ?Sized>,
    (at, entry_bytes, entries): (u64, u64, u64),
    is_inside: impl Fn(&[u8]) -> bool,
) -> Result<bool, Failed> {
    if entries == 0 || at == 0 {
        return Ok(true);
    }
    let all = entry_bytes.checked_mul(entries).filter(|all| bytes.holds(at, *all));
    let Some(all) = all.filter(|_| entry_bytes > 0) else { return Ok(false) };
    let table = bytes.range(at, all.min(ELF_TABLE_BYTES_MAX))?;
    Ok(table.chunks_exact(entry_bytes as usize).all(is_inside))
}

/// Checks that the directory of the archive ends at its own end record, which comes last.
fn zip(bytes: &WholeBytes<'_, impl Content + ?Sized>) -> Result<bool, Failed> {
    const END: u64 = 22;
    let tail_bytes = bytes.size.min(END + ZIP_COMMENT_BYTES_MAX);
    let tail = bytes.range(bytes.size - tail_bytes, tail_bytes)?;
    let number = |field: &[u8]| field.iter().rev().fold(0, |sum, b| sum << 8 | u64::from(*b));
    for (at, end) in tail.windows(END as usize).enumerate().rev() {
        let comment = number(&end[20..22]) as usize;
        if end[..4] != *b"PK\x05\x06" || at + END as usize + comment != tail.len() {
            continue;
        }
        let end_at = bytes.size - tail_bytes + at as u64;
        let (mut size, mut from, mut upto) = (number(&end[12..16]), number(&end[16..20]), end_at);
        if let Some(locator_at) = end_at.checked_sub(20) {
            let locator: [u8; 20] = bytes.array(locator_at)?;
            if locator[..4] == *b"PK\x06\x07" {
                upto = number(&locator[8..16]);
                let wide: [u8; 56] = bytes.array(upto)?;
                if wide[..4] != *b"PK\x06\x06" {
                    return Ok(false);
                }
                (size, from) = (number(&wide[40..48]), number(&wide[48..56]));
            }
        }
        // Torn content that contains a whole inner archive does not begin where that archive begins.
        if from.checked_add(size) == Some(upto) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Checks for one JSON value. Also accepts the numbers `NaN` and `Infinity`, which Python writes.
fn json(bytes: &WholeBytes<'_, impl Content + ?Sized>) -> Result<bool, Failed> {
    if bytes.size > JSON_BYTES_MAX {
        let ends = JSON_BLANK_MAX as u64;
        let (head, tail) = (bytes.range(0, ends)?, bytes.range(bytes.size - ends, ends)?);
        return Ok(has_ends(&head, &tail));
    }
    let all = bytes.range(0, bytes.size)?;
    match serde_json::from_slice::<IgnoredAny>(&all) {
        Ok(_) => Ok(true),
        Err(error) if error.is_eof() => Ok(false),
        Err(_) => Ok(has_python_numbers(&all) && has_ends(&all, &all)),
    }
}

fn has_python_numbers(all: &[u8]) -> bool {
    let has = |word: &[u8]| all.windows(word.len()).any(|window| window == word);
    has(b"NaN") || has(b"Infinity")
}

/// Reports whether JSON ends as its first byte requires.
fn has_ends(head: &[u8], tail: &[u8]) -> bool {
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    let last = tail.iter().rev().find(|byte| !byte.is_ascii_whitespace());
    match (first, last) {
        (Some(b'{'), Some(last)) => *last == b'}',
        (Some(b'['), Some(last)) => *last == b']',
        (Some(b'"'), Some(last)) => *last == b'"',
        (Some(0), _) | (_, Some(0)) => false,
        // Only blanks in the part that was read, or a number.
        _ => true,
    }
}

#[cfg(test)]
mod tests;
