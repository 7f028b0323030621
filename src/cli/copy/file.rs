//! One file or symbolic link.
//!
//! Owns reading, writing, and giving what was written its name and attributes. Must never leave a part of a file under
//! its name: what fails is taken away before it is closed.

use std::ffi::OsStr;
use std::fs::{File, FileTimes, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{
    MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown, lchown, symlink,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hearthfs_mount::process;
use rustix::fs::{AtFlags, CWD, OFlags, Timespec, Timestamps, utimensat};

use super::Way;
use super::dirs::Dir;
use super::trouble::{Doing as _, Done, Trouble};

/// How much is read at once.
const PIECE_BYTES: usize = 1 << 20;
/// The permission bits of a file that are copied: set-id bits are not.
const FILE_BITS: u32 = 0o777;
/// How the name begins that a file has in an export until all of it is there.
const TEMPORARY: &str = ".hearthfs-export.";

/// A name in the source.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) dir: Arc<Dir>,
    pub(super) name: Box<OsStr>,
}

impl Item {
    pub(super) fn from(&self) -> PathBuf {
        self.dir.from.join(&*self.name)
    }

    pub(super) fn to(&self) -> PathBuf {
        self.dir.to.join(&*self.name)
    }
}

/// What is there already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    Missing,
    /// A file of the same size and time, or a link to the same.
    Same,
    Differs,
}

/// What a source name is: a file, a symbolic link, or neither.
pub(super) fn about(from: &Path) -> Done<Metadata> {
    from.symlink_metadata().doing("look at it")
}

/// Returns the bytes that are copied of a file or link.
pub(super) fn bytes_of(about: &Metadata) -> u64 {
    if about.is_file() { about.len() } else { 0 }
}

/// Compares a file or link with what is in its place.
pub(super) fn standing(about: &Metadata, item: &Item) -> Done<Standing> {
    let there = match item.to().symlink_metadata() {
        Ok(there) => there,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Standing::Missing),
        Err(error) => return Err(Trouble::Io("look at what is there".into(), error)),
    };
    if there.is_dir() {
        return Err(Trouble::Said(format!("{} is a directory", item.to().display())));
    }
    let same = if about.is_symlink() && there.is_symlink() {
        let target = |path: &Path| path.read_link().doing("read the link");
        target(&item.from())? == target(&item.to())?
    } else {
        let key = |of: &Metadata| (of.is_file(), of.len(), of.mtime(), of.mtime_nsec());
        about.is_file() && key(about) == key(&there)
    };
    Ok(if same { Standing::Same } else { Standing::Differs })
}

/// A regular file of the source, open.
#[derive(Debug)]
pub(super) struct Source {
    file: File,
    about: Metadata,
}

impl Source {
    pub(super) fn open(from: &Path) -> Done<Self> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(from);
        let file = opened.doing("open it")?;
        let about = file.metadata().doing("look at it")?;
        if !about.is_file() {
            return Err(Trouble::Said("it is no file any more".to_owned()));
        }
        Ok(Self { file, about })
    }

    /// Reports whether a name leads to this version still. Its inode may be another: a process that keeps a version which was
    /// replaced is led elsewhere for it.
    pub(super) fn is_at(&self, from: &Path) -> bool {
        let key = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
        from.symlink_metadata().is_ok_and(|now| key(&now) == key(&self.about))
    }

    /// Checks that the file was not changed since it was opened; `bytes` is what was read of it.
    fn check_unchanged(&self, bytes: u64) -> Done<()> {
        let now = self.file.metadata().doing("look at it")?;
        let key = |of: &Metadata| (of.len(), of.mtime(), of.mtime_nsec());
        if bytes == self.about.len() && key(&now) == key(&self.about) {
            return Ok(());
        }
        Err(Trouble::Said("it was changed while it was read".to_owned()))
    }
}

/// How a file comes to its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    /// There is nothing yet.
    New,
    /// What is there is replaced.
    Replace,
    /// As a member of a unit on the mount: whatever is there is no part of a complete one.
    Member,
}

/// A thread's means to write files.
#[derive(Debug)]
pub(super) struct Writer {
    way: Way,
    piece: Vec<u8>,
    is_root: bool,
}

impl Writer {
    pub(super) fn new(way: Way) -> Self {
        let is_root = rustix::process::geteuid().is_root();
        Self { way, piece: vec![0; PIECE_BYTES], is_root }
    }

    /// Copies a file that is open, and returns its bytes. `check` is asked when the target is open, before anything is
    /// written; if it refuses, the target is as it was.
    pub(super) fn file(
        &mut self,
        mut source: Source,
        to: &Path,
        put: Put,
        check: impl FnOnce() -> Done<()>,
    ) -> Done<u64> {
        // What cannot be read changes nothing.
        let first = read_piece(&mut source.file, &mut self.piece)?;
        let mut target = self.open(to, put, source.about.mode() & FILE_BITS)?;
        if let Err(trouble) = check() {
            if target.is_new {
                std::fs::remove_file(&target.name).ok();
            }
            return Err(trouble);
        }
        let written = self.fill(&mut source, &mut target, first);
        let closed = written.and_then(|bytes| {
            source.check_unchanged(bytes)?;
            self.dress(&target, &source.about)?;
            Ok(bytes)
        });
        match closed {
            Ok(bytes) => {
                process::close(target.file.into()).doing("close what was written")?;
                if target.name != to {
                    std::fs::rename(&target.name, to).doing("rename what was written")?;
                }
                Ok(bytes)
            }
            Err(trouble) => {
                // Before the close: a file without a name is not published.
                std::fs::remove_file(&target.name).ok();
                Err(trouble)
            }
        }
    }

