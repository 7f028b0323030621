//! The totals of the figures by client, kept for the next daemon.
//!
//! Owns one small file of the cache directory. Must never keep a mount from serving: unreadable
//! figures start at zero.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::PathBuf;

use parking_lot::Mutex;

use super::dir::{CacheDir, write_atomic};
use crate::metrics::Figures;

/// The most bytes that are read of the file.
const BYTES_MAX: u64 = 64 << 10;
/// The most clients that are accepted: a file with more is not ours.
const CLIENTS_MAX: usize = 256;

/// The file that keeps the figures.
#[derive(Debug)]
pub struct FigureFile {
    path: PathBuf,
    kept: Mutex<Figures>,
}

impl FigureFile {
    /// Reads the counts of earlier runs. If they are unreadable, logs a warning and starts at zero.
    pub fn open(dir: &CacheDir) -> Self {
        let path = dir.path().join("figures");
        let kept = read(&path).unwrap_or_else(|error| {
            tracing::warn!(path = %path.display(), %error, "the figures cannot be read and start at zero");
            Figures::new()
        });
        Self { path, kept: Mutex::new(kept) }
    }

    /// Returns the figures that were kept last.
    pub fn kept(&self) -> Figures {
        self.kept.lock().clone()
    }

    /// Writes the figures if they have changed. Blocks.
    pub fn keep(&self, figures: Figures) {
        let mut kept = self.kept.lock();
        if *kept == figures {
            return;
        }
        // A map from text to numbers always has a JSON form.
        let text = serde_json::to_vec(&figures).unwrap_or_default();
        match write_atomic(&self.path, &text) {
            Ok(()) => *kept = figures,
            Err(error) => {
                tracing::debug!(path = %self.path.display(), %error, "cannot save the figures");
            }
        }
    }
}

fn read(path: &std::path::Path) -> io::Result<Figures> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Figures::new()),
        opened => opened?,
    };
    let mut text = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut text)?;
    let figures: Figures = serde_json::from_slice(&text)?;
    if figures.len() > CLIENTS_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it names too many clients"));
    }
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::ClientFigures;

    #[test]
    fn figures_survive_a_restart_and_a_damaged_file_is_no_reason_not_to_serve() {
        let dir = tempfile::tempdir().unwrap();
        let figures = Figures::from([(
            "jax".to_owned(),
            ClientFigures { local: 3, fetched: 2, compiled: 1, saved_ms: 41_000 },
        )]);
        let path = {
            let cache = CacheDir::open(dir.path()).unwrap();
            let file = FigureFile::open(&cache);
            assert_eq!(file.kept(), Figures::new());
            file.keep(figures.clone());
            assert_eq!(FigureFile::open(&cache).kept(), figures);
            file.path
        };
        let large = vec![b' '; 2 * BYTES_MAX as usize];
        for damage in [&b""[..], b"{\"jax\":", b"[1]", b"{\"jax\":{\"local\":-1}}", &large] {
            std::fs::write(&path, damage).unwrap();
            let cache = CacheDir::open(dir.path()).unwrap();
            let file = FigureFile::open(&cache);
            assert_eq!(file.kept(), Figures::new());
            file.keep(figures.clone());
            assert_eq!(FigureFile::open(&cache).kept(), figures);
        }
        // Fields of a later version are ignored.
        std::fs::write(&path, br#"{"jax":{"local":4,"later":[1]}}"#).unwrap();
        let cache = CacheDir::open(dir.path()).unwrap();
        assert_eq!(FigureFile::open(&cache).kept()["jax"].local, 4);
    }
}
