//! A name in an open directory.
//!
//! Owns the calls that examine, open and remove it. Must never follow a link.

use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;

use rustix::fs::{AtFlags, Mode, OFlags, RenameFlags};
use rustix::fs::{
    linkat, openat, readlinkat, renameat, renameat_with, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::about::About;

/// A name in a directory that is open.
#[derive(Clone, Copy, Debug)]
pub(super) struct At<'a> {
    pub(super) dir: BorrowedFd<'a>,
    pub(super) name: &'a OsStr,
}

impl<'a> At<'a> {
    /// Returns another name in the same directory.
    pub(super) fn with(self, name: &'a OsStr) -> Self {
        Self { name, ..self }
    }

    pub(super) fn about(self) -> io::Result<About> {
        Ok(About::of(&statat(self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW)?))
    }

    /// Opens the name if it is not a link.
    pub(super) fn open(self, flags: OFlags, mode: u32) -> io::Result<File> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(openat(self.dir, self.name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Reads where a link leads.
    pub(super) fn link_target(self) -> io::Result<CString> {
        Ok(readlinkat(self.dir, self.name, Vec::new())?)
    }

    /// Makes a link.
    pub(super) fn make_link(self, target: &CString) -> io::Result<()> {
        Ok(symlinkat(target, self.dir, self.name)?)
    }

    /// Removes it if it is not a directory.
    pub(super) fn remove(self) -> io::Result<()> {
        Ok(unlinkat(self.dir, self.name, AtFlags::empty())?)
    }

    /// Renames it within its directory, replacing what is there.
    pub(super) fn replace(self, to: &OsStr) -> io::Result<()> {
        Ok(renameat(self.dir, self.name, self.dir, to)?)
    }

    /// Renames it within its directory if the new name is free.
    pub(super) fn rename_to_new(self, to: &OsStr) -> io::Result<()> {
        match renameat_with(self.dir, self.name, self.dir, to, RenameFlags::NOREPLACE) {
            // Some file systems do not support this. A hard link never replaces anything either.
            Err(Errno::INVAL | Errno::NOSYS) => {
                linkat(self.dir, self.name, self.dir, to, AtFlags::empty())?;
                self.remove()
            }
            renamed => Ok(renamed?),
        }
    }
}
