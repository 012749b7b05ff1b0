//! How much the background may have under way beside reads: pieces small enough to hold up no read for long, and as many
//! as leave the link idle for a part of the time. Pure.
//!
//! A piece spends most of its time waiting for its first byte: one at a time uses a small part of a link that is far away.
//! Pieces that begin when others end follow each other at a distance, and as long as fewer are under way than the link
//! holds, none waits for another, and a read finds one of them in front of it at most. How many that is shows in how much
//! faster a large body comes than a piece: at the rate of a link that is near a piece comes as fast, and there is one.

use std::time::Duration;

/// What one piece may hold up a read by: the time that it takes on the link.
const DELAY: Duration = Duration::from_millis(5);
/// Bounds of a piece, whatever the link: less would be mostly requests, and more is no faster.
const PIECE_BYTES: (u64, u64) = (128 << 10, 1 << 20);
/// What the pieces under way may have together, of the rate of one large body: that has waited for its first byte too, so
/// it is less of the link.
const SHARE: f64 = 0.75;
/// With bodies from here on, most of the time is their bytes on the link.
const LARGE_BYTES_MIN: u64 = 1 << 20;
/// Smaller bodies are not like a piece.
const SMALL_BYTES_MIN: u64 = 64 << 10;
/// Where no large body came for so long, one piece is large: nothing else shows what the link gives.
const PROBE: Duration = Duration::from_secs(60);
/// But not where a piece comes more slowly: the link may be so thin that a large one would hold up reads for long.
const PROBE_BYTES_PER_S_MIN: u64 = 2_000_000;

/// The greatest value of a peak is that of this and the previous period.
const PEAK_PERIOD: Duration = Duration::from_secs(300);

/// The greatest value of this and the previous period.
#[derive(Debug, Default)]
struct Peak {
    now: Option<u64>,
    before: Option<u64>,
    period: u64,
}

impl Peak {
    fn note(&mut self, now: Duration, value: u64) {
        let period = now.as_secs() / PEAK_PERIOD.as_secs();
        if period != self.period {
            (self.before, self.now, self.period) = (self.now, None, period);
        }
        self.now = self.now.max(Some(value));
    }

    fn get(&self) -> Option<u64> {
        self.now.max(self.before)
    }
}

/// What single downloads of a place had lately, in bytes per second.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    /// Of bodies like a piece.
    small: Peak,
    large: Peak,
    /// When the last large body was asked for or came.
    probed_at: Option<Duration>,
}

impl Pieces {
    /// A download that took so long came now.
    pub(super) fn answered(&mut self, now: Duration, latency: Duration, bytes: u64) {
        let per_s = bytes * 1_000_000 / (latency.as_micros() as u64).max(1);
        if bytes >= LARGE_BYTES_MIN {
            self.large.note(now, per_s);
            self.probed_at = Some(now);
        } else if (SMALL_BYTES_MIN..=self.piece_bytes()).contains(&bytes) {
            self.small.note(now, per_s);
        }
    }

    /// The greatest rate of any.
    pub(super) fn fastest(&self) -> u64 {
        self.small.get().max(self.large.get()).unwrap_or(0)
    }

    /// The next piece of a request of so many bytes, beside reads.
    pub(super) fn next(&mut self, now: Duration, bytes: u64) -> u64 {
        let is_due = self.probed_at.is_none_or(|at| now >= at + PROBE);
        let is_fast = self.small.get().is_some_and(|per_s| per_s >= PROBE_BYTES_PER_S_MIN);
        if is_due && is_fast && bytes >= LARGE_BYTES_MIN {
            self.probed_at = Some(now);
            return LARGE_BYTES_MIN;
        }
        self.piece_bytes()
    }

    /// What may be under way when another piece begins.
    pub(super) fn under_way_max(&self) -> u64 {
        let piece = self.piece_bytes();
        match (self.large.get(), self.small.get()) {
            (Some(large), Some(small)) => {
                let pieces = SHARE * large as f64 / small.max(1) as f64;
                (piece as f64 * pieces.max(1.0)) as u64
            }
            _ => piece,
        }
    }

