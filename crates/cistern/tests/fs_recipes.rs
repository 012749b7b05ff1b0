//! The recipes of docs/recipes.md, with real filesystems: every night, one file, the last day.

mod recipes;

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use cistern_harness::{
    filesystem::Kind,
    fixture,
    mount::{BlockDevice, Mounted},
    scratch::Scratch,
    serve::{Cistern, Server},
};
use recipes::{Host, block, line, with};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const SECTOR_BYTES: u32 = 4096;

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A host that serves volumes, and a place for backups.
struct Site {
    scratch: Scratch,
    host: Host,
    store: PathBuf,
    vault: PathBuf,
}

impl Site {
    fn new(name: &str) -> Result<Site> {
        let scratch = Scratch::new(name)?;
        let host = Host::new(&scratch, "host")?;
        let (store, vault) = (scratch.dir("store")?, scratch.dir("vault")?);
        Ok(Site { scratch, host, store, vault })
    }

    fn volume(&self, name: &str) -> String {
        text(&self.store.join(name))
    }

    fn serve(&self, volumes: &[&str]) -> Result<Server> {
        let cistern = Cistern::under_test(CISTERN);
        let urls: Vec<String> = volumes.iter().map(|name| self.volume(name)).collect();
        for url in &urls {
            if !Path::new(url).exists() {
                cistern.run(&["create", url, "--size", "1G"])?;
            }
        }
        cistern.serve(&self.scratch, &urls[0]).state_dir(self.host.state()).args(&urls[1..]).start()
    }

    /// An ext4 on a volume that is served.
    fn mount(&self, server: &Server, make: bool) -> Result<Mounted> {
        let device = BlockDevice::attach(&self.scratch, &server.uri(), SECTOR_BYTES)?;
        if make {
            Kind::Ext4.make(&device)?;
        }
        Kind::Ext4.mount(&self.scratch, device)
    }
}

/// The unit and the line for cron are one command, which backs up two volumes that are served, night after night.
#[test]
fn every_night() -> Result<()> {
    let site = Site::new("nightly")?;
    let server = site.serve(&["tank", "home"])?;
    let here = |command: &str| {
        command
            .replace("s3://bucket", &text(&site.store))
            .replace("s3://elsewhere/backups", &text(&site.vault))
    };
    let unit = line(&block("ExecStart=")?, "ExecStart=")?;
    let unit = here(unit.trim_start_matches("ExecStart=/usr/bin/"));
    let cron = block("* * * root")?;
    let cron = cron.split_once("root ").expect("a user").1.replace("/etc/cistern/env", "/dev/null");
    ensure!(here(&cron).contains(&unit), "{unit} is another command than {cron}");
    site.host.run(&unit)?;
    let said = site.host.run(&here(&cron))?;
    ensure!(said.lines().filter(|line| line.contains("verified")).count() == 2, "{said}");
    let listed = site.host.run(&format!("cistern backup ls {} -H", site.vault.display()))?;
    // The second one of the same day took the place of the first.
    ensure!(listed.lines().count() == 2, "{listed}");
    server.stop()
}

/// A file that was deleted comes back out of a snapshot that is mounted read-only: the filesystem was frozen while that was made, so nothing has to be
/// replayed.
#[test]
fn one_file_comes_back() -> Result<()> {
    let site = Site::new("onefile")?;
    let server = site.serve(&["tank"])?;
    let mounted = site.mount(&server, true)?;
    let (letter, content) = (mounted.dir().join("letters/monday.txt"), fixture::random_bytes(3_000_000, 7));
    std::fs::create_dir(mounted.dir().join("letters"))?;
    // Nobody syncs it: that is what freezing does.
    std::fs::write(&letter, &content)?;
    let values =
        [("VOLUME", site.volume("tank")), ("PLACE", text(&site.vault)), ("MOUNT", text(mounted.dir()))];
    let values: Vec<(&str, &str)> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
    site.host.run(&with(&block("fsfreeze")?, &values)?)?;
    std::fs::remove_file(&letter)?;
    let backup = site.host.newest(&text(&site.vault.join("tank")))?;
    let (look, to) = (text(&site.scratch.dir("look")?), text(&letter));
    let values = [("BACKUP", backup.as_str()), ("LOOK", &look), ("TO", &to)];
    site.host.run(&with(&block("nbdfuse -r")?, &values)?)?;
    ensure!(std::fs::read(&letter)? == content, "it is as it was");
    mounted.unmount()?.detach()?;
    server.stop()
}

/// The host is gone, and its bucket with it: on another one everything comes back out of the backups, to the filesystem; and where only the content
/// is wrong, what differs is put back.
#[test]
fn the_last_day() -> Result<()> {
    let site = Site::new("drill")?;
    let server = site.serve(&["tank"])?;
    let mounted = site.mount(&server, true)?;
    let content = fixture::random_bytes(5_000_000, 8);
    let file = |mounted: &Mounted| mounted.dir().join("file");
    std::fs::write(file(&mounted), &content)?;
    std::fs::File::open(file(&mounted))?.sync_all()?;
    site.host.run(&format!("cistern backup {} --to {}", site.volume("tank"), site.vault.display()))?;
    drop(mounted);
    server.kill();
    std::fs::remove_dir_all(&site.store)?;

    let (place, new) = (text(&site.vault), text(&site.scratch.dir("new")?));
    let other = Site { host: Host::new(&site.scratch, "other")?, store: new.clone().into(), ..site };
    let said = other.host.run(&with(&block("NEW/tank --data")?, &[("PLACE", &place), ("NEW", &new)])?)?;
    ensure!(said.contains("backup-") && said.contains("restored"), "{said}");
    let server = other.serve(&["tank"])?;
    let mounted = other.mount(&server, false)?;
    ensure!(std::fs::read(file(&mounted))? == content, "it is as it was");
    std::fs::write(file(&mounted), b"wrong")?;
    let device = mounted.unmount()?;
    Kind::Ext4.check(&device)?;
    device.detach()?;
    server.stop()?;

    // It has the snapshot that it was restored from, so a rollback would do; for the recipe it is removed.
    let volume = other.volume("tank");
    let restored = other.host.newest(&volume)?;
    other.host.run(&format!("cistern rm {restored}"))?;
    let values = [("PLACE", place.as_str()), ("VOLUME", &volume)];
    let said = other.host.run(&with(&block("@before-restore --wait")?, &values)?)?;
    ensure!(said.contains("before-restore"), "{said}");
    let server = other.serve(&["tank"])?;
    let mounted = other.mount(&server, false)?;
    ensure!(std::fs::read(file(&mounted))? == content, "it is as it was");
    mounted.unmount()?.detach()?;
    server.stop()
}
