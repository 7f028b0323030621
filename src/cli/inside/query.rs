//! The names that the arguments of a command stand for.
//!
//! Owns finding the mount, and turning paths and globs into patterns from its root. Must never wait
//! for a mount that does not answer.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;

use super::glob::{Glob, is_typed_pattern, typed_name};
use crate::cli::copy::OnMount;
use crate::cli::escape::printed;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::point::answer;
use crate::config::{Surroundings, resolve};
use crate::control::Mounts;

/// The most arguments of one command.
const GLOBS_MAX: usize = 10_000;

/// Flags to open a directory as a starting point. It need not be readable.
pub(super) const AS_PLACE: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// What a directory named without a wildcard stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cli) enum Whole {
    /// Itself.
    Itself,
    /// The names in it.
    Listed,
    /// All names below it.
    Below,
}

/// Names on one mount.
#[derive(Debug)]
pub(in crate::cli) struct Query {
    /// The mount point.
    pub(in crate::cli) point: PathBuf,
    /// Its root, as a starting point.
    pub(super) root: OwnedFd,
    pub(super) device: u64,
    pub(super) globs: Vec<Glob>,
    /// Each argument as displayed, and whether it names one thing.
    pub(super) typed: Vec<(String, bool)>,
    /// One of them has a wildcard.
    pub(in crate::cli) has_wildcards: bool,
    /// The current directory, if it is on the mount.
    here: Option<PathBuf>,
}

/// One path on a mount.
#[derive(Debug)]
pub(in crate::cli) struct Named {
    /// The directory that holds it; for the root of the mount itself.
    pub(in crate::cli) dir: OwnedFd,
    /// Its name there; `.` for the root of the mount.
    pub(in crate::cli) name: OsString,
    /// Its path from the root of the machine.
    pub(in crate::cli) path: PathBuf,
}

/// One argument.
#[derive(Debug)]
struct Arg {
    /// The existing part, resolved, and the rest as typed.
    lead: PathBuf,
    rest: Vec<OsString>,
    /// What is at `lead`, if nothing follows.
    about: Option<Metadata>,
}

impl Query {
    /// Resolves arguments. Without any, it is the current directory if that is on a mount, or else
    /// the only mount.
    pub(in crate::cli) fn of(
        around: &Surroundings,
        typed: &[PathBuf],
        whole: Whole,
    ) -> Outcome<Self> {
        let usual = if typed.is_empty() { Some(usual_dir(around)?) } else { None };
        let typed = usual.as_ref().map_or(typed, std::slice::from_ref);
        if typed.len() > GLOBS_MAX {
            return Err(Failure::refused(format!("there are more than {GLOBS_MAX} arguments"))
                .hint("name directories or a GLOB in quotes"));
        }
        let args = typed.iter().map(|one| arg(around, one)).collect::<Outcome<Vec<_>>>()?;
        let on = args.first().map(|first| OnMount::find(&first.lead)).transpose()?;
        let on = on.ok_or_else(|| Failure::refused("nothing is named"))?;
        let (mounts, mut globs, mut shown) = (Mounts::read()?, Vec::new(), Vec::new());
        for (arg, typed) in args.iter().zip(typed) {
            let text = printed(typed.as_os_str().as_bytes());
            let wrong = |why: String| {
                Failure::refused(format!("{text}: {why}"))
                    .hint("`hearthfs ls --help` explains GLOBs")
            };
            if mounts.holding(&arg.lead).map(|mounted| &mounted.point) != Some(&on.point) {
                let point = printed(on.point.as_os_str().as_bytes());
                return Err(Failure::refused(format!("{text} is not on the mount {point}"))
                    .hint("name paths on one mount at a time"));
            }
            let (glob, is_one) = pattern(&on.point, arg, whole).map_err(wrong)?;
            globs.push(glob);
            shown.push((text.clone(), is_one));
        }
        let root = open_root(&on)?;
        let here = on_point(&on.point, &resolve(&around.current_dir));
        let is_typed = |name: &OsString| is_typed_pattern(name.as_bytes());
        let has_wildcards = args.iter().any(|arg| arg.rest.iter().any(is_typed));
        let OnMount { point, device, .. } = on;
        Ok(Self { point, root, device, globs, typed: shown, has_wildcards, here })
    }

    /// Returns the path of a name for people: relative to the current directory if that is above
    /// it, and otherwise absolute. It can be typed as it is.
    pub(in crate::cli) fn shown(&self, below: &[u8]) -> String {
        let path = Path::new(std::ffi::OsStr::from_bytes(below));
        match self.here.as_ref().and_then(|here| path.strip_prefix(here).ok()) {
            Some(path) if path.as_os_str().is_empty() => ".".to_owned(),
            Some(path) => printed(path.as_os_str().as_bytes()),
            None => printed(self.absolute(below).as_os_str().as_bytes()),
        }
    }

    /// Returns how many leading names all matches share, according to the patterns.
    pub(in crate::cli) fn known_names(&self) -> usize {
        self.globs.iter().map(Glob::known_names).min().unwrap_or(0)
    }

    /// Returns the absolute path of a name.
    pub(in crate::cli) fn absolute(&self, below: &[u8]) -> PathBuf {
        if below.is_empty() {
            self.point.clone()
        } else {
            self.point.join(std::ffi::OsStr::from_bytes(below))
        }
    }
}

fn on_point(point: &Path, path: &Path) -> Option<PathBuf> {
    path.strip_prefix(point).ok().map(Path::to_owned)
}

