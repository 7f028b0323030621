//! The ledger: the namespace of this node together with its journal.
//!
//! Owns the only way for a change to enter. A change of a program here is in the journal before the
//! namespace shows it; a commit of another node is visible whole or not at all. Must never wait for
//! the store. Must never show a file whose bytes cannot be obtained.
//!
//! Two locks, in this order: *order* is held while changes are brought in, so that stamps, journal,
//! queue and namespace agree; *fold* is held for moments, so that readers never wait for the disk.
//!
//! Its state is in types with private fields, one in each file. Under the order lock: `FoldedLog`,
//! `Outbox`, `Saved`, `KeptTimes`, `GivenStamps`, `Bad`, `Aside`, `Own`, `Dead`. Beside the lock, for all
//! callers: `StayRules`, `Reliance`, `Listeners`, `QueueSigns`. The other files contain operations
//! on several of them: a start (`open`), the publish of a change (`turn`), a commit that arrives or
//! lands (`apply`), the replacement of the namespace (`adopt`), a save (`save`, `refill`), a
//! snapshot, a purge.

mod adopt;
mod apply;
mod aside;
mod counts;
mod dead;
mod dirs;
mod disk;
mod given;
mod identity;
mod listeners;
mod locked;
mod lost_blobs;
mod open;
mod outbox;
mod own;
mod purge;
mod queue_signs;
mod refill;
mod reliance;
mod same;
mod save;
mod saved;
mod shown;
mod snapshot;
mod stay_rules;
mod stored;
mod times;
mod turn;
mod warned;

use std::fmt;
use std::sync::Arc;
#[cfg(test)]
use std::sync::atomic::Ordering;

use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};

use self::aside::Aside;
pub use self::aside::SetAside;
use self::counts::LedgerCounts;
pub use self::counts::Traffic;
use self::dead::Dead;
use self::disk::Disk;
use self::given::GivenStamps;
use self::identity::RunIdentity;
pub use self::listeners::Moved;
use self::listeners::{Listeners, Subscriber};
use self::locked::Locked;
use self::lost_blobs::Bad;
pub use self::open::LedgerParts;
use self::outbox::Outbox;
pub use self::outbox::{HOLD_MAX, HoldToken};
pub(in crate::sync) use self::outbox::{Outlook, PACKED_BELOW_BYTES, TOUCH_EVERY};
use self::own::Own;
pub(in crate::sync) use self::purge::PurgeMark;
use self::queue_signs::QueueSigns;
use self::reliance::Reliance;
use self::saved::Saved;
use self::snapshot::Before;
pub(in crate::sync) use self::snapshot::Snapshot;
use self::stay_rules::StayRules;
use self::times::KeptTimes;
pub use self::times::known_of_index;
pub use self::turn::{Turn, Written};
use self::warned::Warned;
use super::folded_log::FoldedLog;
use super::room::Room;
use crate::clock::Clock;
use crate::digest::Digest;
use crate::error::Result;
use crate::local::{Blobs, Seq, Staging};
use crate::name::TreePath;
use crate::namespace::{Change, Entry, Fold, Location, Op, Time};
use crate::remote::Remote;
use crate::stamp::{NodeId, Stamp};

/// The most changes in one record; one commit holds them all.
pub const RECORD_CHANGES_MAX: usize = 100_000;
/// The most bytes that the changes of one record may take, approximately.
const RECORD_META_BYTES_MAX: u64 = 32 << 20;

/// The namespace and the journal of one node; cheap to clone.
#[derive(Clone)]
pub struct Ledger(Arc<Inner>);

struct Inner {
    clock: Clock,
    remote: Option<Remote>,
    disk: Disk,
    identity: RunIdentity,
    rules: StayRules,
    fold: RwLock<Fold>,
    order: Mutex<Ordered>,
    /// Held while a commit of this node is noted, and by tasks during which none may be.
    landing: tokio::sync::Mutex<()>,
    signs: QueueSigns,
    reliance: Reliance,
    listeners: Listeners,
    counts: LedgerCounts,
    warned: Warned,
}

