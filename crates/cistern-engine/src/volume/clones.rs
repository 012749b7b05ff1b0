//! Clones: volumes whose history goes on behind a snapshot of another one (`docs/design/snapshots.md`, "Clones").
//!
//! A clone is made in three steps, so that whatever is interrupted can be removed and frees what it took: its identity, which names
//! the volume it is made of; the operation in that one's log, which keeps the snapshot; the first checkpoint, with the map of that
//! snapshot. Its removal leaves a note for that volume, who takes it as an operation when it is open.

use crate::{
    Error, Result,
    cleaner::{Moved, no_room},
    codec::KeySource,
    env::Env,
    gc,
    log::{
        RoomFor, VolumeKeys,
        checkpoint::{Checkpoint, LastClaim},
        find_volume, keys,
        origin::{CloneOrigin, CloneSource, ORIGINS_MAX, join_ways},
        own_store, read_committed, read_identity, read_identity_anywhere, read_roots,
    },
    map::{Levels, RunMeta},
    snapshot::{Operation, Snapshot},
    store::{OtherPlaces, Pages, Put, SharedStore},
    units::{BLOCK_BYTES, Chain, Epoch, Extent, JournalId, JournalPos, Seq, VolumeId},
    volume::{
        Collect, Volume,
        admin::is_half_removed,
        open::{NewVolume, put_volume, refuse_what_is_there},
        write::Writer,
    },
};

/// Mappings that are looked at together.
const LOOKUP_MAPPINGS: usize = 4096;

/// Begins to make a clone in an empty place of the same store, to which `way` leads back. It has the secret of the other volume.
///
/// # Errors
/// `Exists` and `NotEmpty` for a place that is taken; `Key` for a wrong secret.
pub async fn begin_clone(
    env: &Env,
    from: &SharedStore,
    to: &SharedStore,
    key: &KeySource,
    way: &str,
) -> Result<VolumeId> {
    refuse_what_is_there(env, to).await?;
    let (identity, own) = find_volume(env, from).await?;
    let keys = VolumeKeys::unlock(env, own.as_ref(), &identity, key).await?;
    let new = NewVolume {
        size_bytes: identity.size_bytes,
        compression: identity.compression,
        origin: Some(CloneSource { volume: identity.volume, way: way.to_owned() }),
        master: keys.key.clone(),
        slot_grace: identity.slot_grace,
    };
    put_volume(env, to, new, key).await
}

/// Gives a clone its state: what the snapshot shows that keeps it. The volume it is made of has told the store of it
/// ([`Volume::keep_for_clone`]).
///
/// # Errors
/// `Invalid` where nobody has kept a snapshot for it; those of the store.
pub async fn finish_clone(
    env: &Env,
    from: &SharedStore,
    to: &SharedStore,
    key: &KeySource,
    host: &str,
) -> Result<()> {
    let clone = read_identity(env, to.as_ref()).await?;
    let source = clone.origin.clone().ok_or_else(|| Error::Invalid("it is no clone".into()))?;
    let (identity, own) = find_volume(env, from).await?;
    if identity.volume != source.volume {
        return Err(Error::Invalid(format!(
            "it is a clone of volume {}, and not of this one",
            source.volume
        )));
    }
    let keys = VolumeKeys::unlock(env, own.as_ref(), &identity, key).await?;
    let committed = read_committed(env, own.as_ref(), &keys, identity.size_at_creation()).await?;
    let table = committed.snapshot_table(own.as_ref(), &keys).await?;
    let snapshots = committed.snapshots(&table);
    let kept = snapshots.cloned_as(clone.volume);
    let (name, Snapshot { id, at, size_bytes, .. }) =
        kept.ok_or_else(|| Error::Invalid("no snapshot is kept for this clone".into()))?;
    let root = table.roots.get(at);
    let root = root.ok_or_else(|| Error::Unreachable(format!("no checkpoint has snapshot {name} yet")))?;
    let levels: Levels = read_roots(own.as_ref(), &keys, *root).await?;
    let theirs = |run: RunMeta| RunMeta { owner: run.owner.or(Some(source.volume)), ..run };
    let levels = levels.into_iter().map(|level| level.into_iter().map(theirs).collect()).collect();
    let further = committed.checkpoint.iter().flat_map(|checkpoint| &checkpoint.origins);
    let is_further = |origin: &&CloneOrigin| origin.at < *at && origin.source.volume != source.volume;
    let further = further.filter(is_further).map(|origin| {
        let way = join_ways(&source.way, &origin.source.way);
        CloneOrigin { source: CloneSource { volume: origin.source.volume, way }, ..origin.clone() }
    });
    let this = CloneOrigin { source: source.clone(), snapshot: *id, at: *at };
    let origins: Vec<CloneOrigin> = further.chain([this]).collect();
    if origins.len() > ORIGINS_MAX {
        return Err(Error::Invalid(format!(
            "the volume is a clone of a clone, {ORIGINS_MAX} deep, and deeper ones are not kept track of: flatten it first (`cistern \
             flatten`)"
        )));
    }
    let checkpoint = Checkpoint {
        epoch: Epoch(0),
        covered: *at,
        journal: JournalId(uuid::Uuid::nil()),
        journal_pos: JournalPos(0),
        journal_chain: Chain(0),
        size_bytes: *size_bytes,
        claim: LastClaim { seq: *at, host: host.to_owned(), wall_ms: env.wall_ms(), released: true },
        epochs: Vec::new(),
        levels,
        usage: Vec::new(),
        retired: Vec::new(),
        times: Vec::new(),
        snapshots: None,
        held: Vec::new(),
        origins,
        flattened: None,
    };
    let body = checkpoint.encode(env, keys.key.as_deref(), clone.volume)?;
    let name = keys::checkpoint(checkpoint.epoch, checkpoint.covered);
    let own = own_store(to, clone.volume);
    match own.put_if_absent(&name, body).await? {
        Put::Created | Put::Exists => {} // another command that finishes it writes the same
    }
    if let Err(e) = own.put_if_absent(keys::PROOF, keys::PROOF_BODY.into()).await {
        tracing::warn!(error = %e, "the first writer of the clone puts it instead");
    }
    Ok(())
}

