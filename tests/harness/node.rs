//! Daemons on real mounts: one alone, or two as the nodes of one cluster.
//!
//! Owns their directories, processes, mounts and logs. Must never leave a mount or a process behind,
//! whatever the test did, and never touch those of others: everything is by path and by process id.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::command::{Said, run, wait};
use super::time::{now, sleep_ms, thread};
use super::turn::Turn;
use super::{Must as _, Options, Store, SyscallProcess, is_root, say, within};

/// How long a mount may take to answer its first stat.
const READY_MS: u64 = 20_000;
/// The lifetime of a test's daemon. After it the daemon is killed, so that whatever hangs on its mount ends.
const LIFE_MS: u64 = 300_000;
/// How long a killed daemon may take to end: a thread that waits for a busy disk ends after the
/// disk has answered.
const KILLED_MS: u64 = 60_000;
/// How long a regular stop may take: the drain's own deadline is shorter.
const STOP_MS: u64 = 90_000;
/// The prefix of the names of the threads that read requests from the kernel.
const REQUEST_THREADS: &str = "fuser-";
/// The most bytes of a log that are shown when a test fails.
const LOG_SHOWN_BYTES: usize = 20_000;

/// The directory of one test, on a real disk; everything of the test is below it.
#[derive(Debug)]
pub(crate) struct Site {
    dir: Option<tempfile::TempDir>,
    _turn: Turn,
}

impl Site {
    /// Makes one below `HEARTHFS_TEST_DIR`, or below the system's directory for temporary files.
    pub(crate) fn new() -> Self {
        Self::with(Turn::shared())
    }

    /// Makes one for a test that needs the machine exclusively.
    pub(crate) fn alone() -> Self {
        Self::with(Turn::alone())
    }

    fn with(turn: Turn) -> Self {
        let above =
            std::env::var_os("HEARTHFS_TEST_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        let made = tempfile::Builder::new().prefix("hfs-").tempdir_in(&above);
        let dir = made.must(format_args!("make a directory in {}", above.display()));
        for name in ["run", "home", "xdg"] {
            std::fs::create_dir(dir.path().join(name)).must("make the site's directories");
        }
        Self { dir: Some(dir), _turn: turn }
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        self.dir.as_ref().map_or(Path::new("/nonexistent"), tempfile::TempDir::path)
    }

    /// Returns the path of a directory in it, made when it is missing.
    pub(crate) fn dir(&self, name: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(&path).must(format_args!("make {}", path.display()));
        path
    }

    /// Returns a command of the program with this site's own home and runtime directories.
    pub(crate) fn hearthfs(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearthfs"));
        dress(&mut command, self.path());
        command
    }
}

/// Sets a site's own directories for a command, and removes the caller's settings.
pub(crate) fn dress(command: &mut Command, site: &Path) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let ours = [
            "HEARTHFS_",
            "AWS_",
            "AZURE_",
            "CLOUDSDK_",
            "GOOGLE_",
            "STORAGE_EMULATOR_",
            "RUST_LOG",
        ];
        if ours.iter().any(|ours| text.starts_with(ours)) {
            command.env_remove(&name);
        }
    }
    // A test must never query the machine's own cloud for an identity.
    for name in ["GCE_METADATA_HOST", "GCE_METADATA_IP"] {
        command.env(name, "127.0.0.1:9");
    }
    // A test that counts requests, or takes the store away, sets its own prefetch.
    command.env("HEARTHFS_PREFETCH", "0B");
    command.env("HEARTHFS_RUNTIME_DIR", site.join("run"));
    command.env("XDG_RUNTIME_DIR", site.join("run"));
    command.env("XDG_CACHE_HOME", site.join("xdg"));
    command.env("XDG_CONFIG_HOME", site.join("home"));
    command.env("XDG_STATE_HOME", site.join("home"));
    command.env("HOME", site.join("home"));
}

