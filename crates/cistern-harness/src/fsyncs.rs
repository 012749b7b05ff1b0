//! Programs that fsync files on a mounted filesystem, and the list of what they were promised.

use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader},
    path::Path,
    process::Stdio,
    sync::mpsc,
};

use anyhow::{Context, Result, ensure};

use crate::{process::Guard, tool};

/// Files that were fsynced: path below the root, and SHA-256.
#[derive(Clone, Debug, Default)]
pub struct Promises(BTreeMap<String, String>);

/// Running writers.
pub struct Writers {
    processes: Vec<Guard>,
    reports: mpsc::Receiver<String>,
}

impl Writers {
    /// Starts `count` writers below `root`. `program` is the writer, `label` makes names unique.
    pub fn start(program: &Path, root: &Path, label: &str, count: usize) -> Result<Writers> {
        let (send, reports) = mpsc::channel();
        let mut processes = Vec::new();
        for n in 0..count {
            let mut command = tool::command("python3")?;
            command
                .arg(program)
                .arg(root)
                .arg(format!("{label}-{n}"))
                .stdin(Stdio::null())
                .stderr(Stdio::null());
            let (read, write) = std::io::pipe()?;
            command.stdout(write);
            processes.push(Guard::spawn(command)?);
            let send = send.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(read).lines().map_while(Result::ok) {
                    let _ = send.send(line); // whoever no longer listens knows enough
                }
            });
        }
        Ok(Writers { processes, reports })
    }

    /// Waits until `count` more files were fsynced, and remembers them.
    pub fn await_files(&self, count: usize, promises: &mut Promises) -> Result<()> {
        for _ in 0..count {
            promises.add(&self.reports.recv().context("the writers ended")?);
        }
        Ok(())
    }

    /// Ends the writers (they may be stuck in a dead device) and remembers what they had reported.
    pub fn finish(mut self, promises: &mut Promises) {
        self.processes.iter_mut().for_each(Guard::kill);
        self.reports.iter().for_each(|line| promises.add(&line));
    }
}

impl Promises {
    fn add(&mut self, line: &str) {
        if let Some((hash, path)) = line.split_once(' ') {
            self.0.insert(path.to_owned(), hash.to_owned());
        }
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Every promised file is below `root` with its content.
    pub fn verify(&self, root: &Path) -> Result<()> {
        const FILES_PER_RUN: usize = 2000;
        let all: Vec<(&String, &String)> = self.0.iter().collect();
        for part in all.chunks(FILES_PER_RUN) {
            let out = tool::run("sha256sum", part.iter().map(|(path, _)| root.join(path)))?;
            let seen: Vec<&str> =
                out.stdout.lines().filter_map(|line| line.split_whitespace().next()).collect();
            ensure!(seen.len() == part.len(), "{} of {} files", seen.len(), part.len());
            for ((path, hash), seen) in part.iter().zip(seen) {
                ensure!(*hash == seen, "{path} was fsynced with other content");
            }
        }
        Ok(())
    }
}
