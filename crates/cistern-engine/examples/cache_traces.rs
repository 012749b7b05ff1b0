//! Prints how often each policy hits on each trace, ours beside those it is compared with.
//!
//! `cargo run --release -p cistern-engine --example cache_traces [CHUNKS] [FILE...]`: the size of the
//! cache in chunks, and recorded traces (a line `object chunk` for each read, `object chunk w` for each
//! write), each replayed in a cache of a tenth of its chunks unless a size is given.

#[path = "../tests/cache_policies/mod.rs"]
mod cache_policies;

use std::collections::HashSet;

use cache_policies::{compare, traces};

/// The size of the cache in chunks for the made traces.
const CHUNKS: usize = 4000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (sizes, files): (Vec<&String>, Vec<&String>) =
        arguments.iter().partition(|argument| argument.parse::<usize>().is_ok());
    let size = sizes.first().map(|size| size.parse()).transpose()?;
    println!("| trace | chunks | ours | LRU | S3-FIFO | W-TinyLFU | quick_cache | optimum | bounds |");
    println!("|---|---|---|---|---|---|---|---|---|");
    if files.is_empty() {
        let size = size.unwrap_or(CHUNKS);
        for (name, trace) in traces::all(size as u64) {
            print(name, &trace, size);
        }
    }
    for file in files {
        let trace = traces::parse(&std::fs::read_to_string(file)?)?;
        let chunks: HashSet<u64> = trace.iter().map(traces::Access::key).collect();
        print(file, &trace, size.unwrap_or(chunks.len().div_ceil(10)));
    }
    Ok(())
}

fn print(name: &str, trace: &[traces::Access], size: usize) {
    let row = compare(trace, size);
    let bounds = if row.holds() { "kept" } else { "BROKEN" };
    println!(
        "| {name} | {size} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {bounds} |",
        row.ours, row.lru, row.s3_fifo, row.w_tiny_lfu, row.quick_cache, row.optimum
    );
}
