//! `hearthfs run`.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};
use std::time::Duration;

use clap::Args;

use super::background;
use super::child::{ChildSignals, Running, end_like};
use super::clients::{ClientEnvironment, environment, leads, why_nothing};
use super::failure::{Failure, Outcome};
use super::figures;
use super::mount::{check_before_mount, clear, say_store};
use super::options::SettingFlags;
use super::output::{ProgressLine, left, note, time};
use super::point::{self, State};
use super::record::Recording;
use super::share::Share;
use super::status::FULL;
use super::unmount::shut_down;
use crate::clock::Clock;
use crate::config::{self, ByteSize, FlagValue, Flags, Loaded, Origin, Surroundings, Writes};
use crate::control::{self, Backlog, DrainProgress, DrainReport, Mounts, Status};
use crate::daemon::MANAGER_VARIABLES;
use crate::metrics::{ClientFigures, Figures, Snapshot};

/// Options of `hearthfs run`.
#[derive(Args, Clone, Debug)]
pub(super) struct RunCommand {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,

    /// The mount point; use the same on all nodes, because some clients store paths
    /// [default: mount.directory of the configuration, else ~/.hearthfs]
    #[arg(long, value_name = "DIR")]
    mount: Option<PathBuf>,

    /// Let clients also keep programs that compile quickly (run.cache_short_compiles)
    #[arg(long)]
    cache_short_compiles: bool,

    /// List the files opened on the mount during the run in FILE, for `hearthfs warm --list`
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,

    #[command(flatten)]
    options: SettingFlags,
}

/// The flag of `run` that sets a key.
pub(super) const SHORT_COMPILES: (&str, &str) =
    ("run.cache_short_compiles", "--cache-short-compiles");

impl RunCommand {
    fn flags(&self) -> Flags {
        let mut flags = self.options.flags();
        if self.cache_short_compiles {
            let [key, flag] = [SHORT_COMPILES.0, SHORT_COMPILES.1].map(str::to_owned);
            flags.values.push(FlagValue { key, value: "true".to_owned(), flag });
        }
        flags
    }
}

/// The mount on which the command runs.
struct Joined {
    share: Share,
    /// The status when the command started; `None` for the mount of another user.
    before: Option<Status>,
    /// The figures of another user's mount, if it reports them.
    figures: Option<Figures>,
}

/// Runs the command, and ends with its status.
pub(super) fn run(command: &RunCommand) -> Outcome<ExitCode> {
    let around = Surroundings::of_process();
    let (point, named) = mount_point(&around, command)?;
    let loaded = config::load(&command.flags(), &around, Some(&point))?;
    for warning in &loaded.warnings {
        note(&format!("warning: {warning}"));
    }
    let recording = command.record.as_ref();
    let mut recording =
        recording.map(|file| Recording::prepare(&around, &point, file)).transpose()?;
    if !named {
        make_default(&point)?;
    }
    let status = super::wait(async {
        let mut signals = ChildSignals::listen()?;
        let mut joined = tokio::select! {
            joined = join(&around, &point, command, &loaded) => joined?,
            which = signals.next_end() => hearthfs_mount::die_of(which.as_raw()),
        };
        let settings = &loaded.settings;
        let short = settings.run.cache_short_compiles;
        let (profiles, set, mounts) = (&settings.profiles, &around.variables, Mounts::read()?);
        let leads = |value: &OsStr| leads(&around, &mounts, &point, value);
        let environment = environment(profiles, &point, set, leads, short);
        if !environment.left_alone.is_empty() {
            let names = environment.left_alone.join(", ");
            note(&format!("note: left as you have set it, so not cached on this mount: {names}"));
        }
        if make_dirs(&point, &environment)
            && let Some(before) = &mut joined.before
            && let Ok((_, status)) = control::find(&around, &point, Some(around.uid)).await
        {
            // The cost of making the directories does not belong to the command.
            *before = status;
        }
        let result = match &mut recording {
            Some(recording) => {
                recorded(recording, &joined, execute(command, &environment, &mut signals)).await
            }
            None => execute(command, &environment, &mut signals).await,
        };
        if !result.as_ref().is_ok_and(ExitStatus::success) {
            signals.forget().await;
        }
        if let Some(recording) = recording.filter(|_| result.is_ok()) {
            recording.end().await;
        }
        finish(&around, &point, joined, &loaded, &environment, &mut signals).await;
        result
    })?;
    Ok(end_like(status))
}

