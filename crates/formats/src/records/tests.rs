//! Records cut out of streams: whole ones come out whatever the pieces they arrive in, and nothing else does. Knows no
//! message.

use std::io;

use super::*;
use proptest::prelude::*;

const BOTH: [Framing; 2] = [Framing::TfRecord, Framing::Varint];

/// Hands out a few bytes at a time.
struct Trickle(io::Cursor<Vec<u8>>, usize);

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.1.min(buffer.len());
        self.0.read(&mut buffer[..count])
    }
}

fn framed(framing: Framing, data: &[u8]) -> Vec<u8> {
    match framing {
        Framing::TfRecord => {
            let length = (data.len() as u64).to_le_bytes();
            let crc = |bytes| masked_crc32c(bytes).to_le_bytes();
            [&length[..], &crc(&length), data, &crc(data)].concat()
        }
        Framing::Varint => {
            let mut framed = Vec::new();
            prost::encoding::encode_varint(data.len() as u64, &mut framed);
            [framed, data.to_vec()].concat()
        }
    }
}

type Found = Vec<(u64, Option<Vec<u8>>)>;

/// The records of a file (none where the checksum is wrong), and the error at its end.
fn read(framing: Framing, file: &[u8], step: usize) -> (Found, Option<String>) {
    let stream = Box::new(Trickle(io::Cursor::new(file.to_vec()), step));
    let mut blocks = RecordBlocks::new(stream, Path::new("x"), framing);
    let (mut block, mut found) = (RecordBlock::default(), Vec::new());
    let error = loop {
        match blocks.next_block(&mut block) {
            Ok(true) => found.extend(block.records().map(|(at, data)| (at, data.ok().map(<[u8]>::to_vec)))),
            Ok(false) => break None,
            Err(error) => break Some(error.to_string()),
        }
        // The cost of a declared length: only the bytes read, and the usual block.
        assert!(block.buffer.len() <= (2 * file.len()).max(BLOCK_BYTES) + FRAME_BYTES_MAX);
    };
    (found, error)
}

fn numbered(records: &[Vec<u8>]) -> Found {
    (1..).zip(records.iter().cloned().map(Some)).collect()
}

#[test]
fn the_first_length_tells_tfrecord() {
    let file = framed(Framing::TfRecord, b"abc");
    assert!(is_tfrecord(&file) && !is_tfrecord(&file[1..]) && !is_tfrecord(&file[..11]));
    assert!(!is_tfrecord(b"1 3:1 17:1\n0 4:1"));
}

#[test]
fn a_cut_file_gives_its_whole_records_and_an_error() {
    let records = [vec![], b"abc".to_vec(), vec![9; 200]];
    for framing in BOTH {
        let (mut file, mut ends) = (Vec::new(), vec![0]);
        for record in &records {
            file.extend(framed(framing, record));
            ends.push(file.len());
        }
        for cut in 0..=file.len() {
            let (found, error) = read(framing, &file[..cut], 7);
            let whole = ends.iter().filter(|end| **end <= cut).count() - 1;
            assert_eq!(found, numbered(&records[..whole]), "{framing:?} cut at {cut}");
            assert_eq!(error.is_none(), ends.contains(&cut), "{framing:?} cut at {cut}: {error:?}");
            if let Some(error) = error {
                assert!(
                    error.starts_with(&format!("x:{}: ", whole + 1)) && error.contains("cut short"),
                    "{error}"
                );
            }
        }
    }
}

#[test]
fn wrong_checksums() {
    let records = [b"abc".to_vec(), b"defg".to_vec(), b"h".to_vec()];
    let file: Vec<u8> = records.iter().flat_map(|record| framed(Framing::TfRecord, record)).collect();
    let second = framed(Framing::TfRecord, &records[0]).len();
    for at in second..second + 20 {
        let mut wrong = file.clone();
        wrong[at] ^= 0x10;
        let (found, error) = read(Framing::TfRecord, &wrong, usize::MAX);
        if at < second + TFRECORD_HEADER_BYTES {
            // Where the next record starts is not known any more.
            assert_eq!(found, numbered(&records[..1]));
            assert!(error.unwrap().starts_with("x:2: column (the record): expected checksum"));
        } else {
            let mut expected = numbered(&records);
            expected[1].1 = None;
            assert_eq!((found, error), (expected, None));
        }
    }
}

#[test]
fn lengths_are_not_trusted() {
    let tfrecord = |length: u64| {
        let length = length.to_le_bytes();
        [&length[..], &masked_crc32c(&length).to_le_bytes(), b"abcd"].concat()
    };
    let varint = |length: u64| {
        let mut framed = Vec::new();
        prost::encoding::encode_varint(length, &mut framed);
        [framed, b"abcd".to_vec()].concat()
    };
    for length in [RECORD_BYTES_MAX as u64 + 1, u64::from(u32::MAX) + 5, 1 << 63, u64::MAX] {
        for (framing, file) in [(Framing::TfRecord, tfrecord(length)), (Framing::Varint, varint(length))] {
            let (found, error) = read(framing, &file, usize::MAX);
            let error = error.unwrap();
            assert!(
                found.is_empty() && error.contains("at most 4194304 bytes"),
                "{framing:?} {length}: {error}"
            );
        }
    }
    let (_, error) = read(Framing::Varint, &[0xff; 40], 3);
    assert!(error.unwrap().contains("in place of a length"));
    for framing in BOTH {
        let longest = vec![1; RECORD_BYTES_MAX];
        let (found, error) = read(framing, &framed(framing, &longest), 1 << 16);
        assert_eq!((found.len(), error), (1, None));
        // Declared, but not there: an error, and no more memory than what was read.
        let (found, error) = read(framing, &framed(framing, &longest)[..1000], usize::MAX);
        assert!(found.is_empty() && error.unwrap().contains("only 1000 bytes"));
    }
}

proptest! {
    #[test]
    fn the_blocks_are_the_records(
        sizes in proptest::collection::vec(prop_oneof![8 => 0_usize..300, 1 => 0_usize..3 * BLOCK_BYTES], 0..30),
        step in 1_usize..200_000, varint in any::<bool>(),
    ) {
        let framing = if varint { Framing::Varint } else { Framing::TfRecord };
        let records: Vec<Vec<u8>> = sizes.iter().enumerate().map(|(at, size)| vec![at as u8; *size]).collect();
        let file: Vec<u8> = records.iter().flat_map(|record| framed(framing, record)).collect();
        prop_assert_eq!(read(framing, &file, step), (numbered(&records), None));
    }

    #[test]
    fn any_bytes_are_records_or_an_error(file in proptest::collection::vec(any::<u8>(), 0..300)) {
        for framing in BOTH {
            read(framing, &file, 100);
        }
    }
}
