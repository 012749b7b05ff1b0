//! What a clone has of other volumes, written as its own.

use crate::{
    Result,
    cleaner::{CleanerParts, Moved, moved::For, round::offer},
    log::RoomFor,
    units::{Extent, Mapping, Seq},
};

/// Mappings that are looked up together.
const LOOKUP_MAPPINGS: usize = 4096;

/// Moves foreign blocks of `extent`, from its beginning on, until a round is full.
pub async fn adopt(parts: &CleanerParts, extent: Extent) -> Result<Moved> {
    let base = parts.space.newest();
    let pin = parts.map.pin();
    let mut round =
        AdoptRound { moved: Vec::new(), blocks: 0, blocks_max: parts.round.blocks(), at: extent.start };
    while round.at < extent.end() && !round.is_full() {
        let rest = Extent::between(round.at, extent.end());
        let mappings = parts.map.lookup_limited(rest, LOOKUP_MAPPINGS).await?;
        match mappings.is_empty() {
            true => round.at = extent.end(),
            false => round.take(mappings, |mapping| parts.blocks.is_foreign(mapping)),
        }
        let step = Extent::between(rest.start, round.at);
        let (sectors, _) = parts.map.sectors_in(step, Seq(0), usize::MAX).await?;
        round.moved.extend(sectors.into_iter().filter(|mapping| parts.blocks.is_foreign(mapping)));
    }
    let AdoptRound { moved, blocks, at, .. } = round;
    if !moved.is_empty() {
        let data = parts.blocks.read(&moved).await?;
        drop(pin);
        offer(parts, (For::Volume, RoomFor::Copied), base, moved.into_iter().zip(data).collect()).await?;
    }
    tracing::debug!(blocks, at, "adopted");
    Ok(Moved { blocks, segments: 0, next: Some(at).filter(|&at| at < extent.end()) })
}

/// What one round moves, and where the next one begins.
struct AdoptRound {
    moved: Vec<Mapping>,
    blocks: u64,
    blocks_max: u64,
    at: u64,
}

impl AdoptRound {
    fn is_full(&self) -> bool {
        self.blocks >= self.blocks_max
    }

    /// Takes what is foreign of some mappings, until the round is full: a lookup gives many times as much.
    fn take(&mut self, mappings: Vec<Mapping>, is_foreign: impl Fn(&Mapping) -> bool) {
        for mapping in mappings {
            if self.is_full() {
                return;
            }
            self.at = mapping.extent.end();
            if is_foreign(&mapping) {
                self.blocks += mapping.extent.len;
                self.moved.push(mapping);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Place;

    /// A round ends within a lookup, at the mapping that fills it, and the next one goes on behind that. Nothing is passed over.
    #[test]
    fn a_round_ends_where_it_is_full() {
        let mapping = |n| Mapping { extent: Extent::new(16 * n, 16), birth: Seq(1), place: Place::Zero };
        let blocks_max = 8192;
        let all = 4 * blocks_max / 16;
        let is_foreign = |mapping: &Mapping| mapping.extent.start.is_multiple_of(32);
        let (mut at, mut moved, mut rounds) = (0, Vec::new(), 0);
        while at < 16 * all {
            let mut round = AdoptRound { moved: Vec::new(), blocks: 0, blocks_max, at };
            round.take((at / 16..all).map(mapping).collect(), is_foreign);
            assert!(round.blocks <= blocks_max && round.at > at);
            (at, rounds) = (round.at, rounds + 1);
            moved.extend(round.moved.iter().map(|mapping| mapping.extent.start));
        }
        assert_eq!(moved, (0..all).map(|n| 16 * n).filter(|start| start % 32 == 0).collect::<Vec<_>>());
        assert!((2..=3).contains(&rounds), "{rounds}");
    }
}
