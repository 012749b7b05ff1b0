//! What goes over the wire to an S3 server, and what each of its answers means.

use bytes::Bytes;
use cistern_engine::{
    env::Env,
    store::{CloudStore, Put, Store, StoreError, StoreUrl, Variables},
};

mod store_support;

use store_support::{
    hurried_env, real_env,
    scripted::{Answer, Request, Scripted, answer, s3_error},
};

const ETAG: (&str, &str) = ("ETag", "\"0123\"");
const MODIFIED: (&str, &str) = ("Last-Modified", "Sat, 01 Mar 2025 00:00:00 GMT");

fn open(server: &Scripted, env: &Env) -> CloudStore {
    let url = StoreUrl::parse("s3://bucket/some/tank").expect("a URL");
    CloudStore::open(&url, &server.variables(), env).expect("a store")
}

/// Runs operations against a server that knows one answer.
async fn against(answer: Answer) -> (Env, Scripted, CloudStore) {
    let env = real_env();
    let server = Scripted::start(&env, vec![answer]).await;
    let store = open(&server, &env);
    (env, server, store)
}

fn partial(range: &str, body: &[u8]) -> Answer {
    answer("206 Partial Content", &[ETAG, MODIFIED, ("Content-Range", range)], body)
}

/// What a page says that is the last one.
const COMPLETE: &str = "<IsTruncated>false</IsTruncated>";

fn page(content: &str) -> Answer {
    answer("200 OK", &[], format!("<ListBucketResult>{content}</ListBucketResult>").as_bytes())
}

/// An object of a page.
fn listed(key: &str) -> String {
    format!(
        "<Contents><Key>{key}</Key><Size>9</Size><LastModified>2025-03-01T00:00:00.000Z</LastModified></Contents>"
    )
}

fn one(server: &Scripted) -> Request {
    let seen = server.seen();
    assert_eq!(seen.len(), 1, "one request, no retries: {seen:?}");
    seen[0].clone()
}

/// A conditional put is one signed PUT with If-None-Match: *, over plain HTTP with a hash of its body.
#[tokio::test(flavor = "multi_thread")]
async fn put_if_absent_is_a_conditional_put() {
    let (_env, server, store) = against(answer("200 OK", &[ETAG], b"")).await;
    assert_eq!(
        store.put_if_absent("log/7", Bytes::from_static(b"segment")).await.expect("a put"),
        Put::Created
    );
    let request = one(&server);
    assert_eq!(request.line, "PUT /bucket/some/tank/log/7 HTTP/1.1");
    assert_eq!(request.header("if-none-match"), Some("*"));
    assert_eq!(request.body, b"segment");
    assert!(request.header("authorization").is_some_and(|a| a.starts_with("AWS4-HMAC-SHA256")));
    assert_eq!(request.header("x-amz-content-sha256").map(str::len), Some(64), "the payload is signed");
}

/// A plain put carries no condition.
#[tokio::test(flavor = "multi_thread")]
async fn put_is_unconditional() {
    let (_env, server, store) = against(answer("200 OK", &[ETAG], b"")).await;
    store.put("volume.json", Bytes::from(vec![7; 300_000])).await.expect("a put");
    let request = one(&server);
    assert_eq!(request.line, "PUT /bucket/some/tank/volume.json HTTP/1.1");
    assert_eq!(request.header("if-none-match"), None);
    assert_eq!(request.body.len(), 300_000);
}

/// A range is asked for by its bytes; the answer may end with the object.
#[tokio::test(flavor = "multi_thread")]
async fn get_range_is_a_ranged_get() {
    let (_env, server, store) = against(partial("bytes 4096-4099/4100", b"tail")).await;
    assert_eq!(store.get_range("log/7", 4096..8192).await.expect("a get"), "tail");
    let request = one(&server);
    assert_eq!(request.line, "GET /bucket/some/tank/log/7 HTTP/1.1");
    assert_eq!(request.header("range"), Some("bytes=4096-8191"));
}

