//! Rings stay as large as they may be, aggregate as they say, and have gaps where nothing was noted.

use super::*;

const STEP_MS: u64 = 10_000;

/// A ring of three series: a mean, a maximum, the last.
fn ring(columns_max: usize) -> Ring {
    Ring::new(STEP_MS, columns_max, 3)
}

fn note(ring: &mut Ring, at_ms: u64, value: f32) {
    ring.note(at_ms, &[value; 3], |at| [Keep::Mean, Keep::Max, Keep::Last][at]);
}

/// The first position, and the columns of a series; what is unknown is -1.
fn shown(ring: &Ring, series: usize) -> (u64, Vec<f32>) {
    let span = ring.span(None);
    (span.0, ring.series(series, span).map(|value| if value.is_nan() { -1.0 } else { value }).collect())
}

/// A column has the mean, the maximum or the last of what was noted in its time; what is unknown counts for nothing, but is the last if it
/// came last.
#[test]
fn columns_are_made_of_seconds() {
    let mut ring = ring(8);
    for (at_ms, value) in [(0, 1.0), (4000, f32::NAN), (9999, 5.0), (10_000, f32::NAN), (20_000, 7.0)] {
        note(&mut ring, at_ms, value);
    }
    note(&mut ring, 21_000, f32::NAN);
    assert_eq!(shown(&ring, 0), (0, vec![3.0, -1.0, 7.0]));
    assert_eq!(shown(&ring, 1), (0, vec![5.0, -1.0, 7.0]));
    assert_eq!(shown(&ring, 2), (0, vec![5.0, -1.0, -1.0]));
}

/// The oldest columns make way; time in which nothing was noted is unknown, and a pause longer than the ring leaves nothing of before.
#[test]
fn the_oldest_make_way_and_pauses_are_gaps() {
    let mut ring = ring(4);
    (0..6).for_each(|n| note(&mut ring, n * STEP_MS, n as f32));
    assert_eq!(shown(&ring, 2), (2, vec![2.0, 3.0, 4.0, 5.0]));
    note(&mut ring, 7 * STEP_MS, 7.0);
    assert_eq!(shown(&ring, 2), (4, vec![4.0, 5.0, -1.0, 7.0]));
    note(&mut ring, 100 * STEP_MS, 9.0);
    assert_eq!(shown(&ring, 2), (100, vec![9.0]));
}

/// A clock that is set back forgets what was noted later than it shows now; before everything that was noted, it begins anew.
#[test]
fn a_clock_that_is_set_back_forgets() {
    let mut ring = ring(8);
    (5..9).for_each(|n| note(&mut ring, n * STEP_MS, n as f32));
    note(&mut ring, 6 * STEP_MS, 1.0);
    assert_eq!(shown(&ring, 2), (5, vec![5.0, 1.0]));
    assert_eq!(shown(&ring, 1), (5, vec![5.0, 6.0]));
    note(&mut ring, 2 * STEP_MS, 3.0);
    assert_eq!(shown(&ring, 2), (2, vec![3.0]));
}

/// A part begins with the column of the time that is asked for, which may have grown since it was last asked.
#[test]
fn parts_begin_where_they_are_asked_for() {
    let mut ring = ring(8);
    (5..9).for_each(|n| note(&mut ring, n * STEP_MS, n as f32));
    for (since_ms, span) in
        [(0, (5, 4)), (70_000, (7, 2)), (89_999, (8, 1)), (90_000, (9, 0)), (u64::MAX, (9, 0))]
    {
        assert_eq!(ring.span(Some(since_ms)), span, "{since_ms}");
    }
}

fn moment(at_ms: u64, volumes: &[&str]) -> Moment {
    let values = |width: usize| (0..width).map(|at| at as f32).collect::<Vec<_>>();
    let volume = |name: &&str| ((*name).to_owned(), values(VOLUME.len()));
    Moment { at_ms, daemon: values(DAEMON.len()), volumes: volumes.iter().map(volume).collect() }
}

fn text(history: &History, query: &HistoryQuery) -> String {
    let mut pieces = history.answer(query, 7);
    std::iter::from_fn(|| pieces.next(history)).collect()
}

fn reply(history: &History, query: &HistoryQuery) -> HistoryReply {
    serde_json::from_str(&text(history, query)).expect("a history")
}

