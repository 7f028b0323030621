//! The fetcher: makes contents local that other nodes have published.
//!
//! Owns the way from a location to a verified local blob, and the wait while a location is in
//! trouble. Must never store a byte unless it matches its digest. Must never call a blob bad
//! because the store does not answer. Must never make an entry wait for the trouble of another
//! location.
//!
//! Keeps P9 self-healing.

mod ahead;
mod inline;
mod warm;

pub use self::warm::Warmed;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, SemaphorePermit};

use self::ahead::Ahead;
use self::inline::CommitFetches;
use super::flight::Flights;
use super::lacking::Lacking;
use super::ledger::Ledger;
use super::parcels::Parcel;
use super::patience::{WAIT_MAX, WAIT_MIN, wait_out};
use super::quiet::Quiet;
use super::room::Demand;
use super::troubled::Troubled;
use super::unpack::{For, Unpacker};
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::{NotAdopted, State};
use crate::namespace::{Location, Site};
use crate::remote::{ErrorClass, Progress, Remote, decode_frame, is_throttled};
use crate::task;

/// How many fetches run at once; the store has a limit of its own below.
const FETCHES_AT_ONCE: usize = 16;
/// Contents that are being fetched or wait for it.
const FLIGHTS_MAX: usize = 10_000;
/// Packs up to this size are fetched whole at the first miss in them, if the tier has room for more.
/// This covers the packs that the publisher makes by default: 8 MiB, less than 1 MiB for the content
/// that fills it, and the overhead of frames that do not compress.
const WHOLE_PACK_BYTES: u64 = 10 << 20;
/// How often a blob is fetched if its bytes do not match: a read may have been stale.
const TRIES: u32 = 2;
/// How often a blob is fetched if the room for it is gone when it arrives.
const ROOM_TRIES: u32 = 2;
/// The pause between these attempts.
const TRY_WAIT: Duration = Duration::from_millis(100);
/// For one lost content, the kernel is made to doubt its names at most this often: a program that
/// keeps a lost file open may ask for it all the time.
const DOUBT_EVERY: Duration = Duration::from_millis(100);
/// How many lost contents are remembered for that.
const DOUBTED_MAX: usize = 1024;

/// Makes contents local; cheap to clone.
#[derive(Clone, Debug)]
pub struct Fetcher(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Ledger,
    remote: Option<Remote>,
    runtime: Handle,
    blobs: Flights<Digest>,
    packs: Flights<Arc<str>>,
    commits: CommitFetches,
    places: Semaphore,
    unpacker: Unpacker,
    ahead: Ahead,
    /// A caller returns when it has what it asked for, and the rest of the pack is stored later.
    goes_on: bool,
    /// Trouble of packs, commits and contents that are objects, by their names.
    troubled: Troubled<Arc<str>>,
    quiet_newer: Quiet,
    lacking: Lacking,
    without_room: AtomicU64,
    /// When the kernel was last made to doubt its names, by the lost content.
    doubted: Mutex<HashMap<Digest, Duration>>,
}

impl Fetcher {
    /// Makes a fetcher whose work runs on `runtime`. If it `goes_on`, it also fetches content that
    /// no program waits for: what was stored together with the content that one does wait for.
    pub(super) fn new(ledger: Ledger, runtime: Handle, goes_on: bool) -> Self {
        let remote = ledger.remote().cloned();
        let (blobs, packs) = (Flights::new(), Flights::new());
        let places = Semaphore::new(FETCHES_AT_ONCE);
        let unpacker = Unpacker::new(ledger.clone(), runtime.clone());
        let troubled = Troubled::new(ledger.clock().clone(), WAIT_MIN, WAIT_MAX);
        Self(Arc::new(Inner {
            ledger,
            remote,
            runtime,
            blobs,
            packs,
            commits: CommitFetches::new(),
            places,
            unpacker,
            ahead: Ahead::default(),
            goes_on,
            troubled,
            quiet_newer: Quiet::default(),
            lacking: Lacking::default(),
            without_room: AtomicU64::new(0),
            doubted: Mutex::default(),
        }))
    }

