//! `keys/<number>`: the master key of an encrypted volume, wrapped under a secret of its user
//! (`docs/format/volume.md`).
//!
//! Each is written once, and the one with the highest number counts. So a put that comes late, or twice, never
//! brings back a secret that was replaced. Never rewrites; what is outranked is deleted by [`crate::gc`].

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{identity::Identity, keys, unlisted::numbers};
use crate::{
    Error, Result,
    codec::{KeySource, MasterKey, WrappedKey, crc32c},
    env::Env,
    store::{Put, Store, StoreError},
    units::VolumeId,
};

/// Version of the object.
const FORMAT: u32 = 1;
/// What the object calls itself.
const CISTERN: &str = "key";
/// Bytes of the longest that is read; ours have below 1 KiB.
const BYTES_MAX: u64 = 64 << 10;
/// The newest that are looked at. There is one, and another while it is replaced.
const CANDIDATES_MAX: usize = 64;
/// One may be deleted between listing and reading, because it was replaced.
const ROUNDS_MAX: usize = 8;

/// The identity of a volume and the key that opens it.
#[derive(Clone)]
pub struct VolumeKeys {
    pub volume: VolumeId,
    pub key: Option<Arc<MasterKey>>,
}

impl VolumeKeys {
    /// Opens the volume's key with the user's secret.
    ///
    /// # Errors
    /// `Key` says which secret is missing, wrong or not needed.
    pub async fn unlock(
        env: &Env,
        store: &dyn Store,
        identity: &Identity,
        secret: &KeySource,
    ) -> Result<VolumeKeys> {
        let volume = identity.volume;
        let key = match (identity.encrypted, secret) {
            (false, KeySource::None) => None,
            (false, _) => return Err(Error::Key(NOT_ENCRYPTED.into())),
            (true, KeySource::None) => {
                return Err(Error::Key(
                    "the volume is encrypted: a passphrase or a key file is needed".into(),
                ));
            }
            (true, _) => {
                let (wrapped, secret) = (read_wrapping(store, volume).await?.key, secret.clone());
                // Stretching a passphrase takes a second.
                Some(Arc::new(env.compute(move || wrapped.unwrap(&secret)).await?))
            }
        };
        Ok(VolumeKeys { volume, key })
    }
}

/// What a user is told who gave a secret for a volume that has none: nothing would be sealed with it.
const NOT_ENCRYPTED: &str = "the volume is not encrypted, but a passphrase or key file was given. If it is right \
     that it is not, open it without; if it was encrypted, it has been replaced";

/// A wrapped master key and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapping {
    pub volume: VolumeId,
    pub number: u64,
    pub key: WrappedKey,
}

/// The part of the object that every version has.
#[derive(Deserialize)]
struct Preamble {
    cistern: String,
    format: u32,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    cistern: String,
    format: u32,
    volume: VolumeId,
    number: u64,
    key: WrappedKey,
    /// Of the object with a zero here, without white space.
    crc32c: u32,
}

impl File {
    fn checksum(&self) -> u32 {
        let unchecked = File { crc32c: 0, ..self.clone() };
        crc32c(&serde_json::to_vec(&unchecked).expect("plain fields always serialize"))
    }
}

impl Wrapping {
    /// The bytes of the object.
    pub fn encode(&self) -> Bytes {
        let mut file = File {
            cistern: CISTERN.to_owned(),
            format: FORMAT,
            volume: self.volume,
            number: self.number,
            key: self.key.clone(),
            crc32c: 0,
        };
        file.crc32c = file.checksum();
        let mut json = serde_json::to_vec_pretty(&file).expect("plain fields always serialize");
        json.push(b'\n');
        json.into()
    }

