//! The command line: words, exit statuses, and what each command promises.

use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::body::{self, Id};
use crate::harness::command::{Said, need, run, wait};
use crate::harness::node::{Site, is_mounted, mounts_below};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, now,
    sleep_ms,
};

const LIMIT_MS: u64 = 60_000;
const FAILED: i32 = 1;
const REFUSED: i32 = 2;
const NOT_MOUNTED: i32 = 3;

fn hearthfs(site: &Site, words: &[&str]) -> Said {
    run(site.hearthfs().args(words), LIMIT_MS)
}

fn text(path: &std::path::Path) -> String {
    path.to_str().must("a path that is text").to_owned()
}

#[test]
fn commands_help_and_version_go_to_stdout() {
    let site = Site::new();
    let help = hearthfs(&site, &["--help"]).good();
    for word in ["mount", "run", "unmount", "status", "drain", "config"] {
        assert!(help.contains(word), "--help does not name {word}:\n{help}");
        let of = hearthfs(&site, &[word, "--help"]).good();
        assert!(of.contains("Usage") || of.contains("usage"), "{word} --help:\n{of}");
    }
    let version = hearthfs(&site, &["--version"]).good();
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");
    let none = hearthfs(&site, &[]);
    assert_eq!(none.code(), REFUSED, "{none:?}");
    let unknown = hearthfs(&site, &["mount", "/tmp", "--no-such-flag"]);
    assert_eq!(unknown.code(), REFUSED, "{unknown:?}");
    assert!(unknown.err.contains("--no-such-flag") && unknown.out.is_empty(), "{unknown:?}");
}

#[test]
fn commands_about_what_is_not_mounted_end_with_three() {
    let site = Site::new();
    let dir = text(&site.dir("plain"));
    for words in [
        &["unmount", &dir][..],
        &["unmount", &dir, "--now"],
        &["status", &dir],
        &["status", &dir, "--json"],
        &["drain", &dir],
        &["ls", &dir],
        &["ls", "--json", &dir],
        &["stat", &dir],
        &["du", &dir],
        &["top", &dir],
        &["top", "--json", &dir],
        &["rm", "--yes", &dir],
    ] {
        let said = hearthfs(&site, words);
        assert_eq!(said.code(), NOT_MOUNTED, "{words:?}: {said:?}");
        assert!(said.err.contains(&dir) && said.out.is_empty(), "{words:?}: {said:?}");
        assert!(said.err.starts_with("error: "), "{words:?}: {said:?}");
    }
}

fn commands_mount_in_the_background_and_unmount(io: Io) {
    let site = Site::new();
    let store = Store::dir(&site);
    let (dir, cache) = (text(&site.dir("m")), text(&site.path().join("cache")));
    let config = site.path().join("m.toml");
    std::fs::write(&config, Options::new(io).toml()).must("write a configuration");
    let words = ["mount", &dir, "--cache-dir", &cache, "--remote", &store.url(), "--background"];
    let mut command = site.hearthfs();
    command.args(words).arg("--config").arg(&config);
    // A reader of the command's output must not wait for the daemon that it leaves behind.
    let said = run(&mut command, 20_000);
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(is_mounted(dir.as_ref()), "mounted when the command returns");
    std::fs::write(site.path().join("m/file"), b"content").must("write at once");
    let status: serde_json::Value =
        serde_json::from_str(&hearthfs(&site, &["status", &dir, "--json"]).good()).must("parse");
    assert_eq!(status["io"]["mode"], io.word(), "{status}");
    assert_eq!(status["mount_point"], dir.as_str(), "{status}");
    assert_eq!(status["remote"], store.url().as_str(), "{status}");
    let log = status["log"].as_str().must("the place of the log");
    assert!(said.err.contains(&format!("the log is {log}")), "{said:?}");
    assert!(std::fs::read_to_string(log).must("read the log").contains("mounted"), "{log}");
    assert!(hearthfs(&site, &["status"]).good().contains(log), "the table also names it");
    let pid = status["pid"].as_i64().must("the daemon's pid") as i32;
    let table = hearthfs(&site, &["status"]).good();
    assert!(table.contains(&dir) && table.contains(io.word()), "{table}");
    hearthfs(&site, &["unmount", &dir]).good();
    assert!(!is_mounted(dir.as_ref()), "unmounted when the command returns");
    eventually(2_000, "the daemon has ended", || {
        let gone =
            Pid::from_raw(pid).is_none_or(|pid| rustix::process::test_kill_process(pid).is_err());
        if gone { Ok(()) } else { Err(format!("process {pid}")) }
    });
    assert_eq!(hearthfs(&site, &["status", &dir]).code(), NOT_MOUNTED);
    let other = Node::start(&site, "other", Some(&store), Options::new(io));
    assert_eq!(std::fs::read(other.at("file")).must("read on another node"), b"content");
}
in_both_modes!(commands_mount_in_the_background_and_unmount);

