//! The store: whether it can be reached, which rights we have, its clock, and the rules that delete.
//!
//! Owns what each obstacle means for a person. Must never make a store.

use std::time::Duration;

use super::finding::{Finding, Theme};
use crate::clock::{Clock, within};
use crate::config::{Settings, Writes, format_age};
use crate::daemon::{self, Access, Obstacle, RulesCheck, Step, StoreId, Trial};
use crate::error::{Error, Kind};

/// A larger difference of the clocks gets a warning.
const CLOCK_WARN_MS: u64 = 60_000;
/// Clouds refuse signatures if the clocks differ by 15 minutes.
const CLOCK_BAD_MS: u64 = 10 * 60_000;
/// How long all requests to a store may take together.
const ALL_LIMIT: Duration = Duration::from_mins(1);

/// Which rights are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::cli) enum Asking {
    /// All of them; if the settings share writes with all nodes, an object is written and deleted again.
    Trying,
    /// Those that can be checked without writing.
    Reading,
}

/// Checks the store that settings name.
pub(super) async fn check(settings: &Settings) -> Vec<Finding> {
    look(settings, Asking::Trying).await
}

/// Checks the store with these rights.
pub(super) async fn look(settings: &Settings, asking: Asking) -> Vec<Finding> {
    let Some(url) = &settings.remote.url else {
        let why = "no remote.url: a cache on this node only";
        return vec![Finding::skipped(Theme::Store, "store", why)];
    };
    let store = match daemon::store(settings, &Clock::system()) {
        Ok(store) => store.read_only(),
        Err(error) => return vec![unusable(url, &error)],
    };
    let known = daemon::know_store(settings, &store);
    let asked = async {
        let write = settings.mount.writes == Writes::Shared && asking == Asking::Trying;
        let access = store.try_access(write).await;
        let mut all = reached(settings, known, &access);
        if all.iter().any(|finding| finding.name == "reachable")
            && access.list.obstacle().is_none_or(of_one)
        {
            all.extend(rights(settings, asking, &access));
            all.push(clock(settings, &access));
            all.push(identity(settings, known, store.check().await));
            all.push(expiry(settings, store.declared_expiry()));
            all.extend(rules(settings).await);
        }
        all
    };
    within(ALL_LIMIT, asked).await.unwrap_or_else(|| {
        let found = format!("{url} has not answered all requests within {ALL_LIMIT:?}");
        vec![Finding::problem(Theme::Store, "reachable", found, "check endpoint and network")]
    })
}

fn of_one(trial: &Trial) -> bool {
    matches!(trial.obstacle, Obstacle::Right | Obstacle::Other)
}

/// Explains why not even a client can be made.
fn unusable(url: &crate::config::RemoteUrl, error: &Error) -> Finding {
    let name = if error.kind() == Kind::Denied { "credentials" } else { "address" };
    let found = format!("{url}: {}", error.chain());
    Finding::problem(Theme::Store, name, found, "correct what the message names, and try again")
}

