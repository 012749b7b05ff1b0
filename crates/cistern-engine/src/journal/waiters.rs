//! Who waits until what was appended is written, or synced. No IO, no lock of its own.

use std::collections::VecDeque;

use tokio::sync::oneshot;

use crate::error::Result;

/// The answer a waiter gets.
pub(super) type ReplySender = oneshot::Sender<Result<()>>;
pub(super) type ReplyReceiver = oneshot::Receiver<Result<()>>;

/// Those who wait for the writer.
#[derive(Default)]
pub(super) struct Waiters {
    /// Until everything before their positions is synced.
    syncs: Vec<(u64, ReplySender)>,
    /// Until it is written, synced or not; ascending.
    writes: VecDeque<(u64, ReplySender)>,
}

impl Waiters {
    pub fn is_empty(&self) -> bool {
        self.syncs.is_empty() && self.writes.is_empty()
    }

    pub fn wait_sync(&mut self, to: u64) -> ReplyReceiver {
        let (answer, receiver) = oneshot::channel();
        self.syncs.push((to, answer));
        receiver
    }

    pub fn wait_written(&mut self, to: u64) -> ReplyReceiver {
        let (answer, receiver) = oneshot::channel();
        let place = self.writes.partition_point(|(other, _)| *other <= to);
        self.writes.insert(place, (to, answer));
        receiver
    }

    /// Whether a sync of what is written before `to` would answer somebody.
    pub fn want_sync(&self, to: u64) -> bool {
        self.syncs.iter().any(|(wanted, _)| *wanted <= to)
    }

    /// Everything before `to` is synced: those who waited for it.
    pub fn synced(&mut self, to: u64) -> Vec<ReplySender> {
        self.syncs.extract_if(.., |(wanted, _)| *wanted <= to).map(|(_, answer)| answer).collect()
    }

    /// Everything before `to` is written: those who waited for it.
    pub fn written(&mut self, to: u64) -> Vec<ReplySender> {
        let done = self.writes.partition_point(|(wanted, _)| *wanted <= to);
        self.writes.drain(..done).map(|(_, answer)| answer).collect()
    }

    /// All of them: nothing will be written any more.
    pub fn drain(&mut self) -> impl Iterator<Item = ReplySender> {
        self.syncs.drain(..).chain(self.writes.drain(..)).map(|(_, answer)| answer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each is answered when it is so far, whatever others wait for, and who waits for a sync not by a write.
    #[test]
    fn each_is_answered_in_time() {
        let mut waiters = Waiters::default();
        let mut synced = [7, 3].map(|to| waiters.wait_sync(to));
        let mut written = [9, 2, 9].map(|to| waiters.wait_written(to));
        let is_answered = |receiver: &mut ReplyReceiver| receiver.try_recv().is_ok();
        let answer = |all: Vec<ReplySender>| all.into_iter().for_each(|one| one.send(Ok(())).expect("waits"));
        answer(waiters.written(8));
        assert_eq!(written.each_mut().map(is_answered), [false, true, false]);
        assert!(waiters.want_sync(3) && !waiters.want_sync(2));
        answer(waiters.synced(6));
        assert_eq!(synced.each_mut().map(is_answered), [false, true]);
        answer(waiters.written(9));
        assert_eq!(
            written.each_mut().map(is_answered),
            [true, false, true],
            "the second was answered before"
        );
        assert!(!waiters.is_empty());
        answer(waiters.drain().collect());
        assert!(waiters.is_empty() && is_answered(&mut synced[0]));
    }
}
