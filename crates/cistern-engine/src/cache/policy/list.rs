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

impl List {
    fn assert_invariant(&self) {
        debug_assert_eq!(self.head == NONE, self.len == 0, "only an empty queue has no head");
        debug_assert_eq!(self.tail == NONE, self.len == 0, "only an empty queue has no tail");
        debug_assert_eq!(self.head == self.tail, self.len <= 1, "both ends of a queue of one are the same");
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
        assert!(slots < NONE, "no slot has the number that stands for none");
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
        list.assert_invariant();
    }

    /// Takes a slot out of its queue.
    pub fn unlink(&mut self, list: &mut List, slot: u32) {
        let Neighbours { younger, older } = self.0[slot as usize];
        debug_assert_eq!(
            younger == NONE,
            list.head == slot,
            "the head is who has nobody younger in this queue"
        );
        debug_assert_eq!(older == NONE, list.tail == slot, "the tail is who has nobody older in this queue");
        match younger {
            NONE => list.head = older,
            younger => self.0[younger as usize].older = older,
        }
        match older {
            NONE => list.tail = younger,
            older => self.0[older as usize].younger = younger,
        }
        debug_assert!(list.len > 0, "who leaves a queue was counted in it");
        list.len -= 1;
        list.assert_invariant();
    }

    /// The slots of a queue, the youngest first.
    pub fn walk(&self, list: &List) -> impl Iterator<Item = u32> {
        let some = |slot: u32| (slot != NONE).then_some(slot);
        std::iter::successors(some(list.head), move |&slot| some(self.0[slot as usize].older))
    }
}
