//! Deterministic traces, and the reader of recorded ones.

use std::collections::BTreeMap;

/// Recorded objects have smaller numbers; a multiple of it is added when they are written again.
const OBJECTS: u64 = 1 << 16;

/// Whether a chunk was asked for, or came by because it was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Written,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub object: u64,
    pub chunk: u32,
    pub kind: Kind,
}

impl Access {
    pub fn key(&self) -> u64 {
        debug_assert!(self.object < 1 << 32);
        self.object << 32 | u64::from(self.chunk)
    }
}

fn read(object: u64, chunk: u64) -> Access {
    Access { object, chunk: chunk as u32, kind: Kind::Read }
}

/// A generator whose stream is fixed (splitmix64).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ z >> 31
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Draws numbers below `n`, small ones often (exponent `s`).
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(n: u64, s: f64) -> Zipf {
        let mut sum = 0.0;
        Zipf(
            (1..=n)
                .map(|rank| {
                    sum += (rank as f64).powf(-s);
                    sum
                })
                .collect(),
        )
    }

    fn draw(&self, chance: &mut Chance) -> u64 {
        let at = chance.unit() * self.0.last().copied().unwrap_or(1.0);
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

/// Objects of the parts of a trace.
const METADATA: u64 = 1;
const DATA: u64 = 2;
const BULK: u64 = 3;

/// Walks of a tree that fills a third of the cache, and between them passes over a volume four times as
/// large as the cache.
pub fn metadata_and_scan(size: u64, seed: u64) -> Vec<Access> {
    let mut chance = Chance::new(seed);
    let zipf = Zipf::new(size / 3, 0.7);
    let mut out = Vec::new();
    for round in 0..5 {
        out.extend((0..size).map(|_| read(METADATA, zipf.draw(&mut chance))));
        out.extend((0..size * 4).map(|chunk| read(DATA + round * 10, chunk)));
    }
    out.extend((0..size).map(|_| read(METADATA, zipf.draw(&mut chance))));
    out
}

/// A tree that is walked once before a pass over the volume, ten times the cache, and walked again after.
pub fn one_walk_and_scan(size: u64, _seed: u64) -> Vec<Access> {
    let walk = || (0..size / 3).map(|chunk| read(METADATA, chunk));
    walk().chain((0..size * 10).map(|chunk| read(DATA, chunk))).chain(walk()).chain(walk()).collect()
}

/// What databases and virtual machines do, with a backup that goes over everything now and then.
pub fn zipf_and_scan(size: u64, seed: u64) -> Vec<Access> {
    let mut chance = Chance::new(seed);
    let zipf = Zipf::new(size * 10, 0.9);
    let mut out = Vec::new();
    for round in 0..4 {
        out.extend((0..size * 6).map(|_| read(DATA, zipf.draw(&mut chance))));
        out.extend((0..size * 2).map(|chunk| read(BULK + round * 10, chunk)));
    }
    out
}

/// Zipf alone.
pub fn zipf(size: u64, seed: u64) -> Vec<Access> {
    let mut chance = Chance::new(seed);
    let zipf = Zipf::new(size * 10, 0.9);
    (0..size * 30).map(|_| read(DATA, zipf.draw(&mut chance))).collect()
}

/// The same chunks over and over, more than the cache holds, in tenths of its size.
pub fn looping(size: u64, tenths: u64) -> Vec<Access> {
    let around = size * tenths / 10;
    (0..around * 12).map(|n| read(DATA, n % around)).collect()
}

/// Zipf whose hot chunks are others after every three times the cache's size.
pub fn shifting_zipf(size: u64, seed: u64) -> Vec<Access> {
    let mut chance = Chance::new(seed);
    let zipf = Zipf::new(size * 10, 0.9);
    (0..size * 30)
        .map(|n| {
            let shift = n / (size * 3) * (size * 3 / 2);
            read(DATA, (zipf.draw(&mut chance) + shift) % (size * 10))
        })
        .collect()
}

/// A window that moves on: what was read lately is read again, and then never more.
pub fn recent(size: u64, seed: u64) -> Vec<Access> {
    let mut chance = Chance::new(seed);
    (0..size * 20)
        .map(|n| {
            let back = chance.below(size * 4 / 5);
            read(DATA, (n / 2 + size).saturating_sub(back))
        })
        .collect()
}

/// Metadata that is read between writes of ten times the cache.
pub fn written_bulk(size: u64, seed: u64) -> Vec<Access> {
    let mut chance = Chance::new(seed);
    let walk: Vec<Access> = (0..size / 2).map(|chunk| read(METADATA, chunk)).collect();
    let mut out = walk.clone();
    for round in 0..4 {
        let bulk = (0..size * 10 / 4).map(|chunk| Access {
            object: BULK + round,
            chunk: chunk as u32,
            kind: Kind::Written,
        });
        for access in bulk {
            out.push(access);
            if chance.below(20) == 0 {
                out.push(walk[chance.below(walk.len() as u64) as usize]);
            }
        }
        out.extend(&walk);
    }
    out
}

/// What is written is read soon after, as by whoever checks or copies on what came in.
pub fn written_and_read(size: u64, seed: u64) -> Vec<Access> {
    let mut chance = Chance::new(seed);
    let mut out = Vec::new();
    for n in 0..size * 10 {
        out.push(Access { object: DATA, chunk: n as u32, kind: Kind::Written });
        let back = chance.below(size * 3 / 4);
        out.push(read(DATA, n.saturating_sub(back)));
    }
    out
}

/// All of them, for a cache of `size` chunks.
pub fn all(size: u64) -> Vec<(&'static str, Vec<Access>)> {
    vec![
        ("metadata + scan", metadata_and_scan(size, 1)),
        ("one walk, scan of 10x, walk", one_walk_and_scan(size, 2)),
        ("zipf", zipf(size, 3)),
        ("zipf + scan", zipf_and_scan(size, 4)),
        ("zipf, hot set shifts", shifting_zipf(size, 5)),
        ("loop of 1.1x", looping(size, 11)),
        ("loop of 2x", looping(size, 20)),
        ("recency", recent(size, 6)),
        ("write-back of 10x + metadata", written_bulk(size, 7)),
        ("written, read soon", written_and_read(size, 8)),
    ]
}

/// A recorded trace: a line `object chunk` for each read of a chunk, `object chunk w` for each write.
/// Numbers are decimal; empty lines and lines that begin with `#` are skipped. Objects never change: what
/// is written again is another object from then on.
pub fn parse(text: &str) -> Result<Vec<Access>, String> {
    let mut versions: BTreeMap<(u64, u32), u64> = BTreeMap::new();
    let lines = text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(n, line)| {
            let wrong = || format!("line {}: expected \"object chunk [w]\", found {line:?}", n + 1);
            let words: Vec<&str> = line.split_ascii_whitespace().collect();
            let (object, chunk, kind) = match words[..] {
                [object, chunk] => (object, chunk, Kind::Read),
                [object, chunk, "w"] => (object, chunk, Kind::Written),
                _ => return Err(wrong()),
            };
            let object: u64 = object.parse().ok().filter(|&object| object < OBJECTS).ok_or_else(wrong)?;
            let chunk = chunk.parse().map_err(|_| wrong())?;
            let version = versions.entry((object, chunk)).or_default();
            *version += u64::from(kind == Kind::Written);
            Ok(Access { object: object + *version * OBJECTS, chunk, kind })
        })
        .collect()
}
