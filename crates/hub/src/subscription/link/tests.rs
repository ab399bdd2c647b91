//! One hub's state machine against answers made by hand: hubs of before farewells and descriptions, farewells that are not heard,
//! and columns that are not those that were announced.

use sanderling_sample::{Batch, PackedBuffer, Rows, pack};
use sanderling_wire::{
    Ahead, Column, Frame, Identity, Kind, Left, NextReply, Outcome, Parsed, Reply, Subscribed,
};

use super::*;

/// A hub's answer, put into a link.
fn answer(link: &mut Link, agreed: &Agreed, reply: &Reply<'_>, id: u64) {
    let mut frame = Buffer::new(limit::FRAME_BYTES_MAX);
    frame.append(|out| reply.encode(agreed, id, out)).expect("fits");
    link.receive(0, frame.bytes(), &mut Vec::new());
}

/// The request that the link sends now: kind and id.
fn sent(link: &mut Link) -> Option<(Kind, u64)> {
    (link.want(0) == Want::Send).then(|| {
        let Ok(Parsed::Frame(frame)) = Frame::parse(link.outgoing(), &link.agreed) else { panic!("a frame") };
        let said = (frame.header.kind, frame.header.id);
        link.sent();
        said
    })
}

/// Brings a link up to its subscription, by a hub that can do so much and has these columns; what holds between the two.
fn connect(link: &mut Link, now_us: u64, features: Features, columns: &[(&str, bool)]) -> Agreed {
    assert_eq!(link.want(now_us), Want::Connect);
    link.connected(now_us, Features::NONE);
    assert_eq!(sent(link), Some((Kind::Hello, 0)));
    let agreed = Offer::of(features).meet(&link.offer).expect("same version");
    let identity = Identity {
        agreed,
        in_flight_max: 64,
        shard: 0,
        shards: 1,
        server_id: 0,
        boot_id: 0,
        host_id: 0,
        placement_version: 0,
        history_id: 0,
        name: "",
        local_url: "",
    };
    answer(link, &Agreed::BEFORE_HELLO, &Reply::Hello(identity), 0);
    assert_eq!(sent(link), Some((Kind::Subscribe, 0)));
    let columns = columns.iter().map(|&(name, weighted)| Column { name, weighted }).collect();
    let reply = Subscribed { stream: 9, passes: 1, rows: 2, window: 2, stride: 0, late: &[], columns };
    answer(link, &agreed, &Reply::Subscribe(reply), 0);
    agreed
}

/// A link to a hub that feeds some columns, which is asked for minibatches.
fn subscribed_fed() -> (Link, Agreed) {
    let options = SubscribeOptions { takes_fed: true, ..SubscribeOptions::default() };
    let mut link = Link::new(0, "h:1".to_owned(), "t", &options);
    link.asks = true;
    let agreed = connect(&mut link, 0, Features::FED, &[("a", false), ("b", true)]);
    (link, agreed)
}

/// A minibatch of one row, with so many keys in each column.
fn one_row(keys: [usize; 2]) -> PackedBuffer {
    let mut batch = Batch::new(&[false, true]);
    for (column, keys) in batch.columns.iter_mut().zip(keys) {
        (0..keys).for_each(|key| column.push(key as u64, 0.5));
    }
    batch.close_row(1.0, 1.0);
    let mut packed = PackedBuffer::new();
    pack(&Rows::all(&batch), &mut packed).unwrap();
    packed
}

fn new_link() -> Link {
    Link::new(0, "h:1".to_owned(), "t", &SubscribeOptions::default())
}

/// A link to a hub that can do so much, up to its subscription.
fn subscribed(features: Features) -> (Link, Agreed) {
    let mut link = new_link();
    let agreed = connect(&mut link, 0, features, &[("id", false)]);
    (link, agreed)
}

/// A link to a hub of such columns, which is asked for minibatches.
fn subscribed_to(columns: &[(&str, bool)]) -> (Link, Agreed) {
    let mut link = new_link();
    link.asks = true;
    let agreed = connect(&mut link, 0, Features::NONE, columns);
    (link, agreed)
}

#[test]
fn a_hub_of_before_is_not_asked_what_it_does_not_know() {
    let (mut link, _) = subscribed(Features::NONE);
    assert!(link.introduced && link.description.is_none());
    assert_eq!((sent(&mut link), link.wake_us()), (None, None), "no caller waits for a minibatch");
    link.asks = true;
    assert_eq!(sent(&mut link), Some((Kind::Next, 1)));
    link.leave();
    assert!(link.has_left());
    assert_eq!((link.want(0), link.wake_us()), (Want::Nothing, None));
}

