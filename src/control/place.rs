//! Where control sockets lie.
//!
//! Owns the rules for the runtime directory and the names in it. Must never trust a directory in
//! which another user could write: clients trust the process that answers on the socket.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use crate::config::Surroundings;
use crate::error::{Error, Kind, Result};

/// The longest path that a socket address holds, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// The file names of one mount point in the runtime directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Place {
    dir: PathBuf,
    id: String,
}

impl Place {
    /// Returns the place of the mount at `mount_point` (absolute, resolved) in a runtime directory.
    pub fn new(dir: &Path, mount_point: &Path) -> Self {
        let digest = blake3::hash(mount_point.as_os_str().as_bytes()).to_hex();
        Self { dir: dir.to_owned(), id: digest[..16].to_owned() }
    }

    /// Returns the path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.file("sock")
    }

    /// Returns the file whose lock shows that a daemon serves the socket.
    pub fn lock(&self) -> PathBuf {
        self.file("lock")
    }

    /// Returns another file of this mount.
    pub fn file(&self, extension: &str) -> PathBuf {
        self.dir.join(format!("{}.{extension}", self.id))
    }

    /// Returns the runtime directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the place of a socket that was found in a runtime directory.
    pub(super) fn of_socket(socket: &Path) -> Option<Self> {
        if socket.extension()? != "sock" {
            return None;
        }
        let id = socket.file_stem()?.to_str()?.to_owned();
        Some(Self { dir: socket.parent()?.to_owned(), id })
    }
}

/// Returns the runtime directory of this user.
pub fn runtime_dir(around: &Surroundings) -> PathBuf {
    if let Some(dir) = around.directory("HEARTHFS_RUNTIME_DIR") {
        return dir;
    }
    // Root uses only one place, in a login session and as a service.
    if around.uid == 0 {
        return PathBuf::from(SYSTEM_DIR);
    }
    // The variable may name a directory that does not exist: without a login session, or after its end.
    match around.directory("XDG_RUNTIME_DIR").filter(|dir| dir.is_dir()) {
        Some(dir) => dir.join("hearthfs"),
        None => fallback_dir(around.uid),
    }
}

const SYSTEM_DIR: &str = "/run/hearthfs";

fn fallback_dir(uid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/hearthfs-{uid}"))
}

/// Returns the runtime directories in which a mount may be found: this user's own, the system's,
/// and for root also those of the mount's user.
pub fn search_dirs(around: &Surroundings, owner: Option<u32>) -> Vec<PathBuf> {
    let mut dirs = vec![runtime_dir(around)];
    if around.variable("HEARTHFS_RUNTIME_DIR").is_none() {
        if around.uid != 0 {
            dirs.push(fallback_dir(around.uid));
        }
        dirs.push(PathBuf::from(SYSTEM_DIR));
        if let Some(owner) = owner.filter(|owner| around.uid == 0 && *owner != 0) {
            dirs.push(PathBuf::from(format!("/run/user/{owner}/hearthfs")));
            dirs.push(fallback_dir(owner));
        }
    }
    dirs.dedup();
    dirs
}

/// Returns the users, besides root, whose sockets in a runtime directory are trusted: this user;
/// for root also the user of the mount, or the owner of a directory that root itself named.
pub(super) fn believed(around: &Surroundings, dir: &Path, owner: Option<u32>) -> Vec<u32> {
    if around.uid != 0 {
        return vec![around.uid];
    }
    let is_named = around.variable("HEARTHFS_RUNTIME_DIR").is_some();
    let of_dir = std::fs::metadata(dir).ok().filter(|_| is_named).map(|about| about.uid());
    owner.into_iter().chain(of_dir).collect()
}

/// Makes the runtime directory if it is missing, and checks that only we can write to it.
///
/// # Errors
///
/// `Denied` when it is no directory, belongs to another user or can be written by others; an error of the disk when it
/// cannot be made.
pub fn prepare(dir: &Path, uid: u32) -> Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    // A symbolic link to a directory counts as existing; the check below refuses it.
    made.map_err(|error| Error::io(format!("make the directory {}", dir.display()), error))?;
    let about = std::fs::symlink_metadata(dir)
        .map_err(|error| Error::io(format!("look at {}", dir.display()), error))?;
    let refuse = |why: String| {
        let remedy = "set HEARTHFS_RUNTIME_DIR to a directory of your own";
        Error::new(Kind::Denied, format!("{} {why}; {remedy}", dir.display()))
    };
    if !about.is_dir() {
        return Err(refuse("is not a directory".to_owned()));
    }
    if about.uid() != uid {
        return Err(refuse(format!("belongs to user {}", about.uid())));
    }
    if about.mode() & 0o022 != 0 {
        return Err(refuse("can be written by others".to_owned()));
    }
    Ok(())
}

