//! `trash/<number>`: whether a volume is in the trash (`docs/format/volume.md`).
//!
//! Each note is written once, and the one of this volume with the highest number counts. So the store decides between
//! two who do something at once, and a request that comes late, or twice, changes nothing. Never rewrites; what is
//! outranked is deleted by [`crate::gc`]. Once a note says that the deletion has begun, no other follows it.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{keys, unlisted};
use crate::{
    Error, Result,
    codec::crc32c,
    store::{Put, Store, StoreError},
    units::{VolumeId, utc},
};

/// Version of the object.
const FORMAT: u32 = 1;
/// What the object calls itself.
const CISTERN: &str = "trash";
/// Bytes of the longest that is read; ours have below 1 KiB.
const BYTES_MAX: u64 = 64 << 10;
/// Bytes of the longest name of a host.
const HOST_BYTES_MAX: usize = 255;
/// The newest that are looked at. There is one of this volume, and another while it is replaced.
const CANDIDATES_MAX: usize = 64;
/// One may be deleted between listing and reading, because it was outranked.
const ROUNDS_MAX: usize = 8;

/// What becomes of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// In the trash.
    Removed,
    /// Out of it again.
    Restored,
    /// Its objects are being deleted.
    Deleting,
}

/// What somebody did to a volume as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub volume: VolumeId,
    pub number: u64,
    /// Drawn for this note: tells our own from one that says the same.
    pub id: Uuid,
    pub fate: Fate,
    /// When, by the clock of that host.
    pub at_ms: u64,
    /// How long the volume is to stay in the trash; 0 unless it was removed.
    pub keep_ms: u64,
    pub host: String,
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
    id: Uuid,
    fate: Fate,
    at_ms: u64,
    keep_ms: u64,
    host: String,
    /// Of the object with a zero here, without white space.
    crc32c: u32,
}

impl File {
    fn checksum(&self) -> u32 {
        let unchecked = File { crc32c: 0, ..self.clone() };
        crc32c(&serde_json::to_vec(&unchecked).expect("plain fields always serialize"))
    }
}

impl Note {
    /// The bytes of the object.
    pub fn encode(&self) -> Bytes {
        let mut file = File {
            cistern: CISTERN.to_owned(),
            format: FORMAT,
            volume: self.volume,
            number: self.number,
            id: self.id,
            fate: self.fate,
            at_ms: self.at_ms,
            keep_ms: self.keep_ms,
            host: self.host.clone(),
            crc32c: 0,
        };
        file.crc32c = file.checksum();
        let mut json = serde_json::to_vec_pretty(&file).expect("plain fields always serialize");
        json.push(b'\n');
        json.into()
    }

    /// Reads the object with this number, whatever volume it says it is of.
    pub fn decode(number: u64, bytes: &[u8]) -> Result<Note> {
        let name = keys::trash(number);
        let corrupt = |detail: String| Error::corrupt(name.clone(), detail);
        if bytes.len() as u64 > BYTES_MAX {
            return Err(corrupt(format!("not a cistern trash note: it has {} bytes", bytes.len())));
        }
        let preamble: Preamble =
            serde_json::from_slice(bytes).map_err(|e| corrupt(format!("not a cistern trash note: {e}")))?;
        if preamble.cistern != CISTERN || preamble.format == 0 {
            return Err(corrupt("not a cistern trash note".to_owned()));
        }
        if preamble.format != FORMAT {
            return Err(Error::Version { what: name, found: preamble.format, known: FORMAT });
        }
        let file: File = serde_json::from_slice(bytes).map_err(|e| corrupt(e.to_string()))?;
        if file.crc32c != file.checksum() {
            return Err(corrupt("its checksum does not fit: it is damaged, or was edited".to_owned()));
        }
        if file.number != number {
            return Err(corrupt(format!("it is {}", keys::trash(file.number))));
        }
        // It is shown on terminals.
        if file.host.len() > HOST_BYTES_MAX || file.host.chars().any(char::is_control) {
            return Err(corrupt("its host has no name".to_owned()));
        }
        let File { volume, id, fate, at_ms, keep_ms, host, .. } = file;
        Ok(Note { volume, number, id, fate, at_ms, keep_ms, host })
    }

    /// When the time in the trash is over.
    pub fn until_ms(&self) -> u64 {
        self.at_ms.saturating_add(self.keep_ms)
    }

