//! Spans of time that several parts of the room, or all nodes, rely on.
//!
//! Owns the numbers only. What one part alone relies on stands in that part.

use std::time::Duration;

/// How long commits are kept that a checkpoint has, and objects that it does not need: a node that listed the
/// log or a checkpoint before reads on for as long.
pub const LOG_GRACE: Duration = Duration::from_hours(1);
/// How far a list goes back behind what was listed before: a commit becomes visible at most 20 s
/// after its stamp, and clocks differ a little.
pub(super) const LOOK_BACK_MS: u64 = 60_000;
/// A checkpoint that took longer than this is left to another try: nodes that take it for the latest
/// would lack what was deleted meanwhile.
pub(super) const WRITE_TIME_MAX: Duration = Duration::from_mins(20);
