//! `sanderling ctl begin-anew`: makes a server without rows the primary of a group whose servers have all ended. Changes
//! only the group's record.

use std::collections::BTreeMap;
use std::time::Duration;

use sanderling_observe::unique;
use sanderling_registry::{
    Edit, GroupRecord, MEMBERS, MemberRecord, Outcome, RegistryError, group_name, is_lost, numbered,
};
use serde::Serialize;

use super::in_cluster::InCluster;
use crate::failure::Failure;
use crate::output;

/// Time for one question to the registry.
const WITHIN: Duration = Duration::from_secs(10);

/// Begin a group anew, without rows, after all servers that had its rows have ended
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sanderling ctl cluster --registry registry://ads
  sanderling ctl begin-anew --registry registry://ads --group 0

The rows of the group are gone. A server that has started since becomes its primary, with empty tables and another history. \
Restore a save afterwards: a training that waits does so itself (--on-lost-rows), sanderling train --resume does. Refused while a \
server with the rows has a lease: after its end wait 6 s.")]
pub(super) struct BeginAnew {
    #[command(flatten)]
    cluster: InCluster,
    /// Number of the group, as ctl cluster shows it
    #[arg(long, value_name = "G")]
    group: u32,
}

/// The new primary of a group.
#[derive(Debug, Serialize)]
struct Begun {
    group: u32,
    epoch: u64,
    primary: u32,
    address: String,
}

impl BeginAnew {
    pub(super) fn run(&self, token: Option<&str>, json: bool) -> Result<u8, Failure> {
        let registry = self.cluster.open(token)?;
        let (name, url) = (group_name(self.group), registry.url());
        let group = self.group;
        let Some(record) = registry.get(&name, WITHIN)? else {
            return Err(Failure::Run(format!(
                "{url}: group {group} has no record, so its first server begins it by itself; start one"
            )));
        };
        let damaged = |error: serde_json::Error| RegistryError::Damaged {
            url: url.clone(),
            name: name.clone(),
            reason: error.to_string(),
        };
        let mut stored: GroupRecord = serde_json::from_value(record.value).map_err(damaged)?;
        let members: BTreeMap<u32, MemberRecord> = numbered(&url, &registry.list(MEMBERS, WITHIN)?, MEMBERS)?;
        if !is_lost(&stored, &members) {
            return Err(Failure::Run(format!(
                "{url}: a server with the rows of group {group} runs, or its lease of 6 s has not ended; see: sanderling ctl \
                 cluster --registry {url}"
            )));
        }
        // Boot 0: it is about to start.
        let is_there = |found: &&MemberRecord| {
            found.group == group && found.member.boot != 0 && !found.addresses.is_empty()
        };
        let there = members.values().find(is_there);
        let Some(heir) = there else {
            return Err(Failure::Run(format!(
                "{url}: group {group} has no server; start one, then begin anew"
            )));
        };
        let (epoch, address) = (stored.group.epoch + 1, heir.addresses[0].clone());
        (stored.group.epoch, stored.group.history) = (epoch, unique());
        (stored.group.primary, stored.group.in_sync) = (heir.member, Vec::new());
        stored.addresses = BTreeMap::from([(heir.member.server, heir.addresses.clone())]);
        let edit = Edit::put(serde_json::to_value(&stored).map_err(damaged)?);
        match registry.compare_and_set(&name, record.revision, edit, WITHIN)? {
            Outcome::Done(_) => {}
            Outcome::Other(_) => {
                return Err(Failure::Run(format!(
                    "{url}: the record of group {group} has changed meanwhile; look at ctl cluster, and try again"
                )));
            }
        }
        let begun = Begun { group, epoch, primary: heir.member.server, address };
        match json {
            true => output::json(&begun)?,
            false => output::text(&format!(
                "group {group} begins anew without rows: server {} at {} is its primary; restore a save now (train --resume)",
                begun.primary, begun.address
            ))?,
        }
        Ok(0)
    }
}
