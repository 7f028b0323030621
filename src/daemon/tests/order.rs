//! Random programs that look at changes of another node, before the thread that brought these in
//! has sent its notification. A program that has seen one change sees every earlier one (P5),
//! whatever the kernel remembers.
//!
//! `HEARTHFS_TEST_SEEDS=N` runs N of them.

use std::fmt::Write as _;

use hearthfs_mount::Errno;
use proptest::collection::vec;
use proptest::prelude::*;

use super::kernel::Kernel;
use super::node::{READ, get, in_both_modes, node, put, runtime};
use super::programs::Program;
use super::random::config;

const PATHS: [&str; 4] = ["a", "b", "d/a", "d/b"];
const PROGRAMS: usize = 2;

#[derive(Clone, Debug)]
enum Act {
    /// A commit of another node: the files that it puts, and the files that it removes.
    Arrive {
        puts: [bool; PATHS.len()],
        removes: [bool; PATHS.len()],
    },
    Tell {
        any: bool,
    },
    Stat {
        path: usize,
    },
    Read {
        path: usize,
    },
}

fn any_act() -> impl Strategy<Value = Act> {
    let path = 0..PATHS.len();
    prop_oneof![
        3 => (any::<[bool; PATHS.len()]>(), any::<[bool; PATHS.len()]>())
            .prop_map(|(puts, removes)| Act::Arrive { puts, removes }),
        2 => any::<bool>().prop_map(|any| Act::Tell { any }),
        4 => path.clone().prop_map(|path| Act::Stat { path }),
        4 => path.prop_map(|path| Act::Read { path }),
    ]
}

/// Which commit has put each path. The size of a file is the number of its commit.
struct Scene<'a> {
    kernel: Kernel<'a>,
    programs: [Program; PROGRAMS],
    versions: [Vec<(usize, Option<usize>)>; PATHS.len()],
    commits: usize,
    /// The last commit that a program has seen, or that the kernel was notified of.
    seen: usize,
    said: String,
}

impl<'a> Scene<'a> {
    fn new(mut kernel: Kernel<'a>) -> Self {
        let programs = std::array::from_fn(|_| Program::start());
        kernel.mkdir(&programs[0].caller(), "d").unwrap();
        // This file makes the directory exist independently of the arrivals.
        put(&mut kernel, &programs[0], "d/own", b"");
        let versions = std::array::from_fn(|_| vec![(0, None)]);
        Self { kernel, programs, versions, commits: 0, seen: 0, said: String::new() }
    }

    fn arrive(&mut self, puts: [bool; PATHS.len()], removes: [bool; PATHS.len()]) {
        self.commits += 1;
        let mut files = Vec::new();
        for (at, path) in PATHS.into_iter().enumerate() {
            let size = puts[at].then_some(self.commits);
            if puts[at] || removes[at] {
                self.versions[at].push((self.commits, size));
                files.push((path, size.map(|size| vec![b'x'; size])));
            }
        }
        self.kernel.arrive_untold(&files);
    }

    /// Checks that the version a program has seen at a path, by its size, is not older than what
    /// was seen before.
    fn saw(&mut self, at: usize, size: Option<usize>) {
        let known = &self.versions[at];
        let oldest = known.iter().rposition(|(commit, _)| *commit <= self.seen).unwrap();
        let found = known[oldest..].iter().find(|(_, is)| *is == size);
        let (path, said) = (PATHS[at], &self.said);
        let Some((commit, _)) = found else {
            panic!("{said}{path} is of {size:?} bytes, but commit {} was seen", self.seen)
        };
        self.seen = self.seen.max(*commit);
    }

    fn act(&mut self, program: usize, act: &Act) {
        writeln!(self.said, "    #{program} {act:?}").unwrap();
        let (who, kernel) = (self.programs[program].caller(), &mut self.kernel);
        let miss = |errno| assert_eq!(errno, Errno::ENOENT);
        match *act {
            Act::Arrive { puts, removes } => self.arrive(puts, removes),
            Act::Tell { any } => {
                kernel.tell(any);
                self.seen = self.commits;
            }
            Act::Stat { path } => {
                let found = kernel.stat(&who, PATHS[path]).map_err(miss);
                self.saw(path, found.ok().map(|attr| attr.size as usize));
            }
            Act::Read { path } => {
                let opened = kernel.open(&who, PATHS[path], 1, READ, false).map_err(miss);
                let size = opened.ok().map(|()| {
                    let bytes = kernel.read(1).unwrap();
                    kernel.close(&who, 1).unwrap();
                    bytes.len()
                });
                self.saw(path, size);
            }
        }
    }
}

proptest! {
    #![proptest_config(config(12))]

    #[test]
    fn p5_a_program_that_has_seen_a_change_sees_every_earlier_one(
        passthrough in any::<bool>(),
        acts in vec((0..PROGRAMS, any_act()), 1..60),
    ) {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        let mut scene = Scene::new(Kernel::start(&runtime, node(&dir), passthrough));
        for (program, act) in &acts {
            scene.act(*program, act);
        }
        scene.kernel.tell(false);
        scene.seen = scene.commits;
        for path in 0..PATHS.len() {
            scene.act(0, &Act::Read { path });
        }
    }
}

#[test]
fn p5_a_change_that_was_seen_takes_back_what_the_kernel_remembers_of_others() {
    in_both_modes(|kernel| {
        let program = Program::start();
        let size = |kernel: &mut Kernel<'_>, path: &str| {
            kernel.stat(&program.caller(), path).map(|attr| attr.size)
        };
        put(kernel, &program, "known", b"old");
        assert_eq!(size(kernel, "known"), Ok(3));
        assert_eq!(size(kernel, "missing"), Err(Errno::ENOENT));
        let newer = Some(b"newer".to_vec());
        let all = ["known", "missing", "other"].map(|path| (path, newer.clone()));
        kernel.arrive_untold(&all);
        for path in ["other", "known", "missing"] {
            assert_eq!(size(kernel, path), Ok(5), "{path} arrives with the others");
            assert_eq!(get(kernel, &program, path), b"newer", "{path}");
        }
        kernel.tell(true);
    });
}

#[test]
fn p5_a_notification_without_names_may_concern_any_name() {
    in_both_modes(|kernel| {
        let program = Program::start();
        put(kernel, &program, "known", b"old");
        assert_eq!(kernel.stat(&program.caller(), "known").unwrap().size, 3);
        kernel.arrive_untold(&[("known", Some(b"newer".to_vec()))]);
        kernel.tell(true);
        assert_eq!(kernel.stat(&program.caller(), "known").unwrap().size, 5);
    });
}
