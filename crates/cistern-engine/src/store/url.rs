//! URLs of volumes, and how a store is opened from one.
//!
//! One URL names a store and a volume in it (the last component). Secrets are never part of it.
//! Forms and rules: `docs/format/store.md`.

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{CloudStore, DirectoryStore, SharedStore, Variables, key::is_component};
use crate::{Error, Result, env::Env};

/// Bytes of the longest prefix within a bucket: leaves half of what clouds allow to our keys.
const PREFIX_BYTES_MAX: usize = 400;

/// The kind of a store, and the bucket in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorePlace {
    S3 { bucket: String },
    Google { bucket: String },
    Azure { container: String },
    Directory,
}

/// Names a volume, or the place where volumes lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl {
    place: StorePlace,
    /// Components below the bucket, or from the root of the file system.
    components: Vec<String>,
}

impl StoreUrl {
    /// Understands `s3://bucket/prefix/name`, `gs://..`, `az://container/..`, `file:///path/name`
    /// and paths that begin with `/`, `./` or `../`. `Invalid` with what to write instead.
    pub fn parse(text: &str) -> Result<StoreUrl> {
        match text.split_once("://") {
            Some(("file", path)) if path.starts_with('/') => parse_path(path),
            Some(("file", _)) => Err(Error::Invalid("write file:///path with three slashes".to_owned())),
            Some((scheme @ ("s3" | "gs" | "az"), rest)) => parse_cloud(scheme, rest),
            Some((scheme @ ("http" | "https"), _)) => Err(Error::Invalid(format!(
                "{scheme}:// is the address of a server, not of a volume: write s3://bucket/name, and the server's address \
                 into AWS_ENDPOINT_URL"
            ))),
            Some((scheme, _)) => {
                let known = "s3://, gs://, az:// and file:// are known";
                Err(Error::Invalid(format!("unknown kind of store {scheme}:// ({known})")))
            }
            None if is_path(text) => parse_path(text),
            None => Err(Error::Invalid(format!(
                "{text:?} is not a store URL. Write s3://bucket/name, gs://bucket/name, \
                 az://container/name, or for a directory /path/name or ./name"
            ))),
        }
    }

    pub fn place(&self) -> &StorePlace {
        &self.place
    }

    /// The volume this URL names. `Invalid` if it names none, or by an impossible name.
    pub fn volume_name(&self) -> Result<&str> {
        match self.components.last() {
            Some(name) if is_component(name) => Ok(name),
            Some(name) => Err(Error::Invalid(format!(
                "{name:?} cannot be the name of a volume: use letters, digits, '.', '_' and '-'"
            ))),
            None => Err(Error::Invalid(format!("{self} names no volume: add /name"))),
        }
    }

    /// The place in which the volume lies; `None` at the top of a bucket or file system.
    pub fn parent(&self) -> Option<StoreUrl> {
        let (_, components) = self.components.split_last()?;
        Some(StoreUrl { place: self.place.clone(), components: components.to_vec() })
    }

    /// The volume `name` in this place. `Invalid` if nothing can have that name.
    pub fn child(&self, name: &str) -> Result<StoreUrl> {
        let mut url = self.clone();
        url.components.push(name.to_owned());
        url.volume_name()?;
        Ok(url)
    }

    /// The way from this place to another one of the same store, like `../tank`. `None` where that is in another store.
    pub fn way_to(&self, other: &StoreUrl) -> Option<String> {
        let common = self.components.iter().zip(&other.components).take_while(|(a, b)| a == b).count();
        let up = std::iter::repeat_n("..", self.components.len() - common);
        let down = other.components[common..].iter().map(String::as_str);
        (self.place == other.place).then(|| up.chain(down).collect::<Vec<_>>().join("/"))
    }

    /// The place to which a way leads from here. `Invalid` where it leads nowhere.
    pub fn by_way(&self, way: &str) -> Result<StoreUrl> {
        let mut url = self.clone();
        for component in way.split('/') {
            let is_there = match component {
                ".." => url.components.pop().is_some(),
                _ => {
                    url.components.push(component.to_owned());
                    is_component(component)
                        || (url.place == StorePlace::Directory && !["", "."].contains(&component))
                }
            };
            if !is_there {
                return Err(Error::Invalid(format!("{way:?} leads nowhere from {self}")));
            }
        }
        Ok(url)
    }

    /// What other volumes share with this one: the bucket, or the directory it lies in.
    pub(super) fn neighbourhood(&self) -> String {
        let components = match self.place {
            StorePlace::Directory => self.parent().map_or_else(Vec::new, |parent| parent.components),
            _ => Vec::new(),
        };
        StoreUrl { place: self.place.clone(), components }.to_string()
    }

