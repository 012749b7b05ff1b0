// Requests by size and by alignment, in a dialog: the histograms of `cistern status --io --histograms`.

import * as api from "./api.js";
import { element, setText } from "./dom.js";
import { bytes, count, span } from "./format.js";

const KINDS = [["read", "read"], ["write", "write"], ["trim", "trim"], ["write_zeroes", "write zeroes"]];
const REFRESH_MS = 2000;
const BLOCK_BYTES = 4096;

export class Histograms {
  /** `chosen()` gives the name of the volume to show. */
  constructor(chosen) {
    this.chosen = chosen;
    this.since = element("p", { class: "note" });
    this.sizes = element("div");
    this.alignments = element("div");
    const close = element("button", { type: "button", click: () => this.node.close() }, "Close");
    const title = element("h2", { id: "histograms-title" }, "Sizes and alignments of requests");
    this.node = element(
      "dialog",
      { class: "histograms", "aria-labelledby": "histograms-title", close: () => clearTimeout(this.timer) },
      element("header", {}, title, close),
      this.since,
      element("div", { class: "pair", tabindex: "0", role: "region", "aria-label": "Histograms" }, this.sizes, this.alignments),
      element(
        "p",
        { class: "note" },
        "The alignment is the largest power of two that divides both offset and length. Requests below 4 KiB make ",
        "cistern read the rest of their block first.",
      ),
    );
    this.button = element("button", { type: "button", "aria-haspopup": "dialog", click: () => this.open() }, "Sizes");
    this.button.setAttribute("aria-label", "Sizes and alignments of requests");
  }

  async open() {
    setText(this.since, "Asking the daemon …");
    this.node.showModal();
    await this.refresh();
  }

  async refresh() {
    clearTimeout(this.timer);
    try {
      const observed = await api.io();
      this.show(observed.volumes.find(({ name }) => name === this.chosen()));
    } catch {
      setText(this.since, "The daemon does not answer.");
    }
    if (this.node.open) this.timer = setTimeout(() => this.refresh(), REFRESH_MS);
  }

  show(volume) {
    if (!volume) {
      setText(this.since, "This volume is not served any more.");
      return;
    }
    setText(this.since, `${volume.name}: the ${span(Math.floor(volume.io.period_us / 1e6) * 1000)} since it was opened`);
    const kinds = KINDS.map(([kind]) => volume.io.kinds.find((entry) => entry.kind === kind));
    this.sizes.replaceChildren(
      table("Size up to", kinds, (kind) => kind.sizes.map((size) => [size.up_to_bytes ?? Infinity, size.count])),
    );
    this.alignments.replaceChildren(
      table("Aligned to", kinds, (kind) => kind.alignments.map((alignment) => [alignment.bytes, alignment.count])),
    );
  }
}

/** One row for each bucket that some kind has. */
function table(name, kinds, of) {
  const columns = kinds.map((kind) => new Map(kind ? of(kind) : []));
  const bounds = [...new Set(columns.flatMap((column) => [...column.keys()]))].sort((a, b) => a - b);
  const most = Math.max(1, ...columns.flatMap((column) => [...column.values()]));
  const heads = KINDS.map(([, label]) => element("th", { scope: "col" }, label));
  const row = (bound) => {
    const isPartial = bound < BLOCK_BYTES && name === "Aligned to";
    const head = element("th", { scope: "row" }, bucket(bound), isPartial ? element("small", {}, " part of a block") : null);
    return element("tr", {}, head, ...columns.map((column) => cell(column.get(bound) ?? 0, most)));
  };
  const nothing = element("tr", {}, element("td", { colspan: KINDS.length + 1 }, "No requests yet"));
  return element(
    "table",
    {},
    element("caption", {}, name === "Size up to" ? "Requests by size" : "Requests by alignment"),
    element("thead", {}, element("tr", {}, element("th", { scope: "col" }, name), ...heads)),
    element("tbody", {}, ...(bounds.length > 0 ? bounds.map(row) : [nothing])),
  );
}

function bucket(bound) {
  if (bound === 1) return "less";
  return bound === Infinity ? "more" : bytes(bound);
}

function cell(number, most) {
  const bar = element("span", { class: "bar", "aria-hidden": "true" });
  bar.style.width = `${(number / most) * 100}%`;
  return element("td", {}, bar, element("span", {}, number === 0 ? "-" : count(number)));
}
