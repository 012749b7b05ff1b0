//! Who waits until what was appended is written, or synced. No IO, no lock of its own.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::oneshot;

use crate::error::Result;

/// The answer a waiter gets.
pub(super) type ReplySender = oneshot::Sender<Result<()>>;
pub(super) type ReplyReceiver = oneshot::Receiver<Result<()>>;

/// Lets whatever else its task has to do go first, once.
#[derive(Default)]
pub(super) struct GiveWay {
    gave: bool,
}

impl Future for GiveWay {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.gave, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Those who wait for the writer.
#[derive(Default)]
pub(super) struct Waiters {
    /// Until everything before their positions is synced.
    syncs: Vec<(u64, ReplySender)>,
    /// Until it is written, synced or not; ascending.
    writes: VecDeque<(u64, ReplySender)>,
    /// Until what is being staged is, and it with it; ascending. The writer need not hurry for them.
    stagings: VecDeque<(u64, ReplySender)>,
}

/// Takes those whose turn has come.
fn drain_to(waiting: &mut VecDeque<(u64, ReplySender)>, to: u64) -> impl Iterator<Item = ReplySender> {
    let done = waiting.partition_point(|(wanted, _)| *wanted <= to);
    waiting.drain(..done).map(|(_, answer)| answer)
}

fn insert(waiting: &mut VecDeque<(u64, ReplySender)>, to: u64, answer: ReplySender) {
    let place = waiting.partition_point(|(other, _)| *other <= to);
    waiting.insert(place, (to, answer));
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
        insert(&mut self.writes, to, answer);
        receiver
    }

    pub fn wait_staged(&mut self, to: u64) -> ReplyReceiver {
        let (answer, receiver) = oneshot::channel();
        insert(&mut self.stagings, to, answer);
        receiver
    }

    /// Whether somebody waits for more to be staged.
    pub fn want_staging(&self) -> bool {
        !self.stagings.is_empty()
    }

    /// Nothing more is staged: who waits for that waits for the ring.
    pub fn give_up_staging(&mut self) {
        for (to, answer) in std::mem::take(&mut self.stagings) {
            insert(&mut self.writes, to, answer);
        }
    }

    /// Whether a sync of what is written before `to` would answer somebody.
    pub fn want_sync(&self, to: u64) -> bool {
        self.syncs.iter().any(|(wanted, _)| *wanted <= to)
    }

    /// Everything before `to` is synced: those who waited for it.
    pub fn synced(&mut self, to: u64) -> Vec<ReplySender> {
        self.syncs.extract_if(.., |(wanted, _)| *wanted <= to).map(|(_, answer)| answer).collect()
    }

    /// Everything before `to` survives the process, because it is written or staged: those who waited for it.
    pub fn outlived(&mut self, to: u64) -> Vec<ReplySender> {
        let Waiters { writes, stagings, .. } = self;
        drain_to(writes, to).chain(drain_to(stagings, to)).collect()
    }

    /// All of them: nothing will be written any more.
    pub fn drain(&mut self) -> impl Iterator<Item = ReplySender> {
        let Waiters { syncs, writes, stagings } = self;
        syncs.drain(..).chain(writes.drain(..)).chain(stagings.drain(..)).map(|(_, answer)| answer)
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
        answer(waiters.outlived(8));
        assert_eq!(written.each_mut().map(is_answered), [false, true, false]);
        assert!(waiters.want_sync(3) && !waiters.want_sync(2));
        answer(waiters.synced(6));
        assert_eq!(synced.each_mut().map(is_answered), [false, true]);
        answer(waiters.outlived(9));
        assert_eq!(
            written.each_mut().map(is_answered),
            [true, false, true],
            "the second was answered before"
        );
        let mut staged = [4, 5].map(|to| waiters.wait_staged(to));
        answer(waiters.outlived(4));
        waiters.give_up_staging();
        assert!(!waiters.want_staging());
        answer(waiters.outlived(5));
        assert_eq!(staged.each_mut().map(is_answered), [true, true]);
        assert!(!waiters.is_empty());
        answer(waiters.drain().collect());
        assert!(waiters.is_empty() && is_answered(&mut synced[0]));
    }
}
