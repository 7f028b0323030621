//! The units under a real systemd: the machine's own, as process 1 of namespaces with a root of their own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::command::{Said, is_there, need, run, wait};
use crate::harness::node::Site;
use crate::harness::store::Trouble;
use crate::harness::{Must as _, Store, eventually, is_root, now, say, skipped, sleep_ms};

const BOOT_MS: u64 = 60_000;
const LIMIT_MS: u64 = 90_000;
const SYSTEMD: &str = "/usr/lib/systemd/systemd";
const UNIT: &str = "hearthfs@cluster";
/// The goal is 2 s, see `service_restart_under_load`.
const GAP_MS_MAX: u64 = 15_000;

/// A running systemd. Its fields are dropped in this order: processes first, then their disk.
struct Booted {
    child: Child,
    /// The id of its process 1 on the machine.
    init: u32,
    store: Store,
    site: Site,
}

impl Booted {
    /// Boots; returns the reason if that is impossible.
    fn start(store: impl FnOnce(&Site) -> Store) -> Result<Self, String> {
        if !is_root() {
            return Err("namespaces with a systemd in them need root".to_owned());
        }
        let missing = ["unshare", "nsenter", "systemctl", "journalctl"];
        if let Some(program) = missing.into_iter().find(|program| !is_there(program)) {
            return Err(format!("{program} is not installed"));
        }
        let table = std::fs::read_to_string("/proc/self/mountinfo").must("read the mount table");
        if !Path::new(SYSTEMD).exists() || !table.contains(" - cgroup2 ") {
            return Err("there is no systemd, or no cgroup2 file system".to_owned());
        }
        let site = Site::new();
        let store = store(&site);
        for name in ["disk", "store", "etc/hearthfs"] {
            site.dir(name);
        }
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let log = std::fs::File::create(site.path().join("boot.log")).must("make a log");
        let mut command = Command::new(here.join("tests/torture/systemd.sh"));
        command.arg(site.path()).arg(env!("CARGO_BIN_EXE_hearthfs")).arg(here.join("systemd"));
        command.stdin(Stdio::null()).stdout(log.try_clone().must("a log")).stderr(log);
        let child = command.spawn().must("start the script that boots");
        let mut booted = Self { child, init: 0, store, site };
        booted.await_boot()?;
        Ok(booted)
    }

    /// Waits until systemd runs; returns the reason if it may not, as in most containers.
    fn await_boot(&mut self) -> Result<(), String> {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        eventually(BOOT_MS, "systemd runs", || {
            if let Ok(Some(status)) = self.child.try_wait() {
                let log = std::fs::read_to_string(self.site.path().join("boot.log"));
                let last = log.unwrap_or_default().trim().replace('\n', "; ");
                return Ok(Err(format!("systemd cannot be booted here ({status}): {last}")));
            }
            // `unshare` replaces the script, and its only child is process 1.
            let text = std::fs::read_to_string(&children).unwrap_or_default();
            self.init = text.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(0);
            let program =
                std::fs::read_link(format!("/proc/{}/exe", self.init)).unwrap_or_default();
            if self.init == 0 || program.file_name().is_none_or(|name| name != "systemd") {
                return Err(format!("process 1 is {}", program.display()));
            }
            let said = self.inside("systemctl is-system-running");
            match said.out.trim() {
                "running" | "degraded" => Ok(Ok(())),
                state => Err(format!("{state}: {}", said.err)),
            }
        })
    }

