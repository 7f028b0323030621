//! What a path means on this node: names, live files, handles and the rules of visibility.
//!
//! Owns everything between the kernel's requests and the namespace: which inode a name leads to for
//! which process, when a written file becomes an entry, and how long the kernel may remember an
//! answer. Must never wait for the network on a FUSE thread. Must never hold its lock while it uses
//! the disk.
//!
//! Lock order: a live file's publishing lock, the turn of the ledger, the state of this room, the namespace,
//! the blobs. Calls from the ledger arrive with no lock held.

mod attach;
mod attrs;
mod begin;
mod beginnings;
mod busy;
mod check;
mod create;
mod cut;
mod decide;
mod digested;
mod editions;
mod ending;
mod errno;
mod explain;
mod facts;
mod figures;
mod filesystem;
mod flock;
mod handles;
mod held_locks;
mod inode;
mod io;
mod kept;
mod kernel_side;
mod listing;
mod live;
mod lock_files;
mod locks;
mod lookup;
mod make;
mod miss;
mod misses;
mod names;
mod observed;
mod obtain;
mod open;
mod opens;
mod publish;
mod recent;
mod release;
mod remove;
mod rename;
mod retry;
mod rights;
mod search_turn;
mod seen;
mod setattr;
mod shares;
mod similar;
mod state;
mod units;
mod vfs;
mod who;
mod wish;
mod worth;
mod writing_handle;
mod xattrs;

pub use busy::BusyCounts;
pub use explain::Asker;
pub use filesystem::{Filesystem, FsDeps, FsOptions};
pub use opens::RecordedOpens;