/// Reports the first request: whether anything answers, with which credentials, and in which region.
fn reached(settings: &Settings, known: Option<StoreId>, access: &Access) -> Vec<Finding> {
    let url = settings.remote.url.as_ref().map(ToString::to_string).unwrap_or_default();
    let trial = access.list.obstacle();
    let text = trial.map(|trial| trial.text.clone()).unwrap_or_default();
    let problem = |name: &str, remedy: &str| {
        Finding::problem(Theme::Store, name, format!("{url}: {text}"), remedy)
    };
    let is_dir = settings.remote.url.as_ref().is_some_and(|url| url.directory().is_some());
    let region = region(settings, access);
    match trial.map(|trial| trial.obstacle) {
        Some(Obstacle::Silent) if is_dir => {
            return vec![problem(
                "reachable",
                "check that the file system is mounted and its server is up",
            )];
        }
        Some(Obstacle::Silent) => {
            return vec![problem(
                "reachable",
                "check the endpoint, the network, and any proxy or firewall between",
            )];
        }
        Some(Obstacle::Missing) if is_dir => {
            let place = "correct the address, or mount the shared file system there";
            let remedy = match known {
                None => format!("{place}, or make it: `hearthfs init {url}`"),
                Some(known) => format!(
                    "{place}; only if the store {known}, which this node knows, is given up: \
                     `hearthfs init {url} --replaces {known}`"
                ),
            };
            return vec![problem("reachable", &remedy)];
        }
        Some(Obstacle::Missing) => {
            return vec![problem("reachable", "make the bucket, or correct its name")];
        }
        Some(Obstacle::Clock) => {
            return vec![problem("clock", "set the clock of this machine, and keep it set (NTP)")];
        }
        Some(Obstacle::Credentials) => {
            let mut all = vec![problem("credentials", daemon::credentials_remedy(settings))];
            all.extend(region);
            return all;
        }
        Some(Obstacle::Place) => {
            let mut all =
                vec![problem("reachable", "check the endpoint, and remote.region if it has one")];
            all.extend(region);
            return all;
        }
        Some(Obstacle::Right | Obstacle::Other) | None => {}
    }
    let mut all = vec![Finding::ok(Theme::Store, "reachable", format!("{url} answers"))];
    if let Some(source) = daemon::credentials_source(settings) {
        let found = format!("{source}; a daemon has its own environment");
        all.push(Finding::ok(Theme::Store, "credentials", found));
    }
    all.extend(region);
    all
}

fn region(settings: &Settings, access: &Access) -> Option<Finding> {
    const NAME: &str = "region";
    let asked = daemon::region(settings)?;
    Some(match &access.region {
        Some(told) if *told != asked => Finding::problem(
            Theme::Store,
            NAME,
            format!("the bucket is in {told}, but is requested in {asked}"),
            format!("set remote.region = \"{told}\""),
        ),
        Some(told) => Finding::ok(Theme::Store, NAME, format!("{told}, as the store says")),
        None => Finding::ok(Theme::Store, NAME, format!("{asked}; the store reports none")),
    })
}

/// Reports for each right whether it was granted.
fn rights(settings: &Settings, asking: Asking, access: &Access) -> Vec<Finding> {
    let writes = settings.mount.writes;
    let without = match (writes, asking) {
        (Writes::Shared, Asking::Trying) => "not tried".to_owned(),
        (Writes::Shared, Asking::Reading) => "not tried: `hearthfs doctor` does".to_owned(),
        _ => format!("not needed: mount.writes is \"{}\"", writes.word()),
    };
    let probe = format!(
        "object {}, {}",
        access.probe,
        if access.left { "which is not deleted" } else { "deleted again" }
    );
    let steps = [
        ("list", &access.list, "the log was listed".to_owned()),
        ("put", &access.put, format!("written: {probe}")),
        (
            "get",
            &access.get,
            if matches!(access.put, Step::Done) {
                "what was written was read".to_owned()
            } else {
                "hearthfs.json was requested".to_owned()
            },
        ),
        ("delete", &access.delete, "the written object was deleted".to_owned()),
    ];
    let finding = |(name, step, done): (&str, &Step, String)| match step {
        Step::Done => Finding::ok(Theme::Store, name, done),
        Step::Untried => Finding::skipped(Theme::Store, name, without.clone()),
        // hearthfs works without this right: objects that are not deleted expire.
        Step::Failed(trial) if name == "delete" && trial.obstacle == Obstacle::Right => {
            Finding::warning(Theme::Store, name, trial.text.clone(), remedy_of(settings, name))
        }
        Step::Failed(trial) => {
            Finding::problem(Theme::Store, name, trial.text.clone(), remedy_of(settings, name))
        }
    };
    steps.into_iter().map(finding).collect()
}

