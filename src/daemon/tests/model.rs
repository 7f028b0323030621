//! The reference model: what docs/semantics.md says of names, content and who sees what, as plain maps.
//!
//! Numbers of rules are those of that file. Changes are numbered, so that what two nodes did without
//! knowing of each other can be folded: per path the later one wins (P7), and what lies in a directory
//! keeps it there (rule 11).

use std::collections::{BTreeMap, BTreeSet};

use hearthfs_mount::Errno;

use super::kernel::Fd;

/// What a path points to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Thing {
    Dir,
    Link(String),
    /// The content, and the group of hard links it belongs to.
    File(Vec<u8>, Option<u64>),
}

/// One version of a file while it is being written.
#[derive(Clone, Debug)]
struct Draft {
    /// `None` once it was unlinked or replaced: it will never be published.
    name: Option<String>,
    bytes: Vec<u8>,
    /// Who opened it for writing, and so sees its bytes.
    members: BTreeSet<usize>,
    writers: u32,
    /// Published even if nothing is written.
    fresh: bool,
    wrote: bool,
    closed_once: bool,
    /// It took over an empty published file.
    in_place: bool,
    /// It emptied what another had open and had not written: it leaves no trace unless it is written.
    guest: bool,
    group: Option<u64>,
}

#[derive(Clone, Debug)]
enum Bytes {
    /// Those of a draft, as they are at each moment.
    Draft(usize),
    /// Those of one version, for ever (P3).
    Version(Vec<u8>),
}

#[derive(Clone, Debug)]
struct Handle {
    program: usize,
    write: bool,
    bytes: Bytes,
}

/// How a program opens a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) create: bool,
    pub(super) exclusive: bool,
    pub(super) truncate: bool,
}

type Done = Result<(), Errno>;
/// What a node knows of a path: the number of the last change, and what it put.
pub(super) type Registers = BTreeMap<String, (u64, Option<Thing>)>;

/// What one node must show.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    registers: Registers,
    /// What all nodes knew when they met last.
    told: Registers,
    drafts: BTreeMap<usize, Draft>,
    handles: BTreeMap<Fd, Handle>,
    next_draft: usize,
}

/// Numbers the changes of all nodes.
#[derive(Debug, Default)]
pub(super) struct Counter(u64);

impl Counter {
    fn next(&mut self) -> u64 {
        self.0 += 1;
        self.0
    }
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

impl Model {
    /// Ends all programs and what they had open; what was published stays (P4).
    pub(super) fn restart(&mut self) {
        self.drafts.clear();
        self.handles.clear();
    }

    /// Returns what this node tells the others: its changes since they met last, and `heard` since. A path
    /// that it made and removed again is nobody's business, unless another has spoken of it, and is
    /// afterwards as it was before.
    pub(super) fn tell(&mut self, heard: &Registers) -> Registers {
        let mut news = Registers::new();
        for (path, now) in std::mem::take(&mut self.registers) {
            let before = self.told.get(&path).cloned();
            let was_there = before.as_ref().is_some_and(|(_, thing)| thing.is_some());
            let kept = if now.1.is_some() || was_there || heard.contains_key(&path) {
                Some(now)
            } else {
                before.clone()
            };
            if let Some(kept) = kept {
                if before.is_none_or(|before| before.0 < kept.0) {
                    news.insert(path.clone(), kept.clone());
                }
                self.registers.insert(path, kept);
            }
        }
        news
    }

    /// Learns what another node has told.
    pub(super) fn learn(&mut self, news: &Registers) {
        for (path, (number, thing)) in news {
            if self.registers.get(path).is_none_or(|(known, _)| known < number) {
                self.registers.insert(path.clone(), (*number, thing.clone()));
            }
        }
    }

    /// Notes that all nodes know the same.
    pub(super) fn met(&mut self) {
        self.told = self.registers.clone();
    }

