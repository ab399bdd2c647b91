//! Status pages of real processes: every page as text and as HTML, every link, names with markup, who may look.
#![allow(clippy::print_stdout, reason = "a test prints times that it does not judge")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Lines, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sanderling_testkit::{HttpReply, RawClient, TABLE, http};

use crate::serve;

/// Bytes that no page exceeds.
const PAGE_BYTES_MAX: usize = 200 << 10;
/// A name of a table and of a client.
const EVIL: &str = "<script>alert('1')</script>/&\"é%";
pub(crate) const HTML: &str = "accept: text/html,application/xhtml+xml,*/*;q=0.8";
/// Longer than anything here takes.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// A process with a port for HTTP; it is killed if a test forgets it.
pub(crate) struct Web {
    pub(crate) child: Child,
    /// The address of the port.
    pub(crate) address: String,
    /// The lines before the one with the address.
    pub(crate) said: Vec<String>,
    _lines: Lines<BufReader<Box<dyn Read + Send + Sync>>>,
    /// The header with its token.
    login: Option<String>,
}

impl Web {
    /// Starts a command below a folder, and waits for the line that names its port.
    pub(crate) fn start(folder: &Path, line: &str) -> Web {
        Web::start_at(folder, line, false)
    }

    /// [`Web::start`]; a training, whose result is on standard output, names its port on standard error, and reads what the
    /// test writes.
    pub(crate) fn start_at(folder: &Path, line: &str, is_training: bool) -> Web {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sanderling"));
        command.args(line.split_whitespace()).current_dir(folder);
        command.stdin(if is_training { Stdio::piped() } else { Stdio::null() });
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stream: Box<dyn Read + Send + Sync> = match is_training {
            true => Box::new(child.stderr.take().unwrap()),
            false => Box::new(child.stdout.take().unwrap()),
        };
        let (mut lines, mut said) = (BufReader::new(stream).lines(), Vec::new());
        let address = lines.by_ref().find_map(|line| {
            let line = line.unwrap();
            let address =
                line.split_once("http://").map(|(_, url)| url.trim_end_matches("/metrics").to_owned());
            said.push(line);
            address
        });
        let Some(address) = address else {
            let mut errors = String::new();
            if let Some(mut stream) = child.stderr.take() {
                stream.read_to_string(&mut errors).unwrap();
            }
            panic!("{line}: {said:?} {errors}");
        };
        Web { child, address, said, _lines: lines, login: None }
    }

    pub(crate) fn with_token(mut self, token: &str) -> Web {
        self.login = Some(format!("authorization: Bearer {token}"));
        self
    }

    pub(crate) fn get(&self, path: &str, headers: &[&str]) -> HttpReply {
        let headers: Vec<&str> = headers.iter().copied().chain(self.login.as_deref()).collect();
        http(&self.address, "GET", path, &headers, b"")
    }

    /// Looks at a page as text and as HTML, whose text must hold these pieces. Returns the paths of its links.
    pub(crate) fn check(&self, path: &str, pieces: &[&str]) -> BTreeSet<String> {
        let (text, html) = (self.get(path, &[]), self.get(path, &[HTML]));
        for (reply, kind) in [(&text, "text/plain; charset=utf-8"), (&html, "text/html; charset=utf-8")] {
            assert_eq!((reply.status, reply.header("content-type")), (200, Some(kind)), "{path}: {reply:?}");
            assert!(reply.body.len() <= PAGE_BYTES_MAX, "{path} has {} bytes", reply.body.len());
            assert_eq!(reply.header("cache-control"), Some("no-store"));
        }
        pieces
            .iter()
            .for_each(|piece| assert!(text.text().contains(piece), "{path} {piece}: {}", text.text()));
        assert!(html.header("content-security-policy").unwrap().starts_with("default-src 'none'"));
        let html = html.text();
        for bad in ["<script", "javascript:", "http://", "https://", "src="] {
            assert!(!html.contains(bad), "{path} {bad}: {html}");
        }
        let links = html.split(" href=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        links
            .map(|link| match link.starts_with('?') {
                true => format!("{}{link}", path.split('?').next().unwrap()),
                false => link.to_owned(),
            })
            .collect()
    }

    /// Follows all links from a page on, each once, and returns their paths.
    pub(crate) fn crawl(&self, path: &str) -> BTreeSet<String> {
        let (mut seen, mut open) = (BTreeSet::new(), vec![path.to_owned()]);
        while let Some(path) = open.pop() {
            // A profile takes its time, and is tested elsewhere. JSON has no links.
            let is_page = path != "/metrics" && path != "/?json" && !path.starts_with("/profile?");
            if seen.insert(path.clone()) && is_page {
                open.extend(self.check(&path, &[]));
            }
        }
        assert_eq!(self.get("/metrics", &[]).status, 200);
        seen
    }

    /// Takes a profile of a second, as text and as a drawing.
    pub(crate) fn check_profile(&self, process: &str) {
        let (text, drawing) = (self.get("/profile?seconds=1", &[]), self.get("/profile?seconds=1", &[HTML]));
        if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
            assert_eq!((text.status, drawing.status), (500, 500));
            return;
        }
        let head = format!("CPU profile of sanderling {process}: ");
        assert!(text.status == 200 && text.text().starts_with(&head), "{}", text.text());
        assert_eq!((drawing.status, drawing.header("content-type")), (200, Some("image/svg+xml")));
        assert!(drawing.text().contains("<svg"), "{}", drawing.text());
    }

