//! The kernel's table of mounts, as far as we need it.
//!
//! Owns reading `/proc/self/mountinfo`. Must never access a mount point: its daemon may not answer.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// How our mounts appear in the table: the type is `fuse.hearthfs`, the source `hearthfs`.
pub const FS_NAME: &str = "hearthfs";

/// One mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Mounted {
    /// The mount point.
    pub point: PathBuf,
    /// The device number of the mounted file system, as in the table. Two mounts with the same
    /// number show the same files.
    pub device: String,
    /// Which directory of that file system is mounted; the root, except for a bind mount.
    pub root: PathBuf,
    /// The type, such as `ext4` or `fuse.hearthfs`.
    pub fs_type: String,
    /// The mounted device or source.
    pub source: String,
    /// The user who mounted it, for FUSE.
    pub owner: Option<u32>,
    /// The group of that user, for FUSE.
    pub group: Option<u32>,
}

impl Mounted {
    /// Reports whether this is a hearthfs mount.
    pub fn is_ours(&self) -> bool {
        self.fs_type.strip_prefix("fuse.") == Some(FS_NAME)
            || (self.fs_type == "fuse" && self.source == FS_NAME)
    }
}

/// The mounts that this process sees, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub struct Mounts(Vec<Mounted>);

impl Mounts {
    /// Reads the table.
    ///
    /// # Errors
    ///
    /// When `/proc/self/mountinfo` cannot be read.
    pub fn read() -> Result<Self> {
        const TABLE: &str = "/proc/self/mountinfo";
        let bytes = std::fs::read(TABLE).map_err(|e| Error::io(format!("read {TABLE}"), e))?;
        Ok(Self::parse(&bytes))
    }

    fn parse(table: &[u8]) -> Self {
        Self(table.split(|b| *b == b'\n').filter_map(parse_line).collect())
    }

    /// Returns the mount exactly at `point`; the top one if there are several.
    pub fn at(&self, point: &Path) -> Option<&Mounted> {
        self.0.iter().rev().find(|mounted| mounted.point == point)
    }

    /// Returns the hearthfs mount that contains `path`, if there is one.
    pub fn holding(&self, path: &Path) -> Option<&Mounted> {
        self.innermost(path).filter(|mounted| mounted.is_ours())
    }

    /// Returns the location of `path` independent of the mount that leads there: the device number,
    /// and the path in it.
    pub fn location(&self, path: &Path) -> Option<(&str, PathBuf)> {
        let mounted = self.innermost(path)?;
        let below = path.strip_prefix(&mounted.point).ok()?;
        Some((&mounted.device, mounted.root.join(below)))
    }

    fn innermost(&self, path: &Path) -> Option<&Mounted> {
        let depth = |mounted: &&Mounted| mounted.point.components().count();
        // At equal depth the last in the table is on top, and `max_by_key` returns the last.
        self.0.iter().filter(|m| path.starts_with(&m.point)).max_by_key(depth)
    }

    /// Returns all hearthfs mounts, each point once.
    pub fn ours(&self) -> Vec<&Mounted> {
        let mut found: Vec<&Mounted> = Vec::new();
        for mounted in self.0.iter().filter(|m| m.is_ours()) {
            if !found.iter().any(|other| other.point == mounted.point) {
                found.push(mounted);
            }
        }
        found
    }
}

/// Parses a line: id, parent, device, root, mount point, options, optional fields, `-`, type, source, options.
fn parse_line(line: &[u8]) -> Option<Mounted> {
    let mut fields = line.split(|b| *b == b' ');
    let device = String::from_utf8_lossy(fields.nth(2)?).into_owned();
    let root = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
    let point = PathBuf::from(OsString::from_vec(unescape(fields.next()?)));
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let text = |field: &[u8]| String::from_utf8_lossy(&unescape(field)).into_owned();
    let (fs_type, source) = (text(rest.next()?), text(rest.next()?));
    let options = text(rest.next().unwrap_or_default());
    let number = |name| options.split(',').find_map(|o| o.strip_prefix(name)?.parse().ok());
    let (owner, group) = (number("user_id="), number("group_id="));
    Some(Mounted { point, device, root, fs_type, source, owner, group })
}

/// Decodes blanks, tabs, line ends and backslashes, which are written as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if *first == b'\\'
            && let Some(code) = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok())
            && let Ok(byte) = u8::from_str_radix(code, 8)
        {
            bytes.push(byte);
            rest = &tail[3..];
            continue;
        }
        bytes.push(*first);
        rest = tail;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
40 22 0:41 / /mnt/a rw,nosuid - fuse.hearthfs hearthfs rw,user_id=1000,group_id=1000
41 22 0:42 / /mnt/with\\040blank rw - fuse hearthfs rw,user_id=0
42 40 0:43 / /mnt/a/sub rw - tmpfs tmpfs rw
46 22 0:41 /some/where /mnt/part rw - fuse.hearthfs hearthfs rw,user_id=1000,group_id=1000
43 22 0:44 / /mnt/other rw master:2 propagate_from:1 - fuse.sshfs host:/ rw,user_id=0
44 22 0:45 / /mnt/a rw - fuse.hearthfs hearthfs rw,user_id=7

";

    #[test]
    fn table_is_read() {
        let mounts = Mounts::parse(TABLE);
        let point = |path: &str| mounts.at(Path::new(path)).cloned();
        assert_eq!(point("/mnt/a").and_then(|m| m.owner), Some(7), "the topmost mount");
        let part = point("/mnt/part").map(|m| (m.owner, m.group));
        assert_eq!(part, Some((Some(1000), Some(1000))));
        assert!(point("/mnt/with blank").is_some_and(|m| m.is_ours()));
        assert!(point("/mnt/other").is_some_and(|m| !m.is_ours() && m.source == "host:/"));
        assert_eq!(point("/mnt"), None);
        let holding = |path: &str| mounts.holding(Path::new(path)).map(|m| m.point.clone());
        assert_eq!(holding("/mnt/a/x/y"), Some("/mnt/a".into()));
        assert_eq!(holding("/mnt/a/sub/y"), None, "another mount covers it");
        assert_eq!(holding("/mnt/ab"), None);
        assert_eq!(point("/mnt/part").map(|m| m.root), Some("/some/where".into()));
        assert_eq!(mounts.ours().len(), 3);
    }

    #[test]
    fn the_real_table_has_a_root() {
        let mounts = Mounts::read().expect("readable");
        assert!(mounts.at(Path::new("/")).is_some());
    }
}
