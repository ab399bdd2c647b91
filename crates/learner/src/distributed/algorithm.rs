//! The algorithms by name, what each wants of a configuration, and what none of them can do. Knows no worker and no table.

use std::fmt;
use std::str::FromStr;

use sanderling_job::Order;
use sanderling_store::Optimizer;
use serde::{Deserialize, Serialize};

use crate::config::{Config, ModelKind};

/// The most rows of a step whose gradients are added up over all workers. A step moves a coordinate once, by at most about
/// its learning rate, however many rows it is made of: beyond this a pass has too few steps to learn anything.
pub const GLOBAL_BATCH_MAX: usize = 65_536;

/// How workers train together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Algorithm {
    /// Logistic regression by FTRL-proximal; each worker goes its own way.
    Ftrl,
    /// Synchronous FTRL; rows are shuffled over all workers before each pass.
    FtrlSync,
    /// Synchronous FTRL, in the order of the input.
    FtrlSyncNoShuffle,
    /// A factorization machine; each worker goes its own way.
    Fm,
    /// Synchronous FM; rows are shuffled over all workers before each pass.
    FmSync,
    /// Synchronous FM, in the order of the input.
    FmSyncNoShuffle,
}

/// All of them, with their names.
const NAMES: [(Algorithm, &str); 6] = [
    (Algorithm::Ftrl, "ftrl"),
    (Algorithm::FtrlSync, "ftrl-sync"),
    (Algorithm::FtrlSyncNoShuffle, "ftrl-sync-no-shuffle"),
    (Algorithm::Fm, "fm"),
    (Algorithm::FmSync, "fm-sync"),
    (Algorithm::FmSyncNoShuffle, "fm-sync-no-shuffle"),
];

impl fmt::Display for Algorithm {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(algorithm, _)| algorithm == self).map_or("", |(_, name)| name);
        out.write_str(name)
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = NAMES.iter().find(|(_, name)| *name == text).map(|(algorithm, _)| *algorithm);
        found.ok_or_else(|| format!("there are {}", NAMES.map(|(_, name)| name).join(", ")))
    }
}

impl Algorithm {
    /// The names of all algorithms.
    #[must_use]
    pub fn names() -> [&'static str; NAMES.len()] {
        NAMES.map(|(_, name)| name)
    }

    /// Whether all workers make one step together.
    #[must_use]
    pub fn is_in_step(self) -> bool {
        !matches!(self, Algorithm::Ftrl | Algorithm::Fm)
    }

    /// The order of rows in a pass.
    pub(crate) fn order(self) -> Order {
        match self {
            Algorithm::FtrlSync | Algorithm::FmSync => Order::Shuffled,
            _ => Order::Input,
        }
    }

    fn kind(self) -> ModelKind {
        match self {
            Algorithm::Ftrl | Algorithm::FtrlSync | Algorithm::FtrlSyncNoShuffle => ModelKind::Lr,
            Algorithm::Fm | Algorithm::FmSync | Algorithm::FmSyncNoShuffle => ModelKind::Fm,
        }
    }

    /// Whether this algorithm trains such a model: those for factorization machines train field-aware ones, too.
    fn trains(self, kind: ModelKind) -> bool {
        kind == self.kind() || (kind == ModelKind::Ffm && self.kind() == ModelKind::Fm)
    }

    /// Makes the model of a configuration, before it is checked, the one that this algorithm trains. What only a
    /// factorization machine has is left out of logistic regression.
    pub fn preset(self, config: &mut Config) {
        if !self.trains(config.model.kind) {
            config.model.kind = self.kind();
            config.model.normalize = None;
        }
        if self.kind() == ModelKind::Lr {
            config.factor_optimizer = None;
        }
    }