impl Drop for Site {
    fn drop(&mut self) {
        for mounted in mounts_below(self.path()) {
            unmount(&mounted);
        }
        if !mounts_below(self.path()).is_empty() {
            // Never delete files through a mount that is still there.
            drop(self.dir.take().map(tempfile::TempDir::keep));
        }
    }
}

/// Returns the mount points below `dir`, innermost first, without accessing them.
pub(crate) fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mountinfo").must("read the mount table");
    let mut found: Vec<PathBuf> = text
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .map(|path| {
            let escaped = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
            PathBuf::from(
                escaped.iter().fold(path.to_owned(), |path, (from, to)| path.replace(from, to)),
            )
        })
        .filter(|path| path.starts_with(dir))
        .collect();
    found.sort();
    found.reverse();
    found
}

/// Reports whether something is mounted exactly there.
pub(crate) fn is_mounted(at: &Path) -> bool {
    mounts_below(at).iter().any(|path| path == at)
}

/// Removes a mount from the tree at once, whatever its daemon does.
pub(crate) fn unmount(at: &Path) {
    let mut command = if is_root() { Command::new("umount") } else { Command::new("fusermount3") };
    command.arg(if is_root() { "-l" } else { "-uz" }).arg(at);
    let said = run(&mut command, 10_000);
    if !said.status.success() {
        say(format_args!("unmount {}: {}", at.display(), said.err.trim()));
    }
}

/// One daemon with a mount point, a cache directory and a log of its own.
#[derive(Debug)]
pub(crate) struct Node {
    name: String,
    /// Where it is mounted.
    pub(crate) mount: PathBuf,
    /// Its cache directory.
    pub(crate) cache: PathBuf,
    config: PathBuf,
    log: PathBuf,
    site: PathBuf,
    remote: Option<String>,
    env: Vec<(String, String)>,
    options: Options,
    child: Option<Child>,
    daemon: Arc<AtomicI32>,
    expected_errors: Vec<String>,
    _watch: SyncSender<()>,
}

impl Node {
    /// Starts a node of `site` and waits until it answers.
    pub(crate) fn start(site: &Site, name: &str, store: Option<&Store>, options: Options) -> Self {
        let cache = site.path().join(format!("{name}.cache"));
        Self::start_in(site, name, store, options, &cache)
    }

    /// Starts a node with its cache directory at a place of the test's choice.
    pub(crate) fn start_in(
        site: &Site,
        name: &str,
        store: Option<&Store>,
        options: Options,
        cache: &Path,
    ) -> Self {
        let daemon = Arc::new(AtomicI32::new(0));
        let mount = site.dir(name);
        let watch = watch(name.to_owned(), mount.clone(), Arc::clone(&daemon));
        let mut node = Self {
            name: name.to_owned(),
            mount,
            cache: cache.to_owned(),
            config: site.path().join(format!("{name}.toml")),
            log: site.path().join(format!("{name}.log")),
            site: site.path().to_owned(),
            remote: store.map(Store::url),
            env: store.map(Store::env).unwrap_or_default(),
            options,
            child: None,
            daemon,
            expected_errors: Vec::new(),
            _watch: watch,
        };
        node.up();
        node
    }

    /// Returns the path of `name` on this node's mount.
    pub(crate) fn at(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.mount.join(Path::new(name.as_ref()))
    }

    /// Replaces the options for the next start.
    pub(crate) fn set_options(&mut self, options: Options) {
        self.options = options;
    }

    /// Sets another store for the next start.
    pub(crate) fn set_remote(&mut self, url: &str) {
        self.remote = Some(url.to_owned());
    }

    /// Allows ERROR lines with this text in the log.
    pub(crate) fn expect_error(&mut self, text: &str) {
        self.expected_errors.push(text.to_owned());
    }

    fn dress(&self, command: &mut Command) {
        dress(command, &self.site);
        command.envs(self.env.iter().chain(&self.options.env).map(|(k, v)| (k, v)));
    }

