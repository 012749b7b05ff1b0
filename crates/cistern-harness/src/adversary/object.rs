//! Answers to a GET of an object, right and wrong. Pure.

use std::ops::Range;

use bytes::Bytes;

use super::{AdverseAnswer, Objects, exchange::Reply};

/// Bytes of one stored block of deflate, at most.
const GZIP_BLOCK_BYTES_MAX: usize = 0xffff;

/// The range of a request for `bytes=FIRST-LAST` or `bytes=FIRST-`.
pub(super) fn range_of(header: &str) -> Option<(u64, Option<u64>)> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let last = if last.is_empty() { None } else { Some(last.parse().ok()?) };
    Some((first.parse().ok()?, last))
}

/// The answer to a GET of `name`.
pub(super) fn get(
    objects: &Objects,
    name: &str,
    range: Option<(u64, Option<u64>)>,
    answer: Option<AdverseAnswer>,
) -> Reply {
    use AdverseAnswer::*;
    let held = match answer {
        Some(BodyOther) => other(objects, name),
        _ => objects.get(name),
    };
    let Some(body) = held else { return Reply::status(404, "NoSuchKey") };
    let range = range.filter(|_| answer != Some(RangeIgnored));
    let Some((first, last)) = range else { return whole(body, answer) };
    let len = body.len() as u64;
    if first >= len {
        return Reply::status(416, "InvalidRange").with("content-range", format!("bytes */{len}"));
    }
    let end = last.map_or(len, |last| (last + 1).min(len));
    let (mut told, mut sent) = (first..end, first..end);
    let half = (end - first) / 2;
    match answer {
        Some(BodyShort) => sent.end -= half.max(1).min(end - first),
        Some(RangeShort) if half > 0 => (told.end, sent.end) = (end - half, end - half),
        Some(RangeLong) => (told.end, sent.end) = ((end + 512).min(len), (end + 512).min(len)),
        Some(RangeElsewhere) => {
            told = moved(&told, len);
            sent = told.clone();
        }
        Some(RangeShifted) => sent = moved(&sent, len),
        Some(BodyEmpty) => sent.end = sent.start,
        _ => {}
    }
    let reply = Reply::ok(slice(body, &sent)).partial();
    let reply = match answer {
        Some(RangeUnsaid) => reply,
        _ => reply.with("content-range", format!("bytes {}-{}/{len}", told.start, told.end - 1)),
    };
    dressed(reply, body, answer)
}

fn whole(body: &Bytes, answer: Option<AdverseAnswer>) -> Reply {
    use AdverseAnswer::*;
    let sent = match answer {
        Some(BodyShort) => body.slice(..body.len() / 2),
        Some(BodyEmpty) => Bytes::new(),
        _ => body.clone(),
    };
    dressed(Reply::ok(sent), body, answer)
}

/// Adds the headers of an object, and what may be wrong of any body.
fn dressed(mut reply: Reply, whole: &Bytes, answer: Option<AdverseAnswer>) -> Reply {
    use AdverseAnswer::*;
    match answer {
        Some(BodyHtml) => reply.body = Reply::html(200).body,
        Some(BodyGzip) => {
            reply.body = gzip(&reply.body).into();
            reply = reply.with("content-encoding", "gzip".into());
        }
        Some(BodyFlipped) if !reply.body.is_empty() => {
            let mut bytes = reply.body.to_vec();
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
            reply.body = bytes.into();
        }
        _ => {}
    }
    if answer != Some(TagMissing) {
        reply = reply.with("etag", tag(whole));
    }
    reply = reply.with("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT".into());
    let half = reply.body.len() / 2;
    match answer {
        Some(BodyBroken) => reply.broken_at(half),
        Some(LengthMissing) => reply.chunked(),
        _ => reply,
    }
}

/// An ETag that depends on what is in the object.
pub(super) fn tag(body: &[u8]) -> String {
    format!("\"{:08x}{:08x}\"", crc32(body), body.len())
}

/// The next object of the same directory, or the one before.
fn other<'a>(objects: &'a Objects, name: &str) -> Option<&'a Bytes> {
    let dir = name.rfind('/').map_or("", |at| &name[..=at]);
    let mut beside = objects.range(dir.to_owned()..).take_while(|(other, _)| other.starts_with(dir));
    let after =
        objects.range(name.to_owned()..).find(|(other, _)| other.as_str() != name && other.starts_with(dir));
    let other = after.or_else(|| beside.find(|(other, _)| other.as_str() != name));
    other.map(|(_, body)| body).or_else(|| objects.get(name))
}

/// A range of the same length elsewhere, as far as the object has one.
fn moved(range: &Range<u64>, len: u64) -> Range<u64> {
    let bytes = range.end - range.start;
    let start = match range.start {
        0 => bytes.min(len - bytes).min(1 << 12),
        start => start - start.min(1 << 12),
    };
    start..start + bytes
}

fn slice(body: &Bytes, range: &Range<u64>) -> Bytes {
    body.slice(range.start as usize..range.end as usize)
}

/// RFC 1952, without compression.
fn gzip(body: &[u8]) -> Vec<u8> {
    let mut out = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
    let mut blocks = body.chunks(GZIP_BLOCK_BYTES_MAX).peekable();
    if blocks.peek().is_none() {
        out.extend([1, 0, 0, 0xff, 0xff]);
    }
    while let Some(block) = blocks.next() {
        let len = block.len() as u16;
        out.push(u8::from(blocks.peek().is_none()));
        out.extend(len.to_le_bytes());
        out.extend((!len).to_le_bytes());
        out.extend(block);
    }
    out.extend(crc32(body).to_le_bytes());
    out.extend((body.len() as u32).to_le_bytes());
    out
}

/// CRC-32 of gzip, a nibble at a time.
fn crc32(bytes: &[u8]) -> u32 {
    let table: [u32; 16] = std::array::from_fn(|i| {
        (0..4).fold(i as u32, |crc, _| if crc & 1 == 1 { (crc >> 1) ^ 0xedb8_8320 } else { crc >> 1 })
    });
    let step = |crc: u32, nibble: u32| (crc >> 4) ^ table[((crc ^ nibble) & 15) as usize];
    !bytes.iter().fold(!0, |crc, byte| step(step(crc, u32::from(*byte)), u32::from(*byte) >> 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checksum is the one of RFC 1952, and what is packed is what `gzip -t` accepts.
    #[test]
    fn gzip_is_gzip() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(gzip(b"")[10..], [1, 0, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(gzip(&vec![7; 70_000]).len(), 10 + 2 * 5 + 70_000 + 8);
    }

    /// Where a range is moved, it is another one of the same length that the object has.
    #[test]
    fn a_range_moves_within_its_object() {
        assert_eq!(moved(&(0..100), 1000), 100..200);
        assert_eq!(moved(&(50..100), 100), 0..50);
        assert_eq!(moved(&(0..100), 100), 0..100, "there is no other");
        assert_eq!(range_of("bytes=5-9"), Some((5, Some(9))));
        assert_eq!(range_of("bytes=5-"), Some((5, None)));
        assert_eq!(range_of("items=5-9"), None);
    }
}
