//! What of some data is zero: that need not be written.

use crate::units::BLOCK_BYTES;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Cuts data that lies at a place into runs of blocks, or of parts of blocks at its ends, that are all zero or all not: length, and which.
pub fn zero_runs(offset: u64, data: &[u8]) -> Vec<(usize, bool)> {
    let mut runs: Vec<(usize, bool)> = Vec::new();
    let first = ((BLOCK - offset % BLOCK) as usize).min(data.len());
    let (head, rest) = data.split_at(first);
    for part in [head].into_iter().chain(rest.chunks(BLOCK as usize)).filter(|part| !part.is_empty()) {
        let is_zero = part.iter().all(|byte| *byte == 0);
        match runs.last_mut() {
            Some((len, same)) if *same == is_zero => *len += part.len(),
            _ => runs.push((part.len(), is_zero)),
        }
    }
    debug_assert_eq!(runs.iter().map(|(len, _)| len).sum::<usize>(), data.len(), "runs are all of the data");
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs are cut where blocks are, wherever the data begins, and have all of it.
    #[test]
    fn runs_are_of_blocks() {
        let block = BLOCK as usize;
        assert_eq!(zero_runs(0, &[]), []);
        assert_eq!(zero_runs(5, &[0; 10]), [(10, true)]);
        let mut data = vec![0; 3 * block];
        data[block] = 1;
        assert_eq!(zero_runs(0, &data), [(block, true), (block, false), (block, true)]);
        // Ten bytes to the next block; then that byte is in the first whole one but one.
        assert_eq!(zero_runs(2 * BLOCK - 10, &data), [(10, true), (block, false), (2 * block - 10, true)]);
        data.fill(7);
        assert_eq!(zero_runs(1, &data), [(3 * block, false)]);
    }
}