    fn mount_command(&self) -> Command {
        let mut words: Vec<&OsStr> = self.options.wrapper.iter().map(OsStr::new).collect();
        words.push(OsStr::new(env!("CARGO_BIN_EXE_hearthfs")));
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).arg("mount").arg(&self.mount);
        command.arg("--cache-dir").arg(&self.cache).arg("--config").arg(&self.config);
        if let Some(url) = &self.remote {
            command.arg("--remote").arg(url);
        }
        command.args(&self.options.args);
        self.dress(&mut command);
        command
    }

    fn open_log(&self) -> File {
        let opened = OpenOptions::new().create(true).append(true).open(&self.log);
        opened.must("open a log")
    }

    /// Starts the daemon again, on the same directories.
    pub(crate) fn up(&mut self) {
        self.spawn();
        self.await_ready();
    }

    /// Starts the daemon without waiting for it.
    pub(crate) fn spawn(&mut self) {
        assert!(self.child.is_none(), "node {} runs already", self.name);
        std::fs::write(&self.config, self.options.toml()).must("write a configuration");
        let mut command = self.mount_command();
        command.process_group(0).stdin(Stdio::null());
        command.stdout(self.open_log()).stderr(self.open_log());
        let child = command.spawn().must("start a daemon");
        self.daemon.store(child.id() as i32, Ordering::Relaxed);
        self.child = Some(child);
    }

    /// Waits until a stat through the mount answers, ignoring a dead mount of an earlier daemon.
    pub(crate) fn await_ready(&mut self) {
        let start = now();
        loop {
            if is_mounted(&self.mount) && self.answers() {
                return;
            }
            let child = self.child.as_mut().must("a started daemon");
            if let Some(status) = child.try_wait().must("poll a daemon") {
                self.child = None;
                panic!("node {} ended at its start: {status}\n{}", self.name, self.log_tail());
            }
            let late = start.elapsed() > Duration::from_millis(READY_MS);
            assert!(!late, "node {} does not answer after {READY_MS} ms", self.name);
            sleep_ms(2);
        }
    }

    /// Reports whether a stat of the mount point succeeds and comes from the mount, not from the disk below.
    fn answers(&self) -> bool {
        let (mount, above) = (self.mount.clone(), self.site.clone());
        within(READY_MS, format_args!("stat of node {}", self.name), move || {
            let dev = |path: &Path| std::fs::metadata(path).map(|meta| meta.dev());
            let disk = dev(&above).must("stat above a mount");
            // The kernel may answer a stat from its cache after the daemon is dead, but not this.
            let alive = rustix::fs::statvfs(&mount).is_ok();
            alive && dev(&mount).is_ok_and(|mounted| mounted != disk)
        })
    }

    /// Returns the process id of the daemon itself, not of a wrapper.
    pub(crate) fn pid(&self) -> Pid {
        let mut raw = self.child.as_ref().must("a running daemon").id() as i32;
        if !self.options.wrapper.is_empty() {
            let children = std::fs::read_to_string(format!("/proc/{raw}/task/{raw}/children"));
            let children = children.must("find the daemon behind its wrapper");
            let first = children.split_whitespace().next().and_then(|word| word.parse().ok());
            raw = first.must("the daemon behind its wrapper");
        }
        Pid::from_raw(raw).must("a process id")
    }

    /// Stops every thread that answers the kernel, until the returned value is dropped; the rest of
    /// the daemon continues.
    pub(crate) fn freeze_requests(&self) -> SyscallProcess {
        let mut process = SyscallProcess::new();
        let tasks = format!("/proc/{}/task", self.pid().as_raw_nonzero());
        let mut count = 0;
        for entry in std::fs::read_dir(tasks).must("list the daemon's threads") {
            let dir = entry.must("list the daemon's threads").path();
            let comm = std::fs::read_to_string(dir.join("comm")).unwrap_or_default();
            if comm.starts_with(REQUEST_THREADS) {
                let name = dir.file_name().must("a thread's number").to_string_lossy().into_owned();
                process.freeze(name.parse().must("a thread's number")).must("hold a thread");
                count += 1;
            }
        }
        assert!(count > 0, "no thread of the daemon is called {REQUEST_THREADS}");
        process
    }

    /// Starts the daemon, which must refuse to mount, and returns its message.
    pub(crate) fn refused(&mut self) -> String {
        let before = self.log().len();
        self.spawn();
        let status = self.await_end(STOP_MS);
        let said = self.log().split_off(before);
        assert_eq!(status.code(), Some(2), "node {} is not refused: {said}", self.name);
        said
    }

    /// Runs these workers, kills the daemon after a time, and starts it again after all have noticed.
    pub(crate) fn kill_under<W: Send + 'static>(
        &mut self,
        workers: &mut Vec<W>,
        after_ms: u64,
        work: fn(&mut W),
    ) {
        let begin = |mut worker: W| {
            thread(move || {
                work(&mut worker);
                worker
            })
        };
        let running: Vec<_> = workers.drain(..).map(begin).collect();
        sleep_ms(after_ms);
        self.kill_only();
        for worker in running {
            workers.push(worker.join().must("a worker that ends with its daemon"));
        }
        self.up();
    }

    /// Kills the daemon at once and leaves its dead mount.
    pub(crate) fn kill_only(&mut self) {
        kill_process(self.pid(), Signal::KILL).must("kill a daemon");
        let mut child = self.child.take().must("a running daemon");
        self.daemon.store(0, Ordering::Relaxed);
        wait(&mut child, KILLED_MS).must("a killed daemon that ends");
    }

    /// Sends SIGTERM, waits, and returns the daemon's exit status.
    pub(crate) fn terminate(&mut self) -> ExitStatus {
        kill_process(self.pid(), Signal::TERM).must("ask a daemon to end");
        self.await_end(STOP_MS)
    }

    /// Waits until the daemon has ended by itself.
    pub(crate) fn await_end(&mut self, limit_ms: u64) -> ExitStatus {
        let mut child = self.child.take().must("a running daemon");
        let status = wait(&mut child, limit_ms);
        if status.is_none() {
            self.child = Some(child);
        } else {
            self.daemon.store(0, Ordering::Relaxed);
        }
        status.must(format_args!("node {} ends within {limit_ms} ms", self.name))
    }

    /// Stops the daemon as systemd would: it must drain, unmount and exit 0.
    pub(crate) fn stop(&mut self) {
        let status = self.terminate();
        assert!(status.success(), "node {} ended with {status}", self.name);
        assert!(!is_mounted(&self.mount), "node {} left its mount behind", self.name);
    }

    /// Runs a command of the program with this node's environment.
    pub(crate) fn command(&self, words: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hearthfs"));
        self.dress(&mut command);
        command.args(words);
        run(&mut command, STOP_MS)
    }

    /// Returns the `status --json` of this mount.
    pub(crate) fn status(&self) -> serde_json::Value {
        let mount = self.mount.to_string_lossy();
        let out = self.command(&["status", &mount, "--json"]).good();
        serde_json::from_str(&out).must(format_args!("parse the status {out:?}"))
    }

    /// Waits until everything published here is uploaded.
    pub(crate) fn drain(&self) {
        let mount = self.mount.to_string_lossy();
        self.command(&["drain", &mount, "--timeout", "60s"]).good();
    }

    /// Returns the configuration file.
    pub(crate) fn config_path(&self) -> PathBuf {
        self.config.clone()
    }

    /// Returns the path of the log.
    pub(crate) fn log_path(&self) -> String {
        self.log.to_string_lossy().into_owned()
    }

    /// Returns the log so far.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let mut from = log.len().saturating_sub(LOG_SHOWN_BYTES);
        while !log.is_char_boundary(from) {
            from += 1;
        }
        format!("---- log of node {} ----\n{}\n---- end ----", self.name, &log[from..])
    }

    fn unexpected_errors(&self) -> Vec<String> {
        let bad = |line: &&str| {
            let loud = line.contains(" ERROR ") || line.contains("\"level\":\"ERROR\"");
            let broken = line.contains("panicked at") || line.contains("fatal runtime error");
            (loud || broken) && !self.expected_errors.iter().any(|text| line.contains(text))
        };
        self.log().lines().filter(bad).map(str::to_owned).collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let raw = self.daemon.swap(0, Ordering::Relaxed);
            if let (false, Some(pid)) = (self.options.wrapper.is_empty(), Pid::from_raw(raw)) {
                // If a wrapper was started with --kill-child, this kills the daemon too.
                let _ = kill_process(pid, Signal::KILL);
            }
            drop(child.kill());
            let _ = wait(&mut child, 10_000);
        }
        if is_mounted(&self.mount) {
            unmount(&self.mount);
        }
        if std::thread::panicking() {
            say(self.log_tail());
            return;
        }
        let errors = self.unexpected_errors();
        if !errors.is_empty() {
            say(self.log_tail());
            panic!("node {} logged errors:\n{}", self.name, errors.join("\n"));
        }
    }
}

