//! Collecting garbage: deleting from a store what no node needs any more.
//!
//! Works on the store alone, from any machine, beside running nodes and other collections. Owns the
//! rules by which an object is deleted. Must never delete what an entry on any node may still need,
//! whatever that node has read of the store within the grace time. Must never delete what is not
//! ours.

mod known;
mod report;

use std::time::Duration;

use tokio::sync::mpsc;

use self::known::{Known, patiently};
pub use self::report::{GcProgress, Removed, Report, Tally, Why};
use super::covers::bundled_upto_ms;
use crate::config::format_age;
use crate::error::Result;
use crate::namespace::Age;
use crate::remote::{BundleName, Declared, Deleted, Object, Remote, What};
use crate::stamp::Stamp;

/// How many pages of the list wait to be judged.
const PAGES_QUEUED_MAX: usize = 2;
/// The node that writes a probe deletes it at once; a probe of this age was left behind.
const PROBE_AGE: Duration = Duration::from_hours(24);

/// The options of a collection.
#[derive(Debug, Clone, Copy)]
pub struct GcOptions {
    /// How long everything is kept that a node may rely on: [`LOG_GRACE`](super::LOG_GRACE)
    /// wherever nodes are mounted.
    pub grace: Duration,
    /// Whether the user chose the expiry with which the handles were opened. It may then be shorter
    /// than the one that the store declares.
    pub told: bool,
}

/// Collects the garbage of one store.
#[derive(Debug)]
pub struct Collector {
    /// The handle that reads; it never initialises a store.
    reader: Remote,
    /// The handle that deletes; `None` in a dry run.
    writer: Option<Remote>,
    options: GcOptions,
}

impl Collector {
    /// Makes a collector that reads through one handle, which should be read-only, and deletes
    /// through the other. Without the other it only reports what it would delete. Checks that the
    /// store exists, is ours, and may be used.
    ///
    /// # Errors
    ///
    /// As [`Remote::check`]; a store that does not answer is retried several times first.
    pub async fn open(
        reader: &Remote,
        writer: Option<&Remote>,
        options: GcOptions,
    ) -> Result<Self> {
        let (reader, writer) = (reader.background(), writer.map(Remote::background));
        patiently(async || reader.check().await).await?;
        if let Some(writer) = &writer {
            // This also reads the store's time, by which everything is judged.
            patiently(async || writer.check().await).await?;
        }
        Ok(Self { reader, writer, options })
    }

    /// Returns the lifetime of entries that the store declares.
    pub fn declared(&self) -> Declared {
        self.reader.declared_expiry()
    }

    /// Returns the expiry that is used; `None` is for ever.
    pub fn expiry(&self) -> Option<Duration> {
        self.declared().deleting(self.reader.own_expiry(), self.options.told)
    }

    /// Examines all objects and deletes those that are no longer needed.
    ///
    /// # Errors
    ///
    /// `Unavailable` or `TimedOut` if the store stops answering, `Denied` if it refuses a list or a
    /// deletion. What was deleted before stays deleted.
    pub async fn collect(&self, mut progress: impl FnMut(GcProgress)) -> Result<Report> {
        let remote = self.writer.as_ref().unwrap_or(&self.reader);
        let expiry = self.expiry();
        let grace_ms = self.options.grace.as_millis() as u64;
        let age = Age::of(expiry);
        // What arrives during the run is judged by what was known before it arrived.
        let now_ms = remote.now_ms();
        let known = Known::read(remote, age, now_ms, grace_ms, &mut progress).await?;
        let rules = GcRules { known, age, now_ms, grace_ms };
        let mut report = Report {
            dry_run: self.writer.is_none(),
            expiry: format_age(expiry),
            expiry_ms: expiry.map(|age| age.as_millis() as u64),
            notes: rules.known.notes.clone(),
            ..Report::default()
        };
        let settled = rules.known.settled.as_ref();
        report.checkpoint = settled.map(|(stamp, _)| crate::remote::keys::checkpoint_name(stamp));
        let (pages, mut arriving) = mpsc::channel::<Vec<Object>>(PAGES_QUEUED_MAX);
        let (rules, into, told) = (&rules, &mut report, &mut progress);
        // It owns the receiver: if it fails, no more pages are taken, and the list ends too.
        let judging = async move {
            let mut seen = 0;
            while let Some(page) = arriving.recv().await {
                seen += page.len() as u64;
                self.judge(page, rules, into).await?;
                told(GcProgress::Objects(seen, into.total().objects));
            }
            Ok(())
        };
        let (listed, judged) = futures::join!(remote.survey(pages), judging);
        if let Some(why) = judged.and(listed)? {
            report.notes.push(format!("not all objects of others could be counted: {why}"));
        }
        if let Some(writer) = &self.writer {
            report.temporaries = writer.sweep_temporaries().await as u64;
        }
        Ok(report)
    }

