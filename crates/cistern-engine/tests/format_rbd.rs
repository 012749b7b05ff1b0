//! Differences of rbd: what is written reads back, and nothing that is cut, out of bounds or of no known kind does.

use std::io::{Cursor, Read};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    codec::{BlockData, Compression},
    share::Share,
    stream::{
        Patch, PatchContent, RbdHeader, RbdReader, RbdWriter, StreamContent, StreamHeader, StreamRecord,
        StreamState,
    },
    units::{BLOCK_BYTES, Extent, SnapshotId},
};
use golden::{corrupt, noise, volume};
use uuid::Uuid;

mod golden;

fn decode(bytes: &[u8]) -> Result<(RbdHeader, Vec<Patch>)> {
    let (mut reader, header) = RbdReader::begin(Cursor::new(bytes))?;
    let mut patches = Vec::new();
    while let Some(patch) = reader.next_patch()? {
        assert!(!patch.is_empty() && patch.offset + patch.len() <= header.size_bytes);
        patches.push(patch);
    }
    assert_eq!(reader.next_patch().expect("it is complete"), None);
    Ok((header, patches))
}

/// A stream by the book: `rbd diff v1`, or v2, where a record says how much follows its tag.
struct Made {
    bytes: Vec<u8>,
    is_v2: bool,
}

impl Made {
    fn new(is_v2: bool) -> Made {
        let banner: &[u8] = if is_v2 { b"rbd diff v2\n" } else { b"rbd diff v1\n" };
        Made { bytes: banner.to_vec(), is_v2 }
    }

    fn record(mut self, tag: u8, numbers: &[u64], bytes: &[u8]) -> Made {
        self.bytes.push(tag);
        let body = [&numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>()[..], bytes].concat();
        if self.is_v2 {
            self.bytes.extend((body.len() as u64).to_le_bytes());
        }
        self.bytes.extend(body);
        self
    }

    fn name(self, tag: u8, name: &str) -> Made {
        let body = [&(name.len() as u32).to_le_bytes()[..], name.as_bytes()].concat();
        self.record(tag, &[], &body)
    }

    fn end(mut self) -> Vec<u8> {
        self.bytes.push(b'e');
        self.bytes
    }
}

/// Names, a size, unaligned data, zeroes, and records that have nothing.
fn sample(is_v2: bool) -> Vec<u8> {
    let made = Made::new(is_v2).name(b'f', "monday").name(b't', "tuesday").record(b's', &[100_001], &[]);
    let made = made.record(b'w', &[777, 3], b"abc").record(b'w', &[5, 0], b"").record(b'z', &[9, 0], &[]);
    made.record(b'z', &[50_000, 50_001], &[]).record(b'w', &[0, 1], b"x").end()
}

/// Both layouts read back, in the order in which they are written and to the byte; without names too.
#[test]
fn both_layouts_read_back() {
    let patch = |offset, data: &'static [u8]| {
        let content = PatchContent::Data(Bytes::from_static(data));
        Patch { offset, content }
    };
    let zeroes = Patch { offset: 50_000, content: PatchContent::Zeroes(50_001) };
    for is_v2 in [false, true] {
        let (header, patches) = decode(&sample(is_v2)).expect("whole");
        let names = (header.from.as_deref(), header.to.as_deref());
        assert_eq!((names, header.size_bytes), ((Some("monday"), Some("tuesday")), 100_001));
        assert_eq!(header.volume_bytes(), 100_352);
        assert_eq!(patches, [patch(777, b"abc"), zeroes.clone(), patch(0, b"x")]);
        let (header, patches) = decode(&Made::new(is_v2).record(b's', &[512], &[]).end()).expect("whole");
        assert_eq!((header.from, header.to, patches), (None, None, vec![]), "of a head, without any record");
    }
}

/// Cut anywhere it is refused, also between two records, and so is what follows its end.
#[test]
fn without_its_end_it_is_not_complete() {
    for is_v2 in [false, true] {
        let stream = sample(is_v2);
        for at in 0..stream.len() {
            let found = corrupt(decode(&stream[..at]));
            assert!(found.contains("cut off"), "{at}: {found}");
        }
        assert!(corrupt(decode(&[&stream[..], b"e"].concat())).contains("follows its end"));
    }
}

