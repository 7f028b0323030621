//! Files while they are written and read.

use std::collections::BTreeSet;

use hearthfs_mount::Errno;

use super::{Done, Kind, LastClose, Model, Of, Rights, Text, Thing, Unpublished, What};
use crate::daemon::tests::kernel::Fd;
use crate::daemon::tests::users::W;

impl Model {
    fn draft_of(&self, fd: Fd) -> Option<usize> {
        let file = &self.files[&self.descriptors[&fd].file];
        if let Of::Draft(id) = file.of { Some(id) } else { None }
    }

    pub(super) fn write(&mut self, fd: Fd, at: usize, new: &[u8]) {
        let append = self.files[&self.descriptors[&fd].file].append;
        let Some(id) = self.draft_of(fd) else { return };
        let draft = self.drafts.get_mut(&id).unwrap();
        draft.note_write();
        let at = if append { draft.bytes.len() } else { at };
        let end = at + new.len();
        if draft.bytes.len() < end {
            draft.bytes.resize(end, 0);
        }
        draft.bytes[at..end].copy_from_slice(new);
    }

    pub(super) fn set_size(&mut self, fd: Fd, size: usize) {
        let Some(id) = self.draft_of(fd) else { return };
        let draft = self.drafts.get_mut(&id).unwrap();
        if draft.bytes.len() != size {
            draft.note_write();
            draft.bytes.resize(size, 0);
        }
    }

    pub(super) fn read(&self, fd: Fd) -> Text {
        match &self.files[&self.descriptors[&fd].file].of {
            Of::Draft(id) => Text(self.drafts[id].bytes.clone()),
            Of::Version { text, .. } => text.clone(),
        }
    }

    /// Returns how many bytes a descriptor can read.
    pub(in crate::daemon::tests) fn size_of(&self, fd: Fd) -> usize {
        self.read(fd).0.len()
    }

    /// Reports whether a name leads a program to a file.
    pub(in crate::daemon::tests) fn is_file(&self, program: usize, path: &str) -> bool {
        self.view(program, path).is_some_and(|view| view.kind == Kind::File)
    }

    /// Notes a store through a mapping that has outlived the close.
    pub(super) fn note_late_store(&mut self, mapping: Fd) {
        let closed = self.files[&self.descriptors[&mapping].file].closed;
        let draft = self.draft_of(mapping).and_then(|id| self.drafts.get_mut(&id));
        if let Some(draft) = draft {
            draft.stored_late |= closed;
        }
    }

    /// Returns the name under which the file of a writing descriptor will be published.
    pub(in crate::daemon::tests) fn name_written(&self, fd: Fd) -> Option<String> {
        self.draft_of(fd).and_then(|id| self.drafts[&id].name.clone())
    }

    /// Reports whether a descriptor can write.
    pub(in crate::daemon::tests) fn writes(&self, fd: Fd) -> bool {
        self.files[&self.descriptors[&fd].file].write
    }

    /// Rules 4 and 10: the close of the last descriptor that can write, by the process that opened
    /// it, publishes. Later writes, through a descriptor or mapping that is left, are published
    /// when that ends.
    pub(super) fn close(&mut self, fd: Fd) {
        let descriptor = self.descriptors.remove(&fd).unwrap();
        let number = descriptor.file;
        let held = self.descriptors.values().any(|other| other.file == number);
        let file = self.files.get_mut(&number).unwrap();
        file.closed |= file.opener == descriptor.program && !descriptor.mapping;
        let (closed, writes) = (file.closed, file.write);
        if let Of::Draft(id) = file.of
            && writes
        {
            if closed && (!descriptor.mapping || !held) {
                let draft = self.drafts.get_mut(&id).unwrap();
                draft.closed = LastClose::AsNow;
                let by_mapping = draft.writer.filter(|_| descriptor.mapping);
                if !self.is_open(id) {
                    self.publish(id, by_mapping.or(Some(descriptor.program)));
                }
            }
            if !held {
                self.files.remove(&number);
                if self.writers(id).next().is_none() {
                    self.end(id);
                }
            }
        } else if !held {
            self.files.remove(&number);
        }
        self.tidy_locks();
    }

