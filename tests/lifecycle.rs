//! `hearthfs lifecycle` with buckets whose content is visible: what is written, what stays, what is printed.

mod rules;
#[path = "lifecycle/servers.rs"]
mod servers;
mod stores;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use rules::{Bucket, Trouble};
use serde_json::{Value, json};

/// The working directory of the program: nothing outside is read or written.
struct Bench {
    dir: tempfile::TempDir,
    endpoint: String,
}

struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Bench {
    fn new(endpoint: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("hearthfs.toml"), "").expect("written");
        Self { dir, endpoint: endpoint.to_owned() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearthfs"));
        command
            .env_clear()
            .env("HOME", self.dir.path())
            .env("HEARTHFS_CONFIG", self.dir.path().join("hearthfs.toml"))
            .env("AWS_ACCESS_KEY_ID", "testkey")
            .env("AWS_SECRET_ACCESS_KEY", "testsecret")
            .args(["lifecycle"])
            .args(args)
            .stdin(Stdio::null());
        if !self.endpoint.is_empty() {
            command.args(["--set", &format!("remote.endpoint={}", self.endpoint)]);
        }
        command
    }

    fn run(&self, args: &[&str]) -> Said {
        said(self.command(args).output().expect("started"))
    }

    /// Runs the program and checks the exit status and the words on either stream.
    fn says(&self, args: &[&str], status: i32, words: &[&str]) -> Said {
        let said = self.run(args);
        let all = format!("{}{}", said.out, said.err);
        assert_eq!(said.status, Some(status), "{args:?}: {all}");
        for word in words {
            assert!(all.contains(word), "{args:?}: `{word}` is not in:\n{all}");
        }
        said
    }
}

fn said(output: Output) -> Said {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
    Said { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

const S3: &str = "s3://bkt/team";
const GS: &str = "gs://bkt/team";

/// Rules of others, with unusual formatting.
const FOREIGN: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<LifecycleConfiguration \
    xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">\n\t<!-- ours is ours --> <Rule>\r\n<ID>a &amp; \
    b</ID><Filter><And><Prefix>x/</Prefix><Tag><Key>k</Key><Value><![CDATA[<v>]]></Value></Tag></And>\
    </Filter><Status>Enabled</Status><Expiration><Days>1</Days></Expiration></Rule>  <Rule><ID>y</ID>\
    <Filter><Prefix>y/</Prefix></Filter ><Status>Enabled</Status><Later><Of at=\"once\"/></Later></Rule>\
    \n</LifecycleConfiguration>\n<!-- end -->";

fn rule(id: &str, prefix: &str, days: u32) -> String {
    format!(
        "<LifecycleConfiguration><Rule><ID>{id}</ID><Filter><Prefix>{prefix}</Prefix></Filter>\
         <Status>Enabled</Status><Expiration><Days>{days}</Days></Expiration></Rule>\
         </LifecycleConfiguration>"
    )
}

#[test]
fn s3_twice_is_once_and_foreign_rules_stay_byte_for_byte() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    bucket.state().xml = Some(FOREIGN.to_owned());
    bucket.state().sizes = Some("varies_by_storage_class".to_owned());
    bench.says(
        &["verify", S3],
        1,
        &["no lifecycle rule of the bucket is for s3://bkt/team", "lifecycle apply s3://bkt/team"],
    );
    let plan = bench.says(&["plan", S3], 0, &["no rule of ours, 2 rules of others", "30 days"]);
    assert_eq!(bucket.state().count("PUT"), 0, "neither command writes");
    bench.says(&["apply", S3], 0, &["for an expiry of 30d are written", "hearthfs.json is made"]);
    let applied = bucket.state().xml.clone().expect("rules");
    assert_eq!(plan.out, format!("{applied}\n"), "the plan was sent");
    let (start, end) =
        FOREIGN.split_at(FOREIGN.rfind("</LifecycleConfiguration>").expect("an end"));
    assert!(applied.starts_with(start) && applied.ends_with(end), "{applied}");
    assert_eq!(applied.matches("<Days>30</Days>").count(), 5, "{applied}");
    assert_eq!(
        bucket.state().sizes.as_deref(),
        Some("varies_by_storage_class"),
        "the sizes are kept"
    );
    let puts = bucket.state().count("PUT");
    bench.says(&["apply", S3], 0, &["nothing was written", "declares an expiry of 30d already"]);
    assert_eq!(bucket.state().count("PUT"), puts, "the second sends no write");
    assert_eq!(bucket.state().xml.as_ref(), Some(&applied));
    bench.says(&["verify", S3], 0, &["the rules agree with an expiry of 30d"]);
    bench.says(&["remove", S3], 0, &["the rules of hearthfs are removed"]);
    assert_eq!(
        bucket.state().xml.as_deref(),
        Some(FOREIGN),
        "the original document, byte for byte"
    );
    bench.says(&["remove", S3], 0, &["there was no rule of hearthfs"]);
}

#[test]
fn s3_a_bucket_without_rules_has_none_again() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    bucket.state().versioning = "<Status>Enabled</Status>";
    bench.says(&["plan", "s3://bkt"], 0, &["<Prefix>log/</Prefix>", "the bucket keeps versions"]);
    bench.says(&["apply", "s3://bkt", "--expiry", "36h"], 0, &["an expiry of 1d12h"]);
    let applied = bucket.state().xml.clone().expect("rules");
    assert!(applied.contains("<Days>2</Days>") && applied.contains("NoncurrentDays"), "{applied}");
    assert!(!applied.contains("hearthfs.json") && !applied.contains("<Prefix></Prefix>"));
    bench.says(&["remove", "s3://bkt"], 0, &["removed"]);
    assert_eq!(bucket.state().xml, None);
    assert_eq!(bucket.state().count("DELETE /bkt?lifecycle"), 1);
    let never = bench.says(&["plan", "s3://bkt", "--expiry", "never"], 0, &["deletes no entry"]);
    assert!(never.out.contains("DaysAfterInitiation") && !never.out.contains("<Expiration>"));
}

