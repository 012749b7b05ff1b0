//! One process writes to a journal, also where the file system's lock is known to one mount or one host alone.
//!
//! `docs/design/identity.md` has the argument. In short: who takes the journal says so in it and waits before it reads it; who has it looks
//! for itself there at most a second before it writes, and again behind a write during which that look grew old. So whatever was
//! acknowledged lies in the journal before another one reads it.
//!
//! Knows nothing of superblocks and groups. Never decides by the wall clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;

use super::{
    FILE_NAME,
    format::{BEAT_BLOCK, OWNER_BLOCK, OwnerBeat, OwnerRecord, SUPERBLOCK_AREA_BLOCKS},
};
use crate::{
    disk::{AlignedBuf, Disk, DiskFile},
    env::{BoxFuture, Env, ProcessFate},
    error::{Error, Result},
    units::BLOCK_BYTES,
};

/// Before a write, the owner looks for itself again if it did not for so long.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Before a write, no look counts that began longer ago, because the look took so long.
const LOOK_AGE_MAX: Duration = Duration::from_secs(2);
/// What was written so long after the newest look began counts; behind that a new look has to say so.
const TRUST: Duration = Duration::from_secs(4);
/// How long who takes a journal waits before it reads: longer than anybody trusts a look, and so that a write may be three seconds on its
/// way and still arrives before.
const SETTLE: Duration = Duration::from_secs(5);
/// How long an owner of which nothing else is known is watched: while it is written to, there is a sign of it each second.
const WATCH: Duration = Duration::from_secs(3);

const _: () =
    assert!(LOOK_EVERY.as_nanos() < LOOK_AGE_MAX.as_nanos() && LOOK_AGE_MAX.as_nanos() < TRUST.as_nanos());
const _: () = assert!(TRUST.as_nanos() < SETTLE.as_nanos());
const _: () = assert!(WATCH.as_nanos() > 2 * LOOK_EVERY.as_nanos());

type Token = [u8; 16];

/// What a journal says of its owner.
enum Found {
    /// It has none: none ever, or one that has let go.
    Free,
    Held(OwnerRecord),
    /// What it says cannot be read, because the block was half written or is damaged.
    Unreadable,
}

/// This process has a journal.
pub(super) struct Ownership {
    env: Env,
    disk: Arc<dyn Disk>,
    token: Token,
    /// When the newest look began that found this process, in nanoseconds of the environment's clock.
    seen: AtomicU64,
    /// Signs of work that were given.
    beats: AtomicU64,
}

impl Ownership {
    /// Takes the journal of `disk`, whose lock the caller has.
    ///
    /// # Errors
    /// `Locked` if another process has it, or takes it at the same time; `NotFound` if there is no journal.
    pub async fn take(env: &Env, disk: &Arc<dyn Disk>) -> Result<Arc<Ownership>> {
        let has_ended = refuse_if_at_work(env, disk, FILE_NAME).await?;
        let owner = Ownership::drawn(env, disk);
        let writes = owner.clone();
        env.blocking(async move { writes.write(false).await }).await?;
        if !(has_ended && disk.lock_is_for_all()) {
            owner.settle().await;
        }
        owner.find_itself().await?;
        Ok(owner)
    }

    /// Makes a journal of so many bytes, with these blocks at their offsets, which is this process's when it gets its name. The caller
    /// has the lock.
    ///
    /// # Errors
    /// `Locked` if another process made one at the same time.
    pub async fn make(
        env: &Env,
        disk: &Arc<dyn Disk>,
        bytes: u64,
        blocks: &[(u64, AlignedBuf)],
    ) -> Result<Arc<Ownership>> {
        remove_unfinished(env, disk).await?;
        let owner = Ownership::drawn(env, disk);
        let unfinished = owner.unfinished(FILE_NAME);
        let file = disk.create(&unfinished, bytes).await?;
        for (offset, block) in blocks {
            file.write_at(*offset, block).await?;
        }
        owner.write_to(&*file, false).await?;
        match disk.rename(&unfinished, FILE_NAME).await {
            Ok(()) => {}
            Err(Error::Exists(_) | Error::NotFound(_)) => {
                disk.remove(&unfinished).await?;
                return Err(owner.lost_the_race());
            }
            Err(e) => return Err(e),
        }
        owner.find_itself().await?;
        Ok(owner)
    }

    /// The name of a file that is to become `name`, until it is complete. No other process knows it, so none writes to it, or gives it
    /// its name too early.
    pub fn unfinished(&self, name: &str) -> String {
        format!("{}{:032x}", beginning_of_unfinished(name), u128::from_le_bytes(self.token))
    }

    fn drawn(env: &Env, disk: &Arc<dyn Disk>) -> Arc<Ownership> {
        Arc::new(Ownership {
            env: env.clone(),
            disk: disk.clone(),
            token: env.random_bytes(),
            seen: AtomicU64::new(0),
            beats: AtomicU64::new(0),
        })
    }

    /// Waits until everything arrived that another process wrote while it had the journal.
    async fn settle(&self) {
        tracing::info!(
            journal = %self.disk.describe(), seconds = SETTLE.as_secs(),
            "whether another process uses this journal cannot be known by a lock here: waiting"
        );
        self.env.sleep(SETTLE).await;
    }