/// Returns the mount point, and whether it was named explicitly.
fn mount_point(around: &Surroundings, command: &RunCommand) -> Outcome<(PathBuf, bool)> {
    if let Some(dir) = &command.mount {
        return Ok((point::absolute(around, dir), true));
    }
    let loaded = config::load(&command.flags(), around, None)?;
    if let Some(dir) = loaded.settings.mount.directory {
        return Ok((dir, true));
    }
    match around.directory("HOME") {
        Some(home) => Ok((point::absolute(around, &home.join(".hearthfs")), false)),
        None => Err(Failure::refused("HOME is not set, so there is no default mount point")
            .hint("name one with --mount")),
    }
}

fn make_default(point: &Path) -> Outcome<()> {
    let made = std::fs::DirBuilder::new().mode(0o700).create(point);
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => {
            Err(Failure::refused(format!("make the mount point {}: {error}", point.display()))
                .hint("name another with --mount"))
        }
        _ => Ok(()),
    }
}

/// Joins an existing mount, or makes it.
async fn join(
    around: &Surroundings,
    point: &Path,
    command: &RunCommand,
    loaded: &Loaded,
) -> Outcome<Joined> {
    let (share, setup) = Share::enter(around, point).await?;
    let mut figures = None;
    let before = match point::inspect(around, point).await? {
        State::Live(found) => {
            same_mount(&found.1, loaded)?;
            Some(found.1)
        }
        State::Foreign => {
            known_writes(point, loaded)?;
            figures = figures::through_mount(point).ok();
            None
        }
        state @ (State::Free | State::Stale { .. }) => {
            check_before_mount(around, &loaded.settings, point)?;
            if matches!(state, State::Stale { is_replaced: false }) {
                clear(around, point).await?;
            }
            background::launch(around, point, &command.flags()).await?;
            let (_, status) = control::find(around, point, Some(around.uid)).await?;
            share.own(&status)?;
            say_store(&status);
            Some(status)
        }
    };
    setup.done();
    Ok(Joined { share, before, figures })
}

/// Refuses to join a mount that differs from the requested one.
fn same_mount(status: &Status, loaded: &Loaded) -> Outcome<()> {
    let asked = |key: &str| !matches!(loaded.origin(key), Origin::Default | Origin::File { .. });
    let url = loaded.settings.remote.url.as_ref().map(ToString::to_string);
    let differs = |what: &str, there: &str, here: &str| {
        let message =
            format!("{} is mounted with the {what} {there}, not {here}", status.mount_point);
        Failure::refused(message)
            .hint("leave the option out to use that mount, or name another with --mount")
    };
    if asked("remote.url") && url != status.store.address {
        let shown = |url: &Option<String>| url.clone().unwrap_or_else(|| "none".to_owned());
        return Err(differs("remote", &shown(&status.store.address), &shown(&url)));
    }
    let cache = loaded.settings.local.cache_dir.display().to_string();
    if asked("local.cache_dir") && cache != status.cache_dir {
        return Err(differs("cache directory", &status.cache_dir, &cache));
    }
    let writes = loaded.settings.mount.writes;
    if asked("mount.writes") && writes != status.writes {
        return Err(differs("setting mount.writes", status.writes.word(), writes.word()));
    }
    Ok(())
}

/// Refuses to join a mount if the user asked to keep writes from other nodes and it is unknown
/// whether the mount does.
fn known_writes(point: &Path, loaded: &Loaded) -> Outcome<()> {
    let writes = loaded.settings.mount.writes;
    let asked = !matches!(loaded.origin("mount.writes"), Origin::Default | Origin::File { .. });
    if !asked || writes == Writes::Shared {
        return Ok(());
    }
    let point = point.display();
    let word = writes.word();
    Err(Failure::refused(format!(
        "{point} is another user's mount, and it may not have been mounted with mount.writes = \"{word}\""
    ))
    .hint("leave the option out to use that mount, or name another with --mount"))
}

