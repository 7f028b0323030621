//! `hearthfs doctor`, and the reports about a store by `config check --connect` and `mount --background`.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::bad_input::{Desk, LIMIT_MS};
use crate::harness::command::{Said, run};
use crate::harness::node::{Site, dress};
use crate::harness::store::Trouble;
use crate::harness::{Io, Must as _, Node, Options, Store, eventually, is_root, skipped};
use crate::stores::{SECRET_KEY, Unable};
use crate::users;

fn set_mode(dir: &Path, mode: u32) {
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode)).must("set a mode");
}

/// Runs `doctor --json` with the environment of a store, and returns what it prints.
fn asked(desk: &Desk, store: Option<&Store>, words: &[&str]) -> (Said, Value) {
    let mut command = desk.site.hearthfs();
    command.args(["doctor", "--json", &desk.mount, "--cache-dir", &desk.cache]).args(words);
    if let Some(store) = store {
        command.args(["--remote", &store.url()]).envs(store.env());
    }
    let said = run(&mut command, LIMIT_MS);
    let json = serde_json::from_str(&said.out).must(format_args!("JSON: {said:?}"));
    (said, json)
}

/// Returns the check of that name.
#[track_caller]
fn check<'a>(json: &'a Value, name: &str) -> &'a Value {
    let all = json["checks"].as_array().must("a list of checks");
    all.iter().find(|check| check["name"] == name).must(format_args!("{name} in {json:#}"))
}

#[track_caller]
fn result<'a>(json: &'a Value, name: &str) -> &'a str {
    check(json, name)["result"].as_str().must("a word")
}

/// On a good store all rights are granted, and the checks leave no object behind.
#[test]
fn commands_doctor_tries_a_store_and_leaves_nothing() {
    let desk = Desk::new();
    for store in [Store::dir(&desk.site), Store::s3(&desk.site), Store::gcs(&desk.site)] {
        std::fs::create_dir_all(store.objects()).must("a place for objects");
        let (said, json) = asked(&desk, Some(&store), &[]);
        assert_eq!(said.code(), 0, "{said:?}");
        assert_eq!((&json["version"], &json["problems"]), (&1.into(), &0.into()));
        for right in ["list", "put", "get", "delete", "reachable", "clock", "store"] {
            assert_eq!(result(&json, right), "ok", "{json:#}");
        }
        assert!(check(&json, "put")["found"].as_str().must("text").contains("deleted again"));
        assert!(store.objects_in("").is_empty(), "{:?}", store.objects_in(""));
        for check in json["checks"].as_array().must("checks") {
            let bad = matches!(check["result"].as_str(), Some("warning" | "problem"));
            assert_eq!(bad, check["remedy"].is_string(), "{check}");
        }
        assert!(!said.out.contains(SECRET_KEY) && !said.err.contains(SECRET_KEY));

        let (said, json) = asked(&desk, Some(&store), &["--read-only"]);
        assert_eq!(result(&json, "put"), "skipped", "{said:?}");
        assert_eq!(result(&json, "delete"), "skipped");
        assert_eq!(result(&json, "get"), "ok");
        assert_eq!(result(&json, "store"), "problem", "no store exists, and none may be made");
        assert!(store.objects_in("").is_empty());
    }
}

/// Each missing right is named, with what to allow.
#[test]
fn commands_doctor_names_the_right_that_is_lacking() {
    let desk = Desk::new();
    let store = Store::s3(&desk.site);
    store.unable(Unable::Write);
    let (said, json) = asked(&desk, Some(&store), &[]);
    assert_eq!(said.code(), 1, "{said:?}");
    assert_eq!(result(&json, "put"), "problem");
    let remedy = check(&json, "put")["remedy"].as_str().must("a remedy");
    assert!(remedy.contains("s3:PutObject"), "{remedy}");
    assert_eq!((result(&json, "list"), result(&json, "get")), ("ok", "ok"));
    assert!(store.refused_writes() > 0, "the write was tried");
    let before = store.refused_writes();
    let (said, json) = asked(&desk, Some(&store), &["--writes", "private"]);
    assert_eq!(result(&json, "put"), "skipped", "{said:?}");
    assert_eq!(store.refused_writes(), before, "nothing is written");

    store.unable(Unable::Delete);
    let (_, json) = asked(&desk, Some(&store), &[]);
    assert_eq!(result(&json, "delete"), "warning", "{json:#}");
    let put = check(&json, "put")["found"].as_str().must("text");
    assert!(put.contains("which is not deleted"), "{put}");
    assert_eq!(store.objects_in("probes").len(), 1);
}

