//! The keys that exist: one table, which reading, checking, showing and the shipped file share.
//!
//! Owns each key's name, default, meaning and check. Must never gain a key for a value with one
//! right answer: that is a constant with a comment.

use std::path::PathBuf;
use std::time::Duration;

use super::settings::{AllowOther, ClientDirs, IoMode, LogFormat, Settings, Writes};
use super::units::{ByteSize, format_duration, parse_age, parse_duration};

/// The smallest usable cache: the largest batch must fit beside what is read.
pub const CACHE_SIZE_MIN: ByteSize = ByteSize::mib(16);
/// The most threads that answer the kernel.
pub const THREADS_MAX: usize = 64;

/// The form of a key's value in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A string.
    Text,
    /// `true` or `false`, or otherwise a string.
    Switch,
    /// A whole number, or otherwise a string.
    Count,
}

/// One key.
#[derive(Debug)]
pub struct Key {
    /// `section.name`.
    pub name: &'static str,
    /// The form of its value in the file.
    pub shape: Shape,
    /// The default, as it would be written; empty if it is determined at start.
    pub default: &'static str,
    /// The environment variable that sets it.
    pub variable: Option<&'static str>,
    /// Checks a value and stores it; the error describes what is allowed.
    pub set: fn(&mut Settings, &str) -> Result<(), String>,
}

impl Key {
    /// Returns the section of the file.
    pub fn section(&self) -> &'static str {
        self.name.split_once('.').map_or("", |(section, _)| section)
    }

    /// Returns the name inside its section.
    pub fn short(&self) -> &'static str {
        self.name.split_once('.').map_or(self.name, |(_, name)| name)
    }

    /// Writes a value as the file would.
    pub fn literal(&self, value: &str) -> String {
        let bare = match self.shape {
            Shape::Text => false,
            Shape::Switch => matches!(value, "true" | "false"),
            Shape::Count => value.parse::<u32>().is_ok(),
        };
        if bare { value.to_owned() } else { toml::Value::from(value).to_string() }
    }
}

