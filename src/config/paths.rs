//! Default paths.
//!
//! Owns the rules for the places of the configuration file and the cache directory. Must never create anything.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::source::Surroundings;

/// The longest directory name that is made from a mount point; a longer one is cut, and a digest
/// keeps it unique.
const NAME_BYTES_MAX: usize = 200;

/// Returns the configuration files that are tried when none is named, the most specific first.
pub fn config_files(around: &Surroundings) -> Vec<PathBuf> {
    let mut files = Vec::new();
    if around.uid != 0 {
        let base = around
            .directory("XDG_CONFIG_HOME")
            .or_else(|| around.directory("HOME").map(|home| home.join(".config")));
        files.extend(base.map(|base| base.join("hearthfs/hearthfs.toml")));
    }
    files.push(PathBuf::from("/etc/hearthfs/hearthfs.toml"));
    files
}

/// Returns the directory below which each mount has its default cache directory.
pub fn cache_base(around: &Surroundings) -> PathBuf {
    if around.uid == 0 {
        return PathBuf::from("/var/cache/hearthfs");
    }
    around
        .directory("XDG_CACHE_HOME")
        .or_else(|| around.directory("HOME").map(|home| home.join(".cache")))
        .map_or_else(
            || PathBuf::from(format!("/var/tmp/hearthfs-{}", around.uid)),
            |base| base.join("hearthfs"),
        )
}

/// Returns the directory for the logs of mounts in the background.
pub fn log_base(around: &Surroundings) -> PathBuf {
    if let Some(base) = around.directory("XDG_STATE_HOME") {
        return base.join("hearthfs");
    }
    if around.uid == 0 {
        return PathBuf::from("/var/log/hearthfs");
    }
    match around.directory("HOME") {
        Some(home) => home.join(".local/state/hearthfs"),
        None => PathBuf::from(format!("/var/tmp/hearthfs-{}/log", around.uid)),
    }
}

/// Returns the name of a mount: its path written as one directory name, in the way systemd names
/// instances, so that two mounts never share one.
pub fn mount_name(mount_point: &Path) -> String {
    let bytes = mount_point.as_os_str().as_bytes();
    let start = bytes.iter().position(|b| *b != b'/').unwrap_or(bytes.len());
    let mut name = String::new();
    for (index, byte) in bytes[start..].iter().enumerate() {
        match byte {
            b'/' => name.push('-'),
            b'.' if index > 0 => name.push('.'),
            b if b.is_ascii_alphanumeric() || matches!(b, b':' | b'_') => name.push(char::from(*b)),
            b => name.extend(["\\x".to_owned(), format!("{b:02x}")]),
        }
    }
    if name.is_empty() {
        name.push('-');
    }
    if name.len() > NAME_BYTES_MAX {
        let digest = blake3::hash(bytes).to_hex();
        name.truncate(NAME_BYTES_MAX - 17);
        name.push('-');
        name.push_str(&digest[..16]);
    }
    name
}

/// Reports whether `inner` is `outer` or lies below it; both must be absolute and canonical.
pub fn is_inside(inner: &Path, outer: &Path) -> bool {
    inner.starts_with(outer)
}

/// Resolves a path whose end need not exist yet: the existing part is canonical, the rest is appended.
///
/// The last component is never opened: on a dead mount that would fail, on a stuck one it would hang.
pub fn resolve(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // The kernel follows at most this many links.
    for _ in 0..40 {
        let Some((parent, name)) = split(&path) else { return resolve_parent(&path) };
        let here = resolve_parent(parent).join(name);
        // On a mount point this fails without a request to the daemon of the mount.
        match std::fs::read_link(&here) {
            Ok(target) => path = here.parent().unwrap_or(&here).join(target),
            Err(_) => return here,
        }
    }
    path
}

/// Returns a symbolic link on the way to `path` that belongs neither to the user nor to root, and its owner.
pub(super) fn foreign_link(path: &Path, user: u32) -> Option<(PathBuf, u32)> {
    let links = path.ancestors().filter_map(|place| {
        let about = std::fs::symlink_metadata(place).ok()?;
        about.is_symlink().then(|| (place.to_owned(), about.uid()))
    });
    links.into_iter().find(|(_, owner)| *owner != user && *owner != 0)
}

fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    if let Some(name) = path.file_name() {
        return path.parent().map(|parent| (parent, name));
    }
    None
}

fn resolve_parent(parent: &Path) -> PathBuf {
    if let Ok(real) = parent.canonicalize() {
        return real;
    }
    match split(parent) {
        Some((above, name)) => resolve_parent(above).join(name),
        None => parent.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::around;

    #[test]
    fn names_of_mounts_differ() {
        for (path, name) in [
            ("/mnt/cache", "mnt-cache"),
            ("/mnt-cache", "mnt\\x2dcache"),
            ("/home/me/.hearthfs", "home-me-.hearthfs"),
            ("/.x", "\\x2ex"),
            ("/", "-"),
        ] {
            assert_eq!(mount_name(Path::new(path)), name);
        }
        let long = |end| mount_name(Path::new(&format!("/{}{end}", "x".repeat(250))));
        assert!(long("a").len() <= NAME_BYTES_MAX);
        assert_ne!(long("a"), long("b"));
    }

    #[test]
    fn places_by_user() {
        let user = around(1000, &[("HOME", "/home/me")]);
        assert_eq!(cache_base(&user), Path::new("/home/me/.cache/hearthfs"));
        let xdg = around(1000, &[("HOME", "/home/me"), ("XDG_CACHE_HOME", "/scratch/me")]);
        assert_eq!(cache_base(&xdg), Path::new("/scratch/me/hearthfs"));
        let relative = around(1000, &[("HOME", "/home/me"), ("XDG_CACHE_HOME", "scratch")]);
        assert_eq!(cache_base(&relative), Path::new("/home/me/.cache/hearthfs"));
        let root = around(0, &[("HOME", "/root"), ("XDG_CACHE_HOME", "/scratch")]);
        assert_eq!(cache_base(&root), Path::new("/var/cache/hearthfs"));
        assert_eq!(cache_base(&around(7, &[])), Path::new("/var/tmp/hearthfs-7"));
    }

    #[test]
    fn paths_resolve_without_their_end() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let real = dir.path().canonicalize().expect("exists");
        std::fs::create_dir(real.join("a")).expect("mkdir");
        std::os::unix::fs::symlink("a", real.join("link")).expect("symlink");
        std::os::unix::fs::symlink("loop", real.join("loop")).expect("symlink");
        assert_eq!(resolve(&real.join("link")), real.join("a"));
        assert_eq!(resolve(&real.join("link/x/y")), real.join("a/x/y"));
        assert_eq!(resolve(&real.join("a/../a")), real.join("a"));
        assert_eq!(resolve(&real.join("a/")), real.join("a"));
        assert_eq!(resolve(Path::new("/")), Path::new("/"));
        resolve(&real.join("loop"));
    }
}
