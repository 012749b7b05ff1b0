//! Rolling back a volume that a daemon serves: closed, and opened again as another one for whoever connects then.

use std::sync::{Arc, atomic::Ordering};

use cistern_engine::volume::admin;

use crate::{
    control::NamedSnapshot,
    daemon::{Daemon, Served},
    failure::{Failure, Kind, Outcome},
};

impl Daemon {
    /// Rolls a volume back to a snapshot, and makes a snapshot `leave` of what it leaves. Whoever is connected gets errors from then on.
    pub async fn roll_back(self: Arc<Self>, snapshot: NamedSnapshot, leave: String, force: bool) -> Outcome {
        let NamedSnapshot { volume, name } = snapshot;
        // A task of its own: whoever hangs up leaves no volume closed behind.
        let done = tokio::spawn(async move { self.roll_back_to(&volume, &name, &leave, force).await });
        done.await.expect("it does not panic and is never cancelled")
    }

    async fn roll_back_to(&self, volume: &str, to: &str, leave: &str, force: bool) -> Outcome {
        let _one_at_a_time = self.rolling_back.lock().await;
        if self.stopping.load(Ordering::Relaxed) {
            let failure = Failure::new(Kind::InUse, "the daemon that serves it is stopping");
            return Err(failure.hint("try again when it has ended"));
        }
        let served = self.find(volume)?;
        if served.volume.is_read_only() {
            let failure = Failure::usage(format!("{} is served read-only", served.name));
            return Err(
                failure.hint("a volume is rolled back where it is written, or where nobody serves it")
            );
        }
        let clients = self.exports.clients(&served.name);
        if clients > 0 && !force {
            let failure =
                Failure::new(Kind::InUse, format!("clients are connected to {}: {clients}", served.name));
            return Err(failure.hint(
                "let go of it first (unmount, export the pool, disconnect); --force rolls it back under them, and their requests fail",
            ));
        }
        self.check_key(&served).await?;
        let done = served.volume.roll_back(to, leave).await;
        if served.volume.is_closed() {
            self.open_again(&served.name).await?;
        }
        Ok(done?)
    }

    /// Whether the volume can be opened again with what this daemon knows.
    async fn check_key(&self, served: &Served) -> Outcome {
        let opened = admin::info(&self.env, &served.store.stores.read, &served.key).await.map(drop);
        opened.map_err(Failure::from).map_err(|failure| match failure.kind {
            Kind::Key => {
                failure.hint("its key was changed since this daemon was started: restart the daemon first")
            }
            _ => failure,
        })
    }

    /// Opens a volume that was closed, for whoever connects from now on.
    async fn open_again(&self, name: &str) -> Outcome {
        let served = self.find(name)?;
        let opened = self.opener.reopen(&served).await.map_err(|failure| {
            let failure = failure.context(format!("{name} was closed, and cannot be opened again"));
            failure.hint(
                "what is acknowledged is in the store or in the journal; `cistern serve` opens it again",
            )
        })?;
        self.exports.replace(opened.export());
        let mut all = self.served.lock().expect("nothing panics under this lock");
        if let Some(place) = all.iter_mut().find(|known| Arc::ptr_eq(known, &served)) {
            *place = Arc::new(opened);
        }
        Ok(())
    }
}
