//! What the link to the store bears, learnt from the GETs that pass: latency and bandwidth. Pure.
//!
//! Both are estimates for deciding how much to fetch, never for correctness. Latency is the time of
//! a GET beyond the transfer of its bytes, near the least that was seen; bandwidth is what GETs
//! under way at the same time brought together, near the most that was seen. Both forget slowly, so
//! that they follow a link that changes.

use std::time::Duration;

/// GETs from this size on say something of the bandwidth; below it latency is all there is.
const LARGE_BYTES: u64 = 64 << 10;
/// Busy time after which what arrived in it counts as one observation of the bandwidth.
const PERIOD: Duration = Duration::from_millis(100);
/// GETs before anything is said of the link: one may have met a pause of ours.
const GETS_MIN: u32 = 8;
/// Weight of an observation that is worse than the estimate: about thirty make it the new truth.
const FORGET: f64 = 0.03;

/// The estimate and what is under way.
#[derive(Debug, Default)]
pub(super) struct Link {
    latency_s: Option<f64>,
    bytes_per_s: Option<f64>,
    gets: u32,
    under_way: u32,
    /// Since when something has been under way without a pause, at most a period ago.
    busy_since: Duration,
    busy_bytes: u64,
    busy_gets: u64,
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
            (self.busy_since, self.busy_bytes, self.busy_gets) = (now, 0, 0);
        }
        self.under_way += 1;
    }

    /// A GET that began at `began` has ended; `bytes` is 0 for one that failed or was cancelled.
    pub fn end(&mut self, began: Duration, now: Duration, bytes: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        if bytes == 0 {
            return;
        }
        let took = now.saturating_sub(began).as_secs_f64().max(1e-6);
        self.gets = self.gets.saturating_add(1);
        self.busy_bytes += bytes;
        self.busy_gets += 1;
        if bytes >= LARGE_BYTES {
            let transfer = (took - self.latency_s.unwrap_or(0.0)).max(took / 8.0);
            let seen = bytes as f64 / transfer;
            // One of several has only its share of the link: together they are counted below.
            let alone = self.under_way == 0 && self.busy_gets == 1;
            if alone || self.bytes_per_s.is_none_or(|known| seen > known) {
                self.learn_bandwidth(seen);
            }
        }
        let transfer = self.bytes_per_s.map_or(0.0, |b| bytes as f64 / b);
        self.learn_latency((took - transfer).max(took / 8.0), bytes < LARGE_BYTES);
        let busy = now.saturating_sub(self.busy_since);
        if busy >= PERIOD {
            if self.busy_bytes / self.busy_gets >= LARGE_BYTES {
                self.learn_bandwidth(self.busy_bytes as f64 / busy.as_secs_f64());
            }
            (self.busy_since, self.busy_bytes, self.busy_gets) = (now, 0, 0);
        }
    }

    /// What is known, once both sides are.
    pub fn estimate(&self) -> Option<LinkEstimate> {
        (self.gets >= GETS_MIN).then_some(())?;
        Some(LinkEstimate { latency_s: self.latency_s?, bytes_per_s: self.bytes_per_s? })
    }

    fn learn_latency(&mut self, seen: f64, trusted: bool) {
        self.latency_s = Some(match self.latency_s {
            Some(known) if seen >= known && !trusted => known,
            Some(known) if seen >= known => known + (seen - known) * FORGET,
            _ => seen,
        });
    }

    fn learn_bandwidth(&mut self, seen: f64) {
        self.bytes_per_s = Some(match self.bytes_per_s {
            Some(known) if seen <= known => known - (known - seen) * FORGET,
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
