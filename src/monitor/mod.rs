//! What monitors read: figures in the OpenMetrics form, and whether the mount is healthy.
//!
//! Owns the address at which requests are answered, and the file for a textfile collector. Must
//! never change anything on the mount, and never block it: requests are short, waits have limits,
//! and a slow client is disconnected.

mod address;
mod answer;
mod figures;
mod page;
mod textfile;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hyper_util::rt::TokioIo;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use self::address::{Listener, Stream};
use self::textfile::Textfile;
use crate::clock::{sleep, within};
use crate::config::MetricsSettings;
use crate::control::Status;
use crate::error::Result;
use crate::metrics::Distribution;
use crate::task;

pub use self::figures::{CLOSE, FETCH, LAG, OPEN, PUBLISH, STORE, names};

/// Connections that are served at once; further ones wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
/// How long one connection may last: a client that keeps one open for longer connects again.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// How much of a request's head is read.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after an accept that failed (out of descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A distribution of durations, under one name with one set of labels.
#[derive(Clone, Debug)]
pub struct Series {
    /// The name, with its unit.
    pub name: &'static str,
    /// Labels and their values.
    pub labels: Vec<(&'static str, String)>,
    /// The durations.
    pub times: Distribution,
}

/// Everything that a monitor may read of a mount.
#[derive(Clone, Debug, Default)]
pub struct MountFigures {
    /// What `hearthfs status` shows.
    pub status: Status,
    /// How long things take.
    pub series: Vec<Series>,
}

/// What is monitored.
#[async_trait]
pub trait Monitored: Send + Sync + 'static {
    /// Returns all figures; must answer at once, whatever the remote does.
    fn figures(&self) -> MountFigures;
    /// Returns why the daemon is unhealthy; `None` if it is healthy. Trouble with the store does
    /// not make the daemon unhealthy.
    async fn trouble(&self) -> Option<String>;
}

/// Serves monitors until it is dropped. Then no further request is answered and the file is
/// removed, so that stale figures are not mistaken for current ones. A daemon that is killed leaves
/// the file; its age shows that.
#[derive(Debug)]
pub struct Monitor {
    tasks: Vec<JoinHandle<()>>,
    _listener: Option<address::Held>,
    _textfile: Option<Arc<Textfile>>,
}

impl Monitor {
    /// Serves as the settings say; does nothing if they set neither address nor file.
    ///
    /// # Errors
    ///
    /// `Busy` when the address is in use, `Denied` when it may not be used, `Invalid` when the file
    /// cannot be written.
    pub fn start(
        runtime: &Handle,
        settings: &MetricsSettings,
        node: &Arc<dyn Monitored>,
    ) -> Result<Self> {
        let mut tasks = Vec::new();
        let mut held = None;
        if let Some(at) = &settings.listen {
            let (listener, holds) = address::listen(runtime, at)?;
            tracing::info!(address = %holds, "serving metrics");
            let work = accept(runtime.clone(), listener, Arc::clone(node));
            tasks.push(task::spawn(runtime, "metrics", work));
            held = Some(holds);
        }
        let textfile = settings.textfile.as_deref().map(|path| Arc::new(Textfile::new(path)));
        if let Some(file) = &textfile {
            file.write(&**node)?;
            let keeping = textfile::keep(Arc::clone(file), Arc::clone(node));
            tasks.push(task::spawn(runtime, "metrics file", keeping));
        }
        Ok(Self { tasks, _listener: held, _textfile: textfile })
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

async fn accept(runtime: Handle, listener: Listener, node: Arc<dyn Monitored>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(stream) => {
                let node = Arc::clone(&node);
                task::spawn(&runtime, "metrics client", async move {
                    serve(stream, node).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "accept on the address of metrics failed");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the requests of one client.
async fn serve(stream: Stream, node: Arc<dyn Monitored>) {
    let service = hyper::service::service_fn(move |request| {
        let node = Arc::clone(&node);
        async move { Ok::<_, std::convert::Infallible>(answer::answer(&request, &*node).await) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    if let Some(Err(error)) = within(CONNECTION_TIME_MAX, connection).await {
        tracing::debug!(%error, "a request for metrics was aborted");
    }
}
