//! The scenarios: what happens to a fleet.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::figures::{Bound, FleetFigures, MachineFigures};
use super::fleet::{Fleet, Plan, about, all, cut_off, fail, kill, pick, run as start_program};
use super::node::SimulatedNode;
use super::programs::{Builds, SHARED, ask, build, close, publish, read, work};
use crate::clock::{self, Clock};
use crate::error::{Error, Result};
use crate::remote::fault::Bill;
use crate::task::simulated;

/// How long nodes run before their requests are counted.
const WARM_UP: Duration = Duration::from_secs(30);
/// The time within which the nodes of a cold fleet begin their builds.
const BEGIN_WITHIN: Duration = Duration::from_secs(10);
/// The longest wait at the end until everything is uploaded.
const SETTLE_MAX: Duration = Duration::from_mins(10);
/// The approximate time between two closes of a pair.
const PAIR_CLOSE: Duration = Duration::from_secs(3);
const BRISK_CLOSE: Duration = Duration::from_millis(500);
/// The most readers on which closes are watched for.
const WATCHING_MAX: usize = 20;
/// One node in this many publishes all the time.
const PUBLISHERS: usize = 10;
/// How long half of the fleet is disconnected.
const AWAY: Duration = Duration::from_hours(2);
/// A working day.
const WORK: Duration = Duration::from_hours(9);
/// The fleet size for which the requirements have bounds.
const FLEET: usize = 1000;

/// The simulated scenarios.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scenario {
    /// Two nodes; one waits for what the other closes.
    Pair,
    /// The same with closes that follow each other by half a second.
    Brisk,
    /// Programs look up names on all nodes, and nothing changes.
    Quiet,
    /// All nodes compile the same entries, which no node has.
    Cold,
    /// The same while one request in a hundred fails.
    Failing,
    /// All nodes start at once and want entries that the store has.
    Warm,
    /// One node in ten closes five files a second; the others look up and read.
    Busy,
    /// A day with people at work, and a night.
    Day,
    /// Half of the nodes are disconnected for two hours; all continue to work.
    Away,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 9] = [
        Self::Pair,
        Self::Brisk,
        Self::Quiet,
        Self::Cold,
        Self::Failing,
        Self::Warm,
        Self::Busy,
        Self::Day,
        Self::Away,
    ];

    /// Returns its name on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pair => "pair",
            Self::Brisk => "brisk",
            Self::Quiet => "quiet",
            Self::Cold => "cold",
            Self::Failing => "failing",
            Self::Warm => "warm",
            Self::Busy => "busy",
            Self::Day => "day",
            Self::Away => "away",
        }
    }

    /// Reports whether the scenario is endless, so that its cost is given per day.
    pub fn goes_on(self) -> bool {
        !matches!(self, Self::Cold | Self::Failing | Self::Warm)
    }

    /// Returns its bounds, with the measured values. Costs are those of a fleet of a thousand such
    /// nodes.
    pub fn bounds(self, found: &FleetFigures) -> Vec<Bound> {
        let bound = |what, value: f64, goal, unit| Bound { what, goal, value, unit };
        let lag = |place: usize| found.lag_ms.map_or(f64::NAN, |lag| lag[place] as f64 / 1000.0);
        let dollars = found.dollars_per_day_of(FLEET);
        let late = bound("misses that should have been hits", found.late as f64, 0.0, "");
        let listed = bound("keys that a new node lists", found.listed_by_new as f64, 2000.0, "");
        let mut bounds = match self {
            Self::Pair | Self::Brisk => vec![bound("close to visible, median", lag(0), 0.25, " s")],
            Self::Quiet => vec![bound("cost of 1,000 nodes", dollars, 40.0, " $/day")],
            Self::Cold | Self::Failing => {
                vec![bound("copies uploaded", found.copies.unwrap_or(f64::NAN), 1.2, "")]
            }
            Self::Warm => {
                let done_s = found.done_s.unwrap_or(f64::NAN);
                vec![bound("last node has all", done_s, 60.0, " s")]
            }
            Self::Busy => vec![
                bound("close to visible, p99", lag(1), 10.0, " s"),
                bound("cost of 1,000 nodes", dollars, 100.0, " $/day"),
            ],
            Self::Day | Self::Away => Vec::new(),
        };
        bounds.extend([late, listed]);
        bounds
    }
}

