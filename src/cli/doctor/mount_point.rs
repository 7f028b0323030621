//! The mount point, the directories above it, and the daemon that serves it.
//!
//! Owns which modes these directories should have. Must never wait for a mount that does not answer.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::finding::{Finding, Theme};
use crate::cli::dirs;
use crate::cli::failure::Outcome;
use crate::cli::output::{left, time};
use crate::cli::point::State;
use crate::config::{AllowOther, Settings, Surroundings};
use crate::control::{Phase, Status};

/// Others may write.
const OTHERS_WRITE: u32 = 0o002;
/// The group may write.
const GROUP_WRITES: u32 = 0o020;
/// Others may traverse it.
const OTHERS_SEARCH: u32 = 0o001;
/// Only the owner of a name may remove it.
const STICKY: u32 = 0o1000;

/// Checks the mount point, given what was found at it.
pub(super) fn check(
    around: &Surroundings,
    settings: Option<&Settings>,
    point: Option<&Path>,
    state: Option<&Outcome<State>>,
) -> Vec<Finding> {
    const NAME: &str = "mount point";
    let (Some(point), Some(state)) = (point, state) else {
        let why =
            "no mount point is named: name one as DIR, or set mount.directory in the configuration";
        return vec![Finding::skipped(Theme::Mount, NAME, why)];
    };
    let shown = point.display();
    let mut all = Vec::new();
    all.push(match state {
        Ok(State::Free) => Finding::ok(
            Theme::Mount,
            NAME,
            format!("{shown} is an empty directory; nothing is mounted"),
        ),
        Ok(State::Live(_)) => Finding::ok(Theme::Mount, NAME, format!("{shown} is mounted")),
        Ok(State::Foreign) => Finding::ok(
            Theme::Mount,
            NAME,
            format!(
                "{shown} is mounted by another user, and its daemon answers only that user and root"
            ),
        ),
        Ok(State::Stale { .. }) => Finding::problem(
            Theme::Mount,
            NAME,
            format!("{shown} is the mount of a dead daemon: every access fails"),
            format!("mount again: `hearthfs mount {shown} --background`; pending changes are kept"),
        ),
        Err(failure) => Finding::refused(Theme::Mount, NAME, failure),
    });
    all.push(modes(around.uid, settings, point));
    if let Some(settings) = settings
        && !matches!(state, Ok(State::Live(_) | State::Foreign))
    {
        all.push(match dirs::check(settings, point) {
            Ok(()) => {
                let dir = settings.local.cache_dir.display();
                Finding::ok(Theme::Mount, "cache directory", format!("{dir} can be used"))
            }
            Err(failure) => Finding::refused(Theme::Mount, "cache directory", &failure),
        });
        let writes = dirs::check_writes(settings).err();
        all.extend(writes.map(|failure| Finding::refused(Theme::Mount, "writes", &failure)));
    }
    if let Ok(State::Live(found)) = state {
        all.extend(daemon(&found.1));
    }
    all
}

/// Checks the directories above a mount point: a user who can write there can replace it.
fn modes(uid: u32, settings: Option<&Settings>, point: &Path) -> Finding {
    const NAME: &str = "mount point modes";
    let allow_other = settings.map(|settings| settings.mount.allow_other).unwrap_or_default();
    let for_others = match allow_other {
        AllowOther::Auto => uid == 0,
        AllowOther::Yes => true,
        AllowOther::No => false,
    };
    let mut closed = None;
    let mut group = None;
    for dir in point.ancestors().skip(1) {
        let about = match std::fs::symlink_metadata(dir) {
            Ok(about) => about,
            // A missing mount point was already reported.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => {
                let found = format!("{}: {error}", dir.display());
                let remedy = "choose a mount point that you can reach";
                return Finding::problem(Theme::Mount, NAME, found, remedy);
            }
        };
        let (mode, owner, shown) = (about.mode(), about.uid(), dir.display());
        if owner != 0 && owner != uid {
            let found =
                format!("{shown} belongs to user {owner}, which can put another directory there");
            let remedy = "choose a mount point below directories of root or of your own";
            return Finding::problem(Theme::Mount, NAME, found, remedy);
        }
        if mode & OTHERS_WRITE != 0 && mode & STICKY == 0 {
            let found = format!(
                "{shown} has mode {:04o}: any user can put another directory there",
                mode & 0o7777
            );
            let remedy = format!("chmod o-w {shown}");
            return Finding::problem(Theme::Mount, NAME, found, remedy);
        }
        if mode & GROUP_WRITES != 0 && mode & STICKY == 0 {
            group.get_or_insert((shown.to_string(), mode & 0o7777));
        }
        if mode & OTHERS_SEARCH == 0 {
            closed.get_or_insert((shown.to_string(), mode & 0o7777));
        }
    }
    match (closed.filter(|_| for_others), group) {
        (Some((dir, mode)), _) => Finding::warning(
            Theme::Mount,
            NAME,
            format!("{dir} has mode {mode:04o}: other users cannot reach the mount"),
            format!("chmod o+x {dir}, or set mount.allow_other = false"),
        ),
        (None, Some((dir, mode))) => Finding::warning(
            Theme::Mount,
            NAME,
            format!("{dir} has mode {mode:04o}: its group can put another directory there"),
            format!("chmod g-w {dir}, if the group has other members"),
        ),
        (None, None) => {
            Finding::ok(Theme::Mount, NAME, "only root and the user of the mount can move it")
        }
    }
}

