//! The rules of a bucket of Google Cloud Storage: a list inside the bucket's description.
//!
//! Owns how ours are written and recognised there, the reading of those of others, and what else about a
//! bucket matters for a cache. Pure: must never send a request, and never change a rule that is not ours.

use serde_json::{Map, Value, json};

use super::rule::{ABORT_DAYS, BucketRule, Effect, NONCURRENT_DAYS, Other, When, days};

/// The kinds of actions.
const DELETE: &str = "Delete";
const ABORT: &str = "AbortIncompleteMultipartUpload";
const MOVE: &str = "SetStorageClass";

/// The fields of a bucket's description that we request.
pub(super) const FIELDS: &str =
    "metageneration,lifecycle,versioning,softDeletePolicy,storageClass,location,autoclass";

/// The description of a bucket.
#[derive(Debug)]
pub(super) struct GcsBucket {
    /// Changes with every change of the description; a write names the value that it saw.
    pub(super) metageneration: String,
    description: Value,
    rules: Vec<Value>,
}

impl GcsBucket {
    /// Reads the description.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let description: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        let metageneration = match &description["metageneration"] {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            _ => return Err("it has no metageneration".to_owned()),
        };
        let rules = match &description["lifecycle"]["rule"] {
            Value::Null => Vec::new(),
            Value::Array(rules) => rules.clone(),
            _ => return Err("its lifecycle rules are not a list".to_owned()),
        };
        Ok(Self { metageneration, description, rules })
    }

    /// Returns how many rules belong to others.
    pub(super) fn foreign(&self, rule: &BucketRule) -> usize {
        self.rules.iter().filter(|found| !is_ours(found, rule)).count()
    }

    /// Returns how many rules are ours.
    pub(super) fn ours(&self, rule: &BucketRule) -> usize {
        self.rules.len() - self.foreign(rule)
    }

    /// Returns everything that is not ours, in a canonical form, in the order of the bucket.
    pub(super) fn foreign_canonical(&self, rule: &BucketRule) -> Vec<String> {
        self.rules.iter().filter(|found| !is_ours(found, rule)).map(Value::to_string).collect()
    }

    /// Reports whether the bucket keeps versions.
    pub(super) fn keeps_versions(&self) -> bool {
        self.description["versioning"]["enabled"] == true
    }

    /// Returns our rules as they should be.
    pub(super) fn written(&self, rule: &BucketRule) -> Vec<Value> {
        written(rule, self.keeps_versions())
    }

    /// Lists what our rules lack; empty if all are as they should be.
    pub(super) fn lacks(&self, rule: &BucketRule) -> Vec<String> {
        let mut ours: Vec<_> = self.rules.iter().filter(|found| is_ours(found, rule)).collect();
        let mut lacks = Vec::new();
        for wanted in self.written(rule) {
            if let Some(at) = ours.iter().position(|found| same(found, &wanted)) {
                ours.remove(at);
                continue;
            }
            let aborts = wanted["action"]["type"] == ABORT;
            let ages = wanted["condition"].get("age").is_some();
            lacks.push(match (aborts, ages, rule.days) {
                (true, ..) => {
                    format!("no rule of hearthfs aborts unfinished uploads after {ABORT_DAYS} days")
                }
                (false, true, Some(_)) => {
                    format!("no rule of hearthfs deletes what is older than {}", rule.kept())
                }
                _ => "no rule of hearthfs deletes old versions, but the bucket keeps versions"
                    .to_owned(),
            });
        }
        for left in ours {
            lacks.push(match left["condition"]["age"].as_u64() {
                Some(age) if left["action"]["type"] == DELETE => format!(
                    "a rule of hearthfs in the bucket deletes after {} what hearthfs keeps for {}",
                    days(age),
                    rule.kept()
                ),
                _ => format!("there is an unneeded rule of hearthfs: {left}"),
            });
        }
        lacks
    }

    /// Returns what the rules of others do to objects.
    pub(super) fn others(&self, rule: &BucketRule) -> Vec<Other> {
        let all = self.rules.iter().enumerate().filter(|(_, found)| !is_ours(found, rule));
        all.filter_map(|(index, found)| effect(found, index + 1)).collect()
    }

    /// Returns the change that makes our rules what they should be. A write replaces the list, so
    /// it has all rules; those of others are unchanged and in their order.
    pub(super) fn with(&self, rule: &BucketRule) -> Value {
        self.replaced(rule, self.written(rule))
    }

    /// Returns the change that removes our rules.
    pub(super) fn without(&self, rule: &BucketRule) -> Value {
        self.replaced(rule, Vec::new())
    }

    fn replaced(&self, rule: &BucketRule, new: Vec<Value>) -> Value {
        let (mut all, mut new) = (Vec::new(), Some(new));
        for found in &self.rules {
            if is_ours(found, rule) {
                all.extend(new.take().into_iter().flatten());
            } else {
                all.push(found.clone());
            }
        }
        all.extend(new.into_iter().flatten());
        // Fields that a later API may add to the lifecycle stay too.
        let mut lifecycle = match &self.description["lifecycle"] {
            Value::Object(lifecycle) => lifecycle.clone(),
            _ => Map::new(),
        };
        lifecycle.insert("rule".to_owned(), Value::Array(all));
        json!({ "lifecycle": lifecycle })
    }

    /// Lists what else about this bucket costs time or money for a cache.
    pub(super) fn advice(&self, name: &str) -> Vec<String> {
        let mut advice = Vec::new();
        let kept = &self.description["softDeletePolicy"]["retentionDurationSeconds"];
        let kept_secs = kept.as_str().and_then(|text| text.parse().ok()).or_else(|| kept.as_u64());
        if let Some(secs) = kept_secs.filter(|secs| *secs > 0) {
            advice.push(format!(
                "soft delete is on: deleted objects are kept, and billed, for {} more; for a cache \
                 switch it off: gcloud storage buckets update gs://{name} --clear-soft-delete",
                days(secs.div_ceil(86_400))
            ));
        }
        let class = self.description["storageClass"].as_str().unwrap_or("STANDARD");
        if class != "STANDARD" {
            advice.push(format!(
                "the default class is {class}, which bills reads and early deletion; for a cache take \
                 the standard one: gcloud storage buckets update gs://{name} \
                 --default-storage-class=STANDARD"
            ));
        }
        if self.description["autoclass"]["enabled"] == true {
            advice.push(format!(
                "autoclass is on, which is useless for objects with such a short life, and bills each object: \
                 gcloud storage buckets update gs://{name} --no-enable-autoclass"
            ));
        }
        if let Some(place) = self.description["location"].as_str() {
            advice.push(format!(
                "the bucket is in {place}: each miss waits for a round trip, so it should be the \
                 region of the machines; a bucket cannot be moved, only made again"
            ));
        }
        advice
    }
}

