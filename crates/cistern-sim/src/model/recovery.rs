//! The rule of recovered states (P1, P2, P3): what is found is a prefix of the history that holds
//! everything promised.
//!
//! The **cut** is the greatest tick such that everything acknowledged before it must be there: at
//! first what was promised; then each visible op pulls it up to its own invocation. Where zeroes are
//! seen and several ops may have written them, the oldest acceptable one is chosen, so the cut is
//! the least one that explains the state; if that one fails, no prefix explains it.

use super::{Branch, Entry, Forced, Kind, NEVER, Op, Seen, shows};
use crate::{model::BLOCK_SECTORS, stamp::OpId};

/// Which promise applies to what was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The journal was at hand: P1 and P3.
    Journal,
    /// Only the store was: P2, and P1 in writethrough.
    Store,
}

/// A whole volume as it was found.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Size in sectors.
    pub size: u64,
    /// One value per sector.
    pub sectors: Vec<Seen>,
}

impl Branch {
    /// Explains a found state as a prefix that holds everything acknowledged before `promised` and
    /// what the scope promises. Returns the cut; the error says which promise is broken.
    pub fn explain(&self, found: &Observed, scope: Scope, promised: u64) -> Result<u64, String> {
        let base = match scope {
            Scope::Journal => self.local_until,
            Scope::Store => self.store_until,
        };
        let mut check = Check { branch: self, found, scope, promised: base.max(promised), cut: 0 };
        check.cut = check.promised;
        check.raise_by_writes()?;
        loop {
            let before = check.cut;
            check.raise_by_zeroes()?;
            check.raise_by_size()?;
            if check.cut == before {
                break;
            }
        }
        (0..found.size).try_for_each(|sector| check.check_sector(sector))?;
        Ok(check.cut)
    }

    /// Goes on from a found state that [`Branch::explain`] has accepted: what it shows is there, what
    /// it surely lacks is gone for good.
    pub fn adopt(&mut self, found: &Observed, scope: Scope, cut: u64, tick: u64) {
        for sector in 0..found.size {
            match found.sectors[sector as usize] {
                Seen::Unreadable => self.sectors[sector as usize].iter_mut().for_each(Entry::doubt),
                seen => self.adopt_sector(sector, seen, scope, cut, tick),
            }
        }
        for entries in &mut self.sectors[found.size as usize..] {
            entries.iter_mut().for_each(Entry::doubt);
        }
        let size = self.sizes.iter().rposition(|s| s.sectors == found.size);
        let size = size.expect("an accepted state has a known size");
        // What came later did not take place; what came before may be what the store still says.
        self.sizes.truncate(size + 1);
        if scope == Scope::Store {
            self.sizes.drain(..size);
            self.committed(tick + 1);
        }
    }

    fn adopt_sector(&mut self, sector: u64, seen: Seen, scope: Scope, cut: u64, tick: u64) {
        let mut entries = std::mem::take(&mut self.sectors[sector as usize]);
        let check = Check {
            branch: self,
            found: &Observed { size: 0, sectors: Vec::new() },
            scope,
            promised: 0,
            cut,
        };
        let fits: Vec<OpId> =
            entries.iter().filter(|e| check.acceptable(&entries, e, seen)).map(|e| e.op).collect();
        let newest_end = fits.iter().filter_map(|&id| entries.iter().find(|e| e.op == id));
        let newest_end = newest_end.map(|e| self.end(e)).max().unwrap_or(NEVER);
        let shown = fits.iter().copied().max_by_key(|&id| self.op(id).invoked);
        // After everything that may be visible, and not visible: it did not take place.
        entries.retain(|e| fits.contains(&e.op) || self.op(e.op).invoked <= newest_end);
        for entry in &mut entries {
            entry.anonymous |= fits.len() > 1 && fits.contains(&entry.op);
            if fits.contains(&entry.op) {
                // It may be what is there, also where several fit; and what had replaced it before may be what was lost.
                entry.superseded_at = NEVER;
                entry.superseded_by = None;
                if fits.len() == 1 {
                    entry.seen_at = entry.seen_at.min(tick);
                    entry.committed |= scope == Scope::Store;
                }
            } else {
                entry.superseded_at = entry.superseded_at.min(tick);
                entry.superseded_by = entry.superseded_by.or(shown);
            }
        }
        self.sectors[sector as usize] = entries;
    }

    /// A reader saw this state committed while the writer goes on: it never goes back behind it.
    pub fn confirm_committed(&mut self, found: &Observed, cut: u64) {
        self.committed(cut);
        for (sector, &seen) in found.sectors.iter().enumerate() {
            if let Seen::Op(op) = seen
                && let Some(entry) = self.sectors[sector].iter_mut().find(|e| e.op == op)
            {
                entry.committed = true;
            }
        }
    }
}

struct Check<'a> {
    branch: &'a Branch,
    found: &'a Observed,
    scope: Scope,
    /// What was promised, apart from what the found state itself implies.
    promised: u64,
    cut: u64,
}