/// What no image has is refused: places beyond its end, no size, a size of nothing, names twice or none, lengths that are not those, kinds that
/// are not known.
#[test]
fn what_no_image_has_is_refused() {
    for is_v2 in [false, true] {
        let made = || Made::new(is_v2);
        let sized = || made().record(b's', &[100_000], &[]);
        for (bad, why) in [
            (sized().record(b'w', &[99_999, 2], b"ab"), "beyond the end"),
            (sized().record(b'z', &[u64::MAX, 2], &[]), "beyond the end"),
            (sized().record(b'z', &[1, u64::MAX], &[]), "beyond the end"),
            (sized().record(b'w', &[1, u64::MAX], &[]), "beyond the end"),
            (sized().record(b'x', &[1, 1], &[]), "no known kind"),
            (sized().record(b'z', &[0, 1], &[]).record(b's', &[5], &[]), "no known kind"),
            (sized().record(b's', &[5], &[]), "no known kind"),
            (made().name(b't', "a"), "no size"),
            (made().record(b's', &[0], &[]), "no size"),
            (made().record(b's', &[(1 << 60) + 1], &[]), "no size"),
            (made().name(b't', "a").name(b't', "b"), "once more"),
            (made().name(b't', ""), "as none is called"),
            (made().record(b't', &[], &u32::MAX.to_le_bytes()), "as none is called"),
            (made().record(b't', &[], &[1, 0, 0, 0, 0xff]), "as none is called"),
        ] {
            let found = corrupt(decode(&bad.end()));
            assert!(found.contains(why), "{found}, not {why}");
        }
    }
    let wrong = |tag: u8, len: u64| {
        let made = Made::new(true).record(b's', &[100_000], &[]).bytes;
        corrupt(decode(
            &[&made[..], &[tag], &len.to_le_bytes(), &[0; 8], &1_u64.to_le_bytes(), b"xe"].concat(),
        ))
    };
    for (tag, len) in [(b'w', 16), (b'w', u64::MAX), (b'z', 17)] {
        assert!(wrong(tag, len).contains("another length"));
    }
    assert!(corrupt(decode(b"this is not one")).contains("not a difference of rbd"));
    let whole = decode(b"rbd image v2\n").expect_err("another dialect");
    assert!(matches!(&whole, Error::Invalid(why) if why.contains("export-diff")), "{whole}");
}

/// Gives some bytes, and then zeroes for ever; counts them.
struct Endless<'a>(&'a [u8], u64);

impl Read for Endless<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.0.len().min(out.len());
        out[..n].copy_from_slice(&self.0[..n]);
        out[n..].fill(0);
        self.0 = &self.0[n..];
        self.1 += out.len() as u64;
        Ok(out.len())
    }
}

/// A record as long as the largest image comes in pieces: what is held does not depend on what it says.
#[test]
fn a_record_of_any_length_comes_in_pieces() {
    let size = 1 << 60;
    let made = Made::new(false).record(b's', &[size], &[]).record(b'w', &[777, size - 777], &[]);
    let mut endless = Endless(&made.bytes, 0);
    let (mut reader, _) = RbdReader::begin(&mut endless).expect("a header");
    let mut at = 777;
    for _ in 0..100 {
        let patch = reader.next_patch().expect("read").expect("more");
        assert!(patch.offset == at && patch.len() <= 256 << 10, "{}", patch.len());
        at += patch.len();
    }
    assert!(endless.1 < at + 1000, "no more is read than what was given out");
}

/// What is written of a snapshot is what `rbd import-diff` reads, and reads back: the last block only as far as the volume goes.
#[test]
fn what_is_written_reads_back() {
    let state = |n: u128, name: &str| StreamState { id: SnapshotId(Uuid::from_u128(n)), name: name.into() };
    let header = StreamHeader {
        volume: volume(1),
        to: state(2, "b"),
        base: Some(state(1, "a")),
        size_bytes: 10 * BLOCK_BYTES as u64 + 512,
        made_ms: 0,
        compression: Compression::Lz4,
        share: Share::ALL,
        from: 0,
    };
    let data = Bytes::from(noise(&mut 1, 2 * BLOCK_BYTES));
    let record = |start, len, content| StreamRecord { extent: Extent::new(start, len), content };
    let mut writer = RbdWriter::begin(Vec::new(), &header).expect("memory");
    for record in [
        record(1, 3, StreamContent::Hole),
        record(4, 5, StreamContent::Zero),
        record(9, 2, StreamContent::Data(BlockData::Plain(data.clone()))),
    ] {
        writer.record(&record).expect("memory");
    }
    let stream = writer.finish().expect("memory").1;
    assert!(stream.starts_with(b"rbd diff v1\nf\x01\0\0\0at\x01\0\0\0bs"));
    let block = BLOCK_BYTES as u64;
    let (read, patches) = decode(&stream).expect("whole");
    assert_eq!(
        read,
        RbdHeader { from: Some("a".into()), to: Some("b".into()), size_bytes: header.size_bytes }
    );
    let zeroes = |offset, len| Patch { offset, content: PatchContent::Zeroes(len) };
    let end = PatchContent::Data(data.slice(..BLOCK_BYTES + 512));
    assert_eq!(
        patches,
        [zeroes(block, 3 * block), zeroes(4 * block, 5 * block), Patch { offset: 9 * block, content: end }]
    );
}