    /// Makes a content local, as [`Fetcher::fetch`] does. Waits out trouble that may pass
    /// (throttling, a broken connection, a fault of a server), until no byte has come for `limit`.
    /// Does not wait for a store that is known not to answer.
    ///
    /// # Errors
    ///
    /// As [`Fetcher::fetch`]; `TimedOut` when no byte has come for `limit`.
    pub async fn fetch_within(&self, digest: Digest, size: u64, limit: Duration) -> Result<()> {
        if self.0.ledger.blobs().contains(&digest) {
            return Ok(());
        }
        let progress = Progress::default();
        let Some(remote) = &self.0.remote else {
            return self.fetch_telling(digest, size, &progress).await;
        };
        wait_out(remote, limit, &progress, || self.fetch_telling(digest, size, &progress)).await
    }

    /// Makes a content local. A caller may wait as long as it wants: if it drops the future, the
    /// work goes on.
    ///
    /// # Errors
    ///
    /// `NotFound` if no location is known, if the content there is past its age, or if the bytes
    /// there are not the content (which is hidden then); `Unavailable` or `TimedOut` if the store
    /// does not answer; `NoSpace` if there is no room.
    pub async fn fetch(&self, digest: Digest, size: u64) -> Result<()> {
        self.fetch_telling(digest, size, &Progress::default()).await
    }

    async fn fetch_telling(&self, digest: Digest, size: u64, progress: &Progress) -> Result<()> {
        if self.0.ledger.blobs().contains(&digest) {
            return Ok(());
        }
        let mut fetched = Ok(());
        for _ in 0..2 {
            let inner = Arc::clone(&self.0);
            let work = move |progress| -> BoxFuture<'static, Result<()>> {
                Box::pin(async move {
                    let fetched = inner.fetch_if_room(digest, size, &progress).await;
                    if fetched.as_ref().is_err_and(|error| error.kind() == Kind::NotFound) {
                        inner.doubt(digest);
                    }
                    fetched
                })
            };
            let flights = &self.0.blobs;
            fetched = flights.join(&self.0.runtime, digest, FLIGHTS_MAX, progress, work).await;
            // A fetch that was begun for no program does not evict and does not retry.
            if !is_given_up(&fetched) {
                break;
            }
        }
        if is_full(&fetched) {
            self.0.without_room.fetch_add(1, Ordering::Relaxed);
        }
        fetched
    }

    /// Notes that a program uses a content that is here. Returns at once.
    pub fn note_used(&self, digest: Digest, size: u64) {
        self.0.note_used(digest, size);
    }

    /// Counts the contents that were requested and not delivered for lack of room.
    pub fn without_room(&self) -> u64 {
        self.0.without_room.load(Ordering::Relaxed)
    }
}

impl Inner {
    /// Fetches a content if there is room for it. Remembers a lack of room, so that a content that
    /// cannot be kept is not downloaded again and again.
    async fn fetch_if_room(
        self: &Arc<Self>,
        digest: Digest,
        size: u64,
        progress: &Progress,
    ) -> Result<()> {
        let (clock, blobs) = (self.ledger.clock(), self.ledger.blobs());
        let lacks = || Error::new(Kind::NoSpace, format!("no room for blob {digest}"));
        if self.lacking.is_in_vain(&digest, size, clock.mono(), blobs.disk_free()) {
            return Err(lacks());
        }
        let mut fetched = Err(lacks());
        for _ in 0..ROOM_TRIES {
            // Uploads in flight soon make room. If there are none, nothing is fetched.
            if !blobs.contains(&digest)
                && self.ledger.room().wait(Demand::Keep(size)).await.is_err()
            {
                break;
            }
            fetched = self.fetch(digest, size, progress).await;
            // Writers may have taken the room meanwhile, or the disk was fuller than its figures
            // said.
            if !is_full(&fetched) {
                self.lacking.clear(&digest);
                break;
            }
            self.lacking.note(digest, clock.mono(), blobs.disk_free());
        }
        if is_full(&fetched)
            && let Some(unsaid) = self.lacking.tell(clock)
        {
            let free_bytes = blobs.disk_free();
            tracing::warn!(
                %digest, size, free_bytes, unsaid,
                "there is no room for entries of other nodes, and they are misses"
            );
        }
        fetched
    }

    /// Makes the kernel doubt its names: files with these bytes are misses from now on.
    fn doubt(&self, digest: Digest) {
        let now = self.ledger.clock().mono();
        {
            let mut doubted = self.doubted.lock();
            if doubted.get(&digest).is_some_and(|at| now < *at + DOUBT_EVERY) {
                return;
            }
            if doubted.len() >= DOUBTED_MAX {
                doubted.clear();
            }
            doubted.insert(digest, now);
        }
        self.ledger.doubt_names();
    }

