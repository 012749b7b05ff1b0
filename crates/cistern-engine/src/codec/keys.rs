//! Keys: where they come from and how they are wrapped.
//!
//! A volume has one random master key for its whole life; everything sealed derives from it. The
//! master key lies in `volume.json`, wrapped under a key that the user's passphrase (Argon2id) or
//! key file (HKDF) gives, so changing the passphrase rewrites nothing else. Secrets are wiped from
//! memory when dropped and never printed.

use std::fmt;

use argon2::{Algorithm, Argon2, Params, Version};
use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    hkdf,
};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, Zeroizing};

use super::{hex, seal::expand};
use crate::{Error, Result, env::Env};

/// Bytes of a key: AES-256.
pub(super) const KEY_BYTES: usize = 32;
pub(super) type KeyBytes = [u8; KEY_BYTES];

/// A key file holds at least as much as the key that is made of it.
const KEY_FILE_BYTES_MIN: usize = 32;
/// And no more than anyone would make on purpose.
const KEY_FILE_BYTES_MAX: usize = 1 << 20;

/// Argon2id as RFC 9106, section 4, recommends where memory is not plentiful: 64 MiB, 3 passes,
/// 4 lanes.
const ARGON2: Argon2Cost = Argon2Cost { memory_kib: 64 << 10, passes: 3, lanes: 4 };
/// What a stored file may ask of us. 1 GiB and 10 passes take seconds, not for ever.
const ARGON2_MAX: Argon2Cost = Argon2Cost { memory_kib: 1 << 20, passes: 10, lanes: 16 };

/// Names what is wrapped; a later way of wrapping takes another name.
const WRAP_LABEL: &[u8] = b"cistern master key 1";
const KEY_FILE_LABEL: &[u8] = b"cistern key file 1";

/// Where the user's secret comes from.
#[derive(Clone, Default)]
pub enum KeySource {
    /// None given.
    #[default]
    None,
    /// A passphrase, stretched by Argon2id.
    Passphrase(String),
    /// The bytes of a key file.
    KeyFile(Vec<u8>),
}

impl fmt::Debug for KeySource {
    /// Never shows the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeySource::None => "KeySource::None",
            KeySource::Passphrase(_) => "KeySource::Passphrase(..)",
            KeySource::KeyFile(_) => "KeySource::KeyFile(..)",
        })
    }
}

impl Drop for KeySource {
    fn drop(&mut self) {
        match self {
            KeySource::None => {}
            KeySource::Passphrase(text) => text.zeroize(),
            KeySource::KeyFile(bytes) => bytes.zeroize(),
        }
    }
}

/// The key of a volume, 256 random bits.
pub struct MasterKey(Zeroizing<KeyBytes>);

impl fmt::Debug for MasterKey {
    /// Never shows the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MasterKey(..)")
    }
}

impl MasterKey {
    /// Draws a new key.
    pub fn generate(env: &Env) -> Self {
        Self(Zeroizing::new(env.random_bytes()))
    }

    pub(super) fn bytes(&self) -> &KeyBytes {
        &self.0
    }

    /// Wraps the key under the user's secret. Costs 64 MiB and some 100 ms with a passphrase: run
    /// it on a worker. `Error::Key` when the secret is missing or too weak to be one.
    pub fn wrap(&self, env: &Env, source: &KeySource) -> Result<WrappedKey> {
        let salt = env.random_bytes();
        let nonce = env.random_bytes();
        let derivation = match source {
            KeySource::None => return Err(key_error("a passphrase or a key file is needed to encrypt")),
            KeySource::Passphrase(_) => Derivation::Argon2id(ARGON2),
            KeySource::KeyFile(_) => Derivation::KeyFile,
        };
        let wrapping = derivation.derive(source, &salt)?;
        let mut wrapped = Zeroizing::new(*self.0);
        let tag = wrapping_key(&wrapping)
            .seal_in_place_separate_tag(
                Nonce::assume_unique_for_key(nonce),
                Aad::from(WRAP_LABEL),
                &mut *wrapped,
            )
            .expect("32 bytes are within the limit of GCM");
        let tag = tag.as_ref().try_into().expect("GCM's tag has 16 bytes");
        Ok(WrappedKey { derivation, salt, nonce, wrapped: *wrapped, tag })
    }
}

