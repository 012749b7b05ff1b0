//! Which groups stay in memory once they are written: the newest, as many as what write-back holds leaves room for.

use super::JournalState;

/// What is held leaves this part of the memory to recent groups, however much it is.
const RECENT_PART: usize = 4;

impl JournalState {
    /// Forgets written groups until the memory suffices.
    pub(super) fn evict(&mut self) {
        let least = self.memory_bytes_max / RECENT_PART;
        let most = self.memory_bytes_max.saturating_sub(self.held_bytes).max(least);
        while self.memory_bytes > most {
            match self.memory.front() {
                Some(oldest) if oldest.next().0 <= self.at.written => {}
                _ => break,
            }
            let oldest = self.memory.pop_front().expect("it was just looked at");
            self.memory_bytes -= oldest.memory_bytes();
        }
        debug_assert!(self.queued_bytes <= self.memory_bytes, "what is not written is in memory");
    }

    /// Write-back has so many bytes of groups more in its hands. The oldest groups, which those usually are, make way.
    pub fn hold(&mut self, bytes: usize) {
        self.held_bytes += bytes;
        self.evict();
    }

    /// It has let go of so many.
    pub fn let_go(&mut self, bytes: usize) {
        debug_assert!(bytes <= self.held_bytes, "what is let go was held");
        self.held_bytes -= bytes;
    }
}
