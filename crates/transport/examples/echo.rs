//! Round trips per second of every transport: a request of 4 KiB, a constant reply of 64 KiB, so many in flight on one
//! connection. Without arguments it is tiny, as a test runs it. It looks nothing up and decodes nothing.
//!
//! `cargo run --release -p sanderling-transport --example echo -- --frames 200000`
#![allow(clippy::print_stdout)] // a program for people

use std::error::Error;
use std::time::{Duration, Instant};

use sanderling_transport::{
    Address, ConnectOptions, Framing, ListenOptions, Listener, Poller, Received, connect,
};

const HELP: &str = "echo [--frames N] [--transports shm,unix,tcp] [--in-flight 1,4,16] [--spin-us 0,50] [--read]
  [--request-bytes 4096] [--reply-bytes 65600]
--read makes the client add up every reply, as one that uses what it gets; without it replies are only received.";

const HEADER_BYTES: usize = 32;
const FRAMING: Framing = Framing {
    header_bytes: HEADER_BYTES,
    body_bytes: |header| {
        let length = header[..8].try_into().map_err(|_| "no header")?;
        Ok(u64::from_le_bytes(length) as usize)
    },
    frame_bytes_max: 1 << 20,
};

struct Options {
    frames: usize,
    transports: Vec<String>,
    in_flight: Vec<usize>,
    spin_us: Vec<u32>,
    request_bytes: usize,
    reply_bytes: usize,
    read: bool,
}

fn options(mut arguments: impl Iterator<Item = String>) -> Result<Options, Box<dyn Error>> {
    let mut options = Options {
        frames: 200,
        transports: ["shm", "unix", "tcp"].map(str::to_owned).into(),
        in_flight: vec![1, 4, 16],
        spin_us: vec![50, 0],
        request_bytes: 4096,
        reply_bytes: 65_600,
        read: false,
    };
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or(format!("{name} needs a value\n{HELP}"));
        match name.as_str() {
            "--frames" => options.frames = value()?.parse()?,
            "--transports" => options.transports = value()?.split(',').map(str::to_owned).collect(),
            "--in-flight" => {
                options.in_flight = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?;
            }
            "--spin-us" => options.spin_us = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--request-bytes" => options.request_bytes = value()?.parse()?,
            "--reply-bytes" => options.reply_bytes = value()?.parse()?,
            "--read" => options.read = true,
            _ => return Err(format!("unknown argument {name}\n{HELP}").into()),
        }
    }
    Ok(options)
}

fn frame(bytes: usize) -> Vec<u8> {
    let mut frame = vec![7; bytes.max(HEADER_BYTES)];
    let body = (frame.len() - HEADER_BYTES) as u64;
    frame[..8].copy_from_slice(&body.to_le_bytes());
    frame
}

/// One worker of a server: answers every request with the same bytes until the client has gone.
fn serve(listener: &Listener, spin_us: u32, reply: &[u8]) -> Result<(), sanderling_transport::Error> {
    let Some(connection) = listener.accept()? else { return Ok(()) };
    let mut poller = Poller::new(spin_us)?;
    poller.add(connection)?;
    let mut ready = Vec::new();
    loop {
        poller.wait(&mut ready, None)?;
        for &token in &ready {
            let Some(connection) = poller.connection(token) else { continue };
            while let Some(slot) = connection.sender.try_frame(reply.len())? {
                match connection.receiver.try_receive()? {
                    Received::Frame(_) => slot.write(reply),
                    Received::Nothing => break,
                    Received::End => return Ok(()),
                }
                connection.sender.try_flush()?;
            }
            connection.sender.try_flush()?;
        }
    }
}

fn run(transport: &str, in_flight: usize, spin_us: u32, options: &Options) -> Result<f64, Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("sanderling-echo-{}", std::process::id()));
    let address: Address = match transport {
        "shm" => format!("shm:echo-{}", std::process::id()).parse()?,
        "unix" => format!("unix:{}", folder.display()).parse()?,
        "tcp" => "tcp://127.0.0.1:0".parse()?,
        other => return Err(format!("unknown transport {other}\n{HELP}").into()),
    };
    let listener = Listener::bind(&address, &ListenOptions { spin_us, ..ListenOptions::new(FRAMING) })?;
    let (request, reply) = (frame(options.request_bytes), frame(options.reply_bytes));
    std::thread::scope(|scope| {
        let server = scope.spawn(|| serve(&listener, spin_us, &reply));
        let mut client =
            connect(listener.address(), &ConnectOptions { spin_us, ..ConnectOptions::new(FRAMING) })?;
        let (mut sent, mut received, mut sum) = (0, 0, 0u64);
        let warm_up = options.frames / 10 + 1;
        let mut start = Instant::now();
        while received < warm_up + options.frames {
            let before = sent;
            while sent < warm_up + options.frames && sent - received < in_flight {
                client.sender.frame(request.len())?.write(&request);
                sent += 1;
            }
            if sent > before {
                client.sender.flush()?;
            }
            // All that are there are taken before the next requests go, so that those go together.
            let mut got = client.receiver.receive(Some(Instant::now() + Duration::from_secs(60)))?;
            while let Some(reply) = got {
                if options.read {
                    sum += reply.chunks_exact(8).map(|word| u64::from(word[0])).sum::<u64>();
                }
                received += 1;
                if received == warm_up {
                    start = Instant::now();
                }
                got = match client.receiver.try_receive()? {
                    Received::Frame(reply) => Some(reply),
                    _ => None,
                };
            }
        }
        let rate = options.frames as f64 / start.elapsed().as_secs_f64();
        std::hint::black_box(sum);
        drop(client);
        server.join().map_err(|_| "the server panicked")??;
        Ok(rate)
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    measure(std::env::args().skip(1))
}

fn measure(arguments: impl Iterator<Item = String>) -> Result<(), Box<dyn Error>> {
    let options = options(arguments)?;
    println!(
        "request {} B, reply {} B, {} frames",
        options.request_bytes, options.reply_bytes, options.frames
    );
    println!("{:>9} {:>8} {:>10} {:>14}", "transport", "spin us", "in flight", "round trips/s");
    for transport in &options.transports {
        for &spin_us in &options.spin_us {
            for &in_flight in &options.in_flight {
                let rate = run(transport, in_flight, spin_us, &options)?;
                println!("{transport:>9} {spin_us:>8} {in_flight:>10} {rate:>14.0}");
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    fn check(arguments: &str, refused: Option<&str>) {
        let result = super::measure(arguments.split_whitespace().map(str::to_owned));
        match (result, refused) {
            (Ok(()), None) => {}
            (Err(error), Some(expected)) => {
                assert!(error.to_string().contains(expected), "{arguments}: {error}");
            }
            (other, _) => panic!("{arguments}: {other:?}"),
        }
    }

    #[test]
    fn it_runs_tiny() {
        check("", None);
        check("--read --frames 50 --in-flight 2 --request-bytes 0 --reply-bytes 0", None);
        check("--transports pigeon", Some("unknown transport pigeon"));
        check("--frames", Some("--frames needs a value"));
        check("--fast", Some("unknown argument --fast"));
    }
}
