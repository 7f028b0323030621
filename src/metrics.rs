//! Counters of events since the mount began.
//!
//! Owns their names, which appear in `status --json` and must stay the same. Must never influence a
//! decision: they are for people and for tests.

mod entries;
mod histogram;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

pub use self::entries::{ClientFigures, Figures};
pub use self::histogram::{BOUNDS_US, Distribution, Histogram};

/// Declares an enum whose variants each have a counter, with their names in reports.
macro_rules! kinds {
    ($(#[$about:meta])* $kind:ident { $($(#[$doc:meta])* $variant:ident = $name:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $kind { $($(#[$doc])* $variant,)* }

        impl $kind {
            /// All of them, in the order of their declaration.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// Returns the name in reports.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }
        }
    };
}

kinds! {
    /// The requests of the kernel; each is one round trip on some caller's path.
    Operation {
        /// Finds a name.
        Lookup = "lookup",
        /// Returns attributes.
        GetAttr = "getattr",
        /// Changes attributes.
        SetAttr = "setattr",
        /// Returns the target of a link.
        ReadLink = "readlink",
        /// Makes a node.
        MkNod = "mknod",
        /// Makes a directory.
        MkDir = "mkdir",
        /// Removes a file's name.
        Unlink = "unlink",
        /// Removes a directory.
        RmDir = "rmdir",
        /// Makes a symbolic link.
        Symlink = "symlink",
        /// Moves a name.
        Rename = "rename",
        /// Makes a further name.
        Link = "link",
        /// Opens a file.
        Open = "open",
        /// Makes and opens a file.
        Create = "create",
        /// Reads.
        Read = "read",
        /// Writes.
        Write = "write",
        /// Closes one descriptor.
        Flush = "flush",
        /// Gives a handle back; no caller waits for it.
        Release = "release",
        /// Makes a file durable.
        Fsync = "fsync",
        /// Allocates or punches.
        Fallocate = "fallocate",
        /// Takes or ends a lock of `flock`.
        Flock = "flock",
        /// Finds data or holes.
        LSeek = "lseek",
        /// Opens a directory.
        OpenDir = "opendir",
        /// Lists a directory.
        ReadDir = "readdir",
        /// Ends a listing; no caller waits for it.
        ReleaseDir = "releasedir",
        /// Makes a directory durable.
        FsyncDir = "fsyncdir",
        /// Returns the size of the file system.
        StatFs = "statfs",
        /// Sets an extended attribute.
        SetXattr = "setxattr",
        /// Reads an extended attribute.
        GetXattr = "getxattr",
        /// Lists extended attributes.
        ListXattr = "listxattr",
        /// Removes an extended attribute.
        RemoveXattr = "removexattr",
    }
}

/// Declares the plain counters, live and as a snapshot.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The live counters; cheap to count from any thread.
        #[derive(Debug)]
        pub struct Metrics {
            $($(#[$doc])* pub $name: Counter,)*
            /// How long calls of programs took.
            pub times: Times,
            operations: [Counter; Operation::ALL.len()],
        }

        /// The counters at one moment, or their growth between two.
        #[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
            /// Round trips of the kernel by operation, without zeros.
            pub operations: BTreeMap<String, u64>,
            /// Throttling answers of the remote by status, without zeros. The remote counts them itself, too.
            pub throttled: BTreeMap<String, u64>,
            /// Requests to the remote by kind, without zeros. The remote counts them itself, and a
            /// report of both fills them in.
            pub requests: BTreeMap<String, u64>,
        }

        impl Metrics {
            /// Makes counters that are all zero.
            pub fn new() -> Self {
                Self {
                    $($name: Counter::default(),)*
                    times: Times::default(),
                    operations: std::array::from_fn(|_| Counter::default()),
                }
            }

            /// Reads all counters. Each is exact; they are not read at one instant.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot {
                    $($name: self.$name.get(),)*
                    operations: named(Operation::ALL.iter().map(|k| k.name()), &self.operations),
                    throttled: BTreeMap::new(),
                    requests: BTreeMap::new(),
                }
            }
        }

        impl Snapshot {
            /// Returns the growth since `earlier`; a counter that is smaller (the daemon was
            /// restarted in between) counts from zero.
            #[must_use]
            pub fn since(&self, earlier: &Self) -> Self {
                Self {
                    $($name: grown(self.$name, earlier.$name),)*
                    operations: grown_map(&self.operations, &earlier.operations),
                    throttled: grown_map(&self.throttled, &earlier.throttled),
                    requests: grown_map(&self.requests, &earlier.requests),
                }
            }
        }
    };
}

