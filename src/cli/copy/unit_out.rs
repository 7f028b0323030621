//! A unit that is exported to a plain directory.
//!
//! Owns the order in which it is opened: the entry point first, which leads this process to the members
//! of one version. Must never leave an entry point in the target beside members of another version.

use super::file::{Put, SourceFile, Standing};
use super::job::Unit;
use super::trouble::{Doing as _, Done};
use super::unit::{OPEN_MAX, SeenMember, UnitOutcome, UnitTrouble, at};
use super::work::Worker;

impl Worker<'_> {
    /// Copies one version of a unit, if it is the one whose files are known. Its entry points come last.
    pub(super) fn export_version(
        &mut self,
        seen: &[SeenMember],
        unit: &Unit,
    ) -> Result<UnitOutcome, UnitTrouble> {
        let (entries, others): (Vec<&SeenMember>, Vec<&SeenMember>) =
            seen.iter().partition(|one| one.member.is_entry);
        // From here on this process is led to the members of this version.
        let mut opened_entries = self.open_some(&entries, OPEN_MAX)?;
        let is_other = |(one, source): (&&SeenMember, &Option<SourceFile>)| {
            source.as_ref().is_some_and(|source| !source.about.is_version(&one.about))
        };
        let is_changed = entries.iter().zip(&opened_entries).any(is_other);
        if let Some(now) = self.moved_on(seen, unit, is_changed)? {
            return Ok(UnitOutcome::Other(now));
        }
        let mut opened = self.open_some(&others, OPEN_MAX - entries.len().min(OPEN_MAX))?;
        // The target must not look complete while it has members of two versions.
        for one in entries.iter().filter(|one| one.standing != Standing::Missing) {
            let item = &one.member.item;
            let dir = self.target_dir(&item.dir).map_err(at(item))?;
            dir.at(&item.name).remove().target("remove what is there").map_err(at(item))?;
        }
        let mut bytes = Vec::new();
        for (number, one) in others.iter().enumerate() {
            let source = opened.get_mut(number).and_then(Option::take);
            bytes.push(self.export_member(one, source, one.standing)?);
        }
        for (number, one) in entries.iter().enumerate() {
            let source = opened_entries.get(number).and_then(Option::as_ref);
            if !self.is_still(one, source).map_err(at(&one.member.item))? {
                let members = seen.iter().map(|one| one.member.clone()).collect();
                return Ok(UnitOutcome::Other(members));
            }
        }
        for (number, one) in entries.iter().enumerate() {
            let source = opened_entries.get_mut(number).and_then(Option::take);
            bytes.push(self.export_member(one, source, Standing::Missing)?);
        }
        self.wrote(bytes);
        Ok(UnitOutcome::Done)
    }

    /// Opens the first of these files; `None` stands for a link.
    fn open_some(
        &mut self,
        files: &[&SeenMember],
        most: usize,
    ) -> Result<Vec<Option<SourceFile>>, UnitTrouble> {
        let mut opened = Vec::new();
        for one in files.iter().take(most) {
            opened.push(self.open_member(one).map_err(at(&one.member.item))?);
        }
        Ok(opened)
    }

    fn open_member(&mut self, one: &SeenMember) -> Done<Option<SourceFile>> {
        if one.about.is_link() {
            return Ok(None);
        }
        let dir = self.source_dir(&one.member.item.dir)?;
        SourceFile::open(dir.at(&one.member.item.name)).map(Some)
    }

    /// Reports whether the name of an entry point leads to the version that was opened, or examined.
    fn is_still(&mut self, one: &SeenMember, source: Option<&SourceFile>) -> Done<bool> {
        let dir = self.source_dir(&one.member.item.dir)?;
        let from = dir.at(&one.member.item.name);
        Ok(match source {
            Some(source) => source.is_at(from),
            None => from.about().is_ok_and(|now| now.is_version(&one.about)),
        })
    }

    fn export_member(
        &mut self,
        one: &SeenMember,
        source: Option<SourceFile>,
        standing: Standing,
    ) -> Result<u64, UnitTrouble> {
        let is_new = standing == Standing::Missing && !self.plan.overwrite;
        let put = if is_new { Put::New } else { Put::Replace };
        self.member(one, source, put, || Ok(())).map_err(at(&one.member.item))
    }
}
