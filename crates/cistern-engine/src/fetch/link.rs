//! What the link to the store bears, learnt from the GETs that pass: latency and bandwidth. Pure.
//!
//! Both are estimates for deciding how much to fetch, never for correctness. Latency is the time of
//! a GET beyond the transfer of its bytes, near the least that was seen; bandwidth is what GETs
//! under way at the same time brought together, near the most that was seen. Both forget slowly, so
//! that they follow a link that changes. How long a GET took beside others says little of either: it may have
//! waited for them, and it may have come in a burst after them.

use std::time::Duration;

/// GETs from this size on say something of the bandwidth; below it latency is all there is.
const LARGE_BYTES: u64 = 64 << 10;
/// Busy time after which what arrived in it counts as one observation of the bandwidth: at least, and as a multiple
/// of the longest GET in it, of which part may have come before.
const PERIOD: Duration = Duration::from_millis(100);
const PERIOD_GETS: u32 = 4;
/// GETs before anything is said of the link: one may have met a pause of ours.
const GETS_MIN: u32 = 8;
/// GETs that took longer than this, as a multiple of what the link takes for each alone, had to share it.
const SHARED: f64 = 1.25;
/// Weight of an observation that is worse than the estimate: about thirty make it the new truth. One of several
/// periods' time counts as so many.
const FORGET: f64 = 0.03;

/// The estimate and what is under way.
#[derive(Debug, Default)]
pub(super) struct Link {
    latency_s: Option<f64>,
    /// What large GETs suggest, until a small one has shown it.
    latency_guess_s: Option<f64>,
    bytes_per_s: Option<f64>,
    gets: u32,
    under_way: u32,
    period: Period,
}

/// A time in which something has been under way without a pause, and the GETs that ended in it.
#[derive(Debug, Default)]
struct Period {
    since: Duration,
    bytes: u64,
    gets: u64,
    /// Together, and the longest of them.
    took_s: f64,
    longest: Duration,
    /// The least among small ones.
    latency_s: Option<f64>,
}

impl Period {
    fn begin(since: Duration) -> Period {
        Period { since, ..Period::default() }
    }
}

/// An estimate of the link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkEstimate {
    /// Seconds that a GET takes beyond the transfer of its bytes.
    pub latency_s: f64,
    pub bytes_per_s: f64,
}

impl LinkEstimate {
    /// Bytes that the link carries in one latency.
    pub fn product_bytes(&self) -> u64 {
        (self.latency_s * self.bytes_per_s) as u64
    }

    /// Bytes that it carries in a time.
    pub fn bytes_in(&self, time: Duration) -> u64 {
        (time.as_secs_f64() * self.bytes_per_s) as u64
    }

    /// How long a GET of so many bytes takes when nothing else is under way.
    pub fn time_of(&self, bytes: u64) -> Duration {
        self.latency().saturating_add(self.transfer_of(bytes))
    }

    pub fn latency(&self) -> Duration {
        Duration::try_from_secs_f64(self.latency_s).unwrap_or(Duration::MAX)
    }

    /// The part of that time that grows with the bytes.
    pub fn transfer_of(&self, bytes: u64) -> Duration {
        Duration::try_from_secs_f64(bytes as f64 / self.bytes_per_s).unwrap_or(Duration::MAX)
    }
}

impl Link {
    /// A GET begins.
    pub fn begin(&mut self, now: Duration) {
        if self.under_way == 0 {
            self.period = Period::begin(now);
        }
        self.under_way += 1;
    }

    /// A GET that began at `began` has ended; `bytes` is 0 for one that failed or was cancelled.
    pub fn end(&mut self, began: Duration, now: Duration, bytes: u64) {
        debug_assert!(self.under_way > 0, "a GET ends once");
        self.under_way = self.under_way.saturating_sub(1);
        if bytes == 0 {
            return;
        }
        let took = now.saturating_sub(began);
        let took_s = took.as_secs_f64().max(1e-6);
        self.gets = self.gets.saturating_add(1);
        let period = &mut self.period;
        period.bytes += bytes;
        period.gets += 1;
        period.took_s += took_s;
        period.longest = period.longest.max(took);
        let (busy, longest) = (now.saturating_sub(period.since), period.longest);
        let alone = self.under_way == 0 && period.gets == 1 && began == period.since;
        if bytes >= LARGE_BYTES {
            self.end_large(took_s, bytes, alone);
        } else {
            self.end_small(took_s, bytes, alone);
        }
        if busy >= PERIOD.max(longest.saturating_mul(PERIOD_GETS)) {
            self.end_period(busy.as_secs_f64());
            self.period = Period::begin(now);
        }
        self.assert_invariant();
    }

