//! `hearthfs ls`.

use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use clap::Args;
use rustix::fs::FileType;
use serde::Serialize;

use super::failure::{Failure, Outcome};
use super::inside::{Hit, Query, SeenEntry, Silence, Troubles, Visit, Whole, walk};
use super::json::json_line;
use super::output::{note, time};
use crate::clock::Clock;
use crate::config::{ByteSize, Surroundings};
use crate::namespace::{BytesPlace, Facts};

/// The size of the output buffer.
const WRITTEN_AT_ONCE: usize = 64 << 10;

/// Options of `hearthfs ls`.
#[derive(Args, Clone, Debug)]
pub(super) struct LsCommand {
    /// Paths and patterns of paths; without any, the current directory or the only mount
    #[arg(value_name = "GLOB")]
    globs: Vec<PathBuf>,

    /// Show size, age, last use, writing node, client, and whether the bytes are on this node
    #[arg(short, long)]
    long: bool,

    /// Print JSON: one object per line, with everything known
    #[arg(long)]
    json: bool,
}

/// What `--json` prints of an entry. Fields are added, never renamed.
#[derive(Debug, Serialize)]
pub(super) struct EntryJson {
    /// Its path; bytes that are not text are replaced.
    path: String,
    /// Its path in hexadecimal digits, if it is not text.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_hex: Option<String>,
    /// `file`, `directory`, `link` or `special`.
    r#type: &'static str,
    /// Bytes of a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<u64>,
    /// Permission bits in octal digits.
    mode: String,
    uid: u32,
    gid: u32,
    /// The number of its names.
    links: u64,
    /// Its mtime in seconds since the Unix epoch.
    mtime_s: i64,
    #[serde(flatten)]
    facts: Option<Facts>,
}

impl EntryJson {
    /// Describes an entry; `path` is its absolute path.
    pub(super) fn of(path: &std::path::Path, entry: SeenEntry) -> Self {
        let bytes = path.as_os_str().as_bytes();
        Self {
            path: path.to_string_lossy().into_owned(),
            path_hex: path.to_str().is_none().then(|| hex(bytes)),
            r#type: entry.word(),
            size: entry.size(),
            mode: format!("{:04o}", entry.mode()),
            uid: entry.stat.st_uid,
            gid: entry.stat.st_gid,
            links: entry.names(),
            mtime_s: entry.stat.st_mtime,
            facts: entry.facts,
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or('?');
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The state of the listing.
struct LsListing<'a> {
    command: &'a LsCommand,
    query: &'a Query,
    wall_ms: u64,
    silence: Silence,
    troubles: Troubles,
    text: String,
    /// The reader of the output has closed the pipe.
    is_over: bool,
}

/// Runs the command.
pub(super) fn run(command: &LsCommand) -> Outcome<()> {
    let around = Surroundings::of_process();
    let query = Query::of(&around, &command.globs, Whole::Listed)?;
    let mut listing = LsListing {
        command,
        query: &query,
        wall_ms: Clock::system().wall_ms(),
        silence: Silence::default(),
        troubles: Troubles::default(),
        text: String::new(),
        is_over: false,
    };
    if command.long && !command.json {
        listing.text = head();
    }
    let found = match walk(&query, &mut listing) {
        Err(_) if listing.is_over => return Ok(()),
        found => found,
    };
    match listing.write() {
        Err(_) if listing.is_over => return Ok(()),
        written => written?,
    }
    if !found? && query.has_wildcards && listing.troubles.count() == 0 {
        note("nothing matches");
    }
    listing.troubles.outcome("could not be looked at")
}

impl Visit for LsListing<'_> {
    fn found(&mut self, hit: &Hit<'_>) -> Outcome<()> {
        if !self.command.long && !self.command.json {
            let end = if hit.kind == FileType::Directory { "/" } else { "" };
            self.text.extend([&self.query.shown(hit.below), end, "\n"]);
        } else {
            match SeenEntry::look(hit.dir, hit.name, &self.silence) {
                Ok(entry) if self.command.json => {
                    let path = self.query.absolute(hit.below);
                    self.text.push_str(&json_line(&EntryJson::of(&path, entry))?);
                }
                Ok(entry) => {
                    let shown = self.query.shown(hit.below);
                    self.text.push_str(&row(&entry, &shown, self.wall_ms));
                }
                // It was removed meanwhile.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => self.troubles.add(&self.query.shown(hit.below), &error),
            }
        }
        if self.text.len() >= WRITTEN_AT_ONCE { self.write() } else { Ok(()) }
    }

    fn troubles(&mut self) -> &mut Troubles {
        &mut self.troubles
    }
}

impl LsListing<'_> {
    /// Writes the buffer. A closed pipe ends the walk.
    fn write(&mut self) -> Outcome<()> {
        let mut out = std::io::stdout().lock();
        let written = out.write_all(self.text.as_bytes()).and_then(|()| out.flush());
        self.text.clear();
        written.map_err(|error| {
            self.is_over = error.kind() == std::io::ErrorKind::BrokenPipe;
            Failure::failed(format!("write to standard output: {error}"))
        })
    }
}

fn head() -> String {
    columns(["SIZE", "AGE", "LAST USE", "NODE", "CLIENT", "BYTES"], "NAME")
}

fn columns(row: [&str; 6], name: &str) -> String {
    let [size, age, used, node, client, bytes] = row;
    format!("{size:>10} {age:>8} {used:>8} {node:<16} {client:<12} {bytes:<7} {name}\n")
}

/// Writes one line of the long form; a dash marks an unknown value.
fn row(entry: &SeenEntry, shown: &str, wall_ms: u64) -> String {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let facts = entry.facts.as_ref();
    let size = or_dash(entry.size().map(|bytes| ByteSize(bytes).human()));
    let age = or_dash(entry.age_ms().map(time));
    let used = or_dash(entry.unused_ms(wall_ms).map(time));
    let node = or_dash(facts.and_then(node));
    let client = or_dash(facts.and_then(|facts| facts.client.clone()));
    let bytes = facts.and_then(|facts| facts.bytes).map_or("-", word);
    let end = if entry.word() == "directory" { "/" } else { "" };
    columns([&size, &age, &used, &node, &client, bytes], &format!("{shown}{end}"))
}

/// Returns the node that wrote an entry, for people.
pub(super) fn node(facts: &Facts) -> Option<String> {
    if facts.own { Some("here".to_owned()) } else { facts.node.clone() }
}

/// Returns the word for the location of bytes.
pub(super) fn word(bytes: BytesPlace) -> &'static str {
    match bytes {
        BytesPlace::Writing => "writing",
        BytesPlace::Local => "local",
        BytesPlace::Remote => "remote",
        BytesPlace::Unknown => "-",
    }
}