    /// Looks whether the journal belongs to this process.
    async fn find_itself(&self) -> Result<()> {
        let began = self.env.now();
        match look(&self.env, &self.disk, FILE_NAME).await?.0 {
            Found::Held(record) if record.token == self.token => {
                self.saw_itself(began);
                Ok(())
            }
            _ => Err(self.lost_the_race()),
        }
    }

    fn lost_the_race(&self) -> Error {
        Error::Locked(format!("the journal in {} (opened at the same time)", self.disk.describe()))
    }

    fn saw_itself(&self, began: Duration) {
        self.seen.store(began.as_nanos() as u64, Ordering::Release);
    }

    fn since_seen(&self, now: Duration) -> Duration {
        now.saturating_sub(Duration::from_nanos(self.seen.load(Ordering::Acquire)))
    }

    /// Whether what was written until `now` counts.
    pub fn is_sure(&self, now: Duration) -> bool {
        self.since_seen(now) < TRUST
    }

    /// Whether what is written from `now` on may be three seconds on its way.
    pub fn may_write(&self, now: Duration) -> bool {
        self.since_seen(now) < LOOK_AGE_MAX
    }

    /// Before a write: looks, if that is due. On a thread that may wait for the disk.
    async fn confirm(&self) -> Result<()> {
        if self.since_seen(self.env.now()) < LOOK_EVERY {
            return Ok(());
        }
        self.look_for_itself().await?;
        // A disk that takes seconds for every look would take as long for the write.
        while !self.may_write(self.env.now()) {
            self.look_for_itself().await?;
        }
        Ok(())
    }

    /// Behind a write: looks, if the look before it is too old.
    async fn confirm_behind(&self) -> Result<()> {
        match self.is_sure(self.env.now()) {
            true => Ok(()),
            false => self.look_for_itself().await,
        }
    }

    /// Fails if the journal is not this process's any more; says that this process is at work if it is.
    async fn look_for_itself(&self) -> Result<()> {
        let began = self.env.now();
        let file = self.disk.open_anew(FILE_NAME).await.map_err(|e| match e {
            Error::NotFound(what) => gone(what),
            other => other,
        })?;
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        file.read_at(OWNER_BLOCK * BLOCK_BYTES as u64, &mut block).await?;
        match OwnerRecord::decode(&block) {
            Some(record) if record.token == self.token => {}
            Some(record) => return Err(self.taken(&record)),
            None => {
                let what = format!("{}/{FILE_NAME}", self.disk.describe());
                return Err(Error::corrupt(what, "it does not say any more which process has it"));
            }
        }
        self.saw_itself(began);
        let count = self.beats.fetch_add(1, Ordering::Relaxed);
        OwnerBeat { token: self.token, count }.encode(&mut block);
        match file.write_at(BEAT_BLOCK * BLOCK_BYTES as u64, &block).await {
            Ok(()) | Err(Error::Full(_)) => Ok(()), // who waits for room says so where it matters
            Err(e) => Err(e),
        }
    }

    fn taken(&self, by: &OwnerRecord) -> Error {
        Error::Locked(format!(
            "the journal in {} (opened by {}; the directory is mounted twice, and its locks are not known to both)",
            self.disk.describe(),
            name_of(by)
        ))
    }

    /// Lets go, as well as that is possible: nothing is written by this process any more. On a thread that may wait for the disk.
    pub async fn release(&self) {
        if self.confirm().await.is_ok()
            && let Err(error) = self.write(true).await
        {
            tracing::debug!(journal = %self.disk.describe(), %error, "the journal still says that this process has it");
        }
    }

    async fn write(&self, is_released: bool) -> Result<()> {
        self.write_to(&*self.disk.open(FILE_NAME).await?, is_released).await
    }

    async fn write_to(&self, file: &dyn DiskFile, is_released: bool) -> Result<()> {
        let record = OwnerRecord { token: self.token, process: self.env.process(), is_released };
        let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
        record.encode(&mut block);
        file.write_at(OWNER_BLOCK * BLOCK_BYTES as u64, &block).await?;
        file.sync().await
    }
}

pub(super) fn beginning_of_unfinished(name: &str) -> String {
    format!("{name}.new-")
}

/// Whether a file is so long that it says which process has it.
fn has_owner_blocks(file: &dyn DiskFile) -> bool {
    file.len() >= SUPERBLOCK_AREA_BLOCKS * BLOCK_BYTES as u64
}

fn gone(what: String) -> Error {
    Error::Io { what, cause: "the file was deleted while in use; what is written to it would be lost".into() }
}

fn name_of(owner: &OwnerRecord) -> String {
    format!("process {} of host {}", owner.process.pid, owner.process.host)
}

