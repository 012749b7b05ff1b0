//! Connections between two daemons: the one that stops gives them to the keeper, the one that starts asks for them, and the kernel at their
//! other end sees a pause (docs/design/attach.md, "A stop hands its connections on").
//!
//! Over a socket in the state directory, one message for each connection to it: a [`Word`] as JSON, with a descriptor where there is one to
//! give. The keeper answers a `take` with a `keep` for each. What it has for too long it lets go: nobody reads it, and who writes to it, waits.

use std::{
    collections::VecDeque,
    fs::{self, Permissions},
    io::{Error, ErrorKind, IoSlice, IoSliceMut, Result},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::{fs::PermissionsExt, net::UnixStream},
    },
    path::Path,
    time::{Duration, Instant},
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with,
    sockopt::{Timeout, set_socket_timeout},
};
use serde::{Deserialize, Serialize};

use super::record::DIRECTORY;
use crate::short_name::short_name;

const SOCKET: &str = "keeper.sock";
/// How long the keeper has a connection. A daemon that stops and is started again needs a fraction of it, as a rule.
const KEPT_LIMIT: Duration = Duration::from_secs(30);
/// How often it looks whether it has one for too long.
const LOOK: Duration = Duration::from_secs(1);
/// How long either side waits for the other.
const PATIENCE: Duration = Duration::from_secs(1);
/// Connections at a time; of more the oldest go.
const KEPT_MAX: usize = 256;
/// Bytes of the longest message: a URL, the name of an export, some numbers.
const MESSAGE_BYTES_MAX: usize = 16 << 10;
/// Whoever asks is answered before the next is listened to.
const BACKLOG: i32 = 64;

/// What is served, as whoever serves it next finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportAt {
    pub url: String,
    /// Of the export.
    pub name: String,
}

/// What is said of connections.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Word {
    /// Have this one, which comes with it. Its export said that it is `identity`.
    Keep { of: ExportAt, identity: String },
    /// Give all that there are, and have them no more.
    Take { of: ExportAt },
}

/// A connection that nobody reads.
struct WaitingConnection {
    of: ExportAt,
    identity: String,
    socket: OwnedFd,
    since: Instant,
}

/// Keeps connections of daemons that stop, on a thread that lives as long as the process. Only for who is the keeper of the directory.
pub fn keep_connections(state_dir: &Path) -> Result<()> {
    keep_for(state_dir, KEPT_LIMIT)
}

