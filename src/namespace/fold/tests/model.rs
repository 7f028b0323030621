//! Compares the compact fold with a plain one that stores everything in full and searches all of it each time.

use std::collections::BTreeMap;

use super::*;
use crate::namespace::{Attrs, EntryKind, Site};

const PATHS: [&str; 9] = ["a", "b", "a/c", "a/d", "a/c/e", "a/c/e/f", "a!", "b/x", "z"];
const PACKS: [&str; 2] = ["one", "two"];

#[derive(Debug, Clone)]
enum Step {
    Apply(Change),
    /// Restores a path to its state before any of the steps, or to a register.
    Reset(TreePath, Option<Register>),
    Restore(TreePath, Register),
    Locate(Digest, Location),
    Unlocate(Digest, Location),
    /// Rebuilds the fold from its stored form, sometimes in a wrong order.
    Rebuild(bool),
}

#[derive(Default)]
struct Model {
    registers: BTreeMap<TreePath, Register>,
    early: BTreeMap<TreePath, (Stamp, Stamp, Attrs)>,
    locations: BTreeMap<Digest, Location>,
}

impl Model {
    fn step(&mut self, step: &Step) {
        match step {
            Step::Apply(change) => self.apply(change),
            Step::Reset(path, Some(register)) => {
                self.registers.insert(path.clone(), register.clone());
            }
            Step::Reset(path, None) => drop(self.registers.remove(path)),
            Step::Restore(path, register) => {
                let newer = |known: &Register| {
                    (known.stamp, known.attr_stamp) < (register.stamp, register.attr_stamp)
                };
                if self.registers.get(path).is_none_or(newer) {
                    self.registers.insert(path.clone(), register.clone());
                }
            }
            Step::Locate(digest, location) => {
                let known = self.locations.get(digest);
                if known.is_none_or(|known| known.stored_ms < location.stored_ms) {
                    self.locations.insert(*digest, location.clone());
                }
            }
            Step::Unlocate(digest, wrong) => {
                if self.locations.get(digest) == Some(wrong) {
                    self.locations.remove(digest);
                }
            }
            Step::Rebuild(_) => {}
        }
    }

    fn apply(&mut self, change: &Change) {
        let Change { path, stamp, op } = change;
        let known = self.registers.get(path).cloned();
        match op {
            Op::Put(_) | Op::Remove if known.as_ref().is_some_and(|k| k.stamp >= *stamp) => {}
            Op::Put(_) | Op::Remove => {
                let entry = if let Op::Put(entry) = op { Some(entry.clone()) } else { None };
                let mut register = Register { stamp: *stamp, attr_stamp: None, entry };
                if let Some((of, at, attrs)) = self.early.get(path).cloned()
                    && of <= *stamp
                {
                    self.early.remove(path);
                    if let Some(entry) = register.entry.as_mut().filter(|_| of == *stamp) {
                        entry.attrs = attrs;
                        register.attr_stamp = Some(at);
                    }
                }
                self.registers.insert(path.clone(), register);
            }
            Op::Attrs { of, attrs } => match known {
                Some(Register { stamp: content, attr_stamp, entry: Some(entry) })
                    if content == *of =>
                {
                    if attr_stamp.is_none_or(|known| known < *stamp) {
                        let entry = Some(Entry { attrs: attrs.clone(), ..entry });
                        let register = Register { stamp: content, attr_stamp: Some(*stamp), entry };
                        self.registers.insert(path.clone(), register);
                    }
                }
                Some(Register { stamp: content, .. }) if content >= *of => {}
                _ => {
                    let known = self.early.get(path);
                    if known.is_none_or(|known| (known.0, known.1) < (*of, *stamp)) {
                        self.early.insert(path.clone(), (*of, *stamp, attrs.clone()));
                    }
                }
            },
        }
    }

    fn live(&self, path: &TreePath) -> Option<&Entry> {
        self.registers.get(path)?.entry.as_ref()
    }

    fn below(&self, dir: &TreePath) -> impl Iterator<Item = (&TreePath, &Register)> {
        self.registers.iter().filter(move |(path, _)| path.is_below(dir))
    }

    fn is_reachable(&self, path: &TreePath) -> bool {
        let mut above = std::iter::successors(path.parent(), TreePath::parent);
        above.all(|dir| self.live(&dir).is_none_or(Entry::is_directory))
    }

