//! What is known of the userspace block driver by the version of the kernel, and how a device of it is known again.

/// What a device of ublk keeps of what it was said to show.
pub fn ublk_mark(backend: &str) -> u64 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, backend.as_bytes())
}

/// Whether a kernel's driver is good for a device that must not be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UblkFitness {
    Good,
    /// Who takes a device over may wait for ever in rare cases (CVE-2026-53124, mended in 7.1).
    MayHang,
    /// To make a device crashes the kernel: memory by node before the tags are there (stable 6.18.4 and 6.18.5, Ubuntu's 6.17.0 before -41).
    Crashes,
    /// It knows no data by copies (before 6.5).
    TooOld,
}

impl UblkFitness {
    /// Of the running kernel.
    pub fn here() -> UblkFitness {
        UblkFitness::of(&std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default())
    }

    /// Of a release as `uname -r` says it; what cannot be read counts as old.
    pub fn of(release: &str) -> UblkFitness {
        let mut numbers =
            release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse::<u32>().ok());
        let mut next = || numbers.next().flatten();
        let (Some(major), Some(minor)) = (next(), next()) else { return UblkFitness::TooOld };
        let (patch, build) = (next().unwrap_or(0), next());
        match (major, minor, patch) {
            (6, 18, 4..=5) => UblkFitness::Crashes,
            // Builds of clouds are counted from 1000, and nobody has said from which one on they are mended.
            (6, 17, 0) if build.is_none_or(|build| (41..1000).contains(&build)) => UblkFitness::MayHang,
            (6, 17, 0) => UblkFitness::Crashes,
            (..6, _, _) | (6, ..5, _) => UblkFitness::TooOld,
            (6, _, _) | (7, 0, _) => UblkFitness::MayHang,
            _ => UblkFitness::Good,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is known of releases, as distributions write them.
    #[test]
    fn releases() {
        use UblkFitness::*;
        for (release, fitness) in [
            ("6.1.0-37-amd64", TooOld),
            ("6.4.16", TooOld),
            ("5.15.0-100-generic", TooOld),
            ("", TooOld),
            ("linux", TooOld),
            ("6.5.0-14-generic", MayHang),
            ("6.12.95+deb12-cloud-amd64", MayHang),
            ("6.17.0-34-generic", Crashes),
            ("6.17.0-40-generic", Crashes),
            ("6.17.0-41-generic\n", MayHang),
            ("6.17.0-1015-azure", Crashes),
            ("6.17.0-1017-aws", Crashes),
            ("6.17.4-arch2-1", MayHang),
            ("6.18.3", MayHang),
            ("6.18.4-arch1-1", Crashes),
            ("6.18.5", Crashes),
            ("6.18.6", MayHang),
            ("7.0.0-1008-aws", MayHang),
            ("7.1.0", Good),
            ("8.0", Good),
        ] {
            assert_eq!(UblkFitness::of(release), fitness, "{release}");
        }
    }
}
