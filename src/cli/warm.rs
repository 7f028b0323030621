//! `hearthfs warm`.
//!
//! Owns which files are meant, which the kernel shows as to any program of the user. Must never
//! fetch by itself: the daemon does that, and knows how much room there is.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use clap::Args;
use rustix::fs::{AtFlags, FileType, statat};
use serde::Serialize;

use super::escape::printed;
use super::failure::{Failure, Outcome};
use super::inside::{Hit, Query, Troubles, Visit, Whole, plain_name, walk};
use super::json::json_pretty;
use super::output::{ProgressLine, count, data, note};
use super::{point, status, wait};
use crate::config::{ByteSize, Surroundings};
use crate::control::{Client, WARM_PATHS_BYTES_MAX, WarmReport};
use crate::error::Kind;
use crate::name::TreePath;
use crate::namespace::path_to_hex;

/// The notes of the help text besides the options.
pub(super) const NOTES: &str = "\
Fetches from the store what is not on this node yet, so that programs do not wait for it. Nothing is evicted, and programs that wait go first. \
If there is no more room (local.cache_size), the rest stays remote. Only root and the user of the mount may use it. Ctrl-C ends it, and what was \
fetched stays.
A GLOB is a path relative to DIR, or a pattern of such paths, as for `hearthfs ls`; a directory stands for all files below it. --all takes all files below \
DIR, the newest first, until there is no more room. A list has one path per line, from the root of the mount, as `hearthfs run --record` writes it. \
Characters that a terminal would not show are escaped as in `hearthfs ls`.
Exits 1 if a GLOB matches nothing, a name in the list does not exist, or a file could not be fetched; without --all also if there was no room for a file. \
--json prints one object: here, fetched and without_room with here_bytes, fetched_bytes and without_room_bytes, failed, missing, and trouble.

Examples:
  hearthfs warm /mnt/cache --all
  hearthfs warm /mnt/cache jax 'triton/**/*.cubin'
  hearthfs run --record job.list -- python train.py
  hearthfs warm /mnt/cache --list job.list";

/// The most files of one command.
const FILES_MAX: usize = 1_000_000;
/// The largest list, in bytes.
const LIST_BYTES_MAX: u64 = 256 << 20;

/// Options of `hearthfs warm`.
#[derive(Args, Clone, Debug)]
pub(super) struct Warm {
    /// The mount point, or a directory on the mount
    dir: PathBuf,

    /// Files and directories below DIR, or patterns of them
    #[arg(value_name = "GLOB")]
    globs: Vec<PathBuf>,

    /// All files below DIR, as far as there is room
    #[arg(long, conflicts_with_all = ["globs", "list"])]
    all: bool,

