//! `hearthfs ls`, `stat` and `du`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use rustix::fs::OFlags;
use rustix::io::Errno;
use serde_json::Value;

use crate::copies::{SEEN_MS, put};
use crate::harness::command::{Said, run};
use crate::harness::node::dress;
use crate::harness::syscall_process::User;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, SyscallProcess, eventually, in_both_modes, tree,
};
use crate::users::{self, World};

/// How long a command may take.
pub(super) const LIMIT_MS: u64 = 60_000;

/// Runs a command with paths after its words.
pub(super) fn asked(node: &Node, words: &[&str], paths: &[&Path]) -> Said {
    let mut all: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
    all.extend(paths.iter().map(|path| path.to_string_lossy().into_owned()));
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    node.command(&all)
}

/// Runs a command of the program as another user.
pub(super) fn asked_by(user: User, cluster: &Cluster, words: &[&str], paths: &[&Path]) -> Said {
    // Other users may not be able to access the build directory.
    let program = cluster.site.path().join("hearthfs");
    if !program.exists() {
        // In a separate process: a child that this process starts meanwhile could hold the copy
        // open for writing, and then it could not be run.
        let copied =
            run(Command::new("cp").arg(env!("CARGO_BIN_EXE_hearthfs")).arg(&program), LIMIT_MS);
        assert!(copied.status.success(), "{copied:?}");
        users::let_in(&program, 0o755);
    }
    let mut command = Command::new(&program);
    dress(&mut command, cluster.site.path());
    command.uid(user.uid).gid(user.gid).current_dir("/").args(words).args(paths);
    run(&mut command, LIMIT_MS)
}

/// Returns stdout of a command that succeeded.
#[track_caller]
pub(super) fn good(said: &Said) -> String {
    assert!(said.status.success(), "{said:?}");
    said.out.clone()
}

/// Parses the output of `ls --json`: the objects by their paths below the mount.
fn listed(node: &Node, said: &Said) -> BTreeMap<String, Value> {
    let mount = format!("{}/", node.mount.display());
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).must(format_args!("parse {line:?}"));
        let path = object["path"].as_str().must("a path").to_owned();
        (path.strip_prefix(&mount).must("below the mount").to_owned(), object)
    };
    said.out.lines().map(object).collect()
}

fn told(node: &Node, glob: &str) -> BTreeMap<String, Value> {
    let said = asked(node, &["ls", "--json"], &[&node.at(glob)]);
    assert!(said.status.success(), "{said:?}");
    listed(node, &said)
}

