//! `sanderling similar`: the rows of a table that are nearest to one.

use std::path::PathBuf;

use sanderling_learner::{LearnError, Nearest, SavedRows, Similarity, factors_of};
use sanderling_sample::Field;
use serde::Serialize;

use crate::failure::Failure;
use crate::output;

/// Find the keys whose embeddings are nearest to that of a key
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling similar runs/movies/model movie Heat
  sanderling similar runs/movies/model movie --key 4520947382 --by dot --top 20 --json

Every row is compared, so the result is exact. Names are shown for features of [names] in the configuration. For many \
queries or millions of rows, export the table and build an index: index = faiss.IndexFlatIP(dim); index.add(weights).")]
pub(crate) struct Args {
    /// Model directory, such as runs/movies/model, also of a deep model (with --key)
    model: PathBuf,
    /// Feature or table
    feature: String,
    /// Value of the feature, as in the training data
    #[arg(required_unless_present = "key", conflicts_with = "key")]
    value: Option<String>,
    /// Key of the row, instead of a value
    #[arg(long, value_name = "KEY")]
    key: Option<u64>,
    /// Number of neighbours, 1 to 100000
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    top: u64,
    /// Similarity: cosine or dot
    #[arg(long, default_value = "cosine", value_name = "MEASURE")]
    by: Similarity,
    /// Print the result as a JSON object on the last line of standard output
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Similar {
    table: String,
    key: u64,
    name: Option<String>,
    neighbours: Vec<Near>,
}

#[derive(Serialize)]
struct Near {
    key: u64,
    name: Option<String>,
    score: f32,
    frequency: u32,
}

pub(crate) fn run(args: &Args) -> Result<u8, Failure> {
    let saved = SavedRows::open(&args.model)?;
    let table = saved.table(Some(&args.feature))?;
    let wrong = |reason: String| LearnError::Model { path: args.model.clone(), reason };
    let key = match (args.key, &args.value) {
        (Some(key), _) => key,
        (None, value) => {
            saved.key(&args.feature, Field::Text(value.as_deref().unwrap_or_default().as_bytes()))?
        }
    };
    let shown = args.value.clone().unwrap_or_else(|| key.to_string());
    let factors = factors_of(&table.config.blocks);
    if table.dim == 1 {
        let reason =
            format!("table {:?} has one weight per key, no embedding: train a model of type fm", table.name);
        return Err(wrong(reason).into());
    }
    let mut like = None;
    saved.for_each_row(&table.name, |row| {
        if row.key == key {
            like = Some(row.weights[factors.clone()].to_vec());
        }
        Ok(())
    })?;
    let like =
        like.ok_or_else(|| wrong(format!("table {:?} has no row of {shown:?} (key {key})", table.name)))?;
    let nearest = Nearest::new(&like, Some(key), args.by, args.top as usize);
    let mut nearest = nearest.map_err(|reason| wrong(format!("{shown:?}: {reason}")))?;
    saved.for_each_row(&table.name, |row| {
        nearest.add(row.key, row.frequency, &row.weights[factors.clone()]);
        Ok(())
    })?;
    let names = saved.names(&table.name)?;
    let name = |key| names.get(key).map(str::to_owned);
    let near = nearest.finish().into_iter().map(|near| Near {
        key: near.key,
        name: name(near.key),
        score: near.score,
        frequency: near.frequency,
    });
    let similar = Similar { table: table.name.clone(), key, name: name(key), neighbours: near.collect() };
    if args.json {
        output::json(&similar)?;
        return Ok(0);
    }
    let rows: Vec<Vec<String>> = similar
        .neighbours
        .iter()
        .map(|near| {
            let name = near.name.clone().unwrap_or_else(|| near.key.to_string());
            vec![name, format!("{:.4}", near.score), output::count(u64::from(near.frequency))]
        })
        .collect();
    let measure = match args.by {
        Similarity::Cosine => "cosine",
        Similarity::Dot => "dot product",
    };
    output::text(&output::columns(&[&args.feature, measure, "seen"], &rows, &[0]))?;
    Ok(0)
}
