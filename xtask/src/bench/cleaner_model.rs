//! A plain log cleaner in memory, under the same overwrites: what they cost one whose counts are exact at every moment and that
//! has neither a map nor checkpoints to write.
//!
//! LFS's (Rosenblum and Ousterhout 1992): of the segments of a log the one goes next whose garbage is worth most, by
//! share and by how long nothing died in it; what is moved and what is new go into segments of their own. What a block is
//! overwritten before it is uploaded never reaches the log: a window of writes is put together.

const SEGMENT_BLOCKS: usize = 4096;
/// Streams of the log.
const NEW: usize = 0;
const MOVED: usize = 1;

/// Overwrites of blocks that are all live.
pub struct Overwrites {
    blocks: usize,
    written: Vec<u32>,
}

impl Overwrites {
    /// `writes` to `blocks` blocks, of which the n-th most often written is written n^-`skew` times as often as the first.
    pub fn zipf(blocks: usize, writes: usize, skew: f64) -> Overwrites {
        let mut sums = Vec::with_capacity(blocks);
        let mut sum = 0.0;
        for rank in 1..=blocks {
            sum += (rank as f64).powf(-skew);
            sums.push(sum);
        }
        let draw = |n: usize| {
            let at = uniform(n as u64) * sum;
            sums.partition_point(|sum| *sum <= at).min(blocks - 1) as u32
        };
        Overwrites { blocks, written: (0..writes).map(draw).collect() }
    }

    /// Blocks put per block written, at so many stored for each live one, if so many of those written reach the store.
    pub fn put_per_write(&self, reach: f64, ratio: f64) -> f64 {
        let mut log = Log::filled(self.blocks, ratio);
        for window in self.written.chunks(self.window(reach)) {
            let mut window = window.to_vec();
            window.sort_unstable();
            window.dedup();
            log.write(&window);
        }
        log.put as f64 / self.written.len() as f64
    }

    /// How many writes are put together where so many of them reach the store.
    fn window(&self, reach: f64) -> usize {
        let (mut low, mut high) = (1, self.written.len());
        while high - low > 1 + low / 100 {
            let middle = usize::midpoint(low, high);
            if self.reach(middle) > reach { low = middle } else { high = middle }
        }
        low
    }

    fn reach(&self, window: usize) -> f64 {
        let mut seen = vec![0; self.blocks];
        let mut reached = 0;
        for (number, window) in (1..).zip(self.written.chunks(window)) {
            for block in window {
                let last = std::mem::replace(&mut seen[*block as usize], number);
                reached += usize::from(last != number);
            }
        }
        reached as f64 / self.written.len() as f64
    }
}

#[derive(Default)]
struct Segment {
    blocks: Vec<u32>,
    live: usize,
    /// When it lost a block last, in blocks put.
    quiet_since: usize,
}

struct Log {
    ratio: f64,
    /// The segment of each block.
    place: Vec<usize>,
    segments: Vec<Segment>,
    /// Those that are stored, and the newest of each stream, which are not full.
    stored: Vec<usize>,
    open: [usize; 2],
    stored_blocks: usize,
    put: usize,
}

impl Log {
    /// Written in order.
    fn filled(blocks: usize, ratio: f64) -> Log {
        let segments = vec![Segment::default(), Segment::default()];
        let place = vec![usize::MAX; blocks];
        let (stored, open) = (Vec::new(), [NEW, MOVED]);
        let mut log = Log { ratio, place, segments, stored, open, stored_blocks: 0, put: 0 };
        (0..blocks as u32).for_each(|block| log.put(NEW, block));
        log.put = 0;
        log
    }

    fn write(&mut self, blocks: &[u32]) {
        for block in blocks {
            self.put(NEW, *block);
            while self.stored_blocks as f64 > self.ratio * self.place.len() as f64 && self.clean() {}
        }
    }

    fn put(&mut self, stream: usize, block: u32) {
        if let Some(old) = self.segments.get_mut(self.place[block as usize]) {
            old.live -= 1;
            old.quiet_since = self.put;
        }
        let open = self.open[stream];
        self.place[block as usize] = open;
        let segment = &mut self.segments[open];
        segment.blocks.push(block);
        segment.live += 1;
        segment.quiet_since = self.put;
        self.put += 1;
        self.stored_blocks += 1;
        if segment.blocks.len() == SEGMENT_BLOCKS {
            self.stored.push(open);
            self.open[stream] = self.segments.len();
            self.segments.push(Segment::default());
        }
    }

    /// Moves what is live out of one segment; false if there is none with garbage.
    fn clean(&mut self) -> bool {
        let score = |at: &usize| {
            let Segment { blocks, live, quiet_since } = &self.segments[*at];
            let live = *live as f64 / blocks.len() as f64;
            (1.0 - live) / (1.0 + live) * (self.put - quiet_since) as f64
        };
        let scores = self.stored.iter().map(score).enumerate();
        let Some((at, _)) = scores.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|best| best.1 > 0.0) else {
            return false;
        };
        let victim = self.stored.swap_remove(at);
        let blocks = std::mem::take(&mut self.segments[victim].blocks);
        self.stored_blocks -= blocks.len();
        for block in blocks {
            if self.place[block as usize] == victim {
                self.put(MOVED, block);
            }
        }
        true
    }
}

/// In [0, 1): the place in a sequence decides (splitmix64).
fn uniform(place: u64) -> f64 {
    let mixed = place.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::{super::space::limit, *};

    /// Where all blocks are alike it comes close to the limit of any cleaner, from above, once it has been at it for long.
    #[test]
    fn uniform_overwrites_cost_what_they_must() {
        let blocks = 60 * SEGMENT_BLOCKS;
        let cost = |writes| {
            let overwrites = Overwrites::zipf(blocks, writes, 0.0);
            overwrites.put_per_write(1.0, 1.3) * writes as f64
        };
        let (half, all) = (cost(4 * blocks), cost(8 * blocks));
        let settled = (all - half) / (4 * blocks) as f64;
        assert!((0.98..1.1).contains(&(settled / limit(1.3))), "{settled}");
    }

    /// Writes of the same blocks are put together: the fewer reach the store, the less is put in all.
    #[test]
    fn a_window_saves_puts() {
        let overwrites = Overwrites::zipf(40 * SEGMENT_BLOCKS, 120 * SEGMENT_BLOCKS, 0.99);
        let (all, some) = (overwrites.put_per_write(1.0, 1.3), overwrites.put_per_write(0.4, 1.3));
        assert!(some < all * 0.7, "{some} of {all}");
        assert!((overwrites.reach(overwrites.window(0.4)) - 0.4).abs() < 0.02);
    }
}
