//! How a reader walks the log: a pure state machine from objects to what counts.
//!
//! The rules (docs/design/engine.md): a claim of a greater epoch starts that epoch at its journal
//! mark; a release ends the epoch it names; a segment counts if its epoch is the current one,
//! not yet released, and its journal range begins at the very mark where the last one ended; or, if it carries what
//! was moved, always: what it moves counts block by block. Everything else is void and stepped over. The caller feeds objects in seq order without gaps.

use crate::{
    log::checkpoint::{Checkpoint, EpochStart, LastClaim},
    segment::{Content, Entry, EntryHead},
    units::{Chain, Epoch, JournalId, JournalPos, Mark, Salt, Seq},
};

/// Where a walk stands.
#[derive(Clone, Debug)]
pub struct Walk {
    /// The newest object seen, counting or void.
    pub seq: Seq,
    /// The epoch in force; 0 before the first claim.
    pub epoch: Epoch,
    /// The greatest epoch seen on any object, void ones included.
    pub epoch_max: Epoch,
    /// The journal the epoch in force writes from, and up to where it is committed.
    pub journal: JournalId,
    pub journal_pos: JournalPos,
    pub journal_chain: Chain,
    /// Marks of journals that the walk came through, oldest first: what leads there is in the store.
    pub passed: Vec<(JournalId, Mark)>,
    pub size_bytes: u64,
    pub claim: Option<LastClaim>,
    /// Every epoch so far and its salt, ascending by first seq.
    pub epochs: Vec<EpochStart>,
}

/// What an object was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Claimed,
    Released,
    Applied,
    Void,
}

impl Walk {
    /// The state of a volume that was created and never claimed.
    pub fn at_creation(size_bytes: u64) -> Walk {
        Walk {
            seq: Seq(0),
            epoch: Epoch(0),
            epoch_max: Epoch(0),
            journal: JournalId(uuid::Uuid::nil()),
            journal_pos: JournalPos(0),
            journal_chain: Chain(0),
            passed: Vec::new(),
            size_bytes,
            claim: None,
            epochs: Vec::new(),
        }
    }

    /// The state that a checkpoint stands for.
    pub fn at_checkpoint(c: &Checkpoint) -> Walk {
        Walk {
            seq: c.covered,
            epoch: c.epoch,
            epoch_max: c.epoch,
            journal: c.journal,
            journal_pos: c.journal_pos,
            journal_chain: c.journal_chain,
            passed: vec![(c.journal, Mark { pos: c.journal_pos, chain: c.journal_chain })],
            size_bytes: c.size_bytes,
            claim: Some(c.claim.clone()),
            epochs: c.epochs.clone(),
        }
    }

    /// Whether a writer holds the volume: claimed and not released.
    pub fn is_held(&self) -> bool {
        self.claim.as_ref().is_some_and(|c| !c.released)
    }

    /// Up to where the journal of the epoch in force is committed.
    pub fn mark(&self) -> Mark {
        Mark { pos: self.journal_pos, chain: self.journal_chain }
    }

    fn set_mark(&mut self, mark: Mark) {
        (self.journal_pos, self.journal_chain) = (mark.pos, mark.chain);
        self.passed.push((self.journal, mark));
    }

    /// The salt of the epoch in force; `None` before the first claim.
    pub fn salt(&self) -> Option<Salt> {
        self.salt_of(self.seq)
    }

    /// The epoch in force at `seq`, which the walk came by; `None` before the first claim.
    pub fn epoch_at(&self, seq: Seq) -> Option<Epoch> {
        epoch_start(&self.epochs, seq).map(|start| start.epoch)
    }

    /// The salt under which a counting object at `seq` was sealed.
    pub fn salt_of(&self, seq: Seq) -> Option<Salt> {
        salt_of(&self.epochs, seq)
    }

    /// Whether an object in a slot that the walk came by has to stay there for ever, though it may not count. All do but
    /// what is left in emptied slots, and segments of the epoch in force there (docs/design/space.md, "Orphans").
    pub fn is_fence(&self, head: &EntryHead, entry: &Entry) -> bool {
        let in_force = (self.epoch_at(head.seq), self.salt_of(head.seq));
        match entry {
            Entry::Segment(_) => in_force != (Some(head.epoch), Some(head.salt)),
            Entry::Claim(_) | Entry::Release(_) => true,
            Entry::Emptied => false,
        }
    }

