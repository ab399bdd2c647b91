//! `sanderling ctl registry`: show the records of a cluster, whatever its registry is.

use std::path::Path;
use std::time::Duration;

use sanderling_registry::{Listing, Options, Record, RegistryUrl};

use crate::failure::Failure;
use crate::output;

/// Time for one question.
const WITHIN: Duration = Duration::from_secs(10);

/// Show the records of a registry, for debugging
#[derive(Debug, clap::Args)]
pub(super) struct Registry {
    #[command(subcommand)]
    order: Order,
    /// Registry: keeper://HOST:PORT/CLUSTER, etcd://HOST:PORT,.../CLUSTER, or registry://CLUSTER [default: $SANDERLING_REGISTRY]
    #[arg(long, value_name = "URL", default_value = "registry://", hide_default_value = true, global = true)]
    registry: String,
}

#[derive(Debug, clap::Subcommand)]
enum Order {
    /// List the records of a cluster with their content
    #[command(after_help = "Examples:\n  sanderling ctl registry list --registry keeper://127.0.0.1:7400/ads
  sanderling ctl --json registry list groups/ --registry registry://ads | jq .primary")]
    List {
        /// Beginning of the names, such as groups/ [default: all]
        #[arg(default_value = "", hide_default_value = true)]
        prefix: String,
    },
    /// Print the content of one record
    #[command(
        after_help = "Example:\n  sanderling ctl registry get groups/0 --registry keeper://127.0.0.1:7400/ads"
    )]
    Get {
        /// Name of the record, such as config, placement, groups/0 or members/3
        name: String,
    },
}

impl Registry {
    /// Prints records, each as one line: of JSON, or name, revision and content.
    pub(super) fn run(&self, token: Option<String>, ca: Option<&Path>, json: bool) -> Result<u8, Failure> {
        let usage = |error: &dyn std::fmt::Display| Failure::Usage(format!("--registry: {error}"));
        let url = RegistryUrl::parse(&self.registry).map_err(|error| usage(&error))?;
        let mut options = Options::of_environment().map_err(|error| usage(&error))?;
        options.token = token.or(options.token);
        options.ca = ca.map(Path::to_path_buf).or(options.ca);
        let registry = url.open(&options).map_err(|error| usage(&error))?;
        let records = match &self.order {
            Order::List { prefix } => {
                let Listing { records, .. } = registry.list(prefix, WITHIN)?;
                records
            }
            Order::Get { name } => match registry.get(name, WITHIN)? {
                Some(record) => vec![record],
                None => {
                    return Err(Failure::Run(format!(
                        "{url}: there is no record {name}; see: sanderling ctl registry list --registry {url}"
                    )));
                }
            },
        };
        let is_one = matches!(self.order, Order::Get { .. });
        let lines: Vec<String> = records.iter().map(|record| line(record, json, is_one)).collect();
        output::text(&lines.join("\n"))?;
        Ok(0)
    }
}

fn line(record: &Record, json: bool, is_one: bool) -> String {
    match (json, is_one) {
        (true, _) => serde_json::to_string(record).unwrap_or_default(),
        (false, true) => record.value.to_string(),
        (false, false) => format!("{}  {}  {}", record.name, record.revision, record.value),
    }
}
