//! A page in a real browser: Debian's Chromium, without a window, spoken to over a pipe (the DevTools protocol).
//!
//! Every browser has a profile of its own, reaches nothing but this host, and is closed with its owner. What the page said on its
//! console and what it asked of the network is kept. Waiting is for changes of the document, with a limit after which it fails with
//! what the page shows.

use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
        unix::process::CommandExt,
    },
    path::Path,
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    process::{self, Guard, Limit},
    tool,
};

/// How long the browser may take for one answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(120);
const CLOSE_LIMIT: Duration = Duration::from_secs(20);
/// Where a browser reads commands and writes answers when it is told to use a pipe.
const COMMANDS_FD: RawFd = 3;
const ANSWERS_FD: RawFd = 4;
/// Descriptors of ours begin here, so that none is one of those two.
const OWN_FDS_FROM: RawFd = 10;
/// Characters of a page that a failure shows.
const SHOWN_MAX: usize = 3000;

/// What a reader of the page has before him, and how he likes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Looks {
    pub width: u32,
    pub height: u32,
    pub dark: bool,
}

impl Looks {
    pub const LIGHT: Looks = Looks { width: 1440, height: 1000, dark: false };
    pub const DARK: Looks = Looks { dark: true, ..Looks::LIGHT };
    pub const PHONE: Looks = Looks { width: 360, height: 760, dark: false };
}

/// A request of the page.
#[derive(Clone, Debug)]
pub struct Asked {
    pub url: String,
    /// Bytes that came over the wire, heads included; of one that is still under way, those of now.
    pub received_bytes: u64,
    id: String,
}

/// A browser with one page.
pub struct Page {
    process: Guard,
    commands: File,
    answers: File,
    /// What was read and is not a whole message yet.
    pending: Vec<u8>,
    session: Option<String>,
    last_id: u64,
    complaints: Vec<String>,
    asked: Vec<Asked>,
    /// Dropped last, when nobody writes there any more.
    _profile: TempDir,
}

