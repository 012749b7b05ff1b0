//! The protocol over real sockets, with a client that was written by hand to break it.

mod abuse;
#[path = "../support/certificates.rs"]
mod certificates;
mod client;
#[allow(dead_code)]
#[path = "../../examples/memory/export.rs"]
mod export;
mod fixture;
mod handover;
mod negotiation;
mod stop;
mod succession;
mod transmission;
