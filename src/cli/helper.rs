//! `mount.hearthfs`: this program as mount(8) calls it.
//!
//! Owns the helper's arguments, the meaning of its options, and its exit statuses. Must never mount
//! in another way than `hearthfs mount --background` does.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::mount::{MountFlags, mount_remount};

use super::failure::{Failure, Outcome};
use super::mount::prepare;
use super::output::note;
use super::{background, fuse, point, wait};
use crate::config::{FlagValue, Flags, KEYS, Key, Shape, Surroundings, Writes, nearest};

/// The name by which mount(8) calls it.
const NAME: &str = "mount.hearthfs";
const USAGE: &str = "usage: mount.hearthfs URL DIR [-fnsv] [-o OPTION[,OPTION...]]";

/// Exit statuses of mount(8).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum MountExit {
    Done = 0,
    /// Wrong arguments, options or configuration.
    Usage = 1,
    /// This machine cannot mount.
    System = 2,
    /// The mount did not work.
    Mount = 32,
}

/// Sources that name no store: a cache only on this node, or what the configuration says.
const NO_STORE: [&str; 2] = ["none", "hearthfs"];

/// Options without effect: mount(8) has handled them before the helper runs, or they hold anyway,
/// because the cache has no access times, devices or set-uid programs.
const WITHOUT_EFFECT: [&str; 34] = [
    "defaults",
    "rw",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "nosuid",
    "nodev",
    "exec",
    "async",
    "sync",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "mand",
    "nomand",
    "silent",
    "loud",
];
/// The same, for options with a value or a longer name.
const WITHOUT_EFFECT_BEGIN: [&str; 4] = ["x-", "X-", "comment=", "user="];

/// Options that cannot be honoured, each with the reason.
const REFUSED: [(&str, &str); 3] = [
    ("suid", "set-uid bits never count on a hearthfs mount"),
    ("dev", "device files never work on a hearthfs mount"),
    ("remount", "a mount cannot be changed; unmount it and mount again"),
];

/// The request of mount(8).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct HelperRequest {
    source: String,
    dir: PathBuf,
    options: Vec<String>,
    /// Only check.
    fake: bool,
    /// Ignore unknown options.
    sloppy: bool,
    verbose: bool,
}

/// The meaning of the options.
#[derive(Clone, Debug, Default)]
struct Meaning {
    flags: Flags,
    no_exec: bool,
}

/// Reports whether this program was called as the helper.
pub(super) fn is_called_as(program: Option<&OsStr>) -> bool {
    program.map(Path::new).and_then(Path::file_name) == Some(OsStr::new(NAME))
}

/// Mounts as mount(8) requests; returns its exit status.
pub(super) fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    let end = mount(args).unwrap_or_else(|(end, failure)| {
        note(failure.text().trim_end());
        end
    });
    ExitCode::from(end as u8)
}

fn mount(args: impl Iterator<Item = OsString>) -> Result<MountExit, (MountExit, Failure)> {
    let usage = |failure| (MountExit::Usage, failure);
    let asked = parse(args).map_err(usage)?;
    let meaning = meaning(&asked).map_err(usage)?;
    let around = Surroundings::of_process();
    if meaning.no_exec && around.uid != 0 {
        let refused = Failure::refused("`noexec` needs root").hint("add the option `exec`");
        return Err(usage(refused));
    }
    // Whatever is wrong with the settings, the caller has to fix it.
    let (_, loaded) = point::settle(&around, Some(&asked.dir), &meaning.flags).map_err(usage)?;
    fuse::check(&around, loaded.settings.mount.allow_other)
        .map_err(|failure| (MountExit::System, failure))?;
    let failed = |failure| (MountExit::Mount, failure);
    let (point, loaded) =
        wait(prepare(&around, Some(&asked.dir), &meaning.flags)).map_err(failed)?;
    for warning in &loaded.warnings {
        note(&format!("warning: {warning}"));
    }
    if asked.fake {
        return Ok(MountExit::Done);
    }
    let log = wait(background::launch(&around, &point, &meaning.flags)).map_err(failed)?;
    if meaning.no_exec {
        forbid_programs(&point, loaded.settings.mount.writes == Writes::None).map_err(failed)?;
    }
    if asked.verbose {
        note(&format!("mounted at {}; the log is {}", point.display(), log.display()));
    }
    Ok(MountExit::Done)
}

/// Adds `noexec` to an existing mount.
fn forbid_programs(point: &Path, read_only: bool) -> Outcome<()> {
    let mut flags = MountFlags::BIND
        | MountFlags::NOEXEC
        | MountFlags::NOSUID
        | MountFlags::NODEV
        | MountFlags::NOATIME;
    if read_only {
        flags |= MountFlags::RDONLY;
    }
    mount_remount(point, flags, "")
        .map_err(|error| Failure::failed(format!("set noexec on {}: {error}", point.display())))
}

