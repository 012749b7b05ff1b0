//! The `cistern` binary. Everything is in the library, so that tests and generators reach it.

#![forbid(unsafe_code)]

use std::process::ExitCode;

/// Segments are buffers of 17 MiB that pass from thread to thread. The system's allocator kept twice the
/// memory that was in use. Without huge pages: they nearly doubled the peak of many small buffers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cistern::run()
}
