//! `hearthfs lifecycle plan`, `apply`, `verify` and `remove`.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::failure::{Failure, Outcome};
use super::json::json_pretty;
use super::output::{data, document, note};
use super::store::{Chosen, StoreOptions};
use super::wait;
use crate::clock::Clock;
use crate::config::{Settings, format_age};
use crate::daemon::{self, Declaration, Declared, Lifecycle, RulesCheck, is_shorter};
use crate::error::{Error, Kind};

/// The commands under `hearthfs lifecycle`.
#[derive(Subcommand, Clone, Debug)]
pub(super) enum LifecycleCommand {
    /// Print the rule for the expiry as it would be sent, and its effect
    Plan(Looking),
    /// Write the rule, keeping all others, and declare the expiry in the store
    Apply(StoreOptions),
    /// Compare the bucket's rules with the expiry; exits 1 if they disagree
    Verify(Looking),
    /// Remove the rule, keeping all others
    Remove(StoreOptions),
}

/// Options of what only looks.
#[derive(Args, Clone, Debug)]
pub(super) struct Looking {
    #[command(flatten)]
    store: StoreOptions,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `verify --json` prints.
#[derive(Serialize)]
struct VerifyJson<'a> {
    #[serde(flatten)]
    report: &'a RulesCheck,
    /// The expiry that hearthfs.json declares; `none` if it declares none or cannot be read.
    declared: String,
    /// Whether everything is as it should be.
    agrees: bool,
}

/// Runs the command.
pub(super) fn run(command: &LifecycleCommand) -> Outcome<()> {
    let (LifecycleCommand::Plan(Looking { store, .. })
    | LifecycleCommand::Verify(Looking { store, .. })
    | LifecycleCommand::Apply(store)
    | LifecycleCommand::Remove(store)) = command;
    let mut chosen = store.settings()?;
    wait(async {
        // This refuses an invalid address before a server is asked.
        let mut lifecycle = open(&chosen.settings)?;
        let known = match command {
            LifecycleCommand::Remove(_) => Ok(Declared::Unknown),
            _ => declared_by_store(&chosen.settings).await,
        };
        if let (Ok(Declared::Age(age)), None) = (&known, &chosen.expiry_by) {
            chosen.settings.expiry.age = *age;
            lifecycle = open(&chosen.settings)?;
        }
        match command {
            LifecycleCommand::Plan(looking) => {
                plan(&lifecycle, looking.json).await?;
                note_unknown(known.as_ref().err(), &chosen);
                Ok(())
            }
            LifecycleCommand::Apply(_) => apply(&lifecycle, &chosen, known).await,
            LifecycleCommand::Verify(looking) => {
                verify(&lifecycle, &chosen, known, looking.json).await
            }
            LifecycleCommand::Remove(_) => remove(&lifecycle, &chosen.settings).await,
        }
    })
}

fn open(settings: &Settings) -> Outcome<Lifecycle> {
    daemon::lifecycle(settings).map_err(|error| Failure::at_start(&error))
}

/// Returns the expiry that the store declares. `NotFound` means a place that was never mounted.
async fn declared_by_store(settings: &Settings) -> Result<Declared, Error> {
    let store = daemon::store(settings, &Clock::system())?.read_only();
    let missing = || store.url().directory().is_some_and(|dir| !dir.exists());
    match store.check().await {
        Err(error) if error.kind() == Kind::Unavailable && missing() => {
            Err(Error::new(Kind::NotFound, error.chain()))
        }
        checked => checked.map(|()| store.declared_expiry()),
    }
}

/// Notes that the store's declared expiry is unknown, if it would have counted.
fn note_unknown(error: Option<&Error>, chosen: &Chosen) {
    if let Some(error) = error.filter(|error| !is_empty_place(error))
        && chosen.expiry_by.is_none()
    {
        let age = format_age(chosen.settings.expiry.age);
        note(&format!("warning: hearthfs.json cannot be read: {}", error.chain()));
        note(&format!(
            "warning: this uses the default of {age}, which may differ from what the store declares"
        ));
    }
}

async fn plan(lifecycle: &Lifecycle, as_json: bool) -> Outcome<()> {
    let plan = lifecycle.plan().await;
    if as_json {
        return data(&json_pretty(&plan)?);
    }
    if let Some(text) = &plan.document {
        document(&format!("{text}\n"))?;
    }
    note(&format!("{}: an expiry of {}", plan.url, plan.expiry));
    for line in &plan.summary {
        note(&format!("  - {line}"));
    }
    for (title, lines) in [("Set it with:", &plan.commands), ("Advice:", &plan.advice)] {
        if !lines.is_empty() {
            note(title);
        }
        for line in lines {
            note(&format!("  {line}"));
        }
    }
    if let Some(trouble) = &plan.trouble {
        note(&format!("warning: {trouble}"));
        note("warning: the plan assumes a bucket without rules and without versions");
    }
    Ok(())
}

