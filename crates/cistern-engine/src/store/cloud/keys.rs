//! Keys that do not stand in the environment: those of a profile, and of roles that are taken with them.
//!
//! They are fetched when a request needs them, and again before they end or when the store refused a request; a daemon that runs for months
//! sees keys that were replaced in the file within a minute. While the new ones cannot be had, the old ones are used as long as they last.

use std::{
    error::Error,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use object_store::{
    aws::{AwsAuthorizer, AwsCredential, AwsCredentialProvider},
    client::{CredentialProvider, HttpClient, HttpError, HttpRequest, HttpRequestBody},
};

use super::{
    StoreError, StoreResult,
    answer::{element, read_bounded, root_cause},
    profile::{Profile, Profiles},
    variables::Variables,
};
use crate::{
    env::Env,
    rank::{Rank, Ranked},
};

/// How often the file is looked at.
const FILE_AGE_MAX: Duration = Duration::from_secs(60);
/// Keys that the store refuses are fetched again, but not more often than this.
const DOUBT_PAUSE: Duration = Duration::from_secs(5);
/// How long a role lasts if its profile does not say; what Amazon gives to any role.
const ROLE_S: u64 = 3600;
/// New keys are fetched so long before the end, or at half of a short time.
const AHEAD: Duration = Duration::from_secs(300);
/// One who fetches new keys has so long before another does.
const FETCH_LIMIT: Duration = Duration::from_secs(30);
/// Bytes of an answer that are looked at.
const ANSWER_BYTES_MAX: usize = 64 << 10;

/// Why there are no keys. Requests fail with it, and `sort` finds it there.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct NoKeys(StoreError);

/// When the store refused a request last: keys that were fetched before that may be no good any more. Clones are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Doubt(Arc<AtomicU64>);

impl Doubt {
    pub fn raise(&self, now: Duration) {
        self.0.fetch_max(now.as_millis() as u64, Relaxed);
    }

    fn is_about(&self, fetched_at: Duration, now: Duration) -> bool {
        self.0.load(Relaxed) > fetched_at.as_millis() as u64 && now >= fetched_at + DOUBT_PAUSE
    }
}

/// Keys, and how long they are good for.
#[derive(Clone)]
struct HeldKeys {
    keys: Arc<AwsCredential>,
    fetched_at: Duration,
    renew_at: Duration,
    ends_at: Duration,
}

#[derive(Default)]
struct State {
    held: Option<HeldKeys>,
    /// Somebody fetches new ones until then.
    fetching_until: Duration,
}

/// Gives keys, which it fetches from one source.
pub(super) struct Keys {
    env: Env,
    source: KeysSource,
    doubt: Doubt,
    state: Ranked<State>,
}

/// Where keys are fetched from.
pub(super) enum KeysSource {
    /// They stand in a profile.
    File {
        variables: Variables,
        profile: String,
    },
    Role(RoleKeys),
}

/// A role that is taken with other keys.
pub(super) struct RoleKeys {
    pub with: AwsCredentialProvider,
    pub client: HttpClient,
    pub endpoint: String,
    pub region: String,
    pub arn: String,
    /// Its session's name, external id and duration may stand there.
    pub profile: Profile,
}

impl Keys {
    pub fn new(env: &Env, source: KeysSource, doubt: &Doubt) -> Arc<Keys> {
        let state = Ranked::new(Rank::World, State::default());
        Arc::new(Keys { env: env.clone(), source, doubt: doubt.clone(), state })
    }

    /// What is held if that is good enough; else the caller is to fetch.
    fn held(&self) -> Option<Arc<AwsCredential>> {
        let now = self.env.now();
        let mut state = self.state.lock();
        let is_fetched = now < state.fetching_until;
        if let Some(held) = &state.held
            && (now < held.renew_at && !self.doubt.is_about(held.fetched_at, now)
                || (is_fetched && now < held.ends_at))
        {
            return Some(held.keys.clone());
        }
        state.fetching_until = now + FETCH_LIMIT;
        None
    }

    fn keep(&self, fetched: StoreResult<HeldKeys>) -> StoreResult<Arc<AwsCredential>> {
        let now = self.env.now();
        let mut state = self.state.lock();
        state.fetching_until = Duration::ZERO;
        match (fetched, &mut state.held) {
            (Ok(new), held) => Ok(held.insert(new).keys.clone()),
            (Err(e), Some(held)) if now < held.ends_at => {
                tracing::warn!(error = %e, "no new keys for the store yet: the old ones last a while");
                (held.renew_at, held.fetched_at) = (now + FETCH_LIMIT, now);
                Ok(held.keys.clone())
            }
            (Err(e), _) => Err(e),
        }
    }

    async fn fetch(&self) -> StoreResult<HeldKeys> {
        let now = self.env.now();
        match &self.source {
            KeysSource::File { variables, profile } => {
                let keys = keys_of(Profiles::read(variables)?.named(profile, "AWS_PROFILE")?)?;
                let (keys, renew_at) = (Arc::new(keys), now + FILE_AGE_MAX);
                Ok(HeldKeys { keys, fetched_at: now, renew_at, ends_at: Duration::MAX })
            }
            KeysSource::Role(role) => {
                let lasts = Duration::from_secs(role.seconds()?);
                let keys = Arc::new(role.take().await?);
                let (renew_at, ends_at) = (now + lasts - AHEAD.min(lasts / 2), now + lasts);
                Ok(HeldKeys { keys, fetched_at: now, renew_at, ends_at })
            }
        }
    }
}

#[async_trait]
impl CredentialProvider for Keys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(keys) = self.held() {
            return Ok(keys);
        }
        let fetched = self.fetch().await;
        self.keep(fetched)
            .map_err(|e| object_store::Error::Generic { store: "keys", source: Box::new(NoKeys(e)) })
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            KeysSource::File { profile, .. } => f.debug_tuple("Keys").field(profile).finish(),
            KeysSource::Role(role) => f.debug_tuple("Keys").field(&role.arn).finish(),
        }
    }
}

