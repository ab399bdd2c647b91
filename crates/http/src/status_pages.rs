//! Status pages: what a process tells of itself, as text for curl, as HTML for a browser and as JSON for programs, on the port
//! of its metrics.
//!
//! A process gives each page as a [`Page`], a model without a form. This module adds the pages that are the same for all:
//! `/vars` (metrics with their trends), `/threads` and `/flags`. It knows no token: the port's own routes admit a request.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::http::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use sanderling_observe::Trends;

mod everywhere;
mod html;
mod json;
mod model;
mod options;
mod profile;
mod text;

pub use everywhere::Flag;
pub use html::Link;
pub use model::{Cell, Column, Page, Part, Table, period};
pub use options::{MorePage, PageOptions, Setting};
pub use profile::{Profile, Profiler};

/// Interval between two looks at the metrics.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Pages need no script, and nothing from elsewhere.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; form-action 'none'";
const PLAIN_TEXT: &str = "text/plain; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";
const JSON: &str = "application/json";
/// Longest time after which a browser may be told to load a page again.
const REFRESH_S_MAX: u32 = 3600;
/// Name of the page that is also at `/`.
const STATUS: &str = "status";

/// A request for a page.
#[derive(Debug)]
pub struct Asked<'a> {
    /// The part of the path after the page's name, such as a table's name.
    pub rest: Option<&'a str>,
    /// Recent values of the metrics.
    pub trends: &'a Trends,
    query: BTreeMap<String, String>,
}

impl Asked<'_> {
    /// Number of the first row of a list.
    #[must_use]
    pub fn from(&self) -> usize {
        self.query.get("from").and_then(|text| text.parse().ok()).unwrap_or(0)
    }

    /// A value of the query, such as that of `?by=age`.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&str> {
        self.query.get(name).map(String::as_str)
    }
}

/// The form of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// For a browser.
    Html,
    /// For a terminal.
    Text,
    /// For a program that asks for `?json`.
    Json,
}

/// A request for a page that its process renders.
#[derive(Debug)]
pub struct AskedForm<'a> {
    /// The form.
    pub form: Form,
    /// The status pages.
    pub links: &'a [Link],
    /// Seconds after which a browser is to load the page again; 0: never. `None`: nothing is said.
    pub refresh_s: Option<u32>,
}

type Make = Box<dyn Fn(&Asked<'_>) -> Option<Page> + Send + Sync>;
type MakeFront = Box<dyn Fn(&AskedForm<'_>) -> Option<String> + Send + Sync>;

/// One page, or the pages below one name.
struct Entry {
    name: &'static str,
    help: &'static str,
    /// Whether there are pages below the name, such as `/tables/NAME`.
    has_more: bool,
    make: Make,
}

/// The pages of a process. Copies share them.
#[derive(Clone)]
pub struct StatusPages(Arc<Shared>);

struct Shared {
    process: String,
    entries: Vec<Entry>,
    settings: Arc<[Setting]>,
    profiler: Option<Profiler>,
    has_root: bool,
    front: Option<MakeFront>,
    is_hidden: bool,
    trends: Arc<Mutex<Trends>>,
    _looks: Option<Looks>,
}

/// The thread that looks at the metrics. Dropping it ends it.
struct Looks {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Looks {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic has been reported already.
            let _ = thread.join();
        }
    }
}

impl std::fmt::Debug for StatusPages {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("StatusPages").field("process", &self.0.process).finish_non_exhaustive()
    }
}

/// Pages that are being collected.
pub struct StatusPagesBuilder {
    process: String,
    entries: Vec<Entry>,
    settings: Arc<[Setting]>,
    profiler: Option<Profiler>,
    has_root: bool,
    front: Option<MakeFront>,
    is_hidden: bool,
}

impl std::fmt::Debug for StatusPagesBuilder {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("StatusPagesBuilder").field("process", &self.process).finish_non_exhaustive()
    }
}