/// All keys, in the order in which the file shows them.
pub static KEYS: &[Key] = &[
    text("mount.directory", "", Some("HEARTHFS_MOUNT"), |s, v| {
        optional(v, mount_point).map(|dir| s.mount.directory = dir)
    }),
    text("mount.io", "auto", Some("HEARTHFS_IO"), |s, v| {
        let words = [
            ("auto", IoMode::Auto),
            ("passthrough", IoMode::Passthrough),
            ("ordinary", IoMode::Ordinary),
        ];
        word(v, &words).map(|io| s.mount.io = io)
    }),
    Key {
        name: "mount.allow_other",
        shape: Shape::Switch,
        default: "auto",
        variable: Some("HEARTHFS_ALLOW_OTHER"),
        set: |s, v| {
            let words =
                [("auto", AllowOther::Auto), ("true", AllowOther::Yes), ("false", AllowOther::No)];
            word(v, &words).map(|who| s.mount.allow_other = who)
        },
    },
    text("mount.writes", "shared", Some("HEARTHFS_WRITES"), |s, v| {
        let all = [Writes::Shared, Writes::Private, Writes::None];
        word(v, &all.map(|what| (what.word(), what))).map(|what| s.mount.writes = what)
    }),
    text("mount.client_dirs", "auto", Some("HEARTHFS_CLIENT_DIRS"), |s, v| {
        client_dirs(v).map(|dirs| s.mount.client_dirs = dirs)
    }),
    Key {
        name: "mount.xattrs",
        shape: Shape::Switch,
        default: "true",
        variable: Some("HEARTHFS_XATTRS"),
        set: |s, v| word(v, &SWITCH).map(|on| s.mount.xattrs = on),
    },
    Key {
        name: "mount.quick_wake",
        shape: Shape::Switch,
        default: "true",
        variable: Some("HEARTHFS_QUICK_WAKE"),
        set: |s, v| word(v, &SWITCH).map(|on| s.mount.quick_wake = on),
    },
    Key {
        name: "mount.threads",
        shape: Shape::Count,
        default: "auto",
        variable: None,
        set: |s, v| threads(v).map(|count| s.mount.threads = count),
    },
    text("local.cache_dir", "", Some("HEARTHFS_CACHE_DIR"), |s, v| {
        directory(v).map(|dir| s.local.cache_dir = dir)
    }),
    text("local.cache_size", "50GiB", Some("HEARTHFS_CACHE_SIZE"), |s, v| {
        size(v, CACHE_SIZE_MIN, ByteSize(1 << 60)).map(|size| s.local.cache_size = size)
    }),
    text("remote.url", "", Some("HEARTHFS_REMOTE"), |s, v| {
        optional(v, str::parse).map(|url| s.remote.url = url)
    }),
    text("remote.endpoint", "", Some("HEARTHFS_ENDPOINT"), |s, v| {
        optional(v, endpoint).map(|url| s.remote.endpoint = url)
    }),
    text("remote.region", "", Some("HEARTHFS_REGION"), |s, v| {
        optional(v, region).map(|name| s.remote.region = name)
    }),
    Key {
        name: "remote.path_style",
        shape: Shape::Switch,
        default: "auto",
        variable: Some("HEARTHFS_PATH_STYLE"),
        set: |s, v| {
            let words = [("auto", None), ("true", Some(true)), ("false", Some(false))];
            word(v, &words).map(|on| s.remote.path_style = on)
        },
    },
    text("remote.deadline", "5s", Some("HEARTHFS_DEADLINE"), |s, v| {
        time(v, 100, 300_000).map(|time| s.remote.deadline = time)
    }),
    text("remote.freshness", "1s", Some("HEARTHFS_FRESHNESS"), |s, v| {
        time(v, 0, 3_600_000).map(|time| s.remote.freshness = time)
    }),
    text("remote.prefetch", "256MiB", Some("HEARTHFS_PREFETCH"), |s, v| {
        size(v, ByteSize(0), ByteSize(1 << 60)).map(|size| s.remote.prefetch = size)
    }),
    text("writeback.delay", "200ms", None, |s, v| {
        time(v, 0, 60_000).map(|time| s.writeback.delay = time)
    }),
    text("writeback.batch", "8MiB", None, |s, v| {
        size(v, ByteSize(64 << 10), ByteSize::mib(256)).map(|size| s.writeback.batch = size)
    }),
    text("writeback.drain_deadline", "60s", Some("HEARTHFS_DRAIN_DEADLINE"), |s, v| {
        time(v, 0, 86_400_000).map(|time| s.writeback.drain_deadline = time)
    }),
    text("writeback.open_wait", "5s", None, |s, v| {
        time(v, 0, 300_000).map(|time| s.writeback.open_wait = time)
    }),
    text("writeback.full_wait", "60s", None, |s, v| {
        time(v, 0, 3_600_000).map(|time| s.writeback.full_wait = time)
    }),
    text("expiry.age", "30d", Some("HEARTHFS_EXPIRY"), |s, v| {
        parse_age(v).map(|age| s.expiry.age = age)
    }),
    Key {
        name: "expiry.renew_on_use",
        shape: Shape::Switch,
        default: "true",
        variable: None,
        set: |s, v| word(v, &SWITCH).map(|on| s.expiry.renew_on_use = on),
    },
    Key {
        name: "run.cache_short_compiles",
        shape: Shape::Switch,
        default: "false",
        variable: Some("HEARTHFS_CACHE_SHORT_COMPILES"),
        set: |s, v| word(v, &SWITCH).map(|on| s.run.cache_short_compiles = on),
    },
    text("metrics.listen", "", Some("HEARTHFS_METRICS"), |s, v| {
        optional(v, str::parse).map(|at| s.metrics.listen = at)
    }),
    Key {
        name: "metrics.allow_remote",
        shape: Shape::Switch,
        default: "false",
        variable: None,
        set: |s, v| word(v, &SWITCH).map(|on| s.metrics.allow_remote = on),
    },
    text("metrics.textfile", "", Some("HEARTHFS_METRICS_TEXTFILE"), |s, v| {
        optional(v, textfile).map(|path| s.metrics.textfile = path)
    }),
    text("log.level", "info", Some("HEARTHFS_LOG"), |s, v| {
        log_level(v).map(|level| s.log.level = level)
    }),
    text("log.format", "text", Some("HEARTHFS_LOG_FORMAT"), |s, v| {
        word(v, &[("text", LogFormat::Text), ("json", LogFormat::Json)])
            .map(|format| s.log.format = format)
    }),
];

/// Returns the key of that full name.
pub(super) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Returns the names of the sections, in order.
pub(super) fn sections() -> Vec<&'static str> {
    let mut names: Vec<_> = KEYS.iter().map(Key::section).collect();
    names.dedup();
    names
}

