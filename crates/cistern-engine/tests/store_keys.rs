//! Where the keys of an S3 store come from besides the environment: profiles, roles, containers, machines, tokens. Keys
//! that end are replaced before, and whoever has none is told what is missing.

use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{CloudStore, Store, StoreError, StoreUrl, Variables},
};
use cistern_harness::{
    minio::{self, Minio},
    scratch::Scratch,
};

mod store_support;

use store_support::{
    env_put_forward, real_env,
    scripted::{Answer, Scripted, answer, s3_error},
};

const URL: &str = "s3://tank/some/tank";
const ETAG: (&str, &str) = ("ETag", "\"e\"");

/// A directory for the two files of profiles, and variables that name them and nothing else.
struct Home(tempfile::TempDir);

impl Home {
    fn new(config: &str, credentials: &str) -> Home {
        let home = Home(tempfile::tempdir().expect("a temporary directory"));
        home.write("config", config);
        home.write("credentials", credentials);
        home
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("written");
    }

    fn variables(&self) -> Variables {
        Variables::default()
            .with("AWS_CONFIG_FILE", &self.path("config"))
            .with("AWS_SHARED_CREDENTIALS_FILE", &self.path("credentials"))
    }
}

fn try_open(env: &Env, variables: &Variables) -> Result<CloudStore, StoreError> {
    CloudStore::open(&StoreUrl::parse(URL).expect("a URL"), variables, env)
}

fn open(env: &Env, variables: &Variables) -> CloudStore {
    try_open(env, variables).expect("a store")
}

/// A store that takes everything, and from which a client learns who asked.
async fn taking(env: &Env) -> Scripted {
    Scripted::start(env, vec![answer("200 OK", &[ETAG], b"")]).await
}

/// Puts something; gives the id of the key that signed it, and the token that came with it.
async fn put(store: &CloudStore, server: &Scripted) -> (String, Option<String>) {
    store.put("key", Bytes::from_static(b"x")).await.expect("a put");
    let request = server.seen().pop().expect("it came there");
    let signed = request.header("authorization").expect("signed");
    let id = signed.split("Credential=").nth(1).and_then(|rest| rest.split('/').next());
    (id.expect("a key").to_owned(), request.header("x-amz-security-token").map(str::to_owned))
}

fn taken_role(id: &str) -> Answer {
    taken_role_until(id, "2020-01-01T00:00:00Z")
}

fn taken_role_until(id: &str, end: &str) -> Answer {
    let xml = format!(
        "<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>{id}</AccessKeyId>\
         <SecretAccessKey>secret</SecretAccessKey><SessionToken>token-{id}</SessionToken>\
         <Expiration>{end}</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
    );
    let xml = xml.replace(
        "AssumeRole",
        if id.starts_with("WEB") { "AssumeRoleWithWebIdentity" } else { "AssumeRole" },
    );
    answer("200 OK", &[("Content-Type", "text/xml")], xml.as_bytes())
}

/// Keys as metadata services give them, which ended long ago: so each request asks for new ones.
fn told(id: &str) -> Answer {
    told_until(id, "2020-01-01T00:00:00Z")
}

fn told_until(id: &str, end: &str) -> Answer {
    let json = format!(
        r#"{{"AccessKeyId":"{id}","SecretAccessKey":"secret","Token":"token-{id}","Expiration":"{end}"}}"#
    );
    answer("200 OK", &[("Content-Type", "application/json")], json.as_bytes())
}

fn text(found: &str) -> Answer {
    answer("200 OK", &[("Content-Type", "text/plain")], found.as_bytes())
}

