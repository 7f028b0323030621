//! The reference model: what docs/semantics.md says of names, content and who sees what, as plain maps.
//!
//! Numbers of rules are those of that file. Changes are numbered, so that what two nodes did without
//! knowing of each other can be folded: per path the later one wins (P7), and what lies in a directory
//! keeps it there (rule 11).

mod files;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use hearthfs_mount::Errno;

use super::kernel::Fd;

/// What a path points to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Thing {
    Dir,
    /// The target, and the group of hard links it belongs to.
    Link(String, Option<u64>),
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

    /// Returns the drafts of a name, and of the further names of a file with hard links.
    fn drafts_at<'a>(&'a self, path: &'a str) -> impl Iterator<Item = (usize, &'a Draft)> {
        let group = match self.published(path) {
            Some(Thing::File(_, group)) => group,
            _ => None,
        };
        let all = self.drafts.iter().map(|(id, draft)| (*id, draft));
        all.filter(move |(_, draft)| {
            let linked = group.is_some() && draft.group == group && draft.name.is_some();
            linked || draft.name.as_deref() == Some(path)
        })
    }

    /// Counts the drafts of a name.
    pub(super) fn drafts_of(&self, path: &str) -> usize {
        self.drafts_at(path).count()
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
        self.published(path).is_some() || self.drafts_at(path).next().is_some()
    }

    /// Walks to the directory of a path, as every call does.
    fn walk(&self, path: &str) -> Done {
        let mut at = String::new();
        for part in parent(path).split('/').filter(|part| !part.is_empty()) {
            at = if at.is_empty() { part.to_owned() } else { format!("{at}/{part}") };
            match self.published(&at) {
                Some(Thing::Dir) => {}
                Some(_) => return Err(Errno::ENOTDIR),
                None if self.drafts_at(&at).next().is_some() => return Err(Errno::ENOTDIR),
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
                        Thing::Link(target, _) => Thing::Link(target, None),
                        Thing::Dir => Thing::Dir,
                    };
                    tree.insert(at.to_owned(), thing);
                }
                at = parent(at);
            }
        }
        tree
    }
}
