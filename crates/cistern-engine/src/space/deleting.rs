//! Who deletes what is not needed any more, and what is told where one of them cannot. Each has a note of its own: the success of one says
//! nothing about the others.

use super::Space;

/// Who deletes what is not needed any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deleting {
    /// What checkpoints have retired.
    Retired,
    /// Checkpoints before the last two.
    Checkpoints,
}

impl Space {
    /// Why something that is due is still there; `None` when nothing is that this flow deletes. What another one could not delete stays
    /// told. Whether that is new.
    pub fn delete_failed(&self, what: Deleting, why: Option<String>) -> bool {
        let mut state = self.state();
        match why {
            Some(why) => state.refused.insert(what, why).is_none(),
            None => state.refused.remove(&what).is_some(),
        }
    }
}
