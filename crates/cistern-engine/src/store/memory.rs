//! A store in memory, for tests and tools. It keeps every rule of [`Store`] but durability.

use std::{collections::BTreeMap, ops::Range};

use crate::rank::{Rank, Ranked};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    Listed, Put, Store, StoreError, StoreResult,
    key::{check_dir, check_key, check_prefix},
};

/// Objects in an ordered map.
#[derive(Debug)]
pub struct MemoryStore {
    objects: Ranked<BTreeMap<String, Bytes>>,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore { objects: Ranked::new(Rank::World, BTreeMap::new()) }
    }
}

impl MemoryStore {
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn with<T>(&self, act: impl FnOnce(&mut BTreeMap<String, Bytes>) -> T) -> T {
        act(&mut self.objects.lock())
    }

    fn find(&self, key: &str) -> StoreResult<Bytes> {
        check_key(key)?;
        self.with(|objects| objects.get(key).cloned()).ok_or_else(|| StoreError::NotFound(key.to_owned()))
    }
}

/// The part of an object of `len` bytes that a range covers.
pub(super) fn clip(range: &Range<u64>, len: u64) -> Range<u64> {
    let end = range.end.min(len);
    range.start.min(end)..end
}

#[async_trait]
impl Store for MemoryStore {
    async fn put(&self, key: &str, body: Bytes) -> StoreResult<()> {
        check_key(key)?;
        self.with(|objects| objects.insert(key.to_owned(), body));
        Ok(())
    }

    async fn put_if_absent(&self, key: &str, body: Bytes) -> StoreResult<Put> {
        check_key(key)?;
        Ok(self.with(|objects| match objects.contains_key(key) {
            true => Put::Exists,
            false => {
                objects.insert(key.to_owned(), body);
                Put::Created
            }
        }))
    }

    async fn get(&self, key: &str, bytes_max: u64) -> StoreResult<Bytes> {
        let body = self.find(key)?;
        match body.len() as u64 <= bytes_max {
            true => Ok(body),
            false => Err(too_long(key, body.len() as u64, bytes_max)),
        }
    }

    async fn get_range(&self, key: &str, range: Range<u64>) -> StoreResult<Bytes> {
        let body = self.find(key)?;
        let part = clip(&range, body.len() as u64);
        Ok(body.slice(part.start as usize..part.end as usize))
    }

    async fn size(&self, key: &str) -> StoreResult<Option<u64>> {
        check_key(key)?;
        Ok(self.with(|objects| objects.get(key).map(|body| body.len() as u64)))
    }

    async fn list_after(&self, prefix: &str, after: &str, count_max: usize) -> StoreResult<Vec<Listed>> {
        check_prefix(prefix)?;
        Ok(self.with(|objects| {
            let from = if after > prefix { after } else { prefix };
            objects
                .range(from.to_owned()..)
                .take_while(|(key, _)| key.starts_with(prefix))
                .filter(|(key, _)| key.as_str() > after)
                .take(count_max)
                .map(|(key, body)| Listed { key: key.clone(), bytes: body.len() as u64 })
                .collect()
        }))
    }

    async fn list_dirs(&self, prefix: &str) -> StoreResult<Vec<String>> {
        check_dir(prefix)?;
        let mut names: Vec<String> = self.with(|objects| {
            let below = objects.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
            below.filter_map(|(key, _)| Some(key[prefix.len()..].split_once('/')?.0.to_owned())).collect()
        });
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }

    async fn delete(&self, key: &str) -> StoreResult<()> {
        check_key(key)?;
        self.with(|objects| objects.remove(key));
        Ok(())
    }

    fn url(&self) -> String {
        "memory:".to_owned()
    }
}

/// An object is longer than its reader is prepared for.
pub(super) fn too_long(key: &str, bytes: u64, bytes_max: u64) -> StoreError {
    let why = format!("is {bytes} bytes long, at most {bytes_max} were expected");
    StoreError::Unusable { key: key.to_owned(), why }
}
