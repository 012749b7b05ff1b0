//! Volumes side by side in one store, and clones of them.

use std::sync::Arc;

use async_trait::async_trait;
use cistern_engine::{
    Result,
    codec::KeySource,
    env::Env,
    store::{OtherPlaces, SharedStore, Stores, Within},
    volume::{Volume, begin_clone, finish_clone},
};

use super::Host;

#[derive(Clone, Debug)]
pub struct Bucket(pub SharedStore);

impl Bucket {
    pub fn place(&self, name: &str) -> SharedStore {
        Arc::new(Within::new(self.0.clone(), name))
    }

    /// A host on which the volume of that name is used.
    pub fn host(&self, env: Env, name: &str, key: &KeySource) -> Host {
        let mut host = Host::of_volume(env, self.place(name), key.clone());
        host.others = Some(Arc::new(self.clone()));
        host
    }

    pub async fn with_volume(&self, env: &Env, name: &str, size_bytes: u64, key: &KeySource) -> Host {
        Host::with_volume(env.clone(), self.place(name), size_bytes, key.clone()).await;
        self.host(env.clone(), name, key)
    }

    /// Makes a clone of a snapshot of a volume that is open. Gives a host for it.
    pub async fn clone_of(
        &self,
        (from, way): (&Host, &str),
        volume: &Volume,
        snapshot: &str,
        (env, name): (Env, &str),
    ) -> Host {
        let (to, key) = (self.place(name), &from.key);
        let clone = begin_clone(&from.env, &from.store, &to, key, way).await.expect("begun");
        volume.keep_for_clone(snapshot, clone, &format!("../{name}")).await.expect("kept");
        finish_clone(&from.env, &from.store, &to, key, "here").await.expect("finished");
        self.host(env, name, key)
    }
}

#[async_trait]
impl OtherPlaces for Bucket {
    async fn stores(&self, way: &str) -> Result<Stores> {
        let name = way.strip_prefix("../").expect("all lie side by side");
        Ok(Stores::same(self.place(name)).with_others(Arc::new(self.clone())))
    }
}
