//! Where the volume lives: a directory, or a real S3 server behind a link on which requests fail.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::Result;
use cistern_harness::{
    fixture,
    link::{Conditions, Faults, Link},
    minio::{BUCKET, Minio},
    scratch::Scratch,
    serve::Cistern,
    tree,
};

use super::Store;

/// Of a million requests.
const FAULTS: u32 = 30_000;

/// A store with a fresh volume.
pub struct Place {
    /// The program, with the way to the store.
    pub cistern: Cistern,
    pub url: String,
    directory: PathBuf,
    s3: Option<(Link, Minio)>,
}

impl Place {
    /// Creates a volume of `size`; from then on requests fail.
    pub fn start(store: Store, seed: u64, cistern: &Cistern, scratch: &Scratch, size: &str) -> Result<Place> {
        let mut place = match store {
            Store::Directory => Place {
                cistern: cistern.clone(),
                url: fixture::directory_url(scratch)?,
                directory: scratch.file("store"),
                s3: None,
            },
            Store::S3 => {
                let minio = Minio::start(scratch)?;
                let link = Link::start(minio.port())?;
                let cistern = cistern.clone().with_environment(Minio::environment(link.port()));
                let url = format!("s3://{BUCKET}/vol");
                Place {
                    cistern,
                    url,
                    directory: scratch.file(&format!("minio/0/{BUCKET}")),
                    s3: Some((link, minio)),
                }
            }
        };
        // fio's pattern would shrink to nothing.
        place.cistern.run(&["create", &place.url, "--size", size, "--compression", "none"])?;
        if let Some((link, _)) = &mut place.s3 {
            link.set(Conditions {
                faults: Some(Faults { per_million: FAULTS, seed }),
                ..Conditions::default()
            });
        }
        Ok(place)
    }

    /// No request fails any more.
    pub fn heal(&self) {
        self.s3.iter().for_each(|(link, _)| link.set(Conditions::default()));
    }

    /// Everything that takes room there.
    pub fn stored_bytes(&self) -> u64 {
        tree::bytes(&self.directory)
    }

    /// Requests, and how many of them failed in which way.
    pub fn requests(&self) -> Option<(u64, BTreeMap<&'static str, u64>)> {
        let (link, _) = self.s3.as_ref()?;
        let faults = link.faults().into_iter().map(|(fault, n)| (fault.name(), n));
        Some((link.take().total(), faults.collect()))
    }
}
