//! Documents and shell snippets from the profiles of clients: `docs/clients.md` and the snippets of `systemd/`.

use std::fmt::Write as _;

use super::paragraph;
use crate::namespace::{
    Check, Pattern, Profile, Profiles, Rule, RuleKind, Scope, Touch, Unless, Writers,
};

const HEAD: &str = "\
# hearthfs: clients

Made from `src/namespace/profiles.toml`. `hearthfs profiles NAME` prints the same for the profile in effect on this machine,
with the additions of `[profiles.NAME]` of the configuration.

`hearthfs run -- COMMAND` sets the variables below for one command, `systemd/hearthfs.sh` for logins and
`systemd/hearthfs-clients.conf` for units. Variables that the user has set stay; `hearthfs run` names them, and replaces one that
leads to another hearthfs mount, such as that of the login. MOUNT is the mount point. Logins and units get only what works
when they begin: the directory must exist and be writable, on a mount that answers.

**Mount at the same path on all nodes.** Triton and TorchInductor keep absolute paths in their entries, and JAX hashes
the path of its cache directory into every key. Nodes with another mount point share none of these entries.

**A rename into or out of the mount fails with EXDEV**, as between any two file systems. A client that writes its
temporary files elsewhere needs `TMPDIR` on the mount.

**`hearthfs import`** copies an existing cache directory to the mount. In the conditions below under which entries are found, OLD is the directory
in which they were made, and NEW the one into which they were imported.
";

const KINDS: &str = "\
## What the kinds mean

A name that matches no rule is an ordinary file: it is shared as a whole when it is closed. The names of a rule are known only in the
directory of their client.

| kind | meaning |
|---|---|
";

const ADDING: &str = "
## Adding to it

The configuration adds clients, directories and rules, and replaces the rest; `hearthfs config check` refuses invalid
settings. Its rules come before those of hearthfs, and the first rule that matches applies.

```toml
[profiles.ccache]
also = [\"teams/*/ccache\"]      # further directories below the mount in which the names of ccache are known
settings = { CCACHE_BASEDIR = \"/src\" }

[profiles.mine]                # a client that hearthfs does not know
title = \"My compiler\"
variables = [\"MY_CACHE_DIR\"]   # `hearthfs run` sets it to MOUNT/mine
dir = \"mine\"
rules = [{ names = [\"*.part\"], kind = \"temporary\", what = \"entries that are being written\" }]
program = [\"{stem}-{hex}.o\"]   # {stem} is the program, for any key: for `hearthfs explain`
entries = [\"*.o\"]             # what it opens once per hit and writes once per miss: for its figures

[profiles.go]
enabled = false                # no variable is set, and its names have no meaning
```

The words and the form of patterns are explained at the head of
[`src/namespace/profiles.toml`](../src/namespace/profiles.toml).
";

/// Writes `docs/clients.md`. Writing to a string cannot fail.
pub(super) fn document() -> String {
    let mut text = HEAD.to_owned() + "\n" + KINDS;
    for kind in RuleKind::ALL {
        writeln!(text, "| {} | {} |", kind.word(), kind.meaning()).ok();
    }
    for profile in Profiles::default().all() {
        client(&mut text, profile);
    }
    text + ADDING
}

fn client(text: &mut String, profile: &Profile) {
    writeln!(text, "\n## {}\n", profile.title).ok();
    text.push_str(&paragraph(&pointing(profile)));
    if !profile.rules.is_empty() {
        let mut roots = vec![profile.dir.as_str()];
        roots.extend(profile.also.iter().map(Pattern::text));
        roots.retain(|root| !root.is_empty());
        let places: Vec<String> = roots.iter().map(|root| place(root)).collect();
        write!(text, "\nIts names are known in {}:\n\n", places.join(", ")).ok();
        text.push_str("| names | what they are | where they go |\n|---|---|---|\n");
        for rule in &profile.rules {
            let mut names: Vec<_> =
                rule.names.iter().map(|name| format!("`{}`", name.text())).collect();
            if let Some(dir) = &rule.inside {
                names.push(format!("in `{dir}`"));
            }
            let (names, what, goes) = (names.join(" "), &rule.what, goes(rule));
            writeln!(text, "| {names} | {what} | {goes} |").ok();
        }
    }
    if !profile.entries.is_empty() {
        text.push('\n');
        text.push_str(&paragraph(&other_keys(profile)));
    }
    let import = match &*profile.import {
        "" => None,
        text => Some(format!("- `hearthfs import`: {text}")),
    };
    if !profile.notes.is_empty() || import.is_some() {
        text.push('\n');
        text.extend(import.iter().map(|text| paragraph(text)));
        for note in &profile.notes {
            text.push_str(&paragraph(&format!("- {note}")));
        }
    }
}

