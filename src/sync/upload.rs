//! Uploads what a batch needs before its commit can be written: blobs first, pointer after.
//!
//! Owns where a blob is stored: in the commit, in a pack, or as a separate object. Must never
//! upload bytes that do not match their digest.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use parking_lot::Mutex;

use super::announcement::{Announcement, OLD_PACKS_MAX, Packed, PutOutcome};
use super::backoff::Backoff;
use super::batch::{Batch, contents_of};
use super::claims::Claim;
use super::ledger::{Ledger, PACKED_BELOW_BYTES};
use super::quiet::Quiet;
use super::times::LOG_GRACE;
use crate::clock;
use crate::digest::Digest;
use crate::error::{Error, Kind, Result};
use crate::local::OpenBlob;
use crate::namespace::{BlobAt, BlobPlace, Change, Location, Op, Site};
use crate::remote::{Health, PackBuilder, Remote, StoreId, keys};
use crate::task;

/// Blobs up to this size are stored in the commit itself.
const INLINE_MAX_BYTES: u64 = 4 << 10;
/// The most bytes of blobs in one commit.
const INLINE_TOTAL_BYTES: u64 = 128 << 10;
/// The largest setting for the size of a pack, far below what a pack can hold.
const PACK_BYTES_SET_MAX: u64 = 32 << 20;
/// Packs that are built and uploaded at once.
const PACKS_AT_ONCE: usize = 2;
/// Blobs that are uploaded at once as separate objects.
const OBJECTS_AT_ONCE: usize = 8;
/// How long after a batch was planned its commit may rely on the objects that were uploaded or
/// reused for it. The store may delete objects that no commit names twice this long after that.
const RELIED_ON_MAX: Duration = Duration::from_millis(LOG_GRACE.as_millis() as u64 / 2);
/// It is this part of the age if that is shorter: contents must not grow old while a commit waits.
const RELIED_ON_PARTS: u32 = 4;
/// The shortest and the longest wait before an upload is retried.
const RETRY_MIN: Duration = Duration::from_millis(200);
const RETRY_MAX: Duration = Duration::from_secs(30);
/// How often the store must refuse a content before it is set aside: the cause may be a proxy, or a limit.
const REFUSALS_MAX: u32 = 5;
/// The longest wait while the store does not answer. A retry then costs nothing, and may find the store up again.
const DOWN_WAIT_MAX: Duration = Duration::from_secs(5);
/// After an outage the uploads of all nodes begin again within this time.
const RECOVERY_SPREAD: Duration = Duration::from_millis(500);
/// How often an unreadable blob is read: its writer may be about to replace it.
const LOCAL_TRIES: u32 = 8;
/// How often one is read whose file was closed and is not a blob yet, in about ten seconds: the
/// disk may refuse it, or be very slow.
const LODGED_TRIES: u32 = 18;
/// The pause after the first of these tries; each further one is twice as long, up to the longest.
/// A file that was closed just now becomes a blob a few milliseconds later.
const LOCAL_WAIT_MIN: Duration = Duration::from_millis(10);
const LOCAL_WAIT_MAX: Duration = Duration::from_secs(1);

/// A batch whose blobs are in the store.
#[derive(Debug)]
pub(super) struct Uploaded {
    pub(super) batch: Batch,
    /// Names of the packs that `blobs` refer to.
    pub(super) packs: Vec<String>,
    pub(super) blobs: Vec<BlobAt>,
    /// The locations of the new blobs, except those in the commit.
    pub(super) locations: Vec<(Digest, Location)>,
    /// The claim under which it was uploaded.
    pub(super) claim: Option<Claim>,
    /// The store that has all that the batch relies on; `None` if nothing of the batch is sent.
    pub(super) store: Option<StoreId>,
    /// The monotonic time since when all objects that it relies on are known to be in the store.
    since: Duration,
}

