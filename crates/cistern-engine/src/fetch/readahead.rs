//! Which blocks will be read next: recognises sequential and strided streams in the reads of a
//! volume, and says what to fetch ahead of them. Pure.
//!
//! Sees all reads of all connections, so several streams at once, and requests of one stream in any
//! order. A stream is believed after it has gone on where it ended; random reads never start one.
//! How far ahead: two windows at first, twice as far whenever a reader caught up with a prefetch,
//! half as far when prefetched bytes went unused. Bounded: `STREAMS_MAX` streams with
//! `EARLY_MAX` requests each, and `RECENT_MAX` reads that belong to none.

use std::{collections::VecDeque, ops::Range};

/// Streams followed at once; the one that rested longest makes room.
const STREAMS_MAX: usize = 32;
/// Requests of one stream that came before an earlier one did: the queue depth of a client.
const EARLY_MAX: usize = 32;
/// Reads without a stream that are remembered to find strides.
const RECENT_MAX: usize = 32;
/// Of them, how many of the newest may be the one before in a stride.
const RECENT_TRIED: usize = 8;
/// Reads at the same distance, one after the other, that make a stride.
const STRIDE_READS: usize = 5;
/// The largest stride, in bytes.
const STRIDE_BYTES_MAX: u64 = 16 << 20;
/// A request is early, and not another stream, up to so many of its lengths beyond the front.
const EARLY_LENGTHS: u64 = 64;
/// Times that a stream went on where it ended before it is believed.
const SEQUENTIAL_READS_MIN: u32 = 2;
/// Once is enough when it has so many bytes: large requests are rarely random, and dear to miss.
const SEQUENTIAL_BYTES_MIN: u64 = 512 << 10;
/// How far ahead at first: two windows of 256 KiB.
const DEPTH_BYTES_MIN: u64 = 512 << 10;
/// Further ahead than this goes only a stream that came so far.
const DEPTH_BYTES_UNPROVEN: u64 = 16 << 20;
/// Accesses of a stride fetched ahead at first, and at most.
const STRIDE_AHEAD_MIN: u64 = 4;
const STRIDE_AHEAD_MAX: u64 = 64;
const _: () = assert!(STRIDE_AHEAD_MIN <= STRIDE_AHEAD_MAX && DEPTH_BYTES_MIN <= DEPTH_BYTES_UNPROVEN);
const _: () = assert!(RECENT_TRIED <= RECENT_MAX && STRIDE_READS <= RECENT_MAX, "strides can be found");

/// What became of earlier prefetches since the read before, and how far they may go.
#[derive(Clone, Copy, Debug)]
pub struct Feedback {
    /// A reader waited for a prefetch under way.
    pub waited: bool,
    /// Prefetched bytes were dropped unread.
    pub wasted: bool,
    /// The furthest ahead that pays on this link, in bytes.
    pub depth_bytes_max: u64,
}

#[derive(Debug)]
struct Stream {
    pattern: Pattern,
    /// When it went on, by count of reads.
    last: u64,
}

#[derive(Debug)]
enum Pattern {
    Sequential {
        /// Everything up to here, from where it began, was asked for.
        front: u64,
        /// Requests beyond the front, not overlapping it.
        early: Vec<Range<u64>>,
        reads: u32,
        bytes: u64,
        /// Up to here it was fetched ahead.
        ahead: u64,
    },
    Strided {
        /// Where the next read is expected.
        next: u64,
        stride: i64,
        len: u64,
        /// Accesses from `next` on that are fetched already.
        ahead: u64,
    },
}

/// Follows the reads of one volume.
#[derive(Debug, Default)]
pub struct ReadAhead {
    streams: Vec<Stream>,
    recent: VecDeque<Range<u64>>,
    clock: u64,
    /// How far ahead now, in bytes; shared, since all streams share the link.
    depth_bytes: u64,
    stride_ahead: u64,
}