/// What the journal says of its owner, and the newest sign of work.
async fn look(env: &Env, disk: &Arc<dyn Disk>, name: &str) -> Result<(Found, Option<OwnerBeat>)> {
    let (disk, name) = (disk.clone(), name.to_owned());
    let read = env
        .blocking(async move {
            let file = disk.open_anew(&name).await?;
            if !has_owner_blocks(&*file) {
                return Ok(None);
            }
            let (mut owner, mut beat) = (AlignedBuf::zeroed(BLOCK_BYTES), AlignedBuf::zeroed(BLOCK_BYTES));
            file.read_at(OWNER_BLOCK * BLOCK_BYTES as u64, &mut owner).await?;
            file.read_at(BEAT_BLOCK * BLOCK_BYTES as u64, &mut beat).await?;
            Ok::<_, Error>(Some((owner, beat)))
        })
        .await?;
    let Some((owner, beat)) = read else { return Ok((Found::Unreadable, None)) };
    let found = match OwnerRecord::decode(&owner) {
        Some(record) if record.is_released => Found::Free,
        Some(record) => Found::Held(record),
        None if owner.iter().all(|&byte| byte == 0) => Found::Free,
        None => Found::Unreadable,
    };
    Ok((found, OwnerBeat::decode(&beat)))
}

/// For who has the lock of a journal and wants to remove it or to give it another name: fails if another process writes to it, and keeps
/// others from it for some seconds.
///
/// # Errors
/// `Locked` if one does; `NotFound` if there is no journal.
pub(super) async fn keep_others_out(env: &Env, disk: &Arc<dyn Disk>) -> Result<()> {
    // One that was cut off cannot be opened by any other process either.
    let can_be_taken = has_owner_blocks(&*disk.open(FILE_NAME).await?);
    match can_be_taken && !disk.lock_is_for_all() {
        true => Ownership::take(env, disk).await.map(drop),
        false => refuse_if_at_work(env, disk, FILE_NAME).await.map(drop),
    }
}

/// Removes what is left of journals that were not finished, where no process goes on with it.
///
/// # Errors
/// Those of the disk.
pub(super) async fn remove_unfinished(env: &Env, disk: &Arc<dyn Disk>) -> Result<()> {
    for name in disk.names(&beginning_of_unfinished(FILE_NAME)).await? {
        match refuse_if_at_work(env, disk, &name).await {
            Ok(_) => disk.remove(&name).await?,
            Err(Error::Locked(_) | Error::NotFound(_)) => {} // it is finished now, or will be removed by who makes it
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// For who has the lock of a journal and wants to be alone with it: whether it is known that no other process writes to the file of that
/// name. If that is not known, none did for some seconds.
///
/// # Errors
/// `Locked` if one does; `NotFound` if there is no such file.
pub(super) async fn refuse_if_at_work(env: &Env, disk: &Arc<dyn Disk>, name: &str) -> Result<bool> {
    let (found, beat) = look(env, disk, name).await?;
    let (fate, by) = match found {
        Found::Free => return Ok(true),
        Found::Held(record) => (env.fate_of(&record.process), name_of(&record)),
        Found::Unreadable => (ProcessFate::Unknown, "a process that cannot be named".into()),
    };
    let in_use = || Error::Locked(format!("the journal in {} (opened by {by})", disk.describe()));
    match fate {
        ProcessFate::Ended => return Ok(true),
        ProcessFate::Hidden if disk.lock_is_for_all() => return Ok(true),
        ProcessFate::Runs => return Err(in_use()),
        ProcessFate::Hidden | ProcessFate::Unknown => {}
    }
    tracing::info!(
        journal = %disk.describe(), by, seconds = WATCH.as_secs(),
        "the journal was in use and not closed: watching whether it still is"
    );
    env.sleep(WATCH).await;
    let (_, later) = look(env, disk, name).await?;
    if later != beat { Err(in_use()) } else { Ok(false) }
}

/// The file of a journal for its owner: what is written through this and succeeded was there before another process could read the journal
/// as its own.
pub(super) struct OwnedFile {
    file: Arc<dyn DiskFile>,
    owner: Arc<Ownership>,
}

impl OwnedFile {
    pub fn wrap(file: Arc<dyn DiskFile>, owner: &Arc<Ownership>) -> Arc<dyn DiskFile> {
        Arc::new(OwnedFile { file, owner: owner.clone() })
    }
}

#[async_trait]
impl DiskFile for OwnedFile {
    async fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.owner.confirm().await?;
        self.file.write_at(offset, data).await?;
        self.owner.confirm_behind().await
    }

    async fn write_vectored_at(&self, offset: u64, parts: &[&[u8]]) -> Result<()> {
        self.owner.confirm().await?;
        self.file.write_vectored_at(offset, parts).await?;
        self.owner.confirm_behind().await
    }

    async fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_at(offset, out).await
    }

    async fn read_giving_way(&self, env: &Env, offset: u64, out: &mut [u8]) -> Result<()> {
        self.file.read_giving_way(env, offset, out).await
    }

    fn read_without_blocking(&self, offset: u64, len: usize) -> Option<BoxFuture<Option<AlignedBuf>>> {
        self.file.read_without_blocking(offset, len)
    }

    /// What another host sees of a write may come with this only.
    async fn sync(&self) -> Result<()> {
        self.owner.confirm().await?;
        self.file.sync().await?;
        self.owner.confirm_behind().await
    }

    fn len(&self) -> u64 {
        self.file.len()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
}
