//! Rolling a volume back to a snapshot: it is released, and whoever opens it next goes on from there (`docs/design/snapshots.md`,
//! "Rollback").

use crate::{
    Error, Result,
    log::{
        branches::{BRANCHES_MAX, Branch},
        origin::ORIGINS_MAX,
    },
    segment::Rollback,
    snapshot::{Operation, is_hidden},
    units::{SnapshotId, VolumeId},
    volume::{Collect, END_LIMIT, Volume, write::Writer},
};

impl Volume {
    /// Rolls the volume back to a snapshot. The state that it leaves becomes a snapshot too, under the name `leave`. Then the volume is
    /// closed: opened again, here or elsewhere, it shows what the snapshot `to` shows, and has its size. Nobody may write meanwhile.
    ///
    /// # Errors
    /// `NotFound`; `Exists` for the name `leave`; `Invalid` while write-back is paused, and where somebody wrote meanwhile; whatever stopped
    /// the volume. It is as it was then, but for the snapshot `leave`, and may be closed. After `Unreachable` it is not known whether it
    /// came to it: opened again, it shows.
    pub async fn roll_back(&self, to: &str, leave: &str) -> Result<()> {
        self.refuse_while_hindered()?;
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        if self.opened.branches.len() >= BRANCHES_MAX {
            return Err(Error::Invalid(format!(
                "the volume was rolled back {BRANCHES_MAX} times, more are not kept track of: clone the snapshot"
            )));
        }
        if writer.collector.coverage.ancestry().len() >= ORIGINS_MAX {
            return Err(Error::Invalid(format!(
                "the volume is a clone of a clone, {ORIGINS_MAX} deep, and deeper ones are not kept track of: flatten it first \
                 (`cistern flatten`)"
            )));
        }
        let target = rolls_back_to(writer, to)?;
        let left = self.make_snapshot(leave).await?;
        self.drain().await?;
        // Twice: what is left is to be known also if one of the checkpoints is damaged.
        for _ in 0..2 {
            self.collect(Collect::Retire).await?;
        }
        refuse_unless_shown(writer, left, leave)?;
        writer.core.refuse(Error::Closed);
        let still = refuse_unless_shown(writer, left, leave)
            .and_then(|()| rolls_back_to(writer, to))
            .and_then(|now| {
                let is_same = now == target;
                is_same.then_some(()).ok_or_else(|| Error::NotFound(format!("snapshot {to}, any more,")))
            });
        let rollback = Rollback { to: target, branch: VolumeId(self.env.uuid()) };
        let report = writer.end(END_LIMIT, still.is_ok().then_some(rollback)).await;
        still?;
        match report.reason {
            None => Ok(()),
            Some(reason) => {
                Err(Error::Unreachable(format!("the end of the rollback is not known: {reason}")))
            }
        }
    }

    /// Lets go of snapshots that are kept because the volume went on from them, where neither it nor a snapshot since shows anything of
    /// that any more. Gives how many.
    pub(super) async fn forget_past_branches(&self) -> Result<usize> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let (branches, snapshots) = (&self.opened.branches, writer.core.snapshots());
        let positions = snapshots.positions();
        let is_past = |(n, branch): &(usize, &Branch)| match branches.get(n + 1) {
            Some(next) => !positions.iter().any(|at| (branch.from..next.from).contains(at)),
            None => writer.collector.coverage.ancestry().is_over(),
        };
        let past = branches.iter().enumerate().filter(is_past).map(|(_, branch)| branch.id);
        let kept: Vec<VolumeId> = past.filter(|id| snapshots.cloned_as(*id).is_some()).collect();
        for clone in &kept {
            self.operate(Operation::Unclone { clone: *clone }).await?;
        }
        Ok(kept.len())
    }
}

/// What is left has to be in the snapshot that was made of it, all of it, whatever other snapshots were made since.
fn refuse_unless_shown(writer: &Writer, left: SnapshotId, name: &str) -> Result<()> {
    if writer.core.is_shown_by(left) {
        return Ok(());
    }
    let is_there = writer.core.snapshot(name).is_some_and(|snapshot| snapshot.id == left);
    Err(Error::Invalid(match is_there {
        true => {
            "somebody wrote to the volume meanwhile: it is not rolled back. Let nobody use it, then try again"
                .into()
        }
        false => {
            format!("snapshot {name}, of what the volume shows, was removed meanwhile: it is not rolled back")
        }
    }))
}

/// The snapshot to which a volume can be rolled back under a name.
fn rolls_back_to(writer: &Writer, name: &str) -> Result<SnapshotId> {
    let snapshots = writer.core.snapshots();
    match is_hidden(name) {
        true => Err(Error::NotFound(format!("snapshot {name}"))),
        false => {
            let target = snapshots.with_content_named(name)?.id;
            // What the release does, which cannot be refused any more.
            let (name, clone) = (name.to_owned(), VolumeId(uuid::Uuid::nil()));
            snapshots.check(&Operation::Clone { name, clone, way: String::new() })?;
            Ok(target)
        }
    }
}
