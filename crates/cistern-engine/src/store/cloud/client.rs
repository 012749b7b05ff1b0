//! Builds a client library's store from a URL and the environment's variables.
//!
//! Credentials come from the usual variables of each cloud, and for S3 from the profiles of Amazon's tools; never from a URL. Retries of the
//! library are off, payloads are signed (so that the server checks what it received), a single delete is a plain
//! DELETE (bulk deletes are not known everywhere), and every exchange passes through `Watch`.

use std::{
    io::Read,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use object_store::{
    ClientOptions, RetryConfig,
    aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey, AwsCredentialProvider, S3ConditionalPut},
    azure::{AzureConfigKey, MicrosoftAzureBuilder},
    client::{ClientConfigKey, HttpClient, HttpConnector},
    gcp::{GoogleCloudStorageBuilder, GoogleConfigKey},
};
use reqwest::Certificate;

use super::{
    CloudStore, Inner, Library, StoreError, StoreResult,
    answer::{Watch, root_cause},
    keys::{Doubt, FetchedKeys, Keys, KeysSource, RoleKeys},
    profile::{KEYS, ProfileKeys, Profiled, Profiles, TOLD_BY_THE_HOST, completed},
    standstill::Standstill,
    variables::Variables,
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
/// A metadata service is on the same machine, or there is none.
const METADATA_CONNECT_LIMIT: Duration = Duration::from_secs(2);
const METADATA_LIMIT: Duration = Duration::from_secs(10);
/// Names a file with the certificates of authorities.
const AUTHORITIES: &str = "AWS_CA_BUNDLE";
/// Bytes of it that are read: a system's has a fifth of a MiB.
const AUTHORITIES_BYTES_MAX: u64 = 4 << 20;
/// Roles that are taken one with the other.
const ROLES_MAX: usize = 5;

impl Variables {
    /// How a store is reached: the scheme of its URL, and the host of its endpoint if that is not the vendor's own.
    pub fn address(&self, url: &StoreUrl) -> (&'static str, Option<String>) {
        match url.place() {
            StorePlace::S3 { .. } => {
                // Where the profile is wrong, whoever opens the store says so.
                let variables =
                    completed(self).map_or_else(|_| self.clone(), |completed| completed.variables);
                let host = |endpoint: &str| Some(url::Url::parse(endpoint).ok()?.host_str()?.to_owned());
                ("s3", variables.s3_endpoint().and_then(host))
            }
            StorePlace::Google { .. } => ("gs", None),
            StorePlace::Azure { .. } => ("az", None),
            StorePlace::Directory => ("file", None),
        }
    }

    /// What tells one bucket of one server from every other: its name, and by whose address it is reached. Secrets are no part
    /// of it. `None` for a directory.
    pub fn identity(&self, url: &StoreUrl) -> Option<String> {
        let address = match url.place() {
            StorePlace::S3 { .. } => {
                let completed = completed(self).ok()?.variables;
                completed.s3_endpoint().unwrap_or_default().to_owned()
            }
            StorePlace::Google { .. } => self.several(&["SERVICE_ACCOUNT", "GOOGLE_APPLICATION_CREDENTIALS"]),
            StorePlace::Azure { .. } => {
                self.several(&["AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT"])
            }
            StorePlace::Directory => return None,
        };
        Some(format!("{} {address}", url.neighbourhood()))
    }

    fn several(&self, names: &[&str]) -> String {
        let values: Vec<&str> = names.iter().map(|name| self.get(name).unwrap_or_default()).collect();
        values.join(" ")
    }

    /// The authorities of a file that is to be trusted instead of those of the system, as Amazon's tools take it.
    fn authorities(&self) -> StoreResult<Option<Vec<Certificate>>> {
        let Some(path) = self.get(AUTHORITIES) else { return Ok(None) };
        let refused = |why: &str| StoreError::Refused(format!("{AUTHORITIES} names {path}: {why}"));
        let mut pem = Vec::new();
        std::fs::File::open(path)
            .and_then(|file| file.take(AUTHORITIES_BYTES_MAX).read_to_end(&mut pem))
            .map_err(|e| refused(&root_cause(&e)))?;
        let found = Certificate::from_pem_bundle(&pem).map_err(|e| refused(&root_cause(&e)))?;
        if found.is_empty() {
            return Err(refused("no certificate is in it (PEM)"));
        }
        Ok(Some(found))
    }
}

impl CloudStore {
    /// Prepares a store; sends nothing. `Refused` when the variables cannot work.
    pub fn open(url: &StoreUrl, variables: &Variables, env: &Env) -> StoreResult<CloudStore> {
        let doubt = Doubt::default();
        let (library, bulk) = match url.place() {
            StorePlace::S3 { bucket } => s3(bucket, variables, env, &doubt)?,
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
            loses_prefix: matches!(url.place(), StorePlace::Azure { .. }),
            has_codes: !matches!(url.place(), StorePlace::Google { .. }),
            url: url.to_string(),
            in_flight: Arc::default(),
            standstill: Standstill::default(),
            doubt,
            keeps_versions: AtomicBool::new(false),
        };
        Ok(CloudStore { inner: Arc::new(inner) })
    }
}

/// The store for single requests, and the one for bulk deletes: the library knows only one way of deleting in each.
type WithBulk = (Arc<dyn Library>, Option<Arc<dyn Library>>);

fn s3(bucket: &str, variables: &Variables, env: &Env, doubt: &Doubt) -> StoreResult<WithBulk> {
    let Profiled { mut variables, keys } = completed(variables)?;
    // As for Amazon's own tools, it is that of all services.
    if let Some(endpoint) = variables.get("AWS_ENDPOINT_URL").map(str::to_owned) {
        variables.fill_in("AWS_ENDPOINT_URL_STS", &endpoint);
    }
    let is_plain = variables.s3_endpoint().is_some_and(|endpoint| endpoint.starts_with("http:"));
    if let Some(endpoint) = variables.s3_endpoint() {
        check_endpoint("AWS_ENDPOINT_URL", endpoint)?;
        // Elsewhere there is no metadata service whose answer could help.
        if keys.is_none() && !variables.has_any(KEYS) && !variables.has_any(TOLD_BY_THE_HOST) {
            return Err(StoreError::Refused(format!(
                "no credentials for {endpoint}. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
            )));
        }
    }
    let authorities = variables.authorities()?;
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
        .with_http_connector(Connector::new(bucket, is_plain, authorities.clone()));
    let fetched = || {
        let builder = builder.clone();
        let make = move || Ok(built(builder.clone())?.credentials().clone());
        Ok(FetchedKeys::new(env, doubt, Box::new(make))? as AwsCredentialProvider)
    };
    let builder = match keys {
        Some(keys) => {
            let profiles = Profiles::read(&variables)?;
            let (variables, profiles) = (&variables, &profiles);
            let sources =
                KeySources { env, variables, profiles, authorities, bucket, found: &fetched, doubt };
            builder.clone().with_credentials(sources.provider(keys, ROLES_MAX)?)
        }
        // What stands in the environment stays what it is.
        None if variables.has_any(&["AWS_ACCESS_KEY_ID", "AWS_SKIP_SIGNATURE"]) => builder,
        None => builder.clone().with_credentials(fetched()?),
    };
    let single = built(builder.clone().with_disable_bulk_delete(true))?;
    let bulk = builder.with_disable_bulk_delete(false).with_credentials(single.credentials().clone());
    Ok((Arc::new(single), Some(finish(bulk.build())?)))
}

fn built(builder: AmazonS3Builder) -> StoreResult<AmazonS3> {
    builder.build().map_err(|e| StoreError::Refused(root_cause(&e)))
}

/// What the keys of profiles are made from.
struct KeySources<'a> {
    env: &'a Env,
    variables: &'a Variables,
    profiles: &'a Profiles,
    authorities: Option<Vec<Certificate>>,
    bucket: &'a str,
    /// Keys without any profile: of the environment, the container, the machine.
    found: &'a dyn Fn() -> StoreResult<AwsCredentialProvider>,
    doubt: &'a Doubt,
}

