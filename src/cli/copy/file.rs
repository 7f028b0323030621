//! One file or symbolic link.
//!
//! Owns reading and writing it, and setting the name and attributes of what was written. Must never leave a
//! partial file under its name, and never remove what is there before all of its replacement is written.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, ErrorKind, Read as _, Seek as _, Write as _};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{PermissionsExt as _, fchown};
use std::path::PathBuf;
use std::sync::Arc;

use hearthfs_mount::process;
use rustix::fs::{AtFlags, Gid, OFlags, Timestamps, Uid, chownat, fstat, futimens, utimensat};

use super::Way;
use super::about::About;
use super::at::At;
use super::dirs::Dir;
use super::trouble::{CopyTrouble, Doing as _, Done};
use crate::config::ByteSize;
use crate::name::TreePath;

/// The most bytes of one read.
const PIECE_BYTES: usize = 1 << 20;
/// The permission bits of a file that are copied: set-id bits are not.
const FILE_BITS: u32 = 0o777;
/// The prefix of a temporary name; the direction of the copy and a dot follow.
const TEMPORARY_PREFIX: &str = ".hearthfs-";
/// The digits at the end of a temporary name.
const TEMPORARY_DIGITS: usize = 16;

/// Reports whether a name was left behind by a copy that was killed.
pub(super) fn is_temporary(name: &OsStr) -> bool {
    let rest = name.to_str().and_then(|name| name.strip_prefix(TEMPORARY_PREFIX));
    let Some((word, digits)) = rest.and_then(|rest| rest.split_once('.')) else { return false };
    let is_digit = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    matches!(word, "import" | "export")
        && digits.len() == TEMPORARY_DIGITS
        && digits.bytes().all(is_digit)
}

/// A name in the source.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) dir: Arc<Dir>,
    pub(super) name: Box<OsStr>,
}

impl Item {
    /// Returns its path in the source, for people.
    pub(super) fn from(&self) -> PathBuf {
        self.dir.from().join(&*self.name)
    }

    /// Returns its path in the target, for people.
    pub(super) fn to(&self) -> PathBuf {
        self.dir.to().join(&*self.name)
    }

    /// Returns its path below the mount.
    pub(super) fn place(&self) -> Option<TreePath> {
        self.dir.place.join(self.name.as_bytes()).ok()
    }
}

/// What the target has under a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Missing,
    /// A file of the same size and time, or a link to the same.
    Same,
    Differs,
}

/// A regular file of the source, open.
#[derive(Debug)]
pub(super) struct SourceFile {
    file: File,
    pub(super) about: About,
}

impl SourceFile {
    pub(super) fn open(from: At<'_>) -> Done<Self> {
        // If a FIFO was put there meanwhile, the copy must not block on it.
        let file = from.open(OFlags::RDONLY | OFlags::NONBLOCK, 0).source("open it")?;
        let about = look(&file).source("look at it")?;
        if !about.is_file() {
            return Err(CopyTrouble::Said("it is no longer a file".to_owned()));
        }
        Ok(Self { file, about })
    }

    /// Reports whether a name still leads to this version. Its inode may differ: a process that
    /// keeps a replaced version of a mount sees it as another inode.
    pub(super) fn is_at(&self, from: At<'_>) -> bool {
        from.about().is_ok_and(|now| now.is_version(&self.about))
    }

    /// Checks that the file has not changed since it was opened; `bytes` is how much of it was read.
    fn check_unchanged(&self, bytes: u64) -> Done<()> {
        let now = look(&self.file).source("look at it")?;
        if bytes == self.about.size && now.is_version(&self.about) {
            return Ok(());
        }
        Err(CopyTrouble::Changed)
    }
}

/// How a file gets its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    /// The name is free. A file that appears meanwhile stays.
    New,
    /// The present file is replaced.
    Replace,
    /// A member of a unit on the mount. A file that exists belongs to no complete version.
    Member,
}

/// Writes files; one per thread, because it has a buffer.
#[derive(Debug)]
pub(super) struct FileWriter {
    way: Way,
    piece: Vec<u8>,
    is_root: bool,
    /// The largest file that the target can hold, in bytes.
    bytes_max: u64,
}

/// A file that is being written.
#[derive(Debug)]
struct Target {
    file: File,
    is_new: bool,
}

