//! The rule of live reads (P4): each sector behaves as one register.
//!
//! A read shows an op that was invoked before the read ended and that nothing had surely replaced
//! before the read began. What a read shows is settled: everything that had ended before the read
//! began comes before it, and is not shown again.

use super::{Branch, Seen, shows};
use crate::stamp::OpId;

impl Branch {
    /// A read begins; returns its tick for [`Branch::end_read`].
    pub fn begin_read(&mut self, tick: u64) -> u64 {
        self.reads.insert(tick);
        tick
    }

    /// A read failed.
    pub fn drop_read(&mut self, invoked: u64) {
        self.reads.remove(&invoked);
    }

    /// A read that began at `invoked` ends at `tick` and shows `seen` from sector `first` on.
    /// The error says which promise is broken.
    pub fn end_read(&mut self, invoked: u64, first: u64, seen: &[Seen], tick: u64) -> Result<(), String> {
        let out =
            seen.iter().zip(first..).try_for_each(|(&seen, sector)| self.settle(sector, seen, invoked, tick));
        self.reads.remove(&invoked);
        out
    }

    fn settle(&mut self, sector: u64, seen: Seen, invoked: u64, tick: u64) -> Result<(), String> {
        match seen {
            Seen::Unreadable => return Ok(()),
            Seen::Garbage => return Err(format!("P6: sector {sector} reads as bytes that nobody wrote")),
            Seen::Zero | Seen::Op(_) => {}
        }
        let mut shown: Option<OpId> = None;
        let mut count = 0;
        for entry in &self.sectors[sector as usize] {
            let op = self.op(entry.op);
            if shows(op.kind, op.id, seen) && op.invoked < tick && entry.superseded_at > invoked {
                shown = Some(op.id);
                count += 1;
            }
        }
        let Some(shown) = shown else { return Err(self.stale(sector, seen, invoked)) };
        if count == 1 {
            self.supersede(sector, invoked, shown, tick, Some(shown));
        }
        Ok(())
    }

    fn stale(&self, sector: u64, seen: Seen, invoked: u64) -> String {
        let shown = match seen {
            Seen::Op(op) => self.describe(op),
            _ => "zeroes".into(),
        };
        let newest = self.sectors[sector as usize].iter().filter(|e| e.superseded_at > invoked).map(|e| e.op);
        let newest: Vec<String> = newest.map(|op| self.describe(op)).collect();
        format!(
            "P4: a read that began at tick {invoked} shows {shown} in sector {sector}; it should be one of: {}",
            newest.join(", ")
        )
    }
}
