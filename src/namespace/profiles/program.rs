//! The part of a path that identifies its program, independent of the key.
//!
//! Owns comparing paths by it, and the search for other entries of a program. Must never read the
//! tree except through the two methods that a search is given.

use super::pattern::PathNames;
use super::{Pattern, Profiles};
use crate::name::TreePath;

/// The most names that one search examines: a Triton that tunes itself makes thousands of directories.
const LOOKED_MAX: usize = 20_000;
/// How many names of a directory are requested at a time.
const BATCH: usize = 256;

/// What a path shows about its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program<'p> {
    /// The directory of its client.
    dir: TreePath,
    /// The number of names of that directory.
    depth: usize,
    pattern: &'p Pattern,
    stem: Vec<u8>,
}

/// The view of the tree that a search needs.
pub trait Tree {
    /// Returns at most `limit` names in a directory in byte order: those after `name` and everything below it.
    fn names_after(&self, dir: &TreePath, name: Option<&[u8]>, limit: usize) -> Vec<Box<[u8]>>;

    /// Reports whether a program would find something at a path.
    fn has(&self, path: &TreePath) -> bool;
}

impl Profiles {
    /// Returns what the profiles know about the program of a path; `None` if its names do not identify one.
    pub fn program(&self, path: &TreePath) -> Option<Program<'_>> {
        let names = PathNames::split(path.as_bytes())?;
        self.clients(path).into_iter().find_map(|(profile, depth)| {
            profile.program.iter().find_map(|pattern| {
                let stem = stem_of(pattern, &names, depth)?.to_vec();
                let dir = TreePath::from_bytes(names.upto(depth, 0)).ok()?;
                Some(Program { dir, depth, pattern, stem })
            })
        })
    }
}

fn stem_of<'n>(pattern: &Pattern, names: &PathNames<'n>, depth: usize) -> Option<&'n [u8]> {
    pattern.stem(names, depth).filter(|stem| !stem.is_empty())
}

impl Program<'_> {
    /// Reports whether a path below the client's directory belongs to the same program.
    pub fn has(&self, path: &TreePath) -> bool {
        let Some(names) = PathNames::split(path.as_bytes()) else { return false };
        path.is_below(&self.dir)
            && stem_of(self.pattern, &names, self.depth) == Some(self.stem.as_slice())
    }

    /// Reports whether other entries of the program can lie below a directory.
    fn leads_on(&self, dir: &TreePath) -> bool {
        PathNames::split(dir.as_bytes())
            .is_some_and(|names| self.pattern.leads_below(&names, self.depth))
    }

    /// Returns at most `most` other paths of the same program, from the first 20,000 names on the way to them.
    pub fn others(&self, path: &TreePath, most: usize, tree: &impl Tree) -> Vec<TreePath> {
        let mut search = Search { program: self, path, most, tree, looked: 0, found: Vec::new() };
        search.look_in(&self.dir, 0);
        search.found
    }
}

/// A search for other entries of a program, from the client's directory down.
struct Search<'s, T> {
    program: &'s Program<'s>,
    path: &'s TreePath,
    most: usize,
    tree: &'s T,
    looked: usize,
    found: Vec<TreePath>,
}

