//! The walk through the source.
//!
//! Owns the choice of what is copied, and the gathering of units. A unit is complete when its
//! directory was listed to the end. If a directory has too many units to hold, the walk gathers
//! some of them and lists the directory again for the others. Must never hold more than one open
//! directory for each level and a bounded number of names.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use rustix::fs::{FileType, fstat};

use super::CopyPlan;
use super::about::About;
use super::clients::Clients;
use super::dirs::{Dir, Ground};
use super::file::{Item, is_temporary};
use super::job::{Job, Unit, UnitFile};
use super::report::Left;
use super::share::{UnitId, UnitShare};
use super::tree::DirNames;
use super::trouble::{CopyTrouble, Doing as _, Done, Side};
use crate::name::TreePath;
use crate::namespace::{FileKind, Part, Scope, UnitKey};

/// The greatest depth of a tree. Each level keeps a directory open.
const DEPTH_MAX: usize = 200;
/// The most plain files of one job.
const FILES_AT_ONCE: usize = 64;
/// The most files of a unit. The daemon treats the files of a larger one as ordinary files.
const UNIT_FILES_MAX: usize = 4096;
/// The most files of incomplete units that are held, not counting units that are whole directories.
const HELD_MAX: usize = 100_000;

/// A directory that is being listed.
#[derive(Debug)]
struct Level {
    dir: Arc<Dir>,
    names: DirNames,
    /// The whole directory is chosen. Otherwise single names in it may be.
    chosen: bool,
    files: Vec<Item>,
    /// The units of this directory.
    units: HashMap<UnitId, Unit>,
    /// Which of them are gathered in this listing; later listings gather the others.
    share: UnitShare,
    later: Vec<UnitShare>,
    /// One of several units of this directory has members in subdirectories.
    is_deep: bool,
}

/// The walk.
#[derive(Debug)]
pub(super) struct Walk {
    plan: Arc<CopyPlan>,
    ground: Arc<Ground>,
    jobs: SyncSender<Job>,
    clients: Clients,
    levels: Vec<Level>,
    held: usize,
    held_max: usize,
    /// The level that is listed again: only members of its units are taken.
    again: Option<usize>,
    /// For each glob, whether a name was found that it fits.
    matched: Vec<bool>,
}

impl Walk {
    pub(super) fn new(plan: Arc<CopyPlan>, ground: Arc<Ground>, jobs: SyncSender<Job>) -> Self {
        let clients = Clients::new(&plan);
        let (levels, held, held_max, again) = (Vec::new(), 0, HELD_MAX, None);
        let matched = vec![false; plan.globs.len()];
        Self { plan, ground, jobs, clients, levels, held, held_max, again, matched }
    }

    /// Walks the whole tree, or until the copy is aborted.
    pub(super) fn run(mut self) {
        let (place, chosen) = (self.plan.place.clone(), self.plan.globs.is_empty());
        let root = self.ground.trees.directory(Side::Source, Path::new(""));
        self.enter(root, PathBuf::new(), place, chosen);
        while let Some(level) = self.levels.last_mut() {
            if self.ground.tally.has_ended() {
                return;
            }
            match level.names.next() {
                None => self.leave(),
                Some(Ok((name, kind))) => self.found(name, kind),
                Some(Err(error)) => {
                    let dir = level.dir.from();
                    self.failed(&dir, &CopyTrouble::Io(Side::Source, "list it".into(), error));
                    self.leave();
                }
            }
        }
        let globs = self.plan.globs.iter().zip(&self.matched);
        let unmatched = globs.filter(|(_, matched)| !**matched).map(|(glob, _)| glob.text());
        self.ground.tally.unmatched(unmatched);
    }

    fn failed(&self, path: &Path, trouble: &CopyTrouble) {
        self.ground.tally.failed(self.ground.way, path, trouble);
    }

    fn found(&mut self, name: OsString, kind: FileType) {
        let Some(level) = self.levels.last() else { return };
        let (dir, chosen) = (Arc::clone(&level.dir), level.chosen);
        let from = || dir.from().join(&name);
        let place = match dir.place.join(name.as_bytes()) {
            Ok(place) => place,
            Err(error) => return self.failed(&from(), &CopyTrouble::Said(error.to_string())),
        };
        let chosen = fits(&self.plan, &place, &mut self.matched) || chosen;
        if kind == FileType::Directory {
            if self.again.is_none_or(|at| self.levels[at].is_deep) {
                let (opened, below) = (level.names.open(&name), dir.below.join(&name));
                self.enter(opened, below, place, chosen);
            }
            return;
        }
        if !chosen {
            return;
        }
        if kind == FileType::RegularFile || kind == FileType::Symlink {
            self.file(&place, name);
        } else if self.again.is_none() {
            self.ground.tally.left_out(Left::Special, &from());
        }
    }

