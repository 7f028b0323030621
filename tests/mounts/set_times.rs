//! Programs that set the time of a file they write, often back to the time that it had before.

use rustix::fs::OFlags;

use crate::harness::syscall_process::{CREATE_NEW, IN_PLACE};
use crate::harness::{Cluster, Io, Must as _, SyscallProcess, eventually, in_both_modes};

const MADE: (i64, i64) = (1_600_000_000, 123_456_789);
/// How long the other node may take to see a change.
const SEEN_MS: u64 = 10_000;

fn time(cluster: &Cluster, name: &str) -> (i64, i64) {
    let about = SyscallProcess::new().stat(&cluster.a.at(name)).must("stat");
    (about.mtime_s, about.mtime_ns)
}

/// A copy that is repeated (rsync, `cp -p`, `hearthfs import`) sets the time that the file had before.
fn set_times_of_a_repeated_copy_are_kept(io: Io) {
    let cluster = Cluster::two(io);
    let mut process = SyscallProcess::new();
    let in_place = OFlags::WRONLY;
    for (name, again, empties) in [
        ("truncated", in_place | OFlags::TRUNC, false),
        ("emptied", in_place, true),
        ("overwritten", in_place, false),
    ] {
        let path = cluster.a.at(name);
        for (flags, bytes) in [(CREATE_NEW, b"first "), (again, b"second"), (again, b"second")] {
            let fd = process.open(&path, flags, 0o644).must("open");
            if empties {
                process.ftruncate(fd, 0).must("ftruncate");
            }
            process.write(fd, bytes).must("write");
            process.futimes(fd, MADE.0, MADE.1).must("futimens");
            let open = process.fstat(fd).must("fstat");
            assert_eq!((open.mtime_s, open.mtime_ns), MADE, "{name} while it is open");
            process.close(fd).must("close");
            assert_eq!(time(&cluster, name), MADE, "{name} after its close");
            assert_eq!(SyscallProcess::new().get(&path).must("read"), bytes);
        }
    }
}
in_both_modes!(set_times_of_a_repeated_copy_are_kept);

/// A mode that is set after a write leaves the time of the write.
fn set_times_do_not_follow_other_attributes(io: Io) {
    let cluster = Cluster::two(io);
    let (mut process, path) = (SyscallProcess::new(), cluster.a.at("file"));
    process.put(&path, b"first").must("put");
    let fd = process.open(&path, IN_PLACE, 0o644).must("open");
    process.futimes(fd, MADE.0, MADE.1).must("futimens");
    process.write(fd, b"other").must("write");
    process.chmod(&path, 0o600).must("chmod");
    let written = process.fstat(fd).must("fstat");
    assert!(written.mtime_s > MADE.0, "the write has moved it");
    process.close(fd).must("close");
    assert_eq!(time(&cluster, "file"), (written.mtime_s, written.mtime_ns));
}
in_both_modes!(set_times_do_not_follow_other_attributes);

/// Bytes of the same length are published by the last close, although the file has the size and time of the
/// version that an earlier close has published. The same bytes are no other version, and are not lost.
fn set_times_hide_no_bytes(io: Io) {
    let cluster = Cluster::two(io);
    let mut process = SyscallProcess::new();
    for (name, second) in [("other", b"second"), ("same", b"first ")] {
        let path = cluster.a.at(name);
        let fd = process.open(&path, CREATE_NEW, 0o644).must("open");
        let twin = process.dup(fd).must("dup");
        process.write(fd, b"first ").must("write");
        process.futimes(fd, MADE.0, MADE.1).must("futimens");
        process.close(twin).must("close");
        process.pwrite(fd, 0, second).must("write again");
        process.futimes(fd, MADE.0, MADE.1).must("futimens");
        process.close(fd).must("close");
        assert_eq!(SyscallProcess::new().get(&path).must("read"), second, "{name}");
        cluster.a.drain();
        eventually(SEEN_MS, "the other node has the second version", || {
            let read = std::fs::read(cluster.b.at(name)).map_err(|error| error.to_string())?;
            if read == second { Ok(()) } else { Err(format!("{read:?}")) }
        });
        assert_eq!(time(&cluster, name), MADE, "{name}");
        assert_eq!(SyscallProcess::new().get(&path).must("read again"), second, "{name}");
    }
}
in_both_modes!(set_times_hide_no_bytes);
