//! Direct connections between all workers of a job, each with a bounded queue. Does not know what rows and bytes mean.
//!
//! Every use of the mesh ends with a barrier after all parcels were received, so a received parcel belongs to the
//! current use. A worker that cannot send receives first, so there is no circular wait.

use std::time::Duration;

use crate::error::JobError;
use crate::halt::Halt;
use crate::hosts::peer_links::PeerLinks;

pub(crate) mod local;
mod parcel;

pub(crate) use parcel::{PARCEL_BYTES, Parcel};

/// A worker's connections to all others, numbered as in the group.
#[derive(Debug)]
pub(crate) enum Mesh {
    Local(local::LocalMesh),
    Remote(Box<PeerLinks>),
}

impl Mesh {
    /// Whether this worker is to stop.
    pub(crate) fn halt(&self) -> Halt {
        match self {
            Mesh::Local(here) => here.halt().clone(),
            Mesh::Remote(links) => Halt::Remote(std::sync::Arc::clone(&links.status)),
        }
    }

    /// Puts a parcel into the queue of another worker; gives it back if that is full, and then something is to be received
    /// before it is tried again.
    pub(crate) fn try_send(&mut self, to: u32, parcel: Parcel) -> Result<Option<Parcel>, JobError> {
        match self {
            Mesh::Local(here) => here.try_send(to, parcel),
            Mesh::Remote(links) => links.try_send(to, parcel),
        }
    }

    /// The next parcel from anybody and whose it is, if one comes within this time.
    pub(crate) fn receive(&mut self, wait: Duration) -> Result<Option<(u32, Parcel)>, JobError> {
        match self {
            Mesh::Local(here) => here.receive(wait),
            Mesh::Remote(links) => links.receive(wait),
        }
    }
}
