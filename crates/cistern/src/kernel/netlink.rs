//! The kernel's NBD client over generic netlink (`include/uapi/linux/nbd-netlink.h`, family "nbd", version 1).

use std::io::{self, Error, ErrorKind};

use neli::{
    consts::{nl::NlmF, socket::NlFamily},
    err::RouterError,
    genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder, NoUserHeader},
    neli_enum,
    nl::NlPayload,
    router::synchronous::{NlRouter, NlRouterReceiverHandle},
    types::{Buffer, GenlBuffer},
    utils::Groups,
};

use super::{BLOCK_BYTES, DEAD_LIMIT, Link};

const FAMILY: &str = "nbd";
const GROUP: &str = "nbd_mc_group";
const VERSION: u8 = 1;

#[neli_enum(serialized_type = "u8")]
pub enum Command {
    Unspec = 0,
    Connect = 1,
    Disconnect = 2,
    Reconfigure = 3,
    LinkDead = 4,
    Status = 5,
}

impl neli::consts::genl::Cmd for Command {}

#[neli_enum(serialized_type = "u16")]
pub enum Attribute {
    Unspec = 0,
    Index = 1,
    SizeBytes = 2,
    BlockSizeBytes = 3,
    Timeout = 4,
    ServerFlags = 5,
    ClientFlags = 6,
    Sockets = 7,
    DeadConnTimeout = 8,
    DeviceList = 9,
    BackendIdentifier = 10,
}

impl neli::consts::genl::NlAttrType for Attribute {}

/// Attributes in the list of sockets, and in one of them.
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

type Attributes = Vec<Nlattr<Attribute, Buffer>>;
type Message = Genlmsghdr<Command, Attribute>;

/// A conversation with the kernel's NBD client.
pub struct KernelNbd {
    router: NlRouter,
    family: u16,
}

/// Tells of devices whose connection died.
pub struct DeadLinks {
    messages: NlRouterReceiverHandle<u16, Genlmsghdr<u8, u16>>,
    /// Must stay: it receives.
    _router: NlRouter,
}

impl KernelNbd {
    /// # Errors
    /// `NotFound` where the kernel has no NBD client, or its module is not loaded.
    pub fn open() -> io::Result<KernelNbd> {
        let (router, _) = NlRouter::connect(NlFamily::Generic, None, Groups::empty()).map_err(failed)?;
        let family = router.resolve_genl_family(FAMILY).map_err(|e| match failed(e) {
            e if e.kind() == ErrorKind::NotFound => {
                Error::new(e.kind(), "the kernel has none, or it is not loaded")
            }
            e => e,
        })?;
        Ok(KernelNbd { router, family })
    }

    /// Makes a device of a connection.
    ///
    /// # Errors
    /// `ResourceBusy` where the device is in use; `PermissionDenied` without CAP_SYS_ADMIN; what else the kernel says.
    pub fn connect(&self, index: u32, link: &Link, backend: &str) -> io::Result<()> {
        let mut attributes = vec![
            number(Attribute::Index, index)?,
            number(Attribute::SizeBytes, link.size_bytes())?,
            number(Attribute::BlockSizeBytes, BLOCK_BYTES)?,
        ];
        attributes.extend(connection(link, backend)?);
        self.ask(Command::Connect, attributes)
    }

    /// Gives a device a new connection where its own is dead; does nothing where that lives.
    ///
    /// # Errors
    /// `InvalidInput` where the device shows another backend.
    pub fn reconnect(&self, index: u32, link: &Link, backend: &str) -> io::Result<()> {
        let mut attributes = vec![number(Attribute::Index, index)?];
        attributes.extend(connection(link, backend)?);
        self.ask(Command::Reconfigure, attributes)
    }

    /// Tells a device its new size. Not while its connection is dead: the kernel would wait for all requests first.
    pub fn resize(&self, index: u32, size_bytes: u64, backend: &str) -> io::Result<()> {
        self.ask(
            Command::Reconfigure,
            vec![
                number(Attribute::Index, index)?,
                number(Attribute::SizeBytes, size_bytes)?,
                number(Attribute::BlockSizeBytes, BLOCK_BYTES)?,
                text(Attribute::BackendIdentifier, backend)?,
            ],
        )
    }

