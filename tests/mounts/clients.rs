//! Real compilers and frameworks on two nodes, unmodified, and replays of those that cannot run here.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::harness::command::{Said, is_there, need, run, wait};
use crate::harness::node::dress;
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, eventually, in_both_modes, is_root, now, skipped, sleep_ms, tree,
};

pub(crate) const LIMIT_MS: u64 = 180_000;

pub(crate) fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(name)
}

/// Returns the Python of the environment that `.ci/run` makes, or else the system's.
pub(crate) fn python() -> Option<PathBuf> {
    if let Some(set) = std::env::var_os("HEARTHFS_CLIENTS_PYTHON") {
        return Some(set.into());
    }
    is_there("python3").then(|| "python3".into())
}

/// Returns a Python that can import `module`, or reports the skip.
pub(crate) fn python_with(test: &str, module: &str) -> Option<PathBuf> {
    let Some(python) = python() else {
        skipped(test, "python3 is not installed");
        return None;
    };
    let mut probe = Command::new(&python);
    probe.args(["-c", &format!("import {module}")]);
    if run(&mut probe, LIMIT_MS).status.success() {
        return Some(python);
    }
    skipped(test, format_args!("Python cannot import {module}; HEARTHFS_CLIENTS_PYTHON names one"));
    None
}

pub(crate) fn command(cluster: &Cluster, program: &Path, name: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    dress(&mut command, cluster.site.path());
    // Some machines set this, which hides what CPython does to a cache directory.
    command.env_remove("PYTHONDONTWRITEBYTECODE");
    if !name.is_empty() {
        command.arg(script(name));
    }
    command.args(args).current_dir(cluster.site.path());
    command
}

/// Returns a command that sees `node` at a path which is the same for all nodes, and that path.
///
/// Several clients put absolute paths into their entries or keys, so all nodes of a cluster must be
/// mounted at one path. On one machine each process gets a mount namespace of its own for that.
/// Without root there is none, and the client must be told to leave paths out.
pub(crate) fn at_one_path(cluster: &Cluster, node: &Node, program: &Path) -> (Command, PathBuf) {
    if !is_root() || !is_there("unshare") {
        return (command(cluster, program, "", &[]), node.mount.clone());
    }
    let common = cluster.site.dir("common");
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
    let words = ["-m", "sh", "-c", script, "sh"];
    let mut command = command(cluster, Path::new("unshare"), "", &words);
    command.args([&node.mount, &common]).arg(program);
    (command, common)
}

pub(crate) fn jax(
    cluster: &Cluster,
    python: &Path,
    node: &Node,
    dir: &str,
    args: &[&str],
) -> Command {
    let (mut command, mount) = at_one_path(cluster, node, python);
    command.arg(script("jax_program.py")).args(args);
    command.env("JAX_COMPILATION_CACHE_DIR", mount.join(dir));
    if mount == node.mount {
        // By default the directory's own path goes into each key.
        command.env("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none");
    }
    command.env("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0");
    command.env("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1");
    command.env("JAX_PLATFORMS", "cpu");
    command
}

#[track_caller]
pub(crate) fn json(said: Said) -> Value {
    let out = said.good();
    let line = out.lines().last().must("a line of JSON");
    serde_json::from_str(line).must(line)
}

#[track_caller]
fn no_warnings(said: &Value) {
    assert_eq!(said["warnings"].as_array().map(Vec::len), Some(0), "{said:#}");
}

fn clients_jax_cold_on_one_node_warm_on_the_other(io: Io) {
    let test = format!("clients_jax::{}", io.word());
    let Some(python) = python_with(&test, "jax") else { return };
    let cluster = Cluster::two(io);
    let cold = json(run(&mut jax(&cluster, &python, &cluster.a, "jax", &["1", "0"]), LIMIT_MS));
    assert_eq!(cold["hits"], 0, "{cold:#}");
    let misses = cold["misses"].as_u64().must("a count");
    assert!(misses >= 3, "{cold:#}");
    no_warnings(&cold);
    cluster.a.drain();
    let warm = json(run(&mut jax(&cluster, &python, &cluster.b, "jax", &["1", "0"]), LIMIT_MS));
    assert_eq!(
        (warm["hits"].as_u64(), &warm["misses"]),
        (Some(misses), &Value::from(0)),
        "{warm:#}"
    );
    assert_eq!(warm["results"], cold["results"]);
    no_warnings(&warm);
    tree::converge(&cluster.a.mount, &cluster.b.mount, 10_000);
}
in_both_modes!(clients_jax_cold_on_one_node_warm_on_the_other);