#[test]
fn a_farewell_says_what_was_used_and_is_the_last_word() {
    let (mut link, agreed) = subscribed(Features::DESCRIBE | Features::LEAVE);
    assert!(!link.introduced);
    assert_eq!(sent(&mut link), Some((Kind::Describe, 0)));
    answer(&mut link, &agreed, &Reply::Describe("{}"), 0);
    assert!(link.introduced);
    link.asks = true;
    assert_eq!((sent(&mut link), sent(&mut link)), (Some((Kind::Next, 1)), Some((Kind::Next, 2))));
    link.leave();
    assert!(!link.has_left());
    assert_eq!(sent(&mut link), Some((Kind::Leave, 3)));
    // Answers to earlier requests come first.
    let nothing = Outcome::Wait { retry_after_us: 5 };
    for id in [1, 2] {
        answer(&mut link, &agreed, &Reply::Next(NextReply { late: &[], outcome: nothing }), id);
    }
    assert_eq!((link.want(1_000_000), link.has_left()), (Want::Nothing, false));
    answer(&mut link, &agreed, &Reply::Leave(Left { late: &[7] }), 3);
    assert!(link.has_left() && link.error().is_none());
    assert_eq!(link.late, 1);
    assert_eq!(link.want(0), Want::Close);
    assert_eq!((link.want(u64::MAX - 1), link.wake_us()), (Want::Nothing, None));
}

#[test]
fn a_farewell_that_is_lost_is_not_said_again() {
    for silent in [false, true] {
        let (mut link, agreed) = subscribed(Features::DESCRIBE | Features::LEAVE);
        assert_eq!(sent(&mut link), Some((Kind::Describe, 0)));
        answer(&mut link, &agreed, &Reply::Describe("{}"), 0);
        link.leave();
        assert_eq!(sent(&mut link), Some((Kind::Leave, 1)));
        if silent {
            let long = 2 * link.options.timeout.as_micros() as u64;
            assert_eq!((link.want(long), link.want(long)), (Want::Close, Want::Nothing));
        } else {
            link.disconnected(0, "it is gone".to_owned());
        }
        assert!(link.has_left() && link.error().is_none());
        assert_eq!(link.want(1_000_000_000), Want::Nothing);
    }
}

#[test]
fn a_minibatch_has_the_columns_that_were_announced() {
    let announced = [("a", false), ("b", true)];
    for (weighted, expected) in [
        (&[false, true][..], None),
        (&[false], Some("has 1 columns, not the 2")),
        (&[], Some("has 0 columns")),
        (&[false, true, true], Some("has 3 columns")),
        (&[false, false], Some("lacks the values of column \"b\"")),
        (&[true, true], Some("has values in column \"a\"")),
    ] {
        let mut batch = Batch::new(weighted);
        batch.columns.iter_mut().for_each(|column| column.push(5, 0.5));
        batch.close_row(1.0, 1.0);
        let mut packed = PackedBuffer::new();
        pack(&Rows::all(&batch), &mut packed).unwrap();
        let (mut link, agreed) = subscribed_to(&announced);
        let outcome = Outcome::Batch { pass: 0, number: 3, rows: 1, payload: packed.bytes() };
        assert_eq!(sent(&mut link), Some((Kind::Next, 1)));
        answer(&mut link, &agreed, &Reply::Next(NextReply { late: &[], outcome }), 1);
        match (link.error(), expected) {
            (None, None) => assert_eq!(link.take().unwrap().batch.columns(), 2),
            (Some(HubError::Protocol { reason, .. }), Some(part)) => {
                assert!(reason.starts_with("minibatch 3") && reason.contains(part), "{reason}");
                assert!(link.take().is_none());
            }
            other => panic!("{weighted:?}: {other:?}"),
        }
    }
}

#[test]
fn a_hub_that_comes_back_with_other_features_is_refused() {
    for (columns, is_refused) in [([("a", false)], false), ([("a", true)], true), ([("c", false)], true)] {
        let (mut link, _) = subscribed_to(&[("a", false)]);
        link.disconnected(0, "cut".to_owned());
        connect(&mut link, 1_000_000, Features::NONE, &columns);
        let refused = matches!(link.error(), Some(HubError::Protocol { reason, .. }) if reason.contains("features have changed"));
        assert_eq!(refused, is_refused, "{columns:?} {:?}", link.error());
    }
}