fn remedy_of(settings: &Settings, right: &str) -> String {
    use crate::config::RemoteUrl as Url;
    let (Some(url), reads) = (&settings.remote.url, matches!(right, "list" | "get")) else {
        return String::new();
    };
    match (url, right) {
        (Url::S3 { bucket, .. }, "list") => {
            format!(
                "allow s3:ListBucket on arn:aws:s3:::{bucket}; docs/operations.md has the whole policy"
            )
        }
        (Url::S3 { bucket, .. }, right) => {
            let action = match right {
                "put" => "PutObject",
                "get" => "GetObject",
                _ => "DeleteObject",
            };
            format!(
                "allow s3:{action} on arn:aws:s3:::{bucket}/...; docs/operations.md has the whole policy"
            )
        }
        (Url::Gcs { .. }, _) if reads => {
            "grant roles/storage.objectViewer on the bucket".to_owned()
        }
        (Url::Gcs { .. }, _) => {
            "grant roles/storage.objectUser on the bucket, or set mount.writes = \"private\""
                .to_owned()
        }
        (Url::Azure { .. }, _) if reads => {
            "grant the role Storage Blob Data Reader on the container".to_owned()
        }
        (Url::Azure { .. }, _) => {
            "grant the role Storage Blob Data Contributor, or set mount.writes = \"private\""
                .to_owned()
        }
        (Url::File(dir), _) => {
            format!("give the user of the daemon the right to read and write in {}", dir.display())
        }
    }
}

fn clock(settings: &Settings, access: &Access) -> Finding {
    const NAME: &str = "clock";
    let Some(ahead_ms) = access.ahead_ms else {
        let why = "the store has not sent its time";
        return Finding::skipped(Theme::Store, NAME, why);
    };
    let off_ms = ahead_ms.unsigned_abs();
    let word = if ahead_ms > 0 { "behind" } else { "ahead of" };
    let said = format!("this machine is {} {word} the store", crate::cli::output::time(off_ms));
    let remedy = "set the clock of this machine, and keep it set (NTP)";
    let signed = settings.remote.url.as_ref().is_some_and(|url| url.directory().is_none());
    match off_ms {
        0..CLOCK_WARN_MS => {
            Finding::ok(Theme::Store, NAME, "this machine and the store agree within a minute")
        }
        CLOCK_BAD_MS.. if signed => {
            let found = format!("{said}; at 15 minutes a cloud refuses every request");
            Finding::problem(Theme::Store, NAME, found, remedy)
        }
        _ => Finding::warning(Theme::Store, NAME, format!("{said}, whose time counts"), remedy),
    }
}

/// Reports whether a hearthfs store is there. An empty place becomes one at the first mount that may write.
fn identity(settings: &Settings, known: Option<StoreId>, checked: Result<(), Error>) -> Finding {
    const NAME: &str = "store";
    let url = settings.remote.url.as_ref().map(ToString::to_string).unwrap_or_default();
    match checked {
        Ok(()) => Finding::ok(Theme::Store, NAME, "hearthfs.json is there and can be used"),
        // The message says what to do: it depends on where the node knows its store.
        Err(error)
            if known.is_some() && matches!(error.kind(), Kind::NotFound | Kind::Unavailable) =>
        {
            Finding::problem(
                Theme::Store,
                NAME,
                error.chain(),
                "see docs/operations.md, \"The store is not the one that this node knows\"",
            )
        }
        Err(error) if error.kind() == Kind::NotFound && settings.mount.writes == Writes::Shared => {
            Finding::ok(
                Theme::Store,
                NAME,
                format!("no store yet: the first mount makes one, or `hearthfs init {url}`"),
            )
        }
        Err(error) if error.kind() == Kind::NotFound => Finding::problem(
            Theme::Store,
            NAME,
            "there is no store, and this mount does not make one",
            format!("correct the address, or make the store with `hearthfs init {url}`"),
        ),
        Err(error) => Finding::problem(
            Theme::Store,
            NAME,
            error.chain(),
            "see docs/operations.md, \"Recover\"",
        ),
    }
}

fn expiry(settings: &Settings, declared: daemon::Declared) -> Finding {
    const NAME: &str = "expiry";
    let own = settings.expiry.age;
    let url = settings.remote.url.as_ref();
    match url.and_then(|url| declared.disagreement(own, url)) {
        None => Finding::ok(Theme::Store, NAME, format!("expiry.age is {}", format_age(own))),
        Some(text) => Finding::warning(
            Theme::Store,
            NAME,
            text,
            "set expiry.age to what the store declares, or declare the other expiry",
        ),
    }
}

