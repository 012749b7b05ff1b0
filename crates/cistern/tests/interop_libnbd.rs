//! libnbd's programs against the real server: nbdinfo, nbdcopy, nbdsh.

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    fixture::{Fixture, random_bytes},
    serve::Cistern,
    tool,
};
use serde_json::Value;

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");

/// nbdinfo sees the volume by its name, with its size, its limits and every ability we promise.
#[test]
fn nbdinfo_lists_and_describes_the_volume() -> Result<()> {
    let volume = Fixture::start(CISTERN, "nbdinfo", "5G", &[])?;
    let listed = tool::run("nbdinfo", ["--list", "--json", &volume.uri()])?.stdout;
    let listed: Value = serde_json::from_str(&listed)?;
    let exports = listed["exports"].as_array().context("no exports")?;
    ensure!(exports.len() == 1 && exports[0]["export-name"] == "vol", "exports: {exports:?}");
    let export = &exports[0];
    ensure!(export["export-size"] == 5u64 << 30, "size: {}", export["export-size"]);
    for ability in ["can_flush", "can_fua", "can_trim", "can_zero", "can_multi_conn", "can_df"] {
        ensure!(export[ability] == true, "{ability} is {} in {export:#}", export[ability]);
    }
    ensure!(export["is_read_only"] == false && export["is_rotational"] == false, "{export:#}");
    ensure!(export["block_size_minimum"] == 512 && export["block_size_maximum"] == 32 << 20, "{export:#}");
    let contexts = export["contexts"].as_array().context("no contexts")?;
    ensure!(contexts.iter().any(|c| c == "base:allocation"), "contexts: {contexts:?}");
    Ok(())
}

/// A name that is no volume is refused, and the server serves on.
#[test]
fn an_unknown_export_is_refused() -> Result<()> {
    let volume = Fixture::start(CISTERN, "unknown-export", "1G", &[])?;
    tool::run_failing("nbdinfo", [volume.server.uri_of("nonesuch")])?;
    tool::run("nbdinfo", [volume.server.uri_of("vol")])?;
    Ok(())
}

/// The allocation map tells data from holes, after writing, zeroing and trimming.
#[test]
fn nbdinfo_maps_what_was_written() -> Result<()> {
    let volume = Fixture::start(CISTERN, "map", "1G", &[])?;
    let script = "
h.pwrite(b'x' * (1 << 20), 1 << 20)
h.pwrite(b'y' * (4 << 20), 100 << 20)
h.trim(1 << 20, 101 << 20)
h.flush()
";
    nbdsh(&volume.uri(), script)?;
    let map = tool::run("nbdinfo", ["--map", "--json", &volume.uri()])?.stdout;
    let map: Value = serde_json::from_str(&map)?;
    let mut data = Vec::new();
    let mut end = 0;
    for range in map.as_array().context("no map")? {
        let (offset, length) = (field(range, "offset")?, field(range, "length")?);
        ensure!(offset == end, "a gap in the map at {end}");
        end = offset + length;
        match field(range, "type")? {
            0 => data.push((offset >> 20, length >> 20)),
            kind => ensure!(kind == 3, "untouched or trimmed, but type {kind}: {range}"),
        }
    }
    ensure!(end == 1 << 30, "the map ends at {end}");
    ensure!(data == [(1, 1), (100, 1), (102, 2)], "data (MiB): {data:?}");
    Ok(())
}

/// A trim of sectors reads as zeroes, in whole blocks and at their ends, and leaves its neighbours alone.
#[test]
fn nbdsh_trims_sectors() -> Result<()> {
    let volume = Fixture::start(CISTERN, "trim-sectors", "64M", &[])?;
    let script = "
model = bytearray(b'x' * (1 << 20))
h.pwrite(bytes(model), 0)
for o, n in [(512, 512), (8192 - 512, 1024), (65536 + 1024, 32768), (1 << 19, 4096 + 512)]:
    h.trim(n, o)
    model[o:o + n] = bytes(n)
    assert h.pread(1 << 20, 0) == bytes(model), (o, n)
h.flush()
";
    nbdsh(&volume.uri(), script)
}

fn field(range: &Value, name: &str) -> Result<u64> {
    range[name].as_u64().with_context(|| format!("no {name} in {range}"))
}

