//! One connection's side of the protocol, without input and output: frames and times in, frames out. The files of
//! `command` execute requests.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_observe::{SpanContext, numbers::bytes as in_units};
use sanderling_replica::push_dedup::ClientPushes;
use sanderling_wire::{
    Agreed, Buffer, Codec, Compression, Fault, Features, Frame, HEADER_BYTES, Hello, Kind, Offer, Parsed,
    PlacementMap, PlacementServer, Reply, Request, SaveAs, WireError, flag, limit, same_token,
};

use crate::background::{BackgroundJob, JobKind};
use crate::call::{Call, Workspace, unwritten, write_failure};
use crate::command;
use crate::limit::{EARLY_WAIT_MIN, FAILURE_BYTES_MAX, WAIT_MAX};
use crate::refusal::Refusal;
use crate::reply_sink::ReplySink;
use crate::state::State;
use crate::waiting::Waiting;

mod notes;

/// Features that a server offers over every transport.
const ALWAYS: Features = Features(
    Features::FORGET.0
        | Features::SAVES.0
        | Features::SENT_AT.0
        | Features::TEMPORARY.0
        | Features::PUSH_PARTS.0
        | Features::CHANGES.0
        | Features::HISTORY.0
        | Features::REPLICATE.0
        | Features::PULL_FROM_ANY.0
        | Features::TRACES.0,
);

/// Arrival and start of a request.
#[derive(Debug, Clone, Copy)]
pub struct When {
    /// Arrival, as far as it is known.
    pub arrived: Instant,
    /// Start of the work on it.
    pub now: Instant,
}

/// The result of handling a frame.
#[derive(Debug)]
pub enum Handled {
    /// The reply is in the sink.
    Replied,
    /// The reply is in [`Session::reply`], to be sent when there is room.
    ReplyPending,
    /// There was no room for the reply, and nothing was done: the same frame must come again.
    NoRoom,
    /// The request has no reply.
    NoReply,
    /// A background thread will run this job and reply.
    InBackground(Box<BackgroundJob>),
}

/// The protocol state of one connection.
#[derive(Debug)]
pub struct Session {
    state: Arc<State>,
    offer: Offer,
    agreed: Agreed,
    greeted: bool,
    closing: bool,
    /// The connection is over the limit; the hello gets "busy".
    over_limit: bool,
    /// Whether the kernel says that the client is a process of this user.
    of_this_user: bool,
    /// A refused login that was not reported yet.
    login_refused: bool,
    client: String,
    client_pushes: Option<Arc<ClientPushes>>,
    waiting: Waiting,
    /// The trace of the next request.
    trace: Option<SpanContext>,
    /// The client's compression, once known.
    compression: Option<Compression>,
    unpacker: Option<Box<Codec>>,
    packer: Option<Box<Codec>>,
    reply: Buffer,
    packed: Buffer,
}

impl Session {
    /// A session of a transport with these features. `over_limit`: its hello gets "busy".
    pub(crate) fn new(state: Arc<State>, features: Features, over_limit: bool) -> Session {
        let frame_bytes_max = state.frame_bytes_max;
        let buffer = || Buffer::new(frame_bytes_max as usize);
        let of_replicas = state.replication.as_ref().map(|replication| replication.spoken.features());
        let features_all = features | ALWAYS | of_replicas.unwrap_or(Features::NONE);
        Session {
            offer: Offer { frame_bytes_max, ..Offer::of(features_all) },
            agreed: Agreed::BEFORE_HELLO,
            greeted: false,
            closing: false,
            over_limit,
            of_this_user: false,
            login_refused: false,
            client: String::new(),
            client_pushes: None,
            // Only transports in one machine go without a checksum.
            waiting: Waiting::new(features.has(Features::NO_CHECKSUM), Instant::now()),
            trace: None,
            compression: None,
            unpacker: None,
            packer: None,
            reply: buffer(),
            packed: buffer(),
            state,
        }
    }

