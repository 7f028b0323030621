//! The part of a name that says which program it is, whatever its key.
//!
//! Owns comparing names by it.

use super::pattern::Names;
use super::{Pattern, Profiles};
use crate::name::TreePath;

/// What a path says of its program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program<'p> {
    /// The directory of its client.
    dir: TreePath,
    /// The number of names of that directory.
    depth: usize,
    pattern: &'p Pattern,
    stem: Vec<u8>,
}

impl Profiles {
    /// Returns what the profiles know of the program of a path; `None` where its name tells nothing of it.
    pub fn program(&self, path: &TreePath) -> Option<Program<'_>> {
        let names = Names::split(path.as_bytes())?;
        self.clients(path).into_iter().find_map(|(profile, depth)| {
            profile.program.iter().find_map(|pattern| {
                let stem = stem_of(pattern, &names, path, depth)?.to_vec();
                let dir = TreePath::from_bytes(names.upto(depth, 0)).ok()?;
                Some(Program { dir, depth, pattern, stem })
            })
        })
    }
}

fn stem_of<'n>(
    pattern: &Pattern,
    names: &Names<'_>,
    path: &'n TreePath,
    depth: usize,
) -> Option<&'n [u8]> {
    let length = pattern.matches(names, depth)?;
    path.file_name().get(..length).filter(|stem| !stem.is_empty())
}

impl Program<'_> {
    /// Returns the directory below which others of this program lie, and what their names begin with there.
    pub fn place(&self) -> (&TreePath, &[u8]) {
        // In one directory they stand together.
        (&self.dir, if self.pattern.depth() == 1 { &self.stem } else { b"" })
    }

    /// Reports whether a path below that directory is of the same program.
    pub fn has(&self, path: &TreePath) -> bool {
        let Some(names) = Names::split(path.as_bytes()) else { return false };
        path.is_below(&self.dir)
            && stem_of(self.pattern, &names, path, self.depth) == Some(self.stem.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> TreePath {
        text.split('/').fold(TreePath::root(), |dir, name| dir.join(name.as_bytes()).unwrap())
    }

    #[test]
    fn programs_by_their_names() {
        let shipped = Profiles::default();
        let jax = shipped.program(&path("jax/jit_step-0123ab-cache")).expect("known");
        assert_eq!(jax.place(), (&path("jax"), &b"jit_step"[..]));
        for (other, same) in [
            ("jax/jit_step-ff-cache", true),
            ("jax/jit_step2-ff-cache", false),
            ("jax/jit_ste-ff-cache", false),
            ("jax/jit_step-ff-atime", false),
            ("mine/jit_step-ff-cache", false),
        ] {
            assert_eq!(jax.has(&path(other)), same, "{other}");
        }
        let dashes = shipped.program(&path("jax/jit_a-b-0123-cache")).expect("known");
        assert!(
            dashes.has(&path("jax/jit_a-b-9-cache")) && !dashes.has(&path("jax/jit_a-9-cache"))
        );
        let numba = shipped.program(&path("numba/x_1/t.f-12.py313.nbi")).expect("known");
        assert!(numba.has(&path("numba/x_1/t.f-14.py312.nbi")));
        assert!(!numba.has(&path("numba/x_1/t.f-14.py312.1.nbc")));
        assert_eq!(numba.place(), (&path("numba/x_1"), &b"t.f"[..]));
        for unknown in ["jax/other", "triton/KEY/k.cubin", "mine/jit_f-1-cache", "jax"] {
            assert_eq!(shipped.program(&path(unknown)), None, "{unknown}");
        }
    }
}