/// Kills a daemon that exceeds its lifetime; ends when the returned sender is dropped.
fn watch(name: String, mount: PathBuf, daemon: Arc<AtomicI32>) -> SyncSender<()> {
    let (alive, gone) = sync_channel::<()>(1);
    drop(thread(move || {
        let waited = gone.recv_timeout(Duration::from_millis(LIFE_MS));
        if waited != Err(RecvTimeoutError::Timeout) {
            return;
        }
        say(format_args!("node {name} ran longer than {LIFE_MS} ms and is killed"));
        if let Some(pid) = Pid::from_raw(daemon.load(Ordering::Relaxed)) {
            let _ = kill_process(pid, Signal::KILL);
        }
        unmount(&mount);
    }));
    alive
}

/// Two nodes over one store. Fields are dropped in this order: daemons first, then their disk.
#[derive(Debug)]
pub(crate) struct Cluster {
    /// One node.
    pub(crate) a: Node,
    /// The other.
    pub(crate) b: Node,
    /// Their store.
    pub(crate) store: Store,
    /// Their directory.
    pub(crate) site: Site,
}

impl Cluster {
    /// Starts two nodes over a shared directory.
    pub(crate) fn two(io: super::Io) -> Self {
        Self::with(Store::dir, &Options::new(io))
    }

    /// Starts two nodes over the given store, with the same options.
    pub(crate) fn with(store: impl FnOnce(&Site) -> Store, options: &Options) -> Self {
        let site = if options.alone { Site::alone() } else { Site::new() };
        let store = store(&site);
        let a = Node::start(&site, "a", Some(&store), options.clone());
        let b = Node::start(&site, "b", Some(&store), options.clone());
        Self { a, b, store, site }
    }

    /// Waits until everything published on either node is uploaded and visible on both.
    pub(crate) fn settle(&self) {
        self.a.drain();
        self.b.drain();
    }
}

/// One node without a remote.
pub(crate) struct Alone {
    pub(crate) node: Node,
    _site: Site,
}

impl Alone {
    /// Starts the node.
    pub(crate) fn new(io: super::Io) -> Self {
        Self::with(Options::new(io))
    }

    /// Starts the node with these options.
    pub(crate) fn with(options: Options) -> Self {
        let site = if options.alone { Site::alone() } else { Site::new() };
        let node = Node::start(&site, "m", None, options);
        Self { node, _site: site }
    }

    /// Returns the path of `name` on the mount.
    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.node.at(name)
    }
}
