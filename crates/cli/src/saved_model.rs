//! Opens a saved model for the commands that apply one.

use std::path::Path;

use sanderling_learner::Model;

use crate::failure::Failure;
use crate::servers::ServerArgs;

/// Opens a model with its tables in this process, or on the servers if any were named.
pub(crate) fn open(path: &Path, servers: &ServerArgs) -> Result<Model, Failure> {
    Ok(match servers.connect()? {
        Some(cluster) => Model::open_on_servers(path, &cluster)?,
        None => Model::load(path)?,
    })
}
