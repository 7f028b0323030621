//! Checks what a mount needs besides the rights to mount, before anything is changed: its directories,
//! and a store if writes stay private.
//!
//! Owns the checks of how the cache directory, the mount and a shared directory may be nested. Must
//! never create any of them.

use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::failure::{Failure, Outcome};
use crate::config::{ByteSize, CACHE_SIZE_MIN, RemoteUrl, Settings, Writes, is_inside, resolve};
use crate::control::{Mounted, Mounts};

/// Checks the directories of the mount at `point` (resolved).
pub(super) fn check(settings: &Settings, point: &Path) -> Outcome<()> {
    let cache = &settings.local.cache_dir;
    let mounts = Mounts::read()?;
    apart("the cache directory", cache, point)?;
    // Before the directory is accessed: that mount may be stuck.
    not_on_a_mount("the cache directory", cache, &mounts)?;
    check_cache(cache, settings)?;
    if let Some(file) = &settings.metrics.textfile
        && is_inside(&resolve(file), point)
    {
        let (file, mount) = (file.display(), point.display());
        let refused = format!("the file {file} of metrics.textfile is inside the mount {mount}");
        return Err(Failure::refused(refused).hint("name one outside of it"));
    }
    if let Some(dir) = settings.remote.url.as_ref().and_then(RemoteUrl::directory) {
        let dir = resolve(dir);
        apart("the shared directory", &dir, point)?;
        not_on_a_mount("the shared directory", &dir, &mounts)?;
    }
    Ok(())
}

/// Refuses a private mount without a store. A command that joins a mount needs no store itself.
pub(super) fn check_writes(settings: &Settings) -> Outcome<()> {
    if settings.mount.writes != Writes::Private || settings.remote.url.is_some() {
        return Ok(());
    }
    Err(Failure::refused(
        "mount.writes is \"private\", and there is no store: a later mount would upload all of it",
    )
    .hint("name a store with remote.url, or leave mount.writes out"))
}

/// A daemon that reads its own mount would wait for itself.
fn apart(what: &str, dir: &Path, point: &Path) -> Outcome<()> {
    let (shown, mount) = (dir.display(), point.display());
    if is_inside(dir, point) {
        return Err(Failure::refused(format!("{what} {shown} is inside the mount {mount}")));
    }
    if is_inside(point, dir) {
        return Err(Failure::refused(format!("the mount {mount} is inside {what} {shown}")));
    }
    Ok(())
}

fn not_on_a_mount(what: &str, dir: &Path, mounts: &Mounts) -> Outcome<()> {
    match mounts.holding(dir) {
        Some(Mounted { point, .. }) => Err(Failure::refused(format!(
            "{what} {} is on the hearthfs mount {}",
            dir.display(),
            point.display()
        ))),
        None => Ok(()),
    }
}

fn check_cache(cache: &Path, settings: &Settings) -> Outcome<()> {
    let shown = cache.display();
    let there = nearest_existing(cache);
    let about = std::fs::metadata(&there).map_err(|error| {
        Failure::refused(format!("the cache directory {shown}: {}: {error}", there.display()))
    })?;
    if !about.is_dir() {
        return Err(Failure::refused(format!(
            "the cache directory {shown}: {} is not a directory",
            there.display()
        )));
    }
    let access = Access::WRITE_OK | Access::EXEC_OK;
    if let Err(error) = rustix::fs::access(&there, access) {
        let refused =
            format!("the cache directory {shown}: cannot write to {}: {error}", there.display());
        return Err(Failure::refused(refused).hint("choose another with --cache-dir"));
    }
    // An existing cache may have filled the disk itself, and can still be served.
    if there == cache && cache.join("v1").exists() {
        return Ok(());
    }
    let figures = rustix::fs::statvfs(&there)
        .map_err(|error| Failure::refused(format!("the cache directory {shown}: {error}")))?;
    let free = ByteSize(figures.f_bavail.saturating_mul(figures.f_frsize));
    if free < CACHE_SIZE_MIN {
        let refused = format!(
            "the cache directory {shown}: {} has {} free, and at least {} are needed",
            there.display(),
            free.human(),
            CACHE_SIZE_MIN.human()
        );
        return Err(Failure::refused(refused).hint("choose another with --cache-dir"));
    }
    if free < settings.local.cache_size {
        tracing::warn!(
            free_bytes = free.0,
            limit_bytes = settings.local.cache_size.0,
            "the disk of the cache directory has less space than local.cache_size"
        );
    }
    Ok(())
}

/// Returns the path itself, or its nearest existing ancestor.
pub(super) fn nearest_existing(path: &Path) -> PathBuf {
    let found = path.ancestors().find(|above| std::fs::symlink_metadata(above).is_ok());
    found.unwrap_or(Path::new("/")).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Local;

    fn settings(cache: &Path, remote: Option<&Path>) -> Settings {
        let local = Local { cache_dir: cache.to_owned(), cache_size: CACHE_SIZE_MIN };
        let mut settings = Settings { local, ..Settings::default() };
        settings.remote.url = remote.map(|dir| RemoteUrl::File(dir.to_owned()));
        settings
    }

    #[test]
    fn directories_must_not_hold_each_other() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let base = dir.path().canonicalize().expect("exists");
        let (point, cache) = (base.join("mnt"), base.join("cache"));
        std::fs::write(base.join("file"), "x").expect("write");
        assert_eq!(check(&settings(&cache, None), &point), Ok(()));
        assert_eq!(check(&settings(&cache, Some(&base.join("store"))), &point), Ok(()));
        for (cache, remote, word) in [
            (point.join("c"), None, "is inside the mount"),
            (point.clone(), None, "is inside the mount"),
            (base.clone(), None, "the mount"),
            (cache.clone(), Some(point.join("s")), "the shared directory"),
            (cache.clone(), Some(base.clone()), "is inside the shared directory"),
            (base.join("file"), None, "is not a directory"),
            (base.join("file/below"), None, "is not a directory"),
            (PathBuf::from("/proc/hearthfs"), None, "/proc"),
        ] {
            let failure = check(&settings(&cache, remote.as_deref()), &point).expect_err("refused");
            assert!(failure.text().contains(word), "{}", failure.text());
            assert_eq!(failure.exit, super::super::failure::Exit::Refused);
        }
        let mut told = settings(&cache, None);
        for (file, good) in [(base.join("m.prom"), true), (point.join("x/m.prom"), false)] {
            told.metrics.textfile = Some(file);
            let checked = check(&told, &point);
            assert_eq!(checked.is_ok(), good, "{checked:?}");
            let refused = checked.err().is_none_or(|failure| failure.text().contains("m.prom"));
            assert!(refused, "the file is named");
        }
        assert!(!cache.exists(), "the check creates nothing");
    }
}
