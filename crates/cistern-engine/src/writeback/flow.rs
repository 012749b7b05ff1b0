//! The one task that decides when the next range of the journal is offered to the log, and how far it goes.
//!
//! Invariants: `packed` is where the next range begins; ranges on their way are consecutive and end there; they are
//! committed in order (the log's promise), which the journal hears from who commits ([`Control::commit`]). One that finds no room comes back with all
//! behind it; then packing goes on from its beginning.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{
    Error, Result,
    courtesy::Hurry,
    journal::Record,
    log::{Published, Refused, RoomFor, Vacancy},
    rank::{Rank, Ranked},
    segment::{self, JournalRange, OPERATIONS_MAX},
    snapshot::Operation,
    store::Promise,
    stream::StreamRecord,
    units::{BLOCK_BYTES, FRAME_BLOCKS_MAX, JournalPos, Mark, SEGMENT_DATA_BYTES_MAX, Seq},
    writeback::{
        Control, ControlShown, Tuning, WritebackParts,
        budget::Budget,
        loads::LoadContent,
        overtake::{self, Overtaking, Removals, Survey},
        pack::{Newest, payload_bytes},
        pi::Controller,
        policy::{CommitLag, Decision, PackSituation, decide, hurry},
        range::{Length, Range},
    },
};

/// Records of one segment: each makes at most two mappings more than its own, far below what a footer holds.
pub(super) const RECORDS_MAX: usize = segment::MAPPINGS_MAX / 4;

/// Every record makes two extents at most, a frame ends at every 16th block, and sectors of a block that lie apart from each
/// other are at most four.
const _: () = assert!(
    2 * RECORDS_MAX
        + 2 * SEGMENT_DATA_BYTES_MAX / (FRAME_BLOCKS_MAX * BLOCK_BYTES)
        + 4 * SEGMENT_DATA_BYTES_MAX / BLOCK_BYTES
        <= segment::MAPPINGS_MAX
);

/// What makes room and brings no more data than this needs none.
const SMALL_BYTES: u64 = 1 << 20;
/// When it is looked again whether the store has room.
const ROOM_PAUSE: Duration = Duration::from_secs(1);

pub struct Flow {
    parts: WritebackParts,
    control: Arc<Control>,
    /// While the store has no room for what is to be offered.
    refused: Option<Refused>,
    /// The room of what is offered next.
    room: Option<Promise>,
    /// Asked for while there is something to offer, and what that is.
    vacancy: Option<(Offering, AwaitedVacancy)>,
    /// What the journal has that would make room, while there is none.
    survey: Option<Survey>,
    /// Up to here there is room, because that makes more.
    allowed: JournalPos,
    /// Removals of snapshots before this went ahead.
    removed: JournalPos,
    packed: Mark,
    /// Size of the volume as of `packed`.
    size_bytes: u64,
    on_their_way: VecDeque<OnItsWay>,
    /// Something came back, and so does what was offered behind it: nothing is offered before that is here.
    is_returning: bool,
    controller: Controller,
    budget: Budget,
    hurry: Hurry,
}

type AwaitedVacancy = Pin<Box<dyn Future<Output = Vacancy> + Send + Sync>>;

/// What is to be offered.
enum Offering {
    /// The next range.
    Range,
    /// All up to a place that makes room, as one segment.
    Joined(Overtaking),
    /// Removals of snapshots, which lie before this.
    Removals(Vec<Operation>, JournalPos),
}

struct OnItsWay {
    /// Where packing stood before it, and the volume's size there.
    from: Mark,
    size_bytes: u64,
    to: JournalPos,
    data_bytes: u64,
    load: Option<LoadContent>,
    published: Published,
    _room: Option<Promise>,
}

impl Flow {
    pub fn new(parts: WritebackParts, control: Arc<Control>) -> Flow {
        let (packed, size_bytes) = (parts.packed, parts.size_bytes);
        let now = parts.env.now();
        Flow {
            refused: None,
            room: None,
            vacancy: None,
            survey: None,
            allowed: packed.pos,
            removed: packed.pos,
            on_their_way: VecDeque::new(),
            is_returning: false,
            controller: Controller::new(&control.tuning().goal(), now),
            budget: Budget::new(now),
            hurry: parts.courtesy.hurry(),
            parts,
            control,
            packed,
            size_bytes,
        }
    }

