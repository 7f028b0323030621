//! Files while they are written and read.

use std::collections::BTreeSet;

use hearthfs_mount::Errno;

use super::{Bytes, Counter, Done, Draft, Handle, Model, Thing, Wish};
use crate::daemon::tests::kernel::Fd;

impl Model {
    /// Rules 1, 2 and 5.
    pub(in crate::daemon::tests) fn open_to_write(
        &mut self,
        program: usize,
        path: &str,
        fd: Fd,
        wish: Wish,
    ) -> Done {
        self.walk(path)?;
        let published = self.published(path);
        let taken = self.is_taken(path);
        match &published {
            _ if !taken && !wish.create => return Err(Errno::ENOENT),
            _ if taken && wish.create && wish.exclusive => return Err(Errno::EEXIST),
            Some(Thing::Dir) => return Err(Errno::EISDIR),
            Some(Thing::Link(..)) => return Err(Errno::ENXIO),
            _ => {}
        }
        let admits = |draft: &Draft| !wish.truncate || draft.members.contains(&program);
        let open = self.drafts_at(path).filter(|(_, draft)| admits(draft)).map(|(id, _)| id).last();
        let id = if let Some(id) = open {
            let draft = self.drafts.get_mut(&id).unwrap();
            if wish.truncate && !draft.bytes.is_empty() {
                (draft.bytes, draft.fresh, draft.wrote) = (Vec::new(), true, true);
            }
            id
        } else {
            self.begin(path, published, wish)
        };
        let draft = self.drafts.get_mut(&id).unwrap();
        draft.writers += 1;
        draft.members.insert(program);
        self.handles.insert(fd, Handle { program, write: true, bytes: Bytes::Draft(id) });
        Ok(())
    }

    pub(super) fn begin(&mut self, path: &str, published: Option<Thing>, wish: Wish) -> usize {
        let was_empty = matches!(&published, Some(Thing::File(bytes, _)) if bytes.is_empty());
        let (base, group) = match published {
            Some(Thing::File(bytes, group)) => (Some(bytes), group),
            _ => (None, None),
        };
        let draft = Draft {
            name: Some(path.to_owned()),
            fresh: base.is_none() || (wish.truncate && !was_empty),
            bytes: base.filter(|_| !wish.truncate).unwrap_or_default(),
            members: BTreeSet::new(),
            writers: 0,
            wrote: false,
            closed_once: false,
            group,
        };
        self.next_draft += 1;
        self.drafts.insert(self.next_draft, draft);
        self.next_draft
    }

    /// Rule 3.
    pub(in crate::daemon::tests) fn open_to_read(
        &mut self,
        program: usize,
        path: &str,
        fd: Fd,
    ) -> Done {
        self.walk(path)?;
        let own = self.drafts_at(path).filter(|(_, d)| d.members.contains(&program)).last();
        let bytes = match (own, self.published(path)) {
            (Some((id, _)), _) => Bytes::Draft(id),
            (None, Some(Thing::File(bytes, _))) => Bytes::Version(bytes),
            (None, Some(Thing::Dir)) => return Err(Errno::EISDIR),
            (None, Some(Thing::Link(..))) => return Err(Errno::ENXIO),
            (None, None) => return Err(Errno::ENOENT),
        };
        self.handles.insert(fd, Handle { program, write: false, bytes });
        Ok(())
    }

    pub(in crate::daemon::tests) fn write(&mut self, fd: Fd, at: usize, new: &[u8]) {
        let Bytes::Draft(id) = self.handles[&fd].bytes else { return };
        let draft = self.drafts.get_mut(&id).unwrap();
        draft.wrote = true;
        let end = at + new.len();
        if draft.bytes.len() < end {
            draft.bytes.resize(end, 0);
        }
        draft.bytes[at..end].copy_from_slice(new);
    }

    pub(in crate::daemon::tests) fn set_size(&mut self, fd: Fd, size: usize) {
        let Bytes::Draft(id) = self.handles[&fd].bytes else { return };
        let draft = self.drafts.get_mut(&id).unwrap();
        if draft.bytes.len() != size {
            draft.wrote = true;
            draft.bytes.resize(size, 0);
        }
    }

