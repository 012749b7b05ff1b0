//! The table of all metrics: name, kind, labels, help, and how each is computed.
//!
//! A name, once published, keeps its meaning. Units are base units (seconds, bytes) and stand in the
//! name; counters end in `_total`.

use cistern_engine::{
    cache::CacheStats,
    stats::{KindIo, LatencyStats},
    store::{DirectionStats, KindStats},
    units::BLOCK_BYTES,
    volume::{SegmentsStatus, SpaceStatus, VolumeStatus, WriteBackStatus},
};

use super::{
    Buckets, Metric,
    MetricKind::{Counter, Gauge, Histogram},
    Sample, Value,
};
use crate::{
    observe::{Observed, ObservedVolume},
    prices::{Cost, StorePrices},
};

/// Bounds of the latencies shown, as powers of two in microseconds: 16 us to 67 s. The daemon's own
/// buckets are four times as fine; these keep the number of series bearable.
const LATENCY_BITS: std::ops::RangeInclusive<u32> = 4..=26;

const VOLUME: &[&str] = &["volume"];
const KIND: &[&str] = &["volume", "kind"];

/// Every metric, in the order of the exposition.
pub const TABLE: &[Metric] = &[
    Metric {
        name: "cistern_build_info",
        kind: Gauge,
        labels: &["version"],
        help: "Always 1; the label says which version runs",
        samples: |seen| vec![Sample { labels: vec![seen.version.clone()], value: Value::Count(1) }],
    },
    // What clients ask.
    Metric {
        name: "cistern_requests_total",
        kind: Counter,
        labels: KIND,
        help: "Answered requests of clients, failed ones included",
        samples: |seen| by_kind(seen, |kind| Value::Count(kind.requests)),
    },
    Metric {
        name: "cistern_request_errors_total",
        kind: Counter,
        labels: KIND,
        help: "Requests of clients that were answered with an error",
        samples: |seen| by_kind(seen, |kind| Value::Count(kind.errors)),
    },
    Metric {
        name: "cistern_request_bytes_total",
        kind: Counter,
        labels: KIND,
        help: "Bytes of the ranges of successful requests",
        samples: |seen| by_kind(seen, |kind| Value::Count(kind.bytes)),
    },
    Metric {
        name: "cistern_requests_in_flight",
        kind: Gauge,
        labels: KIND,
        help: "Requests of clients that are not answered yet",
        samples: |seen| by_kind(seen, |kind| Value::Count(kind.in_flight)),
    },
    Metric {
        name: "cistern_request_busy_seconds_total",
        kind: Counter,
        labels: KIND,
        help: "Time that requests spent here, those in flight included; its rate is the mean queue depth",
        samples: |seen| by_kind(seen, |kind| Value::Real(seconds(kind.busy_us))),
    },
    Metric {
        name: "cistern_request_latency_seconds",
        kind: Histogram,
        labels: KIND,
        help: "Time from a request's arrival in the volume to its answer",
        samples: |seen| by_kind(seen, |kind| latency(&kind.latency)),
    },
    Metric {
        name: "cistern_requests_by_size_total",
        kind: Counter,
        labels: &["volume", "kind", "up_to_bytes"],
        help: "Requests whose length is at most up_to_bytes and more than half of it (512: or less)",
        samples: by_size,
    },
    Metric {
        name: "cistern_requests_by_alignment_total",
        kind: Counter,
        labels: &["volume", "kind", "aligned_to_bytes"],
        help: "Requests by the largest power of two that divides offset and length (1: below 512; 1048576: or more)",
        samples: by_alignment,
    },
    // What the store is asked.
    Metric {
        name: "cistern_store_requests_total",
        kind: Counter,
        labels: KIND,
        help: "Requests to the store, every try counted",
        samples: |seen| by_store_kind(seen, |kind| Value::Count(kind.requests)),
    },
    Metric {
        name: "cistern_store_request_errors_total",
        kind: Counter,
        labels: KIND,
        help: "Requests that the store did not answer, or answered with an error",
        samples: |seen| by_store_kind(seen, |kind| Value::Count(kind.errors)),
    },
    Metric {
        name: "cistern_store_bytes_total",
        kind: Counter,
        labels: KIND,
        help: "Bytes of objects sent to the store or received from it",
        samples: |seen| by_store_kind(seen, |kind| Value::Count(kind.bytes)),
    },
    Metric {
        name: "cistern_store_request_latency_seconds",
        kind: Histogram,
        labels: KIND,
        help: "Time from a request to the store to its answer, every try by itself",
        samples: |seen| by_store_kind(seen, |kind| latency(&kind.latency)),
    },
    Metric {
        name: "cistern_store_cost_total",
        kind: Counter,
        labels: &["volume", "currency"],
        help: "Cost of requests and transfer, by the table of prices",
        samples: |seen| costs(seen, |cost| Some(cost.total)),
    },
    Metric {
        name: "cistern_store_rent_per_month",
        kind: Gauge,
        labels: &["volume", "currency"],
        help: "What a month of what is stored now costs; absent while that is not known",
        samples: |seen| costs(seen, |cost| cost.rent_per_month),
    },
    Metric {
        name: "cistern_store_cost_per_month",
        kind: Gauge,
        labels: &["volume", "currency"],
        help: "What a month costs in all, at the rate since the volume was opened; absent while that is not known",
        samples: |seen| costs(seen, |cost| cost.month),
    },
    Metric {
        name: "cistern_store_prices_info",
        kind: Gauge,
        labels: &["volume", "kind", "how", "table", "date"],
        help: "Always 1; the labels say what kind of store it is taken for, why, and by which table of prices",
        samples: prices,
    },
    Metric {
        name: "cistern_store_last_error_age_seconds",
        kind: Gauge,
        labels: VOLUME,
        help: "Time since the last error of the store; absent if there was none",
        samples: last_error_age,
    },
    Metric {
        name: "cistern_store_requests_retried",
        kind: Gauge,
        labels: VOLUME,
        help: "Requests to the store that have failed and are tried again now",
        samples: |seen| of_volumes(seen, |volume| volume.store_retried),
    },
    // What is in memory, and read-ahead.
    Metric {
        name: "cistern_decoded_hits_total",
        kind: Counter,
        labels: VOLUME,
        help: "Extents read from frames that were in memory, decoded already; the chunk cache is not asked for them",
        samples: |seen| of_volumes(seen, |volume| volume.decoded.hits),
    },
    Metric {
        name: "cistern_decoded_misses_total",
        kind: Counter,
        labels: VOLUME,
        help: "Extents read from frames that were not, and came from the chunk cache or the store",
        samples: |seen| of_volumes(seen, |volume| volume.decoded.misses),
    },
    Metric {
        name: "cistern_read_ahead_bytes_total",
        kind: Counter,
        labels: &["volume", "outcome"],
        help: "Bytes fetched ahead of readers into memory (fetched), read afterwards (used), or pushed out unread (wasted); \
               what went to the chunk cache alone is not among them",
        samples: read_ahead,
    },
    Metric {
        name: "cistern_read_ahead_waits_total",
        kind: Counter,
        labels: VOLUME,
        help: "Reads that had to wait for what was being fetched ahead: the link was slower than the reader",
        samples: |seen| of_volumes(seen, |volume| volume.ahead.waits),
    },
    // The scheduler of requests to stores.
    Metric {
        name: "cistern_store_rate_limit_bytes_per_second",
        kind: Gauge,
        labels: &["direction"],
        help: "The rate that was set for all stores together; absent without one",
        samples: rate_limits,
    },
    Metric {
        name: "cistern_store_slots",
        kind: Gauge,
        labels: &["place", "direction"],
        help: "Requests that may be under way at once, adapted to what the store bears",
        samples: |seen| by_direction(seen, |direction| direction.limit),
    },
    Metric {
        name: "cistern_store_slots_in_use",
        kind: Gauge,
        labels: &["place", "direction"],
        help: "Requests to the store under way",
        samples: |seen| by_direction(seen, |direction| direction.in_use),
    },
    Metric {
        name: "cistern_store_requests_waiting",
        kind: Gauge,
        labels: &["place", "direction", "priority"],
        help: "Requests that wait for a slot or for the rate that was set",
        samples: waiting,
    },
    Metric {
        name: "cistern_store_away_seconds",
        kind: Gauge,
        labels: &["place"],
        help: "How long the store has not answered; 0 when it answers",
        samples: away,
    },
    // The state of the volumes.
    Metric {
        name: "cistern_volume_size_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Size of the volume",
        samples: |seen| by_volume(seen, |status| Value::Count(status.size_bytes)),
    },
    Metric {
        name: "cistern_volume_stopped",
        kind: Gauge,
        labels: VOLUME,
        help: "1 if the volume has stopped for good: every request fails until the daemon is started again",
        samples: |seen| by_volume(seen, |status| Value::Count(status.latched.is_some().into())),
    },
    Metric {
        name: "cistern_damaged_objects",
        kind: Gauge,
        labels: VOLUME,
        help: "Objects in the store that were found damaged or missing and did not read well since; status names them",
        samples: |seen| by_volume(seen, |status| Value::Count(status.damage.objects.len() as u64)),
    },
    Metric {
        name: "cistern_volume_read_only",
        kind: Gauge,
        labels: VOLUME,
        help: "1 if the volume was opened for reading only",
        samples: |seen| by_volume(seen, |status| Value::Count(status.read_only.into())),
    },
    Metric {
        name: "cistern_volume_epoch",
        kind: Gauge,
        labels: VOLUME,
        help: "The epoch: it grows with every writer that takes the volume",
        samples: |seen| by_volume(seen, |status| Value::Count(status.epoch)),
    },
    Metric {
        name: "cistern_frontier_bytes",
        kind: Gauge,
        labels: &["volume", "frontier"],
        help: "How far in the journal writes are acknowledged, durable, uploaded and committed",
        samples: frontiers,
    },
    Metric {
        name: "cistern_dirty_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Acknowledged bytes that are not in the store: what the loss of this host would cost",
        samples: |seen| by_volume(seen, |status| Value::Count(status.dirty_bytes)),
    },
    Metric {
        name: "cistern_dirty_age_seconds",
        kind: Gauge,
        labels: VOLUME,
        help: "For how long the oldest acknowledged byte has not been in the store",
        samples: |seen| by_volume(seen, |status| Value::Real(status.dirty_age_ms as f64 / 1e3)),
    },
    Metric {
        name: "cistern_uploads_refused",
        kind: Gauge,
        labels: VOLUME,
        help: "1 if the store takes nothing now: it refuses, does not answer, or its disk has no room; it is tried again",
        samples: |seen| by_volume(seen, |status| Value::Count(status.store_refuses.into())),
    },
    Metric {
        name: "cistern_snapshots",
        kind: Gauge,
        labels: VOLUME,
        help: "Snapshots of the volume",
        samples: |seen| of_volumes(seen, |volume| volume.snapshots),
    },
    Metric {
        name: "cistern_snapshot_overdue_seconds",
        kind: Gauge,
        labels: VOLUME,
        help: "For how long an automatic snapshot is overdue, of something that was written; 0 if none is",
        samples: |seen| {
            let overdue = |volume: &ObservedVolume| Some((volume.name.clone(), volume.snapshot_overdue_ms?));
            let overdue = seen.volumes.iter().filter_map(overdue);
            overdue.map(|(name, ms)| sample([&name], Value::Real(ms as f64 / 1e3))).collect()
        },
    },
    Metric {
        name: "cistern_journal_size_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Room of the journal",
        samples: |seen| by_volume(seen, |status| Value::Count(status.journal_bytes)),
    },
    Metric {
        name: "cistern_journal_used_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Room of the journal in use; when it is full, writes go at the speed of the upload",
        samples: |seen| by_volume(seen, |status| Value::Count(status.journal_used_bytes)),
    },
    Metric {
        name: "cistern_journal_waits_seconds",
        kind: Gauge,
        labels: VOLUME,
        help: "For how long writes have waited because the disk of the journal has no room; 0 if they do not",
        samples: |seen| {
            by_volume(seen, |status| {
                let for_ms = status.journal_waits.as_ref().map_or(0, |waits| waits.for_ms);
                Value::Real(for_ms as f64 / 1e3)
            })
        },
    },
    Metric {
        name: "cistern_uploads_in_flight",
        kind: Gauge,
        labels: VOLUME,
        help: "Segments being uploaded",
        samples: |seen| by_volume(seen, |status| Value::Count(status.uploads_in_flight)),
    },
    // Write-back.
    Metric {
        name: "cistern_write_back_paused",
        kind: Gauge,
        labels: VOLUME,
        help: "1 while write-back is paused: nothing is uploaded until it is resumed",
        samples: |seen| of_write_back(seen, |write_back| write_back.paused.into()),
    },
    Metric {
        name: "cistern_write_back_target_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Dirty bytes that write-back steers to",
        samples: |seen| of_write_back(seen, |write_back| write_back.target_bytes),
    },
    Metric {
        name: "cistern_write_back_rate_bytes_per_second",
        kind: Gauge,
        labels: VOLUME,
        help: "The rate at which write-back means to upload, in bytes of the journal",
        samples: |seen| of_write_back(seen, |write_back| write_back.rate_bytes_per_s),
    },
    // Space.
    Metric {
        name: "cistern_space_live_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Bytes of segments in the store that belong to live blocks; absent until the counts were read",
        samples: |seen| of_segments(seen, |known| known.live_bytes),
    },
    Metric {
        name: "cistern_space_garbage_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Bytes of segments in the store that belong to dead blocks, in grace not included",
        samples: |seen| of_segments(seen, |known| known.garbage_bytes),
    },
    Metric {
        name: "cistern_space_grace_bytes",
        kind: Gauge,
        labels: VOLUME,
        help: "Bytes of objects that are not needed any more and are not deleted yet",
        samples: |seen| of_space(seen, |space| space.grace_bytes),
    },
    Metric {
        name: "cistern_space_deletes_refused",
        kind: Gauge,
        labels: VOLUME,
        help: "1 while the store does not delete what is not needed any more",
        samples: |seen| of_space(seen, |space| space.deletes_refused.is_some().into()),
    },
    Metric {
        name: "cistern_space_written_bytes_total",
        kind: Counter,
        labels: VOLUME,
        help: "Bytes of committed segments with what clients wrote",
        samples: |seen| of_space(seen, |space| space.counters.written_bytes),
    },
    Metric {
        name: "cistern_space_moved_bytes_total",
        kind: Counter,
        labels: VOLUME,
        help: "Bytes of committed segments with what the cleaner moved",
        samples: |seen| of_space(seen, |space| space.counters.moved_bytes),
    },
    Metric {
        name: "cistern_space_swept_objects_total",
        kind: Counter,
        labels: VOLUME,
        help: "Orphans that were found: left by crashes and fenced writers",
        samples: |seen| of_space(seen, |space| space.counters.swept_objects),
    },
    Metric {
        name: "cistern_space_swept_bytes_total",
        kind: Counter,
        labels: VOLUME,
        help: "Bytes of the orphans that were found",
        samples: |seen| of_space(seen, |space| space.counters.swept_bytes),
    },
    Metric {
        name: "cistern_space_deleted_objects_total",
        kind: Counter,
        labels: VOLUME,
        help: "Objects that were not needed any more and were deleted",
        samples: |seen| of_space(seen, |space| space.counters.deleted_objects),
    },
    Metric {
        name: "cistern_space_deleted_bytes_total",
        kind: Counter,
        labels: VOLUME,
        help: "Bytes of the objects that were deleted",
        samples: |seen| of_space(seen, |space| space.counters.deleted_bytes),
    },
    // The chunk cache.
    Metric {
        name: "cistern_cache_size_bytes",
        kind: Gauge,
        labels: &[],
        help: "Size of the chunk cache",
        samples: |seen| of_cache(seen, |cache| cache.bytes),
    },
    Metric {
        name: "cistern_cache_hits_total",
        kind: Counter,
        labels: &[],
        help: "Reads that the chunk cache answered",
        samples: |seen| of_cache(seen, |cache| cache.hits),
    },
    Metric {
        name: "cistern_cache_misses_total",
        kind: Counter,
        labels: &["cause"],
        help: "Reads that it did not: cold (never there) or evicted (there before, a larger cache would have had it)",
        samples: |seen| {
            of_cache_by(
                seen,
                &[("cold", |cache| cache.misses_cold), ("evicted", |cache| cache.misses_evicted)],
            )
        },
    },
    Metric {
        name: "cistern_cache_filled_bytes_total",
        kind: Counter,
        labels: &["reason"],
        help: "Bytes written into the chunk cache because somebody read them, might soon, or wrote them, or because they were there before the cleaner moved them",
        samples: |seen| {
            of_cache_by(
                seen,
                &[
                    ("demand", |cache| cache.fill_demand_bytes),
                    ("prefetch", |cache| cache.fill_prefetch_bytes),
                    ("written", |cache| cache.fill_written_bytes),
                    ("moved", |cache| cache.fill_moved_bytes),
                ],
            )
        },
    },
    Metric {
        name: "cistern_cache_prefetched_bytes_total",
        kind: Counter,
        labels: &["outcome"],
        help: "Prefetched bytes that were read (used), or evicted before anybody did (wasted)",
        samples: |seen| {
            of_cache_by(
                seen,
                &[
                    ("used", |cache| cache.prefetch_used_bytes),
                    ("wasted", |cache| cache.prefetch_wasted_bytes),
                ],
            )
        },
    },
    Metric {
        name: "cistern_cache_fills_dropped_total",
        kind: Counter,
        labels: &[],
        help: "Fills that were dropped because the disk of the cache was busy",
        samples: |seen| of_cache(seen, |cache| cache.fills_dropped),
    },
    Metric {
        name: "cistern_cache_stale_chunks_total",
        kind: Counter,
        labels: &[],
        help: "Chunks from before the last start whose bytes had been overwritten, as after a crash",
        samples: |seen| of_cache(seen, |cache| cache.stale),
    },
    Metric {
        name: "cistern_cache_faults_total",
        kind: Counter,
        labels: &[],
        help: "Errors of the cache's disk, and pieces that were not what had been written",
        samples: |seen| of_cache(seen, |cache| cache.faults),
    },
    Metric {
        name: "cistern_cache_off",
        kind: Gauge,
        labels: &[],
        help: "1 if the chunk cache was switched off because its disk failed",
        samples: |seen| of_cache(seen, |cache| cache.off.into()),
    },
];

