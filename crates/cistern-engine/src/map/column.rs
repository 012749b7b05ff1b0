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

/// Bytes of the packed bits of the widest column, and 8 more so that every value can be loaded
/// as one word.
const PACKED_BYTES_MAX: usize = CHUNK_MAPPINGS_MAX * 8 + 8;

/// Appends `values` (not empty) to `out`.
pub(super) fn put(values: &[u64], out: &mut Vec<u8>) {
    debug_assert!(!values.is_empty() && values.len() <= CHUNK_MAPPINGS_MAX);
    let (min, max) = values.iter().fold((u64::MAX, 0), |(min, max), &v| (min.min(v), max.max(v)));
    let width = u64::BITS - (max - min).leading_zeros();
    out.push(width as u8);
    varint::put(min, out);
    if width == 0 {
        return;
    }
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
    debug_assert!(count <= CHUNK_MAPPINGS_MAX);
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
    /// The values from number `first` on into `values`. Together they must not be more than there are.
    pub(super) fn unpack(&self, first: usize, values: &mut [u64]) {
        let Column { width, base, packed } = *self;
        if width == 0 {
            return values.fill(base);
        }
        let (begin, end) = (first * width, (first + values.len()) * width);
        let packed = &packed[begin / 8..end.div_ceil(8)];
        let mut buffer = [0u8; PACKED_BYTES_MAX];
        buffer[..packed.len()].copy_from_slice(packed);
        let mask = u64::MAX >> (64 - width);
        for (i, value) in values.iter_mut().enumerate() {
            let bit = begin % 8 + i * width;
            let (at, shift) = (bit / 8, bit % 8);
            let word = buffer[at..at + 8].try_into().expect("a slice of eight bytes");
            let mut raw = u64::from_le_bytes(word) >> shift;
            if shift + width > 64 {
                raw |= u64::from(buffer[at + 8]) << (64 - shift);
            }
            // Wraps only on bytes that no writer made; the caller checks what the values mean.
            *value = base.wrapping_add(raw & mask);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any column of any width comes back as it was, whole or in parts, and takes exactly its own bytes.
        #[test]
        fn comes_back(shift in 0u32..64, base in any::<u64>(), cut in any::<prop::sample::Index>(),
                      raw in prop::collection::vec(any::<u64>(), 1..=CHUNK_MAPPINGS_MAX)) {
            let values: Vec<u64> = raw.iter().map(|v| (base >> 1 >> shift) + (v >> 1 >> shift)).collect();
            let mut bytes = Vec::new();
            put(&values, &mut bytes);
            bytes.push(7);
            let mut input = &bytes[..];
            let column = take(&mut input, values.len()).expect("a column");
            let mut seen = vec![0; values.len()];
            column.unpack(0, &mut seen);
            prop_assert_eq!(&seen, &values);
            let cut = cut.index(values.len());
            seen.fill(0);
            column.unpack(cut, &mut seen[cut..]);
            prop_assert_eq!(&seen[cut..], &values[cut..]);
            column.unpack(0, &mut seen[..cut]);
            prop_assert_eq!(seen, values);
            prop_assert_eq!(input, &[7][..]);
        }

        /// Arbitrary bytes never panic.
        #[test]
        fn survives_arbitrary_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200), n in 1..=CHUNK_MAPPINGS_MAX) {
            if let Some(column) = take(&mut &bytes[..], n) {
                column.unpack(0, &mut vec![0; n]);
            }
        }
    }

    /// The full 64 bits survive, including the value that needs nine bytes to load.
    #[test]
    fn keeps_the_widest_values() {
        let values = [0, u64::MAX, 1, u64::MAX - 1, 0];
        let mut bytes = Vec::new();
        put(&values, &mut bytes);
        let mut seen = [0; 5];
        take(&mut &bytes[..], seen.len()).expect("a column").unpack(0, &mut seen);
        assert_eq!(seen, values);
    }
}
