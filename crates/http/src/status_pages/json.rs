//! A status page as JSON for programs: the same cells as text, numbers as numbers where they are, and all points of trends.

use serde_json::{Map, Value, json};

use super::model::{Cell, Page, Part, Table};

/// The page as one object.
pub(super) fn render(process: &str, page: &Page) -> String {
    let parts: Vec<Value> = page.parts.iter().map(part).collect();
    let mut text = json!({ "process": process, "page": page.title, "parts": parts }).to_string();
    text.push('\n');
    text
}

fn part(part: &Part) -> Value {
    match part {
        Part::Facts(facts) => {
            let facts: Map<String, Value> = facts.iter().map(|(name, of)| (name.clone(), cell(of))).collect();
            json!({ "facts": facts })
        }
        Part::Table(shown) => table(shown),
        Part::Note(note) => json!({ "note": note }),
        Part::Warning(warning) => json!({ "warning": warning }),
        Part::Text(text) => json!({ "text": text }),
    }
}

fn table(table: &Table) -> Value {
    let row = |cells: &Vec<Cell>| -> Map<String, Value> {
        let columns = table.columns.iter().map(|column| column.title.to_owned());
        columns.zip(cells.iter().map(cell)).collect()
    };
    let rows: Vec<Map<String, Value>> = table.rows.iter().map(row).collect();
    let next = table.neighbours().1;
    json!({ "table": table.title, "total": table.total, "from": table.from, "next": next, "rows": rows })
}

fn cell(cell: &Cell) -> Value {
    match cell {
        Cell::Text(text) | Cell::Marked(text) | Cell::Link(text, _) => json!(text),
        Cell::Number(text) => match (text.parse::<u64>(), text.parse::<f64>()) {
            (Ok(whole), _) => json!(whole),
            (_, Ok(number)) if number.is_finite() => json!(number),
            _ => json!(text),
        },
        Cell::Trend(points) => json!(points),
    }
}
