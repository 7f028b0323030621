//! Facts about an entry beside its attributes, for a caller that may read the entry.
//!
//! The kernel finds the inode and checks the caller's rights, as for any call. Owns which facts the
//! caller gets: those about a content also describe other users' files, so only root and the user
//! of the mount get them. Must never count as a use of the entry.
//!
//! Keeps P14 isolation.

use std::time::Duration;

use hearthfs_mount::{Caller, Errno, Ino, Reply};

use super::filesystem::Filesystem;
use super::inode::{Inode, InodeKind, Published};
use super::rights::MAY_LIST;
use super::seen::{Seen, seen_in};
use super::state::State;
use crate::name::TreePath;
use crate::namespace::{BytesPlace, ContentFacts, Facts, FileKind, RuleKind};

/// An age longer than this is shown as no limit.
const ENDLESS: Duration = Duration::from_hours(24 * 365 * 100);

impl Filesystem {
    /// Returns the facts about an inode as JSON; `ENODATA` for an inode that has lost its name.
    pub(super) fn facts(&self, caller: &Caller, ino: Ino) -> Reply<Vec<u8>> {
        let (path, held, is_live) = {
            let state = self.0.state.lock();
            let inode = state.names.inode(ino).ok_or(Errno::ESTALE)?;
            let path = path_of(&state, ino, inode).ok_or(Errno::ENODATA)?;
            let held = match &inode.node {
                InodeKind::Directory => {
                    self.may_use(&state, caller, ino, MAY_LIST)?;
                    self.0.rooms.ledger.read(|fold| seen_in(fold, &path)).map(Seen::published)
                }
                InodeKind::Entry(published) | InodeKind::Reserved(published) => {
                    Some(published.clone())
                }
                InodeKind::Live(id) => {
                    let version = state.lives.get(*id).and_then(|live| live.version());
                    version.map(|version| version.published.clone())
                }
                InodeKind::Gone(_) => return Err(Errno::ENODATA),
                InodeKind::Stale(_) => return Err(Errno::ESTALE),
            };
            (path, held, inode.live().is_some())
        };
        // If the file has several names, they may belong to several clients, and it is unknown
        // which one the caller means.
        let is_linked = held.as_ref().is_some_and(|held| held.entry.link.is_some());
        let mut facts = if is_linked { Facts::default() } else { self.facts_of_path(&path) };
        facts.now_ms = self.0.rooms.ledger.now_ms();
        facts.shared = self.0.rules.sends;
        match held {
            Some(held) => self.add_version(&mut facts, &path, &held, self.is_trusted(caller)),
            None if is_live => facts.bytes = Some(BytesPlace::Writing),
            None => {}
        }
        serde_json::to_vec(&facts).map_err(|_| Errno::EIO)
    }

    /// Reports whether a caller may see facts that also describe other users' files.
    pub(super) fn is_trusted(&self, caller: &Caller) -> bool {
        caller.uid == 0 || caller.uid == self.0.rules.owner
    }

    pub(super) fn facts_of_path(&self, path: &TreePath) -> Facts {
        let profiles = &self.0.rules.profiles;
        let class = profiles.classify(path);
        let (kind, is_entry) = match class.kind {
            FileKind::Ordinary => (None, false),
            FileKind::Temporary => (Some(RuleKind::Temporary), false),
            FileKind::NodeLocal => (Some(RuleKind::NodeLocal), false),
            FileKind::Lock(_) => (Some(RuleKind::Lock), false),
            FileKind::WriteOnce => (Some(RuleKind::WriteOnce), false),
            FileKind::Unit(part) => (Some(RuleKind::Unit), part.is_entry),
        };
        let client = profiles.clients(path).first().map(|(profile, _)| profile.name.clone());
        let kind = kind.map(|kind| kind.word().to_owned());
        Facts { client, kind, is_entry, ..Facts::default() }
    }

    fn add_version(&self, facts: &mut Facts, path: &TreePath, held: &Published, trusted: bool) {
        let (ledger, blobs) = (&self.0.rooms.ledger, &self.0.rooms.blobs);
        if let Some(stamp) = held.stamp {
            facts.node = Some(stamp.node.to_string());
            facts.own = stamp.node == ledger.node();
            facts.written_ms = Some(stamp.ms);
        }
        let Some((digest, _)) = held.entry.content() else { return };
        facts.digest = Some(digest.to_string());
        let is_local = blobs.contains(&digest);
        facts.bytes = Some(if is_local { BytesPlace::Local } else { BytesPlace::Remote });
        if trusted {
            let changed = held.stamp.map(|_| held.changed_ms);
            let (stored_ms, left) = ledger.read(|fold| {
                (fold.stored_ms(&digest), ledger.living_left(fold, path, &held.entry, changed))
            });
            let left = left.filter(|left| *left < ENDLESS);
            facts.content = Some(ContentFacts {
                used_s: blobs.last_used(&digest),
                stored_ms,
                expires_ms: left.map(|left| facts.now_ms + left.as_millis() as u64),
            });
        }
    }
}

/// Returns the path of an inode that has a name.
fn path_of(state: &State, ino: Ino, inode: &Inode) -> Option<TreePath> {
    match inode.place() {
        Some(spot) => state.names.path_of(spot),
        None => (ino == Ino::ROOT).then(TreePath::root),
    }
}
