//! How many neighbours to fetch with a miss: learnt from what becomes of them. Pure.
//!
//! Around every miss a neighbourhood of 1 MiB of the object is watched for a while: which of its
//! 4 KiB pieces are read before it falls out of the watch. From that it is known for every size of
//! window at once, also those not in use, how much of it would have been used; so the size cannot
//! get stuck where nothing is learnt any more. A window pays when the round trips that its used
//! pieces save last longer than the transfer of its unused ones.
//!
//! That takes a hundred misses to change its mind. When reads go elsewhere (a scan ends, random reads
//! begin), *doubt* is faster: every miss in a new neighbourhood adds to it, every read in a watched one
//! takes four times as much away, and it divides the size. So neighbours that fewer than one
//! neighbourhood in five uses soon are no longer fetched after about sixteen misses, and are again after
//! some four reads among what was watched.
//!
//! Bounded: `WATCHED_MAX` neighbourhoods of some 80 bytes.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    ops::Range,
};

use super::link::LinkEstimate;
use crate::cache::{CacheKey, PIECE_BYTES};

/// The largest window, and the neighbourhood that is watched, in bytes.
pub(super) const WINDOW_BYTES_MAX: u64 = 1 << 20;
/// The smallest: only the piece itself.
pub(super) const WINDOW_BYTES_MIN: u64 = PIECE_BYTES as u64;
/// The window before anything is known.
const WINDOW_BYTES_FIRST: u64 = 256 << 10;
/// The most while nothing is known of the link: on a narrow one every miss of a mount waits for its window.
const WINDOW_BYTES_BLIND: u64 = 64 << 10;
/// Neighbourhoods watched at once: a working set of 128 MiB of the log.
const WATCHED_MAX: usize = 128;
/// Neighbourhoods whose end must have been seen before the first decision.
const SEEN_MIN: u32 = 16;
/// After so many the sums are halved: the controller follows a change within about as many misses.
const SEEN_HALVE: u32 = 128;
/// A window takes at most so many latencies to transfer, whatever it would save: a miss next to it
/// shares the link with it.
const TRANSFER_LATENCIES_MAX: f64 = 8.0;
/// What decides must be better by this factor, so that the size does not flutter.
const BETTER: f64 = 1.1;

/// Doubt that halves the window, and what a read in a watched neighbourhood takes away; a miss in a new
/// one adds 1.
const DOUBT_HALVES: usize = 2;
const TRUST: usize = 4;
const DOUBT_MAX: usize = DOUBT_HALVES * (SIZES - 1);

/// Weight of one miss in the average size of misses.
const MISS_WEIGHT: f64 = 1.0 / 32.0;

/// Sizes: 4 KiB to 1 MiB, doubling.
const SIZES: usize = 9;
const WORDS: usize = WINDOW_BYTES_MAX as usize / PIECE_BYTES / 64;
const _: () = assert!(WINDOW_BYTES_MIN << (SIZES - 1) == WINDOW_BYTES_MAX);
const _: () = assert!(WINDOW_BYTES_FIRST.is_power_of_two() && WINDOW_BYTES_FIRST <= WINDOW_BYTES_MAX);
const _: () = assert!(WINDOW_BYTES_MIN <= WINDOW_BYTES_BLIND && WINDOW_BYTES_BLIND <= WINDOW_BYTES_MAX);
const _: () = assert!(SEEN_MIN < SEEN_HALVE, "halving the sums does not end deciding");

#[derive(Debug)]
struct Watched {
    /// The piece that missed, counted in the neighbourhood.
    first: usize,
    /// Pieces that were read, the first one included.
    read: [u64; WORDS],
}

/// Learns and decides.
#[derive(Debug)]
pub(super) struct ReadWindow {
    /// By object and number of the neighbourhood in it.
    watched: BTreeMap<(CacheKey, u64), Watched>,
    /// The same, oldest first.
    order: VecDeque<(CacheKey, u64)>,
    /// For every size: pieces used and not used, besides the first.
    used: [f64; SIZES],
    unused: [f64; SIZES],
    /// Pieces of a read that misses, on average: a round trip brings so many.
    pieces_per_read: f64,
    seen: u32,
    size: usize,
    doubt: usize,
}

