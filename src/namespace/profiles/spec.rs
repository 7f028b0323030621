//! A profile as it is written, in the file that comes with the program and in the configuration.
//!
//! Owns the keys of a profile and their checks. Must never hold a second form of what stands there: what is
//! printed is what is used.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toml::Spanned;
use toml::de::{DeValue, ValueDeserializer};

use super::class::{Check, Scope, Touch, Writers};
use super::pattern::Pattern;

/// The most rules that one profile has.
const RULES_MAX: usize = 100;

/// What is known of one client.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Profile {
    /// What it is called in the configuration.
    pub name: String,
    /// What people call it.
    pub title: String,
    /// Its variables that name the directory. They are one setting: if the user has set any, none is touched.
    pub variables: Vec<String>,
    /// Its directory below the mount; empty if it has none of its own.
    pub dir: String,
    /// Whether it fails, or caches nothing, when the directory is not there.
    pub needs_dir: bool,
    /// What the user may have set that says the same in another way.
    pub unless: Vec<Unless>,
    /// Further variables to set along with the directory.
    pub settings: BTreeMap<String, String>,
    /// Variables that make the client keep what compiles quickly.
    pub short_compiles: BTreeMap<String, String>,
    /// Further directories below the mount in which its names are known.
    pub also: Vec<Pattern>,
    /// What is known of its names; the first rule that fits a name says its kind.
    pub rules: Vec<Rule>,
    /// Patterns of the paths that say which program an entry is of: `{stem}` is the same, whatever the key.
    #[serde(default)]
    pub program: Vec<Pattern>,
    /// Patterns of the names that are counted: what it opens once for each hit, and writes once for each miss.
    #[serde(default)]
    pub entries: Vec<Pattern>,
    /// How it is pointed at the mount, where a variable is not all.
    pub how: String,
    /// What has to be so for entries to be found that were made elsewhere and imported. OLD is the directory that they were
    /// made in, NEW the one that they are in now.
    pub import: String,
    /// Further notes on it.
    pub notes: Vec<String>,
}

/// A setting of the user's that means hands off.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unless {
    /// The variable.
    pub variable: String,
    /// What it has to hold; empty if it is enough that it is set.
    #[serde(default)]
    pub holds: String,
}

/// What is known of some names of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Patterns of the names, relative to the client's directory, or to `in` below it.
    pub names: Vec<Pattern>,
    /// What they are.
    pub kind: RuleKind,
    /// Of a unit: the directory that holds its members.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Pattern>,
    /// Of a unit: the names of the members that a reader opens first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Pattern>,
    /// Of a unit: the names of the members whose publish completes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Pattern>,
    /// Of a unit: the processes whose files make one draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writers: Option<Writers>,
    /// Of a lock: which processes it excludes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Of a check: the format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Check>,
    /// Of what is touched: what changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Touch>,
    /// What these files are, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// The kind that a rule gives to names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleKind {
    /// Nothing special, whatever a later rule says.
    Ordinary,
    /// Never leaves the node.
    Temporary,
    /// Belongs to the node.
    NodeLocal,
    /// Changes on mere use. Says nothing of the kind: a later rule does.
    Touched,
    /// Is not replaced by an older attempt.
    WriteOnce,
    /// Makes sense only together with others.
    Unit,
    /// Can be tested for completeness. Says nothing of the kind: a later rule does.
    Check,
    /// Locks something by being there.
    Lock,
}

impl RuleKind {
    /// All kinds.
    pub const ALL: [Self; 8] = [
        Self::Ordinary,
        Self::Temporary,
        Self::NodeLocal,
        Self::Touched,
        Self::WriteOnce,
        Self::Unit,
        Self::Check,
        Self::Lock,
    ];

