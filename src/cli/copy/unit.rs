//! Copying files that only make sense together.
//!
//! On the mount the files that one process writes of a unit are its draft, and the marker publishes it. In a
//! plain directory nothing is held back, so there the entry point comes last. A unit with a complete version
//! in the target is left unchanged as a whole: a mixture of two versions would be worse than either.
//!
//! Owns how a unit is treated as a whole. If the source replaces a unit meanwhile, its copy starts again.

use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::Arc;

use super::Way;
use super::about::About;
use super::dirs::Dir;
use super::file::{Item, Put, SourceFile, Standing};
use super::job::{Unit, UnitFile};
use super::pace::UnitCost;
use super::report::Left;
use super::tree::DirNames;
use super::trouble::{CopyTrouble, Doing as _, Done, Side};
use super::work::Worker;
use crate::namespace::FileKind;

/// How many members of a unit are open at once: all files that a reader has open belong to one version.
pub(super) const OPEN_MAX: usize = 48;
/// How many times the copy of a unit starts if it is replaced meanwhile.
const ATTEMPTS: usize = 3;

/// A member, its attributes, and what the target has in its place.
#[derive(Debug)]
pub(super) struct SeenMember {
    pub(super) member: UnitFile,
    pub(super) about: About,
    pub(super) standing: Standing,
}

/// The outcome for a version of a unit.
#[derive(Debug)]
pub(super) enum UnitOutcome {
    /// It was copied, or must not be copied.
    Done,
    /// The source has another version now, with these members.
    Other(Vec<UnitFile>),
}

/// A failure of a unit, and the file that it concerns.
pub(super) type UnitTrouble = (PathBuf, CopyTrouble);

/// Adds the file that a failure concerns.
pub(super) fn at(item: &Item) -> impl FnOnce(CopyTrouble) -> UnitTrouble {
    let from = item.from();
    move |trouble| (from, trouble)
}

