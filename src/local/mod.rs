//! What this node keeps on its own disk: the cache directory and everything in it.
//!
//! Owns the lock, the staging files, the blobs, the journal and the index, and the bytes they may
//! take. Must never speak to a remote and never decide what a path means.

mod blobs;
mod descriptors;
mod dir;
mod figures;
mod file_digest;
mod index;
mod journal;
mod leftovers;
mod lock_owners;
mod lru;
mod seal;
mod shelf;
mod staging;
mod whole;

pub use blobs::{
    Adopted, Blobs, Limits, Lodged, News, NotAdopted, OpenBlob, Options, Pin, State, Usage,
};
pub use descriptors::{for_programs as descriptors_for_programs, raise_limit, spare};
pub use dir::CacheDir;
pub use figures::FigureFile;
pub use file_digest::hash_file;
pub use index::{FactBatch, Flushed, Index, LoadedIndex, Used};
pub use journal::{Journal, Note, Record, Seq, Torn};
pub use leftovers::Leftover;
pub use lock_owners::{LockOwner, LockOwners};
pub use seal::Seal;
pub use shelf::{StagedBytes, StagedPath};
pub use staging::Staging;
pub use whole::is_whole;
