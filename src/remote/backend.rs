//! The storage behind a remote: a bucket or a shared directory.

use std::sync::Arc;

use object_store::ObjectStore;

use super::dir::SharedDir;
use crate::error::Result;

/// Where the objects are stored.
#[derive(Debug)]
pub(super) enum Backend {
    Bucket(Arc<dyn ObjectStore>),
    Dir(Arc<SharedDir>),
    #[cfg(any(test, feature = "test-util"))]
    Given(Arc<dyn ObjectStore>),
    #[cfg(any(test, feature = "test-util"))]
    Faulty(Box<Backend>, Arc<super::fault::Faults>),
}

impl Backend {
    pub(super) fn store(&self) -> Result<Arc<dyn ObjectStore>> {
        match self {
            Self::Bucket(store) => Ok(store.clone()),
            Self::Dir(dir) => dir.store(),
            #[cfg(any(test, feature = "test-util"))]
            Self::Given(store) => Ok(store.clone()),
            #[cfg(any(test, feature = "test-util"))]
            Self::Faulty(inner, faults) => Ok(faults.around(inner.store()?)),
        }
    }

    /// Returns the shared directory, if the backend is one.
    pub(super) fn dir(&self) -> Option<&Arc<SharedDir>> {
        match self {
            Self::Dir(dir) => Some(dir),
            #[cfg(any(test, feature = "test-util"))]
            Self::Faulty(inner, _) => inner.dir(),
            _ => None,
        }
    }

    /// Reports whether its client counts requests itself.
    pub(super) fn counts_itself(&self) -> bool {
        match self {
            Self::Bucket(_) => true,
            Self::Dir(_) => false,
            #[cfg(any(test, feature = "test-util"))]
            Self::Given(_) => false,
            #[cfg(any(test, feature = "test-util"))]
            Self::Faulty(inner, _) => inner.counts_itself(),
        }
    }
}
