//! The rules of an S3 bucket: one XML document for all of them.
//!
//! Owns how ours are written and recognised there, and the reading of those of others. Pure: must
//! never send a request, and never change a byte of a rule that is not ours.

use super::rule::{ABORT_DAYS, BucketRule, Effect, NONCURRENT_DAYS, Other, When};
use crate::digest::Digest;
use crate::remote::xml::{self, Element};

const NAMESPACE: &str = "http://s3.amazonaws.com/doc/2006-03-01/";
/// The part of a rule about unfinished uploads.
const ABORT: &str = "AbortIncompleteMultipartUpload";
/// The prefix of the names of our rules.
const ID_START: &str = "hearthfs:";
/// The longest name of a rule that the stores accept.
const ID_BYTES_MAX: usize = 255;
/// Classes from which an object must be restored before it can be read.
const ARCHIVES: [&str; 2] = ["GLACIER", "DEEP_ARCHIVE"];

/// Whether the bucket keeps versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Versioning {
    /// It does, or did, so old versions may exist.
    Kept,
    /// It does not.
    None,
    /// It did not say.
    Unknown,
}

/// The rules of a bucket, as it returned them.
#[derive(Debug)]
pub(super) struct Rules {
    text: String,
    root: Element,
}

impl Rules {
    /// Parses the document; an empty text means a bucket without one.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let empty = format!("<LifecycleConfiguration xmlns=\"{NAMESPACE}\"/>");
        let text = if text.trim().is_empty() { empty } else { text.to_owned() };
        let root = xml::parse(&text)?;
        if root.name != "LifecycleConfiguration" {
            return Err(format!("it begins with `{}`, not with LifecycleConfiguration", root.name));
        }
        Ok(Self { text, root })
    }

    fn rules(&self) -> impl Iterator<Item = &Element> {
        self.root.children.iter().filter(|child| child.name == "Rule")
    }

    /// Returns how many rules belong to others.
    pub(super) fn foreign(&self, rule: &BucketRule) -> usize {
        self.rules().filter(|found| !is_ours(found, rule)).count()
    }

    /// Returns how many rules are ours.
    pub(super) fn ours(&self, rule: &BucketRule) -> usize {
        self.rules().filter(|found| is_ours(found, rule)).count()
    }

    /// Returns everything that is not ours in a canonical form, independent of the order and white
    /// space of a store.
    pub(super) fn foreign_canonical(&self, rule: &BucketRule) -> Vec<String> {
        let others = self.root.children.iter().filter(|child| !is_ours(child, rule));
        let mut all: Vec<_> = others.map(Element::canonical).collect();
        all.sort();
        all
    }

    /// Reports whether the store kept nothing about unfinished uploads in any of our deleting
    /// rules: some stores do not know that part and silently drop it.
    pub(super) fn drops_aborts(&self, rule: &BucketRule) -> bool {
        let mut ours = self.rules().filter(|found| is_ours(found, rule)).peekable();
        rule.days.is_some()
            && ours.peek().is_some()
            && ours.all(|found| found.child(ABORT).is_none())
    }

    /// Reports whether a rule of ours applies to more than its place. If a store drops the prefix
    /// of a rule, the rule deletes what belongs to others.
    pub(super) fn reaches_too_far(&self, rule: &BucketRule) -> bool {
        rule.places.iter().any(|place| {
            let id = id_of(place);
            let mut ours = self.rules().filter(|found| found.text_of("ID") == Some(&id));
            ours.any(|found| !RuleScope::of(found).prefix.starts_with(place.as_str()))
        })
    }

    /// Returns the document as the store returned it; `None` if it had none.
    pub(super) fn before(&self) -> Option<&str> {
        self.rules().next().map(|_| self.text.as_str())
    }

    /// Lists what our rules lack; empty if all are as they should be.
    pub(super) fn lacks(&self, rule: &BucketRule, versions: Versioning) -> Vec<String> {
        let (mut lacks, aborts) = (Vec::new(), !self.drops_aborts(rule));
        for place in &rule.places {
            let id = id_of(place);
            let mut found = self.rules().filter(|found| found.text_of("ID") == Some(&id));
            match (found.next(), found.next()) {
                (None, _) => lacks.push(match rule.days {
                    Some(_) => format!(
                        "no rule of hearthfs deletes below {place} what is older than {}",
                        rule.kept()
                    ),
                    None => format!("no rule of hearthfs aborts unfinished uploads below {place}"),
                }),
                (Some(_), Some(_)) => lacks.push(format!("rule `{id}` is there more than once")),
                (Some(one), None) => {
                    lacks.extend(
                        differs(one, place, rule, versions, aborts)
                            .map(|what| format!("rule `{id}` of the bucket {what}")),
                    );
                }
            }
        }
        lacks
    }

    /// Returns what the rules of others do to objects.
    pub(super) fn others(&self, rule: &BucketRule) -> Vec<Other> {
        let all = self.rules().enumerate().filter(|(_, found)| !is_ours(found, rule));
        all.flat_map(|(index, found)| effects(found, index + 1)).collect()
    }

    /// Returns the document with our rules as they should be.
    pub(super) fn with(&self, rule: &BucketRule, versions: Versioning) -> String {
        self.splice(rule, &self.written(rule, versions))
    }

    /// Returns the document without our rules; `None` if no rule is left, which means no document.
    pub(super) fn without(&self, rule: &BucketRule) -> Option<String> {
        (self.foreign(rule) > 0).then(|| self.splice(rule, ""))
    }

    fn splice(&self, rule: &BucketRule, new: &str) -> String {
        let ours = self.root.children.iter().filter(|child| is_ours(child, rule));
        let gone: Vec<_> = ours.map(|found| found.range.clone()).collect();
        xml::splice(&self.text, &self.root, &gone, new)
    }

    /// Writes our rules in the form of this document. A store that has rules of the old form (a
    /// prefix without a filter) refuses a mixture of both forms.
    pub(super) fn written(&self, rule: &BucketRule, versions: Versioning) -> String {
        let mut others = self.rules().filter(|found| !is_ours(found, rule)).peekable();
        let old = others.peek().is_some()
            && others
                .all(|found| found.child("Filter").is_none() && found.child("Prefix").is_some());
        let form = RuleForm { namespace: &self.root.prefix, old };
        rule.places.iter().map(|place| form.write(place, rule, versions)).collect()
    }
}

