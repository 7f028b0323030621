//! A node with its programs, and the model beside it. Each call is made on both, step by step.
//!
//! If a change of another node arrives within a call, the call may have happened before or after
//! the change. So there are several models, one for each order. Models that contradict an observed
//! result are dropped.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hearthfs_mount::{Attr, Caller, Errno, FileType, OpenFlags};
use tokio::runtime::Runtime;

use super::calls::{Call, Kind, Seen, Shown, Text, agrees};
use super::kernel::{Fd, Kernel};
use super::model::{Descriptor, Model, What};
use super::programs::Program;
use super::users::{ANN, BOB, EVE, ROOT, Rights, User};
use crate::config::Settings;

/// The users of the programs. Two of the programs have the same user.
const USERS: [User; 4] = [ANN, BOB, ANN, EVE];
pub(super) const PROGRAMS: usize = USERS.len();
/// The most descriptors and mappings that programs have at once.
const DESCRIPTORS_MAX: usize = 10;
/// The mode of the root directory: all users may make names there.
const ROOT_MODE: u32 = 0o777;

/// Changes of another node are numbered from here.
const ARRIVALS: u64 = 1 << 40;

/// A change of another node, in the form that the model takes.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) path: &'static str,
    pub(super) what: Option<(Text, Rights)>,
    pub(super) number: u64,
}

/// A node with its programs, and what it must show.
pub(super) struct World<'a> {
    pub(super) kernel: Kernel<'a>,
    pub(super) models: Vec<Model>,
    programs: Vec<Program>,
    root: Program,
    pub(super) next_fd: Fd,
    pub(super) arrival: Option<Arrival>,
    /// The program so far, in the form in which a failure prints it.
    said: String,
    passthrough: bool,
    arrivals: u64,
}

fn rights_of(attr: &Attr) -> Rights {
    Rights { uid: attr.uid, gid: attr.gid, mode: u32::from(attr.perm) }
}

fn kind_of(attr: &Attr) -> Kind {
    match attr.file_type {
        FileType::Directory => Kind::Dir,
        FileType::Symlink => Kind::Link,
        _ => Kind::File,
    }
}

/// Returns what a call may return and leave behind, apart from what arrives within it.
fn orders(
    model: &Model,
    program: usize,
    call: &Call,
    arrival: Option<&Arrival>,
) -> Vec<(Seen, Model)> {
    let called = |mut model: Model| (model.call(program, call), model);
    let mut all = vec![called(model.clone())];
    let Some(Arrival { path, what, number }) = arrival else { return all };
    all[0].1.arrive(path, what.clone(), *number);
    let mut after = model.clone();
    after.arrive(path, what.clone(), *number);
    all.push(called(after));
    // As on a local disk after a rename over the name just before: the file that was found has no
    // name any more.
    if let Call::Link { from, .. } = call
        && from == path
        && all[0].0.is_ok()
    {
        let mut late = model.clone();
        late.arrive(path, what.clone(), *number);
        all.push((Err(Errno::ENOENT), late));
    }
    // Rule 1: a name that moves while it is opened. The open may get the file that had the name a
    // moment ago, and writes to that file are lost.
    if let Call::Open { path: opened, fd, flags, .. } = call
        && opened == path
        && flags.writes()
        && all[0].0.is_ok()
    {
        let (seen, mut late) = all[0].clone();
        late.lose_name(*fd);
        all.push((seen.clone(), late));
        // Or the open gets the file that the name has from now on: emptying an empty file is a
        // change after the older version is gone.
        if flags.truncate && what.is_none() {
            let mut anew = all[0].1.clone();
            anew.freshen(*fd);
            all.push((seen, anew));
        }
    }
    all
}

impl<'a> World<'a> {
    pub(super) fn new(runtime: &'a Runtime, settings: Settings, passthrough: bool) -> Self {
        let mut kernel = Kernel::start(runtime, settings, passthrough);
        let root = Program::start_as(ROOT);
        let implied = rights_of(&kernel.stat(&root.caller(), "").unwrap());
        kernel.chmod(&root.caller(), "", ROOT_MODE).unwrap();
        let rights = Rights { mode: ROOT_MODE, ..implied };
        let programs = USERS.map(Program::start_as).into();
        let models = vec![Model::new(USERS.to_vec(), rights, implied)];
        let (next_fd, arrival, said) = (0, None, String::new());
        Self { kernel, models, programs, root, next_fd, arrival, said, passthrough, arrivals: 0 }
    }

    fn caller(&self, program: usize) -> Caller {
        self.programs[program].caller()
    }