    /// What the keys of this store begin with in its bucket: empty, or ends in `/`.
    pub(super) fn root(&self) -> String {
        self.components.iter().map(|c| format!("{c}/")).collect()
    }

    /// The directory, `None` in a cloud.
    pub fn path(&self) -> Option<PathBuf> {
        (self.place == StorePlace::Directory)
            .then(|| PathBuf::from(format!("/{}", self.components.join("/"))))
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            StorePlace::S3 { bucket } => write!(f, "s3://{bucket}")?,
            StorePlace::Google { bucket } => write!(f, "gs://{bucket}")?,
            StorePlace::Azure { container } => write!(f, "az://{container}")?,
            StorePlace::Directory if self.components.is_empty() => write!(f, "file:///")?,
            StorePlace::Directory => write!(f, "file://")?,
        }
        self.components.iter().try_for_each(|c| write!(f, "/{c}"))
    }
}

fn is_path(text: &str) -> bool {
    matches!(text, "." | "..") || ["/", "./", "../"].iter().any(|start| text.starts_with(start))
}

/// Makes a path absolute, so that it means the same in a daemon's working directory.
fn parse_path(text: &str) -> Result<StoreUrl> {
    let absolute = std::path::absolute(Path::new(text)).map_err(|e| Error::io(text, &e))?;
    let mut components = Vec::new();
    for component in absolute.components() {
        match component {
            std::path::Component::Normal(name) => match name.to_str() {
                Some(name) => components.push(name.to_owned()),
                None => return Err(Error::Invalid(format!("{text:?} is not valid UTF-8"))),
            },
            std::path::Component::ParentDir => _ = components.pop(),
            _ => {}
        }
    }
    Ok(StoreUrl { place: StorePlace::Directory, components })
}

fn parse_cloud(scheme: &str, rest: &str) -> Result<StoreUrl> {
    // Not shown: what stands before an @ may be a secret.
    if rest.contains('@') {
        return Err(Error::Invalid(format!(
            "a {scheme}:// URL must not contain credentials: give them in the environment"
        )));
    }
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_bucket_byte = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    if bucket.is_empty() || bucket.len() > 222 || !bucket.bytes().all(is_bucket_byte) {
        return Err(Error::Invalid(format!("{bucket:?} cannot be a bucket: write {scheme}://bucket/name")));
    }
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    let components: Vec<String> = match prefix {
        "" => Vec::new(),
        _ => prefix.split('/').map(str::to_owned).collect(),
    };
    if let Some(odd) = components.iter().find(|c| !is_component(c)) {
        return Err(Error::Invalid(format!(
            "{odd:?} cannot be a part of {scheme}://{bucket}/..: use letters, digits, '.', '_' and '-'"
        )));
    }
    if prefix.len() > PREFIX_BYTES_MAX {
        return Err(Error::Invalid(format!("a prefix may be {PREFIX_BYTES_MAX} bytes long")));
    }
    let bucket = bucket.to_owned();
    let place = match scheme {
        "s3" => StorePlace::S3 { bucket },
        "gs" => StorePlace::Google { bucket },
        _ => StorePlace::Azure { container: bucket },
    };
    Ok(StoreUrl { place, components })
}

/// Opens the store of an existing volume, rooted at the volume. In a cloud nothing is sent yet; a
/// directory is looked at: `NotFound` if it is no volume's.
pub async fn open_store(url: &StoreUrl, env: &Env) -> Result<SharedStore> {
    url.volume_name()?;
    Ok(match url.path() {
        Some(path) => Arc::new(DirectoryStore::open(env, &path).await?),
        None => Arc::new(CloudStore::open(url, &Variables::of_process(), env)?),
    })
}

/// Opens a store that speaks S3 by another endpoint than the environment names.
///
/// # Errors
/// `Invalid` for a store that has none, or a text that is no endpoint.
pub fn open_endpoint(url: &StoreUrl, endpoint: &str, env: &Env) -> Result<SharedStore> {
    url.volume_name()?;
    if !matches!(url.place(), StorePlace::S3 { .. }) {
        return Err(Error::Invalid(format!("{url} has no endpoints: only s3:// does")));
    }
    let variables = Variables::of_process().with("AWS_ENDPOINT_URL_S3", endpoint);
    Ok(Arc::new(CloudStore::open(url, &variables, env)?))
}

/// Opens the store for a new volume. A directory is made, within a parent that must exist.
pub async fn create_store(url: &StoreUrl, env: &Env) -> Result<SharedStore> {
    url.volume_name()?;
    match url.path() {
        Some(path) => Ok(Arc::new(DirectoryStore::create(env, &path).await?)),
        None => open_store(url, env).await,
    }
}

