//! Compression of one payload, skipped where it does not pay.
//!
//! A payload is one byte of algorithm and the bytes: 0 raw, 1 lz4 block, 2 zstd frame. The decoded
//! length is not in the payload; whoever decodes knows or bounds it. Decoding never allocates more
//! than that bound and never panics, whatever the bytes are.

use std::{cell::RefCell, ops::Range};

use bytes::Bytes;
use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};
use serde::{Deserialize, Serialize};

/// Level of zstd: its default, about 300 MB/s per core. Above it, CPU grows faster than savings.
const ZSTD_LEVEL: i32 = 3;
/// What lz4 shrinks to one part in so many is tried with zstd too: mostly metadata of filesystems,
/// of which zstd leaves half of what lz4 leaves, and which a cold start waits for.
const DENSE_DIVISOR: usize = 3;
/// zstd replaces lz4 where it saves one part in so many of what lz4 left: it decodes more slowly.
const DENSER_DIVISOR: usize = 8;
/// A payload is stored compressed only when that saves at least one part in so many: below, the
/// reader's CPU costs more than the transfer.
const SAVING_DIVISOR_MIN: usize = 16;
/// Inputs shorter than this use lz4's table of 16-bit entries, which is half as much to clear.
const LZ4_SMALL_BYTES: usize = u16::MAX as usize;

/// After so many payloads in a row that did not pay, only every [`SAMPLE_EVERY`]th is tried until
/// one pays: data that is encrypted or compressed already comes in long runs, and trying costs
/// more CPU than storing.
const MISSES_BEFORE_SAMPLING: u32 = 16;
const SAMPLE_EVERY: u32 = 4;

pub(super) const RAW: u8 = 0;
const LZ4: u8 = 1;
const ZSTD: u8 = 2;

thread_local! {
    /// zstd's decoder, 160 KiB: making one costs more than decoding a frame.
    static UNZSTD: RefCell<zstd::bulk::Decompressor<'static>> =
        RefCell::new(zstd::bulk::Decompressor::new().expect("memory for a decoder"));
}

/// How frames are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    None,
    /// With lz4; with zstd what that makes much smaller still.
    #[default]
    Lz4,
    Zstd,
}

/// Why a payload could not be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload does not decompress")]
pub struct Undecodable;

type Zstd = zstd::bulk::Compressor<'static>;

/// A reusable compressor: keeps the algorithm's tables and scratch space between payloads.
/// Memory for payloads of 64 KiB: about 100 KiB with lz4, below 2 MiB once zstd was needed.
pub struct Compressor {
    engine: Engine,
    scratch: Vec<u8>,
    /// Payloads since the last one that paid.
    misses: u32,
}

enum Engine {
    None,
    /// zstd once something was dense enough for it.
    Lz4 {
        small: CompressTable,
        large: CompressTable,
        zstd: Option<Zstd>,
    },
    Zstd(Zstd),
}

impl Compressor {
    pub fn new(compression: Compression) -> Self {
        let engine = match compression {
            Compression::None => Engine::None,
            Compression::Lz4 => {
                Engine::Lz4 { small: CompressTable::small(), large: CompressTable::large(), zstd: None }
            }
            Compression::Zstd => Engine::Zstd(new_zstd()),
        };
        Self { engine, scratch: Vec::new(), misses: 0 }
    }

    /// Appends the payload of `raw` to `out`: at most one byte more than `raw` has.
    pub fn append(&mut self, raw: &[u8], out: &mut Vec<u8>) {
        if !self.append_if_it_pays(raw, out) {
            out.push(RAW);
            out.extend_from_slice(raw);
        }
    }

    /// Appends the compressed payload of `raw` to `out` where that saves enough; otherwise appends
    /// nothing and says false.
    pub fn append_if_it_pays(&mut self, raw: &[u8], out: &mut Vec<u8>) -> bool {
        let skipped = self.misses >= MISSES_BEFORE_SAMPLING && !self.misses.is_multiple_of(SAMPLE_EVERY);
        let squeezed = if skipped { None } else { self.squeeze(raw) };
        self.misses = if squeezed.is_some() { 0 } else { self.misses.wrapping_add(1) };
        let Some((algorithm, bytes)) = squeezed else { return false };
        debug_assert!(bytes.len() < raw.len());
        out.push(algorithm);
        out.extend_from_slice(&self.scratch[bytes]);
        true
    }