/// A real S3 server is reached with nothing but a profile: keys, region and endpoint are in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_profile_leads_to_a_real_server() {
    let (env, scratch) = (real_env(), Scratch::new("keys").expect("a scratch directory"));
    let minio = Minio::start(&scratch).expect("a real S3 server");
    let home = Home::new(
        &format!("[profile tank]\nregion = us-east-1\nendpoint_url = http://127.0.0.1:{}\n", minio.port()),
        &format!("[tank]\naws_access_key_id = {}\naws_secret_access_key = {}\n", minio::USER, minio::SECRET),
    );
    let store = open(&env, &home.variables().with("AWS_PROFILE", "tank"));
    store.put("key", Bytes::from_static(b"x")).await.expect("a put");
    assert_eq!(store.get("key", 10).await.expect("a get"), "x");
    assert_eq!(minio.keys("some/").expect("a listing"), ["some/tank/key"]);
}

/// A real token service gives a role's keys for those of the profile it names, and the real server takes them.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_leads_to_a_real_server() {
    let (env, scratch) = (real_env(), Scratch::new("keys").expect("a scratch directory"));
    let minio = Minio::start(&scratch).expect("a real S3 server");
    let role = "arn:minio:iam:::role/any";
    let home = Home::new(
        &format!("[profile night]\nrole_arn = {role}\nsource_profile = tank\nregion = us-east-1\n"),
        &format!("[tank]\naws_access_key_id = {}\naws_secret_access_key = {}\n", minio::USER, minio::SECRET),
    );
    let endpoint = format!("http://127.0.0.1:{}", minio.port());
    let store =
        open(&env, &home.variables().with("AWS_PROFILE", "night").with("AWS_ENDPOINT_URL", &endpoint));
    store.put("key", Bytes::from_static(b"x")).await.expect("a put");
    assert_eq!(store.get("key", 10).await.expect("a get"), "x");
}

/// Variables win over every profile; without them the profile that is named, or the default one.
#[tokio::test(flavor = "multi_thread")]
async fn variables_win() {
    let env = real_env();
    let server = taking(&env).await;
    let keys = |id: &str| format!("aws_access_key_id = {id}\naws_secret_access_key = s\n");
    let home = Home::new("", &format!("[default]\n{}[other]\n{}", keys("DEFAULT"), keys("OTHER")));
    let variables = home.variables().with("AWS_ENDPOINT_URL", &server.endpoint());
    assert_eq!(put(&open(&env, &variables), &server).await.0, "DEFAULT");
    let variables = variables.with("AWS_PROFILE", "other");
    assert_eq!(put(&open(&env, &variables), &server).await.0, "OTHER");
    let variables = variables.with("AWS_ACCESS_KEY_ID", "OURS").with("AWS_SECRET_ACCESS_KEY", "s");
    assert_eq!(put(&open(&env, &variables), &server).await.0, "OURS");
}

/// Keys that are replaced in the file are used within a minute, and a file that is away for a while changes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn replaced_keys_are_seen() {
    let (env, ahead_s) = env_put_forward();
    let server = taking(&env).await;
    let keys = |id: &str| {
        format!(
            "[default]\naws_access_key_id = {id}\naws_secret_access_key = s\naws_session_token = t-{id}\n"
        )
    };
    let home = Home::new("", &keys("OLD"));
    let store = open(&env, &home.variables().with("AWS_ENDPOINT_URL", &server.endpoint()));
    assert_eq!(put(&store, &server).await, ("OLD".to_owned(), Some("t-OLD".to_owned())));
    home.write("credentials", "");
    ahead_s.fetch_add(61, Relaxed);
    assert_eq!(put(&store, &server).await.0, "OLD");
    home.write("credentials", &keys("NEW"));
    ahead_s.fetch_add(61, Relaxed);
    assert_eq!(put(&store, &server).await, ("NEW".to_owned(), Some("t-NEW".to_owned())));
}

