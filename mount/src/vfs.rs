//! The file system interface that the kernel uses, independent of any transport.
//!
//! Owns the types between a transport (today fuser on `/dev/fuse`) and the implementation of [`Vfs`].
//! Must never name a type of fuser, so that a second transport can be added beside the first.

use std::ffi::OsStr;
use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::backing::Backing;

/// An inode number; the root is [`Ino::ROOT`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ino(pub u64);

impl Ino {
    /// The root of the mount.
    pub const ROOT: Self = Self(1);
}

/// Identifies an open file or directory between the kernel and us.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Handle(pub u64);

/// The caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// Effective user.
    pub uid: u32,
    /// Effective group.
    pub gid: u32,
    /// Thread id in our PID namespace; 0 if the kernel cannot express it there.
    pub tid: u32,
}

/// An error number as system calls return it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(pub i32);

macro_rules! errnos {
    ($($name:ident)*) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: Self = Self(libc::$name);)*
        }
        impl fmt::Debug for Errno {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match *self {
                    $(Self::$name => f.write_str(stringify!($name)),)*
                    Self(other) => write!(f, "errno {other}"),
                }
            }
        }
    };
}

errnos! {
    EPERM ENOENT EINTR EIO EBADF EAGAIN ENOMEM EACCES EBUSY EEXIST EXDEV ENODEV ENOTDIR EISDIR
    EINVAL ENFILE EMFILE ETXTBSY EFBIG ENOSPC EROFS EMLINK ERANGE ENAMETOOLONG ENOSYS ENOTEMPTY
    ELOOP ENODATA EOVERFLOW EOPNOTSUPP ETIMEDOUT ESTALE ESHUTDOWN ENXIO ENOLCK
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

/// The result of an operation.
pub type Reply<T> = Result<T, Errno>;

/// An answer that is ready, or one that has to wait. The thread of the request sends a ready
/// answer; a waiting one moves to a task, so that no FUSE thread ever waits for the network.
pub enum Answer<T> {
    /// The answer.
    Now(Reply<T>),
    /// The future answer; the implementor bounds the wait, or the caller's signals do.
    Later(Pin<Box<dyn Future<Output = Reply<T>> + Send>>),
}

impl<T> Answer<T> {
    /// Wraps work that has to wait.
    pub fn later(work: impl Future<Output = Reply<T>> + Send + 'static) -> Self {
        Self::Later(Box::pin(work))
    }
}

impl<T: fmt::Debug> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(reply) => f.debug_tuple("Now").field(reply).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}

impl<T> From<Reply<T>> for Answer<T> {
    fn from(reply: Reply<T>) -> Self {
        Self::Now(reply)
    }
}

/// File type of an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileType {
    /// Regular file.
    File,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// FIFO.
    Fifo,
    /// Socket.
    Socket,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
}

/// A time stamp of a file; seconds may be negative.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Timespec {
    /// Whole seconds since the Unix epoch.
    pub secs: i64,
    /// Additional nanoseconds.
    pub nanos: u32,
}

/// The result of `stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Timespec,
    /// Last change of content.
    pub mtime: Timespec,
    /// Last change of anything.
    pub ctime: Timespec,
    /// File type.
    pub file_type: FileType,
    /// Permission bits, 0o7777 at most.
    pub perm: u16,
    /// The number of names of this inode.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Preferred size of I/O.
    pub blksize: u32,
}

/// A name that was found, and how long the kernel may cache that. Each one that is returned counts
/// one lookup, which the kernel gives back through [`Vfs::forget`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The inode.
    pub attr: Attr,
    /// How long the name may be cached.
    pub entry_ttl: Duration,
    /// How long the attributes may be cached.
    pub attr_ttl: Duration,
}

/// The answer to a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// The name leads here.
    Found(Found),
    /// There is no such name.
    Missing {
        /// How long the kernel may cache that.
        ttl: Duration,
    },
}