impl Worker<'_> {
    /// Copies a unit, or counts the reason not to.
    pub(super) fn unit(&mut self, mut unit: Unit) {
        let Some(dir) = unit.members.first().map(|member| Arc::clone(&member.item.dir)) else {
            return;
        };
        for _ in 0..ATTEMPTS {
            match self.try_unit(&mut unit) {
                Ok(UnitOutcome::Done) => return,
                Ok(UnitOutcome::Other(now)) => unit.members = now,
                Err((path, trouble)) => return self.tally.failed(self.plan.way, &path, &trouble),
            }
        }
        let text = "it was replaced repeatedly while it was copied".to_owned();
        self.tally.failed(self.plan.way, &dir.from(), &CopyTrouble::Said(text));
    }

    fn try_unit(&mut self, unit: &mut Unit) -> Result<UnitOutcome, UnitTrouble> {
        unit.arrange(self.plan.way);
        if self.plan.way == Way::Import && !unit.is_complete() {
            for member in &unit.members {
                self.tally.left_out(Left::Incomplete, &member.item.from());
            }
            return Ok(UnitOutcome::Done);
        }
        let mut seen = Vec::new();
        for member in &unit.members {
            if let Some((about, standing)) = self.look(&member.item).map_err(at(&member.item))? {
                seen.push(SeenMember { member: member.clone(), about, standing });
            }
        }
        let differs = |seen: &SeenMember| seen.standing == Standing::Differs;
        if seen.iter().all(|seen| seen.standing == Standing::Same) {
            self.tally.same(seen.len());
            return Ok(UnitOutcome::Done);
        }
        // A complete version in the target stays, and so does any version if only some members are
        // to be copied.
        let mut entries = seen.iter().filter(|one| one.member.is_entry).peekable();
        let is_part = entries.peek().is_none();
        let is_there = entries.any(|one| one.standing != Standing::Missing);
        if !self.plan.overwrite && (is_there || (is_part && seen.iter().any(differs))) {
            self.tally.kept(seen.len());
            return Ok(UnitOutcome::Done);
        }
        if self.plan.dry_run {
            self.wrote(seen.iter().map(|seen| seen.about.bytes()));
            return Ok(UnitOutcome::Done);
        }
        let bytes = seen.iter().map(|seen| seen.about.bytes()).sum();
        let begun = self.pace.begin(UnitCost::of(seen.len(), bytes), || self.tally.has_ended());
        let version = match self.plan.way {
            Way::Import => self.import_version(&seen, unit),
            Way::Export => self.export_version(&seen, unit),
        };
        drop(begun);
        version
    }

    pub(super) fn wrote(&self, files: impl IntoIterator<Item = u64>) {
        for bytes in files {
            self.tally.wrote(bytes);
        }
        self.tally.wrote_unit();
    }

    /// Copies a member. `source` is its file if it is already open.
    pub(super) fn member(
        &mut self,
        one: &SeenMember,
        source: Option<SourceFile>,
        put: Put,
        check: impl FnOnce() -> Done<()>,
    ) -> Done<u64> {
        let item = &one.member.item;
        item.dir.ensure()?;
        let (from, to) = (self.source_dir(&item.dir)?, self.target_dir(&item.dir)?);
        let (from, to) = (from.at(&item.name), to.at(&item.name));
        if one.about.is_link() {
            return self.writer.link(from, &one.about, to, put, check).map(|()| 0);
        }
        let source = match source {
            Some(source) => source,
            None => SourceFile::open(from)?,
        };
        if self.plan.way == Way::Import && !source.about.is_unchanged(&one.about) {
            return Err(CopyTrouble::Changed);
        }
        self.writer.file(source, to, put, check)
    }

    /// Returns the present members of a unit if it has changed: `is_changed` says whether a member
    /// has, and its directory may have further ones.
    pub(super) fn moved_on(
        &mut self,
        seen: &[SeenMember],
        unit: &Unit,
        is_changed: bool,
    ) -> Result<Option<Vec<UnitFile>>, UnitTrouble> {
        // A part that was chosen by its names, or because the whole is too large, has no other
        // files. A directory of many units changes with each of them, so it is listed again only
        // for a unit that itself has changed.
        let may_have_others = unit.is_whole && self.plan.globs.is_empty();
        let looks = may_have_others && (is_changed || !unit.is_named);
        let listed = if looks { self.listed_now(seen)? } else { None };
        let same = || seen.iter().map(|one| one.member.clone()).collect();
        Ok(listed.or_else(|| is_changed.then(same)))
    }

    /// Reports whether a member was changed, replaced or removed since it was examined.
    pub(super) fn is_changed(&mut self, seen: &[SeenMember]) -> Result<bool, UnitTrouble> {
        for one in seen {
            let item = &one.member.item;
            let dir = self.source_dir(&item.dir).map_err(at(item))?;
            match dir.at(&item.name).about() {
                Ok(now) if now.is_unchanged(&one.about) => {}
                Ok(_) => return Ok(true),
                Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
                Err(error) => return Err(error).source("look at it").map_err(at(item)),
            }
        }
        Ok(false)
    }

    /// Lists a unit again if its directories have changed since it was found; `None` if it has the same files.
    fn listed_now(&mut self, seen: &[SeenMember]) -> Result<Option<Vec<UnitFile>>, UnitTrouble> {
        let mut dirs: Vec<&Arc<Dir>> = Vec::new();
        for dir in seen.iter().map(|one| &one.member.item.dir) {
            // Usually the last one: members of one directory are adjacent.
            if !dirs.iter().rev().any(|known| Arc::ptr_eq(known, dir)) {
                dirs.push(dir);
            }
        }
        let mut is_as_listed = true;
        for dir in &dirs {
            let now = self.held.about(Side::Source, &dir.below);
            is_as_listed &= now.is_ok_and(|now| dir.is_as_listed(&now));
        }
        if is_as_listed {
            return Ok(None);
        }
        let Some(first) = seen.first().and_then(|one| one.member.item.place()) else {
            return Ok(None);
        };
        let FileKind::Unit(known) = self.plan.profiles.classify(&first).kind else {
            return Ok(None);
        };
        let mut now = Vec::new();
        for dir in dirs {
            let fail = |error| (dir.from(), CopyTrouble::Io(Side::Source, "list it".into(), error));
            let opened = self.trees.directory(Side::Source, &dir.below).map_err(fail)?;
            for name in DirNames::of(opened).map_err(fail)? {
                let (name, _) = name.map_err(fail)?;
                let item = Item { dir: Arc::clone(dir), name: name.into() };
                let Some(path) = item.place() else { continue };
                let FileKind::Unit(part) = self.plan.profiles.classify(&path).kind else {
                    continue;
                };
                if part.key == known.key && !self.is_directory(&item) {
                    let (is_entry, is_marker) = (part.is_entry, part.is_marker);
                    now.push(UnitFile { item, is_entry, is_marker });
                }
            }
        }
        let has = |one: &UnitFile| {
            seen.iter().any(|other| {
                let (a, b) = (&one.item, &other.member.item);
                a.name == b.name && Arc::ptr_eq(&a.dir, &b.dir)
            })
        };
        let same = now.len() == seen.len() && now.iter().all(has);
        Ok((!same).then_some(now))
    }

    fn is_directory(&mut self, item: &Item) -> bool {
        let dir = self.source_dir(&item.dir);
        dir.is_ok_and(|dir| dir.at(&item.name).about().is_ok_and(|about| about.is_dir()))
    }
}
