//! A volume that is removed, and another one that is created in its place.
//!
//! Uploads of the removed volume may still be on their way, and arrive in the new one's log, map and checkpoints,
//! hours later. They are nobody's: the new volume is empty, and what it is asked for succeeds.

use std::{sync::Arc, time::Duration};

use cistern_engine::{Error, Result};

use super::{Damaged, PATIENCE, Past, Session, World, rounds::Clients};
use crate::{
    device::{Engine, Settings, Site},
    disk::Death,
    model::Branch,
};

/// Removals and creations until it works: a late object may make the place look used again.
const CREATIONS_MAX: u32 = 10;

impl World {
    pub(super) async fn recreated(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        self.some_time(clients).await;
        let host = session.host;
        self.end(&session, if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut });
        self.calm();
        (0..self.hosts.len()).for_each(|host| self.renew(host));
        let (engine, settings) = (self.engine.clone(), self.plan.settings.clone());
        for _ in 0..CREATIONS_MAX {
            let inc = self.sim.incarnate();
            let again = again(engine.clone(), self.site(host, inc), settings.clone());
            let done = self.sim.limit(PATIENCE, self.sim.on(inc, "create again", again)).await.flatten();
            self.sim.kill(inc, || ());
            self.sim.note(format_args!("created again: {done:?}"));
            match done {
                Some(Ok(())) => {
                    let branch = Branch::new(settings.size_bytes / 512, self.plan.size_max_bytes / 512);
                    let past =
                        Past { branch, journal_on: None, released: true, promised: 0, outlived: false };
                    return self.open(host, past).await;
                }
                Some(Err(_)) => self.sim.sleep(Duration::from_secs(self.sim.range(1, 60))).await,
                None => break,
            }
        }
        self.sim.fail("a volume cannot be created where one was removed");
        Err(Damaged)
    }
}

/// Removes what is there and creates a volume in its place.
async fn again(engine: Arc<dyn Engine>, site: Site, settings: Settings) -> Result<(), Error> {
    engine.remove(&site).await?;
    engine.create(&site, &settings).await
}
