//! The two directories of a copy, and access to what is below them.
//!
//! Each step goes from the descriptor of one directory to one name in it and follows no link. So
//! whatever others rename or replace meanwhile, nothing outside the two trees is read or written.
//!
//! Owns the descriptors of the two roots, and those of the directories that a thread has used last.
//! Must never pass the kernel a path of more than one name.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, fstat, mkdirat, openat};
use rustix::io::Errno;

use super::Way;
use super::about::{About, Id};
use super::at::At;
use super::trouble::Side;
use crate::cli::failure::{Failure, Outcome};

/// How many directories a thread keeps open.
const DIRS_HELD_MAX: usize = 16;
/// The mode of missing directories above the target.
const ABOVE_MODE: u32 = 0o755;
/// Flags to open a directory as a starting point. It need not be readable.
const AS_PLACE: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags to open a directory that is listed, or whose attributes are set.
const AS_DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// One of the two directories.
#[derive(Debug)]
struct TreeRoot {
    path: PathBuf,
    /// Set when the directory exists.
    dir: OnceLock<(OwnedFd, Id)>,
    /// The directory, or its nearest ancestor that existed at the start, and the names from there on.
    nearest: OwnedFd,
    missing: Vec<OsString>,
}

impl TreeRoot {
    /// Opens a directory, or its nearest existing ancestor. `path` is resolved: it contains no link.
    fn open(path: &Path) -> io::Result<Self> {
        let mut nearest = openat(CWD, "/", AS_PLACE, Mode::empty())?;
        let mut missing = Vec::new();
        for part in path.components() {
            let Component::Normal(name) = part else { continue };
            if !missing.is_empty() {
                missing.push(name.to_owned());
                continue;
            }
            match openat(&nearest, name, AS_PLACE, Mode::empty()) {
                Ok(dir) => nearest = dir,
                Err(Errno::NOENT) => missing.push(name.to_owned()),
                Err(error) => return Err(error.into()),
            }
        }
        let dir = OnceLock::new();
        if missing.is_empty() {
            let id = About::of(&fstat(&nearest)?).id;
            let found = (nearest.try_clone()?, id);
            dir.get_or_init(|| found);
        }
        Ok(Self { path: path.to_owned(), dir, nearest, missing })
    }

    /// Makes the directory and its missing ancestors. Only its own mode is `mode`.
    fn make(&self, mode: u32) -> io::Result<MadeDir> {
        if let Some((dir, _)) = self.dir.get() {
            let dir = dir.try_clone()?;
            return Ok(MadeDir { about: About::of(&fstat(&dir)?), dir, is_new: false });
        }
        let mut made: Option<MadeDir> = None;
        for (at, name) in self.missing.iter().enumerate() {
            let is_last = at + 1 == self.missing.len();
            let above = made.as_ref().map_or(&self.nearest, |made| &made.dir);
            made = Some(make_in(above, name, if is_last { mode } else { ABOVE_MODE })?);
        }
        let made = made.ok_or(Errno::NOENT)?;
        let found = (made.dir.try_clone()?, made.about.id);
        self.dir.get_or_init(|| found);
        Ok(made)
    }
}

/// Both directories.
#[derive(Debug)]
pub(in crate::cli) struct Trees {
    source: TreeRoot,
    target: TreeRoot,
}

/// A directory of the target, open as a starting point.
#[derive(Debug)]
pub(super) struct MadeDir {
    pub(super) dir: OwnedFd,
    pub(super) about: About,
    /// It did not exist before.
    pub(super) is_new: bool,
}

impl Trees {
    /// Opens both directories; the target may be missing. `device` is that of the mount that holds one of them.
    pub(in crate::cli) fn open(way: Way, from: &Path, to: &Path, device: u64) -> Outcome<Self> {
        let open = |path: &Path| {
            let failed = |error| Failure::failed(format!("open {}: {error}", path.display()));
            TreeRoot::open(path).map_err(failed)
        };
        let trees = Self { source: open(from)?, target: open(to)? };
        let Some((_, source)) = trees.source.dir.get() else {
            return Err(Failure::failed(format!("{} is gone", from.display())));
        };
        if trees.target.dir.get().is_some_and(|(_, target)| target == source) {
            let (from, to) = (from.display(), to.display());
            return Err(Failure::refused(format!("{from} and {to} are the same directory"))
                .hint("name two separate directories"));
        }
        let (on_mount, path) = match way {
            Way::Import => (fstat(&trees.target.nearest), to),
            Way::Export => (fstat(&trees.source.nearest), from),
        };
        // Another program may have put something else there since the path was resolved to a mount.
        match on_mount {
            Ok(stat) if About::of(&stat).id.device == device => Ok(trees),
            _ => Err(Failure::failed(format!("{} is no longer on the mount", path.display()))),
        }
    }

    fn root(&self, side: Side) -> &TreeRoot {
        match side {
            Side::Source => &self.source,
            Side::Target => &self.target,
        }
    }

    /// Returns a path for people.
    pub(super) fn path(&self, side: Side, below: &Path) -> PathBuf {
        let root = &self.root(side).path;
        if below.as_os_str().is_empty() { root.clone() } else { root.join(below) }
    }

    /// Opens a directory as a starting point. `below` is its path from the root of its side.
    pub(super) fn place(&self, side: Side, below: &Path) -> io::Result<OwnedFd> {
        let (root, _) = self.root(side).dir.get().ok_or(Errno::NOENT)?;
        let mut dir = root.try_clone()?;
        for name in below {
            dir = openat(&dir, name, AS_PLACE, Mode::empty())?;
        }
        Ok(dir)
    }

