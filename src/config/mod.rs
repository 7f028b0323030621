//! The configuration: flag before environment before file before default.
//!
//! Owns the keys, their checks, and where each effective value came from. Must never change anything:
//! it reads, and refuses.

mod keys;
mod listen;
mod paths;
mod problem;
mod profiles;
mod settings;
mod source;
mod suggest;
mod units;
mod url;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

pub use keys::{CACHE_SIZE_MIN, KEYS, Key, Shape, THREADS_MAX};
pub use listen::ListenAt;
use paths::foreign_link;
pub use paths::{cache_base, config_files, is_inside, log_base, mount_name, resolve};
pub use problem::{Origin, Problem};
pub use settings::{
    AllowOther, ClientDirs, IoMode, Local, Log, LogFormat, MetricsSettings, MountSettings,
    RemoteSettings, RunSettings, Settings, Writeback, Writes,
};
pub use source::Surroundings;
#[cfg(test)]
pub(crate) use source::{around, around_runtime_dir};
pub use suggest::nearest;
pub use units::{ByteSize, format_age, format_duration, parse_age, parse_duration};
pub use url::{RemoteUrl, without_secrets};

use source::Raw;

/// The settings on the command line.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The file of `--config`.
    pub file: Option<PathBuf>,
    /// The values of keys.
    pub values: Vec<FlagValue>,
}

/// A value of a key, given on the command line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlagValue {
    /// The full name of the key.
    pub key: String,
    /// The value as typed.
    pub value: String,
    /// The flag, as typed.
    pub flag: String,
}

/// One effective value, for people.
#[derive(Clone, Debug, Serialize)]
pub struct Effective {
    /// The full name of the key.
    pub key: &'static str,
    /// The value as it would be written.
    pub value: String,
    /// Where it was set.
    pub origin: Origin,
}

/// The settings and what the load found.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub settings: Settings,
    /// Each key's effective value, in the order of the table.
    pub effective: Vec<Effective>,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// Warnings: oddities that are no reason to refuse.
    pub warnings: Vec<String>,
}

impl Loaded {
    /// Returns where a key was set.
    pub fn origin(&self, key: &str) -> &Origin {
        self.effective.iter().find(|e| e.key == key).map_or(&Origin::Default, |e| &e.origin)
    }
}

/// All problems of a configuration, so that they can be fixed at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub Vec<Problem>);

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// Finds the effective settings of the mount at `mount_point`, which must be absolute and resolved.
/// Without one, `mount.directory` names the mount point. Without that too, the default of the cache
/// directory stays empty.
///
/// # Errors
///
/// Every problem of the file, the variables and the flags together: a key that is unknown, a value
/// outside its limits, a file that cannot be read.
pub fn load(
    flags: &Flags,
    around: &Surroundings,
    mount_point: Option<&Path>,
) -> Result<Loaded, Refusal> {
    let mut problems = Vec::new();
    let file = find_file(flags, around);
    let mut layers = Vec::new();
    let written = file.as_deref().map(source::file).unwrap_or_default();
    layers.push(written.raws);
    problems.extend(written.problems);
    let (raws, bad, mut warnings) = source::environment(around);
    layers.push(raws);
    problems.extend(bad);
    layers.push(from_flags(flags, &mut problems));

    let mut chosen: BTreeMap<&'static str, Raw> = BTreeMap::new();
    // A later layer wins, but earlier values are checked all the same. Otherwise a wrong value
    // would be noticed only when the flag is left out one day.
    let mut scratch = Settings::default();
    for raw in layers.into_iter().flatten() {
        match (raw.key.set)(&mut scratch, &raw.value) {
            Ok(()) => drop(chosen.insert(raw.key.name, raw)),
            Err(reason) => problems.push(refused(&raw, reason)),
        }
    }
    let (mut settings, mut effective) = apply(&chosen);
    settings.profiles = written.profiles;
    settle_mount_point(&mut settings, &mut effective, mount_point);
    settle_cache_dir(&mut settings, &mut effective, around, &mut problems);
    settle_open_wait(&mut settings, &mut effective);
    if problems.is_empty() {
        cross_check(&settings, &effective, &mut problems);
    }
    if !problems.is_empty() {
        return Err(Refusal(problems));
    }
    warnings.extend(oddities(&settings));
    Ok(Loaded { settings, effective, file, warnings })
}