/// With a limit of its own JAX writes a file on each hit. That makes no commit, and on every node
/// each entry has that file.
#[test]
fn clients_jax_with_a_size_limit() {
    let Some(python) = python_with("clients_jax_with_a_size_limit", "jax, filelock") else {
        return;
    };
    let cluster = Cluster::two(Io::best());
    let jax = |node: &Node, variant: &str| {
        let mut command = jax(&cluster, &python, node, "jax", &[variant, "0"]);
        let said = json(run(command.env("JAX_COMPILATION_CACHE_MAX_SIZE", "100000000"), LIMIT_MS));
        no_warnings(&said);
        (said["hits"].as_u64().must("a count"), said["misses"].as_u64().must("a count"))
    };
    let (_, misses) = jax(&cluster.a, "1");
    assert!(misses >= 3, "{misses} programs");
    cluster.a.drain();
    let commits =
        |node: &Node| node.status()["counters"]["commits_written"].as_u64().must("a count");
    let before = commits(&cluster.a);
    let times = |node: &Node| {
        let all = tree::files_below(&node.at("jax")).into_iter();
        let is_time = |at: &PathBuf| at.to_string_lossy().ends_with("-atime");
        all.filter(is_time).map(|at| std::fs::read(node.at("jax").join(at)).must("read")).max()
    };
    let time = times(&cluster.a);
    assert_eq!(jax(&cluster.a, "1"), (misses, 0));
    assert_ne!(times(&cluster.a), time, "a hit is noted at once");
    eventually(10_000, "nothing is pending", || {
        match cluster.a.status()["backlog"]["records"].as_u64() {
            Some(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    assert_eq!(commits(&cluster.a), before, "a hit is no commit");
    // The other node gets hits, and reads the time of every entry when it writes one of its own.
    assert_eq!(jax(&cluster.b, "1"), (misses, 0));
    let (hits, fresh) = jax(&cluster.b, "2");
    assert!(fresh > 0, "{hits} hits");
    cluster.settle();
    assert_eq!(jax(&cluster.a, "2"), (hits + fresh, 0));
    for node in [&cluster.a, &cluster.b] {
        assert_eq!(node.status()["incomplete"], 0, "JAX writes as its profile states");
    }
}

/// Eight processes at once over both nodes, all with the same programs, without a warning.
#[test]
fn clients_jax_eight_processes_at_once() {
    let Some(python) = python_with("clients_jax_eight_processes_at_once", "jax") else { return };
    let cluster = Cluster::two(Io::best());
    let running: Vec<_> = (0..8)
        .map(|k| {
            let node = if k % 2 == 0 { &cluster.a } else { &cluster.b };
            let mut command = jax(&cluster, &python, node, "jax", &["2", "0"]);
            thread(move || json(run(&mut command, LIMIT_MS)))
        })
        .collect();
    let said: Vec<Value> = running.into_iter().map(|one| one.join().must("a process")).collect();
    for one in &said {
        no_warnings(one);
        assert_eq!(one["results"], said[0]["results"]);
    }
    cluster.settle();
    let all = tree::converge(&cluster.a.mount, &cluster.b.mount, 15_000);
    assert!(all.len() >= 4, "{all:?}");
    let warm = json(run(&mut jax(&cluster, &python, &cluster.b, "jax", &["2", "0"]), LIMIT_MS));
    assert_eq!(warm["misses"], 0, "{warm:#}");
}

/// A writer that is killed as its entry's name appears leaves nothing that a later run warns about.
#[test]
fn clients_jax_killed_writer() {
    let Some(python) = python_with("clients_jax_killed_writer", "jax") else { return };
    let cluster = Cluster::two(Io::best());
    let dir = cluster.a.at("jax");
    std::fs::create_dir(&dir).must("mkdir");
    for round in 0..4 {
        let variant = format!("{}", 30 + round);
        let before = tree::texts(&dir);
        let mut command = jax(&cluster, &python, &cluster.a, "jax", &[&variant, "8"]);
        let quiet = command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = quiet.spawn().must("start JAX");
        // The fourth new name is the large program's.
        let start = now();
        loop {
            let fresh = tree::texts(&dir).len() - before.len();
            let ended = child.try_wait().must("poll JAX").is_some();
            if fresh >= 4 + round % 2 || ended || start.elapsed().as_secs() > 90 {
                break;
            }
            sleep_ms(1);
        }
        drop(child.kill());
        wait(&mut child, 10_000).must("a killed process ends");
    }
    cluster.settle();
    for node in [&cluster.a, &cluster.b] {
        for round in 0..4 {
            let variant = format!("{}", 30 + round);
            let mut command = jax(&cluster, &python, node, "jax", &[&variant, "8"]);
            let later = json(run(&mut command, LIMIT_MS));
            no_warnings(&later);
        }
        node.drain();
        sleep_ms(1_200);
    }
    let mut command = jax(&cluster, &python, &cluster.b, "jax", &["30", "8"]);
    let warm = json(run(&mut command, LIMIT_MS));
    assert_eq!(warm["misses"], 0, "the cache is repaired: {warm:#}");
}

fn clients_numba(io: Io) {
    let Some(python) = python_with(&format!("clients_numba::{}", io.word()), "numba") else {
        return;
    };
    let cluster = Cluster::two(io);
    let numba = |node: &Node| {
        let mut command = command(&cluster, &python, "numba_program.py", &[]);
        command.env("NUMBA_CACHE_DIR", node.at("numba"));
        json(run(&mut command, LIMIT_MS))
    };
    let cold = numba(&cluster.a);
    assert_eq!((&cold["hits"], &cold["misses"]), (&Value::from(0), &Value::from(2)), "{cold:#}");
    cluster.a.drain();
    sleep_ms(1_150);
    let warm = numba(&cluster.b);
    assert_eq!((&warm["hits"], &warm["misses"]), (&Value::from(2), &Value::from(0)), "{warm:#}");
    assert_eq!(warm["results"], cold["results"]);
    let listed = tree::read(&cluster.b.mount).must("read");
    assert!(listed.keys().all(|path| !path.to_string_lossy().contains(".tmp.")), "{listed:?}");
}
in_both_modes!(clients_numba);

#[test]
fn clients_triton_without_a_gpu() {
    const NAME: &str = "clients_triton_without_a_gpu";
    let Some(python) = python_with(NAME, "triton") else { return };
    if !is_root() || !need(NAME, "unshare") {
        skipped(NAME, "a mount namespace needs root");
        return;
    }
    let cluster = Cluster::two(Io::best());
    let triton = |node: &Node| {
        std::fs::create_dir_all(node.at("triton")).must("mkdir");
        let (mut command, mount) = at_one_path(&cluster, node, &python);
        command.arg(script("triton_kernel.py")).env("TRITON_CACHE_DIR", mount.join("triton"));
        json(run(&mut command, LIMIT_MS))
    };
    let cold = triton(&cluster.a);
    assert!(cold["new"].as_array().must("a list").len() >= 6, "{cold:#}");
    cluster.a.drain();
    sleep_ms(1_150);
    let warm = triton(&cluster.b);
    assert_eq!(warm["new"], Value::Array(Vec::new()), "{warm:#}");
    assert_eq!(warm["cubin"], cold["cubin"]);
}

fn compile(cluster: &Cluster, node: &Node, source: &str, name: &str) -> String {
    let log = cluster.site.path().join(format!("{name}.stats"));
    let mut ccache = command(cluster, Path::new("ccache"), "", &["cc", "-O1", "-c", source, "-o"]);
    ccache.arg(format!("{name}.o")).env("CCACHE_DIR", node.at("ccache"));
    ccache.env("CCACHE_STATSLOG", &log).env("CCACHE_COMPILERCHECK", "content");
    run(&mut ccache, LIMIT_MS).good();
    std::fs::read_to_string(&log).must("ccache's own account")
}

fn clients_ccache(io: Io) {
    if !need(&format!("clients_ccache::{}", io.word()), "ccache") {
        return;
    }
    let cluster = Cluster::two(io);
    for k in 0..6 {
        let text = format!("int f{k}(int x) {{ return x * {k}; }}\n");
        std::fs::write(cluster.site.path().join(format!("f{k}.c")), text).must("write");
    }
    for k in 0..3 {
        let said = compile(&cluster, &cluster.a, &format!("f{k}.c"), &format!("cold{k}"));
        assert!(said.contains("cache_miss") && !said.contains("cache_hit"), "{said}");
    }
    cluster.a.drain();
    sleep_ms(1_150);
    for k in 0..3 {
        let said = compile(&cluster, &cluster.b, &format!("f{k}.c"), &format!("warm{k}"));
        assert!(said.contains("cache_hit") && !said.contains("error"), "{said}");
        let object = |name: &str| std::fs::read(cluster.site.path().join(format!("{name}{k}.o")));
        assert!(object("warm").must("read") == object("cold").must("read"));
    }
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (cluster, node) = (&cluster, if number % 2 == 0 { &cluster.a } else { &cluster.b });
            scope.spawn(move || {
                for k in 0..6 {
                    compile(cluster, node, &format!("f{k}.c"), &format!("busy{number}-{k}"));
                }
            });
        }
    });
}
in_both_modes!(clients_ccache);

/// Returns a counter of ccache's own statistics on a node.
pub(crate) fn counter(cluster: &Cluster, node: &Node, name: &str) -> u64 {
    let mut ccache = command(cluster, Path::new("ccache"), "", &["--print-stats"]);
    let out = run(ccache.env("CCACHE_DIR", node.at("ccache")), LIMIT_MS).good();
    let line = out.lines().find_map(|line| line.strip_prefix(&format!("{name}\t")));
    line.must(&out).parse().must("a count")
}

/// Statistics, locks and temporary files of ccache stay on their node; results go to all.
#[test]
fn clients_ccache_keeps_its_statistics() {
    if !need("clients_ccache_keeps_its_statistics", "ccache") {
        return;
    }
    let mut cluster = Cluster::two(Io::best());
    std::fs::write(cluster.site.path().join("f.c"), "int f(int x) { return x; }\n").must("write");
    compile(&cluster, &cluster.a, "f.c", "cold");
    cluster.a.drain();
    let own = |node: &Node| -> Vec<String> {
        let all =
            tree::files_below(&node.at("ccache")).into_iter().map(|at| at.display().to_string());
        all.filter(|at| at.ends_with("/stats") || at.ends_with("CACHEDIR.TAG")).collect()
    };
    assert!(!own(&cluster.a).is_empty(), "ccache keeps statistics");
    eventually(10_000, "a result arrives", || {
        let all = tree::files_below(&cluster.b.at("ccache"));
        let is_result = |at: &PathBuf| at.to_string_lossy().ends_with('R');
        if all.iter().any(is_result) { Ok(()) } else { Err(format!("{all:?}")) }
    });
    assert_eq!(own(&cluster.b), Vec::<String>::new(), "another node does not list them");
    let warm = compile(&cluster, &cluster.b, "f.c", "warm");
    assert!(warm.contains("cache_hit"), "{warm}");
    let again = compile(&cluster, &cluster.a, "f.c", "again");
    assert!(again.contains("cache_hit"), "{again}");
    for round in 0..2 {
        let counts = |node: &Node| {
            let hits = counter(&cluster, node, "direct_cache_hit");
            (hits, counter(&cluster, node, "cache_miss"))
        };
        assert_eq!(counts(&cluster.a), (1, 1), "round {round}: its own calls");
        assert_eq!(counts(&cluster.b), (1, 0), "round {round}: its own calls");
        cluster.a.stop();
        cluster.a.up();
    }
    let commits =
        |node: &Node| node.status()["counters"]["commits_written"].as_u64().must("a count");
    let sent = |node: &Node| {
        node.drain();
        commits(node)
    };
    // A hit sets the times of what it used. Between two marker files there is nothing for other nodes.
    let marked = |name: &str| {
        let before = commits(&cluster.a);
        std::fs::write(cluster.a.at(name), name).must("write");
        eventually(10_000, "it is remote", || {
            let nothing_waits = cluster.a.status()["backlog"]["records"] == 0;
            let sent = nothing_waits && commits(&cluster.a) > before;
            if sent { Ok(()) } else { Err("not yet".to_owned()) }
        });
        commits(&cluster.a)
    };
    let zero = || {
        let mut zero = command(&cluster, Path::new("ccache"), "", &["--zero-stats"]);
        run(zero.env("CCACHE_DIR", cluster.a.at("ccache")), LIMIT_MS).good();
    };
    // The first time it makes the directories of all statistics, which are shared. Later each call
    // makes only one.
    zero();
    let before = marked("one");
    for round in 0..3 {
        let hit = compile(&cluster, &cluster.a, "f.c", &format!("hit{round}"));
        assert!(hit.contains("direct_cache_hit"), "{hit}");
    }
    assert_eq!(marked("two"), before + 1, "a hit is no commit");
    let before = sent(&cluster.a);
    zero();
    assert_eq!(counter(&cluster, &cluster.a, "cache_miss"), 0);
    assert_eq!(sent(&cluster.a), before, "statistics are not sent to other nodes");
}

/// The server of sccache for one node. It keeps its list of the cached entries for as long as it runs.
struct Sccache<'a> {
    cluster: &'a Cluster,
    program: &'a Path,
    dir: PathBuf,
    socket: PathBuf,
}

