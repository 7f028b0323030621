//! The common part of `ls`, `stat`, `du` and `rm`, which look into a mount.
//!
//! These are ordinary programs on the mount. The kernel decides which names the user may see,
//! change and remove. The daemon is asked, through the same calls, only for what the kernel does
//! not show. So a user can learn and do no more with them than with `ls`, `stat` and `rm`.
//!
//! Owns which names an argument stands for, and the walk. Must never hold a list of the names of a
//! tree, follow a link, or leave the mount.

mod entry;
mod glob;
mod query;
mod trouble;
mod walk;

pub(super) use entry::{SeenEntry, Silence};
pub(super) use glob::{plain_name, typed_name};
pub(super) use query::{Query, Whole, one, usual_dir};
pub(super) use trouble::Troubles;
pub(super) use walk::{Hit, Visit, walk};
