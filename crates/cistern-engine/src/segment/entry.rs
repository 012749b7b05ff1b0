//! The shape that all log objects share, and the footers of claims and releases.
//!
//! Prefix: magic, version. Footer: sealed with its offset as part; begins with the epoch and the checkpoint, which the
//! sealing identity lacks. Trailer: head, place of the footer, CRC32C, magic, version. The last
//! eight bytes mean the same in every version.

use std::ops::Range;

use bytes::Bytes;

use super::{
    CheckpointName, Claim, Entry, EntryHead, EntryKind, FORMAT, HOST_BYTES_MAX, OBJECT_BYTES_MAX, Release,
    Rollback, Slot, TAIL_BYTES,
    footer::{self, FOOTER_BYTES_MAX, check_size},
};
use crate::{
    Error, Result,
    codec::{MAGIC, MasterKey, Sealer, crc32c, crc64, fields::Fields},
    units::{Chain, Epoch, JournalId, JournalPos, Mark, Salt, SealNonce, Seq, SnapshotId, VolumeId},
};

/// Bytes of magic and version.
pub(super) const PREFIX_BYTES: usize = 8;
/// Bytes of the trailer: volume, epoch, seq, salt, nonce, checkpoint, footer's offset and length, kind, zeroes,
/// CRC32C, magic, version.
pub(super) const TRAILER_BYTES: usize =
    16 + 8 + 8 + 16 + 8 + CHECKPOINT_BYTES + 4 + 4 + 1 + 3 + 4 + PREFIX_BYTES;
/// Bytes of a checkpoint's name.
const CHECKPOINT_BYTES: usize = 8 + 8;
/// Bytes of the head that the footer repeats.
const REPEATED_BYTES: usize = 8 + CHECKPOINT_BYTES;
/// Bytes of the trailer that its CRC32C covers.
const CHECKED_BYTES: usize = TRAILER_BYTES - 4 - PREFIX_BYTES;

const _: () = assert!(TRAILER_BYTES == 96);
/// Stands for no checkpoint: the log begins at seq 1, so none has this name.
const NO_CHECKPOINT: CheckpointName = (Epoch(0), Seq(0));

const _: () = assert!(OBJECT_BYTES_MAX <= u32::MAX as u64);

/// What the end of a log object gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    Whole(EntryHead, Entry),
    /// The object must be read from `from` to its end.
    NeedMore {
        from: u64,
    },
    /// An intact trailer names another volume: the object got into the wrong place.
    Foreign(VolumeId),
}

/// The key of the log object at a seq, relative to the volume.
pub fn object_key(seq: Seq) -> String {
    format!("log/{:016x}", seq.0)
}

/// The object of a claim.
pub fn encode_claim(key: Option<&MasterKey>, slot: &Slot, claim: &Claim) -> Bytes {
    encode_small(key, EntryKind::Claim, slot, |out| {
        let host = printable(&claim.host);
        out.extend_from_slice(&claim.wall_ms.to_le_bytes());
        out.extend_from_slice(claim.journal.0.as_bytes());
        out.extend_from_slice(&claim.start.pos.0.to_le_bytes());
        out.extend_from_slice(&claim.start.chain.0.to_le_bytes());
        out.extend_from_slice(&claim.size_bytes.to_le_bytes());
        out.push(host.len() as u8);
        out.extend_from_slice(host.as_bytes());
    })
}

/// The object of a release.
pub fn encode_release(key: Option<&MasterKey>, slot: &Slot, release: &Release) -> Bytes {
    encode_small(key, EntryKind::Release, slot, |out| {
        out.extend_from_slice(&release.wall_ms.to_le_bytes());
        out.extend_from_slice(&release.size_bytes.to_le_bytes());
        if let Some(Rollback { to, branch }) = release.rollback {
            out.extend_from_slice(to.0.as_bytes());
            out.extend_from_slice(branch.0.as_bytes());
        }
    })
}

/// What takes the place of a segment that nothing needs any more, made by who empties the slot.
pub fn encode_emptied(key: Option<&MasterKey>, slot: &Slot) -> Bytes {
    encode_small(key, EntryKind::Emptied, slot, |_| {})
}