impl ReadAhead {
    /// A client reads `range` (bytes, not empty) of a volume of `end` bytes. What to fetch ahead now: a few
    /// disjoint ranges, mostly none.
    pub fn note(&mut self, range: Range<u64>, end: u64, feedback: Feedback) -> Vec<Range<u64>> {
        debug_assert!(!range.is_empty(), "a read reads something");
        self.clock += 1;
        self.adapt(feedback);
        let (depth, accesses) = (self.depth_bytes, self.stride_ahead);
        let clock = self.clock;
        for stream in &mut self.streams {
            let went_on = match &mut stream.pattern {
                Pattern::Sequential { front, early, reads, bytes, .. } => {
                    sequential(front, early, reads, bytes, &range)
                }
                Pattern::Strided { next, stride, len, ahead } => strided(next, *stride, *len, ahead, &range),
            };
            if went_on {
                stream.last = clock;
                return stream.pattern.plan(end, depth, accesses);
            }
        }
        if let Some(pattern) = self.find_stride(&range) {
            self.recent.clear();
            return self.start(pattern).plan(end, depth, accesses);
        }
        self.remember(range.clone());
        let (front, bytes) = (range.end, range.end - range.start);
        self.start(Pattern::Sequential { front, early: Vec::new(), reads: 0, bytes, ahead: 0 });
        Vec::new()
    }

    fn adapt(&mut self, feedback: Feedback) {
        let most = feedback.depth_bytes_max.max(DEPTH_BYTES_MIN);
        let (depth, accesses) = (self.depth_bytes, self.stride_ahead);
        let (depth, accesses) = match (feedback.wasted, feedback.waited) {
            (true, _) => (depth / 2, accesses / 2),
            (false, true) => (depth * 2, accesses * 2),
            (false, false) => (depth, accesses),
        };
        self.depth_bytes = depth.clamp(DEPTH_BYTES_MIN, most);
        self.stride_ahead = accesses.clamp(STRIDE_AHEAD_MIN, STRIDE_AHEAD_MAX);
    }

    fn start(&mut self, pattern: Pattern) -> &mut Pattern {
        let stream = Stream { pattern, last: self.clock };
        let at = match self.streams.len() < STREAMS_MAX {
            true => {
                self.streams.push(stream);
                self.streams.len() - 1
            }
            false => {
                let rested = (0..STREAMS_MAX).min_by_key(|i| self.streams[*i].last).unwrap_or(0);
                self.streams[rested] = stream;
                rested
            }
        };
        &mut self.streams[at].pattern
    }

    fn remember(&mut self, range: Range<u64>) {
        if self.recent.len() == RECENT_MAX {
            self.recent.pop_back();
        }
        self.recent.push_front(range);
    }

    /// Whether `range` and reads before it lie at equal distances, in order of time.
    fn find_stride(&self, range: &Range<u64>) -> Option<Pattern> {
        let len = range.end - range.start;
        for (age, before) in self.recent.iter().enumerate().take(RECENT_TRIED) {
            let stride = range.start as i64 - before.start as i64;
            let fits = before.end - before.start == len
                && stride != len as i64
                && (len..=STRIDE_BYTES_MAX).contains(&stride.unsigned_abs());
            if !fits {
                continue;
            }
            let mut found = 2;
            let mut want = before.start as i64 - stride;
            for older in self.recent.iter().skip(age + 1) {
                if found == STRIDE_READS {
                    break;
                }
                if older.start as i64 == want && older.end - older.start == len {
                    (found, want) = (found + 1, want - stride);
                }
            }
            if found == STRIDE_READS {
                let next = u64::try_from(range.start as i64 + stride).ok()?;
                return Some(Pattern::Strided { next, stride, len, ahead: 0 });
            }
        }
        None
    }
}

/// Whether a request continues a sequential stream; moves its front.
fn sequential(
    front: &mut u64,
    early: &mut Vec<Range<u64>>,
    reads: &mut u32,
    bytes: &mut u64,
    range: &Range<u64>,
) -> bool {
    let len = range.end - range.start;
    if range.start > *front {
        // Only a stream that is believed has early requests: else any read near it would be one.
        let believed = *reads > 0 && range.start - *front <= len.saturating_mul(EARLY_LENGTHS);
        if believed {
            early.push(range.clone());
            if early.len() > EARLY_MAX {
                // What is missing does not come: the reader skips it.
                *front = early.iter().map(|r| r.start).min().unwrap_or(*front);
                absorb(front, early);
                debug_assert!(early.len() <= EARLY_MAX, "early requests are bounded");
            }
        }
        return believed;
    }
    if range.start < *front {
        return false;
    }
    *front = range.end;
    (*reads, *bytes) = (reads.saturating_add(1), bytes.saturating_add(len));
    absorb(front, early);
    true
}

