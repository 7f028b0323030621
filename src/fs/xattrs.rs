//! Extended attributes with the `user.` prefix. They travel with the entry.

use hearthfs_mount::{Caller, Errno, Ino, Reply, XattrMode};

use super::filesystem::Filesystem;
use super::inode::InodeKind;
use super::retry::Try;
use super::seen::seen_in;
use crate::name::TreePath;
use crate::namespace::{Fold, TOOK_NAME, XATTR_ENTRY_BYTES_MAX, XATTR_SUM_BYTES_MAX, Xattrs};

/// The only prefix that is kept. All other names are not supported.
const PREFIX: &[u8] = b"user.";

impl Filesystem {
    pub(super) fn set_xattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Reply<()> {
        if !name.starts_with(PREFIX) || name == TOOK_NAME {
            return Err(Errno::EOPNOTSUPP);
        }
        let all = self.0.rooms.ledger.read(Fold::xattr_bytes);
        let tried = self.tried(caller, ino);
        self.edit_attrs(caller, ino, tried, |attrs| {
            // Everything is checked before anything is changed, so that a refused call has no
            // effect.
            let before = attrs.xattr_bytes();
            let old = attrs.xattrs.as_ref().and_then(|map| map.get(name));
            match mode {
                XattrMode::Create if old.is_some() => return Err(Errno::EEXIST),
                XattrMode::Replace if old.is_none() => return Err(Errno::ENODATA),
                _ => {}
            }
            let (gone, new) =
                (old.map_or(0, |old| name.len() + old.len()), name.len() + value.len());
            let (after, grown) = (before - gone + new, new.saturating_sub(gone));
            let fits = after <= XATTR_ENTRY_BYTES_MAX && all + grown as u64 <= XATTR_SUM_BYTES_MAX;
            // Attributes that another node has made too large may be made smaller.
            if !fits && grown > 0 {
                return Err(Errno::ENOSPC);
            }
            attrs.xattrs.get_or_insert_default().insert(name.into(), value.into());
            Ok(())
        })
    }

    pub(super) fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &[u8]) -> Reply<()> {
        let tried = self.tried(caller, ino);
        self.edit_attrs(caller, ino, tried, |attrs| {
            let map = attrs.xattrs.as_mut().ok_or(Errno::ENODATA)?;
            map.remove(name).ok_or(Errno::ENODATA)?;
            if map.is_empty() {
                attrs.xattrs = None;
            }
            Ok(())
        })
    }

    /// Returns how a call relates to an earlier `ESTALE` of its thread, which ends with it.
    fn tried(&self, caller: &Caller, ino: Ino) -> Try {
        let now = self.0.rooms.clock.mono();
        let (tried, retry) = self.0.state.lock().retries.end(caller, ino, false, now);
        self.give_up_seat(retry);
        tried
    }

    pub(super) fn get_xattr(&self, ino: Ino, name: &[u8]) -> Reply<Vec<u8>> {
        if !name.starts_with(PREFIX) {
            return Err(Errno::ENODATA);
        }
        let map = self.xattrs_of(ino)?.ok_or(Errno::ENODATA)?;
        map.get(name).map(|value| value.to_vec()).ok_or(Errno::ENODATA)
    }

    pub(super) fn list_xattrs(&self, ino: Ino) -> Reply<Vec<u8>> {
        let mut names = Vec::new();
        for name in self.xattrs_of(ino)?.iter().flat_map(|map| map.keys()) {
            names.extend_from_slice(name);
            names.push(0);
        }
        Ok(names)
    }

    fn xattrs_of(&self, ino: Ino) -> Reply<Xattrs> {
        let state = self.0.state.lock();
        let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
        match &inode.node {
            // Every change that is made here, and every lookup, keeps these equal to the namespace.
            InodeKind::Entry(published) if !state.names.is_bound(ino) => {
                return Ok(published.entry.attrs.xattrs.clone());
            }
            InodeKind::Directory | InodeKind::Entry(_) => {}
            InodeKind::Reserved(published) => return Ok(published.entry.attrs.xattrs.clone()),
            InodeKind::Gone(entry) => return Ok(entry.attrs.xattrs.clone()),
            InodeKind::Stale(_) => return Err(Errno::ESTALE),
            InodeKind::Live(id) => {
                let live = state.lives.get(*id).ok_or(Errno::ESTALE)?;
                return Ok(live.attrs.xattrs.clone());
            }
        }
        let path = match inode.place() {
            Some(spot) => state.names.path_of(spot).ok_or(Errno::ENOENT)?,
            None if ino == Ino::ROOT => TreePath::root(),
            None => return Ok(None),
        };
        let seen = self.0.rooms.ledger.read(|fold| seen_in(fold, &path));
        match (&inode.node, seen) {
            // Its name leads to another version by now.
            (InodeKind::Entry(published), Some(seen)) if !published.is(&seen.entry, seen.stamp) => {
                Ok(published.entry.attrs.xattrs.clone())
            }
            (_, seen) => Ok(seen.and_then(|seen| seen.entry.attrs.xattrs)),
        }
    }
}