    /// Waits until the process has noted a metric.
    pub(crate) fn wait_for_metric(&self, name: &str) {
        let deadline = Instant::now() + LONG;
        while !self.get(&format!("/vars/{name}"), &[]).text().contains(&format!("\n{name}")) {
            assert!(Instant::now() < deadline, "{name} was not noted");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn found(paths: &BTreeSet<String>, expected: &[&str]) {
    expected.iter().for_each(|path| assert!(paths.contains(*path), "{path} is not among {paths:?}"));
}

pub(crate) fn with_token_file() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "secret").unwrap();
    let private = Command::new("chmod").args(["600", "token"]).current_dir(folder.path()).status().unwrap();
    assert!(private.success());
    folder
}

#[test]
fn a_server_shows_its_state_to_people() {
    let folder = with_token_file();
    let line = "ps --listen 127.0.0.1:0 --no-local --threads 1 --token-file token --name a<b> --sample-every 1 --slow 1us";
    let ps = Web::start(folder.path(), line).with_token("secret");
    let address = ps.said[0].strip_prefix("listening at ").unwrap().parse().unwrap();
    let mut peer = RawClient::silent(&address).unwrap();
    peer.hello("secret", EVIL).unwrap();
    let table = peer.create(EVIL, TABLE).unwrap();
    let keys: Vec<u64> = (0..100).collect();
    peer.push(table, 1, &keys, 0.5).unwrap();
    peer.pull(table, &keys).unwrap();
    ps.wait_for_metric("sanderling_table_rows");

    let encoded = "/tables/%3Cscript%3Ealert%28%271%27%29%3C%2Fscript%3E%2F%26%22%C3%A9%25";
    for (path, pieces) in [
        ("/", &["sanderling ps a<b>: status", "/vars", "/tables", "/metrics"][..]),
        ("/status", &["serving", "pull", "push", "shard", "0 of 1"]),
        ("/connections", &[EVIL, "127.0.0.1", "requests"]),
        ("/tables", &[EVIL, "100"]),
        (
            encoded,
            &[
                "table <script>",
                "sanderling_table_rows",
                "adagrad",
                "Estimates, of 100 random rows",
                "row_norm, quantile 0.99",
                "unseen_keys_ratio",
                "0.0000  Share of random rows",
            ],
        ),
        ("/vars/sanderling_ro*", &["sanderling_rows  ", "100"]),
        ("/vars/table_rows", &["sanderling_table_rows{table=\"<script>"]),
        ("/hot", &[EVIL, "seen", "1.00 %"]),
        ("/requests", &["slow", "pull", "push", "wait ", "decode ", EVIL]),
        ("/flags", &["--token-file", "token *", "command line", "--save-every", "default"]),
        ("/threads", &["control", "status", "running"]),
    ] {
        ps.check(path, pieces);
    }
    let paths = ps.crawl("/");
    found(
        &paths,
        &["/status", "/vars", "/connections", "/tables", "/hot", "/requests", "/flags", "/threads", encoded],
    );
    let (metrics, evil) = (ps.get("/metrics", &[]), EVIL.replace('"', "\\\""));
    for series in ["row_norm{table=\"EVIL\",quantile=\"0.5\"} ", "unseen_keys_ratio{table=\"EVIL\"} 0\n"] {
        let series = format!("sanderling_table_{}", series.replace("EVIL", &evil));
        assert!(metrics.text().contains(&series), "{series}: {}", metrics.text());
    }
    for path in ["/other", "/tables/none", "/status/more", "/tables/%3Cscript%3E"] {
        assert_eq!(ps.get(path, &[HTML]).status, 404, "{path}");
    }
}

#[test]
fn a_server_answers_while_it_is_profiled() {
    let folder = with_token_file();
    let line = "ps --listen 127.0.0.1:0 --no-local --threads 1 --token-file token";
    let ps = Web::start(folder.path(), line).with_token("secret");
    let address = ps.said[0].strip_prefix("listening at ").unwrap().parse().unwrap();
    let mut peer = RawClient::silent(&address).unwrap();
    peer.hello("secret", "").unwrap();
    let table = peer.create("t", TABLE).unwrap();
    let keys: Vec<u64> = (0..1000).collect();
    std::thread::scope(|scope| {
        let profile = scope.spawn(|| ps.check_profile("ps"));
        for sequence in 1.. {
            peer.push(table, sequence, &keys, 0.5).unwrap();
            peer.pull(table, &keys).unwrap();
            if sequence % 100 == 0 {
                assert_eq!(ps.get("/status", &[]).status, 200);
            }
            if profile.is_finished() {
                break;
            }
        }
    });
}

#[test]
fn options_are_set_while_a_server_runs() {
    let folder = with_token_file();
    let line = "ps --listen 127.0.0.1:0 --no-local --threads 1 --token-file token";
    let mut ps = Web::start(folder.path(), line);
    let bearer = "authorization: Bearer secret";
    for (path, headers, status) in [
        ("/flags/sample-every?value=7", &[][..], 401),
        ("/flags/sample-every?value=7", &["authorization: Basic OnNlY3JldA=="], 401),
        ("/flags/sample-every?value=7", &[bearer, "origin: http://evil.example"], 403),
        ("/flags/sample-every?value=x", &[bearer], 400),
        ("/flags/slow?value=soon", &[bearer], 400),
        ("/flags/threads?value=2", &[bearer], 404),
        ("/flags/sample-every?value=7", &[bearer], 200),
        ("/flags/slow?value=1500us", &[bearer], 200),
    ] {
        let reply = http(&ps.address, "PUT", path, headers, b"");
        assert_eq!(reply.status, status, "{path} {headers:?}: {}", reply.text());
    }
    let flags = http(&ps.address, "GET", "/flags", &[bearer], b"");
    for (option, value) in [("--sample-every", "7 *"), ("--slow", "1500us *")] {
        let line = flags.text().lines().find(|line| line.starts_with(option)).unwrap();
        assert!(line.contains(value) && line.contains("request"), "{line}");
    }
    ps.child.kill().unwrap();
    let mut errors = String::new();
    ps.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    for expected in ["--sample-every is 7 from now on", "--slow is 1500us from now on"] {
        assert!(errors.contains(expected), "{errors}");
    }
}

#[test]
fn only_who_has_the_token_sees_pages() {
    let folder = with_token_file();
    let line = "ps --listen 127.0.0.1:0 --no-local --threads 1 --token-file token";
    let ps = Web::start(folder.path(), line);
    // OnNlY3JldA== is :secret, eDp5 is x:y.
    for (headers, status) in [
        (&[][..], 401),
        (&["authorization: Bearer wrong"], 401),
        (&["authorization: Basic eDp5"], 401),
        (&["authorization: Bearer secret"], 200),
        (&["authorization: Basic OnNlY3JldA=="], 200),
        (&["authorization: Basic OnNlY3JldA==", "sec-fetch-site: cross-site"], 403),
        (&["authorization: Bearer secret", "origin: http://evil.example"], 403),
    ] {
        for path in ["/", "/status", "/vars", "/tables/x", "/flags", "/threads"] {
            let expected = if status == 200 && path == "/tables/x" { 404 } else { status };
            let reply = http(&ps.address, "GET", path, headers, b"");
            assert_eq!(reply.status, expected, "{path} {headers:?}");
            assert_eq!(
                reply.text().contains("resident memory"),
                status == 200 && ["/", "/status"].contains(&path)
            );
        }
    }
    // A browser asks its user for the token; a program is told how to send it.
    for (headers, challenges) in [(&[HTML][..], 2), (&[], 1)] {
        let reply = http(&ps.address, "GET", "/status", headers, b"");
        assert_eq!(reply.head.matches("\nwww-authenticate: ").count(), challenges, "{}", reply.head);
    }
    // A password is not enough for calls that change something.
    let grpc = ["authorization: Basic OnNlY3JldA==", "content-type: application/grpc"];
    let reply = http(&ps.address, "POST", "/sanderling.control.Control/Drain", &grpc, b"\0\0\0\0\0");
    assert!(reply.head.contains("grpc-status: 16"), "{}", reply.head);
}

#[test]
fn pages_are_hidden_from_other_machines_unless_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let ps = "ps --listen 0.0.0.0:0 --no-local --threads 1 --no-token --expose --insecure";
    let keeper = "keeper --data keeper --listen 0.0.0.0:0 --expose --insecure";
    for line in [ps, keeper] {
        for (options, status) in [("", 404), ("--status-pages", 200)] {
            let web = Web::start(folder.path(), &format!("{line} {options}"));
            let address = format!("127.0.0.1:{}", web.address.rsplit(':').next().unwrap());
            for path in ["/", "/status", "/vars", "/threads", "/flags"] {
                let reply = http(&address, "GET", path, &[HTML], b"");
                assert_eq!(reply.status, status, "{line} {options} {path}");
                assert_eq!(reply.text().contains("--status-pages to show them"), status == 404, "{path}");
            }
            assert_eq!(http(&address, "GET", "/metrics", &[], b"").status, 200);
        }
    }
}

