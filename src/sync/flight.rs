//! Flights: work that several callers want is done once, and continues when they give up. All
//! callers see its progress.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::error::{Error, Kind, Result};
use crate::remote::Progress;
use crate::task;

/// The outcome of a flight, for each waiting caller.
type FlightOutcome = Option<Result<()>>;

/// One flight: its outcome and its progress.
type Flight = (watch::Receiver<FlightOutcome>, Progress);

/// Work in progress, by its key.
#[derive(Debug)]
pub(super) struct Flights<K>(Arc<Mutex<HashMap<K, Flight>>>);

impl<K> Clone for Flights<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash + Clone + Send + 'static> Flights<K> {
    pub(super) fn new() -> Self {
        Self(Arc::default())
    }

    /// Joins the flight for `key`, or starts `work` for it if there is none. `progress` is notified
    /// when bytes move.
    pub(super) async fn join(
        &self,
        runtime: &Handle,
        key: K,
        most: usize,
        progress: &Progress,
        work: impl FnOnce(Progress) -> BoxFuture<'static, Result<()>>,
    ) -> Result<()> {
        let (mut outcome, moved) = {
            let mut flying = self.0.lock();
            match flying.get(&key) {
                Some(flight) => flight.clone(),
                None if flying.len() >= most => {
                    return Err(Error::new(Kind::Busy, "too much is being fetched"));
                }
                None => {
                    let (sender, receiver) = watch::channel(None);
                    let moved = Progress::default();
                    flying.insert(key.clone(), (receiver.clone(), moved.clone()));
                    let work = work(moved.clone());
                    let landing = Landing { flights: self.clone(), key };
                    drop(task::spawn(runtime, "fetch", async move {
                        let done = work.await;
                        // Removed first, so that a caller that arrives now starts a new flight.
                        drop(landing);
                        sender.send_replace(Some(done));
                    }));
                    (receiver, moved)
                }
            }
        };
        let landing = async {
            let landed = outcome.wait_for(Option::is_some).await;
            landed.ok().and_then(|outcome| outcome.clone())
        };
        match progress.follow(&moved, landing).await {
            Some(done) => done,
            None => Err(Error::new(Kind::Closed, "a fetch was stopped")),
        }
    }
}

/// Removes a flight from the map when its work has ended, however it ended.
struct Landing<K: Eq + Hash> {
    flights: Flights<K>,
    key: K,
}

impl<K: Eq + Hash> Drop for Landing<K> {
    fn drop(&mut self) {
        self.flights.0.lock().remove(&self.key);
    }
}
