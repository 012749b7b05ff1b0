//! Blocks of commands of docs/recipes.md, run as they stand there; only what they are about has other values.

#![allow(dead_code)] // each test binary uses a part

use std::{
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use cistern_harness::{scratch::Scratch, tool};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");

/// The only block of the page that has these words in it.
pub fn block(words: &str) -> Result<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes.md");
    let page = std::fs::read_to_string(page)?;
    let blocks = page.split("\n```").skip(1).step_by(2);
    let found: Vec<&str> = blocks.filter(|block| block.contains(words)).collect();
    ensure!(found.len() == 1, "{} blocks of the page have {words:?} in them", found.len());
    Ok(found[0].split_once('\n').context("a block has lines")?.1.to_owned() + "\n")
}

/// The line of a block that begins like this.
pub fn line(block: &str, begins: &str) -> Result<String> {
    let found = block.lines().find(|line| line.starts_with(begins));
    Ok(found.with_context(|| format!("no line begins with {begins}"))?.to_owned())
}

/// A block whose variables have other values: each has to be set in it.
pub fn with(block: &str, values: &[(&str, &str)]) -> Result<String> {
    let mut lines: Vec<String> = block.lines().map(str::to_owned).collect();
    for (name, value) in values {
        let set = format!("{name}=");
        let line = lines.iter_mut().find(|line| line.starts_with(&set));
        *line.with_context(|| format!("{name} is not set in the block"))? = format!("{set}'{value}'");
    }
    Ok(lines.join("\n") + "\n")
}

/// Where a host keeps what it knows of volumes; commands of one find its daemons.
pub struct Host {
    state: PathBuf,
    bin: PathBuf,
}

impl Host {
    pub fn new(scratch: &Scratch, name: &str) -> Result<Host> {
        let bin = scratch.dir(&format!("{name}-bin"))?;
        symlink(
            std::env::var("CISTERN_TEST_BINARY").unwrap_or_else(|_| CISTERN.to_owned()),
            bin.join("cistern"),
        )?;
        Ok(Host { state: scratch.dir(name)?, bin })
    }

    pub fn state(&self) -> PathBuf {
        self.state.clone()
    }

    /// Runs commands as root would, stopping at the first that fails; gives what they printed.
    pub fn run(&self, commands: &str) -> Result<String> {
        self.run_with(commands, &[])
    }

    pub fn run_with(&self, commands: &str, environment: &[(&str, &str)]) -> Result<String> {
        let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", self.bin.display());
        let small = concat!(env!("CARGO_MANIFEST_DIR"), "/../cistern-harness/small.toml");
        let mut command = Command::new("sh");
        command.args(["-eu", "-c", commands]).env("PATH", path).env("CISTERN_CONFIG", small);
        command.env("STATE_DIRECTORY", &self.state).env("CACHE_DIRECTORY", self.state.join("cache"));
        command.envs(environment.iter().copied()).env_remove("NOTIFY_SOCKET");
        Ok(tool::run_command(command, tool::RUN_LIMIT)?.stdout)
    }

    /// The newest snapshot of a backup.
    pub fn newest(&self, backup: &str) -> Result<String> {
        let listed = self.run(&format!("cistern ls {backup} -H"))?;
        let newest = listed.lines().next_back().context("it has snapshots")?;
        Ok(format!("{backup}@{}", newest.split('\t').next().unwrap_or_default()))
    }
}
