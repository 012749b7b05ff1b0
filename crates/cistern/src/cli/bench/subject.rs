//! What is measured: a volume in this process, or one that a daemon serves, as its clients see it.

use std::{path::Path, sync::Arc};

use bytes::Bytes;
use cistern_engine::volume::Volume;
use cistern_nbd::Caller;
use tokio::sync::Mutex;

use crate::{
    control::ServedStatus,
    failure::{Failure, Outcome},
};

/// A volume under load.
pub enum BenchedVolume {
    Here(Arc<Volume>),
    /// A connection for each request at once.
    Served(Vec<Mutex<Caller>>),
}

impl BenchedVolume {
    /// Connects to the daemon that serves it.
    pub fn connect(served: &ServedStatus, depth: u32) -> Outcome<BenchedVolume> {
        let Some(socket) = &served.socket else {
            let text =
                format!("{} is served, but not on a unix socket, by which it could be measured", served.name);
            return Err(Failure::usage(text)
                .hint("stop the daemon and run it again; or serve it with --listen unix:PATH as well"));
        };
        let failed = |e: &std::io::Error| cannot_connect(socket, e);
        let connect = |_| Caller::connect(socket, &served.name).map(Mutex::new);
        let callers = (0..depth).map(connect).collect::<std::io::Result<_>>().map_err(|e| failed(&e))?;
        Ok(BenchedVolume::Served(callers))
    }

    pub async fn read(&self, slot: usize, offset: u64, len: u64) -> Outcome {
        match self {
            BenchedVolume::Here(volume) => Ok(volume.read(offset, len).await.map(drop)?),
            BenchedVolume::Served(callers) => {
                let mut out = vec![0; len as usize];
                let mut caller = callers[slot].lock().await;
                caller.read(offset, &mut out).await.map_err(|e| Failure::io("cannot read", &e))
            }
        }
    }

    pub async fn write(&self, slot: usize, offset: u64, data: Bytes) -> Outcome {
        match self {
            BenchedVolume::Here(volume) => Ok(volume.write(offset, data, false).await?),
            BenchedVolume::Served(callers) => {
                let mut caller = callers[slot].lock().await;
                caller.write(offset, &data).await.map_err(|e| Failure::io("cannot write", &e))
            }
        }
    }

    pub async fn flush(&self, slot: usize) -> Outcome {
        match self {
            BenchedVolume::Here(volume) => Ok(volume.flush().await?),
            BenchedVolume::Served(callers) => {
                let mut caller = callers[slot].lock().await;
                caller.flush().await.map_err(|e| Failure::io("cannot flush", &e))
            }
        }
    }
}

fn cannot_connect(socket: &Path, e: &std::io::Error) -> Failure {
    Failure::io(format!("cannot connect to the daemon at {}", socket.display()), e)
}