/// Reports whether only root or one of these users could have put the socket there. A client checks this
/// before it trusts an answer. Root, too, trusts no other user: any user can make `/tmp/hearthfs-UID`.
pub(super) fn is_trusted(socket: &Path, users: &[u32]) -> bool {
    let Some(dir) = socket.parent() else { return false };
    let ours = |path: &Path| {
        std::fs::symlink_metadata(path)
            .is_ok_and(|about| about.uid() == 0 || users.contains(&about.uid()))
    };
    let closed = std::fs::symlink_metadata(dir)
        .is_ok_and(|about| about.is_dir() && about.mode() & 0o022 == 0);
    closed && ours(dir) && ours(socket)
}

/// Refuses a socket path that is too long for the kernel.
pub(super) fn check_length(socket: &Path) -> Result<()> {
    if socket.as_os_str().len() <= SOCKET_PATH_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        Kind::Invalid,
        format!(
            "the path of the control socket, {}, is longer than {SOCKET_PATH_BYTES_MAX} bytes; \
             set HEARTHFS_RUNTIME_DIR to a shorter directory",
            socket.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::around;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn directories_by_user() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let xdg = [("XDG_RUNTIME_DIR", dir.path().to_str().expect("text"))];
        assert_eq!(runtime_dir(&around(1000, &xdg)), dir.path().join("hearthfs"));
        assert_eq!(runtime_dir(&around(1000, &[])), Path::new("/tmp/hearthfs-1000"));
        let gone = [("XDG_RUNTIME_DIR", "/nonexistent/1000")];
        assert_eq!(runtime_dir(&around(1000, &gone)), Path::new("/tmp/hearthfs-1000"));
        assert_eq!(runtime_dir(&around(0, &xdg)), Path::new("/run/hearthfs"));
        let own = [("HEARTHFS_RUNTIME_DIR", "/x"), xdg[0]];
        assert_eq!(search_dirs(&around(1000, &own), None), [Path::new("/x")]);
        let wanted = ["/run/hearthfs", "/run/user/7/hearthfs", "/tmp/hearthfs-7"];
        assert_eq!(search_dirs(&around(0, &[]), Some(7)), wanted.map(PathBuf::from));
    }

    #[test]
    fn root_trusts_no_user_except_that_of_the_mount() {
        let base = tempfile::tempdir().expect("temporary directory");
        let (own, named) = (around(0, &[]), around(0, &[("HEARTHFS_RUNTIME_DIR", "/x")]));
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(believed(&around(1000, &[]), base.path(), Some(7)), [1000]);
        assert!(believed(&own, base.path(), None).is_empty());
        assert_eq!(believed(&own, base.path(), Some(7)), [7]);
        assert_eq!(believed(&named, base.path(), Some(7)), [7, uid], "root named the directory");
        let socket = base.path().join("dir/0.sock");
        prepare(&base.path().join("dir"), uid).expect("made");
        std::fs::write(&socket, "").expect("made");
        assert!(is_trusted(&socket, &[uid]));
        if uid == 0 {
            for path in [&*socket, &base.path().join("dir")] {
                std::os::unix::fs::chown(path, Some(7), None).expect("chown");
                assert!(!is_trusted(&socket, &[]) && is_trusted(&socket, &[7]), "{path:?}");
            }
        }
    }

    #[test]
    fn only_a_private_directory_will_do() {
        let base = tempfile::tempdir().expect("temporary directory");
        let uid = rustix::process::geteuid().as_raw();
        let dir = base.path().join("a/b");
        prepare(&dir, uid).expect("made");
        prepare(&dir, uid).expect("found");
        assert!(prepare(&dir, uid + 1).is_err(), "another user's directory");
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&dir, open).expect("chmod");
        assert!(prepare(&dir, uid).is_err(), "open to others");
        let link = base.path().join("link");
        std::os::unix::fs::symlink(&dir, &link).expect("symlink");
        assert!(prepare(&link, uid).is_err(), "a link");
    }

    #[test]
    fn places_differ_by_mount_point() {
        let place = |path: &str| Place::new(Path::new("/run/hearthfs"), Path::new(path));
        assert_ne!(place("/a").socket(), place("/b").socket());
        assert_eq!(Place::of_socket(&place("/a").socket()), Some(place("/a")));
        assert_eq!(Place::of_socket(&place("/a").lock()), None);
        assert!(check_length(&place("/a").socket()).is_ok());
        assert!(check_length(Path::new(&format!("/{}", "x".repeat(107)))).is_err());
    }
}
