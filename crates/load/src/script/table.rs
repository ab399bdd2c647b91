//! A table as a script describes it: `#{ dim: 32, optimizer: "adagrad", lr: 0.05 }`. Knows no port.

use rune::runtime::{Object, Value};
use sanderling_store::{Admission, Block, Dtype, Eviction, Init, Optimizer, Packing, TableConfig, Writes};
use serde_json::{Map, Value as Json};

use super::params::{did_you_mean, number};

const OPTIONS: [&str; 11] = [
    "dim",
    "optimizer",
    "lr",
    "init",
    "dtype",
    "seed",
    "budget",
    "admission",
    "eviction",
    "writes",
    "packing",
];

/// Parses the options; the error lists the possible values.
pub(super) fn config(name: &str, options: &Object) -> Result<TableConfig, String> {
    let mut given = Map::new();
    for (option, value) in options {
        if !OPTIONS.contains(&option.as_str()) {
            let hint = did_you_mean(option, OPTIONS);
            return Err(format!("there is no option {option:?}{hint}; there are {}", OPTIONS.join(", ")));
        }
        given.insert(option.to_string(), json(value).map_err(|reason| format!("option {option}: {reason}"))?);
    }
    let dims = match given.get("dim").map(Json::as_u64) {
        Some(Some(dim)) => dim as usize,
        Some(None) => return Err("option dim must be a whole number".to_owned()),
        None => return Err("the option dim is missing".to_owned()),
    };
    let mut optimizer = tagged(given.remove("optimizer").unwrap_or_else(|| "sgd".into()));
    if let (Some(lr), Json::Object(optimizer)) = (given.remove("lr"), &mut optimizer) {
        // The rate of FTRL has another name.
        let name = if optimizer.get("type").is_some_and(|name| name == "ftrl") { "alpha" } else { "lr" };
        optimizer.insert(name.to_owned(), lr);
    }
    let optimizer: Optimizer = read("optimizer", optimizer)?;
    let init: Init = read("init", tagged(given.remove("init").unwrap_or_else(|| "zero".into())))?;
    let mut config = TableConfig::new(name, vec![Block { dims, init, optimizer }]);
    if let Some(seed) = given.remove("seed") {
        config.seed = read("seed", seed)?;
    }
    config.budget_bytes = given.remove("budget").map_or(Ok(None), |value| budget(&value))?;
    if let Some(dtype) = given.remove("dtype") {
        config.dtype = read::<Dtype>("dtype", dtype)?;
    }
    if let Some(admission) = given.remove("admission") {
        config.admission = read::<Admission>("admission", tagged(admission))?;
    }
    if let Some(eviction) = given.remove("eviction") {
        config.eviction = read::<Eviction>("eviction", tagged(eviction))?;
    }
    if let Some(writes) = given.remove("writes") {
        config.writes = read::<Writes>("writes", writes)?;
    }
    if let Some(packing) = given.remove("packing") {
        config.packing = read::<Packing>("packing", packing)?;
    }
    Ok(config)
}

fn json(value: &Value) -> Result<Json, String> {
    serde_json::to_value(value).map_err(|error| error.to_string())
}

/// `"clock"` is short for `#{ "type": "clock" }`.
fn tagged(value: Json) -> Json {
    match value {
        Json::String(name) => Json::Object(Map::from_iter([("type".to_owned(), Json::String(name))])),
        other => other,
    }
}

fn read<T: serde::de::DeserializeOwned>(option: &str, value: Json) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| format!("option {option}: {error}"))
}

/// Bytes, as a number or as `"2GiB"`; 0, `""` and `"none"` are no limit.
fn budget(value: &Json) -> Result<Option<u64>, String> {
    let bytes = match value {
        Json::Number(bytes) => bytes.as_f64(),
        Json::String(text) if text.is_empty() || text == "none" => Some(0.0),
        Json::String(text) => number(text),
        _ => None,
    };
    match bytes {
        Some(0.0) => Ok(None),
        Some(bytes) if bytes > 0.0 => Ok(Some(bytes as u64)),
        _ => Err(format!("option budget: {value} is no size; write bytes, or \"2GiB\", or 0 for no limit")),
    }
}
