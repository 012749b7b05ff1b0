//! The transmission phase of one connection: requests in, replies out, in one task.
//!
//! A request's future is polled once where it is found, and once more when the input has been worked off: what the requests of a burst
//! do together is done then. If it is ready, its reply goes straight into the output; else it joins the running ones. Replies leave together
//! when the input has been worked off. Invariants: what is received, runs and waits to be sent stays within the
//! budget of the connection and is covered by the server's pool (beyond either nothing is read until
//! replies have left); a request that was begun is polled to its end even if the client has gone; no
//! request fails because the server stops: those that were read are done, the others are not read. A connection that another
//! server goes on with is between two requests, and nothing of it is here.

use std::{
    future::{Future, poll_fn},
    io,
    os::unix::net::UnixStream,
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::timeout,
};

use crate::{
    conn::Conn,
    export::{self, Export, ReadPiece},
    gate::{self, Contexts, Moment, Refusal, Request, Terms, Verdict},
    input::Input,
    output::Output,
    patience::Patience,
    pool::Share,
    reply::{self, ContextRanges, Style, Ticket},
    succession::Turn,
    wire::{BASE_ALLOCATION_ID, BadMagic, COMPACT_HEADER_BYTES, EXTENDED_HEADER_BYTES, Header},
};

/// Bytes a request counts in the budget beside its data: its future and its place in the queue.
const REQUEST_COST_BYTES: u64 = 4 << 10;
/// Ranges of one reply to a block status; the client asks again for the rest.
const RANGES_MAX: usize = 16 << 10;
/// Bytes a block status counts for each context: its ranges as the export returns them and as they are encoded.
const STATUS_COST_BYTES: u64 = 2 * 16 * RANGES_MAX as u64;
/// Bytes of replies after which they are sent although more requests are at hand.
const SEND_BYTES: usize = 256 << 10;
/// Requests that had to wait and are answered in one turn. Then their replies leave, and the client works on
/// them while the next are put together; all at once, client, disk and server would take turns.
const ANSWERS_MAX: usize = 8;
/// Turns of the loop after which other tasks get a chance; a turn is at most one batch.
const TURNS_MAX: usize = 16;
/// How long a client that said goodbye may take to fetch the replies it is owed.
const FAREWELL_LIMIT: Duration = Duration::from_secs(10);
/// How long a client may take to hang up after the server did, before its last replies are put
/// at risk (closing with unread input makes the kernel drop what is still on its way out).
const LINGER_LIMIT: Duration = Duration::from_secs(1);

/// Why no further request is taken.
#[derive(Debug)]
pub(crate) enum End {
    /// The client said goodbye.
    Disconnect,
    /// The client hung up without a word.
    Vanished,
    /// The client goes on with another connection.
    Replaced,
    /// The server is stopping, and everything that was read is answered.
    Stopped,
    /// As that, and the next server can go on with the connection.
    HandedOn(UnixStream),
    /// Others wait for the memory that this client holds: it neither takes its replies nor finishes its write.
    Stalled,
    /// What the client sends makes no sense any more.
    Violation(&'static str),
    /// The socket failed.
    Broken(io::Error),
}

/// What the session waits for in its input.
enum Expect {
    Header,
    /// The payload of a request that is already counted in the budget.
    Payload {
        ticket: Ticket,
        request: Request,
        len: usize,
    },
    /// The rest of a refused request's payload.
    Skip {
        ticket: Ticket,
        refusal: Refusal,
        left: u64,
    },
}

/// What is missing for the next step of the input.
#[derive(Clone, Copy)]
enum Need {
    /// More bytes from the client.
    Bytes,
    /// Room in the budget, which comes when requests end and replies leave.
    Room,
    /// Memory that other connections hold.
    Memory,
    /// Replies have gathered; they should leave first.
    Send,
}

/// One connection in its transmission phase.
pub(crate) struct Session<'a> {
    export: &'a dyn Export,
    bitmaps: &'a [String],
    terms: Terms,
    style: Style,
    budget: u64,
    conn: Conn,
    input: Input,
    expect: Expect,
    output: Output,
    /// Requests of this turn that were not ready where they were found; empty between two turns.
    fresh: Vec<Running<'a>>,
    running: FuturesUnordered<Running<'a>>,
    /// The cost of everything admitted and not yet answered, in bytes.
    admitted: u64,
    /// What covers `held` beyond the connection's own.
    share: Share,
    patience: Patience,
    /// The socket took no more when it was last offered replies.
    send_blocked: bool,
    stopping: bool,
    /// The next server may go on with the connection when this one stops.
    goes_on: bool,
}

