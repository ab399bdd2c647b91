//! The options by which a hub feeds keys to parameter servers. Knows how they are written, and not what a hub does with it.

use sanderling_feed::{FeedError, FeedTo, ServerFeeder};
use sanderling_hub::service::{KeyFeeder, ServiceConfig};

use crate::failure::Failure;
use crate::quantity;
use crate::servers::ServerArgs;

/// Which features' keys go to the servers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Keys fed to parameter servers")]
pub(crate) struct FeedArgs {
    /// Feature whose keys go to its table on the --ps servers, which pool its rows by sum or mean [default: sum]
    #[arg(long, value_name = "FEATURE=TABLE[:POOLING]", value_delimiter = ',')]
    feed: Vec<String>,
    /// Feature to feed as by --feed, but only in minibatches where this saves bytes to the trainer
    #[arg(long, value_name = "FEATURE=TABLE[:POOLING]", value_delimiter = ',')]
    feed_auto: Vec<String>,
    /// Maximum absence of servers and tables before the hub and its trainers fail
    #[arg(long, value_name = "TIME", default_value = "60s")]
    feed_timeout: String,
    #[command(flatten)]
    servers: ServerArgs,
}

impl FeedArgs {
    /// The feeder of keys, if any; adds its features to the configuration.
    pub(crate) fn feeder(&self, config: &mut ServiceConfig) -> Result<Option<Box<dyn KeyFeeder>>, Failure> {
        let mut features = Vec::new();
        for (option, texts, where_it_saves) in
            [("feed", &self.feed, false), ("feed-auto", &self.feed_auto, true)]
        {
            for text in texts {
                features.push(feed_to(text, where_it_saves).ok_or_else(|| {
                    Failure::Usage(format!("--{option}: {text:?} is not of the form FEATURE=TABLE[:POOLING]"))
                })?);
            }
        }
        let address = self.servers.address()?;
        let Some(address) = address.filter(|_| !features.is_empty()) else {
            return match (address, features.first()) {
                (None, Some(to)) => Err(Failure::Usage(format!(
                    "--feed {}={} needs --ps ADDR,..., the servers of the table",
                    to.feature, to.table
                ))),
                (Some(_), None) => Err(Failure::Usage(
                    "--ps needs --feed FEATURE=TABLE, the keys for these servers".to_owned(),
                )),
                _ => Ok(None),
            };
        };
        let patience = quantity::time(&self.feed_timeout)
            .map_err(|error| Failure::Usage(format!("--feed-timeout: {error}")))?;
        let spec = config.spec.expand()?;
        let columns: Vec<String> = spec.feature.into_iter().map(|feature| feature.name).collect();
        config.feeds = features.iter().map(FeedTo::told).collect();
        let (connect, on_trouble) = (self.servers.ask().options()?, |what: &str| {
            note_line!("keys cannot be fed, it is tried again: {what}");
        });
        let feeder = ServerFeeder::new(address, connect, features, &columns, patience, on_trouble);
        Ok(Some(Box::new(feeder.map_err(failure)?)))
    }
}

fn failure(error: FeedError) -> Failure {
    match error {
        FeedError::Client(error) => Failure::Client(error),
        FeedError::Sample(error) => Failure::Sample(error),
        FeedError::Option { option, reason } => Failure::Usage(format!("--{option}: {reason}")),
        error @ FeedError::UnknownFeature { .. } => Failure::Usage(format!("--feed: {error}")),
        other => Failure::Usage(other.to_string()),
    }
}

/// `feature=table`, or `feature=table:pooling`. A table with a colon in its name needs the pooling.
fn feed_to(text: &str, where_it_saves: bool) -> Option<FeedTo> {
    let (feature, rest) = text.split_once('=')?;
    let (table, pooling) = rest.rsplit_once(':').unwrap_or((rest, "sum"));
    let given = !feature.is_empty() && !table.is_empty() && !pooling.is_empty();
    given.then(|| FeedTo {
        feature: feature.to_owned(),
        table: table.to_owned(),
        pooling: pooling.to_owned(),
        where_it_saves,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_fed_is_read_as_it_is_written() {
        let cases = [
            ("a=t", Some(("a", "t", "sum"))),
            ("a=run/t:mean", Some(("a", "run/t", "mean"))),
            ("a=x:y:sum", Some(("a", "x:y", "sum"))),
            ("a=b=c", Some(("a", "b=c", "sum"))),
            ("a", None),
            ("=t", None),
            ("a=", None),
            ("a=t:", None),
            ("a=:sum", None),
        ];
        for (text, expected) in cases {
            let found = feed_to(text, true);
            let found = found.as_ref().map(|to| (&to.feature[..], &to.table[..], &to.pooling[..]));
            assert_eq!(found, expected, "{text}");
        }
    }
}
