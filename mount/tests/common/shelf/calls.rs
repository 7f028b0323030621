//! The calls of the kernel.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use hearthfs_mount::*;

use super::tree::{Kind, directory};
use super::{Shelf, now};

/// The most names that one call lists; the kernel calls again for more.
const DIR_CHUNK: usize = 512;

fn run<T>(call: impl FnOnce() -> Reply<T>) -> Answer<T> {
    Answer::Now(call())
}

impl Vfs for Shelf {
    fn start(&self, abilities: Abilities) {
        self.lock().abilities = Some(abilities);
    }

    fn lookup(&self, _: &Caller, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        self.trace("lookup");
        run(|| {
            let mut state = self.lock();
            match state.child(parent.0, name) {
                Ok(ino) => Ok(Lookup::Found(self.found(&mut state, ino)?)),
                Err(Errno::ENOENT) => Ok(Lookup::Missing { ttl: self.manners.missing_ttl }),
                Err(errno) => Err(errno),
            }
        })
    }

    fn forget(&self, ino: Ino, count: u64) {
        let mut state = self.lock();
        if let Ok(node) = state.node(ino.0) {
            node.lookups = node.lookups.checked_sub(count).expect("no more forgets than lookups");
        }
        state.reap(ino.0);
    }

    fn getattr(&self, _: &Caller, ino: Ino, _: Option<Handle>) -> Answer<(Attr, Duration)> {
        self.trace("getattr");
        run(|| Ok((self.lock().node(ino.0)?.stat(), self.manners.ttl)))
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: SetAttr) -> Answer<(Attr, Duration)> {
        self.trace("setattr");
        run(|| {
            let mut state = self.lock();
            let node = state.node(ino.0)?;
            if let Some(size) = set.size {
                node.file()?.file().set_len(size)?;
                node.attr.mtime = now();
            }
            if set.uid.is_some() || set.gid.is_some() || (set.size.is_some() && caller.uid != 0) {
                node.drop_privileges();
            }
            let at = |time: SetTime| match time {
                SetTime::Now => now(),
                SetTime::At(time) => time,
            };
            if let Some(time) = set.mtime {
                node.set_at = node.written();
                node.attr.mtime = at(time);
            }
            node.attr.atime = set.atime.map_or(node.attr.atime, at);
            node.attr.perm = set.mode.map_or(node.attr.perm, |mode| mode as u16);
            node.attr.uid = set.uid.unwrap_or(node.attr.uid);
            node.attr.gid = set.gid.unwrap_or(node.attr.gid);
            node.attr.ctime = now();
            Ok((node.stat(), self.manners.ttl))
        })
    }

