//! Claims: which of several nodes uploads what all of them have just written.
//!
//! Owns the agreement before an upload. A node that is about to upload writes a claim, which names
//! the contents, waits for a moment, and reads the claims of the others. The node with the first
//! claim about the same contents uploads. The others poll the log until they find there what it has
//! uploaded. Claims are in the order of their names. The name of a claim is later than those that
//! were listed before, whatever the clocks say: their nodes may have read the claims already, and
//! two nodes must not wait for each other. Nothing depends on a claim: a node uploads when anything
//! fails, and when the time of the other node is over. While the store throttles, a node waits
//! longer before it uploads: other nodes then probably publish the same, and this is harder to see.
//! Must never hold up a drain. Must never hold up a node more than once if it has not met others
//! with the same contents for a while.

use std::collections::HashSet;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::batch::Batch;
use super::follower::Follower;
use super::ledger::Ledger;
use crate::clock;
use crate::digest::Digest;
use crate::namespace::Op;
use crate::remote::{ClaimName, Remote};
use crate::task;

/// Uploads smaller than this are made without a claim, because a claim costs five requests.
const CLAIM_FROM_BYTES: u64 = 4 << 10;
/// This long after the last upload or after a meeting, other nodes may be about to write the same.
const ALONE_AFTER: Duration = Duration::from_mins(10);
/// The most contents that a claim names; each node uploads the others itself.
const CONTENTS_MAX: usize = 4096;
/// How many claims of other nodes are read; the oldest ones.
const READ_MAX: usize = 16;
/// A claim is worth waiting for if it covers at least one in this many contents of an upload.
const SHARED_PART: u64 = 32;
/// A claim older than this belongs to a node that has ended.
const LIFE_MS: u64 = 10_000;
/// The deadline of each request for claims, and of each list of the log.
const REQUEST_MAX: Duration = Duration::from_secs(1);
/// While the store throttles, requests of one agreement may take longer, up to this time after it
/// began.
const THROTTLED_MAX: Duration = Duration::from_mins(5);
/// How long ending a claim may take.
const END_MAX: Duration = Duration::from_secs(1);
/// The wait between writing a claim and reading those of the others: their writes may take as long
/// as ours, or longer.
const SETTLE_MIN: Duration = Duration::from_millis(10);
const SETTLE_MAX: Duration = Duration::from_millis(250);
/// A list of the log that is older than this is repeated before an upload: the first while other
/// nodes write the same, the second otherwise.
const LISTED_WITHIN_MET: Duration = Duration::from_millis(50);
const LISTED_WITHIN: Duration = Duration::from_secs(1);
/// How soon to check the log for what another node uploads, with up to as much again at random; and
/// the longest time between two checks. The time doubles with each check: many nodes may wait for
/// the same.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(800);
/// The longest wait for one older claim, plus the time for its bytes at this rate; and the longest
/// wait for all of them together.
const TURN: Duration = Duration::from_secs(2);
const TURN_BYTES_PER_SEC: u64 = 8 << 20;
const WAIT_MAX: Duration = Duration::from_secs(8);
/// The first bytes of a claim.
const MAGIC: &[u8] = b"hearthfs claim 1\n";

/// Agrees with other nodes.
#[derive(Debug)]
pub(super) struct Claims {
    ledger: Ledger,
    remote: Remote,
    follower: Follower,
    state: Mutex<State>,
}

/// The claim of this node.
#[derive(Debug)]
pub(super) struct Claim {
    name: ClaimName,
    needs: Vec<(Digest, u64)>,
}

#[derive(Debug, Default)]
struct State {
    /// The monotonic time of the last upload of this node, and of its last meeting with another
    /// node that had the same contents.
    uploaded: Option<Duration>,
    met: Option<Duration>,
}

impl Claims {
    pub(super) fn new(ledger: Ledger, remote: Remote, follower: Follower) -> Self {
        Self { ledger, remote, follower, state: Mutex::default() }
    }

