//! The label of a ZFS pool: who it is, and who used it last.
//!
//! Source: "ZFS On-Disk Specification", chapter 1 (vdev labels), and RFC 1832 for the packed nvlist: a header of 4 bytes (encoding 1 is
//! XDR), version and flags, then pairs, each with its own size in front, until a size of 0. Every number is big-endian. Whatever a device
//! holds, reading it ends and takes no more memory than the label has bytes.

use std::fmt;

/// Where the nvlist begins in a label, and how long it may be.
pub const NVLIST_AT: u64 = 16 << 10;
pub const NVLIST_BYTES: usize = (112 << 10) - 40;

const XDR: u8 = 1;
const UINT64: u32 = 8;
const STRING: u32 = 9;
const NVLIST: u32 = 19;
/// `POOL_STATE_EXPORTED` and `POOL_STATE_DESTROYED`.
const EXPORTED: u64 = 1;
const DESTROYED: u64 = 2;

/// What the label of a pool's device says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolLabel {
    pub name: String,
    pub guid: u64,
    /// Blocks have two to the power of this bytes.
    pub ashift: u64,
    /// Of who used it last; 0 where he had none.
    pub host_id: u64,
    pub host_name: String,
    /// Nobody uses it: it was exported.
    pub is_exported: bool,
    pub is_destroyed: bool,
}

impl PoolLabel {
    /// Reads a packed nvlist; `None` where it is none of a pool.
    pub fn parse(nvlist: &[u8]) -> Option<PoolLabel> {
        let body = match nvlist.first_chunk::<4>()? {
            [XDR, ..] => &nvlist[4..],
            _ => return None,
        };
        let pool = Pairs::new(body)?;
        let vdev = pool.clone().value("vdev_tree", NVLIST).and_then(Pairs::new)?;
        let state = pool.number("state")?;
        Some(PoolLabel {
            name: pool.text("name")?,
            guid: pool.number("pool_guid")?,
            ashift: vdev.number("ashift")?,
            host_id: pool.number("hostid").unwrap_or(0),
            host_name: pool.text("hostname").unwrap_or_default(),
            is_exported: state == EXPORTED,
            is_destroyed: state == DESTROYED,
        })
    }
}

impl fmt::Display for PoolLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pool {} (guid {})", self.name, self.guid)
    }
}

/// The pairs of an nvlist.
#[derive(Clone)]
struct Pairs<'a>(&'a [u8]);

struct Pair<'a> {
    name: &'a [u8],
    kind: u32,
    value: &'a [u8],
}

impl<'a> Pairs<'a> {
    /// Behind version and flags.
    fn new(nvlist: &'a [u8]) -> Option<Pairs<'a>> {
        Some(Pairs(nvlist.get(8..)?))
    }

    fn value(mut self, name: &str, kind: u32) -> Option<&'a [u8]> {
        self.find(|pair| pair.name == name.as_bytes() && pair.kind == kind).map(|pair| pair.value)
    }

    fn number(&self, name: &str) -> Option<u64> {
        let value = self.clone().value(name, UINT64)?;
        Some(u64::from_be_bytes(*value.first_chunk()?))
    }

    fn text(&self, name: &str) -> Option<String> {
        let (text, _) = counted(self.clone().value(name, STRING)?)?;
        Some(String::from_utf8_lossy(text).into_owned())
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    fn next(&mut self) -> Option<Pair<'a>> {
        let (size, _) = word(self.0)?;
        let pair = self.0.get(..size as usize)?;
        self.0 = &self.0[pair.len()..];
        // Its size, and what it takes in memory, then name, kind and count.
        let (name, rest) = counted(pair.get(8..)?)?;
        let (kind, rest) = word(rest)?;
        let (_count, value) = word(rest)?;
        Some(Pair { name, kind, value })
    }
}

fn word(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (word, rest) = bytes.split_first_chunk()?;
    Some((u32::from_be_bytes(*word), rest))
}

/// Bytes with their number in front, filled up to a multiple of four.
fn counted(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = word(bytes)?;
    let counted = rest.get(..len as usize)?;
    Some((counted, rest.get(counted.len().next_multiple_of(4)..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning of the label of a pool that OpenZFS 2.3 made and exported (`zpool create -o ashift=12 pool`), as `xtask guest` prints it.
    const LABEL: &[u8] = include_bytes!("pool-label.bin");

    /// The label of a real pool says who it is, how large its blocks are, and that it was exported.
    #[test]
    fn a_real_label_is_understood() {
        let label = PoolLabel::parse(LABEL).expect("it is one");
        assert_eq!((label.name.as_str(), label.ashift), ("pool", 12));
        assert_eq!((label.host_name.as_str(), label.host_id), ("vm", 0x0a0b_0c0d));
        assert!(label.is_exported && !label.is_destroyed && label.guid != 0);
    }

    /// A label that is cut anywhere, or of which any byte is another, is read to an end and understood or not.
    #[test]
    fn damaged_labels_are_read_to_an_end() {
        assert!(
            (0..LABEL.len()).filter(|len| PoolLabel::parse(&LABEL[..*len]).is_some()).count()
                < LABEL.len() / 2
        );
        for at in 0..LABEL.len() {
            let mut damaged = LABEL.to_vec();
            for byte in [0, 1, 0x7f, 0xff] {
                damaged[at] = byte;
                let _ = PoolLabel::parse(&damaged);
            }
        }
        assert_eq!(PoolLabel::parse(&[]), None);
        assert_eq!(PoolLabel::parse(&[0; NVLIST_BYTES]), None);
    }
}
