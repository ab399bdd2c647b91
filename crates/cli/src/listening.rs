//! Addresses that `ps`, `hub` and workers listen at. Opens nothing.

use std::net::IpAddr;

use sanderling_transport::Address;

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
    let Address::Tcp(endpoints) = address else { return false };
    endpoints.iter().any(|endpoint| match endpoint.host.parse::<IpAddr>() {
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
            ("[::]:7000", true),
            ("db1:7000", true),
        ] {
            let address: Address = address.parse().expect(address);
            assert_eq!(is_reached_by_others(&address), expected, "{address}");
        }
    }
}