    /// Returns the number for a new descriptor, if one more is allowed.
    pub(super) fn new_fd(&mut self) -> Option<Fd> {
        let room = self.models[0].descriptors.len() < DESCRIPTORS_MAX;
        self.next_fd += u32::from(room);
        room.then_some(self.next_fd)
    }

    /// Chooses a descriptor or mapping of a program.
    pub(super) fn choose(
        &self,
        program: usize,
        choice: usize,
        wanted: impl Fn(Fd, &Descriptor) -> bool,
    ) -> Option<Fd> {
        let all = self.models[0].descriptors.iter();
        let mine: Vec<Fd> = all
            .filter(|(fd, descriptor)| descriptor.program == program && wanted(**fd, descriptor))
            .map(|(fd, _)| *fd)
            .collect();
        (!mine.is_empty()).then(|| mine[choice % mine.len()])
    }

    /// Makes a call on the node.
    fn ask(&mut self, program: usize, call: &Call) -> Seen {
        let (who, kernel) = (self.caller(program), &mut self.kernel);
        let done = match call {
            Call::Read { fd } => return kernel.read(*fd).map(|bytes| Shown::Bytes(Text(bytes))),
            Call::List { path } => return kernel.list(&who, path).map(Shown::Names),
            Call::Stat { path } => {
                let attr = kernel.stat(&who, path)?;
                let (kind, size) = (kind_of(&attr), Some(attr.size));
                return Ok(Shown::Attrs(kind, rights_of(&attr), size));
            }
            Call::Open { path, fd, flags, mode } => kernel.open_as(&who, path, *fd, *flags, *mode),
            Call::Reopen { fd, new, flags } => kernel.reopen(&who, *fd, *new, *flags),
            Call::Duplicate { fd, new, .. } => {
                kernel.duplicate(*fd, *new);
                Ok(())
            }
            Call::Write { fd, at, text } => kernel.write(*fd, *at as u64, &text.0),
            Call::SetSize { fd, size } => kernel.set_size(&who, *fd, *size as u64),
            Call::SetMode { fd, mode } => kernel.set_mode(&who, *fd, *mode),
            Call::Close { fd } => kernel.close(&who, *fd),
            Call::Map { fd, mapping } => {
                kernel.map(*fd, *mapping);
                Ok(())
            }
            Call::Store { mapping, at, text } => {
                kernel.store(*mapping, *at as u64, &text.0);
                Ok(())
            }
            Call::Unmap { mapping } => kernel.unmap(*mapping),
            Call::Lock { fd, kind } => kernel.flock(&who, *fd, *kind),
            Call::Truncate { path, size } => kernel.truncate(&who, path, *size as u64),
            Call::ChangeMode { path, mode } => kernel.chmod(&who, path, *mode),
            Call::MakeDir { path, mode } => kernel.mkdir_as(&who, path, *mode),
            Call::Symlink { path } => kernel.symlink(&who, path, "target"),
            Call::Link { from, to } => kernel.link(&who, from, to),
            Call::Unlink { path } => kernel.unlink(&who, path),
            Call::RemoveDir { path } => kernel.rmdir(&who, path),
            Call::Rename { from, to } => kernel.rename(&who, from, to),
        };
        done.map(|()| Shown::Nothing)
    }

    /// Makes a call on both sides. Returns whether it succeeded. Does nothing where the documents
    /// leave the outcome open.
    pub(super) fn call(&mut self, program: usize, call: &Call) -> bool {
        if self.models.iter().any(|model| model.leaves_open(program, call)) {
            return false;
        }
        let arrival = self.arrival.take();
        let seen = self.ask(program, call);
        self.kernel.end_call();
        let name = USERS[program].name;
        writeln!(self.said, "    {name}#{program}: {call} = {seen:?}").unwrap();
        let mut wanted = Vec::new();
        let mut left: Vec<Model> = Vec::new();
        for model in std::mem::take(&mut self.models) {
            for (must, model) in orders(&model, program, call, arrival.as_ref()) {
                if agrees(&seen, &must) && !left.contains(&model) {
                    left.push(model);
                } else {
                    wanted.push(must);
                }
            }
        }
        self.models = left;
        let mode = if self.passthrough { "passthrough" } else { "cached" };
        let said = &self.said;
        assert!(!self.models.is_empty(), "{mode}\n{said}    it must be one of {wanted:?}");
        seen.is_ok()
    }

    /// Returns the rights of a file that the user of a program makes.
    pub(super) fn rights_of(program: usize, mode: u32) -> Rights {
        USERS[program].makes(mode)
    }