/// Describes how `hearthfs explain` recognises the same program under another key.
fn other_keys(profile: &Profile) -> String {
    if profile.program.is_empty() {
        return "`hearthfs explain` does not look for the same program under another key: no pattern says where."
            .to_owned();
    }
    let patterns: Vec<String> =
        profile.program.iter().map(|pattern| format!("`{}`", pattern.text())).collect();
    format!(
        "`hearthfs explain` knows the same program under another key by `{{stem}}` of {}.",
        patterns.join(" ")
    )
}

fn place(root: &str) -> String {
    if root == "**" { "any directory".to_owned() } else { format!("`MOUNT/{root}`") }
}

/// Describes how a client is pointed at the mount.
fn pointing(profile: &Profile) -> String {
    let mut said = Vec::new();
    if !profile.variables.is_empty() {
        let set = profile.variables.iter().map(|name| format!("`{name}=MOUNT/{}`", profile.dir));
        let set: Vec<String> = set.collect();
        said.push(format!("`run` sets {}", set.join(" and ")));
        let more = profile.settings.iter().map(|(name, value)| format!(" and `{name}={value}`"));
        said.extend(more);
        let mut unless: Vec<String> = Vec::new();
        for Unless { variable, holds } in &profile.unless {
            let holds =
                if holds.is_empty() { String::new() } else { format!(" to hold `{holds}`") };
            unless.push(format!("`{variable}`{holds}"));
        }
        let own = if profile.variables.len() > 1 { "any of them" } else { "it" };
        unless.insert(0, own.to_owned());
        said.push(format!(", unless the user has set {}.", unless.join(" or ")));
    }
    if !profile.short_compiles.is_empty() {
        let set = profile.short_compiles.iter().map(|(name, value)| format!("`{name}={value}`"));
        let set: Vec<String> = set.collect();
        said.push(format!(" With `run.cache_short_compiles` it also sets {}.", set.join(" and ")));
    }
    if profile.needs_dir {
        said.push(" It also makes the directory, because the program does not.".to_owned());
    }
    said.push(format!(" {}", profile.how));
    said.concat()
}

/// Describes where the files of a rule go, and when.
fn goes(rule: &Rule) -> String {
    match rule.kind {
        RuleKind::Ordinary => "all nodes, when closed".to_owned(),
        RuleKind::Temporary => "nowhere".to_owned(),
        RuleKind::NodeLocal => "nowhere; kept on the node".to_owned(),
        RuleKind::WriteOnce => "all nodes, when closed; the first version stays".to_owned(),
        RuleKind::Lock => match rule.scope {
            Some(Scope::Cluster) => "all nodes, when made; goes when its process ends".to_owned(),
            _ => "nowhere; goes when its process ends".to_owned(),
        },
        RuleKind::Touched => match rule.changes {
            Some(Touch::Content) => "rewritten on a hit; gathered for other nodes".to_owned(),
            _ => "times change on a hit; gathered for other nodes".to_owned(),
        },
        RuleKind::Check => {
            let format = match rule.format {
                Some(Check::Zstd) => "a whole zstd frame, if it begins as one",
                Some(Check::Elf) => "a whole ELF file",
                Some(Check::Zip) => "a whole zip archive",
                Some(Check::Json) | None => "one JSON value",
            };
            format!("other nodes only if it is {format}")
        }
        RuleKind::Unit => {
            let until = rule.marker.as_ref().map_or_else(
                || "its writer ends".to_owned(),
                |marker| format!("`{marker}` is published"),
            );
            let whose = match rule.writers {
                Some(Writers::Several) => ", of all processes that write it",
                _ => "",
            };
            format!("all nodes, together{whose}; held back until {until}")
        }
    }
}

