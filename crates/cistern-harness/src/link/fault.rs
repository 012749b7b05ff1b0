//! A store that has bad moments: some requests fail, in the ways in which they do. Decides purely; the link does what
//! was decided. Every fault ends its connection.

use std::collections::BTreeMap;

use super::delay::uniform;

/// What happens to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Nothing is done, and the answer is 503, as where a client should slow down.
    Unavailable,
    /// Nothing is done, and the answer is 500.
    Internal,
    /// The connection ends before the store hears of it.
    Unheard,
    /// The connection ends within the request: of a body about one half arrives.
    Half,
    /// The store does it, and the answer is 500.
    DoneAndDenied,
    /// The store does it, and the connection ends before the answer.
    Unanswered,
    /// The connection ends within the answer.
    HalfAnswered,
}

const ALL: [Fault; 7] = [
    Fault::Unavailable,
    Fault::Internal,
    Fault::Unheard,
    Fault::Half,
    Fault::DoneAndDenied,
    Fault::Unanswered,
    Fault::HalfAnswered,
];

impl Fault {
    pub fn name(self) -> &'static str {
        match self {
            Fault::Unavailable => "503",
            Fault::Internal => "500",
            Fault::Unheard => "cut before the request",
            Fault::Half => "cut within the request",
            Fault::DoneAndDenied => "500 of what was done",
            Fault::Unanswered => "cut before the answer",
            Fault::HalfAnswered => "cut within the answer",
        }
    }

    /// The answer that takes the place of the store's, if there is one.
    pub fn answer(self) -> Option<Vec<u8>> {
        let (status, code) = match self {
            Fault::Unavailable => ("503 Service Unavailable", "SlowDown"),
            Fault::Internal | Fault::DoneAndDenied => ("500 Internal Server Error", "InternalError"),
            _ => return None,
        };
        let body = format!("<Error><Code>{code}</Code></Error>");
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: application/xml\r\nContent-Length: {}\r\n",
            body.len()
        );
        Some(format!("{head}Connection: close\r\n\r\n{body}").into_bytes())
    }
}

/// So many requests of a million have a fault, all kinds equally often. The draws of a seed recur.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    pub per_million: u32,
    pub seed: u64,
}

/// How many faults of each kind there were.
pub type FaultCounts = BTreeMap<Fault, u64>;

impl Faults {
    /// The draw of this number.
    pub fn draw(&self, number: u64) -> Option<Fault> {
        let place = self.seed.wrapping_mul(0xA24B_AED4_963E_E407).wrapping_add(number * 2);
        let is_hit = uniform(place) <= f64::from(self.per_million) / 1e6;
        let kind = (uniform(place.wrapping_add(1)) * ALL.len() as f64) as usize;
        is_hit.then(|| ALL[kind.min(ALL.len() - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANY: u64 = 700_000;

    /// The share that was asked for fails, in every way about equally often; a seed gives the same again, none gives none.
    #[test]
    fn faults_are_spread_as_asked() {
        let faults = Faults { per_million: 30_000, seed: 5 };
        let mut counts = FaultCounts::new();
        (0..MANY).filter_map(|n| faults.draw(n)).for_each(|fault| *counts.entry(fault).or_default() += 1);
        assert_eq!(counts.len(), ALL.len());
        assert!(counts.values().all(|n| (2700..3300).contains(n)), "{counts:?}");
        let none = Faults { per_million: 0, ..faults };
        assert!((0..MANY).all(|n| none.draw(n).is_none()));
    }
}