/// The state under the order lock.
#[derive(Default)]
struct Ordered {
    log: FoldedLog,
    outbox: Outbox,
    saved: Saved,
    times: KeptTimes,
    given: GivenStamps,
    bad: Bad,
    aside: Aside,
    /// What has moved since a snapshot began, as it was in the remote at that moment.
    before: Option<Before>,
    own: Own,
    dead: Dead,
}

/// Changes that are published here and not yet remote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Pending {
    /// Records, each one atomic group of changes.
    pub records: u64,
    /// Bytes of content that they put.
    pub bytes: u64,
    /// How long the oldest has waited, in milliseconds.
    pub oldest_ms: u64,
}

impl Ledger {
    /// Looks at the namespace. `look` must not call the ledger, except for [`Ledger::shown`]
    /// and [`Ledger::living_left`].
    pub fn read<R>(&self, look: impl FnOnce(&Fold) -> R) -> R {
        look(&self.0.fold.read())
    }

    /// Looks at what was folded of the log, or notes what could not be. `look` must not call the ledger.
    pub(in crate::sync) fn log<R>(&self, look: impl FnOnce(&mut FoldedLog) -> R) -> R {
        look(&mut self.0.order.lock().log)
    }

    /// Publishes one atomic group of changes; returns their stamps. If all of them are in effect
    /// already, nothing is published, and the stamps are those of the existing changes.
    ///
    /// Once this has returned, the changes survive SIGKILL, and will be sent to the remote. Never
    /// waits for the network.
    ///
    /// # Errors
    ///
    /// `NoSpace` if the disk is full or a bound is reached, `Invalid` for more than
    /// [`RECORD_CHANGES_MAX`] changes. Nothing was published then.
    pub fn publish(&self, ops: Vec<(TreePath, Op)>) -> Result<Vec<Stamp>> {
        Ok(self.begin().write(ops)?.apply())
    }

    /// As [`Ledger::publish`], but keeps the record, and all later ones, from the remote until the
    /// token is released or dropped, for at most [`HOLD_MAX`].
    ///
    /// # Errors
    ///
    /// As [`Ledger::publish`].
    pub fn publish_held(&self, ops: Vec<(TreePath, Op)>) -> Result<(Vec<Stamp>, HoldToken)> {
        let mut written = self.begin().write(ops)?;
        let token = written.hold();
        Ok((written.apply(), token))
    }

    /// Makes a stamp that is greater than every stamp in the namespace.
    pub fn next_stamp(&self) -> Stamp {
        self.0.identity.stamps().next(self.now_ms())
    }

    /// Reports whether a later change of the path is known.
    pub(super) fn is_superseded(&self, change: &Change) -> bool {
        self.read(|fold| fold.register(&change.path).is_some_and(|r| r.stamp > change.stamp))
    }

    /// Notes that the content of a directory moved without a change.
    pub fn touch_directory(&self, dir: &TreePath) {
        let (stamp, now) = (self.next_stamp(), Time::from_wall(self.0.clock.wall()));
        self.0.fold.write().touch_directory(dir, stamp, now);
    }

    /// Makes everything that was published before survive a power loss, file contents excepted.
    ///
    /// # Errors
    ///
    /// An error of the disk; the next call tries again.
    pub fn sync(&self) -> Result<()> {
        self.0.disk.journal.sync()
    }

    /// Reports whether the bytes of an entry are lost: neither here nor at any known place.
    pub fn hidden(&self, entry: &Entry) -> bool {
        self.hidden_in(&self.0.fold.read_recursive(), entry)
    }

    fn hidden_in(&self, fold: &Fold, entry: &Entry) -> bool {
        entry.content().is_some_and(|(digest, _)| !self.obtainable_in(fold, &digest))
    }

    /// Reports whether a content is here, or is known to be in the remote.
    fn obtainable_in(&self, fold: &Fold, digest: &Digest) -> bool {
        digest.is_empty_content()
            || (self.0.remote.is_some() && fold.stored_ms(digest).is_some())
            || self.0.disk.blobs.contains(digest)
    }

    /// Returns where the remote keeps a content, unless that place has proved bad.
    pub fn location(&self, digest: &Digest) -> Option<Location> {
        // Recursive, because it is called from within `read`.
        self.0.fold.read_recursive().location(digest)
    }

