//! Files that only make sense together, and the order in which they are copied.
//!
//! On the mount what one process writes of a unit is its draft, and the marker publishes it. In a plain directory nothing
//! holds it back, so there the entry point comes last. A unit of which a complete version is there is left as
//! it is, whole: a mixture of two would be worse than either.
//!
//! Owns that order, and what is done with a unit as a whole.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use super::dirs::Dir;
use super::file::{Item, Put, Source, Standing, about, bytes_of, standing};
use super::pace::Weight;
use super::report::Left;
use super::trouble::{Doing as _, Done, Trouble};
use super::work::Worker;
use super::{Plan, Way};
use crate::namespace::{FileKind, Part};

/// How many members of a unit are opened before the first is copied: what a reader has opened is of one version.
const OPEN_MAX: usize = 48;
/// How often a unit is copied anew that was replaced meanwhile.
const ATTEMPTS: usize = 3;

/// A file of a unit.
#[derive(Clone, Debug)]
pub(super) struct Member {
    pub(super) item: Item,
    pub(super) is_entry: bool,
    pub(super) is_marker: bool,
}

/// A unit, as the source has it.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) members: Vec<Member>,
    /// What a complete one has at least one of.
    pub(super) needs_entry: bool,
    pub(super) needs_marker: bool,
    /// These are all of its files. Of one that is too large for that, some are copied as they come.
    pub(super) is_whole: bool,
}

impl Unit {
    /// Begins one with what the rule says that makes `part` a member.
    pub(super) fn new(plan: &Plan, part: &Part<'_>) -> Self {
        let rule = plan.profiles.unit_rule(&part.key);
        let needs_entry = rule.is_some_and(|rule| rule.entry.is_some());
        let needs_marker = rule.is_some_and(|rule| rule.marker.is_some());
        Self { members: Vec::new(), needs_entry, needs_marker, is_whole: true }
    }

    /// Reports whether a reader would take it for one: its writer has got as far as the marker.
    fn is_complete(&self) -> bool {
        !self.is_whole
            || (!self.needs_entry || self.members.iter().any(|member| member.is_entry))
                && (!self.needs_marker || self.members.iter().any(|member| member.is_marker))
    }

    /// Puts the members in the order in which they are written.
    ///
    /// To a mount: each marker publishes what was written before it. So where markers are not entry points (numba's data),
    /// all but one go first, when no entry point leads to them yet; then come the other files, the entry points, and the
    /// last marker. Where they are (Triton), each comes after all other files.
    fn arrange(&mut self, way: Way) {
        let first = |member: &Member| !member.is_entry && member.is_marker;
        let last = self.members.iter().rposition(first);
        let rank = |at: usize, member: &Member| match (way, member.is_entry, member.is_marker) {
            (Way::Import, false, true) if last == Some(at) => 4,
            (Way::Import, false, true) => 0,
            (_, false, false) => 1,
            (Way::Export, false, true) | (Way::Import, true, false) => 2,
            (Way::Export, true, _) | (Way::Import, true, true) => 3,
        };
        let members = std::mem::take(&mut self.members);
        let mut ranked: Vec<_> = members
            .into_iter()
            .enumerate()
            .map(|(at, member)| (rank(at, &member), member))
            .collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        self.members = ranked.into_iter().map(|(_, member)| member).collect();
    }
}

/// A member with what is known of it and of what is in its place.
#[derive(Debug)]
struct Seen {
    member: Member,
    about: Metadata,
    standing: Standing,
}

/// What became of a version that was to be exported.
#[derive(Debug)]
enum Version {
    Copied,
    /// The unit has another by now; its files, if they are others.
    Other(Option<Vec<Seen>>),
}

/// Names the file that trouble is about.
fn at(item: &Item) -> impl FnOnce(Trouble) -> (PathBuf, Trouble) {
    let from = item.from();
    move |trouble| (from, trouble)
}

