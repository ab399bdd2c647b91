//! The keeper's port as other programs see it: who is admitted, what is refused, health and metrics.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use sanderling_keeper::{Keeper, KeeperError};
use sanderling_registry::{Edit, Options, RegistryError};

use crate::backends::{WITHIN, config, url};

const TOKEN: &str = "0123456789abcdef";

/// Sends a request and returns status and body.
fn ask(keeper: &Keeper, line: &str, headers: &[&str], body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(keeper.url().rsplit('/').next().unwrap()).unwrap();
    let mut request = format!("{line} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        request.push_str("Host: 127.0.0.1\r\n");
    }
    headers.iter().for_each(|header| request.push_str(&format!("{header}\r\n")));
    stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
}

#[test]
fn requests_are_admitted_or_refused_with_a_reason() {
    let data = tempfile::tempdir().unwrap();
    let keeper = Keeper::start(&config(data.path()), |line| panic!("{line}")).unwrap();
    let json = "Content-Type: application/json";
    let records = "/v1/clusters/ads/records";
    let put = format!("PUT {records}/config?revision=0");
    let long = format!("\"{}\"", "x".repeat(300 << 10));
    let longer = format!("\"{}\"", "x".repeat(600 << 10));
    for (line, headers, body, status, expected) in [
        (&*put, &[json][..], "{\"slots\": 4}", 200, "{\"done\":1}\n"),
        (
            &put,
            &[json],
            "{}",
            409,
            "{\"present\":{\"name\":\"config\",\"revision\":1,\"value\":{\"slots\":4}}}\n",
        ),
        (&format!("GET {records}/config"), &[], "", 200, "{\"slots\":4}}}\n"),
        (&format!("GET {records}/groups/1"), &[], "", 200, "{\"record\":null}\n"),
        (
            &format!("GET {records}?prefix=con"),
            &[],
            "",
            200,
            "{\"revision\":1,\"records\":[{\"name\":\"config\"",
        ),
        (
            "GET /v1/clusters/ads/changes?after=0",
            &[],
            "",
            200,
            "{\"after\":1,\"changes\":[{\"name\":\"config\"",
        ),
        ("GET /v1/clusters/ads/changes?after=9", &[], "", 410, "list, and watch from there"),
        ("GET /v1/clusters/ads/changes", &[], "", 400, "after=NUMBER is missing"),
        ("GET /v1/clusters/other/records", &[], "", 200, "{\"revision\":1,\"records\":[]}"),
        (&format!("DELETE {records}/config?revision=0"), &[], "", 400, "only a record that is there"),
        (&format!("DELETE {records}/config?revision=x"), &[], "", 400, "revision: a whole number"),
        (&put, &[json], "{", 400, "not the JSON that is expected"),
        (&put, &[json], &long, 400, "the value has"),
        (&put, &[json], &longer, 413, "more than"),
        (&put, &[], "{}", 415, "application/json"),
        (&put, &["Content-Type: text/plain"], "{}", 415, "application/json"),
        (&put, &[json, "Origin: http://evil.example"], "{}", 403, "not for web pages"),
        (&put, &[json, "Host: evil.example"], "{}", 421, "none of this keeper's names"),
        (&put, &[json, "sanderling-keeper: 77"], "{}", 421, "and not 77"),
        (&format!("PUT {records}/a%20b?revision=0"), &[json], "{}", 400, "record \\\"a b\\\""),
        (&format!("GET {records}/config"), &["Host: localhost"], "", 200, "record"),
        ("POST /v1/leases", &[json], "{\"term_s\":0}", 400, "must be 1 s to 86400 s"),
        ("POST /v1/leases", &[json], "{}", 400, "term_s"),
        ("POST /v1/leases/5/keep-alive", &[json], "{}", 200, "{\"kept\":false}"),
        (&format!("{put}&lease=5"), &[json], "{}", 409, "present"),
        (&format!("PUT {records}/members/1?revision=0&lease=5"), &[json], "{}", 412, "\"lease_ended\":5"),
        ("GET /healthz", &[], "", 200, "serving\n"),
        ("GET /metrics", &[], "", 200, "sanderling_keeper_records 1\n"),
        ("GET /metrics", &[], "", 200, "sanderling_keeper_write_seconds_count 1\n"),
        ("GET /nothing", &[], "", 404, "nothing here"),
    ] {
        let (found, answer) = ask(&keeper, line, headers, body);
        assert!(found == status && answer.contains(expected), "{line} {headers:?}: {found} {answer}");
    }
}

