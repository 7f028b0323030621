//! `hearthfs status`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Args;

use super::escape::{one_line, printed};
use super::failure::{Failure, Outcome};
use super::figures;
use super::json::json_pretty;
use super::output::{count, data, note, time};
use super::point::{self, State};
use super::{unmount, wait};
use crate::config::{ByteSize, Surroundings, Writes};
use crate::control::{
    self, BacklogReasons, Client, FollowerReport, HealthReport, Mounted, Mounts, Phase,
    RulesReport, SetAsideReport, SlowedReport, Status,
};

/// The table shows the lag from this value on.
const LAG_TOLD_MS: u64 = 10_000;

/// The meaning of a full disk.
pub(super) const FULL: &str =
    "entries of other nodes are misses, and writers get ENOSPC once no space is left";

/// Options of `hearthfs status`.
#[derive(Args, Clone, Debug)]
pub(super) struct StatusCommand {
    /// The mount point, or any path on the mount; without it, all mounts of this user
    dir: Option<PathBuf>,

    /// Print JSON: one object for a DIR, otherwise a list
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(command: &StatusCommand) -> Outcome<()> {
    let around = Surroundings::of_process();
    if let Some(dir) = &command.dir {
        let point = point::absolute(&around, dir);
        if let Some(point) = wait(of_another(&around, &point))? {
            return of_other_user(&around, &point, command.json);
        }
        let (_, status) = wait(find(&around, &point))?;
        return data(&if command.json { json_pretty(&status)? } else { table(&status) });
    }
    let (all, troubles) = wait(async { Ok(control::list(&around).await) })?;
    for error in &troubles {
        note(&format!("warning: {}", error.chain()));
    }
    if command.json {
        return data(&json_pretty(&all)?);
    }
    let table_of_mounts = Mounts::read()?;
    let visible = |m: &&Mounted| around.uid == 0 || m.owner == Some(around.uid);
    for stray in table_of_mounts.ours().into_iter().filter(visible) {
        let known = |status: &Status| Path::new(&status.mount_point) == stray.point;
        if !all.iter().any(known) {
            note(&format!(
                "{} is mounted too, but its daemon does not answer here",
                stray.point.display()
            ));
        }
    }
    if all.is_empty() {
        note("nothing is mounted");
    }
    let tables: Vec<_> = all.iter().map(table).collect();
    data(&tables.join("\n"))
}

/// Returns the mount point of `path` (resolved) if the mount belongs to another user, who alone may
/// see more than the figures.
async fn of_another(around: &Surroundings, path: &Path) -> Outcome<Option<PathBuf>> {
    let mounts = Mounts::read()?;
    let Some(mounted) = mounts.holding(path) else { return Ok(None) };
    let foreign = matches!(point::inspect(around, &mounted.point).await?, State::Foreign);
    Ok(foreign.then(|| mounted.point.clone()))
}

/// What every user of a mount may know about it.
#[derive(serde::Serialize)]
struct StatusJson<'a> {
    mount_point: std::borrow::Cow<'a, str>,
    clients: crate::metrics::Figures,
}

/// Prints what any user of a mount may know.
fn of_other_user(around: &Surroundings, point: &Path, as_json: bool) -> Outcome<()> {
    let told = figures::through_mount(point).map_err(|failure| {
        note(failure.text().trim_end());
        unmount::foreign(around, point)
    })?;
    if as_json {
        return data(&json_pretty(&StatusJson {
            mount_point: point.to_string_lossy(),
            clients: told,
        })?);
    }
    note(
        "this mount belongs to another user: only its figures are shown; that user and root can see more",
    );
    let mut text = format!("{}\n", printed(point.as_os_str().as_bytes()));
    for line in figures::lines(&told, "") {
        writeln!(text, "  worth     {line}").ok();
    }
    data(&text)
}

/// Connects to the daemon of the mount that holds `path` (resolved).
pub(super) async fn find(around: &Surroundings, path: &Path) -> Outcome<(Client, Status)> {
    let mounts = Mounts::read()?;
    let mounted = mounts.holding(path).ok_or_else(|| unmount::not_mounted(path))?;
    let point = &mounted.point;
    match point::inspect(around, point).await? {
        State::Live(found) => Ok(*found),
        State::Foreign => Err(unmount::foreign(around, point)),
        State::Stale { .. } => {
            Err(Failure::not_mounted(format!("the daemon of {} is dead", point.display()))
                .hint("mount again: pending changes are kept in the cache directory"))
        }
        State::Free => Err(unmount::not_mounted(point)),
    }
}