const SWITCH: [(&str, bool); 2] = [("true", true), ("false", false)];

const fn text(
    name: &'static str,
    default: &'static str,
    variable: Option<&'static str>,
    set: fn(&mut Settings, &str) -> Result<(), String>,
) -> Key {
    Key { name, shape: Shape::Text, default, variable, set }
}

fn word<T: Copy>(value: &str, words: &[(&str, T)]) -> Result<T, String> {
    words.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
        let all: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        format!("expected one of {}", all.join(", "))
    })
}

fn optional<T>(
    value: &str,
    read: impl FnOnce(&str) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if value.is_empty() { Ok(None) } else { read(value).map(Some) }
}

fn size(value: &str, least: ByteSize, most: ByteSize) -> Result<ByteSize, String> {
    let size: ByteSize = value.parse()?;
    if size < least || size > most {
        return Err(format!("it must be from {least} to {most}"));
    }
    Ok(size)
}

fn time(value: &str, least_ms: u64, most_ms: u64) -> Result<Duration, String> {
    let time = parse_duration(value)?;
    let (least, most) = (Duration::from_millis(least_ms), Duration::from_millis(most_ms));
    if time < least || time > most {
        let (least, most) = (format_duration(least), format_duration(most));
        return Err(format!("it must be from {least} to {most}"));
    }
    Ok(time)
}

fn threads(value: &str) -> Result<Option<usize>, String> {
    if value == "auto" {
        return Ok(None);
    }
    match value.parse() {
        Ok(count) if (1..=THREADS_MAX).contains(&count) => Ok(Some(count)),
        _ => Err(format!("expected \"auto\" or a number from 1 to {THREADS_MAX}")),
    }
}

fn client_dirs(value: &str) -> Result<ClientDirs, String> {
    // Without the set-group-ID bit: `mkdir` ignores it, and the service may not set it.
    const MODE_MAX: u32 = 0o1777;
    match value {
        "auto" => return Ok(ClientDirs::Auto),
        "none" => return Ok(ClientDirs::None),
        _ => {}
    }
    let octal = value.bytes().all(|byte| byte.is_ascii_digit());
    match u32::from_str_radix(value, 8) {
        Ok(mode) if octal && value.len() >= 3 && mode <= MODE_MAX => Ok(ClientDirs::Mode(mode)),
        _ => {
            Err("expected \"auto\", \"none\" or an octal mode from \"000\" to \"1777\"".to_owned())
        }
    }
}

fn directory(value: &str) -> Result<PathBuf, String> {
    if value.contains('\0') {
        return Err("it holds a zero byte".to_owned());
    }
    if value.starts_with("~/") || value == "~" {
        return Err("`~` is not expanded here; write the whole path".to_owned());
    }
    Ok(PathBuf::from(value))
}

fn mount_point(value: &str) -> Result<PathBuf, String> {
    let dir = directory(value)?;
    if dir.is_absolute() { Ok(dir) } else { Err("expected an absolute path".to_owned()) }
}

fn textfile(value: &str) -> Result<PathBuf, String> {
    let path = directory(value)?;
    // A textfile collector reads only such names.
    let is_it = path.is_absolute() && path.extension().is_some_and(|end| end == "prom");
    if is_it { Ok(path) } else { Err("expected an absolute path that ends in .prom".to_owned()) }
}

fn endpoint(value: &str) -> Result<String, String> {
    const FORM: &str = "expected http://HOST[:PORT] or https://HOST[:PORT]";
    let url = url::Url::parse(value).map_err(|error| format!("{error}; {FORM}"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err(FORM.to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(format!("credentials do not belong in an address; {FORM}"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(FORM.to_owned());
    }
    Ok(value.trim_end_matches('/').to_owned())
}

fn region(value: &str) -> Result<String, String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    if value.len() > 64 || !value.bytes().all(plain) {
        return Err("expected a name such as \"eu-central-1\"".to_owned());
    }
    Ok(value.to_owned())
}

fn log_level(value: &str) -> Result<String, String> {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let good = value.split(',').all(|part| {
        let (target, level) = part.split_once('=').unwrap_or(("hearthfs", part));
        let named = !target.is_empty()
            && target.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b':'));
        named && LEVELS.contains(&level)
    });
    if good {
        return Ok(value.to_owned());
    }
    Err(format!(
        "expected one of {}, or pairs such as \"info,hearthfs::sync=debug\"",
        LEVELS.join(", ")
    ))
}