#[test]
fn commands_status_and_drain_tell_of_the_backlog() {
    let cluster = Cluster::with(Store::dir, &Options::new(Io::best()).deadline("1s"));
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("one"), b"1").must("put");
    cluster.a.drain();
    let status = cluster.a.status();
    assert_eq!(status["backlog"]["records"], 0);
    let counters = &status["counters"];
    assert_eq!((&counters["uploaded"], &counters["commits_written"]), (&1.into(), &1.into()));
    eventually(5_000, "node B shows the file", || {
        std::fs::metadata(cluster.b.at("one")).map_err(|error| error.to_string())
    });
    let counters = cluster.b.status()["counters"].clone();
    assert_eq!(counters["commits_applied"], 1);
    assert!(counters["invalidated"].as_u64() >= Some(1), "{counters}");
    cluster.store.fail();
    process.put(&cluster.a.at("two"), &body::make(Id { writer: 1, seq: 1 }, 100_000)).must("put");
    sleep_ms(1_500);
    let status = cluster.a.status();
    assert!(status["backlog"]["records"].as_u64() >= Some(1), "{status:#}");
    assert!(status["backlog"]["bytes"].as_u64() >= Some(100_000), "{status:#}");
    assert_eq!(status["health"]["up"], false, "{status:#}");
    let dir = text(&cluster.a.mount);
    let start = now();
    let said = cluster.a.command(&["drain", &dir, "--timeout", "1s"]);
    assert_eq!(said.code(), FAILED, "{said:?}");
    assert!(start.elapsed().as_millis() < 4_000, "it took {:?}", start.elapsed());
    assert!(said.out.is_empty() && said.err.starts_with("error: "), "{said:?}");
    cluster.store.heal();
    cluster.a.drain();
    assert_eq!(cluster.a.status()["backlog"]["records"], 0);
    eventually(5_000, "the health is good again", || {
        let status = cluster.a.status();
        if status["health"]["up"] == true { Ok(()) } else { Err(status["health"].to_string()) }
    });
}

/// A user who may read a directory can lock it.
#[test]
fn commands_unmount_while_the_directory_above_is_locked() {
    let site = Site::new();
    let mut node = Node::start(&site, "m", None, Options::new(Io::best()));
    let above = std::fs::File::open(site.path()).must("open the directory above");
    above.lock().must("lock the directory above");
    // The daemon's own look at the new mount, which may be in progress, does not count as use.
    let start = now();
    node.command(&["unmount", &text(&node.mount)]).good();
    assert!(start.elapsed().as_millis() < 5_000, "it took {:?}", start.elapsed());
    node.await_end(5_000);
}

fn commands_unmount_now_leaves_the_backlog(io: Io) {
    let mut cluster = Cluster::with(Store::dir, &Options::new(io).deadline("1s"));
    SyscallProcess::new().put(&cluster.a.at("before"), b"x").must("put");
    cluster.a.drain();
    cluster.store.fail();
    let bytes = body::make(Id { writer: 1, seq: 1 }, 300_000);
    SyscallProcess::new().put(&cluster.a.at("kept"), &bytes).must("put");
    let (dir, start) = (text(&cluster.a.mount), now());
    cluster.a.command(&["unmount", &dir, "--now"]).good();
    assert!(start.elapsed().as_millis() < 5_000, "--now took {:?}", start.elapsed());
    assert!(cluster.a.await_end(5_000).success(), "the daemon ends without an error");
    assert!(!is_mounted(&cluster.a.mount));
    cluster.store.heal();
    cluster.a.up();
    assert!(std::fs::read(cluster.a.at("kept")).must("read") == bytes);
    cluster.settle();
    eventually(5_000, "it arrives", || {
        let read = std::fs::read(cluster.b.at("kept")).map_err(|error| error.to_string())?;
        if read == bytes { Ok(()) } else { Err("other bytes".to_owned()) }
    });
}
in_both_modes!(commands_unmount_now_leaves_the_backlog);

