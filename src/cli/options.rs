//! The options that mounting and looking at the configuration share.
//!
//! Owns which keys have a flag of their own. Must never check a value: the configuration does.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use crate::config::{FlagValue, Flags};

/// Keys with a flag of their own, in the order of [`SettingFlags`].
pub(super) const OWN_FLAGS: [(&str, &str); 7] = [
    ("remote.url", "--remote"),
    ("local.cache_dir", "--cache-dir"),
    ("local.cache_size", "--cache-size"),
    ("mount.writes", "--writes"),
    ("mount.io", "--io"),
    ("log.level", "--log-level"),
    ("log.format", "--log-format"),
];

/// Options that set keys of the configuration.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Mount options")]
pub(super) struct SettingFlags {
    /// The store that all nodes share: s3://BUCKET[/PREFIX], gs://BUCKET[/PREFIX],
    /// az://ACCOUNT/CONTAINER[/PREFIX] or file:///DIRECTORY; without it, a local cache only
    /// [env: HEARTHFS_REMOTE]
    #[arg(long, value_name = "URL")]
    remote: Option<String>,

    /// The cache directory of this node, used by one mount only [env: HEARTHFS_CACHE_DIR]
    #[arg(long, value_name = "DIR")]
    cache_dir: Option<String>,

    /// The limit of the cache directory, such as 50GiB [env: HEARTHFS_CACHE_SIZE]
    #[arg(long, value_name = "SIZE")]
    cache_size: Option<String>,

    /// The configuration file [env: HEARTHFS_CONFIG]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Where the writes of programs go: shared (all nodes get them), private (they stay on this node) or
    /// none (writers get EROFS) [env: HEARTHFS_WRITES]
    #[arg(long, value_name = "HOW")]
    writes: Option<String>,

    /// Serve existing entries and refuse writers with EROFS; the same as --writes none
    #[arg(long, conflicts_with = "writes")]
    read_only: bool,

    /// The path of reads and writes: auto, passthrough or ordinary
    #[arg(long, value_name = "MODE")]
    io: Option<String>,

    /// What to log: off, error, warn, info, debug, trace, or pairs such as info,hearthfs::sync=debug
    /// [env: HEARTHFS_LOG]
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,

    /// The form of log lines: text, or json with one object a line [env: HEARTHFS_LOG_FORMAT]
    #[arg(long, value_name = "FORM", alias = "log")]
    log_format: Option<String>,

    /// Set any key of the configuration, such as --set remote.freshness=0s; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_and_value)]
    set: Vec<(String, String)>,
}

pub(super) fn key_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.trim().to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, such as remote.freshness=0s".to_owned()),
    }
}

impl SettingFlags {
    /// Returns the settings in the options. A flag of its own takes precedence over `--set`.
    pub(super) fn flags(&self) -> Flags {
        let mut values = Vec::new();
        let mut add = |key: &str, flag: &str, value: &str| {
            values.push(FlagValue {
                key: key.to_owned(),
                value: value.to_owned(),
                flag: flag.to_owned(),
            });
        };
        for (key, value) in &self.set {
            add(key, "--set", value);
        }
        if self.read_only {
            add("mount.writes", "--read-only", "none");
        }
        let own = [
            &self.remote,
            &self.cache_dir,
            &self.cache_size,
            &self.writes,
            &self.io,
            &self.log_level,
            &self.log_format,
        ];
        for ((key, flag), value) in OWN_FLAGS.iter().zip(own) {
            if let Some(value) = value {
                add(key, flag, value);
            }
        }
        Flags { file: self.config.clone(), values }
    }
}

/// Returns arguments with the same meaning for another `hearthfs mount`.
pub(super) fn to_args(flags: &Flags) -> Vec<OsString> {
    let mut args = Vec::new();
    if let Some(file) = &flags.file {
        args.extend(["--config".into(), file.clone().into_os_string()]);
    }
    for FlagValue { key, value, .. } in &flags.values {
        args.extend(["--set".into(), format!("{key}={value}").into()]);
    }
    args
}
