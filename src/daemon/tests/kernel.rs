//! A kernel of the simplest kind above one node: it looks every name up anew, repeats once what is
//! answered with ESTALE, and reads and writes backing files itself where it was told to.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hearthfs_mount::{
    Abilities, Answer, Attr, Caller, Errno, FileType, Handle, Ino, Io, Lookup, OpenFlags, Opened,
    RenameMode, Reply, SetAttr, Vfs, XattrMode,
};
use tokio::runtime::Runtime;

use crate::config::Settings;
use crate::daemon::build::{self, Rooms};

/// The longest file that these tests make, and more than they ever read at once.
const READ_MAX: u32 = 1 << 16;

/// An open file.
#[derive(Debug)]
struct Open {
    ino: Ino,
    opened: Opened,
}

/// A number by which a program calls an open file.
pub(super) type Fd = u32;

/// One node and the kernel above it.
#[derive(Debug)]
pub(super) struct Kernel<'a> {
    runtime: &'a Runtime,
    settings: Settings,
    passthrough: bool,
    rooms: Option<Rooms>,
    open: HashMap<Fd, Open>,
    /// What the file system believes that we remember: how often, and whether it is a directory.
    known: HashMap<Ino, (u64, bool)>,
}

impl<'a> Kernel<'a> {
    pub(super) fn start(runtime: &'a Runtime, settings: Settings, passthrough: bool) -> Self {
        let (open, known) = (HashMap::new(), HashMap::new());
        let mut kernel = Self { runtime, settings, passthrough, rooms: None, open, known };
        kernel.up();
        kernel
    }

    fn up(&mut self) {
        let mount_point = self.settings.local.cache_dir.parent().unwrap();
        let rooms = build::rooms(self.runtime.handle(), &self.settings, mount_point).unwrap();
        rooms.fs.start(Abilities {
            passthrough: self.passthrough,
            passthrough_refusal: None,
            flock_refusal: None,
        });
        self.rooms = Some(rooms);
    }

    /// Ends the node, in an orderly way or as SIGKILL does, and starts it again on the same directory.
    pub(super) fn restart(&mut self, orderly: bool) {
        self.end(orderly);
        self.up();
    }

    fn end(&mut self, orderly: bool) {
        self.open.clear();
        self.known.clear();
        let Some(rooms) = self.rooms.take() else { return };
        if orderly {
            self.runtime.block_on(rooms.engine.stop());
            rooms.finish();
        } else {
            self.runtime.block_on(rooms.engine.kill());
        }
    }

    pub(super) fn rooms(&self) -> &Rooms {
        self.rooms.as_ref().unwrap()
    }

    fn answer<T>(&self, ask: impl FnOnce(&dyn Vfs) -> Answer<T>) -> Reply<T> {
        match ask(&self.rooms().fs) {
            Answer::Now(reply) => reply,
            Answer::Later(work) => self.runtime.block_on(work),
        }
    }

    fn learn(&mut self, told: &Attr) {
        let known = self.known.entry(told.ino).or_default();
        *known = (known.0 + 1, told.file_type == FileType::Directory);
    }

    /// Forgets what it was told, as under pressure of memory; but no directory while a file is open, which
    /// may lie in it.
    pub(super) fn forget(&mut self) {
        let keep_dirs = !self.open.is_empty();
        let (kept, gone): (HashMap<_, _>, HashMap<_, _>) =
            self.known.drain().partition(|(_, (_, is_dir))| *is_dir && keep_dirs);
        self.known = kept;
        for (ino, (count, _)) in gone {
            self.rooms().fs.forget(ino, count);
        }
    }

    fn look_up(&mut self, who: &Caller, dir: Ino, name: &str) -> Reply<Option<Attr>> {
        match self.answer(|vfs| vfs.lookup(who, dir, OsStr::new(name)))? {
            Lookup::Found(found) => {
                self.learn(&found.attr);
                Ok(Some(found.attr))
            }
            Lookup::Missing { .. } => Ok(None),
        }
    }

