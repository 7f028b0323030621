//! Where a directory lies on a mount.
//!
//! Owns finding that out without waiting for a mount that does not answer.

use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cli::failure::{Failure, Outcome};
use crate::cli::{point, unmount};
use crate::control::Mounts;
use crate::name::TreePath;

/// How long a mount may take to answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A directory on a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::cli) struct OnMount {
    /// Where the mount is.
    pub(in crate::cli) point: PathBuf,
    /// The directory's path below the root of what is mounted.
    pub(in crate::cli) place: TreePath,
}

impl OnMount {
    /// Finds the mount that `dir` (resolved) lies on, and asks whether it is alive.
    pub(in crate::cli) fn find(dir: &Path) -> Outcome<Self> {
        let mounts = Mounts::read()?;
        let mounted = mounts.holding(dir).ok_or_else(|| {
            unmount::not_mounted(dir).hint(format!(
                "DIR is the mount point or a directory below it: `hearthfs mount` first, such as at {}",
                dir.display()
            ))
        })?;
        let point = mounted.point.clone();
        let place = place(&mounted.root, dir.strip_prefix(&point).unwrap_or(dir));
        let place = place.ok_or_else(|| {
            Failure::refused(format!("{} is no path that a mount can have", dir.display()))
        })?;
        match point::stat_within(&point, ANSWER_LIMIT) {
            Some(Ok(())) => Ok(Self { point, place }),
            Some(Err(error)) => {
                Err(Failure::not_mounted(format!("the mount at {}: {error}", point.display()))
                    .hint("if its daemon is dead, mount again; `hearthfs status` tells"))
            }
            None => Err(Failure::failed(format!(
                "the mount at {} does not answer within {ANSWER_LIMIT:?}",
                point.display()
            ))),
        }
    }
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
        let refused = OnMount::find(Path::new("/proc")).expect_err("no mount of ours").text();
        assert!(refused.contains("/proc is not a hearthfs mount"), "{refused}");
        assert!(refused.contains("`hearthfs mount` first"), "{refused}");
    }
}
