//! `status --io` for people: tables of requests, of the store, of the cache, and histograms.

use std::time::Duration;

use cistern_engine::{
    cache::CacheStats,
    fetch::{AheadCounts, DecodedCounts},
    stats::{IoKind, IoStats, KindIo, LatencyStats},
    store::{DirectionStats, SchedulerStats, StoreStats},
};

use crate::{
    observe::{Observed, ObservedVolume},
    prices::{Cost, StorePrices},
    quantity::{ByteSize, Span, Thousands, money},
    terminal::right_aligned,
};

/// How much to show.
#[derive(Clone, Copy)]
pub struct Detail {
    /// Per second, as is right for an interval; else totals.
    pub rates: bool,
    pub histograms: bool,
}

/// Everything about all daemons.
pub fn describe(observed: &[Observed], detail: Detail) -> String {
    let mut blocks = Vec::new();
    for daemon in observed {
        blocks.extend(daemon.volumes.iter().map(|volume| describe_volume(volume, detail)));
        if let Some(cache) = &daemon.cache {
            blocks.push(format!("cache of process {}\n{}", daemon.pid, describe_cache(cache)));
        }
        blocks.extend(describe_scheduler(&daemon.scheduler));
    }
    blocks.join("\n")
}

fn describe_volume(volume: &ObservedVolume, detail: Detail) -> String {
    let period = Span(Duration::from_millis(volume.io.period_us / 1000));
    let head = match detail.rates {
        true => format!("{}: the last {period}", volume.name),
        false => format!("{}: {period} since it was opened", volume.name),
    };
    let mut out = format!("{head}\n{}\n", requests(&volume.io, detail));
    if detail.histograms {
        out += &histograms(&volume.io);
    }
    out += &store(&volume.store, volume.io.period_us, detail);
    out += &decoded(&volume.decoded);
    out += &read_ahead(&volume.ahead);
    out + &describe_cost(&volume.cost, volume.io.period_us, detail) + &describe_prices(&volume.prices)
}

/// Nothing where nothing was read that lies in the store.
fn decoded(decoded: &DecodedCounts) -> String {
    let DecodedCounts { hits, misses } = *decoded;
    if hits + misses == 0 {
        return String::new();
    }
    format!("  decoded frames in memory: {}, {} misses\n", hits_of(hits, hits + misses), Thousands(misses))
}

fn hits_of(hits: u64, looked: u64) -> String {
    format!("{} hits ({:.1} %)", Thousands(hits), hits as f64 * 100.0 / looked as f64)
}

/// Nothing where nothing was fetched ahead.
fn read_ahead(ahead: &AheadCounts) -> String {
    if ahead.fetched_bytes == 0 && ahead.used_bytes == 0 && ahead.wasted_bytes == 0 {
        return String::new();
    }
    let [fetched, used, wasted] = [ahead.fetched_bytes, ahead.used_bytes, ahead.wasted_bytes].map(ByteSize);
    let waits = Thousands(ahead.waits);
    format!("  read ahead: {fetched} fetched, {used} used, {wasted} wasted; {waits} reads waited for it\n")
}

/// A shorter time says little of a month.
const RATE_US_MIN: u64 = 3_600_000_000;

fn describe_cost(cost: &Cost, period_us: u64, detail: Detail) -> String {
    let Cost { currency, requests, transfer, total, rent_per_month, month } = cost;
    let mut parts = Vec::new();
    if !detail.rates {
        let (requests, transfer) = (money(*requests), money(*transfer));
        parts.push(format!("{} {currency} (requests {requests}, transfer {transfer})", money(*total)));
    }
    parts.extend(rent_per_month.map(|rent| format!("what is stored {} {currency} a month", money(rent))));
    if detail.rates || period_us >= RATE_US_MIN {
        parts.extend(month.map(|month| format!("at this rate {} {currency} a month in all", money(month))));
    }
    match parts.is_empty() {
        true => String::new(),
        false => format!("  cost: {}\n", parts.join(", ")),
    }
}

fn describe_prices(prices: &StorePrices) -> String {
    let StorePrices { kind, how, table, date, .. } = prices;
    format!("  prices of {kind}, {}: {table}, {date}\n", how.explain())
}