    /// Why the volume is not to be opened, if it is not.
    pub fn refusal(&self) -> Option<Error> {
        let (host, at) = (&self.host, utc(self.at_ms));
        let what = match self.fate {
            Fate::Restored => return None,
            Fate::Removed => {
                let until = utc(self.until_ms());
                format!(
                    "it is in the trash: host {host} removed it at {at}, and it is kept until {until} at least"
                )
            }
            Fate::Deleting => format!("it is being deleted: host {host} began at {at}"),
        };
        Some(Error::InTrash { what, restorable: self.fate == Fate::Removed })
    }
}

/// The note that counts: of this volume, or of whichever has one, with the highest number.
///
/// # Errors
/// `Corrupt` when one that may outrank it does not verify.
pub async fn read_note(store: &dyn Store, volume: Option<VolumeId>) -> Result<Option<Note>> {
    note_among(store, volume, numbers(store).await?).await
}

/// The same, where the numbers were just listed.
pub(super) async fn note_among(
    store: &dyn Store,
    volume: Option<VolumeId>,
    mut numbers: Vec<u64>,
) -> Result<Option<Note>> {
    for _ in 0..ROUNDS_MAX {
        match try_notes(store, volume, &numbers).await? {
            FoundNote::Note(found) => return Ok(found),
            FoundNote::Vanished => numbers = self::numbers(store).await?,
        }
    }
    Err(Error::Unreachable("notes vanish as fast as they are listed".into()))
}

enum FoundNote {
    Note(Option<Note>),
    /// One was outranked and deleted meanwhile: look again.
    Vanished,
}

async fn try_notes(store: &dyn Store, volume: Option<VolumeId>, numbers: &[u64]) -> Result<FoundNote> {
    for &number in numbers.iter().rev().take(CANDIDATES_MAX) {
        let found = match get(store, number).await {
            // One reply may have come damaged.
            Err(Error::Corrupt { .. } | Error::Version { .. }) => get(store, number).await?,
            done => done?,
        };
        match found {
            None => return Ok(FoundNote::Vanished),
            Some(note) if volume.is_none_or(|volume| note.volume == volume) => {
                return Ok(FoundNote::Note(Some(note)));
            }
            Some(_) => {} // it came late, of a volume that is gone
        }
    }
    Ok(FoundNote::Note(None))
}

async fn get(store: &dyn Store, number: u64) -> Result<Option<Note>> {
    match store.get(&keys::trash(number), BYTES_MAX).await {
        Ok(body) => Note::decode(number, &body).map(Some),
        Err(StoreError::NotFound(_)) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The numbers of what lies there, ascending.
pub async fn numbers(store: &dyn Store) -> Result<Vec<u64>> {
    unlisted::numbers(store, keys::TRASH_PREFIX).await
}

/// The highest number of any note, 0 where there is none.
pub async fn newest_number(store: &dyn Store) -> Result<u64> {
    Ok(numbers(store).await?.last().copied().unwrap_or(0))
}

/// Puts a note behind the one with its number, which the caller has read (0: there was none), unless somebody else was
/// faster. Gives the one that counts then.
pub async fn put_note(store: &dyn Store, mut note: Note) -> Result<Note> {
    for _ in 0..CANDIDATES_MAX {
        let full = || Error::corrupt(keys::trash(note.number), "no note can outrank it");
        note.number = note.number.checked_add(1).ok_or_else(full)?;
        if !is_taken_by_another_volume(store, &note).await? {
            break;
        }
    }
    let counts = read_note(store, Some(note.volume)).await?;
    counts.ok_or_else(|| Error::Unreachable(format!("{} is not to be seen yet", keys::trash(note.number))))
}

/// Puts a note, unless there is one of this volume (ours after a lost reply, or a faster one). True where only a late
/// object of another volume is in the way.
async fn is_taken_by_another_volume(store: &dyn Store, note: &Note) -> Result<bool> {
    let (name, body) = (keys::trash(note.number), note.encode());
    if let Err(e) = Note::decode(note.number, &body) {
        return Err(Error::unreadable(name, e));
    }
    if store.put_if_absent(&name, body).await? == Put::Created {
        return Ok(false);
    }
    Ok(get(store, note.number).await?.is_some_and(|there| there.volume != note.volume))
}
