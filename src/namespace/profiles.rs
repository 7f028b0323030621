//! What is known about the programs that cache here: their variables, and the kinds of their files.
//!
//! Owns the profiles, which are data (`profiles.toml`), and the classification of paths. Must never
//! open or read a file: it sees only names.

mod class;
mod pattern;
mod program;
mod spec;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub use class::{Check, Class, Counted, FileKind, Part, Role, Scope, Touch, UnitKey, Writers};
use pattern::PathNames;
pub use pattern::Pattern;
pub use program::{Program, Tree};
pub use spec::{PROFILE_KEYS, Profile, Refused, Rule, RuleKind, Unless};

use crate::name::TreePath;

const SHIPPED: &str = include_str!("profiles.toml");

static BUILTIN: LazyLock<Profiles> = LazyLock::new(|| match Profiles::of_text(SHIPPED) {
    Ok(profiles) => profiles,
    // A test reads the file, so no release contains an invalid one.
    Err(refused) => panic!("profiles.toml, byte {:?}: {refused}", refused.at),
});

/// All profiles, compiled for lookups.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Profiles(Arc<Tables>);

#[derive(PartialEq, Eq, Debug)]
struct Tables {
    profiles: Vec<Profile>,
    /// The directories of all profiles: those at a fixed depth before those at any depth, the deepest first.
    roots: Vec<Root>,
}

/// A directory for which a profile has rules.
#[derive(PartialEq, Eq, Debug)]
struct Root {
    pattern: Pattern,
    profile: usize,
    /// The number of the profile's first rule among all rules.
    first_rule: u16,
}

impl Default for Profiles {
    /// The profiles that come with the program.
    fn default() -> Self {
        BUILTIN.clone()
    }
}

impl Profiles {
    fn of_text(text: &str) -> Result<Self, Refused> {
        let table = DeTable::parse(text).map_err(|error| Refused {
            at: error.span().map(|span| span.start),
            reason: error.message().to_owned(),
        })?;
        let mut draft = ProfileDraft::default();
        for (name, content) in table.into_inner() {
            let at = Some(content.span().start);
            let DeValue::Table(content) = content.into_inner() else {
                let reason = format!("{} must be a table", name.get_ref());
                return Err(Refused { at, reason });
            };
            for (key, value) in content {
                draft.set(name.get_ref(), key.get_ref(), value)?;
            }
        }
        draft.finish().map_err(|(_, refused)| refused)
    }

    /// Makes profiles from the result of [`Profiles::all`] in another process, possibly of another version.
    ///
    /// # Errors
    ///
    /// Any error that the check of a whole profile finds, such as an invalid pattern.
    pub fn from_all(all: Vec<Profile>) -> Result<Self, Refused> {
        let profiles = all.into_iter().map(|profile| (profile.name.clone(), profile)).collect();
        ProfileDraft { profiles, ..ProfileDraft::default() }
            .finish()
            .map_err(|(_, refused)| refused)
    }

    /// Returns the profiles, by name.
    pub fn all(&self) -> &[Profile] {
        &self.0.profiles
    }

    /// Returns the profile of that name.
    pub fn get(&self, name: &str) -> Option<&Profile> {
        self.0.profiles.iter().find(|profile| profile.name == name)
    }

    /// Returns the unit rule that classified a path, by the number in its key.
    pub fn unit_rule(&self, key: &UnitKey<'_>) -> Option<&Rule> {
        let rules = self.0.profiles.iter().flat_map(|profile| &profile.rules);
        rules.into_iter().nth(usize::from(key.rule))
    }

    /// Returns the clients in whose directories a file lies, each with the number of names in that
    /// directory's path. A client whose names are known in any directory counts if it knows this name.
    pub fn clients(&self, path: &TreePath) -> Vec<(&Profile, usize)> {
        let Some(names) = PathNames::split(path.as_bytes()) else { return Vec::new() };
        let (mut found, mut depth) = (Vec::<(&Profile, usize)>::new(), 0);
        for root in &self.0.roots {
            let profile = &self.0.profiles[root.profile];
            let inside = !root.pattern.is_anywhere() && root.pattern.depth() < depth;
            if inside || found.iter().any(|(known, _)| *known == profile) {
                continue;
            }
            let knows = |from| {
                let mut answer = ClassSoFar::default();
                answer.ask(&profile.rules, root.first_rule, &names, from);
                answer.kind.is_some()
            };
            root.pattern.ends_in(&names, 0, |from| {
                if root.pattern.is_anywhere() && !knows(from) {
                    return None;
                }
                if !root.pattern.is_anywhere() {
                    depth = root.pattern.depth();
                }
                found.push((profile, from));
                Some(())
            });
        }
        found
    }

