//! `mount.hearthfs`: as mount(8) calls it, by hand and from a table of file systems.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::command::{Said, need, run};
use crate::harness::node::{Site, dress, is_mounted};
use crate::harness::store::Trouble;
use crate::harness::{
    Io, Must as _, Node, Options, Store, SyscallProcess, eventually, is_root, now, skipped,
};

const LIMIT_MS: u64 = 60_000;
const USAGE: i32 = 1;
const MOUNT_FAILED: i32 = 32;

/// Links the program under the helper's name, in a directory of its own.
fn helper(site: &Site) -> PathBuf {
    let path = site.dir("sbin").join("mount.hearthfs");
    if !path.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_hearthfs"), &path).must("link");
    }
    path
}

fn call(site: &Site, store: Option<&Store>, words: &[&str]) -> Said {
    let mut command = Command::new(helper(site));
    dress(&mut command, site.path());
    command.envs(store.map(Store::env).unwrap_or_default()).args(words);
    run(&mut command, LIMIT_MS)
}

fn text(path: &Path) -> String {
    path.to_str().must("a path that is text").to_owned()
}

fn umount(at: &Path) -> Said {
    let mut command = Command::new(if is_root() { "umount" } else { "fusermount3" });
    if !is_root() {
        command.arg("-u");
    }
    run(command.arg(at), LIMIT_MS)
}

