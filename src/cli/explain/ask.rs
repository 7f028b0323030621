//! Asks a daemon why a name is a miss.
//!
//! Root and the user of the mount ask over the control socket. All others ask through the mount itself,
//! where the kernel checks their rights. Owns both ways. Must never look up the name in question.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{Mode, OFlags, getxattr, open, openat};
use rustix::io::Errno;
use serde::de::DeserializeOwned;

use crate::cli::escape::printed;
use crate::cli::failure::{Failure, Outcome};
use crate::cli::inside::typed_name;
use crate::cli::point::answer;
use crate::cli::{unmount, wait};
use crate::config::Surroundings;
use crate::control::{self, Client, Mounts};
use crate::name::TreePath;
use crate::namespace::{
    Explained, MISSES_NAME, MISSES_PREFIX, Misses, Reason, WHY_PREFIX, path_to_hex,
};

/// The longest name of an extended attribute.
const XATTR_NAME_BYTES_MAX: usize = 255;
/// The kernel's limit for one attribute.
const XATTR_BYTES_MAX: usize = 64 << 10;
/// Flags to open a directory on the way, which need not be readable.
const AS_PLACE: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A path on a mount.
#[derive(Clone, Debug)]
pub(super) struct MountPath {
    /// The mount point.
    pub(super) point: PathBuf,
    /// The user of the mount.
    owner: Option<u32>,
    /// The path below it.
    below: TreePath,
}

/// Whose misses are requested.
#[derive(Clone, Debug)]
pub(super) struct Whose {
    pub(super) uid: Option<u32>,
    pub(super) client: Option<String>,
    /// Those of all users, requested explicitly.
    pub(super) all: bool,
}

impl MountPath {
    /// Finds the mount of a path, following the names of the path only as far as the mount point.
    pub(super) fn find(around: &Surroundings, typed: &Path) -> Outcome<Self> {
        let (path, mounts) = (around.absolute(typed), Mounts::read()?);
        let shown = printed(typed.as_os_str().as_bytes());
        let (real, rest) = {
            let mounts = mounts.clone();
            answer(typed, move || to_mount(&mounts, &path))?
        };
        let mounted = mounts.holding(&real).ok_or_else(|| unmount::not_mounted(&real))?;
        let mut below = TreePath::root();
        let no_path = || Failure::refused(format!("{shown} is not a path that a mount can have"));
        for name in real.strip_prefix(&mounted.point).unwrap_or(Path::new("")) {
            below = below.join(name.as_bytes()).map_err(|_| no_path())?;
        }
        for name in rest {
            if name == ".." {
                below = below.parent().ok_or_else(no_path)?;
                continue;
            }
            let refused = |why: &str| Failure::refused(format!("{shown}: {why}"));
            let name = typed_name(name.as_bytes()).map_err(|why| refused(&why))?;
            let name = name.ok_or_else(|| refused("expected one path, not a pattern"))?;
            below = below.join(&name).map_err(|_| no_path())?;
        }
        Ok(Self { point: mounted.point.clone(), owner: mounted.owner, below })
    }

    /// Returns the path on this machine.
    pub(super) fn path(&self) -> PathBuf {
        let names = self.below.components().map(OsStr::from_bytes);
        names.fold(self.point.clone(), |dir, name| dir.join(name))
    }
}

/// Follows a path to one of our mounts, and returns the mount point and the remaining names; all of
/// the path, if there is none.
fn to_mount(mounts: &Mounts, path: &Path) -> (PathBuf, Vec<OsString>) {
    let mut at = PathBuf::from("/");
    let mut parts =
        path.components().filter(|part| !matches!(part, Component::RootDir | Component::CurDir));
    while mounts.holding(&at).is_none() {
        let Some(part) = parts.next() else { return (at, Vec::new()) };
        let next = at.join(part);
        match next.canonicalize() {
            Ok(real) => at = real,
            // A dead mount cannot be followed, but its name is still a mount point.
            Err(_) => at = next,
        }
    }
    (at, parts.map(|part| part.as_os_str().to_owned()).collect())
}

/// Connects to the daemon, if this user may ask it directly.
async fn daemon(around: &Surroundings, place: &MountPath) -> Option<Client> {
    if around.uid != 0 && place.owner != Some(around.uid) {
        return None;
    }
    let found = control::find(around, &place.point, place.owner).await;
    found.ok().map(|(client, _)| client)
}

fn older() -> Failure {
    Failure::failed("the mount explains nothing: its daemon has an older version, or mount.xattrs is off")
        .hint("upgrade the daemon and mount again; until then its log shows more: --log-level info,hearthfs::fs=debug")
}

fn read<T: DeserializeOwned>(told: serde_json::Value) -> Outcome<T> {
    serde_json::from_value(told).map_err(|error| {
        Failure::failed(format!("the answer of the daemon cannot be understood: {error}"))
    })
}

