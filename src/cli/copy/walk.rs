//! The way through the source.
//!
//! Owns the choice of what is copied, and the gathering of units. Must never hold more of the tree than one open directory
//! for each level, and the names of units that are not over: a unit is over when its directory is.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::{DirEntry, ReadDir};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use super::Plan;
use super::clients::Clients;
use super::dirs::Dir;
use super::file::Item;
use super::report::{Left, Tally};
use super::trouble::Trouble;
use super::unit::{Member, Unit};
use super::work::Job;
use crate::name::TreePath;
use crate::namespace::{FileKind, Part, Scope};

/// How deep a tree may be: each level keeps a directory open.
const DEPTH_MAX: usize = 200;
/// How many plain files make a job.
const FILES_AT_ONCE: usize = 64;
/// How many files a unit may have; beyond that the daemon takes them for ordinary files, too.
const UNIT_FILES_MAX: usize = 4096;
/// How many files of all units that are not over are held.
const HELD_MAX: usize = 100_000;

/// Which unit: the rule that makes it one, where its directory ends in the path, and what all names begin with.
type UnitId = (u16, u32, Box<[u8]>);

/// A directory that is being listed.
#[derive(Debug)]
struct Level {
    dir: Arc<Dir>,
    names: ReadDir,
    /// All of it is chosen, or nothing of it is by now.
    chosen: bool,
    files: Vec<Item>,
    /// The units of this directory.
    units: HashMap<UnitId, Unit>,
}

/// The walk.
#[derive(Debug)]
pub(super) struct Walk {
    plan: Arc<Plan>,
    tally: Arc<Tally>,
    jobs: SyncSender<Job>,
    clients: Clients,
    levels: Vec<Level>,
    held: usize,
}

impl Walk {
    pub(super) fn new(plan: Arc<Plan>, tally: Arc<Tally>, jobs: SyncSender<Job>) -> Self {
        let clients = Clients::new(&plan);
        Self { plan, tally, jobs, clients, levels: Vec::new(), held: 0 }
    }

    /// Goes through all of it, until nothing more can be done.
    pub(super) fn run(mut self) {
        let (from, to) = (self.plan.from.clone(), self.plan.to.clone());
        let (place, chosen) = (self.plan.place.clone(), self.plan.globs.is_empty());
        self.enter(from, to, place, chosen);
        while let Some(level) = self.levels.last_mut() {
            if self.tally.has_ended() {
                return;
            }
            match level.names.next() {
                None => self.leave(),
                Some(Ok(entry)) => self.found(&entry),
                Some(Err(error)) => {
                    let dir = level.dir.from.clone();
                    self.tally.failed(&dir, &Trouble::Io("list it".into(), error));
                    self.leave();
                }
            }
        }
    }

    fn found(&mut self, entry: &DirEntry) {
        let Some(level) = self.levels.last() else { return };
        let (from, name) = (entry.path(), entry.file_name());
        let (to, chosen) = (level.dir.to.join(&name), level.chosen);
        let (place, kind) = match (level.dir.place.join(name.as_bytes()), entry.file_type()) {
            (Ok(place), Ok(kind)) => (place, kind),
            (Err(error), _) => {
                return self.tally.failed(&from, &Trouble::Said(error.to_string()));
            }
            (_, Err(error)) => {
                return self.tally.failed(&from, &Trouble::Io("look at it".into(), error));
            }
        };
        let chosen = chosen || self.fits(&place);
        if kind.is_dir() {
            return self.enter(from, to, place, chosen);
        }
        if !chosen {
            return;
        }
        if !kind.is_file() && !kind.is_symlink() {
            return self.tally.left_out(Left::Special, &from);
        }
        self.file(&place, name, &from);
    }

    /// Reports whether a name is one of those that are asked for.
    fn fits(&self, place: &TreePath) -> bool {
        let below = place.below(&self.plan.place).map(TreePath::from_bytes);
        let Some(Ok(below)) = below else { return false };
        self.plan.globs.iter().any(|glob| glob.fits_path(&below))
    }

    fn file(&mut self, place: &TreePath, name: OsString, from: &Path) {
        let plan = Arc::clone(&self.plan);
        let kind = plan.profiles.classify(place).kind;
        if let Some(why) = left_out(&kind) {
            return self.tally.left_out(why, from);
        }
        for warning in self.clients.seen(&plan, place) {
            self.tally.warn(warning);
        }
        let Some(level) = self.levels.last_mut() else { return };
        let item = Item { dir: Arc::clone(&level.dir), name: name.into() };
        if let FileKind::Unit(part) = kind {
            return self.member(&part, item);
        }
        level.files.push(item);
        if level.files.len() >= FILES_AT_ONCE {
            let files = std::mem::take(&mut level.files);
            self.send(Job::Files(files));
        }
    }

