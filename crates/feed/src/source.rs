//! An input made ready to be read: files with the compiled feature spec, or hubs that have been subscribed to. Knows no
//! thread.

use std::path::Path;
use std::sync::Arc;

use sanderling_hub::{SubscribeOptions, Subscription, hub_addresses};
use sanderling_sample::batch_file::spec_of;
use sanderling_sample::{DataConfig, EncodeOptions, Encoder, Format, LabelUse, Spec, fit};

use crate::error::FeedError;

/// Where minibatches come from.
#[derive(Debug)]
pub struct Source {
    pub(crate) kind: Kind,
    /// Names of the features, in order.
    pub(crate) names: Arc<[String]>,
}

/// What kind of input it is.
#[derive(Debug)]
pub(crate) enum Kind {
    Files(Box<Files>),
    Hubs(Box<Subscription>),
}

/// Files, globs and standard input.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) inputs: Vec<String>,
    pub(crate) data: DataConfig,
    pub(crate) encoder: Arc<Encoder>,
    pub(crate) spec: Spec,
}

impl Source {
    /// Makes files, globs and standard input ready. Without features the spec is the one that libsvm, Criteo or batch files imply;
    /// quantile features that have no boundaries get them from these inputs. `train` says that labels must be there and
    /// that negatives are sampled down as the spec says.
    pub fn files(
        inputs: Vec<String>,
        data: DataConfig,
        spec: &Spec,
        train: bool,
    ) -> Result<Source, FeedError> {
        let format = || data.format.or_else(|| Format::of_path(Path::new(inputs.first()?)));
        let mut spec = spec.clone();
        if spec.feature.is_empty() {
            spec.feature = match format() {
                Some(Format::Libsvm) => Spec::libsvm().feature,
                Some(Format::Criteo) => Spec::criteo().feature,
                Some(Format::Batch) => spec_of(&inputs)?.feature,
                _ => {
                    let reason =
                        "there is none; only libsvm, Criteo and batch files imply their features".to_owned();
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
        Ok(Source { kind: Kind::Files(Box::new(Files { inputs, data, encoder, spec })), names })
    }

    /// Subscribes to the hubs of `hub://host:port,host:port`; what a minibatch holds they decide. The name is the trainer's,
    /// the same over its restarts, and no other trainer's.
    pub fn hubs(addresses: &str, name: &str, options: &SubscribeOptions) -> Result<Source, FeedError> {
        let subscription = Subscription::open(&hub_addresses(addresses)?, name, options)?;
        let names = subscription.columns().iter().map(|(name, _)| name.clone()).collect();
        Ok(Source { kind: Kind::Hubs(Box::new(subscription)), names })
    }

    /// Names of the columns.
    #[must_use]
    pub fn names(&self) -> &Arc<[String]> {
        &self.names
    }

    /// The files that are read, how, and what their rows become; hubs keep that to themselves.
    #[must_use]
    pub fn files_read(&self) -> Option<(&[String], &DataConfig, &Arc<Encoder>)> {
        match &self.kind {
            Kind::Files(files) => Some((&files.inputs, &files.data, &files.encoder)),
            Kind::Hubs(_) => None,
        }
    }

    /// The spec as it is used, fitted boundaries included; hubs keep theirs to themselves.
    #[must_use]
    pub fn spec(&self) -> Option<&Spec> {
        match &self.kind {
            Kind::Files(files) => Some(&files.spec),
            Kind::Hubs(_) => None,
        }
    }
}
