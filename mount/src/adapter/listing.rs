//! Listings of directories, written into the kernel's buffers.
//!
//! Owns what happens when a name does not fit or cannot be listed. Must never drop a name that was
//! accepted: it was counted as a lookup.

use fuser::{FileHandle, INodeNo};

use super::{Adapter, replies, translate};
use crate::counts::KernelOp;
use crate::vfs::{Handle, Reply};

impl Adapter {
    /// Lists names.
    pub(super) fn list(
        &self,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectory,
    ) {
        let mut taken = false;
        let answer = self.call(KernelOp::Readdir, |vfs| {
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

    /// Lists names with their attributes, which saves a lookup of each.
    pub(super) fn list_with_attributes(
        &self,
        ino: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: fuser::ReplyDirectoryPlus,
    ) {
        let mut taken = false;
        let mut fault = None;
        let answer = self.call(KernelOp::ReaddirPlus, |vfs| {
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
}

/// Accepted names were counted as lookups, so they are sent despite a later error; the next call
/// meets the error again.
fn unless_taken(answer: Reply<Reply<()>>, taken: bool) -> Reply<()> {
    match answer.and_then(|listed| listed) {
        Err(_) if taken => Ok(()),
        answer => answer,
    }
}
