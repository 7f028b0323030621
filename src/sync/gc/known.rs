//! What is known of a store before its objects are judged.
//!
//! Owns what is in use. Must never treat something as unused because it could not be read.

use std::collections::HashSet;
use std::fs::File;

use futures::StreamExt as _;
use futures::stream;

use super::report::GcProgress;
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Result};
use crate::name::TreePath;
use crate::namespace::{Age, BlobPlace, Commit, Fold, Site};
use crate::remote::{LOG_ITEMS_MAX, LogItem, Remote, decode_commit_named, keys};
use crate::stamp::{NodeId, Stamp};
use crate::sync::checkpoint_copy::read_checkpoint;
use crate::sync::covers::{Covers, floor_ms};
use crate::sync::draft::LogView;
use crate::sync::read_fault::{ReadFault, read_again};
use crate::task;

/// How many commits are read at once.
const FETCHES_AT_ONCE: usize = 8;
/// How often a request is made that gets no answer.
const TRIES: u32 = 3;
/// The pause between these attempts.
const WAIT: std::time::Duration = std::time::Duration::from_millis(200);

/// Objects that entries use.
#[derive(Debug, Default)]
pub(super) struct LiveObjects {
    pub(super) packs: HashSet<Stamp>,
    pub(super) blobs: HashSet<Digest>,
    /// Commits that hold contents in use.
    pub(super) commits: HashSet<Stamp>,
}

impl LiveObjects {
    fn add_used(&mut self, fold: &Fold) {
        for (digest, location) in fold.locations() {
            if !fold.uses(&digest) {
                continue;
            }
            match &location.site {
                Site::Object => drop(self.blobs.insert(digest)),
                Site::Pack { pack, .. } => self.packs.extend(keys::pack_stamp(pack)),
                Site::Inline { commit } => self.commits.extend(keys::commit_stamp(commit)),
            }
        }
    }

    /// A node may be about to rely on anything that a commit names.
    fn add_named(&mut self, commit: &Commit) {
        self.packs.extend(commit.packs.iter().filter_map(|name| keys::pack_stamp(name)));
        let objects = commit.blobs.iter().filter(|blob| blob.place == BlobPlace::Object);
        self.blobs.extend(objects.map(|blob| blob.digest));
        self.commits.insert(commit.stamp);
    }
}

/// The knowledge about a store.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The latest complete checkpoint, with the commits in it.
    pub(super) latest: Option<(Stamp, HashSet<Stamp>)>,
    /// The latest complete checkpoint that is old enough for all nodes to know it.
    pub(super) settled: Option<(Stamp, HashSet<Stamp>)>,
    /// Checkpoints that are older than the settled one.
    pub(super) superseded: HashSet<Stamp>,
    pub(super) live: LiveObjects,
    /// The time up to which the settled checkpoint covers the log; 0 without one.
    pub(super) floor_ms: u64,
    /// Commits past their age that are in no checkpoint and still have an effect.
    pub(super) speaking: HashSet<Stamp>,
    /// Whether contents that no entry uses may be deleted.
    pub(super) certain: bool,
    pub(super) notes: Vec<String>,
}

impl Known {
    /// Reads checkpoints and log; `now_ms` is the store's time before the reads.
    pub(super) async fn read(
        remote: &Remote,
        age: Age,
        now_ms: u64,
        grace_ms: u64,
        progress: &mut impl FnMut(GcProgress),
    ) -> Result<Self> {
        let mut known = Self::default();
        progress(GcProgress::Checkpoint);
        let draft = known.read_checkpoints(remote, now_ms.saturating_sub(grace_ms)).await?;
        // After the checkpoints: commits that they cover may be deleted at any time, later ones may
        // not. Earlier ones are in the settled checkpoint, or came very late.
        let log = list_log(remote, known.floor_ms.saturating_sub(grace_ms)).await?;
        let draft = known.read_log(remote, age, now_ms, log, draft, progress).await?;
        if !draft.log().missing().is_empty() {
            known.certain = false;
            known.notes.push(
                "the log lacks commits that are in no checkpoint: objects that no entry uses stay"
                    .to_owned(),
            );
        }
        known.live.add_used(draft.fold());
        Ok(known)
    }

