//! Clients of `sanderling bench lookup`: their bytes, against servers that answer with given ones, and pulls from a real server.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;

use sanderling_bench::Dist;
use sanderling_bench::lookup::{LookupOptions, fill, run};
use sanderling_testkit::TestServer;

fn options(target: &str) -> LookupOptions {
    LookupOptions {
        target: target.parse().unwrap(),
        table: "user".to_owned(),
        rows: 1,
        dim: 1,
        batch: 2,
        connections: 1,
        duration: Duration::ZERO,
        dist: Dist::Uniform,
        seed: 1,
    }
}

/// A server of one connection, which expects some bytes and answers with others.
fn server(expected: &'static [u8], reply: &'static [u8]) -> (String, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answering = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut found = vec![0; expected.len()];
        stream.read_exact(&mut found).unwrap();
        assert_eq!(found.escape_ascii().to_string(), expected.escape_ascii().to_string());
        // In two parts, wherever they are cut.
        let (first, second) = reply.split_at(reply.len() / 2);
        stream.write_all(first).unwrap();
        stream.flush().unwrap();
        stream.write_all(second).unwrap();
    });
    (address, answering)
}

const MGET: &[u8] = b"*3\r\n$4\r\nMGET\r\n$6\r\nuser:0\r\n$6\r\nuser:0\r\n";
const GET: &[u8] = b"get user:0 user:0\r\n";

#[test]
fn reads_count_absent_rows_and_refuse_other_answers() {
    let check = |protocol: &str, expected: &'static [u8], reply: &'static [u8], absent: Option<u64>| {
        let (address, answering) = server(expected, reply);
        let report = run(&options(&format!("{protocol}:{address}")));
        answering.join().unwrap();
        let found = report.as_ref().ok().map(|report| (report.requests, report.absent));
        assert_eq!(
            found,
            absent.map(|absent| (1, absent)),
            "{protocol}: {}: {report:?}",
            reply.escape_ascii()
        );
    };
    check("redis", MGET, b"*2\r\n$4\r\nabcd\r\n$4\r\n\r\n\r\n\r\n", Some(0));
    check("redis", MGET, b"*2\r\n$-1\r\n$4\r\nabcd\r\n", Some(1));
    check("redis", MGET, b"*2\r\n$3\r\nabc\r\n$-1\r\n", None);
    check("redis", MGET, b"*1\r\n$-1\r\n", None);
    check("redis", MGET, b"-LOADING\r\n", None);
    check("redis", MGET, b"*2\r\n$4\r\nab", None);
    check("memcached", GET, b"VALUE user:0 0 4\r\nabcd\r\nVALUE user:0 0 4\r\n\r\n\r\n\r\nEND\r\n", Some(0));
    check("memcached", GET, b"END\r\n", Some(2));
    check("memcached", GET, b"SERVER_ERROR\r\n", None);
}

#[test]
fn rows_are_stored_before_they_are_read() {
    let (address, answering) = server(b"*3\r\n$4\r\nMSET\r\n$6\r\nuser:0\r\n$4\r\n\0\0\0\0\r\n", b"+OK\r\n");
    fill(&options(&format!("redis:{address}"))).unwrap();
    answering.join().unwrap();
    let (address, answering) = server(b"set user:0 0 0 4\r\n\0\0\0\0\r\n", b"STORED\r\n");
    fill(&options(&format!("memcached:{address}"))).unwrap();
    answering.join().unwrap();
    assert!(fill(&options("redis:127.0.0.1:1")).is_err());
}

#[test]
fn pulls_from_a_parameter_server_find_all_rows() {
    let server = TestServer::new(|_| ());
    let target = format!("ps:{}", server.address("unix"));
    let options = LookupOptions { rows: 1000, dim: 4, batch: 64, connections: 2, ..options(&target) };
    let report = run(&options).unwrap();
    assert!(report.requests >= 2 && report.absent >= 128, "{report:?}");
    fill(&options).unwrap();
    let report = run(&options).unwrap();
    assert_eq!((report.absent, report.latency.count), (0, report.requests));
}
