//! The simplest node for tests, without a store and on a directory of its own, and the operations
//! that most tests make on it.

use std::time::Duration;

use hearthfs_mount::{OpenAccess, OpenFlags};

use super::kernel::Kernel;
use super::programs::Program;
use crate::config::{ByteSize, Settings};

/// How a file is opened for reading.
pub(super) const READ: OpenFlags = OpenFlags {
    access: OpenAccess::Read,
    truncate: false,
    append: false,
    exclusive: false,
    direct: false,
};
/// How a file is opened for changes.
pub(super) const UPDATE: OpenFlags = OpenFlags { access: OpenAccess::Both, ..READ };
/// How a file is opened to be replaced.
pub(super) const REPLACE: OpenFlags = OpenFlags { truncate: true, ..UPDATE };

/// How a file is opened to be written, and perhaps read.
pub(super) fn written(read: bool) -> OpenAccess {
    if read { OpenAccess::Both } else { OpenAccess::Write }
}

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

/// Writes a whole file.
pub(super) fn put(kernel: &mut Kernel<'_>, program: &Program, path: &str, bytes: &[u8]) {
    kernel.open(&program.caller(), path, 90, REPLACE, true).unwrap();
    if !bytes.is_empty() {
        kernel.write(90, 0, bytes).unwrap();
    }
    kernel.close(&program.caller(), 90).unwrap();
}

/// Reads a whole file.
pub(super) fn get(kernel: &mut Kernel<'_>, program: &Program, path: &str) -> Vec<u8> {
    kernel.open(&program.caller(), path, 91, READ, false).unwrap();
    let bytes = kernel.read(91).unwrap();
    kernel.close(&program.caller(), 91).unwrap();
    bytes
}

/// Runs a test with and without passthrough.
pub(super) fn in_both_modes(test: impl Fn(&mut Kernel<'_>)) {
    for passthrough in [false, true] {
        let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
        test(&mut Kernel::start(&runtime, node(&dir), passthrough));
    }
}