/// Runs a simulation. All randomness follows from the seed of the plan. Only the order in which the
/// runtime wakes tasks that waited for the same event may differ between runs, and with it the
/// figures by a few hundredths.
///
/// # Errors
///
/// If no runtime can be made, the directory of the plan cannot be written, or a node fails to
/// start.
pub fn run(scenario: Scenario, plan: &Plan) -> Result<(FleetFigures, MachineFigures)> {
    let _on = simulated::begin(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|e| Error::io("make a runtime", e))?;
    let machine = Clock::system();
    let before = resident_bytes();
    let (figures, resident) = runtime.block_on(async {
        match scenario {
            Scenario::Pair => pair(plan, PAIR_CLOSE).await,
            Scenario::Brisk => pair(plan, BRISK_CLOSE).await,
            Scenario::Quiet => quiet(plan).await,
            Scenario::Cold => cold(plan, 0).await,
            Scenario::Failing => cold(plan, 1).await,
            Scenario::Warm => warm(plan).await,
            Scenario::Busy => busy(plan).await,
            Scenario::Day => day(plan).await,
            Scenario::Away => away(plan).await,
        }
    })?;
    let node_bytes = resident.saturating_sub(before) / plan.nodes.max(1) as u64;
    Ok((figures, MachineFigures { took_s: machine.mono().as_secs_f64(), node_bytes }))
}

/// Returns the memory of the process, in bytes; 0 if the system does not report it.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Counts from one moment on.
struct Span {
    fleet: Fleet,
    bill: Bill,
    began_ms: u64,
}

impl Span {
    fn begin(fleet: &Fleet) -> Self {
        fleet.oracle().reset();
        fleet.bucket().reset_peak();
        Self { fleet: fleet.clone(), bill: fleet.bucket().bill(), began_ms: fleet.now_ms() }
    }

    fn seconds(&self) -> f64 {
        (self.fleet.now_ms() - self.began_ms) as f64 / 1000.0
    }

    /// Ends the counting; then stops the nodes, and starts a new one. Also returns the memory that
    /// the process had before that.
    async fn end(self, plan: &Plan, nodes: &[Arc<SimulatedNode>]) -> Result<(FleetFigures, u64)> {
        let (fleet, seconds) = (&self.fleet, self.seconds());
        let bill = fleet.bucket().bill().since(&self.bill);
        let counts = fleet.oracle().counts();
        let (lag_ms, seen) = fleet.oracle().lags(fleet.now_ms());
        let backlog = nodes.iter().map(|node| node.backlog()).sum();
        let resident = resident_bytes();
        kill(nodes).await;
        let listed = fleet.bucket().bill().listed;
        // A node that was never mounted before.
        let new = fleet.start_one(plan.nodes + 1).await?;
        new.engine.follower().wait_fresh(Duration::from_mins(1)).await;
        let listed_by_new = fleet.bucket().bill().listed - listed;
        kill(&[new]).await;
        let mut stored = 0;
        for folder in ["log", "packs", "blobs", "checkpoints"] {
            stored += fleet.bucket().holds(folder).await.1;
        }
        let figures = FleetFigures {
            nodes: plan.nodes,
            entries: plan.entries,
            seconds,
            bill,
            lookups: counts.lookups,
            late: counts.late,
            compiled: counts.compiled,
            lag_ms: (seen > 0).then_some(lag_ms),
            copies: None,
            done_s: None,
            log: fleet.bucket().holds("log").await.0,
            stored,
            listed_by_new,
            backlog,
        };
        Ok((figures, resident))
    }
}

type ScenarioOutcome = Result<(FleetFigures, u64)>;

