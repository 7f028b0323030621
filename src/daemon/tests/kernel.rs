//! A model of the kernel above one node. Like Linux, it remembers present and missing names and
//! attributes for as long as the node allows, and forgets them when the node says so. It checks
//! modes on the inodes that it knows (`default_permissions`). It repeats a call once from the
//! beginning when the answer is ESTALE. It reads and writes backing files itself where the node
//! allows that.

mod files;
mod memory;
mod names;
mod walk;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use hearthfs_mount::{Abilities, Answer, Reply, Vfs};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use self::files::{File, Stored};
use self::memory::{Memory, Told};
use super::users::Rights;
use crate::config::Settings;
use crate::daemon::build::{self, Rooms};
use crate::digest::Digest;
use crate::local::State;
use crate::name::{TreePath, path as tree_path};
use crate::namespace::{Attrs, Change, Commit, Entry, EntryKind, Op, Time};
use crate::remote::keys;
use crate::stamp::{NodeId, Stamp};

/// The node whose changes arrive.
const OTHER: NodeId = NodeId(0x07e2);

/// The number by which a program refers to an open file.
pub(super) type Fd = u32;

/// One node and the kernel above it.
#[derive(Debug)]
pub(super) struct Kernel<'a> {
    runtime: &'a Runtime,
    settings: Settings,
    passthrough: bool,
    rooms: Option<Rooms>,
    looking_after: Option<JoinHandle<()>>,
    told: Arc<Told>,
    memory: Memory,
    /// The open file of each descriptor or mapping.
    descriptors: BTreeMap<Fd, Fd>,
    /// Open files, by the first descriptor of each.
    files: HashMap<Fd, File>,
    stored: Vec<Stored>,
    /// What arrives from another node, and how many requests come before that.
    arrival: RefCell<Vec<(TreePath, Op)>>,
    requests_before: Cell<u32>,
    arrived: Cell<u64>,
}

impl<'a> Kernel<'a> {
    pub(super) fn start(runtime: &'a Runtime, settings: Settings, passthrough: bool) -> Self {
        let mut kernel = Self {
            runtime,
            settings,
            passthrough,
            rooms: None,
            looking_after: None,
            told: Arc::default(),
            memory: Memory::default(),
            descriptors: BTreeMap::new(),
            files: HashMap::new(),
            stored: Vec::new(),
            arrival: RefCell::default(),
            requests_before: Cell::new(0),
            arrived: Cell::new(0),
        };
        kernel.up();
        kernel
    }

    pub(super) fn up(&mut self) {
        let mount_point = self.settings.local.cache_dir.parent().unwrap();
        let rooms = build::rooms(self.runtime.handle(), &self.settings, mount_point).unwrap();
        rooms.fs.start(Abilities {
            passthrough: self.passthrough,
            passthrough_refusal: None,
            flock_refusal: None,
            wake_refusal: None,
        });
        self.told = Arc::default();
        let told: Arc<Told> = Arc::clone(&self.told);
        rooms.fs.set_notices(told);
        let fs = rooms.fs.clone();
        self.looking_after =
            Some(crate::task::spawn(self.runtime.handle(), "sweep", fs.look_after()));
        self.rooms = Some(rooms);
    }

    /// Ends the node, in an orderly way or as SIGKILL does, and starts it again on the same
    /// directory.
    pub(super) fn restart(&mut self, orderly: bool) {
        self.end(orderly);
        self.up();
    }

    pub(super) fn end(&mut self, orderly: bool) {
        self.descriptors.clear();
        self.files.clear();
        self.stored.clear();
        self.memory = Memory::default();
        if let Some(task) = self.looking_after.take() {
            task.abort();
            self.runtime.block_on(task).ok();
        }
        let Some(rooms) = self.rooms.take() else { return };
        if orderly {
            rooms.fs.settle_published();
            self.runtime.block_on(rooms.engine.stop());
            rooms.finish();
        } else {
            self.runtime.block_on(rooms.engine.kill());
        }
    }

    pub(super) fn cache_dir(&self) -> &std::path::Path {
        &self.settings.local.cache_dir
    }

    pub(super) fn rooms(&self) -> &Rooms {
        self.rooms.as_ref().unwrap()
    }

    fn answer<T>(&self, ask: impl FnOnce(&dyn Vfs) -> Answer<T>) -> Reply<T> {
        match self.requests_before.get().checked_sub(1) {
            Some(left) => self.requests_before.set(left),
            None => self.arrive(),
        }
        match ask(&self.rooms().fs) {
            Answer::Now(reply) => reply,
            Answer::Later(work) => self.runtime.block_on(work),
        }
    }

