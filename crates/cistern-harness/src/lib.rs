//! What the tests and benchmarks share: real servers, real clients, real filesystems, and their end.
//!
//! Everything started here is ended here: each process, mount, loop device and directory belongs to a
//! guard whose drop removes it, also when a test fails half-way. Nothing here knows the engine: the
//! product is used as its users use it, through its binary. Never shipped.
//!
//! Nothing here sleeps to wait for a state: servers announce that they are ready, processes are
//! waited for, and everything has a time limit after which it fails with the log of what hung.
//!
//! Modules are layered and import strictly downward, never sideways (`xtask/tests/layers.rs` proves it):
//!
//! | layer | modules |
//! |---|---|
//! | 0 | `adversary`, `process`, `scratch`, `nbd`, `port`, `requests`, `sources` |
//! | 1 | `tool`, `pidfile` |
//! | 2 | `authority`, `browser`, `mount`, `fio`, `fsyncs`, `minio`, `azurite`, `gcs`, `serve`, `stacked`, `tree`, `versitygw` |
//! | 3 | `filesystem`, `plain`, `fixture`, `s3backer`, `stays`, `twice` |
//! | 4 | `history`, `link` |

pub mod adversary;
pub mod authority;
pub mod azurite;
pub mod browser;
pub mod filesystem;
pub mod fio;
pub mod fixture;
pub mod fsyncs;
pub mod gcs;
pub mod history;
pub mod link;
pub mod minio;
pub mod mount;
pub mod nbd;
pub mod pidfile;
pub mod plain;
pub mod port;
pub mod process;
pub mod requests;
pub mod s3backer;
pub mod scratch;
pub mod serve;
pub mod sources;
pub mod stacked;
pub mod stays;
pub mod tool;
pub mod tree;
pub mod twice;
pub mod versitygw;
