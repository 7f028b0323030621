//! Rides: files that a client rewrites on each hit, only to note that it has used an entry.
//!
//! Such a version is journalled and shown here at once. Other nodes get the last one together with
//! all others of a minute, or with the next commit that is made for another reason. Until then it
//! is one of the versions of `apart`, and survives a restart like these. Must never hold back the
//! first version of such a file, nor cause a commit of its own within that minute.

use super::Outbox;
use super::apart::ApartReason;
use super::touch::TOUCHED_MAX;
use crate::error::Result;
use crate::local::Seq;
use crate::name::TreePath;
use crate::namespace::{Attrs, Change, Entry, Fold, Op, Register, Time, Touch};
use crate::sync::batch::Batch;
use crate::sync::ledger::stay_rules::StayRules;
use crate::sync::ledger::{Ledger, Locked};

/// A larger file is more than a note of a use, and is sent like any other.
const RIDE_BYTES_MAX: u64 = 4096;
/// The most rides in one commit.
const RIDES_MAX: usize = 1000;

impl Outbox {
    /// Reports whether a change only notes the use of a file that other nodes have.
    fn is_ride(&self, rules: &StayRules, fold: &Fold, change: &Change) -> bool {
        let path = &change.path;
        if rules.classify(path).touch != Some(Touch::Content) {
            return false;
        }
        let waits = match self.apart.why(path) {
            Some(ApartReason::Used) => true,
            Some(ApartReason::Incomplete(_) | ApartReason::Private) => return false,
            None => false,
        };
        let shown =
            fold.register(path).and_then(|register| Some((register.stamp, register.entry?)));
        let Some((shown_stamp, shown)) = shown else { return false };
        let same_but_times = |attrs: &Attrs| {
            let times = Attrs { mtime: attrs.mtime, atime: attrs.atime, ..shown.attrs.clone() };
            times == *attrs
        };
        match &change.op {
            Op::Put(entry) => {
                let is_note = |entry: &Entry| {
                    let size = entry.content().map(|(_, size)| size);
                    size.is_some_and(|size| (1..=RIDE_BYTES_MAX).contains(&size))
                };
                is_note(entry)
                    && is_note(&shown)
                    && entry.link.is_none()
                    && same_but_times(&entry.attrs)
                    && (waits || self.apart.rides() < TOUCHED_MAX)
            }
            Op::Attrs { of, attrs } => waits && *of == shown_stamp && same_but_times(attrs),
            Op::Remove => false,
        }
    }
}

impl Ledger {
    /// Queues the waiting rides for the remote. Blocks on the local disk. Rides that an error
    /// leaves are sent the next time.
    pub(super) fn send_rides(&self) -> Result<()> {
        let mut after = None;
        loop {
            after = self.send_some_rides(after.as_ref())?;
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// Sends the rides after a path, as many as one record may hold. Returns the last path.
    fn send_some_rides(&self, after: Option<&TreePath>) -> Result<Option<TreePath>> {
        let mut order = self.0.order.lock();
        let order = &mut *order;
        let fold = self.0.fold.read();
        let paths: Vec<TreePath> =
            order.outbox.apart.waiting(after).take(RIDES_MAX).cloned().collect();
        let changes: Vec<Change> = paths.iter().flat_map(|path| changes_of(&fold, path)).collect();
        if changes.is_empty() {
            return Ok(None);
        }
        drop(fold);
        self.check_bounds(order, &changes)?;
        let seq = self.0.disk.journal.append(&changes)?;
        {
            let mut fold = self.0.fold.write();
            let mut locked = self.locked(order, &mut fold);
            for change in &changes {
                locked.track(seq, change);
            }
            for change in &changes {
                locked.replace_apart(change);
            }
        }
        self.enqueue(order, seq, changes, None);
        Ok(paths.into_iter().last())
    }
}

impl Locked<'_> {
    /// Applies a change to the namespace if it only notes a use and can wait. Reports whether it
    /// does.
    pub(in crate::sync::ledger) fn take_ride(
        &mut self,
        (seq, change): (Seq, &Change),
        now: Time,
    ) -> bool {
        let waits = self.order.outbox.is_ride(&self.ledger.0.rules, self.fold, change);
        if waits {
            self.show_apart((seq, change), ApartReason::Used, now);
        }
        waits
    }

    /// Adds waiting rides to a batch that is sent anyway.
    pub(super) fn board(&self, batch: &mut Batch) {
        let outbox = &self.order.outbox;
        if batch.changes.is_empty() {
            return;
        }
        let waiting = outbox.apart.waiting(None).filter(|path| !outbox.queue.has(path));
        for path in waiting.take(RIDES_MAX) {
            let changes = changes_of(self.fold, path);
            for change in &changes {
                // A later version may release the bytes meanwhile.
                self.note_put(batch.upto, &change.op);
            }
            batch.changes.extend(changes);
            batch.rides.insert(path.clone());
        }
    }

    /// Notes that other nodes know the rides of a batch.
    pub(super) fn rides_landed(&mut self, batch: &Batch) {
        for change in batch.changes.iter().filter(|change| batch.rides.contains(&change.path)) {
            self.order.outbox.apart.hear(change);
        }
        for path in &batch.rides {
            if self.order.outbox.apart.why(path) == Some(ApartReason::Used) {
                self.compare_ride(path);
            }
        }
    }

    /// Ends the wait of a path if other nodes know what is shown there, or something later.
    pub(super) fn compare_ride(&mut self, path: &TreePath) {
        let Self { order, fold, .. } = &mut *self;
        let (known, shown) = (order.outbox.apart.known(path), fold.register(path));
        let stamp = |register: &Option<Register>| register.as_ref().map(|register| register.stamp);
        if known != shown && stamp(&known) <= stamp(&shown) {
            return;
        }
        if known != shown {
            fold.reset(path, known);
        }
        order.saved.path_moved(path);
        order.outbox.apart.leave(path);
        self.set_own(path, None);
    }
}

/// Returns the changes that make a path what it shows here.
pub(super) fn changes_of(fold: &Fold, path: &TreePath) -> Vec<Change> {
    let Some(Register { stamp, attr_stamp, entry: Some(entry) }) = fold.register(path) else {
        return Vec::new();
    };
    let change = |stamp, op| Change { path: path.clone(), stamp, op };
    let attrs = entry.attrs.clone();
    let attrs = attr_stamp.map(|at| change(at, Op::Attrs { of: stamp, attrs }));
    std::iter::once(change(stamp, Op::Put(entry))).chain(attrs).collect()
}
