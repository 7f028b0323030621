//! What the file system records for people: `top`, `run --record`, `explain`.
//!
//! Must never influence the result of a call.

use super::busy::Busy;
use super::misses::RecentMisses;
use super::opens::Opens;
use super::search_turn::SearchTurn;

#[derive(Debug, Default)]
pub(super) struct Observed {
    pub(super) busy: Busy,
    pub(super) opens: Opens,
    pub(super) misses: RecentMisses,
    /// The turn to search for similar entries.
    pub(super) search_turn: SearchTurn,
}
