//! Where a stream comes from: read, verified and unpacked on a thread of its own.

use std::{
    fs::File,
    io::{self, BufReader, IsTerminal, Read, Seek},
    path::Path,
};

use cistern_engine::{
    Error,
    stream::{StreamHeader, StreamReader, StreamRecord},
};
use tokio::sync::mpsc;

use crate::{
    cli::transfer::QUEUE_RECORDS,
    failure::{Failure, Outcome},
    terminal::Progress,
};

/// Bytes that are read at once.
const BUFFER_BYTES: usize = 1 << 20;

/// A stream that is being read.
pub struct Input {
    pub header: StreamHeader,
    records: mpsc::Receiver<Result<Option<StreamRecord>, Error>>,
}

impl Input {
    /// Opens a file, or standard input, and reads the header. A file that can be read twice is verified as a whole before.
    pub async fn open(path: &Path) -> Outcome<Input> {
        let from: Box<dyn Read + Send> = match path == Path::new("-") {
            true if io::stdin().is_terminal() => {
                let failure = Failure::usage("a stream does not come from a terminal");
                return Err(failure.hint("name the file, or send the stream into this command"));
            }
            true => Box::new(io::stdin()),
            false => {
                let failed = |e: io::Error| Failure::io(format!("cannot read {}", path.display()), &e);
                let named = path.to_owned();
                // A pipe waits for whoever writes it.
                let open = tokio::task::spawn_blocking(move || File::open(named));
                let mut file = open.await.expect("opening does not panic").map_err(failed)?;
                if file.metadata().map_err(failed)?.is_file() {
                    let _progress = Progress::spinning("verifying the stream");
                    file = verified(file).await.map_err(|failure| failure.context(path.display()))?;
                }
                Box::new(file)
            }
        };
        let (send, mut records) = mpsc::channel(QUEUE_RECORDS);
        let (tell, told) = tokio::sync::oneshot::channel();
        std::thread::spawn(move || {
            let mut reader = match StreamReader::begin(BufReader::with_capacity(BUFFER_BYTES, from)) {
                Ok((reader, header)) => {
                    let _ = tell.send(header);
                    reader
                }
                Err(e) => return drop(send.blocking_send(Err(e))),
            };
            loop {
                let record = reader.next_record();
                let is_last = !matches!(record, Ok(Some(_)));
                if send.blocking_send(record).is_err() || is_last {
                    return;
                }
            }
        });
        match told.await {
            Ok(header) => Ok(Input { header, records }),
            Err(_) => match records.recv().await {
                Some(Err(e)) => Err(e.into()),
                _ => unreachable!("without a header there is an error"),
            },
        }
    }

    /// The next record; `None` when the stream is complete.
    pub async fn next(&mut self) -> Outcome<Option<StreamRecord>> {
        let next = self.records.recv().await.expect("nothing is read behind the end, or an error");
        Ok(next?)
    }
}

/// Reads all of a stream, and goes back to its beginning.
async fn verified(file: File) -> Outcome<File> {
    let verify = move || {
        let mut reader = StreamReader::begin(BufReader::with_capacity(BUFFER_BYTES, &file))?.0;
        while reader.next_record()?.is_some() {}
        (&file).rewind().map_err(|e| Error::io("reading the stream", &e))?;
        Ok::<File, Error>(file)
    };
    Ok(tokio::task::spawn_blocking(verify).await.expect("reading does not panic")?)
}
