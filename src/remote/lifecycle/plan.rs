//! A preview of what would be written for an address.
//!
//! Owns the sentences of a plan. Must never write anything to a store.

use serde::Serialize;

use super::bucket::{self, Api, RulesSeen};
use super::rule::{ABORT_DAYS, BucketRule, NONCURRENT_DAYS, days};
use super::s3::{self, Versioning};
use super::{Lifecycle, RulesPlace, azure, gcs};
use crate::config::{RemoteUrl, format_age};
use crate::error::Result;

/// What would be written, and related advice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RulesPlan {
    /// The address.
    pub url: String,
    /// The expiry that the rules are for: `30d`, `never`.
    pub expiry: String,
    /// The exact bytes that would be sent; `None` if there is nothing to send.
    pub document: Option<String>,
    /// What the rules do, one sentence each.
    pub summary: Vec<String>,
    /// Advice about other settings of the bucket.
    pub advice: Vec<String>,
    /// Commands for what we cannot do ourselves.
    pub commands: Vec<String>,
    /// Why the bucket's present rules are unknown.
    pub trouble: Option<String>,
}

impl Lifecycle {
    /// Describes what would be written. If the bucket cannot be read, that is no failure: the plan
    /// then assumes one without rules.
    pub async fn plan(&self) -> RulesPlan {
        let mut plan = RulesPlan {
            url: self.url.to_string(),
            expiry: format_age(self.rule.expiry),
            document: None,
            summary: Vec::new(),
            advice: Vec::new(),
            commands: Vec::new(),
            trouble: None,
        };
        match &self.place {
            RulesPlace::Dir => plan.summary.extend(self.without_rules()),
            RulesPlace::Azure { account, container } => {
                self.plan_azure(&mut plan, account, container);
            }
            RulesPlace::Bucket(bucket) => {
                self.plan_bucket(&mut plan, bucket.api, bucket.see().await);
            }
        }
        plan
    }

    fn plan_azure(&self, plan: &mut RulesPlan, account: &str, container: &str) {
        plan.summary = deletes(&self.rule);
        plan.summary.extend(self.without_rules());
        match azure::policy(container, &self.rule) {
            Some(policy) => {
                plan.document = Some(gcs::text(&policy));
                plan.commands = azure::commands(account);
            }
            None => plan.summary.push("an expiry of never needs no policy".to_owned()),
        }
        plan.advice = azure::advice();
    }

    fn plan_bucket(&self, plan: &mut RulesPlan, api: Api, seen: Result<RulesSeen>) {
        let seen = match seen {
            Ok(RulesSeen::Unsupported(why)) => Err(bucket::unsupported(&plan.url, &why)),
            seen => seen,
        };
        let seen = seen.unwrap_or_else(|error| {
            plan.trouble = Some(error.chain());
            blank(api)
        });
        plan.summary = summary(&self.rule, &seen);
        if plan.trouble.is_none() {
            plan.summary.push(now(&seen, &self.rule));
        }
        match &seen {
            RulesSeen::S3 { rules, versions, .. } => {
                plan.document = Some(rules.with(&self.rule, *versions));
            }
            RulesSeen::Gcs(bucket) => {
                plan.document = Some(gcs::text(&bucket.with(&self.rule)));
                let RemoteUrl::Gcs { bucket: name, .. } = &self.url else { return };
                plan.advice = match plan.trouble {
                    None => bucket.advice(name),
                    Some(_) => gcs::advice_unseen(name),
                };
            }
            RulesSeen::Unsupported(_) => {}
        }
    }
}

/// Stands for a bucket that could not be read.
fn blank(api: Api) -> RulesSeen {
    let none = "nothing is a bucket without rules";
    match api {
        Api::S3 => {
            let rules = s3::Rules::read("").expect(none);
            RulesSeen::S3 { rules, versions: Versioning::Unknown, sizes: None }
        }
        Api::Gcs => RulesSeen::Gcs(gcs::GcsBucket::read("{\"metageneration\":0}").expect(none)),
    }
}

fn deletes(rule: &BucketRule) -> Vec<String> {
    let Some(count) = rule.days else {
        return vec!["deletes no entry: the expiry is never".to_owned()];
    };
    let mut all = vec![format!(
        "deletes what is below {} {} after it was stored",
        rule.places.join(", "),
        days(count)
    )];
    if rule.kept() != days(count) {
        all.push(format!(
            "a bucket counts whole days: {} for an expiry of {}; hearthfs itself serves nothing that is \
             older than that",
            days(count),
            rule.kept()
        ));
    }
    all.push("never touches hearthfs.json or objects of others".to_owned());
    all
}

fn summary(rule: &BucketRule, seen: &RulesSeen) -> Vec<String> {
    let mut all = deletes(rule);
    all.push(format!("removes the parts of uploads that did not end within {}", days(ABORT_DAYS)));
    let kept = match seen {
        RulesSeen::S3 { versions, .. } => *versions,
        RulesSeen::Gcs(bucket) if bucket.keeps_versions() => Versioning::Kept,
        RulesSeen::Gcs(_) | RulesSeen::Unsupported(_) => Versioning::None,
    };
    match kept {
        Versioning::Kept => all.push(format!(
            "the bucket keeps versions: removes those that are not current after {}",
            days(NONCURRENT_DAYS)
        )),
        Versioning::Unknown => all.push(
            "it is unknown whether the bucket keeps versions; if it does, the applied rules remove old \
             versions, too"
                .to_owned(),
        ),
        Versioning::None => {}
    }
    all
}

/// Describes the present rules.
fn now(seen: &RulesSeen, rule: &BucketRule) -> String {
    let (ours, others) = seen.counts(rule);
    let count = |number: usize| match number {
        0 => "no rule".to_owned(),
        1 => "1 rule".to_owned(),
        number => format!("{number} rules"),
    };
    let others = match others {
        0 => "none of others".to_owned(),
        others => format!("{} of others, which stay as they are", count(others)),
    };
    let state = match ours {
        0 => "",
        _ if seen.lacks(rule).is_empty() => " (as they should be)",
        _ => " (to be replaced)",
    };
    format!("there now: {} of ours{state}, {others}", count(ours))
}
