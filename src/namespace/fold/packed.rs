//! Records: a path and its register in one short run of bytes.
//!
//! A node keeps a million of them, so each is one allocation, with numbers of variable length. Owns the
//! format, which exists only in memory. Must never be read from anything but a record that was packed here.
//!
//! ```text
//! path: length, bytes
//! head: kind in the low bits, flags above
//! stamp; with flags: stamp of the attributes, group of links
//! unless a tombstone: mode, uid, gid, mtime, atime unless it is the mtime
//! file: number of the content, size    symlink: target    special: format, rdev
//! with flags: how long its content took to make; extended attributes
//! ```
//!
//! Numbers are little-endian groups of seven bits. Times are differences to the time of the stamp.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::Register;
use crate::digest::Digest;
use crate::namespace::entry::{Attrs, Entry, EntryKind, Time};
use crate::stamp::{NodeId, Stamp};

const KIND: u8 = 0b111;
const TOMBSTONE: u8 = 0;
const FILE: u8 = 1;
const DIRECTORY: u8 = 2;
const SYMLINK: u8 = 3;
const SPECIAL: u8 = 4;
/// It has a stamp of attributes.
const ATTR_STAMP: u8 = 1 << 3;
/// It belongs to a group of hard links.
const LINK: u8 = 1 << 4;
/// The access time differs from the modification time.
const ATIME: u8 = 1 << 5;
/// It has extended attributes.
const XATTRS: u8 = 1 << 6;
/// The time that its content took to make is known.
const TOOK: u8 = 1 << 7;

/// A path and its register; compares by the path alone.
#[derive(Clone, Debug)]
pub(super) struct PackedRecord(Box<[u8]>);

impl PackedRecord {
    /// Packs a register. `content` is the number of the file's content.
    pub(super) fn pack(path: &[u8], register: &Register, content: u32) -> Self {
        let mut out = PackedWriter(Vec::with_capacity(path.len() + 64));
        out.bytes(path);
        let head = out.0.len();
        out.0.push(TOMBSTONE);
        out.stamp(&register.stamp);
        let mut flags = 0;
        if let Some(stamp) = &register.attr_stamp {
            flags |= ATTR_STAMP;
            out.stamp(stamp);
        }
        if let Some(entry) = &register.entry {
            flags |= out.entry(entry, register.stamp.ms, content);
        }
        out.0[head] = flags;
        // Not the vector itself, which has spare capacity.
        Self(Box::from(out.0.as_slice()))
    }

    /// Returns the register; `digest_of` returns the digest of a content number.
    pub(super) fn unpack(&self, digest_of: impl FnOnce(u32) -> Digest) -> Register {
        let (head, mut from) = self.open();
        let stamp = from.stamp();
        let attr_stamp = (head & ATTR_STAMP != 0).then(|| from.stamp());
        let entry = (head & KIND != TOMBSTONE).then(|| from.entry(head, stamp.ms, digest_of));
        Register { stamp, attr_stamp, entry }
    }

    /// Returns the path in its stored form.
    #[inline]
    pub(super) fn path(&self) -> &[u8] {
        PackedReader(&self.0).bytes()
    }

    /// Returns the stamp of the content.
    pub(super) fn stamp(&self) -> Stamp {
        self.open().1.stamp()
    }

    /// Returns the stamp of the last effective change.
    pub(super) fn last_stamp(&self) -> Stamp {
        let (head, mut from) = self.open();
        let stamp = from.stamp();
        if head & ATTR_STAMP == 0 { stamp } else { from.stamp().max(stamp) }
    }

    /// Reports whether the path has an entry.
    #[inline]
    pub(super) fn is_live(&self) -> bool {
        self.open().0 & KIND != TOMBSTONE
    }

    /// Reports whether the path points to a directory.
    #[inline]
    pub(super) fn is_directory(&self) -> bool {
        self.open().0 & KIND == DIRECTORY
    }

    /// Returns the number of the content, and the group of hard links.
    pub(super) fn holds(&self) -> (Option<u32>, Option<Stamp>) {
        let (head, mut from) = self.open();
        from.stamp();
        if head & ATTR_STAMP != 0 {
            from.stamp();
        }
        let link = (head & LINK != 0).then(|| from.stamp());
        let content = (head & KIND == FILE).then(|| {
            from.attrs(head, 0);
            from.number() as u32
        });
        (content, link)
    }

    /// Counts the bytes of the extended attributes, names and values.
    pub(super) fn xattr_bytes(&self) -> u64 {
        if self.open().0 & XATTRS == 0 {
            return 0;
        }
        let register = self.unpack(|_| Digest::empty());
        register.entry.map_or(0, |entry| entry.attrs.xattr_bytes() as u64)
    }