/// SIGTERM and SIGINT: drain, unmount, exit 0, while programs still have files open.
fn commands_signals_end_a_mount_in_order(io: Io) {
    let mut cluster = Cluster::two(io);
    for (number, signal) in [Signal::TERM, Signal::INT].into_iter().enumerate() {
        let name = format!("f{number}");
        let bytes = body::make(Id { writer: 1, seq: number as u64 }, 2_000_000);
        let mut process = SyscallProcess::new();
        process.put(&cluster.a.at(&name), &bytes).must("put");
        let held = process.open(&cluster.a.at(&name), rustix::fs::OFlags::RDONLY, 0).must("hold");
        let open =
            process.open(&cluster.a.at("open"), crate::harness::syscall_process::IN_PLACE, 0o644);
        process.write(open.must("open"), b"never closed").must("write");
        process.read(held, 0, 10).must("read");
        kill_process(cluster.a.pid(), signal).must("signal");
        let status = cluster.a.await_end(30_000);
        assert!(status.success(), "{signal:?}: {status}");
        assert!(!is_mounted(&cluster.a.mount), "{signal:?}: the mount is gone");
        eventually(5_000, "the closed file is on the other node", || {
            let read = std::fs::read(cluster.b.at(&name)).map_err(|error| error.to_string())?;
            if read == bytes { Ok(()) } else { Err("other bytes".to_owned()) }
        });
        assert!(!cluster.b.at("open").exists(), "an open file is not published");
        drop(process);
        cluster.a.up();
        assert!(!cluster.a.at("open").exists(), "an open file is not published");
    }
}
in_both_modes!(commands_signals_end_a_mount_in_order);

fn run_command(site: &Site, mount: &str, store: &Store, tail: &[&str]) -> Command {
    let mut command = site.hearthfs();
    command.args(["run", "--mount", mount, "--remote", &store.url(), "--cache-dir"]);
    command.arg(site.path().join("run.cache")).arg("--").args(tail);
    command
}

#[test]
fn commands_run_sets_the_variables_and_passes_the_rest_on() {
    let site = Site::new();
    let (store, mount) = (Store::dir(&site), text(&site.dir("m")));
    let mut command = run_command(&site, &mount, &store, &["env"]);
    command.env("TRITON_CACHE_DIR", "/set/by/the/user");
    let said = run(&mut command, LIMIT_MS);
    assert_eq!(said.code(), 0, "{said:?}");
    let value = |name: &str| {
        let line = said.out.lines().find(|line| line.starts_with(&format!("{name}=")));
        line.map(|line| line[name.len() + 1..].to_owned())
    };
    for name in [
        "OLYMPUS_COMPILATION_CACHE_DIR",
        "JAX_COMPILATION_CACHE_DIR",
        "TORCHINDUCTOR_CACHE_DIR",
        "NUMBA_CACHE_DIR",
        "NEURON_COMPILE_CACHE_URL",
        "CCACHE_DIR",
        "SCCACHE_DIR",
        "GOCACHE",
    ] {
        let value = value(name).must(format_args!("{name} is set"));
        assert!(value.starts_with(&mount), "{name}={value}");
    }
    assert_eq!(value("TRITON_CACHE_DIR").as_deref(), Some("/set/by/the/user"));
    assert!(!said.err.trim().is_empty(), "a summary on stderr");
    assert!(!is_mounted(mount.as_ref()), "run unmounts its mount");

    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("exit 255", 255)] {
        let said = run(&mut run_command(&site, &mount, &store, &["sh", "-c", script]), LIMIT_MS);
        assert_eq!(said.code(), code, "{script}: {said:?}");
        assert!(said.out.is_empty(), "{script}: {said:?}");
    }
    let said =
        run(&mut run_command(&site, &mount, &store, &["sh", "-c", "kill -TERM $$"]), LIMIT_MS);
    // It ends as the command did: by the signal, which a shell shows as 143.
    assert_eq!(said.status.signal(), Some(Signal::TERM.as_raw()), "{said:?}");
    let said = run(&mut run_command(&site, &mount, &store, &["/no/such/command"]), LIMIT_MS);
    assert_eq!(said.code(), 127, "{said:?}");
    assert!(said.err.contains("/no/such/command"), "{said:?}");
    let said = run(&mut run_command(&site, &mount, &store, &["/etc/passwd"]), LIMIT_MS);
    assert_eq!(said.code(), 126, "{said:?}");
    assert!(!is_mounted(mount.as_ref()));
}

