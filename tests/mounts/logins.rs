//! The snippet for logins: what a shell gets from it in each state of the mount, and what it leaves alone.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::harness::command::{need, run};
use crate::harness::node::{Site, dress, unmount};
use crate::harness::store::Trouble;
use crate::harness::{Io, Must as _, Node, Options, Store, SyscallProcess, eventually, now};
use crate::users::{B, can_be_others, let_in};

const LIMIT_MS: u64 = 60_000;
/// A mount that hangs delays a login by 0.2 s; the rest is for a busy machine.
const LATE: Duration = Duration::from_secs(20);
/// How long the mount waits for a store that hangs: longer than any login may take.
const STORE_DEADLINE: &str = "60s";
const VARIABLES: [(&str, &str); 13] = [
    ("CCACHE_DIR", "ccache"),
    ("GOCACHE", "go-build"),
    ("JAX_COMPILATION_CACHE_DIR", "jax"),
    ("NEURON_COMPILE_CACHE_URL", "neuron"),
    ("NUMBA_CACHE_DIR", "numba"),
    ("OLYMPUS_COMPILATION_CACHE_DIR", "jax"),
    ("SCCACHE_DIR", "sccache"),
    ("TORCHINDUCTOR_CACHE_DIR", "inductor"),
    ("TORCH_EXTENSIONS_DIR", "torch_extensions"),
    ("TRITON_CACHE_DIR", "triton"),
    ("TRITON_DEJAVU_STORAGE", "triton-dejavu"),
    ("VLLM_CACHE_ROOT", "vllm"),
    ("XLA_PERSISTENT_CACHE_PATH", "torch_xla"),
];

/// A strict shell with options of its own; prints whether it still has them.
const LOGIN: &str = r#"
set -euC
IFS=' x'
set -- one 'two  three'
flags=$-
. "$SNIPPET"
echo "status=$?"
[ "$#,$1,$2" = "2,one,two  three" ]
[ "$IFS" = ' x' ]
[ "$-" = "$flags" ]
echo "left=${_hearthfs+set}${_hearthfs_dirs+set}"
env
"#;

/// The logins of an ordinary user with one shell.
struct Logins {
    shell: &'static str,
    site: PathBuf,
    snippet: PathBuf,
}

impl Logins {
    fn new(shell: &'static str, site: &Site, mount: &Path) -> Self {
        let text =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/systemd/hearthfs.sh"));
        let line = format!("_hearthfs={}\n", mount.display());
        let text = text.must("read the snippet").replace("_hearthfs=/mnt/cache\n", &line);
        assert!(text.contains(&line), "the snippet sets the mount point elsewhere");
        let snippet = site.path().join("hearthfs.sh");
        std::fs::write(&snippet, text).must("write the snippet");
        Self { shell, site: site.path().to_owned(), snippet }
    }

