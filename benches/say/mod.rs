//! The output of the benches: progress and errors on stderr, the report on stdout.

use std::fmt;

#[expect(clippy::print_stderr, reason = "this is the seam that all other code uses")]
pub(crate) fn say(text: fmt::Arguments<'_>) {
    eprintln!("{text}");
}

#[expect(clippy::print_stdout, reason = "this is the seam that all other code uses")]
pub(crate) fn print(text: &str) {
    println!("{text}");
}