/// Serializes a change for sending.
pub(super) fn text(change: &Value) -> String {
    serde_json::to_string_pretty(change).expect("plain data always encodes")
}

/// Returns the advice for a bucket that could not be read.
pub(super) fn advice_unseen(name: &str) -> Vec<String> {
    vec![
        "make the bucket in the region of the machines: each miss waits for a round trip"
            .to_owned(),
        "take the standard class: the colder ones bill reads and early deletion".to_owned(),
        format!(
            "switch soft delete off, which keeps and bills deleted objects for 7 days unless set \
             otherwise: gcloud storage buckets update gs://{name} --clear-soft-delete"
        ),
    ]
}

/// Returns our rules.
pub(super) fn written(rule: &BucketRule, versions: bool) -> Vec<Value> {
    let one = |action: &str, condition: &str, days: u64| {
        json!({
            "action": { "type": action },
            "condition": { condition: days, "matchesPrefix": rule.places },
        })
    };
    let mut all = Vec::new();
    all.extend(rule.days.map(|days| one(DELETE, "age", days)));
    if versions {
        all.push(one(DELETE, "daysSinceNoncurrentTime", NONCURRENT_DAYS));
    }
    all.push(one(ABORT, "age", ABORT_DAYS));
    all
}

/// Reports whether a rule is ours. Rules have no names here: ours have our action and exactly our
/// places, with any number of days.
fn is_ours(found: &Value, rule: &BucketRule) -> bool {
    let Some(condition) = found["condition"].as_object() else { return false };
    let action = found["action"].as_object().filter(|action| action.len() == 1);
    let counted = ["age", "daysSinceNoncurrentTime"];
    let does = match action.and_then(|action| action.get("type")?.as_str()) {
        Some(DELETE) => counted.iter().any(|name| condition.contains_key(*name)),
        Some(ABORT) => condition.contains_key("age"),
        _ => false,
    };
    does && condition.len() == 2 && places_are_ours(condition, rule)
}

fn places_are_ours(condition: &Map<String, Value>, rule: &BucketRule) -> bool {
    let mut found = strings(condition.get("matchesPrefix"));
    let mut ours = rule.places.clone();
    found.sort();
    ours.sort();
    found == ours
}

