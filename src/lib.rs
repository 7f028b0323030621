//! hearthfs: one compile cache for a whole cluster, behind an ordinary directory.
//!
//! # Map
//!
//! | room | owns | uses |
//! |---|---|---|
//! | `hearthfs-mount` (crate) | the kernel side: sessions, requests, invalidation, facts about tasks | nothing of this crate |
//! | [`fs`] | what a path means on this node: names, live files, handles, visibility | [`sync`], [`local`], [`namespace`] |
//! | [`sync`] | when which change and which blob travels: ledger, publisher, follower, fetcher | [`remote`], [`local`], [`namespace`] |
//! | [`remote`] | addresses, clients, keys and formats in the store, limits, health | [`namespace`] |
//! | [`local`] | the cache directory: blobs, staging, journal, index | [`namespace`] |
//! | [`namespace`] | entries, changes, commits, and the fold that makes a namespace of them | leaves |
//! | [`control`] | the socket of a daemon and its words | leaves |
//! | [`monitor`] | figures over HTTP and as a file | [`control`] |
//! | [`daemon`] | building all of it for one mount, and taking it down | every room but [`cli`] |
//! | [`cli`] | commands, exit statuses, messages | [`daemon`], [`control`] and others |
//!
//! Leaves: [`clock`], [`config`], [`digest`], [`error`], [`metrics`], [`name`], [`stamp`], [`task`].
//!
//! A written file takes this way: [`fs`] receives the writes through the kernel; the last `close` digests them, appends a
//! record to the journal of [`local`] and changes the [`namespace`]; the publisher of [`sync`] uploads blobs and a commit
//! through [`remote`]; the follower of every other node folds that commit into its own namespace.
//!
//! The head of a module says what it owns, what it must never do, and which promises of `docs/semantics.md` it keeps.
//! `docs/design.md` has the reasons, and `tests/arrows.rs` holds the code to the arrows.

pub mod clock;
pub mod config;
pub mod digest;
pub mod error;
pub mod hashing;
pub mod metrics;
pub mod name;
pub mod stamp;
pub mod task;

pub mod local;
pub mod namespace;
pub mod remote;
pub mod sync;

pub mod fs;

pub mod cli;
pub mod control;
pub mod daemon;
pub mod monitor;
