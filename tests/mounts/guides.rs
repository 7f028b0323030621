//! The guides: every command in them works, in the order of the page.
//!
//! Blocks marked `sh` are run here. Blocks marked `console` need a service manager;
//! `service_systemd.rs` runs them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::command::run;
use crate::harness::node::{Site, dress, is_mounted};
use crate::harness::{Io, Must as _, Node, Options, Store};

/// How long all commands of a page may take.
const PAGE_LIMIT_MS: u64 = 120_000;
/// Replaces a user's job: it adds an entry unless one exists.
const JOB: &str = r#"mkdir -p "$MOUNT/jax" && { test -e "$MOUNT/jax/jit_job-1-cache" || echo compiled > "$MOUNT/jax/jit_job-1-cache"; }"#;
/// Replaces a job that only reads.
const READER: &str = r#"test "$(cat "$MOUNT/jax/jit_job-1-cache")" = compiled"#;

fn guides() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/guides")
}

/// Returns the commands of a page.
fn commands(page: &str) -> String {
    let text = std::fs::read_to_string(guides().join(page)).must(format_args!("read {page}"));
    let mut commands = String::new();
    let mut fence: Option<bool> = None;
    for line in text.lines() {
        match (line.trim().strip_prefix("```"), fence) {
            (Some(kind), None) => fence = Some(kind == "sh"),
            (Some(_), Some(_)) => fence = None,
            (None, Some(true)) => {
                commands.push_str(line.trim_start());
                commands.push('\n');
            }
            (None, _) => {}
        }
    }
    assert!(fence.is_none(), "{page}: a block does not end");
    assert!(commands.contains("hearthfs "), "{page} has no commands");
    commands
}

/// Runs the commands of a page over a store that has an entry of a job, and a bad one.
fn works(page: &str) {
    let site = Site::new();
    let store = Store::dir(&site);
    {
        let mut node = Node::start(&site, "seeded", Some(&store), Options::new(Io::best()));
        for (name, text) in
            [("jax/jit_job-1-cache", "compiled\n"), ("jax/jit_bad-1-cache", "bad\n")]
        {
            let path = node.at(name);
            std::fs::create_dir_all(path.parent().must("a directory")).must("make it");
            std::fs::write(path, text).must("write an entry");
        }
        node.stop();
    }
    let mount = site.dir("mount");
    let old = site.dir("old");
    std::fs::write(old.join("jit_old-1-cache"), "kept\n").must("write an old entry");
    let program = Path::new(env!("CARGO_BIN_EXE_hearthfs"));
    let mut path = program.parent().must("a directory").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut command = Command::new("bash");
    dress(&mut command, site.path());
    command.env("PATH", path).env("STORE", store.url()).env("MOUNT", &mount);
    command.env("JOB", JOB).env("READER", READER).env("OLD_CACHE", &old);
    command.env("IMAGE_ROOT", site.dir("image")).current_dir(site.path());
    command.args(["-euo", "pipefail", "-c", &commands(page)]);
    let said = run(&mut command, PAGE_LIMIT_MS);
    assert!(said.status.success(), "{page}: {said:?}");
    assert!(!is_mounted(&mount), "{page} leaves a mount");
    if page == "remove-entry.md" {
        assert!(said.out.contains("removed 1 file"), "{said:?}");
    }
    if page == "image.md" {
        let baked = site.path().join("image/opt/cache/jax/jit_job-1-cache");
        assert_eq!(std::fs::read_to_string(baked).must("read"), "compiled\n");
    }
}

macro_rules! pages {
    ($($name:ident: $page:literal,)*) => {
        const PAGES: &[&str] = &[$($page),*];
        $(#[test]
        fn $name() {
            works($page);
        })*
    };
}

pages! {
    guides_cost: "cost.md",
    guides_image: "image.md",
    guides_read_only: "read-only.md",
    guides_remove_entry: "remove-entry.md",
    guides_seed: "seed.md",
    guides_trusted_writers: "trusted-writers.md",
    guides_upgrade: "upgrade.md",
}

#[test]
fn guides_are_all_tried() {
    let there = std::fs::read_dir(guides()).must("list the guides");
    let names = there.map(|page| page.must("a page").file_name().to_string_lossy().into_owned());
    let names: BTreeSet<String> = names.collect();
    assert_eq!(names, PAGES.iter().map(|page| (*page).to_owned()).collect());
}
