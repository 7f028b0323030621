//! Places: the contents that files point to or that the remote has, each with its location.
//!
//! There may be a million, so each is one slot of fixed size with a small number, which the
//! registers store. Must never reuse a number while a register holds it. Takes memory for what it
//! knows now, and not for what it knew once.

use std::num::NonZeroU16;
use std::sync::Arc;

use hashbrown::HashTable;

use super::paged_table::PagedTable;
use crate::digest::Digest;
use crate::hashing::FastMap;
use crate::namespace::location::{Location, Site};

/// Minutes after which the counter of idle minutes wraps around.
const IDLE_TURN: u64 = u16::MAX as u64;

/// The kind of remote location of a content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Where {
    Nowhere,
    Pack,
    Object,
    Inline,
}

/// One content. The fields of the location are meaningless while it has none.
#[derive(Debug)]
struct Slot {
    digest: Digest,
    offset: u64,
    size: u64,
    stored_ms: u64,
    length: u32,
    /// The number of the pack's or commit's name.
    name: u32,
    /// The number of registers that hold it.
    uses: u32,
    place: Where,
    /// The minute since which no holder is known, as [`Places::idle_minutes`] recorded it.
    idle: Option<NonZeroU16>,
}

/// All contents.
#[derive(Debug, Default)]
pub(super) struct Places {
    slots: PagedTable<Slot>,
    by_digest: HashTable<u32>,
    names: PackNames,
    /// The number of slots that a register holds.
    in_use: u64,
}

/// A table keeps room for at most this many times what it holds ...
const SPARE_TIMES: usize = 4;
/// ... and for this many besides.
const SPARE: usize = 1024;

/// Reports whether a table has too much room, so that some of it should be given back.
fn is_roomy(capacity: usize, len: usize) -> bool {
    capacity > SPARE_TIMES * len + SPARE
}

/// A digest is effectively random, so its first bytes serve as its hash.
fn hash(digest: &Digest) -> u64 {
    u64::from_le_bytes(*digest.as_bytes().first_chunk().expect("eight of 32 bytes"))
}

impl Places {
    fn find(&self, digest: &Digest) -> Option<u32> {
        let is = |number: &u32| self.slots.get(*number).digest == *digest;
        self.by_digest.find(hash(digest), is).copied()
    }

    fn slot(&self, digest: &Digest) -> Option<&Slot> {
        self.find(digest).map(|number| self.slots.get(number))
    }

    /// Returns the number of a content, adding it if necessary.
    fn number(&mut self, digest: &Digest) -> u32 {
        if let Some(number) = self.find(digest) {
            return number;
        }
        let slot = Slot {
            digest: *digest,
            offset: 0,
            size: 0,
            stored_ms: 0,
            length: 0,
            name: 0,
            uses: 0,
            place: Where::Nowhere,
            idle: None,
        };
        let number = self.slots.insert(slot);
        let slots = &self.slots;
        let hash_of = |number: &u32| hash(&slots.get(*number).digest);
        self.by_digest.insert_unique(hash(digest), number, hash_of);
        number
    }

    /// Frees a slot that has neither a register nor a location any more.
    fn settle(&mut self, number: u32) {
        let slot = self.slots.get(number);
        if slot.uses == 0 && slot.place == Where::Nowhere {
            let found = self.by_digest.find_entry(hash(&slot.digest), |other| *other == number);
            if let Ok(entry) = found {
                entry.remove();
                self.slots.remove(number);
                self.shrink();
            }
        }
    }

    /// Gives room back that the table of digests needs no longer.
    fn shrink(&mut self) {
        if is_roomy(self.by_digest.capacity(), self.by_digest.len()) {
            let slots = &self.slots;
            let hash_of = |number: &u32| hash(&slots.get(*number).digest);
            self.by_digest.shrink_to(2 * self.by_digest.len(), hash_of);
        }
    }

