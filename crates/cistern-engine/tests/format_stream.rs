//! Streams: they read back, and nothing damaged, cut, reordered, foreign, newer or forged does.

use std::io::Cursor;

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::{BlockData, Compression, MAGIC},
    share::{SHARE_PART_BLOCKS, Share},
    stream::{
        StreamContent, StreamHeader, StreamReader, StreamRecord, StreamState, StreamTotals, StreamWriter,
    },
    units::{BLOCK_BYTES, Extent, SnapshotId},
};
use golden::{corrupt, noise, volume};
use proptest::prelude::*;
use uuid::Uuid;

mod golden;

fn state(number: u128, name: &str) -> StreamState {
    let id = SnapshotId(Uuid::from_u128(0x5ea0_0000_0000_4000_8000_0000_0000_0000 + number));
    StreamState { id, name: name.into() }
}

fn header(base: Option<StreamState>, size_bytes: u64) -> StreamHeader {
    StreamHeader {
        volume: volume(1),
        to: state(2, "tuesday"),
        base,
        size_bytes,
        made_ms: 1_709_209_845_000,
        compression: Compression::Lz4,
        share: Share::ALL,
        from: 0,
    }
}

fn data(start: u64, bytes: Vec<u8>) -> StreamRecord {
    let extent = Extent::new(start, (bytes.len() / BLOCK_BYTES) as u64);
    StreamRecord { extent, content: StreamContent::Data(BlockData::Plain(Bytes::from(bytes))) }
}

fn other(start: u64, len: u64, content: StreamContent) -> StreamRecord {
    StreamRecord { extent: Extent::new(start, len), content }
}

/// Compressed and incompressible data, zeroes, holes, neighbours and gaps, up to the last block, which is one in part.
fn sample() -> (StreamHeader, Vec<StreamRecord>) {
    let header = header(Some(state(1, "monday")), (1 << 40) + 512);
    let records = vec![
        data(0, vec![7; 3 * BLOCK_BYTES]),
        data(3, noise(&mut 5, BLOCK_BYTES)),
        other(4, 1 << 20, StreamContent::Hole),
        other(1 << 21, 5, StreamContent::Zero),
        data((1 << 28) - 15, [vec![1; 8 * BLOCK_BYTES], vec![2; 8 * BLOCK_BYTES]].concat()),
    ];
    (header, records)
}

/// The same, unpacked.
fn plain(record: StreamRecord) -> StreamRecord {
    let data = record.data().expect("what is given out unpacks");
    StreamRecord {
        content: data.map_or(record.content, |data| StreamContent::Data(BlockData::Plain(data))),
        ..record
    }
}

fn encode(header: &StreamHeader, records: &[StreamRecord]) -> Vec<u8> {
    let mut writer = StreamWriter::begin(Vec::new(), header).expect("memory");
    records.iter().for_each(|record| writer.record(record).expect("memory"));
    writer.finish().expect("memory").1
}

fn decode(bytes: &[u8]) -> Result<(StreamHeader, Vec<StreamRecord>)> {
    let (mut reader, header) = StreamReader::begin(Cursor::new(bytes))?;
    let mut records = Vec::new();
    while let Some(record) = reader.next_record()? {
        assert!(reader.totals().is_none(), "it is complete at its end");
        records.push(plain(record));
    }
    let blocks = |record: &StreamRecord| match record.content {
        StreamContent::Data(_) => record.extent.len,
        _ => 0,
    };
    let data_blocks = records.iter().map(blocks).sum();
    assert_eq!(reader.totals(), Some(StreamTotals { records: records.len() as u64, data_blocks }));
    Ok((header, records))
}

/// Where the records begin, and where the stream ends.
fn places(header: &StreamHeader, records: &[StreamRecord]) -> Vec<usize> {
    let lengths = (0..=records.len()).map(|n| encode(header, &records[..n]).len() - (24 + 32));
    lengths.chain([encode(header, records).len()]).collect()
}

/// The golden file reads back as what it was made of, and is what is written today.
#[test]
fn the_golden_file_reads_back() {
    let (header, records) = sample();
    let fresh = encode(&header, &records);
    let stored = golden::stored("stream-2.bin", &fresh);
    assert_eq!(stored, fresh);
    assert_eq!(decode(&stored).expect("whole"), (header, records));
}