    /// Publishes the part of a draft that is not published yet.
    pub(super) fn publish(&mut self, id: usize, closer: Option<usize>) {
        let draft = self.drafts[&id].clone();
        let Some(name) = &draft.name else { return };
        if draft.unpublished == Unpublished::default() {
            return;
        }
        // P14: if the name of a writer has got a file that the writer may not write, the close
        // succeeds, and that file stays.
        if let Some(there) = self.published(name)
            && draft.base != Some(there.put)
        {
            let may = closer.is_some_and(|program| self.users[program].may(W, there.rights));
            if !matches!(there.what, What::File(_)) || !may {
                self.drafts.get_mut(&id).unwrap().name = None;
                return;
            }
        }
        let mut names = vec![name.clone()];
        if draft.group.is_some() {
            let others = self
                .live_below("")
                .filter(|(path, thing)| thing.group == draft.group && *path != name);
            names.extend(others.map(|(path, _)| path.clone()));
        }
        let text = Text(draft.bytes.clone());
        let what = What::File(text.clone());
        let put = self.next();
        let thing = Thing { what, rights: draft.rights, group: draft.group, put };
        for name in names {
            self.put(&name, thing.clone());
        }
        let draft = self.drafts.get_mut(&id).unwrap();
        draft.unpublished = Unpublished::default();
        (draft.left, draft.renamed) = (Some(text), false);
        (draft.began, draft.base) = (Some(put), Some(put));
    }

    /// Ends a draft that no process can write any more. Processes that have it open for reading go
    /// on.
    pub(super) fn end(&mut self, id: usize) {
        let Some(draft) = self.drafts.remove(&id) else { return };
        let saved = !draft.unpublished.wrote && !draft.unpublished.fresh;
        let put = draft.base.filter(|_| saved && draft.name.is_some()).unwrap_or(0);
        let text = Text(draft.bytes);
        let of = Of::Version { text, rights: draft.rights, put };
        for file in self.files.values_mut().filter(|file| file.of == Of::Draft(id)) {
            file.of = of.clone();
        }
    }

    fn written_by(&self, who: impl Fn(usize) -> bool) -> BTreeSet<usize> {
        let files = self.files.values().filter(|file| file.write && who(file.opener));
        files.filter_map(|file| if let Of::Draft(id) = file.of { Some(id) } else { None }).collect()
    }

    /// Reports whether a program shares a file that it writes with another program, or with another
    /// open file.
    pub(in crate::daemon::tests) fn shares(&self, program: usize) -> bool {
        let mine: BTreeSet<usize> = self.written_by(|of| of == program);
        let shared = |number: &Fd, file: &super::File| {
            let held = self.descriptors.values().filter(|one| one.file == *number);
            let own = held.clone().filter(|one| one.program == program && !one.mapping).count();
            let others = held.count() - own;
            (file.opener == program && others > 0) || (file.opener != program && own > 0) || own > 1
        };
        // The documents do not say whether the end of another program's mapping counts as a close.
        mine.iter().any(|id| self.drafts[id].stored_late)
            || !mine.is_disjoint(&self.written_by(|of| of != program))
            || self.files.iter().any(|(number, file)| shared(number, file))
    }

    /// P2: files that a program had open for writing when it was killed are not published.
    pub(in crate::daemon::tests) fn die(&mut self, program: usize) {
        for id in self.written_by(|of| of == program) {
            let draft = &self.drafts[&id];
            // The version that it had closed before stays, if nothing was written since.
            let stays = match draft.closed {
                LastClose::Never => false,
                LastClose::Before => !draft.unpublished.wrote,
                LastClose::AsNow => true,
            };
            if stays {
                self.publish(id, Some(program));
            }
            self.end(id);
        }
        self.files.retain(|_, file| file.opener != program);
        self.descriptors.retain(|_, descriptor| descriptor.program != program);
        // A later process with the same number is a different one.
        for draft in self.drafts.values_mut() {
            draft.members.remove(&program);
        }
        self.tidy_locks();
    }

    /// Rule 5: the truncated file is published at once.
    pub(super) fn truncate(&mut self, program: usize, path: &str, size: usize) -> Done {
        self.walk(program, path)?;
        let view = self.view(program, path).ok_or(Errno::ENOENT)?;
        match view.kind {
            Kind::Dir => return Err(Errno::EISDIR),
            Kind::Link => return Err(Errno::EINVAL),
            Kind::File => self.permit(program, view.rights, W)?,
        }
        let Some(thing) = self.published(path) else { return Ok(()) };
        let mut text = thing.text().cloned().unwrap_or_default();
        if text.0.len() != size {
            text.0.resize(size, 0);
            let id = self.begin(Some(path), Some(thing), view.rights, false, false);
            let draft = self.drafts.get_mut(&id).unwrap();
            draft.bytes = text.0;
            draft.note_write();
            self.publish(id, Some(program));
            self.end(id);
        }
        Ok(())
    }

