//! qemu's block layer as a client: qemu-io and qemu-img.

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fixture::{Fixture, directory_url},
    scratch::Scratch,
    serve::Cistern,
    tool,
};
use serde_json::Value;

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");

/// Patterns, unaligned pieces, zeroes and discards, each read back by pattern.
#[test]
fn qemu_io_patterns() -> Result<()> {
    let volume = Fixture::start(CISTERN, "qemu-io", "1G", &[])?;
    let out = qemu_io(
        &volume.uri(),
        &[
            "write -P 0xa5 0 1M",
            "write -P 0x5a 1536 3k",
            "write -f -P 0x33 10M 64k",
            "write -z 512k 64k",
            "write -z -u 640k 64k",
            "discard 768k 64k",
            "flush",
            "read -P 0xa5 0 1536",
            "read -P 0x5a 1536 3k",
            "read -P 0xa5 4608 256k",
            "read -P 0 512k 64k",
            "read -P 0 640k 64k",
            "read -P 0 768k 64k",
            "read -P 0x33 10M 64k",
            "read -P 0 100M 1M",
        ],
    )?;
    ensure!(!out.contains("verification failed"), "{out}");
    Ok(())
}

/// qemu asks for the extended headers (64-bit requests) and gets them: all other tests of this file then run with
/// them, too.
#[test]
fn qemu_speaks_extended_headers() -> Result<()> {
    let scratch = Scratch::new("qemu-extended")?;
    let verbose = [("CISTERN_LOG".to_owned(), "debug".to_owned())];
    let cistern = Cistern::under_test(CISTERN).with_environment(verbose);
    let url = directory_url(&scratch)?;
    cistern.run(&["create", &url, "--size", "100G"])?;
    let server = cistern.serve(&scratch, &url).start()?;
    let out = qemu_io(
        &server.uri(),
        &["write -P 1 8G 64k", "read -P 1 8G 64k", "discard 8G 64k", "read -P 0 8G 64k"],
    )?;
    ensure!(!out.contains("verification failed") && !out.contains("failed:"), "{out}");
    ensure!(server.log().contains("a client begins extended=true"), "{}", server.log());
    server.stop()
}

/// Several requests in flight, submitted without waiting.
#[test]
fn qemu_io_in_flight() -> Result<()> {
    let volume = Fixture::start(CISTERN, "qemu-io-aio", "1G", &[])?;
    let writes: Vec<String> = (0..64).map(|n| format!("aio_write -P {} {}k 64k", n + 1, n * 64)).collect();
    let mut commands: Vec<&str> = writes.iter().map(String::as_str).collect();
    commands.push("aio_flush");
    let reads: Vec<String> = (0..64).map(|n| format!("read -P {} {}k 64k", n + 1, n * 64)).collect();
    commands.extend(reads.iter().map(String::as_str));
    let out = qemu_io(&volume.uri(), &commands)?;
    ensure!(!out.contains("verification failed") && !out.contains("failed:"), "{out}");
    Ok(())
}

/// An image is converted onto the volume, compares equal, maps honestly, and comes back.
#[test]
fn qemu_img_convert_compare_map() -> Result<()> {
    let volume = Fixture::start(CISTERN, "qemu-img", "512M", &[])?;
    let image = volume.random_file("image.raw", 64 << 20, 3)?;
    std::fs::File::options().write(true).open(&image)?.set_len(512 << 20)?; // the rest is a hole
    let (image, uri) = (image.display().to_string(), volume.uri());
    tool::run("qemu-img", ["convert", "-n", "-W", "-m", "8", "-f", "raw", "-O", "raw", &image, &uri])?;
    tool::run("qemu-img", ["compare", "-f", "raw", "-F", "raw", &image, &uri])?;
    let map = tool::run("qemu-img", ["map", "-f", "raw", "--output=json", &uri])?.stdout;
    let map: Value = serde_json::from_str(&map)?;
    let data: u64 = map
        .as_array()
        .context("no map")?
        .iter()
        .filter(|range| range["data"] == true)
        .filter_map(|range| range["length"].as_u64())
        .sum();
    ensure!(data == 64 << 20, "{data} bytes of data in {map}");
    let back = volume.scratch.file("back.qcow2").display().to_string();
    tool::run("qemu-img", ["convert", "-f", "raw", "-O", "qcow2", &uri, &back])?;
    tool::run("qemu-img", ["compare", "-f", "raw", "-F", "qcow2", &image, &back])?;
    Ok(())
}

fn qemu_io(uri: &str, commands: &[&str]) -> Result<String> {
    let mut args = vec!["-f", "raw"];
    for command in commands {
        args.extend(["-c", command]);
    }
    args.push(uri);
    let out = tool::run("qemu-io", args)?;
    Ok(out.stdout + &out.stderr)
}
