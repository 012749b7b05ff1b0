//! A snapshot of one volume into another one, in this process: no stream lies between them.
//!
//! One is read while the other is written, some records apart, so memory is bounded. As with a stream, it counts as a whole: the target is as it
//! was until the last record is there. What is verified, is verified at either end: a frame that is read against its seal, what is
//! written by the target as ever. [`read_back`] looks whether it is in the store of the target.

use std::{path::PathBuf, sync::Arc};

use cistern_engine::{
    share::Share,
    store::StoreUrl,
    stream::{ResumeToken, StreamHeader, StreamRecord},
    units::BLOCK_BYTES,
    volume::{Overwrite, SentSince, SnapshotStatus, Volume},
};
use clap::Args;
use serde::Serialize;

use crate::{
    cli::{
        Context,
        marks::newest_common,
        read_rate::ReadRate,
        snapshots,
        source::{Base, Source},
        target::{BrokenOff, OpenTarget, TargetVolume},
        transfer::{Transfer, TransferPart},
    },
    config::Resolved,
    failure::{Failure, Kind, Outcome},
    place::{SnapshotUrl, VolumeUrl},
    quantity::ByteSize,
    signals::Interruption,
    terminal,
};

/// The volume that is written, where its secret is another one.
#[derive(Args)]
pub(super) struct TargetKey {
    /// File with the key of what is written, where that is another one
    ///
    /// Else it is the secret of what is read. [default: that of --key-file or CISTERN_PASSPHRASE]
    #[arg(long, value_name = "FILE")]
    to_key_file: Option<PathBuf>,
}

impl TargetKey {
    pub fn settings(&self, settings: &Resolved) -> Resolved {
        let mut settings = settings.clone();
        settings.key.key_file = self.to_key_file.clone().or(settings.key.key_file);
        settings
    }
}

/// What is read, and what it is called on the way.
pub(super) struct Leg {
    pub source: Source,
    pub header: StreamHeader,
}

/// What was brought.
pub(super) struct Brought {
    /// What it is called there.
    pub name: String,
    /// The volume was made for it.
    pub created: bool,
    /// The snapshot from which it went on.
    pub from: Option<String>,
    /// Before compression.
    pub data_bytes: u64,
    /// What was sent, unless some of it was sent before, or something else was put back below it.
    pub sum: Option<SentSum>,
}

/// What was sent.
pub(super) struct SentSum {
    /// What of the target is to be read back.
    back: SentSince,
    /// What that comes to.
    sum: u64,
}

impl Leg {
    /// Opens a snapshot: all of it, or what changed since the newest one that is `there` too.
    pub async fn open(
        context: &Context,
        settings: &Resolved,
        snapshot: &SnapshotUrl,
        there: &[SnapshotStatus],
        rate: Option<&ReadRate>,
    ) -> Outcome<Leg> {
        let whole = Source::open(context, settings, snapshot, Base::Nothing, rate).await?;
        let all = whole.shown.snapshots();
        let base = newest_common(&all, there, &whole.to, |base| is_known_since(&whole, base));
        let base = base.map(|base| base.name.clone());
        let source = match &base {
            None => whole,
            Some(base) => whole.since(context, settings, snapshot, Base::Name(base), rate).await?,
        };
        let header = source.header(context, snapshot).await?;
        Ok(Leg { source, header })
    }

    /// Opens a snapshot of which a volume has received a part, by what it differs from what that began with; `None` if that is not known any
    /// more, or was not begun by a copy.
    pub async fn reopen(
        context: &Context,
        settings: &Resolved,
        snapshot: &SnapshotUrl,
        token: &ResumeToken,
        rate: Option<&ReadRate>,
    ) -> Outcome<Option<Leg>> {
        let whole = Source::open(context, settings, snapshot, Base::Nothing, rate).await?;
        let is_base = |id| {
            let all = whole.shown.snapshots();
            all.into_iter().any(|base| base.id == id && is_known_since(&whole, &base))
        };
        if token.places.len() != 1 || !token.base.is_none_or(is_base) {
            return Ok(None);
        }
        let source = whole.since(context, settings, snapshot, Base::Token(token), rate).await?;
        let header = source.header(context, snapshot).await?;
        Ok(Some(Leg { source, header }))
    }