async fn apply(
    lifecycle: &Lifecycle,
    chosen: &Chosen,
    known: Result<Declared, Error>,
) -> Outcome<()> {
    let settings = &chosen.settings;
    let (url, age) = (url_of(settings), format_age(settings.expiry.age));
    match known {
        Err(error) if chosen.expiry_by.is_none() && !is_empty_place(&error) => {
            let text = format!("hearthfs.json cannot be read: {}", error.chain());
            return Err(Failure::failed(text).hint(
                "nothing was changed; run it again with the right to read objects, or name the expiry: \
                 --expiry 30d",
            ));
        }
        _ => {}
    }
    let without = lifecycle.without_rules();
    match &without {
        Some(_) => {}
        None if lifecycle.apply().await? => {
            data(&format!("{url}: the rules for an expiry of {age} are written\n"))?;
        }
        None => data(&format!("{url}: the rules are as they should be; nothing was written\n"))?,
    }
    declare(settings, &url, &age).await?;
    match without {
        Some(why) if is_directory(settings) => {
            note(&why);
            Ok(())
        }
        // Half of the work is done, so this is no refusal.
        Some(why) => Err(Failure::failed(format!("the rules are not written: {why}"))),
        None => Ok(()),
    }
}

/// Updates the expiry that the store declares.
async fn declare(settings: &Settings, url: &str, age: &str) -> Outcome<()> {
    let store = daemon::store(settings, &Clock::system())?;
    let text = match store.declare_expiry().await {
        Ok(Declaration::Same) => {
            format!("{url}: hearthfs.json declares an expiry of {age} already\n")
        }
        Ok(Declaration::Made) => {
            if store.has_foreign() {
                note(&format!(
                    "warning: {url} holds objects that are not of hearthfs; they are left alone; check the \
                     address"
                ));
            }
            format!("{url}: hearthfs.json is made, and declares an expiry of {age}\n")
        }
        Ok(Declaration::Changed(before)) => {
            if let Declared::Age(before) = before
                && is_shorter(settings.expiry.age, before)
            {
                let before = format_age(before);
                note(&format!(
                    "warning: mounted nodes notice this within ten minutes of use; until then they still rely \
                     on entries younger than {before}, and miss those deleted after {age}; to avoid this, \
                     set expiry.age = \"{age}\" and mount them again"
                ));
            }
            format!(
                "{url}: hearthfs.json declares an expiry of {age} now, and {} before; mounted \
                 nodes use it within ten minutes of use\n",
                declared(before)
            )
        }
        Err(error) => {
            let text = format!("hearthfs.json could not be updated: {}", error.chain());
            return Err(Failure::failed(text).hint(
                "run it again with the right to read and write objects; until then the shorter of both \
                 applies",
            ));
        }
    };
    data(&text)
}

fn declared(what: Declared) -> String {
    match what {
        Declared::Unknown => "none".to_owned(),
        Declared::Age(age) => format_age(age),
    }
}

async fn verify(
    lifecycle: &Lifecycle,
    chosen: &Chosen,
    known: Result<Declared, Error>,
    as_json: bool,
) -> Outcome<()> {
    let settings = &chosen.settings;
    let (url, age) = (url_of(settings), format_age(settings.expiry.age));
    let report = lifecycle.verify().await?;
    let mut wrong = report.faults();
    let by_kind = lifecycle.without_rules().is_some();
    // A bucket whose rules are unknown is not in order.
    wrong.extend(report.unsupported.clone().filter(|_| !by_kind));
    let mut notes = report.notes.clone();
    match (&known, &settings.remote.url) {
        (Ok(declared), Some(url)) => {
            wrong.extend(declared.disagreement(settings.expiry.age, url));
        }
        (Err(error), _) if is_empty_place(error) => {
            notes.push(format!(
                "nothing is stored at {url} yet: the first mount declares its expiry"
            ));
        }
        (Err(error), _) if chosen.expiry_by.is_some() => {
            notes.push(format!("hearthfs.json cannot be read: {}", error.chain()));
        }
        _ => note_unknown(known.as_ref().err(), chosen),
    }
    if as_json {
        let said = VerifyJson {
            report: &report,
            declared: declared(known.unwrap_or_default()),
            agrees: wrong.is_empty() && report.unsupported.is_none(),
        };
        data(&json_pretty(&said)?)?;
    }
    for text in &notes {
        note(&format!("note: {text}"));
    }
    if !wrong.is_empty() {
        let hint = format!(
            "`hearthfs lifecycle apply {url}` updates the rules of hearthfs; change other rules yourself"
        );
        return Err(Failure { messages: wrong, ..Failure::failed("") }.hint(hint));
    }
    match &report.unsupported {
        // A directory needs no rules; for an inaccessible bucket nothing is known.
        Some(why) if is_directory(settings) => note(why),
        Some(why) => return Err(Failure::refused(why)),
        None if !as_json => data(&format!("{url}: the rules agree with an expiry of {age}\n"))?,
        None => {}
    }
    Ok(())
}

/// A place that was never mounted.
fn is_empty_place(error: &Error) -> bool {
    matches!(error.kind(), Kind::NotFound)
}

async fn remove(lifecycle: &Lifecycle, settings: &Settings) -> Outcome<()> {
    let url = url_of(settings);
    if let Some(why) = lifecycle.without_rules() {
        if is_directory(settings) {
            note(&why);
            return Ok(());
        }
        return Err(Failure::refused(why));
    }
    if lifecycle.remove().await? {
        data(&format!("{url}: the rules of hearthfs are removed; others stay\n"))
    } else {
        data(&format!("{url}: there was no rule of hearthfs; nothing was written\n"))
    }
}

fn is_directory(settings: &Settings) -> bool {
    settings.remote.url.as_ref().is_some_and(|url| url.directory().is_some())
}

fn url_of(settings: &Settings) -> String {
    settings.remote.url.as_ref().map(ToString::to_string).unwrap_or_default()
}
