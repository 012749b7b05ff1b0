//! The tables of everything that has a history: name, how columns are made of seconds, meaning, and how each is computed.
//!
//! A name, once published, keeps its meaning. Units are base units and stand in the name.

use cistern_engine::{
    cache::CHUNK_BYTES,
    stats::{IoKind, KindIo, LatencyStats},
    store::{DirectionStats, KindStats, StoreKind},
    volume::{SpaceStatus, WriteBackStatus},
};

use crate::observe::{Observed, ObservedVolume};

/// What a column has of its seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    Mean,
    Max,
    Last,
}

/// One series: everything that is to be known about it.
pub struct Series<T> {
    pub name: &'static str,
    pub keep: Keep,
    /// One sentence, without its full stop.
    pub help: &'static str,
    /// Of what was observed in so many seconds; `None` is unknown.
    pub value: fn(&T, f64) -> Option<f64>,
}

impl Keep {
    /// For the documentation.
    pub fn name(self) -> &'static str {
        match self {
            Keep::Mean => "mean",
            Keep::Max => "maximum",
            Keep::Last => "last",
        }
    }
}

/// Figures that are computed of one subject.
type Value<T> = fn(&T, f64) -> Option<f64>;

const fn mean<T>(name: &'static str, help: &'static str, value: Value<T>) -> Series<T> {
    Series { name, keep: Keep::Mean, help, value }
}

const fn max<T>(name: &'static str, help: &'static str, value: Value<T>) -> Series<T> {
    Series { name, keep: Keep::Max, help, value }
}

const fn last<T>(name: &'static str, help: &'static str, value: Value<T>) -> Series<T> {
    Series { name, keep: Keep::Last, help, value }
}

const GETS: &[StoreKind] = &[StoreKind::Get, StoreKind::GetRange];
const PUTS: &[StoreKind] = &[StoreKind::Put, StoreKind::PutIfAbsent];
const LISTS: &[StoreKind] = &[StoreKind::List, StoreKind::ListDirs];
const DELETES: &[StoreKind] = &[StoreKind::Delete, StoreKind::DeleteMany];