/// A host name without control characters, cut to what a claim may hold.
pub fn printable(host: &str) -> String {
    let mut out = String::new();
    for c in host.chars().filter(|c| !c.is_control()) {
        if out.len() + c.len_utf8() > HOST_BYTES_MAX {
            break;
        }
        out.push(c);
    }
    out
}

fn encode_small(
    key: Option<&MasterKey>,
    kind: EntryKind,
    slot: &Slot,
    footer: impl FnOnce(&mut Vec<u8>),
) -> Bytes {
    let mut plain = Vec::new();
    footer(&mut plain);
    let slot = Slot { nonce: slot.nonce.mixed_with(crc64(&plain)), ..*slot };
    let sealer = Sealer::new(key, slot.volume, kind.sealed_as(), slot.salt, slot.seq.0);
    let mut body = start_object();
    append_end(&sealer.with_nonce(slot.nonce), kind, &slot, &mut body, |out| out.extend_from_slice(&plain));
    debug_assert!(
        matches!(
            read_tail(key, slot.volume, slot.seq, body.len() as u64, &body),
            Ok(Tail::Whole(head, _)) if head.kind == kind && head.epoch == slot.epoch && head.salt == slot.salt
        ),
        "what is put into the log is read"
    );
    body.into()
}

/// A new object: its prefix.
pub(super) fn start_object() -> Vec<u8> {
    let mut body = MAGIC.to_vec();
    body.push(FORMAT);
    debug_assert_eq!(body.len(), PREFIX_BYTES);
    body
}

/// Ends an object: the sealed footer, whose plain bytes `footer` appends, and the trailer.
pub(super) fn append_end(
    sealer: &Sealer,
    kind: EntryKind,
    slot: &Slot,
    body: &mut Vec<u8>,
    footer: impl FnOnce(&mut Vec<u8>),
) {
    let offset = body.len();
    body.extend_from_slice(&repeated(slot.epoch, slot.checkpoint));
    footer(body);
    debug_assert!(
        body.len() - offset <= REPEATED_BYTES + FOOTER_BYTES_MAX,
        "there is room for the longest footer"
    );
    sealer.seal_tail(offset as u64, body, offset);
    let trailer = body.len();
    body.extend_from_slice(slot.volume.0.as_bytes());
    body.extend_from_slice(&slot.epoch.0.to_le_bytes());
    body.extend_from_slice(&slot.seq.0.to_le_bytes());
    body.extend_from_slice(&slot.salt.0);
    body.extend_from_slice(&slot.nonce.0);
    body.extend_from_slice(&named(slot.checkpoint));
    body.extend_from_slice(&(offset as u32).to_le_bytes());
    body.extend_from_slice(&((trailer - offset) as u32).to_le_bytes());
    body.extend_from_slice(&[kind.sealed_as() as u8, 0, 0, 0]);
    body.extend_from_slice(&crc32c(&body[trailer..]).to_le_bytes());
    body.extend_from_slice(&MAGIC);
    body.push(FORMAT);
    debug_assert_eq!(body.len() - trailer, TRAILER_BYTES);
}

/// A checkpoint's name as bytes.
fn named(checkpoint: Option<CheckpointName>) -> [u8; CHECKPOINT_BYTES] {
    let (epoch, covered) = checkpoint.unwrap_or(NO_CHECKPOINT);
    let mut out = [0; CHECKPOINT_BYTES];
    out[..8].copy_from_slice(&epoch.0.to_le_bytes());
    out[8..].copy_from_slice(&covered.0.to_le_bytes());
    out
}

/// What the footer repeats of the head.
fn repeated(epoch: Epoch, checkpoint: Option<CheckpointName>) -> [u8; REPEATED_BYTES] {
    let mut out = [0; REPEATED_BYTES];
    out[..8].copy_from_slice(&epoch.0.to_le_bytes());
    out[8..].copy_from_slice(&named(checkpoint));
    out
}

/// The head of the log object at `seq`, out of its last bytes (96 suffice). Tells what the object
/// says of itself, checked against damage only: `read_tail` proves it.
pub fn read_head(seq: Seq, tail: &[u8]) -> Result<EntryHead> {
    Ok(read_trailer(seq, tail)?.head)
}

