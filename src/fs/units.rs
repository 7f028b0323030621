//! Units: files that only make sense together, and what each process sees of them.
//!
//! A process that reads a unit's entry point, or writes a member, has an *edition* of the unit.
//! While it only reads, and the version that it began with is the current one, the edition is a
//! list in memory. When it writes, or when the unit changes meanwhile, the edition becomes a
//! directory of its own in the namespace, which never leaves the node: the *draft*. The names of
//! the unit then lead this process there, and every other process to what is published. All other
//! parts of this room treat such a directory as an ordinary one; only this module decides where a
//! name leads. The publish of the marker puts the whole draft under the real names, in one record
//! with one stamp.
//!
//! Owns the editions and their ends. Must never publish a part of a draft. Must never lead a
//! process to members of two versions.
//!
//! Keeps P6 units.

mod complete;
mod open;
mod route;
mod stale;
mod tend;

use std::time::Duration;

pub(super) use complete::PublishedBy;
pub(super) use route::Purpose;

/// How long a draft stays hidden from others after its last change, if no marker completes it.
const UNIT_HOLD: Duration = Duration::from_secs(10);
