use super::*;

fn staged(run: &Run) -> usize {
    fs::read_dir(run.dir.path().join("staging")).unwrap().count()
}

/// A fetched content is written under its name at once, and counts like an adopted file.
#[test]
fn contents_in_memory_become_blobs() {
    let fixture = Fixture::new(1 << 20);
    let run = fixture.open();
    let content = vec![7; 5000];
    let digest = Digest::of(&content);
    assert!(!run.blobs.keep(digest, &content, |_| false).unwrap(), "there is no room");
    assert!(!run.blobs.contains(&digest) && !run.path(&digest).exists());
    assert!(run.blobs.keep(digest, &content, |_| true).unwrap());
    assert_eq!(run.read(&content).as_deref(), Some(&content[..]));
    let usage = run.blobs.usage();
    assert_eq!((usage.bytes, usage.staged_bytes, usage.blobs), (8192, 0, 1));
    assert!(run.blobs.take_fetched(&digest));
    // Again: the blob is known, and its file stays.
    let before = seal_at(&run.path(&digest)).unwrap();
    assert!(run.blobs.keep(digest, &content, |_| true).unwrap());
    assert_eq!(seal_at(&run.path(&digest)).unwrap(), before);
    assert_eq!(run.blobs.usage().blobs, 1);
    assert_eq!(run.blobs.usage().staged_bytes, 0);
    assert!(run.blobs.keep(Digest::empty(), b"", |_| true).unwrap());
    assert_eq!(staged(&run), 0);
}

/// Whatever has the name of a content that is not known, the content replaces it.
#[test]
fn p9_self_healing_a_content_in_memory_replaces_what_has_its_name() {
    let content = vec![9; 5000];
    let digest = Digest::of(&content);
    for in_place in ["half", "directory", "no folder"] {
        let fixture = Fixture::new(1 << 20);
        let run = fixture.open();
        // It is put there after the folder was listed, so the table does not know it.
        let path = run.path(&digest);
        match in_place {
            "half" => fs::write(&path, &content[..2000]).unwrap(),
            "directory" => fs::create_dir_all(path.join("deep")).unwrap(),
            _ => fs::remove_dir_all(path.parent().unwrap()).unwrap(),
        }
        assert!(run.blobs.keep(digest, &content, |_| true).unwrap(), "{in_place}");
        assert_eq!(run.read(&content).as_deref(), Some(&content[..]), "{in_place}");
        assert_eq!(staged(&run), 0, "{in_place}");
    }
}

/// Threads that fetch the same content, open it and evict others never see another one.
#[test]
fn threads_that_keep_and_open_the_same_contents_see_them_whole() {
    const CONTENTS: u32 = 40;
    const ROUNDS: u32 = 60;
    let content = |n: u32| n.to_le_bytes().repeat(1500);
    // There is room for about half of them.
    let fixture = Fixture::new(u64::from(CONTENTS) * 4096);
    let run = Arc::new(fixture.open());
    let threads: Vec<_> = (0..4)
        .map(|thread| {
            let run = Arc::clone(&run);
            let work = move || {
                for n in (0..CONTENTS * ROUNDS).map(|n| (n * (thread + 1) + thread) % CONTENTS) {
                    let bytes = content(n);
                    run.blobs.keep(Digest::of(&bytes), &bytes, |_| true).unwrap();
                    // It may be evicted by now.
                    if let Some(read) = run.read(&bytes) {
                        assert_eq!(read, bytes);
                    }
                }
            };
            task::thread("worker", work).unwrap()
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    let usage = run.blobs.usage();
    assert!(usage.evictions > 0 && usage.damaged == 0, "{usage:?}");
    assert_eq!(usage.staged_bytes, 0);
}
