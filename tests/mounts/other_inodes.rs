//! A file that is changed through another inode than the one by which a process has it open: by its
//! name, or by a descriptor that leads to an older version.

use std::path::Path;

use rustix::fs::OFlags;

use crate::harness::syscall_process::IN_PLACE;
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes};

const BYTES: usize = 8192;
/// How long the other node may take to see a change.
const SEEN_MS: u64 = 10_000;

/// How the second process changes the file.
#[derive(Clone, Copy, Debug)]
enum Change {
    /// Shortens it and makes it as long as before, by its name.
    TruncateByName,
    /// The same, through a descriptor for an older version.
    Truncate,
    /// Writes at its beginning, through such a descriptor.
    Write,
}

impl Change {
    /// Makes the change, and returns what the file has then.
    fn make(self, process: &mut SyscallProcess, path: &Path, old: i64) -> Vec<u8> {
        let link = SyscallProcess::proc_path(old);
        let mut again = || process.open(&link, OFlags::WRONLY, 0).must("open it for writing");
        match self {
            Self::TruncateByName => {
                process.truncate(path, 100).must("shorten");
                process.truncate(path, BYTES as u64).must("lengthen");
            }
            Self::Truncate => {
                let fd = again();
                process.ftruncate(fd, 100).must("shorten");
                process.ftruncate(fd, BYTES as u64).must("lengthen");
                process.close(fd).must("close");
            }
            Self::Write => {
                let fd = again();
                process.pwrite(fd, 0, &[b'z'; 1000]).must("write");
                process.close(fd).must("close");
                return [vec![b'z'; 1000], vec![b'x'; BYTES - 1000]].concat();
            }
        }
        [vec![b'x'; 100], vec![0; BYTES - 100]].concat()
    }
}

/// Pages that a process has read are not served to others after the file is closed.
fn a_closed_file_has_no_pages_of_before_it_was_changed(io: Io) {
    let cluster = Cluster::two(io);
    for change in [Change::TruncateByName, Change::Truncate, Change::Write] {
        let (path, far) = (cluster.a.at("file"), cluster.b.at("file"));
        let (mut one, mut two) = (SyscallProcess::new(), SyscallProcess::new());
        one.put(&path, &[b'x'; BYTES]).must("put");
        let old = two.open(&path, OFlags::RDONLY, 0).must("open the old version");
        let fd = one.open(&path, OFlags::RDWR, 0).must("open");
        assert_eq!(one.read(fd, 0, BYTES).must("read").len(), BYTES);
        let mut expected = change.make(&mut two, &path, old);
        two.close(old).must("close");
        one.pwrite(fd, BYTES as u64 - 1, b"y").must("write");
        expected[BYTES - 1] = b'y';
        one.close(fd).must("close");
        let read = SyscallProcess::new().get(&path).must("read");
        assert!(read == expected, "{change:?}: {} bytes, {:?}", read.len(), &read[..8]);
        cluster.a.drain();
        eventually(SEEN_MS, "the other node has the same", || {
            let read = std::fs::read(&far).map_err(|error| error.to_string())?;
            if read == expected { Ok(()) } else { Err(format!("{} bytes", read.len())) }
        });
        one.unlink(&path).must("unlink");
    }
}
in_both_modes!(a_closed_file_has_no_pages_of_before_it_was_changed);

/// A mode and a size that are changed by the name are shown to a process that has the file open.
fn a_writer_sees_a_change_of_attributes_by_the_name_at_once(io: Io) {
    let cluster = Cluster::two(io);
    let (mut one, mut two) = (SyscallProcess::new(), SyscallProcess::new());
    let path = cluster.a.at("file");
    one.put(&path, &[b'x'; BYTES]).must("put");
    let fd = one.open(&path, IN_PLACE, 0).must("open");
    for (mode, size) in [(0o600, 100), (0o640, 300), (0o644, 10)] {
        one.fstat(fd).must("fstat");
        two.chmod(&path, mode).must("chmod");
        assert_eq!(one.fstat(fd).must("fstat").mode & 0o777, mode);
        two.truncate(&path, size).must("truncate");
        assert_eq!(one.fstat(fd).must("fstat").size, size);
    }
}
in_both_modes!(a_writer_sees_a_change_of_attributes_by_the_name_at_once);