/// Tells the volume that a clone was made of that the clone is gone for good. One that was removed is not told.
///
/// # Errors
/// `SourceAway`: who is not there now may be back later, and would never hear of it.
pub(super) async fn tell_source(
    source: &CloneSource,
    clone: VolumeId,
    others: &dyn OtherPlaces,
) -> Result<()> {
    let Some(place) = find_source(source, others).await? else { return Ok(()) };
    let own = own_store(&place, source.volume);
    own.put_if_absent(&keys::released(clone), bytes::Bytes::from_static(b"{}\n")).await?;
    Ok(())
}

/// Where the volume is that a clone was made of. `None` if it was removed: its place is there, and nothing of a volume is in it.
///
/// # Errors
/// `SourceAway` where that cannot be known: there is no such place (a file system that is not mounted looks like that), another
/// volume is in it, or only a part of it can be seen.
pub(super) async fn find_source(
    source: &CloneSource,
    others: &dyn OtherPlaces,
) -> Result<Option<SharedStore>> {
    let away = || Error::SourceAway { volume: source.volume.to_string(), way: source.way.clone() };
    let place = match others.stores(&source.way).await {
        Ok(stores) => stores.whole,
        Err(Error::NotFound(_) | Error::Invalid(_)) => return Err(away()),
        Err(e) => return Err(e),
    };
    match read_identity_anywhere(place.as_ref()).await {
        Ok(found) if found.volume == source.volume => Ok(Some(place)),
        Ok(_) => Err(away()),
        Err(Error::NotFound(_)) => match is_half_removed(&place).await? {
            false => Ok(None),
            true => Err(away()),
        },
        Err(e) => Err(e),
    }
}

/// Refuses for a volume of which there are clones.
pub(super) fn refuse_if_cloned<'a>(snapshots: impl Iterator<Item = (&'a str, &'a Snapshot)>) -> Result<()> {
    let ways = snapshots.flat_map(|(_, snapshot)| snapshot.clones.values().map(String::as_str));
    let ways: Vec<&str> = ways.filter(|way| !way.is_empty()).collect(); // the volume itself
    match ways[..] {
        [] => Ok(()),
        [first, ..] => Err(Error::Invalid(format!(
            "there are clones of it, which would lose what they have from it: {} in all, one of them at {first} from it. Remove them \
             first",
            ways.len()
        ))),
    }
}