    /// Returns the word for it.
    pub fn word(self) -> &'static str {
        match self {
            Self::Ordinary => "ordinary",
            Self::Temporary => "temporary",
            Self::NodeLocal => "node-local",
            Self::Touched => "touched",
            Self::WriteOnce => "write-once",
            Self::Unit => "unit",
            Self::Check => "check",
            Self::Lock => "lock",
        }
    }

    /// Says what it means for users of the mount.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Ordinary => "a file as any other, whatever the rules after this one say",
            Self::Temporary => {
                "never leaves its node, and is in no other node's listing, however long its writer lives"
            }
            Self::NodeLocal => {
                "belongs to the node (statistics, `flock` files, heartbeats): kept across restarts, never uploaded"
            }
            Self::Touched => {
                "changes on each hit: at once on this node, gathered for the others, never an upload of its own"
            }
            Self::WriteOnce => {
                "a version that exists is not replaced by one of the same name that was begun before it arrived; \
                 the loser's `close()` succeeds"
            }
            Self::Unit => {
                "files that only make sense together: they arrive together or not at all, and are never of two writers"
            }
            Self::Check => {
                "tested for completeness when it is published: what fails stays on its writer's node, with one warning"
            }
            Self::Lock => {
                "locks by being there: of one node if what it guards belongs to the node, else of all nodes"
            }
        }
    }
}

/// Why a value of a profile is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// Where in the text of the file, in bytes; `None` if it is no single place.
    pub at: Option<usize>,
    /// What is wrong, and what is allowed.
    pub reason: String,
}

impl Refused {
    fn of(reason: impl Into<String>) -> Self {
        Self { at: None, reason: reason.into() }
    }
}

/// The keys of a profile.
pub const PROFILE_KEYS: [&str; 15] = [
    "title",
    "variables",
    "dir",
    "needs_dir",
    "unless",
    "settings",
    "short_compiles",
    "also",
    "rules",
    "program",
    "entries",
    "how",
    "import",
    "notes",
    "enabled",
];

fn read<T: for<'a> Deserialize<'a>>(value: Spanned<DeValue<'_>>) -> Result<T, Refused> {
    let at = value.span().start;
    T::deserialize(ValueDeserializer::from(value)).map_err(|error| {
        let at = error.span().map_or(at, |span| span.start);
        Refused { at: Some(at), reason: error.message().to_owned() }
    })
}

impl Profile {
    /// Takes one key as it is written. `also` is added to what is there, `rules` go before those that are
    /// there; everything else replaces. `enabled` is not for here.
    pub(super) fn set(&mut self, key: &str, value: Spanned<DeValue<'_>>) -> Result<(), Refused> {
        match key {
            "title" => self.title = read(value)?,
            "variables" => self.variables = read(value)?,
            "dir" => self.dir = read(value)?,
            "needs_dir" => self.needs_dir = read(value)?,
            "unless" => self.unless = read(value)?,
            "settings" => self.settings = read(value)?,
            "short_compiles" => self.short_compiles = read(value)?,
            "also" => self.also.extend(read::<Vec<Pattern>>(value)?),
            "rules" => {
                let rules: Vec<Rule> = read(value)?;
                rules.iter().try_for_each(Rule::check)?;
                self.rules.splice(0..0, rules);
            }
            "program" => {
                let patterns: Vec<Pattern> = read(value)?;
                patterns.iter().try_for_each(check_program)?;
                self.program = patterns;
            }
            "entries" => self.entries = read(value)?,
            "how" => self.how = read(value)?,
            "import" => self.import = read(value)?,
            "notes" => self.notes = read(value)?,
            _ => return Err(Refused::of("unknown key")),
        }
        Ok(())
    }

    /// Checks what no single key can know.
    pub(super) fn check(&self) -> Result<(), Refused> {
        let names = self.variables.iter();
        let names = names.chain(self.unless.iter().map(|unless| &unless.variable));
        let mut names = names.chain(self.settings.keys()).chain(self.short_compiles.keys());
        if let Some(bad) = names.find(|name| name.is_empty() || name.contains(['=', '\0', ' '])) {
            return Err(Refused::of(format!("{bad:?} is no name of a variable")));
        }
        if self.dir.is_empty() {
            if !self.variables.is_empty() {
                return Err(Refused::of(
                    "`variables` name a directory: set `dir`, below the mount",
                ));
            }
            let has_names = !self.rules.is_empty() || !self.entries.is_empty();
            if has_names && self.also.is_empty() {
                return Err(Refused::of(
                    "its rules hold nowhere: set `dir` or `also`, below the mount",
                ));
            }
        }
        if self.rules.len() > RULES_MAX {
            return Err(Refused::of(format!("it has more than {RULES_MAX} rules")));
        }
        self.roots().map(|_| ())
    }

