//! Every decoder of bytes from outside, as a function that must not panic on any input.
//!
//! Where a checksum or a seal stands before a decoder, it is made right here first: a fuzzer cannot
//! guess it, and whoever can write to an unencrypted store can compute it. The raw bytes are tried as
//! well. The targets under `fuzz/` and the replay of their corpora are this list. Never ships.

#![forbid(unsafe_code)]

use cistern_engine::{
    codec::{Compression, MAGIC, ObjectKind, Sealer, compress, crc32c},
    journal::format::{GroupHeader, Superblock},
    log::{
        checkpoint::{self, Checkpoint},
        hot::HotSet,
        identity::Identity,
        keys,
        roots::{self, HeldBlocks, RootsObject, SnapshotTable, decode_roots},
        trash::Note,
        usage::{self, decode_usage},
        wrapping::Wrapping,
    },
    map::{self, Levels},
    segment::{self, EntryKind, open_frame, open_payload, open_raw, read_head, read_tail},
    snapshot::Operation,
    store::StoreUrl,
    stream::{self, RbdReader, StreamReader},
    units::{BLOCK_BYTES, Epoch, FrameRef, RunId, Salt, Seq, VolumeId},
};
use uuid::Uuid;

/// Name and function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("nbd_options", cistern_nbd::fuzz::options),
    ("nbd_request", cistern_nbd::fuzz::request),
    ("nbd_remote", cistern_nbd::fuzz::remote),
    ("journal_superblock", journal_superblock),
    ("journal_group", journal_group),
    ("log_entry", log_entry),
    ("frame", frame),
    ("map_block", map::fuzz::block),
    ("map_index", map::fuzz::index),
    ("checkpoint", checkpoint),
    ("usage", usage_object),
    ("roots", roots_objects),
    ("operation", operation),
    ("hot", hot),
    ("identity", identity),
    ("names", names),
    ("stream", stream),
    ("rbd", rbd),
];

/// Runs the target `name`, which must be one of [`TARGETS`].
pub fn run(name: &str, data: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(listed, _)| *listed == name).expect("the target is listed");
    target(data);
}

const VOLUME: VolumeId = VolumeId(Uuid::from_bytes([1; 16]));
const SALT: Salt = Salt([2; 16]);
const EPOCH: Epoch = Epoch(3);
const SEQ: Seq = Seq(5);
/// Version byte of hot sets, whose format keeps its own constant to itself.
const HOT_FORMAT: u8 = 1;

/// A block of the journal that begins with `magic` and ends with the right checksum.
fn journal_block(magic: &[u8; 8], data: &[u8]) -> Vec<u8> {
    let mut block = [magic, data].concat();
    block.resize(BLOCK_BYTES - 4, 0);
    block.extend(crc32c(&block).to_le_bytes());
    block
}

/// The journal's superblock: as it is, and made intact.
pub fn journal_superblock(data: &[u8]) {
    let _ = Superblock::decode(data);
    let _ = Superblock::decode(&journal_block(b"CSTNJRNL", data));
}

/// The header of a journal's group: as it is, and made intact.
pub fn journal_group(data: &[u8]) {
    let _ = GroupHeader::decode(data);
    let _ = GroupHeader::decode(&journal_block(b"CSTNGRUP", data));
}

/// Objects of the log: the bytes as they are; and as the content of a claim, a release, or a segment
/// whose frames take as many bytes as the first two say, rightly sealed.
pub fn log_entry(data: &[u8]) {
    let _ = read_head(SEQ, data);
    let _ = read_tail(None, VOLUME, SEQ, data.len() as u64, data);
    let Some((frames, footer)) = data.split_first_chunk::<2>() else { return };
    let frames = usize::from(u16::from_le_bytes(*frames));
    for (kind, frames) in [(EntryKind::Segment, frames), (EntryKind::Claim, 0), (EntryKind::Release, 0)] {
        let object = sealed_entry(kind, frames, footer);
        let _ = read_tail(None, VOLUME, SEQ, object.len() as u64, &object);
        let half = &object[object.len() / 2..];
        let _ = read_tail(None, VOLUME, SEQ, object.len() as u64, half);
    }
}