async fn pair(plan: &Plan, close_every: Duration) -> ScenarioOutcome {
    let fleet = Fleet::new(plan)?;
    let nodes = fleet.start(0, 2, Duration::from_secs(1)).await?;
    let observing = fleet.observe(nodes.clone());
    let asking = start_program({
        let (fleet, node) = (fleet.clone(), nodes[1].clone());
        let missing = super::fleet::name("missing", 0);
        async move {
            loop {
                clock::sleep(Duration::from_millis(20)).await;
                fleet.look_up(&node, &missing).await;
            }
        }
    });
    clock::sleep(WARM_UP).await;
    let span = Span::begin(&fleet);
    let until_ms = fleet.now_ms() + plan.span.as_millis() as u64;
    for number in 0.. {
        clock::sleep(about(close_every)).await;
        if fleet.now_ms() >= until_ms {
            break;
        }
        let stamp = close(&nodes[0], number, number as u64);
        let path = super::fleet::name(SHARED, number);
        fleet.oracle().watch(path, stamp, fleet.now_ms(), vec![1]);
    }
    asking.abort();
    observing.abort();
    span.end(plan, &nodes).await
}

/// Lets one node write all entries, and stops it.
async fn fill(fleet: &Fleet, number: usize, entries: usize) -> Result<()> {
    let writer = fleet.start_one(number).await?;
    for number in 0..entries {
        close(&writer, number, number as u64);
        if number % 100 == 0 {
            clock::sleep(Duration::from_millis(100)).await;
        }
    }
    writer.engine.drain(SETTLE_MAX, |_| ()).await;
    kill(&[writer]).await;
    // By then all changes are old enough, and the checkpoint is written.
    clock::sleep(Duration::from_mins(2)).await;
    Ok(())
}

async fn quiet(plan: &Plan) -> ScenarioOutcome {
    let fleet = Fleet::new(plan)?;
    fill(&fleet, plan.nodes, plan.entries).await?;
    let nodes = fleet.start(0, plan.nodes, Duration::from_secs(1)).await?;
    let asking = nodes.iter().map(|node| start_program(ask(fleet.clone(), node.clone())));
    let asking: Vec<_> = asking.collect();
    clock::sleep(WARM_UP).await;
    let span = Span::begin(&fleet);
    clock::sleep(plan.span).await;
    asking.iter().for_each(tokio::task::JoinHandle::abort);
    span.end(plan, &nodes).await
}

async fn cold(plan: &Plan, errors_percent: u32) -> ScenarioOutcome {
    let fleet = Fleet::new(plan)?;
    let nodes = fleet.start(0, plan.nodes, Duration::from_secs(1)).await?;
    for node in &nodes {
        fail(node, errors_percent);
    }
    let span = Span::begin(&fleet);
    let builds = nodes.iter().map(|node| {
        let (fleet, node, entries) = (fleet.clone(), node.clone(), plan.entries);
        start_program(async move {
            clock::sleep(BEGIN_WITHIN.mul_f64(pick(1000) as f64 / 1000.0)).await;
            build(&fleet, &node, entries).await;
        })
    });
    all(builds.collect()).await;
    let done_s = span.seconds();
    fleet.settle(&nodes, SETTLE_MAX).await;
    let stored =
        |node: &Arc<SimulatedNode>| node.engine.ledger().traffic().uploaded.load(Ordering::Relaxed);
    let uploaded: u64 = nodes.iter().map(stored).sum();
    for node in &nodes {
        fail(node, 0);
    }
    let (figures, resident) = span.end(plan, &nodes).await?;
    let copies = Some(uploaded as f64 / plan.entries as f64);
    Ok((FleetFigures { copies, done_s: Some(done_s), ..figures }, resident))
}

async fn warm(plan: &Plan) -> ScenarioOutcome {
    let fleet = Fleet::new(plan)?;
    fill(&fleet, plan.nodes, plan.entries).await?;
    let span = Span::begin(&fleet);
    let starts = (0..plan.nodes).map(|number| {
        let (fleet, entries) = (fleet.clone(), plan.entries);
        start_program(async move {
            clock::sleep(Duration::from_millis(pick(1000))).await;
            let node = fleet.start_one(number).await.expect("the disk has room");
            build(&fleet, &node, entries).await;
            node
        })
    });
    let starts: Vec<_> = starts.collect();
    let mut nodes = Vec::new();
    for start in starts {
        nodes.push(
            start.await.map_err(|e| Error::new(crate::error::Kind::Internal, e.to_string()))?,
        );
    }
    let done_s = span.seconds();
    let (figures, resident) = span.end(plan, &nodes).await?;
    Ok((FleetFigures { done_s: Some(done_s), ..figures }, resident))
}

