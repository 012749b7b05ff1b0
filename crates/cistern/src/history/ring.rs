//! One ring: columns of the same width, one step of time apart, the oldest of which make way.

use std::collections::VecDeque;

use super::Keep;

/// Columns for which room is made at a time.
const GROWTH: usize = 60;

/// Columns of one resolution.
pub struct Ring {
    step_ms: u64,
    columns_max: usize,
    width: usize,
    /// The position of the oldest column: its time in steps since 1970.
    first: u64,
    /// Column after column. The newest is being filled.
    values: VecDeque<f32>,
    /// How many values each mean of the newest column is made of.
    counts: Vec<u16>,
}

impl Ring {
    pub fn new(step_ms: u64, columns_max: usize, width: usize) -> Ring {
        Ring { step_ms, columns_max, width, first: 0, values: VecDeque::new(), counts: vec![0; width] }
    }

    fn columns(&self) -> usize {
        self.values.len() / self.width
    }

    /// The position of the newest column.
    fn last(&self) -> Option<u64> {
        (!self.values.is_empty()).then(|| self.first + self.columns() as u64 - 1)
    }

    /// The positions that it has at `since_ms` and later: the first, and how many.
    pub fn span(&self, since_ms: Option<u64>) -> (u64, u64) {
        let from = since_ms.unwrap_or(0) / self.step_ms;
        let end = self.first + self.columns() as u64;
        let first = from.clamp(self.first, end);
        (first, end - first)
    }

    /// The values of the series at `at`, in so many columns from a position on; unknown where it has none.
    pub fn series(&self, at: usize, (first, count): (u64, u64)) -> impl Iterator<Item = f32> {
        (first..first + count).map(move |position| {
            let column = position.checked_sub(self.first).map(|column| column as usize);
            let value = column.and_then(|column| self.values.get(column * self.width + at));
            value.copied().unwrap_or(f32::NAN)
        })
    }

    /// Puts a value of each series into the column of their time.
    pub fn note(&mut self, at_ms: u64, values: &[f32], keep: impl Fn(usize) -> Keep) {
        assert_eq!(values.len(), self.width);
        self.open(at_ms / self.step_ms);
        let newest = self.values.len() - self.width;
        for (at, value) in values.iter().enumerate() {
            let kept = &mut self.values[newest + at];
            match keep(at) {
                Keep::Last => *kept = *value,
                // One that is unknown is less than any that is not.
                Keep::Max => *kept = kept.max(*value),
                Keep::Mean if value.is_nan() => {}
                Keep::Mean if kept.is_nan() => (*kept, self.counts[at]) = (*value, 1),
                Keep::Mean => {
                    self.counts[at] = self.counts[at].saturating_add(1);
                    *kept += (value - *kept) / f32::from(self.counts[at]);
                }
            }
        }
    }

    /// Makes the column at a position the newest one.
    fn open(&mut self, position: u64) {
        match self.last() {
            Some(last) if position == last => return,
            Some(last) if position > last && position - last <= self.columns_max as u64 => {
                (last + 1..position).for_each(|_| self.push());
            }
            // The clock was set back: what had a later time is forgotten.
            Some(_) if self.has(position) => {
                self.values.truncate((position - self.first + 1) as usize * self.width);
                self.counts.fill(1);
                return;
            }
            _ => {
                self.values.clear();
                self.first = position;
            }
        }
        self.push();
    }

    fn has(&self, position: u64) -> bool {
        (self.first..self.first + self.columns() as u64).contains(&position)
    }

    /// Appends a column of which nothing is known.
    fn push(&mut self) {
        if self.columns() == self.columns_max {
            self.values.drain(..self.width);
            self.first += 1;
        } else if self.values.capacity() < self.values.len() + self.width {
            self.values.reserve_exact(GROWTH.min(self.columns_max - self.columns()) * self.width);
        }
        self.values.extend(std::iter::repeat_n(f32::NAN, self.width));
        self.counts.fill(0);
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.values.capacity() * size_of::<f32>() + self.counts.capacity() * size_of::<u16>()
    }
}
