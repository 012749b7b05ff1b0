// What the ten panels show: their lines by the names of the daemon's series, and the figures above them.
//
// A line: `series`, a `label`, and looks. A figure: `[label, text, how]`. `view` is what is known of the chosen volume now:
// `{ daemon, served, volume, shared, history, io, hourly }`: its status, the newest samples of it and of the daemon.

import * as format from "./format.js";
import { roomLeft } from "./verdict.js";

const { UNKNOWN, age, bytes, bytesPerSecond, count, dayAndTime, latency, money, perSecond, ratio, share, span } = format;

/** A figure that is a text, and may be long. */
const IN_WORDS = "words";
const HOURS_PER_MONTH = 730;

const line = (series, label, colour, dash, more = {}) => ({ series, label, colour: `--${colour}`, dash, ...more });
const right = { axis: "right" };
const thin = { width: 1 };

/** The sum of figures; not known where none is. */
function sum(...values) {
  const known = values.filter(format.isKnown);
  return known.length === 0 ? null : known.reduce((all, value) => all + value, 0);
}

/** `12 % of 4 GiB`. */
function part(used, size) {
  const percent = share(used, size);
  return percent === null ? UNKNOWN : `${format.percent(percent)} of ${bytes(size)}`;
}

export const PANELS = [
  {
    id: "safe",
    title: "Safe to disconnect?",
    axes: { left: "bytes", right: "age" },
    lines: [
      line("dirty_bytes", "not in the store", "one", "solid", { isArea: true }),
      line("dirty_age_seconds", "age of the oldest", "two", "dashed", right),
    ],
    writerOnly: true,
    figures: ({ volume, served }) => [
      ["not in the store", bytes(volume.dirty_bytes)],
      ["age of the oldest", age(volume.dirty_age_seconds)],
      ["room for more writes", served.write_back ? roomLeft(served.write_back) : UNKNOWN],
    ],
  },
  {
    id: "throughput",
    title: "Throughput",
    axes: { left: "bytesPerSecond" },
    lines: [
      line("client_read_bytes_per_second", "clients read", "one", "solid"),
      line("client_write_bytes_per_second", "clients write", "two", "solid", { width: 2.5 }),
      line("store_read_bytes_per_second", "store read", "three", "dashed"),
      line("store_write_bytes_per_second", "store write", "four", "dotted", { width: 2.25 }),
    ],
    figures: ({ volume: v }) => [
      ["clients", bytesPerSecond(sum(v.client_read_bytes_per_second, v.client_write_bytes_per_second))],
      ["store", bytesPerSecond(sum(v.store_read_bytes_per_second, v.store_write_bytes_per_second))],
    ],
  },
  {
    id: "requests",
    title: "Requests of clients",
    axes: { left: "perSecond" },
    lines: [
      line("reads_per_second", "reads", "one", "solid"),
      line("writes_per_second", "writes", "two", "dashed"),
      line("flushes_per_second", "flushes", "three", "dotted", { width: 2.25 }),
      line("trims_per_second", "trims", "four", "mixed"),
    ],
    figures: ({ volume: v }) => [
      ["all", perSecond(sum(v.reads_per_second, v.writes_per_second, v.flushes_per_second, v.trims_per_second))],
      ["in flight", count(v.in_flight)],
    ],
  },
  {
    id: "latency",
    title: "Latency of requests",
    axes: { left: "latency" },
    isLog: true,
    lines: [
      line("read_p99_seconds", "read p99", "one", "solid", { width: 2.25 }),
      line("read_p50_seconds", "read p50", "one", "solid", thin),
      line("write_p99_seconds", "write p99", "two", "dashed", { width: 2.25 }),
      line("write_p50_seconds", "write p50", "two", "dashed", thin),
      line("flush_p99_seconds", "flush p99", "three", "dotted", { width: 2.25 }),
      line("flush_p50_seconds", "flush p50", "three", "dotted", thin),
    ],
    figures: ({ volume: v }) => [
      ["read p99", latency(v.read_p99_seconds)],
      ["write p99", latency(v.write_p99_seconds)],
      ["flush p99", latency(v.flush_p99_seconds)],
    ],
  },
  {
    id: "journal",
    title: "Journal and write-back",
    axes: { left: "bytes", right: "bytesPerSecond" },
    lines: [
      line("journal_used_bytes", "in use", "one", "solid", { isArea: true }),
      line("write_back_bytes_per_second", "write-back", "two", "dashed", right),
      line("write_back_target_bytes_per_second", "its target", "three", "dotted", { ...right, width: 2.25 }),
    ],
    writerOnly: true,
    figures: ({ volume: v }) => [
      ["journal in use", part(v.journal_used_bytes, v.journal_size_bytes)],
      ["write-back", bytesPerSecond(v.write_back_bytes_per_second)],
      ["dirty bytes it aims at", bytes(v.dirty_target_bytes)],
    ],
  },
  {
    id: "cache",
    title: "Chunk cache",
    note: "shared by all volumes",
    axes: { left: "perSecond", right: "bytes" },
    lines: [
      line("cache_hits_per_second", "hits", "one", "solid"),
      line("cache_misses_cold_per_second", "misses, cold", "two", "dashed"),
      line("cache_misses_evicted_per_second", "misses, evicted", "four", "mixed"),
      line("cache_occupied_bytes", "occupied", "three", "dotted", { ...right, width: 2.25 }),
    ],
    figures: ({ shared: d }) => {
      const misses = sum(d.cache_misses_cold_per_second, d.cache_misses_evicted_per_second);
      const hits = share(d.cache_hits_per_second, sum(d.cache_hits_per_second, misses));
      return [
        ["hits", hits === null ? UNKNOWN : `${hits.toFixed(1)} %`],
        ["occupied", part(d.cache_occupied_bytes, d.cache_size_bytes)],
      ];
    },
  },
  {
    id: "space",
    title: "Space in the store",
    note: "snapshots count as live",
    axes: { left: "bytes" },
    isStacked: true,
    lines: [
      line("live_bytes", "live", "one", "solid", { isArea: true }),
      line("dead_bytes", "dead", "two", "dashed", { isArea: true }),
      line("grace_bytes", "in grace", "three", "dotted", { isArea: true }),
    ],
    writerOnly: true,
    figures: ({ volume: v, served }) => [
      ["all", bytes(sum(v.live_bytes, v.dead_bytes, v.grace_bytes))],
      ["stored per live byte", bounded(served.space)],
      ["size of the volume", bytes(served.size_bytes)],
    ],
  },
  {
    id: "money",
    title: "Requests to the store and money",
    axes: { left: "perSecond" },
    lines: [
      line("store_gets_per_second", "gets", "one", "solid"),
      line("store_puts_per_second", "puts", "two", "dashed"),
      line("store_lists_per_second", "lists", "three", "dotted", { width: 2.25 }),
      line("store_deletes_per_second", "deletes", "four", "mixed"),
    ],
    figures: cost,
  },
  {
    id: "store",
    title: "Health of the store",
    axes: { left: "perSecond", right: "latency" },
    lines: [
      line("store_errors_per_second", "failed tries", "two", "solid", { width: 2.5 }),
      line("store_get_p99_seconds", "get p99", "one", "dashed", right),
      line("store_put_p99_seconds", "put p99", "three", "dotted", { ...right, width: 2.25 }),
    ],
    figures: ({ volume: v, served }) => [
      ["now", served.store_away_ms == null ? "it answers" : `away for ${age(served.store_away_ms / 1000)}`],
      ["get p50", latency(v.store_get_p50_seconds)],
      ["put p50", latency(v.store_put_p50_seconds)],
      ["last error", lastError(served), IN_WORDS],
    ],
  },
  {
    id: "snapshots",
    title: "Snapshots and the cleaner",
    axes: { left: "count", right: "ratio" },
    lines: [
      line("snapshots", "snapshots", "one", "solid"),
      line("write_amplification", "write amplification", "two", "dashed", right),
    ],
    writerOnly: true,
    figures: ({ volume: v, served }) => [
      ["snapshots", count(v.snapshots)],
      ["newest automatic", automatic(served.auto_snapshot), IN_WORDS],
      ["moved, deleted", moved(served.space), IN_WORDS],
      ["write amplification", ratio(v.write_amplification)],
    ],
  },
];

