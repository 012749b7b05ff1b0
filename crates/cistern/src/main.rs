//! The `cistern` binary. Everything is in the library, so that tests and generators reach it.

use std::process::ExitCode;

fn main() -> ExitCode {
    cistern::run()
}