/// Writes a status for people.
fn table(status: &Status) -> String {
    let phase = match status.life.phase {
        Phase::Starting => "starting",
        Phase::Serving => "serving",
        Phase::Ending => "draining before it ends",
        Phase::Unknown => "in a state that this version does not know",
    };
    let mut text = format!("{}\n", printed(status.mount_point.as_bytes()));
    // Writing to a string cannot fail.
    let mut row = |name: &str, value: String| {
        writeln!(text, "  {name:<9} {}", one_line(&value)).ok();
    };
    let uptime = time(status.life.uptime_ms);
    row(
        "daemon",
        format!(
            "{phase} for {uptime}, version {}, pid {}",
            status.daemon.version, status.daemon.pid
        ),
    );
    row("remote", remote(status));
    if let Some(HealthReport { up: true, since_ms, last_error: Some(why), .. }) =
        &status.sharing.health
    {
        row("outage", format!("ended {} ago: {why}", time(*since_ms)));
    }
    if let Some(behind) = status.sharing.follower.as_ref().and_then(behind) {
        row("behind", behind);
    }
    // If all have the same version, there is nothing to print.
    if status.sharing.versions.keys().any(|version| *version != status.daemon.version) {
        row("versions", format!("other nodes: {}", numbers(&status.sharing.versions)));
    }
    if let Some(store) = &status.store.identity {
        row("store", store.clone());
    }
    if let Some(RulesReport { state, detail }) = &status.sharing.rules {
        let detail = detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
        row("rules", format!("{state}{detail}"));
    }
    row("cache", cache(status));
    if status.local.disk_full {
        let free = ByteSize(status.local.disk_free_bytes).human();
        row("disk", format!("FULL: {free} free; {FULL}"));
    }
    row("backlog", backlog(status));
    if let Some(SlowedReport { writers, since_ms, why }) = &status.unsent.slowed {
        let waiting = count(*writers, "waits", "wait");
        row("writers", format!("SLOWED for {}, {waiting}: {why}", time(*since_ms)));
    }
    if let Some(SetAsideReport { contents, bytes, why }) = &status.unsent.set_aside {
        let what = count(*contents, "content", "contents");
        row("refused", format!("{what} ({}), only here: {why}", ByteSize(*bytes).human()));
    }
    if status.unsent.incomplete > 0 {
        row(
            "kept",
            format!(
                "{}, only here",
                count(status.unsent.incomplete, "incomplete file", "incomplete files")
            ),
        );
    }
    let mut io = status.io.mode.clone();
    if let Some(reason) = &status.io.reason {
        io = format!("{io} ({reason})");
    }
    io.push_str(match status.writes {
        Writes::Shared => "",
        Writes::Private => ", private",
        Writes::None => ", read-only",
    });
    if let Some(reason) = &status.io.locks_by_inode {
        write!(io, ", flock by inode ({reason})").ok();
    }
    row("i/o", io);
    if let Some(note) = &status.pid_namespace {
        row("note", note.clone());
    }
    counted(status, &mut row);
    text
}

