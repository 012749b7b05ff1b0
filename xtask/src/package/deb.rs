//! The Debian package. `dpkg-deb` puts it together; what runs when it is installed and removed is in `packaging/debian`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::{Making, contents::Contents, copy, files, name, put};
use crate::setup::debian_architecture;

const MAINTAINER: &str = "cistern maintainers <maintainers@cistern.invalid>";
const SUMMARY: &str = "block devices on object storage
 cistern serves volumes of any size over NBD. Their data lies in S3, Google
 Cloud Storage, Azure or a directory, and writes have the latency of the
 local disk. On a volume runs whatever runs on a disk: ZFS, XFS, ext4,
 btrfs, a virtual machine.";

/// `cistern_VERSION_ARCHITECTURE.deb` in a directory, of a program of that version.
pub(super) fn make(
    making: &Making,
    program: &Path,
    contents: &Contents,
    version: &str,
    into: &Path,
) -> Result<PathBuf> {
    let carried = making.carried(program)?;
    let root = making.stage("deb")?;
    copy(program, &root.join("usr/bin/cistern"), 0o755)?;
    for unit in files(&making.tree.join("packaging/systemd"))? {
        copy(&unit, &root.join("lib/systemd/system").join(name(&unit)), 0o644)?;
    }
    let debian = making.tree.join("packaging/debian");
    copy(&debian.join("tmpfiles"), &root.join("usr/lib/tmpfiles.d/cistern.conf"), 0o644)?;
    copy(&debian.join("running"), &root.join("usr/share/cistern/running"), 0o644)?;
    copy(&carried.join("cistern.toml"), &root.join("etc/cistern/cistern.toml"), 0o644)?;
    for page in files(&carried.join("man"))? {
        copy(&page, &root.join("usr/share/man/man1").join(name(&page)), 0o644)?;
    }
    for (script, to) in [
        ("bash", "bash-completion/completions/cistern"),
        ("zsh", "zsh/vendor-completions/_cistern"),
        ("fish", "fish/vendor_completions.d/cistern.fish"),
    ] {
        copy(&carried.join("completions").join(script), &root.join("usr/share").join(to), 0o644)?;
    }
    let doc = root.join("usr/share/doc/cistern");
    copy(&debian.join("copyright"), &doc.join("copyright"), 0o644)?;
    copy(&making.tree.join("CHANGELOG.md"), &doc.join("CHANGELOG.md"), 0o644)?;
    put(&doc.join("THIRD-PARTY"), contents.licences()?, 0o644)?;
    put(&doc.join("changelog"), changelog(making, version)?, 0o644)?;
    making.shell(
        &root,
        "gzip -n -9 usr/share/man/man1/* usr/share/doc/cistern/{changelog,CHANGELOG.md,THIRD-PARTY}",
    )?;

    let control = root.join("DEBIAN");
    for script in ["postinst", "prerm", "postrm"] {
        copy(&debian.join(script), &control.join(script), 0o755)?;
    }
    put(&control.join("conffiles"), "/etc/cistern/cistern.toml\n", 0o644)?;
    put(&control.join("control"), control_file(making, program, &root, version)?, 0o644)?;
    making.shell(
        &root,
        "find * -type f -not -path 'DEBIAN/*' -print0 | sort -z | xargs -0 md5sum > DEBIAN/md5sums",
    )?;
    making.shell(&root, "chmod -R go-w . && chmod 644 DEBIAN/md5sums")?;
    let package = into.join(format!("cistern_{version}_{}.deb", debian_architecture()?));
    let line = format!(
        "dpkg-deb --root-owner-group --uniform-compression --threads-max=1 -Zxz --build . '{}'",
        package.display()
    );
    making.shell(&root, &line)?;
    Ok(package)
}

fn control_file(making: &Making, program: &Path, root: &Path, version: &str) -> Result<String> {
    let kib: u64 =
        making.shell(root, "du -ks --apparent-size .")?.split_whitespace().next().context("du")?.parse()?;
    Ok(format!(
        "Package: cistern\nVersion: {version}\nArchitecture: {}\nMaintainer: {MAINTAINER}\nInstalled-Size: {kib}\n\
         Depends: {}, ca-certificates\nSuggests: bash-completion, nbdkit, qemu-utils, zfsutils-linux, nfs-kernel-server\n\
         Section: admin\nPriority: optional\nDescription: {SUMMARY}\n",
        debian_architecture()?,
        libraries(making, program)?
    ))
}

/// The packages of the libraries that the program needs, by what it uses of them.
fn libraries(making: &Making, program: &Path) -> Result<String> {
    let dir = making.stage("shlibdeps")?;
    put(&dir.join("debian/control"), "Source: cistern\n\nPackage: cistern\nArchitecture: any\n", 0o644)?;
    let said = making.shell(&dir, &format!("dpkg-shlibdeps -O -e'{}'", program.display()))?;
    fs::remove_dir_all(&dir)?;
    let line = said.lines().find_map(|line| line.strip_prefix("shlibs:Depends="));
    line.map(str::to_owned).context("dpkg-shlibdeps names no library")
}

/// Debian's form of it, which leads to ours.
fn changelog(making: &Making, version: &str) -> Result<String> {
    let date = making.shell(&making.tree, "date -u -R -d @$SOURCE_DATE_EPOCH")?;
    Ok(format!(
        "cistern ({version}) unstable; urgency=medium\n\n  * What changed is in CHANGELOG.md.gz beside this file.\n\n \
         -- {MAINTAINER}  {date}"
    ))
}
