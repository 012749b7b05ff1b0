//! Real filesystems with a real tree of files: in, checked, another server, out, compared.

use anyhow::Result;
use cistern_harness::{filesystem::Kind, fixture::Fixture, mount::BlockDevice, tool, tree};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
/// A tree that makes a filesystem work: metadata, small files, links.
const FILES_MIN: usize = 50_000;
/// Enough to use every kind of request, for the variants.
const FILES_MIN_SMALL: usize = 2_000;

/// What the next server has of the one before.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// The journal, but no cache.
    SameHost,
    /// Nothing: another state directory, after a clean stop.
    OtherHost,
}

/// Copies a tree onto a new filesystem; everything is there for the next server, byte by byte.
fn copy_and_compare(kind: Kind, sector_bytes: u32, files_min: usize, next: Next) -> Result<()> {
    let name = format!("fs-{}-{sector_bytes}", kind.name());
    let volume = Fixture::start(CISTERN, &name, "40G", &["--journal-size", "1G"])?;
    let Fixture { server, serve, scratch, .. } = volume;
    let trees = tree::find(files_min)?;

    let device = BlockDevice::attach(&scratch, &server.uri(), sector_bytes)?;
    kind.make(&device)?;
    let mounted = kind.mount(&scratch, device)?;
    tree::copy(&trees, mounted.dir())?;
    tool::run("sync", ["--file-system".as_ref(), mounted.dir().as_os_str()])?;
    let device = mounted.unmount()?;
    kind.check(&device)?;
    device.detach()?;
    server.stop()?;

    let serve = serve.cache_dir(scratch.file("cache2"));
    let serve = if next == Next::OtherHost { serve.state_dir(scratch.file("state2")) } else { serve };
    let server = serve.start()?;
    let device = BlockDevice::attach(&scratch, &server.uri(), sector_bytes)?;
    kind.check(&device)?;
    let mounted = kind.mount(&scratch, device)?;
    tree::compare(&trees, mounted.dir())?;
    mounted.unmount()?.detach()?;
    server.stop()
}

/// ext4 on 4096-byte sectors, more than 50,000 files, the next server with an empty cache.
#[test]
fn ext4_keeps_a_large_tree() -> Result<()> {
    copy_and_compare(Kind::Ext4, 4096, FILES_MIN, Next::SameHost)
}

/// XFS, more than 50,000 files, the next server on another host.
#[test]
fn xfs_keeps_a_large_tree_for_another_host() -> Result<()> {
    copy_and_compare(Kind::Xfs, 4096, FILES_MIN, Next::OtherHost)
}

/// btrfs, which checksums everything itself, more than 50,000 files.
#[test]
fn btrfs_keeps_a_large_tree() -> Result<()> {
    copy_and_compare(Kind::Btrfs, 4096, FILES_MIN, Next::SameHost)
}

/// 512-byte sectors: writes that are not aligned to blocks.
#[test]
fn xfs_on_512_byte_sectors() -> Result<()> {
    copy_and_compare(Kind::Xfs, 512, FILES_MIN_SMALL, Next::OtherHost)
}
