//! The toy's log: `log/<seq>` objects, each created with put-if-absent; claims, batches, releases.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use cistern_engine::{
    Error, Result,
    store::{Put, StoreError},
};

use super::{
    Bug,
    record::{Record, checksum, put, take},
};
use crate::device::Site;

/// Bytes of the largest object.
const OBJECT_BYTES_MAX: u64 = 8 << 20;
/// Tries to read an object.
const TRIES_MAX: u32 = 12;

/// What an object of the log says.
enum Said {
    Create { size_bytes: u64 },
    Claim { epoch: u64, journal: u64, start: u64 },
    Batch { epoch: u64, from: u64, to: u64, records: Vec<Record> },
    Release { epoch: u64 },
}

/// The committed state.
pub struct Walked {
    pub data: Vec<u8>,
    pub epoch: u64,
    pub committed: u64,
    next_seq: u64,
    released: bool,
    journal: u64,
    /// The last number of each journal that is committed.
    ends: BTreeMap<u64, u64>,
}

/// The end of the log, for its writer.
pub struct Log {
    site: Site,
    epoch: u64,
    next_seq: u64,
    committed: u64,
}

fn key(seq: u64) -> String {
    format!("log/{seq:012}")
}

impl Said {
    /// The object at `seq`: its seq and what it says, with a checksum in front.
    fn encode(&self, seq: u64) -> Bytes {
        let mut out = vec![0; 8];
        put(&mut out, &[seq]);
        match self {
            Said::Create { size_bytes } => put(&mut out, &[0, *size_bytes, 0, 0]),
            Said::Claim { epoch, journal, start } => put(&mut out, &[1, *epoch, *journal, *start]),
            Said::Batch { epoch, from, to, records } => {
                put(&mut out, &[2, *epoch, *from, *to]);
                records.iter().for_each(|r| r.encode(&mut out));
            }
            Said::Release { epoch } => put(&mut out, &[3, *epoch, 0, 0]),
        }
        let sum = checksum(&out[8..]);
        out[..8].copy_from_slice(&sum.to_le_bytes());
        out.into()
    }

    fn decode(seq: u64, bytes: Bytes) -> Result<Said> {
        Self::parse(seq, bytes).ok_or_else(|| Error::corrupt(key(seq), "not what was written there"))
    }

    fn parse(seq: u64, mut bytes: Bytes) -> Option<Said> {
        let [sum] = take(&mut bytes)?;
        if checksum(&bytes) != sum {
            return None;
        }
        let [at, kind, a, b, c] = take(&mut bytes)?;
        if at != seq {
            return None;
        }
        Some(match kind {
            0 => Said::Create { size_bytes: a },
            1 => Said::Claim { epoch: a, journal: b, start: c },
            2 => {
                let mut records = Vec::new();
                while !bytes.is_empty() {
                    records.push(Record::decode(&mut bytes)?);
                }
                Said::Batch { epoch: a, from: b, to: c, records }
            }
            3 => Said::Release { epoch: a },
            _ => return None,
        })
    }
}

async fn get(site: &Site, seq: u64) -> Result<Option<Bytes>> {
    for _ in 0..TRIES_MAX {
        match site.store.get(&key(seq), OBJECT_BYTES_MAX).await {
            Ok(body) => return Ok(Some(body)),
            Err(StoreError::NotFound(_)) => return Ok(None),
            Err(e @ (StoreError::Refused(_) | StoreError::NoRoom(_) | StoreError::Unusable { .. })) => {
                return Err(e.into());
            }
            Err(StoreError::Unreachable(_)) => site.env.sleep(Duration::from_millis(300)).await,
        }
    }
    Err(Error::Unreachable(format!("{} in {TRIES_MAX} tries", key(seq))))
}

