//! The programs that cache into a directory, and how each is told which.
//!
//! Owns the table of their environment variables. Must never override what the user has set.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// One variable of one client.
#[derive(Debug)]
pub(super) struct Client {
    /// Who reads it.
    name: &'static str,
    /// The variable.
    variable: &'static str,
    /// The directory of the client below the mount. Variables that share one are one setting: if the
    /// user has set any of them, none is touched.
    dir: &'static str,
    /// Whether the client fails, or caches nothing, if the directory is not there.
    needs_dir: bool,
    /// Other variables that, if they are set and hold this word, say the same in another way.
    unless: &'static [(&'static str, &'static str)],
}

const fn client(name: &'static str, variable: &'static str, dir: &'static str) -> Client {
    Client { name, variable, dir, needs_dir: false, unless: &[] }
}

/// All clients. What each does in its directory is known from reading its source or watching it run.
///
/// Not in here, on purpose: Bazel takes `--disk_cache` only as a flag; CUDA's ComputeCache is one index
/// file without locks, which is better kept on the node; XLA's side caches lie below JAX's directory.
static CLIENTS: &[Client] = &[
    client("OLYMPUS", "OLYMPUS_COMPILATION_CACHE_DIR", "jax"),
    client("JAX", "JAX_COMPILATION_CACHE_DIR", "jax"),
    // Not known to make its directory.
    Client { needs_dir: true, ..client("PyTorch/XLA", "XLA_PERSISTENT_CACHE_PATH", "torch_xla") },
    client("TorchInductor", "TORCHINDUCTOR_CACHE_DIR", "inductor"),
    client("Triton", "TRITON_CACHE_DIR", "triton"),
    // It asks for a directory that is there and writable, or gives up.
    Client { needs_dir: true, ..client("triton-dejavu", "TRITON_DEJAVU_STORAGE", "triton-dejavu") },
    client("vLLM", "VLLM_CACHE_ROOT", "vllm"),
    client("PyTorch extensions", "TORCH_EXTENSIONS_DIR", "torch_extensions"),
    client("numba", "NUMBA_CACHE_DIR", "numba"),
    Client {
        unless: &[("NEURON_CC_FLAGS", "--cache_dir")],
        ..client("AWS Neuron", "NEURON_COMPILE_CACHE_URL", "neuron")
    },
    // Whoever names a second level keeps the first where it is: on the node's own disk, where its
    // statistics and locks, which mean nothing elsewhere, cost the other nodes nothing.
    Client {
        unless: &[("CCACHE_REMOTE_STORAGE", ""), ("CCACHE_SECONDARY_STORAGE", "")],
        ..client("ccache", "CCACHE_DIR", "ccache")
    },
    client("sccache", "SCCACHE_DIR", "sccache"),
    client("Go", "GOCACHE", "go-build"),
];

/// What is to be set for a command that runs on a mount.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Plan {
    /// Variables and their values.
    pub(super) variables: Vec<(&'static str, OsString)>,
    /// Directories that have to be there, relative to the mount.
    pub(super) dirs: Vec<&'static str>,
}

/// Decides what to set for a command on the mount at `point`, given what the user has set.
pub(super) fn plan(point: &Path, set: &BTreeMap<OsString, OsString>) -> Plan {
    let is_set = |variable: &str| set.contains_key(OsStr::new(variable));
    let mut plan = Plan::default();
    for client in CLIENTS {
        let mut same = CLIENTS.iter().filter(|other| other.dir == client.dir);
        if same.any(|other| is_set(other.variable)) || said_otherwise(client, set) {
            continue;
        }
        plan.variables.push((client.variable, point.join(client.dir).into_os_string()));
        if client.needs_dir && !plan.dirs.contains(&client.dir) {
            plan.dirs.push(client.dir);
        }
    }
    plan.variables.push(("HEARTHFS_MOUNT", point.as_os_str().to_owned()));
    plan
}

fn said_otherwise(client: &Client, set: &BTreeMap<OsString, OsString>) -> bool {
    client.unless.iter().any(|(variable, word)| {
        set.get(OsStr::new(variable)).is_some_and(|value| value.to_string_lossy().contains(*word))
    })
}