/// Reads the log object at `seq` of `volume` out of its last bytes. `object_bytes` is the length
/// of the whole object. `Error::Corrupt` names the object and what is wrong with it.
pub fn read_tail(
    key: Option<&MasterKey>,
    volume: VolumeId,
    seq: Seq,
    object_bytes: u64,
    tail: &[u8],
) -> Result<Tail> {
    let corrupt = |detail: String| Error::corrupt(object_key(seq), detail);
    if !((PREFIX_BYTES + TRAILER_BYTES) as u64..=OBJECT_BYTES_MAX).contains(&object_bytes) {
        return Err(corrupt(format!("not a cistern object: it has {object_bytes} bytes")));
    }
    let Some(tail_at) = object_bytes.checked_sub(tail.len() as u64) else {
        return Err(corrupt(format!("it has {object_bytes} bytes, but {} were read", tail.len())));
    };
    if tail.len() < TRAILER_BYTES {
        return Ok(Tail::NeedMore { from: object_bytes - TAIL_BYTES.min(object_bytes) });
    }
    if let Some(theirs) = foreign_volume(volume, tail) {
        return Ok(Tail::Foreign(theirs));
    }
    let trailer = read_trailer(seq, tail)?;
    let footer = footer_place(&trailer, object_bytes).map_err(|detail| corrupt(detail.to_owned()))?;
    if u64::from(footer.start) < tail_at {
        return Ok(Tail::NeedMore { from: footer.start.into() });
    }
    if tail_at == 0 && tail[..PREFIX_BYTES] != *start_object() {
        return Err(corrupt("its beginning is damaged".to_owned()));
    }
    let at = |offset: u32| (u64::from(offset) - tail_at) as usize; // both inside the tail
    let head = trailer.head;
    let sealer = Sealer::new(key, volume, head.kind.sealed_as(), head.salt, seq.0);
    let plain = sealer
        .with_nonce(head.nonce)
        .open(footer.start.into(), &tail[at(footer.start)..at(footer.end)])
        .map_err(|e| corrupt(format!("footer: {e}")))?;
    let entry = decode_entry(&head, &plain, footer.start).map_err(|detail| corrupt(detail.to_owned()))?;
    Ok(Tail::Whole(head, entry))
}

/// The volume that a log object is of, if its trailer is intact and names another one than `volume`. An
/// object whose trailer is damaged may be ours, and is never taken for another's.
fn foreign_volume(volume: VolumeId, tail: &[u8]) -> Option<VolumeId> {
    let bytes = tail.last_chunk::<TRAILER_BYTES>()?;
    let ending = bytes.last_chunk::<PREFIX_BYTES>()?;
    let known = ending[..MAGIC.len()] == MAGIC && ending[MAGIC.len()] == FORMAT;
    let theirs = parse_trailer(bytes).filter(|_| known)?.head.volume;
    (theirs != volume).then_some(theirs)
}

struct ObjectTrailer {
    head: EntryHead,
    footer_offset: u32,
    footer_bytes: u32,
}

fn read_trailer(seq: Seq, tail: &[u8]) -> Result<ObjectTrailer> {
    let corrupt = |detail: &str| Error::corrupt(object_key(seq), detail);
    let ending = tail.last_chunk::<PREFIX_BYTES>().ok_or_else(|| corrupt("not a cistern object"))?;
    let version = ending[MAGIC.len()];
    if ending[..MAGIC.len()] != MAGIC || version == 0 {
        return Err(corrupt("not a cistern object"));
    }
    if version != FORMAT {
        return Err(Error::Version { what: object_key(seq), found: version.into(), known: FORMAT.into() });
    }
    let bytes = tail.last_chunk::<TRAILER_BYTES>().ok_or_else(|| corrupt("it is cut short"))?;
    let trailer = parse_trailer(bytes).ok_or_else(|| corrupt("its trailer is damaged"))?;
    if trailer.head.seq != seq {
        return Err(corrupt(&format!("it is the entry of {}", object_key(trailer.head.seq))));
    }
    Ok(trailer)
}

