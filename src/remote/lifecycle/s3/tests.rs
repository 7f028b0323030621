//! Documents as stores and people write them.

use std::time::Duration;

use proptest::prelude::*;

use super::*;

const DAY: Duration = Duration::from_hours(24);

fn month() -> BucketRule {
    BucketRule::new("team", Some(30 * DAY))
}

fn read(text: &str) -> Rules {
    Rules::read(text).unwrap_or_else(|problem| panic!("{text}: {problem}"))
}

/// Rules of others in all the forms that occur.
const FOREIGN: [&str; 7] = [
    "<Rule><ID>logs</ID><Filter><Prefix>logs/</Prefix></Filter><Status>Enabled</Status>\
     <Expiration><Days>365</Days></Expiration></Rule>",
    "<Rule>\n\t<ID>a &amp; b</ID >\r\n  <!-- <Rule> of the storage team; do not touch -->\n  <Filter>\
     <And><Prefix>x/</Prefix><Tag><Key>k</Key><Value>v</Value></Tag></And></Filter>\
     <Status>Disabled</Status><Expiration><Date>2031-01-01T00:00:00Z</Date></Expiration>\n</Rule>",
    "<Rule xmlns:z=\"urn:z\" z:note='>'><ID><![CDATA[<Rule>hearthfs:team/log</Rule>]]></ID><Filter/>\
     <Status>Disabled</Status><z:Future><z:Deep a=\"1\"/></z:Future></Rule>",
    "<Rule><ID>hearthfs:other/log</ID><Filter><Prefix>other/log/</Prefix></Filter>\
     <Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>",
    "<Rule><Filter><ObjectSizeGreaterThan>500</ObjectSizeGreaterThan></Filter><Status>Disabled</Status>\
     <Transition><Days>0</Days><StorageClass>GLACIER</StorageClass></Transition></Rule>",
    "<Unknown>of a later version</Unknown>",
    "<Rule><ID> hearthfs:team </ID><Filter><Prefix>team</Prefix></Filter><Status>Enabled</Status>\
     <NoncurrentVersionExpiration><NoncurrentDays>9</NoncurrentDays></NoncurrentVersionExpiration></Rule>",
];

#[test]
fn the_rule_is_pinned() {
    let rules = read("");
    let text = rules.with(&BucketRule::new("", Some(30 * DAY)), Versioning::Kept);
    let one = "<Rule><ID>hearthfs:log</ID><Filter><Prefix>log/</Prefix></Filter><Status>Enabled</Status>\
        <Expiration><Days>30</Days></Expiration><NoncurrentVersionExpiration><NoncurrentDays>1\
        </NoncurrentDays></NoncurrentVersionExpiration><AbortIncompleteMultipartUpload>\
        <DaysAfterInitiation>3</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>";
    let start = format!("<LifecycleConfiguration xmlns=\"{NAMESPACE}\">{one}<Rule>");
    assert!(text.starts_with(&start), "{text}");
    assert!(text.ends_with("</Rule></LifecycleConfiguration>"), "{text}");
    assert_eq!(text.matches("<Rule>").count(), 5);
    assert!(!text.contains("hearthfs.json"));
    let never = rules.with(&BucketRule::new("", None), Versioning::None);
    assert!(!never.contains("Expiration") && never.contains("DaysAfterInitiation"), "{never}");
}

#[test]
fn our_rules_are_found_in_order_and_written_once() {
    for expiry in [Some(30 * DAY), Some(Duration::from_secs(5)), None] {
        for versions in [Versioning::Kept, Versioning::None] {
            let rule = BucketRule::new("a/b", expiry);
            assert_eq!(read("").lacks(&rule, versions).len(), 5);
            let text = read("").with(&rule, versions);
            let rules = read(&text);
            assert_eq!(rules.lacks(&rule, versions), [""; 0]);
            assert_eq!(rules.lacks(&rule, Versioning::Unknown), [""; 0]);
            assert_eq!(rules.with(&rule, versions), text);
            assert_eq!((rules.ours(&rule), rules.foreign(&rule)), (5, 0));
            assert_eq!(rules.without(&rule), None, "a document without rules is refused");
        }
    }
}

#[test]
fn foreign_rules_stay_byte_for_byte() {
    let rule = month();
    for (start, between, end) in [
        ("<LifecycleConfiguration>", "", "</LifecycleConfiguration>"),
        (
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!-- top --><LifecycleConfiguration \
             xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n",
            "\r\n    ",
            "<!-- bottom -->\n</LifecycleConfiguration>\n<?end?>\n",
        ),
    ] {
        let text = format!("{start}{}{end}", FOREIGN.join(between));
        let before = read(&text);
        let canonical = before.foreign_canonical(&rule);
        assert_eq!((before.ours(&rule), canonical.len()), (0, FOREIGN.len()));
        let applied = before.with(&rule, Versioning::None);
        for foreign in FOREIGN {
            assert_eq!(applied.matches(foreign).count(), 1, "{foreign}\nin {applied}");
        }
        let after = read(&applied);
        assert_eq!(after.lacks(&rule, Versioning::None), [""; 0]);
        assert_eq!(after.foreign_canonical(&rule), canonical);
        assert_eq!(after.with(&rule, Versioning::None), applied, "a second time changes nothing");
        let shorter = BucketRule::new("team", Some(DAY));
        let changed = after.with(&shorter, Versioning::None);
        assert_eq!(changed.len(), applied.len() - 5, "only 30 changed to 1");
        assert_eq!(read(&changed).with(&rule, Versioning::None), applied);
        assert_eq!(after.without(&rule), Some(text), "the document of before is restored");
    }
}

