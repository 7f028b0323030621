//! The program as a user sees it: exit statuses, messages, and what `run` does to its command.

mod fake;

use std::fs::File;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use hearthfs::control::Mounts;
use rustix::process::{Pid, Signal, kill_process};

/// A directory of its own for every test: nothing outside is read or written.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("temporary directory");
        for name in ["mnt", "home", "run"] {
            std::fs::create_dir(dir.path().join(name)).expect("mkdir");
        }
        Self { dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().expect("exists").join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearthfs"));
        self.surround(&mut command);
        command.args(args).current_dir(self.path(""));
        command
    }

    fn surround(&self, command: &mut Command) {
        command.env_clear();
        if let Some(path) = std::env::var_os("PATH") {
            command.env("PATH", path);
        }
        command
            .env("HOME", self.path("home"))
            .env("HEARTHFS_RUNTIME_DIR", self.path("run"))
            .env("HEARTHFS_CONFIG", self.config())
            .stdin(Stdio::null());
    }

    /// Returns an empty file, so that no configuration of the machine is read.
    fn config(&self) -> PathBuf {
        let path = self.path("hearthfs.toml");
        if !path.exists() {
            std::fs::write(&path, "").expect("write");
        }
        path
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args).output().expect("started")
    }

    /// Mounts the fake in a process of its own; prints a note and returns `None` if that is impossible.
    fn fake(&self, test: &str) -> Option<FakeMount> {
        let us = rustix::process::geteuid();
        if !us.is_root() || File::options().read(true).open("/dev/fuse").is_err() {
            skipped(test, "mounting needs root and /dev/fuse");
            return None;
        }
        let mut command = Command::new(std::env::current_exe().expect("a name"));
        self.surround(&mut command);
        command.env(FAKE, self.path("mnt")).args(["fake_process", "--exact", "--nocapture"]);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|l| l.contains("fake is ready"));
        let fake = FakeMount { child, _lines: lines, point: self.path("mnt") };
        assert!(ready, "the fake mount did not start");
        Some(fake)
    }
}

/// Prints in one piece, bypassing the capture of output, that a test could not run.
fn skipped(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    drop(std::io::stderr().lock().write_all(line.as_bytes()));
}

const FAKE: &str = "FAKE_MOUNT_POINT";

/// Does nothing as a test; is the fake's process when a mount point is given.
#[expect(clippy::print_stdout, reason = "the output is for the process that started it")]
#[test]
fn fake_process() {
    if let Some(point) = std::env::var_os(FAKE) {
        let remote = Some("file:///fake/remote".to_owned());
        let ready = || println!("fake is ready");
        fake::serve(Path::new(&point), remote, ready).expect("served");
    }
}

struct FakeMount {
    child: Child,
    /// Kept open, so that the process can write to it.
    _lines: Lines<BufReader<ChildStdout>>,
    point: PathBuf,
}

impl FakeMount {
    fn is_mounted(&self) -> bool {
        Mounts::read().expect("readable").at(&self.point).is_some()
    }
}

impl Drop for FakeMount {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH).ok();
    }
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs `args` and checks exit status, words on stderr, and an empty stdout.
fn refuses(bench: &Bench, args: &[&str], status: i32, words: &[&str]) {
    let output = bench.output(args);
    let text = err(&output);
    assert_eq!(output.status.code(), Some(status), "{args:?}: {text}");
    assert_eq!(out(&output), "", "{args:?}");
    assert!(text.contains("error: "), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: `{word}` is not in: {text}");
    }
}

