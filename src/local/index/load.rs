//! Loading: turns facts into what a start needs, without keeping a fact longer than necessary.
//!
//! The thread of the index reads, unpacks and decodes while the caller builds: both take about as long.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;
use std::sync::Arc;

use serde::Deserialize;

use super::IndexTrouble;
use super::chunk::visit;
use super::facts::{APART, LOCATION, META, REGISTER, SEAL, SEEN, Used};
use crate::digest::Digest;
use crate::hashing::FastSet;
use crate::name::TreePath;
use crate::namespace::{Builder, Fold, Location, Register, Site};

/// Facts on their way to the loader, older ones first.
#[derive(Debug)]
pub(super) enum IndexPiece {
    Facts(KeptFacts),
    /// The end; false if the index failed.
    End(bool),
}

/// The facts of one piece, in order.
#[derive(Debug)]
pub(super) struct KeptFacts(Vec<KeptFact>);

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

/// One fact, decoded. `None` forgets what is known.
#[derive(Debug)]
enum KeptFact {
    Register(TreePath, Option<Register>),
    Apart(TreePath, Option<Vec<u8>>),
    Location(Digest, Option<Location>),
    Seal(Digest, Option<Used>),
    Seen(String, Option<()>),
    Meta(String, Option<Vec<u8>>),
}

/// Decodes facts.
#[derive(Default)]
pub(super) struct FactDecoder {
    names: FastSet<Arc<str>>,
}

impl FactDecoder {
    /// Decodes the facts of one piece. Ignores kinds that this build does not know, and the seals if
    /// these are not valid.
    pub(super) fn decode(&mut self, raw: &[u8], seals: bool) -> Result<IndexPiece, IndexTrouble> {
        let mut facts = Vec::new();
        visit(raw, |key, value| {
            let Some((kind, rest)) = key.split_first() else { return Ok(()) };
            let bytes = || value.map(<[u8]>::to_vec);
            facts.push(match *kind {
                REGISTER => KeptFact::Register(path(rest)?, value.map(decode).transpose()?),
                APART => KeptFact::Apart(path(rest)?, bytes()),
                LOCATION => {
                    let location = value.map(|value| self.location(value)).transpose()?;
                    KeptFact::Location(digest(rest)?, location)
                }
                SEAL if seals => KeptFact::Seal(digest(rest)?, value.map(decode).transpose()?),
                SEEN => KeptFact::Seen(name(rest)?, value.map(|_| ())),
                META => KeptFact::Meta(name(rest)?, bytes()),
                _ => return Ok(()),
            });
            Ok(())
        })?;
        Ok(IndexPiece::Facts(KeptFacts(facts)))
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
}

/// Collects facts. Later ones override earlier ones.
#[derive(Default)]
pub(super) struct Loading {
    builder: Builder,
    seals: HashMap<Digest, Used>,
    seen: BTreeSet<String>,
    apart: HashMap<TreePath, Vec<u8>>,
    meta: HashMap<String, Vec<u8>>,
}

impl Loading {
    /// Adds the facts of one piece.
    pub(super) fn take(&mut self, KeptFacts(facts): KeptFacts) {
        self.builder.look_at(facts.iter().filter_map(|fact| match fact {
            KeptFact::Register(_, Some(register)) => Some(register.entry.as_ref()?.content()?.0),
            _ => None,
        }));
        for fact in facts {
            match fact {
                KeptFact::Register(path, register) => self.builder.reset(&path, register),
                KeptFact::Apart(path, value) => set(&mut self.apart, path, value),
                KeptFact::Location(digest, location) => {
                    self.builder.relocate(digest, location.as_ref());
                }
                KeptFact::Seal(digest, used) => set(&mut self.seals, digest, used),
                KeptFact::Seen(name, Some(())) => drop(self.seen.insert(name)),
                KeptFact::Seen(name, None) => drop(self.seen.remove(&name)),
                KeptFact::Meta(name, value) => set(&mut self.meta, name, value),
            }
        }
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

/// Sets a value, or removes it.
fn set<K: Eq + Hash, V>(map: &mut HashMap<K, V>, key: K, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

fn path(key: &[u8]) -> Result<TreePath, IndexTrouble> {
    TreePath::from_bytes(key).map_err(|e| e.to_string())
}

fn digest(key: &[u8]) -> Result<Digest, IndexTrouble> {
    key.try_into().map(Digest::from_bytes).map_err(|_| "a key is not a digest".into())
}

fn name(key: &[u8]) -> Result<String, IndexTrouble> {
    String::from_utf8(key.to_vec()).map_err(|e| e.to_string())
}
