//! The client's side of a negotiation, for who hands a connection on to the kernel: simple replies, no contexts.
//!
//! Source: the protocol document of the NBD project (`doc/proto.md`). Believes no length it did not ask for.

use std::io::{Error, ErrorKind, Read, Result, Write};

use crate::wire::{GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, handshake, info, opt, rep, trait_flag};

/// Bytes of the longest reply to an option that is read.
const REPLY_BYTES_MAX: u32 = 64 << 10;
/// Replies to one option at most.
pub(crate) const REPLIES_MAX: usize = 64;

/// An export as a client gets it, behind the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Negotiated {
    pub size_bytes: u64,
    /// Transmission flags, as the protocol has them.
    pub flags: u16,
}

impl Negotiated {
    pub fn is_read_only(&self) -> bool {
        self.flags & trait_flag::READ_ONLY != 0
    }
}

/// Chooses an export on a fresh connection, whose client will go on with the next server when this one ends: what was acknowledged by then has
/// to survive it. Behind this the connection is in transmission.
///
/// # Errors
/// Of the connection; `NotFound` where the server has no such export, with its words; `InvalidData` where it does not speak the protocol.
pub fn choose_export(stream: &mut (impl Read + Write), export: &str) -> Result<Negotiated> {
    greet(stream)?;
    stream.write_all(&option(opt::OUTLIVE, &[]))?;
    stream.write_all(&go(export))?;
    stream.flush()?;
    match read_reply(stream, opt::OUTLIVE)? {
        (rep::ACK, _) => {}
        (rep::ERR_TLS_REQD, _) => return Err(invalid("it wants TLS")),
        _ => {
            return Err(invalid(
                "what it acknowledges may be lost when it ends: it is no cistern, or an old one",
            ));
        }
    }
    chosen(stream, |_, _| Ok(()))
}

/// Reads the greeting, and answers it.
pub(crate) fn greet(stream: &mut (impl Read + Write)) -> Result<()> {
    if read_u64(stream)? != GREETING_MAGIC || read_u64(stream)? != OPTION_MAGIC {
        return Err(invalid("it does not greet like an NBD server"));
    }
    let flags = u32::from(u16::from_be_bytes(read_array(stream)?));
    if flags & handshake::FIXED_NEWSTYLE == 0 {
        return Err(invalid("it does not negotiate"));
    }
    stream.write_all(&(flags & (handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES)).to_be_bytes())
}

/// An option as it is sent.
pub(crate) fn option(code: u32, data: &[u8]) -> Vec<u8> {
    [&OPTION_MAGIC.to_be_bytes()[..], &code.to_be_bytes(), &(data.len() as u32).to_be_bytes(), data].concat()
}

/// Reads what is said of the export that was asked for; whatever else is said of it goes to `other`, by its kind.
pub(crate) fn chosen(
    stream: &mut impl Read,
    mut other: impl FnMut(u16, &[u8]) -> Result<()>,
) -> Result<Negotiated> {
    let mut negotiated = None;
    for _ in 0..REPLIES_MAX {
        let (kind, body) = read_reply(stream, opt::GO)?;
        match (kind, negotiated) {
            (rep::ACK, Some(negotiated)) => return Ok(negotiated),
            (rep::INFO, _) => match information(&body)? {
                (info::EXPORT, rest) => negotiated = Some(export_info(rest)?),
                (kind, rest) => other(kind, rest)?,
            },
            (rep::ACK, None) => return Err(invalid("it tells no size")),
            (rep::ERR_UNKNOWN, _) => return Err(Error::new(ErrorKind::NotFound, said(&body))),
            (rep::ERR_TLS_REQD, _) => return Err(invalid("it wants TLS")),
            (kind, _) => return Err(invalid(&format!("it refuses ({kind:#x}): {}", said(&body)))),
        }
    }
    Err(invalid("it does not come to an end"))
}

/// The option that begins transmission; also asks for the sizes of blocks, so that the server knows that they are kept.
pub(crate) fn go(export: &str) -> Vec<u8> {
    let name = export.as_bytes();
    let (asked, kind) = (1_u16.to_be_bytes(), info::BLOCK_SIZE.to_be_bytes());
    option(opt::GO, &[&(name.len() as u32).to_be_bytes()[..], name, &asked, &kind].concat())
}

pub(crate) fn read_reply(stream: &mut impl Read, to: u32) -> Result<(u32, Vec<u8>)> {
    let (magic, option) = (read_u64(stream)?, read_u32(stream)?);
    if (magic, option) != (OPTION_REPLY_MAGIC, to) {
        return Err(invalid("its reply is not one"));
    }
    let (kind, bytes) = (read_u32(stream)?, read_u32(stream)?);
    if bytes > REPLY_BYTES_MAX {
        return Err(invalid("its reply is too long"));
    }
    let mut body = vec![0; bytes as usize];
    stream.read_exact(&mut body)?;
    Ok((kind, body))
}