    /// Takes the next slot, which holds an object of another volume.
    pub fn step_over(&mut self, seq: Seq) {
        assert_eq!(seq, self.seq.next(), "a walk has no gaps");
        self.seq = seq;
    }

    /// Takes the next object.
    pub fn step(&mut self, head: &EntryHead, entry: &Entry) -> Step {
        assert_eq!(head.seq, self.seq.next(), "a walk has no gaps");
        self.seq = head.seq;
        self.epoch_max = self.epoch_max.max(head.epoch);
        debug_assert!(self.epoch <= self.epoch_max, "the epoch in force was met");
        match entry {
            Entry::Claim(claim) if head.epoch > self.epoch => {
                self.epoch = head.epoch;
                self.journal = claim.journal;
                self.set_mark(claim.start);
                self.claim = Some(LastClaim {
                    seq: head.seq,
                    host: claim.host.clone(),
                    wall_ms: claim.wall_ms,
                    released: false,
                });
                self.epochs.push(EpochStart { first: head.seq, epoch: head.epoch, salt: head.salt });
                Step::Claimed
            }
            Entry::Release(_) if head.epoch == self.epoch && self.is_held() => {
                if let Some(claim) = &mut self.claim {
                    claim.released = true;
                }
                Step::Released
            }
            Entry::Segment(footer) if head.epoch == self.epoch && self.is_held() => match footer.content {
                Content::Written { range, size_bytes }
                    if range.journal == self.journal && range.from == self.mark() =>
                {
                    self.set_mark(range.to);
                    self.size_bytes = size_bytes;
                    Step::Applied
                }
                Content::Written { .. } => Step::Void,
                Content::Moved { .. } | Content::Kept { .. } => Step::Applied,
            },
            _ => Step::Void,
        }
    }
}

/// The salt of the epoch in force at `seq`; `None` before the first claim.
pub fn salt_of(epochs: &[EpochStart], seq: Seq) -> Option<Salt> {
    epoch_start(epochs, seq).map(|start| start.salt)
}

