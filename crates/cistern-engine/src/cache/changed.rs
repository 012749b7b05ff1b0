//! Pages of the index file whose records are newer in memory, each once, the longest waiting first.

use std::collections::VecDeque;

use super::pages::{page_of, pages};

pub(super) struct Changed {
    queue: VecDeque<u32>,
    /// Whether a page is in the queue.
    waits: Vec<bool>,
}

impl Changed {
    pub fn new(slots: u32) -> Changed {
        Changed { queue: VecDeque::new(), waits: vec![false; pages(slots) as usize] }
    }

    pub fn mark(&mut self, slot: u32) {
        let page = page_of(slot);
        if !std::mem::replace(&mut self.waits[page as usize], true) {
            self.queue.push_back(page);
        }
        debug_assert!(self.queue.len() <= self.waits.len(), "a page waits once");
    }

    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Takes the page that waits longest.
    pub fn pop(&mut self) -> Option<u32> {
        let page = self.queue.pop_front()?;
        let waited = std::mem::replace(&mut self.waits[page as usize], false);
        debug_assert!(waited, "a page waits once");
        Some(page)
    }
}
