//! Sealing: the parts of an object made unforgeable and bound to their place.
//!
//! With a key: AES-256-GCM under a key of this one object, HKDF-SHA256(master key, salt, kind,
//! volume, number); the part is the nonce. Without a key: CRC32C over the same identity, the part and
//! the bytes. Either way a part that was changed, or that comes from another volume, object, kind
//! or place, does not open.
//!
//! Invariant that callers keep: one (volume, kind, salt, number, part) seals one content only.

use std::{borrow::Cow, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey},
    hkdf,
};
use crc_fast::{CrcAlgorithm::Crc32Iscsi, Digest};
use zeroize::Zeroizing;

use super::keys::{KEY_BYTES, KeyBytes, MasterKey};
use crate::units::{Salt, VolumeId};

/// Names what the derived keys are for; a later way of sealing takes another name.
const DERIVE_LABEL: &[u8] = b"cistern object 1";
/// Bytes of the identity of an object: salt, volume, kind, number.
const IDENTITY_BYTES: usize = 16 + 16 + 1 + 8;
/// Bytes of a CRC32C.
const CRC_BYTES: usize = 4;

const _: () = assert!(MAX_TAG_LEN == 16);

/// What an object is. Part of every seal, so that no object passes for another kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ObjectKind {
    Segment = 1,
    Claim = 2,
    Release = 3,
    Run = 4,
    Checkpoint = 5,
    Usage = 6,
    Roots = 7,
    Hot = 8,
}

/// The bytes are not what was sealed at this place with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its seal does not fit: damaged, out of place, or sealed with another key")]
pub struct NotAuthentic;

/// Seals and opens the parts of one object. Cheap to clone; deriving one costs about 2 us.
#[derive(Clone)]
pub struct Sealer(Arc<Inner>);

enum Inner {
    /// AES-256-GCM.
    Key(LessSafeKey),
    /// The state of CRC32C after the identity.
    Checksum(u64),
}

impl Sealer {
    /// The sealer of one object. `number` tells objects of the same kind and salt apart.
    pub fn new(key: Option<&MasterKey>, volume: VolumeId, kind: ObjectKind, salt: Salt, number: u64) -> Self {
        let mut identity = [0; IDENTITY_BYTES];
        identity[..16].copy_from_slice(&salt.0);
        identity[16..32].copy_from_slice(volume.0.as_bytes());
        identity[32] = kind as u8;
        identity[33..].copy_from_slice(&number.to_le_bytes());
        Self(Arc::new(match key {
            Some(key) => Inner::Key(object_key(key, &identity)),
            None => {
                let mut digest = Digest::new(Crc32Iscsi);
                digest.update(&identity);
                Inner::Checksum(digest.get_state())
            }
        }))
    }

    /// Bytes that a sealed part has more than its plain bytes: 16 with a key, 4 without.
    pub fn overhead(&self) -> usize {
        Self::overhead_of(matches!(&*self.0, Inner::Key(_)))
    }

    /// The same without a sealer at hand.
    pub const fn overhead_of(encrypted: bool) -> usize {
        if encrypted { MAX_TAG_LEN } else { CRC_BYTES }
    }

    /// Appends the sealed `plain` to `out`.
    pub fn seal(&self, part: u64, plain: &[u8], out: &mut Vec<u8>) {
        let from = out.len();
        out.reserve(plain.len() + self.overhead());
        out.extend_from_slice(plain);
        self.seal_tail(part, out, from);
    }

    /// Seals `out[from..]` in place and appends the overhead.
    pub fn seal_tail(&self, part: u64, out: &mut Vec<u8>, from: usize) {
        assert!(from <= out.len());
        match &*self.0 {
            Inner::Key(key) => {
                let tag = key
                    .seal_in_place_separate_tag(nonce(part), Aad::empty(), &mut out[from..])
                    .expect("parts are far below the limit of GCM (64 GiB)");
                out.extend_from_slice(tag.as_ref());
            }
            Inner::Checksum(identity) => {
                let crc = checksum(*identity, part, &out[from..]);
                out.extend_from_slice(&crc.to_le_bytes());
            }
        }
    }

    /// The plain bytes of a sealed part; borrowed from `sealed` when nothing was encrypted.
    pub fn open<'a>(&self, part: u64, sealed: &'a [u8]) -> Result<Cow<'a, [u8]>, NotAuthentic> {
        let at = sealed.len().checked_sub(self.overhead()).ok_or(NotAuthentic)?;
        let (body, tail) = sealed.split_at(at);
        match &*self.0 {
            Inner::Key(key) => {
                let mut plain = vec![0; body.len()];
                key.open_separate_gather(nonce(part), Aad::empty(), body, tail, &mut plain)
                    .map_err(|_| NotAuthentic)?;
                Ok(Cow::Owned(plain))
            }
            Inner::Checksum(identity) if tail == checksum(*identity, part, body).to_le_bytes() => {
                Ok(Cow::Borrowed(body))
            }
            Inner::Checksum(_) => Err(NotAuthentic),
        }
    }

    /// As `open`, into `plain`, which has exactly the length of the plain bytes. It holds nothing
    /// to be used when this fails.
    pub fn open_to(&self, part: u64, sealed: &[u8], plain: &mut [u8]) -> Result<(), NotAuthentic> {
        let at = sealed.len().checked_sub(self.overhead()).ok_or(NotAuthentic)?;
        let (body, tail) = sealed.split_at(at);
        assert_eq!(body.len(), plain.len(), "the caller knows the length");
        match &*self.0 {
            Inner::Key(key) => key
                .open_separate_gather(nonce(part), Aad::empty(), body, tail, plain)
                .map_err(|_| NotAuthentic),
            Inner::Checksum(identity) if tail == checksum(*identity, part, body).to_le_bytes() => {
                plain.copy_from_slice(body);
                Ok(())
            }
            Inner::Checksum(_) => Err(NotAuthentic),
        }
    }
}

/// CRC32C (Castagnoli) of bytes that are not sealed.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(Crc32Iscsi, bytes) as u32 // it fills the low half
}

fn object_key(master: &MasterKey, identity: &[u8; IDENTITY_BYTES]) -> LessSafeKey {
    let (salt, info) = identity.split_at(16);
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(master.bytes());
    let key = expand(&prk, &[DERIVE_LABEL, info]);
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &*key).expect("the key has the length of AES-256"))
}

/// A 256-bit key out of a pseudorandom key; wiped when dropped.
pub(super) fn expand(prk: &hkdf::Prk, info: &[&[u8]]) -> Zeroizing<KeyBytes> {
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    prk.expand(info, &AES_256_GCM)
        .and_then(|okm| okm.fill(&mut *key))
        .expect("32 bytes are within what HKDF-SHA256 gives");
    key
}

fn nonce(part: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&part.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

fn checksum(identity: u64, part: u64, plain: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(Crc32Iscsi, identity);
    digest.update(&part.to_le_bytes());
    digest.update(plain);
    digest.finalize() as u32 // CRC32C fills the low half
}
