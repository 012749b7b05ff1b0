//! Programs nobody here wrote, against the server, by Unix socket, TCP and TLS.
//!
//! A program that is not installed fails its test and names its Debian package.

#[path = "../support/certificates.rs"]
mod certificates;
#[allow(dead_code)]
#[path = "../../examples/memory/export.rs"]
mod export;
mod fixture;

use export::MemoryExport;
use fixture::*;

/// nbdinfo sees the size, the flags and the context on every transport, alone and in the list.
#[test]
fn nbdinfo() {
    let fixture = Fixture::start();
    for uri in fixture.uris() {
        let json = run("libnbd-bin", "nbdinfo", &["--json", &uri]);
        for line in [
            r#""export-name": "disk""#,
            r#""export-size": 67108864"#,
            r#""description": "a disk in memory""#,
            r#""structured": true"#,
            r#""base:allocation""#,
            r#""can_multi_conn": true"#,
            r#""can_fast_zero": true"#,
            r#""can_df": true"#,
            r#""is_rotational": false"#,
            r#""block_size_minimum": 512"#,
            r#""block_size_maximum": 33554432"#,
        ] {
            assert!(json.contains(line), "{line} is not in {json}");
        }
        assert_eq!(json.contains(r#""TLS": true"#), uri.starts_with("nbds"), "{json}");
        let list = run("libnbd-bin", "nbdinfo", &["--list", &uri.replace("/disk", "/")]);
        assert!(list.contains(r#"export="disk""#), "{list}");
        assert_eq!(run("libnbd-bin", "nbdinfo", &["--size", &uri]).trim(), "67108864");
    }
    fixture.stop();
}

/// nbdinfo --map shows data, allocated zeroes and holes as they are.
#[test]
fn nbdinfo_map() {
    let fixture = Fixture::start();
    for uri in fixture.uris() {
        let script = "h.trim(h.get_size(), 0); h.pwrite(b'x' * 65536, 1 << 20); \
                      h.zero(65536, 2 << 20, nbd.CMD_FLAG_NO_HOLE)";
        nbdsh_at(&uri, script);
        let map = run("libnbd-bin", "nbdinfo", &["--map", &uri]);
        let rows: Vec<Vec<&str>> = map.lines().map(|line| line.split_whitespace().collect()).collect();
        let expected = [
            ["0", "1048576", "3", "hole,zero"],
            ["1048576", "65536", "0", "data"],
            ["1114112", "983040", "3", "hole,zero"],
            ["2097152", "65536", "2", "zero"],
            ["2162688", "64946176", "3", "hole,zero"],
        ];
        assert_eq!(rows, expected, "{map}");
    }
    fixture.stop();
}

/// nbdcopy brings an image in and out again unchanged, over several connections.
#[test]
fn nbdcopy() {
    let fixture = Fixture::start();
    let (there, back) = (fixture.file("there"), fixture.file("back"));
    let bytes = image(&there);
    for uri in fixture.uris() {
        run("libnbd-bin", "nbdcopy", &["--connections=4", "--flush", &there.to_string_lossy(), &uri]);
        run("libnbd-bin", "nbdcopy", &["--connections=4", &uri, &back.to_string_lossy()]);
        assert!(std::fs::read(&back).expect("written") == bytes);
    }
    fixture.stop();
}

/// Runs a script with libnbd connected to the export.
fn nbdsh_at(uri: &str, script: &str) {
    let connect = format!(
        "h.set_uri_allow_local_file(True); h.add_meta_context('base:allocation'); h.connect_uri({uri:?})"
    );
    run("python3-libnbd", "nbdsh", &["-c", &connect, "-c", script]);
}

/// nbdsh drives every command and every error through libnbd.
#[test]
fn nbdsh() {
    let fixture = Fixture::start();
    let script = r#"
assert h.get_size() == 67108864 and not h.is_read_only() and h.can_multi_conn()
assert h.get_structured_replies_negotiated() and h.can_meta_context("base:allocation")
h.pwrite(bytearray(range(256)) * 2, 512, nbd.CMD_FLAG_FUA)
assert h.pread(512, 512) == bytes(range(256)) * 2
chunks = []
note = lambda data, offset, status, error: chunks.append((len(data), offset, status))
assert h.pread_structured(1024, 0, note, nbd.CMD_FLAG_DF) == bytes(512) + bytes(range(256)) * 2
assert chunks == [(1024, 0, nbd.READ_DATA)], chunks
h.zero(512, 512, nbd.CMD_FLAG_FAST_ZERO)
assert h.pread_structured(512, 512, note) == bytes(512)
h.cache(65536, 0)
h.flush()
def fails(what, code):
    try:
        what()
    except nbd.Error as error:
        assert error.errno == code, (error.errno, code)
    else:
        raise AssertionError("it should fail with " + code)
h.set_strict_mode(0)
fails(lambda: h.pread(512, h.get_size()), "EINVAL")
fails(lambda: h.pwrite(bytes(512), h.get_size()), "ENOSPC")
fails(lambda: h.zero(512, h.get_size()), "ENOSPC")
fails(lambda: h.trim(512, h.get_size()), "EINVAL")
fails(lambda: h.pread(512, 1), "EINVAL")
fails(lambda: h.pread(0, 0), "EINVAL")
fails(lambda: h.zero(512, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE), "ENOTSUP")
seen = []
h.block_status(67108864, 0, lambda context, offset, entries, error: seen.append((context, offset, sum(entries[::2]))))
assert seen == [("base:allocation", 0, 67108864)], seen
cookies = [h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray([n]) * 4096), n * 4096) for n in range(200)]
while h.aio_in_flight() > 0:
    h.poll(-1)
assert all(h.aio_command_completed(cookie) for cookie in cookies)
assert all(h.pread(4096, n * 4096) == bytes([n]) * 4096 for n in range(200))
h.shutdown()
"#;
    for uri in fixture.uris() {
        nbdsh_at(&uri, script);
    }
    fixture.stop();
}

/// libnbd without structured replies, and its option mode with LIST and INFO.
#[test]
fn nbdsh_options() {
    let fixture = Fixture::start();
    let plain = "h.set_request_structured_replies(False); h.connect_uri(URI); \
                 h.pwrite(b'y' * 131072, 0); assert h.pread(131072, 0) == b'y' * 131072; h.shutdown()";
    let options = "h.set_opt_mode(True); h.connect_uri(URI); names = []; \
                   h.opt_list(lambda name, description: names.append(name)); assert names == ['disk'], names; \
                   h.set_export_name('disk'); h.opt_info(); assert h.get_size() == 67108864; h.opt_go(); \
                   h.flush(); h.shutdown()";
    for uri in fixture.uris() {
        for script in [plain, options] {
            let script = script.replace("URI", &format!("{uri:?}"));
            run("python3-libnbd", "nbdsh", &["-c", "h.set_uri_allow_local_file(True)", "-c", &script]);
        }
    }
    fixture.stop();
}

/// fio reads back what it wrote and checks it, in several sizes. (It cannot be told where the
/// certificates for TLS are.)
#[test]
fn fio_verify() {
    let fixture = Fixture::start();
    for uri in &fixture.uris()[..2] {
        let uri = format!("--uri={uri}");
        let common =
            ["--ioengine=nbd", &uri, "--size=64M", "--verify=crc32c", "--verify_fatal=1", "--iodepth=32"];
        for extra in [
            &["--name=small", "--rw=randwrite", "--bs=4k", "--fsync=64"][..],
            &["--name=mixed", "--rw=randwrite", "--bsrange=512-1M", "--bs_unaligned=0", "--blockalign=512"],
            &["--name=stream", "--rw=write", "--bs=1M"],
        ] {
            run("fio", "fio", &[&common[..], extra].concat());
        }
    }
    fixture.stop();
}

/// How qemu's programs are told of the export, with TLS credentials where they are needed.
fn qemu_images(fixture: &Fixture) -> [Vec<String>; 3] {
    let dir = fixture.dir.path().display();
    let open = |options: String| vec!["--image-opts".to_owned(), options];
    let mut tls = vec!["--object".to_owned(), format!("tls-creds-x509,id=tls,endpoint=client,dir={dir}")];
    tls.extend(open(format!(
        "driver=nbd,export=disk,host=localhost,port={},tls-creds=tls,tls-hostname=localhost",
        fixture.tls_port
    )));
    [
        open(format!("driver=nbd,export=disk,path={dir}/socket")),
        open(format!("driver=nbd,export=disk,host=127.0.0.1,port={}", fixture.tcp_port)),
        tls,
    ]
}

/// qemu-io writes patterns, zeroes, discards and finds them again.
#[test]
fn qemu_io() {
    let fixture = Fixture::start();
    for image in qemu_images(&fixture) {
        let mut args: Vec<&str> = image.iter().map(String::as_str).collect();
        for command in [
            "write -P 0x5a 1M 3M",
            "write -f -P 0x5b 4096 512",
            "write -z 2M 64k",
            "write -z -u 3M 64k",
            "discard 1M 64k",
            "flush",
            "read -P 0 1M 64k",
            "read -P 0x5a 1088k 960k",
            "read -P 0 2M 64k",
            "read -P 0 3M 64k",
            "read -P 0x5b 4096 512",
            "aio_write -P 7 8M 16M",
            "aio_read 0 1M",
            "aio_flush",
            "read -P 7 8M 16M",
        ] {
            args.extend(["-c", command]);
        }
        let out = run("qemu-utils", "qemu-io", &args);
        assert!(!out.contains("failed") && !out.contains("error"), "{out}");
    }
    fixture.stop();
}

/// qemu-img converts an image onto the export, finds both equal, and maps what is there.
#[test]
fn qemu_img() {
    let fixture = Fixture::start();
    let (raw, qcow, back) = (fixture.file("raw"), fixture.file("qcow2"), fixture.file("back"));
    let bytes = image(&raw);
    let text = |path: &std::path::Path| path.to_string_lossy().into_owned();
    let (raw, qcow, back_name) = (text(&raw), text(&qcow), text(&back));
    run("qemu-utils", "qemu-img", &["convert", "-f", "raw", "-O", "qcow2", &raw, &qcow]);
    for uri in &fixture.uris()[..2] {
        run("qemu-utils", "qemu-img", &["convert", "-n", "-f", "qcow2", "-O", "raw", &qcow, uri]);
        run("qemu-utils", "qemu-img", &["compare", "-f", "qcow2", "-F", "raw", &qcow, uri]);
        run("qemu-utils", "qemu-img", &["convert", "-f", "raw", "-O", "raw", uri, &back_name]);
        assert!(std::fs::read(&back).expect("written") == bytes);
        let map = run("qemu-utils", "qemu-img", &["map", "--output=json", "-f", "raw", uri]);
        assert!(
            map.contains(r#""start": 0, "length": 7"#) && map.contains(r#""zero": true, "data": false"#),
            "{map}"
        );
    }
    fixture.stop();
}

/// nbdkit as a client passes everything through a filter that cuts requests up.
#[test]
fn nbdkit_as_client() {
    let fixture = Fixture::start();
    let there = fixture.file("there");
    image(&there);
    for uri in fixture.uris() {
        let script = format!(
            "nbdcopy --flush {there} $uri && nbdcopy $uri {there}.back && cmp {there} {there}.back \
             && nbdinfo --map $uri > /dev/null",
            there = there.display()
        );
        let (plain, _) = uri.split_once("?tls").unwrap_or((&uri, ""));
        let plugin = format!("uri={plain}");
        let certificates = format!("tls-certificates={}", fixture.dir.path().display());
        let mut args = vec!["-U", "-", "--filter=blocksize", "nbd", &plugin, "shared=1"];
        args.extend(["maxdata=128k", "minblock=4k"]);
        if uri.starts_with("nbds") {
            args.extend(["tls=require", &certificates]);
        }
        args.extend(["--run", &script]);
        run("nbdkit", "nbdkit", &args);
    }
    fixture.stop();
}

/// A read-only export is one for every program.
#[test]
fn read_only() {
    let mut export = MemoryExport::new("disk", SIZE);
    export.read_only = true;
    let fixture = Fixture::with(export);
    for uri in fixture.uris() {
        let json = run("libnbd-bin", "nbdinfo", &["--json", &uri]);
        assert!(json.contains(r#""is_read_only": true"#) && json.contains(r#""can_trim": false"#), "{json}");
        let script = "h.set_strict_mode(0)\ntry:\n  h.pwrite(bytes(512), 0)\nexcept nbd.Error as e:\n  \
                      assert e.errno == 'EPERM', e.errno\nelse:\n  raise AssertionError('written')";
        nbdsh_at(&uri, script);
    }
    fixture.stop();
}

/// Where TLS is required, a client in the clear is refused, and so is one without a certificate.
#[test]
fn tls_keeps_strangers_out() {
    let fixture = Fixture::start();
    let plain = format!("nbd://localhost:{}/disk", fixture.tls_port);
    assert!(!attempt("libnbd-bin", "nbdinfo", &[&plain]).status.success());
    let stranger = fixture.file("stranger");
    std::fs::create_dir(&stranger).expect("writable directory");
    std::fs::copy(fixture.file("ca-cert.pem"), stranger.join("ca-cert.pem")).expect("copied");
    let stranger =
        format!("nbds://localhost:{}/disk?tls-certificates={}", fixture.tls_port, stranger.display());
    assert!(!attempt("libnbd-bin", "nbdinfo", &[&stranger]).status.success());
    run("libnbd-bin", "nbdinfo", &[&fixture.uris()[2]]);
    fixture.stop();
}