/// What there is of every volume.
pub const VOLUME: &[Series<ObservedVolume>] = &[
    // Safe to disconnect?
    last("dirty_bytes", "Acknowledged bytes that are not in the store", |v, _| {
        Some(v.status.dirty_bytes as f64)
    }),
    last("dirty_age_seconds", "For how long the oldest of them has not been there", |v, _| {
        Some(v.status.dirty_age_ms as f64 / 1e3)
    }),
    last("store_away_seconds", "How long the store has not answered; 0 when it answers", |v, _| {
        Some(v.store_away_ms.unwrap_or(0) as f64 / 1e3)
    }),
    // Throughput.
    mean("client_read_bytes_per_second", "What clients read", |v, s| io(v, IoKind::Read, s, |k| k.bytes)),
    mean("client_write_bytes_per_second", "What clients wrote", |v, s| io(v, IoKind::Write, s, |k| k.bytes)),
    mean("store_read_bytes_per_second", "Bytes of objects received from the store", |v, s| {
        store(v, GETS, s, |k| k.bytes)
    }),
    mean("store_write_bytes_per_second", "Bytes of objects sent to the store", |v, s| {
        store(v, PUTS, s, |k| k.bytes)
    }),
    // Requests of clients.
    mean("reads_per_second", "Reads of clients", |v, s| io(v, IoKind::Read, s, |k| k.requests)),
    mean("writes_per_second", "Writes of clients", |v, s| io(v, IoKind::Write, s, |k| k.requests)),
    mean("flushes_per_second", "Flushes of clients", |v, s| io(v, IoKind::Flush, s, |k| k.requests)),
    mean("trims_per_second", "Trims and writes of zeroes of clients", |v, s| {
        let zeroes = io(v, IoKind::WriteZeroes, s, |k| k.requests)?;
        Some(io(v, IoKind::Trim, s, |k| k.requests)? + zeroes)
    }),
    last("in_flight", "Requests of clients that are not answered yet", |v, _| {
        Some(v.io.kinds.iter().map(|kind| kind.in_flight).sum::<u64>() as f64)
    }),
    // Latencies.
    mean("read_p50_seconds", "What half of the reads did not exceed", |v, _| latency(v, IoKind::Read, p50)),
    max("read_p99_seconds", "What 99 % of the reads did not exceed", |v, _| latency(v, IoKind::Read, p99)),
    mean("write_p50_seconds", "What half of the writes did not exceed", |v, _| {
        latency(v, IoKind::Write, p50)
    }),
    max("write_p99_seconds", "What 99 % of the writes did not exceed", |v, _| latency(v, IoKind::Write, p99)),
    mean("flush_p50_seconds", "What half of the flushes did not exceed", |v, _| {
        latency(v, IoKind::Flush, p50)
    }),
    max("flush_p99_seconds", "What 99 % of the flushes did not exceed", |v, _| {
        latency(v, IoKind::Flush, p99)
    }),
    // The journal and write-back.
    last("journal_used_bytes", "Room of the journal in use", |v, _| Some(v.status.journal_used_bytes as f64)),
    last("journal_size_bytes", "Room of the journal", |v, _| Some(v.status.journal_bytes as f64)),
    mean("write_back_bytes_per_second", "Bytes of the journal committed, over the last seconds", |v, _| {
        write_back(v, |w| Some(w.throttle.drained_bytes_per_s))
    }),
    last(
        "write_back_target_bytes_per_second",
        "The rate at which write-back means to upload; unknown while it uploads all there is",
        |v, _| {
            write_back(v, |w| match (w.paused, w.unlimited) {
                (true, _) => Some(0),
                (false, true) => None,
                (false, false) => Some(w.rate_bytes_per_s),
            })
        },
    ),
    last("dirty_target_bytes", "Dirty bytes that write-back steers to", |v, _| {
        write_back(v, |w| Some(w.target_bytes))
    }),
    // Space.
    last("live_bytes", "Bytes of segments in the store that are live, or not counted yet", |v, _| {
        space(v, |s| Some(s.segments?.live_bytes + s.uncovered_bytes))
    }),
    last("dead_bytes", "Bytes of segments in the store that are garbage", |v, _| {
        space(v, |s| Some(s.segments?.garbage_bytes + s.vacated_bytes))
    }),
    last("grace_bytes", "Bytes of objects that are not needed any more and are not deleted yet", |v, _| {
        space(v, |s| Some(s.grace_bytes))
    }),
    last(
        "write_amplification",
        "Bytes stored for each byte of what clients wrote, since the volume was opened",
        |v, _| v.status.space.as_ref()?.write_amplification,
    ),
    last("snapshots", "Snapshots of the volume", |v, _| Some(v.snapshots as f64)),
    // The store.
    mean("store_gets_per_second", "Gets, every try counted", |v, s| store(v, GETS, s, |k| k.requests)),
    mean("store_puts_per_second", "Puts, every try counted", |v, s| store(v, PUTS, s, |k| k.requests)),
    mean("store_lists_per_second", "Lists, every try counted", |v, s| store(v, LISTS, s, |k| k.requests)),
    mean("store_deletes_per_second", "Deletes, every try counted", |v, s| {
        store(v, DELETES, s, |k| k.requests)
    }),
    mean(
        "store_errors_per_second",
        "Tries that the store did not answer, or answered with an error",
        |v, s| store(v, &StoreKind::ALL, s, |k| k.errors),
    ),
    mean("store_get_p50_seconds", "What half of the gets did not exceed", |v, _| store_latency(v, GETS, p50)),
    max("store_get_p99_seconds", "What 99 % of the gets did not exceed", |v, _| store_latency(v, GETS, p99)),
    mean("store_put_p50_seconds", "What half of the puts did not exceed", |v, _| store_latency(v, PUTS, p50)),
    max("store_put_p99_seconds", "What 99 % of the puts did not exceed", |v, _| store_latency(v, PUTS, p99)),
    mean("cost_per_hour", "What an hour of such requests and transfer costs, in US dollars", |v, s| {
        Some(v.cost.total * 3600.0 / s)
    }),
    last("storage_cost_per_month", "What a month of what is stored costs, in US dollars", |v, _| {
        v.cost.rent_per_month
    }),
];