/// A listing is ListObjectsV2 from start-after on, for no more keys than wanted.
#[tokio::test(flavor = "multi_thread")]
async fn list_after_starts_after() {
    let object = |key: &str| listed(&format!("some/tank/{key}"));
    let page = page(&format!("{COMPLETE}{}{}", object("log/8"), object("log/9")));
    let (_env, server, store) = against(page).await;
    let listed = store.list_after("log/", "log/7", 3).await.expect("a listing");
    assert_eq!(
        listed.iter().map(|l| (l.key.as_str(), l.bytes)).collect::<Vec<_>>(),
        [("log/8", 9), ("log/9", 9)]
    );
    let line = one(&server).line;
    for part in [
        "GET /bucket?",
        "list-type=2",
        "prefix=some%2Ftank%2Flog%2F",
        "start-after=some%2Ftank%2Flog%2F7",
        "max-keys=3",
    ] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

/// What is cut goes on behind its last name where no token says more: one that is missing, empty or the same again. The order of the
/// names and the end are those of the whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_listing_goes_on() {
    const CUT: &str = "<IsTruncated>true</IsTruncated>";
    let objects = |keys: &[&str]| -> String {
        keys.iter().map(|key| listed(&format!("some/tank/log/{key}"))).collect()
    };
    let token = |token: &str| format!("<NextContinuationToken>{token}</NextContinuationToken>");
    let (first, last) = (objects(&["1", "2"]), page(&format!("{COMPLETE}{}", objects(&["3"]))));
    let sound = [page(&format!("{CUT}{}{first}", token("t"))), last.clone()];
    let missing = [page(&format!("{CUT}{first}")), last.clone()];
    let empty = [page(&format!("{CUT}{}{first}", token(""))), last.clone()];
    let unsaid = [page(&first), page(&objects(&["3"])), page("")];
    let scripts = [
        (&sound[..], "continuation-token=t"),
        (&missing, "start-after=some%2Ftank%2Flog%2F2"),
        (&empty, "start-after=some%2Ftank%2Flog%2F2"),
        (&unsaid, "start-after=some%2Ftank%2Flog%2F2"),
    ];
    for (script, asked) in scripts {
        let env = real_env();
        let server = Scripted::start(&env, script.to_vec()).await;
        let all = open(&server, &env).list_after("log/", "", 10).await.expect("a listing");
        let keys: Vec<_> = all.into_iter().map(|listed| listed.key).collect();
        assert_eq!(keys, ["log/1", "log/2", "log/3"], "{asked}");
        assert!(server.seen()[1].line.contains(asked), "{asked}: {:?}", server.seen());
    }
    // The same token again leads to where it led before.
    let twice = page(&format!("{CUT}{}{}", token("t"), objects(&["3"])));
    let env = real_env();
    let script = vec![sound[0].clone(), twice, page(&format!("{COMPLETE}{}", objects(&["4"])))];
    let server = Scripted::start(&env, script).await;
    let all = open(&server, &env).list_after("log/", "", 10).await.expect("a listing");
    assert_eq!(all.len(), 4);
    assert!(server.seen()[2].line.contains("start-after=some%2Ftank%2Flog%2F3"), "{:?}", server.seen());
}

/// What is cut and does not go on is refused after a bounded number of requests, for objects and for directories.
#[tokio::test(flavor = "multi_thread")]
async fn a_listing_that_leads_nowhere_is_refused() {
    let cut = |more: &str| page(&format!("<IsTruncated>true</IsTruncated>{more}"));
    let dirs = "<CommonPrefixes><Prefix>some/tank/map/</Prefix></CommonPrefixes>";
    for script in [cut(""), cut(&listed("some/tank/log/1")), cut(dirs)] {
        let (_env, server, store) = against(script).await;
        let wrong = store.list_after("log/", "", 10).await.expect_err("objects");
        assert!(matches!(&wrong, StoreError::Refused(_)), "{wrong:?}");
        let wrong = store.list_dirs("").await.expect_err("directories");
        assert!(matches!(&wrong, StoreError::Refused(why) if why.contains("cut off")), "{wrong:?}");
        assert!(server.seen().len() <= 4, "{:?}", server.seen());
    }
}

