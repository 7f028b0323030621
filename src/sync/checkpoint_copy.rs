//! Reading a checkpoint, for follower, sweeper and `gc` alike.
//!
//! Owns the copy of a checkpoint on the disk: it may be too large for memory, and takes time to
//! read. Must never leave that copy behind.

use std::fs::File;
use std::io::BufReader;

use crate::error::{Error, Result};
use crate::remote::Remote;
use crate::task;

/// How many bytes of a checkpoint are read at once.
const READ_BYTES: usize = 256 << 10;

/// Reads a checkpoint through a new file, which `make` opens. `make` also returns the guard that
/// removes the file in the end.
pub(super) async fn read_checkpoint<T, G>(
    remote: &Remote,
    name: &str,
    make: impl FnOnce() -> Result<(File, G)> + Send + 'static,
    read: impl FnOnce(BufReader<File>) -> Result<T> + Send + 'static,
) -> Result<T>
where
    T: Send + 'static,
    G: Send + 'static,
{
    let (file, copy) = task::blocking(make).await?;
    let into = file.try_clone().map_err(|e| Error::io("open a checkpoint once more", e))?;
    remote.get_checkpoint(name, into).await?;
    task::blocking(move || {
        let read = read(BufReader::with_capacity(READ_BYTES, file));
        drop(copy);
        read
    })
    .await
}
