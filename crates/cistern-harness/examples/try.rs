//! The main job in a directory of its own: what `./try` shows.

use std::time::Instant;

use anyhow::{Result, ensure};
use cistern_harness::{
    fixture::random_bytes,
    nbd::{Client, Dialect},
    scratch::{self, Scratch},
    serve::{Cistern, Server},
};

/// How much is written, in requests of `PIECE_BYTES`.
const PIECES: u64 = 256;
const PIECE_BYTES: usize = 1 << 20;

/// Serves a fresh volume, writes, kills the daemon, reads, moves house, reads again.
fn main() -> Result<()> {
    let cistern = Cistern::new(scratch::target_dir()?.join("try/cistern"));
    let scratch = Scratch::new("try")?;
    let url = scratch.file("tank").display().to_string();
    let serve = cistern.serve(&scratch, &url).args(["--create", "10G"]);

    let server = serve.start()?;
    println!("served   a fresh 10 GiB volume, stored in the directory {url}");
    let begin = Instant::now();
    write(&server)?;
    let rate = PIECES as f64 / begin.elapsed().as_secs_f64();
    println!("wrote    {PIECES} MiB over NBD and flushed them: {rate:.0} MiB/s");
    server.kill();
    println!("killed   the daemon with kill -9");
    let server = serve.start()?;
    verify(&server)?;
    println!("restarted it and read back every byte");
    server.stop()?;
    println!("stopped  it; everything is in the store now, and the volume is released");
    let elsewhere = cistern
        .serve(&scratch, &url)
        .state_dir(scratch.file("other-state"))
        .cache_dir(scratch.file("other-cache"));
    let server = elsewhere.start()?;
    verify(&server)?;
    server.stop()?;
    cistern.run(&["check", "--data", &url])?;
    println!("opened   it with empty local directories, as another host would: every byte is there");
    println!("\nyour own, kept in ./tank:\n  target/try/cistern serve ./tank --create 10G");
    Ok(())
}

fn piece(n: u64) -> Vec<u8> {
    random_bytes(PIECE_BYTES, n + 1)
}

fn write(server: &Server) -> Result<()> {
    let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
    for n in 0..PIECES {
        client.write(n * PIECE_BYTES as u64, &piece(n))?;
    }
    client.flush()?;
    client.close()
}

fn verify(server: &Server) -> Result<()> {
    let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
    for n in 0..PIECES {
        ensure!(
            client.read(n * PIECE_BYTES as u64, PIECE_BYTES as u32)? == piece(n),
            "MiB {n} is not what was written"
        );
    }
    client.close()
}
