//! How benchmarks open a volume.

use std::{sync::Arc, time::Duration};

use cistern_engine::{
    codec::KeySource,
    disk::Disk,
    env::Env,
    journal::Recoveries,
    log::GRACE,
    price::Tariff,
    space::{Bound, SPACE_BOUND},
    store::Stores,
    volume::{Mode, OpenOptions},
};

pub fn options(env: &Env, stores: Stores, state: Arc<dyn Disk>) -> OpenOptions {
    OpenOptions {
        env: env.clone(),
        stores,
        state,
        cache: None,
        key: KeySource::None,
        mode: Mode::Writeback,
        journal_bytes: 1 << 30,
        dirty_age_max: Duration::from_secs(30),
        dirty_bytes_max: 1 << 30,
        paused: false,
        memory_bytes: 256 << 20,
        recoveries: Recoveries::new(1),
        host: "bench".into(),
        take_over: false,
        grace: GRACE,
        grace_alone: GRACE,
        cleaning: Bound::Ratio(SPACE_BOUND).into(),
        tariff: Tariff::default(),
    }
}
