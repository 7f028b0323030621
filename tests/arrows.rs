//! The direction of the arrows: reads the paths that the code names and reports those that point the wrong way.
//!
//! The tables in `arrows/rules.rs` are the map of `docs/design.md` in a form that can be checked.
//! Inside a room no arrows may form a circle; `arrows/circles.rs` has the rule.

#[path = "arrows/circles.rs"]
mod circles;
#[path = "arrows/paths.rs"]
mod paths;
#[path = "arrows/rules.rs"]
mod rules;
#[path = "arrows/scan.rs"]
mod scan;
#[path = "arrows/structs.rs"]
mod structs;
#[path = "arrows/type_names.rs"]
mod type_names;

use std::path::{Path, PathBuf};

use circles::{Circle, KNOWN, circles};
use rules::{Source, check};
use structs::structs;

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

/// Returns the sources of the product.
fn product() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = sources(root, "src");
    files.extend(sources(root, "mount/src"));
    assert!(files.len() > 10, "the sources were not found");
    files
}

#[test]
fn arrows_point_one_way() {
    let files = product();
    let wrong: Vec<String> =
        files.iter().flat_map(|(path, text)| check(&Source::new(path, text))).collect();
    assert!(wrong.is_empty(), "{} arrows or limits:\n{}", wrong.len(), wrong.join("\n"));
}

/// Checks a file given as text, and returns the findings.
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

#[test]
fn no_circle_inside_a_room_is_new_and_none_is_gone() {
    let found = circles(&product());
    let is_known = |circle: &&Circle| KNOWN.iter().any(|known| circle.units == **known);
    let new: Vec<String> = found
        .iter()
        .filter(|circle| !is_known(circle))
        .map(|circle| format!("{}\n  {}", circle.units.join(", "), circle.arrows.join("\n  ")))
        .collect();
    assert!(new.is_empty(), "files that use each other in a circle:\n{}", new.join("\n"));
    let is_there = |known: &&&[&str]| found.iter().any(|circle| circle.units == **known);
    let gone: Vec<_> = KNOWN.iter().filter(|known| !is_there(known)).collect();
    assert!(gone.is_empty(), "these are gone, so take them off the list: {gone:?}");
}

#[test]
fn no_name_of_a_type_is_used_again_and_none_is_gone() {
    let found = type_names::repeated(&product());
    let known = type_names::KNOWN;
    let new: Vec<String> = found
        .iter()
        .filter(|(name, _)| !known.contains(&name.as_str()))
        .map(|(name, files)| {
            format!("{name}: {}", files.iter().cloned().collect::<Vec<_>>().join(", "))
        })
        .collect();
    assert!(new.is_empty(), "types that share a name:\n{}", new.join("\n"));
    let gone: Vec<_> = known.iter().filter(|name| !found.contains_key(**name)).collect();
    assert!(gone.is_empty(), "these are used once now, so take them off the list: {gone:?}");
}

#[test]
fn a_name_that_is_used_again_is_found() {
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    let found = type_names::repeated(&[
        file("src/a.rs", "pub struct Twice;\nenum Once {}\nstruct State {}\n"),
        file("src/b.rs", "pub(crate) type Twice = u8;\nstruct State {}\n// struct Once;\n"),
        file(
            "src/c.rs",
            "impl X for Y {\n    type Once = u8;\n}\n#[cfg(test)]\nmod tests {\n    struct Once;\n}\n",
        ),
        file("src/c/tests.rs", "struct Once;\n"),
    ]);
    assert!(found.keys().eq(["Twice"]), "{found:?}");
    assert_eq!(found["Twice"].len(), 2);
}

/// Finds the circles of files given as text.
fn circles_of(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let files: Vec<(String, String)> =
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
    circles(&files).into_iter().map(|circle| circle.units).collect()
}