/// A count as total or as rate.
fn amount(count: u64, period_us: u64, detail: Detail) -> String {
    match detail.rates {
        true => Thousands(per_second(count, period_us)).to_string(),
        false => Thousands(count).to_string(),
    }
}

fn bytes(count: u64, period_us: u64, detail: Detail) -> String {
    match (count, detail.rates) {
        (0, _) => "-".to_owned(),
        (_, true) => ByteSize(per_second(count, period_us)).to_string(),
        (_, false) => ByteSize(count).to_string(),
    }
}

fn per_second(count: u64, period_us: u64) -> u64 {
    (count as f64 * 1e6 / period_us.max(1) as f64).round() as u64
}

const LATENCY_HEADS: [&str; 5] = ["p50", "p95", "p99", "p99.9", "max"];

fn latencies(latency: &LatencyStats) -> [String; 5] {
    let max = (latency.count > 0).then_some(latency.max_us);
    [latency.p50_us, latency.p95_us, latency.p99_us, latency.p999_us, max].map(|us| match us {
        Some(us) => microseconds(us),
        None => "-".to_owned(),
    })
}

/// A latency in three digits.
fn microseconds(us: u64) -> String {
    let (value, unit) = match us {
        0..1000 => return format!("{us}us"),
        1000..1_000_000 => (us as f64 / 1e3, "ms"),
        _ => (us as f64 / 1e6, "s"),
    };
    match value {
        ..10.0 => format!("{value:.2}{unit}"),
        ..100.0 => format!("{value:.1}{unit}"),
        _ => format!("{value:.0}{unit}"),
    }
}

fn head(name: &str, per_second: &str, total: &str, more: &[&str], detail: Detail) -> Vec<String> {
    let count = if detail.rates { per_second } else { total };
    let cells = [&[name, count][..], more, &LATENCY_HEADS].concat();
    cells.into_iter().map(str::to_owned).collect()
}

fn requests(io: &IoStats, detail: Detail) -> String {
    let bytes_head = if detail.rates { "BYTES/S" } else { "BYTES" };
    let more = [bytes_head, "ERRORS", "IN FLIGHT", "MEAN"];
    let mut rows = vec![head("  REQUEST", "PER SECOND", "COUNT", &more, detail)];
    for kind in io.kinds.iter().filter(|kind| is_shown(kind)) {
        let mut row = vec![
            format!("  {}", kind_name(kind.kind)),
            amount(kind.requests, io.period_us, detail),
            bytes(kind.bytes, io.period_us, detail),
            Thousands(kind.errors).to_string(),
            Thousands(kind.in_flight).to_string(),
            format!("{:.1}", kind.busy_us as f64 / io.period_us.max(1) as f64),
        ];
        row.extend(latencies(&kind.latency));
        rows.push(row);
    }
    right_aligned(&rows)
}

/// Reads, writes and flushes always; what few clients do only when they do it.
fn is_shown(kind: &KindIo) -> bool {
    let always = matches!(kind.kind, IoKind::Read | IoKind::Write | IoKind::Flush);
    always || kind.requests > 0 || kind.in_flight > 0
}

fn kind_name(kind: IoKind) -> String {
    kind.name().replace('_', " ")
}

fn store(store: &StoreStats, period_us: u64, detail: Detail) -> String {
    let bytes_head = if detail.rates { "BYTES/S" } else { "BYTES" };
    let mut rows = vec![head("  STORE", "PER SECOND", "COUNT", &[bytes_head, "ERRORS"], detail)];
    for kind in store.kinds.iter().filter(|kind| kind.requests > 0) {
        let mut row = vec![
            format!("  {}", kind.kind.name().replace('_', " ")),
            amount(kind.requests, period_us, detail),
            bytes(kind.bytes, period_us, detail),
            Thousands(kind.errors).to_string(),
        ];
        row.extend(latencies(&kind.latency));
        rows.push(row);
    }
    match rows.len() {
        1 => "  no request to the store\n".to_owned(),
        _ => right_aligned(&rows) + "\n",
    }
}

