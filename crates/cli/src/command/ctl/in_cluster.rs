//! The registry of the cluster that an order is about.

use std::sync::Arc;

use sanderling_registry::{Registry, RegistryUrl};

use crate::failure::Failure;

/// The option that names the cluster.
#[derive(Debug, clap::Args)]
pub(super) struct InCluster {
    /// Registry with the cluster: keeper://HOST:PORT/CLUSTER, etcd://HOST:PORT,.../CLUSTER, or registry://CLUSTER
    #[arg(long, value_name = "URL", default_value = "registry://", hide_default_value = true)]
    registry: String,
}

impl InCluster {
    pub(super) fn open(&self, token: Option<&str>) -> Result<Arc<dyn Registry>, Failure> {
        let url = RegistryUrl::parse(&self.registry).and_then(|url| url.open_of_cluster(token));
        url.map_err(|error| Failure::Usage(format!("--registry: {error}")))
    }
}