#[test]
fn s3_what_disagrees_is_said_with_both_numbers() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    bench.says(&["apply", S3], 0, &[]);
    let ours = bucket.state().xml.clone().expect("rules");
    let insert = |foreign: &str| {
        let start = foreign.find("<Rule>").expect("a rule");
        let end = foreign.find("</LifecycleConfiguration>").expect("an end");
        ours.replacen("<Rule>", &format!("{}<Rule>", &foreign[start..end]), 1)
    };
    let cases: [(String, &[&str]); 4] = [
        (
            insert(&rule("cleanup", "", 7)),
            &["rule `cleanup` of the bucket deletes after 7 days what hearthfs keeps for 30 days"],
        ),
        (insert(&rule("part", "team/blobs/a", 29)), &["`part`", "29 days", "30 days"]),
        (
            ours.replacen("<Days>30</Days>", "<Days>10</Days>", 1),
            &["`hearthfs:team/log`", "after 10 days", "30 days"],
        ),
        (
            insert(
                &rule("cold", "te", 1)
                    .replace("Expiration>", "Transition>")
                    .replace("</Days>", "</Days><StorageClass>GLACIER</StorageClass>"),
            ),
            &["`cold`", "GLACIER", "after 1 day", "30 days"],
        ),
    ];
    for (xml, words) in &cases {
        bucket.state().xml = Some(xml.clone());
        let said = bench.says(&["verify", S3, "--json"], 1, words);
        let report: Value = serde_json::from_str(&said.out).expect("JSON");
        let of = |key: &str| report[key].clone();
        assert_eq!((of("expiry"), of("declared")), ("30d".into(), "30d".into()));
        assert_eq!(of("agrees"), false);
    }
    bucket.state().xml = Some(insert(&rule("late", "", 90)));
    bench.says(&["verify", S3], 0, &["note: ", "deletes team/hearthfs.json after 90 days"]);
    bucket.state().xml = Some(insert(&rule("other", "tea/", 1)));
    bench.says(&["verify", S3], 0, &["agree"]);
    bench.says(&["verify", S3, "--expiry", "40d"], 1, &["after 30 days", "40 days", "30d", "40d"]);
}

