//! Names and paths inside the mount.
//!
//! Owns the form in which a path is stored and ordered. Must never access the file system.
//!
//! A name is any byte string that Linux allows, so it is not text. A path stores its components
//! separated by NUL, which no name can contain. So byte order puts a directory directly before its
//! descendants, and keeps its descendants together.

use std::borrow::Borrow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest single name, in bytes (`NAME_MAX`).
pub const MAX_NAME_BYTES: usize = 255;
/// The longest path below the mount, in bytes. Programs reach at most `PATH_MAX` in one call, but can
/// go deeper by changing directory on the way.
pub const MAX_PATH_BYTES: usize = 64 * 1024;

/// A path below the root of the mount; the root itself is the empty path.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(Box<[u8]>);

/// Why bytes cannot be a path inside the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// A component is empty, `.`, `..`, or holds `/` or NUL.
    #[error("a component of the path is not a possible name")]
    BadName,
    /// A component or the whole path is too long.
    #[error("a name may have {MAX_NAME_BYTES} bytes, a path {MAX_PATH_BYTES}")]
    TooLong,
}

/// Checks that `name` can name a directory entry.
///
/// # Errors
///
/// `BadName` for an empty name, `.`, `..`, or one with NUL or `/`; `TooLong` above 255 bytes.
pub fn check_name(name: &[u8]) -> Result<(), PathError> {
    if name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|b| matches!(b, 0 | b'/'))
    {
        return Err(PathError::BadName);
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(PathError::TooLong);
    }
    Ok(())
}

/// Yields the stored bytes of the directories above a path, from the top, without the root.
pub fn directories_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = path.iter().enumerate().filter(|(_, byte)| **byte == 0);
    ends.map(|(at, _)| &path[..at])
}

impl TreePath {
    /// Returns the root of the mount.
    pub fn root() -> Self {
        Self::default()
    }

    /// Reports whether this is the root of the mount.
    #[inline]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the path of `name` in this directory.
    ///
    /// # Errors
    ///
    /// As [`check_name`], and `TooLong` when the whole path is above its limit.
    pub fn join(&self, name: &[u8]) -> Result<Self, PathError> {
        check_name(name)?;
        if self.0.len() + 1 + name.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        let mut bytes = Vec::with_capacity(self.0.len() + 1 + name.len());
        if !self.is_root() {
            bytes.extend_from_slice(&self.0);
            bytes.push(0);
        }
        bytes.extend_from_slice(name);
        Ok(Self(bytes.into()))
    }

