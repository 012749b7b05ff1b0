//! How fast a command reads from a store: a rate, or a file that says one and may be changed meanwhile.

use std::{fs::File, io::Read, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use cistern_engine::store::{Rates, Scheduler};

use crate::{
    failure::{Failure, Outcome},
    quantity::ByteSize,
    terminal,
};

/// How often a file is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes of it that are looked at.
const FILE_BYTES_MAX: u64 = 64;

/// What `--rate` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReadRate {
    Fixed(ByteSize),
    /// In the form of the other one; nothing in it is no limit.
    File(PathBuf),
}

impl FromStr for ReadRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix('@') {
            Some("") => Err("behind @ is the name of a file".to_owned()),
            Some(path) => Ok(ReadRate::File(path.into())),
            None => text.parse().map(ReadRate::Fixed),
        }
    }
}

impl ReadRate {
    /// Limits what a scheduler reads, for as long as that is used.
    ///
    /// # Errors
    /// A file that cannot be read, or says something else.
    pub fn limit(&self, scheduler: &Arc<Scheduler>) -> Outcome<()> {
        let mut rate = self.now().map_err(Failure::usage)?;
        set(scheduler, rate);
        if let ReadRate::Fixed(_) = self {
            return Ok(());
        }
        let (source, scheduler) = (self.clone(), Arc::downgrade(scheduler));
        tokio::spawn(async move {
            let mut said = None;
            loop {
                tokio::time::sleep(LOOK_EVERY).await;
                let Some(scheduler) = scheduler.upgrade() else { return };
                match source.now() {
                    Ok(now) => {
                        if now != rate {
                            set(&scheduler, now);
                            terminal::remark(match now {
                                Some(rate) => {
                                    format!("reading at most {} per second from now on", ByteSize(rate))
                                }
                                None => "reading without a limit from now on".to_owned(),
                            });
                        }
                        (rate, said) = (now, None);
                    }
                    // It may be on its way to be written.
                    Err(why) if said.as_ref() != Some(&why) => {
                        terminal::remark(format!("{why}; the rate stays as it is"));
                        said = Some(why);
                    }
                    Err(_) => {}
                }
            }
        });
        Ok(())
    }

    /// Bytes per second.
    fn now(&self) -> Result<Option<u64>, String> {
        let path = match self {
            ReadRate::Fixed(rate) => return Ok(Some(rate.0)),
            ReadRate::File(path) => path,
        };
        let named = |why: String| format!("--rate names {}: {why}", path.display());
        // To open a pipe would wait for somebody who writes, each time.
        if path.metadata().is_ok_and(|found| !found.is_file()) {
            return Err(named("it is no regular file".to_owned()));
        }
        let mut text = String::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_string(&mut text))
            .map_err(|e| named(e.to_string()))?;
        match text.trim() {
            "" => Ok(None),
            rate => rate.parse::<ByteSize>().map(|rate| Some(rate.0)).map_err(named),
        }
    }
}

fn set(scheduler: &Arc<Scheduler>, rate: Option<u64>) {
    scheduler.set_rates(Rates { upload: None, download: rate });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A rate, or the name of a file behind @; what is neither is refused.
    #[test]
    fn what_a_rate_may_be() {
        assert_eq!("50M".parse(), Ok(ReadRate::Fixed(ByteSize(50 << 20))));
        assert_eq!("@/run/rate".parse(), Ok(ReadRate::File("/run/rate".into())));
        for text in ["", "@", "fast", "50MB"] {
            assert!(text.parse::<ReadRate>().is_err(), "{text}");
        }
    }
}
