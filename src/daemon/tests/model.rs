//! The reference model: what docs/semantics.md says about names, content, rights, and which process
//! sees what and when, as plain maps.
//!
//! The numbers of rules are those of that file. Changes are numbered, so that changes which two
//! nodes made without knowledge of each other can be folded: for each path the later one wins (P7),
//! and a directory stays while something lies in it (rule 11).

mod files;
mod locks;
mod names;
mod nodes;
mod open;

use std::collections::{BTreeMap, BTreeSet};

use hearthfs_mount::{Errno, OpenFlags};

use super::calls::{Call, Kind, Seen, Shown, Text};
use super::kernel::Fd;
use super::users::{R, Rights, User, W, X};

/// The kind of a thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum What {
    Dir,
    Link(String),
    File(Text),
}

/// What a path points to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Thing {
    pub(super) what: What,
    pub(super) rights: Rights,
    /// Its group of hard links.
    pub(super) group: Option<u64>,
    /// The change that put it. It identifies one version of a file.
    put: u64,
}

/// What the next close of a draft would publish.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
struct Unpublished {
    /// It is published even if nothing is written.
    fresh: bool,
    /// Something was written.
    wrote: bool,
    /// Its rights were changed.
    changed: bool,
}

/// The last close of a draft by a program that was not being killed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum LastClose {
    Never,
    /// Something was written since.
    Before,
    /// Nothing was written since.
    AsNow,
}

/// One version of a file while it is being written.
#[derive(Clone, PartialEq, Debug)]
struct Draft {
    /// `None` after an unlink or a replacement: it will never be published.
    name: Option<String>,
    bytes: Vec<u8>,
    /// The content that it gave its name last, or that it began from.
    left: Option<Text>,
    rights: Rights,
    /// The programs that opened it for writing, and so see its bytes.
    members: BTreeSet<usize>,
    /// The last of these programs. Bytes that a mapping leaves at its end are published with its
    /// rights, because the end of a mapping has no caller.
    writer: Option<usize>,
    unpublished: Unpublished,
    closed: LastClose,
    /// It was stored to through the mapping of a descriptor that was closed.
    stored_late: bool,
    group: Option<u64>,
    /// The version that it follows.
    began: Option<u64>,
    /// The version that it may replace, whatever the rights of that version are.
    base: Option<u64>,
    /// It was renamed over what is published under its name, and is not published yet. The
    /// published version has lost its name, although others still find it there.
    renamed: bool,
}

impl Draft {
    fn note_write(&mut self) {
        self.unpublished.wrote = true;
        if self.closed == LastClose::AsNow {
            self.closed = LastClose::Before;
        }
    }
}

/// The object of an open file.
#[derive(Clone, PartialEq, Debug)]
enum Of {
    /// A draft, in its present state.
    Draft(usize),
    /// One version that never changes (P3).
    Version { text: Text, rights: Rights, put: u64 },
}

/// An open file, which descriptors and mappings hold.
#[derive(Clone, PartialEq, Debug)]
struct File {
    opener: usize,
    write: bool,
    append: bool,
    of: Of,
    /// Its opener has closed it.
    closed: bool,
    /// It was opened through `/proc/self/fd` and does not write the object of the descriptor before
    /// it.
    aside: bool,
    /// The lock of the name that it was opened by, whether it holds that lock, and whether
    /// exclusively.
    table: u64,
    lock: Option<bool>,
}

/// A descriptor, or a mapping.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Descriptor {
    pub(super) program: usize,
    file: Fd,
    pub(super) mapping: bool,
}

/// What a name shows to one program.
struct View {
    kind: Kind,
    rights: Rights,
    size: Option<u64>,
    /// The draft that the program sees.
    draft: Option<usize>,
}

type Done = Result<(), Errno>;
/// What a node knows about a path: the number of the last change, and the thing that the change
/// left there.
pub(super) type Registers = BTreeMap<String, (u64, Option<Thing>)>;