impl FileWriter {
    /// Creates a writer; `bytes_max` is the largest file that the target can hold.
    pub(super) fn new(way: Way, bytes_max: u64) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { way, piece: vec![0; PIECE_BYTES], is_root, bytes_max }
    }

    /// Refuses a file that the target cannot hold. Others can still be copied.
    fn check_size(&self, about: &About) -> Done<()> {
        if about.size <= self.bytes_max {
            return Ok(());
        }
        let [size, most] = [about.size, self.bytes_max].map(|bytes| ByteSize(bytes).human());
        let text =
            format!("its {size} are more than the whole cache of {most}: raise `local.cache_size`");
        Err(CopyTrouble::Said(text))
    }

    /// Copies an open file, and returns its bytes. `check` is called when the target is open,
    /// before anything is written; if it refuses, the target stays unchanged.
    pub(super) fn file(
        &mut self,
        mut source: SourceFile,
        to: At<'_>,
        put: Put,
        check: impl FnOnce() -> Done<()>,
    ) -> Done<u64> {
        self.check_size(&source.about)?;
        // A file that cannot be read must not change the target.
        let first = read_piece(&mut source.file, &mut self.piece)?;
        let temporary = self.temporary(put);
        let at = temporary.as_deref().map_or(to, |name| to.with(name));
        let put_at = if temporary.is_some() { Put::New } else { put };
        let mut target = open_target(at, put_at, source.about.mode & FILE_BITS)?;
        if let Err(trouble) = check() {
            if target.is_new {
                at.remove().ok();
            }
            return Err(trouble);
        }
        let written = self.fill(&mut source, &mut target, first).and_then(|bytes| {
            source.check_unchanged(bytes)?;
            self.dress(&target, &source.about)?;
            Ok(bytes)
        });
        let named = match written {
            Ok(bytes) => self.finish(target, at, to, put).map(|()| bytes),
            Err(trouble) => {
                // Before the close: on a mount, a file without a name is not published.
                at.remove().ok();
                return Err(trouble);
            }
        };
        named.inspect_err(|_| {
            if temporary.is_some() {
                at.remove().ok();
            }
        })
    }

    /// Closes the written file, and renames it if it has a temporary name.
    fn finish(&self, target: Target, at: At<'_>, to: At<'_>, put: Put) -> Done<()> {
        let close = |file: File| process::close(file.into()).target("close what was written");
        if at.name == to.name {
            return close(target.file);
        }
        if self.way == Way::Import {
            // On a mount an open file is published by its close, so its temporary name is never
            // published. Until then the name leads to the old file.
            if let Err(trouble) = rename(at, to, put) {
                at.remove().ok();
                return Err(trouble);
            }
            return close(target.file);
        }
        close(target.file)?;
        rename(at, to, put)
    }

    /// Copies a symbolic link as it is.
    pub(super) fn link(
        &mut self,
        from: At<'_>,
        about: &About,
        to: At<'_>,
        put: Put,
        check: impl FnOnce() -> Done<()>,
    ) -> Done<()> {
        let target = from.link_target().source("read the link")?;
        let temporary = self.temporary(put);
        let at = temporary.as_deref().map_or(to, |name| to.with(name));
        let mut check = Some(check);
        match at.make_link(&target) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => match put {
                Put::New | Put::Replace => return Err(CopyTrouble::Came),
                Put::Member => {
                    check.take().map_or(Ok(()), |check| check())?;
                    at.remove().target("remove what is there")?;
                    at.make_link(&target).target("make the link")?;
                }
            },
            made => made.target("make the link")?,
        }
        let named = check
            .map_or(Ok(()), |check| check())
            .and_then(|()| self.dress_link(at, about))
            .and_then(|()| if temporary.is_some() { rename(at, to, put) } else { Ok(()) });
        named.inspect_err(|_| {
            at.remove().ok();
        })
    }

    fn dress_link(&self, at: At<'_>, about: &About) -> Done<()> {
        if self.is_root {
            // Through a descriptor: if another user has replaced it meanwhile, the owner of the
            // replacement must not change.
            let link = at.open(OFlags::PATH, 0).target("open the link")?;
            if !look(&link).target("look at the link")?.is_link() {
                return Err(CopyTrouble::Came);
            }
            let owner = (Some(Uid::from_raw(about.uid)), Some(Gid::from_raw(about.gid)));
            let set = chownat(&link, "", owner.0, owner.1, AtFlags::EMPTY_PATH);
            set.map_err(io::Error::from).target("set the owner")?;
        }
        utimensat(at.dir, at.name, &times_of(about), AtFlags::SYMLINK_NOFOLLOW)
            .map_err(io::Error::from)
            .target("set the times")
    }

    /// Returns the temporary name of a file that gets its own only when it is complete.
    fn temporary(&self, put: Put) -> Option<OsString> {
        let word = match (self.way, put) {
            // A mount publishes a new file, and a member of a unit, only when it is complete.
            (Way::Import, Put::New | Put::Member) => return None,
            (Way::Import, Put::Replace) => "import",
            (Way::Export, _) => "export",
        };
        // A random number: a killed run leaves names behind, and processes of different containers
        // can have the same id.
        let number = crate::task::random_u64();
        Some(format!("{TEMPORARY_PREFIX}{word}.{number:0TEMPORARY_DIGITS$x}").into())
    }

    /// Writes all bytes of a source, whose first piece is in the buffer.
    fn fill(&mut self, source: &mut SourceFile, target: &mut Target, first: usize) -> Done<u64> {
        if !target.is_new {
            target.file.set_len(0).target("empty what is there")?;
        }
        let (mut bytes, mut read) = (0, first);
        while read > 0 {
            target.file.write_all(&self.piece[..read]).target("write")?;
            bytes += read as u64;
            read = read_piece(&mut source.file, &mut self.piece)?;
        }
        Ok(bytes)
    }

    /// Reads a source to its end to check that it is readable, and rewinds it.
    pub(super) fn try_out(&mut self, source: &mut SourceFile) -> Done<()> {
        self.check_size(&source.about)?;
        let mut bytes = 0;
        loop {
            match read_piece(&mut source.file, &mut self.piece)? {
                0 => break,
                read => bytes += read as u64,
            }
        }
        source.check_unchanged(bytes)?;
        source.file.rewind().source("go back to its beginning")
    }

    /// Sets the attributes of an open file as in its source. The time comes last, because writing changes it.
    fn dress(&self, target: &Target, about: &About) -> Done<()> {
        let now = look(&target.file).target("look at what was written")?;
        if self.is_root && (now.uid, now.gid) != (about.uid, about.gid) {
            fchown(&target.file, Some(about.uid), Some(about.gid)).target("set the owner")?;
        }
        let mode = about.mode & FILE_BITS;
        if now.mode != mode {
            target.file.set_permissions(Permissions::from_mode(mode)).target("set the mode")?;
        }
        futimens(&target.file, &times_of(about)).map_err(io::Error::from).target("set the times")
    }
}

