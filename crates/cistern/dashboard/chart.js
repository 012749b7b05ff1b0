// One chart: uPlot with the looks of this page. Colours come from the style sheet, so they follow light and dark.
//
// A line is told apart by its dashes and width as well as by its colour.

import { bytes, bytesPerSecond, count, latency, perSecond, ratio, money, span, timeOfDay } from "./format.js";

const BINARY = Array.from({ length: 64 }, (_, i) => 2 ** i);
const OF_TIME = [0.001, 0.01, 0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 86_400];
const WHOLE = [1, 2, 5].flatMap((n) => Array.from({ length: 9 }, (_, i) => n * 10 ** i)).sort((a, b) => a - b);

/** What figures are: how they are written, where an axis has its marks, and the least that one shows. */
export const UNITS = {
  bytes: { write: bytes, marks: BINARY, least: 4096 },
  bytesPerSecond: { write: bytesPerSecond, marks: BINARY, least: 4096 },
  perSecond: { write: perSecond, least: 1 },
  latency: { write: latency, least: 1e-3 },
  age: { write: (seconds) => span(seconds * 1000), marks: OF_TIME, least: 1 },
  money: { write: money, least: 1e-6 },
  count: { write: count, marks: WHOLE, least: 4 },
  ratio: { write: ratio, least: 2 },
};

export const DASHES = { solid: [], dashed: [7, 4], dotted: [2, 3], mixed: [9, 3, 2, 3] };

const AXIS_FONT = "11px system-ui, sans-serif";
const DAY_MS = 86_400_000;
/** What is drawn while there is less than the range: this part of it, so that the beginning can be seen. */
const SHORTEST_PART = 0.1;

const colours = new Map();

/** The colour that the style sheet gives a variable now. */
function colour(name) {
  if (!colours.has(name)) {
    colours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return colours.get(name);
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => colours.clear());

function timeMark(ms, step) {
  const date = new Date(ms);
  if (step >= 3_600_000 && date.getHours() === 0 && date.getMinutes() === 0) {
    return date.toLocaleDateString(undefined, { month: "short", day: "numeric" });
  }
  return timeOfDay(ms, step < 60_000);
}

export class Chart {
  /** `lines`: `{ axis, colour, dash, width, isArea }`; `axes`: `{ left: UNIT, right: UNIT }`; `onCursor(index or null)`. */
  constructor(node, { lines, axes, isLog, onCursor }) {
    this.node = node;
    this.range = [0, 1];
    this.plot = new window.uPlot(this.options(lines, axes, isLog, onCursor), [[], ...lines.map(() => [])], node);
    new ResizeObserver(() => this.fit()).observe(node);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.plot.redraw(false));
  }

  options(lines, axes, isLog, onCursor) {
    const y = (unit) => ({
      distr: isLog ? 3 : 1,
      range: (_plot, min, max) => {
        if (!isLog) return [0, Math.max(max ?? 0, unit.least) * 1.08];
        return [10 ** Math.floor(Math.log10(min ?? 1e-5)), 10 ** Math.ceil(Math.log10(Math.max(max ?? 1, unit.least)))];
      },
    });
    const axis = (scale, side, unit) => ({
      scale,
      side,
      size: 62,
      gap: 4,
      space: 34,
      font: AXIS_FONT,
      stroke: () => colour("--quiet"),
      grid: { show: side === 3, stroke: () => colour("--grid"), width: 1, ...(isLog ? { filter: powersOfTen } : {}) },
      ticks: { show: false },
      ...(unit.marks && !isLog ? { incrs: unit.marks } : {}),
      values: (_plot, marks) => marks.map((mark) => (mark === null ? null : unit.write(mark))),
      ...(isLog ? { filter: powersOfTen } : {}),
    });
    return {
      ...this.size(),
      ms: 1,
      padding: [8, axes.right ? 0 : 10, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false, setScale: false }, sync: { key: "time" }, points: { size: 7 } },
      scales: {
        x: { range: () => this.range },
        left: y(UNITS[axes.left]),
        ...(axes.right ? { right: y(UNITS[axes.right]) } : {}),
      },
      axes: [
        {
          size: 26,
          space: 76,
          font: AXIS_FONT,
          stroke: () => colour("--quiet"),
          grid: { stroke: () => colour("--grid"), width: 1 },
          ticks: { show: false },
          values: (_plot, marks, _axis, _space, step) => marks.map((mark) => timeMark(mark, step)),
        },
        axis("left", 3, UNITS[axes.left]),
        ...(axes.right ? [axis("right", 1, UNITS[axes.right])] : []),
      ],
      series: [
        {},
        ...lines.map((line) => ({
          scale: line.axis ?? "left",
          stroke: () => colour(line.colour),
          fill: line.isArea ? () => colour(`${line.colour}-area`) : undefined,
          width: line.width ?? 1.75,
          dash: DASHES[line.dash],
          points: { show: isAlone, size: 4, fill: () => colour(line.colour) },
        })),
      ],
      hooks: { setCursor: [(plot) => onCursor(plot.cursor.left >= 0 ? plot.cursor.idx : null)] },
    };
  }

  size() {
    return { width: Math.max(200, this.node.clientWidth), height: Math.max(120, this.node.clientHeight) };
  }

  fit() {
    const size = this.size();
    const isShown = this.node.clientWidth > 0;
    if (isShown && (size.width !== this.plot.width || size.height !== this.plot.height)) this.plot.setSize(size);
  }

  /** Draws columns: times, and the values of each line. */
  draw(times, columns, spanMs, nowMs) {
    const begin = times.length > 0 ? times[0] : nowMs;
    this.range = [Math.max(nowMs - spanMs, Math.min(begin, nowMs - spanMs * SHORTEST_PART)), nowMs];
    this.plot.setData([times, ...columns]);
  }
}

/** Leaves those marks of a logarithmic axis that are worth a label. */
function powersOfTen(_plot, marks) {
  const isOne = (mark) => Math.abs(Math.log10(mark) - Math.round(Math.log10(mark))) < 1e-9;
  return marks.map((mark) => (isOne(mark) ? mark : null));
}

/** A value between two unknown ones has no line: it is shown as a point. */
function isAlone(plot, series, from, to) {
  const values = plot.data[series];
  for (let i = from; i <= to; i += 1) {
    if (values[i] != null && values[i - 1] == null && values[i + 1] == null) return true;
  }
  return false;
}
