//! A filesystem that others have over NFS: with whom, and how that is declared.
//!
//! A pool says it itself (its property `sharenfs`), for other filesystems a line of an exports file does. Nothing is shared with everybody: who may
//! have it is listed.

use std::{fmt, net::IpAddr, path::Path, path::PathBuf, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::kernel::unescape;

/// What is asked of the server beside who may write. `mountpoint`: nothing is shared where nothing is mounted. What root of a client may is
/// what nobody may, as everywhere.
const OPTIONS: &str = "sync,no_subtree_check,mountpoint";

/// Who may have a filesystem over NFS: a host, an address or a network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ShareClient {
    host: String,
    read_only: bool,
}

impl FromStr for ShareClient {
    type Err = String;

    fn from_str(text: &str) -> Result<ShareClient, String> {
        let (host, read_only) = match text.strip_suffix("=ro") {
            Some(host) => (host, true),
            None => (text, false),
        };
        let is_client = match host.split_once('/') {
            Some((address, bits)) => {
                let longest =
                    address.parse().map_or(0, |address: IpAddr| if address.is_ipv4() { 32 } else { 128 });
                // With no bits at all it is everybody.
                bits.parse().is_ok_and(|bits: u8| (1..=longest).contains(&bits))
            }
            None => host.parse::<IpAddr>().is_ok() || is_host_name(host),
        };
        match is_client {
            true => Ok(ShareClient { host: host.to_owned(), read_only }),
            false => Err("a host, an address or a network like 10.0.0.0/24, with =ro behind it if it may only read; not everybody".to_owned()),
        }
    }
}

fn is_host_name(text: &str) -> bool {
    let is_fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(is_fine)
        && text.contains(|c: char| c.is_ascii_alphabetic())
}

impl fmt::Display for ShareClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.host, if self.read_only { "=ro" } else { "" })
    }
}

impl TryFrom<String> for ShareClient {
    type Error = String;

    fn try_from(text: String) -> Result<ShareClient, String> {
        text.parse()
    }
}

impl From<ShareClient> for String {
    fn from(client: ShareClient) -> String {
        client.to_string()
    }
}

impl ShareClient {
    /// As `exportfs` takes it before a path.
    pub fn of_exportfs(&self) -> String {
        of_exportfs(&self.host)
    }

    pub fn options(&self) -> String {
        format!("{},{OPTIONS}", if self.read_only { "ro" } else { "rw" })
    }
}

/// A client before a path: an address with colons in brackets.
fn of_exportfs(host: &str) -> String {
    match host.split_once('/') {
        _ if !host.contains(':') => host.to_owned(),
        Some((address, bits)) => format!("[{address}]/{bits}"),
        None => format!("[{host}]"),
    }
}

/// The value of a pool's `sharenfs`.
pub fn zfs_property(clients: &[ShareClient]) -> String {
    let one = |client: &ShareClient| {
        let is_network = client.host.contains('/') && !client.host.contains(':');
        format!("{}{}", if is_network { "@" } else { "" }, client.of_exportfs())
    };
    let list = |read_only: bool, name: &str| {
        let hosts: Vec<String> = clients.iter().filter(|c| c.read_only == read_only).map(one).collect();
        (!hosts.is_empty()).then(|| format!("{name}={}", hosts.join(":")))
    };
    [list(false, "rw"), list(true, "ro")].into_iter().flatten().collect::<Vec<_>>().join(",")
}

/// A line of an exports file.
pub fn exports_line(mount: &Path, clients: &[ShareClient]) -> String {
    let clients: Vec<String> =
        clients.iter().map(|client| format!("{}({})", client.host, client.options())).collect();
    format!("{} {}\n", escaped(&mount.display().to_string()), clients.join(" "))
}

/// A path with blanks, and what else means something to an NFS server, as octal numbers.
pub fn escaped(text: &str) -> String {
    let is_plain = |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "/-_.+:@%,".contains(c);
    text.chars()
        .map(|c| if is_plain(c) { c.to_string() } else { format!("\\{:03o}", u32::from(c)) })
        .collect()
}