    async fn fetch(self: &Arc<Self>, digest: Digest, size: u64, progress: &Progress) -> Result<()> {
        let mut tries = 0;
        loop {
            if self.ledger.blobs().contains(&digest) {
                return Ok(());
            }
            let unknown =
                || Error::new(Kind::NotFound, format!("no place of blob {digest} is known"));
            let location = self.ledger.location(&digest).ok_or_else(unknown)?;
            let remote = self.remote.as_ref().ok_or_else(unknown)?.telling(progress);
            // Then it does not matter whether the store still has it: this is no damage.
            if self.ledger.reliance().is_expired(location.stored_ms) {
                return Err(Error::new(Kind::NotFound, format!("blob {digest} is past its age")));
            }
            if location.size != size {
                let op = format!("blob {digest} has {} bytes and not {size}", location.size);
                return Err(Error::new(Kind::NotFound, op));
            }
            if let Some(parcel) = Parcel::of(&location.site, digest, size) {
                self.note_asked(&parcel, digest);
            }
            let fetched = match &location.site {
                Site::Pack { pack, .. } => {
                    self.fetch_packed(&remote, digest, &location, pack, progress).await
                }
                Site::Object => self.fetch_object(&remote, digest, size, For::Program).await,
                Site::Inline { commit } => {
                    self.fetch_inline(&remote, digest, commit, progress).await
                }
            };
            let error = match fetched {
                Ok(()) => return Ok(()),
                Err(error) if !is_proof(&error) => return Err(error),
                Err(error) => error,
            };
            tries += 1;
            if tries >= TRIES {
                self.ledger.mark_bad(&digest, &location);
                return Err(Error::with(Kind::NotFound, format!("blob {digest} is bad"), error));
            }
            clock::sleep(TRY_WAIT).await;
        }
    }

