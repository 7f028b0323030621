//! `hearthfs top`.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::Value;

use crate::copies::put;
use crate::harness::command::need;
use crate::harness::node::dress;
use crate::harness::time::thread;
use crate::harness::{Cluster, Io, Must as _, sleep_ms};
use crate::inside::{LIMIT_MS, asked, asked_by, good};
use crate::users;

/// `top` shows the user of the mount the events of the interval, and the clients that caused them.
#[test]
fn commands_top_shows_what_happens() {
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    put(&a.at("jax/jit_f-1-cache"), "content", 0o644);
    let ended = Arc::new(AtomicBool::new(false));
    let reader = {
        let (ended, path) = (ended.clone(), a.at("jax/jit_f-1-cache"));
        thread(move || {
            while !ended.load(Ordering::SeqCst) {
                std::fs::read(&path).must("read");
                drop(std::fs::metadata(path.with_file_name("missing")));
                sleep_ms(5);
            }
        })
    };
    let said = asked(a, &["top", "--json", "--interval", "300ms", "-n", "3"], &[&a.mount]);
    let text = asked(a, &["top"], &[&a.at("jax")]);
    ended.store(true, Ordering::SeqCst);
    reader.join().must("read");
    let pages: Vec<Value> =
        good(&said).lines().map(|line| serde_json::from_str(line).must("parse")).collect();
    assert_eq!(pages.len(), 3, "{said:?}");
    let last = &pages[2];
    assert!(last["hits"].as_u64() > Some(0) && last["seconds"].as_f64() > Some(0.2), "{last}");
    assert_eq!(last["clients"][0]["name"], "jax", "{last}");
    assert!(last["clients"][0]["hits"].as_u64() > Some(0), "{last}");
    assert_eq!(last["busiest"][0]["path"], "jax/jit_f-1-cache", "{last}");
    assert_eq!(last["up"], true, "{last}");
    assert!(last["calls"]["open"].as_u64() > Some(0), "{last}");
    let text = good(&text);
    for part in ["\nremote    up\n", " CLIENT\n", " jax\n", " ENTRY\n", " jax/jit_f-1-cache\n"] {
        assert!(text.contains(part), "`{part}` is not in:\n{text}");
    }
    for (words, code, says) in [
        (&["--interval", "10ms"][..], 2, "from 200ms to 5s"),
        (&["--interval", "1h"], 2, "from 200ms to 5s"),
    ] {
        let said = asked(a, &[&["top"], words].concat(), &[&a.mount]);
        assert_eq!(said.code(), code, "{said:?}");
        assert!(said.err.contains(says), "{said:?}");
    }
    if users::can_be_others("commands_top_shows_what_happens", Io::best()) {
        users::let_in(cluster.site.path(), 0o755);
        let said = asked_by(users::B, &cluster, &["top"], &[&a.mount]);
        assert!(said.out.is_empty() && matches!(said.code(), 1 | 2), "{said:?}");
        assert!(!said.err.contains("jax"), "{said:?}");
    }
}

/// On a terminal `top` draws pages until it is ended, however narrow the terminal is, and restores
/// the terminal.
#[test]
fn commands_top_on_a_terminal() {
    if !need("commands_top_on_a_terminal", "script") {
        return;
    }
    let cluster = Cluster::two(Io::best());
    let a = &cluster.a;
    let shown = |size: &str, words: &str, variable: (&str, &str), keys: &str| {
        let program = env!("CARGO_BIN_EXE_hearthfs");
        let words = format!(
            "stty {size}; stty -g; '{program}' top {words} '{}'; code=$?; stty -g; exit $code",
            a.mount.display()
        );
        let mut script = Command::new("script");
        dress(&mut script, cluster.site.path());
        script.env_remove("NO_COLOR").env("TERM", "xterm-256color").env(variable.0, variable.1);
        script.args(["--quiet", "--return", "--command", &words, "/dev/null"]);
        script.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = script.spawn().must("start script");
        let mut input = child.stdin.take().must("its input");
        std::io::Write::write_all(&mut input, keys.as_bytes()).must("type");
        crate::harness::command::wait(&mut child, LIMIT_MS).must("the end of script");
        drop(input);
        let ended = child.wait_with_output().must("its output");
        let out = String::from_utf8_lossy(&ended.stdout).into_owned();
        assert_eq!(ended.status.code(), Some(0), "{out:?}");
        let settings: Vec<&str> = out
            .lines()
            .filter(|line| line.matches(':').count() > 20)
            .map(|line| {
                // Escape sequences that end the page may precede it.
                line.rsplit('\u{1b}')
                    .next()
                    .unwrap_or(line)
                    .trim_start_matches(|c: char| c != ':')
                    .trim()
            })
            .collect();
        assert_eq!(settings.len(), 2, "{out:?}");
        assert_eq!(settings[0], settings[1], "the terminal is restored");
        out
    };
    let colour = "\u{1b}[38;5;2;";
    let wide = shown("cols 80 rows 30", "-i 200ms", ("X", "x"), "xxq");
    assert!(wide.contains("\u{1b}[?1049h") && wide.contains("\u{1b}[?1049l"), "{wide:?}");
    assert!(wide.contains("backlog") && wide.contains(colour), "{wide:?}");
    let narrow = shown("cols 20 rows 10", "-i 200ms -n 2", ("NO_COLOR", "1"), "");
    assert!(narrow.contains("backlog") && !narrow.contains("\u{1b}[38"), "{narrow:?}");
    let dumb = shown("cols 20 rows 10", "-i 200ms", ("TERM", "dumb"), "");
    assert!(dumb.contains("backlog") && !dumb.contains('\u{1b}'), "{dumb:?}");
}