    /// The files listed in FILE, one per line
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Summary {
    /// Files that were named and found.
    files: u64,
    #[serde(flatten)]
    report: WarmReport,
}

/// Runs the command.
pub(super) fn run(command: &Warm) -> Outcome<()> {
    let around = Surroundings::of_process();
    if command.globs.is_empty() && !command.all && command.list.is_none() {
        return Err(Failure::refused("nothing to fetch is named")
            .hint("name a GLOB below DIR, a list with --list FILE, or everything with --all"));
    }
    let dir = point::absolute(&around, &command.dir);
    let listed = command.list.as_ref().map(|file| read_list(file)).transpose()?;
    wait(async {
        let (mut client, status) = status::find(&around, &dir).await?;
        if status.store.address.is_none() {
            note("there is no remote to fetch from: this mount is a local cache only");
            return Ok(());
        }
        // After this, names lead to what the store has, and a store that is down is reported first.
        ask(&mut client, Vec::new(), |_| ()).await?;
        let mut meant = Meant::default();
        if let Some(listed) = listed {
            meant.take_list(Path::new(&status.mount_point), listed)?;
        }
        for glob in &command.globs {
            meant.take_glob(&around, &command.dir, glob)?;
        }
        if command.all {
            meant.take_all(&around, &command.dir)?;
        }
        let report = fetch(&mut client, &meant.files).await?;
        tell(command, &meant, report)
    })
}

/// Makes the daemon fetch files, some at a time.
async fn fetch(client: &mut Client, files: &[TreePath]) -> Outcome<WarmReport> {
    let mut sum = WarmReport::default();
    let mut progress = ProgressLine::new();
    let (mut paths, mut bytes) = (Vec::new(), 0);
    let mut left = files.iter().map(path_to_hex).peekable();
    while let Some(path) = left.next() {
        bytes += path.len() + 3;
        paths.push(path);
        if left.peek().is_some_and(|next| bytes + next.len() + 3 <= WARM_PATHS_BYTES_MAX) {
            continue;
        }
        let some = std::mem::take(&mut paths);
        bytes = 0;
        let show = |news: &WarmReport| {
            let mut all = sum.clone();
            all.add(news);
            progress.say(|| going(&all, files.len()));
        };
        sum.add(&ask(client, some, show).await?);
    }
    Ok(sum)
}

async fn ask(
    client: &mut Client,
    paths: Vec<String>,
    progress: impl FnMut(&WarmReport),
) -> Outcome<WarmReport> {
    client.warm(paths, progress).await.map_err(|error| match error.kind() {
        Kind::Invalid => {
            Failure::failed("the daemon of this mount has a version that cannot do it")
                .hint("unmount and mount again with this version")
        }
        Kind::Unavailable => Failure::from(error)
            .hint("`hearthfs status` shows the state of the store; what was fetched stays"),
        _ => Failure::from(error),
    })
}

/// Describes the progress.
fn going(report: &WarmReport, files: usize) -> String {
    let done = report.here + report.fetched + report.without_room + report.failed + report.missing;
    let fetched = ByteSize(report.fetched_bytes).human();
    format!("warming: {done} of {}, {fetched} fetched", count(files as u64, "file", "files"))
}

/// Prints the result.
fn tell(command: &Warm, meant: &Meant, report: WarmReport) -> Outcome<()> {
    let mut report = report;
    report.missing += meant.troubles.count();
    let amount =
        |files, bytes| format!("{} ({})", count(files, "file", "files"), ByteSize(bytes).human());
    if command.json {
        let files = meant.files.len() as u64;
        data(&json_pretty(&Summary { files, report: report.clone() })?)?;
    } else {
        let fetched = amount(report.fetched, report.fetched_bytes);
        let here = amount(report.here, report.here_bytes);
        data(&format!("fetched {fetched}; {here} here before\n"))?;
    }
    let mut failure =
        Failure { exit: super::failure::Exit::Failed, messages: Vec::new(), hints: Vec::new() };
    if report.without_room > 0 {
        let left = amount(report.without_room, report.without_room_bytes);
        let text = format!("there is no room for {left} more");
        if command.all {
            note(&text);
        } else {
            failure.messages.push(text);
            failure.hints.push("raise local.cache_size, or free some of the disk".to_owned());
        }
    }
    if report.failed > 0 {
        let why = report.trouble.map(|why| format!(": {why}")).unwrap_or_default();
        failure
            .messages
            .push(format!("{} could not be fetched{why}", count(report.failed, "file", "files")));
    }
    if report.missing > 0 {
        failure
            .messages
            .push(format!("{} not there", count(report.missing, "name is", "names are")));
    }
    failure.messages.extend(meant.unmatched.iter().map(|glob| format!("nothing matches {glob}")));
    if failure.messages.is_empty() { Ok(()) } else { Err(failure) }
}

/// The files that are meant, each once.
#[derive(Debug, Default)]
struct Meant {
    files: Vec<TreePath>,
    known: HashSet<TreePath>,
    troubles: Troubles,
    /// Patterns without a match, as displayed.
    unmatched: Vec<String>,
}

impl Meant {
    fn add(&mut self, path: TreePath) -> Outcome<()> {
        if self.known.insert(path.clone()) {
            self.files.push(path);
        }
        if self.files.len() > FILES_MAX {
            return Err(Failure::refused(format!("these are more than {FILES_MAX} files"))
                .hint("name fewer at a time"));
        }
        Ok(())
    }

    fn take_list(&mut self, point: &Path, listed: Vec<TreePath>) -> Outcome<()> {
        for path in listed {
            let at = path
                .components()
                .fold(point.to_owned(), |at, name| at.join(std::ffi::OsStr::from_bytes(name)));
            let shown = || printed(at.as_os_str().as_bytes());
            match at.symlink_metadata() {
                Ok(about) if about.is_file() => self.add(path)?,
                Ok(_) => self.troubles.add(&shown(), &"it is not a file"),
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    self.troubles.add(&shown(), &"it is not there");
                }
                Err(error) => self.troubles.add(&shown(), &error),
            }
        }
        Ok(())
    }

    fn take_glob(&mut self, around: &Surroundings, dir: &Path, glob: &Path) -> Outcome<()> {
        let shown = printed(glob.as_os_str().as_bytes());
        if glob.is_absolute() {
            return Err(Failure::refused(format!("{shown}: a GLOB is a path relative to DIR")));
        }
        let before = self.files.len();
        let found = self.walk(around, &dir.join(glob), false)?;
        if !found && self.files.len() == before {
            self.unmatched.push(shown);
        }
        Ok(())
    }

