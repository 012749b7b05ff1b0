//! What only a directory can do to a store: vanish, fill up with leftovers, be shared by hosts.

use std::{
    fs,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use cistern_engine::{
    Error,
    store::{
        DirectoryStore, Put, Store, StoreError, StoreUrl, browse_store, create_store, open_store,
        remove_store,
    },
};

mod store_support;

use store_support::real_env;

fn body(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

/// A directory that is not a volume's is never opened, and none is made but by creation.
#[tokio::test(flavor = "multi_thread")]
async fn only_creation_makes_a_root() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    let missing = DirectoryStore::open(&env, &root).await.expect_err("no directory");
    assert!(matches!(&missing, StoreError::NotFound(_)), "{missing:?}");
    assert!(!root.exists());
    fs::create_dir(&root).expect("an empty mount point");
    let unmounted = DirectoryStore::open(&env, &root).await.expect_err("no mark").to_string();
    assert!(unmounted.contains("mounted?") && unmounted.contains("mkdir"), "{unmounted}");
    let deep = root.join("not/there");
    let orphan = DirectoryStore::create(&env, &deep).await.expect_err("no parent");
    assert!(matches!(&orphan, StoreError::NotFound(why) if why.contains("mounted?")), "{orphan:?}");
    DirectoryStore::create(&env, &root).await.expect("an empty directory may become a root");
    DirectoryStore::open(&env, &root).await.expect("and is one then");
}

/// What a directory store makes is its owner's alone, as the journal and the cache are; what was there keeps its
/// mode. A directory with somebody's files does not become a volume's.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_for_their_owner_alone() {
    use std::os::unix::fs::PermissionsExt;
    let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    let store = DirectoryStore::create(&env, &root).await.expect("a new root");
    store.put("volume.json", body("one")).await.expect("a put");
    store.put_if_absent("log/1", body("one")).await.expect("a put");
    for made in ["", ".tmp", "log"] {
        assert_eq!(mode(&root.join(made)), 0o700, "{made}");
    }
    for made in ["volume.json", "log/1"] {
        assert_eq!(mode(&root.join(made)), 0o600, "{made}");
    }
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).expect("made");
    fs::set_permissions(&shared, fs::Permissions::from_mode(0o750)).expect("set");
    DirectoryStore::create(&env, &shared).await.expect("an empty directory may become a root");
    assert_eq!(mode(&shared), 0o750, "it is the user's");
    let home = dir.path().join("home");
    fs::create_dir(&home).expect("made");
    fs::write(home.join("letter"), "mine").expect("written");
    let refused = DirectoryStore::create(&env, &home).await.expect_err("somebody's").to_string();
    assert!(refused.contains("letter"), "{refused}");
    assert_eq!(fs::read_dir(&home).expect("readable").count(), 1, "nothing was made in it");
}

/// When the directory vanishes, every operation says so, and none makes a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_that_vanishes_is_not_an_empty_store() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    let store = DirectoryStore::create(&env, &root).await.expect("a new root");
    store.put("log/1", body("one")).await.expect("a put");
    // An unmounted file system leaves either nothing, or an empty mount point.
    for leave_mount_point in [false, true] {
        fs::rename(&root, dir.path().join("away")).expect("a rename");
        if leave_mount_point {
            fs::create_dir(&root).expect("a mount point");
        }
        let gone = |what: &str, e: StoreError| {
            assert!(matches!(&e, StoreError::Unreachable(why) if why.contains("gone")), "{what}: {e:?}");
        };
        gone("put", store.put("log/2", body("two")).await.expect_err("gone"));
        gone("put", store.put("x", body("two")).await.expect_err("gone"));
        gone("put_if_absent", store.put_if_absent("log/2", body("two")).await.expect_err("gone"));
        gone("get", store.get("log/1", 10).await.expect_err("gone"));
        gone("get_range", store.get_range("log/1", 0..1).await.expect_err("gone"));
        gone("list_after", store.list_after("log/", "", 10).await.expect_err("gone"));
        gone("list_dirs", store.list_dirs("").await.expect_err("gone"));
        gone("delete", store.delete("log/1").await.expect_err("gone"));
        if leave_mount_point {
            assert_eq!(
                fs::read_dir(&root).expect("the mount point").count(),
                0,
                "nothing was written into it"
            );
            fs::remove_dir(&root).expect("an empty mount point");
        }
        assert!(!root.exists());
        fs::rename(dir.path().join("away"), &root).expect("a rename");
        assert_eq!(store.get("log/1", 10).await.expect("it came back"), "one");
    }
}

