//! One state directory that two daemons see by mounts of their own, none of which knows the locks of the other.

use anyhow::{Context, Result, ensure};

use crate::{
    nbd::{Client, Dialect},
    scratch::Scratch,
    serve::{Cistern, Serve, Server},
    stacked::{Layer, Stacked},
};

const BLOCK: usize = 4096;

/// The directory, and the daemons, which are yet to be started.
pub struct Twice {
    pub daemons: [Serve; 2],
    _mounts: [Stacked; 2],
    _scratches: [Scratch; 3],
}

impl Twice {
    /// With a volume `tank` of 64 MiB, for the programs of the two daemons.
    pub fn new(layer: Layer, programs: [Cistern; 2]) -> Result<Twice> {
        let scratch = Scratch::new("mounted-twice")?;
        let (directory, url) = (scratch.dir("directory")?, scratch.file("tank").display().to_string());
        programs[0].run(&["create", &url, "--size", "64M"])?;
        layer.prepare(&directory)?;
        let mount = |name| Stacked::mount(layer, &scratch, &directory, name);
        let mounts = [mount("mount-1")?, mount("mount-2")?];
        let own = [Scratch::new("mounted-once")?, Scratch::new("mounted-again")?];
        let serve = |n: usize| {
            let serve = programs[n].serve(&own[n], &*url).state_dir(mounts[n].path().join("state"));
            serve.args(["--journal-size", "64M", "--cache-size", "0", "--max-dirty-age", "1h"])
        };
        let daemons = [serve(0), serve(1)];
        let [first, second] = own;
        Ok(Twice { daemons, _mounts: mounts, _scratches: [scratch, first, second] })
    }

    /// Starts both at the same moment, `rounds` times; what is ready is told to flush a block, and killed. At most one may be ready, and
    /// it has what was flushed before. Gives the number of rounds in which one was.
    pub fn start_both(&self, rounds: u64) -> Result<u64> {
        let mut flushed = Vec::new();
        for round in 0..rounds {
            self.start_once(round, &mut flushed).with_context(|| {
                let logs = self.daemons.each_ref().map(Serve::log_tail);
                format!("round {round}; the daemons said\n{}", logs.join("\n"))
            })?;
        }
        Ok(flushed.len() as u64)
    }

    fn start_once(&self, round: u64, flushed: &mut Vec<u64>) -> Result<()> {
        let mut ready = Serve::start_together(&self.daemons)?;
        ensure!(ready.len() <= 1, "both daemons serve the volume with one journal");
        let Some(server) = ready.pop() else { return Ok(()) }; // each may have seen the other
        for &before in flushed.iter() {
            ensure!(holds(&server, before)?, "block {before} was flushed, and is gone");
        }
        write(&server, round)?;
        flushed.push(round);
        server.kill();
        Ok(())
    }
}

fn content(block: u64) -> Vec<u8> {
    (block + 1).to_le_bytes().repeat(BLOCK / 8)
}

/// Writes one block and flushes.
pub fn write(server: &Server, block: u64) -> Result<()> {
    let mut client = Client::connect(server.socket(), "tank", Dialect::Simple)?;
    client.write(block * BLOCK as u64, &content(block))?;
    client.flush()
}

/// Whether that block is there.
pub fn holds(server: &Server, block: u64) -> Result<bool> {
    let mut client = Client::connect(server.socket(), "tank", Dialect::Simple)?;
    Ok(client.read(block * BLOCK as u64, BLOCK as u32)? == content(block))
}
