//! Makes the headers of groups: each names the chain before it, so each is made once, in the order of the history. The ring and the
//! staging file get the same bytes.
//!
//! Keeps a header until its group is in the ring. No IO.

use std::{collections::VecDeque, sync::Arc};

use super::{
    format::{GroupHeader, Stamp, chain_behind},
    group::Group,
};
use crate::{
    disk::AlignedBuf,
    units::{BLOCK_BYTES, Chain, JournalId},
};

/// The header of a group, and the chain behind that.
#[derive(Clone)]
pub(super) struct MadeHeader {
    pos: u64,
    pub block: Arc<AlignedBuf>,
    pub behind: Chain,
}

/// Makes headers for one opening of a journal.
pub(super) struct Scribe {
    journal: JournalId,
    incarnation: u64,
    /// Goes into every header, and so into the chain.
    opening: u64,
    /// Made, and not in the ring yet; the oldest first.
    made: VecDeque<MadeHeader>,
    /// The group that is next, and the chain before it.
    next: u64,
    chain: Chain,
}

impl Scribe {
    pub fn new(journal: JournalId, incarnation: u64, opening: u64, (next, chain): (u64, Chain)) -> Scribe {
        Scribe { journal, incarnation, opening, made: VecDeque::new(), next, chain }
    }

    /// The headers of consecutive groups, of which `durable` is known to be synced. Of those that are in the ring already there is none.
    pub fn headers(&mut self, groups: &[Arc<Group>], durable: u64) -> Vec<MadeHeader> {
        let mut headers = Vec::with_capacity(groups.len());
        for group in groups {
            let start = group.start().0;
            if start == self.next {
                self.make(group, durable);
            }
            assert!(start < self.next, "no group is passed over: the chain goes through all of them");
            let known = self.made.partition_point(|header| header.pos < start);
            headers.extend(self.made.get(known).filter(|header| header.pos == start).cloned());
        }
        headers
    }

    fn make(&mut self, group: &Group, durable: u64) {
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        let stamp = Stamp {
            journal: self.journal,
            incarnation: self.incarnation,
            pos: self.next,
            durable,
            chain: self.chain,
            opening: self.opening,
        };
        let records = group.records().iter().map(|placed| placed.record.clone());
        GroupHeader::encode(stamp, records, group.crcs(), &mut block);
        self.chain = chain_behind(&block);
        self.made.push_back(MadeHeader { pos: self.next, block: Arc::new(block), behind: self.chain });
        self.next = group.next().0;
    }

    /// Everything before `written` is in the ring.
    pub fn forget(&mut self, written: u64) {
        let gone = self.made.partition_point(|header| header.pos < written);
        self.made.drain(..gone);
    }
}
