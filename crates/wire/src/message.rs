//! All requests and replies, and their encoding as frames. The modules below have one message each.

mod changes;
mod checkpoint;
mod feed;
mod framing;
mod hello;
mod hub;
mod placement;
mod pull;
mod push;
mod replicate;
mod rows;
mod stats;
mod step;
mod table;
mod trace;
mod worker;

pub use changes::{ChangedRows, Changes, ChangesPlace};
pub use checkpoint::{Restore, Restored, Save, SaveAs, Saved};
pub use feed::{Feed, Forget, PullFed};
pub use hello::{Goaway, Hello, Identity, Ping, Pong};
pub use hub::{Ahead, Column, Keys, Leave, Left, Next, NextReply, Outcome, Subscribe, Subscribed};
pub use placement::{PlacementMap, PlacementServer, even_slots, slot_of};
pub use pull::{Pull, PullAreas, PullPooled, PullReply, PullShape, Ragged, RowFormat, RowValues, RowsMut};
pub use push::{Push, PushFed, Pushed};
pub use replicate::Replicate;
pub use rows::{Delete, Export, Exported, Import, RowBlock};
pub use sanderling_pull::{Absent, Pooling};
pub use stats::{Counter, Latency, Statistics, StatsScope};
pub use step::{Meet, Member, Met, PushStep, Said, StepGradients, StepState, WaitStep};
pub use table::{Create, Home, TableInfo};
pub use trace::Trace;
pub use worker::{Join, Joined, Tell, Way};

use crate::frame::{Header, flag};
use crate::message::framing::{encode, header, measure, open};
use crate::writer::Writer;
use crate::{Agreed, Failure, Frame, Kind, WireError, limit};