/// The path of reads and writes of an open file.
#[derive(Clone, Debug)]
pub enum Io {
    /// Directly to the backing file, without us. All open handles of an inode must share one
    /// backing. If the kernel does not register the file, the handle's reads and writes come to us
    /// after all, as with [`Io::Direct`]; a [`Vfs`] that offers this must be able to serve them.
    Passthrough(Arc<Backing>),
    /// Through the page cache and then to us. With `keep`, the cached pages of this inode are still valid.
    Cached {
        /// Whether the pages of earlier opens stay.
        keep: bool,
    },
    /// Every call comes to us.
    Direct,
    /// Every call comes to us although other handles of the inode are passed through to this
    /// backing. A shared writable mapping of such a handle would still write into the backing.
    Beside(Arc<Backing>),
}

/// An opened file.
#[derive(Clone, Debug)]
pub struct Opened {
    /// The handle.
    pub handle: Handle,
    /// The path of its bytes.
    pub io: Io,
    /// Whether `close` need not be reported to us (handles that cannot write).
    pub no_flush: bool,
}

/// A created and opened file.
#[derive(Clone, Debug)]
pub struct Created {
    /// The new name.
    pub found: Found,
    /// The open file.
    pub opened: Opened,
}

/// What can be done through an open file: `O_ACCMODE`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OpenAccess {
    /// `O_RDONLY`.
    #[default]
    Read,
    /// `O_WRONLY`.
    Write,
    /// `O_RDWR`.
    Both,
}

/// The relevant flags of an `open`; by default those of `O_RDONLY`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenFlags {
    /// `O_ACCMODE`.
    pub access: OpenAccess,
    /// `O_TRUNC`.
    pub truncate: bool,
    /// `O_APPEND`.
    pub append: bool,
    /// `O_EXCL`.
    pub exclusive: bool,
    /// `O_DIRECT`.
    pub direct: bool,
}

impl OpenFlags {
    /// Reports whether the open file can be read.
    pub fn reads(self) -> bool {
        self.access != OpenAccess::Write
    }

    /// Reports whether the open file can be written.
    pub fn writes(self) -> bool {
        self.access != OpenAccess::Read
    }

    /// Reports whether the open, or a write through the open file, can change the content.
    pub fn changes(self) -> bool {
        self.writes() || self.truncate
    }
}

/// The operation of a `flock(2)` call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlockKind {
    /// `LOCK_SH`.
    Shared,
    /// `LOCK_EX`.
    Exclusive,
    /// `LOCK_UN`.
    Unlock,
}

/// A new value for a time stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The time of the call.
    Now,
    /// This time.
    At(Timespec),
}

/// The changes of a `setattr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length of a regular file.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of content.
    pub mtime: Option<SetTime>,
    /// The open file through which it was requested, if any.
    pub handle: Option<Handle>,
}

/// What a `rename` does when both names exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// Replaces the target.
    Replace,
    /// `RENAME_NOREPLACE`.
    NoReplace,
    /// `RENAME_EXCHANGE`.
    Exchange,
}

/// One name of a directory listing.
#[derive(Clone, Debug)]
pub struct DirEntry<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// Its inode number; ignored if `found` is set.
    pub ino: Ino,
    /// File type.
    pub file_type: FileType,
    /// The offset at which a later call continues after this entry.
    pub next: u64,
    /// Attributes. Must be set if they were requested (`readdirplus`), and must not be set for `.`
    /// and `..`: a name cannot be listed without them, and the listing would end in EIO. Counts one
    /// lookup if and only if the sink accepted the entry.
    pub found: Option<Found>,
}

/// Accepts directory entries; returns `true` if an entry did not fit, which ends the listing.
pub type DirSink<'a> = &'a mut dyn FnMut(&DirEntry<'_>) -> bool;

/// Figures for `statfs`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StatFs {
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free: u64,
    /// Blocks available to users.
    pub available: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Bytes of a block.
    pub block_size: u32,
    /// Longest name.
    pub name_max: u32,
}

