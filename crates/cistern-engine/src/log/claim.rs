//! Taking a volume: the claim, its race, and the fresh look behind it.
//!
//! A claim goes to the first free seq with put-if-absent, and the journal names it before that: so whoever
//! finds it in the log knows whether it is his own or that of a copy. If something is there first, everything is
//! read again: an old writer's segment that landed meanwhile counts, and another claim may mean
//! that the volume is in use. After the claim the checkpoints are listed once more, because a
//! deletion is only allowed behind a checkpoint, and ours must descend from the newest: a claim that was slow
//! may lie in an emptied slot (docs/design/engine.md, "Emptied slots").

use std::time::Duration;

use bytes::Bytes;

use crate::{
    Error, Result,
    env::Env,
    journal::format::CLAIMS_MAX,
    log::{
        LogWriter, Slots, VolumeKeys, Walk,
        append::{Tenure, readable},
        checkpoint::LastClaim,
        committed::{Committed, checkpoint_names, read_committed},
        keys,
        presence::refuse_if_overwriting,
        reserve::Reserve,
        slots::{SlotContent, read_entry},
        unlisted::is_there,
    },
    segment::{Claim, Entry, EntryHead, Slot, encode_claim},
    store::{Listed, Put, SharedStore, Stores},
    units::{Epoch, JournalId, JournalPos, Mark, Salt, SealNonce},
};

/// How long an opening waits for room in the store, and how often it looks.
const NO_ROOM_PATIENCE: Duration = Duration::from_secs(60);
const NO_ROOM_PAUSE: Duration = Duration::from_secs(1);

/// What lies in this host's state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalJournal {
    pub id: JournalId,
    /// Where its groups begin and end, ascending; one alone if it is empty.
    pub marks: Vec<Mark>,
    /// The salts of the claims that were tried with it, oldest first.
    pub claims: Vec<Salt>,
}

impl LocalJournal {
    /// What the journal has to name before one more claim is put, `last` being in force: no claim that may be in the log, or
    /// come there late, but for those before the last eight.
    fn claims_with(&self, last: Option<Salt>, new: Salt) -> Vec<Salt> {
        // What was tried before the one in force was put at its seq or before: that will never be there.
        let in_force = self.claims.iter().position(|&salt| Some(salt) == last).unwrap_or(0);
        let mut claims = self.claims[in_force..].to_vec();
        if claims.len() >= CLAIMS_MAX {
            claims.drain(1..=claims.len() - CLAIMS_MAX + 1);
        }
        claims.push(new);
        claims
    }

    fn tail(&self) -> Mark {
        *self.marks.first().expect("a journal begins somewhere")
    }

    fn end(&self) -> Mark {
        *self.marks.last().expect("a journal ends somewhere")
    }

    fn is_empty(&self) -> bool {
        self.marks.len() == 1
    }

    fn has(&self, mark: Mark) -> bool {
        let found = self.marks.binary_search_by_key(&mark.pos, |m| m.pos);
        found.is_ok_and(|n| self.marks[n] == mark)
    }
}

/// Who wants the volume.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub host: String,
    pub take_over: bool,
    /// The journal at hand. It exists before the claim that names it, so that a crash in between
    /// finds it again.
    pub local: LocalJournal,
    pub size_at_creation: Option<u64>,
    /// How long a slot of the log stays filled once a checkpoint covers it: the volume's, and so the same for all hosts.
    pub grace: Duration,
}

/// A volume taken. Its epoch goes on in the journal at hand, from `committed.walk.mark()`.
pub struct Claimed {
    pub writer: LogWriter,
    /// For the one publisher of the epoch.
    pub slots: Slots,
    pub committed: Committed,
}

/// What a look at the log says of a claim.
pub enum Prospect {
    Free(Box<Attempt>),
    /// The journal at hand is an older copy: the store has all it holds, and what follows there is not in it. Come again
    /// with a fresh journal.
    JournalObsolete,
}

/// A claim that nothing speaks against, not put yet.
pub struct Attempt {
    committed: Committed,
    slot: Slot,
    claim: Claim,
    claims: Vec<Salt>,
    size_at_creation: Option<u64>,
    grace: Duration,
}

