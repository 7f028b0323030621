//! The threads of a copy: one walks the source, the others copy.
//!
//! Owns their number, the queue between them, and the end. Must never continue after a fatal failure: a mount
//! that is gone would make a failure of each remaining file.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::Duration;

use parking_lot::Mutex;

use super::about::About;
use super::dirs::{Dir, Ground, is_not_a_directory, not_a_directory};
use super::file::{FileWriter, Item, Put, SourceFile, Standing};
use super::job::Job;
use super::pace::CopyPace;
use super::report::{CopyEnds, CopyReport, CopyTally, Left};
use super::tree::{HeldDir, OpenDirs, Trees};
use super::trouble::{CopyTrouble, Doing as _, Done, Side};
use super::turn::ImportTurn;
use super::walk::Walk;
use super::{CopyPlan, Way};
use crate::clock::Clock;
use crate::task;

/// The number of threads that copy. A thread mostly waits for the daemon.
const THREADS: usize = 4;
/// The most pending jobs.
const JOBS_MAX: usize = 64;
/// The interval between updates of the progress.
const SHOWN_EVERY: Duration = Duration::from_millis(200);

/// The state of a thread that copies.
#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub(super) plan: &'a CopyPlan,
    pub(super) trees: &'a Trees,
    pub(super) tally: &'a CopyTally,
    pub(super) pace: &'a CopyPace,
    pub(super) writer: FileWriter,
    pub(super) held: OpenDirs,
}

/// Copies a tree, and calls `show` at intervals with the report so far. Fails only if a thread cannot be started.
pub(super) fn copy(
    plan: CopyPlan,
    trees: Trees,
    turn: Option<&ImportTurn>,
    mut show: impl FnMut(&CopyReport),
) -> io::Result<CopyReport> {
    let clock = Clock::system();
    let began = clock.mono();
    let (plan, trees, tally) = (Arc::new(plan), Arc::new(trees), Arc::new(CopyTally::default()));
    let pace = CopyPace::new(plan.unit_bytes, clock.clone());
    if let Some(turn) = turn {
        pace.count_earlier(turn.earlier());
    }
    let pace = Arc::new(pace);
    let (jobs, queue) = sync_channel(JOBS_MAX);
    let queue = Arc::new(Mutex::new(queue));
    // Held by each thread until its end.
    let (alive, ended) = sync_channel::<()>(1);
    let mut threads = Vec::new();
    for _ in 0..THREADS {
        let (plan, trees) = (Arc::clone(&plan), Arc::clone(&trees));
        let (tally, pace) = (Arc::clone(&tally), Arc::clone(&pace));
        let (queue, alive) = (Arc::clone(&queue), alive.clone());
        threads.push(task::thread("copy", move || {
            let (writer, held) =
                (FileWriter::new(plan.way, plan.bytes_max), OpenDirs::new(Arc::clone(&trees)));
            let (plan, trees, tally, pace) = (&*plan, &*trees, &*tally, &*pace);
            Worker { plan, trees, tally, pace, writer, held }.work(&queue);
            drop(alive);
        })?);
    }
    drop(queue);
    let ground = Ground { way: plan.way, trees, tally: Arc::clone(&tally) };
    let walk = Walk::new(Arc::clone(&plan), Arc::new(ground), jobs);
    threads.push(task::thread("walk", move || {
        walk.run();
        drop(alive);
    })?);
    let note = |pace: &CopyPace| {
        if let Some(turn) = turn {
            turn.note(pace.cost());
        }
    };
    while ended.recv_timeout(SHOWN_EVERY) == Err(RecvTimeoutError::Timeout) {
        show(&tally.so_far());
        note(&pace);
    }
    note(&pace);
    for thread in threads {
        if let Err(panicked) = thread.join() {
            std::panic::resume_unwind(panicked);
        }
    }
    let path = |path: &std::path::Path| path.display().to_string();
    Ok(CopyReport {
        ends: CopyEnds { from: path(&plan.from), to: path(&plan.to) },
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
                // The copy was aborted: the queue is emptied, so that the walk does not block.
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
            Err(CopyTrouble::Came) => self.tally.kept(1),
            Err(trouble) => self.tally.failed(self.plan.way, &item.from(), &trouble),
        }
    }

    fn copy_file(&mut self, item: &Item) -> Done<()> {
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
            (Standing::Missing, true) if self.plan.way == Way::Export => Put::Replace,
            (Standing::Missing, _) => Put::New,
        };
        if self.plan.dry_run {
            self.tally.wrote(about.bytes());
            return Ok(());
        }
        item.dir.ensure()?;
        let (from, to) = (self.source_dir(&item.dir)?, self.target_dir(&item.dir)?);
        let (from, to) = (from.at(&item.name), to.at(&item.name));
        let bytes = if about.is_link() {
            self.writer.link(from, &about, to, put, || Ok(()))?;
            0
        } else {
            self.writer.file(SourceFile::open(from)?, to, put, || Ok(()))?
        };
        self.tally.wrote(bytes);
        Ok(())
    }

    /// Opens the directory of the source that an item is in.
    pub(super) fn source_dir(&mut self, dir: &Dir) -> Done<HeldDir> {
        self.held.place(Side::Source, &dir.below).source("open its directory")
    }

    /// Opens the directory of the target that an item goes to.
    pub(super) fn target_dir(&mut self, dir: &Dir) -> Done<HeldDir> {
        self.held.place(Side::Target, &dir.below).map_err(|error| {
            if is_not_a_directory(&error) {
                return CopyTrouble::Said(not_a_directory(&dir.to()));
            }
            let doing = format!("open the directory {}", dir.to().display());
            CopyTrouble::Io(Side::Target, doing.into(), error)
        })
    }

    /// Examines a name of the source and compares it with the target. Returns `None` if it is
    /// neither a file nor a link.
    pub(super) fn look(&mut self, item: &Item) -> Done<Option<(About, Standing)>> {
        let dir = self.source_dir(&item.dir)?;
        let from = dir.at(&item.name);
        let about = from.about().source("look at it")?;
        if !about.is_file() && !about.is_link() {
            self.tally.left_out(Left::Special, &item.from());
            return Ok(None);
        }
        let dir = match self.target_dir(&item.dir) {
            Ok(dir) => dir,
            Err(CopyTrouble::Io(_, _, error)) if error.kind() == ErrorKind::NotFound => {
                return Ok(Some((about, Standing::Missing)));
            }
            Err(trouble) => return Err(trouble),
        };
        let to = dir.at(&item.name);
        let there = match to.about() {
            Ok(there) => there,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Some((about, Standing::Missing)));
            }
            Err(error) => return Err(error).target("look at what is there"),
        };
        if there.is_dir() {
            return Err(CopyTrouble::Said(format!("{} is a directory", item.to().display())));
        }
        let is_same = if about.is_link() && there.is_link() {
            from.link_target().source("read the link")?
                == to.link_target().target("read the link")?
        } else {
            about.is_file() && about.is_version(&there)
        };
        let standing = if is_same { Standing::Same } else { Standing::Differs };
        Ok(Some((about, standing)))
    }
}

impl Way {
    /// Returns the verb for progress messages.
    pub(in crate::cli) fn doing(self) -> &'static str {
        match self {
            Self::Import => "importing",
            Self::Export => "exporting",
        }
    }
}