/// Two hosts, many threads, one name: one of them creates it, and nobody is in doubt.
#[tokio::test(flavor = "multi_thread")]
async fn threads_of_two_hosts_race() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    let first = Arc::new(DirectoryStore::create(&env, &root).await.expect("a new root"));
    let second = Arc::new(DirectoryStore::open(&env, &root).await.expect("the same root"));
    for round in 0..20 {
        let key = format!("log/{round}/x");
        let tasks: Vec<_> = (0..16u8)
            .map(|w| {
                let store = if w % 2 == 0 { first.clone() } else { second.clone() };
                let (key, body) = (key.clone(), Bytes::from(vec![w; 3000]));
                env.spawn("writer", async move { store.put_if_absent(&key, body).await.expect("an answer") })
            })
            .collect();
        let mut winners = Vec::new();
        for (w, task) in tasks.into_iter().enumerate() {
            if task.await.expect("no task dies") == Put::Created {
                winners.push(w as u8);
            }
        }
        assert_eq!(winners.len(), 1, "round {round}");
        assert_eq!(first.get(&key, 3000).await.expect("a get"), vec![winners[0]; 3000]);
    }
    assert_eq!(fs::read_dir(root.join(".tmp")).expect("the temp directory").count(), 0, "no leftovers");
}

/// Emptied directories are removed under the feet of writers, who do not notice.
#[tokio::test(flavor = "multi_thread")]
async fn puts_and_deletes_share_directories() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = Arc::new(DirectoryStore::create(&env, &dir.path().join("tank")).await.expect("a new root"));
    let tasks: Vec<_> = (0..4)
        .map(|w| {
            let store = store.clone();
            env.spawn("writer", async move {
                let key = format!("clones/snap/{w}");
                for _ in 0..50 {
                    store.put_if_absent(&key, body("marker")).await.expect("a put");
                    assert_eq!(store.get(&key, 10).await.expect("a get"), "marker");
                    store.delete(&key).await.expect("a delete");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no writer fails");
    }
    assert!(store.list_dirs("").await.expect("a listing").is_empty());
}

/// The first put removes what a crash left the day before yesterday, and nothing younger.
#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_crashes_are_swept() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    DirectoryStore::create(&env, &root).await.expect("a new root");
    let leave = |name: &str, hours: u64| {
        let file = fs::File::create(root.join(".tmp").join(name)).expect("a file");
        let now = file.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        file.set_modified(now - Duration::from_secs(hours * 3600)).expect("a time can be set");
    };
    leave("old", 48);
    leave("young", 1);
    let store = DirectoryStore::open(&env, &root).await.expect("a root");
    store.put("volume.json", body("{}")).await.expect("a put");
    assert!(!root.join(".tmp/old").exists());
    assert!(root.join(".tmp/young").exists());
    leave("later", 48);
    store.put("volume.json", body("{}")).await.expect("a put");
    assert!(root.join(".tmp/later").exists(), "a sweep a day is enough");
}

/// Files of others in the directory are no objects: unseen, unharmed, and they keep the root.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_others_are_left_alone() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    let store = DirectoryStore::create(&env, &root).await.expect("a new root");
    for name in ["lost+found", ".nfs0001", "with space"] {
        fs::write(root.join(name), "x").expect("a file");
    }
    std::os::unix::fs::symlink("/etc/passwd", root.join("link")).expect("a link");
    store.put("log/1", body("one")).await.expect("a put");
    let listed = store.list_after("", "", 10).await.expect("a listing");
    assert_eq!(listed.into_iter().map(|l| l.key).collect::<Vec<_>>(), ["log/1"]);
    store.delete("log/1").await.expect("a delete");
    let kept = DirectoryStore::remove(&env, &root).await.expect_err("not empty");
    assert!(matches!(kept, StoreError::Refused(_)));
    assert!(root.join("lost+found").exists() && root.join(".tmp").exists());
}

/// A file where a directory is needed is refused for good, naming the path.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_work_is_refused_with_its_path() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let root = dir.path().join("tank");
    let store = DirectoryStore::create(&env, &root).await.expect("a new root");
    store.put("log", body("a file")).await.expect("a put");
    let refused = store.put_if_absent("log/1", body("one")).await.expect_err("log is a file");
    assert!(matches!(&refused, StoreError::Refused(why) if why.contains("tank/log")), "{refused:?}");
    assert!(store.list_after("log/", "", 10).await.expect("a listing").is_empty());
}

/// From URL to store and back: create, browse, open, remove.
#[tokio::test(flavor = "multi_thread")]
async fn urls_lead_to_directories() {
    let env = real_env();
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = |p: &Path| StoreUrl::parse(p.to_str().expect("UTF-8")).expect("a path");
    let url = path(&dir.path().join("tank"));
    assert!(matches!(open_store(&url, &env).await, Err(Error::NotFound(_))));
    let store = create_store(&url, &env).await.expect("a store");
    store.put("volume.json", body("{}")).await.expect("a put");
    let place = browse_store(&url.parent().expect("a parent"), &env).await.expect("a place");
    assert_eq!(place.list_dirs("").await.expect("a listing"), ["tank"]);
    assert_eq!(place.get("tank/volume.json", 10).await.expect("a get"), "{}");
    assert!(
        matches!(place.put("tank/x", body("x")).await, Err(StoreError::NotFound(_))),
        "no mark: read only"
    );
    let again = open_store(&url, &env).await.expect("a store");
    assert_eq!(again.url(), url.to_string());
    assert!(remove_store(&url, &env).await.is_err(), "not empty yet");
    again.delete("volume.json").await.expect("a delete");
    remove_store(&url, &env).await.expect("an empty root can go");
    assert!(matches!(open_store(&url, &env).await, Err(Error::NotFound(_))));
}