/// Looks whether the volume can be taken.
///
/// # Errors
/// `InUse` when another writer holds it and `take_over` is not set; `StaleJournal` when the journal at
/// hand holds data that cannot be shown to be in the store; `Corrupt` when the store is behind the journal.
pub async fn look(env: &Env, stores: &Stores, keys: &VolumeKeys, request: &ClaimRequest) -> Result<Prospect> {
    let committed = read_committed(env, stores.read.as_ref(), keys, request.size_at_creation).await?;
    let walk = &committed.walk;
    check_holder(walk, request)?;
    let Some(start) = start_mark(walk, &request.local)? else { return Ok(Prospect::JournalObsolete) };
    check_claim(walk, request)?;
    let salt = Salt(env.random_bytes());
    let epoch = Epoch(walk.epoch_max.0 + 1);
    let nonce = SealNonce(env.random_bytes());
    let checkpoint = committed.checkpoint_name();
    let slot = Slot { volume: keys.volume, epoch, seq: walk.seq.next(), salt, nonce, checkpoint };
    let claim = Claim {
        host: request.host.clone(),
        wall_ms: env.wall_ms(),
        journal: request.local.id,
        start,
        size_bytes: walk.size_bytes,
    };
    let claims = request.local.claims_with(walk.salt(), salt);
    let ClaimRequest { size_at_creation, grace, .. } = *request;
    Ok(Prospect::Free(Box::new(Attempt { committed, slot, claim, claims, size_at_creation, grace })))
}

impl Attempt {
    /// What the journal at hand must name, durably, before this is put: the log may have it whatever happens then.
    pub fn claims(&self) -> &[Salt] {
        &self.claims
    }

    /// Takes the volume; `None` if somebody was first: look again, what it is decides how to go on.
    pub async fn put(self, env: &Env, stores: &Stores, keys: &VolumeKeys) -> Result<Option<Claimed>> {
        let Attempt { mut committed, slot, claim, size_at_creation, grace, .. } = self;
        let Slot { epoch, seq, salt, .. } = slot;
        let store = &stores.read;
        let body = encode_claim(keys.key.as_deref(), &slot, &claim);
        let head = readable(keys, &slot, &body)?;
        let object_bytes = body.len() as u64;
        let key = keys::entry(seq);
        // Before the first put of all: another writer may be at work, and what it has put is not overwritten.
        refuse_if_overwriting(stores).await?;
        let put = put_in_any_case(env, store, &key, &body).await?;
        if put == Put::Exists && !is_ours(store, keys, &head, object_bytes).await? {
            return Ok(None);
        }
        let seen = env.now();
        let names = checkpoint_names(store.as_ref()).await?;
        let is_behind = committed.is_behind(&names);
        if !is_behind {
            let was_held = committed.walk.is_held();
            committed.walk.step(&head, &Entry::Claim(claim));
            if was_held {
                // Whoever held it may have left objects behind our claim: they are void, and our seqs begin
                // after them.
                committed.walk_on(store.as_ref(), keys).await?;
            }
        }
        if is_behind || committed.is_told_of_another() {
            committed = read_committed(env, store.as_ref(), keys, size_at_creation).await?;
        }
        if committed.walk.epoch > epoch {
            return Err(Error::Fenced { ours: epoch.0, theirs: committed.walk.epoch.0 });
        }
        if committed.walk.salt() != Some(salt) {
            return Ok(None); // the log went on without it: it lies in an emptied slot
        }
        // Before anything is written: a log that is out of sight is then not taken for that of a new volume.
        if committed.checkpoint.is_none() && !is_there(store.as_ref(), keys::LOG_PROOF).await? {
            put_in_any_case(env, store, keys::LOG_PROOF, &keys::LOG_PROOF_BODY.into()).await?;
        }
        let next = committed.walk.seq.next();
        let checkpoint = committed.checkpoint_name();
        let tenure = Tenure { keys: keys.clone(), epoch, salt, next, seen, grace, checkpoint };
        let (writer, slots) = LogWriter::claimed(env.clone(), stores, tenure);
        Ok(Some(Claimed { writer, slots, committed }))
    }
}

/// Puts what an opening needs. A user who cannot open the volume cannot discard anything either: so where there is no room the reserve goes, and the user has
/// a minute to make some.
async fn put_in_any_case(env: &Env, store: &SharedStore, key: &str, body: &Bytes) -> Result<Put> {
    let until = env.now() + NO_ROOM_PATIENCE;
    let mut is_told = false;
    loop {
        match store.put_if_absent(key, body.clone()).await.map_err(Error::from) {
            Err(e @ Error::NoRoom(_)) if env.now() < until => {
                if Reserve::new(store.clone()).give_up().await? {
                    continue;
                }
                if !std::mem::replace(&mut is_told, true) {
                    tracing::warn!(error = %e, "the volume cannot be opened yet; it is tried for a minute");
                }
                env.sleep(NO_ROOM_PAUSE).await;
            }
            put => return put,
        }
    }
}