    fn file(&mut self, place: &TreePath, name: OsString) {
        let plan = Arc::clone(&self.plan);
        let kind = plan.profiles.classify(place).kind;
        let Some(level) = self.levels.last_mut() else { return };
        let item = Item { dir: Arc::clone(&level.dir), name: name.into() };
        let kind = if is_temporary(&item.name) { FileKind::Temporary } else { kind };
        if let FileKind::Unit(part) = kind {
            self.warn(&plan, place);
            return self.member(&part, item);
        }
        if self.again.is_some() {
            return;
        }
        if let Some(why) = left_out(&kind) {
            return self.ground.tally.left_out(why, &item.from());
        }
        level.files.push(item);
        let is_job = level.files.len() >= FILES_AT_ONCE;
        let files = if is_job { std::mem::take(&mut level.files) } else { Vec::new() };
        self.warn(&plan, place);
        if is_job {
            self.send(Job::Files(files));
        }
    }

    fn warn(&mut self, plan: &CopyPlan, place: &TreePath) {
        for warning in self.clients.seen(plan, place) {
            self.ground.tally.warn(warning);
        }
    }

    /// Returns the level of a unit's directory.
    fn level_of(&self, key: &UnitKey<'_>) -> usize {
        let dir = &key.prefix[..key.dir_bytes as usize];
        let depth = dir.split(|byte| *byte == 0).filter(|name| !name.is_empty()).count();
        let base = self.plan.place.components().count();
        depth.saturating_sub(base).min(self.levels.len() - 1)
    }

    /// Adds a file to its unit, which is held at the level of the unit's directory.
    fn member(&mut self, part: &Part<'_>, item: Item) {
        let (key, at) = (&part.key, self.level_of(&part.key));
        if self.again.is_some_and(|again| again != at) {
            return;
        }
        let id: UnitId = (key.rule, key.dir_bytes, key.prefix.into());
        let is_named = key.prefix.len() > key.dir_bytes as usize;
        let is_below = at + 1 < self.levels.len();
        let level = &mut self.levels[at];
        level.is_deep |= is_named && is_below;
        if is_named && !level.share.has(&id) {
            return;
        }
        let new = || Unit { is_named, ..Unit::new(&self.plan, part) };
        let unit = level.units.entry(id).or_insert_with(new);
        let (is_entry, is_marker) = (part.is_entry, part.is_marker);
        unit.members.push(UnitFile { item, is_entry, is_marker });
        self.held += usize::from(is_named);
        if unit.members.len() >= UNIT_FILES_MAX {
            // The remaining files are a part as well.
            unit.is_whole = false;
            let members = std::mem::take(&mut unit.members);
            let part = Unit { members, ..*unit };
            self.send_unit(part);
        } else if is_named && self.held >= self.held_max {
            self.put_off();
        }
    }

    /// Drops half of the units of the level with the most held files. A later listing of its directory gathers them.
    fn put_off(&mut self) {
        let held = |level: &Level| {
            let named = level.units.values().filter(|unit| unit.is_named);
            named.map(|unit| unit.members.len()).sum::<usize>()
        };
        let Some(level) = self.levels.iter_mut().max_by_key(|level| held(level)) else { return };
        if level.share.bits == UnitShare::BITS_MAX {
            return;
        }
        let (now, later) = level.share.halves();
        level.share = now;
        level.later.push(later);
        let mut dropped = 0;
        level.units.retain(|id, unit| {
            let stays = !unit.is_named || now.has(id);
            dropped += if stays { 0 } else { unit.members.len() };
            stays
        });
        self.held -= dropped;
    }

    fn enter(
        &mut self,
        opened: io::Result<OwnedFd>,
        below: PathBuf,
        place: TreePath,
        chosen: bool,
    ) {
        let from = || self.ground.trees.path(Side::Source, &below);
        if self.levels.len() >= DEPTH_MAX {
            let reason = format!("it lies more than {DEPTH_MAX} directories deep");
            return self.failed(&from(), &CopyTrouble::Said(reason));
        }
        let (about, names) = match self.listed(opened) {
            Ok(listed) => listed,
            Err(trouble) => return self.failed(&from(), &trouble),
        };
        let above = self.levels.last().map(|level| Arc::clone(&level.dir));
        let stays = left_out(&self.plan.profiles.classify(&place).kind).is_some();
        let dir = Dir::new(Arc::clone(&self.ground), below, place, about, above);
        // Other directories are made when a file is written into them.
        if chosen
            && !stays
            && !self.plan.dry_run
            && let Err(trouble) = dir.ensure()
        {
            return self.failed(&dir.from(), &trouble);
        }
        self.levels.push(Level {
            dir: Arc::new(dir),
            names,
            chosen,
            files: Vec::new(),
            units: HashMap::new(),
            share: UnitShare::default(),
            later: Vec::new(),
            is_deep: false,
        });
    }