/// Uploads blobs, with retries for ever if necessary.
#[derive(Debug)]
pub(super) struct Uploader {
    ledger: Ledger,
    remote: Remote,
    pack_bytes: u64,
    /// Locations of contents whose commits are not written yet. A batch that needs them is committed after those.
    flying: Mutex<HashMap<Digest, Flying>>,
    quiet: Quiet,
    quiet_lost: Quiet,
    /// Uploads that wait because the store throttles.
    throttled: AtomicUsize,
}

/// What to upload, and how.
#[derive(Default)]
struct UploadPlan {
    since: Duration,
    inline: Vec<(Digest, u64)>,
    packs: Vec<Vec<(Digest, u64)>>,
    objects: Vec<(Digest, u64)>,
    known: Vec<(Digest, Location)>,
}

/// A content whose commit is not written yet.
#[derive(Debug, Clone)]
struct Flying {
    at: Location,
    since: Duration,
    store: Option<StoreId>,
}

/// What is known of a content before it is uploaded.
enum Presence {
    /// It must be uploaded.
    Nowhere,
    /// It is inline in a commit, which has announced it.
    Said,
    /// It is at this place, and that is known since this time.
    At(Location, Duration),
}

impl Uploader {
    pub(super) fn new(ledger: Ledger, remote: Remote, pack_bytes: u64) -> Self {
        let pack_bytes = pack_bytes.min(PACK_BYTES_SET_MAX);
        let (quiet, quiet_lost) = (Quiet::default(), Quiet::default());
        let (flying, throttled) = (Mutex::default(), AtomicUsize::new(0));
        Self { ledger, remote, pack_bytes, flying, quiet, quiet_lost, throttled }
    }

    /// Reports whether an upload waits because the store throttles.
    pub(super) fn is_throttled(&self) -> bool {
        self.throttled.load(Ordering::Relaxed) > 0
    }

    /// Uploads to a store what the batch needs. Returns only when all of it is there, or is lost
    /// here.
    pub(super) async fn upload(
        self: &Arc<Self>,
        mut batch: Batch,
        store: Option<StoreId>,
    ) -> Uploaded {
        let plan = self.plan(&batch, store);
        let lost = Mutex::new(Vec::new());
        let batch_ref = &batch;
        let packs = stream::iter(plan.packs)
            .map(|some| self.store_pack(some, batch_ref, &lost))
            .buffer_unordered(PACKS_AT_ONCE)
            .flat_map(stream::iter);
        let objects = stream::iter(plan.objects)
            .map(|one| self.store_object(one, batch_ref, &lost))
            .buffer_unordered(OBJECTS_AT_ONCE);
        let inline =
            self.read_all(plan.inline, batch_ref, &lost, Vec::new(), |all, digest, bytes| {
                all.push((digest, bytes.to_vec()));
            });
        let (packs, objects, inline): (Vec<PutOutcome>, Vec<PutOutcome>, _) =
            futures::join!(packs.collect(), objects.collect(), inline);
        let mut uploaded = Announcement::default();
        for outcome in packs.into_iter().chain(objects) {
            uploaded.add_stored(outcome);
        }
        let stored_ms = self.ledger.storing_ms(inline.iter().map(|one| &one.0));
        for (digest, bytes) in inline {
            let size = bytes.len() as u64;
            uploaded.blobs.push(BlobAt {
                digest,
                size,
                place: BlobPlace::Inline(bytes),
                stored_ms,
            });
        }
        uploaded.add_known(plan.known);
        let mut lost = lost.into_inner();
        // Contents that were announced before can still be fetched from there.
        lost.retain(|digest| self.location(digest, store).is_none());
        if !lost.is_empty() {
            self.leave_out(&mut batch, &lost);
        }
        let Announcement { packs, blobs, locations } = uploaded;
        let since = plan.since;
        let flying = locations.iter().cloned();
        self.flying.lock().extend(flying.map(|(digest, at)| (digest, Flying { at, since, store })));
        Uploaded { batch, packs, blobs, locations, claim: None, store, since }
    }

    /// Reports whether the objects of a batch were seen in the store too long ago to write its commit.
    pub(super) fn is_old(&self, uploaded: &Uploaded) -> bool {
        let part = self.ledger.age().limit().map(|limit| limit / RELIED_ON_PARTS);
        let limit = part.map_or(RELIED_ON_MAX, |part| part.min(RELIED_ON_MAX));
        self.ledger.clock().mono().saturating_sub(uploaded.since) > limit
    }

