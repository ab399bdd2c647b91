//! Errors of the tables of a client; each names server and table. Does not know what a row means.

use std::sync::Arc;
use std::time::Duration;

use sanderling_store::StoreError;
use sanderling_transport::AddressError;
use sanderling_wire::{Fault, WireError, on_one_line};

use crate::rpc_state::CallError;

/// An error of a pull, a push or another request.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The table refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Two tables of this process have the same name.
    #[error("two tables are named {table:?}: features find theirs by its name; give each one of its own")]
    TwinTables {
        /// The name.
        table: String,
    },
    /// A feature names a table that the client does not have.
    #[error("feature {feature:?} reads table {table:?}, which is not there")]
    UnknownTable {
        /// The feature.
        feature: String,
        /// Its table.
        table: String,
    },
    /// Row by row, only tables in this process can be updated.
    #[error(
        "the tables are on servers, whose rows can only be updated in minibatches: set train.batch_size to 2 or more"
    )]
    NotHere,
    /// An address that is none.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The servers that were named are not the shards of one cluster.
    #[error("{reason}")]
    Cluster {
        /// Which server, what is wrong, and what to do.
        reason: String,
    },
    /// A server refused. Other servers may have carried out their part of the request.
    #[error("{}: {}", place(server, table), said(fault, reason))]
    Refused {
        /// Address of the server.
        server: String,
        /// Name of the table, or empty.
        table: String,
        /// The fault that it reported.
        fault: Fault,
        /// The reason in its words; may be empty.
        reason: String,
    },
    /// A gradient of pooled rows is NaN, infinite or too large; nothing of the push was applied.
    #[error(
        "table {table:?}: gradient of sample {sample}, coordinate {coordinate} is {value:e}: nothing of this push was applied; lower the learning rate or clip gradients"
    )]
    BadGradient {
        /// Name of the table.
        table: String,
        /// The sample, in its minibatch.
        sample: usize,
        /// Coordinate within the row.
        coordinate: usize,
        /// The offending gradient.
        value: f32,
    },
    /// No answer in time.
    #[error("{}: {}", place(server, table), late(*timeout, *sent, cause.as_deref()))]
    Late {
        /// Address of the server.
        server: String,
        /// Name of the table, or empty.
        table: String,
        /// The time it was given.
        timeout: Duration,
        /// Was it sent at least once? Then the server may have carried it out.
        sent: bool,
        /// The last error of the connection.
        cause: Option<String>,
    },
    /// A server was started anew.
    #[error(
        "{}: the server was started anew, and what it held in memory is gone or as of its last save; open the table again",
        place(server, table)
    )]
    Restarted {
        /// Address of the server.
        server: String,
        /// Name of the table, or empty.
        table: String,
    },
    /// The connection broke during a request that must not be repeated.
    #[error(
        "{}: {cause}; whether the request was carried out is unknown, look before it is repeated",
        place(server, table)
    )]
    Lost {
        /// Address of the server.
        server: String,
        /// Name of the table, or empty.
        table: String,
        /// How it broke.
        cause: String,
    },
    /// The caller was told to stop ([`ConnectOptions::stop`](crate::ConnectOptions::stop)) while it waited for the
    /// server.
    #[error(
        "{}: stopped while this server did not answer; whether the last request was carried out is unknown",
        place(server, table)
    )]
    Stopped {
        /// Address of the server.
        server: String,
        /// Name of the table, or empty.
        table: String,
    },
    /// A server's message is no valid answer.
    #[error("{}: {reason}", place(server, table))]
    Protocol {
        /// Address of the server.
        server: String,
        /// Name of the table, or empty.
        table: String,
        /// The defect.
        reason: String,
    },
    /// A request that no message can hold.
    #[error("table {table:?}: {source}")]
    Request {
        /// Name of the table, or empty.
        table: String,
        /// Which part is too large.
        source: WireError,
    },
    /// Other workers did not come in time, or a step took too long to apply.
    #[error("{place}: {what}: {} within {timeout:?}", absent(workers))]
    Awaited {
        /// Address of the server where they meet, or that it is this process.
        place: String,
        /// The step, or the name of the meeting.
        what: String,
        /// The workers that did not come; empty if all did.
        workers: Vec<u32>,
        /// How long they were waited for.
        timeout: Duration,
    },
    /// The wait for other workers was cancelled.
    #[error("{place}: {what}: the wait was called off")]
    CalledOff {
        /// Address of the server where they meet, or that it is this process.
        place: String,
        /// The step, or the name of the meeting.
        what: String,
    },
    /// A group of workers refused a request.
    #[error("{place}: {reason}")]
    Group {
        /// Address of the server where they meet, or that it is this process.
        place: String,
        /// Why not, and what to do.
        reason: String,
    },
    /// Some servers did what others failed to do.
    #[error("{error}; {done} by: {}", by.join(", "))]
    Partly {
        /// The first of the failures.
        error: Box<ClientError>,
        /// The operation as a participle, such as `saved`.
        done: &'static str,
        /// Addresses of those that did it.
        by: Vec<String>,
    },
    /// The system has no room for another thread's connections.
    #[error(transparent)]
    Transport(#[from] sanderling_transport::Error),
}