/// The NFS server of a host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NfsServer {
    /// It is not installed.
    #[default]
    Missing,
    Stopped,
    Runs,
}

/// Something that the server gives to somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NfsExport {
    pub at: PathBuf,
    /// As the server has it: a host, an address, a network, or everybody.
    pub client: String,
}

impl NfsExport {
    /// Reads what `exportfs -s` prints: a path, then a client with its options in parentheses.
    pub fn all_of(said: &str) -> Vec<NfsExport> {
        let of = |line: &str| {
            let (at, client) = line.split_once(char::is_whitespace)?;
            let client = client.trim().split('(').next()?;
            Some(NfsExport { at: unescape(at).into(), client: client.to_owned() })
        };
        said.lines().filter(|line| line.starts_with('/')).filter_map(of).collect()
    }

    /// As `exportfs` takes it.
    pub fn of_exportfs(&self) -> String {
        format!("{}:{}", of_exportfs(&self.client), self.at.display())
    }
}

/// How far a filesystem is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sharing {
    pub server: NfsServer,
    /// What says that it should be: a pool's property, or the line for the server.
    pub declared: Option<String>,
    /// What is mounted and should be shared and is not: filesystems of a pool, or the one.
    pub missing: Vec<String>,
    /// What the server gives to whom of what is mounted.
    pub exports: Vec<NfsExport>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clients are hosts, addresses and networks; nobody shares with everybody by mistake, and nothing that means something in an exports file
    /// gets into one.
    #[test]
    fn who_may_have_it() {
        for fine in
            ["10.0.0.0/24", "10.0.0.5", "nas", "nas-2.lan=ro", "2001:db8::/64", "2001:db8::1=ro", "0.0.0.0/1"]
        {
            assert_eq!(fine.parse::<ShareClient>().map(|client| client.to_string()).as_deref(), Ok(fine));
        }
        let bad = [
            "",
            "*",
            "*.lan",
            "0.0.0.0/0",
            "::/0",
            "10.0.0.0/33",
            "10.0.0.0/",
            "@group",
            "a b",
            "a(rw)",
            "=ro",
        ];
        for bad in
            bad.into_iter().chain(["a:b", "10.0.0", "-x", "a,b", "a\n", "nas=rw", "nas/24", "2001:db8::/129"])
        {
            assert!(bad.parse::<ShareClient>().is_err(), "{bad}");
        }
    }

    /// What is declared is what a pool and an exports file understand, with blanks and addresses with colons.
    #[test]
    fn how_it_is_declared() {
        let clients: Vec<ShareClient> =
            ["10.0.0.0/24", "nas", "2001:db8::/64", "10.0.0.5=ro", "2001:db8::1=ro"]
                .map(|client| client.parse().expect("a client"))
                .into();
        assert_eq!(zfs_property(&clients), "rw=@10.0.0.0/24:nas:[2001:db8::]/64,ro=10.0.0.5:[2001:db8::1]");
        assert_eq!(zfs_property(&clients[3..4]), "ro=10.0.0.5");
        assert_eq!(
            exports_line(Path::new("/srv/a b"), &clients[2..4]),
            "/srv/a\\040b 2001:db8::/64(rw,sync,no_subtree_check,mountpoint) 10.0.0.5(ro,sync,no_subtree_check,mountpoint)\n"
        );
        assert_eq!(clients[2].of_exportfs(), "[2001:db8::]/64");
        assert_eq!(clients[0].of_exportfs(), "10.0.0.0/24");
    }

    /// What the server gives to whom is read as `exportfs` prints it.
    #[test]
    fn what_is_exported() {
        let said =
            "/pool  127.0.0.0/8(sync,wdelay,sec=sys,rw)\n/pool/a\\040b  2001:db8::/64(ro)\nexportfs: noise\n";
        let all = NfsExport::all_of(said);
        let expected = [("/pool", "127.0.0.0/8"), ("/pool/a b", "2001:db8::/64")]
            .map(|(at, client)| NfsExport { at: at.into(), client: client.into() });
        assert_eq!(all, expected);
        assert_eq!(all[1].of_exportfs(), "[2001:db8::]/64:/pool/a b");
    }
}
