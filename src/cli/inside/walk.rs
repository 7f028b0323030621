//! The walk along patterns.
//!
//! Each step goes from an open directory to one name in it. Owns the open directories, one for each level. Must
//! never follow a link, enter another file system, or list a directory in which only known names can match.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use rustix::fs::{AtFlags, FileType, Mode, fstat, openat, statat};
use rustix::io::Errno;

use super::glob::GlobPosition;
use super::query::{AS_PLACE, Query};
use super::trouble::Troubles;
use crate::cli::copy::{DirNames, open_again};
use crate::cli::failure::{Failure, Outcome};

/// The greatest depth of a tree. Each level keeps two directories open.
const DEPTH_MAX: usize = 200;

/// A name that matches.
#[derive(Debug)]
pub(in crate::cli) struct Hit<'a> {
    /// The directory that holds it, open as a starting point.
    pub(in crate::cli) dir: &'a OwnedFd,
    pub(in crate::cli) name: &'a OsStr,
    /// Its path from the root of the mount, with slashes.
    pub(in crate::cli) below: &'a [u8],
    pub(in crate::cli) kind: FileType,
}

/// The handler of matching names.
pub(in crate::cli) trait Visit {
    /// Reports whether everything below a matching directory is included, too.
    fn takes_all_below(&self) -> bool {
        false
    }

    /// Called for each matching name; for a directory, before what is below it.
    fn found(&mut self, hit: &Hit<'_>) -> Outcome<()>;

    /// Called for each matching directory, after everything below it.
    fn left(&mut self, _hit: &Hit<'_>) -> Outcome<()> {
        Ok(())
    }

    /// Returns the failures.
    fn troubles(&mut self) -> &mut Troubles;
}

/// A directory on the way.
#[derive(Debug)]
struct WalkLevel {
    /// The directory as a starting point.
    dir: OwnedFd,
    source: NameSource,
    at: GlobPosition,
    /// Everything below is included.
    is_whole: bool,
    /// The directory itself matches.
    is_hit: bool,
    /// Its own name, and where that starts in the path.
    name: OsString,
    begin: usize,
}

/// The names to examine in a directory.
#[derive(Debug)]
enum NameSource {
    Listed(DirNames),
    Known(std::vec::IntoIter<Vec<u8>>),
}

/// Walks along the patterns of a query. Fails if a name that the query names without a wildcard
/// does not exist; returns whether anything matched.
pub(in crate::cli) fn walk(query: &Query, visit: &mut dyn Visit) -> Outcome<bool> {
    let found = vec![false; query.globs.len()];
    let mut walk = DirWalk { query, visit, levels: Vec::new(), path: Vec::new(), found };
    walk.run()?;
    let found = walk.found;
    for (found, (typed, is_one)) in found.iter().zip(&query.typed) {
        if !found && *is_one && visit.troubles().count() == 0 {
            return Err(Failure::failed(format!("{typed}: there is no such name")));
        }
    }
    Ok(found.contains(&true))
}

struct DirWalk<'a> {
    query: &'a Query,
    visit: &'a mut dyn Visit,
    levels: Vec<WalkLevel>,
    /// The path of the current name.
    path: Vec<u8>,
    found: Vec<bool>,
}

impl DirWalk<'_> {
    fn run(&mut self) -> Outcome<()> {
        let at = GlobPosition::start(&self.query.globs);
        let root = self.query.root.try_clone().map_err(|error| {
            Failure::failed(format!("open the root of the mount once more: {error}"))
        })?;
        self.enter(root, at, false, (false, OsString::new(), 0));
        while let Some(level) = self.levels.last_mut() {
            let begin = level.begin + level.name.len();
            self.path.truncate(begin);
            let next = match &mut level.source {
                NameSource::Listed(names) => names.next(),
                NameSource::Known(names) => names.next().and_then(|name| known(&level.dir, name)),
            };
            match next {
                Some(Ok((name, kind))) => self.look_at(&name, kind)?,
                Some(Err(error)) => self.trouble(&error),
                None if matches!(&level.source, NameSource::Known(names) if names.len() > 0) => {}
                None => self.leave()?,
            }
        }
        Ok(())
    }

    fn trouble(&mut self, why: &dyn std::fmt::Display) {
        let shown = self.query.shown(&self.path);
        self.visit.troubles().add(&shown, why);
    }

    fn look_at(&mut self, name: &OsStr, kind: FileType) -> Outcome<()> {
        let Some(level) = self.levels.last() else { return Ok(()) };
        let (globs, found) = (&self.query.globs, &mut self.found);
        let mut is_hit = level.is_whole;
        let at = level.at.step(globs, name.as_bytes(), |glob| {
            is_hit = true;
            found[glob] = true;
        });
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        let begin = self.path.len();
        self.path.extend_from_slice(name.as_bytes());
        if is_hit {
            self.visit.found(&Hit { dir: &level.dir, name, below: &self.path, kind })?;
        }
        let is_whole = level.is_whole || (is_hit && self.visit.takes_all_below());
        if kind == FileType::Directory && (is_whole || !at.is_over()) {
            match openat(&level.dir, name, AS_PLACE, Mode::empty()) {
                Ok(dir) => self.enter(dir, at, is_whole, (is_hit, name.to_owned(), begin)),
                // It is gone, or something else by now.
                Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                Err(error) => self.trouble(&error),
            }
        }
        Ok(())
    }

    fn enter(
        &mut self,
        dir: OwnedFd,
        at: GlobPosition,
        is_whole: bool,
        own: (bool, OsString, usize),
    ) {
        if self.levels.len() >= DEPTH_MAX {
            return self.trouble(&format!("it lies more than {DEPTH_MAX} directories deep"));
        }
        let (is_hit, name, begin) = own;
        let known = if is_whole { None } else { at.names(&self.query.globs) };
        let source = match known {
            Some(names) => Ok(NameSource::Known(names.into_iter())),
            None => listed(&dir).map(NameSource::Listed),
        };
        match (fstat(&dir).map_err(io::Error::from), source) {
            (Err(error), _) | (_, Err(error)) => self.trouble(&error),
            (Ok(about), _) if about.st_dev != self.query.device => {
                self.trouble(&"another file system is mounted there");
            }
            (Ok(_), Ok(source)) => {
                self.levels.push(WalkLevel { dir, source, at, is_whole, is_hit, name, begin });
            }
        }
    }

    fn leave(&mut self) -> Outcome<()> {
        let Some(level) = self.levels.pop() else { return Ok(()) };
        match self.levels.last() {
            Some(above) if level.is_hit => {
                let (dir, name) = (&above.dir, &*level.name);
                self.visit.left(&Hit { dir, name, below: &self.path, kind: FileType::Directory })
            }
            _ => Ok(()),
        }
    }
}

fn listed(dir: &OwnedFd) -> io::Result<DirNames> {
    DirNames::of(open_again(dir)?)
}

/// Examines a name that may exist.
fn known(dir: &OwnedFd, name: Vec<u8>) -> Option<io::Result<(OsString, FileType)>> {
    let name = OsString::from_vec(name);
    match statat(dir, &name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Some(Ok((name, FileType::from_raw_mode(stat.st_mode)))),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => None,
        Err(error) => Some(Err(error.into())),
    }
}
