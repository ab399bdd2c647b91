//! Takes the frames that have come over the connections, and hands the answers to the owner. Knows no request.

use sanderling_transport::{Error, Received};
use sanderling_wire::Reply;

use super::connect::without_place;
use super::{ConnectionSet, GroupLink, Link, NoAnswer, Sink};
use crate::rpc_state::{Answer, CallError};

impl ConnectionSet {
    /// Takes all frames that are there.
    pub(super) fn receive(&mut self, at: usize, sink: &mut Sink<'_>) {
        let now_us = self.now_us();
        let other = self.other(at);
        let ConnectionSet { links, poller, hedging, servers, recorder, traced, outages, names, .. } = self;
        let (server, by_second) = (at % *servers, at >= *servers);
        let Some(connection) = links[at].connection.and_then(|token| poller.connection(token)) else {
            return;
        };
        let ended = loop {
            match connection.receiver.try_receive() {
                Ok(Received::Frame(frame)) => {
                    let Link { rpc, packing, group, .. } = &mut links[at];
                    let answer = rpc.receive(now_us, frame, &mut packing.unpacker);
                    let is_answered = !matches!(answer, Answer::None);
                    // Another replica than the primary answers nothing.
                    let is_primary = group.as_ref().is_none_or(|group| is_answered && !group.is_reader());
                    if let Some(peer) = rpc.peer_when_up().filter(|_| is_primary) {
                        outages.ended(server, &names.servers[server], peer);
                    }
                    if is_answered {
                        group.iter_mut().for_each(GroupLink::found);
                    }
                    let (done, reply) = match answer {
                        Answer::To(done, reply) => (done, reply),
                        Answer::Moved(done, call) => {
                            traced
                                .ended(done.tag, &names.servers, || Some("its slots have moved".to_owned()));
                            sink(server, done.tag, Err(NoAnswer::Moved(call)));
                            if done.is_hedged {
                                links[other].rpc.forget(done.tag);
                            }
                            continue;
                        }
                        Answer::None => continue,
                    };
                    let has_rows = reply.kind().has_rows();
                    if let Some(recorder) = recorder {
                        recorder.answered(reply.kind(), server, done.began_us, now_us);
                    }
                    traced.ended(done.tag, &names.servers, || match &reply {
                        Reply::Failed(failure) => Some(failure.reason.to_owned()),
                        _ => None,
                    });
                    match reply {
                        Reply::Failed(failure) => {
                            let (fault, reason) = (failure.fault, failure.reason.to_owned());
                            let refused = CallError::Refused { fault, reason };
                            sink(server, done.tag, Err(NoAnswer::Failed(refused)));
                        }
                        reply => sink(server, done.tag, Ok(reply)),
                    }
                    if done.is_hedged {
                        links[other].rpc.forget(done.tag);
                    }
                    if let (true, Some(hedging)) = (has_rows, hedging.get_mut(server)) {
                        hedging.answered(now_us.saturating_sub(done.began_us), by_second);
                    }
                }
                Ok(Received::Nothing) => break connection.sender.try_flush().err(),
                Ok(Received::End) => {
                    break Some(Error::Closed { peer: connection.peer().to_owned() });
                }
                Err(error) => break Some(error),
            }
        };
        match ended {
            // It was connected, and the server took the first frame for something else, or has no room for a queue pair.
            Some(error @ (Error::TalksTls { .. } | Error::NoRdma { .. })) => {
                self.close(at);
                let reason = without_place(&error, &self.links[at].address);
                self.links[at].rpc.hopeless(now_us, reason);
            }
            Some(error) => self.lost(at, error.to_string()),
            None => self.look_for_way(at),
        }
    }
}