#[test]
fn our_rules_are_replaced_in_place() {
    let rule = month();
    let ours = read("").written(&rule, Versioning::None);
    let (a, b, c) = (FOREIGN[0], FOREIGN[1], FOREIGN[3]);
    let stale = "<Rule><ID>hearthfs:team/log</ID><Status>Disabled</Status></Rule>";
    let twice = "<Rule><ID>hearthfs:team/packs</ID><Status>Enabled</Status></Rule>";
    let text = format!(
        "<LifecycleConfiguration>{a}\n{stale}\n{b} {twice}{twice}\t{c}</LifecycleConfiguration>"
    );
    let applied = read(&text).with(&rule, Versioning::None);
    let wanted = format!("<LifecycleConfiguration>{a}\n{ours}\n{b} \t{c}</LifecycleConfiguration>");
    assert_eq!(applied, wanted);
}

#[test]
fn the_old_form_and_prefixed_names_are_kept() {
    let rule = month();
    let old = "<LifecycleConfiguration><Rule><ID>x</ID><Prefix>logs/</Prefix><Status>Enabled</Status>\
        <Expiration><Days>3</Days></Expiration></Rule></LifecycleConfiguration>";
    let applied = read(old).with(&rule, Versioning::None);
    assert!(applied.contains("<ID>hearthfs:team/log</ID><Prefix>team/log/</Prefix>"), "{applied}");
    assert!(!applied.contains("Filter"), "{applied}");
    assert_eq!(read(&applied).lacks(&rule, Versioning::None), [""; 0]);
    let spaced = "<s:LifecycleConfiguration xmlns:s=\"urn:s3\"/>";
    let applied = read(spaced).with(&rule, Versioning::None);
    assert!(applied.starts_with("<s:LifecycleConfiguration xmlns:s=\"urn:s3\"><s:Rule><s:ID>"));
    assert!(applied.ends_with("</s:Rule></s:LifecycleConfiguration>"), "{applied}");
    assert_eq!(read(&applied).lacks(&rule, Versioning::None), [""; 0]);
}

#[test]
fn what_ours_lack_is_said_with_both_numbers() {
    let rule = month();
    let good = read("").with(&rule, Versioning::None);
    for (from, to, says) in [
        (
            "<Days>30</Days>",
            "<Days>7</Days>",
            "deletes after 7 days what hearthfs keeps for 30 days",
        ),
        ("<Days>30</Days>", "<Days>60</Days>", "deletes after 60 days what hearthfs keeps for 30"),
        ("<Expiration><Days>30</Days></Expiration>", "", "deletes nothing"),
        ("Enabled", "Disabled", "is switched off"),
        (">team/log/<", ">team/lo/<", "is for `team/lo/`"),
        ("<DaysAfterInitiation>3", "<DaysAfterInitiation>30", "unfinished uploads"),
        (
            "<ID>hearthfs:team/log</ID>",
            "<ID>mine</ID>",
            "no rule of hearthfs deletes below team/log/",
        ),
        ("</Status>", "</Status><Transition><Days>1</Days></Transition>", "`Transition`"),
    ] {
        let lacks = read(&good.replacen(from, to, 1)).lacks(&rule, Versioning::None);
        assert_eq!(lacks.len(), 1, "{to}: {lacks:?}");
        assert!(lacks[0].contains(says), "{to}: {}", lacks[0]);
    }
    assert!(read(&good).lacks(&rule, Versioning::Kept)[0].contains("old versions"));
}

#[test]
fn what_a_store_drops_is_noticed() {
    let rule = month();
    let good = read("").with(&rule, Versioning::None);
    let part = "<AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation>\
        </AbortIncompleteMultipartUpload>";
    assert!(!read(&good).drops_aborts(&rule) && !read(&good).reaches_too_far(&rule));
    assert!(!read("").drops_aborts(&rule), "no rule of ours");
    let dropped = read(&good.replace(part, "<Transition/>"));
    assert!(dropped.drops_aborts(&rule));
    assert_eq!(dropped.lacks(&rule, Versioning::None), [""; 0], "the store cannot have it");
    assert!(!read(&good.replacen(part, "", 1)).drops_aborts(&rule), "one rule has changed");
    assert_eq!(read(&good.replacen(part, "", 1)).lacks(&rule, Versioning::None).len(), 1);
    for wide in ["<Filter/>", "", "<Prefix/>", "<Filter><Prefix>team/</Prefix></Filter>"] {
        let narrow = "<Filter><Prefix>team/blobs/</Prefix></Filter>";
        assert!(read(&good.replace(narrow, wide)).reaches_too_far(&rule), "{wide}");
    }
    let never = BucketRule::new("team", None);
    let tidy = read("").with(&never, Versioning::None).replace(part, "");
    assert!(!read(&tidy).drops_aborts(&never), "the rule contains nothing else");
}