impl Sccache<'_> {
    fn run(&self, args: &[&str]) -> Said {
        let mut sccache = command(self.cluster, self.program, "", args);
        sccache.env("SCCACHE_DIR", &self.dir).env("SCCACHE_SERVER_UDS", &self.socket);
        run(&mut sccache, LIMIT_MS)
    }

    /// Compiles one file, and returns how many hits and misses the server has had.
    fn compile(&self, source: &str, object: &str) -> (u64, u64) {
        self.run(&["cc", "-O1", "-c", source, "-o", object]).good();
        let said = self.run(&["--show-stats", "--stats-format=json"]).good();
        let said: Value = serde_json::from_str(&said).must(&said);
        let stats = &said["stats"];
        assert_eq!(stats["cache_write_errors"], 0, "{stats:#}");
        let count = |what: &str| {
            let counts = stats[what]["counts"].as_object().must("counts of each language");
            counts.values().filter_map(Value::as_u64).sum()
        };
        assert_eq!(count("cache_errors"), 0, "{stats:#}");
        (count("cache_hits"), count("cache_misses"))
    }
}

impl Drop for Sccache<'_> {
    fn drop(&mut self) {
        self.run(&["--stop-server"]);
    }
}

fn clients_sccache(io: Io) {
    let test = format!("clients_sccache::{}", io.word());
    // Its Python package puts the program beside the interpreter.
    let beside =
        python().map(|python| python.with_file_name("sccache")).filter(|path| path.exists());
    let program = beside.unwrap_or_else(|| "sccache".into());
    if !program.is_absolute() && !need(&test, "sccache") {
        return;
    }
    let cluster = Cluster::two(io);
    let server = |node: &Node, name: &str| Sccache {
        cluster: &cluster,
        program: &program,
        dir: node.at("sccache"),
        socket: cluster.site.path().join(format!("{name}.sock")),
    };
    std::fs::write(cluster.site.path().join("f.c"), "int f(int x) { return 3 * x; }\n")
        .must("write");
    let cold = server(&cluster.a, "a");
    assert_eq!(cold.compile("f.c", "a.o"), (0, 1), "cold");
    drop(cold);
    cluster.a.drain();
    // It lists the cache once, at its start.
    sleep_ms(1_150);
    assert_eq!(server(&cluster.b, "b").compile("f.c", "b.o"), (1, 0), "warm on the other node");
    let object = |name: &str| std::fs::read(cluster.site.path().join(name)).must("read");
    assert!(object("a.o") == object("b.o"));
}
in_both_modes!(clients_sccache);

fn clients_go(io: Io) {
    if !need(&format!("clients_go::{}", io.word()), "go") {
        return;
    }
    let cluster = Cluster::two(io);
    let module = cluster.site.dir("module");
    std::fs::write(module.join("go.mod"), "module example\n").must("write");
    let source = "package example\n\nfunc Double(x int) int { return 2 * x }\n";
    std::fs::write(module.join("double.go"), source).must("write");
    let build = |node: &Node| {
        let mut go = command(&cluster, Path::new("go"), "", &["build", "-x", "."]);
        go.env("GOCACHE", node.at("go")).env("GOFLAGS", "-mod=mod").env("GOTOOLCHAIN", "local");
        go.env("GOPATH", cluster.site.path().join("gopath")).current_dir(&module);
        let said = run(&mut go, LIMIT_MS);
        assert!(said.status.success(), "{said:?}");
        said.err.lines().filter(|line| line.contains("/compile ")).count()
    };
    assert!(build(&cluster.a) >= 1, "cold");
    assert_eq!(build(&cluster.a), 0, "warm on the same node");
    cluster.a.drain();
    sleep_ms(1_150);
    assert_eq!(build(&cluster.b), 0, "warm on the other node");
}
in_both_modes!(clients_go);
