//! The `hearthfs` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    hearthfs::cli::main()
}