    fn reachable(&self, path: &str) -> bool {
        let mut at = path;
        while !at.is_empty() {
            at = parent(at);
            let above = self.registers.get(at).and_then(|(_, thing)| thing.as_ref());
            if above.is_some_and(|thing| *thing != Thing::Dir) {
                return false;
            }
        }
        true
    }

    /// Returns what is published under a path.
    pub(super) fn published(&self, path: &str) -> Option<Thing> {
        if path.is_empty() {
            return Some(Thing::Dir);
        }
        if !self.reachable(path) {
            return None;
        }
        match self.registers.get(path) {
            Some((_, Some(thing))) => Some(thing.clone()),
            _ => self.live_below(path).next().map(|_| Thing::Dir),
        }
    }

    fn live_below<'a>(&'a self, dir: &'a str) -> impl Iterator<Item = (&'a String, &'a Thing)> {
        let live =
            self.registers.iter().filter_map(|(path, (_, thing))| Some((path, thing.as_ref()?)));
        live.filter(move |(path, _)| is_below(path, dir))
    }

    fn drafts_at<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (usize, &'a Draft)> {
        let all = self.drafts.iter().map(|(id, draft)| (*id, draft));
        all.filter(move |(_, draft)| draft.name.as_deref() == Some(path))
    }

    /// Returns the drafts that the name is there for, whether or not anything is published.
    fn private_at<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (usize, &'a Draft)> {
        self.drafts_at(path).filter(|(_, draft)| !draft.in_place)
    }

    /// Counts the drafts of a name.
    pub(super) fn drafts_of(&self, path: &str) -> usize {
        self.drafts_at(path).count()
    }

    /// Reports whether a program takes part in a draft of a name and has written nothing to it.
    pub(super) fn is_empty_handed(&self, program: usize, path: &str) -> bool {
        self.drafts_at(path).any(|(_, draft)| draft.members.contains(&program) && !draft.wrote)
    }

    /// Reports whether a file with several names is being written under a path or below it.
    pub(super) fn linked_drafts_below(&self, path: &str) -> bool {
        self.drafts.values().any(|draft| {
            let name = draft.name.as_deref();
            draft.group.is_some() && name.is_some_and(|name| name == path || is_below(name, path))
        })
    }

    /// Reports whether anything is being written under a path or below it.
    pub(super) fn drafts_below(&self, path: &str) -> bool {
        self.drafts
            .values()
            .filter_map(|draft| draft.name.as_deref())
            .any(|name| name == path || is_below(name, path))
    }

    fn is_taken(&self, path: &str) -> bool {
        self.published(path).is_some() || self.private_at(path).next().is_some()
    }

    /// Walks to the directory of a path, as every call does.
    fn walk(&self, path: &str) -> Done {
        let mut at = String::new();
        for part in parent(path).split('/').filter(|part| !part.is_empty()) {
            at = if at.is_empty() { part.to_owned() } else { format!("{at}/{part}") };
            match self.published(&at) {
                Some(Thing::Dir) => {}
                Some(_) => return Err(Errno::ENOTDIR),
                None if self.private_at(&at).next().is_some() => return Err(Errno::ENOTDIR),
                None => return Err(Errno::ENOENT),
            }
        }
        Ok(())
    }

    fn put(&mut self, counter: &mut Counter, path: &str, thing: Thing) {
        self.registers.insert(path.to_owned(), (counter.next(), Some(thing)));
    }

    fn remove(&mut self, counter: &mut Counter, path: &str) {
        // Rule 11: a directory that is there only for what lies in it stays when that goes.
        let dir = parent(path);
        if !dir.is_empty() && !matches!(self.registers.get(dir), Some((_, Some(_)))) {
            self.put(counter, dir, Thing::Dir);
        }
        self.registers.insert(path.to_owned(), (counter.next(), None));
    }