/// A log object by the book (`docs/format/segment.md`), with any footer.
fn sealed_entry(kind: EntryKind, frames: usize, footer: &[u8]) -> Vec<u8> {
    let mut object = [&MAGIC[..], &[segment::FORMAT], &vec![0; frames]].concat();
    let offset = object.len();
    let plain = [&EPOCH.0.to_le_bytes()[..], footer].concat();
    Sealer::new(None, VOLUME, kind.sealed_as(), SALT, SEQ.0).seal(offset as u64, &plain, &mut object);
    let trailer = object.len();
    object.extend(VOLUME.0.as_bytes());
    object.extend(EPOCH.0.to_le_bytes());
    object.extend(SEQ.0.to_le_bytes());
    object.extend(SALT.0);
    object.extend([6; 8]); // the nonce
    object.extend((offset as u32).to_le_bytes());
    object.extend(((trailer - offset) as u32).to_le_bytes());
    object.extend([kind.sealed_as() as u8, 0, 0, 0]);
    object.extend(crc32c(&object[trailer..]).to_le_bytes());
    object.extend(MAGIC);
    object.push(segment::FORMAT);
    object
}

/// A frame: the bytes as stored, and as the content under a right seal; and as one block of a raw frame of
/// which the first two bytes tell length and block.
pub fn frame(data: &[u8]) {
    let sealer = Sealer::new(None, VOLUME, ObjectKind::Segment, SALT, SEQ.0);
    let place = |stored: &[u8]| FrameRef { seq: SEQ, offset: 8, stored: stored.len() as u32, index: 0 };
    let _ = open_frame(&sealer, &place(data), data);
    let mut sealed = Vec::new();
    sealer.seal(8, data, &mut sealed);
    if let Ok(blocks) = open_frame(&sealer, &place(&sealed), &sealed) {
        assert!(blocks.len().is_multiple_of(BLOCK_BYTES) && !blocks.is_empty());
    }
    let (frame, blocks) = (place(&sealed), data.first().map_or(0, |first| usize::from(first & 0x7f)));
    if let Ok(Some(payload)) = open_payload(&sealer, &frame, blocks as u64, &sealed.into()) {
        assert!((1..=blocks * BLOCK_BYTES + 1).contains(&payload.len()), "it is passed on as it is");
    }
    let Some(([blocks, index], block)) = data.split_first_chunk::<2>() else { return };
    let unit = (BLOCK_BYTES + sealer.overhead()) as u32;
    let raw = FrameRef { seq: SEQ, offset: 8, stored: u32::from(*blocks) * unit, index: *index };
    let _ = open_raw(&sealer, &raw, block);
    let mut block = block.to_vec();
    block.resize(BLOCK_BYTES, 0);
    let mut sealed = Vec::new();
    sealer.seal(8 + u64::from(*index) * u64::from(unit), &block, &mut sealed);
    if let Ok(opened) = open_raw(&sealer, &raw, &sealed) {
        assert!(opened[..] == block[..] && index < blocks && *blocks <= 16);
    }
}

/// A checkpoint: the bytes as they are, and as its plain content.
pub fn checkpoint(data: &[u8]) {
    let _ = Checkpoint::decode(None, VOLUME, (EPOCH, SEQ), data);
    let mut object = [&MAGIC[..], &[checkpoint::FORMAT]].concat();
    object.extend(VOLUME.0.as_bytes());
    object.extend(EPOCH.0.to_le_bytes());
    object.extend(SEQ.0.to_le_bytes());
    object.extend(SALT.0);
    object.extend(crc32c(&object).to_le_bytes());
    let from = object.len();
    compress(Compression::Zstd, data, &mut object);
    Sealer::new(None, VOLUME, ObjectKind::Checkpoint, SALT, SEQ.0).seal_tail(0, &mut object, from);
    let _ = Checkpoint::decode(None, VOLUME, (EPOCH, SEQ), &object);
}

/// The usage of segments: the bytes as they are, and as its plain content.
pub fn usage_object(data: &[u8]) {
    let id = RunId(Uuid::from_bytes([4; 16]));
    let _ = decode_usage(None, VOLUME, id, data);
    let mut object = [&MAGIC[..], &[usage::FORMAT]].concat();
    object.extend(VOLUME.0.as_bytes());
    object.extend(id.0.as_bytes());
    let salt = Salt(id.0.into_bytes());
    Sealer::new(None, VOLUME, ObjectKind::Usage, salt, 0).seal(0, data, &mut object);
    let _ = decode_usage(None, VOLUME, id, &object);
}

/// What a checkpoint names of snapshots: the bytes as they are, and as the plain content of each kind of object.
pub fn roots_objects(data: &[u8]) {
    roots_object::<SnapshotTable>(data);
    roots_object::<Levels>(data);
    roots_object::<Vec<HeldBlocks>>(data);
}