    /// Whether a configuration, and a bound of staleness, are something that this algorithm can do.
    pub(crate) fn check(self, config: &Config, staleness: Option<u64>) -> Result<(), String> {
        let train = &config.train;
        let is_ftrl = matches!(config.optimizer, Optimizer::Ftrl { .. });
        if !self.trains(config.model.kind) {
            return Err(format!(
                "{self} trains another model than model.type says; leave model.type out, or take another algorithm"
            ));
        }
        if self.kind() == ModelKind::Lr && !is_ftrl {
            return Err(format!(
                "{self} is logistic regression by FTRL, but [optimizer] is another one; leave it out or set type = \"ftrl\""
            ));
        }
        if self.is_in_step() && train.batch_size > GLOBAL_BATCH_MAX {
            return Err(format!(
                "train.batch_size = {}: in {self} it is the global batch, the rows of all workers in one step, at most \
                 {GLOBAL_BATCH_MAX}; lower it (docs/learners.md)",
                train.batch_size
            ));
        }
        if self.is_in_step() && staleness.is_some() {
            return Err(format!(
                "{self} is synchronous, so no worker is ahead of another: --staleness is for ftrl and fm"
            ));
        }
        for (field, is_set, instead) in [
            ("save_every_steps", train.save_every_steps > 0, "a job is saved after every pass"),
            ("max_steps", train.max_steps > 0, "a job ends with a pass; set train.passes"),
        ] {
            if is_set {
                return Err(format!("train.{field} is not for {self}: {instead}; leave it out"));
            }
        }
        Ok(())
    }

    /// How the workers go about it, in words.
    pub(crate) fn describe(self, workers: u32, batch: usize, staleness: Option<u64>) -> String {
        let workers = if workers == 1 { "1 worker".to_owned() } else { format!("{workers} workers") };
        let order = match self.order() {
            Order::Shuffled => "shuffled over all workers",
            Order::Input => "in the order of the input",
        };
        let bound = staleness.map_or(String::new(), |bound| format!(", at most {bound} minibatches ahead"));
        let batch = match self.is_in_step() {
            true => format!("{batch} rows a step of all together"),
            false => format!("minibatches of {batch}{bound}"),
        };
        format!("{self}: {workers}, {batch}, {order}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_what_does_not_fit() {
        for (algorithm, name) in NAMES {
            assert_eq!((name.parse(), algorithm.to_string()), (Ok(algorithm), name.to_owned()));
            assert_eq!(serde_json::to_string(&algorithm).unwrap(), format!("\"{name}\""));
        }
        assert!("ftrl_sync".parse::<Algorithm>().unwrap_err().contains("ftrl-sync-no-shuffle"));
        for (name, rest, staleness, part) in [
            ("ftrl", "", None, None),
            ("ftrl", "", Some(3), None),
            ("fm-sync", "[optimizer]\ntype = \"adagrad\"", None, None),
            ("ftrl-sync", "[train]\nbatch = 65536", None, None),
            ("ftrl", "[train]\nbatch = 100000", None, None),
            ("ftrl-sync", "[train]\nbatch = 65537", None, Some("global batch")),
            ("fm-sync", "[train]\nbatch = 65537", None, Some("65536")),
            ("ftrl-sync", "", Some(0), Some("--staleness")),
            ("ftrl", "[optimizer]\ntype = \"sgd\"", None, Some("[optimizer]")),
            ("ftrl", "[train]\nmax_steps = 3", None, Some("max_steps")),
            ("fm", "[train]\nsave_every_steps = 3", None, Some("save_every_steps")),
        ] {
            let algorithm: Algorithm = name.parse().unwrap();
            let text = format!("[data]\ntrain = \"a.svm\"\n{rest}");
            let mut config = Config::parse(&text, "c.toml".as_ref(), "c").unwrap();
            algorithm.preset(&mut config);
            let found = algorithm.check(&config, staleness);
            match part {
                None => assert_eq!(found, Ok(()), "{name} {rest}"),
                Some(part) => {
                    let reason = found.unwrap_err();
                    assert!(
                        reason.contains(part) && reason.chars().count() <= 180,
                        "{name} {rest}: {reason}"
                    );
                }
            }
            let other: Algorithm = if name.starts_with("fm") { Algorithm::Ftrl } else { Algorithm::Fm };
            assert!(other.check(&config, None).is_err());
        }
    }
}
