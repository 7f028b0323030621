//! What this machine supports.
//!
//! Owns the kernel versions that introduced each feature. Must never mount anything to find out.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use super::finding::{Finding, Theme};
use crate::cli::dirs;
use crate::cli::fuse::{self, MountRight};
use crate::config::{AllowOther, ByteSize, IoMode, Settings, Surroundings};
use crate::control::Status;

/// Reads and writes go straight to the disk.
const PASSTHROUGH: (u32, u32) = (6, 9);
/// A new mount replaces a dead one in one step.
const RESTARTS: (u32, u32) = (6, 5);
/// The kernel reports how a process ended even after its parent has waited for it.
const ENDS: (u32, u32) = (6, 15);
/// The kernel caches names until it is told otherwise.
const NAMES: (u32, u32) = (6, 16);
/// File systems for which the kernel does not support passthrough.
const STACKED: [(u64, &str); 2] = [(0x794c_7630, "overlay"), (0x6573_5546, "FUSE")];
/// A disk with less than this is full.
const DISK_FULL: ByteSize = ByteSize(8 << 20);

/// The examined paths; a value, so that a test can use others.
#[derive(Debug)]
struct MachinePlaces<'a> {
    device: &'a Path,
    fuse_conf: &'a [&'a str],
    release: String,
    right: MountRight,
}

/// Checks the machine; `status` is that of an existing mount.
pub(super) fn check(
    around: &Surroundings,
    settings: Option<&Settings>,
    status: Option<&Status>,
) -> Vec<Finding> {
    let places = MachinePlaces {
        device: Path::new("/dev/fuse"),
        fuse_conf: &fuse::FUSE_CONF,
        release: rustix::system::uname().release().to_string_lossy().into_owned(),
        right: MountRight::of_process(),
    };
    check_at(&places, around, settings, status)
}

/// Checks the machine for a user of another user's mount.
pub(super) fn check_for_users() -> Vec<Finding> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let why = "not checked: the mount is another user's";
    let names = ["fuse device", "fusermount3", "I/O mode", "disk"];
    let skipped = names.map(|name| Finding::skipped(Theme::Machine, name, why));
    std::iter::once(kernel(&release)).chain(skipped).collect()
}

fn check_at(
    places: &MachinePlaces<'_>,
    around: &Surroundings,
    settings: Option<&Settings>,
    status: Option<&Status>,
) -> Vec<Finding> {
    let mut all =
        vec![kernel(&places.release), device(places.device), helper(around, places.right)];
    let Some(settings) = settings else { return all };
    all.extend(others(places.fuse_conf, around, settings));
    all.push(io_mode(&places.release, around, settings, status));
    all.push(disk(settings, status));
    all.extend(status.and_then(namespace));
    all
}

