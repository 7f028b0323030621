//! Explains to a user why a name is a miss.
//!
//! Owns the order in which reasons are looked for, and which of them a caller gets: root and the
//! user of the mount get all of them, other users those that the mode bits of the directories let
//! them list. Must never count as a use. Must never ask the store more than once.

use std::time::Duration;

use hearthfs_mount::{Answer, Caller, Errno, Ino, Reply};

use super::filesystem::Filesystem;
use super::misses::Miss;
use super::rights::{MAY_LIST, MAY_SEARCH};
use super::seen::{Seen, seen_in};
use crate::name::TreePath;
use crate::namespace::{
    Explained, Fold, MISSES_NAME, MISSES_PREFIX, MISSES_TOLD_MAX, Missed, Misses, Reason, Register,
    WHY_PREFIX, is_edition, path_to_hex,
};

/// The longest time that an answer waits for the log of the store.
const ASK_LIMIT: Duration = Duration::from_secs(5);
/// The most bytes of an answer to a system call. The kernel takes 64 KiB.
const ANSWER_BYTES_MAX: usize = 60 << 10;

/// The caller.
#[derive(Clone, Copy, Debug)]
pub enum Asker {
    /// Root or the user of the mount, through the control socket.
    Trusted,
    /// A process, through the mount.
    Process(Caller),
}

/// The facts about a name, before they become an answer.
#[derive(Default)]
struct NameFacts {
    reason: Reason,
    of: Option<TreePath>,
    seen: Option<Seen>,
    removed: Option<crate::stamp::Stamp>,
}

impl Filesystem {
    /// Explains why a name is a miss. Looks at the log of the store once, together with other
    /// callers.
    pub async fn explain(&self, asker: Asker, path: TreePath) -> Explained {
        let rooms = &self.0.rooms;
        let was_known = rooms.ledger.read(|fold| fold.knows(&path));
        let fresh = rooms.freshness.ask_anew(ASK_LIMIT.min(self.0.rules.deadline)).await;
        self.keep_order();
        if let Asker::Process(caller) = asker
            && !self.is_trusted(&caller)
            && !self.may_reach(&caller, &path, MAY_LIST | MAY_SEARCH)
        {
            let now_ms = rooms.ledger.now_ms();
            return Explained { now_ms, reason: Reason::Denied, ..Explained::default() };
        }
        let last = self.0.observed.misses.last(|miss| miss.path == path);
        let last = last.filter(|miss| self.may_know(asker, miss));
        let known = self.known(asker, &path, fresh);
        let mut explained = self.explained_of(&path, &known, last, was_known);
        if explained.reason.is_absence() {
            let similar = self.similar(asker, &path).await;
            explained.similar_hex = similar.iter().map(path_to_hex).collect();
        }
        explained
    }

    /// Returns the remembered misses that the asker may see, the last one first. They can be
    /// limited to one user or one client.
    pub fn misses(&self, asker: Asker, uid: Option<u32>, client: Option<&str>) -> Misses {
        let mut found = self.0.observed.misses.those(|miss| uid.is_none_or(|uid| miss.uid == uid));
        if let Some(client) = client {
            found.retain(|miss| self.client_of(&miss.path).as_deref() == Some(client));
        }
        // Locks and statistics never leave a node, so their misses cost no compilation.
        found.retain(|miss| !self.stays_on_nodes(&miss.path) && self.may_know(asker, miss));
        let more = found.len().saturating_sub(MISSES_TOLD_MAX) as u64;
        found.truncate(MISSES_TOLD_MAX);
        let now = self.0.rooms.clock.mono();
        Misses { misses: found.iter().map(|miss| self.missed(miss, now)).collect(), more }
    }

    /// Answers the extended attributes that ask for an explanation; `None` for other names.
    pub(super) fn explained(
        &self,
        caller: &Caller,
        ino: Ino,
        name: &[u8],
    ) -> Option<Answer<Vec<u8>>> {
        let asker = Asker::Process(*caller);
        if let Some(below) = name.strip_prefix(WHY_PREFIX.as_bytes()) {
            let path = match self.path_below(caller, ino, below) {
                Ok(path) => path,
                Err(errno) => return Some(Err(errno).into()),
            };
            let this = self.clone();
            return Some(Answer::later(async move {
                let explained = this.explain(asker, path).await;
                serde_json::to_vec(&explained).map_err(|_| Errno::EIO)
            }));
        }
        let own = name == MISSES_NAME.as_bytes();
        let client = name.strip_prefix(MISSES_PREFIX.as_bytes());
        if !own && client.is_none() {
            return None;
        }
        let Ok(client) = client.map(std::str::from_utf8).transpose() else {
            return Some(Err(Errno::EINVAL).into());
        };
        let uid = own.then_some(caller.uid);
        Some(fitting(self.misses(asker, uid, client)).into())
    }

