//! System calls on names.

use std::ffi::OsStr;
use std::path::Path;

use hearthfs_mount::{
    Attr, Caller, Errno, FileType, Found, Ino, RenameMode, Reply, SetAttr, Vfs as _, XattrMode,
};

use super::Kernel;
use super::memory::rights_of;
use super::walk::Place;
use crate::daemon::tests::users::{R, User, W, X};

fn is_below(path: &str, dir: &str) -> bool {
    path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

impl Kernel<'_> {
    /// Makes a system call on the inode that a path leads to.
    fn on_inode<T>(
        &mut self,
        who: &Caller,
        path: &str,
        mut act: impl FnMut(&mut Self, Ino) -> Reply<T>,
    ) -> Reply<T> {
        self.system_call(|kernel, again| {
            let ino = kernel.find(who, path, again)?;
            act(kernel, ino)
        })
    }

    pub(in crate::daemon::tests) fn stat(&mut self, who: &Caller, path: &str) -> Reply<Attr> {
        self.on_inode(who, path, |kernel, ino| kernel.attr(who, ino))
    }

    /// Looks a name up like a thread that got `ESTALE` for what it had found.
    pub(in crate::daemon::tests) fn look_again(&mut self, who: &Caller, path: &str) -> Reply<Attr> {
        let ino = self.find(who, path, true)?;
        self.attr(who, ino)
    }

    /// Makes something under a name that must lead nowhere.
    fn make(
        &mut self,
        who: &Caller,
        path: &str,
        make: impl Fn(&Self, Ino, &OsStr) -> Reply<Found>,
    ) -> Reply<()> {
        self.system_call(|kernel, again| {
            let Place { dir, name, ino } = kernel.place(who, path, again, true)?;
            if ino.is_some() {
                return Err(Errno::EEXIST);
            }
            kernel.permit(who, dir, W | X)?;
            let epoch = kernel.told.epoch();
            let made = make(kernel, dir, OsStr::new(name)).inspect_err(|errno| {
                if *errno == Errno::EEXIST {
                    kernel.memory.drop_name(dir, name);
                }
            })?;
            kernel.memory.learn(made.attr, made.attr_ttl, 1);
            kernel.memory.set_name((dir, name), Some(made.attr.ino), made.entry_ttl, epoch);
            kernel.memory.doubt(dir);
            Ok(())
        })
    }

    pub(in crate::daemon::tests) fn mkdir(&mut self, who: &Caller, path: &str) -> Reply<()> {
        self.mkdir_as(who, path, 0o755)
    }

    pub(in crate::daemon::tests) fn mkdir_as(
        &mut self,
        who: &Caller,
        path: &str,
        mode: u32,
    ) -> Reply<()> {
        self.make(who, path, |kernel, dir, name| {
            kernel.answer(|vfs| vfs.mkdir(who, dir, name, mode))
        })
    }

    pub(in crate::daemon::tests) fn symlink(
        &mut self,
        who: &Caller,
        path: &str,
        target: &str,
    ) -> Reply<()> {
        self.make(who, path, |kernel, dir, name| {
            kernel.answer(|vfs| vfs.symlink(who, dir, name, Path::new(target)))
        })
    }

    pub(in crate::daemon::tests) fn read_link(
        &mut self,
        who: &Caller,
        path: &str,
    ) -> Reply<Vec<u8>> {
        self.on_inode(who, path, |kernel, ino| kernel.answer(|vfs| vfs.readlink(who, ino)))
    }

    pub(in crate::daemon::tests) fn link(
        &mut self,
        who: &Caller,
        from: &str,
        to: &str,
    ) -> Reply<()> {
        self.system_call(|kernel, again| {
            let ino = kernel.find(who, from, again)?;
            let Place { dir, name, ino: taken } = kernel.place(who, to, again, true)?;
            if taken.is_some() {
                return Err(Errno::EEXIST);
            }
            kernel.permit(who, dir, W | X)?;
            if kernel.memory.type_of(ino) == FileType::Directory {
                return Err(Errno::EPERM);
            }
            let epoch = kernel.told.epoch();
            let made = kernel.answer(|vfs| vfs.link(who, ino, dir, OsStr::new(name)))?;
            kernel.memory.learn(made.attr, made.attr_ttl, 1);
            kernel.memory.set_name((dir, name), Some(made.attr.ino), made.entry_ttl, epoch);
            kernel.memory.doubt(dir);
            Ok(())
        })
    }

    /// Checks that a caller may remove a name.
    fn may_delete(&mut self, who: &Caller, dir: Ino, ino: Ino, is_dir: bool) -> Reply<()> {
        self.permit(who, dir, W | X)?;
        let (above, attr) = (self.attr(who, dir)?, self.attr(who, ino)?);
        if User::of(who).sticks(rights_of(&above), rights_of(&attr)) {
            return Err(Errno::EPERM);
        }
        match (is_dir, attr.file_type == FileType::Directory) {
            (true, false) => Err(Errno::ENOTDIR),
            (false, true) => Err(Errno::EISDIR),
            _ => Ok(()),
        }
    }

    fn remove(&mut self, who: &Caller, path: &str, is_dir: bool) -> Reply<()> {
        self.system_call(|kernel, again| {
            let Place { dir, name, ino } = kernel.place(who, path, again, false)?;
            kernel.may_delete(who, dir, ino.ok_or(Errno::ENOENT)?, is_dir)?;
            if is_dir {
                kernel.answer(|vfs| vfs.rmdir(who, dir, OsStr::new(name)))?;
            } else {
                kernel.answer(|vfs| vfs.unlink(who, dir, OsStr::new(name)))?;
            }
            kernel.memory.drop_name(dir, name);
            kernel.memory.doubt(dir);
            Ok(())
        })
    }

    pub(in crate::daemon::tests) fn unlink(&mut self, who: &Caller, path: &str) -> Reply<()> {
        self.remove(who, path, false)
    }

    pub(in crate::daemon::tests) fn rmdir(&mut self, who: &Caller, path: &str) -> Reply<()> {
        self.remove(who, path, true)
    }

    pub(in crate::daemon::tests) fn rename(
        &mut self,
        who: &Caller,
        from: &str,
        to: &str,
    ) -> Reply<()> {
        self.system_call(|kernel, again| {
            kernel.walk(who, from, again)?;
            kernel.walk(who, to, again)?;
            let source = kernel.place(who, from, again, false)?;
            let ino = source.ino.ok_or(Errno::ENOENT)?;
            let target = kernel.place(who, to, again, true)?;
            if is_below(to, from) {
                return Err(Errno::EINVAL);
            }
            if is_below(from, to) {
                return Err(Errno::ENOTEMPTY);
            }
            if target.ino == Some(ino) {
                return Ok(());
            }
            let is_dir = kernel.memory.type_of(ino) == FileType::Directory;
            kernel.may_delete(who, source.dir, ino, is_dir)?;
            match target.ino {
                Some(taken) => kernel.may_delete(who, target.dir, taken, is_dir)?,
                None => kernel.permit(who, target.dir, W | X)?,
            }
            if is_dir && source.dir != target.dir {
                kernel.permit(who, ino, W)?;
            }
            let (one, other) = ((source.dir, source.name), (target.dir, target.name));
            let named = |(dir, name): (Ino, &'_ str)| (dir, name.to_owned());
            let (old, new) = (named(one), named(other));
            kernel.answer(|vfs| {
                let (old, new) = ((old.0, OsStr::new(&old.1)), (new.0, OsStr::new(&new.1)));
                vfs.rename(who, old, new, RenameMode::Replace)
            })?;
            kernel.memory.move_name(one, other);
            kernel.memory.doubt(source.dir);
            kernel.memory.doubt(target.dir);
            Ok(())
        })
    }

    /// Exchanges two names, as root does.
    pub(in crate::daemon::tests) fn exchange(
        &mut self,
        who: &Caller,
        from: &str,
        to: &str,
    ) -> Reply<()> {
        self.system_call(|kernel, again| {
            let one = kernel.place(who, from, again, false)?;
            let other = kernel.place(who, to, again, false)?;
            kernel.answer(|vfs| {
                let (one, other) =
                    ((one.dir, OsStr::new(one.name)), (other.dir, OsStr::new(other.name)));
                vfs.rename(who, one, other, RenameMode::Exchange)
            })?;
            for place in [one, other] {
                kernel.memory.drop_name(place.dir, place.name);
                kernel.memory.doubt(place.dir);
            }
            Ok(())
        })
    }

    pub(in crate::daemon::tests) fn truncate(
        &mut self,
        who: &Caller,
        path: &str,
        size: u64,
    ) -> Reply<()> {
        self.on_inode(who, path, |kernel, ino| {
            match kernel.memory.type_of(ino) {
                FileType::Directory => return Err(Errno::EISDIR),
                FileType::File => {}
                _ => return Err(Errno::EINVAL),
            }
            kernel.permit(who, ino, W)?;
            kernel.change(who, ino, SetAttr { size: Some(size), ..SetAttr::default() })
        })
    }

    /// Changes attributes of an inode.
    pub(super) fn change(&mut self, who: &Caller, ino: Ino, set: SetAttr) -> Reply<()> {
        let (attr, ttl) = self.answer(|vfs| vfs.setattr(who, ino, set))?;
        self.memory.learn(attr, ttl, 0);
        Ok(())
    }

    pub(in crate::daemon::tests) fn chmod(
        &mut self,
        who: &Caller,
        path: &str,
        mode: u32,
    ) -> Reply<()> {
        self.on_inode(who, path, |kernel, ino| {
            kernel.must_own(who, ino)?;
            kernel.change(who, ino, SetAttr { mode: Some(mode), ..SetAttr::default() })
        })
    }

    /// Lists a directory a few names at a time. Asserts that a listing without attributes shows the
    /// same names with the same numbers and types.
    pub(in crate::daemon::tests) fn list(
        &mut self,
        who: &Caller,
        path: &str,
    ) -> Reply<Vec<String>> {
        self.on_inode(who, path, |kernel, ino| {
            if kernel.memory.type_of(ino) != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            kernel.permit(who, ino, R)?;
            let handle = kernel.answer(|vfs| vfs.opendir(who, ino))?;
            let (mut names, mut at) = (Vec::new(), 0);
            let mut full = Vec::new();
            loop {
                let (mut room, before) = (3, at);
                let mut told = Vec::new();
                kernel.rooms().fs.readdir(ino, handle, at, true, &mut |entry| {
                    if room == 0 {
                        return true;
                    }
                    room -= 1;
                    at = entry.next;
                    if let Some(found) = &entry.found {
                        told.push((entry.name.to_str().unwrap().to_owned(), *found));
                    }
                    false
                })?;
                for (name, found) in told {
                    let epoch = kernel.told.epoch();
                    kernel.memory.learn(found.attr, found.attr_ttl, 1);
                    let ino_of = Some(found.attr.ino);
                    kernel.memory.set_name((ino, &name), ino_of, found.entry_ttl, epoch);
                    full.push((name.clone(), found.attr.ino, found.attr.file_type));
                    names.push(name);
                }
                if at == before {
                    break;
                }
            }
            let mut plain = Vec::new();
            kernel.rooms().fs.readdir(ino, handle, 2, false, &mut |entry| {
                plain.push((entry.name.to_str().unwrap().to_owned(), entry.ino, entry.file_type));
                false
            })?;
            assert_eq!(plain, full, "the listing of {path:?} without attributes");
            kernel.rooms().fs.releasedir(ino, handle);
            Ok(names)
        })
    }

    /// Lists the names of a directory without their attributes.
    pub(in crate::daemon::tests) fn numbers(
        &mut self,
        who: &Caller,
        path: &str,
    ) -> Reply<Vec<(String, Ino)>> {
        let ino = self.find(who, path, false)?;
        let handle = self.answer(|vfs| vfs.opendir(who, ino))?;
        let mut names = Vec::new();
        self.rooms().fs.readdir(ino, handle, 2, false, &mut |entry| {
            names.push((entry.name.to_str().unwrap().to_owned(), entry.ino));
            false
        })?;
        self.rooms().fs.releasedir(ino, handle);
        Ok(names)
    }

    pub(in crate::daemon::tests) fn set_xattr(
        &mut self,
        who: &Caller,
        path: &str,
        name: &str,
        value: &[u8],
    ) -> Reply<()> {
        self.on_inode(who, path, |kernel, ino| {
            kernel.permit(who, ino, W)?;
            kernel.answer(|vfs| vfs.setxattr(who, ino, OsStr::new(name), value, XattrMode::Any))
        })
    }

    pub(in crate::daemon::tests) fn xattr(
        &mut self,
        who: &Caller,
        path: &str,
        name: &str,
    ) -> Reply<Vec<u8>> {
        self.on_inode(who, path, |kernel, ino| {
            kernel.permit(who, ino, R)?;
            kernel.answer(|vfs| vfs.getxattr(who, ino, OsStr::new(name)))
        })
    }
}
