//! What settings promise: one set of names, flags over file over defaults, mistakes are named.

use super::*;

/// A file that sets everything, in the order of the reference.
const EVERYTHING: &str = r#"
listen = ["unix:/run/tank.sock", "127.0.0.1:10809"]
state-dir = "/s"
cache-dir = "/c"
journal-size = "1G"
cache-size = 0
mode = "writethrough"
max-dirty-age = "5s"
max-dirty-bytes = "512M"
memory = "128M"
drain-timeout = "2m"
space-bound = 1.5
grace = "1h"
tls-dir = "/t"
insecure-listen = true
metrics = "127.0.0.1:9809"
dashboard = "127.0.0.1:9810"
dashboard-token-file = "/etc/cistern/token"
key-file = "/k"

[prices]
table = "/p.toml"
kind = "r2"
"#;

/// Flags and keys are the same words, every one can be set in a file, and there are few.
#[test]
fn one_set_of_names() {
    let flags: Vec<String> =
        definitions().iter().map(|arg| arg.get_long().expect("long").to_owned()).collect();
    let table: toml::Table = toml::from_str(EVERYTHING).expect("valid TOML");
    // Sections of the file are no flags.
    let mut keys: Vec<&String> = table.keys().filter(|key| !SECTIONS.contains(&key.as_str())).collect();
    let mut names: Vec<&String> = flags.iter().collect();
    keys.sort();
    names.sort();
    assert_eq!(keys, names);
    assert!(flags.len() < 17, "{} settings", flags.len());
}

/// Each value of the file arrives where it belongs.
#[test]
fn a_file_sets_everything() {
    let file = parse(EVERYTHING).expect("valid settings");
    let got = Settings::default().resolve(file).expect("valid values");
    assert_eq!(got.listen, ["unix:/run/tank.sock", "127.0.0.1:10809"]);
    assert_eq!((got.state_dir, got.cache_dir), (PathBuf::from("/s"), PathBuf::from("/c")));
    assert_eq!((got.journal_bytes, got.cache_bytes), (Some(1 << 30), Some(0)));
    assert_eq!(got.mode, ModeSetting::Writethrough);
    assert_eq!((got.dirty_age_max, got.dirty_bytes_max), (Duration::from_secs(5), Some(512 << 20)));
    assert_eq!((got.memory_bytes, got.drain_timeout), (128 << 20, Duration::from_secs(120)));
    assert_eq!((got.space_bound, got.grace), (Bound::Ratio(1.5), Duration::from_secs(3600)));
    assert_eq!((got.tls_dir, got.insecure_listen), (Some(PathBuf::from("/t")), true));
    assert_eq!(got.metrics.as_deref(), Some("127.0.0.1:9809"));
    assert_eq!(got.dashboard.as_deref(), Some("127.0.0.1:9810"));
    assert_eq!(got.dashboard_token_file, Some("/etc/cistern/token".into()));
    assert_eq!(got.key.key_file, Some(PathBuf::from("/k")));
    assert_eq!(got.prices, PriceSettings { table: Some("/p.toml".into()), kind: Some("r2".into()) });
}

/// A flag wins over the file, field by field, and the file over the default.
#[test]
fn flags_win_over_the_file() {
    let flags = Settings {
        listen: vec!["localhost:1".into()],
        max_dirty_age: Some(Span(Duration::from_secs(1))),
        insecure_listen: Some(false),
        ..Settings::default()
    };
    let got = flags.resolve(parse(EVERYTHING).expect("valid settings")).expect("valid values");
    assert_eq!(got.listen, ["localhost:1"]);
    assert_eq!(got.dirty_age_max, Duration::from_secs(1));
    assert!(!got.insecure_listen);
    assert_eq!(got.drain_timeout, Duration::from_secs(120));
}

/// Without any setting the documented defaults hold: the texts in the help are the truth.
#[test]
fn the_documented_defaults_hold() {
    let got = Settings::default().resolve(Settings::default()).expect("defaults are valid");
    let documented = |name: &str| {
        let arg = definitions().into_iter().find(|arg| arg.get_long() == Some(name)).expect("a setting");
        let help = arg.get_long_help().or(arg.get_help()).expect("has help").to_string();
        let (_, default) = help.split_once("[default: ").expect("names its default");
        default.trim_end_matches(']').split(',').next().expect("split gives one").to_owned()
    };
    let size = |name: &str| documented(name).parse::<ByteSize>().expect("a size").0;
    let span = |name: &str| documented(name).parse::<Span>().expect("a duration").0;
    assert_eq!(size("journal-size"), JOURNAL_BYTES_DEFAULT);
    assert_eq!(size("cache-size"), CACHE_BYTES_DEFAULT);
    assert_eq!(size("memory"), got.memory_bytes);
    assert_eq!(span("max-dirty-age"), got.dirty_age_max);
    assert_eq!(span("drain-timeout"), got.drain_timeout);
    assert_eq!(documented("mode"), "writeback");
    assert_eq!(got.mode, ModeSetting::Writeback);
    assert_eq!((documented("space-bound").as_str(), got.space_bound), ("auto", Bound::Auto));
    assert!(!got.insecure_listen);
}

