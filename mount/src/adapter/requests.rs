//! The requests of the kernel, one by one.
//!
//! Rust requires a trait to be implemented in one place. So everything beyond the translation of a
//! request is elsewhere: listings in `listing`, extended attributes and permissions in
//! `attributes`. Must never contain more.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::time::SystemTime;

use fuser::{FileHandle, INodeNo, KernelConfig, Request};

use super::{Adapter, replies, translate};
use crate::counts::KernelOp;
use crate::vfs::{Handle, SetAttr};

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config)
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Lookup,
            |vfs| vfs.lookup(&caller, translate::ino(parent), name),
            |answer| replies::lookup(answer, reply),
        );
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        let _ = self.call(KernelOp::Forget, |vfs| vfs.forget(translate::ino(ino), count));
    }

    fn getattr(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: Option<FileHandle>,
        reply: fuser::ReplyAttr,
    ) {
        let caller = translate::caller(request);
        let handle = handle.map(|handle| Handle(handle.0));
        self.settle(
            KernelOp::Getattr,
            |vfs| vfs.getattr(&caller, translate::ino(ino), handle),
            |answer| replies::attr(answer, reply),
        );
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<fuser::TimeOrNow>,
        mtime: Option<fuser::TimeOrNow>,
        _ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        let caller = translate::caller(request);
        let set = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size,
            atime: atime.map(translate::set_time),
            mtime: mtime.map(translate::set_time),
            handle: handle.map(|handle| Handle(handle.0)),
        };
        self.settle(
            KernelOp::Setattr,
            |vfs| vfs.setattr(&caller, translate::ino(ino), set),
            |answer| replies::attr(answer, reply),
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: fuser::ReplyData) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Readlink,
            |vfs| vfs.readlink(&caller, translate::ino(ino)),
            |answer| replies::data(answer, reply),
        );
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Mknod,
            |vfs| vfs.mknod(&caller, translate::ino(parent), name, mode & !umask, rdev),
            |answer| replies::entry(answer, reply),
        );
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Mkdir,
            |vfs| vfs.mkdir(&caller, translate::ino(parent), name, mode & 0o7777 & !umask),
            |answer| replies::entry(answer, reply),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Unlink,
            |vfs| vfs.unlink(&caller, translate::ino(parent), name),
            |answer| replies::empty(answer, reply),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Rmdir,
            |vfs| vfs.rmdir(&caller, translate::ino(parent), name),
            |answer| replies::empty(answer, reply),
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Symlink,
            |vfs| vfs.symlink(&caller, translate::ino(parent), name, target),
            |answer| replies::entry(answer, reply),
        );
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: fuser::RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let caller = translate::caller(request);
        let from = (translate::ino(parent), name);
        let to = (translate::ino(new_parent), new_name);
        match translate::rename_mode(flags) {
            Ok(mode) => self.settle(
                KernelOp::Rename,
                |vfs| vfs.rename(&caller, from, to, mode),
                |answer| replies::empty(answer, reply),
            ),
            Err(errno) => reply.error(translate::errno(errno)),
        }
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        parent: INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEntry,
    ) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Link,
            |vfs| vfs.link(&caller, translate::ino(ino), translate::ino(parent), name),
            |answer| replies::entry(answer, reply),
        );
    }

    fn open(
        &self,
        request: &Request,
        ino: INodeNo,
        flags: fuser::OpenFlags,
        reply: fuser::ReplyOpen,
    ) {
        let caller = translate::caller(request);
        let flags = translate::open_flags(flags.0);
        self.settle(
            KernelOp::Open,
            |vfs| vfs.open(&caller, translate::ino(ino), flags),
            |answer| replies::opened(answer, reply),
        );
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        let caller = translate::caller(request);
        let (mode, flags) = (mode & 0o7777 & !umask, translate::open_flags(flags));
        self.settle(
            KernelOp::Create,
            |vfs| vfs.create(&caller, translate::ino(parent), name, mode, flags),
            |answer| replies::created(answer, reply),
        );
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        self.settle(
            KernelOp::Read,
            |vfs| vfs.read(translate::ino(ino), Handle(handle.0), offset, size),
            |answer| replies::data(answer, reply),
        );
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: fuser::WriteFlags,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let delayed = write_flags.contains(fuser::WriteFlags::FUSE_WRITE_CACHE);
        self.settle(
            KernelOp::Write,
            |vfs| vfs.write(translate::ino(ino), Handle(handle.0), offset, data, delayed),
            |answer| replies::written(answer, reply),
        );
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _lock_owner: fuser::LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Flush,
            |vfs| vfs.flush(&caller, translate::ino(ino), Handle(handle.0)),
            |answer| replies::empty(answer, reply),
        );
    }

    fn release(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        _flush: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.settle(
            KernelOp::Release,
            |vfs| vfs.release(translate::ino(ino), Handle(handle.0)),
            |answer| replies::empty(answer, reply),
        );
    }

    fn fsync(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.settle(
            KernelOp::Fsync,
            |vfs| vfs.fsync(translate::ino(ino), Handle(handle.0), data_only),
            |answer| replies::empty(answer, reply),
        );
    }

    fn fallocate(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        self.settle(
            KernelOp::Fallocate,
            |vfs| vfs.fallocate(translate::ino(ino), Handle(handle.0), offset, length, mode),
            |answer| replies::empty(answer, reply),
        );
    }

    /// Always a `flock` lock: no other kind is enabled. The owner is the open file, as is the
    /// handle. Of the two only the handle is never reused; its RELEASE ends its lock.
    fn setlk(
        &self,
        request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _lock_owner: fuser::LockOwner,
        _start: u64,
        _end: u64,
        kind: i32,
        _pid: u32,
        wait: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let caller = translate::caller(request);
        match translate::flock_kind(kind) {
            Ok(kind) => self.settle(
                KernelOp::Setlk,
                |vfs| vfs.flock(&caller, translate::ino(ino), Handle(handle.0), kind, wait),
                |answer| replies::empty(answer, reply),
            ),
            Err(errno) => reply.error(translate::errno(errno)),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        self.settle(
            KernelOp::Lseek,
            |vfs| vfs.lseek(translate::ino(ino), Handle(handle.0), offset, whence),
            |answer| replies::offset(answer, reply),
        );
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: fuser::CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        self.shared.requests.add(KernelOp::CopyFileRange);
        // The kernel remembers this and copies with reads and writes, which passthrough serves without us.
        reply.error(fuser::Errno::ENOSYS);
    }

    fn opendir(
        &self,
        request: &Request,
        ino: INodeNo,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyOpen,
    ) {
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Opendir,
            |vfs| vfs.opendir(&caller, translate::ino(ino)),
            |answer| replies::handle(answer, reply),
        );
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: fuser::ReplyDirectory,
    ) {
        self.list(ino, handle, offset, reply);
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        self.list_with_attributes(ino, handle, offset, reply);
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let answer = self.call(KernelOp::Releasedir, |vfs| {
            vfs.releasedir(translate::ino(ino), Handle(handle.0));
        });
        replies::empty(answer, reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _data_only: bool,
        reply: fuser::ReplyEmpty,
    ) {
        self.settle(
            KernelOp::Fsyncdir,
            |vfs| vfs.fsyncdir(translate::ino(ino), Handle(handle.0)),
            |answer| replies::empty(answer, reply),
        );
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: fuser::ReplyStatfs) {
        self.settle(
            KernelOp::Statfs,
            |vfs| vfs.statfs(translate::ino(ino)),
            |answer| replies::statfs(answer, reply),
        );
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: fuser::ReplyEmpty,
    ) {
        self.set_xattr(request, ino, name, (value, flags), reply);
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        self.get_xattr(request, ino, name, size, reply);
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        self.list_xattrs(request, ino, size, reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.remove_xattr(request, ino, name, reply);
    }

    fn access(
        &self,
        request: &Request,
        ino: INodeNo,
        mask: fuser::AccessFlags,
        reply: fuser::ReplyEmpty,
    ) {
        self.may(request, ino, mask, reply);
    }

    fn ioctl(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _flags: fuser::IoctlFlags,
        _command: u32,
        _data: &[u8],
        _out_size: u32,
        reply: fuser::ReplyIoctl,
    ) {
        self.shared.requests.add(KernelOp::Ioctl);
        reply.error(fuser::Errno::ENOTTY);
    }
}
