//! Publication: the one place where entries join the log.
//!
//! Whoever has something for the log *offers* it ([`Offerer`]); one task gives out the slots, keeps the window of
//! what is on its way, and commits in the order of the log ([`Commit`]).
//!
//! Invariants:
//! - **Slots are filled.** A slot is given out when an offer is taken, and from then on the publisher alone sees to it:
//!   whether the offerer still waits, stops or is dropped makes no difference. An offer that was not made has no slot.
//!   Only the end of the publisher (the writer stops, or latches) leaves slots open, and behind those nothing follows.
//! - **Slots chain.** Those in the window are consecutive, in the order of the offers, and the last one is the last that was
//!   given out.
//! - **Only the front is committed,** so what is committed has everything before it in the store.
//! - **A lost slot moves what is void.** Where a fenced writer's late object took a slot, readers step over it, and ranges of the journal that were
//!   stored behind it are void. So every later slot is resolved first (a log has no gaps). What readers count is committed where it
//!   lies, in the order of the log; the rest is made again at later slots, in the same order.
//! - **What finds no room comes back.** Its slot is filled with next to nothing, and its offerer hears why; so do ranges of the journal that were
//!   offered behind it, stored or not. What is small and makes room waits in its slot instead ([`Offer::waits_for_room`]).
//! - **A failure latches.** Whatever can not be resolved (a fence, a copy of this writer) ends publication for all
//!   offerers with the same error.
//!
//! Back-pressure: an offer needs a vacancy of the window ([`super::uploads`]). Vacancies go to who asked first: between two
//! entries of an offerer that always wants more lies at most one window of others'. All entries are put at the priority
//! of write-back, whoever offers them: what is committed in order must not wait for the less urgent.
//!
//! Never looks into an entry, and never decides what is worth offering.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll},
};

use tokio::sync::{mpsc, oneshot};

use crate::{
    Error, Result,
    env::{Env, Stop, StopOnDrop, Task},
    log::{
        append::{Appended, EntryBody, LogWriter, Slots},
        entry::{Commit, NewEntry, Offer, nothing},
        uploads::{Sealing, Uploads, VACANCIES_MAX, Vacancy, WindowSize},
    },
    segment::Rollback,
    segment::Slot,
    units::{Mark, Seq},
};

/// The publisher of an epoch, to whom it belongs.
pub struct Publisher {
    /// Until nothing is to be offered any more.
    offerer: Option<Offerer>,
    task: Task<Ended>,
    /// What the task gave, if it is over.
    ended: Option<Ended>,
    /// A volume that is dropped without being closed ends its publication too.
    stop_on_drop: StopOnDrop,
}

/// Where entries are offered. Each flow has its own.
#[derive(Clone)]
pub struct Offerer {
    shared: Arc<Shared>,
    offers: mpsc::Sender<Offered>,
}

struct Shared {
    uploads: Arc<Uploads>,
    commit: Arc<dyn Commit>,
    stop: Stop,
    latched: OnceLock<Error>,
}

/// An entry that was offered. As a future it gives the seq at which it was committed, or why it will not be: `NoRoom` where the store
/// has none, and others go on. Nothing changes when it is dropped.
pub struct Published {
    answer: oneshot::Receiver<Result<Seq>>,
    shared: Arc<Shared>,
}

struct Offered {
    offer: Arc<dyn Offer>,
    vacancy: Vacancy,
    answer: oneshot::Sender<Result<Seq>>,
}