function bounded(space) {
  if (!space || space.ratio == null) return UNKNOWN;
  if (space.bound == null) return `${ratio(space.ratio)}, no bound`;
  return `${ratio(space.ratio)} of ${ratio(space.bound)}${space.bound_is_auto ? ", automatic" : ""}`;
}

function automatic(auto) {
  if (!auto) return "none asked for";
  const newest = auto.newest_ms == null ? "none yet" : dayAndTime(auto.newest_ms);
  return auto.overdue_ms > 0 ? `${newest}, overdue for ${span(auto.overdue_ms)}` : newest;
}

function moved(space) {
  return space ? `${bytes(space.counters.moved_bytes)}, ${bytes(space.counters.deleted_bytes)}` : UNKNOWN;
}

function lastError(served) {
  return served.store_error ? `${age(served.store_error_age_ms / 1000)} ago: ${served.store_error}` : "none";
}

/** The requests of the last hour, or of as much of it as is known; a month at that rate with what is stored. */
function cost({ volume, hourly, io }) {
  const { perHour, coveredMs } = hourly;
  const currency = io?.cost.currency ?? "";
  const amount = (value) => (value === null ? UNKNOWN : `${money(value)} ${currency}`.trim());
  const stored = volume.storage_cost_per_month;
  const month = perHour === null || !format.isKnown(stored) ? null : stored + HOURS_PER_MONTH * perHour;
  const isWhole = coveredMs >= 3_600_000;
  const basis = isWhole || perHour === null ? "" : ` (from ${span(Math.floor(coveredMs / 1000) * 1000)})`;
  const prices = io ? `${io.prices.kind}, ${io.prices.table}, ${io.prices.date}` : UNKNOWN;
  return [
    ["an hour of requests", amount(perHour) + basis],
    ["a month, all", amount(month)],
    ["prices", prices, IN_WORDS],
  ];
}
