//! The threads of a copy: one that walks, and those that do what it finds.
//!
//! Owns their number, the queue between them, and the end. Must never go on where nothing more can be done: a mount
//! that is gone would make a failure of each file that is left.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::file::{Item, Put, Source, Standing, Writer, bytes_of};
use super::pace::Pace;
use super::report::{Report, Tally};
use super::trouble::Trouble;
use super::unit::Unit;
use super::walk::Walk;
use super::{Plan, Way};
use crate::clock::Clock;
use crate::task;

/// How many threads read and write. A thread waits for the daemon most of the time.
const THREADS: usize = 4;
/// How many jobs wait for them.
const JOBS_MAX: usize = 64;
/// How often is shown how far it is.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

/// Something to be copied by one thread.
#[derive(Debug)]
pub(super) enum Job {
    /// Files that have nothing to do with each other.
    Files(Vec<Item>),
    /// Files that only make sense together.
    Unit(Unit),
}

/// What a thread that copies has.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub(super) plan: &'a Plan,
    pub(super) tally: &'a Tally,
    pub(super) pace: &'a Pace,
    pub(super) writer: Writer,
}

/// Copies a tree, and shows how far it is now and then. The error is one of the machine's: there are no threads.
pub(super) fn copy(plan: Plan, mut show: impl FnMut(&Report)) -> io::Result<Report> {
    let clock = Clock::system();
    let began = clock.mono();
    let (plan, tally) = (Arc::new(plan), Arc::new(Tally::default()));
    let pace = Arc::new(Pace::new(plan.unit_bytes, clock.clone()));
    let (jobs, queue) = sync_channel(JOBS_MAX);
    let queue = Arc::new(Mutex::new(queue));
    // Held by each thread until its end.
    let (alive, ended) = sync_channel::<()>(1);
    let mut threads = Vec::new();
    for _ in 0..THREADS {
        let (plan, tally, pace) = (Arc::clone(&plan), Arc::clone(&tally), Arc::clone(&pace));
        let (queue, alive) = (Arc::clone(&queue), alive.clone());
        threads.push(task::thread("copy", move || {
            let writer = Writer::new(plan.way);
            Worker { plan: &plan, tally: &tally, pace: &pace, writer }.work(&queue);
            drop(alive);
        })?);
    }
    drop(queue);
    let walk = Walk::new(Arc::clone(&plan), Arc::clone(&tally), jobs);
    threads.push(task::thread("walk", move || {
        walk.run();
        drop(alive);
    })?);
    while ended.recv_timeout(SHOWN_EVERY) == Err(RecvTimeoutError::Timeout) {
        show(&tally.so_far());
    }
    for thread in threads {
        if let Err(panicked) = thread.join() {
            std::panic::resume_unwind(panicked);
        }
    }
    let path = |path: &std::path::Path| path.display().to_string();
    Ok(Report {
        from: path(&plan.from),
        to: path(&plan.to),
        dry_run: plan.dry_run,
        elapsed_ms: clock.mono().saturating_sub(began).as_millis() as u64,
        ..tally.so_far()
    })
}

impl Worker<'_> {
    fn work(&mut self, queue: &Mutex<Receiver<Job>>) {
        loop {
            let job = queue.lock().recv();
            match job {
                Err(_) => return,
                // What is left is only taken out of the queue.
                Ok(_) if self.tally.has_ended() => {}
                Ok(Job::Files(items)) => items.iter().for_each(|item| self.file(item)),
                Ok(Job::Unit(unit)) => self.unit(unit),
            }
        }
    }

    fn file(&mut self, item: &Item) {
        if self.tally.has_ended() {
            return;
        }
        match self.copy_file(item) {
            Ok(()) => {}
            Err(Trouble::Came) => self.tally.kept(1),
            Err(trouble) => self.tally.failed(&item.from(), &trouble),
        }
    }

    fn copy_file(&mut self, item: &Item) -> Result<(), Trouble> {
        let Some((about, standing)) = self.look(item)? else { return Ok(()) };
        let put = match (standing, self.plan.overwrite) {
            (Standing::Same, _) => {
                self.tally.same(1);
                return Ok(());
            }
            (Standing::Differs, false) => {
                self.tally.kept(1);
                return Ok(());
            }
            (Standing::Differs, true) => Put::Replace,
            (Standing::Missing, _) => Put::New,
        };
        let bytes = if self.plan.dry_run {
            bytes_of(&about)
        } else {
            item.dir.ensure()?;
            if about.is_symlink() {
                self.writer.link(item, &about, || Ok(()))?;
                0
            } else {
                self.writer.file(Source::open(&item.from())?, &item.to(), put, || Ok(()))?
            }
        };
        self.tally.wrote(bytes);
        Ok(())
    }
}

impl Way {
    /// Returns the word for what is being done.
    pub(in crate::cli) fn doing(self) -> &'static str {
        match self {
            Self::Import => "importing",
            Self::Export => "exporting",
        }
    }
}
