//! How fast a store is, and whether it takes the largest object that a volume writes.

use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use super::{ProbeDepth, RULE_SIZE, SMALL_BYTES, Session, timed, together};
use crate::{
    Result,
    env::Env,
    store::{StoreError, StoreResult},
};

/// Bytes of the largest object that a volume may ever write: a run of the map. Each format asserts that its own limit is not above.
pub const PROBED_OBJECT_BYTES: u64 = 80 << 20;
/// The same where the store is reached over a slow link: a segment, which every volume writes.
pub const PROBED_OBJECT_BYTES_SLOW: u64 = 32 << 20;
/// Bytes per second below which a link is slow: the largest object would take 40 s.
const SLOW_BYTES_PER_S: u64 = 2 << 20;
/// How often latency is measured; the median of an odd number is one of them.
const LATENCY_SAMPLES: usize = 9;
/// Bytes of each object that bandwidth is measured with, and how many travel at once.
const LARGE_BYTES: usize = 8 << 20;
const LARGE_PARALLEL: usize = 4;
/// Bytes at the end of the largest object that are read again.
const END_BYTES: u64 = 16;
const _: () = assert!(PROBED_OBJECT_BYTES.is_multiple_of(LARGE_BYTES as u64));
const _: () = assert!(PROBED_OBJECT_BYTES_SLOW.is_multiple_of(LARGE_BYTES as u64));

/// What was measured.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Speed {
    pub put_us: u64,
    pub get_us: u64,
    pub up: u64,
    pub down: u64,
    pub largest_bytes: u64,
}

/// Measures, and writes the largest object. `None` where the store does not take what is large.
pub(super) async fn measure(session: &Session<'_>) -> Result<Option<Speed>> {
    let (env, store) = (session.env, session.store);
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for i in 0..LATENCY_SAMPLES {
        let key = session.key(&format!("small/{i}"));
        let body = Bytes::from(env.random_bytes::<SMALL_BYTES>().to_vec());
        puts.push(timed(env, store.put(&key, body)).await?);
        gets.push(timed(env, store.get_range(&key, 0..SMALL_BYTES as u64)).await?);
    }
    let keys: Vec<String> = (0..LARGE_PARALLEL).map(|i| session.key(&format!("large/{i}"))).collect();
    let body = incompressible(env);
    let up = together(keys.iter().map(|key| store.put(key, body.clone())));
    let up = match timed(env, up).await {
        Ok(time) => rate(time),
        Err(e) => {
            let fault = too_large(session, LARGE_BYTES as u64, e).await?;
            session.note(RULE_SIZE, Some(fault));
            return Ok(None);
        }
    };
    let down = keys.iter().map(|key| async { store.get(key, LARGE_BYTES as u64).await.map(drop) });
    let down = rate(timed(env, together(down)).await?);
    let largest_bytes = match session.depth {
        ProbeDepth::Brief => LARGE_BYTES as u64,
        ProbeDepth::Full if up < SLOW_BYTES_PER_S => PROBED_OBJECT_BYTES_SLOW,
        ProbeDepth::Full => PROBED_OBJECT_BYTES,
    };
    let fault = match session.depth {
        ProbeDepth::Brief => None,
        ProbeDepth::Full => largest(session, &body, largest_bytes).await?,
    };
    let is_taken = fault.is_none();
    session.note(RULE_SIZE, fault);
    let speed = Speed { put_us: median_us(puts), get_us: median_us(gets), up, down, largest_bytes };
    Ok(is_taken.then_some(speed))
}

/// Writes an object of so many bytes, and reads its end.
async fn largest(session: &Session<'_>, piece: &Bytes, bytes: u64) -> Result<Option<String>> {
    let key = session.key("largest");
    let body = Bytes::from(piece.repeat(bytes as usize / piece.len()));
    let end = body.slice(body.len() - END_BYTES as usize..);
    if let Err(e) = session.store.put(&key, body).await {
        return Ok(Some(too_large(session, bytes, e).await?));
    }
    let accepted = format!("an object of {} MiB was accepted", bytes >> 20);
    match session.store.get_range(&key, bytes - END_BYTES..bytes + END_BYTES).await {
        Ok(read) if read == end => Ok(None),
        Ok(_) => Ok(Some(format!("{accepted} and does not end as written"))),
        Err(StoreError::NotFound(_)) => Ok(Some(format!("{accepted} and is not found"))),
        Err(e) => Err(e.into()),
    }
}

/// What is said of an object that was not accepted; the error itself where a small one is not accepted either.
async fn too_large(session: &Session<'_>, bytes: u64, error: StoreError) -> StoreResult<String> {
    let key = session.key("small-again");
    match session.store.put(&key, Bytes::from_static(b"x")).await {
        Ok(()) => Ok(format!("an object of {} MiB is not accepted, a small one is: {error}", bytes >> 20)),
        Err(_) => Err(error),
    }
}

fn rate(time: Duration) -> u64 {
    (LARGE_BYTES * LARGE_PARALLEL) as u64 * 1_000_000 / time.as_micros().max(1) as u64
}

fn median_us(mut times: Vec<Duration>) -> u64 {
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0, |t| t.as_micros() as u64)
}

/// A body that nothing on the way can shrink.
fn incompressible(env: &Env) -> Bytes {
    let mut out = Vec::with_capacity(LARGE_BYTES);
    while out.len() < LARGE_BYTES {
        out.extend_from_slice(&env.random_bytes::<65_536>());
    }
    out.into()
}
