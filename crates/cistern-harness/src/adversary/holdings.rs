//! What the server holds: objects, the switch, and the counts. Pure but for what it keeps.

use std::collections::HashMap;

use bytes::Bytes;

use super::{AdverseAnswer, Counts, Objects, Switch};

pub(super) struct Holdings {
    pub objects: Objects,
    pub switch: Option<Switch>,
    pub page_names: usize,
    pub quota_bytes: Option<u64>,
    pub version: Option<&'static str>,
    pub counts: Counts,
    /// Creations under way by name.
    creations: HashMap<String, Creation>,
}

/// Of one name, while requests for it are under way.
#[derive(Default)]
struct Creation {
    under_way: usize,
    /// Of those under way, one has created it.
    is_created: bool,
    is_race: bool,
}

impl Holdings {
    pub fn new(page_names: usize) -> Holdings {
        let (objects, counts, creations) = Default::default();
        Holdings { objects, switch: None, page_names, quota_bytes: None, version: None, counts, creations }
    }

    /// Counts a request; gives the answer that it is to get, if not the right one.
    pub fn asked(&mut self, kind: &'static str, name: &str) -> Option<AdverseAnswer> {
        *self.counts.requests.entry(kind).or_default() += 1;
        let switch = self.switch.as_mut()?;
        let is_meant = switch.answer.is_for(kind)
            && switch.method.is_none_or(|method| method == kind)
            && switch.name_part.as_ref().is_none_or(|part| name.contains(part.as_str()))
            && switch.left != Some(0);
        if !is_meant {
            return None;
        }
        if let Some(left) = &mut switch.left {
            *left -= 1;
        }
        self.counts.adverse += 1;
        Some(switch.answer)
    }

    pub fn stored_bytes(&self) -> u64 {
        self.objects.values().map(|body| body.len() as u64).sum()
    }

    /// Whether a PUT of so many bytes would exceed the quota.
    pub fn is_over_quota(&self, bytes: u64) -> bool {
        self.quota_bytes.is_some_and(|quota| self.stored_bytes() + bytes > quota)
    }

    /// A request that is to create an object has arrived. [`Holdings::create`] follows.
    pub fn creation_begins(&mut self, name: &str) {
        self.creations.entry(name.to_owned()).or_default().under_way += 1;
    }

    /// The request does not come to the creation.
    pub fn creation_fails(&mut self, name: &str) {
        if let Some(creation) = self.creations.get_mut(name) {
            creation.under_way -= 1;
            if creation.under_way == 0 {
                self.creations.remove(name);
            }
        }
    }

    /// Creates an object; gives whether its writer is to be told so.
    pub fn create(&mut self, name: &str, body: Bytes, answer: Option<AdverseAnswer>) -> bool {
        let is_there = self.objects.contains_key(name);
        let Some(creation) = self.creations.get_mut(name) else { return false };
        creation.under_way -= 1;
        let mut is_told = !is_there;
        match answer {
            Some(AdverseAnswer::Overwrites) => is_told = true,
            // It was under way when another one created the object: one of several at once.
            Some(AdverseAnswer::RaceBroken(races)) if creation.is_created && !creation.is_race => {
                creation.is_race = true;
                self.counts.races += 1;
                if self.counts.races.is_multiple_of(u64::from(races.max(1))) {
                    self.counts.races_broken += 1;
                    is_told = true;
                }
            }
            _ => {}
        }
        creation.is_created |= !is_there && creation.under_way > 0;
        if creation.under_way == 0 {
            self.creations.remove(name);
        }
        if is_told {
            self.objects.insert(name.to_owned(), body);
        }
        is_told
    }
}
