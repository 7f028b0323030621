//! Opening files: by a name, and through `/proc/self/fd`.

use std::collections::BTreeSet;

use hearthfs_mount::{Errno, OpenFlags};

use super::{
    Call, Descriptor, Done, Draft, File, Kind, LastClose, Model, Of, Rights, Text, Thing,
    Unpublished, View, What, parent, wants,
};
use crate::daemon::tests::kernel::Fd;
use crate::daemon::tests::users::SETGID;

/// The most drafts of one name: the documents say only for the newest which of them a writer joins
/// (rule 2).
const DRAFTS_MAX: usize = 2;

impl Model {
    /// Returns the rights of something that a program makes.
    pub(super) fn rights_for_new(&self, program: usize, path: &str, mode: u32) -> Rights {
        let (user, dir) = (self.users[program], self.rights_of_dir(parent(path)));
        let gid = if dir.mode & SETGID == 0 { user.gid } else { dir.gid };
        Rights { uid: user.uid, gid, mode }
    }

    fn add(&mut self, program: usize, fd: Fd, flags: OpenFlags, of: Of, table: u64, aside: bool) {
        let file = File {
            opener: program,
            write: flags.writes(),
            append: flags.append,
            of,
            closed: false,
            aside,
            table,
            lock: None,
        };
        self.files.insert(fd, file);
        self.descriptors.insert(fd, Descriptor { program, file: fd, mapping: false });
    }

    /// Opens a file by name (rules 1, 2, 3 and 5).
    pub(super) fn open(
        &mut self,
        program: usize,
        path: &str,
        fd: Fd,
        flags: OpenFlags,
        mode: Option<u32>,
    ) -> Done {
        self.walk(program, path)?;
        let Some(view) = self.view(program, path) else {
            let mode = mode.ok_or(Errno::ENOENT)?;
            self.permit_change(program, path)?;
            let rights = self.rights_for_new(program, path, mode);
            self.create(program, path, fd, flags, rights);
            return Ok(());
        };
        if mode.is_some() && flags.exclusive {
            return Err(Errno::EEXIST);
        }
        if view.kind == Kind::Dir {
            return Err(Errno::EISDIR);
        }
        self.permit(program, view.rights, wants(flags))?;
        if view.kind == Kind::Link {
            return Err(Errno::ENXIO);
        }
        let of = if flags.writes() {
            let id = self.draft_to_write(program, path, &view, flags, None)?;
            Of::Draft(id)
        } else {
            match (view.draft, self.published(path)) {
                (Some(id), _) if self.drafts[&id].members.contains(&program) => Of::Draft(id),
                (None, Some(thing)) => version_of(&thing),
                // It waits for the first publish, which does not come in time.
                _ => return Err(Errno::ENOENT),
            }
        };
        let table = self.table_of(path);
        self.add(program, fd, flags, of, table, false);
        Ok(())
    }

    fn create(&mut self, program: usize, path: &str, fd: Fd, flags: OpenFlags, rights: Rights) {
        self.detach(path);
        let of = if flags.writes() {
            let id = self.begin(Some(path), None, rights, true, flags.truncate);
            self.join(program, id, false);
            Of::Draft(id)
        } else {
            let what = What::File(Text::default());
            let thing = Thing { what, rights, group: None, put: self.next() };
            self.put(path, thing.clone());
            version_of(&thing)
        };
        let table = self.table_of(path);
        self.add(program, fd, flags, of, table, false);
    }

    /// Finds or begins the draft for an open that writes. With `of`, only a draft that began from
    /// this version is the same file.
    fn draft_to_write(
        &mut self,
        program: usize,
        path: &str,
        view: &View,
        flags: OpenFlags,
        of: Option<u64>,
    ) -> Result<usize, Errno> {
        let joins = |id: &usize| {
            let draft = &self.drafts[id];
            let member = draft.members.contains(&program);
            let same = of.is_none() || draft.began == of;
            same && self.concerns(*id, path) && (!flags.truncate || member)
        };
        let joined = self.drafts_at(path).map(|(id, _)| id).filter(joins).last();
        let id = if let Some(id) = joined {
            // The draft may have begun with other rights than the name has now.
            self.permit(program, self.drafts[&id].rights, wants(flags))?;
            id
        } else {
            self.begin(Some(path), self.published(path), view.rights, false, flags.truncate)
        };
        self.join(program, id, joined.is_some() && flags.truncate);
        Ok(id)
    }

    fn join(&mut self, program: usize, id: usize, empties: bool) {
        let draft = self.drafts.get_mut(&id).unwrap();
        if empties && !draft.bytes.is_empty() {
            (draft.bytes, draft.unpublished.fresh) = (Vec::new(), true);
            draft.note_write();
        }
        draft.members.insert(program);
        draft.writer = Some(program);
    }