#[test]
fn a_hub_shows_its_minibatches() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("spec.toml"), "[[feature]]\nname = \"id\"\nkey = \"raw\"").unwrap();
    std::fs::write(folder.path().join("a.csv"), "label,id\n0,1\n1,2\n").unwrap();
    let line = "hub --listen 127.0.0.1:0 --spec spec.toml --metrics 127.0.0.1:0 a.csv";
    let hub = Web::start(folder.path(), line);
    hub.wait_for_metric("sanderling_hub_ready");
    hub.check("/", &["sanderling hub: status", "ready minibatches", "/connections"]);
    hub.check("/flags", &["DATA", "a.csv *", "--batch-size"]);
    hub.check("/threads", &["metrics", "status"]);
    hub.check_profile("hub");
    found(&hub.crawl("/"), &["/status", "/vars", "/connections", "/flags", "/threads"]);
    assert_eq!(hub.get("/other", &[]).status, 404);
}

#[test]
fn a_keeper_shows_its_records() {
    let folder = with_token_file();
    let line = "keeper --data keeper --listen 127.0.0.1:0 --token-file token";
    let keeper = Web::start(folder.path(), line).with_token("secret");
    let login = keeper.login.clone().unwrap();
    let put = br#"{"a":"<script>"}"#;
    let headers = [&*login, "content-type: application/json"];
    let reply = http(&keeper.address, "PUT", "/v1/clusters/ads/records/members/a?revision=0", &headers, put);
    assert_eq!(reply.status, 200, "{}", reply.text());
    keeper.wait_for_metric("sanderling_keeper_records");
    keeper.check("/", &["sanderling keeper: status", "serving", "records", "/records"]);
    keeper.check("/records/ads", &["ads/members/a", "<script>"]);
    keeper.check("/flags", &["--listen", "127.0.0.1:0 *"]);
    keeper.check_profile("keeper");
    found(&keeper.crawl("/"), &["/status", "/vars", "/records", "/flags", "/threads"]);
    assert_eq!(http(&keeper.address, "GET", "/status", &[HTML], b"").status, 401);
    assert_eq!(keeper.get("/other", &[HTML]).status, 404);
}

