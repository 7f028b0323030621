//! The remote: one prefix of an object store, or a shared directory.
//!
//! Owns the layout of objects, their formats, and every request to the store; only this room names
//! the object-store library. Must never decide what to upload, fetch or apply: `sync` does.

mod abilities;
mod access;
mod backend;
mod blobs;
mod bucket_api;
mod bundle;
mod call;
mod check;
mod checkpoint;
mod claims;
mod codec;
mod connect;
mod credentials;
mod dir;
mod expiry;
mod format;
mod frame;
mod head;
mod health;
mod identity;
pub mod keys;
mod latency;
mod lifecycle;
mod listing;
mod log;
mod make;
mod meter;
mod pack;
mod progress;
mod store;
mod store_check;
mod throttle;
mod time;
mod tried;
mod trouble;
mod validate;
mod verb;
mod xml;

#[cfg(any(test, feature = "test-util"))]
pub mod fault;

pub use access::{
    Access, Obstacle, Step, Trial, credentials_remedy, region_of, source_of_credentials,
};
pub use bundle::{BUNDLE_BYTES_MAX, BUNDLE_COMMITS_MAX, Bundle};
pub use call::{REQUESTS_IN_FLIGHT_MAX, RESERVE_MAX};
pub use checkpoint::{
    CHECKPOINT_BYTES_MAX, CHECKPOINT_ITEMS_MAX, CHECKPOINT_RAW_BYTES_MAX, CheckpointChain,
    CheckpointCounts, CheckpointEarly, CheckpointHead, CheckpointItem, CheckpointReader,
    CheckpointWriter,
};
pub use claims::{CLAIM_BYTES_MAX, ClaimName};
pub use codec::{
    COMMIT_BLOBS_MAX, COMMIT_BYTES_MAX, COMMIT_CHANGES_MAX, COMMIT_PACKS_MAX, COMMIT_RAW_BYTES_MAX,
    decode_commit, decode_commit_named, encode_commit,
};
pub use connect::{Environment, RemoteOptions};
pub use expiry::{Declaration, Declared, is_shorter};
pub use format::{FORMAT_VERSION, StoreId};
pub use frame::{FRAME_RAW_BYTES_MAX, decode_frame};
pub use head::{
    HEAD_BYTES_MAX, HEAD_COMMITS_MAX, HeadCommit, HeadPut, HeadRead, HeadVersion,
    INLINE_COMMIT_BYTES_MAX, LogHead,
};
pub use health::{Health, Outage};
pub use identity::KnownStore;
pub use keys::BundleName;
pub use latency::RequestTimes;
pub use lifecycle::{Lifecycle, RulesCheck, RulesPlan};
pub use listing::{Deleted, Object, What};
pub use log::{LOG_ITEMS_MAX, LogItem};
pub use make::MadeStore;
pub use meter::Requests;
pub use pack::{PACK_BYTES_MAX, PACK_MEMBERS_MAX, PackBuilder, PackMember, PackReader};
pub use progress::Progress;
pub use store::Remote;
pub use throttle::{Throttling, Wait, is_throttled};
pub use tried::StoreAbilities;
pub use trouble::{ErrorClass, THROTTLED};
pub use validate::INLINE_BYTES_MAX;