    fn is_directory(&self, path: &TreePath) -> bool {
        let implied = || self.below(path).any(|(_, register)| register.entry.is_some());
        path.is_root()
            || self.is_reachable(path) && self.live(path).map_or_else(implied, Entry::is_directory)
    }

    fn children(&self, dir: &TreePath) -> Vec<Child> {
        let mut found: BTreeMap<Box<[u8]>, Option<Register>> = BTreeMap::new();
        for (path, register) in self.below(dir).filter(|(_, register)| register.entry.is_some()) {
            let rest = path.below(dir).expect("a path below the directory");
            let name = rest.split(|byte| *byte == 0).next().expect("a name");
            let own = found.entry(name.into()).or_default();
            if name.len() == rest.len() {
                *own = Some(register.clone());
            }
        }
        found.into_iter().map(|(name, register)| Child { name, register }).collect()
    }
}

/// Asserts that both hold the same.
fn compare(fold: &Fold, model: &Model) {
    let registers: Vec<(TreePath, Register)> =
        model.registers.iter().map(|(path, register)| (path.clone(), register.clone())).collect();
    assert_eq!(fold.registers().collect::<Vec<_>>(), registers);
    assert_eq!(fold.locations().collect::<BTreeMap<_, _>>(), model.locations);
    let live = registers.iter().filter(|(_, register)| register.entry.is_some());
    assert_eq!(fold.len(), live.clone().count());
    let mut used: Vec<Digest> =
        live.clone().filter_map(|(_, r)| Some(r.entry.as_ref()?.content()?.0)).collect();
    used.sort();
    used.dedup();
    let mut contents: Vec<Digest> = fold.contents().collect();
    contents.sort();
    assert_eq!(contents, used);
    for digest in all_digests() {
        assert_eq!(fold.uses(&digest), used.contains(&digest));
        let location = model.locations.get(&digest);
        assert_eq!(fold.location(&digest).as_ref(), location);
        assert_eq!(fold.stored_ms(&digest), location.map(|location| location.stored_ms));
    }
    let root = TreePath::root();
    for at in PATHS.iter().map(|at| path(at)).chain([root]) {
        assert_eq!(fold.register(&at), model.registers.get(&at).cloned());
        let visible = model.live(&at).filter(|_| model.is_reachable(&at));
        assert_eq!(fold.entry(&at).as_ref(), visible);
        assert_eq!(fold.is_directory(&at), model.is_directory(&at), "{at}");
        let is = match fold.at(&at) {
            PathIs::Entry(register) => register.entry.as_ref() == visible,
            PathIs::ImpliedDirectory => visible.is_none() && model.is_directory(&at),
            PathIs::Nothing { is_known } => {
                visible.is_none()
                    && (at.is_root() || !model.is_directory(&at))
                    && is_known == fold.knows(&at)
            }
        };
        assert!(is, "{at}");
        assert_eq!(fold.children(&at), model.children(&at), "{at}");
        let below: Vec<_> = model.below(&at).map(|(p, r)| (p.clone(), r.clone())).collect();
        assert_eq!(fold.below(&at).collect::<Vec<_>>(), below);
        let behind = registers.iter().filter(|(path, _)| *path > at).cloned();
        assert_eq!(fold.registers_after(&at).collect::<Vec<_>>(), behind.collect::<Vec<_>>());
        let made = live.clone().filter(|(path, register)| {
            path.parent().as_ref() == Some(&at)
                && register.entry.as_ref().is_some_and(Entry::is_directory)
        });
        assert_eq!(fold.subdirectories(&at) as usize, made.count());
        let known = model.registers.contains_key(&at) || model.early.contains_key(&at);
        assert_eq!(fold.knows(&at), known);
    }
    for group in all_groups() {
        let names = live.clone().filter(|(_, r)| r.entry.as_ref().unwrap().link == Some(group));
        let names: Vec<TreePath> = names.map(|(path, _)| path.clone()).collect();
        assert_eq!(fold.links(group).cloned().collect::<Vec<_>>(), names);
    }
}

fn all_digests() -> impl Iterator<Item = Digest> {
    (0..4_u8).map(|n| Digest::of(&[n]))
}

fn all_groups() -> impl Iterator<Item = Stamp> {
    (0..2).map(|n| stamp(n, 7))
}

fn any_digest() -> impl Strategy<Value = Digest> {
    prop::sample::select(all_digests().collect::<Vec<_>>())
}

