//! A disk in memory, thin and exact: knows for every sector whether it is data, zero or a hole.
//!
//! Owns pages of 32 KiB behind sharded locks. Nothing in it waits, so every request is ready at
//! once, and FLUSH has nothing to do.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use cistern_nbd::{Allocation, Export, ExportEntry, Exports, Properties, ReadPiece, Result};

const SECTOR_BYTES: u64 = 512;
const PAGE_BYTES: u64 = 32 << 10;
const SHARDS: usize = 64;

/// A page: its bytes, and two bits for each of its 64 sectors.
struct Page {
    bytes: Box<[u8]>,
    data: u64,
    /// Allocated and zero.
    zero: u64,
}

type Shard = HashMap<u64, Page>;

/// The disk.
pub struct MemoryExport {
    name: String,
    /// May be changed while clients are connected.
    pub size_bytes: AtomicU64,
    pub read_only: bool,
    shards: Vec<Mutex<Shard>>,
}

/// The part of a page that a request covers.
struct Part {
    page: u64,
    /// Bytes from the beginning of the page.
    from: usize,
    len: usize,
}

impl Part {
    /// The sectors of which it has any byte.
    fn touched(&self) -> u64 {
        let end = (self.from + self.len) as u64;
        sectors(self.from as u64 / SECTOR_BYTES, end.div_ceil(SECTOR_BYTES))
    }

    /// The sectors of which it has every byte.
    fn covered(&self) -> u64 {
        let end = (self.from + self.len) as u64;
        sectors((self.from as u64).div_ceil(SECTOR_BYTES), end / SECTOR_BYTES)
    }
}

/// A bit for each sector of a page from `first` on and before `end`.
fn sectors(first: u64, end: u64) -> u64 {
    (first..end).fold(0, |mask, sector| mask | 1 << sector)
}

fn parts(offset: u64, len: u64) -> impl Iterator<Item = Part> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        let from = at % PAGE_BYTES;
        let len = (PAGE_BYTES - from).min(end - at);
        let part = Part { page: at / PAGE_BYTES, from: from as usize, len: len as usize };
        at += len;
        (len > 0).then_some(part)
    })
}

impl MemoryExport {
    pub fn new(name: &str, size_bytes: u64) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { name: name.to_owned(), size_bytes: AtomicU64::new(size_bytes), read_only: false, shards }
    }

    fn shard(&self, page: u64) -> MutexGuard<'_, Shard> {
        self.shards[page as usize % SHARDS].lock().expect("no one panics with this lock")
    }

    /// Calls `change` for the touched part of every page; only of existing ones unless `all`.
    fn change(&self, offset: u64, len: u64, all: bool, mut change: impl FnMut(&mut Page, &Part)) {
        if all {
            for part in parts(offset, len) {
                let new = || Page { bytes: vec![0; PAGE_BYTES as usize].into(), data: 0, zero: 0 };
                change(self.shard(part.page).entry(part.page).or_insert_with(new), &part);
            }
            return;
        }
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        for shard in &self.shards {
            let mut shard = shard.lock().expect("no one panics with this lock");
            shard.retain(|number, page| {
                if pages.contains(number) {
                    let start = (number * PAGE_BYTES).max(offset);
                    let end = ((number + 1) * PAGE_BYTES).min(offset + len);
                    let from = (start - number * PAGE_BYTES) as usize;
                    change(page, &Part { page: *number, from, len: (end - start) as usize });
                }
                page.data | page.zero != 0
            });
        }
    }

    fn punch(&self, offset: u64, len: u64) {
        self.change(offset, len, false, |page, part| {
            page.bytes[part.from..part.from + part.len].fill(0);
            page.data &= !part.covered();
            page.zero &= !part.covered();
        });
    }
}