impl Default for ReadWindow {
    fn default() -> ReadWindow {
        ReadWindow {
            watched: BTreeMap::new(),
            order: VecDeque::new(),
            used: [0.0; SIZES],
            unused: [0.0; SIZES],
            pieces_per_read: 1.0,
            seen: 0,
            size: (WINDOW_BYTES_FIRST / WINDOW_BYTES_MIN).trailing_zeros() as usize,
            doubt: 0,
        }
    }
}

impl ReadWindow {
    /// Bytes to fetch around a miss now.
    pub fn bytes(&self, link: Option<LinkEstimate>) -> u64 {
        let bytes = WINDOW_BYTES_MIN << self.size.saturating_sub(self.doubt / DOUBT_HALVES);
        bytes.min(link.map_or(WINDOW_BYTES_BLIND, |link| WINDOW_BYTES_MIN << largest(link)))
    }

    /// Bytes of an object were read, from wherever.
    pub fn note_read(&mut self, object: CacheKey, range: &Range<u64>) {
        for hood in hoods(range) {
            if let Some(watched) = self.watched.get_mut(&(object, hood))
                && mark(&mut watched.read, pieces_in(hood, range))
            {
                self.doubt = self.doubt.saturating_sub(TRUST);
            }
        }
    }

    /// Bytes of an object had to be fetched for somebody who waits. May change the size.
    pub fn note_miss(&mut self, object: CacheKey, range: &Range<u64>, link: Option<LinkEstimate>) {
        debug_assert!(!range.is_empty(), "who misses wants something");
        let hood = range.start / WINDOW_BYTES_MAX;
        let pieces = pieces_in(hood, range);
        self.pieces_per_read += (pieces.len() as f64 - self.pieces_per_read) * MISS_WEIGHT;
        if let Entry::Vacant(vacant) = self.watched.entry((object, hood)) {
            let watched = vacant.insert(Watched { first: pieces.start, read: [0; WORDS] });
            mark(&mut watched.read, pieces);
            self.order.push_back((object, hood));
            self.doubt = (self.doubt + 1).min(DOUBT_MAX);
        }
        self.note_read(object, range);
        if self.order.len() > WATCHED_MAX {
            let oldest = self.order.pop_front().expect("there are many");
            let watched = self.watched.remove(&oldest).expect("what is in order is watched");
            self.learn(&watched);
            self.decide(link);
        }
        self.assert_invariant();
    }

    fn assert_invariant(&self) {
        debug_assert_eq!(self.watched.len(), self.order.len(), "what is watched is in order, once");
        debug_assert!(self.order.len() <= WATCHED_MAX, "what is watched is bounded");
        debug_assert!(
            self.size < SIZES && self.doubt <= DOUBT_MAX,
            "a size is one of those that are counted"
        );
        debug_assert!(self.seen <= SEEN_HALVE, "sums are halved before they tell of too long ago");
        debug_assert!(self.pieces_per_read >= 1.0, "a miss brings a piece");
    }

    fn learn(&mut self, watched: &Watched) {
        if self.seen >= SEEN_HALVE {
            self.seen /= 2;
            self.used.iter_mut().chain(&mut self.unused).for_each(|sum| *sum /= 2.0);
        }
        self.seen += 1;
        for size in 0..SIZES {
            let pieces = 1usize << size;
            let begin = watched.first & !(pieces - 1);
            let read = count(&watched.read, begin..begin + pieces);
            debug_assert!(read > 0, "the piece that missed was read");
            self.used[size] += (read - 1) as f64; // the first one is read by definition
            self.unused[size] += (pieces - read) as f64;
        }
    }

    /// Seconds that a size saves for every neighbourhood, on this link.
    fn gain(&self, size: usize, link: LinkEstimate) -> f64 {
        self.used[size] / self.pieces_per_read * link.latency_s
            - self.unused[size] * PIECE_BYTES as f64 / link.bytes_per_s
    }