fn refused(raw: &Raw, reason: String) -> Problem {
    Problem::new(raw.origin.clone(), raw.key.name, Some(&raw.value), reason)
}

/// Returns the file to read: a named file must exist; one in the usual places is optional.
fn find_file(flags: &Flags, around: &Surroundings) -> Option<PathBuf> {
    let named = flags.file.clone().or_else(|| around.variable("HEARTHFS_CONFIG").map(Into::into));
    match named {
        Some(path) => Some(around.absolute(&path)),
        // A link whose target is missing, and a directory that is closed, are mistakes, which
        // reading the file reports.
        None => config_files(around).into_iter().find(|path| !is_missing(path)),
    }
}

fn is_missing(path: &Path) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    path.symlink_metadata().is_err_and(|error| matches!(error.kind(), NotFound | NotADirectory))
}

fn from_flags(flags: &Flags, problems: &mut Vec<Problem>) -> Vec<Raw> {
    let mut raws = Vec::new();
    for FlagValue { key, value, flag } in &flags.values {
        let origin = Origin::Flag { flag: flag.clone() };
        if let Some(key) = keys::find(key) {
            raws.push(Raw { key, value: value.clone(), origin });
        } else {
            let reason = match nearest(key, KEYS.iter().map(|key| key.name)) {
                Some(meant) => format!("unknown key; did you mean \"{meant}\"?"),
                None => "unknown key; `hearthfs config show` lists all".to_owned(),
            };
            problems.push(Problem::new(origin, key, None, reason));
        }
    }
    raws
}

fn apply(chosen: &BTreeMap<&'static str, Raw>) -> (Settings, Vec<Effective>) {
    let mut settings = Settings::default();
    let mut effective = Vec::new();
    for key in KEYS {
        let (value, origin) = match chosen.get(key.name) {
            Some(raw) => (raw.value.as_str(), raw.origin.clone()),
            None => (key.default, Origin::Default),
        };
        // Chosen values have passed their check, and a test checks every default.
        let passed = (key.set)(&mut settings, value);
        debug_assert_eq!(passed, Ok(()), "{}", key.name);
        effective.push(Effective { key: key.name, value: value.to_owned(), origin });
    }
    (settings, effective)
}

/// Settles the mount point: an argument takes precedence over the key.
fn settle_mount_point(
    settings: &mut Settings,
    effective: &mut [Effective],
    mount_point: Option<&Path>,
) {
    let named = &mut settings.mount.directory;
    let Some(point) = mount_point else {
        *named = named.take().map(|dir| resolve(&dir));
        return;
    };
    *named = Some(point.to_owned());
    if let Some(entry) = effective.iter_mut().find(|e| e.key == "mount.directory") {
        entry.value = point.display().to_string();
        entry.origin = Origin::Flag { flag: "DIR".to_owned() };
    }
}

fn settle_cache_dir(
    settings: &mut Settings,
    effective: &mut [Effective],
    around: &Surroundings,
    problems: &mut Vec<Problem>,
) {
    let dir = &mut settings.local.cache_dir;
    if !dir.as_os_str().is_empty() {
        let asked = around.absolute(dir);
        if let Some((link, owner)) = foreign_link(&asked, around.uid)
            && let Some(entry) = effective.iter().find(|e| e.key == "local.cache_dir")
        {
            let link = link.display();
            let reason = format!(
                "{link} is a link of user {owner}, which that user can change at any time; \
                 set a path whose links are yours or root's"
            );
            let (origin, value) = (entry.origin.clone(), Some(entry.value.as_str()));
            problems.push(Problem::new(origin, "local.cache_dir", value, reason));
        }
        *dir = resolve(&asked);
        return;
    }
    let Some(point) = &settings.mount.directory else { return };
    *dir = cache_base(around).join(mount_name(point));
    if let Some(entry) = effective.iter_mut().find(|e| e.key == "local.cache_dir") {
        entry.value = dir.display().to_string();
    }
}

