//! One item as bytes, and back.
//!
//! Owns the form of an item inside a frame, which `docs/formats.md` gives byte for byte.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::wire::{In, Out, Repeated};
use super::{CheckpointChain, CheckpointEarly};
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, EntryKind, Location, Register, Site, Time, split_xattrs};
use crate::remote::{keys, validate};
use crate::stamp::{NodeId, Stamp};

/// The bits of a register's first byte that hold the kind of its entry.
const KIND_BITS: u8 = 0b111;
const TOMBSTONE: u8 = 0;
const FILE: u8 = 1;
const DIRECTORY: u8 = 2;
const SYMLINK: u8 = 3;
const SPECIAL: u8 = 4;
const HAS_ATTR_STAMP: u8 = 1 << 3;
const HAS_LINK: u8 = 1 << 4;
const HAS_LOCATION: u8 = 1 << 5;
/// The bit of the first byte of attributes that says that extended attributes follow.
const HAS_XATTRS: u8 = 1;
const HAS_ATIME: u8 = 2;
/// The first number of a location in an object. From `PACKS_FROM` on, it is the index of a pack
/// that was written before.
const OBJECT: u64 = 0;
const INLINE: u64 = 1;
const NEW_PACK: u64 = 2;
const PACKS_FROM: u64 = 3;
/// Names hold the milliseconds of a stamp in 12 hexadecimal digits.
const NAME_MS_MAX: u64 = (1 << 48) - 1;

/// The values from which the next item is encoded as a difference.
#[derive(Debug, Default)]
struct LastItem {
    ms: u64,
    mtime_secs: u64,
    pack_end: u64,
    stored_ms: u64,
}

