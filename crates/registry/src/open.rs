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

    /// Opens the registry of a cluster whose servers have this token. The environment says how to connect; where it names no
    /// token, the one of the servers is that of their keeper, too.
    ///
    /// # Errors
    /// As [`RegistryUrl::open`] and [`Options::of_environment`].
    pub fn open_of_cluster(&self, token: Option<&str>) -> Result<Arc<dyn Registry>, RegistryError> {
        let mut options = Options::of_environment()?;
        if self.kind == Kind::Keeper {
            options.token = options.token.or_else(|| token.map(str::to_owned));
        }
        self.open(&options)
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
