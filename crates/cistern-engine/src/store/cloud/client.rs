//! Builds a client library's store from a URL and the environment's variables.
//!
//! Credentials come from the usual variables of each cloud, never from a URL. Retries of the
//! library are off, payloads are signed (so that the server checks what it received), a single delete is a plain
//! DELETE (bulk deletes are not known everywhere), and every exchange passes through `Watch`.

use std::{
    collections::BTreeMap,
    str::FromStr,
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::Duration,
};

use object_store::{
    ClientOptions, RetryConfig,
    aws::{AmazonS3Builder, AmazonS3ConfigKey, S3ConditionalPut},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{HttpClient, HttpConnector, SpawnService},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
};

use super::{
    CloudStore, Inner, Library, StoreError, StoreResult,
    answer::{Watch, root_cause},
    standstill::Standstill,
};
use crate::{
    env::Env,
    store::url::{StorePlace, StoreUrl},
};

/// Time to connect, name lookup and TLS included.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Sent data that nobody acknowledges for so long means that the connection is dead. This tells
/// a dead link from a slow one, whatever the size of the request.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(20);
/// Silence after which the kernel asks whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(10);
/// Idle connections are closed before routers on the way forget them (many do after a minute).
const IDLE_LIMIT: Duration = Duration::from_secs(45);

/// Variables of the environment that configure a cloud's client.
#[derive(Clone, Default)]
pub struct Variables(BTreeMap<String, String>);

impl Variables {
    /// Those of this process that concern a cloud.
    pub fn of_process() -> Variables {
        let ours = |name: &str| {
            ["AWS_", "GOOGLE_", "AZURE_"].iter().any(|p| name.starts_with(p)) || name == "SERVICE_ACCOUNT"
        };
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            let (name, value) = (name.into_string().ok()?, value.into_string().ok()?);
            (ours(&name) && !value.is_empty()).then_some((name, value))
        });
        Variables(pairs.collect())
    }

    /// The same with one more.
    pub fn with(mut self, name: &str, value: &str) -> Variables {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// How a store is reached: the scheme of its URL, and the host of its endpoint if that is not the vendor's own.
    pub fn address(&self, url: &StoreUrl) -> (&'static str, Option<String>) {
        match url.place() {
            StorePlace::S3 { .. } => {
                let endpoint = self.s3_endpoint().or(self.get("AWS_ENDPOINT"));
                let host = |endpoint: &str| Some(url::Url::parse(endpoint).ok()?.host_str()?.to_owned());
                ("s3", endpoint.and_then(host))
            }
            StorePlace::Google { .. } => ("gs", None),
            StorePlace::Azure { .. } => ("az", None),
            StorePlace::Directory => ("file", None),
        }
    }

    fn s3_endpoint(&self) -> Option<&str> {
        self.get("AWS_ENDPOINT_URL_S3").or(self.get("AWS_ENDPOINT_URL"))
    }

    /// Those a builder knows, by its own names.
    fn settings<'a, K: FromStr>(&'a self, prefix: &'a str) -> impl Iterator<Item = (K, &'a str)> {
        let ours = self.0.iter().filter(move |(name, _)| name.starts_with(prefix));
        ours.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value.as_str())))
    }
}

impl std::fmt::Debug for Variables {
    /// Shows names only: values are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl CloudStore {
    /// Prepares a store; sends nothing. `Refused` when the variables cannot work.
    pub fn open(url: &StoreUrl, variables: &Variables, env: &Env) -> StoreResult<CloudStore> {
        let (library, bulk) = match url.place() {
            StorePlace::S3 { bucket } => s3(bucket, variables)?,
            StorePlace::Google { bucket } => (google(bucket, variables)?, None),
            StorePlace::Azure { container } => (azure(container, variables)?, None),
            StorePlace::Directory => return Err(StoreError::Refused(format!("{url} is not in a cloud"))),
        };
        let root = url.root();
        debug_assert!(root.is_empty() || root.ends_with('/'));
        let inner = Inner {
            env: env.clone(),
            library,
            bulk,
            root,
            url: url.to_string(),
            in_flight: AtomicU64::new(0),
            standstill: Standstill::default(),
        };
        Ok(CloudStore { inner: Arc::new(inner) })
    }
}

/// The store for single requests, and the one for bulk deletes: the library knows only one way of deleting in each.
type WithBulk = (Box<dyn Library>, Option<Box<dyn Library>>);