    fn piece_bytes(&self) -> u64 {
        bytes_in(self.fastest(), DELAY).clamp(PIECE_BYTES.0, PIECE_BYTES.1)
    }
}

pub(super) fn bytes_in(per_s: u64, time: Duration) -> u64 {
    (per_s / 1000).saturating_mul(time.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(1);
    const PIECE: u64 = 128 << 10;

    /// What is known after a piece and a large body over a link that carries one after the other.
    fn after(wait_ms: u64, bytes_per_s: u64) -> Pieces {
        let mut pieces = Pieces::default();
        for bytes in [PIECE, LARGE_BYTES_MIN] {
            let latency =
                Duration::from_millis(wait_ms) + Duration::from_micros(bytes * 1_000_000 / bytes_per_s);
            pieces.answered(NOW, latency, bytes);
        }
        pieces
    }

    fn at_once(pieces: &Pieces) -> u64 {
        pieces.under_way_max().div_ceil(pieces.piece_bytes())
    }

    /// Of a link that holds many pieces they take a part; of one that is filled by one, or of which nothing is known, there
    /// is one, and none takes longer than is said.
    #[test]
    fn as_many_as_a_part_of_the_link() {
        for (wait_ms, rate, expected) in
            [(20, 30_000_000, 3), (20, 1_000_000, 1), (2, 6_000_000, 1), (0, 500_000_000, 1)]
        {
            let pieces = after(wait_ms, rate);
            assert_eq!(at_once(&pieces), expected, "{wait_ms} ms, {rate}");
            let bytes = at_once(&pieces) * pieces.piece_bytes();
            let held = (rate as f64 * wait_ms as f64 / 1e3) as u64 + pieces.piece_bytes();
            assert!(expected == 1 || bytes < held, "{bytes} under way, the link holds {held}");
        }
        assert_eq!((Pieces::default().under_way_max(), Pieces::default().piece_bytes()), (PIECE, PIECE));
        assert_eq!(after(20, 30_000_000).piece_bytes(), PIECE, "of 19 MB/s");
        assert!(after(20, 1_000_000_000).piece_bytes() > PIECE);
    }

    /// What is neither like a piece nor large says nothing about either.
    #[test]
    fn bodies_in_between_do_not_count() {
        let mut pieces = after(20, 30_000_000);
        let before = pieces.under_way_max();
        pieces.answered(NOW, Duration::from_millis(50), 900 << 10);
        pieces.answered(NOW, Duration::from_millis(1), 4 << 10);
        assert_eq!(pieces.under_way_max(), before);
    }

    /// Once a minute one piece is large, unless there was a large body anyway, or there are fewer bytes, or the link may be
    /// thin.
    #[test]
    fn one_piece_a_minute_is_large() {
        let mut pieces = Pieces::default();
        assert_eq!(pieces.next(NOW, 4 << 20), PIECE, "nothing is known of the link");
        pieces.answered(NOW, Duration::from_millis(24), PIECE);
        assert_eq!(pieces.next(NOW, LARGE_BYTES_MIN - 1), PIECE);
        assert_eq!(pieces.next(NOW, 4 << 20), LARGE_BYTES_MIN);
        assert_eq!(pieces.next(NOW + PROBE / 2, 4 << 20), PIECE);
        assert_eq!(pieces.next(NOW + PROBE, 4 << 20), LARGE_BYTES_MIN);
        pieces.answered(NOW + PROBE * 2, Duration::from_millis(300), 2 << 20);
        assert_ne!(pieces.next(NOW + PROBE * 2, 4 << 20), LARGE_BYTES_MIN);
        let mut thin = Pieces::default();
        thin.answered(NOW, Duration::from_millis(150), PIECE);
        assert_eq!(thin.next(NOW, 4 << 20), PIECE);
    }
}
