//! The savings that `run` and `status` report, compared with the clients' own figures, on both nodes.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::clients::{LIMIT_MS, counter, python_with, script};
use crate::copies::SEEN_MS;
use crate::harness::command::{is_there, need, run};
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, eventually, in_both_modes, is_root, skipped,
    sleep_ms,
};

/// The figures of `run`: entries served locally, fetched, and compiled, and the line of the time saved.
#[derive(Debug, PartialEq, Eq)]
struct Worth {
    local: u64,
    fetched: u64,
    compiled: u64,
    saved: String,
}

impl Worth {
    #[track_caller]
    fn read(text: &str) -> Self {
        let lines: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("hearthfs: ")).collect();
        let [local, fetched, compiled, saved] = lines[..] else { panic!("not four lines: {text}") };
        let number = |line: &str, what: &str| {
            assert!(line.contains(what), "{line}");
            line.split(' ').next().and_then(|word| word.parse().ok()).must(line)
        };
        Self {
            local: number(local, "served locally"),
            fetched: number(fetched, "fetched from other nodes"),
            compiled: number(compiled, "compiled here and published"),
            saved: saved.to_owned(),
        }
    }

    fn counts(&self) -> (u64, u64, u64) {
        (self.local, self.fetched, self.compiled)
    }
}

/// Runs a program with `run` on a node; returns its output, and the reported figures.
#[track_caller]
fn run_on(
    cluster: &Cluster,
    node: &Node,
    words: &[OsString],
    set: &[(&str, String)],
) -> (String, Worth) {
    let mut command = cluster.site.hearthfs();
    command.arg("run").arg("--mount").arg(&node.mount).arg("--").args(words);
    command.current_dir(cluster.site.path()).env_remove("PYTHONDONTWRITEBYTECODE");
    command.envs(set.iter().map(|(name, value)| (name, value)));
    let said = run(&mut command, LIMIT_MS);
    assert_eq!(said.code(), 0, "{said:?}");
    (said.out, Worth::read(&said.err))
}

/// Returns the totals of one client, as `status` tells them.
fn totals(node: &Node, client: &str) -> Value {
    node.status()["clients"][client].clone()
}

/// Waits until everything published on one node is on the other.
fn travel(cluster: &Cluster) {
    cluster.a.drain();
    sleep_ms(1_150);
}

fn words(program: &Path, args: &[&str]) -> Vec<OsString> {
    std::iter::once(program.into()).chain(args.iter().map(OsString::from)).collect()
}

/// Returns the last line of a program's own report.
#[track_caller]
fn account(out: &str) -> (u64, u64) {
    let said: Value = serde_json::from_str(out.lines().last().must("a line")).must(out);
    (said["hits"].as_u64().must("hits"), said["misses"].as_u64().must("misses"))
}

