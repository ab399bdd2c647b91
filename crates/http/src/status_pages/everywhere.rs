//! The pages that all processes have: metrics with their trends, threads, options.

use sanderling_observe::numbers::count;

use super::model::{Cell, Column, Page, Part, Table};
use super::{Asked, Setting};

/// An option of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// Name as on the command line.
    pub name: String,
    /// Value in words.
    pub value: String,
    /// Where the value is from. `None`: it is the default.
    pub from: Option<&'static str>,
    /// Its help text.
    pub help: String,
}

/// `/vars`, or those whose name fits a pattern.
pub(super) fn vars(asked: &Asked<'_>) -> Page {
    let pattern = asked.rest.unwrap_or_default();
    let title = if pattern.is_empty() { "Metrics".to_owned() } else { format!("Metrics like {pattern}") };
    let table = Table::of_series(title, asked.trends.find(pattern), asked.from());
    let note = "Trends of counters are their growth per second. Text shows averages of the spans.";
    let mut parts = vec![Part::Table(table), Part::Note(note.to_owned())];
    let (without_trend, left_out) = asked.trends.without_trend();
    if without_trend + left_out > 0 {
        let note = format!(
            "There are too many metrics for all to have trends: {} have none, {} are only in /metrics.",
            count(without_trend as u64),
            count(left_out as u64)
        );
        parts.push(Part::Note(note));
    }
    Page::new("vars", parts)
}

/// `/threads`.
pub(super) fn threads(asked: &Asked<'_>) -> Page {
    let columns = [
        Column::text("thread"),
        Column::number("number"),
        Column::text("state"),
        Column::number("CPU s"),
        Column::number("waited s"),
    ];
    let threads = sanderling_observe::threads();
    let table = Table::new("Threads", columns).part_of(&threads, asked.from(), |thread| {
        let waited = thread.waited.map_or("-".to_owned(), |waited| format!("{:.3}", waited.as_secs_f64()));
        vec![
            Cell::text(&thread.name),
            Cell::number(thread.id),
            Cell::text(thread.state),
            Cell::Number(format!("{:.3}", thread.cpu.as_secs_f64())),
            Cell::Number(waited),
        ]
    });
    let note = "CPU: processor time since the thread's start. Waited: time for which it could run and no processor was free.";
    Page::new("threads", [Part::Table(table), Part::Note(note.to_owned())])
}

/// `/flags`.
pub(super) fn flags(flags: &[Flag], settings: &[Setting], asked: &Asked<'_>) -> Page {
    // Options that were set since the start have their present value.
    let present = |flag: &Flag| {
        let setting = settings.iter().find(|setting| flag.name.strip_prefix("--") == Some(setting.name));
        let value = setting.map(|setting| (setting.get)()).filter(|value| *value != flag.value);
        match value {
            Some(value) => Flag { value, from: Some("request"), ..flag.clone() },
            None => flag.clone(),
        }
    };
    let flags: Vec<Flag> = flags.iter().map(present).collect();
    let columns = [Column::text("option"), Column::text("value"), Column::text("from"), Column::text("help")];
    let table = Table::new("Options", columns).part_of(&flags, asked.from(), |flag| {
        let value = match flag.from {
            Some(_) => Cell::Marked(flag.value.clone()),
            None => Cell::text(&flag.value),
        };
        let from = flag.from.unwrap_or("default");
        vec![Cell::text(&flag.name), value, Cell::text(from), Cell::text(&flag.help)]
    });
    let changed = flags.iter().filter(|flag| flag.from.is_some()).count();
    let note = format!("{changed} of {} options are changed; text marks them by *.", flags.len());
    let settable: Vec<&str> = settings.iter().map(|setting| setting.name).collect();
    let settable = (!settable.is_empty()).then(|| {
        let note = "PUT /flags/NAME?value=VALUE sets one of these while the process runs";
        Part::Note(format!("{note}: {}.", settable.join(", ")))
    });
    Page::new("flags", [Part::Table(table), Part::Note(note)].into_iter().chain(settable))
}