fn any_path() -> impl Strategy<Value = TreePath> {
    prop::sample::select(PATHS.to_vec()).prop_map(path)
}

fn any_stamp() -> impl Strategy<Value = Stamp> {
    (0..12_u64, 0..2_u64).prop_map(|(ms, node)| stamp(ms, node))
}

fn any_attrs() -> impl Strategy<Value = Attrs> {
    (0..0o10000_u32, 0..3_i64).prop_map(|(mode, secs)| {
        let mtime = Time { secs, nanos: mode };
        Attrs { mode, mtime, ..Attrs::default() }
    })
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let file = any_digest().prop_map(|digest| EntryKind::File { digest, size: 9 });
    let kind = prop_oneof![4 => file, 2 => Just(EntryKind::Directory)];
    let link = prop::option::weighted(0.3, prop::sample::select(all_groups().collect::<Vec<_>>()));
    (kind, any_attrs(), link).prop_map(|(kind, attrs, link)| Entry { kind, attrs, link })
}

fn any_register() -> impl Strategy<Value = Register> {
    (any_stamp(), prop::option::of(any_stamp()), prop::option::of(any_entry())).prop_map(
        |(stamp, attr_stamp, entry)| Register {
            stamp,
            attr_stamp: attr_stamp.filter(|_| entry.is_some()),
            entry,
        },
    )
}

fn any_location() -> impl Strategy<Value = Location> {
    let pack = (prop::sample::select(PACKS.to_vec()), 0..3_u64)
        .prop_map(|(pack, offset)| Site::Pack { pack: pack.into(), offset, length: 4 });
    let site = prop_oneof![
        pack,
        Just(Site::Object),
        prop::sample::select(PACKS.to_vec()).prop_map(|name| Site::Inline { commit: name.into() }),
    ];
    (site, 0..4_u64).prop_map(|(site, stored_ms)| Location { site, size: 9, stored_ms })
}

fn any_step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        5 => any_entry().prop_map(Op::Put),
        2 => Just(Op::Remove),
        3 => (any_stamp(), any_attrs()).prop_map(|(of, attrs)| Op::Attrs { of, attrs }),
    ];
    let change =
        (any_path(), any_stamp(), op).prop_map(|(path, stamp, op)| Change { path, stamp, op });
    prop_oneof![
        10 => change.prop_map(Step::Apply),
        2 => (any_path(), prop::option::of(any_register()))
            .prop_map(|(path, register)| Step::Reset(path, register)),
        2 => (any_path(), any_register()).prop_map(|(path, r)| Step::Restore(path, r)),
        4 => (any_digest(), any_location()).prop_map(|(d, l)| Step::Locate(d, l)),
        2 => (any_digest(), any_location()).prop_map(|(d, l)| Step::Unlocate(d, l)),
        1 => any::<bool>().prop_map(Step::Rebuild),
    ]
}

/// Builds a new fold from the contents of another.
fn rebuilt(fold: &Fold, in_order: bool) -> Fold {
    let mut builder = Builder::new();
    let mut all: Vec<_> = fold.registers().collect();
    if !in_order {
        all.reverse();
    }
    let mut locations: Vec<_> = fold.locations().collect();
    let later = locations.split_off(locations.len() / 2);
    for (digest, location) in locations {
        builder.locate(digest, &location);
    }
    for (path, register) in all {
        if in_order {
            builder.restore(&path, register);
        } else {
            builder.reset(&path, Some(register));
        }
    }
    for (digest, location) in later {
        builder.relocate(digest, Some(&location));
    }
    let mut made = builder.finish();
    made.early_attrs.clone_from(&fold.early_attrs);
    made
}

proptest! {
    #[test]
    fn the_compact_fold_is_the_plain_one(steps in prop::collection::vec(any_step(), 0..60)) {
        let (mut fold, mut model) = (Fold::new(), Model::default());
        for step in steps {
            match &step {
                Step::Apply(change) => drop(fold.apply(change, Time::default())),
                Step::Reset(path, register) => fold.reset(path, register.clone()),
                Step::Restore(path, register) => fold.restore(path, register),
                Step::Locate(digest, location) => drop(fold.locate(*digest, location)),
                Step::Unlocate(digest, wrong) => fold.unlocate(digest, wrong),
                Step::Rebuild(in_order) => fold = rebuilt(&fold, *in_order),
            }
            model.step(&step);
            compare(&fold, &model);
        }
    }
}