/// What one node must show.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Model {
    /// The user of each program.
    users: Vec<User>,
    /// The rights of the root directory, and those of an implied directory, which exists only
    /// because of what another node has put below it.
    root: Rights,
    implied: Rights,
    registers: Registers,
    /// What all nodes knew when they last synchronised.
    told: Registers,
    drafts: BTreeMap<usize, Draft>,
    files: BTreeMap<Fd, File>,
    pub(super) descriptors: BTreeMap<Fd, Descriptor>,
    /// The locks of names that are open.
    tables: BTreeMap<String, u64>,
    /// Numbers changes, drafts and locks.
    last: u64,
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(dir, _)| dir)
}

fn is_below(path: &str, dir: &str) -> bool {
    dir.is_empty() || path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/'))
}

fn moved(path: &str, from: &str, to: &str) -> String {
    format!("{to}{}", &path[from.len()..])
}

impl Thing {
    fn kind(&self) -> Kind {
        match self.what {
            What::Dir => Kind::Dir,
            What::Link(_) => Kind::Link,
            What::File(_) => Kind::File,
        }
    }

    fn text(&self) -> Option<&Text> {
        if let What::File(text) = &self.what { Some(text) } else { None }
    }
}

impl Model {
    pub(super) fn new(users: Vec<User>, root: Rights, implied: Rights) -> Self {
        Self {
            users,
            root,
            implied,
            registers: Registers::new(),
            told: Registers::new(),
            drafts: BTreeMap::new(),
            files: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            tables: BTreeMap::new(),
            last: 0,
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Makes a program's call, and returns what the program must see.
    pub(super) fn call(&mut self, program: usize, call: &Call) -> Seen {
        let done = match call {
            Call::Read { fd } => return Ok(Shown::Bytes(self.read(*fd))),
            Call::Stat { path } => return self.stat(program, path),
            Call::List { path } => return self.list(program, path).map(Shown::Names),
            Call::Open { path, fd, flags, mode } => self.open(program, path, *fd, *flags, *mode),
            Call::Reopen { fd, new, flags } => self.reopen(program, *fd, *new, *flags),
            Call::Duplicate { fd, new, to } => {
                let file = self.descriptors[fd].file;
                let twin = Descriptor { program: *to, file, mapping: false };
                self.descriptors.insert(*new, twin);
                Ok(())
            }
            Call::Write { fd, at, text } => {
                self.write(*fd, *at, &text.0);
                Ok(())
            }
            Call::SetSize { fd, size } => {
                self.set_size(*fd, *size);
                Ok(())
            }
            Call::SetMode { fd, mode } => self.set_mode_of(program, *fd, *mode),
            Call::Close { fd } | Call::Unmap { mapping: fd } => {
                self.close(*fd);
                Ok(())
            }
            Call::Map { fd, mapping } => {
                let file = self.descriptors[fd].file;
                self.descriptors.insert(*mapping, Descriptor { program, file, mapping: true });
                Ok(())
            }
            Call::Store { mapping, at, text } => {
                self.note_late_store(*mapping);
                self.write(*mapping, *at, &text.0);
                Ok(())
            }
            Call::Lock { fd, kind } => self.lock(*fd, *kind),
            Call::Truncate { path, size } => self.truncate(program, path, *size),
            Call::ChangeMode { path, mode } => self.set_mode(program, path, *mode),
            Call::MakeDir { path, mode } => self.make(program, path, What::Dir, *mode),
            Call::Symlink { path } => {
                self.make(program, path, What::Link("target".to_owned()), 0o777)
            }
            Call::Link { from, to } => self.link(program, from, to),
            Call::Unlink { path } => self.unlink(program, path),
            Call::RemoveDir { path } => self.rmdir(program, path),
            Call::Rename { from, to } => self.rename(program, from, to),
        };
        done.map(|()| Shown::Nothing)
    }

    /// Ends all programs and closes what they had open. Published files stay (P4).
    pub(super) fn restart(&mut self) {
        self.drafts.clear();
        self.files.clear();
        self.descriptors.clear();
        self.tables.clear();
    }

    fn reachable(&self, path: &str) -> bool {
        let mut at = path;
        while !at.is_empty() {
            at = parent(at);
            let above = self.registers.get(at).and_then(|(_, thing)| thing.as_ref());
            if above.is_some_and(|thing| thing.what != What::Dir) {
                return false;
            }
        }
        true
    }

    /// Returns what is published under a path.
    pub(super) fn published(&self, path: &str) -> Option<Thing> {
        let dir = |rights| Some(Thing { what: What::Dir, rights, group: None, put: 0 });
        if path.is_empty() {
            return dir(self.root);
        }
        if !self.reachable(path) {
            return None;
        }
        match self.registers.get(path) {
            Some((_, Some(thing))) => Some(thing.clone()),
            _ => self.live_below(path).next().and_then(|_| dir(self.implied)),
        }
    }

    fn live_below<'a>(&'a self, dir: &'a str) -> impl Iterator<Item = (&'a String, &'a Thing)> {
        let live =
            self.registers.iter().filter_map(|(path, (_, thing))| Some((path, thing.as_ref()?)));
        live.filter(move |(path, _)| is_below(path, dir))
    }

    /// Returns the drafts of a name, and of the other names of a file with hard links, oldest
    /// first.
    fn drafts_at<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (usize, &'a Draft)> {
        let group = self.published(path).and_then(|thing| thing.group);
        let all = self.drafts.iter().map(|(id, draft)| (*id, draft));
        all.filter(move |(_, draft)| {
            let linked = group.is_some() && draft.group == group && draft.name.is_some();
            linked || draft.name.as_deref() == Some(path)
        })
    }

    /// Reports whether a draft exists on its own: a process writes it, or no version of it was ever
    /// published. A closed draft disappears together with its published version.
    fn is_private(&self, id: usize) -> bool {
        self.is_open(id) || self.drafts[&id].began.is_none()
    }

    /// Yields the names of drafts that exist on their own.
    fn private_names(&self) -> impl Iterator<Item = &String> {
        let private = self.drafts.iter().filter(|(id, _)| self.is_private(**id));
        private.filter_map(|(_, draft)| draft.name.as_ref())
    }

    /// Reports whether anything is being written under a path or below it.
    fn drafts_below(&self, path: &str) -> bool {
        self.private_names().any(|name| name == path || is_below(name, path))
    }

    /// Yields the open files that write a draft.
    fn writers(&self, id: usize) -> impl Iterator<Item = &File> {
        self.files.values().filter(move |file| file.write && file.of == Of::Draft(id))
    }

    /// Reports whether a process has a draft open for writing and has not closed it.
    fn is_open(&self, id: usize) -> bool {
        self.writers(id).any(|file| !file.closed)
    }

    /// Reports whether a draft affects what its name has now: a process writes it, or it is the
    /// same file.
    fn concerns(&self, id: usize, path: &str) -> bool {
        let (draft, published) = (&self.drafts[&id], self.published(path));
        let same = match &published {
            Some(thing) if draft.group.is_some() => {
                thing.group == draft.group && thing.text() == draft.left.as_ref()
            }
            Some(thing) => draft.began == Some(thing.put),
            None => draft.began.is_none(),
        };
        self.is_open(id) || same
    }

    /// Returns the newest draft of a name that a program has opened for writing.
    fn own_draft(&self, program: usize, path: &str) -> Option<usize> {
        let mine = self.drafts_at(path).filter(|(_, draft)| draft.members.contains(&program));
        mine.map(|(id, _)| id).filter(|id| self.concerns(*id, path)).last()
    }

    /// Reports whether a published file is still written through a descriptor or mapping that its
    /// opener has left. The size under the name may then be the old or the new one (semantics,
    /// "What is not promised").
    fn is_written_after_its_close(&self, path: &str, thing: &Thing) -> bool {
        let mut left = self.drafts_at(path).filter(|(id, _)| !self.is_open(*id));
        left.any(|(_, draft)| draft.unpublished.wrote && draft.began == Some(thing.put))
    }

    /// Returns what a program finds under a name: its own draft, else what is published, else what
    /// others write (rules 1 to 3).
    fn view(&self, program: usize, path: &str) -> Option<View> {
        let of_draft = |id: usize, size| {
            let rights = self.drafts[&id].rights;
            View { kind: Kind::File, rights, size, draft: Some(id) }
        };
        if let Some(id) = self.own_draft(program, path) {
            return Some(of_draft(id, Some(self.drafts[&id].bytes.len() as u64)));
        }
        if let Some(thing) = self.published(path) {
            let size = thing.text().map(|text| text.0.len() as u64);
            let size = size.filter(|_| !self.is_written_after_its_close(path, &thing));
            return Some(View { kind: thing.kind(), rights: thing.rights, size, draft: None });
        }
        // The progress of another process with its file makes no difference.
        let private = self.drafts_at(path).filter(|(id, _)| self.is_private(*id));
        private.last().map(|(id, _)| of_draft(id, None))
    }

    fn permit(&self, program: usize, rights: Rights, want: u32) -> Done {
        if self.users[program].may(want, rights) { Ok(()) } else { Err(Errno::EACCES) }
    }

    fn rights_of_dir(&self, path: &str) -> Rights {
        self.published(path).map_or(self.root, |thing| thing.rights)
    }

    /// Checks that a program may add or remove names in the directory of a path.
    fn permit_change(&self, program: usize, path: &str) -> Done {
        self.permit(program, self.rights_of_dir(parent(path)), W | X)
    }

    /// Walks to the directory of a path, as every call does.
    fn walk(&self, program: usize, path: &str) -> Done {
        let mut at = String::new();
        for part in parent(path).split('/').filter(|part| !part.is_empty()) {
            self.permit(program, self.rights_of_dir(&at), X)?;
            at = if at.is_empty() { part.to_owned() } else { format!("{at}/{part}") };
            match self.view(program, &at) {
                Some(View { kind: Kind::Dir, .. }) => {}
                Some(_) => return Err(Errno::ENOTDIR),
                None => return Err(Errno::ENOENT),
            }
        }
        self.permit(program, self.rights_of_dir(&at), X)
    }

    fn put(&mut self, path: &str, thing: Thing) {
        let number = self.next();
        self.registers.insert(path.to_owned(), (number, Some(thing)));
    }

    fn remove(&mut self, path: &str) {
        // Rule 11: a directory that exists only because of what lies in it stays when the last of
        // that is removed.
        let dir = parent(path);
        if !dir.is_empty() && !matches!(self.registers.get(dir), Some((_, Some(_)))) {
            let rights = Rights { mode: 0o755, ..self.implied };
            let put = self.next();
            self.put(dir, Thing { what: What::Dir, rights, group: None, put });
        }
        let number = self.next();
        self.registers.insert(path.to_owned(), (number, None));
    }

    /// Returns every path that is visible to a program that writes nothing and may read everything.
    pub(super) fn tree(&self) -> BTreeMap<String, (What, Rights)> {
        let mut tree = BTreeMap::new();
        let all = self.live_below("").map(|(path, _)| path.clone());
        for path in all.collect::<Vec<_>>() {
            let mut at = path.as_str();
            while !at.is_empty() {
                if let Some(thing) = self.published(at) {
                    tree.insert(at.to_owned(), (thing.what, thing.rights));
                }
                at = parent(at);
            }
        }
        tree
    }
}

fn wants(flags: OpenFlags) -> u32 {
    (if flags.reads() { R } else { 0 }) | (if flags.changes() { W } else { 0 })
}
