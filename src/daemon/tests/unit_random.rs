//! Random programs that write and read one unit (P6), among changes of another node and kills. The
//! members that a reader sees are those of one version.
//!
//! `HEARTHFS_TEST_SEEDS=N` runs N new ones.

use std::time::Duration;

use hearthfs_mount::Errno;
use proptest::collection::vec;
use proptest::prelude::*;

use super::kernel::Kernel;
use super::node::{READ, node, put, runtime};
use super::programs::Program;
use super::random::config;
use super::units::{make_dirs, names, put_by_rename};

const KEY: &str = "triton/KEY";
const MARKER: &str = "__grp__.json";
const MEMBERS: [&str; 3] = ["a", "b", "c"];
const PROGRAMS: usize = 3;
/// A reader is led to its version for ten seconds. On a busy machine a test must not rely on the
/// last few of them.
const KEPT_FOR: Duration = Duration::from_secs(6);

#[derive(Clone, Debug)]
enum Act {
    /// The next step of writing a version: a member, and finally the marker.
    Write {
        rename: bool,
        order: usize,
    },
    ReadEntry,
    ReadMember {
        member: usize,
    },
    List,
    Unlink {
        member: usize,
    },
    /// A new process reads everything.
    Check,
    /// A whole version of another node arrives, after this many requests.
    Arrive {
        requests_before: u32,
    },
    Kill,
    KillDaemon,
    Pass,
}

fn any_act() -> impl Strategy<Value = Act> {
    let member = 0..MEMBERS.len();
    prop_oneof![
        14 => (any::<bool>(), 0..6_usize).prop_map(|(rename, order)| Act::Write { rename, order }),
        5 => Just(Act::ReadEntry),
        8 => member.clone().prop_map(|member| Act::ReadMember { member }),
        2 => Just(Act::List),
        1 => (0..=MEMBERS.len()).prop_map(|member| Act::Unlink { member }),
        5 => Just(Act::Check),
        3 => (0..12_u32).prop_map(|requests_before| Act::Arrive { requests_before }),
        1 => Just(Act::Kill),
        1 => Just(Act::KillDaemon),
        1 => Just(Act::Pass),
    ]
}

/// The state of one process.
struct Actor {
    program: Program,
    /// The version that it writes, and the members that it has not written yet.
    writes: Option<(u32, Vec<&'static str>)>,
    /// The version whose entry point it has opened, and when.
    reads: Option<(String, Duration)>,
}

impl Actor {
    fn new() -> Self {
        Self { program: Program::start(), writes: None, reads: None }
    }
}

struct Scene<'k, 'r> {
    kernel: &'k mut Kernel<'r>,
    actors: Vec<Actor>,
    versions: u32,
    /// A name was removed, so the rest may be no unit.
    removed: bool,
}

fn at(name: &str) -> String {
    format!("{KEY}/{name}")
}

fn text(version: u32) -> String {
    format!("version {version}")
}

fn order(number: usize) -> Vec<&'static str> {
    let mut left = MEMBERS.to_vec();
    let first = left.remove(number % 3);
    let second = left.remove(number % 2);
    vec![MARKER, left[0], second, first]
}

impl Scene<'_, '_> {
    /// Reads a file; `None` where there is none.
    fn read(kernel: &mut Kernel<'_>, program: &Program, name: &str) -> Option<String> {
        match kernel.open(&program.caller(), &at(name), 93, READ, false) {
            Ok(()) => {
                let bytes = kernel.read(93).unwrap();
                kernel.close(&program.caller(), 93).unwrap();
                Some(String::from_utf8(bytes).unwrap())
            }
            Err(errno) => {
                assert_eq!(errno, Errno::ENOENT, "{name}");
                None
            }
        }
    }

    fn expect(name: &str, seen: Option<String>, version: &str, who: &str) {
        match seen {
            Some(seen) => assert_eq!(seen, version, "{who}: {name} is of another version"),
            None => panic!("{who}: {name} of {version} is missing"),
        }
    }

    fn is_kept(&self, since: Duration) -> bool {
        self.kernel.rooms().clock.mono().saturating_sub(since) < KEPT_FOR
    }