impl StatusPagesBuilder {
    /// Adds the page `/NAME`, with a sentence about it.
    #[must_use]
    pub fn page(
        mut self,
        name: &'static str,
        help: &'static str,
        make: impl Fn(&Asked<'_>) -> Page + Send + Sync + 'static,
    ) -> StatusPagesBuilder {
        let make: Make = Box::new(move |asked| Some(make(asked)));
        self.entries.push(Entry { name, help, has_more: false, make });
        self
    }

    /// Adds the page `/NAME` and pages below it. `make` returns `None` for what does not exist.
    #[must_use]
    pub fn pages(
        mut self,
        name: &'static str,
        help: &'static str,
        make: impl Fn(&Asked<'_>) -> Option<Page> + Send + Sync + 'static,
    ) -> StatusPagesBuilder {
        self.entries.push(Entry { name, help, has_more: true, make: Box::new(make) });
        self
    }

    /// Has these options set by `PUT /flags/NAME?value=VALUE`.
    #[must_use]
    pub fn settings(mut self, settings: impl IntoIterator<Item = Setting>) -> StatusPagesBuilder {
        self.settings = settings.into_iter().collect();
        self
    }

    /// Adds `/flags` and `/profile`, and hides all pages if other machines reach the port and the options do not show them
    /// there. Settings come first.
    #[must_use]
    pub fn options(mut self, options: PageOptions, is_reached: bool) -> StatusPagesBuilder {
        let PageOptions { flags, shown, profiler, more } = options;
        self.is_hidden = is_reached && !shown;
        for MorePage { name, help, make } in more {
            self = self.page(name, help, move |asked| make(asked));
        }
        let help = "Options of the process; those that were changed are marked.";
        let settings = Arc::clone(&self.settings);
        let mut builder = self.page("flags", help, move |asked| everywhere::flags(&flags, &settings, asked));
        if profiler.is_some() {
            let help = "CPU profile: functions for curl, a flame graph for a browser.";
            builder = builder.page("profile", help, |_| profile::page());
        }
        builder.profiler = profiler;
        builder
    }

    /// Shows at `/` a page that the process renders, while it has one: instead of its status.
    #[must_use]
    pub fn front(
        mut self,
        make: impl Fn(&AskedForm<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> StatusPagesBuilder {
        self.front = Some(Box::new(make));
        self
    }

    /// Leaves `/` to the process.
    #[must_use]
    pub fn without_root(mut self) -> StatusPagesBuilder {
        self.has_root = false;
        self
    }

    /// Starts a thread that notes the metrics each second. Hidden pages have none.
    ///
    /// # Errors
    /// The system has no thread left.
    pub fn start(self, exposition: impl Fn() -> String + Send + 'static) -> std::io::Result<StatusPages> {
        let vars = "Metrics and their trends over 60 s, 60 min and 24 h; /vars/PATTERN with * for any text.";
        let threads = "Threads of the process by processor time.";
        let builder = self.pages("vars", vars, |asked| Some(everywhere::vars(asked)));
        let StatusPagesBuilder { process, entries, settings, profiler, has_root, front, is_hidden } =
            builder.page("threads", threads, everywhere::threads);
        let trends = Arc::new(Mutex::new(Trends::default()));
        let looks = match is_hidden {
            true => None,
            false => Some(look(Arc::clone(&trends), exposition)?),
        };
        let shared = Shared {
            process,
            entries,
            settings,
            profiler,
            has_root,
            front,
            is_hidden,
            trends,
            _looks: looks,
        };
        Ok(StatusPages(Arc::new(shared)))
    }
}

/// Notes the metrics each second.
fn look(
    trends: Arc<Mutex<Trends>>,
    exposition: impl Fn() -> String + Send + 'static,
) -> std::io::Result<Looks> {
    let (stop, ended) = channel();
    let thread = std::thread::Builder::new().name("status".to_owned());
    let thread = thread.spawn(move || {
        let (mut last, mut pause) = (Instant::now(), Duration::ZERO);
        while matches!(ended.recv_timeout(pause), Err(RecvTimeoutError::Timeout)) {
            let (now, text) = (Instant::now(), exposition());
            lock(&trends).note(&text, now - last);
            (last, pause) = (now, LOOK_EVERY.saturating_sub(now.elapsed()));
        }
    })?;
    Ok(Looks { stop: Some(stop), thread: Some(thread) })
}

fn lock(trends: &Mutex<Trends>) -> MutexGuard<'_, Trends> {
    trends.lock().unwrap_or_else(PoisonError::into_inner)
}

impl StatusPages {
    /// Begins the pages of a process with this name, such as "sanderling ps 0/1".
    pub fn of(process: impl Into<String>) -> StatusPagesBuilder {
        StatusPagesBuilder {
            process: process.into(),
            entries: Vec::new(),
            settings: Arc::new([]),
            profiler: None,
            has_root: true,
            front: None,
            is_hidden: false,
        }
    }

    /// The answer to a request for a page, or for a profile, which takes its time. `None`: there is no such page.
    pub async fn respond(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        match self.profile(method, uri, headers).await {
            Some(profile) => Some(profile),
            None => self.answer(method, uri, headers),
        }
    }

    /// The answer to `/profile?seconds=`, after these seconds. `None`: the request is for something else.
    pub async fn profile(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        let seconds = uri.query()?.split('&').find_map(|pair| pair.strip_prefix("seconds="))?;
        if method != Method::GET || uri.path() != "/profile" || self.0.is_hidden {
            return None;
        }
        let profiler = self.0.profiler.as_ref()?;
        Some(match profiler.profile(seconds).await {
            Ok(Profile { svg, .. }) if accepts_html(headers) => respond("image/svg+xml", svg),
            Ok(Profile { text, .. }) => respond(PLAIN_TEXT, text),
            Err((status, reason)) => (status, format!("{reason}\n")).into_response(),
        })
    }

    /// Sets an option by `PUT /flags/NAME?value=VALUE`.
    fn set(&self, uri: &Uri) -> Option<Response> {
        let name = uri.path().strip_prefix("/flags/")?;
        if self.0.is_hidden {
            return None;
        }
        let setting = self.0.settings.iter().find(|setting| setting.name == name)?;
        let value = uri.query().and_then(|query| query.strip_prefix("value=")).map(decode);
        let set = value.ok_or_else(|| "give the value as ?value=VALUE".to_owned());
        Some(match set.and_then(|value| (setting.set)(&value)) {
            Ok(()) => format!("--{name} {}\n", (setting.get)()).into_response(),
            Err(reason) => (StatusCode::BAD_REQUEST, format!("--{name}: {reason}\n")).into_response(),
        })
    }

    /// The answer to a request for a page. `None`: there is no such page. It takes milliseconds and does not wait.
    #[must_use]
    pub fn answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> Option<Response> {
        if method == Method::PUT {
            return self.set(uri);
        }
        if method != Method::GET && method != Method::HEAD {
            return None;
        }
        let (name, rest) = split(uri.path());
        let is_root = name.is_empty();
        if is_root && !self.0.has_root {
            return None;
        }
        let name = if is_root { STATUS } else { name };
        let entry = self.0.entries.iter().find(|entry| entry.name == name)?;
        if rest.is_some() && !entry.has_more {
            return None;
        }
        if self.0.is_hidden {
            let reason = "status pages are hidden, because other machines reach this port; start the process with \
                          --status-pages to show them\n";
            return Some((StatusCode::NOT_FOUND, reason).into_response());
        }
        let query = uri.query().unwrap_or_default().split('&');
        let query = query.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let query: BTreeMap<String, String> =
            query.map(|(name, value)| (decode(name), decode(value))).collect();
        let form = match (query.contains_key("json"), accepts_html(headers)) {
            (true, _) => Form::Json,
            (false, true) => Form::Html,
            (false, false) => Form::Text,
        };
        let refresh_s = query.get("refresh").and_then(|text| text.parse().ok());
        let refresh_s: Option<u32> = refresh_s.filter(|seconds| *seconds <= REFRESH_S_MAX);
        let links = self.0.entries.iter().map(|entry| Link { name: entry.name, help: entry.help });
        let links: Vec<Link> = links.collect();
        if let (true, Some(front)) = (is_root, &self.0.front)
            && let Some(body) = front(&AskedForm { form, links: &links, refresh_s })
        {
            return Some(respond(kind(form), body));
        }
        let mut page = {
            let trends = lock(&self.0.trends);
            (entry.make)(&Asked { rest: rest.as_deref(), trends: &trends, query })?
        };
        if is_root {
            page.parts.push(self.list());
        }
        let body = match form {
            Form::Html => html::render(&self.0.process, &links, &page, refresh_s.unwrap_or(0)),
            Form::Text => text::render(&self.0.process, &page),
            Form::Json => json::render(&self.0.process, &page),
        };
        Some(respond(kind(form), body))
    }

    /// The list of all pages.
    fn list(&self) -> Part {
        let mut table = Table::new("Pages", [Column::text("page"), Column::text("content")]);
        for entry in &self.0.entries {
            let path = format!("/{}", entry.name);
            table.row([Cell::link(&path, &path), Cell::text(entry.help)]);
        }
        table.row([Cell::link("/metrics", "/metrics"), Cell::text("Metrics for Prometheus.")]);
        Part::Table(table)
    }
}

fn kind(form: Form) -> &'static str {
    match form {
        Form::Html => HTML,
        Form::Text => PLAIN_TEXT,
        Form::Json => JSON,
    }
}

fn accepts_html(headers: &HeaderMap) -> bool {
    let accept = headers.get(ACCEPT).and_then(|accept| accept.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/html"))
}

/// Content that a browser neither keeps nor takes for something else.
fn respond(kind: &'static str, body: impl IntoResponse) -> Response {
    let headers = [
        (CONTENT_TYPE, kind),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
        (VARY, "accept"),
    ];
    (headers, body).into_response()
}

/// The first name of a path, and what follows it, decoded.
fn split(path: &str) -> (&str, Option<String>) {
    let path = path.strip_prefix('/').unwrap_or(path);
    match path.split_once('/') {
        Some((name, rest)) if !rest.is_empty() => (name, Some(decode(rest))),
        Some((name, _)) => (name, None),
        None => (path, None),
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests;
