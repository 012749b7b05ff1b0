//! The log: the one door through which anything joins a volume.
//!
//! Owns epochs, claims, ordered commits ([`Publisher`]), checkpoints. A segment is committed when it is in the
//! store and the [`walk`] of every reader applies it (docs/design/engine.md, "The log is chained by
//! journal ranges"). Deletes nothing but its reserve, never looks inside data.

pub mod branches;
pub mod checkpoint;
pub mod hot;
pub mod identity;
pub mod keys;
pub mod origin;
pub mod roots;
pub mod trash;
pub mod uploads;
pub mod usage;
pub mod wrapping;

mod append;
mod claim;
mod committed;
#[cfg(test)]
mod emptied_tests;
mod entry;
mod presence;
mod publish;
#[cfg(test)]
mod publish_tests;
mod reserve;
mod room;
mod slots;
mod unlisted;
mod walk;

pub use append::{LogWriter, Refused, Slots};
pub use claim::{Attempt, ClaimRequest, Claimed, LocalJournal, Prospect, look};
pub use committed::{
    AppliedSegment, Committed, DamagedCheckpoint, Foreign, checkpoint_names, find_volume, has_checkpoint,
    identity_copies, identity_copy, own_store, read_committed, read_identity, read_identity_anywhere,
    read_roots, read_roots_object,
};
pub use entry::{Commit, NewEntry, NewMoved, NewSegment, Offer, nothing};
pub use presence::{GRACE, GRACE_ALONE, put_again};
pub use publish::{Ended, Offerer, Published, Publisher};
pub use room::RoomFor;
pub use slots::{SlotContent, read_emptied, read_entry};
pub use unlisted::require_listed;
pub use uploads::Vacancy;
pub use walk::{Step, Walk, salt_of};
pub use wrapping::VolumeKeys;