impl Worker<'_> {
    /// Copies a unit, or says why not.
    pub(super) fn unit(&mut self, mut unit: Unit) {
        unit.arrange(self.plan.way);
        if self.plan.way == Way::Import && !unit.is_complete() {
            for member in &unit.members {
                self.tally.left_out(Left::Incomplete, &member.item.from());
            }
            return;
        }
        let mut seen = Vec::new();
        for member in unit.members {
            match self.look(&member.item) {
                Ok(Some((about, standing))) => seen.push(Seen { member, about, standing }),
                Ok(None) => {}
                Err(trouble) => return self.unit_failed(&member.item, &trouble, &[]),
            }
        }
        let differs = |seen: &Seen| seen.standing == Standing::Differs;
        if seen.iter().all(|seen| seen.standing == Standing::Same) {
            return self.tally.same(seen.len());
        }
        // A version with its entry point stays as it is, and so does one of which only some members were asked for.
        let mut entries = seen.iter().filter(|one| one.member.is_entry).peekable();
        let is_part = entries.peek().is_none();
        let is_there = entries.any(|one| one.standing != Standing::Missing);
        if !self.plan.overwrite && (is_there || (is_part && seen.iter().any(differs))) {
            return self.tally.kept(seen.len());
        }
        if self.plan.dry_run {
            return self.wrote(seen.iter().map(|seen| bytes_of(&seen.about)));
        }
        let bytes = seen.iter().map(|seen| bytes_of(&seen.about)).sum();
        let begun = self.pace.begin(Weight::of(seen.len(), bytes), || self.tally.has_ended());
        match self.plan.way {
            Way::Import => self.import_unit(&seen),
            Way::Export => self.export_unit(seen),
        }
        drop(begun);
    }

    fn import_unit(&mut self, seen: &[Seen]) {
        // What cannot be read keeps the whole unit out.
        for one in seen.iter().filter(|one| one.about.is_file()) {
            if let Err(trouble) = Source::open(&one.member.item.from()) {
                return self.unit_failed(&one.member.item, &trouble, &[]);
            }
        }
        let entries: Vec<_> =
            seen.iter().filter(|one| one.member.is_entry).map(|one| one.member.item.to()).collect();
        // Without its entry point no process reads the version that is replaced, and no other is mixed into it.
        let replaced = seen.iter().filter(|one| one.member.is_entry);
        for one in replaced.filter(|one| one.standing != Standing::Missing) {
            if let Err(error) = std::fs::remove_file(one.member.item.to()) {
                let trouble = Trouble::Io("remove what is there".into(), error);
                return self.unit_failed(&one.member.item, &trouble, &[]);
            }
        }
        let mut bytes = Vec::new();
        for (at, one) in seen.iter().enumerate() {
            let (item, first) = (&one.member.item, at == 0);
            // The draft is made of what is published when its first member is opened. If that is complete by now, it stays.
            let is_there = || entries.iter().any(|entry| entry.symlink_metadata().is_ok());
            let put = if first && one.member.is_entry { Put::New } else { Put::Member };
            let came = || first && put == Put::Member && is_there();
            let check = || if came() { Err(Trouble::Came) } else { Ok(()) };
            match self.member(item, &one.about, put, check) {
                Ok(wrote) => bytes.push(wrote),
                Err(Trouble::Came) if first => return self.tally.kept(seen.len()),
                Err(trouble) => return self.unit_failed(item, &trouble, &seen[..at]),
            }
        }
        self.wrote(bytes);
    }

    fn wrote(&self, files: impl IntoIterator<Item = u64>) {
        for bytes in files {
            self.tally.wrote(bytes);
        }
        self.tally.wrote_unit();
    }

    fn member(
        &mut self,
        item: &Item,
        about: &Metadata,
        put: Put,
        check: impl FnOnce() -> Done<()>,
    ) -> Done<u64> {
        item.dir.ensure()?;
        if about.is_symlink() {
            return self.writer.link(item, about, check).map(|()| 0);
        }
        self.writer.file(Source::open(&item.from())?, &item.to(), put, check)
    }

    /// Notes that a unit could not be copied because of one file, and takes away what was `written` of it.
    fn unit_failed(&self, item: &Item, trouble: &Trouble, written: &[Seen]) {
        for one in written {
            std::fs::remove_file(one.member.item.to()).ok();
        }
        self.tally.failed(&item.from(), trouble);
    }

    fn export_unit(&mut self, mut seen: Vec<Seen>) {
        let dir = Arc::clone(&seen[0].member.item.dir);
        for _ in 0..ATTEMPTS {
            match self.export_version(&seen) {
                Ok(Version::Copied) => return,
                Ok(Version::Other(Some(now))) => seen = now,
                Ok(Version::Other(None)) => {}
                Err((path, trouble)) => return self.tally.failed(&path, &trouble),
            }
        }
        let text = "it was replaced again and again while it was copied".to_owned();
        self.tally.failed(&dir.from, &Trouble::Said(text));
    }

    /// Copies one version of a unit, if it is the one whose files are known. Its entry points come last.
    fn export_version(&mut self, seen: &[Seen]) -> Result<Version, (PathBuf, Trouble)> {
        let (entries, others): (Vec<&Seen>, Vec<&Seen>) =
            seen.iter().partition(|one| one.member.is_entry);
        let open = |one: &&Seen| -> Result<Option<Source>, (PathBuf, Trouble)> {
            let item = &one.member.item;
            if one.about.is_symlink() {
                return Ok(None);
            }
            Source::open(&item.from()).map(Some).map_err(at(item))
        };
        // From here on this process is led to the members of this version.
        let opened_entries = entries.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        if let Some(now) = self.listed_now(seen)? {
            return Ok(Version::Other(Some(now)));
        }
        let early = others.len().min(OPEN_MAX);
        let opened = others[..early].iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let late = others[early..].iter().map(|_| None);
        // What stands there must not be taken for complete while it has members of two versions.
        let in_place = |one: &&&Seen| one.standing != Standing::Missing;
        for one in entries.iter().filter(in_place) {
            let removed = std::fs::remove_file(one.member.item.to());
            removed.doing("remove what is there").map_err(at(&one.member.item))?;
        }
        let mut bytes = Vec::new();
        for (one, source) in others.iter().zip(opened.into_iter().chain(late)) {
            bytes.push(self.export_member(one, source).map_err(at(&one.member.item))?);
        }
        let still = entries.iter().zip(&opened_entries).all(|(one, source)| {
            source.as_ref().is_none_or(|source| source.is_at(&one.member.item.from()))
        });
        if !still {
            return Ok(Version::Other(None));
        }
        for (one, source) in entries.iter().zip(opened_entries) {
            bytes.push(self.export_member(one, source).map_err(at(&one.member.item))?);
        }
        self.wrote(bytes);
        Ok(Version::Copied)
    }

    /// Lists a unit again if something has happened in its directories since it was found; `None` if it has the same files.
    fn listed_now(&self, seen: &[Seen]) -> Result<Option<Vec<Seen>>, (PathBuf, Trouble)> {
        let mut dirs: Vec<&Arc<Dir>> = Vec::new();
        for one in seen {
            let dir = &one.member.item.dir;
            if !dirs.iter().any(|known| Arc::ptr_eq(known, dir)) {
                dirs.push(dir);
            }
        }
        // Of a part that was chosen by its names no other files are taken.
        if !self.plan.globs.is_empty() || dirs.iter().all(|dir| dir.is_as_listed()) {
            return Ok(None);
        }
        let path = |item: &Item| item.dir.place.join(item.name.as_bytes()).ok();
        let Some(first) = path(&seen[0].member.item) else { return Ok(None) };
        let FileKind::Unit(known) = self.plan.profiles.classify(&first).kind else {
            return Ok(None);
        };
        let mut now = Vec::new();
        for dir in dirs {
            let fail = |error| (dir.from.clone(), Trouble::Io("list it".into(), error));
            for entry in dir.from.read_dir().map_err(fail)? {
                let item =
                    Item { dir: Arc::clone(dir), name: entry.map_err(fail)?.file_name().into() };
                let Some(path) = path(&item) else { continue };
                let FileKind::Unit(part) = self.plan.profiles.classify(&path).kind else {
                    continue;
                };
                if part.key != known.key || item.from().is_dir() {
                    continue;
                }
                let (is_entry, is_marker) = (part.is_entry, part.is_marker);
                let looked = self.look(&item).map_err(at(&item))?;
                if let Some((about, standing)) = looked {
                    let member = Member { item, is_entry, is_marker };
                    now.push(Seen { member, about, standing });
                }
            }
        }
        let has = |list: &[Seen], one: &Seen| {
            list.iter().any(|other| {
                let (a, b) = (&one.member.item, &other.member.item);
                a.name == b.name && Arc::ptr_eq(&a.dir, &b.dir)
            })
        };
        let same = now.len() == seen.len() && now.iter().all(|one| has(seen, one));
        Ok((!same).then_some(now))
    }

    fn export_member(&mut self, one: &Seen, source: Option<Source>) -> Done<u64> {
        let item = &one.member.item;
        match source {
            Some(source) => {
                item.dir.ensure()?;
                self.writer.file(source, &item.to(), Put::Replace, || Ok(()))
            }
            None => self.member(item, &one.about, Put::Replace, || Ok(())),
        }
    }

    /// Returns what a source name is and what is in its place; `None` if it is neither a file nor a link.
    pub(super) fn look(&self, item: &Item) -> Done<Option<(Metadata, Standing)>> {
        let from = item.from();
        let about = about(&from)?;
        if !about.is_file() && !about.is_symlink() {
            self.tally.left_out(Left::Special, &from);
            return Ok(None);
        }
        let standing = standing(&about, item)?;
        Ok(Some((about, standing)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::copy::report::Tally;
    use crate::name::TreePath;

    fn unit(names: &[(&str, bool, bool)]) -> Unit {
        let (here, tally) = (PathBuf::from("/"), Arc::new(Tally::default()));
        let about = here.metadata().expect("the root");
        let dir = Dir::new(here.clone(), here, TreePath::root(), about, None, tally);
        let dir = Arc::new(dir);
        let member = |(name, is_entry, is_marker): &(&str, bool, bool)| Member {
            item: Item { dir: Arc::clone(&dir), name: std::ffi::OsStr::new(name).into() },
            is_entry: *is_entry,
            is_marker: *is_marker,
        };
        let members = names.iter().map(member).collect();
        Unit { members, needs_entry: true, needs_marker: true, is_whole: true }
    }

    fn order(way: Way, names: &[(&str, bool, bool)]) -> String {
        let mut unit = unit(names);
        unit.arrange(way);
        let names = unit.members.iter().map(|member| member.item.name.to_string_lossy());
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn what_completes_a_unit_is_written_last() {
        let numba =
            [("nbi", true, false), ("1", false, true), ("2", false, true), ("3", false, true)];
        assert_eq!(
            order(Way::Import, &numba),
            "1 2 nbi 3",
            "no index is seen without all its data"
        );
        assert_eq!(order(Way::Export, &numba), "1 2 3 nbi");
        let triton = [
            ("grp1", true, true),
            ("ptx", false, false),
            ("grp2", true, true),
            ("so", false, false),
        ];
        for way in [Way::Import, Way::Export] {
            assert_eq!(order(way, &triton), "ptx so grp1 grp2");
        }
        let other = [("entry", true, false), ("mark", false, true), ("a", false, false)];
        assert_eq!(order(Way::Import, &other), "a entry mark");
        assert_eq!(order(Way::Export, &other), "a mark entry");
    }

    #[test]
    fn a_unit_without_its_entry_point_or_marker_is_not_complete() {
        assert!(unit(&[("nbi", true, false), ("1", false, true)]).is_complete());
        assert!(!unit(&[("nbi", true, false)]).is_complete());
        assert!(!unit(&[("1", false, true), ("2", false, true)]).is_complete());
        assert!(unit(&[("grp", true, true)]).is_complete());
        let part = Unit { is_whole: false, ..unit(&[("x", false, false)]) };
        assert!(part.is_complete(), "of one that is too large nothing is known");
        let bare = Unit { needs_entry: false, needs_marker: false, ..unit(&[("x", false, false)]) };
        assert!(bare.is_complete());
    }
}