/// A request to a server. Slices borrow from the received frame.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // each is the message of that name
pub enum Request<'a> {
    Hello(Hello<'a>),
    Ping(Ping<'a>),
    Create(Create<'a>),
    /// Opens the table of this name.
    Open(&'a str),
    /// Drops the table of this name.
    Drop(&'a str),
    /// Lists the tables.
    Tables,
    Pull(Pull<'a>),
    PullPooled(PullPooled<'a>),
    PullFed(PullFed),
    Push(Push<'a>),
    PushFed(PushFed<'a>),
    Feed(Feed<'a>),
    Export(Export),
    Import(Import<'a>),
    Delete(Delete<'a>),
    Save(Save<'a>),
    Restore(Restore<'a>),
    Stats(StatsScope),
    /// Requests the placement.
    Placement,
    PushStep(PushStep<'a>),
    WaitStep(WaitStep),
    Meet(Meet<'a>),
    Subscribe(Subscribe<'a>),
    Next(Next<'a>),
    Join(Join),
    /// A message between workers, without a reply.
    Tell(Tell<'a>),
    /// Requests a hub's description of its rows.
    Describe,
    Leave(Leave<'a>),
    Forget(Forget),
    Keys(Keys),
    SaveAs(SaveAs<'a>),
    /// Requests the save number of a checkpoint.
    Saved(&'a str),
    /// The sender's clock in microseconds, for the requests that follow. It has no reply.
    SentAt(u64),
    Changes(Changes),
    /// A message between replicas. It has no reply.
    Replicate(Replicate<'a>),
    /// A question of another group about rows that move to it. Its content is the servers' own.
    Transfer(&'a [u8]),
    /// The trace that the next request belongs to. It has no reply.
    Trace(Trace),
}

/// A reply or notice of a server. Slices borrow from the received frame.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // each is the message of that name
pub enum Reply<'a> {
    Hello(Identity<'a>),
    Ping(Pong<'a>),
    Create(TableInfo<'a>),
    Open(TableInfo<'a>),
    Drop,
    Tables(Vec<TableInfo<'a>>),
    Pull(PullReply<'a>),
    PullPooled(PullReply<'a>),
    PullFed(PullReply<'a>),
    Push(Pushed),
    PushFed(Pushed),
    Feed,
    Export(Exported<'a>),
    /// Number of imported rows.
    Import(u64),
    /// Number of removed rows.
    Delete(u64),
    Save(Saved),
    Restore(Restored),
    Stats(Statistics<'a>),
    Placement(PlacementMap<'a>),
    /// A notice, with id 0.
    Goaway(Goaway<'a>),
    PushStep(StepState<'a>),
    WaitStep(StepState<'a>),
    Meet(Met<'a>),
    Subscribe(Subscribed<'a>),
    Next(NextReply<'a>),
    Join(Joined),
    /// A hub's description of its rows, a JSON object.
    Describe(&'a str),
    Leave(Left<'a>),
    /// The batch is removed, if it was there.
    Forget,
    /// The whole minibatch, or why there is none.
    Keys(Outcome<'a>),
    SaveAs(Saved),
    /// Number of the save. 0: none.
    Saved(u64),
    Changes(ChangedRows<'a>),
    /// The answer to another group. Its content is the servers' own.
    Transfer(&'a [u8]),
    /// The failure of any request.
    Failed(Failure<'a>),
}

impl<'a> Request<'a> {
    /// The kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Request::Hello(_) => Kind::Hello,
            Request::Ping(_) => Kind::Ping,
            Request::Create(_) => Kind::Create,
            Request::Open(_) => Kind::Open,
            Request::Drop(_) => Kind::Drop,
            Request::Tables => Kind::Tables,
            Request::Pull(_) => Kind::Pull,
            Request::PullPooled(_) => Kind::PullPooled,
            Request::PullFed(_) => Kind::PullFed,
            Request::Push(_) => Kind::Push,
            Request::PushFed(_) => Kind::PushFed,
            Request::Feed(_) => Kind::Feed,
            Request::Export(_) => Kind::Export,
            Request::Import(_) => Kind::Import,
            Request::Delete(_) => Kind::Delete,
            Request::Save(_) => Kind::Save,
            Request::Restore(_) => Kind::Restore,
            Request::Stats(_) => Kind::Stats,
            Request::Placement => Kind::Placement,
            Request::PushStep(_) => Kind::PushStep,
            Request::WaitStep(_) => Kind::WaitStep,
            Request::Meet(_) => Kind::Meet,
            Request::Subscribe(_) => Kind::Subscribe,
            Request::Next(_) => Kind::Next,
            Request::Join(_) => Kind::Join,
            Request::Tell(tell) => tell.kind(),
            Request::Describe => Kind::Describe,
            Request::Leave(_) => Kind::Leave,
            Request::Forget(_) => Kind::Forget,
            Request::Keys(_) => Kind::Keys,
            Request::SaveAs(_) => Kind::SaveAs,
            Request::Saved(_) => Kind::Saved,
            Request::SentAt(_) => Kind::SentAt,
            Request::Changes(_) => Kind::Changes,
            Request::Replicate(_) => Kind::Replicate,
            Request::Transfer(_) => Kind::Transfer,
            Request::Trace(_) => Kind::Trace,
        }
    }

    /// The table that it concerns, if any.
    #[must_use]
    pub fn table(&self) -> Option<u32> {
        match self {
            Request::Pull(pull) => Some(pull.table),
            Request::PullPooled(pull) => Some(pull.table),
            Request::PullFed(pull) => Some(pull.table),
            Request::Push(push) => Some(push.table),
            Request::PushFed(push) => Some(push.table),
            Request::Feed(feed) => Some(feed.table),
            Request::Export(export) => Some(export.table),
            Request::Import(import) => Some(import.table),
            Request::Delete(delete) => Some(delete.table),
            Request::PushStep(push) => Some(push.table),
            Request::Forget(forget) => Some(forget.table),
            Request::Changes(changes) => Some(changes.table),
            _ => None,
        }
    }

    fn format(&self) -> RowFormat {
        match self {
            Request::Pull(pull) => pull.format,
            Request::PullPooled(pull) => pull.format,
            Request::PullFed(pull) => pull.format,
            Request::Changes(changes) => changes.format,
            _ => RowFormat::F32,
        }
    }

    fn flags(&self) -> u16 {
        let continues = matches!(self, Request::Push(Push { continues: true, .. }));
        self.format().flag() | if continues { flag::CONTINUES } else { 0 }
    }

    /// Length of its frame.
    pub fn frame_bytes(&self) -> Result<usize, WireError> {
        measure(|out| self.write(out))
    }

    /// Encodes the frame at the start of `out`, which is aligned to 8 bytes, and returns its length. If `out` is too
    /// short, [`WireError::NoRoom`] tells the length.
    pub fn encode(
        &self,
        agreed: &Agreed,
        id: u64,
        deadline_us: u32,
        out: &mut [u8],
    ) -> Result<usize, WireError> {
        let header = header(self.kind(), agreed, id, self.flags());
        let table = self.table().unwrap_or_default();
        encode(Header { deadline_or_status: deadline_us, table, ..header }, agreed, out, |out| {
            self.write(out)
        })
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        match self {
            Request::Hello(hello) => hello.write(out),
            Request::Ping(ping) => ping.write(out),
            Request::Create(create) => create.write(out),
            Request::Open(name) | Request::Drop(name) => out.text("name", name, limit::NAME_BYTES_MAX),
            Request::Tables | Request::Placement | Request::Describe => Ok(()),
            Request::Pull(pull) => pull.write(out),
            Request::PullPooled(pull) => pull.write(out),
            Request::PullFed(pull) => pull.write(out),
            Request::Push(push) => push.write(out),
            Request::PushFed(push) => push.write(out),
            Request::Feed(feed) => feed.write(out),
            Request::Export(export) => export.write(out),
            Request::Import(import) => import.rows.write(out),
            Request::Delete(delete) => delete.write(out),
            Request::Save(save) => save.write(out),
            Request::Restore(restore) => restore.write(out),
            Request::Stats(scope) => scope.write(out),
            Request::PushStep(push) => push.write(out),
            Request::WaitStep(wait) => wait.write(out),
            Request::Meet(meet) => meet.write(out),
            Request::Subscribe(subscribe) => subscribe.write(out),
            Request::Next(next) => next.write(out),
            Request::Join(join) => join.write(out),
            Request::Tell(tell) => tell.write(out),
            Request::Leave(leave) => leave.write(out),
            Request::Forget(forget) => forget.write(out),
            Request::Keys(keys) => keys.write(out),
            Request::SaveAs(save) => save.write(out),
            Request::Changes(changes) => changes.write(out),
            Request::Replicate(replicate) => replicate.write(out),
            Request::Transfer(bytes) => out.blob("transfer", bytes, limit::FRAME_BYTES_MAX),
            Request::Trace(trace) => trace.write(out),
            Request::Saved(name) => out.text("checkpoint", name, limit::PATH_BYTES_MAX),
            Request::SentAt(us) => {
                out.u64(*us);
                Ok(())
            }
        }
    }

    /// Decodes the request of a frame. Answer an error with [`Fault::BadRequest`](crate::Fault::BadRequest); the
    /// connection remains usable.
    pub fn decode(frame: &Frame<'a>) -> Result<Request<'a>, WireError> {
        let header = &frame.header;
        let mut from = open(frame, !header.is_reply(), "a plain request")?;
        let from = &mut from;
        let (table, format) = (header.table, RowFormat::of(header));
        let request = match header.kind {
            Kind::Hello => Request::Hello(Hello::read(from)?),
            Kind::Ping => Request::Ping(Ping::read(from)?),
            Kind::Create => Request::Create(Create::read(from)?),
            Kind::Open => Request::Open(from.text("name", limit::NAME_BYTES_MAX)?),
            Kind::Drop => Request::Drop(from.text("name", limit::NAME_BYTES_MAX)?),
            Kind::Tables => Request::Tables,
            Kind::Pull => Request::Pull(Pull::read(table, format, from)?),
            Kind::PullPooled => Request::PullPooled(PullPooled::read(table, format, from)?),
            Kind::PullFed => Request::PullFed(PullFed::read(table, format, from)?),
            Kind::Push => Request::Push(Push::read(table, header.flags, from)?),
            Kind::PushFed => Request::PushFed(PushFed::read(table, from)?),
            Kind::Feed => Request::Feed(Feed::read(table, from)?),
            Kind::Export => Request::Export(Export::read(table, from)?),
            Kind::Import => Request::Import(Import { table, rows: RowBlock::read(from)? }),
            Kind::Delete => Request::Delete(Delete::read(table, from)?),
            Kind::Save => Request::Save(Save::read(from)?),
            Kind::Restore => Request::Restore(Restore::read(from)?),
            Kind::Stats => Request::Stats(StatsScope::read(from)?),
            Kind::Placement => Request::Placement,
            Kind::PushStep => Request::PushStep(PushStep::read(table, from)?),
            Kind::WaitStep => Request::WaitStep(WaitStep::read(from)?),
            Kind::Meet => Request::Meet(Meet::read(from)?),
            Kind::Subscribe => Request::Subscribe(Subscribe::read(from)?),
            Kind::Next => Request::Next(Next::read(from)?),
            Kind::Join => Request::Join(Join::read(from)?),
            Kind::Describe => Request::Describe,
            Kind::Leave => Request::Leave(Leave::read(from)?),
            Kind::Forget => Request::Forget(Forget::read(table, from)?),
            Kind::Keys => Request::Keys(Keys::read(from)?),
            Kind::SaveAs => Request::SaveAs(SaveAs::read(from)?),
            Kind::Saved => Request::Saved(from.text("checkpoint", limit::PATH_BYTES_MAX)?),
            Kind::SentAt => Request::SentAt(from.u64("sent_at")?),
            Kind::Changes => Request::Changes(Changes::read(table, format, from)?),
            Kind::Replicate => Request::Replicate(Replicate::read(from)?),
            Kind::Transfer => Request::Transfer(from.blob("transfer", limit::FRAME_BYTES_MAX)?),
            Kind::Trace => Request::Trace(Trace::read(from)?),
            kind => {
                let tell = Tell::read(kind, from)?;
                Request::Tell(tell.ok_or(WireError::Direction { kind, expected: "a plain request" })?)
            }
        };
        from.finish()?;
        Ok(request)
    }
}

impl<'a> Reply<'a> {
    /// The kind. For a failure, the kind of the request.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Reply::Hello(_) => Kind::Hello,
            Reply::Ping(_) => Kind::Ping,
            Reply::Create(_) => Kind::Create,
            Reply::Open(_) => Kind::Open,
            Reply::Drop => Kind::Drop,
            Reply::Tables(_) => Kind::Tables,
            Reply::Pull(_) => Kind::Pull,
            Reply::PullPooled(_) => Kind::PullPooled,
            Reply::PullFed(_) => Kind::PullFed,
            Reply::Push(_) => Kind::Push,
            Reply::PushFed(_) => Kind::PushFed,
            Reply::Feed => Kind::Feed,
            Reply::Export(_) => Kind::Export,
            Reply::Import(_) => Kind::Import,
            Reply::Delete(_) => Kind::Delete,
            Reply::Save(_) => Kind::Save,
            Reply::Restore(_) => Kind::Restore,
            Reply::Stats(_) => Kind::Stats,
            Reply::Placement(_) => Kind::Placement,
            Reply::Goaway(_) => Kind::Goaway,
            Reply::PushStep(_) => Kind::PushStep,
            Reply::WaitStep(_) => Kind::WaitStep,
            Reply::Meet(_) => Kind::Meet,
            Reply::Subscribe(_) => Kind::Subscribe,
            Reply::Next(_) => Kind::Next,
            Reply::Join(_) => Kind::Join,
            Reply::Describe(_) => Kind::Describe,
            Reply::Leave(_) => Kind::Leave,
            Reply::Forget => Kind::Forget,
            Reply::Keys(_) => Kind::Keys,
            Reply::SaveAs(_) => Kind::SaveAs,
            Reply::Saved(_) => Kind::Saved,
            Reply::Changes(_) => Kind::Changes,
            Reply::Transfer(_) => Kind::Transfer,
            Reply::Failed(failure) => failure.kind,
        }
    }

    /// Length of its frame.
    pub fn frame_bytes(&self) -> Result<usize, WireError> {
        measure(|out| self.write(out))
    }

    /// Encodes the reply to the request `id`, as [`Request::encode`] does.
    pub fn encode(&self, agreed: &Agreed, id: u64, out: &mut [u8]) -> Result<usize, WireError> {
        let (format, status) = match self {
            Reply::Pull(reply) | Reply::PullPooled(reply) | Reply::PullFed(reply) => {
                (reply.values.format(), 0)
            }
            Reply::Changes(changed) => (changed.values.format(), 0),
            Reply::Failed(failure) => (RowFormat::F32, failure.fault.code()),
            _ => (RowFormat::F32, 0),
        };
        let header = header(self.kind(), agreed, id, flag::REPLY | format.flag());
        encode(Header { deadline_or_status: status, ..header }, agreed, out, |out| self.write(out))
    }

    fn write(&self, out: &mut Writer<'_>) -> Result<(), WireError> {
        match self {
            Reply::Hello(identity) => identity.write(out),
            Reply::Ping(pong) => pong.write(out),
            Reply::Create(info) | Reply::Open(info) => info.write(out),
            Reply::Drop | Reply::Feed | Reply::Forget => Ok(()),
            Reply::Tables(infos) => TableInfo::write_all(infos, out),
            Reply::Pull(reply) | Reply::PullPooled(reply) | Reply::PullFed(reply) => reply.write(out),
            Reply::Push(pushed) | Reply::PushFed(pushed) => pushed.write(out),
            Reply::Export(exported) => exported.write(out),
            Reply::Import(number) | Reply::Delete(number) | Reply::Saved(number) => {
                out.u64(*number);
                Ok(())
            }
            Reply::Save(saved) | Reply::SaveAs(saved) => saved.write(out),
            Reply::Restore(restored) => restored.write(out),
            Reply::Stats(statistics) => statistics.write(out),
            Reply::Placement(map) => map.write(out),
            Reply::Goaway(goaway) => goaway.write(out),
            Reply::PushStep(state) | Reply::WaitStep(state) => state.write(out),
            Reply::Meet(met) => met.write(out),
            Reply::Subscribe(subscribed) => subscribed.write(out),
            Reply::Next(next) => next.write(out),
            Reply::Join(joined) => joined.write(out),
            Reply::Describe(text) => out.text("description", text, limit::DESCRIPTION_BYTES_MAX),
            Reply::Leave(left) => left.write(out),
            Reply::Changes(changed) => changed.write(out),
            Reply::Transfer(bytes) => out.blob("transfer", bytes, limit::FRAME_BYTES_MAX),
            Reply::Keys(outcome) => NextReply { late: &[], outcome: *outcome }.write(out),
            Reply::Failed(failure) => failure.write(out),
        }
    }

    /// Decodes the reply of a frame.
    pub fn decode(frame: &Frame<'a>) -> Result<Reply<'a>, WireError> {
        let header = &frame.header;
        let mut from = open(frame, header.is_reply(), "a plain reply")?;
        let from = &mut from;
        let format = RowFormat::of(header);
        let reply = match header.kind {
            kind if header.deadline_or_status != 0 => {
                Reply::Failed(Failure::read(kind, header.deadline_or_status, from)?)
            }
            Kind::Hello => Reply::Hello(Identity::read(from)?),
            Kind::Ping => Reply::Ping(Pong::read(from)?),
            Kind::Create => Reply::Create(TableInfo::read(from)?),
            Kind::Open => Reply::Open(TableInfo::read(from)?),
            Kind::Drop => Reply::Drop,
            Kind::Tables => Reply::Tables(TableInfo::read_all(from)?),
            Kind::Pull => Reply::Pull(PullReply::read(format, from)?),
            Kind::PullPooled => Reply::PullPooled(PullReply::read(format, from)?),
            Kind::PullFed => Reply::PullFed(PullReply::read(format, from)?),
            Kind::Push => Reply::Push(Pushed::read(from)?),
            Kind::PushFed => Reply::PushFed(Pushed::read(from)?),
            Kind::Feed => Reply::Feed,
            Kind::Export => Reply::Export(Exported::read(from)?),
            Kind::Import => Reply::Import(from.u64("imported rows")?),
            Kind::Delete => Reply::Delete(from.u64("deleted rows")?),
            Kind::Save => Reply::Save(Saved::read(from)?),
            Kind::Restore => Reply::Restore(Restored::read(from)?),
            Kind::Stats => Reply::Stats(Statistics::read(from)?),
            Kind::Placement => Reply::Placement(PlacementMap::read(from)?),
            Kind::Goaway => Reply::Goaway(Goaway::read(from)?),
            Kind::PushStep => Reply::PushStep(StepState::read(from)?),
            Kind::WaitStep => Reply::WaitStep(StepState::read(from)?),
            Kind::Meet => Reply::Meet(Met::read(from)?),
            Kind::Subscribe => Reply::Subscribe(Subscribed::read(from)?),
            Kind::Next => Reply::Next(NextReply::read(from)?),
            Kind::Join => Reply::Join(Joined::read(from)?),
            Kind::Describe => Reply::Describe(from.text("description", limit::DESCRIPTION_BYTES_MAX)?),
            Kind::Leave => Reply::Leave(Left::read(from)?),
            Kind::Forget => Reply::Forget,
            Kind::Keys => Reply::Keys(Keys::read_reply(from)?),
            Kind::SaveAs => Reply::SaveAs(Saved::read(from)?),
            Kind::Saved => Reply::Saved(from.u64("number of a save")?),
            Kind::Changes => Reply::Changes(ChangedRows::read(format, from)?),
            Kind::Transfer => Reply::Transfer(from.blob("transfer", limit::FRAME_BYTES_MAX)?),
            kind => return Err(WireError::Direction { kind, expected: "a plain reply" }),
        };
        from.finish()?;
        Ok(reply)
    }
}