/// Each node shows which node wrote an entry, when, for which client, and whether it has the bytes;
/// asking fetches nothing.
fn commands_ls_tells_where_entries_come_from(io: Io) {
    let cluster = Cluster::two(io);
    let (a, b) = (&cluster.a, &cluster.b);
    let mut process = SyscallProcess::new();
    // Too large for a commit.
    put(&a.at("jax/jit_f-1-cache"), &"program".repeat(20_000), 0o640);
    put(&a.at("mine/file"), "content", 0o644);
    put(&a.at("jax/jit_f-2-cache"), "linked", 0o644);
    std::fs::hard_link(a.at("jax/jit_f-2-cache"), a.at("mine/two")).must("link");
    symlink("file", a.at("mine/link")).must("symlink");
    a.drain();
    eventually(SEEN_MS, "node B has it", || {
        process.lstat(&b.at("mine/link")).map_err(|e| e.to_string())
    });

    let (here, there) = (told(a, "**"), told(b, "**"));
    let names: Vec<&str> = here.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "jax",
            "jax/jit_f-1-cache",
            "jax/jit_f-2-cache",
            "mine",
            "mine/file",
            "mine/link",
            "mine/two"
        ]
    );
    assert!(here.keys().eq(there.keys()), "{there:?}");
    for (name, one) in &here {
        let other = &there[name];
        assert_eq!(
            (&one["own"], &other["own"]),
            (&Value::Bool(true), &Value::Bool(false)),
            "{name}"
        );
        assert_eq!(one["node"], other["node"], "{name}");
        assert_eq!(one["written_ms"], other["written_ms"], "{name}");
        assert_eq!(one["node"].as_str().map(str::len), Some(16), "{name}");
        assert!(one["now_ms"].as_u64() >= one["written_ms"].as_u64(), "{one}");
    }
    let (one, other) = (&here["jax/jit_f-1-cache"], &there["jax/jit_f-1-cache"]);
    assert_eq!((&one["bytes"], &other["bytes"]), (&"local".into(), &"remote".into()));
    assert_eq!(
        (&one["client"], &one["size"], &one["mode"]),
        (&"jax".into(), &140_000.into(), &"0640".into())
    );
    assert_eq!(one["digest"], other["digest"]);
    assert!(
        one["content"]["used_s"].is_u64() && other["content"]["used_s"].is_null(),
        "{one} {other}"
    );
    assert!(
        other["content"]["stored_ms"].is_u64() && other["content"]["expires_ms"].is_u64(),
        "{other}"
    );
    assert_eq!(
        (&here["mine/link"]["type"], &here["mine"]["type"]),
        (&"link".into(), &"directory".into())
    );
    assert!(here["mine/file"]["client"].is_null());
    for name in ["jax/jit_f-2-cache", "mine/two"] {
        let linked = &here[name];
        assert_eq!((&linked["links"], &linked["client"]), (&2.into(), &Value::Null), "{linked}");
    }
    assert_eq!(b.status()["counters"]["fetched"], 0, "a query fetches nothing");

    let node = one["node"].as_str().must("a node");
    let row = |on: &Node| {
        let out = asked(on, &["ls", "-l"], &[&on.at("jax")]).good();
        let mut lines = out.lines();
        let head: Vec<&str> = lines.next().must("a head").split_whitespace().collect();
        assert_eq!(head, ["SIZE", "AGE", "LAST", "USE", "NODE", "CLIENT", "BYTES", "NAME"]);
        let row = lines.next().must("a row").split_whitespace().map(str::to_owned);
        assert!(lines.next().is_some_and(|line| line.contains("jit_f-2-cache")), "{out}");
        assert_eq!(lines.next(), None, "{out}");
        row.collect::<Vec<_>>()
    };
    let path = |on: &Node| on.at("jax/jit_f-1-cache").display().to_string();
    let there = row(b);
    assert_eq!(there[..2], ["136.7", "KiB"]);
    assert_eq!(there[there.len() - 5..], ["-", node, "jax", "remote", &path(b)], "{there:?}");
    let here = row(a);
    assert_eq!(here[here.len() - 4..], ["here", "jax", "local", &path(a)], "{here:?}");
    process.get(&b.at("jax/jit_f-1-cache")).must("read");
    let there = row(b);
    assert_eq!(there[there.len() - 4..], [node, "jax", "local", &path(b)], "{there:?}");
    assert_ne!(there[there.len() - 5], "-", "it is used here now");
}
in_both_modes!(commands_ls_tells_where_entries_come_from);

#[test]
fn commands_ls_and_stat_beside_a_writer() {
    let cluster = Cluster::two(Io::best());
    let (a, mut process) = (&cluster.a, SyscallProcess::new());
    let path = a.at("file");
    let fd = process.open(&path, OFlags::CREATE | OFlags::WRONLY, 0o644).must("create");
    process.write(fd, b"abc").must("write");
    assert_eq!(told(a, "file")["file"]["bytes"], "writing");
    let said = asked(a, &["stat"], &[&path]).good();
    assert!(said.contains("written   not yet\n  bytes     writing\n"), "{said}");
    process.close(fd).must("close");
    assert_eq!(told(a, "file")["file"]["bytes"], "local");
    let said = asked(a, &["stat"], &[&path]).good();
    for part in [
        "what      file, 3 B (3 bytes)\n",
        ", this one\n",
        "bytes     local\n",
        "last use",
        "digest",
    ] {
        assert!(said.contains(part), "`{part}` is not in:\n{said}");
    }
    let object: Value =
        serde_json::from_str(&asked(a, &["stat", "--json"], &[&path]).good()).must("parse");
    assert_eq!((&object["own"], &object["type"]), (&true.into(), &"file".into()), "{object}");
    let root: Value =
        serde_json::from_str(&asked(a, &["stat", "--json"], &[&a.mount]).good()).must("parse");
    assert_eq!((&root["type"], &root["path"]), (&"directory".into(), &a.mount.to_str().into()));
    // The facts are no attribute of the file: copies do not include them.
    assert_eq!(process.listxattr(&path), Ok(Vec::new()));
    let set = process.setxattr(&path, "hearthfs.entry", b"lies", 0);
    assert_eq!(set.expect_err("cannot be set"), Errno::OPNOTSUPP);
    assert!(root["bytes"].is_null(), "{root}");
    let gone = asked(a, &["stat"], &[&a.at("missing")]);
    assert_eq!(gone.code(), 1, "{gone:?}");
    assert!(gone.err.contains("missing: No such file"), "{gone:?}");
    let glob = asked(a, &["stat"], &[&a.at("*")]);
    assert_eq!(glob.code(), 2, "{glob:?}");
}

