//! Catching up by a checkpoint: with nothing to start from, or after a long absence.
//!
//! Owns the choice of the checkpoint. Must never put a checkpoint into the place of a namespace that has
//! more: what came after it is folded into it first. After a long absence the namespace is made anew and
//! not added to, because what others have removed may be forgotten by now, and would come back.

use std::io::BufReader;

use futures::StreamExt as _;
use futures::stream;

use super::{FETCHES_AT_ONCE, Follower, Got, LOOK_BACK_MS, READ_TRIES, READ_WAIT, UNUSABLE_MAX};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::{LogItem, Remote, keys};
use crate::stamp::Stamp;
use crate::sync::checkpointer::{LOG_GRACE, latest_first};
use crate::sync::draft::Draft;
use crate::task;

/// Checkpoints that are tried, latest first, before the log alone has to do.
const CHECKPOINTS_TRIED_MAX: usize = 3;
/// Bytes of a checkpoint that are read at once.
const READ_BYTES: usize = 256 << 10;

impl Follower {
    /// Takes over the latest checkpoint if this node knows nothing, or was away for so long that what
    /// it has not read may be gone from the log. So it is, too, with a namespace of another store than the one
    /// that was made at `made_ms`: nothing of it is there.
    pub(super) async fn catch_up(&self, remote: &Remote, made_ms: u64) -> Result<()> {
        let ledger = &self.0.ledger;
        let nothing = ledger.knows_nothing();
        let listed_ms = ledger.listed_ms();
        let grace_ms = LOG_GRACE.as_millis() as u64;
        let away = ledger.now_ms().saturating_sub(listed_ms) > grace_ms / 2;
        // Without a checkpoint that says more, only what the log still has is sure then.
        let other = ledger.is_of_another_store(made_ms);
        let lost = ledger.may_lack() || other;
        if !away && !lost && (self.0.state.lock().caught_up || !nothing) {
            return Ok(());
        }
        let remote = self.reaching(remote);
        let mut items = remote.list_checkpoints().await?;
        latest_first(&mut items);
        for item in items.iter().take(CHECKPOINTS_TRIED_MAX) {
            let made_ms = item.stored_ms.max(item_stamp(item).ms);
            if !nothing && made_ms.saturating_add(LOOK_BACK_MS) < listed_ms {
                // All of it was in the log when that was listed.
                break;
            }
            let Some(mut draft) = self.fetch_checkpoint(&remote, item).await? else { continue };
            if nothing || ledger.lacks(&draft) {
                if !ledger.read(crate::namespace::Fold::is_empty) {
                    draft = self.complete(&remote, draft).await?;
                }
                self.adopt(draft, Some(&item.name)).await;
                self.0.state.lock().caught_up = true;
                self.note_store(&remote, made_ms);
                return Ok(());
            }
            break;
        }
        if lost {
            let draft = self.complete(&remote, Draft::new()).await?;
            self.adopt(draft, None).await;
        }
        self.note_store(&remote, made_ms);
        self.0.state.lock().caught_up = true;
        Ok(())
    }

    /// Notes that the namespace is of the store that was made at `made_ms`, and says so if it was not.
    fn note_store(&self, remote: &Remote, made_ms: u64) {
        if self.0.ledger.is_of_another_store(made_ms) {
            tracing::warn!(
                remote = %remote.url(),
                "this cache directory was used with another store, or what was there is gone: what this node \
                 knew of it is forgotten; what it has not sent yet goes to this one"
            );
        }
        self.0.ledger.note_store(made_ms);
    }

    async fn adopt(&self, draft: Draft, name: Option<&str>) {
        let ledger = self.0.ledger.clone();
        let (commits, entries) = (draft.seen.len(), draft.fold.len());
        task::blocking(move || ledger.adopt(draft)).await;
        match name {
            Some(name) => tracing::info!(name, commits, entries, "started from a checkpoint"),
            None => tracing::info!(commits, entries, "started from the log, after long absence"),
        }
        let mut state = self.0.state.lock();
        (state.whole, state.watermark_ms) = (None, 0);
    }

    /// Reads a checkpoint; `None` if it cannot be used.
    async fn fetch_checkpoint(&self, remote: &Remote, item: &LogItem) -> Result<Option<Draft>> {
        let stamp = item_stamp(item);
        if self.0.state.lock().bad_checkpoints.contains(&stamp) {
            return Ok(None);
        }
        let mut attempt = 1;
        let error = loop {
            let error = match self.read_checkpoint(remote, item).await {
                Ok(draft) => return Ok(Some(draft)),
                Err(error) => error,
            };
            match error.kind() {
                Kind::NotFound => return Ok(None),
                Kind::Invalid => break error,
                // It may have been a bad read.
                Kind::Corrupt if attempt >= READ_TRIES => break error,
                Kind::Corrupt => {}
                _ => return Err(error),
            }
            attempt += 1;
            clock::sleep(READ_WAIT).await;
        };
        let mut state = self.0.state.lock();
        if state.bad_checkpoints.len() < UNUSABLE_MAX {
            state.bad_checkpoints.insert(stamp);
        }
        drop(state);
        tracing::warn!(
            name = %item.name, error = %error.chain(),
            "a checkpoint cannot be used; the one before it is, or the whole log; if it was \
             written by a newer hearthfs, bring this node up to date"
        );
        Ok(None)
    }

    async fn read_checkpoint(&self, remote: &Remote, item: &LogItem) -> Result<Draft> {
        let staging = self.0.ledger.staging().clone();
        let (file, staged) = task::blocking(move || staging.create()).await?;
        let copy = file.try_clone().map_err(|e| Error::io("open a checkpoint once more", e))?;
        remote.get_checkpoint(&item.name, copy).await?;
        let stamp = item_stamp(item);
        task::blocking(move || {
            let read = Draft::read(BufReader::with_capacity(READ_BYTES, file));
            drop(staged);
            let (head, draft) = read?;
            if head.stamp != stamp {
                return Err(Error::new(Kind::Corrupt, "a checkpoint has the name of another"));
            }
            Ok(draft)
        })
        .await
    }

    /// Folds into a draft what the log has beyond it.
    async fn complete(&self, remote: &Remote, mut draft: Draft) -> Result<Draft> {
        let names = self.list(remote, None).await?;
        let wanted = names.into_iter().filter(|stamp| !draft.seen.contains(stamp));
        let wanted: Vec<Stamp> = wanted.collect();
        let mut reading =
            stream::iter(wanted).map(|stamp| self.read(remote, stamp)).buffered(FETCHES_AT_ONCE);
        while let Some((stamp, got)) = reading.next().await {
            match got {
                Got::Commit(commit) => {
                    draft = task::blocking(move || {
                        draft.apply(&commit);
                        draft
                    })
                    .await;
                }
                Got::Gone => {}
                Got::Later => {
                    let op = "a commit that follows the checkpoint cannot be read now";
                    return Err(Error::new(Kind::Unavailable, op));
                }
                Got::Unusable(why, error) => self.give_up(stamp, why, &error),
            }
        }
        Ok(draft)
    }
}

fn item_stamp(item: &LogItem) -> Stamp {
    keys::checkpoint_stamp(&item.name).expect("only such names are listed")
}
