//! What commands refuse, and what they say when they cannot do what they should.

use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::command::{Said, need, run};
use crate::harness::node::{Site, dress, is_mounted};
use crate::harness::syscall_process::User;
use crate::harness::{Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually};
use crate::users::{A, B, can_be_others, let_in};

const LIMIT_MS: u64 = 60_000;
const FAILED: i32 = 1;
const REFUSED: i32 = 2;
const NOT_MOUNTED: i32 = 3;

fn text(path: &Path) -> String {
    path.to_str().must("a path that is text").to_owned()
}

/// Returns a command of the program that `setpriv` starts with these options.
fn by_setpriv(site: &Site, options: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    dress(&mut command, site.path());
    command.args(options).arg(env!("CARGO_BIN_EXE_hearthfs"));
    command
}

fn as_user(site: &Site, user: User, options: &[&str]) -> Command {
    let (uid, gid) = (user.uid.to_string(), user.gid.to_string());
    let who = ["--reuid", &uid, "--regid", &gid, "--clear-groups"];
    by_setpriv(site, &[&who, options].concat())
}

/// A mount that the kernel would refuse is refused before there is a store.
#[test]
fn refused_mounts_make_no_store() {
    let test = "refused_mounts_make_no_store";
    if !can_be_others(test, Io::best()) || !need(test, "setpriv") {
        return;
    }
    let site = Site::new();
    let_in(site.path(), 0o755);
    for name in ["run", "home", "xdg", "m", "stores"] {
        chown(site.dir(name), Some(B.uid), Some(B.gid)).must("chown");
    }
    let store = site.path().join("stores/new");
    let bound: &[&str] = &["--bounding-set=-sys_admin", "--inh-caps=-sys_admin"];
    let mut root = by_setpriv(&site, bound);
    root.env("HEARTHFS_RUNTIME_DIR", site.dir("run.root"));
    root.env("HEARTHFS_CACHE_DIR", site.path().join("cache.root"));
    let user = as_user(&site, B, &["--no-new-privs"]);
    for mut command in [root, user] {
        command.arg("mount").arg(site.path().join("m"));
        command.args(["--remote", &format!("file://{}", store.display())]);
        let said = run(&mut command, LIMIT_MS);
        assert_eq!(said.code(), REFUSED, "{said:?}");
        // A machine may keep users from the device; that is said first.
        let words = ["this process may not mount", "/dev/fuse cannot be opened"];
        assert!(words.iter().any(|word| said.err.contains(word)), "{said:?}");
        assert!(said.err.contains("hint: "), "{said:?}");
        assert!(!store.exists(), "a store was made: {said:?}");
    }
}

/// Unmounts what a dead daemon has left; `knowing` the cache directory or not.
fn unmount_dead(cluster: &mut Cluster, knowing: bool, words: &[&str]) -> Said {
    cluster.a.kill_only();
    let mut command = cluster.site.hearthfs();
    command.arg("unmount").arg(&cluster.a.mount).args(words);
    if knowing {
        command.env("HEARTHFS_CACHE_DIR", &cluster.a.cache);
    }
    let said = run(&mut command, LIMIT_MS);
    assert!(!is_mounted(&cluster.a.mount), "{said:?}");
    said
}

