//! Random programs on one node, on one node among changes of another, and on two, step by step beside the model.
//!
//! The programs are the same in every run; `HEARTHFS_TEST_SEEDS=N` runs N new ones of each. A
//! program that fails is shortened as far as possible, and printed call by call.

use std::time::Duration;

use hearthfs_mount::{FlockKind, OpenFlags};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use tokio::runtime::Runtime;

use super::calls::{Call, Text};
use super::model::Registers;
use super::world::{PROGRAMS, World};
use crate::config::{ByteSize, Settings};

/// A few names. The first two are used most.
const PATHS: [&str; 10] = ["a", "b", "d", "d/a", "d/b", "d/s", "d/s/a", "e", "e/a", "e/b"];
/// The longest file.
const SIZE_MAX: usize = 3000;
/// Modes of files and directories. Most of them let other users do something.
const MODES: [u32; 6] = [0o666, 0o644, 0o660, 0o666, 0o600, 0o462];
const DIR_MODES: [u32; 7] = [0o777, 0o755, 0o777, 0o1777, 0o2775, 0o700, 0o770];
/// The bytes of each step, which show where the content of a file comes from.
const MARKS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// What a program does. The numbers select from what exists at that time, so that any sequence is
/// valid.
#[derive(Clone, Debug)]
enum Act {
    Open {
        path: usize,
        flags: OpenFlags,
        mode: Option<usize>,
    },
    Reopen {
        handle: usize,
        flags: OpenFlags,
    },
    Duplicate {
        handle: usize,
        to: Option<usize>,
    },
    Write {
        handle: usize,
        at: usize,
        length: usize,
    },
    SetSize {
        handle: usize,
        size: usize,
    },
    SetMode {
        handle: usize,
        mode: usize,
    },
    Read {
        handle: usize,
    },
    Close {
        handle: usize,
    },
    Map {
        handle: usize,
    },
    Store {
        mapping: usize,
        at: usize,
        length: usize,
    },
    Unmap {
        mapping: usize,
    },
    Lock {
        handle: usize,
        kind: FlockKind,
    },
    /// Creates, writes and closes in one go.
    Put {
        path: usize,
        length: usize,
        mode: usize,
    },
    /// Reads a whole file by its name.
    Get {
        path: usize,
    },
    Truncate {
        path: usize,
        size: usize,
    },
    ChangeMode {
        path: usize,
        mode: usize,
    },
    MakeDir {
        path: usize,
        mode: usize,
    },
    Symlink {
        path: usize,
    },
    Link {
        from: usize,
        to: usize,
    },
    Unlink {
        path: usize,
    },
    RemoveDir {
        path: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Stat {
        path: usize,
    },
    /// A child inherits a descriptor, writes, and exits.
    Spawn {
        handle: usize,
    },
    /// What a linker does with its output file.
    Linker {
        handle: usize,
    },
    /// All programs look at a name in turn.
    Glance {
        path: usize,
    },
    /// A file is written further through a descriptor that its opener has left.
    Leave {
        path: usize,
        how: usize,
    },
    /// A file is opened once more through its descriptor.
    ComeBack {
        path: usize,
        how: usize,
    },
    List {
        path: usize,
    },
    Die,
    Forget,
    Restart {
        orderly: bool,
    },
}

/// Two of the names are used as often as all the others together, so that programs meet.
fn any_path() -> impl Strategy<Value = usize> {
    prop_oneof![0..2_usize, 0..PATHS.len()]
}

fn any_size() -> impl Strategy<Value = usize> {
    prop_oneof![Just(0), 1..SIZE_MAX]
}

fn any_write() -> impl Strategy<Value = OpenFlags> {
    let some = prop::bool::weighted;
    (any::<bool>(), some(0.2), any::<bool>(), some(0.2)).prop_map(
        |(read, append, truncate, exclusive)| OpenFlags {
            access: super::node::written(read),
            append,
            truncate,
            exclusive,
            direct: false,
        },
    )
}

const READ: OpenFlags = super::node::READ;

/// Calls on open files.
fn any_act_on_a_file() -> impl Strategy<Value = Act> {
    let handle = || 0..8_usize;
    let flags = prop_oneof![Just(READ), any_write()];
    let kinds = [FlockKind::Shared, FlockKind::Exclusive, FlockKind::Unlock];
    prop_oneof![
        8 => (handle(), 0..100_usize, 1..SIZE_MAX)
            .prop_map(|(handle, at, length)| Act::Write { handle, at, length }),
        2 => (handle(), any_size()).prop_map(|(handle, size)| Act::SetSize { handle, size }),
        2 => (handle(), 0..MODES.len()).prop_map(|(handle, mode)| Act::SetMode { handle, mode }),
        5 => handle().prop_map(|handle| Act::Read { handle }),
        9 => handle().prop_map(|handle| Act::Close { handle }),
        2 => (handle(), flags).prop_map(|(handle, flags)| Act::Reopen { handle, flags }),
        5 => (handle(), prop::option::of(0..PROGRAMS))
            .prop_map(|(handle, to)| Act::Duplicate { handle, to }),
        1 => handle().prop_map(|handle| Act::Map { handle }),
        2 => (handle(), 0..SIZE_MAX, 1..100_usize)
            .prop_map(|(mapping, at, length)| Act::Store { mapping, at, length }),
        1 => handle().prop_map(|mapping| Act::Unmap { mapping }),
        2 => handle().prop_map(|handle| Act::Spawn { handle }),
        2 => handle().prop_map(|handle| Act::Linker { handle }),
        3 => (handle(), prop::sample::select(kinds.to_vec()))
            .prop_map(|(handle, kind)| Act::Lock { handle, kind }),
    ]
}

/// Calls by names that leave nothing open.
fn any_act_on_a_name() -> impl Strategy<Value = Act> {
    let path = any_path;
    prop_oneof![
        7 => (path(), any_size(), 0..MODES.len())
            .prop_map(|(path, length, mode)| Act::Put { path, length, mode }),
        5 => path().prop_map(|path| Act::Get { path }),
        5 => (path(), 0..DIR_MODES.len()).prop_map(|(path, mode)| Act::MakeDir { path, mode }),
        1 => path().prop_map(|path| Act::Symlink { path }),
        3 => path().prop_map(|path| Act::Unlink { path }),
        2 => path().prop_map(|path| Act::RemoveDir { path }),
        5 => (path(), path()).prop_map(|(from, to)| Act::Rename { from, to }),
        3 => path().prop_map(|path| Act::Stat { path }),
        2 => path().prop_map(|path| Act::List { path }),
        1 => Just(Act::Forget),
    ]
}

/// All acts on one node.
fn any_act() -> impl Strategy<Value = Act> {
    let path = any_path;
    let mode = || prop::option::of(0..MODES.len());
    prop_oneof![
        30 => any_act_on_a_name(),
        36 => any_act_on_a_file(),
        10 => (path(), any_write(), mode())
            .prop_map(|(path, flags, mode)| Act::Open { path, flags, mode }),
        5 => (path(), mode()).prop_map(|(path, mode)| Act::Open { path, flags: READ, mode }),
        1 => (path(), any_size()).prop_map(|(path, size)| Act::Truncate { path, size }),
        3 => (path(), 0..MODES.len()).prop_map(|(path, mode)| Act::ChangeMode { path, mode }),
        2 => path().prop_map(|path| Act::Glance { path }),
        2 => (path(), 0..128_usize).prop_map(|(path, how)| Act::Leave { path, how }),
        2 => (path(), 0..16_usize).prop_map(|(path, how)| Act::ComeBack { path, how }),
        2 => (path(), path()).prop_map(|(from, to)| Act::Link { from, to }),
        1 => Just(Act::Die),
        1 => any::<bool>().prop_map(|orderly| Act::Restart { orderly }),
    ]
}

fn settings(dir: &std::path::Path, store: Option<&std::path::Path>) -> Settings {
    let mut settings = Settings::default();
    settings.local.cache_dir = dir.join("cache");
    settings.local.cache_size = ByteSize(1 << 30);
    settings.remote.url = store.map(|at| format!("file://{}", at.display()).parse().unwrap());
    settings.remote.deadline = Duration::from_secs(20);
    // Every lookup asks the store; changes are sent only when a test says so.
    settings.remote.freshness = Duration::ZERO;
    settings.writeback.delay = Duration::from_mins(1);
    settings.writeback.batch = ByteSize(8 << 20);
    settings.writeback.open_wait = Duration::from_millis(10);
    settings.mount.xattrs = true;
    settings
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn text_of(step: usize, length: usize) -> Text {
    Text(vec![MARKS[step % MARKS.len()]; length])
}

impl World<'_> {
    /// Converts an act on an open file to a call with the present descriptors.
    fn call_on_a_file(&mut self, step: usize, program: usize, act: &Act) -> Option<Call> {
        let is_open = |_: u32, one: &super::model::Descriptor| !one.mapping;
        let any = |world: &Self, choice| world.choose(program, choice, is_open);
        let writer = |world: &Self, choice| {
            let writes = |fd, one: &_| is_open(fd, one) && world.models[0].writes(fd);
            world.choose(program, choice, writes)
        };
        let mapping = |world: &Self, choice| world.choose(program, choice, |_, one| one.mapping);
        Some(match *act {
            Act::Write { handle, at, length } => {
                Call::Write { fd: writer(self, handle)?, at, text: text_of(step, length) }
            }
            Act::SetSize { handle, size } => Call::SetSize { fd: writer(self, handle)?, size },
            Act::SetMode { handle, mode } => {
                Call::SetMode { fd: any(self, handle)?, mode: MODES[mode] }
            }
            Act::Read { handle } => {
                // A descriptor that was opened for writing only cannot read. What it has written is
                // read by name.
                let reads = |fd, one: &_| is_open(fd, one) && self.kernel.reads(fd);
                Call::Read { fd: self.choose(program, handle, reads)? }
            }
            Act::Close { handle } => Call::Close { fd: any(self, handle)? },
            Act::Reopen { handle, flags } => {
                let flags = OpenFlags { exclusive: false, ..flags };
                Call::Reopen { fd: any(self, handle)?, new: self.new_fd()?, flags }
            }
            Act::Duplicate { handle, to } => {
                let fd = any(self, handle)?;
                Call::Duplicate { fd, new: self.new_fd()?, to: to.unwrap_or(program) }
            }
            Act::Map { handle } => {
                let fd = any(self, handle).filter(|fd| self.kernel.maps_through_cache(*fd))?;
                Call::Map { fd, mapping: self.new_fd()? }
            }
            Act::Store { mapping: choice, at, length } => {
                let mapping = mapping(self, choice)?;
                let size = self.models.iter().map(|m| m.size_of(mapping)).min()?;
                let at = at.checked_rem(size)?;
                Call::Store { mapping, at, text: text_of(step, length.min(size - at)) }
            }
            Act::Unmap { mapping: choice } => Call::Unmap { mapping: mapping(self, choice)? },
            Act::Lock { handle, kind } => Call::Lock { fd: any(self, handle)?, kind },
            _ => return None,
        })
    }

    /// Chooses a writing descriptor of a program for which `wanted` returns true.
    fn writer(
        &self,
        program: usize,
        choice: usize,
        wanted: impl Fn(&Self, u32) -> bool,
    ) -> Option<u32> {
        let writes = |fd, one: &super::model::Descriptor| {
            !one.mapping && self.models[0].writes(fd) && wanted(self, fd)
        };
        self.choose(program, choice, writes)
    }

    fn spawn_from(&mut self, step: usize, program: usize, handle: usize) {
        let Some(fd) = self.writer(program, handle, |_, _| true) else { return };
        let name = self.models[0].name_written(fd);
        let path = PATHS.into_iter().find(|path| name.as_deref() == Some(*path));
        self.spawn(program, fd, path, text_of(step, 1 + handle));
    }

    fn link_by(&mut self, step: usize, program: usize, handle: usize) {
        let maps = |world: &Self, fd| world.kernel.maps_through_cache(fd);
        let Some(fd) = self.writer(program, handle, maps) else { return };
        self.link_as_linkers_do(program, fd, &text_of(step, 1 + handle));
    }

    fn step(&mut self, step: usize, program: usize, act: &Act) {
        let call = match *act {
            Act::Put { path, length, mode } => {
                let (text, read) = (text_of(step, length), step.is_multiple_of(2));
                return self.put(program, PATHS[path], text, MODES[mode], read);
            }
            Act::Spawn { handle } => return self.spawn_from(step, program, handle),
            Act::Linker { handle } => return self.link_by(step, program, handle),
            Act::Glance { path } => return self.glance(program, PATHS[path]),
            Act::Leave { path, how } => {
                return self.leave(program, PATHS[path], &text_of(step, 3 + how % 16), how);
            }
            Act::ComeBack { path, how } => {
                return self.come_back(program, PATHS[path], text_of(step, 3 + how), how);
            }
            Act::Get { path } => return self.get(program, PATHS[path]),
            Act::Die => return self.die(program),
            Act::Forget => {
                self.note("forget");
                return self.kernel.forget();
            }
            Act::Restart { orderly } => return self.restart(orderly),
            Act::Open { path, flags, mode } => {
                let Some(fd) = self.new_fd() else { return };
                let mode = mode.map(|mode| MODES[mode]);
                let exclusive = flags.exclusive && mode.is_some();
                Call::Open { path: PATHS[path], fd, flags: OpenFlags { exclusive, ..flags }, mode }
            }
            Act::Truncate { path, size } => Call::Truncate { path: PATHS[path], size },
            Act::ChangeMode { path, mode } => {
                // Directories keep modes with which programs can go on, and a link has no mode of
                // its own.
                let path = PATHS[path];
                let is_file = |model: &super::model::Model| model.is_file(program, path);
                if !self.models.iter().all(is_file) {
                    return;
                }
                Call::ChangeMode { path, mode: MODES[mode] }
            }
            Act::MakeDir { path, mode } => {
                Call::MakeDir { path: PATHS[path], mode: DIR_MODES[mode] }
            }
            Act::Symlink { path } => Call::Symlink { path: PATHS[path] },
            Act::Link { from, to } => Call::Link { from: PATHS[from], to: PATHS[to] },
            Act::Unlink { path } => Call::Unlink { path: PATHS[path] },
            Act::RemoveDir { path } => Call::RemoveDir { path: PATHS[path] },
            Act::Rename { from, to } => Call::Rename { from: PATHS[from], to: PATHS[to] },
            Act::Stat { path } => Call::Stat { path: PATHS[path] },
            Act::List { path } => Call::List { path: PATHS[path] },
            _ => match self.call_on_a_file(step, program, act) {
                Some(call) => call,
                None => return,
            },
        };
        self.call(program, &call);
    }
}

pub(super) fn config(cases: u32) -> ProptestConfig {
    // `HEARTHFS_TEST_SEEDS` overrides it for a soak test.
    let wanted = std::env::var("HEARTHFS_TEST_SEEDS").ok().and_then(|text| text.parse().ok());
    let usual = ProptestConfig::default();
    // `PROPTEST_MAX_SHRINK_ITERS` lowers it, for runs that only have to show whether a fault is
    // found.
    let at_most = |iterations| usual.max_shrink_iters.min(iterations);
    match wanted {
        None => ProptestConfig { cases, max_shrink_iters: at_most(400), ..usual },
        Some(cases) => {
            let (max_shrink_iters, rng_seed) = (at_most(1500), RngSeed::Random);
            ProptestConfig { cases, max_shrink_iters, rng_seed, ..usual }
        }
    }
}

proptest! {
    #![proptest_config(config(16))]

    #[test]
    fn one_node_does_as_the_rules_say(
        passthrough in any::<bool>(),
        acts in vec((0..PROGRAMS, any_act()), 1..150),
    ) {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let mut world = World::new(&runtime, settings(dir.path(), None), passthrough);
        for (step, (program, act)) in acts.iter().enumerate() {
            world.step(step, *program, act);
        }
        world.compare();
        world.restart(false);
        world.compare();
    }
}

/// A change of another node that arrives: a file of one user, or a removal.
#[derive(Clone, Debug)]
struct News {
    path: usize,
    file: Option<(usize, usize, usize)>,
    requests_before: u32,
}

fn any_news() -> impl Strategy<Value = News> {
    let file = (any_size(), 0..PROGRAMS, 0..MODES.len());
    (any_path(), prop::option::weighted(0.7, file), 0..6_u32)
        .prop_map(|(path, file, requests_before)| News { path, file, requests_before })
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn changes_of_another_node_come_between_any_two_requests(
        passthrough in any::<bool>(),
        acts in vec((0..PROGRAMS, any_act(), prop::option::weighted(0.2, any_news())), 1..120),
    ) {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let mut world = World::new(&runtime, settings(dir.path(), None), passthrough);
        for (step, (program, act, news)) in acts.iter().enumerate() {
            if let Some(News { path, file, requests_before }) = news {
                let file = file.map(|(length, user, mode)| {
                    (text_of(step, length), World::rights_of(user, MODES[mode]))
                });
                world.expect(PATHS[*path], file, *requests_before);
            }
            world.step(step, *program, act);
        }
        world.compare();
    }
}

proptest! {
    #![proptest_config(config(6))]

    #[test]
    fn two_nodes_come_to_the_same(
        turns in vec((0..2_usize, vec((0..PROGRAMS, any_act_on_a_name()), 1..12), prop::bool::weighted(0.3)), 1..10),
    ) {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let mut nodes = [0, 1].map(|node| {
            let home = dir.path().join(format!("node{node}"));
            std::fs::create_dir(&home).unwrap();
            World::new(&runtime, settings(&home, Some(&store)), node == 0)
        });
        let (mut steps, mut last) = (0, 0);
        for (node, acts, meet) in &turns {
            // Stamps have milliseconds, and they decide the order of changes.
            runtime.block_on(crate::clock::sleep(Duration::from_millis(3)));
            nodes[*node].models[0].count_on(last);
            for (program, act) in acts {
                steps += 1;
                nodes[*node].step(steps, *program, act);
            }
            last = nodes[*node].models[0].count_on(last);
            if *meet {
                settle(&mut nodes);
            }
        }
        settle(&mut nodes);
        for node in &mut nodes {
            node.compare();
        }
    }
}

/// Sends each node's changes to the other. The first node sends first, so that it is certain what
/// the second one knows when it sends its own.
fn settle(nodes: &mut [World<'_>; 2]) {
    let [one, two] = nodes;
    one.kernel.drain();
    let first = one.models[0].tell(&Registers::new());
    two.look();
    two.models[0].learn(&first);
    two.kernel.drain();
    let second = two.models[0].tell(&first);
    one.look();
    one.models[0].learn(&second);
    // A change that left a path as other nodes knew it was not sent. It is sent once a change of
    // the other node to that path arrives.
    one.kernel.drain();
    two.look();
    for node in nodes {
        node.note("the nodes meet");
        node.models[0].met();
    }
}