    /// Counts the contents for which memory is taken.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity().max(self.by_digest.capacity()).max(self.names.all.capacity())
    }

    /// Counts one more register that holds a content; returns its number.
    pub(super) fn hold(&mut self, digest: &Digest) -> u32 {
        let number = self.number(digest);
        let slot = self.slots.get_mut(number);
        self.in_use += u64::from(slot.uses == 0);
        (slot.uses, slot.idle) = (slot.uses + 1, None);
        number
    }

    /// Returns for how many minutes no register has held a content of the remote; 0 if one holds
    /// it. The count starts with the first call after it was held or located. `minute` comes from a
    /// monotonic clock. If calls are more than 45 days apart, the result is too small.
    pub(super) fn idle_minutes(&mut self, digest: &Digest, minute: u64) -> u64 {
        let Some(number) = self.find(digest) else { return 0 };
        let slot = self.slots.get_mut(number);
        if slot.uses > 0 {
            return 0;
        }
        let now = (minute % IDLE_TURN) as u16;
        let since = *slot.idle.get_or_insert(NonZeroU16::MIN.saturating_add(now));
        (u64::from(now) + IDLE_TURN - u64::from(since.get() - 1)) % IDLE_TURN
    }

    /// Restarts the count of minutes without a holder.
    pub(super) fn wake(&mut self, digest: &Digest) {
        if let Some(number) = self.find(digest) {
            self.slots.get_mut(number).idle = None;
        }
    }

    /// Counts one register less that holds a content.
    pub(super) fn let_go(&mut self, number: u32) {
        let slot = self.slots.get_mut(number);
        slot.uses -= 1;
        self.in_use -= u64::from(slot.uses == 0);
        self.settle(number);
    }

    /// Counts the contents that registers hold.
    pub(super) fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Returns the digest of a number that a register holds.
    pub(super) fn digest(&self, number: u32) -> Digest {
        self.slots.get(number).digest
    }

    /// Reports whether a register holds a content.
    pub(super) fn uses(&self, digest: &Digest) -> bool {
        self.slot(digest).is_some_and(|slot| slot.uses > 0)
    }

    /// Yields the contents that registers hold.
    pub(super) fn used(&self) -> impl Iterator<Item = Digest> {
        self.slots
            .starting_at(0)
            .map(|(_, slot)| slot)
            .filter(|slot| slot.uses > 0)
            .map(|slot| slot.digest)
    }

    /// Stores a location if it is younger than the known one; returns whether it was.
    pub(super) fn locate(&mut self, digest: &Digest, location: &Location) -> bool {
        let number = self.number(digest);
        let slot = self.slots.get(number);
        if slot.place != Where::Nowhere && slot.stored_ms >= location.stored_ms {
            return false;
        }
        let (place, name, offset, length) = match &location.site {
            Site::Pack { pack, offset, length } => {
                let name = self.names.hold(pack);
                self.names.reach(name, offset.saturating_add(u64::from(*length)));
                (Where::Pack, name, *offset, *length)
            }
            Site::Object => (Where::Object, 0, 0, 0),
            Site::Inline { commit } => (Where::Inline, self.names.hold(commit), 0, 0),
        };
        self.unname(number);
        let slot = self.slots.get_mut(number);
        (slot.place, slot.name, slot.offset, slot.length) = (place, name, offset, length);
        (slot.size, slot.stored_ms, slot.idle) = (location.size, location.stored_ms, None);
        true
    }

    /// Forgets the location of a content.
    pub(super) fn unlocate(&mut self, digest: &Digest) {
        if let Some(number) = self.find(digest) {
            self.unname(number);
            self.slots.get_mut(number).place = Where::Nowhere;
            self.settle(number);
        }
    }

    fn unname(&mut self, number: u32) {
        let slot = self.slots.get(number);
        if matches!(slot.place, Where::Pack | Where::Inline) {
            self.names.let_go(slot.name);
        }
    }

    /// Returns the location of a content.
    pub(super) fn location(&self, digest: &Digest) -> Option<Location> {
        self.location_in(self.slot(digest)?)
    }

    fn location_in(&self, slot: &Slot) -> Option<Location> {
        let name = || Arc::clone(&self.names.all.get(slot.name).text);
        let site = match slot.place {
            Where::Nowhere => return None,
            Where::Pack => Site::Pack { pack: name(), offset: slot.offset, length: slot.length },
            Where::Object => Site::Object,
            Where::Inline => Site::Inline { commit: name() },
        };
        Some(Location { site, size: slot.size, stored_ms: slot.stored_ms })
    }

    /// Returns when the remote's copy of a content was stored.
    pub(super) fn stored_ms(&self, digest: &Digest) -> Option<u64> {
        let slot = self.slot(digest).filter(|slot| slot.place != Where::Nowhere)?;
        Some(slot.stored_ms)
    }

    /// Yields the locations from slot `first` on, each with the slot that comes after it.
    pub(super) fn locations(&self, first: u32) -> impl Iterator<Item = (u32, Digest, Location)> {
        self.slots
            .starting_at(first)
            .filter_map(|(number, slot)| Some((number + 1, slot.digest, self.location_in(slot)?)))
    }

    /// Returns where the last known frame of a pack ends; 0 for an unknown pack.
    pub(super) fn pack_end(&self, pack: &str) -> u64 {
        let number = self.names.by_text.get(pack);
        number.map_or(0, |number| self.names.all.get(*number).end)
    }
}

