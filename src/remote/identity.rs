//! The identity of a store, and whether it is the one that a node knows.
//!
//! Owns the identity of stores, the text in which a node keeps the one that it knows, and the
//! judgement of what is found at an address. Must never mistake an empty place, or another store at
//! the same address, for the known one: the node would forget what it knows and upload pending
//! changes to the wrong place.

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::format::{Said, StoreId};
use super::keys;
use crate::config::RemoteUrl;

/// The longest text of a format object that a node keeps.
const SAYS_BYTES_MAX: usize = 16 << 10;

/// The store that a node knows, as its cache directory keeps it between runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct KnownStore {
    store: String,
    /// Its address when it was last used; `None` if an older version kept only the identity.
    url: Option<String>,
    /// The content of its format object, so that it can be restored after a bucket rule of others deleted it.
    says: Option<String>,
}

impl KnownStore {
    /// Takes the identity that an older version kept in its index; 0 is no store.
    pub fn of_older(store: u64) -> Option<Self> {
        (store > 0).then(|| Self { store: StoreId(store).to_string(), url: None, says: None })
    }

    /// Parses what [`KnownStore::text`] wrote; `None` for anything else.
    pub fn parse(text: &str) -> Option<Self> {
        let known: Self = serde_json::from_str(text).ok()?;
        known.store.parse::<StoreId>().ok().map(|_| known)
    }

    /// Returns the text for the cache directory.
    pub fn text(&self) -> String {
        let mut text = serde_json::to_string(self).expect("plain data always encodes");
        text.push('\n');
        text
    }

    /// Returns the identity of the store.
    pub fn store(&self) -> StoreId {
        self.store.parse().expect("it was parsed or formatted as an identity")
    }

    /// Returns what the format object said, if that is kept.
    pub(super) fn says(&self) -> Option<&str> {
        self.says.as_deref()
    }

    /// Returns the address at which it was last used, if that is not `url`.
    fn moved_from(&self, url: &RemoteUrl) -> Option<&str> {
        self.url.as_deref().filter(|before| *before != url.to_string())
    }
}

/// What is found at an address, from the view of a node.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum FoundStore {
    /// The store that the node knows, or one that it may take because it knows none.
    Known,
    /// Another store, and the node was told to move there.
    Next,
    /// Another store.
    Other(StoreId),
}

/// What a handle knows of the identity of its store.
#[derive(Debug, Default)]
pub(super) struct Identity(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    known: Option<KnownStore>,
    /// The store that this run found and uses.
    accepted: Option<KnownStore>,
    /// When this run found it first, by the store's clock.
    found_ms: u64,
    /// When it was last seen, by the store's clock.
    seen_ms: Option<u64>,
    /// Why the known store is missing at this address, and since when, in milliseconds since the Unix epoch.
    missed: Option<(String, u64)>,
}

impl Identity {
    /// Sets the store that the node knows from an earlier run.
    pub(super) fn know(&self, known: Option<KnownStore>) {
        self.0.lock().known = known;
    }

    pub(super) fn known(&self) -> Option<KnownStore> {
        self.0.lock().known.clone()
    }

    pub(super) fn accepted(&self) -> Option<KnownStore> {
        self.0.lock().accepted.clone()
    }

    /// Returns when the store was found last in this run.
    pub(super) fn seen_ms(&self) -> Option<u64> {
        self.0.lock().seen_ms
    }

    /// Returns when this run found the store first that it uses, by the store's clock; 0 before.
    pub(super) fn found_ms(&self) -> u64 {
        self.0.lock().found_ms
    }

    pub(super) fn missed(&self) -> Option<(String, u64)> {
        self.0.lock().missed.clone()
    }

    /// Judges what the format object at `url` says.
    pub(super) fn judge(&self, said: &Said, url: &RemoteUrl) -> FoundStore {
        let state = self.0.lock();
        let Some(known) = &state.known else { return FoundStore::Known };
        let store = known.store();
        if store == said.store {
            FoundStore::Known
        } else if said.replaces.contains(&store) || known.moved_from(url).is_some() {
            FoundStore::Next
        } else {
            FoundStore::Other(store)
        }
    }

    /// Accepts the store as the one of this node; from now on it is the only one that the node
    /// knows. Returns whether it had been missed.
    pub(super) fn accept(&self, said: &Said, bytes: &[u8], url: &RemoteUrl, now_ms: u64) -> bool {
        let short = bytes.len() <= SAYS_BYTES_MAX;
        let says = String::from_utf8(bytes.to_vec()).ok().filter(|_| short);
        let known = KnownStore { store: said.store.to_string(), url: Some(url.to_string()), says };
        let mut state = self.0.lock();
        if state.accepted.as_ref().map(KnownStore::store) != Some(said.store) {
            state.found_ms = now_ms;
        }
        state.known = Some(known.clone());
        state.seen_ms = Some(now_ms);
        state.accepted = Some(known);
        state.missed.take().is_some()
    }

