//! Running other programs.

use std::{
    io::ErrorKind,
    process::{Output, Stdio},
    time::Duration,
};

use tokio::process::Command;

use crate::failure::{Failure, Kind, Outcome};

/// What a program prints, which has to succeed.
pub(super) async fn ask(command: &mut Command) -> Outcome<String> {
    Ok(String::from_utf8_lossy(&output(command.stdin(Stdio::null()), None).await?.stdout).into_owned())
}

/// What comes of a program, which has to succeed.
///
/// # Errors
/// What it says itself; `NotFound` where it is not installed.
pub(super) async fn output(command: &mut Command, limit: Option<Duration>) -> Outcome<Output> {
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    let running = command.output();
    let output = match limit {
        None => running.await,
        Some(limit) => tokio::time::timeout(limit, running).await.map_err(|_| {
            Failure::new(Kind::Other, format!("{program} takes longer than {} s", limit.as_secs()))
                .hint("does the device answer? `cistern status` shows it")
        })?,
    };
    let output = output.map_err(|e| match e.kind() {
        ErrorKind::NotFound => Failure::new(Kind::NotFound, format!("{program} is not installed"))
            .hint("`cistern doctor` says which package has it"),
        _ => Failure::io(format!("cannot start {program}"), &e),
    })?;
    if output.status.success() {
        return Ok(output);
    }
    let why = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
    Err(Failure::new(Kind::Other, if why.is_empty() { format!("{program}: {}", output.status) } else { why }))
}
