//! A daemon without all rights does less, and `status` says what is missing.

use std::process::Command;

use crate::harness::command::run;
use crate::harness::node::{Site, dress};
use crate::harness::{Io, Must as _, Node, Options, skipped};

const LIMIT_MS: u64 = 60_000;
/// Mounts, prints the `status`, writes and reads, and ends; all in a mount namespace of its own.
const SCRIPT: &str = r#"
"$1" mount "$2" --cache-dir "$3" 2>"$4" &
until "$1" status "$2" >/dev/null 2>&1; do sleep 0.05; kill -0 $! || exit 7; done
"$1" status "$2" --json
"$1" status "$2" | sed 's/^/TEXT /'
echo content > "$2/f" && cat "$2/f" && mv "$2/f" "$2/g" && flock -n "$2/g" cat "$2/g" && rm "$2/g"
"$1" unmount "$2" && wait $!
"#;

/// Root of a user namespace lacks the CAP_SYS_ADMIN that passthrough requires: I/O is ordinary, and
/// `status` says why.
#[test]
fn commands_fall_back_without_cap_sys_admin() {
    const NAME: &str = "commands_fall_back_without_cap_sys_admin";
    let namespaces = ["unshare", "--user", "--map-root-user", "--mount"];
    let command = |words: &[&str]| {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]);
        command
    };
    let able = run(command(&namespaces).arg("true"), LIMIT_MS);
    if !able.status.success() {
        skipped(NAME, format_args!("user namespaces: {}", able.err.trim()));
        return;
    }
    let site = Site::new();
    let mut inside = command(&namespaces);
    inside.args(["sh", "-c", SCRIPT, "sh", env!("CARGO_BIN_EXE_hearthfs")]);
    inside.arg(site.dir("m")).arg(site.path().join("cache")).arg(site.path().join("log"));
    dress(&mut inside, site.path());
    let said = run(&mut inside, LIMIT_MS).good();
    let (json, rest) = said.split_once("\nTEXT").must("the status in text");
    let status: serde_json::Value = serde_json::from_str(json).must(json);
    assert_eq!(status["io"]["mode"], "ordinary");
    assert_eq!(status["io"]["locks_by_inode"], serde_json::Value::Null);
    let reason = status["io"]["reason"].as_str().must("a reason");
    assert!(reason.contains("CAP_SYS_ADMIN"), "{reason}");
    assert!(rest.contains(&format!("ordinary ({reason})")), "{rest}");
    assert!(rest.ends_with("content\ncontent\n"), "{rest}");
    let log = std::fs::read_to_string(site.path().join("log")).must("the log");
    assert!(!log.contains(" ERROR ") && !log.contains("panicked"), "{log}");
}

/// Whether idle processors wake quickly while the mount is used is a setting, and `status` says why they do not.
#[test]
fn commands_say_why_processors_wake_as_always() {
    let site = Site::new();
    let start = |name, options| Node::start(&site, name, None, options);
    let off = start("off", Options::new(Io::best()).without_quick_wake());
    assert_eq!(off.status()["io"]["slow_wake"], "switched off");
    let on = start("on", Options::new(Io::best()));
    assert_ne!(on.status()["io"]["slow_wake"], "switched off");
}