fn is_ours(found: &Element, rule: &BucketRule) -> bool {
    found.name == "Rule"
        && found.text_of("ID").is_some_and(|id| {
            id.starts_with(ID_START) && rule.places.iter().any(|p| id_of(p) == id)
        })
}

/// Returns the name of our rule for a place. A rule is ours exactly if it has this name.
fn id_of(place: &str) -> String {
    let plain = format!("{ID_START}{}", place.trim_end_matches('/'));
    if plain.len() <= ID_BYTES_MAX {
        return plain;
    }
    let digest = Digest::of(place.as_bytes()).to_string();
    // Prefixes are ASCII, one byte per character.
    format!("{}...{}", &plain[..200], &digest[..32])
}

/// The form in which rules are written into one document.
struct RuleForm<'a> {
    namespace: &'a str,
    old: bool,
}

impl RuleForm<'_> {
    fn element(&self, name: &str, inner: &str) -> String {
        let space = self.namespace;
        format!("<{space}{name}>{inner}</{space}{name}>")
    }

    fn write(&self, place: &str, rule: &BucketRule, versions: Versioning) -> String {
        let of_days = |outer: &str, name: &str, days: u64| {
            self.element(outer, &self.element(name, &days.to_string()))
        };
        let mut inner = self.element("ID", &quick_xml::escape::escape(id_of(place)));
        let prefix = self.element("Prefix", &quick_xml::escape::escape(place));
        inner.push_str(&if self.old { prefix } else { self.element("Filter", &prefix) });
        inner.push_str(&self.element("Status", "Enabled"));
        if let Some(days) = rule.days {
            inner.push_str(&of_days("Expiration", "Days", days));
        }
        if versions == Versioning::Kept {
            let (outer, name) = ("NoncurrentVersionExpiration", "NoncurrentDays");
            inner.push_str(&of_days(outer, name, NONCURRENT_DAYS));
        }
        inner.push_str(&of_days(ABORT, "DaysAfterInitiation", ABORT_DAYS));
        self.element("Rule", &inner)
    }
}

