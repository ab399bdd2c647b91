//! A training that is watched: its page while it goes on, the same from its files, and its report when it has ended, failed or
//! was killed.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ExitStatus};
use std::time::{Duration, Instant};

use sanderling_testkit::http;
use serde_json::Value;

use crate::serve::run;
use crate::status_pages::{HTML, LONG, Web, found, with_token_file};

/// A name of a feature.
const EVIL: &str = "<script>alert(1)</script>";
/// Rows between two lines of metrics.
const ROWS: usize = 100;
/// Rows of a test, of 1 KiB each: a reader waits for 256 KiB.
const ALL_ROWS: usize = 1000;

/// The configuration of a run that reads what a test writes.
fn write_config(folder: &Path) {
    let config = format!(
        "[data]\ntrain = \"-\"\nformat = \"csv\"\n[model]\ntype = \"lr\"\n[optimizer]\ntype = \"ftrl\"\n[train]\nbatch_size = 10\n\
         shuffle_rows = 0\nprint_every_steps = {}\n[[feature]]\nname = \"{EVIL}\"\ncolumn = \"id\"\n",
        ROWS / 10
    );
    std::fs::write(folder.join("clicks.toml"), config).unwrap();
}

/// Rows below a header.
fn write_rows(input: &mut ChildStdin, rows: usize) {
    let mut text = "label,id,pad\n".to_owned();
    let pad = "x".repeat(1 << 10);
    (0..rows).for_each(|at| text.push_str(&format!("{},k{},{pad}\n", at % 3 % 2, at % 7)));
    input.write_all(text.as_bytes()).unwrap();
    input.flush().unwrap();
}

fn start(folder: &Path, options: &str) -> Web {
    write_config(folder);
    Web::start_at(folder, &format!("train clicks.toml --status-listen 127.0.0.1:0 {options}"), true)
}

/// Waits until the page has a line of metrics of so many examples.
fn wait_for_examples(web: &Web, examples: usize) -> Value {
    let deadline = Instant::now() + LONG;
    loop {
        let reply = web.get("/?json", &[]);
        let page: Value = serde_json::from_str(reply.text()).unwrap_or_default();
        if page["examples"].as_u64() >= Some(examples as u64) {
            return page;
        }
        assert!(Instant::now() < deadline, "no line of {examples} examples: {}", reply.text());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end of a process.
fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LONG;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(Instant::now() < deadline, "the training does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The section of a page.
fn section<'a>(page: &'a str, id: &str) -> &'a str {
    let begin = page.find(&format!("<section id=\"{id}\">")).unwrap_or_else(|| panic!("{id}: {page}"));
    &page[begin..begin + page[begin..].find("</section>").unwrap()]
}

#[test]
fn a_training_is_watched_until_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let mut web = start(folder.path(), "");
    let mut input = web.child.stdin.take().unwrap();
    web.check("/status", &["sanderling train: status", "resident memory"]);
    write_rows(&mut input, ALL_ROWS);
    let page = wait_for_examples(&web, 2 * ROWS);
    assert_eq!((&page["name"], &page["under_way"]["pass"]), (&"clicks".into(), &1.into()));
    let tables = page["tables"].as_array().unwrap();
    assert_eq!((&tables[0]["name"], &tables[0]["keys"]["admitted"]), (&EVIL.into(), &7.into()));
    web.check(
        "/",
        &["clicks: training, pass 1 of 1", "AUC", "Logloss", "examples/s", "compute", EVIL, "tables"],
    );
    let html = web.get("/", &[HTML]);
    for piece in [
        "<svg",
        "Learning curves",
        "<meta http-equiv=\"refresh\" content=\"5\">",
        "&lt;script&gt;",
        "the most time",
    ] {
        assert!(html.text().contains(piece), "{piece}: {}", html.text());
    }
    assert!(!web.get("/?refresh=0", &[HTML]).text().contains("http-equiv"));
    web.wait_for_metric("sanderling_train_examples_total");
    let paths = web.crawl("/");
    found(
        &paths,
        &["/status", "/connections", "/vars", "/flags", "/threads", "/profile", "/?json", "/?refresh=0"],
    );
    web.check("/flags", &["--status-listen", "127.0.0.1:0 *", "--batch-size"]);
    web.check("/threads", &["record", "metrics", "status"]);
    let metrics = web.get("/metrics", &[]);
    let series = format!("sanderling_train_table_admitted_total{{table=\"{EVIL}\"}} 7\n");
    assert!(metrics.text().contains(&series), "{}", metrics.text());

    // The files show the same page.
    let (code, text, errors) = run(folder.path(), "watch runs/clicks");
    assert!(
        code == Some(0) && text.contains(": training, pass 1 of 1") || text.contains(": starting"),
        "{text}{errors}"
    );
    let served = Web::start(folder.path(), "watch runs/clicks --listen 127.0.0.1:0");
    served.check("/", &["clicks: "]);
    assert!(served.get("/", &[HTML]).text().contains("http-equiv"));
    drop(input);
    let mut result = String::new();
    web.child.stdout.take().unwrap().read_to_string(&mut result).unwrap();
    assert!(wait(&mut web.child).success() && result.contains("AUC"), "{result}");

    let (code, text, _) = run(folder.path(), "watch runs/clicks --every 1ms");
    assert!(code == Some(0) && text.starts_with("clicks: ended\n") && text.contains("AUC"), "{text}");
    let report = std::fs::read_to_string(folder.path().join("runs/clicks/report.html")).unwrap();
    let shown = served.get("/", &[HTML]);
    for id in ["curves", "quality", "tables", "keys", "timings", "data", "machine", "config"] {
        assert_eq!(section(&report, id), section(shown.text(), id));
    }
    assert!(!shown.text().contains("http-equiv") && report.contains("Examples per second"));
    let (_, json, _) = run(folder.path(), "watch runs/clicks --json");
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["under_way"], &json["examples"]), (&Value::Null, &ALL_ROWS.into()));
}