impl KeySources<'_> {
    /// `roles_max`: so many roles may follow each other.
    fn provider(&self, keys: ProfileKeys, roles_max: usize) -> StoreResult<AwsCredentialProvider> {
        let source = match keys {
            ProfileKeys::File(profile) => KeysSource::File { variables: self.variables.clone(), profile },
            ProfileKeys::Role { name, arn, source } => {
                let Some(left) = roles_max.checked_sub(1) else {
                    return Err(StoreError::Refused(format!(
                        "the roles of the profile {name:?} have no end"
                    )));
                };
                let with = match source {
                    None => (self.found)()?,
                    // Its own keys.
                    Some(source) if source == name => self.provider(ProfileKeys::File(source), left)?,
                    Some(source) => self.provider(self.profiles.source(&source)?, left)?,
                };
                KeysSource::Role(self.role(with, &name, arn)?)
            }
        };
        Ok(Keys::new(self.env, source, self.doubt))
    }

    fn role(&self, with: AwsCredentialProvider, profile: &str, arn: String) -> StoreResult<RoleKeys> {
        let profile = self.profiles.named(profile, "AWS_PROFILE")?.clone();
        let region =
            ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| self.variables.get(name));
        let region = region.unwrap_or("us-east-1").to_owned();
        let country = if region.starts_with("cn-") { ".cn" } else { "" };
        let endpoint = match self.variables.get("AWS_ENDPOINT_URL_STS") {
            Some(endpoint) => endpoint.to_owned(),
            None => format!("https://sts.{region}.amazonaws.com{country}"),
        };
        check_endpoint("AWS_ENDPOINT_URL_STS", &endpoint)?;
        let connector = Connector::new(self.bucket, endpoint.starts_with("http:"), self.authorities.clone());
        let client =
            connector.connect(&ClientOptions::new()).map_err(|e| StoreError::Refused(root_cause(&e)))?;
        Ok(RoleKeys { with, client, endpoint, region, arn, profile })
    }
}