fn seconds(us: u64) -> f64 {
    us as f64 / 1e6
}

fn latency(stats: &LatencyStats) -> Value {
    let up_to = LATENCY_BITS.map(|bits| (seconds(1 << bits), stats.count_up_to(1 << bits))).collect();
    Value::Histogram(Buckets { up_to, count: stats.count, sum: seconds(stats.sum_us) })
}

fn sample<const N: usize>(labels: [&str; N], value: Value) -> Sample {
    Sample { labels: labels.map(str::to_owned).into(), value }
}

fn by_volume(seen: &Observed, of: fn(&VolumeStatus) -> Value) -> Vec<Sample> {
    seen.volumes.iter().map(|volume| sample([&volume.name], of(&volume.status))).collect()
}

fn of_volumes(seen: &Observed, of: fn(&ObservedVolume) -> u64) -> Vec<Sample> {
    seen.volumes.iter().map(|volume| sample([&volume.name], Value::Count(of(volume)))).collect()
}

fn by_kind(seen: &Observed, of: fn(&KindIo) -> Value) -> Vec<Sample> {
    let each = seen.volumes.iter().flat_map(|volume| volume.io.kinds.iter().map(move |kind| (volume, kind)));
    each.map(|(volume, kind)| sample([&volume.name, kind.kind.name()], of(kind))).collect()
}

