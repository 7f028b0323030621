//! Readers of a file that was closed and is mapped.

use std::time::Duration;

use super::kernel::Kernel;
use super::node::{READ, UPDATE, get, node, put, runtime};
use super::programs::Program;

/// Writes a file, closes it, and stores to it through a mapping.
fn close_and_map(kernel: &mut Kernel<'_>, program: &Program, path: &str, bytes: &[u8]) {
    let who = program.caller();
    put(kernel, program, path, bytes);
    kernel.open(&who, path, 1, UPDATE, false).unwrap();
    kernel.write(1, 0, b"V1").unwrap();
    kernel.map(1, 2);
    kernel.close(&who, 1).unwrap();
    assert_eq!(&get(kernel, &Program::start(), path)[..2], b"V1");
    kernel.store(2, 0, b"V2");
    // The stored bytes are written back before the mapping ends.
    kernel.write_back_mapping(2);
}

#[test]
fn a_reader_that_cannot_wait_for_the_end_of_a_mapping_reads_the_older_version() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut settings = node(&dir);
    settings.writeback.open_wait = Duration::ZERO;
    let mut kernel = Kernel::start(&runtime, settings, false);
    let (program, reader) = (Program::start(), Program::start());
    close_and_map(&mut kernel, &program, "file", b"old text");
    kernel
        .unmap_slowly(2, |kernel| {
            assert_eq!(get(kernel, &reader, "file"), b"V1d text", "the digest is not ready");
        })
        .unwrap();
    assert_eq!(get(&mut kernel, &reader, "file"), b"V2d text");
}

#[test]
fn readers_wait_once_for_a_mapping_that_stays() {
    let (runtime, dir) = (runtime(), tempfile::tempdir().unwrap());
    let mut kernel = Kernel::start(&runtime, node(&dir), false);
    let (program, reader) = (Program::start(), Program::start());
    close_and_map(&mut kernel, &program, "file", b"old text");
    let tries =
        (0..20).take_while(|_| !kernel.opens_at_once(&reader.caller(), "file", READ).unwrap());
    assert!(tries.count() < 20, "every open waits");
    assert_eq!(get(&mut kernel, &reader, "file"), b"V1d text");
    kernel.unmap(2).unwrap();
    assert_eq!(get(&mut kernel, &reader, "file"), b"V2d text");
}
