//! A daemon in a mount namespace of its own whose mounts propagate, like a pod with Bidirectional
//! propagation, and programs in others, like pods with HostToContainer.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind, mount_change, unmount};

use crate::harness::command::wait;
use crate::harness::node::{Site, is_mounted};
use crate::harness::{
    Io, Must as _, Node, Options, Store, SyscallProcess, eventually, is_root, skipped,
};

const LIMIT_MS: u64 = 20_000;

/// A directory of the node whose mounts propagate to other namespaces.
struct Told(PathBuf);

impl Told {
    fn make(dir: &Path) -> Self {
        mount_bind(dir, dir).must("bind the directory to itself");
        let told = Self(dir.to_owned());
        mount_change(dir, MountPropagationFlags::SHARED).must("share its mounts");
        told
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        unmount(&self.0, UnmountFlags::DETACH).ok();
    }
}

/// A program in a namespace that receives the node's mounts, and sends none.
struct Job(Child);

impl Job {
    fn start() -> Self {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "sleep", "600"]);
        let child = command.stdin(Stdio::null()).spawn().must("start a job");
        let own = format!("/proc/{}/ns/mnt", child.id());
        eventually(LIMIT_MS, "the job has a namespace of its own", || {
            let (its, ours) = (std::fs::read_link(&own), std::fs::read_link("/proc/self/ns/mnt"));
            match (its, ours) {
                (Ok(its), Ok(ours)) if its != ours => Ok(()),
                other => Err(format!("{other:?}")),
            }
        });
        Self(child)
    }

    /// Reads a file as the job sees it.
    fn read(&self, path: &Path) -> Result<String, String> {
        let seen = format!("/proc/{}/root{}", self.0.id(), path.display());
        std::fs::read_to_string(seen).map_err(|error| error.to_string())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        drop(self.0.kill());
        let _ = wait(&mut self.0, LIMIT_MS);
    }
}

/// The next pod replaces what a killed daemon has left on the node, for the node and for running programs.
#[test]
fn service_pods_take_over_from_one_that_was_killed() {
    if !is_root() {
        return skipped("service_pods_take_over_from_one_that_was_killed", "it needs root");
    }
    let site = Site::new();
    let store = Store::dir(&site);
    let _told = Told::make(site.path());
    let early = Job::start();
    let pod = ["unshare", "--mount", "--propagation", "unchanged", "--fork", "--kill-child"];
    let options = Options::new(Io::best()).wrapped(&pod);
    let mut node = Node::start(&site, "a", Some(&store), options);
    let at = |name: &str| node.mount.join(name);
    let (mount, entry, later) = (node.mount.clone(), at("entry"), at("later"));
    assert!(is_mounted(&mount), "the mount appears on the node");
    SyscallProcess::new().put(&entry, b"text").must("put on the node");
    let sees = |job: &Job, path: &Path, text: &str| {
        eventually(LIMIT_MS, "a job reads it", || match job.read(path) {
            Ok(read) if read == text => Ok(()),
            other => Err(format!("{other:?}")),
        });
    };
    sees(&early, &entry, "text");
    for _ in 0..2 {
        node.kill_only();
        assert!(std::fs::read(&entry).is_err(), "a dead mount is left on the node");
        node.up();
        assert_eq!(SyscallProcess::new().get(&entry).must("the next pod serves the node"), b"text");
        sees(&early, &entry, "text");
    }
    let table = std::fs::read_to_string("/proc/self/mountinfo").must("read the mount table");
    let count = table.lines().filter(|line| line.contains(&*mount.to_string_lossy())).count();
    assert_eq!(count, 1, "dead mounts are piled up:\n{table}");
    SyscallProcess::new().put(&later, b"more").must("put on the node");
    sees(&Job::start(), &later, "more");
    node.stop();
    assert!(!is_mounted(&mount), "the end is visible on the node");
    assert!(early.read(&later).is_err(), "the end is visible in a job");
}
