//! One column of a chunk: up to `CHUNK_MAPPINGS_MAX` integers as a base and bit-packed
//! differences from it (frame of reference, as in Zukowski et al., "Super-Scalar RAM-CPU Cache
//! Compression", ICDE 2006, without exceptions).
//!
//! Owns the bits and nothing of their meaning. Reading never panics and never reads beyond its
//! input, whatever the bytes are; a constant column costs no bits per value.

use super::varint;

/// Mappings of a chunk at most. Small enough that a lookup decodes little and an outlier widens
/// few neighbours, large enough that the column heads cost about two bits per mapping.
pub(super) const CHUNK_MAPPINGS_MAX: usize = 128;

/// Widest values that lie whole in the 8 bytes from the byte in which they begin.
const NARROW_BITS: usize = 57;
/// Bytes that hold any value from the byte in which it begins: 64 bits and 7 before them, rounded up to a word.
const WINDOW_BYTES: usize = 16;
const _: () = assert!(NARROW_BITS + 7 <= u64::BITS as usize && 64 + 7 <= WINDOW_BYTES * 8);

/// Appends `values` (not empty) to `out`.
pub(super) fn put(values: &[u64], out: &mut Vec<u8>) {
    debug_assert!(!values.is_empty() && values.len() <= CHUNK_MAPPINGS_MAX, "a column is of one chunk");
    let (min, max) = values.iter().fold((u64::MAX, 0), |(min, max), &v| (min.min(v), max.max(v)));
    let width = u64::BITS - (max - min).leading_zeros();
    out.push(width as u8);
    varint::put(min, out);
    if width == 0 {
        return;
    }
    let packed_at = out.len();
    let (mut bits, mut held) = (0u128, 0);
    for &v in values {
        bits |= u128::from(v - min) << held;
        held += width;
        if held >= u64::BITS {
            out.extend_from_slice(&(bits as u64).to_le_bytes());
            bits >>= u64::BITS;
            held -= u64::BITS;
        }
    }
    let rest = (held as usize).div_ceil(8);
    out.extend_from_slice(&(bits as u64).to_le_bytes()[..rest]);
    debug_assert_eq!(
        out.len() - packed_at,
        (values.len() * width as usize).div_ceil(8),
        "a column is as long as who reads it expects"
    );
}

/// A column as it is stored: any range of its values can be had without the others.
#[derive(Clone, Copy)]
pub(super) struct Column<'a> {
    width: usize,
    base: u64,
    packed: &'a [u8],
}

/// Takes one column off the front of `input`. `None` when the bytes are no column of `count` values.
pub(super) fn take<'a>(input: &mut &'a [u8], count: usize) -> Option<Column<'a>> {
    debug_assert!(count <= CHUNK_MAPPINGS_MAX, "a column is of one chunk");
    let (&width, rest) = input.split_first()?;
    *input = rest;
    let base = varint::take(input)?;
    let width = usize::from(width);
    if width > 64 {
        return None;
    }
    let (packed, rest) = input.split_at_checked((count * width).div_ceil(8))?;
    *input = rest;
    Some(Column { width, base, packed })
}

impl Column<'_> {
    /// Value number `i`. There must be that many.
    pub(super) fn get(&self, i: usize) -> u64 {
        let Column { width, base, packed } = *self;
        if width == 0 {
            return base;
        }
        debug_assert!((i + 1) * width <= packed.len() * 8, "a column has so many values");
        let (at, shift) = (i * width / 8, i * width % 8);
        let mask = u64::MAX >> (64 - width);
        if let Some(window) = packed[at..].first_chunk::<8>().filter(|_| width <= NARROW_BITS) {
            return base.wrapping_add((u64::from_le_bytes(*window) >> shift) & mask);
        }
        let bits = match packed[at..].first_chunk::<WINDOW_BYTES>() {
            Some(window) => u128::from_le_bytes(*window),
            None => {
                let mut window = [0; WINDOW_BYTES];
                window[..packed.len() - at].copy_from_slice(&packed[at..]);
                u128::from_le_bytes(window)
            }
        };
        // Wraps only on bytes that no writer made; the caller checks what the values mean.
        base.wrapping_add((bits >> shift) as u64 & mask)
    }

    /// The one value of all, where they are the same.
    pub(super) fn constant(&self) -> Option<u64> {
        (self.width == 0).then_some(self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any column of any width comes back as it was, and takes exactly its own bytes.
        #[test]
        fn comes_back(shift in 0u32..64, base in any::<u64>(),
                      raw in prop::collection::vec(any::<u64>(), 1..=CHUNK_MAPPINGS_MAX)) {
            let values: Vec<u64> = raw.iter().map(|v| (base >> 1 >> shift) + (v >> 1 >> shift)).collect();
            let mut bytes = Vec::new();
            put(&values, &mut bytes);
            bytes.push(7);
            let mut input = &bytes[..];
            let column = take(&mut input, values.len()).expect("a column");
            let seen: Vec<u64> = (0..values.len()).map(|i| column.get(i)).collect();
            prop_assert_eq!(seen, values);
            prop_assert_eq!(input, &[7][..]);
        }

        /// Arbitrary bytes never panic.
        #[test]
        fn survives_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), n in 1..=CHUNK_MAPPINGS_MAX) {
            if let Some(column) = take(&mut &bytes[..], n) {
                (0..n).for_each(|i| _ = column.get(i));
            }
        }
    }

    /// The full 64 bits survive, including the value that needs nine bytes to load.
    #[test]
    fn keeps_the_widest_values() {
        let values = [0, u64::MAX, 1, u64::MAX - 1, 0];
        let mut bytes = Vec::new();
        put(&values, &mut bytes);
        let column = take(&mut &bytes[..], values.len()).expect("a column");
        assert_eq!([0, 1, 2, 3, 4].map(|i| column.get(i)), values);
    }
}
