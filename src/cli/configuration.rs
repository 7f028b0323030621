//! `hearthfs config show` and `hearthfs config check`.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::doctor::{self, Asking};
use super::failure::{Failure, Outcome};
use super::json::json_pretty;
use super::options::SettingFlags;
use super::output::{data, note};
use super::{dirs, point, wait};
use crate::config::{self, KEYS, Loaded, Surroundings};
use crate::namespace::{Profile, Profiles};

/// The commands under `hearthfs config`.
#[derive(Subcommand, Clone, Debug)]
pub(super) enum Config {
    /// Print the values in effect as a configuration file, each with its origin
    Show(ConfigShow),
    /// Check the configuration as a mount would, and change nothing
    Check(ConfigCheck),
}

/// Options of `hearthfs config show`.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigShow {
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    common: Common,
}

/// Options of `hearthfs config check`.
#[derive(Args, Clone, Debug)]
pub(super) struct ConfigCheck {
    /// Also check that the configured store can be reached and read
    #[arg(long)]
    connect: bool,

    #[command(flatten)]
    common: Common,
}

/// What both take.
#[derive(Args, Clone, Debug)]
struct Common {
    /// The mount point that the configuration is for
    dir: Option<PathBuf>,

    #[command(flatten)]
    options: SettingFlags,
}

impl Common {
    fn load(&self, around: &Surroundings) -> Outcome<Loaded> {
        let point = self.dir.as_ref().map(|dir| point::absolute(around, dir));
        let loaded = config::load(&self.options.flags(), around, point.as_deref())?;
        for warning in &loaded.warnings {
            note(&format!("warning: {warning}"));
        }
        Ok(loaded)
    }
}

/// Runs the command.
pub(super) fn run(command: &Config) -> Outcome<()> {
    let around = Surroundings::of_process();
    match command {
        Config::Show(show) => {
            let loaded = show.common.load(&around)?;
            data(&if show.json { json_pretty(&loaded.effective)? } else { file(&around, &loaded) })
        }
        Config::Check(check) => {
            let loaded = check.common.load(&around)?;
            dirs::check_writes(&loaded.settings)?;
            if let Some(point) = &loaded.settings.mount.directory {
                dirs::check(&loaded.settings, point)?;
            }
            match &loaded.file {
                Some(file) => note(&format!("{} is in order", file.display())),
                None => note("the configuration is in order; there is no file"),
            }
            if check.connect { connect(&loaded) } else { Ok(()) }
        }
    }
}

/// Checks the store, and reports what is wrong with it.
fn connect(loaded: &Loaded) -> Outcome<()> {
    let Some(url) = &loaded.settings.remote.url else {
        note("there is no remote.url, so there is no store to ask");
        return Ok(());
    };
    let wrong = wait(async { Ok(doctor::tell_store(&loaded.settings, Asking::Reading).await) })?;
    if wrong {
        return Err(Failure::failed(format!("{url} cannot be used as it is configured"))
            .hint("`hearthfs doctor` looks at the machine and the clients as well"));
    }
    note(&format!("{url} can be reached and read"));
    Ok(())
}

/// Writes the effective values as a configuration file.
fn file(around: &Surroundings, loaded: &Loaded) -> String {
    let (mut text, mut section) = (String::new(), "");
    for (key, entry) in KEYS.iter().zip(&loaded.effective) {
        // Writing to a string cannot fail.
        if key.section() != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            section = key.section();
            writeln!(text, "{gap}[{section}]").ok();
        }
        let line = format!("{} = {}", key.short(), key.literal(&entry.value));
        write!(text, "{line:<40} # {}", entry.origin).ok();
        if key.name == "local.cache_dir" && entry.value.is_empty() {
            let base = config::cache_base(around);
            write!(text, ": {}/<name of the mount>", base.display()).ok();
        }
        text.push('\n');
    }
    let shipped = Profiles::default();
    let changed = |profile: &&Profile| shipped.get(&profile.name) != Some(profile);
    for profile in loaded.settings.profiles.all().iter().filter(changed) {
        writeln!(text, "\n# [profiles.{0}]: `hearthfs profiles {0}` prints it", profile.name).ok();
    }
    text
}
