//! Tests of status pages: the same model as text and as HTML, names with markup in them, sizes, which paths there are.

use sanderling_observe::Exposition;

use super::*;

/// Bytes that no page exceeds.
const PAGE_BYTES_MAX: usize = 200 << 10;
const EVIL: &str = "<script>alert('1')</script>&\"\u{1b}[31m\n";

fn check(page: &Page, text: &[&str], html: &[&str]) {
    let (as_text, as_html) = (text::render("ps", page), html::render("ps", &[], page, 0));
    text.iter().for_each(|line| assert!(as_text.lines().any(|found| found == *line), "{line:?}:\n{as_text}"));
    html.iter().for_each(|piece| assert!(as_html.contains(piece), "{piece:?}:\n{as_html}"));
    let shown = as_html.replace("</style>", "").replace("<style>", "");
    for bad in ["<script", "http://", "https://", "javascript:", "\u{1b}", "src="] {
        assert!(!shown.contains(bad), "{bad}: {shown}");
    }
    let is_plain = |letter: char| letter == '\n' || !letter.is_control();
    assert!(as_text.chars().all(is_plain), "{as_text:?}");
    assert!(as_text.len().max(as_html.len()) <= PAGE_BYTES_MAX, "{} {}", as_text.len(), as_html.len());
}

#[test]
fn a_model_is_text_and_html() {
    let facts = [("name".to_owned(), Cell::text("a<b")), (EVIL.to_owned(), Cell::link(EVIL, "/tables/x"))];
    let mut table = Table::new("Tables", [Column::text("table"), Column::number("rows")]);
    table.row([Cell::below("tables", EVIL), Cell::number(12)]);
    table.row([Cell::Marked("b".to_owned()), Cell::Trend(vec![1.0, 2.0, 2.0, 2.0, 1.0])]);
    table.row([Cell::text("x".repeat(1 << 20)), Cell::Trend(Vec::new())]);
    let parts = [
        Part::Facts(facts.to_vec()),
        Part::Table(table),
        Part::Note(EVIL.to_owned()),
        Part::Warning("w".to_owned()),
        Part::Text("one\ntwo\u{7}".to_owned()),
    ];
    let page = Page::new("p", parts);
    let json: serde_json::Value = serde_json::from_str(&json::render("ps", &page)).expect("JSON");
    assert_eq!(json["parts"][0]["facts"]["name"], "a<b");
    let row = serde_json::json!({ "table": "b", "rows": [1.0, 2.0, 2.0, 2.0, 1.0] });
    assert_eq!((&json["parts"][1]["rows"][1], &json["parts"][1]["rows"][0]["rows"]), (&row, &12.into()));
    check(
        &page,
        &["ps: p", "Tables", "! w", "one", "two\u{fffd}"],
        &[
            "a&lt;b",
            "&lt;script&gt;alert('1')&lt;/script&gt;&amp;&quot;",
            "href=\"/tables/%3Cscript%3Ealert%28%271%27%29%3C%2Fscript%3E%26%22%1B%5B31m%0A\"",
            "<td class=\"marked\"><strong>b</strong></td>",
            "d=\"M0 16 1 0 3 0 4 16\"",
            "average 1.6, 1 to 2",
            "<title>p · ps</title>",
        ],
    );
}

#[test]
fn a_long_list_has_pages() {
    let list = |from| {
        let table = Table::new("t", [Column::number("n")]);
        let table = table.part_of(0..450, from, |at: i32| vec![Cell::number(at)]);
        Page::new("p", [Part::Table(table)])
    };
    let last = usize::MAX;
    for (from, text, html) in [
        (0, &["t (1 to 200 of 450)", "  0", "199", "next: ?from=200"][..], &["?from=200\">next"][..]),
        (200, &["t (201 to 400 of 450)", "200", "next: ?from=400"], &["?from=0\">previous", "?from=400"]),
        (400, &["t (401 to 450 of 450)", "449"], &["?from=200\">previous"]),
        (last, &["t (none of 450)"], &["?from=250\">previous", "None."]),
    ] {
        check(&list(from), text, html);
    }
}

#[test]
fn numbers_have_the_digits_that_a_person_reads() {
    for (number, expected) in [
        (0.0, "0"),
        (12.0, "12"),
        (1234.5, "1234"),
        (12.345, "12.35"),
        (0.012345, "0.0123"),
        (-0.5, "-0.5"),
        (1e-30, "0"),
        (1e18, "1000000000000000000"),
    ] {
        assert_eq!(text::brief(number), expected, "{number}");
    }
}

