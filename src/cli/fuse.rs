//! Whether this process may mount at all.
//!
//! Owns what is checked before anything is made: a mount that the kernel refuses must not leave a
//! store behind. Must never mount anything to find out.

use std::ffi::OsStr;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::io::Errno;
use rustix::mount::{FsOpenFlags, fsopen};

use super::failure::{Failure, Outcome};
use crate::config::{AllowOther, Surroundings};

const DEVICE: &str = "/dev/fuse";
/// The program with which a process mounts that may not do so itself.
const HELPER: &str = "fusermount3";
/// The bit of `CAP_SYS_ADMIN` in the sets of `/proc/self/status`.
const SYS_ADMIN: u32 = 21;
/// The configuration of the helper, by where it was installed.
pub(super) const FUSE_CONF: [&str; 2] = ["/etc/fuse.conf", "/usr/local/etc/fuse.conf"];

/// What the kernel grants this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MountRight {
    /// It may mount by itself.
    Own,
    /// It may not, but a set-uid program that it starts may.
    ByHelper,
    /// It may not, and no program that it starts may.
    Refused(&'static str),
}

impl MountRight {
    /// Asks the kernel for a file system that is not mounted anywhere.
    pub(super) fn of_process() -> Self {
        match fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC) {
            Err(Errno::PERM | Errno::ACCESS) => {
                Self::by_status(&std::fs::read_to_string("/proc/self/status").unwrap_or_default())
            }
            Err(Errno::NODEV) => Self::Refused("the kernel has no file system of type fuse"),
            // A kernel without this call shows it only at the mount.
            Err(_) if !rustix::process::geteuid().is_root() => Self::ByHelper,
            Ok(_) | Err(_) => Self::Own,
        }
    }

    /// Determines what a started program may do for a process that may not mount.
    fn by_status(status: &str) -> Self {
        let field = |name: &str| {
            let value = status.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| u64::from_str_radix(value.trim(), 16).ok())
        };
        let holds = |set: &str| field(set).map(|set| set & (1 << SYS_ADMIN) != 0);
        // It has the right: a filter of system calls, or a namespace of another user, denies this
        // call, and perhaps not the older one.
        if holds("CapEff:") == Some(true) {
            return Self::Own;
        }
        if field("NoNewPrivs:").is_some_and(|on| on != 0) {
            return Self::Refused("no_new_privs is set, so fusermount3 gains no rights either");
        }
        if holds("CapBnd:") == Some(false) {
            return Self::Refused("CAP_SYS_ADMIN is not in its bounding set");
        }
        Self::ByHelper
    }
}

/// Checks that this process may mount at all.
pub(super) fn check(around: &Surroundings, allow_other: AllowOther) -> Outcome<()> {
    check_device(Path::new(DEVICE))?;
    let helper = check_right(around, MountRight::of_process())?;
    if helper.is_some() && around.uid != 0 && allow_other == AllowOther::Yes {
        check_others(&FUSE_CONF)?;
    }
    Ok(())
}

/// Checks that this process may open the device; the helper opens it with the rights of its user.
pub(super) fn check_device(device: &Path) -> Outcome<()> {
    let shown = device.display();
    let Err(error) = File::options().read(true).write(true).open(device) else { return Ok(()) };
    let code = error.raw_os_error().map(Errno::from_raw_os_error);
    if error.kind() == ErrorKind::NotFound || matches!(code, Some(Errno::NODEV | Errno::NXIO)) {
        return Err(Failure::refused(format!("there is no {shown}")).hint(
            "load the module with `modprobe fuse`; in a container, start it with --device /dev/fuse",
        ));
    }
    Err(Failure::refused(format!("{shown} cannot be opened: {error}")).hint(format!(
        "give it mode 0666, as udev does; in a container, allow the device (--device {shown})"
    )))
}

