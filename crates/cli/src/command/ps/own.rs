//! The token that a server makes for itself, and the files in which clients of its user find it.

use sanderling_server::Config;
use sanderling_transport::{Address, OwnToken, user_dir};

use crate::failure::Failure;

/// Generated token of a server.
pub(super) struct Own(OwnToken);

impl Own {
    pub(super) fn give(config: &mut Config) -> Result<Own, Failure> {
        let own = OwnToken::new(user_dir()).map_err(|error| {
            Failure::Run(format!("a token cannot be created: {error}; pass one with --token-file"))
        })?;
        config.token = Some(own.token().to_owned());
        config.admit_this_user = true;
        Ok(Own(own))
    }

    /// Writes the token files in which clients of this user look: one per TCP port of the data plane and the control plane.
    pub(super) fn publish(&mut self, control_port: Option<String>, addresses: &[Address]) {
        let endpoints = addresses.iter().filter_map(|address| address.endpoints().first());
        let endpoints = endpoints.map(ToString::to_string);
        for port in control_port.into_iter().chain(endpoints) {
            let Some((host, port)) =
                port.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse().ok()?)))
            else {
                continue;
            };
            if let Err(error) = self.0.publish(host, port) {
                note!(
                    "no client will find this server's token: {error}; set XDG_RUNTIME_DIR to a folder of this user, or \
                     name a token by --token-file, or start with --no-token"
                );
                return;
            }
        }
    }
}
