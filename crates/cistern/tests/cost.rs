//! `cistern cost`: the table of prices as people and scripts see it, and tables of the user's own.

use std::{
    path::Path,
    process::{Command, Output},
};

fn cost(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cistern"));
    command.arg("cost").args(arguments).current_dir(home).env_clear().env("HOME", home);
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Every kind stands there with its prices, its date and its source, and JSON says the same.
#[test]
fn the_shipped_prices_are_shown() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let shown = text(&cost(home.path(), &[]).stdout);
    let json: serde_json::Value =
        serde_json::from_slice(&cost(home.path(), &["--json"]).stdout).expect("it is JSON");
    let kinds = json.as_array().expect("a list");
    assert!(kinds.len() >= 10, "{json}");
    for kind in kinds {
        let name = kind["kind"].as_str().expect("a name");
        assert!(shown.contains(&format!("\n{name} ")), "{name}: {shown}");
        for key in ["about", "source", "table", "date"] {
            assert!(shown.contains(kind[key].as_str().expect(key)), "{name}, {key}: {shown}");
        }
    }
    let s3 = kinds.iter().find(|kind| kind["kind"] == "s3-standard").expect("it is shipped");
    assert_eq!(s3["prices"]["storage_per_gib_month"], 0.023);
    let payback_h = s3["payback_half_live_s"].as_u64().expect("seconds") / 3600;
    assert_eq!(payback_h, 11, "{s3}");
}

/// A user's table changes what it names, under its own name and date.
#[test]
fn a_table_of_ones_own_is_shown() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let mine = "name = \"contract 7\"\ndate = \"2026-12-01\"\n[kinds.r2]\nstorage-per-gib-month = 0.0123\n\
                [kinds.gift]\nstorage-per-gib-month = 0\nput-per-1000 = 1\nget-per-1000 = 0\n";
    std::fs::write(home.path().join("mine.toml"), mine).expect("it is written");
    let output = cost(home.path(), &["--prices", "mine.toml"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(shown.contains("0.0123") && shown.contains("contract 7, 2026-12-01"), "{shown}");
    assert!(shown.contains("shipped with cistern"), "{shown}");
    let gift = shown.lines().find(|line| line.starts_with("gift ")).expect("it is a line");
    assert!(gift.ends_with("never"), "{gift}");
}

/// A table that cannot be meant ends with one sentence that names the file, the line and what is allowed.
#[test]
fn a_wrong_table_is_explained() {
    let home = tempfile::tempdir().expect("a temporary directory");
    let file = home.path().join("mine.toml");
    let long = "#".repeat(1 << 20);
    for (content, code, help) in [
        (
            "name = \"x\"\ndate = \"2026-12-01\"\n[kinds.r2]\nput-per-1000 = -1",
            2,
            "line 4 (put-per-1000 = -1): a price",
        ),
        ("name = \"x\"\ndate = \"2026-12-01\"\n[kinds.r2]\nputs = 1", 2, "unknown field `puts`"),
        ("date = \"2026-12-01\"", 2, "missing field `name`"),
        (&long, 2, "at most 65536 bytes"),
    ] {
        std::fs::write(&file, content).expect("it is written");
        let output = cost(home.path(), &["--prices", "mine.toml"]);
        let stderr = text(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{stderr}");
        assert!(stderr.starts_with("error: mine.toml: ") && stderr.contains(help), "{stderr}");
        assert_eq!((stderr.lines().count(), output.stdout.len()), (1, 0), "{stderr}");
    }
    let output = cost(home.path(), &["--prices", "nowhere.toml"]);
    assert_eq!(output.status.code(), Some(4), "{}", text(&output.stderr));
}