/// Keys that the store refuses are looked up again for the next request, and not for each one.
#[tokio::test(flavor = "multi_thread")]
async fn refused_keys_are_looked_up_again_at_once() {
    let (env, ahead_s) = env_put_forward();
    let refused = s3_error("403 Forbidden", "InvalidAccessKeyId");
    let fine = answer("200 OK", &[("ETag", "\"0\"")], b"");
    let server = Scripted::start(&env, vec![fine.clone(), refused.clone(), fine]).await;
    let keys = |id: &str| format!("[default]\naws_access_key_id = {id}\naws_secret_access_key = s\n");
    let home = Home::new("", &keys("OLD"));
    let store = open(&env, &home.variables().with("AWS_ENDPOINT_URL", &server.endpoint()));
    let asked = async || {
        let _ = store.put("key", Bytes::new()).await;
        let last = server.seen().pop().expect("a request");
        last.header("authorization").is_some_and(|keys| keys.contains("Credential=NEW/"))
    };
    assert!(!asked().await);
    home.write("credentials", &keys("NEW"));
    ahead_s.fetch_add(10, Relaxed);
    assert!(!asked().await, "they last a minute");
    assert!(asked().await, "they were refused");
}

/// Whatever gave the keys is asked again when the store refuses them, though they have not ended: a container's host, a machine's metadata, the
/// token service with what stands in the file by then, and that service for a role.
#[tokio::test(flavor = "multi_thread")]
async fn every_source_is_asked_again_when_keys_are_refused() {
    const LATE: &str = "2099-01-01T00:00:00Z";
    let (env, ahead_s) = env_put_forward();
    for source in ["container", "machine", "web identity", "role"] {
        let (one, two) = if source == "web identity" { ("WEB1", "WEB2") } else { ("ONE", "TWO") };
        let script: Vec<Answer> = match source {
            "container" => vec![told_until(one, LATE), told_until(two, LATE)],
            "machine" => [one, two]
                .into_iter()
                .flat_map(|id| [text("session"), text("role"), told_until(id, LATE)])
                .collect(),
            _ => vec![taken_role_until(one, LATE), taken_role_until(two, LATE)],
        };
        let refused = s3_error("400 Bad Request", "ExpiredToken");
        let fine = answer("200 OK", &[ETAG], b"");
        let server = Scripted::start(&env, vec![fine.clone(), fine.clone(), refused, fine]).await;
        let host = Scripted::start(&env, script).await;
        let home = Home::new("", "");
        home.write("token", "first.token");
        let variables = home.variables().with("AWS_ENDPOINT_URL", &server.endpoint());
        let variables = match source {
            "container" => variables
                .with("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{}/keys", host.endpoint()))
                .with("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &home.path("token")),
            "machine" => variables.with("AWS_METADATA_ENDPOINT", &host.endpoint()),
            "web identity" => variables
                .with("AWS_ENDPOINT_URL_STS", &host.endpoint())
                .with("AWS_ROLE_ARN", "arn:aws:iam::1:role/pod")
                .with("AWS_WEB_IDENTITY_TOKEN_FILE", &home.path("token")),
            _ => {
                home.write(
                    "config",
                    "[default]\nrole_arn = arn:aws:iam::1:role/tank\nsource_profile = me\n\
                     [profile me]\naws_access_key_id = ME\naws_secret_access_key = s\n",
                );
                variables.with("AWS_ENDPOINT_URL_STS", &host.endpoint())
            }
        };
        let store = open(&env, &variables);
        assert_eq!(put(&store, &server).await.0, one, "{source}");
        home.write("token", "second.token");
        ahead_s.fetch_add(10, Relaxed);
        assert_eq!(put(&store, &server).await.0, one, "{source}: they last");
        store.put("key", Bytes::new()).await.expect_err("they are refused");
        assert_eq!(put(&store, &server).await.0, two, "{source}");
        if source == "web identity" {
            assert!(host.seen()[1].line.contains("second.token"), "{}", host.seen()[1].line);
        }
    }
}

