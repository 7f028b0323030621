//! Random programs that write and read units (P6), among changes of another node.
//!
//! After each step a separate program reads what is published. Everything that a reader sees after
//! it has opened an entry point must belong to the version that this program has seen with the same
//! entry point.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use hearthfs_mount::Errno;
use proptest::collection::vec;
use proptest::prelude::*;

use super::kernel::Kernel;
use super::node::{READ, node, put, runtime};
use super::programs::Program;
use super::random::config;

/// How many programs write and read.
const PROGRAMS: usize = 3;
/// One unit that is a directory, and one that is the names with a stem. For each: the directory,
/// the entry point, and the other members. The first is complete with its entry point, the second
/// with each of its other members.
const UNITS: [(&str, &str, [&str; 2]); 2] = [
    ("triton/K", "__grp__k.json", ["k.json", "k.cubin"]),
    ("numba/d", "m.f-1.py311.nbi", ["m.f-1.py311.1.nbc", "m.f-1.py311.2.nbc"]),
];

type Version = BTreeMap<&'static str, Vec<u8>>;

#[derive(Clone, Debug)]
enum Act {
    /// Writes a member; with `complete`, also what completes the unit.
    Put {
        unit: usize,
        member: usize,
        renamed: bool,
        complete: bool,
    },
    /// With `all`, also every other member of the unit.
    ReadEntry {
        unit: usize,
        all: bool,
    },
    ReadMember {
        unit: usize,
        member: usize,
    },
    Remove {
        unit: usize,
    },
    Kill,
    Restart {
        orderly: bool,
    },
}

fn any_act() -> impl Strategy<Value = Act> {
    let (unit, member) = (0..UNITS.len(), 0..2_usize);
    prop_oneof![
        6 => (unit.clone(), member.clone(), any::<bool>(), prop::bool::weighted(0.5)).prop_map(
            |(unit, member, renamed, complete)| Act::Put { unit, member, renamed, complete }
        ),
        5 => (unit.clone(), prop::bool::weighted(0.8))
            .prop_map(|(unit, all)| Act::ReadEntry { unit, all }),
        6 => (unit.clone(), member).prop_map(|(unit, member)| Act::ReadMember { unit, member }),
        1 => unit.prop_map(|unit| Act::Remove { unit }),
        1 => Just(Act::Kill),
        1 => any::<bool>().prop_map(|orderly| Act::Restart { orderly }),
    ]
}

/// A version of another node that arrives: its unit, its members, and after how many requests of
/// the act.
fn any_arrival() -> impl Strategy<Value = Option<(usize, [bool; 2], u32)>> {
    let arrival = (0..UNITS.len(), any::<[bool; 2]>(), prop_oneof![0..12_u32, 4..8_u32]);
    prop::option::weighted(0.3, arrival)
}

/// What is known about one program and one unit.
#[derive(Clone, Default)]
struct Edition {
    /// What the program has written and must see, until it begins to read what is published.
    own: Version,
    /// It has written something since its last marker.
    dirty: bool,
    /// The content of the entry point that it reads by.
    reads: Option<Vec<u8>>,
}

struct Test<'a> {
    kernel: Kernel<'a>,
    programs: Vec<Program>,
    onlooker: Program,
    editions: Vec<[Edition; UNITS.len()]>,
    /// Every version that was published, by the content of its entry point.
    versions: HashMap<Vec<u8>, Version>,
    current: [Option<Vec<u8>>; UNITS.len()],
    said: String,
}

fn path(unit: usize, name: &str) -> String {
    format!("{}/{name}", UNITS[unit].0)
}

fn members(unit: usize) -> [&'static str; 3] {
    let (_, entry, others) = UNITS[unit];
    [entry, others[0], others[1]]
}

fn is_marker(unit: usize, name: &str) -> bool {
    (name == UNITS[unit].1) == (unit == 0)
}

impl<'a> Test<'a> {
    fn new(kernel: Kernel<'a>) -> Self {
        let programs = (0..PROGRAMS).map(|_| Program::start()).collect();
        let editions = vec![Default::default(); PROGRAMS];
        let mut test = Self {
            kernel,
            programs,
            onlooker: Program::start(),
            editions,
            versions: HashMap::new(),
            current: Default::default(),
            said: String::new(),
        };
        for dir in ["triton", "triton/K", "numba", "numba/d"] {
            test.kernel.mkdir(&test.onlooker.caller(), dir).unwrap();
        }
        test
    }

    fn read(&mut self, program: Option<usize>, unit: usize, name: &str) -> Option<Vec<u8>> {
        let program = program.map_or(&self.onlooker, |at| &self.programs[at]);
        let at = path(unit, name);
        match self.kernel.open(&program.caller(), &at, 93, READ, false) {
            Ok(()) => {
                let bytes = self.kernel.read(93).unwrap();
                self.kernel.close(&program.caller(), 93).unwrap();
                Some(bytes)
            }
            Err(Errno::ENOENT) => None,
            Err(errno) => panic!("{}{at}: {errno:?}", self.said),
        }
    }