    /// Returns since when the remote keeps a content, unless its place has proved bad.
    pub(in crate::sync) fn stored_ms(&self, digest: &Digest) -> Option<u64> {
        self.0.fold.read_recursive().stored_ms(digest)
    }

    /// Calls `told` each time that the count of [`Ledger::applied`] grows, for example after each
    /// commit of another node that moved something. The call is made on the thread that caused it,
    /// with no lock held. It must not block.
    pub fn subscribe(&self, told: Subscriber) {
        self.0.listeners.add(told);
    }

    /// Counts how often the kernel's memory of names came into doubt: through commits of other
    /// nodes that moved something, through contents that proved lost, and each time that names are
    /// no longer vouched for. A caller that reads the namespace first and this count second has
    /// every counted change in what it read.
    pub fn applied(&self) -> u64 {
        self.0.listeners.applied()
    }

    /// Counts what was brought into the namespace: the records of this node, and what
    /// [`Ledger::applied`] counts. A reader that sees the same count before and after reading has
    /// missed nothing.
    pub fn changes(&self) -> u64 {
        self.0.listeners.changes()
    }

    /// Reports whether something has moved and the subscribers have not been called for it yet.
    pub fn is_telling(&self) -> bool {
        self.0.listeners.is_telling()
    }

    /// Makes the kernel doubt the names that it remembers.
    pub(in crate::sync) fn doubt_names(&self) {
        let count = self.0.listeners.count();
        self.0.listeners.tell(Moved { count, paths: Some(&[]) });
    }

    /// Counts how often a purge checked whether the bytes of an entry are lost.
    #[cfg(test)]
    pub(in crate::sync) fn asked_lost(&self) -> u64 {
        self.0.counts.asked_lost.load(Ordering::Relaxed)
    }

    /// Returns the counts of what was sent to the store and received from it.
    pub fn traffic(&self) -> &Traffic {
        &self.0.counts.traffic
    }

    /// Returns what this node may rely on.
    pub(in crate::sync) fn reliance(&self) -> &Reliance {
        &self.0.reliance
    }

    /// Returns the room for new data.
    pub fn room(&self) -> &Room {
        self.0.signs.room()
    }

    /// Returns the number of the first incarnation of this run; further ones have the numbers that
    /// follow.
    pub(super) fn first_incarnation(&self) -> u64 {
        self.0.identity.first_incarnation()
    }

    /// Returns the node.
    pub fn node(&self) -> NodeId {
        self.0.identity.stamps().node()
    }

    /// Returns the remote, if there is one.
    pub fn remote(&self) -> Option<&Remote> {
        self.0.remote.as_ref()
    }

    /// Returns the local blobs.
    pub fn blobs(&self) -> &Blobs {
        &self.0.disk.blobs
    }

    /// Returns the staging files.
    pub fn staging(&self) -> &Staging {
        &self.0.disk.staging
    }

    /// Returns the clock.
    pub fn clock(&self) -> &Clock {
        &self.0.clock
    }

    /// Returns the wall time in milliseconds since the Unix epoch, by the store's clock if it is
    /// known.
    pub fn now_ms(&self) -> u64 {
        self.0.reliance.now_ms()
    }

    /// Makes a stamp for the name of an object, later than all earlier ones.
    pub(super) fn name_stamp(&self) -> Stamp {
        let made = self.next_stamp();
        self.0.order.lock().given.name(made)
    }

    /// Returns the number of the last record that was published.
    pub(super) fn last(&self) -> Seq {
        let _order = self.0.order.lock();
        self.0.disk.journal.last()
    }

    /// Counts the records that are not yet remote.
    pub(super) fn records(&self) -> u64 {
        self.0.signs.room().records()
    }

    /// Is notified when the queue has moved.
    pub(super) fn queued(&self) -> &Notify {
        self.0.signs.moved()
    }

    /// Receives up to which record everything is remote.
    pub(super) fn remote_upto(&self) -> watch::Receiver<Seq> {
        self.0.signs.remote_upto()
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("node", &self.node()).finish_non_exhaustive()
    }
}
