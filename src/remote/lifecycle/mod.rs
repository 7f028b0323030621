//! The rules by which a bucket deletes what has grown old.
//!
//! Owns what the rule for an expiry is on each cloud, and reading, writing and judging the rules that a
//! bucket has. Must never touch a rule that is not ours, nor let ours reach an object that is not.

mod azure;
mod bucket;
mod gcs;
mod plan;
mod rule;
mod s3;

use serde::Serialize;

use bucket::{Api, Bucket, RulesSeen};
pub use plan::RulesPlan;
use rule::BucketRule;

use super::connect::{self, Environment, RemoteOptions};
use crate::config::{RemoteUrl, format_age};
use crate::error::Result;

/// How many faults one line lists.
const SAID_MAX: usize = 3;

/// The rules for one address and one expiry.
#[derive(Debug)]
pub struct Lifecycle {
    url: RemoteUrl,
    rule: BucketRule,
    place: RulesPlace,
}

#[derive(Debug)]
enum RulesPlace {
    Bucket(Box<Bucket>),
    Azure { account: String, container: String },
    Dir,
}

/// The rules of a bucket, compared with what they should be.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct RulesCheck {
    /// The address.
    pub url: String,
    /// The expiry that it was compared with.
    pub expiry: String,
    /// Why there are no rules to check.
    pub unsupported: Option<String>,
    /// Whether any rule of ours is there.
    pub present: bool,
    /// What our rules lack.
    pub lacks: Vec<String>,
    /// What rules of others do that they should not.
    pub contradictions: Vec<String>,
    /// What else is worth knowing.
    pub notes: Vec<String>,
}

impl RulesCheck {
    /// Reports whether our rules are there and nothing deletes sooner.
    pub fn agrees(&self) -> bool {
        self.unsupported.is_none() && self.lacks.is_empty() && self.contradictions.is_empty()
    }

    /// Returns the disagreements, one sentence each.
    pub fn faults(&self) -> Vec<String> {
        let mut all = self.contradictions.clone();
        if self.present || self.lacks.is_empty() {
            all.extend(self.lacks.iter().cloned());
        } else {
            all.push(format!(
                "no lifecycle rule of the bucket is for {} and an expiry of {}: nothing deletes old \
                 entries",
                self.url, self.expiry
            ));
        }
        all
    }

    /// Describes in one line what disagrees and what to do; `None` if nothing does.
    pub fn disagreement(&self) -> Option<String> {
        let mut all = self.faults();
        if all.is_empty() {
            return None;
        }
        let more = all.len().saturating_sub(SAID_MAX);
        all.truncate(SAID_MAX);
        if more > 0 {
            all.push(format!("and {more} more"));
        }
        let remedy = if self.lacks.is_empty() {
            "change that rule, or the expiry".to_owned()
        } else {
            format!("run `hearthfs lifecycle apply {} --expiry {}`", self.url, self.expiry)
        };
        Some(format!("{}; {remedy}", all.join("; ")))
    }
}

impl Lifecycle {
    /// Prepares to work on the rules for an address; the expiry comes from the options. Makes no request.
    ///
    /// # Errors
    ///
    /// `Invalid` when the endpoint, profile or certificates cannot work.
    pub fn open(url: &RemoteUrl, options: &RemoteOptions, env: &Environment) -> Result<Self> {
        let rule = BucketRule::new(url.prefix(), options.expiry);
        let place = match (url, connect::bucket_api(url, options, env)?) {
            (RemoteUrl::Azure { account, container, .. }, _) => {
                RulesPlace::Azure { account: account.clone(), container: container.clone() }
            }
            (_, Some(requests)) => {
                let api = if matches!(url, RemoteUrl::S3 { .. }) { Api::S3 } else { Api::Gcs };
                RulesPlace::Bucket(Box::new(Bucket { api, requests, url: url.to_string() }))
            }
            (_, None) => RulesPlace::Dir,
        };
        Ok(Self { url: url.clone(), rule, place })
    }

    /// Compares the present rules with what they should be. Writes nothing.
    ///
    /// # Errors
    ///
    /// `Denied` when the account may not read the rules, `Unavailable` or `TimedOut` without an
    /// answer, `Corrupt` for an unreadable answer.
    pub async fn verify(&self) -> Result<RulesCheck> {
        let mut report = RulesCheck {
            url: self.url.to_string(),
            expiry: format_age(self.rule.expiry),
            ..RulesCheck::default()
        };
        match &self.place {
            RulesPlace::Dir | RulesPlace::Azure { .. } => report.unsupported = self.without_rules(),
            RulesPlace::Bucket(bucket) => {
                let seen = bucket.see().await?;
                if let RulesSeen::Unsupported(why) = &seen {
                    report.unsupported = Some(bucket::unsupported(&report.url, why).to_string());
                }
                let judged = self.rule.judge(&seen.others(&self.rule));
                report.present = seen.counts(&self.rule).0 > 0;
                report.lacks = seen.lacks(&self.rule);
                (report.contradictions, report.notes) = (judged.contradictions, judged.notes);
                report.notes.extend(seen.drops(&self.rule));
            }
        }
        Ok(report)
    }

    /// Makes our rules what they should be, and leaves all others; returns whether anything had to
    /// be written. A directory needs no rules.
    ///
    /// # Errors
    ///
    /// `Denied` when the account may not change the rules, `Busy` when they change at the same time, `Invalid` when the
    /// store does not keep them as they were written, `Unavailable` or `TimedOut` without an answer.
    pub async fn apply(&self) -> Result<bool> {
        match &self.place {
            RulesPlace::Dir | RulesPlace::Azure { .. } => Ok(false),
            RulesPlace::Bucket(bucket) => bucket.apply(&self.rule).await,
        }
    }

    /// Removes our rules, and leaves all others; returns whether there were any.
    ///
    /// # Errors
    ///
    /// As [`Lifecycle::apply`].
    pub async fn remove(&self) -> Result<bool> {
        match &self.place {
            RulesPlace::Dir | RulesPlace::Azure { .. } => Ok(false),
            RulesPlace::Bucket(bucket) => bucket.remove(&self.rule).await,
        }
    }

    /// Returns why this kind of address has no rules to write, if so.
    pub fn without_rules(&self) -> Option<String> {
        let url = &self.url;
        match &self.place {
            RulesPlace::Dir => Some(format!(
                "{url} is a directory and has no rules: `hearthfs gc {url}` deletes by the same age"
            )),
            RulesPlace::Azure { .. } => Some(format!(
                "Azure keeps lifecycle rules in its management API, which does not accept the keys of a storage \
                 account: set the policy that `hearthfs lifecycle plan {url}` prints"
            )),
            RulesPlace::Bucket(_) => None,
        }
    }
}
