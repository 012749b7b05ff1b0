//! What most tests begin with: a fresh volume and a server of it.

use std::path::PathBuf;

use anyhow::Result;

use crate::{
    scratch::Scratch,
    serve::{Cistern, Serve, Server},
};

/// A served volume in a directory store, with everything it needs in one scratch directory.
pub struct Fixture {
    // Dropped in this order: the server before its directories.
    pub server: Server,
    pub serve: Serve,
    pub cistern: Cistern,
    pub url: String,
    pub scratch: Scratch,
}

impl Fixture {
    /// Creates a volume of `size` (as the command line takes it) and serves it with `args`.
    pub fn start(binary: &str, name: &str, size: &str, args: &[&str]) -> Result<Fixture> {
        let scratch = Scratch::new(name)?;
        let cistern = Cistern::under_test(binary);
        let url = directory_url(&scratch)?;
        cistern.run(&["create", &url, "--size", size])?;
        let serve = cistern.serve(&scratch, &url).args(args.iter().copied());
        let server = serve.start()?;
        Ok(Fixture { server, serve, cistern, url, scratch })
    }

    pub fn uri(&self) -> String {
        self.server.uri()
    }

    /// Writes a file of `bytes` incompressible bytes that are the same for the same `seed`.
    pub fn random_file(&self, name: &str, bytes: u64, seed: u64) -> Result<PathBuf> {
        let path = self.scratch.file(name);
        std::fs::write(&path, random_bytes(bytes as usize, seed))?;
        Ok(path)
    }
}

/// The volume `vol` of a directory store in `scratch`.
pub fn directory_url(scratch: &Scratch) -> Result<String> {
    Ok(scratch.dir("store")?.join("vol").display().to_string())
}

/// Incompressible bytes by the xorshift64* generator (Vigna 2016): the same for the same seed.
pub fn random_bytes(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        out.extend(state.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    out.truncate(bytes);
    out
}