/// Reports whether two rules of ours are equal; the order of the prefixes does not matter.
fn same(found: &Value, wanted: &Value) -> bool {
    let number = |rule: &Value, name: &str| rule["condition"][name].as_u64();
    found["action"] == wanted["action"]
        && ["age", "daysSinceNoncurrentTime"].iter().all(|n| number(found, n) == number(wanted, n))
}

fn strings(list: Option<&Value>) -> Vec<String> {
    let all = list.and_then(Value::as_array).into_iter().flatten();
    all.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Returns what a rule does to current objects.
fn effect(rule: &Value, number: usize) -> Option<Other> {
    let kind = rule["action"]["type"].as_str().unwrap_or_default();
    let effect = match kind {
        DELETE => Effect::Delete,
        MOVE => match rule["action"]["storageClass"].as_str().unwrap_or("another class") {
            "ARCHIVE" => Effect::Archive(
                "ARCHIVE, where each read is billed and deletion within a year too".to_owned(),
            ),
            class => Effect::Colder(class.to_owned()),
        },
        _ => return None,
    };
    let empty = Map::new();
    let condition = rule["condition"].as_object().unwrap_or(&empty);
    // These conditions hold only for noncurrent versions, or for objects that carry a time of their
    // own; ours do not.
    let never = [
        "daysSinceNoncurrentTime",
        "noncurrentTimeBefore",
        "numNewerVersions",
        "customTimeBefore",
        "daysSinceCustomTime",
    ];
    if never.iter().any(|name| condition.contains_key(*name))
        || condition.get("isLive") == Some(&false.into())
    {
        return None;
    }
    let mut only = Vec::new();
    for (name, value) in condition {
        if !["age", "isLive", "matchesPrefix"].contains(&name.as_str()) {
            only.push(format!("{name} is {value}"));
        }
    }
    let when = match (condition.get("age").and_then(Value::as_u64), condition.get("createdBefore"))
    {
        (Some(age), _) => When::Days(age),
        (None, Some(_)) => When::Unclear("the date on which it was stored".to_owned()),
        (None, None) => When::Days(0),
    };
    let prefixes = match condition.get("matchesPrefix") {
        Some(list) => strings(Some(list)),
        None => vec![String::new()],
    };
    Some(Other { name: format!("rule {number} ({kind})"), prefixes, only, effect, when })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn bucket(more: &Value) -> GcsBucket {
        let mut all = json!({ "metageneration": "7", "storageClass": "STANDARD" });
        let more = more.as_object().expect("an object").clone();
        all.as_object_mut().expect("an object").extend(more);
        GcsBucket::read(&all.to_string()).expect("a bucket")
    }

    fn rules(rules: &[Value]) -> GcsBucket {
        bucket(&json!({ "lifecycle": { "rule": rules } }))
    }

    fn month() -> BucketRule {
        BucketRule::new("team", Some(30 * DAY))
    }

    fn foreign() -> Vec<Value> {
        vec![
            json!({"action":{"type":"Delete"},"condition":{"age":400,"isLive":true,"later":{"x":[1]}}}),
            json!({"action":{"type":"SetStorageClass","storageClass":"NEARLINE"},"condition":
                {"matchesPrefix":["logs/"],"age":3}}),
            json!({"action":{"type":"Delete"},"condition":{"age":1,"matchesPrefix":["team/log/"],
                "matchesSuffix":[".tmp"]}}),
            json!({"action":{"type":"AbortIncompleteMultipartUpload"},"condition":{"age":1}}),
            json!({"something":"new"}),
        ]
    }

    #[test]
    fn the_rules_are_pinned() {
        let text =
            serde_json::to_string(&written(&BucketRule::new("", Some(36 * DAY / 24)), false));
        let places = "[\"log/\",\"packs/\",\"blobs/\",\"checkpoints/\",\"probes/\"]";
        let wanted = format!(
            "[{{\"action\":{{\"type\":\"Delete\"}},\"condition\":{{\"age\":2,\"matchesPrefix\":{places}}}}},\
             {{\"action\":{{\"type\":\"AbortIncompleteMultipartUpload\"}},\"condition\":{{\"age\":3,\
             \"matchesPrefix\":{places}}}}}]"
        );
        assert_eq!(text.expect("plain"), wanted);
        assert_eq!(written(&BucketRule::new("", None), false).len(), 1);
        assert_eq!(written(&BucketRule::new("", None), true).len(), 2);
    }

    #[test]
    fn foreign_rules_stay_as_they_are_and_in_order() {
        let rule = month();
        let before = rules(&foreign());
        assert_eq!((before.ours(&rule), before.foreign(&rule)), (0, 5));
        assert_eq!(before.lacks(&rule).len(), 2);
        let change = before.with(&rule);
        let all = change["lifecycle"]["rule"].as_array().expect("a list").clone();
        assert_eq!(all[..5], foreign());
        assert_eq!(all.len(), 7);
        let after = rules(&all);
        assert_eq!(after.lacks(&rule), [""; 0]);
        assert_eq!(after.with(&rule), change, "a second time changes nothing");
        assert_eq!(after.without(&rule), json!({"lifecycle":{"rule":foreign()}}));
        let mut mixed = all.clone();
        mixed.rotate_right(3);
        let changed = rules(&mixed).with(&BucketRule::new("team", Some(DAY)));
        let left: Vec<_> = changed["lifecycle"]["rule"].as_array().expect("a list").clone();
        assert_eq!(left.iter().filter(|r| !is_ours(r, &rule)).cloned().collect::<Vec<_>>(), {
            let mut rotated = foreign();
            rotated.rotate_right(1);
            rotated
        });
        assert_eq!(left[1]["condition"]["age"], 1);
    }

    #[test]
    fn what_ours_lack_is_said_with_both_numbers() {
        let good = written(&month(), false);
        let mut week = good.clone();
        week[0]["condition"]["age"] = 7.into();
        let lacks = rules(&week).lacks(&month());
        assert!(
            lacks.iter().any(|l| l.contains("after 7 days what hearthfs keeps for 30 days")),
            "{lacks:?}"
        );
        let versioned = bucket(&json!({"lifecycle":{"rule":good},"versioning":{"enabled":true}}));
        assert!(versioned.lacks(&month())[0].contains("old versions"));
        let all = versioned.with(&month());
        assert_eq!(all["lifecycle"]["rule"][1]["condition"]["daysSinceNoncurrentTime"], 1);
        let mut shuffled = good;
        shuffled[0]["condition"]["matchesPrefix"].as_array_mut().expect("a list").reverse();
        assert_eq!(rules(&shuffled).lacks(&month()), [""; 0]);
    }

    #[test]
    fn rules_of_others_are_understood() {
        let judged = |one: Value| {
            let rule = month();
            rule.judge(&rules(&[one]).others(&rule))
        };
        let delete = |condition: Value| json!({"action":{"type":"Delete"},"condition":condition});
        for (one, says) in [
            (delete(json!({"age":7})), "rule 1 (Delete) of the bucket deletes after 7 days"),
            (delete(json!({"age":29,"matchesPrefix":["x","team"]})), "hearthfs keeps for 30 days"),
            (delete(json!({"age":1,"matchesSuffix":[".pack"]})), "only where matchesSuffix is"),
            (delete(json!({"createdBefore":"2030-01-01"})), "the date on which"),
            (delete(json!({"matchesPrefix":["team/blobs/ab"]})), "after 0 days"),
            (
                json!({"action":{"type":"SetStorageClass","storageClass":"ARCHIVE"},"condition":{"age":2}}),
                "ARCHIVE",
            ),
        ] {
            let found = judged(one).contradictions;
            assert_eq!(found.len(), 1, "{says}: {found:?}");
            assert!(found[0].contains(says), "{}", found[0]);
        }
        for one in [
            delete(json!({"age":30})),
            delete(json!({"age":1,"matchesPrefix":["teams/"]})),
            delete(json!({"age":1,"isLive":false})),
            delete(json!({"numNewerVersions":1})),
            delete(json!({"daysSinceCustomTime":1})),
        ] {
            assert_eq!(judged(one.clone()).contradictions, [""; 0], "{one}");
        }
    }

    #[test]
    fn advice_is_for_this_bucket() {
        let all = bucket(&json!({"softDeletePolicy":{"retentionDurationSeconds":"604800"},
            "storageClass":"NEARLINE","location":"US","autoclass":{"enabled":true}}));
        let advice = all.advice("b").join("\n");
        for part in ["7 days more", "NEARLINE", "in US", "autoclass", "gs://b --clear-soft-delete"]
        {
            assert!(advice.contains(part), "`{part}` is not in: {advice}");
        }
        let off = bucket(&json!({"softDeletePolicy":{"retentionDurationSeconds":"0"}}));
        assert_eq!(off.advice("b"), [""; 0]);
    }

    #[test]
    fn what_is_no_bucket_is_refused() {
        for text in ["", "[]", "{}", r#"{"metageneration":"1","lifecycle":{"rule":{}}}"#] {
            GcsBucket::read(text).expect_err(text);
        }
    }
}
