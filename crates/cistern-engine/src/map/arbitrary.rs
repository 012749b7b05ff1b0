//! Mappings as property tests draw them: everything that the map may hold.

use proptest::{collection::SizeRange, prelude::*};

use super::BLOCKS_MAX;
use crate::units::{Extent, FrameRef, Mapping, Place, Seq};

fn place() -> impl Strategy<Value = (u64, Place)> {
    let seq = prop_oneof![1u64..100, any::<u64>()];
    let stored = prop_oneof![Just(4120u32), 1u32..70_000, 1u32..=u32::MAX];
    let long = prop_oneof![1u64..20, 1u64..1 << 30];
    let frame =
        (seq, any::<u32>(), stored, 0u8..16, 1u64..=16).prop_map(|(seq, offset, stored, index, len)| {
            let place = Place::Frame(FrameRef { seq: Seq(seq), offset, stored, index });
            (len.min(16 - u64::from(index)), place)
        });
    prop_oneof![
        8 => frame,
        1 => long.clone().prop_map(|len| (len, Place::Hole)),
        1 => long.prop_map(|len| (len, Place::Zero)),
    ]
}

/// Ascending mappings that do not overlap.
pub(super) fn mappings(count: impl Into<SizeRange>) -> impl Strategy<Value = Vec<Mapping>> {
    let gap = prop_oneof![Just(0u64), 0u64..1000, 0u64..1 << 38];
    let birth = prop_oneof![1u64..100, any::<u64>()];
    prop::collection::vec((gap, birth, place()), count).prop_map(|drawn| {
        let mut end = 0;
        let mut out = Vec::new();
        for (gap, birth, (len, place)) in drawn {
            let extent = Extent::new(end + gap, len);
            end = extent.end();
            assert!(end <= BLOCKS_MAX);
            out.push(Mapping { extent, birth: Seq(birth), place });
        }
        out
    })
}