/// Makes the directories that clients need; returns whether any was missing.
fn make_dirs(point: &Path, environment: &ClientEnvironment) -> bool {
    let missing = environment.dirs.iter().map(|dir| point.join(dir)).filter(|path| !path.is_dir());
    let missing: Vec<PathBuf> = missing.collect();
    for path in &missing {
        match std::fs::DirBuilder::new().recursive(true).create(path) {
            Ok(()) => {}
            // A read-only mount only serves what is there, as requested.
            Err(error) if error.kind() == ErrorKind::ReadOnlyFilesystem => {}
            Err(error) => note(&format!("warning: make {}: {error}", path.display())),
        }
    }
    !missing.is_empty()
}

/// Records opens while a command runs.
async fn recorded(
    recording: &mut Recording,
    joined: &Joined,
    command: impl Future<Output = Outcome<ExitStatus>>,
) -> Outcome<ExitStatus> {
    recording.begin(joined.before.is_some()).await?;
    tokio::select! {
        biased;
        ended = command => ended,
        never = recording.go_on() => match never {},
    }
}

async fn execute(
    command: &RunCommand,
    environment: &ClientEnvironment,
    signals: &mut ChildSignals,
) -> Outcome<ExitStatus> {
    let mut process = Command::new(&command.command[0]);
    process.args(&command.command[1..]).envs(environment.variables.iter().map(|(k, v)| (k, v)));
    for variable in MANAGER_VARIABLES {
        process.env_remove(variable);
    }
    Running::start(process)?.finish(signals).await
}

/// Drains, prints a summary, and unmounts if no other run needs the mount. Failures here are
/// printed and do not change the exit status; a signal ends this early.
async fn finish(
    around: &Surroundings,
    point: &Path,
    joined: Joined,
    loaded: &Loaded,
    environment: &ClientEnvironment,
    signals: &mut ChildSignals,
) {
    let Some(before) = joined.before else {
        tell_worth(point, joined.figures.as_ref());
        return;
    };
    let limit = loaded.settings.writeback.drain_deadline;
    let drained = tokio::select! {
        drained = drain(around, point, limit) => drained,
        _ = signals.next_end() => Err(Failure::failed("interrupted while draining")
            .hint("what is not yet remote is kept in the cache directory")),
    };
    // What timed out once is not tried again.
    let mut again = Some(Duration::ZERO);
    match drained {
        Ok(drained) => {
            for line in summary(&before, &drained) {
                note(&line);
            }
            for line in troubles(&before, &drained) {
                note(&line);
            }
            let is_set = |name: &str| {
                environment.variables.iter().any(|(set, _)| set == name)
                    || around.variables.contains_key(OsStr::new(name))
            };
            if let Some(hint) = Some(grown(&before, &drained))
                .filter(|grown| grown.hits + grown.published == 0 && grown.misses > 0)
                .and_then(|_| why_nothing(&loaded.settings.profiles, point, is_set))
            {
                note(&hint);
            }
            if drained.complete {
                again = None;
            }
        }
        Err(failure) => note(failure.text().trim_end()),
    }
    let left = tokio::select! {
        left = leave(around, point, joined.share, &before, again) => left,
        _ = signals.next_end() => Err(Failure::failed("interrupted while unmounting")),
    };
    if let Err(failure) = left {
        note(failure.text().trim_end());
        note(&format!(
            "hint: run `hearthfs unmount {}` when it is no longer in use",
            point.display()
        ));
    }
}

/// Prints what the cache saved on another user's mount, which gives no further information.
fn tell_worth(point: &Path, before: Option<&Figures>) {
    match (before, figures::through_mount(point)) {
        (Some(before), Ok(now)) => {
            let growth = ClientFigures::growth(&now, before);
            for line in figures::lines(&growth, "") {
                note(&format!("hearthfs: {line}"));
            }
        }
        (_, told) => {
            note("hearthfs: this mount belongs to another user and shows no figures");
            told.err().iter().for_each(|failure| note(failure.text().trim_end()));
        }
    }
}

async fn leave(
    around: &Surroundings,
    point: &Path,
    share: Share,
    before: &Status,
    limit: Option<Duration>,
) -> Outcome<()> {
    let Some(setup) = share.leave(before).await? else { return Ok(()) };
    let (client, _) = control::find(around, point, Some(around.uid)).await?;
    let ended = shut_down(client, point, limit).await;
    setup.done();
    ended.map(drop)
}

/// The result of the drain after a command.
struct Drained {
    complete: bool,
    left: Backlog,
    elapsed_ms: u64,
    /// Why it was given up, or timed out.
    trouble: Option<String>,
    status: Status,
}