#[test]
fn a_training_shows_the_servers_that_it_asks() {
    let folder = tempfile::tempdir().unwrap();
    let ps = Web::start(folder.path(), "ps --listen 127.0.0.1:0 --no-local --threads 1 --no-token");
    let server = ps.said[0].strip_prefix("listening at ").unwrap();
    let mut web = start(folder.path(), &format!("--ps {server}"));
    let mut input = web.child.stdin.take().unwrap();
    write_rows(&mut input, ALL_ROWS);
    wait_for_examples(&web, 2 * ROWS);
    web.check("/connections", &[server, "pull", "push", "single RPC call", "p99 us"]);
    web.check("/", &["requests to servers", server, "all RPC calls of one request"]);
    let html = web.get("/", &[HTML]);
    assert!(
        section(html.text(), "servers").contains(server)
            && section(html.text(), "tables").contains("on servers")
    );
    let metrics = web.get("/metrics", &[]);
    let series = format!("sanderling_train_server_seconds_count{{server=\"{server}\"}} ");
    assert!(metrics.text().contains(&series), "{}", metrics.text());
    drop(input);
    assert!(wait(&mut web.child).success());
    let report = std::fs::read_to_string(folder.path().join("runs/clicks/report.html")).unwrap();
    assert!(
        section(&report, "servers").contains(server) && section(&report, "tables").contains("norm, mean")
    );
}

#[test]
fn runs_that_fail_or_are_killed_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut web = start(folder.path(), "");
    let mut input = web.child.stdin.take().unwrap();
    write_rows(&mut input, ALL_ROWS);
    wait_for_examples(&web, ROWS);
    input.write_all(b"this is no row\n").unwrap();
    drop(input);
    assert!(!wait(&mut web.child).success());
    let (code, text, _) = run(folder.path(), "watch runs/clicks");
    assert!(code == Some(0) && text.starts_with("clicks: failed\n"), "{text}");
    assert!(text.contains("! The run has failed: ") && text.contains("1002"), "{text}");

    // Without run.json the lines of metrics tell what they can, as those of a deep run.
    let record = folder.path().join("runs/clicks/run.json");
    let mut report: Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    std::fs::remove_file(&record).unwrap();
    let (code, text, _) = run(folder.path(), "watch runs/clicks");
    assert!(code == Some(0) && text.contains("this run has no run.json") && text.contains("AUC"), "{text}");

    // A run that was killed has written nothing for long.
    report["under_way"]["failure"] = Value::Null;
    report["under_way"]["noted_unix_s"] = 1_000_000.into();
    std::fs::write(&record, report.to_string()).unwrap();
    let (code, text, _) = run(folder.path(), "watch runs/clicks");
    assert!(code == Some(0) && text.starts_with("clicks: silent\n") && text.contains("was killed"), "{text}");
    for (content, reason) in [("{", "not the record of a run"), ("", "not the record of a run")] {
        std::fs::write(&record, content).unwrap();
        let (code, _, errors) = run(folder.path(), "watch runs/clicks");
        assert!(
            code == Some(4) && errors.contains(reason) && errors.contains("run.json"),
            "{code:?} {errors}"
        );
    }
    let (code, _, errors) = run(folder.path(), "watch runs");
    assert!(code == Some(4) && errors.contains("no run in this folder"), "{code:?} {errors}");
}

#[test]
fn a_run_that_saves_nothing_leaves_the_record_of_the_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    for (rows, last, succeeds) in [(ALL_ROWS, "", true), (ROWS, "this is no row\n", false)] {
        let mut web = start(folder.path(), "--name clicks");
        let mut input = web.child.stdin.take().unwrap();
        write_rows(&mut input, rows);
        input.write_all(last.as_bytes()).unwrap();
        drop(input);
        assert_eq!(wait(&mut web.child).success(), succeeds);
        let (_, text, _) = run(folder.path(), "watch runs/clicks");
        assert!(text.starts_with("clicks: ended\n") && text.contains("examples     1,000\n"), "{text}");
    }
}

#[test]
fn only_who_may_sees_a_training() {
    let folder = with_token_file();
    let web = start(folder.path(), "--status-token-file token");
    for (headers, status) in [
        (&[][..], 401),
        (&["authorization: Bearer wrong"], 401),
        (&["authorization: Bearer secret"], 200),
        (&["authorization: Basic OnNlY3JldA=="], 200),
        (&["authorization: Bearer secret", "origin: http://evil.example"], 403),
    ] {
        for path in ["/", "/status", "/metrics", "/flags"] {
            assert_eq!(http(&web.address, "GET", path, headers, b"").status, status, "{path} {headers:?}");
        }
    }
    drop(web);
    for (options, reason) in [
        ("--status-listen 0.0.0.0:0", "--status-listen"),
        ("--status-listen 0.0.0.0:0 --status-expose", "TLS"),
        ("--status-listen nowhere", "nowhere"),
        ("--status-expose", "--status-listen"),
    ] {
        let (code, _, errors) = run(folder.path(), &format!("train clicks.toml {options}"));
        assert!(code == Some(2) && errors.contains(reason), "{options}: {code:?} {errors}");
    }
}
