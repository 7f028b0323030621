//! The clients: whether their variables point at the mount, and which versions are installed.
//!
//! Owns which program belongs to which profile. Must never run a program when root checks the mount
//! of another user.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::Access;

use super::finding::{Finding, Theme};
use super::program;
use crate::cli::clients::said_otherwise;
use crate::cli::{point, wait};
use crate::config::{Settings, Surroundings, resolve, without_secrets};
use crate::namespace::Profile;

/// How long examining a directory may take: it may be on a mount that does not answer.
const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// The most characters of a version that are shown.
const VERSION_CHARS_MAX: usize = 80;

/// Programs that print their version, by the profile of their client.
const PROGRAMS: [(&str, &str, &[&str]); 3] = [
    ("ccache", "ccache", &["--version"]),
    ("go", "go", &["version"]),
    ("sccache", "sccache", &["--version"]),
];
/// Packages of Python, by the profile of their client.
const PACKAGES: [(&str, &str); 9] = [
    ("inductor", "torch"),
    ("jax", "jax"),
    ("neuron", "neuronx-cc"),
    ("numba", "numba"),
    ("torch-extensions", "torch"),
    ("torch-xla", "torch_xla"),
    ("triton", "triton"),
    ("triton-dejavu", "triton-dejavu"),
    ("vllm", "vllm"),
];
/// Prints the versions of packages without importing any of them.
const ASK_PYTHON: &str = "import sys\nfrom importlib import metadata\nfor name in sys.argv[1:]:\n    \
    try:\n        print(name, metadata.version(name))\n    except Exception:\n        pass\n";

/// The versions of the installed programs, by profile.
type ClientVersions = BTreeMap<String, String>;

/// Checks the variables of all clients.
pub(super) fn check(
    around: &Surroundings,
    settings: &Settings,
    point: Option<&Path>,
    mounted: bool,
) -> Vec<Finding> {
    const NAME: &str = "clients";
    let Some(point) = point else {
        let why = "there is no mount point for the variables to lead to";
        return vec![Finding::skipped(Theme::Clients, NAME, why)];
    };
    let versions = match why_not_run(around, point) {
        Some(_) => ClientVersions::new(),
        None => wait(async { Ok(versions(around).await) }).unwrap_or_default(),
    };
    let mut all = Vec::new();
    all.extend(
        why_not_run(around, point).map(|why| Finding::skipped(Theme::Clients, "versions", why)),
    );
    let mut absent = Vec::new();
    for profile in settings.profiles.all().iter().filter(|profile| !profile.variables.is_empty()) {
        let version = versions.get(&profile.name).map(String::as_str);
        match client(around, profile, point, mounted, version) {
            Some(finding) => all.push(finding),
            None => absent.push(profile.name.as_str()),
        }
    }
    if !absent.is_empty() {
        let why = format!("variables not set here, and programs not found: {}", absent.join(", "));
        all.push(Finding::skipped(Theme::Clients, "other clients", why));
    }
    all
}

/// Explains why no program is run.
fn why_not_run(around: &Surroundings, point: &Path) -> Option<String> {
    if around.uid != 0 {
        return None;
    }
    let owner = crate::control::Mounts::read().ok()?.at(point).and_then(|mounted| mounted.owner);
    let other = owner.filter(|owner| *owner != 0).map(|owner| owner.to_string());
    let by = around.variable("SUDO_UID").filter(|uid| *uid != "0");
    let other = other.or_else(|| by.map(|uid| uid.to_string_lossy().into_owned()))?;
    Some(format!(
        "root runs no programs for user {other}; for the versions run `hearthfs doctor` as that user"
    ))
}