/// Writes the items of one frame.
#[derive(Debug)]
pub(super) struct Encoder {
    pub(super) out: Out,
    path: Vec<u8>,
    last: LastItem,
    nodes: Repeated<NodeId>,
    packs: Repeated<Arc<str>>,
    owners: Repeated<(u32, u32, u32)>,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self {
            out: Out::default(),
            path: Vec::new(),
            last: LastItem::default(),
            nodes: Repeated::new(),
            packs: Repeated::new(),
            owners: Repeated::new(),
        }
    }

    pub(super) fn stamp(&mut self, stamp: &Stamp) {
        self.out.difference(stamp.ms, self.last.ms);
        self.last.ms = stamp.ms;
        self.out.number(u64::from(stamp.counter));
        match self.nodes.number(stamp.node) {
            Some(number) => self.out.number(number + 1),
            None => {
                self.out.byte(0);
                self.out.raw(&stamp.node.0.to_le_bytes());
            }
        }
    }

    pub(super) fn chain(&mut self, chain: &CheckpointChain) {
        self.stamp(&Stamp { ms: chain.ms, counter: 0, node: chain.node });
        self.out.raw(&chain.incarnation.to_le_bytes());
        self.out.number(chain.next);
    }

    fn path(&mut self, path: &TreePath) {
        let bytes = path.as_bytes();
        let shared = bytes.iter().zip(&self.path).take_while(|(a, b)| a == b).count();
        self.out.number(shared as u64);
        self.out.bytes(&bytes[shared..]);
        self.path.truncate(shared);
        self.path.extend_from_slice(&bytes[shared..]);
    }

    /// Appends a register; returns whether a reader will accept it.
    pub(super) fn register(
        &mut self,
        path: &TreePath,
        register: &Register,
        location: Option<&Location>,
    ) -> bool {
        let kind = match register.entry.as_ref().map(|entry| &entry.kind) {
            None => TOMBSTONE,
            Some(EntryKind::File { .. }) => FILE,
            Some(EntryKind::Directory) => DIRECTORY,
            Some(EntryKind::Symlink { .. }) => SYMLINK,
            Some(EntryKind::Special { .. }) => SPECIAL,
        };
        let link = register.entry.as_ref().and_then(|entry| entry.link);
        let bit = |is: bool, bit: u8| if is { bit } else { 0 };
        let flags = kind
            | bit(register.attr_stamp.is_some(), HAS_ATTR_STAMP)
            | bit(link.is_some(), HAS_LINK)
            | bit(location.is_some(), HAS_LOCATION);
        self.out.byte(flags);
        self.path(path);
        self.stamp(&register.stamp);
        for stamp in [register.attr_stamp, link].into_iter().flatten() {
            self.stamp(&stamp);
        }
        let mut size_known = 0;
        if let Some(entry) = &register.entry {
            match &entry.kind {
                EntryKind::File { digest, size } => {
                    self.out.raw(digest.as_bytes());
                    self.out.number(*size);
                    size_known = *size;
                }
                EntryKind::Directory => {}
                EntryKind::Symlink { target } => self.out.bytes(target),
                EntryKind::Special { format, rdev } => {
                    self.out.number(u64::from(*format));
                    self.out.number(u64::from(*rdev));
                }
            }
            self.attrs(&entry.attrs);
        }
        location.is_none_or(|location| self.location(location, size_known))
            && validate::register(path, register).is_ok()
    }

    fn attrs(&mut self, attrs: &Attrs) {
        let mut flags = 0;
        let joined = attrs.written_xattrs();
        let xattrs = joined.as_ref().or(attrs.xattrs.as_ref());
        if xattrs.is_some() {
            flags |= HAS_XATTRS;
        }
        if attrs.atime != attrs.mtime {
            flags |= HAS_ATIME;
        }
        self.out.byte(flags);
        match self.owners.number((attrs.mode, attrs.uid, attrs.gid)) {
            Some(number) => self.out.number(number + 1),
            None => {
                self.out.byte(0);
                for one in [attrs.mode, attrs.uid, attrs.gid] {
                    self.out.number(u64::from(one));
                }
            }
        }
        self.time(&attrs.mtime);
        if flags & HAS_ATIME != 0 {
            self.time(&attrs.atime);
        }
        if let Some(xattrs) = xattrs {
            self.out.number(xattrs.len() as u64);
            for (name, value) in xattrs.iter() {
                self.out.bytes(name);
                self.out.bytes(value);
            }
        }
    }

    fn time(&mut self, time: &Time) {
        self.out.difference(time.secs as u64, self.last.mtime_secs);
        self.last.mtime_secs = time.secs as u64;
        self.out.raw(&time.nanos.to_le_bytes());
    }

    pub(super) fn early(&mut self, early: &CheckpointEarly) -> bool {
        self.path(&early.path);
        self.stamp(&early.of);
        self.stamp(&early.stamp);
        self.attrs(&early.attrs);
        validate::attrs(&early.attrs).is_ok()
    }

    /// Appends a location; returns whether a reader will accept it. Readers accept only names of our form.
    pub(super) fn content(&mut self, digest: &Digest, location: &Location) -> bool {
        self.out.raw(digest.as_bytes());
        self.location(location, 0)
    }

    fn location(&mut self, location: &Location, size_known: u64) -> bool {
        let mut possible = true;
        match &location.site {
            Site::Object => self.out.number(OBJECT),
            Site::Inline { commit } => {
                self.out.number(INLINE);
                possible &= self.name(keys::commit_stamp(commit));
            }
            Site::Pack { pack, offset, length } => {
                match self.packs.number(Arc::clone(pack)) {
                    Some(number) => self.out.number(number + PACKS_FROM),
                    None => {
                        self.out.number(NEW_PACK);
                        possible &= self.name(keys::pack_stamp(pack));
                    }
                }
                self.out.difference(*offset, self.last.pack_end);
                self.out.number(u64::from(*length));
                self.last.pack_end = offset.wrapping_add(u64::from(*length));
            }
        }
        self.out.difference(location.size, size_known);
        self.out.difference(location.stored_ms, self.last.stored_ms);
        self.last.stored_ms = location.stored_ms;
        possible && validate::location(location).is_ok()
    }

    fn name(&mut self, stamp: Option<Stamp>) -> bool {
        if let Some(stamp) = stamp {
            self.stamp(&stamp);
        }
        stamp.is_some()
    }
}

/// Reads the items of one frame. `None` means that no writer makes such bytes.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    path: Vec<u8>,
    last: LastItem,
    nodes: Vec<NodeId>,
    packs: Vec<Arc<str>>,
    owners: Vec<(u32, u32, u32)>,
}

impl Decoder {
    pub(super) fn stamp(&mut self, items: &mut In<'_>) -> Option<Stamp> {
        let ms = items.difference(self.last.ms)?;
        self.last.ms = ms;
        let counter = items.small()?;
        let node = match items.number()? {
            0 => {
                let node = NodeId(u64::from_le_bytes(items.array()?));
                self.nodes.push(node);
                node
            }
            number => *self.nodes.get(number as usize - 1)?,
        };
        Some(Stamp { ms, counter, node })
    }

    /// Reads a stamp that is the name of an object.
    pub(super) fn name(&mut self, items: &mut In<'_>) -> Option<Stamp> {
        self.stamp(items).filter(|stamp| stamp.ms <= NAME_MS_MAX)
    }

    pub(super) fn chain(&mut self, items: &mut In<'_>) -> Option<CheckpointChain> {
        let Stamp { ms, node, .. } = self.stamp(items)?;
        let incarnation = u64::from_le_bytes(items.array()?);
        Some(CheckpointChain { node, incarnation, next: items.number()?, ms })
    }

    fn path(&mut self, items: &mut In<'_>) -> Option<TreePath> {
        let shared = items.number()?;
        if shared > self.path.len() as u64 {
            return None;
        }
        self.path.truncate(shared as usize);
        self.path.extend_from_slice(items.bytes()?);
        TreePath::from_bytes(&self.path).ok()
    }