/// Describes how our rule for a place differs from what it should be.
fn differs(
    found: &Element,
    place: &str,
    rule: &BucketRule,
    versions: Versioning,
    aborts: bool,
) -> Option<String> {
    if found.text_of("Status") != Some("Enabled") {
        return Some("is switched off".to_owned());
    }
    let scope = RuleScope::of(found);
    if scope.prefix != place || !scope.only.is_empty() {
        return Some(format!("is for `{}`, not for all of `{place}`", scope.prefix));
    }
    let number = |outer: &str, name: &str| -> Option<u64> {
        found.child(outer)?.text_of(name)?.parse().ok()
    };
    let days = number("Expiration", "Days");
    match (days, rule.days) {
        (found, wanted) if found == wanted => {}
        (Some(found), _) => {
            let found = super::rule::days(found);
            return Some(format!("deletes after {found} what hearthfs keeps for {}", rule.kept()));
        }
        (None, _) => {
            return Some(format!(
                "deletes nothing, but hearthfs keeps objects for {}",
                rule.kept()
            ));
        }
    }
    if aborts && number(ABORT, "DaysAfterInitiation") != Some(ABORT_DAYS) {
        return Some(format!("does not abort unfinished uploads after {ABORT_DAYS} days"));
    }
    let noncurrent = number("NoncurrentVersionExpiration", "NoncurrentDays");
    if versions == Versioning::Kept && noncurrent != Some(NONCURRENT_DAYS) {
        return Some("leaves old versions, but the bucket keeps versions".to_owned());
    }
    let known =
        ["ID", "Filter", "Prefix", "Status", "Expiration", "NoncurrentVersionExpiration", ABORT];
    // Some stores return empty elements of their own.
    let says = |child: &&Element| !child.text.is_empty() || !child.children.is_empty();
    let mut more = found.children.iter().filter(says);
    let more = more.find(|child| !known.contains(&child.name.as_str()));
    more.map(|more| format!("has `{}`, which is not of hearthfs", more.name))
}

/// The objects to which a rule applies.
struct RuleScope {
    prefix: String,
    /// Further conditions, which our objects may or may not meet.
    only: Vec<String>,
    /// It requires tags, which our objects do not have.
    tagged: bool,
}

impl RuleScope {
    fn of(rule: &Element) -> Self {
        // The old form has the prefix in the rule itself.
        let prefix = rule.text_of("Prefix").unwrap_or_default().to_owned();
        let mut scope = Self { prefix, only: Vec::new(), tagged: false };
        if let Some(filter) = rule.child("Filter") {
            scope.add(filter.child("And").unwrap_or(filter));
        }
        scope
    }

    fn add(&mut self, filter: &Element) {
        for condition in &filter.children {
            match condition.name.as_str() {
                "Prefix" => self.prefix.clone_from(&condition.text),
                "Tag" => self.tagged = true,
                "ObjectSizeGreaterThan" => {
                    self.only.push(format!("the object is larger than {} bytes", condition.text));
                }
                "ObjectSizeLessThan" => {
                    self.only.push(format!("the object is smaller than {} bytes", condition.text));
                }
                other => self.only.push(format!("`{other}` allows it")),
            }
        }
    }
}

/// Returns what a rule does to current objects. A rule that is disabled or requires tags does nothing.
fn effects(rule: &Element, number: usize) -> Vec<Other> {
    let scope = RuleScope::of(rule);
    if rule.text_of("Status").is_some_and(|status| status != "Enabled") || scope.tagged {
        return Vec::new();
    }
    let name = match rule.text_of("ID") {
        Some(id) if !id.is_empty() => format!("rule `{id}`"),
        _ => format!("rule {number} (without a name)"),
    };
    let other = |effect, when| Other {
        name: name.clone(),
        prefixes: vec![scope.prefix.clone()],
        only: scope.only.clone(),
        effect,
        when,
    };
    let mut all = Vec::new();
    for action in &rule.children {
        let Some(when) = when_of(action) else { continue };
        match action.name.as_str() {
            "Expiration" => all.push(other(Effect::Delete, when)),
            "Transition" => {
                let class = action.text_of("StorageClass").unwrap_or("another class").to_owned();
                let effect = if ARCHIVES.contains(&class.as_str()) {
                    Effect::Archive(format!("{class}, from where it cannot be read at once"))
                } else {
                    Effect::Colder(class)
                };
                all.push(other(effect, when));
            }
            _ => {}
        }
    }
    all
}

fn when_of(action: &Element) -> Option<When> {
    if let Some(days) = action.text_of("Days") {
        return Some(
            days.parse().map_or_else(|_| When::Unclear(format!("`{days}` days")), When::Days),
        );
    }
    action.text_of("Date").map(|date| When::Date(date.to_owned()))
}

#[cfg(test)]
mod tests;