    /// Notes that the namespace now knows the locations of a batch's contents.
    pub(super) fn landed(&self, contents: impl Iterator<Item = Digest>) {
        let mut flying = self.flying.lock();
        contents.for_each(|digest| drop(flying.remove(&digest)));
    }

    /// Returns the contents that a batch puts and that would be uploaded to a store for it.
    pub(super) fn lacking(&self, batch: &Batch, store: Option<StoreId>) -> Vec<(Digest, u64)> {
        let mut contents = contents_of(&batch.changes);
        contents.retain(|(digest, _)| {
            !self.ledger.is_aside(digest) && matches!(self.known(digest, store), Presence::Nowhere)
        });
        contents
    }

    fn plan(&self, batch: &Batch, store: Option<StoreId>) -> UploadPlan {
        let mut plan = UploadPlan { since: self.ledger.clock().mono(), ..UploadPlan::default() };
        let mut old_packs = HashSet::new();
        let (mut inline, mut packed) = (0, 0);
        // A renewed content is stored only because it grows old at its place, or keeps a commit
        // from being deleted. Once it is past its age it must not come back.
        let due = |digest: &Digest| {
            let stored_ms = self.ledger.stored_ms(digest);
            stored_ms.is_some_and(|stored_ms| {
                !self.ledger.reliance().is_expired(stored_ms)
                    && (self.ledger.reliance().grows_old(stored_ms)
                        || self.ledger.lies_inline(digest))
            })
        };
        let renewals = batch.renewals().into_iter().filter(|(digest, _)| due(digest));
        for (digest, size, renew) in batch
            .contents()
            .into_iter()
            .map(|(digest, size)| (digest, size, false))
            .chain(renewals.map(|(digest, size)| (digest, size, true)))
        {
            // It is retried separately, and holds up nothing meanwhile.
            if self.ledger.is_aside(&digest) && !batch.amends.repairs.contains(&(digest, size)) {
                continue;
            }
            match if renew { Presence::Nowhere } else { self.known(&digest, store) } {
                Presence::Nowhere => {}
                // Nodes that lost it can still fetch it from where it was announced.
                Presence::Said => continue,
                Presence::At(location, since) => {
                    if self.has_room(&mut old_packs, &digest, &location) {
                        plan.since = plan.since.min(since);
                        plan.known.push((digest, location));
                        continue;
                    }
                }
            }
            if !renew && size <= INLINE_MAX_BYTES && inline + size <= INLINE_TOTAL_BYTES {
                inline += size;
                plan.inline.push((digest, size));
            } else if size < PACKED_BELOW_BYTES {
                // A pack ends with the content that fills it, as a batch does. Otherwise the last
                // content of a full batch would be alone in a pack.
                if plan.packs.is_empty() || packed >= self.pack_bytes {
                    plan.packs.push(Vec::new());
                    packed = 0;
                }
                packed += size;
                let pack = plan.packs.last_mut().expect("a pack was begun if there was none");
                pack.push((digest, size));
            } else {
                plan.objects.push((digest, size));
            }
        }
        plan
    }

    /// Returns where a store keeps a content, as far as the namespace knows.
    fn location(&self, digest: &Digest, store: Option<StoreId>) -> Option<Location> {
        let is_told = store.is_some_and(|store| !self.ledger.is_of_another_store(store));
        self.ledger.location(digest).filter(|_| is_told)
    }