/// Every byte counts: flipped, or the stream cut there, it is refused. A newer version is named.
#[test]
fn damage_is_found_at_every_byte() {
    let (mut header, records) = sample();
    header.size_bytes = 1 << 36;
    let stream = encode(&header, &records[..4]);
    for at in 0..stream.len() {
        corrupt(decode(&stream[..at]));
        let mut bad = stream.clone();
        bad[at] ^= 4;
        match decode(&bad) {
            Err(Error::Version { found: 6, .. }) => assert_eq!(at, MAGIC.len()),
            found => drop(corrupt(found)),
        }
    }
    corrupt(decode(&[&stream[..], &[0]].concat()));
    corrupt(decode(&[&stream[..], &stream].concat()));
}

/// Records that change places, are repeated, left out, or come from another stream are found, each of them whole and right in itself.
#[test]
fn records_keep_their_places() {
    let (header, records) = sample();
    let stream = encode(&header, &records);
    let at = places(&header, &records);
    let part = |n: usize| &stream[at[n]..at[n + 1]];
    let head = &stream[..at[0]];
    let all: Vec<usize> = (0..=records.len()).collect();
    let with = |order: &[usize]| {
        let parts = order.iter().map(|n| part(*n)).collect::<Vec<_>>().concat();
        decode(&[head, &parts].concat())
    };
    with(&all).expect("as it was");
    for n in 0..records.len() {
        let mut swapped = all.clone();
        swapped.swap(n, n + 1);
        corrupt(with(&swapped));
        corrupt(with(&[&all[..=n], &all[n..]].concat()));
        corrupt(with(&[&all[..n], &all[n + 1..]].concat()));
    }
    let mut theirs = header.clone();
    theirs.volume = volume(2);
    let foreign = encode(&theirs, &records);
    assert_eq!(foreign.len(), stream.len());
    for n in 0..=records.len() {
        corrupt(decode(&[&stream[..at[n]], &foreign[at[n]..]].concat()));
    }
}

/// A record as its fields say it: kind, first byte of the payload and zeroes, bytes of the rest of it, first block, blocks, that rest.
type Forged<'a> = (u8, [u8; 3], u32, u64, u64, &'a [u8]);

/// Whoever makes a stream by hand gets the checksums right; what no stream says is refused all the same.
#[test]
fn what_is_forged_is_bounded() {
    let header = header(None, 100 * BLOCK_BYTES as u64);
    let begin = encode(&header, &[]);
    let begin = &begin[..begin.len() - 56];
    let forged = |records: &[Forged]| {
        let mut out = begin.to_vec();
        let mut chain: [u8; 32] = begin[begin.len() - 32..].try_into().expect("32 bytes");
        for (kind, form, payload_bytes, first, count, payload) in records {
            let head = [
                &[*kind][..],
                form,
                &payload_bytes.to_le_bytes(),
                &first.to_le_bytes(),
                &count.to_le_bytes(),
            ]
            .concat();
            let mut hasher = blake3::Hasher::new();
            hasher.update(payload).update(&head).update(&chain);
            chain = *hasher.finalize().as_bytes();
            out.extend(&head);
            out.extend(*payload);
            out.extend(chain);
        }
        decode(&out)
    };
    let block = [7; BLOCK_BYTES];
    let len = block.len() as u32;
    let end = |records, blocks| (255, [0; 3], 0, records, blocks, &[][..]);
    forged(&[(1, [0; 3], len, 0, 1, &block), end(1, 1)]).expect("this is how it is done");
    for (record, why) in [
        ((1, [0; 3], u32::MAX, 0, 1, &block[..]), "damaged"),
        ((1, [0, 1, 0], len, 0, 1, &block), "damaged"),
        ((1, [0; 3], len, 0, 2, &block), "unpack"),
        ((1, [0; 3], len, 0, 17, &block), "no known kind"),
        ((1, [0; 3], len, 100, 1, &block), "out of order"),
        ((1, [0; 3], len, u64::MAX, 1, &block), "out of order"),
        ((1, [0; 3], 0, 0, 1, &[]), "unpack"),
        ((1, [9, 0, 0], len, 0, 1, &block), "unpack"),
        ((2, [0; 3], 1, 0, 1, &[0]), "no known kind"),
        ((2, [1, 0, 0], 0, 0, 1, &[]), "no known kind"),
        ((3, [0; 3], 0, 0, 0, &[]), "out of order"),
        ((3, [0; 3], 0, 50, u64::MAX, &[]), "out of order"),
        ((4, [0; 3], 0, 0, 1, &[]), "no known kind"),
        ((255, [0; 3], 0, 1, 0, &[]), "counts other"),
        ((255, [0; 3], 0, 0, 1, &[]), "counts other"),
        ((255, [0; 3], 1, 0, 0, &[0]), "counts other"),
        ((255, [1, 0, 0], 0, 0, 0, &[]), "counts other"),
    ] {
        let found = corrupt(forged(&[record, end(1, 1)]));
        assert!(found.contains(why), "{record:?}: {found}");
    }
    let twice = [(3, [0; 3], 0, 5, 10, &[][..]), (3, [0; 3], 0, 14, 10, &[]), end(2, 0)];
    assert!(corrupt(forged(&twice)).contains("out of order"));
}

