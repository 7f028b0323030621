//! The daemon: builds everything that a mount needs, and takes it down again.

use std::path::PathBuf;

use crate::config::Settings;
use crate::control::DrainReport;
use crate::error::{Error, Kind, Result};

/// How a mount ended.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ExitReport {
    /// What became of the backlog.
    pub drain: DrainReport,
}

/// Mounts at `mount_point` (absolute, resolved, checked), calls `ready` once a stat through the mount
/// works, and returns when it is unmounted: after SIGTERM, SIGINT, or a request over the control socket.
///
/// An error before `ready` is a refusal to start, and nothing stays mounted.
#[expect(clippy::needless_pass_by_value, reason = "the daemon keeps both")]
pub fn serve(
    _settings: Settings,
    mount_point: PathBuf,
    _ready: impl FnOnce(),
) -> Result<ExitReport> {
    Err(Error::new(Kind::Internal, format!("mount {}: not built yet", mount_point.display())))
}
