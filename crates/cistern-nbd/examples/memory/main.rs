//! An NBD server for a disk in memory: how the crate is used, and what it is measured with.
//!
//! `memory --listen unix:/tmp/s --listen 127.0.0.1:10809 --size 4G [--read-only] [--tls-dir DIR]` where DIR
//! holds ca.pem, server.pem and server-key.pem. Stops gracefully on end of its standard input if
//! `--stop-on-eof` is given, else runs until it is killed.

mod export;

use std::{error::Error, path::Path, sync::Arc};

use cistern_nbd::{Listener, Server, ServerSettings, TlsConfig, TlsMode};
use export::{MemoryExport, OneExport};

struct Options {
    listen: Vec<String>,
    size_bytes: u64,
    tls: TlsMode,
    read_only: bool,
    stop_on_eof: bool,
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        listen: Vec::new(),
        size_bytes: 1 << 30,
        tls: TlsMode::Off,
        read_only: false,
        stop_on_eof: false,
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--read-only" => options.read_only = true,
            "--stop-on-eof" => options.stop_on_eof = true,
            _ => option_with_value(&mut options, &arg, args.next())?,
        }
    }
    Ok(options)
}

fn option_with_value(options: &mut Options, arg: &str, value: Option<String>) -> Result<(), Box<dyn Error>> {
    let value = value.ok_or_else(|| format!("{arg} needs a value"))?;
    match arg {
        "--listen" => options.listen.push(value),
        "--size" => options.size_bytes = size(&value)?,
        "--tls-dir" => {
            let file = |name: &str| Path::new(&value).join(name);
            let (authority, cert, key) = (file("ca.pem"), file("server.pem"), file("server-key.pem"));
            options.tls = TlsMode::Required(TlsConfig::from_pem_files(&authority, &cert, &key)?);
        }
        _ => return Err(format!("unknown argument {arg}").into()),
    }
    Ok(())
}

fn size(text: &str) -> Result<u64, Box<dyn Error>> {
    let shift = match text.chars().last() {
        Some('K') => 10,
        Some('M') => 20,
        Some('G') => 30,
        Some('T') => 40,
        _ => 0,
    };
    let digits = if shift == 0 { text } else { &text[..text.len() - 1] };
    Ok(digits.parse::<u64>()? << shift)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = options()?;
    let mut export = MemoryExport::new("memory", options.size_bytes);
    export.read_only = options.read_only;
    let export = Arc::new(export);
    let mut listeners = Vec::new();
    for text in &options.listen {
        let listener = Listener::bind(&text.parse()?, options.tls.clone()).await?;
        println!("listening at {}", listener.address()?);
        listeners.push(listener);
    }
    let server = Server::new(Arc::new(OneExport(export)), ServerSettings::default());
    let stop = async {
        if !options.stop_on_eof {
            std::future::pending::<()>().await;
        }
        // The end of the input is the signal; nothing is read from it.
        let _ = tokio::io::copy(&mut tokio::io::stdin(), &mut tokio::io::sink()).await;
    };
    let cut_off = server.serve(listeners, Vec::new(), stop).await.expect("threads").cut_off;
    println!("stopped, {cut_off} connections cut off");
    Ok(())
}
