//! The conditions under which each client finds imported entries.
//!
//! Owns the choice of warnings, one for each client. Must never prevent the import of an entry: this code does not know
//! whether the client will find it.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{CopyPlan, Way};
use crate::name::TreePath;

/// A warning about the entries of one client.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(in crate::cli) struct Warning {
    /// The name of its profile.
    pub(in crate::cli) client: String,
    /// The title of its profile.
    pub(in crate::cli) title: String,
    pub(in crate::cli) text: String,
}

/// The clients that have a warning.
#[derive(Debug)]
pub(super) struct Clients {
    /// The names of those whose warning is pending.
    silent: BTreeSet<String>,
}

impl Clients {
    pub(super) fn new(plan: &CopyPlan) -> Self {
        let all = plan.profiles.all().iter().filter(|profile| !profile.import.is_empty());
        let silent = match plan.way {
            Way::Import => all.map(|profile| profile.name.clone()).collect(),
            Way::Export => BTreeSet::new(),
        };
        Self { silent }
    }

    /// Returns the pending warnings of the clients of an entry; `path` is its path below the mount.
    pub(super) fn seen(&mut self, plan: &CopyPlan, path: &TreePath) -> Vec<Warning> {
        if self.silent.is_empty() {
            return Vec::new();
        }
        let mut said = Vec::new();
        for (profile, names) in plan.profiles.clients(path) {
            if self.silent.remove(&profile.name) {
                let (old, new) = directories(plan, path, names);
                let text = with_directories(&profile.import, &old, &new);
                let (client, title) = (profile.name.clone(), profile.title.clone());
                said.push(Warning { client, title, text });
            }
        }
        said
    }
}

/// Returns the client's directory in the source, and on the mount. The path of that directory is the first `names` names
/// of `path`.
fn directories(plan: &CopyPlan, path: &TreePath, names: usize) -> (PathBuf, PathBuf) {
    let base = plan.place.components().count();
    let (mut old, mut new) = (plan.from.clone(), plan.to.clone());
    for name in path.components().take(names).skip(base) {
        let name = std::ffi::OsStr::from_bytes(name);
        old.push(name);
        new.push(name);
    }
    for _ in names..base {
        old.pop();
        new.pop();
    }
    (old, new)
}

/// Replaces the words OLD and NEW by the directories, quoted for a shell.
fn with_directories(text: &str, old: &Path, new: &Path) -> String {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut out = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        match &rest[..end] {
            "OLD" => out.push_str(&quoted(old)),
            "NEW" => out.push_str(&quoted(new)),
            word => out.push_str(word),
        }
        let gap = rest[end..].find(is_word).map_or(rest.len(), |at| end + at);
        out.push_str(&rest[end..gap]);
        rest = &rest[gap..];
    }
    out
}

/// Quotes a path as one word for a POSIX shell. A path with bytes that are not text needs bash, ksh or zsh.
fn quoted(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+,:@%=".contains(byte);
    match path.to_str() {
        Some(text) if bytes.iter().all(is_plain) => text.to_owned(),
        Some(text) if !text.contains(char::is_control) => {
            format!("'{}'", text.replace('\'', "'\\''"))
        }
        _ => {
            let byte = |byte: &u8| match byte {
                byte if is_plain(byte) || *byte == b' ' => char::from(*byte).to_string(),
                byte => format!("\\x{byte:02x}"),
            };
            format!("$'{}'", bytes.iter().map(byte).collect::<String>())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::path;
    use crate::namespace::Profiles;

    fn plan(from: &str, to: &str, place: TreePath) -> CopyPlan {
        CopyPlan {
            way: Way::Import,
            from: from.into(),
            to: to.into(),
            place,
            profiles: Profiles::default(),
            globs: Vec::new(),
            overwrite: false,
            dry_run: false,
            unit_bytes: 1,
            bytes_max: u64::MAX,
        }
    }

    #[test]
    fn each_client_is_named_once_with_its_directories() {
        let plan = plan("/home/u/caches", "/mnt/cache", TreePath::root());
        let mut clients = Clients::new(&plan);
        let said = clients.seen(&plan, &path("inductor/triton/0/KEY/k.ptx"));
        let names: Vec<&str> = said.iter().map(|one| one.client.as_str()).collect();
        assert_eq!(names, ["triton"], "the inner directory is that of Triton");
        let wanted = "ln -s /mnt/cache/inductor/triton/0 /home/u/caches/inductor/triton/0";
        assert!(said[0].text.contains(wanted), "{}", said[0].text);
        assert!(
            clients.seen(&plan, &path("triton/KEY/k.ptx")).is_empty(),
            "each hint is shown once"
        );
        let said = clients.seen(&plan, &path("jax/jit_f-00-cache"));
        assert_eq!(said.len(), 1, "no hint for XLA: {said:?}");
        assert!(clients.seen(&plan, &path("mine/file")).is_empty());
        assert!(clients.seen(&plan, &path("src/__pycache__/m.cpython-311.pyc")).is_empty());
        let said = clients.seen(&plan, &path("src/__pycache__/m.f-1.py311.nbi"));
        assert_eq!(said[0].client, "numba");
    }

    #[test]
    fn the_directory_of_one_client_is_found_from_what_is_imported() {
        let one = plan("/home/u/.triton/cache", "/mnt/cache/triton", path("triton"));
        let said = Clients::new(&one).seen(&one, &path("triton/KEY/k.ptx"));
        assert!(said[0].text.contains("ln -s /mnt/cache/triton /home/u/.triton/cache`"));
        let key = plan("/old/KEY", "/mnt/cache/triton/KEY", path("triton/KEY"));
        let said = Clients::new(&key).seen(&key, &path("triton/KEY/k.ptx"));
        assert!(said[0].text.contains("ln -s /mnt/cache/triton /old`"), "{}", said[0].text);
    }

    #[test]
    fn a_line_for_the_shell_can_be_pasted() {
        for path in ["/plain/p-1.x", "/with blank/$(id)", "/it's", "/new\nline", "/tilde~"] {
            let line = with_directories("printf %s OLD", Path::new(path), Path::new("/new"));
            let said = std::process::Command::new("bash").arg("-c").arg(&line).output();
            let said = said.expect("run bash");
            assert_eq!(said.stdout, path.as_bytes(), "{line}");
        }
        let bytes = std::ffi::OsStr::from_bytes(b"/not \xff'text");
        let line = with_directories("printf %s NEW", Path::new("/old"), Path::new(bytes));
        let said = std::process::Command::new("bash").arg("-c").arg(&line).output();
        assert_eq!(said.expect("run bash").stdout, bytes.as_bytes(), "{line}");
        assert_eq!(quoted(Path::new("/plain/p-1.x")), "/plain/p-1.x");
    }
}