    pub(super) fn begin(
        &mut self,
        name: Option<&str>,
        published: Option<Thing>,
        rights: Rights,
        creates: bool,
        truncate: bool,
    ) -> usize {
        let text = published.as_ref().and_then(Thing::text).cloned();
        let was_empty = text.as_ref().is_some_and(|text| text.0.is_empty());
        let began = published.as_ref().map(|thing| thing.put);
        let draft = Draft {
            name: name.map(str::to_owned),
            unpublished: Unpublished {
                fresh: creates || (truncate && !was_empty),
                ..Unpublished::default()
            },
            closed: LastClose::Never,
            left: text.clone(),
            bytes: text.filter(|_| !truncate).unwrap_or_default().0,
            rights,
            members: BTreeSet::new(),
            writer: None,
            stored_late: false,
            group: published.and_then(|thing| thing.group),
            began,
            base: began,
            renamed: false,
        };
        let id = self.next() as usize;
        self.drafts.insert(id, draft);
        id
    }

    /// Opens the file of a descriptor once more (P14): no name is looked up, and the open applies
    /// to that file.
    pub(super) fn reopen(&mut self, program: usize, fd: Fd, new: Fd, flags: OpenFlags) -> Done {
        let old = self.files[&self.descriptors[&fd].file].clone();
        let rights = match &old.of {
            Of::Draft(id) => self.drafts[id].rights,
            Of::Version { rights, .. } => *rights,
        };
        self.permit(program, rights, wants(flags))?;
        let (of, aside) = match (old.of, flags.writes()) {
            (of, false) => (of, false),
            (Of::Draft(id), true) => {
                let member = self.drafts[&id].members.contains(&program);
                if flags.truncate && !member {
                    // Another process that empties a file has a version of its own (rule 2).
                    let (name, put) = (self.drafts[&id].name.clone(), self.drafts[&id].began);
                    let begun = name.as_deref().and_then(|name| self.published(name));
                    let begun = begun.filter(|thing| Some(thing.put) == put);
                    let own = self.begin(name.as_deref(), begun, rights, false, true);
                    self.join(program, own, false);
                    (Of::Draft(own), true)
                } else {
                    self.join(program, id, flags.truncate);
                    (Of::Draft(id), false)
                }
            }
            (Of::Version { text, put, .. }, true) => {
                let id = self.reopen_version(program, text, put, rights, flags)?;
                (Of::Draft(id), true)
            }
        };
        self.add(program, new, flags, of, old.table, aside);
        Ok(())
    }

    /// Writes to the version of a descriptor: its next version under its name, if the name still
    /// has it; else a version that no process sees.
    fn reopen_version(
        &mut self,
        program: usize,
        text: Text,
        put: u64,
        rights: Rights,
        flags: OpenFlags,
    ) -> Result<usize, Errno> {
        let mut named = self.registers.iter().filter_map(|(path, (_, thing))| {
            thing.as_ref().filter(|thing| thing.put == put).map(|_| path.clone())
        });
        let is_at = |draft: &Draft, path: &str| draft.name.as_deref() == Some(path);
        let replaced =
            |path: &str| self.drafts.values().any(|draft| draft.renamed && is_at(draft, path));
        let name = named.find(|path| {
            self.published(path).is_some_and(|thing| thing.put == put) && !replaced(path)
        });
        let Some(path) = name else {
            let thing = Thing { what: What::File(text), rights, group: None, put };
            let id = self.begin(None, Some(thing), rights, false, flags.truncate);
            self.join(program, id, false);
            return Ok(id);
        };
        let view = View { kind: Kind::File, rights, size: None, draft: None };
        self.draft_to_write(program, &path, &view, flags, Some(put))
    }

    /// Reports whether the documents leave the outcome of a call open.
    pub(in crate::daemon::tests) fn leaves_open(&self, program: usize, call: &Call) -> bool {
        match call {
            Call::Open { path, flags, .. } if flags.writes() => {
                // The process has closed a file that another one still writes, and empties it now.
                // The documents do not say whether that is the same file (rule 2).
                let left = self.own_draft(program, path).filter(|id| !self.is_open(*id));
                self.drafts_at(path).count() >= DRAFTS_MAX || (left.is_some() && flags.truncate)
            }
            // A file that was closed empty and never written is held back for a second, and so are
            // its readers (docs/design.md section 5). These programs do not wait that long.
            Call::Open { path, .. } => {
                self.own_draft(program, path).is_none() && self.is_held(path)
            }
            Call::Reopen { fd, flags, .. } => {
                self.reopens_beside(program, *fd, *flags) || self.is_renamed_over(*fd)
            }
            Call::Truncate { path, .. } | Call::Link { from: path, .. } => {
                self.drafts_at(path).next().is_some()
            }
            Call::Unlink { path } => self.linked_drafts_below(path),
            Call::Rename { from, to } => {
                self.linked_drafts_below(from) || self.linked_drafts_below(to)
            }
            Call::Stat { path } => self.is_written_aside(path),
            Call::SetMode { fd, .. } => self.is_older_than_what_is_written(*fd),
            // The documents do not say whether it is published at the end of the mapping or at the
            // end of what else holds the file (rule 10).
            Call::Store { mapping, .. } => {
                let file = &self.files[&self.descriptors[mapping].file];
                let left = |id| self.writers(id).count() > 1;
                file.closed && matches!(file.of, Of::Draft(id) if left(id))
            }
            _ => false,
        }
    }