    async fn read_checkpoints(&mut self, remote: &Remote, settled_ms: u64) -> Result<LogView> {
        let items = patiently(async || Covers::list(remote).await).await?.checkpoints;
        let mut draft = None;
        for item in &items {
            let stamp = keys::checkpoint_stamp(&item.name).expect("only checkpoints are listed");
            if self.settled.is_some() {
                self.superseded.insert(stamp);
                continue;
            }
            let is_settled = item.stored_ms <= settled_ms;
            if self.latest.is_some() && !is_settled {
                continue;
            }
            let Some(read) = self.read_checkpoint(remote, item, is_settled).await? else {
                continue;
            };
            if self.latest.is_none() {
                self.latest = Some((stamp, read.log().names().clone()));
            }
            if is_settled {
                self.floor_ms = floor_ms(item);
                self.settled = Some((stamp, read.log().names().clone()));
                self.live.add_used(read.fold());
                draft = Some(read);
            }
        }
        self.certain = draft.is_some();
        if draft.is_none() {
            self.notes.push(
                "no complete checkpoint is older than the grace time: only what is past the expiry \
                 is deleted"
                    .to_owned(),
            );
        }
        Ok(draft.unwrap_or_default())
    }

    /// Reads a checkpoint, only its commits unless everything is needed; `None` if it is unusable.
    async fn read_checkpoint(
        &mut self,
        remote: &Remote,
        item: &LogItem,
        whole: bool,
    ) -> Result<Option<LogView>> {
        let ask = async || fetch_checkpoint(remote, &item.name, whole).await;
        let error = match read_again(|| patiently(&ask)).await {
            Ok(draft) => return Ok(Some(draft)),
            Err(error) => error,
        };
        match ReadFault::of(&error) {
            ReadFault::Gone => Ok(None),
            ReadFault::Damaged | ReadFault::Newer => {
                let (name, error) = (&item.name, error.chain());
                self.notes.push(format!("checkpoint {name} cannot be used: {error}"));
                Ok(None)
            }
            ReadFault::Refused | ReadFault::Passing | ReadFault::Ours => Err(error),
        }
    }

    /// Folds those commits of the log that the settled checkpoint does not have.
    async fn read_log(
        &mut self,
        remote: &Remote,
        age: Age,
        now_ms: u64,
        log: Vec<LogItem>,
        mut draft: LogView,
        progress: &mut impl FnMut(GcProgress),
    ) -> Result<LogView> {
        let later = log.into_iter().filter_map(|item| {
            let stamp = keys::commit_stamp(&item.name)?;
            (!draft.has(&stamp)).then_some((item, stamp))
        });
        let later: Vec<(LogItem, Stamp)> = later.collect();
        let (mut done, all, mut unread, mut gone) = (0, later.len() as u64, 0_u64, 0_u64);
        let mut old: Vec<(Stamp, Vec<(TreePath, Stamp)>)> = Vec::new();
        let fetches = later
            .into_iter()
            .map(|(item, stamp)| async move { (item, stamp, fetch_commit(remote, stamp).await) });
        let mut reading = stream::iter(fetches).buffered(FETCHES_AT_ONCE);
        while let Some((item, stamp, got)) = reading.next().await {
            done += 1;
            progress(GcProgress::Log(done, all));
            let commit = match got {
                Ok(commit) => commit,
                Err(error) => match ReadFault::of(&error) {
                    ReadFault::Damaged | ReadFault::Newer => {
                        unread += 1;
                        continue;
                    }
                    ReadFault::Gone => {
                        // An expired commit has no effect any more, and a lifecycle rule may delete
                        // it at any time.
                        gone += u64::from(age.left(item.stored_ms, now_ms).is_some());
                        continue;
                    }
                    ReadFault::Refused | ReadFault::Passing | ReadFault::Ours => return Err(error),
                },
            };
            self.live.add_named(&commit);
            let covered = self.latest.as_ref().is_some_and(|(_, commits)| commits.contains(&stamp));
            if !covered && is_over(age, item.stored_ms, now_ms) {
                let said = commit.changes.iter().map(|c| (c.path.clone(), c.stamp)).collect();
                old.push((stamp, said));
            }
            draft.apply(&commit);
        }
        if unread > 0 {
            self.certain = false;
            self.notes.push(format!(
                "{unread} commits cannot be read (damaged, or of a newer hearthfs): objects that no entry \
                 uses stay"
            ));
        }
        if gone > 0 {
            // A checkpoint that we have not seen has them, and we do not know which contents it
            // uses.
            self.certain = false;
            self.notes.push(format!(
                "another collection deleted {gone} commits while the log was read: objects that no entry uses \
                 stay until the next collection"
            ));
        }
        let speaks = |(path, stamp): &(TreePath, Stamp)| {
            draft.fold().register(path).is_some_and(|register| {
                let said = register.stamp == *stamp || register.attr_stamp == Some(*stamp);
                let over = age.is_tombstone_over(register.stamp.ms, now_ms);
                said && (register.entry.is_some() || !over)
            })
        };
        let speaking = old.into_iter().filter(|(_, said)| said.iter().any(speaks));
        self.speaking = speaking.map(|(stamp, _)| stamp).collect();
        Ok(draft)
    }

