//! Facts: what the index keeps, and the form in which it keeps it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Trouble;
use crate::digest::Digest;
use crate::local::seal::Seal;
use crate::name::TreePath;
use crate::namespace::{Location, Register, Site};

pub(super) const REGISTER: u8 = b'r';
pub(super) const LOCATION: u8 = b'l';
pub(super) const SEAL: u8 = b's';
pub(super) const SEEN: u8 = b'n';
pub(super) const META: u8 = b'm';

/// When a blob was last used, and how its file looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// How its file looked when its digest was last known to be right.
    pub seal: Seal,
    /// Last use, in seconds since the Unix epoch, roughly.
    pub used: u32,
}

/// Facts to save together: all of them are found by the next start, or none.
#[derive(Debug, Default, Clone)]
pub struct Batch(pub(super) Vec<Fact>);

/// Facts that wait to be written, the newest of each key.
pub(super) type Facts = HashMap<Vec<u8>, Option<Vec<u8>>>;

/// A key, and its value; `None` forgets it.
pub(super) type Fact = (Vec<u8>, Option<Vec<u8>>);

impl Batch {
    /// Starts an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Saves what the fold keeps of a path.
    pub fn register(&mut self, path: &TreePath, register: &Register) {
        self.put(key(REGISTER, path.as_bytes()), register);
    }

    /// Forgets a path.
    pub fn forget_register(&mut self, path: &TreePath) {
        self.0.push((key(REGISTER, path.as_bytes()), None));
    }

    /// Saves where the remote keeps a blob.
    pub fn location(&mut self, digest: &Digest, location: &Location) {
        self.put(key(LOCATION, digest.as_bytes()), location);
    }

    /// Forgets where the remote keeps a blob.
    pub fn forget_location(&mut self, digest: &Digest) {
        self.0.push((key(LOCATION, digest.as_bytes()), None));
    }

    /// Saves the seal of a local blob.
    pub fn seal(&mut self, digest: &Digest, used: Used) {
        self.put(key(SEAL, digest.as_bytes()), &used);
    }

    /// Forgets a local blob.
    pub fn forget_seal(&mut self, digest: &Digest) {
        self.0.push((key(SEAL, digest.as_bytes()), None));
    }

    /// Notes that an object of the log was folded.
    pub fn seen(&mut self, name: &str) {
        self.0.push((key(SEEN, name.as_bytes()), Some(Vec::new())));
    }

    /// Forgets an object of the log.
    pub fn forget_seen(&mut self, name: &str) {
        self.0.push((key(SEEN, name.as_bytes()), None));
    }

    /// Saves any other fact under a name.
    pub fn meta(&mut self, name: &str, value: &[u8]) {
        self.0.push((key(META, name.as_bytes()), Some(value.to_vec())));
    }

    /// Counts the facts.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Reports whether there is nothing to save.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn put(&mut self, key: Vec<u8>, value: &impl Serialize) {
        let value = postcard::to_stdvec(value).expect("facts are plain data");
        self.0.push((key, Some(value)));
    }
}

pub(super) fn key(kind: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + rest.len());
    key.push(kind);
    key.extend_from_slice(rest);
    key
}

/// Everything that the index remembers.
#[derive(Debug, Default)]
pub struct Loaded {
    /// What the fold kept, in path order.
    pub registers: Vec<(TreePath, Register)>,
    /// Where the remote keeps blobs.
    pub locations: Vec<(Digest, Location)>,
    /// Local blobs, least recently used first.
    pub seals: Vec<(Digest, Used)>,
    /// Objects of the log that were folded, in order of their names.
    pub seen: Vec<String>,
    /// Other facts.
    pub meta: Vec<(String, Vec<u8>)>,
    names: HashSet<Arc<str>>,
}

impl Loaded {
    /// Takes one fact in; a kind that this build does not know is left out.
    pub(super) fn take(&mut self, key: &[u8], value: &[u8]) -> Result<(), Trouble> {
        let Some((kind, rest)) = key.split_first() else { return Ok(()) };
        match *kind {
            REGISTER => {
                let path = TreePath::from_bytes(rest).map_err(|e| e.to_string())?;
                self.registers.push((path, decode(value)?));
            }
            LOCATION => {
                let mut location: Location = decode(value)?;
                if let Site::Pack { pack: name, .. } | Site::Inline { commit: name } =
                    &mut location.site
                {
                    *name = self.shared(name);
                }
                self.locations.push((digest(rest)?, location));
            }
            SEAL => self.seals.push((digest(rest)?, decode(value)?)),
            SEEN => self.seen.push(name(rest)?),
            META => self.meta.push((name(rest)?, value.to_vec())),
            _ => {}
        }
        Ok(())
    }

    /// Returns one copy of a name for all: many blobs lie in one pack.
    fn shared(&mut self, name: &Arc<str>) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        self.names.insert(Arc::clone(name));
        Arc::clone(name)
    }

    /// Brings everything into its order.
    pub(super) fn sort(&mut self) {
        self.registers.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        self.seals.sort_unstable_by_key(|(_, used)| used.used);
        self.seen.sort_unstable();
        self.meta.sort_unstable();
        self.names = HashSet::new();
    }
}

fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, Trouble> {
    postcard::from_bytes(value).map_err(|e| e.to_string())
}

fn digest(key: &[u8]) -> Result<Digest, Trouble> {
    key.try_into().map(Digest::from_bytes).map_err(|_| "a key is not a digest".into())
}

fn name(key: &[u8]) -> Result<String, Trouble> {
    String::from_utf8(key.to_vec()).map_err(|e| e.to_string())
}
