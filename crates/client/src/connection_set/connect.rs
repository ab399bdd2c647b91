//! Opening and closing the connections of a [`ConnectionSet`]. Knows no request.

use sanderling_transport::{Address, Endpoint, Error, own_token};
use sanderling_wire::Features;

use super::{ConnectionSet, FRAMING, GroupLink};
use crate::options::ConnectOptions;
use crate::reach::reach;

impl ConnectionSet {
    pub(super) fn connect(&mut self, at: usize) {
        let link = &mut self.links[at];
        if let Some(address) = link.group.as_mut().and_then(GroupLink::next) {
            link.address = address;
        }
        link.packing.restart();
        link.told_us = None;
        let asked_us = self.start.elapsed().as_micros() as u64;
        let within = link.rpc.within(asked_us);
        let connected = reach(&link.address, &self.options, FRAMING, within);
        let connected = connected.and_then(|connection| self.poller.add(connection));
        // A server that does not answer was waited for until now.
        let now_us = self.now_us();
        self.notice(now_us, Some(at));
        let link = &mut self.links[at];
        if self.options.token.is_empty() {
            link.rpc.say_token(own_token_of(&link.address));
        }
        match connected {
            Ok(token) => {
                link.connection = Some(token);
                let mut features = features(&link.address, &self.options) | link.packing.features();
                if link.group.as_ref().is_some_and(GroupLink::is_reader) {
                    features = features | Features::PULL_FROM_ANY;
                }
                if let Err(error) = link.rpc.connected(features) {
                    self.lost(at, error.to_string());
                }
            }
            // Neither certificates nor devices nor what the server talks become others by trying again.
            Err(
                error @ (Error::Tls { .. }
                | Error::TalksTls { .. }
                | Error::TalksNoTls { .. }
                | Error::NoRdma { .. }),
            ) => {
                link.rpc.hopeless(now_us, without_place(&error, &link.address));
            }
            Err(error) => {
                link.group.iter().for_each(|group| group.not_reached(&link.address));
                link.rpc.disconnected(now_us, error.to_string());
                self.failed(at, asked_us);
                self.tell_who_is_waited_for();
                // Only this one: who has sent to the others takes their failures one after the other.
                self.give_up_if_told(at..at + 1);
            }
        }
    }

    pub(super) fn close(&mut self, at: usize) {
        if let Some(token) = self.links[at].connection.take() {
            self.poller.remove(token);
        }
    }

    pub(super) fn lost(&mut self, at: usize, cause: String) {
        self.close(at);
        let now_us = self.now_us();
        self.links[at].rpc.disconnected(now_us, cause);
        if self.links[at].rpc.outstanding() > 0 {
            self.failed(at, now_us);
        }
    }
}

/// The error's text without the address, for callers that name the server themselves.
pub(super) fn without_place(error: &Error, address: &Address) -> String {
    let (said, place) = (error.to_string(), format!("{address}: "));
    said.strip_prefix(&place).unwrap_or(&said).to_owned()
}

/// The token that a server of this user has made for itself, if it is at this address of this host.
fn own_token_of(address: &Address) -> String {
    let of = |endpoint: &Endpoint| own_token(&endpoint.host, endpoint.port);
    address.endpoints().first().and_then(of).unwrap_or_default()
}

/// The features that are offered to a server at this address.
fn features(address: &Address, options: &ConnectOptions) -> Features {
    let rows = if options.f16_rows { Features::F16_ROWS } else { Features::NONE };
    let rows = rows | Features::FORGET | Features::SAVES | Features::SENT_AT | Features::TRACES;
    let rows = rows | Features::TEMPORARY | Features::PUSH_PARTS | Features::CHANGES | Features::HISTORY;
    // The checksums of RDMA are the card's.
    let rows = if matches!(address, Address::Rdma(_)) { rows | Features::UNSUMMED_ROWS } else { rows };
    if address.in_memory() { rows | Features::NO_CHECKSUM } else { rows }
}
