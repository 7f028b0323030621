//! The fold: turns a set of changes into the namespace.
//!
//! The same set gives the same result, in any order of arrival and however often each change arrives. Per
//! path the content change with the highest stamp wins; attribute changes apply to the content they name.
//!
//! A million entries must fit into a few hundred megabytes, so registers are packed and locations
//! lie in slots of fixed size; lookups unpack a copy for each caller.
//!
//! Keeps P7 one-winner.

mod bulk;
mod packed;
mod paged_table;
mod places;
mod purge;
mod reach;

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

pub use self::bulk::Builder;
use self::packed::PackedRecord;
use self::places::Places;
use super::change::{Change, Op};
use super::entry::{Attrs, Entry, Time};
use super::location::Location;
use crate::digest::Digest;
use crate::hashing::FastMap;
use crate::name::TreePath;
use crate::stamp::Stamp;

/// What the fold keeps of one path.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Register {
    /// The stamp of the winning content change.
    pub stamp: Stamp,
    /// The stamp of the winning attribute change of this content, if there was one.
    pub attr_stamp: Option<Stamp>,
    /// The entry that it put; `None` is a tombstone.
    pub entry: Option<Entry>,
}

impl Register {
    /// Returns the time of the last change of anything, which programs see as `st_ctime`.
    pub fn changed_ms(&self) -> u64 {
        self.last_stamp().ms
    }

    /// Returns the stamp of the last change of anything.
    pub fn last_stamp(&self) -> Stamp {
        self.attr_stamp.map_or(self.stamp, |attr| attr.max(self.stamp))
    }
}

/// The effect of applying a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The path now points to something else, or to nothing.
    Content,
    /// Only attributes changed.
    Attributes,
    /// An older or already known change.
    Nothing,
}

/// The last change of a directory's content.
#[derive(Clone, Copy, Debug)]
struct DirMove {
    /// Its place in the total order. If a later change gives the directory its times, those are
    /// shown instead. A change that arrives after times that are younger than itself takes their
    /// stamp: it moves the directory here.
    stamp: Stamp,
    /// When it arrived, by this node's clock.
    at: Time,
}

/// A name in a directory, as [`Fold::children`] yields it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Child {
    /// The name.
    pub name: Box<[u8]>,
    /// Its register; `None` for a directory that exists only because something lies below it.
    pub register: Option<Register>,
}

/// What is at a path, as [`Fold::at`] returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PathIs {
    /// A visible entry.
    Entry(Register),
    /// A directory that exists only because something lies below it.
    ImpliedDirectory,
    /// Nothing that is visible.
    Nothing {
        /// Whether any change of the path is known, even one that waits for its content.
        is_known: bool,
    },
}

/// The namespace, and the remote locations of its contents.
#[derive(Debug, Default)]
pub struct Fold {
    registers: BTreeSet<PackedRecord>,
    /// Attribute changes that arrived before the content they name.
    early_attrs: FastMap<TreePath, (Stamp, Stamp, Attrs)>,
    /// The contents that files point to, and the locations.
    places: Places,
    /// Names of each group of hard links.
    links: FastMap<Stamp, BTreeSet<TreePath>>,
    /// When the content of a directory last changed on this node. Never shared: CPython's importer
    /// needs the change itself, not the same value everywhere.
    moved: FastMap<TreePath, DirMove>,
    /// The number of explicitly made directories in each directory.
    subdirectories: FastMap<TreePath, u32>,
    live: usize,
    /// A file may be in the place of a directory above some entry.
    may_cover: bool,
    /// Bytes of all records, and of the extended attributes in them.
    bytes: u64,
    xattr_bytes: u64,
}

/// Unpacks the path of a record.
fn path_of(record: &PackedRecord) -> TreePath {
    TreePath::from_bytes(record.path()).expect("it was packed from a path")
}

impl Fold {
    /// Starts an empty namespace.
    pub fn new() -> Self {
        Self::default()
    }

    /// Applies one change at local time `now`.
    pub fn apply(&mut self, change: &Change, now: Time) -> Applied {
        match &change.op {
            Op::Put(entry) => self.apply_content(&change.path, change.stamp, Some(entry), now),
            Op::Remove => self.apply_content(&change.path, change.stamp, None, now),
            Op::Attrs { of, attrs } => self.apply_attrs(&change.path, *of, change.stamp, attrs),
        }
    }

