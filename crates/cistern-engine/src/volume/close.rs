//! The end of a volume's writing, and what it shows of itself.

use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::{
    Error,
    segment::Rollback,
    units::{BLOCK_BYTES, JournalPos},
    volume::{
        CloseReport, JournalWaits, Volume, VolumeStatus, live, space_status::space_status, write::Writer,
    },
};

/// How long the last checkpoint and the release may take beyond draining.
const FINISH_LIMIT: Duration = Duration::from_secs(30);

/// So long at least a close waits for room on the disk of the journal.
const NO_ROOM_LIMIT_MIN: Duration = Duration::from_secs(1);

/// How long what others than write-back have on its way may take.
const SETTLE_LIMIT: Duration = Duration::from_secs(30);

/// How long writing the hot set may take: nothing depends on it.
const HOT_SET_LIMIT: Duration = Duration::from_secs(5);

impl Volume {
    pub(super) async fn save_hot_set(&self) {
        if let Some(hot) = &self.hot {
            let _ = self.env.timeout(HOT_SET_LIMIT, hot.save_at_close()).await; // the next one will
        }
    }
}

impl Writer {
    /// Boxed, as opening is: compiled here once.
    pub fn close(&self, drain_limit: Duration) -> BoxFuture<'_, CloseReport> {
        Box::pin(self.end(drain_limit, None))
    }

    /// As [`close`](Self::close); whoever opens the volume next may go on from a snapshot.
    pub(super) async fn end(&self, drain_limit: Duration, rollback: Option<Rollback>) -> CloseReport {
        // Requests under way end with this or before it.
        self.core.refuse(Error::Closed);
        let mut flows = self.flows.lock().await;
        let Some(running) = flows.take() else {
            return self.report(None); // closed before
        };
        let end = self.core.journal.appended();
        // First of all durable here: whoever loses patience while this drains loses nothing.
        let synced = self.sync_here(end, drain_limit.max(NO_ROOM_LIMIT_MIN)).await;
        let draining = async {
            self.look(end).await?;
            self.drain_to(end).await
        };
        let drained = match self.env.timeout(drain_limit, draining).await {
            Some(result) => synced.and(result),
            None => Err(self.undrained(drain_limit)),
        };
        let stopped = running.stop(if drained.is_ok() { SETTLE_LIMIT } else { Duration::ZERO }).await;
        let journal_closed = self.core.journal.close().await;
        let size = self.size_bytes();
        // Everything is committed and the journal says so: the last checkpoint, then the release.
        let finished = match (drained.and(stopped), journal_closed) {
            (Ok(stopped), Ok(())) => {
                match self.env.timeout(FINISH_LIMIT, stopped.release(size, rollback)).await {
                    Some(result) => result,
                    None => Err(Error::Unreachable("the volume could not be released in time".into())),
                }
            }
            (drained, journal_closed) => journal_closed.and(drained.map(drop)),
        };
        if let Err(lost) = &finished
            && lost.is_lost()
        {
            self.core.stopped_by(lost.clone());
        }
        self.report(finished.err())
    }

    /// Makes everything before `end` durable, however long the disk takes; where it has no room, for `limit` at most.
    async fn sync_here(&self, end: JournalPos, limit: Duration) -> crate::Result<()> {
        loop {
            if let Some(synced) = self.env.timeout(limit, self.core.journal.sync(end)).await {
                return synced;
            }
            if let Some(shortage) = self.core.journal.shortage() {
                return Err(Error::Full(shortage.why));
            }
        }
    }

    /// Why not everything was stored in time, as far as the store says why.
    fn undrained(&self, drain_limit: Duration) -> Error {
        let late = format!("not drained within {} s", drain_limit.as_secs_f32());
        match self.log.trouble().filter(|_| self.log.is_refused() || self.log.is_shortage()) {
            Some((Error::Unreachable(why), _)) => Error::Unreachable(format!("{why} ({late})")),
            Some((Error::Refused(why), _)) => Error::Refused(format!("{why} ({late})")),
            Some((Error::NoRoom(why), _)) => Error::NoRoom(format!("{why} ({late})")),
            _ => Error::Unreachable(late),
        }
    }

    fn report(&self, failure: Option<Error>) -> CloseReport {
        let left = self.core.journal.dirty_blocks();
        let reason = failure.map(|e| e.to_string());
        CloseReport {
            clean: reason.is_none() && left == 0,
            journal_bytes_left: left * BLOCK_BYTES as u64,
            reason,
        }
    }
}

pub fn status(volume: &Volume) -> VolumeStatus {
    let opened = &volume.opened;
    let mut status = VolumeStatus {
        volume: volume.id,
        size_bytes: volume.size_bytes(),
        read_only: volume.is_read_only(),
        branch: volume.opened.branches.last().map(|branch| branch.id),
        mode: opened.mode,
        epoch: opened.epoch,
        seq: opened.seq,
        acknowledged: 0,
        durable: 0,
        uploaded: 0,
        committed: 0,
        dirty_bytes: 0,
        dirty_age_ms: 0,
        journal_bytes: 0,
        journal_used_bytes: 0,
        uploads_in_flight: 0,
        store_error: None,
        store_error_age_ms: None,
        store_refuses: false,
        journal_waits: None,
        latched: None,
        damage: volume.damage.report(volume.env.now()),
        partial_blocks: volume.map.may_have_partial(),
        write_back: None,
        space: None,
    };
    if let Some(writer) = &volume.writer {
        fill_in(&mut status, writer);
    }
    status
}

fn fill_in(status: &mut VolumeStatus, writer: &Writer) {
    let (journal, control, now) = (&writer.core.journal, &writer.control, writer.env.now());
    let dirty = journal.dirty();
    let trouble = writer.log.trouble();
    status.mode = *writer.mode.borrow();
    status.seq = control.committed_seq().map_or(status.seq, |seq| seq.0);
    status.acknowledged = dirty.end.0;
    status.durable = journal.durable().0;
    status.uploaded = dirty.start.0; // slots resolve in order, so the two frontiers move together
    status.committed = dirty.start.0;
    status.dirty_bytes = (dirty.end.0 - dirty.start.0) * BLOCK_BYTES as u64;
    status.dirty_age_ms =
        control.oldest_dirty().map_or(0, |then| now.saturating_sub(then).as_millis() as u64);
    status.journal_bytes = journal.capacity_blocks() * BLOCK_BYTES as u64;
    status.journal_used_bytes = status.dirty_bytes; // the journal keeps exactly what is dirty
    status.uploads_in_flight = control.in_flight();
    status.store_error_age_ms = trouble.as_ref().map(|(_, at)| now.saturating_sub(*at).as_millis() as u64);
    status.store_error = trouble.map(|(e, _)| e.to_string());
    // In a shortage of room what is dirty rests between tries.
    status.store_refuses = writer.log.is_refused() || status.dirty_bytes > 0 && writer.log.is_shortage();
    let shortage = journal.shortage();
    status.journal_waits = shortage.map(|shortage| JournalWaits {
        for_ms: now.saturating_sub(shortage.since).as_millis() as u64,
        why: shortage.why,
    });
    status.write_back = Some(live::write_back_status(writer, status.dirty_bytes));
    status.space = Some(space_status(writer));
    status.latched = writer.core.refusal().filter(|e| !matches!(e, Error::Closed)).map(|e| e.to_string());
}