/// The kind of an information, and what it says.
fn information(body: &[u8]) -> Result<(u16, &[u8])> {
    match body.split_first_chunk::<2>() {
        Some((kind, rest)) => Ok((u16::from_be_bytes(*kind), rest)),
        None => Err(invalid("an information without a kind")),
    }
}

fn export_info(body: &[u8]) -> Result<Negotiated> {
    match body.split_first_chunk::<8>().map(|(size, flags)| (size, <[u8; 2]>::try_from(flags))) {
        Some((size, Ok(flags))) => {
            Ok(Negotiated { size_bytes: u64::from_be_bytes(*size), flags: u16::from_be_bytes(flags) })
        }
        _ => Err(invalid("an export without size or flags")),
    }
}

/// What the server says, made fit for a terminal.
pub(crate) fn said(body: &[u8]) -> String {
    String::from_utf8_lossy(body).chars().filter(|c| !c.is_control()).take(200).collect()
}

pub(crate) fn read_array<const N: usize>(stream: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn read_u64(stream: &mut impl Read) -> Result<u64> {
    read_array(stream).map(u64::from_be_bytes)
}

pub(crate) fn read_u32(stream: &mut impl Read) -> Result<u32> {
    read_array(stream).map(u32::from_be_bytes)
}

pub(crate) fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A server that says something whatever it hears.
    struct Server {
        says: Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Server {
        fn read(&mut self, out: &mut [u8]) -> Result<usize> {
            self.says.read(out)
        }
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> Result<usize> {
            self.heard.extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    fn bare_greeting() -> Vec<u8> {
        [&GREETING_MAGIC.to_be_bytes()[..], &OPTION_MAGIC.to_be_bytes(), &[0, 3]].concat()
    }

    fn greeting() -> Vec<u8> {
        [bare_greeting(), reply_to(opt::OUTLIVE, rep::ACK, &[])].concat()
    }

    fn reply(kind: u32, body: &[u8]) -> Vec<u8> {
        reply_to(opt::GO, kind, body)
    }

    fn reply_to(option: u32, kind: u32, body: &[u8]) -> Vec<u8> {
        let head = [&OPTION_REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes()];
        [&head.concat()[..], &(body.len() as u32).to_be_bytes(), body].concat()
    }

    fn size_and_flags() -> Vec<u8> {
        [&info::EXPORT.to_be_bytes()[..], &(1_u64 << 40).to_be_bytes(), &3_u16.to_be_bytes()].concat()
    }

    fn choose(says: &[Vec<u8>]) -> (Result<Negotiated>, Vec<u8>) {
        let mut server = Server { says: Cursor::new(says.concat()), heard: Vec::new() };
        (choose_export(&mut server, "tank"), server.heard)
    }

    /// Size and flags are taken from among whatever else is told.
    #[test]
    fn an_export_is_chosen() {
        let other = [&info::BLOCK_SIZE.to_be_bytes()[..], &[0; 12]].concat();
        let replies =
            [greeting(), reply(rep::INFO, &other), reply(rep::INFO, &size_and_flags()), reply(rep::ACK, &[])];
        let (chosen, heard) = choose(&replies);
        let chosen = chosen.expect("chosen");
        assert_eq!(chosen, Negotiated { size_bytes: 1 << 40, flags: 3 });
        assert!(chosen.is_read_only());
        assert_eq!(heard[..4], [0, 0, 0, 3]);
        assert!(heard.windows(4).any(|bytes| bytes == b"tank"));
    }

    /// A server that refuses, lies, goes on for ever or hangs up is an error with a reason.
    #[test]
    fn a_bad_server_is_refused() {
        let info = reply(rep::INFO, &size_and_flags());
        for (says, expected) in [
            (vec![b"SSH-2.0 and so on, as servers do".to_vec()], "greet"),
            (vec![bare_greeting(), reply_to(opt::OUTLIVE, rep::ERR_UNSUP, b"")], "may be lost"),
            (vec![greeting(), reply(rep::ERR_UNKNOWN, b"no\x1b[31m such export")], "no[31m such export"),
            (vec![greeting(), reply(rep::ERR_TLS_REQD, b"")], "TLS"),
            (vec![greeting(), reply(rep::ACK, &[])], "no size"),
            (vec![greeting(), reply(rep::INFO, &[0])], "without a kind"),
            (vec![greeting(), reply(rep::INFO, &[0, 0, 1])], "without size"),
            (vec![greeting(), vec![7; 40]], "not one"),
            ([vec![greeting()], vec![info.clone(); REPLIES_MAX]].concat(), "end"),
            (vec![greeting(), info[..12].to_vec(), u32::MAX.to_be_bytes().repeat(2)], "too long"),
            (vec![greeting(), info], "fill whole buffer"),
        ] {
            let refused = choose(&says).0.expect_err(expected).to_string();
            assert!(refused.contains(expected), "no '{expected}' in {refused}");
        }
    }
}