/// Directories are listed to the end as well: behind all that lies in the last one.
#[tokio::test(flavor = "multi_thread")]
async fn a_cut_listing_of_directories_goes_on() {
    let dir = |name: &str| format!("<CommonPrefixes><Prefix>some/tank/{name}/</Prefix></CommonPrefixes>");
    let env = real_env();
    let cut = page(&format!("<IsTruncated>true</IsTruncated>{}{}", dir("a"), dir("b")));
    let server = Scripted::start(&env, vec![cut, page(&format!("{COMPLETE}{}", dir("c")))]).await;
    assert_eq!(open(&server, &env).list_dirs("").await.expect("a listing"), ["a", "b", "c"]);
    assert!(server.seen()[1].line.contains("start-after=some%2Ftank%2Fb0"), "{:?}", server.seen());
}

/// A delete is one DELETE, not a bulk request that some servers do not know.
#[tokio::test(flavor = "multi_thread")]
async fn delete_is_a_plain_delete() {
    let (_env, server, store) = against(answer("204 No Content", &[], b"")).await;
    store.delete("log/7").await.expect("a delete");
    assert_eq!(one(&server).line, "DELETE /bucket/some/tank/log/7 HTTP/1.1");
}

/// Each status has one meaning, for every operation.
#[tokio::test(flavor = "multi_thread")]
async fn statuses_have_one_meaning() {
    let later = [
        s3_error("409 Conflict", "ConditionalRequestConflict"),
        s3_error("429 Too Many Requests", "TooManyRequests"),
        s3_error("500 Internal Server Error", "InternalError"),
        s3_error("503 Service Unavailable", "SlowDown"),
        answer("502 Bad Gateway", &[], b"<html>bad gateway</html>"),
        s3_error("400 Bad Request", "RequestTimeout"),
        Answer::HangUp,
    ];
    let never = [
        s3_error("401 Unauthorized", "AccessDenied"),
        s3_error("403 Forbidden", "AccessDenied"),
        s3_error("404 Not Found", "NoSuchBucket"),
        s3_error("400 Bad Request", "InvalidArgument"),
        s3_error("501 Not Implemented", "NotImplemented"),
        answer("301 Moved Permanently", &[], b""),
        answer("404 Not Found", &[], b"<!DOCTYPE html><p>nginx"),
        answer("404 Not Found", &[], b"404 page not found\n"),
        answer("404 Not Found", &[("Content-Type", "application/json")], b"{\"error\":\"no such route\"}"),
        answer("404 Not Found", &[], b""),
    ];
    for (script, retry) in later.into_iter().map(|a| (a, true)).chain(never.into_iter().map(|a| (a, false))) {
        let (_env, server, store) = against(script.clone()).await;
        let errors = [
            store.put("log/7", Bytes::new()).await.expect_err("put"),
            store.put_if_absent("log/7", Bytes::new()).await.expect_err("put"),
            store.get("log/7", 100).await.expect_err("get"),
            store.get_range("log/7", 0..10).await.expect_err("get"),
            store.list_after("log/", "", 10).await.expect_err("list"),
            store.list_dirs("").await.expect_err("list"),
        ];
        for error in &errors {
            let is_later = matches!(error, StoreError::Unreachable(_));
            let is_never = matches!(error, StoreError::Refused(_));
            assert!(if retry { is_later } else { is_never }, "{script:?}: {error:?}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(server.seen().len() >= errors.len(), "{:?}", server.seen());
    }
}

/// "Not found" is an answer for objects; "exists" is one where it was asked.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_no_errors() {
    let (_env, _server, store) = against(s3_error("404 Not Found", "NoSuchKey")).await;
    assert!(matches!(store.get("log/7", 10).await, Err(StoreError::NotFound(key)) if key == "log/7"));
    assert!(matches!(store.get_range("log/7", 0..1).await, Err(StoreError::NotFound(_))));
    store.delete("log/7").await.expect("nothing to delete");
    let (_env, _server, store) = against(s3_error("412 Precondition Failed", "PreconditionFailed")).await;
    assert_eq!(store.put_if_absent("log/7", Bytes::new()).await.expect("an answer"), Put::Exists);
    assert!(matches!(store.put("log/7", Bytes::new()).await, Err(StoreError::Refused(_))));
    let (_env, _server, store) = against(s3_error("416 Range Not Satisfiable", "InvalidRange")).await;
    assert_eq!(store.get_range("log/7", 100..200).await.expect("an answer"), "");
}

/// A success that is not an object store's is not taken for one.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_page_is_not_a_store() {
    let (_env, _server, store) = against(answer("200 OK", &[], b"<html>please log in</html>")).await;
    for error in [
        store.put_if_absent("log/7", Bytes::new()).await.expect_err("no ETag"),
        store.get("log/7", 100).await.expect_err("no ETag"),
        store.get_range("log/7", 0..10).await.expect_err("not partial"),
        store.list_after("", "", 10).await.expect_err("not XML"),
    ] {
        assert!(matches!(&error, StoreError::Refused(why) if why.contains("endpoint")), "{error:?}");
    }
}

