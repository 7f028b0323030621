//! The work of a copy, in pieces for one thread each.
//!
//! Owns the order in which the members of a unit are written. Must never copy anything itself.

use super::file::Item;
use super::{CopyPlan, Way};
use crate::namespace::Part;

/// A piece of work for one thread.
#[derive(Debug)]
pub(super) enum Job {
    /// Independent files.
    Files(Vec<Item>),
    /// Files that only make sense together.
    Unit(Unit),
}

/// A file of a unit.
#[derive(Clone, Debug)]
pub(super) struct UnitFile {
    pub(super) item: Item,
    pub(super) is_entry: bool,
    pub(super) is_marker: bool,
}

/// A unit, as found in the source.
#[derive(Debug)]
pub(super) struct Unit {
    pub(super) members: Vec<UnitFile>,
    /// Whether a complete one has at least one entry point, and at least one marker.
    pub(super) needs_entry: bool,
    pub(super) needs_marker: bool,
    /// `members` has all of its files. A unit that is too large is copied in parts.
    pub(super) is_whole: bool,
    /// Its directory has several units, distinguished by their names.
    pub(super) is_named: bool,
}

impl Unit {
    /// Creates an empty unit by the rule that makes `part` a member.
    pub(super) fn new(plan: &CopyPlan, part: &Part<'_>) -> Self {
        let rule = plan.profiles.unit_rule(&part.key);
        let needs_entry = rule.is_some_and(|rule| rule.entry.is_some());
        let needs_marker = rule.is_some_and(|rule| rule.marker.is_some());
        let (is_whole, is_named) = (true, false);
        Self { members: Vec::new(), needs_entry, needs_marker, is_whole, is_named }
    }

    /// Reports whether a reader would use it: its entry point and its marker exist.
    pub(super) fn is_complete(&self) -> bool {
        !self.is_whole
            || (!self.needs_entry || self.members.iter().any(|member| member.is_entry))
                && (!self.needs_marker || self.members.iter().any(|member| member.is_marker))
    }

    /// Sorts the members into the order in which they are written.
    ///
    /// To a mount: each marker publishes what was written before it. If markers are not entry
    /// points (numba's data), all but one go first, while no entry point refers to them; then come
    /// the other files, the entry points, and the last marker. If markers are entry points
    /// (Triton), each comes after all other files.
    pub(super) fn arrange(&mut self, way: Way) {
        let first = |member: &UnitFile| !member.is_entry && member.is_marker;
        let last = self.members.iter().rposition(first);
        let rank = |at: usize, member: &UnitFile| match (way, member.is_entry, member.is_marker) {
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

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::super::about::About;
    use super::super::dirs::{Dir, Ground};
    use super::super::report::CopyTally;
    use super::super::tree::Trees;
    use super::*;
    use crate::name::TreePath;

    fn unit(names: &[(&str, bool, bool)]) -> Unit {
        let (way, root) = (Way::Export, PathBuf::from("/proc"));
        let about = About::of(&rustix::fs::stat(&root).expect("the root"));
        let trees = Trees::open(way, &root, &PathBuf::from("/dev"), about.id.device);
        let trees = Arc::new(trees.expect("the trees"));
        let ground = Ground { way, trees, tally: Arc::new(CopyTally::default()) };
        let dir = Dir::new(Arc::new(ground), PathBuf::new(), TreePath::root(), about, None);
        let dir = Arc::new(dir);
        let member = |(name, is_entry, is_marker): &(&str, bool, bool)| UnitFile {
            item: Item { dir: Arc::clone(&dir), name: std::ffi::OsStr::new(name).into() },
            is_entry: *is_entry,
            is_marker: *is_marker,
        };
        let members = names.iter().map(member).collect();
        let (needs_entry, needs_marker, is_whole, is_named) = (true, true, true, false);
        Unit { members, needs_entry, needs_marker, is_whole, is_named }
    }

    fn order(way: Way, names: &[(&str, bool, bool)]) -> String {
        let mut unit = unit(names);
        unit.arrange(way);
        let names = unit.members.iter().map(|member| member.item.name.to_string_lossy());
        names.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn markers_are_written_last() {
        let numba =
            [("nbi", true, false), ("1", false, true), ("2", false, true), ("3", false, true)];
        assert_eq!(
            order(Way::Import, &numba),
            "1 2 nbi 3",
            "the index is visible only with all its data"
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
        assert!(part.is_complete(), "a unit that is too large counts as complete");
        let bare = Unit { needs_entry: false, needs_marker: false, ..unit(&[("x", false, false)]) };
        assert!(bare.is_complete());
    }
}
