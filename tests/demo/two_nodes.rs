//! Two nodes on this machine, one shared directory, and a real compiler: cold on the first node, warm on
//! the second.
//!
//! One artefact does everything: for a daemon or a `hearthfs run` this program starts itself again and
//! behaves as `hearthfs`. Whatever happens, it leaves no mount and no process behind.

mod clients;
mod process;
mod python;
mod report;
mod world;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use clients::Client;
use process::Stop;
use report::Row;
use world::World;

/// Set in the environment of those copies of this program that shall behave as `hearthfs`.
pub(crate) const ACT_AS_HEARTHFS: &str = "TWO_NODES_ACTS_AS_HEARTHFS";

const USAGE: &str = "\
Mounts two nodes over one shared directory, compiles with a real compiler on the first, and again in a
fresh process on the second, which should find everything in the cache.

Usage: two-nodes [--client jax|ccache|go] [--hearthfs PROGRAM] [--keep]

  --client NAME       this compiler, instead of the first of jax, ccache, go that is there
  --hearthfs PROGRAM  this hearthfs, instead of the one that is built in
  --keep              keep the directory with the logs and both caches

Exit status: 0 the second node compiled nothing, 1 it did, or something failed, 2 something is missing.";

/// What went wrong: the message, and whether this machine lacks something.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It went wrong.
    Failed(String),
    /// It cannot be tried here.
    Missing(String),
}

/// The result of each step.
pub(crate) type Step<T> = Result<T, Failure>;

/// What the command line asks for.
#[derive(Debug, Default)]
struct Asked {
    client: Option<String>,
    hearthfs: Option<PathBuf>,
    keep: bool,
}

fn main() -> ExitCode {
    if std::env::var_os(ACT_AS_HEARTHFS).is_some() {
        process::end_with_parent();
        return hearthfs::cli::main();
    }
    let asked = match parse(std::env::args().skip(1)) {
        Ok(Some(asked)) => asked,
        Ok(None) => {
            print(USAGE);
            return ExitCode::SUCCESS;
        }
        Err(problem) => {
            say(format_args!("error: {problem}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    match show(&asked) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(Failure::Failed(problem)) => {
            say(format_args!("error: {problem}"));
            ExitCode::FAILURE
        }
        Err(Failure::Missing(problem)) => {
            say(format_args!("error: {problem}"));
            ExitCode::from(2)
        }
    }
}

fn parse(mut words: impl Iterator<Item = String>) -> Result<Option<Asked>, String> {
    let mut asked = Asked::default();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--keep" => asked.keep = true,
            "--client" => asked.client = Some(words.next().ok_or("--client needs a name")?),
            "--hearthfs" => {
                let program = words.next().ok_or("--hearthfs needs a program")?;
                asked.hearthfs = Some(program.into());
            }
            other => return Err(format!("`{other}` is no option")),
        }
    }
    Ok(Some(asked))
}

/// Does the whole thing; returns whether the second node compiled nothing.
fn show(asked: &Asked) -> Step<bool> {
    let stop = Stop::on_signals()?;
    world::check_machine()?;
    let client = Client::choose(asked.client.as_deref(), &stop)?;
    let world = World::make(asked.hearthfs.as_deref(), asked.keep)?;
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
    print(&report::table(&[row_a, row_b]));
    let verdict = report::verdict(client.noun(), &cold, &warm);
    print(&verdict.text);
    Ok(verdict.good)
}

/// Says what goes on, on stderr.
pub(crate) fn say(what: std::fmt::Arguments<'_>) {
    // If nobody listens any more, there is nobody to tell.
    drop(writeln!(std::io::stderr(), "{what}"));
}

/// Prints a result on stdout.
fn print(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}
