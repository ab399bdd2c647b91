//! A model for a person: its tables, their optimizers and sizes, the largest norms and the most frequent keys.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use sanderling_learner::{DeepModel, SavedRows, TableCounters, is_deep, table_summary};
use sanderling_store::{Admission, Dtype, Eviction, Table, TableConfig};
use serde::Serialize;

use super::Args;
use crate::failure::Failure;
use crate::output;
use crate::width;

#[derive(Serialize)]
struct ModelView {
    model: String,
    path: std::path::PathBuf,
    rows: u64,
    table_bytes: u64,
    /// Of a deep model.
    #[serde(flatten)]
    deep: Option<DeepView>,
    tables: Vec<TableView>,
}

/// The parts that only a deep model has.
#[derive(Serialize)]
struct DeepView {
    dense_weights: Option<u64>,
    dense_bytes: u64,
    server_tables: Vec<String>,
}

#[derive(Serialize)]
struct TableView {
    name: String,
    rows: u64,
    dim: usize,
    bytes: u64,
    /// One per block of the row: its coordinates and their optimizer.
    optimizers: Vec<OptimizerView>,
    /// Memory limit; null without one.
    budget_bytes: Option<u64>,
    dtype: Dtype,
    admission: Admission,
    eviction: Eviction,
    /// Fates of keys over the run; null for models on servers and of earlier versions.
    counters: Option<TableCounters>,
    norm_mean: f64,
    norm_max: f64,
    zero_rows: u64,
    zero_weights: u64,
    largest_norms: Vec<KeyView>,
    most_frequent: Vec<KeyView>,
}

#[derive(Serialize)]
struct OptimizerView {
    dims: usize,
    optimizer: sanderling_store::Optimizer,
}

#[derive(Serialize)]
struct KeyView {
    key: u64,
    /// The value that the key stands for, if the model has its name.
    name: Option<String>,
    frequency: u64,
    norm: f64,
}

pub(super) fn show(args: &Args) -> Result<u8, Failure> {
    let saved = SavedRows::open(&args.path)?;
    let mut view = if is_deep(&args.path) { deep(args, &saved)? } else { built_in(args, &saved)? };
    for table in &mut view.tables {
        let names = saved.names(&table.name)?;
        for key in table.largest_norms.iter_mut().chain(&mut table.most_frequent) {
            key.name = names.get(key.key).map(str::to_owned);
        }
    }
    if args.json {
        output::json(&view)?;
    } else {
        output::prose(&describe(&view, width::of_stdout()))?;
    }
    Ok(0)
}

fn built_in(args: &Args, saved: &SavedRows) -> Result<ModelView, Failure> {
    let (model, counters) = (saved.model()?, saved.counters()?);
    let tables = model.client().tables().iter();
    let tables = tables.map(|table| view(table, args.top as usize, counters.get(table.name())));
    Ok(ModelView {
        model: model.config().describe(),
        path: args.path.clone(),
        rows: model.rows(),
        table_bytes: model.table_bytes(),
        deep: None,
        tables: tables.collect(),
    })
}

fn deep(args: &Args, saved: &SavedRows) -> Result<ModelView, Failure> {
    let DeepModel { description, dense_weights, dense_bytes, tables, server_tables } =
        DeepModel::open(&args.path, saved)?;
    Ok(ModelView {
        model: description,
        path: args.path.clone(),
        rows: tables.iter().map(|table| table.len() as u64).sum(),
        table_bytes: tables.iter().map(|table| table.bytes()).sum(),
        deep: Some(DeepView { dense_weights, dense_bytes, server_tables }),
        tables: tables.iter().map(|table| view(table, args.top as usize, None)).collect(),
    })
}

fn view(table: &Table, top: usize, counters: Option<&TableCounters>) -> TableView {
    let summary = table_summary(table, top);
    let &TableConfig { budget_bytes, dtype, admission, eviction, .. } = table.config();
    let blocks = table.config().blocks.iter();
    TableView {
        name: summary.name.clone(),
        rows: summary.rows,
        dim: summary.dim,
        bytes: summary.bytes,
        optimizers: blocks.map(|b| OptimizerView { dims: b.dims, optimizer: b.optimizer }).collect(),
        budget_bytes,
        dtype,
        admission,
        eviction,
        counters: counters.copied(),
        norm_mean: summary.norm_mean,
        norm_max: summary.norm_max,
        zero_rows: summary.zero_rows,
        zero_weights: summary.zero_weights,
        largest_norms: summary
            .top
            .iter()
            .map(|key| KeyView { key: key.key, name: None, frequency: key.frequency, norm: key.norm })
            .collect(),
        most_frequent: most_frequent(table, top),
    }
}