    /// Runs a script inside.
    fn inside(&self, script: &str) -> Said {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.to_string(), "-m", "-p", "-u", "-i", "-C"]);
        command.args(["env", "-i", "PATH=/usr/sbin:/usr/bin", "sh", "-c", script]);
        command.current_dir("/");
        run(&mut command, LIMIT_MS)
    }

    /// Runs a script inside that must succeed, and returns what it prints.
    #[track_caller]
    fn good(&self, script: &str) -> String {
        let said = self.inside(script);
        assert!(said.status.success(), "{script}\n{said:?}\n{}", self.journal());
        said.out.trim().to_owned()
    }

    fn journal(&self) -> String {
        self.inside("journalctl --no-pager -o short-monotonic | tail -60").out
    }

    fn property(&self, unit: &str, name: &str) -> String {
        self.good(&format!("systemctl show -p {name} --value {unit}"))
    }

    /// Writes a configuration of an instance.
    fn configure(&self, instance: &str, toml: &str) {
        let path = self.site.path().join(format!("etc/hearthfs/{instance}.toml"));
        std::fs::write(path, toml).must("write a configuration");
    }

    fn cluster(&self, more: &str) {
        let toml = format!("[mount]\ndirectory = \"/mnt/cache\"\n{more}");
        self.configure("cluster", &toml);
    }

    /// Puts the units and snippets at the paths that the recipes use, with the path of the program here.
    fn checkout(&self) {
        let to = self.site.dir("etc/hearthfs/checkout/systemd");
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd");
        for entry in std::fs::read_dir(from).must("list the units") {
            let path = entry.must("list the units").path();
            if path.is_dir() {
                continue;
            }
            let text = std::fs::read_to_string(&path).must("read a unit");
            let text = text.replace("/usr/bin/hearthfs", "/opt/hearthfs");
            std::fs::write(to.join(path.file_name().must("a name")), text).must("write a unit");
        }
    }

    /// Adds settings to the service.
    fn drop_in(&self, text: &str) {
        let dir = "/etc/systemd/system/hearthfs@.service.d";
        self.good(&format!(
            "mkdir -p {dir}; printf '[Service]\\n{text}\\n' > {dir}/test.conf; systemctl daemon-reload"
        ));
    }
}

impl Drop for Booted {
    fn drop(&mut self) {
        if std::thread::panicking() && self.init != 0 {
            say(self.inside("journalctl --no-pager -o short-monotonic | tail -60").out);
        }
        drop(self.child.kill());
        let _ = wait(&mut self.child, 10_000);
        // The end of process 1 ends all others; then its control groups are empty.
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let Some(line) = table.lines().rfind(|line| line.contains(" - cgroup2 ")) else { return };
        let above = PathBuf::from(line.split(' ').nth(4).unwrap_or_default());
        let own = above.join(format!("hearthfs-test-{}", self.child.id()));
        for _ in 0..100 {
            remove_groups(&own);
            if !own.exists() {
                break;
            }
            sleep_ms(50);
        }
    }
}

fn remove_groups(dir: &Path) {
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            remove_groups(&entry.path());
        }
    }
    drop(std::fs::remove_dir(dir));
}

const SHARED: &str = "[remote]\nurl = \"file:///srv/store\"\n";

#[test]
fn service_systemd_starts_restarts_and_stops() {
    let booted = match Booted::start(Store::dir) {
        Ok(booted) => booted,
        Err(reason) => return skipped("service_systemd_starts_restarts_and_stops", reason),
    };
    booted.cluster(SHARED);
    booted.good(&format!("systemctl start {UNIT}"));
    // Ready means that the mount answers all users of the machine.
    let table = std::fs::read_to_string(format!("/proc/{}/mounts", booted.init));
    assert!(table.must("read the mount table").contains(" /mnt/cache fuse.hearthfs "));
    let status = booted.good("/opt/hearthfs status /mnt/cache --json");
    let status: serde_json::Value = serde_json::from_str(&status).must("parse the status");
    assert_eq!(status["io"]["mode"], crate::harness::Io::best().word(), "{status:#}");
    assert_eq!(status["pid_namespace"], serde_json::Value::Null, "{status:#}");
    assert_eq!(status["cache_dir"], "/var/cache/hearthfs/mnt-cache", "{status:#}");
    killed_writers_of_other_users_publish_nothing(&booted);

    let gap = booted.good(&format!(
        "echo content > /mnt/cache/f; worst=0
         for i in 1 2 3 4; do
             systemctl kill -s KILL --kill-who=main {UNIT}; from=$(date +%s%N)
             until cat /mnt/cache/f 2>/dev/null | grep -q content; do :; done
             took=$((($(date +%s%N) - from) / 1000000))
             if [ $took -gt $worst ]; then worst=$took; fi
             echo more > /mnt/cache/g$i; sleep 0.5
         done
         echo $worst"
    ));
    say(format_args!("service_systemd: killed four times, longest gap {gap} ms"));
    assert!(gap.parse::<u64>().must("a number") < GAP_MS_MAX, "{gap} ms");
    assert_eq!(booted.good("cat /mnt/cache/g?"), "more\nmore\nmore\nmore");
    assert_eq!(booted.property(UNIT, "NRestarts"), "4");
    let count = booted.good("grep -c ' /mnt/cache fuse.hearthfs ' /proc/mounts");
    assert_eq!(count, "1", "dead mounts are piled up");

    booted.good(&format!("systemctl restart {UNIT}; cat /mnt/cache/f"));
    booted.good("systemctl start hearthfs-gc@cluster && systemctl start hearthfs-gc@cluster.timer");
    assert_eq!(booted.property("hearthfs-gc@cluster.service", "Result"), "success");
    assert_eq!(booted.good("cat /mnt/cache/g1"), "more");
    booted.good(&format!("systemctl stop {UNIT}; ! grep fuse.hearthfs /proc/mounts"));
    assert_eq!(booted.good("ls -A /mnt/cache"), "", "something was written below the mount");
    assert_eq!(booted.property(UNIT, "Result"), "success");
    assert!(!booted.store.objects_in("log").is_empty(), "the store is empty");
}

