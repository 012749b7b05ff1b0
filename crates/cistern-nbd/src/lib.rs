//! An NBD server: fixed newstyle negotiation, TLS, structured replies and extended headers.
//!
//! Knows the protocol and nothing of storage: what is served stands behind the traits [`Export`]
//! and [`Exports`]. `docs/format/nbd.md` lists what is spoken and how every bad request is answered.
//!
//! | module | role |
//! |---|---|
//! | `export` | the traits and words of what is served |
//! | `wire` | magic numbers and fixed layouts |
//! | `option` | option payloads of the negotiation, parsed purely |
//! | `gate` | what a request header is, or which error it gets: a pure decision |
//! | `reply` | replies of the transmission phase, encoded into the output queue |
//! | `input`, `output` | buffers of one connection |
//! | `handshake`, `session` | the two phases of one connection |
//! | `listen`, `tls`, `conn` | addresses, certificates, sockets |
//! | `lanes` | the threads on which connections are served |
//! | `pool`, `patience` | the memory that all connections share, and who may hold it how long |
//! | `slots` | the places for connections, served and unfinished |
//! | `server` | accepting, graceful stop |
//!
//! Invariants: nothing a client sends can panic, or make a connection hold more memory than its
//! budget, or all of them more than theirs; no task outlives `Server::serve`; every queue has a named limit.

mod conn;
mod export;
pub mod fuzz;
mod gate;
mod handshake;
mod input;
mod lanes;
mod listen;
mod option;
mod output;
mod patience;
mod pool;
mod reply;
mod server;
mod session;
mod slots;
mod tls;
mod wire;

pub use export::{
    BLOCK_BYTES_MIN, Errno, Export, ExportEntry, ExportError, Exports, PAYLOAD_BYTES_MAX, Properties,
    RangeKind, ReadPiece, Result,
};
pub use listen::{Address, Listener, TlsMode};
pub use server::{Server, Settings};
pub use tls::{TlsConfig, TlsError};
