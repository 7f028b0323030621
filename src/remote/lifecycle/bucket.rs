//! The rules of a bucket over the network: reading them, and changing ours.
//!
//! Owns the order of requests, and what happens when another program changes the rules at the same time.
//! Must never write rules that were not read just before, and never write when nothing has to change.
//!
//! A write is never simply repeated. A write without an answer may have been carried out, and
//! another program may have changed the rules since, so the rules are read again first.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use reqwest::Method;

use super::gcs;
use super::rule::{BucketRule, Other};
use super::s3::{self, Versioning};
use crate::clock;
use crate::error::{Error, Kind, Result};
use crate::remote::bucket_api::{Ask, BucketApi, rest};
use crate::remote::xml;

/// How often rules are read and written again after a write failed or another program changed them in between.
const ROUNDS_MAX: u32 = 4;
/// How many times written rules are read back until they show.
const READ_BACK_MAX: u32 = 5;
/// The pause before the second read; each further one is twice as long.
const READ_BACK_PAUSE: Duration = Duration::from_millis(250);
/// The one setting that is not in a rule but in a header, for reads and writes alike. A write
/// without the header resets it.
const SIZES: &str = "x-amz-transition-default-minimum-object-size";

/// The API of a bucket's cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Api {
    S3,
    Gcs,
}

/// A bucket.
#[derive(Debug)]
pub(super) struct Bucket {
    pub(super) api: Api,
    pub(super) requests: BucketApi,
    /// The address, for messages.
    pub(super) url: String,
}

/// The rules of a bucket at one moment.
#[derive(Debug)]
pub(super) enum RulesSeen {
    /// As S3 has them.
    S3 {
        rules: s3::Rules,
        versions: Versioning,
        /// The value of the header with the setting outside the rules.
        sizes: Option<String>,
    },
    /// As Google has them.
    Gcs(gcs::GcsBucket),
    /// The store has no rules; the text says why we think so.
    Unsupported(String),
}

/// What a change makes of our rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    There,
    Gone,
}

impl RulesSeen {
    pub(super) fn lacks(&self, rule: &BucketRule) -> Vec<String> {
        match self {
            Self::S3 { rules, versions, .. } => rules.lacks(rule, *versions),
            Self::Gcs(bucket) => bucket.lacks(rule),
            Self::Unsupported(_) => Vec::new(),
        }
    }

    pub(super) fn others(&self, rule: &BucketRule) -> Vec<Other> {
        match self {
            Self::S3 { rules, .. } => rules.others(rule),
            Self::Gcs(bucket) => bucket.others(rule),
            Self::Unsupported(_) => Vec::new(),
        }
    }

    /// Returns how many rules are ours, and how many are not.
    pub(super) fn counts(&self, rule: &BucketRule) -> (usize, usize) {
        match self {
            Self::S3 { rules, .. } => (rules.ours(rule), rules.foreign(rule)),
            Self::Gcs(bucket) => (bucket.ours(rule), bucket.foreign(rule)),
            Self::Unsupported(_) => (0, 0),
        }
    }

    /// Returns the rules of others, in a form that can be compared.
    fn foreign(&self, rule: &BucketRule) -> Vec<String> {
        match self {
            Self::S3 { rules, .. } => rules.foreign_canonical(rule),
            Self::Gcs(bucket) => bucket.foreign_canonical(rule),
            Self::Unsupported(_) => Vec::new(),
        }
    }

    /// Describes a part of our rules that the store drops harmlessly.
    pub(super) fn drops(&self, rule: &BucketRule) -> Option<String> {
        let Self::S3 { rules, .. } = self else { return None };
        rules.drops_aborts(rule).then(|| {
            "the store drops the part of the rules about unfinished uploads; find out how it removes them"
                .to_owned()
        })
    }