/// A role is taken again before its keys end. A token service that is away then is no fault until they have ended.
#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_taken_again_before_it_ends() {
    let (env, ahead_s) = env_put_forward();
    let server = taking(&env).await;
    let away = answer("503 Service Unavailable", &[], b"");
    let script = vec![taken_role("FIRST"), away.clone(), taken_role("SECOND"), away];
    let tokens = Scripted::start(&env, script).await;
    let home = Home::new(
        "[default]\nrole_arn = arn:aws:iam::1:role/tank\nsource_profile = me\nexternal_id = x y\nduration_seconds = 900\n\
         [profile me]\naws_access_key_id = ME\naws_secret_access_key = s\n",
        "",
    );
    let variables = home.variables().with("AWS_ENDPOINT_URL_STS", &tokens.endpoint());
    let store = open(&env, &variables.with("AWS_ENDPOINT_URL", &server.endpoint()));
    for _ in 0..3 {
        assert_eq!(put(&store, &server).await, ("FIRST".to_owned(), Some("token-FIRST".to_owned())));
    }
    let asked = tokens.seen();
    assert_eq!(asked.len(), 1, "keys that last are kept");
    let form = String::from_utf8_lossy(&asked[0].body).into_owned();
    assert!(
        form.contains("Action=AssumeRole&") && form.contains("RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Ftank"),
        "{form}"
    );
    assert!(form.contains("DurationSeconds=900") && form.contains("ExternalId=x+y"), "{form}");
    assert!(
        asked[0].header("authorization").is_some_and(|a| a.contains("Credential=ME/") && a.contains("/sts/"))
    );
    ahead_s.fetch_add(700, Relaxed);
    assert_eq!(put(&store, &server).await.0, "FIRST", "they last still");
    ahead_s.fetch_add(100, Relaxed);
    assert_eq!(put(&store, &server).await.0, "SECOND");
    ahead_s.fetch_add(901, Relaxed);
    let error = store.put("key", Bytes::new()).await.expect_err("they ended");
    assert!(
        matches!(&error, StoreError::Unreachable(why) if why.contains("no credentials") && why.contains("503"))
    );
}

/// A container's keys are asked for at the address and with the token that its host gave, again when they end.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_has_keys() {
    let env = real_env();
    let server = taking(&env).await;
    let host = Scripted::start(&env, vec![told("ONE"), told("TWO")]).await;
    let home = Home::new("", "");
    home.write("token", "let me in");
    let variables = home.variables().with("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &home.path("token"));
    let variables =
        variables.with("AWS_CONTAINER_CREDENTIALS_FULL_URI", &format!("{}/keys", host.endpoint()));
    let store = open(&env, &variables.with("AWS_ENDPOINT_URL", &server.endpoint()));
    assert_eq!(put(&store, &server).await, ("ONE".to_owned(), Some("token-ONE".to_owned())));
    assert_eq!(put(&store, &server).await.0, "TWO");
    let asked = host.seen();
    assert_eq!(asked[0].line, "GET /keys HTTP/1.1");
    assert_eq!(asked[0].header("authorization"), Some("let me in"));
}

/// A machine's role is asked for as version 2 of Amazon's metadata service wants it, again when its keys end; a machine
/// without one is told so, and not that there is no volume.
#[tokio::test(flavor = "multi_thread")]
async fn a_machine_has_keys() {
    let env = real_env();
    let server = taking(&env).await;
    let script = ["ONE", "TWO"].into_iter().flat_map(|id| [text("session"), text("role"), told(id)]);
    let machine = Scripted::start(&env, script.collect()).await;
    let variables = |metadata: &Scripted| {
        let variables = Home::new("", "").variables().with("AWS_ENDPOINT_URL", &server.endpoint());
        variables.with("AWS_METADATA_ENDPOINT", &metadata.endpoint())
    };
    let store = open(&env, &variables(&machine));
    assert_eq!(put(&store, &server).await, ("ONE".to_owned(), Some("token-ONE".to_owned())));
    assert_eq!(put(&store, &server).await.0, "TWO");
    let asked = machine.seen();
    assert_eq!(asked[0].line, "PUT /latest/api/token HTTP/1.1");
    assert_eq!(asked[2].line, "GET /latest/meta-data/iam/security-credentials/role HTTP/1.1");
    assert_eq!(asked[2].header("x-aws-ec2-metadata-token"), Some("session"));

    let without = Scripted::start(&env, vec![text("session"), answer("404 Not Found", &[], b"")]).await;
    let error = open(&env, &variables(&without)).get("volume.json", 10).await.expect_err("no role");
    assert!(
        matches!(&error, StoreError::Refused(why) if why.contains("no credentials") && why.contains("404")),
        "{error:?}"
    );
}

