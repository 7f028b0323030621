//! Renames into a draft: what the kernel remembers of the old name becomes stale.
//!
//! Owns that step of a rename. Must never let the kernel lead another process to a file of a draft.

use tokio::sync::watch;

use crate::fs::filesystem::Filesystem;
use crate::fs::inode::{DirEntryKey, LiveId};
use crate::fs::names::Staling;

impl Filesystem {
    /// Returns the file that is about to be renamed into a unit, if all have closed it and its end
    /// is still to come. After that the rename costs the kernel one name, not all.
    pub(in crate::fs) fn lingers_before_unit(
        &self,
        from: &DirEntryKey,
        to: &DirEntryKey,
    ) -> Option<(LiveId, watch::Receiver<()>)> {
        let (lingering, path) = {
            let state = self.0.state.lock();
            let id = state.names.inode(state.names.bound(from)?)?.live()?;
            let live = state.lives.get(id)?;
            let lingers = live.version().is_some() && (live.is_ending() || state.is_idle(id));
            (lingers.then(|| (id, live.settling.subscribe()))?, state.names.path_of(to)?)
        };
        self.unit_of(&path).map(|_| lingering)
    }

    /// Keeps other processes away from a file that was renamed into a draft. The kernel moves what
    /// it remembers of the old name to the public one. So the file gets another inode.
    ///
    /// The kernel looks all names up again instead if the inode is in use, if something is
    /// published under the public name, or if other processes have editions of the unit. There an
    /// open may need its one retry to be led to a draft, or to leave an older version.
    pub(in crate::fs) fn part_from_public(&self, draft: &DirEntryKey, public: DirEntryKey) {
        let staling = {
            let mut state = self.0.state.lock();
            let path = state.names.path_of(&public);
            let is_published = path.is_none_or(|path| self.seen(&path).is_some());
            let edition = state.editions.of_dir(draft.0).and_then(|id| state.editions.get(id));
            let is_alone =
                edition.is_some_and(|own| state.editions.of_unit(&own.unit).count() == 1);
            if is_alone && !is_published {
                state.names.make_stale(draft, public.clone())
            } else {
                Staling::InUse
            }
        };
        let parted = match staling {
            Staling::Unknown => true,
            Staling::Stale(ino) => self.expire_attrs(ino),
            Staling::InUse => false,
        };
        self.doubt((!parted).then_some(public));
    }
}
