//! The races of the probe: many writers create one object at the same moment, hundreds of times.
//!
//! A store that breaks the rule once in 60 races passes 8 of them seven times of eight, and 400 of them once in 800 times.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;

use super::{ProbeDepth, Session, read_back};
use crate::{
    Error, Result,
    store::{Put, StoreError, StoreResult},
};

/// Writers of one name.
pub(super) const WRITERS: usize = 16;
/// Bytes of each: the bodies tell the writers apart, and nothing else.
const BODY_BYTES: usize = 64;
/// Races at once, of a name each.
const AT_ONCE: usize = 4;
/// Races that must each have exactly one winner, however long they take.
const ROUNDS_LEAST: usize = 8;
/// Races without a known winner (replies were lost), beyond the decided ones, after which nothing can be said.
const UNDECIDED_MAX: usize = 8;

/// When enough was raced. More rounds cost money and find less: 640 are 10,240 PUTs, five cents at Amazon's price.
struct RacePlan {
    rounds_min: usize,
    rounds_max: usize,
    time_min: Duration,
    /// A slow store is raced less often.
    time_max: Duration,
}

const FULL: RacePlan = RacePlan {
    rounds_min: 400,
    rounds_max: 640,
    time_min: Duration::from_secs(3),
    time_max: Duration::from_secs(10),
};
const BRIEF: RacePlan = RacePlan {
    rounds_min: ROUNDS_LEAST,
    rounds_max: ROUNDS_LEAST,
    time_min: Duration::ZERO,
    time_max: Duration::ZERO,
};
const _: () = assert!(BRIEF.rounds_min <= FULL.rounds_min && FULL.rounds_min <= FULL.rounds_max);
const _: () = assert!(ROUNDS_LEAST.is_multiple_of(AT_ONCE) && FULL.rounds_max.is_multiple_of(AT_ONCE));

impl RacePlan {
    fn is_done(&self, rounds: usize, time: Duration) -> bool {
        let is_enough = rounds >= self.rounds_min && time >= self.time_min;
        let is_late = rounds >= ROUNDS_LEAST && time >= self.time_max;
        is_enough || is_late || rounds >= self.rounds_max
    }
}

/// What one round showed.
#[derive(Debug, PartialEq, Eq)]
enum RaceRound {
    Fair,
    /// Nobody heard of winning, but some heard nothing at all.
    Undecided,
    Unfair(String),
}

/// Races until enough rounds are decided, or one is unfair; gives what was unfair.
pub(super) async fn run(session: &Session<'_>) -> Result<Option<String>> {
    let plan = match session.depth {
        ProbeDepth::Full => FULL,
        ProbeDepth::Brief => BRIEF,
    };
    let began = session.env.now();
    let (mut fair, mut undecided) = (0, 0);
    while !plan.is_done(fair, session.env.now().saturating_sub(began)) {
        let first = fair + undecided;
        let rounds = join_all((first..first + AT_ONCE).map(|number| round(session, number))).await;
        for round in rounds {
            match round? {
                RaceRound::Fair => fair += 1,
                RaceRound::Undecided => undecided += 1,
                RaceRound::Unfair(why) => return Ok(Some(why)),
            }
        }
        session.seen.lock().races = fair;
        if undecided > fair + UNDECIDED_MAX {
            return Err(Error::Unreachable("too many conditional writes got no answer".to_owned()));
        }
    }
    Ok(None)
}

async fn round(session: &Session<'_>, number: usize) -> StoreResult<RaceRound> {
    let key = session.key(&format!("race/{number}"));
    let bodies: Vec<Bytes> = (0..WRITERS).map(|writer| Bytes::from(vec![writer as u8; BODY_BYTES])).collect();
    let writers = bodies.iter().map(|body| session.store.put_if_absent(&key, body.clone()));
    let answers = join_all(writers).await;
    let content = read_back(session.store, &key).await?;
    Ok(judge(&answers, &bodies, content))
}

/// Judges the answers of one round against what the object holds afterwards.
fn judge(answers: &[StoreResult<Put>], bodies: &[Bytes], content: Option<Bytes>) -> RaceRound {
    debug_assert_eq!(answers.len(), bodies.len());
    let winners: Vec<usize> =
        (0..answers.len()).filter(|&w| matches!(answers[w], Ok(Put::Created))).collect();
    let unanswered = answers.iter().any(|a| matches!(a, Err(StoreError::Unreachable(_))));
    match (winners.as_slice(), content) {
        ([], Some(_)) | ([], None) if unanswered => RaceRound::Undecided,
        // Below a wrapper that tries again, the winner may meet its own object.
        ([], Some(content)) if bodies.contains(&content) => RaceRound::Undecided,
        ([], _) => RaceRound::Unfair("no writer was told that it had created the object".to_owned()),
        ([winner], Some(content)) if content == bodies[*winner] => RaceRound::Fair,
        ([_], _) => RaceRound::Unfair("the object does not hold what its creator wrote".to_owned()),
        (many, _) => RaceRound::Unfair(format!(
            "{} of {} writers at once were told that they had created it",
            many.len(),
            WRITERS
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bodies() -> Vec<Bytes> {
        (0..3u8).map(|w| Bytes::from(vec![w])).collect()
    }

    /// Fair is one winner whose bytes stay; lost replies decide nothing; the rest is unfair.
    #[test]
    fn rounds_are_judged() {
        let (created, exists) = (|| Ok(Put::Created), || Ok(Put::Exists));
        let lost = || Err(StoreError::Unreachable("lost".to_owned()));
        let content = |w: usize| Some(bodies()[w].clone());
        let judge = |answers: &[StoreResult<Put>], content| judge(answers, &bodies(), content);
        assert_eq!(judge(&[exists(), created(), exists()], content(1)), RaceRound::Fair);
        assert_eq!(judge(&[exists(), created(), lost()], content(1)), RaceRound::Fair);
        assert_eq!(judge(&[exists(), lost(), exists()], content(1)), RaceRound::Undecided);
        assert_eq!(judge(&[lost(), lost(), lost()], None), RaceRound::Undecided);
        assert!(matches!(judge(&[created(), created(), exists()], content(1)), RaceRound::Unfair(_)));
        assert!(matches!(judge(&[exists(), created(), exists()], content(2)), RaceRound::Unfair(_)));
        assert!(matches!(judge(&[exists(), exists(), exists()], None), RaceRound::Unfair(_)));
        assert!(matches!(judge(&[exists(), created(), exists()], None), RaceRound::Unfair(_)));
    }
}