    /// Counts its own bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.0.len() as u64
    }

    #[inline]
    fn open(&self) -> (u8, PackedReader<'_>) {
        let mut from = PackedReader(&self.0);
        from.bytes();
        (from.byte(), from)
    }
}

impl PartialEq for PackedRecord {
    fn eq(&self, other: &Self) -> bool {
        self.path() == other.path()
    }
}

impl Eq for PackedRecord {}

impl PartialOrd for PackedRecord {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PackedRecord {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.path().cmp(other.path())
    }
}

impl Borrow<[u8]> for PackedRecord {
    #[inline]
    fn borrow(&self) -> &[u8] {
        self.path()
    }
}

struct PackedWriter(Vec<u8>);

impl PackedWriter {
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn stamp(&mut self, stamp: &Stamp) {
        self.number(stamp.ms);
        self.number(u64::from(stamp.counter));
        // Random, so a variable length would not make it shorter.
        self.0.extend_from_slice(&stamp.node.0.to_le_bytes());
    }

    fn time(&mut self, time: Time, near_ms: u64) {
        let apart = time.secs.wrapping_sub((near_ms / 1000) as i64);
        self.number(((apart << 1) ^ (apart >> 63)) as u64);
        self.number(u64::from(time.nanos));
    }

    /// Writes an entry; returns its kind and flags.
    fn entry(&mut self, entry: &Entry, near_ms: u64, content: u32) -> u8 {
        let mut flags = 0;
        if let Some(group) = &entry.link {
            flags |= LINK;
            self.stamp(group);
        }
        let Attrs { mode, uid, gid, mtime, atime, xattrs, took_ms } = &entry.attrs;
        for number in [mode, uid, gid] {
            self.number(u64::from(*number));
        }
        self.time(*mtime, near_ms);
        if atime != mtime {
            flags |= ATIME;
            self.time(*atime, near_ms);
        }
        flags |= match &entry.kind {
            EntryKind::File { size, .. } => {
                self.number(u64::from(content));
                self.number(*size);
                FILE
            }
            EntryKind::Directory => DIRECTORY,
            EntryKind::Symlink { target } => {
                self.bytes(target);
                SYMLINK
            }
            EntryKind::Special { format, rdev } => {
                self.number(u64::from(*format));
                self.number(u64::from(*rdev));
                SPECIAL
            }
        };
        if *took_ms > 0 {
            flags |= TOOK;
            self.number(u64::from(*took_ms));
        }
        if let Some(xattrs) = xattrs {
            flags |= XATTRS;
            self.number(xattrs.len() as u64);
            for (name, value) in xattrs.iter() {
                self.bytes(name);
                self.bytes(value);
            }
        }
        flags
    }
}

/// Reads what a [`PackedWriter`] wrote.
struct PackedReader<'a>(&'a [u8]);

impl<'a> PackedReader<'a> {
    #[inline]
    fn byte(&mut self) -> u8 {
        let (byte, rest) = self.0.split_first().expect("a record is whole");
        self.0 = rest;
        *byte
    }

    #[inline]
    fn number(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..).step_by(7) {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        number
    }

