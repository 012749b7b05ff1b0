//! A small NBD client, written from the protocol's specification and sharing nothing with the server.
//!
//! One request at a time over a unix socket. Two dialects: simple replies, which every server speaks,
//! and extended headers (64-bit lengths), which the clients of Debian 12 are too old for.

use std::{
    io::{Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};

const OPTION_MAGIC: u64 = 0x4948_4156_454F_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const EXTENDED_REQUEST_MAGIC: u32 = 0x21e4_1c71;
const EXTENDED_REPLY_MAGIC: u32 = 0x6e8a_278c;

const OPT_GO: u32 = 7;
const OPT_SET_META_CONTEXT: u32 = 10;
const OPT_EXTENDED_HEADERS: u32 = 11;
/// Of cistern alone: the client goes on with the next server.
const OPT_OUTLIVE: u32 = 0x6369_7374;
const INFO_BLOCK_SIZE: u16 = 3;
const REP_ACK: u32 = 1;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;

const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const CMD_DISCONNECT: u16 = 2;
const CMD_FLUSH: u16 = 3;
const CMD_TRIM: u16 = 4;
const CMD_WRITE_ZEROES: u16 = 6;
const CMD_BLOCK_STATUS: u16 = 7;
const FLAG_PAYLOAD_LEN: u16 = 32;
const CHUNK_BLOCK_STATUS_EXT: u16 = 6;

/// A reply must come within this; a server that hangs fails the test.
const REPLY_LIMIT: Duration = Duration::from_secs(120);
/// No reply of a server is longer than this.
const PAYLOAD_BYTES_MAX: u64 = 64 << 20;

/// How requests and replies look on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    Simple,
    Extended,
}

/// One range of a block status reply: bytes, and the flags of `base:allocation` (1 hole, 2 zero).
pub type Range = (u64, u64);

/// A connection in transmission.
pub struct Client {
    stream: UnixStream,
    dialect: Dialect,
    size_bytes: u64,
    cookie: u64,
}

impl Client {
    /// Connects and chooses `export` ("" is the default one).
    pub fn connect(socket: &Path, export: &str, dialect: Dialect) -> Result<Client> {
        let mut client = Client::greeted(socket, dialect)?;
        if dialect == Dialect::Extended {
            let replies = client.option(OPT_EXTENDED_HEADERS, &[])?;
            ensure!(replies.is_empty(), "unexpected reply to EXTENDED_HEADERS");
            client.choose_allocation(export)?;
        }
        client.go(export, &[])?;
        Ok(client)
    }

    /// The same as who gives connections to the kernel does it, for a client that goes on with the next server.
    pub fn connect_outliving(socket: &Path, export: &str) -> Result<Client> {
        let mut client = Client::greeted(socket, Dialect::Simple)?;
        client.option(OPT_OUTLIVE, &[])?;
        client.go(export, &[INFO_BLOCK_SIZE])?;
        Ok(client)
    }

    /// The connection itself, between two requests.
    pub fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// One that has yet to choose an export.
    fn greeted(socket: &Path, dialect: Dialect) -> Result<Client> {
        let stream = UnixStream::connect(socket).with_context(|| format!("connect {}", socket.display()))?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        let mut client = Client { stream, dialect, size_bytes: 0, cookie: 0 };
        let mut greeting = [0; 18];
        client.stream.read_exact(&mut greeting)?;
        ensure!(&greeting[..16] == b"NBDMAGICIHAVEOPT", "not a fixed newstyle server");
        client.stream.write_all(&3u32.to_be_bytes())?; // fixed newstyle, no zeroes
        Ok(client)
    }

    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Sends an option; gives the replies before the acknowledgement.
    fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<(u32, Vec<u8>)>> {
        let mut message = OPTION_MAGIC.to_be_bytes().to_vec();
        message.extend(option.to_be_bytes());
        message.extend((data.len() as u32).to_be_bytes());
        message.extend(data);
        self.stream.write_all(&message)?;
        let mut replies = Vec::new();
        loop {
            let mut head = [0; 20];
            self.stream.read_exact(&mut head)?;
            ensure!(u64_at(&head, 0) == OPTION_REPLY_MAGIC && u32_at(&head, 8) == option, "bad option reply");
            let kind = u32_at(&head, 12);
            let body = self.payload(u32_at(&head, 16).into())?;
            match kind {
                REP_ACK => return Ok(replies),
                REP_INFO | REP_META_CONTEXT => replies.push((kind, body)),
                error => bail!("option {option} refused: {error:#x} {}", String::from_utf8_lossy(&body)),
            }
        }
    }

    fn choose_allocation(&mut self, export: &str) -> Result<()> {
        let context = b"base:allocation";
        let mut data = sized(export.as_bytes());
        data.extend(1u32.to_be_bytes());
        data.extend(sized(context));
        let replies = self.option(OPT_SET_META_CONTEXT, &data)?;
        ensure!(replies.len() == 1, "no base:allocation");
        Ok(())
    }

