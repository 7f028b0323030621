//! The location of the directories of a copy.
//!
//! Owns determining it without waiting for a mount that does not answer.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::cli::failure::{Failure, Outcome};
use crate::cli::point::{self, answer};
use crate::cli::unmount;
use crate::config::Surroundings;
use crate::control::Mounts;
use crate::name::TreePath;

/// A directory on a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct OnMount {
    /// The mount point.
    pub(in crate::cli) point: PathBuf,
    /// The directory's path below the root of what is mounted.
    pub(in crate::cli) place: TreePath,
    /// The mount's device number.
    pub(in crate::cli) device: u64,
}

impl OnMount {
    /// Finds the mount of `dir` (resolved), and checks that it answers.
    pub(in crate::cli) fn find(dir: &Path) -> Outcome<Self> {
        let mounts = Mounts::read()?;
        let mounted = mounts.holding(dir).ok_or_else(|| {
            unmount::not_mounted(dir).hint(format!(
                "DIR must be a mount point or a directory below one: run `hearthfs mount` first, such as at {}",
                dir.display()
            ))
        })?;
        let point = mounted.point.clone();
        let place = place(&mounted.root, dir.strip_prefix(&point).unwrap_or(dir));
        let place = place.ok_or_else(|| {
            Failure::refused(format!("{} is not a path that a mount can have", dir.display()))
        })?;
        let asked = point.clone();
        let device = answer(&point, move || {
            // Not only `stat`: the kernel may answer that from its cache, even after the daemon is gone.
            rustix::fs::statvfs(&asked)?;
            rustix::fs::stat(&asked).map(|about| about.st_dev)
        })?;
        match device {
            Ok(device) => Ok(Self { point, place, device }),
            Err(error) => {
                Err(Failure::not_mounted(format!("the mount at {}: {error}", point.display()))
                    .hint("`hearthfs status` shows whether its daemon is dead; if so, mount again"))
            }
        }
    }
}

/// Returns the absolute, resolved form of a directory as typed. The directory may be on a mount
/// that does not answer.
pub(in crate::cli) fn resolve(around: &Surroundings, typed: &Path) -> Outcome<PathBuf> {
    let (around, dir) = (around.clone(), typed.to_owned());
    answer(typed, move || point::absolute(&around, &dir))
}

/// Returns a source directory as typed, resolved.
pub(in crate::cli) fn find_directory(around: &Surroundings, typed: &Path) -> Outcome<PathBuf> {
    let path = resolve(around, typed)?;
    let asked = path.clone();
    match answer(typed, move || asked.metadata())? {
        Ok(about) if about.is_dir() => Ok(path),
        Ok(_) => Err(Failure::refused(format!("{} is not a directory", path.display()))
            .hint("name the directory whose content is to be copied")),
        Err(error) => Err(Failure::refused(format!("{}: {error}", path.display()))
            .hint("name an existing directory that you may read")),
    }
}

/// Refuses to copy a directory into itself, whatever paths name its two ends.
pub(in crate::cli) fn apart(from: &Path, to: &Path) -> Outcome<()> {
    let mounts = Mounts::read()?;
    let is_inside = |inner: &Path, outer: &Path| {
        inner.starts_with(outer)
            || match (mounts.location(inner), mounts.location(outer)) {
                (Some((a, inner)), Some((b, outer))) => a == b && inner.starts_with(outer),
                _ => false,
            }
    };
    if is_inside(to, from) || is_inside(from, to) {
        let (from, to) = (from.display(), to.display());
        return Err(Failure::refused(format!("{from} and {to}: one is inside the other"))
            .hint("name two separate directories"));
    }
    Ok(())
}

fn place(root: &Path, below: &Path) -> Option<TreePath> {
    let names = root.components().chain(below.components()).filter_map(|part| match part {
        std::path::Component::Normal(name) => Some(name.as_bytes()),
        _ => None,
    });
    names.into_iter().try_fold(TreePath::root(), |dir, name| dir.join(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_counts_from_the_root_of_what_is_mounted() {
        let said = |root: &str, below: &str| {
            place(Path::new(root), Path::new(below)).map(|place| place.to_string())
        };
        assert_eq!(said("/", "triton/KEY").as_deref(), Some("triton/KEY"));
        assert_eq!(said("/triton", "KEY").as_deref(), Some("triton/KEY"), "a bind mount");
        assert_eq!(said("/", "").as_deref(), Some(""));
        assert_eq!(said("/", &"x".repeat(300)), None);
    }

    #[test]
    fn what_is_no_mount_is_refused_with_a_remedy() {
        let refused = OnMount::find(Path::new("/proc")).expect_err("not a hearthfs mount").text();
        assert!(refused.contains("/proc is not a hearthfs mount"), "{refused}");
        assert!(refused.contains("`hearthfs mount` first"), "{refused}");
    }
}
