//! Whether a backup shows what the snapshot shows that it is of, where nobody knows any more what was sent: both are read.

use cistern_engine::volume::SentSince;
use futures_util::join;

use crate::{
    cli::{
        copying::{self, Leg},
        marks::is_shown,
        source::{Base, Source},
        taken::Taken,
        transfer::TransferPart,
    },
    failure::{Failure, Kind, Outcome},
    place::SnapshotUrl,
    terminal,
};

use super::making::Making;

impl Making<'_> {
    /// Compares what changed since the newest older snapshot that both have. If that is not the same, all of it: what was put back below it, or
    /// overwritten, counts as changed in the backup. Gives what is wrong with the backup.
    pub async fn compare(
        &self,
        taken: &Taken,
        snapshot: &SnapshotUrl,
        part: &TransferPart<'_>,
    ) -> Outcome<Option<Failure>> {
        let there = Source::open(self.context, self.theirs, snapshot, Base::Nothing, None).await?;
        let mut known = there.shown.snapshots();
        known.retain(is_shown);
        let leg = Leg::open(self.context, self.settings, &taken.snapshot, &known, self.rate).await?;
        let here = leg.source;
        let base = here.base.as_ref().and_then(|base| known.iter().find(|known| known.id == base.id));
        let there = match base {
            Some(base) => {
                there.since(self.context, self.theirs, snapshot, Base::Name(&base.name), None).await?
            }
            None => there,
        };
        let changed = base.map(|_| (here.since.clone(), there.since.clone()));
        let all = (SentSince::Beginning, SentSince::Beginning);
        for (here_since, there_since) in changed.into_iter().chain([all]) {
            let (sent, found) = join!(
                copying::read(&here.shown, here_since, part),
                copying::read(&there.shown, there_since, part)
            );
            let found = match found {
                Err(damage) if damage.kind == Kind::Corrupt => return Ok(Some(damage)),
                found => found?,
            };
            let sent = match sent {
                Err(damage) if damage.kind == Kind::Corrupt => {
                    let text = format!(
                        "{}: {}; {snapshot} is whole in itself, and not compared with that",
                        taken.snapshot, damage.text
                    );
                    terminal::remark(text);
                    return Ok(None);
                }
                sent => sent?,
            };
            if sent.0 == found.0 && here.shown.size_bytes() == there.shown.size_bytes() {
                return Ok(None);
            }
        }
        Ok(Some(copying::not_what_was_sent(snapshot)))
    }
}
