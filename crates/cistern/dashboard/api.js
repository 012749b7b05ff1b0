// The daemon, as the page asks it: documents by GET, and one stream of events that comes back by itself.

const RETRY_MS_MIN = 500;
const RETRY_MS_MAX = 8000;
/** The daemon says something every second; one that says nothing for so long is stuck. */
const SILENCE_MS_MAX = 5000;
const ANSWER_MS_MAX = 10_000;

/** What the daemon answered instead of what was asked. */
export class Refused extends Error {
  constructor(status) {
    super(`the daemon answered ${status}`);
    this.status = status;
  }
}

async function get(path) {
  const answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(ANSWER_MS_MAX) });
  if (!answer.ok) throw new Refused(answer.status);
  return answer.json();
}

export const status = () => get("api/v1/status");
export const io = () => get("api/v1/io");

/** One ring of one volume; null where the daemon has none. */
export async function ring(stepMs, volume, sinceMs) {
  const asked = new URLSearchParams({ step: String(stepMs) });
  if (volume !== null) asked.set("volume", volume);
  if (sinceMs !== null) asked.set("since", String(sinceMs));
  const history = await get(`api/v1/history?${asked}`);
  return history.rings.find((ring) => ring.step_ms === stepMs) ?? null;
}

/**
 * The events of the daemon. Tells `onStatus`, `onSample`, `onLive` (it answers, again or for the first time) and
 * `onGone(retryMs)` (it does not, and is asked again after that time).
 */
export class Events {
  constructor(listeners) {
    this.listeners = listeners;
    this.retryMs = RETRY_MS_MIN;
    this.isLive = false;
  }

  open() {
    clearTimeout(this.timer);
    this.source?.close();
    const source = new EventSource("api/v1/events");
    this.source = source;
    const listen = (name, tell) =>
      source.addEventListener(name, (event) => {
        this.heard();
        tell(JSON.parse(event.data));
      });
    listen("status", this.listeners.onStatus);
    listen("sample", this.listeners.onSample);
    source.addEventListener("error", () => this.lost());
    this.expect();
  }

  heard() {
    this.retryMs = RETRY_MS_MIN;
    this.expect();
    if (!this.isLive) {
      this.isLive = true;
      this.listeners.onLive();
    }
  }

  expect() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.lost(), SILENCE_MS_MAX);
  }

  lost() {
    clearTimeout(this.timer);
    this.source.close();
    this.isLive = false;
    this.listeners.onGone(this.retryMs);
    this.timer = setTimeout(() => this.open(), this.retryMs);
    this.retryMs = Math.min(this.retryMs * 2, RETRY_MS_MAX);
  }
}
