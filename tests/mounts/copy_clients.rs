//! Imported caches of real compilers: whether their entries are found, as the warnings say.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::clients::{command as program, json, python_with};
use crate::copies::{LIMIT_MS, SEEN_MS, command as hearthfs};
use crate::harness::command::run;
use crate::harness::{Cluster, Io, Must as _, eventually, tree};

/// Imports a directory on A, and waits until B has all of it. Returns the output.
fn import(cluster: &Cluster, from: &Path, name: &str) -> String {
    let said = hearthfs(&cluster.a, &["import"], &[from, &cluster.a.at(name)], &["--drain=60s"]);
    assert!(said.status.success(), "{said:?}");
    let wanted = tree::files_below(from).len();
    eventually(SEEN_MS, "the other node has it", || {
        let found = tree::files_below(&cluster.b.at(name)).len();
        if found == wanted { Ok(()) } else { Err(format!("{found} of {wanted} files")) }
    });
    said.err
}

/// numba finds imported entries under any directory, for a source at the same path.
#[test]
fn clients_numba_finds_what_was_imported() {
    let Some(python) = python_with("clients_numba_finds_what_was_imported", "numba") else {
        return;
    };
    let cluster = Cluster::two(Io::best());
    let (old, sources) = (cluster.site.dir("old"), cluster.site.dir("sources"));
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/numba_program.py");
    for name in ["program.py", "other.py"] {
        std::fs::copy(script, sources.join(name)).must("copy the program");
    }
    let runs = |name: &str, dir: &Path| {
        let mut command: Command = program(&cluster, &python, "", &[]);
        command.arg(sources.join(name)).env("NUMBA_CACHE_DIR", dir);
        let said: Value = json(run(&mut command, LIMIT_MS));
        (said["hits"].as_u64().must("a count"), said["misses"].as_u64().must("a count"))
    };
    assert_eq!(runs("program.py", &old), (0, 2));
    let said = import(&cluster, &old, "numba");
    assert!(said.contains("with any `NUMBA_CACHE_DIR`"), "{said}");
    for node in [&cluster.a, &cluster.b] {
        assert_eq!(runs("program.py", &node.at("numba")), (2, 0));
    }
    assert_eq!(runs("other.py", &cluster.b.at("numba")), (0, 2), "a source at another path");
}

/// Triton finds imported entries only at the path of the directory in which they were made. The
/// link of the warning leads from there to the mount.
#[test]
fn clients_triton_finds_what_was_imported() {
    let test = "clients_triton_finds_what_was_imported";
    let Some(python) = python_with(test, "triton") else { return };
    let cluster = Cluster::two(Io::best());
    let old = cluster.site.dir("old");
    let written = |dir: &Path| {
        let mut command = program(&cluster, &python, "triton_kernel.py", &[]);
        let said = json(run(command.env("TRITON_CACHE_DIR", dir), LIMIT_MS));
        said["new"].as_array().must("a list").len()
    };
    assert_eq!(written(&old), 8);
    let said = import(&cluster, &old, "triton");
    let link = format!("ln -s {} {}", cluster.a.at("triton").display(), old.display());
    assert!(said.contains(&link), "{said}");
    std::fs::rename(&old, cluster.site.path().join("old.before")).must("mv");
    for node in [&cluster.a, &cluster.b] {
        symlink(node.at("triton"), &old).must("ln -s");
        assert_eq!(written(&old), 0, "it was compiled again");
        std::fs::remove_file(&old).must("rm");
    }
    assert_eq!(written(&cluster.b.at("triton")), 8, "another path is always a miss");
    assert_eq!(written(&cluster.b.at("triton")), 0);
}
