//! `hearthfs export`.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::copies::{
    LIMIT_MS, Over, SEEN_MS, command, counts, kernel, many, put, report, same, with_times,
};
use crate::harness::command::{run, wait};
use crate::harness::node::dress;
use crate::harness::{
    Cluster, Io, Must as _, Options, Store, SyscallProcess, eventually, in_both_modes, sleep_ms,
    tree,
};

/// An export writes nothing through a link in its way, and without `--overwrite` no member into an
/// existing unit.
#[test]
fn commands_export_changes_nothing_that_it_should_not() {
    let cluster = Cluster::two(Io::best());
    let (tree, dest) = (cluster.site.dir("tree"), cluster.site.dir("dest"));
    let outside = cluster.site.dir("outside");
    put(&tree.join("dir/file"), "content", 0o644);
    kernel(&tree.join("triton/KEY"), "new");
    let said = command(&cluster.a, &["import"], &[&tree, &cluster.a.mount], &[]);
    assert_eq!(said.code(), 0, "{said:?}");
    std::os::unix::fs::symlink(&outside, dest.join("dir")).must("a link");
    kernel(&dest.join("triton/KEY"), "of an older version");
    let before = tree::texts(&dest.join("triton"));
    let said = command(&cluster.a, &["export"], &[&cluster.a.mount, &dest], &[]);
    assert_eq!(said.code(), 1, "{said:?}");
    assert!(said.err.contains("is not a directory"), "{said:?}");
    assert!(tree::texts(&outside).is_empty(), "a link was followed");
    for globs in [&["triton/KEY/*.ttir"][..], &[]] {
        let globs = globs.iter().map(Path::new);
        let paths: Vec<&Path> =
            std::iter::once(&*cluster.a.mount).chain(globs).chain([&*dest]).collect();
        let said = command(&cluster.a, &["export"], &paths, &[]);
        assert!(said.out.contains("kept"), "{said:?}");
        assert_eq!(tree::texts(&dest.join("triton")), before, "a file that differs is kept");
    }
    let paths = [&*cluster.a.mount, Path::new("triton"), &*dest];
    let said = command(&cluster.a, &["export"], &paths, &["--overwrite"]);
    assert_eq!(said.code(), 0, "{said:?}");
    assert_eq!(tree::texts(&dest.join("triton")), tree::texts(&tree.join("triton")));
}

/// A glob that fits nothing is a mistake, and what fits the others is exported.
#[test]
fn commands_export_names_a_glob_that_fits_nothing() {
    let cluster = Cluster::two(Io::best());
    let dest = cluster.site.path().join("dest");
    put(&cluster.a.at("jax/entry"), "content", 0o644);
    for (globs, fits) in [(&["jaxx"][..], false), (&["jaxx", "jax/*"], true)] {
        let globs = globs.iter().map(Path::new);
        let paths: Vec<&Path> =
            std::iter::once(&*cluster.a.mount).chain(globs).chain([&*dest]).collect();
        let said = command(&cluster.a, &["export"], &paths, &[]);
        assert_eq!(said.code(), 1, "{said:?}");
        assert!(said.err.contains("matches jaxx\n"), "{said:?}");
        assert_eq!(dest.join("jax/entry").exists(), fits, "{said:?}");
    }
}

/// Files that a node cannot fetch while the store is down are counted and named; the others are exported.
#[test]
fn commands_export_names_what_is_not_there() {
    let options = Options::new(Io::best()).deadline("2s");
    let cluster = Cluster::with(Store::dir, &options);
    let dest = cluster.site.path().join("dest");
    let mut process = SyscallProcess::new();
    let text = "far away ".repeat(10_000);
    process.put(&cluster.a.at("far"), text.as_bytes()).must("put");
    cluster.a.drain();
    eventually(SEEN_MS, "the name is seen", || {
        process.stat(&cluster.b.at("far")).map(|_| ()).map_err(|errno| errno.to_string())
    });
    process.put(&cluster.b.at("near"), b"here").must("put");
    cluster.store.fail();
    let said = command(&cluster.b, &["export", "--json"], &[&cluster.b.mount, &dest], &[]);
    cluster.store.heal();
    assert_eq!(said.code(), 1, "{said:?}");
    counts(&report(&said), &[("files", 1), ("failed", 1)]);
    assert!(said.err.contains("far: open it: No such file"), "{}", said.err);
    assert_eq!(tree::texts(&dest), ["near"]);
    // The node needs time to notice that the store is back.
    eventually(SEEN_MS, "the rest is exported", || {
        let said = command(&cluster.b, &["export", "--json"], &[&cluster.b.mount, &dest], &[]);
        if said.status.success() { Ok(()) } else { Err(said.err) }
    });
    assert_eq!(std::fs::read(dest.join("far")).must("read"), text.as_bytes());
}

