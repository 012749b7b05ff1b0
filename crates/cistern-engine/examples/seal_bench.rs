//! What building and reading segments costs: CPU seconds per GiB of block data, on one core, by
//! frame size, compression, encryption and kind of data. Run with `--release`.
//!
//! Thread CPU time is measured, not wall time, so that a busy machine does not spoil the figures.

use cistern_engine::{
    codec::{Compression, MasterKey, ObjectKind, Sealer},
    env::{Env, real::RealEnv},
    segment::{JournalRange, SegmentBuilder, Slot, open_frame},
    units::{
        BLOCK_BYTES, Chain, Epoch, FRAME_BLOCKS_MAX, JournalId, JournalPos, Mark, Place,
        SEGMENT_DATA_BYTES_MAX, Salt, SealNonce, Seq, VolumeId,
    },
};

/// Bytes of the data set: beyond the caches of a core, as in real use.
const DATA_BYTES: usize = 64 << 20;
/// Each figure is the best of so many runs.
const RUNS: usize = 3;

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _inside = runtime.enter();
    let env = RealEnv::start();
    let key = MasterKey::generate(&env);
    println!(
        "{:<14} {:>7} {:<5} {:<7} {:>9} {:>9} {:>9} {:>7}",
        "data", "frame", "comp", "seal", "write", "", "read", "stored"
    );
    println!(
        "{:<14} {:>7} {:<5} {:<7} {:>9} {:>9} {:>9} {:>7}",
        "", "KiB", "", "", "s/GiB", "GiB/s", "s/GiB", "of raw"
    );
    for (name, data) in [("incompressible", noise()), ("text-like", text())] {
        for frame in [BLOCK_BYTES, FRAME_BLOCKS_MAX * BLOCK_BYTES] {
            for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
                for key in [None, Some(&key)] {
                    let runs = (0..RUNS).map(|_| measure(&env, &data, frame, compression, key));
                    let best = runs.reduce(|a, b| Run {
                        write: a.write.min(b.write),
                        read: a.read.min(b.read),
                        ..a
                    });
                    show(name, frame, compression, key.is_some(), &best.expect("RUNS is not 0"));
                }
            }
        }
    }
}

/// CPU seconds for the whole data set.
struct Run {
    write: f64,
    read: f64,
    stored: usize,
}

fn measure(env: &Env, data: &[u8], frame: usize, compression: Compression, key: Option<&MasterKey>) -> Run {
    let (volume, salt) = (VolumeId(env.uuid()), Salt(env.random_bytes()));
    let mark = |pos| Mark { pos: JournalPos(pos), chain: Chain(pos) };
    let range = JournalRange { journal: JournalId(env.uuid()), from: mark(0), to: mark(1) };
    let mut run = Run { write: 0.0, read: 0.0, stored: 0 };
    for (number, data) in data.chunks(SEGMENT_DATA_BYTES_MAX).enumerate() {
        let nonce = SealNonce(env.random_bytes());
        let seq = Seq(number as u64 + 1);
        let slot = Slot { volume, epoch: Epoch(1), seq, salt, nonce, checkpoint: None };
        let start = cpu_seconds();
        let mut builder = SegmentBuilder::written(key, slot, range, 1 << 40, compression);
        builder.reserve(data.len());
        for (i, raw) in data.chunks(frame).enumerate() {
            // A gap behind each, so that each becomes a frame of its own.
            builder.data((i * (FRAME_BLOCKS_MAX + 1)) as u64, raw);
        }
        let segment = builder.finish();
        run.write += cpu_seconds() - start;
        run.stored += segment.body.len();

        let start = cpu_seconds();
        let sealer = Sealer::new(key, volume, ObjectKind::Segment, salt, slot.seq.0);
        for mapping in &segment.mappings {
            let Place::Frame(frame) = mapping.place else { unreachable!("only data was added") };
            let stored = &segment.body[frame.offset as usize..][..frame.stored as usize];
            std::hint::black_box(open_frame(&sealer, &frame, stored).expect("sealed just above"));
        }
        run.read += cpu_seconds() - start;
    }
    run
}

fn show(name: &str, frame: usize, compression: Compression, encrypted: bool, run: &Run) {
    let gib = DATA_BYTES as f64 / (1u64 << 30) as f64;
    println!(
        "{name:<14} {:>7} {:<5} {:<7} {:>9.3} {:>9.2} {:>9.3} {:>7.4}",
        frame >> 10,
        format!("{compression:?}").to_lowercase(),
        if encrypted { "aes-gcm" } else { "crc32c" },
        run.write / gib,
        gib / run.write,
        run.read / gib,
        run.stored as f64 / DATA_BYTES as f64,
    );
}

fn cpu_seconds() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec for the duration of the call.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    assert_eq!(rc, 0);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

fn noise() -> Vec<u8> {
    let mut x = 0x9e37_79b9_7f4a_7c15_u64;
    let mut out = Vec::with_capacity(DATA_BYTES);
    while out.len() < DATA_BYTES {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        out.extend_from_slice(&x.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
    out
}

fn text() -> Vec<u8> {
    let words = ["block ", "frame ", "segment ", "journal ", "the ", "of ", "volume\n", "0x", "17, "];
    let mut out = Vec::with_capacity(DATA_BYTES + 8);
    for chunk in noise().chunks(2) {
        out.extend_from_slice(words[chunk[0] as usize % words.len()].as_bytes());
        if out.len() >= DATA_BYTES {
            break;
        }
    }
    out.truncate(DATA_BYTES);
    out
}