    /// Notes that the known store is missing; returns whether that is news.
    pub(super) fn miss(&self, why: &str, now_ms: u64) -> bool {
        let mut state = self.0.lock();
        let since_ms = state.missed.as_ref().map_or(now_ms, |(_, since_ms)| *since_ms);
        let before = state.missed.replace((why.to_owned(), since_ms));
        before.is_none_or(|(before, _)| before != why)
    }

    /// Explains why a place without a format object is not the known store; `None` if no store is
    /// known. The flag is set if the node was told to move there.
    pub(super) fn absent(&self, url: &RemoteUrl) -> Option<(String, bool)> {
        let state = self.0.lock();
        let known = state.known.as_ref()?;
        let store = known.store();
        Some(match known.moved_from(url) {
            Some(before) => {
                let text = format!(
                    "{url} holds no store, and this node used {before} (store {store}) before: correct remote.url, \
                     mount the shared file system, or make the new store with `hearthfs init {url}`"
                );
                (text, true)
            }
            None => {
                let format = keys::FORMAT;
                let text = format!(
                    "{url} is empty or does not exist, but this node knows a store there ({store}): what it knows and \
                     has not sent is kept. Mount the shared file system, or put {format} back; to make a new store in \
                     its place: `hearthfs init {url} --replaces {store}`"
                );
                (text, false)
            }
        })
    }
}

/// Returns the message that another store is in the place of the known one.
pub(super) fn other_text(url: &RemoteUrl, found: StoreId, known: StoreId) -> String {
    format!(
        "{url} holds another store ({found}) than this node knows ({known}): what it knows and has not \
         sent is kept. Correct the address, or mount the right file system; if the found store replaces the \
         other, declare this once for all nodes: `hearthfs init {url} --replaces {known}`"
    )
}

#[cfg(test)]
mod tests {
    use super::super::expiry::Declared;
    use super::*;

    fn said(store: u64, replaces: &[u64]) -> Said {
        let replaces = replaces.iter().copied().map(StoreId).collect();
        Said { store: StoreId(store), replaces, created_ms: 5, expiry: Declared::Unknown }
    }

    #[test]
    fn kept_stores_are_read_back() {
        let url: RemoteUrl = "s3://bkt/p".parse().expect("a good address");
        let identity = Identity::default();
        identity.accept(&said(7, &[]), b"{}", &url, 9);
        let known = identity.accepted().expect("accepted");
        assert_eq!(KnownStore::parse(&known.text()), Some(known.clone()));
        assert_eq!((known.store(), known.says()), (StoreId(7), Some("{}")));
        assert_eq!(known.moved_from(&url), None);
        assert_eq!(KnownStore::of_older(0), None);
        for bad in ["", "{}", "{\"store\":\"x\",\"url\":null,\"says\":null}"] {
            assert_eq!(KnownStore::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn only_the_known_store_is_recognised() {
        let here: RemoteUrl = "s3://bkt/p".parse().expect("a good address");
        let there: RemoteUrl = "s3://bkt/q".parse().expect("a good address");
        let identity = Identity::default();
        assert_eq!(identity.judge(&said(1, &[]), &here), FoundStore::Known, "no store is known");
        assert_eq!(identity.absent(&here), None);
        identity.accept(&said(1, &[]), b"", &here, 9);
        for (found, url, is) in [
            (said(1, &[]), &here, FoundStore::Known),
            (said(1, &[]), &there, FoundStore::Known),
            (said(2, &[]), &here, FoundStore::Other(StoreId(1))),
            (said(2, &[3]), &here, FoundStore::Other(StoreId(1))),
            (said(2, &[3, 1]), &here, FoundStore::Next),
            (said(2, &[]), &there, FoundStore::Next),
        ] {
            assert_eq!(identity.judge(&found, url), is, "{found:?} at {url}");
        }
        let (text, told) = identity.absent(&here).expect("a store is known");
        assert!(!told && text.contains("init s3://bkt/p --replaces 0000000000000001"), "{text}");
        let (text, told) = identity.absent(&there).expect("a store is known");
        assert!(
            told && text.contains("s3://bkt/p (store") && text.contains("init s3://bkt/q`"),
            "{text}"
        );
        // An older version did not keep the address, so the configured one is used.
        identity.know(KnownStore::of_older(1));
        assert_eq!(identity.judge(&said(2, &[]), &there), FoundStore::Other(StoreId(1)));
    }

    #[test]
    fn trouble_is_news_once() {
        let url: RemoteUrl = "s3://bkt/p".parse().expect("a good address");
        let identity = Identity::default();
        assert!(!identity.accept(&said(1, &[]), b"", &url, 9));
        assert!(identity.miss("empty", 5));
        assert!(!identity.miss("empty", 6));
        assert!(identity.miss("another", 7));
        assert_eq!(identity.missed(), Some(("another".to_owned(), 5)));
        assert!(identity.accept(&said(1, &[]), b"", &url, 12));
        assert_eq!((identity.missed(), identity.found_ms()), (None, 9));
        assert!(!identity.accept(&said(2, &[]), b"", &url, 13));
        assert_eq!(identity.found_ms(), 13, "another store");
    }
}
