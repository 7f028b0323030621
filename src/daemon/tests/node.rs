//! The plainest node that tests start from: no store, on a directory of its own.

use std::time::Duration;

use crate::config::{ByteSize, Settings};

pub(super) fn node(dir: &tempfile::TempDir) -> Settings {
    let mut settings = Settings::default();
    settings.local.cache_dir = dir.path().join("cache");
    settings.local.cache_size = ByteSize(1 << 30);
    settings.remote.deadline = Duration::from_secs(5);
    settings.mount.xattrs = true;
    settings
}

pub(super) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}
