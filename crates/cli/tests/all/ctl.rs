//! The control plane of `sanderling ps` and `sanderling ctl`, with real processes: what an operator asks, and who may ask.

mod server;
mod web_page;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use self::server::{Said, Server, sanderling};
use sanderling_testkit::{LONG, RawClient, TABLE};
use serde_json::Value;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

/// A table with 100 rows, after 3 pulls and 1 push of a client that calls itself something awkward.
fn fill(server: &Server) -> (RawClient, u32) {
    let mut peer = RawClient::silent(&server.address).unwrap();
    peer.hello("", "a \"b\"").unwrap();
    let table = peer.create("t", TABLE).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    peer.push(table, 1, &keys, 0.5).unwrap();
    (0..3).for_each(|_| drop(peer.pull(table, &keys).unwrap()));
    (peer, table)
}

/// The cell of a printed table in the row that begins with a name; the column must be aligned to the left.
fn cell<'a>(text: &'a str, row: &str, column: &str) -> &'a str {
    let at = text.lines().next().and_then(|head| head.find(column)).unwrap();
    let line = text.lines().find(|line| line.split_whitespace().next() == Some(row)).unwrap();
    line[at..].split("  ").next().unwrap()
}

#[test]
fn an_operator_sees_how_servers_are() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (
        Server::start(folder.path(), "--data data --name one --sample-every 1"),
        Server::start(folder.path(), ""),
    );
    let (_peer, _) = fill(&one);

    let both = format!("ctl --json --server {},{} status", one.control, other.control);
    let status = Said::of(sanderling(folder.path(), &both)).json();
    assert_eq!(status.len(), 2);
    let (found, second) = (&status[0], &status[1]);
    assert_eq!(found["server"], one.control.as_str());
    assert_eq!(
        (&found["name"], &found["serving"], &found["shards"]),
        (&"one".into(), &true.into(), &1.into())
    );
    assert_eq!((&found["saves"], &found["last_saved_unix_ms"]), (&true.into(), &0.into()));
    assert_eq!((&found["counters"]["rows"], &found["counters"]["connections"]), (&100.into(), &1.into()));
    assert_eq!((&second["saves"], &second["counters"]["rows"]), (&false.into(), &0.into()));
    assert_eq!(found["addresses"][0], one.address.to_string());
    assert!(found["resident_bytes"].as_u64().unwrap() > 1 << 20 && found["uptime_ms"].is_u64());
    assert_eq!(found["pid"], one.child.id());

    let tables = one.ctl(folder.path(), "tables --json").json();
    let table = &tables[0]["tables"][0];
    assert_eq!((&table["name"], &table["rows"], &table["dim"]), (&"t".into(), &100.into(), &4.into()));
    assert!(table["pinned"].is_null() && table["pushes"] == 1 && table["slab_bytes"].as_u64().unwrap() > 0);
    let config: Value = serde_json::from_str(table["config"].as_str().unwrap()).unwrap();
    assert_eq!(config["seed"], 7);

    let connections = one.ctl(folder.path(), "connections --json").json();
    let connection = &connections[0]["connections"][0];
    assert_eq!((&connection["client"], &connection["requests"]), (&"a \"b\"".into(), &6.into()));

    for (words, peer) in [("stats --json", ""), ("stats --peers --json", "a \"b\"")] {
        let stats = one.ctl(folder.path(), words).json();
        let latencies = stats[0]["latencies"].as_array().unwrap();
        let pull = latencies.iter().find(|latency| latency["command"] == "pull").unwrap();
        assert_eq!((&pull["count"], &pull["peer"]), (&3.into(), &peer.into()));
        let ns = |name: &str| pull[format!("{name}_ns")].as_u64().unwrap();
        let ascending = ["min", "p50", "p95", "p99", "p999", "max"].map(ns);
        assert!(ascending[0] > 0 && ascending.is_sorted(), "{pull}");
        assert!(ns("sum") / 3 == ns("average") && ns("average") <= ns("max"));
    }

    let hot = one.ctl(folder.path(), "hot --json").json();
    let key = &hot[0]["keys"][0];
    // Each of 100 keys was pushed once and pulled three times.
    assert_eq!(
        (&key["table"], &key["count"], &hot[0]["total"]),
        (&"t".into(), &4.into(), &400.into()),
        "{hot:?}"
    );

    // For people.
    let (none, all) = (other.ctl(folder.path(), "tables"), one.ctl(folder.path(), "stats"));
    assert_eq!((none.code, &*none.out), (0, "no tables\n"));
    let heads: Vec<&str> = all.out.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heads[..5], ["server", "command", "count", "average", "us"], "{all:?}");
    let mut load = RawClient::silent(&one.address).unwrap();
    load.hello("", "load").unwrap();
    load.create("probe", &TABLE.replacen('{', "{\"temporary\":true,", 1)).unwrap();
    let text = one.ctl(folder.path(), "tables").out;
    for (table, expected) in [("probe", "yes"), ("t", "-")] {
        assert_eq!(cell(&text, table, "temporary"), expected, "{text}");
    }
    drop(load);
    let text = one.ctl(folder.path(), "status").out;
    assert!(text.contains("serving") && text.contains("not yet") && text.lines().count() == 2, "{text}");

    // One of two is not there: it is named, and the other is answered for. No other test listens at that address of this host.
    let nobody = TcpListener::bind("127.77.0.1:0").unwrap().local_addr().unwrap();
    let words = format!("ctl --server {nobody},{} status", one.control);
    let said = Said::of(sanderling(folder.path(), &words));
    said.fails(1, &format!("http://{nobody}: not reached"));
    assert!(said.errors.contains("start the server, or give") && said.out.contains("one"), "{said:?}");
    // The address of the data plane is no such thing either.
    let data = one.address.to_string().replace("tcp://", "");
    Said::of(sanderling(folder.path(), &format!("ctl --server {data} status"))).fails(1, "plus 100");
    for (words, expected) in [
        ("ctl --server h status", "no port"),
        ("ctl --token-file nowhere status", "--token-file nowhere"),
        ("ctl status --watch 0", "is not a time"),
        ("ctl", "Usage"),
    ] {
        Said::of(sanderling(folder.path(), words)).fails(2, expected);
    }
}

