//! What the modelled kernel remembers of names and attributes, and how it learns that names have
//! moved.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hearthfs_mount::{Attr, FileType, Ino, Notices};
use parking_lot::Mutex;

use crate::daemon::tests::users::Rights;

/// How long one system call takes.
pub(super) const CALL: Duration = Duration::from_millis(1);

/// The notifications that the node has sent to the kernel.
#[derive(Debug, Default)]
pub(super) struct Told {
    epoch: AtomicU64,
    names: Mutex<Vec<(Ino, OsString)>>,
    inodes: Mutex<Vec<Ino>>,
}

impl Notices for Told {
    fn expire_all(&self) -> bool {
        self.epoch.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn expire_attrs(&self, ino: Ino) -> bool {
        self.inodes.lock().push(ino);
        true
    }

    fn inval_entry(&self, parent: Ino, name: &OsStr) {
        self.names.lock().push((parent, name.to_owned()));
    }
}

impl Told {
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    pub(super) fn take(&self) -> Vec<(Ino, OsString)> {
        std::mem::take(&mut self.names.lock())
    }

    /// Returns the inodes whose attributes are not valid any more.
    pub(super) fn take_inodes(&self) -> Vec<Ino> {
        std::mem::take(&mut self.inodes.lock())
    }
}

/// A name, present or missing, with the epoch in which it was looked up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dentry {
    pub(super) ino: Option<Ino>,
    until: Duration,
    epoch: u64,
}

/// An inode, and how many lookups the kernel has counted.
#[derive(Clone, Copy, Debug)]
struct Inode {
    attr: Attr,
    until: Duration,
    lookups: u64,
}

/// Everything that the kernel remembers, by its own clock.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub(super) now: Duration,
    names: HashMap<(Ino, String), Dentry>,
    inodes: HashMap<Ino, Inode>,
}

pub(super) fn rights_of(attr: &Attr) -> Rights {
    Rights { uid: attr.uid, gid: attr.gid, mode: u32::from(attr.perm) }
}

impl Memory {
    pub(super) fn name(&self, dir: Ino, name: &str) -> Option<Dentry> {
        self.names.get(&(dir, name.to_owned())).copied()
    }

    /// Reports whether the kernel may rely on a name without a lookup.
    pub(super) fn holds(&self, dentry: Dentry, epoch: u64) -> bool {
        dentry.epoch == epoch && self.now < dentry.until
    }

    pub(super) fn set_name(
        &mut self,
        (dir, name): (Ino, &str),
        ino: Option<Ino>,
        ttl: Duration,
        epoch: u64,
    ) {
        let dentry = Dentry { ino, until: self.now.saturating_add(ttl), epoch };
        self.names.insert((dir, name.to_owned()), dentry);
    }

    pub(super) fn drop_name(&mut self, dir: Ino, name: &str) {
        self.names.remove(&(dir, name.to_owned()));
    }

    pub(super) fn move_name(&mut self, from: (Ino, &str), to: (Ino, &str)) {
        self.names.remove(&(to.0, to.1.to_owned()));
        if let Some(dentry) = self.names.remove(&(from.0, from.1.to_owned())) {
            self.names.insert((to.0, to.1.to_owned()), dentry);
        }
    }

    /// Notes attributes from an answer, and `count` lookups.
    pub(super) fn learn(&mut self, attr: Attr, ttl: Duration, count: u64) {
        let until = self.now.saturating_add(ttl);
        let lookups = self.inodes.get(&attr.ino).map_or(0, |inode| inode.lookups) + count;
        self.inodes.insert(attr.ino, Inode { attr, until, lookups });
    }

    pub(super) fn type_of(&self, ino: Ino) -> FileType {
        self.inodes.get(&ino).map_or(FileType::Directory, |inode| inode.attr.file_type)
    }

    /// Returns attributes that are still valid.
    pub(super) fn attr(&self, ino: Ino) -> Option<Attr> {
        let inode = self.inodes.get(&ino)?;
        (self.now < inode.until).then_some(inode.attr)
    }

    /// Makes the kernel request attributes when it needs them next, because it has changed
    /// something itself.
    pub(super) fn doubt(&mut self, ino: Ino) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            inode.until = Duration::ZERO;
        }
    }

    /// Removes the names and inodes for which `keep` returns false. Returns these inodes with their
    /// lookups.
    pub(super) fn forget(&mut self, keep: impl Fn(Ino, FileType) -> bool) -> Vec<(Ino, u64)> {
        let gone: Vec<(Ino, u64)> = self
            .inodes
            .iter()
            .filter(|(ino, inode)| **ino != Ino::ROOT && !keep(**ino, inode.attr.file_type))
            .map(|(ino, inode)| (*ino, inode.lookups))
            .collect();
        for (ino, _) in &gone {
            self.inodes.remove(ino);
        }
        let known = &self.inodes;
        self.names.retain(|(dir, _), dentry| {
            dentry.ino.is_some_and(|ino| known.contains_key(&ino))
                && (*dir == Ino::ROOT || known.contains_key(dir))
        });
        gone
    }
}