/// A misspelt key is an error that names the right one; a foreign one lists what there is.
#[test]
fn unknown_keys_are_errors_with_a_suggestion() {
    let hint = |text: &str| {
        let failure = parse(text).expect_err("must be refused");
        assert_eq!(failure.kind, Kind::Usage);
        failure.hint.expect("has a hint")
    };
    assert_eq!(hint("journal_size = '4G'"), "did you mean 'journal-size'?");
    assert_eq!(hint("listne = 'x'"), "did you mean 'listen'?");
    assert!(hint("zzz = 1").contains("max-dirty-age"));
    assert!(parse("memory = '12 parsecs'").expect_err("not a size").text.contains("not a size"));
    assert!(parse("[prices]\nputs = 1").expect_err("no such price").text.contains("`table` or `kind`"));
    assert!(parse("listen = 5").is_err() && parse("[listen]").is_err() && parse("=").is_err());
}

/// A journal or a memory in which nothing could work is refused with the least that does.
#[test]
fn too_small_is_refused() {
    let tiny = Settings { journal_size: Some(ByteSize(4096)), ..Settings::default() };
    assert!(tiny.resolve(Settings::default()).expect_err("too small").hint.expect("hint").contains("16 MiB"));
    let tiny = Settings { memory: Some(ByteSize(1)), ..Settings::default() };
    assert!(tiny.resolve(Settings::default()).is_err());
}

/// Hooks are a section; what it does not have is refused, so that nobody believes that a misspelled hook runs.
#[test]
fn hooks_are_a_section() {
    let set = parse("[hooks]\npre = \"freeze\"\ntimeout = \"2m\"").expect("hooks").hooks.expect("hooks");
    let timeout = Some(Span(std::time::Duration::from_secs(120)));
    assert_eq!(set, HookDefaults { pre: Some("freeze".to_owned()), post: None, timeout });
    let wrong = parse("[hooks]\nafter = \"thaw\"").expect_err("no such hook");
    assert!(wrong.text.contains("`pre`"), "{}", wrong.text);
}

/// Default sizes shrink on a small disk.
#[test]
fn defaults_fit_the_disk() {
    assert_eq!(fitting_bytes(4 << 30, 100 << 30), 4 << 30);
    assert_eq!(fitting_bytes(4 << 30, 4 << 30), 1 << 30);
}

/// Defaults are no larger than what they serve: a small volume takes little of the disk, a large one not more than
/// before, and one whose size is not known as much as a large one.
#[test]
fn reservations_follow_the_volume() {
    let (mib, gib) = (1 << 20, 1 << 30);
    assert_eq!(journal_bytes_wanted(Some(512 * mib)), 512 * mib);
    assert_eq!(journal_bytes_wanted(Some(mib)), JOURNAL_BYTES_LEAST);
    assert_eq!(cache_bytes_wanted(Some(512 * mib)), 640 * mib);
    assert_eq!(cache_bytes_wanted(Some(mib)), 64 * mib);
    for size in [None, Some(10 * gib), Some(u64::MAX)] {
        assert_eq!(journal_bytes_wanted(size), 4 * gib);
        assert_eq!(cache_bytes_wanted(size), 10 * gib);
    }
}

/// The journals of many volumes take no more of a disk together than that of one: two hundred find room where two would
/// have filled it.
#[test]
fn journals_of_many_volumes_share_the_disk() {
    let (mib, gib) = (1 << 20, 1 << 30);
    let of_each = |volumes| journal_bytes_fitting(4 * gib, 40 * gib, volumes);
    assert_eq!(of_each(1), 4 * gib);
    assert_eq!(of_each(5), 2 * gib);
    assert_eq!(of_each(200), 40 * gib / 200 / 4);
    assert_eq!(of_each(100_000), 16 * mib, "the least that works, whether it fits or not");
}