#[test]
fn a_circle_is_found_however_it_is_written() {
    let two = vec![vec!["fs::a".to_owned(), "fs::b".to_owned()]];
    let root = ("src/fs/mod.rs", "mod a;\nmod b;\n");
    for files in [
        &[
            root,
            ("src/fs/a.rs", "use super::b::B;\n"),
            ("src/fs/b.rs", "fn f() { super::a::g() }\n"),
        ][..],
        &[root, ("src/fs/a.rs", "use crate::fs::b;\n"), ("src/fs/b.rs", "use super::{a::A, c};\n")],
        // Through a name that the parent re-exports.
        &[
            ("src/fs/mod.rs", "mod a;\nmod b;\npub use a::A as First;\npub use b::B;\n"),
            ("src/fs/a.rs", "use super::B;\n"),
            ("src/fs/b.rs", "impl super::First {}\n"),
        ],
        // Through files below two modules, of which none alone uses the other.
        &[
            ("src/fs.rs", "mod a;\nmod b;\n"),
            ("src/fs/a.rs", "mod inner;\n"),
            ("src/fs/a/inner.rs", "use crate::fs::b::B;\n"),
            ("src/fs/b.rs", "mod inner;\npub struct B;\n"),
            ("src/fs/b/inner.rs", "use super::super::a::{self, A};\n"),
        ],
    ] {
        assert_eq!(circles_of(files), two, "{files:?}");
    }
    let three = circles_of(&[
        ("src/fs/a.rs", "use super::b::B;\n"),
        ("src/fs/b.rs", "use super::c::C;\n"),
        ("src/fs/c.rs", "use super::a::A;\n"),
        ("src/fs/d.rs", "use super::a::A;\n"),
    ]);
    assert_eq!(three, [["fs::a", "fs::b", "fs::c"]]);
    let nested = circles_of(&[
        ("src/fs/x/a.rs", "use super::b::B;\n"),
        ("src/fs/x/b.rs", "use super::a::A;\n"),
        ("mount/src/a.rs", "use crate::b::B;\n"),
        ("mount/src/b.rs", "use crate::a::A;\n"),
    ]);
    assert_eq!(nested, [["fs::x::a", "fs::x::b"], ["mount::a", "mount::b"]]);
}

#[test]
fn what_is_no_circle_passes() {
    for files in [
        // In one direction only, also through other modules.
        &[
            ("src/fs/a.rs", "use super::b::B;\nuse super::c::C;\n"),
            ("src/fs/b.rs", "use super::c::C;\n"),
            ("src/fs/c.rs", ""),
        ][..],
        // A module and those below it.
        &[
            ("src/fs.rs", "mod a;\nuse a::A;\npub struct Room(A);\n"),
            ("src/fs/a.rs", "use super::Room;\nmod inner;\nfn f() { inner::g() }\n"),
            ("src/fs/a/inner.rs", "use super::super::Room;\nuse super::f;\n"),
        ],
        // Tests may use the modules that use them.
        &[
            ("src/fs/a.rs", "use super::b::B;\n"),
            ("src/fs/b.rs", "#[cfg(test)]\nmod tests { use crate::fs::a::A; }\n"),
            ("src/fs/tests/all.rs", "use crate::fs::a::A;\n"),
        ],
        // Names that only look like modules.
        &[
            ("src/fs/a.rs", "use super::b::B;\n"),
            ("src/fs/b.rs", "fn f() { let a = 1; a::b(); Self::a(); other::a::A }\n"),
        ],
        // Arrows between rooms have a table of their own.
        &[("src/fs/a.rs", "use crate::sync::A;\n"), ("src/sync/mod.rs", "use crate::fs::a::A;\n")],
    ] {
        assert_eq!(circles_of(files), Vec::<Vec<String>>::new(), "{files:?}");
    }
}

#[test]
fn no_struct_is_too_large() {
    let over = |(path, text): &(String, String)| {
        let found = structs(text).into_iter().filter(structs::Shape::is_over);
        let line = |one: structs::Shape| {
            format!("{path}:{}: {}: {} fields, {} flags", one.line, one.name, one.fields, one.flags)
        };
        found.map(line).collect::<Vec<_>>()
    };
    let found: Vec<String> =
        product().iter().filter(|(path, _)| !path.contains("/tests")).flat_map(over).collect();
    assert!(found.is_empty(), "structs over the limits:\n{}", found.join("\n"));
}

#[test]
fn fields_and_flags_are_counted() {
    for (text, fields, flags) in [
        ("struct A { a: bool, pub(crate) b: AtomicBool }", 2, 2),
        (
            "pub struct A<T: Fn(u8) -> bool>\nwhere\n    T: Send,\n{\n    a: T,\n    b: Vec<(bool, bool)>,\n}",
            2,
            0,
        ),
        (
            "struct A { #[serde(default, rename = \"x\")] a: std::sync::atomic::AtomicBool, b: Option<bool> }",
            2,
            1,
        ),
        ("struct A { a: Box<dyn Fn(u8, u8) -> bool>, b: [bool; 4], c: bool }", 3, 1),
        ("struct A {}", 0, 0),
    ] {
        let found = structs(text);
        assert_eq!(found.len(), 1, "{text}");
        assert_eq!((found[0].fields, found[0].flags), (fields, flags), "{text}");
    }
    for text in
        ["struct A;", "struct A(bool, bool);", "#[cfg(test)]\nmod tests { struct A { a: bool } }"]
    {
        assert_eq!(structs(text), [], "{text}");
    }
    let of = |fields: usize, flags: usize| {
        let flag = |n: usize| if n < flags { "bool" } else { "u8" };
        let text: Vec<String> = (0..fields).map(|n| format!("f{n}: {}", flag(n))).collect();
        structs(&format!("struct A {{ {} }}", text.join(", ")))[0].is_over()
    };
    assert!(!of(15, 4) && of(16, 0) && of(5, 5));
}
