//! A client written by hand, byte by byte, that can do everything wrong.
//!
//! Shares no code with the server. Blocking; every read fails after half a minute instead of
//! hanging a test.

use std::{
    io::{ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

pub const OPT_EXPORT_NAME: u32 = 1;
pub const OPT_ABORT: u32 = 2;
pub const OPT_LIST: u32 = 3;
pub const OPT_STARTTLS: u32 = 5;
pub const OPT_INFO: u32 = 6;
pub const OPT_GO: u32 = 7;
pub const OPT_STRUCTURED: u32 = 8;
pub const OPT_LIST_META: u32 = 9;
pub const OPT_SET_META: u32 = 10;
pub const OPT_EXTENDED: u32 = 11;
pub const OPT_OUTLIVE: u32 = 0x6369_7374;

pub const REP_ACK: u32 = 1;
pub const REP_SERVER: u32 = 2;
pub const REP_INFO: u32 = 3;
pub const REP_META: u32 = 4;
pub const ERR_UNSUP: u32 = 0x8000_0001;
pub const ERR_POLICY: u32 = 0x8000_0002;
pub const ERR_INVALID: u32 = 0x8000_0003;
pub const ERR_TLS_REQD: u32 = 0x8000_0005;
pub const ERR_UNKNOWN: u32 = 0x8000_0006;
pub const ERR_TOO_BIG: u32 = 0x8000_0009;
pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
pub const ERR_EXT_HEADER_REQD: u32 = 0x8000_000a;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const DISC: u16 = 2;
pub const FLUSH: u16 = 3;
pub const TRIM: u16 = 4;
pub const CACHE: u16 = 5;
pub const WRITE_ZEROES: u16 = 6;
pub const BLOCK_STATUS: u16 = 7;

pub const FUA: u16 = 1;
pub const NO_HOLE: u16 = 2;
pub const DF: u16 = 4;
pub const REQ_ONE: u16 = 8;
pub const FAST_ZERO: u16 = 16;
pub const PAYLOAD: u16 = 32;

pub const EPERM: u32 = 1;
pub const EINVAL: u32 = 22;
pub const ENOSPC: u32 = 28;
pub const ENOTSUP: u32 = 95;

pub const CHUNK_NONE: u16 = 0;
pub const CHUNK_DATA: u16 = 1;
pub const CHUNK_HOLE: u16 = 2;
pub const CHUNK_STATUS: u16 = 5;
pub const CHUNK_STATUS_EXT: u16 = 6;
pub const CHUNK_ERROR: u16 = 0x8001;

/// What the server sent in the transmission phase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Simple { errno: u32, cookie: u64 },
    Chunk { done: bool, kind: u16, cookie: u64, offset: Option<u64>, payload: Vec<u8> },
}

/// How a client wants to talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Simple,
    Structured,
    Extended,
}

pub struct Client {
    pub stream: UnixStream,
    pub extended: bool,
}

