//! `hearthfs import`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::copy::{OnMount, Plan, Way, copy_and_tell};
use super::failure::{Failure, Outcome};
use super::output::note;
use super::{drain, point, status, wait};
use crate::config::{self, Flags, Surroundings, parse_duration};

/// The part of the cache that the units of some seconds may take: the daemon gives half of it to what stays on the node.
const UNIT_PART: u64 = 4;
/// What they may take where the daemon does not say how large its cache is, because it is another user's.
const UNIT_BYTES: u64 = 1 << 30;

/// Options of `hearthfs import`.
#[derive(Args, Clone, Debug)]
pub(super) struct Import {
    /// The directory whose content is taken in, such as ~/.triton/cache
    src: PathBuf,

    /// The directory on the mount that gets it; made if it is missing
    dir: PathBuf,

    /// Replace files and units that are there and differ
    #[arg(long)]
    overwrite: bool,

    /// Write nothing, and say what would be imported
    #[arg(long)]
    dry_run: bool,

    /// Wait until all of it is remote, for at most TIME
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10m",
          value_parser = parse_duration)]
    drain: Option<Duration>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The configuration file [env: HEARTHFS_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(command: &Import) -> Outcome<()> {
    let around = Surroundings::of_process();
    let (from, to) = (directory(&around, &command.src)?, point::absolute(&around, &command.dir));
    let on = OnMount::find(&to)?;
    apart(&from, &to)?;
    if on.point.starts_with(&from) {
        let (from, point) = (from.display(), on.point.display());
        return Err(Failure::refused(format!("{from} holds the mount at {point}"))
            .hint("import the directory of one client, or one that holds nothing else"));
    }
    let flags = Flags { file: command.config.clone(), values: Vec::new() };
    let loaded = config::load(&flags, &around, Some(&on.point))?;
    let plan = Plan {
        way: Way::Import,
        from,
        to,
        place: on.place,
        profiles: loaded.settings.profiles,
        globs: Vec::new(),
        overwrite: command.overwrite,
        dry_run: command.dry_run,
        unit_bytes: unit_bytes(&around, &on.point),
    };
    exact_modes();
    copy_and_tell(plan, command.json)?;
    if command.dry_run {
        return Ok(());
    }
    match command.drain {
        Some(limit) => drain::until_remote(&around, &on.point, limit),
        None => {
            let point = on.point.display();
            note(&format!("`hearthfs drain {point}` waits until other nodes have it"));
            Ok(())
        }
    }
}

/// Returns how many bytes units of some seconds may take.
fn unit_bytes(around: &Surroundings, point: &Path) -> u64 {
    let found = wait(status::find(around, point));
    found.map_or(UNIT_BYTES, |(_, status)| status.local.limit_bytes / UNIT_PART)
}

/// Returns a source directory, resolved.
pub(super) fn directory(around: &Surroundings, named: &Path) -> Outcome<PathBuf> {
    let path = point::absolute(around, named);
    match path.metadata() {
        Ok(about) if about.is_dir() => Ok(path),
        Ok(_) => Err(Failure::refused(format!("{} is not a directory", path.display()))
            .hint("name the directory whose content is to be copied")),
        Err(error) => Err(Failure::refused(format!("{}: {error}", path.display()))
            .hint("name a directory that is there and that you may read")),
    }
}

/// Refuses to copy a directory into itself.
pub(super) fn apart(from: &Path, to: &Path) -> Outcome<()> {
    let (shown_from, shown_to) = (from.display(), to.display());
    if to.starts_with(from) || from.starts_with(to) {
        let message = format!("{shown_from} and {shown_to}: one lies in the other");
        return Err(Failure::refused(message).hint("name two directories that are apart"));
    }
    Ok(())
}

/// Has what this process makes get the modes that it asks for. Other threads have not begun.
pub(super) fn exact_modes() {
    rustix::process::umask(rustix::fs::Mode::empty());
}
