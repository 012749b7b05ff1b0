//! The image for containers, as a file that every runtime loads: the static program, certificates, and the directories it
//! uses. In the layout of the Open Container Initiative, and with what `docker load` reads of it; nothing but `tar` and `gzip` makes it.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result};
use cistern_harness::tool;
use serde_json::{Value, json};

use super::{Making, archive, binary::Binary, contents::Contents, copy, put};
use crate::setup::debian_architecture;

/// Whom the program trusts with the names of stores: as Debian's package ca-certificates has made it on this machine.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// `cistern_VERSION_ARCHITECTURE_oci.tar`, with an image of the version's name in it.
pub(super) fn make(making: &Making, binary: &Binary, contents: &Contents, into: &Path) -> Result<()> {
    let (root, layout) = (making.stage("image-root")?, making.stage("image")?);
    copy(&binary.program, &root.join("usr/bin/cistern"), 0o755)?;
    copy(Path::new(CERTIFICATES), &root.join("etc/ssl/certs/ca-certificates.crt"), 0o644)?;
    copy(&making.tree.join("LICENSE"), &root.join("usr/share/doc/cistern/LICENSE"), 0o644)?;
    put(&root.join("usr/share/doc/cistern/THIRD-PARTY"), contents.licences()?, 0o644)?;
    put(&root.join("etc/passwd"), "root:x:0:0:root:/:/usr/bin/cistern\n", 0o644)?;
    put(&root.join("etc/nsswitch.conf"), "hosts: files dns\n", 0o644)?;
    for dir in ["var/lib/cistern", "var/cache/cistern", "run/cistern", "tmp"] {
        fs::create_dir_all(root.join(dir))?;
    }
    making
        .shell(&root, "chmod -R go-w . && chmod 1777 tmp && chmod 700 var/lib/cistern var/cache/cistern")?;

    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs)?;
    let layer = layout.join("layer.tar");
    archive::tar(making, &root, &layer)?;
    let uncompressed = tool::sha256(&layer)?;
    making.shell(&layout, "gzip -n -9 layer.tar")?;
    let compressed = keep(&blobs, &fs::read(layout.join("layer.tar.gz"))?)?;
    fs::remove_file(layout.join("layer.tar.gz"))?;

    let created = time(making.epoch)?;
    let config = json!({
        "created": created,
        "architecture": debian_architecture()?, // Debian and the image format call these the same
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/cistern"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin"],
            "ExposedPorts": { "10809/tcp": {} },
            "Volumes": { "/var/lib/cistern": {}, "/var/cache/cistern": {} },
            "StopSignal": "SIGTERM",
            "Labels": { "org.opencontainers.image.version": making.version(), "org.opencontainers.image.licenses": "Apache-2.0" },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{uncompressed}")] },
        "history": [{ "created": created, "created_by": "cargo xtask package" }],
    });
    let config = keep(&blobs, &serde_json::to_vec(&config)?)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor("application/vnd.oci.image.config.v1+json", &config),
        "layers": [descriptor("application/vnd.oci.image.layer.v1.tar+gzip", &compressed)],
    });
    let path = |blob: &Blob| format!("blobs/sha256/{}", blob.digest);
    let docker = json!([{
        "Config": path(&config),
        "RepoTags": [format!("cistern:{}", making.version())],
        "Layers": [path(&compressed)],
    }]);
    put(&layout.join("manifest.json"), serde_json::to_vec(&docker)?, 0o644)?;
    let mut manifest = descriptor(MANIFEST, &keep(&blobs, &serde_json::to_vec(&manifest)?)?);
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": making.version() });
    let index = json!({ "schemaVersion": 2, "manifests": [manifest] });
    put(&layout.join("index.json"), serde_json::to_vec(&index)?, 0o644)?;
    put(&layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#, 0o644)?;
    let to = format!("cistern_{}_{}_oci.tar", making.version(), debian_architecture()?);
    archive::tar(making, &layout, &into.join(to))
}

/// Something by its digest.
struct Blob {
    digest: String,
    bytes: usize,
}

fn keep(blobs: &Path, content: &[u8]) -> Result<Blob> {
    let new = blobs.join("new");
    put(&new, content, 0o644)?;
    let digest = tool::sha256(&new)?;
    fs::rename(&new, blobs.join(&digest))?;
    Ok(Blob { digest, bytes: content.len() })
}

fn descriptor(kind: &str, blob: &Blob) -> Value {
    json!({ "mediaType": kind, "digest": format!("sha256:{}", blob.digest), "size": blob.bytes })
}

/// A time as these formats write it.
pub(super) fn time(epoch: u64) -> Result<String> {
    let mut date = Command::new("date");
    date.args(["-u", "+%Y-%m-%dT%H:%M:%SZ", "-d", &format!("@{epoch}")]);
    Ok(tool::run_command(date, tool::RUN_LIMIT).context("date")?.stdout.trim().to_owned())
}