    /// Returns where a content is in a store, if it need not be uploaded there.
    fn known(&self, digest: &Digest, store: Option<StoreId>) -> Presence {
        // Its commit comes before ours.
        let flying = self.flying.lock().get(digest).cloned();
        if let Some(Flying { at, since, .. }) = flying.filter(|flying| flying.store == store) {
            return Presence::At(at, since);
        }
        let Some(location) = self.location(digest, store) else { return Presence::Nowhere };
        let here = self.ledger.blobs().contains(digest);
        // A small content is announced again, rather than looked for in an old commit, or in a commit of this node.
        // This node has never read its own commits, and no other node can report to it that such a commit is damaged.
        let (inline, own) = match &location.site {
            Site::Inline { commit } => {
                let stamp = keys::commit_stamp(commit);
                (true, stamp.is_none_or(|stamp| stamp.node == self.ledger.node()))
            }
            Site::Pack { .. } | Site::Object => (false, false),
        };
        let again = inline && (own || !self.ledger.reliance().is_young(location.stored_ms));
        if here && (again || !self.ledger.reliance().may_reuse(digest, &location)) {
            return Presence::Nowhere;
        }
        if inline { Presence::Said } else { Presence::At(location, self.ledger.clock().mono()) }
    }

    /// Reports whether a commit can name the place of one more content. A content that is not here
    /// is not named again: it was announced before.
    fn has_room(
        &self,
        old_packs: &mut HashSet<Arc<str>>,
        digest: &Digest,
        location: &Location,
    ) -> bool {
        let Site::Pack { pack, .. } = &location.site else { return true };
        if old_packs.len() < OLD_PACKS_MAX {
            old_packs.insert(Arc::clone(pack));
        }
        old_packs.contains(pack) || !self.ledger.blobs().contains(digest)
    }

    /// Builds a pack and uploads it. A refused pack is sent in halves, until the refused content is known.
    async fn store_pack(
        &self,
        some: Vec<(Digest, u64)>,
        batch: &Batch,
        lost: &Mutex<Vec<Digest>>,
    ) -> Vec<PutOutcome> {
        let (mut left, mut stored) = (vec![some], Vec::new());
        while let Some(mut some) = left.pop() {
            match self.store_one_pack(some.clone(), batch, lost).await {
                Ok(one) => stored.push(one),
                Err(error) => match some[..] {
                    [(digest, size)] => {
                        if !self.ledger.set_aside(digest, size, &error) {
                            left.push(some);
                        }
                    }
                    _ => {
                        let half = some.split_off(some.len() / 2);
                        left.extend([some, half]);
                    }
                },
            }
        }
        stored
    }

    /// Reports whether the store refuses these bytes, and not this node or this moment.
    fn is_refused(&self, error: &Error) -> bool {
        error.kind() == Kind::Invalid && self.remote.unfit().is_none()
    }

    /// Builds a pack and uploads it. Returns an error only if the store refuses the pack.
    async fn store_one_pack(
        &self,
        some: Vec<(Digest, u64)>,
        batch: &Batch,
        lost: &Mutex<Vec<Digest>>,
    ) -> Result<PutOutcome> {
        let pack = (PackBuilder::new(), Vec::with_capacity(some.len()));
        let (pack, members) = self.read_all(some, batch, lost, pack, add_to_pack).await;
        if members.is_empty() {
            return Ok(PutOutcome::Nothing);
        }
        let mut refusals = 0;
        let bytes = bytes::Bytes::from(task::blocking(move || pack.finish()).await);
        let name = keys::pack_name(&self.ledger.name_stamp());
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        loop {
            let stored_ms = self.ledger.storing_ms(members.iter().map(|member| &member.0));
            match self.remote.put_pack(&name, bytes.clone()).await {
                Ok(()) => return Ok(PutOutcome::Pack { name, stored_ms, members }),
                Err(error) => {
                    refusals += u32::from(self.is_refused(&error));
                    if refusals >= REFUSALS_MAX {
                        return Err(error);
                    }
                    self.again(&error, &mut backoff).await;
                }
            }
        }
    }

