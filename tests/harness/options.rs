//! The options of a node.
//!
//! Owns the spelling of the configuration in the tests, so that only one place follows the program's keys.

use std::fmt::Write as _;

use super::is_root;

/// How the kernel reads and writes file contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Io {
    /// Directly from and to the backing files.
    Passthrough,
    /// Through the daemon.
    Ordinary,
}

impl Io {
    /// Returns the word for it in configuration and status.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Passthrough => "passthrough",
            Self::Ordinary => "ordinary",
        }
    }

    /// Returns why this machine cannot do passthrough, if it cannot.
    pub(crate) fn passthrough_refused() -> Option<String> {
        if !is_root() {
            return Some("passthrough needs root".to_owned());
        }
        let release = rustix::system::uname().release().to_string_lossy().into_owned();
        let mut parts = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
        let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
        (version < (6, 9)).then(|| format!("passthrough needs Linux 6.9, this is {release}"))
    }

    /// Returns passthrough if this machine supports it, otherwise ordinary I/O.
    pub(crate) fn best() -> Self {
        if Self::passthrough_refused().is_none() { Self::Passthrough } else { Self::Ordinary }
    }
}

/// The settings of one node; unset ones keep the program's default.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// How file contents are read and written.
    pub(crate) io: Io,
    keys: Vec<(&'static str, &'static str, String)>,
    /// Further arguments of `mount`.
    pub(crate) args: Vec<String>,
    /// Further environment of the daemon.
    pub(crate) env: Vec<(String, String)>,
    /// Whether the test measures deadlines and needs the machine exclusively.
    pub(crate) alone: bool,
    /// Words put before the daemon's own command line, such as `unshare --pid --fork`.
    pub(crate) wrapper: Vec<String>,
}

impl Options {
    /// Starts from the defaults of the program.
    pub(crate) fn new(io: Io) -> Self {
        Self {
            io,
            keys: Vec::new(),
            args: Vec::new(),
            env: Vec::new(),
            alone: false,
            wrapper: Vec::new(),
        }
    }

    fn key(mut self, section: &'static str, key: &'static str, value: &str) -> Self {
        self.keys.push((section, key, value.to_owned()));
        self
    }

    /// Applies the rules of Triton to one more directory.
    pub(crate) fn triton_in(self, dir: &str) -> Self {
        self.key("profiles.triton", "also", &format!("[\"{dir}\"]"))
    }

    /// Gives the test the machine exclusively, for tests that measure deadlines.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// Sets whether the root gets a directory for each client, and with which mode.
    pub(crate) fn client_dirs(self, mode: &str) -> Self {
        self.key("mount", "client_dirs", mode)
    }

    /// Turns off extended attributes.
    pub(crate) fn without_xattrs(self) -> Self {
        self.key("mount", "xattrs", "false")
    }

    /// Leaves idle processors as they are.
    pub(crate) fn without_quick_wake(self) -> Self {
        self.key("mount", "quick_wake", "false")
    }

    /// Mounts read-only.
    pub(crate) fn read_only(self) -> Self {
        self.key("mount", "writes", "none")
    }

    /// Keeps on the node what programs write.
    pub(crate) fn private(self) -> Self {
        self.key("mount", "writes", "private")
    }

    /// Sets the local tier's size.
    pub(crate) fn cache_size(self, size: &str) -> Self {
        self.key("local", "cache_size", size)
    }

    /// Sets how long a lookup may rely on the last answer of the remote.
    pub(crate) fn freshness(self, time: &str) -> Self {
        self.key("remote", "freshness", time)
    }

    /// Sets the deadline of every operation on the mount, including waits for other writers.
    pub(crate) fn deadline(self, time: &str) -> Self {
        self.key("remote", "deadline", time).open_wait(time)
    }

    /// Sets how long a reader waits for the first version of a file that is being written.
    pub(crate) fn open_wait(self, time: &str) -> Self {
        self.key("writeback", "open_wait", time)
    }

    /// Sets how long a writer waits for room.
    pub(crate) fn full_wait(self, time: &str) -> Self {
        self.key("writeback", "full_wait", time)
    }

    /// Sets how long an ending mount continues to upload.
    pub(crate) fn drain_deadline(self, time: &str) -> Self {
        self.key("writeback", "drain_deadline", time)
    }

    /// Sets how long closed files are gathered for one commit.
    pub(crate) fn delay(self, time: &str) -> Self {
        self.key("writeback", "delay", time)
    }

    /// Sets how long entries live.
    pub(crate) fn expiry(self, age: &str) -> Self {
        self.key("expiry", "age", age)
    }

    /// Turns off renewal, so that entries expire even if they are used.
    pub(crate) fn without_renewal(self) -> Self {
        self.key("expiry", "renew_on_use", "false")
    }

    /// Gives the daemon a variable.
    pub(crate) fn variable(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Puts words before the daemon's command line.
    pub(crate) fn wrapped(mut self, words: &[&str]) -> Self {
        self.wrapper = words.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Returns the configuration file's text.
    pub(crate) fn toml(&self) -> String {
        let io = ("mount", "io", self.io.word().to_owned());
        let mut keys: Vec<_> = std::iter::once(&io).chain(&self.keys).collect();
        keys.sort_by_key(|(section, ..)| *section);
        let mut text = String::new();
        let mut section = "";
        for (of, key, value) in keys {
            if *of != section {
                section = of;
                let _ = writeln!(text, "[{section}]");
            }
            let _ = match value.as_str() {
                "true" | "false" => writeln!(text, "{key} = {value}"),
                list if list.starts_with('[') => writeln!(text, "{key} = {list}"),
                _ => writeln!(text, "{key} = \"{value}\""),
            };
        }
        text
    }
}