#[test]
fn what_was_fed_is_of_columns_that_are_there_and_lack_their_keys() {
    let none = one_row([2, 0]);
    for (packed, columns, agrees, expected) in [
        (&none, &[1][..], true, None),
        (&none, &[], true, None),
        (&none, &[0], true, Some("has keys in column 0, which were fed")),
        (&none, &[1, 2], true, Some("has 2 columns, but column 2 was fed")),
        (&one_row([2, 1]), &[1], true, Some("has keys in column 1")),
        (&none, &[1], false, Some("lacks keys, which this trainer did not accept")),
    ] {
        let (mut link, agreed) =
            if agrees { subscribed_fed() } else { subscribed_to(&[("a", false), ("b", true)]) };
        let keys: Vec<u32> = (0..2 * columns.len() as u32).collect();
        let ahead = Ahead { batch: 9, age_us: 70, placement_version: 4, columns, servers: 2, keys: &keys };
        let outcome = Outcome::Fed { pass: 0, number: 3, rows: 1, payload: packed.bytes(), ahead };
        assert_eq!(sent(&mut link), Some((Kind::Next, 1)));
        answer(&mut link, &agreed, &Reply::Next(NextReply { late: &[], outcome }), 1);
        match (link.error(), expected) {
            (None, None) => {
                let fed = link.take().unwrap().fed.unwrap();
                assert_eq!((fed.batch, fed.age, fed.servers), (9, Duration::from_micros(70), 2));
                assert_eq!(fed.placement_version, 4);
                assert_eq!(fed.keys_of(1), columns.first().map(|_| &[0, 1][..]));
                assert_eq!(fed.keys_of(0), None);
            }
            (Some(HubError::Protocol { reason, .. }), Some(part)) => {
                assert!(reason.starts_with("minibatch 3") && reason.contains(part), "{reason}");
            }
            other => panic!("{columns:?}: {other:?}"),
        }
    }
}

#[test]
fn keys_are_asked_for_again_until_there_is_an_answer() {
    let (mut link, agreed) = subscribed_fed();
    link.asks = false;
    link.ask_whole(1, 3);
    link.ask_whole(2, 4);
    assert_eq!((sent(&mut link), sent(&mut link)), (Some((Kind::Keys, 1)), Some((Kind::Keys, 2))));
    // The hub makes one of them once more, and the other one is another trainer's.
    answer(&mut link, &agreed, &Reply::Keys(Outcome::Wait { retry_after_us: 50 }), 1);
    answer(&mut link, &agreed, &Reply::Keys(Outcome::Nothing), 2);
    assert!(matches!(link.take_wholes()[..], [(2, None)]));
    assert_eq!((sent(&mut link), link.wake_us()), (None, Some(50)));
    assert_eq!(link.want(50), Want::Send);
    assert_eq!(sent(&mut link), Some((Kind::Keys, 3)));
    // The answer is lost with the connection, and asked for over the next one.
    link.disconnected(50, "cut".to_owned());
    let agreed = connect(&mut link, 1_000_000, Features::FED, &[("a", false), ("b", true)]);
    assert!(link.take_wholes().is_empty());
    assert_eq!(link.want(1_000_000), Want::Send);
    assert_eq!(sent(&mut link), Some((Kind::Keys, 4)));
    let whole = one_row([2, 1]);
    let outcome = Outcome::Batch { pass: 0, number: 3, rows: 1, payload: whole.bytes() };
    answer(&mut link, &agreed, &Reply::Keys(outcome), 4);
    let full_batches = link.take_wholes();
    let [(1, Some(batch))] = &full_batches[..] else { panic!("{full_batches:?}") };
    assert_eq!(batch.rows().keys(1).len(), 1);
    // A trainer that leaves is told that it holds nothing.
    link.ask_whole(5, 3);
    link.leave();
    assert!(matches!(link.take_wholes()[..], [(5, None)]));
    assert!(link.error().is_none());
}

#[test]
fn an_answer_about_another_minibatch_is_none() {
    let whole = one_row([2, 1]);
    let ahead = Ahead { batch: 0, age_us: 0, placement_version: 0, columns: &[], servers: 0, keys: &[] };
    for outcome in [
        Outcome::Batch { pass: 0, number: 4, rows: 1, payload: whole.bytes() },
        Outcome::Fed { pass: 0, number: 3, rows: 1, payload: whole.bytes(), ahead },
        Outcome::Batch { pass: 0, number: 3, rows: 1, payload: &[0; 64] },
    ] {
        let (mut link, agreed) = subscribed_fed();
        link.asks = false;
        link.ask_whole(1, 3);
        assert_eq!(sent(&mut link), Some((Kind::Keys, 1)));
        answer(&mut link, &agreed, &Reply::Keys(outcome), 1);
        assert!(matches!(link.error(), Some(HubError::Protocol { .. })), "{:?}", link.error());
    }
}