/// Opens the place where volumes lie, to look for them with `list_dirs("")`.
pub async fn browse_store(url: &StoreUrl, env: &Env) -> Result<SharedStore> {
    Ok(match url.path() {
        Some(path) => Arc::new(DirectoryStore::browse(env, &path).await?),
        None => Arc::new(CloudStore::open(url, &Variables::of_process(), env)?),
    })
}

/// Removes what a volume leaves besides its objects, which must be deleted before: the directory.
pub async fn remove_store(url: &StoreUrl, env: &Env) -> Result<()> {
    url.volume_name()?;
    match url.path() {
        Some(path) => Ok(DirectoryStore::remove(env, &path).await?),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every form of URL reads back as itself, names its volume and knows its parent.
    #[test]
    fn urls_name_volume_and_parent() {
        for (text, shown, name, parent) in [
            ("s3://b/tank", "s3://b/tank", "tank", "s3://b"),
            ("s3://b/some/prefix/tank/", "s3://b/some/prefix/tank", "tank", "s3://b/some/prefix"),
            ("gs://b.c/tank", "gs://b.c/tank", "tank", "gs://b.c"),
            ("az://box/x/tank", "az://box/x/tank", "tank", "az://box/x"),
            ("file:///srv/tank", "file:///srv/tank", "tank", "file:///srv"),
            ("/srv/./x/../tank", "file:///srv/tank", "tank", "file:///srv"),
        ] {
            let url = StoreUrl::parse(text).expect(text);
            assert_eq!(url.to_string(), shown);
            assert_eq!(url.volume_name().expect(text), name);
            assert_eq!(url.parent().expect(text).to_string(), parent);
            assert_eq!(StoreUrl::parse(shown).expect(shown), url);
            assert_eq!(url.parent().expect(text).child(name).expect(text), url);
        }
    }

    /// Whoever goes the way from one place to another arrives there, also where both were moved together; another bucket can not be
    /// reached, and neither can what is above all places.
    #[test]
    fn ways_lead_from_place_to_place() {
        let url = |text: &str| StoreUrl::parse(text).expect(text);
        for (from, to, way) in [
            ("s3://b/tank", "s3://b/copy", "../copy"),
            ("s3://b/x/tank", "s3://b/y/z/copy", "../../y/z/copy"),
            ("/srv/my pools/tank", "/srv/other pools/copy", "../../other pools/copy"),
        ] {
            assert_eq!(url(from).way_to(&url(to)).as_deref(), Some(way));
            assert_eq!(url(from).by_way(way).expect(way), url(to));
        }
        assert_eq!(url("s3://a/moved/tank").by_way("../copy").expect("a way"), url("s3://a/moved/copy"));
        assert_eq!(url("s3://a/tank").way_to(&url("s3://b/tank")), None);
        for nowhere in ["../../x", "", "../a//b", "../a b"] {
            assert!(url("s3://a/tank").by_way(nowhere).is_err(), "{nowhere}");
        }
    }

    /// A relative path means a place below the working directory of whoever wrote it.
    #[test]
    fn relative_paths_become_absolute() {
        let here = std::env::current_dir().expect("there is a working directory");
        let url = StoreUrl::parse("./tank").expect("a path");
        assert_eq!(url.path(), Some(here.join("tank")));
    }

    /// What cannot be meant is refused with a text that helps, and never shows a secret.
    #[test]
    fn mistakes_are_explained() {
        let wrong = [
            ("tank", "./name"),
            ("s3:bucket/tank", "s3://bucket/name"),
            ("s4://bucket/tank", "unknown kind"),
            ("s3://", "bucket"),
            ("s3:///tank", "bucket"),
            ("s3://Bucket/tank", "bucket"),
            ("s3://b/x//tank", "letters"),
            ("s3://b/../tank", "letters"),
            ("s3://b/tank?versions", "letters"),
            ("file://tank", "three slashes"),
            ("s3://AKIA:hush@b/tank", "environment"),
        ];
        for (text, help) in wrong {
            let error = StoreUrl::parse(text).expect_err(text).to_string();
            assert!(error.contains(help), "{text}: {error}");
            assert!(!error.contains("hush"), "{error}");
        }
        assert!(StoreUrl::parse("s3://b").expect("a place").volume_name().is_err());
        assert!(StoreUrl::parse("/").expect("a place").volume_name().is_err());
        assert!(StoreUrl::parse("/srv/my tank").expect("a path").volume_name().is_err());
    }
}