/// Garbage, and a listing that does not end, are refused without being read for ever.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_is_refused() {
    let (_env, _server, store) = against(Answer::Raw(b"\x00\x01garbage\r\n\r\n".to_vec())).await;
    assert!(store.get("log/7", 10).await.is_err());
    assert!(store.list_after("", "", 10).await.is_err());
    let half = answer("200 OK", &[], b"<ListBucketResult><IsTruncated>false</IsTruncated>");
    let (_env, _server, store) = against(half).await;
    assert!(matches!(store.list_after("", "", 10).await, Err(StoreError::Unreachable(_))));
    let (_env, _server, store) = against(answer("200 OK", &[], &vec![b' '; 9 << 20])).await;
    let endless = store.list_after("", "", 10).await.expect_err("too long");
    assert!(matches!(&endless, StoreError::Refused(why) if why.contains("no end")), "{endless:?}");
    let (_env, _server, store) = against(s3_error("403 Forbidden", &"x".repeat(4 << 20))).await;
    assert!(store.get("log/7", 10).await.expect_err("refused").to_string().len() < 20_000);
}

/// Bytes that are no HTTP are refused as the other protocol's from whoever never answered, and are a fault that may pass
/// from whoever did: a read that meets one is tried again.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_from_a_server_that_answered_may_pass() {
    let garbage = Answer::Raw(b"\x15\x03\x03\x00\x02\x02\x46".to_vec());
    let (_env, _server, store) = against(garbage.clone()).await;
    let refused = store.get_range("log/7", 0..4).await;
    assert!(matches!(&refused, Err(StoreError::Refused(why)) if why.contains("https://")), "{refused:?}");

    let env = real_env();
    let sound = partial("bytes 0-3/8", b"abcd");
    let server = Scripted::start(&env, vec![sound, garbage]).await;
    let store = open(&server, &env);
    assert_eq!(store.get_range("log/7", 0..4).await.expect("an answer"), "abcd");
    let later = store.get_range("log/7", 0..4).await;
    assert!(matches!(later, Err(StoreError::Unreachable(_))), "{later:?}");
}

/// A listing out of order would break recovery: refused. Keys of others and markers are skipped.
#[tokio::test(flavor = "multi_thread")]
async fn listings_must_ascend() {
    let page = |keys: &[&str]| {
        let objects: String = keys.iter().map(|key| listed(key)).collect();
        page(&format!("{COMPLETE}{objects}"))
    };
    let (_env, _server, store) = against(page(&["some/tank/log/9", "some/tank/log/8"])).await;
    let wrong = store.list_after("log/", "", 10).await.expect_err("out of order");
    assert!(matches!(&wrong, StoreError::Refused(why) if why.contains("ascending")), "{wrong:?}");
    let (_env, _server, store) = against(page(&[
        "elsewhere/log/1",
        "some/tank/",
        "some/tank/log/6",
        "some/tank/log/8",
        "some/tank/logs",
    ]))
    .await;
    let listed = store.list_after("log/", "log/6", 10).await.expect("a listing");
    assert_eq!(listed.into_iter().map(|l| l.key).collect::<Vec<_>>(), ["log/8"]);
}

/// An object longer than expected is not read; one that breaks off is asked for again later.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_are_bounded_and_complete() {
    let (_env, _server, store) = against(answer("200 OK", &[ETAG, MODIFIED], &[7; 101])).await;
    assert!(
        matches!(store.get("volume.json", 100).await, Err(StoreError::Unusable { why, .. }) if why.contains("101"))
    );
    assert_eq!(store.get("volume.json", 101).await.expect("a get").len(), 101);
    let head = "HTTP/1.1 206 Partial Content\r\nContent-Length: 4096\r\nContent-Range: bytes 0-4095/9999\r\n\
                ETag: \"1\"\r\nLast-Modified: Sat, 01 Mar 2025 00:00:00 GMT\r\n\r\nonly this";
    let (_env, _server, store) = against(Answer::Raw(head.as_bytes().to_vec())).await;
    let short = store.get_range("log/7", 0..4096).await.expect_err("it broke off");
    assert!(matches!(&short, StoreError::Unreachable(_)), "{short:?}");
    let (_env, _server, store) = against(partial("bytes 0-99/9999", &[7; 100])).await;
    let other = store.get_range("log/7", 0..50).await.expect_err("another range");
    assert!(matches!(&other, StoreError::Refused(_)), "{other:?}");
}