    /// Leaves out of a batch what others have already, and waits for nodes that are about to upload
    /// the same. `lacking` returns what of the batch must be uploaded. `is_hurried` reports whether
    /// it must be uploaded now. Returns the claim of this node; the caller [ends](Self::end) it
    /// when the batch is remote.
    pub(super) async fn agree(
        &self,
        batch: &mut Batch,
        lacking: impl Fn(&Batch) -> Vec<(Digest, u64)>,
        is_hurried: impl Fn() -> bool,
    ) -> Option<Claim> {
        if !batch.changes.iter().any(|change| matches!(change.op, Op::Put(_))) {
            return None;
        }
        let began = self.ledger.clock().mono();
        let may_wait = || {
            self.ledger.clock().mono().saturating_sub(began) < THROTTLED_MAX
                && self.remote.throttling().now
                && !is_hurried()
                && !self.ledger.room().is_pressed()
        };
        let has_met = self.state.lock().has_met(began);
        let within = if has_met { LISTED_WITHIN_MET } else { LISTED_WITHIN };
        self.look(batch, within, &may_wait).await;
        let needs = lacking(batch);
        if bytes_of(&needs) < CLAIM_FROM_BYTES {
            return None;
        }
        let now = self.ledger.clock().mono();
        let due = self.state.lock().uploads(now);
        if !due || is_hurried() {
            return None;
        }
        let mut there = self.list(&may_wait).await;
        let name = self.name_after(&there);
        there.truncate(READ_MAX);
        let reading = self.read(&there, &needs, &may_wait);
        let (mut older, claimed) = futures::join!(reading, self.claim(name, &needs, &may_wait));
        claimed?;
        let mut since = self.list(&may_wait).await;
        since.retain(|other| *other < name && !there.contains(other));
        older.extend(self.read(&since, &needs, &may_wait).await);
        // If a claim has just ended, its contents are in the log.
        self.look(batch, Duration::ZERO, &may_wait).await;
        self.give_way(batch, &older, &lacking, (&is_hurried, &may_wait)).await;
        let needs = lacking(batch);
        if needs.is_empty() {
            self.drop(name).await;
            return None;
        }
        Some(Claim { name, needs })
    }

    /// Ends a claim once its contents are remote. Takes [`END_MAX`] at most, because the next
    /// commit waits meanwhile.
    pub(super) async fn end(&self, claim: Claim) {
        let Claim { name, needs } = claim;
        let end = async {
            // Nodes that wait for this one.
            let mut younger = self.list(&|| false).await;
            younger.retain(|other| *other > name);
            self.read(&younger, &needs, &|| false).await;
            self.drop(name).await;
        };
        clock::within(END_MAX, end).await;
    }

    /// Deletes a claim. If it cannot be deleted in time, it is ignored after [`LIFE_MS`].
    async fn drop(&self, name: ClaimName) {
        clock::within(REQUEST_MAX, self.remote.drop_claim(name)).await;
    }

    /// Checks what other nodes have published, and leaves that out.
    async fn look(&self, batch: &mut Batch, within: Duration, may_wait: &impl Fn() -> bool) {
        if !self.follower.freshness().is_down() {
            let seen = async {
                while !self.follower.poll_within(within).await && may_wait() {
                    clock::sleep(REQUEST_MAX).await;
                }
            };
            patiently(may_wait, seen).await;
        }
        if self.ledger.leave_needless(batch) {
            self.state.lock().met = Some(self.ledger.clock().mono());
        }
    }

    /// Returns a name for a claim of this node that is later than those of listed claims.
    fn name_after(&self, there: &[ClaimName]) -> ClaimName {
        let after_ms = there.last().map_or(0, |last| last.ms() + 1);
        ClaimName::new(self.ledger.now_ms().max(after_ms))
    }

    /// Writes a claim. Returns once other nodes are certain to see it; `None` if it was not
    /// written.
    async fn claim(
        &self,
        name: ClaimName,
        needs: &[(Digest, u64)],
        may_wait: &impl Fn() -> bool,
    ) -> Option<()> {
        let began = self.ledger.clock().mono();
        let put = self.remote.put_claim(name, encode(needs));
        if let Err(error) = patiently(may_wait, put).await? {
            tracing::debug!(error = %error.chain(), "no claim was written");
            return None;
        }
        let took = self.ledger.clock().mono().saturating_sub(began);
        clock::sleep((took * 2).clamp(SETTLE_MIN, SETTLE_MAX)).await;
        Some(())
    }

    /// Lists the claims whose nodes have not ended, the oldest first.
    async fn list(&self, may_wait: &impl Fn() -> bool) -> Vec<ClaimName> {
        let now_ms = self.ledger.now_ms();
        let list = self.remote.list_claims(now_ms.saturating_sub(LIFE_MS), now_ms + LIFE_MS);
        patiently(may_wait, list).await.and_then(Result::ok).unwrap_or_default()
    }

    /// Reads claims. Returns the ones that name the same contents.
    async fn read(
        &self,
        names: &[ClaimName],
        needs: &[(Digest, u64)],
        may_wait: &impl Fn() -> bool,
    ) -> Vec<HashSet<u64>> {
        let reads = names.iter().take(READ_MAX).map(|name| self.remote.get_claim(*name));
        let read = patiently(may_wait, futures::future::join_all(reads)).await;
        let claims = read.unwrap_or_default().into_iter().filter_map(|got| decode(&got.ok()?));
        let claims: Vec<_> = claims.filter(|claim| is_shared(claim, needs)).collect();
        if !claims.is_empty() {
            self.state.lock().met = Some(self.ledger.clock().mono());
        }
        claims
    }