/// Checks one client; `None` if there is no sign of it.
fn client(
    around: &Surroundings,
    profile: &Profile,
    point: &Path,
    mounted: bool,
    version: Option<&str>,
) -> Option<Finding> {
    let name = format!("client {}", profile.name);
    let with_version = |text: String| match version {
        Some(version) => format!("{text}; {version}"),
        None => text,
    };
    let set = profile
        .variables
        .iter()
        .find_map(|variable| around.variable(variable).map(|value| (variable.as_str(), value)));
    let wanted = point.join(&profile.dir);
    let usual = profile.variables.last().map(String::as_str).unwrap_or_default();
    let Some((variable, value)) = set else {
        let found = with_version(format!("{usual} is not set, so the cache is elsewhere"));
        if said_otherwise(profile, &around.variables) {
            let found =
                with_version("the user has set the cache directory in another way".to_owned());
            return Some(Finding::ok(Theme::Clients, &name, found));
        }
        version?;
        let remedy = format!(
            "export {usual}={}, or run what uses it with `hearthfs run -- COMMAND`",
            wanted.display()
        );
        return Some(Finding::warning(Theme::Clients, &name, found, remedy));
    };
    let shown = format!("{variable}={}", without_secrets(&value.to_string_lossy()));
    let remedy = format!("set {variable}={}", wanted.display());
    let dir = PathBuf::from(value);
    if !dir.is_absolute() {
        let found = with_version(format!("{shown} is not an absolute path"));
        return Some(Finding::warning(Theme::Clients, &name, found, remedy));
    }
    let looked = {
        let dir = dir.clone();
        point::within(LOOK_LIMIT, move || {
            (resolve(&dir), rustix::fs::access(&dir, Access::WRITE_OK))
        })
    };
    let Some(Ok((real, access))) = looked else {
        let found = format!("{shown} does not answer");
        let remedy = "`hearthfs status` says what the daemon is doing";
        return Some(Finding::problem(Theme::Clients, &name, found, remedy));
    };
    if !real.starts_with(point) {
        let found = with_version(format!("{shown} does not lead to {}", point.display()));
        return Some(Finding::warning(Theme::Clients, &name, found, remedy));
    }
    Some(match access {
        _ if !mounted => {
            let found = with_version(format!("{shown} leads to the mount, but nothing is mounted"));
            Finding::warning(Theme::Clients, &name, found, "mount first")
        }
        Err(rustix::io::Errno::NOENT) if !profile.needs_dir => Finding::ok(
            Theme::Clients,
            &name,
            with_version(format!("{shown}, which the program makes itself")),
        ),
        Err(rustix::io::Errno::NOENT) => Finding::problem(
            Theme::Clients,
            &name,
            with_version(format!("{shown} does not exist, and the program does not make it")),
            format!("mkdir {}", dir.display()),
        ),
        Err(error) => Finding::warning(
            Theme::Clients,
            &name,
            with_version(format!("{shown} cannot be written by this user: {error}")),
            "if this user should add to the cache, correct the mode and owner of the directory",
        ),
        Ok(()) => Finding::ok(Theme::Clients, &name, with_version(shown)),
    })
}

/// Asks the installed programs for their versions.
async fn versions(around: &Surroundings) -> ClientVersions {
    let mut all = ClientVersions::new();
    for (profile, name, args) in PROGRAMS {
        let Some(path) = program::find(around, name) else { continue };
        all.insert(profile.to_owned(), version_of(around, &path, args).await);
    }
    if let Some(python) = program::find(around, "python3")
        && program::is_trusted(&python, around.uid)
    {
        let mut args = vec!["-c", ASK_PYTHON];
        args.extend(PACKAGES.iter().map(|(_, package)| *package));
        let said = program::said(&python, &args).await.unwrap_or_default();
        all.extend(packages(&said));
    }
    all
}

async fn version_of(around: &Surroundings, path: &Path, args: &[&str]) -> String {
    let shown = path.display();
    if !program::is_trusted(path, around.uid) {
        return format!("{shown} is not asked for its version: another user can replace it");
    }
    match program::said(path, args).await {
        Ok(said) => first_line(&said),
        Err(why) => format!("{shown} does not say its version: {why}"),
    }
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(VERSION_CHARS_MAX).collect()
}