#[test]
fn s3_failures_are_retried_or_named() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    let (get, put) = ("GET /bkt?lifecycle", "PUT /bkt?lifecycle");
    bucket.trouble(get, Trouble::Refused(503, "SlowDown"));
    bucket.trouble(get, Trouble::Refused(500, "InternalError"));
    bucket.trouble(put, Trouble::Refused(409, "OperationAborted"));
    bucket.trouble(put, Trouble::LostReply);
    bench.says(&["apply", S3], 0, &["are written"]);
    bench.says(&["verify", S3], 0, &["agree"]);
    bucket.trouble(get, Trouble::Refused(403, "AccessDenied"));
    let words = ["s3://bkt/team", "403 AccessDenied of the test", "s3:GetLifecycleConfiguration"];
    bench.says(&["verify", S3], 1, &words);
    bucket.trouble(put, Trouble::Refused(403, "AccessDenied"));
    bench.says(&["apply", S3, "--expiry", "8d"], 1, &["403", "s3:PutLifecycleConfiguration"]);
    bucket.trouble("PUT /bkt/team/hearthfs.json", Trouble::Refused(403, "AccessDenied"));
    bench.says(
        &["apply", S3, "--expiry", "8d"],
        1,
        &["rules for an expiry of 8d are", "hearthfs.json could not"],
    );
    bucket.trouble("GET /bkt?versioning", Trouble::Refused(403, "AccessDenied"));
    bench.says(&["verify", S3, "--expiry", "8d"], 1, &["30d", "8d", "the shorter"]);
    bucket.trouble(get, Trouble::Refused(501, "NotImplemented"));
    bench.says(&["apply", S3], 1, &["knows no lifecycle rules", "hearthfs gc s3://bkt/team"]);
    bucket.trouble(get, Trouble::Refused(501, "NotImplemented"));
    bench.says(&["verify", S3, "--expiry", "8d"], 1, &["knows no lifecycle rules"]);
    bench.says(&["apply", "s3://other/team"], 1, &["NoSuchBucket", "does not exist"]);
}

#[test]
fn s3_a_change_of_others_right_after_ours_is_noticed() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    bucket.state().xml = Some(rule("kept", "k/", 1));
    let get = "GET /bkt?lifecycle";
    bucket.trouble(get, Trouble::Meanwhile(|_| {}));
    // The second read is the one after the write.
    bucket.trouble(get, Trouble::Meanwhile(|state| state.xml = Some(rule("taken", "t/", 1))));
    bench.says(&["apply", S3], 1, &["rules of others", "another program changed them"]);
}

/// Some stores drop what they do not know. If the prefix were dropped, the rule would delete what
/// belongs to others.
#[test]
fn s3_what_a_store_drops_is_noticed_and_undone() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    bucket.state().xml = Some(FOREIGN.to_owned());
    bucket.state().edits = vec![(
        "<AbortIncompleteMultipartUpload><DaysAfterInitiation>3</DaysAfterInitiation>\
         </AbortIncompleteMultipartUpload>",
        "",
    )];
    bench.says(&["apply", S3], 0, &["are written"]);
    bench.says(&["apply", S3], 0, &["nothing was written"]);
    bench.says(&["verify", S3], 0, &["agree", "note: ", "unfinished uploads"]);
    bench.says(&["remove", S3], 0, &["removed"]);
    bucket.state().edits = vec![("<Filter><Prefix>team/blobs/</Prefix></Filter>", "<Filter/>")];
    bench.says(&["apply", S3], 1, &["drops the prefix", "are restored", "hearthfs gc"]);
    assert_eq!(bucket.state().xml.as_deref(), Some(FOREIGN));
    bucket.state().xml = None;
    bench.says(&["apply", S3], 1, &["drops the prefix"]);
    assert_eq!(bucket.state().xml, None);
    // The last attempt of a write is also read back if no answer came.
    bucket.state().xml = Some(FOREIGN.to_owned());
    for _ in 0..3 {
        bucket.trouble("PUT /bkt?lifecycle", Trouble::Refused(503, "SlowDown"));
    }
    bucket.trouble("PUT /bkt?lifecycle", Trouble::LostReply);
    bench.says(&["apply", S3], 1, &["drops the prefix", "are restored"]);
    assert_eq!(bucket.state().xml.as_deref(), Some(FOREIGN));
    // The next run must not mistake what could not be restored for the earlier rules.
    bucket.state().xml = Some(FOREIGN.to_owned());
    bucket.trouble("PUT /bkt?lifecycle", Trouble::Meanwhile(|_| {}));
    for _ in 0..4 {
        bucket.trouble("PUT /bkt?lifecycle", Trouble::Refused(403, "AccessDenied"));
    }
    bench.says(&["apply", S3], 1, &["COULD NOT BE RESTORED"]);
    assert!(bucket.state().xml.as_ref().is_some_and(|xml| xml.contains("hearthfs:team/blobs")));
    bench.says(&["apply", S3], 1, &["drops the prefix", "are removed, too"]);
    assert_eq!(bucket.state().xml.as_deref(), Some(FOREIGN));
}

