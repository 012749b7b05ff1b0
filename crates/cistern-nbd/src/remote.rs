//! An export of another server, read and written by who moves data: one connection, some requests at once.
//!
//! Source: the protocol document of the NBD project (`doc/proto.md`). Blocks its thread. Speaks structured replies and `base:allocation` where
//! the server does. Believes no length that it did not ask for: what it holds is bounded by what it asked.

use std::io::{Error, ErrorKind, Read, Result, Write};

use crate::{
    client::{
        Negotiated, REPLIES_MAX, chosen, go, greet, invalid, option, read_array, read_reply, read_u32,
        read_u64, said,
    },
    wire::{
        BASE_ALLOCATION, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, chunk, cmd, info, opt,
        rep, state, trait_flag,
    },
};

/// Bytes of one request to read or write at most.
pub(crate) const REQUEST_BYTES_MAX: usize = 256 << 10;
/// Requests that are on their way at once: so 8 MiB.
const REQUESTS_MAX: usize = 32;
/// Bytes of one request for the status of blocks at most: below 4 GiB, and a multiple of every size of a block.
const STATUS_BYTES_MAX: u64 = 1 << 31;
/// Ranges of one reply that are taken.
const RANGES_MAX: usize = 64 << 10;
/// Where requests begin and end, but for the end of the export.
const ALIGN_BYTES: u64 = 4096;
/// Bytes of the longest message of an error that is taken.
const MESSAGE_BYTES_MAX: u32 = 8192;

/// A request that was sent.
struct Asked {
    cookie: u64,
    offset: u64,
    /// What is read; empty for others.
    data: Vec<u8>,
    /// So much of it came.
    came: usize,
    failed: Option<Error>,
}

/// An export of another server.
pub struct Remote<S> {
    stream: S,
    negotiated: Negotiated,
    /// Of `base:allocation`, where the server has it.
    context: Option<u32>,
    align: u64,
    /// Bytes of one request to read at most.
    request_bytes: u64,
    cookie: u64,
    asked: Vec<Asked>,
    /// What the last status of blocks was.
    ranges: Vec<(u64, bool)>,
}

impl<S: Read + Write> Remote<S> {
    /// Chooses an export on a fresh connection.
    ///
    /// # Errors
    /// Of the connection; `NotFound` where the server has no such export, with its words; `InvalidData` where it does not speak the protocol.
    pub fn open(mut stream: S, export: &str) -> Result<Remote<S>> {
        greet(&mut stream)?;
        stream.write_all(&option(opt::STRUCTURED_REPLY, &[]))?;
        stream.flush()?;
        let context = match read_reply(&mut stream, opt::STRUCTURED_REPLY)? {
            (rep::ACK, _) => choose_context(&mut stream, export)?,
            _ => None,
        };
        stream.write_all(&go(export))?;
        stream.flush()?;
        let (mut align, mut request_bytes) = (ALIGN_BYTES, REQUEST_BYTES_MAX as u64);
        let negotiated = chosen(&mut stream, |kind, body| {
            if let (info::BLOCK_SIZE, Some(sizes)) = (kind, body.first_chunk::<12>()) {
                let size = |at: usize| u64::from(u32::from_be_bytes([0, 1, 2, 3].map(|n| sizes[at + n])));
                (align, request_bytes) = (align.max(size(0)), request_bytes.min(size(8)));
            }
            Ok(())
        })?;
        if !align.is_power_of_two() || align > request_bytes {
            let text = format!("it takes requests of {align} to {request_bytes} bytes, which are not made");
            return Err(invalid(&text));
        }
        let request_bytes = request_bytes - request_bytes % align;
        let (asked, ranges) = Default::default();
        Ok(Remote { stream, negotiated, context, align, request_bytes, cookie: 0, asked, ranges })
    }

    pub fn size_bytes(&self) -> u64 {
        self.negotiated.size_bytes
    }