/// A master key as it lies in `volume.json`. Binary fields are hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrappedKey {
    derivation: Derivation,
    #[serde(with = "hex")]
    salt: [u8; 16],
    #[serde(with = "hex")]
    nonce: [u8; NONCE_LEN],
    #[serde(with = "hex")]
    wrapped: KeyBytes,
    #[serde(with = "hex")]
    tag: [u8; 16],
}

impl WrappedKey {
    /// The master key, if `source` is the secret it was wrapped under. `Error::Key` says what is
    /// missing or wrong. Cost as for `wrap`, within the bounds set on stored parameters.
    pub fn unwrap(&self, source: &KeySource) -> Result<MasterKey> {
        let wrapping = self.derivation.derive(source, &self.salt)?;
        let mut key = Zeroizing::new([0; KEY_BYTES]);
        wrapping_key(&wrapping)
            .open_separate_gather(
                Nonce::assume_unique_for_key(self.nonce),
                Aad::from(WRAP_LABEL),
                &self.wrapped,
                &self.tag,
                &mut *key,
            )
            .map_err(|_| match self.derivation {
                Derivation::Argon2id(_) => key_error("wrong passphrase"),
                Derivation::KeyFile => key_error("wrong key file"),
            })?;
        Ok(MasterKey(key))
    }
}

/// How the wrapping key comes from the user's secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Derivation {
    Argon2id(Argon2Cost),
    KeyFile,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Argon2Cost {
    memory_kib: u32,
    passes: u32,
    lanes: u32,
}

impl Derivation {
    fn derive(self, source: &KeySource, salt: &[u8; 16]) -> Result<Zeroizing<KeyBytes>> {
        match (self, source) {
            (_, KeySource::None) => {
                Err(key_error("the volume is encrypted: a passphrase or a key file is needed"))
            }
            (Derivation::Argon2id(cost), KeySource::Passphrase(text)) => stretch(cost, text, salt),
            (Derivation::KeyFile, KeySource::KeyFile(bytes)) => from_key_file(bytes, salt),
            (Derivation::Argon2id(_), KeySource::KeyFile(_)) => {
                Err(key_error("the volume is locked by a passphrase, not by a key file"))
            }
            (Derivation::KeyFile, KeySource::Passphrase(_)) => {
                Err(key_error("the volume is locked by a key file, not by a passphrase"))
            }
        }
    }
}

fn stretch(cost: Argon2Cost, passphrase: &str, salt: &[u8; 16]) -> Result<Zeroizing<KeyBytes>> {
    if passphrase.is_empty() {
        return Err(key_error("the passphrase is empty"));
    }
    let bounded = cost.memory_kib <= ARGON2_MAX.memory_kib
        && cost.passes <= ARGON2_MAX.passes
        && cost.lanes <= ARGON2_MAX.lanes;
    let params = Params::new(cost.memory_kib, cost.passes, cost.lanes, Some(KEY_BYTES))
        .ok()
        .filter(|_| bounded)
        .ok_or_else(|| Error::corrupt("wrapped key", format!("unreasonable Argon2id parameters {cost:?}")))?;
    let mut key = Zeroizing::new([0; KEY_BYTES]);
    Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
        .hash_password_into(passphrase.as_bytes(), salt, &mut *key)
        .map_err(|e| key_error(&format!("the passphrase cannot be stretched: {e}")))?;
    Ok(key)
}

fn from_key_file(bytes: &[u8], salt: &[u8; 16]) -> Result<Zeroizing<KeyBytes>> {
    if !(KEY_FILE_BYTES_MIN..=KEY_FILE_BYTES_MAX).contains(&bytes.len()) {
        return Err(key_error(&format!(
            "a key file holds {KEY_FILE_BYTES_MIN} to {KEY_FILE_BYTES_MAX} bytes, this one has {}",
            bytes.len()
        )));
    }
    let prk = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(bytes);
    Ok(expand(&prk, &[KEY_FILE_LABEL]))
}

fn wrapping_key(key: &KeyBytes) -> LessSafeKey {
    LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key).expect("the key has the length of AES-256"))
}

fn key_error(text: &str) -> Error {
    Error::Key(text.to_owned())
}