/// A user who sets only the deadline means all waits, so the default of the other wait is lowered to it.
fn settle_open_wait(settings: &mut Settings, effective: &mut [Effective]) {
    let limit = settings.remote.deadline;
    let wait = effective.iter_mut().find(|e| e.key == "writeback.open_wait");
    if let Some(entry) = wait.filter(|entry| entry.origin == Origin::Default)
        && settings.writeback.open_wait > limit
    {
        settings.writeback.open_wait = limit;
        entry.value = format_duration(limit);
    }
}

/// Checks conditions that involve several keys.
fn cross_check(settings: &Settings, effective: &[Effective], problems: &mut Vec<Problem>) {
    let mut refuse = |name: &str, reason: String| {
        if let Some(entry) = effective.iter().find(|e| e.key == name) {
            let problem = Problem::new(entry.origin.clone(), name, Some(&entry.value), reason);
            problems.push(problem);
        }
    };
    let Settings { local, remote, writeback, .. } = settings;
    if writeback.open_wait > remote.deadline {
        let limit = format_duration(remote.deadline);
        refuse("writeback.open_wait", format!("it must not exceed remote.deadline ({limit})"));
    }
    if writeback.batch.0 > local.cache_size.0 / 2 {
        let limit = local.cache_size;
        refuse("writeback.batch", format!("it must not exceed half of local.cache_size ({limit})"));
    }
    check_cloud(remote, &mut refuse);
    if let Some(at) = &settings.metrics.listen
        && !at.is_local()
        && !settings.metrics.allow_remote
    {
        let reason = "other machines can reach that address; choose 127.0.0.1, or set \
                      metrics.allow_remote = true";
        refuse("metrics.listen", reason.to_owned());
    }
    if let Some(dir) = remote.url.as_ref().and_then(RemoteUrl::directory) {
        let (dir, cache) = (resolve(dir), &local.cache_dir);
        if !cache.as_os_str().is_empty() && (is_inside(&dir, cache) || is_inside(cache, &dir)) {
            let cache = cache.display();
            refuse(
                "remote.url",
                format!("it must not be inside the cache directory ({cache}), nor hold it"),
            );
        }
    }
}

/// Checks keys that only some clouds support.
fn check_cloud(remote: &RemoteSettings, mut refuse: impl FnMut(&str, String)) {
    let scheme = match &remote.url {
        Some(RemoteUrl::Gcs { .. }) => "gs://",
        Some(RemoteUrl::Azure { .. }) => "az://",
        _ => return,
    };
    if remote.region.is_some() {
        refuse("remote.region", format!("a {scheme} remote has no region; leave the key out"));
    }
    if remote.path_style.is_some() && scheme == "gs://" {
        let reason = "a gs:// remote always has the bucket in the path; leave the key out";
        refuse("remote.path_style", reason.to_owned());
    }
}

fn oddities(settings: &Settings) -> Vec<String> {
    let remote = &settings.remote;
    let mut odd = Vec::new();
    let bucket = remote.url.as_ref().is_some_and(|url| url.directory().is_none());
    for (key, set) in [
        ("remote.endpoint", remote.endpoint.is_some()),
        ("remote.region", remote.region.is_some()),
        ("remote.path_style", remote.path_style.is_some()),
    ] {
        if set && !bucket {
            odd.push(format!("{key} has no effect: the remote is not in a cloud"));
        }
    }
    if let Some(endpoint) = &remote.endpoint
        && endpoint.starts_with("http://")
        && !is_this_machine(endpoint)
    {
        odd.push(format!("remote.endpoint = {endpoint:?} is not encrypted"));
    }
    odd
}

fn is_this_machine(endpoint: &str) -> bool {
    ::url::Url::parse(endpoint).is_ok_and(|url| match url.host() {
        Some(::url::Host::Domain(name)) => name == "localhost",
        Some(::url::Host::Ipv4(address)) => address.is_loopback(),
        Some(::url::Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    })
}

#[cfg(test)]
mod tests;
