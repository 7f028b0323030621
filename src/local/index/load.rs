//! Loading: turns facts into what a start needs, without keeping a fact longer than necessary.
//!
//! The thread of the index reads and unpacks while the caller processes.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use serde::Deserialize;

use super::IndexTrouble;
use super::chunk::visit;
use super::facts::{APART, LOCATION, META, REGISTER, SEAL, SEEN, Used};
use crate::digest::Digest;
use crate::name::TreePath;
use crate::namespace::{Builder, Fold, Location, Register, Site};

/// Facts on their way to the loader, older ones first.
#[derive(Debug)]
pub(super) enum IndexPiece {
    Facts {
        raw: Vec<u8>,
        /// The seals are valid; those of another era are not.
        seals: bool,
    },
    /// The end; false if the index failed.
    End(bool),
}

/// Everything that the index remembers.
#[derive(Debug, Default)]
pub struct LoadedIndex {
    /// The known registers and locations.
    pub fold: Fold,
    /// Local blobs, least recently used first.
    pub seals: Vec<(Digest, Used)>,
    /// Objects of the log that were folded.
    pub seen: BTreeSet<String>,
    /// What only this node knows about paths, as the owner encoded it.
    pub apart: HashMap<TreePath, Vec<u8>>,
    /// Other facts.
    pub meta: HashMap<String, Vec<u8>>,
}

/// A location as it is stored, borrowing the name in it.
#[derive(Deserialize)]
struct KeptLocation<'a> {
    #[serde(borrow)]
    site: KeptSite<'a>,
    size: u64,
    stored_ms: u64,
}

#[derive(Deserialize)]
enum KeptSite<'a> {
    Pack { pack: &'a str, offset: u64, length: u32 },
    Object,
    Inline { commit: &'a str },
}

/// Collects facts. Later ones override earlier ones.
#[derive(Default)]
pub(super) struct Loading {
    builder: Builder,
    seals: HashMap<Digest, Used>,
    seen: BTreeSet<String>,
    apart: HashMap<TreePath, Vec<u8>>,
    meta: HashMap<String, Vec<u8>>,
    names: HashSet<Arc<str>>,
}

impl Loading {
    /// Adds the facts of one piece; ignores kinds that this build does not know.
    pub(super) fn take(&mut self, raw: &[u8], seals: bool) -> Result<(), IndexTrouble> {
        visit(raw, |key, value| {
            let Some((kind, rest)) = key.split_first() else { return Ok(()) };
            match *kind {
                REGISTER => {
                    let path = TreePath::from_bytes(rest).map_err(|e| e.to_string())?;
                    let register = value.map(decode::<Register>).transpose()?;
                    self.builder.reset(&path, register);
                }
                APART => {
                    let path = TreePath::from_bytes(rest).map_err(|e| e.to_string())?;
                    match value {
                        Some(value) => drop(self.apart.insert(path, value.to_vec())),
                        None => drop(self.apart.remove(&path)),
                    }
                }
                LOCATION => {
                    let digest = digest(rest)?;
                    let location = value.map(|value| self.location(value)).transpose()?;
                    self.builder.relocate(digest, location.as_ref());
                }
                SEAL if seals => match value {
                    Some(value) => drop(self.seals.insert(digest(rest)?, decode(value)?)),
                    None => drop(self.seals.remove(&digest(rest)?)),
                },
                SEEN if value.is_some() => drop(self.seen.insert(name(rest)?)),
                SEEN => drop(self.seen.remove(&name(rest)?)),
                META => match value {
                    Some(value) => drop(self.meta.insert(name(rest)?, value.to_vec())),
                    None => drop(self.meta.remove(&name(rest)?)),
                },
                _ => {}
            }
            Ok(())
        })
    }

    fn location(&mut self, value: &[u8]) -> Result<Location, IndexTrouble> {
        let KeptLocation { site, size, stored_ms } = decode(value)?;
        let site = match site {
            KeptSite::Pack { pack, offset, length } => {
                Site::Pack { pack: self.shared(pack), offset, length }
            }
            KeptSite::Object => Site::Object,
            KeptSite::Inline { commit } => Site::Inline { commit: self.shared(commit) },
        };
        Ok(Location { site, size, stored_ms })
    }

    /// Returns a shared copy of a name: many blobs lie in one pack.
    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let name = Arc::from(name);
        self.names.insert(Arc::clone(&name));
        name
    }

    /// Returns everything that was collected.
    pub(super) fn finish(self) -> LoadedIndex {
        let mut seals: Vec<(Digest, Used)> = self.seals.into_iter().collect();
        seals.sort_unstable_by_key(|(_, used)| used.used);
        let (fold, seen) = (self.builder.finish(), self.seen);
        LoadedIndex { fold, seals, seen, apart: self.apart, meta: self.meta }
    }
}

fn decode<'a, T: Deserialize<'a>>(value: &'a [u8]) -> Result<T, IndexTrouble> {
    postcard::from_bytes(value).map_err(|e| e.to_string())
}

fn digest(key: &[u8]) -> Result<Digest, IndexTrouble> {
    key.try_into().map(Digest::from_bytes).map_err(|_| "a key is not a digest".into())
}

fn name(key: &[u8]) -> Result<String, IndexTrouble> {
    String::from_utf8(key.to_vec()).map_err(|e| e.to_string())
}
