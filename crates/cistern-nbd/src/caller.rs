//! An export as a plain client uses it: one connection, one request at a time, simple replies.
//!
//! For who measures what a client sees. Source: the protocol document of the NBD project (`doc/proto.md`). Holds no more than one request; an error of
//! the connection or a reply that is none ends its use.

use std::{
    io::{Error, ErrorKind, Result},
    os::unix::net::UnixStream as BlockingStream,
    path::Path,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use crate::{
    client::{Negotiated, chosen, go, greet, invalid},
    wire::{REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, cmd},
};

/// How long a server may take to answer in the negotiation.
const NEGOTIATION_LIMIT: Duration = Duration::from_secs(10);

/// A connection in transmission.
pub struct Caller {
    stream: UnixStream,
    export: Negotiated,
    /// Of the last request.
    cookie: u64,
}

impl Caller {
    /// Connects to a server's socket and chooses an export. Inside a tokio runtime; blocks for the negotiation.
    ///
    /// # Errors
    /// Of the socket; `NotFound` where the server has no such export, with its words; `InvalidData` where it does not speak the protocol.
    pub fn connect(socket: &Path, export: &str) -> Result<Caller> {
        use std::io::Write;
        let mut stream = BlockingStream::connect(socket)?;
        stream.set_read_timeout(Some(NEGOTIATION_LIMIT))?;
        stream.set_write_timeout(Some(NEGOTIATION_LIMIT))?;
        greet(&mut stream)?;
        stream.write_all(&go(export))?;
        let export = chosen(&mut stream, |_, _| Ok(()))?;
        stream.set_nonblocking(true)?;
        Ok(Caller { stream: UnixStream::from_std(stream)?, export, cookie: 0 })
    }

    pub fn export(&self) -> Negotiated {
        self.export
    }

    /// Fills `out` from an offset.
    pub async fn read(&mut self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.ask(cmd::READ, offset, out.len(), &[]).await?;
        self.stream.read_exact(out).await?;
        Ok(())
    }

    pub async fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.ask(cmd::WRITE, offset, data.len(), data).await
    }

    pub async fn flush(&mut self) -> Result<()> {
        self.ask(cmd::FLUSH, 0, 0, &[]).await
    }

    /// Sends a request, and reads the head of its reply.
    async fn ask(&mut self, command: u16, offset: u64, len: usize, data: &[u8]) -> Result<()> {
        self.cookie += 1;
        let len = u32::try_from(len).map_err(|_| ErrorKind::InvalidInput)?;
        let mut head = Vec::with_capacity(28);
        head.extend_from_slice(&REQUEST_MAGIC.to_be_bytes());
        head.extend_from_slice(&0_u16.to_be_bytes());
        head.extend_from_slice(&command.to_be_bytes());
        head.extend_from_slice(&self.cookie.to_be_bytes());
        head.extend_from_slice(&offset.to_be_bytes());
        head.extend_from_slice(&len.to_be_bytes());
        self.stream.write_all(&head).await?;
        self.stream.write_all(data).await?;
        if self.stream.read_u32().await? != SIMPLE_REPLY_MAGIC {
            return Err(invalid("its reply is not one"));
        }
        let (error, cookie) = (self.stream.read_u32().await?, self.stream.read_u64().await?);
        if cookie != self.cookie {
            return Err(invalid("it answers what it was not asked"));
        }
        match i32::try_from(error) {
            Ok(0) => Ok(()),
            // The protocol's numbers of errors are those of Linux.
            Ok(error) => Err(Error::from_raw_os_error(error)),
            Err(_) => Err(invalid("its error is none")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream as BlockingStream;

    use super::*;

    /// Asks for 4 bytes of a server that has said this, whatever it was asked.
    async fn read(says: &[u8]) -> Result<[u8; 4]> {
        let (ours, mut theirs) = BlockingStream::pair().expect("a pair");
        std::io::Write::write_all(&mut theirs, says).expect("room");
        theirs.shutdown(std::net::Shutdown::Write).expect("shut");
        ours.set_nonblocking(true).expect("set");
        let stream = UnixStream::from_std(ours).expect("in a runtime");
        let mut caller = Caller { stream, export: Negotiated { size_bytes: 4096, flags: 1 }, cookie: 0 };
        let mut out = [0; 4];
        caller.read(0, &mut out).await.map(|()| out)
    }

    fn reply(magic: u32, error: u32, cookie: u64, data: &[u8]) -> Vec<u8> {
        [&magic.to_be_bytes()[..], &error.to_be_bytes(), &cookie.to_be_bytes(), data].concat()
    }

    /// What was asked for comes; an error of the server, a reply to something else, and none at all are told.
    #[tokio::test]
    async fn replies() {
        let good = reply(SIMPLE_REPLY_MAGIC, 0, 1, b"data");
        assert_eq!(read(&good).await.expect("a reply"), *b"data");
        let full = read(&reply(SIMPLE_REPLY_MAGIC, 28, 1, &[])).await.expect_err("full");
        assert_eq!(full.kind(), ErrorKind::StorageFull);
        for bad in [
            reply(SIMPLE_REPLY_MAGIC, 0, 2, b"data"),
            reply(7, 0, 1, b"data"),
            reply(SIMPLE_REPLY_MAGIC, u32::MAX, 1, &[]),
            good[..17].to_vec(),
            vec![],
        ] {
            assert!(read(&bad).await.is_err(), "{bad:?}");
        }
    }
}
