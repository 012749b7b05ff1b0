//! `cistern status --writeback`: what the controllers of write-back and pacing do, and why; and
//! the lines about risk and store that every status shows.

use std::time::Duration;

use cistern_engine::{
    units::utc,
    volume::{Mode, WriteBackStatus},
};

use crate::{
    control::ServedStatus,
    quantity::{ByteSize, Span},
    terminal,
};

/// The rows of one volume, as bcache's writeback_rate_debug has them, and the throttle of writes.
pub fn describe(served: &ServedStatus) -> String {
    let Some(w) = &served.status.write_back else { return format!("{}: read-only\n", served.name) };
    let rate = match w.unlimited {
        true => format!(
            "unlimited: {} are dirty ({} otherwise)",
            ByteSize(w.dirty_bytes),
            speed(w.rate_bytes_per_s)
        ),
        false => speed(w.rate_bytes_per_s),
    };
    let writes = match w.throttle.rate_bytes_per_s {
        Some(rate) => format!("at most {}, {} writes wait", speed(rate), w.throttle.waiting),
        None => "not slowed".to_owned(),
    };
    let mut rows = vec![
        ("rate", rate),
        ("dirty", ByteSize(w.dirty_bytes).to_string()),
        ("target", ByteSize(w.target_bytes).to_string()),
        ("proportional", signed(w.proportional_bytes_per_s)),
        ("integral", signed(w.integral_bytes_per_s)),
        ("change", signed(w.change_bytes_per_s)),
        ("next", format!("{} ms", w.next_ms)),
        ("uploads", format!("{} in flight of {}", served.status.uploads_in_flight, w.uploads_max)),
        ("written", speed(w.throttle.written_bytes_per_s)),
        ("drained", speed(w.throttle.drained_bytes_per_s)),
        ("writes", writes),
        ("full in", full_in(w)),
        ("bounds", bounds(w)),
    ];
    rows.extend(served.settings.iter().map(|s| (s.name.as_str(), format!("{} ({})", s.value, s.from))));
    rows.extend(paused(served).map(|text| ("paused", text)));
    let rows: Vec<_> = rows.into_iter().map(|(name, value)| vec![format!("  {name}"), value]).collect();
    format!("{}\n{}", served.name, terminal::table(&rows))
}

/// What would be missing if this host and its disk were lost now, and the bounds of it.
pub fn at_risk(served: &ServedStatus) -> String {
    let status = &served.status;
    let bounds = status.write_back.as_ref().map(|w| format!(" (at most {})", bounds(w))).unwrap_or_default();
    match status.dirty_bytes {
        0 => format!("nothing{bounds}"),
        bytes => {
            let age = Span(Duration::from_millis(status.dirty_age_ms));
            format!("{} not in the store, the oldest for {age}{bounds}", ByteSize(bytes))
        }
    }
}

fn bounds(w: &WriteBackStatus) -> String {
    let age = match w.paused {
        true => "no age while paused".to_owned(),
        false => Span(Duration::from_millis(w.dirty_age_max_ms)).to_string(),
    };
    format!("{}, {age}", ByteSize(w.dirty_bytes_max))
}

/// The mode, and who chose it.
pub fn mode(served: &ServedStatus) -> String {
    let name = match served.status.mode {
        Mode::Writeback => "writeback",
        Mode::Writethrough => "writethrough",
        Mode::Writearound => "writearound",
    };
    let from = served.settings.iter().find(|s| s.name == "mode").map(|s| format!(" ({})", s.from));
    format!("{name}{}", from.unwrap_or_default())
}

/// Since when write-back is paused, if it is.
pub fn paused(served: &ServedStatus) -> Option<String> {
    let since = utc(served.paused_since_ms?);
    let full = served.status.write_back.as_ref().map(full_in).unwrap_or_default();
    Some(format!("since {since}; room for more writes: {full}"))
}

/// Since when the store is away, what it said, and how long writes can go on.
pub fn away(served: &ServedStatus) -> Option<String> {
    let since = Span(Duration::from_millis(served.store_away_ms?));
    let error = store_said(served);
    let full = served.status.write_back.as_ref().map(full_in).unwrap_or_default();
    Some(format!("for {since}: {error}; room for more writes: {full}"))
}

fn store_said(served: &ServedStatus) -> &str {
    served.store["last_error"]["text"].as_str().unwrap_or("no answer")
}

/// How many requests are tried again and why, where the store is not away.
pub fn retried(served: &ServedStatus) -> Option<String> {
    let requests = served.store_retried;
    if requests == 0 || served.store_away_ms.is_some() {
        return None;
    }
    let error = store_said(served);
    let them = if requests == 1 { "1 request".to_owned() } else { format!("{requests} requests") };
    Some(format!("{them} failed and will be tried again: {error}"))
}

/// How long the room for dirty data lasts.
fn full_in(w: &WriteBackStatus) -> String {
    let left = ByteSize(w.dirty_bytes_max.saturating_sub(w.dirty_bytes));
    match w.throttle.full_in_s {
        Some(seconds) => format!("{left}, {} at the present rate", Span(Duration::from_secs(seconds))),
        None => format!("{left}, not filling"),
    }
}

fn speed(bytes_per_s: u64) -> String {
    format!("{}/s", ByteSize(bytes_per_s))
}

fn signed(bytes_per_s: i64) -> String {
    let sign = if bytes_per_s < 0 { "-" } else { "" };
    format!("{sign}{}", speed(bytes_per_s.unsigned_abs()))
}
