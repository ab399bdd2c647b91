//! Compressed frames: those committed in `golden` can be read, and what is wrong with one is noticed. Knows no transport.
//!
//! `SANDERLING_WRITE_GOLDEN=1 cargo test -p sanderling-wire --test all compression` writes the committed ones anew.

use std::path::PathBuf;

use crate::messages::{AGREED, frame};
use sanderling_wire::{
    Agreed, Buffer, Codec, Compression, Features, Frame, HEADER_BYTES, Parsed, Ping, Request, WireError, seal,
};

const BOTH: [(&str, Compression); 2] =
    [("lz4_ping.request.bin", Compression::Lz4), ("zstd_ping.request.bin", Compression::Zstd)];

/// 2 KiB that become short.
fn bytes() -> Vec<u8> {
    (0..2048_u32).map(|at| (at / 64) as u8).collect()
}

fn ping(bytes: &[u8]) -> (Request<'_>, Buffer) {
    let ping = Request::Ping(Ping { reply_bytes: 0, bytes });
    let plain = frame(|out| ping.encode(&AGREED, 7, 0, out));
    (ping, plain)
}

/// As a buffer of a connection: used before.
fn pack(plain: &Buffer, how: Compression, agreed: &Agreed) -> Buffer {
    let mut packed = Buffer::new(1 << 20);
    packed.room(1 << 13).expect("below the limit").fill(0xee);
    Codec::new().pack(plain.bytes(), how, agreed, &mut packed).expect("packs");
    packed
}

#[test]
fn compressed_frames_open_to_the_same_message() {
    let bytes = bytes();
    let (ping, plain) = ping(&bytes);
    for (name, how) in BOTH {
        let packed = pack(&plain, how, &AGREED);
        assert!(packed.len() < 512 + HEADER_BYTES, "{name} has {} bytes", packed.len());
        // The compressed bytes are the libraries' business; that the committed ones can be read is ours.
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
        if std::env::var_os("SANDERLING_WRITE_GOLDEN").is_some() {
            std::fs::write(&path, packed.bytes()).expect("the file is ours");
        }
        let committed = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        for bytes in [packed.bytes(), &committed] {
            let Ok(Parsed::Frame(parsed)) = Frame::parse(bytes, &AGREED) else { panic!("not a frame") };
            assert!(Request::decode(&parsed).is_err(), "{name} is still compressed");
            let mut codec = Codec::new();
            let opened = codec.unpack(parsed, &AGREED).expect("unpacks");
            assert_eq!(Request::decode(&opened), Ok(ping.clone()), "{name}");
        }
    }
}

#[test]
fn what_is_short_or_not_agreed_on_stays_as_it_is() {
    let (_, short) = ping(&[1; 100]);
    let next = |state: &u64| Some(state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1));
    let noise: Vec<u8> =
        std::iter::successors(Some(1), next).map(|state| (state >> 56) as u8).take(2048).collect();
    let (_, noise) = ping(&noise);
    let bytes = bytes();
    let (_, good) = ping(&bytes);
    for (_, how) in BOTH {
        assert!(pack(&short, how, &AGREED).bytes() == short.bytes(), "short by {how:?}");
        assert!(pack(&noise, how, &AGREED).bytes() == noise.bytes(), "noise by {how:?}");
        let none = Agreed { features: Features::NONE, ..AGREED };
        assert!(pack(&good, how, &none).bytes() == good.bytes(), "good by {how:?}");
    }
}

#[test]
fn a_payload_that_is_not_what_it_says_is_refused() {
    let bytes = bytes();
    let (_, plain) = ping(&bytes);
    let payload = (plain.len() - HEADER_BYTES) as u32;
    for (_, how) in BOTH {
        let good = pack(&plain, how, &AGREED);
        let packed = u32::from_le_bytes(good.bytes()[HEADER_BYTES + 4..][..4].try_into().expect("4 bytes"));
        let check = |unpacked: u32, packed: u32, last: Option<u8>, expected: fn(&WireError) -> bool| {
            let mut bad = pack(&plain, how, &AGREED);
            let bytes = bad.bytes_mut();
            bytes[HEADER_BYTES..][..4].copy_from_slice(&unpacked.to_le_bytes());
            bytes[HEADER_BYTES + 4..][..4].copy_from_slice(&packed.to_le_bytes());
            if let (Some(value), Some(last)) = (last, bytes.last_mut()) {
                *last = value;
            }
            seal(bytes, &AGREED);
            let Ok(Parsed::Frame(parsed)) = Frame::parse(bytes, &AGREED) else { panic!("not a frame") };
            let mut codec = Codec::new();
            let found = codec.unpack(parsed, &AGREED).map(|_| ());
            assert!(found.as_ref().is_err_and(expected), "{how:?} {unpacked} {packed} {last:?}: {found:?}");
        };
        let wrong: fn(&WireError) -> bool = |error| matches!(error, WireError::Compression { .. });
        let long: fn(&WireError) -> bool = |error| matches!(error, WireError::TooLong { what: "frame", .. });
        check(payload + 8, packed, None, wrong);
        check(payload - 8, packed, None, wrong);
        check(payload + 4, packed, None, wrong);
        check(payload, packed - 1, None, wrong);
        check(payload, packed + 8, None, wrong);
        check(payload, packed - 8, None, wrong);
        check(payload, u32::MAX, None, wrong);
        check(AGREED.frame_bytes_max, packed, None, long);
        check(u32::MAX - 7, packed, None, long);
        assert!(good.len() - HEADER_BYTES - 8 > packed as usize, "zeros at the end, for the next check");
        check(payload, packed, Some(1), wrong);
    }
}