    fn is(&self, goal: Goal, rule: &BucketRule) -> bool {
        match goal {
            Goal::There => self.lacks(rule).is_empty(),
            Goal::Gone => self.counts(rule).0 == 0,
        }
    }
}

impl Bucket {
    fn ask(&self, what: &str, method: Method, query: &str, permission: &'static str) -> Ask {
        Ask {
            method,
            query: query.to_owned(),
            headers: Vec::new(),
            body: String::new(),
            op: format!("{what} of {}", self.url),
            permission,
        }
    }

    /// Reads the rules.
    pub(super) async fn see(&self) -> Result<RulesSeen> {
        match self.api {
            Api::S3 => self.see_s3().await,
            Api::Gcs => self.see_gcs().await,
        }
    }

    async fn see_gcs(&self) -> Result<RulesSeen> {
        let query = format!("?projection=noAcl&fields={}", gcs::FIELDS);
        let ask = self.ask("read the description", Method::GET, &query, "storage.buckets.get");
        let answer = self.requests.ask(&ask).await?;
        if answer.is_unknown_to_store() {
            let why = format!("it answers a question for them with status {}", answer.status);
            return Ok(RulesSeen::Unsupported(why));
        }
        if !answer.is_good() {
            return Err(answer.refused(&ask));
        }
        gcs::GcsBucket::read(&answer.body)
            .map(RulesSeen::Gcs)
            .map_err(|problem| unreadable(&ask, &problem))
    }

    async fn see_s3(&self) -> Result<RulesSeen> {
        let what = "read the lifecycle rules";
        let ask = self.ask(what, Method::GET, "?lifecycle", "s3:GetLifecycleConfiguration");
        let answer = self.requests.ask(&ask).await?;
        let (code, _) = answer.reason();
        let text = match answer.status {
            _ if answer.is_good() => answer.body.as_str(),
            404 if code.as_deref() == Some("NoSuchLifecycleConfiguration") => "",
            _ if answer.is_unknown_to_store() => {
                let why = format!("it answers a question for them with status {}", answer.status);
                return Ok(RulesSeen::Unsupported(why));
            }
            _ => return Err(answer.refused(&ask)),
        };
        let rules = match s3::Rules::read(text) {
            Ok(rules) => rules,
            // Some servers ignore the query, and list the bucket.
            Err(_) if text.contains("<ListBucketResult") => {
                let why = "it answers a question for them with a list of objects".to_owned();
                return Ok(RulesSeen::Unsupported(why));
            }
            Err(problem) => return Err(unreadable(&ask, &problem)),
        };
        let (versions, sizes) = (self.versions().await, answer.header(SIZES));
        Ok(RulesSeen::S3 { rules, versions, sizes })
    }

    /// Asks whether the bucket keeps versions. A refusal does not stop us.
    async fn versions(&self) -> Versioning {
        let what = "read the versioning";
        let ask = self.ask(what, Method::GET, "?versioning", "s3:GetBucketVersioning");
        let Ok(answer) = self.requests.ask(&ask).await else { return Versioning::Unknown };
        if !answer.is_good() {
            return Versioning::Unknown;
        }
        let root = xml::parse(&answer.body).ok();
        match root.filter(|root| root.name == "VersioningConfiguration") {
            None => Versioning::Unknown,
            Some(root) if root.text_of("Status").is_some_and(|status| !status.is_empty()) => {
                Versioning::Kept
            }
            Some(_) => Versioning::None,
        }
    }

    /// Makes our rules what they should be; returns whether anything was changed.
    pub(super) async fn apply(&self, rule: &BucketRule) -> Result<bool> {
        self.reach(Goal::There, rule).await
    }

    /// Removes our rules; returns whether there were any.
    pub(super) async fn remove(&self, rule: &BucketRule) -> Result<bool> {
        self.reach(Goal::Gone, rule).await
    }

