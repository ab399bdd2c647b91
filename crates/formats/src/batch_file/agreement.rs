//! Whether the rows of a file were encoded as a run's spec would encode them, and which of its columns are which. It
//! knows nothing of bytes.

use std::sync::Arc;

use serde_json::{Map, Value};

use sanderling_sample::spec::{Feature, FeatureKind};
use sanderling_sample::{Encoder, LabelUse, Spec};

/// The advice at the end of each error.
const REMEDY: &str = "convert the source again with this spec, or change the spec";

/// Per feature of the encoder, the column of the file.
pub(super) fn order(file: &Spec, encoder: &Encoder) -> Result<Arc<[usize]>, String> {
    let run = encoder.spec();
    // Where labels do not matter, neither do weights.
    if encoder.label_use() == LabelUse::Required {
        if let Some(difference) = difference(&file.label, &run.label) {
            return Err(format!("the labels: {difference}; {REMEDY}"));
        }
        if file.weight != run.weight {
            return Err(format!(
                "the weights: {:?} in the file, {:?} in the spec; {REMEDY}",
                file.weight, run.weight
            ));
        }
    }
    let column = |feature: &Feature| {
        let found = file.feature.iter().position(|other| other.name == feature.name);
        let at = found.ok_or_else(|| {
            let names: Vec<&str> = file.feature.iter().take(8).map(|other| other.name.as_str()).collect();
            let more = if file.feature.len() > names.len() { ", ..." } else { "" };
            format!("has no feature {:?}, but {}{more}; {REMEDY}", feature.name, names.join(", "))
        })?;
        match difference(&encoding(&file.feature[at]), &encoding(feature)) {
            None => Ok(at),
            Some(difference) => Err(format!("feature {:?}: {difference}; {REMEDY}", feature.name)),
        }
    };
    run.feature.iter().map(column).collect()
}

/// The settings that decide about a feature's keys and values, with all defaults written out.
fn encoding(feature: &Feature) -> Feature {
    let multi = feature.kind == FeatureKind::Multi;
    Feature {
        column: None,
        columns: feature.inputs().into_iter().map(str::to_string).collect(),
        separator: multi.then(|| feature.separator.unwrap_or('|')),
        key: Some(feature.key_rule()),
        salt: Some(feature.salt().to_string()),
        dim: None,
        min_count: None,
        table: None,
        buckets: None,
        ..feature.clone()
    }
}

/// The first field in which two settings differ.
fn difference<T: serde::Serialize>(file: &T, run: &T) -> Option<String> {
    let fields = |settings: &T| match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => fields,
        // They are structures of plain settings.
        _ => Map::new(),
    };
    let (file, run) = (fields(file), fields(run));
    let field = file.keys().chain(run.keys()).find(|&field| file.get(field) != run.get(field))?;
    let shown = |fields: &Map<String, Value>| fields.get(field).map_or("nothing".to_string(), shortened);
    Some(format!("{field} is {} in the file and {} in the spec", shown(&file), shown(&run)))
}

/// Lists of boundaries are long.
fn shortened(value: &Value) -> String {
    const CHARS_MAX: usize = 80;
    let text = value.to_string();
    let cut: String = text.chars().take(CHARS_MAX).collect();
    if cut.len() < text.len() { cut + "..." } else { text }
}