fn google(bucket: &str, variables: &Variables) -> StoreResult<Arc<dyn Library>> {
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
        .with_http_connector(Connector::new(bucket, false, None));
    finish(builder.build())
}

fn azure(container: &str, variables: &Variables) -> StoreResult<Arc<dyn Library>> {
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
        .with_http_connector(Connector::new(container, false, None));
    finish(builder.build())
}

fn finish<L: Library>(built: object_store::Result<L>) -> StoreResult<Arc<dyn Library>> {
    match built {
        Ok(library) => Ok(Arc::new(library)),
        Err(e) => Err(StoreError::Refused(root_cause(&e))),
    }
}

/// An endpoint must say how to talk to it; secrets in it would end in logs.
fn check_endpoint(variable: &str, endpoint: &str) -> StoreResult<()> {
    let complaint = match url::Url::parse(endpoint) {
        Ok(url) if !url.username().is_empty() || url.password().is_some() => "must not contain credentials",
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => return Ok(()),
        _ => "is no address. Write it like https://host or http://host:port",
    };
    Err(StoreError::Refused(format!("{variable} {complaint}")))
}

fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

/// Makes HTTP clients that notice dead connections and whose outcomes are noted. Connections belong to the runtime
/// of the environment, whose tasks all requests are: whoever asks may be the thread of an NBD connection, which can end
/// while its HTTP connection is used again by others.
#[derive(Debug)]
struct Connector {
    /// One for everything that is built with this connector: its connections are used by all.
    client: OnceLock<HttpClient>,
    bucket: String,
    /// The endpoint has no TLS, so a host without anybody to trust will do.
    is_plain: bool,
    /// Who is trusted instead of those whom the system trusts.
    authorities: Option<Vec<Certificate>>,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The library says so of clients of metadata services only.
        let is_machine = options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let client = match self.client.get() {
            _ if is_machine => Self::make(true, || {
                Self::builder().connect_timeout(METADATA_CONNECT_LIMIT).timeout(METADATA_LIMIT).no_proxy()
            })?,
            Some(client) => client.clone(),
            None => {
                let made = Self::make(self.is_plain, || match &self.authorities {
                    Some(authorities) => Self::builder().tls_certs_only(authorities.clone()),
                    None => Self::builder(),
                })?;
                self.client.get_or_init(|| made).clone()
            }
        };
        Ok(HttpClient::new(Watch::new(client, &self.bucket, is_machine)))
    }
}

impl Connector {
    fn new(bucket: &str, is_plain: bool, authorities: Option<Vec<Certificate>>) -> Connector {
        Connector { client: OnceLock::new(), bucket: bucket.to_owned(), is_plain, authorities }
    }

    fn make(
        is_plain: bool,
        builder: impl Fn() -> reqwest::ClientBuilder,
    ) -> object_store::Result<HttpClient> {
        let built = builder().build();
        let built = built.or_else(|e| match is_plain {
            true => builder().tls_certs_only([]).build(),
            false => Err(e),
        });
        let client = built.map_err(|e| {
            let cause = root_cause(&e);
            let text =
                format!("{cause}: has this host CA certificates (Debian: the package ca-certificates)?");
            object_store::Error::Generic { store: "HTTP client", source: text.into() }
        })?;
        Ok(HttpClient::new(client))
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

    /// Volumes of one bucket share it, those of another bucket, server or account do not, and a directory has none.
    #[test]
    fn buckets_have_an_identity() {
        let identity = |endpoint: &str, url: &str| {
            let variables = Variables::default().with("AWS_ENDPOINT_URL", endpoint);
            let variables = variables.with("AZURE_STORAGE_ACCOUNT_NAME", endpoint);
            variables.identity(&StoreUrl::parse(url).expect("a URL"))
        };
        let (here, there) = ("http://127.0.0.1:9000", "http://127.0.0.1:9001");
        let tank = identity(here, "s3://b/tank");
        assert!(tank.is_some() && tank == identity(here, "s3://b/x/pool"));
        for other in
            [identity(there, "s3://b/tank"), identity(here, "s3://c/tank"), identity(here, "az://b/tank")]
        {
            assert!(other.is_some() && other != tank, "{other:?}");
        }
        assert_ne!(identity(here, "az://b/tank"), identity(there, "az://b/tank"));
        assert_eq!(identity(here, "/srv/tank"), None);
    }

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
