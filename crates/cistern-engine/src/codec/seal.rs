//! Sealing: the parts of an object made unforgeable and bound to their place.
//!
//! With a key: AES-256-GCM under a key of this one object, HKDF-SHA256(master key, salt, kind,
//! volume, number); the part is the nonce, and for objects of the log half of it, beside the nonce of the sealing that
//! is stored with every part. Without a key: CRC32C over the same identity, the part and
//! the bytes. Either way a part that was changed, or that comes from another volume, object, kind
//! or place, does not open.
//!
//! Invariant that callers keep: one (volume, kind, salt, number, nonce, part) seals one content only.

use std::{borrow::Cow, sync::Arc};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, MAX_TAG_LEN, NONCE_LEN, Nonce, UnboundKey},
    hkdf,
};
use crc_fast::{
    CrcAlgorithm::{Crc32Iscsi, Crc64Nvme},
    Digest,
};
use zeroize::Zeroizing;

use super::keys::{KEY_BYTES, KeyBytes, MasterKey};
use crate::units::{Salt, SealNonce, VolumeId};

/// Names what the derived keys are for; a later way of sealing takes another name.
const DERIVE_LABEL: &[u8] = b"cistern object 1";
/// Bytes of the identity of an object: salt, volume, kind, number.
const IDENTITY_BYTES: usize = 16 + 16 + 1 + 8;
/// Bytes of a CRC32C.
const CRC_BYTES: usize = 4;
/// Bytes of the nonce of a sealing.
const SEAL_NONCE_BYTES: usize = size_of::<SealNonce>();

const _: () = assert!(MAX_TAG_LEN == 16);
const _: () = assert!(SEAL_NONCE_BYTES + size_of::<u32>() == NONCE_LEN);

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
    Snapshots = 7,
    Hot = 8,
    Root = 9,
    Held = 10,
    Emptied = 11,
}

impl ObjectKind {
    /// Whether each part is stored with the nonce of its sealing: the salt is the epoch's, which copies of a writer
    /// have in common. All other objects draw their own.
    const fn stores_nonce(self) -> bool {
        matches!(self, ObjectKind::Segment | ObjectKind::Claim | ObjectKind::Release | ObjectKind::Emptied)
    }
}

/// The bytes are not what was sealed at this place with this key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("its seal does not fit: damaged, out of place, or sealed with another key")]
pub struct NotAuthentic;

/// Seals and opens the parts of one object. Cheap to clone; deriving one costs about 2 us.
#[derive(Clone)]
pub struct Sealer {
    inner: Arc<Inner>,
    /// Of what is sealed; what is opened must have it too. Without one, parts of any sealing open.
    nonce: Option<SealNonce>,
}

