//! Beginning a live file: what it begins from, and which inode it gets.
//!
//! Owns the way from a decision to a live file: room, a staging file, a copy of the old content,
//! and the second decision under the lock.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use hearthfs_mount::{Errno, Ino, Opened, Reply};

use super::decide::OpenPlan;
use super::filesystem::Filesystem;
use super::inode::{DirEntryKey, InodeKind, LiveId, Published, Source};
use super::live::{
    Baseline, BeginsAs, Lineage, Live, Mark, Start, UNTOUCHED, copy_bytes, set_mtime,
};
use super::seen::Seen;
use super::state::{State, may_stand_aside};
use super::wish::Wish;
use crate::digest::Digest;
use crate::error::{Error, Kind};
use crate::local::StagedPath;
use crate::namespace::{Attrs, Entry};
use crate::sync::Demand;

/// What is copied into a live file before it is written to.
#[derive(Debug, Clone)]
pub(super) enum Copied {
    /// A blob.
    Blob(Digest, u64),
    /// The file that an inode without a name has open.
    File(Arc<Source>),
}

/// What a live file begins from.
#[derive(Debug, Clone)]
pub(super) struct BeginBase {
    /// The name under which it will be published; `None` if it will not be.
    pub(super) spot: Option<DirEntryKey>,
    /// What the name has now.
    pub(super) published: Option<Published>,
    pub(super) attrs: Attrs,
    pub(super) copy: Option<Copied>,
}

impl BeginBase {
    /// Reports whether both describe the same beginning.
    pub(super) fn is(&self, other: &Self) -> bool {
        let stamp = |base: &Self| base.published.as_ref().map(|published| published.stamp);
        let kind = |base: &Self| base.published.as_ref().map(|p| p.entry.kind.clone());
        self.spot == other.spot && stamp(self) == stamp(other) && kind(self) == kind(other)
    }
}

/// The inode of a live file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LiveOn {
    /// The inode that was reserved for it.
    Reserved(Ino),
    /// A new inode.
    Fresh,
}

impl Filesystem {
    /// Reports whether a new writer may start: there must be room on the disk and in the backlog.
    pub(super) fn has_room(&self) -> bool {
        self.0.rooms.ledger.room().is_open(Demand::Begin)
    }

    /// Waits for room.
    pub(super) async fn wait_for_room(&self) -> Reply<()> {
        let waited = self.0.rooms.ledger.room().wait(Demand::Begin).await;
        waited.map_err(|error| {
            tracing::debug!(error = error.chain(), "a file could not be begun");
            super::errno::of(error.kind())
        })
    }

    /// Finds what an open begins from when it begins a live file.
    pub(super) fn base_of(
        &self,
        state: &State,
        ino: Ino,
        wish: &Wish,
        plan: OpenPlan,
    ) -> Reply<BeginBase> {
        let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
        let spot = inode.place().or(inode.last.as_ref()).cloned().ok_or(Errno::ESTALE)?;
        let seen = state.names.path_of(&spot).and_then(|path| self.seen(&path));
        // A descriptor's file is not the one that another node has since put under its name.
        let live = inode.live().and_then(|id| state.lives.get(id));
        let beside = live.is_some_and(|live| seen.is_some() && !live.is_next_of(seen.as_ref()));
        let seen = seen.map(Seen::published);
        let truncate = wish.flags.truncate;
        let own = match &inode.node {
            InodeKind::Reserved(told) | InodeKind::Entry(told) => Some(told.clone()),
            _ => None,
        };
        let (spot, published) = match (plan, seen) {
            (OpenPlan::Aside { named: false }, _) => (None, own),
            _ if beside => (Some(spot), None),
            (_, Some(seen)) => {
                seen.entry.content().ok_or(Errno::ENOENT)?;
                if own.is_none_or(|told| !told.is(&seen.entry, seen.stamp)) {
                    // The kernel has checked the rights of an older version than the current one.
                    self.permits(&wish.caller, &seen.entry.attrs, wish.wants())?;
                }
                (Some(spot), Some(seen))
            }
            // Others are writing the first version of the name.
            (_, None) if state.has_private(&spot) => (Some(spot), None),
            // A version that is lost or too old is written again.
            (_, None) if self.hides(state, &spot, ino) => (Some(spot), None),
            // The name has gone since. The caller now writes to the file that the name led to.
            (_, None) => (None, own),
        };
        let entry = published.as_ref().map(|published| &published.entry);
        let content = entry.and_then(Entry::content).filter(|(_, size)| *size > 0);
        let copy = match (content, &inode.source) {
            _ if truncate => None,
            (Some((digest, size)), _) => Some(Copied::Blob(digest, size)),
            (None, Some(source)) if matches!(inode.node, InodeKind::Gone(_)) => {
                Some(Copied::File(Arc::clone(source)))
            }
            _ => None,
        };
        let attrs = entry.map(|entry| entry.attrs.clone());
        let attrs = attrs.or_else(|| state.entry_of(ino).map(|entry| entry.attrs));
        let mut attrs = attrs.unwrap_or_default();
        if wish.caller.uid != 0 {
            self.drop_privileges(&wish.caller, &mut attrs);
        }
        Ok(BeginBase { spot, published, attrs, copy })
    }

