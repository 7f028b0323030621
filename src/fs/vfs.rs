//! The kernel's requests. Each is passed to the part of this room that answers it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use hearthfs_mount::{
    Abilities, Answer, Attr, Caller, Created, DirSink, FlockKind, Found, Handle, Ino, Lookup,
    OpenFlags, Opened, RenameMode, Reply, SetAttr, StatFs, Vfs, XattrMode,
};

use super::filesystem::Filesystem;
use crate::metrics::Operation;
use crate::namespace::{FACTS_NAME, FIGURES_NAME, UNCOUNTED_NAME};

impl Filesystem {
    fn count(&self, operation: Operation) {
        self.0.rooms.metrics.operation(operation);
    }
}

impl Vfs for Filesystem {
    fn start(&self, abilities: Abilities) {
        self.learn(abilities);
    }

    fn lookup(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<Lookup> {
        self.count(Operation::Lookup);
        self.look_up(caller, parent, name)
    }

    fn forget(&self, ino: Ino, count: u64) {
        self.forget_inode(ino, count);
    }

    fn getattr(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Answer<(Attr, Duration)> {
        self.count(Operation::GetAttr);
        self.note_refusal(caller, ino);
        self.get_attr(caller, ino, handle)
    }

    fn setattr(&self, caller: &Caller, ino: Ino, set: SetAttr) -> Answer<(Attr, Duration)> {
        self.count(Operation::SetAttr);
        self.set_attr(caller, ino, set)
    }

    fn readlink(&self, _: &Caller, ino: Ino) -> Answer<Vec<u8>> {
        self.count(Operation::ReadLink);
        self.read_link(ino).into()
    }

    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Answer<Found> {
        self.count(Operation::MkNod);
        self.make_node(caller, parent, name, mode, rdev).into()
    }

    fn mkdir(&self, caller: &Caller, parent: Ino, name: &OsStr, mode: u32) -> Answer<Found> {
        self.count(Operation::MkDir);
        self.make_directory(caller, parent, name, mode).into()
    }

    fn unlink(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<()> {
        self.count(Operation::Unlink);
        self.unlink_name(caller, parent, name).into()
    }

    fn rmdir(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<()> {
        self.count(Operation::RmDir);
        self.remove_directory(caller, parent, name).into()
    }

    fn symlink(&self, caller: &Caller, parent: Ino, name: &OsStr, target: &Path) -> Answer<Found> {
        self.count(Operation::Symlink);
        self.make_symlink(caller, parent, name, target.as_os_str().as_bytes()).into()
    }

    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
    ) -> Answer<()> {
        self.count(Operation::Rename);
        self.rename(caller, from, to, mode)
    }

    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Found> {
        self.count(Operation::Link);
        self.link_name(caller, ino, parent, name)
    }

    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Answer<Opened> {
        self.count(Operation::Open);
        let began = self.0.rooms.clock.mono();
        let answer = self.open_file(caller, ino, flags);
        // An open that waits does so for a fetch, whose time is measured there, or for a writer.
        if matches!(answer, Answer::Now(Ok(_))) && !flags.changes() {
            let now = self.0.rooms.clock.mono();
            self.0.rooms.metrics.times.open.observe(now.saturating_sub(began));
        }
        answer
    }

    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Answer<Created> {
        self.count(Operation::Create);
        self.create_file(caller, parent, name, mode, flags)
    }

    fn read(&self, _: Ino, handle: Handle, offset: u64, size: u32) -> Answer<Vec<u8>> {
        self.count(Operation::Read);
        self.read_file(handle, offset, size).into()
    }

    fn write(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        delayed: bool,
    ) -> Answer<u32> {
        self.count(Operation::Write);
        let written = if delayed {
            self.write_stored(ino, handle, offset, data)
        } else {
            self.write_file(handle, offset, data)
        };
        written.into()
    }

    fn flush(&self, caller: &Caller, _: Ino, handle: Handle) -> Answer<()> {
        self.count(Operation::Flush);
        self.flush_file(caller, handle)
    }

    fn release(&self, _: Ino, handle: Handle) -> Answer<()> {
        self.count(Operation::Release);
        self.release_file(handle)
    }

    fn fsync(&self, ino: Ino, handle: Handle, _data_only: bool) -> Answer<()> {
        self.count(Operation::Fsync);
        self.sync_file(ino, handle)
    }

    fn fallocate(&self, _: Ino, handle: Handle, offset: u64, length: u64, mode: i32) -> Answer<()> {
        self.count(Operation::Fallocate);
        self.allocate(handle, offset, length, mode).into()
    }

    fn flock(
        &self,
        caller: &Caller,
        _: Ino,
        handle: Handle,
        kind: FlockKind,
        wait: bool,
    ) -> Answer<()> {
        self.count(Operation::Flock);
        self.flock_file(caller, handle, kind, wait)
    }

    fn lseek(&self, _: Ino, handle: Handle, offset: i64, whence: i32) -> Answer<i64> {
        self.count(Operation::LSeek);
        self.seek(handle, offset, whence).into()
    }

    fn opendir(&self, caller: &Caller, ino: Ino) -> Answer<Handle> {
        self.count(Operation::OpenDir);
        self.open_directory(caller, ino)
    }

    fn readdir(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        plus: bool,
        sink: DirSink<'_>,
    ) -> Reply<()> {
        self.count(Operation::ReadDir);
        self.list(ino, handle, offset, plus, sink)
    }

    fn releasedir(&self, _: Ino, handle: Handle) {
        self.release_directory(handle);
    }

    fn fsyncdir(&self, _: Ino, _: Handle) -> Answer<()> {
        self.count(Operation::FsyncDir);
        self.sync_names()
    }

    fn statfs(&self, _: Ino) -> Answer<StatFs> {
        self.count(Operation::StatFs);
        self.stat_fs().into()
    }

    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Answer<()> {
        self.count(Operation::SetXattr);
        self.set_xattr(caller, ino, name.as_bytes(), value, mode).into()
    }

    fn getxattr(&self, caller: &Caller, ino: Ino, name: &OsStr) -> Answer<Vec<u8>> {
        self.count(Operation::GetXattr);
        if name == FACTS_NAME {
            return self.facts(caller, ino).into();
        }
        if name == FIGURES_NAME {
            // Maps from text to numbers can always be written as JSON.
            return Ok(serde_json::to_vec(&self.figures()).unwrap_or_default()).into();
        }
        if name == UNCOUNTED_NAME {
            self.leave_out(caller);
            return Ok(Vec::new()).into();
        }
        if let Some(answer) = self.explained(caller, ino, name.as_bytes()) {
            return answer;
        }
        self.get_xattr(ino, name.as_bytes()).into()
    }

    fn listxattr(&self, _: &Caller, ino: Ino) -> Answer<Vec<u8>> {
        self.count(Operation::ListXattr);
        self.list_xattrs(ino).into()
    }

    fn removexattr(&self, caller: &Caller, ino: Ino, name: &OsStr) -> Answer<()> {
        self.count(Operation::RemoveXattr);
        self.remove_xattr(caller, ino, name.as_bytes()).into()
    }
}
