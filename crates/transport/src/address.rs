//! Addresses of servers, as URLs. It resolves no name and opens nothing.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Longest name of a shared-memory address. With our prefix it fits the kernel's 108 bytes.
const SHM_NAME_BYTES_MAX: usize = 64;
/// Longest path of a unix socket: the kernel's 108 bytes less the closing zero.
const UNIX_PATH_BYTES_MAX: usize = 107;
/// Longest host name that DNS can hold.
const HOST_BYTES_MAX: usize = 253;
/// Maximum number of servers in one address.
const ENDPOINTS_MAX: usize = 1024;

/// The address of one or several servers.
///
/// | text | meaning |
/// |---|---|
/// | `embedded:` | the store in this process: no server |
/// | `shm:NAME` | shared memory on this host; `NAME` is letters, digits, `.`, `_`, `-` |
/// | `unix:PATH` | a unix socket |
/// | `tcp://host:port[,host:port...]` | TCP, one or several servers; IPv6 hosts in brackets |
/// | `host:port[,host:port...]` | TCP, one or several servers |
/// | `rdma://host:port[,host:port...]` | RDMA, which begins over TCP at this port; one or several servers |
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// The store in this process.
    Embedded,
    /// Shared memory on this host, by name.
    Shm(String),
    /// A unix socket, by path.
    Unix(PathBuf),
    /// TCP: at least one endpoint.
    Tcp(Vec<Endpoint>),
    /// RDMA beside a TCP connection: at least one endpoint.
    Rdma(Vec<Endpoint>),
}

/// A TCP endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Host name or IP address, IPv6 without brackets.
    pub host: String,
    /// Port; 0 lets the system choose when listening.
    pub port: u16,
}

/// Why a text is not an address. Every variant names the text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is empty.
    #[error(
        "the address is empty; write embedded:, shm:NAME, unix:PATH, tcp://host:port or rdma://host:port"
    )]
    Empty,
    /// The scheme is unknown.
    #[error(
        "address {address:?}: unknown scheme {scheme:?}; there are embedded:, shm:, unix:, tcp:// and rdma://"
    )]
    Scheme {
        /// The whole text.
        address: String,
        /// The text before `://`.
        scheme: String,
    },
    /// Text follows `embedded:`.
    #[error("address {address:?}: nothing may follow embedded:")]
    Embedded {
        /// The whole text.
        address: String,
    },
    /// The shared-memory name is empty, too long, or has other characters.
    #[error(
        "address {address:?}: the name must be 1 to {SHM_NAME_BYTES_MAX} letters, digits, '.', '_' or '-'"
    )]
    ShmName {
        /// The whole text.
        address: String,
    },
    /// The path is empty, too long for a socket, or contains a zero byte.
    #[error("address {address:?}: the path must be 1 to {UNIX_PATH_BYTES_MAX} bytes without a zero byte")]
    UnixPath {
        /// The whole text.
        address: String,
    },
    /// The host is missing or malformed.
    #[error("address {address:?}: {endpoint:?} has no valid host; write host:port or [ipv6]:port")]
    Host {
        /// The whole text.
        address: String,
        /// The endpoint in it.
        endpoint: String,
    },
    /// The port is missing or not a number from 0 to 65535.
    #[error(
        "address {address:?}: {endpoint:?} has no valid port; write host:port with a port from 0 to 65535"
    )]
    Port {
        /// The whole text.
        address: String,
        /// The endpoint in it.
        endpoint: String,
    },
    /// The list has too many servers.
    #[error("the address lists {servers} servers; at most {ENDPOINTS_MAX} are allowed")]
    TooMany {
        /// Number of servers in the list.
        servers: usize,
    },
}

impl Address {
    /// One address per server, in list order.
    pub fn each(&self) -> Vec<Address> {
        match self {
            Address::Tcp(endpoints) => endpoints.iter().map(|one| Address::Tcp(vec![one.clone()])).collect(),
            Address::Rdma(endpoints) => {
                endpoints.iter().map(|one| Address::Rdma(vec![one.clone()])).collect()
            }
            other => vec![other.clone()],
        }
    }

    /// Hosts and ports of an address that begins with a TCP connection; none of other addresses.
    pub fn endpoints(&self) -> &[Endpoint] {
        match self {
            Address::Tcp(endpoints) | Address::Rdma(endpoints) => endpoints,
            Address::Embedded | Address::Shm(_) | Address::Unix(_) => &[],
        }
    }

    /// Whether bytes stay in this machine's memory. Then frames need no checksum, and copying is faster than
    /// compression.
    pub fn in_memory(&self) -> bool {
        matches!(self, Address::Embedded | Address::Shm(_) | Address::Unix(_))
    }
}

