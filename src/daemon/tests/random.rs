//! Random programs on one node, and on two, step by step beside the model.

use std::collections::BTreeMap;
use std::time::Duration;

use hearthfs_mount::{Caller, Errno, OpenFlags};
use proptest::collection::vec;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::kernel::{Fd, Kernel};
use super::model::{Counter, Model, Registers, Thing, Wish};
use super::programs::Program;
use crate::config::{ByteSize, Settings};

const PROGRAMS: usize = 3;
/// Few names, so that programs meet.
const PATHS: [&str; 10] = ["a", "b", "d", "d/a", "d/b", "d/s", "d/s/a", "e", "e/a", "e/b"];
/// The longest file.
const SIZE_MAX: usize = 3000;
/// Programs have no more files open at once than this.
const HANDLES_MAX: usize = 8;

/// What a program does. Numbers choose among what there is, so that any sequence makes sense.
#[derive(Clone, Debug)]
enum Act {
    OpenToWrite {
        path: usize,
        create: bool,
        exclusive: bool,
        truncate: bool,
    },
    OpenToRead {
        path: usize,
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
    Read {
        handle: usize,
    },
    Close {
        handle: usize,
    },
    /// Creates, writes and closes in one go.
    Put {
        path: usize,
        length: usize,
    },
    /// Reads a whole file by its name.
    Get {
        path: usize,
    },
    Truncate {
        path: usize,
        size: usize,
    },
    MakeDir {
        path: usize,
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
    List {
        path: usize,
    },
    Die,
    Forget,
    Restart {
        orderly: bool,
    },
}

fn any_act() -> impl Strategy<Value = Act> {
    let path = || 0..PATHS.len();
    let handle = || 0..HANDLES_MAX;
    let size = || prop_oneof![Just(0), 1..SIZE_MAX];
    prop_oneof![
        8 => (path(), any::<bool>(), prop::bool::weighted(0.2), any::<bool>()).prop_map(
            |(path, create, exclusive, truncate)| {
                Act::OpenToWrite { path, create, exclusive, truncate }
            }
        ),
        4 => path().prop_map(|path| Act::OpenToRead { path }),
        8 => (handle(), 0..100_usize, 1..SIZE_MAX)
            .prop_map(|(handle, at, length)| Act::Write { handle, at, length }),
        2 => (handle(), size()).prop_map(|(handle, size)| Act::SetSize { handle, size }),
        5 => handle().prop_map(|handle| Act::Read { handle }),
        7 => handle().prop_map(|handle| Act::Close { handle }),
        6 => (path(), size()).prop_map(|(path, length)| Act::Put { path, length }),
        5 => path().prop_map(|path| Act::Get { path }),
        1 => (path(), size()).prop_map(|(path, size)| Act::Truncate { path, size }),
        4 => path().prop_map(|path| Act::MakeDir { path }),
        1 => path().prop_map(|path| Act::Symlink { path }),
        2 => (path(), path()).prop_map(|(from, to)| Act::Link { from, to }),
        3 => path().prop_map(|path| Act::Unlink { path }),
        2 => path().prop_map(|path| Act::RemoveDir { path }),
        5 => (path(), path()).prop_map(|(from, to)| Act::Rename { from, to }),
        3 => path().prop_map(|path| Act::Stat { path }),
        2 => path().prop_map(|path| Act::List { path }),
        1 => Just(Act::Die),
        1 => Just(Act::Forget),
        1 => any::<bool>().prop_map(|orderly| Act::Restart { orderly }),
    ]
}

/// Bytes that tell from which step they come.
fn bytes_of(step: usize, length: usize) -> Vec<u8> {
    let mark = format!("<{step}>");
    mark.bytes().cycle().take(length).collect()
}

fn settings(dir: &std::path::Path, store: Option<&std::path::Path>) -> Settings {
    let mut settings = Settings::default();
    settings.local.cache_dir = dir.join("cache");
    settings.local.cache_size = ByteSize(1 << 30);
    settings.remote.url = store.map(|at| format!("file://{}", at.display()).parse().unwrap());
    settings.remote.deadline = Duration::from_secs(20);
    // Every look asks the store; nothing travels but when a test says so.
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

/// A node with its programs, and what it must show.
struct World<'a> {
    kernel: Kernel<'a>,
    model: Model,
    programs: Vec<Program>,
    next_fd: Fd,
}

impl<'a> World<'a> {
    fn new(runtime: &'a Runtime, settings: Settings, passthrough: bool) -> Self {
        let kernel = Kernel::start(runtime, settings, passthrough);
        let programs = (0..PROGRAMS).map(|_| Program::start()).collect();
        Self { kernel, model: Model::default(), programs, next_fd: 0 }
    }

    fn caller(&self, program: usize) -> Caller {
        self.programs[program].caller()
    }

    /// Chooses an open handle of a program.
    fn handle(&self, program: usize, choice: usize, to_write: bool) -> Option<Fd> {
        let all = self.model.handles().into_iter();
        let mine: Vec<Fd> = all
            .filter(|(_, of, write)| *of == program && (*write || !to_write))
            .map(|(fd, _, _)| fd)
            .collect();
        (!mine.is_empty()).then(|| mine[choice % mine.len()])
    }

    fn open_to_write(&mut self, program: usize, path: &str, wish: Wish) -> Option<Fd> {
        // Who joins whom among more than two who write one name at once is not the subject here.
        if self.model.drafts_of(path) >= 2 || self.model.handles().len() >= HANDLES_MAX {
            return None;
        }
        let (who, fd) = (self.caller(program), self.next_fd);
        self.next_fd += 1;
        let flags = OpenFlags {
            // What may be mapped goes another way than what may not.
            read: program != 1,
            write: true,
            truncate: wish.truncate,
            exclusive: wish.create && wish.exclusive,
            ..OpenFlags::default()
        };
        let done = self.kernel.open(&who, path, fd, flags, wish.create);
        assert_eq!(done, self.model.open_to_write(program, path, fd, wish), "open {path} {wish:?}");
        done.is_ok().then_some(fd)
    }

    fn open_to_read(&mut self, program: usize, path: &str) -> Option<Fd> {
        if self.model.handles().len() >= HANDLES_MAX {
            return None;
        }
        let (who, fd) = (self.caller(program), self.next_fd);
        self.next_fd += 1;
        let flags = OpenFlags { read: true, ..OpenFlags::default() };
        let done = self.kernel.open(&who, path, fd, flags, false);
        assert_eq!(done, self.model.open_to_read(program, path, fd), "open {path} to read");
        done.is_ok().then_some(fd)
    }

    fn write(&mut self, fd: Fd, at: usize, bytes: &[u8]) {
        self.kernel.write(fd, at as u64, bytes).unwrap();
        self.model.write(fd, at, bytes);
    }

    fn read(&mut self, fd: Fd) {
        let (read, wanted) = (self.kernel.read(fd).unwrap(), self.model.read(fd));
        let text = String::from_utf8_lossy;
        assert_eq!(text(&read), text(&wanted));
    }

    fn close(&mut self, counter: &mut Counter, program: usize, fd: Fd) {
        let who = self.caller(program);
        self.kernel.close(&who, fd).unwrap();
        self.model.close(counter, fd);
    }

    fn put(&mut self, counter: &mut Counter, program: usize, path: &str, bytes: &[u8]) {
        let wish = Wish { create: true, exclusive: false, truncate: true };
        if let Some(fd) = self.open_to_write(program, path, wish) {
            if !bytes.is_empty() {
                self.write(fd, 0, bytes);
            }
            self.close(counter, program, fd);
        }
    }

    fn get(&mut self, counter: &mut Counter, program: usize, path: &str) {
        if let Some(fd) = self.open_to_read(program, path) {
            self.read(fd);
            self.close(counter, program, fd);
        }
    }

    fn names(&mut self, counter: &mut Counter, program: usize, act: &Act) {
        let (who, kernel, model) = (self.caller(program), &mut self.kernel, &mut self.model);
        let (done, wanted) = match *act {
            Act::Truncate { path, .. } if model.drafts_of(PATHS[path]) > 0 => return,
            Act::Truncate { path, size } => {
                let done = kernel.truncate(&who, PATHS[path], size as u64);
                (done, model.truncate(counter, PATHS[path], size))
            }
            Act::MakeDir { path } => {
                let done = kernel.mkdir(&who, PATHS[path]);
                (done, model.make(counter, PATHS[path], Thing::Dir))
            }
            Act::Symlink { path } => {
                let target = format!("to {path}");
                let done = kernel.symlink(&who, PATHS[path], &target);
                (done, model.make(counter, PATHS[path], Thing::Link(target, None)))
            }
            Act::Link { from, .. } if model.drafts_of(PATHS[from]) > 0 => return,
            Act::Link { from, to } => {
                let done = kernel.link(&who, PATHS[from], PATHS[to]);
                (done, model.link(counter, PATHS[from], PATHS[to]))
            }
            Act::Unlink { path } if model.linked_drafts_below(PATHS[path]) => return,
            Act::Unlink { path } => {
                let done = kernel.unlink(&who, PATHS[path]);
                (done, model.unlink(counter, PATHS[path]))
            }
            Act::RemoveDir { path } => {
                let done = kernel.rmdir(&who, PATHS[path]);
                (done, model.rmdir(counter, PATHS[path]))
            }
            Act::Rename { from, to }
                if model.linked_drafts_below(PATHS[from])
                    || model.linked_drafts_below(PATHS[to]) =>
            {
                return;
            }
            Act::Rename { from, to } => {
                let done = kernel.rename(&who, PATHS[from], PATHS[to]);
                (done, model.rename(counter, PATHS[from], PATHS[to]))
            }
            _ => return,
        };
        assert_eq!(done, wanted, "{act:?}");
    }

    fn step(&mut self, counter: &mut Counter, step: usize, program: usize, act: &Act) {
        match *act {
            Act::OpenToWrite { path, create, exclusive, truncate } => {
                let wish = Wish { create, exclusive, truncate };
                self.open_to_write(program, PATHS[path], wish);
            }
            Act::OpenToRead { path } => {
                self.open_to_read(program, PATHS[path]);
            }
            Act::Write { handle, at, length } => {
                if let Some(fd) = self.handle(program, handle, true) {
                    self.write(fd, at, &bytes_of(step, length));
                }
            }
            Act::SetSize { handle, size } => {
                if let Some(fd) = self.handle(program, handle, true) {
                    self.kernel.set_size(&self.caller(program), fd, size as u64).unwrap();
                    self.model.set_size(fd, size);
                }
            }
            Act::Read { handle } => {
                if let Some(fd) = self.handle(program, handle, false) {
                    self.read(fd);
                }
            }
            Act::Close { handle } => {
                if let Some(fd) = self.handle(program, handle, false) {
                    self.close(counter, program, fd);
                }
            }
            Act::Put { path, length } => {
                self.put(counter, program, PATHS[path], &bytes_of(step, length));
            }
            Act::Get { path } => self.get(counter, program, PATHS[path]),
            Act::Stat { path } => {
                let found = self.kernel.stat(&self.caller(program), PATHS[path]);
                let (dir, size) = match (found, self.model.stat(program, PATHS[path])) {
                    (Ok(found), Ok((dir, size))) => ((found, dir), size),
                    (found, wanted) => {
                        return assert_eq!(found.err(), wanted.err(), "{act:?} {}", PATHS[path]);
                    }
                };
                assert_eq!(dir.0.file_type == hearthfs_mount::FileType::Directory, dir.1);
                assert_eq!(size.unwrap_or(dir.0.size), dir.0.size, "size of {}", PATHS[path]);
            }
            Act::List { path } => {
                let listed = self.kernel.list(&self.caller(program), PATHS[path]);
                assert_eq!(listed, self.model.list(PATHS[path]), "{act:?}");
            }
            Act::Die => self.die(counter, program),
            Act::Forget => self.kernel.forget(),
            Act::Restart { orderly } => {
                self.kernel.restart(orderly);
                self.model.restart();
            }
            _ => self.names(counter, program, act),
        }
    }

    fn die(&mut self, counter: &mut Counter, program: usize) {
        // What becomes of a file when one of two who write it is killed is another test's subject.
        if self.model.shares(program) {
            return;
        }
        self.programs[program].kill();
        let who = self.caller(program);
        for (fd, of, _) in self.model.handles() {
            if of == program {
                self.kernel.close(&who, fd).unwrap();
            }
        }
        self.model.die(counter, program);
        self.programs[program] = Program::start();
    }

    /// Closes everything and compares every path, as a program sees it that has nothing open.
    fn compare(&mut self, counter: &mut Counter) {
        for (fd, program, _) in self.model.handles() {
            self.close(counter, program, fd);
        }
        let who = self.caller(0);
        let mut tree = BTreeMap::new();
        let mut dirs = vec![String::new()];
        while let Some(dir) = dirs.pop() {
            for name in self.kernel.list(&who, &dir).unwrap() {
                let path = if dir.is_empty() { name } else { format!("{dir}/{name}") };
                let found = self.kernel.stat(&who, &path).unwrap();
                let thing = match found.file_type {
                    hearthfs_mount::FileType::Directory => {
                        dirs.push(path.clone());
                        Thing::Dir
                    }
                    hearthfs_mount::FileType::Symlink => {
                        let target = self.kernel.read_link(&who, &path).unwrap();
                        Thing::Link(String::from_utf8(target).unwrap(), None)
                    }
                    _ => {
                        let fd = self.next_fd;
                        self.next_fd += 1;
                        let flags = OpenFlags { read: true, ..OpenFlags::default() };
                        self.kernel.open(&who, &path, fd, flags, false).unwrap();
                        let bytes = self.kernel.read(fd).unwrap();
                        self.kernel.close(&who, fd).unwrap();
                        assert_eq!(found.size, bytes.len() as u64, "size of {path}");
                        Thing::File(bytes, None)
                    }
                };
                tree.insert(path, thing);
            }
        }
        assert_eq!(tree, self.model.tree());
    }
}

fn config(cases: u32) -> ProptestConfig {
    // `HEARTHFS_TEST_SEEDS` overrides it, for a soak.
    let wanted = std::env::var("HEARTHFS_TEST_SEEDS").ok().and_then(|text| text.parse().ok());
    ProptestConfig {
        cases: wanted.unwrap_or(cases),
        max_shrink_iters: 400,
        ..ProptestConfig::default()
    }
}

/// Acts that end what they begin: between two nodes only closed files count.
fn any_whole_act() -> impl Strategy<Value = Act> {
    any_act().prop_filter("it leaves nothing open", |act| {
        matches!(
            act,
            Act::Put { .. }
                | Act::Get { .. }
                | Act::MakeDir { .. }
                | Act::Symlink { .. }
                | Act::Unlink { .. }
                | Act::RemoveDir { .. }
                | Act::Rename { .. }
                | Act::Stat { .. }
                | Act::List { .. }
                | Act::Forget
        )
    })
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
        let mut counter = Counter::default();
        for (step, (program, act)) in acts.iter().enumerate() {
            world.step(&mut counter, step, *program, act);
        }
        world.compare(&mut counter);
        world.kernel.restart(false);
        world.compare(&mut counter);
    }
}

proptest! {
    #![proptest_config(config(6))]

    #[test]
    fn two_nodes_come_to_the_same(
        turns in vec((0..2_usize, vec((0..PROGRAMS, any_whole_act()), 1..12), prop::bool::weighted(0.3)), 1..10),
    ) {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let store = dir.path().join("store");
        std::fs::create_dir(&store).unwrap();
        let mut counter = Counter::default();
        let mut nodes = [0, 1].map(|node| {
            let home = dir.path().join(format!("node{node}"));
            std::fs::create_dir(&home).unwrap();
            World::new(&runtime, settings(&home, Some(&store)), node == 0)
        });
        let mut steps = 0;
        for (node, acts, meet) in &turns {
            // Stamps are of milliseconds, and the order of changes is that of their stamps.
            runtime.block_on(crate::clock::sleep(Duration::from_millis(3)));
            for (program, act) in acts {
                steps += 1;
                nodes[*node].step(&mut counter, steps, *program, act);
            }
            if *meet {
                settle(&mut nodes);
            }
        }
        settle(&mut nodes);
        for node in &mut nodes {
            node.compare(&mut counter);
        }
    }
}

/// Lets each node's changes come to the other: first those of one, so that it is certain what the second
/// knows when it tells its own.
fn settle(nodes: &mut [World<'_>; 2]) {
    let [one, two] = nodes;
    let look = |world: &mut World<'_>| {
        let who = world.caller(0);
        assert_eq!(world.kernel.stat(&who, "no such name").err(), Some(Errno::ENOENT));
    };
    one.kernel.drain();
    let first = one.model.tell(&Registers::new());
    look(two);
    two.model.learn(&first);
    two.kernel.drain();
    let second = two.model.tell(&first);
    look(one);
    one.model.learn(&second);
    one.model.met();
    two.model.met();
}