/// The login snippet's requests to the mount. If the first or the last answer is late, the login
/// continues without the mount.
const LOGIN_HEAD: &str = r#"# Points the compile caches of logins at the mount, if it works at this moment: copy to /etc/profile.d/ and
# set the mount point, a path without blanks. For sh, bash and zsh. Variables that a user has set stay. If the mount is
# missing, does not answer or cannot be written, nothing is set. `hearthfs run` does the same for one command.
# Made from src/namespace/profiles.toml.

_hearthfs=/mnt/cache

# The directories that this user can write. If the daemon hangs, even SIGKILL may not end a process that accesses the
# mount. So nothing here waits for that process, only for its output: first that the mount answers at all (`stat -f`,
# which the kernel never answers from memory), then the rest, which may need requests to the store.
# In parentheses, because zsh waits for the background processes of a group in braces.
_hearthfs_dirs=$(
    (
        command timeout -s KILL 1 sh -c '
            stat -f -- "$0" >/dev/null && echo && cd -P -- "$0" || exit
            top= found=
            while read -r _ _ _ _ at more; do
                if [ "$at" = "$PWD" ]; then top=$more; fi
            done </proc/self/mountinfo
            case $top in
            "ro "* | ro,* | *" ro" | *" ro,"*) exit ;;
            *" - fuse.hearthfs "* | *" - fuse hearthfs "*) ;;
            *) exit ;;
            esac
            for dir; do
                if [ -d "$dir" ] && [ -w "$dir" ] && [ -x "$dir" ]; then found="$found $dir"; fi
            done
            echo "$found "
        ' "$_hearthfs" DIRS &
    ) </dev/null 2>/dev/null | {
        command timeout 0.2 sh -c 'read -r _' && command timeout 1 cat
    } 2>/dev/null
) || _hearthfs_dirs=

"#;

/// Writes `systemd/hearthfs.sh`.
pub(super) fn login_snippet() -> String {
    let shipped = Profiles::default();
    let pointed = || shipped.all().iter().filter(|one| !one.variables.is_empty());
    let mut dirs: Vec<&str> = pointed().map(|profile| profile.dir.as_str()).collect();
    dirs.sort_unstable();
    dirs.dedup();
    let mut text = LOGIN_HEAD.replace("DIRS", &dirs.join(" "));
    for profile in pointed() {
        text.push_str(&export(profile));
    }
    text.push_str("\nunset _hearthfs _hearthfs_dirs\n");
    text
}

/// Writes the line that points one client at its directory, if that directory works and the user
/// has not set the variable.
fn export(profile: &Profile) -> String {
    let dir = &profile.dir;
    let (words, plain): (Vec<&Unless>, Vec<&Unless>) =
        profile.unless.iter().partition(|unless| !unless.holds.is_empty());
    let set = profile.variables.iter().chain(plain.iter().map(|unless| &unless.variable));
    let set: Vec<String> = set.map(|name| format!("${{{name}+set}}")).collect();
    let set = set.concat();
    let mut lines = vec![
        "case $_hearthfs_dirs in".to_owned(),
        format!("*' {dir} '*)"),
        format!("    if [ -z \"{set}\" ]; then"),
    ];
    let variables = profile.variables.iter();
    lines.extend(variables.map(|name| format!("        export {name}=\"$_hearthfs/{dir}\"")));
    let settings = profile.settings.iter();
    lines.extend(
        settings.map(|(name, value)| format!("        export {name}=\"${{{name}-{value}}}\"")),
    );
    lines.extend(["    fi", "    ;;", "esac"].map(str::to_owned));
    for Unless { variable, holds } in words {
        for line in &mut lines {
            line.insert_str(0, "    ");
        }
        lines.splice(
            0..0,
            [format!("case ${{{variable}-}} in"), format!("*{holds}*) ;;"), "*)".to_owned()],
        );
        lines.extend(["    ;;".to_owned(), "esac".to_owned()]);
    }
    lines.push(String::new());
    lines.join("\n")
}

