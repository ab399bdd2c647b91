//! Addresses that servers and workers listen at, and the security options of `hub` and `serve`. Opens nothing.

use std::net::IpAddr;
use std::path::PathBuf;

use sanderling_transport::Address;

use crate::failure::Failure;
use crate::token::read_server_token;

/// Access to a server that has no token unless one is given.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Security")]
pub(crate) struct SecurityArgs {
    /// File with the shared auth token [default: no token]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Accept a token file that other users can read, such as a mounted secret
    #[arg(long)]
    open_token_file: bool,
    /// Certificate chain (PEM); enables TLS on TCP
    #[arg(long, value_name = "FILE", requires = "key_file")]
    cert_file: Option<PathBuf>,
    /// Private key of --cert-file (PEM)
    #[arg(long, value_name = "FILE", requires = "cert_file")]
    key_file: Option<PathBuf>,
    /// Allow --listen addresses that other machines reach; needs TLS and a token
    #[arg(long)]
    pub(crate) expose: bool,
    /// Allow --expose without TLS and token: any machine that reaches the port is served
    #[arg(long)]
    pub(crate) insecure: bool,
}

impl SecurityArgs {
    /// The token, if there is to be one.
    pub(crate) fn token(&self) -> Result<Option<String>, Failure> {
        let read = |path| read_server_token(path, self.open_token_file);
        let token = self.token_file.as_deref().map(read).transpose();
        token.map_err(|error| Failure::Usage(format!("--token-file: {error}")))
    }

    /// Certificate and key, for TLS.
    pub(crate) fn tls(&self) -> Option<(PathBuf, PathBuf)> {
        self.cert_file.clone().zip(self.key_file.clone())
    }
}

/// Says so where an option that exposes addresses to other machines has none to expose.
pub(crate) fn note_unused_expose(option: &str, addresses: &[Address]) {
    if !are_reached_by_others(addresses) {
        let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        note_line!(
            "{option} has no effect: only this host reaches {}; listen at an address of this machine, such as 0.0.0.0:PORT",
            all.join(", ")
        );
    }
}

/// Whether other machines may reach one of the addresses.
pub(crate) fn are_reached_by_others(addresses: &[Address]) -> bool {
    addresses.iter().any(is_reached_by_others)
}

/// Whether other machines may reach an address. A host name may be of this machine in their network.
fn is_reached_by_others(address: &Address) -> bool {
    address.endpoints().iter().any(|endpoint| match endpoint.host.parse::<IpAddr>() {
        Ok(ip) => !ip.is_loopback(),
        Err(_) => endpoint.host != "localhost",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_only_this_host_reaches() {
        for (address, expected) in [
            ("127.0.0.1:7000", false),
            ("127.1.2.3:7000", false),
            ("[::1]:7000", false),
            ("localhost:7000", false),
            ("unix:/run/a", false),
            ("shm:a", false),
            ("0.0.0.0:7000", true),
            ("10.0.0.5:7000", true),
            ("rdma://10.0.0.5:7000", true),
            ("[::]:7000", true),
            ("db1:7000", true),
        ] {
            let address: Address = address.parse().expect(address);
            assert_eq!(is_reached_by_others(&address), expected, "{address}");
        }
    }
}