/// 300 MiB with holes go in and come out as they were, over several connections; the rest is zero.
#[test]
fn nbdcopy_both_ways() -> Result<()> {
    let volume = Fixture::start(CISTERN, "nbdcopy", "1G", &[])?;
    let original = volume.scratch.file("original");
    let mut bytes = random_bytes(300 << 20, 1);
    bytes[(32 << 20)..(96 << 20)].fill(0);
    bytes.resize(1 << 30, 0);
    std::fs::write(&original, &bytes)?;
    let original = original.display().to_string();
    tool::run("nbdcopy", ["--flush", "--connections=4", &original, &volume.uri()])?;
    let back = volume.scratch.file("back").display().to_string();
    tool::run("nbdcopy", ["--connections=4", &volume.uri(), &back])?;
    tool::run("cmp", [&original, &back])?;
    Ok(())
}

/// What was copied in is there for the next server, from the store alone, with an empty cache.
#[test]
fn a_copy_outlives_the_server_and_its_state() -> Result<()> {
    let volume = Fixture::start(CISTERN, "outlives", "1G", &[])?;
    let original = volume.random_file("original", 100 << 20, 2)?;
    let hash = tool::sha256(&original)?;
    tool::run("nbdcopy", ["--flush", &original.display().to_string(), &volume.uri()])?;
    let Fixture { server, serve, scratch, .. } = volume;
    server.stop()?;
    let elsewhere = serve.state_dir(scratch.file("state2")).cache_dir(scratch.file("cache2"));
    let server = elsewhere.start()?;
    let script = format!(
        "import hashlib\nd = hashlib.sha256()\nfor o in range(0, 100 << 20, 1 << 20): d.update(h.pread(1 << 20, o))\n\
         assert d.hexdigest() == '{hash}'\nassert h.pread(1 << 20, 900 << 20) == bytes(1 << 20)"
    );
    nbdsh(&server.uri(), &script)?;
    server.stop()
}

/// Requests of any sector alignment and size up to 32 MiB do what they say, neighbours untouched.
#[test]
fn nbdsh_any_alignment() -> Result<()> {
    let volume = Fixture::start(CISTERN, "alignment", "1G", &[])?;
    let script = "
import random
random.seed(7)
size = 64 << 20
model = bytearray(size)
for n in range(400):
    length = min(random.choice([512, 1024, 3584, 4096, 4608, 65536, 70144, 1 << 20]), size)
    offset = random.randrange((size - length) // 512 + 1) * 512
    kind = random.randrange(8)
    if kind < 5:
        data = random.randbytes(length)
        h.pwrite(data, offset, nbd.CMD_FLAG_FUA if kind == 0 else 0)
        model[offset:offset + length] = data
    elif kind == 5:
        h.zero(length, offset, nbd.CMD_FLAG_NO_HOLE if n & 1 else 0)
        model[offset:offset + length] = bytes(length)
    elif kind == 6:
        h.trim(length, offset)
        model[offset:offset + length] = bytes(length)
    else:
        h.cache(length, offset) if h.can_cache() else None
        assert h.pread(length, offset) == model[offset:offset + length], (n, offset, length)
assert h.pread(32 << 20, 0) == model[:32 << 20]
assert h.pread(32 << 20, 32 << 20) == model[32 << 20:]
h.pwrite(bytes(model[:32 << 20]), 200 << 20)
assert h.pread(32 << 20, 200 << 20) == model[:32 << 20]
";
    nbdsh(&volume.uri(), script)
}

/// Hundreds of requests in flight on one connection: each answer belongs to its question.
#[test]
fn nbdsh_many_requests_in_flight() -> Result<()> {
    let volume = Fixture::start(CISTERN, "in-flight", "1G", &[])?;
    let script = "
count = 512
block = lambda n: n.to_bytes(8, 'big') * 1024
for n in range(count): h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(block(n))), n * 8192)
while h.aio_in_flight() > 0: h.poll(-1)
h.flush()
buffers = [nbd.Buffer(8192) for n in range(count)]
cookies = [h.aio_pread(buffers[n], (n * 37 % count) * 8192) for n in range(count)]
while h.aio_in_flight() > 0: h.poll(-1)
for n in range(count): assert buffers[n].to_bytearray() == block(n * 37 % count), n
";
    nbdsh(&volume.uri(), script)
}

/// What one connection wrote, every other connection reads; a flush covers them all (multi-conn).
#[test]
fn nbdsh_connections_agree() -> Result<()> {
    let volume = Fixture::start(CISTERN, "multi-conn", "1G", &[])?;
    let script = format!(
        "
others = [nbd.NBD() for n in range(4)]
for other in others: other.connect_uri('{}')
for n, writer in enumerate(others):
    writer.pwrite(bytes([n + 1]) * 65536, n * 65536)
h.flush()
for reader in others:
    for n in range(len(others)): assert reader.pread(65536, n * 65536) == bytes([n + 1]) * 65536
",
        volume.uri()
    );
    nbdsh(&volume.uri(), &script)
}

