//! Entries for fuzzing: every decoder of bytes that a client or another server controls, panic-free on any input.

use std::io::{Cursor, Read, Write};

use crate::{
    Remote,
    gate::{self, Contexts, Moment, Request, Terms, Verdict},
    option,
    wire::{Header, OptionHeader},
};

/// Parses `data` as the header of an option and as the payload of every kind of option.
pub fn options(data: &[u8]) {
    if let Some(head) = data.first_chunk() {
        let _ = OptionHeader::decode(head);
    }
    let _ = option::info(data);
    let _ = option::meta(data);
    let _ = option::export_name(data);
}

/// Decodes `data` as compact and as extended request headers, and judges them: the first byte
/// selects what was negotiated (its lowest bit nothing), the rest is the header and, for a block status, its filter.
pub fn request(data: &[u8]) {
    let Some((&bits, data)) = data.split_first() else { return };
    let bit = |n: u8| bits & 1 << n != 0;
    let moment = Moment { size_bytes: 1 << 40 };
    let mut contexts = Contexts::default();
    [1, 3].into_iter().filter(|_| bit(2)).for_each(|id| contexts.add(id));
    for extended in [false, true] {
        let terms = Terms {
            extended,
            structured: extended || bit(1),
            contexts,
            read_only: bit(3),
            fast_zero: bit(4),
            aligned: !bit(5),
        };
        let decoded = match extended {
            true => data.split_first_chunk().map(|(head, rest)| (Header::extended(head), rest)),
            false => data.split_first_chunk().map(|(head, rest)| (Header::compact(head), rest)),
        };
        let Some((Ok(header), rest)) = decoded else { continue };
        let verdict = gate::judge(&header, &terms, &moment);
        if let Verdict::Run { request: Request::FilteredStatus { offset, one_range, .. }, .. } = verdict {
            let _ = gate::filter(offset, one_range, rest, &terms, &moment);
        }
    }
}

/// A server that says `data`, whatever it hears.
struct Says<'a>(Cursor<&'a [u8]>);

impl Read for Says<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(out)
    }
}

impl Write for Says<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads an export of a server that says `data`: from its greeting on, and behind a negotiation that went well.
pub fn remote(data: &[u8]) {
    let negotiated = crate::remote::negotiated();
    for says in [data, &[&negotiated[..], data].concat()] {
        let Ok(mut remote) = Remote::open(Says(Cursor::new(says)), "") else { continue };
        let size = remote.size_bytes();
        let ranges = remote.ranges(0, size.min(1 << 30)).unwrap_or_default();
        assert!(ranges.iter().map(|(len, _)| len).sum::<u64>() <= size);
        let read = remote.read_each([(0, size.min(1 << 16) as usize)], |offset, bytes| {
            assert!(offset + bytes.len() as u64 <= size);
            Ok(())
        });
        if read.is_ok() {
            let _ = remote.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        /// No bytes make an entry panic, with or without a right magic in front.
        #[test]
        fn never_panics(bits: u8, magic in 0..3usize, data in prop::collection::vec(any::<u8>(), 0..100)) {
            super::options(&data);
            super::remote(&data);
            let magic: &[u8] = [&[][..], &[0x25, 0x60, 0x95, 0x13], &[0x21, 0xe4, 0x1c, 0x71]][magic];
            super::request(&[&[bits][..], magic, &data].concat());
        }
    }
}