    #[inline]
    fn bytes(&mut self) -> &'a [u8] {
        let length = self.number() as usize;
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }

    fn stamp(&mut self) -> Stamp {
        let (ms, counter) = (self.number(), self.number() as u32);
        let (node, rest) = self.0.split_first_chunk().expect("a record is whole");
        self.0 = rest;
        Stamp { ms, counter, node: NodeId(u64::from_le_bytes(*node)) }
    }

    fn time(&mut self, near_ms: u64) -> Time {
        let apart = self.number();
        let apart = (apart >> 1) as i64 ^ -((apart & 1) as i64);
        let secs = apart.wrapping_add((near_ms / 1000) as i64);
        Time { secs, nanos: self.number() as u32 }
    }

    /// Reads the attributes, which precede the content.
    fn attrs(&mut self, head: u8, near_ms: u64) -> Attrs {
        let [mode, uid, gid] = [(); 3].map(|()| self.number() as u32);
        let mtime = self.time(near_ms);
        let atime = if head & ATIME == 0 { mtime } else { self.time(near_ms) };
        Attrs { mode, uid, gid, mtime, atime, ..Attrs::default() }
    }

    fn entry(&mut self, head: u8, near_ms: u64, digest_of: impl FnOnce(u32) -> Digest) -> Entry {
        let link = (head & LINK != 0).then(|| self.stamp());
        let mut attrs = self.attrs(head, near_ms);
        let kind = match head & KIND {
            FILE => {
                let digest = digest_of(self.number() as u32);
                EntryKind::File { digest, size: self.number() }
            }
            DIRECTORY => EntryKind::Directory,
            SYMLINK => EntryKind::Symlink { target: self.bytes().into() },
            _ => EntryKind::Special { format: self.number() as u32, rdev: self.number() as u32 },
        };
        if head & TOOK != 0 {
            attrs.took_ms = self.number() as u32;
        }
        if head & XATTRS != 0 {
            self.xattrs(attrs.xattrs.get_or_insert_default());
        }
        Entry { kind, attrs, link }
    }

    fn xattrs(&mut self, into: &mut BTreeMap<Box<[u8]>, Box<[u8]>>) {
        for _ in 0..self.number() {
            let name = self.bytes().into();
            into.insert(name, self.bytes().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_stamp() -> impl Strategy<Value = Stamp> {
        (any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(ms, counter, node)| Stamp {
            ms,
            counter,
            node: NodeId(node),
        })
    }

    fn any_time() -> impl Strategy<Value = Time> {
        (any::<i64>(), any::<u32>()).prop_map(|(secs, nanos)| Time { secs, nanos })
    }

    fn any_bytes() -> impl Strategy<Value = Box<[u8]>> {
        prop::collection::vec(any::<u8>(), 0..300).prop_map(Into::into)
    }

    fn any_kind() -> impl Strategy<Value = EntryKind> {
        prop_oneof![
            any::<u64>().prop_map(|size| EntryKind::File { digest: Digest::of(b"x"), size }),
            Just(EntryKind::Directory),
            any_bytes().prop_map(|target| EntryKind::Symlink { target }),
            (any::<u32>(), any::<u32>())
                .prop_map(|(format, rdev)| EntryKind::Special { format, rdev }),
        ]
    }

    fn any_entry() -> impl Strategy<Value = Entry> {
        let xattrs = prop::option::of(
            prop::collection::btree_map(any_bytes(), any_bytes(), 0..3).prop_map(Box::new),
        );
        let owner = (any::<u32>(), any::<u32>(), any::<u32>());
        let times = (any_time(), prop::option::of(any_time()), any::<u32>());
        (any_kind(), owner, times, xattrs, prop::option::of(any_stamp())).prop_map(
            |(kind, (mode, uid, gid), (mtime, atime, took_ms), xattrs, link)| {
                let atime = atime.unwrap_or(mtime);
                Entry { kind, attrs: Attrs { mode, uid, gid, mtime, atime, xattrs, took_ms }, link }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_packed_is_what_was_given(
            path in any_bytes(),
            stamp in any_stamp(),
            attr_stamp in prop::option::of(any_stamp()),
            entry in prop::option::of(any_entry()),
            content in any::<u32>(),
        ) {
            let register = Register { stamp, attr_stamp, entry };
            let record = PackedRecord::pack(&path, &register, content);
            prop_assert_eq!(record.path(), &*path);
            prop_assert_eq!(record.stamp(), stamp);
            prop_assert_eq!(record.last_stamp(), stamp.max(attr_stamp.unwrap_or(stamp)));
            let entry = register.entry.as_ref();
            prop_assert_eq!(record.is_live(), entry.is_some());
            prop_assert_eq!(record.is_directory(), entry.is_some_and(Entry::is_directory));
            let has_content = entry.is_some_and(|entry| entry.content().is_some());
            let held = (has_content.then_some(content), entry.and_then(|entry| entry.link));
            prop_assert_eq!(record.holds(), held);
            let xattrs = entry.map_or(0, |entry| entry.attrs.xattr_bytes());
            prop_assert_eq!(record.xattr_bytes(), xattrs as u64);
            let again = record.unpack(|number| {
                assert_eq!(number, content);
                Digest::of(b"x")
            });
            prop_assert_eq!(again, register);
        }
    }

    #[test]
    fn a_file_takes_little_more_than_its_path() {
        let stamp = Stamp { ms: 1_763_750_000_000, counter: 7, node: NodeId(u64::MAX) };
        let mtime = Time { secs: 1_763_749_999, nanos: 999_999_999 };
        let attrs =
            Attrs { mode: 0o644, uid: 1000, gid: 1000, mtime, atime: mtime, ..Attrs::default() };
        let kind = EntryKind::File { digest: Digest::of(b"x"), size: 100_000 };
        let entry = Some(Entry { kind, attrs, link: None });
        let record =
            PackedRecord::pack(&[b'p'; 80], &Register { stamp, attr_stamp: None, entry }, 999_999);
        assert!(record.0.len() <= 80 + 40, "{} bytes", record.0.len());
    }
}
