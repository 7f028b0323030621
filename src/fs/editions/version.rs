//! Versions of a unit: its members at one moment.
//!
//! Owns how they are read. Must never list more than [`MEMBERS_MAX`] of them.

use crate::error::{Error, Kind, Result};
use crate::name::TreePath;
use crate::namespace::{Entry, FileKind, Fold, Part, Profiles, Register, UnitKey};
use crate::stamp::Stamp;
use crate::sync::Ledger;

/// The most members of a unit. The files of a larger unit are ordinary files.
pub(in crate::fs) const MEMBERS_MAX: usize = 4096;
/// The most names that are read to find the members. Removed names stay in the list for a while, so
/// this is larger.
const READ_MAX: usize = 65_536;
/// How many names of a directory are read at a time. Units with a stem are small, and a process may
/// have many.
const READ_AT_ONCE: usize = 32;

/// The name of a unit.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(in crate::fs) struct UnitName {
    rule: u16,
    dir_bytes: u32,
    prefix: Box<[u8]>,
}

impl UnitName {
    pub(in crate::fs) fn of(key: &UnitKey<'_>) -> Self {
        Self { rule: key.rule, dir_bytes: key.dir_bytes, prefix: key.prefix.into() }
    }

    #[cfg(test)]
    pub(in crate::fs) fn for_tests() -> Self {
        Self { rule: 0, dir_bytes: 0, prefix: Box::default() }
    }

    fn is(&self, key: &UnitKey<'_>) -> bool {
        self.rule == key.rule && self.dir_bytes == key.dir_bytes && *self.prefix == *key.prefix
    }

    /// Returns the directory that its names are relative to.
    pub(in crate::fs) fn dir(&self) -> TreePath {
        TreePath::from_bytes(&self.prefix[..self.dir_bytes as usize])
            .expect("a path cut at a separator is a path")
    }

    /// Returns the common beginning of all members' names; empty where the unit is a directory.
    fn stem(&self) -> &[u8] {
        let rest = &self.prefix[self.dir_bytes as usize..];
        rest.strip_prefix(&[0]).unwrap_or(rest)
    }

    /// Returns which part of this unit a path is, if it belongs to the unit.
    pub(in crate::fs) fn part<'p>(
        &self,
        profiles: &Profiles,
        path: &'p TreePath,
    ) -> Option<Part<'p>> {
        part_of(profiles, path).filter(|part| self.is(&part.key))
    }
}

/// Returns which part of which unit a path is, if it belongs to one.
pub(in crate::fs) fn part_of<'p>(profiles: &Profiles, path: &'p TreePath) -> Option<Part<'p>> {
    match profiles.classify(path).kind {
        FileKind::Unit(part) => Some(part),
        _ => None,
    }
}

/// One member of a version.
#[derive(Clone, Debug)]
pub(in crate::fs) struct Member {
    pub(in crate::fs) path: TreePath,
    pub(in crate::fs) entry: Entry,
    pub(in crate::fs) stamp: Stamp,
}

/// The members of a unit at one moment.
#[derive(Clone, Debug, Default)]
pub(in crate::fs) struct Version {
    /// In the order of their paths.
    pub(in crate::fs) members: Vec<Member>,
    /// The stamp of the put of the entry points; `None` if there are none.
    pub(in crate::fs) mark: Option<Stamp>,
    /// Members whose bytes are lost or past their age. Until they are replaced or removed, the rest
    /// is not a unit.
    pub(in crate::fs) broken: Vec<Member>,
    /// A member was removed after the put of the entry points.
    pub(in crate::fs) is_cut: bool,
}

impl Version {
    /// Returns the version of a draft that was not published. It equals no other version.
    pub(in crate::fs) fn lost() -> Self {
        Self { mark: Some(Stamp::default()), ..Self::default() }
    }

    /// Adds a member, broken or not.
    fn add(&mut self, member: Member, part: &Part<'_>, broken: bool) -> Result<()> {
        if self.counts_for() >= MEMBERS_MAX {
            let op = format!("a unit has more than {MEMBERS_MAX} files");
            return Err(Error::new(Kind::Invalid, op));
        }
        if broken {
            self.broken.push(member);
            return Ok(());
        }
        if part.is_entry {
            self.mark = self.mark.max(Some(member.stamp));
        }
        self.members.push(member);
        Ok(())
    }

