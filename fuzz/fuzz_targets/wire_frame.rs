//! Any bytes as a frame: decoding does not panic, and what decodes is encoded to the same bytes again. Knows no transport.
#![no_main]

use libfuzzer_sys::fuzz_target;
use sanderling_wire::{
    Agreed, Buffer, Codec, Features, Frame, HEADER_BYTES, Kind, MAGIC, Parsed, Reply, Request, flag,
};

/// Small, so that a fuzzer that finds a way to make us allocate finds it soon.
const FRAME_BYTES_MAX: u32 = 1 << 20;

fn agreed(more: Features) -> Agreed {
    let features = Features::LZ4 | Features::ZSTD | Features::F16_ROWS | more;
    Agreed { version: 1, features, frame_bytes_max: FRAME_BYTES_MAX }
}

fn check(bytes: &[u8], agreed: &Agreed) {
    let Ok(Parsed::Frame(frame)) = Frame::parse(bytes, agreed) else { return };
    let mut codec = Codec::new();
    let Ok(frame) = codec.unpack(frame, agreed) else { return };
    let (header, mut again) = (frame.header, Buffer::new(FRAME_BYTES_MAX as usize));
    let encoded = match (Request::decode(&frame), Reply::decode(&frame)) {
        (Ok(request), Err(_)) => {
            again.append(|out| request.encode(agreed, header.id, header.deadline_or_status, out))
        }
        (Err(_), Ok(reply)) => again.append(|out| reply.encode(agreed, header.id, out)),
        (Ok(request), Ok(reply)) => panic!("both {request:?} and {reply:?}"),
        (Err(_), Err(_)) => return,
    };
    encoded.expect("what was decoded can be encoded");
    let Ok(Parsed::Frame(back)) = Frame::parse(again.bytes(), agreed) else { panic!("not a frame") };
    assert_eq!(back.payload, frame.payload);
    // The checksum of a compressed frame is that of its compressed bytes.
    let plain = |header| sanderling_wire::Header { checksum: 0, ..header };
    assert_eq!(plain(back.header), plain(header));
}

fuzz_target!(|bytes: &[u8]| {
    let mut buffer = Buffer::new(FRAME_BYTES_MAX as usize);
    let Ok(room) = buffer.room(bytes.len()) else { return };
    room[..bytes.len()].copy_from_slice(bytes);
    buffer.advance(bytes.len());
    check(buffer.bytes(), &agreed(Features::NONE));
    check(buffer.bytes(), &Agreed::BEFORE_HELLO);
    // Then with what it takes to get through the header, so that messages are reached.
    let Some(payload) = bytes.len().checked_sub(HEADER_BYTES) else { return };
    let head = &mut buffer.bytes_mut()[..HEADER_BYTES];
    head[..4].copy_from_slice(&MAGIC);
    head[4] = 1;
    head[5] = Kind::ALL[usize::from(head[5]) % Kind::ALL.len()] as u8;
    head[6] &= (flag::REPLY | flag::LZ4 | flag::ZSTD | flag::F16_ROWS) as u8;
    head[7] = 0;
    head[20..24].copy_from_slice(&(payload as u32 / 8 * 8).to_le_bytes());
    head[28..].fill(0);
    check(buffer.bytes(), &agreed(Features::NO_CHECKSUM));
});
