//! Kinds of request failures, each with a short name to count by. Decides nothing about them.

use sanderling_client::{ClientError, Fault};
use sanderling_store::StoreError;

use crate::request::Failure;

/// An error with its kind.
pub(crate) fn failure(error: &ClientError) -> Failure {
    let kind = match error {
        ClientError::Store(error) => store(error),
        ClientError::Partly { error, .. } => failure(error).kind,
        ClientError::Refused { fault, .. } => refused(fault),
        ClientError::BadGradient { .. } => "bad_gradient",
        ClientError::Late { .. } | ClientError::Awaited { .. } | ClientError::CalledOff { .. } => "late",
        ClientError::Stopped { .. } => "stopped",
        ClientError::Restarted { .. } => "restarted",
        ClientError::Lost { .. } => "lost",
        ClientError::Protocol { .. } => "protocol",
        ClientError::Transport(_) => "transport",
        ClientError::Address(_) | ClientError::Cluster { .. } => "cluster",
        ClientError::Request { .. }
        | ClientError::TwinTables { .. }
        | ClientError::UnknownTable { .. }
        | ClientError::Group { .. }
        | ClientError::NotHere => "bad_request",
    };
    Failure { kind, reason: error.to_string() }
}

fn store(error: &StoreError) -> &'static str {
    match error {
        StoreError::TableFull { .. } => "table_full",
        StoreError::BadGradient { .. } | StoreError::NotFinite { .. } => "bad_gradient",
        StoreError::Config { .. } => "bad_config",
        _ => "bad_request",
    }
}

fn refused(fault: &Fault) -> &'static str {
    match fault {
        Fault::Busy { .. } => "busy",
        Fault::DeadlineExceeded => "late",
        Fault::Draining => "draining",
        Fault::NotHere { .. } => "not_here",
        Fault::NotPrimary { .. } => "not_primary",
        Fault::UnknownTable => "unknown_table",
        Fault::TableExists => "table_exists",
        Fault::BadConfig => "bad_config",
        Fault::TableFull { .. } => "table_full",
        Fault::BadGradient { .. } => "bad_gradient",
        Fault::Unauthorized => "unauthorized",
        Fault::Io { .. } => "io",
        Fault::Internal => "internal",
        _ => "bad_request",
    }
}
