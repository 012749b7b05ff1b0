//! Bytes as lower-case hexadecimal digits, for the human-readable objects.

use serde::{Deserialize, Deserializer, Serializer, de::Error as _};

/// Two digits per byte.
pub fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Exactly `N` bytes out of `2 * N` lower-case digits.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digits = text.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

fn digit(c: u8) -> Option<u8> {
    match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    }
}

/// For `#[serde(with = "hex")]`.
pub fn serialize<const N: usize, S: Serializer>(bytes: &[u8; N], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&encode(bytes))
}

/// For `#[serde(with = "hex")]`.
pub fn deserialize<'de, const N: usize, D: Deserializer<'de>>(from: D) -> Result<[u8; N], D::Error> {
    let text = String::deserialize(from)?;
    decode(&text).ok_or_else(|| D::Error::custom(format!("expected {} hexadecimal digits", 2 * N)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only the one way in which `encode` writes is read.
    #[test]
    fn exactly_what_was_written_is_read() {
        assert_eq!(encode(&[0x00, 0xaf, 0x10]), "00af10");
        assert_eq!(decode("00af10"), Some([0x00, 0xaf, 0x10]));
        for wrong in ["00af1", "00AF10", "00af1g", "00af1000", "", "ü0af1"] {
            assert_eq!(decode::<3>(wrong), None, "{wrong}");
        }
    }
}
