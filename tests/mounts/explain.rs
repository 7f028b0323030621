//! `hearthfs explain`: each reason for a miss, as the command shows it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde_json::Value;

use crate::copies::{SEEN_MS, put};
use crate::harness::command::{Said, run};
use crate::harness::node::{Site, dress};
use crate::harness::syscall_process::User;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes,
    sleep_ms,
};
use crate::users::{self, A, B, World};

const LIMIT_MS: u64 = 60_000;
/// Too large for a commit.
const LARGE: usize = 60_000;

fn content(seed: u8) -> Vec<u8> {
    (0..LARGE).map(|at| (at * 31 + at / 251) as u8 ^ seed).collect()
}

fn said(node: &Node, words: &[&str], path: &Path) -> Said {
    let path = path.to_str().must("text");
    node.command(&[&["explain"], words, &[path]].concat())
}

/// Returns the explanation of a path of a node.
#[track_caller]
fn why(node: &Node, name: &str) -> Value {
    let said = said(node, &["--json"], &node.at(name));
    assert!(said.status.success(), "{said:?}");
    let json: Value = serde_json::from_str(&said.out).must(format_args!("JSON: {said:?}"));
    assert_eq!(json["version"], 1);
    for key in ["path", "why", "remedy"] {
        assert!(json[key].as_str().is_some_and(|text| !text.is_empty()), "{key} of {json:#}");
    }
    json
}

#[track_caller]
fn is(node: &Node, name: &str, reason: &str) -> Value {
    let json = why(node, name);
    assert_eq!(json["reason"], reason, "{name}: {json:#}");
    json
}

/// Returns the identity of a node.
fn identity(node: &Node, process: &mut SyscallProcess) -> String {
    process.put(&node.at("mark"), b"mark").must("put a mark");
    let facts = process.getxattr(&node.at("mark"), "hearthfs.entry").must("facts");
    let facts: Value = serde_json::from_slice(&facts).must("JSON");
    process.unlink(&node.at("mark")).must("remove a mark");
    facts["node"].as_str().must("a node").to_owned()
}

fn arrives(process: &mut SyscallProcess, node: &Node, name: &str) {
    eventually(SEEN_MS, "it arrives", || {
        process.stat(&node.at(name)).map_err(|errno| errno.to_string())
    });
}