async fn busy(plan: &Plan) -> ScenarioOutcome {
    let fleet = Fleet::new(plan)?;
    let nodes = fleet.start(0, plan.nodes, Duration::from_secs(5)).await?;
    let publishers = plan.nodes.div_ceil(PUBLISHERS);
    let readers = plan.nodes - publishers;
    let watching = readers.min(WATCHING_MAX);
    let watching: Vec<usize> =
        (0..watching).map(|n| publishers + n * readers / watching.max(1)).collect();
    let mut programs = vec![fleet.observe(nodes.clone())];
    for (number, node) in nodes.iter().enumerate() {
        let (fleet, node) = (fleet.clone(), node.clone());
        programs.push(if number < publishers {
            start_program(publish(fleet, node, number, watching.clone()))
        } else {
            start_program(read(fleet, node, publishers))
        });
    }
    clock::sleep(WARM_UP).await;
    let span = Span::begin(&fleet);
    clock::sleep(plan.span).await;
    programs.iter().for_each(tokio::task::JoinHandle::abort);
    span.end(plan, &nodes).await
}

async fn day(plan: &Plan) -> ScenarioOutcome {
    const BUILDS: Builds = Builds { every: Duration::from_mins(30), names: 100, new_one_in: 10 };
    let fleet = Fleet::new(plan)?;
    fill(&fleet, plan.nodes, plan.entries).await?;
    let nodes = fleet.start(0, plan.nodes, Duration::from_mins(1)).await?;
    let span = Span::begin(&fleet);
    let programs = nodes.iter().map(|node| {
        let (fleet, node, entries) = (fleet.clone(), node.clone(), plan.entries);
        start_program(async move {
            // People arrive within two hours.
            clock::sleep(about(Duration::from_hours(1))).await;
            let until_ms = fleet.now_ms() + WORK.as_millis() as u64;
            work(fleet, node, entries, BUILDS, (until_ms, true)).await;
        })
    });
    all(programs.collect()).await;
    clock::sleep(Duration::from_hours(24).saturating_sub(Duration::from_secs_f64(span.seconds())))
        .await;
    span.end(plan, &nodes).await
}

async fn away(plan: &Plan) -> ScenarioOutcome {
    const BUILDS: Builds = Builds { every: Duration::from_mins(10), names: 20, new_one_in: 10 };
    let fleet = Fleet::new(plan)?;
    fill(&fleet, plan.nodes, plan.entries).await?;
    let nodes = fleet.start(0, plan.nodes, Duration::from_secs(5)).await?;
    clock::sleep(WARM_UP).await;
    let (gone, there) = nodes.split_at(plan.nodes / 2);
    for node in gone {
        cut_off(node, true);
    }
    let span = Span::begin(&fleet);
    let until_ms = fleet.now_ms() + AWAY.as_millis() as u64;
    let begin = |node: &Arc<SimulatedNode>, is_judged| {
        let (fleet, node, entries) = (fleet.clone(), node.clone(), plan.entries);
        start_program(work(fleet, node, entries, BUILDS, (until_ms, is_judged)))
    };
    let mut programs: Vec<_> = gone.iter().map(|node| begin(node, false)).collect();
    programs.extend(there.iter().map(|node| begin(node, true)));
    let left = until_ms.saturating_sub(fleet.now_ms());
    clock::sleep(Duration::from_millis(left)).await;
    for node in gone {
        cut_off(node, false);
    }
    let back = span.seconds();
    fleet.settle(&nodes, SETTLE_MAX).await;
    let done_s = span.seconds() - back;
    all(programs).await;
    fleet.settle(&nodes, SETTLE_MAX).await;
    // All look up at once what the others have done.
    for node in &nodes {
        for number in 0..plan.entries.min(20) {
            fleet.open(node, &super::fleet::name(SHARED, number)).await;
        }
    }
    let (figures, resident) = span.end(plan, &nodes).await?;
    Ok((FleetFigures { done_s: Some(done_s), ..figures }, resident))
}
