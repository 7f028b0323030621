//! Carries requests of fuser to a [`Vfs`] and its answers back.
//!
//! Owns the capabilities that are asked of the kernel. Must never decide anything about a file, wait,
//! or hold a lock across a call of the [`Vfs`].

mod replies;
mod translate;

use std::ffi::OsStr;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::SystemTime;

use fuser::{FileHandle, INodeNo, InitFlags, KernelConfig, Request};

use crate::vfs::{Answer, Errno, Handle, Reply, SetAttr, Vfs};

/// Most bytes of one read or write request.
const TRANSFER_MAX_BYTES: u32 = 1024 * 1024;
/// Most requests that nobody waits for (read-ahead, releases) the kernel keeps in flight.
const BACKGROUND_REQUESTS_MAX: u16 = 64;
/// How deep file systems may be stacked below a backing file. One is ours, so backing files must lie
/// on a file system that is not stacked itself.
const STACK_DEPTH_MAX: u32 = 1;

/// What the kernel asks for before the first write to an inode.
const CAPABILITY_XATTR: &str = "security.capability";

/// What is asked of the kernel; what it does not know it does not get.
const CAPABILITIES: InitFlags = InitFlags::FUSE_ATOMIC_O_TRUNC
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_ASYNC_READ)
    .union(InitFlags::FUSE_BIG_WRITES)
    .union(InitFlags::FUSE_MAX_PAGES)
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    // The target of a symbolic link never changes: another target is another inode.
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    // Bytes of an inode change through this kernel only, so its page cache is always right.
    .union(InitFlags::FUSE_EXPLICIT_INVAL_DATA)
    // Without it a shared mapping of a direct handle is ENODEV.
    .union(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP)
    // Without it every single write asks for `security.capability` first. The price is that clearing
    // setuid and setgid bits becomes the duty of the `Vfs`.
    .union(InitFlags::FUSE_HANDLE_KILLPRIV_V2);

/// What the kernel and the [`Vfs`] did so far, seen by the session.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The kernel knows passthrough and was asked for it.
    pub(crate) passthrough_offered: AtomicBool,
    /// Calls of the [`Vfs`] that panicked.
    pub(crate) panics: AtomicU64,
}

/// The fuser side of a session.
pub(crate) struct Adapter {
    pub(crate) vfs: Arc<dyn Vfs>,
    pub(crate) runtime: tokio::runtime::Handle,
    pub(crate) want_passthrough: bool,
    /// The kernel compares callers with owners and modes itself.
    pub(crate) kernel_checks: bool,
    pub(crate) user_xattrs: bool,
    pub(crate) shared: Arc<Shared>,
}

/// Counts a panic that unwinds through it.
struct CountPanic(Arc<Shared>, &'static str);

impl Drop for CountPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.panics.fetch_add(1, Ordering::Relaxed);
            tracing::error!(op = self.1, "file system operation panicked");
        }
    }
}

impl Adapter {
    /// Calls the [`Vfs`]; a panic becomes EIO, so that it costs an answer and not the thread.
    fn call<T>(&self, op: &'static str, call: impl FnOnce(&dyn Vfs) -> T) -> Reply<T> {
        catch_unwind(AssertUnwindSafe(|| {
            let _count = CountPanic(Arc::clone(&self.shared), op);
            call(&*self.vfs)
        }))
        .map_err(|_panic| Errno::EIO)
    }

    /// Tells whether an extended attribute may exist: those of `user.*`, if any.
    fn xattr(&self, name: &OsStr) -> Reply<()> {
        if !self.user_xattrs {
            // The kernel remembers it, and asks no more.
            Err(Errno::ENOSYS)
        } else if name.as_encoded_bytes().starts_with(b"user.") {
            Ok(())
        } else {
            Err(Errno::EOPNOTSUPP)
        }
    }

    /// Sends an answer now if it is here, and moves it with its reply into a task if it is not.
    fn settle<T: 'static>(
        &self,
        op: &'static str,
        call: impl FnOnce(&dyn Vfs) -> Answer<T>,
        send: impl FnOnce(Reply<T>) + Send + 'static,
    ) {
        match self.call(op, call) {
            Ok(Answer::Now(reply)) => send(reply),
            Err(errno) => send(Err(errno)),
            Ok(Answer::Later(work)) => {
                let count = CountPanic(Arc::clone(&self.shared), op);
                #[expect(
                    clippy::disallowed_methods,
                    reason = "the crate is a leaf; the caller chose the runtime, and the kernel bounds the number"
                )]
                drop(self.runtime.spawn(async move {
                    let _count = count;
                    send(work.await);
                }));
            }
        }
    }
}

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
            "lookup",
            |vfs| vfs.lookup(&caller, translate::ino(parent), name),
            |answer| replies::lookup(answer, reply),
        );
    }

    fn forget(&self, _request: &Request, ino: INodeNo, count: u64) {
        let _ = self.call("forget", |vfs| vfs.forget(translate::ino(ino), count));
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
            "getattr",
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
            "setattr",
            |vfs| vfs.setattr(&caller, translate::ino(ino), set),
            |answer| replies::attr(answer, reply),
        );
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: fuser::ReplyData) {
        let caller = translate::caller(request);
        self.settle(
            "readlink",
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
            "mknod",
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
            "mkdir",
            |vfs| vfs.mkdir(&caller, translate::ino(parent), name, mode & 0o7777 & !umask),
            |answer| replies::entry(answer, reply),
        );
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let caller = translate::caller(request);
        self.settle(
            "unlink",
            |vfs| vfs.unlink(&caller, translate::ino(parent), name),
            |answer| replies::empty(answer, reply),
        );
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        let caller = translate::caller(request);
        self.settle(
            "rmdir",
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
            "symlink",
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
                "rename",
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
            "link",
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
            "open",
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
            "create",
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
            "read",
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
            "write",
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
            "flush",
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
            "release",
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
            "fsync",
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
            "fallocate",
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
            "lseek",
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
            "opendir",
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
        let answer = self.call("readdir", |vfs| {
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
        let answer = self.call("readdirplus", |vfs| {
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
            self.call("releasedir", |vfs| vfs.releasedir(translate::ino(ino), Handle(handle.0)));
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
            "fsyncdir",
            |vfs| vfs.fsyncdir(translate::ino(ino), Handle(handle.0)),
            |answer| replies::empty(answer, reply),
        );
    }

    fn statfs(&self, _request: &Request, ino: INodeNo, reply: fuser::ReplyStatfs) {
        self.settle(
            "statfs",
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
                "setxattr",
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
            let absent = self.user_xattrs && name == CAPABILITY_XATTR;
            let errno = if absent { Errno::ENODATA } else { errno };
            return reply.error(translate::errno(errno));
        }
        self.settle(
            "getxattr",
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
            "listxattr",
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
            "removexattr",
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
            "access",
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