/// What there is of the daemon itself.
pub const DAEMON: &[Series<Observed>] = &[
    mean("cache_hits_per_second", "Reads that the chunk cache answered", |o, s| {
        Some(o.cache.as_ref()?.hits as f64 / s)
    }),
    mean("cache_misses_cold_per_second", "Reads of what was never in the chunk cache", |o, s| {
        Some(o.cache.as_ref()?.misses_cold as f64 / s)
    }),
    mean("cache_misses_evicted_per_second", "Reads of what a larger chunk cache would have had", |o, s| {
        Some(o.cache.as_ref()?.misses_evicted as f64 / s)
    }),
    mean("cache_fill_bytes_per_second", "Bytes written into the chunk cache", |o, s| {
        Some(o.cache.as_ref()?.fill_bytes as f64 / s)
    }),
    last("cache_occupied_bytes", "Bytes of the chunk cache in use", |o, _| {
        Some(o.cache.as_ref()?.chunks_used as f64 * CHUNK_BYTES as f64)
    }),
    last("cache_size_bytes", "Size of the chunk cache", |o, _| Some(o.cache.as_ref()?.bytes as f64)),
    last("memory_bytes", "Memory of the daemon that is resident", |o, _| Some(o.memory_bytes? as f64)),
    last("clients", "Connections of clients", |o, _| Some(o.clients as f64)),
    last("waiting", "Requests to stores that wait for a slot or for a rate", |o, _| {
        let all = o.scheduler.places.iter().flat_map(|place| [&place.uploads, &place.downloads]);
        Some(all.map(queued).sum::<u64>() as f64)
    }),
];

fn queued(direction: &DirectionStats) -> u64 {
    let DirectionStats { queued_read, queued_write_back, queued_ahead, queued_background, .. } = direction;
    queued_read + queued_write_back + queued_ahead + queued_background
}

fn io(volume: &ObservedVolume, kind: IoKind, seconds: f64, of: fn(&KindIo) -> u64) -> Option<f64> {
    let kind = volume.io.kinds.iter().find(|known| known.kind == kind)?;
    Some(of(kind) as f64 / seconds)
}

fn store(
    volume: &ObservedVolume,
    kinds: &[StoreKind],
    seconds: f64,
    of: fn(&KindStats) -> u64,
) -> Option<f64> {
    let of_these = volume.store.kinds.iter().filter(|known| kinds.contains(&known.kind));
    Some(of_these.map(of).sum::<u64>() as f64 / seconds)
}

fn latency(volume: &ObservedVolume, kind: IoKind, of: fn(&LatencyStats) -> Option<u64>) -> Option<f64> {
    let kind = volume.io.kinds.iter().find(|known| known.kind == kind)?;
    Some(of(&kind.latency)? as f64 / 1e6)
}

fn store_latency(
    volume: &ObservedVolume,
    kinds: &[StoreKind],
    of: fn(&LatencyStats) -> Option<u64>,
) -> Option<f64> {
    let of_these = volume.store.kinds.iter().filter(|known| kinds.contains(&known.kind));
    let all = of_these.filter(|known| known.latency.count > 0).map(|known| known.latency.clone());
    Some(of(&all.reduce(|a, b| a.and(&b))?)? as f64 / 1e6)
}

fn p50(latency: &LatencyStats) -> Option<u64> {
    latency.p50_us
}

fn p99(latency: &LatencyStats) -> Option<u64> {
    latency.p99_us
}

fn write_back(volume: &ObservedVolume, of: fn(&WriteBackStatus) -> Option<u64>) -> Option<f64> {
    Some(of(volume.status.write_back.as_ref()?)? as f64)
}

fn space(volume: &ObservedVolume, of: fn(&SpaceStatus) -> Option<u64>) -> Option<f64> {
    Some(of(volume.status.space.as_ref()?)? as f64)
}
