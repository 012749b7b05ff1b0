//! Loads: what joins the volume at a place of the journal without lying in it.
//!
//! The journal has a token for each; what it stands for is here until its range is packed. A token whose content is gone stands for
//! nothing: the process that had it ended before, and nobody was told that it is durable.

use std::{collections::HashMap, sync::Arc};

use crate::{
    rank::{Rank, Ranked},
    stream::StreamRecord,
};

/// What a token stands for.
#[derive(Clone)]
pub struct LoadContent {
    pub token: u64,
    pub content: Arc<Vec<StreamRecord>>,
}

/// Contents by token.
pub struct Loads {
    waiting: Ranked<HashMap<u64, Arc<Vec<StreamRecord>>>>,
}

impl Default for Loads {
    fn default() -> Loads {
        Loads { waiting: Ranked::new(Rank::Flow, HashMap::new()) }
    }
}

impl Loads {
    /// Keeps content until its token is packed, which nothing appends before: extents ascend and do not overlap.
    pub fn put(&self, token: u64, content: Vec<StreamRecord>) {
        debug_assert!(content.is_sorted_by(|a, b| a.extent.end() <= b.extent.start), "ascending");
        self.put_back(LoadContent { token, content: Arc::new(content) });
    }

    /// Keeps it again: its range came back.
    pub(super) fn put_back(&self, load: LoadContent) {
        let LoadContent { token, content } = load;
        let before = self.waiting.lock().insert(token, content);
        assert!(before.is_none(), "tokens are drawn, and each is packed once");
    }

    /// Nobody appends the token.
    pub fn forget(&self, token: u64) {
        self.waiting.lock().remove(&token);
    }

    pub(super) fn has(&self, token: u64) -> bool {
        self.waiting.lock().contains_key(&token)
    }

    pub(super) fn take(&self, token: u64) -> Option<LoadContent> {
        self.waiting.lock().remove(&token).map(|content| LoadContent { token, content })
    }
}
