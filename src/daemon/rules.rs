//! The rules of the bucket, for a mount and for the commands that set them up.
//!
//! Owns the one check of them that a mount makes, and its messages. Must never delay a mount, write
//! anything, or check twice. A store that is unreachable at the mount is checked when it answers.

use std::sync::{Arc, OnceLock};

use tokio::runtime::Handle;

use super::build::{known_store, remote_options};
use crate::config::Settings;
use crate::control::RulesReport;
use crate::error::{Error, Kind, Result};
use crate::remote::{self, Environment, Lifecycle, Remote, RemoteOptions, RulesCheck, StoreId};
use crate::stamp::NodeId;
use crate::task;

/// The result of the check of the rules, once it is done.
pub(super) type RulesLook = Arc<OnceLock<RulesReport>>;

/// Prepares to work on the rules of the bucket that the settings name.
///
/// # Errors
///
/// `Invalid` when the settings name no remote, or its endpoint, profile or certificates cannot work.
pub fn lifecycle(settings: &Settings) -> Result<Lifecycle> {
    open(settings, &remote_options(settings))
}

fn open(settings: &Settings, options: &RemoteOptions) -> Result<Lifecycle> {
    let url = settings.remote.url.as_ref().ok_or_else(no_remote)?;
    Lifecycle::open(url, options, &Environment::process())
}

/// Returns a handle of the store itself, for reading and changing what it declares.
///
/// # Errors
///
/// `Invalid` when the settings name no remote, or its endpoint, profile or certificates cannot work.
pub fn store(settings: &Settings, clock: &crate::clock::Clock) -> Result<Remote> {
    let url = settings.remote.url.as_ref().ok_or_else(no_remote)?;
    Remote::open(url, &remote_options(settings), clock.clone(), NodeId(0))
}

/// Lets a handle accept only the store that this node knows, as a mount does; returns which one that is.
pub fn know_store(settings: &Settings, store: &Remote) -> Option<StoreId> {
    let known = known_store(&settings.local.cache_dir).ok().flatten()?;
    let id = known.store();
    store.know(Some(known));
    Some(id)
}

/// Describes where this process gets the credentials for the store, by names of variables and
/// files; `None` without a bucket.
pub fn credentials_source(settings: &Settings) -> Option<String> {
    let url = settings.remote.url.as_ref()?;
    remote::source_of_credentials(url, &remote_options(settings), &Environment::process())
}

/// Returns advice for a person when the store refuses credentials.
pub fn credentials_remedy(settings: &Settings) -> &'static str {
    settings.remote.url.as_ref().map_or("name a store", remote::credentials_remedy)
}

/// Returns the region in which the bucket is addressed; `None` if the cloud has no regions.
pub fn region(settings: &Settings) -> Option<String> {
    let url = settings.remote.url.as_ref()?;
    remote::region_of(url, &remote_options(settings), &Environment::process())
}

fn no_remote() -> Error {
    let op = "no address: name one, such as s3://bucket/prefix, or set remote.url";
    Error::new(Kind::Invalid, op)
}

/// Checks the rules in the background, and logs once what disagrees with how long entries live.
pub(super) fn look(runtime: &Handle, settings: &Settings, remote: Option<&Remote>) -> RulesLook {
    let found = RulesLook::default();
    let Some(remote) = remote.cloned() else { return found };
    let (settings, answer) = (settings.clone(), Arc::clone(&found));
    drop(task::spawn(runtime, "rules", async move {
        remote.checked().await;
        // The effective age may be shorter than the configured one; the rules must match the effective one.
        let expiry = remote.effective_expiry();
        let made = task::blocking(move || {
            let options = RemoteOptions { expiry, ..remote_options(&settings) };
            open(&settings, &options)
        });
        let report = match made.await {
            Ok(lifecycle) if lifecycle.without_rules().is_some() => return,
            Ok(lifecycle) => lifecycle.verify().await,
            Err(error) => Err(error),
        };
        let report = said(&remote.url().to_string(), report);
        // There is only one check, so this is not set yet.
        answer.set(report).ok();
    }));
    found
}

/// Logs the result, and summarizes it.
fn said(url: &str, report: Result<RulesCheck>) -> RulesReport {
    let summed = |state: &str, detail: Option<String>| RulesReport { state: state.into(), detail };
    let report = match report {
        Ok(report) => report,
        Err(error) => {
            tracing::info!(
                error = error.chain(),
                "the lifecycle rules of the bucket cannot be read"
            );
            return summed("unknown", Some(error.chain()));
        }
    };
    if let Some(why) = report.unsupported {
        tracing::info!("{why}");
        return summed("none", Some(why));
    }
    for note in &report.notes {
        tracing::info!(remote = url, "{note}");
    }
    let disagrees = report.disagreement();
    match disagrees {
        None => summed("in place", None),
        // If nothing expires, a rule only tidies up.
        Some(text) if report.contradictions.is_empty() && report.expiry == "never" => {
            tracing::info!(remote = url, "{text}");
            summed("missing", Some(text))
        }
        Some(text) => {
            tracing::warn!(remote = url, "{text}");
            let state = if report.contradictions.is_empty() && !report.present {
                "missing"
            } else {
                "disagree"
            };
            summed(state, Some(text))
        }
    }
}