/// The keys seen most often in training; smaller keys first among equals.
fn most_frequent(table: &Table, top: usize) -> Vec<KeyView> {
    let mut heap: BinaryHeap<Reverse<(u32, Reverse<u64>)>> = BinaryHeap::with_capacity(top + 1);
    table.for_each_row(|row| {
        heap.push(Reverse((row.frequency, Reverse(row.key))));
        if heap.len() > top {
            heap.pop();
        }
    });
    let sorted = heap.into_sorted_vec();
    let keys = sorted.into_iter().map(|Reverse((frequency, Reverse(key)))| KeyView {
        key,
        name: None,
        frequency: u64::from(frequency),
        norm: table
            .get(key)
            .map_or(0.0, |row| row.weights.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt()),
    });
    keys.collect()
}

fn describe(view: &ModelView, width: Option<usize>) -> String {
    let header =
        ["table", "rows", "dim", "bytes", "mean norm", "largest norm", "zero rows", "zeros", "optimizer"];
    let rows: Vec<Vec<String>> = view
        .tables
        .iter()
        .map(|table| {
            let optimizers =
                table.optimizers.iter().map(|part| format!("{} x {}", part.dims, rule(&part.optimizer)));
            vec![
                table.name.clone(),
                output::count(table.rows),
                table.dim.to_string(),
                output::bytes(table.bytes),
                format!("{:.4}", table.norm_mean),
                format!("{:.4}", table.norm_max),
                output::count(table.zero_rows),
                output::count(table.zero_weights),
                optimizers.collect::<Vec<_>>().join(", "),
            ]
        })
        .collect();
    let mut facts = vec![
        ("model", view.model.clone()),
        ("path", view.path.display().to_string()),
        ("rows", output::count(view.rows)),
        ("memory", output::bytes(view.table_bytes)),
    ];
    if let Some(deep) = &view.deep {
        let weights =
            deep.dense_weights.map_or(String::new(), |count| format!("{} weights, ", output::count(count)));
        facts.push((
            "dense part",
            format!("{weights}{} with optimizer state", output::bytes(deep.dense_bytes)),
        ));
        if !deep.server_tables.is_empty() {
            facts.push(("on servers", deep.server_tables.join(", ")));
        }
    }
    let mut text = output::pairs(&facts);
    text += &format!("\n\n{}", output::columns_within(&header, &rows, &[0, header.len() - 1], width));
    let keys = |keys: &[KeyView]| {
        let keys = keys.iter().map(|key| {
            let name = key.name.clone().unwrap_or_else(|| key.key.to_string());
            format!("{name} (norm {:.4}, seen {})", key.norm, output::count(key.frequency))
        });
        keys.collect::<Vec<_>>().join(", ")
    };
    for table in view.tables.iter().filter(|table| table.rows > 0) {
        text += &format!("\n\n{}\n", table.name);
        text += &format!("  largest norms  {}\n", keys(&table.largest_norms));
        text += &format!("  most frequent  {}", keys(&table.most_frequent));
        let policies = policies(table);
        if !policies.is_empty() {
            text += &format!("\n  options        {policies}");
        }
    }
    text
}

/// Options of a table that are not the default, each with its counts.
fn policies(table: &TableView) -> String {
    let counters = table.counters.unwrap_or_default();
    let mut parts = Vec::new();
    if table.dtype != Dtype::default() {
        parts.push(format!("dtype {}", rule(&table.dtype)));
    }
    if let Some(bytes) = table.budget_bytes {
        parts.push(format!(
            "budget {}, {} rejected when full",
            output::bytes(bytes),
            output::count(counters.rejected_full)
        ));
    }
    if table.admission != Admission::default() {
        let (admitted, rejected) = (output::count(counters.admitted), output::count(counters.rejected));
        parts.push(format!("admission {}: {admitted} admitted, {rejected} rejected", rule(&table.admission)));
    }
    if table.eviction != Eviction::default() {
        parts.push(format!(
            "eviction {}: {} evicted",
            rule(&table.eviction),
            output::count(counters.evicted)
        ));
    }
    parts.join("; ")
}

/// An optimizer, or another rule of a table, as `name(setting = value, ...)`.
fn rule(rule: &(impl Serialize + std::fmt::Debug)) -> String {
    let mut fields = match serde_json::to_value(rule) {
        Ok(serde_json::Value::Object(fields)) => fields,
        Ok(serde_json::Value::String(name)) => return name,
        _ => return format!("{rule:?}"),
    };
    let name = fields.remove("type").and_then(|name| name.as_str().map(str::to_string)).unwrap_or_default();
    let numbers =
        fields.iter().filter_map(|(field, value)| Some(format!("{field} {}", value.as_f64()? as f32)));
    let settings = numbers.collect::<Vec<_>>().join(", ");
    if settings.is_empty() { name } else { format!("{name}({settings})") }
}