    /// Waits for room, copies the old content, and begins. `None` means that something moved and
    /// the open has to be decided again.
    pub(super) async fn begin_in_time(
        &self,
        ino: Ino,
        wish: &Wish,
        base: BeginBase,
    ) -> Reply<Option<Opened>> {
        self.wait_for_room().await?;
        let (file, staged) = self.stage_copy(base.copy.clone()).await?;
        self.begin_with(ino, wish, &base, file, staged)
    }

    /// Begins with an empty staging file. `None` means that something moved and the open has to be
    /// decided again.
    pub(super) fn begin_open(
        &self,
        ino: Ino,
        wish: &Wish,
        base: &BeginBase,
    ) -> Reply<Option<Opened>> {
        let (file, staged) = self.stage()?;
        self.begin_with(ino, wish, base, file, staged)
    }

    pub(super) fn stage(&self) -> Reply<(File, StagedPath)> {
        let make = || -> Result<(File, StagedPath), Error> {
            let (file, path) = self.0.rooms.staging.create()?;
            Ok((crate::local::spare(file)?, path))
        };
        let made = match make() {
            Err(error) if error.kind() == Kind::Exhausted && self.close_unneeded() => make(),
            made => made,
        };
        made.map_err(|error| super::errno::promised(&error))
    }

    /// Makes a staging file with a copy of the old content.
    pub(super) async fn stage_copy(&self, copy: Option<Copied>) -> Reply<(File, StagedPath)> {
        let Some(copy) = copy else { return self.stage() };
        let (from, size) = match copy {
            Copied::Blob(digest, size) => (self.obtain(None, digest, size).await?, Some(size)),
            Copied::File(source) => (source, None),
        };
        let this = self.clone();
        crate::task::blocking(move || {
            let (file, staged) = this.stage()?;
            let from = from.backing.file();
            let size = size.map_or_else(|| from.metadata().map(|found| found.len()), Ok)?;
            copy_bytes(from, &file, size)?;
            set_mtime(&file, UNTOUCHED)?;
            Ok((file, staged))
        })
        .await
    }

