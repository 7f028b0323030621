//! Two users of one mount, one of whom attacks the other.
//!
//! Owns the two nodes for tests of isolation. Must never be used without root, which alone can
//! become other users.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::io::Errno;

use crate::harness::syscall_process::User;
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, eventually, is_root, skipped};

/// The victim.
pub(crate) const A: User = User { uid: 63_001, gid: 63_001 };
/// The attacker.
pub(crate) const B: User = User { uid: 63_002, gid: 63_002 };
const USERS_NEED_ROOT: &str = "only root can become other users";

/// Reports whether the test can become other users, and otherwise reports the skip.
pub(crate) fn can_be_others(test: &str, io: Io) -> bool {
    if !is_root() {
        skipped(&format!("{test}::{}", io.word()), USERS_NEED_ROOT);
    }
    is_root()
}

/// Lets other users reach what lies below a directory.
pub(crate) fn let_in(dir: &Path, mode: u32) {
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(dir, permissions).must("set a directory's mode");
}

/// Fails with all faults that a test has found.
pub(crate) fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
}

/// Two nodes with three directories: `open` (0777), `sticky` (1777), and `private` (A's, 0700);
/// with processes of the users.
pub(crate) struct World {
    pub(crate) a: SyscallProcess,
    pub(crate) b: SyscallProcess,
    pub(crate) root: SyscallProcess,
    pub(crate) cluster: Cluster,
}

impl World {
    /// Starts two nodes, or reports the skip of `test`.
    pub(crate) fn two(io: Io, test: &str) -> Option<Self> {
        if !can_be_others(test, io) {
            return None;
        }
        let cluster = Cluster::two(io);
        let_in(cluster.site.path(), 0o755);
        let mut root = SyscallProcess::new();
        for (name, mode) in [("open", 0o777), ("sticky", 0o1777), ("private", 0o700)] {
            root.mkdir_with(&cluster.a.at(name), mode).must("mkdir");
        }
        root.chown(&cluster.a.at("private"), Some(A.uid), Some(A.gid)).must("chown");
        cluster.settle();
        eventually(10_000, "the directories arrive", || {
            match root.stat(&cluster.b.at("private")) {
                Ok(stat) if stat.uid == A.uid => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Some(Self { a: SyscallProcess::of(A, &[]), b: SyscallProcess::of(B, &[]), root, cluster })
    }

    /// Compares entries with their earlier state, on both nodes, after all changes have arrived everywhere.
    pub(crate) fn check_both(&mut self, precious: &[(String, Entry)], faults: &mut Vec<String>) {
        self.cluster.settle();
        // The last change of either node is visible on the other, and so are all before it.
        for (from, to) in [(&self.cluster.a, &self.cluster.b), (&self.cluster.b, &self.cluster.a)] {
            let mark = format!("open/mark{}", faults.len() + precious.len());
            self.root.put(&from.at(&mark), b"mark").must("put a mark");
            from.drain();
            eventually(10_000, "a mark arrives", || {
                self.root.stat(&to.at(&mark)).map_err(|errno| errno.to_string())
            });
            self.root.unlink(&to.at(&mark)).must("remove a mark");
            to.drain();
            eventually(10_000, "a mark goes", || match self.root.stat(&from.at(&mark)) {
                Err(Errno::NOENT) => Ok(()),
                other => Err(format!("{other:?}")),
            });
        }
        for (name, before) in precious {
            for (node, word) in [(&self.cluster.a, "A"), (&self.cluster.b, "B")] {
                let after = Entry::of(&mut self.root, &node.at(name));
                faults.extend(before.differs(&after, &format!("{name} at last on node {word}")));
            }
        }
    }
}

/// Everything about a file that another user may not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) bytes: Result<Vec<u8>, Errno>,
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: (i64, i64),
    pub(crate) xattrs: Vec<String>,
}

impl Entry {
    /// Reads a file; a missing one has no bytes.
    pub(crate) fn of(root: &mut SyscallProcess, path: &Path) -> Self {
        let bytes = root.get(path);
        let Ok(stat) = root.stat(path) else {
            return Self { bytes, mode: 0, owner: (0, 0), mtime: (0, 0), xattrs: Vec::new() };
        };
        let names = root.listxattr(path).unwrap_or_default();
        let mut xattrs: Vec<String> = names
            .into_iter()
            .map(|name| {
                let value = root.getxattr(path, &name).unwrap_or_default();
                format!("{name}={}", String::from_utf8_lossy(&value))
            })
            .collect();
        xattrs.sort();
        Self {
            bytes,
            mode: stat.mode & 0o7777,
            owner: (stat.uid, stat.gid),
            mtime: (stat.mtime_s, stat.mtime_ns),
            xattrs,
        }
    }

    /// Describes how a later state differs from this one.
    pub(crate) fn differs(&self, after: &Self, when: &str) -> Option<String> {
        let mut apart = Vec::new();
        if self.bytes != after.bytes {
            let start = |bytes: &Result<Vec<u8>, Errno>| {
                let shown = bytes.as_deref().map(|bytes| &bytes[..bytes.len().min(24)]);
                shown.map_or_else(ToString::to_string, |bytes| {
                    format!("{:?}", String::from_utf8_lossy(bytes))
                })
            };
            apart.push(format!("bytes {} became {}", start(&self.bytes), start(&after.bytes)));
        }
        if self.mode != after.mode {
            apart.push(format!("mode {:o} became {:o}", self.mode, after.mode));
        }
        if self.owner != after.owner {
            apart.push(format!("owner {:?} became {:?}", self.owner, after.owner));
        }
        if self.mtime != after.mtime {
            apart.push(format!("mtime {:?} became {:?}", self.mtime, after.mtime));
        }
        if self.xattrs != after.xattrs {
            apart.push(format!("attributes {:?} became {:?}", self.xattrs, after.xattrs));
        }
        (!apart.is_empty()).then(|| format!("{when}: {}", apart.join(", ")))
    }
}
