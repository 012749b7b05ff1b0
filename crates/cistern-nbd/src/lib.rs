//! An NBD server: fixed newstyle negotiation, TLS, structured replies and extended headers.
//!
//! Knows the protocol and nothing of storage: what is served stands behind the traits [`Export`]
//! and [`Exports`]. `docs/format/nbd.md` lists what is spoken and how every bad request is answered.
//!
//! Modules are layered and import strictly downward, never sideways (`xtask/tests/layers.rs` proves it):
//!
//! | layer | modules | role |
//! |---|---|---|
//! | 0 | `export` | the traits and words of what is served |
//! | 0 | `wire` | magic numbers and fixed layouts |
//! | 0 | `input`, `output` | buffers of one connection |
//! | 0 | `tls`, `conn` | certificates, sockets |
//! | 0 | `lanes` | the threads on which connections are served |
//! | 0 | `patience` | who may hold memory how long |
//! | 0 | `client_time` | how long a negotiation may take |
//! | 0 | `succession` | who goes on for whom among connections that outlive their server |
//! | 0 | `slots` | the places for connections, served and unfinished |
//! | 1 | `option` | option payloads of the negotiation, parsed purely |
//! | 1 | `gate` | what a request header is, or which error it gets: a pure decision |
//! | 1 | `reply` | replies of the transmission phase, encoded into the output queue |
//! | 1 | `pool` | the memory that all connections share |
//! | 1 | `listen` | addresses |
//! | 1 | `client` | a negotiation from the other side, for connections that the kernel gets |
//! | 2 | `handshake`, `session` | the two phases of one connection |
//! | 2 | `caller` | an export of another server, one request at a time |
//! | 2 | `remote` | an export of another server, read and written by who moves data |
//! | 3 | `fuzz` | the parsers of what comes from the other side, for fuzzing |
//! | 3 | `handover` | connections that the next server goes on with |
//! | 4 | `server` | accepting, graceful stop |
//!
//! Invariants: nothing a client sends can panic, or make a connection hold more memory than its
//! budget, or all of them more than theirs; no task outlives `Server::serve`; every queue has a named limit.

#![forbid(unsafe_code)]

mod caller;
mod client;
mod client_time;
mod conn;
mod export;
pub mod fuzz;
mod gate;
mod handover;
mod handshake;
mod input;
mod lanes;
mod listen;
mod option;
mod output;
mod patience;
mod pool;
mod remote;
mod reply;
mod server;
mod session;
mod slots;
mod succession;
mod tls;
mod wire;

pub use caller::Caller;
pub use client::{Negotiated, choose_export};
pub use export::{
    Allocation, BLOCK_BYTES_MIN, Errno, Export, ExportEntry, ExportError, Exports, PAYLOAD_BYTES_MAX,
    Properties, ReadPiece, Result,
};
pub use handover::HandedOn;
pub use listen::{Address, Listener, TlsMode};
pub use remote::Remote;
pub use server::{Server, ServerEnd, ServerSettings};
pub use tls::{TlsConfig, TlsError};