    /// Goes to an export, and asks for these pieces of information.
    fn go(&mut self, export: &str, kinds: &[u16]) -> Result<()> {
        let mut data = sized(export.as_bytes());
        data.extend((kinds.len() as u16).to_be_bytes());
        data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
        for (_, body) in self.option(OPT_GO, &data)? {
            if body.len() == 12 && body[..2] == [0, 0] {
                self.size_bytes = u64_at(&body, 2);
            }
        }
        ensure!(self.size_bytes > 0, "the server named no size");
        Ok(())
    }

    fn payload(&mut self, bytes: u64) -> Result<Vec<u8>> {
        ensure!(bytes <= PAYLOAD_BYTES_MAX, "the server announces {bytes} bytes");
        let mut body = vec![0; bytes as usize];
        self.stream.read_exact(&mut body)?;
        Ok(body)
    }

    fn send(&mut self, command: u16, offset: u64, length: u64, data: &[u8]) -> Result<()> {
        self.cookie += 1;
        let mut message = Vec::with_capacity(32 + data.len());
        match self.dialect {
            Dialect::Simple => {
                message.extend(REQUEST_MAGIC.to_be_bytes());
                message.extend(0u16.to_be_bytes());
                message.extend(command.to_be_bytes());
                message.extend(self.cookie.to_be_bytes());
                message.extend(offset.to_be_bytes());
                let length = u32::try_from(length).context("this dialect has 32-bit lengths")?;
                message.extend(length.to_be_bytes());
            }
            Dialect::Extended => {
                let flags = if command == CMD_WRITE { FLAG_PAYLOAD_LEN } else { 0 };
                message.extend(EXTENDED_REQUEST_MAGIC.to_be_bytes());
                message.extend(flags.to_be_bytes());
                message.extend(command.to_be_bytes());
                for field in [self.cookie, offset, length] {
                    message.extend(field.to_be_bytes());
                }
            }
        }
        message.extend(data);
        self.stream.write_all(&message)?;
        Ok(())
    }

    /// Reads the whole reply of the last request: chunks of (type, payload).
    fn reply(&mut self, read_bytes: u64) -> Result<Vec<(u16, Vec<u8>)>> {
        if self.dialect == Dialect::Simple {
            let mut head = [0; 16];
            self.stream.read_exact(&mut head)?;
            ensure!(u32_at(&head, 0) == REPLY_MAGIC && u64_at(&head, 8) == self.cookie, "bad simple reply");
            ensure!(u32_at(&head, 4) == 0, "the server reports error {}", u32_at(&head, 4));
            return Ok(vec![(0, self.payload(read_bytes)?)]);
        }
        let mut chunks = Vec::new();
        loop {
            let mut head = [0; 32];
            self.stream.read_exact(&mut head)?;
            let magic_ok = u32_at(&head, 0) == EXTENDED_REPLY_MAGIC && u64_at(&head, 8) == self.cookie;
            ensure!(magic_ok, "bad extended reply");
            let kind = u16::from_be_bytes([head[6], head[7]]);
            let body = self.payload(u64_at(&head, 24))?;
            ensure!(kind & 0x8000 == 0, "the server reports an error: {body:x?}");
            chunks.push((kind, body));
            if head[5] & 1 == 1 {
                return Ok(chunks);
            }
        }
    }

    /// Writes `data` and waits for the reply.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.send(CMD_WRITE, offset, data.len() as u64, data)?;
        self.reply(0).map(drop)
    }

    /// Reads `bytes`; in the simple dialect only, where the reply is one piece.
    pub fn read(&mut self, offset: u64, bytes: u32) -> Result<Vec<u8>> {
        ensure!(self.dialect == Dialect::Simple, "reads are for the simple dialect");
        self.send(CMD_READ, offset, bytes.into(), &[])?;
        let mut chunks = self.reply(bytes.into())?;
        Ok(chunks.swap_remove(0).1)
    }

    pub fn flush(&mut self) -> Result<()> {
        self.send(CMD_FLUSH, 0, 0, &[])?;
        self.reply(0).map(drop)
    }

    pub fn trim(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.send(CMD_TRIM, offset, bytes, &[])?;
        self.reply(0).map(drop)
    }

    pub fn write_zeroes(&mut self, offset: u64, bytes: u64) -> Result<()> {
        self.send(CMD_WRITE_ZEROES, offset, bytes, &[])?;
        self.reply(0).map(drop)
    }

    /// The allocation of a range: what one reply tells, which may end before the range does.
    pub fn block_status(&mut self, offset: u64, bytes: u64) -> Result<Vec<Range>> {
        self.send(CMD_BLOCK_STATUS, offset, bytes, &[])?;
        let chunks = self.reply(0)?;
        let (_, body) = chunks
            .iter()
            .find(|(kind, _)| *kind == CHUNK_BLOCK_STATUS_EXT)
            .context("no 64-bit block status")?;
        ensure!(body.len() >= 8 && (body.len() - 8) % 16 == 0, "malformed block status");
        Ok(body[8..].chunks_exact(16).map(|range| (u64_at(range, 0), u64_at(range, 8))).collect())
    }

    /// Tells the server goodbye.
    pub fn close(mut self) -> Result<()> {
        self.send(CMD_DISCONNECT, 0, 0, &[])
    }
}

fn sized(bytes: &[u8]) -> Vec<u8> {
    let mut out = (bytes.len() as u32).to_be_bytes().to_vec();
    out.extend(bytes);
    out
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
