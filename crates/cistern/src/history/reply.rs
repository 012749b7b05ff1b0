//! A history as JSON: what can be asked, what the answer is, and its text, piece by piece.
//!
//! All of it would be a megabyte and a half for each volume: a piece is one ring of one subject, and made when it is to be sent.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use super::{DAEMON, History, RINGS, Ring, Series, VOLUME};

/// Which part of a history.
#[derive(Clone, Debug, Default)]
pub struct HistoryQuery {
    /// Columns of this time and later, in milliseconds since 1970: the one that it falls into is the first.
    pub since_ms: Option<u64>,
    /// Only the ring of this step.
    pub step_ms: Option<u64>,
    /// Only the volume of this name; the daemon is there always.
    pub volume: Option<String>,
}

impl HistoryQuery {
    /// As it stands behind the path.
    pub fn in_path(&self) -> String {
        let number = |name: &str, value: Option<u64>| value.map(|value| format!("{name}={value}"));
        let volume = self.volume.as_ref().map(|name| format!("volume={}", escaped(name)));
        let parts = [number("since", self.since_ms), number("step", self.step_ms), volume];
        format!("?{}", parts.into_iter().flatten().collect::<Vec<_>>().join("&"))
    }

    /// Of what stands behind the path.
    ///
    /// # Errors
    /// What cannot be understood.
    pub fn of_path(query: &str) -> Result<HistoryQuery, String> {
        let mut wanted = HistoryQuery::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let number =
                || value.parse().map_err(|_| format!("{name}={value}: a number of milliseconds is expected"));
            match name {
                "since" => wanted.since_ms = Some(number()?),
                "step" => wanted.step_ms = Some(number()?),
                "volume" => wanted.volume = Some(unescaped(value).ok_or("volume= is not UTF-8")?),
                _ => return Err(format!("there is no {name} to ask by: since, step or volume")),
            }
        }
        match wanted.step_ms {
            Some(step_ms) if RINGS.iter().all(|(known, _)| *known != step_ms) => {
                Err(format!("there is no ring of step={step_ms}: 1000, 10000 or 60000"))
            }
            _ => Ok(wanted),
        }
    }
}

fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

fn unescaped(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let (high, low) =
                    (char::from(rest.next()?).to_digit(16)?, char::from(rest.next()?).to_digit(16)?);
                u8::try_from(high << 4 | low).ok()?
            }
            b'+' => b' ',
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

/// A history, as clients read it.
#[derive(Clone, Debug, Deserialize)]
pub struct HistoryReply {
    /// When this was asked, in milliseconds since 1970.
    pub now_ms: u64,
    pub rings: Vec<RingReply>,
}

/// One ring: series under their names, each with a value for every column.
#[derive(Clone, Debug, Deserialize)]
pub struct RingReply {
    pub step_ms: u64,
    /// The time of the first column; one follows every step. The last is still being filled.
    pub first_ms: u64,
    pub daemon: BTreeMap<String, Vec<Option<f32>>>,
    pub volumes: BTreeMap<String, BTreeMap<String, Vec<Option<f32>>>>,
}

/// The pieces of the text of an answer. What it shows is settled when it is asked, which columns and which volumes; columns that are
/// forgotten until their piece is made are unknown.
pub struct HistoryPieces {
    now_ms: u64,
    /// Which rings, and of each the first position and how many.
    rings: Vec<(usize, (u64, u64))>,
    volumes: Vec<String>,
    made: usize,
}

impl History {
    /// Begins an answer.
    pub fn answer(&self, query: &HistoryQuery, now_ms: u64) -> HistoryPieces {
        let wanted = |at: &usize| query.step_ms.is_none_or(|step_ms| step_ms == RINGS[*at].0);
        let rings = (0..RINGS.len()).filter(wanted);
        let known = self.volumes.iter().map(|(name, _)| name);
        HistoryPieces {
            now_ms,
            rings: rings.map(|at| (at, self.daemon.0[at].span(query.since_ms))).collect(),
            volumes: known
                .filter(|name| query.volume.as_ref().is_none_or(|only| only == *name))
                .cloned()
                .collect(),
            made: 0,
        }
    }
}

impl HistoryPieces {
    /// The next piece of the text.
    pub fn next(&mut self, history: &History) -> Option<String> {
        let subjects = 1 + self.volumes.len();
        let (ring, subject) = (self.made / subjects, self.made % subjects);
        let Some((at, span)) = self.rings.get(ring).copied() else {
            // Without a ring there is nothing before this.
            let text = (self.rings.is_empty() && self.made == 0).then(|| self.head() + "]}");
            self.made += 1;
            return text;
        };
        let mut text = match (self.made, subject) {
            (0, _) => self.head(),
            (_, 0) => ",".to_owned(),
            _ => String::new(),
        };
        match subject.checked_sub(1) {
            None => {
                let (step_ms, first_ms) = (RINGS[at].0, span.0 * RINGS[at].0);
                let columns = columns(&history.daemon.0[at], span, DAEMON);
                text += &format!(
                    r#"{{"step_ms":{step_ms},"first_ms":{first_ms},"daemon":{columns},"volumes":{{"#
                );
            }
            Some(volume) => {
                let name = &self.volumes[volume];
                let (_, rings) =
                    history.volumes.iter().find(|(known, _)| known == name).expect("none is ever forgotten");
                let separator = if volume > 0 { "," } else { "" };
                text += &format!("{separator}{}:{}", json(name), columns(&rings.0[at], span, VOLUME));
            }
        }
        if subject + 1 == subjects {
            text += "}}";
            if ring + 1 == self.rings.len() {
                text += "]}";
            }
        }
        self.made += 1;
        Some(text)
    }

    fn head(&self) -> String {
        format!(r#"{{"now_ms":{},"rings":["#, self.now_ms)
    }
}

/// All series of a ring in these columns.
fn columns<T>(ring: &Ring, span: (u64, u64), table: &'static [Series<T>]) -> String {
    struct Columns<'a, T: 'static>(&'a Ring, (u64, u64), &'static [Series<T>]);
    impl<T> Serialize for Columns<'_, T> {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let Columns(ring, span, table) = *self;
            let values = |at| ring.series(at, span).collect::<Vec<f32>>();
            serializer.collect_map(table.iter().enumerate().map(|(at, series)| (series.name, values(at))))
        }
    }
    json(&Columns(ring, span, table))
}

fn json(value: &(impl Serialize + ?Sized)) -> String {
    serde_json::to_string(value).expect("it has string keys")
}
