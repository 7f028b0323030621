//! System calls on open files: descriptors, what they share, and mappings.
//!
//! Each `open` makes an open file. Descriptors and mappings hold it. FLUSH comes for each
//! descriptor that is closed, RELEASE when nothing holds it any more.

use std::ffi::OsStr;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use hearthfs_mount::{
    Answer, Attr, Backing, Caller, Errno, FileType, FlockKind, Handle, Ino, Io, OpenFlags, Opened,
    Reply, SetAttr, Vfs as _, XattrMode,
};

use super::walk::Place;
use super::{Fd, Kernel};
use crate::daemon::tests::users::{R, W, X};

/// The longest file in these tests, and more than they read at once.
const READ_MAX: u32 = 1 << 16;

/// An open file.
#[derive(Clone, Debug)]
pub(super) struct File {
    pub(super) ino: Ino,
    opened: Opened,
    flags: OpenFlags,
    /// The number of descriptors and mappings that hold it.
    held: u32,
}

/// Bytes that were stored through a mapping and are not written back yet.
#[derive(Debug)]
pub(super) struct Stored {
    ino: Ino,
    at: u64,
    bytes: Vec<u8>,
}

fn wants(flags: OpenFlags) -> u32 {
    (if flags.reads() { R } else { 0 }) | (if flags.changes() { W } else { 0 })
}

