//! Answers of one connection that are compressed, as who asks has offered or does, and compressed requests that are damaged.

use std::sync::Arc;

use sanderling_wire::{Ping, seal};

use super::*;
use crate::service::ack_set::AckSet;
use crate::service::leases::{LeaseLimits, LeaseTable, PassStart};

fn facts() -> HubFacts {
    HubFacts {
        name: "hub".to_owned(),
        token: None,
        frame_bytes_max: 1 << 20,
        boot_id: 1,
        host_id: 1,
        passes: 1,
        rows: 1,
        stride: 0,
        feeds: String::new(),
        description: None,
        columns: Vec::new(),
        spans: None,
    }
}

fn lease_queue() -> Arc<LeaseQueue> {
    let limits = LeaseLimits {
        queue_batches: 1,
        queue_bytes: 1,
        unacknowledged_bytes: 1,
        window: 1,
        trainer_timeout: std::time::Duration::from_secs(1),
        stride: 0,
        feeds: false,
        logs: false,
    };
    LeaseQueue::new(LeaseTable::new(limits, 9, AckSet::default(), PassStart::default()))
}

/// A connection over which a trainer has said hello with these features, and what was agreed on.
struct PendingRequest {
    session: Session,
    facts: HubFacts,
    lease_queue: Arc<LeaseQueue>,
    agreed: Agreed,
}

impl PendingRequest {
    fn new(features: Features) -> PendingRequest {
        let (facts, lease_queue) = (facts(), lease_queue());
        let session = Session::new(1, Features::LZ4 | Features::ZSTD, &facts, Instant::now());
        let mut asked = PendingRequest { session, facts, lease_queue, agreed: Agreed::BEFORE_HELLO };
        let hello = Hello { offer: Offer::of(features), token: "", name: "t" };
        let answer = asked.ask(plain(&asked.agreed, &Request::Hello(hello)).bytes());
        let Ok(Parsed::Frame(frame)) = Frame::parse(answer.bytes(), &Agreed::BEFORE_HELLO) else {
            panic!("a frame")
        };
        let Ok(Reply::Hello(identity)) = Reply::decode(&frame) else { panic!("it is plain") };
        asked.agreed = identity.agreed;
        asked
    }

    /// The bytes of the answer.
    fn ask(&mut self, bytes: &[u8]) -> Buffer {
        let none = || panic!("no test asks for statistics");
        let outgoing =
            self.session.answer(bytes, &self.facts, &self.lease_queue, &none).expect("the framing holds");
        let outgoing = self.session.pack(outgoing.expect("an answer")).unwrap();
        let mut out = Buffer::new(1 << 21);
        let length = self.session.frame_bytes(&outgoing).unwrap();
        let found = self.session.write(&outgoing, out.room(length).unwrap()).unwrap();
        assert_eq!(found, length);
        out.advance(length);
        out
    }

    /// How the answer is compressed, and what it is.
    fn open<T>(&self, answer: &Buffer, read: impl FnOnce(&Reply<'_>) -> T) -> (Option<Compression>, T) {
        let Ok(Parsed::Frame(frame)) = Frame::parse(answer.bytes(), &self.agreed) else { panic!("a frame") };
        let mut codec = Codec::new();
        let opened = codec.unpack(frame, &self.agreed).unwrap();
        (Compression::of(&frame.header), read(&Reply::decode(&opened).unwrap()))
    }
}

fn plain(agreed: &Agreed, request: &Request<'_>) -> Buffer {
    let mut buffer = Buffer::new(1 << 20);
    buffer.append(|out| request.encode(agreed, 7, 0, out)).unwrap();
    buffer
}

const LONG: usize = 10_000;

fn is_pong(reply: &Reply<'_>) -> bool {
    matches!(reply, Reply::Ping(Pong { bytes, .. }) if bytes.len() == LONG)
}

#[test]
fn answers_are_compressed_as_was_offered_or_as_requests_are() {
    let zeros = vec![0; LONG];
    let ping = Request::Ping(Ping { reply_bytes: LONG as u32, bytes: &zeros });
    for (features, expected) in [
        (Features::NONE, None),
        (Features::LZ4, Some(Compression::Lz4)),
        (Features::ZSTD, Some(Compression::Zstd)),
        (Features::LZ4 | Features::ZSTD, None),
    ] {
        let mut asked = PendingRequest::new(features);
        let answer = asked.ask(plain(&asked.agreed, &ping).bytes());
        assert_eq!(asked.open(&answer, is_pong), (expected, true), "{features:?}");
        assert_eq!(answer.len() < LONG / 10, expected.is_some());
    }
    // A trainer that offered both chooses by what it sends; short frames stay plain.
    let mut asked = PendingRequest::new(Features::LZ4 | Features::ZSTD);
    for how in [Compression::Zstd, Compression::Lz4] {
        let mut packed = Buffer::new(1 << 20);
        Codec::new().pack(plain(&asked.agreed, &ping).bytes(), how, &asked.agreed, &mut packed).unwrap();
        assert!(packed.len() < LONG / 10);
        let answer = asked.ask(packed.bytes());
        assert_eq!(asked.open(&answer, is_pong), (Some(how), true));
        let short = plain(&asked.agreed, &Request::Ping(Ping { reply_bytes: 8, bytes: &[] }));
        let answer = asked.ask(short.bytes());
        assert_eq!(asked.open(&answer, |reply| matches!(reply, Reply::Ping(_))), (None, true));
    }
}

#[test]
fn a_compressed_request_that_is_damaged_is_refused_and_the_connection_goes_on() {
    let zeros = vec![0; LONG];
    let ping = Request::Ping(Ping { reply_bytes: LONG as u32, bytes: &zeros });
    for how in [Compression::Lz4, Compression::Zstd] {
        let mut asked = PendingRequest::new(how.feature());
        let mut packed = Buffer::new(1 << 20);
        Codec::new().pack(plain(&asked.agreed, &ping).bytes(), how, &asked.agreed, &mut packed).unwrap();
        let mut refused = 0;
        for at in HEADER_BYTES..packed.len() {
            let mut damaged = Buffer::new(1 << 20);
            damaged.room(packed.len()).unwrap()[..packed.len()].copy_from_slice(packed.bytes());
            damaged.advance(packed.len());
            damaged.bytes_mut()[at] ^= 0x41;
            seal(damaged.bytes_mut(), &asked.agreed);
            let answer = asked.ask(damaged.bytes());
            let said = |reply: &Reply<'_>| match reply {
                Reply::Failed(Failure { fault: Fault::BadRequest, .. }) => true,
                Reply::Ping(_) => false,
                other => panic!("{at}: {other:?}"),
            };
            refused += u32::from(asked.open(&answer, said).1);
        }
        assert!(refused > 10, "{how:?}: {refused}");
        let answer = asked.ask(packed.bytes());
        assert_eq!(asked.open(&answer, is_pong), (Some(how), true));
    }
}
