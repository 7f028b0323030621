//! The environment of a command in which clients cache on the mount.
//!
//! Owns the decision which variables of the profiles are set. Must never override what the user has
//! set, and never let a client write to another hearthfs mount: a login or an outer `run` set that.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::point::within;
use crate::config::{Surroundings, resolve};
use crate::control::Mounts;
use crate::namespace::{Profile, Profiles, Unless};

/// The variable with the mount point, for programs in the command.
const MOUNT_VARIABLE: &str = "HEARTHFS_MOUNT";
/// How long resolving a path may take: it may lead to a mount that does not answer.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);

/// The environment for a command that runs on a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ClientEnvironment {
    /// Variables and their values.
    pub(super) variables: Vec<(String, OsString)>,
    /// Directories that must exist, relative to the mount.
    pub(super) dirs: Vec<String>,
    /// Variables of clients that the user has set to a place that is on no mount.
    pub(super) left_alone: Vec<String>,
}

/// Where the value of a client's variable leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leads {
    /// To this mount.
    Here,
    /// To another hearthfs mount.
    Another,
    /// To a place that is on no mount.
    Elsewhere,
}

/// Determines where a value leads, for a command on the mount at `point`.
pub(super) fn leads(around: &Surroundings, mounts: &Mounts, point: &Path, value: &OsStr) -> Leads {
    let Some(path) = path_of(around, value) else { return Leads::Elsewhere };
    let ours = mounts.holding(point);
    // An outer `run` may have unmounted already.
    let outer = around.directory(MOUNT_VARIABLE);
    let of = |path: &Path| match mounts.holding(path) {
        Some(mounted) if ours.is_some_and(|ours| ours.device == mounted.device) => Leads::Here,
        Some(_) => Leads::Another,
        None if outer.as_ref().is_some_and(|outer| path.starts_with(outer)) => Leads::Another,
        None => Leads::Elsewhere,
    };
    match of(&path) {
        // Only now, so that a mount that hangs is not accessed.
        Leads::Elsewhere => match within(RESOLVE_LIMIT, move || resolve(&path)) {
            Some(Ok(path)) => of(&path),
            _ => Leads::Elsewhere,
        },
        found => found,
    }
}

/// Returns the path that a value names; `None` for the address of a store.
fn path_of(around: &Surroundings, value: &OsStr) -> Option<PathBuf> {
    let bytes = value.as_bytes();
    let path = bytes.strip_prefix(b"file://").unwrap_or(bytes);
    let is_address = path.windows(3).any(|three| three == b"://");
    (!path.is_empty() && !is_address).then(|| around.absolute(Path::new(OsStr::from_bytes(path))))
}

/// Decides what to set for a command on the mount at `point`, given what is set and where that
/// leads, and whether clients are told to cache quick compilations too.
pub(super) fn environment(
    profiles: &Profiles,
    point: &Path,
    set: &BTreeMap<OsString, OsString>,
    leads: impl Fn(&OsStr) -> Leads,
    short_compiles: bool,
) -> ClientEnvironment {
    let is_set = |variable: &String| set.contains_key(OsStr::new(variable));
    let where_to = |variable: &String| set.get(OsStr::new(variable)).map(|value| leads(value));
    let mut environment = ClientEnvironment::default();
    for profile in profiles.all() {
        let mut further: Vec<_> = Vec::new();
        if short_compiles {
            further.extend(&profile.short_compiles);
        }
        let (mut is_free, mut wanted) = (!said_otherwise(profile, set), Vec::new());
        for variable in &profile.variables {
            match where_to(variable) {
                None => wanted.push((variable, false)),
                Some(Leads::Another) => wanted.push((variable, true)),
                Some(Leads::Here) => is_free = false,
                Some(Leads::Elsewhere) => {
                    is_free = false;
                    environment.left_alone.push(variable.clone());
                }
            }
        }
        wanted.retain(|(_, must)| is_free || *must);
        if profile.needs_dir && (is_free || !wanted.is_empty()) {
            environment.dirs.push(profile.dir.clone());
        }
        for (variable, _) in wanted {
            let value = point.join(&profile.dir).into_os_string();
            environment.variables.push((variable.clone(), value));
        }
        if is_free {
            further.extend(&profile.settings);
        }
        for (variable, value) in further.into_iter().filter(|(variable, _)| !is_set(variable)) {
            environment.variables.push((variable.clone(), value.into()));
        }
    }
    environment.variables.push((MOUNT_VARIABLE.to_owned(), point.as_os_str().to_owned()));
    environment
}

