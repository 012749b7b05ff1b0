//! Errors by recourse: a variant exists where a caller can do something different about it.
//!
//! Texts are for the user and say what to do next where there is something to do.

/// What can go wrong in the engine.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The request itself is wrong; nothing was changed.
    #[error("{0}")]
    Invalid(String),
    /// Mode and pause do not go together.
    #[error("in writethrough mode write-back cannot be paused: every flush would wait until it is resumed")]
    PausedWritethrough,
    /// A request reaches beyond the end of the volume.
    #[error("beyond the end of the volume ({size_bytes} bytes)")]
    OutOfRange { size_bytes: u64 },
    /// The volume was opened read-only.
    #[error("the volume is open read-only")]
    ReadOnly,
    /// There is no such volume, object or file.
    #[error("{0} not found")]
    NotFound(String),
    /// It exists already.
    #[error("{0} exists already")]
    Exists(String),
    /// A volume is to be created where something lies already.
    #[error("{0}")]
    NotEmpty(String),
    /// Something was received into the volume and is not complete: what it holds is no state that anybody is to see.
    #[error("something was received into the volume and is not complete")]
    Unfinished,
    /// The volume was removed. It can be restored until its deletion begins.
    #[error("{what}")]
    InTrash { what: String, restorable: bool },
    /// The volume that a clone was made of is not where it was, so it cannot be told that the clone needs nothing of it any more.
    #[error(
        "volume {volume}, of which this is a clone, is not at {way} from here (is it moved, or its file system not mounted?): \
         it would keep for ever what it keeps for this clone"
    )]
    SourceAway { volume: String, way: String },
    /// The store does not answer; the same request may succeed later.
    #[error("the store does not answer: {0}")]
    Unreachable(String),
    /// The store refuses for good (forbidden, no such bucket, bad credentials).
    #[error("the store refuses: {0}")]
    Refused(String),
    /// The store has no room for what was to be put there. Reading and deleting go on.
    #[error("the store has no room: {0}")]
    NoRoom(String),
    /// Another writer holds the volume and has not released it.
    #[error(
        "the volume is in use: claimed by host {host} at {since} and not released. \
         If that host is gone for good, open it with --take-over (what it had not uploaded is then missing here)"
    )]
    InUse { host: String, since: String },
    /// Another process holds the journal, or another local file that one process has at a time.
    #[error("{0} is in use by another process")]
    Locked(String),
    /// Another writer took the volume over; this one has stopped for good.
    #[error(
        "fenced: epoch {theirs} took the volume over from epoch {ours}. Writing has stopped; \
         what was acknowledged here and not uploaded is kept in the journal (cistern journal export)"
    )]
    Fenced { ours: u64, theirs: u64 },
    /// The volume is not in its store any more, or another is in its place; this writer has stopped for good.
    #[error(
        "the volume is gone from its store: {0}. Writing has stopped; what is in the journal is kept \
         (cistern journal export)"
    )]
    Gone(String),
    /// The store does not keep put-if-absent, on which fencing stands, or does not keep it any more; this writer has stopped for good.
    #[error(
        "the store overwrites what it has to keep: it took {0} again, which lay there. So two writers cannot be told from each other. Nothing more \
         is written; what is in the journal is kept (cistern journal export). `cistern probe URL` shows what the store keeps; \
         with some servers versioning of the bucket ends it"
    )]
    Overwrites(String),
    /// A copy of this writer is alive, or was: the store holds what it made. This one has stopped for good.
    #[error(
        "another copy of this writer is at work (a restored snapshot, or a cloned machine): what the store has of \
         this epoch at entry {seq} of the log was not made here. Writing has stopped; what was acknowledged here and not uploaded is \
         kept in the journal (cistern journal export)"
    )]
    Copied { seq: u64 },
    /// The journal at hand holds acknowledged data that cannot be shown to be in the store.
    #[error("{0}")]
    StaleJournal(String),
    /// Bytes are not what was written; they are never returned.
    #[error("corrupt {what}: {detail}")]
    Corrupt { what: String, detail: String },
    /// A format this version does not know.
    #[error(
        "{what} has format version {found}, this cistern knows {known}: use {} cistern",
        if found > known { "a newer" } else { "the older" }
    )]
    Version { what: String, found: u32, known: u32 },
    /// A key is missing or wrong.
    #[error("{0}")]
    Key(String),
    /// No space left for something that must be written.
    #[error("no space: {0}")]
    Full(String),
    /// A local input or output failed.
    #[error("{what}: {cause}")]
    Io { what: String, cause: String },
    /// The volume failed earlier and stays stopped.
    #[error("the volume has stopped: {0}")]
    Latched(String),
    /// The volume is closing.
    #[error("the volume is shutting down")]
    Closed,
}

/// The engine's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An operation on a local file failed.
    pub fn io(what: impl Into<String>, cause: &std::io::Error) -> Error {
        let what = what.into();
        match cause.kind() {
            std::io::ErrorKind::NotFound => Error::NotFound(what),
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                Error::Full(format!("{what}: {cause}"))
            }
            _ => Error::Io { what, cause: cause.to_string() },
        }
    }

    /// Whether an object is not what was stored, or is not there: it is the object's trouble and nobody
    /// else's, and waiting brings nothing better.
    pub fn is_damage(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::Version { .. } | Error::NotFound(_))
    }

    /// Whether the volume is not this writer's any more, for good.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Gone(_) | Error::Fenced { .. } | Error::Copied { .. } | Error::Overwrites(_))
    }

    /// Something of ours was made so that no reader would take it: a fault of cistern, and it is not stored.
    pub fn unreadable(what: impl std::fmt::Display, detail: impl std::fmt::Display) -> Error {
        Error::Invalid(format!(
            "{what} is not stored, because no reader would take it: {detail}. That is a fault of cistern"
        ))
    }

    /// Bytes failed their verification.
    pub fn corrupt(what: impl Into<String>, detail: impl Into<String>) -> Error {
        Error::Corrupt { what: what.into(), detail: detail.into() }
    }
}
