//! The rules on servers of other projects, if these are installed.

use std::io::Write as _;
use std::time::Duration;

use hearthfs::clock::Clock;

use crate::Bench;
use crate::rules::BUCKET;
use crate::stores::{Moto, Radosgw};

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

/// Prints in one piece, bypassing the capture of output, that a test could not run.
fn skipped(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

/// The rule at work: a server that enforces rules deletes what is ours and old, and nothing else.
#[test]
fn rgw_deletes_by_the_rule_and_nothing_else() {
    let store = match Radosgw::here() {
        Ok(store) => store,
        Err(reason) => return skipped("rgw_deletes_by_the_rule_and_nothing_else", &reason),
    };
    let bench = Bench::new(&store.endpoint());
    let url = store.url();
    let ours = ["log/1.commit", "packs/1.pack", "blobs/ab/abc", "checkpoints/1.ckpt", "probes/1"];
    // The first two were made with the store.
    let others = ["head", "hearthfs.json", "logs/1", "notes", "other/packs/1"];
    bench.says(&["apply", &url, "--expiry", "1d"], 0, &["are written", "is made"]);
    bench.says(&["apply", &url, "--expiry", "1d"], 0, &["nothing was written"]);
    for key in ours.iter().chain(&others[2..]) {
        store.put(key);
    }
    let clock = Clock::system();
    let begin = clock.mono();
    let left = loop {
        let left = store.keys();
        let over = clock.mono().saturating_sub(begin) > Duration::from_mins(3);
        if over || !ours.iter().any(|key| left.contains(*key)) {
            break left;
        }
        nap(Duration::from_secs(1));
    };
    assert_eq!(Vec::from_iter(&left), others, "ten seconds count as a day");
    bench.says(&["verify", &url, "--expiry", "1d"], 0, &["agree"]);
    bench.says(&["remove", &url], 0, &["removed"]);
}

#[expect(clippy::disallowed_methods, reason = "the server uses real time")]
fn nap(time: Duration) {
    std::thread::sleep(time);
}