    fn apply_content(
        &mut self,
        path: &TreePath,
        stamp: Stamp,
        entry: Option<&Entry>,
        now: Time,
    ) -> Applied {
        if self.record(path).is_some_and(|old| old.stamp() >= stamp) {
            return Applied::Nothing;
        }
        let mut register = Register { stamp, attr_stamp: None, entry: entry.cloned() };
        if let Some((of, _, _)) = self.early_attrs.get(path)
            && *of <= stamp
            && let Some((of, attr_stamp, attrs)) = self.early_attrs.remove(path)
            && of == stamp
            && let Some(entry) = &mut register.entry
        {
            entry.attrs = attrs;
            register.attr_stamp = Some(attr_stamp);
        }
        self.replace(path, &register);
        if let Some(parent) = path.parent() {
            self.touch_directory(&parent, stamp, now);
        }
        Applied::Content
    }

    fn apply_attrs(&mut self, path: &TreePath, of: Stamp, stamp: Stamp, attrs: &Attrs) -> Applied {
        match self.register(path) {
            Some(Register { stamp: content, attr_stamp, entry: Some(entry) }) if content == of => {
                if attr_stamp.is_some_and(|known| known >= stamp) {
                    return Applied::Nothing;
                }
                let entry = Entry { attrs: attrs.clone(), ..entry };
                let register =
                    Register { stamp: content, attr_stamp: Some(stamp), entry: Some(entry) };
                self.replace(path, &register);
                Applied::Attributes
            }
            Some(Register { stamp: content, .. }) if content >= of => Applied::Nothing,
            _ => {
                let early = (of, stamp, attrs.clone());
                match self.early_attrs.get_mut(path) {
                    Some(known) if (known.0, known.1) >= (of, stamp) => {}
                    Some(known) => *known = early,
                    None => drop(self.early_attrs.insert(path.clone(), early)),
                }
                Applied::Nothing
            }
        }
    }

    /// Replaces a register and updates the counts and link groups.
    fn replace(&mut self, path: &TreePath, register: &Register) {
        let record = self.take_in(path, register);
        let leads = |record: &PackedRecord| record.is_live().then(|| record.is_directory());
        let now = leads(&record);
        let old = self.registers.replace(record);
        self.note_reach(path, old.as_ref().and_then(leads), now);
        self.let_go(path, old.as_ref());
    }

    /// Packs a register, and counts what it refers to.
    fn take_in(&mut self, path: &TreePath, register: &Register) -> PackedRecord {
        let record = self.pack(path, register);
        self.bytes += record.bytes();
        self.xattr_bytes += record.xattr_bytes();
        record
    }

    fn pack(&mut self, path: &TreePath, register: &Register) -> PackedRecord {
        let Some(entry) = &register.entry else {
            return PackedRecord::pack(path.as_bytes(), register, 0);
        };
        self.live += 1;
        if entry.is_directory() {
            self.count_subdirectory(path, true);
        }
        if let Some(group) = entry.link {
            self.links.entry(group).or_default().insert(path.clone());
        }
        let content = entry.content().map_or(0, |(digest, _)| self.places.hold(&digest));
        PackedRecord::pack(path.as_bytes(), register, content)
    }

    /// Updates the counts and link groups after a register was replaced.
    fn let_go(&mut self, path: &TreePath, old: Option<&PackedRecord>) {
        let Some(old) = old else { return };
        self.bytes -= old.bytes();
        self.xattr_bytes -= old.xattr_bytes();
        if !old.is_live() {
            return;
        }
        self.live -= 1;
        if old.is_directory() {
            self.count_subdirectory(path, false);
        }
        let (content, link) = old.holds();
        if let Some(content) = content {
            self.places.let_go(content);
        }
        let now = || self.record(path).and_then(|record| record.holds().1);
        if let Some(group) = link.filter(|group| now() != Some(*group))
            && let Some(names) = self.links.get_mut(&group)
        {
            names.remove(path);
            if names.is_empty() {
                self.links.remove(&group);
            }
        }
    }