/// Waits until everything is uploaded, within `limit`. If the store was down when the command
/// ended, and still is, it does not wait: the end of the outage is unknown.
async fn drain(around: &Surroundings, point: &Path, limit: Duration) -> Outcome<Drained> {
    let (mut client, status) = control::find(around, point, Some(around.uid)).await?;
    if status.store.address.is_none() {
        let left = Backlog::default();
        return Ok(Drained { complete: true, left, elapsed_ms: 0, trouble: None, status });
    }
    let was_down = status.sharing.outage().is_some();
    let clock = Clock::system();
    let began = clock.mono();
    let (given_up, mut stuck) = tokio::sync::oneshot::channel();
    let (mut given_up, mut progress) = (Some(given_up), ProgressLine::new());
    let work = client.drain(limit, |news| {
        progress.show(news);
        if was_down
            && news.trouble.is_some()
            && let Some(given_up) = given_up.take()
        {
            // The receiver exists during this call.
            given_up.send(news.clone()).ok();
        }
    });
    let ended = tokio::select! {
        biased;
        report = work => Ok(report?),
        Ok(news) = &mut stuck => Err(news),
    };
    drop(progress);
    let elapsed_ms = clock.mono().saturating_sub(began).as_millis() as u64;
    // A connection whose drain was given up accepts no further request.
    let (_, status) = control::find(around, point, Some(around.uid)).await?;
    Ok(match ended {
        Ok(DrainReport { complete, left, trouble, .. }) => {
            Drained { complete, left, elapsed_ms, trouble, status }
        }
        Err(DrainProgress { backlog, trouble }) => {
            Drained { complete: backlog.is_empty(), left: backlog, elapsed_ms, trouble, status }
        }
    })
}

/// The growth of the mount's counters.
fn grown(before: &Status, drained: &Drained) -> Snapshot {
    let same_daemon = before.life.started_ms == drained.status.life.started_ms;
    let start = if same_daemon { before.counters.clone() } else { Snapshot::default() };
    drained.status.counters.since(&start)
}

/// Returns what kept the store from being used while the command ran, if anything did: it explains
/// some of the misses.
fn outage(before: &Status, after: &Status) -> Option<String> {
    let same_daemon = before.life.started_ms == after.life.started_ms;
    let began_ms = if same_daemon { before.life.uptime_ms } else { 0 };
    let health = after.sharing.health.as_ref()?;
    let is_new = health.last_error_age_ms? <= after.life.uptime_ms.saturating_sub(began_ms);
    health.last_error.clone().filter(|_| is_new)
}

/// Lists problems other than the store, and where to read more if there are any.
fn troubles(before: &Status, drained: &Drained) -> Vec<String> {
    let Status { local, log, cache_dir, .. } = &drained.status;
    let mut lines = Vec::new();
    if local.disk_full {
        let free = ByteSize(local.disk_free_bytes).human();
        lines.push(format!("warning: the disk of {cache_dir} is full ({free} free): {FULL}"));
    }
    let away = outage(before, &drained.status).is_some();
    if let Some(log) = log
        && (away || !drained.complete || local.disk_full)
    {
        lines.push(format!("hint: the log of the daemon is {log}"));
    }
    lines
}