fn pages(is_hidden: bool) -> StatusPages {
    let flag = |name: &str, from| Flag {
        name: name.to_owned(),
        value: EVIL.to_owned(),
        from,
        help: "A help.".to_owned(),
    };
    let flags = vec![flag("--a", None), flag("--b", Some("command line"))];
    let value = Arc::new(Mutex::new(EVIL.to_owned()));
    let of_get = Arc::clone(&value);
    let setting = Setting::new(
        "b",
        move || of_get.lock().expect("no panic").clone(),
        move |text| match text {
            "bad" => Err("not good".to_owned()),
            text => {
                text.clone_into(&mut value.lock().expect("no panic"));
                Ok(())
            }
        },
    );
    let profiler = Profiler::new(|time| match time.as_secs() {
        60 => panic!("as a test"),
        seconds => Ok(Profile { text: format!("{seconds} s"), svg: b"<svg/>".to_vec() }),
    });
    let more = vec![MorePage::new("more", "More.", |asked| Page::new(format!("from {}", asked.from()), []))];
    let options = PageOptions { flags, shown: !is_hidden, profiler: Some(profiler), more };
    let exposition = || {
        let mut text = Exposition::default();
        text.family("table_rows", "gauge", "Rows.");
        (0..11_000).for_each(|at| text.sample("table_rows", &[("table", &format!("t<{at}>"))], at));
        text.finish()
    };
    StatusPages::of("test")
        .page(STATUS, "State.", |_| Page::new("state", [Part::Note("well".to_owned())]))
        .pages("tables", "Tables.", |asked| match asked.rest {
            None => Some(Page::new("tables", [])),
            Some("a/b c") => Some(Page::new("table", [])),
            Some(_) => None,
        })
        .settings([setting])
        .options(options, true)
        .start(exposition)
        .expect("a thread")
}

fn ask(pages: &StatusPages, path: &str, accept: &'static str) -> Option<(StatusCode, String)> {
    send(pages, &Method::GET, path, accept)
}

fn send(
    pages: &StatusPages,
    method: &Method,
    path: &str,
    accept: &'static str,
) -> Option<(StatusCode, String)> {
    let headers = HeaderMap::from_iter([(ACCEPT, accept.parse().expect("a header"))]);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let response = pages.respond(method, &path.parse().expect(path), &headers).await?;
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), PAGE_BYTES_MAX).await.expect("not too long");
        Some((status, String::from_utf8(body.to_vec()).expect("text")))
    })
}

#[test]
fn paths_have_their_pages() {
    let pages = pages(false);
    let deadline = Instant::now() + Duration::from_secs(60);
    while lock(&pages.0.trends).find("").next().is_none() {
        assert!(Instant::now() < deadline, "no metric was noted");
        std::thread::sleep(Duration::from_millis(1));
    }
    for (path, expected) in [
        ("/", &["test: state", "/vars", "/threads", "/flags", "/metrics"][..]),
        ("/status", &["well"]),
        ("/status/", &["well"]),
        ("/tables/a%2Fb%20c", &["test: table"]),
        ("/more?from=7", &["test: from 7"]),
        ("/vars", &["table_rows{table=\"t<0>\"}", "Metrics (1 to 100 of 11,000)", "6904 have none"]),
        ("/vars/t*10999*", &["table_rows{table=\"t<10999>\"}"]),
        ("/vars?from=10999", &["11,000 to 11,000"]),
        ("/threads", &["sleeping"]),
        ("/flags", &["--b", "command line", "1 of 2 options are changed"]),
    ] {
        let (status, text) = ask(&pages, path, "*/*").expect(path);
        assert_eq!(status, StatusCode::OK);
        let text = text.replace(',', "");
        expected
            .iter()
            .for_each(|part| assert!(text.contains(&part.replace(',', "")), "{path} {part}: {text}"));
        let (_, html) = ask(&pages, path, "text/html,*/*;q=0.8").expect(path);
        assert!(html.starts_with("<!DOCTYPE html>") && html.ends_with("</html>"), "{path}: {html}");
        assert!(!html.contains("<script") && !html.contains("t<1"), "{path}: {html}");
    }
    for path in ["/statu", "/status/x", "/tables/no", "/threads/1", "/metrics"] {
        assert_eq!(ask(&pages, path, "*/*"), None, "{path}");
    }
    assert!(pages.answer(&Method::POST, &Uri::from_static("/status"), &HeaderMap::new()).is_none());
}

#[test]
fn pages_are_json_and_are_loaded_again_when_asked() {
    let pages = pages(false);
    let (_, json) = ask(&pages, "/flags?json", "text/html").expect("a page");
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["process"], &json["page"]), (&"test".into(), &"flags".into()));
    assert_eq!(
        (&json["parts"][0]["rows"][1]["value"], &json["parts"][0]["total"]),
        (&EVIL.into(), &2.into())
    );
    for (path, expected, other) in [
        ("/status", "?refresh=5\"", "http-equiv"),
        ("/status?refresh=7", "<meta http-equiv=\"refresh\" content=\"7\">", "?refresh=5"),
        ("/status?refresh=0", "?refresh=5\"", "http-equiv"),
        ("/status?refresh=3601", "?refresh=5\"", "http-equiv"),
        ("/status?refresh=<b>", "?refresh=5\"", "<b>"),
    ] {
        let path = path.replace('<', "%3C").replace('>', "%3E");
        let (_, html) = ask(&pages, &path, "text/html").expect("a page");
        assert!(html.contains(expected) && !html.contains(other), "{path}: {html}");
    }
}

