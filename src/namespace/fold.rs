//! The fold: from a set of changes to the namespace.
//!
//! Same set, same result, in any order of arrival and however often each arrives. Per path the
//! content change with the highest stamp wins; attribute changes apply to the content they name.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound;

use super::change::{Change, Op};
use super::entry::{Attrs, Entry, Kind, Time};
use super::location::Location;
use crate::digest::Digest;
use crate::name::TreePath;
use crate::stamp::Stamp;

/// What the fold keeps of one path.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Register {
    /// The stamp of the winning content change.
    pub stamp: Stamp,
    /// The stamp of the winning attribute change of this content, if there was one.
    pub attr_stamp: Option<Stamp>,
    /// What it put; `None` is a tombstone.
    pub entry: Option<Entry>,
}

impl Register {
    /// Returns the time of the last change of anything, which programs see as `st_ctime`.
    pub fn changed_ms(&self) -> u64 {
        self.attr_stamp.map_or(self.stamp.ms, |attr| attr.ms.max(self.stamp.ms))
    }
}

/// What a change did when it was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// The path now points to something else, or to nothing.
    Content,
    /// Only attributes moved.
    Attributes,
    /// An older change, or one that was known.
    Nothing,
}

/// A name in a directory, as [`Fold::children`] yields it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Child<'a> {
    /// The name.
    pub name: &'a [u8],
    /// Its register; `None` for a directory that exists only because something lies below it.
    pub register: Option<&'a Register>,
}

/// The namespace, and where the remote keeps the bytes it speaks of.
#[derive(Debug, Default)]
pub struct Fold {
    registers: BTreeMap<TreePath, Register>,
    /// Attribute changes that came before the content they name.
    early_attrs: HashMap<TreePath, (Stamp, Stamp, Attrs)>,
    locations: HashMap<Digest, Location>,
    /// Names of each group of hard links.
    links: HashMap<Stamp, BTreeSet<TreePath>>,
    /// When the content of a directory last moved on this node. Never shared: CPython's importer
    /// needs the move itself, not the same value everywhere.
    moved: HashMap<TreePath, Time>,
    /// How many directories each directory holds that were made as such.
    subdirectories: HashMap<TreePath, u32>,
    live: usize,
    /// How many files point to each content, by the first bytes of its digest.
    uses: HashMap<u64, u32>,
}

/// Returns what stands for a digest where a rare confusion of two is harmless.
fn short(digest: &Digest) -> u64 {
    u64::from_le_bytes(digest.as_bytes()[..8].try_into().expect("eight of 32 bytes"))
}