    /// Uploads one blob as a separate object.
    async fn store_object(
        &self,
        (digest, size): (Digest, u64),
        batch: &Batch,
        lost: &Mutex<Vec<Digest>>,
    ) -> PutOutcome {
        let mut backoff = Backoff::new(RETRY_MIN, RETRY_MAX);
        let (mut tries, mut refusals) = (0, 0);
        loop {
            let stored_ms = self.ledger.storing_ms([digest].iter());
            let is_lodged = self.ledger.blobs().is_lodged(&digest);
            let open = self.open(digest, size).await;
            let was_here = open.is_some();
            let outcome = match open {
                Some(open) => match open.file.try_clone() {
                    Ok(file) => self.remote.put_blob(&digest, file, size).await,
                    Err(error) => Err(Error::io("open a blob once more", error)),
                },
                None => Err(Error::new(Kind::Corrupt, format!("blob {digest} is gone"))),
            };
            match outcome {
                Ok(()) => return PutOutcome::Object { digest, size, stored_ms },
                // The fault is on the local disk, not in the store.
                Err(error) if matches!(error.kind(), Kind::Corrupt | Kind::Internal) => {
                    if was_here {
                        self.ledger.blobs().suspect(&digest);
                    }
                    tries += 1;
                    if self.gives_up(&digest, tries, is_lodged, batch) {
                        lost.lock().push(digest);
                        return PutOutcome::Nothing;
                    }
                    clock::sleep(local_wait(tries)).await;
                }
                Err(error) => {
                    refusals += u32::from(self.is_refused(&error));
                    if refusals >= REFUSALS_MAX && self.ledger.set_aside(digest, size, &error) {
                        return PutOutcome::Nothing;
                    }
                    self.again(&error, &mut backoff).await;
                }
            }
        }
    }

    async fn open(&self, digest: Digest, size: u64) -> Option<OpenBlob> {
        let blobs = self.ledger.blobs().clone();
        let opened = task::blocking(move || blobs.open_briefly(&digest, size)).await;
        opened.unwrap_or_else(|error| {
            tracing::debug!(%digest, error = %error.chain(), "blob cannot be opened for upload");
            None
        })
    }

    /// Reads blobs one after the other, compares them with their digests, and calls `add` for each; only one is
    /// in memory at a time. Blobs that stay unreadable are lost.
    async fn read_all<All: Send + 'static>(
        &self,
        some: Vec<(Digest, u64)>,
        batch: &Batch,
        lost: &Mutex<Vec<Digest>>,
        mut all: All,
        add: fn(&mut All, Digest, &[u8]),
    ) -> All {
        let mut left = some;
        for attempt in 1.. {
            let blobs = self.ledger.blobs().clone();
            let lodged: HashSet<Digest>;
            (all, left, lodged) = task::blocking(move || {
                let (mut buffer, mut lodged) = (Vec::new(), HashSet::new());
                left.retain(|(digest, size)| {
                    // Asked first: it may become a blob just after it was not found.
                    let is_lodged = blobs.is_lodged(digest);
                    let read = read_blob(&blobs, digest, *size, &mut buffer);
                    let Ok(Some(bytes)) = read else {
                        lodged.extend(is_lodged.then_some(*digest));
                        return true;
                    };
                    add(&mut all, *digest, bytes);
                    false
                });
                (all, left, lodged)
            })
            .await;
            left.retain(|(digest, _)| {
                let give_up = self.gives_up(digest, attempt, lodged.contains(digest), batch);
                if give_up {
                    lost.lock().push(*digest);
                }
                !give_up
            });
            if left.is_empty() {
                break;
            }
            clock::sleep(local_wait(attempt)).await;
        }
        all
    }

    /// Reports whether a content is lost that could not be read after this many tries. Before the
    /// last one it `was_lodged` or not: what is lodged is about to be a blob, and the batch needs
    /// it even if its file was replaced since. Without that change, later ones of the batch would
    /// be sent before an earlier one.
    fn gives_up(&self, digest: &Digest, tries: u32, was_lodged: bool, batch: &Batch) -> bool {
        if was_lodged {
            return tries >= LODGED_TRIES;
        }
        tries >= LOCAL_TRIES || self.is_unwanted(digest, batch)
    }

    /// Reports whether all files to which the batch gives this content were replaced since.
    fn is_unwanted(&self, digest: &Digest, batch: &Batch) -> bool {
        batch.changes.iter().filter(|c| puts(c, digest)).all(|c| self.ledger.is_superseded(c))
    }

    /// Leaves out the changes whose content is lost and that were replaced since. The others are
    /// sent without a content: every node hides them, as this one does, until a program writes them
    /// again. If other nodes did not get them, the namespaces would differ.
    fn leave_out(&self, batch: &mut Batch, lost: &[Digest]) {
        let mut hidden = 0_u64;
        batch.dropped.extend(lost);
        batch.changes.retain(|change| {
            if !lost.iter().any(|digest| puts(change, digest)) {
                return true;
            }
            let replaced = self.ledger.is_superseded(change);
            hidden += u64::from(!replaced);
            !replaced
        });
        if hidden > 0
            && let Some(unsaid) = self.quiet_lost.tell(self.ledger.clock())
        {
            let (files, digest) = (hidden, lost[0]);
            tracing::warn!(files, %digest, unsaid, "content was lost before it was remote; its files are misses until rewritten");
        }
    }

    /// Waits before a request to the store is retried.
    pub(super) async fn again(&self, error: &Error, backoff: &mut Backoff) {
        let down = matches!(self.remote.health(), Health::Down { .. });
        if error.kind() == Kind::TimedOut && !down {
            // The request began in an outage that is over, or failed alone; and it has taken time already.
            backoff.reset();
        }
        let wait = backoff.wait();
        let wait_ms = wait.as_millis() as u64;
        // The remote itself reports outages, including expired credentials.
        let outage = matches!(error.kind(), Kind::Unavailable | Kind::TimedOut) || down;
        let told = if outage { None } else { self.quiet.tell(self.ledger.clock()) };
        if let Some(unsaid) = told {
            let error = error.chain();
            tracing::warn!(%error, wait_ms, unsaid, "upload failed; it is retried");
        } else {
            tracing::debug!(error = %error.chain(), wait_ms, "upload failed");
        }
        let wait = if down { wait.min(DOWN_WAIT_MAX) } else { wait };
        let _throttled =
            self.remote.wait_after(error).map(|wait| (wait, InFlight::new(&self.throttled)));
        if clock::within(wait, self.remote.recovered()).await.is_some() {
            backoff.reset();
            let part = f64::from(task::random_u64() as u32) / f64::from(u32::MAX);
            clock::sleep(RECOVERY_SPREAD.mul_f64(part)).await;
        }
    }
}

