//! The rules by which a bucket deletes what has grown old.
//!
//! Owns what the rule for an expiry is on each cloud, and reading, writing and judging the rules that a
//! bucket has. Must never touch a rule that is not ours, nor let ours reach an object that is not.

mod azure;
mod bucket;
pub(in crate::remote) mod door;
mod gcs;
mod rule;
mod s3;
mod xml;

use bucket::{Bucket, Seen};
use rule::{ABORT_DAYS, NONCURRENT_DAYS, Rule, days};
use s3::Versions;
use serde::Serialize;

use super::connect::{self, Environment, RemoteOptions};
use crate::config::{RemoteUrl, format_age};
use crate::error::Result;

/// How many faults of our own rules one line names.
const SAID_MAX: usize = 2;

/// The rules for one address and one expiry.
#[derive(Debug)]
pub struct Lifecycle {
    url: RemoteUrl,
    rule: Rule,
    place: Place,
}

#[derive(Debug)]
enum Place {
    Bucket(Box<Bucket>),
    Dir,
}

/// What would be written, and what there is to know beside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// The address.
    pub url: String,
    /// The expiry that it is for: `30d`, `never`.
    pub expiry: String,
    /// What would be sent, to the byte; `None` where there is nothing to send.
    pub document: Option<String>,
    /// What it does, a sentence each.
    pub summary: Vec<String>,
    /// What else to do about the bucket.
    pub advice: Vec<String>,
    /// Commands that do what we cannot.
    pub commands: Vec<String>,
    /// Why the bucket's present rules are not known.
    pub trouble: Option<String>,
}

/// What the rules of a bucket do, compared with what they should.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// The address.
    pub url: String,
    /// The expiry that it was compared with.
    pub expiry: String,
    /// Why there are no rules to look at.
    pub unsupported: Option<String>,
    /// Whether any rule of ours is there.
    pub present: bool,
    /// What our rules lack.
    pub lacks: Vec<String>,
    /// What rules of others do that they should not.
    pub contradictions: Vec<String>,
    /// What is worth knowing beside.
    pub notes: Vec<String>,
}

impl Report {
    /// Reports whether ours is there and nothing deletes sooner.
    pub fn agrees(&self) -> bool {
        self.unsupported.is_none() && self.lacks.is_empty() && self.contradictions.is_empty()
    }

    /// Says in one line what disagrees and what to do; `None` when nothing does.
    pub fn disagreement(&self) -> Option<String> {
        let mut all = self.contradictions.clone();
        let expiry = &self.expiry;
        match self.lacks.len() {
            0 => {}
            _ if !self.present => all.push(format!(
                "no lifecycle rule of the bucket is for an expiry of {expiry}: nothing deletes what has \
                 grown old"
            )),
            1..=SAID_MAX => all.extend(self.lacks.iter().cloned()),
            more => {
                all.extend(self.lacks[..SAID_MAX].iter().cloned());
                all.push(format!("and {} more", more - SAID_MAX));
            }
        }
        if all.is_empty() {
            return None;
        }
        let remedy = if self.lacks.is_empty() {
            "change that rule, or the expiry".to_owned()
        } else {
            format!("run `hearthfs lifecycle apply {} --expiry {expiry}`", self.url)
        };
        Some(format!("{}; {remedy}", all.join("; ")))
    }
}

impl Lifecycle {
    /// Prepares to work on the rules for an address; the expiry is that of the options. Asks nobody.
    pub fn open(url: &RemoteUrl, options: &RemoteOptions, env: &Environment) -> Result<Self> {
        let rule = Rule::new(url.prefix(), options.expiry);
        let place = match url {
            RemoteUrl::File(_) => Place::Dir,
            RemoteUrl::S3 { bucket, .. } => {
                let door = connect::s3_door(bucket, options, env)?;
                Place::Bucket(Box::new(Bucket { door, url: url.to_string() }))
            }
        };
        Ok(Self { url: url.clone(), rule, place })
    }

    /// Says what would be written. A bucket that cannot be asked is no failure: the plan is then that
    /// for one without rules.
    pub async fn plan(&self) -> Plan {
        let mut plan = Plan {
            url: self.url.to_string(),
            expiry: format_age(self.rule.expiry),
            document: None,
            summary: Vec::new(),
            advice: Vec::new(),
            commands: Vec::new(),
            trouble: None,
        };
        match &self.place {
            Place::Dir => plan.summary.push(no_rules_in_a_directory(&self.url)),
            Place::Bucket(bucket) => {
                let seen = bucket.see().await;
                self.plan_bucket(&mut plan, seen);
            }
        }
        plan
    }