/// A write without an answer may have been carried out, and others may have written since.
#[test]
fn s3_a_write_is_repeated_only_on_what_is_there() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    let (get, put) = ("GET /bkt?lifecycle", "PUT /bkt?lifecycle");
    bucket.trouble(put, Trouble::LostReply);
    bench.says(&["apply", S3], 0, &["are written"]);
    assert_eq!(bucket.state().count(put), 1, "the request was carried out");
    bench.says(&["remove", S3], 0, &["removed"]);
    bucket.trouble(put, Trouble::Refused(503, "SlowDown"));
    bucket.trouble(get, Trouble::Meanwhile(|_| {}));
    bucket.trouble(get, Trouble::Meanwhile(|state| state.xml = Some(rule("kept", "k/", 1))));
    bench.says(&["apply", S3], 0, &["are written"]);
    let xml = bucket.state().xml.clone().expect("rules");
    assert!(xml.contains("<ID>kept</ID>") && xml.contains("hearthfs:team/log"), "{xml}");
    for _ in 0..4 {
        bucket.trouble(put, Trouble::Refused(503, "SlowDown"));
    }
    bench.says(&["apply", S3, "--expiry", "3d"], 1, &["503 SlowDown", "try again later"]);
    // The write succeeds, and after it no read is allowed.
    bucket.trouble(get, Trouble::Meanwhile(|_| {}));
    bucket.trouble(get, Trouble::Refused(403, "AccessDenied"));
    let words = ["are written", "could not be checked", "403", "lifecycle verify"];
    bench.says(&["apply", S3, "--expiry", "3d"], 1, &words);
}

#[test]
fn gs_twice_is_once_and_foreign_rules_stay() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    let foreign = json!([
        {"action":{"type":"Delete"},"condition":{"age":400,"isLive":true,"later":{"x":[1,2.5]}}},
        {"action":{"type":"SetStorageClass","storageClass":"NEARLINE"},"condition":{"matchesPrefix":["l/"],"age":3}},
    ]);
    bucket.state().describe("lifecycle", json!({ "rule": foreign, "more": 1 }));
    bucket.state().describe("softDeletePolicy", json!({"retentionDurationSeconds":"604800"}));
    let plan = bench.says(
        &["plan", GS],
        0,
        &["2 rules of others", "soft delete is on", "EUROPE-WEST4", "--clear-soft-delete"],
    );
    let planned: Value = serde_json::from_str(&plan.out).expect("JSON");
    bench.says(&["apply", GS], 0, &["are written", "hearthfs.json is made"]);
    let lifecycle = bucket.state().description["lifecycle"].clone();
    assert_eq!(planned["lifecycle"], lifecycle);
    assert_eq!(
        lifecycle["rule"].as_array().expect("a list")[..2],
        *foreign.as_array().expect("a list")
    );
    assert_eq!(lifecycle["rule"][2]["condition"]["age"], 30);
    assert_eq!(lifecycle["rule"][2]["condition"]["matchesPrefix"][0], "team/log/");
    assert_eq!(lifecycle["more"], 1);
    bench.says(&["apply", GS], 0, &["nothing was written"]);
    assert_eq!(bucket.state().count("PATCH"), 1, "the second sends no write");
    bench.says(&["verify", GS], 0, &["agree", "deletes team/hearthfs.json after 400 days"]);
    bench.says(&["verify", GS, "--expiry", "14d"], 1, &["after 30 days", "14 days"]);
    bench.says(&["remove", GS], 0, &["removed"]);
    let expected = json!({ "rule": foreign, "more": 1 });
    assert_eq!(bucket.state().description["lifecycle"], expected);
    bench.says(&["remove", GS], 0, &["there was no rule of hearthfs"]);
}

#[test]
fn gs_a_change_in_between_is_kept() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    let patch = "PATCH /storage/v1/b/bkt";
    let other = |state: &mut rules::State| {
        let rule = json!({"action":{"type":"Delete"},"condition":{"age":2,"matchesPrefix":["z/"]}});
        state.describe("lifecycle", json!({ "rule": [rule] }));
    };
    bucket.trouble(patch, Trouble::Meanwhile(other));
    bench.says(&["apply", GS], 0, &["are written"]);
    let rules = bucket.state().description["lifecycle"]["rule"].clone();
    assert_eq!(rules.as_array().map(Vec::len), Some(3), "{rules}");
    assert_eq!(rules[0]["condition"]["matchesPrefix"][0], "z/");
    assert_eq!(bucket.state().count(patch), 2);
    bucket.trouble(patch, Trouble::LostReply);
    bench.says(&["apply", GS, "--expiry", "5d"], 0, &["are written"]);
    bench.says(&["verify", GS, "--expiry", "5d"], 0, &["agree"]);
    bucket.trouble("GET /storage", Trouble::Refused(403, "forbidden"));
    bench.says(&["verify", GS], 1, &["gs://bkt/team", "storage.buckets.get"]);
}

