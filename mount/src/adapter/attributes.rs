//! Extended attributes, and checks of a caller's rights.
//!
//! Owns which names of extended attributes exist: `user.*`, and the read-only `hearthfs.*`, which
//! the [`Vfs`](crate::vfs::Vfs) generates. The kernel lets a caller read either only if it may read
//! the file. Must never let a request for other names reach the [`Vfs`](crate::vfs::Vfs).

use std::ffi::OsStr;

use fuser::{INodeNo, Request};

use super::{Adapter, replies, translate};
use crate::counts::KernelOp;
use crate::vfs::{Errno, Reply};

/// The attribute that the kernel requests before the first write to an inode.
const CAPABILITY_XATTR: &str = "security.capability";
/// The prefix of generated names.
const MADE_UP: &[u8] = b"hearthfs.";

impl Adapter {
    /// Checks whether an extended attribute may exist: only those of `user.*`, if enabled.
    fn xattr(&self, name: &OsStr) -> Reply<()> {
        if !self.user_xattrs {
            // The kernel remembers this answer, and sends no further such request.
            Err(Errno::ENOSYS)
        } else if name.as_encoded_bytes().starts_with(b"user.") {
            Ok(())
        } else {
            Err(Errno::EOPNOTSUPP)
        }
    }

    /// Sets one to a value, according to the flags.
    pub(super) fn set_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        (value, flags): (&[u8], i32),
        reply: fuser::ReplyEmpty,
    ) {
        let caller = translate::caller(request);
        match self.xattr(name).and_then(|()| translate::xattr_mode(flags)) {
            Ok(mode) => self.settle(
                KernelOp::Setxattr,
                |vfs| vfs.setxattr(&caller, translate::ino(ino), name, value, mode),
                |answer| replies::empty(answer, reply),
            ),
            Err(errno) => reply.error(translate::errno(errno)),
        }
    }

    /// Reads one, or returns its size.
    pub(super) fn get_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let caller = translate::caller(request);
        let made_up = self.user_xattrs && name.as_encoded_bytes().starts_with(MADE_UP);
        if let Err(errno) = self.xattr(name)
            && !made_up
        {
            self.shared.requests.add(KernelOp::Getxattr);
            let absent = self.user_xattrs && name == CAPABILITY_XATTR;
            let errno = if absent { Errno::ENODATA } else { errno };
            return reply.error(translate::errno(errno));
        }
        self.settle(
            KernelOp::Getxattr,
            |vfs| vfs.getxattr(&caller, translate::ino(ino), name),
            move |answer| replies::xattr(answer, size, reply),
        );
    }

    /// Lists their names.
    pub(super) fn list_xattrs(
        &self,
        request: &Request,
        ino: INodeNo,
        size: u32,
        reply: fuser::ReplyXattr,
    ) {
        let caller = translate::caller(request);
        if !self.user_xattrs {
            return reply.error(fuser::Errno::ENOSYS);
        }
        self.settle(
            KernelOp::Listxattr,
            |vfs| vfs.listxattr(&caller, translate::ino(ino)),
            move |answer| replies::xattr(answer, size, reply),
        );
    }

    /// Removes one.
    pub(super) fn remove_xattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        reply: fuser::ReplyEmpty,
    ) {
        let caller = translate::caller(request);
        if let Err(errno) = self.xattr(name) {
            return reply.error(translate::errno(errno));
        }
        self.settle(
            KernelOp::Removexattr,
            |vfs| vfs.removexattr(&caller, translate::ino(ino), name),
            |answer| replies::empty(answer, reply),
        );
    }

    /// Checks whether a caller may do something, if the kernel does not check that itself.
    pub(super) fn may(
        &self,
        request: &Request,
        ino: INodeNo,
        mask: fuser::AccessFlags,
        reply: fuser::ReplyEmpty,
    ) {
        if self.kernel_checks {
            // This request never comes; the kernel would remember the answer.
            reply.error(fuser::Errno::ENOSYS);
            return;
        }
        let caller = translate::caller(request);
        self.settle(
            KernelOp::Access,
            |vfs| vfs.getattr(&caller, translate::ino(ino), None),
            move |answer| replies::root_may(answer, mask, reply),
        );
    }
}