enum Inner {
    /// AES-256-GCM.
    Key { key: LessSafeKey, stores_nonce: bool },
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
        let inner = Arc::new(match key {
            Some(key) => Inner::Key { key: object_key(key, &identity), stores_nonce: kind.stores_nonce() },
            None => {
                let mut digest = Digest::new(Crc32Iscsi);
                digest.update(&identity);
                Inner::Checksum(digest.get_state())
            }
        });
        Self { inner, nonce: None }
    }

    /// The sealer of one sealing of an object of the log: what is to be sealed, or known to be, with this nonce.
    pub fn with_nonce(self, nonce: SealNonce) -> Self {
        Self { nonce: Some(nonce), ..self }
    }

    /// Bytes that a sealed part has more than its plain bytes: 4 without a key, 16 with one, 24 in objects of the log.
    pub fn overhead(&self) -> usize {
        match *self.inner {
            Inner::Key { stores_nonce, .. } => overhead(true, stores_nonce),
            Inner::Checksum(_) => overhead(false, false),
        }
    }

    /// The same for `kind`, without a sealer at hand.
    pub const fn overhead_of(kind: ObjectKind, encrypted: bool) -> usize {
        overhead(encrypted, kind.stores_nonce())
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
        match &*self.inner {
            Inner::Key { key, stores_nonce } => {
                let own =
                    stores_nonce.then(|| self.nonce.expect("objects of the log are sealed with a nonce"));
                let nonce = gcm_nonce(own, part).expect("offsets in objects of the log have 32 bits");
                let tag = key
                    .seal_in_place_separate_tag(nonce, Aad::empty(), &mut out[from..])
                    .expect("parts are far below the limit of GCM (64 GiB)");
                out.extend_from_slice(tag.as_ref());
                out.extend_from_slice(own.as_ref().map_or(&[], |own| &own.0));
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
        match &*self.inner {
            Inner::Key { key, .. } => {
                let mut plain = vec![0; body.len()];
                self.open_with(key, part, body, tail, &mut plain)?;
                Ok(Cow::Owned(plain))
            }
            Inner::Checksum(identity) if tail == checksum(*identity, part, body).to_le_bytes() => {
                Ok(Cow::Borrowed(body))
            }
            Inner::Checksum(_) => Err(NotAuthentic),
        }
    }

    /// As `open`, appended to `out`, which holds nothing to be used when this fails.
    pub fn open_onto(&self, part: u64, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), NotAuthentic> {
        let at = sealed.len().checked_sub(self.overhead()).ok_or(NotAuthentic)?;
        let (body, tail) = sealed.split_at(at);
        match &*self.inner {
            Inner::Key { key, .. } => {
                let from = out.len();
                out.resize(from + body.len(), 0);
                self.open_with(key, part, body, tail, &mut out[from..])
            }
            Inner::Checksum(identity) if tail == checksum(*identity, part, body).to_le_bytes() => {
                out.extend_from_slice(body);
                Ok(())
            }
            Inner::Checksum(_) => Err(NotAuthentic),
        }
    }

    /// Opens `body`, behind which lie the tag and, if there is one, the nonce of the sealing.
    fn open_with(
        &self,
        key: &LessSafeKey,
        part: u64,
        body: &[u8],
        tail: &[u8],
        plain: &mut [u8],
    ) -> Result<(), NotAuthentic> {
        let (tag, stored) = tail.split_at(MAX_TAG_LEN);
        let stored = stored.try_into().ok().map(SealNonce);
        if self.nonce.is_some() && stored.is_some() && self.nonce != stored {
            return Err(NotAuthentic);
        }
        let nonce = gcm_nonce(stored, part).ok_or(NotAuthentic)?;
        key.open_separate_gather(nonce, Aad::empty(), body, tag, plain).map_err(|_| NotAuthentic)
    }
}

const fn overhead(encrypted: bool, stores_nonce: bool) -> usize {
    match (encrypted, stores_nonce) {
        (false, _) => CRC_BYTES,
        (true, false) => MAX_TAG_LEN,
        (true, true) => MAX_TAG_LEN + SEAL_NONCE_BYTES,
    }
}

/// CRC-64/NVME, which makes the nonces of different contents differ.
pub fn crc64(bytes: &[u8]) -> u64 {
    crc_fast::checksum(Crc64Nvme, bytes)
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

/// The nonce of a part: beside that of the sealing, or alone. `None` if it does not fit beside it.
fn gcm_nonce(sealing: Option<SealNonce>, part: u64) -> Option<Nonce> {
    let mut bytes = [0; NONCE_LEN];
    match sealing {
        Some(SealNonce(own)) => {
            bytes[..SEAL_NONCE_BYTES].copy_from_slice(&own);
            bytes[SEAL_NONCE_BYTES..].copy_from_slice(&u32::try_from(part).ok()?.to_le_bytes());
        }
        None => bytes[..8].copy_from_slice(&part.to_le_bytes()),
    }
    Some(Nonce::assume_unique_for_key(bytes))
}

fn checksum(identity: u64, part: u64, plain: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(Crc32Iscsi, identity);
    digest.update(&part.to_le_bytes());
    digest.update(plain);
    digest.finalize() as u32 // CRC32C fills the low half
}
