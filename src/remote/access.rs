//! Checks what the store allows us to do, one right at a time, for a person who sets it up.
//!
//! Owns the one object that it writes for this, and deletes it again. Must never make a store, and
//! never write unless the caller asks for it.

use bytes::Bytes;
use futures::StreamExt as _;
use object_store::path::Path;
use object_store::{ObjectStoreExt as _, PutMode, PutOptions};

use super::call::Call;
use super::connect::{self, Environment, RemoteOptions};
use super::health::Lane;
use super::store::Remote;
use super::trouble::{Cause, Trouble};
use super::verb::Verb;
use crate::config::RemoteUrl;
use crate::error::{Error, Kind, Result};
use crate::stamp::NodeId;
use crate::task;

/// Difference of the clocks that whole seconds and network latency explain.
const CLOCK_NOISE_MS: i64 = 2000;

/// The results of one check of the rights.
#[derive(Debug, Default)]
pub struct Access {
    /// Listing.
    pub list: Step,
    /// Writing an object.
    pub put: Step,
    /// Reading an object.
    pub get: Step,
    /// Deleting an object.
    pub delete: Step,
    /// The key of the object that was written for the check.
    pub probe: String,
    /// That object could not be deleted.
    pub left: bool,
    /// How far the store's clock is ahead of ours, in milliseconds; `None` if no answer has shown it.
    pub ahead_ms: Option<i64>,
    /// The region in which the store says that the bucket is.
    pub region: Option<String>,
}

/// The result of one request.
#[derive(Debug, Default)]
pub enum Step {
    /// Not attempted.
    #[default]
    Untried,
    /// It worked.
    Done,
    /// It failed.
    Failed(Trial),
}

/// Why a request failed.
#[derive(Debug)]
pub struct Trial {
    /// What has to change.
    pub obstacle: Obstacle,
    /// The message of the failure, without secrets.
    pub text: String,
}

/// What prevents a request from working.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    /// Nothing answers.
    Silent,
    /// There is no such bucket or directory.
    Missing,
    /// There are no credentials, or the store does not know them.
    Credentials,
    /// Our clock is too wrong for a signature.
    Clock,
    /// Endpoint or region are not those of the bucket.
    Place,
    /// This right is lacking.
    Right,
    /// Something else.
    Other,
}

impl Obstacle {
    fn of(error: &Error) -> Self {
        match (Trouble::cause_of(error), error.kind()) {
            (Cause::MissingBucket, _) => Self::Missing,
            (Cause::NoCredentials | Cause::Credentials, _) => Self::Credentials,
            (Cause::Clock, _) => Self::Clock,
            (_, Kind::Denied) => Self::Right,
            (_, Kind::Invalid) => Self::Place,
            (_, Kind::TimedOut | Kind::Unavailable) => Self::Silent,
            _ => Self::Other,
        }
    }

    /// Reports whether the obstacle concerns one request, so that another one may still work.
    fn is_of_one_request(self) -> bool {
        matches!(self, Self::Right | Self::Other)
    }
}

impl Step {
    fn of(result: Result<()>) -> Self {
        match result {
            Ok(()) => Self::Done,
            Err(error) => {
                Self::Failed(Trial { obstacle: Obstacle::of(&error), text: error.chain() })
            }
        }
    }

    /// Returns the obstacle, if the request failed.
    pub fn obstacle(&self) -> Option<&Trial> {
        match self {
            Self::Failed(trial) => Some(trial),
            Self::Untried | Self::Done => None,
        }
    }

    fn ends_it(&self) -> bool {
        self.obstacle().is_some_and(|trial| !trial.obstacle.is_of_one_request())
    }
}

impl Remote {
    /// Checks which rights we have, with one request for each. With `write`, an object below our prefix is
    /// written and deleted again. Stops after the first request if its failure shows that no other can succeed.
    pub async fn try_access(&self, write: bool) -> Access {
        let key = self.inner.keys.probe(NodeId(task::random_u64()));
        let mut access = Access { probe: key.to_string(), ..Access::default() };
        if let Err(error) = self.open_dir(false).await {
            let missing = error.kind() == Kind::NotFound;
            let obstacle = if missing { Obstacle::Missing } else { Obstacle::of(&error) };
            access.list = Step::Failed(Trial { obstacle, text: error.chain() });
            return access;
        }
        access.list = Step::of(self.list_access().await);
        self.listen(&mut access);
        if access.list.ends_it() {
            return access;
        }
        let body = Bytes::from(format!("hearthfs doctor {:016x}\n", task::random_u64()));
        if write {
            access.put = Step::of(self.put_access(&key, body.clone()).await);
        }
        let written = matches!(access.put, Step::Done);
        access.get = Step::of(self.get_access(&key, written.then_some(body)).await);
        if written {
            self.note_stored(&key, &mut access).await;
        }
        if write {
            // Also after a failed write: without an answer, the write may have been done.
            access.delete = Step::of(self.delete_access(&key).await);
            access.left = written && !matches!(access.delete, Step::Done);
        }
        self.listen(&mut access);
        access
    }

    /// Takes over the clock and the region from the headers of the answers.
    fn listen(&self, access: &mut Access) {
        let meter = &self.inner.requester.meter;
        access.region = meter.region();
        if let Some(date_ms) = meter.last_date_ms() {
            let ahead_ms = date_ms as i64 - self.inner.clock.wall_ms() as i64;
            access.ahead_ms = Some(quiet(ahead_ms));
        }
    }