/// How to set an extended attribute that may exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrMode {
    /// Creates or replaces.
    Any,
    /// `XATTR_CREATE`: must not exist.
    Create,
    /// `XATTR_REPLACE`: must exist.
    Replace,
}

/// The abilities of a mounted session; reported once, before the first request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Passthrough was granted and works with the cache directory's file system.
    pub passthrough: bool,
    /// Why passthrough is off, if it is.
    pub passthrough_refusal: Option<&'static str>,
    /// Why [`Vfs::flock`] is never called, if so: the kernel then keeps those locks, by inode.
    pub flock_refusal: Option<&'static str>,
    /// Why idle processors are not asked to wake quickly while requests arrive, if so.
    pub wake_refusal: Option<&'static str>,
}

/// A file system as the kernel sees it. Calls may come from several threads at once, and none may
/// wait for the network: what has to wait is an [`Answer::Later`].
///
/// The capabilities that the session requests imply two duties. Inode numbers are never reused. And
/// setuid and setgid bits of regular files are cleared ([`without_privileges`]) at each change of
/// owner or group, and when a caller other than root writes the file or changes its size. The
/// kernel has left that to us. Passed-through writes are not visible here, so an open for writing
/// that is followed by a write counts.
pub trait Vfs: Send + Sync + 'static {
    /// Receives the abilities of the session, before the first request.
    fn start(&self, abilities: Abilities);
    /// Finds a name in a directory.
    fn lookup(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<Lookup>;
    /// Gives back `count` lookups of an inode.
    fn forget(&self, ino: Ino, count: u64);
    /// Returns the attributes of an inode and how long they may be cached.
    fn getattr(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Option<Handle>,
    ) -> Answer<(Attr, Duration)>;
    /// Changes attributes.
    fn setattr(&self, caller: &Caller, ino: Ino, set: SetAttr) -> Answer<(Attr, Duration)>;
    /// Returns the target of a symbolic link.
    fn readlink(&self, caller: &Caller, ino: Ino) -> Answer<Vec<u8>>;
    /// Makes a regular file, FIFO, socket or device node. `mode` holds the file type bits; the umask
    /// has been applied.
    fn mknod(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        rdev: u32,
    ) -> Answer<Found>;
    /// Makes a directory.
    fn mkdir(&self, caller: &Caller, parent: Ino, name: &OsStr, mode: u32) -> Answer<Found>;
    /// Removes a name that is not a directory.
    fn unlink(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<()>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: &Caller, parent: Ino, name: &OsStr) -> Answer<()>;
    /// Makes a symbolic link.
    fn symlink(&self, caller: &Caller, parent: Ino, name: &OsStr, target: &Path) -> Answer<Found>;
    /// Moves a name.
    fn rename(
        &self,
        caller: &Caller,
        from: (Ino, &OsStr),
        to: (Ino, &OsStr),
        mode: RenameMode,
    ) -> Answer<()>;
    /// Makes another name for a file.
    fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &OsStr) -> Answer<Found>;
    /// Opens a file. `ESTALE` makes the kernel look the name up again, once, and open the result.
    fn open(&self, caller: &Caller, ino: Ino, flags: OpenFlags) -> Answer<Opened>;
    /// Makes a file if it does not exist, and opens it. `mode` is permission bits with the umask applied.
    fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &OsStr,
        mode: u32,
        flags: OpenFlags,
    ) -> Answer<Created>;
    /// Reads up to `size` bytes; fewer only at the end of the file.
    fn read(&self, ino: Ino, handle: Handle, offset: u64, size: u32) -> Answer<Vec<u8>>;
    /// Writes all of `data`; returns how many bytes were accepted. With `delayed`, the kernel
    /// writes back what was stored through some mapping of the inode, and has guessed the handle.
    fn write(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &[u8],
        delayed: bool,
    ) -> Answer<u32>;
    /// A `close` of one descriptor; may come several times for one handle.
    fn flush(&self, caller: &Caller, ino: Ino, handle: Handle) -> Answer<()>;
    /// The last descriptor and mapping are gone.
    fn release(&self, ino: Ino, handle: Handle) -> Answer<()>;
    /// Makes written data durable.
    fn fsync(&self, ino: Ino, handle: Handle, data_only: bool) -> Answer<()>;
    /// Allocates or punches; `mode` as in `fallocate(2)`.
    fn fallocate(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        length: u64,
        mode: i32,
    ) -> Answer<()>;
    /// Takes, changes or releases the `flock` of an open file. Without `wait`, returns `EAGAIN` if
    /// another open file has a conflicting one. With it, the answer comes when the lock is granted,
    /// however long that takes, or is `EINTR` if the caller has a signal to handle. The end of the
    /// handle releases its lock.
    fn flock(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        kind: FlockKind,
        wait: bool,
    ) -> Answer<()>;
    /// Finds data or a hole; `whence` as in `lseek(2)`.
    fn lseek(&self, ino: Ino, handle: Handle, offset: i64, whence: i32) -> Answer<i64>;
    /// Opens a directory for listing.
    fn opendir(&self, caller: &Caller, ino: Ino) -> Answer<Handle>;
    /// Lists from `offset` (first 0, then the `next` of an entry) until the sink is full.
    ///
    /// # Errors
    ///
    /// `EBADF` for a handle that is not open, `ENOMEM` beyond the limit of names that listings keep.
    fn readdir(
        &self,
        ino: Ino,
        handle: Handle,
        offset: u64,
        plus: bool,
        sink: DirSink<'_>,
    ) -> Reply<()>;
    /// Ends a listing.
    fn releasedir(&self, ino: Ino, handle: Handle);
    /// Makes the names of a directory durable.
    fn fsyncdir(&self, ino: Ino, handle: Handle) -> Answer<()>;
    /// Returns the size of the file system.
    fn statfs(&self, ino: Ino) -> Answer<StatFs>;
    /// Sets an extended attribute.
    fn setxattr(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Answer<()>;
    /// Reads an extended attribute; `ENODATA` when it is not there.
    fn getxattr(&self, caller: &Caller, ino: Ino, name: &OsStr) -> Answer<Vec<u8>>;
    /// Lists the names of extended attributes, each ended by NUL.
    fn listxattr(&self, caller: &Caller, ino: Ino) -> Answer<Vec<u8>>;
    /// Removes an extended attribute; `ENODATA` when it is not there.
    fn removexattr(&self, caller: &Caller, ino: Ino, name: &OsStr) -> Answer<()>;
}

