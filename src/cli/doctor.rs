//! `hearthfs doctor`.
//!
//! Owns the order of the checks and how they are printed. Must never change what it checks, except for
//! the one object with which the rights on a store are tried, and never print a secret or a raw name.

mod clients;
mod finding;
mod machine;
mod mount_point;
mod program;
mod store;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

pub(super) use finding::Finding;
use finding::{Theme, Verdict};
pub(super) use store::Asking;

use super::escape::printed;
use super::failure::{Failure, Outcome};
use super::json::json_pretty;
use super::options::SettingFlags;
use super::output::{count, data, note};
use super::point::{self, State};
use super::wait;
use crate::config::{self, ByteSize, Flags, Settings, Surroundings};
use crate::control::{Mounts, Status};

/// The version of what `--json` prints.
const FORM: u32 = 1;

/// Options of `hearthfs doctor`.
#[derive(Args, Clone, Debug)]
pub(super) struct Doctor {
    /// The mount point, or a path on a mount [default: mount.directory of the configuration, or the only mount]
    dir: Option<PathBuf>,

    /// Print JSON: one object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    options: SettingFlags,
}

/// What `--json` prints.
#[derive(Serialize)]
struct DoctorJson<'a> {
    version: u32,
    hearthfs: &'static str,
    mount_point: Option<String>,
    remote: Option<String>,
    problems: usize,
    warnings: usize,
    checks: &'a [Finding],
}

/// The subject of the checks.
struct Subject {
    settings: Option<Settings>,
    point: Option<PathBuf>,
    /// What is at the mount point, or why nothing can be mounted there.
    state: Option<Outcome<State>>,
    findings: Vec<Finding>,
}

/// Runs the command. Its exit status is 1 if there is a problem.
pub(super) fn run(command: &Doctor) -> Outcome<ExitCode> {
    let around = Surroundings::of_process();
    let subject = wait(subject(&around, command))?;
    let Subject { settings, point, state, mut findings } = subject;
    let status = match &state {
        Some(Ok(State::Live(found))) => Some(&found.1),
        _ => None,
    };
    // A user of another user's mount does not mount anything.
    findings.extend(match &state {
        Some(Ok(State::Foreign)) => machine::check_for_users(),
        _ => machine::check(&around, settings.as_ref(), status),
    });
    findings.extend(mount_point::check(
        &around,
        settings.as_ref(),
        point.as_deref(),
        state.as_ref(),
    ));
    match &settings {
        Some(settings) => {
            findings.extend(wait(async { Ok(store::check(settings).await) })?);
            let mounted = matches!(state, Some(Ok(State::Live(_) | State::Foreign)));
            findings.extend(clients::check(&around, settings, point.as_deref(), mounted));
        }
        None => {
            let why = "the configuration cannot be used";
            findings.push(Finding::skipped(Theme::Store, "store", why));
            findings.push(Finding::skipped(Theme::Clients, "clients", why));
        }
    }
    let problems = number(&findings, Verdict::Problem);
    if command.json {
        let remote = settings.as_ref().and_then(|settings| settings.remote.url.as_ref());
        let said = DoctorJson {
            version: FORM,
            hearthfs: env!("CARGO_PKG_VERSION"),
            mount_point: point.as_ref().map(|point| point.to_string_lossy().into_owned()),
            remote: remote.map(ToString::to_string),
            problems,
            warnings: number(&findings, Verdict::Warning),
            checks: &findings,
        };
        data(&json_pretty(&said)?)?;
    } else {
        data(&text(&findings))?;
    }
    Ok(ExitCode::from(u8::from(problems > 0)))
}

fn number(findings: &[Finding], verdict: Verdict) -> usize {
    findings.iter().filter(|finding| finding.result == verdict).count()
}

/// Determines what to check: the configuration, the mount point, and the daemon if one serves it.
async fn subject(around: &Surroundings, command: &Doctor) -> Outcome<Subject> {
    let mounts = Mounts::read()?;
    let typed = command.dir.as_ref().map(|dir| point::absolute(around, dir));
    let holding = |path: &Path| mounts.holding(path).map(|mounted| mounted.point.clone());
    let named = typed.map(|path| holding(&path).unwrap_or(path));
    let flags = command.options.flags();
    let mut findings = Vec::new();
    let mut settings = load(&flags, around, named.as_deref(), &mut findings);
    let configured = settings.as_ref().and_then(|settings| settings.mount.directory.clone());
    let point = named.or(configured).or_else(|| only_mount(around, &mounts));
    if settings.as_ref().is_some_and(|settings| settings.mount.directory.is_none())
        && let Some(point) = &point
    {
        // The default of the cache directory depends on the mount point.
        findings.clear();
        settings = load(&flags, around, Some(point), &mut findings);
    }
    let state = match &point {
        Some(point) => Some(point::inspect(around, point).await),
        None => None,
    };
    if let (Some(settings), Some(Ok(State::Live(found)))) = (&mut settings, &state) {
        findings.extend(go_by_mount(settings, &found.1));
    }
    Ok(Subject { settings, point, state, findings })
}

/// Returns the mount that the environment names, or the only one that exists.
fn only_mount(around: &Surroundings, mounts: &Mounts) -> Option<PathBuf> {
    if let Some(dir) = around.directory("HEARTHFS_MOUNT") {
        return Some(dir);
    }
    let ours = mounts.ours();
    match ours[..] {
        [one] => Some(one.point.clone()),
        _ => None,
    }
}

