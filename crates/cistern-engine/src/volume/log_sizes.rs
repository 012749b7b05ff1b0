//! Which objects of the log are in the store and how long they are, of a volume and of those it was cloned from. What is not listed
//! is asked for by name: a listing may be old.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    Result,
    fetch::FrameReader,
    log::keys,
    store::{Pages, SharedStore},
    units::{FrameRef, Mapping, Place, Seq, VolumeId},
};

/// Those of one volume.
pub(super) struct LogSizes {
    store: SharedStore,
    /// How many were listed.
    pub listed: u64,
    bytes: tokio::sync::Mutex<BTreeMap<Seq, Option<u64>>>,
}

impl LogSizes {
    pub async fn list(store: &SharedStore) -> Result<LogSizes> {
        let mut bytes = BTreeMap::new();
        let mut pages = Pages::of(store.as_ref(), keys::LOG_PREFIX);
        while let Some(page) = pages.next_page().await? {
            bytes.extend(page.iter().filter_map(|l| Some((keys::parse_entry(&l.key)?, Some(l.bytes)))));
        }
        Ok(LogSizes { store: store.clone(), listed: bytes.len() as u64, bytes: bytes.into() })
    }

    /// Bytes of one; `None` if it is not there.
    async fn bytes(&self, seq: Seq) -> Result<Option<u64>> {
        let mut bytes = self.bytes.lock().await;
        if let Some(known) = bytes.get(&seq) {
            return Ok(*known);
        }
        let found = self.store.size(&keys::entry(seq)).await?;
        bytes.insert(seq, found);
        Ok(found)
    }

    /// What is wrong with the object that a frame is in; `None` if it is there and long enough.
    pub async fn fault(&self, frame: &FrameRef) -> Result<Option<String>> {
        let end = u64::from(frame.offset) + u64::from(frame.stored);
        let how = match self.bytes(frame.seq).await? {
            Some(bytes) if bytes >= end => return Ok(None),
            Some(_) => "truncated",
            None => "missing",
        };
        Ok(Some(format!("{} is {how}", keys::entry(frame.seq))))
    }
}

/// Those of the volumes that a clone comes from, each listed once, when something of it is looked for.
#[derive(Default)]
pub(super) struct OriginSizes(tokio::sync::Mutex<BTreeMap<VolumeId, Arc<LogSizes>>>);

impl OriginSizes {
    /// What is wrong with the objects that a foreign mapping's blocks are in, as for [`LogSizes::fault`].
    pub async fn fault(&self, frames: &FrameReader, mapping: &Mapping) -> Result<Option<String>> {
        let located = frames.locate_foreign(mapping).await?;
        let sizes = {
            let mut all = self.0.lock().await;
            match all.get(&located.volume) {
                Some(sizes) => sizes.clone(),
                None => {
                    let sizes = Arc::new(LogSizes::list(&located.store).await?);
                    all.insert(located.volume, sizes.clone());
                    sizes
                }
            }
        };
        for part in &located.parts {
            let Place::Frame(frame) = part.place else { continue };
            let Some(fault) = sizes.fault(&frame).await? else { continue };
            // It may have been moved since it was looked up: a read looks again.
            return match frames.read(std::slice::from_ref(mapping)).await {
                Ok(_) => Ok(None),
                Err(e) if e.is_damage() => Ok(Some(format!("{fault}, of volume {}", located.volume))),
                Err(e) => Err(e),
            };
        }
        Ok(None)
    }
}