/// Reports what the daemon says about itself.
fn daemon(status: &Status) -> Vec<Finding> {
    let ours = env!("CARGO_PKG_VERSION");
    let (version, pid) = (&status.daemon.version, status.daemon.pid);
    let mut all = vec![match status.life.phase {
        Phase::Serving if version == ours => {
            Finding::ok(Theme::Mount, "daemon", format!("version {version}, pid {pid}"))
        }
        Phase::Serving | Phase::Unknown => Finding::warning(
            Theme::Mount,
            "daemon",
            format!("version {version}, pid {pid}; this program is version {ours}"),
            "mount again, so that both are the same",
        ),
        Phase::Starting | Phase::Ending => Finding::warning(
            Theme::Mount,
            "daemon",
            format!("pid {pid} is being started or ended"),
            "wait for it: `hearthfs status` shows its progress",
        ),
    }];
    if let Some(health) = status.sharing.outage() {
        let why = health.last_error.as_deref().unwrap_or("it does not answer");
        all.push(Finding::problem(
            Theme::Mount,
            "store of the daemon",
            format!("cannot be used for {}: {why}", time(health.since_ms)),
            "see below; the daemon has its own environment, and retries by itself",
        ));
    }
    if status.local.disk_full {
        let remedy = "make room on the disk of the cache directory";
        let found = "it is full: entries of other nodes are misses";
        all.push(Finding::problem(Theme::Mount, "disk of the daemon", found, remedy));
    }
    if let Some(aside) = &status.unsent.set_aside {
        all.push(Finding::warning(
            Theme::Mount,
            "refused contents",
            format!("the store refuses {} contents: {}", aside.contents, aside.why),
            "they stay on this node; `hearthfs status` shows more",
        ));
    }
    if let Some(slowed) = &status.unsent.slowed {
        all.push(Finding::warning(
            Theme::Mount,
            "writers",
            format!("{} wait: {} ({})", slowed.writers, slowed.why, left(&status.unsent.backlog)),
            "find out what delays uploads, or raise local.cache_size",
        ));
    }
    all
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::finding::Verdict;
    use super::*;
    use crate::control::HealthReport;

    fn set_mode(dir: &Path, mode: u32) {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).expect("chmod");
    }

    #[test]
    fn directories_that_others_can_change() {
        let base = tempfile::tempdir().expect("temporary directory");
        let above = base.path().canonicalize().expect("exists").join("above");
        std::fs::create_dir(&above).expect("mkdir");
        let uid = rustix::process::geteuid().as_raw();
        let point = above.join("mnt");
        let of = |mode, settings: Option<&Settings>| {
            set_mode(&above, mode);
            modes(uid, settings, &point)
        };
        let mut alone = Settings::default();
        alone.mount.allow_other = AllowOther::No;
        assert_eq!(of(0o755, Some(&alone)).result, Verdict::Ok);
        let open = of(0o777, Some(&alone));
        assert_eq!(open.result, Verdict::Problem);
        assert!(open.found.contains("0777") && open.remedy.expect("a remedy").contains("o-w"));
        assert_eq!(of(0o1777, Some(&alone)).result, Verdict::Ok, "sticky");
        assert_eq!(of(0o775, Some(&alone)).result, Verdict::Warning);
        assert_eq!(of(0o700, Some(&alone)).result, Verdict::Ok);
        let mut shared = Settings::default();
        shared.mount.allow_other = AllowOther::Yes;
        let closed = of(0o700, Some(&shared));
        assert!(closed.result == Verdict::Warning && closed.found.contains("cannot reach"));
        set_mode(&above, 0o755);
        assert_eq!(modes(uid + 1, Some(&alone), &point).result, {
            // Root's own directories are accessible to all.
            if uid == 0 { Verdict::Ok } else { Verdict::Problem }
        });
    }

    #[test]
    fn a_daemon_is_reported_with_its_problems() {
        let mut status = Status::default();
        status.daemon.version = env!("CARGO_PKG_VERSION").into();
        assert!(daemon(&status).iter().all(|finding| finding.result == Verdict::Ok));
        status.daemon.version = "0.0.1".into();
        status.sharing.health =
            Some(HealthReport { last_error: Some("gone".into()), ..HealthReport::default() });
        status.local.disk_full = true;
        let all = daemon(&status);
        let verdicts: Vec<Verdict> = all.iter().map(|finding| finding.result).collect();
        assert_eq!(verdicts, [Verdict::Warning, Verdict::Problem, Verdict::Problem]);
        assert!(all[1].found.contains("gone"));
    }

    #[test]
    fn without_a_mount_point_there_are_no_checks() {
        let all = check(&Surroundings::default(), None, None, None);
        assert!(all.len() == 1 && all[0].result == Verdict::Skipped);
    }
}