/// What a connection may take, and for how long.
pub(crate) struct Allowance {
    pub(crate) bytes_max: u64,
    pub(crate) share: Share,
    pub(crate) stall_limit: Duration,
}

/// Serves requests until the connection ends, and says why it ended. The bitmaps are the selected ones. One that has a turn begins with its
/// first request when everything of those before it has ended, and ends when another one behind it begins.
pub(crate) async fn run(
    (mut conn, mut input): (Conn, Input),
    (export, bitmaps): (&dyn Export, &[String]),
    terms: Terms,
    allowance: Allowance,
    mut stop: watch::Receiver<bool>,
    mut turn: Option<Turn>,
) -> End {
    // What the next server cannot know of a connection, it cannot go on with.
    let goes_on = turn.is_some()
        && conn.is_plain_unix()
        && terms == Terms::plain(&export.properties())
        && export.identity().is_some();
    let cut = turn.as_ref().map(Turn::cut);
    let mut replaced = pin!(async move {
        if let Some(mut cut) = cut
            && cut.wait_for(|cut| *cut).await.is_ok()
        {
            return;
        }
        std::future::pending::<()>().await;
    });
    if let Some(turn) = &mut turn {
        let begins = async {
            first_bytes(&mut conn, &mut input, &mut stop).await;
            // Who asks for nothing replaces nobody.
            if !input.is_empty() {
                turn.begin().await;
            }
        };
        tokio::select! {
            biased;
            () = replaced.as_mut() => return End::Replaced,
            () = begins => {}
        }
    }
    let style = match (terms.extended, terms.structured) {
        (true, _) => Style::Extended,
        (false, true) => Style::Structured,
        (false, false) => Style::Simple,
    };
    let mut session = Session {
        export,
        bitmaps,
        terms,
        style,
        budget: allowance.bytes_max,
        conn,
        input,
        expect: Expect::Header,
        output: Output::default(),
        fresh: Vec::new(),
        running: FuturesUnordered::new(),
        admitted: 0,
        share: allowance.share,
        patience: Patience::new(allowance.stall_limit),
        send_blocked: false,
        stopping: false,
        goes_on,
    };
    let mut stopped = pin!(stop.wait_for(|stop| *stop));
    let end = poll_fn(|cx| {
        if !session.stopping && stopped.as_mut().poll(cx).is_ready() {
            session.stopping = true;
        }
        match replaced.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(End::Replaced),
            Poll::Pending => session.poll_serve(cx),
        }
    })
    .await;
    if goes_on && matches!(end, End::Stopped) {
        debug_assert!(session.running.is_empty() && session.output.queued() == 0 && session.input.is_empty());
        return session.conn.into_plain_unix().map_or(End::Stopped, End::HandedOn);
    }
    session.finish(&end).await;
    end
}

/// Waits until something lies in the input, or nothing more will: the client has gone, or the server stops. What it is, shows behind this.
async fn first_bytes(conn: &mut Conn, input: &mut Input, stop: &mut watch::Receiver<bool>) {
    if input.is_empty() {
        tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => {}
            _ = poll_fn(|cx| input.poll_fill(cx, conn)) => {}
        }
    }
}

