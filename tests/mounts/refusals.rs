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
