//! Compression, sealing and keys: how bytes become safe to store.
//!
//! Owns: the payload encoding, AES-256-GCM sealing (or CRC32C without encryption), key derivation
//! and wrapping. Knows nothing of objects' inner layout. Nothing here does IO.

mod block_data;
mod compress;
pub mod fields;
pub mod hex;
mod keys;
mod seal;

pub use block_data::BlockData;
pub use compress::{
    Compression, Compressor, Undecodable, compress, decompress, decompress_bounded, decompress_shared,
};
pub use keys::{KeySource, MasterKey, WrappedKey};
pub use seal::{NotAuthentic, ObjectKind, Sealer, crc32c, crc64};

/// The beginning of every binary object that cistern stores, followed by one byte of version.
pub const MAGIC: [u8; 7] = *b"cistern";
