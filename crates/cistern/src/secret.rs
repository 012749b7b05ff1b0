//! Keys and passphrases: where they come from, and when to ask.
//!
//! The order is: key file, CISTERN_PASSPHRASE, the terminal. What was typed is known to the whole process: nobody is asked twice. A secret is never printed, and never
//! taken from the command line, where every user of the host could see it.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io::Read,
    path::Path,
};

use cistern_engine::{Error, codec::KeySource};

use tokio::sync::Mutex;

use crate::{
    config::KeySettings,
    failure::{Failure, Kind, Outcome},
    terminal,
};

/// The variable that holds the passphrase where nobody can be asked.
pub const PASSPHRASE_VARIABLE: &str = "CISTERN_PASSPHRASE";
/// The variable that holds the new passphrase of `key change`.
pub const NEW_PASSPHRASE_VARIABLE: &str = "CISTERN_NEW_PASSPHRASE";
/// Bytes of the largest key file; anything larger is the wrong file.
const KEY_FILE_BYTES_MAX: u64 = 64 << 10;
/// Bytes below which a key file could be guessed.
const KEY_FILE_BYTES_MIN: usize = 16;

/// The passphrases that were typed, by the names of the volumes for which they are right. Whoever has it may ask: a terminal takes one answer at
/// a time.
static TYPED: Mutex<BTreeMap<String, String>> = Mutex::const_new(BTreeMap::new());

/// What is at hand without asking.
pub fn offered(settings: &KeySettings) -> Outcome<KeySource> {
    offered_from(settings, PASSPHRASE_VARIABLE)
}

fn offered_from(settings: &KeySettings, variable: &str) -> Outcome<KeySource> {
    if let Some(path) = &settings.key_file {
        return read_key_file(path);
    }
    match std::env::var(variable) {
        Ok(passphrase) if !passphrase.is_empty() => Ok(KeySource::Passphrase(passphrase)),
        Ok(_) | Err(std::env::VarError::NotPresent) => Ok(KeySource::None),
        Err(std::env::VarError::NotUnicode(_)) => {
            Err(Failure::new(Kind::Key, format!("{variable} is not valid UTF-8")))
        }
    }
}

/// The secret for something new: what is at hand, or asked for twice.
pub fn fresh(settings: &KeySettings, variable: &str) -> Outcome<KeySource> {
    match offered_from(settings, variable)? {
        KeySource::None => Ok(KeySource::Passphrase(ask_twice(variable)?)),
        given => Ok(given),
    }
}

/// The secret for a new volume of that name into which something goes: what is at hand, what was typed for a volume of its name or for what goes
/// into it, or asked for twice.
pub async fn same_or_fresh(settings: &KeySettings, name: &str) -> Outcome<KeySource> {
    let mut typed = TYPED.lock().await;
    let known = typed.get(name).or(typed.values().next()).cloned();
    let passphrase = match (offered(settings)?, known) {
        (KeySource::None, Some(known)) => known,
        (KeySource::None, None) => ask_twice(PASSPHRASE_VARIABLE)?,
        (given, _) => return Ok(given),
    };
    typed.insert(name.to_owned(), passphrase.clone());
    Ok(KeySource::Passphrase(passphrase))
}

/// Does `work` with the key at hand; when that shows that a key is needed and none was given,
/// asks for the passphrase, unless one that was typed before does it, and does it again.
pub async fn unlocking<T, F>(
    settings: &KeySettings,
    name: &str,
    work: impl Fn(KeySource) -> F,
) -> Outcome<(T, KeySource)>
where
    F: Future<Output = cistern_engine::Result<T>>,
{
    let key = offered(settings)?;
    match work(key.clone()).await {
        Err(Error::Key(_)) if matches!(key, KeySource::None) && terminal::can_ask() => {}
        other => return Ok((other?, key)),
    }
    let mut typed = TYPED.lock().await;
    let known: BTreeSet<&String> = typed.values().collect();
    // Each try costs what guessing is meant to cost: its own comes first.
    for known in typed.get(name).into_iter().chain(known) {
        let key = KeySource::Passphrase(known.clone());
        match work(key.clone()).await {
            Err(Error::Key(_)) => {}
            other => return Ok((other?, key)),
        }
    }
    let passphrase = prompt(&format!("Passphrase of {name}: "))?;
    let key = KeySource::Passphrase(passphrase.clone());
    let done = work(key.clone()).await?;
    typed.insert(name.to_owned(), passphrase);
    Ok((done, key))
}

fn ask_twice(variable: &str) -> Outcome<String> {
    if !terminal::can_ask() {
        let failure = Failure::new(Kind::Key, "there is no terminal to ask for a passphrase");
        return Err(failure.hint(format!("use a key file, or put the passphrase into {variable}")));
    }
    let first = prompt("New passphrase: ")?;
    if first.is_empty() {
        return Err(Failure::new(Kind::Key, "the passphrase is empty; nothing was done"));
    }
    if prompt("The same again: ")? != first {
        return Err(Failure::new(Kind::Key, "the two passphrases differ; nothing was done"));
    }
    Ok(first)
}

fn prompt(question: &str) -> Outcome<String> {
    rpassword::prompt_password(question).map_err(|e| Failure::io("cannot read the passphrase", &e))
}

fn read_key_file(path: &Path) -> Outcome<KeySource> {
    let failed =
        |e: std::io::Error| Failure::io(format!("the key file {} cannot be read", path.display()), &e);
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(KEY_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > KEY_FILE_BYTES_MAX || bytes.len() < KEY_FILE_BYTES_MIN {
        let limits = format!("a key file has {KEY_FILE_BYTES_MIN} to {KEY_FILE_BYTES_MAX} bytes");
        let failure = Failure::new(Kind::Key, format!("{} is not a key file: {limits}", path.display()));
        return Err(failure.hint(format!("make one with: head -c 32 /dev/urandom > {}", path.display())));
    }
    Ok(KeySource::KeyFile(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that is too short to be safe, or too long to be a key, is refused; others are used
    /// byte for byte.
    #[test]
    fn key_files() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let read = |bytes: &[u8]| {
            let path = dir.path().join("key");
            std::fs::write(&path, bytes).expect("writable");
            read_key_file(&path)
        };
        assert!(matches!(read(&[7; 32]), Ok(KeySource::KeyFile(ref bytes)) if *bytes == [7; 32]));
        assert_eq!(read(&[7; 15]).expect_err("too short").kind, Kind::Key);
        assert_eq!(read(&vec![7; 65537]).expect_err("too long").kind, Kind::Key);
        let missing = read_key_file(Path::new("/nowhere/key")).expect_err("missing");
        assert_eq!(missing.kind, Kind::NotFound);
    }
}