    /// What is divided by is something.
    fn assert_invariant(&self) {
        let is_some = |seen: f64| seen > 0.0 && seen.is_finite();
        debug_assert!(self.bytes_per_s.is_none_or(is_some), "a link bears something: {self:?}");
        debug_assert!(self.latency().is_none_or(is_some), "a GET takes some time: {self:?}");
    }

    fn end_large(&mut self, took_s: f64, bytes: u64, alone: bool) {
        if alone {
            let transfer = (took_s - self.latency().unwrap_or(0.0)).max(took_s / 2.0);
            self.learn_bandwidth(bytes as f64 / transfer, 1.0);
        } else {
            // One of several has only a share of the link, but that it has.
            let share = bytes as f64 / took_s;
            self.bytes_per_s = Some(self.bytes_per_s.map_or(share, |known| known.max(share)));
        }
        let seen = self.latency_seen(took_s, bytes);
        self.latency_guess_s = Some(self.latency_guess_s.map_or(seen, |known| known.min(seen)));
    }

    fn end_small(&mut self, took_s: f64, bytes: u64, alone: bool) {
        let seen = self.latency_seen(took_s, bytes);
        if alone || self.latency_s.is_none_or(|known| seen < known) {
            self.learn_latency(seen, 1.0);
        }
        self.period.latency_s = Some(self.period.latency_s.map_or(seen, |least| least.min(seen)));
    }

    fn end_period(&mut self, busy_s: f64) {
        let periods = busy_s / PERIOD.as_secs_f64();
        match self.period.latency_s {
            _ if self.period.bytes / self.period.gets >= LARGE_BYTES => {
                let seen = self.period.bytes as f64 / busy_s;
                // Where nobody waited for others, the link may have more than it was asked for.
                if self.was_shared() || self.bytes_per_s.is_none_or(|known| seen > known) {
                    self.learn_bandwidth(seen, periods);
                }
            }
            Some(least) => self.learn_latency(least, periods),
            None => {}
        }
    }

    /// Whether the GETs of the period took longer than they would have alone.
    fn was_shared(&self) -> bool {
        let transfer = self.bytes_per_s.map_or(0.0, |b| self.period.bytes as f64 / b);
        let alone = self.latency().unwrap_or(0.0) * self.period.gets as f64 + transfer;
        self.period.took_s > alone * SHARED
    }

    fn latency_seen(&self, took_s: f64, bytes: u64) -> f64 {
        let transfer = self.bytes_per_s.map_or(0.0, |b| bytes as f64 / b);
        (took_s - transfer).max(took_s / 8.0)
    }

    /// What is known, once both sides are.
    pub fn estimate(&self) -> Option<LinkEstimate> {
        (self.gets >= GETS_MIN).then_some(())?;
        Some(LinkEstimate { latency_s: self.latency()?, bytes_per_s: self.bytes_per_s? })
    }

    fn latency(&self) -> Option<f64> {
        self.latency_s.or(self.latency_guess_s)
    }

    /// Seen for so many periods.
    fn learn_latency(&mut self, seen: f64, periods: f64) {
        self.latency_s = Some(match self.latency_s {
            Some(known) if seen >= known => seen + (known - seen) * (1.0 - FORGET).powf(periods),
            _ => seen,
        });
    }

