//! The log: the commits of all nodes, by name.
//!
//! Owns listing them in bounded memory, and reading and writing one. Must never decide which of them apply.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::ObjectStore as _;
use object_store::path::Path;

use super::call::Call;
use super::codec::COMMIT_BYTES_MAX;
use super::keys;
use super::store::Remote;
use super::trouble::Trouble;
use super::verb::Verb;
use crate::clock;
use crate::error::Result;
use crate::stamp::Stamp;

/// The most commits that one list of a bucket returns. If a list is this long, more may follow.
pub const LOG_ITEMS_MAX: usize = 2000;
/// The same for a shared directory, where each list reads the whole folder.
const DIR_ITEMS_MAX: usize = 10 * LOG_ITEMS_MAX;
/// How long a whole list may take, however many pages it has.
const LIST_TIME_MAX: Duration = Duration::from_mins(2);
/// Keys on one page of a list. Used to count pages if the store has none.
const PAGE_ITEMS: usize = 1000;

/// One object of the log, or a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogItem {
    /// Its name, as `get_commit` and `get_checkpoint` take it.
    pub name: String,
    /// Bytes of the object.
    pub size: u64,
    /// When it was stored, in milliseconds since the Unix epoch by the store's clock.
    pub stored_ms: u64,
}

/// Which names of a folder to list.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// Names that come after this one.
    pub(super) after: Option<&'a str>,
    /// At most so many, the first ones.
    pub(super) most: usize,
    /// Parses the stamp of a name; names without one are not ours.
    pub(super) stamp_of: fn(&str) -> Option<Stamp>,
}

impl Remote {
    /// Lists the commits whose names come after `after`, in order of their names: all of them, or the first
    /// [`LOG_ITEMS_MAX`] at least.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `TimedOut` while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn list_log(&self, after: Option<&str>) -> Result<Vec<LogItem>> {
        let prefix = self.inner.keys.log();
        let is_dir = self.inner.requester.backend.dir().is_some();
        let most = if is_dir { DIR_ITEMS_MAX } else { LOG_ITEMS_MAX };
        let wanted = Wanted { after, most, stamp_of: keys::commit_stamp };
        self.list_named(prefix, "list the log", wanted).await
    }

    /// Lists the wanted objects below `prefix`, in the order of their names.
    pub(super) async fn list_named(
        &self,
        prefix: Path,
        op: &str,
        wanted: Wanted<'_>,
    ) -> Result<Vec<LogItem>> {
        let Wanted { after, most, stamp_of } = wanted;
        self.ready(self.lane).await?;
        let offset = after.map(|after| prefix.clone().join(after));
        let (deadline, inner) = (self.inner.requester.deadline, &self.inner);
        let call = Call { limit: LIST_TIME_MAX, ..self.call(Verb::List, op) };
        inner
            .requester
            .call(call, |store| async move {
                let mut stream = match &offset {
                    Some(offset) => store.list_with_offset(Some(&prefix), offset),
                    None => store.list(Some(&prefix)),
                };
                // Stores may list unsorted, include names before the offset, and repeat names.
                // Keeps the first names in bounded memory, whatever the order. If all names so far
                // came in order, the wanted ones came first.
                let (mut first, mut seen) = (BTreeMap::new(), 0);
                let mut sorted = inner.requester.backend.dir().is_none();
                loop {
                    let next = clock::within(deadline, stream.next()).await;
                    let Some(next) = next else {
                        return Err(Trouble::timed_out("no page of the list came".into()).into());
                    };
                    let Some(meta) = next else { break };
                    let meta = meta?;
                    seen += 1;
                    if seen % PAGE_ITEMS == 0 && !inner.requester.backend.counts_itself() {
                        inner.requester.meter.request(Verb::List);
                    }
                    let Some(item) = log_item(&meta, stamp_of) else {
                        self.say_foreign(&meta.location);
                        continue;
                    };
                    if after.is_some_and(|after| item.name.as_str() <= after) {
                        continue;
                    }
                    inner.time.note_taken(item.stored_ms);
                    sorted &= first.last_key_value().is_none_or(|(last, _)| *last < item.name);
                    first.insert(item.name.clone(), item);
                    if first.len() >= most && sorted {
                        break;
                    }
                    if first.len() > most {
                        first.pop_last();
                    }
                }
                Ok(first.into_values().collect())
            })
            .await
    }

    /// Reads a commit.
    ///
    /// # Errors
    ///
    /// `NotFound` when it is gone, `Invalid` for what is no name of a commit; `Unavailable` or `TimedOut` while the
    /// store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn get_commit(&self, name: &str) -> Result<Bytes> {
        let key = self.inner.keys.commit(name)?;
        self.read(key, None, COMMIT_BYTES_MAX as u64).await
    }

    /// Writes a commit. Writing it again is harmless.
    ///
    /// # Errors
    ///
    /// `Invalid` for what is no name of a commit; `Denied` on a read-only mount; otherwise `Unavailable` or `TimedOut`
    /// while the store does not answer, `Denied` or `Invalid` when it refuses.
    pub async fn put_commit(&self, name: &str, bytes: Bytes) -> Result<()> {
        let key = self.inner.keys.commit(name)?;
        let before = self.inner.clock.mono();
        self.write(key.clone(), bytes, COMMIT_BYTES_MAX as u64).await?;
        if self.inner.time.is_old()
            && let Err(error) = self.learn_from(&key, before).await
        {
            tracing::debug!(error = %error.chain(), "cannot read the store's time again");
        }
        Ok(())
    }
}

fn log_item(
    meta: &object_store::ObjectMeta,
    stamp_of: fn(&str) -> Option<Stamp>,
) -> Option<LogItem> {
    let name = meta.location.filename()?;
    stamp_of(name)?;
    let stored_ms = meta.last_modified.timestamp_millis().max(0) as u64;
    Some(LogItem { name: name.to_owned(), size: meta.size, stored_ms })
}
