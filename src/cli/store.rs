//! The options of commands that work on a store and need no mount.

use std::path::PathBuf;

use clap::Args;

use super::failure::Outcome;
use super::options::key_and_value;
use super::output::note;
use crate::config::{self, FlagValue, Flags, Origin, Settings, Surroundings};

/// Which store, and what is configured for it.
#[derive(Args, Clone, Debug)]
pub(super) struct StoreOptions {
    /// The store [default: remote.url of the configuration]
    url: Option<String>,

    /// How long entries live, such as 30d or never [default: expiry.age of the configuration; without one,
    /// what the store declares]
    #[arg(long, value_name = "AGE")]
    expiry: Option<String>,

    /// The configuration file [env: HEARTHFS_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Set any key of the configuration, such as --set remote.region=eu-west-1; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
}

/// The settings for work on a store.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub(super) settings: Settings,
    /// Where the expiry was set; `None` if it is the default.
    pub(super) expiry_by: Option<Origin>,
}

impl StoreOptions {
    /// Returns the effective settings, and prints their warnings.
    pub(super) fn settings(&self) -> Outcome<Chosen> {
        let value = |key: &str, flag: &str, value: &str| FlagValue {
            key: key.to_owned(),
            value: value.to_owned(),
            flag: flag.to_owned(),
        };
        let mut values: Vec<_> = self.set.iter().map(|(k, v)| value(k, "--set", v)).collect();
        values.extend(self.url.as_ref().map(|url| value("remote.url", "URL", url)));
        values.extend(self.expiry.as_ref().map(|age| value("expiry.age", "--expiry", age)));
        let flags = Flags { file: self.config.clone(), values };
        let loaded = config::load(&flags, &Surroundings::of_process(), None)?;
        for warning in &loaded.warnings {
            note(&format!("warning: {warning}"));
        }
        let origin = loaded.origin("expiry.age");
        let expiry_by = (*origin != Origin::Default).then(|| origin.clone());
        Ok(Chosen { settings: loaded.settings, expiry_by })
    }
}
