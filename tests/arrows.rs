//! The direction of the arrows: reads the paths that the code names and says which point the wrong way.
//!
//! The tables in `arrows/rules.rs` are the map of `docs/design.md` in a form that can be checked.

#[path = "arrows/paths.rs"]
mod paths;
#[path = "arrows/rules.rs"]
mod rules;
#[path = "arrows/scan.rs"]
mod scan;

use std::path::{Path, PathBuf};

use rules::{Source, check};

/// Returns every Rust file below a directory of the workspace, with its path from the root.
fn sources(root: &Path, below: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut todo = vec![root.join(below)];
    while let Some(dir) = todo.pop() {
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        for entry in entries {
            let path: PathBuf = entry.expect("a readable directory").path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).expect("a readable source file");
                let name = path.strip_prefix(root).expect("found below the root");
                found.push((name.to_str().expect("plain names").to_owned(), text));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn arrows_point_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = sources(root, "src");
    files.extend(sources(root, "mount/src"));
    assert!(files.len() > 10, "the sources were not found");
    let wrong: Vec<String> =
        files.iter().flat_map(|(path, text)| check(&Source::new(path, text))).collect();
    assert!(wrong.is_empty(), "{} arrows or limits:\n{}", wrong.len(), wrong.join("\n"));
}

/// Checks one file that is not there, and returns what is said about it.
fn said(path: &str, text: &str) -> String {
    check(&Source::new(path, text)).join("\n")
}

#[test]
fn a_wrong_arrow_is_found_however_it_is_written() {
    for (path, text, line, says) in [
        ("src/local/x.rs", "use crate::fs::Filesystem;\n", 1, "`local` must not use `fs`"),
        (
            "src/local/x.rs",
            "\nuse crate::{clock::Clock, sync};\n",
            2,
            "`local` must not use `sync`",
        ),
        ("src/local/x.rs", "use crate::{\n    clock::Clock,\n    sync::A,\n};\n", 3, "`sync`"),
        ("src/local/x.rs", "fn f() { crate::sync::go(); }\n", 1, "`local` must not use `sync`"),
        ("src/local/x.rs", "type A = Vec<crate::cli::B>;\n", 1, "`local` must not use `cli`"),
        ("src/local/x.rs", "pub use crate::remote as r;\n", 1, "`local` must not use `remote`"),
        ("src/namespace/x.rs", "use crate::clock::Clock;\n", 1, "must not use `clock`"),
        ("src/digest.rs", "use crate::local::Blobs;\n", 1, "`digest` must not use `local`"),
        ("src/fs/x/y.rs", "use super::super::super::cli::A;\n", 1, "climbs out of its room"),
        ("src/fs/x.rs", "mod t { use super::super::super::cli::A; }\n", 1, "climbs out"),
        ("src/fs/x.rs", "use crate::fs::Inode;\n", 1, "through its own front door"),
        ("src/fs/x.rs", "use crate::*;\n", 1, "names no room"),
        ("src/fs/x.rs", "use hearthfs::fs::A;\n", 1, "the library names itself"),
        ("src/main.rs", "fn main() { hearthfs::daemon::run() }\n", 1, "`cli` only"),
        ("mount/src/x.rs", "use hearthfs::name::TreePath;\n", 1, "leaf"),
        ("src/cellar/x.rs", "", 1, "no room `cellar`"),
        ("src/cellar.rs", "", 1, "no room `cellar`"),
    ] {
        let found = said(path, text);
        assert!(found.contains(&format!("{path}:{line}: ")), "{text}\nsaid: {found}");
        assert!(found.contains(says), "{text}\nsaid: {found}");
    }
}

#[test]
fn a_crate_outside_its_place_is_found() {
    for (path, text, says) in [
        ("src/fs/x.rs", "use fuser::Filesystem;\n", "`fuser`"),
        ("src/local/x.rs", "fn f() -> i32 { libc::EIO }\n", "`libc`"),
        ("src/local/x.rs", "fn f() -> i32 { ::libc::EIO }\n", "`libc`"),
        ("src/local/blobs.rs", "use sled::Db;\n", "`sled`"),
        ("src/sync/x.rs", "use object_store::{ObjectStore, path::Path};\n", "`object_store`"),
        ("src/sync/x.rs", "use {reqwest::Client, std::fs};\n", "`reqwest`"),
        ("src/sync/x.rs", "extern crate reqwest;\n", "`reqwest`"),
        ("src/local/x.rs", "fn f() { unsafe { g() } }\n", "`unsafe`"),
        ("src/namespace/x.rs", "use std::fs::File;\n", "`std::fs`"),
        ("src/namespace/x.rs", "use std::{collections::BTreeMap, fs};\n", "`std::fs`"),
        ("src/namespace/x.rs", "fn f() { tokio::spawn(g()) }\n", "`tokio`"),
        ("src/sync/x.rs", "use hearthfs_mount::Ino;\n", "`hearthfs_mount`"),
    ] {
        let found = said(path, text);
        assert!(found.starts_with(&format!("{path}:1: ")), "{text}\nsaid: {found}");
        assert!(found.contains(says), "{text}\nsaid: {found}");
    }
}

#[test]
fn what_is_allowed_or_only_looks_wrong_is_not_found() {
    for (path, text) in [
        (
            "src/fs/x.rs",
            "use crate::{clock::Clock, local::Blobs, sync::Ledger};\nuse super::y::Z;\n",
        ),
        ("src/fs/x/y.rs", "use crate::fs::z::A;\nuse super::super::z::B;\n"),
        ("src/fs/x.rs", "mod t { use super::super::y::Z; }\npub(in crate::fs) fn f() {}\n"),
        ("src/local/index.rs", "use sled::Db;\n"),
        ("src/local/index/open.rs", "use sled::Db;\n"),
        ("src/remote/x.rs", "use object_store::ObjectStore;\n"),
        ("mount/src/x.rs", "use crate::vfs::Vfs;\nfn f() { unsafe { libc::sync() } }\n"),
        ("src/main.rs", "fn main() { hearthfs::cli::main() }\n"),
        (
            "src/local/x.rs",
            "// use crate::fs::A;\n/* unsafe /* sled:: */ crate::fs::A */\nfn f() {}\n",
        ),
        ("src/local/x.rs", "const A: &str = \"use crate::fs::A; unsafe\";\n"),
        (
            "src/local/x.rs",
            "const A: &str = r#\"\" crate::fs::A unsafe\"#;\nconst B: char = '\"';\n",
        ),
        ("src/local/x.rs", "fn f<'a>(x: &'a str) -> char { '\\'' }\n//! crate::fs::A\n"),
        ("src/local/x.rs", "fn f(a: A) { a.sled.len(); let libc = 1; my::libc::f(); }\n"),
        ("src/sync/x.rs", "#[cfg(test)]\nmod tests { use object_store::memory::InMemory; }\n"),
    ] {
        assert_eq!(said(path, text), "", "{path}: {text}");
    }
}

#[test]
fn length_counts_code_and_nothing_else() {
    let code = "fn f() {}\n".repeat(rules::CODE_LINES_MAX);
    let padding = "// why\n\n/* a\nb */\n".repeat(100);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "fn t() {}\n".repeat(100));
    let full = format!("{padding}{code}{tests}");
    assert_eq!(said("src/fs/x.rs", &full), "");
    let more = format!("{full}fn g() {{}}\n");
    assert!(
        said("src/fs/x.rs", &more).contains("501 lines of code"),
        "{}",
        said("src/fs/x.rs", &more)
    );
    assert_eq!(said("src/fs/x/tests.rs", &more), "", "a file of tests has no such limit");
}