    /// Waits until other nodes have published what they claimed before this node, or until their
    /// time is over.
    async fn give_way(
        &self,
        batch: &mut Batch,
        older: &[HashSet<u64>],
        lacking: &impl Fn(&Batch) -> Vec<(Digest, u64)>,
        (is_hurried, may_wait): (&impl Fn() -> bool, &impl Fn() -> bool),
    ) {
        let (began, mut every) = (self.ledger.clock().mono(), LOOK_EVERY);
        loop {
            let needs = lacking(batch);
            let waited = self.ledger.clock().mono().saturating_sub(began);
            let for_bytes = Duration::from_millis(bytes_of(&needs) * 1000 / TURN_BYTES_PER_SEC);
            let turn = TURN + for_bytes;
            let shared = (1..).zip(older).filter(|(_, claim)| is_shared(claim, &needs));
            let due = shared.map(|(place, _)| (turn * place).min(WAIT_MAX)).max();
            let left = due.unwrap_or_default().saturating_sub(waited);
            let waits = !needs.is_empty() && !left.is_zero();
            if !waits || is_hurried() || self.ledger.room().is_pressed() {
                return;
            }
            let more_ms = task::random_u64() % every.as_millis() as u64;
            clock::sleep((every + Duration::from_millis(more_ms)).min(left)).await;
            every = (every * 2).min(LOOK_EVERY_MAX);
            self.look(batch, LOOK_EVERY, may_wait).await;
        }
    }
}

impl State {
    /// Notes that this node is about to upload. Returns whether other nodes may be about to upload
    /// the same.
    fn uploads(&mut self, now: Duration) -> bool {
        let due = is_old(self.uploaded, now) || self.has_met(now);
        self.uploaded = Some(now);
        due
    }

    fn has_met(&self, now: Duration) -> bool {
        !is_old(self.met, now)
    }
}

/// Waits for requests: for [`REQUEST_MAX`], and longer while they are allowed to take longer.
async fn patiently<T>(
    may_wait: &impl Fn() -> bool,
    requests: impl Future<Output = T>,
) -> Option<T> {
    let mut requests = pin!(requests);
    loop {
        let done = clock::within(REQUEST_MAX, requests.as_mut()).await;
        if done.is_some() || !may_wait() {
            return done;
        }
    }
}

fn is_old(at: Option<Duration>, now: Duration) -> bool {
    at.is_none_or(|at| now.saturating_sub(at) >= ALONE_AFTER)
}

fn bytes_of(contents: &[(Digest, u64)]) -> u64 {
    contents.iter().map(|(_, size)| size).sum()
}

/// Reports whether a claim names enough of what must be uploaded to be worth waiting for.
fn is_shared(claim: &HashSet<u64>, needs: &[(Digest, u64)]) -> bool {
    let shared = needs.iter().filter(|(digest, _)| claim.contains(&short(digest)));
    let shared: u64 = shared.map(|(_, size)| size).sum();
    shared > 0 && shared * SHARED_PART >= bytes_of(needs)
}

/// Returns the beginning of a digest. If two digests begin alike, that only costs a wait.
fn short(digest: &Digest) -> u64 {
    let (first, _) = digest.as_bytes().split_first_chunk().expect("a digest has 32 bytes");
    u64::from_le_bytes(*first)
}

fn encode(needs: &[(Digest, u64)]) -> Bytes {
    let some = needs.iter().take(CONTENTS_MAX).flat_map(|(digest, _)| short(digest).to_le_bytes());
    MAGIC.iter().copied().chain(some).collect()
}

/// Decodes a claim; `None` if the bytes are none.
fn decode(bytes: &[u8]) -> Option<HashSet<u64>> {
    let (all, rest) = bytes.strip_prefix(MAGIC)?.as_chunks::<8>();
    rest.is_empty().then(|| all.iter().map(|one| u64::from_le_bytes(*one)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_read_as_they_are_written() {
        let needs: Vec<(Digest, u64)> =
            (0..5000_u64).map(|n| (Digest::of(&n.to_le_bytes()), 100)).collect();
        let claim = decode(&encode(&needs)).expect("a claim");
        assert_eq!(claim.len(), CONTENTS_MAX);
        assert!(encode(&needs).len() as u64 <= crate::remote::CLAIM_BYTES_MAX);
        assert!(is_shared(&claim, &needs) && !is_shared(&claim, &needs[CONTENTS_MAX - 10..]));
        assert_eq!(decode(b"hearthfs probe 0123 1\n"), None);
        assert_eq!(decode(&encode(&needs)[..100]), None, "a torn claim");
    }

    #[test]
    fn a_claim_is_made_after_a_rest_and_while_others_write_the_same() {
        let (mut state, hour) = (State::default(), Duration::from_hours(1));
        assert!(state.uploads(hour), "the first upload");
        assert!(!state.uploads(hour + Duration::from_secs(1)));
        state.met = Some(hour + Duration::from_secs(1));
        assert!(state.uploads(hour + Duration::from_secs(2)));
        assert!(
            !state.uploads(hour + ALONE_AFTER + Duration::from_secs(1)),
            "the other write was long ago"
        );
        assert!(state.uploads(hour * 2));
    }
}