    /// What lies from `offset` on, at most `len` bytes: lengths, and whether it reads as zeroes. Ends early, but never before it began.
    ///
    /// # Errors
    /// Of the connection and of the server.
    pub fn ranges(&mut self, offset: u64, len: u64) -> Result<Vec<(u64, bool)>> {
        let len = len.min(self.size_bytes() - offset).min(STATUS_BYTES_MAX);
        if self.context.is_none() || len == 0 {
            return Ok(vec![(len, false)]);
        }
        self.ranges.clear();
        self.send(cmd::BLOCK_STATUS, offset, len, &[], 0)?;
        self.finish_one()?;
        let mut left = len;
        let mut ranges = Vec::new();
        for (told, is_zero) in std::mem::take(&mut self.ranges) {
            let told = told.min(left);
            left -= told;
            match ranges.last_mut() {
                Some((before, same)) if *same == is_zero => *before += told,
                _ if told > 0 => ranges.push((told, is_zero)),
                _ => {}
            }
        }
        if ranges.is_empty() {
            Err(invalid("it says nothing of the blocks it was asked for"))
        } else {
            Ok(ranges)
        }
    }

    /// Reads ranges that ascend, in requests of a bounded size of which several are on their way; gives what comes, in any order. Reads a
    /// little more around them where the server's blocks ask for it.
    ///
    /// # Errors
    /// Of `give`, of the connection and of the server. Nothing more is to be asked then.
    pub fn read_each(
        &mut self,
        ranges: impl IntoIterator<Item = (u64, usize)>,
        mut give: impl FnMut(u64, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        // Where the last request ended: neighbours may share a block.
        let (mut read_to, mut last) = (0, 0);
        for (offset, len) in ranges {
            assert!(offset >= last, "ranges ascend");
            last = offset;
            let end = (offset + len as u64).next_multiple_of(self.align).min(self.size_bytes());
            let mut at = (offset - offset % self.align).max(read_to);
            while at < end {
                let len = (end - at).min(self.request_bytes - at % self.request_bytes);
                if self.asked.len() == REQUESTS_MAX {
                    self.give_one(&mut give)?;
                }
                self.send(cmd::READ, at, len, &[], len as usize)?;
                at += len;
            }
            read_to = read_to.max(at);
        }
        while !self.asked.is_empty() {
            self.give_one(&mut give)?;
        }
        Ok(())
    }

    fn give_one(&mut self, give: &mut impl FnMut(u64, Vec<u8>) -> Result<()>) -> Result<()> {
        let asked = self.finish_one()?;
        if asked.came != asked.data.len() {
            return Err(invalid("it did not give all of what was read"));
        }
        give(asked.offset, asked.data)
    }

    /// Writes data, at most 256 KiB; others may be on their way. It is there when [`flush`](Self::flush) returned.
    ///
    /// # Errors
    /// Of the connection; of the server also those of writes before. Nothing more is to be asked then.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        if self.asked.len() == REQUESTS_MAX {
            self.finish_one()?;
        }
        self.send(cmd::WRITE, offset, data.len() as u64, data, 0)
    }

    /// Waits for everything that was written, and makes it durable.
    ///
    /// # Errors
    /// Those of the writes; of the connection and the server.
    pub fn flush(&mut self) -> Result<()> {
        while !self.asked.is_empty() {
            self.finish_one()?;
        }
        if self.negotiated.flags & trait_flag::SEND_FLUSH == 0 {
            return Ok(());
        }
        self.send(cmd::FLUSH, 0, 0, &[], 0)?;
        self.finish_one().map(drop)
    }

    /// Says goodbye.
    ///
    /// # Errors
    /// Of the connection.
    pub fn close(mut self) -> Result<()> {
        self.send(cmd::DISC, 0, 0, &[], 0)
    }

    fn send(&mut self, command: u16, offset: u64, len: u64, data: &[u8], read_bytes: usize) -> Result<()> {
        self.cookie += 1;
        let cookie = self.cookie;
        let mut head = [0; 28];
        head[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        head[6..8].copy_from_slice(&command.to_be_bytes());
        head[8..16].copy_from_slice(&cookie.to_be_bytes());
        head[16..24].copy_from_slice(&offset.to_be_bytes());
        head[24..].copy_from_slice(&u32::try_from(len).expect("requests are below 4 GiB").to_be_bytes());
        self.stream.write_all(&head)?;
        self.stream.write_all(data)?;
        self.stream.flush()?;
        if command != cmd::DISC {
            self.asked.push(Asked { cookie, offset, data: vec![0; read_bytes], came: 0, failed: None });
        }
        Ok(())
    }

    /// Reads until a request is done.
    fn finish_one(&mut self) -> Result<Asked> {
        loop {
            let magic = read_u32(&mut self.stream)?;
            let done = match magic {
                SIMPLE_REPLY_MAGIC => self.simple()?,
                STRUCTURED_REPLY_MAGIC => self.chunk()?,
                _ => return Err(invalid("its reply is not one")),
            };
            if let Some(n) = done {
                let asked = self.asked.swap_remove(n);
                return match asked.failed {
                    Some(why) => Err(why),
                    None => Ok(asked),
                };
            }
        }
    }

    fn simple(&mut self) -> Result<Option<usize>> {
        let error = read_u32(&mut self.stream)?;
        let n = self.asked_with()?;
        let asked = &mut self.asked[n];
        match error {
            0 => {
                self.stream.read_exact(&mut asked.data)?;
                asked.came = asked.data.len();
            }
            error => asked.failed = Some(refusal(error, "")),
        }
        Ok(Some(n))
    }

    fn chunk(&mut self) -> Result<Option<usize>> {
        let [flags, kind] = [(); 2].map(|()| read_array(&mut self.stream).map(u16::from_be_bytes));
        let (flags, kind) = (flags?, kind?);
        let n = self.asked_with()?;
        let len = read_u32(&mut self.stream)?;
        match kind {
            chunk::NONE if len == 0 => {}
            chunk::OFFSET_DATA => {
                let place = self.place(n, len.checked_sub(8))?;
                self.stream.read_exact(&mut self.asked[n].data[place])?;
            }
            chunk::OFFSET_HOLE if len == 12 => {
                let offset = read_u64(&mut self.stream)?;
                let bytes = read_u32(&mut self.stream)?;
                let place = self.place_at(n, offset, bytes)?;
                self.asked[n].data[place].fill(0);
            }
            chunk::BLOCK_STATUS if len >= 12 && len % 8 == 4 => self.status(len / 8)?,
            kind if kind & 1 << 15 != 0 => self.asked[n].failed = Some(self.error(len)?),
            _ => return Err(invalid("its reply has a part that was not asked for")),
        }
        Ok((flags & chunk::FLAG_DONE != 0).then_some(n))
    }

    /// Which request a reply is for.
    fn asked_with(&mut self) -> Result<usize> {
        let cookie = read_u64(&mut self.stream)?;
        let found = self.asked.iter().position(|asked| asked.cookie == cookie);
        found.ok_or_else(|| invalid("it replies to what was not asked"))
    }

    /// Where data of a reply belongs, whose place comes first.
    fn place(&mut self, n: usize, len: Option<u32>) -> Result<std::ops::Range<usize>> {
        let offset = read_u64(&mut self.stream)?;
        let len = len.ok_or_else(|| invalid("its reply is too short"))?;
        self.place_at(n, offset, len)
    }

    fn place_at(&mut self, n: usize, offset: u64, len: u32) -> Result<std::ops::Range<usize>> {
        let asked = &mut self.asked[n];
        let (bytes, len) = (asked.data.len(), len as usize);
        let from = offset.checked_sub(asked.offset).and_then(|from| usize::try_from(from).ok());
        match from.filter(|from| *from <= bytes && len <= bytes - from && len <= bytes - asked.came) {
            Some(from) => {
                asked.came += len;
                Ok(from..from + len)
            }
            None => Err(invalid("it gives data that was not asked for")),
        }
    }

    fn status(&mut self, count: u32) -> Result<()> {
        let context = read_u32(&mut self.stream)?;
        for _ in 0..count {
            let (len, flags) = (read_u32(&mut self.stream)?, read_u32(&mut self.stream)?);
            if Some(context) != self.context {
                return Err(invalid("it tells more of blocks than was asked for"));
            }
            // What does not fit is asked for again.
            if self.ranges.len() < RANGES_MAX {
                self.ranges.push((len.into(), flags & state::ZERO != 0));
            }
        }
        Ok(())
    }

    fn error(&mut self, len: u32) -> Result<Error> {
        if !(6..=MESSAGE_BYTES_MAX).contains(&len) {
            return Err(invalid("its error is not one"));
        }
        let mut body = vec![0; len as usize];
        self.stream.read_exact(&mut body)?;
        let number = u32::from_be_bytes([body[0], body[1], body[2], body[3]]);
        let message_bytes = usize::from(u16::from_be_bytes([body[4], body[5]]));
        Ok(refusal(number, &said(body.get(6..6 + message_bytes).unwrap_or_default())))
    }
}

