//! The negotiation: from the greeting to the export a client has chosen.
//!
//! Owns what was agreed so far. Never reads an option's payload before its length was checked,
//! never keeps state across the change to TLS, and ends by itself when the server stops and when the client's time is over.

use std::{future::poll_fn, io, sync::Arc};

use bytes::Bytes;
use tokio::sync::watch;

use crate::{
    client_time::ClientTime,
    conn::Conn,
    export::{BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, Export, Exports, PAYLOAD_BYTES_MAX, Properties},
    gate::{Contexts, Terms},
    input::Input,
    listen::TlsMode,
    option::{self, BadOption},
    output::Output,
    wire::{
        BASE_ALLOCATION, BASE_ALLOCATION_ID, DIRTY_BITMAP, GREETING_MAGIC, OPTION_HEADER_BYTES, OPTION_MAGIC,
        OPTION_REPLY_MAGIC, OptionHeader, STRING_BYTES_MAX, handshake, info, opt, rep, trait_flag,
    },
};

/// Bytes of the largest option that is looked at. A name and its queries need far less.
const OPTION_BYTES_MAX: u32 = 32 << 10;
/// Bytes of the largest option that is read and thrown away before it is answered as too big.
const OPTION_SKIP_BYTES_MAX: u32 = 1 << 20;
/// Options of one negotiation. Clients need about six; one that lists a thousand exports and asks
/// about each still fits.
const OPTIONS_MAX: u32 = 4096;

/// What ended a negotiation otherwise than by agreement.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Protocol(&'static str),
}

/// Where an agreement led.
pub(crate) enum Step {
    /// Go on with requests to this export.
    Transmit(Agreed),
    /// Change to TLS, then go on with options.
    StartTls,
    /// Close: the client said so or has gone, or the server is stopping.
    Close,
}

/// The outcome of a negotiation.
pub(crate) struct Agreed {
    pub(crate) export: Arc<dyn Export>,
    pub(crate) terms: Terms,
    /// Of the contexts behind `base:allocation`, in the order of their ids.
    pub(crate) bitmaps: Vec<String>,
    /// What is acknowledged has to survive this server, and what is not is sent again.
    pub(crate) outlives: bool,
}

/// The metadata contexts that a client has selected, and of which export.
#[derive(Default)]
struct Selected {
    export: String,
    contexts: Contexts,
    /// What the contexts behind `base:allocation` are, in the order of their ids.
    bitmaps: Vec<String>,
}

/// One negotiation in progress.
pub(crate) struct Handshake<'a> {
    conn: &'a mut Conn,
    input: &'a mut Input,
    exports: &'a dyn Exports,
    tls: &'a TlsMode,
    time: &'a mut ClientTime,
    stop: watch::Receiver<bool>,
    client_flags: u32,
    out: Output,
    structured: bool,
    extended: bool,
    /// What is acknowledged has to survive this server: the client goes on with the next one.
    outlives: bool,
    selected: Selected,
}

impl<'a> Handshake<'a> {
    pub(crate) fn new(
        (conn, input): (&'a mut Conn, &'a mut Input),
        exports: &'a dyn Exports,
        tls: &'a TlsMode,
        time: &'a mut ClientTime,
        stop: watch::Receiver<bool>,
    ) -> Self {
        Self {
            conn,
            input,
            exports,
            tls,
            time,
            stop,
            client_flags: 0,
            out: Output::default(),
            structured: false,
            extended: false,
            outlives: false,
            selected: Selected::default(),
        }
    }

    /// Greets, and returns the client's flags; `None` if the client went.
    pub(crate) async fn greet(&mut self) -> Result<Option<u32>, HandshakeError> {
        self.out.put(&GREETING_MAGIC.to_be_bytes());
        self.out.put(&OPTION_MAGIC.to_be_bytes());
        self.out.put(&((handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) as u16).to_be_bytes());
        self.send().await?;
        let Some(flags) = self.take::<4>().await? else { return Ok(None) };
        let flags = u32::from_be_bytes(flags);
        if flags & !(handshake::FIXED_NEWSTYLE | handshake::NO_ZEROES) != 0 {
            return Err(HandshakeError::Protocol("the client sent unknown handshake flags"));
        }
        if flags & handshake::FIXED_NEWSTYLE == 0 && matches!(self.tls, TlsMode::Required(_)) {
            return Err(HandshakeError::Protocol("TLS is required, and the client cannot negotiate it"));
        }
        Ok(Some(flags))
    }

