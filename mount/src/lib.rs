//! The kernel side of hearthfs.
//!
//! Owns everything that names fuser, libc or `unsafe`. Must never know what a cache is.

mod backing;
mod signal;
mod vfs;

pub use backing::Backing;
pub use signal::die_of;
pub use vfs::*;