#[async_trait]
impl Export for MemoryExport {
    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Relaxed)
    }

    fn properties(&self) -> Properties {
        Properties {
            name: self.name.clone(),
            description: "a disk in memory".to_owned(),
            read_only: self.read_only,
            can_multi_conn: true,
            fast_zero: true,
        }
    }

    async fn read(&self, offset: u64, len: u64) -> Result<Vec<ReadPiece>> {
        let mut pieces = Vec::with_capacity(1);
        let mut gathered = BytesMut::new();
        for part in parts(offset, len) {
            let shard = self.shard(part.page);
            match shard.get(&part.page) {
                Some(page) if page.data & part.touched() != 0 => {
                    if gathered.is_empty() {
                        gathered.reserve((offset + len - part.page * PAGE_BYTES) as usize - part.from);
                    }
                    gathered.extend_from_slice(&page.bytes[part.from..part.from + part.len]);
                }
                _ => {
                    if !gathered.is_empty() {
                        pieces.push(ReadPiece::Data(gathered.split().freeze()));
                    }
                    pieces.push(ReadPiece::Zeroes(part.len as u64));
                }
            }
        }
        if !gathered.is_empty() {
            pieces.push(ReadPiece::Data(gathered.freeze()));
        }
        Ok(pieces)
    }

    async fn write(&self, offset: u64, data: Bytes, _fua: bool) -> Result<()> {
        let mut rest = &data[..];
        self.change(offset, data.len() as u64, true, |page, part| {
            let (now, later) = rest.split_at(part.len);
            page.bytes[part.from..part.from + part.len].copy_from_slice(now);
            page.data |= part.touched();
            page.zero &= !part.touched();
            rest = later;
        });
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn trim(&self, offset: u64, len: u64, _fua: bool) -> Result<()> {
        self.punch(offset, len);
        Ok(())
    }

    async fn write_zeroes(&self, offset: u64, len: u64, no_hole: bool, fast: bool, _fua: bool) -> Result<()> {
        if !no_hole {
            self.punch(offset, len);
            return Ok(());
        }
        if fast {
            let text = "allocating zeroes is as slow as writing them";
            return Err(cistern_nbd::ExportError::new(cistern_nbd::Errno::NotSup, text));
        }
        self.change(offset, len, true, |page, part| {
            page.bytes[part.from..part.from + part.len].fill(0);
            page.data &= !part.covered();
            page.zero |= part.touched() & !page.data;
        });
        Ok(())
    }

    async fn cache(&self, _offset: u64, _len: u64) -> Result<()> {
        Ok(())
    }

    async fn block_status(&self, offset: u64, len: u64, count_max: usize) -> Result<Vec<(u64, Allocation)>> {
        let mut used: Vec<u64> = Vec::new();
        let pages = offset / PAGE_BYTES..(offset + len).div_ceil(PAGE_BYTES);
        for shard in &self.shards {
            let shard = shard.lock().expect("no one panics with this lock");
            used.extend(shard.keys().filter(|page| pages.contains(page)));
        }
        used.sort_unstable();
        let mut ranges: Vec<(u64, Allocation)> = Vec::new();
        let mut at = offset;
        let mut add = |len: u64, kind: Allocation| match ranges.last_mut() {
            Some((before, same)) if *same == kind => *before += len,
            _ if len > 0 => ranges.push((len, kind)),
            _ => {}
        };
        for number in used {
            add((number * PAGE_BYTES).saturating_sub(at), Allocation::Hole);
            at = at.max(number * PAGE_BYTES);
            let end = ((number + 1) * PAGE_BYTES).min(offset + len);
            let shard = self.shard(number);
            while at < end {
                let bit = 1 << (at % PAGE_BYTES / SECTOR_BYTES);
                let kind = match shard.get(&number) {
                    Some(page) if page.data & bit != 0 => Allocation::Data,
                    Some(page) if page.zero & bit != 0 => Allocation::Zero,
                    _ => Allocation::Hole,
                };
                let len = (SECTOR_BYTES - at % SECTOR_BYTES).min(end - at);
                add(len, kind);
                at += len;
            }
        }
        add(offset + len - at, Allocation::Hole);
        ranges.truncate(count_max);
        Ok(ranges)
    }
}

/// One export, which is also the default one.
pub struct OneExport(pub Arc<MemoryExport>);

#[async_trait]
impl Exports for OneExport {
    fn list(&self) -> Vec<ExportEntry> {
        let properties = self.0.properties();
        vec![ExportEntry { name: properties.name, description: properties.description }]
    }

    async fn find(&self, name: &str) -> Option<Arc<dyn Export>> {
        (name.is_empty() || name == self.0.name).then(|| self.0.clone() as Arc<dyn Export>)
    }
}
