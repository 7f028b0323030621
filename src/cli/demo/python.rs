//! A Python environment with JAX, made once and used again.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::clock::Clock;

use super::process::{DemoProcess, INTERRUPTED, Stop, pause, succeed};
use super::say;
use super::world::find_program;
use crate::cli::failure::{Exit, Failure, Outcome};

/// The installed packages.
const PACKAGES: &[&str] = &["jax==0.10.2", "jaxlib==0.10.2"];
/// Their size, for people.
const SIZE: &str = "about 650 MB on the disk, 150 MB to download";
/// The oldest Python that this JAX runs on.
const OLDEST: (u32, u32) = (3, 11);
/// Written last, so that an unfinished environment is made again.
const DONE: &str = "hearthfs-demo.txt";

const ASK_WITHIN: Duration = Duration::from_mins(1);
const MAKE_WITHIN: Duration = Duration::from_mins(5);
const INSTALL_WITHIN: Duration = Duration::from_mins(30);

/// Returns a Python that has JAX; makes its environment if there is none yet.
pub(super) fn with_jax(stop: &Stop) -> Outcome<PathBuf> {
    let base = cache_directory()?;
    let dir = base.join("demo-venv");
    let failed = |error| Failure::refused(format!("cannot make {}: {error}", dir.display()));
    std::fs::create_dir_all(&base).map_err(failed)?;
    let _lock = lock(&base.join("demo-venv.lock"), stop)?;
    let python = dir.join("bin/python");
    if is_usable(&dir, &python, stop)? {
        return Ok(python);
    }
    let found = find_python(stop)?;
    say(format_args!(
        "making a Python environment with JAX in {} ({SIZE}); later runs reuse it",
        dir.display()
    ));
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(failed)?;
    }
    let mut make = Command::new(&found);
    make.args(["-m", "venv"]).arg(&dir);
    succeed(&mut make, MAKE_WITHIN, stop).map_err(soften("python -m venv failed"))?;
    let mut install = Command::new(&python);
    install
        .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
        .args(["--only-binary", ":all:"])
        .args(PACKAGES)
        .stdout(std::io::stderr());
    let status = DemoProcess::start(&mut install)?.wait(INSTALL_WITHIN, stop)?;
    if !status.success() {
        return Err(Failure::refused(format!("pip could not install {}", PACKAGES.join(" "))));
    }
    std::fs::write(dir.join(DONE), PACKAGES.join("\n")).map_err(failed)?;
    Ok(python)
}

/// Returns the directory of the user for reproducible files.
fn cache_directory() -> Outcome<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|dir| dir.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|base| base.join("hearthfs"))
        .ok_or_else(|| Failure::refused("neither XDG_CACHE_HOME nor HOME is set".to_owned()))
}

/// Waits until no other run makes the environment.
fn lock(path: &Path, stop: &Stop) -> Outcome<File> {
    let failed = |error| Failure::refused(format!("cannot lock {}: {error}", path.display()));
    let file = File::create(path).map_err(failed)?;
    let clock = Clock::system();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if clock.mono() < INSTALL_WITHIN => {
                stop.check()?;
                pause();
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

fn is_usable(dir: &Path, python: &Path, stop: &Stop) -> Outcome<bool> {
    let done = std::fs::read_to_string(dir.join(DONE)).unwrap_or_default();
    if done != PACKAGES.join("\n") {
        return Ok(false);
    }
    let mut command = Command::new(python);
    command.args(["-c", "import jax, jaxlib"]).env("JAX_PLATFORMS", "cpu");
    let works = succeed(&mut command, ASK_WITHIN, stop).is_ok();
    stop.check()?;
    Ok(works)
}

/// Finds a Python that is new enough and can make environments.
fn find_python(stop: &Stop) -> Outcome<PathBuf> {
    let names = ["python3", "python3.14", "python3.13", "python3.12", "python3.11", "python"];
    let mut reasons = Vec::new();
    for python in names.into_iter().filter_map(find_program) {
        let shown = python.display().to_string();
        match version(&python, stop) {
            Ok(found) if found >= OLDEST => return Ok(python),
            Ok((major, minor)) => reasons.push(format!("{shown} is {major}.{minor}")),
            Err(_) => reasons.push(format!("{shown} has no venv or pip (package python3-venv)")),
        }
        stop.check()?;
    }
    if reasons.is_empty() {
        reasons.push("there is no `python3`".to_owned());
    }
    let (major, minor) = OLDEST;
    let why = reasons.join(", ");
    Err(Failure::refused(format!("it needs Python {major}.{minor} or newer: {why}")))
}

/// Returns the version of a Python that can make environments.
fn version(python: &Path, stop: &Stop) -> Outcome<(u32, u32)> {
    let mut command = Command::new(python);
    command.args(["-c", "import sys, venv, ensurepip; print(*sys.version_info[:2])"]);
    let (out, _) = succeed(&mut command, ASK_WITHIN, stop)?;
    let mut numbers = out.split_whitespace().map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok((major, minor)),
        _ => Err(Failure::failed(format!("{} reported no version", python.display()))),
    }
}

/// Turns a failure into a reason to try another client, unless a signal has requested the end.
fn soften(what: &'static str) -> impl FnOnce(Failure) -> Failure {
    move |failure| match &failure.messages[..] {
        [problem] if failure.exit == Exit::Failed && problem != INTERRUPTED => {
            Failure::refused(format!("{what}: {problem}"))
        }
        _ => failure,
    }
}