/// Credentials, address and network: one problem, its remedy, and no further request.
#[test]
fn commands_doctor_says_why_a_store_cannot_be_reached() {
    let desk = Desk::new();
    let store = Store::s3(&desk.site);
    let of = |words: &[(&str, &str)], url: &str| {
        let mut command = desk.site.hearthfs();
        command.args(["doctor", "--json", &desk.mount, "--cache-dir", &desk.cache]);
        command.args(["--remote", url]);
        command.envs(store.env()).envs(words.iter().copied());
        let said = run(&mut command, LIMIT_MS);
        assert_eq!(said.code(), 1, "{said:?}");
        assert!(!said.out.contains(SECRET_KEY) && !said.out.contains("wrongsecret"), "{said:?}");
        serde_json::from_str::<Value>(&said.out).must("JSON")
    };
    let url = store.url();
    let wrong = of(&[("AWS_SECRET_ACCESS_KEY", "wrongsecret")], &url);
    assert_eq!(result(&wrong, "credentials"), "problem", "{wrong:#}");
    let remedy = check(&wrong, "credentials")["remedy"].as_str().must("a remedy");
    assert!(remedy.contains("AWS_ACCESS_KEY_ID"), "{remedy}");
    assert!(!wrong.to_string().contains("\"put\""), "no later check ran: {wrong:#}");
    let nowhere = of(&[("AWS_ENDPOINT_URL", "http://127.0.0.1:9")], &url);
    assert_eq!(result(&nowhere, "reachable"), "problem", "{nowhere:#}");
    let missing = of(&[], "s3://another-bucket/x");
    assert_eq!(result(&missing, "reachable"), "problem", "{missing:#}");

    // A command that only reads reports the same.
    let mut command = desk.site.hearthfs();
    command.args(["config", "check", "--connect", "--remote", &store.url()]).envs(store.env());
    let good = run(&mut command, LIMIT_MS);
    assert_eq!(good.code(), 0, "{good:?}");
    assert!(store.objects_in("").is_empty(), "nothing was written");
    let mut command = desk.site.hearthfs();
    command.args(["config", "check", "--connect", "--remote", &store.url()]).envs(store.env());
    let said = run(command.env("AWS_SECRET_ACCESS_KEY", "wrongsecret"), LIMIT_MS);
    assert_eq!(said.code(), 1, "{said:?}");
    for word in ["problem: credentials", "hint: ", "AWS_ACCESS_KEY_ID"] {
        assert!(said.err.contains(word), "{said:?}");
    }
}

/// A mount in the background over a store that does not answer reports what is wrong.
#[test]
fn commands_mount_background_says_why_the_store_cannot_be_reached() {
    let desk = Desk::new();
    let store = Store::s3(&desk.site);
    let mount = |words: &[&str]| {
        let mut command = desk.site.hearthfs();
        command.args(words).arg(&desk.mount).envs(store.env());
        command
    };
    store.trouble(Trouble::Down);
    let mut command = mount(&["mount", "--background", "--cache-dir", &desk.cache]);
    let said = run(command.args(["--remote", &store.url()]), LIMIT_MS);
    let told = said.err.clone();
    let ended = run(&mut mount(&["unmount", "--now"]), LIMIT_MS);
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(ended.status.success(), "{ended:?}");
    for word in ["cannot be used now", "problem: reachable", "hint: check the endpoint"] {
        assert!(told.contains(word), "`{word}` is not in: {told}");
    }
}