#[test]
fn gs_requests_carry_the_token() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    bucket.state().password = Some("Bearer sesame");
    bench.says(&["verify", GS], 1, &["403"]);
    let mut command = bench.command(&["apply", GS]);
    let said = said(command.env("GOOGLE_BEARER_TOKEN", "sesame").output().expect("started"));
    assert_eq!(said.status, Some(0), "{}", said.err);
    assert!(!format!("{}{}", said.out, said.err).contains("sesame"));
}

#[test]
fn other_expiries_of_one_prefix_are_named_and_brought_up_to_date() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    let object = || bucket.state().objects["team/hearthfs.json"].clone();
    bench.says(&["apply", S3, "--expiry", "7d"], 0, &["is made, and declares an expiry of 7d"]);
    let differ = ["declares an expiry of 7d", "configured with 30d"];
    bench.says(&["verify", S3, "--expiry", "30d"], 1, &differ);
    let mut old: Value = serde_json::from_slice(&object()).expect("JSON");
    assert_eq!(old["expiry"], "7d");
    old["of_a_later_version"] = json!({"kept": true});
    bucket.state().objects.insert("team/hearthfs.json".into(), old.to_string().into());
    let set = bench.says(
        &["apply", S3, "--expiry", "30d"],
        0,
        &["declares an expiry of 30d now, and 7d before"],
    );
    assert!(!set.err.contains("warning"), "a longer age is no danger: {}", set.err);
    let new: Value = serde_json::from_slice(&object()).expect("JSON");
    old["expiry"] = "30d".into();
    assert_eq!(new, old);
    let puts = bucket.state().count("PUT");
    bench.says(&["apply", S3], 0, &["declares an expiry of 30d already"]);
    assert_eq!(bucket.state().count("PUT"), puts);
    bench.says(&["verify", S3], 0, &["agree"]);
}

/// A command without an expiry uses the one that the store declares, not the program's default.
#[test]
fn what_the_store_declares_counts_where_no_other_is_set() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    let held = || {
        let state = bucket.state();
        (state.xml.clone(), state.objects.clone())
    };
    for (age, rule) in [("90d", "<Days>90</Days>"), ("never", "<Status>")] {
        bench.says(&["apply", S3, "--expiry", age], 0, &["are written"]);
        let before = held();
        let planned = bench.says(&["plan", S3], 0, &["as they should be"]);
        assert!(planned.out.contains(rule), "{}", planned.out);
        bench.says(&["verify", S3], 0, &[&format!("agree with an expiry of {age}")]);
        bench.says(
            &["apply", S3],
            0,
            &["nothing was written", &format!("declares an expiry of {age} already")],
        );
        assert_eq!(held(), before, "{age}");
    }
    // If the expiry cannot be known, nothing is written by a guess.
    let (format, puts) = ("GET /bkt/team/hearthfs.json", bucket.state().count("PUT"));
    bucket.trouble(format, Trouble::Refused(403, "AccessDenied"));
    bench.says(&["apply", S3], 1, &["hearthfs.json cannot be read", "--expiry"]);
    assert_eq!(bucket.state().count("PUT"), puts);
    bucket.trouble(format, Trouble::Refused(403, "AccessDenied"));
    bench.says(&["plan", S3], 0, &["hearthfs.json cannot be read", "the default of 30d"]);
    // An expiry that is set in the file is a choice, even if it equals the default.
    let file = bench.dir.path().join("hearthfs.toml");
    std::fs::write(file, "[expiry]\nage = \"30d\"\n").expect("written");
    let said = bench.says(&["apply", S3], 0, &["30d now, and never before"]);
    for word in ["warning: ", "younger than never", "after 30d", "mount them again"] {
        assert!(said.err.contains(word), "`{word}` is not in: {}", said.err);
    }
}