    async fn reach(&self, goal: Goal, rule: &BucketRule) -> Result<bool> {
        let (mut trouble, mut unsure) = (None, None);
        for round in 0..=ROUNDS_MAX {
            // The rules are read back after the last write, too.
            let written = round == ROUNDS_MAX;
            if written && unsure.is_none() {
                break;
            }
            if round > 0 {
                rest(round).await;
            }
            let seen = match (self.see().await, &unsure) {
                (Err(error), Some(_)) => return Err(self.unchecked("may be written", &error)),
                (seen, _) => seen?,
            };
            if let RulesSeen::Unsupported(why) = &seen {
                return Err(unsupported(&self.url, why));
            }
            if let Some(before) = unsure.take() {
                if goal == Goal::There {
                    self.undo(&before, &seen, rule).await?;
                }
                if seen.is(goal, rule) && seen.foreign(rule) != before.foreign(rule) {
                    return Err(self.meddled());
                }
            }
            if seen.is(goal, rule) {
                return Ok(round > 0);
            }
            if written {
                break;
            }
            let ask = self.writing(&seen, goal, rule);
            match self.requests.ask(&ask).await {
                Ok(answer) if answer.is_good() => {
                    self.read_back(&seen, goal, rule).await?;
                    return Ok(true);
                }
                Ok(answer) if answer.status == 412 => {}
                Ok(answer) if answer.is_worth_another() => {
                    trouble = Some(answer.refused(&ask));
                    unsure = Some(seen);
                }
                Ok(answer) => return Err(answer.refused(&ask)),
                Err(error) if matches!(error.kind(), Kind::Unavailable | Kind::TimedOut) => {
                    trouble = Some(error);
                    unsure = Some(seen);
                }
                Err(error) => return Err(error),
            }
        }
        Err(trouble.unwrap_or_else(|| {
            let url = &self.url;
            let op = format!("another program keeps changing the rules of {url}; run it again");
            Error::new(Kind::Busy, op)
        }))
    }

    /// Describes the write that turns the rules seen into those wanted.
    fn writing(&self, seen: &RulesSeen, goal: Goal, rule: &BucketRule) -> Ask {
        let what = "write the lifecycle rules";
        match seen {
            RulesSeen::Unsupported(_) => unreachable!("a store without rules is not written to"),
            RulesSeen::Gcs(bucket) => {
                let change = match goal {
                    Goal::There => bucket.with(rule),
                    Goal::Gone => bucket.without(rule),
                };
                let seen = &bucket.metageneration;
                let query = format!("?projection=noAcl&ifMetagenerationMatch={seen}");
                let ask = self.ask(what, Method::PATCH, &query, "storage.buckets.update");
                let headers = vec![("content-type", "application/json".to_owned())];
                Ask { headers, body: gcs::text(&change), ..ask }
            }
            RulesSeen::S3 { rules, versions, sizes } => {
                let body = match goal {
                    Goal::There => Some(rules.with(rule, *versions)),
                    Goal::Gone => rules.without(rule),
                };
                self.writing_s3(body, sizes.as_ref())
            }
        }
    }

    /// Describes the write of a document; `None` deletes the present one.
    fn writing_s3(&self, body: Option<String>, sizes: Option<&String>) -> Ask {
        let (what, permission) = ("write the lifecycle rules", "s3:PutLifecycleConfiguration");
        let Some(body) = body else {
            return self.ask(what, Method::DELETE, "?lifecycle", permission);
        };
        let mut headers = vec![
            ("content-md5", STANDARD.encode(Md5::digest(body.as_bytes()))),
            ("content-type", "application/xml".to_owned()),
        ];
        headers.extend(sizes.cloned().map(|sizes| (SIZES, sizes)));
        let ask = self.ask(what, Method::PUT, "?lifecycle", permission);
        Ask { headers, body, ..ask }
    }

