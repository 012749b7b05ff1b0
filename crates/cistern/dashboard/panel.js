// One panel: heading, figures, the chart with its legend, and the table that says the same.

import { Chart, DASHES, UNITS } from "./chart.js";
import { drawing, element, refill, setText } from "./dom.js";
import { span, timeOfDay, dayAndTime, isKnown } from "./format.js";
import { rows } from "./history.js";

const ROWS_MAX = 60;

export class Panel {
  constructor(definition, number) {
    this.definition = definition;
    this.figures = element("dl", { class: "figures" });
    this.box = element("div", { class: "chart" });
    this.empty = element("p", { class: "empty", hidden: true });
    this.values = definition.lines.map(() => element("span", { class: "value" }));
    this.moment = element("span", { class: "moment" });
    this.table = element("table");
    const titleId = `title-${definition.id}`;
    this.chartView = element(
      "figure",
      { class: "drawn" },
      element("div", { class: "canvas", role: "img", "aria-label": this.spoken() }, this.box),
      this.empty,
      element("figcaption", {}, this.legend(), this.moment),
    );
    const region = { class: "rows", tabindex: "0", role: "region", "aria-label": `${definition.title}, table` };
    this.tableView = element("div", { ...region, hidden: true }, this.table);
    this.toggle = element("button", { type: "button", "aria-pressed": "false", click: () => this.turn() }, "Table");
    this.toggle.setAttribute("aria-label", `${definition.title} as a table`);
    this.actions = element("div", { class: "actions" }, this.toggle);
    this.node = element(
      "section",
      { class: `panel panel-${definition.id}`, id: definition.id, "aria-labelledby": titleId },
      element(
        "header",
        {},
        element("h2", { id: titleId }, element("span", { class: "number" }, `${number}`), definition.title),
        definition.note ? element("p", { class: "note" }, definition.note) : null,
        this.actions,
      ),
      this.figures,
      this.chartView,
      this.tableView,
    );
  }

  /** What a reader of the screen hears instead of the picture. */
  spoken() {
    const { title, lines } = this.definition;
    return `Chart: ${title}. Lines: ${lines.map(({ label }) => label).join(", ")}. The table has the same figures.`;
  }

  unit(line) {
    return UNITS[this.definition.axes[line.axis ?? "left"]];
  }

  legend() {
    const entry = (line, i) =>
      element("li", {}, swatch(line), element("span", { class: "label" }, line.label, ...rightMark(line)), this.values[i]);
    return element("ul", { class: "legend" }, ...this.definition.lines.map(entry));
  }

  turn() {
    const isTable = this.tableView.hidden;
    this.tableView.hidden = !isTable;
    this.chartView.hidden = isTable;
    this.toggle.setAttribute("aria-pressed", String(isTable));
    if (this.view) this.show(this.view);
  }

  /** Shows what is known now. */
  show(view) {
    this.view = view;
    const figures = this.definition.figures(view);
    refill(this.figures, figures.map(([label]) => label).join("\n"), () =>
      figures.map(([label, , how]) => element("div", { class: how ?? null }, element("dt", {}, label), element("dd"))),
    );
    const cells = this.figures.querySelectorAll("dd");
    figures.forEach(([, text], i) => setText(cells[i], text));
    if (this.tableView.hidden) this.draw(view);
    else this.write(view);
  }

  /** Whether this is about writing, and nobody writes. */
  isOff({ served }) {
    return Boolean(this.definition.writerOnly && served.read_only);
  }

  columns(view) {
    const nothing = this.isOff(view) ? new Array(view.history.times.length).fill(null) : null;
    return this.definition.lines.map((line) => nothing ?? view.history.of(line.series));
  }

  draw(view) {
    const columns = this.columns(view);
    const isEmpty = columns.every((values) => values.every((value) => value === null));
    this.empty.hidden = !isEmpty;
    if (isEmpty) setText(this.empty, this.why(view));
    const { times, spanMs } = view.history;
    this.chart ??= this.newChart();
    const nowMs = Math.max(view.nowMs, view.history.lastMs ?? 0);
    this.chart.draw(times, this.definition.isStacked ? stacked(columns) : columns, spanMs, nowMs);
    this.tell(this.pointed ?? null);
  }

  /** Why there is nothing to draw. */
  why(view) {
    if (this.isOff(view)) return "A read-only volume has none of this";
    return `No data yet: there is one figure every ${span(view.history.stepMs)}`;
  }

  newChart() {
    const { lines, axes, isLog, isStacked } = this.definition;
    return new Chart(this.box, {
      // What lies on top of a stack is drawn first, and what is below over it.
      lines: isStacked ? lines.toReversed() : lines,
      axes,
      isLog,
      onCursor: (index) => {
        this.pointed = index;
        if (this.view) this.tell(index);
      },
    });
  }

  /** Writes the values of one column into the legend: of what is pointed at, or the newest of each. */
  tell(index) {
    const { history, volume, shared } = this.view;
    const at = index !== null && index < history.times.length ? index : null;
    this.definition.lines.forEach((line, i) => {
      const value = at === null ? (volume[line.series] ?? shared[line.series]) : history.of(line.series)[at];
      setText(this.values[i], this.unit(line).write(this.isOff(this.view) ? null : value));
    });
    setText(this.moment, at === null ? "" : `at ${timeOfDay(history.times[at])}`);
  }

  write(view) {
    const { lines } = this.definition;
    const names = lines.map(({ series }) => series);
    const { stepMs, rows: shown } = rows(view.history, names, ROWS_MAX);
    const isLong = view.history.spanMs > 86_400_000;
    const time = (ms) => (isLong ? dayAndTime(ms) : timeOfDay(ms));
    const heads = lines.map(({ label }) => element("th", { scope: "col" }, label));
    const cells = (values) => values.map((value, i) => element("td", {}, this.unit(lines[i]).write(value)));
    this.table.replaceChildren(
      element("caption", {}, `${this.definition.title}: newest first, every ${span(stepMs)}`),
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "time"), ...heads)),
      element(
        "tbody",
        {},
        ...shown.map((row) =>
          element("tr", {}, element("th", { scope: "row" }, time(row.time)), ...cells(row.values)),
        ),
      ),
    );
  }
}

/** Each column on top of those before it, the highest first. */
function stacked(columns) {
  const sums = [];
  let below = null;
  for (const values of columns) {
    const base = below;
    below = values.map((value, i) => (isKnown(value) || base?.[i] != null ? (value ?? 0) + (base?.[i] ?? 0) : null));
    sums.push(below);
  }
  return sums.reverse();
}

/** Says that a line is measured by the axis on the right. */
function rightMark(line) {
  return line.axis === "right" ? [" ", element("span", { title: "by the axis on the right" }, "→")] : [];
}

/** A piece of the line as the chart draws it. */
function swatch(line) {
  const width = Math.max(1.25, line.width ?? 1.75);
  const stroke = { "stroke-width": width, "stroke-dasharray": DASHES[line.dash].join(" ") || "none" };
  const classes = `swatch colour${line.colour}${line.isArea ? " area" : ""}`;
  return drawing(
    "svg",
    { class: classes, viewBox: "0 0 26 10", width: 26, height: 10, "aria-hidden": "true" },
    line.isArea ? drawing("rect", { x: 0, y: 5, width: 26, height: 5 }) : null,
    drawing("line", { x1: 0, y1: 5, x2: 26, y2: 5, ...stroke }),
  );
}