/// JAX caches no program that compiles in less than a second, and does not say so: `run` does.
#[test]
fn commands_run_says_why_nothing_was_written() {
    const VARIABLE: &str = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS";
    let site = Site::new();
    let (store, mount) = (Store::dir(&site), text(&site.dir("m")));
    // What JAX does for a program that compiles quickly, and what it does for others.
    let quick =
        "mkdir -p $JAX_COMPILATION_CACHE_DIR; test ! -e $JAX_COMPILATION_CACHE_DIR/jit_f-cache";
    let slow = format!("{quick} && echo program > $JAX_COMPILATION_CACHE_DIR/jit_f-cache");
    let said_of = |script: &str, option: Option<&str>| {
        let mut command = site.hearthfs();
        command.args(["run", "--mount", &mount, "--remote", &store.url(), "--cache-dir"]);
        command.arg(site.path().join("run.cache")).args(option);
        command.args(["--", "sh", "-c", script]);
        let said = run(&mut command, LIMIT_MS);
        assert_eq!(said.code(), 0, "{said:?}");
        said
    };
    let others = said_of("true", None);
    assert!(!others.err.contains(VARIABLE), "{others:?}");
    let hinted = said_of(quick, None);
    assert!(hinted.err.contains("--cache-short-compiles"), "{hinted:?}");
    assert!(hinted.err.contains(&format!("{VARIABLE}=0")), "{hinted:?}");
    let told =
        said_of(&format!("{quick}; echo {VARIABLE}=${VARIABLE}"), Some("--cache-short-compiles"));
    assert_eq!(told.out.trim(), format!("{VARIABLE}=0"), "{told:?}");
    assert!(!told.err.contains(VARIABLE), "{told:?}");
    let written = said_of(&slow, None);
    assert!(!written.err.contains(VARIABLE), "{written:?}");
}

#[test]
fn commands_run_drains_what_the_command_wrote() {
    let site = Site::new();
    let (store, mount) = (Store::dir(&site), text(&site.dir("m")));
    let script = "mkdir -p $OLYMPUS_COMPILATION_CACHE_DIR; echo made > $OLYMPUS_COMPILATION_CACHE_DIR/x; \
                  echo $OLYMPUS_COMPILATION_CACHE_DIR";
    let said = run(&mut run_command(&site, &mount, &store, &["sh", "-c", script]), LIMIT_MS);
    let dir = said.good();
    let below = dir.trim().strip_prefix(&mount).must("a directory on the mount").to_owned();
    let node = Node::start(&site, "b", Some(&store), Options::new(Io::best()));
    let name = format!("{}/x", below.trim_start_matches('/'));
    assert_eq!(std::fs::read(node.at(name)).must("read on another node"), b"made\n");
    // An existing mount is joined, and stays.
    let shown = text(&node.mount);
    let mut command = site.hearthfs();
    command.args([
        "run",
        "--mount",
        &shown,
        "--",
        "sh",
        "-c",
        "echo joined > \"$0/joined\"",
        &shown,
    ]);
    run(&mut command, LIMIT_MS).good();
    assert!(is_mounted(&node.mount), "run leaves the mount that it joined");
    assert_eq!(std::fs::read(node.at("joined")).must("read"), b"joined\n");
}