impl<'a> Session<'a> {
    /// Works until no further request is to be taken.
    fn poll_serve(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..TURNS_MAX {
            let mut answered = self.collect(cx);
            let need = match self.take_requests(cx) {
                Ok(need) => need,
                Err(end) => return Poll::Ready(end),
            };
            answered += self.look_again(cx);
            let waiting = self.output.queued();
            self.send_blocked = match self.output.poll_send(cx, &mut self.conn) {
                Poll::Ready(Err(error)) => return Poll::Ready(End::Broken(error)),
                Poll::Ready(Ok(())) => false,
                Poll::Pending => true,
            };
            if self.send_blocked {
                self.output.unpin();
            }
            let sent = self.output.queued() < waiting;
            if sent {
                self.patience.moved = true;
                self.share.settle(self.held());
            }
            let progress = match need {
                // What lies in the socket is not read, and so not begun.
                need if self.stopping && self.is_between_requests(need) => {
                    if self.running.is_empty() && self.output.queued() == 0 {
                        return Poll::Ready(End::Stopped);
                    }
                    sent
                }
                Need::Bytes => match self.poll_fill(cx) {
                    Poll::Ready(Ok(0)) => return Poll::Ready(End::Vanished),
                    Poll::Ready(Ok(_)) => {
                        self.patience.moved = true;
                        true
                    }
                    Poll::Ready(Err(error)) => return Poll::Ready(End::Broken(error)),
                    Poll::Pending => false,
                },
                // Either some was sent, or the socket is full and requests go on without it.
                Need::Send => true,
                Need::Room | Need::Memory => {
                    let came = sent || answered > 0;
                    debug_assert!(
                        came || self.held() > 0 || matches!(need, Need::Memory),
                        "room is missing only while something takes it"
                    );
                    came
                }
            };
            // Beyond the most there may be more.
            if !progress && answered < ANSWERS_MAX {
                return match self.is_stalled(cx) {
                    true => Poll::Ready(End::Stalled),
                    false => Poll::Pending,
                };
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Whether no request is half read, so that a stop may end the connection here. One that goes on has to have taken nothing of the next.
    fn is_between_requests(&self, need: Need) -> bool {
        match need {
            _ if !matches!(self.expect, Expect::Header) => false,
            Need::Bytes => !self.goes_on || self.input.is_empty(),
            Need::Memory => !self.goes_on,
            Need::Room | Need::Send => false,
        }
    }

    /// Bytes that count against the budget now.
    fn held(&self) -> u64 {
        self.admitted + self.output.queued() as u64
    }

    /// Reads from the client; while the server stops, only what belongs to the request at hand.
    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let owed = match self.expect {
            _ if !self.stopping => usize::MAX,
            Expect::Header => self.input.missing(COMPACT_HEADER_BYTES as u64), // only of one that goes on
            Expect::Payload { len, .. } => self.input.missing(len as u64),
            Expect::Skip { left, .. } => self.input.missing(left),
        };
        self.input.poll_fill_limited(cx, &mut self.conn, owed)
    }

    /// The client holds memory that others wait for, and has not moved for as long as it may.
    fn is_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let sends = matches!(self.expect, Expect::Payload { .. } | Expect::Skip { .. });
        let owes = sends || (self.send_blocked && self.output.queued() > 0);
        owes && self.share.has_taken() && self.patience.is_over(cx, self.share.others_wait())
    }

    /// Answers what is ready among the running requests, up to [`ANSWERS_MAX`], and says how many.
    fn collect(&mut self, cx: &mut Context<'_>) -> usize {
        let mut answered = 0;
        while answered < ANSWERS_MAX && !self.running.is_empty() {
            let Poll::Ready(Some((ticket, cost, outcome))) = self.running.poll_next_unpin(cx) else { break };
            self.answer(&ticket, cost, outcome);
            answered += 1;
        }
        answered
    }

    /// Answers what is ready among the requests of this turn, and says how many; the others run.
    fn look_again(&mut self, cx: &mut Context<'_>) -> usize {
        let mut fresh = std::mem::take(&mut self.fresh);
        let mut answered = 0;
        for mut running in fresh.drain(..) {
            match Pin::new(&mut running).poll(cx) {
                Poll::Ready((ticket, cost, outcome)) => {
                    self.answer(&ticket, cost, outcome);
                    answered += 1;
                }
                // That poll has registered this task's waker; once woken, `collect` polls it again.
                Poll::Pending => self.running.push(running),
            }
        }
        self.fresh = fresh;
        answered
    }

    /// Takes requests until something is missing, and says what.
    fn take_requests(&mut self, cx: &mut Context<'_>) -> Result<Need, End> {
        loop {
            if self.output.queued() >= SEND_BYTES && !self.send_blocked {
                return Ok(Need::Send);
            }
            if let Some(need) = self.take_request(cx)? {
                return Ok(need);
            }
        }
    }

    /// One step of the input; `None` if it went well.
    fn take_request(&mut self, cx: &mut Context<'_>) -> Result<Option<Need>, End> {
        match self.expect {
            Expect::Header => return self.take_header(cx),
            Expect::Payload { ticket, request, len } => {
                let Some(payload) = self.input.payload(len) else { return Ok(Some(Need::Bytes)) };
                self.expect = Expect::Header;
                self.start(ticket, request, payload);
            }
            Expect::Skip { ticket, refusal, left } => {
                let left = self.input.skip(left);
                if left > 0 {
                    self.expect = Expect::Skip { ticket, refusal, left };
                    return Ok(Some(Need::Bytes));
                }
                self.expect = Expect::Header;
                reply::error(&mut self.output, self.style, &ticket, refusal.errno, refusal.message);
            }
        }
        Ok(None)
    }

    fn take_header(&mut self, cx: &mut Context<'_>) -> Result<Option<Need>, End> {
        let (decoded, header_bytes) = match self.terms.extended {
            true => (self.input.peek().map(Header::extended), EXTENDED_HEADER_BYTES),
            false => (self.input.peek().map(Header::compact), COMPACT_HEADER_BYTES),
        };
        let header = match decoded {
            None => return Ok(Some(Need::Bytes)),
            Some(Err(BadMagic)) => return Err(End::Violation("a request without its magic")),
            Some(Ok(header)) => header,
        };
        let ticket = Ticket { cookie: header.cookie, offset: header.offset, len: header.length, one: false };
        match gate::judge(&header, &self.terms, &self.moment()) {
            Verdict::Disconnect => return Err(End::Disconnect),
            Verdict::HangUp(reason) => return Err(End::Violation(reason)),
            // Even a refusal costs a reply that the client may never fetch.
            _ if self.held() >= self.budget => return Ok(Some(Need::Room)),
            Verdict::Refuse { refusal, payload } => {
                if !self.share.cover(cx, self.held(), REQUEST_COST_BYTES) {
                    return Ok(Some(Need::Memory));
                }
                self.input.consume(header_bytes);
                self.expect = Expect::Skip { ticket, refusal, left: payload };
            }
            Verdict::Run { request, payload } => {
                let cost = cost(&request);
                // A single request always fits, so that a small budget slows but never stops.
                if self.held() > 0 && self.held() + cost > self.budget {
                    return Ok(Some(Need::Room));
                }
                if !self.share.cover(cx, self.held(), cost) {
                    return Ok(Some(Need::Memory));
                }
                self.admitted += cost;
                self.input.consume(header_bytes);
                let ticket = Ticket { one: wants_one(&request), ..ticket };
                if payload == 0 {
                    self.start(ticket, request, Bytes::new());
                } else {
                    self.expect = Expect::Payload { ticket, request, len: payload as usize };
                }
            }
        }
        Ok(None)
    }

    fn moment(&self) -> Moment {
        Moment { size_bytes: self.export.size_bytes() }
    }

    /// Begins a request whose payload is here, and answers it if it is done at once.
    fn start(&mut self, mut ticket: Ticket, mut request: Request, payload: Bytes) {
        let cost = cost(&request);
        if let Request::FilteredStatus { offset, one_range, .. } = request {
            match gate::filter(offset, one_range, &payload, &self.terms, &self.moment()) {
                Ok(Some(wanted)) => request = wanted,
                Ok(None) => {
                    self.admitted -= cost;
                    return reply::status_of_nothing(&mut self.output, self.style, &ticket);
                }
                Err(refusal) => {
                    self.admitted -= cost;
                    return reply::error(
                        &mut self.output,
                        self.style,
                        &ticket,
                        refusal.errno,
                        refusal.message,
                    );
                }
            }
        }
        if let Request::BlockStatus { len, .. } = request {
            ticket.len = len;
        }
        let mut running = Running { ticket, cost, work: work(self.export, self.bitmaps, request, payload) };
        // No task is to be woken: `look_again` polls it in this turn.
        match Pin::new(&mut running).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready((ticket, cost, outcome)) => self.answer(&ticket, cost, outcome),
            Poll::Pending => self.fresh.push(running),
        }
    }

