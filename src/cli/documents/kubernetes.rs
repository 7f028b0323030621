//! Checks that `docs/kubernetes` and the image match the program, and the needs of a pod that
//! mounts for its node.

use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser as _;
use yaml_rust2::{Yaml, YamlLoader};

use super::read;
use crate::cli::Cli;
use crate::config::{self, Flags, Settings, Surroundings};

const MANIFEST: &str = "docs/kubernetes/hearthfs.yaml";

/// Reads the documents of a file, by kind.
fn manifest(file: &str) -> Vec<(String, Yaml)> {
    let all = YamlLoader::load_from_str(&read(file)).expect("YAML");
    let kind = |yaml: &Yaml| yaml["kind"].as_str().expect("a kind").to_owned();
    all.into_iter().map(|yaml| (kind(&yaml), yaml)).collect()
}

fn of_kind(kind: &str) -> Yaml {
    let found = manifest(MANIFEST).into_iter().find(|(name, _)| name == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {MANIFEST}")).1
}

fn words(list: &Yaml) -> Vec<String> {
    let all = list.as_vec().expect("a list").iter();
    all.map(|word| word.as_str().expect("text").to_owned()).collect()
}

fn named<'a>(list: &'a Yaml, name: &str) -> &'a Yaml {
    let all = list.as_vec().expect("a list");
    let found = all.iter().find(|item| item["name"].as_str() == Some(name));
    found.unwrap_or_else(|| panic!("nothing is named {name}: {all:?}"))
}

/// Returns the settings in the manifest's configuration, checked as a mount checks them.
fn settings() -> Settings {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("cluster.toml");
    let map = of_kind("ConfigMap");
    std::fs::write(&file, map["data"]["cluster.toml"].as_str().expect("text")).expect("written");
    let flags = Flags { file: Some(file), values: Vec::new() };
    let around = Surroundings { variables: BTreeMap::new(), ..Surroundings::of_process() };
    config::load(&flags, &around, None).expect("a valid configuration").settings
}

#[test]
fn the_pod_may_mount_for_its_node() {
    let set = of_kind("DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["hostPID"].as_bool(), Some(true));
    let daemon = named(&pod["containers"], "hearthfs");
    assert_eq!(daemon["securityContext"]["privileged"].as_bool(), Some(true));
    for (kind, what) in [("requests", "cpu"), ("requests", "memory"), ("limits", "memory")] {
        assert!(daemon["resources"][kind][what].as_str().is_some(), "{kind} {what}");
    }
    // The mount point is below the volume, so that a dead mount does not keep the next pod from starting.
    let settings = settings();
    let point = settings.mount.directory.expect("a mount point");
    let volume = named(&daemon["volumeMounts"], "mounts");
    assert_eq!(volume["mountPropagation"].as_str(), Some("Bidirectional"));
    let at = volume["mountPath"].as_str().expect("a path");
    assert_eq!(point.parent(), Some(Path::new(at)));
    // Compilers write the path into their entries, so it must be the same on the node and in every pod.
    let host = |name: &str| named(&pod["volumes"], name)["hostPath"].clone();
    assert_eq!(host("mounts")["path"].as_str(), Some(at));
    assert_eq!(host("fuse")["path"].as_str(), Some("/dev/fuse"));
    assert_eq!(host("fuse")["type"].as_str(), Some("CharDevice"));
    assert_eq!(named(&daemon["volumeMounts"], "fuse")["mountPath"].as_str(), Some("/dev/fuse"));
    let cache = named(&daemon["volumeMounts"], "cache")["mountPath"].as_str().expect("a path");
    assert!(settings.local.cache_dir.starts_with(cache), "{:?}", settings.local.cache_dir);
    assert_eq!(host("cache")["path"].as_str(), Some(cache));
    let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("a number");
    assert!(grace as u64 > settings.writeback.drain_deadline.as_secs(), "{grace} s for a drain");
    let first = named(&pod["initContainers"], "mount-point");
    let making = words(&first["command"]).join(" ");
    assert!(making.contains(&format!("mkdir -p {} ", point.display())), "{making}");
    assert_eq!(first["image"], daemon["image"]);
}

#[test]
fn probes_ask_what_the_daemon_answers() {
    let set = of_kind("DaemonSet");
    let pod = &set["spec"]["template"]["spec"];
    // The probe comes from the node itself: the address is its loopback.
    assert_eq!(pod["hostNetwork"].as_bool(), Some(true));
    let daemon = named(&pod["containers"], "hearthfs");
    let listen = settings().metrics.listen.expect("an address").to_string();
    for (probe, path) in
        [("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")]
    {
        let get = &daemon[probe]["httpGet"];
        assert_eq!(get["path"].as_str(), Some(path), "{probe}");
        let host = get["host"].as_str().expect("a host");
        let port = get["port"].as_i64().expect("a port");
        assert_eq!(format!("{host}:{port}"), listen, "{probe}");
    }
}

#[test]
fn the_image_runs_what_the_manifest_says() {
    let image = read("Dockerfile");
    let entry = image.lines().find_map(|line| line.strip_prefix("ENTRYPOINT "));
    let entry: Vec<String> = serde_json::from_str(entry.expect("an entry point")).expect("a list");
    assert_eq!(entry, ["/usr/bin/hearthfs"]);
    assert!(read("systemd/debian/build").contains("put 0755 \"$built\" /usr/bin/hearthfs\n"));
    let set = of_kind("DaemonSet");
    let daemon = named(&set["spec"]["template"]["spec"]["containers"], "hearthfs").clone();
    let said = words(&daemon["args"]);
    Cli::try_parse_from(entry.iter().chain(&said)).expect("valid arguments");
    let file = said.last().expect("the configuration");
    let config = named(&daemon["volumeMounts"], "config")["mountPath"].as_str().expect("a path");
    assert_eq!(Path::new(file).parent(), Some(Path::new(config)));
    let map = of_kind("ConfigMap");
    let name = Path::new(file).file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(map["data"][name].as_str().is_some(), "{name}");
    let version = concat!("hearthfs:", env!("CARGO_PKG_VERSION"));
    assert_eq!(daemon["image"].as_str(), Some(version));
    for line in image.lines().filter_map(|line| line.strip_prefix("RUN systemd/")) {
        let script = line.split(' ').next().unwrap_or_default();
        assert!(super::root().join("systemd").join(script).exists(), "{script}");
    }
}

#[test]
fn the_job_sees_the_mount_at_the_same_path() {
    let all = manifest("docs/kubernetes/job.yaml");
    let [(_, job)] = all.as_slice() else { panic!("not one document: {all:?}") };
    let pod = &job["spec"]["template"]["spec"];
    let train = named(&pod["containers"], "train");
    let point = settings().mount.directory.expect("a mount point");
    let volume = named(&train["volumeMounts"], "mounts");
    let at = Path::new(volume["mountPath"].as_str().expect("a path"));
    assert_eq!(point.parent(), Some(at));
    assert_eq!(volume["mountPropagation"].as_str(), Some("HostToContainer"));
    let host = &named(&pod["volumes"], "mounts")["hostPath"];
    assert_eq!(host["path"].as_str().map(Path::new), Some(at));
    for variable in train["env"].as_vec().expect("variables") {
        let value = variable["value"].as_str().expect("text");
        assert!(Path::new(value).starts_with(&point), "{value}");
    }
}
