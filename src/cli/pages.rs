//! `hearthfs man` and `hearthfs completions`: files for packages, generated from the tree of commands.
//!
//! Owns the names of these files. Must never contain anything that the help does not.

use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use super::failure::{Failure, Outcome};
use super::output::document;

/// The name of the program, and so of its pages.
const PROGRAM: &str = "hearthfs";

/// Options of `hearthfs man`.
#[derive(Args, Clone, Debug)]
pub(super) struct Pages {
    /// An existing directory; pages with the same names are replaced
    dir: PathBuf,
}

/// Options of `hearthfs completions`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  hearthfs completions bash > ~/.local/share/bash-completion/completions/hearthfs
  hearthfs completions zsh > ~/.zfunc/_hearthfs     # a directory of $fpath
  hearthfs completions fish > ~/.config/fish/completions/hearthfs.fish")]
pub(super) struct Completions {
    /// The shell; the text goes to stdout
    shell: Shell,
}

/// Writes a page for the program, and one for each command.
pub(super) fn man(pages: &Pages, mut tree: Command) -> Outcome<()> {
    // The command `help` would get a page for each of the others; the pages themselves are better.
    tree = tree.disable_help_subcommand(true);
    tree.build();
    write_page(&tree, &pages.dir)
}

fn write_page(command: &Command, dir: &Path) -> Outcome<()> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_page(below, dir)?;
    }
    let source = format!("{PROGRAM} {}", env!("CARGO_PKG_VERSION"));
    let page = Man::new(command.clone()).source(source).manual(PROGRAM);
    let path = dir.join(page.get_filename());
    page.generate_to(dir)
        .map(|_| ())
        .map_err(|error| Failure::failed(format!("write {}: {error}", path.display())))
}

/// Prints what a shell reads to complete our commands and options.
pub(super) fn completions(completions: &Completions, tree: &Command) -> Outcome<()> {
    document(&String::from_utf8_lossy(&script(completions.shell, tree)))
}

fn script(shell: Shell, tree: &Command) -> Vec<u8> {
    // Completions would show hidden commands, so the tree is one without them.
    let visible = tree.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut tree = Command::new(PROGRAM).args(tree.get_arguments().cloned()).subcommands(visible);
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut tree, PROGRAM, &mut text);
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::process::{Command as Process, Output};

    use super::*;
    use crate::cli::command;

    /// Returns the expected names of a tree's pages.
    fn names(tree: &Command, name: &str, found: &mut BTreeSet<String>) {
        found.insert(format!("{name}.1"));
        for below in tree.get_subcommands().filter(|below| !below.is_hide_set()) {
            names(below, &format!("{name}-{}", below.get_name()), found);
        }
    }

    #[test]
    fn each_command_has_a_page() {
        let dir = tempfile::tempdir().expect("temporary directory");
        man(&Pages { dir: dir.path().to_owned() }, command()).expect("written");
        let mut wanted = BTreeSet::new();
        names(&command(), PROGRAM, &mut wanted);
        assert!(wanted.contains("hearthfs-config-check.1") && wanted.len() > 25, "{wanted:?}");
        let listed = std::fs::read_dir(dir.path()).expect("listed");
        let made: BTreeSet<String> = listed
            .map(|file| file.expect("a name").file_name().into_string().expect("text"))
            .collect();
        assert_eq!(made, wanted);
        let read = |name| std::fs::read_to_string(dir.path().join(name)).expect("a page");
        let page = read("hearthfs-mount.1");
        assert!(page.contains(".TH hearthfs-mount 1"), "{page}");
        assert!(
            page.contains("Stays in the foreground") && page.contains("\\-\\-remote"),
            "{page}"
        );
        assert!(read("hearthfs.1").contains("Exit status"));
        let nowhere = dir.path().join("nowhere");
        let refused = man(&Pages { dir: nowhere.clone() }, command()).expect_err("no directory");
        assert!(refused.text().contains(&*nowhere.to_string_lossy()), "{}", refused.text());
    }

    fn completions_of(shell: Shell) -> String {
        String::from_utf8(script(shell, &command())).expect("text")
    }

    /// Runs a shell on a script; `None` if the machine has no such shell.
    fn shell(name: &str, args: &[&str], text: &str) -> Option<Output> {
        let dir = tempfile::tempdir().expect("temporary directory");
        let file = dir.path().join("script");
        std::fs::write(&file, text).expect("written");
        match Process::new(name).args(args).arg(&file).output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            output => Some(output.expect("started")),
        }
    }

    #[test]
    fn completions_are_taken_by_their_shells() {
        for (name, args, kind) in [
            ("bash", &["--norc", "-n"][..], Shell::Bash),
            ("zsh", &["-f", "-n"], Shell::Zsh),
            ("fish", &["--no-config", "--no-execute"], Shell::Fish),
        ] {
            let text = completions_of(kind);
            assert!(
                text.contains("unmount") && !text.contains(crate::daemon::LOOK),
                "{name}: {text}"
            );
            if let Some(output) = shell(name, args, &text) {
                assert!(output.status.success() && output.stderr.is_empty(), "{name}: {output:?}");
            }
        }
    }

    #[test]
    fn bash_completes_commands_and_options() {
        let ask = "\nask() { COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
                   _hearthfs hearthfs \"${!#}\" \"${COMP_WORDS[-2]}\"; echo \"${COMPREPLY[@]}\"; }\n\
                   ask hearthfs unm; ask hearthfs mount --rem; ask hearthfs config ch\n";
        let output =
            shell("bash", &["--norc"], &(completions_of(Shell::Bash) + ask)).expect("run bash");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "unmount\n--remote\ncheck\n", "{output:?}");
    }
}