#[test]
fn tables_are_saved_restored_and_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "--data data");
    let (mut peer, table) = fill(&server);
    let keys: Vec<u64> = (0..100).collect();
    let expected = peer.pull(table, &keys).unwrap();
    let saved = server.ctl(folder.path(), "--json save daily/one").json();
    assert_eq!((&saved[0]["rows"], &saved[0]["generation"]), (&100.into(), &1.into()));
    peer.push(table, 2, &(0..500).collect::<Vec<_>>(), 0.5).unwrap();
    let said = server.ctl(folder.path(), "restore daily/one");
    assert!(said.code == 0 && said.out.contains("restored daily/one: 1 tables, 100 rows"), "{said:?}");
    let table = peer.create("t", TABLE).unwrap();
    assert_eq!(peer.pull(table, &keys).unwrap(), expected);
    let status = server.ctl(folder.path(), "--json status").json();
    assert!(status[0]["last_saved_unix_ms"].as_u64().unwrap() > 0);
    assert_eq!((&status[0]["counters"]["saves"], &status[0]["counters"]["restores"]), (&1.into(), &1.into()));
    for (rows, expected) in [(100, "saved hourly: 100 rows, "), (5, "saved hourly: delta 1, 5 rows, ")] {
        peer.push(table, 2000 - rows as u64, &keys[..rows], 0.5).unwrap();
        let said = server.ctl(folder.path(), "save --delta hourly");
        assert!(said.code == 0 && said.out.contains(expected), "{said:?}");
        assert_eq!(said.out.contains(", in full: "), rows == 100, "{said:?}");
    }
    let said = server.ctl(folder.path(), "restore hourly@0");
    assert!(said.code == 0 && said.out.contains("restored hourly@0: 1 tables, 100 rows"), "{said:?}");

    server.ctl(folder.path(), "restore nothing").fails(4, "no checkpoint \"nothing\"");
    server.ctl(folder.path(), "save ../out").fails(2, "checkpoint \"../out\"");
    std::fs::write(folder.path().join("data/blocked"), "").unwrap();
    server.ctl(folder.path(), "save blocked/by_a_file").fails(1, "data/blocked");
    for (order, is_failing) in [("save ../out", true), ("save daily/two", false)] {
        server.ctl(folder.path(), order);
        let said = server.ctl(folder.path(), "status").out;
        let says = said.contains("FAILED, before: ") && said.contains("the last save failed: ");
        assert!(says == is_failing && said.contains("data/blocked") == is_failing, "{said}");
    }
    // One of two servers saves alone: then they have different saves of this name.
    let other = Server::start(folder.path(), "--data other");
    let both = |words: &str| {
        let servers = format!("{},{}", server.control, other.control);
        Said::of(sanderling(folder.path(), &format!("ctl --server {servers} {words}")))
    };
    assert_eq!(both("save two").code, 0);
    assert_eq!(both("restore two").code, 0);
    server.ctl(folder.path(), "save one");
    both("restore one").fails(4, "no checkpoint \"one\"");
    other.ctl(folder.path(), "save two");
    both("restore two").fails(1, "have different saves of this name");
    let restores = both("--json status").json();
    assert_eq!(
        (&restores[0]["counters"]["restores"], &restores[1]["counters"]["restores"]),
        (&3.into(), &1.into())
    );
    peer.create("t", TABLE).unwrap();

    server.ctl(folder.path(), "drop t").fails(2, "1 table with 100 rows (");
    let said = server.ctl(folder.path(), "drop t --yes");
    assert!(said.code == 0 && said.out.contains("dropped table t"), "{said:?}");
    server.ctl(folder.path(), "drop t --yes").fails(4, "no table \"t\"");
    assert!(peer.pull(table, &keys).is_err(), "it is gone");

    let without = Server::start(folder.path(), "");
    without.ctl(folder.path(), "save x").fails(1, "start it with --data");
}