/// Whether the object that is there already is this very claim, put by an attempt whose reply was lost.
async fn is_ours(
    store: &SharedStore,
    keys: &VolumeKeys,
    head: &EntryHead,
    object_bytes: u64,
) -> Result<bool> {
    let key = keys::entry(head.seq);
    if store.size(&key).await? != Some(object_bytes) {
        return Ok(false);
    }
    let listed = Listed { key, bytes: object_bytes };
    let found = read_entry(store.as_ref(), keys, head.seq, &listed).await?;
    Ok(matches!(found, SlotContent::Entry(found, _) if found == *head))
}

/// Whether another host or another journal holds the volume.
fn check_holder(walk: &Walk, request: &ClaimRequest) -> Result<()> {
    let Some(holder) = walk.claim.as_ref().filter(|c| !c.released) else { return Ok(()) };
    let own_crash = request.local.id == walk.journal && holder.host == request.host;
    if own_crash || request.take_over {
        return Ok(());
    }
    let how = match holder.host == request.host {
        true => " (the name of this host), with a journal that is not in this state directory,",
        false => "",
    };
    Err(in_use(holder, how))
}

/// Whether a copy of the journal at hand holds the volume: the claim in force was not put with this one.
fn check_claim(walk: &Walk, request: &ClaimRequest) -> Result<()> {
    let Some(holder) = walk.claim.as_ref().filter(|c| !c.released) else { return Ok(()) };
    let is_own = walk.salt().is_some_and(|salt| request.local.claims.contains(&salt));
    if is_own || request.take_over {
        return Ok(());
    }
    Err(in_use(holder, " with another copy of this state directory"))
}

fn in_use(holder: &LastClaim, how: &str) -> Error {
    Error::InUse { host: format!("{}{how}", holder.host), since: crate::units::utc(holder.wall_ms) }
}

