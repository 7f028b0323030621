//! What a path means on this node: inodes, handles, generations and the rules of visibility.
//!
//! Owns everything between the kernel's requests and the namespace: which inode a name leads to for
//! which process, when a written file becomes an entry, and how long the kernel may remember an answer.
//! Must never wait for the network on a FUSE thread, and must never hold its lock while it hashes, copies
//! or opens files.
//!
//! Lock order: the state of this room, then the ledger, then the blobs. Calls from the ledger arrive
//! with no lock held.

mod attrs;
mod beginning;
mod create;
mod detour;
mod errno;
mod filesystem;
mod flock;
mod generation;
mod handle;
mod inode;
mod io;
mod listing;
mod locks;
mod lookup;
mod names;
mod open;
mod publish;
mod rename;
mod slot;
mod state;
mod vfs;
mod who;
mod writing;
mod xattrs;

pub use filesystem::{Filesystem, Rooms, Rules};