fn by_store_kind(seen: &Observed, of: fn(&KindStats) -> Value) -> Vec<Sample> {
    let each =
        seen.volumes.iter().flat_map(|volume| volume.store.kinds.iter().map(move |kind| (volume, kind)));
    each.map(|(volume, kind)| sample([&volume.name, kind.kind.name()], of(kind))).collect()
}

fn by_size(seen: &Observed) -> Vec<Sample> {
    let mut out = Vec::new();
    for volume in &seen.volumes {
        for kind in &volume.io.kinds {
            out.extend(kind.sizes.iter().map(|size| {
                let bound = size.up_to_bytes.map_or_else(|| "+Inf".to_owned(), |bytes| bytes.to_string());
                sample([&volume.name, kind.kind.name(), &bound], Value::Count(size.count))
            }));
        }
    }
    out
}

fn by_alignment(seen: &Observed) -> Vec<Sample> {
    let mut out = Vec::new();
    for volume in &seen.volumes {
        for kind in &volume.io.kinds {
            out.extend(kind.alignments.iter().map(|alignment| {
                let labels = [&volume.name, kind.kind.name(), &alignment.bytes.to_string()];
                sample(labels, Value::Count(alignment.count))
            }));
        }
    }
    out
}

fn costs(seen: &Observed, of: fn(&Cost) -> Option<f64>) -> Vec<Sample> {
    let cost = |volume: &ObservedVolume| {
        let value = of(&volume.cost)?;
        Some(sample([&volume.name, &volume.cost.currency], Value::Real(value)))
    };
    seen.volumes.iter().filter_map(cost).collect()
}