/// Reads the first two numbers of a release.
fn version_of(release: &str) -> (u32, u32) {
    let mut parts = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

fn kernel(release: &str) -> Finding {
    const NAME: &str = "kernel";
    let version = version_of(release);
    let lacks: Vec<&str> = [
        (RESTARTS, "during a restart programs see the directory below for a moment"),
        (PASSTHROUGH, "reads and writes go through the daemon"),
        (ENDS, "some writers that have ended count as killed"),
        (NAMES, "each name is looked up again every second"),
    ]
    .into_iter()
    .filter_map(|(from, what)| (version < from).then_some(what))
    .collect();
    if version < PASSTHROUGH {
        let (major, minor) = NAMES;
        let remedy = format!("everything works, but slower; Linux {major}.{minor} has all of it");
        return Finding::warning(
            Theme::Machine,
            NAME,
            format!("Linux {release}: {}", lacks.join("; ")),
            remedy,
        );
    }
    let parts: Vec<&str> = std::iter::once(release).chain(lacks).collect();
    Finding::ok(Theme::Machine, NAME, format!("Linux {}", parts.join("; ")))
}

fn device(path: &Path) -> Finding {
    const NAME: &str = "fuse device";
    match fuse::check_device(path) {
        Ok(()) => Finding::ok(Theme::Machine, NAME, format!("{} can be opened", path.display())),
        Err(failure) => Finding::refused(Theme::Machine, NAME, &failure),
    }
}

/// Checks the helper with which a process mounts that may not do so itself.
fn helper(around: &Surroundings, right: MountRight) -> Finding {
    const NAME: &str = "fusermount3";
    let path = match fuse::check_right(around, right) {
        Ok(Some(path)) => path,
        Ok(None) => {
            return Finding::ok(
                Theme::Machine,
                NAME,
                "not needed: this process may mount by itself",
            );
        }
        Err(failure) => return Finding::refused(Theme::Machine, NAME, &failure),
    };
    let shown = path.display();
    match std::fs::metadata(&path) {
        Ok(about) if about.mode() & 0o4000 != 0 && about.uid() == 0 => {
            Finding::ok(Theme::Machine, NAME, format!("{shown}, set-uid root"))
        }
        Ok(_) => Finding::warning(
            Theme::Machine,
            NAME,
            format!("{shown} is not set-uid root, so it may not be able to mount"),
            format!("as root: chown root {shown}; chmod u+s {shown}"),
        ),
        Err(error) => {
            let remedy = "install the package fuse3, or mount as root";
            Finding::problem(Theme::Machine, NAME, format!("{shown}: {error}"), remedy)
        }
    }
}

/// Checks whether a user other than root may allow others on the mount.
fn others(
    files: &[impl AsRef<Path>],
    around: &Surroundings,
    settings: &Settings,
) -> Option<Finding> {
    const NAME: &str = "other users";
    if around.uid == 0 || settings.mount.allow_other != AllowOther::Yes {
        return None;
    }
    Some(match fuse::check_others(files) {
        Ok(()) => Finding::ok(Theme::Machine, NAME, "users may use allow_other"),
        Err(failure) => Finding::refused(Theme::Machine, NAME, &failure),
    })
}

fn io_mode(
    release: &str,
    around: &Surroundings,
    settings: &Settings,
    status: Option<&Status>,
) -> Finding {
    const NAME: &str = "I/O mode";
    let why = match status {
        Some(status) if status.io.mode == "passthrough" => None,
        Some(status) => {
            Some(status.io.reason.clone().unwrap_or_else(|| "reason unknown".to_owned()))
        }
        None => why_ordinary(release, around, settings),
    };
    let tense = if status.is_some() { "the mount has" } else { "a mount would have" };
    let Some(why) = why else {
        return Finding::ok(Theme::Machine, NAME, format!("{tense} passthrough"));
    };
    let found = format!("{tense} ordinary I/O: {why}");
    match settings.mount.io {
        IoMode::Passthrough if status.is_none() => Finding::problem(
            Theme::Machine,
            NAME,
            format!("mount.io is \"passthrough\", and {found}"),
            "set mount.io = \"auto\", or correct what the message names",
        ),
        // If root could have passthrough and does not, that is worth checking.
        IoMode::Auto if around.uid == 0 && version_of(release) >= PASSTHROUGH => Finding::warning(
            Theme::Machine,
            NAME,
            found,
            "put the cache directory on a local disk (ext4, xfs, btrfs), and start the daemon with CAP_SYS_ADMIN",
        ),
        _ => Finding::ok(Theme::Machine, NAME, found),
    }
}

/// Explains why a mount would not get passthrough, as far as known without one.
fn why_ordinary(release: &str, around: &Surroundings, settings: &Settings) -> Option<String> {
    if settings.mount.io == IoMode::Ordinary {
        return Some("mount.io is \"ordinary\"".to_owned());
    }
    if version_of(release) < PASSTHROUGH {
        return Some("Linux 6.9 or newer has passthrough".to_owned());
    }
    if around.uid != 0 {
        return Some("passthrough needs CAP_SYS_ADMIN".to_owned());
    }
    let there = dirs::nearest_existing(&settings.local.cache_dir);
    let about = rustix::fs::statfs(&there).ok()?;
    let magic = about.f_type as u64 & 0xffff_ffff;
    let (_, kind) = STACKED.iter().find(|(stacked, _)| *stacked == magic)?;
    Some(format!("{} lies on a stacked file system ({kind})", there.display()))
}

/// Compares the room on the disk with the limit of the cache directory.
fn disk(settings: &Settings, status: Option<&Status>) -> Finding {
    const NAME: &str = "disk";
    let (dir, limit) = (&settings.local.cache_dir, settings.local.cache_size);
    let shown = dir.display();
    let there = dirs::nearest_existing(dir);
    let free = match rustix::fs::statvfs(&there) {
        Ok(figures) => ByteSize(figures.f_bavail.saturating_mul(figures.f_frsize)),
        Err(error) => {
            let found = format!("{}: {error}", there.display());
            return Finding::problem(Theme::Machine, NAME, found, "name another local.cache_dir");
        }
    };
    let is_used = dir.join("v1").exists();
    let held = status.map(|status| ByteSize(status.local.bytes));
    let remedy = "make room, or set local.cache_size to less";
    if is_used && free < DISK_FULL {
        let found = format!("the disk of {shown} is full: {} free", free.human());
        return Finding::problem(Theme::Machine, NAME, found, remedy);
    }
    let (free_text, limit_text) = (free.human(), limit.human());
    let room = ByteSize(free.0.saturating_add(held.map_or(0, |held| held.0)));
    match held {
        // What an earlier mount has stored is not counted here.
        None if is_used => Finding::ok(
            Theme::Machine,
            NAME,
            format!(
                "{shown}: {free_text} free in addition to the cache; the limit is {limit_text}"
            ),
        ),
        _ if room < limit => {
            let held = held.map(|held| format!("holds {}, ", held.human())).unwrap_or_default();
            let found =
                format!("{shown} {held}has {free_text} free, and local.cache_size is {limit_text}");
            Finding::warning(Theme::Machine, NAME, found, remedy)
        }
        _ => Finding::ok(
            Theme::Machine,
            NAME,
            format!("{shown}: {free_text} free; the limit is {limit_text}"),
        ),
    }
}

fn namespace(status: &Status) -> Option<Finding> {
    let why = status.pid_namespace.as_ref()?;
    let remedy = "run the daemon in the PID namespace of the host";
    Some(Finding::warning(Theme::Machine, "callers", why.clone(), remedy))
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt as _;

    use super::super::finding::Verdict;
    use super::*;

    fn around(uid: u32) -> Surroundings {
        Surroundings { uid, ..Surroundings::default() }
    }

    #[test]
    fn kernels_by_what_they_can_do() {
        for (release, verdict, word) in [
            ("6.18.5", Verdict::Ok, "Linux 6.18.5"),
            ("6.12.0-amd64", Verdict::Ok, "count as killed"),
            ("6.8.0-45-generic", Verdict::Warning, "go through the daemon"),
            ("5.15.0", Verdict::Warning, "below for a moment"),
            ("odd", Verdict::Warning, "Linux odd"),
        ] {
            let found = kernel(release);
            assert!(found.result == verdict && found.found.contains(word), "{found:?}");
        }
        assert!(!kernel("6.18.5").found.contains(';'));
    }

    #[test]
    fn a_machine_without_the_device_has_a_problem() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let found = device(&dir.path().join("fuse"));
        assert_eq!(found.result, Verdict::Problem);
        assert!(found.remedy.expect("a remedy").contains("modprobe fuse"));
        assert_eq!(device(dir.path()).result, Verdict::Problem, "a directory cannot be opened");
        std::fs::write(dir.path().join("fuse"), "").expect("write");
        assert_eq!(device(&dir.path().join("fuse")).result, Verdict::Ok);
    }

    #[test]
    fn users_need_a_helper_and_leave_for_others() {
        let helper = |around: &Surroundings| helper(around, MountRight::ByHelper);
        assert_eq!(super::helper(&around(0), MountRight::Own).result, Verdict::Ok);
        assert_eq!(super::helper(&around(0), MountRight::Refused("why")).result, Verdict::Problem);
        let mut user = around(1000);
        assert_eq!(helper(&user).result, Verdict::Problem, "no PATH");
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("fusermount3");
        std::fs::write(&file, "").expect("write");
        std::fs::set_permissions(&file, Permissions::from_mode(0o755)).expect("chmod");
        user.variables.insert("PATH".into(), dir.path().into());
        assert_eq!(helper(&user).result, Verdict::Warning, "not set-uid");
        let conf = dir.path().join("fuse.conf");
        let mut settings = Settings::default();
        assert_eq!(others(&[&conf], &user, &settings), None);
        settings.mount.allow_other = AllowOther::Yes;
        std::fs::write(&conf, "#user_allow_other\n").expect("write");
        assert_eq!(others(&[&conf], &user, &settings).expect("a finding").result, Verdict::Problem);
        std::fs::write(&conf, "mount_max = 5\nuser_allow_other\n").expect("write");
        assert_eq!(others(&[&conf], &user, &settings).expect("a finding").result, Verdict::Ok);
    }

    #[test]
    fn io_modes_by_what_is_wanted_and_had() {
        fn of(settings: &Settings, uid: u32, release: &str, status: Option<&Status>) -> Verdict {
            io_mode(release, &around(uid), settings, status).result
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut settings = Settings::default();
        settings.local.cache_dir = dir.path().to_owned();
        assert_eq!(of(&settings, 1000, "6.18", None), Verdict::Ok);
        assert_eq!(of(&settings, 0, "6.1", None), Verdict::Ok, "the kernel is the reason");
        let mut status = Status::default();
        status.io.mode = "ordinary".into();
        status.io.reason = Some("the cache directory lies on a stacked file system".into());
        assert_eq!(of(&settings, 0, "6.18", Some(&status)), Verdict::Warning);
        status.io.mode = "passthrough".into();
        assert_eq!(of(&settings, 0, "6.18", Some(&status)), Verdict::Ok);
        settings.mount.io = IoMode::Passthrough;
        assert_eq!(of(&settings, 1000, "6.18", None), Verdict::Problem);
        settings.mount.io = IoMode::Ordinary;
        assert_eq!(of(&settings, 0, "6.18", None), Verdict::Ok);
    }

    #[test]
    fn the_disk_is_compared_with_the_limit() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut settings = Settings::default();
        settings.local.cache_dir = dir.path().join("cache");
        settings.local.cache_size = ByteSize(1 << 20);
        assert_eq!(disk(&settings, None).result, Verdict::Ok);
        settings.local.cache_size = ByteSize(u64::MAX);
        assert_eq!(disk(&settings, None).result, Verdict::Warning);
        let status = Status::default();
        assert_eq!(disk(&settings, Some(&status)).result, Verdict::Warning);
        std::fs::create_dir_all(dir.path().join("cache/v1")).expect("mkdir");
        assert_eq!(
            disk(&settings, None).result,
            Verdict::Ok,
            "the cache may already hold its whole size"
        );
        assert!(!dir.path().join("cache/v1/blobs").exists());
    }
}