    /// Returns the path that the attribute asks about, in this directory.
    fn path_below(&self, caller: &Caller, ino: Ino, below: &[u8]) -> Reply<TreePath> {
        let dir = {
            let state = self.0.state.lock();
            self.may_use(&state, caller, ino, MAY_LIST)?;
            state.names.directory_path(ino).ok_or(Errno::ENOENT)?
        };
        let mut names = below.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
        let path =
            names.try_fold(dir, |dir, name| dir.join(name)).map_err(super::errno::of_path)?;
        if is_edition(&path) { Err(Errno::ENOENT) } else { Ok(path) }
    }

    /// Reports whether the asker may see a miss: the miss is its own, or the asker may list the
    /// directory.
    fn may_know(&self, asker: Asker, miss: &Miss) -> bool {
        match asker {
            Asker::Process(caller) if !self.is_trusted(&caller) => {
                let want = if miss.uid == caller.uid { MAY_SEARCH } else { MAY_LIST | MAY_SEARCH };
                self.may_reach(&caller, &miss.path, want)
            }
            _ => true,
        }
    }

    /// Reports whether the mode bits of the directories let a caller reach a name, and allow `want`
    /// in the last directory.
    pub(super) fn may_reach(&self, caller: &Caller, path: &TreePath, want: u32) -> bool {
        let mut dirs = Vec::new();
        let mut at = path.parent();
        while let Some(dir) = at {
            at = dir.parent();
            dirs.push(dir);
        }
        dirs.into_iter().enumerate().all(|(above, dir)| {
            let want = if above == 0 { want } else { MAY_SEARCH };
            let entry = self.seen(&dir).map(|seen| seen.entry);
            let entry = entry.or_else(|| dir.is_root().then(|| self.0.rules.root.clone()));
            // A path that is no directory any more has no names to hide.
            let Some(attrs) = entry.map(|entry| entry.attrs) else { return true };
            self.mode_permits(caller, (attrs.uid, attrs.gid, attrs.mode), want).is_ok()
        })
    }

    fn client_of(&self, path: &TreePath) -> Option<String> {
        let clients = self.0.rules.profiles.clients(path);
        clients.first().map(|(profile, _)| profile.name.clone())
    }

    fn missed(&self, miss: &Miss, now: Duration) -> Missed {
        Missed {
            path_hex: path_to_hex(&miss.path),
            ago_ms: now.saturating_sub(miss.at).as_millis() as u64,
            times: miss.times,
            uid: miss.uid,
            client: self.client_of(&miss.path),
            reason: miss.reason,
        }
    }

    /// Collects the facts about a name as they are now. `fresh` means that everything in the log is
    /// known.
    fn known(&self, asker: Asker, path: &TreePath, fresh: bool) -> NameFacts {
        let ledger = &self.0.rooms.ledger;
        let mut known = ledger.read(|fold| self.known_in(fold, path));
        if let Some(seen) = &known.seen {
            known.reason = match (known.reason, seen.entry.content()) {
                (Reason::There, _) => self.why_not_read(asker, seen),
                (Reason::Evicted, Some((digest, _))) => self.loss(&digest),
                (reason, _) => reason,
            };
        } else if known.reason == Reason::Never {
            known.reason = match () {
                () if self.is_being_written(path) => Reason::Writing,
                () if self.stays_on_nodes(path) => Reason::NodeLocal,
                () if !fresh => Reason::Unsure,
                () => Reason::Never,
            };
        }
        known
    }

    /// Looks the name up in the namespace.
    fn known_in(&self, fold: &Fold, path: &TreePath) -> NameFacts {
        let ledger = &self.0.rooms.ledger;
        if let Some(seen) = seen_in(fold, path) {
            let changed_ms = seen.stamp.map(|_| seen.changed_ms);
            let content = seen.entry.content();
            let reason = match content.filter(|_| ledger.hidden(&seen.entry)) {
                // This entry is examined more closely after the lock of the namespace is released.
                Some(_) => Reason::Evicted,
                None if ledger.living_left(fold, path, &seen.entry, changed_ms).is_none() => {
                    Reason::Expired
                }
                None => Reason::There,
            };
            return NameFacts { reason, seen: Some(seen), ..NameFacts::default() };
        }
        if path.is_root() {
            return NameFacts { reason: Reason::There, ..NameFacts::default() };
        }
        let mut at = Some(path.clone());
        while let Some(here) = at {
            match fold.register(&here) {
                // Where an entry exists here, a directory above it hides it: the loop looks at that
                // next.
                Some(register) if register.entry.is_none() && !fold.is_directory(&here) => {
                    let of = (here != *path).then_some(here);
                    let removed = Some(register.stamp);
                    return NameFacts {
                        reason: Reason::Removed,
                        of,
                        removed,
                        ..NameFacts::default()
                    };
                }
                Some(Register { entry: Some(entry), .. })
                    if here != *path && !entry.is_directory() =>
                {
                    let reason = Reason::NoDirectory;
                    return NameFacts { reason, of: Some(here), ..NameFacts::default() };
                }
                _ => {}
            }
            at = here.parent();
        }
        NameFacts { reason: Reason::Never, ..NameFacts::default() }
    }

