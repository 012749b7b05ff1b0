//! Ports for servers that have to be told theirs.

use std::{
    net::TcpListener,
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Result, bail};

/// A port nobody listens on at this moment, and that the kernel gives to no outgoing connection.
pub fn free_port() -> Result<u16> {
    static DRAWN: AtomicU32 = AtomicU32::new(0);
    for _ in 0..1000 {
        // Processes begin at different places; 37 apart, so that the draws of neighbours stay apart.
        let draw = std::process::id().wrapping_mul(37).wrapping_add(DRAWN.fetch_add(1, Ordering::Relaxed));
        let port = 10_000 + (draw % 20_000) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free between 10000 and 30000")
}