impl Check<'_> {
    fn entries(&self, sector: u64) -> &[Entry] {
        &self.branch.sectors[sector as usize]
    }

    fn op(&self, entry: &Entry) -> &Op {
        self.branch.op(entry.op)
    }

    /// Whether the op must be part of the state, at the sector of this entry.
    fn must(&self, entry: &Entry) -> bool {
        let op = self.op(entry);
        let forced = match self.scope {
            Scope::Journal => op.forced >= Forced::Local,
            Scope::Store => op.forced >= Forced::Store,
        };
        !entry.doubtful
            && (entry.committed
                || (self.branch.is_certain(entry) && (forced || self.branch.end(entry) < self.cut)))
    }

    /// Who, by all that is known, must hide this entry.
    fn hidden_by<'e>(&self, entries: &'e [Entry], shown: &Entry) -> Option<&'e Entry> {
        let end = self.branch.end(shown);
        entries.iter().find(|e| {
            e.op != shown.op
                && self.must(e)
                && (self.op(e).invoked > end || shown.superseded_by == Some(e.op))
        })
    }

    fn acceptable(&self, entries: &[Entry], entry: &Entry, seen: Seen) -> bool {
        shows(self.op(entry).kind, entry.op, seen) && self.hidden_by(entries, entry).is_none()
    }

    fn raise_by_writes(&mut self) -> Result<(), String> {
        for sector in 0..self.found.size {
            match self.found.sectors[sector as usize] {
                Seen::Garbage => return Err(format!("P6: sector {sector} holds bytes that nobody wrote")),
                Seen::Op(op) => {
                    let Some(entry) = self.branch.entry(sector, op) else {
                        let what = self.branch.describe(op);
                        return Err(format!("P3: sector {sector} shows {what}, which it cannot hold"));
                    };
                    self.cut = self.cut.max(self.op(entry).invoked);
                }
                Seen::Zero | Seen::Unreadable => {}
            }
        }
        Ok(())
    }

    fn raise_by_zeroes(&mut self) -> Result<(), String> {
        for sector in 0..self.found.size {
            if self.found.sectors[sector as usize] != Seen::Zero {
                continue;
            }
            let entries = self.entries(sector);
            let fits = entries.iter().filter(|e| self.acceptable(entries, e, Seen::Zero));
            match fits.map(|e| self.op(e).invoked).min() {
                Some(invoked) => self.cut = self.cut.max(invoked),
                None => return Err(self.missing(sector, "zeroes", self.newest_must(sector))),
            }
        }
        Ok(())
    }

    fn raise_by_size(&mut self) -> Result<(), String> {
        let sizes = &self.branch.sizes;
        let must = |id: OpId| {
            let op = self.branch.op(id);
            op.acknowledged && op.end < self.cut
        };
        let fits = sizes.iter().filter(|s| {
            let end = self.branch.op(s.op).end;
            s.sectors == self.found.size
                && !sizes.iter().any(|t| must(t.op) && self.branch.op(t.op).invoked > end)
        });
        match fits.map(|s| self.branch.op(s.op).invoked).min() {
            Some(invoked) => self.cut = self.cut.max(invoked),
            None => {
                let known: Vec<String> = sizes
                    .iter()
                    .map(|s| format!("{} by {}", s.sectors, self.branch.describe(s.op)))
                    .collect();
                return Err(format!(
                    "P3: the size is {} sectors; known: {}",
                    self.found.size,
                    known.join(", ")
                ));
            }
        }
        Ok(())
    }

    fn newest_must(&self, sector: u64) -> Option<&Entry> {
        self.entries(sector).iter().filter(|e| self.must(e)).max_by_key(|e| self.op(e).invoked)
    }

    fn check_sector(&self, sector: u64) -> Result<(), String> {
        let Seen::Op(op) = self.found.sectors[sector as usize] else { return Ok(()) };
        let entries = self.entries(sector);
        let shown = self.branch.entry(sector, op).expect("checked when the cut was raised");
        if let Some(hider) = self.hidden_by(entries, shown) {
            return Err(self.missing(sector, &self.branch.describe(op), Some(hider)));
        }
        self.check_block(sector, shown)
    }

    /// A block of a write is there as a whole or not at all.
    fn check_block(&self, sector: u64, shown: &Entry) -> Result<(), String> {
        let op = self.op(shown);
        debug_assert_eq!(op.kind, Kind::Write);
        let block = sector - sector % BLOCK_SECTORS;
        let end = (block + BLOCK_SECTORS).min(op.first + op.count).min(self.found.size);
        for other in block.max(op.first)..end {
            let Seen::Op(there) = self.found.sectors[other as usize] else { continue };
            let entry = self.branch.entry(other, there).expect("checked when the cut was raised");
            if there != op.id && op.invoked > self.branch.end(entry) {
                return Err(format!(
                    "P3: block of sector {block} is torn: sector {sector} shows {}, sector {other} still {}",
                    self.branch.describe(op.id),
                    self.branch.describe(there)
                ));
            }
        }
        Ok(())
    }

    fn missing(&self, sector: u64, shown: &str, lost: Option<&Entry>) -> String {
        let Some(lost) = lost else {
            return format!("P4: sector {sector} shows {shown}, which nothing can have written");
        };
        let why = if self.branch.end(lost) < self.promised || self.op(lost).forced > Forced::No {
            match self.scope {
                Scope::Journal
                    if self.branch.end(lost) >= self.branch.local_until
                        && self.op(lost).forced == Forced::No =>
                {
                    "P3: it was acknowledged, and only a process has ended"
                }
                Scope::Journal => "P1: it was flushed",
                Scope::Store => "P2: it was committed, or older than the bound",
            }
        } else if lost.committed {
            "P2: it was seen committed"
        } else {
            "P3: something later is visible"
        };
        format!(
            "{why}: sector {sector} shows {shown} and not {} (cut {})",
            self.branch.describe(lost.op),
            self.cut
        )
    }
}