#[test]
fn all_tables_of_a_run_are_dropped_on_all_shards_or_on_none() {
    let folder = tempfile::tempdir().unwrap();
    let shard = |of: &str| Server::start(folder.path(), &format!("--shard {of}/2 --data data"));
    let servers = [shard("0"), shard("1")];
    for server in &servers {
        let mut peer = server.peer();
        for name in ["old/site", "old/user", "new/site"] {
            peer.create(name, TABLE).unwrap();
        }
    }
    let all = format!("{},{}", servers[0].control, servers[1].control);
    let ctl = |words: &str| Said::of(sanderling(folder.path(), &format!("ctl --server {words}")));
    let tables = |server: &Server| -> Vec<String> {
        let said = server.ctl(folder.path(), "--json tables").json();
        let table = |table: &Value| table["name"].as_str().unwrap().to_owned();
        said[0]["tables"].as_array().unwrap().iter().map(table).collect()
    };
    let before = ["old/site", "old/user", "new/site"];
    for (words, code, expected) in [
        (
            format!("{} drop --yes old/*", servers[0].control),
            2,
            "is shard 0 of 2: the rows on shard 1 would stay",
        ),
        (format!("{all} drop old/*"), 2, "2 tables with 0 rows"),
        (format!("{all} drop --yes old/* gone"), 4, "there is no table \"gone\""),
        (format!("{all},127.77.0.1:1 drop --yes old/*"), 1, "127.77.0.1:1: not reached"),
    ] {
        ctl(&words).fails(code, expected);
        assert!(servers.iter().all(|server| tables(server) == before), "{words}");
    }
    let said = ctl(&format!("{all} drop --yes old/*"));
    assert!(said.code == 0 && said.out.matches("dropped table old/").count() == 4, "{said:?}");
    assert!(servers.iter().all(|server| tables(server) == ["new/site"]));
    assert_eq!(servers[0].ctl(folder.path(), "drop --yes --some-shards new/site").code, 0);
    assert_eq!((tables(&servers[0]).len(), tables(&servers[1]).len()), (0, 1));

    // Run, age and bytes are there to choose by; the age outlives a restart.
    let text = servers[1].ctl(folder.path(), "tables").out;
    let heads: Vec<&str> = text.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(heads[..7], ["table", "run", "home", "dim", "age", "rows", "bytes"], "{text}");
    assert!(text.lines().nth(1).unwrap().starts_with("new/site  new  "), "{text}");
    let age = |server: &Server| {
        let said = server.ctl(folder.path(), "--json tables").json();
        said[0]["tables"][0]["age_ms"].as_u64().unwrap()
    };
    let before = age(&servers[1]);
    servers[1].ctl(folder.path(), "save kept");
    let text = servers[1].ctl(folder.path(), "checkpoints").out;
    assert!(text.lines().nth(1).is_some_and(|line| line.starts_with("kept ")), "{text}");
    let status = servers[1].ctl(folder.path(), "status").out;
    assert!(status.contains("checkpoints") && status.contains("2 ("), "{status}");
    servers[1].ctl(folder.path(), "restore kept");
    assert!(age(&servers[1]) >= before);
}