/// Makes a provider of the library anew, without anything that the one before remembers.
type NewProvider = Box<dyn Fn() -> StoreResult<AwsCredentialProvider> + Send + Sync>;

/// Keys that the library fetches: of a container, a machine, a token in a file. It keeps them until they end by what their source said; when
/// the store refuses them earlier, they are fetched anew.
pub(super) struct FetchedKeys {
    env: Env,
    doubt: Doubt,
    make: NewProvider,
    state: Ranked<Fetched>,
}

struct Fetched {
    by: AwsCredentialProvider,
    /// Its keys may be sound still: a policy may have refused them. For as long as none come from the new one.
    before: Option<AwsCredentialProvider>,
    since: Duration,
}

impl FetchedKeys {
    pub fn new(env: &Env, doubt: &Doubt, make: NewProvider) -> StoreResult<Arc<FetchedKeys>> {
        let fetched = Fetched { by: make()?, before: None, since: env.now() };
        let state = Ranked::new(Rank::World, fetched);
        Ok(Arc::new(FetchedKeys { env: env.clone(), doubt: doubt.clone(), make, state }))
    }

    fn providers(&self) -> StoreResult<(AwsCredentialProvider, Option<AwsCredentialProvider>)> {
        let now = self.env.now();
        let mut state = self.state.lock();
        if self.doubt.is_about(state.since, now) {
            let before = std::mem::replace(&mut state.by, (self.make)()?);
            (state.before, state.since) = (Some(before), now);
        }
        Ok((state.by.clone(), state.before.clone()))
    }
}

#[async_trait]
impl CredentialProvider for FetchedKeys {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let (by, before) = self
            .providers()
            .map_err(|e| object_store::Error::Generic { store: "keys", source: Box::new(NoKeys(e)) })?;
        match (by.get_credential().await, before) {
            (Ok(keys), _) => Ok(keys),
            (Err(e), None) => Err(e),
            (Err(e), Some(before)) => before.get_credential().await.map_err(|_| e),
        }
    }
}

