//! The part of a status about the store, the log and the other nodes.
//!
//! Owns the conversion from the rooms' values to the messages of the control socket. Must never
//! send a request to the store.

use std::time::Duration;

use crate::clock::Clock;
use crate::control::{BacklogReasons, FollowerReport, HealthReport};
use crate::remote::{self, Remote};
use crate::sync::{Following, Unsent};

/// Returns the state of the remote, for a mount that started at a time of the monotonic clock.
pub(super) fn health_of(remote: &Remote, clock: &Clock, started: Duration) -> HealthReport {
    let ago = |at| clock.mono().saturating_sub(at).as_millis() as u64;
    let last = remote.last_outage();
    let (up, since_ms) = match (remote.unfit(), remote.health()) {
        (Some(_), _) => (false, 0),
        (None, remote::Health::Up) => (true, ago(remote.outage_ended().unwrap_or(started))),
        (None, remote::Health::Down { since_ms }) => {
            (false, clock.wall_ms().saturating_sub(since_ms))
        }
    };
    let now = if up { None } else { remote.trouble() };
    HealthReport {
        up,
        since_ms,
        last_error_kind: last.as_ref().map(|last| format!("{:?}", last.kind)),
        last_error_age_ms: last.as_ref().map(|last| ago(last.at)),
        last_error: now.or(last.map(|last| last.why)),
        throttled: remote.throttling().now,
    }
}

/// Returns where the lines that this process writes to stderr go: the path of a file, or `journal`.
pub(super) fn log_place() -> Option<String> {
    let place = std::fs::read_link("/proc/self/fd/2").ok()?;
    if place.is_absolute() && std::fs::symlink_metadata(&place).ok()?.is_file() {
        return Some(place.to_string_lossy().into_owned());
    }
    let socket = place.to_string_lossy().starts_with("socket:");
    (socket && std::env::var_os("JOURNAL_STREAM").is_some()).then(|| "journal".to_owned())
}

/// Returns how far this node has followed the log.
pub(super) fn follower_of(following: Following) -> FollowerReport {
    let ms = |age: Duration| age.as_millis() as u64;
    FollowerReport {
        list_age_ms: following.list_age.map(ms),
        attempt_age_ms: following.attempt_age.map(ms),
        list_failed: following.list_failed,
        lag_last_ms: following.lag_last_ms,
        lag_worst_ms: following.lag_worst_ms,
        unapplied_commits: following.unapplied,
    }
}

/// Returns why published changes are not yet uploaded.
pub(super) fn reasons_of(unsent: Unsent) -> BacklogReasons {
    let Unsent { queued, held, uploading, throttled, store_down, refused, read_only } = unsent;
    BacklogReasons { queued, held, uploading, throttled, store_down, refused, read_only }
}