    fn answer(&mut self, ticket: &Ticket, cost: u64, outcome: export::Result<Outcome>) {
        debug_assert!(self.admitted >= cost);
        self.admitted -= cost;
        match outcome {
            Ok(Outcome::Done) => reply::done(&mut self.output, self.style, ticket),
            Ok(Outcome::Read(pieces)) => reply::read(&mut self.output, self.style, ticket, &pieces),
            Ok(Outcome::Status(ranges)) => reply::status(&mut self.output, self.style, ticket, &ranges),
            Err(error) => reply::error(&mut self.output, self.style, ticket, error.errno, &error.message),
        }
    }

    /// Brings what was begun to its end, gives the client its replies if it takes them, closes.
    async fn finish(mut self, end: &End) {
        self.running.extend(self.fresh.drain(..));
        let broken = matches!(end, End::Broken(_) | End::Stalled | End::Replaced);
        if matches!(end, End::Replaced) {
            let _ = timeout(LINGER_LIMIT, self.conn.shutdown()).await; // the client has gone, as a rule
        }
        if broken || timeout(FAREWELL_LIMIT, poll_fn(|cx| self.poll_farewell(cx))).await.is_err() {
            self.output.abandon();
        }
        self.share.settle(self.held());
        while let Some(_reply_for_nobody) = self.running.next().await {}
        if broken {
            return;
        }
        let closing = async {
            self.conn.shutdown().await?;
            if matches!(end, End::Stopped) {
                let mut rest = [0; 4096];
                while self.conn.read(&mut rest).await? > 0 {}
            }
            io::Result::Ok(())
        };
        // An error or the limit only means that the client was quicker, or is not polite.
        let _ = timeout(LINGER_LIMIT, closing).await;
    }

