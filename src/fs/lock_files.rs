//! Lock files: names whose existence excludes other processes, as profiles say (see
//! `docs/clients.md`).
//!
//! Owns which process has made each of them, and removes a lock when its process has ended. Must
//! never remove what another process or another node has put in its place.

use std::sync::Arc;

use hearthfs_mount::{Answer, Caller, Created, Errno, OpenFlags, Reply};

use super::filesystem::Filesystem;
use super::held_locks::HeldLockFile;
use super::inode::DirEntryKey;
use super::lookup::Lead;
use super::retry::Try;
use super::rights::{MAY_CHANGE_NAMES, may_take};
use super::units::PublishedBy;
use super::who::Who;
use super::wish::Wish;
use crate::digest::Digest;
use crate::error::Result;
use crate::local::LockOwner;
use crate::name::TreePath;
use crate::namespace::{Attrs, Entry, EntryKind, FileKind, Op, Register};
use crate::stamp::Stamp;

/// How many names are read at a time in a search of the whole namespace.
const READ_AT_ONCE: usize = 4096;

impl Filesystem {
    /// Makes a lock file that all nodes see, and opens it for writing. It is published at once,
    /// because its maker may keep it open until it gives the lock back.
    pub(super) fn create_lock(
        &self,
        spot: &DirEntryKey,
        wish: &Wish,
        attrs: Attrs,
    ) -> Answer<Created> {
        let kind = EntryKind::File { digest: Digest::empty(), size: 0 };
        match self.put_new(spot, Entry { kind, attrs: attrs.clone(), link: None }) {
            Ok(_) => {}
            Err(Errno::EEXIST) if !wish.flags.exclusive => {
                return self.create_over(spot, wish, attrs, Errno::ESTALE);
            }
            Err(errno) => return Err(errno).into(),
        }
        self.own_lock(spot, &wish.caller);
        let (this, spot, wish) = (self.clone(), spot.clone(), *wish);
        Answer::later(async move {
            let opened = this.open_lock(&spot, &wish).await;
            if opened.is_err() {
                // The maker gets an error, so it has no lock.
                crate::task::blocking(move || this.take_back_lock(&spot)).await;
            }
            opened
        })
    }

    /// Opens a file for writing that was just made at a name.
    async fn open_lock(&self, spot: &DirEntryKey, wish: &Wish) -> Reply<Created> {
        let lead = {
            let mut state = self.0.state.lock();
            let path = Self::path_to_find(&state, spot)?;
            self.lead_writer(&mut state, spot, &path, wish.who, wish.flags, None)
        };
        let lead = Lead::lasting(lead.ok_or(Errno::ENOENT)?);
        let flags = OpenFlags { exclusive: false, ..wish.flags };
        let wish = Wish { flags, tried: Try::Last, ..*wish };
        let opened = match self.open_file_as(lead.ino, &wish) {
            Answer::Now(reply) => reply?,
            Answer::Later(work) => work.await?,
        };
        self.tell_opened(lead, spot, opened)
    }

    /// Removes a lock whose maker could not open it.
    fn take_back_lock(&self, spot: &DirEntryKey) {
        let path = self.0.state.lock().names.path_of(spot);
        let held = path.and_then(|path| self.0.lock_files.lock().get(&path).cloned());
        if let Some(HeldLockFile { owner, stamp, .. }) = held
            && self.remove_lock(&owner.path, stamp).is_ok()
        {
            self.0.lock_files.lock().remove(&owner.path, Some(stamp));
        }
    }

    /// Notes that a process has published something at a name, if that is a lock file.
    pub(super) fn own_lock(&self, spot: &DirEntryKey, caller: &Caller) {
        let Some(path) = self.0.state.lock().names.path_of(spot) else { return };
        if !matches!(self.0.rules.profiles.classify(&path).kind, FileKind::Lock(_)) {
            return;
        }
        let who = self.0.callers.who(caller);
        let (Who::Process(process), Some(watched)) = (who, self.0.callers.watch(who)) else {
            return;
        };
        let Some(started) = self.0.rooms.tasks.started(process) else { return };
        let Some((stamp, user)) = self.lock_at(&path) else { return };
        if !self.may_take_away(caller, spot, user) {
            // The process has written to a lock that another process made. The lock still belongs
            // to its maker.
            if let Some(held) = self.0.lock_files.lock().get_mut(&path) {
                held.stamp = stamp;
            }
            return;
        }
        let owner = LockOwner { path, process, started };
        let held = HeldLockFile { owner: owner.clone(), stamp, user: caller.uid, watched };
        if !self.0.lock_files.lock().add(held.clone()) {
            // Locks that programs have given back count until this check.
            self.forget_given_back();
            if !self.0.lock_files.lock().add(held) {
                let path = &owner.path;
                tracing::warn!(%path, "too many lock files: this one stays when its process ends");
                return;
            }
        }
        self.note_owner(&owner);
        self.0.begun.notify_one();
    }

    /// Reports whether a caller may remove this name of a file of `owner`. The end of a process
    /// removes no more than the process could remove itself.
    fn may_take_away(&self, caller: &Caller, spot: &DirEntryKey, owner: u32) -> bool {
        let state = self.0.state.lock();
        let Ok((dir, _)) = self.attr_of(&state, spot.0) else { return false };
        let mode = u32::from(dir.perm);
        self.mode_permits(caller, (dir.uid, dir.gid, mode), MAY_CHANGE_NAMES).is_ok()
            && may_take(caller, mode, dir.uid, owner)
    }

    fn note_owner(&self, owner: &LockOwner) {
        let owners = &self.0.rooms.lock_owners;
        let noted = owners.note(owner).and_then(|large| {
            if large {
                self.forget_given_back();
                self.keep_owners()?;
            }
            Ok(())
        });
        if let Err(error) = noted {
            tracing::debug!(
                error = error.chain(),
                "the owner of a lock will be unknown after a restart"
            );
        }
    }