#[test]
fn a_token_is_for_everything_but_health() {
    let data = tempfile::tempdir().unwrap();
    let mut config = config(data.path());
    config.token = Some(TOKEN.to_owned());
    let keeper = Keeper::start(&config, |line| panic!("{line}")).unwrap();
    let right = format!("Authorization: Bearer {TOKEN}");
    for (path, header, status) in [
        ("/healthz", "", 200),
        ("/metrics", "", 401),
        ("/metrics", &right, 200),
        ("/v1/clusters/ads/records", "Authorization: Bearer wrong", 401),
        ("/v1/clusters/ads/records", &right, 200),
    ] {
        let headers: Vec<&str> = [header].into_iter().filter(|header| !header.is_empty()).collect();
        assert_eq!(ask(&keeper, &format!("GET {path}"), &headers, "").0, status, "{path} {header}");
    }
    for (token, is_admitted) in [(None, false), (Some("wrong"), false), (Some(TOKEN), true)] {
        let options = Options { token: token.map(str::to_owned), ..Options::default() };
        let registry = url(&keeper, "ads").open(&options).unwrap();
        match registry.compare_and_set("config", 0, Edit::put(1.into()), WITHIN) {
            Ok(_) => assert!(is_admitted, "{token:?}"),
            Err(RegistryError::Refused { reason, .. }) => {
                assert!(!is_admitted && reason.contains("the token is missing or wrong"), "{reason}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn tls_is_verified() {
    let [data, folder] = [0; 2].map(|_| tempfile::tempdir().unwrap());
    let made = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
    let path = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let certificate = path("cert.pem", made.cert.pem());
    let mut config = config(data.path());
    config.tls = Some((certificate.clone(), path("key.pem", made.signing_key.serialize_pem())));
    let keeper = Keeper::start(&config, |line| panic!("{line}")).unwrap();
    for (ca, is_trusted) in [(certificate, true), (path("other.pem", other.cert.pem()), false)] {
        let options = Options { ca: Some(ca), ..Options::default() };
        let found = url(&keeper, "ads").open(&options).unwrap().get("config", WITHIN);
        match found {
            Ok(record) => assert!(is_trusted && record.is_none()),
            Err(RegistryError::Unreachable { reason, .. }) => {
                assert!(!is_trusted && reason.contains("certificate"), "{reason}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
    // Without TLS there is no answer, and the client says so.
    let error = url(&keeper, "ads").open(&Options::default()).unwrap().get("config", WITHIN).unwrap_err();
    assert!(matches!(error, RegistryError::Unreachable { .. }), "{error:?}");
    let options = Options { ca: Some("/nowhere.pem".into()), ..Options::default() };
    let error = url(&keeper, "ads").open(&options).unwrap_err();
    assert!(error.to_string().contains("/nowhere.pem"), "{error}");
}

#[test]
fn other_machines_need_tls_and_a_token() {
    let data = tempfile::tempdir().unwrap();
    let mut wrong = config(data.path());
    wrong.listen = "0.0.0.0:0".parse().unwrap();
    let error = Keeper::start(&wrong, |_| {}).unwrap_err();
    assert!(matches!(error, KeeperError::Transport(_)), "{error}");
    wrong.expose = true;
    assert!(matches!(Keeper::start(&wrong, |_| {}).unwrap_err(), KeeperError::Transport(_)));
    (wrong.insecure, wrong.hosts) = (true, vec!["db1".to_owned()]);
    let keeper = Keeper::start(&wrong, |line| panic!("{line}")).unwrap();
    let port = keeper.url().rsplit(':').next().unwrap().to_owned();
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: db1\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}
