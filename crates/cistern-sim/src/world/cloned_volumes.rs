//! A run whose volume is a clone. What it was made of lives on: it is written, cleaned and crashes, and the snapshot between them is
//! removed. Each of the two shows its own history. Now and then the volume is a clone of a clone of the other one.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use super::{Damaged, Death, Past, Session, World, rounds::Clients};
use crate::{client::Album, model::Branch, plan::Theme};

/// Where the clone lies, beside what it is made of.
const CLONE: &str = "clone";
/// Where a clone of that lies; what is between is used no more, but for what it passes on.
const CLONE_OF_CLONE: &str = "clone-of-clone";
/// The snapshot between them.
const BEGIN: &str = "begin";

/// The other volume of a run.
pub(super) struct OtherVolume {
    place: &'static str,
    session: Session,
    album: Arc<Album>,
    /// At work on it while the run is about the one.
    clients: Clients,
}

impl World {
    /// What there is so far lives a little; then the volume of the run is a clone of it.
    pub(super) async fn clone_volume(&mut self) -> Result<(), Damaged> {
        for _ in 0..self.sim.range(0, 3) {
            self.round().await?;
        }
        let session = self.writer.take().expect("there is a writer between rounds");
        let place = self.make_clone(&session, CLONE).await?;
        let branch = session.line.branch(|b| b.clone());
        let album = std::mem::take(&mut self.album);
        self.other = Some(OtherVolume { place, session, album, clients: Vec::new() });
        self.open_clone(branch).await?;
        // By what is known anyway: what other seeds do is to stay as it is.
        if self.ops.load(Relaxed) % 2 == 1 {
            let session = self.writer.take().expect("it was just opened");
            self.make_clone(&session, CLONE_OF_CLONE).await?;
            let branch = session.line.branch(|b| b.clone());
            self.end(&session, Death::Kill);
            self.open_clone(branch).await?;
        }
        Ok(())
    }

    /// A clone of the volume as it is now, of which the run is from now on; gives where that volume lies.
    async fn make_clone(&mut self, session: &Session, name: &'static str) -> Result<&'static str, Damaged> {
        self.drained(session).await;
        let (engine, settings) = (self.engine.clone(), self.plan.settings.clone());
        let from = self.site(session.host, session.inc);
        let place = std::mem::replace(&mut self.place, name);
        let to = self.site(session.host, session.inc);
        let clone = self.on_device(session, "clone", |device, _| async move {
            device.snapshot(BEGIN).await?;
            engine.clone_volume(&from, &to, &settings, &*device, BEGIN).await?;
            device.remove_snapshot(BEGIN).await
        });
        match clone.await {
            Some(Ok(())) => Ok(place),
            other => {
                self.sim.fail(format!("a volume cannot be cloned in fine weather: {other:?}"));
                Err(Damaged)
            }
        }
    }

    async fn open_clone(&mut self, branch: Branch) -> Result<(), Damaged> {
        let host = self.free_host(usize::MAX).expect("there are hosts enough");
        self.renew(host);
        self.open(host, Past { branch, journal_on: None, released: true, promised: 0, outlived: false }).await
    }

    /// The disks of a host are for one volume at a time here.
    pub(super) fn forget_other_volume(&mut self, host: usize) {
        if self.plan.theme == Theme::ClonedVolumes {
            self.renew(host);
        }
    }

    /// Somebody works on the other volume meanwhile.
    pub(super) fn start_other_clients(&mut self) {
        let Some(mut other) = self.other.take() else { return };
        if other.clients.is_empty() {
            other.clients = self.start_clients(&other.session);
        }
        self.other = Some(other);
    }

    /// A round of the other volume.
    pub(super) async fn other_round(&mut self) -> Result<(), Damaged> {
        self.turn_to_other().await;
        let done = self.round().await;
        if done.is_ok() {
            self.turn_to_other().await;
        }
        done
    }

    /// The other volume shows what it must, at the end.
    pub(super) async fn look_at_other(&mut self) -> Result<(), Damaged> {
        self.turn_to_other().await;
        let session = self.writer.take().expect("there is a writer between rounds");
        self.drained(&session).await;
        self.read_elsewhere(&session).await?;
        self.look_at_snapshots(&session).await?;
        self.check_store(session.host).await;
        self.writer = Some(session);
        self.turn_to_other().await;
        Ok(())
    }

    /// The run is about the other one from now on.
    async fn turn_to_other(&mut self) {
        let other = self.other.take().expect("there are two volumes");
        self.wait(other.clients).await;
        let session = self.writer.take().expect("there is a writer between rounds");
        let album = std::mem::replace(&mut self.album, other.album);
        let place = std::mem::replace(&mut self.place, other.place);
        self.writer = Some(other.session);
        self.other = Some(OtherVolume { place, session, album, clients: Vec::new() });
    }
}
