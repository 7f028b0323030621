use super::*;

fn refusal(root: &Path) -> Error {
    let error = CacheDir::open(root).unwrap_err();
    assert!(
        error.chain().contains(&root.display().to_string()),
        "the error names the path: {}",
        error.chain()
    );
    error
}

#[test]
fn a_second_daemon_is_refused_and_the_first_is_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    dir.set_holder("/mnt/cache").unwrap();
    let error = refusal(root.path());
    assert_eq!(error.kind(), Kind::Busy);
    assert!(error.to_string().contains("/mnt/cache"), "{error}");
    assert!(error.to_string().contains(&format!("process {}", std::process::id())), "{error}");
    dir.set_holder("/m").unwrap();
    assert!(refusal(root.path()).to_string().contains("(mount /m)"));
    drop(dir);
    CacheDir::open(root.path()).unwrap();
}

#[test]
fn the_identity_and_the_layout_stay() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("a/b");
    let first = CacheDir::open(&deep).unwrap();
    let node = first.node();
    assert!(first.path().join("CACHEDIR.TAG").exists() && first.path().join("blobs/7f").is_dir());
    let mode = fs::metadata(first.path()).unwrap().mode();
    assert_eq!(mode & 0o777, 0o700);
    drop(first);
    let again = CacheDir::open(&deep).unwrap();
    assert_eq!(again.node(), node);
    assert!(!again.doubt());
    drop(again);
    fs::write(deep.join("v1/node"), b"\0garbage").unwrap();
    assert_ne!(CacheDir::open(&deep).unwrap().node(), node);
    let tag = fs::read_to_string(deep.join("v1/CACHEDIR.TAG")).unwrap();
    assert!(tag.starts_with("Signature: 8a477f597d28d172789f06886806bc55"));
}

/// Lists everything below a path with its size, to check that nothing changed.
fn picture(path: &Path) -> Vec<(PathBuf, u64)> {
    let mut found = Vec::new();
    let mut todo = vec![path.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        found.push((path, meta.len()));
    }
    found.sort();
    found
}

#[test]
fn what_cannot_be_used_is_refused_before_anything_is_changed() {
    let root = tempfile::tempdir().unwrap();
    let check = |path: &Path, kind: Kind, says: &str| {
        let before = picture(root.path());
        let error = refusal(path);
        assert_eq!(error.kind(), kind, "{}", error.chain());
        assert!(error.chain().contains(says), "{}", error.chain());
        assert_eq!(picture(root.path()), before);
    };
    let file = root.path().join("file");
    fs::write(&file, b"x").unwrap();
    check(&file, Kind::Invalid, "not a directory");
    check(&file.join("below"), Kind::Invalid, "choose another");
    let newer = root.path().join("newer");
    fs::create_dir_all(newer.join("v2")).unwrap();
    check(&newer, Kind::Invalid, "v2 was written by a newer hearthfs");
    let format = root.path().join("format");
    fs::create_dir_all(format.join("v1")).unwrap();
    fs::write(format.join("v1/FORMAT"), b"7\n").unwrap();
    check(&format, Kind::Invalid, "newer");
    let obstructed = root.path().join("obstructed");
    fs::create_dir_all(&obstructed).unwrap();
    fs::write(obstructed.join("v1"), b"").unwrap();
    check(&obstructed, Kind::Invalid, "not a directory");
    // No user, not even root, may write there.
    let error = CacheDir::open(Path::new("/proc/hearthfs")).unwrap_err();
    assert!(matches!(error.kind(), Kind::Denied | Kind::NoSpace), "{}", error.chain());
}

#[test]
fn doubt_is_an_unclean_stop_and_another_boot() {
    let after = |last: Option<&str>, fresh| {
        let life = Life::after("now".into(), last, fresh);
        (life.doubt, life.era)
    };
    assert_eq!(after(None, true), (false, 0));
    assert_eq!(after(Some("now running 3"), false), (false, 3));
    assert_eq!(after(Some("now clean 3"), false), (false, 3));
    assert_eq!(after(Some("then clean 3"), false), (false, 3));
    assert_eq!(after(Some("then running 3"), false), (true, 4));
    assert!(after(Some("garbage"), false).0);
    assert!(after(None, false).0, "blobs without a state");
    assert_ne!(after(None, false).1, after(None, false).1, "earlier seals are invalid");
}

#[test]
fn a_clean_stop_is_remembered_and_a_new_run_is_not_clean() {
    let root = tempfile::tempdir().unwrap();
    let state = || fs::read_to_string(root.path().join("v1/state")).unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    assert!(state().contains("running"));
    dir.mark_clean().unwrap();
    assert!(state().contains("clean"));
    drop(dir);
    let dir = CacheDir::open(root.path()).unwrap();
    assert!(state().contains("running"));
    let era = dir.era();
    drop(dir);
    fs::write(root.path().join("v1/state"), "other-boot running 5\n").unwrap();
    let dir = CacheDir::open(root.path()).unwrap();
    assert!(dir.doubt() && dir.era() != era);
    drop(dir);
    // The contents were in doubt once; the seals taken since are good.
    let dir = CacheDir::open(root.path()).unwrap();
    assert!(!dir.doubt());
    assert_eq!(dir.era(), 6);
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().unwrap();
    let (above, cache) = (root.path().join("above"), root.path().join("above/cache"));
    drop(CacheDir::open(&cache).unwrap());
    let chmod = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for (path, bad, good) in
        [(&cache, 0o775, 0o755), (&cache.join("v1"), 0o702, 0o700), (&above, 0o777, 0o775)]
    {
        chmod(path, bad);
        let before = picture(root.path());
        let error = refusal(&cache);
        assert_eq!(error.kind(), Kind::Denied);
        let mode = format!("{bad:04o}");
        assert!(error.chain().contains(&mode), "{}", error.chain());
        assert_eq!(picture(root.path()), before);
        chmod(path, good);
    }
    // As in `/tmp`, where no user can move away what belongs to another.
    chmod(&above, 0o1777);
    drop(CacheDir::open(&cache).unwrap());
}

#[test]
fn what_is_kept_of_a_store_is_read_from_a_plain_file_of_a_directory_that_can_be_used() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().unwrap();
    let kept = |root: &Path| CacheDir::kept_store(root).map_err(|error| error.chain());
    assert_eq!(kept(&root.path().join("none")), Ok(None));
    let dir = CacheDir::open(&root.path().join("cache")).unwrap();
    dir.keep_store("a store").unwrap();
    let path = root.path().join("cache/v1/store");
    let cache = root.path().join("cache");
    assert_eq!(kept(&cache), Ok(Some("a store".to_owned())));
    // A directory that other users can write is refused.
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).unwrap();
    assert!(kept(&cache).unwrap_err().contains("others"));
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o700)).unwrap();
    // Not through a link.
    fs::rename(&path, root.path().join("elsewhere")).unwrap();
    std::os::unix::fs::symlink(root.path().join("elsewhere"), &path).unwrap();
    assert!(kept(&cache).unwrap_err().contains("v1/store"));
    // The read must not block on a pipe. If it did, it would receive this.
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
    let pipe = path.clone();
    let writer = task::thread("pipe", move || fs::write(pipe, b"a store")).unwrap();
    assert!(kept(&cache).unwrap_err().contains("v1/store"));
    let end = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits() as i32)
        .open(&path)
        .unwrap();
    // Whether the write succeeded or failed, the thread ends now.
    drop(writer.join().unwrap());
    drop(end);
}