    fn decide(&mut self, link: Option<LinkEstimate>) {
        let Some(link) = link.filter(|_| self.seen >= SEEN_MIN) else { return };
        let largest = largest(link);
        let mut best = 0;
        for size in 1..=largest {
            if self.gain(size, link) > self.gain(best, link) {
                best = size;
            }
        }
        let now = self.gain(self.size, link);
        if self.size > largest || now < 0.0 || self.gain(best, link) > now * BETTER {
            self.size = best;
        }
    }
}

/// The largest size that does not keep the link for too long.
fn largest(link: LinkEstimate) -> usize {
    let transfer_bytes = link.product_bytes() as f64 * TRANSFER_LATENCIES_MAX;
    (0..SIZES).rev().find(|s| (WINDOW_BYTES_MIN << s) as f64 <= transfer_bytes).unwrap_or(0)
}

/// The neighbourhoods that a range touches.
fn hoods(range: &Range<u64>) -> Range<u64> {
    range.start / WINDOW_BYTES_MAX..range.end.div_ceil(WINDOW_BYTES_MAX)
}

/// The pieces of one neighbourhood that a range touches, counted in it.
fn pieces_in(hood: u64, range: &Range<u64>) -> Range<usize> {
    let begin = hood * WINDOW_BYTES_MAX;
    let from = range.start.max(begin) - begin;
    let to = range.end.min(begin + WINDOW_BYTES_MAX) - begin;
    debug_assert!(from < to && to <= WINDOW_BYTES_MAX, "a range touches its neighbourhoods");
    from as usize / PIECE_BYTES..(to as usize).div_ceil(PIECE_BYTES)
}

/// Whether any of them was not marked before.
fn mark(bits: &mut [u64; WORDS], pieces: Range<usize>) -> bool {
    let mut is_new = false;
    for piece in pieces {
        let bit = 1 << (piece % 64);
        is_new |= bits[piece / 64] & bit == 0;
        bits[piece / 64] |= bit;
    }
    is_new
}