impl Page {
    /// Starts a browser with an empty page.
    pub fn open(looks: Looks) -> Result<Page> {
        let profile = tempfile::Builder::new().prefix("cistern-browser-").tempdir()?;
        let (commands_theirs, commands) = pipe()?;
        let (answers, answers_theirs) = pipe()?;
        let mut command = tool::command("chromium")?;
        command.args(["--headless=new", "--remote-debugging-pipe", "--disable-gpu", "--hide-scrollbars"]);
        command.args(["--no-first-run", "--disable-background-networking", "--disable-component-update"]);
        command.args(["--disable-sync", "--disable-default-apps", "--disable-dev-shm-usage"]);
        command.arg("--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1");
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        // SAFETY: a system call without arguments.
        if unsafe { libc::geteuid() } == 0 {
            command.arg("--no-sandbox"); // it refuses to start as root with one
        }
        command.arg("about:blank").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let (from, to) = (commands_theirs.as_raw_fd(), answers_theirs.as_raw_fd());
        // SAFETY: dup2 is async-signal-safe and touches no memory of the parent.
        unsafe {
            command.pre_exec(move || {
                let is_there = libc::dup2(from, COMMANDS_FD) >= 0 && libc::dup2(to, ANSWERS_FD) >= 0;
                if is_there { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        let process = Guard::spawn(command)?;
        drop((commands_theirs, answers_theirs));
        let mut page = Page {
            process,
            commands: commands.into(),
            answers: answers.into(),
            pending: Vec::new(),
            session: None,
            last_id: 0,
            complaints: Vec::new(),
            asked: Vec::new(),
            _profile: profile,
        };
        page.attach()?;
        page.look(looks)?;
        Ok(page)
    }

    fn attach(&mut self) -> Result<()> {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }))?["targetId"].clone();
        let attached = self.call("Target.attachToTarget", json!({ "targetId": target, "flatten": true }))?;
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}))?;
        }
        Ok(())
    }

    /// Gives the page other looks; it stays where it is.
    pub fn look(&mut self, looks: Looks) -> Result<()> {
        let Looks { width, height, dark } = looks;
        let size = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.call("Emulation.setDeviceMetricsOverride", size)?;
        let scheme = if dark { "dark" } else { "light" };
        let feature = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.call("Emulation.setEmulatedMedia", feature).map(drop)
    }

    /// Goes to an address, and returns when the browser has begun to show what is there.
    pub fn go(&mut self, url: &str) -> Result<()> {
        let gone = self.call("Page.navigate", json!({ "url": url }))?;
        match gone["errorText"].as_str() {
            Some(error) => bail!("{url}: {error}"),
            None => Ok(()),
        }
    }

    /// The value of an expression of the page's language; a promise is awaited.
    pub fn eval(&mut self, expression: &str) -> Result<Value> {
        let asked = json!({ "expression": expression, "awaitPromise": true, "returnByValue": true });
        let answer = self.call("Runtime.evaluate", asked)?;
        if let Some(details) = answer.get("exceptionDetails") {
            let text = details["exception"]["description"].as_str().or(details["text"].as_str());
            bail!("{}: {expression}", text.unwrap_or("an exception"));
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true, looking whenever the document changes. Gives its value.
    pub fn wait_for(&mut self, expression: &str, limit: Duration) -> Result<Value> {
        let promise = format!(
            "new Promise((resolve, reject) => {{
               const look = () => {{
                 let value = null;
                 try {{ value = ({expression}); }} catch (error) {{ value = null; }}
                 if (value) {{ observer.disconnect(); clearTimeout(timer); resolve(value); }}
               }};
               const observer = new MutationObserver(look);
               const timer = setTimeout(() => {{ observer.disconnect(); resolve(null); }}, {});
               observer.observe(document, {{ subtree: true, childList: true, characterData: true, attributes: true }});
               look();
             }})",
            limit.as_millis()
        );
        let value = self.eval(&promise)?;
        if value.is_null() {
            let shown = self.eval("document.body.innerText")?;
            let shown: String = shown.as_str().unwrap_or_default().chars().take(SHOWN_MAX).collect();
            let complaints = self.complaints.join("\n");
            bail!("not within {} s: {expression}\nthe page shows:\n{shown}\n{complaints}", limit.as_secs());
        }
        Ok(value)
    }

    /// The text of what a selector finds first.
    pub fn text(&mut self, selector: &str) -> Result<String> {
        let found = self.eval(&format!("document.querySelector({}).innerText", json!(selector)))?;
        found.as_str().map(str::to_owned).with_context(|| format!("{selector} has no text"))
    }

    /// Presses a key of the keyboard, as `Tab`, `Enter`, `ArrowRight` or `Escape`.
    pub fn press(&mut self, key: &str) -> Result<()> {
        let code = match key {
            "Tab" => 9,
            "Enter" => 13,
            "Escape" => 27,
            "ArrowRight" => 39,
            _ => bail!("{key} is no key that is known here"),
        };
        let text = if key == "Enter" { "\r" } else { "" };
        let mut event = json!({ "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
        for kind in ["keyDown", "keyUp"] {
            event["type"] = json!(kind);
            self.call("Input.dispatchKeyEvent", event.clone())?;
        }
        Ok(())
    }

    /// Writes what is seen, the whole page long or only what fits, as PNG.
    pub fn screenshot(&mut self, file: &Path, whole: bool) -> Result<()> {
        let asked = json!({ "format": "png", "captureBeyondViewport": whole });
        let answer = self.call("Page.captureScreenshot", asked)?;
        let data = answer["data"].as_str().context("a picture")?;
        std::fs::write(file, base64(data)?).with_context(|| format!("cannot write {}", file.display()))
    }

    /// What the page complained about so far: errors and warnings on its console, and exceptions.
    pub fn complaints(&mut self) -> Result<&[String]> {
        self.eval("0")?; // what was said before it was asked has arrived
        Ok(&self.complaints)
    }

    /// Every request of the page so far.
    pub fn asked(&mut self) -> Result<&[Asked]> {
        self.eval("0")?;
        Ok(&self.asked)
    }

    /// Forgets complaints and requests.
    pub fn forget(&mut self) {
        self.complaints.clear();
        self.asked.clear();
    }

    fn call(&mut self, method: &str, params: Value) -> Result<Value> {
        self.last_id += 1;
        let id = self.last_id;
        let mut message = json!({ "id": id, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = serde_json::to_vec(&message)?;
        bytes.push(0);
        self.commands.write_all(&bytes).with_context(|| format!("the browser is gone: {method}"))?;
        let mut limit = Limit::new(ANSWER_LIMIT);
        loop {
            let mut message = self.next_message(&mut limit).with_context(|| method.to_owned())?;
            if message["id"] == id {
                ensure!(message.get("error").is_none(), "{method}: {}", message["error"]);
                return Ok(message["result"].take());
            }
            self.note(&message);
        }
    }

    fn next_message(&mut self, limit: &mut Limit) -> Result<Value> {
        loop {
            if let Some(at) = self.pending.iter().position(|byte| *byte == 0) {
                let message = self.pending.drain(..=at).collect::<Vec<u8>>();
                return Ok(serde_json::from_slice(&message[..at])?);
            }
            let ready = process::readable_within(&[self.answers.as_raw_fd()], limit)?;
            ensure!(ready[0], "the browser does not answer");
            let mut buffer = [0; 64 << 10];
            let n = self.answers.read(&mut buffer)?;
            ensure!(n > 0, "the browser ended");
            self.pending.extend_from_slice(&buffer[..n]);
        }
    }

    /// Keeps what an event says that somebody may ask for.
    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        let id = params["requestId"].as_str().unwrap_or_default();
        let asked = || self.asked.iter().rposition(|asked| asked.id == id);
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.complaints.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled"
                if ["error", "warning", "assert"].iter().any(|kind| params["type"] == *kind) =>
            {
                self.complaints.push(params["args"].to_string());
            }
            "Log.entryAdded"
                if params["entry"]["level"] == "error" || params["entry"]["level"] == "warning" =>
            {
                let entry = &params["entry"];
                self.complaints.push(format!("{} {}", entry["text"], entry["url"]));
            }
            "Network.requestWillBeSent" => {
                let url = params["request"]["url"].as_str().unwrap_or_default().to_owned();
                self.asked.push(Asked { url, received_bytes: 0, id: id.to_owned() });
            }
            "Network.loadingFinished" => {
                if let Some(i) = asked() {
                    self.asked[i].received_bytes = params["encodedDataLength"].as_f64().unwrap_or(0.0) as u64;
                }
            }
            _ => {}
        }
    }
}

/// Its children are gone with it only if it is asked to close.
impl Drop for Page {
    fn drop(&mut self) {
        self.session = None;
        let _ = self.call("Browser.close", json!({}));
        let _ = self.process.wait(CLOSE_LIMIT);
    }
}

/// Both ends of a pipe, for reading and for writing, closed in children.
fn pipe() -> Result<(OwnedFd, OwnedFd)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` is valid for writing during the call.
    let made = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) };
    ensure!(made == 0, "pipe: {}", std::io::Error::last_os_error());
    // SAFETY: both were just opened and nobody else owns them.
    let [read, write] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((high(&read)?, high(&write)?))
}

/// The same with a number that no child needs for something else.
fn high(fd: &OwnedFd) -> Result<OwnedFd> {
    // SAFETY: a system call without pointers; the descriptor it gives is ours alone.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, OWN_FDS_FROM) };
    ensure!(moved >= 0, "fcntl: {}", std::io::Error::last_os_error());
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(moved) })
}

/// What stands in Base64, with padding.
fn base64(text: &str) -> Result<Vec<u8>> {
    let six_bits = |byte: u8| match byte {
        b'A'..=b'Z' => Ok(byte - b'A'),
        b'a'..=b'z' => Ok(byte - b'a' + 26),
        b'0'..=b'9' => Ok(byte - b'0' + 52),
        b'+' => Ok(62),
        b'/' => Ok(63),
        _ => bail!("not Base64"),
    };
    let digits = text.trim_end_matches('=').bytes().map(six_bits).collect::<Result<Vec<u8>>>()?;
    let bytes = digits.chunks(4).flat_map(|four| {
        let joined =
            four.iter().fold(0, |joined, six| (joined << 6) | u32::from(*six)) << (6 * (4 - four.len()));
        joined.to_be_bytes().into_iter().skip(1).take(four.len() * 6 / 8)
    });
    Ok(bytes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base64 of every length is read as what it stands for.
    #[test]
    fn base64_of_every_length() {
        for (text, bytes) in [("", ""), ("Zg==", "f"), ("Zm8=", "fo"), ("Zm9v", "foo"), ("Zm9vYmE=", "fooba")]
        {
            assert_eq!(base64(text).expect("Base64"), bytes.as_bytes(), "{text}");
        }
        base64("Zm9*").expect_err("not a letter of it");
    }
}