fn keep_for(state_dir: &Path, limit: Duration) -> Result<()> {
    let (_open, directory) = short_name(&state_dir.join(DIRECTORY))?;
    let path = directory.join(SOCKET);
    match fs::remove_file(&path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let door = open_socket()?;
    bind(&door, &SocketAddrUnix::new(&path)?)?;
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    listen(&door, BACKLOG)?;
    std::thread::Builder::new().name("keeps".into()).spawn(move || {
        let mut all = VecDeque::new();
        loop {
            let came = accept_with(&door, SocketFlags::CLOEXEC);
            all.retain(|kept: &WaitingConnection| kept.since.elapsed() < limit);
            // Whoever does not say what he wants, or does not wait for the answer, gets none.
            let _ = came.map_err(Error::from).and_then(|peer| talk(&peer, &mut all));
        }
    })?;
    Ok(())
}

/// Does what the other side asks for.
fn talk(peer: &OwnedFd, all: &mut VecDeque<WaitingConnection>) -> Result<()> {
    be_patient(peer, PATIENCE)?;
    match hear(peer)? {
        Some((Word::Keep { of, identity }, Some(socket))) => {
            if all.len() >= KEPT_MAX {
                all.pop_front();
            }
            all.push_back(WaitingConnection { of, identity, socket, since: Instant::now() });
            Ok(())
        }
        Some((Word::Take { of }, None)) => {
            let (taken, left): (VecDeque<WaitingConnection>, _) =
                all.drain(..).partition(|kept| kept.of == of);
            *all = left;
            taken.into_iter().try_for_each(|WaitingConnection { of, identity, socket, .. }| {
                say(peer, &Word::Keep { of, identity }, Some(socket.as_fd()))
            })
        }
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

/// Gives a connection to the keeper of this host. Whoever calls drops his own end then.
///
/// # Errors
/// Where there is no keeper, or it does not listen.
pub fn keep_connection(state_dir: &Path, of: ExportAt, identity: String, socket: &UnixStream) -> Result<()> {
    let keeper = call(state_dir)?;
    say(&keeper, &Word::Keep { of, identity }, Some(socket.as_fd()))
}

/// Takes the connections to an export back, in their order of coming, each with what its export said that it was.
///
/// # Errors
/// As [`keep_connection`].
pub fn take_connections(state_dir: &Path, of: ExportAt) -> Result<Vec<(String, UnixStream)>> {
    let keeper = call(state_dir)?;
    say(&keeper, &Word::Take { of }, None)?;
    let mut taken = Vec::new();
    while let Some((Word::Keep { identity, .. }, Some(socket))) = hear(&keeper)? {
        taken.push((identity, UnixStream::from(socket)));
    }
    Ok(taken)
}

fn call(state_dir: &Path) -> Result<OwnedFd> {
    let (_open, directory) = short_name(&state_dir.join(DIRECTORY))?;
    let socket = open_socket()?;
    be_patient(&socket, PATIENCE)?;
    connect(&socket, &SocketAddrUnix::new(directory.join(SOCKET))?)?;
    Ok(socket)
}

/// One whose messages are whole or not there; who waits at it looks around now and then.
fn open_socket() -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    be_patient(&socket, LOOK)?;
    Ok(socket)
}

fn be_patient(socket: &OwnedFd, time: Duration) -> Result<()> {
    set_socket_timeout(socket, Timeout::Recv, Some(time))?;
    Ok(set_socket_timeout(socket, Timeout::Send, Some(time))?)
}

fn say(to: &OwnedFd, word: &Word, with: Option<BorrowedFd<'_>>) -> Result<()> {
    let text = serde_json::to_vec(word)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut gift = SendAncillaryBuffer::new(&mut space);
    if let Some(descriptor) = &with {
        let fits = gift.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
        assert!(fits, "it has room for one");
    }
    sendmsg(to, &[IoSlice::new(&text)], &mut gift, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// One message, and what came with it; nothing at the end.
fn hear(from: &OwnedFd) -> Result<Option<(Word, Option<OwnedFd>)>> {
    let mut text = [0; MESSAGE_BYTES_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut gift = RecvAncillaryBuffer::new(&mut space);
    let got = recvmsg(from, &mut [IoSliceMut::new(&mut text)], &mut gift, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = gift.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect(),
        _ => Vec::new(),
    });
    let descriptor = descriptors.next();
    match got.bytes {
        0 => Ok(None),
        bytes => Ok(Some((serde_json::from_slice(&text[..bytes])?, descriptor))),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;

    fn state_dir(limit: Duration) -> tempfile::TempDir {
        let state = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(state.path().join(DIRECTORY)).expect("made");
        keep_for(state.path(), limit).expect("it listens");
        state
    }

    fn tank(name: &str) -> ExportAt {
        ExportAt { url: "dir:///tank".to_owned(), name: name.to_owned() }
    }

    /// Gives one to the keeper, and has its other end.
    fn give(state: &Path, name: &str, identity: &str) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        keep_connection(state, tank(name), identity.to_owned(), &theirs).expect("kept");
        ours
    }

    fn take(state: &Path, name: &str) -> Vec<(String, UnixStream)> {
        take_connections(state, tank(name)).expect("it answers")
    }

    /// Connections come back as they were given, in their order, with what lies in them; each once, and to who serves what they were to.
    #[test]
    fn connections_are_kept() {
        let state = state_dir(KEPT_LIMIT);
        let state = state.path();
        let given = [("a", "x"), ("b", "y"), ("a", "z")];
        let mut ends = given.map(|(name, identity)| give(state, name, identity));
        for (n, end) in ends.iter_mut().enumerate() {
            end.write_all(&[n as u8]).expect("it lives");
        }
        assert!(take(state, "c").is_empty());
        for (name, expected) in [("a", &[("x", 0), ("z", 2)][..]), ("b", &[("y", 1)]), ("a", &[])] {
            let read = take(state, name).into_iter().map(|(identity, mut socket)| {
                let mut byte = [0];
                socket.read_exact(&mut byte).expect("it was sent");
                (identity, byte[0])
            });
            let expected = expected.iter().map(|(identity, byte)| ((*identity).to_owned(), *byte));
            assert_eq!(read.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
        }
    }

    /// What is kept for too long ends, and so does the oldest where there are too many.
    #[test]
    fn not_for_ever() {
        let state = state_dir(Duration::ZERO);
        let mut end = give(state.path(), "a", "x");
        assert!(take(state.path(), "a").is_empty());
        assert_eq!(end.read(&mut [0]).expect("it has ended"), 0);

        let state = state_dir(KEPT_LIMIT);
        let mut first = give(state.path(), "a", "x");
        let others: Vec<UnixStream> = (0..KEPT_MAX).map(|_| give(state.path(), "a", "x")).collect();
        assert_eq!(take(state.path(), "a").len(), others.len());
        assert_eq!(first.read(&mut [0]).expect("it has ended"), 0);
    }

    /// Nonsense, and who says nothing, keep nobody else from his connections.
    #[test]
    fn nonsense_is_passed_over() {
        let state = state_dir(KEPT_LIMIT);
        let state = state.path();
        let _end = give(state, "a", "x");
        let keep_nothing = serde_json::to_vec(&Word::Keep { of: tank("a"), identity: "x".into() });
        let long = vec![b'['; 2 * MESSAGE_BYTES_MAX];
        for text in [&b"{"[..], &keep_nothing.expect("JSON"), b"\xff", &long] {
            let keeper = call(state).expect("it listens");
            let mut nothing = SendAncillaryBuffer::default();
            sendmsg(&keeper, &[IoSlice::new(text)], &mut nothing, SendFlags::empty()).expect("sent");
            assert!(hear(&keeper).expect("it hangs up").is_none());
        }
        drop(call(state).expect("it listens"));
        let (_ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let keeper = call(state).expect("it listens");
        say(&keeper, &Word::Take { of: tank("a") }, Some(theirs.as_fd())).expect("sent");
        assert!(hear(&keeper).expect("it hangs up").is_none());
        assert_eq!(take(state, "a").len(), 1);
    }

    /// Without a keeper there is nobody to ask, and that is said at once.
    #[test]
    fn nobody_keeps() {
        let state = tempfile::tempdir().expect("a temporary directory");
        let (_ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        assert!(keep_connection(state.path(), tank("a"), "x".into(), &theirs).is_err());
        assert!(take_connections(state.path(), tank("a")).is_err());
    }
}
