//! `hearthfs run --record`: a list of the files opened on the mount while a command ran.
//!
//! Owns the file, which is written whole or not at all. Must never change how the command ends.

use std::collections::HashSet;
use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::NamedTempFile;

use super::failure::{Failure, Outcome};
use super::output::{count, note};
use super::warm::line_of;
use crate::clock::sleep;
use crate::config::Surroundings;
use crate::control;
use crate::error::Kind;
use crate::name::TreePath;
use crate::namespace::path_of_hex;
use crate::task;

/// How often the daemon is asked; it drops a recording that is no longer requested.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The most files of one list.
const FILES_MAX: usize = 1_000_000;

/// A list in progress.
#[derive(Debug)]
pub(super) struct Recording {
    around: Surroundings,
    point: PathBuf,
    number: u64,
    /// The final path of the list, and its temporary file.
    file: PathBuf,
    written: NamedTempFile,
    paths: Vec<TreePath>,
    known: HashSet<TreePath>,
    lost: u64,
}

impl Recording {
    /// Prepares a list, before anything else is done.
    pub(super) fn prepare(around: &Surroundings, point: &Path, file: &Path) -> Outcome<Self> {
        let file = around.absolute(file);
        let refused = |why: &dyn std::fmt::Display| {
            Failure::refused(format!("--record {}: {why}", file.display()))
                .hint("name a file in a directory that you may write")
        };
        if file.is_dir() {
            return Err(refused(&"it is a directory"));
        }
        let dir = file.parent().ok_or_else(|| refused(&"it is not a file"))?;
        // As for any new file, the umask applies.
        let written = tempfile::Builder::new()
            .prefix(".hearthfs-record-")
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(dir)
            .map_err(|error| refused(&error))?;
        Ok(Self {
            around: around.clone(),
            point: point.to_owned(),
            number: task::random_u64(),
            file,
            written,
            paths: Vec::new(),
            known: HashSet::new(),
            lost: 0,
        })
    }

    /// Starts recording opens.
    pub(super) async fn begin(&mut self, is_ours: bool) -> Outcome<()> {
        if !is_ours {
            let point = self.point.display();
            return Err(Failure::refused(format!(
                "--record: {point} is another user's mount; only that user and root may see which files are opened there"
            ))
            .hint("name another mount point with --mount"));
        }
        self.ask(false).await
    }

    /// Keeps the recording running for ever.
    pub(super) async fn go_on(&mut self) -> std::convert::Infallible {
        loop {
            sleep(ASK_EVERY).await;
            // The daemon keeps a recording for half a minute; the last request shows whether it is gone.
            self.ask(false).await.ok();
        }
    }

    /// Ends the recording, and moves the list to its final path. Prints failures.
    pub(super) async fn end(mut self) {
        if let Err(failure) = self.finish().await {
            note(failure.text().trim_end());
            note(&format!("hint: there is no list in {}", self.file.display()));
            return;
        }
        let Self { file, written, paths, lost, .. } = self;
        if let Err(error) = written.persist(&file) {
            note(&format!("error: write the list {}: {}", file.display(), error.error));
            return;
        }
        let files = count(paths.len() as u64, "file", "files");
        note(&format!("hearthfs: {files} opened, listed in {}", file.display()));
        if lost > 0 {
            note(&format!("warning: {} more are not in the list", count(lost, "open", "opens")));
        }
    }

    async fn finish(&mut self) -> Outcome<()> {
        self.ask(true).await?;
        let failed = |error| Failure::failed(format!("write the list: {error}"));
        let text: String = self.paths.iter().map(line_of).collect();
        self.written.write_all(text.as_bytes()).map_err(failed)?;
        self.written.as_file().sync_all().map_err(failed)
    }

    async fn ask(&mut self, last: bool) -> Outcome<()> {
        let (mut client, _) =
            control::find(&self.around, &self.point, Some(self.around.uid)).await?;
        loop {
            let report = client.opens(self.number, last).await.map_err(|error| {
                if error.kind() == Kind::Invalid {
                    Failure::failed("the daemon of this mount has a version that cannot record")
                        .hint("unmount and mount again with this version")
                } else {
                    Failure::from(error)
                }
            })?;
            self.lost += report.lost;
            for path in report.paths.iter().filter_map(|path| path_of_hex(path)) {
                if self.paths.len() >= FILES_MAX {
                    self.lost += u64::from(!self.known.contains(&path));
                } else if self.known.insert(path.clone()) {
                    self.paths.push(path);
                }
            }
            if !report.more {
                return Ok(());
            }
        }
    }
}