    /// A session of a server without listeners, for fuzzing.
    #[cfg(fuzzing)]
    pub fn of_fuzzer(config: &crate::Config, features: Features) -> Session {
        Session::new(Arc::new(State::new(config)), features, false)
    }

    /// Runs a job without its thread, for fuzzing.
    #[cfg(fuzzing)]
    pub fn run(&self, job: &BackgroundJob) -> Buffer {
        let log = crate::event::Log(Arc::new(|_| {}));
        job.run(&self.state, &mut Default::default(), &log)
    }

    /// The negotiated terms of the connection.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Whether the client has sent its hello.
    pub fn is_greeted(&self) -> bool {
        self.greeted
    }

    /// Records, before the hello, whether the client is a process of this user.
    pub(crate) fn vouch(&mut self, of_this_user: bool) {
        self.of_this_user = of_this_user;
    }

    /// Whether a login was refused since the last call.
    pub(crate) fn take_login_refused(&mut self) -> bool {
        std::mem::take(&mut self.login_refused)
    }

    /// Whether to close the connection after the pending reply.
    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// The client's own name. Empty before its hello.
    pub fn client(&self) -> &str {
        &self.client
    }

    /// The pending reply after [`Handled::ReplyPending`].
    pub fn reply(&self) -> &[u8] {
        self.reply.bytes()
    }

    /// Handles one whole frame that starts at a multiple of 8 bytes.
    ///
    /// # Errors
    /// The stream has lost its framing or is not of this protocol. The caller must close the connection.
    pub fn handle(
        &mut self,
        frame: &[u8],
        when: When,
        workspace: &mut Workspace,
        out: &mut dyn ReplySink,
    ) -> Result<Handled, WireError> {
        let frame = match Frame::parse(frame, &self.agreed)? {
            Parsed::Frame(frame) => frame,
            Parsed::Incomplete { frame_bytes } => {
                let (needed, found) = (frame_bytes as u64, frame.len() as u64);
                return Err(WireError::Cut { what: "frame", needed, found });
            }
        };
        if matches!(frame.header.kind, Kind::SentAt | Kind::Trace) && self.greeted {
            return Ok(self.note(&frame, when.now, out));
        }
        let flags = frame.header.flags;
        if flags & (flag::LZ4 | flag::ZSTD) == 0 && self.compression.is_none() {
            return Ok(self.answer(&frame, when, workspace, out));
        }
        // Links with compression are slow, so another copy costs nothing.
        let mut unpacker = self.unpacker.take().unwrap_or_default();
        if let Some(how) = Compression::of(&frame.header) {
            self.compression = Some(how);
        }
        let mut direct = std::mem::replace(&mut self.packed, Buffer::new(0));
        direct.clear();
        let step = match unpacker.unpack(frame, &self.agreed) {
            Ok(frame) => self.answer(&frame, when, workspace, &mut direct),
            Err(error) => self.refuse(&frame, &Refusal::bad(error.to_string()), &mut direct),
        };
        self.unpacker = Some(unpacker);
        if matches!(step, Handled::Replied) {
            std::mem::swap(&mut self.reply, &mut direct);
        }
        self.packed = direct;
        Ok(match step {
            Handled::Replied | Handled::ReplyPending => {
                self.pack();
                Handled::ReplyPending
            }
            step => step,
        })
    }

    /// Compresses the pending reply, if the client compresses.
    fn pack(&mut self) {
        let Some(how) = self.compression else { return };
        let packer = self.packer.get_or_insert_default();
        self.packed.clear();
        // A reply that cannot be compressed is sent uncompressed.
        if packer.pack(self.reply.bytes(), how, &self.agreed, &mut self.packed).is_ok() {
            std::mem::swap(&mut self.reply, &mut self.packed);
        }
    }

    fn answer(
        &mut self,
        frame: &Frame<'_>,
        when: When,
        workspace: &mut Workspace,
        out: &mut dyn ReplySink,
    ) -> Handled {
        match self.try_answer(frame, when, workspace, out) {
            Ok(step) => step,
            Err(refusal) => self.refuse(frame, &refusal, out),
        }
    }

