//! How to connect to a registry: token and TLS. Opens nothing.

use std::fmt;
use std::path::PathBuf;

use crate::registry::RegistryError;

/// Variable with the file of the token.
const TOKEN_FILE: &str = "SANDERLING_REGISTRY_TOKEN_FILE";
/// Variable with the file of certificate authorities.
const CA_FILE: &str = "SANDERLING_REGISTRY_CA_FILE";

/// How to connect.
#[derive(Clone, Default)]
pub struct Options {
    /// The token of a keeper, or `user:password` of etcd.
    pub token: Option<String>,
    /// Certificate authorities (PEM) of the servers; enables TLS.
    pub ca: Option<PathBuf>,
    /// Certificate and key (PEM) of this client, for etcd.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Without the token.
impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Options { ca, identity, .. } = self;
        f.debug_struct("Options").field("ca", ca).field("identity", identity).finish_non_exhaustive()
    }
}

impl Options {
    /// The files that the environment names: `SANDERLING_REGISTRY_TOKEN_FILE` and `SANDERLING_REGISTRY_CA_FILE`.
    ///
    /// # Errors
    /// The file of the token cannot be read, or is empty; the error names it.
    pub fn of_environment() -> Result<Options, RegistryError> {
        let path = |name| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
        let token = path(TOKEN_FILE).map(|path| {
            let wrong = |reason: &dyn fmt::Display| {
                RegistryError::Invalid(format!("{TOKEN_FILE}: {}: {reason}", path.display()))
            };
            let text = std::fs::read_to_string(&path).map_err(|error| wrong(&error))?;
            match text.trim() {
                "" => Err(wrong(&"it is empty: it is to hold a token")),
                token => Ok(token.to_owned()),
            }
        });
        Ok(Options { token: token.transpose()?, ca: path(CA_FILE), identity: None })
    }
}