fn count(bits: &[u64; WORDS], pieces: Range<usize>) -> usize {
    pieces.filter(|piece| bits[piece / 64] >> (piece % 64) & 1 == 1).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOW: LinkEstimate = LinkEstimate { latency_s: 0.02, bytes_per_s: 1e6 };
    const FAST: LinkEstimate = LinkEstimate { latency_s: 0.02, bytes_per_s: 30e6 };

    /// Misses in many neighbourhoods, of which every `every`th piece in `bytes` around is read.
    fn after(window: &mut ReadWindow, link: LinkEstimate, bytes: u64, every: u64, from: u64) -> u64 {
        for hood in from..from + 600 {
            let (object, begin) = (CacheKey::new([1; 16], hood), 512 << 10);
            let piece = |n: u64| begin + n * 4096..begin + (n + 1) * 4096;
            window.note_miss(object, &piece(0), Some(link));
            for n in (0..bytes / 4096).step_by(every as usize) {
                window.note_read(object, &piece(n));
            }
        }
        window.bytes(Some(link))
    }

    /// Nothing needs to be learnt for a window not to take longer than eight latencies: the first ones do not either.
    #[test]
    fn the_first_windows_fit_the_link() {
        let window = ReadWindow::default();
        assert_eq!(window.bytes(Some(SLOW)), 128 << 10);
        assert_eq!(window.bytes(Some(FAST)), WINDOW_BYTES_FIRST);
    }

    /// Reads without neighbours make the window a single piece, on every link.
    #[test]
    fn lonely_reads_fetch_no_neighbours() {
        for link in [SLOW, FAST] {
            assert_eq!(after(&mut ReadWindow::default(), link, 4096, 1, 0), 4096);
        }
    }

    /// Where everything around is read, the window grows to what is read, but on a slow link no
    /// further than what transfers in some latencies.
    #[test]
    fn the_window_is_what_is_read_together() {
        assert_eq!(after(&mut ReadWindow::default(), SLOW, 64 << 10, 1, 0), 64 << 10);
        assert_eq!(after(&mut ReadWindow::default(), FAST, 512 << 10, 1, 0), 512 << 10);
        assert_eq!(after(&mut ReadWindow::default(), SLOW, 512 << 10, 1, 0), 128 << 10);
    }

    /// One piece of sixteen pays where bandwidth is plenty, and does not where it is scarce.
    #[test]
    fn what_pays_depends_on_the_link() {
        assert!(after(&mut ReadWindow::default(), FAST, 512 << 10, 16, 0) >= 256 << 10);
        assert_eq!(after(&mut ReadWindow::default(), SLOW, 512 << 10, 16, 0), 4096);
    }

    /// Reads that go elsewhere cost neighbours for some misses only, whatever was learnt before; some
    /// reads among neighbours bring the window back.
    #[test]
    fn doubt_comes_and_goes_within_some_misses() {
        let mut window = ReadWindow::default();
        assert_eq!(after(&mut window, FAST, 512 << 10, 1, 0), 512 << 10);
        let lonely = |window: &mut ReadWindow, number: u64| {
            let bytes = window.bytes(Some(FAST));
            window.note_miss(CacheKey::new([2; 16], number), &(0..4096), Some(FAST));
            bytes
        };
        let fetched: u64 = (0..100).map(|number| lonely(&mut window, number)).sum();
        assert!(fetched <= 4 << 20, "{fetched} bytes for 100 lonely misses");
        assert_eq!(window.bytes(Some(FAST)), 4096);
        for piece in 1..5 {
            window.note_read(CacheKey::new([2; 16], 99), &(piece * 4096..(piece + 1) * 4096));
        }
        assert_eq!(window.bytes(Some(FAST)), 512 << 10);
        for _ in 0..100 {
            lonely(&mut window, 200); // the same block again and again says nothing of neighbours
        }
        assert_eq!(window.bytes(Some(FAST)), 512 << 10);
    }

    /// Nobody waits for more than 64 KiB before the link is known.
    #[test]
    fn an_unknown_link_gets_small_windows() {
        let mut window = ReadWindow::default();
        assert_eq!(window.bytes(None), 64 << 10);
        assert_eq!(window.bytes(Some(FAST)), 256 << 10);
        after(&mut window, FAST, 4096, 1, 0);
        assert_eq!(window.bytes(None), 4096);
    }

    /// A window that shrank grows again when the reads change, and the other way round.
    #[test]
    fn the_window_follows_a_change() {
        let mut window = ReadWindow::default();
        assert_eq!(after(&mut window, FAST, 4096, 1, 0), 4096);
        assert_eq!(after(&mut window, FAST, 256 << 10, 1, 10_000), 256 << 10);
        assert_eq!(after(&mut window, FAST, 4096, 1, 20_000), 4096);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever is read on whatever link: the size keeps its bounds, and so does the memory.
        #[test]
        fn bounds_are_kept(
            reads in prop::collection::vec((0u64..8, 0u64..64 << 20, 1u64..4 << 20, any::<bool>()), 1..400),
            latency_us in 1u64..1_000_000, bytes_per_s in 1_000u64..10_000_000_000,
        ) {
            let link = LinkEstimate { latency_s: latency_us as f64 / 1e6, bytes_per_s: bytes_per_s as f64 };
            let mut window = ReadWindow::default();
            for (number, start, len, miss) in reads {
                let (object, range) = (CacheKey::new([1; 16], number), start..start + len);
                match miss {
                    true => window.note_miss(object, &range, Some(link)),
                    false => window.note_read(object, &range),
                }
                prop_assert!((WINDOW_BYTES_MIN..=WINDOW_BYTES_MAX).contains(&window.bytes(Some(FAST))));
                prop_assert!(window.bytes(Some(FAST)).is_power_of_two());
                prop_assert!(window.watched.len() <= WATCHED_MAX && window.order.len() == window.watched.len());
            }
        }
    }
}
