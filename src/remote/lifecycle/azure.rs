//! The policy of an Azure storage account. We can only print it: Azure keeps it in its management
//! API, which the keys of the storage do not open.
//!
//! Owns the text of the policy and of the commands. Must never suggest that they were run.

use serde_json::{Value, json};

use super::rule::{BucketRule, NONCURRENT_DAYS};
use crate::digest::Digest;

/// Returns the policy with our rule alone; `None` if entries live for ever and need no rule.
pub(super) fn policy(container: &str, rule: &BucketRule) -> Option<Value> {
    let days = rule.days?;
    let places: Vec<_> = rule.places.iter().map(|place| format!("{container}/{place}")).collect();
    // A name may hold only letters, digits and dashes, and only the name distinguishes two prefixes.
    let digest = Digest::of(places.join("\n").as_bytes()).to_string();
    Some(json!({
        "rules": [{
            "enabled": true,
            "name": format!("hearthfs-{container}-{}", &digest[..8]),
            "type": "Lifecycle",
            "definition": {
                "filters": { "blobTypes": ["blockBlob"], "prefixMatch": places },
                "actions": {
                    "baseBlob": { "delete": { "daysAfterModificationGreaterThan": days } },
                    "version": { "delete": { "daysAfterCreationGreaterThan": NONCURRENT_DAYS } },
                },
            },
        }],
    }))
}

/// Returns the commands that set it, one per line.
pub(super) fn commands(account: &str) -> Vec<String> {
    vec![
        format!(
            "az storage account management-policy show --account-name {account} --resource-group GROUP \
             --query policy > policy.json"
        ),
        format!(
            "az storage account management-policy create --account-name {account} \
             --resource-group GROUP --policy @policy.json"
        ),
    ]
}

/// Returns what else is worth knowing.
pub(super) fn advice() -> Vec<String> {
    vec![
        "an account has one policy, and the second command replaces all of it: if the first prints \
         rules, add those of hearthfs to them; if it finds no policy, the one above is complete"
            .to_owned(),
        "unfinished uploads need no rule: Azure discards blocks that were not committed for a week"
            .to_owned(),
        "soft delete of blobs keeps, and bills, what the rule deletes; for a cache switch it off"
            .to_owned(),
    ]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_policy_is_scoped_to_what_may_age_out() {
        let month = Some(Duration::from_hours(30 * 24));
        let policy_of = |prefix: &str, age| policy("box", &BucketRule::new(prefix, age));
        let one = policy_of("team", month).expect("a policy");
        let rule = &one["rules"][0];
        assert_eq!(rule["definition"]["filters"]["prefixMatch"][0], "box/team/log/");
        let delete = &rule["definition"]["actions"]["baseBlob"]["delete"];
        assert_eq!(delete["daysAfterModificationGreaterThan"], 30);
        let name = rule["name"].as_str().expect("a name");
        assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'), "{name}");
        assert_ne!(
            one["rules"][0]["name"],
            policy_of("", month).expect("a policy")["rules"][0]["name"]
        );
        assert_eq!(policy_of("team", None), None);
    }
}
