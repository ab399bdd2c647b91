//! What a web page may send to the control plane of a server on the machine of whoever looks at it, and who has the token.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;

use sanderling_transport::user_dir;

use super::fill;
use super::server::{Said, Server, sanderling};

/// `DropRequest { table: "t" }` as gRPC sends it.
const DROP: &[u8] = b"\0\0\0\0\x03\x0a\x01t";
const DRAIN: &[u8] = b"\0\0\0\0\0";

#[test]
fn a_web_page_can_neither_drop_tables_nor_end_a_server() {
    let folder = tempfile::tempdir().unwrap();
    for options in ["", "--no-token"] {
        let server = Server::start(folder.path(), options);
        let (peer, _) = fill(&server);
        let port = server.control.rsplit(':').next().unwrap();
        let own = format!("Host: 127.0.0.1:{port}\r\n");
        let grpc = "Content-Type: application/grpc\r\n";
        let unasked = "Content-Type: text/plain\r\n";
        let from = "Origin: http://evil.example\r\n";
        for headers in [
            format!("{own}{unasked}"),
            format!("{own}{unasked}{from}"),
            format!("{own}{grpc}{from}"),
            format!("{own}{grpc}Origin: null\r\n"),
            format!("{own}{grpc}Sec-Fetch-Site: cross-site\r\n"),
            own.clone(),
            // A name that was pointed here: to the browser the page is of this server.
            format!("Host: evil.example:{port}\r\n{grpc}Sec-Fetch-Site: same-origin\r\n"),
            format!("Host: 127.0.0.1.evil.example\r\n{grpc}"),
            grpc.to_owned(),
        ] {
            for (method, body) in [("Drop", DROP), ("Drain", DRAIN)] {
                let path = format!("/sanderling.control.Control/{method}");
                let (code, said) = server.send("POST", &path, &headers, body);
                // A refusal of gRPC is in its headers.
                assert!(said.is_empty() || code >= 400, "{options} {headers}: {code} {said}");
            }
        }
        for headers in ["Host: evil.example\r\n", &format!("{own}{from}")] {
            assert!(server.send("GET", "/metrics", headers, b"").0 >= 400, "{options} {headers}");
        }
        let status = server.ctl(folder.path(), "--json status").json();
        assert_eq!((&status[0]["serving"], &status[0]["counters"]["rows"]), (&true.into(), &100.into()));
        drop(peer);
    }
    // By a name that it was told, and by its own.
    let server = Server::start(folder.path(), "--no-token --allow-host db1,db2.example");
    for (host, code) in [("db1:7100", 200), ("DB2.example", 200), ("localhost", 200), ("db3", 421)] {
        assert_eq!(server.send("GET", "/metrics", &format!("Host: {host}\r\n"), b"").0, code, "{host}");
    }
}

#[test]
fn a_server_makes_a_token_that_its_user_finds_and_takes_it_away() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "");
    let port = server.control.rsplit(':').next().unwrap().to_owned();
    let file = user_dir().join(format!("127.0.0.1-{port}.token"));
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600);
    // Found by ctl, by whichever name, and by the data plane's clients, which are known anyway.
    for host in ["127.0.0.1", "localhost"] {
        let said = Said::of(sanderling(folder.path(), &format!("ctl --server {host}:{port} status")));
        assert_eq!(said.code, 0, "{said:?}");
    }
    drop(fill(&server));
    // A user who looks elsewhere does not know it.
    let mut stranger = sanderling(folder.path(), &format!("ctl --server 127.0.0.1:{port} status"));
    stranger.env("XDG_RUNTIME_DIR", folder.path().join("elsewhere"));
    Said::of(stranger).fails(1, "the token is missing or wrong");
    let token = server.own_token().unwrap();
    assert_eq!(server.get("/metrics", "").0, 401);
    assert_eq!(server.get("/metrics", &format!("Authorization: Bearer {token}\r\n")).0, 200);
    assert_eq!(server.ctl(folder.path(), "drain").code, 0);
    let (status, errors) = server.end();
    assert!(status.success() && errors.contains("login refused"), "{errors}");
    assert!(!errors.contains(&token) && !file.exists(), "{errors}");

    // Where nobody can be given it, that is said, and nobody is admitted to the control plane.
    std::fs::write(folder.path().join("file"), "").unwrap();
    let mut server = sanderling(folder.path(), "ps --listen 127.0.0.1:0 --no-local");
    server.env("XDG_RUNTIME_DIR", folder.path().join("file"));
    let mut server = server.spawn().unwrap();
    let mut lines = BufReader::new(server.stderr.take().unwrap()).lines().map_while(Result::ok);
    let said = lines.find(|line| line.contains("no client will find this server's token"));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(said.as_ref().is_some_and(|said| said.contains("--no-token")), "{said:?}");
}
