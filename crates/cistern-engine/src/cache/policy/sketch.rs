//! How often chunks were read lately, resident or not: a count-min sketch of 4-bit counters.
//!
//! Fixed size: 16 bytes for each chunk that the cache can hold (rounded up to a power of two), so that a
//! pass over ten times as many chunks does not fill it with chance. It never
//! counts too low, and rarely too high. All counters are halved from time to time, so that what was
//! read often long ago fades; that costs some milliseconds for the largest caches, once in tens of
//! millions of reads.

/// Rows of counters: a chunk has one counter in each.
const ROWS: u32 = 4;
/// Words of a line, which the rows share.
const LINE_WORDS: usize = 8;
const WORDS_PER_ROW: usize = LINE_WORDS / ROWS as usize;
const COUNTERS_PER_WORD: u32 = 16;
const COUNT_MAX: u64 = 15;
/// Words of counters for each chunk that the cache can hold.
const WORDS_PER_CHUNK: usize = 2;
/// Reads after which all counters are halved, for each chunk that the cache can hold.
const READS_PER_CHUNK: u64 = 10;
/// An odd number without a pattern (golden ratio).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;
/// The bits of all counters but their highest.
const HALVES: u64 = 0x7777_7777_7777_7777;

pub(super) struct Sketch {
    words: Vec<u64>,
    reads: u64,
    reads_max: u64,
}

impl Sketch {
    pub fn new(chunks: u32) -> Sketch {
        let words = (chunks as usize * WORDS_PER_CHUNK).next_power_of_two().max(16);
        Sketch { words: vec![0; words], reads: 0, reads_max: u64::from(chunks.max(16)) * READS_PER_CHUNK }
    }

    pub fn add(&mut self, hash: u32) {
        self.raise(hash, self.estimate(hash) + 1);
        self.reads += 1;
        if self.reads >= self.reads_max {
            self.reads /= 2;
            self.words.iter_mut().for_each(|word| *word = *word >> 1 & HALVES);
        }
    }

    /// What a chunk had counted in an earlier life.
    pub fn restore(&mut self, hash: u32, reads: u8) {
        self.raise(hash, reads);
    }

    pub fn estimate(&self, hash: u32) -> u8 {
        let counts = (0..ROWS).map(|row| {
            let (word, shift) = self.counter(hash, row);
            self.words[word] >> shift & COUNT_MAX
        });
        counts.min().unwrap_or(0) as u8
    }

    /// Raises the counters of a chunk to `count`, those that are lower.
    fn raise(&mut self, hash: u32, count: u8) {
        let count = u64::from(count).min(COUNT_MAX);
        for row in 0..ROWS {
            let (word, shift) = self.counter(hash, row);
            let word = &mut self.words[word];
            if *word >> shift & COUNT_MAX < count {
                *word = *word & !(COUNT_MAX << shift) | count << shift;
            }
        }
    }

    /// The word and the bit of a row's counter. All counters of a chunk lie in one line of the processor's
    /// cache.
    fn counter(&self, hash: u32, row: u32) -> (usize, u32) {
        let spread = (u64::from(hash) + 1).wrapping_mul(SPREAD);
        let line = (spread >> 24) as usize & (self.words.len() / LINE_WORDS - 1);
        let spread = (spread ^ spread >> 32).wrapping_mul(SPREAD) >> (32 + row * 6);
        let word = row as usize * WORDS_PER_ROW + spread as usize % WORDS_PER_ROW;
        (line * LINE_WORDS + word, (spread >> 1) as u32 % COUNTERS_PER_WORD * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts are never too low, and mostly right for as many chunks as it is made for.
    #[test]
    fn counts_are_seldom_wrong() {
        let mut sketch = Sketch::new(1000);
        for read in 0..3u32 {
            for hash in 0..1000u32 {
                if hash % 3 >= read {
                    sketch.add(hash.wrapping_mul(0x9E37_79B9));
                }
            }
        }
        let off = (0..1000u32).filter(|hash| {
            let (count, reads) = (sketch.estimate(hash.wrapping_mul(0x9E37_79B9)), (hash % 3 + 1) as u8);
            assert!(count >= reads);
            count != reads
        });
        assert!(off.count() < 30);
    }

    /// What is not read any more is forgotten.
    #[test]
    fn counts_fade() {
        let mut sketch = Sketch::new(100);
        (0..20).for_each(|_| sketch.add(7));
        assert_eq!(sketch.estimate(7), 15);
        (0..10_000u32).for_each(|read| sketch.add(1000 + read % 50));
        assert_eq!(sketch.estimate(7), 0);
    }
}