/// Puts until the outcome is known. `Some`: what is there instead.
async fn put_at(site: &Site, seq: u64, body: &Bytes) -> Result<Option<Bytes>> {
    loop {
        match site.store.put_if_absent(&key(seq), body.clone()).await {
            Ok(Put::Created) => return Ok(None),
            Ok(Put::Exists) => match get(site, seq).await {
                Ok(Some(there)) => return Ok((there != *body).then_some(there)),
                Ok(None) => return Err(Error::corrupt(key(seq), "it came and went")),
                Err(Error::Unreachable(_)) => {}
                Err(error) => return Err(error),
            },
            Err(StoreError::Unreachable(_)) => site.env.sleep(Duration::from_millis(300)).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// Reads the whole log.
pub async fn walk(site: &Site) -> Result<Walked> {
    let mut w = Walked {
        data: Vec::new(),
        epoch: 0,
        committed: 0,
        next_seq: 0,
        released: true,
        journal: 0,
        ends: BTreeMap::new(),
    };
    while let Some(body) = get(site, w.next_seq).await? {
        let said = Said::decode(w.next_seq, body)?;
        w.next_seq += 1;
        w.hear(said);
    }
    if w.next_seq == 0 {
        return Err(Error::NotFound("toy volume".into()));
    }
    Ok(w)
}

impl Walked {
    fn hear(&mut self, said: Said) {
        match said {
            Said::Create { size_bytes } => self.data.resize(size_bytes as usize, 0),
            Said::Claim { epoch, journal, start } if epoch > self.epoch => {
                (self.epoch, self.journal, self.committed) = (epoch, journal, start);
                self.released = false;
                self.ends.insert(journal, start);
            }
            Said::Batch { epoch, from, to, records } if epoch == self.epoch && from == self.committed => {
                records.iter().for_each(|r| r.apply(&mut self.data));
                self.committed = to;
                self.ends.insert(self.journal, to);
            }
            Said::Release { epoch } if epoch == self.epoch => self.released = true,
            _ => {}
        }
    }
}

/// Ends an epoch.
pub async fn release(site: &Site, epoch: u64) -> Result<()> {
    let mut seq = walk(site).await?.next_seq;
    while put_at(site, seq, &Said::Release { epoch }.encode(seq)).await?.is_some() {
        seq += 1;
    }
    Ok(())
}

impl Log {
    pub async fn create(site: &Site, size_bytes: u64) -> Result<()> {
        match put_at(site, 0, &Said::Create { size_bytes }.encode(0)).await? {
            None => Ok(()),
            Some(_) => Err(Error::Exists("toy volume".into())),
        }
    }

    /// Takes the volume, for the journal `journal` that holds `held`.
    pub async fn claim(
        site: &Site,
        journal: u64,
        held: &[(u64, Record)],
        take_over: bool,
        bug: Bug,
    ) -> Result<(Log, Walked)> {
        loop {
            let mut walked = walk(site).await?;
            let mine = walked.journal == journal;
            let known = walked.ends.get(&journal).copied().unwrap_or(0);
            let stale = held.last().is_some_and(|(last, _)| *last > known);
            if !mine && stale && bug != Bug::MergeStale {
                return Err(Error::StaleJournal("the journal holds what was never committed".into()));
            }
            if !mine && !walked.released && !take_over {
                return Err(Error::InUse { host: "another".into(), since: "then".into() });
            }
            let start = if mine { walked.committed } else { known };
            let claim = Said::Claim { epoch: walked.epoch + 1, journal, start };
            if put_at(site, walked.next_seq, &claim.encode(walked.next_seq)).await?.is_none() {
                let next_seq = walked.next_seq + 1;
                walked.hear(claim);
                let log =
                    Log { site: site.clone(), epoch: walked.epoch, next_seq, committed: walked.committed };
                return Ok((log, walked));
            }
        }
    }

    /// Commits consecutive records.
    pub async fn append(&mut self, batch: &[(u64, Record)], bug: Bug) -> Result<()> {
        let to = batch.last().expect("a batch is not empty").0;
        loop {
            let records = batch.iter().map(|(_, record)| record.clone()).collect();
            let said = Said::Batch { epoch: self.epoch, from: self.committed, to, records };
            let there = put_at(&self.site, self.next_seq, &said.encode(self.next_seq)).await?;
            let seq = self.next_seq;
            self.next_seq += 1;
            match there.map(|body| Said::decode(seq, body)).transpose()? {
                None => {
                    self.committed = to;
                    return Ok(());
                }
                Some(Said::Claim { epoch, .. }) if epoch > self.epoch => {
                    if bug == Bug::IgnoreFence {
                        self.epoch = epoch;
                        continue;
                    }
                    return Err(Error::Fenced { ours: self.epoch, theirs: epoch });
                }
                Some(_) => {} // what an older epoch left; it counts for nothing
            }
        }
    }
}
