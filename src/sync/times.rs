//! Spans of time that several parts of `sync`, or all nodes, rely on.
//!
//! Owns only the numbers. A span that one part alone uses is defined in that part.

use std::time::Duration;

/// How long commits are kept that a checkpoint has, and objects that it does not need: a node that
/// has listed the log or a checkpoint before may go on reading for this long.
pub const LOG_GRACE: Duration = Duration::from_hours(1);
/// How far a list goes back before the end of the last list: a commit becomes visible at most 20 s
/// after its stamp, and clocks differ a little.
pub(super) const LOOK_BACK_MS: u64 = 60_000;
/// A checkpoint that took longer than this to write is discarded and tried again: nodes that use it
/// as the latest would lack what was deleted meanwhile.
pub(super) const WRITE_TIME_MAX: Duration = Duration::from_mins(20);