    /// Answers options until one of them ends the negotiation.
    pub(crate) async fn haggle(mut self, client_flags: u32) -> Result<Step, HandshakeError> {
        self.client_flags = client_flags;
        for _ in 0..OPTIONS_MAX {
            let Some(head) = self.take::<OPTION_HEADER_BYTES>().await? else { return Ok(Step::Close) };
            let Ok(head) = OptionHeader::decode(&head) else {
                return Err(HandshakeError::Protocol("an option without its magic"));
            };
            let Some(data) = self.option_data(head).await? else { continue };
            let step = self.answer(head.code, &data).await?;
            self.send().await?;
            if let Some(step) = step {
                return Ok(step);
            }
        }
        Err(HandshakeError::Protocol("too many options"))
    }

    /// The payload of an option; `None` if it was too big and has been answered so.
    async fn option_data(&mut self, head: OptionHeader) -> Result<Option<Bytes>, HandshakeError> {
        if head.length > OPTION_BYTES_MAX {
            // EXPORT_NAME has no way to say no.
            if head.length > OPTION_SKIP_BYTES_MAX || head.code == opt::EXPORT_NAME {
                return Err(HandshakeError::Protocol("a huge option"));
            }
            let mut left = self.input.skip(head.length.into());
            while left > 0 {
                self.fill().await?;
                left = self.input.skip(left);
            }
            self.reply_text(head.code, rep::ERR_TOO_BIG, "the option is too big");
            self.send().await?;
            return Ok(None);
        }
        loop {
            match self.input.payload(head.length as usize) {
                Some(data) => return Ok(Some(data)),
                None => self.fill().await?,
            }
        }
    }

    /// Answers one option. `None` goes on with the next.
    async fn answer(&mut self, code: u32, data: &[u8]) -> Result<Option<Step>, HandshakeError> {
        let secured = matches!(self.conn, Conn::Tls(_));
        if code == opt::ABORT {
            self.reply(code, rep::ACK, &[]);
            return Ok(Some(Step::Close));
        }
        let tls_missing = !secured && matches!(self.tls, TlsMode::Required(_)) && code != opt::STARTTLS;
        if code == opt::EXPORT_NAME {
            if tls_missing || *self.stop.borrow() {
                return Err(HandshakeError::Protocol("an export was chosen that cannot be had now"));
            }
            return self.export_name(data).await.map(Some);
        }
        let without_data =
            [opt::LIST, opt::STARTTLS, opt::STRUCTURED_REPLY, opt::EXTENDED_HEADERS, opt::OUTLIVE];
        if tls_missing {
            self.reply_text(code, rep::ERR_TLS_REQD, "use TLS");
        } else if *self.stop.borrow() {
            self.reply_text(code, rep::ERR_SHUTDOWN, "the server is stopping");
        } else if without_data.contains(&code) && !data.is_empty() {
            self.reply_text(code, rep::ERR_INVALID, "this option has no data");
        } else {
            return self.answer_allowed(code, data, secured).await;
        }
        Ok(None)
    }

    async fn answer_allowed(
        &mut self,
        code: u32,
        data: &[u8],
        secured: bool,
    ) -> Result<Option<Step>, HandshakeError> {
        match code {
            opt::LIST => self.list(),
            opt::STARTTLS if secured => self.reply_text(code, rep::ERR_INVALID, "TLS is on already"),
            opt::STARTTLS if matches!(self.tls, TlsMode::Off) => {
                self.reply_text(code, rep::ERR_POLICY, "TLS is not available at this address");
            }
            opt::STARTTLS => {
                // What came in the clear behind this option would be taken for protected input.
                if !self.input.is_empty() {
                    return Err(HandshakeError::Protocol("data behind STARTTLS in the clear"));
                }
                self.reply(code, rep::ACK, &[]);
                return Ok(Some(Step::StartTls));
            }
            opt::STRUCTURED_REPLY if self.extended => {
                self.reply_text(code, rep::ERR_EXT_HEADER_REQD, "extended headers are on already");
            }
            opt::STRUCTURED_REPLY => {
                self.structured = true;
                self.reply(code, rep::ACK, &[]);
            }
            opt::EXTENDED_HEADERS => {
                self.extended = true;
                self.reply(code, rep::ACK, &[]);
            }
            opt::OUTLIVE => {
                self.outlives = true;
                self.reply(code, rep::ACK, &[]);
            }
            opt::INFO | opt::GO => return Ok(self.info(code, data).await?.map(Step::Transmit)),
            opt::LIST_META_CONTEXT | opt::SET_META_CONTEXT => self.meta_context(code, data).await?,
            _ => self.reply_text(code, rep::ERR_UNSUP, "unknown option"),
        }
        Ok(None)
    }

