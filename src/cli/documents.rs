//! Checks that the documents about settings and commands match the program.
//!
//! Owns the text of the generated documents: `docs/configuration.md`, from the table of keys and the
//! annotated file; `docs/clients.md` and the snippets for logins and units, from the profiles of clients.

mod clients;
mod kubernetes;

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::helper;
use super::options::OWN_FLAGS;
use super::run::SHORT_COMPILES;
use crate::config::{KEYS, Key};

/// Makes the test write the document instead of comparing it.
const WRITE: &str = "HEARTHFS_WRITE_DOCUMENTS";

const LINE_CHARS_MAX: usize = 110;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_default()
}

/// Returns the paragraphs of the file's head, and the comment above each key.
fn annotations(text: &str) -> (Vec<String>, BTreeMap<String, String>) {
    let (mut head, mut of_keys) = (Vec::new(), BTreeMap::new());
    let (mut section, mut said) = (String::new(), Vec::new());
    for line in text.lines() {
        if let Some(comment) = line.strip_prefix('#') {
            said.push(comment.trim().to_owned());
        } else if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_owned();
        } else if let Some((name, _)) = line.split_once(" = ") {
            of_keys.insert(format!("{section}.{name}"), std::mem::take(&mut said).join(" "));
        }
        if line.is_empty() && section.is_empty() {
            head = said.split(String::is_empty).map(|part| part.join(" ")).collect();
            said.clear();
        }
    }
    (head, of_keys)
}

fn rows(key: &Key) -> Vec<(&'static str, String)> {
    let code = |text: String| format!("`{text}`");
    let mut rows = vec![("default", code(key.literal(key.default)))];
    rows.extend(key.variable.map(|name| ("environment", code(name.to_owned()))));
    let mut flags = OWN_FLAGS.iter().chain([&SHORT_COMPILES]);
    let flag = flags.find(|(name, _)| *name == key.name).map(|(_, flag)| *flag);
    let flag = match key.name {
        "mount.directory" => "the argument".to_owned(),
        name => code(flag.map_or_else(|| format!("--set {name}=..."), str::to_owned)),
    };
    rows.push(("flag", flag));
    let option = match key.name {
        "remote.url" => "the first field".to_owned(),
        "mount.directory" => "the second field".to_owned(),
        "mount.writes" => format!("{} or {}", code("ro".to_owned()), code("writes=...".to_owned())),
        name => code(format!("{}=...", helper::key(key.short()).map_or(name, Key::short))),
    };
    rows.push(("fstab", option));
    rows
}

/// Breaks a paragraph into lines, and escapes markup.
fn paragraph(text: &str) -> String {
    let (mut lines, mut length) = (String::new(), 0);
    for word in text.replace('<', "&lt;").split_whitespace() {
        let gap = match length {
            0 => "",
            _ if length + word.len() > LINE_CHARS_MAX => "\n",
            _ => " ",
        };
        length = if gap == "\n" { word.len() } else { length + gap.len() + word.len() };
        lines.extend([gap, word]);
    }
    lines.push('\n');
    lines
}

/// Writes the document.
fn configuration() -> String {
    let (head, of_keys) = annotations(&read("systemd/hearthfs.toml"));
    let mut text = String::from(
        "# hearthfs: configuration\n\n\
         Made from the table of keys and the annotated file\n\
         [`systemd/hearthfs.toml`](../systemd/hearthfs.toml). To begin with your own configuration, copy that file.\n",
    );
    for part in &head[1..] {
        text.extend(["\n", &paragraph(part)]);
    }
    let mut section = "";
    for key in KEYS {
        if key.section() != section {
            section = key.section();
            text.extend(["\n## [", section, "]\n"]);
        }
        let about = of_keys.get(key.name).map(String::as_str).unwrap_or_default();
        // The variable has a row of its own.
        let about = about.split(" Environment: ").next().unwrap_or_default();
        text.extend(["\n### ", key.name, "\n\n", &paragraph(about), "\n| | |\n|---|---|\n"]);
        for (name, value) in rows(key) {
            text.extend(["| ", name, " | ", &value, " |\n"]);
        }
    }
    text
}

/// Compares a file with its generated text, or writes it.
fn is_up_to_date(file: &str, made: &str, of: &str) {
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(root().join(file), made).expect("written");
    }
    assert!(
        made == read(file),
        "{file} differs from {of}; {WRITE}=1 cargo test --lib documents writes it"
    );
}

#[test]
fn what_is_made_of_the_profiles_is_up_to_date() {
    let document = clients::document();
    for profile in crate::namespace::Profiles::default().all() {
        assert!(document.contains(&format!("\n## {}\n\n", profile.title)), "{}", profile.name);
    }
    for (file, made) in [
        ("docs/clients.md", document),
        ("systemd/hearthfs.sh", clients::login_snippet()),
        ("systemd/hearthfs-clients.conf", clients::unit_snippet()),
    ] {
        is_up_to_date(file, &made, "the profiles in src/namespace/profiles.toml");
    }
}

#[test]
fn the_document_of_the_configuration_is_up_to_date() {
    let made = configuration();
    for key in KEYS {
        assert!(made.contains(&format!("\n### {}\n\n", key.name)), "{}", key.name);
    }
    is_up_to_date("docs/configuration.md", &made, "the keys and systemd/hearthfs.toml");
}

/// Returns the hearthfs commands in the shell blocks of a document.
fn commands(text: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for block in text.split("```sh\n").skip(1) {
        let block = block.split("```").next().unwrap_or_default().replace("\\\n", " ");
        for line in block.lines().map(|line| line.split(" #").next().unwrap_or_default()) {
            for part in line.split("&&").flat_map(|part| part.split(" | ")) {
                let words: Vec<String> = part.split_whitespace().map(str::to_owned).collect();
                let begin = words.iter().position(|word| word == "hearthfs").filter(|at| *at <= 1);
                if let Some(at) = begin.filter(|at| *at == 0 || words[0] == "sudo") {
                    found.push(words[at..].to_vec());
                }
            }
        }
    }
    found
}

/// Returns the documents of the root, of docs/, and of docs/guides/.
fn documents() -> Vec<PathBuf> {
    let dirs = ["", "docs", "docs/guides"].map(|dir| root().join(dir));
    let files = dirs.iter().flat_map(|dir| dir.read_dir().expect("a readable directory"));
    let paths = files.map(|file| file.expect("a readable directory").path());
    paths.filter(|path| path.extension().is_some_and(|end| end == "md")).collect()
}

#[test]
fn commands_in_the_documents_are_right() {
    let mut count = 0;
    for path in documents() {
        let name = path.display();
        let text = std::fs::read_to_string(&path).expect("a readable document");
        for words in commands(&text) {
            count += 1;
            let parsed = super::command().try_get_matches_from(&words);
            let shown = words.join(" ");
            if let Err(error) = parsed {
                assert!(!error.use_stderr(), "{name}: `{shown}`: {error}");
            }
        }
    }
    assert!(count > 10, "only {count} commands were found");
}
