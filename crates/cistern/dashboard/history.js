// What was: columns of figures by time, of one volume and its daemon, in the step of one range.
//
// A column that nobody saw stays a gap. Older columns than the range shows are let go.

/** What can be looked at: the rings of the daemon. */
export const RANGES = [
  { name: "10m", label: "10 min", spoken: "last 10 minutes", stepMs: 1000, spanMs: 600_000 },
  { name: "2h", label: "2 h", spoken: "last 2 hours", stepMs: 10_000, spanMs: 7_200_000 },
  { name: "48h", label: "48 h", spoken: "last 48 hours", stepMs: 60_000, spanMs: 172_800_000 },
];

/** Missing columns that are no gap: a sample that came late. */
const LATE_COLUMNS = 3;

export class History {
  constructor(stepMs, spanMs) {
    this.stepMs = stepMs;
    this.spanMs = spanMs;
    this.times = [];
    this.series = new Map();
  }

  get lastMs() {
    return this.times.length > 0 ? this.times[this.times.length - 1] : null;
  }

  /** The values of a series, one for each of `times`. */
  of(name) {
    return this.series.get(name) ?? new Array(this.times.length).fill(null);
  }

  /** Appends one column; figures of the same step replace it, older ones are known already. */
  append(atMs, figures) {
    const time = Math.floor(atMs / this.stepMs) * this.stepMs;
    const last = this.lastMs;
    if (last !== null && time < last) return;
    if (last !== null && time - last > LATE_COLUMNS * this.stepMs) this.push(last + this.stepMs, {});
    if (time !== this.lastMs) this.push(time, figures);
    else this.replace(figures);
    this.forget(time - this.spanMs);
  }

  /** Appends what a ring of the daemon has: the figures of a volume and of the daemon. */
  appendRing(ring, figures) {
    const names = Object.keys(figures);
    const length = Math.max(0, ...names.map((name) => figures[name].length));
    for (let i = 0; i < length; i += 1) {
      const column = {};
      for (const name of names) column[name] = figures[name][i] ?? null;
      this.append(ring.first_ms + i * ring.step_ms, column);
    }
  }

  push(time, figures) {
    for (const name of Object.keys(figures)) {
      if (!this.series.has(name)) this.series.set(name, new Array(this.times.length).fill(null));
    }
    for (const [name, values] of this.series) values.push(figures[name] ?? null);
    this.times.push(time);
  }

  replace(figures) {
    for (const [name, value] of Object.entries(figures)) {
      const values = this.series.get(name) ?? new Array(this.times.length).fill(null);
      values[values.length - 1] = value;
      this.series.set(name, values);
    }
  }

  forget(before) {
    const old = this.times.findIndex((time) => time >= before);
    if (old <= 0) return;
    this.times.splice(0, old);
    for (const values of this.series.values()) values.splice(0, old);
  }
}

/** How several columns become one: the worst of the slow ones, the mean of rates, the last of states. */
function merged(name, values) {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return null;
  if (name.endsWith("_p99_seconds")) return Math.max(...known);
  const isMean = name.endsWith("_per_second") || name.endsWith("_p50_seconds");
  return isMean ? known.reduce((sum, value) => sum + value, 0) / known.length : known[known.length - 1];
}

/** The newest columns as at most `rowsMax` rows, newest first: `{ time, values: [..] }`, and the step between them. */
export function rows(history, names, rowsMax) {
  const each = Math.max(1, Math.ceil(history.times.length / rowsMax));
  const columns = names.map((name) => history.of(name));
  const out = [];
  for (let end = history.times.length; end > 0; end -= each) {
    const begin = Math.max(0, end - each);
    const values = columns.map((values, i) => merged(names[i], values.slice(begin, end)));
    out.push({ time: history.times[end - 1], values });
  }
  return { stepMs: each * history.stepMs, rows: out };
}
