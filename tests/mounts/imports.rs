//! `hearthfs import`.

use std::os::unix::fs::MetadataExt as _;
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::copies::{
    FUNCTIONS, KERNELS, LIMIT_MS, MADE_S, Over, SEEN_MS, clients, command, counts, function,
    kernel, leftovers, link, many, put, report, same, usable, with_times,
};
use crate::harness::command::{run, wait};
use crate::harness::node::{dress, unmount};
use crate::harness::{
    Cluster, Io, Must as _, Options, Store, SyscallProcess, eventually, in_both_modes, sleep_ms,
    tree,
};
use crate::users;

/// Caches of several clients that are imported on one node appear on the other, whole and with
/// their times. What belongs to one node stays out. What is exported equals what was imported.
fn commands_import_and_export_whole_trees(io: Io) {
    let cluster = Cluster::two(io);
    let (source, plain) = (cluster.site.dir("source"), cluster.site.dir("plain"));
    for dir in [&source, &plain] {
        clients(dir);
    }
    leftovers(&source);
    let mount = cluster.a.mount.clone();
    let import =
        |more: &[&str]| command(&cluster.a, &["import", "--json"], &[&source, &mount], more);
    let dry = report(&import(&["--dry-run"]));
    assert_eq!(tree::texts(&mount), Vec::<String>::new(), "nothing was written");
    let said = import(&["--drain=60s"]);
    assert!(said.status.success(), "{said:?}");
    let first = report(&said);
    for key in ["files", "bytes", "units", "left_out", "warnings"] {
        assert_eq!(dry[key], first[key], "{key}");
    }
    counts(&first, &[("files", 48), ("units", 7), ("same", 0), ("kept", 0), ("failed", 0)]);
    let left =
        [("temporary", 2), ("node_local", 2), ("lock", 1), ("special", 1), ("incomplete", 2)];
    counts(&first["left_out"], &left);
    let warned: Vec<&Value> =
        first["warnings"].as_array().must("a list").iter().map(|one| &one["client"]).collect();
    assert_eq!(warned.len(), 3, "{warned:?}");
    let link = format!("ln -s {} {}", mount.join("jax").display(), source.join("jax").display());
    assert!(said.err.contains(&link), "{}", said.err);

    let wanted = with_times(&plain);
    let mut here = with_times(&mount);
    for dir in ["triton/KEY9", "ccache", "ccache/0"] {
        assert!(here.remove(Path::new(dir)).is_some(), "an empty directory is kept: {dir}");
    }
    same(&here, &wanted);
    eventually(SEEN_MS, "the other node has all of it", || {
        let found = with_times(&cluster.b.mount).len();
        if found == wanted.len() + 3 { Ok(()) } else { Err(format!("{found} names")) }
    });
    let there = with_times(&cluster.b.mount);
    for (path, text) in &wanted {
        assert_eq!(there.get(path), Some(text), "{}", path.display());
    }
    let made = cluster.a.at("mine").metadata().must("stat");
    assert_eq!(made.mtime() as u64, MADE_S + 77, "the time of a directory");
    counts(&report(&import(&[])), &[("files", 0), ("same", 48), ("kept", 0), ("failed", 0)]);

    let dest = cluster.site.path().join("exported/here");
    let export = |more: &[&Path]| {
        let mut paths = vec![&*cluster.b.mount];
        paths.extend(more);
        paths.push(&dest);
        command(&cluster.b, &["export", "--json"], &paths, &[])
    };
    let some = report(&export(&[Path::new("mine"), Path::new("**/*.ttir")]));
    counts(&some, &[("files", 11), ("failed", 0)]);
    assert_eq!(tree::texts(&dest), ["mine", "triton"]);
    assert_eq!(tree::texts(&dest.join("triton/KEY1")), ["k.ttir"]);
    let all = report(&export(&[]));
    // A unit of which a part exists is written whole.
    counts(&all, &[("files", 42), ("same", 6), ("kept", 0), ("failed", 0)]);
    let mut exported = with_times(&dest);
    for dir in ["triton/KEY9", "ccache", "ccache/0"] {
        exported.remove(Path::new(dir));
    }
    same(&exported, &wanted);
}
in_both_modes!(commands_import_and_export_whole_trees);