    /// Brings it into a volume, as a snapshot of that name; `None` if that has it. If it is to be read back, what it comes to is summed up: for that all of
    /// it is unpacked.
    pub async fn bring(
        &self,
        opened: &OpenTarget<'_>,
        name: &str,
        overwrite: Overwrite,
        is_read_back: bool,
        part: &TransferPart<'_>,
    ) -> Outcome<Option<Brought>> {
        let Leg { source, header } = self;
        let volume = &opened.volume;
        // What a run that was killed has brought is not brought again.
        let base = header.base.as_ref().map(|base| base.id);
        let begun =
            volume.resume_token().await?.filter(|token| token.to == header.to.id && token.base == base);
        let from = begun.and_then(|token| token.places.first().copied().filter(|_| token.places.len() == 1));
        if from.is_none() {
            volume.go_back().await?;
        }
        volume.drain().await?;
        let kept = volume.snapshots().into_iter().find(|snapshot| snapshot.receiving.is_some());
        let before = kept.and_then(|kept| kept.at).unwrap_or(volume.status().seq);
        let header = StreamHeader { from: from.unwrap_or(0), ..header.clone() };
        let begun = opened.begin(std::slice::from_ref(&header), name, overwrite).await?;
        let Some((receiver, mut shares)) = begun else { return Ok(None) };
        // Of what was brought before, and put back below it, the sum is not known.
        let is_summed = is_read_back && from.is_none() && (base.is_none() || overwrite == Overwrite::Nothing);
        let (mut sum, mut data_bytes, size) = (ContentSum::new(), 0, source.shown.size_bytes());
        part.begin_at(header.from * BLOCK_BYTES as u64, size);
        let mut sending = source.shown.send(source.since.clone(), Share::ALL, header.from);
        while let Some(record) = sending.next().await? {
            if is_summed {
                sum.add(&record)?;
            }
            let bytes = record.data_bytes();
            shares[0].record(record).await?;
            data_bytes += bytes;
            part.add(bytes, sending.place_bytes(), size);
        }
        receiver.end(shares).await?;
        let sum = sum.finish();
        let back = if base.is_none() { SentSince::Beginning } else { SentSince::Position(before, None) };
        let sum = is_summed.then_some(SentSum { back, sum });
        let from = header.base.as_ref().map(|base| base.name.clone());
        Ok(Some(Brought { name: name.to_owned(), created: opened.created, from, data_bytes, sum }))
    }
}

/// Whether what changed since is known.
fn is_known_since(source: &Source, base: &SnapshotStatus) -> bool {
    !base.is_bookmark || base.at.is_some_and(|at| source.shown.goes_on_from(at))
}

/// Copies snapshots of one volume into another one.
pub(super) struct Flight<'a> {
    pub context: &'a Context,
    pub settings: &'a Resolved,
    pub from: &'a VolumeUrl,
    pub target: TargetVolume<'a>,
    pub rate: Option<&'a ReadRate>,
    /// Programs are told how far it is.
    pub json: bool,
    pub stop: &'a Interruption,
}

/// What came of it.
pub(super) struct Landed {
    /// The volume was made for it.
    pub created: bool,
    pub brought: Vec<(SnapshotStatus, Brought)>,
}

