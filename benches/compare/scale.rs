//! Many entries: memory of the daemon, and the time until a mount answers.
//!
//! Owns the two stores with many entries: one that was written through a mount, file by file, and one
//! whose log was generated with the library's own codec, for numbers that would take too long to write.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hearthfs::digest::Digest;
use hearthfs::name::TreePath;
use hearthfs::namespace::{Attrs, BlobAt, BlobPlace, Change, Commit, Entry, EntryKind, Op, Time};
use hearthfs::remote::{encode_commit, keys};
use hearthfs::stamp::{NodeId, Stamp};
use serde_json::json;

use crate::bodies::Bodies;
use crate::clock::{now, sleep_ms, timed, wall_ms};
use crate::node::{Node, Options};
use crate::options::Counts;
use crate::report::{Report, Table};

const MILLION: usize = 1_000_000;
/// Changes per commit of the generated store.
const CHANGES: usize = 1000;
/// How long a node may take to learn all entries.
const KNOWN_MAX: Duration = Duration::from_mins(3);
/// How long a node is unused before its memory is read, in milliseconds.
const REST_MS: u64 = 2000;
/// The apparent writer of the generated store.
const WRITER: NodeId = NodeId(0x5eed);
/// Goals for a million entries: seconds until ready, and memory then.
const READY_GOAL_S: f64 = 1.0;
const MEMORY_GOAL_KIB: u64 = 300 * 1024;

/// Measures, and adds to the report.
pub(crate) fn run(
    base: &Path,
    counts: &Counts,
    million: bool,
    bodies: &Bodies,
    report: &mut Report,
) -> Result<()> {
    let mut table = Table::new(
        "Many entries",
        [
            "entries",
            "start",
            "ready (first stat)",
            "first hit",
            "all known",
            "memory now",
            "memory at most",
        ]
        .map(ToOwned::to_owned)
        .to_vec(),
    );
    written(base, counts.entries, bodies, &mut table, report)?;
    if million {
        made(base, MILLION, &mut table, report)?;
    } else {
        report.note("SKIPPED 1,000,000 entries: `--million` was not given");
    }
    report.table(&table);
    Ok(())
}

/// Returns the name of entry `n`: half are flat like those of JAX, half in directories like those of Triton.
fn name(n: usize) -> String {
    if n.is_multiple_of(2) {
        return format!("jit_step-{}-cache", key(n as u64));
    }
    format!("{}/kernel_{}.part{}", &key(!(n as u64 / 16))[..52], n / 16, n % 16)
}

/// Returns 64 digits derived from `seed`.
fn key(seed: u64) -> String {
    Digest::of(&seed.to_le_bytes()).to_string()
}

fn store(base: &Path, name: &str) -> Result<PathBuf> {
    let dir = base.join(name);
    std::fs::create_dir_all(&dir)?;
    Ok(dir)
}

fn options(store: &Path) -> Options {
    let remote = Some(format!("file://{}", store.display()));
    Options { remote, io: "auto", ..Options::default() }
}

/// Writes many small files through a mount, then restarts it in every way.
fn written(
    base: &Path,
    total: usize,
    bodies: &Bodies,
    table: &mut Table,
    report: &mut Report,
) -> Result<()> {
    let store = store(base, "written.store")?;
    let mut node = Node::start(base, "written", options(&store))?;
    let mount = node.mount();
    crate::say(format_args!("scale: writing {total} files"));
    let (took, done) = timed(|| -> Result<()> {
        for n in 0..total {
            let path = mount.join(name(n));
            if n % 16 == 1 {
                std::fs::create_dir_all(path.parent().context("a parent")?)?;
            }
            std::fs::write(&path, bodies.make((n as u64) << 8, 200))?;
        }
        node.drain()
    });
    done?;
    report.note(format!(
        "{total} files of 200 bytes written and durable in {:.1} s",
        took.as_secs_f64()
    ));
    sleep_ms(REST_MS);
    let mut rows = Rows { total, table, report };
    rows.add("after writing them", &node, None, None)?;
    node.stop()?;
    rows.up_again(&mut node)?;
    node.stop()?;
    rows.fresh_node(base, "written.fresh", &store)?.stop()
}

/// Generates a log of many commits, and starts nodes on it.
fn made(base: &Path, total: usize, table: &mut Table, report: &mut Report) -> Result<()> {
    let store = store(base, "made.store")?;
    // Only a node can make the store's format object.
    let mut first = Node::start(base, "made.first", options(&store))?;
    // A daemon that answers on its socket has installed all its signal handlers.
    first.status()?;
    first.stop()?;
    crate::say(format_args!("scale: making a log of {total} entries"));
    let (took, done) = timed(|| make_log(&store, total));
    done?;
    report.note(format!("a log of {total} entries made in {:.1} s", took.as_secs_f64()));
    let mut rows = Rows { total, table, report };
    let mut node = rows.fresh_node(base, "made", &store)?;
    if node.read_checkpoint() {
        bail!("the first node read a checkpoint before any was written");
    }
    // Ending the node writes a checkpoint.
    node.stop()?;
    let mut second = rows.fresh_node(base, "made.second", &store)?;
    if !second.read_checkpoint() {
        bail!("the second node has read no checkpoint:\n{}", second.log_tail());
    }
    second.stop()?;
    rows.up_again(&mut node)?;
    node.stop()
}

fn lose_index(node: &Node) -> Result<()> {
    Ok(std::fs::remove_dir_all(node.cache().join("v1").join("index"))?)
}

