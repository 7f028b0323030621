//! Opening to write: which generation a handle writes.
//!
//! A writer joins the generation that is open under the name, or begins one of its own. Where that is another
//! inode than the one the kernel looked up, the answer is `ESTALE`, and the name leads there. Nobody may join
//! what is being published: bytes that come then were closed by nobody.

use std::sync::Arc;
use std::time::Duration;

use hearthfs_mount::{Answer, Errno, Handle, Ino, Io, OpenFlags, Opened, Reply};

use super::beginning::Beginning;
use super::create::MOVED;
use super::filesystem::Filesystem;
use super::generation::{Generation, Stage};
use super::handle::{Bytes, OpenFile};
use super::inode::{GenId, Mode, Node, Spot};
use super::open::{Wish, beside, count_open, io_of};
use super::state::State;
use super::who::Who;
use crate::namespace::Entry;

/// What an open for writing comes to.
pub(super) enum Writing {
    /// It shares this generation.
    Join(GenId),
    /// It begins one of its own under this name, from this content.
    Begin { spot: Spot, base: Option<Entry> },
    /// What it would share is being published just now, and begins from that.
    Wait(tokio::sync::watch::Receiver<Stage>),
    /// It comes under no name: this one has gone since the caller looked.
    Orphan(Spot),
}

impl Filesystem {
    pub(super) fn open_to_write(&self, ino: Ino, wish: Wish, wait: Duration) -> Answer<Opened> {
        let planned = {
            let mut state = self.0.state.lock();
            match self.plan_write(&state, ino, wish) {
                Ok(Writing::Join(id)) => return self.join(&mut state, ino, id, wish).into(),
                Ok(Writing::Wait(moved)) => Err(moved),
                Ok(Writing::Begin { spot, base }) => {
                    let asked = Beginning { base, ..beginning(&state, ino, wish, spot) };
                    if asked.leads_elsewhere(&state) {
                        return Err(Errno::ESTALE).into();
                    }
                    Ok(asked)
                }
                Ok(Writing::Orphan(spot)) => {
                    let base = state.entry_of(ino).filter(|entry| entry.content().is_some());
                    Ok(Beginning { base, orphan: true, ..beginning(&state, ino, wish, spot) })
                }
                Err(errno) => return Err(errno).into(),
            }
        };
        let this = self.clone();
        let asked = match planned {
            Ok(asked) => asked,
            Err(mut moved) => {
                return Answer::later(async move {
                    let left = this.wait_for(&mut moved, wait).await.ok_or(Errno::ETIMEDOUT)?;
                    match this.open_to_write(ino, wish, left) {
                        Answer::Now(reply) => reply,
                        Answer::Later(work) => work.await,
                    }
                });
            }
        };
        if self.has_room() && !asked.copies() {
            match self.begin_now(asked.clone()) {
                Err(MOVED) => {}
                begun => return begun.map(|begun| begun.opened).into(),
            }
        }
        Answer::later(
            async move { this.begin_when_possible(asked).await.map(|begun| begun.opened) },
        )
    }

    /// Decides what an open for writing of an inode comes to.
    fn plan_write(&self, state: &State, ino: Ino, wish: Wish) -> Reply<Writing> {
        let Wish { who, flags, last } = wish;
        let inode = state.inodes.get(&ino).ok_or(Errno::ESTALE)?;
        match &inode.node {
            Node::Directory => return Err(Errno::EISDIR),
            Node::Version { entry, .. } if entry.content().is_none() => return Err(Errno::ENXIO),
            Node::Generation(id) => {
                let generation = state.generations.get(id).ok_or(Errno::ESTALE)?;
                if generation.admits(who, flags) || generation.is_awaited(flags) {
                    return Ok(sharing(*id, generation));
                }
            }
            Node::Version { entry, changed_ms } if !last => self.use_content(entry, *changed_ms)?,
            Node::Version { .. } | Node::Gone(_) | Node::Promised(_) => {}
        }
        // Another version may have taken the place of this one since the kernel looked it up.
        let spot =
            state.place_to_write(state.owner(ino)).or(inode.last.clone()).ok_or(Errno::ESTALE)?;
        match self.plan_write_at(state, spot.clone(), who, flags) {
            Ok(Writing::Begin { base: None, .. })
                if state.private_generations(&spot).next().is_none() => {}
            Err(Errno::ESTALE) => {}
            plan => return plan,
        }
        // The name is gone since: whether to make it again, only the program knows. Who has been asked that
        // already has the file as it was when he looked.
        if last { Ok(Writing::Orphan(spot)) } else { Err(Errno::ESTALE) }
    }