    /// Reads the object with this number, whatever volume it says it is of.
    pub fn decode(number: u64, bytes: &[u8]) -> Result<Wrapping> {
        let name = keys::wrapping(number);
        let corrupt = |detail: String| Error::corrupt(name.clone(), detail);
        if bytes.len() as u64 > BYTES_MAX {
            return Err(corrupt(format!("not a cistern key: it has {} bytes", bytes.len())));
        }
        let preamble: Preamble =
            serde_json::from_slice(bytes).map_err(|e| corrupt(format!("not a cistern key: {e}")))?;
        if preamble.cistern != CISTERN || preamble.format == 0 {
            return Err(corrupt("not a cistern key".to_owned()));
        }
        if preamble.format != FORMAT {
            return Err(Error::Version { what: name, found: preamble.format, known: FORMAT });
        }
        let file: File = serde_json::from_slice(bytes).map_err(|e| corrupt(e.to_string()))?;
        if file.crc32c != file.checksum() {
            return Err(corrupt("its checksum does not fit: it is damaged, or was edited".to_owned()));
        }
        if file.number != number {
            return Err(corrupt(format!("it is {}", keys::wrapping(file.number))));
        }
        Ok(Wrapping { volume: file.volume, number, key: file.key })
    }
}

/// The wrapping that counts: of this volume, with the highest number.
///
/// # Errors
/// `Corrupt` when there is none, or when one that may outrank it does not verify.
pub async fn read_wrapping(store: &dyn Store, volume: VolumeId) -> Result<Wrapping> {
    for _ in 0..ROUNDS_MAX {
        if let Some(found) = try_wrappings(store, volume).await? {
            return Ok(found);
        }
    }
    Err(Error::Unreachable("keys vanish as fast as they are listed".into()))
}

/// `None` when one was replaced meanwhile: look again.
async fn try_wrappings(store: &dyn Store, volume: VolumeId) -> Result<Option<Wrapping>> {
    for number in numbers(store, keys::WRAPPING_PREFIX).await?.into_iter().rev().take(CANDIDATES_MAX) {
        let body = match store.get(&keys::wrapping(number), BYTES_MAX).await {
            Ok(body) => body,
            Err(StoreError::NotFound(_)) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let found = Wrapping::decode(number, &body)?;
        if found.volume == volume {
            return Ok(Some(found)); // else it came late, of a volume that was removed
        }
    }
    Err(Error::corrupt(keys::WRAPPING_PREFIX, "the key of the encrypted volume is not there"))
}

/// The bytes of a wrapping, once whoever opens the volume would read them.
fn readable(wrapping: &Wrapping) -> Result<Bytes> {
    let body = wrapping.encode();
    match Wrapping::decode(wrapping.number, &body) {
        Ok(_) => Ok(body),
        Err(e) => Err(Error::unreadable(keys::wrapping(wrapping.number), e)),
    }
}

/// Stores the first wrapping of a new volume.
///
/// # Errors
/// `Exists` when there is another one.
pub async fn put_wrapping(store: &dyn Store, wrapping: &Wrapping) -> Result<()> {
    let (name, body) = (keys::wrapping(wrapping.number), readable(wrapping)?);
    if store.put_if_absent(&name, body.clone()).await? == Put::Created {
        return Ok(());
    }
    match store.get(&name, BYTES_MAX).await? == body {
        true => Ok(()), // ours, the reply was lost
        false => Err(Error::Exists(name)),
    }
}

/// Puts `key` in the place of the wrapping `old`, which the caller has read, unless somebody else was faster. Gives
/// the one that counts then.
pub async fn replace_wrapping(store: &dyn Store, old: &Wrapping, key: WrappedKey) -> Result<Wrapping> {
    let mut wrapping = Wrapping { key, ..old.clone() };
    for _ in 0..CANDIDATES_MAX {
        let full = || Error::corrupt(keys::wrapping(old.number), "no key can outrank it");
        wrapping.number = wrapping.number.checked_add(1).ok_or_else(full)?;
        if !is_taken_by_another_volume(store, &wrapping).await? {
            break;
        }
    }
    read_wrapping(store, old.volume).await
}

/// Puts a wrapping, unless there is one of this volume (ours after a lost reply, or a faster change). True where
/// only a late object of another volume is in the way.
async fn is_taken_by_another_volume(store: &dyn Store, wrapping: &Wrapping) -> Result<bool> {
    let name = keys::wrapping(wrapping.number);
    if store.put_if_absent(&name, readable(wrapping)?).await? == Put::Created {
        return Ok(false);
    }
    match store.get(&name, BYTES_MAX).await {
        Ok(body) => Ok(Wrapping::decode(wrapping.number, &body)?.volume != wrapping.volume),
        Err(StoreError::NotFound(_)) => Ok(false), // replaced already, by one that counts
        Err(e) => Err(e.into()),
    }
}
