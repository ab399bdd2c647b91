//! An opened input: files with the compiled feature spec, or subscribed hubs. Knows no thread.

use std::sync::Arc;

use sanderling_client::Stop;
use sanderling_formats::batch_file::completed;
use sanderling_formats::{DataConfig, Format, fit, fit_holdout, input};
use sanderling_hub::{
    Description, FedFeature, HubError, Served, SubscribeOptions, Subscription, hub_addresses,
};
use sanderling_sample::{EncodeOptions, Encoder, Holdout, LabelUse, NoteName, Side, Spec};

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
    /// The holdout of which one side is read, with its moment.
    pub(crate) holdout: Option<Holdout>,
}

/// The rows of files that are read, and their use.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// Whether rows are for training.
    ///
    /// Labels must then be there, negatives are sampled down as the spec says, and bad rows may be left out. Otherwise
    /// a minibatch has a row for each of the input; a bad one has no keys, and NaN as label and weight.
    pub train: bool,
    /// One side of a holdout, with the seed of a draw by chance; `None`: all rows.
    pub side: Option<(Holdout, u64, Side)>,
    /// Is told the texts of hashed keys.
    pub names: Option<Arc<dyn NoteName>>,
}

impl Source {
    /// Opens files, globs and standard input, all rows of them; `train` as in [`FileOptions`].
    ///
    /// Without features the spec is the one that libsvm, Criteo or batch files imply; quantile features that have no
    /// boundaries get them from these inputs.
    ///
    /// # Errors
    /// Unreadable inputs, and a spec that does not fit them.
    pub fn files(
        inputs: Vec<String>,
        data: DataConfig,
        spec: &Spec,
        train: bool,
    ) -> Result<Source, FeedError> {
        Source::files_with(inputs, data, spec, FileOptions { train, ..FileOptions::default() })
    }

    /// Opens files as [`Source::files`] does, with options; finds the moment of a holdout by time.
    ///
    /// # Errors
    /// Errors of [`Source::files`], and a holdout that does not fit the input.
    pub fn files_with(
        inputs: Vec<String>,
        data: DataConfig,
        spec: &Spec,
        options: FileOptions,
    ) -> Result<Source, FeedError> {
        let FileOptions { train, side, names } = options;
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
        let mut encoder = Encoder::new(&compiled, &options)?;
        let mut fitted = None;
        if let Some((holdout, seed, side)) = side {
            let holdout = fitted.insert(fit_holdout(&holdout, &spec, &inputs, &data)?);
            encoder = encoder.on_side(holdout, seed, side);
        }
        if let Some(names) = names {
            encoder = encoder.noting(&names);
        }
        let names = spec.feature.iter().map(|feature| feature.name.clone()).collect();
        let encoder = Arc::new(encoder);
        let files = Files { inputs, data, encoder, spec, keeps_places: !train, holdout: fitted };
        Ok(Source { kind: Kind::Files(Box::new(files)), names })
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

    /// The holdout of which one side is read, with its moment.
    #[must_use]
    pub fn holdout(&self) -> Option<&Holdout> {
        match &self.kind {
            Kind::Files(files) => files.holdout.as_ref(),
            Kind::Hubs(_) => None,
        }
    }

    /// The spec alone.
    #[must_use]
    pub fn spec(&self) -> Option<&Spec> {
        self.reading().map(|(_, spec)| spec)
    }
}