#[test]
fn commands_run_passes_signals_on() {
    let site = Site::new();
    let (store, mount) = (Store::dir(&site), text(&site.dir("m")));
    let ready = site.path().join("ready");
    let script =
        format!("trap 'exit 42' TERM; touch {}; while :; do sleep 0.05; done", ready.display());
    let mut command = run_command(&site, &mount, &store, &["sh", "-c", &script]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().must("run");
    eventually(20_000, "the command runs", || {
        if ready.exists() { Ok(()) } else { Err("not yet".to_owned()) }
    });
    kill_process(Pid::from_child(&child), Signal::TERM).must("signal");
    let status = wait(&mut child, 30_000).must("it ends");
    assert_eq!(status.code(), Some(42), "{status}");
    assert!(!is_mounted(mount.as_ref()));
}

#[test]
fn commands_config_shows_values_and_where_they_come_from() {
    let site = Site::new();
    let config = site.path().join("c.toml");
    std::fs::write(&config, "[local]\ncache_size = \"123MiB\"\n").must("write");
    let file = text(&config);
    let mut command = site.hearthfs();
    command.env("HEARTHFS_FRESHNESS", "3s").args(["config", "show", "--config", &file]);
    let shown = run(&mut command, LIMIT_MS).good();
    let line = |key: &str| {
        let found = shown.lines().find(|line| line.trim_start().starts_with(key));
        found.must(format_args!("{key} in\n{shown}")).to_owned()
    };
    assert!(line("cache_size").contains("123MiB") && line("cache_size").contains(&file), "{shown}");
    assert!(line("freshness").contains("3s"), "{shown}");
    assert!(line("freshness").contains("HEARTHFS_FRESHNESS"), "{shown}");
    assert!(line("deadline").contains("5s") && line("deadline").contains("default"), "{shown}");
    hearthfs(&site, &["config", "check", "--config", &file]).good();
    std::fs::write(&config, "[local]\ncache_sise = \"1GiB\"\n").must("write");
    let said = hearthfs(&site, &["config", "check", "--config", &file]);
    assert_eq!(said.code(), REFUSED, "{said:?}");
    assert!(said.err.contains("cache_sise") && said.err.contains("cache_size"), "{said:?}");
}

/// The demonstration of the README, with what every machine has that can build this.
#[test]
fn commands_demo() {
    if !need("commands_demo", "cc") {
        return;
    }
    let site = Site::new();
    let out = hearthfs(&site, &["demo", "--client", "cc"]).good();
    assert!(out.contains("node B compiled nothing: 8 of 8 objects came from node A"), "{out}");
    let said = hearthfs(&site, &["demo", "--client", "none"]);
    assert_eq!(said.code(), REFUSED, "{said:?}");
    assert!(said.err.contains("jax, ccache, go or cc"), "{said:?}");
}

/// An interrupted demonstration ends its daemons and mounts.
#[test]
fn commands_demo_that_is_interrupted() {
    if !need("commands_demo_that_is_interrupted", "cc") {
        return;
    }
    let site = Site::new();
    let temporary = site.dir("temporary");
    let mut demo = site.hearthfs();
    demo.args(["demo", "--client", "cc"]).env("TMPDIR", &temporary);
    let mut demo = demo.stderr(Stdio::null()).stdout(Stdio::null()).spawn().must("start it");
    eventually(LIMIT_MS, "a mount of the demonstration", || match mounts_below(&temporary)[..] {
        [] => Err("none".to_owned()),
        _ => Ok(()),
    });
    kill_process(Pid::from_child(&demo), Signal::INT).must("interrupt it");
    assert_eq!(demo.wait().must("wait").code(), Some(1));
    assert_eq!(mounts_below(&temporary), Vec::<PathBuf>::new());
    assert_eq!(std::fs::read_dir(&temporary).must("list").count(), 0, "nothing is left");
}

/// A read-only mount serves hits and refuses writers.
fn commands_read_only(io: Io) {
    let mut cluster = Cluster::two(io);
    SyscallProcess::new().put(&cluster.a.at("entry"), b"content").must("put");
    cluster.a.drain();
    cluster.b.stop();
    let mut options = Options::new(io);
    options.args.push("--read-only".to_owned());
    cluster.b.set_options(options);
    cluster.b.up();
    let mut process = SyscallProcess::new();
    assert_eq!(process.get(&cluster.b.at("entry")).must("a hit"), b"content");
    let refused = rustix::io::Errno::ROFS;
    assert_eq!(process.put(&cluster.b.at("new"), b"x"), Err(refused));
    assert_eq!(process.put(&cluster.b.at("entry"), b"x"), Err(refused));
    assert_eq!(process.unlink(&cluster.b.at("entry")), Err(refused));
    assert_eq!(process.mkdir(&cluster.b.at("dir")), Err(refused));
    assert_eq!(process.rename(&cluster.b.at("entry"), &cluster.b.at("e")), Err(refused));
    assert_eq!(process.get(&cluster.b.at("entry")).must("a hit"), b"content");
}
in_both_modes!(commands_read_only);

/// SIGHUP opens the log again and takes over its level; the mount stays.
#[test]
fn commands_hangup_opens_the_log_again_and_keeps_the_mount() {
    let site = Site::new();
    let store = Store::dir(&site);
    // If the tests were started with `nohup`, the daemon would ignore the signal too.
    let words = ["sh", "-c", "env --default-signal=HUP \"$@\"; exit $?", "sh"];
    let options = Options::new(Io::best()).delay("30s").cache_size("1GiB").wrapped(&words);
    let mut node = Node::start(&site, "a", Some(&store), options);
    let (log, aside) = (PathBuf::from(node.log_path()), site.path().join("aside"));
    SyscallProcess::new().put(&node.at("entry"), b"text").must("put");
    std::fs::rename(&log, &aside).must("move the log aside");
    kill_process(node.pid(), Signal::HUP).must("hang up");
    let line = |text: &'static str| {
        let log = log.clone();
        eventually(LIMIT_MS, text, move || {
            let found = std::fs::read_to_string(&log).map_err(|error| error.to_string())?;
            if found.contains(text) { Ok(()) } else { Err(found) }
        });
    };
    line("the log is reopened");
    let mode = log.metadata().must("the new log").permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    assert!(!std::fs::read_to_string(&aside).must("read").contains("reopened"));
    // Changed settings that can be taken over.
    let config = node.config_path();
    let before = std::fs::read_to_string(&config).must("read the configuration");
    let text = "\n[log]\nlevel = \"debug\"\n[metrics]\nallow_remote = true\n";
    let smaller = before.replace("\"1GiB\"", "\"64MiB\"");
    assert_ne!(smaller, before);
    let changed = smaller + text;
    std::fs::write(&config, changed).must("change the configuration");
    kill_process(node.pid(), Signal::HUP).must("hang up");
    line("keys=\"metrics.allow_remote\"");
    line("taken=\"local.cache_size, log.level\"");
    assert!(!node.at("nothing").exists());
    line("DEBUG");
    eventually(LIMIT_MS, "the new limit of the cache", || {
        let limit = node.status()["local"]["limit_bytes"].clone();
        if limit == 64 << 20 { Ok(()) } else { Err(limit.to_string()) }
    });
    // An unreadable file changes nothing.
    std::fs::write(&config, "[log]\nlevel = \"loud\"\n").must("spoil the configuration");
    kill_process(node.pid(), Signal::HUP).must("hang up");
    line("the configuration is not taken over");
    std::fs::write(&config, before).must("restore the configuration");
    assert_eq!(SyscallProcess::new().get(&node.at("entry")).must("read after the change"), b"text");
    node.stop();
    let words = ["sh", "-c", "trap '' HUP; \"$@\"; exit $?", "sh"];
    let mut node = Node::start(&site, "b", Some(&store), Options::new(Io::best()).wrapped(&words));
    kill_process(node.pid(), Signal::HUP).must("hang up");
    assert_eq!(SyscallProcess::new().get(&node.at("entry")).must("read after the change"), b"text");
    node.stop();
}