impl fmt::Debug for FetchedKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchedKeys").finish_non_exhaustive()
    }
}

/// Why a request had no keys, if that is why it failed.
pub(super) fn no_keys(e: &(dyn Error + 'static)) -> Option<StoreError> {
    let mut cause = Some(e);
    while let Some(e) = cause {
        if let Some(NoKeys(why)) = e.downcast_ref::<NoKeys>() {
            return Some(why.clone());
        }
        cause = e.source();
    }
    None
}

/// The keys that stand in a profile.
fn keys_of(profile: &Profile) -> StoreResult<AwsCredential> {
    let get = |name: &str| profile.get(name).cloned();
    let (Some(key_id), Some(secret_key)) = (get("aws_access_key_id"), get("aws_secret_access_key")) else {
        return Err(StoreError::Refused("the profile has no keys any more".to_owned()));
    };
    checked(AwsCredential { key_id, secret_key, token: get("aws_session_token") })
}

/// Keys go into headers: what cannot stand there is no key.
fn checked(keys: AwsCredential) -> StoreResult<AwsCredential> {
    let is_key = |key: &String| !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
    match is_key(&keys.key_id) && is_key(&keys.secret_key) && keys.token.iter().all(is_key) {
        true => Ok(keys),
        false => Err(StoreError::Refused("the keys have characters that no key has".to_owned())),
    }
}

impl RoleKeys {
    fn seconds(&self) -> StoreResult<u64> {
        let Some(text) = self.profile.get("duration_seconds") else { return Ok(ROLE_S) };
        text.parse::<u64>().ok().filter(|s| (1..=43_200).contains(s)).ok_or_else(|| {
            StoreError::Refused(format!("duration_seconds of {} is no number of seconds: {text:?}", self.arn))
        })
    }

    /// Asks the token service for keys of the role.
    async fn take(&self) -> StoreResult<AwsCredential> {
        let doing = format!("taking the role {}", self.arn);
        let failed = |e: &HttpError| StoreError::Unreachable(format!("{doing}: {}", root_cause(e)));
        let with = self.with.get_credential().await;
        let with = with.map_err(|e| no_keys(&e).unwrap_or_else(|| StoreError::Refused(root_cause(&e))))?;
        let mut request = self.request()?;
        AwsAuthorizer::new(&with, "sts", &self.region)
            .try_authorize(&mut request, None)
            .map_err(|e| StoreError::Refused(format!("{doing}: {}", root_cause(&e))))?;
        let response = self.client.execute(request).await.map_err(|e| failed(&e))?;
        let status = response.status();
        if !status.is_success() {
            // What the answer says in detail was noted beneath.
            return Err(StoreError::Refused(format!("{doing}: {} answered {status}", self.endpoint)));
        }
        let (body, _) = read_bounded(response.into_body(), ANSWER_BYTES_MAX).await.map_err(|e| failed(&e))?;
        let text = String::from_utf8_lossy(&body);
        let get = |name| element(&text, name).map(str::to_owned);
        match (get("AccessKeyId"), get("SecretAccessKey"), get("SessionToken")) {
            (Some(key_id), Some(secret_key), token) => checked(AwsCredential { key_id, secret_key, token }),
            _ => Err(StoreError::Refused(format!("{doing}: {} answered without keys", self.endpoint))),
        }
    }

    fn request(&self) -> StoreResult<HttpRequest> {
        let session = self.profile.get("role_session_name").map_or("cistern", String::as_str);
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        form.append_pair("Action", "AssumeRole").append_pair("Version", "2011-06-15");
        form.append_pair("RoleArn", &self.arn).append_pair("RoleSessionName", session);
        form.append_pair("DurationSeconds", &self.seconds()?.to_string());
        if let Some(id) = self.profile.get("external_id") {
            form.append_pair("ExternalId", id);
        }
        hyper::http::Request::post(format!("{}/", self.endpoint.trim_end_matches('/')))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(HttpRequestBody::from(form.finish()))
            .map_err(|e| StoreError::Refused(format!("{}: {e}", self.endpoint)))
    }
}