/// The service sees how tasks of other users end, in spite of its few capabilities.
fn killed_writers_of_other_users_publish_nothing(booted: &Booted) {
    if !Path::new("/usr/bin/python3").exists() {
        return;
    }
    let write = |name: &str, end: &str| {
        let program = format!(
            "import os; f = os.open(\"/mnt/cache/{name}\", os.O_WRONLY | os.O_CREAT, 0o644); \
             os.write(f, b\"bytes\"); {end}"
        );
        booted.inside(&format!(
            "chmod 1777 /mnt/cache; setpriv --reuid=65534 --regid=65534 --clear-groups \
             /usr/bin/python3 -c '{program}'"
        ));
    };
    write("killed", "os.kill(os.getpid(), 9)");
    write("exited", "os._exit(0)");
    write("closed", "os.close(f)");
    // Besides the directories of clients.
    assert_eq!(booted.good("ls -p /mnt/cache | grep -v /"), "closed\nexited");
    booted.good("rm /mnt/cache/closed /mnt/cache/exited");
}

#[test]
fn service_systemd_watchdog_and_stale_mounts() {
    let booted = match Booted::start(Store::dir) {
        Ok(booted) => booted,
        Err(reason) => return skipped("service_systemd_watchdog_and_stale_mounts", reason),
    };
    booted.cluster(SHARED);
    booted.drop_in("WatchdogSec=6s");
    booted.good(&format!("systemctl start {UNIT}; echo content > /mnt/cache/f"));
    let first = booted.property(UNIT, "MainPID");
    booted.good(&format!("kill -STOP {first}"));
    eventually(60_000, "the watchdog restarts it", || {
        let pid = booted.property(UNIT, "MainPID");
        let state = booted.property(UNIT, "ActiveState");
        if pid != first && pid != "0" && state == "active" { Ok(()) } else { Err(state) }
    });
    assert_eq!(booted.good("cat /mnt/cache/f"), "content");
    assert!(booted.journal().to_lowercase().contains("watchdog"), "{}", booted.journal());

    booted.drop_in("WatchdogSec=60s");

    // After a refusal there is no retry, and no dead mount is left behind.
    booted.configure("cluster", "[mount]\ndirectory = \"/mnt/cache\"\nbogus = true\n");
    booted.good(&format!("systemctl kill -s KILL --kill-who=main {UNIT}"));
    eventually(30_000, "the restart is refused", || {
        let state = booted.property(UNIT, "ActiveState");
        if state == "failed" { Ok(()) } else { Err(state) }
    });
    assert_eq!(booted.property(UNIT, "ExecMainStatus"), "2");
    assert!(booted.journal().contains("mount.bogus"), "{}", booted.journal());
    booted.cluster(SHARED);
    booted.good(&format!("systemctl start {UNIT}; cat /mnt/cache/f"));

    // Unmounted by hand: the daemon drains and ends, and is not restarted.
    booted.good("echo last > /mnt/cache/last; umount /mnt/cache");
    eventually(30_000, "the service ends after umount", || {
        let state = booted.property(UNIT, "ActiveState");
        if state == "inactive" { Ok(()) } else { Err(state) }
    });
    booted.good(&format!("systemctl start {UNIT}; cat /mnt/cache/last; systemctl stop {UNIT}"));
}