/// Names chosen by others are never printed raw, and printed names are accepted as arguments.
#[test]
fn commands_print_no_name_raw() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    std::fs::create_dir(a.at("names")).must("mkdir");
    let names: [&[u8]; 8] = [
        b"plain",
        b"two\nlines\ttab\r",
        b"\x1b[31mred\x1b]0;title\x07",
        b"not \xff text \xc3",
        "c1 \u{9b}31m, reordered \u{202e}txt".as_bytes(),
        b"back\\slash\\x41",
        b"star * and ?",
        b" -rf ",
    ];
    for name in names {
        std::fs::write(a.at("names").join(OsStr::from_bytes(name)), name).must("write");
    }
    let tame = |text: &str| {
        let wild = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!text.contains(wild), "{text:?}");
    };
    let mut printed = Vec::new();
    for words in [&["ls"][..], &["ls", "-l"], &["ls", "--json"], &["du"], &["rm", "--dry-run"]] {
        let said = asked(a, words, &[&a.at("names/*")]);
        assert!(said.status.success(), "{said:?}");
        tame(&said.out);
        tame(&said.err);
        if words == ["ls"] {
            printed = said.out.lines().map(str::to_owned).collect();
        }
        if words == ["ls", "--json"] {
            let objects = listed(a, &said);
            assert_eq!(objects.len(), names.len());
            let hex: Vec<&str> =
                objects.values().filter_map(|one| one["path_hex"].as_str()).collect();
            assert_eq!(hex.len(), 1, "{objects:?}");
            assert!(hex[0].ends_with("6e6f7420ff207465787420c3"), "{hex:?}");
        }
    }
    assert_eq!(printed.len(), names.len(), "one line each: {printed:?}");
    // A program that is given a printed name finds that file.
    let mut found: Vec<u64> = Vec::new();
    for name in &printed {
        let typed = name.replace('*', "\\*").replace('?', "\\?");
        let object: Value =
            serde_json::from_str(&asked(a, &["stat", "--json"], &[Path::new(&typed)]).good())
                .must("parse");
        found.push(object["size"].as_u64().must("a size"));
    }
    let mut wanted: Vec<u64> = names.iter().map(|name| name.len() as u64).collect();
    found.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(found, wanted);
    for path in
        ["names/no\u{1b}[31m\u{202e}", "no\u{1b}dir/x", "names/\u{1b}*/x", "names/\\q\u{1b}\\"]
    {
        for word in ["ls", "stat", "du", "rm"] {
            let said = asked(a, &[word], &[&a.at(path)]);
            tame(&said.out);
            tame(&said.err);
        }
    }
    // A name that contains a wildcard, as the shell passes it, is that name and not a pattern.
    let said = asked(a, &["rm", "--dry-run", "--json"], &[&a.at("names/star * and ?")]).good();
    assert_eq!(serde_json::from_str::<Value>(&said).must("parse")["files"], 1);
}