    fn listed(&self, opened: io::Result<OwnedFd>) -> Done<(About, DirNames)> {
        let dir = opened.source("open it")?;
        let about = About::of(&fstat(&dir).map_err(io::Error::from).source("look at it")?);
        if self.ground.trees.is_other_root(Side::Source, about.id) {
            return Err(CopyTrouble::Said("it is the target directory".to_owned()));
        }
        Ok((about, DirNames::of(dir).source("list it")?))
    }

    /// Ends the listing of a directory. It is listed again if units were put off.
    fn leave(&mut self) {
        let at = self.levels.len() - 1;
        let Some(level) = self.levels.last_mut() else { return };
        let (files, units) = (std::mem::take(&mut level.files), std::mem::take(&mut level.units));
        if !files.is_empty() {
            self.send(Job::Files(files));
        }
        for unit in units.into_values().filter(|unit| !unit.members.is_empty()) {
            self.send_unit(unit);
        }
        let level = &mut self.levels[at];
        if let Some(share) = level.later.pop() {
            level.share = share;
            level.names.rewind();
            self.again = Some(at);
            return;
        }
        self.levels.pop();
        self.again = self.again.filter(|again| *again != at);
    }

    fn send_unit(&mut self, unit: Unit) {
        self.held -= if unit.is_named { unit.members.len() } else { 0 };
        self.send(Job::Unit(unit));
    }

    /// Queues a job. Waits while there are too many. The other end is gone only if a thread has panicked.
    fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            self.ground.tally.end("the threads that copy are gone".to_owned());
        }
    }
}

/// Returns why files of a kind are never copied: they belong to one node, or to one process.
fn left_out(kind: &FileKind<'_>) -> Option<Left> {
    match kind {
        FileKind::Temporary => Some(Left::Temporary),
        FileKind::NodeLocal => Some(Left::NodeLocal),
        FileKind::Lock(Scope::Node | Scope::Cluster) => Some(Left::Lock),
        FileKind::Ordinary | FileKind::WriteOnce | FileKind::Unit(_) => None,
    }
}

