//! The race of the probe: many writers create one object at the same moment, several times.

use bytes::Bytes;
use futures_util::future::join_all;

use super::{RULE_RACE, Session, read_back};
use crate::{
    Error, Result,
    store::{Put, StoreError, StoreResult},
};

/// Writers of one name.
const WRITERS: usize = 16;
/// Rounds that must each have exactly one winner.
const ROUNDS: usize = 8;
/// Rounds without a known winner (replies were lost) after which nothing can be said.
const UNDECIDED_MAX: usize = 8;

/// What one round showed.
#[derive(Debug, PartialEq, Eq)]
enum RaceRound {
    Fair,
    /// Nobody heard of winning, but some heard nothing at all.
    Undecided,
    Unfair(String),
}

/// Races until enough rounds are decided, or one is unfair.
pub(super) async fn check(session: &mut Session<'_>) -> Result<()> {
    let (mut fair, mut undecided) = (0, 0);
    while fair < ROUNDS {
        let key = session.key(&format!("race/{}", fair + undecided));
        let bodies: Vec<Bytes> = (0..WRITERS).map(|writer| Bytes::from(vec![writer as u8; 1024])).collect();
        let writers = bodies.iter().map(|body| session.store.put_if_absent(&key, body.clone()));
        let answers = join_all(writers).await;
        let content = read_back(session.store, &key).await?;
        match judge(&answers, &bodies, content) {
            RaceRound::Fair => fair += 1,
            RaceRound::Undecided => undecided += 1,
            RaceRound::Unfair(why) => {
                session.note(RULE_RACE, Some(why));
                return Ok(());
            }
        }
        if undecided > UNDECIDED_MAX {
            return Err(Error::Unreachable("too many conditional writes got no answer".to_owned()));
        }
    }
    session.note(RULE_RACE, None);
    Ok(())
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
