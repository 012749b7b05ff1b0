// All volumes of the daemon: the selector in the header, and the list below it, worst first.

import { element, refill, setText } from "./dom.js";
import { age, bytes, bytesPerSecond } from "./format.js";
import { shape, summary } from "./overview.js";
import { verdict } from "./verdict.js";

/** From so many volumes on there is a field to find one. */
const FIND_FROM = 9;
const ORDER = ["stopped", "unsafe", "safe", "reading"];
const HEADS = ["volume", "state", "not in the store", "oldest", "clients read", "clients write"];

export class Volumes {
  constructor(select, label, choose) {
    this.select = select;
    this.label = label;
    this.choose = choose;
    select.addEventListener("change", () => choose(select.value));
    this.line = element("summary");
    this.find = element("input", { type: "search", input: () => this.filter() });
    this.finder = element("label", { class: "find" }, "Find a volume ", this.find);
    this.body = element("tbody");
    const heads = HEADS.map((head) => element("th", { scope: "col" }, head));
    const caption = element("caption", { class: "unseen" }, "Volumes of this daemon, worst first");
    const table = element("table", {}, caption, element("thead", {}, element("tr", {}, ...heads)), this.body);
    const region = { class: "rows", tabindex: "0", role: "region", "aria-label": "Volumes, table" };
    this.node = element("details", { class: "volumes" }, this.line, this.finder, element("div", region, table));
    this.node.addEventListener("toggle", () => this.last && this.show(...this.last));
    this.rows = new Map();
  }

  show(daemon, samples, chosen) {
    this.last = [daemon, samples, chosen];
    const isOne = daemon.volumes.length < 2;
    this.label.hidden = isOne;
    this.node.hidden = isOne;
    if (isOne) return;
    const names = daemon.volumes.map(({ name }) => name);
    refill(this.select, names.join("\n"), () => names.map((name) => element("option", { value: name }, name)));
    if (this.select.value !== chosen) this.select.value = chosen;
    setText(this.line, summary(daemon));
    this.finder.hidden = daemon.volumes.length < FIND_FROM;
    if (this.node.open) this.list(daemon, samples, chosen);
  }

  list(daemon, samples, chosen) {
    const judged = daemon.volumes.map((served) => ({ served, verdict: verdict(daemon, served) }));
    judged.sort((a, b) => ORDER.indexOf(a.verdict.state) - ORDER.indexOf(b.verdict.state));
    const order = judged.map(({ served }) => served.name);
    for (const name of this.rows.keys()) if (!order.includes(name)) this.rows.delete(name);
    for (const { served, verdict } of judged) this.row(served.name).show(served, verdict, samples[served.name] ?? {}, chosen);
    // Rows stay where they are while somebody is in the list: nothing moves from under a finger.
    const isTouched = this.body.contains(document.activeElement) || this.body.matches(":hover");
    const shown = [...this.body.children].map((row) => row.dataset.name);
    const isSameSet = shown.length === order.length && shown.every((name) => this.rows.has(name));
    if (isSameSet && (isTouched || shown.every((name, i) => name === order[i]))) return;
    this.body.replaceChildren(...order.map((name) => this.rows.get(name).node));
    this.filter();
  }

  row(name) {
    if (!this.rows.has(name)) this.rows.set(name, new Row(name, this.choose));
    return this.rows.get(name);
  }

  filter() {
    const wanted = this.find.value.toLowerCase();
    for (const { node, name } of this.rows.values()) node.hidden = !name.toLowerCase().includes(wanted);
  }
}

class Row {
  constructor(name, choose) {
    this.name = name;
    this.button = element("button", { type: "button", click: () => choose(name) }, name);
    this.sign = element("span");
    this.cells = HEADS.slice(1).map(() => element("td"));
    this.word = element("span");
    this.cells[0].append(this.sign, this.word);
    this.node = element("tr", { "data-name": name }, element("th", { scope: "row" }, this.button), ...this.cells);
  }

  show(served, { state, word }, sample, chosen) {
    this.button.setAttribute("aria-current", String(served.name === chosen));
    refill(this.sign, state, () => [shape(state)]);
    setText(this.word, word);
    const texts = [
      bytes(served.dirty_bytes),
      served.dirty_bytes > 0 ? age(served.dirty_age_ms / 1000) : "",
      bytesPerSecond(sample.client_read_bytes_per_second),
      bytesPerSecond(sample.client_write_bytes_per_second),
    ];
    texts.forEach((text, i) => setText(this.cells[i + 1], text));
  }
}