/// Counts one while it exists.
struct InFlight<'a>(&'a AtomicUsize);

impl<'a> InFlight<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn puts(change: &Change, digest: &Digest) -> bool {
    matches!(&change.op, Op::Put(entry) if entry.content().is_some_and(|(d, _)| d == *digest))
}

/// Returns how long to wait after this many tries to read a blob of this node.
fn local_wait(tries: u32) -> Duration {
    LOCAL_WAIT_MIN.saturating_mul(1 << (tries - 1)).min(LOCAL_WAIT_MAX)
}

/// Adds a blob to a pack.
fn add_to_pack((pack, members): &mut (PackBuilder, Vec<Packed>), digest: Digest, bytes: &[u8]) {
    let (offset, length) =
        pack.add(&digest, bytes).expect("the plan keeps a pack far below its limits");
    members.push((digest, bytes.len() as u64, offset, length));
}

/// Reads a whole blob into a buffer, which grows if necessary; `None` if it is missing or does not match its digest.
fn read_blob<'a>(
    blobs: &crate::local::Blobs,
    digest: &Digest,
    size: u64,
    buffer: &'a mut Vec<u8>,
) -> Result<Option<&'a [u8]>> {
    use std::os::unix::fs::FileExt as _;
    let Some(open) = blobs.open_briefly(digest, size)? else { return Ok(None) };
    if buffer.len() < size as usize {
        buffer.resize(size as usize, 0);
    }
    let bytes = &mut buffer[..size as usize];
    open.file.read_exact_at(bytes, 0).map_err(|e| Error::io(format!("read blob {digest}"), e))?;
    if Digest::of(bytes) == *digest {
        return Ok(Some(bytes));
    }
    blobs.suspect(digest);
    Ok(None)
}
