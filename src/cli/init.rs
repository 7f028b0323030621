//! `hearthfs init`.

use clap::Args;

use super::failure::{Failure, Outcome};
use super::output::{data, note};
use super::store::StoreOptions;
use super::wait;
use crate::clock::Clock;
use crate::config::format_age;
use crate::daemon::{self, Declared, StoreId};

/// Options of `hearthfs init`.
#[derive(Args, Clone, Debug)]
pub(super) struct Init {
    #[command(flatten)]
    store: StoreOptions,

    /// Let all nodes that know the store with this identity move to this one; may be repeated
    #[arg(long, value_name = "ID")]
    replaces: Vec<StoreId>,
}

/// Runs the command.
pub(super) fn run(command: &Init) -> Outcome<()> {
    let chosen = command.store.settings()?;
    let store = daemon::store(&chosen.settings, &Clock::system());
    let store = store.map_err(|error| Failure::at_start(&error))?;
    let made = wait(async {
        let made = store.make(&command.replaces).await;
        made.map_err(|error| Failure::at_start(&error))
    })?;
    if store.has_foreign() {
        note(&format!(
            "warning: {} holds objects that are not of hearthfs; they are left alone; check the address",
            store.url()
        ));
    }
    let (url, id) = (store.url(), made.store);
    let expiry = match store.declared_expiry() {
        Declared::Unknown => "no expiry".to_owned(),
        Declared::Age(age) => format!("an expiry of {}", format_age(age)),
    };
    let what = if made.new { "is made" } else { "is a store already" };
    data(&format!("{url} {what}: store {id}, which declares {expiry}\n"))?;
    for old in &command.replaces {
        data(&format!("nodes that know the store {old} move to this one\n"))?;
    }
    if !made.new && chosen.expiry_by.is_some() {
        let own = chosen.settings.expiry.age;
        if store.declared_expiry() != Declared::Age(own) {
            let own = format_age(own);
            note(&format!(
                "note: the expiry was left as it is; `hearthfs lifecycle apply {url} --expiry {own}` changes it"
            ));
        }
    }
    Ok(())
}
