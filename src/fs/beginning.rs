//! Beginnings: what a generation begins from, and on which inode its handle stands.

use hearthfs_mount::{Ino, OpenFlags};

use super::generation::Generation;
use super::inode::{Mode, Node, Spot};
use super::state::State;
use super::who::Who;
use crate::digest::Digest;
use crate::namespace::{Attrs, Entry};

/// How often a beginning is tried again.
pub(super) const BEGIN_TRIES_MAX: u32 = 16;

/// A generation that is asked for.
#[derive(Clone)]
pub(super) struct Beginning {
    pub(super) spot: Spot,
    /// What the name leads to now.
    pub(super) base: Option<Entry>,
    pub(super) who: Who,
    pub(super) flags: OpenFlags,
    /// The inode that the kernel wants to open; `None` when it takes whichever it is given.
    pub(super) requested: Option<Ino>,
    /// Attributes of a new file.
    pub(super) attrs: Option<Attrs>,
    /// Whoever asks must not be sent back to look again.
    pub(super) last: bool,
    /// The name has gone since he looked: what he writes comes under none.
    pub(super) orphan: bool,
    /// How often it may still be tried again.
    pub(super) tries: u32,
}

/// Where a new generation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stand {
    /// On an inode of its own.
    Fresh,
    /// On one that was promised to its writer.
    Promised(Ino),
    /// On the inode of the empty file that it takes over.
    InPlace(Ino),
    /// As a guest on another's inode.
    Guest(Ino),
}

impl Stand {
    /// Returns the inode on which its handle stands, if the kernel knows that already.
    pub(super) fn inode(self) -> Option<Ino> {
        match self {
            Self::Fresh => None,
            Self::Promised(ino) | Self::InPlace(ino) | Self::Guest(ino) => Some(ino),
        }
    }
}

impl Beginning {
    /// Makes one that begins from nothing.
    pub(super) fn of(spot: Spot, who: Who, flags: OpenFlags, requested: Option<Ino>) -> Self {
        let (base, attrs, tries) = (None, None, BEGIN_TRIES_MAX);
        Self { spot, base, who, flags, requested, attrs, last: false, orphan: false, tries }
    }

    /// Reports whether it makes a file. The kernel does not look again for who does that; and who opens what
    /// another is making makes none by closing it.
    pub(super) fn creates(&self) -> bool {
        self.requested.is_none() && self.attrs.is_some()
    }

    /// Decides where the generation stands.
    pub(super) fn stand(&self, state: &State) -> Stand {
        if let Some(ino) = self.requested.filter(|ino| state.is_promised(*ino)) {
            return Stand::Promised(ino);
        }
        let content = self.base.as_ref().and_then(Entry::content);
        let empty_base = content.is_some_and(|(_, size)| size == 0);
        let bound = state.slots.get(&self.spot).and_then(|slot| slot.published);
        // A lock file is opened for writing by many and written by none: all must get one inode.
        let in_place =
            bound.filter(|ino| !self.orphan && empty_base && is_empty_version(state, *ino));
        let stand = match in_place {
            Some(ino) => Stand::InPlace(ino),
            None => host(state, &self.spot, self.who, self.flags, self.requested)
                .map_or(Stand::Fresh, Stand::Guest),
        };
        match self.requested {
            Some(ino) if self.last && stand.inode() != Some(ino) => Stand::Guest(ino),
            _ => stand,
        }
    }

    /// Reports whether the kernel has to look again, because it wants to open another inode.
    pub(super) fn leads_elsewhere(&self, state: &State) -> bool {
        self.requested.is_some() && self.stand(state).inode() != self.requested
    }

    /// Returns the content that has to be copied first.
    pub(super) fn copy(&self) -> Option<(Digest, u64)> {
        if self.flags.truncate {
            return None;
        }
        self.base.as_ref()?.content().filter(|(_, size)| *size > 0)
    }

    pub(super) fn copies(&self) -> bool {
        self.copy().is_some()
    }
}

/// Reports whether an inode is a published file without content that a generation may take over.
fn is_empty_version(state: &State, ino: Ino) -> bool {
    state.inodes.get(&ino).is_some_and(|inode| {
        matches!(&inode.node, Node::Version { entry, .. }
            if entry.content().is_some_and(|(_, size)| size == 0))
            && inode.mode != Some(Mode::Passthrough)
    })
}

/// Returns the inode on which a new generation's handle shall stand although it is another's: for a caller
/// of whom nothing is known, the one that it asked for; for one that empties what another has open and has
/// not written, the inode of that.
fn host(
    state: &State,
    spot: &Spot,
    who: Who,
    flags: OpenFlags,
    requested: Option<Ino>,
) -> Option<Ino> {
    if who == Who::Unseen && requested.is_some() {
        return requested;
    }
    let bound = state.slots.get(spot).and_then(|slot| slot.published);
    let wanted = |ino: &Ino| requested.is_none_or(|wanted| wanted == *ino);
    // An empty file whose open handles are passed through cannot be taken over, only shared.
    let passed = bound.filter(|ino| {
        state.inodes.get(ino).is_some_and(|inode| {
            matches!(&inode.node, Node::Version { entry, .. }
                if entry.content().is_some_and(|(_, size)| size == 0))
                && inode.mode == Some(Mode::Passthrough)
        })
    });
    if passed.is_some() || !flags.truncate {
        return passed.filter(wanted);
    }
    let in_place = bound.and_then(|ino| match state.inodes.get(&ino).map(|inode| &inode.node) {
        Some(Node::Generation(id)) => Some(*id),
        _ => None,
    });
    let open = state.private_generations(spot).chain(in_place);
    let ino = open
        .filter_map(|id| state.generations.get(&id))
        .filter(|generation| {
            let empty = generation.published.as_ref().is_none_or(|p| p.mark.size == 0);
            !generation.guest
                && (generation.writers > 0 || generation.published.is_some())
                && empty
                && !generation.unpublished_bytes()
        })
        .map(Generation::home)
        .last()?;
    Some(ino).filter(wanted)
}