    /// Runs until something latches; being dropped is the ordinary end.
    pub async fn run(mut self) {
        loop {
            if let Err(e) = self.turn().await {
                // Requests are refused before anybody who waits for a commit hears why.
                self.parts.offerer.latch(e.clone());
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
        let budget_wait = self.control_rate(&tuning, now);
        self.set_hurry(&tuning, now);
        let is_dirty = appended > self.packed.pos;
        // Where nothing else goes, what makes room does not wait for company.
        let wanted = wanted || (is_dirty && self.parts.log.lacks_room(tuning.segment_bytes()).await);
        let decision = decide(&PackSituation {
            unpacked_blocks: appended.0 - self.packed.pos.0,
            unpacked_age: oldest.map_or_else(Default::default, |then| now.saturating_sub(then)),
            wanted,
            paused: self.control.is_paused(),
            budget_wait,
            dirty_age_max: tuning.dirty_age_max,
            segment_bytes: tuning.segment_bytes(),
        });
        match decision {
            Decision::Seal if self.vacancy.is_none() && !self.is_returning => {
                if let Some(next) = self.what_fits(&tuning, appended).await? {
                    self.vacancy = Some((next, Box::pin(self.parts.offerer.vacancy())))
                }
            }
            Decision::Seal => {}
            Decision::Wait | Decision::WaitFor(_) => {
                (self.vacancy, self.refused, self.room) = (None, None, None);
            }
        }
        let clean = self.parts.journal.dirty_blocks() == 0;
        let refused = self.refused.is_some();
        let pause = async {
            match decision {
                _ if refused => self.parts.env.sleep(ROOM_PAUSE.min(self.controller.next(now))).await,
                Decision::WaitFor(time) => self.parts.env.sleep(time.min(self.controller.next(now))).await,
                // The controller goes on while anything is dirty.
                _ if !clean => self.parts.env.sleep(self.controller.next(now)).await,
                _ => std::future::pending().await,
            }
        };
        let front = async {
            match self.on_their_way.front_mut() {
                Some(front) => (&mut front.published).await,
                None => std::future::pending().await,
            }
        };
        let vacancy = async {
            match &mut self.vacancy {
                Some((_, vacancy)) => vacancy.await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            answer = front => match answer {
                Ok(seq) => {
                    self.committed(seq);
                    Ok(())
                }
                Err(Error::NoRoom(_)) => {
                    self.came_back();
                    Ok(())
                }
                Err(e) => Err(e),
            },
            vacancy = vacancy => self.offer(vacancy, appended, &tuning).await,
            () = self.control.woken() => Ok(()),
            () = pause => Ok(()),
        }
    }

    /// What the store has room for: another segment beside what is on its way, or what makes room. Operations, which go alone, are small.
    async fn what_fits(&mut self, tuning: &Tuning, appended: JournalPos) -> Result<Option<Offering>> {
        let sent_bytes = self.on_their_way.iter().map(|sent| sent.data_bytes).sum();
        if !self.parts.log.may_send_beside(sent_bytes).await {
            return Ok(None); // one of them ends
        }
        let is_allowed = self.packed.pos < self.allowed;
        let segment_bytes = self.segment_bytes(tuning);
        self.room = match is_allowed {
            true => None,
            false => self.parts.log.take_room(RoomFor::Written, segment_bytes).await,
        };
        if is_allowed || self.room.is_some() {
            (self.refused, self.survey) = (None, None);
            return Ok(Some(Offering::Range));
        }
        self.refused.get_or_insert_with(|| self.parts.log.refused());
        self.parts.journal.sync(appended).await?;
        let survey = self.survey.take().filter(|survey| survey.begins() == self.packed.pos);
        let mut survey = survey.unwrap_or_else(|| Survey::from(self.packed.pos));
        survey.go_on(&self.parts.journal, tuning.segment_bytes()).await?;
        let (removals, joined, plain) = (survey.removals(self.removed), survey.joined(), survey.plain());
        self.survey = Some(survey);
        if let Some((removals, to)) = removals {
            return Ok(Some(Offering::Removals(removals, to)));
        }
        if let Some(joined) = joined
            && (joined.bytes <= SMALL_BYTES || self.has_room_to_discard(joined).await)
        {
            return Ok(Some(Offering::Joined(joined)));
        }
        if let Some(plain) = plain
            && self.has_room_to_discard(plain).await
        {
            self.allowed = plain.to;
            return Ok(Some(Offering::Range));
        }
        let next = self.parts.journal.groups(self.packed.pos).await?;
        Ok(next.first().is_some_and(|group| group.is_operation()).then_some(Offering::Range))
    }

    fn segment_bytes(&self, tuning: &Tuning) -> u64 {
        self.parts.log.segment_bytes(tuning.segment_bytes())
    }

    async fn has_room_to_discard(&mut self, overtaking: Overtaking) -> bool {
        self.room = self.parts.log.take_room(RoomFor::Discarding, overtaking.bytes).await;
        self.room.is_some()
    }

    /// Lets the controller look, and gives the time until its rate allows another segment.
    fn control_rate(&mut self, tuning: &Tuning, now: Duration) -> Duration {
        let segment_bytes = tuning.segment_bytes();
        let rate = self.controller.rate().rate_bytes_per_s;
        self.budget.fill(now, rate, segment_bytes, tuning.range_bytes());
        let dirty_bytes = self.parts.journal.dirty_blocks() * BLOCK_BYTES as u64;
        let follows = self.budget.keeps_up(segment_bytes) && !self.control.is_paused();
        self.controller.update(&tuning.goal(), now, dirty_bytes, follows);
        let rate = *self.controller.rate();
        let updated = self.controller.updated();
        self.control.show(ControlShown { rate, updated, uploads_max: self.parts.offerer.uploads_max() });
        match dirty_bytes >= tuning.goal().unlimited_bytes {
            true => Duration::ZERO,
            false => self.budget.wait(rate.rate_bytes_per_s),
        }
    }

    /// While there is room in the journal, uploads give way to those who sync on the same disk.
    fn set_hurry(&mut self, tuning: &Tuning, now: Duration) {
        let (wanted, oldest) = self.control.wishes(self.control.committed());
        self.hurry.set(hurry(&CommitLag {
            dirty_bytes: self.parts.journal.dirty_blocks() * BLOCK_BYTES as u64,
            room_bytes: tuning.room_bytes,
            oldest: oldest.map_or_else(Default::default, |then| now.saturating_sub(then)),
            dirty_age_max: tuning.dirty_age_max,
            wanted,
        }));
    }

    /// Offers what is next.
    async fn offer(&mut self, vacancy: Vacancy, appended: JournalPos, tuning: &Tuning) -> Result<()> {
        let (next, _) = self.vacancy.take().expect("it was asked for");
        self.parts.journal.sync(appended).await?;
        let range = match next {
            Offering::Range => self.load(tuning).await?,
            Offering::Joined(Overtaking { to, bytes }) => {
                tracing::debug!(to = to.0, bytes, "a discard goes to the store with all that lies before it");
                self.load_joined(to).await?
            }
            Offering::Removals(removals, to) => {
                self.offer_removals(vacancy, removals);
                self.removed = to;
                return Ok(());
            }
        };
        let JournalRange { from, to, .. } = range.range;
        assert_eq!(from, self.packed, "ranges are consecutive: what lies between two would be lost");
        assert!(to.pos <= self.parts.journal.durable(), "only what a crash leaves here is uploaded");
        let (load, data_bytes, size_bytes) = (range.load.clone(), range.data_bytes, self.size_bytes);
        self.size_bytes = range.size_bytes;
        self.packed = to;
        self.budget.spend(range.bytes());
        self.control.set_packed(to.pos); // before it may be committed
        let published = self.parts.offerer.offer(vacancy, Arc::new(range));
        let _room = self.room.take();
        let to = to.pos;
        self.on_their_way.push_back(OnItsWay { from, size_bytes, to, data_bytes, load, published, _room });
        self.assert_invariant();
        Ok(())
    }

    /// Offers removals of snapshots, ahead of what waits before them.
    fn offer_removals(&mut self, vacancy: Vacancy, removals: Vec<Operation>) {
        tracing::debug!(count = removals.len(), "removals of snapshots go ahead");
        let (packed, size_bytes) = (self.packed, self.size_bytes);
        let range = JournalRange { journal: self.parts.journal.id(), from: packed, to: packed };
        let (log, compression) = (self.parts.log.clone(), self.parts.compression);
        self.control.set_packed(packed.pos);
        let removals = Arc::new(Removals { log, compression, range, size_bytes, removals });
        let published = self.parts.offerer.offer(vacancy, removals);
        let (from, to, data_bytes, load, _room) = (packed, packed.pos, 0, None, None);
        self.on_their_way.push_back(OnItsWay { from, size_bytes, to, data_bytes, load, published, _room });
    }

    /// All from `packed` up to a place, whatever it takes in the journal.
    async fn load_joined(&self, to: JournalPos) -> Result<Range> {
        let journal = &self.parts.journal;
        let range = (self.packed.pos, to);
        let (newest, size_bytes) = overtake::load(journal, range, self.size_bytes).await?;
        let range = self.range(to, size_bytes, newest, Length::Any);
        Ok(Range { waits_for_room: range.data_bytes <= SMALL_BYTES, ..range })
    }

    fn range(&self, to: JournalPos, size_bytes: u64, newest: Newest, length: Length) -> Range {
        let journal = &self.parts.journal;
        let to = journal.mark_at(to).expect("a group ends there that was written");
        Range {
            env: self.parts.env.clone(),
            journal: journal.clone(),
            bases: self.parts.bases.clone(),
            log: self.parts.log.clone(),
            compression: self.parts.compression,
            range: JournalRange { journal: journal.id(), from: self.packed, to },
            size_bytes,
            load: None,
            length,
            data_bytes: newest.data_bytes(),
            waits_for_room: newest.data_bytes() == 0,
            loaded: Ranked::new(Rank::Flow, Some(newest)),
        }
    }

    /// Reads the groups from `packed` on, until what they leave of each other fills a segment or nothing durable is left; behind an
    /// operation nothing but operations, so that what a snapshot shows is what its segment ends with.
    async fn load(&self, tuning: &Tuning) -> Result<Range> {
        let journal = &self.parts.journal;
        let (from, durable) = (self.packed, journal.durable());
        let (mut to, mut read_bytes, mut records, mut operations) = (from.pos, 0, 0, 0);
        let mut size_bytes = self.size_bytes;
        let segment_bytes = self.segment_bytes(tuning);
        let (mut newest, mut taken) = (Newest::new(journal), None);
        let mut loaded = VecDeque::new();
        while to < durable {
            if loaded.is_empty() {
                loaded.extend(journal.groups(to).await?);
            }
            let group = loaded.pop_front().expect("the group that was asked for comes first");
            let payload_bytes = payload_bytes(&group) as u64;
            let full = newest.data_bytes() + payload_bytes > segment_bytes
                || read_bytes + payload_bytes > tuning.range_bytes()
                || records + group.records().len() > RECORDS_MAX;
            let is_operation = group.is_operation();
            let load = group.load().filter(|token| self.parts.loads.has(*token));
            let ends = operations == OPERATIONS_MAX || (operations > 0 && !is_operation) || load.is_some();
            if !newest.is_empty() && (full || ends) {
                break;
            }
            operations += usize::from(is_operation);
            read_bytes += payload_bytes;
            records += group.records().len();
            for placed in group.records() {
                if let Record::Resize { size_bytes: new } = placed.record {
                    size_bytes = new;
                }
            }
            to = group.next();
            newest.push(group);
            taken = load.and_then(|token| self.parts.loads.take(token));
            if taken.is_some() {
                break;
            }
        }
        assert!(to > from.pos, "sealing was decided because something is unpacked, and it was synced");
        debug_assert!(
            newest.data_bytes() <= tuning.segment_bytes(),
            "a segment takes what a range leaves of itself"
        );
        debug_assert!(operations <= OPERATIONS_MAX, "a segment carries all operations of its range");
        let range = self.range(to, size_bytes, newest, Length::Bounded);
        let loaded = |load: &LoadContent| load.content.iter().map(StreamRecord::data_bytes).sum::<u64>();
        let data_bytes = range.data_bytes + taken.as_ref().map_or(0, loaded);
        Ok(Range { load: taken, data_bytes, waits_for_room: data_bytes == 0, ..range })
    }

    /// The front is committed.
    fn committed(&mut self, seq: Seq) {
        let OnItsWay { to, .. } = self.on_their_way.pop_front().expect("it was just heard of");
        assert!(to <= self.control.committed(), "the journal has heard of seq {seq} before");
        self.is_returning &= !self.on_their_way.is_empty();
        self.assert_invariant();
    }

    /// The front found no room, or what was before it did not: it is packed again, from where the first of these began.
    fn came_back(&mut self) {
        let OnItsWay { from, size_bytes, load, .. } =
            self.on_their_way.pop_front().expect("it was just heard of");
        if let Some(load) = load {
            self.parts.loads.put_back(load);
        }
        if !self.is_returning {
            debug_assert_eq!(from.pos, self.control.committed(), "what was before it is committed");
            (self.packed, self.size_bytes) = (from, size_bytes);
            (self.vacancy, self.room, self.survey) = (None, None, None);
            (self.allowed, self.removed) = (from.pos, from.pos);
        }
        self.control.came_back(self.packed.pos);
        self.is_returning = !self.on_their_way.is_empty();
    }

    fn assert_invariant(&self) {
        debug_assert!(
            self.on_their_way.iter().is_sorted_by(|a, b| a.to <= b.to),
            "ranges on their way are in the order of the journal"
        );
        debug_assert!(
            self.is_returning || self.on_their_way.back().is_none_or(|last| last.to == self.packed.pos),
            "the next range begins where the last one ends"
        );
        debug_assert!(self.control.committed() <= self.packed.pos, "only what was packed is committed");
        debug_assert!(
            self.control.in_flight() <= self.on_their_way.len() as u64,
            "what is not committed is waited for"
        );
    }
}