#[test]
fn usage_errors_are_refusals() {
    let bench = Bench::new();
    refuses(&bench, &["mont"], 2, &["mount"]);
    refuses(&bench, &["mount"], 2, &["no mount point", "mount.directory"]);
    refuses(&bench, &["mount", "mnt", "--cache-sise", "1GiB"], 2, &["--cache-size"]);
    refuses(&bench, &["run"], 2, &["<CMD>"]);
    refuses(&bench, &["drain", "mnt", "--timeout", "5"], 2, &["no unit"]);
    refuses(&bench, &["unmount", "mnt", "--now", "--timeout", "5s"], 2, &["--now"]);
    refuses(&bench, &["config", "show", "--set", "nonsense"], 2, &["KEY=VALUE"]);
    assert_eq!(bench.output(&[]).status.code(), Some(2));
    assert!(out(&bench.output(&["--help"])).contains("Exit status"));
    let version = out(&bench.output(&["--version"]));
    assert_eq!(version, format!("hearthfs {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn bad_configuration_is_refused_before_anything_is_changed() {
    let bench = Bench::new();
    std::fs::write(bench.path("bad.toml"), "[local]\ncache_sise = \"1GiB\"\n").expect("write");
    let rules = "[profiles.ccache]\nrules = [{ names = [\"a\"], kind = \"temporay\" }]\n";
    std::fs::write(bench.path("rules.toml"), rules).expect("write");
    for command in [&["mount", "mnt"][..], &["config", "check"], &["run", "--mount", "mnt"]] {
        for (options, words) in [
            (&["--remote", "bucket"][..], &["--remote", "remote.url", "\"bucket\"", "s3://"][..]),
            (&["--remote", "gs://Bucket"], &["cannot be a bucket"]),
            (&["--cache-size", "50"], &["local.cache_size", "no unit"]),
            (&["--cache-size", "1MiB"], &["from 16MiB"]),
            (&["--config", "bad.toml"], &["bad.toml:2", "local.cache_sise", "cache_size"]),
            (
                &["--config", "rules.toml"],
                &["rules.toml:2", "profiles.ccache.rules", "temporay", "`temporary`"],
            ),
            (&["--config", "none.toml"], &["none.toml"]),
            (&["--set", "remote.frehsness=1s"], &["remote.freshness"]),
            (&["--io", "fast"], &["mount.io", "\"auto\""]),
        ] {
            let tail: &[&str] = if command[0] == "run" { &["--", "true"] } else { &[] };
            refuses(&bench, &[command, options, tail].concat(), 2, words);
        }
    }
    let left: Vec<_> = std::fs::read_dir(bench.path("run")).expect("readable").collect();
    assert!(left.is_empty(), "{left:?}");
    assert!(!bench.path("home/.hearthfs").exists());
}

#[test]
fn impossible_places_are_refused() {
    let bench = Bench::new();
    std::fs::create_dir(bench.path("full")).expect("mkdir");
    std::fs::write(bench.path("full/file"), "").expect("write");
    let mount = |dir: &str, cache: &str, words: &[&str]| {
        refuses(&bench, &["mount", dir, "--cache-dir", cache], 2, words);
    };
    mount("missing", "c", &["missing does not exist", "mkdir -p"]);
    mount("full/file", "c", &["not a directory"]);
    mount("full", "c", &["not empty"]);
    mount("/proc", "c", &["mount point already"]);
    if Path::new("/dev/fuse").exists() {
        mount("mnt", "mnt/c", &["inside the mount"]);
        mount("mnt", ".", &["inside the cache directory"]);
        mount("mnt", "full/file", &["not a directory"]);
        let remote = format!("file://{}/x", bench.path("mnt").display());
        let args = ["mount", "mnt", "--cache-dir", "c", "--remote", &remote];
        refuses(&bench, &args, 2, &["the shared directory", "inside the mount"]);
    }
    assert!(!bench.path("c").exists());
}

#[test]
fn a_disk_without_room_is_refused() {
    let bench = Bench::new();
    let small = bench.path("small");
    std::fs::create_dir(&small).expect("mkdir");
    let flags = rustix::mount::MountFlags::empty();
    if rustix::mount::mount("none", &small, "tmpfs", flags, c"size=1m").is_err() {
        skipped("a_disk_without_room_is_refused", "mounting needs root");
        return;
    }
    let args = ["config", "check", "mnt", "--cache-dir", "small/c"];
    let output = bench.output(&args);
    // An existing cache is served even on a full disk.
    std::fs::create_dir_all(small.join("c/v1")).expect("mkdir");
    let again = bench.output(&args);
    rustix::mount::unmount(&small, rustix::mount::UnmountFlags::DETACH).expect("unmount");
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(err(&output).contains("1.0 MiB free, and at least 16.0 MiB"), "{}", err(&output));
    assert_eq!(again.status.code(), Some(0), "{}", err(&again));
}

#[test]
fn directories_on_another_of_our_mounts_are_refused() {
    let bench = Bench::new();
    let Some(_fake) = bench.fake("directories_on_another_of_our_mounts_are_refused") else {
        return;
    };
    std::fs::create_dir(bench.path("second")).expect("mkdir");
    let words = &["the cache directory", "is on the hearthfs mount"];
    refuses(&bench, &["mount", "second", "--cache-dir", "mnt/c"], 2, words);
    let remote = format!("file://{}/r", bench.path("mnt").display());
    let args = ["mount", "second", "--cache-dir", "c", "--remote", &remote];
    refuses(&bench, &args, 2, &["the shared directory", "is on the hearthfs mount"]);
}

#[test]
fn commands_without_a_mount() {
    let bench = Bench::new();
    for command in ["unmount", "status", "drain"] {
        refuses(&bench, &[command, "mnt"], 3, &["is not a hearthfs mount"]);
        refuses(&bench, &[command, "missing"], 3, &["is not a hearthfs mount"]);
    }
    let all = bench.output(&["status", "--json"]);
    assert_eq!((all.status.code(), out(&all).trim()), (Some(0), "[]"));
}

#[test]
fn config_show_is_a_file_that_says_the_same() {
    let bench = Bench::new();
    let args = ["config", "show", "mnt", "--cache-size", "3GiB", "--set", "mount.threads=4"];
    let shown = bench.output(&args);
    assert!(shown.status.success(), "{}", err(&shown));
    let text = out(&shown);
    assert!(text.contains("# flag --cache-size"), "{text}");
    std::fs::write(bench.path("again.toml"), &text).expect("write");
    let again = out(&bench.output(&["config", "show", "mnt", "--config", "again.toml"]));
    let values = |text: &str| -> Vec<String> {
        text.lines().map(|l| l.split(" # ").next().unwrap_or("").trim().to_owned()).collect()
    };
    assert_eq!(values(&again), values(&text));
    let json = out(&bench.output(&["config", "show", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert!(json.as_array().is_some_and(|all| all.iter().any(|e| e["key"] == "local.cache_size")));
    let private = ["config", "check", "--writes", "private"];
    refuses(&bench, &private, 2, &["mount.writes is \"private\"", "no store", "remote.url"]);
    let stored = [&private[..], &["--remote", "file:///r"]].concat();
    assert!(bench.output(&stored).status.success());
    let inside = format!("metrics.textfile={}/m.prom", bench.path("mnt").display());
    let args = ["config", "check", "mnt", "--cache-dir", "c", "--set", &inside];
    refuses(&bench, &args, 2, &["metrics.textfile is inside the mount"]);
    std::fs::write(bench.path("bad.toml"), "[local]\ncache_sise = \"1GiB\"\n").expect("write");
    let bad = bench.output(&["config", "show", "--config", "bad.toml"]);
    assert_eq!(bad.status.code(), Some(2));
    assert!(err(&bad).contains("docs/configuration.md"), "{}", err(&bad));
    assert!(!err(&bad).contains("config show"), "it would say the same: {}", err(&bad));
    let check = bench.output(&["config", "check", "mnt", "--cache-dir", "c"]);
    assert!(check.status.success() && err(&check).contains("in order"), "{}", err(&check));
}

#[test]
fn profiles_are_shown_with_what_the_configuration_adds() {
    let bench = Bench::new();
    let text = "[profiles.ccache]\nalso = [\"teams/*/ccache\"]\n[profiles.go]\nenabled = false\n\
                [profiles.mine]\ndir = \"mine\"\nvariables = [\"MINE_DIR\"]\n";
    std::fs::write(bench.config(), text).expect("write");
    let table = out(&bench.output(&["profiles"]));
    assert!(table.contains("\nmine ") && table.contains("MINE_DIR"), "{table}");
    assert!(table.contains("\nccache ") && !table.contains("GOCACHE"), "{table}");
    let one = out(&bench.output(&["profiles", "ccache"]));
    assert!(one.contains("teams/*/ccache") && one.contains("CCACHE_DIR=MOUNT/ccache"), "{one}");
    let json = out(&bench.output(&["profiles", "ccache", "--json"]));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["profiles"][0]["also"][0], "teams/*/ccache", "{json:#}");
    refuses(&bench, &["profiles", "ccahce"], 2, &["ccahce", "did you mean ccache?"]);
    let shown = out(&bench.output(&["config", "show"]));
    assert!(shown.contains("# [profiles.mine]: `hearthfs profiles mine`"), "{shown}");
}

#[test]
fn a_mount_is_shown_drained_and_unmounted() {
    let bench = Bench::new();
    let Some(mut fake) = bench.fake("a_mount_is_shown_drained_and_unmounted") else { return };
    let status = bench.output(&["status", "mnt", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out(&status)).expect("JSON");
    assert_eq!(json["mount_point"].as_str(), bench.path("mnt").to_str());
    assert_eq!(json["backlog"]["records"], 2);
    let below = bench.output(&["status", "mnt/some/where"]);
    assert!(out(&below).contains("2 changes"), "{}", err(&below));
    assert!(out(&bench.output(&["status"])).contains("file:///fake/remote"));
    refuses(&bench, &["mount", "mnt"], 2, &["mounted already", "hearthfs unmount"]);

    refuses(&bench, &["drain", "mnt", "--timeout", "1ms"], 1, &["2 changes (4.0 KiB)"]);
    let drained = bench.output(&["drain", "mnt"]);
    assert!(drained.status.success(), "{}", err(&drained));
    let unmounted = bench.output(&["unmount", "mnt"]);
    assert!(unmounted.status.success(), "{}", err(&unmounted));
    assert!(!fake.is_mounted());
    assert!(
        fake.child.try_wait().expect("our child").is_some(),
        "unmount returns when the daemon is gone"
    );
    refuses(&bench, &["unmount", "mnt"], 3, &["is not a hearthfs mount"]);
}

#[test]
fn unmount_now_leaves_the_backlog() {
    let bench = Bench::new();
    let Some(fake) = bench.fake("unmount_now_leaves_the_backlog") else { return };
    let output = bench.output(&["unmount", "mnt", "--now"]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(err(&output).contains("2 changes (4.0 KiB) not yet remote; kept"), "{}", err(&output));
    assert!(!fake.is_mounted());
}

#[test]
fn a_busy_mount_stays() {
    let bench = Bench::new();
    let Some(fake) = bench.fake("a_busy_mount_stays") else { return };
    // A working directory keeps a mount busy, like an open file.
    let mut holder =
        Command::new("sleep").arg("60").current_dir(bench.path("mnt")).spawn().expect("sleep");
    refuses(&bench, &["unmount", "mnt"], 1, &["is in use", "fuser -vm"]);
    holder.kill().expect("our child");
    holder.wait().expect("our child");
    assert!(fake.is_mounted());
}

#[test]
fn what_a_dead_daemon_left_is_recognised_and_taken_away() {
    let bench = Bench::new();
    let Some(mut fake) = bench.fake("what_a_dead_daemon_left_is_recognised_and_taken_away") else {
        return;
    };
    fake.child.kill().expect("our child");
    fake.child.wait().expect("our child");
    assert!(fake.is_mounted());
    refuses(&bench, &["status", "mnt"], 3, &["dead"]);
    assert!(out(&bench.output(&["status"])).is_empty(), "dead mounts are not listed");
    // Refused for another reason: the stale mount is still there.
    refuses(&bench, &["mount", "mnt", "--cache-dir", "mnt/c"], 2, &["inside the mount"]);
    assert!(fake.is_mounted());
    let output = bench.output(&["unmount", "mnt"]);
    assert!(output.status.success(), "{}", err(&output));
    assert!(!fake.is_mounted());
}

#[test]
fn run_sets_variables_and_keeps_the_users() {
    let bench = Bench::new();
    let Some(fake) = bench.fake("run_sets_variables_and_keeps_the_users") else { return };
    let mut command = bench.command(&["run", "--mount", "mnt", "--", "env"]);
    command.env("GOCACHE", "/mine");
    let output = command.output().expect("started");
    assert!(output.status.success(), "{}", err(&output));
    let (env, point) = (out(&output), bench.path("mnt"));
    for line in [
        format!("JAX_COMPILATION_CACHE_DIR={}/jax", point.display()),
        format!("OLYMPUS_COMPILATION_CACHE_DIR={}/jax", point.display()),
        format!("TRITON_CACHE_DIR={}/triton", point.display()),
        format!("HEARTHFS_MOUNT={}", point.display()),
        "GOCACHE=/mine".to_owned(),
    ] {
        assert!(env.lines().any(|l| l == line), "`{line}` is not in: {env}");
    }
    let summary = err(&output).lines().filter(|l| l.starts_with("hearthfs: ")).count();
    assert_eq!(summary, 4, "{}", err(&output));
    assert!(err(&output).contains("hearthfs: 0 entries served locally\n"), "{}", err(&output));
    assert!(fake.is_mounted(), "a mount that run did not make stays");
}

/// Resets a signal that is ignored if a shell has started the tests in the background.
const DEFAULT_SIGINT: &[&str] = &["env", "--default-signal=INT"];

#[test]
fn run_passes_the_end_of_its_command_on() {
    let bench = Bench::new();
    let Some(_fake) = bench.fake("run_passes_the_end_of_its_command_on") else { return };
    let run =
        |args: &[&str]| bench.output(&[&["run", "--mount", "mnt", "--"], args].concat()).status;
    assert_eq!(run(&["true"]).code(), Some(0));
    assert_eq!(run(&["sh", "-c", "exit 42"]).code(), Some(42));
    assert_eq!(run(&["/no/such/command"]).code(), Some(127));
    assert_eq!(run(&["/etc/passwd"]).code(), Some(126));
    for signal in [9, 15, 2, 6] {
        let status = run(&[DEFAULT_SIGINT, &["sh", "-c", &format!("kill -{signal} $$")]].concat());
        assert_eq!(status.signal(), Some(signal));
    }
}

#[test]
fn run_passes_signals_to_its_command() {
    let bench = Bench::new();
    let Some(_fake) = bench.fake("run_passes_signals_to_its_command") else { return };
    for (name, signal) in [("TERM", Signal::TERM), ("INT", Signal::INT), ("USR1", Signal::USR1)] {
        // Waits in short pieces, so that the shell's trap runs soon.
        let script = format!("trap 'exit 7' {name}; echo up; while :; do sleep 0.05; done");
        // Signals that are ignored when `run` starts are not passed on.
        let mut command = Command::new(DEFAULT_SIGINT[0]);
        bench.surround(&mut command);
        command.args(&DEFAULT_SIGINT[1..]).arg(env!("CARGO_BIN_EXE_hearthfs"));
        command.args(["run", "--mount", "mnt", "--", "sh", "-c", &script]);
        command.current_dir(bench.path("")).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let mut line = String::new();
        let mut lines = BufReader::new(child.stdout.take().expect("piped"));
        lines.read_line(&mut line).expect("the command has started");
        kill_process(Pid::from_child(&child), signal).expect("sent");
        let output = child.wait_with_output().expect("ended");
        assert_eq!(output.status.code(), Some(7), "{name}: {}", err(&output));
        assert!(err(&output).contains("drained in"), "{name}: {}", err(&output));
    }
}

#[test]
fn several_runs_share_a_mount() {
    let bench = Bench::new();
    let Some(fake) = bench.fake("several_runs_share_a_mount") else { return };
    let args = ["run", "--mount", "mnt", "--", "sleep", "0.2"];
    let start = || bench.command(&args).stderr(Stdio::piped()).spawn().expect("started");
    let all: Vec<Child> = (0..4).map(|_| start()).collect();
    for child in all {
        let output = child.wait_with_output().expect("ended");
        assert!(output.status.success(), "{}", err(&output));
    }
    assert!(fake.is_mounted());
}

#[test]
fn run_refuses_a_mount_with_another_remote() {
    let bench = Bench::new();
    let Some(_fake) = bench.fake("run_refuses_a_mount_with_another_remote") else { return };
    let args = ["run", "--mount", "mnt", "--remote", "file:///other", "--", "true"];
    refuses(&bench, &args, 2, &["file:///fake/remote, not file:///other"]);
}

#[test]
fn waiting_for_a_stopped_daemon_is_bounded() {
    let bench = Bench::new();
    let Some(fake) = bench.fake("waiting_for_a_stopped_daemon_is_bounded") else { return };
    // A stopped daemon neither answers nor ends.
    kill_process(Pid::from_child(&fake.child), Signal::STOP).expect("sent");
    let clock = hearthfs::clock::Clock::system();
    let output = bench.output(&["status", "mnt"]);
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let named = format!("the daemon with process id {} does not answer", fake.child.id());
    assert!(err(&output).contains(&named), "{}", err(&output));
    assert!(clock.mono() < Duration::from_secs(40));
}

#[test]
fn init_makes_a_store_once_and_says_which() {
    let bench = Bench::new();
    let url = format!("file://{}", bench.path("store").display());
    let id = |text: &str| {
        let id = text.split("store ").last().and_then(|rest| rest.get(..16));
        id.expect("an identity").to_owned()
    };
    let first = bench.output(&["init", &url, "--expiry", "7d"]);
    assert_eq!(first.status.code(), Some(0), "{first:?}");
    let said = out(&first);
    for part in [&format!("{url} is made: store ")[..], "an expiry of 7d"] {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
    let again = bench.output(&["init", &url]);
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(out(&again).contains("is a store already"), "{again:?}");
    assert_eq!(id(&out(&again)), id(&said), "the same store");
    let old = "9c41d2a07be83f15";
    for _ in 0..2 {
        let told = bench.output(&["init", &url, "--replaces", old]);
        assert_eq!(told.status.code(), Some(0), "{told:?}");
        assert!(out(&told).contains(&format!("know the store {old} move")), "{told:?}");
    }
    let format = std::fs::read_to_string(bench.path("store/hearthfs.json")).expect("readable");
    assert_eq!(format.matches(old).count(), 1, "{format}");
    assert!(format.contains(&id(&said)), "{format}");
}

#[test]
fn init_refuses_what_cannot_be_a_store() {
    let bench = Bench::new();
    let far = format!("file://{}", bench.path("no/store").display());
    refuses(&bench, &["init", &far], 2, &["no/store", "no does not exist; make it"]);
    std::fs::write(bench.path("file"), "").expect("write");
    let file = format!("file://{}", bench.path("file").display());
    refuses(&bench, &["init", &file], 2, &["file", "not a directory"]);
    std::fs::create_dir(bench.path("other")).expect("mkdir");
    std::fs::write(bench.path("other/hearthfs.json"), "hello").expect("write");
    let other = format!("file://{}", bench.path("other").display());
    refuses(&bench, &["init", &other], 2, &[&other, "belongs to something else"]);
    refuses(&bench, &["init"], 2, &["no address", "remote.url"]);
    refuses(&bench, &["init", &far, "--replaces", "x"], 2, &["16 hex digits"]);
    refuses(&bench, &["init", "ftp://x"], 2, &["ftp://x"]);
}