#[test]
fn a_cluster_is_shown_by_its_keeper_and_its_servers() {
    let folder = tempfile::tempdir().unwrap();
    let keeper = Web::start(folder.path(), "keeper --data keeper --listen 127.0.0.1:0");
    let line = format!(
        "ps --cluster ads --registry keeper://{} --groups 1 --replicas 2 --listen 127.0.0.1:0 --no-local --threads 1 --no-token",
        keeper.address
    );
    let servers = [(); 2].map(|()| Web::start(folder.path(), &line));
    let deadline = Instant::now() + LONG;
    for web in [&keeper, &servers[0], &servers[1]] {
        let path = if web.address == keeper.address { "/cluster/ads" } else { "/cluster" };
        while !web.get(path, &[]).text().contains("in sync              1\n") {
            assert!(Instant::now() < deadline, "{}", web.get(path, &[]).text());
            std::thread::sleep(Duration::from_millis(20));
        }
        let listens = servers.iter().map(|server| server.said[0].strip_prefix("listening at ").unwrap());
        let pieces: Vec<&str> = listens.chain(["ads", "primary", "in sync", "4,096", "2 of 2"]).collect();
        web.check(path, &pieces);
    }
    found(&keeper.check("/cluster", &["ads"]), &["/cluster/ads", "/records"]);
    assert_eq!(keeper.get("/cluster/none", &[HTML]).status, 404);
    servers[0].check("/cluster", &["this server", "of group 0", "records that a follower", "Read 0."]);
    found(&keeper.check("/slots", &["ads"]), &["/slots/ads"]);
    let map = ["Slots by group", "4,096", "100.0 %", "0 to 4095"];
    found(&keeper.check("/slots/ads", &map), &["/cluster/ads"]);
    found(&servers[1].check("/slots", &map), &["/cluster"]);
    found(&servers[0].crawl("/"), &["/cluster", "/slots"]);
    // Without the registry, what was known before is shown.
    drop(keeper);
    while !servers[1].get("/cluster", &[]).text().contains("what follows was known before") {
        assert!(Instant::now() < deadline, "{}", servers[1].get("/cluster", &[]).text());
        std::thread::sleep(Duration::from_millis(20));
    }
    servers[1].check("/cluster", &["! registry keeper://", "in sync"]);
}

