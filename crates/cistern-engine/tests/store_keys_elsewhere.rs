//! Where the credentials of Azure and of Google Cloud Storage come from besides a key in the environment, as far as that can
//! be shown without an account.

use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{CloudStore, Store, StoreError, StoreUrl, Variables},
};
use cistern_harness::tool;

mod store_support;

use store_support::{
    real_env,
    scripted::{Request, Scripted, answer},
};

/// A store that takes everything.
async fn taking(env: &Env) -> Scripted {
    Scripted::start(env, vec![answer("201 Created", &[("ETag", "\"e\"")], b"")]).await
}

/// Who gives a token to everybody.
async fn giving(env: &Env) -> Scripted {
    let json =
        br#"{"access_token":"a-token","expires_in":3600,"expires_on":"4000000000","token_type":"Bearer"}"#;
    Scripted::start(env, vec![answer("200 OK", &[("Content-Type", "application/json")], json)]).await
}

async fn put(env: &Env, url: &str, variables: &Variables, server: &Scripted) -> Request {
    let store = CloudStore::open(&StoreUrl::parse(url).expect("a URL"), variables, env).expect("a store");
    store.put("key", Bytes::from_static(b"x")).await.expect("a put");
    server.seen().pop().expect("it came there")
}

fn azure(server: &Scripted, settings: &[(&str, &str)]) -> Variables {
    let variables = Variables::default()
        .with("AZURE_STORAGE_ACCOUNT_NAME", "account")
        .with("AZURE_STORAGE_ENDPOINT", &server.endpoint());
    settings.iter().fold(variables, |variables, (name, value)| variables.with(name, value))
}

/// An application of Azure's directory asks it for a token, with its secret or with the token of a pod; a machine asks
/// the service that it has for that. Each token goes with the request.
#[tokio::test(flavor = "multi_thread")]
async fn azure_gives_tokens() {
    let env = real_env();
    let (server, directory) = (taking(&env).await, giving(&env).await);
    let home = tempfile::tempdir().expect("a temporary directory");
    let token = home.path().join("token").display().to_string();
    std::fs::write(&token, "a.jwt.token").expect("written");
    let application = [("AZURE_CLIENT_ID", "me"), ("AZURE_TENANT_ID", "us")];
    let host = directory.endpoint();
    let host = ("AZURE_AUTHORITY_HOST", host.as_str());
    let machine = format!("{}/metadata/identity/oauth2/token", directory.endpoint());
    for (settings, line, body) in [
        (
            [&application[..], &[host, ("AZURE_CLIENT_SECRET", "hush")]].concat(),
            "POST /us/oauth2/v2.0/token ",
            "client_secret=hush",
        ),
        (
            [&application[..], &[host, ("AZURE_FEDERATED_TOKEN_FILE", token.as_str())]].concat(),
            "POST /us/oauth2/v2.0/token ",
            "client_assertion=a.jwt.token",
        ),
        (vec![("AZURE_MSI_ENDPOINT", machine.as_str())], "GET /metadata/identity/oauth2/token?", ""),
    ] {
        let request = put(&env, "az://box/tank", &azure(&server, &settings), &server).await;
        assert_eq!(request.line, "PUT /box/tank/key HTTP/1.1");
        assert_eq!(request.header("authorization"), Some("Bearer a-token"));
        let asked = directory.seen().pop().expect("it was asked");
        assert!(asked.line.starts_with(line), "{}", asked.line);
        assert!(String::from_utf8_lossy(&asked.body).contains(body), "{line} without {body}");
    }
}

/// A shared access signature of Azure goes with the request as it is.
#[tokio::test(flavor = "multi_thread")]
async fn azure_takes_a_signature() {
    let env = real_env();
    let server = taking(&env).await;
    let variables = azure(&server, &[("AZURE_STORAGE_SAS_TOKEN", "?sv=2021&sig=a%2Fb%3D")]);
    let request = put(&env, "az://box/tank", &variables, &server).await;
    assert!(request.line.contains("sv=2021") && request.line.contains("sig=a%2Fb%3D"), "{}", request.line);
    assert_eq!(request.header("authorization"), None);
}

/// Whoever gives no token is named, and a request without one is not sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_token_is_named() {
    let env = real_env();
    let server = taking(&env).await;
    let directory = Scripted::start(&env, vec![answer("401 Unauthorized", &[], b"invalid_client")]).await;
    let settings = [
        ("AZURE_CLIENT_ID", "me"),
        ("AZURE_TENANT_ID", "us"),
        ("AZURE_CLIENT_SECRET", "wrong"),
        ("AZURE_AUTHORITY_HOST", &directory.endpoint()),
    ];
    let url = StoreUrl::parse("az://box/tank").expect("a URL");
    let store = CloudStore::open(&url, &azure(&server, &settings), &env).expect("a store");
    let error = store.get("volume.json", 10).await.expect_err("no token");
    assert!(
        matches!(&error, StoreError::Refused(why) if why.contains("no credentials") && why.contains("invalid_client")),
        "{error:?}"
    );
    assert!(server.seen().is_empty());
}

/// The key file of a service account of Google signs a token, whichever variable names it.
#[tokio::test(flavor = "multi_thread")]
async fn google_takes_a_service_account() {
    let env = real_env();
    let server = taking(&env).await;
    let home = tempfile::tempdir().expect("a temporary directory");
    let pem = tool::run("openssl", ["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]);
    let account = serde_json::json!({
        "type": "service_account", "private_key_id": "1", "client_email": "cistern@example.invalid",
        "private_key": pem.expect("a key").stdout,
    });
    let file = home.path().join("account.json").display().to_string();
    std::fs::write(&file, account.to_string()).expect("written");
    for name in ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT"] {
        let variables = Variables::default().with(name, &file).with("GOOGLE_BASE_URL", &server.endpoint());
        let request = put(&env, "gs://box/tank", &variables, &server).await;
        assert_eq!(request.line, "PUT /box/tank%2Fkey HTTP/1.1");
        let token = request.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
        assert_eq!(token.expect("a token").split('.').count(), 3, "{name}");
    }
}