    /// Classifies a path by its names. Allocates nothing; the work is bounded by the number of
    /// rules times the square of the length of the path.
    pub fn classify<'p>(&self, path: &'p TreePath) -> Class<'p> {
        let mut answer = ClassSoFar::default();
        let Some(names) = PathNames::split(path.as_bytes()) else { return answer.class() };
        let mut depth = 0;
        for root in self.0.roots.iter().filter(|root| root.pattern.can_begin(&names)) {
            if root.pattern.is_anywhere() {
                if answer.is_whole() {
                    break;
                }
            } else if root.pattern.depth() < depth {
                // A directory inside another client's belongs only to the inner client.
                continue;
            }
            root.pattern.ends_in(&names, 0, |from| {
                if !root.pattern.is_anywhere() {
                    depth = root.pattern.depth();
                }
                let profile = &self.0.profiles[root.profile];
                answer.ask(&profile.rules, root.first_rule, &names, from);
                answer.count(&profile.entries, root.profile, &names, from);
                answer.is_whole().then_some(())
            });
        }
        answer.class()
    }
}

/// The class, as far as it is known.
#[derive(Default)]
struct ClassSoFar<'p> {
    kind: Option<FileKind<'p>>,
    check: Option<Check>,
    touch: Option<Touch>,
    counted: Option<Counted>,
}

impl<'p> ClassSoFar<'p> {
    fn class(self) -> Class<'p> {
        let Self { kind, check, touch, counted } = self;
        Class { kind: kind.unwrap_or_default(), check, touch, counted }
    }

    fn is_whole(&self) -> bool {
        self.kind.is_some() && self.check.is_some() && self.touch.is_some()
    }

    /// Determines the role of the names from `from` on in the figures of a client with these entries.
    fn count(&mut self, entries: &[Pattern], client: usize, names: &PathNames<'p>, from: usize) {
        // The name of a temporary may end like that of an entry.
        let here_only = self.kind.is_some_and(|kind| kind.stays_here());
        if self.counted.is_some() || entries.is_empty() || here_only {
            return;
        }
        let is_index = matches!(self.kind, Some(FileKind::Unit(part)) if part.is_entry);
        let role = if entries.iter().any(|pattern| pattern.matches(names, from).is_some()) {
            Role::Entry
        } else if is_index {
            Role::Index
        } else if entries.iter().any(|pattern| pattern.leads_below(names, from)) {
            Role::Above
        } else {
            return;
        };
        self.counted = Some(Counted { client, role });
    }

    /// Applies the rules of one profile to the names from `from` on.
    fn ask(&mut self, rules: &[Rule], first: u16, names: &PathNames<'p>, from: usize) {
        for (number, rule) in (first..).zip(rules) {
            let is_open = match rule.kind {
                RuleKind::Check => self.check.is_none(),
                RuleKind::Touched => self.touch.is_none(),
                _ => self.kind.is_none(),
            };
            if !is_open {
                continue;
            }
            if rule.kind == RuleKind::Unit {
                self.kind = part(rule, number, names, from).map(FileKind::Unit);
                continue;
            }
            if !rule.names.iter().any(|pattern| pattern.matches(names, from).is_some()) {
                continue;
            }
            match rule.kind {
                RuleKind::Ordinary => self.kind = Some(FileKind::Ordinary),
                RuleKind::Temporary => self.kind = Some(FileKind::Temporary),
                RuleKind::NodeLocal => self.kind = Some(FileKind::NodeLocal),
                RuleKind::WriteOnce => self.kind = Some(FileKind::WriteOnce),
                RuleKind::Lock => self.kind = rule.scope.map(FileKind::Lock),
                RuleKind::Check => self.check = rule.format,
                RuleKind::Touched => self.touch = rule.changes,
                RuleKind::Unit => {}
            }
        }
    }
}