fn make_log(store: &Path, total: usize) -> Result<()> {
    let log = store.join(keys::LOG);
    std::fs::create_dir_all(&log)?;
    // Old enough that every list includes it, young enough that nothing has expired.
    let start_ms = wall_ms() - 3_600_000;
    let incarnation = 1;
    for sequence in 0..total.div_ceil(CHANGES) {
        let ms = start_ms + sequence as u64 * 100;
        let mut commit = Commit {
            stamp: Stamp { ms: ms + 50, counter: 0, node: WRITER },
            node: WRITER,
            incarnation,
            sequence: sequence as u64,
            packs: vec![keys::pack_name(&Stamp { ms: ms + 50, counter: 0, node: WRITER })],
            blobs: Vec::new(),
            changes: Vec::new(),
            extensions: BTreeMap::new(),
        };
        let mut counter = 0;
        let mut next = || {
            counter += 1;
            Stamp { ms, counter, node: WRITER }
        };
        for n in sequence * CHANGES..total.min((sequence + 1) * CHANGES) {
            let name = name(n);
            let mut parts = name.split('/');
            let path = parts.try_fold(TreePath::root(), |path, part| path.join(part.as_bytes()))?;
            let time = Time::from_ms(ms);
            if n % 16 == 1 {
                let op = Op::Put(Entry::directory(0o755, 0, 0, time));
                let path = path.parent().context("a parent")?;
                commit.changes.push(Change { path, stamp: next(), op });
            }
            let digest = Digest::of(&n.to_le_bytes());
            let place =
                BlobPlace::Pack { pack: 0, offset: (n % CHANGES) as u64 * 600, length: 600 };
            commit.blobs.push(BlobAt { digest, size: 1200, place, stored_ms: ms });
            let attrs = Attrs { mode: 0o644, mtime: time, atime: time, ..Attrs::default() };
            let kind = EntryKind::File { digest, size: 1200 };
            let op = Op::Put(Entry { kind, attrs, link: None });
            commit.changes.push(Change { path, stamp: next(), op });
        }
        let at = log.join(keys::commit_name(&commit.stamp));
        std::fs::write(at, encode_commit(&commit)?)?;
    }
    Ok(())
}

struct Rows<'a> {
    total: usize,
    table: &'a mut Table,
    report: &'a mut Report,
}

impl Rows<'_> {
    /// Starts a node with an empty cache directory, and measures.
    fn fresh_node(&mut self, base: &Path, name: &str, store: &Path) -> Result<Node> {
        let begun = now();
        let node = Node::start(base, name, options(store))?;
        self.watch("new node", &node, begun)?;
        Ok(node)
    }

    /// Restarts a stopped node in every way, and measures; it runs at the end.
    fn up_again(&mut self, node: &mut Node) -> Result<()> {
        self.up("clean restart", node)?;
        node.kill()?;
        self.up("after SIGKILL", node)?;
        node.stop()?;
        lose_index(node)?;
        self.up("index lost", node)
    }

    /// Restarts a node on its existing directories, and measures.
    fn up(&mut self, how: &str, node: &mut Node) -> Result<()> {
        let begun = now();
        node.up()?;
        self.watch(how, node, begun)
    }

    fn watch(&mut self, how: &str, node: &Node, begun: Duration) -> Result<()> {
        let since = || now().saturating_sub(begun);
        // A node learns of the last written entry last.
        let last = node.mount().join(name(self.total - 1));
        while std::fs::metadata(&last).is_err() {
            if since() > KNOWN_MAX {
                bail!("{how}: the last entry is not visible after {:?}", since());
            }
            sleep_ms(2);
        }
        let hit = since();
        let known = loop {
            let entries = node.status()?.pointer("/entries").and_then(serde_json::Value::as_u64);
            if entries.context("no number of entries")? >= self.total as u64 {
                break since();
            }
            if since() > KNOWN_MAX {
                bail!("{how}: {entries:?} of {} entries are visible", self.total);
            }
            sleep_ms(20);
        };
        sleep_ms(REST_MS);
        let how = if node.read_checkpoint() {
            format!("{how}, from a checkpoint")
        } else {
            how.to_owned()
        };
        self.add(&how, node, Some(hit), Some(known))
    }

    fn add(
        &mut self,
        how: &str,
        node: &Node,
        hit: Option<Duration>,
        known: Option<Duration>,
    ) -> Result<()> {
        let (now_kib, most_kib) = node.memory_kib()?;
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        let shown = |time: Option<f64>| time.map_or("-".to_owned(), |time| format!("{time:.2} s"));
        let ready = seconds(hit.map(|_| node.ready_after));
        let goal = self.total == MILLION;
        let mark =
            |text: String, missed: bool| if goal && missed { format!("**{text}**") } else { text };
        let mib = |kib: u64| format!("{:.0} MiB", kib as f64 / 1024.0);
        let row = [
            self.total.to_string(),
            how.to_owned(),
            mark(shown(ready), ready.is_some_and(|ready| ready > READY_GOAL_S)),
            shown(seconds(hit)),
            shown(seconds(known)),
            mark(mib(now_kib), now_kib > MEMORY_GOAL_KIB),
            mib(most_kib),
        ];
        crate::say(format_args!("scale: {}", row.join(" | ")));
        self.table.row(row.to_vec());
        self.report.row(json!({
            "part": "scale", "entries": self.total, "start": how, "ready_s": ready,
            "first_hit_s": seconds(hit), "all_known_s": seconds(known),
            "rss_kib": now_kib, "rss_most_kib": most_kib,
        }));
        Ok(())
    }
}
