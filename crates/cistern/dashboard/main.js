// The page: what is known, what was chosen, and when which part is shown anew.
//
// The choice of volume and range is in the address, so that it survives a reload and can be sent to somebody.

import * as api from "./api.js";
import { element, setText } from "./dom.js";
import { span, timeOfDay, isKnown } from "./format.js";
import { Histograms } from "./histograms.js";
import { History, RANGES } from "./history.js";
import { Overview, showDaemon } from "./overview.js";
import { Panel } from "./panel.js";
import { PANELS } from "./panels.js";
import { Volumes } from "./volumes.js";

const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
/** How often the rings with longer steps are asked for what is new. */
const REFRESH_MS = 5000;

const byId = (id) => document.getElementById(id);
/** What stands in place of the panels until there is something to show. */
const waiting = byId("waiting");
const told = new URLSearchParams(location.hash.slice(1));

const state = {
  range: RANGES.find(({ name }) => name === told.get("range")) ?? RANGES[0],
  name: told.get("volume"),
  daemon: null,
  sample: { at_ms: null, daemon: {}, volumes: {} },
  history: null,
  minutes: null,
  shownName: null,
  shownRange: null,
  io: null,
  goneSinceMs: null,
  retryAtMs: null,
  why: "The daemon does not answer.",
};

const overview = new Overview();
const panels = PANELS.map((definition, i) => new Panel(definition, i + 1));
const volumes = new Volumes(byId("volume"), byId("volume-label"), choose);
const histograms = new Histograms(() => state.name);

function build() {
  const ranges = RANGES.map((range) => {
    const radio = element("input", { type: "radio", name: "range", value: range.name, change: () => look(range) });
    radio.checked = range === state.range;
    return element("label", { title: range.spoken }, radio, element("span", {}, range.label));
  });
  byId("ranges").append(...ranges);
  const safe = panels.find(({ definition }) => definition.id === "safe");
  safe.figures.before(overview.verdict);
  safe.figures.after(overview.facts);
  panels.find(({ definition }) => definition.id === "requests").actions.prepend(histograms.button);
  byId("panels").before(volumes.node);
  volumes.node.hidden = true;
  byId("retry").addEventListener("click", () => events.open());
  document.addEventListener("visibilitychange", () => later());
  setInterval(() => state.goneSinceMs !== null && showGone(), 500);
}

/** Something else is to be seen: the address says so, and what was there of it is fetched. */
function look(range) {
  state.range = range;
  remember();
  load();
}

function choose(name) {
  state.name = name;
  remember();
  load();
}

function remember() {
  const told = new URLSearchParams({ volume: state.name ?? "", range: state.range.name });
  history.replaceState(null, "", `#${told}`);
}

function served() {
  return state.daemon.volumes.find(({ name }) => name === state.name) ?? state.daemon.volumes[0] ?? null;
}

/** The figures of a volume and of its daemon, in one. */
function figuresOf(source, name) {
  return { ...source.daemon, ...(source.volumes[name] ?? {}) };
}

let loading = null;

/** Fetches what was: of the chosen volume, in the chosen range. The last call counts. */
async function load() {
  const mine = {};
  loading = mine;
  const isCurrent = () => loading === mine;
  try {
    const daemon = state.daemon ?? (await api.status());
    if (!isCurrent()) return;
    state.daemon = daemon;
    state.name = served()?.name ?? state.name;
    const { range, name } = state;
    const history = new History(range.stepMs, range.spanMs);
    const minutes = new History(MINUTE_MS, HOUR_MS);
    const [ring, hour] = await Promise.all([
      api.ring(range.stepMs, name, null),
      api.ring(MINUTE_MS, name, Date.now() - HOUR_MS),
    ]);
    if (!isCurrent()) return;
    if (ring) history.appendRing(ring, figuresOf(ring, name));
    if (hour) minutes.appendRing(hour, figuresOf(hour, name));
    keepOlder(history, range, name);
    Object.assign(state, { history, minutes, shownName: name, shownRange: range });
    const columns = Object.fromEntries([...history.series].map(([series, values]) => [series, values.at(-1) ?? null]));
    if (state.sample.at_ms === null) state.sample = { at_ms: Date.now(), daemon: columns, volumes: { [name]: columns } };
    loading = null;
    later();
    state.io = (await api.io()).volumes.find((volume) => volume.name === name) ?? null;
  } catch (error) {
    if (isCurrent()) loading = null;
    if (error instanceof api.Refused && state.daemon === null) setText(waiting, refusal(error));
    else if (!(error instanceof api.Refused) && state.goneSinceMs === null) events.lost();
  }
}

/** A daemon that was started again knows nothing of before; what this page saw of it stays. */
function keepOlder(history, range, name) {
  const old = state.history;
  if (!old || state.shownName !== name || state.shownRange !== range) return;
  const first = history.times[0] ?? Infinity;
  const merged = new History(range.stepMs, range.spanMs);
  for (const from of [old, history]) {
    from.times.forEach((time, i) => {
      if (from === old && time >= first) return;
      merged.append(time, Object.fromEntries([...from.series].map(([series, values]) => [series, values[i]])));
    });
  }
  Object.assign(history, merged);
}

