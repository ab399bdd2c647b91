//! Is it faster to send rows from where they are, one piece per row, than to gather them into one buffer first? Replies of
//! about a mebibyte go one way over a socket, the two ways in turn: `cargo run --release -p sanderling-bench --example
//! scatter [SECONDS]`. Knows no table: rows stand still. See docs/design/0007-large-rows-are-gathered.md.
#![allow(clippy::unwrap_used, clippy::print_stdout)] // an example ends where something is wrong, and prints

use std::io::IoSlice;
use std::time::{Duration, Instant};

use sanderling_bench::median;
use sanderling_sample::random::Rng;
use sanderling_transport::{Address, ConnectOptions, Framing, ListenOptions, Listener, Sender, connect};

/// Memory that the rows lie in: more than any cache holds.
const SLAB_BYTES: usize = 1 << 30;
const REPLY_BYTES: usize = 1 << 20;
const HEADER_BYTES: usize = 8;
const ROUNDS: usize = 9;
const FRAMING: Framing = Framing {
    header_bytes: HEADER_BYTES,
    body_bytes: |header| Ok(u64::from_le_bytes(header.try_into().map_err(|_| "short".to_owned())?) as usize),
    frame_bytes_max: 2 * REPLY_BYTES,
};

/// How a reply is put together.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Rows are copied into the send buffer.
    Gather,
    /// One piece per row.
    Scatter,
}

/// Sends replies for so long; how many per second.
fn send(
    sender: &mut Sender,
    slab: &[u8],
    row_bytes: usize,
    checksum: bool,
    way: Way,
    duration: Duration,
    rng: &mut Rng,
) -> f64 {
    let rows = REPLY_BYTES / row_bytes;
    let header = (REPLY_BYTES as u64).to_le_bytes();
    let (start, mut replies) = (Instant::now(), 0);
    let mut sums = 0;
    while start.elapsed() < duration {
        let places = slab.len() / row_bytes;
        let row = |rng: &mut Rng| {
            let at = sanderling_sample::random::below((rng.next() >> 32) as u32, places as u32);
            &slab[at as usize * row_bytes..][..row_bytes]
        };
        match way {
            Way::Gather => {
                let mut slot = sender.frame(HEADER_BYTES + REPLY_BYTES).unwrap();
                slot[..HEADER_BYTES].copy_from_slice(&header);
                for place in 0..rows {
                    slot[HEADER_BYTES + place * row_bytes..][..row_bytes].copy_from_slice(row(rng));
                }
                if checksum {
                    sums ^= crc_fast::crc32_iscsi(&slot[..HEADER_BYTES + REPLY_BYTES]);
                }
                slot.commit(HEADER_BYTES + REPLY_BYTES);
                sender.flush().unwrap();
            }
            Way::Scatter => {
                let mut pieces = vec![IoSlice::new(&header)];
                pieces.extend((0..rows).map(|_| IoSlice::new(row(rng))));
                if checksum {
                    let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc32Iscsi);
                    pieces.iter().for_each(|piece| digest.update(piece));
                    sums ^= digest.finalize() as u32;
                }
                sender.send_vectored(&pieces).unwrap();
            }
        }
        replies += 1;
    }
    std::hint::black_box(sums);
    f64::from(replies) / start.elapsed().as_secs_f64()
}

fn main() {
    let seconds = std::env::args().nth(1).map_or(0.2, |text| text.parse().unwrap());
    let slab: Vec<u8> = (0..SLAB_BYTES / 8).flat_map(|at| (at as u64).to_le_bytes()).collect();
    let folder = tempfile::tempdir().unwrap();
    println!(
        "{:6} {:>8} {:>9} {:>12} {:>12} {:>6}",
        "", "row KiB", "checksum", "gather MB/s", "iovec MB/s", "ratio"
    );
    for address in [format!("unix:{}", folder.path().join("s").display()), "tcp://localhost:0".to_owned()] {
        let listener =
            Listener::bind(&address.parse::<Address>().unwrap(), &ListenOptions::new(FRAMING)).unwrap();
        let to = listener.address().clone();
        let receiving = std::thread::spawn(move || {
            let mut connection = listener.accept().unwrap().unwrap();
            while connection.receiver.receive(None).unwrap().is_some() {}
        });
        let mut connection = connect(&to, &ConnectOptions::new(FRAMING)).unwrap();
        let mut rng = Rng::new(1, 0, 0);
        for row_bytes in [1, 4, 8, 16, 64].map(|kib| kib << 10) {
            for checksum in [false, true] {
                let mut rates = [Vec::new(), Vec::new()];
                for _ in 0..ROUNDS {
                    for (way, rates) in [Way::Gather, Way::Scatter].into_iter().zip(&mut rates) {
                        let duration = Duration::from_secs_f64(seconds / ROUNDS as f64);
                        let sender = &mut connection.sender;
                        rates.push(send(sender, &slab, row_bytes, checksum, way, duration, &mut rng));
                    }
                }
                let [gather, scatter] = rates.map(|rates| median(&rates) * REPLY_BYTES as f64 / 1e6);
                let (name, kib) = (address.split(':').next().unwrap_or_default(), row_bytes >> 10);
                let ratio = scatter / gather;
                println!("{name:6} {kib:>8} {checksum:>9} {gather:>12.0} {scatter:>12.0} {ratio:>6.2}");
            }
        }
        drop(connection);
        receiving.join().unwrap();
    }
}