    /// Seen for so many periods.
    fn learn_bandwidth(&mut self, seen: f64, periods: f64) {
        self.bytes_per_s = Some(match self.bytes_per_s {
            Some(known) if seen <= known => seen + (known - seen) * (1.0 - FORGET).powf(periods),
            _ => seen,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// Small and large GETs, one after the other, show a link of 20 ms and 1 MB/s as it is.
    #[test]
    fn a_slow_link_is_recognised() {
        let mut link = Link::default();
        let mut now = ms(0);
        for n in 0..40 {
            let bytes = if n % 2 == 0 { 4096 } else { 256 << 10 };
            let took = ms(20) + Duration::from_micros(bytes);
            link.begin(now);
            link.end(now, now + took, bytes);
            now += took;
        }
        let found = link.estimate().expect("both were seen");
        assert!((0.018..0.026).contains(&found.latency_s), "{found:?}");
        assert!((0.8e6..1.3e6).contains(&found.bytes_per_s), "{found:?}");
    }

    /// Many GETs at once are counted together: each of them alone looks slow.
    #[test]
    fn parallel_gets_show_the_whole_link() {
        let mut link = Link::default();
        for n in 0..400u64 {
            link.begin(ms(n * 10));
            if n >= 8 {
                link.end(ms((n - 8) * 10), ms(n * 10), 1 << 20); // 80 ms each, one every 10 ms
            }
        }
        let found = link.estimate().expect("seen");
        assert!((90e6..140e6).contains(&found.bytes_per_s), "{found:?}");
    }

    /// A link of 20 ms and 30 MB/s that carries GETs one behind the other, always eight of them at once and of all
    /// sizes, shows itself as about that: neither is what came in a burst taken for its rate, nor the wait for others
    /// for its latency.
    #[test]
    fn a_queue_does_not_hide_the_link() {
        const BYTES_PER_S: u64 = 30_000_000;
        let mut link = Link::default();
        let sizes = (0..600u64).map(|n| match n % 7 {
            0 | 3 => 8 << 10,
            1 | 2 => 120 << 10,
            _ => 1 << 20,
        });
        let (mut free_at, mut under_way) = (ms(0), std::collections::VecDeque::new());
        for (n, bytes) in sizes.enumerate() {
            let began = match under_way.len() < 8 {
                true => ms(0),
                false => {
                    let (began, ended, bytes) = under_way.pop_front().expect("eight");
                    link.end(began, ended, bytes);
                    ended
                }
            };
            link.begin(began);
            free_at = free_at.max(began + ms(20)) + Duration::from_micros(bytes * 1_000_000 / BYTES_PER_S);
            under_way.push_back((began, free_at, bytes));
            if n > 100 {
                let found = link.estimate().expect("seen");
                assert!((24e6..40e6).contains(&found.bytes_per_s), "{n}: {found:?}");
                assert!((0.015..0.04).contains(&found.latency_s), "{n}: {found:?}");
            }
        }
    }

    /// Who asks a link for less than it bears does not make it narrow.
    #[test]
    fn a_link_that_is_not_full_keeps_its_width() {
        let mut link = Link::default();
        for n in 0..20 {
            link.begin(ms(n * 100));
            link.end(ms(n * 100), ms(n * 100 + 55), 1 << 20); // 20 ms and 30 MB/s
            link.begin(ms(n * 100 + 60));
            link.end(ms(n * 100 + 60), ms(n * 100 + 80), 4096);
        }
        let known = link.estimate().expect("seen");
        assert!((25e6..35e6).contains(&known.bytes_per_s), "{known:?}");
        for n in 200..2000 {
            link.begin(ms(n * 12));
            if n > 201 {
                link.end(ms((n - 2) * 12), ms(n * 12), 100_000); // two at once, 8 MB/s
            }
        }
        assert!(link.estimate().expect("seen").bytes_per_s > 25e6, "{:?}", link.estimate());
    }

    /// A link that becomes ten times slower is noticed.
    #[test]
    fn the_estimate_follows_the_link() {
        let mut link = Link::default();
        let mut now = ms(0);
        for n in 0..400u64 {
            let took = ms(if n < 100 { 10 } else { 100 });
            link.begin(now);
            link.end(now, now + took, 1 << 20);
            now += took;
        }
        let found = link.estimate().expect("seen");
        assert!(found.bytes_per_s < 20e6, "{found:?}");
    }
}