/// A token in a file stands for a role, as Kubernetes gives it: the token service is asked with it, again when the keys end.
/// One that it does not take is refused with its words.
#[tokio::test(flavor = "multi_thread")]
async fn a_web_identity_has_keys() {
    let env = real_env();
    let server = taking(&env).await;
    let expired = s3_error("400 Bad Request", "ExpiredTokenException");
    let tokens = Scripted::start(&env, vec![taken_role("WEB1"), taken_role("WEB2"), expired]).await;
    let home =
        Home::new("[default]\nrole_arn = arn:aws:iam::1:role/pod\nweb_identity_token_file = TOKEN\n", "");
    home.write("token", "a.jwt.token");
    let config = std::fs::read_to_string(home.path("config")).expect("readable");
    home.write("config", &config.replace("TOKEN", &home.path("token")));
    let variables = home.variables().with("AWS_ENDPOINT_URL_STS", &tokens.endpoint());
    let store = open(&env, &variables.with("AWS_ENDPOINT_URL", &server.endpoint()));
    assert_eq!(put(&store, &server).await, ("WEB1".to_owned(), Some("token-WEB1".to_owned())));
    assert_eq!(put(&store, &server).await.0, "WEB2");
    assert!(tokens.seen()[0].line.contains("WebIdentityToken=a.jwt.token"), "{}", tokens.seen()[0].line);
    let error = store.put("key", Bytes::new()).await.expect_err("the token has ended");
    assert!(matches!(&error, StoreError::Refused(why) if why.contains("ExpiredTokenException")), "{error:?}");
}

/// Profiles that cannot work are refused before anything is sent, and the text names them.
#[tokio::test(flavor = "multi_thread")]
async fn profiles_that_cannot_work_are_named() {
    let env = real_env();
    let circle = "[profile a]\nrole_arn = x\nsource_profile = b\n[profile b]\nrole_arn = y\nsource_profile = a\n\
                  [profile c]\nrole_arn = x\nsource_profile = nobody\n[profile d]\nrole_arn = x\nsource_profile = e\n\
                  [profile e]\nregion = r\n[profile f]\nrole_arn=x\nsource_profile=g\nduration_seconds=long\n\
                  [profile g]\naws_access_key_id=a\naws_secret_access_key=b\n";
    let home = Home::new(circle, "");
    for (profile, says) in [
        ("missing", "\"missing\""),
        ("a", "no end"),
        ("c", "\"nobody\""),
        ("d", "no keys"),
        ("e", "no credentials"),
    ] {
        let variables =
            home.variables().with("AWS_ENDPOINT_URL", "http://127.0.0.1:1").with("AWS_PROFILE", profile);
        let error = try_open(&env, &variables).expect_err(profile);
        assert!(matches!(&error, StoreError::Refused(why) if why.contains(says)), "{profile}: {error:?}");
    }
    let variables = home.variables().with("AWS_ENDPOINT_URL", "http://127.0.0.1:1").with("AWS_PROFILE", "f");
    let error = open(&env, &variables).get("volume.json", 1).await.expect_err("no number");
    assert!(matches!(&error, StoreError::Refused(why) if why.contains("duration_seconds")), "{error:?}");
}
