//! Credentials in files.
//!
//! Owns reading such files, and reading them again when they change, so that rotated credentials
//! take effect while mounted. Must never print a secret, and never fetch anything over the network.

pub(super) mod aws;
pub(super) mod azure;
pub(super) mod google;
mod ini;

use std::fmt;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use object_store::CredentialProvider;
use parking_lot::Mutex;

use crate::error::{Error, Kind, Result};
use crate::task;

/// The largest file of credentials that is read.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// A shared source of credentials of one form.
pub(super) type Provider<C> = Arc<dyn CredentialProvider<Credential = C>>;

/// Files that hold credentials.
pub(super) trait CredentialFiles: fmt::Debug + Send + Sync + 'static {
    /// The form of the credentials of its cloud.
    type Credential: fmt::Debug + Send + Sync + 'static;

    /// Returns the files.
    fn files(&self) -> Vec<&Path>;

    /// Reads the files. Blocks.
    fn read(&self) -> Result<Provider<Self::Credential>>;
}

/// Detects changes of the files.
type FileStamp = Vec<Option<(SystemTime, u64, u64)>>;

fn version_of(files: &[&Path]) -> FileStamp {
    let of = |path: &&Path| {
        let data = std::fs::metadata(path).ok()?;
        Some((data.modified().ok()?, data.len(), data.ino()))
    };
    files.iter().map(of).collect()
}

/// Returns the credentials that the files hold at the time of each request.
#[derive(Debug)]
pub(super) struct Followed<S: CredentialFiles>(Arc<State<S>>);

struct State<S: CredentialFiles> {
    source: S,
    last: Mutex<Option<(FileStamp, Provider<S::Credential>)>>,
}

impl<S: CredentialFiles> fmt::Debug for State<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("source", &self.source).finish_non_exhaustive()
    }
}

impl<S: CredentialFiles> Followed<S> {
    pub(super) fn new(source: S) -> Self {
        Self(Arc::new(State { source, last: Mutex::new(None) }))
    }
}

impl<S: CredentialFiles> State<S> {
    fn current(&self) -> Result<Provider<S::Credential>> {
        // Taken before reading, so that a change during the read is noticed next time.
        let version = version_of(&self.source.files());
        if let Some((seen, provider)) = &*self.last.lock()
            && *seen == version
        {
            return Ok(provider.clone());
        }
        let provider = self.source.read()?;
        *self.last.lock() = Some((version, provider.clone()));
        Ok(provider)
    }
}

#[async_trait]
impl<S: CredentialFiles> CredentialProvider for Followed<S> {
    type Credential = S::Credential;

    async fn get_credential(&self) -> object_store::Result<Arc<S::Credential>> {
        // The state outlives the call, so that the files can be read off the runtime.
        let state = self.0.clone();
        let provider = task::blocking(move || state.current()).await.map_err(|error| {
            let (path, source) = ("credentials".to_owned(), error.chain().into());
            object_store::Error::Unauthenticated { path, source }
        })?;
        provider.get_credential().await
    }
}

/// Reads a file of credentials; `None` if it does not exist.
fn read_text(path: &Path) -> Result<Option<String>> {
    let failed = |error| Error::io(format!("read {}", path.display()), error);
    let data = match std::fs::metadata(path) {
        Ok(data) => data,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    if data.len() > FILE_BYTES_MAX {
        let op = format!("{} has more than {FILE_BYTES_MAX} bytes", path.display());
        return Err(Error::new(Kind::Invalid, op));
    }
    let bytes = std::fs::read(path).map_err(failed)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}
