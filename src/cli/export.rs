//! `hearthfs export`.

use std::path::PathBuf;

use clap::Args;

use super::copy::{
    CopyPlan, OnMount, Told, Trees, Way, apart, copy_and_tell, find_directory, resolve,
};
use super::failure::{Failure, Outcome};
use super::figures;
use super::import::exact_modes;
use crate::config::{Flags, Surroundings};
use crate::namespace::Pattern;

/// Options of `hearthfs export`.
#[derive(Args, Clone, Debug)]
#[command(allow_missing_positional = true)]
pub(super) struct Export {
    /// The mount point, or a directory on the mount
    dir: PathBuf,

    /// Which names to write, relative to DIR; without it, all
    #[arg(value_name = "GLOB")]
    globs: Vec<String>,

    /// The target directory; made if it is missing
    #[arg(required = true)]
    dest: PathBuf,

    /// Replace existing files and units that differ
    #[arg(long)]
    overwrite: bool,

    /// Write nothing, and show what would be exported
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// The configuration file with the profiles, if the daemon is another user's [env: HEARTHFS_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Runs the command.
pub(super) fn run(command: &Export) -> Outcome<()> {
    let around = Surroundings::of_process();
    let dir = resolve(&around, &command.dir)?;
    let on = OnMount::find(&dir)?;
    figures::leave_out(&on.point)?;
    let from = find_directory(&around, &command.dir)?;
    let to = resolve(&around, &command.dest)?;
    apart(&from, &to)?;
    let parse = |text: &String| {
        Pattern::parse(text).map_err(|why| Failure::refused(format!("GLOB {why}")).hint(GLOBS))
    };
    let globs = command.globs.iter().map(parse).collect::<Outcome<Vec<_>>>()?;
    let flags = Flags { file: command.config.clone(), values: Vec::new() };
    let told = Told::ask(&around, &on, &flags)?;
    let trees = Trees::open(Way::Export, &from, &to, on.device)?;
    exact_modes();
    let plan = CopyPlan {
        way: Way::Export,
        from,
        to,
        place: on.place,
        profiles: told.profiles,
        globs,
        overwrite: command.overwrite,
        dry_run: command.dry_run,
        // Units that are only read need no room.
        unit_bytes: u64::MAX,
        bytes_max: u64::MAX,
    };
    copy_and_tell(plan, trees, None, command.json)
}

const GLOBS: &str = "`*` and `?` stand for bytes of one name, `**/` in front for any directories, `/**` at the end for all below";