/// Moves the front over the early requests that it reaches.
fn absorb(front: &mut u64, early: &mut Vec<Range<u64>>) {
    while let Some(at) = early.iter().position(|r| r.start <= *front) {
        *front = (*front).max(early.swap_remove(at).end);
    }
    debug_assert!(early.iter().all(|r| r.start > *front), "what is early lies beyond the front");
}

/// Whether a request continues a strided stream; moves it.
fn strided(next: &mut u64, stride: i64, len: u64, ahead: &mut u64, range: &Range<u64>) -> bool {
    if range.end - range.start != len {
        return false;
    }
    // Requests of one stride may overtake each other a little.
    let step = (range.start as i64 - *next as i64).checked_div(stride).unwrap_or(-1);
    let on_grid = *next as i64 + step.wrapping_mul(stride) == range.start as i64;
    if !on_grid || !(0..EARLY_MAX as i64).contains(&step) {
        return false;
    }
    *ahead = ahead.saturating_sub(step as u64 + 1);
    *next = (range.start as i64).saturating_add(stride).max(0) as u64;
    true
}

impl Pattern {
    /// What to fetch now. Waits until half of what is ahead was read, so that fetches stay large.
    fn plan(&mut self, end: u64, depth: u64, accesses: u64) -> Vec<Range<u64>> {
        match self {
            Pattern::Sequential { front, early, reads, bytes, ahead } => {
                if *reads < SEQUENTIAL_READS_MIN && (*reads == 0 || *bytes < SEQUENTIAL_BYTES_MIN) {
                    return Vec::new();
                }
                let depth = depth.min(DEPTH_BYTES_UNPROVEN.max(*bytes));
                let asked = early.iter().map(|r| r.end).fold(*front, u64::max);
                let from = (*ahead).max(asked);
                let to = asked.saturating_add(depth).min(end);
                if to <= from || (from - asked > depth / 2 && to < end) {
                    return Vec::new();
                }
                *ahead = to;
                std::iter::once(from..to).collect()
            }
            Pattern::Strided { next, stride, len, ahead } => {
                if *ahead > accesses / 2 {
                    return Vec::new();
                }
                let place = |n: u64| {
                    let start = *next as i64 + i64::try_from(n).ok()?.checked_mul(*stride)?;
                    let start = u64::try_from(start).ok()?;
                    let stop = start.checked_add(*len)?;
                    (stop <= end).then_some(start..stop)
                };
                let wanted = (accesses).min((depth / *len).max(1));
                let plan = (*ahead..wanted).map_while(place).collect();
                *ahead = wanted.max(*ahead);
                plan
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const END: u64 = 1 << 40;
    const CALM: Feedback = Feedback { waited: false, wasted: false, depth_bytes_max: 16 << 20 };
    const WAITED: Feedback = Feedback { waited: true, ..CALM };

    /// A sequential reader finds everything from its third request on fetched ahead of it, once.
    #[test]
    fn a_sequential_stream_is_ahead() {
        for len in [4096u64, 128 << 10, 1 << 20] {
            let mut ahead = ReadAhead::default();
            let mut fetched = 0..0;
            for n in 0..200 {
                let range = n * len..(n + 1) * len;
                if n > 2 {
                    assert!(fetched.start <= range.start, "{n} of {len}");
                }
                for plan in ahead.note(range, END, CALM) {
                    assert!(fetched.end == plan.start || fetched.is_empty() || plan.start > fetched.end);
                    fetched = if fetched.is_empty() { plan } else { fetched.start..plan.end };
                }
            }
            assert!(fetched.end >= 200 * len + DEPTH_BYTES_MIN / 2);
        }
    }

    /// Many streams at once are all followed, whatever the order of their requests.
    #[test]
    fn streams_do_not_disturb_each_other() {
        let mut ahead = ReadAhead::default();
        let mut plans = [0; 16];
        for n in 0..50u64 {
            for stream in 0..16u64 {
                let stream = (stream * 7 + n) % 16;
                let start = (stream << 32) + n * 65_536;
                for plan in ahead.note(start..start + 65_536, END, CALM) {
                    assert_eq!(plan.start >> 32, stream);
                    plans[stream as usize] += 1;
                }
            }
        }
        assert!(plans.iter().all(|n| *n >= 10), "{plans:?}");
    }

    /// Requests of one stream that overtake each other are one stream, and nothing is fetched twice.
    #[test]
    fn a_deep_queue_is_one_stream() {
        let mut ahead = ReadAhead::default();
        let len = 1 << 20;
        let mut fetched = 0;
        for group in 0..40u64 {
            for n in [1, 0, 3, 2, 7, 4, 6, 5] {
                let n = group * 8 + n;
                for plan in ahead.note(n * len..(n + 1) * len, END, WAITED) {
                    assert!(plan.start >= fetched, "{plan:?} again");
                    fetched = plan.end;
                }
            }
        }
        assert!(fetched > 320 * len);
        assert!(ahead.streams.len() <= 3, "{} streams", ahead.streams.len());
    }

    /// The depth grows while readers wait, to the bound, and falls when prefetches are wasted.
    #[test]
    fn the_depth_follows_what_pays() {
        let mut ahead = ReadAhead::default();
        for n in 0..20u64 {
            ahead.note(n * 65_536..(n + 1) * 65_536, END, WAITED);
        }
        assert_eq!(ahead.depth_bytes, 16 << 20);
        for n in 20..30u64 {
            let wasted = Feedback { wasted: true, ..WAITED };
            ahead.note(n * 65_536..(n + 1) * 65_536, END, wasted);
        }
        assert_eq!(ahead.depth_bytes, DEPTH_BYTES_MIN);
    }

    /// However much pays, beyond 16 MiB a stream is fetched no further ahead than it has come.
    #[test]
    fn a_stream_is_proven_by_what_it_read() {
        let mut ahead = ReadAhead::default();
        let (mut fetched, mut furthest) = (0, 0);
        for n in 0..200u64 {
            let end = (n + 1) << 20;
            let feedback = Feedback { depth_bytes_max: 64 << 20, ..WAITED };
            for plan in ahead.note(n << 20..end, END, feedback) {
                fetched = plan.end;
            }
            assert!(fetched.saturating_sub(end) <= end.max(16 << 20), "{fetched} at {end}");
            furthest = furthest.max(fetched.saturating_sub(end));
        }
        assert_eq!(furthest, 64 << 20);
    }

    /// A stride in either direction, also backwards block by block, is followed.
    #[test]
    fn strides_are_followed() {
        for stride in [1 << 20, -(1 << 20), 20_480, -4096, 8192] {
            let mut ahead = ReadAhead::default();
            let mut fetched = std::collections::BTreeSet::new();
            for n in 0..100i64 {
                let start = ((1i64 << 30) + n * stride) as u64;
                if n >= 8 {
                    assert!(fetched.contains(&start), "{n} of {stride}");
                }
                fetched.extend(ahead.note(start..start + 4096, END, CALM).iter().map(|r| r.start));
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Random reads start no prefetch.
        #[test]
        fn random_reads_start_nothing(seed: u64, len_log in 12u32..17) {
            let mut ahead = ReadAhead::default();
            let (len, mut x) = (1u64 << len_log, seed | 1);
            for _ in 0..2000 {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let start = (x >> 20) % (1 << 34) / len * len;
                prop_assert!(ahead.note(start..start + len, END, CALM).is_empty());
            }
        }

        /// Whatever is read: plans lie in the volume, beyond what was asked for last, are no larger
        /// than the bound, and memory is bounded.
        #[test]
        fn plans_are_bounded(
            reads in prop::collection::vec((0u64..1 << 24, 1u64..1 << 20, any::<bool>(), any::<bool>()), 1..300),
            end in 1u64..1 << 24, depth_bytes_max in 0u64..1 << 26,
        ) {
            let mut ahead = ReadAhead::default();
            let mut last = 0;
            for (start, len, go_on, waited) in reads {
                let start = if go_on { last } else { start };
                if start >= end {
                    continue;
                }
                let range = start..(start + len).min(end);
                last = range.end;
                let feedback = Feedback { waited, wasted: false, depth_bytes_max };
                let plans = ahead.note(range, end, feedback);
                let sum: u64 = plans.iter().map(|p| p.end - p.start).sum();
                prop_assert!(plans.iter().all(|p| p.start < p.end && p.end <= end));
                prop_assert!(sum <= depth_bytes_max.max(DEPTH_BYTES_MIN).max(STRIDE_AHEAD_MAX << 20));
                prop_assert!(ahead.streams.len() <= STREAMS_MAX && ahead.recent.len() <= RECENT_MAX);
                for stream in &ahead.streams {
                    if let Pattern::Sequential { early, .. } = &stream.pattern {
                        prop_assert!(early.len() <= EARLY_MAX);
                    }
                }
            }
        }
    }
}
