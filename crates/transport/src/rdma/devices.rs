//! The RDMA devices of the machine, as the kernel lists them, and which port belongs to an IP address. It opens no device.

use std::fs::read_to_string;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

/// Where the kernel lists its devices.
pub(super) const CLASS: &str = "/sys/class/infiniband";
/// Entries of a port's table of GIDs that are looked at.
const GIDS_MAX: usize = 256;
/// Devices and ports that are looked at.
const DEVICES_MAX: usize = 64;

/// A port of a device, and its entry in the table of GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) device: String,
    pub(super) number: u8,
    pub(super) gid_index: u8,
    pub(super) gid: [u8; 16],
    /// Whether packets need a GID: RoCE. InfiniBand addresses ports by LID.
    pub(super) is_ethernet: bool,
}

impl Port {
    /// The IP address that the port's GID is made of.
    pub(super) fn host(&self) -> Result<IpAddr, String> {
        let host = Ipv6Addr::from(self.gid).to_canonical();
        let is_reached = is_routable(&self.gid) && !host.is_unspecified();
        is_reached.then_some(host).ok_or_else(|| format!("{}/{} has no IP address", self.device, self.number))
    }
}

/// Finds the port with this address of the machine; else the first active port.
///
/// # Errors
/// The reason why there is none, which says what was looked for.
pub(super) fn find(class: &Path, local: IpAddr) -> Result<Port, String> {
    let devices = list(class)?;
    let (mut first, mut states) = (None, Vec::new());
    for device in &devices {
        let ports = entries(&class.join(device).join("ports"));
        for (number, path) in ports.iter().filter_map(|path| Some((name(path)?.parse::<u8>().ok()?, path))) {
            let state = text(&path.join("state"));
            states.push(format!("{device}/{number} is {}", state.rsplit(' ').next().unwrap_or_default()));
            if !state.ends_with("ACTIVE") {
                continue;
            }
            let is_ethernet = text(&path.join("link_layer")) == "Ethernet";
            let port = |(gid_index, gid): (u8, [u8; 16])| Port {
                device: device.clone(),
                number,
                gid_index,
                gid,
                is_ethernet,
            };
            let gids = gids(path);
            let ours =
                |(_, gid): &&(u8, [u8; 16])| Ipv6Addr::from(*gid).to_canonical() == local.to_canonical();
            // Of the entries of an address, that of RoCE v2 is the later one.
            if let Some(found) = gids.iter().rev().find(ours) {
                return Ok(port(*found));
            }
            let any = gids.iter().rev().find(|(_, gid)| is_routable(gid)).or_else(|| gids.last());
            let any = any.copied().or_else(|| (!is_ethernet).then_some((0, [0; 16])));
            first = first.or_else(|| any.map(port));
        }
    }
    first.ok_or_else(|| match states.is_empty() {
        true => format!("{} has no ports ({})", devices.join(", "), class.display()),
        false => format!("no port is ACTIVE with an address: {}", states.join(", ")),
    })
}

/// The names of all devices, at least one.
pub(super) fn list(class: &Path) -> Result<Vec<String>, String> {
    let devices: Vec<String> =
        entries(class).iter().filter_map(|path| Some(name(path)?.to_owned())).take(DEVICES_MAX).collect();
    if !class.exists() {
        return Err(format!("{} is not there: the kernel has no RDMA (module ib_core)", class.display()));
    }
    if devices.is_empty() {
        return Err(format!("{} lists no device (`rdma link` shows them)", class.display()));
    }
    Ok(devices)
}

/// Whether a GID is that of an IPv4 address, or of an IPv6 address beyond the link.
fn is_routable(gid: &[u8; 16]) -> bool {
    !gid.starts_with(&[0xfe, 0x80])
}

