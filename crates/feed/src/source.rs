//! An opened input: files with the compiled feature spec, or subscribed hubs. Knows no thread.

use std::sync::Arc;

use sanderling_client::Stop;
use sanderling_formats::batch_file::completed;
use sanderling_formats::{DataConfig, Format, fit, input};
use sanderling_hub::{
    Description, FedFeature, HubError, Served, SubscribeOptions, Subscription, hub_addresses,
};
use sanderling_sample::{EncodeOptions, Encoder, LabelUse, Spec};

use crate::error::FeedError;
use crate::expected::Expected;

/// Where minibatches come from.
#[derive(Debug)]
pub struct Source {
    pub(crate) kind: Kind,
    /// Names of the features, in order.
    pub(crate) names: Arc<[String]>,
}

/// The kind of input.
#[derive(Debug)]
pub(crate) enum Kind {
    Files(Box<Files>),
    Hubs(Box<Hubs>),
}

/// Hubs that have been subscribed to.
#[derive(Debug)]
pub(crate) struct Hubs {
    pub(crate) subscription: Subscription,
    pub(crate) served: Vec<Served>,
    /// The feature spec of the rows, if the hubs give one.
    pub(crate) description: Option<Description>,
}

/// Files, globs and standard input.
#[derive(Debug)]
pub(crate) struct Files {
    pub(crate) inputs: Vec<String>,
    pub(crate) data: DataConfig,
    pub(crate) encoder: Arc<Encoder>,
    pub(crate) spec: Spec,
    /// Whether a bad row that may be left out keeps its place.
    pub(crate) keeps_places: bool,
}

impl Source {
    /// Makes files, globs and standard input ready. Without features the spec is the one that libsvm, Criteo or batch files imply;
    /// quantile features that have no boundaries get them from these inputs. `train` says that labels must be there,
    /// that negatives are sampled down as the spec says, and that bad rows may be left out; otherwise a minibatch has a
    /// row for each of the input, and one that may be bad has no keys, and NaN as label and weight.
    pub fn files(
        inputs: Vec<String>,
        data: DataConfig,
        spec: &Spec,
        train: bool,
    ) -> Result<Source, FeedError> {
        let format = || data.format_of(inputs.first()?);
        let mut spec = spec.clone();
        if spec.feature.is_empty() {
            match format() {
                Some(Format::Libsvm | Format::Libffm) => spec.feature = Spec::libsvm().feature,
                Some(Format::Criteo) => spec.feature = Spec::criteo().feature,
                Some(Format::Batch) => spec = completed(&spec, &inputs)?,
                _ => {
                    let reason =
                        "there is none; only libsvm, libffm, Criteo and batch files imply their features"
                            .to_owned();
                    return Err(FeedError::Option { option: "feature", reason });
                }
            }
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
        Ok(Source {
            kind: Kind::Files(Box::new(Files { inputs, data, encoder, spec, keeps_places: !train })),
            names,
        })
    }

    /// Subscribes to the hubs of `hub://host:port,host:port`, which decide the size of minibatches. The name
    /// identifies the trainer: it stays over restarts and is used by no other trainer.
    pub fn hubs(addresses: &str, name: &str, options: &SubscribeOptions) -> Result<Source, FeedError> {
        Source::hubs_or_stop(addresses, name, options, None)
    }

    /// [`Source::hubs`] with a stop check for waits.
    ///
    /// # Errors
    /// [`FeedError::Stopped`] then.
    pub fn hubs_or_stop(
        addresses: &str,
        name: &str,
        options: &SubscribeOptions,
        stop: Option<&Stop>,
    ) -> Result<Source, FeedError> {
        // Whether a queue has tables for them, is seen when it is opened.
        let options = SubscribeOptions { takes_fed: true, ..options.clone() };
        let go_on = || !stop.is_some_and(Stop::is_at_once);
        let subscription = Subscription::open_while(&hub_addresses(addresses)?, name, &options, &go_on);
        let subscription = subscription.map_err(|error| match error {
            HubError::Stopped => FeedError::Stopped("hubs were waited for"),
            error => error.into(),
        })?;
        let names = subscription.columns().iter().map(|(name, _)| name.clone()).collect();
        let (served, description) = (subscription.served(), subscription.description()?);
        Ok(Source { kind: Kind::Hubs(Box::new(Hubs { subscription, served, description })), names })
    }

    /// Checks that the hubs' rows fit a configuration; files are read as it says anyway. The spec then has the
    /// configuration's tables.
    pub fn expecting(mut self, expected: &Expected) -> Result<Source, FeedError> {
        let Kind::Hubs(hubs) = &mut self.kind else { return Ok(self) };
        let hub = hubs.served.iter().map(|served| served.hub.as_str()).collect::<Vec<_>>().join(",");
        if let Some(description) = &mut hubs.description {
            description.spec = expected.check(&hub, &description.spec)?;
        }
        Ok(self)
    }

    /// The features whose keys the hubs feed to parameter servers, and the address of the hubs.
    pub(crate) fn fed(&self) -> (&[FedFeature], String) {
        let fed = match &self.kind {
            Kind::Hubs(hubs) => hubs.description.as_ref().map_or(&[][..], |description| &description.fed),
            Kind::Files(_) => &[],
        };
        let hubs = self.hubs_served().iter().map(|served| served.hub.as_str());
        (fed, hubs.collect::<Vec<_>>().join(","))
    }

    /// The hubs; none if it is files.
    #[must_use]
    pub fn hubs_served(&self) -> &[Served] {
        match &self.kind {
            Kind::Files(_) => &[],
            Kind::Hubs(hubs) => &hubs.served,
        }
    }

    /// The reading options and the feature spec in use, fitted boundaries included.
    ///
    /// `None` for hubs that do not send them.
    #[must_use]
    pub fn reading(&self) -> Option<(&DataConfig, &Spec)> {
        match &self.kind {
            Kind::Files(files) => Some((&files.data, &files.spec)),
            Kind::Hubs(hubs) => {
                hubs.description.as_ref().map(|description| (&description.data, &description.spec))
            }
        }
    }

    /// The first input that gives its rows only once.
    pub(crate) fn read_once(&self) -> Option<&str> {
        let (inputs, _, _) = self.files_read()?;
        inputs.iter().find(|name| input::read_once(name)).map(String::as_str)
    }

    /// Names of the columns.
    #[must_use]
    pub fn names(&self) -> &Arc<[String]> {
        &self.names
    }

    /// The files that are read, how, and what their rows become; None of hubs, which encode on their own.
    #[must_use]
    pub fn files_read(&self) -> Option<(&[String], &DataConfig, &Arc<Encoder>)> {
        match &self.kind {
            Kind::Files(files) => Some((&files.inputs, &files.data, &files.encoder)),
            Kind::Hubs(_) => None,
        }
    }

    /// The spec alone.
    #[must_use]
    pub fn spec(&self) -> Option<&Spec> {
        self.reading().map(|(_, spec)| spec)
    }
}
