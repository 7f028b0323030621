//! `hearthfs demo`: two nodes on this machine, one shared directory, and a real compiler: cold on the first node, warm on
//! the second.
//!
//! Owns everything that it starts: whatever happens, it leaves no mount and no process behind. Must
//! never touch the configuration, the caches or the mounts of the user.

mod clients;
mod process;
mod python;
mod report;
mod world;

use std::process::ExitCode;

use clap::Args;

use super::failure::Outcome;
use super::output::{data, note};
use clients::Compiler;
use process::Stop;
use report::Row;
use world::World;

/// Set in the environment of the daemons and commands that a demonstration starts, which end with it.
const PART_OF_DEMO: &str = "PART_OF_HEARTHFS_DEMO";

/// Options of `hearthfs demo`.
#[derive(Args, Clone, Debug)]
pub(super) struct Demo {
    /// The compiler: jax, ccache, go or cc; without it, the first that is installed
    #[arg(long, value_name = "NAME")]
    client: Option<String>,

    /// Keep the directory with the logs and both caches
    #[arg(long)]
    keep: bool,
}

/// Makes this process end together with the demonstration that started it.
pub(super) fn end_with_demo() {
    if std::env::var_os(PART_OF_DEMO).is_some() {
        process::end_with_parent();
    }
}

/// Runs the command. The exit status says whether the second node compiled nothing.
pub(super) fn run(command: &Demo) -> Outcome<ExitCode> {
    let stop = Stop::on_signals()?;
    world::check_machine()?;
    let client = Compiler::choose(command.client.as_deref(), &stop)?;
    let world = World::make(command.keep)?;
    say(format_args!("shared directory: {}", world.shared().display()));
    let node_a = world.mount("node-a", &stop)?;
    let node_b = world.mount("node-b", &stop)?;
    client.prepare(&world)?;

    say(format_args!("node-a: {} compiles, with an empty cache", client.name()));
    let cold = client.compile(&world, &node_a, &stop)?;
    let row_a = Row::of(&node_a, &cold)?;
    say(format_args!("node-b: a fresh process does the same"));
    let warm = client.compile(&world, &node_b, &stop)?;
    let row_b = Row::of(&node_b, &warm)?;

    node_b.unmount(&stop)?;
    node_a.unmount(&stop)?;
    let verdict = report::verdict(client.noun(), &cold, &warm);
    data(&format!("{}\n{}\n", report::table(&[row_a, row_b]), verdict.text))?;
    Ok(if verdict.good { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Reports progress on stderr.
fn say(what: std::fmt::Arguments<'_>) {
    note(&what.to_string());
}
