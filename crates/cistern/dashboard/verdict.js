// What a volume's state means to whoever wants to disconnect: the words of `cistern status`, and why.

import { age, bytes, dayAndTime, several, span } from "./format.js";

/** `state` is safe, unsafe, stopped or reading; `word` is what `cistern status` says. Only `title` is ever announced. */
export function verdict(daemon, served) {
  if (served.latched) return { state: "stopped", word: "stopped", title: "Stopped", detail: served.latched };
  if (served.read_only) {
    const detail = "Read-only: nothing is written, so there is nothing to wait for";
    return { state: "reading", word: "read-only", title: "Safe to disconnect", detail };
  }
  if (served.dirty_bytes === 0) {
    const detail = "Everything that was acknowledged is in the store";
    return { state: "safe", word: daemon.stopping ? "stopping" : "clean", title: "Safe to disconnect", detail };
  }
  const detail = `${bytes(served.dirty_bytes)} not in the store, the oldest for ${age(served.dirty_age_ms / 1000)}`;
  return { state: "unsafe", word: waiting(daemon, served), title: "Not safe to disconnect", detail };
}

function waiting(daemon, served) {
  if (daemon.stopping) return "stopping";
  if (served.paused_since_ms != null) return "paused";
  return served.store_away_ms != null ? "the store does not answer" : "uploading";
}

/** How long the room for dirty data lasts. */
export function roomLeft(writeBack) {
  const left = bytes(Math.max(0, writeBack.dirty_bytes_max - writeBack.dirty_bytes));
  const seconds = writeBack.throttle.full_in_s;
  return seconds == null ? `${left}, not filling` : `${left}, full in ${span(seconds * 1000)}`;
}

const DAMAGED_MAX = 3;

/** What else somebody has to know, worst first: `{ grave, text }`. */
export function notices(daemon, served) {
  const grave = (text) => ({ grave: true, text });
  const minor = (text) => ({ grave: false, text });
  const out = [];
  if (served.latched) {
    const kept = served.read_only ? "" : " What was acknowledged is kept in the journal.";
    out.push(grave(`Nothing is served any more.${kept} Start the daemon again once the reason is gone.`));
  }
  if (served.store_away_ms != null) {
    const why = served.store?.last_error?.text ?? "no answer";
    const room = served.write_back ? `; room for more writes: ${roomLeft(served.write_back)}` : "";
    out.push(grave(`The store does not answer for ${age(served.store_away_ms / 1000)}: ${why}${room}`));
  }
  const damage = served.damage ?? { objects: [], further: 0 };
  for (const { object, detail } of damage.objects.slice(0, DAMAGED_MAX)) {
    out.push(grave(`Damaged: ${object}: ${detail}`));
  }
  const more = Math.max(0, damage.objects.length - DAMAGED_MAX);
  if (more > 0) out.push(grave(`Damaged: ${several(more, "more object")}, see cistern status --json`));
  if (served.paused_since_ms != null) out.push(minor(`Write-back is paused since ${dayAndTime(served.paused_since_ms)}`));
  if (served.space?.deletes_refused) {
    out.push(minor(`What is not needed any more is not deleted: ${served.space.deletes_refused}`));
  }
  const auto = served.auto_snapshot;
  if (auto?.overdue_ms > 0) out.push(minor(`A snapshot is overdue for ${span(auto.overdue_ms)}`));
  if (auto?.error) out.push(minor(`Automatic snapshots: ${auto.error}`));
  if (daemon.cache?.off) out.push(minor(`The chunk cache is switched off: ${daemon.cache.off_reason ?? "its disk failed"}`));
  return out;
}
