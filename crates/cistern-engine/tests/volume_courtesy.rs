//! Which flushes bulk writes give way to. Alone in its process: all who use a file system share what is known of it.

mod volume_support;

use std::sync::Arc;

use cistern_engine::{codec::KeySource, env::real::RealEnv, store::MemoryStore};
use volume_support::{Host, MIB, close, noise};

/// A flush that has to wait for the disk is given way to. One that finds everything durable takes no time and says nothing of
/// the disk: taken for a quick one, it would make every other look slow.
#[tokio::test(flavor = "multi_thread")]
async fn flushes_that_wait_for_nothing_are_in_nobodys_way() {
    let env = RealEnv::start();
    let host = Host::with_volume(env.clone(), Arc::new(MemoryStore::new()), 64 * MIB, KeySource::None).await;
    let courtesy = host.state().courtesy();
    let volume = host.open().await;
    for _ in 0..10 {
        volume.flush().await.expect("nothing to do");
    }
    assert!(!courtesy.is_due(env.now()));
    volume.write(0, noise(1, 4096), false).await.expect("written");
    volume.flush().await.expect("durable");
    assert!(courtesy.is_due(env.now()));
    close(volume).await;
}