impl Kernel<'_> {
    pub(in crate::daemon::tests) fn open(
        &mut self,
        who: &Caller,
        path: &str,
        fd: Fd,
        flags: OpenFlags,
        create: bool,
    ) -> Reply<()> {
        self.open_as(who, path, fd, flags, create.then_some(0o644))
    }

    /// Opens a file. With `mode`, the file is made if it is missing.
    pub(in crate::daemon::tests) fn open_as(
        &mut self,
        who: &Caller,
        path: &str,
        fd: Fd,
        flags: OpenFlags,
        mode: Option<u32>,
    ) -> Reply<()> {
        self.system_call(|kernel, again| {
            let exclusive = mode.is_some() && flags.exclusive;
            let Place { dir, name, ino } = kernel.place(who, path, again, exclusive)?;
            match (ino, mode) {
                (Some(_), _) if exclusive => Err(Errno::EEXIST),
                (Some(ino), _) => kernel.open_found(who, ino, fd, flags),
                (None, None) => Err(Errno::ENOENT),
                (None, Some(mode)) => {
                    kernel.permit(who, dir, W | X)?;
                    let epoch = kernel.told.epoch();
                    let made =
                        kernel.answer(|vfs| vfs.create(who, dir, OsStr::new(name), mode, flags))?;
                    let (attr, ttl) = (made.found.attr, made.found.entry_ttl);
                    kernel.memory.learn(attr, made.found.attr_ttl, 1);
                    kernel.memory.set_name((dir, name), Some(attr.ino), ttl, epoch);
                    kernel.memory.doubt(dir);
                    kernel.add_file(fd, attr.ino, made.opened, flags);
                    Ok(())
                }
            }
        })
    }

    fn open_found(&mut self, who: &Caller, ino: Ino, fd: Fd, flags: OpenFlags) -> Reply<()> {
        if self.memory.type_of(ino) == FileType::Directory {
            return Err(Errno::EISDIR);
        }
        self.permit(who, ino, wants(flags))?;
        let flags = OpenFlags { exclusive: false, ..flags };
        let opened = self.answer(|vfs| vfs.open(who, ino, flags))?;
        if flags.truncate {
            self.memory.doubt(ino);
        }
        self.add_file(fd, ino, opened, flags);
        Ok(())
    }

    fn add_file(&mut self, fd: Fd, ino: Ino, opened: Opened, flags: OpenFlags) {
        self.descriptors.insert(fd, fd);
        self.files.insert(fd, File { ino, opened, flags, held: 1 });
    }

    /// Opens the file of a descriptor once more, through `/proc/self/fd`. No name is looked up.
    pub(in crate::daemon::tests) fn reopen(
        &mut self,
        who: &Caller,
        fd: Fd,
        new: Fd,
        flags: OpenFlags,
    ) -> Reply<()> {
        let ino = self.of(fd).0;
        self.system_call(|kernel, _| kernel.open_found(who, ino, new, flags))
    }

    /// Makes another descriptor of the same open file, for the same program or another.
    pub(in crate::daemon::tests) fn duplicate(&mut self, fd: Fd, new: Fd) {
        let file = self.descriptors[&fd];
        self.files.get_mut(&file).unwrap().held += 1;
        self.descriptors.insert(new, file);
    }

    /// Reports whether a shared mapping of a descriptor goes through the page cache.
    pub(in crate::daemon::tests) fn maps_through_cache(&self, fd: Fd) -> bool {
        let file = self.file(fd);
        file.flags.reads() && file.flags.writes() && matches!(file.opened.io, Io::Cached { .. })
    }

    /// Returns the file that the kernel itself reads and writes for a descriptor. A mapping holds
    /// it after the last close.
    pub(in crate::daemon::tests) fn backing_of(&self, fd: Fd) -> Option<Arc<Backing>> {
        match &self.file(fd).opened.io {
            Io::Passthrough(backing) | Io::Beside(backing) => Some(Arc::clone(backing)),
            _ => None,
        }
    }

    /// Reports whether a descriptor can read.
    pub(in crate::daemon::tests) fn reads(&self, fd: Fd) -> bool {
        self.file(fd).flags.reads()
    }

    /// Makes a file survive a power loss.
    pub(in crate::daemon::tests) fn sync(&self, fd: Fd) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        self.answer(|vfs| vfs.fsync(ino, handle, false))
    }

    /// Stores through a mapping. The kernel chooses when the pages are written.
    pub(in crate::daemon::tests) fn store(&mut self, fd: Fd, at: u64, bytes: &[u8]) {
        let ino = self.of(fd).0;
        self.stored.push(Stored { ino, at, bytes: bytes.to_vec() });
    }

    /// Writes what was stored through a mapping, as the kernel does from time to time.
    pub(in crate::daemon::tests) fn write_back_mapping(&mut self, mapping: Fd) {
        self.write_back(self.of(mapping).0);
    }

    /// Writes the stored bytes through any handle of the inode that can write.
    pub(super) fn write_back(&mut self, ino: Ino) {
        let (mine, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.stored).into_iter().partition(|stored| stored.ino == ino);
        self.stored = others;
        for Stored { at, bytes, .. } in mine {
            let mut writers: Vec<_> =
                self.files.iter().filter(|(_, f)| f.ino == ino && f.flags.writes()).collect();
            writers.sort_by_key(|(number, _)| **number);
            let handle = writers.last().expect("a mapping holds its file").1.opened.handle;
            let count = self.answer(|vfs| vfs.write(ino, handle, at, &bytes, true)).unwrap();
            assert_eq!(count as usize, bytes.len());
        }
    }

    fn file(&self, fd: Fd) -> &File {
        &self.files[&self.descriptors[&fd]]
    }

    pub(super) fn of(&self, fd: Fd) -> (Ino, Handle, &Io) {
        let file = self.file(fd);
        (file.ino, file.opened.handle, &file.opened.io)
    }

    pub(in crate::daemon::tests) fn write(&mut self, fd: Fd, at: u64, bytes: &[u8]) -> Reply<()> {
        self.write_back(self.of(fd).0);
        let File { ino, opened, flags, .. } = self.file(fd).clone();
        if let Io::Passthrough(backing) = &opened.io {
            let file = backing.file();
            let end = || file.metadata().map(|meta| meta.len());
            let at = if flags.append { end().map_err(Errno::from)? } else { at };
            file.write_all_at(bytes, at).map_err(Errno::from)?;
        } else {
            let count = self.answer(|vfs| vfs.write(ino, opened.handle, at, bytes, false))?;
            assert_eq!(count as usize, bytes.len());
        }
        self.memory.doubt(ino);
        self.end_call();
        Ok(())
    }

    /// Sends bytes that were stored through a mapping of the inode, with a handle that may not be
    /// the mapping's own.
    pub(in crate::daemon::tests) fn write_stored(
        &self,
        fd: Fd,
        at: u64,
        bytes: &[u8],
    ) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        let count = self.answer(|vfs| vfs.write(ino, handle, at, bytes, true))?;
        assert_eq!(count as usize, bytes.len());
        Ok(())
    }

    pub(in crate::daemon::tests) fn read(&mut self, fd: Fd) -> Reply<Vec<u8>> {
        self.write_back(self.of(fd).0);
        let (ino, handle, io) = self.of(fd);
        let read = if let Io::Passthrough(backing) = io {
            let mut bytes = vec![0; READ_MAX as usize];
            let count = backing.file().read_at(&mut bytes, 0).map_err(Errno::from)?;
            bytes.truncate(count);
            Ok(bytes)
        } else {
            self.answer(|vfs| vfs.read(ino, handle, 0, READ_MAX))
        };
        self.end_call();
        read
    }

    /// Requests the attributes of an open file, with or without the handle: kernels do both.
    pub(in crate::daemon::tests) fn stat_of(
        &self,
        who: &Caller,
        fd: Fd,
        by_handle: bool,
    ) -> Reply<Attr> {
        let (ino, handle, _) = self.of(fd);
        self.answer(|vfs| vfs.getattr(who, ino, by_handle.then_some(handle))).map(|(attr, _)| attr)
    }

    pub(in crate::daemon::tests) fn set_mode(
        &mut self,
        who: &Caller,
        fd: Fd,
        mode: u32,
    ) -> Reply<()> {
        let ino = self.of(fd).0;
        self.system_call(|kernel, _| {
            kernel.must_own(who, ino)?;
            kernel.change(who, ino, SetAttr { mode: Some(mode), ..SetAttr::default() })
        })
    }

    pub(in crate::daemon::tests) fn set_size(
        &mut self,
        who: &Caller,
        fd: Fd,
        size: u64,
    ) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        self.write_back(ino);
        let set = SetAttr { size: Some(size), handle: Some(handle), ..SetAttr::default() };
        self.system_call(|kernel, _| kernel.change(who, ino, set))
    }

    /// Requests the lock of an open file, or releases it, without waiting.
    pub(in crate::daemon::tests) fn flock(
        &mut self,
        who: &Caller,
        fd: Fd,
        kind: FlockKind,
    ) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        self.system_call(|kernel, _| kernel.answer(|vfs| vfs.flock(who, ino, handle, kind, false)))
    }

    /// Closes a duplicate of a descriptor.
    pub(in crate::daemon::tests) fn close_duplicate(&self, who: &Caller, fd: Fd) -> Reply<()> {
        let (ino, handle, _) = self.of(fd);
        self.answer(|vfs| vfs.flush(who, ino, handle))
    }

    /// Closes a descriptor; `who` may be a task that a signal is killing.
    pub(in crate::daemon::tests) fn close(&mut self, who: &Caller, fd: Fd) -> Reply<()> {
        self.write_back(self.of(fd).0);
        let File { ino, opened, .. } = self.file(fd).clone();
        let done = if opened.no_flush {
            Ok(())
        } else {
            self.answer(|vfs| vfs.flush(who, ino, opened.handle))
        };
        let file = self.descriptors.remove(&fd).unwrap();
        self.let_go(file)?;
        self.end_call();
        done
    }

    /// Maps the file of a descriptor. The mapping holds the open file, and lasts longer than the
    /// descriptor.
    pub(in crate::daemon::tests) fn map(&mut self, fd: Fd, mapping: Fd) {
        self.duplicate(fd, mapping);
    }

    pub(in crate::daemon::tests) fn unmap(&mut self, mapping: Fd) -> Reply<()> {
        self.write_back(self.of(mapping).0);
        let file = self.descriptors.remove(&mapping).unwrap();
        let done = self.let_go(file);
        self.end_call();
        done
    }

    /// Ends a mapping that is the last holder of its file. `meanwhile` runs before the node has
    /// finished.
    pub(in crate::daemon::tests) fn unmap_slowly(
        &mut self,
        mapping: Fd,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Reply<()> {
        self.write_back(self.of(mapping).0);
        let file = self.descriptors.remove(&mapping).unwrap();
        let File { ino, opened, .. } = self.files.remove(&file).unwrap();
        let release = self.rooms().fs.release(ino, opened.handle);
        meanwhile(self);
        match release {
            Answer::Now(reply) => reply,
            Answer::Later(work) => self.runtime.block_on(work),
        }
    }

    /// Opens a file that the kernel knows already, and reports whether the answer was immediate.
    pub(in crate::daemon::tests) fn opens_at_once(
        &mut self,
        who: &Caller,
        path: &str,
        flags: OpenFlags,
    ) -> Reply<bool> {
        let ino = self.find(who, path, false)?;
        let answer = self.rooms().fs.open(who, ino, flags);
        let at_once = matches!(answer, Answer::Now(_));
        let opened = match answer {
            Answer::Now(reply) => reply,
            Answer::Later(work) => self.runtime.block_on(work),
        }?;
        self.answer(|vfs| vfs.release(ino, opened.handle)).map(|()| at_once)
    }

    fn let_go(&mut self, number: Fd) -> Reply<()> {
        let file = self.files.get_mut(&number).unwrap();
        file.held -= 1;
        if file.held > 0 {
            return Ok(());
        }
        let File { ino, opened, .. } = self.files.remove(&number).unwrap();
        self.answer(|vfs| vfs.release(ino, opened.handle))
    }

    pub(in crate::daemon::tests) fn set_xattr_of(
        &self,
        who: &Caller,
        fd: Fd,
        name: &str,
        to: &[u8],
    ) -> Reply<()> {
        let ino = self.of(fd).0;
        self.answer(|vfs| vfs.setxattr(who, ino, OsStr::new(name), to, XattrMode::Any))
    }

    pub(in crate::daemon::tests) fn xattr_of(
        &self,
        who: &Caller,
        fd: Fd,
        name: &str,
    ) -> Reply<Vec<u8>> {
        let ino = self.of(fd).0;
        self.answer(|vfs| vfs.getxattr(who, ino, OsStr::new(name)))
    }

    /// Looks a name up, runs something in between, and opens what it has found, once.
    pub(in crate::daemon::tests) fn open_late(
        &mut self,
        who: &Caller,
        path: &str,
        flags: OpenFlags,
        meanwhile: impl FnOnce(&mut Self),
    ) -> Reply<()> {
        let ino = self.find(who, path, false)?;
        meanwhile(self);
        self.answer(|vfs| vfs.open(who, ino, flags)).map(drop)
    }

    /// Opens a file, or truncates it to a size. Something runs before each lookup and each
    /// operation.
    pub(in crate::daemon::tests) fn race(
        &mut self,
        who: &Caller,
        path: &str,
        act: Result<(Fd, OpenFlags), u64>,
        mut meanwhile: impl FnMut(&mut Self),
    ) -> Reply<()> {
        self.system_call(|kernel, again| {
            meanwhile(kernel);
            let ino = kernel.find(who, path, again)?;
            meanwhile(kernel);
            match act {
                Ok((fd, flags)) => {
                    let opened = kernel.answer(|vfs| vfs.open(who, ino, flags))?;
                    kernel.add_file(fd, ino, opened, flags);
                }
                Err(size) => {
                    let set = SetAttr { size: Some(size), ..SetAttr::default() };
                    kernel.answer(|vfs| vfs.setattr(who, ino, set))?;
                }
            }
            Ok(())
        })
    }
}