/// The entries of a port's table that are in use, RoCE v2 after others.
fn gids(port: &Path) -> Vec<(u8, [u8; 16])> {
    let mut found: Vec<(bool, u8, [u8; 16])> = Vec::new();
    for path in entries(&port.join("gids")).iter().take(GIDS_MAX) {
        let Some(index) = name(path).and_then(|index| index.parse::<u8>().ok()) else { continue };
        let Ok(gid) = text(path).parse::<Ipv6Addr>() else { continue };
        if !gid.is_unspecified() {
            let kind = text(&port.join("gid_attrs/types").join(index.to_string()));
            found.push((kind == "RoCE v2", index, gid.octets()));
        }
    }
    found.sort_unstable();
    found.into_iter().map(|(_, index, gid)| (index, gid)).collect()
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let Ok(found) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut found: Vec<PathBuf> = found.filter_map(|entry| Some(entry.ok()?.path())).collect();
    found.sort();
    found
}

fn name(path: &Path) -> Option<&str> {
    path.file_name()?.to_str()
}

/// A file's only line. Empty if it cannot be read, as an unused entry of the table of GIDs.
fn text(path: &Path) -> String {
    read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device, its port's state and link layer, and its GIDs with their types.
    type Device<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, &'a str)]);

    const V4: &str = "0000:0000:0000:0000:0000:ffff:0a00:0001";
    const LINK: &str = "fe80:0000:0000:0000:5054:00ff:fe12:3456";

    fn check(devices: &[Device<'_>], local: &str, expected: Result<(&str, u8), &str>) {
        let folder = tempfile::tempdir().expect("a folder");
        let class = folder.path().join("infiniband");
        for (device, state, layer, gids) in devices {
            let port = class.join(device).join("ports/1");
            std::fs::create_dir_all(port.join("gids")).expect("made");
            std::fs::create_dir_all(port.join("gid_attrs/types")).expect("made");
            std::fs::write(port.join("state"), format!("{state}\n")).expect("written");
            std::fs::write(port.join("link_layer"), format!("{layer}\n")).expect("written");
            for (index, (gid, kind)) in gids.iter().enumerate() {
                std::fs::write(port.join("gids").join(index.to_string()), format!("{gid}\n"))
                    .expect("written");
                std::fs::write(port.join("gid_attrs/types").join(index.to_string()), format!("{kind}\n"))
                    .expect("written");
            }
        }
        let found = find(&class, local.parse().expect("an address"));
        match (found, expected) {
            (Ok(port), Ok(expected)) => {
                assert_eq!((port.device.as_str(), port.gid_index), expected);
                let v4 = (port.gid[10] == 0xff).then(|| IpAddr::from([10, 0, 0, 1]));
                assert_eq!(port.host().ok(), v4);
            }
            (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{reason}"),
            (found, expected) => panic!("{found:?} and not {expected:?}"),
        }
    }

    #[test]
    fn ports_of_addresses_and_what_is_said_without_one() {
        let active = "4: ACTIVE";
        let unused = "0000:0000:0000:0000:0000:0000:0000:0000";
        let (v1, v2) = ("IB/RoCE v1", "RoCE v2");
        let rxe0: Device<'_> =
            ("rxe0", active, "Ethernet", &[(LINK, v2), (V4, v1), (V4, v2), (unused, ""), (unused, "")]);
        let mlx5: Device<'_> = ("mlx5_0", active, "Ethernet", &[(LINK, v2)]);
        let down: Device<'_> = ("rxe0", "1: DOWN", "Ethernet", &[(V4, v2)]);
        let infiniband: Device<'_> = ("ib0", active, "InfiniBand", &[]);
        check(&[mlx5, rxe0], "10.0.0.1", Ok(("rxe0", 2)));
        check(&[rxe0], "::ffff:10.0.0.1", Ok(("rxe0", 2)));
        check(&[rxe0], "fe80::5054:ff:fe12:3456", Ok(("rxe0", 0)));
        // The bootstrap connection may be in another network.
        check(&[rxe0], "127.0.0.1", Ok(("rxe0", 2)));
        check(&[mlx5], "127.0.0.1", Ok(("mlx5_0", 0)));
        check(&[infiniband], "10.0.0.1", Ok(("ib0", 0)));
        check(&[down], "10.0.0.1", Err("rxe0/1 is DOWN"));
        check(&[], "10.0.0.1", Err("is not there"));
        let folder = tempfile::tempdir().expect("a folder");
        let reason = find(folder.path(), "10.0.0.1".parse().expect("an address")).expect_err("no device");
        assert!(reason.contains("lists no device"), "{reason}");
    }
}
