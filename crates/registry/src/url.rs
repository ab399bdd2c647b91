//! Where a registry is: `keeper://HOST:PORT/CLUSTER`, `etcd://HOST:PORT,.../CLUSTER` or `registry://CLUSTER`.

use std::fmt;
use std::str::FromStr;

use sanderling_transport::Address;

use crate::name::check_cluster;
use crate::registry::RegistryError;

/// Variable of the environment with the url that `registry://` stands for.
pub(crate) const VARIABLE: &str = "SANDERLING_REGISTRY";
/// The kind of a registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// `sanderling keeper`.
    Keeper,
    /// etcd, version 3.4 or later.
    Etcd,
}

impl Kind {
    fn scheme(self) -> &'static str {
        match self {
            Kind::Keeper => "keeper",
            Kind::Etcd => "etcd",
        }
    }
}

/// The place of a registry, with a cluster or without.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RegistryUrl {
    /// The kind.
    pub kind: Kind,
    /// The servers as `host:port`: one keeper, or one or more members of an etcd.
    pub hosts: Vec<String>,
    /// The cluster, if the url has it.
    pub cluster: Option<String>,
}

impl RegistryUrl {
    /// Whether a text is the url of a registry, rather than the address of a server.
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        ["keeper://", "etcd://", "registry://"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// Parses a url; for `registry://CLUSTER` the variable `SANDERLING_REGISTRY` has the rest.
    ///
    /// # Errors
    /// [`RegistryError::Invalid`]: it is no url, or the variable is missing.
    pub fn parse(text: &str) -> Result<RegistryUrl, RegistryError> {
        RegistryUrl::parse_with(text, std::env::var(VARIABLE).ok().as_deref())
    }

    pub(crate) fn parse_with(text: &str, variable: Option<&str>) -> Result<RegistryUrl, RegistryError> {
        let Some(cluster) = text.strip_prefix("registry://") else { return text.parse() };
        let of_variable =
            |error: RegistryError| RegistryError::Invalid(format!("{VARIABLE}: {error} (for {text})"));
        let Some(place) = variable.filter(|place| !place.is_empty()) else {
            return Err(RegistryError::Invalid(format!(
                "{text}: which registry? Set {VARIABLE}=keeper://HOST:PORT, or name the registry itself: \
                 keeper://HOST:PORT/{cluster}"
            )));
        };
        let url: RegistryUrl = place.parse().map_err(of_variable)?;
        match cluster {
            "" => Ok(url),
            cluster => url.in_cluster(cluster),
        }
    }

    /// This registry with this cluster.
    ///
    /// # Errors
    /// [`RegistryError::Invalid`]: the name is wrong, or the url has another cluster.
    pub fn in_cluster(mut self, name: &str) -> Result<RegistryUrl, RegistryError> {
        check_cluster(name)?;
        match &self.cluster {
            Some(own) if own != name => Err(RegistryError::Invalid(format!(
                "{self}: it names cluster {own}, and not {name}; name one"
            ))),
            _ => {
                self.cluster = Some(name.to_owned());
                Ok(self)
            }
        }
    }
}

impl fmt::Display for RegistryUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.kind.scheme(), self.hosts.join(","))?;
        self.cluster.iter().try_for_each(|cluster| write!(f, "/{cluster}"))
    }
}

impl FromStr for RegistryUrl {
    type Err = RegistryError;

    fn from_str(text: &str) -> Result<RegistryUrl, RegistryError> {
        let wrong = |reason: &str| {
            let cut: String = text.chars().take(100).collect();
            RegistryError::Invalid(format!(
                "registry {cut:?}: {reason}; expected keeper://HOST:PORT/CLUSTER or etcd://HOST:PORT,.../CLUSTER"
            ))
        };
        let (kind, rest) = [Kind::Keeper, Kind::Etcd]
            .iter()
            .find_map(|kind| Some((*kind, text.strip_prefix(kind.scheme())?.strip_prefix("://")?)))
            .ok_or_else(|| wrong("unknown scheme"))?;
        let (hosts, cluster) = match rest.split_once('/') {
            Some((hosts, "")) => (hosts, None),
            Some((hosts, cluster)) => (hosts, Some(cluster)),
            None => (rest, None),
        };
        let hosts = hosts.split(',').map(|host| {
            // The rules of addresses are those of servers.
            match format!("tcp://{host}").parse() {
                Ok(Address::Tcp(endpoints)) if endpoints.len() == 1 => Ok(endpoints[0].to_string()),
                _ => Err(wrong(&format!("{host:?} is not HOST:PORT"))),
            }
        });
        let hosts: Vec<String> = hosts.collect::<Result<_, _>>()?;
        if kind == Kind::Keeper && hosts.len() > 1 {
            return Err(wrong("a keeper is one process; two of them would have different records"));
        }
        let url = RegistryUrl { kind, hosts, cluster: None };
        match cluster {
            Some(cluster) => url.in_cluster(cluster),
            None => Ok(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_registry_and_a_cluster() {
        for (text, variable, expected) in [
            ("keeper://h:7400/ads", None, Ok("keeper://h:7400/ads")),
            ("keeper://[::1]:7400", None, Ok("keeper://[::1]:7400")),
            ("keeper://h:7400/", None, Ok("keeper://h:7400")),
            ("etcd://a:2379,b:2379/ads", None, Ok("etcd://a:2379,b:2379/ads")),
            ("registry://ads", Some("keeper://h:1"), Ok("keeper://h:1/ads")),
            ("registry://ads", Some("etcd://a:1,b:2/ads"), Ok("etcd://a:1,b:2/ads")),
            ("registry://", Some("etcd://a:1/ads"), Ok("etcd://a:1/ads")),
            ("registry://ads", Some("etcd://a:1/other"), Err("names cluster other, and not ads")),
            ("registry://ads", None, Err("Set SANDERLING_REGISTRY=keeper://HOST:PORT")),
            ("registry://ads", Some("h:1"), Err("SANDERLING_REGISTRY: registry \"h:1\": unknown scheme")),
            ("keeper://a:1,b:2/ads", None, Err("a keeper is one process")),
            ("keeper://h/ads", None, Err("\"h\" is not HOST:PORT")),
            ("keeper:///ads", None, Err("is not HOST:PORT")),
            ("keeper://h:1/a/b", None, Err("cluster \"a/b\"")),
            ("http://h:1/a", None, Err("unknown scheme")),
        ] {
            match (RegistryUrl::parse_with(text, variable), expected) {
                (Ok(url), Ok(expected)) => assert_eq!(url.to_string(), expected),
                (Err(error), Err(expected)) => {
                    assert!(error.to_string().contains(expected), "{text}: {error}");
                }
                (found, expected) => panic!("{text}: {found:?} is not {expected:?}"),
            }
        }
        assert!(RegistryUrl::is_url("registry://ads") && !RegistryUrl::is_url("tcp://h:1"));
    }
}