/// Resolves one path, which need not exist.
pub(in crate::cli) fn one(around: &Surroundings, typed: &Path) -> Outcome<Named> {
    let Arg { lead, rest, .. } = arg(around, typed)?;
    let on = OnMount::find(&lead)?;
    let mut below = on_point(&on.point, &lead).unwrap_or_default();
    for name in &rest {
        let refused = |why: &str| {
            let text = printed(typed.as_os_str().as_bytes());
            Failure::refused(format!("{text}: {why}")).hint("`hearthfs ls` takes a GLOB")
        };
        let name = typed_name(name.as_bytes()).map_err(|why| refused(&why))?;
        let name =
            name.ok_or_else(|| refused("there is no such name, and one path is expected"))?;
        below.push(OsString::from_vec(name));
    }
    let mut dir = open_root(&on)?;
    let path = if below.as_os_str().is_empty() { on.point } else { on.point.join(&below) };
    let (Some(name), Some(above)) = (below.file_name(), below.parent()) else {
        return Ok(Named { dir, name: ".".into(), path });
    };
    for part in above {
        dir = openat(&dir, part, AS_PLACE, Mode::empty()).map_err(|error| {
            Failure::failed(format!("{}: {error}", printed(path.as_os_str().as_bytes())))
        })?;
    }
    Ok(Named { dir, name: name.to_owned(), path })
}

/// Returns the default without arguments: the current directory if it is on a mount, or else the only mount.
pub(in crate::cli) fn usual_dir(around: &Surroundings) -> Outcome<PathBuf> {
    let mounts = Mounts::read()?;
    if mounts.holding(&around.current_dir).is_some() {
        return Ok(PathBuf::from("."));
    }
    if let Some(dir) = around.directory("HEARTHFS_MOUNT") {
        return Ok(dir);
    }
    match mounts.ours()[..] {
        [one] => Ok(one.point.clone()),
        [] => Err(Failure::not_mounted("nothing is mounted").hint("run `hearthfs mount` first")),
        _ => Err(Failure::refused("there are several mounts")
            .hint("name one, or a path on it; `hearthfs status` lists them")),
    }
}

fn arg(around: &Surroundings, typed: &Path) -> Outcome<Arg> {
    let around = around.clone();
    let path = typed.to_owned();
    answer(typed, move || find(&around, &path))?
}

/// Determines which part of a path exists. An existing part is literal, whatever characters it has.
fn find(around: &Surroundings, typed: &Path) -> Outcome<Arg> {
    let path = around.absolute(typed);
    let nearest = |path: &Path| match (path.parent(), path.file_name()) {
        (Some(above), Some(name)) => resolve(above).join(name),
        _ => resolve(path),
    };
    let here = nearest(&path);
    match here.symlink_metadata() {
        // A link on a mount is an entry like any other.
        Ok(about) if about.is_symlink() && Mounts::read()?.holding(&here).is_none() => {
            let there = resolve(&here);
            let about = there.symlink_metadata().ok();
            return Ok(Arg { lead: there, rest: Vec::new(), about });
        }
        Ok(about) => return Ok(Arg { lead: here, rest: Vec::new(), about: Some(about) }),
        Err(error) if is_dead(&error) => {
            return Ok(Arg { lead: here, rest: Vec::new(), about: None });
        }
        // Missing, a pattern, or not visible to this user.
        Err(_) => {}
    }
    let (mut lead, mut rest) = (PathBuf::new(), Vec::new());
    for part in path.components() {
        match part {
            Component::Normal(name) if !rest.is_empty() || is_typed_pattern(name.as_bytes()) => {
                rest.push(name.to_owned());
            }
            Component::ParentDir if !rest.is_empty() => {
                return Err(Failure::refused(format!(
                    "{}: .. behind a wildcard",
                    printed(typed.as_os_str().as_bytes())
                )));
            }
            part => lead.push(part),
        }
    }
    if rest.is_empty() {
        // The last name is missing, or is typed with backslashes.
        rest.extend(lead.file_name().map(OsString::from));
        lead.pop();
    }
    Ok(Arg { lead: resolve(&lead), rest, about: None })
}

/// Reports whether no daemon answers for the mount. The next request reports that.
fn is_dead(error: &std::io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(code, Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::IO))
}

/// Makes the pattern of an argument, from the root of the mount. Also returns whether it names one thing.
fn pattern(point: &Path, arg: &Arg, whole: Whole) -> Result<(Glob, bool), String> {
    let mut glob = Glob::default();
    let below = on_point(point, &arg.lead).unwrap_or_default();
    for name in &below {
        glob.push_name(name.as_bytes())?;
    }
    for name in &arg.rest {
        glob.push_typed(&name.clone().into_vec())?;
    }
    let is_one = !arg.rest.iter().any(|name| is_typed_pattern(name.as_bytes()));
    let is_dir = arg.about.as_ref().is_some_and(Metadata::is_dir);
    match whole {
        Whole::Listed if is_dir => glob.push_any().map(|()| (glob, false)),
        Whole::Below if is_dir => glob.push_all_below().map(|()| (glob, false)),
        _ if below.as_os_str().is_empty() && arg.rest.is_empty() => {
            Err("it is the mount itself; append `**` for everything on it".to_owned())
        }
        _ => Ok((glob, is_one)),
    }
}

fn open_root(on: &OnMount) -> Outcome<OwnedFd> {
    let path = &on.point;
    let gone =
        |why: String| Failure::failed(format!("{}: {why}", printed(path.as_os_str().as_bytes())));
    let root = open(path, AS_PLACE, Mode::empty()).map_err(|error| gone(error.to_string()))?;
    // Another program may have mounted something else there since.
    match fstat(&root) {
        Ok(about) if about.st_dev == on.device => Ok(root),
        _ => Err(gone("it is no longer the mount".to_owned())),
    }
}
