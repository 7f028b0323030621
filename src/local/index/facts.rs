//! Facts: what the index keeps, and how they are encoded.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::digest::Digest;
use crate::local::seal::Seal;
use crate::name::TreePath;
use crate::namespace::{Location, Register};

pub(super) const APART: u8 = b'a';
pub(super) const REGISTER: u8 = b'r';
pub(super) const LOCATION: u8 = b'l';
pub(super) const SEAL: u8 = b's';
pub(super) const SEEN: u8 = b'n';
pub(super) const META: u8 = b'm';

/// When a blob was last used, and its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// The seal of its file.
    pub seal: Seal,
    /// Last use, in seconds since the Unix epoch, roughly.
    pub used: u32,
}

/// Facts to save together: the next start finds all of them, or none.
#[derive(Debug, Default, Clone)]
pub struct FactBatch(pub(super) Vec<Fact>);

/// Facts that wait to be written, the newest of each key.
pub(super) type PendingFacts = HashMap<Vec<u8>, Option<Vec<u8>>>;

/// A key, and its value; `None` forgets it.
pub(super) type Fact = (Vec<u8>, Option<Vec<u8>>);

impl FactBatch {
    /// Starts an empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Saves the register of a path.
    pub fn register(&mut self, path: &TreePath, register: &Register) {
        self.put(key(REGISTER, path.as_bytes()), register);
    }

    /// Forgets a path.
    pub fn forget_register(&mut self, path: &TreePath) {
        self.0.push((key(REGISTER, path.as_bytes()), None));
    }

    /// Saves what only this node knows about a path, as the owner encodes it.
    pub fn apart(&mut self, path: &TreePath, value: &[u8]) {
        self.0.push((key(APART, path.as_bytes()), Some(value.to_vec())));
    }

    /// Forgets what only this node knows about a path.
    pub fn forget_apart(&mut self, path: &TreePath) {
        self.0.push((key(APART, path.as_bytes()), None));
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

    /// Counts the bytes that the facts take in memory, approximately.
    pub(super) fn bytes(&self) -> usize {
        let value = |value: &Option<Vec<u8>>| value.as_ref().map_or(0, Vec::len);
        self.0.iter().map(|(key, of)| size_of::<Fact>() + key.len() + value(of)).sum()
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