    /// Rules 1, 2 and 5.
    pub(super) fn open_to_write(&mut self, program: usize, path: &str, fd: Fd, wish: Wish) -> Done {
        self.walk(path)?;
        let published = self.published(path);
        let taken = self.is_taken(path);
        match &published {
            _ if !taken && !wish.create => return Err(Errno::ENOENT),
            _ if taken && wish.create && wish.exclusive => return Err(Errno::EEXIST),
            Some(Thing::Dir) => return Err(Errno::EISDIR),
            Some(Thing::Link(_)) => return Err(Errno::ENXIO),
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

    fn begin(&mut self, path: &str, published: Option<Thing>, wish: Wish) -> usize {
        let unwritten = |draft: &Draft| !draft.guest && !draft.wrote;
        let guest = wish.truncate
            && self
                .drafts_at(path)
                .any(|(_, draft)| unwritten(draft) && (draft.in_place || published.is_none()));
        let (base, group) = match published {
            Some(Thing::File(bytes, group)) => (Some(bytes), group),
            _ => (None, None),
        };
        let was_empty = base.as_ref().is_some_and(Vec::is_empty);
        let in_place = was_empty && !self.drafts_at(path).any(|(_, draft)| draft.in_place);
        let draft = Draft {
            name: Some(path.to_owned()),
            fresh: base.is_none() || (wish.truncate && !was_empty),
            bytes: base.filter(|_| !wish.truncate).unwrap_or_default(),
            members: BTreeSet::new(),
            writers: 0,
            wrote: false,
            closed_once: false,
            in_place,
            guest,
            group,
        };
        self.next_draft += 1;
        self.drafts.insert(self.next_draft, draft);
        self.next_draft
    }

    /// Rule 3.
    pub(super) fn open_to_read(&mut self, program: usize, path: &str, fd: Fd) -> Done {
        self.walk(path)?;
        let own = self.drafts_at(path).filter(|(_, d)| d.members.contains(&program)).last();
        let bytes = match (own, self.published(path)) {
            (Some((id, _)), _) => Bytes::Draft(id),
            (None, Some(Thing::File(bytes, _))) => Bytes::Version(bytes),
            (None, Some(Thing::Dir)) => return Err(Errno::EISDIR),
            (None, Some(Thing::Link(_))) => return Err(Errno::ENXIO),
            (None, None) => return Err(Errno::ENOENT),
        };
        self.handles.insert(fd, Handle { program, write: false, bytes });
        Ok(())
    }

    pub(super) fn write(&mut self, fd: Fd, at: usize, new: &[u8]) {
        let Bytes::Draft(id) = self.handles[&fd].bytes else { return };
        let draft = self.drafts.get_mut(&id).unwrap();
        draft.wrote = true;
        let end = at + new.len();
        if draft.bytes.len() < end {
            draft.bytes.resize(end, 0);
        }
        draft.bytes[at..end].copy_from_slice(new);
    }

    pub(super) fn set_size(&mut self, fd: Fd, size: usize) {
        let Bytes::Draft(id) = self.handles[&fd].bytes else { return };
        let draft = self.drafts.get_mut(&id).unwrap();
        if draft.bytes.len() != size {
            draft.wrote = true;
            draft.bytes.resize(size, 0);
        }
    }

    pub(super) fn read(&self, fd: Fd) -> Vec<u8> {
        match &self.handles[&fd].bytes {
            Bytes::Draft(id) => self.drafts[id].bytes.clone(),
            Bytes::Version(bytes) => bytes.clone(),
        }
    }

    pub(super) fn handles(&self) -> Vec<(Fd, usize, bool)> {
        self.handles.iter().map(|(fd, handle)| (*fd, handle.program, handle.write)).collect()
    }

    /// Rule 4: the close of the last descriptor that can write publishes.
    pub(super) fn close(&mut self, counter: &mut Counter, fd: Fd) {
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

    fn publish(&mut self, counter: &mut Counter, id: usize) {
        let draft = self.drafts[&id].clone();
        if let Some(name) = &draft.name
            && (draft.wrote || (draft.fresh && !draft.in_place && !draft.guest))
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
    fn end(&mut self, id: usize) {
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
    pub(super) fn shares(&self, program: usize) -> bool {
        let mine: BTreeSet<usize> = self.written_by(|of| of == program);
        !mine.is_disjoint(&self.written_by(|of| of != program))
    }

    fn written_by(&self, who: impl Fn(usize) -> bool) -> BTreeSet<usize> {
        let handles = self.handles.values().filter(|handle| handle.write && who(handle.program));
        handles
            .filter_map(|handle| if let Bytes::Draft(id) = handle.bytes { Some(id) } else { None })
            .collect()
    }

    /// P2: what a program had open for writing when it was killed is not published.
    pub(super) fn die(&mut self, counter: &mut Counter, program: usize) {
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
    }

    pub(super) fn truncate(&mut self, counter: &mut Counter, path: &str, size: usize) -> Done {
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
                    in_place: false,
                    guest: false,
                    group,
                };
                self.next_draft += 1;
                self.drafts.insert(self.next_draft, draft);
                self.publish(counter, self.next_draft);
                Ok(())
            }
            Some(Thing::Dir) => Err(Errno::EISDIR),
            Some(Thing::Link(_)) => Err(Errno::EINVAL),
            None => Err(Errno::ENOENT),
        }
    }

    pub(super) fn make(&mut self, counter: &mut Counter, path: &str, thing: Thing) -> Done {
        self.walk(path)?;
        if self.is_taken(path) {
            return Err(Errno::EEXIST);
        }
        self.put(counter, path, thing);
        Ok(())
    }

    pub(super) fn link(&mut self, counter: &mut Counter, from: &str, to: &str) -> Done {
        self.walk(from)?;
        if !self.is_taken(from) {
            return Err(Errno::ENOENT);
        }
        self.walk(to)?;
        if self.is_taken(to) {
            return Err(Errno::EEXIST);
        }
        match self.published(from) {
            Some(Thing::File(bytes, group)) => {
                let group = group.unwrap_or_else(|| {
                    let group = counter.next();
                    self.put(counter, from, Thing::File(bytes.clone(), Some(group)));
                    group
                });
                self.put(counter, to, Thing::File(bytes, Some(group)));
                Ok(())
            }
            Some(Thing::Link(target)) => {
                self.put(counter, to, Thing::Link(target));
                Ok(())
            }
            Some(Thing::Dir) | None => Err(Errno::EPERM),
        }
    }

    fn detach(&mut self, path: &str) {
        for draft in self.drafts.values_mut().filter(|d| d.name.as_deref() == Some(path)) {
            draft.name = None;
        }
    }

    pub(super) fn unlink(&mut self, counter: &mut Counter, path: &str) -> Done {
        self.walk(path)?;
        match self.published(path) {
            Some(Thing::Dir) => return Err(Errno::EISDIR),
            Some(_) => self.remove(counter, path),
            None if self.is_taken(path) => {}
            None => return Err(Errno::ENOENT),
        }
        self.detach(path);
        Ok(())
    }

    fn is_empty_dir(&self, path: &str) -> bool {
        self.live_below(path).next().is_none() && !self.drafts_below(path)
    }

    pub(super) fn rmdir(&mut self, counter: &mut Counter, path: &str) -> Done {
        self.walk(path)?;
        match self.published(path) {
            Some(Thing::Dir) if !self.is_empty_dir(path) => Err(Errno::ENOTEMPTY),
            Some(Thing::Dir) => {
                self.remove(counter, path);
                Ok(())
            }
            None if !self.is_taken(path) => Err(Errno::ENOENT),
            _ => Err(Errno::ENOTDIR),
        }
    }

    /// Rule 6.
    pub(super) fn rename(&mut self, counter: &mut Counter, from: &str, to: &str) -> Done {
        self.walk(from)?;
        self.walk(to)?;
        let (source, target) = (self.published(from), self.published(to));
        if !self.is_taken(from) {
            return Err(Errno::ENOENT);
        }
        if is_below(to, from) {
            return Err(Errno::EINVAL);
        }
        let group = |thing: &Option<Thing>| match thing {
            Some(Thing::File(_, group)) => *group,
            _ => None,
        };
        if from == to || (group(&source).is_some() && group(&source) == group(&target)) {
            return Ok(());
        }
        let (source_dir, target_dir) = (source == Some(Thing::Dir), target == Some(Thing::Dir));
        match (source_dir, target_dir) {
            (true, false) if self.is_taken(to) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            (true, true) if !self.is_empty_dir(to) => return Err(Errno::ENOTEMPTY),
            _ => {}
        }
        self.detach(to);
        let waits = source.is_none();
        if let Some(thing) = source {
            let mut all = vec![(from.to_owned(), thing)];
            all.extend(self.live_below(from).map(|(path, thing)| (path.clone(), thing.clone())));
            for (path, _) in &all {
                self.remove(counter, path);
            }
            for (path, thing) in all {
                self.put(counter, &moved(&path, from, to), thing);
            }
            // The directory of an implied one that has just been emptied stays, but not below itself.
            let stale: Vec<String> = self.live_below(from).map(|(path, _)| path.clone()).collect();
            for path in stale.iter().map(String::as_str).chain([from]) {
                self.registers.insert(path.to_owned(), (counter.next(), None));
            }
        }
        for draft in self.drafts.values_mut() {
            if let Some(name) = &mut draft.name
                && (name == from || is_below(name, from))
            {
                *name = moved(name, from, to);
                draft.fresh |= waits;
            }
        }
        Ok(())
    }

    pub(super) fn list(&self, path: &str) -> Result<Vec<String>, Errno> {
        if !path.is_empty() {
            self.walk(path)?;
            match self.published(path) {
                Some(Thing::Dir) => {}
                None if !self.is_taken(path) => return Err(Errno::ENOENT),
                _ => return Err(Errno::ENOTDIR),
            }
        }
        let private = self.drafts.values().filter(|d| !d.in_place).filter_map(|d| d.name.as_ref());
        let all = self.live_below(path).map(|(path, _)| path).chain(private);
        let rests = all.filter(|name| is_below(name, path)).map(|name| {
            let rest = if path.is_empty() { name } else { &name[path.len() + 1..] };
            rest.split('/').next().unwrap_or_default().to_owned()
        });
        let names: BTreeSet<String> = rests.collect();
        Ok(names.into_iter().collect())
    }

    /// Returns what `stat` must find: kind and, where it is certain, size.
    pub(super) fn stat(&self, program: usize, path: &str) -> Result<(bool, Option<u64>), Errno> {
        self.walk(path)?;
        let own = self.private_at(path).filter(|(_, d)| d.members.contains(&program)).last();
        // Two who write one name may stand on one inode, which has one size.
        let divided = self.drafts_at(path).count() > 1;
        if let Some((_, draft)) = own {
            return Ok((false, (!divided).then_some(draft.bytes.len() as u64)));
        }
        let in_place = self.drafts_at(path).any(|(_, draft)| draft.in_place);
        match self.published(path) {
            Some(Thing::Dir) => Ok((true, None)),
            Some(Thing::File(bytes, _)) => Ok((false, (!in_place).then_some(bytes.len() as u64))),
            Some(Thing::Link(_)) => Ok((false, None)),
            None if self.is_taken(path) => Ok((false, None)),
            None => Err(Errno::ENOENT),
        }
    }

    /// Returns every path that is visible to a program that writes nothing.
    pub(super) fn tree(&self) -> BTreeMap<String, Thing> {
        let mut tree = BTreeMap::new();
        let all = self.live_below("").map(|(path, _)| path.clone());
        for path in all.collect::<Vec<_>>() {
            let mut at = path.as_str();
            while !at.is_empty() {
                if let Some(thing) = self.published(at) {
                    let thing = match thing {
                        Thing::File(bytes, _) => Thing::File(bytes, None),
                        other => other,
                    };
                    tree.insert(at.to_owned(), thing);
                }
                at = parent(at);
            }
        }
        tree
    }
}