#[test]
fn a_server_that_drains_says_so_until_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "--data data --drain-timeout 1h --write-timeout 1h");
    let (mut peer, _) = fill(&server);
    let health = |server: &Server| check_health(&server.control, "sanderling.control.Control");
    assert_eq!((health(&server), server.get("/healthz", "").0), (ServingStatus::Serving, 200));
    // Somebody does not take the answers, so that it is not quiet.
    peer.ask_without_listening();
    let said = server.ctl(folder.path(), "drain");
    assert!(said.code == 0 && said.out.contains("draining 1 connections"), "{said:?}");
    let start = Instant::now();
    while health(&server) != ServingStatus::NotServing {
        assert!(start.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(server.get("/healthz", ""), (503, "draining\n".to_owned()));
    assert_eq!(server.ctl(folder.path(), "--json status").json()[0]["serving"], false);
    for order in ["save x", "restore x", "drop --yes t"] {
        server.ctl(folder.path(), order).fails(1, "about to stop");
    }
    drop(peer);
    let (status, errors) = server.end();
    assert!(status.success() && errors.contains("saved latest: 100 rows"), "{errors}");
    // As after SIGTERM, it comes back with what it had.
    let server = Server::start(folder.path(), "--data data");
    assert_eq!(server.peer().counter("rows"), 100);
}

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

async fn channel(url: &str) -> Channel {
    Endpoint::new(url.to_owned()).unwrap().timeout(LONG).connect().await.unwrap()
}

fn check_health(url: &str, service: &str) -> ServingStatus {
    run(async {
        let mut client = HealthClient::new(channel(url).await);
        let answer = client.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap();
        answer.into_inner().status()
    })
}

/// The services that reflection lists to who says this token.
async fn services(url: &str, token: Option<String>) -> Result<Vec<String>, tonic::Status> {
    let bearer = token.map(|token| format!("Bearer {token}").parse().unwrap());
    let say = move |mut request: tonic::Request<()>| {
        bearer.clone().map(|bearer| request.metadata_mut().insert("authorization", bearer));
        Ok(request)
    };
    let mut client = ServerReflectionClient::with_interceptor(channel(url).await, say);
    let list = MessageRequest::ListServices(String::new());
    let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
    let mut answers = client.server_reflection_info(tokio_stream::iter([request])).await?.into_inner();
    match answers.message().await?.unwrap().message_response.unwrap() {
        MessageResponse::ListServicesResponse(list) => {
            Ok(list.service.into_iter().map(|service| service.name).collect())
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn tools_for_any_grpc_server_work() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "");
    for service in ["", "sanderling.control.Control"] {
        assert_eq!(check_health(&server.control, service), ServingStatus::Serving);
    }
    let found = run(services(&server.control, server.own_token())).unwrap();
    for expected in
        ["sanderling.control.Control", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"]
    {
        assert!(found.iter().any(|name| name == expected), "{expected} is not in {found:?}");
    }
    let (code, text) = server.get("/other", &server.authorization());
    assert!(code == 404 && text.contains("/metrics"), "{code} {text}");
}

/// A parser of the text format as simple as can be: value by name and labels. Every sample must follow its type.
fn parse_metrics(text: &str) -> HashMap<String, f64> {
    let (mut family, mut samples) = (("", ""), HashMap::new());
    for line in text.lines() {
        match line.strip_prefix("# ").map(|comment| comment.splitn(3, ' ').collect::<Vec<_>>()).as_deref() {
            Some(&["HELP", name, help]) => {
                assert!(!help.is_empty());
                family = (name, "");
            }
            Some(&["TYPE", name, kind]) => {
                assert_eq!(name, family.0);
                family.1 = kind;
            }
            Some(other) => panic!("{other:?}"),
            None => {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let bare = name.split('{').next().unwrap();
                let base = match family.1 {
                    "summary" => bare.trim_end_matches("_sum").trim_end_matches("_count"),
                    _ => bare,
                };
                assert!(base == family.0 && !family.1.is_empty(), "{line} after {family:?}");
                assert!(samples.insert(name.to_owned(), value.parse().unwrap()).is_none(), "{line} twice");
            }
        }
    }
    samples
}

#[test]
fn prometheus_reads_the_metrics() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path(), "--data data");
    let (_peer, _) = fill(&server);
    server.ctl(folder.path(), "save latest");
    assert_eq!(server.get("/metrics", "").0, 401);
    let (code, text) = server.get("/metrics", &server.authorization());
    assert_eq!(code, 200);
    let found = parse_metrics(&text);
    for (name, expected) in [
        ("sanderling_serving", 1.0),
        ("sanderling_connections", 1.0),
        ("sanderling_rows", 100.0),
        ("sanderling_control_logins_refused_total", 1.0),
        ("sanderling_logins_refused_total", 0.0),
        ("sanderling_saves_total", 1.0),
        ("sanderling_saves_failed_total", 0.0),
        ("sanderling_table_rows{table=\"t\"}", 100.0),
        ("sanderling_table_pushes_total{table=\"t\"}", 1.0),
        ("sanderling_request_latency_seconds_count{command=\"pull\"}", 3.0),
        ("sanderling_peer_request_latency_seconds_count{peer=\"a \\\"b\\\"\",command=\"pull\"}", 3.0),
    ] {
        assert_eq!(found.get(name), Some(&expected), "{name}:\n{text}");
    }
    let p99 = found["sanderling_request_latency_seconds{command=\"pull\",quantile=\"0.99\"}"];
    assert!(p99 > 0.0 && p99 < LONG.as_secs_f64());
    assert!(found["sanderling_last_saved_timestamp_seconds"] > 1.7e9);
    assert!(found["process_resident_memory_bytes"] > 1e6);
}

#[test]
fn only_those_with_the_token_may_ask() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    write("token", "secret\n");
    let refused = "ps --listen 127.0.0.1:0 --no-local --token-file token";
    Said::of(sanderling(folder.path(), refused)).fails(2, "other users can read this token: chmod 600");
    std::fs::set_permissions(folder.path().join("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    write("wrong", "secreT\n");
    let server = Server::start(folder.path(), "--token-file token");
    let rows: fn(&Said) -> Value = |said| said.json()[0]["counters"]["rows"].clone();
    assert_eq!(rows(&server.ctl(folder.path(), "--token-file token --json status")), 0);
    for words in ["status", "--token-file wrong status", "--token-file wrong drain"] {
        server.ctl(folder.path(), words).fails(1, "give its file with --token-file");
    }
    assert_eq!(run(services(&server.control, None)).unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(server.get("/metrics", "Authorization: Bearer secreT\r\n").0, 401);
    assert_eq!(server.get("/metrics", "Authorization: Bearer secret\r\n").0, 200);
    // Probes have no token.
    assert_eq!(check_health(&server.control, ""), ServingStatus::Serving);
    assert_eq!(server.get("/healthz", ""), (200, "serving\n".to_owned()));

    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    write("cert.pem", &made.cert.pem());
    write("key.pem", &made.signing_key.serialize_pem());
    let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    write("other.pem", &other.cert.pem());
    // Everything that an exposed server has, on the loopback.
    let options =
        "--token-file token --cert-file cert.pem --key-file key.pem --expose --pin --control localhost:0";
    let server = Server::start(folder.path(), options);
    assert!(server.control.starts_with("https://localhost:"), "{}", server.control);
    assert_eq!(rows(&server.ctl(folder.path(), "--token-file token --ca-file cert.pem --json status")), 0);
    server.ctl(folder.path(), "--token-file token status").fails(2, "--ca-file");
    server.ctl(folder.path(), "--ca-file cert.pem status").fails(1, "the token is missing or wrong");
    server.ctl(folder.path(), "--token-file token --ca-file other.pem status").fails(1, "not reached");
    let (mut params, key) = (
        rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap(),
        rcgen::KeyPair::generate().unwrap(),
    );
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    write("ca.pem", &params.self_signed(&key).unwrap().pem());
    write("ca.key", &key.serialize_pem());
    let options = "--cert-file ca.pem --key-file ca.key --control localhost:0";
    let itself = Server::start(folder.path(), options);
    itself
        .ctl(folder.path(), "--ca-file ca.pem status")
        .fails(1, "the server's certificate is itself a CA certificate");
    let plain = server.control.replace("https://localhost", "http://127.0.0.1");
    let said =
        Said::of(sanderling(folder.path(), &format!("ctl --token-file token --server {plain} status")));
    said.fails(1, "a server with TLS needs --ca-file");
}

#[test]
fn where_the_control_plane_may_listen() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    for (options, code, expected) in [
        ("--control 0.0.0.0:0", 2, "; give --expose, --cert-file"),
        ("--control 0.0.0.0:0 --expose", 2, "--token-file, or --insecure"),
        ("--control unix:c.sock", 2, "TCP only"),
        ("--control nonsense", 2, "--control: "),
        (&*format!("--control 127.0.0.1:{port}"), 1, "already in use"),
        ("--control 127.0.0.1:0 --no-control", 2, "--no-control"),
    ] {
        Said::of(sanderling(folder.path(), &format!("ps --listen 127.0.0.1:0 --no-local {options}")))
            .fails(code, expected);
    }
    // A default that is taken is done without, and said. The port below may be somebody else's: then try another.
    for attempt in 0.. {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = taken.local_addr().unwrap();
        let listen = format!("127.0.0.1:{}", control.port() - 100);
        let mut child =
            sanderling(folder.path(), &format!("ps --listen {listen} --no-local")).spawn().unwrap();
        let (mut line, mut errors) = (String::new(), String::new());
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        if line.is_empty() {
            assert!(errors.contains("already in use") && attempt < 20, "{errors}");
            continue;
        }
        assert!(line.starts_with("listening at"), "{line}");
        let expected =
            format!("no control plane, so sanderling ctl cannot reach this server: tcp://{control}");
        assert!(errors.contains(&expected), "{errors}");
        break;
    }
}
