//! What is allocated: nothing per request once buffers have grown, and never more than limits allow. Knows no transport.

use crate::messages::{AGREED, Parts};
use allocation_counter::measure;
use sanderling_wire::{
    Agreed, Buffer, Codec, Compression, Frame, HEADER_BYTES, Kind, Parsed, PullReply, PullShape, Reply,
    Request, RowFormat, RowsMut, seal,
};

#[test]
fn a_pull_and_a_push_allocate_nothing_after_the_first() {
    let parts = Parts::golden();
    let (requests, replies) = (parts.requests(), parts.replies());
    let hot = [Kind::Pull, Kind::PullPooled, Kind::PullFed, Kind::Push, Kind::PushFed, Kind::Feed];
    let (mut there, mut back) = (Buffer::new(1 << 20), Buffer::new(1 << 20));
    let mut round = || {
        for request in requests.iter().filter(|request| hot.contains(&request.kind())) {
            there.clear();
            there.append(|out| request.encode(&AGREED, 1, 0, out)).expect("encodes");
            let Ok(Parsed::Frame(frame)) = Frame::parse(there.bytes(), &AGREED) else { panic!("a frame") };
            assert_eq!(&Request::decode(&frame).expect("decodes"), request);
        }
        for reply in replies.iter().filter(|reply| hot.contains(&reply.kind())) {
            back.clear();
            back.append(|out| reply.encode(&AGREED, 1, out)).expect("encodes");
            let Ok(Parsed::Frame(frame)) = Frame::parse(back.bytes(), &AGREED) else { panic!("a frame") };
            assert_eq!(&Reply::decode(&frame).expect("decodes"), reply);
        }
        let shape = PullShape { keys: 512, rows: 512, dim: 32, format: RowFormat::F32 };
        let bytes = shape.frame_bytes().expect("small");
        let room = &mut back.room(bytes).expect("below the limit")[..bytes];
        let areas = PullReply::begin(Kind::Pull, shape, &AGREED, 1, room).expect("fits");
        let RowsMut::F32(rows) = areas.rows else { panic!("as asked for") };
        rows.fill(1.0);
        seal(room, &AGREED);
    };
    round();
    assert_eq!(measure(round).count_total, 0);
}

#[test]
fn compression_allocates_nothing_after_the_first() {
    let keys: Vec<u64> = (0..4096).collect();
    let parts = Parts::new(keys, 4, &[1.0, 2.0], "text".to_string(), 1, 2, true, false);
    let (mut packed, mut codec) = (Buffer::new(1 << 20), Codec::new());
    let plain = crate::messages::frame(|out| parts.requests()[9].encode(&AGREED, 1, 2, out));
    let mut round = || {
        for how in [Compression::Lz4, Compression::Zstd] {
            packed.clear();
            codec.pack(plain.bytes(), how, &AGREED, &mut packed).expect("packs");
            assert!(packed.len() < plain.len());
            let Ok(Parsed::Frame(frame)) = Frame::parse(packed.bytes(), &AGREED) else { panic!("a frame") };
            let frame = codec.unpack(frame, &AGREED).expect("unpacks");
            assert_eq!(frame.payload, &plain.bytes()[HEADER_BYTES..]);
        }
    };
    round();
    assert_eq!(measure(round).count_total, 0);
}

#[test]
fn a_small_frame_with_large_claims_gets_no_memory() {
    // Whatever single number of a frame says that it is large: at most what is agreed on is set aside, and only for
    // what compression says; elsewhere no more than a small multiple of the bytes that did arrive.
    let unchecked = Agreed {
        features: sanderling_wire::Features(AGREED.features.0 | sanderling_wire::Features::NO_CHECKSUM.0),
        ..AGREED
    };
    for (name, mut sent) in Parts::golden().frames(&unchecked) {
        for at in (HEADER_BYTES..sent.len()).step_by(4) {
            for claim in [u32::MAX, 1 << 20, 4096, 1000] {
                let kept = sent.bytes()[at..][..4].to_vec();
                sent.bytes_mut()[at..][..4].copy_from_slice(&claim.to_le_bytes());
                let bytes = sent.bytes();
                let taken = measure(|| {
                    let Ok(Parsed::Frame(frame)) = Frame::parse(bytes, &unchecked) else { panic!("a frame") };
                    let _ = Request::decode(&frame).map(|_| ());
                    let _ = Reply::decode(&frame).map(|_| ());
                });
                assert!(taken.bytes_max <= 4 * bytes.len() as u64, "{name} at {at}: {taken:?}");
                sent.bytes_mut()[at..][..4].copy_from_slice(&kept);
            }
        }
    }
}

#[test]
fn a_compressed_frame_gets_at_most_what_is_agreed_on() {
    let bytes_max = 1 << 20;
    for (flags, claim, taken_max) in
        [(4_u8, bytes_max, 2 * bytes_max), (8, bytes_max, 2 * bytes_max), (4, u32::MAX - 7, 0)]
    {
        let agreed = Agreed {
            features: sanderling_wire::Features(AGREED.features.0 | sanderling_wire::Features::NO_CHECKSUM.0),
            frame_bytes_max: bytes_max + HEADER_BYTES as u32,
            ..AGREED
        };
        let mut sent = crate::messages::frame(|out| Request::Open("12345678").encode(&agreed, 1, 0, out));
        sent.bytes_mut()[6] |= flags;
        sent.bytes_mut()[HEADER_BYTES..][..4].copy_from_slice(&claim.to_le_bytes());
        sent.bytes_mut()[HEADER_BYTES + 4..][..4].copy_from_slice(&8_u32.to_le_bytes());
        let bytes = sent.bytes();
        let taken = measure(|| {
            let Ok(Parsed::Frame(frame)) = Frame::parse(bytes, &agreed) else { panic!("a frame") };
            assert!(Codec::new().unpack(frame, &agreed).is_err());
        });
        assert!(taken.bytes_max <= u64::from(taken_max), "{flags} {claim}: {taken:?}");
    }
}