/// Parses Python's answer about its packages.
fn packages(said: &str) -> ClientVersions {
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    let known: BTreeMap<&str, &str> = lines.collect();
    let of = |(profile, package): &(&str, &str)| {
        let version = known.get(package)?;
        Some(((*profile).to_owned(), first_line(&format!("{package} {version}"))))
    };
    PACKAGES.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::super::finding::Verdict;
    use super::*;
    use crate::namespace::Profiles;

    fn around(all: &[(&str, &OsStr)]) -> Surroundings {
        let variables = all.iter().map(|(k, v)| (k.into(), (*v).to_owned())).collect();
        Surroundings { variables, uid: 1000, ..Surroundings::default() }
    }

    #[test]
    fn every_program_belongs_to_a_profile() {
        let shipped = Profiles::default();
        let names = PROGRAMS.iter().map(|(profile, ..)| profile);
        for name in names.chain(PACKAGES.iter().map(|(profile, _)| profile)) {
            assert!(shipped.get(name).is_some(), "{name}");
        }
    }

    #[test]
    fn variables_by_where_they_lead() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let point = dir.path().canonicalize().expect("exists");
        std::fs::create_dir(point.join("ccache")).expect("mkdir");
        std::os::unix::fs::symlink(point.join("ccache"), point.join("link")).expect("link");
        let shipped = Profiles::default();
        let of = |profile: &str, value: &Path, mounted| {
            let profile = shipped.get(profile).expect("a known profile");
            let variable = profile.variables.last().expect("a variable");
            let around = around(&[(variable, value.as_os_str())]);
            client(&around, profile, &point, mounted, Some("4.10")).expect("a finding")
        };
        let good = of("ccache", &point.join("ccache"), true);
        assert_eq!((good.result, good.remedy), (Verdict::Ok, None));
        assert!(good.found.ends_with("; 4.10"), "{}", good.found);
        assert_eq!(of("ccache", &point.join("link"), true).result, Verdict::Ok);
        assert_eq!(of("ccache", &point.join("ccache"), false).result, Verdict::Warning);
        assert_eq!(of("ccache", Path::new("/elsewhere"), true).result, Verdict::Warning);
        assert_eq!(of("ccache", Path::new("here"), true).result, Verdict::Warning);
        assert_eq!(
            of("jax", &point.join("jax"), true).result,
            Verdict::Ok,
            "JAX creates the directory"
        );
        let lacking = of("torch-xla", &point.join("torch_xla"), true);
        assert!(
            lacking.result == Verdict::Problem
                && lacking.remedy.expect("a remedy").contains("mkdir")
        );
    }

    #[test]
    fn unset_variables_are_reported_for_installed_programs() {
        let shipped = Profiles::default();
        let profile = shipped.get("ccache").expect("a known profile");
        let point = Path::new("/m");
        assert_eq!(client(&around(&[]), profile, point, true, None), None);
        let told = client(&around(&[]), profile, point, true, Some("4.10")).expect("a finding");
        assert_eq!(told.result, Verdict::Warning);
        assert!(told.remedy.expect("a remedy").contains("export CCACHE_DIR=/m/ccache"));
        let own = around(&[("CCACHE_REMOTE_STORAGE", OsStr::new("file:/x"))]);
        let told = client(&own, profile, point, true, None).expect("a finding");
        assert_eq!(told.result, Verdict::Ok);
    }

    #[test]
    fn a_secret_in_a_variable_is_not_shown() {
        let shipped = Profiles::default();
        let profile = shipped.get("neuron").expect("a known profile");
        let value = OsStr::new("s3://user:hunter2@bucket/x?token=hunter2");
        let told = client(
            &around(&[("NEURON_COMPILE_CACHE_URL", value)]),
            profile,
            Path::new("/m"),
            true,
            None,
        );
        assert!(!told.expect("a finding").found.contains("hunter2"));
    }

    #[test]
    fn root_runs_nothing_for_another_user() {
        let mut root = around(&[("SUDO_UID", OsStr::new("1000"))]);
        assert_eq!(why_not_run(&root, Path::new("/m")), None);
        root.uid = 0;
        assert!(why_not_run(&root, Path::new("/m")).expect("a reason").contains("user 1000"));
        let own = Surroundings { uid: 0, ..around(&[]) };
        assert_eq!(why_not_run(&own, Path::new("/m")), None);
    }

    #[test]
    fn packages_are_listed_by_their_clients() {
        let all = packages("jax 0.10.0\ntorch 2.9\nother 1\nbroken\n");
        let texts: Vec<(&str, &str)> =
            all.iter().map(|(profile, text)| (profile.as_str(), text.as_str())).collect();
        assert_eq!(
            texts,
            [("inductor", "torch 2.9"), ("jax", "jax 0.10.0"), ("torch-extensions", "torch 2.9")]
        );
    }
}
