//! The nodes of the shelf by number, and the names that lead to them.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use hearthfs_mount::*;

use super::now;

/// The names of a directory with their targets, and the same by their offset in listings.
pub(super) type Names<'a> =
    (&'a mut BTreeMap<OsString, (u64, u64)>, &'a mut BTreeMap<u64, OsString>);

pub(super) enum Kind {
    File(Arc<Backing>),
    Directory {
        children: BTreeMap<OsString, (u64, u64)>,
        order: BTreeMap<u64, OsString>,
        parent: u64,
    },
    Symlink(Vec<u8>),
    Special,
}

pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) kind: Kind,
    pub(super) xattrs: BTreeMap<OsString, Vec<u8>>,
    pub(super) name: Option<(u64, OsString)>,
    /// The mtime of the backing when `attr.mtime` was set; a different one means that bytes were written since.
    pub(super) set_at: Option<Timespec>,
    pub(super) lookups: u64,
    pub(super) handles: u64,
    pub(super) published: bool,
}

pub(super) struct Open {
    pub(super) ino: u64,
    pub(super) write: bool,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) nodes: HashMap<u64, Node>,
    pub(super) handles: HashMap<u64, Open>,
    pub(super) last: u64,
    /// Names of the requests received, in order.
    pub(super) trace: Vec<String>,
    pub(super) abilities: Option<Abilities>,
    pub(super) flushed_by: Vec<u32>,
    /// The holder of the one lock.
    pub(super) locked: Option<Handle>,
}

pub(super) fn attributes(ino: u64, file_type: FileType, perm: u32, uid: u32, gid: u32) -> Attr {
    Attr {
        ino: Ino(ino),
        size: 0,
        blocks: 0,
        atime: now(),
        mtime: now(),
        ctime: now(),
        file_type,
        perm: (perm & 0o7777) as u16,
        nlink: 1,
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
    }
}

pub(super) fn directory(parent: u64) -> Kind {
    Kind::Directory { children: BTreeMap::new(), order: BTreeMap::new(), parent }
}

pub(super) fn node(attr: Attr, kind: Kind, name: Option<(u64, OsString)>) -> Node {
    let xattrs = BTreeMap::new();
    Node { attr, kind, xattrs, name, set_at: None, lookups: 0, handles: 0, published: false }
}

impl Node {
    pub(super) fn stat(&self) -> Attr {
        let mut attr = self.attr;
        match &self.kind {
            Kind::File(backing) => {
                let meta = backing.file().metadata().unwrap();
                (attr.size, attr.blocks) = (meta.size(), meta.blocks());
                if self.set_at != self.written() {
                    attr.mtime = self.written().unwrap_or(attr.mtime);
                }
            }
            Kind::Symlink(target) => attr.size = target.len() as u64,
            Kind::Directory { .. } | Kind::Special => {}
        }
        attr
    }

    pub(super) fn written(&self) -> Option<Timespec> {
        let meta = self.file().ok()?.file().metadata().unwrap();
        Some(Timespec { secs: meta.mtime(), nanos: meta.mtime_nsec() as u32 })
    }

    pub(super) fn file(&self) -> Reply<Arc<Backing>> {
        match &self.kind {
            Kind::File(backing) => Ok(Arc::clone(backing)),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn drop_privileges(&mut self) {
        self.attr.perm = without_privileges(self.attr.perm.into(), true) as u16;
    }
}

impl State {
    pub(super) fn node(&mut self, ino: u64) -> Reply<&mut Node> {
        self.nodes.get_mut(&ino).ok_or(Errno::ESTALE)
    }

    pub(super) fn children(&mut self, ino: u64) -> Reply<Names<'_>> {
        match &mut self.node(ino)?.kind {
            Kind::Directory { children, order, .. } => Ok((children, order)),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn child(&mut self, parent: u64, name: &OsStr) -> Reply<u64> {
        self.children(parent)?.0.get(name).map(|(ino, _)| *ino).ok_or(Errno::ENOENT)
    }

    pub(super) fn is_directory(&mut self, ino: u64) -> Reply<bool> {
        Ok(matches!(self.node(ino)?.kind, Kind::Directory { .. }))
    }

    pub(super) fn attach(&mut self, parent: u64, name: &OsStr, ino: u64) -> Reply<()> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        self.last += 1;
        let cookie = self.last;
        let (children, order) = self.children(parent)?;
        children.insert(name.to_owned(), (ino, cookie));
        order.insert(cookie, name.to_owned());
        if self.is_directory(ino)? {
            self.node(parent)?.attr.nlink += 1;
            if let Kind::Directory { parent: up, .. } = &mut self.node(ino)?.kind {
                *up = parent;
            }
        }
        self.node(parent)?.attr.mtime = now();
        self.node(ino)?.name = Some((parent, name.to_owned()));
        Ok(())
    }

    pub(super) fn detach(&mut self, parent: u64, name: &OsStr) -> Reply<u64> {
        let (children, order) = self.children(parent)?;
        let (ino, cookie) = children.remove(name).ok_or(Errno::ENOENT)?;
        order.remove(&cookie);
        if self.is_directory(ino)? {
            self.node(parent)?.attr.nlink -= 1;
        }
        self.node(parent)?.attr.mtime = now();
        Ok(ino)
    }

    pub(super) fn unlink(&mut self, parent: u64, name: &OsStr) -> Reply<()> {
        let ino = self.detach(parent, name)?;
        let node = self.node(ino)?;
        node.attr.nlink = node.attr.nlink.saturating_sub(1);
        node.attr.ctime = now();
        self.reap(ino);
        Ok(())
    }

    pub(super) fn reap(&mut self, ino: u64) {
        if let Some(node) = self.nodes.get(&ino) {
            let named = node.attr.nlink > u32::from(matches!(node.kind, Kind::Directory { .. }));
            if ino != 1 && !named && node.lookups == 0 && node.handles == 0 {
                self.nodes.remove(&ino);
            }
        }
    }

    pub(super) fn add(
        &mut self,
        parent: u64,
        name: &OsStr,
        mut attr: Attr,
        kind: Kind,
    ) -> Reply<u64> {
        if self.children(parent)?.0.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        self.last += 1;
        let ino = self.last;
        attr.ino = Ino(ino);
        if matches!(kind, Kind::Directory { .. }) {
            attr.nlink = 2;
        }
        self.nodes.insert(ino, node(attr, kind, None));
        self.attach(parent, name, ino).inspect_err(|_| {
            self.nodes.remove(&ino);
        })?;
        Ok(ino)
    }

    pub(super) fn is_empty(&mut self, ino: u64) -> Reply<bool> {
        Ok(self.children(ino)?.0.is_empty())
    }
}
