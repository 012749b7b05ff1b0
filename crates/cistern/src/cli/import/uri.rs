//! Addresses of exports, as other programs write them: `nbd://host[:port]/export`, `nbd+unix:///export?socket=PATH`.

use std::{
    io::{Read, Write},
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
};

use crate::failure::{Failure, Outcome};

/// The port that IANA gave to NBD.
const PORT: &str = "10809";

/// Where an export is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NbdUri {
    Tcp { address: String, export: String },
    Unix { socket: PathBuf, export: String },
}

/// A connection, however it was made.
pub trait Connection: Read + Write + Send {}
impl<T: Read + Write + Send> Connection for T {}

impl NbdUri {
    /// `None` for what is no such address.
    ///
    /// # Errors
    /// For one that cannot be used.
    pub fn parse(text: &str) -> Result<Option<NbdUri>, String> {
        let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
        if scheme.starts_with("nbds") {
            return Err(format!(
                "{text}: TLS is not spoken here; let another program do it: nbdcopy '{text}' - | cistern import - URL --size SIZE"
            ));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (host, export) = place.split_once('/').unwrap_or((place, ""));
        let bad = || {
            format!("{text} is no address of an export, like nbd://host/name or nbd+unix:///name?socket=PATH")
        };
        let export = decoded(export).ok_or_else(bad)?;
        match scheme {
            "nbd" if !host.is_empty() => {
                let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.ends_with(']'));
                let address = if has_port { host.to_owned() } else { format!("{host}:{PORT}") };
                Ok(Some(NbdUri::Tcp { address, export }))
            }
            "nbd+unix" if host.is_empty() => {
                let socket =
                    query.split('&').find_map(|pair| pair.strip_prefix("socket=")).ok_or_else(bad)?;
                Ok(Some(NbdUri::Unix { socket: decoded(socket).ok_or_else(bad)?.into(), export }))
            }
            "nbd" | "nbd+unix" => Err(bad()),
            _ => Ok(None),
        }
    }

    pub fn connect(&self) -> Outcome<Box<dyn Connection>> {
        match self {
            NbdUri::Tcp { address, .. } => {
                let stream = TcpStream::connect(address)
                    .and_then(|stream| stream.set_nodelay(true).map(|()| stream))
                    .map_err(|e| Failure::io(format!("cannot connect to {address}"), &e))?;
                Ok(Box::new(stream))
            }
            NbdUri::Unix { socket, .. } => {
                let stream = UnixStream::connect(socket);
                Ok(Box::new(
                    stream.map_err(|e| Failure::io(format!("cannot connect to {}", socket.display()), &e))?,
                ))
            }
        }
    }

    pub fn export(&self) -> &str {
        match self {
            NbdUri::Tcp { export, .. } | NbdUri::Unix { export, .. } => export,
        }
    }
}

/// Without the percent signs that stand for bytes.
fn decoded(text: &str) -> Option<String> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((byte, behind)) = rest.split_first() {
        rest = behind;
        match byte {
            b'%' => {
                let (hex, behind) = rest.split_at_checked(2)?;
                out.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
                rest = behind;
            }
            byte => out.push(*byte),
        }
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str, export: &str) -> NbdUri {
        NbdUri::Tcp { address: address.into(), export: export.into() }
    }

    /// Addresses as nbdinfo and qemu take them; files and stores are none.
    #[test]
    fn addresses_of_exports() {
        for (text, expected) in [
            ("nbd://host", tcp("host:10809", "")),
            ("nbd://host:99/a%20b/c", tcp("host:99", "a b/c")),
            ("nbd://[::1]/x", tcp("[::1]:10809", "x")),
            ("nbd://[::1]:7/", tcp("[::1]:7", "")),
            (
                "nbd+unix:///tank@b?a=1&socket=/run/a%2Cb.sock",
                NbdUri::Unix { socket: "/run/a,b.sock".into(), export: "tank@b".into() },
            ),
        ] {
            assert_eq!(NbdUri::parse(text), Ok(Some(expected)), "{text}");
        }
        for text in ["disk.raw", "/dev/sda", "-", "s3://bucket/x", "./nbd:x"] {
            assert_eq!(NbdUri::parse(text), Ok(None), "{text}");
        }
        for text in ["nbd:///x", "nbd+unix:///x", "nbd+unix://host/x?socket=y", "nbd://h/%x", "nbds://host/x"]
        {
            assert!(NbdUri::parse(text).is_err(), "{text}");
        }
    }
}
