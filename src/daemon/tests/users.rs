//! Users of the modelled machine, and what the mode of a file lets each of them do.

use std::fmt;

use hearthfs_mount::Caller;

/// The permissions to read, to write, and to search or run.
pub(super) const R: u32 = 4;
pub(super) const W: u32 = 2;
pub(super) const X: u32 = 1;
/// The sticky bit and the set-group-id bit of a directory.
pub(super) const STICKY: u32 = 0o1000;
pub(super) const SETGID: u32 = 0o2000;

/// A user with its groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct User {
    pub(super) name: &'static str,
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// Supplementary groups.
    pub(super) groups: &'static [u32],
}

pub(super) const ROOT: User = User { name: "root", uid: 0, gid: 0, groups: &[] };
pub(super) const ANN: User = User { name: "ann", uid: 1001, gid: 2001, groups: &[] };
/// A user in the group of Ann's files, by a supplementary group.
pub(super) const BOB: User = User { name: "bob", uid: 1002, gid: 2002, groups: &[2001] };
/// A user in no group of the others.
pub(super) const EVE: User = User { name: "eve", uid: 1003, gid: 2003, groups: &[] };
/// All of them.
const ALL: [User; 4] = [ROOT, ANN, BOB, EVE];

/// The attributes that decide which users may read and change a file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mode: u32,
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{} {:04o}", self.uid, self.gid, self.mode)
    }
}

impl User {
    /// Returns the user behind a call.
    pub(super) fn of(caller: &Caller) -> Self {
        ALL.into_iter().find(|user| user.uid == caller.uid).expect("tests use only these users")
    }

    /// Returns the rights of a file that this user makes.
    pub(super) fn makes(&self, mode: u32) -> Rights {
        Rights { uid: self.uid, gid: self.gid, mode }
    }

    pub(super) fn has_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Reports whether a mode allows all of `want`.
    pub(super) fn may(&self, want: u32, of: Rights) -> bool {
        let class = if self.uid == of.uid {
            of.mode >> 6
        } else if self.has_group(of.gid) {
            of.mode >> 3
        } else {
            of.mode
        };
        self.uid == 0 || class & want == want
    }

    /// Reports whether it may change the mode.
    pub(super) fn owns(&self, of: Rights) -> bool {
        self.uid == 0 || self.uid == of.uid
    }

    /// Reports whether the sticky bit of a directory prevents this user from removing the name of a
    /// file.
    pub(super) fn sticks(&self, dir: Rights, of: Rights) -> bool {
        dir.mode & STICKY != 0 && !self.owns(of) && !self.owns(dir)
    }
}
