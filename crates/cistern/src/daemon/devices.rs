//! Devices of ublk that this daemon serves, as it was asked to.
//!
//! They end as connections do: no further request is begun, those that were are answered.

use std::sync::{Mutex, MutexGuard, atomic::Ordering};

use cistern_nbd::Exports;
use cistern_ublk::Serving;

use crate::{
    control::DeviceServed,
    daemon::{Daemon, listen},
    failure::{Failure, Kind, Outcome},
    kernel::Attachment,
};

/// Devices, each with the export that it is.
#[derive(Default)]
pub(super) struct Devices(Mutex<Vec<(String, Serving)>>);

impl Devices {
    fn all(&self) -> MutexGuard<'_, Vec<(String, Serving)>> {
        let mut all = self.0.lock().expect("nothing panics under this lock");
        all.retain(|(_, serving)| !serving.has_ended());
        all
    }

    /// Numbers of those that an export is.
    pub(super) fn of(&self, export: &str) -> Vec<u32> {
        self.all().iter().filter(|(name, _)| name == export).map(|(_, serving)| serving.device()).collect()
    }

    /// Begins no further request.
    pub(super) fn stop(&self) {
        self.all().iter().for_each(|(_, serving)| serving.stop());
    }

    /// When all have ended, which they do soon once they were told to.
    pub(super) async fn ended(&self) {
        let all = std::mem::take(&mut *self.all());
        for (_, serving) in all {
            serving.ended().await;
        }
    }
}

impl Daemon {
    /// What the kernel's devices of this host show, of this daemon or another one; nothing where it cannot be seen.
    pub(super) fn attached(&self) -> Vec<Attachment> {
        let known = Attachment::all(&self.state_dir).unwrap_or_default();
        known.into_iter().filter(Attachment::holds).collect()
    }

    /// Serves a device. Idempotent: whoever asks may have been interrupted before.
    pub(super) async fn serve_device(&self, export: &str, device: u32) -> Outcome<DeviceServed> {
        let served = DeviceServed { pid: std::process::id() };
        if self.devices.of(export).contains(&device) {
            return Ok(served);
        }
        let stopping = || Failure::new(Kind::InUse, "the daemon is stopping");
        if self.stopping.load(Ordering::SeqCst) {
            return Err(stopping());
        }
        let Some(found) = self.offered.find(export).await else {
            return Err(Failure::new(Kind::NotFound, format!("nothing is served as {export}")));
        };
        let serving = tokio::task::spawn_blocking(move || {
            cistern_ublk::serve(device, found, listen::on_thread_start, listen::STOP_LIMIT)
        });
        let serving = serving.await.expect("it does not panic");
        let serving = serving.map_err(|e| Failure::io(format!("cannot serve device {device}"), &e))?;
        let mut all = self.devices.all();
        if self.stopping.load(Ordering::SeqCst) {
            serving.stop();
            return Err(stopping());
        }
        all.push((export.to_owned(), serving));
        Ok(served)
    }
}