/// Checks the right to mount; returns the helper if one is needed.
pub(super) fn check_right(around: &Surroundings, right: MountRight) -> Outcome<Option<PathBuf>> {
    match right {
        MountRight::Own => return Ok(None),
        MountRight::ByHelper => {}
        MountRight::Refused(why) => {
            return Err(Failure::refused(format!("this process may not mount: {why}")).hint(
                "in a container, start it with --cap-add SYS_ADMIN; in a unit of systemd, leave out what \
                 takes this right away (NoNewPrivileges=, CapabilityBoundingSet=)",
            ));
        }
    }
    let remedy = "install the package fuse3, or mount as root";
    let Some(helper) = helper(around) else {
        return Err(Failure::refused(format!("{HELPER} is not in PATH")).hint(remedy));
    };
    if let Err(error) = rustix::fs::access(&helper, Access::EXEC_OK) {
        let shown = helper.display();
        return Err(Failure::refused(format!("{shown} cannot be executed: {error}")).hint(remedy));
    }
    Ok(Some(helper))
}

/// Checks that users other than root may allow others on their mounts; the helper reads one of these files.
pub(super) fn check_others(files: &[impl AsRef<Path>]) -> Outcome<()> {
    let allows = |file: &Path| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| line.trim() == "user_allow_other")
    };
    if files.iter().any(|file| allows(file.as_ref())) {
        return Ok(());
    }
    let names: Vec<_> = files.iter().map(|file| file.as_ref().display().to_string()).collect();
    Err(Failure::refused("mount.allow_other is true, but users may not use allow_other here")
        .hint(format!("add the line user_allow_other to {}, or mount as root", names.join(" or "))))
}

/// Finds the helper.
pub(super) fn helper(around: &Surroundings) -> Option<PathBuf> {
    let path = around.variable("PATH").map(OsStr::to_owned).unwrap_or_default();
    std::env::split_paths(&path).map(|dir| dir.join(HELPER)).find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::around;

    #[test]
    fn what_a_helper_can_gain() {
        let right = |new_privs: u32, bound: u64, has: u64| {
            MountRight::by_status(&format!(
                "Name:\thearthfs\nCapEff:\t{has:016x}\nCapBnd:\t{bound:016x}\nNoNewPrivs:\t{new_privs}\n"
            ))
        };
        let all = (1 << 41) - 1;
        let without = all & !(1 << SYS_ADMIN);
        assert_eq!(right(0, all, 0), MountRight::ByHelper);
        assert_eq!(right(0, all, without), MountRight::ByHelper);
        for (right, word) in
            [(right(1, all, 0), "no_new_privs"), (right(0, without, without), "bounding set")]
        {
            let failure = check_right(&around(1000, &[]), right);
            assert!(failure.expect_err("refused").text().contains(word), "{right:?}");
        }
        assert_eq!(right(1, all, all), MountRight::Own);
        assert_eq!(MountRight::by_status(""), MountRight::ByHelper, "nothing is known");
    }

    #[test]
    fn a_helper_must_be_there() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().to_str().expect("text");
        let around = around(1000, &[("PATH", path)]);
        let check = || check_right(&around, MountRight::ByHelper);
        assert!(check().expect_err("refused").text().contains("not in PATH"));
        std::fs::write(dir.path().join("fusermount"), "").expect("write");
        assert!(check().is_err(), "it is not used");
        std::fs::write(dir.path().join(HELPER), "").expect("write");
        assert!(check().expect_err("refused").text().contains("cannot be executed"));
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path().join(HELPER), mode).expect("chmod");
        assert_eq!(check(), Ok(Some(dir.path().join(HELPER))));
        assert_eq!(check_right(&around, MountRight::Own), Ok(None));
    }

    #[test]
    fn a_device_must_be_there() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let device = dir.path().join("fuse");
        assert!(check_device(&device).expect_err("refused").text().contains("modprobe"));
        std::fs::create_dir(&device).expect("mkdir");
        assert!(check_device(&device).expect_err("refused").text().contains("cannot be opened"));
        std::fs::remove_dir(&device).expect("rmdir");
        std::fs::write(&device, "").expect("write");
        assert_eq!(check_device(&device), Ok(()));
    }
}