/// Invalid mount points, and directories above them that others can change.
#[test]
fn commands_doctor_looks_at_the_mount_point() {
    let desk = Desk::new();
    let (said, json) = asked(&desk, None, &[]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert_eq!((result(&json, "mount point"), result(&json, "store")), ("ok", "skipped"));
    set_mode(desk.site.path(), 0o777);
    let (said, json) = asked(&desk, None, &[]);
    assert_eq!(said.code(), 1, "{said:?}");
    assert_eq!(result(&json, "mount point modes"), "problem");
    set_mode(desk.site.path(), 0o755);
    std::fs::write(Path::new(&desk.mount).join("file\u{1b}[31m"), "x").must("write");
    let (said, json) = asked(&desk, None, &[]);
    assert_eq!((said.code(), result(&json, "mount point")), (1, "problem"), "{said:?}");

    let bad = desk.site.path().join("bad\u{1b}[31m.toml");
    std::fs::write(&bad, "[local]\ncache_sise = 1\n").must("write");
    let mut command = desk.site.hearthfs();
    let said = run(command.args(["doctor", "--config"]).arg(&bad), LIMIT_MS);
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.out.contains("problem  configuration"), "{said:?}");
    assert!(!said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'), "{said:?}");
}

/// With a mount present it uses the settings of the mount, and the mount goes on.
#[test]
fn commands_doctor_beside_a_mount() {
    let site = Site::new();
    let store = Store::s3(&site);
    let mut a = Node::start(&site, "a", Some(&store), Options::new(Io::best()));
    eventually(20_000, "the store exists", || match a.status()["health"]["up"].as_bool() {
        Some(true) => Ok(()),
        other => Err(format!("{other:?}")),
    });
    a.drain();
    let before = store.objects_in("").len();
    let mount = a.mount.to_string_lossy().into_owned();
    let ccache = a.at("ccache").to_string_lossy().into_owned();
    std::fs::create_dir(&ccache).must("mkdir");
    let asked = |words: &[&str]| {
        let mut command = site.hearthfs();
        command.args(["doctor", "--json"]).args(words).envs(store.env());
        command.env("CCACHE_DIR", &ccache).env("JAX_COMPILATION_CACHE_DIR", "/elsewhere");
        let said = run(&mut command, LIMIT_MS);
        let json: Value = serde_json::from_str(&said.out).must(format_args!("JSON: {said:?}"));
        (said, json)
    };
    let (said, json) = asked(&[&mount]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert_eq!(json["remote"].as_str(), Some(store.url().as_str()), "{json:#}");
    assert_eq!((result(&json, "daemon"), result(&json, "put")), ("ok", "ok"));
    let io = check(&json, "I/O mode")["found"].as_str().must("text");
    assert!(io.contains(Io::best().word()), "{io}");
    assert_eq!(result(&json, "client ccache"), "ok", "{json:#}");
    assert_eq!(result(&json, "client jax"), "warning", "{json:#}");
    a.drain();
    let made = store.objects_in("").len() - before;
    assert!(made <= 2, "at most a commit for the directory and a head: {made}");
    assert!(store.objects_in("probes").is_empty());

    // Another remote in the configuration is reported.
    let (_, json) = asked(&[&mount, "--remote", "file:///elsewhere"]);
    assert_eq!(result(&json, "remote of the mount"), "warning", "{json:#}");

    a.kill_only();
    let (said, json) = asked(&[&mount]);
    assert_eq!((said.code(), result(&json, "mount point")), (1, "problem"), "{said:?}");
    a.up();
}

/// A machine without /dev/fuse: an empty directory covers /dev, in a mount namespace of its own.
#[test]
fn commands_doctor_without_a_fuse_device() {
    const NAME: &str = "commands_doctor_without_a_fuse_device";
    if !is_root() {
        return skipped(NAME, "only root can take /dev away");
    }
    let script = "mount -t tmpfs none /dev && exec \"$0\" doctor --json";
    let desk = Desk::new();
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_hearthfs")]);
    dress(&mut command, desk.site.path());
    let said = run(&mut command, LIMIT_MS);
    assert_eq!(said.code(), 1, "{said:?}");
    let json: Value = serde_json::from_str(&said.out).must("JSON");
    assert_eq!(result(&json, "fuse device"), "problem", "{json:#}");
    assert!(
        check(&json, "fuse device")["remedy"].as_str().must("a remedy").contains("modprobe fuse")
    );
}

/// For a user of another user's mount it is no problem that this user could not mount.
#[test]
fn commands_doctor_for_a_user_of_the_mount() {
    const NAME: &str = "commands_doctor_for_a_user_of_the_mount";
    if !users::can_be_others(NAME, Io::best()) {
        return;
    }
    let site = Site::new();
    users::let_in(site.path(), 0o755);
    let a = Node::start(&site, "a", None, Options::new(Io::best()).client_dirs("1777"));
    let program = site.path().join("hearthfs");
    let built = env!("CARGO_BIN_EXE_hearthfs");
    run(Command::new("cp").arg(built).arg(&program), LIMIT_MS).good();
    users::let_in(&program, 0o755);
    eventually(20_000, "the directories of clients", || {
        std::fs::metadata(a.at("ccache")).map(drop).map_err(|error| error.to_string())
    });
    let mut command = Command::new(&program);
    dress(&mut command, site.path());
    command.uid(users::B.uid).gid(users::B.gid).current_dir("/");
    command.args(["doctor", "--json"]).arg(&a.mount).env("CCACHE_DIR", a.at("ccache"));
    let said = run(&mut command, LIMIT_MS);
    let json: Value = serde_json::from_str(&said.out).must(format_args!("JSON: {said:?}"));
    assert_eq!(said.code(), 0, "{said:?}");
    for (name, wanted) in
        [("mount point", "ok"), ("fuse device", "skipped"), ("client ccache", "ok")]
    {
        assert_eq!(result(&json, name), wanted, "{json:#}");
    }
}