    /// Walks to the directory of a path; returns it and the last name.
    fn walk<'p>(&mut self, who: &Caller, path: &'p str) -> Reply<(Ino, &'p str)> {
        let (dirs, name) = path.rsplit_once('/').unwrap_or(("", path));
        let mut at = Ino::ROOT;
        for part in dirs.split('/').filter(|part| !part.is_empty()) {
            let found = self.look_up(who, at, part)?.ok_or(Errno::ENOENT)?;
            if found.file_type != FileType::Directory {
                return Err(Errno::ENOTDIR);
            }
            at = found.ino;
        }
        Ok((at, name))
    }

    fn find(&mut self, who: &Caller, path: &str) -> Reply<Attr> {
        if path.is_empty() {
            return self.answer(|vfs| vfs.getattr(who, Ino::ROOT, None)).map(|(attr, _)| attr);
        }
        let (dir, name) = self.walk(who, path)?;
        self.look_up(who, dir, name)?.ok_or(Errno::ENOENT)
    }

    /// Does something that may have to be told once that what it looked up is stale.
    fn twice<T>(&mut self, mut act: impl FnMut(&mut Self) -> Reply<T>) -> Reply<T> {
        match act(self) {
            Err(Errno::ESTALE) => act(self),
            done => done,
        }
    }

    pub(super) fn stat(&mut self, who: &Caller, path: &str) -> Reply<Attr> {
        self.find(who, path)
    }

    pub(super) fn open(
        &mut self,
        who: &Caller,
        path: &str,
        fd: Fd,
        flags: OpenFlags,
        create: bool,
    ) -> Reply<()> {
        self.twice(|kernel| {
            let (dir, name) = kernel.walk(who, path)?;
            let (ino, opened) = match kernel.look_up(who, dir, name)? {
                Some(_) if create && flags.exclusive => return Err(Errno::EEXIST),
                Some(found) if found.file_type == FileType::Directory && flags.write => {
                    return Err(Errno::EISDIR);
                }
                Some(found) => {
                    let flags = OpenFlags { exclusive: false, ..flags };
                    (found.ino, kernel.answer(|vfs| vfs.open(who, found.ino, flags))?)
                }
                None if create => {
                    let name = OsStr::new(name);
                    let made = kernel.answer(|vfs| vfs.create(who, dir, name, 0o644, flags))?;
                    kernel.learn(&made.found.attr);
                    (made.found.attr.ino, made.opened)
                }
                None => return Err(Errno::ENOENT),
            };
            kernel.open.insert(fd, Open { ino, opened });
            Ok(())
        })
    }

    fn of(&self, fd: Fd) -> (Ino, Handle, &Io) {
        let open = &self.open[&fd];
        (open.ino, open.opened.handle, &open.opened.io)
    }

    pub(super) fn write(&self, fd: Fd, at: u64, bytes: &[u8]) -> Reply<()> {
        let (ino, handle, io) = self.of(fd);
        if let Io::Passthrough(backing) = io {
            return backing.file().write_all_at(bytes, at).map_err(Errno::from);
        }
        let count = self.answer(|vfs| vfs.write(ino, handle, at, bytes, false))?;
        assert_eq!(count as usize, bytes.len());
        Ok(())
    }

    /// Brings what was stored through a mapping of the inode, by a handle of which only that is known.
    pub(super) fn write_stored(&self, fd: Fd, at: u64, bytes: &[u8]) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        let count = self.answer(|vfs| vfs.write(ino, handle, at, bytes, true))?;
        assert_eq!(count as usize, bytes.len());
        Ok(())
    }

    pub(super) fn read(&self, fd: Fd) -> Reply<Vec<u8>> {
        let (ino, handle, io) = self.of(fd);
        if let Io::Passthrough(backing) = io {
            let mut bytes = vec![0; READ_MAX as usize];
            let count = backing.file().read_at(&mut bytes, 0).map_err(Errno::from)?;
            bytes.truncate(count);
            return Ok(bytes);
        }
        self.answer(|vfs| vfs.read(ino, handle, 0, READ_MAX))
    }

    /// Asks for the attributes of an open file, as kernels do, which may name the handle or not.
    pub(super) fn stat_of(&self, who: &Caller, fd: Fd, by_handle: bool) -> Reply<Attr> {
        let (ino, handle, _) = self.of(fd);
        self.answer(|vfs| vfs.getattr(who, ino, by_handle.then_some(handle))).map(|(attr, _)| attr)
    }

    pub(super) fn set_mode(&self, who: &Caller, fd: Fd, mode: u32) -> Reply<()> {
        let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
        self.answer(|vfs| vfs.setattr(who, self.of(fd).0, set)).map(drop)
    }

    pub(super) fn set_size(&self, who: &Caller, fd: Fd, size: u64) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        let set = SetAttr { size: Some(size), handle: Some(handle), ..SetAttr::default() };
        self.answer(|vfs| vfs.setattr(who, ino, set)).map(drop)
    }

    pub(super) fn truncate(&mut self, who: &Caller, path: &str, size: u64) -> Reply<()> {
        let set = SetAttr { size: Some(size), ..SetAttr::default() };
        self.twice(|kernel| {
            let found = kernel.find(who, path)?;
            match found.file_type {
                FileType::Directory => return Err(Errno::EISDIR),
                FileType::File => {}
                _ => return Err(Errno::EINVAL),
            }
            kernel.answer(|vfs| vfs.setattr(who, found.ino, set)).map(drop)
        })
    }

    /// Looks a name up, lets something happen, and opens what it has found, once.
    pub(super) fn open_late(
        &mut self,
        who: &Caller,
        path: &str,
        flags: OpenFlags,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Reply<()> {
        let found = self.find(who, path)?;
        meanwhile(self);
        self.answer(|vfs| vfs.open(who, found.ino, flags)).map(drop)
    }

    /// Opens a file, or cuts it to a size; something happens before each look and each act.
    pub(super) fn race(
        &mut self,
        who: &Caller,
        path: &str,
        act: Result<(Fd, OpenFlags), u64>,
        mut meanwhile: impl FnMut(&mut Self),
    ) -> Reply<()> {
        self.twice(|kernel| {
            meanwhile(kernel);
            let ino = kernel.find(who, path)?.ino;
            meanwhile(kernel);
            match act {
                Ok((fd, flags)) => {
                    let opened = kernel.answer(|vfs| vfs.open(who, ino, flags))?;
                    kernel.open.insert(fd, Open { ino, opened });
                }
                Err(size) => {
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    kernel.answer(|vfs| vfs.setattr(who, ino, set))?;
                }
            }
            Ok(())
        })
    }

    /// Closes a duplicate of a descriptor.
    pub(super) fn close_duplicate(&self, who: &Caller, fd: Fd) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        self.answer(|vfs| vfs.flush(who, ino, handle))
    }

    /// Closes a descriptor; `who` may be a task that a signal is killing.
    pub(super) fn close(&mut self, who: &Caller, fd: Fd) -> Reply<()> {
        let Open { ino, opened } = self.open.remove(&fd).unwrap();
        let Opened { handle, no_flush, .. } = opened;
        let done = if no_flush { Ok(()) } else { self.answer(|vfs| vfs.flush(who, ino, handle)) };
        self.answer(|vfs| vfs.release(ino, handle))?;
        done
    }

    pub(super) fn mkdir(&mut self, who: &Caller, path: &str) -> Reply<()> {
        let (dir, name) = self.walk(who, path)?;
        let made = self.answer(|vfs| vfs.mkdir(who, dir, OsStr::new(name), 0o755))?;
        self.learn(&made.attr);
        Ok(())
    }

    pub(super) fn symlink(&mut self, who: &Caller, path: &str, target: &str) -> Reply<()> {
        let (dir, name) = self.walk(who, path)?;
        let target = Path::new(target);
        let made = self.answer(|vfs| vfs.symlink(who, dir, OsStr::new(name), target))?;
        self.learn(&made.attr);
        Ok(())
    }

    pub(super) fn read_link(&mut self, who: &Caller, path: &str) -> Reply<Vec<u8>> {
        let found = self.find(who, path)?;
        self.answer(|vfs| vfs.readlink(who, found.ino))
    }

    pub(super) fn link(&mut self, who: &Caller, from: &str, to: &str) -> Reply<()> {
        let found = self.find(who, from)?;
        let (dir, name) = self.walk(who, to)?;
        let made = self.answer(|vfs| vfs.link(who, found.ino, dir, OsStr::new(name)))?;
        self.learn(&made.attr);
        Ok(())
    }

    pub(super) fn unlink(&mut self, who: &Caller, path: &str) -> Reply<()> {
        let (dir, name) = self.walk(who, path)?;
        self.answer(|vfs| vfs.unlink(who, dir, OsStr::new(name)))
    }

    pub(super) fn rmdir(&mut self, who: &Caller, path: &str) -> Reply<()> {
        let (dir, name) = self.walk(who, path)?;
        self.answer(|vfs| vfs.rmdir(who, dir, OsStr::new(name)))
    }

    pub(super) fn rename(&mut self, who: &Caller, from: &str, to: &str) -> Reply<()> {
        let (from, to) = (self.walk(who, from)?, self.walk(who, to)?);
        let (from, to) = ((from.0, OsStr::new(from.1)), (to.0, OsStr::new(to.1)));
        self.answer(|vfs| vfs.rename(who, from, to, RenameMode::Replace))
    }

    /// Lists a directory a few names at a time.
    pub(super) fn list(&mut self, who: &Caller, path: &str) -> Reply<Vec<String>> {
        let found = self.find(who, path)?;
        if found.file_type != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        let handle = self.answer(|vfs| vfs.opendir(who, found.ino))?;
        let (mut names, mut told, mut at) = (Vec::new(), Vec::new(), 0);
        loop {
            let mut room = 3;
            let before = at;
            self.rooms().fs.readdir(found.ino, handle, at, true, &mut |entry| {
                if room == 0 {
                    return true;
                }
                room -= 1;
                at = entry.next;
                if let Some(found) = &entry.found {
                    names.push(entry.name.to_str().unwrap().to_owned());
                    told.push(found.attr);
                }
                false
            })?;
            if at == before {
                break;
            }
        }
        self.rooms().fs.releasedir(found.ino, handle);
        for attr in &told {
            self.learn(attr);
        }
        Ok(names)
    }

    /// Lists the names of a directory without their attributes.
    pub(super) fn numbers(&mut self, who: &Caller, path: &str) -> Reply<Vec<(String, Ino)>> {
        let found = self.find(who, path)?;
        let handle = self.answer(|vfs| vfs.opendir(who, found.ino))?;
        let mut names = Vec::new();
        self.rooms().fs.readdir(found.ino, handle, 2, false, &mut |entry| {
            names.push((entry.name.to_str().unwrap().to_owned(), entry.ino));
            false
        })?;
        self.rooms().fs.releasedir(found.ino, handle);
        Ok(names)
    }

    pub(super) fn set_xattr(
        &mut self,
        who: &Caller,
        path: &str,
        name: &str,
        value: &[u8],
    ) -> Reply<()> {
        let ino = self.find(who, path)?.ino;
        self.answer(|vfs| vfs.setxattr(who, ino, OsStr::new(name), value, XattrMode::Any))
    }

    pub(super) fn xattr(&mut self, who: &Caller, path: &str, name: &str) -> Reply<Vec<u8>> {
        let ino = self.find(who, path)?.ino;
        self.answer(|vfs| vfs.getxattr(who, ino, OsStr::new(name)))
    }

    pub(super) fn set_xattr_of(&self, who: &Caller, fd: Fd, name: &str, to: &[u8]) -> Reply<()> {
        let ino = self.of(fd).0;
        self.answer(|vfs| vfs.setxattr(who, ino, OsStr::new(name), to, XattrMode::Any))
    }

    pub(super) fn xattr_of(&self, who: &Caller, fd: Fd, name: &str) -> Reply<Vec<u8>> {
        let ino = self.of(fd).0;
        self.answer(|vfs| vfs.getxattr(who, ino, OsStr::new(name)))
    }

    /// Brings everything that was published here to the store.
    pub(super) fn drain(&self) {
        let limit = std::time::Duration::from_mins(1);
        let report = self.runtime.block_on(self.rooms().engine.drain(limit, |_| ()));
        assert!(report.complete, "the store is a directory: {report:?}");
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}