/// Runs a program cold on one node, then twice on the other, and compares its report with that of
/// `run` each time.
fn cold_and_warm(
    cluster: &Cluster,
    client: &str,
    on: impl Fn(&Node) -> (Vec<OsString>, Vec<(&'static str, String)>),
) {
    let go = |node: &Node| {
        let (words, set) = on(node);
        let (out, worth) = run_on(cluster, node, &words, &set);
        (account(&out), worth)
    };
    let ((hits, misses), cold) = go(&cluster.a);
    assert!(hits == 0 && misses > 0, "{hits} hits, {misses} misses");
    assert_eq!(cold.counts(), (0, 0, misses), "{client}, cold: {cold:?}");
    assert_eq!(cold.saved, "0.0 s saved (an estimate)");
    travel(cluster);
    let (other, warm) = go(&cluster.b);
    assert_eq!(other, (misses, 0), "{client}");
    assert_eq!(warm.counts(), (0, misses, 0), "{client}, warm on the other node: {warm:?}");
    let saved = totals(&cluster.b, client)["saved_ms"].as_u64().must("a time");
    assert!(saved > 0, "the other node has the times of the entries: {warm:?}");
    let (again, local) = go(&cluster.b);
    assert_eq!(again, (misses, 0), "{client}");
    assert_eq!(local.counts(), (misses, 0, 0), "{client}, warm again: {local:?}");
    let all = totals(&cluster.b, client);
    assert_eq!(all["saved_ms"], 2 * saved, "each hit saves the same");
    let counts = ["local", "fetched", "compiled"].map(|name| all[name].as_u64());
    assert_eq!(counts, [Some(misses), Some(misses), Some(0)], "{all}");
    let (own, at_home) = go(&cluster.a);
    assert_eq!(own, (misses, 0), "{client}");
    assert_eq!(at_home.counts(), (misses, 0, 0), "{client}, warm at home: {at_home:?}");
    assert_eq!(totals(&cluster.a, client)["saved_ms"], saved, "both nodes show the same");
}

#[test]
fn clients_figures_of_jax_are_its_own() {
    let Some(python) = python_with("clients_figures_of_jax_are_its_own", "jax") else { return };
    let cluster = Cluster::two(Io::best());
    cold_and_warm(&cluster, "jax", |_| {
        let program = script("jax_program.py");
        let words = [python.as_os_str(), program.as_os_str(), "1".as_ref(), "0".as_ref()];
        let set = [
            // By default the directory's own path goes into each key.
            ("JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES", "none"),
            ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0"),
            ("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1"),
            ("JAX_PLATFORMS", "cpu"),
        ];
        let set = set.map(|(name, value)| (name, value.to_owned()));
        (words.map(Into::into).into(), set.into())
    });
}

#[test]
fn clients_figures_of_numba_are_its_own() {
    let Some(python) = python_with("clients_figures_of_numba_are_its_own", "numba") else { return };
    let cluster = Cluster::two(Io::best());
    cold_and_warm(&cluster, "numba", |_| {
        let program = script("numba_program.py");
        (vec![python.clone().into(), program.into()], Vec::new())
    });
}

#[test]
fn clients_figures_of_triton_are_its_own() {
    const NAME: &str = "clients_figures_of_triton_are_its_own";
    let Some(python) = python_with(NAME, "triton") else { return };
    if !is_root() || !is_there("unshare") {
        skipped(NAME, "a mount namespace needs root and unshare");
        return;
    }
    let cluster = Cluster::two(Io::best());
    // Entries contain the path of the directory, so all nodes must see it at one path.
    let common = cluster.site.dir("common");
    cold_and_warm(&cluster, "triton", |node| {
        let bind = "mkdir -p \"$1/triton\" && mount --bind \"$1\" \"$2\" && shift 2 && exec \"$@\"";
        let mut all = words(Path::new("unshare"), &["-m", "sh", "-c", bind, "sh"]);
        let paths = [&node.mount, &common, &python, &script("triton_kernel.py")];
        all.extend(paths.map(|path| path.clone().into_os_string()));
        (all, vec![("TRITON_CACHE_DIR", common.join("triton").to_string_lossy().into_owned())])
    });
}

/// ccache counts over all its calls, each of which is a process of its own.
#[test]
fn clients_figures_of_ccache_are_its_own() {
    if !need("clients_figures_of_ccache_are_its_own", "ccache") {
        return;
    }
    let cluster = Cluster::two(Io::best());
    for k in 0..6 {
        let text = format!("int f{k}(int x) {{ return x * {k}; }}\n");
        std::fs::write(cluster.site.path().join(format!("f{k}.c")), text).must("write");
    }
    let own = |node: &Node| {
        let hits = ["direct_cache_hit", "preprocessed_cache_hit"];
        let hits = hits.map(|name| counter(&cluster, node, name)).iter().sum::<u64>();
        (hits, counter(&cluster, node, "cache_miss"))
    };
    let go = |node: &Node, sources: &str| {
        let each = format!("for k in {sources}; do ccache cc -O1 -c f$k.c -o f$k.o || exit; done");
        let set = [("CCACHE_COMPILERCHECK", "content".to_owned())];
        run_on(&cluster, node, &words(Path::new("sh"), &["-c", &each]), &set).1
    };
    assert_eq!(go(&cluster.a, "0 1 2 3").counts(), (0, 0, 4));
    assert_eq!(own(&cluster.a), (0, 4));
    assert_eq!(go(&cluster.a, "0 1").counts(), (2, 0, 0));
    travel(&cluster);
    let mixed = go(&cluster.b, "1 2 3 4 5");
    assert_eq!(mixed.counts(), (0, 3, 2));
    assert_eq!(go(&cluster.b, "0 1 2 3 4 5").counts(), (5, 1, 0));
    for (node, hits, misses) in [(&cluster.a, 2, 4), (&cluster.b, 9, 2)] {
        assert_eq!(own(node), (hits, misses), "ccache's own account");
        let all = totals(node, "ccache");
        let number = |name: &str| all[name].as_u64().must("a count");
        assert_eq!((number("local") + number("fetched"), number("compiled")), (hits, misses));
        assert!(number("saved_ms") > 0, "{all}");
    }
}

/// Writes an entry like a program that looks it up, compiles and writes.
fn compile(node: &Node, name: &str) {
    let script = format!("test -e {name} || {{ sleep 0.3; echo compiled > {name}; }}");
    let mut shell = Command::new("sh");
    // With shell builtins, so that it is one process.
    let said = run(shell.args(["-c", &script]).current_dir(&node.mount), 20_000);
    assert_eq!(said.code(), 0, "{said:?}");
}

/// Totals survive restarts and crashes, and other users can read them, but nothing else.
fn figures_last_and_are_for_all_users(io: Io) {
    let mut cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    std::fs::create_dir(cluster.a.at("jax")).must("mkdir");
    compile(&cluster.a, "jax/jit_f-1-cache");
    for _ in 0..3 {
        assert_eq!(std::fs::read(cluster.a.at("jax/jit_f-1-cache")).must("read"), b"compiled\n");
    }
    let all = totals(&cluster.a, "jax");
    assert_eq!((&all["local"], &all["compiled"]), (&Value::from(3), &Value::from(1)), "{all}");
    let saved = all["saved_ms"].as_u64().must("a time");
    assert!((900..30_000).contains(&saved), "three times 0.3 s: {all}");
    cluster.a.stop();
    cluster.a.up();
    assert_eq!(totals(&cluster.a, "jax"), all, "after a restart");
    std::fs::read(cluster.a.at("jax/jit_f-1-cache")).must("read");
    let more = totals(&cluster.a, "jax");
    assert_eq!(more["local"], 4);
    assert_eq!(more["saved_ms"], saved / 3 * 4, "the entry keeps its time");
    // They are saved every 10 s.
    let file = cluster.a.cache.join("v1/figures");
    eventually(30_000, "they are kept", || {
        let text = std::fs::read_to_string(&file).unwrap_or_default();
        let kept: Value = serde_json::from_str(&text).unwrap_or_default();
        if kept["jax"] == more { Ok(()) } else { Err(text) }
    });
    cluster.a.kill_only();
    cluster.a.up();
    assert_eq!(totals(&cluster.a, "jax"), more, "after a crash");
    // No attribute is listed.
    let listed = rustix::fs::listxattr(cluster.a.at("jax/jit_f-1-cache"), &mut [0_u8; 100][..]);
    assert_eq!(listed.must("list attributes"), 0);
    if !is_root() || !need("figures_last_and_are_for_all_users", "setpriv") {
        return;
    }
    let other = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=4242", "--regid=4242", "--clear-groups"]);
        command.arg(env!("CARGO_BIN_EXE_hearthfs")).args(words).env_clear();
        command.env("PATH", "/usr/bin:/bin").env("HOME", "/nonexistent").current_dir("/");
        run(&mut command, 30_000)
    };
    let point = cluster.a.mount.to_string_lossy().into_owned();
    let said = other(&["status", &point]);
    assert!(said.code() == 0 && said.out.contains("4 entries served locally"), "{said:?}");
    let said = other(&["status", "--json", &point]);
    let told: Value = serde_json::from_str(&said.out).must(&said.out);
    assert_eq!(told["clients"]["jax"], more);
    assert!(told.get("counters").is_none(), "{told}");
    for action in ["drain", "unmount"] {
        let said = other(&[action, &point]);
        assert!(said.code() != 0 && said.err.contains("another user"), "{said:?}");
    }
    let said =
        other(&["run", "--mount", &point, "--", "cat", &format!("{point}/jax/jit_f-1-cache")]);
    assert_eq!(Worth::read(&said.err).counts(), (1, 0, 0), "{said:?}");
}
in_both_modes!(figures_last_and_are_for_all_users);

/// A process that reads back what it has just published is served, whether its bytes are already a blob or not.
fn figures_count_what_is_read_back_at_once(io: Io) {
    const ENTRIES: u64 = 200;
    let cluster = Cluster::two(io);
    let jax = cluster.a.at("jax");
    std::fs::create_dir(&jax).must("mkdir");
    for number in 0..ENTRIES {
        let entry = jax.join(format!("jit_f-{number}-cache"));
        std::fs::write(&entry, "program").must("write");
        std::fs::read(&entry).must("read");
    }
    let all = totals(&cluster.a, "jax");
    assert_eq!((all["local"].as_u64(), all["compiled"].as_u64()), (Some(ENTRIES), Some(ENTRIES)));
}
in_both_modes!(figures_count_what_is_read_back_at_once);

/// Each entry counts as often as a client uses it. Opening it otherwise, storing the same bytes
/// again, moving and copying do not count.
#[test]
fn figures_count_entries_and_nothing_else() {
    let cluster = Cluster::two(Io::best());
    let jax = cluster.a.at("jax");
    std::fs::create_dir(&jax).must("mkdir");
    let count = |node: &Node| {
        let all = totals(node, "jax");
        ["local", "fetched", "compiled"].map(|name| all[name].as_u64().unwrap_or(0))
    };
    let write = |name: &str, text: &str| std::fs::write(jax.join(name), text).must(name);
    // Names that are looked up, listed and attributes are no entries.
    assert!(!jax.join("jit_f-1-cache").exists());
    write("jit_f-1-atime", "time");
    assert_eq!(count(&cluster.a), [0, 0, 0]);
    write("jit_f-1-cache", "program");
    write("jit_f-1-cache", "program");
    assert_eq!(count(&cluster.a), [0, 0, 1], "the same bytes again");
    write("jit_f-1-cache", "another");
    assert_eq!(count(&cluster.a), [0, 0, 2]);
    write("part", "moved");
    std::fs::rename(jax.join("part"), jax.join("jit_g-1-cache")).must("rename");
    assert_eq!(count(&cluster.a), [0, 0, 3], "a rename into place");
    std::fs::rename(jax.join("jit_g-1-cache"), jax.join("jit_h-1-cache")).must("rename");
    assert_eq!(count(&cluster.a), [0, 0, 3], "it was an entry before");
    write("jit_e-1-cache", "");
    std::fs::read(jax.join("jit_e-1-cache")).must("read");
    assert_eq!(count(&cluster.a), [0, 0, 3], "an empty file is no result");
    std::fs::read(jax.join("jit_h-1-cache")).must("read");
    std::fs::metadata(jax.join("jit_h-1-cache")).must("look");
    assert_eq!(count(&cluster.a), [1, 0, 3]);
    // Copies do not use the cache.
    let old = cluster.site.dir("old");
    std::fs::write(old.join("jit_old-1-cache"), "imported").must("write");
    let paths = [&old, &jax, &cluster.site.path().join("new")];
    let [old, dir, new] = paths.map(|path| path.to_string_lossy().into_owned());
    for words in [["import", &old, &dir], ["export", &dir, &new]] {
        let said = cluster.a.command(&words);
        assert_eq!(said.code(), 0, "{said:?}");
    }
    assert_eq!(std::fs::read(Path::new(&new).join("jit_old-1-cache")).must("read"), b"imported");
    assert_eq!(count(&cluster.a), [1, 0, 3]);
    cluster.a.drain();
    let there = cluster.b.at("jax/jit_h-1-cache");
    eventually(SEEN_MS, "it arrives", || {
        if there.exists() { Ok(()) } else { Err("not yet".to_owned()) }
    });
    std::fs::read(&there).must("read");
    std::fs::read(&there).must("read");
    assert_eq!(count(&cluster.b), [1, 1, 0], "fetched once");
    let text = cluster.b.command(&["status", &cluster.b.mount.to_string_lossy()]).out;
    assert!(text.contains("worth     1 entry fetched from other nodes"), "{text}");
}