#[test]
fn directories_and_azure_have_no_rules_to_write() {
    let bench = Bench::new("");
    let store = bench.dir.path().join("store");
    let url = format!("file://{}", store.display());
    for (word, says) in [
        ("plan", "is a directory and has no rules"),
        ("apply", "hearthfs.json is made"),
        ("verify", "hearthfs gc"),
        ("remove", "hearthfs gc"),
    ] {
        bench.says(&[word, &url], 0, &[says]);
    }
    let object = std::fs::read_to_string(store.join("hearthfs.json")).expect("readable");
    assert!(object.contains("\"expiry\":\"30d\""), "{object}");
    bench.says(
        &["apply", &url, "--expiry", "never"],
        0,
        &["never now, and 30d before", "hearthfs gc"],
    );
    bench.says(&["verify", &url, "--expiry", "30d"], 1, &["never", "30d"]);

    let azure = "az://account/box/team";
    let plan =
        bench.says(&["plan", azure], 0, &["az storage account management-policy", "replaces"]);
    let policy: Value = serde_json::from_str(&plan.out).expect("JSON");
    let filters = &policy["rules"][0]["definition"]["filters"];
    assert_eq!(filters["prefixMatch"][0], "box/team/log/");
    for word in ["verify", "remove"] {
        bench.says(&[word, azure, "--set", "remote.deadline=1s"], 2, &["management API"]);
    }
}

#[test]
fn a_store_that_is_made_among_objects_of_others_is_said() {
    let bench = Bench::new("");
    let url = |name: &str| format!("file://{}", bench.dir.path().join(name).display());
    let clean = bench.says(&["apply", &url("clean")], 0, &["hearthfs.json is made"]);
    assert!(!clean.err.contains("warning"), "{}", clean.err);
    std::fs::create_dir(bench.dir.path().join("taken")).expect("made");
    std::fs::write(bench.dir.path().join("taken/notes.txt"), "mine").expect("written");
    bench.says(&["apply", &url("taken")], 0, &["hearthfs.json is made", "not of hearthfs"]);
}

#[test]
fn azure_apply_says_where_the_rule_is_kept() {
    let bucket = Bucket::start();
    let bench = Bench::new(&bucket.endpoint());
    let key = "c2VjcmV0";
    let mut command = bench.command(&["apply", "az://bkt/box/team"]);
    let said = said(command.env("AZURE_STORAGE_ACCOUNT_KEY", key).output().expect("started"));
    assert_eq!(said.status, Some(1), "{}{}", said.out, said.err);
    assert!(said.err.contains("the rules are not written: Azure keeps"), "{}", said.err);
    assert!(said.err.contains("management API") && said.out.contains("hearthfs.json is made"));
}

#[test]
fn a_plan_needs_no_bucket() {
    let bench = Bench::new("http://127.0.0.1:1");
    for (url, format, words) in [
        (S3, "<LifecycleConfiguration", &["cannot be reached", "without rules"][..]),
        (
            GS,
            "\"lifecycle\"",
            &["cannot be reached", "soft delete", "region", "standard class"][..],
        ),
    ] {
        let said = bench.says(&["plan", url, "--set", "remote.deadline=1s"], 0, words);
        assert!(said.out.contains(format) && said.out.contains("team/packs/"), "{}", said.out);
    }
    let said = bench.says(&["plan", S3, "--json", "--set", "remote.deadline=1s"], 0, &[]);
    let plan: Value = serde_json::from_str(&said.out).expect("JSON");
    assert_eq!(plan["expiry"], "30d");
    assert!(plan["document"].as_str().is_some_and(|text| text.contains("<Days>30</Days>")));
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let bench = Bench::new("");
    bench.says(&["plan"], 2, &["no address"]);
    bench.says(&["verify", "s3://"], 2, &["bucket is missing"]);
    bench.says(&["apply", S3, "--expiry", "soon"], 2, &["--expiry", "never"]);
    bench.says(&["frobnicate", S3], 2, &["lifecycle"]);
    let help = bench.says(&["--help"], 0, &["Examples", "plan", "apply", "verify", "remove"]);
    assert!(help.out.contains("s3:PutLifecycleConfiguration"));
    let path = bench.dir.path().join("hearthfs.toml");
    std::fs::write(&path, "[remote]\nurl = \"file:///nonexistent/x\"\n").expect("written");
    bench.says(&["verify"], 0, &["is a directory and has no rules"]);
    assert!(!Path::new("/nonexistent").exists());
}
