//! Sends answers to the kernel.
//!
//! Owns how each kind of answer becomes a reply of fuser. Must never decide anything about a file.

use std::time::Duration;

use fuser::{FileHandle, FopenFlags, Generation};

use super::translate;
use crate::backing::{Backing, Registration};
use crate::vfs::{Attr, Created, Errno, FileType, Found, Io, Lookup, Opened, Reply, StatFs};

/// Inode numbers are never reused within a session, so one generation is enough.
const GENERATION: Generation = Generation(0);

pub(super) fn lookup(answer: Reply<Lookup>, reply: fuser::ReplyEntry) {
    match answer {
        Ok(Lookup::Found(found)) => entry(Ok(found), reply),
        Ok(Lookup::Missing { ttl }) if ttl.is_zero() => reply.error(fuser::Errno::ENOENT),
        Ok(Lookup::Missing { ttl }) => {
            reply.entry_with_ttls(&Duration::ZERO, &ttl, &translate::no_attr(), GENERATION);
        }
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn entry(answer: Reply<Found>, reply: fuser::ReplyEntry) {
    match answer {
        Ok(found) => {
            let attr = translate::attr(&found.attr);
            reply.entry_with_ttls(&found.attr_ttl, &found.entry_ttl, &attr, GENERATION);
        }
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn attr(answer: Reply<(Attr, Duration)>, reply: fuser::ReplyAttr) {
    match answer {
        Ok((attr, ttl)) => reply.attr(&ttl, &translate::attr(&attr)),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn empty(answer: Reply<()>, reply: fuser::ReplyEmpty) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

/// Returns the answer of `access` if root is the only caller: everything is allowed, except running
/// a file that no user may run.
pub(super) fn root_may(
    answer: Reply<(Attr, Duration)>,
    mask: fuser::AccessFlags,
    reply: fuser::ReplyEmpty,
) {
    match answer {
        Ok((attr, _))
            if mask.contains(fuser::AccessFlags::X_OK)
                && attr.file_type != FileType::Directory
                && attr.perm & 0o111 == 0 =>
        {
            reply.error(fuser::Errno::EACCES);
        }
        Ok(_) => reply.ok(),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn data(answer: Reply<Vec<u8>>, reply: fuser::ReplyData) {
    match answer {
        Ok(bytes) => reply.data(&bytes),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn written(answer: Reply<u32>, reply: fuser::ReplyWrite) {
    match answer {
        Ok(count) => reply.written(count),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn offset(answer: Reply<i64>, reply: fuser::ReplyLseek) {
    match answer {
        Ok(offset) => reply.offset(offset),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn handle(answer: Reply<crate::vfs::Handle>, reply: fuser::ReplyOpen) {
    match answer {
        Ok(handle) => reply.opened(FileHandle(handle.0), FopenFlags::empty()),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

/// Sends an attribute. `size` is the caller's buffer size; 0 requests the needed size.
pub(super) fn xattr(answer: Reply<Vec<u8>>, size: u32, reply: fuser::ReplyXattr) {
    match answer {
        Ok(value) => match u32::try_from(value.len()) {
            Ok(length) if size == 0 => reply.size(length),
            Ok(length) if length <= size => reply.data(&value),
            _ => reply.error(fuser::Errno::ERANGE),
        },
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn statfs(answer: Reply<StatFs>, reply: fuser::ReplyStatfs) {
    match answer {
        Ok(s) => reply.statfs(
            s.blocks,
            s.free,
            s.available,
            s.files,
            s.files_free,
            s.block_size,
            s.name_max,
            s.block_size,
        ),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

/// Returns the flags of a handle without passthrough, and those of one with it.
fn fopen_flags(opened: &Opened) -> FopenFlags {
    let mut flags = match opened.io {
        Io::Passthrough(_) | Io::Cached { keep: false } => FopenFlags::empty(),
        Io::Cached { keep: true } => FopenFlags::FOPEN_KEEP_CACHE,
        Io::Direct | Io::Beside(_) => FopenFlags::FOPEN_DIRECT_IO,
    };
    if opened.no_flush {
        flags |= FopenFlags::FOPEN_NOFLUSH;
    }
    flags
}

/// The two replies that open a file, so that only one place chooses the path of the bytes.
trait OpenReply: Sized {
    fn register(&self, file: &std::fs::File) -> std::io::Result<fuser::BackingId>;
    fn plain(self, handle: FileHandle, flags: FopenFlags);
    fn passthrough(self, handle: FileHandle, flags: FopenFlags, id: &fuser::BackingId);
}

impl OpenReply for fuser::ReplyOpen {
    fn register(&self, file: &std::fs::File) -> std::io::Result<fuser::BackingId> {
        self.open_backing(file)
    }
    fn plain(self, handle: FileHandle, flags: FopenFlags) {
        self.opened(handle, flags);
    }
    fn passthrough(self, handle: FileHandle, flags: FopenFlags, id: &fuser::BackingId) {
        self.opened_passthrough(handle, flags, id);
    }
}

impl OpenReply for (fuser::ReplyCreate, Found) {
    fn register(&self, file: &std::fs::File) -> std::io::Result<fuser::BackingId> {
        self.0.open_backing(file)
    }
    fn plain(self, handle: FileHandle, flags: FopenFlags) {
        let (reply, found) = self;
        let (ttl, attr) = (translate::common_ttl(&found), translate::attr(&found.attr));
        reply.created(&ttl, &attr, GENERATION, handle, flags);
    }
    fn passthrough(self, handle: FileHandle, flags: FopenFlags, id: &fuser::BackingId) {
        let (reply, found) = self;
        let (ttl, attr) = (translate::common_ttl(&found), translate::attr(&found.attr));
        reply.created_passthrough(&ttl, &attr, GENERATION, handle, flags, id);
    }
}

/// Sends a handle to the kernel. The registration stays locked until its id was sent, so that with
/// two concurrent first opens of an inode neither is answered without it.
fn hand_over(opened: &Opened, reply: impl OpenReply) {
    let handle = FileHandle(opened.handle.0);
    let flags = fopen_flags(opened);
    match &opened.io {
        Io::Passthrough(backing) | Io::Beside(backing) => pass(backing, handle, flags, reply),
        Io::Cached { .. } | Io::Direct => reply.plain(handle, flags),
    }
}

fn pass(backing: &Backing, handle: FileHandle, flags: FopenFlags, reply: impl OpenReply) {
    let registration = backing.registered(|file| reply.register(file));
    match &*registration {
        Registration::Registered(id) => reply.passthrough(handle, flags, id),
        Registration::Untried | Registration::Refused => {
            reply.plain(handle, flags | FopenFlags::FOPEN_DIRECT_IO);
        }
    }
}

pub(super) fn opened(answer: Reply<Opened>, reply: fuser::ReplyOpen) {
    match answer {
        Ok(opened) => hand_over(&opened, reply),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn created(answer: Reply<Created>, reply: fuser::ReplyCreate) {
    match answer {
        Ok(Created { found, opened }) => hand_over(&opened, (reply, found)),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn directory(answer: Reply<()>, reply: fuser::ReplyDirectory) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

pub(super) fn directory_plus(answer: Reply<()>, reply: fuser::ReplyDirectoryPlus) {
    match answer {
        Ok(()) => reply.ok(),
        Err(errno) => reply.error(translate::errno(errno)),
    }
}

/// Adds a listed name and its attributes to a buffer; returns `true` if there was no room.
pub(super) fn add_plus(
    reply: &mut fuser::ReplyDirectoryPlus,
    entry: &crate::vfs::DirEntry<'_>,
) -> Result<bool, Errno> {
    let dots = entry.name == "." || entry.name == "..";
    let (ttl, attr) = match &entry.found {
        Some(found) => (translate::common_ttl(found), translate::attr(&found.attr)),
        // The kernel ignores everything except number and type of these two, and counts no lookup.
        None if dots => {
            let mut attr = translate::no_attr();
            attr.ino = fuser::INodeNo(entry.ino.0);
            attr.kind = translate::dirent_type(entry.file_type);
            (Duration::ZERO, attr)
        }
        // A nonzero number would count a lookup that did not happen, and zero hides the name.
        None => return Err(Errno::EIO),
    };
    Ok(reply.add(attr.ino, entry.next, entry.name, &ttl, &attr, GENERATION))
}