    /// Copies a symbolic link as it is.
    pub(super) fn link(
        &mut self,
        item: &Item,
        about: &Metadata,
        check: impl FnOnce() -> Done<()>,
    ) -> Done<()> {
        let (from, to) = (item.from(), item.to());
        let target = from.read_link().doing("read the link")?;
        let name = self.name(&to);
        let mut made = symlink(&target, &name);
        if made.as_ref().is_err_and(|error| error.kind() == ErrorKind::AlreadyExists) {
            std::fs::remove_file(&name).doing("remove what is there")?;
            made = symlink(&target, &name);
        }
        made.doing("make the link")?;
        if let Err(trouble) = check() {
            std::fs::remove_file(&name).ok();
            return Err(trouble);
        }
        if self.is_root {
            lchown(&name, Some(about.uid()), Some(about.gid())).doing("set the owner")?;
        }
        let times = Timestamps {
            last_access: Timespec { tv_sec: about.atime(), tv_nsec: about.atime_nsec() },
            last_modification: Timespec { tv_sec: about.mtime(), tv_nsec: about.mtime_nsec() },
        };
        utimensat(CWD, &name, &times, AtFlags::SYMLINK_NOFOLLOW)
            .map_err(io::Error::from)
            .doing("set the times")?;
        if name != to {
            std::fs::rename(&name, &to).doing("rename what was written")?;
        }
        Ok(())
    }

    /// Returns the name under which something is written.
    fn name(&self, to: &Path) -> PathBuf {
        match self.way {
            Way::Import => to.to_owned(),
            Way::Export => {
                // By chance: a run that was killed has left names, and processes of containers have the same numbers.
                to.with_file_name(format!("{TEMPORARY}{:016x}", crate::task::random_u64()))
            }
        }
    }

    fn open(&mut self, to: &Path, put: Put, mode: u32) -> Done<Target> {
        let name = self.name(to);
        let mut options = OpenOptions::new();
        options.write(true).mode(mode).custom_flags(OFlags::NOFOLLOW.bits() as i32);
        let put = if name == to { put } else { Put::New };
        if put != Put::New {
            let there = name.symlink_metadata();
            if there.as_ref().is_ok_and(|there| !there.is_file()) {
                std::fs::remove_file(&name).doing("remove what is there")?;
            } else if there.is_ok() {
                // Not yet emptied: until something is written it is as it was.
                match options.open(&name) {
                    Ok(file) => {
                        let target = Target { file, name, is_new: false };
                        return Ok(target);
                    }
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(Trouble::Io("open what is there".into(), error)),
                }
            }
        }
        match options.create_new(true).open(&name) {
            Ok(file) => Ok(Target { file, name, is_new: true }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Err(Trouble::Came),
            Err(error) => Err(Trouble::Io("make the file".into(), error)),
        }
    }

    /// Writes all bytes of a source, of which the first piece is in the buffer.
    fn fill(&mut self, source: &mut Source, target: &mut Target, first: usize) -> Done<u64> {
        if !target.is_new {
            target.file.set_len(0).doing("empty what is there")?;
        }
        let (mut bytes, mut read) = (0, first);
        while read > 0 {
            target.file.write_all(&self.piece[..read]).doing("write")?;
            bytes += read as u64;
            read = read_piece(&mut source.file, &mut self.piece)?;
        }
        Ok(bytes)
    }

    /// Gives an open file the attributes of its source. The time comes last: writing sets it.
    fn dress(&self, target: &Target, about: &Metadata) -> Done<()> {
        let now = target.file.metadata().doing("look at what was written")?;
        let owner = (about.uid(), about.gid());
        if self.is_root && (now.uid(), now.gid()) != owner {
            fchown(&target.file, Some(owner.0), Some(owner.1)).doing("set the owner")?;
        }
        let mode = about.mode() & FILE_BITS;
        if now.mode() & 0o7777 != mode {
            target.file.set_permissions(Permissions::from_mode(mode)).doing("set the mode")?;
        }
        let modified = about.modified().doing("read the time")?;
        let accessed = about.accessed().doing("read the time")?;
        let times = FileTimes::new().set_modified(modified).set_accessed(accessed);
        target.file.set_times(times).doing("set the times")
    }
}

/// A file that is being written.
#[derive(Debug)]
struct Target {
    file: File,
    /// The name that it has meanwhile.
    name: PathBuf,
    is_new: bool,
}

fn read_piece(file: &mut File, piece: &mut [u8]) -> Done<usize> {
    loop {
        match file.read(piece) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read.doing("read it"),
        }
    }
}