/// Existing files and units stay, units as a whole. With `--overwrite` they are replaced, units as a whole.
fn commands_import_keeps_what_is_there(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    let mut process = SyscallProcess::new();
    process.mkdir(&mount.join("triton")).must("mkdir");
    process.mkdir(&mount.join("triton/KEY0")).must("mkdir");
    process.mkdir(&mount.join("numba")).must("mkdir");
    for name in ["k.json", "k.ttir", "old.ptx", "__grp__k.json"] {
        process.put(&mount.join("triton/KEY0").join(name), b"theirs").must("put");
    }
    for name in ["m.f-1.py311.nbi", "m.f-1.py311.1.nbc", "m.f-1.py311.2.nbc"] {
        process.put(&mount.join("numba").join(name), b"theirs").must("put");
    }
    process.put(&mount.join("plain"), b"theirs").must("put");
    kernel(&source.join("triton/KEY0"), "ours");
    kernel(&source.join("triton/KEY1"), "ours");
    function(&source.join("numba"), "m.f-1", 3, "ours");
    put(&source.join("plain"), "ours", 0o644);
    let import =
        |more: &[&str]| command(&cluster.a, &["import", "--json"], &[&source, &mount], more);
    let kept = report(&import(&[]));
    counts(&kept, &[("files", 3), ("units", 1), ("kept", 8), ("failed", 0)]);
    for name in ["plain", "triton/KEY0/k.json", "numba/m.f-1.py311.1.nbc"] {
        assert_eq!(SyscallProcess::new().get(&mount.join(name)).must("read"), b"theirs", "{name}");
    }
    assert!(!mount.join("numba/m.f-1.py311.3.nbc").exists(), "no mixed unit");
    let replaced = report(&import(&["--overwrite", "--drain"]));
    counts(&replaced, &[("files", 8), ("units", 2), ("same", 3), ("kept", 0), ("failed", 0)]);
    let wanted = with_times(&source);
    for node in [&cluster.a, &cluster.b] {
        eventually(SEEN_MS, "the new versions are visible", || {
            let there = with_times(&node.mount);
            let differs = |(path, text): &(&PathBuf, &String)| there.get(*path) != Some(*text);
            wanted.iter().find(differs).map_or(Ok(()), |differs| Err(format!("{differs:?}")))
        });
    }
}
in_both_modes!(commands_import_keeps_what_is_there);

/// An import that is killed leaves only whole units, on all nodes, and the next one continues.
fn commands_import_that_is_killed(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    many(&source);
    let mut killed = 0;
    for published in [1, 20, 60, 100] {
        let mut import = cluster.site.hearthfs();
        import.arg("import").arg(&source).arg(&mount).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = import.spawn().must("start an import");
        // Waits until so many units are there, or the import has ended.
        let there = || {
            let kernels = (0..KERNELS)
                .filter(|number| mount.join(format!("triton/KEY{number}/__grp__k.json")).exists());
            kernels.count() >= published
        };
        while !there() && child.try_wait().must("poll the child").is_none() {
            sleep_ms(1);
        }
        child.kill().must("kill it");
        let status = wait(&mut child, LIMIT_MS).must("the end of the export");
        killed += u32::from(status.signal().is_some());
        usable(&cluster.a, &source);
        let wanted = with_times(&source);
        for (path, there) in with_times(&mount) {
            assert_eq!(Some(&there), wanted.get(&path), "{} is whole", path.display());
        }
        cluster.a.drain();
        usable(&cluster.b, &source);
    }
    assert!(killed > 0, "no import was killed before its end");
    let said = command(&cluster.a, &["import", "--json"], &[&source, &mount], &["--drain"]);
    counts(&report(&said), &[("kept", 0), ("failed", 0)]);
    assert_eq!(usable(&cluster.a, &source), KERNELS + FUNCTIONS);
    eventually(SEEN_MS, "the other node has all units", || {
        let found = usable(&cluster.b, &source);
        if found == KERNELS + FUNCTIONS { Ok(()) } else { Err(format!("{found} units")) }
    });
}
in_both_modes!(commands_import_that_is_killed);

/// No process on any node ever sees a part of a unit that is being imported.
fn commands_import_shows_whole_units(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    many(&source);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for node in [&cluster.a, &cluster.b] {
            let (over, source) = (&over, &source);
            threads.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    usable(node, source);
                }
            });
        }
        let at_end = Over(&over);
        let said = command(&cluster.a, &["import", "--json"], &[&source, &mount], &["--drain"]);
        drop(at_end);
        let units = u64::from(KERNELS + FUNCTIONS);
        counts(&report(&said), &[("units", units), ("kept", 0), ("failed", 0)]);
    });
    for node in [&cluster.a, &cluster.b] {
        eventually(SEEN_MS, "all units are visible", || {
            let found = usable(node, &source);
            if found == KERNELS + FUNCTIONS { Ok(()) } else { Err(format!("{found} units")) }
        });
    }
}
in_both_modes!(commands_import_shows_whole_units);

