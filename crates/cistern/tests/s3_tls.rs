//! A real S3 server over TLS, as all clouds are: the main job, whose uploads are signed without a hash of their bodies there, and what is wrong
//! with a certificate.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Result, ensure};
use cistern_harness::{
    authority::Authority,
    fixture::random_bytes,
    minio::{BUCKET, Minio},
    scratch::Scratch,
    serve::Cistern,
    tool,
};

const CISTERN: &str = env!("CARGO_BIN_EXE_cistern");
const HERE: &str = "IP:127.0.0.1";

/// A server and who signed its certificate. Dropped in this order.
struct Secure {
    minio: Minio,
    authority: Authority,
    scratch: Scratch,
}

impl Secure {
    /// `names`: those its certificate is for.
    fn start(name: &str, names: &str) -> Result<Secure> {
        let scratch = Scratch::new(name)?;
        let authority = Authority::make(&scratch.dir("authority")?)?;
        authority.sign("server", names, "serverAuth")?;
        let (certificate, key) = (authority.file("server-cert.pem"), authority.file("server-key.pem"));
        let minio = Minio::start_tls(&scratch, &certificate, &key)?;
        Ok(Secure { minio, authority, scratch })
    }

    /// What a new volume there comes to for whoever trusts these, in `command` or what wraps it: how it ends, and what is said.
    fn create(&self, trusted: Option<(&str, &str)>, wrapped: &[&str]) -> Result<(Option<i32>, String)> {
        let mut command = match wrapped {
            [] => Command::new(CISTERN),
            [wrapper, args @ ..] => {
                let mut command = tool::command(wrapper)?;
                command.args(args).arg(CISTERN);
                command
            }
        };
        command.args(["create", &format!("s3://{BUCKET}/tank"), "--size", "1G"]);
        command
            .env_remove("AWS_CA_BUNDLE")
            .envs(Minio::tls_environment(self.minio.port()))
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        command.env("HOME", self.scratch.path()).stdin(Stdio::null());
        command.envs(trusted);
        let output = command.output()?;
        Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}

/// In and out over TLS, by an authority that a variable or a profile names: another host's state and cache, every byte the same.
#[test]
fn a_copy_comes_back_over_tls() -> Result<()> {
    let secure = Secure::start("s3-tls", HERE)?;
    let (scratch, url) = (&secure.scratch, format!("s3://{BUCKET}/vol"));
    let original = scratch.file("original").display().to_string();
    std::fs::write(&original, random_bytes(96 << 20, 31))?;
    let with = |name: &str, value: String| {
        let mut environment = Minio::tls_environment(secure.minio.port());
        environment.push((name.to_owned(), value));
        Cistern::under_test(CISTERN).with_environment(environment)
    };
    let here = with("AWS_CA_BUNDLE", secure.authority.file("ca-cert.pem"));
    here.run(&["create", &url, "--size", "1G"])?;
    let server = here.serve(scratch, &url).start()?;
    tool::run("nbdcopy", ["--flush", &original, &server.uri()])?;
    server.stop()?;
    let config: PathBuf = scratch.file("config");
    std::fs::write(&config, format!("[default]\nca_bundle = {}\n", secure.authority.file("ca-cert.pem")))?;
    let there = with("AWS_CONFIG_FILE", config.display().to_string());
    let elsewhere =
        there.serve(scratch, &url).state_dir(scratch.file("state2")).cache_dir(scratch.file("cache2"));
    let server = elsewhere.start()?;
    let script = format!("nbdcopy '{}' - | head -c 96M | cmp - '{original}'", server.uri());
    tool::run("bash", ["-c", &script])?;
    server.stop()?;
    with("SSL_CERT_FILE", secure.authority.file("ca-cert.pem")).run(&["check", "--data", &url])?;
    Ok(())
}

/// A certificate that is not accepted is refused at once, and the text says why and what to do.
#[test]
fn certificates_that_are_not_accepted() -> Result<()> {
    let here = Secure::start("s3-tls-refused", HERE)?;
    let ca = here.authority.file("ca-cert.pem");
    let trusted = Some(("AWS_CA_BUNDLE", ca.as_str()));
    let garbage = here.scratch.file("garbage").display().to_string();
    std::fs::write(&garbage, "no certificate\n")?;
    let elsewhere = Secure::start("s3-tls-elsewhere", "DNS:store.example")?;
    let other_ca = elsewhere.authority.file("ca-cert.pem");
    let own = Secure::start("s3-tls-own", HERE)?;
    drop(own.minio);
    let (own_ca, own_key) = (own.authority.file("ca-cert.pem"), own.authority.file("ca-key.pem"));
    let own = Secure {
        minio: Minio::start_tls(&own.scratch, &own_ca, &own_key)?,
        authority: own.authority,
        scratch: own.scratch,
    };
    for (secure, trusted, wrapped, text) in [
        (&here, None, &[][..], "127.0.0.1: its certificate is signed by nobody whom this host trusts."),
        (&here, Some(("AWS_CA_BUNDLE", other_ca.as_str())), &[], "SSL_CERT_FILE can name a file"),
        (
            &here,
            Some(("AWS_CA_BUNDLE", "/nonexistent")),
            &[],
            "AWS_CA_BUNDLE names /nonexistent: No such file",
        ),
        (&here, Some(("AWS_CA_BUNDLE", garbage.as_str())), &[], "no certificate is in it (PEM)"),
        (&here, trusted, &["faketime", "-f", "+9d"], "has expired, or the clock of this host is ahead"),
        (&here, trusted, &["faketime", "-f", "-9d"], "not valid yet: is the clock of this host behind?"),
        (&elsewhere, Some(("AWS_CA_BUNDLE", other_ca.as_str())), &[], "its certificate is for another name."),
        (
            &own,
            Some(("SSL_CERT_FILE", own_ca.as_str())),
            &[],
            "its certificate is marked as an authority's own",
        ),
    ] {
        let (ended, said) = secure.create(trusted, wrapped)?;
        ensure!(ended == Some(7) && said.contains(text), "{text:?}: {ended:?} {said}");
        ensure!(!said.contains("does not answer yet"), "it was tried again: {said}");
    }
    let (ended, said) = here.create(trusted, &[])?;
    ensure!(ended == Some(0), "it is accepted where nothing is wrong: {said}");
    Ok(())
}

/// A token service is refused at once as well where its certificate is not accepted: it is not that there are no keys yet.
#[test]
fn a_token_service_that_is_not_accepted() -> Result<()> {
    let secure = Secure::start("s3-tls-tokens", HERE)?;
    let token = secure.scratch.file("token");
    std::fs::write(&token, "of a pod")?;
    let mut command = Command::new(CISTERN);
    command.args(["create", &format!("s3://{BUCKET}/tank"), "--size", "1G"]);
    command.envs(Minio::tls_environment(secure.minio.port()));
    command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
    command
        .env("AWS_CA_BUNDLE", secure.authority.file("ca-cert.pem"))
        .env("AWS_ENDPOINT_URL_STS", format!("https://localhost:{}", secure.minio.port()))
        .env("AWS_ROLE_ARN", "arn:aws:iam::1:role/pod")
        .env("AWS_WEB_IDENTITY_TOKEN_FILE", token)
        .env("HOME", secure.scratch.path())
        .stdin(Stdio::null());
    let said = String::from_utf8_lossy(&command.output()?.stderr).into_owned();
    ensure!(said.contains("localhost: its certificate is for another name"), "{said}");
    Ok(())
}