    /// Computes the store's clock from the time of the object, for stores without HTTP headers.
    async fn note_stored(&self, key: &Path, access: &mut Access) {
        if self.inner.requester.backend.dir().is_none() {
            return;
        }
        let now_ms = self.inner.clock.wall_ms() as i64;
        let call = self.accessing(Verb::Head, "look at", key);
        let head = self
            .inner
            .requester
            .call(call, |store| async move { Ok(store.head(key).await?) })
            .await;
        // If this fails, the clock stays unknown and is reported so.
        access.ahead_ms =
            head.ok().map(|meta| quiet(meta.last_modified.timestamp_millis() - now_ms));
    }

    fn accessing(&self, verb: Verb, what: &str, key: &Path) -> Call {
        // Not guarded: the place need not be a store of ours yet.
        Call { lane: Lane::Background, guarded: false, ..self.call(verb, format!("{what} {key}")) }
    }

    async fn list_access(&self) -> Result<()> {
        let folder = self.inner.keys.log();
        let call = self.accessing(Verb::List, "list", &folder);
        let listed = self.inner.requester.call(call, |store| async move {
            if let Some(first) = store.list(Some(&folder)).next().await {
                first?;
            }
            Ok(())
        });
        listed.await
    }

    async fn put_access(&self, key: &Path, body: Bytes) -> Result<()> {
        let call = self.accessing(Verb::Put, "write", key);
        let put = |store: std::sync::Arc<dyn object_store::ObjectStore>| async move {
            store.put_opts(key, body.into(), PutOptions::from(PutMode::Overwrite)).await?;
            Ok(())
        };
        self.inner.requester.call(call, put).await
    }

    /// Reads what was written, or else the format object. A format object that is missing is an answer, too.
    async fn get_access(&self, key: &Path, wanted: Option<Bytes>) -> Result<()> {
        let format = self.inner.keys.format();
        let key = if wanted.is_some() { key } else { &format };
        let call = self.accessing(Verb::Get, "read", key);
        let read = self
            .inner
            .requester
            .call(call, |store| async move { Ok(store.get(key).await?.bytes().await?) });
        match (read.await, wanted) {
            (Ok(read), Some(wanted)) if read != wanted => {
                let op = format!("read {key}: the bytes differ from those just written");
                Err(Error::new(Kind::Corrupt, op))
            }
            (Err(error), None) if error.kind() == Kind::NotFound => Ok(()),
            (read, _) => read.map(drop),
        }
    }

    async fn delete_access(&self, key: &Path) -> Result<()> {
        let call = self.accessing(Verb::Delete, "delete", key);
        let deleted = self
            .inner
            .requester
            .call(call, |store| async move { Ok(store.delete(key).await?) })
            .await;
        match deleted {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            deleted => deleted,
        }
    }
}

fn quiet(ahead_ms: i64) -> i64 {
    if ahead_ms.abs() <= CLOCK_NOISE_MS { 0 } else { ahead_ms }
}

/// Describes where the credentials for an address come from, by names of variables and files;
/// `None` for a directory.
pub fn source_of_credentials(
    url: &RemoteUrl,
    options: &RemoteOptions,
    env: &Environment,
) -> Option<String> {
    connect::source(url, options, env)
}

/// Says what a person can do about credentials that the store refuses.
pub fn credentials_remedy(url: &RemoteUrl) -> &'static str {
    connect::credentials_remedy(url)
}

/// Returns the region in which a bucket is addressed; `None` if the cloud has no regions.
pub fn region_of(url: &RemoteUrl, options: &RemoteOptions, env: &Environment) -> Option<String> {
    connect::region(url, options, env)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::Clock;

    fn remote(dir: &std::path::Path) -> Remote {
        let url = RemoteUrl::File(dir.to_owned());
        let options = RemoteOptions { deadline: Duration::from_secs(2), ..Default::default() };
        Remote::open(&url, &options, Clock::system(), NodeId(1)).expect("opened")
    }

    fn files(dir: &std::path::Path) -> Vec<String> {
        let all = std::fs::read_dir(dir).expect("readable");
        let mut names: Vec<String> = all
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn all_rights_are_tried_and_nothing_is_left() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let access = remote(dir.path()).try_access(true).await;
        for step in [&access.list, &access.put, &access.get, &access.delete] {
            assert!(matches!(step, Step::Done), "{access:?}");
        }
        assert_eq!((access.left, access.ahead_ms), (false, Some(0)));
        let probes = dir.path().join("probes");
        assert!(!probes.exists() || files(&probes).is_empty(), "{:?}", files(&probes));
        assert!(!dir.path().join(super::super::keys::FORMAT).exists(), "no store is made");
    }

    #[tokio::test]
    async fn a_read_only_check_writes_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let access = remote(dir.path()).try_access(false).await;
        assert!(matches!((&access.list, &access.get), (Step::Done, Step::Done)), "{access:?}");
        assert!(matches!((&access.put, &access.delete), (Step::Untried, Step::Untried)));
        assert!(files(dir.path()).is_empty());
    }

    #[tokio::test]
    async fn a_missing_store_is_reported_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let access = remote(&dir.path().join("none")).try_access(true).await;
        assert_eq!(access.list.obstacle().map(|trial| trial.obstacle), Some(Obstacle::Missing));
        assert!(matches!(access.put, Step::Untried));
        assert!(!dir.path().join("none").exists());
    }
}
