//! An HTTP server that answers what it is told and keeps what it was asked.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use cistern_engine::{env::Env, store::Variables};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

/// A request as it came over the wire.
#[derive(Clone, Debug)]
pub struct Request {
    /// The request line, such as `GET /bucket/key HTTP/1.1`.
    pub line: String,
    /// Headers with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// What to do with a request.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Send these bytes and close the connection.
    Raw(Vec<u8>),
    /// Say nothing, and keep the connection open.
    Silence,
    /// Close the connection without a word.
    HangUp,
}

/// An answer with a status line, headers, and a body of the length it announces.
pub fn answer(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut out = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n", body.len());
    for (name, value) in headers {
        out += &format!("{name}: {value}\r\n");
    }
    let mut out = (out + "Connection: close\r\n\r\n").into_bytes();
    out.extend_from_slice(body);
    Answer::Raw(out)
}

/// An error as S3 puts it.
pub fn s3_error(status: &str, code: &str) -> Answer {
    let xml = format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>as told</Message></Error>");
    answer(status, &[("Content-Type", "application/xml")], xml.as_bytes())
}

struct State {
    script: VecDeque<Answer>,
    seen: Vec<Request>,
}

/// The server; it answers as long as the runtime lives.
pub struct Scripted {
    port: u16,
    state: Arc<Mutex<State>>,
}

impl Scripted {
    /// Answers the requests in turn. The last answer is given again and again.
    pub async fn start(env: &Env, script: Vec<Answer>) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("it has an address").port();
        let state = Arc::new(Mutex::new(State { script: script.into(), seen: Vec::new() }));
        let (shared, spawner) = (state.clone(), env.clone());
        drop(env.spawn("scripted server", async move {
            while let Ok((stream, _)) = listener.accept().await {
                drop(spawner.spawn("scripted connection", serve(stream, shared.clone())));
            }
        }));
        Scripted { port, state }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// The variables that lead a client to this server.
    pub fn variables(&self) -> Variables {
        Variables::default()
            .with("AWS_ENDPOINT_URL", &self.endpoint())
            .with("AWS_REGION", "us-east-1")
            .with("AWS_ACCESS_KEY_ID", "id")
            .with("AWS_SECRET_ACCESS_KEY", "secret")
    }

    /// The requests so far.
    pub fn seen(&self) -> Vec<Request> {
        self.state.lock().expect("not poisoned").seen.clone()
    }
}

async fn serve(mut stream: TcpStream, state: Arc<Mutex<State>>) {
    let Some(request) = read_request(&mut stream).await else { return };
    let answer = {
        let mut state = state.lock().expect("not poisoned");
        state.seen.push(request);
        match state.script.len() {
            0 | 1 => state.script.front().cloned(),
            _ => state.script.pop_front(),
        }
    };
    match answer {
        Some(Answer::Raw(bytes)) => {
            let _ = stream.write_all(&bytes).await;
            let _ = stream.shutdown().await;
        }
        Some(Answer::Silence) => std::future::pending().await,
        Some(Answer::HangUp) | None => {}
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Request> {
    let mut bytes = Vec::new();
    let head_end = loop {
        let mut part = [0; 4096];
        let n = stream.read(&mut part).await.ok().filter(|&n| n > 0)?;
        bytes.extend_from_slice(&part[..n]);
        if let Some(at) = bytes.windows(4).position(|w| w == b"\r\n\r\n") {
            break at;
        }
    };
    let head = String::from_utf8_lossy(&bytes[..head_end]).into_owned();
    let mut lines = head.lines();
    let line = lines.next()?.to_owned();
    let headers: Vec<(String, String)> = lines
        .filter_map(|l| l.split_once(':'))
        .map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_owned()))
        .collect();
    let mut request = Request { line, headers, body: bytes[head_end + 4..].to_vec() };
    let len = request.header("content-length").and_then(|l| l.parse().ok()).unwrap_or(0);
    while request.body.len() < len {
        let mut part = [0; 65_536];
        let n = stream.read(&mut part).await.ok().filter(|&n| n > 0)?;
        request.body.extend_from_slice(&part[..n]);
    }
    Some(request)
}