impl Volume {
    /// Keeps a snapshot for a clone, until the clone is gone. When this returns, the store has the snapshot and knows why it is kept.
    ///
    /// # Errors
    /// `NotFound`; `Invalid` while write-back is paused; else as for [`snapshot`](Self::snapshot).
    pub async fn keep_for_clone(&self, name: &str, clone: VolumeId, way: &str) -> Result<()> {
        self.refuse_while_hindered()?;
        self.operate(Operation::Clone { name: name.to_owned(), clone, way: way.to_owned() }).await?;
        self.drain().await?;
        self.collect(Collect::Retire).await.map(drop)
    }

    /// A step on the way to needing nothing of the volumes that a clone comes from, when all of its blocks are its own: a merge of the
    /// map, and in the end the origins leave the checkpoints, and the volume it was made of is told.
    ///
    /// # Errors
    /// `Invalid` as long as a snapshot is of before, or a block is foreign.
    pub(super) async fn let_go_of_origins(&self) -> Result<Moved> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let coverage = &writer.collector.coverage;
        if !coverage.ancestry().is_empty() {
            self.drain().await?; // snapshots may have been removed just now
            if let Some(bytes) = self.map.next_foreign_merge_bytes().await {
                let _room = writer.log.take_room(RoomFor::Copied, bytes).await.ok_or_else(no_room)?;
                self.map.merge_foreign_step().await?;
                return Ok(Moved { next: Some(0), ..Moved::default() });
            }
            coverage.ancestry().flattened(self.newest_without_foreign_blocks(writer).await?);
            coverage.cover().await?;
            if !coverage.ancestry().is_empty() {
                return Err(Error::Invalid(
                    "it is flattened, and needs the volume it was made of only for snapshots of before: remove those, then flatten \
                     it again"
                        .into(),
                ));
            }
        }
        // What is gone there has to be missed by no state that may still count: two checkpoints do without it. A command before this one
        // may have been cut off before the second, or before the first was stored.
        if !coverage.ancestry().is_over() {
            coverage.cover().await?;
        }
        let identity = read_identity(&self.env, writer.reading.stores.whole.as_ref()).await?;
        if let Some(source) = identity.origin {
            tell_source(&source, identity.volume, writer.reading.stores.others.as_ref()).await?;
        }
        self.forget_past_branches().await?;
        Ok(Moved::default())
    }

    /// A position at which nothing that the volume shows is foreign.
    async fn newest_without_foreign_blocks(&self, writer: &Writer) -> Result<Seq> {
        let end = self.size_bytes().div_ceil(BLOCK_BYTES as u64);
        let mut at = 0;
        while at < end {
            let mappings = self.map.lookup_limited(Extent::between(at, end), LOOKUP_MAPPINGS).await?;
            let step = Extent::between(at, mappings.last().map_or(end, |mapping| mapping.extent.end()));
            let (sectors, _) = self.map.sectors_in(step, Seq(0), usize::MAX).await?;
            if mappings.iter().chain(&sectors).any(|mapping| self.frames.is_foreign(mapping)) {
                return Err(Error::Invalid("not all of its blocks are its own yet: flatten it again".into()));
            }
            at = step.end();
        }
        Ok(writer.space.newest())
    }

    /// Whether something is kept here for a clone, or for what the volume was rolled back from. `false` for one that only reads.
    pub fn keeps_for_clones(&self) -> bool {
        self.writer.as_ref().is_some_and(|writer| writer.core.has_clones())
    }

    /// Takes the notes of clones that are gone, and lets go of what was kept for them. Gives how many there were.
    ///
    /// # Errors
    /// `ReadOnly`; whatever stopped the volume; those of the store.
    pub async fn forget_removed_clones(&self) -> Result<usize> {
        let writer = self.writer.as_ref().ok_or(Error::ReadOnly)?;
        let store = writer.reading.stores.background.clone();
        let (mut notes, mut pages) = (Vec::new(), Pages::of(store.as_ref(), keys::RELEASED_PREFIX));
        while let Some(page) = pages.next_page().await? {
            notes.extend(page.iter().filter_map(|listed| keys::parse_released(&listed.key)));
        }
        let snapshots = writer.core.snapshots();
        let known = notes.iter().filter(|clone| snapshots.cloned_as(**clone).is_some());
        let mut forgotten = 0;
        for clone in known {
            self.operate(Operation::Unclone { clone: *clone }).await?;
            forgotten += 1;
        }
        if forgotten > 0 {
            self.drain().await?;
        }
        // The log has it: the notes have served.
        gc::delete_released(store.as_ref(), &notes).await?;
        self.forget_past_branches().await?;
        Ok(forgotten)
    }
}
