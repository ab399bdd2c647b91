//! Opens the store of a url with the settings of the environment. A store stays open for all its files, which share
//! connections and credentials.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::list::PaginatedListStore;
use object_store::{ClientOptions, ObjectStore};

use crate::error::{ObjectError, variables};
use crate::network::Network;
use crate::place::{Kind, Place};
use crate::{CONNECT_S_MAX, SILENCE_S_MAX, STORES_MAX};

/// An open store.
#[derive(Clone)]
pub(crate) struct Store {
    pub(crate) objects: Arc<dyn ObjectStore>,
    /// The paginated listing by prefix, if the store has it.
    pub(crate) pages: Option<Arc<dyn PaginatedListStore>>,
}

/// The store of a url; reuses an open one.
pub(crate) fn store_of(network: &Network, place: &Place, url: &str) -> Result<Store, ObjectError> {
    let mut stores = network.stores.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(store) = stores.get(&place.base) {
        return Ok(store.clone());
    }
    if stores.len() >= STORES_MAX {
        stores.clear();
    }
    let store = open(network, place).map_err(|error| ObjectError::of(url, place.kind, &error))?;
    stores.insert(place.base.clone(), store.clone());
    Ok(store)
}

fn open(network: &Network, place: &Place) -> Result<Store, object_store::Error> {
    // Time-outs limit silence, not whole answers, whose duration depends on the network.
    let options = ClientOptions::new()
        .with_timeout_disabled()
        .with_read_timeout(Duration::from_secs(SILENCE_S_MAX))
        .with_connect_timeout(Duration::from_secs(CONNECT_S_MAX));
    // The library's `from_env` would have to come before these options, which would then replace its settings.
    macro_rules! from_environment {
        ($builder:ty) => {{
            let builder = <$builder>::new().with_client_options(options).with_retry(network.retry.clone());
            let prefix = format!("{}_", variables(place.kind));
            let settings = network.settings.iter().filter(|(name, _)| name.starts_with(&prefix));
            let builder =
                settings.fold(builder, |builder, (name, value)| match name.to_ascii_lowercase().parse() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_) => builder,
                });
            builder.with_url(place.base.clone())
        }};
    }
    Ok(match place.kind {
        Kind::S3 => listing(from_environment!(AmazonS3Builder).build()?),
        Kind::Gcs => listing(from_environment!(GoogleCloudStorageBuilder).build()?),
        Kind::Azure => {
            let mut builder = from_environment!(MicrosoftAzureBuilder);
            if let Some((_, endpoint)) = network.settings.iter().find(|(name, _)| name == "IDENTITY_ENDPOINT")
            {
                builder = builder.with_msi_endpoint(endpoint.clone());
            }
            listing(builder.build()?)
        }
        Kind::Web => {
            let is_plain = place.base.starts_with("http://");
            // Plain HTTP needs no certificates of the machine, which may have none.
            let options = options.with_allow_http(is_plain).with_no_system_certificates(is_plain);
            let builder = HttpBuilder::new().with_client_options(options).with_retry(network.retry.clone());
            Store { objects: Arc::new(builder.with_url(place.base.clone()).build()?), pages: None }
        }
    })
}

fn listing<S: ObjectStore + PaginatedListStore>(store: S) -> Store {
    let store = Arc::new(store);
    Store { objects: Arc::clone(&store) as Arc<dyn ObjectStore>, pages: Some(store) }
}