/// What is read of a stream and written again is that stream, and nothing of it is compressed anew: what is packed is told as it
/// lies there. What is longer than what it unpacks to is not.
#[test]
fn what_is_packed_passes_as_it_is() {
    let (header, records) = sample();
    let read = |stream: &[u8]| {
        let (mut reader, _) = StreamReader::begin(Cursor::new(stream)).expect("a stream");
        let mut records = Vec::new();
        while let Some(record) = reader.next_record().expect("whole") {
            records.push(record);
        }
        records
    };
    let stream = encode(&header, &records);
    let forms = read(&stream);
    assert!(
        matches!(&forms[0].content, StreamContent::Data(BlockData::Packed(payload)) if payload.len() < 200)
    );
    assert!(matches!(forms[1].content, StreamContent::Data(BlockData::Dense(_))));
    // Whoever compressed would make something else of it.
    let again = encode(&StreamHeader { compression: Compression::None, ..header.clone() }, &forms);
    let head = places(&header, &records)[0];
    let payloads = |stream: &[u8]| {
        let (mut out, mut rest) = (Vec::new(), stream[head..].to_vec());
        while rest.len() > 24 {
            let payload = u32::from_le_bytes(rest[4..8].try_into().expect("four")) as usize;
            out.push([&rest[1..2], &rest[24..24 + payload]].concat());
            rest.drain(..24 + payload + 32);
        }
        out
    };
    assert_eq!(payloads(&again), payloads(&stream));
    let uncompressed = StreamHeader { compression: Compression::None, ..header };
    let plain = read(&encode(&uncompressed, &records[1..2]));
    assert!(
        matches!(plain[0].content, StreamContent::Data(BlockData::Plain(_))),
        "nobody tried to compress it"
    );
    // A block of lz4 that is one literal is longer than what it says.
    let literal = [&[1, 0xf0][..], &[255; 16], &[1], &noise(&mut 9, BLOCK_BYTES)].concat();
    let content = StreamContent::Data(BlockData::Packed(literal.into()));
    let long = read(&encode(&uncompressed, &[StreamRecord { extent: Extent::new(0, 1), content }]));
    assert!(matches!(long[0].content, StreamContent::Data(BlockData::Plain(_))));
}

/// A header that no stream has is refused, whatever its checksum says.
#[test]
fn a_forged_header_is_refused() {
    let (header, _) = sample();
    let stream = encode(&header, &[]);
    let end = stream.len() - 56 - 32;
    for (at, byte) in
        [(64, 1), (71, 0xff), (87, 1), (88, 9), (92, 0), (97, 0), (100, 3), (101, 1), (102, 0), (104, b'~')]
    {
        let mut bad = stream.clone();
        bad[at] = byte;
        let checksum = blake3::hash(&bad[..end]);
        bad[end..end + 32].copy_from_slice(checksum.as_bytes());
        corrupt(decode(&bad));
    }
    let mut nameless = stream.clone();
    nameless[48..64].fill(0);
    let checksum = blake3::hash(&nameless[..end]);
    nameless[end..end + 32].copy_from_slice(checksum.as_bytes());
    assert!(corrupt(decode(&nameless)).contains("base"));
}