#[test]
fn rules_of_others_are_understood() {
    let text = |body: &str| {
        format!("<LifecycleConfiguration><Rule>{body}</Rule></LifecycleConfiguration>")
    };
    let contradicts = |body: &str| {
        let rule = month();
        rule.judge(&read(&text(body)).others(&rule)).contradictions
    };
    let on = "<Status>Enabled</Status><Expiration><Days>7</Days></Expiration>";
    for (body, says) in [
        (format!("<ID>x</ID><Filter/>{on}"), "rule `x` of the bucket deletes after 7 days"),
        (format!("<Filter><Prefix></Prefix></Filter>{on}"), "rule 1 (without a name)"),
        (format!("<ID>old</ID><Prefix>te</Prefix>{on}"), "`old`"),
        (format!("<ID>x</ID>{on}"), "hearthfs keeps for 30 days"),
        (
            "<ID>x</ID><Filter/><Status>Enabled</Status><Transition><Days>1</Days><StorageClass>\
             DEEP_ARCHIVE</StorageClass></Transition>"
                .to_owned(),
            "DEEP_ARCHIVE",
        ),
        (
            "<ID>x</ID><Filter/><Status>Enabled</Status><Expiration><Date>2030-01-01T00:00:00Z\
             </Date></Expiration>"
                .to_owned(),
            "2030-01-01",
        ),
    ] {
        let found = contradicts(&body);
        assert_eq!(found.len(), 1, "{body}: {found:?}");
        assert!(found[0].contains(says), "{}", found[0]);
    }
    for body in [
        format!("<ID>x</ID><Filter><Prefix>tex/</Prefix></Filter>{on}"),
        format!("<Filter><Tag><Key>a</Key><Value>b</Value></Tag></Filter>{on}"),
        format!("<Filter/>{}", on.replace("Enabled", "Disabled")),
        format!("<Filter/>{}", on.replace('7', "30")),
        "<Filter/><Status>Enabled</Status><NoncurrentVersionExpiration><NoncurrentDays>1\
         </NoncurrentDays></NoncurrentVersionExpiration>"
            .to_owned(),
    ] {
        assert_eq!(contradicts(&body), [""; 0], "{body}");
    }
}

#[test]
fn long_prefixes_have_short_names_of_their_own() {
    let (a, b) = (format!("{}/a", "p".repeat(500)), format!("{}/b", "p".repeat(500)));
    assert!(id_of(&a).len() <= ID_BYTES_MAX && id_of(&a) != id_of(&b));
    assert_eq!(id_of("team/log/"), "hearthfs:team/log");
}

#[test]
fn what_is_no_configuration_is_refused() {
    for text in ["<Error><Code>x</Code></Error>", "<LifecycleConfiguration>", "{}", "<a/><b/>"] {
        Rules::read(text).expect_err(text);
    }
}

proptest! {
    #[test]
    fn any_mixture_keeps_what_is_foreign(
        pieces in prop::collection::vec((0usize..12, "[ \n\t]{0,3}"), 0..12),
    ) {
        let rule = month();
        let ours = read("").written(&rule, Versioning::None);
        let (mut text, mut kept) = ("<LifecycleConfiguration>".to_owned(), Vec::new());
        for (choice, space) in &pieces {
            if let Some(foreign) = FOREIGN.get(*choice) {
                text.push_str(foreign);
                kept.push(*foreign);
            } else if *choice == 7 {
                text.push_str(&ours);
            } else if *choice == 8 {
                text.push_str("<!-- <Rule><ID>hearthfs:team/log</ID></Rule> -->");
            }
            text.push_str(space);
        }
        text.push_str("</LifecycleConfiguration>");
        let before = read(&text);
        let applied = before.with(&rule, Versioning::None);
        let after = read(&applied);
        prop_assert_eq!(after.lacks(&rule, Versioning::None), [""; 0]);
        prop_assert_eq!(after.with(&rule, Versioning::None), applied.clone());
        let found: Vec<_> = after.root.children.iter().filter(|c| !is_ours(c, &rule))
            .map(|c| &applied[c.range.clone()]).collect();
        prop_assert_eq!(found, kept);
        prop_assert_eq!(applied.replace(&ours, ""), text.replace(&ours, ""));
    }
}
