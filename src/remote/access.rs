//! What the store lets us do, tried one right at a time, for a person who sets it up.
//!
//! Owns the one object by which that is tried, and takes it away again. Must never make a store, and never write where
//! the caller does not mean to.

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

/// Difference of the clocks that a store's whole seconds and the way of an answer explain.
const CLOCK_NOISE_MS: i64 = 2000;

/// What the requests of one look at a store came to.
#[derive(Debug, Default)]
pub struct Access {
    /// To list what is there.
    pub list: Step,
    /// To write an object.
    pub put: Step,
    /// To read one.
    pub get: Step,
    /// To delete one.
    pub delete: Step,
    /// The key of the object that was written to try it.
    pub probe: String,
    /// That object is still there.
    pub left: bool,
    /// How far the store's clock is ahead of ours, in milliseconds; `None` where it has not told.
    pub ahead_ms: Option<i64>,
    /// The region in which the store says that the bucket is.
    pub region: Option<String>,
}

/// What one request came to.
#[derive(Debug, Default)]
pub enum Step {
    /// It was not made.
    #[default]
    Untried,
    /// It did what it should.
    Done,
    /// It did not.
    Failed(Trial),
}

/// Why a request did not work.
#[derive(Debug)]
pub struct Trial {
    /// What has to change.
    pub obstacle: Obstacle,
    /// What was said, without secrets.
    pub text: String,
}

/// What stands in the way of a request.
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

    /// Reports whether another request could fare better.
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

    /// Returns what stands in the way.
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
    /// Tries which rights we have, one request for each; with `write`, an object below our prefix is written and deleted
    /// again. Where the first request shows that no other can do better, there are no others.
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
            // Also where the write failed: no answer is no proof that it was not done.
            access.delete = Step::of(self.delete_access(&key).await);
            access.left = written && !matches!(access.delete, Step::Done);
        }
        self.listen(&mut access);
        access
    }

    /// Takes in what the heads of answers have told.
    fn listen(&self, access: &mut Access) {
        let meter = &self.inner.caller.meter;
        access.region = meter.region();
        if let Some(date_ms) = meter.last_date_ms() {
            let ahead_ms = date_ms as i64 - self.inner.clock.wall_ms() as i64;
            access.ahead_ms = Some(quiet(ahead_ms));
        }
    }

    /// Learns the clock of a store that has no heads of answers from the time that it has given the object.
    async fn note_stored(&self, key: &Path, access: &mut Access) {
        if self.inner.caller.backend.dir().is_none() {
            return;
        }
        let now_ms = self.inner.clock.wall_ms() as i64;
        let call = self.accessing(Verb::Head, "look at", key);
        let head =
            self.inner.caller.call(call, |store| async move { Ok(store.head(key).await?) }).await;
        // Without it nothing is known of the clock, which is what is said then.
        access.ahead_ms =
            head.ok().map(|meta| quiet(meta.last_modified.timestamp_millis() - now_ms));
    }

    fn accessing(&self, verb: Verb, what: &str, key: &Path) -> Call {
        // Not guarded: what is there need not be a store of ours yet.
        Call { lane: Lane::Background, guarded: false, ..self.call(verb, format!("{what} {key}")) }
    }

    async fn list_access(&self) -> Result<()> {
        let folder = self.inner.keys.log();
        let call = self.accessing(Verb::List, "list", &folder);
        let listed = self.inner.caller.call(call, |store| async move {
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
        self.inner.caller.call(call, put).await
    }

    /// Reads what was written, or else the store's own description. That this is not there is an answer, too.
    async fn get_access(&self, key: &Path, wanted: Option<Bytes>) -> Result<()> {
        let format = self.inner.keys.format();
        let key = if wanted.is_some() { key } else { &format };
        let call = self.accessing(Verb::Get, "read", key);
        let read = self
            .inner
            .caller
            .call(call, |store| async move { Ok(store.get(key).await?.bytes().await?) });
        match (read.await, wanted) {
            (Ok(read), Some(wanted)) if read != wanted => {
                let op = format!("read {key}: other bytes come than were just written");
                Err(Error::new(Kind::Corrupt, op))
            }
            (Err(error), None) if error.kind() == Kind::NotFound => Ok(()),
            (read, _) => read.map(drop),
        }
    }

    async fn delete_access(&self, key: &Path) -> Result<()> {
        let call = self.accessing(Verb::Delete, "delete", key);
        let deleted =
            self.inner.caller.call(call, |store| async move { Ok(store.delete(key).await?) }).await;
        match deleted {
            Err(error) if error.kind() == Kind::NotFound => Ok(()),
            deleted => deleted,
        }
    }
}

fn quiet(ahead_ms: i64) -> i64 {
    if ahead_ms.abs() <= CLOCK_NOISE_MS { 0 } else { ahead_ms }
}

/// Says where the credentials for an address come from, by names of variables and files; `None` for a directory.
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

/// Says which region a bucket is asked in; `None` where there are none.
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
    async fn who_only_reads_writes_nothing() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let access = remote(dir.path()).try_access(false).await;
        assert!(matches!((&access.list, &access.get), (Step::Done, Step::Done)), "{access:?}");
        assert!(matches!((&access.put, &access.delete), (Step::Untried, Step::Untried)));
        assert!(files(dir.path()).is_empty());
    }

    #[tokio::test]
    async fn what_is_not_there_is_said_once() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let access = remote(&dir.path().join("none")).try_access(true).await;
        assert_eq!(access.list.obstacle().map(|trial| trial.obstacle), Some(Obstacle::Missing));
        assert!(matches!(access.put, Step::Untried));
        assert!(!dir.path().join("none").exists());
    }
}
