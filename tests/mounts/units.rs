//! P6: entries of several files, with the programs that write them.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::command::run;
use crate::harness::node::Site;
use crate::harness::syscall_process::{CREATE_NEW, SyscallProcess};
use crate::harness::time::thread;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, eventually, in_both_modes, sleep_ms, wanted,
};

use crate::clients::{command, json, python_with};

const LIMIT_MS: u64 = 900_000;
/// How long a draft without a marker is kept.
const HOLD_MS: u64 = 10_000;
/// So large that its digest takes longer than several looks at the drafts.
const LONG_BYTES: u64 = 3 << 29;
/// How long an uploaded change may take to be visible on another node, also on a busy machine.
const SEEN_MS: u64 = 30_000;

/// A system call of this process.
type CallOnMember<'c> = &'c dyn Fn() -> Result<(), Errno>;

/// Sets of files whose round trips are counted.
const COUNTED: u32 = 5;

/// Returns the number of races, unless `HEARTHFS_TEST_RACES` sets it.
fn races() -> u32 {
    u32::try_from(wanted("HEARTHFS_TEST_RACES", 12)).must("a number of races")
}

#[track_caller]
fn nothing(said: &Value, key: &str) {
    assert_eq!(said[key], Value::Array(Vec::new()), "{said:#}");
}

/// Two processes compile one function for two types, in all orders of their four steps.
fn p6_units_of_numba(io: Io) {
    let Some(python) = python_with(&format!("p6_units_of_numba::{}", io.word()), "numba") else {
        return;
    };
    let races = races();
    let cluster = Cluster::two(io);
    for (what, nodes) in
        [("one_node", vec![&cluster.a]), ("two_nodes", vec![&cluster.a, &cluster.b])]
    {
        let sources = cluster.site.dir(what);
        let mounts = || nodes.iter().map(|node| node.mount.as_os_str());
        let said = |word: &str| {
            let mut driver = command(&cluster, &python, "numba_races.py", &[word]);
            driver.arg(&sources).arg(races.to_string()).args(mounts());
            json(run(&mut driver, LIMIT_MS))
        };
        let raced = said("race");
        nothing(&raced, "wrong");
        nothing(&raced, "crashes");
        cluster.settle();
        let checked = said("check");
        for key in ["wrong", "crashes", "late"] {
            nothing(&checked, key);
        }
    }
}
in_both_modes!(p6_units_of_numba);

fn groups(cluster: &Cluster, python: &Path, node: &Node, args: &[&str]) -> Command {
    let mut command = command(cluster, python, "triton_groups.py", &[args[0]]);
    command.arg(node.at("triton")).args(&args[1..]);
    command
}

/// Two processes on each of two nodes use the same keys concurrently, and others watch.
fn p6_units_of_triton(io: Io) {
    let Some(python) = python_with(&format!("p6_units_of_triton::{}", io.word()), "triton") else {
        return;
    };
    let keys = races() * 10;
    let cluster = Cluster::two(io);
    std::fs::create_dir(cluster.a.at("triton")).must("mkdir");
    cluster.settle();
    let all = keys.to_string();
    let nodes = [&cluster.a, &cluster.a, &cluster.b, &cluster.b];
    let writers: Vec<_> = (0_usize..)
        .zip(nodes)
        .map(|(number, node)| {
            let name = format!("writer{number}");
            let mut put = groups(&cluster, &python, node, &["put", &all, "0", &name]);
            thread(move || json(run(&mut put, LIMIT_MS)))
        })
        .collect();
    let watchers: Vec<_> = [&cluster.a, &cluster.b]
        .map(|node| {
            let mut watch = groups(&cluster, &python, node, &["watch", &all, "10"]);
            thread(move || json(run(&mut watch, LIMIT_MS)))
        })
        .into();
    let said: Vec<Value> =
        writers.into_iter().chain(watchers).map(|one| one.join().must("a process")).collect();
    let mut wrote = 0;
    for one in &said {
        nothing(one, "bad");
        wrote += one["wrote"].as_u64().must("a number");
    }
    assert!(wrote > u64::from(keys), "no key was written twice: no race");
    cluster.settle();
    for node in [&cluster.a, &cluster.b] {
        nothing(&json(run(&mut groups(&cluster, &python, node, &["list", &all]), LIMIT_MS)), "bad");
    }
}
in_both_modes!(p6_units_of_triton);

