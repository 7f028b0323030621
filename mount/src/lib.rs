//! The kernel side of hearthfs.
//!
//! Owns everything that names fuser, libc or `unsafe`. Must never know what a cache is.

mod adapter;
mod backing;
mod caller;
mod counts;
mod detached_mount;
mod device;
mod helper;
mod invalidator;
mod mount_lock;
mod mounting;
pub mod mounts;
mod proc;
pub mod process;
mod session;
mod shape;
mod signal;
mod stale_mount;
mod vfs;
mod wake;
mod watched;

pub use backing::Backing;
pub use caller::Tasks;
pub use invalidator::Invalidator;
pub use session::{MountOptions, Session};
pub use signal::die_of;
pub use stale_mount::{clear_stale, is_stale};
pub use vfs::*;
pub use wake::Wakes;
pub use watched::{End, Watched};
