//! The one task that packs journal ranges, keeps the window of uploads full and commits in order.
//!
//! Invariants: `packed` is where the next range begins; ranges in flight are consecutive and end
//! there; only the front of the window is ever committed. A few segments are sealed ahead of their
//! turn to be uploaded ([`Uploads`]), so the link never waits for a seal. When a fenced writer's late object took a
//! slot, everything in flight is resolved and packed again at later slots.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;

use crate::{
    Error, Result,
    courtesy::Hurry,
    env::Task,
    journal::Record,
    log::Appended,
    segment::{self, JournalRange, SealedSegment},
    units::{BLOCK_BYTES, JournalPos, Mapping, Mark, Seq},
    writeback::{
        Commit, CommittedSegment, Control, Parts, Shown, Tuning, WriteBackOptions,
        bases::{Completed, complete},
        budget::Budget,
        pack::{Load, has_sectors, pack, payload_bytes},
        pi::Controller,
        points::{Point, Points, SegmentCounts},
        policy::{Decision, Progress, Situation, decide, hurry},
        uploads::Uploads,
    },
};

/// Segments sealed ahead of those on their way. Each of either holds its groups or its body:
/// 16 MiB or a little more.
const SEALED_AHEAD: usize = 1;
/// Segments after which the memory table becomes a run and a checkpoint is written, so that an
/// opening after a crash reads at most about this many footers.
const SEGMENTS_PER_CHECKPOINT: u64 = 48;
/// Records of one segment: each makes at most two mappings more than its own, far below what a footer holds.
const RECORDS_MAX: usize = segment::MAPPINGS_MAX / 4;
/// Mappings in the memory table at which it becomes a run earlier.
const TABLE_MAPPINGS_MAX: usize = 400_000;

pub struct Flow {
    parts: Parts,
    options: WriteBackOptions,
    control: Arc<Control>,
    commit: Arc<dyn Commit>,
    points: Points,
    packed: Mark,
    /// Size of the volume as of `packed`.
    size_bytes: u64,
    window: VecDeque<InFlight>,
    uploads: Arc<Uploads>,
    controller: Controller,
    budget: Budget,
    hurry: Hurry,
    since_checkpoint: u64,
}

struct InFlight {
    seq: Seq,
    range: JournalRange,
    size_before: u64,
    size_after: u64,
    task: Task<Result<(Appended, Outcome)>>,
}

struct Outcome {
    mappings: Vec<Mapping>,
    left_out: Vec<u64>,
    data_bytes: u64,
    body: Bytes,
}

impl Flow {
    pub fn new(
        parts: Parts,
        options: WriteBackOptions,
        control: Arc<Control>,
        commit: Arc<dyn Commit>,
        points: Points,
    ) -> Flow {
        let (packed, size_bytes) = (parts.walk.mark(), parts.walk.size_bytes);
        let since_checkpoint = parts.applied.len() as u64;
        let now = parts.env.now();
        Flow {
            window: VecDeque::new(),
            uploads: Arc::new(Uploads::new()),
            controller: Controller::new(&options.tuning.goal(), now),
            budget: Budget::new(now),
            hurry: parts.courtesy.hurry(),
            parts,
            options,
            control,
            commit,
            points,
            packed,
            size_bytes,
            since_checkpoint,
        }
    }

    /// Runs until something latches; being dropped is the ordinary end.
    pub async fn run(mut self) {
        loop {
            if let Err(e) = self.turn().await {
                // Requests are refused before anybody who waits for a commit hears why.
                self.commit.latch(e.clone());
                self.control.latch(&e);
                return;
            }
        }
    }