    /// Reports whether a file at a path is written through a handle that stands aside. The size
    /// under the name may then be out of date (semantics, "What is not promised").
    fn is_written_aside(&self, path: &str) -> bool {
        let beside = |id: usize| {
            self.files.values().any(|file| file.aside && file.write && file.of == Of::Draft(id))
        };
        self.drafts_at(path).any(|(id, _)| beside(id))
    }

    /// Reports whether the version of a descriptor has lost its name while others continue it. The
    /// documents do not say whether a change through the descriptor applies to what they write.
    fn is_older_than_what_is_written(&self, fd: Fd) -> bool {
        let (own, put) = match &self.files[&self.descriptors[&fd].file].of {
            Of::Draft(id) => (Some(*id), self.drafts[id].began),
            Of::Version { put, .. } => (None, Some(*put)),
        };
        let is_there = self.live_below("").any(|(_, thing)| Some(thing.put) == put);
        let next = |(id, draft): (&usize, &Draft)| Some(*id) != own && draft.began == put;
        put.is_some() && !is_there && self.drafts.iter().any(next)
    }

    /// Reports whether a closed file has a descriptor or a mapping left.
    pub(in crate::daemon::tests) fn lingers(&self) -> bool {
        self.drafts.keys().any(|id| !self.is_open(*id))
    }

    /// Reports whether the name of the version of a descriptor has an unpublished file that was
    /// renamed there. The lock of a file that is opened once more is that of the name then
    /// (semantics, "What is not promised").
    fn is_renamed_over(&self, fd: Fd) -> bool {
        let Of::Version { put, .. } = &self.files[&self.descriptors[&fd].file].of else {
            return false;
        };
        let is_there = |path: &str| self.published(path).is_some_and(|thing| thing.put == *put);
        self.drafts
            .values()
            .any(|draft| draft.renamed && draft.name.as_deref().is_some_and(is_there))
    }

    fn is_held(&self, path: &str) -> bool {
        let Some(thing) = self.published(path) else { return false };
        let is_empty = thing.text().is_some_and(|text| text.0.is_empty());
        is_empty
            && self
                .drafts_at(path)
                .any(|(id, draft)| draft.began == Some(thing.put) && !self.is_open(id))
    }

    fn reopens_beside(&self, program: usize, fd: Fd, flags: OpenFlags) -> bool {
        let file = &self.files[&self.descriptors[&fd].file];
        match &file.of {
            // The kernel reopens the inode of the handle, not the file that the handle writes
            // (docs/design.md section 7, "Handles that stand aside").
            _ if file.aside => true,
            Of::Draft(id) => {
                let member = self.drafts[id].members.contains(&program);
                // An open for reading waits as an open by name does, and may time out (semantics,
                // "What is not promised").
                let begins = flags.truncate && !member;
                // A reopen that begins its own version there cannot be mapped: ETXTBSY, as below.
                (!flags.writes() && !member)
                    || (flags.truncate && !self.is_open(*id))
                    || (begins && flags.reads())
            }
            // It is ETXTBSY where the file is passed through (semantics, "What is not promised").
            // If a process writes the next version and empties this one through its descriptor, the
            // documents do not say whether that is the same file.
            // Stores through a mapping of the next version may be written after what such a
            // descriptor writes (semantics, "What is not promised").
            Of::Version { put, .. } => {
                let next = || self.drafts.iter().filter(|(_, draft)| draft.began == Some(*put));
                let member = next().any(|(_, draft)| draft.members.contains(&program));
                let mapped = next().any(|(id, _)| self.is_mapped(*id));
                flags.writes() && (flags.reads() || (flags.truncate && member) || mapped)
            }
        }
    }

    fn is_mapped(&self, id: usize) -> bool {
        let maps = |one: &Descriptor| one.mapping && self.files[&one.file].of == Of::Draft(id);
        self.descriptors.values().any(maps)
    }

    /// Reports whether a file with several names is being written under a path or below it.
    fn linked_drafts_below(&self, path: &str) -> bool {
        self.drafts.values().any(|draft| {
            let name = draft.name.as_deref();
            draft.group.is_some()
                && name.is_some_and(|name| name == path || super::is_below(name, path))
        })
    }
}

pub(super) fn version_of(thing: &Thing) -> Of {
    let text = thing.text().cloned().unwrap_or_default();
    Of::Version { text, rights: thing.rights, put: thing.put }
}