    fn refuse(&self, frame: &Frame<'_>, refusal: &Refusal, out: &mut dyn ReplySink) -> Handled {
        let (kind, id) = (frame.header.kind, frame.header.id);
        let put =
            out.put(FAILURE_BYTES_MAX, &mut |slot| write_failure(refusal, kind, &self.agreed, id, slot));
        if put { Handled::Replied } else { Handled::NoRoom }
    }

    fn try_answer(
        &mut self,
        frame: &Frame<'_>,
        when: When,
        workspace: &mut Workspace,
        out: &mut dyn ReplySink,
    ) -> Result<Handled, Refusal> {
        let header = &frame.header;
        self.check_first(header.kind)?;
        if let Some(refusal) = self.state.log.as_ref().and_then(|log| log.refusal(header.kind)) {
            return Err(refusal);
        }
        if let Some(replication) = &self.state.replication {
            let from_any = self.agreed.features.has(Features::PULL_FROM_ANY);
            replication.check(header.kind, when.now, from_any)?;
        }
        let waited = when.now.saturating_duration_since(when.arrived).max(self.waiting.waited(when.now));
        let deadline = Duration::from_micros(header.deadline_or_status.into());
        if !deadline.is_zero() && waited > deadline {
            return Err(Refusal::late(waited, deadline));
        }
        if waited > wait_max(deadline) && header.kind.is_about_a_table() {
            let reason = format!("waited for {} ms: the server is overloaded", waited.as_millis());
            return Err(Refusal::busy_before(deadline, reason));
        }
        let request = Request::decode(frame).map_err(|error| Refusal::bad(error.to_string()))?;
        if let Request::Hello(hello) = request {
            return self.greet(&hello, header.id);
        }
        if let Request::Replicate(replicate) = &request {
            let replication = self.state.replication.as_ref();
            let replication = replication.ok_or_else(|| Refusal::bad("this server is in no cluster"))?;
            return replication.take(replicate, self.agreed.features).map(|()| Handled::NoReply);
        }
        let numbered = if self.state.replication.is_some() { workspace.next_replicated() } else { 0 };
        let Workspace { view, scratch, tracer, worker, replicated, .. } = workspace;
        tracer.decoded(&request, waited);
        view.refresh(&self.state.tables);
        tracer.name_table(|number| Some(view.table(number).ok()?.table.name().to_owned()));
        tracer.look_up(|key| {
            let entry = request.table().and_then(|number| view.table(number).ok());
            entry.is_none_or(|entry| entry.table.contains(key))
        });
        if self.state.replication.is_some() {
            tracer.count_slots(|number| view.slots_of(number));
        }
        let (kind, id) = (header.kind, header.id);
        let mut call = Call {
            state: &self.state,
            agreed: &self.agreed,
            kind,
            id,
            now: when.now,
            view,
            scratch,
            worker: *worker,
            request: numbered,
            replicated,
            span: tracer.context(),
        };
        let call = &mut call;
        if self.state.replication.is_some()
            && let Some(change) = command::replicated::change(call, &request)?
        {
            let (agreed, work, since) = (self.agreed, JobKind::Change(change), when.arrived);
            let job = BackgroundJob { work, kind, id, agreed, since, within: deadline };
            return Ok(Handled::InBackground(Box::new(job)));
        }
        let bytes = match &request {
            Request::Pull(pull) => command::pull::layout(call, pull)?,
            Request::PullPooled(pull) => command::pull::layout_pooled(call, pull)?,
            Request::PullFed(pull) => command::feed::layout(call, pull)?,
            Request::Ping(ping) => HEADER_BYTES + 16 + (ping.reply_bytes as usize).next_multiple_of(8),
            Request::Push(_)
            | Request::PushFed(_)
            | Request::Feed(_)
            | Request::Forget(_)
            | Request::Import(_)
            | Request::Delete(_)
            | Request::PushStep(_) => 0,
            slow => return self.answer_slowly(slow, (id, call.worker), when, deadline),
        };
        let bytes_max = self.agreed.frame_bytes_max as usize;
        if bytes > bytes_max {
            let fault = Fault::TooLarge { bytes: bytes as u64, bytes_max: bytes_max as u64 };
            return Err(Refusal::new(
                fault,
                format!("the answer has {}; ask for fewer rows at once", in_units(bytes as u64)),
            ));
        }
        if matches!(&request, Request::Pull(pull) if command::gathered::send(call, pull, out)) {
            tracer.done();
            return Ok(Handled::Replied);
        }
        let client_pushes = &mut self.client_pushes;
        let put = out.put(bytes.max(FAILURE_BYTES_MAX), &mut |slot| {
            let written = match &request {
                Request::Pull(pull) => command::pull::fill(call, pull, slot),
                Request::PullPooled(pull) => command::pull::fill_pooled(call, pull, slot),
                Request::PullFed(pull) => command::feed::pull(call, pull, slot),
                Request::Push(push) => command::push::push(call, client_pushes, push, slot),
                Request::PushFed(push) => command::feed::push(call, client_pushes, push, slot),
                Request::Feed(feed) => command::feed::feed(call, feed, slot),
                Request::Forget(forget) => command::feed::forget(call, forget, slot),
                Request::Import(import) => command::rows::import(call, import, slot),
                Request::Delete(delete) => command::rows::delete(call, delete, slot),
                Request::PushStep(push) => command::step::push(call, push, slot),
                Request::Ping(ping) => command::ping(call, ping, slot),
                _ => unreachable!("answered above"),
            };
            written.unwrap_or_else(|refusal| write_failure(&refusal, kind, call.agreed, id, slot))
        });
        tracer.done();
        call.scratch.trim();
        Ok(if put { Handled::Replied } else { Handled::NoRoom })
    }

