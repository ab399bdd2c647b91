//! The RESP front, with the bytes that clients of Redis send.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use sanderling_serve::Models;
use serde_json::Value;

use crate::fixture::{Served, Trained, numbers};

/// Longer than any operation of a passing test takes.
const LONG: Duration = Duration::from_secs(60);

struct Client(TcpStream);

impl Client {
    fn new(served: &Served) -> Client {
        let stream = TcpStream::connect(served.server.resp_address().unwrap()).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        Client(stream)
    }

    /// Sends bytes, and checks those that come.
    #[track_caller]
    fn check(&mut self, sent: &[u8], expected: &[u8]) {
        self.0.write_all(sent).unwrap();
        let mut found = vec![0; expected.len()];
        self.0.read_exact(&mut found).unwrap();
        assert_eq!(found.escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    /// Whether the server has closed the connection.
    fn is_closed(&mut self) -> bool {
        self.0.read(&mut [0]).unwrap_or_default() == 0
    }
}

/// A command as clients write it.
fn command(words: &[&str]) -> Vec<u8> {
    let words = words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.collect::<String>()).into_bytes()
}

fn served(adjust: impl FnOnce(&mut sanderling_serve::Config), trained: Option<&Trained>) -> Served {
    let with_resp = |config: &mut sanderling_serve::Config| {
        config.resp = Some("127.0.0.1:0".parse().unwrap());
        adjust(config);
    };
    Served::with(with_resp, trained.map(|trained| trained.model(1)))
}

#[test]
fn rows_are_those_of_http() {
    let trained = Trained::new("fm");
    let served = served(|_| (), Some(&trained));
    let bulk = |table: &str, value: &str| -> Vec<u8> {
        let rows: Value = served.json(&format!("/tables/{table}/rows?value={value}"), None);
        let weights = numbers(&rows["rows"][0]["weights"]);
        let bytes: Vec<u8> = weights.iter().flat_map(|weight| (*weight as f32).to_le_bytes()).collect();
        [format!("${}\r\n", bytes.len()).as_bytes(), &bytes, b"\r\n"].concat()
    };
    let (user, genre) = (bulk("user", "u3"), bulk("genres", "g1"));
    let mut client = Client::new(&served);
    client.check(&command(&["GET", "user:u3"]), &user);
    client.check(b"get user:u3\r\n", &user);
    client.check(&command(&["GET", "user:nobody"]), b"$-1\r\n");
    client.check(&command(&["GET", "user:"]), b"$-1\r\n");
    let keys = ["MGET", "user:u3", "user:nobody", "genres:g1", "user:u3"];
    client.check(&command(&keys), &[b"*4\r\n", &*user, b"$-1\r\n", &genre, &user].concat());
    // Several commands at once, and one in pieces.
    let many = [command(&["PING"]), command(&keys[..2]), command(&["GET", "genres:g1"])].concat();
    client.check(&many, &[b"+PONG\r\n*1\r\n", &*user, &genre].concat());
    let (first, last) = many.split_at(many.len() - 3);
    client.check(first, &[b"+PONG\r\n*1\r\n", &*user].concat());
    client.check(last, &genre);
    let metrics = served.get("/metrics").text().to_owned();
    let line = "sanderling_serve_rows_total{protocol=\"resp\",endpoint=\"rows\",model=\"clicks\",version=\"1\",code=\"Ok\"}";
    assert!(metrics.contains(line), "{metrics}");
}

#[test]
fn wrong_commands_are_refused_with_their_reason() {
    let trained = Trained::new("lr");
    let served = served(|config| config.batch_max = 2, Some(&trained));
    let mut client = Client::new(&served);
    for (words, expected) in [
        (
            &["GET", "item:1"][..],
            "-ERR no table \"item\"; the tables of \"clicks\" are user, genres, age\r\n",
        ),
        (&["GET", "u3"], "-ERR a key is a table and a value, such as user:u17; found \"u3\"\r\n"),
        (&["GET", "genres:a|b"], "-ERR feature \"genres\": a value has 2 keys, not one\r\n"),
        (
            &["MGET", "user:1", "user:2", "user:3"],
            "-ERR 3 keys in one request, at most 2: send several requests\r\n",
        ),
        (&["HELLO", "4"], "-NOPROTO unsupported protocol version: this server has RESP2 and RESP3\r\n"),
        (&["COMMAND", "DOCS"], "*0\r\n"),
        (&["AUTH", "x"], "-ERR AUTH called without any password configured\r\n"),
        (
            &["FLUSHALL"],
            "-ERR unknown command \"FLUSHALL\"; there are GET, MGET, PING, ECHO, HELLO, AUTH, SELECT, QUIT\r\n",
        ),
    ] {
        client.check(&command(words), expected.as_bytes());
    }
    client.check(b"*99\r\n", b"-ERR Protocol error: too many words\r\n");
    assert!(client.is_closed());
    // A web page that posts a form here.
    let mut page = Client::new(&served);
    page.check(b"POST / HTTP/1.1\r\nHost: x\r\n\r\nMGET user:u3\r\n", b"-ERR this is not an HTTP port\r\n");
    assert!(page.is_closed());
    let mut quitting = Client::new(&served);
    quitting.check(&command(&["QUIT"]), b"+OK\r\n");
    assert!(quitting.is_closed());
}

#[test]
fn clients_wait_for_a_model_and_bring_the_token() {
    let trained = Trained::new("lr");
    let token = "0123456789abcdef";
    let served = served(|config| config.token = Some(token.to_owned()), None);
    let mut client = Client::new(&served);
    client.check(&command(&["PING"]), b"+PONG\r\n");
    client.check(&command(&["GET", "user:nobody"]), b"-NOAUTH Authentication required.\r\n");
    client.check(&command(&["AUTH", "wrong"]), b"-WRONGPASS invalid username-password pair\r\n");
    client.check(&command(&["AUTH", "default", token]), b"+OK\r\n");
    client.check(&command(&["GET", "user:nobody"]), b"-LOADING no model is loaded yet; try again\r\n");
    served.server.publish(Models::new([trained.model(1)]));
    client.check(&command(&["GET", "user:nobody"]), b"$-1\r\n");
    let mut newer = Client::new(&served);
    newer.check(
        &command(&["HELLO", "3"]),
        b"-NOAUTH HELLO must be called with the client already authenticated",
    );
    newer.check(b"", b", or with AUTH\r\n");
    newer.check(
        &command(&["HELLO", "3", "AUTH", "default", "wrong"]),
        b"-WRONGPASS invalid username-password pair\r\n",
    );
    newer.check(
        &command(&["HELLO", "3", "AUTH", "default", token, "SETNAME", "me"]),
        b"%7\r\n$6\r\nserver\r\n",
    );
    let mut rest = [0; 256];
    while !String::from_utf8_lossy(&rest).contains("*0\r\n") {
        let read = newer.0.read(&mut rest).unwrap();
        assert!(read > 0);
    }
    newer.check(&command(&["MGET", "user:nobody"]), b"*1\r\n_\r\n");
    // A connection that waits for its client does not delay the end.
    served.server.stop();
    assert!(client.is_closed());
}