/// The files of a unit in the order in which they are written; the last completes it.
const STEPS: [&str; 3] = ["k.json", "k.ttir", "__grp__k.json"];

/// Writes one member as Triton does, or in place.
fn write_member(process: &mut SyscallProcess, dir: &Path, name: &str, text: &str, renamed: bool) {
    if !renamed {
        return process.put(&dir.join(name), text.as_bytes()).must(name);
    }
    let temporary = dir.join(format!("tmp.pid_{}_x", process.pid()));
    process.mkdir(&temporary).must("mkdir");
    process.put(&temporary.join(name), text.as_bytes()).must("put");
    process.rename(&temporary.join(name), &dir.join(name)).must("rename");
    process.rmdir(&temporary).must("rmdir");
    assert_eq!(process.rmdir(dir), Err(Errno::NOTEMPTY), "the directory holds a draft");
}

/// Returns what a fresh process finds of a unit.
fn found(dir: &Path) -> Vec<Option<String>> {
    let mut process = SyscallProcess::new();
    let mut get = |name: &&str| match process.get(&dir.join(name)) {
        Ok(bytes) => Some(String::from_utf8(bytes).must("text")),
        Err(errno) => {
            assert_eq!(errno, Errno::NOENT, "{name}");
            None
        }
    };
    let entry = get(&STEPS[2]);
    STEPS[..2].iter().map(&mut get).chain([entry]).collect()
}

fn whole(text: &str) -> Vec<Option<String>> {
    vec![Some(text.to_owned()); STEPS.len()]
}

/// A unit has its old or its completed version, wherever its daemon or its writer was killed.
fn p6_units_through_kills(io: Io) {
    let mut cluster = Cluster::two(io);
    let mut last: Option<String> = None;
    std::fs::create_dir_all(cluster.a.at("triton/K")).must("mkdir");
    for renamed in [false, true] {
        for victim in ["daemon", "writer"] {
            for steps in 0..=STEPS.len() {
                // The list of a kernel must be JSON; otherwise it would stay on its node.
                let text = format!("\"{renamed} {victim} {steps}\"");
                let dir = cluster.a.at("triton/K");
                let mut writer = SyscallProcess::new();
                for name in &STEPS[..steps] {
                    write_member(&mut writer, &dir, name, &text, renamed);
                }
                if steps == STEPS.len() {
                    last = Some(text.clone());
                }
                if victim == "daemon" {
                    // An exit would complete what it has written.
                    cluster.a.kill_only();
                    drop(writer);
                    cluster.a.up();
                } else {
                    // In the middle of the next step.
                    let next = STEPS[steps % STEPS.len()];
                    let flags = OFlags::CREATE | OFlags::TRUNC | OFlags::WRONLY;
                    let fd = writer.open(&dir.join(next), flags, 0o644).must("open");
                    writer.write(fd, b"torn").must("write");
                    writer.kill(Signal::KILL);
                }
                let wanted = last.as_deref().map_or(vec![None; STEPS.len()], whole);
                assert_eq!(found(&dir), wanted, "{text}: on its node");
            }
        }
    }
    cluster.settle();
    let wanted = last.as_deref().map_or(vec![None; STEPS.len()], whole);
    // Uploaded changes are visible there after the freshness; meanwhile a fresh process finds one version.
    let away = cluster.b.at("triton/K");
    eventually(SEEN_MS, "the other node has it", || {
        let seen = found(&away);
        let texts: BTreeSet<&String> = seen.iter().flatten().collect();
        assert!(texts.len() <= 1, "mixed: {seen:?}");
        if seen == wanted { Ok(()) } else { Err(format!("{seen:?}")) }
    });
    // An uncompleted draft is on neither node, also after the time for which a draft is held back.
    cluster.a.kill_only();
    cluster.a.up();
    assert_eq!(found(&cluster.a.at("triton/K")), wanted);
}
in_both_modes!(p6_units_through_kills);