    /// Makes a change of another node arrive after this many requests of the next call, or at its
    /// end. Directories that differ between nodes are covered by the programs on two nodes.
    pub(super) fn expect(
        &mut self,
        path: &'static str,
        what: Option<(Text, Rights)>,
        requests_before: u32,
    ) {
        if self.arrival.is_some() || !self.models.iter().all(|model| model.admits(path)) {
            return;
        }
        self.arrivals += 1;
        let number = ARRIVALS + self.arrivals;
        let file = what.as_ref().map(|(text, rights)| (&text.0[..], *rights));
        self.kernel.expect_arrival(path, file, requests_before);
        self.note(&format!("after {requests_before} requests: {path:?} becomes {what:?}"));
        self.arrival = Some(Arrival { path, what, number });
    }

    /// Notes a step that is not a call.
    pub(super) fn note(&mut self, step: &str) {
        writeln!(self.said, "    {step}").unwrap();
    }

    /// Ends the node and starts it again, unless a change has arrived: a node without a store keeps
    /// nothing that others have sent.
    pub(super) fn restart(&mut self, orderly: bool) {
        // A closed file that is still open somewhere prevents a restart, too. The end of these
        // rooms leaves no staged file behind, unlike a kill: see the kill points of tests/mounts.
        if self.arrivals > 0 || self.models.iter().any(Model::lingers) {
            return;
        }
        self.note(if orderly { "restart" } else { "kill and restart" });
        self.kernel.restart(orderly);
        self.models.iter_mut().for_each(Model::restart);
    }

    /// Kills a program. The kernel does not show what happens to a file that it writes together
    /// with another program (semantics, "What is not promised").
    pub(super) fn die(&mut self, program: usize) {
        if self.models.iter().any(|model| model.shares(program)) {
            return;
        }
        self.settle();
        self.note(&format!("kill {}#{program}", USERS[program].name));
        self.programs[program].kill();
        let who = self.caller(program);
        for (fd, descriptor) in self.models[0].descriptors.clone() {
            if descriptor.program == program {
                self.kernel.close(&who, fd).unwrap();
            }
        }
        self.models.iter_mut().for_each(|model| model.die(program));
        self.programs[program] = Program::start_as(USERS[program]);
    }

    /// Makes a change that was expected within the next call arrive now.
    fn settle(&mut self) {
        if let Some(Arrival { path, what, number }) = self.arrival.take() {
            self.look();
            for model in &mut self.models {
                model.arrive(path, what.clone(), number);
            }
        }
    }

    /// Closes everything and compares every path, as root sees it.
    pub(super) fn compare(&mut self) {
        self.settle();
        for (fd, descriptor) in self.models[0].descriptors.clone() {
            let call =
                if descriptor.mapping { Call::Unmap { mapping: fd } } else { Call::Close { fd } };
            self.call(descriptor.program, &call);
        }
        let tree = self.tree();
        let (mode, said) = (self.passthrough, &self.said);
        let wanted: Vec<_> = self.models.iter().map(Model::tree).collect();
        self.models.retain(|model| model.tree() == tree);
        let none = self.models.is_empty();
        assert!(
            !none,
            "passthrough: {mode}\n{said}    in the end {tree:?} must be one of {wanted:?}"
        );
    }

    fn tree(&mut self) -> BTreeMap<String, (What, Rights)> {
        let who = self.root.caller();
        let mut tree = BTreeMap::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            for name in self.kernel.list(&who, &dir).unwrap() {
                let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                let found = self.kernel.stat(&who, &path).unwrap();
                let what = match kind_of(&found) {
                    Kind::Dir => {
                        dirs.push(path.clone());
                        What::Dir
                    }
                    Kind::Link => {
                        let target = self.kernel.read_link(&who, &path).unwrap();
                        What::Link(String::from_utf8(target).unwrap())
                    }
                    Kind::File => {
                        self.next_fd += 1;
                        let flags = OpenFlags::default();
                        self.kernel.open(&who, &path, self.next_fd, flags, false).unwrap();
                        let bytes = self.kernel.read(self.next_fd).unwrap();
                        self.kernel.close(&who, self.next_fd).unwrap();
                        assert_eq!(found.size, bytes.len() as u64, "size of {path}");
                        What::File(Text(bytes))
                    }
                };
                tree.insert(path, (what, rights_of(&found)));
            }
        }
        tree
    }

    /// Looks at a name that does not exist, which makes the node look at the log.
    pub(super) fn look(&mut self) {
        let who = self.root.caller();
        let found = self.kernel.stat(&who, "no such name");
        assert_eq!(found.err(), Some(hearthfs_mount::Errno::ENOENT));
    }
}