    /// Opens a directory to list it or to set its attributes.
    pub(super) fn directory(&self, side: Side, below: &Path) -> io::Result<OwnedFd> {
        Ok(open_again(&self.place(side, below)?)?)
    }

    /// Makes a directory of the target if it is missing; its parent exists.
    pub(super) fn make(&self, below: &Path, mode: u32) -> io::Result<MadeDir> {
        match (below.parent(), below.file_name()) {
            (Some(above), Some(name)) => make_in(&self.place(Side::Target, above)?, name, mode),
            _ => self.target.make(mode),
        }
    }

    /// Reports whether a directory of one side is the root of the other: one contains the other in
    /// a way that paths do not show.
    pub(super) fn is_other_root(&self, side: Side, id: Id) -> bool {
        let other = match side {
            Side::Source => &self.target,
            Side::Target => &self.source,
        };
        other.dir.get().is_some_and(|(_, root)| *root == id)
    }
}

/// Opens a starting point again, to list it or to set its attributes.
pub(in crate::cli) fn open_again(place: &OwnedFd) -> rustix::io::Result<OwnedFd> {
    openat(place, ".", AS_DIRECTORY, Mode::empty())
}

/// Makes a directory in an open one if it is missing, and opens it.
fn make_in(dir: &OwnedFd, name: &OsStr, mode: u32) -> io::Result<MadeDir> {
    let is_new = match mkdirat(dir, name, Mode::from_raw_mode(mode)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(error.into()),
    };
    // A link that another user has put there must not redirect the writes.
    let made = openat(dir, name, AS_PLACE, Mode::empty())?;
    let about = About::of(&fstat(&made)?);
    // Another user who may rename in `dir` can have replaced the new directory.
    let is_new = is_new && about.is_made_with(mode);
    Ok(MadeDir { dir: made, about, is_new })
}

/// The names in a directory, except `.` and `..`.
#[derive(Debug)]
pub(in crate::cli) struct DirNames(rustix::fs::Dir);

impl DirNames {
    /// Lists an open directory.
    pub(in crate::cli) fn of(dir: OwnedFd) -> io::Result<Self> {
        Ok(Self(rustix::fs::Dir::new(dir)?))
    }

    /// Opens a subdirectory that was listed, to list it.
    pub(super) fn open(&self, name: &OsStr) -> io::Result<OwnedFd> {
        Ok(openat(self.0.fd()?, name, AS_DIRECTORY, Mode::empty())?)
    }

    /// Returns the type of a listed name.
    fn kind(&self, name: &OsStr) -> io::Result<FileType> {
        let stat = rustix::fs::statat(self.0.fd()?, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(FileType::from_raw_mode(stat.st_mode))
    }

    /// Reports whether there are none.
    pub(super) fn are_none(mut self) -> bool {
        self.next().is_none()
    }

    /// Starts again.
    pub(super) fn rewind(&mut self) {
        self.0.rewind();
    }
}

impl Iterator for DirNames {
    type Item = io::Result<(OsString, FileType)>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let entry = match self.0.read()? {
                Ok(entry) => entry,
                Err(error) => return Some(Err(error.into())),
            };
            let name = OsString::from_vec(entry.file_name().to_bytes().to_vec());
            if name == "." || name == ".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => self.kind(&name),
                kind => Ok(kind),
            };
            return Some(kind.map(|kind| (name, kind)));
        }
    }
}

/// An open directory.
#[derive(Clone, Debug)]
pub(super) struct HeldDir(Rc<OwnedFd>);

impl HeldDir {
    /// Returns a name in it.
    pub(super) fn at<'a>(&'a self, name: &'a OsStr) -> At<'a> {
        At { dir: self.0.as_fd(), name }
    }
}

/// The directories that a thread has used last, open.
#[derive(Debug)]
pub(super) struct OpenDirs {
    trees: Arc<Trees>,
    /// The most recently used is at the end.
    dirs: Vec<(Side, PathBuf, HeldDir)>,
}

impl OpenDirs {
    pub(super) fn new(trees: Arc<Trees>) -> Self {
        Self { trees, dirs: Vec::new() }
    }

    /// Opens a directory as a starting point, or returns it if it is already open.
    pub(super) fn place(&mut self, side: Side, below: &Path) -> io::Result<HeldDir> {
        let known = self.dirs.iter().position(|(of, path, _)| *of == side && path == below);
        if let Some(at) = known {
            self.dirs[at..].rotate_left(1);
        } else {
            let dir = match (below.parent(), below.file_name()) {
                (Some(above), Some(name)) => {
                    let above = self.place(side, above)?;
                    openat(&above.0, name, AS_PLACE, Mode::empty())?
                }
                _ => self.trees.place(side, below)?,
            };
            if self.dirs.len() >= DIRS_HELD_MAX {
                self.dirs.remove(0);
            }
            self.dirs.push((side, below.to_owned(), HeldDir(Rc::new(dir))));
        }
        let (_, _, dir) = self.dirs.last().expect("a directory was just pushed");
        Ok(dir.clone())
    }

    /// Returns the state of a directory.
    pub(super) fn about(&mut self, side: Side, below: &Path) -> io::Result<About> {
        Ok(About::of(&fstat(&self.place(side, below)?.0)?))
    }
}