/// An export that is killed leaves only whole files and whole units, and the next one continues.
#[test]
fn commands_export_that_is_killed() {
    let cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    let dest = cluster.site.dir("dest");
    // The directories below inherit its set-group-id bit.
    std::fs::set_permissions(&dest, Permissions::from_mode(0o2775)).must("chmod");
    many(&source);
    let said = command(&cluster.a, &["import"], &[&source, &mount], &[]);
    assert!(said.status.success(), "{said:?}");
    let mut killed = 0;
    for published in [1, 30, 90] {
        let mut export = cluster.site.hearthfs();
        export.arg("export").arg(&mount).arg(&dest).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = export.spawn().must("start an export");
        let there = || tree::files_below(&dest).len() >= published;
        while !there() && child.try_wait().must("poll the child").is_none() {
            sleep_ms(1);
        }
        child.kill().must("kill it");
        killed +=
            u32::from(wait(&mut child, LIMIT_MS).must("the end of the export").signal().is_some());
        let wanted = tree::read(&source).must("read");
        let mut found = tree::read(&dest).must("read");
        found.retain(|path, _| !path.to_string_lossy().contains("/.hearthfs-export."));
        for (path, thing) in &found {
            assert_eq!(wanted.get(path), Some(thing), "{}", path.display());
        }
        for path in found.keys().filter(|path| path.ends_with("__grp__k.json")) {
            assert!(found.contains_key(&path.with_file_name("k.ttir")), "{}", path.display());
        }
        for path in found.keys().filter(|path| path.extension().is_some_and(|end| end == "nbi")) {
            for number in 1..=3 {
                let data = path.with_extension(format!("{number}.nbc"));
                assert!(found.contains_key(&data), "{}", path.display());
            }
        }
    }
    assert!(killed > 0, "no export was killed before its end");
    let said = command(&cluster.a, &["export", "--json"], &[&mount, &dest], &[]);
    counts(&report(&said), &[("kept", 0), ("failed", 0)]);
    let mut found = with_times(&dest);
    found.retain(|path, _| !path.to_string_lossy().contains("/.hearthfs-export."));
    same(&found, &with_times(&source));
    // Directories that were unfinished when an export was killed.
    let mode = |path: &Path| path.metadata().must("stat").permissions().mode();
    for path in found.keys() {
        let (there, wanted) = (mode(&dest.join(path)), mode(&source.join(path)));
        assert_eq!(there, wanted, "{}", path.display());
    }
    // What the killed exports left behind is not imported.
    put(&dest.join(".hearthfs-export.0123456789abcdef"), "a part", 0o644);
    put(&dest.join("triton/K0/.hearthfs-export.fedcba9876543210"), "a part", 0o644);
    put(&dest.join(".hearthfs-export.notes"), "no part", 0o644);
    let again = cluster.b.mount.clone();
    let said = command(&cluster.b, &["import", "--json"], &[&dest, &again], &["--overwrite"]);
    assert!(report(&said)["left_out"]["temporary"].as_u64().is_some_and(|n| n >= 2), "{said:?}");
    let parts = |path: &PathBuf| path.to_string_lossy().contains("/.hearthfs-export.");
    let found: Vec<PathBuf> = tree::files_below(&again).into_iter().filter(parts).collect();
    assert_eq!(found, [again.join(".hearthfs-export.notes")]);
}

/// A unit that is constantly replaced is exported in one version.
fn commands_export_writes_one_version(io: Io) {
    let cluster = Cluster::two(io);
    let dir = cluster.a.at("triton/KEY");
    std::fs::create_dir_all(&dir).must("mkdir");
    let write = |version: u32| {
        let mut process = SyscallProcess::new();
        for name in ["k.json", "k.ttir", "__grp__k.json"] {
            let text = format!("version {version}").repeat(2000);
            process.put(&dir.join(name), text.as_bytes()).must(name);
        }
    };
    write(0);
    let (over, versions) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                write(versions.fetch_add(1, Ordering::Relaxed) + 1);
            }
        });
        let _at_end = Over(&over);
        let mut number = 0;
        while number < 8 || versions.load(Ordering::Relaxed) < 20 {
            number += 1;
            let dest = cluster.site.path().join(format!("dest{number}"));
            let said = command(&cluster.a, &["export", "--json"], &[&cluster.a.mount, &dest], &[]);
            counts(&report(&said), &[("files", 3), ("units", 1), ("failed", 0)]);
            let read = |name| std::fs::read(dest.join("triton/KEY").join(name)).must("read");
            let entry = read("__grp__k.json");
            for name in ["k.json", "k.ttir"] {
                assert!(read(name) == entry, "{name} is of another version");
            }
        }
    });
}
in_both_modes!(commands_export_writes_one_version);

/// However many entry points a unit has, few files are open at once.
#[test]
fn commands_export_opens_few_files_at_once() {
    let cluster = Cluster::two(Io::best());
    let (source, mount) = (cluster.site.dir("source"), cluster.a.mount.clone());
    let dest = cluster.site.path().join("dest");
    kernel(&source.join("triton/KEY"), "one");
    for number in 0..300 {
        put(&source.join(format!("triton/KEY/__grp__{number}.json")), "an entry point", 0o644);
    }
    let said = command(&cluster.a, &["import"], &[&source, &mount], &[]);
    assert!(said.status.success(), "{said:?}");
    let mut export = Command::new("sh");
    dress(&mut export, cluster.site.path());
    export.args(["-c", "ulimit -n 200 && exec \"$@\"", "sh", env!("CARGO_BIN_EXE_hearthfs")]);
    let said = run(export.args(["export", "--json"]).arg(&mount).arg(&dest), LIMIT_MS);
    counts(&report(&said), &[("files", 303), ("units", 1), ("failed", 0)]);
    same(&with_times(&dest), &with_times(&source));
}