/// Writes what the cache saved until now, and the counts since the mount began.
fn counted(status: &Status, row: &mut impl FnMut(&str, String)) {
    if let Some(log) = &status.log {
        row("log", log.clone());
    }
    let c = &status.counters;
    let human = |bytes| ByteSize(bytes).human();
    for line in figures::lines(&status.clients, "") {
        row("worth", line);
    }
    row("entries", status.entries.to_string());
    row(
        "lookups",
        format!("{}, {}", count(c.hits, "hit", "hits"), count(c.misses, "miss", "misses")),
    );
    row(
        "fetched",
        format!("{} ({}), {} failed", c.fetched, human(c.fetched_bytes), c.fetch_failures),
    );
    row(
        "published",
        format!(
            "{} ({}), {} of known content, {} dropped",
            c.published,
            human(c.published_bytes),
            c.deduplicated,
            c.dropped_generations
        ),
    );
    row("uploaded", format!("{} ({})", c.uploaded, human(c.uploaded_bytes)));
    row("evicted", format!("{} ({})", c.evicted, human(c.evicted_bytes)));
    if c.slowed > 0 {
        row("slowed", format!("{}, {} refused", count(c.slowed, "writer", "writers"), c.refused));
    }
    if c.without_room > 0 {
        let free = human(status.local.disk_free_bytes);
        row("no room", format!("{} of other nodes; the disk has {free} free", c.without_room));
    }
    if c.damaged > 0 {
        row("damaged", format!("{}; see the log", c.damaged));
    }
    row("requests", numbers(&c.requests));
    if !c.throttled.is_empty() {
        let (waited, answers) = (time(c.throttled_wait_ms), numbers(&c.throttled));
        let now = if status.sharing.health.as_ref().is_some_and(|health| health.throttled) {
            "; NOW"
        } else {
            ""
        };
        row("throttled", format!("{answers}; waited {waited}{now}"));
    }
    row("calls", numbers(&c.operations));
}

fn remote(status: &Status) -> String {
    let Some(url) = &status.store.address else { return "none: a local cache only".to_owned() };
    match &status.sharing.health {
        None => url.clone(),
        Some(HealthReport { up: true, since_ms, .. }) => {
            format!("{url}, up for {}", time(*since_ms))
        }
        Some(HealthReport { up: false, since_ms, last_error, .. }) => {
            let why = last_error.as_deref().unwrap_or("no answer");
            format!("{url}, DOWN for {}: {why}", time(*since_ms))
        }
    }
}

/// Describes how far this node is behind the others, if it is.
fn behind(follower: &FollowerReport) -> Option<String> {
    let mut parts = Vec::new();
    if follower.list_failed {
        let last =
            follower.list_age_ms.map_or("never".to_owned(), |ms| format!("{} ago", time(ms)));
        parts.push(format!("the log was last read {last}, and cannot be read now"));
    }
    if follower.unapplied_commits > 0 {
        parts.push(format!(
            "{} of other nodes not applied",
            count(follower.unapplied_commits, "commit", "commits")
        ));
    }
    if let Some(ms) = follower.lag_worst_ms.filter(|ms| *ms >= LAG_TOLD_MS) {
        parts.push(format!("changes came up to {} late", time(ms)));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

fn cache(status: &Status) -> String {
    let local = &status.local;
    let mut text = format!(
        "{}, {} of {} in {}",
        status.cache_dir,
        ByteSize(local.bytes).human(),
        ByteSize(local.limit_bytes).human(),
        count(local.blobs, "blob", "blobs")
    );
    if local.unsaved_bytes > 0 {
        write!(text, ", {} only here", ByteSize(local.unsaved_bytes).human()).ok();
    }
    text
}

fn backlog(status: &Status) -> String {
    let backlog = &status.unsent.backlog;
    match backlog.records {
        _ if status.writes == Writes::Private => {
            "nothing is sent: writes stay on this node".to_owned()
        }
        0 => "all is remote".to_owned(),
        _ if status.store.address.is_none() => "kept locally".to_owned(),
        records => format!(
            "{}, {}, oldest {}{}",
            count(records, "change", "changes"),
            ByteSize(backlog.bytes).human(),
            time(backlog.oldest_ms),
            reasons(&status.unsent.reasons)
        ),
    }
}

/// Describes why changes are not yet uploaded.
fn reasons(reasons: &BacklogReasons) -> String {
    let BacklogReasons { queued, held, uploading, throttled, store_down, refused, read_only } =
        *reasons;
    let all = [
        (queued, "queued"),
        (held, "held"),
        (uploading, "being uploaded"),
        (throttled, "throttled"),
        (store_down, "waiting for the store"),
        (refused, "refused"),
        (read_only, "kept because the mount is read-only"),
    ];
    let parts: Vec<_> = all
        .iter()
        .filter(|(records, _)| *records > 0)
        .map(|(records, why)| format!("{records} {why}"))
        .collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(", ")) }
}