#[test]
fn service_systemd_stop_waits_for_the_drain_and_no_longer() {
    let name = "service_systemd_stop_waits_for_the_drain_and_no_longer";
    let booted = match Booted::start(Store::s3) {
        Ok(booted) => booted,
        Err(reason) => return skipped(name, reason),
    };
    booted.cluster(&format!(
        "[remote]\nurl = \"{}\"\n[writeback]\ndrain_deadline = \"8s\"\n",
        booted.store.url()
    ));
    let env: Vec<String> = booted.store.env().iter().map(|(k, v)| format!("{k}={v}")).collect();
    let path = booted.site.path().join("etc/hearthfs/cluster.env");
    std::fs::write(path, env.join("\n")).must("write the credentials");
    // The daemon requests the time that its own deadline needs.
    booted.drop_in("TimeoutStopSec=3s");
    booted.good(&format!("systemctl start {UNIT}; echo one > /mnt/cache/one"));
    booted.good("/opt/hearthfs drain /mnt/cache");
    booted.store.trouble(Trouble::Hang);
    booted.good("echo two > /mnt/cache/two");
    let start = now();
    booted.good(&format!("systemctl stop {UNIT}"));
    let took = start.elapsed().as_secs_f64();
    say(format_args!("service_systemd: stop with a hanging store took {took:.1} s of 8 s"));
    assert!(took > 6.0, "killed before the end of its drain: {took}");
    assert!(took < 25.0, "the store delays the end: {took}");
    assert_eq!(booted.property(UNIT, "Result"), "success");
    assert!(booted.journal().contains("not yet remote"), "{}", booted.journal());
    booted.store.heal();
    booted.good(&format!("systemctl start {UNIT}; /opt/hearthfs drain /mnt/cache"));
    assert_eq!(booted.good("cat /mnt/cache/one /mnt/cache/two"), "one\ntwo");
    booted.good(&format!("systemctl stop {UNIT}"));
}

#[test]
fn service_systemd_fstab_with_automount() {
    let name = "service_systemd_fstab_with_automount";
    if !Path::new("/dev/autofs").exists() {
        return skipped(name, "there is no /dev/autofs");
    }
    let booted = match Booted::start(Store::dir) {
        Ok(booted) => booted,
        Err(reason) => return skipped(name, reason),
    };
    let options = "_netdev,nofail,x-systemd.automount,cache_size=64MiB";
    booted.good(&format!(
        "echo 'file:///srv/store /mnt/cache hearthfs {options} 0 0' > /etc/fstab
         systemctl daemon-reload; systemctl start mnt-cache.automount
         ! grep ' /mnt/cache fuse.hearthfs ' /proc/mounts"
    ));
    // The first access triggers the mount.
    assert_eq!(booted.good("ls -A /mnt/cache"), "");
    booted.good("grep ' /mnt/cache fuse.hearthfs ' /proc/mounts; echo content > /mnt/cache/f");
    assert_eq!(booted.property("mnt-cache.mount", "ActiveState"), "active");
    booted.good("systemctl stop mnt-cache.mount; ! grep ' fuse.hearthfs ' /proc/mounts");
    assert_eq!(booted.good("cat /mnt/cache/f"), "content", "an access mounts it again");
    booted.good("systemctl stop mnt-cache.automount; ! grep fuse.hearthfs /proc/mounts");
}

/// Returns the shell commands under a heading of the README.
fn recipe(heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let text = std::fs::read_to_string(path).must("read the README");
    let (_, section) = text.split_once(heading).must(heading);
    let (_, block) = section.split_once("```sh\n").must("commands");
    block.split("```").next().must("their end").to_owned()
}

/// What an ordinary user does after a login: two compilations through ccache.
const COMPILE: &str = "set -eu
. /etc/profile.d/hearthfs.sh
printf 'int f(int x) { return x * 2; }\n' >a.c
ccache gcc -c a.c -o a.o
ccache gcc -c a.c -o a.o
echo \"$CCACHE_DIR\"
ccache --print-stats | grep -E '^(direct_cache_hit|preprocessed_cache_hit|cache_miss)'
";

