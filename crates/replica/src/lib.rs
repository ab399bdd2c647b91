//! Replication of a server's tables. So far the push windows, which replicas and servers share.

pub mod limit;
pub mod push_dedup;
