//! A disk that refuses to make a blob of a closed file, for a while: the bytes stay in staging, and
//! nothing that was acknowledged is lost.

use std::path::PathBuf;

use hearthfs_mount::Errno;

use super::kernel::Kernel;
use super::node::{READ, REPLACE, UPDATE, get, in_both_modes, put};
use super::programs::Program;
use super::users::EVE;
use crate::digest::Digest;

const TEXT: &[u8] = b"closed";
/// Longer than the pause between two attempts.
const NEXT_ATTEMPT: std::time::Duration = std::time::Duration::from_millis(1500);

/// Makes it impossible to put the blob of these bytes in place. Returns what must be removed to make
/// it possible again.
fn block(kernel: &Kernel<'_>, bytes: &[u8]) -> PathBuf {
    let shard = Digest::of(bytes).shard();
    let shard = kernel.cache_dir().join("v1").join("blobs").join(shard);
    std::fs::remove_dir_all(&shard).ok();
    std::fs::write(&shard, b"in the way").unwrap();
    shard
}

fn allow(shard: &PathBuf) {
    std::fs::remove_file(shard).unwrap();
    std::fs::create_dir(shard).unwrap();
}

#[test]
fn a_file_that_cannot_become_a_blob_is_readable_later() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start_as(EVE));
        let shard = block(kernel, TEXT);
        put(kernel, &one, "file", TEXT);
        kernel.end_call();
        assert!(kernel.stat(&other.caller(), "file").is_ok());
        let opened = kernel.open(&other.caller(), "file", 1, READ, false);
        assert_eq!(opened, Err(Errno::ENOENT), "a miss, and not an older version");
        allow(&shard);
        assert_eq!(get(kernel, &other, "file"), TEXT);
    });
}

#[test]
fn a_file_that_cannot_become_a_blob_becomes_one_without_a_reader() {
    in_both_modes(|kernel| {
        let one = Program::start();
        let shard = block(kernel, TEXT);
        put(kernel, &one, "file", TEXT);
        kernel.pass(NEXT_ATTEMPT);
        allow(&shard);
        kernel.pass(NEXT_ATTEMPT);
        let blob = shard.join(Digest::of(TEXT).to_string());
        assert_eq!(std::fs::read(blob).unwrap(), TEXT);
    });
}

#[test]
fn an_orderly_end_keeps_what_could_not_become_a_blob() {
    in_both_modes(|kernel| {
        let one = Program::start();
        let shard = block(kernel, TEXT);
        put(kernel, &one, "file", TEXT);
        kernel.end(true);
        allow(&shard);
        kernel.up();
        assert_eq!(get(kernel, &one, "file"), TEXT);
    });
}

/// A program has closed a duplicate, so the version is published, and goes on with the file.
#[test]
fn a_version_that_cannot_be_copied_stays_until_it_can() {
    in_both_modes(|kernel| {
        let (one, other) = (Program::start(), Program::start_as(EVE));
        let shard = block(kernel, TEXT);
        kernel.open(&one.caller(), "file", 1, REPLACE, true).unwrap();
        kernel.write(1, 0, TEXT).unwrap();
        kernel.close_duplicate(&one.caller(), 1).unwrap();
        kernel.pass(NEXT_ATTEMPT);
        let opened = kernel.open(&other.caller(), "file", 2, READ, false);
        assert_eq!(opened, Err(Errno::ENOENT));
        // A writer must not change the only copy.
        let joined = kernel.open(&one.caller(), "file", 3, UPDATE, false);
        assert_eq!(joined, Err(Errno::EIO));
        assert_eq!(kernel.write(1, 0, b"more than that"), Err(Errno::EIO));
        allow(&shard);
        assert_eq!(get(kernel, &other, "file"), TEXT);
        kernel.write(1, 0, b"more than that").unwrap();
        assert_eq!(get(kernel, &other, "file"), TEXT);
        kernel.close(&one.caller(), 1).unwrap();
        assert_eq!(get(kernel, &other, "file"), b"more than that");
    });
}
