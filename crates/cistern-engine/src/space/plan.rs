//! What collecting garbage would take, by the counts alone. Pure.

use super::{
    segments::{Segments, Totals},
    victims::{Victim, sorted_by},
};
use crate::{
    price::{self, Tariff},
    units::Seq,
};

/// What collecting down to a ratio of stored to live bytes takes.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    pub before: Totals,
    /// Nothing in them is live.
    pub dead: Totals,
    /// The best first.
    pub victims: Vec<Victim>,
    /// When all of these are gone, and what was live in the victims is stored again.
    pub after_bytes: u64,
}

/// The plan of a cleaner that knows the log up to `newest`.
pub fn plan(segments: &Segments, newest: Seq, ratio: f64) -> Plan {
    let before = segments.totals();
    let dead = segments.dead().filter_map(|seq| segments.get(seq)).fold(Totals::default(), Totals::with);
    let scored = segments
        .iter()
        .filter_map(|(seq, counts)| Some((sorted_by(&counts, newest)?, Victim { seq, counts })));
    let mut scored: Vec<(price::Candidate, Victim)> = scored.collect();
    // What is asked for is done at any price.
    scored.sort_unstable_by(|a, b| a.0.before(&b.0, &Tariff::default()).then(a.1.seq.cmp(&b.1.seq)));
    let (mut victims, mut after_bytes) = (Vec::new(), before.stored_bytes - dead.stored_bytes);
    for (_, victim) in scored {
        if after_bytes as f64 <= ratio * before.live_bytes as f64 {
            break;
        }
        after_bytes -= victim.counts.stored_bytes - victim.counts.live_bytes();
        victims.push(victim);
    }
    debug_assert!(after_bytes >= before.live_bytes, "what is live stays");
    Plan { before, dead, victims, after_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::usage::{Counts, SegmentUsage, UsageChange};

    /// A plan takes the dead for nothing and as many of the others as it takes to come to the ratio, the best first.
    #[test]
    fn a_plan_goes_down_to_the_ratio() {
        let mut segments = Segments::default();
        for (seq, dead_blocks) in [(1, 50), (2, 100), (3, 90), (4, 0)] {
            let counts = Counts { stored_bytes: 100, written_blocks: 100, dead_blocks, touched: Seq(1) };
            segments.apply(&SegmentUsage { seq: Seq(seq), change: UsageChange::Added(counts) });
        }
        let to = |ratio| plan(&segments, Seq(1000), ratio);
        let Plan { before, dead, victims, after_bytes } = to(1.25);
        assert_eq!((before.stored_bytes, before.live_bytes, dead.stored_bytes), (400, 160, 100));
        assert_eq!(victims.iter().map(|victim| victim.seq.0).collect::<Vec<_>>(), [3, 1]);
        assert_eq!(after_bytes, 160);
        assert!(to(2.5).victims.is_empty(), "it holds without them");
    }
}