/// The lines at the end. The figures are those of the mount, so they include what other commands
/// did there meanwhile.
fn summary(before: &Status, drained: &Drained) -> [String; 4] {
    let mut sent = "; ".to_owned();
    if drained.status.store.address.is_none() || drained.status.writes == Writes::Private {
        sent.push_str("kept on this node");
    } else if drained.complete {
        sent.extend(["drained in ", &time(drained.elapsed_ms)]);
        if let Some(why) = outage(before, &drained.status) {
            sent.extend(["; the store was down meanwhile: ", &why]);
        }
    } else {
        let why = drained.trouble.as_deref();
        let late = || format!("that takes longer than {}", time(drained.elapsed_ms));
        sent.extend([&left(&drained.left), "; ", &why.map_or_else(late, ToOwned::to_owned)]);
        sent.push_str("; it is kept here, and sent once the mount and the store are back");
    }
    let growth = ClientFigures::growth(&drained.status.clients, &before.clients);
    figures::lines(&growth, &sent).map(|line| format!("hearthfs: {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::HealthReport;

    fn status(started_ms: u64, local: u64) -> Status {
        let figures = ClientFigures { local, compiled: 1, ..ClientFigures::default() };
        let clients = Figures::from([("jax".to_owned(), figures)]);
        let mut status = Status { clients, ..Status::default() };
        status.store.address = Some("s3://bucket".to_owned());
        status.life.started_ms = started_ms;
        status
    }

    /// The line of the summary about the upload of what was published.
    fn sent(before: &Status, drained: &Drained) -> String {
        summary(before, drained)[2].clone()
    }

    fn drained(status: Status) -> Drained {
        let left = Backlog::default();
        Drained { complete: true, left, elapsed_ms: 420, trouble: None, status }
    }

    #[test]
    fn the_summary_is_the_difference() {
        let lines = summary(&status(1, 10), &drained(status(1, 13)));
        let says = [
            "hearthfs: 3 entries served locally",
            "hearthfs: 0 entries fetched from other nodes",
            "hearthfs: 0 entries compiled here and published; drained in 0.4 s",
            "hearthfs: 0.0 s saved (an estimate)",
        ];
        assert_eq!(lines, says);
        let restarted = summary(&status(1, 10), &drained(status(2, 13)));
        assert_eq!(restarted, says, "the figures survive a restart");
        let mut late = drained(status(1, 10));
        late.complete = false;
        late.left = Backlog { records: 2, bytes: 3 << 20, oldest_ms: 0 };
        let line = sent(&status(1, 10), &late);
        let says =
            "2 changes (3.0 MiB) not yet remote; that takes longer than 0.4 s; it is kept here";
        assert!(line.contains(says), "{line}");
        late.trouble = Some("status 403".to_owned());
        let line = sent(&status(1, 10), &late);
        assert!(line.contains("not yet remote; status 403; it is kept here"), "{line}");
        assert!(!line.contains("drained"), "{line}");
        let mut after = drained(status(1, 10));
        (after.status.life.uptime_ms, after.status.sharing.health) =
            (9_000, Some(HealthReport::default()));
        for (age_ms, said) in [(4_000, true), (5_001, false)] {
            let error = Some("status 503".to_owned());
            let last_error_age_ms = Some(age_ms);
            after.status.sharing.health = Some(HealthReport {
                up: true,
                last_error: error,
                last_error_age_ms,
                ..HealthReport::default()
            });
            let mut before = status(1, 10);
            before.life.uptime_ms = 4_000;
            let line = sent(&before, &after);
            let told = line.ends_with("drained in 0.4 s; the store was down meanwhile: status 503");
            assert_eq!(told, said, "{line}");
        }
        let mut full = drained(status(1, 10));
        full.status.log = Some("/l".to_owned());
        assert!(troubles(&status(1, 10), &full).is_empty());
        full.complete = false;
        assert_eq!(troubles(&status(1, 10), &full), ["hint: the log of the daemon is /l"]);
        (full.complete, full.status.local.disk_full) = (true, true);
        let lines = troubles(&status(1, 10), &full);
        assert!(lines.len() == 2 && lines[0].contains("is full (0 B free)"), "{lines:?}");
        let mut local = drained(status(1, 10));
        local.status.store.address = None;
        assert!(sent(&status(1, 10), &local).ends_with("kept on this node"));
        let mut private = drained(status(1, 13));
        private.status.writes = Writes::Private;
        assert!(sent(&status(1, 10), &private).ends_with("kept on this node"));
    }

    #[test]
    fn another_mount_than_the_one_asked_for_is_refused() {
        let load = |variables: &[(&str, &str)]| {
            let around = config::around(1000, variables);
            config::load(&config::Flags::default(), &around, None).expect("good")
        };
        let there = status(1, 0);
        assert_eq!(same_mount(&there, &load(&[])), Ok(()));
        assert_eq!(same_mount(&there, &load(&[("HEARTHFS_REMOTE", "s3://bucket/")])), Ok(()));
        let other = same_mount(&there, &load(&[("HEARTHFS_REMOTE", "s3://elsewhere")]));
        assert!(other.expect_err("refused").text().contains("s3://bucket, not s3://elsewhere"));
        assert!(same_mount(&there, &load(&[("HEARTHFS_CACHE_DIR", "/c")])).is_err());
    }
}