    /// Logs in, and returns the exported variables of clients.
    fn login(&self, own: &[(&str, &str)]) -> BTreeMap<String, String> {
        let (uid, gid) = (B.uid.to_string(), B.gid.to_string());
        let mut command = Command::new("setpriv");
        dress(&mut command, &self.site);
        command.args(["--reuid", &uid, "--regid", &gid, "--clear-groups", self.shell, "-c", LOGIN]);
        for (name, _) in VARIABLES {
            command.env_remove(name);
        }
        command.env("SNIPPET", &self.snippet).envs(own.iter().copied()).current_dir("/");
        let start = now();
        let said = run(&mut command, LIMIT_MS);
        let took = start.elapsed();
        assert!(said.status.success() && said.err.is_empty(), "{}: {said:?}", self.shell);
        assert!(took < LATE, "{}: a login took {took:?}", self.shell);
        let rest = said.out.strip_prefix("status=0\nleft=\n");
        let lines = rest.must(format_args!("{} prints nothing: {said:?}", self.shell)).lines();
        let pairs = lines.filter_map(|line| line.split_once('='));
        let known = pairs.filter(|(name, _)| VARIABLES.iter().any(|(known, _)| known == name));
        known.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[track_caller]
    fn get(&self, what: &str, wanted: &BTreeMap<String, String>) {
        // An answer may be late on a busy machine; the login then continues without it.
        eventually(LIMIT_MS, what, || {
            let got = self.login(&[]);
            if got == *wanted { Ok(()) } else { Err(format!("{}: {got:?}", self.shell)) }
        });
    }

    #[track_caller]
    fn get_nothing(&self, what: &str) {
        assert_eq!(self.login(&[]), BTreeMap::new(), "{}: {what}", self.shell);
    }
}

fn all(mount: &Path) -> BTreeMap<String, String> {
    let value = |dir: &str| mount.join(dir).display().to_string();
    VARIABLES.iter().map(|(name, dir)| ((*name).to_owned(), value(dir))).collect()
}

/// Goes through the states of one mount.
fn logins_get_what_works(shell: &'static str) {
    let test = format!("logins_of_{shell}");
    if !can_be_others(&test, Io::best()) || !need(&test, shell) || !need(&test, "setpriv") {
        return;
    }
    let site = Site::new();
    let_in(site.path(), 0o755);
    let store = Store::dir(&site);
    let options = Options::new(Io::best()).client_dirs("1777");
    let mut node = Node::start(&site, "a", Some(&store), options.clone());
    let logins = Logins::new(shell, &site, &node.mount);
    let all = all(&node.mount);
    logins.get("all is exported", &all);
    let own = [
        ("GOCACHE", "/own"),
        ("NEURON_CC_FLAGS", "-O1 --cache_dir=/own"),
        ("TRITON_CACHE_DIR", ""),
    ];
    let got = logins.login(&own);
    assert_eq!((got["GOCACHE"].as_str(), got["TRITON_CACHE_DIR"].as_str()), ("/own", ""));
    assert!(!got.contains_key("NEURON_COMPILE_CACHE_URL"), "{got:?}");

    // A directory that this user cannot write, and one that does not exist.
    std::fs::set_permissions(node.at("numba"), std::fs::Permissions::from_mode(0o755))
        .must("chmod");
    std::fs::remove_dir(node.at("vllm")).must("rmdir");
    let mut fewer = all.clone();
    fewer.retain(|name, _| name != "NUMBA_CACHE_DIR" && name != "VLLM_CACHE_ROOT");
    logins.get("what cannot be written is not exported", &fewer);

    // A daemon that hangs, and one that comes back.
    kill_process(node.pid(), Signal::STOP).must("stop the daemon");
    logins.get_nothing("the daemon hangs");
    kill_process(node.pid(), Signal::CONT).must("continue the daemon");
    logins.get("the daemon answers again", &fewer);

    node.stop();
    node.set_options(options.clone().read_only());
    node.up();
    logins.get_nothing("it is read-only");
    node.kill_only();
    logins.get_nothing("the daemon is dead");
    unmount(&node.mount);
    logins.get_nothing("nothing is mounted");
    // The bare directory below, with a directory in it.
    SyscallProcess::new().mkdir_with(&node.at("ccache"), 0o777).must("mkdir");
    logins.get_nothing("nothing is mounted over a directory");
    std::fs::remove_dir_all(&node.mount).must("remove the mount point");
    logins.get_nothing("there is no mount point");
}

/// A process whose request a hanging daemon has read cannot be killed with SIGKILL. A login waits
/// neither for such a process nor for the store. This test does not kill the asking process, so it
/// stands for one that cannot be killed.
fn logins_wait_for_no_answer(shell: &'static str) {
    let test = format!("logins_wait_for_no_answer_with_{shell}");
    if !can_be_others(&test, Io::best()) || !need(&test, shell) || !need(&test, "setpriv") {
        return;
    }
    let site = Site::new();
    let_in(site.path(), 0o755);
    let store = Store::s3(&site);
    let options =
        Options::new(Io::best()).client_dirs("1777").freshness("0s").deadline(STORE_DEADLINE);
    let node = Node::start(&site, "a", Some(&store), options);
    let logins = Logins::new(shell, &site, &node.mount);
    let text = std::fs::read_to_string(&logins.snippet).must("read the snippet");
    let lasting = text.replace("timeout -s KILL 1 ", "timeout -s KILL 100 ");
    assert_ne!(lasting, text, "the snippet sets the limit elsewhere");
    std::fs::write(&logins.snippet, lasting).must("write the snippet");
    logins.get("all is exported", &all(&node.mount));
    node.drain();
    kill_process(node.pid(), Signal::STOP).must("stop the daemon");
    logins.get_nothing("the daemon hangs");
    kill_process(node.pid(), Signal::CONT).must("continue the daemon");
    store.trouble(Trouble::Hang);
    logins.get_nothing("the store does not answer");
    store.heal();
    logins.get("the store answers again", &all(&node.mount));
}

#[test]
fn logins_wait_for_no_answer_with_dash() {
    logins_wait_for_no_answer("dash");
}

#[test]
fn logins_wait_for_no_answer_with_bash() {
    logins_wait_for_no_answer("bash");
}

#[test]
fn logins_wait_for_no_answer_with_zsh() {
    logins_wait_for_no_answer("zsh");
}

#[test]
fn logins_of_dash() {
    logins_get_what_works("dash");
}

#[test]
fn logins_of_bash() {
    logins_get_what_works("bash");
}

#[test]
fn logins_of_zsh() {
    logins_get_what_works("zsh");
}
