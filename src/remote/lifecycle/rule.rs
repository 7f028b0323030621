//! The rules that a bucket should have, and the effects of those that it has.
//!
//! Owns the arithmetic of ages and prefixes, and the words for disagreements. Pure: must never send
//! a request, and never depend on how a store writes its rules.

use std::time::Duration;

use crate::config::format_duration;
use crate::remote::keys;

/// The folders below a prefix that may age out. The format object is not among them: it is written
/// once, and identifies the prefix.
const PLACES: [&str; 5] = [keys::LOG, keys::PACKS, keys::BLOBS, keys::CHECKPOINTS, keys::PROBES];

/// Days after which the parts of an unfinished upload are removed. An upload ends within minutes;
/// the longer time is for people who examine one.
pub(super) const ABORT_DAYS: u64 = 3;
/// Days after which a noncurrent version is removed, if a bucket keeps versions. hearthfs never
/// reads again what it has deleted.
pub(super) const NONCURRENT_DAYS: u64 = 1;

const DAY: Duration = Duration::from_hours(24);

/// What should hold below one prefix of a bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BucketRule {
    /// The name of each of our objects, except the format object, begins with one of these.
    pub(super) places: Vec<String>,
    /// How long entries live; `None` is for ever.
    pub(super) expiry: Option<Duration>,
    /// The expiry in the whole days that a bucket counts, rounded up; `None` is for ever.
    pub(super) days: Option<u64>,
    format: String,
}

impl BucketRule {
    /// Makes the rule for a prefix (without slashes at its ends) and an expiry.
    pub(super) fn new(prefix: &str, expiry: Option<Duration>) -> Self {
        let base = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        let places = PLACES.iter().map(|place| format!("{base}{place}/")).collect();
        let days = expiry.map(|age| age.as_millis().div_ceil(DAY.as_millis()).max(1) as u64);
        Self { places, expiry, days, format: format!("{base}{}", keys::FORMAT) }
    }

    /// Formats the expiry for people: `30 days`, `36h`.
    pub(super) fn kept(&self) -> String {
        kept(self.expiry)
    }

    /// Judges the rules of others: what contradicts the expiry, and what is only worth knowing.
    pub(super) fn judge(&self, others: &[Other]) -> Judged {
        let mut judged = Judged::default();
        for other in others {
            let ours = self.places.iter().any(|place| other.reaches(place));
            let sooner = match &other.when {
                When::Days(days) => {
                    let days = u32::try_from(*days).unwrap_or(u32::MAX);
                    self.expiry.is_none_or(|age| DAY.saturating_mul(days) < age)
                }
                // On that day every object is deleted, however young it is.
                When::Date(_) | When::Unclear(_) => true,
            };
            let (name, when, partly) = (&other.name, other.when.text(), other.partly());
            match &other.effect {
                Effect::Delete if ours && sooner => judged.contradictions.push(format!(
                    "{name} of the bucket deletes {when} what hearthfs keeps for {}{partly}",
                    self.kept()
                )),
                Effect::Archive(class) if ours && sooner => judged.contradictions.push(format!(
                    "{name} of the bucket moves {when} to {class}, what hearthfs keeps for {}{partly}",
                    self.kept()
                )),
                Effect::Colder(class) if ours && sooner => judged.notes.push(format!(
                    "{name} of the bucket moves {when} to {class}, where each read costs more, what \
                     hearthfs keeps for {}{partly}",
                    self.kept()
                )),
                Effect::Delete if other.reaches(&self.format) => judged.notes.push(format!(
                    "{name} of the bucket deletes {} {when}; the next mount that may write makes it \
                     again, with the expiry of its own configuration",
                    self.format
                )),
                _ => {}
            }
        }
        judged
    }
}

/// Formats an age for people.
pub(super) fn kept(age: Option<Duration>) -> String {
    match age {
        None => "ever".to_owned(),
        Some(age) if age.as_millis().is_multiple_of(DAY.as_millis()) => {
            days((age.as_millis() / DAY.as_millis()) as u64)
        }
        Some(age) => format_duration(age),
    }
}

/// Formats a number of days for people.
pub(super) fn days(count: u64) -> String {
    format!("{count} {}", if count == 1 { "day" } else { "days" })
}

/// What was found about the rules of others.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Judged {
    pub(super) contradictions: Vec<String>,
    pub(super) notes: Vec<String>,
}

/// One effect of a rule of others on current objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Other {
    /// How messages name the rule: ``rule `logs` ``, `rule 2`.
    pub(super) name: String,
    /// It applies to names that begin with one of these; an empty one means all.
    pub(super) prefixes: Vec<String>,
    /// Further conditions, because of which it may not apply to all of them.
    pub(super) only: Vec<String>,
    pub(super) effect: Effect,
    pub(super) when: When,
}

