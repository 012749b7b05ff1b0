//! `cistern bench` on a real S3 server.

use anyhow::{Context, Result, ensure};
use cistern_harness::{
    minio::{BUCKET, Minio},
    scratch::Scratch,
    serve::Cistern,
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");

/// Beside a volume in a bucket: volume, disk and store have figures, the store's far from nothing, and when it is over the bucket has no object more.
#[test]
fn a_bucket_is_measured_and_left_as_it_was() -> Result<()> {
    let scratch = Scratch::new("s3-bench")?;
    let minio = Minio::start(&scratch)?;
    let cistern = Cistern::under_test(CISTERN).with_environment(Minio::environment(minio.port()));
    let url = format!("s3://{BUCKET}/volumes/tank");
    let quick = ["--size", "64M", "--time", "200ms", "--bytes", "32M", "--json"];
    let state = scratch.file("state").display().to_string();
    let output = cistern.run(&[&["bench", &url, "--state-dir", &state], &quick[..]].concat())?;
    let report: serde_json::Value = serde_json::from_str(&output.stdout)?;
    let rows = report["rows"].as_array().context("rows")?;
    ensure!(rows.len() == 12, "{report}");
    for row in rows {
        let rate = row["bytes_per_second"].as_f64().context("a rate")?;
        ensure!(rate > 0.0 && row["requests"].as_u64().is_some_and(|requests| requests > 0), "{row}");
    }
    let put = rows.iter().find(|row| row["work"] == "store_put").context("puts")?;
    ensure!(put["request_bytes"] == 16 << 20 && put["p50_us"].as_u64() > Some(100), "{put}");
    let left = cistern.run(&["ls", &format!("s3://{BUCKET}/volumes/"), "--json"])?;
    ensure!(left.stdout.trim() == "[]", "{}", left.stdout);
    let objects = std::fs::read_dir(scratch.file(&format!("minio/0/{BUCKET}")))?.count();
    ensure!(objects == 0, "{objects} things are left in the bucket");
    Ok(())
}