    /// Requires a hello first, and only once.
    fn check_first(&mut self, kind: Kind) -> Result<(), Refusal> {
        match (self.greeted, kind) {
            (true, Kind::Hello) => Err(Refusal::bad("this connection has said hello before")),
            (false, Kind::Hello) | (true, _) => Ok(()),
            (false, kind) => {
                self.closing = true;
                Err(Refusal::bad(format!("{kind} before hello; say hello first")))
            }
        }
    }

    fn greet(&mut self, hello: &Hello<'_>, id: u64) -> Result<Handled, Refusal> {
        // After a failed hello the connection is of no use.
        self.closing = true;
        if self.over_limit {
            return Err(Refusal::busy("the server has as many connections as it takes"));
        }
        if self.state.is_draining() {
            return Err(Refusal::new(Fault::Draining, "the server is about to stop"));
        }
        if let Some(token) = &self.state.token
            && !same_token(token, hello.token)
            && !(self.state.admit_this_user && self.of_this_user)
        {
            self.login_refused = true;
            return Err(Refusal::new(Fault::Unauthorized, "the token is missing or wrong"));
        }
        let mut agreed =
            self.offer.meet(&hello.offer).map_err(|fault| Refusal::new(fault, fault.to_string()))?;
        if let Some(replication) = &self.state.replication
            && !agreed.features.has(Features::REPLICATE)
        {
            if replication.history() == 0 {
                // A client would take its tables for lost.
                return Err(Refusal::busy("this server does not know its group yet"));
            }
            // On its way to the other replicas, a push has versions, too.
            let half = (self.state.frame_bytes_max / 2).max(limit::FRAME_BYTES_MIN as u32);
            agreed.frame_bytes_max = agreed.frame_bytes_max.min(half);
        }
        let reply = Reply::Hello(self.state.identity(agreed));
        self.reply.clear();
        let written = self.reply.append(|out| reply.encode(&Agreed::BEFORE_HELLO, id, out));
        written.map_err(unwritten)?;
        (self.agreed, self.greeted, self.closing) = (agreed, true, false);
        // A client that offers one compression wants it. A client that offers both chooses by its first compressed
        // frame.
        self.compression = Compression::wanted(agreed.features);
        self.client = hello.name.to_owned();
        Ok(Handled::ReplyPending)
    }