    /// P14, P15: a change of the mode by name applies to what the name has.
    pub(super) fn set_mode(&mut self, program: usize, path: &str, mode: u32) -> Done {
        self.walk(program, path)?;
        let view = self.view(program, path).ok_or(Errno::ENOENT)?;
        if !self.users[program].owns(view.rights) {
            return Err(Errno::EPERM);
        }
        let put = match view.draft {
            Some(id) => self.drafts[&id].began,
            None => self.published(path).map(|thing| thing.put),
        };
        if view.kind == Kind::Dir && put == Some(0) {
            let put = self.next();
            let rights = Rights { mode, ..view.rights };
            self.put(path, Thing { what: What::Dir, rights, group: None, put });
            return Ok(());
        }
        self.change_mode(put, view.draft, mode);
        Ok(())
    }

    /// P14: a change of the mode through a descriptor applies to the descriptor's file.
    pub(super) fn set_mode_of(&mut self, program: usize, fd: Fd, mode: u32) -> Done {
        let (put, draft, rights) = match &self.files[&self.descriptors[&fd].file].of {
            Of::Draft(id) => (self.drafts[id].began, Some(*id), self.drafts[id].rights),
            Of::Version { put, rights, .. } => (Some(*put), None, *rights),
        };
        if !self.users[program].owns(rights) {
            return Err(Errno::EPERM);
        }
        self.change_mode(put, draft, mode);
        Ok(())
    }

    fn change_mode(&mut self, put: Option<u64>, draft: Option<usize>, mode: u32) {
        let put = put.filter(|put| *put != 0);
        let has = |thing: &Option<Thing>| thing.as_ref().map(|thing| thing.put) == put;
        let paths: Vec<String> = self
            .registers
            .iter()
            .filter(|(_, (_, thing))| put.is_some() && has(thing))
            .map(|(path, _)| path.clone())
            .collect();
        for path in &paths {
            let number = self.next();
            let (changed, thing) = self.registers.get_mut(path).unwrap();
            *changed = number;
            thing.as_mut().unwrap().rights.mode = mode;
        }
        // All names of a file with hard links lead to one file, whichever version it has.
        let linked: BTreeSet<u64> =
            paths.iter().filter_map(|path| self.published(path)?.group).collect();
        for (id, other) in &mut self.drafts {
            let next = other.began == put || other.group.is_some_and(|of| linked.contains(&of));
            let same = !paths.is_empty() && next && other.name.is_some();
            if same || draft == Some(*id) {
                other.unpublished.changed |= paths.is_empty() && other.rights.mode != mode;
                other.rights.mode = mode;
            }
        }
        // If the name is gone, the written file and the read one are changed separately.
        let shared = draft.is_none() || !paths.is_empty();
        for file in self.files.values_mut() {
            if let Of::Version { rights, put: of, .. } = &mut file.of
                && put == Some(*of)
                && shared
            {
                rights.mode = mode;
            }
        }
    }

    /// Makes the file of a writing descriptor one that is published even if nothing is written.
    pub(in crate::daemon::tests) fn freshen(&mut self, fd: Fd) {
        let draft = self.draft_of(fd).and_then(|id| self.drafts.get_mut(&id));
        if let Some(draft) = draft {
            draft.unpublished.fresh = true;
        }
    }

    /// Takes the name from the file of a writing descriptor.
    pub(in crate::daemon::tests) fn lose_name(&mut self, fd: Fd) {
        let draft = self.draft_of(fd).and_then(|id| self.drafts.get_mut(&id));
        if let Some(draft) = draft {
            draft.name = None;
        }
    }

    /// Reports whether a file may arrive under a name. It must not raise a question that the
    /// documents leave open: about directories, or about the names of a file with hard links whose
    /// writer closes it after it has lost one.
    pub(in crate::daemon::tests) fn admits(&self, path: &str) -> bool {
        let dir = super::parent(path);
        let made = self.registers.get(dir).is_some_and(|(_, thing)| thing.is_some());
        let is_dir = |thing: Thing| thing.what == What::Dir;
        let group = self.published(path).and_then(|thing| thing.group);
        let linked = group.is_some() && self.drafts.values().any(|draft| draft.group == group);
        !linked
            && (dir.is_empty() || made)
            && self.published(dir).is_some_and(is_dir)
            && !self.published(path).is_some_and(is_dir)
            && self.live_below(path).next().is_none()
    }

    /// Applies a change of another node to a name.
    pub(in crate::daemon::tests) fn arrive(
        &mut self,
        path: &str,
        what: Option<(Text, Rights)>,
        put: u64,
    ) {
        let thing =
            what.map(|(text, rights)| Thing { what: What::File(text), rights, group: None, put });
        self.registers.insert(path.to_owned(), (put, thing));
    }
}