/// Reports whether a name is among the requested ones, and notes by which globs.
fn fits(plan: &CopyPlan, place: &TreePath, matched: &mut [bool]) -> bool {
    let Some(Ok(below)) = place.below(&plan.place).map(TreePath::from_bytes) else { return false };
    let mut fits = false;
    for (glob, matched) in plan.globs.iter().zip(matched) {
        let this = glob.fits_path(&below);
        (fits, *matched) = (fits || this, *matched || this);
    }
    fits
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::Way;
    use super::super::report::{CopyReport, CopyTally};
    use super::super::tree::Trees;
    use super::*;
    use crate::namespace::{Pattern, Profiles};

    type Walked = (Vec<String>, Vec<Vec<String>>, CopyReport);

    fn walk(way: Way, globs: &[&str], files: &[&str]) -> Walked {
        walk_holding(HELD_MAX, way, globs, files)
    }

    /// Walks through a tree of these files, and returns what it found: plain files, and units with their files.
    fn walk_holding(held_max: usize, way: Way, globs: &[&str], files: &[&str]) -> Walked {
        let dir = tempfile::tempdir().expect("temporary directory");
        let root = dir.path().canonicalize().expect("the directory exists");
        let on_mount = if way == Way::Import { Path::new("/") } else { &root };
        let device = rustix::fs::stat(on_mount).expect("stat").st_dev;
        for file in files {
            let path = root.join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
            std::fs::write(path, file).expect("write");
        }
        let globs = globs.iter().map(|glob| Pattern::parse(glob).expect("a pattern")).collect();
        let plan = CopyPlan {
            way,
            from: root.clone(),
            to: "/nonexistent".into(),
            place: TreePath::root(),
            profiles: Profiles::default(),
            globs,
            overwrite: false,
            dry_run: true,
            unit_bytes: 1,
            bytes_max: u64::MAX,
        };
        let tally = Arc::new(CopyTally::default());
        let (jobs, queue) = sync_channel(1000);
        let trees = Trees::open(way, &plan.from, &plan.to, device).expect("the trees");
        let ground = Ground { way, trees: Arc::new(trees), tally: Arc::clone(&tally) };
        let mut walk = Walk::new(Arc::new(plan), Arc::new(ground), jobs);
        walk.held_max = held_max;
        walk.run();
        let (mut plain, mut units) = (Vec::new(), Vec::new());
        let name = |item: &Item| {
            let path = item.from();
            path.strip_prefix(&root).expect("below the root").display().to_string()
        };
        for job in queue {
            match job {
                Job::Files(items) => plain.extend(items.iter().map(name)),
                Job::Unit(unit) => {
                    let mut names: Vec<_> = unit.members.iter().map(|m| name(&m.item)).collect();
                    names.sort();
                    units.push(names);
                }
            }
        }
        plain.sort();
        units.sort();
        (plain, units, tally.so_far())
    }

    #[test]
    fn units_are_gathered_and_what_belongs_to_a_node_is_left_out() {
        let files = [
            "triton/A/__grp__k.json",
            "triton/A/k.ptx",
            "triton/A/tmp.pid_1_x/k.ptx",
            "triton/B/__grp__k.json",
            "triton/C/launcher.so",
            "vllm/torch_compile_cache/h/rank_0_0/p/vllm_compile_cache.py",
            "vllm/torch_compile_cache/h/rank_0_0/p/deep/er/artifact",
            "numba/d/m.f-1.py311.nbi",
            "numba/d/m.f-1.py311.1.nbc",
            "numba/d/m.g-1.py311.nbi",
            "ccache/stats",
            "ccache/0/1/xR",
            "neuron/v/MODULE_1/model.hlo.lock",
            "neuron/v/MODULE_1/model.done",
            "mine/stats",
            "mine/Cargo.lock",
        ];
        let (plain, units, report) = walk(Way::Import, &[], &files);
        assert_eq!(
            plain,
            ["ccache/0/1/xR", "mine/Cargo.lock", "mine/stats", "triton/C/launcher.so"]
        );
        assert_eq!(
            units,
            [
                &["neuron/v/MODULE_1/model.done"][..],
                &["numba/d/m.f-1.py311.1.nbc", "numba/d/m.f-1.py311.nbi"],
                &["numba/d/m.g-1.py311.nbi"],
                &["triton/A/__grp__k.json", "triton/A/k.ptx"],
                &["triton/B/__grp__k.json"],
                &[
                    "vllm/torch_compile_cache/h/rank_0_0/p/deep/er/artifact",
                    "vllm/torch_compile_cache/h/rank_0_0/p/vllm_compile_cache.py",
                ],
            ]
        );
        let left: Vec<_> = report.left_out.into_iter().collect();
        assert_eq!(left, [("lock", 1), ("node_local", 1), ("temporary", 1)]);
        assert_eq!(report.failed, 0, "{:?}", report.failures);
    }

    #[test]
    fn globs_choose_files_and_whole_directories() {
        let files = ["a/x.json", "a/y", "b/c/x.json", "b/c/z", "d/e/f"];
        let (plain, _, _) = walk(Way::Export, &["**/*.json", "d"], &files);
        assert_eq!(plain, ["a/x.json", "b/c/x.json", "d/e/f"]);
        let (plain, _, report) = walk(Way::Export, &["*.json", "d", "d/e/*", "d/x"], &files);
        assert_eq!(plain, ["d/e/f"]);
        assert_eq!(report.unmatched, ["*.json", "d/x"]);
    }

    #[test]
    fn a_unit_of_too_many_files_is_copied_as_it_comes() {
        let names: Vec<String> = (0..=UNIT_FILES_MAX).map(|n| format!("triton/K/{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (_, units, _) = walk(Way::Import, &[], &names);
        assert_eq!(units.iter().map(Vec::len).sum::<usize>(), names.len());
        assert_eq!(units.len(), 2);
        assert_eq!(walk(Way::Import, &[], &names[1..]).1.len(), 1);
    }

    #[test]
    fn units_stay_whole_however_many_there_are() {
        let mut names = vec!["numba/d/deep/plain".to_owned(), "triton/K/__grp__k.json".to_owned()];
        for number in 0..100 {
            let data = (0..3).map(|data| format!("{data}.nbc"));
            let ends = data.chain(["nbi".to_owned()]);
            names.extend(ends.map(|end| format!("numba/d/m.f-{number}.{end}")));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (plain, units, report) = walk_holding(50, Way::Import, &[], &names);
        assert_eq!(plain, ["numba/d/deep/plain"]);
        assert_eq!(units.len(), 101);
        assert!(
            units.iter().all(|unit| unit.len() == if unit[0].starts_with('n') { 4 } else { 1 })
        );
        assert_eq!(report.failed, 0, "{:?}", report.failures);
    }

    #[test]
    fn what_lies_too_deep_is_named() {
        let deep = format!("{}file", "d/".repeat(DEPTH_MAX));
        let (plain, _, report) = walk(Way::Import, &[], &[&deep, "file"]);
        assert_eq!((plain.len(), report.failed), (1, 1));
        assert!(report.failures[0].reason.contains("directories deep"), "{:?}", report.failures);
    }
}