fn parse_trailer(bytes: &[u8; TRAILER_BYTES]) -> Option<ObjectTrailer> {
    let (checked, rest) = bytes.split_at(CHECKED_BYTES);
    if rest[..4] != crc32c(checked).to_le_bytes() {
        return None;
    }
    let mut fields = Fields::new(checked);
    let volume = VolumeId(uuid::Uuid::from_bytes(fields.array()?));
    let epoch = Epoch(fields.u64()?);
    let seq = Seq(fields.u64()?);
    let salt = Salt(fields.array()?);
    let nonce = SealNonce(fields.array()?);
    let checkpoint = (Epoch(fields.u64()?), Seq(fields.u64()?));
    let checkpoint = Some(checkpoint).filter(|name| *name != NO_CHECKPOINT);
    let (footer_offset, footer_bytes) = (fields.u32()?, fields.u32()?);
    let [kind, zeroes @ ..] = fields.array::<4>()?;
    let kind = [EntryKind::Segment, EntryKind::Claim, EntryKind::Release, EntryKind::Emptied]
        .into_iter()
        .find(|known| known.sealed_as() as u8 == kind)?;
    (zeroes == [0; 3]).then_some(())?;
    Some(ObjectTrailer {
        head: EntryHead { kind, volume, epoch, seq, salt, nonce, checkpoint },
        footer_offset,
        footer_bytes,
    })
}

/// Where the footer lies: right before the trailer, and right behind the prefix but for segments.
fn footer_place(trailer: &ObjectTrailer, object_bytes: u64) -> Result<Range<u32>, &'static str> {
    let end = object_bytes - TRAILER_BYTES as u64;
    let start = u64::from(trailer.footer_offset);
    if start < PREFIX_BYTES as u64 || start + u64::from(trailer.footer_bytes) != end {
        return Err("its length is not what its trailer says");
    }
    Ok(trailer.footer_offset..end as u32) // OBJECT_BYTES_MAX fits
}

fn decode_entry(head: &EntryHead, plain: &[u8], footer_at: u32) -> Result<Entry, &'static str> {
    let mut fields = Fields::new(plain);
    if fields.array() != Some(repeated(head.epoch, head.checkpoint)) {
        return Err("head and footer disagree");
    }
    let frames = PREFIX_BYTES as u32..footer_at;
    if head.kind != EntryKind::Segment && !frames.is_empty() {
        return Err("only segments have frames");
    }
    let entry = match head.kind {
        EntryKind::Segment => return footer::decode(fields.rest(), head.seq, frames).map(Entry::Segment),
        EntryKind::Claim => decode_claim(&mut fields).map(Entry::Claim),
        EntryKind::Release => decode_release(&mut fields).map(Entry::Release),
        EntryKind::Emptied => Some(Entry::Emptied),
    };
    let entry = entry.filter(|_| fields.rest().is_empty()).ok_or("its footer is malformed")?;
    match &entry {
        Entry::Claim(Claim { size_bytes, .. }) | Entry::Release(Release { size_bytes, .. }) => {
            check_size(*size_bytes)?;
        }
        Entry::Segment(_) | Entry::Emptied => {}
    }
    Ok(entry)
}

fn decode_claim(fields: &mut Fields) -> Option<Claim> {
    let wall_ms = fields.u64()?;
    let journal = JournalId(uuid::Uuid::from_bytes(fields.array()?));
    let start = Mark { pos: JournalPos(fields.u64()?), chain: Chain(fields.u64()?) };
    let size_bytes = fields.u64()?;
    let host_bytes = fields.u8()?.into();
    let host = std::str::from_utf8(fields.take(host_bytes)?).ok()?;
    let host = Some(host.to_owned()).filter(|host| !host.contains(char::is_control))?;
    Some(Claim { host, wall_ms, journal, start, size_bytes })
}

fn decode_release(fields: &mut Fields) -> Option<Release> {
    let (wall_ms, size_bytes) = (fields.u64()?, fields.u64()?);
    let rollback = match fields.rest().is_empty() {
        true => None,
        false => {
            let to = SnapshotId(uuid::Uuid::from_bytes(fields.array()?));
            Some(Rollback { to, branch: VolumeId(uuid::Uuid::from_bytes(fields.array()?)) })
        }
    };
    Some(Release { wall_ms, size_bytes, rollback })
}