/// Whatever is beyond the end or the limits is refused with the right error, and harms nothing.
#[test]
fn nbdsh_wrong_requests_get_errors() -> Result<()> {
    let volume = Fixture::start(CISTERN, "wrong", "1G", &[])?;
    let script = "
import errno
h.set_strict_mode(0)  # the server has to refuse, not the client
def refused(errors, request, *args):
    try: request(*args)
    except nbd.Error as e: assert e.errnum in errors, e
    else: assert False, (request, args)
end = h.get_size()
h.pwrite(b'k' * 4096, end - 4096)
refused([errno.EINVAL], h.pread, 4096, end)
refused([errno.EINVAL], h.pread, 8192, end - 4096)
refused([errno.ENOSPC, errno.EINVAL], h.pwrite, bytes(4096), end)
refused([errno.ENOSPC, errno.EINVAL], h.pwrite, bytes(8192), end - 4096)
refused([errno.EINVAL, errno.ENOSPC], h.trim, 8192, end - 4096)
refused([errno.EINVAL, errno.ENOSPC], h.zero, 8192, end - 4096)
refused([errno.EINVAL], h.pread, 4096, (1 << 63) - 4096)
assert h.pread(4096, end - 4096) == b'k' * 4096
";
    nbdsh(&volume.uri(), script)
}

/// A volume served read-only refuses every change and says so beforehand.
#[test]
fn read_only_means_read_only() -> Result<()> {
    let volume = Fixture::start(CISTERN, "read-only", "1G", &[])?;
    nbdsh(&volume.uri(), "h.pwrite(b'r' * 4096, 8192)")?;
    let Fixture { server, scratch, cistern, url, .. } = volume;
    server.stop()?;
    let server = cistern.serve(&scratch, &url).args(["--read-only"]).start()?;
    let script = "
import errno
h.set_strict_mode(0)
assert h.is_read_only()
assert h.pread(4096, 8192) == b'r' * 4096
for change in (lambda: h.pwrite(bytes(4096), 0), lambda: h.trim(4096, 8192), lambda: h.zero(4096, 8192)):
    try: change()
    except nbd.Error as e: assert e.errnum in (errno.EPERM, errno.EROFS), e
    else: assert False
assert h.pread(4096, 8192) == b'r' * 4096
";
    nbdsh(&server.uri(), script)?;
    server.stop()
}

/// One daemon serves several volumes, each by its name, and they share nothing.
#[test]
fn several_volumes_of_one_daemon() -> Result<()> {
    let scratch = cistern_harness::scratch::Scratch::new("several")?;
    let cistern = Cistern::under_test(CISTERN);
    let urls: Vec<String> =
        ["one", "two", "three"].iter().map(|name| scratch.path().join(name).display().to_string()).collect();
    for (n, url) in urls.iter().enumerate() {
        cistern.run(&["create", url, "--size", &format!("{}G", n + 1)])?;
    }
    let server = cistern.serve(&scratch, &urls[0]).args(&urls[1..]).start()?;
    for (n, name) in ["one", "two", "three"].iter().enumerate() {
        let uri = server.uri_of(name);
        nbdsh(&uri, &format!("assert h.get_size() == {} << 30\nh.pwrite(b'{n}' * 4096, 4096)", n + 1))?;
    }
    for (n, name) in ["one", "two", "three"].iter().enumerate() {
        nbdsh(&server.uri_of(name), &format!("assert h.pread(4096, 4096) == b'{n}' * 4096"))?;
    }
    server.stop()
}

/// A client that vanishes in the middle of a request disturbs nobody.
#[test]
fn vanishing_clients_are_forgotten() -> Result<()> {
    let volume = Fixture::start(CISTERN, "vanish", "1G", &[])?;
    let script = format!(
        "
import socket, struct
h.pwrite(b'v' * 4096, 0)
for cut in (1, 17, 28, 28 + 1000):
    s = socket.socket(socket.AF_UNIX)
    s.connect('{}')
    assert s.recv(18, socket.MSG_WAITALL)[:8] == b'NBDMAGIC'
    s.sendall(struct.pack('>I', 3) + b'IHAVEOPT' + struct.pack('>II', 1, 0))
    assert len(s.recv(10, socket.MSG_WAITALL)) == 10
    s.sendall((struct.pack('>IHHQQI', 0x25609513, 0, 1, 1, 0, 65536) + b'?' * 65536)[:cut])
    s.close()
assert h.pread(4096, 0) == b'v' * 4096
",
        volume.server.socket().display()
    );
    nbdsh(&volume.uri(), &script)
}

fn nbdsh(uri: &str, script: &str) -> Result<()> {
    tool::run("nbdsh", ["--uri", uri, "--command", script]).map(drop)
}