/** What it means that the daemon answers with an error. */
function refusal({ status }) {
  return status === 401 || status === 403
    ? "This daemon wants a token: open the address that `cistern dashboard` prints."
    : `The daemon answered with the error ${status}. Is this page of another version? Reload it.`;
}

/** Fetches what the ring of a longer step has gained, its newest column among it, which is still being filled. */
async function advance(history, stepMs) {
  const now = Date.now();
  if (!history || now < (history.askedMs ?? now) + REFRESH_MS) {
    if (history) history.askedMs ??= now;
    return;
  }
  history.askedMs = now;
  try {
    const name = state.shownName;
    const ring = await api.ring(stepMs, name, history.lastMs);
    if (ring) history.appendRing(ring, figuresOf(ring, name));
  } catch {
    // The stream of events tells when the daemon is gone.
  }
}

function hourly() {
  const from = state.minutes?.of("cost_per_hour").some(isKnown) ? state.minutes : state.history;
  const known = from.of("cost_per_hour").filter(isKnown);
  if (known.length === 0) return { perHour: null, coveredMs: 0 };
  const perHour = known.reduce((sum, value) => sum + value, 0) / known.length;
  return { perHour, coveredMs: known.length * from.stepMs };
}

const events = new api.Events({
  onStatus(daemon) {
    state.daemon = daemon;
    later();
  },
  onSample(sample) {
    state.sample = sample;
    if (loading === null && state.history === null) load();
    else if (loading === null) {
      const { stepMs } = state.shownRange;
      if (stepMs === RANGES[0].stepMs) state.history.append(sample.at_ms, figuresOf(sample, state.shownName));
      else advance(state.history, stepMs);
      advance(state.minutes, MINUTE_MS);
    }
    later();
  },
  onLive() {
    const isBack = state.goneSinceMs !== null;
    state.goneSinceMs = null;
    byId("gone").hidden = true;
    if (isBack) load();
  },
  onGone(retryMs) {
    state.goneSinceMs ??= Date.now();
    state.retryAtMs = Date.now() + retryMs;
    showGone();
    askWhy();
  },
});

/** No events do not mean no daemon: it may not want to be watched. */
async function askWhy() {
  try {
    await api.status();
    state.why = "As many pages watch the daemon as may: close another one.";
  } catch (error) {
    state.why = error instanceof api.Refused ? refusal(error) : "The daemon does not answer.";
  }
}

function showGone() {
  const now = Date.now();
  const since = Math.floor((now - state.goneSinceMs) / 1000) * 1000;
  byId("gone").hidden = false;
  document.body.dataset.state = state.history === null ? "loading" : "gone";
  setText(byId("gone-title"), state.why);
  const next = Math.max(0, Math.ceil((state.retryAtMs - now) / 1000));
  const old = state.history === null ? "" : " What is below is as it was then.";
  setText(byId("gone-text"), `Since ${timeOfDay(state.goneSinceMs)}, for ${span(since)}. Next try in ${next} s.${old}`);
  setText(waiting, state.why);
  overview.showUnknown(since);
}

let isDue = false;

/** Shows everything with the next picture; whoever does not look costs nothing. */
function later() {
  if (isDue || document.hidden) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    show();
  });
}

function show() {
  if (state.daemon === null || state.history === null) return;
  const chosen = served();
  if (chosen === null) {
    setText(waiting, "The daemon serves no volume.");
    return;
  }
  if (chosen.name !== state.shownName) {
    if (loading === null) choose(chosen.name);
    return;
  }
  place();
  document.body.dataset.state = state.goneSinceMs === null ? "live" : "gone";
  const { sample, daemon } = state;
  showDaemon(byId("daemon"), daemon, sample.daemon);
  volumes.show(daemon, sample.volumes, chosen.name);
  setText(byId("chosen-name"), chosen.name);
  document.title = `${chosen.name} – cistern`;
  if (state.goneSinceMs === null) overview.show(daemon, chosen);
  const view = {
    daemon,
    served: chosen,
    volume: sample.volumes[chosen.name] ?? {},
    shared: sample.daemon,
    history: state.history,
    hourly: hourly(),
    io: state.io,
    nowMs: state.goneSinceMs ?? sample.at_ms,
  };
  for (const panel of panels) panel.show(view);
  pictured();
}

/** Puts the panels onto the page, once there is something to show in them. */
function place() {
  if (panels[0].node.isConnected) return;
  const [first, ...others] = panels.map(({ node }) => node);
  byId("panels").replaceChildren(first, overview.notices, ...others, histograms.node);
}

/** Marks the moment at which the first chart is drawn, for whoever measures it. */
function pictured() {
  if (performance.getEntriesByName("first-picture").length > 0) return;
  requestAnimationFrame(() => performance.mark("first-picture"));
}

build();
load();
events.open();