/// Determines which part of which unit a path is, if this rule makes it one.
fn part<'p>(rule: &Rule, number: u16, names: &PathNames<'p>, from: usize) -> Option<Part<'p>> {
    let found = |dir: usize| {
        let stem = rule.names.iter().find_map(|pattern| pattern.matches(names, dir))?;
        let has = |role: &Option<Pattern>| {
            role.as_ref().is_some_and(|pattern| pattern.matches(names, dir).is_some())
        };
        let dir_bytes = names.upto(dir, 0).len() as u32;
        let key = UnitKey { rule: number, dir_bytes, prefix: names.upto(dir, stem) };
        let writers = rule.writers.unwrap_or_default();
        Some(Part { key, is_entry: has(&rule.entry), is_marker: has(&rule.marker), writers })
    };
    match &rule.inside {
        None => found(from),
        Some(dir) => dir.ends_in(names, from, found),
    }
}

/// Profiles that are built key by key from those that come with the program and from the configuration.
#[derive(Debug, Default)]
pub struct ProfileDraft {
    profiles: BTreeMap<String, Profile>,
    disabled: Vec<String>,
    /// Profiles that are not among the initial ones; `None` if there were no initial ones.
    fresh: Option<Vec<String>>,
}

impl ProfileDraft {
    /// Starts with the profiles that come with the program.
    pub fn shipped() -> Self {
        let all = BUILTIN.all().iter().map(|profile| (profile.name.clone(), profile.clone()));
        Self { profiles: all.collect(), disabled: Vec::new(), fresh: Some(Vec::new()) }
    }

    /// Sets one key of one profile, which may be a new one.
    ///
    /// # Errors
    ///
    /// A name or key that no profile can have, or a value of the wrong type or form, with its
    /// position in the text.
    pub fn set(
        &mut self,
        name: &str,
        key: &str,
        value: Spanned<DeValue<'_>>,
    ) -> Result<(), Refused> {
        let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
        if name.is_empty() || !name.bytes().all(good) {
            let reason = format!("{name:?} is not a name for a profile: a-z, 0-9, `-` and `_`");
            return Err(Refused { at: None, reason });
        }
        if !self.profiles.contains_key(name) {
            let fresh =
                Profile { name: name.to_owned(), title: name.to_owned(), ..Profile::default() };
            self.profiles.insert(name.to_owned(), fresh);
            self.fresh.iter_mut().for_each(|names| names.push(name.to_owned()));
        }
        if key != "enabled" {
            return self.profiles.entry(name.to_owned()).or_default().set(key, value);
        }
        let DeValue::Boolean(on) = *value.get_ref() else {
            let reason = "expected true or false".to_owned();
            return Err(Refused { at: Some(value.span().start), reason });
        };
        self.disabled.retain(|other| other != name);
        if !on {
            self.disabled.push(name.to_owned());
        }
        Ok(())
    }

    /// Checks each profile as a whole.
    ///
    /// # Errors
    ///
    /// The name of the first invalid profile, with the reason.
    pub fn finish(mut self) -> Result<Profiles, (String, Refused)> {
        for name in self.fresh.iter().flatten() {
            let profile = &self.profiles[name];
            if profile.dir.is_empty() && profile.also.is_empty() && profile.variables.is_empty() {
                let reason =
                    "hearthfs has no profile of this name, and a new one needs `dir` or `also`";
                return Err((name.clone(), Refused { at: None, reason: reason.to_owned() }));
            }
        }
        self.profiles.retain(|name, _| !self.disabled.contains(name));
        let (mut roots, mut first_rule) = (Vec::new(), 0_usize);
        for (index, profile) in self.profiles.values().enumerate() {
            let named = |refused| (profile.name.clone(), refused);
            profile.check().map_err(named)?;
            let number = u16::try_from(first_rule).map_err(|_| {
                let reason = format!("all profiles together have more than {} rules", u16::MAX);
                (profile.name.clone(), Refused { at: None, reason })
            })?;
            for pattern in profile.roots().map_err(named)? {
                roots.push(Root { pattern, profile: index, first_rule: number });
            }
            first_rule += profile.rules.len();
        }
        roots.sort_by_key(|root| (root.pattern.is_anywhere(), Reverse(root.pattern.depth())));
        Ok(Profiles(Arc::new(Tables { profiles: self.profiles.into_values().collect(), roots })))
    }
}

#[cfg(test)]
mod tests;
