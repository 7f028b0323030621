//! The requests of the kernel, one by one.
//!
//! One trait is one implementation, so this file is as long as the protocol. Must never hold more than
//! the translation of each.

use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use fuser::{FileHandle, INodeNo, InitFlags, KernelConfig, Request};

use super::{
    Adapter, BACKGROUND_REQUESTS_MAX, CAPABILITIES, CAPABILITY_XATTR, STACK_DEPTH_MAX,
    TRANSFER_MAX_BYTES, replies, translate,
};
use crate::counts::Op;
use crate::vfs::{Errno, Handle, Reply, SetAttr};

impl fuser::Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = CAPABILITIES;
        if self.want_passthrough {
            wanted |= InitFlags::FUSE_PASSTHROUGH;
        }
        let granted = wanted & config.capabilities();
        if config.add_capabilities(granted).is_err() {
            return Err(io::Error::from_raw_os_error(libc::EPROTO));
        }
        if granted.contains(InitFlags::FUSE_PASSTHROUGH) {
            let depth = config.set_max_stack_depth(STACK_DEPTH_MAX);
            self.shared.passthrough_offered.store(depth.is_ok(), Ordering::Release);
        }
        let sizes = config.set_max_write(TRANSFER_MAX_BYTES);
        let background = config.set_max_background(BACKGROUND_REQUESTS_MAX);
        tracing::debug!(?granted, missing = ?(wanted - granted), ?sizes, ?background, "fuse init");
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        let caller = translate::caller(request);
        self.settle(
            Op::Lookup,
            |vfs| vfs.lookup(&caller, translate::ino(parent), name),
            |answer| replies::lookup(answer, reply),
        );
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        let _ = self.call(Op::Forget, |vfs| vfs.forget(translate::ino(ino), count));
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
            Op::Getattr,
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
            Op::Setattr,
            |vfs| vfs.setattr(&caller, translate::ino(ino), set),
            |answer| replies::attr(answer, reply),
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: fuser::ReplyData) {
        let caller = translate::caller(request);
        self.settle(
            Op::Readlink,
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
            Op::Mknod,
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
            Op::Mkdir,
            |vfs| vfs.mkdir(&caller, translate::ino(parent), name, mode & 0o7777 & !umask),
            |answer| replies::entry(answer, reply),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let caller = translate::caller(request);
        self.settle(
            Op::Unlink,
            |vfs| vfs.unlink(&caller, translate::ino(parent), name),
            |answer| replies::empty(answer, reply),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let caller = translate::caller(request);
        self.settle(
            Op::Rmdir,
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
            Op::Symlink,
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
                Op::Rename,
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
            Op::Link,
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
            Op::Open,
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
            Op::Create,
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
            Op::Read,
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
        _write_flags: fuser::WriteFlags,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        self.settle(
            Op::Write,
            |vfs| vfs.write(translate::ino(ino), Handle(handle.0), offset, data),
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
            Op::Flush,
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
            Op::Release,
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
            Op::Fsync,
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
            Op::Fallocate,
            |vfs| vfs.fallocate(translate::ino(ino), Handle(handle.0), offset, length, mode),
            |answer| replies::empty(answer, reply),
        );
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
            Op::Lseek,
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
        self.shared.requests.add(Op::CopyFileRange);
        // The kernel remembers this and copies by reads and writes, which passthrough serves itself.
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
            Op::Opendir,
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
        mut reply: fuser::ReplyDirectory,
    ) {
        let mut taken = false;
        let answer = self.call(Op::Readdir, |vfs| {
            let mut sink = |entry: &crate::vfs::DirEntry<'_>| {
                let kind = translate::dirent_type(entry.file_type);
                let full = reply.add(INodeNo(entry.ino.0), entry.next, kind, entry.name);
                taken |= !full;
                full
            };
            vfs.readdir(translate::ino(ino), Handle(handle.0), offset, false, &mut sink)
        });
        replies::directory(unless_taken(answer, taken), reply);
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectoryPlus,
    ) {
        let mut taken = false;
        let mut fault = None;
        let answer = self.call(Op::ReaddirPlus, |vfs| {
            let mut sink =
                |entry: &crate::vfs::DirEntry<'_>| match replies::add_plus(&mut reply, entry) {
                    Ok(full) => {
                        taken |= !full;
                        full
                    }
                    Err(errno) => {
                        fault = Some(errno);
                        true
                    }
                };
            vfs.readdir(translate::ino(ino), Handle(handle.0), offset, true, &mut sink)
        });
        let answer = answer.and_then(|listed| fault.map_or(Ok(listed), Err));
        replies::directory_plus(unless_taken(answer, taken), reply);
    }

    fn releasedir(
        &self,
        _request: &Request,
        ino: INodeNo,
        handle: FileHandle,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let answer =
            self.call(Op::Releasedir, |vfs| vfs.releasedir(translate::ino(ino), Handle(handle.0)));
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
            Op::Fsyncdir,
            |vfs| vfs.fsyncdir(translate::ino(ino), Handle(handle.0)),
            |answer| replies::empty(answer, reply),
        );
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: fuser::ReplyStatfs) {
        self.settle(
            Op::Statfs,
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
        let caller = translate::caller(request);
        match self.xattr(name).and_then(|()| translate::xattr_mode(flags)) {
            Ok(mode) => self.settle(
                Op::Setxattr,
                |vfs| vfs.setxattr(&caller, translate::ino(ino), name, value, mode),
                |answer| replies::empty(answer, reply),
            ),
            Err(errno) => reply.error(translate::errno(errno)),
        }
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let caller = translate::caller(request);
        if let Err(errno) = self.xattr(name) {
            self.shared.requests.add(Op::Getxattr);
            let absent = self.user_xattrs && name == CAPABILITY_XATTR;
            let errno = if absent { Errno::ENODATA } else { errno };
            return reply.error(translate::errno(errno));
        }
        self.settle(
            Op::Getxattr,
            |vfs| vfs.getxattr(&caller, translate::ino(ino), name),
            move |answer| replies::xattr(answer, size, reply),
        );
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        let caller = translate::caller(request);
        if !self.user_xattrs {
            return reply.error(fuser::Errno::ENOSYS);
        }
        self.settle(
            Op::Listxattr,
            |vfs| vfs.listxattr(&caller, translate::ino(ino)),
            move |answer| replies::xattr(answer, size, reply),
        );
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let caller = translate::caller(request);
        if let Err(errno) = self.xattr(name) {
            return reply.error(translate::errno(errno));
        }
        self.settle(
            Op::Removexattr,
            |vfs| vfs.removexattr(&caller, translate::ino(ino), name),
            |answer| replies::empty(answer, reply),
        );
    }

    fn access(
        &self,
        request: &Request,
        ino: INodeNo,
        mask: fuser::AccessFlags,
        reply: fuser::ReplyEmpty,
    ) {
        if self.kernel_checks {
            // Never comes; said once, it would be remembered.
            reply.error(fuser::Errno::ENOSYS);
            return;
        }
        let caller = translate::caller(request);
        self.settle(
            Op::Access,
            |vfs| vfs.getattr(&caller, translate::ino(ino), None),
            move |answer| replies::root_may(answer, mask, reply),
        );
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
        self.shared.requests.add(Op::Ioctl);
        reply.error(fuser::Errno::ENOTTY);
    }
}

/// Names that were taken have been counted as looked up, so they are sent whatever came after them;
/// the next call meets the fault again.
fn unless_taken(answer: Reply<Reply<()>>, taken: bool) -> Reply<()> {
    match answer.and_then(|listed| listed) {
        Err(_) if taken => Ok(()),
        answer => answer,
    }
}
