//! The file from which a textfile collector reads the figures.
//!
//! Owns the file. Must never show a partial one: it is written under another name and renamed.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::{Monitored, figures};
use crate::clock::sleep;
use crate::error::{Error, Kind, Result};
use crate::task;

/// How often it is written; collectors read once or twice a minute.
const WRITE_EVERY: Duration = Duration::from_secs(15);
/// Collectors run as other users.
const MODE: u32 = 0o644;

/// The file of one mount; dropping it removes the file.
#[derive(Debug)]
pub(super) struct Textfile(PathBuf);

impl Textfile {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    /// Writes the current figures.
    pub(super) fn write(&self, node: &dyn Monitored) -> Result<()> {
        let text = figures::render(&node.figures());
        let failed = |error| {
            let path = self.0.display();
            let what = format!(
                "write metrics.textfile = \"{path}\": its directory must exist, and this user may write there"
            );
            Error::with(Kind::Invalid, what, error)
        };
        let dir = self.0.parent().unwrap_or(Path::new("/"));
        let write = || {
            let mut file = tempfile::Builder::new().prefix(".hearthfs-").tempfile_in(dir)?;
            file.write_all(text.as_bytes())?;
            let mode = std::os::unix::fs::PermissionsExt::from_mode(MODE);
            file.as_file().set_permissions(mode)?;
            file.persist(&self.0).map_err(|error| error.error).map(drop)
        };
        write().map_err(failed)
    }
}

impl Drop for Textfile {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            tracing::debug!(path = %self.0.display(), %error, "the file with metrics is not removed");
        }
    }
}

/// Writes the file periodically until it is dropped. Logs a failure once, until a write succeeds.
pub(super) async fn keep(file: Arc<Textfile>, node: Arc<dyn Monitored>) {
    let mut said = false;
    loop {
        sleep(WRITE_EVERY).await;
        let (file, node) = (Arc::clone(&file), Arc::clone(&node));
        match task::blocking(move || file.write(&*node)).await {
            Ok(()) => said = false,
            Err(error) if !said => {
                tracing::warn!(error = error.chain(), "metrics are not written");
                said = true;
            }
            Err(_) => {}
        }
    }
}