    /// Takes all files, the latest first.
    fn take_all(&mut self, around: &Surroundings, dir: &Path) -> Outcome<()> {
        self.walk(around, dir, true).map(drop)
    }

    fn walk(&mut self, around: &Surroundings, typed: &Path, by_time: bool) -> Outcome<bool> {
        let query = Query::of(around, &[typed.to_owned()], Whole::Below)?;
        let troubles = std::mem::take(&mut self.troubles);
        let mut finding = WarmWalk { query: &query, by_time, troubles, found: Vec::new() };
        let walked = walk(&query, &mut finding);
        let WarmWalk { troubles, mut found, .. } = finding;
        self.troubles = troubles;
        // A name without a wildcard that does not exist.
        let fits = match walked {
            Err(failure) if found.is_empty() => {
                note(failure.text().trim_end());
                false
            }
            walked => walked?,
        };
        if by_time {
            found.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
        }
        for (_, path) in found {
            self.add(path)?;
        }
        Ok(fits)
    }
}

/// The walk that collects files.
struct WarmWalk<'a> {
    query: &'a Query,
    by_time: bool,
    troubles: Troubles,
    /// With their times, if these are needed.
    found: Vec<((i64, u64), TreePath)>,
}

impl Visit for WarmWalk<'_> {
    fn takes_all_below(&self) -> bool {
        true
    }

    fn found(&mut self, hit: &Hit<'_>) -> Outcome<()> {
        if hit.kind != FileType::RegularFile {
            return Ok(());
        }
        let time = if self.by_time {
            match statat(hit.dir, hit.name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(about) => (about.st_mtime, about.st_mtime_nsec),
                Err(error) => {
                    self.troubles.add(&self.query.shown(hit.below), &error);
                    return Ok(());
                }
            }
        } else {
            (0, 0)
        };
        let names = hit.below.split(|byte| *byte == b'/');
        if let Ok(path) = names.into_iter().try_fold(TreePath::root(), |dir, name| dir.join(name)) {
            self.found.push((time, path));
        }
        if self.found.len() > FILES_MAX {
            return Err(Failure::refused(format!("these are more than {FILES_MAX} files"))
                .hint("name fewer at a time"));
        }
        Ok(())
    }

    fn troubles(&mut self) -> &mut Troubles {
        &mut self.troubles
    }
}

/// Reads a list of paths.
fn read_list(file: &Path) -> Outcome<Vec<TreePath>> {
    let shown = printed(file.as_os_str().as_bytes());
    let refused = |why: String| Failure::refused(format!("the list {shown}: {why}"));
    let size = file.metadata().map_err(|error| refused(error.to_string()))?.len();
    if size > LIST_BYTES_MAX {
        let most = ByteSize(LIST_BYTES_MAX).human();
        return Err(refused(format!("it is larger than {most}")));
    }
    let text = std::fs::read(file).map_err(|error| refused(error.to_string()))?;
    let lines = text.split(|byte| *byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(number, line)| {
            path_of(line).map_err(|why| {
                refused(format!("line {}: {why}", number + 1))
                    .hint("one path per line, from the root of the mount, as `hearthfs run --record` writes it")
            })
        })
        .collect()
}

fn path_of(line: &[u8]) -> Result<TreePath, String> {
    line.split(|byte| *byte == b'/').try_fold(TreePath::root(), |dir, name| {
        let name = plain_name(name)?;
        dir.join(&name).map_err(|error| format!("{}: {error}", printed(line)))
    })
}

/// Writes a path as in a list.
pub(super) fn line_of(path: &TreePath) -> String {
    let names: Vec<&[u8]> = path.components().collect();
    printed(&names.join(&b'/')) + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_holds_names_of_any_bytes() {
        for names in [&[&b"jax"[..], b"jit_f-1-cache"], &[b"a*?\\", b" \n\xff\x1b"]] {
            let path = names.iter().try_fold(TreePath::root(), |dir, name| dir.join(name));
            let path = path.expect("names");
            let line = line_of(&path);
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert_eq!(path_of(line.trim_end_matches('\n').as_bytes()), Ok(path));
        }
    }

    #[test]
    fn what_is_no_path_below_the_mount_is_refused() {
        for line in ["/absolute", "a//b", "../x", "a/.", "a\\"] {
            assert!(path_of(line.as_bytes()).is_err(), "{line}");
        }
    }
}