/// Opens a target. An existing file is not truncated: it stays unchanged until the first write.
fn open_target(at: At<'_>, put: Put, mode: u32) -> Done<Target> {
    if put != Put::New {
        match at.about() {
            Ok(there) if !there.is_file() => at.remove().target("remove what is there")?,
            // If a FIFO was put there meanwhile, the copy must neither block on it nor write into it.
            Ok(_) => match at.open(OFlags::WRONLY | OFlags::NONBLOCK, 0) {
                Ok(file) if look(&file).target("look at what is there")?.is_file() => {
                    return Ok(Target { file, is_new: false });
                }
                Ok(_) => return Err(CopyTrouble::Came),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).target("open what is there"),
            },
            Err(_) => {}
        }
    }
    match at.open(OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL, mode) {
        Ok(file) => Ok(Target { file, is_new: true }),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(CopyTrouble::Came),
        Err(error) => Err(error).target("make the file"),
    }
}

/// Renames a written file to its own name.
fn rename(at: At<'_>, to: At<'_>, put: Put) -> Done<()> {
    let renamed = match put {
        Put::New => at.rename_to_new(to.name),
        Put::Replace | Put::Member => at.replace(to.name),
    };
    match renamed {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(CopyTrouble::Came),
        renamed => renamed.target("rename what was written"),
    }
}

fn look(file: &File) -> io::Result<About> {
    Ok(About::of(&fstat(file)?))
}

fn read_piece(file: &mut File, piece: &mut [u8]) -> Done<usize> {
    loop {
        match file.read(piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read.source("read it"),
        }
    }
}

fn times_of(about: &About) -> Timestamps {
    Timestamps { last_access: about.accessed, last_modification: about.modified }
}