    pub(in crate::daemon::tests) fn read(&self, fd: Fd) -> Vec<u8> {
        match &self.handles[&fd].bytes {
            Bytes::Draft(id) => self.drafts[id].bytes.clone(),
            Bytes::Version(bytes) => bytes.clone(),
        }
    }

    pub(in crate::daemon::tests) fn handles(&self) -> Vec<(Fd, usize, bool)> {
        self.handles.iter().map(|(fd, handle)| (*fd, handle.program, handle.write)).collect()
    }

    /// Rule 4: the close of the last descriptor that can write publishes.
    pub(in crate::daemon::tests) fn close(&mut self, counter: &mut Counter, fd: Fd) {
        let Some(handle) = self.handles.remove(&fd) else { return };
        let Bytes::Draft(id) = handle.bytes else { return };
        if handle.write {
            let draft = self.drafts.get_mut(&id).unwrap();
            (draft.writers, draft.closed_once) = (draft.writers - 1, true);
            if draft.writers == 0 {
                self.publish(counter, id);
            }
        }
    }

    pub(super) fn publish(&mut self, counter: &mut Counter, id: usize) {
        let draft = self.drafts[&id].clone();
        if let Some(name) = &draft.name
            && (draft.wrote || draft.fresh)
        {
            let same =
                |thing: &Thing| matches!(thing, Thing::File(_, group) if *group == draft.group);
            let mut names = vec![name.clone()];
            if draft.group.is_some() {
                let others =
                    self.live_below("").filter(|(path, thing)| same(thing) && *path != name);
                names.extend(others.map(|(path, _)| path.clone()));
            }
            for name in names {
                self.put(counter, &name, Thing::File(draft.bytes.clone(), draft.group));
            }
        }
        self.end(id);
    }

    /// Takes a draft out of its name; who has it open for reading goes on.
    pub(super) fn end(&mut self, id: usize) {
        let bytes = match self.drafts.remove(&id) {
            Some(draft) => draft.bytes,
            None => return,
        };
        for handle in self.handles.values_mut() {
            if matches!(handle.bytes, Bytes::Draft(of) if of == id) {
                handle.bytes = Bytes::Version(bytes.clone());
            }
        }
    }

    /// Reports whether a program shares a draft with another, by an open descriptor of each.
    pub(in crate::daemon::tests) fn shares(&self, program: usize) -> bool {
        let mine: BTreeSet<usize> = self.written_by(|of| of == program);
        !mine.is_disjoint(&self.written_by(|of| of != program))
    }

    pub(super) fn written_by(&self, who: impl Fn(usize) -> bool) -> BTreeSet<usize> {
        let handles = self.handles.values().filter(|handle| handle.write && who(handle.program));
        handles
            .filter_map(|handle| if let Bytes::Draft(id) = handle.bytes { Some(id) } else { None })
            .collect()
    }

    /// P2: what a program had open for writing when it was killed is not published.
    pub(in crate::daemon::tests) fn die(&mut self, counter: &mut Counter, program: usize) {
        for id in self.written_by(|of| of == program) {
            let draft = &self.drafts[&id];
            // What somebody closed before stands, as long as nothing was written.
            if draft.wrote || !draft.closed_once {
                self.end(id);
            } else {
                self.publish(counter, id);
            }
        }
        self.handles.retain(|_, handle| handle.program != program);
        // Who comes next under its number is another process.
        for draft in self.drafts.values_mut() {
            draft.members.remove(&program);
        }
    }

    pub(in crate::daemon::tests) fn truncate(
        &mut self,
        counter: &mut Counter,
        path: &str,
        size: usize,
    ) -> Done {
        self.walk(path)?;
        match self.published(path) {
            Some(Thing::File(mut bytes, group)) => {
                if bytes.len() == size {
                    return Ok(());
                }
                bytes.resize(size, 0);
                let draft = Draft {
                    name: Some(path.to_owned()),
                    bytes,
                    members: BTreeSet::new(),
                    writers: 0,
                    fresh: true,
                    wrote: true,
                    closed_once: true,
                    group,
                };
                self.next_draft += 1;
                self.drafts.insert(self.next_draft, draft);
                self.publish(counter, self.next_draft);
                Ok(())
            }
            Some(Thing::Dir) => Err(Errno::EISDIR),
            Some(Thing::Link(..)) => Err(Errno::EINVAL),
            None => Err(Errno::ENOENT),
        }
    }
}