fn s3(bucket: &str, variables: &Variables) -> StoreResult<WithBulk> {
    let is_plain = variables.s3_endpoint().is_some_and(|endpoint| endpoint.starts_with("http:"));
    if let Some(endpoint) = variables.s3_endpoint() {
        check_endpoint("AWS_ENDPOINT_URL", endpoint)?;
        // Elsewhere there is no metadata service whose answer could help.
        let known = ["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE"];
        if known.iter().all(|name| variables.get(name).is_none()) {
            return Err(StoreError::Refused(format!(
                "no credentials for {endpoint}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            )));
        }
    }
    // Under TLS a hash of the body in the signature protects nothing more, and costs as much as all else of an upload.
    let mut builder = AmazonS3Builder::new().with_unsigned_payload(!is_plain);
    for (key, value) in variables.settings::<AmazonS3ConfigKey>("AWS_") {
        builder = builder.with_config(key, value);
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_conditional_put(S3ConditionalPut::ETagMatch)
        .with_client_options(ClientOptions::new())
        .with_retry(no_retries())
        .with_http_connector(Connector { is_plain, ..Connector::default() });
    let single = match builder.clone().with_disable_bulk_delete(true).build() {
        Ok(single) => single,
        Err(e) => return Err(StoreError::Refused(root_cause(&e))),
    };
    let bulk = builder.with_disable_bulk_delete(false).with_credentials(single.credentials().clone());
    Ok((Box::new(single), Some(finish(bulk.build())?)))
}

fn google(bucket: &str, variables: &Variables) -> StoreResult<Box<dyn Library>> {
    let mut builder = GoogleCloudStorageBuilder::new();
    if let Some(path) = variables.get("SERVICE_ACCOUNT") {
        builder = builder.with_service_account_path(path);
    }
    for (key, value) in variables.settings::<GoogleConfigKey>("GOOGLE_") {
        builder = builder.with_config(key, value);
    }
    let builder = builder
        .with_bucket_name(bucket)
        .with_client_options(ClientOptions::new())
        .with_retry(no_retries())
        .with_http_connector(Connector::default());
    finish(builder.build())
}

fn azure(container: &str, variables: &Variables) -> StoreResult<Box<dyn Library>> {
    if variables.get("AZURE_STORAGE_ACCOUNT_NAME").is_none() {
        return Err(StoreError::Refused(format!(
            "which storage account has the container {container}? Set AZURE_STORAGE_ACCOUNT_NAME"
        )));
    }
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in variables.settings::<AzureConfigKey>("AZURE_") {
        builder = builder.with_config(key, value);
    }
    let builder = builder
        .with_container_name(container)
        .with_client_options(ClientOptions::new())
        .with_retry(no_retries())
        .with_http_connector(Connector::default());
    finish(builder.build())
}

fn finish<L: Library>(built: object_store::Result<L>) -> StoreResult<Box<dyn Library>> {
    match built {
        Ok(library) => Ok(Box::new(library)),
        Err(e) => Err(StoreError::Refused(root_cause(&e))),
    }
}

/// An endpoint must say how to talk to it; secrets in it would end in logs.
fn check_endpoint(variable: &str, endpoint: &str) -> StoreResult<()> {
    let complaint = match url::Url::parse(endpoint) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => "must not contain credentials",
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => return Ok(()),
        _ => "must look like https://host or http://host:port",
    };
    Err(StoreError::Refused(format!("{variable} {complaint}")))
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

/// Makes HTTP clients that notice dead connections and whose outcomes are noted. Connections belong to the runtime
/// on which the store was opened: a request may come from the thread of an NBD connection, which can end while
/// its HTTP connection is used again by others.
#[derive(Debug, Default)]
struct Connector {
    /// One for everything that is built with this connector: its connections are used by all.
    client: OnceLock<HttpClient>,
    /// The endpoint has no TLS, so a host without anybody to trust will do.
    is_plain: bool,
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = match self.client.get() {
            Some(client) => client.clone(),
            None => {
                let made = self.make()?;
                self.client.get_or_init(|| made).clone()
            }
        };
        Ok(HttpClient::new(Watch::new(client)))
    }
}

impl Connector {
    fn make(&self) -> object_store::Result<HttpClient> {
        let built = Self::builder().build();
        let built = built.or_else(|e| match self.is_plain {
            true => Self::builder().tls_certs_only([]).build(),
            false => Err(e),
        });
        let client = built.map_err(|e| {
            let cause = root_cause(&e);
            let text =
                format!("{cause}: has this host CA certificates (Debian: the package ca-certificates)?");
            object_store::Error::Generic { store: "HTTP client", source: text.into() }
        })?;
        let spawned = SpawnService::new(client, tokio::runtime::Handle::current());
        Ok(HttpClient::new(spawned))
    }

    fn builder() -> reqwest::ClientBuilder {
        reqwest::Client::builder()
            .user_agent(concat!("cistern/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_LIMIT)
            .tcp_user_timeout(UNACKNOWLEDGED_LIMIT)
            .tcp_keepalive(KEEPALIVE)
            .tcp_keepalive_interval(KEEPALIVE)
            .tcp_keepalive_retries(2)
            .pool_idle_timeout(IDLE_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store is known by its scheme and the host of its endpoint; the vendor's own has none, nor has what is no URL.
    #[test]
    fn addresses_of_stores() {
        let with = |name: &str, value: &str| Variables::default().with(name, value);
        let r2 = "https://0123abcd.r2.cloudflarestorage.com";
        for (variables, url, expected) in [
            (Variables::default(), "s3://b/tank", ("s3", None)),
            (with("AWS_ENDPOINT_URL", r2), "s3://b/tank", ("s3", Some("0123abcd.r2.cloudflarestorage.com"))),
            (with("AWS_ENDPOINT", "http://127.0.0.1:9000"), "s3://b/tank", ("s3", Some("127.0.0.1"))),
            (with("AWS_ENDPOINT_URL_S3", "nonsense"), "s3://b/tank", ("s3", None)),
            (with("AWS_ENDPOINT_URL", r2), "gs://b/tank", ("gs", None)),
            (with("AWS_ENDPOINT_URL", r2), "az://b/tank", ("az", None)),
            (with("AWS_ENDPOINT_URL", r2), "/srv/tank", ("file", None)),
        ] {
            let (scheme, host) = variables.address(&StoreUrl::parse(url).expect("a URL"));
            assert_eq!((scheme, host.as_deref()), expected, "{url} {variables:?}");
        }
    }
}