    async fn fetch_packed(
        self: &Arc<Self>,
        remote: &Remote,
        digest: Digest,
        location: &Location,
        pack: &Arc<str>,
        progress: &Progress,
    ) -> Result<()> {
        let mut newer = None;
        let end = self.ledger.pack_end(pack);
        if end <= WHOLE_PACK_BYTES && self.ledger.blobs().has_room_for_more(end) {
            let mut wanted = self.unpacker.want(digest);
            // It may have arrived just before.
            if self.ledger.blobs().contains(&digest) {
                return Ok(());
            }
            let (inner, name) = (Arc::clone(self), Arc::clone(pack));
            let work = move |progress| -> BoxFuture<'static, Result<()>> {
                Box::pin(async move { inner.fetch_pack(&name, For::Program, &progress).await })
            };
            let name = Arc::clone(pack);
            let whole = self.packs.join(&self.runtime, name, FLIGHTS_MAX, progress, work);
            // The rest of the pack is stored after the caller has returned.
            let whole = tokio::select! {
                biased;
                () = wanted.stored(), if self.goes_on => return Ok(()),
                whole = whole => whole,
            };
            if self.ledger.blobs().contains(&digest) {
                return Ok(());
            }
            // If the pack is damaged, has one damaged frame, or is of another version, the read by
            // range decides. The other failures would fail it for the same reason.
            match whole {
                Err(error) if error.kind() == Kind::Invalid => newer = Some(error),
                // There may be room for a single member.
                Err(error) if error.kind() == Kind::NoSpace => {}
                Err(error) if !is_proof(&error) => return Err(error),
                _ => {}
            }
        }
        let Site::Pack { offset, length, .. } = location.site else {
            return Err(Error::new(Kind::Internal, "a blob in a pack has another site"));
        };
        let size = location.size;
        let frame = {
            let get = || remote.get_pack_range(pack, offset, u64::from(length));
            self.request(pack, get).await?
        };
        let ledger = self.ledger.clone();
        let kept = task::blocking(move || {
            let bytes = decode_frame(&frame, &digest, size)?;
            keep(&ledger, digest, &bytes)
        })
        .await;
        match (kept, newer) {
            // Then bytes that this node cannot read are no damage, and no doubt about them must
            // reach the node that wrote them.
            (Err(error), Some(newer)) if error.kind() == Kind::Corrupt => {
                if let Some(unsaid) = self.quiet_newer.tell(self.ledger.clock()) {
                    tracing::warn!(
                        %pack, error = %newer.chain(), unsaid,
                        "a pack was written by a newer hearthfs, and its files are misses here; upgrade this \
                         node"
                    );
                }
                Err(newer)
            }
            (kept, _) => kept,
        }
    }

    /// Fetches a whole pack and keeps the contents that files use, as far as there is room.
    async fn fetch_pack(&self, pack: &Arc<str>, whom: For, progress: &Progress) -> Result<()> {
        let remote = self.telling(progress)?;
        let bytes = self.request(pack, || remote.get_pack(pack)).await?;
        self.unpacker.unpack(pack, bytes, whom).await
    }

    async fn fetch_object(
        &self,
        remote: &Remote,
        digest: Digest,
        size: u64,
        whom: For,
    ) -> Result<()> {
        let name: Arc<str> = Arc::from(digest.to_string());
        // Taken before the check for room, because thousands may wait here.
        let place = self.place(&name).await;
        let blobs = self.ledger.blobs();
        let full = || Error::new(Kind::NoSpace, format!("no room for blob {digest}"));
        if whom == For::Program && !blobs.make_room(size) {
            return Err(full());
        }
        let (file, staged) = self.ledger.staging().create()?;
        let is_room = |blobs: &_| whom == For::Program || whom.may_store(blobs, size);
        if !blobs.reserve(staged.bytes(), size, is_room) {
            return Err(full());
        }
        let sink = file.try_clone().map_err(|e| Error::io("open a staging file once more", e))?;
        self.note_trouble(&name, remote.get_blob(&digest, size, sink).await)?;
        drop(place);
        let blobs = self.ledger.blobs().clone();
        task::blocking(move || blobs.adopt(staged, &file, digest, size, State::Fetched))
            .await
            .map_err(NotAdopted::into_error)?;
        Ok(())
    }

    fn telling(&self, progress: &Progress) -> Result<Remote> {
        let remote = self.remote.as_ref().ok_or_else(|| Error::new(Kind::NotFound, "no remote"))?;
        Ok(remote.telling(progress))
    }

    /// Makes one request for an object, within a place.
    async fn request<T, F>(&self, name: &Arc<str>, request: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let _place = self.place(name).await;
        self.note_trouble(name, request().await)
    }

    /// Takes a place for a request for an object. If the object is in trouble, waits for its
    /// back-off first, and takes no place from others meanwhile.
    async fn place(&self, name: &Arc<str>) -> SemaphorePermit<'_> {
        let mut waited = 0;
        loop {
            if let Some((left, round)) = self.troubled.wait(name, waited) {
                let throttled = self.remote.as_ref().filter(|_| self.troubled.is_throttled(name));
                let _wait = throttled.map(Remote::begin_wait);
                clock::sleep(left).await;
                waited = round;
            }
            let place = self.places.acquire().await.expect("the semaphore is never closed");
            if self.troubled.turn(name, waited) {
                return place;
            }
        }
    }

    /// Notes whether an object is in trouble.
    fn note_trouble<T>(&self, name: &Arc<str>, got: Result<T>) -> Result<T> {
        match &got {
            Err(error) if ErrorClass::of(error.kind()) == ErrorClass::Passing => {
                self.troubled.note(Arc::clone(name));
                self.troubled.note_throttled(name, is_throttled(error));
            }
            _ => self.troubled.clear(name),
        }
        got
    }
}

/// Reports whether there was no room.
fn is_full(fetched: &Result<()>) -> bool {
    fetched.as_ref().is_err_and(|error| error.kind() == Kind::NoSpace)
}

/// Reports whether a fetch ended in a way that says nothing about the content.
fn is_given_up(fetched: &Result<()>) -> bool {
    fetched.as_ref().is_err_and(|error| error.kind() == Kind::Closed)
}

fn keep(ledger: &Ledger, digest: Digest, bytes: &[u8]) -> Result<()> {
    if !ledger.blobs().make_room(bytes.len() as u64) {
        return Err(Error::new(Kind::NoSpace, format!("no room for blob {digest}")));
    }
    ledger.keep(digest, bytes)
}

/// Reports whether an error proves that the bytes are missing or wrong. All other errors only say
/// that they cannot be read now.
fn is_proof(error: &Error) -> bool {
    ErrorClass::of(error.kind()) == ErrorClass::Proof
}