/// Links and files replace each other with `--overwrite`, both ways, and no temporary name is left.
fn commands_import_and_export_replace_links(io: Io) {
    let cluster = Cluster::two(io);
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    let (dest, other) = (cluster.site.dir("dest"), cluster.site.dir("other"));
    link("there", &source.join("link"));
    link("there", &source.join("file-to-link"));
    put(&source.join("link-to-file"), "a file now", 0o640);
    put(&source.join("file"), "another file", 0o640);
    for dir in [&other, &dest] {
        link("elsewhere", &dir.join("link"));
        put(&dir.join("file-to-link"), "a file", 0o644);
        link("elsewhere", &dir.join("link-to-file"));
        put(&dir.join("file"), "a file", 0o644);
    }
    let import = |from: &Path, more: &[&str]| {
        let said = command(&cluster.a, &["import", "--json"], &[from, &mount], more);
        counts(&report(&said), &[("failed", 0)]);
        report(&said)
    };
    import(&other, &[]);
    counts(&import(&source, &[]), &[("files", 0), ("kept", 4)]);
    same(&with_times(&mount), &with_times(&other));
    counts(&import(&source, &["--overwrite", "--drain"]), &[("files", 4), ("kept", 0)]);
    same(&with_times(&mount), &with_times(&source));
    eventually(SEEN_MS, "the other node has the same", || {
        let (there, wanted) = (with_times(&cluster.b.mount), with_times(&source));
        if there == wanted { Ok(()) } else { Err(format!("{there:?}")) }
    });
    let export = |more: &[&str]| {
        report(&command(&cluster.b, &["export", "--json"], &[&cluster.b.mount, &dest], more))
    };
    counts(&export(&[]), &[("files", 0), ("kept", 4), ("failed", 0)]);
    counts(&export(&["--overwrite"]), &[("files", 4), ("kept", 0), ("failed", 0)]);
    same(&with_times(&dest), &with_times(&source));
}
in_both_modes!(commands_import_and_export_replace_links);

/// An unreadable file is named, its unit is left out as a whole, and all else is imported.
#[test]
fn commands_import_names_what_it_cannot_read() {
    let io = Io::best();
    if !users::can_be_others("commands_import_names_what_it_cannot_read", io) {
        return;
    }
    let cluster = Cluster::two(io);
    users::let_in(cluster.site.path(), 0o755);
    let source = cluster.site.dir("source");
    kernel(&source.join("triton/KEY0"), "readable");
    kernel(&source.join("triton/KEY1"), "not readable");
    put(&source.join("triton/KEY1/k.ttir"), "secret", 0o600);
    put(&source.join("mine/secret"), "secret", 0o600);
    put(&source.join("mine/open"), "open", 0o644);
    put(&source.join("mine/closed/file"), "open", 0o644);
    users::let_in(&source.join("mine/closed"), 0o700);
    let to = cluster.a.at("open");
    std::fs::create_dir(&to).must("mkdir");
    users::let_in(&to, 0o777);
    // Other users may not be able to access the build directory.
    let program = cluster.site.path().join("hearthfs");
    std::fs::copy(env!("CARGO_BIN_EXE_hearthfs"), &program).must("copy the program");
    users::let_in(&program, 0o755);
    let mut import = std::process::Command::new(&program);
    dress(&mut import, cluster.site.path());
    import.uid(users::A.uid).gid(users::A.gid).current_dir("/");
    let profiles = cluster.site.path().join("profiles.toml");
    std::fs::write(&profiles, "[profiles.triton]\nalso = [\"open/triton\"]\n").must("write");
    import.args(["import", "--json", "--config"]).arg(&profiles).arg(&source).arg(&to);
    let said = run(&mut import, LIMIT_MS);
    assert_eq!(said.code(), 1, "{said:?}");
    let report = report(&said);
    counts(&report, &[("files", 4), ("units", 1), ("failed", 3)]);
    for name in ["mine/secret", "triton/KEY1/k.ttir", "mine/closed"] {
        let line = format!("failed: {}", source.join(name).display());
        assert!(said.err.contains(&line) && said.err.contains("Permission denied"), "{}", said.err);
    }
    assert!(said.err.contains("3 files and directories could not be imported"), "{}", said.err);
    assert_eq!(tree::texts(&to.join("triton/KEY1")), Vec::<String>::new());
    assert_eq!(tree::texts(&to.join("triton/KEY0")).len(), 3);
    assert_eq!(tree::texts(&to.join("mine")), ["open"]);
}

