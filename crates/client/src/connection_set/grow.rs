//! Makes the connections of a [`ConnectionSet`], at first and when groups are added to a cluster. Opens none.

use std::sync::Arc;

use sanderling_observe::unique;
use sanderling_transport::Address;

use super::{ConnectionSet, GroupLink, Link};
use crate::error::Names;
use crate::locations::Locations;
use crate::options::{ConnectOptions, PullFrom};
use crate::packing::Packing;
use crate::rpc_state::{Hedging, Patience, RpcState};

impl Link {
    /// The connection to an address, or to a group that is there at first: to its primary, or for pulls to any replica.
    pub(super) fn new(
        address: &Address,
        group: Option<(Arc<Locations>, usize)>,
        pulls_from_any: bool,
        options: &ConnectOptions,
        names: &Names,
    ) -> Link {
        let patience = Patience { timeout: names.timeout, away: names.away, seed: unique() };
        let mut rpc = RpcState::new(patience, &options.token, &options.name);
        let group = group.map(|(locations, number)| {
            rpc.follow_group(number as u32);
            match pulls_from_any {
                true => GroupLink::reader(locations, number),
                false => GroupLink::new(locations, number),
            }
        });
        // Frames that stay in memory are copied faster than compressed.
        let compression = options.compression.filter(|_| !address.in_memory());
        let packing = Packing::new(compression);
        Link { address: address.clone(), group, rpc, connection: None, packing, told_us: None }
    }
}

impl ConnectionSet {
    /// Adds connections to the groups of a cluster up to this many, which are made when they are used.
    pub(crate) fn grow(&mut self, groups: usize, locations: &Arc<Locations>) {
        if groups <= self.servers {
            return;
        }
        let added = self.servers..groups;
        let mut former = std::mem::take(&mut self.links).into_iter().peekable();
        let mut lane = 0;
        while former.peek().is_some() {
            let pulls_from_any = lane == 1 && self.options.pull_from == PullFrom::Any;
            lane += 1;
            self.links.extend(former.by_ref().take(self.servers));
            self.links.extend(added.clone().map(|group| {
                let address = locations.of(group, 0).unwrap_or(Address::Embedded);
                let group = Some((Arc::clone(locations), group));
                Link::new(&address, group, pulls_from_any, &self.options, &self.names)
            }));
        }
        if let Some(hedging) = self.hedging.first().map(Hedging::anew) {
            self.hedging.resize_with(groups, || hedging.anew());
        }
        let names = self.names.servers.iter().cloned();
        self.names.servers = names.chain(added.map(|group| locations.name(group))).collect();
        self.servers = groups;
    }
}