fn content_of(register: Option<&Register>) -> Option<u64> {
    let (digest, _) = register?.entry.as_ref()?.content()?;
    Some(short(&digest))
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
        if let Some(old) = self.registers.get(path)
            && old.stamp >= stamp
        {
            return Applied::Nothing;
        }
        let register = Register { stamp, attr_stamp: None, entry: entry.cloned() };
        self.replace(path, register);
        if let Some((of, attr_stamp, attrs)) = self.early_attrs.get(path)
            && *of <= stamp
        {
            if *of == stamp {
                let (attr_stamp, attrs) = (*attr_stamp, attrs.clone());
                self.set_attrs(path, attr_stamp, attrs);
            }
            self.early_attrs.remove(path);
        }
        if let Some(parent) = path.parent() {
            self.moved.insert(parent, now);
        }
        Applied::Content
    }

    fn apply_attrs(&mut self, path: &TreePath, of: Stamp, stamp: Stamp, attrs: &Attrs) -> Applied {
        let current = self.registers.get(path);
        match current.map(|register| (register.stamp, register.attr_stamp, &register.entry)) {
            Some((content, attr, Some(_))) if content == of => {
                if attr.is_some_and(|known| known >= stamp) {
                    return Applied::Nothing;
                }
                self.set_attrs(path, stamp, attrs.clone());
                Applied::Attributes
            }
            Some((content, _, _)) if content >= of => Applied::Nothing,
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

    fn set_attrs(&mut self, path: &TreePath, stamp: Stamp, attrs: Attrs) {
        if let Some(register) = self.registers.get_mut(path)
            && let Some(entry) = &mut register.entry
        {
            entry.attrs = attrs;
            register.attr_stamp = Some(stamp);
        }
    }

    /// Puts a register in place and keeps the counts and link groups true.
    fn replace(&mut self, path: &TreePath, register: Register) {
        let link = register.entry.as_ref().and_then(|entry| entry.link);
        self.live += usize::from(register.entry.is_some());
        if let Some(content) = content_of(Some(&register)) {
            *self.uses.entry(content).or_default() += 1;
        }
        if register.entry.as_ref().is_some_and(Entry::is_directory) {
            self.count_subdirectory(path, true);
        }
        let old = self.registers.insert(path.clone(), register);
        self.let_go(path, old);
        if let Some(group) = link {
            self.links.entry(group).or_default().insert(path.clone());
        }
    }

    /// Keeps the counts and link groups true after a register went out of place.
    fn let_go(&mut self, path: &TreePath, old: Option<Register>) {
        if let Some(content) = content_of(old.as_ref())
            && let Some(uses) = self.uses.get_mut(&content)
        {
            *uses -= 1;
            if *uses == 0 {
                self.uses.remove(&content);
            }
        }
        if let Some(old) = old.and_then(|old| old.entry) {
            self.live -= 1;
            if old.is_directory() {
                self.count_subdirectory(path, false);
            }
            if let Some(group) = old.link
                && let Some(names) = self.links.get_mut(&group)
            {
                names.remove(path);
                if names.is_empty() {
                    self.links.remove(&group);
                }
            }
        }
    }

    /// Puts a register back as it was before changes that nobody else will ever see; `None` for a
    /// path of which nothing was known.
    pub fn reset(&mut self, path: &TreePath, register: Option<Register>) {
        if let Some(register) = register {
            self.replace(path, register);
        } else {
            let old = self.registers.remove(path);
            self.let_go(path, old);
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

    /// Counts the directories in a directory that were made as such.
    pub fn subdirectories(&self, dir: &TreePath) -> u32 {
        self.subdirectories.get(dir).copied().unwrap_or(0)
    }

    /// Reports whether any change of a path is known, be it one that waits for its content.
    pub fn knows(&self, path: &TreePath) -> bool {
        self.registers.contains_key(path) || self.early_attrs.contains_key(path)
    }

    /// Reports whether a file points to this content; rarely true although none does.
    pub fn uses(&self, digest: &Digest) -> bool {
        self.uses.contains_key(&short(digest))
    }

    /// Puts back a register that an index kept; the newer one stays if there is one.
    pub fn restore(&mut self, path: &TreePath, register: Register) {
        if self.registers.get(path).is_none_or(|known| {
            (known.stamp, known.attr_stamp) < (register.stamp, register.attr_stamp)
        }) {
            self.replace(path, register);
        }
    }

    /// Returns the register of a path, tombstones included.
    pub fn register(&self, path: &TreePath) -> Option<&Register> {
        self.registers.get(path)
    }

    /// Returns what a path points to, if it is visible: it has an entry, and no file stands in the
    /// place of a directory above it.
    ///
    /// A directory that was never made, or was removed by one node while another put something into
    /// it, is not found here; [`Fold::is_directory`] knows it.
    pub fn entry(&self, path: &TreePath) -> Option<&Entry> {
        let entry = self.registers.get(path)?.entry.as_ref()?;
        self.reachable(path).then_some(entry)
    }

    /// Reports whether no ancestor of `path` is something else than a directory.
    fn reachable(&self, path: &TreePath) -> bool {
        let mut above = path.parent();
        while let Some(dir) = above {
            let hidden = self.registers.get(&dir).and_then(|r| r.entry.as_ref());
            if hidden.is_some_and(|entry| !entry.is_directory()) {
                return false;
            }
            above = dir.parent();
        }
        true
    }

    /// Reports whether a path is a directory: made as one, or implied by something below it.
    pub fn is_directory(&self, path: &TreePath) -> bool {
        if path.is_root() {
            return true;
        }
        match self.registers.get(path).and_then(|register| register.entry.as_ref()) {
            Some(entry) => entry.is_directory() && self.reachable(path),
            None => self.has_descendants(path) && self.reachable(path),
        }
    }

    /// Reports whether anything lies below a path.
    pub fn has_descendants(&self, path: &TreePath) -> bool {
        self.below(path).any(|(_, register)| register.entry.is_some())
    }

    /// Yields every register below a path, tombstones included, in path order.
    pub fn below(&self, dir: &TreePath) -> impl Iterator<Item = (&TreePath, &Register)> {
        self.registers
            .range((Bound::Excluded(dir.clone()), Bound::Unbounded))
            .take_while(move |(path, _)| path.is_below(dir))
    }

    /// Returns the names in a directory, in byte order, without looking at what lies deeper.
    pub fn children(&self, dir: &TreePath) -> Vec<Child<'_>> {
        let mut found: Vec<Child<'_>> = Vec::new();
        let mut from = Bound::Excluded(dir.as_bytes().to_vec());
        loop {
            let range = (from.as_ref().map(Vec::as_slice), Bound::Unbounded);
            let Some((path, register)) = self.registers.range::<[u8], _>(range).next() else {
                return found;
            };
            let Some(rest) = path.below(dir) else { return found };
            let Some(name) = rest.split(|b| *b == 0).next() else { return found };
            if name.len() == rest.len() {
                if register.entry.is_some() {
                    found.push(Child { name, register: Some(register) });
                }
                let mut next = path.as_bytes().to_vec();
                if register.entry.is_some() {
                    // Its descendants, if any, say nothing new.
                    next.push(1);
                    from = Bound::Included(next);
                } else {
                    from = Bound::Excluded(next);
                }
                continue;
            }
            // Something below a directory that has no entry of its own.
            let mut next =
                path.as_bytes()[..path.as_bytes().len() - rest.len() + name.len()].to_vec();
            if register.entry.is_some() {
                found.push(Child { name, register: None });
                next.push(1);
                from = Bound::Included(next);
            } else {
                from = Bound::Excluded(path.as_bytes().to_vec());
            }
        }
    }

    /// Returns the names of the hard links of a group.
    pub fn links(&self, group: Stamp) -> impl Iterator<Item = &TreePath> {
        self.links.get(&group).into_iter().flatten()
    }

    /// Returns when the content of a directory last moved on this node, if it did since the start.
    pub fn moved(&self, dir: &TreePath) -> Option<Time> {
        self.moved.get(dir).copied()
    }

    /// Notes that the content of a directory moved in a way that is not a change (a name that is
    /// not yet published).
    pub fn touch_directory(&mut self, dir: &TreePath, now: Time) {
        self.moved.insert(dir.clone(), now);
    }

    /// Learns where the remote keeps a blob; the youngest location wins. Returns whether it was news.
    pub fn locate(&mut self, digest: Digest, location: Location) -> bool {
        match self.locations.get_mut(&digest) {
            Some(known) if known.stored_ms >= location.stored_ms => false,
            Some(known) => {
                *known = location;
                true
            }
            None => {
                self.locations.insert(digest, location);
                true
            }
        }
    }

    /// Returns where the remote keeps a blob.
    pub fn location(&self, digest: &Digest) -> Option<&Location> {
        self.locations.get(digest)
    }

    /// Forgets a location that proved wrong, so that the next writer of the same bytes stores them
    /// again. Does nothing if another location is known by now.
    pub fn unlocate(&mut self, digest: &Digest, wrong: &Location) {
        if self.locations.get(digest) == Some(wrong) {
            self.locations.remove(digest);
        }
    }

    /// Yields all registers, tombstones included.
    pub fn registers(&self) -> impl Iterator<Item = (&TreePath, &Register)> {
        self.registers.iter()
    }

    /// Yields all known locations.
    pub fn locations(&self) -> impl Iterator<Item = (&Digest, &Location)> {
        self.locations.iter()
    }

    /// Counts the paths that point to something.
    pub fn len(&self) -> usize {
        self.live
    }

    /// Reports whether no path points to anything.
    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Returns the digests that files point to.
    pub fn contents(&self) -> impl Iterator<Item = Digest> {
        self.registers.values().filter_map(|register| match register.entry.as_ref()?.kind {
            Kind::File { digest, .. } => Some(digest),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests;