    /// Restores a register to its state before changes that no other node will see; `None` for a
    /// path of which nothing was known.
    pub fn reset(&mut self, path: &TreePath, register: Option<Register>) {
        if let Some(register) = register {
            self.replace(path, &register);
        } else {
            let old = self.registers.take(path.as_bytes());
            self.let_go(path, old.as_ref());
            // Otherwise every temporary directory would leave a trace.
            if self.moved.contains_key(path) && !self.is_directory(path) {
                self.moved.remove(path);
            }
        }
    }

    fn count_subdirectory(&mut self, path: &TreePath, more: bool) {
        let Some(parent) = path.parent() else { return };
        if more {
            *self.subdirectories.entry(parent).or_default() += 1;
        } else if let Some(count) = self.subdirectories.get_mut(&parent) {
            *count -= 1;
            if *count == 0 {
                self.subdirectories.remove(&parent);
            }
        }
    }

    /// Counts the explicitly made directories in a directory.
    pub fn subdirectories(&self, dir: &TreePath) -> u32 {
        self.subdirectories.get(dir).copied().unwrap_or(0)
    }

    /// Reports whether any change of a path is known, even one that waits for its content.
    pub fn knows(&self, path: &TreePath) -> bool {
        self.record(path).is_some() || self.early_attrs.contains_key(path)
    }

    /// Reports whether a file points to this content.
    pub fn uses(&self, digest: &Digest) -> bool {
        self.places.uses(digest)
    }

    /// Restores a register that an index kept, unless a newer one is present.
    pub fn restore(&mut self, path: &TreePath, register: &Register) {
        if self.register(path).is_none_or(|known| {
            (known.stamp, known.attr_stamp) < (register.stamp, register.attr_stamp)
        }) {
            self.replace(path, register);
        }
    }

    fn record(&self, path: &TreePath) -> Option<&PackedRecord> {
        self.registers.get(path.as_bytes())
    }

    fn unpack(&self, record: &PackedRecord) -> Register {
        record.unpack(|content| self.places.digest(content))
    }

    /// Returns the register of a path, tombstones included.
    pub fn register(&self, path: &TreePath) -> Option<Register> {
        self.record(path).map(|record| self.unpack(record))
    }

    /// Returns the register of a path if its entry is visible: it has one, and no file is in the
    /// place of a directory above it.
    ///
    /// An implied directory, or one that a node removed while another put something into it, is not
    /// found here; [`Fold::is_directory`] knows it.
    pub fn visible(&self, path: &TreePath) -> Option<Register> {
        let record = self.record(path).filter(|record| record.is_live())?;
        self.reachable(path).then(|| self.unpack(record))
    }

    /// Returns what is at a path: a visible entry, or a directory that is only implied.
    pub fn at(&self, path: &TreePath) -> PathIs {
        // What lies below a path follows it, so one search finds both. Compilers look up more names
        // that no node has than others.
        let bytes = path.as_bytes();
        let mut after =
            self.registers.range::<[u8], _>((Bound::Included(bytes), Bound::Unbounded)).peekable();
        let own = after.next_if(|record| record.path() == bytes);
        if let Some(record) = own.filter(|record| record.is_live()) {
            return if self.reachable(path) {
                PathIs::Entry(self.unpack(record))
            } else {
                PathIs::Nothing { is_known: true }
            };
        }
        let mut below = after.take_while(|record| path.rest_of(record.path()).is_some());
        if !path.is_root() && below.any(PackedRecord::is_live) && self.reachable(path) {
            return PathIs::ImpliedDirectory;
        }
        let is_early = || !self.early_attrs.is_empty() && self.early_attrs.contains_key(path);
        PathIs::Nothing { is_known: own.is_some() || is_early() }
    }

    /// Returns what a path points to, if it is [visible](Fold::visible).
    pub fn entry(&self, path: &TreePath) -> Option<Entry> {
        self.visible(path)?.entry
    }

    /// Reports whether a path is a directory: made explicitly, or implied by something below it.
    pub fn is_directory(&self, path: &TreePath) -> bool {
        if path.is_root() {
            return true;
        }
        match self.record(path).filter(|record| record.is_live()) {
            Some(record) => record.is_directory() && self.reachable(path),
            None => self.has_descendants(path) && self.reachable(path),
        }
    }

