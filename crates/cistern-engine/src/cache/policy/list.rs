//! Queues of slots: doubly linked lists whose links lie in one array, so that a slot is in one queue.

/// No slot.
pub(super) const NONE: u32 = u32::MAX;

/// The two ends and the length of a queue.
#[derive(Clone, Copy)]
pub(super) struct List {
    /// The youngest.
    pub head: u32,
    /// The oldest.
    pub tail: u32,
    pub len: u32,
}

impl Default for List {
    fn default() -> List {
        List { head: NONE, tail: NONE, len: 0 }
    }
}

#[derive(Clone, Copy)]
struct Neighbours {
    younger: u32,
    older: u32,
}

/// The links of all slots.
pub(super) struct Links(Vec<Neighbours>);

impl Links {
    pub fn new(slots: u32) -> Links {
        assert!(slots < NONE);
        Links(vec![Neighbours { younger: NONE, older: NONE }; slots as usize])
    }

    /// Makes a slot that is in no queue the youngest of one.
    pub fn push(&mut self, list: &mut List, slot: u32) {
        self.0[slot as usize] = Neighbours { younger: NONE, older: list.head };
        match list.head {
            NONE => list.tail = slot,
            head => self.0[head as usize].younger = slot,
        }
        list.head = slot;
        list.len += 1;
    }

    /// Takes a slot out of its queue.
    pub fn unlink(&mut self, list: &mut List, slot: u32) {
        let Neighbours { younger, older } = self.0[slot as usize];
        match younger {
            NONE => list.head = older,
            younger => self.0[younger as usize].older = older,
        }
        match older {
            NONE => list.tail = younger,
            older => self.0[older as usize].younger = younger,
        }
        debug_assert!(list.len > 0);
        list.len -= 1;
    }

    /// The slots of a queue, the youngest first.
    pub fn walk(&self, list: &List) -> impl Iterator<Item = u32> {
        let some = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(some(list.head), move |&slot| some(self.0[slot as usize].older))
    }
}