/// Only the writer sees what is renamed into a draft, and the kernel keeps all other names cached.
fn p6_units_renamed_members_leave_other_names_known(io: Io) {
    let cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    let dir = cluster.a.at("triton/K");
    std::fs::create_dir_all(&dir).must("mkdir");
    let mut writer = SyscallProcess::new();
    writer.put(&cluster.a.at("known"), b"x").must("put");
    let lookups = || cluster.a.status()["counters"]["operations"]["lookup"].as_u64().must("count");
    let known = || std::fs::metadata(cluster.a.at("known")).map(drop).must("stat");
    let cost = |before: u64| lookups() - before;
    // The directory and its names are looked up once.
    write_member(&mut writer, &dir, STEPS[0], "\"1\"", true);
    known();
    let mut asked = 0;
    for text in ["\"2\"", "\"3\"", "\"4\"", "\"5\""] {
        let before = lookups();
        write_member(&mut writer, &dir, STEPS[1], text, true);
        let written = lookups();
        known();
        asked += cost(written);
        assert_eq!(
            found(&dir),
            vec![None; STEPS.len()],
            "visible on other nodes before it is complete"
        );
        assert_eq!(writer.get(&dir.join(STEPS[1])).must("read its own file"), text.as_bytes());
        known();
        // The temporary directory, the file in it, and its final name; on a busy machine also one that
        // has expired.
        assert!(written - before <= 4, "{} lookups for a member", written - before);
    }
    assert!(asked <= 1, "{asked} lookups of a known name");
}
in_both_modes!(p6_units_renamed_members_leave_other_names_known);

/// The members of a unit cost the round trips of as many files that belong to no unit.
fn p6_units_cost_the_round_trips_of_single_files(io: Io) {
    let cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    let mut writer = SyscallProcess::new();
    let count = || {
        let operations = cluster.a.status()["counters"]["operations"].clone();
        let all = operations.as_object().must("an object").iter();
        // No caller waits for a RELEASE.
        let all = all.filter(|(name, _)| *name != "release");
        all.map(|(_, count)| count.as_u64().must("a count")).sum::<u64>()
    };
    let mut cost = |top: &str| {
        let costs = (0..COUNTED).map(|round| {
            let dir = cluster.a.at(format!("{top}/K{round}"));
            std::fs::create_dir_all(&dir).must("mkdir");
            let before = count();
            for name in STEPS {
                write_member(&mut writer, &dir, name, "\"1\"", true);
            }
            count() - before
        });
        // On a busy machine names expire in between.
        costs.min().must("a round")
    };
    let (unit, single) = (cost("triton"), cost("plain"));
    assert!(unit <= single, "{unit} and {single}");
}
in_both_modes!(p6_units_cost_the_round_trips_of_single_files);

