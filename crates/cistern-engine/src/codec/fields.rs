//! Integers as bytes: fixed little-endian ones and LEB128 varints, read with every bound checked.
//!
//! Reading past the end gives `None`, never a panic; nothing here allocates by a length it read.

/// Bytes of the longest varint: 64 bits in groups of 7.
pub const VARINT_BYTES_MAX: usize = 10;

/// Appends `value` in groups of 7 bits, lowest first; the top bit says that more follows.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A cursor over bytes that may be anything.
#[derive(Clone, Copy, Debug)]
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What has not been read yet.
    pub fn rest(&self) -> &'a [u8] {
        self.0
    }

    pub fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }

    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*head)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(|[byte]| byte)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    /// `None` also for more than 64 bits.
    pub fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for group in 0..VARINT_BYTES_MAX {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            let shift = 7 * group as u32;
            if bits << shift >> shift != bits {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The 65th bit and the missing end are both refused.
    #[test]
    fn overlong_and_cut_varints_are_refused() {
        let mut longest = Vec::new();
        put_varint(&mut longest, u64::MAX);
        assert_eq!(longest.len(), VARINT_BYTES_MAX);
        assert_eq!(Fields::new(&longest[..9]).varint(), None);
        longest[9] = 2;
        assert_eq!(Fields::new(&longest).varint(), None);
        assert_eq!(Fields::new(&[0x80; 11]).varint(), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// A varint reads back as itself and takes exactly its own bytes.
        #[test]
        fn varints_read_back(value: u64, shift in 0..64_u32) {
            let value = value >> shift;
            let mut out = Vec::new();
            put_varint(&mut out, value);
            out.push(0xff);
            let mut fields = Fields::new(&out);
            prop_assert_eq!(fields.varint(), Some(value));
            prop_assert_eq!(fields.rest(), &[0xff]);
        }
    }
}
