//! The written form of a profile, in the file that comes with the program and in the configuration.
//!
//! Owns the keys of a profile and their checks. Must never keep a second form of them: what is
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
    /// Its name in the configuration.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// Its variables that name the directory. They are one setting: if the user has set any of
    /// them, none is changed.
    pub variables: Vec<String>,
    /// Its directory below the mount; empty if it has none of its own.
    pub dir: String,
    /// Whether it fails, or caches nothing, when the directory is not there.
    pub needs_dir: bool,
    /// Settings of the user with the same purpose.
    pub unless: Vec<Unless>,
    /// Further variables to set along with the directory.
    pub settings: BTreeMap<String, String>,
    /// Variables that make the client also cache quick compilations.
    pub short_compiles: BTreeMap<String, String>,
    /// Further directories below the mount in which its rules apply.
    pub also: Vec<Pattern>,
    /// The rules for its names; the first rule that matches a name determines its kind.
    pub rules: Vec<Rule>,
    /// Patterns that identify the program of an entry: `{stem}` is the same for all keys of a program.
    #[serde(default)]
    pub program: Vec<Pattern>,
    /// Patterns of the counted names: those that it opens once for each hit, and writes once for each miss.
    #[serde(default)]
    pub entries: Vec<Pattern>,
    /// How to point it at the mount, if a variable is not enough.
    pub how: String,
    /// Conditions under which imported entries are found. OLD is the directory in which they were
    /// made, NEW the one in which they are now.
    pub import: String,
    /// Further notes.
    pub notes: Vec<String>,
}

/// A setting of the user with which hearthfs must not interfere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unless {
    /// The variable.
    pub variable: String,
    /// The value that it must contain; empty if any value counts.
    #[serde(default)]
    pub holds: String,
}

/// A rule for some names of a client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Patterns of the names, relative to the client's directory, or to `in` below it.
    pub names: Vec<Pattern>,
    /// Their kind.
    pub kind: RuleKind,
    /// For units: the directory that holds the members.
    #[serde(rename = "in", default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Pattern>,
    /// For units: the names of the members that a reader opens first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Pattern>,
    /// For units: the names of the members whose publish completes the unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub marker: Option<Pattern>,
    /// For units: the processes whose files form one draft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writers: Option<Writers>,
    /// For locks: which processes are excluded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// For checks: the format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Check>,
    /// For touched files: what changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changes: Option<Touch>,
    /// A description of these files for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub what: String,
}

/// The kind that a rule assigns to names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RuleKind {
    /// Ordinary, whatever a later rule says.
    Ordinary,
    /// Never leaves the node.
    Temporary,
    /// Stays on the node.
    NodeLocal,
    /// Changes on mere use. Leaves the kind to a later rule.
    Touched,
    /// Is not replaced by an older attempt.
    WriteOnce,
    /// Makes sense only together with others.
    Unit,
    /// Has a completeness check. Leaves the kind to a later rule.
    Check,
    /// Its existence locks something.
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

    /// Describes what it means for users of the mount.
    pub fn meaning(self) -> &'static str {
        match self {
            Self::Ordinary => "an ordinary file, regardless of the rules after this one",
            Self::Temporary => {
                "never leaves its node, and is in no listing of another node, however long its writer lives"
            }
            Self::NodeLocal => {
                "belongs to the node (statistics, `flock` files, heartbeats): kept across restarts, never uploaded"
            }
            Self::Touched => {
                "changes on each hit: at once on this node, gathered for the others, never a separate upload"
            }
            Self::WriteOnce => {
                "an existing version is not replaced by one of the same name that was begun before it arrived; \
                 the loser's `close()` succeeds"
            }
            Self::Unit => {
                "files that only make sense together: they arrive together or not at all, and never come from two writers"
            }
            Self::Check => {
                "tested for completeness when it is published: a file that fails stays on its writer's node, with one warning"
            }
            Self::Lock => {
                "locks while it exists: on one node if what it guards belongs to the node, else on all nodes"
            }
        }
    }
}

/// Why a value of a profile was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub struct Refused {
    /// The position in the text of the file, in bytes; `None` if it is not a single place.
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
    /// Sets one key from its written form. `also` is appended to the present value, `rules` go
    /// before the present ones; every other key replaces the value. `enabled` is handled elsewhere.
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

    /// Checks conditions that involve several keys.
    pub(super) fn check(&self) -> Result<(), Refused> {
        let names = self.variables.iter();
        let names = names.chain(self.unless.iter().map(|unless| &unless.variable));
        let mut names = names.chain(self.settings.keys()).chain(self.short_compiles.keys());
        if let Some(bad) = names.find(|name| name.is_empty() || name.contains(['=', '\0', ' '])) {
            return Err(Refused::of(format!("{bad:?} is not a name for a variable")));
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
                    "its rules apply nowhere: set `dir` or `also`, below the mount",
                ));
            }
        }
        if self.rules.len() > RULES_MAX {
            return Err(Refused::of(format!("it has more than {RULES_MAX} rules")));
        }
        self.roots().map(|_| ())
    }

    /// Returns the directories in which its rules apply.
    pub(super) fn roots(&self) -> Result<Vec<Pattern>, Refused> {
        let mut roots = Vec::new();
        if !self.dir.is_empty() {
            if self.dir.contains(['*', '?', '{']) {
                return Err(Refused::of(format!(
                    "dir = {:?} must be one directory, not a pattern",
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
                    "{:?} must be a directory, without `/**` at its end and without `{{stem}}`",
                    root.text()
                );
                return Err(Refused::of(reason));
            }
        }
        Ok(roots)
    }
}

/// Checks a pattern that identifies programs.
fn check_program(pattern: &Pattern) -> Result<(), Refused> {
    let text = pattern.text();
    let reason = match () {
        () if text.matches("{stem}").count() != 1 => {
            "exactly one of its names must begin with `{stem}`"
        }
        () if !pattern.has_one_depth() => "`**` is not possible: a search would have no end",
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
                return refuse(format!("`{key}` is only possible with the kind {:?}", of.word()));
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
                return refuse("`{stem}` is only possible with the kind \"unit\"".into());
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
                return Err("either all of its patterns must contain `{stem}`, or none".into());
            }
            if self.names.iter().any(|pattern| pattern.depth() != 1 || pattern.is_anywhere()) {
                return Err("a pattern with `{stem}` must be one name".into());
            }
        } else if self.inside.is_none() {
            return Err("it needs `in`, the directory of one unit, or `{stem}` in its names".into());
        }
        match &self.inside {
            Some(dir) if dir.is_anywhere() || dir.reaches_below() || dir.has_stem() => Err(
                format!("in = {:?} must be one directory, without `**` and `{{stem}}`", dir.text()),
            ),
            _ => Ok(()),
        }
    }
}