/// The drop-in for units; VARIABLES stands for the names that it passes on. The file that the
/// service manager reads belongs to root: the manager reads it again for each command of the unit,
/// also for those that run as root.
const UNIT: &str = r#"# Points the compile caches of another unit at the mount, if it works when the unit starts: copy to
# /etc/systemd/system/UNIT.service.d/, and set the instance. It checks as the user of the unit, with the snippet for
# logins, which must be in /etc/profile.d/ with the mount point. Variables that the unit itself sets stay. If nothing is
# mounted, or the mount does not answer, the unit starts without the cache. A daemon that fails stops no unit.

[Unit]
Wants=hearthfs@cluster.service
After=hearthfs@cluster.service

[Service]
# Removed when the unit stops, so that no later start uses an old result. The file of the first `env` may hold secrets.
RuntimeDirectory=hearthfs-%n
ExecStartPre=-/bin/sh -c 'umask 077; cd "$$0" || exit; env >before; . /etc/profile.d/hearthfs.sh; env | grep -vxFf before >env; rm before' %t/hearthfs-%n
# The user of the unit can write anything there. As root, only these variables are passed on, with plain paths.
ExecStartPre=-+/bin/sh -c 'umask 022; mkdir -p "$$0"; rm -f "$$0/$$1"; timeout 2 grep -xE "(VARIABLES)=[A-Za-z0-9/._:-]+" "$$2/env" | head -c 8192 >"$$0/$$1"' %t/hearthfs-clients %n %t/hearthfs-%n
EnvironmentFile=-%t/hearthfs-clients/%n
ExecStopPost=-+/bin/rm -f %t/hearthfs-clients/%n
"#;

/// Writes `systemd/hearthfs-clients.conf`. It has no values: whether a directory works is known
/// only when the unit starts.
pub(super) fn unit_snippet() -> String {
    let shipped = Profiles::default();
    let settings = shipped.all().iter().flat_map(|profile| profile.settings.keys());
    let variables = shipped.all().iter().flat_map(|profile| &profile.variables);
    let mut names: Vec<&str> = variables.chain(settings).map(String::as_str).collect();
    names.sort_unstable();
    names.dedup();
    UNIT.replace("VARIABLES", &names.join("|"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The step that runs as root accepts only the variables of clients from what the unit's user has written.
    #[test]
    fn units_hand_on_the_variables_of_clients_only() {
        let text = unit_snippet();
        let (_, step) = text.split_once("ExecStartPre=-+/bin/sh -c '").expect("the step");
        let (script, _) = step.split_once("' %t").expect("the end of the step");
        let dir = tempfile::tempdir().expect("temporary directory");
        let (own, users) = (dir.path().join("own"), dir.path().join("users"));
        std::fs::create_dir(&users).expect("made");
        let handed_on = || {
            let mut shell = std::process::Command::new("sh");
            shell.args(["-c", &script.replace("$$", "$")]).arg(&own).arg("a.service").arg(&users);
            let output = shell.output().expect("a shell");
            assert!(output.stderr.is_empty() || !users.join("env").exists(), "{output:?}");
            std::fs::read_to_string(own.join("a.service")).expect("a file, empty or not")
        };
        let said = "CCACHE_DIR=/m/ccache\nLD_PRELOAD=/tmp/x.so\nJAX_COMPILATION_CACHE_DIR=/m/$(x)\n XLA_PERSISTENT_CACHE_PATH=/m\n";
        std::fs::write(users.join("env"), said).expect("written");
        assert_eq!(handed_on(), "CCACHE_DIR=/m/ccache\n");
        std::fs::write(dir.path().join("secret"), "AWS_SECRET_ACCESS_KEY=key\n").expect("written");
        std::fs::remove_file(users.join("env")).expect("removed");
        std::os::unix::fs::symlink("../secret", users.join("env")).expect("linked");
        assert_eq!(handed_on(), "");
        std::fs::remove_file(users.join("env")).expect("removed");
        assert_eq!(handed_on(), "", "no variables without an answer");
    }
}
