//! The content of one simulated file: what a reader sees, and what would survive a power cut.
//!
//! Invariant: `durable` is what the medium holds for sure; `unsynced` are the completed writes since,
//! in order; `view` is `durable` with all of them applied. Pure: chance comes in as a generator.

use std::collections::BTreeMap;

use cistern_engine::units::SECTOR_BYTES;
use rand::{Rng, RngExt};

/// How a host dies, as its disks see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The process is gone; the kernel keeps what was written.
    Kill,
    /// Every unsynced sector is kept, lost or left at an older unsynced version.
    PowerCut,
}

#[derive(Clone)]
struct Write {
    number: u64,
    offset: usize,
    data: Vec<u8>,
}

/// One file.
#[derive(Clone)]
pub struct Media {
    view: Vec<u8>,
    durable: Vec<u8>,
    unsynced: Vec<Write>,
    /// Started and not completed; they may have partial effect when the host dies.
    in_flight: BTreeMap<u64, Write>,
    numbers: u64,
}

impl Media {
    pub fn zeroed(bytes: usize) -> Media {
        Media {
            view: vec![0; bytes],
            durable: vec![0; bytes],
            unsynced: Vec::new(),
            in_flight: BTreeMap::new(),
            numbers: 0,
        }
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> usize {
        self.view.len()
    }

    pub fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.view[offset..offset + out.len()]);
    }

    /// Starts a write; the result names it.
    pub fn begin(&mut self, offset: usize, data: &[u8]) -> u64 {
        assert!(offset + data.len() <= self.bytes(), "bounds are checked by the file");
        self.numbers += 1;
        self.in_flight.insert(self.numbers, Write { number: self.numbers, offset, data: data.to_vec() });
        self.numbers
    }

    /// Completes a write.
    pub fn complete(&mut self, number: u64) {
        if let Some(mut write) = self.in_flight.remove(&number) {
            // Numbered anew: a sync covers what was complete when it began.
            self.numbers += 1;
            write.number = self.numbers;
            self.view[write.offset..write.offset + write.data.len()].copy_from_slice(&write.data);
            self.unsynced.push(write);
        }
    }

    /// The write's caller went away: it took place, or not, or in part.
    pub fn abandon(&mut self, number: u64, rng: &mut impl Rng) {
        if let Some(write) = self.in_flight.remove(&number) {
            let keep = [0.0, 0.5, 1.0][rng.random_range(0..3)];
            for (offset, sector) in write.sectors() {
                if rng.random_bool(keep) {
                    self.view[offset..offset + sector.len()].copy_from_slice(sector);
                    self.numbers += 1;
                    self.unsynced.push(Write { number: self.numbers, offset, data: sector.to_vec() });
                }
            }
        }
    }

    /// What a sync that begins now will cover.
    pub fn sync_point(&self) -> u64 {
        self.numbers
    }

    /// A sync that began at `point` has succeeded.
    pub fn settle(&mut self, point: u64) {
        let later = self.unsynced.iter().position(|w| w.number > point).unwrap_or(self.unsynced.len());
        for write in self.unsynced.drain(..later) {
            self.durable[write.offset..write.offset + write.data.len()].copy_from_slice(&write.data);
        }
    }

    /// A sync that began at `point` has failed: of what it covered each sector is durable or dropped,
    /// and no later sync will bring the dropped ones back, though readers may still see them.
    pub fn fail_sync(&mut self, point: u64, rng: &mut impl Rng) {
        let later = self.unsynced.iter().position(|w| w.number > point).unwrap_or(self.unsynced.len());
        let keep = [0.0, 0.3, 0.9][rng.random_range(0..3)];
        for write in self.unsynced.drain(..later) {
            for (offset, sector) in write.sectors() {
                if rng.random_bool(keep) {
                    self.durable[offset..offset + sector.len()].copy_from_slice(sector);
                }
            }
        }
        if rng.random_bool(0.5) {
            // The dropped pages are read anew from the medium.
            self.view.copy_from_slice(&self.durable);
            for write in &self.unsynced {
                self.view[write.offset..write.offset + write.data.len()].copy_from_slice(&write.data);
            }
        }
    }

    /// The host dies.
    pub fn die(&mut self, death: Death, rng: &mut impl Rng) {
        for number in self.in_flight.keys().copied().collect::<Vec<_>>() {
            self.abandon(number, rng);
        }
        if death == Death::PowerCut {
            // How much the medium had written back by itself; per write it may differ.
            let mood = [0.0, 0.5, 0.9, 1.0][rng.random_range(0..4)];
            for write in std::mem::take(&mut self.unsynced) {
                let keep = if rng.random_bool(0.5) { mood } else { [0.0, 0.5, 1.0][rng.random_range(0..3)] };
                for (offset, sector) in write.sectors() {
                    if rng.random_bool(keep) {
                        self.durable[offset..offset + sector.len()].copy_from_slice(sector);
                    }
                }
            }
            self.view.copy_from_slice(&self.durable);
        }
    }

    /// Where the sectors begin that are not all zeroes.
    pub fn written(&self) -> Vec<usize> {
        let sectors = self.durable.chunks(SECTOR_BYTES).enumerate();
        sectors.filter(|(_, s)| s.iter().any(|&b| b != 0)).map(|(i, _)| i * SECTOR_BYTES).collect()
    }

    /// Media damage: flips one bit, in what readers see and in what is durable.
    pub fn flip(&mut self, at: usize, bit: u8) {
        self.view[at] ^= 1 << bit;
        self.durable[at] ^= 1 << bit;
    }
}

impl Write {
    fn sectors(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.data.chunks(SECTOR_BYTES).enumerate().map(|(i, s)| (self.offset + i * SECTOR_BYTES, s))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    /// What a sync covered survives every power cut; what came later is old or new, sector by sector.
    #[test]
    fn synced_sectors_survive() {
        for seed in 0..200 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut media = Media::zeroed(8192);
            let first = media.begin(0, &[1; 8192]);
            media.complete(first);
            let point = media.sync_point();
            let second = media.begin(4096, &[2; 4096]);
            media.complete(second);
            media.settle(point);
            media.begin(0, &[3; 512]);
            media.die(Death::PowerCut, &mut rng);
            let mut out = [0; 8192];
            media.read(0, &mut out);
            assert!(out[..512].iter().all(|&b| b == 1 || b == 3));
            assert!(out[512..4096].iter().all(|&b| b == 1));
            assert!(out[4096..].chunks(512).all(|s| s == [1; 512] || s == [2; 512]));
        }
    }

    /// A killed process loses nothing that was written.
    #[test]
    fn a_kill_keeps_what_was_written() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut media = Media::zeroed(4096);
        let write = media.begin(0, &[9; 4096]);
        media.complete(write);
        media.die(Death::Kill, &mut rng);
        let mut out = [0; 4096];
        media.read(0, &mut out);
        assert_eq!(out, [9; 4096]);
    }

    /// What a failed sync dropped is not made durable by a later one.
    #[test]
    fn a_failed_sync_is_final() {
        let mut lost = 0;
        for seed in 0..100 {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let mut media = Media::zeroed(512);
            let write = media.begin(0, &[5; 512]);
            media.complete(write);
            let point = media.sync_point();
            media.fail_sync(point, &mut rng);
            media.settle(media.sync_point());
            media.die(Death::PowerCut, &mut rng);
            let mut out = [0; 512];
            media.read(0, &mut out);
            lost += u32::from(out == [0; 512]);
        }
        assert!(lost > 20, "lost {lost} of 100");
    }
}