/// Notifications from a file system to the kernel that names have changed.
pub trait Notices: fmt::Debug + Send + Sync {
    /// Makes the kernel look up every cached name again before it uses it; returns whether the
    /// kernel supports this. Takes no lock of the kernel, so it may be called from inside a
    /// request. The effect is complete when it returns.
    fn expire_all(&self) -> bool;
    /// Makes the kernel request the attributes of this inode again before it uses them; returns
    /// whether that is sure. Takes no lock that a request may hold, like
    /// [`expire_all`](Notices::expire_all).
    fn expire_attrs(&self, ino: Ino) -> bool;
    /// Requests that the kernel look up this name again before it uses it, present or missing.
    /// Never blocks; takes effect soon.
    fn inval_entry(&self, parent: Ino, name: &OsStr);
}

/// Returns permission bits without those that grant the rights of an owner or group: setuid always,
/// setgid if the group may run the file, or if the caller is neither root nor in that group.
pub fn without_privileges(perm: u32, in_group: bool) -> u32 {
    let group_runs = perm & 0o010 != 0;
    perm & if group_runs || !in_group { !0o6000 } else { !0o4000 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn privileges_go_as_the_kernel_has_them_go() {
        for (perm, left) in [(0o6755, 0o755), (0o6745, 0o2745), (0o4644, 0o644), (0o1777, 0o1777)] {
            assert_eq!(without_privileges(perm, true), left, "{perm:o}");
            assert_eq!(without_privileges(perm, false), left & 0o1777, "{perm:o}");
        }
    }
}