fn describe_cache(cache: &CacheStats) -> String {
    let looked = cache.hits + cache.misses;
    let ratio = match looked {
        0 => "nothing was asked".to_owned(),
        _ => format!(
            "{}, {} misses: {} cold, {} evicted before",
            hits_of(cache.hits, looked),
            Thousands(cache.misses),
            Thousands(cache.misses_cold),
            Thousands(cache.misses_evicted)
        ),
    };
    let mut lines = vec![
        format!("  {ratio}"),
        format!(
            "  filled: {} on demand, {} prefetched ({} of them read, {} wasted), {} written back, {} moved; {} dropped",
            ByteSize(cache.fill_demand_bytes),
            ByteSize(cache.fill_prefetch_bytes),
            ByteSize(cache.prefetch_used_bytes),
            ByteSize(cache.prefetch_wasted_bytes),
            ByteSize(cache.fill_written_bytes),
            ByteSize(cache.fill_moved_bytes),
            Thousands(cache.fills_dropped)
        ),
    ];
    if cache.faults > 0 {
        lines.push(format!("  {} faults of the disk or of its bytes", Thousands(cache.faults)));
    }
    if cache.off {
        let why = cache.off_reason.as_deref().unwrap_or("the disk failed too often");
        lines.push(format!("  switched off: {why}"));
    }
    lines.join("\n") + "\n"
}

fn describe_scheduler(scheduler: &SchedulerStats) -> Vec<String> {
    let place = |place: &cistern_engine::store::PlaceStats| {
        let away = match place.away_ms {
            Some(ms) => format!("  does not answer for {}\n", Span(Duration::from_millis(ms))),
            None => String::new(),
        };
        let (uploads, downloads) = (direction(&place.uploads), direction(&place.downloads));
        format!("requests to {}\n{away}  uploads {uploads}\n  downloads {downloads}\n", place.place)
    };
    scheduler.places.iter().map(place).collect()
}

fn direction(direction: &DirectionStats) -> String {
    let behind = direction.queued_ahead + direction.queued_background;
    let queued = direction.queued_read + direction.queued_write_back + behind;
    let mut text = format!("{} under way of at most {}", direction.in_use, direction.limit);
    if queued > 0 {
        text += &format!(
            ", waiting: {} for clients, {} of write-back, {} ahead or in the background",
            direction.queued_read, direction.queued_write_back, behind
        );
    }
    text
}

/// The kinds whose ranges are worth a look.
const SHAPED: [IoKind; 4] = [IoKind::Read, IoKind::Write, IoKind::Trim, IoKind::WriteZeroes];

fn histograms(io: &IoStats) -> String {
    let kinds: Vec<&KindIo> = io.kinds.iter().filter(|kind| SHAPED.contains(&kind.kind)).collect();
    let sizes = histogram("  SIZE UP TO", &kinds, |kind| {
        kind.sizes.iter().map(|size| (size.up_to_bytes.unwrap_or(u64::MAX), size.count)).collect()
    });
    let alignments = histogram("  ALIGNED TO", &kinds, |kind| {
        kind.alignments.iter().map(|alignment| (alignment.bytes, alignment.count)).collect()
    });
    sizes + &alignments
}

/// One row for each bucket that some kind has.
fn histogram(name: &str, kinds: &[&KindIo], of: impl Fn(&KindIo) -> Vec<(u64, u64)>) -> String {
    let columns: Vec<Vec<(u64, u64)>> = kinds.iter().map(|kind| of(kind)).collect();
    let mut bounds: Vec<u64> = columns.iter().flatten().map(|(bound, _)| *bound).collect();
    bounds.sort_unstable();
    bounds.dedup();
    if bounds.is_empty() {
        return String::new();
    }
    let mut rows = vec![vec![name.to_owned()]];
    rows[0].extend(kinds.iter().map(|kind| kind_name(kind.kind)));
    for bound in bounds {
        let mut row = vec![match bound {
            1 => "  less".to_owned(),
            u64::MAX => "  more".to_owned(),
            bound => format!("  {}", ByteSize(bound)),
        }];
        row.extend(columns.iter().map(|column| {
            let count = column.iter().find(|(b, _)| *b == bound).map_or(0, |(_, count)| *count);
            if count == 0 { "-".to_owned() } else { Thousands(count).to_string() }
        }));
        rows.push(row);
    }
    right_aligned(&rows) + "\n"
}

#[cfg(test)]
mod tests;