    fn readlink(&self, _: &Caller, ino: Ino) -> Answer<Vec<u8>> {
        self.trace("readlink");
        run(|| match &self.lock().node(ino.0)?.kind {
            Kind::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        })
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Answer<Found> {
        self.trace("mknod");
        run(|| {
            let what = match mode & 0o170_000 {
                0o010_000 => (FileType::Fifo, Kind::Special),
                0o140_000 => (FileType::Socket, Kind::Special),
                0o020_000 => (FileType::CharDevice, Kind::Special),
                0o060_000 => (FileType::BlockDevice, Kind::Special),
                0o100_000 => (FileType::File, self.new_file()),
                _ => return Err(Errno::EINVAL),
            };
            let (mut found, ino) = self.make(caller, parent, name, mode, what)?;
            self.lock().node(ino)?.attr.rdev = rdev;
            found.attr.rdev = rdev;
            Ok(found)
        })
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &OsStr, mode: u32) -> Answer<Found> {
        self.trace("mkdir");
        let kind = (FileType::Directory, directory(parent.0));
        run(|| Ok(self.make(caller, parent, name, mode, kind)?.0))
    }

    fn unlink(&self, _: &Caller, parent: Ino, name: &OsStr) -> Answer<()> {
        self.trace("unlink");
        run(|| {
            let mut state = self.lock();
            let ino = state.child(parent.0, name)?;
            if state.is_directory(ino)? {
                return Err(Errno::EISDIR);
            }
            state.unlink(parent.0, name)
        })
    }

    fn rmdir(&self, _: &Caller, parent: Ino, name: &OsStr) -> Answer<()> {
        self.trace("rmdir");
        run(|| {
            let mut state = self.lock();
            let ino = state.child(parent.0, name)?;
            if !state.is_empty(ino)? {
                return Err(Errno::ENOTEMPTY);
            }
            state.unlink(parent.0, name)
        })
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &OsStr, target: &Path) -> Answer<Found> {
        self.trace("symlink");
        let kind = (FileType::Symlink, Kind::Symlink(target.as_os_str().as_bytes().to_vec()));
        run(|| Ok(self.make(caller, parent, name, 0o777, kind)?.0))
    }

    fn rename(
        &self,
        _: &Caller,
        (from, old): (Ino, &OsStr),
        (to, new): (Ino, &OsStr),
        mode: RenameMode,
    ) -> Answer<()> {
        self.trace("rename");
        run(|| {
            let mut state = self.lock();
            let ino = state.child(from.0, old)?;
            let target = state.child(to.0, new);
            match (mode, target) {
                (RenameMode::NoReplace, Ok(_)) => return Err(Errno::EEXIST),
                (RenameMode::Exchange, Err(errno)) => return Err(errno),
                (RenameMode::Exchange, Ok(other)) => {
                    state.detach(from.0, old)?;
                    state.detach(to.0, new)?;
                    state.attach(to.0, new, ino)?;
                    return state.attach(from.0, old, other);
                }
                (_, Ok(other)) if other == ino => return Ok(()),
                (_, Ok(other)) => match (state.is_directory(ino)?, state.is_directory(other)?) {
                    (true, false) => return Err(Errno::ENOTDIR),
                    (false, true) => return Err(Errno::EISDIR),
                    (true, true) if !state.is_empty(other)? => return Err(Errno::ENOTEMPTY),
                    _ => state.unlink(to.0, new)?,
                },
                (_, Err(_)) => {}
            }
            state.detach(from.0, old)?;
            state.attach(to.0, new, ino)
        })
    }

    fn link(&self, _: &Caller, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Found> {
        self.trace("link");
        run(|| {
            let mut state = self.lock();
            if state.child(parent.0, name).is_ok() {
                return Err(Errno::EEXIST);
            }
            state.node(ino.0)?.attr.nlink += 1;
            state.attach(parent.0, name, ino.0)?;
            self.found(&mut state, ino.0)
        })
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Answer<Opened> {
        self.trace("open");
        run(|| {
            let mut state = self.lock();
            let node = state.node(ino.0)?;
            if flags.writes() && caller.uid != 0 {
                node.drop_privileges();
            }
            if flags.truncate {
                if self.manners.versions && node.published {
                    let (attr, name) = (node.attr, node.name.clone());
                    let (parent, name) = name.ok_or(Errno::ESTALE)?;
                    if state.child(parent, &name) == Ok(ino.0) {
                        state.unlink(parent, &name)?;
                        let kind = self.new_file();
                        state.add(parent, &name, Attr { nlink: 1, ..attr }, kind)?;
                    }
                    return Err(Errno::ESTALE);
                }
                node.file()?.file().set_len(0)?;
                node.attr.mtime = now();
            }
            self.opened(&mut state, ino.0, flags)
        })
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Answer<Created> {
        self.trace("create");
        run(|| {
            let kind = (FileType::File, self.new_file());
            let (found, ino) = self.make(caller, parent, name, mode, kind)?;
            let opened = self.opened(&mut self.lock(), ino, flags)?;
            Ok(Created { found, opened })
        })
    }

    fn read(&self, ino: Ino, _: Handle, offset: u64, size: u32) -> Answer<Vec<u8>> {
        self.trace("read");
        let backing = match self.lock().node(ino.0).and_then(|node| node.file()) {
            Ok(backing) => backing,
            Err(errno) => return Answer::Now(Err(errno)),
        };
        let read = move || -> Reply<Vec<u8>> {
            let mut bytes = vec![0; size as usize];
            let mut filled = 0;
            while filled < bytes.len() {
                match backing.file().read_at(&mut bytes[filled..], offset + filled as u64)? {
                    0 => break,
                    count => filled += count,
                }
            }
            bytes.truncate(filled);
            Ok(bytes)
        };
        match self.manners.slow_read {
            None => Answer::Now(read()),
            Some(wait) => Answer::later(async move {
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the file system of this test has no clock seam"
                )]
                tokio::time::sleep(wait).await;
                read()
            }),
        }
    }

    fn write(&self, ino: Ino, handle: Handle, offset: u64, data: &[u8], _: bool) -> Answer<u32> {
        self.trace("write");
        run(|| {
            let mut state = self.lock();
            if !state.handles.get(&handle.0).is_some_and(|open| open.write) {
                return Err(Errno::EBADF);
            }
            state.node(ino.0)?.file()?.file().write_all_at(data, offset)?;
            Ok(data.len() as u32)
        })
    }

    fn flush(&self, caller: &Caller, ino: Ino, handle: Handle) -> Answer<()> {
        self.trace("flush");
        let seen = (self.tasks.process_of(caller.tid), self.tasks.is_dying(caller.tid));
        self.closers.lock().unwrap().push(seen);
        run(|| {
            let mut state = self.lock();
            let write = state.handles.get(&handle.0).is_some_and(|open| open.write);
            state.node(ino.0)?.published |= write;
            state.flushed_by.push(caller.tid);
            Ok(())
        })
    }

    fn release(&self, ino: Ino, handle: Handle) -> Answer<()> {
        run(|| {
            let mut state = self.lock();
            let open = state.handles.remove(&handle.0).ok_or(Errno::EBADF)?;
            assert_eq!(open.ino, ino.0);
            state.node(ino.0)?.handles -= 1;
            state.locked = state.locked.filter(|holder| *holder != handle);
            state.reap(ino.0);
            Ok(())
        })
    }

    fn fsync(&self, ino: Ino, _: Handle, data_only: bool) -> Answer<()> {
        self.trace("fsync");
        run(|| {
            let backing = self.lock().node(ino.0)?.file()?;
            let file: &File = backing.file();
            Ok(if data_only { file.sync_data() } else { file.sync_all() }?)
        })
    }

    fn fallocate(&self, ino: Ino, _: Handle, offset: u64, length: u64, mode: i32) -> Answer<()> {
        self.trace("fallocate");
        run(|| {
            let backing = self.lock().node(ino.0)?.file()?;
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(backing.file());
            // SAFETY: plain numbers and an open descriptor.
            match unsafe { libc::fallocate(descriptor, mode, offset as i64, length as i64) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error().into()),
            }
        })
    }

    /// One lock for everything: enough to test that requests arrive, and how answers are handled.
    fn flock(&self, _: &Caller, _: Ino, handle: Handle, kind: FlockKind, wait: bool) -> Answer<()> {
        self.trace(&format!("flock {kind:?} {wait}"));
        run(|| {
            let mut state = self.lock();
            match (kind, state.locked) {
                (FlockKind::Unlock, Some(holder)) if holder == handle => state.locked = None,
                (FlockKind::Unlock, _) => {}
                (_, Some(holder)) if holder != handle => return Err(Errno::EAGAIN),
                _ => state.locked = Some(handle),
            }
            Ok(())
        })
    }

    fn lseek(&self, ino: Ino, _: Handle, offset: i64, whence: i32) -> Answer<i64> {
        self.trace("lseek");
        run(|| {
            let backing = self.lock().node(ino.0)?.file()?;
            let descriptor = std::os::fd::AsRawFd::as_raw_fd(backing.file());
            // SAFETY: plain numbers and an open descriptor.
            match unsafe { libc::lseek(descriptor, offset, whence) } {
                -1 => Err(std::io::Error::last_os_error().into()),
                found => Ok(found),
            }
        })
    }

    fn opendir(&self, _: &Caller, ino: Ino) -> Answer<Handle> {
        self.trace("opendir");
        run(|| {
            self.lock().node(ino.0)?.handles += 1;
            Ok(Handle(0))
        })
    }

    fn readdir(
        &self,
        ino: Ino,
        _: Handle,
        offset: u64,
        plus: bool,
        sink: DirSink<'_>,
    ) -> Reply<()> {
        self.trace(if plus { "readdirplus" } else { "readdir" });
        let mut state = self.lock();
        let Kind::Directory { order, parent, children } = &state.node(ino.0)?.kind else {
            return Err(Errno::ENOTDIR);
        };
        // Cookies of names start above those of the two dots.
        let dots = [(1, ".", ino.0), (2, "..", *parent)];
        let rest = order.range(offset.saturating_sub(1)..).take(DIR_CHUNK);
        let names: Vec<(u64, OsString, u64)> = dots
            .into_iter()
            .map(|(cookie, name, ino)| (cookie, OsString::from(name), ino))
            .chain(rest.map(|(cookie, name)| (cookie + 2, name.clone(), children[name].0)))
            .filter(|(cookie, ..)| *cookie > offset)
            .collect();
        for (next, name, child) in names {
            let node = state.node(child)?;
            let dots = name == "." || name == "..";
            let ttl = self.manners.ttl;
            let found =
                (plus && !dots).then(|| Found { attr: node.stat(), entry_ttl: ttl, attr_ttl: ttl });
            let file_type = node.attr.file_type;
            if sink(&DirEntry { name: &name, ino: Ino(child), file_type, next, found }) {
                break;
            }
            if found.is_some() {
                node.lookups += 1;
            }
        }
        Ok(())
    }

    fn releasedir(&self, ino: Ino, _: Handle) {
        let mut state = self.lock();
        if let Ok(node) = state.node(ino.0) {
            node.handles -= 1;
        }
        state.reap(ino.0);
    }

    fn fsyncdir(&self, _: Ino, _: Handle) -> Answer<()> {
        self.trace("fsyncdir");
        Answer::Now(Ok(()))
    }

    fn statfs(&self, _: Ino) -> Answer<StatFs> {
        self.trace("statfs");
        Answer::Now(Ok(StatFs {
            blocks: 1000,
            free: 600,
            available: 500,
            files: 50,
            files_free: 40,
            block_size: 4096,
            name_max: 255,
        }))
    }

    fn setxattr(
        &self,
        _: &Caller,
        ino: Ino,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Answer<()> {
        self.trace("setxattr");
        run(|| {
            let mut state = self.lock();
            let xattrs = &mut state.node(ino.0)?.xattrs;
            match (mode, xattrs.contains_key(name)) {
                (XattrMode::Create, true) => return Err(Errno::EEXIST),
                (XattrMode::Replace, false) => return Err(Errno::ENODATA),
                _ => {}
            }
            xattrs.insert(name.to_owned(), value.to_vec());
            Ok(())
        })
    }

    fn getxattr(&self, _: &Caller, ino: Ino, name: &OsStr) -> Answer<Vec<u8>> {
        self.trace(&format!("getxattr {}", name.display()));
        run(|| self.lock().node(ino.0)?.xattrs.get(name).cloned().ok_or(Errno::ENODATA))
    }

    fn listxattr(&self, _: &Caller, ino: Ino) -> Answer<Vec<u8>> {
        self.trace("listxattr");
        run(|| {
            let mut state = self.lock();
            let names = state.node(ino.0)?.xattrs.keys();
            Ok(names.flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect())
        })
    }

    fn removexattr(&self, _: &Caller, ino: Ino, name: &OsStr) -> Answer<()> {
        self.trace("removexattr");
        run(|| self.lock().node(ino.0)?.xattrs.remove(name).map(drop).ok_or(Errno::ENODATA))
    }
}
