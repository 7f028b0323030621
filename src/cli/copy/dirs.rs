//! The directories that a copy makes.
//!
//! Owns their modes and times: a directory is made when something goes into it, and gets its times when
//! the last job that needs it is done. Until then only the user of the export can enter a directory
//! that the export has made. Must never change a directory that existed before. Another user may rename
//! directories meanwhile, so each change uses a descriptor, after checking what it refers to.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustix::fs::{Gid, Mode, Timestamps, Uid, fchmod, fchown, fstat, futimens};
use rustix::io::Errno;

use super::Way;
use super::about::About;
use super::report::CopyTally;
use super::tree::{DirNames, Trees, open_again};
use super::trouble::{CopyTrouble, Doing as _, Done, Side};
use crate::name::TreePath;

/// The permission bits of a directory that are copied.
const DIR_BITS: u32 = 0o3777;
/// The bits that the owner needs to fill a directory.
const OWNER_BITS: u32 = 0o700;
/// The mode of a directory that an export is filling. The sticky bit marks it as unfinished: if an
/// export was killed, the next one finishes it.
const UNFINISHED_MODE: u32 = 0o1700;

/// Why a directory could not be made; reported for each file in it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NotMade {
    doing: String,
    errno: Option<i32>,
}

impl From<&NotMade> for CopyTrouble {
    fn from(why: &NotMade) -> Self {
        let doing = why.doing.clone();
        match why.errno {
            Some(errno) => {
                Self::Io(Side::Target, doing.into(), io::Error::from_raw_os_error(errno))
            }
            None => Self::Said(doing),
        }
    }
}

/// The shared state of all directories of a copy.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) way: Way,
    pub(super) trees: Arc<Trees>,
    pub(super) tally: Arc<CopyTally>,
}

/// A directory of the source, with the one that receives its content.
#[derive(Debug)]
pub(super) struct Dir {
    ground: Arc<Ground>,
    /// Its path from the roots.
    pub(super) below: PathBuf,
    /// Its path below the mount, on the side that is a mount.
    pub(super) place: TreePath,
    /// The source directory as it was before it was listed.
    about: About,
    above: Option<Arc<Dir>>,
    /// The directory of the target if this copy has to finish it, or why it does not exist.
    made: OnceLock<Result<Option<About>, NotMade>>,
}

impl Dir {
    pub(super) fn new(
        ground: Arc<Ground>,
        below: PathBuf,
        place: TreePath,
        about: About,
        above: Option<Arc<Self>>,
    ) -> Self {
        Self { ground, below, place, about, above, made: OnceLock::new() }
    }

    /// Returns its path in the source, for people.
    pub(super) fn from(&self) -> PathBuf {
        self.ground.trees.path(Side::Source, &self.below)
    }

    /// Returns its path in the target, for people.
    pub(super) fn to(&self) -> PathBuf {
        self.ground.trees.path(Side::Target, &self.below)
    }

    /// Reports whether no name was added or removed since it was listed; `now` is its present state.
    pub(super) fn is_as_listed(&self, now: &About) -> bool {
        now.modified == self.about.modified
    }

    /// Makes the directory, and those above it, if they are missing.
    pub(super) fn ensure(&self) -> Done<()> {
        self.is_there().map_err(CopyTrouble::from)
    }

    /// Makes sure that the directory of the target exists.
    fn is_there(&self) -> Result<(), &NotMade> {
        let made = self.made.get_or_init(|| {
            if let Some(above) = &self.above {
                above.is_there().map_err(Clone::clone)?;
            }
            self.make()
        });
        made.as_ref().map(|_| ())
    }

    /// Makes the directory if it is missing. Returns its state if this copy has to finish it.
    fn make(&self) -> Result<Option<About>, NotMade> {
        let mode = match self.ground.way {
            Way::Import => self.about.mode & DIR_BITS | OWNER_BITS,
            Way::Export => UNFINISHED_MODE,
        };
        let at = self.to();
        let made = self.ground.trees.make(&self.below, mode).map_err(|error| match &error {
            error if is_not_a_directory(error) => {
                NotMade { doing: not_a_directory(&at), errno: None }
            }
            error => NotMade {
                doing: format!("make the directory {}", at.display()),
                errno: error.raw_os_error(),
            },
        })?;
        if self.ground.trees.is_other_root(Side::Target, made.about.id) {
            let doing = format!("{} is the directory that is copied", at.display());
            return Err(NotMade { doing, errno: None });
        }
        if self.ground.way == Way::Export {
            let is_unfinished = made.about.is_made_with(UNFINISHED_MODE);
            return Ok((made.is_new || is_unfinished).then_some(made.about));
        }
        if !made.is_new {
            return Ok(None);
        }
        let given = self.give(&made.dir).map_err(io::Error::from);
        match given.target("set the attributes of the directory") {
            Ok(about) => Ok(about),
            Err(trouble) => {
                self.ground.tally.failed(self.ground.way, &at, &trouble);
                Ok(None)
            }
        }
    }

    /// Gives a new directory of a mount its owner and its mode. Other programs use it from the
    /// start, and its name may later lead to another directory. Returns `None` for a directory that
    /// another user has put in its place: it has content, and this copy must not finish it.
    fn give(&self, made: &OwnedFd) -> rustix::io::Result<Option<About>> {
        let dir = open_again(made)?;
        let listed = open_again(made)?;
        if !DirNames::of(listed).is_ok_and(DirNames::are_none) {
            return Ok(None);
        }
        self.dress(&dir, OWNER_BITS)?;
        Ok(Some(About::of(&fstat(&dir)?)))
    }

    /// Sets the times of a directory that this copy has filled, and the attributes that are still missing.
    fn finish(&self, made: &About) -> Done<()> {
        let dir = self.ground.trees.directory(Side::Target, &self.below);
        let dir = dir.target("open the directory")?;
        let now = About::of(&fstat(&dir).map_err(io::Error::from).target("look at the directory")?);
        let is_it = match self.ground.way {
            Way::Export => now.id == made.id,
            // On a mount the inode number of a directory may change while no process has it open.
            Way::Import => (now.uid, now.gid, now.mode) == (made.uid, made.gid, made.mode),
        };
        if !is_it {
            let text = "another program replaced or changed the directory meanwhile";
            return Err(CopyTrouble::Said(text.to_owned()));
        }
        let (last_access, last_modification) = (self.about.accessed, self.about.modified);
        self.dress(&dir, 0)
            .and_then(|()| futimens(&dir, &Timestamps { last_access, last_modification }))
            .map_err(io::Error::from)
            .target("set the attributes of the directory")
    }

    /// Sets owner and mode as in the source, with some additional bits.
    fn dress(&self, dir: &OwnedFd, more: u32) -> rustix::io::Result<()> {
        let now = About::of(&fstat(dir)?);
        let (uid, gid) = (self.about.uid, self.about.gid);
        if rustix::process::geteuid().is_root() && (now.uid, now.gid) != (uid, gid) {
            fchown(dir, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))?;
        }
        let mode = self.about.mode & DIR_BITS | more;
        if now.mode & DIR_BITS != mode {
            fchmod(dir, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if let Some(Ok(Some(made))) = self.made.get()
            && let Err(trouble) = self.finish(made)
        {
            self.ground.tally.failed(self.ground.way, &self.to(), &trouble);
        }
    }
}

/// Reports whether something other than a directory was found, such as a link.
pub(super) fn is_not_a_directory(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::NOTDIR | Errno::LOOP))
}

/// Returns the message that something other than a directory is there.
pub(super) fn not_a_directory(at: &Path) -> String {
    format!("{} is not a directory: remove it, or name another target", at.display())
}