    fn keep_owners(&self) -> Result<()> {
        let owners = || self.0.lock_files.lock().all().into_iter().map(|held| held.owner).collect();
        self.0.rooms.lock_owners.keep_only(owners)
    }

    /// Returns the change by which this node has put a lock at a path, and the owner of the file.
    /// `None` for a change of another node, and for a directory, which excludes no process.
    fn lock_at(&self, path: &TreePath) -> Option<(Stamp, u32)> {
        let ledger = &self.0.rooms.ledger;
        let register = ledger.read(|fold| fold.register(path))?;
        let entry = register.entry.filter(|entry| !entry.is_directory())?;
        (register.stamp.node == ledger.node()).then_some((register.stamp, entry.attrs.uid))
    }

    /// Forgets locks that are gone, or that another process or node has put again.
    fn forget_given_back(&self) {
        let all = self.0.lock_files.lock().all();
        for HeldLockFile { owner, stamp, .. } in all {
            if self.lock_at(&owner.path).is_none_or(|(now, _)| now != stamp) {
                self.0.lock_files.lock().remove(&owner.path, Some(stamp));
            }
        }
    }

    /// Removes the locks of processes that have ended. Blocks.
    pub(super) fn tend_lock_files(&self) {
        if self.0.lock_files.lock().is_empty() {
            return;
        }
        self.forget_given_back();
        let all = self.0.lock_files.lock().all();
        for held in all.into_iter().filter(|held| held.watched.end().is_some()) {
            let path = &held.owner.path;
            match self.remove_lock(path, held.stamp) {
                Ok(()) => self.0.lock_files.lock().remove(path, Some(held.stamp)),
                // The next round tries it again.
                Err(error) => tracing::debug!(error = error.chain(), %path, "a lock remains"),
            }
        }
    }

    /// Removes a lock file, if the change that put it there is still the current one.
    fn remove_lock(&self, path: &TreePath, put: Stamp) -> Result<()> {
        let turn = self.0.rooms.ledger.begin();
        let Some(seen) = self.seen(path).filter(|seen| seen.stamp == Some(put)) else {
            return Ok(());
        };
        let mut ops = vec![(path.clone(), Op::Remove)];
        ops.extend(self.ops_on_further_names(path, &seen.entry));
        let written = self.write_keeping(turn, ops)?;
        let mut state = self.0.state.lock();
        drop(written.apply());
        let spot = state.names.spot_of(path);
        if let Some(spot) = &spot {
            self.keep_linked(&mut state, spot);
            state.retire(spot);
            state.locks.unlink(spot);
        }
        super::state::close_files(state);
        self.doubt(spot);
        tracing::debug!(%path, "a lock is removed: the process that made it has ended");
        Ok(())
    }

    /// Continues with the locks of processes that have outlived the last daemon, and removes the
    /// others. Blocks.
    pub(super) fn restore_lock_files(&self) {
        let Some(owners) = self.0.rooms.lock_owners.take_earlier() else {
            self.clear_lock_files();
            return;
        };
        for owner in owners {
            let is_lock =
                matches!(self.0.rules.profiles.classify(&owner.path).kind, FileKind::Lock(_));
            let there = self.lock_at(&owner.path).filter(|_| is_lock);
            let Some((stamp, user)) = there else { continue };
            match self.0.rooms.tasks.watch_again(owner.process, owner.started) {
                Some(watched) => {
                    let watched = Arc::new(watched);
                    let mut files = self.0.lock_files.lock();
                    if files.get(&owner.path).is_none() {
                        // The limit held for the last daemon too, so there is room for these.
                        files.add(HeldLockFile { owner, stamp, user, watched });
                    }
                }
                None => self.remove_unless_held(&owner.path, stamp),
            }
        }
        if let Err(error) = self.keep_owners() {
            tracing::debug!(error = error.chain(), "the owners of locks could not be saved");
        }
    }

    /// Removes all lock files that this node has made in earlier runs.
    fn clear_lock_files(&self) {
        let ledger = &self.0.rooms.ledger;
        let mut after = Some(TreePath::root());
        while let Some(from) = after {
            let part: Vec<(TreePath, Register)> =
                ledger.read(|fold| fold.registers_after(&from).take(READ_AT_ONCE).collect());
            after = part.get(READ_AT_ONCE - 1).map(|(path, _)| path.clone());
            for (path, register) in part {
                let stamp = register.stamp;
                let is_lock =
                    matches!(self.0.rules.profiles.classify(&path).kind, FileKind::Lock(_));
                if is_lock && register.entry.is_some() && stamp.node == ledger.node() {
                    self.remove_unless_held(&path, stamp);
                }
            }
        }
    }

    fn remove_unless_held(&self, path: &TreePath, stamp: Stamp) {
        let held = self.0.lock_files.lock().get(path).is_some_and(|held| held.stamp == stamp);
        if held {
            return;
        }
        if let Err(error) = self.remove_lock(path, stamp) {
            tracing::warn!(error = error.chain(), %path, "a lock of an ended process remains");
        }
    }

    /// Notes that a process has published something at a name. That may be a lock file, or complete
    /// a unit; returns true for the latter. `caller` is the same as for
    /// [`Filesystem::changed_in_edition`].
    pub(super) fn note_published(
        &self,
        spot: &DirEntryKey,
        caller: Option<&Caller>,
        by: PublishedBy,
    ) -> Reply<bool> {
        if let Some(caller) = caller {
            self.own_lock(spot, caller);
        }
        self.changed_in_edition(spot, caller, by).map_err(|error| super::errno::promised(&error))
    }
}