#[test]
fn commands_inside_take_paths_and_globs() {
    let cluster = Cluster::two(Io::best());
    let (a, site) = (&cluster.a, &cluster.site);
    for name in ["x/1.json", "x/2.txt", "x/y/3.json", "z/4.json", "5.json"] {
        put(&a.at(name), name, 0o644);
    }
    symlink(a.at("x"), site.path().join("outside")).must("symlink");
    symlink("/etc", a.at("etc")).must("symlink");
    let lines = |dir: &Path, globs: &[&str]| {
        let mut command = site.hearthfs();
        let said = run(command.current_dir(dir).arg("ls").args(globs), LIMIT_MS);
        assert!(said.status.success(), "{globs:?}: {said:?}");
        let mut lines: Vec<String> = said.out.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let mount = &a.mount;
    assert_eq!(lines(mount, &[]), ["5.json", "etc", "x/", "z/"]);
    assert_eq!(lines(&a.at("x"), &["."]), ["1.json", "2.txt", "y/"]);
    assert_eq!(lines(&a.at("x"), &["y", "../z"])[1..], ["y/3.json"]);
    assert_eq!(lines(mount, &["**/*.json"]), ["5.json", "x/1.json", "x/y/3.json", "z/4.json"]);
    assert_eq!(lines(mount, &["x/**"]), ["x/1.json", "x/2.txt", "x/y/", "x/y/3.json"]);
    assert_eq!(lines(mount, &["?/*.json", "x/1.json"]), ["x/1.json", "z/4.json"]);
    let outside = site.path().join("outside").display().to_string();
    let wanted = ["1.json", "2.txt", "y/"].map(|name| format!("{}/{name}", a.at("x").display()));
    assert_eq!(lines(Path::new("/"), &[&outside]), wanted, "by a link from outside");
    assert_eq!(lines(mount, &["etc"]), ["etc"], "a link on the mount is an entry");
    assert_eq!(lines(mount, &["nothing*"]), Vec::<String>::new());
    for (globs, code, says) in [
        (&["missing"][..], 1, "missing: there is no such name"),
        (&["x/\\"], 2, "backslash"),
        (&["/etc/*"], 3, "is not a hearthfs mount"),
        (&["x", "/etc"], 2, "/etc is not on the mount"),
    ] {
        for word in ["ls", "du"] {
            let said = run(site.hearthfs().current_dir(mount).arg(word).args(globs), LIMIT_MS);
            assert_eq!(said.code(), code, "{word} {globs:?}: {said:?}");
            assert!(said.err.contains(says), "{word} {globs:?}: {said:?}");
        }
    }
    let rows = |by: &str| {
        let said =
            run(site.hearthfs().current_dir(mount).args(["du", "--json", "--by", by]), LIMIT_MS);
        let report: Value = serde_json::from_str(&said.good()).must("parse");
        let rows = report["rows"].as_array().must("rows").iter();
        let row = |row: &Value| {
            (row["name"].as_str().must("a name").to_owned(), row["files"].as_u64().must("a number"))
        };
        let total = &report["total"];
        assert_eq!(
            (&total["files"], &total["bytes"], &total["local_bytes"]),
            (&5.into(), &39.into(), &39.into()),
            "{report}"
        );
        rows.map(row).collect::<BTreeMap<_, _>>()
    };
    let wanted =
        [("(files)", 1), ("x/", 3), ("z/", 1)].map(|(name, files)| (name.to_owned(), files));
    assert_eq!(rows("dir"), BTreeMap::from(wanted));
    assert_eq!(rows("client"), BTreeMap::from([("(none)".to_owned(), 5)]));
    assert_eq!(rows("node"), BTreeMap::from([("here".to_owned(), 5)]));
    let table = run(site.hearthfs().args(["du"]).arg(a.at("x")), LIMIT_MS).good();
    assert!(
        table.contains("x/y/\n") && table.contains("(files)\n") && table.ends_with(" total\n"),
        "{table}"
    );
}

/// A listing is written while it is made: a reader that closes the pipe early ends it.
#[test]
fn commands_ls_ends_with_its_reader() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    std::fs::create_dir(a.at("many")).must("mkdir");
    for number in 0..3000 {
        std::fs::write(a.at(format!("many/{number}-{}", "x".repeat(150))), "").must("write");
    }
    let mut shell = cluster.site.hearthfs();
    let mut command = Command::new("bash");
    command.envs(shell.env("X", "x").get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["-c", "set -o pipefail; \"$0\" ls -l \"$1\" | head -n 3"]);
    let said = run(command.arg(env!("CARGO_BIN_EXE_hearthfs")).arg(a.at("many")), LIMIT_MS);
    assert!(said.status.success() && said.err.is_empty(), "{said:?}");
    assert_eq!(said.out.lines().count(), 3);
    assert_eq!(told(a, "many").len(), 3000);
}

/// A daemon that reports only sizes and times: an older version, or one without extended attributes.
#[test]
fn commands_inside_with_a_daemon_without_facts() {
    let cluster = Cluster::with(Store::dir, &Options::new(Io::best()).without_xattrs());
    let a = &cluster.a;
    put(&a.at("jax/one"), "content", 0o644);
    let said = asked(a, &["ls", "-l"], &[&a.at("jax")]);
    assert!(said.status.success(), "{said:?}");
    let row: Vec<&str> = said.out.lines().nth(1).must("a row").split_whitespace().collect();
    assert_eq!(row, ["7", "B", "-", "-", "-", "-", "-", &a.at("jax/one").display().to_string()]);
    assert_eq!(said.err.matches("older version").count(), 1, "{said:?}");
    let said = asked(a, &["du"], &[&a.mount]);
    assert!(said.status.success() && said.out.contains("7 B"), "{said:?}");
    let said = asked(a, &["rm", "--yes"], &[&a.at("jax")]);
    assert!(said.status.success(), "{said:?}");
    assert_eq!(tree::texts(&a.mount), Vec::<String>::new());
}

