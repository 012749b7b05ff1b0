//! The toy's journal: two alternating headers, then records of one lap from the beginning.

use std::sync::Arc;

use bytes::Bytes;
use cistern_engine::{Error, Result, disk::DiskFile};

use super::{
    Bug,
    record::{Record, checksum, put, take},
};
use crate::device::Site;

pub const NAME: &str = "journal";
const BLOCK: u64 = 4096;
const MAGIC: u64 = 0x6a6f_7572_6e61_6c21;

/// An open journal.
pub struct Journal {
    site: Site,
    file: Arc<dyn DiskFile>,
    id: u64,
    lap: u64,
    at: u64,
}

/// Header block: magic, id, lap, last number before the lap, checksum.
fn header(id: u64, lap: u64, base: u64) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, &[MAGIC, id, lap, base]);
    let sum = checksum(&out);
    put(&mut out, &[sum]);
    out.resize(BLOCK as usize, 0);
    out
}

fn read_header(block: &[u8]) -> Option<(u64, u64, u64)> {
    let sum = checksum(&block[..32]);
    let [magic, id, lap, base, found] = take(&mut Bytes::copy_from_slice(block))?;
    (magic == MAGIC && sum == found).then_some((id, lap, base))
}

impl Journal {
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Opens the journal of this host, or makes one. Returns what it holds, in order.
    pub async fn open(site: &Site, bytes: u64, bug: Bug) -> Result<(Journal, Vec<(u64, Record)>)> {
        let file = match site.state.open(NAME).await {
            Ok(file) => file,
            Err(Error::NotFound(_)) => Self::make(site, bytes).await?,
            Err(error) => return Err(error),
        };
        let (id, lap, records) = scan(&*file, bug).await?;
        Ok((Journal { site: site.clone(), file, id, lap, at: 0 }, records))
    }

    async fn make(site: &Site, bytes: u64) -> Result<Arc<dyn DiskFile>> {
        site.state.remove("journal.new").await?;
        let file = site.state.create("journal.new", bytes).await?;
        let id = u64::from_le_bytes(site.env.random_bytes());
        file.write_at(BLOCK, &header(id, 1, 0)).await?;
        file.sync().await?;
        site.state.rename("journal.new", NAME).await?;
        Ok(file)
    }

    /// What the journal of this host holds, without changing it.
    pub async fn records(site: &Site, bug: Bug) -> Result<Vec<(u64, Record)>> {
        let file = match site.state.open(NAME).await {
            Ok(file) => file,
            Err(Error::NotFound(_)) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        Ok(scan(&*file, bug).await?.2)
    }

    /// Begins a new lap behind record `last`; everything before is in the store.
    pub async fn restart(self, last: u64) -> Result<Journal> {
        let lap = self.lap + 1;
        self.write(lap % 2 * BLOCK, &header(self.id, lap, last)).await?;
        self.file.sync().await?;
        Ok(Journal { lap, at: 2 * BLOCK, ..self })
    }

    pub fn fits(&self, record: &Record) -> bool {
        self.at + record.bytes() + 2 * BLOCK <= self.file.len()
    }

    /// Record block: magic, id, lap, number, body bytes, checksum of the body; then the body.
    pub async fn append(&mut self, number: u64, record: &Record) -> Result<()> {
        let mut body = Vec::new();
        record.encode(&mut body);
        let mut head = Vec::new();
        put(&mut head, &[MAGIC, self.id, self.lap, number, body.len() as u64, checksum(&body)]);
        head.extend_from_slice(&body);
        head.resize(head.len().next_multiple_of(BLOCK as usize), 0);
        self.write(self.at, &head).await?;
        self.at += head.len() as u64;
        Ok(())
    }

    pub async fn sync(&self) -> Result<()> {
        self.file.sync().await
    }

    /// Writes as soon as the disk has room.
    async fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        loop {
            match self.file.write_at(at, bytes).await {
                Err(Error::Full(_)) => self.site.env.sleep(std::time::Duration::from_millis(500)).await,
                written => return written,
            }
        }
    }

    /// The same journal through a new file handle.
    pub async fn reopened(self) -> Journal {
        match self.site.state.open(NAME).await {
            Ok(file) => Journal { file, ..self },
            Err(_) => self,
        }
    }
}

/// Identity, lap and valid records.
async fn scan(file: &dyn DiskFile, bug: Bug) -> Result<(u64, u64, Vec<(u64, Record)>)> {
    let mut all = vec![0; file.len() as usize];
    file.read_at(0, &mut all).await?;
    let headers = all[..2 * BLOCK as usize].chunks(BLOCK as usize).filter_map(read_header);
    let Some((id, lap, mut last)) = headers.max_by_key(|&(_, lap, _)| lap) else {
        return Err(Error::corrupt("toy journal", "no valid header"));
    };
    let (mut at, mut records) = (2 * BLOCK as usize, Vec::new());
    let bytes = Bytes::from(all);
    while at < bytes.len() {
        let mut rest = bytes.slice(at..);
        let found = take(&mut rest).and_then(|[magic, i, l, number, len, sum]: [u64; 6]| {
            let mine = magic == MAGIC && i == id && l == lap && len <= rest.len() as u64;
            let body = mine.then(|| rest.split_to(len as usize))?;
            let valid = checksum(&body) == sum || bug == Bug::TornReplay;
            let in_order = number == last + 1 || (bug == Bug::ReplayBehindGap && number > last);
            (valid && in_order).then_some((number, body))
        });
        let Some((number, mut body)) = found else {
            if bug == Bug::ReplayBehindGap {
                at += BLOCK as usize;
                continue;
            }
            break;
        };
        at += (48 + body.len()).next_multiple_of(BLOCK as usize);
        let Some(record) = Record::decode(&mut body) else { break };
        last = number;
        if bug != Bug::ForgetZeroes || !matches!(record, Record::Zero { .. }) {
            records.push((number, record));
        }
    }
    Ok((id, lap, records))
}
