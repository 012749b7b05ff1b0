//! The merges of a map: one at a time, and what each of them publishes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::{LOOK_AGAIN, Levels, Map, RunMeta, UsedUp, check_levels, merge, policy};
use crate::{Result, units::RunId};

impl Map {
    /// Bytes that the next merge writes, about, or somewhat fewer; `None` when none is due.
    pub async fn next_merge_bytes(&self) -> Option<u64> {
        let mut damaged = self.merging.lock().await;
        let (levels, _) = self.to_merge();
        let plan = policy::plan(&levels, self.shape, &self.still_damaged(&mut damaged, &levels))?;
        Some(policy::bytes_of(&levels, &plan, self.shape))
    }

    /// The same of the next [`merge_foreign_step`](Self::merge_foreign_step).
    pub async fn next_foreign_merge_bytes(&self) -> Option<u64> {
        let _one = self.merging.lock().await;
        let (levels, _) = self.to_merge();
        policy::plan_foreign(&levels).map(|plan| policy::bytes_of(&levels, &plan, self.shape))
    }

    /// Does one bounded merge if one is due: writes at most one run. False when none is due. A run that turns
    /// out to be damaged is left out of merges from then on, for `LOOK_AGAIN`; the other merges go on.
    ///
    /// # Errors
    /// Of reading or writing, when it is not the object's fault: the same step may succeed later.
    pub async fn merge_step(&self) -> Result<bool> {
        let mut damaged = self.merging.lock().await;
        let (levels, older) = self.to_merge();
        let Some(plan) = policy::plan(&levels, self.shape, &self.still_damaged(&mut damaged, &levels)) else {
            return Ok(false);
        };
        match self.merge(levels.clone(), plan, older).await {
            Ok(()) => Ok(true),
            Err(merge::Failure::Run(id, e)) if e.is_damage() => {
                if let Some(run) = levels.iter().flatten().find(|run| run.id == id) {
                    self.runs.note_unmergeable(run, e);
                }
                damaged.insert(id, self.env.now());
                Ok(true)
            }
            Err(merge::Failure::Run(_, e) | merge::Failure::Write(e)) => Err(e),
        }
    }

    /// As [`merge_step`](Self::merge_step), towards levels without a run of another volume. False when there is none.
    ///
    /// # Errors
    /// Also where a run is damaged.
    pub async fn merge_foreign_step(&self) -> Result<bool> {
        let _one = self.merging.lock().await;
        let (levels, older) = self.to_merge();
        let Some(plan) = policy::plan_foreign(&levels) else { return Ok(false) };
        match self.merge(levels, plan, older).await {
            Ok(()) => Ok(true),
            Err(merge::Failure::Run(_, e) | merge::Failure::Write(e)) => Err(e),
        }
    }

    fn to_merge(&self) -> (Arc<Levels>, merge::OlderStates) {
        let inner = self.inner();
        let oldest = inner.snapshots.first().copied().into_iter().chain(inner.oldest_bookmark).min();
        (inner.levels.clone(), merge::OlderStates { snapshots: inner.snapshots.clone(), oldest })
    }

    /// Merges as planned, and publishes that. Who calls it holds `merging`.
    async fn merge(
        &self,
        levels: Arc<Levels>,
        plan: policy::MergePlan,
        older: merge::OlderStates,
    ) -> Result<(), merge::Failure> {
        let mut writing = self.runs.written.begin();
        let merged =
            merge::merge(&self.env, &self.runs, self.shape, &levels, &plan, older, &mut writing).await?;
        let mut inner = self.inner();
        // Meanwhile flushes may have put levels in front; the planned ones are where they were,
        // counted from the oldest.
        let newer = inner.levels.len() - levels.len();
        debug_assert_eq!(inner.levels[newer..], levels[..], "what was merged is what is replaced");
        let inputs = newer + plan.levels.start..newer + plan.levels.end;
        let (until, since) = (inner.covered, inner.covered.next()); // a root of what is covered was taken before
        let output = merged.output.map(|run| RunMeta { since, ..run });
        let before = inner.levels.clone();
        inner.levels = Arc::new(policy::apply(&before, inputs.clone(), merged.extent, output));
        let listed: BTreeSet<RunId> = inner.levels.iter().flatten().map(|run| run.id).collect();
        let read: BTreeMap<RunId, &RunMeta> =
            before[inputs].iter().flatten().map(|run| (run.id, run)).collect();
        let used_up = read.into_values().filter(|run| !listed.contains(&run.id));
        let own = used_up.filter(|run| run.owner.is_none()); // another volume's are that one's to give up
        inner.used_up.extend(own.map(|run| UsedUp { run: run.clone(), until }));
        inner.dead.add(&merged.dead);
        debug_assert!(check_levels(&inner.levels).is_ok(), "runs of a level ascend and are apart");
        Ok(())
    }

    /// The runs that merges leave out; forgets those that are gone or are to be looked at again.
    fn still_damaged(&self, damaged: &mut BTreeMap<RunId, Duration>, levels: &Levels) -> BTreeSet<RunId> {
        if !damaged.is_empty() {
            let now = self.env.now();
            let listed: BTreeSet<RunId> = levels.iter().flatten().map(|run| run.id).collect();
            damaged.retain(|id, found| listed.contains(id) && now.saturating_sub(*found) < LOOK_AGAIN);
        }
        damaged.keys().copied().collect()
    }
}
