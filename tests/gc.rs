//! `hearthfs gc` on a store that was made by hand: which expiry applies, and what is printed about it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use serde_json::Value;

const DAY: Duration = Duration::from_hours(24);

/// A shared directory, and a working directory in which nothing outside is read.
struct Bench {
    dir: tempfile::TempDir,
}

struct Said {
    status: Option<i32>,
    out: String,
    err: String,
}

impl Said {
    fn report(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|e| panic!("{e}: {}{}", self.out, self.err))
    }
}

impl Bench {
    /// Makes a store that declares this, in JSON.
    fn declaring(expiry: &str) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let bench = Self { dir };
        std::fs::create_dir(bench.store()).expect("made");
        let format =
            format!("{{\"format\":1,\"created_ms\":1,\"expiry\":{expiry},\"trusted_keys\":[]}}");
        std::fs::write(bench.store().join("hearthfs.json"), format).expect("written");
        std::fs::write(bench.file(), "").expect("written");
        bench
    }

    fn store(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("hearthfs.toml")
    }

    /// Stores a pack of this age.
    fn pack(&self, days: u32) -> PathBuf {
        let name = format!("packs/{days:012x}{:08x}-{:016x}.pack", 0, 1);
        self.object(&name, days)
    }

    fn object(&self, name: &str, days: u32) -> PathBuf {
        let path = self.store().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        std::fs::write(&path, "x").expect("written");
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        file.set_modified(now() - DAY * days).expect("set");
        path
    }

    fn gc(&self, args: &[&str]) -> Said {
        let url = format!("file://{}", self.store().display());
        let output = Command::new(env!("CARGO_BIN_EXE_hearthfs"))
            .env_clear()
            .env("HOME", self.dir.path())
            .env("HEARTHFS_CONFIG", self.file())
            .args(["gc", &url])
            .args(args)
            .stdin(Stdio::null())
            .output()
            .expect("started");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Said { status: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

#[expect(clippy::disallowed_methods, reason = "file times come from the machine's clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

fn left(all: &[&Path]) -> Vec<bool> {
    all.iter().map(|path| path.exists()).collect()
}

/// The default of the collecting node does not apply to the cluster: what the store declares applies.
#[test]
fn gc_without_configuration_goes_by_what_is_declared() {
    for (declared, expiry, old) in [("\"90d\"", "90d", false), ("\"never\"", "never", true)] {
        let bench = Bench::declaring(declared);
        let (young, middle, older) = (bench.pack(10), bench.pack(60), bench.pack(200));
        let said = bench.gc(&["--json"]);
        assert_eq!(said.status, Some(0), "{}", said.err);
        assert_eq!(left(&[&young, &middle, &older]), [true, true, old], "{declared}");
        assert_eq!(said.report()["expiry"], expiry);
        assert!(!said.err.contains("warning"), "{}", said.err);
        let said = bench.gc(&["--dry-run"]);
        assert!(said.out.starts_with(&format!("expiry        {expiry}\n")), "{}", said.out);
    }
}

/// A shorter expiry that an operator has set applies, and both are printed; a longer one does not apply.
#[test]
fn gc_by_an_expiry_that_is_set_says_both() {
    for (declared, shown) in [("\"90d\"", "90d"), ("\"never\"", "never")] {
        let bench = Bench::declaring(declared);
        let (young, middle) = (bench.pack(10), bench.pack(60));
        let said = bench.gc(&["--expiry", "30d", "--json"]);
        assert_eq!(left(&[&young, &middle]), [true, false], "{declared}");
        assert_eq!(said.report()["expiry"], "30d");
        for part in ["warning: ", &format!("expiry of {shown}"), "--expiry says 30d", "shorter"] {
            assert!(said.err.contains(part), "`{part}` is not in: {}", said.err);
        }
        let middle = bench.pack(60);
        std::fs::write(bench.file(), "[expiry]\nage = \"30d\"\n").expect("written");
        let said = bench.gc(&[]);
        assert_eq!(left(&[&young, &middle]), [true, false], "{declared}");
        assert!(said.err.contains("hearthfs.toml:2 says 30d"), "{}", said.err);
    }
    let bench = Bench::declaring("\"30d\"");
    let (young, middle) = (bench.pack(10), bench.pack(60));
    let said = bench.gc(&["--expiry", "90d"]);
    assert_eq!(left(&[&young, &middle]), [true, false]);
    for part in ["expiry of 30d", "says 90d", "30d, which is no longer, applies"] {
        assert!(said.err.contains(part), "`{part}` is not in: {}", said.err);
    }
}

/// A store of an older version declares none.
#[test]
fn gc_of_a_store_that_declares_nothing_goes_by_its_own() {
    let bench = Bench::declaring("null");
    let (young, middle) = (bench.pack(10), bench.pack(60));
    let said = bench.gc(&["--expiry", "never"]);
    assert_eq!(left(&[&young, &middle]), [true, true]);
    assert!(!said.err.contains("warning"), "{}", said.err);
    let said = bench.gc(&[]);
    assert_eq!(left(&[&young, &middle]), [true, false]);
    for part in ["declares no expiry", "30d, the default", "lifecycle apply"] {
        assert!(said.err.contains(part), "`{part}` is not in: {}", said.err);
    }
}

/// Foreign files beside the store may be unreadable, such as the `lost+found` of a disk's root.
#[test]
fn gc_goes_on_where_foreign_directories_cannot_be_read() {
    let bench = Bench::declaring("\"30d\"");
    let (young, old) = (bench.pack(10), bench.pack(60));
    let notes = [bench.object("notes.txt", 100), bench.object("more/notes.txt", 100)];
    let lost = bench.store().join("lost+found");
    std::fs::create_dir(&lost).expect("made");
    // The link leads back to its own directory, so a walk through it would never end.
    std::os::unix::fs::symlink(".", lost.join("back")).expect("made");
    let said = bench.gc(&["--json"]);
    assert_eq!(said.status, Some(0), "{}", said.err);
    let report = said.report();
    assert_eq!(left(&[&young, &old, &notes[0], &notes[1]]), [true, false, true, true]);
    assert_eq!(report["kept"]["format"]["objects"], 1, "{report}");
    assert_eq!(report["foreign"]["objects"], 2, "{report}");
    assert!(said.err.contains("objects of others could be counted"), "{}", said.err);
    // All of our own objects must be seen.
    std::os::unix::fs::symlink(".", bench.store().join("packs/back")).expect("made");
    let old = bench.pack(60);
    let said = bench.gc(&[]);
    assert_eq!((said.status, left(&[&old])), (Some(1), vec![true]), "{}", said.err);
}
