//! `hearthfs stat`.

use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;
use rustix::fs::readlinkat;

use super::escape::printed;
use super::failure::{Failure, Outcome};
use super::inside::{SeenEntry, Silence, one};
use super::json::json_pretty;
use super::ls::{EntryJson, word};
use super::output::{data, time};
use crate::clock::Clock;
use crate::config::{ByteSize, Surroundings};
use crate::namespace::{ContentFacts, Facts};

/// Options of `hearthfs stat`.
#[derive(Args, Clone, Debug)]
pub(super) struct Tell {
    /// A path on a mount
    path: PathBuf,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(super) fn run(command: &Tell) -> Outcome<()> {
    let named = one(&Surroundings::of_process(), &command.path)?;
    let shown = printed(named.path.as_os_str().as_bytes());
    let failed = |error| Failure::failed(format!("{shown}: {error}"));
    let entry = SeenEntry::look(&named.dir, &named.name, &Silence::default()).map_err(failed)?;
    if command.json {
        return data(&json_pretty(&EntryJson::of(&named.path, entry))?);
    }
    let target = (entry.word() == "link")
        .then(|| readlinkat(&named.dir, &named.name, Vec::new()).ok())
        .flatten()
        .map(|target| printed(target.as_bytes()));
    data(&text(&shown, &entry, target.as_deref(), Clock::system().wall_ms()))
}

/// Writes the facts, one per line.
fn text(shown: &str, entry: &SeenEntry, target: Option<&str>, wall_ms: u64) -> String {
    let mut text = format!("{shown}\n");
    // Writing to a string cannot fail.
    let mut row = |name: &str, value: String| {
        writeln!(text, "  {name:<9} {value}").ok();
    };
    let mut what = entry.word().to_owned();
    if let Some(bytes) = entry.size() {
        write!(what, ", {} ({bytes} bytes)", ByteSize(bytes).human()).ok();
    }
    if let Some(target) = target {
        write!(what, " to {target}").ok();
    }
    row("what", what);
    let stat = &entry.stat;
    let links = if entry.is_file() && entry.names() > 1 {
        format!(", {} names", entry.names())
    } else {
        String::new()
    };
    row("owner", format!("{}:{}, mode {:04o}{links}", stat.st_uid, stat.st_gid, entry.mode()));
    let modified_ms = stat.st_mtime.saturating_mul(1000);
    row("modified", ago(wall_ms as i64, modified_ms));
    let Some(facts) = &entry.facts else {
        row("more", "unknown: you may not read it, or its daemon does not report it".to_owned());
        return text;
    };
    match (facts.written_ms, &facts.node) {
        (Some(ms), Some(node)) => {
            let here = if facts.own { ", this one" } else { "" };
            row("written", format!("{} by node {node}{here}", ago(facts.now_ms as i64, ms as i64)));
        }
        _ if entry.is_file() => row("written", "not yet".to_owned()),
        _ => {}
    }
    if let Some(client) = client(facts) {
        row("client", client);
    }
    if let Some(bytes) = facts.bytes {
        row("bytes", word(bytes).to_owned());
    }
    if let Some(content) = &facts.content {
        content_rows(content, facts, wall_ms, &mut row);
    }
    if let Some(digest) = &facts.digest {
        row("digest", digest.clone());
    }
    text
}

/// Writes the facts that apply to all files with this content.
fn content_rows(
    content: &ContentFacts,
    facts: &Facts,
    wall_ms: u64,
    row: &mut impl FnMut(&str, String),
) {
    if let Some(used_s) = content.used_s {
        row("last use", format!("{}, on this node", ago(wall_ms as i64, used_s as i64 * 1000)));
    }
    match content.stored_ms {
        Some(ms) => row("stored", ago(facts.now_ms as i64, ms as i64)),
        None => row("stored", "not in the store".to_owned()),
    }
    if let Some(ms) = content.expires_ms {
        row("expires", format!("in {}", time(ms.saturating_sub(facts.now_ms))));
    }
}

fn client(facts: &Facts) -> Option<String> {
    let kind = facts.kind.as_ref().map(|kind| {
        let entry = if facts.is_entry { ", the entry point" } else { "" };
        format!("{kind}{entry}")
    });
    let parts: Vec<String> = facts.client.iter().cloned().chain(kind).collect();
    (!parts.is_empty()).then(|| parts.join(": "))
}

/// Describes how long ago something was; both times are in milliseconds since the Unix epoch.
fn ago(now_ms: i64, then_ms: i64) -> String {
    match now_ms.saturating_sub(then_ms) {
        past @ 0.. => format!("{} ago", time(past as u64)),
        ahead => format!("in {}", time(ahead.unsigned_abs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::namespace::BytesPlace;

    fn entry(facts: Option<Facts>) -> SeenEntry {
        let dir = tempfile::tempdir().expect("temporary directory");
        std::fs::write(dir.path().join("file"), "content").expect("write");
        let stat = rustix::fs::stat(dir.path().join("file")).expect("stat");
        SeenEntry { stat, facts }
    }

    #[test]
    fn an_entry_is_printed_line_by_line() {
        let now_ms = 10 * 86_400_000;
        let facts = Facts {
            now_ms,
            node: Some("9c41d2a07be83f15".into()),
            own: true,
            shared: true,
            written_ms: Some(now_ms - 61_000),
            client: Some("triton".into()),
            kind: Some("unit".into()),
            is_entry: true,
            bytes: Some(BytesPlace::Local),
            digest: Some("abcd".into()),
            content: Some(ContentFacts {
                used_s: Some((now_ms - 600_000) / 1000),
                stored_ms: Some(now_ms - 30_000),
                expires_ms: Some(now_ms + 86_400_000),
            }),
        };
        let said = text("/m/f", &entry(Some(facts)), None, now_ms);
        for part in [
            "/m/f\n  what      file, 7 B (7 bytes)\n",
            "written   1m1s ago by node 9c41d2a07be83f15, this one\n",
            "client    triton: unit, the entry point\n",
            "bytes     local\n",
            "last use  10m0s ago, on this node\n",
            "stored    30 s ago\n",
            "expires   in 1d0h\n",
            "digest    abcd\n",
        ] {
            assert!(said.contains(part), "`{part}` is not in:\n{said}");
        }
        let said = text("/m/f", &entry(None), None, now_ms);
        assert!(said.contains("more      unknown: you may not read it"), "{said}");
        let writing = Facts { bytes: Some(BytesPlace::Writing), ..Facts::default() };
        let said = text("/m/f", &entry(Some(writing)), None, now_ms);
        assert!(said.contains("written   not yet\n  bytes     writing\n"), "{said}");
        assert_eq!(ago(0, 5000), "in 5.0 s");
    }
}
