//! Names and mount points that others have chosen, and very many of them: always shown escaped.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::harness::command::{need, run};
use crate::harness::node::{Site, dress};
use crate::harness::time::thread;
use crate::harness::{Io, Must as _, Node, Options, Store, sleep_ms};
use crate::inside::LIMIT_MS;
use crate::metrics::{ask, parsed};

/// How often an entry is opened while `top` runs.
const OPEN_EVERY_MS: u64 = 5;
/// The longest name.
const NAME_BYTES: usize = 250;

#[track_caller]
fn tame(text: &str) {
    let wild = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
    assert!(!text.contains(wild), "{text:?}");
}

/// The names of entries are shown by `top`, and the name of a mount point by everything that mentions it.
#[test]
fn bad_input_names_of_mount_points_and_busy_entries() {
    let site = Site::new();
    let store = Store::dir(&site);
    let socket = site.path().join("metrics");
    let options = Options::new(Io::best())
        .variable("HEARTHFS_METRICS", &format!("unix:{}", socket.display()));
    let name = "odd\u{1b}[31m\u{202e}\n\\x";
    let shown = "odd\\x1b[31m\\u{202e}\\n";
    let mut node = Node::start(&site, name, Some(&store), options);
    std::fs::create_dir(node.at("jax")).must("mkdir");
    let busy = node.at("jax").join(OsStr::from_bytes(b"jit_\x1b]0;t\x07\xff-1-cache"));
    std::fs::write(&busy, "program").must("write");
    node.drain();
    let mount = node.mount.to_str().must("text").to_owned();

    let ended = Arc::new(AtomicBool::new(false));
    let reader = {
        let ended = Arc::clone(&ended);
        thread(move || {
            while !ended.load(Ordering::SeqCst) {
                std::fs::read(&busy).must("read");
                sleep_ms(OPEN_EVERY_MS);
            }
        })
    };
    let top = node.command(&["top", &mount]).good();
    let top_json = node.command(&["top", "--json", "-n", "1", &mount]).good();
    ended.store(true, Ordering::SeqCst);
    reader.join().must("the reader");
    tame(&top);
    tame(&top_json);
    assert!(top.contains("jax/jit_\\x1b]0;t\\x07\\xff-1-cache") && top.contains(shown), "{top}");

    let missing = format!("{mount}/missing");
    for words in [
        &["status", &mount][..],
        &["status"],
        &["status", "--json"],
        &["du", &mount],
        &["ls", "-l", &mount],
        &["stat", &mount],
        &["explain", "--last", &mount],
        &["explain", &missing],
        &["drain", &mount],
        &["doctor", "--config", "/dev/null", &mount],
        &["profiles", "--json"],
        &["run", "--mount", &mount, "--", "true"],
        &["mount", &mount],
        &["unmount", &missing],
    ] {
        let said = node.command(words);
        tame(&said.out);
        tame(&said.err);
        assert!(words[0] == "drain" || !(said.out + &said.err).is_empty(), "{words:?}");
    }
    assert!(
        node.command(&["status", &mount])
            .good()
            .starts_with(&format!("{}", site.path().join(shown).display()))
    );
    let status = node.command(&["status", &mount, "--json"]).good();
    tame(&status);
    let status: Value = serde_json::from_str(&status).must("JSON");
    assert_eq!(status["mount_point"], mount.as_str(), "a program reads the name itself");

    let (code, text) = ask(&socket, "/metrics");
    assert_eq!(code, 200);
    // It is a label of each sample, which must stay one line.
    assert!(!parsed(&text).is_empty() && text.contains("\\n"), "{text}");
    let (code, text) = ask(&socket, "/status.json");
    assert_eq!(code, 200);
    assert!(!text.contains('\u{1b}'), "{text:?}");
    node.stop();
}

/// `ls`, `du` and `rm` hold no list of the matches.
#[test]
fn bad_input_globs_that_fit_very_many_names() {
    const NAME: &str = "bad_input_globs_that_fit_very_many_names";
    if !need(NAME, "python3") {
        return;
    }
    let many = if std::env::var_os("HEARTHFS_TEST_LONG").is_some() { 30_000 } else { 5_000 };
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(Io::best()));
    std::fs::create_dir(node.at("many")).must("mkdir");
    std::fs::create_dir(node.at("one")).must("mkdir");
    std::fs::write(node.at("one/name"), "").must("write");
    let pad = "x".repeat(NAME_BYTES - 10);
    for number in 0..many {
        std::fs::create_dir(node.at(format!("many/{number:08}{pad}"))).must("mkdir");
    }
    let limit_ms = LIMIT_MS + many / 100;
    // Returns how many lines a command has printed, and how much memory it used, in KiB.
    let asked = |words: &[&str], glob: &str| {
        let count = "import resource, subprocess, sys\n\
            said = subprocess.Popen(sys.argv[1:], stdout=subprocess.PIPE)\n\
            print(sum(1 for line in said.stdout))\n\
            code = said.wait()\n\
            print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n\
            sys.exit(code)";
        let mut command = Command::new("python3");
        dress(&mut command, site.path());
        command.args(["-c", count, env!("CARGO_BIN_EXE_hearthfs")]).args(words).arg(node.at(glob));
        let said = run(&mut command, limit_ms).good();
        let numbers: Vec<u64> = said.lines().map(|line| line.parse().must("a number")).collect();
        (numbers[0], numbers[1])
    };
    for words in [&["ls"][..], &["ls", "--json"], &["du"], &["rm", "--dry-run"]] {
        let (lines, memory) = asked(words, "many/*x*x*");
        let (_, little) = asked(words, "one/*");
        if words[0] == "ls" {
            assert!(lines >= many, "{words:?}: {lines} lines");
        }
        let names = many * NAME_BYTES as u64 / 1024;
        let more = memory.saturating_sub(little);
        assert!(more < 4096 + names / 4, "{words:?}: {more} KiB more for {names} KiB of names");
    }
    let said = node.command(&["rm", "--yes", node.at("many/*").to_str().must("text")]);
    assert!(said.status.success() && said.out.contains(&format!("{many} directories")), "{said:?}");
}
