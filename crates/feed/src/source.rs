//! An input made ready to be read: files, how they are read, and the compiled feature spec. Knows no thread.

use std::path::Path;
use std::sync::Arc;

use sanderling_sample::{DataConfig, EncodeOptions, Encoder, Format, LabelUse, Spec, fit};

use crate::error::FeedError;

/// Where minibatches come from: files, globs and standard input.
#[derive(Debug, Clone)]
pub struct Source {
    pub(crate) inputs: Vec<String>,
    pub(crate) data: DataConfig,
    pub(crate) encoder: Arc<Encoder>,
    /// Names of the encoder's features, in order.
    pub(crate) names: Arc<[String]>,
    spec: Spec,
}

impl Source {
    /// Makes ready what is to be read. Without features the spec is the one that libsvm or Criteo files imply; quantile
    /// features that have no boundaries get them from these inputs. `train` says that labels must be there and that
    /// negatives are sampled down as the spec says.
    pub fn new(inputs: Vec<String>, data: DataConfig, spec: &Spec, train: bool) -> Result<Source, FeedError> {
        let format = || data.format.or_else(|| Format::of_path(Path::new(inputs.first()?)));
        let mut spec = spec.clone();
        if spec.feature.is_empty() {
            spec.feature = match format() {
                Some(Format::Libsvm) => Spec::libsvm().feature,
                Some(Format::Criteo) => Spec::criteo().feature,
                _ => {
                    let reason =
                        "there is none; only libsvm and Criteo files imply their features".to_owned();
                    return Err(FeedError::Option { option: "feature", reason });
                }
            };
        }
        let mut spec = spec.expand()?;
        if spec.unfitted().next().is_some() {
            spec = fit::fit(&spec, &inputs, &data)?;
        }
        let mut compiled = spec.clone();
        let label = if train { LabelUse::Required } else { LabelUse::Optional };
        if !train {
            compiled.weight = None;
        }
        let options = EncodeOptions { missing: &data.missing, label, down_sample: train };
        let encoder = Arc::new(Encoder::new(&compiled, &options)?);
        let names = spec.feature.iter().map(|feature| feature.name.clone()).collect();
        Ok(Source { inputs, data, encoder, names, spec })
    }

    /// The spec as it is used, fitted boundaries included.
    #[must_use]
    pub fn spec(&self) -> &Spec {
        &self.spec
    }
}