/// Parses the helper's arguments: options may be anywhere.
fn parse(args: impl Iterator<Item = OsString>) -> Outcome<HelperRequest> {
    let refused = |what: String| Failure::refused(what).hint(USAGE);
    let mut asked = HelperRequest::default();
    let mut names = Vec::new();
    let mut args = args;
    while let Some(arg) = args.next() {
        let letters = match arg.to_str().and_then(|arg| arg.strip_prefix('-')) {
            Some(letters) if !letters.is_empty() => letters.to_owned(),
            _ => {
                names.push(arg);
                continue;
            }
        };
        for (at, letter) in letters.char_indices() {
            match letter {
                'f' => asked.fake = true,
                's' => asked.sloppy = true,
                'v' => asked.verbose = true,
                // There is no table of mounts to write.
                'n' => {}
                'o' | 't' => {
                    let rest = &letters[at + 1..];
                    let value = if rest.is_empty() { args.next() } else { Some(rest.into()) };
                    let value = value.and_then(|value| value.into_string().ok());
                    let value = value.ok_or_else(|| refused(format!("-{letter} needs a value")))?;
                    if letter == 'o' {
                        asked.options.extend(split(&value).map_err(refused)?);
                    }
                    break;
                }
                _ => return Err(refused(format!("there is no option -{letter}"))),
            }
        }
    }
    let [source, dir] = <[OsString; 2]>::try_from(names)
        .map_err(|_| refused("a source and a directory are needed".to_owned()))?;
    asked.source = source.into_string().map_err(|_| refused("the source is no text".to_owned()))?;
    asked.dir = dir.into();
    Ok(asked)
}

/// Splits a list of options at its commas; a quoted part is one piece.
fn split(list: &str) -> Result<Vec<String>, String> {
    let (mut all, mut one, mut quoted) = (Vec::new(), String::new(), false);
    for letter in list.chars() {
        match letter {
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(std::mem::take(&mut one)),
            _ => one.push(letter),
        }
    }
    if quoted {
        return Err(format!("a quotation mark is missing in `{list}`"));
    }
    all.push(one);
    all.retain(|option| !option.is_empty());
    Ok(all)
}

/// Determines the meaning of the source and the options.
fn meaning(asked: &HelperRequest) -> Outcome<Meaning> {
    let mut meaning = Meaning::default();
    let mut set = |key: &str, value: &str, flag: &str| {
        let (key, value, flag) = (key.to_owned(), value.to_owned(), flag.to_owned());
        meaning.flags.values.push(FlagValue { key, value, flag });
    };
    if !NO_STORE.contains(&asked.source.as_str()) {
        set("remote.url", &asked.source, "URL");
    }
    let (mut file, mut no_exec) = (None, false);
    let (mut read_only, mut writes) = (false, None);
    for option in &asked.options {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option.as_str(), None),
        };
        if WITHOUT_EFFECT.contains(&option.as_str())
            || WITHOUT_EFFECT_BEGIN.iter().any(|begin| option.starts_with(begin))
        {
            if name == "exec" {
                no_exec = false;
            }
            continue;
        }
        if let Some((_, why)) = REFUSED.iter().find(|(refused, _)| *refused == option) {
            return Err(Failure::refused(format!("the option `{option}` is not supported: {why}")));
        }
        match (option.as_str(), key(name), value) {
            ("ro", ..) => {
                read_only = true;
                set("mount.writes", "none", "-o ro");
            }
            ("noexec", ..) => no_exec = true,
            (_, _, Some(path)) if name == "config" => file = Some(PathBuf::from(path)),
            (_, Some(key), Some(value)) => {
                if key.name == "mount.writes" {
                    writes = Some(value);
                }
                set(key.name, value, "-o");
            }
            (_, Some(key), None) if key.shape == Shape::Switch => set(key.name, "true", "-o"),
            (_, Some(key), None) => {
                let example = format!("{name}={}", key.default);
                return Err(Failure::refused(format!("the option `{name}` needs a value"))
                    .hint(format!("such as {example}")));
            }
            (_, None, _) if asked.sloppy => {}
            (_, None, _) => return Err(unknown(name)),
        }
    }
    if read_only && let Some(writes) = writes.filter(|writes| *writes != "none") {
        let text = format!("the options `ro` and `writes={writes}` contradict each other");
        return Err(Failure::refused(text).hint("leave one of them out"));
    }
    (meaning.flags.file, meaning.no_exec) = (file, no_exec);
    Ok(meaning)
}