#[test]
fn a_process_may_render_its_front_page() {
    let front = |asked: &AskedForm<'_>| match (asked.form, asked.refresh_s) {
        (Form::Text, _) => None,
        (form, refresh_s) => Some(format!("{form:?} {refresh_s:?} {}", asked.links[0].name)),
    };
    let pages = StatusPages::of("test").page(STATUS, "State.", |_| Page::new("state", [])).front(front);
    let pages = pages.start(String::new).expect("a thread");
    for (path, accept, expected) in [
        ("/", "text/html", "Html None status"),
        ("/?refresh=3", "text/html", "Html Some(3) status"),
        ("/?json", "*/*", "Json None status"),
        ("/", "*/*", "test: state"),
        ("/status", "text/html", "<h1>state</h1>"),
    ] {
        let (_, body) = ask(&pages, path, accept).expect(path);
        assert!(body.contains(expected), "{path}: {body}");
    }
}

#[test]
fn hidden_pages_are_not_found_and_take_no_thread() {
    let pages = pages(true);
    let (status, reason) = ask(&pages, "/status", "*/*").expect("an answer");
    assert!(status == StatusCode::NOT_FOUND && reason.contains("--status-pages"), "{reason}");
    assert!(pages.0._looks.is_none());
    assert_eq!(ask(&pages, "/other", "*/*"), None);
    assert_eq!(send(&pages, &Method::PUT, "/flags/b?value=1", "*/*"), None);
    assert_eq!(
        ask(&pages, "/profile?seconds=1", "*/*").map(|(status, _)| status),
        Some(StatusCode::NOT_FOUND)
    );
}

#[test]
fn options_are_set_by_put() {
    let pages = pages(false);
    for (path, expected) in [
        ("/flags/b?value=bad", Some((400, "--b: not good\n"))),
        ("/flags/b", Some((400, "--b: give the value as ?value=VALUE\n"))),
        ("/flags/b?value=1%200", Some((200, "--b 1 0\n"))),
        ("/flags/a?value=1", None),
        ("/flags?value=1", None),
        ("/status", None),
    ] {
        let found = send(&pages, &Method::PUT, path, "*/*");
        let found = found.as_ref().map(|(status, text)| (status.as_u16(), &**text));
        assert_eq!(found, expected, "{path}");
    }
    let (_, text) = ask(&pages, "/flags", "*/*").expect("a page");
    let has_line = text.lines().any(|line| line.starts_with("--b     1 0 *") && line.contains("request"));
    assert!(has_line && text.contains("VALUE sets one of these while the process runs: b."), "{text}");
}

#[test]
fn a_profile_is_text_or_a_drawing() {
    let pages = pages(false);
    for (path, accept, status, expected) in [
        ("/profile", "*/*", 200, "/profile?seconds=5"),
        ("/profile?seconds=2", "*/*", 200, "2 s"),
        ("/profile?seconds=2", "text/html", 200, "<svg/>"),
        ("/profile?seconds=60", "*/*", 500, "a bug"),
        ("/profile?seconds=0", "*/*", 400, "1 to 60"),
        ("/profile?seconds=61", "*/*", 400, "1 to 60"),
        ("/profile?seconds=x", "*/*", 400, "1 to 60"),
    ] {
        let (found, text) = ask(&pages, path, accept).expect(path);
        assert!(found.as_u16() == status && text.contains(expected), "{path}: {found} {text}");
    }
}

#[test]
fn a_full_page_of_trends_is_small() {
    let mut trends = Trends::default();
    let mut random = 1_u32;
    for _ in 0..60 * 60 * 24 {
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        trends.note(&format!("name {}\n", f64::from(random) / 7.0), LOOK_EVERY);
    }
    let (_, series) = trends.find("").next().expect("noted");
    assert_eq!(series.points(sanderling_observe::Span::Day).map(|points| points.len()), Some(24));
    let list = (0..500).map(|_| ("n".repeat(160), series));
    check(&Page::new("vars", [Part::Table(Table::of_series("t", list, 0))]), &[], &["1 to 100 of 500"]);
}

#[test]
fn times_as_people_say_them() {
    for (s, expected) in [(0.25, "0.2 s"), (61.0, "1 min 1 s"), (7325.0, "2 h 2 min"), (90_000.0, "1 d 1 h")]
    {
        assert_eq!(period(Duration::from_secs_f64(s)), expected);
    }
}