#[test]
fn commands_inside_of_a_dead_mount() {
    let mut cluster = Cluster::two(Io::best());
    put(&cluster.a.at("dir/file"), "content", 0o644);
    cluster.a.kill_only();
    for word in ["ls", "stat", "du", "rm"] {
        for path in ["", "dir", "dir/*", "**"] {
            let said = asked(&cluster.a, &[word], &[&cluster.a.at(path)]);
            assert_eq!(said.code(), 3, "{word} {path}: {said:?}");
            assert!(
                said.err.contains("whether its daemon is dead; if so, mount again"),
                "{word} {path}: {said:?}"
            );
        }
    }
    cluster.a.up();
    assert_eq!(told(&cluster.a, "dir").len(), 1);
}

/// The commands show a user what `ls` and `stat` show that user, and remove what `rm` would.
fn p14_isolation_of_what_commands_tell(io: Io) {
    let Some(mut world) = World::two(io, "p14_isolation_of_what_commands_tell") else { return };
    let content = b"a content that B guesses";
    let at = world.cluster.a.mount.clone();
    world.a.make(&at.join("private/secret"), 0o600, content).must("make");
    world.a.make(&at.join("open/closed"), 0o600, b"of A").must("make");
    world.a.make(&at.join("sticky/of-a"), 0o644, b"of A").must("make");
    world.cluster.settle();
    world.b.make(&at.join("open/guess"), 0o644, content).must("make");
    world.b.make(&at.join("sticky/of-b"), 0o644, b"of B").must("make");
    world.cluster.settle();
    let cluster = &world.cluster;
    let by = |words: &[&str], below: &str| asked_by(users::B, cluster, words, &[&at.join(below)]);
    for words in [&["ls"][..], &["ls", "-l"], &["ls", "--json"], &["du"], &["rm", "--dry-run"]] {
        let said = by(words, "**");
        assert_eq!(said.code(), 1, "{words:?}: {said:?}");
        assert!(said.err.contains("private: Permission denied"), "{words:?}: {said:?}");
        for text in [&said.out, &said.err] {
            assert!(!text.contains("secret"), "{words:?}: {said:?}");
        }
    }
    for word in ["ls", "stat", "du", "rm"] {
        let (there, missing) = (by(&[word], "private/secret"), by(&[word], "private/missing"));
        assert_eq!((there.code(), missing.code()), (1, 1), "{word}: {there:?} {missing:?}");
        assert_eq!(there.err.replace("secret", "missing"), missing.err, "{word}");
        assert!(there.out == missing.out && !there.err.contains("No such"), "{word}: {there:?}");
    }
    let said = by(&["ls", "--json"], "open/*");
    let objects = listed(&cluster.a, &said);
    // About a file that B may not read it learns what stat shows.
    let closed = &objects["open/closed"];
    assert_eq!((&closed["size"], &closed["uid"]), (&4.into(), &users::A.uid.into()));
    for key in ["node", "written_ms", "bytes", "digest", "content", "now_ms"] {
        assert!(closed[key].is_null(), "{closed}");
    }
    // It is hidden whether others have the same content.
    let guess = &objects["open/guess"];
    assert!(guess["node"].is_string() && guess["content"].is_null(), "{guess}");
    assert!(told(&cluster.a, "open/guess")["open/guess"]["content"].is_object(), "root can see it");

    let mut faults = Vec::new();
    let precious: Vec<_> = ["private/secret", "sticky/of-a"]
        .map(|name| (name.to_owned(), users::Entry::of(&mut world.root, &at.join(name))))
        .into();
    let cluster = &world.cluster;
    let by = |words: &[&str], below: &str| asked_by(users::B, cluster, words, &[&at.join(below)]);
    for name in ["private", "private/*", "private/secret", "sticky/of-a"] {
        let said = by(&["rm", "--yes"], name);
        assert_eq!(said.code(), 1, "{name}: {said:?}");
    }
    let said = by(&["rm", "--yes"], "sticky/*");
    assert_eq!((said.code(), said.out.as_str()), (1, "removed 1 file (4 B)\n"), "{said:?}");
    assert!(said.err.contains("sticky/of-a: Operation not permitted"), "{said:?}");
    world.check_both(&precious, &mut faults);
    assert!(faults.is_empty(), "{faults:#?}");
    assert_eq!(
        world.root.stat(&world.cluster.b.at("sticky/of-b")).expect_err("gone"),
        Errno::NOENT
    );
}
in_both_modes!(p14_isolation_of_what_commands_tell);
