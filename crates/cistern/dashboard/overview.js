// What stands around the charts: the daemon in the header, the verdict and the facts of the chosen volume, its notices.

import { drawing, element, refill, setText } from "./dom.js";
import { UNKNOWN, bytes, count, several, span } from "./format.js";
import { notices, verdict } from "./verdict.js";

/** One shape for each state, so that nobody needs its colour. */
const SHAPES = {
  safe: "M4 12.5 9.5 18 20 6.5",
  reading: "M4 12.5 9.5 18 20 6.5",
  unsafe: "M12 20V5M5.5 11 12 4.5 18.5 11",
  stopped: "M6 6 18 18M18 6 6 18",
  unknown: "M8.5 9a3.5 3.5 0 1 1 5 3.2c-1 .5-1.5 1.2-1.5 2.3M12 18.5v.1",
};

export function shape(state) {
  return drawing("svg", { class: `shape ${state}`, viewBox: "0 0 24 24", "aria-hidden": "true" }, drawing("path", { d: SHAPES[state] }));
}

function writeFacts(list, facts) {
  refill(list, facts.map(([label]) => label).join("\n"), () =>
    facts.map(([label]) => element("div", {}, element("dt", {}, label), element("dd"))),
  );
  const cells = list.querySelectorAll("dd");
  facts.forEach(([, text], i) => setText(cells[i], text));
}

/** The header's line of the daemon: its clients, devices, version and process. */
export function showDaemon(list, daemon, shared) {
  const devices = daemon.volumes.flatMap((served) => served.attached ?? []);
  writeFacts(list, [
    ["clients", count(shared.clients)],
    ["devices", devices.length === 0 ? "none" : devices.map((path) => path.replace("/dev/", "")).join(", ")],
    ["memory", bytes(shared.memory_bytes)],
    ["version", daemon.version],
    ["process", `${daemon.pid}${daemon.stopping ? ", stopping" : ""}`],
  ]);
}

/** The verdict on a volume; its title is what is announced when it changes, and nothing else on the page is. */
export class Overview {
  constructor() {
    this.title = element("p", { class: "title", id: "verdict", "aria-live": "polite" });
    this.detail = element("p", { class: "detail" });
    this.sign = element("div", { class: "sign" });
    this.verdict = element("div", { class: "verdict" }, this.sign, element("div", {}, this.title, this.detail));
    this.notices = element("ul", { class: "notices", "aria-label": "What to know of this volume" });
    this.facts = element("dl", { class: "facts volume-facts" });
  }

  show(daemon, served) {
    const { state, title, detail } = verdict(daemon, served);
    this.set(state, title, detail);
    writeFacts(this.facts, [
      ["name", served.name],
      ["state", verdict(daemon, served).word],
      ["mode", served.read_only ? "read-only" : served.mode],
      ["store", served.url],
      ["address", served.uris.join("  ") || UNKNOWN],
      ["epoch", `${count(served.epoch)}, log position ${count(served.seq)}`],
    ]);
    const told = notices(daemon, served);
    this.notices.hidden = told.length === 0;
    refill(this.notices, told.map(({ text }) => text).join("\n"), () =>
      told.map(({ grave, text }) =>
        element("li", { class: grave ? "grave" : "minor" }, element("strong", {}, grave ? "Attention" : "Note"), ` ${text}`),
      ),
    );
  }

  /** The daemon does not answer: what was true is not known any more. */
  showUnknown(sinceMs) {
    this.set("unknown", "Not known whether it is safe", `The daemon has not answered for ${span(sinceMs)}`);
  }

  set(state, title, detail) {
    setText(this.title, title);
    setText(this.detail, detail);
    this.verdict.dataset.state = state;
    refill(this.sign, state, () => [shape(state)]);
  }
}

/** `3 clean, 1 uploading`: how many volumes are in which state, in the words of `cistern status`. */
export function summary(daemon) {
  const states = new Map();
  for (const served of daemon.volumes) {
    const { word } = verdict(daemon, served);
    states.set(word, (states.get(word) ?? 0) + 1);
  }
  const parts = [...states].map(([word, number]) => `${number} ${word}`);
  return `${several(daemon.volumes.length, "volume")}: ${parts.join(", ")}`;
}