/// Where in the journal at hand the epoch begins; `None` when that journal is obsolete. Refuses where
/// going on would drop or replay wrongly (docs/design/engine.md, "The claim decides").
fn start_mark(walk: &Walk, local: &LocalJournal) -> Result<Option<Mark>> {
    let is_last = local.id == walk.journal;
    if is_last && local.has(walk.mark()) {
        return Ok(Some(walk.mark()));
    }
    if walk.journal.0.is_nil() && local.tail().pos > JournalPos(0) {
        return Err(Error::corrupt(
            "store",
            format!(
                "it shows the volume as it was created, but this host has stored everything before journal position {}: objects are \
                 lost or out of sight (is a disk of a pool not mounted?), or an older copy was put back",
                local.tail().pos
            ),
        ));
    }
    if !is_last && local.is_empty() {
        return Ok(Some(local.end())); // nothing of it can be lost or replayed
    }
    if is_last && local.tail().pos > walk.journal_pos {
        return Err(Error::corrupt(
            "store",
            format!(
                "it is committed up to journal position {}, but the journal has freed everything before {}: the \
                 store lost objects or was restored from an older copy, or another copy of this journal was in use",
                walk.journal_pos,
                local.tail().pos
            ),
        ));
    }
    if local.is_empty() || walk.passed.contains(&(local.id, local.end())) {
        return Ok(None);
    }
    let mib = (local.end().pos.0 - local.tail().pos.0).div_ceil(256);
    let host = walk.claim.as_ref().map_or("unknown", |c| c.host.as_str());
    let why = match is_last {
        true => {
            "went on with another copy of this journal (a copied or restored state directory, or machine)"
        }
        false => "was taken over since",
    };
    Err(Error::StaleJournal(format!(
        "the journal in the state directory holds {mib} MiB of acknowledged writes that cannot be shown to be in the \
         store: the volume {why} (epoch {}, host {host}). They can neither be replayed nor dropped silently. Save them \
         with `cistern journal export`, or give them up with `cistern journal discard`, then serve again",
        walk.epoch,
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Chain;

    fn mark((pos, chain): (u64, u64)) -> Mark {
        Mark { pos: JournalPos(pos), chain: Chain(chain) }
    }

    fn journal(id: u128, marks: &[(u64, u64)]) -> LocalJournal {
        LocalJournal {
            id: JournalId(uuid::Uuid::from_u128(id)),
            marks: marks.iter().copied().map(mark).collect(),
            claims: Vec::new(),
        }
    }

    /// A walk over journal 1, which came through (10, 1), (20, 2) and (30, 3).
    fn walk() -> Walk {
        let mut walk = Walk::at_creation(1 << 20);
        walk.journal = JournalId(uuid::Uuid::from_u128(1));
        (walk.journal_pos, walk.journal_chain) = (JournalPos(30), Chain(3));
        walk.passed = [(10, 1), (20, 2), (30, 3)].map(|m| (walk.journal, mark(m))).to_vec();
        walk
    }

    fn start(local: &LocalJournal) -> Result<Option<(u64, u64)>> {
        start_mark(&walk(), local).map(|start| start.map(|m| (m.pos.0, m.chain.0)))
    }

    fn begins(id: u128, marks: &[(u64, u64)]) -> Option<(u64, u64)> {
        start(&journal(id, marks)).expect("not refused")
    }

    /// A journal goes on where the store ends if that is in its own past, and nowhere else.
    #[test]
    fn a_journal_goes_on_behind_its_own_past() {
        assert_eq!(begins(1, &[(30, 3)]), Some((30, 3)));
        assert_eq!(begins(1, &[(10, 1), (20, 2), (30, 3), (40, 4)]), Some((30, 3)));
        assert_eq!(begins(2, &[(30, 7)]), Some((30, 7)), "empty, and new here");
    }

    /// What holds nothing that is not in the store is obsolete: an older copy, whether or not its superblock knows.
    #[test]
    fn an_older_copy_is_obsolete() {
        for marks in [&[(10, 1), (20, 2)][..], &[(20, 2)], &[(5, 0), (10, 1)], &[(25, 9)], &[(30, 9)]] {
            assert_eq!(begins(1, marks), None, "{marks:?}");
        }
    }

    /// Acknowledged writes that cannot be shown to be in the store are refused wherever the positions lie: before the store's
    /// end, at it or behind it.
    #[test]
    fn what_cannot_be_shown_to_be_stored_is_refused() {
        let cases: [(u128, &[(u64, u64)]); 6] = [
            (1, &[(10, 1), (20, 9)]),
            (1, &[(20, 2), (30, 9)]),
            (1, &[(20, 2), (30, 9), (40, 4)]),
            (1, &[(20, 2), (29, 9), (31, 9)]),
            (1, &[(10, 1), (15, 9)]),
            (2, &[(10, 1), (30, 3)]),
        ];
        for (id, marks) in cases {
            let refused = start(&journal(id, marks));
            assert!(matches!(refused, Err(Error::StaleJournal(_))), "{marks:?}: {refused:?}");
        }
    }

    /// A journal that has freed what the store does not have means that the store lost it, also if nothing else is left of it.
    #[test]
    fn a_store_that_is_behind_is_refused() {
        for marks in [&[(31, 4), (40, 5)][..], &[(40, 5)]] {
            let refused = start(&journal(1, marks));
            assert!(matches!(refused, Err(Error::Corrupt { .. })), "{refused:?}");
        }
    }

    /// A journal names the claim in force and every one that may still come to the log. Where too many came to nothing,
    /// the oldest of these are forgotten, and never the one in force.
    #[test]
    fn a_journal_names_what_may_be_in_the_log() {
        let salt = |n: u8| Salt([n; 16]);
        let named = |claims: std::ops::Range<u8>, last: Option<u8>| -> Vec<u8> {
            let local = LocalJournal { claims: claims.map(salt).collect(), ..journal(1, &[(0, 0)]) };
            local.claims_with(last.map(salt), salt(99)).iter().map(|salt| salt.0[0]).collect()
        };
        assert_eq!(named(0..0, None), [99]);
        assert_eq!(named(1..4, Some(1)), [1, 2, 3, 99]);
        assert_eq!(named(1..4, Some(3)), [3, 99]);
        assert_eq!(named(1..4, Some(50)), [1, 2, 3, 99], "another's: ours may be late");
        assert_eq!(named(1..9, Some(1)), [1, 2, 3, 4, 5, 6, 7, 8, 99]);
        assert_eq!(named(1..10, Some(1)), [1, 3, 4, 5, 6, 7, 8, 9, 99]);
        assert_eq!(named(1..10, Some(2)), [2, 3, 4, 5, 6, 7, 8, 9, 99]);
    }

    /// A store that shows the volume as if no host had ever written it, to a host that has stored something, lost it or does not show it.
    #[test]
    fn a_store_that_forgot_everything_is_refused() {
        let forgotten = |marks| start_mark(&Walk::at_creation(1 << 20), &journal(1, marks));
        for marks in [&[(30, 3)][..], &[(30, 3), (40, 4)]] {
            assert!(matches!(forgotten(marks), Err(Error::Corrupt { .. })), "{marks:?}");
        }
        assert!(forgotten(&[(0, 3)]).is_ok(), "nothing was stored from it");
    }
}