impl Client {
    /// Connects and reads the greeting, answers nothing.
    pub fn connect(path: &Path) -> Client {
        let stream = UnixStream::connect(path).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(600))).expect("a timeout can be set");
        stream.set_write_timeout(Some(Duration::from_secs(600))).expect("a timeout can be set");
        let mut client = Client { stream, extended: false };
        assert_eq!(client.take(16), b"NBDMAGICIHAVEOPT");
        assert_eq!(client.take(2), [0, 3]);
        client
    }

    /// Connects and agrees on fixed newstyle without zeroes.
    pub fn newstyle(path: &Path) -> Client {
        let mut client = Client::connect(path);
        client.send(&3u32.to_be_bytes());
        client
    }

    /// Connects, negotiates a style and `base:allocation` where possible, asks for block sizes, and goes to an export.
    pub fn go(path: &Path, name: &str, style: Style) -> Client {
        Client::go_asking(path, name, style, &[3])
    }

    /// As `go`, and asks for these pieces of information only.
    pub fn go_asking(path: &Path, name: &str, style: Style, kinds: &[u16]) -> Client {
        let mut client = Client::newstyle(path);
        match style {
            Style::Simple => {}
            Style::Structured => assert_eq!(client.option(OPT_STRUCTURED, &[]), [(REP_ACK, vec![])]),
            Style::Extended => assert_eq!(client.option(OPT_EXTENDED, &[]), [(REP_ACK, vec![])]),
        }
        if style != Style::Simple {
            let replies = client.option(OPT_SET_META, &meta(name, &["base:allocation"]));
            assert_eq!(replies.last(), Some(&(REP_ACK, vec![])));
        }
        let replies = client.option(OPT_GO, &info(name, kinds));
        assert_eq!(replies.last(), Some(&(REP_ACK, vec![])));
        client.extended = style == Style::Extended;
        client
    }

    /// Goes to an export as who gives connections to the kernel does: it goes on with the next server.
    pub fn outliving(path: &Path, name: &str) -> Client {
        let mut client = Client::newstyle(path);
        assert_eq!(client.option(OPT_OUTLIVE, &[]), [(REP_ACK, vec![])]);
        let replies = client.option(OPT_GO, &info(name, &[3]));
        assert_eq!(replies.last(), Some(&(REP_ACK, vec![])));
        client
    }

    /// Goes to an export where the server may close the connection at any time: `None` if it does, else whether the export can be had.
    pub fn try_to_go(path: &Path, name: &str) -> Option<bool> {
        let mut stream = UnixStream::connect(path).expect("the server listens");
        let option = info(name, &[]);
        let len = (option.len() as u32).to_be_bytes();
        let said = [&3u32.to_be_bytes(), &b"IHAVEOPT"[..], &OPT_GO.to_be_bytes(), &len, &option].concat();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).and_then(|()| stream.write_all(&said)).ok()?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head).ok()?;
            let (kind, len) = (u32_at(&head, 12), u32_at(&head, 16));
            stream.read_exact(&mut vec![0; len as usize]).ok()?;
            if kind == REP_ACK || kind & 1 << 31 != 0 {
                return Some(kind == REP_ACK);
            }
        }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server reads");
    }

    pub fn take(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the server answers");
        bytes
    }

    /// The server has closed the connection, and sent nothing more before.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(len) => len == 0,
            Err(error) => matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe),
        }
    }

    pub fn send_option(&mut self, code: u32, data: &[u8]) {
        self.send(&[b"IHAVEOPT", &code.to_be_bytes()[..], &(data.len() as u32).to_be_bytes(), data].concat());
    }

    /// Sends an option and takes its replies up to the final one.
    pub fn option(&mut self, code: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.send_option(code, data);
        self.option_replies(code)
    }

    /// The replies to an option that was sent, up to the final one.
    pub fn option_replies(&mut self, code: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let (kind, data) = self.option_reply(code);
            replies.push((kind, data));
            if kind == REP_ACK || kind & 1 << 31 != 0 {
                return replies;
            }
        }
    }

    /// The kind of the only reply to an option.
    pub fn verdict(&mut self, code: u32, data: &[u8]) -> u32 {
        let replies = self.option(code, data);
        assert_eq!(replies.len(), 1, "{replies:?}");
        replies[0].0
    }

    fn option_reply(&mut self, code: u32) -> (u32, Vec<u8>) {
        assert_eq!(self.take(8), 0x0003_e889_0455_65a9_u64.to_be_bytes());
        assert_eq!(self.u32(), code);
        let kind = self.u32();
        let len = self.u32();
        (kind, self.take(len as usize))
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().expect("two bytes"))
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take(4).try_into().expect("four bytes"))
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take(8).try_into().expect("eight bytes"))
    }

    pub fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, len: u64) {
        let bytes = self.header(command, flags, cookie, offset, len);
        self.send(&bytes);
    }

    pub fn header(&self, command: u16, flags: u16, cookie: u64, offset: u64, len: u64) -> Vec<u8> {
        let magic: u32 = if self.extended { 0x21e4_1c71 } else { 0x2560_9513 };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend_from_slice(&flags.to_be_bytes());
        bytes.extend_from_slice(&command.to_be_bytes());
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&offset.to_be_bytes());
        if self.extended {
            bytes.extend_from_slice(&len.to_be_bytes());
        } else {
            bytes.extend_from_slice(&u32::try_from(len).expect("a compact length").to_be_bytes());
        }
        bytes
    }

    /// Sends a write with its payload.
    pub fn send_write(&mut self, flags: u16, cookie: u64, offset: u64, data: &[u8]) {
        let flags = if self.extended { flags | PAYLOAD } else { flags };
        self.request(WRITE, flags, cookie, offset, data.len() as u64);
        self.send(data);
    }

    /// The next reply, without the data of a simple read.
    pub fn reply(&mut self) -> Reply {
        match self.u32() {
            0x6744_6698 => Reply::Simple { errno: self.u32(), cookie: self.u64() },
            0x668e_33ef => self.chunk(false),
            0x6e8a_278c => self.chunk(true),
            magic => panic!("not the magic of a reply: {magic:#x}"),
        }
    }

    fn chunk(&mut self, extended: bool) -> Reply {
        assert_eq!(extended, self.extended);
        let done = self.u16() == 1;
        let kind = self.u16();
        let cookie = self.u64();
        let offset = extended.then(|| self.u64());
        let len = if extended { self.u64() } else { u64::from(self.u32()) };
        Reply::Chunk { done, kind, cookie, offset, payload: self.take(len as usize) }
    }

    /// The errno of the next reply, whatever its style; 0 for success.
    pub fn errno(&mut self) -> u32 {
        match self.reply() {
            Reply::Simple { errno, .. } => errno,
            Reply::Chunk { done: true, kind: CHUNK_NONE, .. } => 0,
            Reply::Chunk { done: true, kind: CHUNK_ERROR, payload, .. } => {
                let text = usize::from(u16::from_be_bytes([payload[4], payload[5]]));
                assert!(text > 0 && payload.len() == 6 + text, "errors come with a text");
                u32::from_be_bytes(payload[..4].try_into().expect("four bytes"))
            }
            other => panic!("neither success nor error: {other:?}"),
        }
    }

    /// Sends a request without payload and returns the errno of its reply.
    pub fn run(&mut self, command: u16, flags: u16, offset: u64, len: u64) -> u32 {
        self.request(command, flags, 1, offset, len);
        self.errno()
    }

    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.send_write(flags, 1, offset, data);
        self.errno()
    }

    /// Reads a range in whatever style was negotiated. Err is the errno.
    pub fn read(&mut self, flags: u16, offset: u64, len: usize) -> Result<Vec<u8>, u32> {
        self.request(READ, flags, 9, offset, len as u64);
        let mut data = vec![0xaa; len];
        loop {
            match self.reply() {
                Reply::Simple { errno: 0, cookie: 9 } => return Ok(self.take(len)),
                Reply::Simple { errno, .. } => return Err(errno),
                Reply::Chunk { kind: CHUNK_ERROR, payload, .. } => {
                    return Err(u32::from_be_bytes(payload[..4].try_into().expect("four bytes")));
                }
                Reply::Chunk { done, kind, payload, cookie: 9, .. } => {
                    let at = u64::from_be_bytes(payload[..8].try_into().expect("eight bytes")) - offset;
                    let at = usize::try_from(at).expect("inside the request");
                    let content = match kind {
                        CHUNK_DATA => payload[8..].to_vec(),
                        CHUNK_HOLE => {
                            vec![0; u32::from_be_bytes(payload[8..].try_into().expect("four bytes")) as usize]
                        }
                        other => panic!("chunk {other} in a read"),
                    };
                    data[at..at + content.len()].copy_from_slice(&content);
                    if done {
                        return Ok(data);
                    }
                }
                other => panic!("not for this read: {other:?}"),
            }
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// The payload of INFO and GO.
pub fn info(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut bytes = (name.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    bytes.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    bytes
}

/// The payload of the options for metadata contexts.
pub fn meta(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = (name.len() as u32).to_be_bytes().to_vec();
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    for query in queries {
        bytes.extend_from_slice(&(query.len() as u32).to_be_bytes());
        bytes.extend_from_slice(query.as_bytes());
    }
    bytes
}