    /// Brings in a change of another node, with a stamp after all changes that were made here.
    fn arrive(&self) {
        let arrival = self.arrival.take();
        if arrival.is_empty() {
            return;
        }
        let stamp = Stamp { node: OTHER, ..self.rooms().engine.ledger().next_stamp() };
        self.fold_arrival(arrival, stamp, self.arrived.get());
        self.arrived.set(self.arrived.get() + 1);
    }

    /// Folds a commit of another node.
    pub(super) fn fold_arrival(&self, ops: Vec<(TreePath, Op)>, stamp: Stamp, sequence: u64) {
        let commit = Commit {
            stamp,
            node: stamp.node,
            incarnation: 1,
            sequence,
            packs: Vec::new(),
            blobs: Vec::new(),
            changes: ops.into_iter().map(|(path, op)| Change { path, stamp, op }).collect(),
            extensions: BTreeMap::new(),
        };
        self.rooms().engine.ledger().apply_remote(&keys::commit_name(&stamp), &commit);
    }

    /// Returns a content of another node whose bytes are on this node.
    pub(super) fn arrived_content(&self, bytes: &[u8]) -> EntryKind {
        let (digest, size) = (Digest::of(bytes), bytes.len() as u64);
        let (file, staged) = self.rooms().engine.ledger().staging().create().unwrap();
        file.write_all_at(bytes, 0).unwrap();
        self.rooms().blobs.adopt(staged, &file, digest, size, State::Saved).unwrap();
        EntryKind::File { digest, size }
    }

    /// Makes a change of another node arrive after this many requests of the next system call, or
    /// at its end: a file with its bytes, or a removal.
    pub(super) fn expect_arrival(
        &self,
        path: &str,
        file: Option<(&[u8], Rights)>,
        requests_before: u32,
    ) {
        self.arrival.replace(vec![self.change_of(path, file)]);
        self.requests_before.set(requests_before);
    }

    /// Brings in files or removals of another node at once, before any notification about them: see
    /// [`Kernel::tell`].
    pub(super) fn arrive_untold(&self, files: &[(&str, Option<Vec<u8>>)]) {
        let rights = Rights { uid: 0, gid: 0, mode: 0o644 };
        let change = |(path, bytes): &(&str, Option<Vec<u8>>)| {
            self.change_of(path, bytes.as_ref().map(|bytes| (&bytes[..], rights)))
        };
        self.arrival.replace(files.iter().map(change).collect());
        self.rooms().engine.ledger().tell_later();
        self.arrive();
    }

    /// Notifies of what has arrived. With `any`, the notification has no names.
    pub(super) fn tell(&self, any: bool) {
        self.rooms().engine.ledger().tell_now(any);
    }

    /// Makes several files of another node arrive at once.
    pub(super) fn expect_unit(&self, files: &[(String, Vec<u8>)], requests_before: u32) {
        let rights = Rights { uid: 0, gid: 0, mode: 0o644 };
        let changes = files.iter().map(|(path, bytes)| self.change_of(path, Some((bytes, rights))));
        self.arrival.replace(changes.collect());
        self.requests_before.set(requests_before);
    }

    /// Makes a change of a mode by another node arrive before the next request.
    pub(super) fn expect_mode(&self, path: &str, mode: u32) {
        let path = tree_path(path);
        let register = self.rooms().engine.ledger().read(|fold| fold.register(&path)).unwrap();
        let attrs = Attrs { mode, ..register.entry.unwrap().attrs };
        self.arrival.replace(vec![(path, Op::Attrs { of: register.stamp, attrs })]);
    }

    fn change_of(&self, path: &str, file: Option<(&[u8], Rights)>) -> (TreePath, Op) {
        let path = tree_path(path);
        let op = file.map_or(Op::Remove, |(bytes, Rights { uid, gid, mode })| {
            let now = Time::from_wall(self.rooms().clock.wall());
            let attrs = Attrs { mode, uid, gid, mtime: now, atime: now, ..Attrs::default() };
            Op::Put(Entry { kind: self.arrived_content(bytes), attrs, link: None })
        });
        (path, op)
    }

    /// Ends a system call. Changes that were expected within it have arrived.
    pub(super) fn end_call(&self) {
        self.arrive();
        self.requests_before.set(0);
    }

    /// Lets time pass for the node.
    pub(super) fn pass(&self, time: std::time::Duration) {
        self.runtime.block_on(crate::clock::sleep(time));
    }

    /// Brings everything that was published here to the store.
    pub(super) fn drain(&self) {
        let limit = std::time::Duration::from_mins(1);
        let report = self.runtime.block_on(self.rooms().engine.drain(limit, |_| ()));
        assert!(report.complete, "the store is a directory: {report:?}");
    }
}

impl Drop for Kernel<'_> {
    fn drop(&mut self) {
        self.end(false);
    }
}