fn prices(seen: &Observed) -> Vec<Sample> {
    let prices = |volume: &ObservedVolume| {
        let StorePrices { kind, how, table, date, .. } = &volume.prices;
        sample([&volume.name, kind, how.name(), table, date], Value::Count(1))
    };
    seen.volumes.iter().map(prices).collect()
}

fn last_error_age(seen: &Observed) -> Vec<Sample> {
    let age = |volume: &ObservedVolume| {
        let error = volume.store.last_error.as_ref()?;
        Some(sample([&volume.name], Value::Real(error.age_ms as f64 / 1e3)))
    };
    seen.volumes.iter().filter_map(age).collect()
}

fn read_ahead(seen: &Observed) -> Vec<Sample> {
    let of = |volume: &ObservedVolume| {
        let ahead = &volume.ahead;
        [("fetched", ahead.fetched_bytes), ("used", ahead.used_bytes), ("wasted", ahead.wasted_bytes)]
            .map(|(outcome, bytes)| sample([&volume.name, outcome], Value::Count(bytes)))
    };
    seen.volumes.iter().flat_map(of).collect()
}

fn rate_limits(seen: &Observed) -> Vec<Sample> {
    let rates = &seen.scheduler.rates;
    let each = [("upload", rates.upload), ("download", rates.download)];
    each.iter().filter_map(|(name, rate)| Some(sample([name], Value::Count((*rate)?)))).collect()
}

