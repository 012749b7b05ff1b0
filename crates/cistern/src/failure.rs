//! What a command says when it fails: one sentence, the cause, what to do next, and an exit code.
//!
//! Every verb returns a [`Failure`]. The exit codes are part of the interface and are documented
//! by [`Kind::ALL`] in the reference; a code never changes its meaning.

use std::fmt;

use cistern_engine::{Error, store::StoreError};
use serde::{Deserialize, Serialize};

/// The result of everything a command does.
pub type Outcome<T = ()> = Result<T, Failure>;

/// The kinds of failure a script can tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Other,
    Usage,
    InUse,
    NotFound,
    Corrupt,
    Key,
    Store,
    NotClean,
    Full,
    Stopped,
    Exists,
    Hook,
    Interrupted,
}

impl Kind {
    /// Every kind with its exit code and what it means.
    pub const ALL: [(Kind, u8, &'static str); 13] = [
        (Kind::Other, 1, "the command failed for another reason"),
        (Kind::Usage, 2, "wrong arguments, settings or values; nothing was done"),
        (Kind::InUse, 3, "in use: claimed by another host, or locked by another process of this host"),
        (Kind::NotFound, 4, "not found: no such volume, journal, file or running daemon"),
        (
            Kind::Corrupt,
            5,
            "corrupt: stored or local bytes are not what was written, or have an unknown format",
        ),
        (Kind::Key, 6, "the key or passphrase is missing or wrong"),
        (Kind::Store, 7, "the store does not answer, or refuses"),
        (Kind::NotClean, 8, "not clean: something acknowledged is not in the store within the time given"),
        (Kind::Full, 9, "no space left where something must be written"),
        (Kind::Stopped, 10, "the volume has stopped: taken over by another writer, or a local fault"),
        (Kind::Exists, 11, "it exists already"),
        (
            Kind::Hook,
            12,
            "a hook failed: with --pre no snapshot was made; with --post it was made, and what came of it stands",
        ),
        (
            Kind::Interrupted,
            130,
            "interrupted before it was done; a daemon that serves stops in an orderly way instead",
        ),
    ];

    /// The exit code of the process.
    pub fn exit_code(self) -> u8 {
        let row = Kind::ALL.iter().find(|(kind, ..)| *kind == self);
        row.expect("ALL lists every kind, a test checks it").1
    }
}

/// Why a command failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub kind: Kind,
    /// One sentence: what did not work, and why.
    pub text: String,
    /// What to do next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Failure {
    pub fn new(kind: Kind, text: impl Into<String>) -> Failure {
        Failure { kind, text: text.into(), hint: None }
    }

    /// Wrong arguments or settings.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure::new(Kind::Usage, text)
    }

    /// A local file or socket did not do what was asked.
    pub fn io(what: impl fmt::Display, cause: &std::io::Error) -> Failure {
        let kind = match cause.kind() {
            std::io::ErrorKind::NotFound => Kind::NotFound,
            _ if is_full(cause) => Kind::Full,
            std::io::ErrorKind::AddrInUse => Kind::InUse,
            _ => Kind::Other,
        };
        Failure::new(kind, format!("{what}: {cause}"))
    }

    /// Says what to do next, replacing a more general hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Puts what was being done in front.
    pub fn context(mut self, doing: impl fmt::Display) -> Failure {
        self.text = format!("{doing}: {}", self.text);
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let (kind, hint) = recourse(&error);
        Failure { kind, text: error.to_string(), hint: hint.map(str::to_owned) }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        Error::from(error).into()
    }
}

/// The exit code's kind of an engine error, and the general advice where its text has none.
fn recourse(error: &Error) -> (Kind, Option<&'static str>) {
    match error {
        Error::Invalid(_) | Error::OutOfRange { .. } => (Kind::Usage, None),
        Error::PausedWritethrough => (
            Kind::Usage,
            Some(
                "`cistern resume URL` first; or pause in another mode: `cistern set URL mode=writeback`, which gives \
                 up that a flush waits for the store",
            ),
        ),
        Error::NotFound(_) => (Kind::NotFound, None),
        Error::Unfinished => (
            Kind::NotClean,
            Some(
                "`cistern receive` the stream again, or `cistern receive --abort URL` goes back to what was there before; \
                 that is shown read-only meanwhile",
            ),
        ),
        Error::InTrash { restorable: true, .. } => (
            Kind::NotFound,
            Some("`cistern restore URL` brings it back, `cistern rm URL --now` deletes it for good"),
        ),
        Error::InTrash { restorable: false, .. } => {
            (Kind::NotFound, Some("if nobody goes on with that, `cistern rm URL --now` finishes it"))
        }
        Error::SourceAway { .. } => (
            Kind::NotFound,
            Some(
                "bring it back to its place and run the same command again; `cistern rm URL --now --force` deletes a clone \
                 without telling it",
            ),
        ),
        Error::Exists(_) | Error::NotEmpty(_) => (Kind::Exists, None),
        Error::Unreachable(_) => (
            Kind::Store,
            Some(
                "check the network and the endpoint, or the space of a directory; `cistern probe URL` shows how the \
                 store answers",
            ),
        ),
        // Its text says what to do.
        Error::Refused(_) => (Kind::Store, None),
        Error::NoRoom(_) => (Kind::Full, None),
        Error::InUse { .. } => (Kind::InUse, None),
        Error::Locked(_) => (Kind::InUse, Some("`cistern status` shows which daemon serves it")),
        Error::Fenced { .. }
        | Error::Gone(_)
        | Error::Copied { .. }
        | Error::Overwrites(_)
        | Error::Latched(_) => (Kind::Stopped, None),
        Error::StaleJournal(_) => (
            Kind::Stopped,
            Some(
                "`cistern journal export` keeps what the journal holds, `cistern journal discard` gives it up",
            ),
        ),
        Error::Corrupt { .. } => {
            (Kind::Corrupt, Some("`cistern check URL --data` finds out what else is affected"))
        }
        Error::Version { .. } => (Kind::Corrupt, None),
        Error::Key(_) => {
            (Kind::Key, Some("give it with --key-file, in CISTERN_PASSPHRASE, or at the prompt"))
        }
        Error::Full(_) => (
            Kind::Full,
            Some("make room there or name another place; a journal may be smaller (--journal-size)"),
        ),
        Error::ReadOnly | Error::Io { .. } | Error::Closed => (Kind::Other, None),
    }
}

/// Whether an error of the file system says that it has no room.
pub fn is_full(e: &std::io::Error) -> bool {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    matches!(e.kind(), StorageFull | QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts rely on the exit codes: each kind has one, none is 0, and no two are the same.
    #[test]
    fn exit_codes_are_distinct() {
        let mut codes: Vec<u8> = Kind::ALL.iter().map(|(kind, ..)| kind.exit_code()).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes, (1..=12).chain([130]).collect::<Vec<u8>>());
    }
}