impl Publisher {
    /// Publishes from the first slot of an epoch on, whose first range of the journal begins at `mark`; no more at once than `most` says. Tells
    /// `commit`.
    pub fn start(
        env: &Env,
        slots: Slots,
        mark: Mark,
        most: WindowSize,
        commit: Arc<dyn Commit>,
    ) -> Publisher {
        let (offers, queue) = mpsc::channel(VACANCIES_MAX);
        let (stop, uploads) = (Stop::new(), Uploads::new(most));
        let shared = Arc::new(Shared { uploads, commit, stop: stop.clone(), latched: OnceLock::new() });
        let mut publication = Publication {
            env: env.clone(),
            settled: Seq(slots.next().0 - 1),
            mark,
            refusal: None,
            slots,
            shared: shared.clone(),
            queue,
            window: VecDeque::new(),
        };
        let task = env.spawn("publisher", {
            let stop = stop.clone();
            async move {
                stop.unless_stopped(publication.run()).await;
                Ended { slots: publication.slots, settled: publication.settled }
            }
        });
        let offerer = Some(Offerer { shared, offers });
        Publisher { offerer, task, ended: None, stop_on_drop: StopOnDrop(stop) }
    }

    pub fn offerer(&self) -> Offerer {
        self.offerer.clone().expect("nobody offers once it settles")
    }

    /// Returns once everything that was offered is committed, or the writer has latched. Nothing can be offered after
    /// that. Only for who has stopped all offerers: one that is left keeps this waiting.
    pub async fn settle(&mut self) {
        self.offerer = None;
        if self.ended.is_none() {
            self.ended = (&mut self.task).await;
        }
    }

    /// Ends publication at once: what is on its way may be in the store or not, and is not committed.
    pub async fn stop(self) -> Result<Ended> {
        let Publisher { task, ended, stop_on_drop, .. } = self;
        drop(stop_on_drop);
        match ended {
            Some(ended) => Ok(ended),
            None => task.await.ok_or(Error::Closed),
        }
    }
}

impl Offerer {
    /// Waits for a vacancy, behind who asked before. Ask for one at a time, and only for what is at hand.
    pub fn vacancy(&self) -> impl Future<Output = Vacancy> + Send + Sync + 'static {
        let uploads = self.shared.uploads.clone();
        async move { uploads.vacancy().await }
    }

    /// Offers an entry. It comes behind everything that was offered before, by whomever.
    pub fn offer(&self, vacancy: Vacancy, offer: Arc<dyn Offer>) -> Published {
        let (send, answer) = oneshot::channel();
        let sent = self.offers.try_send(Offered { offer, vacancy, answer: send });
        assert!(
            !matches!(sent, Err(mpsc::error::TrySendError::Full(_))),
            "no more offers wait than there are vacancies"
        );
        Published { answer, shared: self.shared.clone() } // if nobody publishes any more, it says so
    }

    /// How many are uploaded at once.
    pub fn uploads_max(&self) -> usize {
        self.shared.uploads.limit()
    }

    /// An offerer can not go on, and the volume with it. The first cause stays.
    pub fn latch(&self, cause: Error) {
        self.shared.latch(cause);
    }
}

impl Shared {
    fn latch(&self, cause: Error) {
        if self.latched.set(cause.clone()).is_ok() {
            self.commit.latch(cause);
        }
        self.stop.stop();
    }
}

impl Future for Published {
    type Output = Result<Seq>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Seq>> {
        let answer = Pin::new(&mut self.answer).poll(context);
        let ended = |_| Err(self.shared.latched.get().cloned().unwrap_or(Error::Closed));
        answer.map(|answer| answer.unwrap_or_else(ended))
    }
}

/// What the publisher's task works on.
struct Publication {
    env: Env,
    slots: Slots,
    /// Up to here it is known of every slot what it holds, and what is ours is committed or void.
    settled: Seq,
    /// Where the last range of the journal ended that is committed.
    mark: Mark,
    /// Why something came back last.
    refusal: Option<Error>,
    shared: Arc<Shared>,
    queue: mpsc::Receiver<Offered>,
    window: VecDeque<InFlight>,
}

struct InFlight {
    seq: Seq,
    offered: Offered,
    upload: Task<Result<(Appended, NewEntry)>>,
}

/// What becomes of an entry.
enum Resolution {
    Committed(NewEntry),
    /// It is made again, for another slot.
    Again,
    ComesBack(Error),
}