fn numbers(all: &BTreeMap<String, u64>) -> String {
    if all.is_empty() {
        return "none".to_owned();
    }
    let parts: Vec<_> = all.iter().map(|(name, number)| format!("{name} {number}")).collect();
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Backlog, IoReport};

    #[test]
    fn a_table_says_what_matters() {
        let mut status = Status {
            mount_point: "/mnt/cache".into(),
            io: IoReport {
                mode: "ordinary".into(),
                reason: Some("not root".into()),
                locks_by_inode: Some("no such kernel".into()),
                slow_wake: None,
            },
            ..Status::default()
        };
        status.store.address = Some("s3://bucket".into());
        status.store.identity = Some("9c41d2a07be83f15".into());
        status.sharing.health = Some(HealthReport {
            since_ms: 61_000,
            last_error: Some("503".into()),
            ..HealthReport::default()
        });
        status.sharing.rules =
            Some(RulesReport { state: "missing".into(), detail: Some("no rule".into()) });
        status.unsent.backlog = Backlog { records: 1, bytes: 2048, oldest_ms: 400 };
        status.unsent.reasons.store_down = 1;
        let text = table(&status);
        for part in [
            "/mnt/cache\n",
            "s3://bucket, DOWN for 1m1s: 503",
            "store     9c41d2a07be83f15\n",
            "1 change, 2.0 KiB, oldest 0.4 s: 1 waiting for the store\n",
            "ordinary (not root), flock by inode (no such kernel)",
            "rules     missing: no rule\n",
            "0 hits, 0 misses",
            "worth     0 entries served locally\n",
        ] {
            assert!(text.contains(part), "`{part}` is not in:\n{text}");
        }
        assert!(!text.contains("behind"));
        status.sharing.follower = Some(FollowerReport {
            list_age_ms: Some(61_000),
            list_failed: true,
            lag_worst_ms: Some(12_000),
            unapplied_commits: 1,
            ..FollowerReport::default()
        });
        let says = "behind    the log was last read 1m1s ago, and cannot be read now; 1 commit of other nodes not applied; \
                    changes came up to 12 s late\n";
        assert!(table(&status).contains(says), "{}", table(&status));
        assert!(!text.contains("damaged") && !text.contains("incomplete"));
        assert!(!text.contains("outage"), "the outage is in progress:\n{text}");
        if let Some(health) = &mut status.sharing.health {
            health.up = true;
        }
        assert!(table(&status).contains("outage    ended 1m1s ago: 503\n"));
        assert!(!table(&status).contains("throttled"));
        status.counters.throttled = [("429".to_owned(), 1), ("503".to_owned(), 12)].into();
        status.counters.throttled_wait_ms = 4_200;
        assert!(table(&status).contains("throttled 429 1, 503 12; waited 4.2 s\n"));
        if let Some(health) = &mut status.sharing.health {
            health.throttled = true;
        }
        assert!(table(&status).contains("waited 4.2 s; NOW\n"));
        assert!(!table(&status).contains("FULL") && !table(&status).contains("\n  log "));
        (status.local.disk_full, status.log) = (true, Some("/var/log/one".into()));
        assert!(table(&status).contains("disk      FULL: 0 B free; entries of other"));
        assert!(table(&status).contains("log       /var/log/one\n"));
        status.sharing.versions = [(status.daemon.version.clone(), 3)].into();
        assert!(!table(&status).contains("versions"));
        status.sharing.versions.insert("0.9.0".to_owned(), 1);
        assert!(table(&status).contains("0.9.0 1\n"), "{}", table(&status));
        status.unsent.incomplete = 2;
        assert!(table(&status).contains("kept      2 incomplete files, only here"));
        status.counters.damaged = 2;
        assert!(table(&status).contains("damaged   2"));
        (status.counters.slowed, status.counters.without_room) = (3, 4);
        let why = "60.0 MiB of 64.0 MiB are not yet remote".to_owned();
        status.unsent.slowed = Some(SlowedReport { writers: 2, since_ms: 4_000, why });
        let text = table(&status);
        for part in [
            "writers   SLOWED for 4.0 s, 2 wait: 60.0 MiB of",
            "3 writers, 0 refused",
            "4 of other",
        ] {
            assert!(text.contains(part), "`{part}` is not in:\n{text}");
        }
    }
}