#[test]
fn commands_import_and_export_refuse_what_cannot_be() {
    let cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    put(&source.join("file"), "content", 0o644);
    let not_there = source.join("missing");
    let above = cluster.site.path();
    for (words, paths, code, says) in [
        ("import", [&*source, &*source.join("dir")], 3, "is not a hearthfs mount"),
        ("import", [&*not_there, &*mount], 2, "No such file"),
        ("import", [&*source.join("file"), &*mount], 2, "is not a directory"),
        ("import", [&*mount, &*mount.join("below")], 2, "one is inside the other"),
        ("import", [above, &*mount], 2, "one is inside the other"),
        ("import", [above, &*mount.join("below")], 2, "one is inside the other"),
        ("export", [&*source, &*cluster.site.path().join("dest")], 3, "is not a hearthfs mount"),
        ("export", [&*mount, &*mount.join("dest")], 2, "one is inside the other"),
        ("export", [&*not_there, &*source], 3, "is not a hearthfs mount"),
    ] {
        let said = command(&cluster.a, &[words], &paths, &[]);
        assert_eq!(said.code(), code, "{words} {paths:?}: {said:?}");
        assert!(
            said.err.contains(says) && said.err.contains("hint: "),
            "{words} {paths:?}: {said:?}"
        );
    }
    let dest = cluster.site.path().join("dest");
    let said = command(&cluster.a, &["export"], &[&mount, Path::new("a/**/b"), &dest], &[]);
    assert_eq!(said.code(), 2, "{said:?}");
    assert!(said.err.contains("a/**/b") && said.err.contains("beginning or end"), "{said:?}");
    assert!(!dest.exists() && tree::texts(&mount).is_empty());
}

/// The profiles of the daemon decide how a file is treated, not those of the command's own configuration.
#[test]
fn commands_import_by_the_profiles_of_the_daemon() {
    let options = Options::new(Io::best()).triton_in("team/*");
    let cluster = Cluster::with(Store::dir, &options);
    let (source, to) = (cluster.site.dir("source"), cluster.a.at("team/x"));
    kernel(&source.join("KEY"), "ours");
    put(&source.join("KEY/tmp.pid_1_x/k.ptx"), "being written", 0o644);
    let said = command(&cluster.a, &["import", "--json"], &[&source, &to], &[]);
    let report = report(&said);
    counts(&report, &[("files", 3), ("units", 1), ("failed", 0)]);
    counts(&report["left_out"], &[("temporary", 1)]);
}

/// Two paths of one directory are recognised, although a bind mount makes them differ.
#[test]
fn commands_export_refuses_a_bind_mount_of_its_source() {
    let cluster = Cluster::two(Io::best());
    let bound = cluster.site.dir("bound");
    std::fs::create_dir(cluster.a.at("below")).must("mkdir");
    put(&cluster.a.at("below/file"), "content", 0o644);
    rustix::mount::mount_bind(cluster.a.at("below"), &bound).must("bind");
    let dest = bound.join("dest");
    let said = command(&cluster.a, &["export"], &[&cluster.a.mount, &dest], &[]);
    let made = dest.exists();
    unmount(&bound);
    assert_eq!(said.code(), 2, "{said:?}");
    assert!(said.err.contains("one is inside the other") && !made, "{}", said.err);
}

/// If a bind mount leads from SRC to DIR, the imported files are not imported again.
#[test]
fn commands_import_leaves_out_its_own_target() {
    let cluster = Cluster::two(Io::best());
    let (source, to) = (cluster.site.dir("source"), cluster.a.at("to"));
    put(&source.join("file"), "content", 0o644);
    std::fs::create_dir(&to).must("mkdir");
    let bound = cluster.site.dir("source/bound");
    rustix::mount::mount_bind(&to, &bound).must("bind");
    let said = command(&cluster.a, &["import", "--json"], &[&source, &to], &[]);
    unmount(&bound);
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.err.contains("bound: it is the target directory"), "{}", said.err);
    counts(&report(&said), &[("files", 1), ("failed", 1)]);
    assert_eq!(tree::texts(&to), ["file"]);
}

/// An import ends when its mount does, and does not report each remaining file as a failure.
#[test]
fn commands_import_ends_with_its_mount() {
    let mut cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    many(&source);
    let mut import = cluster.site.hearthfs();
    import.args(["import", "--json"]).arg(&source).arg(&mount);
    let mut child = import.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().must("start");
    while !mount.join("numba").exists() && !mount.join("triton").exists() {
        assert!(child.try_wait().must("poll the child").is_none(), "the import ended too early");
        sleep_ms(1);
    }
    cluster.a.kill_only();
    let output = child.wait_with_output().must("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the mount is gone: mount it again"), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).must("JSON");
    assert!(report["failed"].as_u64().must("a count") <= 8, "{report:#}");
    cluster.a.up();
    usable(&cluster.a, &source);
    let said = command(&cluster.a, &["import", "--json"], &[&source, &mount], &[]);
    counts(&self::report(&said), &[("kept", 0), ("failed", 0)]);
    assert_eq!(usable(&cluster.a, &source), KERNELS + FUNCTIONS);
}