    /// Decides what an open for writing of a name comes to.
    pub(super) fn plan_write_at(
        &self,
        state: &State,
        spot: Spot,
        who: Who,
        flags: OpenFlags,
    ) -> Reply<Writing> {
        let path = state.path_of(&spot).ok_or(Errno::ESTALE)?;
        let linked: Vec<GenId> = if state.linked.is_empty() {
            Vec::new()
        } else {
            self.seen(&path).map_or(Vec::new(), |seen| state.linked(&seen.entry).collect())
        };
        let open = linked.into_iter().chain(state.private_generations(&spot));
        let joinable = open.filter_map(|id| {
            let generation = state.generations.get(&id)?;
            let welcome = !generation.guest || generation.members.contains(&who);
            (welcome && generation.admits(who, flags)).then_some((id, generation))
        });
        if let Some((id, generation)) = joinable.last() {
            return Ok(sharing(id, generation));
        }
        let bound = state.slots.get(&spot).and_then(|slot| slot.published);
        if let Some(Node::Generation(id)) =
            bound.and_then(|ino| state.inodes.get(&ino)).map(|inode| &inode.node)
            && let Some(generation) =
                state.generations.get(id).filter(|g| g.admits(who, flags) || g.is_awaited(flags))
        {
            return Ok(sharing(*id, generation));
        }
        let base = self.seen(&path).map(|seen| seen.entry);
        if base.as_ref().is_some_and(|entry| entry.content().is_none()) {
            return Err(Errno::ESTALE);
        }
        Ok(Writing::Begin { spot, base })
    }

    /// Makes a writing handle on a generation that is open.
    pub(super) fn join(
        &self,
        state: &mut State,
        requested: Ino,
        id: GenId,
        wish: Wish,
    ) -> Reply<Opened> {
        let Wish { who, flags, last } = wish;
        let generation = state.generations.get_mut(&id).ok_or(Errno::ESTALE)?;
        if generation.home() != requested && generation.ino != requested && !last {
            generation.invited.insert(who);
            return Err(Errno::ESTALE);
        }
        if flags.truncate && generation.file().metadata()?.len() > 0 {
            generation.set_size(0)?;
            generation.fresh = true;
        }
        Ok(attach_writer(self, state, requested, id, who, flags))
    }
}

/// Begins to write an inode, with the attributes that it has.
fn beginning(state: &State, ino: Ino, wish: Wish, spot: Spot) -> Beginning {
    let Wish { who, flags, last } = wish;
    let attrs = state.entry_of(ino).map(|entry| entry.attrs);
    Beginning { attrs, last, ..Beginning::of(spot, who, flags, Some(ino)) }
}

/// Shares a generation, once nobody is reading it to publish it: whoever wrote to it then would change what
/// another has closed.
fn sharing(id: GenId, generation: &Generation) -> Writing {
    if generation.settling {
        return Writing::Wait(generation.moved.subscribe());
    }
    Writing::Join(id)
}

/// Makes a writing handle on a generation; the caller has checked that it may.
pub(super) fn attach_writer(
    fs: &Filesystem,
    state: &mut State,
    ino: Ino,
    id: GenId,
    who: Who,
    flags: OpenFlags,
) -> Opened {
    let Some(generation) = state.generations.get_mut(&id) else {
        return Opened { handle: Handle(0), io: Io::Direct, no_flush: false };
    };
    generation.writers += 1;
    generation.invited.remove(&who);
    generation.members.insert(who);
    let source = Arc::clone(&generation.source);
    let own_inode = generation.ino == ino;
    let io = if own_inode {
        count_open(state, ino);
        match fs.settle_mode(state, ino, &source) {
            // The kernel takes the end from its idea of the size, which a guest may have moved.
            Mode::Cached if flags.append => Io::Direct,
            mode => io_of(mode, &source, flags),
        }
    } else {
        beside(state, ino)
    };
    let handle = state.fresh_handle();
    let file = OpenFile {
        ino,
        who,
        write: true,
        to_the_end: flags.append && (!own_inode || matches!(io, Io::Direct)),
        bytes: Bytes::Source(source),
        generation: Some(id),
        closed: false,
        flushed: false,
    };
    state.files.insert(handle, file);
    state.share_lock(handle);
    Opened { handle, io, no_flush: false }
}
