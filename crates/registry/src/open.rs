//! Opens the registry that a url names. Knows no protocol.

use std::sync::Arc;

use crate::etcd::Etcd;
use crate::keeper_client::KeeperClient;
use crate::options::Options;
use crate::registry::{Registry, RegistryError};
use crate::url::{Kind, RegistryUrl};

impl RegistryUrl {
    /// Opens the registry for the cluster of the url. Connects with the first call.
    ///
    /// # Errors
    /// [`RegistryError::Invalid`]: the url has no cluster, or a file of the options cannot be read.
    pub fn open(&self, options: &Options) -> Result<Arc<dyn Registry>, RegistryError> {
        let Some(cluster) = &self.cluster else {
            return Err(RegistryError::Invalid(format!("{self}: it names no cluster, as {self}/ads does")));
        };
        Ok(match self.kind {
            Kind::Keeper => Arc::new(KeeperClient::new(self, cluster, options)?),
            Kind::Etcd => Arc::new(Etcd::new(self, cluster, options)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_needs_a_cluster_to_be_opened() {
        let url: RegistryUrl = "keeper://h:1".parse().expect("it is a url");
        let error = url.open(&Options::default()).expect_err("it has no cluster");
        assert!(error.to_string().contains("names no cluster"), "{error}");
    }
}