/// Reports whether the user has configured in another way where a client caches.
pub(super) fn said_otherwise(profile: &Profile, set: &BTreeMap<OsString, OsString>) -> bool {
    profile.unless.iter().any(|Unless { variable, holds }| {
        set.get(OsStr::new(variable)).is_some_and(|value| value.to_string_lossy().contains(holds))
    })
}

/// Explains why a command that got no hits published nothing, if a client that does not cache quick
/// compilations has its directory on the mount; `set` is the command's environment.
pub(super) fn why_nothing(
    profiles: &Profiles,
    point: &Path,
    set: impl Fn(&str) -> bool,
) -> Option<String> {
    let mut leaving = profiles.all().iter().filter(|profile| {
        let quick = profile.short_compiles.keys().any(|variable| !set(variable));
        quick && !profile.dir.is_empty() && point.join(&profile.dir).is_dir()
    });
    let profile = leaving.next()?;
    let settings: Vec<String> =
        profile.short_compiles.iter().map(|(name, value)| format!("{name}={value}")).collect();
    Some(format!(
        "hint: nothing was found and nothing was written; if this was {}: it does not keep programs that compile \
         quickly, and `hearthfs run --cache-short-compiles` sets {}",
        profile.title,
        settings.join(" ")
    ))
}

/// Writes the table for the help text.
pub(super) fn help() -> String {
    let shipped = Profiles::default();
    let rows = shipped.all().iter().flat_map(|profile| {
        profile.variables.iter().map(|variable| {
            let value = format!("DIR/{}", profile.dir);
            format!("  {variable:<30} {value:<26} {}\n", profile.title)
        })
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where values lead in these tests, which have no mounts.
    fn leads(value: &OsStr) -> Leads {
        let path = Path::new(value);
        match (path.starts_with("/m"), path.starts_with("/other")) {
            (true, _) => Leads::Here,
            (_, true) => Leads::Another,
            _ => Leads::Elsewhere,
        }
    }

    fn planned(set: &[(&str, &str)]) -> BTreeMap<String, String> {
        planned_by(&Profiles::default(), set, false)
    }

    fn planned_by(
        profiles: &Profiles,
        set: &[(&str, &str)],
        short_compiles: bool,
    ) -> BTreeMap<String, String> {
        let set = set.iter().map(|(k, v)| (k.into(), v.into())).collect();
        let environment = environment(profiles, Path::new("/m"), &set, leads, short_compiles);
        environment
            .variables
            .into_iter()
            .map(|(k, v)| (k, v.into_string().expect("text")))
            .collect()
    }

    #[test]
    fn every_client_gets_a_directory() {
        let all = planned(&[]);
        for (variable, value) in [
            ("OLYMPUS_COMPILATION_CACHE_DIR", "/m/jax"),
            ("JAX_COMPILATION_CACHE_DIR", "/m/jax"),
            ("TRITON_CACHE_DIR", "/m/triton"),
            ("TORCHINDUCTOR_CACHE_DIR", "/m/inductor"),
            ("NUMBA_CACHE_DIR", "/m/numba"),
            ("NEURON_COMPILE_CACHE_URL", "/m/neuron"),
            ("XLA_PERSISTENT_CACHE_PATH", "/m/torch_xla"),
            ("TRITON_DEJAVU_STORAGE", "/m/triton-dejavu"),
            ("VLLM_CACHE_ROOT", "/m/vllm"),
            ("TORCH_EXTENSIONS_DIR", "/m/torch_extensions"),
            ("CCACHE_DIR", "/m/ccache"),
            ("SCCACHE_DIR", "/m/sccache"),
            ("GOCACHE", "/m/go-build"),
            ("HEARTHFS_MOUNT", "/m"),
        ] {
            assert_eq!(all.get(variable).map(String::as_str), Some(value), "{variable}");
        }
        // One for each variable and setting of a client, and the mount itself.
        let shipped = Profiles::default();
        let known = |profile: &Profile| profile.variables.len() + profile.settings.len();
        assert_eq!(all.len(), shipped.all().iter().map(known).sum::<usize>() + 1);
    }

    #[test]
    fn programs_that_compile_quickly_are_kept_on_demand() {
        const VARIABLE: &str = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS";
        let shipped = Profiles::default();
        assert!(!planned(&[]).contains_key(VARIABLE));
        assert_eq!(planned_by(&shipped, &[], true).get(VARIABLE).map(String::as_str), Some("0"));
        assert!(!planned_by(&shipped, &[(VARIABLE, "3")], true).contains_key(VARIABLE));
        let elsewhere = [("JAX_COMPILATION_CACHE_DIR", "/m/other")];
        assert!(planned_by(&shipped, &elsewhere, true).contains_key(VARIABLE));
    }

    #[test]
    fn the_configuration_adds_variables() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("c.toml");
        let text = "[profiles.ccache]\nsettings = { CCACHE_BASEDIR = \"/src\" }\n\
                    [profiles.go]\nenabled = false\n\
                    [profiles.mine]\ndir = \"mine\"\nvariables = [\"MINE_DIR\"]\n";
        std::fs::write(&file, text).expect("write");
        let flags = crate::config::Flags { file: Some(file), values: Vec::new() };
        let around = crate::config::Surroundings::default();
        let profiles = crate::config::load(&flags, &around, None).expect("good").settings.profiles;
        let all = planned_by(&profiles, &[], false);
        assert_eq!(all.get("MINE_DIR").map(String::as_str), Some("/m/mine"));
        assert_eq!(all.get("CCACHE_BASEDIR").map(String::as_str), Some("/src"));
        assert!(!all.contains_key("GOCACHE"));
        let mine = planned_by(&profiles, &[("CCACHE_DIR", "/own")], false);
        assert!(!mine.contains_key("CCACHE_BASEDIR"), "no CCACHE_BASEDIR for an own directory");
    }

    #[test]
    fn why_nothing_was_written() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let profiles = Profiles::default();
        let asked = |set: bool| why_nothing(&profiles, dir.path(), |_| set);
        assert_eq!(asked(false), None, "no hint without a JAX directory");
        std::fs::create_dir(dir.path().join("jax")).expect("mkdir");
        let said = asked(false).expect("a hint");
        for word in
            ["JAX", "--cache-short-compiles", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS=0"]
        {
            assert!(said.contains(word), "{said}");
        }
        assert_eq!(asked(true), None, "no hint when the variable is set");
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let all = planned(&[
            ("TRITON_CACHE_DIR", "/mine"),
            ("JAX_COMPILATION_CACHE_DIR", ""),
            ("NEURON_CC_FLAGS", "-O1 --cache_dir=/mine"),
            ("CCACHE_REMOTE_STORAGE", "file:/m/ccache"),
        ]);
        for untouched in [
            "TRITON_CACHE_DIR",
            "JAX_COMPILATION_CACHE_DIR",
            "OLYMPUS_COMPILATION_CACHE_DIR",
            "NEURON_COMPILE_CACHE_URL",
            "CCACHE_DIR",
        ] {
            assert!(!all.contains_key(untouched), "{untouched}");
        }
        assert!(all.contains_key("NUMBA_CACHE_DIR"));
    }

    #[test]
    fn what_leads_to_another_mount_is_set() {
        let all = planned(&[
            ("OLYMPUS_COMPILATION_CACHE_DIR", "/other/jax"),
            ("JAX_COMPILATION_CACHE_DIR", "/other/jax"),
            ("TRITON_DEJAVU_STORAGE", "/other/triton-dejavu"),
            ("NEURON_COMPILE_CACHE_URL", "/other/neuron"),
            ("NEURON_CC_FLAGS", "--cache_dir=/mine"),
            ("GOCACHE", "/m/mine"),
        ]);
        for (variable, value) in [
            ("OLYMPUS_COMPILATION_CACHE_DIR", "/m/jax"),
            ("JAX_COMPILATION_CACHE_DIR", "/m/jax"),
            ("TRITON_DEJAVU_STORAGE", "/m/triton-dejavu"),
            ("NEURON_COMPILE_CACHE_URL", "/m/neuron"),
        ] {
            assert_eq!(all.get(variable).map(String::as_str), Some(value), "{variable}");
        }
        assert!(!all.contains_key("GOCACHE"), "another directory of this mount");
        // Beside a choice of the user, only what leads to the other mount changes.
        let all = planned(&[
            ("OLYMPUS_COMPILATION_CACHE_DIR", "/other/jax"),
            ("JAX_COMPILATION_CACHE_DIR", "/mine"),
        ]);
        assert_eq!(all.get("OLYMPUS_COMPILATION_CACHE_DIR").map(String::as_str), Some("/m/jax"));
        assert!(!all.contains_key("JAX_COMPILATION_CACHE_DIR"));
    }

    #[test]
    fn what_is_left_alone_is_named() {
        let left = |set: &[(&str, &str)]| {
            let set = set.iter().map(|(k, v)| (k.into(), v.into())).collect();
            environment(&Profiles::default(), Path::new("/m"), &set, leads, false).left_alone
        };
        assert_eq!(left(&[("GOCACHE", "/mine"), ("TRITON_CACHE_DIR", "/m/x")]), ["GOCACHE"]);
        assert!(left(&[("GOCACHE", "/other/go-build"), ("HOME", "/home/me")]).is_empty());
    }

    #[test]
    fn values_lead_to_places() {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::os::unix::fs::symlink("/outer/triton", dir.path().join("link")).expect("symlink");
        // Without a mount in the table, only that of the outer `run` is known.
        let around = crate::config::around(1000, &[("HEARTHFS_MOUNT", "/outer")]);
        let of = |value: &str| {
            super::leads(&around, &Mounts::default(), Path::new("/m"), OsStr::new(value))
        };
        let link = dir.path().join("link");
        for (value, wanted) in [
            ("/outer/jax", Leads::Another),
            ("file:///outer/jax", Leads::Another),
            ("outer/jax", Leads::Another),
            (link.to_str().expect("text"), Leads::Another),
            ("/outermost", Leads::Elsewhere),
            ("s3://outer/jax", Leads::Elsewhere),
            ("", Leads::Elsewhere),
        ] {
            assert_eq!(of(value), wanted, "{value}");
        }
    }

    #[test]
    fn directories_of_clients_that_make_none() {
        let profiles = Profiles::default();
        let dirs = environment(&profiles, Path::new("/m"), &BTreeMap::new(), leads, false).dirs;
        assert_eq!(dirs, ["torch_xla", "triton-dejavu"]);
        let mine = BTreeMap::from([("TRITON_DEJAVU_STORAGE".into(), "/mine".into())]);
        let dirs = environment(&profiles, Path::new("/m"), &mine, leads, false).dirs;
        assert!(!dirs.iter().any(|dir| dir == "triton-dejavu"));
    }

    fn variables() -> Vec<String> {
        let shipped = Profiles::default();
        shipped.all().iter().flat_map(|profile| profile.variables.clone()).collect()
    }

    /// Runs the login snippet in a shell, as on a mount where all directories work, and returns the
    /// variables that it exports.
    fn exported(set: &[(&str, &str)]) -> BTreeMap<String, String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/hearthfs.sh");
        let text = std::fs::read_to_string(path).expect("readable");
        let (asked, rest) =
            text.split_once("|| _hearthfs_dirs=\n").expect("the end of the question");
        let (_, dirs) = asked.split_once("\"$_hearthfs\" ").expect("the directories");
        let (dirs, _) = dirs.split_once(" &\n").expect("the end of the directories");
        let script = format!("_hearthfs=/m\n_hearthfs_dirs=' {dirs} '\n{rest}\nenv");
        let mut shell = std::process::Command::new("sh");
        shell.env_clear().envs(set.iter().copied()).args(["-euc", &script]);
        let output = shell.output().expect("a shell");
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).expect("text");
        let variables = variables();
        let pairs = lines.lines().filter_map(|line| line.split_once('='));
        pairs
            .filter(|(name, _)| variables.iter().any(|variable| variable == name))
            .filter(|(name, _)| !set.iter().any(|(own, _)| own == name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn logins_get_what_a_run_gets() {
        for set in [
            &[][..],
            &[("TRITON_CACHE_DIR", "/mine"), ("JAX_COMPILATION_CACHE_DIR", "")],
            &[("OLYMPUS_COMPILATION_CACHE_DIR", "/mine"), ("GOCACHE", "")],
            &[("NEURON_CC_FLAGS", "-O1 --cache_dir=/mine"), ("SCCACHE_DIR", "/x")],
            &[("NEURON_CC_FLAGS", "-O1"), ("CCACHE_REMOTE_STORAGE", "file:/m/ccache")],
            &[("CCACHE_SECONDARY_STORAGE", ""), ("NUMBA_CACHE_DIR", "/n")],
        ] {
            let mut wanted = planned(set);
            wanted.remove("HEARTHFS_MOUNT");
            assert_eq!(exported(set), wanted, "{set:?}");
        }
    }
}