#[test]
fn a_server_of_predictions_shows_its_models() {
    let folder = serve::trained();
    let web = Web::start(folder.path(), "serve --listen 127.0.0.1:0 --slow 1us runs/clicks/model");
    let predict = br#"{"rows":[{"user":"u1","genres":["g1"]}]}"#;
    let reply = http(&web.address, "POST", "/predict", &["content-type: application/json"], predict);
    assert_eq!(reply.status, 200, "{}", reply.text());
    web.wait_for_metric("sanderling_serve_ready");
    web.check("/status", &["sanderling serve: status", "serving", "clicks"]);
    web.check("/tables", &["user", "genres", "clicks"]);
    web.check("/requests", &["http predict", "clicks@1", "score "]);
    let mut paths = BTreeSet::new();
    for path in web.check("/status", &[]) {
        // The page at the root is for those who try the model, and has a script.
        if path != "/" && path != "/metrics" && !path.starts_with("/profile?") {
            paths.extend(web.check(&path, &[]));
        }
    }
    found(&paths, &["/tables/user", "/tables/genres", "/requests", "/vars", "/flags", "/threads"]);
    web.check_profile("serve");
    assert!(web.get("/", &[HTML]).text().contains("<script>"));
    assert_eq!(web.get("/tables/user/rows?value=u1", &[]).status, 200);
    assert_eq!(web.get("/tables/none", &[]).status, 404);
}

/// Sizes are checked, times are printed: `--nocapture` shows the table of `docs/results`.
#[test]
fn pages_are_small_with_many_tables_and_connections() {
    const TABLES: usize = 1000;
    const CONNECTIONS: usize = 4096;
    sanderling_server::raise_limit();
    let folder = with_token_file();
    let line =
        "ps --listen 127.0.0.1:0 --no-local --threads 1 --token-file token --sample-every 1 --slow 1us";
    let ps = Web::start(folder.path(), line).with_token("secret");
    let address = ps.said[0].strip_prefix("listening at ").unwrap().parse().unwrap();
    let mut peers = Vec::new();
    for at in 0..CONNECTIONS {
        // The limit of open files may allow fewer.
        let Ok(mut peer) = RawClient::silent(&address) else { break };
        if peer.hello("secret", &format!("{EVIL} trainer {at} {}", "x".repeat(60))).is_err() {
            break;
        }
        peers.push(peer);
    }
    let first = &mut peers[0];
    let keys: Vec<u64> = (0..300).collect();
    for at in 0..TABLES {
        let table = first.create(&format!("{EVIL}/a run with a long name/table {at}"), TABLE).unwrap();
        first.push(table, at as u64 + 1, &keys, 0.5).unwrap();
    }
    ps.wait_for_metric("sanderling_table_rows");
    let connections = sanderling_observe::numbers::count(peers.len() as u64);
    ps.check("/connections", &[&*connections]);
    let table =
        ps.check("/tables", &["(1 to 200 of 1,000)"]).into_iter().find(|path| path.starts_with("/tables/"));
    println!(
        "{TABLES} tables, {connections} connections\n| page | text KiB | HTML KiB | text ms | HTML ms |"
    );
    let pages =
        ["/status", "/vars", "/vars/table_rows", "/connections", "/tables", "/hot", "/requests", "/flags"];
    for path in pages.into_iter().chain(["/threads", &*table.unwrap()]) {
        ps.check(path, &[]);
        let timed = |headers: &[&str]| {
            let start = Instant::now();
            let bytes = ps.get(path, headers).body.len();
            (bytes as f64 / 1024.0, start.elapsed().as_secs_f64() * 1e3)
        };
        let ((text, text_ms), (html, html_ms)) = (timed(&[]), timed(&[HTML]));
        println!("| `{path:.20}` | {text:.1} | {html:.1} | {text_ms:.1} | {html_ms:.1} |");
    }
}