fn roots_object<T: RootsObject>(data: &[u8]) {
    let id = RunId(Uuid::from_bytes([4; 16]));
    let _ = decode_roots::<T>(None, VOLUME, id, data);
    let mut object = [&MAGIC[..], &[roots::FORMAT]].concat();
    object.extend(VOLUME.0.as_bytes());
    object.extend(id.0.as_bytes());
    let from = object.len();
    compress(Compression::Zstd, data, &mut object);
    let salt = Salt(id.0.into_bytes());
    Sealer::new(None, VOLUME, T::KIND, salt, 0).seal_tail(0, &mut object, from);
    let _ = decode_roots::<T>(None, VOLUME, id, &object);
}

/// An operation on snapshots, as a journal or a footer has it: what is decoded is encoded again.
pub fn operation(data: &[u8]) {
    if let Some(operation) = Operation::decode(data) {
        assert_eq!(Operation::decode(&operation.encode()), Some(operation));
    }
}

/// The hot set: the bytes as they are, and as its plain content.
pub fn hot(data: &[u8]) {
    const NUMBER: u64 = 7;
    let _ = HotSet::decode(None, VOLUME, (EPOCH, NUMBER), data);
    let mut object = [&MAGIC[..], &[HOT_FORMAT]].concat();
    object.extend(VOLUME.0.as_bytes());
    object.extend(EPOCH.0.to_le_bytes());
    object.extend(NUMBER.to_le_bytes());
    object.extend(SALT.0);
    Sealer::new(None, VOLUME, ObjectKind::Hot, SALT, NUMBER).seal(0, data, &mut object);
    let _ = HotSet::decode(None, VOLUME, (EPOCH, NUMBER), &object);
}

/// `volume.json`, the wrapped key beside it, and what is noted about the trash.
pub fn identity(data: &[u8]) {
    let _ = Identity::decode(data);
    let _ = Wrapping::decode(3, data);
    let _ = Note::decode(3, data);
}

/// Names of objects and addresses of stores.
pub fn names(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = keys::parse_entry(text);
    let _ = keys::parse_wrapping(text);
    let _ = keys::parse_trash(text);
    let _ = keys::parse_run(text);
    let _ = keys::parse_checkpoint(text);
    let _ = keys::parse_hot(text);
    if let Ok(url) = StoreUrl::parse(text) {
        let _ = url.volume_name();
        let _ = url.parent();
    }
}

/// A stream: the bytes as they are; and, cut where the first byte says, as a header and records with right checksums.
pub fn stream(data: &[u8]) {
    read_stream(data);
    let Some((names, rest)) = data.split_first() else { return };
    let Some((fields, rest)) = rest.split_at_checked(88 + usize::from(*names)) else { return };
    let mut chain = Vec::new();
    let mut sealed = Vec::new();
    let mut put = |head: &[u8], payload: &[u8]| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(payload).update(head).update(&chain);
        chain = hasher.finalize().as_bytes().to_vec();
        for part in [head, payload, &chain] {
            sealed.extend_from_slice(part);
        }
    };
    put(&[&MAGIC[..], &[stream::FORMAT], b"stream\0\0", fields].concat(), &[]);
    let mut records = rest;
    while let Some((head, behind)) = records.split_first_chunk::<24>() {
        let bytes = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let (payload, behind) = behind.split_at(bytes.min(behind.len()));
        put(head, payload);
        records = behind;
    }
    read_stream(&sealed);
}

fn read_stream(bytes: &[u8]) {
    let Ok((mut reader, header)) = StreamReader::begin(bytes) else { return };
    let mut at = 0;
    while let Ok(Some(record)) = reader.next_record() {
        assert!(record.extent.start >= at && record.extent.end() <= header.blocks());
        at = record.extent.end();
        let data = record.data().expect("what is given out unpacks");
        assert_eq!(data.map_or(0, |data| data.len() as u64), record.data_bytes());
    }
}

/// A difference of rbd: the bytes as they are, and behind either banner and a size.
pub fn rbd(data: &[u8]) {
    read_rbd(data);
    read_rbd(&[b"rbd diff v1\ns\0\0\x10\0\0\0\0\0", data].concat());
    read_rbd(&[b"rbd diff v2\ns\x08\0\0\0\0\0\0\0\0\0\x10\0\0\0\0\0", data].concat());
}

fn read_rbd(bytes: &[u8]) {
    let Ok((mut reader, header)) = RbdReader::begin(bytes) else { return };
    while let Ok(Some(patch)) = reader.next_patch() {
        assert!(!patch.is_empty() && patch.offset + patch.len() <= header.size_bytes);
    }
}