    /// Frees a device. What still waits in it fails.
    pub fn disconnect(&self, index: u32) -> io::Result<()> {
        self.ask(Command::Disconnect, vec![number(Attribute::Index, index)?])
    }

    /// Listens for connections that die from now on.
    pub fn dead_links(&self) -> io::Result<DeadLinks> {
        let group = self.router.resolve_nl_mcast_group(FAMILY, GROUP).map_err(failed)?;
        let (router, messages) =
            NlRouter::connect(NlFamily::Generic, None, Groups::new_groups(&[group])).map_err(failed)?;
        Ok(DeadLinks { messages, _router: router })
    }

    /// Sends a command and waits for what the kernel says to it.
    fn ask(&self, command: Command, attributes: Attributes) -> io::Result<()> {
        let message = GenlmsghdrBuilder::<Command, Attribute, NoUserHeader>::default()
            .cmd(command)
            .version(VERSION)
            .attrs(attributes.into_iter().collect::<GenlBuffer<_, _>>())
            .build()
            .map_err(malformed)?;
        let answers: NlRouterReceiverHandle<u16, Message> =
            self.router.send(self.family, NlmF::ACK, NlPayload::Payload(message)).map_err(failed)?;
        for answer in answers {
            answer.map_err(failed)?;
        }
        Ok(())
    }
}

impl DeadLinks {
    /// Waits for the next one: the number of its device, where the kernel tells it. `None` if nothing will come any more.
    pub fn wait(&mut self) -> Option<Option<u32>> {
        let message = self.messages.next()?;
        let index = message.ok().and_then(|message| {
            let payload = message.get_payload()?;
            payload.attrs().get_attr_handle().get_attr_payload_as::<u32>(Attribute::Index.into()).ok()
        });
        Some(index)
    }
}

/// What belongs to a connection, new or again.
fn connection(link: &Link, backend: &str) -> io::Result<Attributes> {
    let item =
        raw(SOCKET_ITEM, Vec::<u8>::new())?.nest(&raw(SOCKET_FD, link.descriptor())?).map_err(malformed)?;
    let sockets = attribute(Attribute::Sockets, Vec::<u8>::new())?.nest(&item).map_err(malformed)?;
    Ok(vec![
        number(Attribute::ServerFlags, link.flags())?,
        number(Attribute::DeadConnTimeout, DEAD_LIMIT.as_secs())?,
        text(Attribute::BackendIdentifier, backend)?,
        sockets,
    ])
}

fn number(kind: Attribute, value: impl neli::Size + neli::ToBytes) -> io::Result<Nlattr<Attribute, Buffer>> {
    attribute(kind, value)
}

fn text(kind: Attribute, value: &str) -> io::Result<Nlattr<Attribute, Buffer>> {
    attribute(kind, value)
}

fn attribute(
    kind: Attribute,
    value: impl neli::Size + neli::ToBytes,
) -> io::Result<Nlattr<Attribute, Buffer>> {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().map_err(malformed)?;
    NlattrBuilder::default().nla_type(kind).nla_payload(value).build().map_err(malformed)
}

fn raw(kind: u16, value: impl neli::Size + neli::ToBytes) -> io::Result<Nlattr<u16, Buffer>> {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().map_err(malformed)?;
    NlattrBuilder::default().nla_type(kind).nla_payload(value).build().map_err(malformed)
}

/// What the kernel answers has its own numbers for errors.
fn failed<T: std::fmt::Debug, P: std::fmt::Debug>(error: RouterError<T, P>) -> Error
where
    RouterError<T, P>: std::fmt::Display,
{
    match &error {
        RouterError::Nlmsgerr(said) => Error::from_raw_os_error(said.error().abs()),
        other => Error::other(format!("netlink: {other}")),
    }
}

fn malformed(error: impl std::fmt::Display) -> Error {
    Error::other(format!("netlink: {error}"))
}