    async fn export_name(&mut self, data: &[u8]) -> Result<Step, HandshakeError> {
        if self.extended {
            return Err(HandshakeError::Protocol("EXPORT_NAME after extended headers"));
        }
        let Ok(name) = option::export_name(data) else {
            return Err(HandshakeError::Protocol("a bad export name"));
        };
        let Some(export) = self.find(name).await? else {
            return Err(HandshakeError::Protocol("no export of the chosen name"));
        };
        let properties = export.properties();
        self.out.put(&export.size_bytes().to_be_bytes());
        self.out.put(&self.export_flags(name, &properties).to_be_bytes());
        if self.client_flags & handshake::NO_ZEROES == 0 {
            self.out.put_zeroes(124);
        }
        let terms = self.terms(name, &properties);
        Ok(Step::Transmit(self.agreed(export, terms)))
    }

    fn list(&mut self) {
        for entry in self.exports.list() {
            let (name, description) = (entry.name.as_bytes(), entry.description.as_bytes());
            let len = (name.len() as u32).to_be_bytes();
            self.reply(opt::LIST, rep::SERVER, &[&len, name, description]);
        }
        self.reply(opt::LIST, rep::ACK, &[]);
    }

    /// INFO and GO, which differ only in what comes after success.
    async fn info(&mut self, code: u32, data: &[u8]) -> Result<Option<Agreed>, HandshakeError> {
        let request = match option::info(data) {
            Ok(request) => request,
            Err(bad) => {
                self.reply_bad(code, bad);
                return Ok(None);
            }
        };
        let Some(export) = self.find(request.name).await? else {
            self.reply_not_found(code);
            return Ok(None);
        };
        let properties = export.properties();
        let flags = self.export_flags(request.name, &properties).to_be_bytes();
        let size = export.size_bytes().to_be_bytes();
        self.reply(code, rep::INFO, &[&info::EXPORT.to_be_bytes(), &size, &flags]);
        if request.wants(info::NAME) {
            self.reply(code, rep::INFO, &[&info::NAME.to_be_bytes(), properties.name.as_bytes()]);
        }
        if request.wants(info::DESCRIPTION) && !properties.description.is_empty() {
            let text = properties.description.as_bytes();
            self.reply(code, rep::INFO, &[&info::DESCRIPTION.to_be_bytes(), text]);
        }
        // Asked for or not: some clients ask for nothing and keep to what they are told.
        let sizes = [BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        self.reply(code, rep::INFO, &[&info::BLOCK_SIZE.to_be_bytes(), sizes.as_flattened()]);
        self.reply(code, rep::ACK, &[]);
        let aligned = request.wants(info::BLOCK_SIZE);
        let terms = Terms { aligned, ..self.terms(request.name, &properties) };
        Ok((code == opt::GO).then(|| self.agreed(export, terms)))
    }

    fn agreed(&mut self, export: Arc<dyn Export>, terms: Terms) -> Agreed {
        let bitmaps = std::mem::take(&mut self.selected.bitmaps);
        Agreed { export, terms, bitmaps, outlives: self.outlives }
    }

    async fn meta_context(&mut self, code: u32, data: &[u8]) -> Result<(), HandshakeError> {
        let set = code == opt::SET_META_CONTEXT;
        if set {
            // Replaces the previous selection even if it fails.
            self.selected = Selected::default();
        }
        if !self.structured && !self.extended {
            self.reply_text(code, rep::ERR_INVALID, "needs structured replies or extended headers");
            return Ok(());
        }
        let request = match option::meta(data) {
            Ok(request) => request,
            Err(bad) => {
                self.reply_bad(code, bad);
                return Ok(());
            }
        };
        let Some(export) = self.find(request.name).await? else {
            self.reply_not_found(code);
            return Ok(());
        };
        let listed = !set && (request.wildcard || request.no_query);
        if request.exact || listed {
            self.reply_context(code, set.then_some(BASE_ALLOCATION_ID), BASE_ALLOCATION);
        }
        let all_bitmaps = !set && (request.all_bitmaps || request.no_query);
        let bitmaps = match all_bitmaps || !request.bitmaps.is_empty() {
            true => export.bitmaps(),
            false => Vec::new(),
        };
        let mut selected = Selected { export: request.name.to_owned(), ..Selected::default() };
        if set && request.exact {
            selected.contexts.add(BASE_ALLOCATION_ID);
        }
        for bitmap in bitmaps {
            let id = BASE_ALLOCATION_ID + 1 + selected.bitmaps.len() as u32;
            if !all_bitmaps && (!request.bitmaps.contains(&bitmap.as_str()) || id > Contexts::MAX) {
                continue;
            }
            self.reply_context(code, set.then_some(id), &format!("{DIRTY_BITMAP}{bitmap}"));
            if set {
                selected.contexts.add(id);
                selected.bitmaps.push(bitmap);
            }
        }
        if set {
            self.selected = selected;
        }
        self.reply(code, rep::ACK, &[]);
        Ok(())
    }

    /// The export of a name, however long it takes to open it: until the client goes or the server stops.
    async fn find(&mut self, name: &str) -> Result<Option<Arc<dyn Export>>, HandshakeError> {
        let (exports, mut stop) = (self.exports, self.stop.clone());
        let (conn, input) = (&mut *self.conn, &mut *self.input);
        let gone = async {
            // What it sends meanwhile is kept, and says that it is there.
            while input.is_empty() {
                if poll_fn(|cx| input.poll_fill(cx, conn)).await? == 0 {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
                }
            }
            std::future::pending().await
        };
        let found = async {
            tokio::select! {
                biased;
                found = exports.find(name) => Ok(found),
                gone = gone => gone,
                _ = stop.wait_for(|stop| *stop) => Ok(None),
            }
        };
        Ok(self.time.stand_still(found).await?)
    }

    fn reply_not_found(&mut self, code: u32) {
        let is_stopping = *self.stop.borrow();
        match is_stopping {
            true => self.reply_text(code, rep::ERR_SHUTDOWN, "the server is stopping"),
            false => self.reply_text(code, rep::ERR_UNKNOWN, "no export of that name"),
        }
    }

    /// A context that can be had, or one that was selected, with the id it is called by.
    fn reply_context(&mut self, code: u32, id: Option<u32>, name: &str) {
        self.reply(code, rep::META_CONTEXT, &[&id.unwrap_or(0).to_be_bytes(), name.as_bytes()]);
    }

    fn reply_bad(&mut self, code: u32, bad: BadOption) {
        match bad {
            BadOption::Invalid(text) => self.reply_text(code, rep::ERR_INVALID, text),
            BadOption::TooBig(text) => self.reply_text(code, rep::ERR_TOO_BIG, text),
        }
    }

    fn terms(&self, name: &str, properties: &Properties) -> Terms {
        Terms {
            extended: self.extended,
            structured: self.structured || self.extended,
            contexts: match self.selected.export == name {
                true => self.selected.contexts,
                false => Contexts::default(),
            },
            aligned: false,
            ..Terms::plain(properties)
        }
    }

    /// The transmission flags. Each is claimed only where requests with it are honoured.
    fn export_flags(&self, name: &str, properties: &Properties) -> u16 {
        let terms = self.terms(name, properties);
        let writable = trait_flag::SEND_TRIM | trait_flag::SEND_WRITE_ZEROES;
        let always =
            trait_flag::HAS_FLAGS | trait_flag::SEND_FLUSH | trait_flag::SEND_FUA | trait_flag::SEND_CACHE;
        [
            (terms.read_only, trait_flag::READ_ONLY),
            (!terms.read_only, writable),
            (terms.fast_zero, trait_flag::SEND_FAST_ZERO),
            (terms.structured, trait_flag::SEND_DF),
            (properties.can_multi_conn, trait_flag::CAN_MULTI_CONN),
            (terms.extended && !terms.contexts.is_empty(), trait_flag::BLOCK_STATUS_PAYLOAD),
        ]
        .into_iter()
        .filter(|(has, _)| *has)
        .fold(always, |flags, (_, flag)| flags | flag)
    }

    /// Magic u64, option u32, reply u32, length u32, data.
    fn reply(&mut self, code: u32, kind: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        self.out.put(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.out.put(&code.to_be_bytes());
        self.out.put(&kind.to_be_bytes());
        self.out.put(&(len as u32).to_be_bytes());
        parts.iter().for_each(|part| self.out.put(part));
    }

    fn reply_text(&mut self, code: u32, kind: u32, text: &str) {
        debug_assert!(text.len() <= STRING_BYTES_MAX);
        self.reply(code, kind, &[text.as_bytes()]);
    }

    async fn send(&mut self) -> io::Result<()> {
        self.time.wait(poll_fn(|cx| self.out.poll_send(cx, self.conn))).await
    }

    /// The next `N` bytes; `None` if the client went before them or the server is stopping.
    async fn take<const N: usize>(&mut self) -> Result<Option<[u8; N]>, HandshakeError> {
        loop {
            if let Some(bytes) = self.input.peek::<N>() {
                let bytes = *bytes;
                self.input.consume(N);
                return Ok(Some(bytes));
            }
            let idle = self.input.is_empty();
            match self.fill().await {
                Err(HandshakeError::Io(error)) if idle && error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(None);
                }
                other => other?,
            }
        }
    }

    /// Reads more. The end of the stream, and a stop of the server, are an `UnexpectedEof`.
    async fn fill(&mut self) -> Result<(), HandshakeError> {
        let read = tokio::select! {
            biased;
            read = self.time.wait(poll_fn(|cx| self.input.poll_fill(cx, self.conn))) => read?,
            _ = self.stop.wait_for(|stop| *stop) => 0,
        };
        if read == 0 { Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()) } else { Ok(()) }
    }
}
