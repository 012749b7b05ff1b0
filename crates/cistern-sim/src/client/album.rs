//! Snapshots that clients make and remove, and what each of them has to show.
//!
//! A snapshot shows a state that existed between its request and the reply. So the history up to the reply is kept with it:
//! everything acknowledged before the request is in it, what was under way meanwhile may be.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use cistern_engine::Error;

use super::{Line, Mood};
use crate::{
    device::Device,
    model::{Branch, Observed, Scope},
};

/// The longest time between two operations.
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// Operations of one life.
const OPERATIONS_MAX: u64 = 16;

/// How long a snapshot lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lasting {
    /// Nobody was told of it, or its removal was asked for: it may be there.
    Perhaps,
    /// It survives the crash of its host.
    Local,
    /// It survives the loss of its host.
    Store,
}

/// A snapshot that was asked for.
struct Taken {
    branch: Branch,
    /// Everything acknowledged before this tick is in it.
    invoked: u64,
    lasting: Lasting,
}

/// Every snapshot of a run, by its name.
#[derive(Default)]
pub struct Album(Mutex<BTreeMap<String, Taken>>);

impl Album {
    fn with<T>(&self, f: impl FnOnce(&mut BTreeMap<String, Taken>) -> T) -> T {
        f(&mut self.0.lock().expect("no panic under this lock"))
    }

    /// The host of the writer is lost, or another one has taken over: what was not in the store may be gone, and removals may be.
    pub fn lose_host(&self) {
        self.with(|all| {
            for taken in all.values_mut().filter(|taken| taken.lasting == Lasting::Local) {
                taken.lasting = Lasting::Perhaps;
            }
        });
    }

    /// The volume lists these, and everything it had acknowledged is in the store.
    ///
    /// # Errors
    /// What is missing.
    pub fn listed(&self, names: &[String]) -> Result<(), String> {
        self.with(|all| {
            let lost =
                all.iter().find(|(name, taken)| taken.lasting != Lasting::Perhaps && !names.contains(name));
            if let Some((name, taken)) = lost {
                return Err(format!("P1: snapshot {name} is lost, which was {:?}", taken.lasting));
            }
            for name in names {
                match all.get_mut(name) {
                    None => return Err(format!("P3: nobody has made snapshot {name}")),
                    Some(taken) if taken.lasting == Lasting::Local => taken.lasting = Lasting::Store,
                    Some(_) => {}
                }
            }
            Ok(())
        })
    }

    /// What a rollback leaves, if it comes to it, is a snapshot that was asked for at tick `invoked`.
    pub fn leaves(&self, name: &str, branch: Branch, invoked: u64) {
        self.with(|all| all.insert(name.to_owned(), Taken { branch, invoked, lasting: Lasting::Perhaps }));
    }

    /// It came to it.
    pub fn is_stored(&self, name: &str) {
        self.with(|all| all.get_mut(name).expect("it was asked for").lasting = Lasting::Store);
    }

    /// The history that a snapshot shows: everything acknowledged before that tick is in it.
    pub fn shown_by(&self, name: &str) -> (Branch, u64) {
        self.with(|all| {
            let taken = all.get(name).expect("it is listed");
            (taken.branch.clone(), taken.invoked)
        })
    }

    /// Whether a snapshot may show this.
    pub fn explain(&self, name: &str, found: &Observed) -> Result<(), String> {
        self.with(|all| {
            let taken = all.get(name).expect("it is listed");
            let explained = taken.branch.explain(found, Scope::Store, taken.invoked);
            explained.map(|_| ()).map_err(|why| format!("snapshot {name}: {why}"))
        })
    }
}

/// Makes and removes snapshots now and then.
pub async fn take_snapshots(line: Arc<Line>, device: Arc<dyn Device>) {
    for _ in 0..line.sim.range(0, OPERATIONS_MAX) {
        line.sim.sleep(line.sim.time(Duration::ZERO, PAUSE_MAX)).await;
        let done = match line.sim.chance(0.65) {
            true => make(&line, &*device).await,
            false => remove(&line, &*device).await,
        };
        if let Err(error) = done {
            match line.complain("an operation on snapshots", &error) {
                Mood::Content => {}
                Mood::Done => return,
            }
        }
    }
}

async fn make(line: &Line, device: &dyn Device) -> Result<(), Error> {
    let (name, invoked) = (format!("s{}", line.number()), line.sim.tick());
    line.sim.note(format_args!("client: makes snapshot {name}"));
    line.branch(Branch::hold);
    line.album.with(|all| {
        // Known before it is asked for: it may be there although nobody hears of it.
        let taken = Taken { branch: line.branch(|b| b.clone()), invoked, lasting: Lasting::Perhaps };
        all.insert(name.clone(), taken);
    });
    let made = device.snapshot(&name).await;
    let tick = line.sim.tick();
    let branch = line.branch(|b| b.as_of(invoked, tick));
    line.branch(Branch::release);
    line.album.with(|all| {
        let taken = all.get_mut(&name).expect("it was put there before");
        taken.branch = branch;
        // What a writer that is being fenced acknowledges may be in its journal alone.
        if made.is_ok() && !line.excuses.lock().expect("no panic under this lock").fenced {
            taken.lasting = Lasting::Local;
        }
    });
    made
}

async fn remove(line: &Line, device: &dyn Device) -> Result<(), Error> {
    let names = device.snapshots();
    if names.is_empty() {
        return Ok(());
    }
    let name = &names[line.sim.range(0, names.len() as u64) as usize];
    line.sim.note(format_args!("client: removes snapshot {name}"));
    line.album.with(|all| {
        if let Some(taken) = all.get_mut(name) {
            taken.lasting = Lasting::Perhaps;
        }
    });
    match device.remove_snapshot(name).await {
        Err(Error::NotFound(_)) => Ok(()), // somebody else was faster
        done => done,
    }
}