    /// Returns the directories in which its names are known.
    pub(super) fn roots(&self) -> Result<Vec<Pattern>, Refused> {
        let mut roots = Vec::new();
        if !self.dir.is_empty() {
            if self.dir.contains(['*', '?', '{']) {
                return Err(Refused::of(format!(
                    "dir = {:?} is one directory: no pattern",
                    self.dir
                )));
            }
            roots.push(Pattern::parse(&self.dir).map_err(Refused::of)?);
        }
        roots.extend(self.also.iter().cloned());
        for root in &roots {
            let everywhere = root.is_anywhere() && root.depth() == 0;
            if (root.reaches_below() && !everywhere) || root.has_stem() {
                let reason = format!(
                    "{:?} is to be a directory: neither `/**` at its end nor `{{stem}}`",
                    root.text()
                );
                return Err(Refused::of(reason));
            }
        }
        Ok(roots)
    }
}

/// Checks a pattern that tells programs apart.
fn check_program(pattern: &Pattern) -> Result<(), Refused> {
    let text = pattern.text();
    let reason = match () {
        () if text.matches("{stem}").count() != 1 => {
            "one name of it, and no other, begins with `{stem}`"
        }
        () if !pattern.has_one_depth() => "`**` has no place in it: a search would have no end",
        () => return Ok(()),
    };
    Err(Refused::of(format!("the pattern {text:?} of `program`: {reason}")))
}

impl Rule {
    fn check(&self) -> Result<(), Refused> {
        let kind = self.kind.word();
        let names: Vec<&str> = self.names.iter().map(Pattern::text).collect();
        let refuse = |reason: String| {
            Err(Refused::of(format!("the rule of kind {kind:?} for {names:?}: {reason}")))
        };
        if names.is_empty() {
            return refuse("`names` is empty; name at least one pattern".into());
        }
        for (key, is_set, of) in [
            ("in", self.inside.is_some(), RuleKind::Unit),
            ("entry", self.entry.is_some(), RuleKind::Unit),
            ("marker", self.marker.is_some(), RuleKind::Unit),
            ("writers", self.writers.is_some(), RuleKind::Unit),
            ("scope", self.scope.is_some(), RuleKind::Lock),
            ("format", self.format.is_some(), RuleKind::Check),
            ("changes", self.changes.is_some(), RuleKind::Touched),
        ] {
            if is_set && self.kind != of {
                return refuse(format!("`{key}` belongs to the kind {:?} only", of.word()));
            }
        }
        let missing = match self.kind {
            RuleKind::Lock if self.scope.is_none() => "`scope`: \"node\" or \"cluster\"",
            RuleKind::Check if self.format.is_none() => {
                "`format`: \"zstd\", \"elf\", \"zip\" or \"json\""
            }
            RuleKind::Touched if self.changes.is_none() => "`changes`: \"times\" or \"content\"",
            RuleKind::Unit => return self.check_unit().or_else(refuse),
            _ if self.names.iter().any(Pattern::has_stem) => {
                return refuse("`{stem}` belongs to the kind \"unit\" only".into());
            }
            _ => return Ok(()),
        };
        refuse(format!("it needs {missing}"))
    }

    fn check_unit(&self) -> Result<(), String> {
        let roles = [&self.entry, &self.marker].into_iter().flatten();
        let stems: Vec<bool> = self.names.iter().chain(roles).map(Pattern::has_stem).collect();
        if stems.contains(&true) {
            if stems.contains(&false) {
                return Err("either all of its patterns hold `{stem}` or none does".into());
            }
            if self.names.iter().any(|pattern| pattern.depth() != 1 || pattern.is_anywhere()) {
                return Err("a pattern with `{stem}` is one name".into());
            }
        } else if self.inside.is_none() {
            return Err("it needs `in`, the directory of one unit, or `{stem}` in its names".into());
        }
        match &self.inside {
            Some(dir) if dir.is_anywhere() || dir.reaches_below() || dir.has_stem() => {
                Err(format!("in = {:?} is to be one directory: no `**`, no `{{stem}}`", dir.text()))
            }
            _ => Ok(()),
        }
    }
}
