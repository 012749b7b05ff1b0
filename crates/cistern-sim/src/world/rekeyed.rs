//! The secret of an encrypted volume is changed while it is served, by requests that are lost, late or doubled, and by
//! commands that die half-way.
//!
//! Until a change has returned, one of the secrets that were tried holds. From then on it is the new one alone, whatever
//! arrives of the changes before.

use std::time::Duration;

use cistern_engine::Error;

use super::{Damaged, PATIENCE, Past, Session, World, rounds::Clients};
use crate::{device::may_pass, disk::Death, plan::secret};

/// Changes until one must have come through in fine weather.
const CHANGES_MAX: u64 = 20;

impl World {
    pub(super) async fn rekeyed(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        let mut tried = vec![self.secret];
        for _ in 0..self.sim.range(0, 4) {
            let patience = Duration::from_millis(self.sim.range(1, 3000));
            let limit = if self.sim.chance(0.7) { patience } else { PATIENCE };
            self.change_key(session.host, &mut tried, limit).await;
        }
        self.calm();
        for _ in 0..CHANGES_MAX {
            if self.change_key(session.host, &mut tried, PATIENCE).await {
                break;
            }
            self.sim.sleep(Duration::from_secs(self.sim.range(1, 60))).await;
        }
        if tried.len() > 1 {
            self.sim.fail("the key cannot be changed in fine weather");
            return Err(Damaged);
        }
        self.secret = tried[0];
        self.plan.settings.key = secret(self.secret);
        self.one_secret_holds(session.host).await;
        self.some_time(clients).await;
        self.one_secret_holds(session.host).await;
        let death = if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut };
        self.end(&session, death);
        let (host, branch) = (session.host, session.line.branch(|b| b.clone()));
        self.open(host, Past { branch, journal_on: Some(host), released: false, promised: 0, outlived: true })
            .await
    }

    /// Changes the secret from one that may hold to a fresh one. True if it did: then that one alone may hold.
    async fn change_key(&mut self, host: usize, tried: &mut Vec<u32>, limit: Duration) -> bool {
        let old = tried[self.sim.range(0, tried.len() as u64) as usize];
        self.secrets += 1;
        let new = self.secrets;
        let inc = self.sim.incarnate();
        let (engine, site) = (self.engine.clone(), self.site(host, inc));
        let change = async move { engine.change_key(&site, &secret(old), &secret(new)).await };
        let done = self.sim.limit(limit, self.sim.on(inc, "change key", change)).await.flatten();
        self.sim.kill(inc, || ());
        self.sim.note(format_args!("secret {old} to {new}: {done:?}"));
        match done {
            Some(Ok(())) => {
                *tried = vec![new];
                return true;
            }
            // It was another one, and nothing was sent; or a change of before was late, and faster.
            Some(Err(Error::Key(_))) if tried.len() > 1 => {}
            Some(Err(error)) if !may_pass(&error) && !matches!(error, Error::Invalid(_)) => {
                self.sim.fail(format!("the key cannot be changed: {error:?}"));
            }
            _ => tried.push(new),
        }
        false
    }

    /// The secret that was set last opens the volume, and none of those before does.
    pub(super) async fn one_secret_holds(&self, host: usize) {
        if !self.engine.has_secrets() {
            return;
        }
        for number in 0..=self.secrets {
            let holds = number == self.secret;
            match self.unlocks(host, number).await {
                Some(Ok(())) if holds => {}
                Some(Err(Error::Key(_))) if !holds => {}
                other => {
                    self.sim.fail(format!("secret {number} (that of the volume: {holds}) gives {other:?}"))
                }
            }
        }
    }

    async fn unlocks(&self, host: usize, number: u32) -> Option<Result<(), Error>> {
        loop {
            let inc = self.sim.incarnate();
            let (engine, site) = (self.engine.clone(), self.site(host, inc));
            let unlock = async move { engine.unlock(&site, &secret(number)).await };
            let done = self.sim.limit(PATIENCE, self.sim.on(inc, "unlock", unlock)).await.flatten();
            self.sim.kill(inc, || ());
            match &done {
                Some(Err(error)) if may_pass(error) => self.sim.sleep(Duration::from_secs(60)).await,
                _ => return done,
            }
        }
    }
}