    /// Returns why a caller cannot get the bytes of an entry that exists.
    fn why_not_read(&self, asker: Asker, seen: &Seen) -> Reason {
        let rooms = &self.0.rooms;
        let attrs = &seen.entry.attrs;
        if let Asker::Process(caller) = asker
            && self.mode_permits(&caller, (attrs.uid, attrs.gid, attrs.mode), MAY_LIST).is_err()
        {
            return Reason::Denied;
        }
        let content = seen
            .entry
            .content()
            .filter(|(digest, size)| *size > 0 && !rooms.blobs.contains(digest));
        match content {
            Some(_) if rooms.freshness.is_down() => Reason::StoreDown,
            Some(_) if rooms.blobs.is_disk_full() => Reason::NoRoom,
            _ => Reason::There,
        }
    }

    fn is_being_written(&self, path: &TreePath) -> bool {
        let state = self.0.state.lock();
        state.names.spot_of(path).is_some_and(|spot| state.newest_private(&spot).is_some())
    }

    fn stays_on_nodes(&self, path: &TreePath) -> bool {
        self.0.rules.profiles.classify(path).kind.stays_here()
    }

    /// Converts the facts to the form of the answer.
    fn told_of(&self, explained: &mut Explained, known: &NameFacts) {
        let ledger = &self.0.rooms.ledger;
        let stamp = known.removed.or_else(|| known.seen.as_ref().and_then(|seen| seen.stamp));
        if let Some(stamp) = stamp {
            explained.node = Some(stamp.node.to_string());
            explained.own = stamp.node == ledger.node();
            explained.changed_ms = Some(stamp.ms);
        }
        explained.of_hex = known.of.as_ref().map(path_to_hex);
        let content = known.seen.as_ref().and_then(|seen| seen.entry.content());
        explained.is_remote = content
            .filter(|_| self.0.rules.shared)
            .map(|(digest, _)| ledger.location(&digest).is_some() && !ledger.is_unsent(&digest));
    }

    fn explained_of(
        &self,
        path: &TreePath,
        known: &NameFacts,
        last: Option<Miss>,
        was_known: bool,
    ) -> Explained {
        let rooms = &self.0.rooms;
        let facts = self.facts_of_path(path);
        let mut explained = Explained {
            now_ms: rooms.ledger.now_ms(),
            reason: known.reason,
            shared: self.0.rules.sends,
            client: facts.client,
            kind: facts.kind,
            ..Explained::default()
        };
        self.told_of(&mut explained, known);
        let now = rooms.clock.mono();
        if let Some(miss) = last {
            let asked_ms =
                explained.now_ms.saturating_sub(now.saturating_sub(miss.at).as_millis() as u64);
            let came_later = matches!(miss.reason, Reason::Never | Reason::Unsure)
                && explained.changed_ms.is_some_and(|changed_ms| changed_ms <= asked_ms);
            if explained.reason == Reason::There && !explained.own && came_later {
                explained.reason = Reason::Late;
            }
            if explained.reason == Reason::There && miss.reason == Reason::Incomplete {
                explained.reason = Reason::Incomplete;
            }
            explained.last = Some(self.missed(&miss, now));
        }
        let came_now = !was_known && explained.node.is_some() && !explained.own;
        if explained.reason == Reason::There && came_now {
            explained.reason = Reason::Late;
        }
        explained
    }
}

/// Writes misses as JSON, limited to the size that the kernel takes.
fn fitting(mut misses: Misses) -> Reply<Vec<u8>> {
    loop {
        let text = serde_json::to_vec(&misses).map_err(|_| Errno::EIO)?;
        if text.len() <= ANSWER_BYTES_MAX || misses.misses.is_empty() {
            return Ok(text);
        }
        let half = misses.misses.len() / 2;
        misses.more += (misses.misses.len() - half) as u64;
        misses.misses.truncate(half);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_fits_what_the_kernel_takes() {
        let miss = Missed { path_hex: "61".repeat(2000), ..Missed::default() };
        let misses = Misses { misses: vec![miss; MISSES_TOLD_MAX], more: 7 };
        let text = fitting(misses).expect("JSON");
        assert!(text.len() <= ANSWER_BYTES_MAX);
        let told: Misses = serde_json::from_slice(&text).expect("JSON");
        assert!(!told.misses.is_empty());
        assert_eq!(told.more + told.misses.len() as u64, MISSES_TOLD_MAX as u64 + 7);
    }
}