/// Writes the table for the help text.
pub(super) fn help() -> String {
    let row = |client: &Client| {
        let value = format!("DIR/{}", client.dir);
        format!("  {:<30} {:<26} {}\n", client.variable, value, client.name)
    };
    CLIENTS.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(set: &[(&str, &str)]) -> BTreeMap<&'static str, String> {
        let set = set.iter().map(|(k, v)| (k.into(), v.into())).collect();
        let plan = plan(Path::new("/m"), &set);
        plan.variables.into_iter().map(|(k, v)| (k, v.into_string().expect("text"))).collect()
    }

    #[test]
    fn every_client_gets_a_directory() {
        let all = planned(&[]);
        for (variable, value) in [
            ("OLYMPUS_COMPILATION_CACHE_DIR", "/m/jax"),
            ("JAX_COMPILATION_CACHE_DIR", "/m/jax"),
            ("TRITON_CACHE_DIR", "/m/triton"),
            ("TORCHINDUCTOR_CACHE_DIR", "/m/inductor"),
            ("NUMBA_CACHE_DIR", "/m/numba"),
            ("NEURON_COMPILE_CACHE_URL", "/m/neuron"),
            ("XLA_PERSISTENT_CACHE_PATH", "/m/torch_xla"),
            ("TRITON_DEJAVU_STORAGE", "/m/triton-dejavu"),
            ("VLLM_CACHE_ROOT", "/m/vllm"),
            ("TORCH_EXTENSIONS_DIR", "/m/torch_extensions"),
            ("CCACHE_DIR", "/m/ccache"),
            ("SCCACHE_DIR", "/m/sccache"),
            ("GOCACHE", "/m/go-build"),
            ("HEARTHFS_MOUNT", "/m"),
        ] {
            assert_eq!(all.get(variable).map(String::as_str), Some(value), "{variable}");
        }
        assert_eq!(all.len(), CLIENTS.len() + 1);
    }

    #[test]
    fn what_the_user_has_set_stays() {
        let all = planned(&[
            ("TRITON_CACHE_DIR", "/mine"),
            ("JAX_COMPILATION_CACHE_DIR", ""),
            ("NEURON_CC_FLAGS", "-O1 --cache_dir=/mine"),
            ("CCACHE_REMOTE_STORAGE", "file:/m/ccache"),
        ]);
        for untouched in [
            "TRITON_CACHE_DIR",
            "JAX_COMPILATION_CACHE_DIR",
            "OLYMPUS_COMPILATION_CACHE_DIR",
            "NEURON_COMPILE_CACHE_URL",
            "CCACHE_DIR",
        ] {
            assert!(!all.contains_key(untouched), "{untouched}");
        }
        assert!(all.contains_key("NUMBA_CACHE_DIR"));
    }

    #[test]
    fn directories_of_clients_that_make_none() {
        let dirs = plan(Path::new("/m"), &BTreeMap::new()).dirs;
        assert_eq!(dirs, ["torch_xla", "triton-dejavu"]);
        let mine = BTreeMap::from([("TRITON_DEJAVU_STORAGE".into(), "/mine".into())]);
        assert!(!plan(Path::new("/m"), &mine).dirs.contains(&"triton-dejavu"));
    }

    /// Runs the snippet for logins in a shell, and returns what it exports.
    fn exported(set: &[(&str, &str)]) -> BTreeMap<String, String> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/hearthfs.sh");
        let text = std::fs::read_to_string(path).expect("readable");
        let script = format!("{}\nenv", text.replace("=/mnt/cache\n", "=/m\n"));
        let mut shell = std::process::Command::new("sh");
        shell.env_clear().envs(set.iter().copied()).args(["-euc", &script]);
        let output = shell.output().expect("a shell");
        assert!(output.status.success(), "{output:?}");
        let lines = String::from_utf8(output.stdout).expect("text");
        let pairs = lines.lines().filter_map(|line| line.split_once('='));
        pairs
            .filter(|(name, _)| CLIENTS.iter().any(|client| client.variable == *name))
            .filter(|(name, _)| !set.iter().any(|(own, _)| own == name))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    #[test]
    fn logins_get_what_a_run_gets() {
        for set in [
            &[][..],
            &[("TRITON_CACHE_DIR", "/mine"), ("JAX_COMPILATION_CACHE_DIR", "")],
            &[("OLYMPUS_COMPILATION_CACHE_DIR", "/mine"), ("GOCACHE", "")],
            &[("NEURON_CC_FLAGS", "-O1 --cache_dir=/mine"), ("SCCACHE_DIR", "/x")],
            &[("NEURON_CC_FLAGS", "-O1"), ("CCACHE_REMOTE_STORAGE", "file:/m/ccache")],
            &[("CCACHE_SECONDARY_STORAGE", ""), ("NUMBA_CACHE_DIR", "/n")],
        ] {
            let mut wanted = planned(set);
            wanted.remove("HEARTHFS_MOUNT");
            let wanted: BTreeMap<String, String> =
                wanted.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
            assert_eq!(exported(set), wanted, "{set:?}");
        }
    }

    #[test]
    fn units_get_what_a_run_gets() {
        let text = include_str!("../../systemd/hearthfs-clients.conf");
        let lines = text.lines().filter_map(|line| line.strip_prefix("Environment="));
        let set: BTreeMap<&str, &str> = lines.filter_map(|line| line.split_once('=')).collect();
        assert_eq!(set.len(), CLIENTS.len());
        for client in CLIENTS {
            let value = format!("/mnt/cache/{}", client.dir);
            assert_eq!(set.get(client.variable), Some(&value.as_str()), "{}", client.variable);
        }
    }
}