/// What the server says it is; the numbers of the protocol are those of Linux.
fn refusal(number: u32, message: &str) -> Error {
    let error = Error::from_raw_os_error(number as i32);
    let message = if message.is_empty() { error.to_string() } else { message.to_owned() };
    Error::new(if error.kind() == ErrorKind::StorageFull { error.kind() } else { ErrorKind::Other }, message)
}

/// Chooses `base:allocation`; gives its id, if the server has it.
fn choose_context(stream: &mut (impl Read + Write), export: &str) -> Result<Option<u32>> {
    let sized = |text: &str| [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
    let data = [sized(export), 1_u32.to_be_bytes().to_vec(), sized(BASE_ALLOCATION)].concat();
    stream.write_all(&option(opt::SET_META_CONTEXT, &data))?;
    stream.flush()?;
    let mut id = None;
    for _ in 0..REPLIES_MAX {
        match read_reply(stream, opt::SET_META_CONTEXT)? {
            (rep::META_CONTEXT, body) => {
                id = body.split_first_chunk::<4>().map(|(id, _)| u32::from_be_bytes(*id));
            }
            (rep::ACK, _) => return Ok(id),
            // What is wrong with the export is said where it is chosen.
            _ => return Ok(None),
        }
    }
    Err(invalid("it does not come to an end"))
}

/// What a server says until transmission, of an export of 1 MiB: for fuzzing, and for tests.
pub(crate) fn negotiated() -> Vec<u8> {
    use crate::wire::{GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC};
    let reply = |option: u32, kind: u32, body: &[u8]| {
        let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()];
        [&head.concat()[..], &(body.len() as u32).to_be_bytes(), body].concat()
    };
    let export = [&info::EXPORT.to_be_bytes()[..], &(1_u64 << 20).to_be_bytes(), &[0, 5]].concat();
    [
        [&GREETING_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat(),
        reply(opt::STRUCTURED_REPLY, rep::ACK, &[]),
        reply(
            opt::SET_META_CONTEXT,
            rep::META_CONTEXT,
            &[&[0, 0, 0, 7], BASE_ALLOCATION.as_bytes()].concat(),
        ),
        reply(opt::SET_META_CONTEXT, rep::ACK, &[]),
        reply(opt::GO, rep::INFO, &export),
        reply(opt::GO, rep::ACK, &[]),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A server that says something whatever it hears.
    struct Server(Cursor<Vec<u8>>);

    impl Read for Server {
        fn read(&mut self, out: &mut [u8]) -> Result<usize> {
            self.0.read(out)
        }
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            Ok(bytes.len())
        }
        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn open(says: &[Vec<u8>]) -> Remote<Server> {
        let says = [negotiated(), says.concat()].concat();
        Remote::open(Server(Cursor::new(says)), "tank").expect("negotiated")
    }

    fn part(is_last: bool, kind: u16, cookie: u64, body: &[u8]) -> Vec<u8> {
        let flags = u16::from(is_last).to_be_bytes();
        let head =
            [&STRUCTURED_REPLY_MAGIC.to_be_bytes()[..], &flags, &kind.to_be_bytes(), &cookie.to_be_bytes()];
        [&head.concat()[..], &(body.len() as u32).to_be_bytes(), body].concat()
    }

    fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
        [&offset.to_be_bytes()[..], bytes].concat()
    }

    fn hole(offset: u64, len: u32) -> Vec<u8> {
        [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat()
    }

    fn simple(error: u32, cookie: u64, bytes: &[u8]) -> Vec<u8> {
        [&SIMPLE_REPLY_MAGIC.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes(), bytes].concat()
    }

    fn status(ranges: &[(u32, u32)]) -> Vec<u8> {
        let ranges = ranges.iter().flat_map(|(len, flags)| [len.to_be_bytes(), flags.to_be_bytes()]);
        [[0, 0, 0, 7]].into_iter().chain(ranges).flatten().collect()
    }

    fn read(remote: &mut Remote<Server>, ranges: &[(u64, usize)]) -> Result<Vec<(u64, Vec<u8>)>> {
        let mut came = Vec::new();
        remote.read_each(ranges.iter().copied(), |offset, bytes| {
            came.push((offset, bytes));
            Ok(())
        })?;
        Ok(came)
    }

    /// Replies come in parts, with holes, as simple ones, and in another order than they were asked for; what is asked for is whole blocks.
    #[test]
    fn what_is_read_comes_together() {
        let mut remote = open(&[
            part(false, chunk::OFFSET_DATA, 1, &data(4096, &[1; 96])),
            simple(0, 2, &[2; 4096]),
            part(false, chunk::OFFSET_HOLE, 1, &hole(4192, 4000)),
            part(true, chunk::NONE, 1, &[]),
        ]);
        let came = read(&mut remote, &[(5000, 10), (8192, 1)]).expect("read");
        assert_eq!(came, [(8192, vec![2; 4096]), (4096, [vec![1; 96], vec![0; 4000]].concat())]);
    }

    /// Ranges are told as far as was asked, neighbours as one.
    #[test]
    fn ranges_that_are_zero() {
        let told = status(&[(4096, 0), (8192, 3), (4096, 2), (1 << 30, 1)]);
        let mut remote = open(&[part(true, chunk::BLOCK_STATUS, 1, &told)]);
        let ranges = remote.ranges(0, 1 << 40).expect("told");
        assert_eq!(ranges, [(4096, false), (12288, true), ((1 << 20) - 16384, false)]);
    }

    /// What was not asked for, does not fit, is not all of it, or is refused is an error with a reason.
    #[test]
    fn a_bad_reply_is_refused() {
        for (says, expected) in [
            (vec![part(true, chunk::OFFSET_DATA, 1, &data(0, &[0; 100]))], "not give all"),
            (vec![part(true, chunk::OFFSET_DATA, 1, &data(1, &[0; 4096]))], "not asked for"),
            (vec![part(true, chunk::OFFSET_DATA, 1, &data(u64::MAX, &[0; 4096]))], "not asked for"),
            (vec![part(false, chunk::OFFSET_DATA, 1, &data(0, &[0; 4096])); 2], "not asked for"),
            (vec![part(true, chunk::OFFSET_HOLE, 1, &hole(0, u32::MAX))], "not asked for"),
            (vec![part(true, chunk::OFFSET_DATA, 9, &data(0, &[0; 4096]))], "was not asked"),
            (vec![part(true, chunk::OFFSET_DATA, 1, &[0; 4])], "fill whole buffer"),
            (vec![part(true, 77, 1, &[])], "was not asked for"),
            (
                vec![part(true, chunk::BLOCK_STATUS, 1, &[0, 0, 0, 6, 0, 0, 0, 1, 0, 0, 0, 0])],
                "more of blocks",
            ),
            (vec![part(true, chunk::ERROR, 1, &[0, 0, 0, 5, 0, 3, b'o', b'd', b'd'])], "odd"),
            (vec![part(true, chunk::ERROR, 1, &[0, 0, 0, 5])], "not one"),
            (vec![simple(5, 1, &[])], "Input/output error"),
            (vec![vec![7; 40]], "not one"),
            (vec![], "fill whole buffer"),
        ] {
            let refused = read(&mut open(&says), &[(0, 1)]).expect_err(expected).to_string();
            assert!(refused.contains(expected), "no '{expected}' in {refused}");
        }
        let nothing = open(&[part(true, chunk::NONE, 1, &[])]).ranges(0, 4096).expect_err("nothing is told");
        assert!(nothing.to_string().contains("nothing"), "{nothing}");
    }

    /// A write that fails is told by whoever comes next, at the latest by the flush.
    #[test]
    fn a_write_that_fails_is_told() {
        let mut remote = open(&[simple(0, 1, &[]), simple(28, 2, &[])]);
        remote.write(0, &[1; 512]).expect("sent");
        remote.write(512, &[1; 512]).expect("sent");
        assert_eq!(remote.flush().expect_err("it is full").kind(), ErrorKind::StorageFull);
    }
}