    /// Compresses into the scratch space and says where; `None` when that does not pay.
    fn squeeze(&mut self, raw: &[u8]) -> Option<(u8, Range<usize>)> {
        let bytes_max = raw.len() - raw.len().div_ceil(SAVING_DIVISOR_MIN);
        match &mut self.engine {
            Engine::None => None,
            Engine::Lz4 { small, large, zstd } => {
                let table = if raw.len() < LZ4_SMALL_BYTES { small } else { large };
                grow(&mut self.scratch, get_maximum_output_size(raw.len()));
                let bytes = compress_into_with_table(raw, &mut self.scratch, table)
                    .expect("the scratch space holds lz4's worst case");
                let denser = (bytes <= raw.len() / DENSE_DIVISOR).then(|| {
                    let bytes_max = bytes - bytes.div_ceil(DENSER_DIVISOR);
                    grow(&mut self.scratch, bytes + bytes_max);
                    squeeze_with_zstd(
                        zstd.get_or_insert_with(new_zstd),
                        raw,
                        &mut self.scratch[bytes..][..bytes_max],
                    )
                });
                match denser.flatten() {
                    Some(denser) => Some((ZSTD, bytes..bytes + denser)),
                    None => (bytes <= bytes_max).then_some((LZ4, 0..bytes)),
                }
            }
            Engine::Zstd(zstd) => {
                grow(&mut self.scratch, bytes_max);
                let bytes = squeeze_with_zstd(zstd, raw, &mut self.scratch[..bytes_max])?;
                Some((ZSTD, 0..bytes))
            }
        }
    }
}

fn new_zstd() -> Zstd {
    Zstd::new(ZSTD_LEVEL).expect("zstd takes its own default level")
}

/// The bytes that `raw` became; `None` when they do not fit: too little space is zstd's way of saying
/// that it did not pay.
fn squeeze_with_zstd(zstd: &mut Zstd, raw: &[u8], out: &mut [u8]) -> Option<usize> {
    zstd.compress_to_buffer(raw, out).ok()
}

fn grow(scratch: &mut Vec<u8>, bytes: usize) {
    if scratch.len() < bytes {
        scratch.resize(bytes, 0);
    }
}

/// Appends the payload of `raw` to `out`. For more than one, [`Compressor`] is faster.
pub fn compress(compression: Compression, raw: &[u8], out: &mut Vec<u8>) {
    Compressor::new(compression).append(raw, out);
}

/// The bytes of a payload whose decoded length is exactly `raw_len`.
pub fn decompress(payload: &[u8], raw_len: usize) -> Result<Vec<u8>, Undecodable> {
    let raw = decompress_bounded(payload, raw_len)?;
    if raw.len() == raw_len { Ok(raw) } else { Err(Undecodable) }
}

/// As [`decompress`]; a payload that is stored raw is not copied.
pub fn decompress_shared(payload: Bytes, raw_len: usize) -> Result<Bytes, Undecodable> {
    if payload.first() == Some(&RAW) && payload.len() == raw_len + 1 {
        return Ok(payload.slice(1..));
    }
    decompress(&payload, raw_len).map(Bytes::from)
}