/// The kernel moves what it remembers of a temporary to the public name. No call of another process
/// may reach the file by that.
fn p6_units_hide_a_renamed_member_from_every_call(io: Io) {
    let cluster = Cluster::with(Store::dir, &Options::new(io).alone());
    let mut writer = SyscallProcess::new();
    for round in 0..races() {
        let dir = cluster.a.at(format!("triton/K{round}"));
        std::fs::create_dir_all(&dir).must("mkdir");
        let member = dir.join(STEPS[0]);
        let calls: [(&str, CallOnMember<'_>); 7] = [
            ("stat", &|| rustix::fs::stat(&member).map(drop)),
            ("access", &|| rustix::fs::access(&member, rustix::fs::Access::READ_OK)),
            ("open", &|| rustix::fs::open(&member, OFlags::RDONLY, Mode::empty()).map(drop)),
            ("append", &|| {
                rustix::fs::open(&member, OFlags::WRONLY | OFlags::APPEND, Mode::empty()).map(drop)
            }),
            ("chmod", &|| rustix::fs::chmod(&member, Mode::from_raw_mode(0o600))),
            ("link", &|| rustix::fs::link(&member, dir.join("other"))),
            ("unlink", &|| rustix::fs::unlink(&member)),
        ];
        // Each call is the first after a rename once.
        for (first, _) in calls {
            write_member(&mut writer, &dir, STEPS[0], &format!("\"{first}\""), true);
            let sorted = calls.iter().filter(|(name, _)| *name == first).chain(&calls);
            for (name, call) in sorted {
                assert_eq!(call(), Err(Errno::NOENT), "{name} after {first}, round {round}");
            }
            let own = writer.get(&member).must("read its own file");
            assert_eq!(own, format!("\"{first}\"").as_bytes(), "round {round}");
        }
        for name in STEPS {
            write_member(&mut writer, &dir, name, "\"whole\"", true);
        }
        assert_eq!(found(&dir), whole("\"whole\""), "at once, in round {round}");
    }
}
in_both_modes!(p6_units_hide_a_renamed_member_from_every_call);

/// Common tools on a unit while a process writes its next version: a copy has one version, and a
/// removal damages none.
fn bad_input_units_under_common_tools(io: Io) {
    let cluster = Cluster::two(io);
    let dir = cluster.a.at("triton/K");
    std::fs::create_dir_all(&dir).must("mkdir");
    let tool = |words: &[&str]| Command::new(words[0]).args(&words[1..]).output().must(words[0]);
    let text = |path: &Path| path.to_string_lossy().into_owned();
    for (round, victim) in ["copied", "moved", "removed"].into_iter().enumerate() {
        let (old, new) = (format!("\"old {round}\""), format!("\"new {round}\""));
        let mut writer = SyscallProcess::new();
        for name in STEPS {
            write_member(&mut writer, &dir, name, &old, true);
        }
        assert_eq!(found(&dir), whole(&old), "{victim}");
        for name in &STEPS[..2] {
            write_member(&mut writer, &dir, name, &new, true);
        }
        let [plain, other] = ["plain", "triton/L"].map(|at| cluster.a.at(format!("{at}{round}")));
        match victim {
            "copied" => {
                for to in [&plain, &other] {
                    assert!(tool(&["cp", "-r", &text(&dir), &text(to)]).status.success());
                    // A tool that writes the marker first completes the unit when it exits.
                    eventually(SEEN_MS, to.display(), || {
                        let seen = found(to);
                        if seen == whole(&old) { Ok(()) } else { Err(format!("{seen:?}")) }
                    });
                }
            }
            "moved" => {
                // The draft moves along, as it is.
                assert!(tool(&["mv", &text(&dir), &text(&plain)]).status.success());
                std::fs::create_dir(&dir).must("mkdir");
                for name in &STEPS[..2] {
                    write_member(&mut writer, &dir, name, &new, false);
                }
            }
            _ => {
                // The directory stays, because the writer has files in it.
                assert!(!tool(&["rm", "-r", &text(&dir)]).status.success());
                assert_eq!(found(&dir), vec![None; STEPS.len()], "removed");
            }
        }
        write_member(&mut writer, &dir, STEPS[2], &new, true);
        assert_eq!(found(&dir), whole(&new), "{victim}: the next version");
        cluster.settle();
        eventually(SEEN_MS, "the other node has it", || {
            let seen = found(&cluster.b.at("triton/K"));
            if seen == whole(&new) { Ok(()) } else { Err(format!("{seen:?}")) }
        });
    }
}
in_both_modes!(bad_input_units_under_common_tools);

/// A member stays in its unit although it is open for longer than a draft without a marker is kept, and its close
/// takes long because it is large.
fn p6_units_keep_a_member_that_takes_long(io: Io) {
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let (mut writer, dir) = (SyscallProcess::new(), node.at("triton/K"));
    std::fs::create_dir_all(&dir).must("mkdir");
    let fd = writer.open(&dir.join("k.ttir"), CREATE_NEW, 0o644).must("open");
    writer.write(fd, b"begun").must("write");
    sleep_ms(HOLD_MS + 1000);
    writer.ftruncate(fd, LONG_BYTES).must("ftruncate");
    writer.close(fd).must("close");
    for name in ["k.json", "__grp__k.json"] {
        write_member(&mut writer, &dir, name, "\"text\"", false);
    }
    let there = SyscallProcess::new().stat(&dir.join("k.ttir")).must("stat");
    assert_eq!(there.size, LONG_BYTES);
}
in_both_modes!(p6_units_keep_a_member_that_takes_long);
