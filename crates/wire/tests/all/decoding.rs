//! Whatever arrives: messages come back as they were sent, damage is noticed, nothing panics or takes memory that was
//! not checked. Knows no transport.

use crate::messages::{AGREED, Parts, frame};
use proptest::prelude::*;
use sanderling_wire::{
    Agreed, Buffer, Codec, Compression, Features, Feed, Frame, HEADER_BYTES, Kind, Parsed, Ping, Pooling,
    PullReply, PullShape, Push, Ragged, Reply, Request, RowFormat, RowsMut, WireError, flag, limit, refit,
    seal, set_bit,
};

const UNCHECKED: Agreed =
    Agreed { features: Features(AGREED.features.0 | Features::NO_CHECKSUM.0), ..AGREED };

fn parts() -> impl Strategy<Value = Parts> {
    let keys = proptest::collection::vec(any::<u64>(), 0..130);
    let floats = proptest::collection::vec(any::<f32>(), 1..20);
    (keys, 1..9_u32, floats, ".{0,40}", any::<u64>(), 0..u32::MAX, any::<bool>(), any::<bool>()).prop_map(
        |(keys, dim, floats, text, number, small, yes, f16)| {
            Parts::new(keys, dim, &floats, text, number, small, yes, f16)
        },
    )
}

/// The frame at the start of the bytes, decoded and encoded again; `None` when it is incomplete.
fn reencode(bytes: &[u8], agreed: &Agreed, codec: &mut Codec) -> Result<Option<Buffer>, WireError> {
    let parsed = match Frame::parse(bytes, agreed)? {
        Parsed::Incomplete { frame_bytes } => {
            assert!(frame_bytes > bytes.len() && frame_bytes <= agreed.frame_bytes_max as usize);
            return Ok(None);
        }
        Parsed::Frame(parsed) => codec.unpack(parsed, agreed)?,
    };
    let mut out = Buffer::new(agreed.frame_bytes_max as usize);
    let header = parsed.header;
    if header.is_reply() {
        let reply = Reply::decode(&parsed)?;
        out.append(|out| reply.encode(agreed, header.id, out)).expect("what was decoded can be encoded");
    } else {
        let request = Request::decode(&parsed)?;
        let deadline_us = header.deadline_or_status;
        out.append(|out| request.encode(agreed, header.id, deadline_us, out))
            .expect("what was decoded can be encoded");
    }
    Ok(Some(out))
}

fn aligned(bytes: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(bytes.len());
    buffer.room(bytes.len()).expect("below the limit")[..bytes.len()].copy_from_slice(bytes);
    buffer.advance(bytes.len());
    buffer
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn every_message_comes_back(parts in parts(), checked in any::<bool>()) {
        let agreed = if checked { AGREED } else { UNCHECKED };
        let mut codec = Codec::new();
        for (name, sent) in parts.frames(&agreed) {
            let back = reencode(sent.bytes(), &agreed, &mut codec).expect("decodes").expect("is whole");
            prop_assert_eq!(back.bytes(), sent.bytes(), "{}", name);
            for how in [Compression::Lz4, Compression::Zstd] {
                let mut packed = Buffer::new(1 << 20);
                codec.pack(sent.bytes(), how, &agreed, &mut packed).expect("packs");
                prop_assert!(packed.len() <= sent.len());
                let back = reencode(packed.bytes(), &agreed, &mut codec).expect("decodes").expect("is whole");
                prop_assert_eq!(back.bytes(), sent.bytes(), "{} by {:?}", &name, how);
            }
        }
    }

    #[test]
    fn messages_are_equal_after_the_way(mut parts in parts()) {
        // NaN is not equal to itself.
        parts.floats.iter_mut().filter(|value| value.is_nan()).for_each(|value| *value = 1.0);
        for request in parts.requests() {
            let sent = frame(|out| request.encode(&AGREED, 1, 2, out));
            let Ok(Parsed::Frame(parsed)) = Frame::parse(sent.bytes(), &AGREED) else { panic!("a frame") };
            prop_assert_eq!(request.frame_bytes(), Ok(sent.len()));
            prop_assert_eq!(Request::decode(&parsed).expect("decodes"), request);
            prop_assert!(Reply::decode(&parsed).is_err());
        }
        for reply in parts.replies() {
            let sent = frame(|out| reply.encode(&AGREED, 1, out));
            let Ok(Parsed::Frame(parsed)) = Frame::parse(sent.bytes(), &AGREED) else { panic!("a frame") };
            prop_assert_eq!(reply.frame_bytes(), Ok(sent.len()));
            prop_assert_eq!(Reply::decode(&parsed).expect("decodes"), reply);
            prop_assert!(Request::decode(&parsed).is_err());
        }
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..300), kind in 0..40_u8, flags in any::<u16>()) {
        let mut bytes = aligned(&bytes);
        let mut codec = Codec::new();
        for agreed in [AGREED, UNCHECKED, Agreed::BEFORE_HELLO] {
            let _ = reencode(bytes.bytes(), &agreed, &mut codec);
        }
        // With the parts of the header that random bytes do not hit.
        let len = bytes.len();
        if let Some(payload) = len.checked_sub(HEADER_BYTES) {
            let head = bytes.bytes_mut();
            head[..4].copy_from_slice(b"SNDL");
            (head[4], head[5]) = (1, kind);
            let flags = flags & (flag::REPLY | flag::LZ4 | flag::ZSTD | flag::F16_ROWS);
            head[6..8].copy_from_slice(&flags.to_le_bytes());
            head[20..24].copy_from_slice(&(payload as u32 / 8 * 8).to_le_bytes());
            head[24..32].fill(0);
            if let Ok(Some(back)) = reencode(bytes.bytes(), &UNCHECKED, &mut codec)
                && flags & (flag::LZ4 | flag::ZSTD) == 0
            {
                prop_assert_eq!(back.bytes(), &bytes.bytes()[..back.len()]);
            }
        }
    }
}