fn goes(process: &mut SyscallProcess, node: &Node, name: &str) {
    eventually(SEEN_MS, "it goes", || match process.stat(&node.at(name)) {
        Err(Errno::NOENT) => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

/// A name that was never made, has another key, was removed (and by which node), is gone with its
/// directory, is below a file, is being written, belongs to the node, or exists.
fn commands_explain_says_what_happened_to_a_name(io: Io) {
    let cluster = Cluster::two(io);
    let (a, b) = (&cluster.a, &cluster.b);
    let mut process = SyscallProcess::new();
    let (of_a, of_b) = (identity(a, &mut process), identity(b, &mut process));
    for name in ["jax", "jax/dir"] {
        process.mkdir(&a.at(name)).must("mkdir");
    }
    is(a, "jax/jit_f-00-cache", "never");
    for name in ["jax/jit_f-11-cache", "jax/jit_g-11-cache", "jax/gone", "jax/dir/in", "jax/file"] {
        process.put(&a.at(name), name.as_bytes()).must("put");
    }
    // Only this name is looked up until it is there: the others must have no earlier miss.
    process.put(&a.at("jax/last"), b"last").must("put");
    a.drain();
    arrives(&mut process, b, "jax/last");
    assert_eq!(process.stat(&b.at("jax/jit_f-22-cache")).map(drop), Err(Errno::NOENT));
    let other = is(b, "jax/jit_f-22-cache", "never");
    assert!(other["why"].as_str().must("text").contains("same program"), "{other:#}");
    assert_eq!(other["client"], "jax");
    let similar: Vec<&str> = other["similar"]
        .as_array()
        .must("a list")
        .iter()
        .filter_map(|one| one["path"].as_str())
        .collect();
    assert_eq!(similar, [b.at("jax/jit_f-11-cache").to_str().must("text")], "{other:#}");
    assert_eq!((&other["last"]["reason"], &other["last"]["times"]), (&"never".into(), &1.into()));

    let there = is(b, "jax/file", "there");
    assert_eq!((&there["node"], &there["own"]), (&of_a.as_str().into(), &false.into()));
    is(b, "jax/file/x", "no_directory");
    is(b, "jax/.lockfile", "node_local");

    process.unlink(&b.at("jax/gone")).must("unlink");
    process.unlink(&b.at("jax/dir/in")).must("unlink");
    process.rmdir(&b.at("jax/dir")).must("rmdir");
    b.drain();
    goes(&mut process, a, "jax/dir");
    for (node, own) in [(a, false), (b, true)] {
        let gone = is(node, "jax/gone", "removed");
        assert_eq!((&gone["node"], &gone["own"]), (&of_b.as_str().into(), &own.into()));
        let ago =
            gone["now_ms"].as_u64().must("a time") - gone["changed_ms"].as_u64().must("a time");
        assert!(ago < 60_000, "{gone:#}");
        let inside = is(node, "jax/dir/never-there", "removed");
        let dir = node.at("jax/dir");
        assert_eq!(inside["of"]["path"].as_str(), dir.to_str(), "{inside:#}");
    }

    let fd = process.open(&a.at("jax/new"), OFlags::CREATE | OFlags::WRONLY, 0o644).must("open");
    process.write(fd, b"half").must("write");
    is(a, "jax/new", "writing");
    process.close(fd).must("close");
    is(a, "jax/new", "there");
    is(a, "", "there");
}
in_both_modes!(commands_explain_says_what_happened_to_a_name);

/// Writes a unit on one node, whose last name completes it, and waits until the other node has it.
fn unit(cluster: &Cluster, process: &mut SyscallProcess, dir: &str, names: &[&str]) {
    for name in names {
        put(&cluster.a.at(dir).join(name), "\"text\"", 0o644);
    }
    cluster.a.drain();
    let last = names.last().must("a name");
    arrives(process, &cluster.b, &format!("{dir}/{last}"));
}

/// Looks up a missing name, and returns the reported entries of the same program.
#[track_caller]
fn others(node: &Node, process: &mut SyscallProcess, name: &str) -> Vec<String> {
    assert_eq!(process.stat(&node.at(name)).map(drop), Err(Errno::NOENT), "{name}");
    let told = is(node, name, "never");
    let similar = told["similar"].as_array().must("a list").iter();
    let similar: Vec<String> = similar
        .map(|one| Path::new(one["path"].as_str().must("a path")))
        .map(|path| {
            path.strip_prefix(&node.mount).must("on the mount").to_string_lossy().into_owned()
        })
        .collect();
    let said = told["why"].as_str().must("text").contains("same program under another key");
    assert_eq!(said, !similar.is_empty(), "{told:#}");
    similar
}

/// A lock or a statistic that never leaves its node is no miss that matters to a user.
#[test]
fn commands_explain_lists_no_misses_of_what_stays_on_its_node() {
    let cluster = Cluster::two(Io::best());
    let (a, mut process) = (&cluster.a, SyscallProcess::new());
    for dir in ["ccache", "ccache/0", "jax"] {
        process.mkdir(&a.at(dir)).must("mkdir");
    }
    for name in ["ccache/0/stats.lock", "jax/.lockfile", "jax/jit_f-1-cache"] {
        assert_eq!(process.stat(&a.at(name)).map(drop), Err(Errno::NOENT), "{name}");
    }
    let last = said(a, &["--last", "--json"], &a.mount);
    let listed: Value = serde_json::from_str(&last.out).must("JSON");
    let names: Vec<String> = paths(&listed);
    assert!(names.contains(&a.at("jax/jit_f-1-cache").to_string_lossy().into_owned()), "{names:?}");
    assert!(!names.iter().any(|name| name.ends_with("lock") || name.ends_with("lockfile")));
}

/// The key of a kernel is its directory, which Triton makes before it looks.
#[test]
fn commands_explain_names_a_kernel_of_triton_under_another_key() {
    let cluster = Cluster::two(Io::best());
    let (b, mut process) = (&cluster.b, SyscallProcess::new());
    for (key, kernel) in [("K1", "add"), ("K2", "mul"), ("K3", "add")] {
        let names =
            [format!("{kernel}.json"), format!("{kernel}.ttir"), format!("__grp__{kernel}.json")];
        unit(
            &cluster,
            &mut process,
            &format!("triton/{key}"),
            &names.each_ref().map(String::as_str),
        );
    }
    process.mkdir(&b.at("triton/KX")).must("mkdir");
    let found = others(b, &mut process, "triton/KX/__grp__add.json");
    assert_eq!(found, ["triton/K1/__grp__add.json", "triton/K3/__grp__add.json"]);
    let found = others(b, &mut process, "triton/KX/mul.json");
    assert_eq!(found, ["triton/K2/mul.json"]);
    assert_eq!(others(b, &mut process, "triton/KX/__grp__sub.json"), [""; 0]);
}

/// TorchInductor's graphs are digests, and its kernels are Triton's.
#[test]
fn commands_explain_names_a_kernel_of_inductor_under_another_key() {
    let cluster = Cluster::two(Io::best());
    let (b, mut process) = (&cluster.b, SyscallProcess::new());
    let kernel = "triton_poi_fused_add_0";
    let names = [format!("{kernel}.json"), format!("__grp__{kernel}.json")];
    unit(&cluster, &mut process, "inductor/triton/0/K1", &names.each_ref().map(String::as_str));
    let list = format!("__grp__{kernel}.json");
    let found = others(b, &mut process, &format!("inductor/triton/0/KX/{list}"));
    assert_eq!(found, [format!("inductor/triton/0/K1/{list}")]);
    unit(&cluster, &mut process, "inductor/fxgraph/ab/fabc", &["d1"]);
    assert_eq!(others(b, &mut process, "inductor/fxgraph/ab/fabc/d2"), [""; 0]);
}

/// A module of the same graph that was compiled with other flags, or by another compiler.
#[test]
fn commands_explain_names_a_module_of_neuron_under_other_flags() {
    let cluster = Cluster::two(Io::best());
    let (b, mut process) = (&cluster.b, SyscallProcess::new());
    let names = ["model.hlo_module.pb", "compile_flags.json", "model.neff", "model.done"];
    let dir = "neuron/neuronxcc-2.20.0+ab/MODULE_77";
    for module in ["77+a1", "7+a1"] {
        unit(
            &cluster,
            &mut process,
            &format!("neuron/neuronxcc-2.20.0+ab/MODULE_{module}"),
            &names,
        );
    }
    // The directory is what is missing; a person may ask for a file in it.
    assert_eq!(others(b, &mut process, &format!("{dir}+b2")), [format!("{dir}+a1")]);
    for name in ["model.neff", "model.done"] {
        let found = others(b, &mut process, &format!("{dir}+b2/{name}"));
        assert_eq!(found, [format!("{dir}+a1/{name}")]);
        let found =
            others(b, &mut process, &format!("neuron/neuronxcc-2.21.0+ab/MODULE_77+a1/{name}"));
        assert_eq!(found, [format!("{dir}+a1/{name}")]);
    }
    assert_eq!(others(b, &mut process, "neuron/neuronxcc-2.20.0+ab/MODULE_9+a1"), [""; 0]);
}

/// A name that was published elsewhere and had not arrived at the time of the lookup is
/// distinguished from one written later.
#[test]
fn commands_explain_reports_late_arrivals() {
    let options = Options::new(Io::best()).freshness("60s");
    let cluster = Cluster::with(Store::dir, &options);
    let (a, b) = (&cluster.a, &cluster.b);
    let mut process = SyscallProcess::new();
    let of_a = identity(a, &mut process);
    process.put(&a.at("early"), b"early").must("put");
    a.drain();
    // B has learned nothing since its mount, and need not ask the store for a minute.
    let missed = process.stat(&b.at("early")).is_err();
    let told = why(b, "early");
    let wanted = if missed { "late" } else { "there" };
    assert_eq!((&told["reason"], &told["node"]), (&wanted.into(), &of_a.as_str().into()));
    assert_eq!(process.stat(&b.at("other")).map(drop), Err(Errno::NOENT));
    process.put(&a.at("other"), b"other").must("put");
    a.drain();
    is(b, "other", "late");
    is(b, "early", if missed { "late" } else { "there" });
}

/// Store down: bytes that are not local, and unknown names. Damage. Misses of opens are recorded, too.
#[test]
fn commands_explain_reports_missing_and_damaged_bytes() {
    let cluster = Cluster::two(Io::best());
    let (a, b) = (&cluster.a, &cluster.b);
    let mut process = SyscallProcess::new();
    for (seed, name) in [(1, "far"), (2, "spoilt")] {
        process.put(&a.at(name), &content(seed)).must("put");
        a.drain();
    }
    arrives(&mut process, b, "spoilt");
    let packs = cluster.store.objects_in("packs");
    cluster.store.fail();
    eventually(SEEN_MS, "B notices", || match process.get(&b.at("far")) {
        Err(Errno::NOENT) if b.status()["health"]["up"] == false => Ok(()),
        other => Err(format!("{:?}", other.map(|bytes| bytes.len()))),
    });
    let down = is(b, "far", "store_down");
    assert!(down["remedy"].as_str().must("text").contains("hearthfs doctor"));
    is(b, "not-known", "unsure");
    let mount = b.mount.to_string_lossy().into_owned();
    let last = b.command(&["explain", "--last", "--json", &mount]).good();
    let last: Value = serde_json::from_str(&last).must("JSON");
    let reasons: Vec<&str> = last["misses"]
        .as_array()
        .must("a list")
        .iter()
        .filter_map(|miss| miss["reason"].as_str())
        .collect();
    assert!(reasons.contains(&"store_down"), "{last:#}");
    cluster.store.heal();
    eventually(SEEN_MS, "B recovers", || match process.get(&b.at("far")) {
        Ok(bytes) if bytes == content(1) => Ok(()),
        other => Err(format!("{:?}", other.map(|bytes| bytes.len()))),
    });
    is(b, "far", "there");

    for pack in &packs {
        std::fs::write(pack, vec![7; 100]).must("spoil a pack");
    }
    // The first attempts after an outage may come too early for an answer.
    eventually(SEEN_MS, "B finds the damage", || match process.get(&b.at("spoilt")) {
        Err(Errno::NOENT) => {
            let json = why(b, "spoilt");
            if json["reason"] == "damaged" { Ok(()) } else { Err(format!("{json:#}")) }
        }
        other => Err(format!("{:?}", other.map(|bytes| bytes.len()))),
    });
    process.put(&a.at("spoilt"), &content(3)).must("write it again");
    a.drain();
    eventually(SEEN_MS, "the entry is complete again", || match process.get(&b.at("spoilt")) {
        Ok(bytes) if bytes == content(3) => Ok(()),
        other => Err(format!("{:?}", other.map(|bytes| bytes.len()))),
    });
    is(b, "spoilt", "there");
}

/// An entry past its age, until it is forgotten.
#[test]
fn commands_explain_tells_what_is_past_its_age() {
    let options = Options::new(Io::best()).expiry("12s").without_renewal();
    let cluster = Cluster::with(Store::dir, &options);
    let mut process = SyscallProcess::new();
    process.put(&cluster.a.at("old"), &content(1)).must("put");
    cluster.a.drain();
    arrives(&mut process, &cluster.b, "old");
    goes(&mut process, &cluster.b, "old");
    let old = is(&cluster.b, "old", "expired");
    assert!(old["remedy"].as_str().must("text").contains("expiry.age"));
}

/// Without a store: an evicted entry, and one that was removed and forgotten. A unit that has lost a member.
#[test]
fn commands_explain_reports_losses_without_a_store() {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(Io::best()).cache_size("16MiB"));
    let mut process = SyscallProcess::new();
    for number in 0..5_u8 {
        let body: Vec<u8> = content(number).iter().cycle().take(5_000_000).copied().collect();
        process.put(&node.at(format!("f{number}")), &body).must("put");
        sleep_ms(50);
    }
    eventually(SEEN_MS, "the first is evicted", || match process.get(&node.at("f0")) {
        Err(Errno::NOENT) => Ok(()),
        other => Err(format!("{:?}", other.map(|bytes| bytes.len()))),
    });
    let evicted = is(&node, "f0", "evicted");
    assert!(evicted["remedy"].as_str().must("text").contains("local.cache_size"));
    process.put(&node.at("small"), b"small").must("put");
    process.unlink(&node.at("small")).must("unlink");
    let gone = is(&node, "small", "never");
    assert!(gone["why"].as_str().must("text").contains("removed and forgotten"), "{gone:#}");

    // The file that completes the unit comes last.
    for name in ["k.json", "k.ttir", "__grp__k.json"] {
        put(&node.at("triton/KEY").join(name), "\"text\"", 0o644);
    }
    eventually(SEEN_MS, "the unit arrives", || {
        process.get(&node.at("triton/KEY/__grp__k.json")).map_err(|errno| errno.to_string())
    });
    process.unlink(&node.at("triton/KEY/k.json")).must("unlink");
    assert_eq!(SyscallProcess::new().get(&node.at("triton/KEY/__grp__k.json")), Err(Errno::NOENT));
    let incomplete = is(&node, "triton/KEY/__grp__k.json", "incomplete");
    assert_eq!((&incomplete["client"], &incomplete["kind"]), (&"triton".into(), &"unit".into()));
}

/// Runs `explain` as another user.
fn asked_by(user: User, cluster: &Cluster, words: &[&str], path: &Path) -> Said {
    let program = cluster.site.path().join("hearthfs");
    if !program.exists() {
        let built = env!("CARGO_BIN_EXE_hearthfs");
        let copied = run(Command::new("cp").arg(built).arg(&program), LIMIT_MS);
        assert!(copied.status.success(), "{copied:?}");
        users::let_in(&program, 0o755);
    }
    let mut command = Command::new(&program);
    dress(&mut command, cluster.site.path());
    command.uid(user.uid).gid(user.gid).current_dir("/").arg("explain").args(words).arg(path);
    run(&mut command, LIMIT_MS)
}

fn json_by(user: User, cluster: &Cluster, words: &[&str], path: &Path) -> Value {
    let said = asked_by(user, cluster, &[&["--json"], words].concat(), path);
    assert!(said.status.success(), "{said:?}");
    serde_json::from_str(&said.out).must(format_args!("JSON: {said:?}"))
}

fn paths(list: &Value) -> Vec<String> {
    let all = list["misses"].as_array().must("a list").iter();
    all.map(|miss| miss["path"].as_str().must("a path").to_owned()).collect()
}

/// Other users learn what the mode bits let them list, and of misses only their own; root learns everything.
#[test]
fn commands_explain_keeps_what_users_may_not_see() {
    let Some(mut world) = World::two(Io::best(), "commands_explain_keeps_what_users_may_not_see")
    else {
        return;
    };
    let cluster = &world.cluster;
    let a = &cluster.a;
    let (secret, own) = (a.at("private/secret"), a.at("open/own"));
    world.a.put(&secret, b"secret").must("put");
    // What is removed before it was uploaded leaves no trace.
    a.drain();
    world.a.unlink(&secret).must("unlink");
    assert_eq!(world.a.stat(&a.at("private/missing")).map(drop), Err(Errno::NOENT));
    assert_eq!(world.b.stat(&own).map(drop), Err(Errno::NOENT));

    // A removed it, so A gets that reason; B cannot distinguish it from a name that never existed.
    assert_eq!(json_by(A, cluster, &[], &secret)["reason"], "removed");
    for name in ["private/secret", "private/never", "private/deeper/never"] {
        let told = json_by(B, cluster, &[], &a.at(name));
        assert_eq!(told["reason"], "denied", "{name}: {told:#}");
        assert_eq!(told["of"]["path"].as_str(), a.at("private").to_str(), "{told:#}");
        assert!(told["last"].is_null() && told["node"].is_null(), "{told:#}");
    }
    assert_eq!(json_by(B, cluster, &[], &own)["reason"], "never");
    world.root.put(&a.at("open/closed"), b"closed").must("put");
    world.root.chmod(&a.at("open/closed"), 0o600).must("chmod");
    assert_eq!(json_by(B, cluster, &[], &a.at("open/closed"))["reason"], "denied");

    let last = |user| json_by(user, cluster, &["--last"], &a.mount);
    let (of_a, of_b) = (last(A), last(B));
    assert_eq!(paths(&of_b), [own.to_str().must("text")], "{of_b:#}");
    assert!(paths(&of_a).contains(&a.at("private/missing").to_string_lossy().into_owned()));
    assert!(!paths(&of_a).contains(&own.to_string_lossy().into_owned()), "{of_a:#}");
    let refused = asked_by(B, cluster, &["--last", "--all-users"], &a.mount);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let mount = a.mount.to_string_lossy().into_owned();
    let all = a.command(&["explain", "--last", "--all-users", "--json", &mount]).good();
    let all: Value = serde_json::from_str(&all).must("JSON");
    for path in [&own, &a.at("private/missing")] {
        assert!(paths(&all).contains(&path.to_string_lossy().into_owned()), "{all:#}");
    }

    // About a client, B gets what it could list.
    for dir in ["open/jax", "jax"] {
        world.root.mkdir_with(&a.at(dir), 0o755).must("mkdir");
    }
    world.root.mkdir_with(&a.at("jax/closed"), 0o700).must("mkdir");
    for name in ["jax/seen", "jax/closed/hidden"] {
        assert_eq!(world.root.stat(&a.at(name)).map(drop), Err(Errno::NOENT));
    }
    let of_jax = json_by(B, cluster, &["--client", "jax"], &a.mount);
    let of_jax = paths(&of_jax);
    let has = |name: &str| of_jax.contains(&a.at(name).to_string_lossy().into_owned());
    assert!(has("jax/seen") && !has("jax/closed/hidden"), "{of_jax:?}");
    let long = a.at("open").join("x".repeat(250));
    let refused = asked_by(B, cluster, &[], &long);
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

/// Names that are not text are accepted and shown escaped. Without a terminal or a mount, the command says so.
#[test]
fn commands_explain_takes_and_shows_any_name() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    let mut process = SyscallProcess::new();
    let name = OsStr::from_bytes(b"odd\x1b[31m\n\xff");
    let odd = a.mount.join(name);
    process.put(&odd, b"odd").must("put");
    a.drain();
    process.unlink(&odd).must("unlink");
    let mut command = cluster.site.hearthfs();
    let raw = run(command.arg("explain").arg(&odd), LIMIT_MS);
    assert!(raw.status.success(), "{raw:?}");
    assert!(raw.out.contains("odd\\x1b[31m\\n\\xff") && raw.out.contains("removed"), "{raw:?}");
    assert!(!raw.out.contains('\u{1b}'), "{raw:?}");
    let typed = a.mount.join("odd\\x1b[31m\\n\\xff");
    let typed = said(a, &[], &typed);
    assert_eq!(typed.out.lines().next(), raw.out.lines().next(), "the printed form is accepted");
    process.stat(&odd).expect_err("the file is gone");
    let last = said(a, &["--last"], &a.mount);
    assert!(last.out.contains("odd\\x1b[31m") && last.out.contains("remedy: "), "{last:?}");

    let outside = said(a, &[], &cluster.site.path().join("nowhere"));
    assert_eq!(outside.status.code(), Some(3), "{outside:?}");
    for bad in ["a/../../..", "x*", "\\xzz"] {
        let refused = said(a, &[], &a.mount.join(bad));
        assert!(matches!(refused.status.code(), Some(2 | 3)), "{bad}: {refused:?}");
    }
    assert_eq!(a.command(&["explain"]).status.code(), Some(2));
    let mut deep = OsString::from("d");
    (0..1500).for_each(|_| deep.push("/d"));
    let told = said(a, &["--json"], &a.mount.join(deep));
    assert!(told.out.contains("\"never\""), "{told:?}");
}

/// A daemon that does not explain to other users, because it is old or has no attributes, is reported as such.
#[test]
fn commands_explain_with_a_daemon_that_cannot_explain() {
    const NAME: &str = "commands_explain_with_a_daemon_that_cannot_explain";
    if !users::can_be_others(NAME, Io::best()) {
        return;
    }
    let options = Options::new(Io::best()).without_xattrs();
    let cluster = Cluster::with(Store::dir, &options);
    users::let_in(cluster.site.path(), 0o755);
    let told = asked_by(B, &cluster, &[], &cluster.a.at("x"));
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    assert!(told.err.contains("older version"), "{told:?}");
    is(&cluster.a, "x", "never");
}