/// A link that wants a compression, of a hub that can do both; it is asked for minibatches.
fn subscribed_packed(how: Compression) -> (Link, Agreed) {
    let options = SubscribeOptions { compression: Some(how), ..SubscribeOptions::default() };
    let mut link = Link::new(0, "h:1".to_owned(), "t", &options);
    link.asks = true;
    let agreed = connect(&mut link, 0, Features::LZ4 | Features::ZSTD, &[("a", false), ("b", true)]);
    (link, agreed)
}

/// The answer that has a minibatch of many keys, compressed.
fn packed_answer(agreed: &Agreed, how: Compression) -> Buffer {
    let batch = one_row([500, 500]);
    let outcome = Outcome::Batch { pass: 0, number: 3, rows: 1, payload: batch.bytes() };
    let (mut plain, mut packed) = (Buffer::new(1 << 20), Buffer::new(1 << 20));
    plain.append(|out| Reply::Next(NextReply { late: &[], outcome }).encode(agreed, 1, out)).unwrap();
    Codec::new().pack(plain.bytes(), how, agreed, &mut packed).unwrap();
    assert!(packed.len() < plain.len() / 2);
    packed
}

#[test]
fn minibatches_come_compressed_as_was_agreed_on() {
    for how in [Compression::Lz4, Compression::Zstd] {
        let (mut link, agreed) = subscribed_packed(how);
        assert_eq!(agreed.features, how.feature());
        assert_eq!(sent(&mut link), Some((Kind::Next, 1)));
        link.receive(0, packed_answer(&agreed, how).bytes(), &mut Vec::new());
        assert_eq!(link.error(), None);
        assert_eq!(link.take().unwrap().batch.rows().keys(1).len(), 500);
        // Where memory is shared, it is not offered.
        let mut link = Link::new(0, "h:1".to_owned(), "t", &link.options);
        assert_eq!(link.want(0), Want::Connect);
        link.connected(0, Features::NO_CHECKSUM);
        assert!(!link.offer.features.has(how.feature()));
    }
}

/// Whatever is wrong with compressed bytes is said by the hub's name, or harmless; memory is taken for what was agreed on at most.
#[test]
fn compressed_bytes_that_are_damaged_are_an_error_or_harmless() {
    for how in [Compression::Lz4, Compression::Zstd] {
        let (_, agreed) = subscribed_packed(how);
        let whole = packed_answer(&agreed, how);
        let mut refused = 0;
        for at in sanderling_wire::HEADER_BYTES..whole.len() {
            for flip in [0x01, 0x80, 0xff] {
                let (mut link, agreed) = subscribed_packed(how);
                assert_eq!(sent(&mut link), Some((Kind::Next, 1)));
                let mut damaged = packed_answer(&agreed, how);
                damaged.bytes_mut()[at] ^= flip;
                sanderling_wire::seal(damaged.bytes_mut(), &agreed);
                link.receive(0, damaged.bytes(), &mut Vec::new());
                match link.error() {
                    Some(HubError::Protocol { hub, .. }) if hub == "h:1" => refused += 1,
                    Some(error) => panic!("{at}: {error}"),
                    None => drop(link.take()),
                }
            }
        }
        assert!(refused > 100, "{how:?}: {refused}");
        // It says that it is longer than any frame may be.
        let (mut link, agreed) = subscribed_packed(how);
        assert_eq!(sent(&mut link), Some((Kind::Next, 1)));
        let mut bomb = packed_answer(&agreed, how);
        bomb.bytes_mut()[32..36].copy_from_slice(&(agreed.frame_bytes_max + 8).to_le_bytes());
        sanderling_wire::seal(bomb.bytes_mut(), &agreed);
        link.receive(0, bomb.bytes(), &mut Vec::new());
        let refused =
            matches!(link.error(), Some(HubError::Protocol { reason, .. }) if reason.contains("frame"));
        assert!(refused, "{:?}", link.error());
        // A frame that was not negotiated is refused.
        let (mut link, _) = subscribed_to(&[("a", false), ("b", true)]);
        assert_eq!(sent(&mut link), Some((Kind::Next, 1)));
        link.receive(0, whole.bytes(), &mut Vec::new());
        assert!(matches!(link.error(), Some(HubError::Protocol { .. })), "{:?}", link.error());
    }
}
