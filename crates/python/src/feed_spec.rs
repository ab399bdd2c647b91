//! How an input is read and what it becomes, with the sections of a run's configuration. Conversion only.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use sanderling_formats::DataConfig;
use sanderling_sample::Spec;
use sanderling_sample::spec::{Feature, Label, Negatives, Weight};
use serde::{Deserialize, Serialize};

use crate::value::from_python;

/// How the input is read, with the sections of a run's configuration.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct FeedSpec {
    pub(crate) data: DataConfig,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<Label>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) weight: Option<Weight>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) negatives: Option<Negatives>,
    pub(crate) feature: Vec<Feature>,
}

impl FeedSpec {
    pub(crate) fn of(data: &DataConfig, spec: &Spec) -> FeedSpec {
        let Spec { label, weight, negatives, feature } = spec.clone();
        FeedSpec { data: data.clone(), label: Some(label), weight, negatives, feature }
    }
}

/// How the input is read and what it becomes, from the sections of a configuration.
pub(crate) fn source_of(spec: Option<&Bound<'_, PyDict>>) -> PyResult<(DataConfig, Spec)> {
    let FeedSpec { data, label, weight, negatives, feature } = feed_spec(spec)?;
    Ok((data, Spec { label: label.unwrap_or_default(), weight, negatives, feature }))
}

pub(crate) fn feed_spec(spec: Option<&Bound<'_, PyDict>>) -> PyResult<FeedSpec> {
    Ok(spec.map(|spec| from_python("spec", spec)).transpose()?.unwrap_or_default())
}