/// The names of packs and commits, each stored once.
#[derive(Debug, Default)]
struct PackNames {
    all: PagedTable<Name>,
    by_text: FastMap<Arc<str>, u32>,
}

#[derive(Debug)]
struct Name {
    text: Arc<str>,
    /// The number of contents located there.
    members: u32,
    /// Where the last frame ends.
    end: u64,
}

impl PackNames {
    fn hold(&mut self, text: &Arc<str>) -> u32 {
        if let Some(number) = self.by_text.get(text) {
            self.all.get_mut(*number).members += 1;
            return *number;
        }
        let name = Name { text: Arc::clone(text), members: 1, end: 0 };
        let number = self.all.insert(name);
        self.by_text.insert(Arc::clone(text), number);
        number
    }

    fn reach(&mut self, number: u32, end: u64) {
        let name = self.all.get_mut(number);
        name.end = name.end.max(end);
    }

    fn let_go(&mut self, number: u32) {
        let name = self.all.get_mut(number);
        name.members -= 1;
        if name.members == 0 {
            self.by_text.remove(&name.text);
            self.all.remove(number);
            if is_roomy(self.by_text.capacity(), self.by_text.len()) {
                self.by_text.shrink_to(2 * self.by_text.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(pack: &str, stored_ms: u64) -> Location {
        let site = Site::Pack { pack: pack.into(), offset: 10, length: 5 };
        Location { site, size: 20, stored_ms }
    }

    #[test]
    fn a_slot_is_small() {
        assert!(size_of::<Option<Slot>>() <= 72);
    }

    #[test]
    fn minutes_count_from_the_first_look_since_it_was_held() {
        let (mut places, digest) = (Places::default(), Digest::of(b"x"));
        assert_eq!(places.idle_minutes(&digest, 5), 0);
        places.locate(&digest, &packed("p", 1));
        for from in [0, 5, IDLE_TURN - 1, 3 * IDLE_TURN] {
            assert_eq!(places.idle_minutes(&digest, from), 0);
            assert_eq!(places.idle_minutes(&digest, from + 61), 61);
            let number = places.hold(&digest);
            assert_eq!(places.idle_minutes(&digest, from + 62), 0, "the content is held");
            places.let_go(number);
            assert_eq!(places.idle_minutes(&digest, from + 63), 0, "the content was held");
            assert_eq!(places.idle_minutes(&digest, from + 64), 1);
            places.wake(&digest);
        }
        assert_eq!(places.idle_minutes(&digest, 9), 0);
        assert_eq!(places.idle_minutes(&digest, 19), 10);
        places.locate(&digest, &packed("q", 2));
        assert_eq!(places.idle_minutes(&digest, 29), 0, "the content was stored again");
    }

    /// A few names whose contents are replaced again and again, and the old ones forgotten much
    /// later.
    #[test]
    fn p13_bounded_memory_follows_the_contents_that_are_known() {
        let mut places = Places::default();
        let digest = |n: u32| Digest::of(&n.to_le_bytes());
        let mut held = Vec::new();
        for n in 0..50_000 {
            places.locate(&digest(n), &packed(&(n / 10).to_string(), 1));
            held.push(places.hold(&digest(n)));
            if n >= 100 {
                places.let_go(held[n as usize - 100]);
            }
        }
        assert!(places.capacity() >= 50_000);
        for n in 0..49_900 {
            places.unlocate(&digest(n));
        }
        assert_eq!((places.slots.len(), places.names.all.len()), (100, 10));
        assert!(places.capacity() < 4096, "room for {}", places.capacity());
        assert!((49_900..50_000).all(|n| places.location(&digest(n)).is_some()));
    }

    #[test]
    fn unused_slots_and_names_are_reused() {
        let mut places = Places::default();
        let digests: Vec<Digest> = (0..100_u8).map(|n| Digest::of(&[n])).collect();
        for round in 1..4 {
            for (n, digest) in digests.iter().enumerate() {
                assert!(places.locate(digest, &packed(&format!("{round}-{}", n / 10), round)));
                assert!(!places.locate(digest, &packed("old", round - 1)));
                places.hold(digest);
            }
            assert_eq!(places.pack_end(&format!("{round}-3")), 15);
            for digest in &digests {
                places.unlocate(digest);
                assert_eq!(places.location(digest), None);
                assert!(places.uses(digest));
                let number = places.find(digest).expect("the content is held");
                places.let_go(number);
                assert!(!places.uses(digest));
            }
            assert_eq!(places.pack_end(&format!("{round}-3")), 0);
        }
        assert_eq!((places.slots.len(), places.names.all.len()), (0, 0));
        assert!(places.by_digest.is_empty() && places.names.by_text.is_empty());
    }
}
