//! Extended attributes, and the question what a caller may do.
//!
//! Owns which names of extended attributes exist at all: `user.*`, and to be read `hearthfs.*`, which the
//! [`Vfs`](crate::vfs::Vfs) makes up. The kernel lets a caller read either only where it may read the file. Must never let a
//! question for others reach the [`Vfs`](crate::vfs::Vfs).

use std::ffi::OsStr;

use fuser::{INodeNo, Request};

use super::{Adapter, replies, translate};
use crate::counts::KernelOp;
use crate::vfs::{Errno, Reply};

/// What the kernel asks for before the first write to an inode.
const CAPABILITY_XATTR: &str = "security.capability";
/// How the names begin that are made up.
const MADE_UP: &[u8] = b"hearthfs.";

impl Adapter {
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

    /// Sets one to a value, as the flags say.
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

    /// Reads one, or tells its size.
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

    /// Tells whether a caller may do something, where the kernel does not find out itself.
    pub(super) fn may(
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
            KernelOp::Access,
            |vfs| vfs.getattr(&caller, translate::ino(ino), None),
            move |answer| replies::root_may(answer, mask, reply),
        );
    }
}