/// Three days of a volume take less than a mebibyte, and the first hour of it a twentieth of that.
#[test]
fn memory_grows_with_time_and_is_bounded() {
    let mut history = History::default();
    let bytes = |history: &History| history.volumes[0].1.0.iter().map(Ring::bytes).sum::<usize>();
    (0..60).for_each(|second| history.note(&moment(second * 1000, &["tank"])));
    let minute = bytes(&history);
    assert!(minute < VOLUME_BYTES_MAX / 20, "{minute}");
    (60..3 * 86_400).for_each(|second| history.note(&moment(second * 1000, &["tank"])));
    let all = bytes(&history);
    assert!(all < VOLUME_BYTES_MAX, "{all}");
    let reply = reply(&history, &HistoryQuery::default());
    for (ring, (step_ms, columns_max)) in reply.rings.iter().zip(RINGS) {
        assert_eq!((ring.step_ms, ring.volumes["tank"]["dirty_bytes"].len()), (step_ms, columns_max));
    }
}

/// The text is JSON whatever is asked for, before anything was noted as well; a volume that was not there for a while is unknown then.
#[test]
fn answers_are_whole_whatever_is_asked() {
    let mut history = History::default();
    let one = HistoryQuery { step_ms: Some(1000), volume: Some("ho\"me".into()), since_ms: None };
    assert!(reply(&history, &HistoryQuery::default()).rings.iter().all(|ring| ring.volumes.is_empty()));
    history.note(&moment(1000, &["tank", "ho\"me"]));
    history.note(&moment(2000, &["tank"]));
    let all = reply(&history, &HistoryQuery::default());
    assert_eq!((all.now_ms, all.rings.len(), all.rings[0].volumes.len()), (7, 3, 2));
    assert_eq!(all.rings[0].volumes["tank"]["dirty_age_seconds"], [Some(1.0), Some(1.0)]);
    assert_eq!(all.rings[0].volumes["ho\"me"]["dirty_age_seconds"], [Some(1.0), None]);
    let part = reply(&history, &one);
    assert_eq!((part.rings.len(), part.rings[0].volumes.len(), part.rings[0].first_ms), (1, 1, 1000));
    let none = HistoryQuery { step_ms: Some(5), ..HistoryQuery::default() };
    assert!(reply(&history, &none).rings.is_empty());
}

/// Columns that are forgotten while an answer is sent are unknown in what comes of it afterwards: every series has as many.
#[test]
fn an_answer_under_way_keeps_its_columns() {
    let mut history = History::default();
    (0..600).for_each(|second| history.note(&moment(second * 1000, &["tank"])));
    let mut pieces = history.answer(&HistoryQuery { step_ms: Some(1000), ..HistoryQuery::default() }, 0);
    let mut text = pieces.next(&history).expect("the daemon");
    history.note(&moment(600_000, &["tank"]));
    text.extend(std::iter::from_fn(|| pieces.next(&history)));
    let reply: HistoryReply = serde_json::from_str(&text).expect("a history");
    let tank = &reply.rings[0].volumes["tank"]["dirty_age_seconds"];
    assert_eq!((tank.len(), tank[0], tank[1]), (600, None, Some(1.0)));
    assert_eq!(reply.rings[0].daemon["clients"].len(), 600);
}

/// A question comes over its path as it was, and what is none is refused.
#[test]
fn questions_come_over_a_path() {
    let query = HistoryQuery { since_ms: Some(5), step_ms: Some(10_000), volume: Some("a b@ä&c".into()) };
    let path = query.in_path();
    let back = HistoryQuery::of_path(path.strip_prefix('?').expect("a question")).expect("the same");
    assert_eq!(format!("{back:?}"), format!("{query:?}"));
    for query in ["since=x", "step=7", "until=5", "volume=%f", "volume=%ff"] {
        assert!(HistoryQuery::of_path(query).is_err(), "{query}");
    }
    assert!(HistoryQuery::of_path("").is_ok());
}

/// Names are unique, and end in their unit.
#[test]
fn names_are_unique_and_say_their_unit() {
    let names: Vec<(&str, &str)> = VOLUME.iter().map(|series| (series.name, series.help)).collect();
    let all: Vec<(&str, &str)> = names.into_iter().chain(DAEMON.iter().map(|s| (s.name, s.help))).collect();
    let unique: std::collections::BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
    assert_eq!(unique.len(), all.len());
    for (name, help) in all {
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_'), "{name}");
        assert!(!help.ends_with('.') && !help.contains('\n') && !help.contains('|'), "{name}");
    }
}