impl<'a> Flight<'a> {
    /// Brings snapshots, oldest first and each under a name, into the target, which was opened if it is there; those that it has are left
    /// out, with what is older. Closes it. If it fails, the target is as it was behind the last one that is complete; if that passes, unfinished.
    pub async fn bring(
        &self,
        mut opened: Option<OpenTarget<'a>>,
        wanted: Vec<(SnapshotStatus, String)>,
        overwrite: Overwrite,
    ) -> Result<Landed, BrokenOff> {
        let mut brought = Vec::new();
        let done = self.bring_each(&mut opened, wanted, overwrite, &mut brought).await;
        let created = match (done, &opened) {
            (Ok(created), Some(opened)) => {
                opened.close().await?;
                created
            }
            (Ok(created), None) => created,
            (Err(failure), None) => return Err(failure.into()),
            (Err(failure), Some(opened)) => {
                let failure = match brought.last() {
                    Some((last, _)) if failure.hint.is_none() => failure.hint(format!(
                        "all up to {} is there; the same command goes on from that",
                        last.name
                    )),
                    _ => failure,
                };
                return Err(opened.break_off(failure).await);
            }
        };
        Ok(Landed { created, brought })
    }

    async fn bring_each(
        &self,
        opened: &mut Option<OpenTarget<'a>>,
        wanted: Vec<(SnapshotStatus, String)>,
        overwrite: Overwrite,
        brought: &mut Vec<(SnapshotStatus, Brought)>,
    ) -> Outcome<bool> {
        let there = opened.as_ref().map(|opened| opened.volume.snapshots()).unwrap_or_default();
        let is_there = |(snapshot, _): &(SnapshotStatus, String)| {
            there.iter().any(|theirs| theirs.id == snapshot.id && !theirs.is_bookmark)
        };
        let missing = wanted.iter().rposition(is_there).map_or(0, |n| n + 1);
        let (mut created, together) = (false, Transfer::begin("copying", 1, self.json));
        for (snapshot, name) in wanted.into_iter().skip(missing) {
            let mut there = opened.as_ref().map(|opened| opened.volume.snapshots()).unwrap_or_default();
            // What is to be put back first has to have content.
            there.retain(|snapshot| overwrite == Overwrite::Nothing || !snapshot.is_bookmark);
            let url = SnapshotUrl { volume: self.from.clone(), name: snapshot.name.clone() };
            let leg = Leg::open(self.context, self.settings, &url, &there, self.rate);
            let leg = self.stop.or(leg).await?;
            let target = match opened {
                Some(there) => there,
                None => {
                    created = true;
                    opened.insert(self.target.make(&leg.header).await?)
                }
            };
            // Behind the first it shows what the next one goes on from.
            let overwrite = if brought.is_empty() { overwrite } else { Overwrite::Nothing };
            let done = self.stop.or(leg.bring(target, &name, overwrite, false, &together.part(0))).await?;
            target.keep();
            brought.extend(done.map(|done| (snapshot, done)));
        }
        Ok(created)
    }
}

/// As JSON.
#[derive(Serialize)]
struct Copies {
    volume: String,
    /// The volume was made for it.
    created: bool,
    /// Oldest first; none if it had them all.
    snapshots: Vec<CopiedSnapshot>,
}

#[derive(Serialize)]
struct CopiedSnapshot {
    snapshot: String,
    id: String,
    /// The snapshot from which it went on.
    from: Option<String>,
    size_bytes: u64,
    /// Before compression.
    data_bytes: u64,
}

impl Landed {
    /// Says what was copied, or restored, into a volume.
    pub fn say(&self, did: &str, url: &StoreUrl, json: bool) -> Outcome {
        if json {
            let copied = |(snapshot, brought): &(SnapshotStatus, Brought)| CopiedSnapshot {
                snapshot: brought.name.clone(),
                id: snapshot.id.to_string(),
                from: brought.from.clone(),
                size_bytes: snapshot.size_bytes,
                data_bytes: brought.data_bytes,
            };
            return terminal::say_json(&Copies {
                volume: url.to_string(),
                created: self.created,
                snapshots: self.brought.iter().map(copied).collect(),
            });
        }
        if self.created {
            terminal::say(format!("created {url}"))?;
        }
        self.brought.iter().try_for_each(|(_, brought)| {
            let (name, data) = (&brought.name, ByteSize(brought.data_bytes));
            let since = brought.from.as_ref().map(|from| format!(" since {from}")).unwrap_or_default();
            terminal::say(format!("{did} {url}@{name}: {data} of data{since}"))
        })
    }
}

