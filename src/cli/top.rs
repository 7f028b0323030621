//! `hearthfs top`.

mod figures;
mod page;
mod screen;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;

use super::failure::{Failure, Outcome};
use super::json::json_line;
use super::output::data;
use super::{point, status, wait};
use crate::clock::{Clock, sleep};
use crate::config::{Surroundings, format_duration, parse_duration};
use figures::{Rates, Sample};

/// The shortest and the longest interval: the daemon counts clients and entries for ten seconds
/// after a request.
const INTERVAL_MIN: Duration = Duration::from_millis(200);
const INTERVAL_MAX: Duration = Duration::from_secs(5);

/// Options of `hearthfs top`.
#[derive(Args, Clone, Debug)]
pub(super) struct Watch {
    /// The mount point, or any path on the mount; without it, the only mount
    dir: Option<PathBuf>,

    /// Time from one page to the next
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = parse_duration)]
    interval: Duration,

    /// The number of pages; without a terminal, and with --json, the default is 1
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,

    /// Print JSON: one object per line for each interval
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(command: &Watch) -> Outcome<()> {
    if !(INTERVAL_MIN..=INTERVAL_MAX).contains(&command.interval) {
        let (typed, least) = (format_duration(command.interval), format_duration(INTERVAL_MIN));
        let most = format_duration(INTERVAL_MAX);
        return Err(Failure::refused(format!(
            "--interval {typed}: it must be from {least} to {most}"
        ))
        .hint("`hearthfs status --json` has the counts since the mount began"));
    }
    let around = Surroundings::of_process();
    let dir = match &command.dir {
        Some(dir) => point::absolute(&around, dir),
        None => point::absolute(&around, &super::inside::usual_dir(&around)?),
    };
    let is_live = !command.json && is_screen(&around);
    wait(async {
        let mount = WatchedMount { around: &around, dir: &dir, clock: Clock::system() };
        if is_live {
            return screen::watch(&mount, command, has_colour(&around)).await;
        }
        let mut before = mount.look().await?;
        for _ in 0..command.count.unwrap_or(1) {
            sleep(command.interval).await;
            let now = mount.look().await?;
            let rates = Rates::between(&before, &now);
            data(&if command.json { json_line(&rates)? } else { page::plain(&rates) })?;
            before = now;
        }
        Ok(())
    })
}

/// The watched mount.
struct WatchedMount<'a> {
    around: &'a Surroundings,
    dir: &'a Path,
    /// Each clock starts at its own zero.
    clock: Clock,
}

impl WatchedMount<'_> {
    /// Asks the daemon that serves it now; the daemon does not keep a connection open for long.
    async fn look(&self) -> Outcome<Sample> {
        let (mut client, status) = status::find(self.around, self.dir).await?;
        let busy = client.busy().await?;
        Ok(Sample { at: self.clock.mono(), status, busy })
    }
}

/// Reports whether there is a terminal that can show a page.
fn is_screen(around: &Surroundings) -> bool {
    let is_able = around.variable("TERM").is_some_and(|term| term != "dumb" && !term.is_empty());
    is_able && std::io::stdout().is_terminal() && std::io::stdin().is_terminal()
}

/// Reports whether colours are wanted (no-color.org).
fn has_colour(around: &Surroundings) -> bool {
    around.variable("NO_COLOR").is_none_or(std::ffi::OsStr::is_empty)
}