/// A share tells of its own parts, from where it goes on; what is of another share, or before, is refused.
#[test]
fn a_share_tells_of_its_own() {
    let (mut header, _) = sample();
    (header.share, header.from) = (Share::new(1, 3).expect("one of three"), SHARE_PART_BLOCKS + 7);
    let records = [
        other(SHARE_PART_BLOCKS + 7, 3, StreamContent::Hole),
        other(2 * SHARE_PART_BLOCKS - 5, 5, StreamContent::Zero),
        data(4 * SHARE_PART_BLOCKS, vec![7; BLOCK_BYTES]),
    ];
    let stream = encode(&header, &records);
    let read = decode(&stream).expect("whole");
    assert_eq!(read, (header.clone(), records.to_vec()));
    let head = places(&header, &records)[0];
    for share in [Share::ALL, Share::new(0, 3).expect("one of three"), Share::new(1, 2).expect("one of two")]
    {
        let theirs = StreamHeader { share, ..header.clone() };
        // With the header of another share, and checksums that are right.
        let mut bytes = encode(&theirs, &[]);
        bytes.truncate(head);
        let mut chain: [u8; 32] = bytes[head - 32..].try_into().expect("32 bytes");
        let mut rest = &stream[head..];
        for _ in &records {
            let payload = u32::from_le_bytes(rest[4..8].try_into().expect("four")) as usize;
            let (body, behind) = rest.split_at(24 + payload);
            let (head, payload) = body.split_at(24);
            let mut hasher = blake3::Hasher::new();
            hasher.update(payload).update(head).update(&chain);
            chain = *hasher.finalize().as_bytes();
            bytes.extend(body);
            bytes.extend(chain);
            rest = &behind[32..];
        }
        let found = corrupt(decode(&bytes));
        let expected = if share == Share::ALL { "cut off" } else { "not of this share" };
        assert!(found.contains(expected), "{share:?}: {found}");
    }
}

/// Shares are received together: each once, of one snapshot, none missing.
#[test]
fn shares_belong_together() {
    let of = |index, count| StreamHeader { share: Share::new(index, count).expect("a share"), ..sample().0 };
    StreamHeader::check_together(&[of(0, 1)]).expect("all there is");
    StreamHeader::check_together(&[of(2, 3), of(0, 3), of(1, 3)]).expect("in any order");
    let theirs = StreamHeader { base: None, ..of(1, 2) };
    for (headers, why) in [
        (vec![], "no stream"),
        (vec![of(0, 3), of(2, 3)], "share 2 of 3 is not there"),
        (vec![of(0, 2), of(0, 2)], "twice"),
        (vec![of(0, 2), of(1, 3)], "not of one"),
        (vec![of(0, 2), theirs], "not of one"),
    ] {
        let refused = StreamHeader::check_together(&headers).expect_err(why);
        assert!(refused.to_string().contains(why), "{refused}");
    }
}

proptest! {
    #![proptest_config(golden::cases(64))]

    /// Whatever is written reads back, with any compression.
    #[test]
    fn what_is_written_reads_back(
        parts in proptest::collection::vec((0..1000_u64, 1..=16_u64, 0..4_u8), 0..40),
        rest in 0..8_u64,
        from in any::<bool>(),
        algorithm in 0..3_usize,
        full in any::<bool>(),
    ) {
        let (mut at, mut records) = (0, Vec::new());
        for (gap, len, kind) in parts {
            at += gap;
            let bytes = len as usize * BLOCK_BYTES;
            records.push(match kind {
                0 => data(at, noise(&mut at.clone(), bytes)),
                1 => data(at, vec![at as u8; bytes]),
                2 => other(at, len, StreamContent::Zero),
                _ => other(at, len, StreamContent::Hole),
            });
            at += len;
        }
        let size_bytes = (at * BLOCK_BYTES as u64 + rest * 512).max(512);
        let header = StreamHeader {
            compression: [Compression::None, Compression::Lz4, Compression::Zstd][algorithm],
            from: if from { records.first().map_or(0, |first| first.extent.start) } else { 0 },
            ..header((!full).then(|| state(9, "x")), size_bytes)
        };
        prop_assert_eq!(decode(&encode(&header, &records)).expect("whole"), (header, records));
    }
}