fn directions(place: &cistern_engine::store::PlaceStats) -> [(&'static str, &DirectionStats); 2] {
    [("upload", &place.uploads), ("download", &place.downloads)]
}

fn by_direction(seen: &Observed, of: fn(&DirectionStats) -> u64) -> Vec<Sample> {
    let each = seen.scheduler.places.iter().flat_map(|place| directions(place).map(|d| (place, d)));
    each.map(|(place, (name, d))| sample([&place.place, name], Value::Count(of(d)))).collect()
}

fn waiting(seen: &Observed) -> Vec<Sample> {
    let mut out = Vec::new();
    for place in &seen.scheduler.places {
        for (name, direction) in directions(place) {
            for (priority, queued) in [
                ("read", direction.queued_read),
                ("write_back", direction.queued_write_back),
                ("ahead", direction.queued_ahead),
                ("background", direction.queued_background),
            ] {
                out.push(sample([&place.place, name, priority], Value::Count(queued)));
            }
        }
    }
    out
}

fn away(seen: &Observed) -> Vec<Sample> {
    let places = seen.scheduler.places.iter();
    places.map(|p| sample([&p.place], Value::Real(p.away_ms.unwrap_or(0) as f64 / 1e3))).collect()
}

fn frontiers(seen: &Observed) -> Vec<Sample> {
    let mut out = Vec::new();
    for volume in &seen.volumes {
        let status = &volume.status;
        for (frontier, blocks) in [
            ("acknowledged", status.acknowledged),
            ("durable", status.durable),
            ("uploaded", status.uploaded),
            ("committed", status.committed),
        ] {
            out.push(sample([&volume.name, frontier], Value::Count(blocks * BLOCK_BYTES as u64)));
        }
    }
    out
}

/// Nothing for volumes that are open for reading only.
fn of_write_back(seen: &Observed, of: fn(&WriteBackStatus) -> u64) -> Vec<Sample> {
    let figure = |volume: &ObservedVolume| {
        let write_back = volume.status.write_back.as_ref()?;
        Some(sample([&volume.name], Value::Count(of(write_back))))
    };
    seen.volumes.iter().filter_map(figure).collect()
}

/// Nothing for volumes that are open for reading only.
fn of_space(seen: &Observed, of: fn(&SpaceStatus) -> u64) -> Vec<Sample> {
    let figure = |volume: &ObservedVolume| {
        let space = volume.status.space.as_ref()?;
        Some(sample([&volume.name], Value::Count(of(space))))
    };
    seen.volumes.iter().filter_map(figure).collect()
}

/// Nothing before it is known.
fn of_segments(seen: &Observed, of: fn(&SegmentsStatus) -> u64) -> Vec<Sample> {
    let figure = |volume: &ObservedVolume| {
        let known = volume.status.space.as_ref()?.segments.as_ref()?;
        Some(sample([&volume.name], Value::Count(of(known))))
    };
    seen.volumes.iter().filter_map(figure).collect()
}

fn of_cache(seen: &Observed, of: fn(&CacheStats) -> u64) -> Vec<Sample> {
    seen.cache.iter().map(|cache| sample([], Value::Count(of(cache)))).collect()
}

/// One figure of the cache for each value of a label.
type CacheFigure = (&'static str, fn(&CacheStats) -> u64);

fn of_cache_by(seen: &Observed, figures: &[CacheFigure]) -> Vec<Sample> {
    let Some(cache) = &seen.cache else { return Vec::new() };
    figures.iter().map(|(label, of)| sample([label], Value::Count(of(cache)))).collect()
}
