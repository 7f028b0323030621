//! `hearthfs import`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::copy::{
    CopyPlan, ImportTurn, OnMount, Told, Trees, Way, apart, copy_and_tell, find_directory, resolve,
};
use super::drain;
use super::failure::{Failure, Outcome};
use super::figures;
use super::output::note;
use crate::config::{Flags, Surroundings, parse_duration};

/// Options of `hearthfs import`.
#[derive(Args, Clone, Debug)]
pub(super) struct Import {
    /// The directory to copy, such as ~/.triton/cache
    src: PathBuf,

    /// The target directory on the mount; made if it is missing
    dir: PathBuf,

    /// Replace existing files and units that differ
    #[arg(long)]
    overwrite: bool,

    /// Write nothing, and show what would be imported
    #[arg(long)]
    dry_run: bool,

    /// Wait until everything is remote, for at most TIME
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10m",
          value_parser = parse_duration)]
    drain: Option<Duration>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The configuration file with the profiles, if the daemon is another user's [env: HEARTHFS_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(command: &Import) -> Outcome<()> {
    let around = Surroundings::of_process();
    let from = find_directory(&around, &command.src)?;
    let to = resolve(&around, &command.dir)?;
    let on = OnMount::find(&to)?;
    figures::leave_out(&on.point)?;
    apart(&from, &to)?;
    if on.point.starts_with(&from) {
        let (from, point) = (from.display(), on.point.display());
        return Err(Failure::refused(format!("{from} holds the mount at {point}"))
            .hint("import the directory of one client, or one that holds nothing else"));
    }
    let flags = Flags { file: command.config.clone(), values: Vec::new() };
    let told = Told::ask(&around, &on, &flags)?;
    let turn = if command.dry_run { None } else { ImportTurn::take(&around, on.device)? };
    let trees = Trees::open(Way::Import, &from, &to, on.device)?;
    let plan = CopyPlan {
        way: Way::Import,
        from,
        to,
        place: on.place,
        globs: Vec::new(),
        overwrite: command.overwrite,
        dry_run: command.dry_run,
        unit_bytes: told.unit_bytes(),
        bytes_max: told.cache_bytes.unwrap_or(u64::MAX),
        profiles: told.profiles,
    };
    exact_modes();
    let copied = copy_and_tell(plan, trees, turn.as_ref(), command.json);
    drop(turn);
    match command.drain {
        _ if command.dry_run => copied,
        // Imported files are drained even if others have failed.
        Some(limit) => both(copied, drain::until_remote(&around, &on.point, limit)),
        None => {
            let point = on.point.display();
            note(&format!("`hearthfs drain {point}` waits until other nodes can get it"));
            copied
        }
    }
}

/// Combines the failures of two steps. The exit status is that of the first.
fn both(one: Outcome<()>, other: Outcome<()>) -> Outcome<()> {
    match (one, other) {
        (Err(mut one), Err(other)) => {
            one.messages.extend(other.messages);
            one.hints.extend(other.hints);
            Err(one)
        }
        (one, other) => one.and(other),
    }
}

/// Clears the umask, so that files get exactly the modes that this process requests. Applies to all
/// threads: those that copy start later.
pub(super) fn exact_modes() {
    rustix::process::umask(rustix::fs::Mode::empty());
}