impl<T: Tree> Search<'_, T> {
    fn is_over(&self) -> bool {
        self.found.len() >= self.most || self.looked >= LOOKED_MAX
    }

    /// Searches a directory that lies `level` names below the client's.
    fn look_in(&mut self, dir: &TreePath, level: usize) {
        let pattern = self.program.pattern;
        let Some((beginning, is_whole)) = pattern.beginning(level, &self.program.stem) else {
            return;
        };
        if is_whole {
            return self.look_at(dir, &beginning, level);
        }
        let mut after: Option<Box<[u8]>> = None;
        if !beginning.is_empty() {
            // The names after it exclude the prefix itself, which a `*` can match.
            self.look_at(dir, &beginning, level);
            after = Some(beginning.clone().into_boxed_slice());
        }
        loop {
            let names = self.tree.names_after(dir, after.as_deref(), BATCH);
            for name in &names {
                if !name.starts_with(&beginning) || self.is_over() {
                    return;
                }
                self.look_at(dir, name, level);
            }
            if names.len() < BATCH {
                return;
            }
            after = names.into_iter().last();
        }
    }

    fn look_at(&mut self, dir: &TreePath, name: &[u8], level: usize) {
        self.looked += 1;
        let Ok(path) = dir.join(name) else { return };
        if level + 1 < self.program.pattern.depth() {
            if self.program.leads_on(&path) {
                self.look_in(&path, level + 1);
            }
        } else if path != *self.path && self.program.has(&path) && self.tree.has(&path) {
            self.found.push(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeSet;

    use super::*;
    use crate::name::path;

    /// Files, and the number of queries.
    #[derive(Default)]
    struct Files(BTreeSet<TreePath>, Cell<usize>);

    impl Files {
        fn of<'t>(paths: impl IntoIterator<Item = &'t str>) -> Self {
            Self(paths.into_iter().map(path).collect(), Cell::default())
        }
    }

    impl Tree for Files {
        fn names_after(&self, dir: &TreePath, name: Option<&[u8]>, limit: usize) -> Vec<Box<[u8]>> {
            self.1.set(self.1.get() + 1);
            let below = self.0.iter().filter_map(|file| dir.rest_of(file.as_bytes()));
            let names = below.filter_map(|rest| rest.split(|byte| *byte == 0).next());
            let names: BTreeSet<&[u8]> = names.filter(|own| Some(*own) > name).collect();
            names.into_iter().take(limit).map(Box::from).collect()
        }

        fn has(&self, path: &TreePath) -> bool {
            let first = self.0.range::<TreePath, _>(path..).next();
            first.is_some_and(|file| file == path || file.is_below(path))
        }
    }

    #[test]
    fn programs_by_their_names() {
        let shipped = Profiles::default();
        let jax = shipped.program(&path("jax/jit_step-0123ab-cache")).expect("a known program");
        for (other, same) in [
            ("jax/jit_step-ff-cache", true),
            ("jax/jit_step2-ff-cache", false),
            ("jax/jit_ste-ff-cache", false),
            ("jax/jit_step-ff-atime", false),
            ("mine/jit_step-ff-cache", false),
        ] {
            assert_eq!(jax.has(&path(other)), same, "{other}");
        }
        let dashes = shipped.program(&path("jax/jit_a-b-0123-cache")).expect("a known program");
        assert!(
            dashes.has(&path("jax/jit_a-b-9-cache")) && !dashes.has(&path("jax/jit_a-9-cache"))
        );
        let numba = shipped.program(&path("numba/x_1/t.f-12.py313.nbi")).expect("a known program");
        assert!(numba.has(&path("numba/x_1/t.f-14.py312.nbi")));
        assert!(!numba.has(&path("numba/x_1/t.f-14.py312.1.nbc")));
        for unknown in ["jax/other", "triton/KEY/k.cubin", "mine/jit_f-1-cache", "jax"] {
            assert_eq!(shipped.program(&path(unknown)), None, "{unknown}");
        }
    }

    #[test]
    fn programs_by_names_above_and_below_their_keys() {
        let shipped = Profiles::default();
        for (one, other, same) in [
            ("triton/A/__grp__add.json", "triton/B/__grp__add.json", true),
            ("triton/A/add.json", "triton/B/add.json", true),
            // The list of its files is looked up, not their contents.
            ("triton/A/__grp__add.json", "triton/B/add.json", false),
            ("triton/A/__grp__add.json", "triton/B/__grp__add2.json", false),
            ("triton/A/__grp__add.json", "inductor/triton/0/B/__grp__add.json", false),
            ("inductor/triton/0/A/__grp__k.json", "inductor/triton/0/B/__grp__k.json", true),
            ("neuron/c-1/MODULE_7+a1", "neuron/c-1/MODULE_7+b2", true),
            // Another compiler means another key, too.
            ("neuron/c-1/MODULE_7+a1/model.neff", "neuron/c-2/MODULE_7+a1/model.neff", true),
            ("neuron/c-1/MODULE_7+a1/model.neff", "neuron/c-1/MODULE_7+b2/model.done", false),
            ("neuron/c-1/MODULE_7+a1/model.neff", "neuron/c-1/MODULE_71+a1/model.neff", false),
        ] {
            let program = shipped.program(&path(one)).expect(one);
            assert_eq!(program.has(&path(other)), same, "{one} {other}");
        }
        for digest in [
            "inductor/fxgraph/ab/fabc/0123",
            "inductor/aotautograd/aabc/0123",
            "inductor/ab/cabc.py",
            "torch_xla/12345",
            "neuron/c-1/MODULE_7",
            "triton/A",
        ] {
            assert_eq!(shipped.program(&path(digest)), None, "{digest}");
        }
    }

    /// Returns the other paths that a search finds.
    fn others(asked: &str, files: &Files) -> Vec<TreePath> {
        let shipped = Profiles::default();
        shipped.program(&path(asked)).expect(asked).others(&path(asked), 3, files)
    }

    #[test]
    fn others_are_found_below_directories_of_keys() {
        let files = Files::of([
            "jax/jit_f-1-cache",
            "jax/jit_f-2-cache",
            "jax/jit_f2-1-cache",
            "neuron/c-1/MODULE_7+a1/model.neff",
            "neuron/c-1/MODULE_7+b2/model.log",
            "neuron/c-1/MODULE_8+a1/model.neff",
            "neuron/c-2/MODULE_7+a1/model.neff",
            "triton/A/__grp__add.json",
            "triton/A/add.json",
            "triton/B/__grp__mul.json",
            "triton/C/__grp__add.json",
            "x/triton/D/__grp__add.json",
        ]);
        for (asked, found) in [
            ("jax/jit_f-3-cache", &["jax/jit_f-1-cache", "jax/jit_f-2-cache"][..]),
            ("triton/Z/__grp__add.json", &["triton/A/__grp__add.json", "triton/C/__grp__add.json"]),
            ("triton/A/__grp__add.json", &["triton/C/__grp__add.json"]),
            ("triton/Z/__grp__sub.json", &[]),
            (
                "neuron/c-1/MODULE_7+cc/model.neff",
                &["neuron/c-1/MODULE_7+a1/model.neff", "neuron/c-2/MODULE_7+a1/model.neff"],
            ),
            ("neuron/c-3/MODULE_8+b2", &["neuron/c-1/MODULE_8+a1"]),
        ] {
            let found: Vec<TreePath> = found.iter().map(|text| path(text)).collect();
            assert_eq!(others(asked, &files), found, "{asked}");
        }
    }

    #[test]
    fn a_search_has_an_end() {
        let keys: Vec<String> =
            (0..3 * BATCH).map(|key| format!("triton/{key:06}/__grp__k{key}.json")).collect();
        let mut files = Files::of(keys.iter().map(String::as_str));
        let last = 3 * BATCH - 1;
        let asked = format!("triton/X/__grp__k{last}.json");
        assert_eq!(others(&asked, &files), [path(&keys[last])]);
        assert!(files.1.get() <= 4, "{} lists", files.1.get());
        for key in 0..LOOKED_MAX {
            files.0.insert(path(&format!("triton/!{key}/__grp__o.json")));
        }
        assert_eq!(others(&asked, &files), [], "the search ends after 20,000 names");
    }
}