    /// Finishes the running requests and sends all replies; gives up when they cannot be sent.
    fn poll_farewell(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while self.collect(cx) == ANSWERS_MAX {}
        match self.output.poll_send(cx, &mut self.conn) {
            Poll::Ready(Err(_)) => {
                self.output.abandon();
                if self.running.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            }
            Poll::Ready(Ok(())) if self.running.is_empty() => Poll::Ready(()),
            _ => Poll::Pending,
        }
    }
}

/// What a request counts in the budget, in bytes.
fn cost(request: &Request) -> u64 {
    REQUEST_COST_BYTES
        + match request {
            Request::Read { len, .. } | Request::Write { len, .. } => *len,
            Request::BlockStatus { one_range: false, contexts, .. }
            | Request::FilteredStatus { one_range: false, contexts, .. } => {
                STATUS_COST_BYTES * u64::from(contexts.len())
            }
            _ => 0,
        }
}

fn wants_one(request: &Request) -> bool {
    match request {
        Request::Read { one_chunk, .. } => *one_chunk,
        Request::BlockStatus { one_range, .. } | Request::FilteredStatus { one_range, .. } => *one_range,
        _ => false,
    }
}

/// What a request has brought.
enum Outcome {
    Done,
    Read(Vec<ReadPiece>),
    Status(Vec<ContextRanges>),
}

/// The export's future, by what it returns.
enum Work<'a> {
    Done(BoxFuture<'a, export::Result<()>>),
    Read(BoxFuture<'a, export::Result<Vec<ReadPiece>>>),
    Status(BoxFuture<'a, export::Result<Vec<ContextRanges>>>),
}

fn work<'a>(export: &'a dyn Export, bitmaps: &'a [String], request: Request, payload: Bytes) -> Work<'a> {
    match request {
        Request::Read { offset, len, .. } => Work::Read(export.read(offset, len)),
        Request::Write { offset, fua, .. } => Work::Done(export.write(offset, payload, fua)),
        Request::Flush => Work::Done(export.flush()),
        Request::Trim { offset, len, fua } => Work::Done(export.trim(offset, len, fua)),
        Request::WriteZeroes { offset, len, no_hole, fast, fua } => {
            Work::Done(export.write_zeroes(offset, len, no_hole, fast, fua))
        }
        Request::Cache { offset, len } => Work::Done(export.cache(offset, len)),
        Request::BlockStatus { offset, len, one_range, contexts } => {
            let count_max = if one_range { 1 } else { RANGES_MAX };
            Work::Status(Box::pin(status(export, bitmaps, contexts, (offset, len), count_max)))
        }
        Request::FilteredStatus { .. } => unreachable!("filters become plain block status before they run"),
    }
}

/// What a range is in each of some contexts.
async fn status(
    export: &dyn Export,
    bitmaps: &[String],
    contexts: Contexts,
    (offset, len): (u64, u64),
    count_max: usize,
) -> export::Result<Vec<ContextRanges>> {
    let mut out = Vec::with_capacity(contexts.len() as usize);
    for id in contexts.ids() {
        out.push(match id {
            BASE_ALLOCATION_ID => {
                ContextRanges::of_allocation(export.block_status(offset, len, count_max).await?)
            }
            id => {
                let bitmap = &bitmaps[(id - BASE_ALLOCATION_ID - 1) as usize];
                ContextRanges::of_bitmap(id, export.changed(bitmap, offset, len, count_max).await?)
            }
        });
    }
    Ok(out)
}

/// A request that has begun.
struct Running<'a> {
    ticket: Ticket,
    cost: u64,
    work: Work<'a>,
}

impl Future for Running<'_> {
    type Output = (Ticket, u64, export::Result<Outcome>);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match &mut self.work {
            Work::Done(future) => future.as_mut().poll(cx).map_ok(|()| Outcome::Done),
            Work::Read(future) => future.as_mut().poll(cx).map_ok(Outcome::Read),
            Work::Status(future) => future.as_mut().poll(cx).map_ok(Outcome::Status),
        };
        outcome.map(|outcome| (self.ticket, self.cost, outcome))
    }
}
