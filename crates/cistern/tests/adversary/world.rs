//! What the verbs work on: volumes, snapshots, a clone, backups and a trash in one bucket, made once by a correct store.

use std::{path::Path, sync::OnceLock};

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    adversary::{Adversary, Objects},
    fixture::random_bytes,
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Cistern, Server},
};

pub const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
/// Bytes of key files.
pub const KEY: [u8; 32] = [7; 32];
pub const NEW_KEY: [u8; 32] = [8; 32];
const PIECE_BYTES: u64 = 256 << 10;
const SIZE_BYTES: u64 = 64 * PIECE_BYTES;

/// The prepared bucket, and what is in its volumes.
pub struct World {
    pub objects: Objects,
    /// What `tank` holds: its head, and its snapshots.
    pub head: Vec<u8>,
    pub monday: Vec<u8>,
    pub tuesday: Vec<u8>,
    /// What its clone `twin` holds.
    pub twin: Vec<u8>,
    /// A stream of `tank@tuesday`, that begins at `monday`, and one of the whole.
    pub stream: Vec<u8>,
    pub whole: Vec<u8>,
    /// What `sealed` holds, which the key file `KEY` opens.
    pub sealed: Vec<u8>,
}

/// The only one.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| prepare().expect("a correct store"))
}

/// The program, with a store and directories of its own.
pub fn cistern(store: &Adversary, dir: &Path) -> Cistern {
    Cistern::under_test(CISTERN).at(store, dir)
}

/// An image that changes as its volume does.
struct Image(Vec<u8>);

impl Image {
    fn write(&mut self, client: &mut Client, offset: u64, bytes: usize, seed: u64) -> Result<()> {
        let data = random_bytes(bytes, seed);
        self.0[offset as usize..offset as usize + bytes].copy_from_slice(&data);
        client.write(offset, &data)
    }

    fn trim(&mut self, client: &mut Client, offset: u64, bytes: u64) -> Result<()> {
        self.0[offset as usize..(offset + bytes) as usize].fill(0);
        client.trim(offset, bytes)
    }
}

/// Writes and uploads, in several segments of which each has garbage for the next.
fn work(server: &Server, image: &mut Image, seed: u64) -> Result<()> {
    for round in 0..3 {
        let mut client = Client::connect(server.socket(), "", Dialect::Simple)?;
        let at = (seed * 5 + round * 3) % 56 * PIECE_BYTES;
        image.write(&mut client, at, (PIECE_BYTES + 12_288) as usize, seed * 10 + round)?;
        image.write(&mut client, at + 4 * PIECE_BYTES + 512, 1024, seed * 20 + round)?;
        image.trim(&mut client, at + 16 * 1024, 32 * 1024)?;
        client.flush()?;
        client.close()?;
        server.wait_clean()?;
    }
    Ok(())
}

fn prepare() -> Result<World> {
    let scratch = Scratch::new("adversary")?;
    let store = Adversary::start()?;
    let cistern = cistern(&store, scratch.path());
    let url = "s3://adverse/tank";
    for url in [url, "s3://adverse/old", "s3://adverse/expired", "s3://adverse/deep/er/one"] {
        cistern.run(&["create", url, "--size", "16M"])?;
    }
    cistern.run(&["rm", "s3://adverse/old"])?;
    cistern.run(&["rm", "s3://adverse/expired", "--keep", "1s"])?;
    let small = ["--journal-size", "64M", "--cache-size", "16M", "--max-dirty-age", "1s"];
    let mut image = Image(vec![0; SIZE_BYTES as usize]);
    let serve = cistern.serve(&scratch, url).args(small);
    let server = serve.start()?;
    work(&server, &mut image, 1)?;
    server.ask(&["snapshot", "s3://adverse/tank@monday", "--wait"])?;
    let monday = image.0.clone();
    server.ask(&["backup", url, "--to", "s3://adverse/vault", "--keep", "1y:1"])?;
    work(&server, &mut image, 2)?;
    server.ask(&["snapshot", "s3://adverse/tank@tuesday", "--wait"])?;
    let tuesday = image.0.clone();
    work(&server, &mut image, 3)?;
    server.stop()?;
    cistern.run(&["clone", "s3://adverse/tank@monday", "s3://adverse/twin"])?;
    let mut twin = Image(monday.clone());
    let server = cistern.serve(&scratch, "s3://adverse/twin").args(small).start()?;
    work(&server, &mut twin, 4)?;
    server.stop()?;
    let key = scratch.file("key").display().to_string();
    std::fs::write(&key, KEY)?;
    let url_sealed = "s3://adverse/sealed";
    cistern.run(&["create", url_sealed, "--size", "16M", "--encrypt", "--key-file", &key])?;
    let mut sealed = Image(vec![0; SIZE_BYTES as usize]);
    let server = cistern.serve(&scratch, url_sealed).args(small).args(["--key-file", &key]).start()?;
    work(&server, &mut sealed, 5)?;
    server.stop()?;
    let stream = scratch.file("stream").display().to_string();
    cistern.run(&["send", "s3://adverse/tank@tuesday", "--from", "monday", "--to", &stream])?;
    let whole = scratch.file("whole").display().to_string();
    cistern.run(&["send", "s3://adverse/tank@tuesday", "--to", &whole])?;
    let out = scratch.file("image").display().to_string();
    cistern.run(&["export", url, &out])?;
    ensure!(std::fs::read(&out)? == image.0, "an honest store gives back what was written");
    let stream = std::fs::read(&stream).context("the stream")?;
    let whole = std::fs::read(&whole).context("the stream of the whole")?;
    let (head, twin, sealed) = (image.0, twin.0, sealed.0);
    Ok(World { objects: store.objects(), head, monday, tuesday, twin, stream, whole, sealed })
}
