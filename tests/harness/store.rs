//! What the nodes of a test share, and how it fails on demand.
//!
//! Owns the shared directory or the S3 server of a test, and its troubles. Must never know the
//! layout of the objects beyond their folders' names.

use std::path::{Path, PathBuf};

use super::Must as _;
use super::node::Site;

/// A store for one test.
#[derive(Debug)]
pub(crate) struct Store {
    dir: PathBuf,
}

impl Store {
    /// Makes a shared directory.
    pub(crate) fn dir(site: &Site) -> Self {
        Self { dir: site.dir("store") }
    }

    /// Returns its URL.
    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.dir.display())
    }

    /// Returns what the daemon needs in its environment to reach it.
    #[expect(clippy::unused_self, reason = "an S3 store has credentials here")]
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        Vec::new()
    }

    /// Returns the directory that holds the objects as files.
    pub(crate) fn objects(&self) -> &Path {
        &self.dir
    }

    /// Returns the objects below a folder of the store.
    pub(crate) fn objects_in(&self, folder: &str) -> Vec<PathBuf> {
        let mut found = super::tree::files_below(&self.dir.join(folder));
        found.sort();
        found
    }

    fn away(&self) -> PathBuf {
        self.dir.with_extension("away")
    }

    /// Makes every request fail: where the directory was, there is a file.
    pub(crate) fn fail(&self) {
        std::fs::rename(&self.dir, self.away()).must("take the store away");
        std::fs::write(&self.dir, b"not a directory").must("put a file in its place");
    }

    /// Makes the store disappear, as an unmounted network disk does: an empty directory is left.
    pub(crate) fn vanish(&self) {
        std::fs::rename(&self.dir, self.away()).must("take the store away");
        std::fs::create_dir(&self.dir).must("leave an empty directory");
    }

    /// Ends [`Store::fail`] and [`Store::vanish`]. What was written in its place stays out of it.
    pub(crate) fn heal(&self) {
        let away = self.away();
        if !away.exists() {
            return;
        }
        let impostor = self.dir.with_extension("impostor");
        if impostor.is_dir() {
            std::fs::remove_dir_all(&impostor).must("remove an older impostor");
        } else if impostor.exists() {
            std::fs::remove_file(&impostor).must("remove an older impostor");
        }
        std::fs::rename(&self.dir, &impostor).must("clear the store's place");
        std::fs::rename(&away, &self.dir).must("bring the store back");
    }
}