    /// Reports whether the rest of the members is no unit.
    pub(in crate::fs) fn is_broken(&self) -> bool {
        self.is_cut || !self.broken.is_empty()
    }

    /// Returns how many members are listed.
    pub(in crate::fs) fn counts_for(&self) -> usize {
        self.members.len() + self.broken.len()
    }

    /// Returns the member at a path.
    pub(in crate::fs) fn member(&self, path: &TreePath) -> Option<&Member> {
        let at = self.members.binary_search_by(|member| member.path.cmp(path)).ok()?;
        self.members.get(at)
    }

    /// Reports whether a path is a member.
    pub(in crate::fs) fn has(&self, path: &TreePath) -> bool {
        self.member(path).is_some()
    }

    /// Reports whether a path is a directory with members below it.
    pub(in crate::fs) fn has_below(&self, path: &TreePath) -> bool {
        let next = self.members.partition_point(|member| member.path <= *path);
        self.members.get(next).is_some_and(|member| member.path.is_below(path))
    }

    /// Returns the stamp of the member at a path.
    pub(in crate::fs) fn stamp_of(&self, path: &TreePath) -> Option<Stamp> {
        self.member(path).map(|member| member.stamp)
    }

    /// Reports whether both have the same members, put by the same changes.
    pub(in crate::fs) fn is<'v>(&'v self, other: &'v Self) -> bool {
        let puts = |version: &'v Self| version.members.iter().map(|m| (&m.path, m.stamp));
        self.mark == other.mark && puts(self).eq(puts(other))
    }
}

/// Reads the current version of a unit. Returns `Invalid` when it has too many members.
pub(in crate::fs) fn current(
    ledger: &Ledger,
    profiles: &Profiles,
    unit: &UnitName,
) -> Result<Version> {
    ledger.read(|fold| {
        let mut version = Version::default();
        let (mut read, mut removed) = (0, None);
        let mut add = |path: TreePath, register: Register| {
            read += 1;
            if read > READ_MAX {
                let op = format!("the directory of a unit has more than {READ_MAX} names");
                return Err(Error::new(Kind::Invalid, op));
            }
            let changed_ms = register.changed_ms();
            let (entry, stamp) = (register.entry, register.stamp);
            if entry.as_ref().is_some_and(Entry::is_directory) {
                return Ok(());
            }
            let at = path.clone();
            let Some(part) = unit.part(profiles, &at) else { return Ok(()) };
            let Some(entry) = entry else {
                removed = removed.max(Some(stamp));
                return Ok(());
            };
            let broken = ledger.shown(fold, &path, &entry, Some(changed_ms)).is_none();
            version.add(Member { path, entry, stamp }, &part, broken)
        };
        let (dir, stem) = (unit.dir(), unit.stem());
        if stem.is_empty() {
            fold.below(&dir).try_for_each(|(path, register)| add(path, register))?;
        } else {
            with_stem(fold, &dir, stem, &mut add)?;
        }
        // Members that a version has removed itself have its stamp.
        version.is_cut = version.mark.is_some() && removed > version.mark;
        Ok(version)
    })
}

/// Calls `add` with the entries of a directory whose names begin with a stem.
fn with_stem(
    fold: &Fold,
    dir: &TreePath,
    stem: &[u8],
    add: &mut impl FnMut(TreePath, Register) -> Result<()>,
) -> Result<()> {
    let mut last: Box<[u8]> = stem.into();
    loop {
        let part = fold.children_after(dir, Some(&last), READ_AT_ONCE);
        let more = part.len() == READ_AT_ONCE;
        for child in part {
            if !child.name.starts_with(stem) {
                return Ok(());
            }
            if let (Some(register), Ok(path)) = (child.register, dir.join(&child.name)) {
                add(path, register)?;
            }
            last = child.name;
        }
        if !more {
            return Ok(());
        }
    }
}
