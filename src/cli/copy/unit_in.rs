//! A unit that is imported to a mount.
//!
//! Owns the moment from which it is visible: the close of the last marker. Must never let a marker follow
//! members of two versions, and never remove what is there before the source was read to its end.

use rustix::fs::OFlags;

use super::about::About;
use super::file::{Put, SourceFile, Standing};
use super::job::{Unit, UnitFile};
use super::trouble::{CopyTrouble, Doing as _, Done};
use super::unit::{SeenMember, UnitOutcome, UnitTrouble, at};
use super::work::Worker;

impl Worker<'_> {
    /// Copies one version of a unit, if it is still the one that was examined.
    pub(super) fn import_version(
        &mut self,
        seen: &[SeenMember],
        unit: &Unit,
    ) -> Result<UnitOutcome, UnitTrouble> {
        let is_entry = |one: &&SeenMember| one.member.is_entry;
        let replaces = seen.iter().filter(is_entry).any(|one| one.standing != Standing::Missing);
        // An unreadable member prevents the copy of the whole unit.
        for one in seen.iter().filter(|one| one.about.is_file()) {
            self.try_out(one, replaces).map_err(at(&one.member.item))?;
        }
        if replaces && let Some(now) = self.other_members(seen, unit)? {
            return Ok(UnitOutcome::Other(now));
        }
        // Without its entry point no process reads the replaced version, and it is not mixed with another.
        let replaced = seen.iter().filter(is_entry);
        for one in replaced.filter(|one| one.standing != Standing::Missing) {
            self.remove(one).map_err(at(&one.member.item))?;
        }
        let mut bytes = Vec::new();
        for (number, one) in seen.iter().enumerate() {
            if number > 0 && number + 1 == seen.len() {
                // Closing the last one publishes all members.
                match self.other_members(seen, unit) {
                    Ok(None) => {}
                    Ok(Some(now)) => {
                        return Ok(self.withdraw(&seen[..number], UnitOutcome::Other(now)));
                    }
                    Err(trouble) => return Err(self.withdraw(&seen[..number], trouble)),
                }
            }
            match self.import_member(seen, number) {
                Ok(wrote) => bytes.push(wrote),
                Err(CopyTrouble::Came) if number == 0 => {
                    self.tally.kept(seen.len());
                    return Ok(UnitOutcome::Done);
                }
                Err(CopyTrouble::Changed) => {
                    self.withdraw(&seen[..number], ());
                    let now = self.moved_on(seen, unit, true)?;
                    return Ok(UnitOutcome::Other(now.unwrap_or_default()));
                }
                Err(trouble) => {
                    return Err(self.withdraw(&seen[..number], at(&one.member.item)(trouble)));
                }
            }
        }
        if self.is_published(seen).map_err(at(&seen[0].member.item))? {
            self.wrote(bytes);
        }
        Ok(UnitOutcome::Done)
    }

    /// Returns the present members of the unit, if it has another version.
    fn other_members(
        &mut self,
        seen: &[SeenMember],
        unit: &Unit,
    ) -> Result<Option<Vec<UnitFile>>, UnitTrouble> {
        let is_changed = self.is_changed(seen)?;
        self.moved_on(seen, unit, is_changed)
    }

    /// Opens a member, and reads it to its end if something will be replaced.
    fn try_out(&mut self, one: &SeenMember, to_its_end: bool) -> Done<()> {
        let dir = self.source_dir(&one.member.item.dir)?;
        let mut source = SourceFile::open(dir.at(&one.member.item.name))?;
        if to_its_end { self.writer.try_out(&mut source) } else { Ok(()) }
    }

    fn remove(&mut self, one: &SeenMember) -> Done<()> {
        let dir = self.target_dir(&one.member.item.dir)?;
        dir.at(&one.member.item.name).remove().target("remove what is there")
    }

    fn import_member(&mut self, seen: &[SeenMember], number: usize) -> Done<u64> {
        let one = &seen[number];
        let put = if number == 0 && one.member.is_entry { Put::New } else { Put::Member };
        if number > 0 || put == Put::New {
            return self.member(one, None, put, || Ok(()));
        }
        // The draft starts from the published version when its first member is opened. If that
        // version is complete by now, it stays.
        let mut entries = Vec::new();
        for entry in seen.iter().filter(|one| one.member.is_entry) {
            let item = &entry.member.item;
            item.dir.ensure()?;
            entries.push((self.target_dir(&item.dir)?, &item.name));
        }
        self.member(one, None, put, || {
            let is_there = entries.iter().any(|(dir, name)| dir.at(name).about().is_ok());
            if is_there { Err(CopyTrouble::Came) } else { Ok(()) }
        })
    }

    /// Removes the written part of a draft, and passes on the reason.
    fn withdraw<T>(&mut self, written: &[SeenMember], why: T) -> T {
        for one in written {
            // What cannot be removed now belongs to no complete unit.
            self.remove(one).ok();
        }
        why
    }

    /// Reports whether the published unit is the one that was written, now that its draft is over.
    /// Another program may have published it since the draft began: then that version has stayed,
    /// and its files count as already there.
    fn is_published(&mut self, seen: &[SeenMember]) -> Done<bool> {
        let mut is_ours = true;
        for one in seen.iter().filter(|one| one.member.is_entry && one.about.is_file()) {
            let dir = self.target_dir(&one.member.item.dir)?;
            // The open leads this process to the published version.
            let flags = OFlags::RDONLY | OFlags::NONBLOCK;
            let Ok(file) = dir.at(&one.member.item.name).open(flags, 0) else { continue };
            let there = rustix::fs::fstat(&file).map_err(std::io::Error::from);
            let there = About::of(&there.target("look at what is there")?);
            is_ours &= there.is_version(&one.about);
        }
        if !is_ours {
            for one in seen {
                match self.look(&one.member.item)? {
                    Some((_, Standing::Same)) => self.tally.same(1),
                    _ => self.tally.kept(1),
                }
            }
        }
        Ok(is_ours)
    }
}