#[test]
fn a_frame_cut_anywhere_is_incomplete_and_a_payload_cut_anywhere_is_an_error() {
    let mut codec = Codec::new();
    for (name, sent) in Parts::golden().frames(&AGREED) {
        let bytes = sent.bytes();
        for cut in 0..bytes.len() {
            let found = reencode(&bytes[..cut], &AGREED, &mut codec).map(|back| back.is_some());
            assert_eq!(found, Ok(false), "{name} cut at {cut}");
        }
        for cut in (HEADER_BYTES..bytes.len()).step_by(8) {
            let mut short = aligned(&bytes[..cut]);
            let payload = (cut - HEADER_BYTES) as u32;
            short.bytes_mut()[20..24].copy_from_slice(&payload.to_le_bytes());
            seal(short.bytes_mut(), &AGREED);
            let found = reencode(short.bytes(), &AGREED, &mut codec).map(|_| ());
            assert!(found.is_err(), "{name} with {payload} bytes of payload");
        }
        let mut long = aligned(&[bytes, &[0; 8]].concat());
        let payload = (bytes.len() + 8 - HEADER_BYTES) as u32;
        long.bytes_mut()[20..24].copy_from_slice(&payload.to_le_bytes());
        seal(long.bytes_mut(), &AGREED);
        let found = reencode(long.bytes(), &AGREED, &mut codec).map(|_| ());
        assert_eq!(found, Err(WireError::Trailing { found: 8 }), "{name} with more");
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let more = vec![0; AGREED.frame_bytes_max as usize];
    for (name, sent) in Parts::golden().frames(&AGREED) {
        let mut bytes = aligned(sent.bytes());
        for bit in 0..bytes.len() * 8 {
            bytes.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
            match Frame::parse(bytes.bytes(), &AGREED) {
                Err(_) => {}
                // A length that grew: whatever follows, the checksum is wrong then.
                Ok(Parsed::Incomplete { frame_bytes }) => {
                    assert!(bit / 8 >= 20 && bit / 8 < 24, "{name}: bit {bit}");
                    let long = [bytes.bytes(), &more].concat();
                    assert!(frame_bytes <= AGREED.frame_bytes_max as usize);
                    let found = Frame::parse(&long, &AGREED);
                    assert!(matches!(found, Err(WireError::Checksum { .. })), "{name}: bit {bit}: {found:?}");
                }
                Ok(Parsed::Frame(_)) => panic!("{name}: bit {bit} was not noticed"),
            }
            bytes.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

#[test]
fn a_changed_byte_is_refused_or_makes_another_message() {
    // Whatever decodes is encoded to the same bytes: so no field goes unread, and what is not a field must be zero.
    let mut codec = Codec::new();
    for (name, sent) in Parts::golden().frames(&UNCHECKED) {
        let mut bytes = aligned(sent.bytes());
        for at in 0..bytes.len() {
            let kept = bytes.bytes()[at];
            for value in [0, 1, 2, 3, 8, 0x7f, 0x80, 0xff, kept ^ 1, kept ^ 0x80] {
                bytes.bytes_mut()[at] = value;
                if let Ok(Some(back)) = reencode(bytes.bytes(), &UNCHECKED, &mut codec) {
                    assert_eq!(back.bytes(), &bytes.bytes()[..back.len()], "{name}: {value:#x} at {at}");
                }
            }
            bytes.bytes_mut()[at] = kept;
        }
    }
}

#[test]
fn only_requests_about_a_table_name_one() {
    for (name, sent) in Parts::golden().frames(&UNCHECKED) {
        let mut bytes = aligned(sent.bytes());
        bytes.bytes_mut()[24] = 1;
        let about = ["pull", "push", "feed.request", "forget", "export", "import", "delete", "changes"];
        let may = name.ends_with("request") && about.iter().any(|prefix| name.starts_with(prefix));
        assert_eq!(Frame::parse(bytes.bytes(), &UNCHECKED).is_ok(), may, "{name}");
    }
}

#[test]
fn a_continued_push_needs_its_feature() {
    let with = Agreed { features: Features(AGREED.features.0 | Features::PUSH_PARTS.0), ..AGREED };
    let (keys, counts, grads) = ([1, 2], [1, 1], [0.5; 2]);
    let push = Push {
        table: 1,
        client: 2,
        sequence: 3,
        continues: true,
        dim: 1,
        lr_scale: 1.0,
        keys: &keys,
        counts: &counts,
        grads: &grads,
    };
    let mut sent = frame(|out| Request::Push(push).encode(&with, 7, 0, out));
    let decoded = |sent: &Buffer, agreed: &Agreed| -> Result<bool, WireError> {
        let Parsed::Frame(parsed) = Frame::parse(sent.bytes(), agreed)? else { panic!("a whole frame") };
        let Request::Push(push) = Request::decode(&parsed)? else { panic!("a push") };
        Ok(push.continues)
    };
    assert_eq!(decoded(&sent, &with), Ok(true));
    assert!(matches!(decoded(&sent, &AGREED), Err(WireError::Flags { kind: Kind::Push, .. })));
    // For a connection without the feature it becomes a push of its own.
    refit(sent.bytes_mut(), 8, &AGREED);
    assert_eq!(decoded(&sent, &AGREED), Ok(false));
    // Only pushes can be continued.
    let mut ping = frame(|out| Request::Ping(Ping { reply_bytes: 0, bytes: &[] }).encode(&with, 7, 0, out));
    ping.bytes_mut()[6] |= flag::CONTINUES as u8;
    seal(ping.bytes_mut(), &with);
    assert!(matches!(Frame::parse(ping.bytes(), &with), Err(WireError::Flags { kind: Kind::Ping, .. })));
}

#[test]
fn slices_that_do_not_go_together_are_not_sent() {
    let (keys, counts, grads) = ([1, 2], [1, 1], [0.0; 6]);
    let push = Push {
        table: 1,
        client: 2,
        sequence: 3,
        continues: false,
        dim: 3,
        lr_scale: 1.0,
        keys: &keys,
        counts: &counts,
        grads: &grads,
    };
    let ragged = Ragged { keys: &keys, offsets: &[0, 1, 2], values: None };
    let feed = |ragged| Request::Feed(Feed { table: 1, batch: 2, feature: 3, pooling: Pooling::Sum, ragged });
    let check = |request: &Request<'_>, expected: Result<(), &str>| {
        let found = request.encode(
            &AGREED,
            0,
            0,
            &mut Buffer::new(1 << 10).room(1 << 10).expect("below the limit")[..],
        );
        let found = found.map(|_| ()).map_err(|error| match error {
            WireError::Length { what, .. } | WireError::Value { what, .. } => what,
            other => panic!("{other}"),
        });
        assert_eq!(found, expected, "{request:?}");
    };
    check(&Request::Push(push), Ok(()));
    check(&Request::Push(Push { counts: &[1], ..push }), Err("counts"));
    check(&Request::Push(Push { grads: &grads[1..], ..push }), Err("grads"));
    check(&Request::Push(Push { dim: 0, grads: &[], ..push }), Err("dim"));
    check(&feed(ragged), Ok(()));
    check(&feed(Ragged { values: Some(&[1.0]), ..ragged }), Err("values"));
    for offsets in [&[][..], &[0], &[0, 1], &[1, 2], &[0, 3, 2], &[0, 2, 1, 2]] {
        check(&feed(Ragged { offsets, ..ragged }), Err("offsets"));
    }
    check(&feed(Ragged { keys: &[], offsets: &[0], values: None }), Ok(()));
}

#[test]
fn headers_that_are_wrong_say_what_is_wrong() {
    let sent = frame(|out| Parts::golden().requests()[6].encode(&AGREED, 9, 0, out));
    let check = |at: usize, patch: &[u8], agreed: Agreed, expected: fn(&WireError) -> bool| {
        let mut bytes = aligned(sent.bytes());
        bytes.bytes_mut()[at..at + patch.len()].copy_from_slice(patch);
        let error = Frame::parse(bytes.bytes(), &agreed).expect_err("wrong");
        assert!(expected(&error), "{at} {patch:?}: {error:?}");
    };
    check(0, b"HTTP", AGREED, |error| matches!(error, WireError::Magic { found } if found == b"HTTP"));
    check(4, &[99], AGREED, |error| *error == WireError::Version { found: 99, agreed: 1 });
    check(5, &[0], AGREED, |error| *error == WireError::Kind { found: 0 });
    check(5, &[99], AGREED, |error| *error == WireError::Kind { found: 99 });
    check(6, &[0xff, 0xff], AGREED, |error| matches!(error, WireError::Flags { .. }));
    // Without its checksum, and compressed, on a connection that did not agree on either.
    check(6, &[0], AGREED, |error| matches!(error, WireError::Flags { .. }));
    check(6, &[2 | 4], Agreed { features: Features::NONE, ..AGREED }, |error| {
        matches!(error, WireError::Flags { .. })
    });
    check(20, &[0xf8, 0xff, 0xff, 0xff], AGREED, |error| {
        matches!(error, WireError::TooLong { what: "frame", found: 4_294_967_320, .. })
    });
    check(20, &[1, 0, 0, 0], AGREED, |error| matches!(error, WireError::Value { what: "payload_bytes", .. }));
    check(32, &[77], AGREED, |error| matches!(error, WireError::Checksum { .. }));
}

#[test]
fn counts_above_their_limit_are_refused_on_both_sides() {
    let keys = vec![0; limit::KEYS_MAX + 1];
    let agreed = Agreed { frame_bytes_max: limit::FRAME_BYTES_MAX as u32, ..UNCHECKED };
    let delete = Request::Delete(sanderling_wire::Delete { table: 1, keys: &keys });
    let expected = WireError::TooLong { what: "keys", found: keys.len() as u64, max: limit::KEYS_MAX as u64 };
    assert_eq!(delete.encode(&agreed, 0, 0, &mut []), Err(expected));

    let legal = Request::Delete(sanderling_wire::Delete { table: 1, keys: &keys[..1] });
    let mut sent = frame(|out| legal.encode(&agreed, 0, 0, out));
    sent.bytes_mut()[HEADER_BYTES..][..4].copy_from_slice(&(keys.len() as u32).to_le_bytes());
    let found = reencode(sent.bytes(), &agreed, &mut Codec::new()).map(|_| ());
    assert_eq!(found, Err(expected));
}

#[test]
fn a_reply_filled_in_place_is_the_reply() {
    for (format, keys, rows, dim) in [
        (RowFormat::F32, 70, 70, 3),
        (RowFormat::F32, 64, 5, 32),
        (RowFormat::F16, 3, 3, 3),
        (RowFormat::F16, 0, 2, 1),
        (RowFormat::F32, 0, 0, 1),
    ] {
        let shape = PullShape { keys, rows, dim, format };
        let mut buffer = Buffer::new(1 << 20);
        let bytes = shape.frame_bytes().expect("small");
        let room = buffer.room(bytes).expect("below the limit");
        room.fill(0xee);
        let kind = sanderling_wire::Kind::PullPooled;
        let areas = PullReply::begin(kind, shape, &AGREED, 5, room).expect("fits");
        (0..keys).filter(|at| at % 7 == 0).for_each(|at| set_bit(areas.absent, at));
        match areas.rows {
            RowsMut::F32(rows) => rows.iter_mut().enumerate().for_each(|(at, value)| *value = at as f32),
            RowsMut::F16(rows) => rows.iter_mut().enumerate().for_each(|(at, value)| *value = at as u16),
        }
        seal(&mut room[..bytes], &AGREED);
        buffer.advance(bytes);
        let Ok(Parsed::Frame(parsed)) = Frame::parse(buffer.bytes(), &AGREED) else { panic!("a frame") };
        let Ok(Reply::PullPooled(reply)) = Reply::decode(&parsed) else { panic!("a reply") };
        assert_eq!(reply.shape(), shape);
        assert!(reply.absent.positions().eq((0..keys).step_by(7)));
        let again = frame(|out| Reply::PullPooled(reply).encode(&AGREED, 5, out));
        assert_eq!(again.bytes(), buffer.bytes());
    }
}

#[test]
fn a_frame_that_is_not_aligned_is_refused() {
    let sent = frame(|out| Parts::golden().requests()[6].encode(&AGREED, 9, 0, out));
    let shifted = aligned(&[&[0; 4], sent.bytes()].concat());
    let Ok(Parsed::Frame(parsed)) = Frame::parse(&shifted.bytes()[4..], &AGREED) else { panic!("a frame") };
    assert_eq!(Request::decode(&parsed), Err(WireError::Unaligned { what: "keys" }));
}