impl Endpoint {
    fn parse(text: &str, address: &str) -> Result<Endpoint, AddressError> {
        let no_host = || AddressError::Host { address: address.to_owned(), endpoint: text.to_owned() };
        let no_port = || AddressError::Port { address: address.to_owned(), endpoint: text.to_owned() };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(no_host)?;
                host.parse::<std::net::Ipv6Addr>().map_err(|_| no_host())?;
                (host, rest.strip_prefix(':').ok_or_else(no_port)?)
            }
            None => {
                let (host, port) = text.rsplit_once(':').ok_or_else(no_port)?;
                let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
                if host.is_empty() || host.len() > HOST_BYTES_MAX || !host.chars().all(plain) {
                    return Err(no_host());
                }
                (host, port)
            }
        };
        // `parse` alone would take "+80".
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(no_port());
        }
        Ok(Endpoint { host: host.to_owned(), port: port.parse().map_err(|_| no_port())? })
    }
}

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Address, AddressError> {
        let address = || text.to_owned();
        if text.is_empty() {
            return Err(AddressError::Empty);
        }
        if let Some(rest) = text.strip_prefix("embedded:") {
            return if rest.is_empty() {
                Ok(Address::Embedded)
            } else {
                Err(AddressError::Embedded { address: address() })
            };
        }
        if let Some(name) = text.strip_prefix("shm:") {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
            let good = (1..=SHM_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain);
            return if good {
                Ok(Address::Shm(name.to_owned()))
            } else {
                Err(AddressError::ShmName { address: address() })
            };
        }
        if let Some(path) = text.strip_prefix("unix:") {
            let good = (1..=UNIX_PATH_BYTES_MAX).contains(&path.len()) && !path.contains('\0');
            return if good {
                Ok(Address::Unix(path.into()))
            } else {
                Err(AddressError::UnixPath { address: address() })
            };
        }
        let (kind, list): (fn(Vec<Endpoint>) -> Address, &str) = match text.split_once("://") {
            Some(("tcp", list)) => (Address::Tcp, list),
            Some(("rdma", list)) => (Address::Rdma, list),
            Some((scheme, _)) => {
                return Err(AddressError::Scheme { address: address(), scheme: scheme.to_owned() });
            }
            None => (Address::Tcp, text),
        };
        let servers = list.split(',').count();
        if servers > ENDPOINTS_MAX {
            return Err(AddressError::TooMany { servers });
        }
        Ok(kind(list.split(',').map(|one| Endpoint::parse(one, text)).collect::<Result<_, _>>()?))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Embedded => write!(out, "embedded:"),
            Address::Shm(name) => write!(out, "shm:{name}"),
            Address::Unix(path) => write!(out, "unix:{}", path.display()),
            Address::Tcp(endpoints) | Address::Rdma(endpoints) => {
                let scheme = if matches!(self, Address::Rdma(_)) { "rdma://" } else { "tcp://" };
                for (position, endpoint) in endpoints.iter().enumerate() {
                    write!(out, "{}{endpoint}", if position == 0 { scheme } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(out, "[{}]:{}", self.host, self.port)
        } else {
            write!(out, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(text: &str, expected: &str) {
        let found = match text.parse::<Address>() {
            Ok(address) => address.to_string(),
            Err(error) => format!("error: {error}"),
        };
        assert!(found.contains(expected), "{text:?} gave {found:?}, expected {expected:?}");
    }

    #[test]
    fn addresses_and_their_errors() {
        for (text, expected) in [
            ("embedded:", "embedded:"),
            ("shm:ps-0", "shm:ps-0"),
            ("unix:/run/ps.sock", "unix:/run/ps.sock"),
            ("unix:relative path", "unix:relative path"),
            ("tcp://localhost:7000", "tcp://localhost:7000"),
            ("127.0.0.1:7000,10.0.0.2:7001", "tcp://127.0.0.1:7000,10.0.0.2:7001"),
            ("tcp://[::1]:7000,h_1-a.b:0", "tcp://[::1]:7000,h_1-a.b:0"),
            ("rdma://10.0.0.1:7000,h:7001", "rdma://10.0.0.1:7000,h:7001"),
            ("rdma://10.0.0.1", "has no valid port"),
            ("grpc://h:7001", "unknown scheme \"grpc\""),
            ("", "error: the address is empty"),
            ("embedded:x", "nothing may follow embedded:"),
            ("shm:", "the name must be"),
            ("shm:a/b", "the name must be"),
            ("unix:", "the path must be"),
            ("unix:a\0b", "the path must be"),
            ("http://x:1", "unknown scheme \"http\""),
            ("localhost", "\"localhost\" has no valid port"),
            ("tcp://a:1,", "\"\" has no valid port"),
            ("a:65536", "has no valid port"),
            ("a:+80", "has no valid port"),
            ("a:", "has no valid port"),
            (":80", "has no valid host"),
            ("::1:80", "has no valid host"),
            ("[::1]80", "has no valid port"),
            ("[::1:80", "has no valid host"),
            ("[localhost]:80", "has no valid host"),
            ("a b:80", "has no valid host"),
        ] {
            check(text, expected);
        }
        check(&format!("shm:{}", "x".repeat(SHM_NAME_BYTES_MAX + 1)), "the name must be");
        check(&format!("unix:{}", "x".repeat(UNIX_PATH_BYTES_MAX + 1)), "the path must be");
        check(&vec!["a:1"; ENDPOINTS_MAX + 1].join(","), "at most 1024");
    }

    fn endpoint() -> impl Strategy<Value = Endpoint> {
        let host = prop_oneof![
            "[a-z0-9][a-z0-9._-]{0,30}",
            any::<std::net::Ipv4Addr>().prop_map(|ip| ip.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|ip| ip.to_string()),
        ];
        (host, any::<u16>()).prop_map(|(host, port)| Endpoint { host, port })
    }

    fn address() -> impl Strategy<Value = Address> {
        prop_oneof![
            Just(Address::Embedded),
            "[A-Za-z0-9._-]{1,64}".prop_map(Address::Shm),
            "[^\0]{1,20}".prop_map(|path| Address::Unix(path.into())),
            prop::collection::vec(endpoint(), 1..5).prop_map(Address::Tcp),
            prop::collection::vec(endpoint(), 1..5).prop_map(Address::Rdma),
        ]
    }

    proptest! {
        #[test]
        fn what_is_printed_is_parsed_back(address in address()) {
            prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address.clone()));
            let each = address.each();
            prop_assert!(each.iter().all(|one| one.each().len() == 1));
        }

        #[test]
        fn any_text_is_an_address_or_an_error(text in any::<String>()) {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