counters! {
    /// Opens for reading that got an entry.
    hits,
    /// Names that a program looked up and that no node has.
    misses,
    /// Generations that became entries on this node.
    published,
    /// Their bytes.
    published_bytes,
    /// Publishes whose blob already existed.
    deduplicated,
    /// Generations that were dropped because their writer died.
    dropped_generations,
    /// Blobs that were fetched from the remote.
    fetched,
    /// Their bytes, as transferred.
    fetched_bytes,
    /// Fetches that did not succeed within their deadline.
    fetch_failures,
    /// Blobs that were uploaded.
    uploaded,
    /// Their bytes, as transferred.
    uploaded_bytes,
    /// Batches that were committed to the remote's log.
    commits_written,
    /// Batches of other nodes that were applied here.
    commits_applied,
    /// Requests to the remote that failed and were retried.
    remote_retries,
    /// Milliseconds that programs and uploads waited because the remote throttled requests, in total.
    throttled_wait_ms,
    /// Writers that had to wait for room.
    slowed,
    /// Writers that were refused for lack of room.
    refused,
    /// Contents of other nodes that were not fetched or kept because there was no room.
    without_room,
    /// Local blobs that were evicted.
    evicted,
    /// Their bytes.
    evicted_bytes,
    /// Blobs, packs and commits that did not match their digest.
    damaged,
    /// How many times the kernel was told to forget a name, or all names, after a change that it did not make.
    invalidated,
}

/// How long calls of programs took.
#[derive(Debug, Default)]
pub struct Times {
    /// Closes that published a file.
    pub close: Histogram,
    /// Opens for reading of entries whose bytes were on this node.
    pub open: Histogram,
    /// Fetches that a call waited for.
    pub fetch: Histogram,
}

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Counts one.
    pub fn count(&self) {
        self.add(1);
    }

    /// Counts several.
    pub fn add(&self, by: u64) {
        self.0.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the number.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Metrics {
    /// Counts one round trip.
    pub fn operation(&self, kind: Operation) {
        self.operations[kind as usize].count();
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn named(names: impl Iterator<Item = &'static str>, counters: &[Counter]) -> BTreeMap<String, u64> {
    names
        .zip(counters)
        .map(|(name, counter)| (name.to_owned(), counter.get()))
        .filter(|(_, count)| *count > 0)
        .collect()
}

fn grown(now: u64, earlier: u64) -> u64 {
    if now >= earlier { now - earlier } else { now }
}

fn grown_map(
    now: &BTreeMap<String, u64>,
    earlier: &BTreeMap<String, u64>,
) -> BTreeMap<String, u64> {
    now.iter()
        .map(|(name, count)| (name, grown(*count, earlier.get(name).copied().unwrap_or(0))))
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.clone(), count))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_between_two_moments() {
        let metrics = Metrics::new();
        metrics.hits.count();
        metrics.operation(Operation::Lookup);
        metrics.operation(Operation::RemoveXattr);
        let before = metrics.snapshot();
        metrics.hits.add(4);
        metrics.published_bytes.add(100);
        metrics.operation(Operation::Lookup);
        let mut now = metrics.snapshot();
        now.requests.insert("delete".to_owned(), 1);
        now.throttled.insert("503".to_owned(), 2);
        let grown = now.since(&before);
        assert_eq!((grown.hits, grown.misses, grown.published_bytes), (4, 0, 100));
        assert_eq!(grown.operations, BTreeMap::from([("lookup".to_owned(), 1)]));
        assert_eq!(grown.requests, BTreeMap::from([("delete".to_owned(), 1)]));
        assert_eq!(grown.throttled, BTreeMap::from([("503".to_owned(), 2)]));
        // A restarted daemon counts from zero again.
        assert_eq!(Metrics::new().snapshot().since(&before).hits, 0);
        let mut restarted = Snapshot { hits: 1, ..Snapshot::default() };
        restarted.operations.insert("lookup".to_owned(), 1);
        let later = Snapshot { hits: 5, ..Snapshot::default() };
        assert_eq!(restarted.since(&later).hits, 1);
    }

    #[test]
    fn names_are_distinct_and_survive_json() {
        let names: std::collections::BTreeSet<_> =
            Operation::ALL.iter().map(|k| k.name()).collect();
        assert_eq!(names.len(), Operation::ALL.len());
        let metrics = Metrics::new();
        metrics.operation(Operation::ReadDir);
        let text = serde_json::to_string(&metrics.snapshot()).expect("serializable");
        assert_eq!(serde_json::from_str::<Snapshot>(&text).expect("read back"), metrics.snapshot());
        assert_eq!(
            serde_json::from_str::<Snapshot>("{}").expect("all default"),
            Snapshot::default()
        );
    }
}
