//! `sanderling ctl save` and `ctl restore` with `--registry`: a checkpoint of all groups of a cluster.

use std::sync::Arc;
use std::time::Duration;

use sanderling_client::{CheckpointSize, ClientError, Cluster, ConnectOptions, OnWait, TlsClient};
use sanderling_control::ClientOptions;
use sanderling_control::proto::{RestoreReply, SaveReply};

use super::show::Answers;
use crate::failure::Failure;

/// Time for the saves of all groups, or the restores: they take as long as there are rows.
const WITHIN: Duration = Duration::from_secs(86_400);

fn cluster(url: &str, options: &ClientOptions) -> Result<Arc<Cluster>, Failure> {
    let tls = options.ca.as_deref().map(TlsClient::from_ca_file).transpose();
    let by = ConnectOptions {
        token: options.token.clone().unwrap_or_default(),
        tls: tls.map_err(|error| Failure::Usage(format!("--ca-file: {error}")))?,
        on_wait: Some(OnWait::new(|notice| note_line!("{notice}"))),
        ..ConnectOptions::default()
    };
    match Cluster::of(url, by) {
        Err(ClientError::Address(error)) => Err(Failure::Usage(format!("--registry: {error}"))),
        cluster => Ok(cluster?),
    }
}

/// Makes the primaries of all groups save.
pub(super) fn save(url: &str, name: &str, options: &ClientOptions) -> Result<Answers, Failure> {
    let CheckpointSize { rows, bytes, .. } = cluster(url, options)?.save(name, WITHIN)?;
    let reply = SaveReply { rows, bytes, ..SaveReply::default() };
    Ok(Answers::Saved(name.to_owned(), vec![(url.to_owned(), reply)]))
}

/// Makes the primaries of all groups restore.
pub(super) fn restore(url: &str, name: &str, options: &ClientOptions) -> Result<Answers, Failure> {
    let CheckpointSize { rows, tables, .. } = cluster(url, options)?.restore(name, WITHIN)?;
    Ok(Answers::Restored(name.to_owned(), vec![(url.to_owned(), RestoreReply { tables, rows })]))
}
