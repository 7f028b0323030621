//! The content of a directory, as a program sees it.
//!
//! Owns walks and comparisons. Must never follow a symbolic link.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use super::Must as _;

/// The object behind a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Thing {
    /// A directory.
    Dir,
    /// A file: permissions, length, digest of the bytes.
    File(u32, usize, String),
    /// A symbolic link and its target.
    Link(Vec<u8>),
}

/// Everything below a directory, by its relative path.
pub(crate) type Tree = BTreeMap<PathBuf, Thing>;

/// Returns the names in a directory, sorted.
pub(crate) fn names(dir: &Path) -> std::io::Result<Vec<Vec<u8>>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        found.push(entry?.file_name().as_bytes().to_owned());
    }
    found.sort();
    Ok(found)
}

/// Returns the names in a directory as text, sorted.
pub(crate) fn texts(dir: &Path) -> Vec<String> {
    let found = names(dir).must(format_args!("list {}", dir.display()));
    found.iter().map(|name| String::from_utf8_lossy(name).into_owned()).collect()
}

fn walk(root: &Path, below: &Path, tree: &mut Tree) -> std::io::Result<()> {
    for entry in std::fs::read_dir(root.join(below))? {
        let entry = entry?;
        let path = below.join(entry.file_name());
        let kind = entry.file_type()?;
        let thing = if kind.is_dir() {
            walk(root, &path, tree)?;
            Thing::Dir
        } else if kind.is_symlink() {
            Thing::Link(std::fs::read_link(entry.path())?.as_os_str().as_bytes().to_owned())
        } else {
            let bytes = std::fs::read(entry.path())?;
            let mode = entry.metadata()?.permissions().mode() & 0o7777;
            Thing::File(mode, bytes.len(), blake3::hash(&bytes).to_hex().to_string())
        };
        tree.insert(path, thing);
    }
    Ok(())
}

/// Reads everything below `root`; fails if something changed during the walk.
pub(crate) fn read(root: &Path) -> std::io::Result<Tree> {
    let mut tree = Tree::new();
    walk(root, Path::new(""), &mut tree)?;
    Ok(tree)
}

/// Describes the differences of two trees; an empty text means that there are none.
pub(crate) fn difference(left: &Tree, right: &Tree) -> String {
    let mut lines = Vec::new();
    for path in left.keys().chain(right.keys().filter(|path| !left.contains_key(*path))) {
        let (one, other) = (left.get(path), right.get(path));
        if one != other {
            lines.push(format!("{}: {one:?} / {other:?}", path.display()));
        }
    }
    lines.truncate(10);
    lines.join("\n")
}

/// Waits until both directories have the same content, and returns it.
#[track_caller]
pub(crate) fn converge(left: &Path, right: &Path, limit_ms: u64) -> Tree {
    super::eventually(limit_ms, "both nodes converge", || {
        let one = read(left).map_err(|error| format!("left: {error}"))?;
        let other = read(right).map_err(|error| format!("right: {error}"))?;
        let apart = difference(&one, &other);
        if apart.is_empty() { Ok(one) } else { Err(apart) }
    })
}

/// Returns the regular files below a directory that may change meanwhile.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => dirs.push(entry.path()),
                Ok(kind) if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    found
}

/// Returns how many bytes the files below a directory occupy on their disk.
pub(crate) fn disk_use(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let sizes = files_below(dir).into_iter();
    sizes.filter_map(|path| path.symlink_metadata().ok()).map(|meta| meta.blocks() * 512).sum()
}