    /// Reads what is published.
    fn look(&mut self) {
        for (unit, (_, entry, _)) in UNITS.into_iter().enumerate() {
            let entry = self.read(None, unit, entry);
            self.current[unit] = entry.clone();
            let Some(entry) = entry else { continue };
            let names = members(unit);
            let found =
                names.into_iter().filter_map(|name| Some((name, self.read(None, unit, name)?)));
            let found: Version = found.collect();
            let known = self.versions.entry(entry).or_insert_with(|| found.clone());
            assert_eq!(*known, found, "{}a version has changed", self.said);
        }
    }

    fn write(
        &mut self,
        program: usize,
        unit: usize,
        name: &'static str,
        step: usize,
        renamed: bool,
    ) {
        let text = format!("{step} {program} {name}").into_bytes();
        let at = path(unit, name);
        let writer = &self.programs[program];
        if renamed {
            // The profiles recognise the names of some temporaries.
            let temporary = match unit {
                _ if step.is_multiple_of(3) => "plain".to_owned(),
                0 => "triton/tmp.x".to_owned(),
                _ => format!("{at}.tmp.0123456789abcdef"),
            };
            put(&mut self.kernel, writer, &temporary, &text);
            self.kernel.rename(&writer.caller(), &temporary, &at).unwrap();
        } else {
            put(&mut self.kernel, writer, &at, &text);
        }
        let edition = &mut self.editions[program][unit];
        edition.own.insert(name, text);
        edition.dirty = !is_marker(unit, name);
        edition.reads = None;
    }

    fn read_member(&mut self, program: usize, unit: usize, member: usize) {
        let (name, said) = (UNITS[unit].2[member], self.said.clone());
        let found = self.read(Some(program), unit, name);
        let edition = &self.editions[program][unit];
        if let Some(own) = edition.own.get(name) {
            assert_eq!(found.as_ref(), Some(own), "{said}its own {name}");
        } else if let Some(entry) = &edition.reads {
            let version = &self.versions[entry];
            assert_eq!(found.as_ref(), version.get(name), "{said}{name} of another version");
        }
    }

    fn act(&mut self, step: usize, program: usize, act: &Act, arrives: Option<usize>) {
        let said = self.said.clone();
        match *act {
            Act::Put { unit, member, renamed, complete } => {
                let (_, entry, others) = UNITS[unit];
                let order =
                    if unit == 0 { [others[member], entry] } else { [entry, others[member]] };
                for name in &order[..=usize::from(complete)] {
                    self.write(program, unit, name, step, renamed);
                }
            }
            Act::ReadEntry { unit, all } => {
                let before = self.current[unit].clone();
                let found = self.read(Some(program), unit, UNITS[unit].1);
                self.look();
                let edition = &mut self.editions[program][unit];
                if edition.dirty {
                    if let Some(own) = edition.own.get(UNITS[unit].1) {
                        assert_eq!(found.as_ref(), Some(own), "{said}its own entry point");
                    }
                    return;
                }
                // An open that has looked twice, and finds the version replaced once more, is a
                // miss.
                let moved = found.is_none() && arrives == Some(unit);
                assert!(
                    moved || found == before || found == self.current[unit],
                    "{said}{found:?} is not published"
                );
                *edition = Edition { reads: found, ..Edition::default() };
                for member in (0..2).filter(|_| all) {
                    self.read_member(program, unit, member);
                }
            }
            Act::ReadMember { unit, member } => self.read_member(program, unit, member),
            Act::Remove { unit } => {
                if !self.editions[program][unit].dirty {
                    for name in members(unit) {
                        let done =
                            self.kernel.unlink(&self.programs[program].caller(), &path(unit, name));
                        assert!(matches!(done, Ok(()) | Err(Errno::ENOENT)), "{said}{done:?}");
                    }
                    self.editions[program][unit] = Edition::default();
                }
            }
            Act::Kill => {
                self.programs[program].kill();
                self.programs[program] = Program::start();
                self.editions[program] = Default::default();
            }
            Act::Restart { orderly } => {
                self.kernel.restart(orderly);
                self.editions = vec![Default::default(); PROGRAMS];
            }
        }
    }
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn p6_units_of_random_programs(
        passthrough in any::<bool>(),
        acts in vec((0..PROGRAMS, any_act(), any_arrival()), 1..60),
    ) {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let mut test = Test::new(Kernel::start(&runtime, node(&dir), passthrough));
        let mut arrived = false;
        for (step, (program, act, arrival)) in acts.iter().enumerate() {
            writeln!(test.said, "    #{program} {act:?} {arrival:?}").unwrap();
            let quiet = matches!(act, Act::Remove { .. } | Act::Restart { .. });
            if let Some((unit, with, requests_before)) = arrival.filter(|_| !quiet) {
                let (_, entry, others) = UNITS[unit];
                let others = others.into_iter().zip(with).filter(|(_, with)| *with);
                let names: Vec<&str> = [entry].into_iter().chain(others.map(|(name, _)| name)).collect();
                let text = |name: &str| format!("{step} elsewhere {name}").into_bytes();
                let files: Vec<_> = names.iter().map(|name| (path(unit, name), text(name))).collect();
                test.kernel.expect_unit(&files, requests_before);
                arrived = true;
            }
            // A node without a store keeps nothing that other nodes have sent.
            if !(arrived && matches!(act, Act::Restart { .. })) {
                let arrives = arrival.map(|(unit, ..)| unit);
                test.act(step, *program, act, arrives);
            }
            test.kernel.end_call();
            test.look();
        }
    }
}