/// `unmount` says what a dead daemon has not sent, and fails unless that is accepted.
#[test]
fn refused_is_a_silent_unmount_of_a_dead_daemon() {
    let mut cluster = Cluster::with(Store::dir, &Options::new(Io::best()).deadline("1s"));
    let put = |cluster: &Cluster, name: &str| {
        SyscallProcess::new().put(&cluster.a.at(name), name.as_bytes()).must("put");
    };
    put(&cluster, "sent");
    cluster.a.drain();
    let said = unmount_dead(&mut cluster, true, &[]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(said.err.contains("everything was in the store"), "{said:?}");
    cluster.a.up();
    cluster.store.fail();
    put(&cluster, "first");
    put(&cluster, "second");
    let (mount, cache) = (text(&cluster.a.mount), text(&cluster.a.cache));
    let said = unmount_dead(&mut cluster, true, &[]);
    assert_eq!(said.code(), FAILED, "{said:?}");
    for word in ["error: unmounted, but", "2 changes", &cache, &format!("hearthfs mount {mount}")] {
        assert!(said.err.contains(word), "`{word}` is not in: {said:?}");
    }
    cluster.a.up();
    let said = unmount_dead(&mut cluster, false, &[]);
    assert_eq!(said.code(), FAILED, "{said:?}");
    assert!(said.err.contains("not known whether"), "{said:?}");
    cluster.a.up();
    let said = unmount_dead(&mut cluster, true, &["--now"]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(said.err.contains("2 changes") && said.err.contains(&cache), "{said:?}");
    cluster.store.heal();
    cluster.a.up();
    cluster.settle();
    for name in ["sent", "first", "second"] {
        eventually(LIMIT_MS, "what was kept arrives", || {
            let read = std::fs::read(cluster.b.at(name)).map_err(|error| error.to_string())?;
            if read == name.as_bytes() { Ok(()) } else { Err("other bytes".to_owned()) }
        });
    }
}

/// A mount of user B, which root may not ask.
struct Theirs {
    site: Site,
    mount: PathBuf,
}

impl Theirs {
    fn command(&self) -> Command {
        // Not by the set-uid helper, because a machine may keep users from the device.
        let caps = ["--inh-caps", "+sys_admin,+dac_override", "--ambient-caps"];
        let mut command =
            as_user(&self.site, B, &[&caps[..], &["+sys_admin,+dac_override"]].concat());
        for (name, dir) in
            [("HEARTHFS_RUNTIME_DIR", "run"), ("HEARTHFS_CACHE_DIR", "cache"), ("HOME", "")]
        {
            command.env(name, self.site.path().join("theirs").join(dir));
        }
        command.env("XDG_STATE_HOME", self.site.path().join("theirs"));
        command
    }

    fn up(&self) {
        let mut command = self.command();
        command.arg("mount").arg(&self.mount).arg("--background");
        command.args(["--remote", &format!("file://{}", self.site.path().join("s").display())]);
        run(&mut command, LIMIT_MS).good();
    }

    fn kill(&self) {
        let out = run(self.command().args(["status", "--json"]).arg(&self.mount), LIMIT_MS).good();
        let status: serde_json::Value = serde_json::from_str(&out).must("parse the status");
        let pid = Pid::from_raw(status["pid"].as_i64().must("a process id") as i32);
        kill_process(pid.must("a process id"), Signal::KILL).must("kill the daemon");
        eventually(LIMIT_MS, "the daemon is gone", || {
            let said = run(self.command().arg("status").arg(&self.mount), LIMIT_MS);
            if said.status.code() == Some(NOT_MOUNTED) { Ok(()) } else { Err(format!("{said:?}")) }
        });
    }

    fn root(&self, words: &[&str]) -> Said {
        run(self.site.hearthfs().args(words).arg(&self.mount), LIMIT_MS)
    }
}

/// Root can tell a dead mount of another user from a live one, and remove it.
#[test]
fn refused_to_root_is_no_dead_mount_of_a_user() {
    let test = "refused_to_root_is_no_dead_mount_of_a_user";
    if !can_be_others(test, Io::best()) || !need(test, "setpriv") {
        return;
    }
    let site = Site::new();
    let_in(site.path(), 0o755);
    for name in ["m", "theirs", "s"] {
        chown(site.dir(name), Some(B.uid), Some(B.gid)).must("chown");
    }
    let theirs = Theirs { mount: site.path().join("m"), site };
    theirs.up();
    // What lives stays.
    let said = theirs.root(&["unmount", "--stale"]);
    assert!(said.code() == 0 && is_mounted(&theirs.mount), "{said:?}");
    let said = theirs.root(&["unmount"]);
    assert_eq!(said.code(), REFUSED, "{said:?}");
    assert!(said.err.contains("HEARTHFS_RUNTIME_DIR") && !said.err.contains("or as root"));

    theirs.kill();
    let said = theirs.root(&["status"]);
    assert_eq!(said.code(), NOT_MOUNTED, "{said:?}");
    assert!(said.err.contains("is dead"), "{said:?}");
    let mut stranger = as_user(&theirs.site, A, &[]);
    let said = run(stranger.args(["unmount", "--stale"]).arg(&theirs.mount), LIMIT_MS);
    assert_eq!(said.code(), REFUSED, "{said:?}");
    assert!(said.err.contains("the mount of another user") && is_mounted(&theirs.mount));
    let said = theirs.root(&["unmount", "--stale"]);
    assert!(said.code() == 0 && !is_mounted(&theirs.mount), "{said:?}");

    theirs.up();
    theirs.kill();
    let said = theirs.root(&["unmount"]);
    assert!(said.code() == FAILED && !is_mounted(&theirs.mount), "{said:?}");
    assert!(said.err.contains("not known whether"), "{said:?}");

    theirs.up();
    theirs.kill();
    theirs.root(&["mount", "--background"]).good();
    theirs.root(&["status"]).good();
    theirs.root(&["unmount"]).good();
    assert!(!is_mounted(&theirs.mount));
}

/// A node that knows a store is not told to make another.
#[test]
fn refused_stores_are_not_replaced_by_accident() {
    let site = Site::new();
    let store = Store::dir(&site);
    let mut node = Node::start(&site, "m", Some(&store), Options::new(Io::best()));
    SyscallProcess::new().put(&node.at("entry"), b"x").must("put");
    node.drain();
    let known = node.status()["store"].as_str().must("the identity of the store").to_owned();
    node.stop();
    let (url, cache) = (store.url(), node.cache.clone());
    let remedies = |cache: &Path, words: &[&str]| {
        let mut command = site.hearthfs();
        command.args(["doctor", "--remote", &url, "--cache-dir"]).arg(cache).args(words);
        let said = run(command.arg(&node.mount), LIMIT_MS);
        let lines = said.out.lines().filter(|line| line.contains("hearthfs init"));
        lines.map(str::to_owned).collect::<Vec<_>>().join("\n")
    };
    let (replaced, plain) =
        (format!("hearthfs init {url} --replaces {known}`"), format!("hearthfs init {url}`"));
    let dir = PathBuf::from(url.trim_start_matches("file://"));
    std::fs::rename(&dir, site.path().join("away")).must("take the store away");
    for empty in [false, true] {
        if empty {
            std::fs::create_dir(&dir).must("an empty directory");
        }
        for words in [&[][..], &["--read-only"]] {
            let said = remedies(&cache, words);
            assert!(said.contains(&replaced) && !said.contains(&plain), "{empty}: {said}");
            let said = remedies(&site.path().join("fresh"), words);
            assert!(said.contains(&plain) && !said.contains("--replaces"), "{empty}: {said}");
        }
    }
}

/// A configuration file in a closed directory is not taken for missing.
#[test]
fn refused_is_a_configuration_that_cannot_be_reached() {
    let test = "refused_is_a_configuration_that_cannot_be_reached";
    if !can_be_others(test, Io::best()) || !need(test, "setpriv") {
        return;
    }
    let site = Site::new();
    let_in(site.path(), 0o755);
    let dir = site.dir("home/hearthfs");
    let_in(&dir, 0o700);
    let file = dir.join("hearthfs.toml");
    std::fs::write(&file, "[local]\ncache_size = \"123MiB\"\n").must("write");
    let shown = || run(as_user(&site, B, &[]).args(["config", "show"]), LIMIT_MS);
    let said = shown();
    assert_eq!(said.code(), REFUSED, "{said:?}");
    for word in [&text(&file), "Permission denied", "enter its directories", "--config"] {
        assert!(said.err.contains(word), "`{word}` is not in: {said:?}");
    }
    let_in(&dir, 0o755);
    assert!(shown().good().contains("123MiB"));
}
