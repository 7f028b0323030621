use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

use super::*;

fn sink(size: u64, waited_for: &Arc<()>) -> Sink {
    Sink {
        file: tempfile::tempfile().expect("a file"),
        hasher: Hasher::new(),
        written: 0,
        size,
        progress: Progress::default(),
        waited_for: Arc::downgrade(waited_for),
    }
}

/// Mebibytes of zeros, a byte, and again mebibytes of zeros.
fn sparse() -> Vec<u8> {
    let mut raw = vec![0; 32 << 20];
    raw[16 << 20] = 1;
    raw
}

#[test]
fn zeros_are_holes_and_all_that_is_written_is_progress() {
    let (raw, waited_for) = (sparse(), Arc::new(()));
    let frame = zstd::bulk::compress(&raw, ZSTD_LEVEL).expect("compressed");
    assert!(frame.len() < CHUNK_BYTES, "one piece arrives: {}", frame.len());
    let mut sink = sink(raw.len() as u64, &waited_for);
    let mut from = &frame[..];
    decompress(&mut sink, |chunk| from.read(chunk)).expect("decompressed");
    sink.verify(&Digest::of(&raw)).expect("the same bytes");
    assert!(sink.progress.moves() >= 256, "{} moves", sink.progress.moves());
    let file = sink.file.metadata().expect("stat");
    assert_eq!(file.len(), raw.len() as u64);
    assert!(file.blocks() * 512 <= 256 << 10, "{} blocks", file.blocks());
    let mut read = vec![1; raw.len()];
    sink.file.read_exact_at(&mut read, 0).expect("read");
    assert!(read == raw, "the file has other bytes");
}

#[test]
fn a_download_that_was_given_up_writes_no_more() {
    let waited_for = Arc::new(());
    let mut sink = sink(100, &waited_for);
    sink.write_all(b"waited for").expect("written");
    drop(waited_for);
    sink.write_all(b"given up").expect_err("no one waits");
    assert_eq!(sink.file.metadata().expect("stat").len(), 10);
}
