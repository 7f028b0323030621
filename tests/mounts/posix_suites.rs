//! Other projects' POSIX suites on the mount: `pjdfstest` and `fsx`, in both I/O modes.
//!
//! Deviations from ext4 are listed in `tests/posix/pjdfstest.expected`, each line with its reason. A
//! test that fails or is skipped without being listed is a failure; so is a listed test that passes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::command::run;
use crate::harness::node::Site;
use crate::harness::{
    Cluster, Io, Must as _, Node, Options, Store, eventually, in_both_modes, is_root, skipped,
};

const EXPECTED: &str = include_str!("../posix/pjdfstest.expected");
const CONFIG: &str = include_str!("../posix/pjdfstest.toml");
const TESTS_MIN: usize = 390;
const LIMIT_MS: u64 = 200_000;
const FSX_CONFIG: &str = include_str!("../posix/fsx.toml");
/// The operations of one run: a test's daemon has a limited lifetime, so each run has its own.
const FSX_OPERATIONS: &str = "25000";
/// The number of runs of each of the two tests, in each mode, unless `HEARTHFS_FSX_RUNS` sets it:
/// 100,000 operations in all. 20 runs make 1,000,000, which take about a quarter of an hour.
const FSX_RUNS: u64 = 2;
const FSX_SEED: u64 = 42;

/// Returns a program that an environment variable names, or reports the skip.
fn program(test: &str, variable: &str) -> Option<PathBuf> {
    let Some(path) = std::env::var_os(variable).map(PathBuf::from) else {
        skipped(test, format_args!("{variable} is not set; `.ci/run` installs the program"));
        return None;
    };
    assert!(path.is_file(), "{variable}={} does not exist", path.display());
    Some(path)
}

/// Reads the table: `failed NAME REASON` or `skipped NAME REASON` in each line.
fn expected() -> BTreeMap<&'static str, &'static str> {
    let lines = EXPECTED.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|line| {
            let (state, rest) = line.split_once(' ').must(line);
            let (name, reason) = rest.trim().split_once(' ').must(line);
            assert!(["failed", "skipped"].contains(&state), "{line}");
            assert!(!reason.trim().is_empty(), "a line without a reason: {line}");
            (name, state)
        })
        .collect()
}

/// Reads what the suite printed: a name and its state in each line.
fn results(out: &str) -> BTreeMap<String, &'static str> {
    let states = [("ok", "ok"), ("failed", "failed"), ("FAILED", "failed"), ("skipped", "skipped")];
    out.lines()
        .filter_map(|line| {
            let (name, last) = line.trim_end().rsplit_once(char::is_whitespace)?;
            let state = states.iter().find(|(word, _)| *word == last)?.1;
            let name = name.trim();
            (name.contains("::") && !name.contains(' ')).then(|| (name.to_owned(), state))
        })
        .collect()
}

fn posix_suites_pjdfstest(io: Io) {
    let test = format!("posix_suites_pjdfstest::{}", io.word());
    let Some(suite) = program(&test, "HEARTHFS_PJDFSTEST") else { return };
    if !is_root() {
        skipped(&test, "the suite changes users, which needs root");
        return;
    }
    let site = Site::new();
    let node = Node::start(&site, "m", None, Options::new(io));
    let config = site.path().join("pjdfstest.toml");
    std::fs::write(&config, CONFIG).must("write the suite's configuration");
    let work = node.at("pjd");
    std::fs::create_dir(&work).must("mkdir");
    let mut command = Command::new(suite);
    command.arg("-c").arg(&config).arg("-p").arg(&work).arg("-s").arg(site.dir("elsewhere"));
    open_to_all(site.path());
    let said = run(command.current_dir(site.path()), LIMIT_MS);
    let results = results(&said.out);
    assert!(results.len() >= TESTS_MIN, "only {} tests ran\n{said:?}", results.len());
    let expected = expected();
    let mut apart = Vec::new();
    for (name, state) in &results {
        let wanted = expected.get(name.as_str()).copied().unwrap_or("ok");
        if *state != wanted {
            apart.push(format!("{state} {name} (expected: {wanted})"));
        }
    }
    let known: BTreeSet<&str> = results.keys().map(String::as_str).collect();
    apart.extend(
        expected
            .keys()
            .filter(|name| !known.contains(*name))
            .map(|name| format!("gone {name} (stands in the table)")),
    );
    assert!(
        apart.is_empty(),
        "{} results differ from the table:\n{}",
        apart.len(),
        apart.join("\n")
    );
}
in_both_modes!(posix_suites_pjdfstest);

/// The suite's other users must be able to reach the mount below the test's directory.
fn open_to_all(dir: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir, open).must("let other users in");
}

/// Random reads, writes, mappings, truncations and holes, compared with a copy in memory; the result
/// is the same on the other node. Each store through a mapping is synced, and nothing is closed.
fn posix_suites_fsx(io: Io) {
    fsx(io, "posix_suites_fsx", None);
}
in_both_modes!(posix_suites_fsx);

/// The same with mappings that are not synced, and with closes and opens in between.
fn posix_suites_fsx_with_closes(io: Io) {
    fsx(io, "posix_suites_fsx_with_closes", Some(FSX_CONFIG));
}
in_both_modes!(posix_suites_fsx_with_closes);

fn fsx(io: Io, test: &str, config: Option<&str>) {
    let Some(fsx) = program(&format!("{test}::{}", io.word()), "HEARTHFS_FSX") else { return };
    let runs = std::env::var("HEARTHFS_FSX_RUNS").ok().map(|runs| runs.parse().must("a number"));
    for run_number in 0..runs.unwrap_or(FSX_RUNS) {
        let seed = (FSX_SEED + run_number).to_string();
        let cluster = Cluster::with(Store::dir, &Options::new(io));
        let mut command = Command::new(&fsx);
        command.args(["-N", FSX_OPERATIONS, "-S", &seed, "-P"]).arg(cluster.site.path());
        if let Some(text) = config {
            let path = cluster.site.path().join("fsx.toml");
            std::fs::write(&path, text).must("write the suite's configuration");
            command.arg("-f").arg(path);
        }
        let said = run(command.arg(cluster.a.at("fsx")), LIMIT_MS);
        assert!(said.status.success(), "seed {seed}: {}\n{}", said.out, said.err);
        cluster.a.drain();
        let Ok(left) = std::fs::read(cluster.a.at("fsx")) else { continue };
        eventually(6_000, "the other node shows the same", || {
            let right = std::fs::read(cluster.b.at("fsx")).map_err(|error| error.to_string())?;
            if left == right { Ok(()) } else { Err("other bytes".to_owned()) }
        });
    }
}