    fn begin_with(
        &self,
        ino: Ino,
        wish: &Wish,
        base: &BeginBase,
        file: File,
        staged: StagedPath,
    ) -> Reply<Option<Opened>> {
        let clean = Mark::of(&file)?;
        let mut guard = self.0.state.lock();
        let state = &mut *guard;
        let (plan, _) = self.decide(state, ino, wish);
        let on = match plan {
            OpenPlan::Begin => LiveOn::Reserved(ino),
            OpenPlan::Aside { .. } => LiveOn::Fresh,
            _ => return Ok(None),
        };
        if !self.base_of(state, ino, wish, plan)?.is(base) {
            return Ok(None);
        }
        if on == LiveOn::Fresh {
            may_stand_aside(state, ino, wish.flags)?;
        }
        let (file, creates) = ((file, staged, clean), false);
        let id = self.begin_live(state, on, wish, base, file, creates)?;
        let opened = self.attach_writer(state, ino, id, wish);
        let further = self.further_names(state, base);
        drop(guard);
        // Under these names the kernel may remember the published version and its size, but the
        // writer has to see its own.
        self.doubt(further);
        Ok(Some(opened))
    }

    /// Returns the other names of a file with hard links, where the kernel knows them.
    fn further_names(&self, state: &State, base: &BeginBase) -> Vec<DirEntryKey> {
        let entry = base.published.as_ref().map(|published| &published.entry);
        let Some((spot, group)) = base.spot.as_ref().zip(entry.and_then(|entry| entry.link)) else {
            return Vec::new();
        };
        self.0.rooms.ledger.read(|fold| {
            let names = fold.links(group).filter_map(|name| state.names.spot_of(name));
            names.filter(|name| name != spot).collect()
        })
    }

    /// Adds a live file.
    pub(super) fn begin_live(
        &self,
        state: &mut State,
        on: LiveOn,
        wish: &Wish,
        base: &BeginBase,
        (file, staged, clean): (File, StagedPath, Mark),
        creates: bool,
    ) -> Reply<LiveId> {
        if self.0.closing.load(Ordering::Relaxed) {
            return Err(Errno::EROFS);
        }
        let truncate = wish.flags.truncate;
        let content = base.published.as_ref().and_then(|published| published.entry.content());
        let had_bytes = content.is_some_and(|(_, size)| size > 0);
        let is_new = base.published.is_none();
        let ino = match on {
            LiveOn::Reserved(ino) => ino,
            // The inode is set to the live file as soon as that exists.
            LiveOn::Fresh => state.names.add_fresh(InodeKind::Directory),
        };
        let mut attrs = base.attrs.clone();
        // An empty file that is emptied again stays the same file. Programs constantly open lock
        // files this way.
        if truncate && (is_new || had_bytes) {
            attrs.mtime = self.now();
        }
        let link = base.published.as_ref().and_then(|published| published.entry.link);
        // A file that is not emptied keeps the beginning of the version that it began from.
        let put = base.published.as_ref().filter(|_| !truncate).and_then(|base| base.stamp);
        let begun = put.and_then(|put| self.0.beginnings.begun(put));
        let lineage = Lineage::new(
            begun.unwrap_or_else(|| self.moment()),
            base.published.as_ref().and_then(|published| published.stamp),
            base.published.as_ref().map(|published| published.entry.kind.clone()),
        );
        let begins = match (truncate && had_bytes, is_new && (creates || truncate)) {
            (true, _) => BeginsAs::Emptied,
            (_, true) => BeginsAs::New,
            _ => BeginsAs::Copy,
        };
        let same_as = base.published.clone().filter(|_| !truncate && base.spot.is_some());
        let id = state.lives.add(Live::new(Start {
            ino,
            source: Source::new(file, None),
            staged,
            who: wish.who,
            caller: wish.caller,
            baseline: Baseline::new(begins, clean, same_as),
            lineage,
            attrs,
            link: link.filter(|_| base.spot.is_some()),
        }));
        if let Some(inode) = state.names.inode_mut(ino) {
            inode.node = InodeKind::Live(id);
            if let (LiveOn::Reserved(_), Some(spot)) = (on, inode.last.clone()) {
                state.names.end_reservation(&spot, ino);
            }
        }
        if let Some(spot) = &base.spot {
            state.place_live(id, spot);
            if is_new && let Some(dir) = state.names.directory_path(spot.0) {
                self.0.rooms.ledger.touch_directory(&dir);
            }
        }
        self.0.begun.notify_one();
        Ok(id)
    }
}