/// A server that never answers is given up after the limit.
#[tokio::test(flavor = "multi_thread")]
async fn silence_ends() {
    let env = hurried_env();
    let server = Scripted::start(&env, vec![Answer::Silence]).await;
    let store = open(&server, &env);
    for error in [
        store.get("log/7", 10).await.expect_err("silence"),
        store.put("log/7", Bytes::from(vec![0; 200_000])).await.expect_err("silence"),
    ] {
        assert!(
            matches!(&error, StoreError::Unreachable(why) if why.contains("no answer in 3")),
            "{error:?}"
        );
    }
}

/// A server that is not there is named, with the cause.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_listens() {
    let env = real_env();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    drop(listener);
    let variables = Variables::default()
        .with("AWS_ENDPOINT_URL", &format!("http://127.0.0.1:{port}"))
        .with("AWS_ACCESS_KEY_ID", "id")
        .with("AWS_SECRET_ACCESS_KEY", "secret");
    let url = StoreUrl::parse("s3://bucket/tank").expect("a URL");
    let store = CloudStore::open(&url, &variables, &env).expect("a store");
    let error = store.get("log/7", 10).await.expect_err("nobody is there");
    assert!(
        matches!(&error, StoreError::Unreachable(why) if why.contains("127.0.0.1") && why.contains("refused")),
        "{error:?}"
    );
}

/// Variables that cannot work are refused before anything is sent, without showing secrets.
#[tokio::test(flavor = "multi_thread")]
async fn settings_are_checked() {
    let env = real_env();
    let open = |text: &str, variables: Variables| {
        let url = StoreUrl::parse(text).expect("a URL");
        CloudStore::open(&url, &variables, &env).map(|_| ()).expect_err("cannot work").to_string()
    };
    let keys = Variables::default().with("AWS_ACCESS_KEY_ID", "id").with("AWS_SECRET_ACCESS_KEY", "hush");
    for (endpoint, help) in
        [("minio.local:9000", "https://"), ("ftp://x", "https://"), ("http://a:hush@x", "credentials")]
    {
        let error = open("s3://bucket/tank", keys.clone().with("AWS_ENDPOINT_URL", endpoint));
        assert!(error.contains(help) && !error.contains("hush"), "{error}");
    }
    let anonymous = Variables::default().with("AWS_ENDPOINT_URL", "http://127.0.0.1:1");
    assert!(open("s3://bucket/tank", anonymous).contains("AWS_ACCESS_KEY_ID"));
    assert!(open("az://box/tank", Variables::default()).contains("AZURE_STORAGE_ACCOUNT_NAME"));
    assert!(open("/srv/tank", Variables::default()).contains("cloud"));
    assert!(!format!("{keys:?}").contains("hush"));
}

/// A machine that stood still, and its clock with it, is told by the date of the first answer: that one counts for nothing,
/// because what this machine knew when it asked is old. Asked again all is as ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_standstill_shows_in_the_dates() {
    let env = real_env();
    let at = |date| answer("200 OK", &[ETAG, ("Date", date)], b"");
    let (before, after) = ("Sun, 06 Nov 1994 08:49:37 GMT", "Sun, 06 Nov 1994 09:20:00 GMT");
    let server = Scripted::start(&env, vec![at(before), at(before), at(after), at(after)]).await;
    let store = open(&server, &env);
    for _ in 0..2 {
        store.put_if_absent("log/7", Bytes::new()).await.expect("a put");
    }
    let told = store.put_if_absent("log/8", Bytes::new()).await;
    assert!(matches!(&told, Err(StoreError::Unreachable(why)) if why.contains("stood still")), "{told:?}");
    store.put_if_absent("log/8", Bytes::new()).await.expect("a put");
}