/// Finds a key by its full name, or by its last part if that is unique. The two positional
/// arguments are no options.
pub(super) fn key(name: &str) -> Option<&'static Key> {
    let known = || KEYS.iter().filter(|key| !["remote.url", "mount.directory"].contains(&key.name));
    if let Some(key) = known().find(|key| key.name == name) {
        return Some(key);
    }
    let mut same = known().filter(|key| key.short() == name);
    same.next().filter(|_| same.next().is_none())
}

fn unknown(name: &str) -> Failure {
    let mut names: Vec<&str> = KEYS.iter().filter_map(|k| key(k.short())).map(Key::short).collect();
    names.extend(["config", "ro", "noexec"]);
    let failure = match nearest(name, names.iter().copied()) {
        Some(meant) => {
            Failure::refused(format!("unknown option `{name}`; did you mean `{meant}`?"))
        }
        None => Failure::refused(format!("unknown option `{name}`")),
    };
    failure.hint(format!("options are {}, and the general ones of mount(8)", names.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(words: &str) -> Outcome<HelperRequest> {
        parse(words.split(' ').map(OsString::from))
    }

    fn values(words: &str) -> Vec<(String, String)> {
        let meaning = meaning(&asked(words).expect("parsed")).expect("understood");
        meaning.flags.values.into_iter().map(|v| (v.key, v.value)).collect()
    }

    #[test]
    fn it_is_known_by_its_name() {
        assert!(is_called_as(Some(OsStr::new("/sbin/mount.hearthfs"))));
        assert!(is_called_as(Some(OsStr::new("mount.hearthfs"))));
        assert!(!is_called_as(Some(OsStr::new("/usr/bin/hearthfs"))));
        assert!(!is_called_as(None));
    }

    #[test]
    fn arguments_as_mount_gives_them() {
        let found = asked("s3://b/p /mnt/c -v -n -o rw,_netdev").expect("parsed");
        assert_eq!((found.source.as_str(), found.dir.to_str()), ("s3://b/p", Some("/mnt/c")));
        assert_eq!(found.options, ["rw", "_netdev"]);
        assert!(found.verbose && !found.fake && !found.sloppy);
        let found = asked("-sf none /m -t fuse.hearthfs -oro").expect("parsed");
        assert!(found.sloppy && found.fake);
        assert_eq!(found.options, ["ro"]);
        for wrong in ["/m", "a b c", "a b -x", "a b -o", "a b -N 1", "a b -o x=\"y"] {
            let failure = asked(wrong).expect_err(wrong);
            assert!(failure.text().contains("usage: mount.hearthfs"), "{}", failure.text());
        }
    }

    #[test]
    fn options_mean_keys() {
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(
            values("s3://b /m -o cache_size=1GiB,remote.endpoint=http://h:1,ro,allow_other"),
            [
                pair("remote.url", "s3://b"),
                pair("local.cache_size", "1GiB"),
                pair("remote.endpoint", "http://h:1"),
                pair("mount.writes", "none"),
                pair("mount.allow_other", "true"),
            ]
        );
        let list = "none /m -o level=\"info,hearthfs::sync=debug\",age=never";
        assert_eq!(
            values(list),
            [pair("log.level", "info,hearthfs::sync=debug"), pair("expiry.age", "never")]
        );
        assert_eq!(values("none /m -o ro,writes=none").len(), 2);
        let found = meaning(&asked("none /m -o noexec,config=/etc/c.toml").expect("parsed"));
        let found = found.expect("understood");
        assert!(found.no_exec);
        assert_eq!(found.flags.file.as_deref(), Some(Path::new("/etc/c.toml")));
    }

    #[test]
    fn general_options_are_passed_over() {
        let fstab =
            "rw,_netdev,nofail,x-systemd.automount,x-systemd.idle-timeout=1min,comment=x,user=me";
        assert_eq!(values(&format!("none /m -o {fstab},{}", WITHOUT_EFFECT.join(","))), []);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (options, words) in [
            ("suid", &["`suid`", "set-uid"][..]),
            ("remount,ro", &["unmount it and mount again"]),
            ("cache_sise=1GiB", &["did you mean `cache_size`?", "drain_deadline", "noexec"]),
            ("cache_size", &["needs a value", "cache_size=50GiB"]),
            ("ro,writes=shared", &["contradict", "`ro`", "writes=shared"]),
            ("writes=private,ro", &["contradict"]),
            ("url=s3://b", &["unknown option `url`"]),
            ("directory=/x", &["unknown option `directory`"]),
        ] {
            let asked = asked(&format!("none /m -o {options}")).expect("parsed");
            let text = meaning(&asked).expect_err(options).text();
            for word in words {
                assert!(text.contains(word), "{options}: `{word}` is not in: {text}");
            }
        }
        let sloppy = values("none /m -s -o whatever,bogus=1");
        assert_eq!(sloppy, [], "-s skips unknown options");
    }
}
