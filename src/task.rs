//! Spawning and randomness, through one place each.
//!
//! Owns how work is started beside the caller. Must never start a thing without a name, so that a
//! stuck thread or task can be told from the others.

use std::future::Future;

use rand::RngExt as _;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tracing::Instrument as _;

/// Starts a named task on `runtime`.
#[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
pub fn spawn<T: Send + 'static>(
    runtime: &Handle,
    name: &'static str,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    runtime.spawn(work.instrument(tracing::debug_span!("task", name)))
}

/// Runs work that blocks (files, compression) on the runtime's threads for such work.
#[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

/// Starts a named thread.
#[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
pub fn thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> std::io::Result<std::thread::JoinHandle<T>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work)
}

/// Returns a random number.
#[expect(clippy::disallowed_methods, reason = "this is the seam itself")]
pub fn random_u64() -> u64 {
    rand::rng().random()
}
