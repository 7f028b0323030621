//! The unit files, as far as they can be checked without running them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::Must as _;
use crate::harness::command::{need, run};
use crate::harness::node::Site;

const LIMIT_MS: u64 = 60_000;
/// The highest exposure in `systemd-analyze security` for a unit whose remaining points are not explained.
const EXPOSURE_MAX: f64 = 3.0;
/// Settings that give a service a mount namespace of its own: its mounts would not be visible outside.
const HIDING: &[&str] = &[
    "BindPaths",
    "BindReadOnlyPaths",
    "DynamicUser",
    "ExecPaths",
    "ExtensionImages",
    "InaccessiblePaths",
    "IPCNamespacePath",
    "LogNamespace",
    "MountAPIVFS",
    "MountFlags",
    "MountImages",
    "NoExecPaths",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateMounts",
    "PrivateTmp",
    "PrivateUsers",
    "ProcSubset",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "ReadOnlyPaths",
    "ReadWritePaths",
    "RootDirectory",
    "RootImage",
    "TemporaryFileSystem",
    "User",
];

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("systemd")
}

fn read(name: &str) -> String {
    std::fs::read_to_string(units().join(name)).must(format_args!("read {name}"))
}

/// Returns the settings of a unit: name and value.
fn settings(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('='))
}

#[test]
fn service_units_verify() {
    if !need("service_units_verify", "systemd-analyze") {
        return;
    }
    let site = Site::new();
    let dir = site.dir("units");
    let names = ["hearthfs@.service", "hearthfs-gc@.service", "hearthfs-gc@.timer"];
    for name in names {
        // The program is not installed where the units expect it.
        let text = read(name).replace("/usr/bin/hearthfs", env!("CARGO_BIN_EXE_hearthfs"));
        std::fs::write(dir.join(name), text).must("write a unit");
    }
    let mut command = Command::new("systemd-analyze");
    command.args(["verify", "--man=no", "--recursive-errors=no"]);
    command.args(names.map(|name| dir.join(name)));
    let said = run(&mut command, LIMIT_MS);
    assert!(said.status.success() && said.err.is_empty(), "{said:?}");
}

/// Returns the exposure of a unit, and the checks that count against it.
fn exposure(name: &str) -> (f64, Vec<String>) {
    let mut command = Command::new("systemd-analyze");
    command.args(["security", "--offline=yes", "--no-pager"]).arg(units().join(name));
    let said = run(&mut command, LIMIT_MS).good();
    let line = said.lines().find(|line| line.contains("Overall exposure level")).must("a score");
    let score = line.split_whitespace().find_map(|word| word.parse().ok()).must("a number");
    let bad = said.lines().filter_map(|line| line.strip_prefix('✗'));
    let names = bad.filter_map(|line| line.split_whitespace().next().map(str::to_owned));
    (score, names.collect())
}

#[test]
fn service_units_are_hardened_or_say_why_not() {
    if !need("service_units_are_hardened_or_say_why_not", "systemd-analyze") {
        return;
    }
    let (score, left) = exposure("hearthfs-gc@.service");
    assert!(score <= EXPOSURE_MAX, "the gc unit: {score}, for {left:?}");
    let (score, left) = exposure("hearthfs@.service");
    let text = read("hearthfs@.service");
    let explained: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix('#'))
        .flat_map(str::split_whitespace)
        .collect();
    let unexplained: Vec<&String> =
        left.iter().filter(|check| !explained.contains(&check.as_str())).collect();
    assert!(
        score <= EXPOSURE_MAX || unexplained.is_empty(),
        "{score}, and the unit does not say why {unexplained:?}"
    );
}

#[test]
fn service_units_hide_no_mount() {
    let text = read("hearthfs@.service");
    for (name, value) in settings(&text) {
        assert!(!HIDING.contains(&name), "{name}={value} hides the mount from the host");
    }
    let value =
        |wanted: &str| settings(&text).find(|(name, _)| *name == wanted).must(wanted).1.to_owned();
    assert_eq!(value("Type"), "notify");
    assert_eq!(value("RuntimeDirectoryPreserve"), "yes", "instances share the directory");
    assert!(value("CapabilityBoundingSet").contains("CAP_SYS_ADMIN"));
    // Root mounts with mount(2), which allows this setting.
    assert_eq!(value("NoNewPrivileges"), "yes");
    assert_eq!(settings(&text).filter(|(name, _)| *name == "User").count(), 0);
}

#[test]
fn service_units_wait_longer_than_the_drain() {
    let shipped = read("hearthfs.toml");
    let drain = shipped.lines().find_map(|line| line.strip_prefix("drain_deadline = "));
    let drain = hearthfs::config::parse_duration(drain.must("the key").trim_matches('"'));
    let unit = read("hearthfs@.service");
    let stop = settings(&unit).find(|(name, _)| *name == "TimeoutStopSec").must("the setting").1;
    let stop = hearthfs::config::parse_duration(stop).must("a time");
    assert!(stop > drain.must("a time"), "the service is killed before its drain is over");
}
