//! Walks: from a path to an inode, with the checks of `default_permissions`.

use std::ffi::OsStr;

use hearthfs_mount::{Attr, Caller, Errno, FileType, Handle, Ino, Lookup, Reply, Vfs as _};

use super::Kernel;
use super::memory::{CALL, rights_of};
use crate::daemon::tests::users::{User, X};

/// The directory of a path, the name in it, and the inode that this leads to.
pub(super) struct Place<'p> {
    pub(super) dir: Ino,
    pub(super) name: &'p str,
    pub(super) ino: Option<Ino>,
}

impl Kernel<'_> {
    /// Makes a system call. On `ESTALE` it runs once more from the beginning, with a lookup of each
    /// name.
    pub(super) fn system_call<T>(
        &mut self,
        mut act: impl FnMut(&mut Self, bool) -> Reply<T>,
    ) -> Reply<T> {
        self.heed();
        let done = match act(self, false) {
            Err(Errno::ESTALE) => act(self, true),
            done => done,
        };
        self.end_call();
        done
    }

    /// Carries out the node's notifications about names. The kernel does that soon after they come,
    /// and at the latest in the next call.
    fn heed(&mut self) {
        self.memory.now += CALL;
        for (dir, name) in self.told.take() {
            self.memory.drop_name(dir, name.to_str().unwrap());
            self.memory.doubt(dir);
        }
        self.heed_inodes();
    }

    /// Carries out the node's notifications about inodes, which have an effect at once.
    fn heed_inodes(&mut self) {
        for ino in self.told.take_inodes() {
            self.memory.doubt(ino);
        }
    }

    /// Asks the node what a name leads to.
    fn ask(&mut self, who: &Caller, dir: Ino, name: &str) -> Reply<(Lookup, u64)> {
        let epoch = self.told.epoch();
        let found = self.answer(|vfs| vfs.lookup(who, dir, OsStr::new(name)))?;
        Ok((found, epoch))
    }

    /// Finds what a name leads to. What is remembered is used, unless `again` requires a lookup.
    pub(super) fn look(
        &mut self,
        who: &Caller,
        dir: Ino,
        name: &str,
        again: bool,
    ) -> Reply<Option<Ino>> {
        if let Some(known) = self.memory.name(dir, name) {
            if !again && self.memory.holds(known, self.told.epoch()) {
                return Ok(known.ino);
            }
            if let Some(ino) = known.ino {
                match self.ask(who, dir, name) {
                    Ok((Lookup::Found(found), epoch)) if found.attr.ino == ino => {
                        self.memory.learn(found.attr, found.attr_ttl, 1);
                        self.memory.set_name((dir, name), Some(ino), found.entry_ttl, epoch);
                        return Ok(Some(ino));
                    }
                    Ok((Lookup::Found(found), _)) => self.rooms().fs.forget(found.attr.ino, 1),
                    _ => {}
                }
                self.memory.drop_name(dir, name);
            }
        }
        match self.ask(who, dir, name)? {
            (Lookup::Found(found), epoch) => {
                self.memory.learn(found.attr, found.attr_ttl, 1);
                self.memory.set_name((dir, name), Some(found.attr.ino), found.entry_ttl, epoch);
                Ok(Some(found.attr.ino))
            }
            (Lookup::Missing { ttl }, epoch) => {
                self.memory.set_name((dir, name), None, ttl, epoch);
                Ok(None)
            }
        }
    }

    /// Asks the node for attributes.
    pub(super) fn ask_attr(
        &mut self,
        who: &Caller,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Reply<Attr> {
        let (attr, ttl) = self.answer(|vfs| vfs.getattr(who, ino, handle))?;
        self.memory.learn(attr, ttl, 0);
        Ok(attr)
    }

    /// Returns attributes, from memory if they are still valid.
    pub(super) fn attr(&mut self, who: &Caller, ino: Ino) -> Reply<Attr> {
        self.heed_inodes();
        match self.memory.attr(ino) {
            Some(attr) => Ok(attr),
            None => self.ask_attr(who, ino, None),
        }
    }

    /// Checks the mode of an inode. Before it refuses, it requests the attributes once more.
    pub(super) fn permit(&mut self, who: &Caller, ino: Ino, want: u32) -> Reply<()> {
        self.heed_inodes();
        let user = User::of(who);
        let known = self.memory.attr(ino);
        if known.is_some_and(|attr| user.may(want, rights_of(&attr))) {
            return Ok(());
        }
        let attr = self.ask_attr(who, ino, None)?;
        if user.may(want, rights_of(&attr)) { Ok(()) } else { Err(Errno::EACCES) }
    }

    /// Checks that a caller may change the mode and similar attributes of an inode.
    pub(super) fn must_own(&mut self, who: &Caller, ino: Ino) -> Reply<()> {
        let attr = self.attr(who, ino)?;
        if User::of(who).owns(rights_of(&attr)) { Ok(()) } else { Err(Errno::EPERM) }
    }

    /// Walks to the directory of a path; returns it and the last name.
    pub(super) fn walk<'p>(
        &mut self,
        who: &Caller,
        path: &'p str,
        again: bool,
    ) -> Reply<(Ino, &'p str)> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = Ino::ROOT;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            self.permit(who, at, X)?;
            at = self.look(who, at, part, again)?.ok_or(Errno::ENOENT)?;
            if self.memory.type_of(at) != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
        }
        self.permit(who, at, X)?;
        Ok((at, name))
    }

    /// Walks to a name and finds what it leads to. `anew` means that the name is to be made or
    /// replaced.
    pub(super) fn place<'p>(
        &mut self,
        who: &Caller,
        path: &'p str,
        again: bool,
        anew: bool,
    ) -> Reply<Place<'p>> {
        let (dir, name) = self.walk(who, path, again)?;
        let ino = self.look(who, dir, name, again || anew)?;
        Ok(Place { dir, name, ino })
    }

    pub(super) fn find(&mut self, who: &Caller, path: &str, again: bool) -> Reply<Ino> {
        if path.is_empty() {
            return Ok(Ino::ROOT);
        }
        self.place(who, path, again, false)?.ino.ok_or(Errno::ENOENT)
    }

    /// Forgets everything, as under memory pressure, except what is open and the directories above
    /// that.
    pub(in crate::daemon::tests) fn forget(&mut self) {
        let open: Vec<Ino> = self.files.values().map(|file| file.ino).collect();
        let keep_dirs = !open.is_empty();
        let gone = self
            .memory
            .forget(|ino, kind| open.contains(&ino) || (keep_dirs && kind == FileType::Directory));
        for (ino, count) in gone {
            self.rooms().fs.forget(ino, count);
        }
    }
}
