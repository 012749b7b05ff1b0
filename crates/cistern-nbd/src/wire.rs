//! Magic numbers, codes and fixed layouts of the NBD protocol, all big-endian.
//!
//! Source: the protocol document of the NBD project (`doc/proto.md`) with its extension for
//! extended headers. Decoders take arrays of exact size, so they cannot fail but on a wrong magic.

/// First word of the greeting: "NBDMAGIC".
pub(crate) const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting and first of every option: "IHAVEOPT".
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
pub(crate) const REQUEST_MAGIC: u32 = 0x2560_9513;
pub(crate) const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
pub(crate) const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;
pub(crate) const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

/// Handshake flags; the client's have the same bits.
pub(crate) mod handshake {
    pub(crate) const FIXED_NEWSTYLE: u32 = 1 << 0;
    pub(crate) const NO_ZEROES: u32 = 1 << 1;
}

/// Options of the negotiation.
pub(crate) mod opt {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
    pub(crate) const EXTENDED_HEADERS: u32 = 11;
    /// Not of the protocol: "cist", in a range that it does not use. See `docs/format/nbd.md`.
    pub(crate) const OUTLIVE: u32 = 0x6369_7374;
}

/// Replies to options.
pub(crate) mod rep {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(crate) const ERR_UNSUP: u32 = ERROR + 1;
    pub(crate) const ERR_POLICY: u32 = ERROR + 2;
    pub(crate) const ERR_INVALID: u32 = ERROR + 3;
    pub(crate) const ERR_TLS_REQD: u32 = ERROR + 5;
    pub(crate) const ERR_UNKNOWN: u32 = ERROR + 6;
    pub(crate) const ERR_SHUTDOWN: u32 = ERROR + 7;
    pub(crate) const ERR_TOO_BIG: u32 = ERROR + 9;
    pub(crate) const ERR_EXT_HEADER_REQD: u32 = ERROR + 10;
}

/// Kinds of information in replies to INFO and GO.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// Transmission flags: what an export can do.
pub(crate) mod trait_flag {
    pub(crate) const HAS_FLAGS: u16 = 1 << 0;
    pub(crate) const READ_ONLY: u16 = 1 << 1;
    pub(crate) const SEND_FLUSH: u16 = 1 << 2;
    pub(crate) const SEND_FUA: u16 = 1 << 3;
    pub(crate) const SEND_TRIM: u16 = 1 << 5;
    pub(crate) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(crate) const SEND_DF: u16 = 1 << 7;
    pub(crate) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(crate) const SEND_CACHE: u16 = 1 << 10;
    pub(crate) const SEND_FAST_ZERO: u16 = 1 << 11;
    pub(crate) const BLOCK_STATUS_PAYLOAD: u16 = 1 << 12;
}

/// Commands.
pub(crate) mod cmd {
    pub(crate) const READ: u16 = 0;
    pub(crate) const WRITE: u16 = 1;
    pub(crate) const DISC: u16 = 2;
    pub(crate) const FLUSH: u16 = 3;
    pub(crate) const TRIM: u16 = 4;
    pub(crate) const CACHE: u16 = 5;
    pub(crate) const WRITE_ZEROES: u16 = 6;
    pub(crate) const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub(crate) mod cmd_flag {
    pub(crate) const FUA: u16 = 1 << 0;
    pub(crate) const NO_HOLE: u16 = 1 << 1;
    pub(crate) const DF: u16 = 1 << 2;
    pub(crate) const REQ_ONE: u16 = 1 << 3;
    pub(crate) const FAST_ZERO: u16 = 1 << 4;
    pub(crate) const PAYLOAD_LEN: u16 = 1 << 5;
}

/// Chunks of structured and extended replies.
pub(crate) mod chunk {
    pub(crate) const FLAG_DONE: u16 = 1;
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const BLOCK_STATUS_EXT: u16 = 6;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
}

/// Status flags of `base:allocation`.
pub(crate) mod state {
    pub(crate) const HOLE: u32 = 1 << 0;
    pub(crate) const ZERO: u32 = 1 << 1;
    /// In the context of a bitmap.
    pub(crate) const DIRTY: u32 = 1 << 0;
}

/// What blocks are now, and its id on every connection.
pub(crate) const BASE_ALLOCATION: &str = "base:allocation";
pub(crate) const BASE_ALLOCATION_ID: u32 = 1;
/// What the names of bitmaps' contexts begin with (QEMU's `docs/interop/nbd.rst`). The first has the id after that one.
pub(crate) const DIRTY_BITMAP: &str = "qemu:dirty-bitmap:";

/// Bytes of the longest string the protocol allows.
pub(crate) const STRING_BYTES_MAX: usize = 4096;

pub(crate) const OPTION_HEADER_BYTES: usize = 16;
pub(crate) const COMPACT_HEADER_BYTES: usize = 28;
pub(crate) const EXTENDED_HEADER_BYTES: usize = 32;

/// Bytes did not begin with the magic that must stand there: the stream is out of step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadMagic;

/// The header of a request, compact or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) flags: u16,
    pub(crate) command: u16,
    pub(crate) cookie: u64,
    /// Bytes from the beginning of the export.
    pub(crate) offset: u64,
    /// Bytes of effect or of payload, as the gate decides.
    pub(crate) length: u64,
}

fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) << 16 | u32::from(u16_at(bytes, at + 2))
}

fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

impl Header {
    /// The compact header: magic u32, flags u16, command u16, cookie u64, offset u64, length u32.
    pub(crate) fn compact(bytes: &[u8; COMPACT_HEADER_BYTES]) -> Result<Header, BadMagic> {
        if u32_at(bytes, 0) != REQUEST_MAGIC {
            return Err(BadMagic);
        }
        Ok(Header {
            flags: u16_at(bytes, 4),
            command: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u64::from(u32_at(bytes, 24)),
        })
    }

    /// The extended header: as the compact one, with its own magic and a length of u64.
    pub(crate) fn extended(bytes: &[u8; EXTENDED_HEADER_BYTES]) -> Result<Header, BadMagic> {
        if u32_at(bytes, 0) != EXTENDED_REQUEST_MAGIC {
            return Err(BadMagic);
        }
        Ok(Header {
            flags: u16_at(bytes, 4),
            command: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u64_at(bytes, 24),
        })
    }
}

/// The header of an option: code and bytes of data that follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OptionHeader {
    pub(crate) code: u32,
    pub(crate) length: u32,
}

impl OptionHeader {
    /// Magic u64, code u32, length u32.
    pub(crate) fn decode(bytes: &[u8; OPTION_HEADER_BYTES]) -> Result<OptionHeader, BadMagic> {
        if u64_at(bytes, 0) != OPTION_MAGIC {
            return Err(BadMagic);
        }
        Ok(OptionHeader { code: u32_at(bytes, 8), length: u32_at(bytes, 12) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every field of a compact header is where the protocol document puts it.
    #[test]
    fn compact_header_layout() {
        let mut bytes = [0; COMPACT_HEADER_BYTES];
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        for (at, byte) in bytes.iter_mut().enumerate().skip(4) {
            *byte = at as u8;
        }
        let header = Header::compact(&bytes).expect("the magic is right");
        assert_eq!(header.flags, 0x0405);
        assert_eq!(header.command, 0x0607);
        assert_eq!(header.cookie, 0x0809_0a0b_0c0d_0e0f);
        assert_eq!(header.offset, 0x1011_1213_1415_1617);
        assert_eq!(header.length, 0x1819_1a1b);
        bytes[0] = 0;
        assert_eq!(Header::compact(&bytes), Err(BadMagic));
    }

    /// The extended header differs in its magic and in the width of its length only.
    #[test]
    fn extended_header_layout() {
        let mut bytes = [0; EXTENDED_HEADER_BYTES];
        bytes[..4].copy_from_slice(&[0x21, 0xe4, 0x1c, 0x71]);
        bytes[24..].copy_from_slice(&0x1234_5678_9abc_def0_u64.to_be_bytes());
        assert_eq!(Header::extended(&bytes).map(|h| h.length), Ok(0x1234_5678_9abc_def0));
        bytes[..4].copy_from_slice(&[0x25, 0x60, 0x95, 0x13]);
        assert_eq!(Header::extended(&bytes), Err(BadMagic));
    }

    /// Options begin with IHAVEOPT, code and length.
    #[test]
    fn option_header_layout() {
        let mut bytes = *b"IHAVEOPT\0\0\0\x07\0\0\x01\x00";
        assert_eq!(OptionHeader::decode(&bytes), Ok(OptionHeader { code: 7, length: 256 }));
        bytes[7] = b'?';
        assert_eq!(OptionHeader::decode(&bytes), Err(BadMagic));
    }
}
