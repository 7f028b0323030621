//! The rules on servers that somebody else wrote, where these are there.

use std::io::Write as _;
use std::time::Duration;

use hearthfs::clock::Clock;
use object_store::ObjectStoreExt as _;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as ObjectPath;

use crate::Bench;
use crate::rules::BUCKET;
use crate::stores::Moto;

#[test]
fn moto_takes_and_gives_back_the_rules() {
    let moto = match Moto::start() {
        Ok(moto) => moto,
        Err(reason) => return skipped("moto_takes_and_gives_back_the_rules", &reason),
    };
    let options = moto.options(Duration::from_secs(5));
    let bench = Bench::new(&options.endpoint.expect("an address"));
    let url = format!("s3://{BUCKET}/team");
    bench.says(&["verify", &url], 1, &["no lifecycle rule", "30d"]);
    bench.says(&["apply", &url], 0, &["are written", "hearthfs.json is made"]);
    bench.says(&["apply", &url], 0, &["nothing was written"]);
    bench.says(&["verify", &url], 0, &["agree"]);
    bench.says(&["apply", &url, "--expiry", "2d"], 0, &["are written"]);
    bench.says(&["apply", &format!("s3://{BUCKET}/other")], 0, &["are written"]);
    bench.says(
        &["plan", &url, "--expiry", "2d"],
        0,
        &["5 rules of ours (as they should be)", "5 rules of others"],
    );
    bench.says(&["verify", &format!("s3://{BUCKET}/other")], 0, &["agree"]);
    bench.says(&["remove", &url], 0, &["removed"]);
    bench.says(&["verify", &format!("s3://{BUCKET}/other")], 0, &["agree"]);
    bench.says(&["remove", &format!("s3://{BUCKET}/other")], 0, &["removed"]);
    bench.says(&["plan", &url], 0, &["no rule of ours, none of others"]);
}

/// Says past the capture of output, and in one piece, that a test could not run.
fn skipped(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// The rule at work: a server that enforces rules deletes what is ours and old, and nothing else.
#[test]
fn rgw_deletes_by_the_rule_and_nothing_else() {
    let Ok(endpoint) = std::env::var("HEARTHFS_RGW") else {
        let why = "HEARTHFS_RGW names no server of tests/rules/radosgw.sh";
        return skipped("rgw_deletes_by_the_rule_and_nothing_else", why);
    };
    let bench = Bench::new(&endpoint);
    // Fails when there is one already, which serves as well.
    drop(rustls::crypto::ring::default_provider().install_default());
    let store = AmazonS3Builder::new()
        .with_endpoint(&endpoint)
        .with_allow_http(true)
        .with_bucket_name(BUCKET)
        .with_region("us-east-1")
        .with_access_key_id("testkey")
        .with_secret_access_key("testsecret");
    let prefix = format!("rgw-{:016x}", hearthfs::task::random_u64());
    let url = format!("s3://{BUCKET}/{prefix}");
    let ours = ["log/1.commit", "packs/1.pack", "blobs/ab/abc", "checkpoints/1.ckpt", "probes/1"];
    let others = ["hearthfs.json", "notes", "logs/1", "other/packs/1"];
    bench.says(&["apply", &url, "--expiry", "1d"], 0, &["are written", "is made"]);
    bench.says(&["apply", &url, "--expiry", "1d"], 0, &["nothing was written"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let left = runtime.expect("a runtime").block_on(async {
        let store = store.build().expect("a client");
        for key in ours.iter().chain(&others[1..]) {
            let path = ObjectPath::from(format!("{prefix}/{key}"));
            store.put(&path, "x".into()).await.expect("written");
        }
        let clock = Clock::system();
        let begin = clock.mono();
        loop {
            let mut left = Vec::new();
            for key in ours.iter().chain(&others) {
                let path = ObjectPath::from(format!("{prefix}/{key}"));
                if store.head(&path).await.is_ok() {
                    left.push(*key);
                }
            }
            let over = clock.mono().saturating_sub(begin) > Duration::from_mins(3);
            if over || !left.iter().any(|key| ours.contains(key)) {
                break left;
            }
            hearthfs::clock::sleep(Duration::from_secs(1)).await;
        }
    });
    assert_eq!(left, others, "ten seconds are a day there");
    bench.says(&["verify", &url, "--expiry", "1d"], 0, &["agree"]);
    bench.says(&["remove", &url], 0, &["removed"]);
}