fn load(
    flags: &Flags,
    around: &Surroundings,
    point: Option<&Path>,
    findings: &mut Vec<Finding>,
) -> Option<Settings> {
    const NAME: &str = "configuration";
    let loaded = match config::load(flags, around, point) {
        Ok(loaded) => loaded,
        Err(refusal) => {
            let failure = Failure::from(refusal);
            findings.push(Finding::refused(Theme::Machine, NAME, &failure));
            return None;
        }
    };
    let of = match &loaded.file {
        Some(file) => format!("{} is in order", file.display()),
        None => "in order; there is no file".to_owned(),
    };
    findings.push(if loaded.warnings.is_empty() {
        Finding::ok(Theme::Machine, NAME, of)
    } else {
        let remedy = "`hearthfs config show` prints the values in effect and where they come from";
        Finding::warning(Theme::Machine, NAME, loaded.warnings.join("; "), remedy)
    });
    Some(loaded.settings)
}

/// Takes over the settings of an existing mount, which may have been started with others.
fn go_by_mount(settings: &mut Settings, status: &Status) -> Option<Finding> {
    let configured = settings.remote.url.as_ref().map(ToString::to_string);
    settings.remote.url = status.store.address.as_ref().and_then(|url| url.parse().ok());
    settings.local.cache_dir = PathBuf::from(&status.cache_dir);
    if status.local.limit_bytes > 0 {
        settings.local.cache_size = ByteSize(status.local.limit_bytes);
    }
    settings.mount.writes = status.writes;
    let (configured, used) = (configured?, status.store.address.as_deref().unwrap_or("none"));
    (configured != used).then(|| {
        Finding::warning(
            Theme::Mount,
            "remote of the mount",
            format!("the mount uses {used}, and the configuration says {configured}"),
            "mount again to use the configuration, or name the mount's own configuration with --config",
        )
    })
}

/// Writes the findings for people, theme by theme.
fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for theme in Theme::ALL {
        writeln!(text, "{}", theme.title()).ok();
        let of_theme = findings.iter().filter(|finding| finding.theme == theme);
        for finding in of_theme {
            let (name, found) =
                (printed(finding.name.as_bytes()), printed(finding.found.as_bytes()));
            writeln!(text, "  {:<8} {name:<20} {found}", finding.result.word()).ok();
            if let Some(remedy) = &finding.remedy {
                writeln!(text, "           remedy: {}", printed(remedy.as_bytes())).ok();
            }
        }
    }
    let of = |verdict| number(findings, verdict) as u64;
    writeln!(
        text,
        "{}, {}, {} ok, {} skipped",
        count(of(Verdict::Problem), "problem", "problems"),
        count(of(Verdict::Warning), "warning", "warnings"),
        of(Verdict::Ok),
        of(Verdict::Skipped)
    )
    .ok();
    text
}

/// Prints what is wrong with the store of the settings, and a remedy; returns whether anything is.
pub(super) async fn tell_store(settings: &Settings, asking: Asking) -> bool {
    let findings = store::look(settings, asking).await;
    let wrong: Vec<&Finding> =
        findings.iter().filter(|finding| finding.result == Verdict::Problem).collect();
    for finding in &wrong {
        let (name, found) = (printed(finding.name.as_bytes()), printed(finding.found.as_bytes()));
        note(&format!("problem: {name}: {found}"));
        if let Some(remedy) = &finding.remedy {
            note(&format!("hint: {}", printed(remedy.as_bytes())));
        }
    }
    !wrong.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Writes;

    #[test]
    fn findings_are_printed_escaped_and_counted() {
        let findings = [
            Finding::ok(Theme::Machine, "kernel", "Linux 6.18"),
            Finding::problem(Theme::Store, "put", "no \u{1b}[31mright\n", "ask for it"),
            Finding::warning(Theme::Clients, "client x", "far", "come near"),
            Finding::skipped(Theme::Mount, "mount point", "none is named"),
        ];
        let said = text(&findings);
        assert!(said.contains("  problem  put                  no \\x1b[31mright\\n\n"), "{said}");
        assert!(said.contains("           remedy: ask for it\n"), "{said}");
        assert!(said.ends_with("1 problem, 1 warning, 1 ok, 1 skipped\n"), "{said}");
        assert!(!said.contains('\u{1b}'));
        let json = serde_json::to_value(&findings[1]).expect("JSON");
        assert_eq!(json["theme"], "store");
        assert_eq!(json["result"], "problem");
    }

    #[test]
    fn an_existing_mount_reports_its_settings() {
        let mut settings = Settings::default();
        settings.remote.url = "file:///configured".parse().ok();
        let mut status =
            Status { cache_dir: "/c".into(), writes: Writes::Private, ..Status::default() };
        status.store.address = Some("file:///used".into());
        let found = go_by_mount(&mut settings, &status).expect("the settings differ");
        assert!(found.found.contains("/used") && found.found.contains("/configured"));
        assert_eq!(settings.remote.url.map(|url| url.to_string()).as_deref(), Some("file:///used"));
        assert_eq!(settings.mount.writes, Writes::Private);
        let mut unset = Settings::default();
        assert_eq!(go_by_mount(&mut unset, &status), None);
    }
}