    async fn judge(&self, page: Vec<Object>, rules: &GcRules, report: &mut Report) -> Result<()> {
        let (mut doomed, mut reasons) = (Vec::new(), Vec::new());
        for object in page {
            match rules.judge(&object) {
                Fate::Foreign => report.foreign.add(object.size),
                Fate::Keep => keep(report, &object),
                Fate::Delete(why) if self.writer.is_none() => {
                    report.removed(kind(&object.what), why, object.size);
                }
                Fate::Delete(why) => {
                    doomed.push(object);
                    reasons.push(why);
                }
            }
        }
        let Some(writer) = self.writer.as_ref().filter(|_| !doomed.is_empty()) else {
            return Ok(());
        };
        let outcomes = writer.delete(&doomed).await?;
        for ((object, why), outcome) in doomed.iter().zip(reasons).zip(outcomes) {
            match outcome {
                Deleted::Gone => report.removed(kind(&object.what), why, object.size),
                Deleted::Young => keep(report, object),
                Deleted::Failed(error) => {
                    if report.failed.objects == 0 {
                        report
                            .notes
                            .push(format!("not everything could be deleted: {}", error.chain()));
                    }
                    report.failed.add(object.size);
                }
            }
        }
        Ok(())
    }
}

fn keep(report: &mut Report, object: &Object) {
    report.kept.entry(kind(&object.what)).or_default().add(object.size);
}

fn kind(what: &What) -> &'static str {
    match what {
        What::Format => "format",
        What::Head => "head",
        What::Commit(_) => "commits",
        What::Pack(_) => "packs",
        What::Blob(_) => "blobs",
        What::Checkpoint(_) => "checkpoints",
        What::Bundle(_) => "bundles",
        What::Probe => "probes",
        What::Foreign => "foreign",
    }
}

/// What happens to an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Foreign,
    Keep,
    Delete(Why),
}

/// The rules, with the facts that they use.
struct GcRules {
    known: Known,
    age: Age,
    /// The store's time, taken before reading what is in use.
    now_ms: u64,
    grace_ms: u64,
}

impl GcRules {
    fn judge(&self, object: &Object) -> Fate {
        let past = known::is_over(self.age, object.stored_ms, self.now_ms);
        // Its commit may still be in flight.
        let settled = object.stored_ms.saturating_add(self.grace_ms) < self.now_ms;
        let live = &self.known.live;
        let why = match &object.what {
            What::Foreign => return Fate::Foreign,
            What::Format | What::Head => None,
            What::Probe => {
                let probe_ms = PROBE_AGE.as_millis() as u64;
                let left = object.stored_ms.saturating_add(probe_ms) < self.now_ms;
                (past || left).then_some(Why::Expired)
            }
            What::Checkpoint(stamp) => self.checkpoint(stamp, past),
            What::Bundle(name) => self.bundle(name, object.stored_ms, past),
            What::Commit(stamp) => self.commit(stamp, past),
            _ if past => Some(Why::Expired),
            What::Pack(stamp) => {
                let unused = self.known.certain && settled && !live.packs.contains(stamp);
                unused.then_some(Why::Unused)
            }
            What::Blob(digest) => {
                let unused = self.known.certain && settled && !live.blobs.contains(digest);
                unused.then_some(Why::Unused)
            }
        };
        why.map_or(Fate::Keep, Fate::Delete)
    }

    fn checkpoint(&self, stamp: &Stamp, past: bool) -> Option<Why> {
        let is = |one: &Option<(Stamp, _)>| one.as_ref().is_some_and(|(name, _)| name == stamp);
        if is(&self.known.latest) || is(&self.known.settled) {
            return None;
        }
        if self.known.superseded.contains(stamp) {
            return Some(Why::Superseded);
        }
        (past && self.known.latest.is_some()).then_some(Why::Expired)
    }

    /// A node that starts has its commits from the settled checkpoint or a later one.
    fn bundle(&self, name: &BundleName, stored_ms: u64, past: bool) -> Option<Why> {
        let known = &self.known;
        if known.settled.is_some() && bundled_upto_ms(name, stored_ms) <= known.floor_ms {
            return Some(Why::Superseded);
        }
        past.then_some(Why::Expired)
    }

    fn commit(&self, stamp: &Stamp, past: bool) -> Option<Why> {
        if self.known.covers(stamp) {
            // The contents in a commit are as old as the commit.
            let needed = self.known.live.commits.contains(stamp) && !past;
            return (!needed).then_some(Why::Covered);
        }
        let named = self.known.latest.as_ref().is_some_and(|(_, all)| all.contains(stamp));
        // A commit that was not read may contain anything.
        let speaks = stamp.ms < self.known.floor_ms.saturating_sub(self.grace_ms)
            || self.known.speaking.contains(stamp);
        (past && !named && !speaks).then_some(Why::Expired)
    }
}