    /// Reports whether every checkpoint that a node could start from has a commit.
    pub(super) fn covers(&self, commit: &Stamp) -> bool {
        let has = |one: &Option<(Stamp, HashSet<Stamp>)>| {
            one.as_ref().is_some_and(|(_, commits)| commits.contains(commit))
        };
        has(&self.settled) && has(&self.latest)
    }
}

/// Reports whether something that was stored at `stored_ms` is so long past its age that no node
/// shows it, even with a wrong clock.
pub(super) fn is_over(age: Age, stored_ms: u64, now_ms: u64) -> bool {
    age.left(stored_ms, now_ms.saturating_sub(age.grace_ms())).is_none()
}

/// Retries a request that gets no answer.
pub(super) async fn patiently<T>(ask: impl AsyncFn() -> Result<T>) -> Result<T> {
    for _ in 1..TRIES {
        match ask().await {
            Err(error) if ReadFault::of(&error) == ReadFault::Passing => {
                clock::sleep(WAIT).await;
            }
            answer => return answer,
        }
    }
    ask().await
}

/// Lists the log from a time on.
async fn list_log(remote: &Remote, from_ms: u64) -> Result<Vec<LogItem>> {
    let first = Stamp { ms: from_ms, counter: 0, node: NodeId(0) };
    let first = (from_ms > 0).then(|| keys::commit_name(&first));
    let mut log: Vec<LogItem> = Vec::new();
    loop {
        let after = log.last().map(|item| item.name.clone()).or_else(|| first.clone());
        let page = patiently(async || remote.list_log(after.as_deref()).await).await?;
        let full = page.len() >= LOG_ITEMS_MAX;
        log.extend(page);
        if !full {
            return Ok(log);
        }
    }
}

async fn fetch_checkpoint(remote: &Remote, name: &str, whole: bool) -> Result<LogView> {
    let make = || nameless_file().map(|file| (file, ()));
    read_checkpoint(remote, name, make, move |from| {
        if whole { LogView::read(from).map(|read| read.1) } else { LogView::read_names(from) }
    })
    .await
}

/// Creates a file that is deleted when its handle is closed.
fn nameless_file() -> Result<File> {
    let path = std::env::temp_dir().join(format!("hearthfs-gc-{:016x}", task::random_u64()));
    let failed = |error| Error::io(format!("make {}", path.display()), error);
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.map_err(failed)?;
    std::fs::remove_file(&path).map_err(failed)?;
    Ok(file)
}

/// Reads a commit.
async fn fetch_commit(remote: &Remote, stamp: Stamp) -> Result<Commit> {
    let name = keys::commit_name(&stamp);
    read_again(|| async {
        let bytes = patiently(async || remote.get_commit(&name).await).await?;
        task::blocking(move || decode_commit_named(&bytes, &stamp)).await
    })
    .await
}