#[test]
fn service_systemd_recipe_of_the_readme_as_an_ordinary_user() {
    let name = "service_systemd_recipe_of_the_readme_as_an_ordinary_user";
    if !need(name, "ccache") || !need(name, "gcc") {
        return;
    }
    let booted = match Booted::start(Store::dir) {
        Ok(booted) => booted,
        Err(reason) => return skipped(name, reason),
    };
    booted.good("mkdir -p /etc/profile.d /home/user/here && chown -R 65534:65534 /home/user");
    booted.checkout();
    // The program cannot be built or installed below /usr here, and there is no bucket; all else is as printed.
    let commands = recipe("\n## On a cluster\n");
    let (build, rest) = commands.split_once('\n').must("several commands");
    assert!(build.starts_with("cargo build ") && build.ends_with(" /usr/bin/"), "{build}");
    let rest = rest.replace("s3://my-bucket/cache", "file:///srv/store");
    booted.good(&format!("set -e; cd /etc/hearthfs/checkout\n{rest}"));

    let user = |words: &str| {
        let id = "setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/home/user";
        booted.good(&format!("cd /home/user/here; {id} {words}"))
    };
    std::fs::write(booted.site.path().join("etc/hearthfs/compile.sh"), COMPILE).must("write");
    let said = user("sh /etc/hearthfs/compile.sh");
    assert!(said.starts_with("/mnt/cache/ccache\n"), "{said}");
    let counts = |name: &str| -> u64 {
        let line = said.lines().find_map(|line| line.strip_prefix(name)).must(name);
        line.trim().parse().must("a count")
    };
    let hits = counts("direct_cache_hit") + counts("preprocessed_cache_hit");
    assert_eq!((hits, counts("cache_miss")), (1, 1), "{said}");
    assert_eq!(booted.good("stat -c %a /mnt/cache/ccache /mnt/cache/vllm"), "1777\n1777");

    units_get_what_works(&booted);

    // Whatever happens to the mount, the next login compiles.
    booted.good(&format!("systemctl stop {UNIT}"));
    let said = user(
        "sh -c '. /etc/profile.d/hearthfs.sh; ccache gcc -c a.c -o a.o && echo ${CCACHE_DIR-none}'",
    );
    assert_eq!(said, "none");
}

/// Another unit gets the directories that work at its start, as its own user; and it starts even if none does.
fn units_get_what_works(booted: &Booted) {
    let unit = "[Service]\nType=oneshot\nUser=65534\nEnvironment=GOCACHE=/own SECRET=abc\nRemainAfterExit=yes\n\
                ExecStart=/bin/sh -c 'env; ls -l /run/hearthfs-job.service'\n";
    let dir = booted.site.path().join("etc/hearthfs");
    std::fs::write(dir.join("job.service"), unit).must("write a unit");
    booted.good(
        "cp /etc/hearthfs/job.service /etc/systemd/system/ && mkdir /etc/systemd/system/job.service.d
         cp /etc/hearthfs/checkout/systemd/hearthfs-clients.conf /etc/systemd/system/job.service.d/
         systemctl daemon-reload",
    );
    let run = || {
        booted.good("journalctl --rotate -q; systemctl restart job.service");
        let id = booted.property("job.service", "InvocationID");
        booted.good(&format!("journalctl --sync; journalctl -o cat _SYSTEMD_INVOCATION_ID={id}"))
    };
    eventually(LIMIT_MS, "a unit gets what works", || {
        let said = run();
        let has = |line: &str| said.lines().any(|said| said == line);
        let good = has("CCACHE_DIR=/mnt/cache/ccache") && has("TRITON_CACHE_DIR=/mnt/cache/triton");
        assert!(has("GOCACHE=/own") && !said.contains("=/mnt/cache/go-build"), "{said}");
        assert!(!said.contains(" before"), "a file with secrets is left: {said}");
        if good { Ok(()) } else { Err(said) }
    });
    // Nothing is mounted, and the service cannot be started either.
    booted
        .good(&format!("systemctl stop {UNIT}; mv /etc/hearthfs/cluster.toml /etc/hearthfs/away"));
    let said = run();
    assert!(said.contains("GOCACHE=/own") && !said.contains("=/mnt/cache/"), "{said}");
    booted.good(&format!(
        "mv /etc/hearthfs/away /etc/hearthfs/cluster.toml; systemctl reset-failed; systemctl start {UNIT}"
    ));
}