/// Asks why a path is a miss.
pub(super) fn why(around: &Surroundings, place: &MountPath) -> Outcome<Explained> {
    let told = wait(async {
        let Some(mut client) = daemon(around, place).await else { return Ok(None) };
        let told = client.explain(path_to_hex(&place.below)).await?;
        told.map_or_else(|| Err(older()), |told| Ok(Some(told)))
    })?;
    if let Some(told) = told {
        return read(told);
    }
    let place = place.clone();
    let point = place.point.clone();
    answer(&point, move || through_mount(&place))?
}

/// Asks through an extended attribute of the nearest existing directory above.
fn through_mount(place: &MountPath) -> Outcome<Explained> {
    let failed = |error: Errno| {
        Failure::failed(format!("{}: {error}", printed(place.point.as_os_str().as_bytes())))
    };
    let mut dir = open(&place.point, AS_PLACE, Mode::empty()).map_err(failed)?;
    let mut at = TreePath::root();
    let names: Vec<&[u8]> = place.below.components().collect();
    let (mut rest, above) = (names.as_slice(), names.len().saturating_sub(1));
    for name in &names[..above] {
        match openat(&dir, OsStr::from_bytes(name), AS_PLACE, Mode::empty()) {
            Ok(next) => dir = next,
            Err(Errno::ACCESS | Errno::PERM) => return Ok(denied(&at)),
            // It does not exist, or is no directory: the rest is requested from here.
            Err(_) => break,
        }
        at = at.join(name).unwrap_or_default();
        rest = &rest[1..];
    }
    let mut attribute = WHY_PREFIX.as_bytes().to_vec();
    attribute.extend(rest.join(&b'/'));
    if attribute.len() > XATTR_NAME_BYTES_MAX {
        let most = XATTR_NAME_BYTES_MAX - WHY_PREFIX.len();
        return Err(Failure::refused(format!(
            "only root and the user of the mount can ask for names of more than {most} bytes"
        )));
    }
    match ask::<Explained>(&dir, &attribute) {
        Err(Errno::ACCESS | Errno::PERM) => Ok(denied(&at)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Err(older()),
        told => told.map_err(failed),
    }
}

/// Returns the answer that a directory is not accessible to the caller.
fn denied(dir: &TreePath) -> Explained {
    let of_hex = Some(path_to_hex(dir));
    Explained { reason: Reason::Denied, of_hex, ..Explained::default() }
}

fn ask<T: DeserializeOwned>(dir: &OwnedFd, attribute: &[u8]) -> Result<T, Errno> {
    // No call takes an `O_PATH` descriptor; the path in `/proc` starts from the directory itself.
    let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
    let mut value = vec![0; XATTR_BYTES_MAX];
    let name = OsString::from_vec(attribute.to_vec());
    let length = getxattr(&path, &name, &mut value[..])?;
    serde_json::from_slice(&value[..length]).map_err(|_| Errno::NODATA)
}

/// Requests the recorded misses.
pub(super) fn misses(around: &Surroundings, place: &MountPath, whose: &Whose) -> Outcome<Misses> {
    let told = wait(async {
        let Some(mut client) = daemon(around, place).await else { return Ok(None) };
        let told = client.misses(whose.uid, whose.client.clone()).await?;
        told.map_or_else(|| Err(older()), |told| Ok(Some(told)))
    })?;
    if let Some(told) = told {
        return read(told);
    }
    if whose.all {
        return Err(Failure::refused(
            "only root and the user of the mount see the misses of all users",
        ));
    }
    let attribute = match &whose.client {
        Some(client) => format!("{MISSES_PREFIX}{client}"),
        None => MISSES_NAME.to_owned(),
    };
    if attribute.len() > XATTR_NAME_BYTES_MAX || attribute.contains('\0') {
        return Err(Failure::refused("this is not the name of a client")
            .hint("`hearthfs profiles` lists them"));
    }
    let point = place.point.clone();
    let asked = answer(&place.point, move || {
        let dir = open(&point, AS_PLACE, Mode::empty())?;
        ask::<Misses>(&dir, attribute.as_bytes())
    })?;
    let mut told = match asked {
        Ok(told) => told,
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Err(older()),
        Err(error) => {
            let shown = printed(place.point.as_os_str().as_bytes());
            return Err(Failure::failed(format!("{shown}: {error}"))
                .hint("this needs a readable root of the mount"));
        }
    };
    if let Some(uid) = whose.uid {
        told.misses.retain(|miss| miss.uid == uid);
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_followed_to_a_mount_and_no_further() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let real = dir.path().canonicalize().expect("exists");
        std::fs::create_dir(real.join("a")).expect("mkdir");
        std::os::unix::fs::symlink(real.join("a"), real.join("link")).expect("link");
        let none = Mounts::default();
        let (at, rest) = to_mount(&none, &real.join("link/./missing/x"));
        assert_eq!((at, rest.len()), (real.join("a/missing/x"), 0));
        let (at, _) = to_mount(&none, &real.join("link/../b"));
        assert_eq!(at, real.join("b"));
    }

    #[test]
    fn a_directory_that_is_closed_is_named() {
        let dir = TreePath::root().join(b"private").expect("a name");
        let told = denied(&dir);
        assert_eq!(told.reason, Reason::Denied);
        assert_eq!(told.of_hex.as_deref(), Some("70726976617465"));
    }
}