    /// Restores the earlier rules after a store gave our rules a wider effect than we wrote. If
    /// they already had it, because an earlier run could not restore anything, they are removed.
    async fn undo(&self, before: &RulesSeen, now: &RulesSeen, rule: &BucketRule) -> Result<()> {
        let (RulesSeen::S3 { rules, .. }, RulesSeen::S3 { rules: old, sizes, .. }) = (now, before)
        else {
            return Ok(());
        };
        if !rules.reaches_too_far(rule) {
            return Ok(());
        }
        let again = old.reaches_too_far(rule);
        let body = if again { old.without(rule) } else { old.before().map(str::to_owned) };
        let ask = self.writing_s3(body, sizes.as_ref());
        let mut undone = false;
        // This write is repeated as it is: a rule that deletes what belongs to others is worse than
        // a lost change of theirs.
        for round in 0..ROUNDS_MAX {
            if round > 0 {
                rest(round).await;
            }
            undone = self.requests.ask(&ask).await.is_ok_and(|answer| answer.is_good());
            if undone {
                break;
            }
        }
        let url = &self.url;
        let end = match (undone, again) {
            (true, false) => "the rules from before are restored",
            (true, true) => "the rules of an earlier run are removed, too",
            (false, _) => {
                "THE RULES FROM BEFORE COULD NOT BE RESTORED: remove the rules whose names begin with \
                 `hearthfs:` at once"
            }
        };
        let op = format!(
            "the store of {url} drops the prefix of a rule, so the rule would delete objects of \
             others; {end}; `hearthfs gc {url}` deletes by the same age"
        );
        Err(Error::new(Kind::Invalid, op))
    }

    /// Returns the error that the result of our write is unknown.
    fn unchecked(&self, what: &str, error: &Error) -> Error {
        let op = format!(
            "the rules of {} {what}, and their state in the store could not be checked: {}; look \
             at them with `hearthfs lifecycle verify`",
            self.url,
            error.chain()
        );
        Error::new(error.kind(), op)
    }

    fn meddled(&self) -> Error {
        let op = format!(
            "the rules of others in the bucket of {} changed while the rules of hearthfs were written: another program \
             changed them at the same time; look at them",
            self.url
        );
        Error::new(Kind::Busy, op)
    }

    /// Checks that our write took effect, and that the rules of others are still there. The store
    /// has no conditional write, so another program's write may have come in between.
    async fn read_back(&self, before: &RulesSeen, goal: Goal, rule: &BucketRule) -> Result<()> {
        let (mut pause, mut look) = (READ_BACK_PAUSE, 0);
        loop {
            look += 1;
            let now = match self.see().await {
                Ok(RulesSeen::Unsupported(why)) => {
                    return Err(self.unchecked("are written", &Error::new(Kind::Invalid, why)));
                }
                Err(error) => return Err(self.unchecked("are written", &error)),
                Ok(now) => now,
            };
            if goal == Goal::There {
                self.undo(before, &now, rule).await?;
            }
            let same = now.foreign(rule) == before.foreign(rule);
            if now.is(goal, rule) && same {
                return Ok(());
            }
            if look == READ_BACK_MAX {
                if !same {
                    return Err(self.meddled());
                }
                let op = format!(
                    "the rules of {} were written, but the store does not show them: {}; look again with \
                     `hearthfs lifecycle verify`",
                    self.url,
                    now.lacks(rule).join("; ")
                );
                return Err(Error::new(Kind::Busy, op));
            }
            clock::sleep(pause).await;
            pause *= 2;
        }
    }
}

fn unreadable(ask: &Ask, problem: &str) -> Error {
    Error::new(Kind::Corrupt, format!("{}: the answer cannot be read: {problem}", ask.op))
}

/// Returns the error that a store has no rules, with what does their work instead.
pub(super) fn unsupported(url: &str, why: &str) -> Error {
    let op = format!(
        "the store of {url} knows no lifecycle rules ({why}); `hearthfs gc {url}` deletes by the same age"
    );
    Error::new(Kind::Invalid, op)
}