    /// Reports whether anything lies below a path.
    pub fn has_descendants(&self, path: &TreePath) -> bool {
        self.records_below(path).any(PackedRecord::is_live)
    }

    fn records_below(&self, dir: &TreePath) -> impl Iterator<Item = &PackedRecord> {
        self.records_after(dir.as_bytes())
            .take_while(move |record| dir.rest_of(record.path()).is_some())
    }

    fn records_after(&self, path: &[u8]) -> std::collections::btree_set::Range<'_, PackedRecord> {
        self.registers.range::<[u8], _>((Bound::Excluded(path), Bound::Unbounded))
    }

    /// Yields every register below a path, tombstones included, in path order.
    pub fn below(&self, dir: &TreePath) -> impl Iterator<Item = (TreePath, Register)> {
        self.records_below(dir).map(|record| (path_of(record), self.unpack(record)))
    }

    /// Returns the names in a directory, in byte order, without the deeper levels.
    pub fn children(&self, dir: &TreePath) -> Vec<Child> {
        self.children_after(dir, None, usize::MAX)
    }

    /// Returns at most `limit` names after `name`, so that a large directory can be read in parts.
    pub fn children_after(&self, dir: &TreePath, name: Option<&[u8]>, limit: usize) -> Vec<Child> {
        let mut found = Vec::new();
        self.walk_children(dir, name, limit, |name, own| {
            found.push(Child { name: name.into(), register: own.map(|own| self.unpack(own)) });
        });
        found
    }

    /// As [`Fold::children_after`], without the registers. The flag says whether the name leads to
    /// a directory.
    pub fn names_after(
        &self,
        dir: &TreePath,
        name: Option<&[u8]>,
        limit: usize,
    ) -> Vec<(Arc<[u8]>, bool)> {
        let mut found = Vec::new();
        self.walk_children(dir, name, limit, |name, own| {
            found.push((name.into(), own.is_none_or(PackedRecord::is_directory)));
        });
        found
    }

    /// Calls `found` with at most `limit` names after `name`, each with its record. A directory
    /// that exists only because something lies below it has none.
    fn walk_children<'a>(
        &'a self,
        dir: &TreePath,
        name: Option<&[u8]>,
        limit: usize,
        mut found: impl FnMut(&'a [u8], Option<&'a PackedRecord>),
    ) {
        let first = name.and_then(|name| dir.join(name).ok()).map(|path| {
            // After the name and everything below it.
            let mut beyond = path.as_bytes().to_vec();
            beyond.push(1);
            beyond
        });
        let mut rest = match &first {
            Some(beyond) => self
                .registers
                .range::<[u8], _>((Bound::Included(beyond.as_slice()), Bound::Unbounded)),
            None => self.records_after(dir.as_bytes()),
        };
        let (mut count, mut last) = (0, None);
        while count < limit
            && let Some(record) = rest.next()
        {
            let path = record.path();
            let Some(below) = dir.rest_of(path) else { break };
            let length = below.iter().position(|byte| *byte == 0).unwrap_or(below.len());
            let name = &below[..length];
            if last == Some(name) {
                // Skips everything else below that child.
                let mut beyond = path[..path.len() - below.len() + length].to_vec();
                beyond.push(1);
                rest = self
                    .registers
                    .range::<[u8], _>((Bound::Included(beyond.as_slice()), Bound::Unbounded));
            } else if record.is_live() {
                found(name, (length == below.len()).then_some(record));
                (count, last) = (count + 1, Some(name));
            }
        }
    }

    /// Returns the names of the hard links of a group.
    pub fn links(&self, group: Stamp) -> impl Iterator<Item = &TreePath> {
        self.links.get(&group).into_iter().flatten()
    }

    /// Returns when the content of a directory last changed on this node; `None` if it has not
    /// since the start, or if a later change gave the directory its times.
    pub fn moved(&self, dir: &TreePath) -> Option<Time> {
        let moved = self.moved.get(dir)?;
        let given = self.times_given(dir);
        given.is_none_or(|given| given <= moved.stamp).then_some(moved.at)
    }

    /// Returns the stamp of the change that gave a path its times.
    fn times_given(&self, path: &TreePath) -> Option<Stamp> {
        self.record(path).filter(|record| record.is_live()).map(PackedRecord::last_stamp)
    }

    /// Records that the content of a directory changed at this stamp. Other nodes need not know the
    /// change (a name that is not published yet).
    pub fn touch_directory(&mut self, dir: &TreePath, stamp: Stamp, now: Time) {
        let given = self.times_given(dir);
        let last = self.moved.get(dir).map(|moved| moved.stamp);
        let stamp = stamp.max(given.unwrap_or_default()).max(last.unwrap_or_default());
        self.moved.insert(dir.clone(), DirMove { stamp, at: now });
    }

    /// Records where the remote keeps a blob; the youngest location wins. Returns whether it was new.
    pub fn locate(&mut self, digest: Digest, location: &Location) -> bool {
        self.places.locate(&digest, location)
    }

    /// Returns where the remote keeps a blob.
    pub fn location(&self, digest: &Digest) -> Option<Location> {
        self.places.location(digest)
    }

    /// Returns when the known remote copy of a blob was stored.
    pub fn stored_ms(&self, digest: &Digest) -> Option<u64> {
        self.places.stored_ms(digest)
    }

    /// Forgets a wrong location, so that the next writer of the same bytes stores them again. Does
    /// nothing if another location is known by now.
    pub fn unlocate(&mut self, digest: &Digest, wrong: &Location) {
        if self.location(digest).as_ref() == Some(wrong) {
            self.places.unlocate(digest);
        }
    }

    /// Returns where the last known frame of a pack ends; 0 for an unknown pack.
    pub fn pack_end(&self, pack: &str) -> u64 {
        self.places.pack_end(pack)
    }

    /// Yields all registers, tombstones included, in path order.
    pub fn registers(&self) -> impl Iterator<Item = (TreePath, Register)> {
        self.registers.iter().map(|record| (path_of(record), self.unpack(record)))
    }

    /// Yields the registers after a path, tombstones included, in path order. A caller that cannot
    /// lock the namespace for long reads it in parts, passing the last path each time.
    pub fn registers_after(&self, path: &TreePath) -> impl Iterator<Item = (TreePath, Register)> {
        self.records_after(path.as_bytes()).map(|record| (path_of(record), self.unpack(record)))
    }

    /// Yields the stamp of the last change of each register.
    pub fn stamps(&self) -> impl Iterator<Item = Stamp> {
        self.registers.iter().map(PackedRecord::last_stamp)
    }

    /// Yields all known locations, in no order.
    pub fn locations(&self) -> impl Iterator<Item = (Digest, Location)> {
        self.locations_from(0).map(|(_, digest, location)| (digest, location))
    }

    /// Yields the known locations after a mark, starting with 0, each with its mark, so that they
    /// can be read in parts. A location that is learned meanwhile may be left out.
    pub fn locations_from(&self, mark: u32) -> impl Iterator<Item = (u32, Digest, Location)> {
        self.places.locations(mark)
    }

    /// Yields the attribute changes that wait for their content: path, stamp of the content, own
    /// stamp, attributes.
    pub fn early_attrs(&self) -> impl Iterator<Item = (&TreePath, Stamp, Stamp, &Attrs)> {
        self.early_attrs.iter().map(|(path, (of, stamp, attrs))| (path, *of, *stamp, attrs))
    }

    /// Takes over from the replaced fold when the content of directories changed on this node.
    pub fn take_times(&mut self, old: &mut Self) {
        self.moved = std::mem::take(&mut old.moved);
    }

    /// Counts the paths with an entry.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Counts the bytes of all registers, paths and tombstones included.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Counts the bytes of all extended attributes, names and values.
    pub fn xattr_bytes(&self) -> u64 {
        self.xattr_bytes
    }

    /// Counts the contents that files point to.
    pub fn contents_in_use(&self) -> u64 {
        self.places.in_use()
    }

    /// Counts the contents for which memory is taken.
    #[cfg(test)]
    pub fn contents_capacity(&self) -> usize {
        self.places.capacity()
    }

    /// Reports whether no path has an entry.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Yields the digests that files point to, each once.
    pub fn contents(&self) -> impl Iterator<Item = Digest> {
        self.places.used()
    }
}

#[cfg(test)]
mod tests;