/// Names for the errors of calls.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    /// Addresses of the servers.
    pub(crate) servers: Arc<[String]>,
    pub(crate) timeout: Duration,
    /// Within which a server that is away must be back.
    pub(crate) away: Duration,
}

impl Names {
    /// A call's error with its names.
    pub(crate) fn error(&self, server: usize, table: &str, error: CallError) -> ClientError {
        let (server, table) = (self.servers[server].clone(), table.to_owned());
        // The transport names the address, too.
        let once = |cause: String| match cause.strip_prefix(&format!("{server}: ")) {
            Some(rest) => rest.to_owned(),
            None => cause,
        };
        match error {
            CallError::Refused { fault, reason } => ClientError::Refused { server, table, fault, reason },
            CallError::Late { sent, cause } => {
                let cause = cause.map(once);
                ClientError::Late { server, table, timeout: self.timeout, sent, cause }
            }
            CallError::Away { sent, cause } => {
                let cause = cause.map(once);
                ClientError::Late { server, table, timeout: self.away, sent, cause }
            }
            CallError::Restarted => ClientError::Restarted { server, table },
            CallError::Lost { cause } => {
                let cause = once(cause);
                ClientError::Lost { server, table, cause }
            }
            CallError::Stopped => ClientError::Stopped { server, table },
            CallError::Protocol { reason } => {
                let reason = once(reason);
                ClientError::Protocol { server, table, reason }
            }
        }
    }

    /// An answer to something else.
    pub(crate) fn misfit(&self, server: usize, table: &str) -> ClientError {
        let reason = "the answer does not fit what was asked".to_owned();
        self.error(server, table, CallError::Protocol { reason })
    }
}

impl ClientError {
    /// Whether a server does not keep all changes since a follower's place any more.
    #[must_use]
    pub fn is_stream_too_late(&self) -> bool {
        matches!(self, ClientError::Refused { fault: Fault::StreamTooLate { .. }, .. })
    }
}

fn place(server: &str, table: &str) -> String {
    if server.is_empty() {
        return format!("table {table:?}");
    }
    if table.is_empty() { server.to_owned() } else { format!("{server}: table {table:?}") }
}

/// Workers who did not come; of many the first few.
fn absent(workers: &[u32]) -> String {
    const NAMED_MAX: usize = 16;
    let named: Vec<String> = workers.iter().take(NAMED_MAX).map(u32::to_string).collect();
    let more = if workers.len() > NAMED_MAX { " and others" } else { "" };
    match named.len() {
        0 => "all workers came, but it was not applied".to_owned(),
        1 => format!("worker {} did not come", named[0]),
        _ => format!("workers {}{more} did not come", named.join(", ")),
    }
}

/// A server's fault and its reason in one text.
pub(crate) fn said(fault: &Fault, reason: &str) -> String {
    let (fault, reason) = (fault.to_string(), on_one_line(reason));
    if fault.ends_with(&reason) { fault } else { format!("{fault}: {reason}") }
}

fn late(timeout: Duration, sent: bool, cause: Option<&str>) -> String {
    let fate = if sent { "; whether the request was carried out is unknown" } else { "" };
    match cause {
        Some(cause) => format!("no answer within {timeout:?}: {cause}{fate}"),
        None => format!("no answer within {timeout:?}{fate}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_server_once() {
        let servers: Arc<[String]> = vec!["tcp://h:1".to_owned()].into();
        let names = Names { servers, timeout: Duration::from_secs(5), away: Duration::from_secs(5) };
        let late = |cause: &str| CallError::Late { sent: false, cause: Some(cause.to_owned()) };
        for (error, expected) in [
            (late("tcp://h:1: connection refused"), "tcp://h:1: no answer within 5s: connection refused"),
            // The fastest way to a server may be another address.
            (
                late("unix:/run/7000: connection refused"),
                "tcp://h:1: no answer within 5s: unix:/run/7000: connection refused",
            ),
            (
                CallError::Lost { cause: "tcp://h:1: the peer closed the connection".to_owned() },
                "tcp://h:1: the peer closed the connection; whether the request was carried out is unknown, look before it is \
                 repeated",
            ),
            (CallError::Protocol { reason: "tcp://h:1: not a frame".to_owned() }, "tcp://h:1: not a frame"),
        ] {
            assert_eq!(names.error(0, "", error).to_string(), expected);
        }
    }
}