    async fn turn(&mut self) -> Result<()> {
        let tuning = self.control.tuning();
        let appended = self.parts.journal.appended();
        let (wanted, oldest) = self.control.wishes(self.packed.pos);
        let now = self.parts.env.now();
        let budget_wait = self.control_rate(&tuning, appended, now);
        self.set_hurry(&tuning, appended, now);
        let decision = decide(&Situation {
            unpacked_blocks: appended.0 - self.packed.pos.0,
            unpacked_age: oldest.map_or_else(Default::default, |then| now.saturating_sub(then)),
            wanted,
            window_open: self.window.len() < self.uploads.limit() + SEALED_AHEAD,
            paused: tuning.paused,
            budget_wait,
            dirty_age_max: tuning.dirty_age_max,
            segment_bytes: tuning.segment_bytes(),
        });
        if decision == Decision::Seal {
            return self.seal(appended, &tuning).await;
        }
        let clean = appended == self.control.committed();
        let pause = async {
            match decision {
                Decision::WaitFor(time) => self.parts.env.sleep(time.min(self.controller.next(now))).await,
                // The controller goes on while anything is dirty.
                _ if !clean => self.parts.env.sleep(self.controller.next(now)).await,
                _ => std::future::pending().await,
            }
        };
        let front = async {
            match self.window.front_mut() {
                Some(front) => (&mut front.task).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = front => self.resolve(outcome.ok_or(Error::Closed)?).await,
            () = self.control.woken() => Ok(()),
            () = pause => Ok(()),
        }
    }

    /// Lets the controller look, and gives the time until its rate allows another segment.
    fn control_rate(&mut self, tuning: &Tuning, appended: JournalPos, now: Duration) -> Duration {
        let segment_bytes = tuning.segment_bytes();
        let rate = self.controller.rate().rate_bytes_per_s;
        self.budget.fill(now, rate, segment_bytes);
        let dirty_bytes = (appended.0 - self.control.committed().0) * BLOCK_BYTES as u64;
        let follows = self.budget.keeps_up(segment_bytes) && !tuning.paused;
        self.controller.update(&tuning.goal(), now, dirty_bytes, follows);
        let rate = *self.controller.rate();
        let updated = self.controller.updated();
        self.control.show(Shown { rate, updated, uploads_max: self.uploads.limit() });
        match dirty_bytes >= tuning.goal().unlimited_bytes {
            true => Duration::ZERO,
            false => self.budget.wait(rate.rate_bytes_per_s),
        }
    }

    /// While there is room in the journal, uploads give way to those who sync on the same disk.
    fn set_hurry(&mut self, tuning: &Tuning, appended: JournalPos, now: Duration) {
        let committed = self.control.committed();
        let (wanted, oldest) = self.control.wishes(committed);
        self.hurry.set(hurry(&Progress {
            dirty_bytes: (appended.0 - committed.0) * BLOCK_BYTES as u64,
            room_bytes: tuning.room_bytes,
            oldest: oldest.map_or_else(Default::default, |then| now.saturating_sub(then)),
            dirty_age_max: tuning.dirty_age_max,
            wanted,
        }));
    }

    /// Packs the next range, up to a segment's worth, and sends it on its way.
    async fn seal(&mut self, appended: JournalPos, tuning: &Tuning) -> Result<()> {
        self.parts.journal.sync(appended).await?;
        let load = self.load(tuning.segment_bytes()).await?;
        let slot = self.parts.log.next_slot();
        let (range, size_after) = (load.range, load.size_bytes);
        let (env, log, compression) =
            (self.parts.env.clone(), self.parts.log.clone(), self.options.compression);
        let (control, uploads) = (self.control.clone(), self.uploads.clone());
        let bases = self.parts.bases.clone();
        let work = async move {
            let keys = log.keys().clone();
            let complete = match has_sectors(&load.groups) {
                true => complete(&env, &*bases, &log, load.groups.clone()).await,
                false => Completed::default(),
            };
            let left_out = complete.lost.clone();
            let sealed = env.compute(move || pack(&load, &complete, &slot, &keys, compression)).await;
            let SealedSegment { body, mappings, data_bytes } = sealed;
            let upload = uploads.turn().await;
            let began = env.now();
            let appended = log.append(&slot, body.clone()).await?;
            upload.ended(env.now().saturating_sub(began));
            Ok((appended, Outcome { mappings, left_out, data_bytes, body }))
        };
        let task = self.parts.env.spawn("segment", async move {
            control.unless_stopped(work).await.unwrap_or(Err(Error::Closed))
        });
        let (seq, size_before) = (slot.seq, self.size_bytes);
        self.window.push_back(InFlight { seq, range, size_before, size_after, task });
        self.size_bytes = size_after;
        self.budget.spend((range.to.pos.0 - range.from.pos.0) * BLOCK_BYTES as u64);
        self.set_packed(range.to);
        Ok(())
    }

    /// Reads the groups from `packed` on, until a segment is full or nothing durable is left.
    async fn load(&self, segment_bytes: u64) -> Result<Load> {
        let journal = &self.parts.journal;
        let (from, durable) = (self.packed, journal.durable());
        let (mut to, mut data_bytes, mut records) = (from.pos, 0, 0);
        let mut size_bytes = self.size_bytes;
        let mut groups = Vec::new();
        let mut loaded = VecDeque::new();
        while to < durable {
            if loaded.is_empty() {
                loaded.extend(journal.groups(to).await?);
            }
            let group = loaded.pop_front().expect("the group that was asked for comes first");
            let payload_bytes = payload_bytes(&group);
            let full = data_bytes + payload_bytes > segment_bytes as usize
                || records + group.records().len() > RECORDS_MAX;
            if !groups.is_empty() && full {
                break;
            }
            data_bytes += payload_bytes;
            records += group.records().len();
            for placed in group.records() {
                if let Record::Resize { size_bytes: new } = placed.record {
                    size_bytes = new;
                }
            }
            to = group.next();
            groups.push(group);
        }
        assert!(to > from.pos, "sealing was decided because something is unpacked, and it was synced");
        let to = journal.mark_at(to).expect("a group ends there that was written");
        let range = JournalRange { journal: journal.id(), from, to };
        Ok(Load { range, groups, size_bytes })
    }

    /// The front of the window has its answer.
    async fn resolve(&mut self, outcome: Result<(Appended, Outcome)>) -> Result<()> {
        let front = self.window.pop_front().expect("its task just answered");
        self.control.set_in_flight(self.window.len());
        let (appended, outcome) = outcome?;
        match appended {
            Appended::Taken => self.pack_again(front).await,
            Appended::Ours => self.commit(front, outcome).await,
        }
    }

    async fn commit(&mut self, front: InFlight, outcome: Outcome) -> Result<()> {
        let Mark { pos: to, chain } = front.range.to;
        let Outcome { mappings, left_out, data_bytes, body } = outcome;
        let (seq, from) = (front.seq, front.range.from.pos);
        let segment =
            CommittedSegment { seq, mappings: &mappings, left_out: &left_out, from, to, body: &body };
        self.commit.commit(segment);
        self.parts.journal.free(to);
        self.control.set_committed(front.seq, to, self.parts.journal.appended());
        tracing::debug!(seq = front.seq.0, data_bytes, "committed");
        self.since_checkpoint += 1;
        let size_bytes = front.size_after;
        let point = Point { covered: front.seq, journal_pos: to, journal_chain: chain, size_bytes };
        self.points.note(point, SegmentCounts { data_bytes, mappings: mappings.len() as u64 });
        let is_due = self.since_checkpoint >= SEGMENTS_PER_CHECKPOINT
            || self.parts.map.table_len() >= TABLE_MAPPINGS_MAX;
        if is_due && self.points.try_freeze(&self.parts.map, point) {
            self.since_checkpoint = 0;
        }
        self.points.room(|| self.parts.map.tables_len()).await;
        Ok(())
    }

    /// The front's slot was taken. Every later slot has to hold something before the log can go on
    /// behind them, so all are resolved; then packing starts over where the front began.
    async fn pack_again(&mut self, front: InFlight) -> Result<()> {
        tracing::warn!(
            seq = front.seq.0,
            "a fenced writer's late object took this seq: packing again behind it"
        );
        for later in self.window.drain(..) {
            later.task.await.ok_or(Error::Closed)??;
        }
        self.control.set_in_flight(0);
        self.size_bytes = front.size_before;
        self.set_packed(front.range.from);
        Ok(())
    }

    fn set_packed(&mut self, packed: Mark) {
        self.packed = packed;
        self.control.set_packed(packed.pos);
        self.control.set_in_flight(self.window.len());
    }
}