    pub(super) fn register(
        &mut self,
        items: &mut In<'_>,
    ) -> Option<(TreePath, Register, Option<Location>)> {
        let flags = items.byte()?;
        let path = self.path(items)?;
        let stamp = self.stamp(items)?;
        let attr_stamp = self.stamp_if(items, flags & HAS_ATTR_STAMP)?;
        let link = self.stamp_if(items, flags & HAS_LINK)?;
        let mut size_known = 0;
        let kind = match flags & KIND_BITS {
            TOMBSTONE => None,
            FILE => {
                let digest = Digest::from_bytes(items.array()?);
                size_known = items.number()?;
                Some(EntryKind::File { digest, size: size_known })
            }
            DIRECTORY => Some(EntryKind::Directory),
            SYMLINK => Some(EntryKind::Symlink { target: items.bytes()?.into() }),
            SPECIAL => Some(EntryKind::Special { format: items.small()?, rdev: items.small()? }),
            _ => return None,
        };
        let entry = match kind {
            Some(kind) => Some(Entry { kind, attrs: self.attrs(items)?, link }),
            None if link.is_some() || attr_stamp.is_some() => return None,
            None => None,
        };
        let location = match flags & HAS_LOCATION {
            0 => None,
            _ if flags & KIND_BITS != FILE => return None,
            _ => Some(self.location(items, size_known)?),
        };
        let register = Register { stamp, attr_stamp, entry };
        validate::register(&path, &register).ok()?;
        Some((path, register, location))
    }

    #[expect(clippy::option_option, reason = "an invalid value differs from a missing one")]
    fn stamp_if(&mut self, items: &mut In<'_>, flag: u8) -> Option<Option<Stamp>> {
        if flag == 0 { Some(None) } else { self.stamp(items).map(Some) }
    }

    fn attrs(&mut self, items: &mut In<'_>) -> Option<Attrs> {
        let flags = items.byte()?;
        if flags & !(HAS_XATTRS | HAS_ATIME) != 0 {
            return None;
        }
        let (mode, uid, gid) = match items.number()? {
            0 => {
                let owner = (items.small()?, items.small()?, items.small()?);
                self.owners.push(owner);
                owner
            }
            number => *self.owners.get(usize::try_from(number).ok()? - 1)?,
        };
        let mtime = self.time(items)?;
        let atime = if flags & HAS_ATIME == 0 { mtime } else { self.time(items)? };
        let mut xattrs = None;
        if flags & HAS_XATTRS != 0 {
            let mut all = BTreeMap::new();
            for _ in 0..items.number()? {
                all.insert(items.bytes()?.into(), items.bytes()?.into());
            }
            xattrs = Some(Box::new(all));
        }
        let (xattrs, took_ms) = split_xattrs(xattrs);
        Some(Attrs { mode, uid, gid, mtime, atime, xattrs, took_ms })
    }

    fn time(&mut self, items: &mut In<'_>) -> Option<Time> {
        let secs = items.difference(self.last.mtime_secs)?;
        self.last.mtime_secs = secs;
        Some(Time { secs: secs as i64, nanos: u32::from_le_bytes(items.array()?) })
    }

    pub(super) fn early(&mut self, items: &mut In<'_>) -> Option<CheckpointEarly> {
        let path = self.path(items)?;
        let (of, stamp) = (self.stamp(items)?, self.stamp(items)?);
        let attrs = self.attrs(items)?;
        validate::attrs(&attrs).ok()?;
        Some(CheckpointEarly { path, of, stamp, attrs })
    }

    pub(super) fn content(&mut self, items: &mut In<'_>) -> Option<(Digest, Location)> {
        let digest = Digest::from_bytes(items.array()?);
        Some((digest, self.location(items, 0)?))
    }

    fn location(&mut self, items: &mut In<'_>, size_known: u64) -> Option<Location> {
        let site = match items.number()? {
            OBJECT => Site::Object,
            INLINE => {
                let name = keys::commit_name(&self.name(items)?);
                Site::Inline { commit: name.into() }
            }
            pack => {
                let pack = if pack == NEW_PACK {
                    let name: Arc<str> = keys::pack_name(&self.name(items)?).into();
                    self.packs.push(Arc::clone(&name));
                    name
                } else {
                    Arc::clone(self.packs.get(usize::try_from(pack - PACKS_FROM).ok()?)?)
                };
                let offset = items.difference(self.last.pack_end)?;
                let length = items.small()?;
                self.last.pack_end = offset.wrapping_add(u64::from(length));
                Site::Pack { pack, offset, length }
            }
        };
        let size = items.difference(size_known)?;
        let stored_ms = items.difference(self.last.stored_ms)?;
        self.last.stored_ms = stored_ms;
        let location = Location { site, size, stored_ms };
        validate::location(&location).ok()?;
        Some(location)
    }
}
