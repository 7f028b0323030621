//! The page with plots, in a real browser.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::harness::command::{Said, is_there, run};
use crate::harness::node::Site;
use crate::harness::store::Trouble;
use crate::harness::time::thread;
use crate::harness::{Io, Must as _, Node, Options, Store, eventually, skipped, sleep_ms};

/// How long the browser may take.
const BROWSER_MS: u64 = 60_000;
/// Names a directory for pictures of the page.
const PICTURES: &str = "HEARTHFS_PICTURES";

/// Returns the browser that is there.
fn browser(test: &str) -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter();
    let found = found.into_iter().find(|name| is_there(name));
    if found.is_none() {
        skipped(test, "there is no Chromium");
    }
    found
}

/// Opens a page, waits for `wait_ms` of its time, and returns the document with the browser's messages.
fn opened(browser: &str, site: &Site, address: &str, wait_ms: u32, more: &[&str]) -> Said {
    let mut command = Command::new(browser);
    let profile = site.dir("browser");
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
    command.args(["--no-first-run", "--enable-logging=stderr", "--v=0", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", profile.display()));
    command.arg(format!("--virtual-time-budget={wait_ms}")).args(more);
    command.arg(format!("http://{address}/")).env("HOME", site.path()).env_remove("DISPLAY");
    run(&mut command, BROWSER_MS)
}

/// Returns an address of this machine that is free.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").must("listen");
    listener.local_addr().must("an address").to_string()
}

/// Returns the text of the element with this id.
#[track_caller]
fn text_of(document: &str, id: &str) -> String {
    let (_, rest) = document.split_once(&format!("id=\"{id}\"")).must(id);
    let (_, rest) = rest.split_once('>').must(id);
    rest.split('<').next().unwrap_or_default().to_owned()
}

#[track_caller]
fn nothing_refused(said: &Said) {
    for sign in ["Refused to", "Content Security Policy", "Uncaught", "SyntaxError", "TypeError"] {
        assert!(!said.err.contains(sign), "{}", said.err);
    }
}

#[test]
fn page_shows_what_a_mount_does_in_a_browser() {
    let Some(browser) = browser("page_shows_what_a_mount_does_in_a_browser") else { return };
    let site = Site::new();
    let store = Store::s3(&site);
    let address = free_address();
    let options = Options::new(Io::best()).deadline("1s").variable("HEARTHFS_METRICS", &address);
    // Its name must not be interpreted as markup anywhere.
    let node = Node::start(&site, "a<i>b", Some(&store), options);
    let seen = |wait_ms| {
        let said = opened(browser, &site, &address, wait_ms, &[]);
        nothing_refused(&said);
        said.out
    };

    let empty = seen(5_000);
    assert!(text_of(&empty, "hint").contains("Nothing was served or compiled yet"), "{empty}");
    assert!(text_of(&empty, "point").ends_with("a&lt;i&gt;b"), "{empty}");
    assert!(!empty.contains("<i>"), "{empty}");
    assert!(text_of(&empty, "state").starts_with("serving"), "{empty}");

    pictures(browser, &site, &address, "empty");

    let entry = node.at("jax/jit_f-1-cache");
    std::fs::create_dir_all(node.at("jax")).must("mkdir");
    std::fs::write(&entry, "program").must("write");
    for _ in 0..3 {
        std::fs::read(&entry).must("read");
    }
    node.drain();
    let busy = seen(9_000);
    let tiles = ["local", "fetched", "compiled", "backlog"].map(|id| text_of(&busy, id));
    assert_eq!(tiles, ["3", "0", "1", "0"], "{busy}");
    assert!(busy.contains("<td>jax</td><td>3</td><td>0</td><td>1</td><td>75 %</td>"), "{busy}");
    assert!(busy.contains("class=\"series k0\" d=\"M"), "the plots are drawn: {busy}");
    assert!(text_of(&busy, "price").contains("USD"), "{busy}");
    assert_eq!(text_of(&busy, "hint"), "");
    if std::env::var_os(PICTURES).is_some() {
        let ended = Arc::new(AtomicBool::new(false));
        let working = work(&node, &ended);
        pictures(browser, &site, &address, "busy");
        ended.store(true, Ordering::SeqCst);
        working.join().must("the clients");
    }

    store.trouble(Trouble::Hang);
    std::fs::write(node.at("jax/jit_g-1-cache"), "program").must("write");
    eventually(30_000, "the outage", || {
        let up = node.status()["health"]["up"] == true;
        if up { Err("it is up".to_owned()) } else { Ok(()) }
    });
    let down = seen(5_000);
    assert!(text_of(&down, "trouble").starts_with("The store has been down for"), "{down}");
    assert!(text_of(&down, "state").starts_with("store down"), "{down}");
    pictures(browser, &site, &address, "down");
    store.heal();
}

/// Lets several clients compile and find their entries until the test ends.
fn work(node: &Node, ended: &Arc<AtomicBool>) -> JoinHandle<()> {
    let (mount, ended) = (node.mount.clone(), Arc::clone(ended));
    thread(move || {
        for number in 0_usize.. {
            let entries = [
                format!("jax/jit_step-{number:x}-cache"),
                format!("ccache/{:x}/{:x}/k{number}R", number % 16, number % 7),
                format!("go-build/{:02x}/{number:064x}-a", number % 256),
                format!("torch_xla/{number}"),
                format!("torch_extensions/kernel{number}/kernel{number}.so"),
            ];
            for (client, name) in entries.iter().enumerate() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let entry = mount.join(name);
                std::fs::create_dir_all(entry.parent().must("a directory")).must("mkdir");
                std::fs::write(&entry, "compiled ".repeat(500 * (client + 1))).must("write");
                for _ in 0..=2 * client {
                    std::fs::read(&entry).must("read");
                }
                sleep_ms(40);
            }
        }
    })
}

/// Saves pictures of the page, in the directory that the variable names.
fn pictures(browser: &str, site: &Site, address: &str, state: &str) {
    let Some(dir) = std::env::var_os(PICTURES) else { return };
    // The browser's numbers for the two themes.
    let themes = [("dark", 0), ("light", 1)];
    for (width, (theme, scheme)) in [400, 1280].into_iter().flat_map(|w| themes.map(|t| (w, t))) {
        let picture = Path::new(&dir).join(format!("{state}-{width}-{theme}.png"));
        let more = [
            format!("--screenshot={}", picture.display()),
            format!("--window-size={width},1400"),
            format!("--blink-settings=preferredColorScheme={scheme}"),
        ];
        opened(browser, site, address, 9_000, &more.each_ref().map(String::as_str));
    }
}