impl Publication {
    /// Runs until something latches, or nobody can offer any more and all that was offered is committed.
    async fn run(&mut self) {
        if let Err(e) = self.publish().await {
            self.shared.latch(e);
        }
    }

    async fn publish(&mut self) -> Result<()> {
        let mut offers_ended = false;
        loop {
            if offers_ended && self.window.is_empty() {
                return Ok(());
            }
            let front = async {
                match self.window.front_mut() {
                    Some(front) => (&mut front.upload).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                outcome = front => self.resolve(outcome.ok_or_else(no_outcome)??).await?,
                offered = self.queue.recv(), if !offers_ended => match offered {
                    Some(offered) => self.take(offered),
                    None => offers_ended = true,
                },
            }
        }
    }

    /// Gives an offer its slot and sends it on its way.
    fn take(&mut self, mut offered: Offered) {
        let slot = self.slots.give_out();
        let seq = slot.seq;
        assert_eq!(
            seq.0,
            self.settled.0 + self.window.len() as u64 + 1,
            "slots chain: those in the window are all that are not settled"
        );
        let (env, log) = (self.env.clone(), self.slots.log().clone());
        let (offer, uploads) = (offered.offer.clone(), self.shared.uploads.clone());
        let stop = self.shared.stop.clone();
        let sealing = offered.vacancy.take_sealing();
        let upload = self.env.spawn("upload", async move {
            let waits_for_room = offer.waits_for_room();
            let entry = seal(&uploads, sealing, &slot, &*offer);
            let done = stop.unless_stopped(upload(&env, &log, &uploads, &slot, entry, waits_for_room)).await;
            done.unwrap_or(Err(Error::Closed))
        });
        self.window.push_back(InFlight { seq, offered, upload });
    }

    /// It is known what the slot of the front holds. Where that is not what was offered, or does not count, the rest of the window is resolved with it.
    async fn resolve(&mut self, front: (Appended, NewEntry)) -> Result<()> {
        let mut outcomes = vec![front];
        let is_well = |(appended, entry): &(Appended, NewEntry)| {
            matches!(appended, Appended::Ours) && is_next(entry, self.mark)
        };
        if !is_well(&outcomes[0]) {
            for later in self.window.iter_mut().skip(1) {
                outcomes.push((&mut later.upload).await.ok_or_else(no_outcome)??);
            }
        }
        let mut again = Vec::new();
        // Where the next range would begin, had every slot been ours.
        let mut expected = self.mark;
        for (appended, entry) in outcomes {
            let InFlight { seq, offered, .. } = self.window.pop_front().expect("its upload ended");
            match self.resolution(seq, appended, entry, &mut expected).await? {
                Resolution::Committed(entry) => {
                    self.commit(seq, &entry).await;
                    offered.end(Ok(seq));
                }
                Resolution::Again => again.push(offered),
                Resolution::ComesBack(refusal) => {
                    self.refusal = Some(refusal.clone());
                    offered.end(Err(refusal));
                }
            }
            self.settled = seq;
            self.shared.commit.room().await;
        }
        if !again.is_empty() {
            let count = again.len();
            tracing::warn!(
                count,
                "a fenced writer's late object took a slot: what was to go there, and counts behind it only, goes on"
            );
        }
        again.into_iter().for_each(|lost| self.take(lost));
        Ok(())
    }

    /// What becomes of an entry whose slot is resolved, as is everything before it. Afterwards the slot holds something.
    async fn resolution(
        &mut self,
        seq: Seq,
        appended: Appended,
        entry: NewEntry,
        expected: &mut Mark,
    ) -> Result<Resolution> {
        let is_stale = !is_next(&entry, *expected);
        let appended = match appended {
            Appended::NoRoom(refusal) => self.fill(seq, &entry, refusal).await?,
            appended => appended,
        };
        if let Appended::NoRoom(refusal) = appended {
            return Ok(Resolution::ComesBack(refusal));
        }
        if is_stale {
            let refusal = self.refusal.clone();
            return Ok(Resolution::ComesBack(
                refusal.expect("ranges are offered in order: one before it came back"),
            ));
        }
        if let NewEntry::Segment(segment) = &entry {
            *expected = segment.range.to;
        }
        Ok(match appended {
            Appended::Ours | Appended::Earlier if is_next(&entry, self.mark) => Resolution::Committed(entry),
            _ => Resolution::Again,
        })
    }

    /// Fills a slot whose content found no room: nothing comes past one that is open. It waits until there is room for that.
    async fn fill(&mut self, seq: Seq, refused: &NewEntry, refusal: Error) -> Result<Appended> {
        let log = self.slots.log().clone();
        let slot = log.slot(seq);
        let filling = nothing(log.keys(), &slot, self.settled);
        let content = EntryBody {
            body: filling.sealed().body.clone(),
            earlier: Some(&refused.sealed().body),
            waits_for_room: true,
        };
        Ok(match log.append(&slot, content).await? {
            Appended::Ours => {
                self.commit(seq, &filling).await;
                Appended::NoRoom(refusal)
            }
            Appended::Taken => Appended::NoRoom(refusal),
            appended => appended,
        })
    }

    async fn commit(&mut self, seq: Seq, entry: &NewEntry) {
        self.shared.commit.commit(seq, entry).await;
        if let NewEntry::Segment(segment) = entry {
            self.mark = segment.range.to;
        }
        tracing::debug!(seq = seq.0, bytes = entry.sealed().body.len(), "committed");
    }
}

impl Offered {
    fn end(self, answer: Result<Seq>) {
        let _ = self.answer.send(answer); // an offerer that no longer waits is fine
        drop(self.vacancy);
    }
}

/// Whether readers count an entry that lies behind everything up to a mark of the journal.
fn is_next(entry: &NewEntry, mark: Mark) -> bool {
    match entry {
        NewEntry::Segment(segment) => segment.range.from == mark,
        NewEntry::Moved(_) | NewEntry::Kept(_) => true,
    }
}

/// Of an upload that panicked.
fn no_outcome() -> Error {
    Error::Latched("a fault of cistern where an entry of the log is made".into())
}

/// Makes an entry for its slot. Where an earlier slot was lost, the right to do that has to come first.
async fn seal(
    uploads: &Uploads,
    sealing: Option<Sealing>,
    slot: &Slot,
    offer: &dyn Offer,
) -> Result<NewEntry> {
    let _sealing = match sealing {
        Some(sealing) => sealing,
        None => uploads.sealing().await,
    };
    offer.seal(slot).await
}

async fn upload(
    env: &Env,
    log: &LogWriter,
    uploads: &Uploads,
    slot: &Slot,
    entry: impl Future<Output = Result<NewEntry>>,
    waits_for_room: bool,
) -> Result<(Appended, NewEntry)> {
    let entry = entry.await?;
    let upload = uploads.turn().await;
    let began = env.now();
    let body = entry.sealed().body.clone();
    let appended = log.append(slot, EntryBody { body, earlier: None, waits_for_room }).await?;
    upload.ended(env.now().saturating_sub(began));
    Ok((appended, entry))
}

/// Publication at rest: nothing joins the volume any more, but its writer's farewell.
pub struct Ended {
    slots: Slots,
    settled: Seq,
}

impl Ended {
    /// Ends the epoch, once everything that was offered is committed.
    ///
    /// # Errors
    /// `Latched` where something was not, because another host took the volume over: no reader comes past a slot that is left open.
    pub async fn release(self, size_bytes: u64, rollback: Option<Rollback>) -> Result<()> {
        if self.settled.next() != self.slots.next() {
            return Err(Error::Latched(format!("entry {} of the log was not stored", self.settled.next())));
        }
        self.slots.release(size_bytes, rollback).await
    }
}