    fn write(&mut self, number: usize, rename: bool, how: usize) {
        let actor = &mut self.actors[number];
        actor.reads = None;
        if actor.writes.is_none() {
            self.versions += 1;
            actor.writes = Some((self.versions, order(how)));
        }
        let Some((version, left)) = &mut actor.writes else { return };
        let (version, name) = (*version, left.pop().unwrap());
        if left.is_empty() {
            actor.writes = None;
        }
        make_dirs(self.kernel, &actor.program, KEY);
        let bytes = text(version);
        if rename {
            put_by_rename(self.kernel, &actor.program, &at(name), bytes.as_bytes());
        } else {
            put(self.kernel, &actor.program, &at(name), bytes.as_bytes());
        }
    }

    fn read_entry(&mut self, number: usize) {
        let actor = &mut self.actors[number];
        let seen = Self::read(self.kernel, &actor.program, MARKER);
        // Of its own draft it sees everything that it has written so far.
        let now = self.kernel.rooms().clock.mono();
        actor.reads = seen.filter(|_| actor.writes.is_none()).map(|seen| (seen, now));
    }

    fn read_member(&mut self, number: usize, name: &'static str) {
        let actor = &self.actors[number];
        let Some((version, since)) = actor.reads.clone() else { return };
        let seen = Self::read(self.kernel, &actor.program, name);
        if self.is_kept(since) {
            Self::expect(name, seen, &version, "a reader");
        }
    }

    fn list(&mut self, number: usize) {
        let actor = &self.actors[number];
        let Some((version, since)) = actor.reads.clone() else { return };
        let listed = names(self.kernel, &actor.program, KEY);
        if self.is_kept(since) {
            for name in MEMBERS {
                assert!(listed.iter().any(|has| has == name), "{name} of {version}: {listed:?}");
            }
        }
    }

    fn unlink(&mut self, number: usize, member: usize) {
        let actor = &mut self.actors[number];
        let name = MEMBERS.get(member).copied().unwrap_or(MARKER);
        if actor.writes.is_some() {
            return;
        }
        actor.reads = None;
        match self.kernel.unlink(&actor.program.caller(), &at(name)) {
            Ok(()) => self.removed = true,
            Err(errno) => assert_eq!(errno, Errno::ENOENT),
        }
    }

    fn check(&mut self) {
        let program = Program::start();
        let Some(version) = Self::read(self.kernel, &program, MARKER) else {
            for name in MEMBERS {
                // A version may have arrived since, but only together with its entry point.
                if Self::read(self.kernel, &program, name).is_some() {
                    let entry = Self::read(self.kernel, &Program::start(), MARKER);
                    let removed = self.removed;
                    assert!(
                        entry.is_some() || removed,
                        "{name} is visible without its entry point"
                    );
                }
            }
            return;
        };
        for name in MEMBERS {
            let seen = Self::read(self.kernel, &program, name);
            Self::expect(name, seen, &version, "a fresh process");
        }
    }

    fn arrive(&mut self, requests_before: u32) {
        self.versions += 1;
        let bytes = text(self.versions).into_bytes();
        let file = |name: &&str| (at(name), bytes.clone());
        let files: Vec<_> = MEMBERS.iter().chain([&MARKER]).map(file).collect();
        self.kernel.expect_unit(&files, requests_before);
    }

    fn act(&mut self, number: usize, act: &Act) {
        match act {
            Act::Write { rename, order } => self.write(number, *rename, *order),
            Act::ReadEntry => self.read_entry(number),
            Act::ReadMember { member } => self.read_member(number, MEMBERS[*member]),
            Act::List => self.list(number),
            Act::Unlink { member } => self.unlink(number, *member),
            Act::Check => self.check(),
            Act::Arrive { requests_before } => self.arrive(*requests_before),
            Act::Kill => {
                self.actors[number].program.kill();
                self.actors[number] = Actor::new();
            }
            Act::KillDaemon => {
                self.kernel.restart(false);
                // Their drafts are gone, and they open everything again.
                for actor in &mut self.actors {
                    (actor.writes, actor.reads) = (None, None);
                }
            }
            Act::Pass => self.kernel.pass(Duration::from_millis(300)),
        }
    }
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn p6_units_of_random_programs_never_mix(
        passthrough in any::<bool>(),
        acts in vec((0..PROGRAMS, any_act()), 1..90),
    ) {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let kernel = &mut Kernel::start(&runtime, node(&dir), passthrough);
        let actors = (0..PROGRAMS).map(|_| Actor::new()).collect();
        let mut scene = Scene { kernel, actors, versions: 0, removed: false };
        for (number, act) in &acts {
            scene.act(*number, act);
        }
        scene.kernel.end_call();
        scene.check();
    }
}