    /// Takes a file to the others of its unit, which are at the level of the unit's directory.
    fn member(&mut self, part: &Part<'_>, item: Item) {
        let key = &part.key;
        let dir = &key.prefix[..key.dir_bytes as usize];
        let depth = dir.split(|byte| *byte == 0).filter(|name| !name.is_empty()).count();
        let base = self.plan.place.components().count();
        let at = depth.saturating_sub(base).min(self.levels.len() - 1);
        let id: UnitId = (key.rule, key.dir_bytes, key.prefix.into());
        let new = || Unit::new(&self.plan, part);
        let unit = self.levels[at].units.entry(id.clone()).or_insert_with(new);
        unit.members.push(Member { item, is_entry: part.is_entry, is_marker: part.is_marker });
        self.held += 1;
        if unit.members.len() >= UNIT_FILES_MAX || self.held >= HELD_MAX {
            let unit = self.levels[at].units.remove(&id);
            self.send_unit(unit.map(|unit| Unit { is_whole: false, ..unit }));
        }
    }

    fn enter(&mut self, from: PathBuf, to: PathBuf, place: TreePath, chosen: bool) {
        if self.levels.len() >= DEPTH_MAX {
            let reason = format!("it lies more than {DEPTH_MAX} directories deep");
            return self.tally.failed(&from, &Trouble::Said(reason));
        }
        let listed = from.symlink_metadata().and_then(|about| Ok((about, from.read_dir()?)));
        let (about, names) = match listed {
            Ok(listed) => listed,
            Err(error) => {
                return self.tally.failed(&from, &Trouble::Io("list it".into(), error));
            }
        };
        let above = self.levels.last().map(|level| Arc::clone(&level.dir));
        let stays = left_out(&self.plan.profiles.classify(&place).kind).is_some();
        let dir = Dir::new(from, to, place, about, above, Arc::clone(&self.tally));
        // The others are made when something goes into them.
        if chosen
            && !stays
            && !self.plan.dry_run
            && let Err(trouble) = dir.ensure()
        {
            return self.tally.failed(&dir.from, &trouble);
        }
        let (files, units) = (Vec::new(), HashMap::new());
        self.levels.push(Level { dir: Arc::new(dir), names, chosen, files, units });
    }

    fn leave(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        if !level.files.is_empty() {
            self.send(Job::Files(level.files));
        }
        for unit in level.units.into_values() {
            self.send_unit(Some(unit));
        }
    }

    fn send_unit(&mut self, unit: Option<Unit>) {
        if let Some(unit) = unit {
            self.held -= unit.members.len();
            self.send(Job::Unit(unit));
        }
    }

    /// Hands a job over. Waits while there are too many; nobody is there any more only if a thread has panicked.
    fn send(&self, job: Job) {
        if self.jobs.send(job).is_err() {
            self.tally.end("the threads that copy are gone".to_owned());
        }
    }
}

/// Says why files of a kind are no part of what is copied: they belong to one node, or to one process.
fn left_out(kind: &FileKind<'_>) -> Option<Left> {
    match kind {
        FileKind::Temporary => Some(Left::Temporary),
        FileKind::NodeLocal => Some(Left::NodeLocal),
        FileKind::Lock(Scope::Node | Scope::Cluster) => Some(Left::Lock),
        FileKind::Ordinary | FileKind::WriteOnce | FileKind::Unit(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::super::Way;
    use super::super::report::Report;
    use super::*;
    use crate::namespace::{Pattern, Profiles};

    /// Walks through a tree of these files, and returns what came of it: plain files, and units with their files.
    fn walk(way: Way, globs: &[&str], files: &[&str]) -> (Vec<String>, Vec<Vec<String>>, Report) {
        let dir = tempfile::tempdir().expect("temporary directory");
        for file in files {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("mkdir");
            std::fs::write(path, file).expect("write");
        }
        let globs = globs.iter().map(|glob| Pattern::parse(glob).expect("a pattern")).collect();
        let plan = Plan {
            way,
            from: dir.path().to_owned(),
            to: "/nonexistent".into(),
            place: TreePath::root(),
            profiles: Profiles::default(),
            globs,
            overwrite: false,
            dry_run: true,
            unit_bytes: 1,
        };
        let tally = Arc::new(Tally::default());
        let (jobs, queue) = sync_channel(1000);
        Walk::new(Arc::new(plan), Arc::clone(&tally), jobs).run();
        let (mut plain, mut units) = (Vec::new(), Vec::new());
        let name = |item: &Item| {
            let path = item.from();
            path.strip_prefix(dir.path()).expect("below").display().to_string()
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
        assert_eq!(walk(Way::Export, &["*.json"], &files).0, Vec::<String>::new());
    }

    #[test]
    fn a_unit_of_too_many_files_is_copied_as_it_comes() {
        let names: Vec<String> = (0..=UNIT_FILES_MAX).map(|n| format!("triton/K/{n}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let (_, units, _) = walk(Way::Import, &[], &names);
        assert_eq!(units.iter().map(Vec::len).sum::<usize>(), names.len());
        assert_eq!(units.len(), 2);
    }

    #[test]
    fn what_lies_too_deep_is_named() {
        let deep = format!("{}file", "d/".repeat(DEPTH_MAX));
        let (plain, _, report) = walk(Way::Import, &[], &[&deep, "file"]);
        assert_eq!((plain.len(), report.failed), (1, 1));
        assert!(report.failures[0].reason.contains("directories deep"), "{:?}", report.failures);
    }
}