#[test]
fn service_helper_mounts_and_umount_drains() {
    let site = Site::new();
    let store = Store::s3(&site);
    let (point, cache) = (site.dir("m"), site.path().join("cache"));
    let options = format!("rw,_netdev,nofail,cache_dir={},cache_size=64MiB", text(&cache));
    let said = call(&site, Some(&store), &[&store.url(), &text(&point), "-v", "-o", &options]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(said.err.contains("mounted at"), "{said:?}");
    assert!(is_mounted(&point));
    let again = call(&site, Some(&store), &[&store.url(), &text(&point), "-o", &options]);
    assert_eq!(again.code(), MOUNT_FAILED, "{again:?}");
    assert!(again.err.contains("mounted already"), "{again:?}");
    // Pending changes are drained after another program unmounts.
    store.trouble(Trouble::Slow(700));
    SyscallProcess::new().put(&point.join("f"), b"content").must("put");
    let start = now();
    umount(&point).good();
    assert!(start.elapsed().as_millis() < 10_000, "umount waits for the drain");
    assert!(!is_mounted(&point));
    // A mount right after it waits for that.
    let said = call(&site, Some(&store), &[&store.url(), &text(&point), "-o", &options]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert!(said.err.contains("waiting for the daemon"), "{said:?}");
    assert_eq!(std::fs::read(point.join("f")).must("read"), b"content");
    store.heal();
    umount(&point).good();
    // The daemon ends, and its cache directory can be used by others.
    eventually(30_000, "the daemon ends and unlocks its directory", || {
        let lock = std::fs::File::open(cache.join("v1/LOCK")).map_err(|error| error.to_string())?;
        let free = rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive);
        free.map_err(|error| error.to_string())
    });
    let other = Node::start(&site, "other", Some(&store), Options::new(Io::best()));
    assert_eq!(std::fs::read(other.at("f")).must("read on another node"), b"content");
}

#[test]
fn service_helper_exit_statuses() {
    let site = Site::new();
    let store = Store::dir(&site);
    let (url, point) = (store.url(), site.dir("m"));
    let cache = format!("cache_dir={}", text(&site.path().join("cache")));
    let point_text = text(&point);
    for (words, code, message) in [
        (&[][..], USAGE, "usage: mount.hearthfs"),
        (&[&*url], USAGE, "usage: mount.hearthfs"),
        (&[&*url, &point_text, "-o", "cache_dri=/x"], USAGE, "did you mean `cache_dir`"),
        (&[&*url, &point_text, "-o", "cache_size=1"], USAGE, "local.cache_size"),
        (&["http://x", &point_text], USAGE, "remote.url"),
        (&[&*url, &point_text, "-o", "config=/nonexistent.toml"], USAGE, "/nonexistent.toml"),
        (&[&*url, "/nonexistent/m", "-o", &cache], MOUNT_FAILED, "mkdir -p"),
    ] {
        let said = call(&site, None, words);
        assert_eq!(said.code(), code, "{words:?}: {said:?}");
        assert!(said.err.contains(message), "{words:?}: {said:?}");
        assert!(!is_mounted(&point), "{words:?}");
    }
    let fake = call(&site, None, &[&url, &point_text, "-f", "-s", "-o", &format!("{cache},bogus")]);
    assert_eq!(fake.code(), 0, "{fake:?}");
    assert!(!is_mounted(&point), "-f only checks");
}

#[test]
fn service_helper_read_only_and_noexec() {
    let name = "service_helper_read_only_and_noexec";
    if !is_root() {
        return skipped(name, "noexec needs root");
    }
    let site = Site::new();
    let store = Store::dir(&site);
    let writer = Node::start(&site, "writer", Some(&store), Options::new(Io::best()));
    SyscallProcess::new().put(&writer.at("f"), b"content").must("put");
    writer.drain();
    let point = site.dir("m");
    let config = site.path().join("m.toml");
    let toml = format!("[local]\ncache_dir = \"{}\"\n", text(&site.path().join("cache")));
    std::fs::write(&config, toml).must("write a configuration");
    let options = format!("ro,noexec,config={}", text(&config));
    call(&site, None, &[&store.url(), &text(&point), "-o", &options]).good();
    assert_eq!(std::fs::read(point.join("f")).must("read"), b"content");
    assert!(std::fs::write(point.join("g"), b"x").is_err(), "the mount is read-only");
    let table = std::fs::read_to_string("/proc/self/mountinfo").must("read the mount table");
    let line = table.lines().find(|line| line.contains(&format!(" {} ", text(&point))));
    let line = line.must("the mount");
    assert!(line.contains("ro,") && line.contains("noexec"), "{line}");
    umount(&point).good();
}

/// mount(8) finds its helpers only in the system's directories, so this runs in a mount namespace of its own.
#[test]
fn service_helper_is_found_by_mount() {
    let name = "service_helper_is_found_by_mount";
    if !is_root() {
        return skipped(name, "a mount namespace needs root");
    }
    if !need(name, "unshare") || !need(name, "mount") {
        return;
    }
    let site = Site::new();
    let store = Store::dir(&site);
    let (one, two) = (site.dir("one"), site.dir("two"));
    let sbin = helper(&site);
    let cache = |name: &str| text(&site.path().join(format!("{name}.cache")));
    let table = format!(
        "{} {} hearthfs _netdev,nofail,x-systemd.automount,noatime,cache_dir={},cache_size=64MiB 0 0\n",
        store.url(),
        text(&two),
        cache("two")
    );
    let fstab = site.path().join("fstab");
    std::fs::write(&fstab, table).must("write the table");
    let script = format!(
        "set -ex
         mount --make-rprivate /
         mount --bind {sbin} $(readlink -f /sbin)
         mount -t hearthfs {url} {one} -o cache_dir={cache},cache_size=64MiB
         mount -T {fstab} {two}
         mount -a -T {fstab}
         grep -c ' {site}/.* fuse.hearthfs ' /proc/self/mounts
         echo content > {one}/f
         for i in $(seq 200); do if [ -e {two}/f ]; then break; fi; sleep 0.1; done
         cat {two}/f
         umount {two}
         umount {one}",
        sbin = text(sbin.parent().must("a directory")),
        site = text(site.path()),
        url = store.url(),
        one = text(&one),
        two = text(&two),
        cache = cache("one"),
        fstab = text(&fstab),
    );
    let mut command = Command::new("unshare");
    dress(&mut command, site.path());
    command.args(["--mount", "sh", "-c", &script]);
    let said = run(&mut command, LIMIT_MS);
    assert_eq!(said.code(), 0, "{said:?}");
    assert_eq!(said.out, "2\ncontent\n", "{said:?}");
    for name in ["one", "two"] {
        let lock = PathBuf::from(cache(name)).join("v1/LOCK");
        eventually(30_000, format_args!("the daemon of {name} ends"), || {
            let lock = std::fs::File::open(&lock).map_err(|error| error.to_string())?;
            let how = rustix::fs::FlockOperation::NonBlockingLockExclusive;
            rustix::fs::flock(&lock, how).map_err(|error| error.to_string())
        });
    }
}
