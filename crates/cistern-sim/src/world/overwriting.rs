//! A store that begins to overwrite what it should keep: versioning of its bucket is switched on, or its gateway is replaced.
//!
//! A writer that was taken over, and comes back then, destroys nothing; no other host takes the volume over; the writer stops before long. Once the store keeps
//! the rule again the volume is opened, and everything acknowledged is there.
//!
//! What is on its way while the rule ends is not looked at here: the store takes it whatever its sender does.

use std::{sync::Arc, time::Duration};

use super::{Damaged, Past, Session, World, checks::write_sectors, rounds::Clients};
use crate::{client::Line, device::Device, disk::Death};

/// So long ago everything was sent that may arrive after the rule has ended, and everybody was taken over who will be back.
const BEFORE_IT_ENDS: Duration = Duration::from_secs(120);
/// In so much time a writer that writes has stopped: half a minute until it proves the rule again, and what requests take.
const STOPPED_WITHIN: Duration = Duration::from_secs(180);

impl World {
    pub(super) async fn rule_ends(&mut self, session: Session, clients: Clients) -> Result<(), Damaged> {
        self.calm();
        self.sim.sleep(BEFORE_IT_ENDS).await;
        for writer in self.zombies.iter().chain([&session]) {
            writer.line.excuse(|e| e.overwritten = true);
        }
        self.store.set_overwrites(true);
        self.zombies.iter().for_each(|zombie| self.store.set_cut_off(zombie.host, false));
        if self.sim.chance(0.5) {
            self.not_taken_over(session.host).await;
        }
        self.stops(&session).await;
        self.wait(clients).await;
        self.end(&session, if self.sim.chance(0.5) { Death::Kill } else { Death::PowerCut });
        self.sim.sleep(BEFORE_IT_ENDS).await;
        self.store.set_overwrites(false);
        let (host, branch) = (session.host, session.line.branch(|b| b.clone()));
        let past = Past { branch, journal_on: Some(host), released: false, promised: 0, outlived: true };
        self.open(host, past).await
    }

    /// Another host does not get the volume.
    async fn not_taken_over(&mut self, from: usize) {
        let Some(host) = self.free_host(from) else { return };
        self.forget_other_volume(host);
        let inc = self.sim.incarnate();
        match self.try_open(host, inc, true).await {
            Some(Err(error)) => self.sim.note(format_args!("host {host}: cannot open: {error}")),
            Some(Ok(_)) => self.sim.fail("P2: a volume is taken over in a store that overwrites"),
            None => {}
        }
        self.crash(host, inc, Death::Kill);
    }

    /// The writer writes until it has stopped, which it does before long.
    async fn stops(&self, session: &Session) {
        let act = |device: Arc<dyn Device>, line: Arc<Line>| async move {
            let begin = line.sim.now();
            line.end_pauses(&*device).await;
            while device.status().latched.is_none() {
                write_sectors(&line, &*device).await;
                line.sim.sleep(Duration::from_secs(1)).await;
                if line.sim.now() - begin > STOPPED_WITHIN {
                    line.sim.fail("P2: a writer goes on in a store that overwrites");
                    return;
                }
            }
        };
        self.on_device(session, "writing until it stops", act).await;
    }
}