/// The bytes of a payload that decodes to at most `raw_len_max` bytes.
pub fn decompress_bounded(payload: &[u8], raw_len_max: usize) -> Result<Vec<u8>, Undecodable> {
    let (&algorithm, bytes) = payload.split_first().ok_or(Undecodable)?;
    match algorithm {
        RAW if bytes.len() <= raw_len_max => Ok(bytes.to_vec()),
        LZ4 => {
            let mut raw = vec![0; raw_len_max];
            let len = decompress_into(bytes, &mut raw).map_err(|_| Undecodable)?;
            raw.truncate(len);
            Ok(raw)
        }
        ZSTD => {
            UNZSTD.with_borrow_mut(|unzstd| unzstd.decompress(bytes, raw_len_max)).map_err(|_| Undecodable)
        }
        _ => Err(Undecodable),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: [Compression; 3] = [Compression::None, Compression::Lz4, Compression::Zstd];

    fn noise(len: usize) -> Vec<u8> {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                (x >> 32) as u8
            })
            .collect()
    }

    /// What does not compress is stored raw and costs one byte.
    #[test]
    fn incompressible_data_is_stored_raw() {
        for compression in ALL {
            for len in [0, 1, 12, 4096, 65536] {
                let raw = noise(len);
                let mut out = Vec::new();
                compress(compression, &raw, &mut out);
                assert_eq!((out[0], &out[1..]), (RAW, &raw[..]), "{compression:?} {len}");
            }
        }
    }

    /// A 64 KiB frame of text-like data shrinks with both algorithms, and a compressor that is
    /// used again gives the same bytes as a fresh one.
    #[test]
    fn a_reused_compressor_gives_the_same_bytes() {
        for compression in [Compression::Lz4, Compression::Zstd] {
            let mut compressor = Compressor::new(compression);
            for len in [65536, 4096, 65536, 40960] {
                let raw: Vec<u8> = (0..len).map(|i| (i / 7 % 50) as u8).collect();
                let (mut again, mut fresh) = (vec![7], Vec::new());
                compressor.append(&raw, &mut again);
                compress(compression, &raw, &mut fresh);
                assert_eq!(&again[1..], &fresh[..]);
                assert!(fresh.len() < raw.len() / 4);
                assert_eq!(decompress(&fresh, raw.len()), Ok(raw));
            }
        }
    }

    /// After a long run of data that does not compress, data that does is compressed again after at
    /// most three payloads.
    #[test]
    fn compressible_data_is_found_again() {
        let mut compressor = Compressor::new(Compression::Lz4);
        for misses in [0, 5, 16, 17, 100, 1001] {
            for _ in 0..misses {
                compressor.append(&noise(4096), &mut Vec::new());
            }
            let sizes = [(); 4].map(|()| {
                let mut out = Vec::new();
                compressor.append(&[7; 4096], &mut out);
                out.len()
            });
            assert!(sizes[3] < 100, "{misses}: {sizes:?}");
            assert!(misses >= MISSES_BEFORE_SAMPLING || sizes[0] < 100, "{misses}: {sizes:?}");
        }
    }

    /// What lz4 shrinks to a third goes to zstd, where that saves an eighth more; the rest does not.
    #[test]
    fn dense_data_is_compressed_twice() {
        let sparse = |every: usize| -> Vec<u8> {
            let mut raw = vec![0; 65536];
            raw.iter_mut().step_by(every).zip(noise(65536)).for_each(|(byte, noise)| *byte = noise);
            raw
        };
        let algorithm = |raw: &[u8]| {
            let mut out = Vec::new();
            compress(Compression::Lz4, raw, &mut out);
            assert_eq!(decompress(&out, raw.len()).as_deref(), Ok(raw));
            (out[0], out.len())
        };
        let (dense, dense_bytes) = algorithm(&sparse(32));
        assert_eq!(dense, ZSTD);
        let Compressor { engine: Engine::Lz4 { mut large, .. }, .. } = Compressor::new(Compression::Lz4)
        else {
            unreachable!("it was asked for lz4")
        };
        let mut lz4 = vec![0; get_maximum_output_size(65536)];
        let lz4_bytes = compress_into_with_table(&sparse(32), &mut lz4, &mut large).expect("room");
        assert!(dense_bytes < lz4_bytes / 8 * 7, "{dense_bytes} of {lz4_bytes}");
        assert_eq!(algorithm(&[&noise(32768)[..], &[0; 32768][..]].concat()).0, LZ4, "only half is saved");
        assert_eq!(algorithm(&[7; 4096]).0, LZ4, "some bytes are left, of which zstd saves nothing");
    }

    /// A payload that would decode to more than the caller allows is refused.
    #[test]
    fn nothing_longer_than_allowed_comes_out() {
        for compression in ALL {
            let mut out = Vec::new();
            compress(compression, &[0; 1 << 20], &mut out);
            assert_eq!(decompress_bounded(&out, 4096), Err(Undecodable));
            assert_eq!(decompress(&out, (1 << 20) + 1), Err(Undecodable));
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever goes in comes out.
        #[test]
        fn round_trip(pieces in proptest::collection::vec((any::<u8>(), 1..300_usize, any::<bool>()), 0..40)) {
            let mut raw = Vec::new();
            for (byte, len, random) in pieces {
                if random { raw.extend(noise(len)) } else { raw.resize(raw.len() + len, byte) }
            }
            for compression in ALL {
                let mut out = Vec::new();
                compress(compression, &raw, &mut out);
                prop_assert!(out.len() <= raw.len() + 1);
                prop_assert_eq!(&decompress(&out, raw.len()).unwrap(), &raw);
            }
        }

        /// Arbitrary bytes decode to something bounded or to an error, never to a panic.
        #[test]
        fn arbitrary_payloads_are_harmless(algorithm in 0..4_u8, bytes in proptest::collection::vec(any::<u8>(), 0..300), max in 0..10_000_usize) {
            let mut payload = vec![algorithm];
            payload.extend(bytes);
            if let Ok(raw) = decompress_bounded(&payload, max) {
                prop_assert!(raw.len() <= max);
            }
        }
    }
}
