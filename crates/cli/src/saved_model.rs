//! Opens a saved model for the commands that apply one.

use std::path::Path;

use sanderling_learner::Model;

use crate::failure::Failure;
use crate::servers::ServerArgs;

/// Whether a path names nothing, and is more likely a model than a file of data or a configuration: it has no ending.
pub(crate) fn is_missing(path: &Path) -> bool {
    let text = path.to_string_lossy();
    let is_other = text == "-" || text.contains("://") || text.contains(['*', '?', '[']);
    !is_other && path.extension().is_none() && !path.exists()
}

/// Opens a model with its tables in this process, or on the servers if any were named.
pub(crate) fn open(path: &Path, servers: &ServerArgs) -> Result<Model, Failure> {
    Ok(match servers.connect()? {
        Some(cluster) => Model::open_on_servers(path, &cluster)?,
        None => Model::load(path)?,
    })
}