    /// Handles rare requests. Their replies are encoded before there is room for them.
    fn answer_slowly(
        &mut self,
        request: &Request<'_>,
        (id, worker): (u64, usize),
        when: When,
        within: Duration,
    ) -> Result<Handled, Refusal> {
        let state = &*self.state;
        let agreed = self.agreed;
        let later = |work| {
            let (kind, since) = (request.kind(), when.arrived);
            Ok(Handled::InBackground(Box::new(BackgroundJob { work, kind, id, agreed, since, within })))
        };
        let (agreed, buffer) = (&self.agreed, &mut self.reply);
        buffer.clear();
        let mut write = |reply: Reply<'_>| {
            buffer
                .append(|out| reply.encode(agreed, id, out))
                .map_err(unwritten)
                .map(|_| Handled::ReplyPending)
        };
        match request {
            Request::Create(create) => {
                let entry = state.create(create.name, create.home, create.config)?;
                write(Reply::Create(entry.info()))
            }
            Request::Open(name) => write(Reply::Open(command::table::open(state, name)?.info())),
            Request::Drop(name) => {
                state.drop_table(name)?;
                write(Reply::Drop)
            }
            Request::Tables => {
                let directory = state.tables.directory();
                write(Reply::Tables(directory.entries.iter().map(|entry| entry.info()).collect()))
            }
            Request::Placement => match state.tables.directory().slots.as_ref().map(|slots| slots.map()) {
                Some((version, groups, slots)) => {
                    let server = |server_id| PlacementServer { server_id, url: "" };
                    let servers = (0..groups as u64).map(server).collect();
                    write(Reply::Placement(PlacementMap { version, servers, slots: &slots }))
                }
                None => write(Reply::Placement(state.placement.map())),
            },
            Request::Stats(scope) => command::stats::stats(state, *scope, &mut write),
            Request::WaitStep(wait) => command::step::wait(state, worker, when.now, wait, &mut write),
            Request::Meet(meet) => command::step::meet(state, when.now, meet, &mut write),
            Request::Save(save) => later(JobKind::Save { name: save.name.to_owned(), number: 0 }),
            Request::SaveAs(SaveAs { number, name }) => {
                later(JobKind::Save { name: (*name).to_owned(), number: *number })
            }
            Request::Saved(name) => later(JobKind::Saved { name: (*name).to_owned() }),
            Request::Restore(restore) => later(JobKind::Restore { name: restore.name.to_owned() }),
            Request::Export(export) => later(command::rows::export(state, export)?),
            Request::Changes(changes) => later(command::rows::changes(state, changes)?),
            Request::Subscribe(_)
            | Request::Next(_)
            | Request::Describe
            | Request::Leave(_)
            | Request::Keys(_) => Err(Refusal::bad("this is a parameter server; minibatches are at a hub")),
            Request::Transfer(question) => later(JobKind::Transfer { question: question.to_vec() }),
            Request::Join(_) | Request::Tell(_) => {
                Err(Refusal::bad("this is a parameter server, not a worker of a job"))
            }
            other => unreachable!("{} is answered elsewhere", other.kind()),
        }
    }

    /// Writes a notice that the server will close this connection.
    pub(crate) fn goaway(&self, closing_in_ms: u32, reason: &str, out: &mut dyn ReplySink) -> bool {
        let notice = Reply::Goaway(sanderling_wire::Goaway { closing_in_ms, reason });
        out.put(FAILURE_BYTES_MAX, &mut |slot| {
            notice.encode(&self.agreed, 0, slot).expect("a notice is short")
        })
    }
}

/// Longest wait before a request is refused as busy: half of its deadline, if it has one.
///
/// In a queue longer than the deadline, the first requests would otherwise be answered just too late.
fn wait_max(deadline: Duration) -> Duration {
    if deadline.is_zero() { WAIT_MAX } else { WAIT_MAX.min((deadline / 2).max(EARLY_WAIT_MIN)) }
}