    /// Returns the path with these names, from the root down.
    ///
    /// # Errors
    ///
    /// As [`check_name`], and `TooLong` when the whole path is above its limit.
    pub fn of_names<'a>(names: impl Iterator<Item = &'a [u8]> + Clone) -> Result<Self, PathError> {
        // Exactly as long as the path, so that it is not moved to be made shorter.
        let length: usize = names.clone().map(|name| name.len() + 1).sum();
        let mut bytes = Vec::with_capacity(length.saturating_sub(1));
        for name in names {
            check_name(name)?;
            if !bytes.is_empty() {
                bytes.push(0);
            }
            bytes.extend_from_slice(name);
        }
        if bytes.len() > MAX_PATH_BYTES { Err(PathError::TooLong) } else { Ok(Self(bytes.into())) }
    }

    /// Splits into the directory and the last name; `None` for the root.
    pub fn split(&self) -> Option<(Self, &[u8])> {
        if self.is_root() {
            return None;
        }
        Some(match self.0.iter().rposition(|b| *b == 0) {
            Some(at) => (Self(self.0[..at].into()), &self.0[at + 1..]),
            None => (Self::root(), &self.0),
        })
    }

    /// Returns the directory that holds this path; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        self.split().map(|(dir, _)| dir)
    }

    /// Returns the last name; empty for the root.
    pub fn file_name(&self) -> &[u8] {
        self.0.rsplit(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// Yields the names from the root down.
    pub fn components(&self) -> impl Iterator<Item = &[u8]> {
        self.0.split(|b| *b == 0).filter(|part| !part.is_empty())
    }

    /// Reports whether this path lies below `dir`, at any depth; a path is not below itself.
    pub fn is_below(&self, dir: &Self) -> bool {
        self.below(dir).is_some()
    }

    /// Returns the part after `dir`, still NUL-separated, if this path lies below it.
    pub fn below(&self, dir: &Self) -> Option<&[u8]> {
        dir.rest_of(&self.0)
    }

    /// Returns the part after this directory in the stored bytes of a path that lies below it.
    #[inline]
    pub fn rest_of<'a>(&self, path: &'a [u8]) -> Option<&'a [u8]> {
        let rest = path.strip_prefix(&*self.0)?;
        let rest = if self.is_root() { rest } else { rest.strip_prefix(&[0])? };
        (!rest.is_empty()).then_some(rest)
    }

    /// Returns this path with the leading `from` replaced by `to`; `None` if it is neither `from`
    /// nor below it, or if the result is too long.
    pub fn moved(&self, from: &Self, to: &Self) -> Option<Self> {
        if self == from {
            return Some(to.clone());
        }
        let rest = self.below(from)?;
        let mut bytes = to.0.to_vec();
        if !bytes.is_empty() {
            bytes.push(0);
        }
        bytes.extend_from_slice(rest);
        (bytes.len() <= MAX_PATH_BYTES).then(|| Self(bytes.into()))
    }

    /// Returns the stored bytes: components separated by NUL. The formats use the same form.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the stored form from a format; refuses bytes that cannot be a path.
    ///
    /// # Errors
    ///
    /// `TooLong` above the limit of a path; otherwise the error of [`check_name`] for the first invalid name.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, PathError> {
        if bytes.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        if !bytes.is_empty() {
            bytes.split(|b| *b == 0).try_for_each(check_name)?;
        }
        Ok(Self(bytes.into()))
    }
}

impl Borrow<[u8]> for TreePath {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for part in self.components() {
            if !first {
                f.write_str("/")?;
            }
            first = false;
            write!(f, "{}", part.escape_ascii())?;
        }
        Ok(())
    }
}

impl fmt::Debug for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{self}")
    }
}

impl Serialize for TreePath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for TreePath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = TreePath;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the bytes of a path")
            }
            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<TreePath, E> {
                TreePath::from_bytes(bytes).map_err(E::custom)
            }
            fn visit_borrowed_bytes<E: serde::de::Error>(
                self,
                bytes: &'de [u8],
            ) -> Result<TreePath, E> {
                self.visit_bytes(bytes)
            }
        }
        deserializer.deserialize_bytes(Visitor)
    }
}

/// Makes a path of names that are separated by slashes, for tests.
#[cfg(test)]
pub(crate) fn path(text: &str) -> TreePath {
    let names = text.split('/').filter(|name| !name.is_empty());
    names.fold(TreePath::root(), |dir, name| dir.join(name.as_bytes()).expect("a good name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_keeps_a_directory_together() {
        let mut all = [path("a!"), path("a/b"), path("a"), path("a/b/c"), path("ab")];
        all.sort();
        assert_eq!(all, [path("a"), path("a/b"), path("a/b/c"), path("a!"), path("ab")]);
    }

    #[test]
    fn below_and_moved() {
        assert!(path("a/b/c").is_below(&path("a")));
        assert!(!path("ab").is_below(&path("a")));
        assert!(!path("a").is_below(&path("a")));
        assert_eq!(path("a/b/c").moved(&path("a/b"), &path("x")), Some(path("x/c")));
        assert_eq!(path("a/bc").moved(&path("a/b"), &path("x")), None);
        assert_eq!(path("a/b").split(), Some((path("a"), &b"b"[..])));
    }

    #[test]
    fn impossible_names_are_refused() {
        let root = TreePath::root();
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(root.join(name), Err(PathError::BadName));
        }
        assert_eq!(root.join(&[b'x'; 256]), Err(PathError::TooLong));
        assert!(root.join(&[0xff; 255]).is_ok());
        assert!(TreePath::from_bytes(b"a\0\0b").is_err());
    }
}