impl Other {
    /// Reports whether it applies to an object whose name begins with `place`.
    fn reaches(&self, place: &str) -> bool {
        self.prefixes.iter().any(|prefix| place.starts_with(prefix) || prefix.starts_with(place))
    }

    fn partly(&self) -> String {
        if self.only.is_empty() {
            return String::new();
        }
        format!(" (only where {})", self.only.join(" and "))
    }
}

/// What happens to an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Effect {
    Delete,
    /// It moves to an archive class, from which it cannot be read at once: the class and the reason.
    Archive(String),
    /// It moves to a class for rarely read objects.
    Colder(String),
}

/// When it happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum When {
    /// So many days after the object was stored.
    Days(u64),
    /// From this day on.
    Date(String),
    /// On a condition other than the object's age.
    Unclear(String),
}

impl When {
    fn text(&self) -> String {
        match self {
            Self::Days(count) => format!("after {}", days(*count)),
            Self::Date(date) => format!("from {date} on, regardless of its age,"),
            Self::Unclear(condition) => format!("by {condition}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn other(prefix: &str, effect: Effect, when: When) -> Other {
        let (name, prefixes) = ("rule `x`".to_owned(), vec![prefix.to_owned()]);
        Other { name, prefixes, only: Vec::new(), effect, when }
    }

    #[test]
    fn days_are_whole_and_never_less() {
        for (secs, days) in
            [(1, 1), (86_399, 1), (86_400, 1), (86_401, 2), (30 * 86_400, 30), (129_600, 2)]
        {
            let rule = BucketRule::new("", Some(Duration::from_secs(secs)));
            assert_eq!(rule.days, Some(days), "{secs}");
        }
        assert_eq!(BucketRule::new("", None).days, None);
    }

    #[test]
    fn the_scope_is_what_may_age_out_and_nothing_else() {
        for (prefix, base) in [("", ""), ("team/cache", "team/cache/")] {
            let rule = BucketRule::new(prefix, None);
            let all: Vec<_> = ["log", "packs", "blobs", "checkpoints", "probes"]
                .map(|place| format!("{base}{place}/"))
                .into();
            assert_eq!(rule.places, all);
            let format = format!("{base}hearthfs.json");
            assert!(!rule.places.iter().any(|place| format.starts_with(place)));
        }
    }

    #[test]
    fn what_deletes_sooner_is_said_with_both_numbers() {
        let month = BucketRule::new("c", Some(30 * DAY));
        let forever = BucketRule::new("c", None);
        let hours = BucketRule::new("c", Some(Duration::from_hours(36)));
        for (rule, prefix, when, said) in [
            (&month, "", When::Days(7), "after 7 days what hearthfs keeps for 30 days"),
            (&month, "c/", When::Days(29), "after 29 days what hearthfs keeps for 30 days"),
            (&month, "c", When::Days(1), "after 1 day what"),
            (&month, "c/blobs/00", When::Days(7), "after 7 days"),
            (&month, "c/", When::Days(30), ""),
            (&month, "c/", When::Days(400), ""),
            (&month, "d/", When::Days(7), ""),
            (&month, "c/other/", When::Days(7), ""),
            (&month, "c/", When::Date("2030-01-01".into()), "from 2030-01-01 on"),
            (&forever, "c/", When::Days(4000), "after 4000 days what hearthfs keeps for ever"),
            (&hours, "c/", When::Days(1), "after 1 day what hearthfs keeps for 1d12h"),
            (&hours, "c/", When::Days(2), ""),
        ] {
            let found = rule.judge(&[other(prefix, Effect::Delete, when.clone())]).contradictions;
            match (said, &found[..]) {
                ("", []) => {}
                (said, [one]) if !said.is_empty() => {
                    assert!(one.contains("rule `x`") && one.contains(said), "{one}");
                }
                _ => panic!("{prefix} {when:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn archives_contradict_and_colder_classes_are_noted() {
        let rule = BucketRule::new("", Some(30 * DAY));
        let archive = other("log/", Effect::Archive("GLACIER".into()), When::Days(3));
        let colder = other("", Effect::Colder("STANDARD_IA".into()), When::Days(3));
        let mut some = other("", Effect::Delete, When::Days(3));
        some.only = vec!["the object is larger than 5 bytes".into()];
        let late = other("", Effect::Delete, When::Days(90));
        let judged = rule.judge(&[archive, colder, some, late]);
        assert_eq!(judged.contradictions.len(), 2, "{judged:?}");
        assert!(judged.contradictions[0].contains("GLACIER"));
        assert!(
            judged.contradictions[1].ends_with("(only where the object is larger than 5 bytes)")
        );
        assert_eq!(judged.notes.len(), 2, "{judged:?}");
        assert!(judged.notes[0].contains("STANDARD_IA"));
        assert!(judged.notes[1].contains("deletes hearthfs.json after 90 days"), "{judged:?}");
    }
}
