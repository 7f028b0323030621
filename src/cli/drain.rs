//! `hearthfs drain`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::failure::{Failure, Outcome};
use super::output::{ProgressLine, left, note};
use super::{point, status, wait};
use crate::config::{Surroundings, parse_duration};

/// Options of `hearthfs drain`.
#[derive(Args, Clone, Debug)]
pub(super) struct Drain {
    /// The mount point, or any path on the mount
    dir: PathBuf,

    /// Give up after this time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    timeout: Duration,
}

/// Runs the command.
pub(super) fn run(command: &Drain) -> Outcome<()> {
    let around = Surroundings::of_process();
    until_remote(&around, &point::absolute(&around, &command.dir), command.timeout)
}

/// Waits until everything published before is uploaded, for at most `limit`; `path` (resolved) is on the mount.
pub(super) fn until_remote(around: &Surroundings, path: &Path, limit: Duration) -> Outcome<()> {
    wait(async {
        let (mut client, status) = status::find(around, path).await?;
        if status.store.address.is_none() {
            note("there is no remote to drain to: this mount is a local cache only");
            return Ok(());
        }
        let mut progress = ProgressLine::new();
        let report = client.drain(limit, |news| progress.show(news)).await?;
        drop(progress);
        if report.complete {
            return Ok(());
        }
        let mut failure = Failure::failed(left(&report.left));
        failure.messages.extend(report.trouble);
        Err(failure.hint("they are safe in the cache directory, and the mount continues to upload"))
    })
}