/// Reads what was brought from the store into which it was written: every frame is verified, and that it is what was sent. Gives what is wrong
/// with it.
pub(super) async fn read_back(
    context: &Context,
    settings: &Resolved,
    snapshot: &SnapshotUrl,
    sent: &SentSum,
    part: &TransferPart<'_>,
) -> Outcome<Option<Failure>> {
    let shown =
        snapshots::open_behind(context, settings, &snapshot.volume, Some(&snapshot.name), None).await?;
    match read(&shown, sent.back.clone(), part).await {
        Ok((sum, _)) if sum == sent.sum => Ok(None),
        Ok(_) => Ok(Some(not_what_was_sent(snapshot))),
        Err(damage) if damage.kind == Kind::Corrupt => Ok(Some(damage)),
        Err(failure) => Err(failure),
    }
}

pub(super) fn not_what_was_sent(snapshot: &SnapshotUrl) -> Failure {
    let text = format!("{snapshot} is not what was sent: what was read back from its store differs");
    Failure::new(Kind::Corrupt, text)
}

/// Reads what a state shows, or what changed in it; gives what it comes to, and bytes of data.
pub(super) async fn read(
    shown: &Arc<Volume>,
    since: SentSince,
    part: &TransferPart<'_>,
) -> Outcome<(u64, u64)> {
    let (mut sum, mut data_bytes, size) = (ContentSum::new(), 0, shown.size_bytes());
    let mut sending = shown.send(since, Share::ALL, 0);
    while let Some(record) = sending.next().await? {
        sum.add(&record)?;
        data_bytes += record.data_bytes();
        part.add(record.data_bytes(), sending.place_bytes(), size);
    }
    Ok((sum.finish(), data_bytes))
}

/// A sum over content: the same for the same bytes, however they are cut into records, and whether zeroes are written, allocated or a hole.
///
/// It finds accidents between two ends that are ours; what lies in a store has its own seals.
struct ContentSum(crc_fast::Digest);

impl ContentSum {
    fn new() -> ContentSum {
        ContentSum(crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme))
    }

    /// Adds a record, behind all before it.
    fn add(&mut self, record: &StreamRecord) -> Outcome {
        let Some(data) = record.data()? else { return Ok(()) };
        for (n, block) in (record.extent.start..).zip(data.chunks(BLOCK_BYTES)) {
            if block.iter().any(|byte| *byte != 0) {
                self.0.update(&n.to_le_bytes());
                self.0.update(block);
            }
        }
        Ok(())
    }

    fn finish(self) -> u64 {
        self.0.finalize()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use cistern_engine::{codec::BlockData, stream::StreamContent, units::Extent};

    use super::*;

    fn sum(records: &[(u64, &[u8])]) -> u64 {
        let mut sum = ContentSum::new();
        for (start, blocks) in records {
            let data: Vec<u8> = blocks.iter().flat_map(|byte| [*byte; BLOCK_BYTES]).collect();
            let extent = Extent::new(*start, blocks.len() as u64);
            let content = StreamContent::Data(BlockData::Plain(Bytes::from(data)));
            sum.add(&StreamRecord { extent, content }).expect("plain");
        }
        sum.finish()
    }

    /// The same content has the same sum however it is cut and wherever its zeroes are told; another place, byte or order has another one.
    #[test]
    fn the_same_content_has_the_same_sum() {
        let one = sum(&[(3, &[1, 2, 0, 4])]);
        assert_eq!(one, sum(&[(3, &[1]), (4, &[2]), (6, &[4])]));
        assert_eq!(one, sum(&[(0, &[0, 0]), (3, &[1, 2, 0]), (6, &[4, 0])]));
        for other in
            [&[(4, &[1, 2, 0, 4][..])][..], &[(3, &[1, 2, 4])], &[(3, &[2, 1, 0, 4])], &[(3, &[1, 2])]]
        {
            assert_ne!(one, sum(other));
        }
    }
}
