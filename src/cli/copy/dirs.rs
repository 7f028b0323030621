//! The directories that a copy makes.
//!
//! Owns their modes and times: a directory is made when something goes into it, and gets its times when nothing more does, which
//! is when the last job that needs it is done. Must never change a directory that was there before.

use std::fs::{DirBuilder, FileTimes, Metadata, OpenOptions, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, fchown,
};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use rustix::fs::OFlags;

use super::report::Tally;
use super::trouble::{Doing as _, Done, Trouble};
use crate::name::TreePath;

/// The permission bits of a directory that are copied.
const DIR_BITS: u32 = 0o3777;
/// What the owner needs to fill a directory.
const OWNER_BITS: u32 = 0o700;
/// The mode of directories above the first one, where they are missing.
const ABOVE_MODE: u32 = 0o755;

/// Why a directory could not be made: each file that was to go there needs the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
struct NotMade {
    doing: String,
    errno: Option<i32>,
}

impl From<&NotMade> for Trouble {
    fn from(why: &NotMade) -> Self {
        let doing = why.doing.clone();
        match why.errno {
            Some(errno) => Self::Io(doing.into(), std::io::Error::from_raw_os_error(errno)),
            None => Self::Said(doing),
        }
    }
}

/// A directory of the source and the one that its content goes to.
#[derive(Debug)]
pub(super) struct Dir {
    pub(super) from: PathBuf,
    pub(super) to: PathBuf,
    /// Its path below the mount, on the side that is a mount.
    pub(super) place: TreePath,
    /// The source directory as it was before it was listed.
    pub(super) about: Metadata,
    above: Option<Arc<Dir>>,
    tally: Arc<Tally>,
    /// Whether this copy has made it, or why it is not there.
    made: OnceLock<Result<bool, NotMade>>,
}

impl Dir {
    pub(super) fn new(
        from: PathBuf,
        to: PathBuf,
        place: TreePath,
        about: Metadata,
        above: Option<Arc<Self>>,
        tally: Arc<Tally>,
    ) -> Self {
        Self { from, to, place, about, above, tally, made: OnceLock::new() }
    }

    /// Reports whether nothing has come or gone since it was listed.
    pub(super) fn is_as_listed(&self) -> bool {
        let time = |about: &Metadata| (about.mtime(), about.mtime_nsec());
        self.from.symlink_metadata().is_ok_and(|now| time(&now) == time(&self.about))
    }

    /// Makes the directory, and those above it, if they are missing.
    pub(super) fn ensure(&self) -> Done<()> {
        self.is_there().map(|_| ()).map_err(Trouble::from)
    }

    /// Returns whether this copy has made it.
    fn is_there(&self) -> Result<bool, &NotMade> {
        let made = self.made.get_or_init(|| {
            if let Some(above) = &self.above {
                above.is_there().map_err(Clone::clone)?;
            }
            self.make()
        });
        made.as_ref().copied()
    }

    fn make(&self) -> Result<bool, NotMade> {
        let fail = |what: &str, error: Option<&std::io::Error>| NotMade {
            doing: format!("{what} {}", self.to.display()),
            errno: error.and_then(std::io::Error::raw_os_error),
        };
        let mode = self.about.mode() & DIR_BITS;
        let mut builder = DirBuilder::new();
        builder.mode(mode | OWNER_BITS);
        let mut made = builder.create(&self.to);
        if self.above.is_none() && made.as_ref().is_err_and(|e| e.kind() == ErrorKind::NotFound) {
            // The first one may be several levels below what is there, and only it has the mode of the source.
            let above = self.to.parent();
            let all = |above| DirBuilder::new().recursive(true).mode(ABOVE_MODE).create(above);
            made = above.map_or(Ok(()), all).and_then(|()| builder.create(&self.to));
        }
        match made {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                match self.to.symlink_metadata() {
                    // A link that another user has put there must not lead what is written elsewhere.
                    Ok(about) if about.is_dir() => Ok(false),
                    Ok(_) => Err(fail("there is no directory but something else at", None)),
                    Err(error) => Err(fail("look at the directory", Some(&error))),
                }
            }
            Err(error) => Err(fail("make the directory", Some(&error))),
        }
    }

    /// Gives a directory that this copy has made its attributes.
    fn finish(&self) -> std::io::Result<()> {
        let (uid, gid) = (self.about.uid(), self.about.gid());
        // By a descriptor, so that all of it is done to one directory, and never to what a link leads to.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
        let dir = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(&self.to)?;
        let now = dir.metadata()?;
        if rustix::process::geteuid().is_root() && (now.uid(), now.gid()) != (uid, gid) {
            fchown(&dir, Some(uid), Some(gid))?;
        }
        let mode = self.about.mode() & DIR_BITS;
        if now.mode() & DIR_BITS != mode {
            dir.set_permissions(Permissions::from_mode(mode))?;
        }
        let times = FileTimes::new().set_modified(self.about.modified()?);
        dir.set_times(times.set_accessed(self.about.accessed()?))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        if self.made.get() == Some(&Ok(true))
            && let Err(trouble) = self.finish().doing("set the attributes of the directory")
        {
            self.tally.failed(&self.to, &trouble);
        }
    }
}