fn epoch_start(epochs: &[EpochStart], seq: Seq) -> Option<&EpochStart> {
    let after = epochs.partition_point(|e| e.first <= seq);
    after.checked_sub(1).map(|i| &epochs[i])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        segment::{Claim, EntryKind, Footer, JournalRange, Release},
        units::{SealNonce, VolumeId},
    };

    const JOURNAL: JournalId = JournalId(uuid::Uuid::from_u128(7));

    fn head(kind: EntryKind, epoch: u64, seq: u64) -> EntryHead {
        let volume = VolumeId(uuid::Uuid::nil());
        let nonce = SealNonce([seq as u8; 8]);
        let salt = Salt([epoch as u8; 16]);
        EntryHead { kind, volume, epoch: Epoch(epoch), seq: Seq(seq), salt, nonce, checkpoint: None }
    }

    /// The mark at a position of a journal of which no copy goes on.
    fn mark(pos: u64) -> Mark {
        Mark { pos: JournalPos(pos), chain: Chain(pos) }
    }

    fn claim(walk: &mut Walk, epoch: u64, start: u64) -> Step {
        let head = head(EntryKind::Claim, epoch, walk.seq.0 + 1);
        let claim = Claim {
            host: format!("host{epoch}"),
            wall_ms: epoch,
            journal: JOURNAL,
            start: mark(start),
            size_bytes: walk.size_bytes,
        };
        walk.step(&head, &Entry::Claim(claim))
    }

    fn segment(walk: &mut Walk, epoch: u64, from: u64, to: u64) -> Step {
        segment_between(walk, epoch, mark(from), mark(to))
    }

    fn segment_between(walk: &mut Walk, epoch: u64, from: Mark, to: Mark) -> Step {
        let head = head(EntryKind::Segment, epoch, walk.seq.0 + 1);
        let range = JournalRange { journal: JOURNAL, from, to };
        let content = Content::Written { range, size_bytes: walk.size_bytes };
        walk.step(&head, &Entry::Segment(Footer { content, operations: Vec::new(), mappings: Vec::new() }))
    }

    fn moved(walk: &mut Walk, epoch: u64) -> Step {
        let head = head(EntryKind::Segment, epoch, walk.seq.0 + 1);
        let content = Content::Moved { base: walk.seq };
        walk.step(&head, &Entry::Segment(Footer { content, operations: Vec::new(), mappings: Vec::new() }))
    }

    fn release(walk: &mut Walk, epoch: u64) -> Step {
        let head = head(EntryKind::Release, epoch, walk.seq.0 + 1);
        walk.step(&head, &Entry::Release(Release { wall_ms: 0, size_bytes: walk.size_bytes, rollback: None }))
    }

    /// Claims and releases stay where they are, and so does whatever another writer than the one in force left, or somebody
    /// with the same epoch and another salt. A segment of the one in force stands in nobody's way, whether it counted or not.
    #[test]
    fn only_segments_of_the_epoch_in_force_are_no_fences() {
        let mut walk = Walk::at_creation(1 << 30);
        claim(&mut walk, 1, 0);
        segment(&mut walk, 1, 0, 10);
        claim(&mut walk, 2, 10);
        segment(&mut walk, 2, 10, 20);
        let segment = Entry::Segment(Footer {
            content: Content::Moved { base: Seq(0) },
            operations: Vec::new(),
            mappings: Vec::new(),
        });
        let of = |epoch, seq| head(EntryKind::Segment, epoch, seq);
        assert!(!walk.is_fence(&of(1, 2), &segment) && !walk.is_fence(&of(2, 4), &segment));
        assert!(walk.is_fence(&of(2, 2), &segment) && walk.is_fence(&of(1, 4), &segment));
        assert!(walk.is_fence(&EntryHead { salt: Salt([9; 16]), ..of(2, 4) }, &segment));
        let release = Entry::Release(Release { wall_ms: 0, size_bytes: 1 << 30, rollback: None });
        assert!(walk.is_fence(&head(EntryKind::Release, 1, 2), &release));
    }

    /// The ordinary life of a volume: claimed, written, released, claimed again.
    #[test]
    fn an_ordinary_life_counts_wholly() {
        let mut walk = Walk::at_creation(1 << 30);
        assert!(!walk.is_held());
        assert_eq!(claim(&mut walk, 1, 0), Step::Claimed);
        assert!(walk.is_held());
        assert_eq!(segment(&mut walk, 1, 0, 10), Step::Applied);
        assert_eq!(segment(&mut walk, 1, 10, 15), Step::Applied);
        assert_eq!(release(&mut walk, 1), Step::Released);
        assert!(!walk.is_held());
        assert_eq!(claim(&mut walk, 2, 15), Step::Claimed);
        assert_eq!(walk.salt_of(Seq(3)), Some(Salt([1; 16])));
        assert_eq!(walk.salt_of(Seq(5)), Some(Salt([2; 16])));
        assert_eq!(walk.salt_of(Seq(0)), None);
    }

    /// A fenced writer's late object in the middle of the window voids what the new writer had stored
    /// behind it, until the missing range is stored again further on.
    #[test]
    fn a_late_object_in_the_window_voids_what_follows_until_the_chain_closes() {
        let mut walk = Walk::at_creation(1 << 30);
        claim(&mut walk, 1, 0);
        claim(&mut walk, 2, 0);
        assert_eq!(segment(&mut walk, 2, 0, 10), Step::Applied);
        assert_eq!(segment(&mut walk, 1, 0, 10), Step::Void, "the fenced writer's");
        assert_eq!(segment(&mut walk, 2, 20, 30), Step::Void, "what should precede it is missing");
        assert_eq!(walk.journal_pos, JournalPos(10));
        assert_eq!(segment(&mut walk, 2, 10, 20), Step::Applied);
        assert_eq!(segment(&mut walk, 2, 20, 30), Step::Applied);
        assert_eq!(walk.journal_pos, JournalPos(30));
    }

    /// Two clones of a writer share epoch, journal and positions. Of two segments of the same length only what continues the
    /// history of the one that came first counts.
    #[test]
    fn the_segments_of_clones_are_not_joined() {
        let mut walk = Walk::at_creation(1 << 30);
        claim(&mut walk, 1, 0);
        let others = |pos| Mark { pos: JournalPos(pos), chain: Chain(1000 + pos) };
        assert_eq!(segment(&mut walk, 1, 0, 10), Step::Applied);
        assert_eq!(segment_between(&mut walk, 1, others(10), others(20)), Step::Void);
        assert_eq!(segment(&mut walk, 1, 10, 20), Step::Applied);
        assert_eq!(walk.mark(), mark(20));
        let passed: Vec<_> = walk.passed.iter().map(|(_, mark)| mark.pos.0).collect();
        assert_eq!(passed, [0, 10, 20]);
    }

    /// The marks of a clone: those up to position 3 are common to all.
    fn mark_of(clone: u64, pos: u64) -> Mark {
        Mark { pos: JournalPos(pos), chain: Chain(if pos <= 3 { pos } else { 100 * (1 + clone) + pos }) }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        /// However the segments of two clones come to lie in the log, late, twice and mixed: what counts is the beginning of
        /// one side's history.
        #[test]
        fn what_counts_of_clones_is_one_history(
            objects in proptest::collection::vec((0..2_u64, 0..10_u64, 1..4_u64), 0..60),
        ) {
            let mut walk = Walk::at_creation(1 << 30);
            claim(&mut walk, 1, 0);
            for (clone, from, len) in objects {
                segment_between(&mut walk, 1, mark_of(clone, from), mark_of(clone, from + len));
            }
            let marks: Vec<Mark> = walk.passed.iter().map(|(_, mark)| *mark).collect();
            let is_of = |clone: u64| marks.iter().all(|m| *m == mark_of(clone, m.pos.0));
            prop_assert!(is_of(0) || is_of(1), "{marks:?}");
            prop_assert!(marks.windows(2).all(|pair| pair[0].pos < pair[1].pos));
            prop_assert_eq!(marks.last(), Some(&walk.mark()));
        }
    }

    /// A host crashes and goes on with its journal; then a segment of its life before lands, late, and its
    /// range is the very one that comes next. It is void: nobody waits for it any more, and its epoch's salt
    /// is not the one that readers of this seq use.
    #[test]
    fn a_late_segment_that_fits_the_chain_is_void() {
        let mut walk = Walk::at_creation(1 << 30);
        claim(&mut walk, 1, 0);
        assert_eq!(segment(&mut walk, 1, 0, 10), Step::Applied);
        assert_eq!(claim(&mut walk, 2, 10), Step::Claimed);
        assert_eq!(segment(&mut walk, 1, 10, 20), Step::Void);
        assert_eq!(walk.journal_pos, JournalPos(10));
        assert_eq!(segment(&mut walk, 2, 10, 20), Step::Applied);
    }

    /// What was moved counts in its epoch, whether the journal's chain is closed before it or not, and leaves the
    /// chain as it is; a fenced mover's is void.
    #[test]
    fn what_was_moved_counts_by_its_epoch_alone() {
        let mut walk = Walk::at_creation(1 << 30);
        claim(&mut walk, 1, 0);
        assert_eq!(moved(&mut walk, 1), Step::Applied);
        claim(&mut walk, 2, 0);
        assert_eq!(segment(&mut walk, 2, 0, 10), Step::Applied);
        assert_eq!(segment(&mut walk, 1, 10, 20), Step::Void);
        assert_eq!(moved(&mut walk, 1), Step::Void);
        assert_eq!(segment(&mut walk, 2, 20, 30), Step::Void, "what should precede it is missing");
        assert_eq!(moved(&mut walk, 2), Step::Applied);
        assert_eq!(walk.mark(), mark(10));
        release(&mut walk, 2);
        assert_eq!(moved(&mut walk, 2), Step::Void);
    }

    /// Neither a late claim of an older epoch nor anything of a released epoch counts.
    #[test]
    fn what_is_over_stays_over() {
        let mut walk = Walk::at_creation(1 << 30);
        claim(&mut walk, 2, 0);
        assert_eq!(claim(&mut walk, 1, 0), Step::Void);
        assert_eq!(release(&mut walk, 1), Step::Void);
        assert!(walk.is_held());
        assert_eq!(release(&mut walk, 2), Step::Released);
        assert_eq!(segment(&mut walk, 2, 0, 10), Step::Void);
        assert_eq!(walk.epoch_max, Epoch(2));
    }
}