/// Compares the rules of the bucket with the expiry.
async fn rules(settings: &Settings) -> Option<Finding> {
    const NAME: &str = "lifecycle rule";
    let lifecycle = match daemon::lifecycle(settings) {
        Ok(lifecycle) => lifecycle,
        Err(error) => return Some(Finding::skipped(Theme::Store, NAME, error.chain())),
    };
    Some(match lifecycle.verify().await {
        Ok(report) => of_report(settings, &report),
        Err(error) => Finding::warning(
            Theme::Store,
            NAME,
            format!("the rules of the bucket cannot be read: {}", error.chain()),
            "grant the right to read them (docs/operations.md names it), or let an operator run `hearthfs lifecycle verify`",
        ),
    })
}

fn of_report(settings: &Settings, report: &RulesCheck) -> Finding {
    const NAME: &str = "lifecycle rule";
    let (url, age) = (&report.url, &report.expiry);
    if let Some(why) = &report.unsupported {
        return Finding::skipped(Theme::Store, NAME, why.clone());
    }
    let apply = format!("run `hearthfs lifecycle apply {url} --expiry {age}`");
    if !report.contradictions.is_empty() {
        let remedy = "change that rule, or the expiry";
        return Finding::problem(Theme::Store, NAME, report.contradictions.join("; "), remedy);
    }
    match report.faults() {
        faults if faults.is_empty() => {
            Finding::ok(Theme::Store, NAME, format!("the bucket deletes by an expiry of {age}"))
        }
        // If nothing expires, a rule only tidies up.
        faults if settings.expiry.age.is_none() => {
            Finding::ok(Theme::Store, NAME, faults.join("; "))
        }
        faults => Finding::warning(Theme::Store, NAME, faults.join("; "), apply),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::*;

    fn settings(url: &str) -> Settings {
        let mut settings = Settings::default();
        settings.remote.url = Some(url.parse().expect("an address"));
        settings.remote.deadline = Duration::from_secs(2);
        settings
    }

    fn failed(obstacle: Obstacle) -> Step {
        Step::Failed(Trial { obstacle, text: "said so".into() })
    }

    fn results(all: &[Finding]) -> Vec<(&str, Verdict)> {
        all.iter().map(|finding| (finding.name.as_str(), finding.result)).collect()
    }

    #[test]
    fn obstacles_by_what_a_person_can_do() {
        let settings = settings("s3://bucket/x");
        for (obstacle, name, remedy) in [
            (Obstacle::Silent, "reachable", "network"),
            (Obstacle::Missing, "reachable", "make the bucket"),
            (Obstacle::Clock, "clock", "NTP"),
            (Obstacle::Credentials, "credentials", "AWS_ACCESS_KEY_ID"),
            (Obstacle::Place, "reachable", "remote.region"),
        ] {
            let access = Access { list: failed(obstacle), ..Access::default() };
            let all = reached(&settings, None, &access);
            assert_eq!((all[0].name.as_str(), all[0].result), (name, Verdict::Problem));
            let told = all[0].remedy.clone().expect("a remedy");
            assert!(told.contains(remedy) && all[0].found.contains("said so"), "{told}");
        }
        let access = Access { list: failed(Obstacle::Right), ..Access::default() };
        assert_eq!(reached(&settings, None, &access)[0].result, Verdict::Ok);
    }

    #[test]
    fn rights_are_reported_one_by_one() {
        let mut settings = settings("s3://bucket/x");
        let access = Access {
            list: Step::Done,
            put: failed(Obstacle::Right),
            get: Step::Done,
            delete: failed(Obstacle::Right),
            ..Access::default()
        };
        let all = rights(&settings, Asking::Trying, &access);
        assert_eq!(
            results(&all),
            [
                ("list", Verdict::Ok),
                ("put", Verdict::Problem),
                ("get", Verdict::Ok),
                ("delete", Verdict::Warning)
            ]
        );
        assert!(
            all[1]
                .remedy
                .as_ref()
                .expect("a remedy")
                .contains("s3:PutObject on arn:aws:s3:::bucket")
        );
        settings.mount.writes = Writes::None;
        let access = Access { list: Step::Done, get: Step::Done, ..Access::default() };
        let all = rights(&settings, Asking::Trying, &access);
        assert_eq!((all[1].result, all[3].result), (Verdict::Skipped, Verdict::Skipped));
        assert!(all[1].found.contains("mount.writes is \"none\""));
    }

    #[test]
    fn clocks_and_regions() {
        let settings = settings("s3://bucket/x");
        for (ahead_ms, verdict, word) in [
            (0, Verdict::Ok, "agree"),
            (-59_999, Verdict::Ok, "agree"),
            (120_000, Verdict::Warning, "2m0s behind"),
            (-700_000, Verdict::Problem, "11m40s ahead of"),
        ] {
            let access = Access { ahead_ms: Some(ahead_ms), ..Access::default() };
            let found = clock(&settings, &access);
            assert!(found.result == verdict && found.found.contains(word), "{found:?}");
        }
        let dir = self::settings("file:///x");
        let access = Access { ahead_ms: Some(-700_000), ..Access::default() };
        assert_eq!(clock(&dir, &access).result, Verdict::Warning);
        let access = Access { region: Some("mars-1".into()), ..Access::default() };
        let found = region(&settings, &access).expect("a finding");
        assert!(found.remedy.expect("a remedy").contains("remote.region = \"mars-1\""));
        assert_eq!(region(&dir, &access), None);
    }

    #[test]
    fn rules_are_judged_as_a_mount_does() {
        let mut settings = settings("s3://bucket/x");
        settings.expiry.age = Some(Duration::from_hours(24));
        let report = RulesCheck {
            url: "s3://bucket/x".into(),
            expiry: "1d".into(),
            ..RulesCheck::default()
        };
        assert_eq!(of_report(&settings, &report).result, Verdict::Ok);
        let lacks = RulesCheck { lacks: vec!["packs".into()], ..report.clone() };
        let found = of_report(&settings, &lacks);
        assert_eq!(found.result, Verdict::Warning);
        assert!(
            found.remedy.expect("a remedy").contains("lifecycle apply s3://bucket/x --expiry 1d")
        );
        let sooner = RulesCheck { contradictions: vec!["1 day".into()], ..report.clone() };
        assert_eq!(of_report(&settings, &sooner).result, Verdict::Problem);
        let none = RulesCheck { unsupported: Some("a directory".into()), ..report };
        assert_eq!(of_report(&settings, &none).result, Verdict::Skipped);
        settings.expiry.age = None;
        assert_eq!(of_report(&settings, &lacks).result, Verdict::Ok);
    }

    #[tokio::test]
    async fn a_shared_directory_is_checked_and_left_as_it_was() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let mut settings = settings(&format!("file://{}", dir.path().display()));
        let all = check(&settings).await;
        assert!(all.iter().all(|finding| finding.result != Verdict::Problem), "{all:?}");
        let names: Vec<&str> = all.iter().map(|finding| finding.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "reachable",
                "list",
                "put",
                "get",
                "delete",
                "clock",
                "store",
                "expiry",
                "lifecycle rule"
            ]
        );
        assert!(!dir.path().join("hearthfs.json").exists(), "no store is made");
        settings.mount.writes = Writes::None;
        let all = check(&settings).await;
        let of = |name: &str| all.iter().find(|finding| finding.name == name).expect("a finding");
        assert_eq!((of("put").result, of("store").result), (Verdict::Skipped, Verdict::Problem));
        settings.remote.url = None;
        assert_eq!(results(&check(&settings).await), [("store", Verdict::Skipped)]);
        settings.remote.url = "file:///nowhere/at/all".parse().ok();
        assert_eq!(results(&check(&settings).await), [("reachable", Verdict::Problem)]);
    }
}