    fn plan_bucket(&self, plan: &mut Plan, seen: Result<Seen>) {
        let seen = match seen {
            Ok(Seen::Unsupported(why)) => {
                plan.trouble = Some(bucket::unsupported(&plan.url, &why).to_string());
                self.blank()
            }
            Ok(seen) => seen,
            Err(error) => {
                plan.trouble = Some(error.chain());
                self.blank()
            }
        };
        plan.summary = self.summary(&seen);
        if plan.trouble.is_none() {
            plan.summary.push(now(&seen, &self.rule));
        }
        match &seen {
            Seen::S3 { rules, versions, .. } => {
                plan.document = Some(rules.with(&self.rule, *versions));
            }
            Seen::Unsupported(_) => {}
        }
    }

    /// Stands for a bucket that could not be asked.
    fn blank(&self) -> Seen {
        let rules = s3::Rules::read("").expect("nothing is a bucket without rules");
        Seen::S3 { rules, versions: Versions::Unknown, sizes: None }
    }

    fn summary(&self, seen: &Seen) -> Vec<String> {
        let rule = &self.rule;
        let mut all = Vec::new();
        let places = rule.places.join(", ");
        match rule.days {
            Some(count) => {
                let exactly = format!("after {}", days(count));
                all.push(format!("deletes what lies below {places} {exactly}"));
                if rule.kept() != days(count) {
                    all.push(format!(
                        "a bucket counts whole days: {} for an expiry of {}, and hearthfs itself serves \
                         nothing that is older than that",
                        days(count),
                        rule.kept()
                    ));
                }
            }
            None => all.push("deletes no entry: the expiry is never".to_owned()),
        }
        all.push(format!(
            "removes parts of uploads that were not finished after {}",
            days(ABORT_DAYS)
        ));
        match seen {
            Seen::S3 { versions: Versions::Kept, .. } => all.push(format!(
                "the bucket keeps versions: removes those that are not current after {}",
                days(NONCURRENT_DAYS)
            )),
            Seen::S3 { versions: Versions::Unknown, .. } => all.push(
                "whether the bucket keeps versions is not known; where it does, the rule that is \
                 applied removes old ones too"
                    .to_owned(),
            ),
            _ => {}
        }
        all.push("never touches hearthfs.json, nor what others keep in the bucket".to_owned());
        all
    }

    /// Compares the rules that are there with what they should be. Writes nothing.
    pub async fn verify(&self) -> Result<Report> {
        let mut report = Report {
            url: self.url.to_string(),
            expiry: format_age(self.rule.expiry),
            ..Report::default()
        };
        match &self.place {
            Place::Dir => report.unsupported = Some(no_rules_in_a_directory(&self.url)),
            Place::Bucket(bucket) => {
                let seen = bucket.see().await?;
                if let Seen::Unsupported(why) = &seen {
                    report.unsupported = Some(bucket::unsupported(&report.url, why).to_string());
                }
                let judged = self.rule.judge(&seen.others(&self.rule));
                report.present = seen.counts(&self.rule).0 > 0;
                report.lacks = seen.lacks(&self.rule);
                (report.contradictions, report.notes) = (judged.contradictions, judged.notes);
            }
        }
        Ok(report)
    }

    /// Makes our rules what they should be, and leaves all others; returns whether anything had to be
    /// written. A directory has none, and needs nothing.
    pub async fn apply(&self) -> Result<bool> {
        match &self.place {
            Place::Dir => Ok(false),
            Place::Bucket(bucket) => bucket.apply(&self.rule).await,
        }
    }

    /// Takes our rules away, and leaves all others; returns whether there were any.
    pub async fn remove(&self) -> Result<bool> {
        match &self.place {
            Place::Dir => Ok(false),
            Place::Bucket(bucket) => bucket.remove(&self.rule).await,
        }
    }

    /// Returns why there are no rules to write for this address, where that is so by its kind.
    pub fn without_rules(&self) -> Option<String> {
        match &self.place {
            Place::Dir => Some(no_rules_in_a_directory(&self.url)),
            Place::Bucket(_) => None,
        }
    }
}

fn no_rules_in_a_directory(url: &RemoteUrl) -> String {
    format!("{url} is a directory and has no rules: `hearthfs gc {url}` deletes by the same age")
}

/// Says what rules are there now.
fn now(seen: &Seen, rule: &Rule) -> String {
    let (ours, others) = seen.counts(rule);
    let count = |number: usize| match number {
        0 => "no rule".to_owned(),
        1 => "1 rule".to_owned(),
        number => format!("{number} rules"),
    };
    let state = if seen.lacks(rule).is_empty() { "as they should be" } else { "to be replaced" };
    match ours {
        0 => format!("now there: no rule of ours, {} of others, which stay", count(others)),
        ours => {
            let (ours, others) = (count(ours), count(others));
            format!("now there: {ours} of ours ({state}), {others} of others, which stay")
        }
    }
}
